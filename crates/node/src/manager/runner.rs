//! The runner: the thread that sees for which files an action is due, starts the processes, and
//! ends them; see [`crate::actions`] and docs/design/analyse.md.
//!
//! One thread for all: it looks at files as often as the elevator does, at processes that run every
//! [`LOOK_RUNNING`], and rests where there is no action. A process dies with this thread, whatever
//! kills the manager.

mod child;
mod idle;
mod leftover;
mod removal;

use crate::actions::table::{Entry, RunState};
use crate::actions::{Action, Ending, Event, now_ms, series};
use crate::config::On;
use crate::node::Node;
use crate::observe::log::shown;
use crate::usage::path_of_file;
use child::{Child, Ended};
use forebay_pool::clock::Timer;
use forebay_pool::{FileId, Owner, crash, futex};
use idle::Idle;
use removal::Removal;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often files are looked at on which something may be to run.
const LOOK: Timer = Timer::ms(200);
/// The same while something runs.
const LOOK_RUNNING: Timer = Timer::ms(20);
/// Without any action: a request, and the end of the manager, wake the thread.
const UNTIL_WOKEN: Timer = Timer::seconds(3600);
/// How long a file that is to be removed may be in use: descriptions of a program that has ended
/// are freed after a second.
const REMOVAL_WAIT: Timer = Timer::seconds(10);

/// Commands that run at a time: a quarter of the cores, and at least two.
fn most_at_once() -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) / 4).max(2)
}

/// What a command has said of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// Nothing.
    None,
    /// It is drained, whatever others say.
    Keep,
    /// It is removed.
    Drop,
}

impl Decision {
    /// What the text in `FOREBAY_DECISION` means for a file of this step.
    ///
    /// # Errors
    /// That it means nothing.
    fn of(text: &str, step: Option<u64>) -> Result<Decision, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            [] => Ok(Decision::None),
            ["keep"] => Ok(Decision::Keep),
            ["drop"] => Ok(Decision::Drop),
            ["keep", "every", number] => {
                let number = number.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let every = number.parse::<u64>().ok().filter(|&every| every > 0);
                match (every, step) {
                    (Some(every), Some(step)) if step.is_multiple_of(every) => Ok(Decision::Keep),
                    (Some(_), Some(_)) => Ok(Decision::Drop),
                    (Some(_), None) => {
                        Err("\"keep every\" needs a series: its name ends with no number".into())
                    }
                    (None, _) => Err(format!("\"{}\" is no number", words[2])),
                }
            }
            _ => {
                let shown: String = text.chars().take(40).collect();
                Err(format!("\"{}\" is none of drop, keep, keep every N", shown.trim()))
            }
        }
    }
}

/// The runner's own state.
pub(crate) struct Runner {
    node: Arc<Node>,
    owner: Owner,
    children: Vec<Child>,
    /// Of files that a program has open for writing: the generation of the record, the count of
    /// steps that was seen last, and how many there were.
    steps: HashMap<FileId, (u32, u8, u64)>,
    /// Until when files that are to be removed may be in use.
    removals: HashMap<u64, Instant>,
    /// When the status of these was last changed as their commands began.
    begun: HashMap<u64, StatusChange>,
    /// Whether the machine has CPU to spare.
    idle: Idle,
}

impl Runner {
    pub fn new(node: &Arc<Node>) -> Runner {
        Runner {
            node: Arc::clone(node),
            owner: Node::new_owner(),
            children: Vec::new(),
            steps: HashMap::new(),
            removals: HashMap::new(),
            begun: HashMap::new(),
            idle: Idle::default(),
        }
    }

    /// The thread's life.
    pub fn run(mut self) {
        let node = Arc::clone(&self.node);
        self.take_over();
        while !node.stopping() {
            if !node.actions.are_any() {
                node.actions.await_any(UNTIL_WOKEN.as_ms());
                continue;
            }
            let seen = node.header().work_wanted.load(Ordering::Acquire);
            self.look();
            let wait_ms = match (self.children.is_empty(), node.actions.are_pending()) {
                (true, false) => node.wait_ms(LOOK.as_ms()),
                (true, true) => LOOK.as_ms(),
                (false, _) => LOOK_RUNNING.as_ms(),
            };
            futex::wait(&node.header().work_wanted, seen, wait_ms);
        }
        self.end();
    }

