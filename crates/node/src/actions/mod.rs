//! What runs on files while these are in the tiers: which actions there are, for which files one is
//! due, and how each stands. `manager/runner` starts and ends the processes, see
//! docs/design/analyse.md.
//!
//! An action is a variant of `Action`: a command that runs as a child of the node manager, in a
//! process group of its own, at the lowest priority, under a time-out, and with its standard output
//! in a file that gets its name once the command has exited 0 and the store durably has the file.
//! Everything that differs between kinds of actions is in the methods of `Action`; a new kind is a
//! new variant, and no other code knows of it:
//!
//! - `Action::is_of`: which files; `Action::on`: after what;
//! - `Action::words`: the command line, and `Action::joins_pool` whether the preload library is
//!   loaded into it, so that it reads at the speed of the tiers;
//! - `Action::holds`: whether the drain of a staged file waits until it has ended (state A);
//! - `Action::result`: where its output goes, if that is kept;
//! - `Action::ending`: what follows an exit with status 0.
//!
//! The life of one run of an action on a file is `table::RunState`: waiting, running, deciding,
//! and an end. All of it is in the table, a private file of the instance that is replaced at each
//! step: the manager's successor goes on with it, and `forebay status` and `explain` read it. What
//! was running when a manager was killed is killed, too, and begins again.
//!
//! Locks: one mutex, a leaf; nothing is waited for under it but the writing of the table.

mod registered;
pub mod table;

use crate::config::{ActiveRule, Analysis, Config, DrainWhen, On};
use crate::instance::runtime::Runtime;
use crate::usage::path_of;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{FileId, Segment, clock, crash, futex};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{Entry, RunState};

/// Runs that wait or run. Files for which there is no room are looked at again.
pub(crate) const PENDING_MAX: usize = 1024;
/// Runs that have ended of which something is still said.
const ENDED_MAX: usize = 256;

/// The variable that a command's processes have: what they write starts no action.
pub(crate) const MARK: &str = "FOREBAY_ACTION";

/// The exit status of `forebay replace --as-action` where the file is to be left alone.
pub const REFUSED: u8 = 3;

/// Something that runs on files.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A user's command, which reads the file.
    Analyse(Arc<Analysis>),
    /// An operation on its bytes: this program does it (`forebay active run`, `forebay replace`).
    Active(Arc<ActiveRule>),
}

/// What follows an exit with status 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its result is there, and that is all.
    Keep,
    /// What the command has written to `FOREBAY_DECISION` says whether the file is drained.
    Decide,
}

/// A file on which an action is to run.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub file: FileId,
    pub path: PathBuf,
    /// Which step of a series: the number at the end of the file's name, or how many steps of the
    /// file were finished.
    pub step: Option<u64>,
}

impl Action {
    /// What messages, and names of results, call it.
    pub fn name(&self) -> &str {
        match self {
            Action::Analyse(analysis) => &analysis.name,
            Action::Active(rule) => &rule.name,
        }
    }

