//! Actions that are registered, listed and removed while a node manager runs: what the command
//! `forebay analyse` and the C library ask, in a file in memory that gets the answer.
//!
//! | question | answer |
//! |---|---|
//! | `[[analysis]]` and `[[active]]` as in a configuration, with paths as they are | nothing |
//! | `add` and a line's end before that: refused where a name is another one's | nothing |
//! | `remove NAME` | nothing |
//! | `list` | all, as a text of the same kind |
//! | `names` | a name in each line |
//! | `show NAME` | `key=value` with a zero behind each, see `shown` |
//!
//! The answer begins with a line that has the number of an errno, 0 if it was done; what follows
//! that is what was asked for, or what is wrong. What is registered is in a private file of the
//! instance, so that a manager's successor has it.

use super::table::RunState;
use super::{Action, Actions, State};
use crate::config::analyses::ANALYSES_MAX;
use crate::config::{ActiveRule, Analysis, Registered, read_up_to};
use crate::instance::runtime::{Runtime, read_private, replace_private};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a question.
const QUESTION_MAX: u64 = 256 << 10;

/// Why something is not done.
#[derive(Debug)]
struct Refusal {
    errno: Errno,
    why: String,
}

type Answer = Result<String, Refusal>;

/// What becomes of one that was registered under a name that is given to another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Stays,
    Goes,
}

fn refused(errno: Errno, why: String) -> Answer {
    Err(Refusal { errno, why })
}

/// Those that an earlier manager of the pool had.
pub(super) fn left_by_the_last(runtime: &Runtime) -> Vec<Action> {
    let Ok(written) = read_private(&runtime.analyses()) else { return Vec::new() };
    match Registered::of_text(&written, None, Path::new("/")) {
        Ok(read) => actions_of(read).collect(),
        Err(why) => {
            eprintln!("{}: {why}; no action is registered", runtime.analyses().display());
            Vec::new()
        }
    }
}

fn actions_of(read: Registered) -> impl Iterator<Item = Action> {
    let analyses = read.analyses.into_iter().map(|one| Action::Analyse(Arc::new(one)));
    analyses.chain(read.operations.into_iter().map(|one| Action::Active(Arc::new(one))))
}

fn text_of<'a>(actions: impl Iterator<Item = &'a Action>) -> String {
    let mut all = Registered::default();
    for action in actions {
        match action {
            Action::Analyse(analysis) => all.analyses.push(Analysis::clone(analysis)),
            Action::Active(rule) => all.operations.push(ActiveRule::clone(rule)),
        }
    }
    all.text()
}

/// Whether two actions differ in the time from which on files are theirs alone.
fn are_alike(one: &Action, other: &Action) -> bool {
    match (one, other) {
        (Action::Analyse(one), Action::Analyse(other)) => {
            Analysis { since: other.since, ..Analysis::clone(one) } == **other
        }
        (Action::Active(one), Action::Active(other)) => {
            ActiveRule { since: other.since, ..ActiveRule::clone(one) } == **other
        }
        _ => false,
    }
}

impl Actions {
    /// Reads a question from a file in memory, and writes the answer there. Whether it is there.
    pub fn answer(&self, file: OwnedFd) -> bool {
        let mut file = File::from(file);
        if rustix::fs::fcntl_get_seals(&file).is_err() {
            return false;
        }
        // The sender's own position.
        if file.rewind().is_err() {
            return false;
        }
        let Ok(asked) = file.try_clone().and_then(|file| read_up_to(QUESTION_MAX, file)) else {
            return false;
        };
        let answer = match asked.map(String::from_utf8) {
            Some(Ok(asked)) => self.carry_out(&asked),
            Some(Err(_)) => refused(Errno::INVAL, "it is not UTF-8".to_owned()),
            None => {
                let most = QUESTION_MAX >> 10;
                refused(Errno::TOOBIG, format!("it is longer than {most} KiB; make it shorter"))
            }
        };
        let text = match answer {
            Ok(said) => format!("0\n{said}"),
            Err(Refusal { errno, why }) => format!("{}\n{why}", errno.raw_os_error()),
        };
        file.set_len(0).is_ok() && file.write_all_at(text.as_bytes(), 0).is_ok()
    }

    fn carry_out(&self, asked: &str) -> Answer {
        if let Some(name) = asked.strip_prefix("remove ") {
            return self.remove(name);
        }
        if let Some(name) = asked.strip_prefix("show ") {
            let state = self.lock();
            return Ok(shown(&state, state.place_of(name)?));
        }
        match asked {
            "list" => Ok(text_of(self.lock().actions.iter())),
            "names" => {
                let state = self.lock();
                Ok(state.actions.iter().map(|action| format!("{}\n", action.name())).collect())
            }
            _ => match asked.strip_prefix("add\n") {
                Some(new) => self.register(new, Taken::Stays),
                None => self.register(asked, Taken::Goes),
            },
        }
    }