    /// What an earlier manager was in the middle of begins again: its processes died with it, or
    /// are killed now, as their results have no names yet.
    fn take_over(&mut self) {
        let node = Arc::clone(&self.node);
        let runs = node.actions.runs();
        if runs.is_empty() {
            return;
        }
        leftover::kill_all(&node.runtime.instance);
        crash::point("action.taking-over");
        for run in runs {
            run.temporary.iter().for_each(|path| leftover::remove(path));
            node.actions.change(run.id, |run| {
                run.temporary = None;
                // One that is being decided has a result: it is made again, as what the command
                // has said is gone.
                run.state = RunState::Waiting;
                if !is_there(&node, run) {
                    run.state = RunState::Stopped;
                    run.said = "its file is not in the tiers any more".into();
                }
            });
        }
    }

    fn look(&mut self) {
        if self.node.actions.is_over() {
            return self.give_up();
        }
        self.find_due();
        self.attend();
        self.decide();
        self.start();
    }

    /// Notes what is to run on files that programs have finished, or finished a step of.
    fn find_due(&mut self) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let files: Vec<FileId> = segment.files().touched().collect();
        self.steps.retain(|file, (generation, ..)| {
            segment.file(*file).generation.load(Ordering::Acquire) == *generation
        });
        for file in files {
            self.note_steps(file);
            let record = segment.file(file);
            if !record.is_altered() || segment.descriptions().is_open_for_writing(file) {
                continue;
            }
            let actions = node.actions.for_file(segment, file, &[On::Close, On::Step]);
            if actions.is_empty() || record.has(forebay_pool::layout::FileFlags::UNLINKED) {
                continue;
            }
            let event = self.event(file);
            crash::point("action.due");
            // In this order: noted twice it runs once more, and not noted never.
            if node.actions.add(segment, &event, &actions) {
                crash::point("action.added");
                record.forget_altered();
                self.steps.remove(&file);
                node.want_work();
            }
        }
    }

    /// Notes what is to run as a step of a file was finished that is still open.
    fn note_steps(&mut self, file: FileId) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let now = record.steps.load(Ordering::Acquire);
        let known = self.steps.get(&file).filter(|known| known.0 == generation).copied();
        let Some((_, seen, count)) = known else {
            // Those before the first look count, of a file that programs write.
            if now > 0 && record.is_altered() {
                self.steps.insert(file, (generation, 0, 0));
                self.note_steps(file);
            }
            return;
        };
        let new = now.wrapping_sub(seen);
        if new == 0 {
            return;
        }
        let count = count + u64::from(new);
        self.steps.insert(file, (generation, now, count));
        let actions = node.actions.for_file(segment, file, &[On::Step]);
        if !actions.is_empty() && segment.descriptions().is_open_for_writing(file) {
            let event = self.event(file);
            node.actions.add(segment, &event, &actions);
        }
    }

    fn event(&self, file: FileId) -> Event {
        let segment = &self.node.segment;
        let path = PathBuf::from(OsString::from_vec(segment.path_of(segment.file(file))));
        let counted = self.steps.get(&file).map(|&(_, _, count)| count);
        Event { file, step: series(&path).or(counted), path }
    }

    /// Ends what has ended, and kills what takes too long.
    fn attend(&mut self) {
        let mut children = std::mem::take(&mut self.children);
        children.retain_mut(|child| match child.look() {
            None => true,
            Some(ended) => {
                self.conclude(child, ended);
                false
            }
        });
        self.children = children;
    }

    /// What follows the end of a command.
    fn conclude(&mut self, child: &mut Child, ended: Ended) {
        let node = Arc::clone(&self.node);
        crash::point("action.ended");
        let id = child.id;
        if let Some(why) = ended.failure {
            return self.fail(id, ended.state, why);
        }
        let published = child.publish();
        let path = match published {
            Ok(path) => path,
            Err(why) => return self.fail(id, RunState::Failed, why),
        };
        crash::point("action.published");
        let (file, generation) = (child.event.file, child.generation);
        let record = node.segment.file(file);
        let is_same = record.generation.load(Ordering::Acquire) == generation;
        let is_altered = is_same && record.is_altered();
        let mut said = String::new();
        let keep = |why: &str| node.actions.keep(file, generation, why);
        let has_changed = is_same && !child.version.is_still(record, &child.event.path);
        // What a program has changed since it began is noted for another run of the same.
        let is_again = |run: &Entry| {
            run.id != id && run.action == child.action.name() && run.is_of(file, generation)
        };
        let is_altered = is_altered || has_changed && node.actions.runs().iter().any(is_again);
        if has_changed && !is_altered {
            // What it writes is drained with its file, and starts nothing.
            said = "its file is drained as it is now: the command has written to it, or a program \
                in a way that is not seen (a shared mapping, a time that was set)"
                .into();
            keep(
                "its own analysis has written to it, or a program in a way that is not seen (a \
                 shared mapping, a time that was set)",
            );
        } else if is_altered {
            // Usual at a step.
            if child.action.on() == On::Close {
                said = "its file was changed meanwhile: it runs again after the next close".into();
            }
            keep("it was changed meanwhile");
        }
        let mut state = RunState::Done;
        if child.action.ending() == Ending::Decide {
            match child.decision().and_then(|text| Decision::of(&text, child.event.step)) {
                Ok(Decision::Drop) if child.holds => {
                    state = RunState::Deciding;
                    self.begun.insert(id, child.changed);
                }
                Ok(Decision::Drop) => {
                    said = "it said \"drop\", but its file was not held: it is drained".into();
                }
                Ok(Decision::Keep) => keep(&format!("\"{}\" said \"keep\"", child.action.name())),
                Ok(Decision::None) => {}
                Err(why) => {
                    said = format!("FOREBAY_DECISION: {why}; the file is drained");
                    keep(&said);
                }
            }
        }
        if !said.is_empty() {
            eprintln!(
                "{}: {} \"{}\": {said}",
                shown(&child.event.path),
                child.action.kind(),
                child.action.name()
            );
        }
        node.actions.change(id, |run| {
            (run.state, run.said, run.result) = (state, said, path);
            run.temporary = None;
        });
        node.want_work();
    }

    /// A run has failed: its file is drained.
    fn fail(&self, id: u64, state: RunState, why: String) {
        let node = &self.node;
        if let Some(run) = node.actions.runs().iter().find(|run| run.id == id) {
            let (path, kind, name) = (shown(&run.path), &run.kind, &run.action);
            eprintln!("{path}: {kind} \"{name}\" {}: {why}", state.name());
        }
        node.actions.change(id, |run| {
            (run.state, run.said) = (state, why);
            run.temporary = None;
        });
        node.want_work();
    }

    /// Removes files of which commands have said so, once nothing else runs on them, or drains
    /// them where that cannot be.
    fn decide(&mut self) {
        let node = Arc::clone(&self.node);
        let runs = node.actions.runs();
        let deciding = |run: &&Entry| run.state == RunState::Deciding;
        for run in runs.iter().filter(deciding) {
            let file = FileId::from_raw(run.file);
            let others = |other: &&Entry| {
                other.is_of(file, run.generation) && other.state != RunState::Deciding
            };
            if runs.iter().any(|other| others(&other)) {
                continue;
            }
            let same = |other: &&Entry| other.is_of(file, run.generation);
            let deciders: Vec<&Entry> = runs.iter().filter(deciding).filter(same).collect();
            let until = *self
                .removals
                .entry(run.id)
                .or_insert_with(|| Instant::now() + REMOVAL_WAIT.as_duration());
            let removal = match is_there(&node, run) {
                true => match node.actions.is_kept(file, run.generation) {
                    Some(why) => Removal::Never(why),
                    None if !deciders.iter().all(|run| self.is_where_it_was(run)) => {
                        Removal::Never("it was moved meanwhile, or its attributes changed".into())
                    }
                    None => removal::remove(&node, file, &run.path, self.owner),
                },
                false => Removal::Never("it is not in the tiers any more".into()),
            };
            let (state, said) = match removal {
                Removal::Done => (RunState::Dropped, "removed instead of being drained".to_owned()),
                Removal::NotYet(_) if Instant::now() < until => continue,
                Removal::NotYet(why) | Removal::Never(why) => {
                    (RunState::Done, format!("it said \"drop\"; the file is drained: {why}"))
                }
            };
            eprintln!("{}: {} \"{}\": {said}", shown(&run.path), run.kind, run.action);
            self.removals.remove(&run.id);
            // All that have said so have the same end.
            for other in deciders {
                self.begun.remove(&other.id);
                node.actions.change(other.id, |run| (run.state, run.said) = (state, said.clone()));
            }
            crash::point("action.decided");
            node.want_work();
        }
    }

    /// Starts what waits, as far as there may be more processes.
    fn start(&mut self) {
        let node = Arc::clone(&self.node);
        let waiting = |run: &Entry| run.state == RunState::Waiting;
        for run in node.actions.runs().into_iter().filter(waiting) {
            if self.children.len() >= most_at_once() {
                break;
            }
            // Two of one action on one file would have one result.
            let is_same = |child: &Child| {
                child.event.file.raw() == run.file && child.action.name() == run.action
            };
            if self.children.iter().any(is_same) {
                continue;
            }
            let action = node.actions.action_of(&run);
            let patience = action.as_ref().map_or(Duration::ZERO, Action::patience);
            let waited = Duration::from_millis(now_ms().saturating_sub(run.noted_ms));
            if waited < patience && !self.idle.look() {
                continue;
            }
            match action {
                Some(action) if is_there(&node, &run) => self.begin(&run, action),
                Some(_) => self.fail(run.id, RunState::Stopped, "its file is gone".into()),
                None => self.fail(run.id, RunState::Stopped, "it was removed".into()),
            }
        }
    }

    fn begin(&mut self, run: &Entry, action: Action) {
        let node = Arc::clone(&self.node);
        let mut run = run.clone();
        let file = FileId::from_raw(run.file);
        let mut changed = changed_at(&run);
        if changed.is_none() {
            // It was moved since: its name may be another file's now.
            run.path = path_of_file(&node.segment, node.segment.file(file));
            changed = changed_at(&run);
            node.actions.change(run.id, |entry| entry.path.clone_from(&run.path));
        }
        let Some(changed) = changed else {
            let why = "its file has no name that is known any more";
            return self.fail(run.id, RunState::Stopped, why.into());
        };
        let event = Event { file, path: run.path.clone(), step: run.step };
        let temporary = match child::temporary(&node, &action, &event, run.id) {
            Ok(temporary) => temporary,
            Err(why) => return self.fail(run.id, RunState::Failed, why),
        };
        // Before there is such a file, or a process.
        node.actions.change(run.id, |run| {
            (run.state, run.began_ms) = (RunState::Running, now_ms());
            run.temporary = temporary.as_ref().map(|(path, _)| path.clone());
        });
        crash::point("action.starting");
        match Child::start(&node, &run, changed, action, event, temporary) {
            Ok(child) => self.children.push(child),
            Err(why) => self.fail(run.id, RunState::Failed, why),
        }
        crash::point("action.started");
    }

    /// Whether a file has been where it is since the command began that has decided: what that has
    /// read by its path was this file.
    fn is_where_it_was(&self, run: &Entry) -> bool {
        self.begun.get(&run.id).is_some_and(|then| changed_at(run).as_ref() == Some(then))
    }

    /// The manager is told to end at once: what runs is killed, and everything is drained.
    fn give_up(&mut self) {
        for mut child in std::mem::take(&mut self.children) {
            child.kill();
        }
        for run in self.node.actions.runs() {
            let why = "the node manager was told to end";
            match run.state {
                // Its result is there.
                RunState::Deciding => self.node.actions.change(run.id, |run| {
                    (run.state, run.said) = (RunState::Done, format!("{why}: the file is drained"));
                }),
                _ => self.fail(run.id, RunState::Stopped, why.into()),
            }
        }
    }

    /// The thread ends: a successor goes on with what is left.
    fn end(&mut self) {
        for mut child in std::mem::take(&mut self.children) {
            child.kill();
            self.node.actions.change(child.id, |run| {
                (run.state, run.temporary) = (RunState::Waiting, None);
            });
        }
    }
}

