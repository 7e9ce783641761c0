//! Which policy, mode and trigger are in force, and who says so: for `forebay explain` and
//! `forebay status`.

use forebay_client::policy_of;
use forebay_placement::PolicyId;
use forebay_placement::schema::{Mode, Settings, Trigger};
use forebay_pool::Segment;
use forebay_pool::layout::FileRecord;
use std::sync::atomic::Ordering;

/// Who has said it. Of two who say the same, the first of this list but the run, which is named
/// only where what it said made the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The rule that holds for the file.
    Rule,
    /// An option of `forebay run`.
    Run,
    /// The managed directory: `[[backing]] mode`.
    Directory,
    /// The configuration.
    Configuration,
    /// None of them.
    Default,
}

impl Source {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Source::Rule => "rule",
            Source::Run => "run",
            Source::Directory => "directory",
            Source::Configuration => "configuration",
            Source::Default => "default",
        }
    }
}

/// What is in force, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The placement policy. A rule that names a tier leaves it only what the tier cannot hold.
    pub policy: (PolicyId, Source),
    /// The buffering mode.
    pub mode: (Mode, Source),
    /// What starts a flush.
    pub trigger: (Trigger, Source),
}

impl InForce {
    /// For a file whose rule sets `rule`, in the managed directory `store` if that is known.
    /// Without a record: what holds where no run says anything.
    pub(crate) fn of(
        segment: &Segment,
        record: Option<&FileRecord>,
        rule: &Settings,
        store: Option<usize>,
    ) -> InForce {
        let policy = policy_of(segment, rule);
        let of_policy = match rule.policy {
            Some(_) => Source::Rule,
            None if policy == PolicyId::default() => Source::Default,
            None => Source::Configuration,
        };
        let of_store = |store: usize| Mode::from_code(segment.header().store[store].mode as u8);
        let directory = store.and_then(of_store);
        let found = record.and_then(|record| Mode::from_code(record.mode.load(Ordering::Relaxed)));
        let mode = found.or(rule.mode).or(directory).unwrap_or(Mode::Async);
        let of_mode = match mode {
            _ if rule.mode == Some(mode) => Source::Rule,
            _ if directory == Some(mode) => Source::Directory,
            // What was there before is no scratch file, wherever that is said.
            Mode::Async if [rule.mode, directory].iter().all(|set| set.is_none_or(is_scratch)) => {
                Source::Default
            }
            _ => Source::Run,
        };
        let trigger = match record {
            Some(record) => segment.trigger_of(record),
            None if mode == Mode::Staged => Trigger::PerFile,
            None => rule.trigger.unwrap_or_else(|| segment.header().flush_trigger()),
        };
        let is_set = record.is_some_and(|record| record.trigger.load(Ordering::Relaxed) != 0);
        let of_trigger = match trigger {
            _ if rule.trigger == Some(trigger) || mode == Mode::Staged => Source::Rule,
            _ if is_set => Source::Run,
            Trigger::Periodic => Source::Default,
            _ => Source::Configuration,
        };
        InForce {
            policy: (policy, of_policy),
            mode: (mode, of_mode),
            trigger: (trigger, of_trigger),
        }
    }

    /// Name and source of each, in the order of the fields.
    pub fn parts(&self) -> [(&'static str, &'static str, Source); 3] {
        [
            ("policy", self.policy.0.policy().name(), self.policy.1),
            ("mode", self.mode.0.name(), self.mode.1),
            ("trigger", self.trigger.0.name(), self.trigger.1),
        ]
    }
}

fn is_scratch(mode: Mode) -> bool {
    mode == Mode::Scratch
}