    fn remove(&self, name: &str) -> Answer {
        let mut state = self.lock();
        let at = state.place_of(name)?;
        if at < state.of_config {
            return refused(
                Errno::PERM,
                format!(
                    "\"{name}\" stands in the configuration; remove it there, and start the node \
                     manager anew"
                ),
            );
        }
        let mut left = state.actions[state.of_config..].to_vec();
        left.remove(at - state.of_config);
        self.set_registered(&mut state, left)
    }

    fn register(&self, asked: &str, taken: Taken) -> Answer {
        let read = Registered::of_text(asked, None, Path::new("/")).map_err(|why| {
            // One section is all that a caller has said.
            let why = why.strip_prefix("configuration: ").unwrap_or(&why);
            let inner = ["analysis[0].", "active[0]."].iter().find_map(|at| why.strip_prefix(at));
            Refusal { errno: Errno::INVAL, why: inner.unwrap_or(why).to_owned() }
        })?;
        let mut state = self.lock();
        let (configured, registered) = state.actions.split_at(state.of_config);
        let mut registered = registered.to_vec();
        for action in actions_of(read) {
            let name = action.name();
            if configured.iter().any(|other| other.name() == name) {
                return refused(
                    Errno::EXIST,
                    format!(
                        "\"{name}\" is the name of one in the configuration; give another name"
                    ),
                );
            }
            // Each process of a job may say the same: it holds from the first time on.
            if registered.iter().any(|other| are_alike(&action, other)) {
                continue;
            }
            if taken == Taken::Stays && registered.iter().any(|other| other.name() == name) {
                return refused(
                    Errno::EXIST,
                    format!(
                        "\"{name}\" is registered already, and another one; give another --name, or --replace \
                         to have this one instead"
                    ),
                );
            }
            // What is said again was changed.
            registered.retain(|other| other.name() != name);
            if let Action::Active(rule) = &action {
                let collides = |other: &&Action| match other {
                    Action::Active(other) => rule.collides(other),
                    Action::Analyse(_) => false,
                };
                if let Some(Action::Active(other)) =
                    configured.iter().chain(&registered).find(collides)
                {
                    let why = format!("suffix: {}", rule.collision(other));
                    return refused(Errno::EXIST, why);
                }
            }
            registered.push(action);
        }
        if configured.len() + registered.len() > ANALYSES_MAX {
            return refused(
                Errno::NOSPC,
                format!("there are {ANALYSES_MAX} analyses and operations; remove one first"),
            );
        }
        self.set_registered(&mut state, registered)
    }

    /// Has these registered, and no others. Nothing changes where a successor would not know of it.
    fn set_registered(&self, state: &mut State, registered: Vec<Action>) -> Answer {
        let path = self.runtime.analyses();
        replace_private(&path, &text_of(registered.iter())).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Refusal { errno, why: format!("{}: {error}", path.display()) }
        })?;
        let of_config = state.of_config;
        state.actions.truncate(of_config);
        state.actions.extend(registered);
        self.save(state);
        Ok(String::new())
    }
}

impl State {
    fn place_of(&self, name: &str) -> Result<usize, Refusal> {
        let found = self.actions.iter().position(|action| action.name() == name);
        found.ok_or_else(|| Refusal {
            errno: Errno::NOENT,
            why: format!(
                "there is no analysis or operation \"{name}\"; `forebay analyse --list` shows all"
            ),
        })
    }
}

/// What a program gets to know of the action at this place.
fn shown(state: &State, at: usize) -> String {
    let action = &state.actions[at];
    let runs = || {
        let all = state.ended.iter().chain(&state.runs);
        all.filter(|run| run.action == action.name() && run.kind == action.kind())
    };
    let count = |is_of: fn(RunState) -> bool| runs().filter(|run| is_of(run.state)).count();
    let failure = runs().rfind(|run| run.state.has_failed());
    let failure = failure.map(|run| {
        format!("{}: {}: {}", crate::observe::log::shown(&run.path), run.state.name(), run.said)
    });
    let is_configured = at < state.of_config;
    let fields = [
        ("kind", action.kind().to_owned()),
        ("match", action.pattern().to_owned()),
        ("configured", u32::from(is_configured).to_string()),
        ("waiting", count(|state| state == RunState::Waiting).to_string()),
        (
            "running",
            count(|state| matches!(state, RunState::Running | RunState::Deciding)).to_string(),
        ),
        ("done", count(|state| state.is_end() && !state.has_failed()).to_string()),
        ("failed", count(RunState::has_failed).to_string()),
        ("failure", failure.unwrap_or_default()),
    ];
    fields.iter().map(|(key, value)| format!("{key}={value}\0")).collect()
}