/// The time of the last change of a file's status, which is also that of its last renaming: seconds
/// and nanoseconds.
type StatusChange = (i64, i64);

/// That of a run's file, if its path leads there.
fn changed_at(run: &Entry) -> Option<StatusChange> {
    let stat = rustix::fs::lstat(&run.path).ok()?;
    let is_it = (stat.st_dev, stat.st_ino) == (run.device, run.inode);
    is_it.then_some((stat.st_ctime as i64, stat.st_ctime_nsec as i64))
}

/// Whether the file of a run is still what it was.
fn is_there(node: &Node, run: &Entry) -> bool {
    let file = FileId::from_raw(run.file);
    if !node.header().has_file(file) {
        return false;
    }
    let record = node.segment.file(file);
    let identity = record.identity();
    record.generation.load(Ordering::Acquire) == run.generation
        && (identity.device, identity.inode) == (run.device, run.inode)
        && !record.has(forebay_pool::layout::FileFlags::UNLINKED)
}

#[cfg(test)]
mod tests {
    use super::Decision;

    #[test]
    fn decisions_are_one_line() {
        let of = |text, step| Decision::of(text, step);
        assert_eq!(of("", None), Ok(Decision::None));
        assert_eq!(of("drop\n", None), Ok(Decision::Drop));
        assert_eq!(of(" keep ", None), Ok(Decision::Keep));
        assert_eq!(of("keep every 10", Some(20)), Ok(Decision::Keep));
        assert_eq!(of("keep every 10th", Some(21)), Ok(Decision::Drop));
        for (text, step) in [("keep every 10", None), ("keep every 0", Some(1)), ("delete", None)] {
            assert!(of(text, step).is_err(), "{text}");
        }
    }
}