    /// What kind of action it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Analyse(_) => "analysis",
            Action::Active(_) => "operation",
        }
    }

    /// Pattern of the files' paths.
    fn pattern(&self) -> &str {
        match self {
            Action::Analyse(analysis) => &analysis.pattern,
            Action::Active(rule) => &rule.pattern,
        }
    }

    /// Whether it runs on the file at `path`, beneath the managed directory `store`.
    pub fn is_of(&self, path: &[u8], store: &[u8]) -> bool {
        match self {
            Action::Analyse(analysis) => analysis.is_of(path, store),
            Action::Active(rule) => rule.is_of(path, store),
        }
    }

    /// After what it runs.
    pub fn on(&self) -> On {
        match self {
            Action::Analyse(analysis) => analysis.on,
            Action::Active(_) => On::Close,
        }
    }

    /// Only on files that were changed then or later, nanoseconds of CLOCK_REALTIME.
    pub fn since(&self) -> u64 {
        match self {
            Action::Analyse(analysis) => analysis.since,
            Action::Active(rule) => rule.since,
        }
    }

    /// Whether the drain of a staged file waits for its end.
    pub fn holds(&self) -> bool {
        match self {
            Action::Analyse(analysis) => analysis.drain == DrainWhen::After,
            Action::Active(rule) => rule.drain == DrainWhen::After,
        }
    }

    /// How long it may run.
    pub fn timeout(&self) -> Duration {
        match self {
            Action::Analyse(analysis) => analysis.timeout,
            Action::Active(rule) => rule.timeout,
        }
    }

    /// Most bytes of its result.
    pub fn result_max(&self) -> u64 {
        match self {
            Action::Analyse(analysis) => analysis.result_max,
            Action::Active(rule) => rule.result_max,
        }
    }

    /// Whether its processes use the pool.
    pub fn joins_pool(&self) -> bool {
        match self {
            Action::Analyse(_) => true,
            // What replaces files asks the node manager, and must not open them.
            Action::Active(rule) => !rule.replace,
        }
    }

    /// The exit status by which its command says that the file is none for it.
    pub fn refusal(&self) -> Option<i32> {
        match self {
            Action::Active(rule) if rule.replace => Some(REFUSED.into()),
            Action::Analyse(_) | Action::Active(_) => None,
        }
    }

    /// What follows its success.
    pub fn ending(&self) -> Ending {
        match self {
            Action::Analyse(analysis) if analysis.may_drop => Ending::Decide,
            Action::Analyse(_) | Action::Active(_) => Ending::Keep,
        }
    }

    /// How long it waits for idle CPU before it takes what others leave.
    pub fn patience(&self) -> Duration {
        match self {
            Action::Analyse(_) => Duration::ZERO,
            Action::Active(rule) => rule.patience,
        }
    }

    /// The command line for a file: in each word but the first, `{file}`, `{step}` and `{name}`
    /// stand for what they say.
    pub fn words(&self, event: &Event) -> Vec<OsString> {
        match self {
            Action::Analyse(analysis) => {
                let step = event.step.map_or_else(String::new, |step| step.to_string());
                let of = |word: &String| {
                    let word = word.as_bytes();
                    let word = replaced(word, b"{step}", step.as_bytes());
                    let word = replaced(&word, b"{name}", analysis.name.as_bytes());
                    let path = event.path.as_os_str().as_bytes();
                    OsString::from_vec(replaced(&word, b"{file}", path))
                };
                let mut words = vec![OsString::from(&analysis.command[0])];
                words.extend(analysis.command[1..].iter().map(of));
                words
            }
            Action::Active(rule) => words_of(rule, &event.path),
        }
    }

    /// Where what it says goes; none: nowhere.
    pub fn result(&self, event: &Event) -> Option<PathBuf> {
        match self {
            Action::Analyse(analysis) => {
                let folder = match &analysis.results {
                    Some(folder) => folder.as_path(),
                    None => event.path.parent()?,
                };
                let mut name = event.path.file_name()?.to_owned();
                name.push(".");
                name.push(&analysis.name);
                // Steps of one file have a result each; those of a series differ by its name.
                if let (Some(step), On::Step, None) = (event.step, analysis.on, series(&event.path))
                {
                    name.push(format!(".{step}"));
                }
                name.push(".out");
                Some(folder.join(name))
            }
            Action::Active(rule) if rule.replace => None,
            Action::Active(rule) => {
                let folder = match &rule.results {
                    Some(folder) => folder.as_path(),
                    None => event.path.parent()?,
                };
                let mut name = event.path.file_name()?.to_owned();
                name.push(&rule.suffix);
                Some(folder.join(name))
            }
        }
    }
}

/// How this program does an operation of a rule on a file.
fn words_of(rule: &ActiveRule, path: &Path) -> Vec<OsString> {
    // Also where the program's file was replaced by a newer one.
    let mut words: Vec<OsString> = vec!["/proc/self/exe".into()];
    if rule.replace {
        let codec = rule.options.get("codec").map_or("zstd", String::as_str);
        let form = if rule.operation == "dedup" { "dedup" } else { codec };
        words.extend(["replace", "--as-action", "--with", form].map(OsString::from));
        if let Some(level) = rule.options.get("level") {
            words.extend(["--level", level].map(OsString::from));
        }
    } else {
        words.extend(["active", "run", "--as-action", "--output", "-"].map(OsString::from));
        let beside = || path.parent().unwrap_or(Path::new("/")).to_owned();
        words.push("--scratch".into());
        words.push(rule.scratch.clone().unwrap_or_else(beside).into());
        for (option, value) in &rule.options {
            words.push(format!("--{}={value}", option.replace('_', "-")).into());
        }
        words.extend(["--".into(), rule.operation.clone().into()]);
    }
    words.push(path.into());
    words
}

fn replaced(word: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some(at) = rest.windows(what.len()).position(|part| part == what) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(with);
        rest = &rest[at + what.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// The number at the end of a file's name, before its extensions: the step of a series such as
/// `out.000123`, `plt00040.h5`.
pub(crate) fn series(path: &Path) -> Option<u64> {
    let name = path.file_name()?.as_bytes();
    let end = name.iter().rposition(u8::is_ascii_digit)? + 1;
    // An extension, "h5" for one, may end with a digit: what counts then stands before it.
    let whole = |name: &[u8]| {
        let end = name.iter().rposition(u8::is_ascii_digit)? + 1;
        let start =
            name[..end].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
        std::str::from_utf8(&name[start..end]).ok()?.parse().ok()
    };
    let dot = name.iter().rposition(|&byte| byte == b'.');
    match dot {
        Some(dot) if dot > 0 && name[dot + 1..].iter().any(|byte| !byte.is_ascii_digit()) => {
            let stem = &name[..dot];
            stem.last().filter(|byte| byte.is_ascii_digit()).and_then(|_| whole(stem))
        }
        _ if end == name.len() => whole(name),
        _ => None,
    }
}

/// The actions of a node manager, and how each stands.
pub(crate) struct Actions {
    runtime: Runtime,
    state: Mutex<State>,
    /// Some action holds files.
    has_holding: AtomicBool,
    /// How many actions there are, and how many of their runs have not ended.
    count: AtomicUsize,
    pending: AtomicUsize,
    /// No more is started, what runs is killed: the manager ends at once.
    is_over: AtomicBool,
    /// Futex of the runner while there is no action: what wakes other threads does not wake it.
    wanted: AtomicU32,
}

struct State {
    /// Those of the configuration, then those that were registered.
    actions: Vec<Action>,
    of_config: usize,
    runs: Vec<Entry>,
    ended: VecDeque<Entry>,
    /// Files that are not held any more, though an action is to run on them: the generation of
    /// their record.
    released: HashMap<FileId, u32>,
    /// Files of which it was said that they cannot be held.
    unheld: HashMap<FileId, u32>,
    /// Files that are drained whatever a command says: one of them failed, or said "keep".
    kept: HashMap<FileId, (u32, String)>,
    next: u64,
}

impl Actions {
    /// Those of a configuration, and what an earlier manager has left in the instance's folder, if
    /// it goes on with that one's pool (`is_found`).
    pub fn of(config: &Config, runtime: &Runtime, is_found: bool) -> Actions {
        let mut actions: Vec<Action> =
            config.analyses.iter().cloned().map(Arc::new).map(Action::Analyse).collect();
        actions.extend(config.active.iter().cloned().map(Arc::new).map(Action::Active));
        let of_config = actions.len();
        if is_found {
            actions.extend(registered::left_by_the_last(runtime));
        }
        let all = table::read(runtime);
        let next = all.iter().map(|entry| entry.id).max().unwrap_or(0) + 1;
        let (runs, ended): (Vec<Entry>, Vec<Entry>) =
            all.into_iter().partition(|entry| !entry.state.is_end());
        let failed = |run: &Entry| {
            let file = FileId::from_raw(run.file);
            let is_it = |end: &&Entry| end.is_of(file, run.generation) && end.state.has_failed();
            let why = ended.iter().find(is_it).map(failed_by)?;
            Some((file, (run.generation, why)))
        };
        let kept = runs.iter().filter_map(failed).collect();
        let this = Actions {
            runtime: runtime.clone(),
            has_holding: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            state: Mutex::new(State {
                actions,
                of_config,
                runs,
                ended: ended.into(),
                released: HashMap::new(),
                unheld: HashMap::new(),
                kept,
                next,
            }),
        };
        this.recount(&this.lock());
        this
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recount(&self, state: &State) {
        self.count.store(state.actions.len(), Ordering::Release);
        self.pending.store(state.runs.len(), Ordering::Release);
        let holds =
            state.actions.iter().any(Action::holds) || state.runs.iter().any(|run| run.holds);
        self.has_holding.store(holds, Ordering::Release);
    }

    /// Writes the table anew. What cannot be written is said: a successor would not know of it.
    fn save(&self, state: &State) {
        // What is pending is seen before it is in the table, and what has ended after that: a run
        // that was told that nothing is left finds it there.
        let ends = state.runs.len() < self.pending.load(Ordering::Acquire);
        if !ends {
            self.recount(state);
        }
        if let Err(error) = table::write(&self.runtime, state.ended.iter().chain(&state.runs)) {
            eprintln!("{}: {error}", self.runtime.actions().display());
        }
        self.recount(state);
        crash::point("action.noted");
    }

    /// Whether there is any action, or a run of one.
    pub fn are_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0 || self.are_pending()
    }

    /// Whether some run has not ended.
    pub fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Waits until there may be an action, or [`Actions::wake`] is called.
    pub fn await_any(&self, most_ms: u64) {
        let seen = self.wanted.load(Ordering::SeqCst);
        if !self.are_any() {
            futex::wait(&self.wanted, seen, most_ms);
        }
    }

    /// Has the runner look.
    pub fn wake(&self) {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.wanted);
    }

    /// Starts no more, and has what runs killed: for a manager that is to end at once.
    pub fn give_up(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether [`Actions::give_up`] was called.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// The actions that are to run on a file, of those that start after `on`.
    pub fn for_file(&self, segment: &Segment, file: FileId, on: &[On]) -> Vec<Action> {
        let record = segment.file(file);
        let changed = record.mtime_ns.load(Ordering::Acquire);
        let state = self.lock();
        let is_due = |action: &&Action| {
            on.contains(&action.on()) && changed >= action.since() && is_at(action, segment, record)
        };
        state.actions.iter().filter(is_due).cloned().collect()
    }

    /// Whether a program has changed a file, and an action is to run on it once that is over.
    pub fn awaits(&self, segment: &Segment, file: FileId) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && segment.file(file).is_altered()
            && !segment.file(file).has(FileFlags::UNLINKED)
            && !self.is_over()
            && !self.for_file(segment, file, &[On::Close, On::Step]).is_empty()
    }

    /// Whether an action that runs, or is to run, was noted for a file.
    pub fn has_run(&self, segment: &Segment, file: FileId) -> bool {
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        self.are_pending() && self.lock().runs.iter().any(|run| run.is_of(file, generation))
    }

    /// Whether a staged file is not to go to its store yet: an action that holds it runs, or is to.
    pub fn holds(&self, segment: &Segment, file: FileId) -> bool {
        if !self.has_holding.load(Ordering::Acquire) || self.is_over() {
            return false;
        }
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let state = self.lock();
        if state.released.get(&file) == Some(&generation) {
            return false;
        }
        let runs = |run: &Entry| run.holds && run.is_of(file, generation);
        let changed = record.mtime_ns.load(Ordering::Acquire);
        let is_to = |action: &Action| {
            action.holds() && changed >= action.since() && is_at(action, segment, record)
        };
        state.runs.iter().any(runs) || record.is_altered() && state.actions.iter().any(is_to)
    }

    /// A file goes to its store although an action that holds it has not ended. Returns whether
    /// that is new.
    pub fn release(&self, segment: &Segment, file: FileId) -> bool {
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        self.lock().released.insert(file, generation) != Some(generation)
    }

    /// Whether [`Actions::release`] was called since the file was last found to be altered.
    pub fn is_released(&self, segment: &Segment, file: FileId) -> bool {
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        self.lock().released.get(&file) == Some(&generation)
    }

    /// Notes that actions are to run on a file. False: there is no room for them now.
    pub fn add(&self, segment: &Segment, event: &Event, actions: &[Action]) -> bool {
        let record = segment.file(event.file);
        let generation = record.generation.load(Ordering::Acquire);
        let mut state = self.lock();
        if state.runs.len() + actions.len() > PENDING_MAX {
            return false;
        }
        if !state.runs.iter().any(|run| run.is_of(event.file, generation)) {
            state.kept.remove(&event.file);
        }
        for action in actions {
            // One that has not begun sees what was written since, too.
            let same = |run: &&mut Entry| {
                run.state == RunState::Waiting
                    && run.action == action.name()
                    && run.is_of(event.file, generation)
            };
            if let Some(waiting) = state.runs.iter_mut().find(same) {
                waiting.merged += 1;
                waiting.step = event.step;
                continue;
            }
            let holds = action.holds() && record.is_staged();
            if action.holds()
                && !holds
                && state.unheld.insert(event.file, generation) != Some(generation)
            {
                let path = crate::observe::log::shown(&event.path);
                eprintln!(
                    "{path}: \"{}\" runs beside its drain: only files of mode \"staged\" wait for what \
                     runs on them",
                    action.name()
                );
            }
            let identity = record.identity();
            let id = state.next;
            state.next += 1;
            state.runs.push(Entry {
                id,
                action: action.name().to_owned(),
                kind: action.kind().to_owned(),
                path: event.path.clone(),
                step: event.step,
                state: RunState::Waiting,
                file: event.file.raw(),
                generation,
                device: identity.device,
                inode: identity.inode,
                holds,
                merged: 0,
                temporary: None,
                noted_ms: now_ms(),
                began_ms: 0,
                ended_ms: 0,
                result: None,
                said: String::new(),
            });
        }
        self.save(&state);
        true
    }

    /// The runs that have not ended.
    pub fn runs(&self) -> Vec<Entry> {
        self.lock().runs.clone()
    }

    /// The action of a run, unless it was removed.
    pub fn action_of(&self, entry: &Entry) -> Option<Action> {
        let state = self.lock();
        state.actions.iter().find(|action| action.name() == entry.action).cloned()
    }

    /// Changes a run, and notes that. One that has ended by it is among those that have ended.
    pub fn change(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        let mut state = self.lock();
        let Some(at) = state.runs.iter().position(|run| run.id == id) else { return };
        change(&mut state.runs[at]);
        if state.runs[at].state.is_end() {
            let mut ended = state.runs.remove(at);
            let file = FileId::from_raw(ended.file);
            if !state.runs.iter().any(|run| run.is_of(file, ended.generation)) {
                state.released.remove(&file);
            }
            if ended.state.has_failed() {
                let why = failed_by(&ended);
                state.kept.insert(file, (ended.generation, why));
            }
            ended.ended_ms = now_ms();
            if state.ended.len() >= ENDED_MAX {
                state.ended.pop_front();
            }
            state.ended.push_back(ended);
        }
        self.save(&state);
    }

    /// The file is drained, whatever the commands that run on it say, and why.
    pub fn keep(&self, file: FileId, generation: u32, why: &str) {
        self.lock().kept.insert(file, (generation, why.to_owned()));
    }

    /// Why [`Actions::keep`] was called, or what failed that ran on the file.
    pub fn is_kept(&self, file: FileId, generation: u32) -> Option<String> {
        let state = self.lock();
        let (_, why) = state.kept.get(&file).filter(|(of, _)| *of == generation)?;
        Some(why.clone())
    }
}

/// What has failed, for people.
fn failed_by(ended: &Entry) -> String {
    format!("{} \"{}\" of it {}", ended.kind, ended.action, ended.state.name())
}

fn is_at(action: &Action, segment: &Segment, record: &FileRecord) -> bool {
    let store = record.store.load(Ordering::Relaxed) as usize;
    let Some(store) = segment.header().store.get(store) else { return false };
    let path = segment.path_of(record);
    !path.is_empty() && action.is_of(&path, path_of(&store.path).as_os_str().as_bytes())
}

pub(crate) fn now_ms() -> u64 {
    clock::realtime_coarse_ns() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_a_series_is_the_number_in_the_name() {
        for (name, step) in [
            ("out.000123", Some(123)),
            ("plt00040.h5", Some(40)),
            ("dump-7.bp4", Some(7)),
            ("data.h5", None),
            ("x.h5", None),
            ("42", Some(42)),
            ("out", None),
            (".7", Some(7)),
            ("v2-final", None),
        ] {
            assert_eq!(series(Path::new(name)), step, "{name}");
        }
    }

    #[test]
    fn words_and_results_name_the_file() {
        let text = "[[analysis]]\nname = \"a\"\nmatch = \"*\"\non = \"step\"\n\
            command = [\"/bin/echo\", \"{file}:{step}\", \"{name}\"]\n";
        let read = crate::config::Registered::of_text(text, None, Path::new("/")).unwrap();
        let analysis = read.analyses[0].clone();
        let action = Action::Analyse(Arc::new(analysis));
        let event =
            |path: &str, step| Event { file: FileId::from_raw(0), path: PathBuf::from(path), step };
        let words = action.words(&event("/d/{step}", Some(3)));
        assert_eq!(words, ["/bin/echo", "/d/{step}:3", "a"].map(OsString::from));
        let result = |path, step| action.result(&event(path, step)).unwrap();
        assert_eq!(result("/d/x.7", Some(7)), Path::new("/d/x.7.a.out"));
        assert_eq!(result("/d/x", Some(7)), Path::new("/d/x.a.7.out"));
    }
}
