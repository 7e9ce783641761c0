//! What managers have left that are gone: which instances have left something, and draining it.

use super::await_release_by_end;
use super::start::{StartError, keeps_all, start, write_config};
use crate::aside::Aside;
use crate::drain::{self, Ended};
use crate::task::task_flags;
use crate::text::bytes;
use crate::watch::Watch;
use forebay_node::fsck;
use forebay_node::log::shown;
use forebay_node::removed::is_of;
use forebay_node::runtime::Runtime;
use forebay_node::status::{FileStatus, Observer};
use forebay_node::{Config, Connection};
use rustix::io::Errno;
use std::path::PathBuf;
use std::time::Duration;

/// What answers for a pool.
pub(super) enum Keeper {
    /// A node manager, and we are connected to it.
    Manager(Connection),
    /// No process.
    None,
}

/// All instances of this user that have left anything, and what keeps them.
pub(super) fn pools() -> Result<Vec<(Runtime, Keeper)>, String> {
    let all = Runtime::all()?.into_iter();
    Ok(all.filter_map(|runtime| keeper(&runtime).map(|keeper| (runtime, keeper))).collect())
}

/// Whether the manager's process is about to be gone, as after a kill: it takes connections until
/// the last of its threads is.
pub(super) fn is_ending(runtime: &Runtime) -> bool {
    /// The kernel's flag of a task that ends.
    const EXITING: u64 = 4;
    let Ok(observer) = Observer::of(&runtime.pool) else { return false };
    observer.manager() != 0
        && (!observer.is_served()
            || task_flags(observer.manager()).is_some_and(|flags| flags & EXITING != 0))
}

/// What keeps what an instance has left; `None` if it has left nothing.
pub(super) fn keeper(runtime: &Runtime) -> Option<Keeper> {
    // A manager that was just killed keeps its lock until its last I/O has ended, and one that
    // brings back what was left answers only when it has. The latter may take long, and is waited
    // for.
    for _ in 0..100 {
        if !runtime.has_left() {
            return None;
        }
        if let Ok(connection) = Connection::to(&runtime.socket())
            && !is_ending(runtime)
        {
            return Some(Keeper::Manager(connection));
        }
        if let Ok(Some(_)) | Err(Errno::NOENT) = runtime.lock() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(Keeper::None)
}

/// Waits a while for the end of a manager that was just killed: it keeps its lock, and may seem to
/// answer, until its last I/O has ended.
pub(super) fn await_release(runtime: &Runtime) {
    await_release_while(runtime, || true);
}

/// Waits for some 5 s, and only while `is_expected`, until no manager holds the instance's lock.
pub(super) fn await_release_while(runtime: &Runtime, is_expected: impl Fn() -> bool) {
    for _ in 0..100 {
        if !matches!(runtime.lock(), Ok(None)) || !is_expected() {
            break;
        }
        await_release_by_end(runtime, Duration::from_millis(50));
    }
}

/// Waits until the manager that holds the instance's lock answers, however long it brings back what
/// was left. `None` when no process holds it.
pub fn await_answer(runtime: &Runtime) -> Option<Result<Connection, String>> {
    let mut told = false;
    let mut watch = Watch::default();
    loop {
        if let Ok(connection) = Connection::to(&runtime.socket()) {
            return Some(Ok(connection));
        }
        if !matches!(runtime.lock(), Ok(None)) {
            return None;
        }
        if !told {
            let instance = &runtime.instance;
            eprintln!("forebay: waiting for a node manager that recovers instance {instance}");
            told = true;
        }
        if let Err(message) = watch.look(runtime.manager()) {
            return Some(Err(message));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How often an orphan is tried whose manager, started by another command, ends before it is
/// drained.
pub(super) const DRAIN_TRIES: usize = 10;

/// With which configuration what an instance has left goes on, if its folder is there: without it
/// the user says which.
pub(super) fn recorded(runtime: &Runtime) -> Option<Config> {
    runtime.recorded().filter(|_| runtime.folder.exists())
}

/// Starts a manager for an orphan, unless another command was faster, and waits until it has
/// drained it. Tells what is set aside for that, and returns the number of files.
///
/// # Errors
/// What is left, and why.
pub(super) fn drain_orphan(runtime: &Runtime) -> Result<usize, String> {
    let mut aside = Aside::recorded(runtime);
    for _ in 0..DRAIN_TRIES {
        if let Some(result) = try_to_drain(runtime, aside.as_ref()) {
            let count = aside.as_mut().map_or(0, Aside::tell_new);
            return result.map(|()| count);
        }
    }
    Err(format!(
        "{}: node managers that other commands started end before everything is on the backing store; \
         see {}",
        runtime.folder.display(),
        runtime.readable_log().display()
    ))
}

/// Drains an orphan. `None` when another command's manager went about it, and has ended: whether it
/// has drained everything is to be seen.
fn try_to_drain(runtime: &Runtime, aside: Option<&Aside>) -> Option<Result<(), String>> {
    let config = recorded(runtime);
    if !runtime.has_left() {
        // A manager that was about to end has drained it meanwhile.
        return Some(Ok(()));
    }
    if let Some(answer) = await_answer(runtime) {
        let connection = match answer {
            Ok(connection) => connection,
            Err(message) => return Some(Err(message)),
        };
        return match drain::drain(&connection, runtime) {
            Ok(drain::Drained::All) => Some(Ok(())),
            Ok(drain::Drained::Kept(files)) => Some(Err(drain::describe(runtime, &files))),
            Ok(drain::Drained::Lost) => {
                await_release(runtime);
                None
            }
            Err(message) => Some(Err(message)),
        };
    }
    let Some(config) = config else {
        let (config, pool) = (runtime.config(), runtime.pool.display());
        let there = runtime.has_left();
        let message = || {
            format!(
                "{}: cannot be read, and nothing else says how {pool} is to be drained; it stays. Give its \
                 --config or --backing, or save its data with `forebay salvage --to DIR --pool {pool}`",
                config.display()
            )
        };
        return there.then(|| Err(message()));
    };
    // One that cannot be looked at is refused by the manager, which says why.
    let mut files = Vec::new();
    if fsck::is_sound(&runtime.pool)
        && let Ok(observer) = Observer::of(&runtime.pool)
    {
        let left = bytes(observer.dirty());
        let stores = observer.stores().join(", ");
        eprintln!("forebay: draining {left} that an earlier run left for {stores}");
        files = observer.files();
    }
    if let Err(error) = start(&config, runtime, &["--drain-and-end"]) {
        if let StartError::Died(why) = &error {
            eprintln!("forebay: {why}; starting another");
            return None;
        }
        if matches!(error, StartError::Served(_)) || !runtime.folder.exists() {
            return None;
        }
        runtime.remove_unless_used();
        return Some(Err(keeps_all(error.to_string(), runtime)));
    }
    // It ends by itself; if it has already, it is seen what it has left.
    let connection = Connection::to(&runtime.socket()).ok();
    let result = drain::wait_for_end(connection.as_ref(), runtime);
    if matches!(result, Ok(Ended::Joined | Ended::Replaced)) {
        // With what was left, which may not be on the store yet.
        return None;
    }
    let left = match &result {
        Ok(_) => Vec::new(),
        Err(_) => Observer::of(&runtime.pool).map(|left| left.files()).unwrap_or_default(),
    };
    let added = aside.map(Aside::added).unwrap_or_default();
    for file in files {
        let is_left = left.iter().any(|left| left.path == file.path);
        if !is_left && !added.iter().any(|(path, _)| is_of(path, file.identity)) {
            eprintln!("forebay: {}", describe_recovered(&file));
        }
    }
    Some(result.map(drop))
}

/// Says of a file that its data is on the store, and where: a program without Forebay may have
/// moved it while no manager ran.
fn describe_recovered(file: &FileStatus) -> String {
    let (path, size) = (shown(&file.path), bytes(file.size));
    if file.is_in_place() != Some(false) {
        return format!("recovered {path} ({size})");
    }
    let inode = file.identity.0;
    format!(
        "recovered the file that was opened as {path} ({size}). It lies elsewhere now, if it still \
         has a name: its inode number is {inode}, for `find DIR -inum {inode}`"
    )
}

/// Whether `ours` buffers one of these directories, or one within or above it.
pub(super) fn overlap(ours: &Config, theirs: &[PathBuf]) -> bool {
    theirs.iter().any(|theirs| {
        ours.backing
            .iter()
            .any(|ours| ours.path.starts_with(theirs) || theirs.starts_with(&ours.path))
    })
}

pub(super) fn backing_of(config: &Config) -> Vec<PathBuf> {
    config.backing.iter().map(|backing| backing.path.clone()).collect()
}

/// Makes the folders again of instances that have left something on the same file tiers for the
/// same directories, and lost theirs at a reboot: their data is older than all that will be written
/// now.
pub(super) fn adopt(config: &Config) -> Result<(), String> {
    let left = Runtime::left_beside(config)?;
    for (kept, theirs) in &left.elsewhere {
        if overlap(config, &backing_of(theirs)) {
            eprintln!(
                "forebay: {}: another machine buffers the same directories here; what it leaves is \
                 drained there",
                kept.display()
            );
        }
    }
    for (runtime, theirs) in left.ours {
        if overlap(config, &backing_of(&theirs)) {
            runtime.prepare()?;
            write_config(&theirs, &runtime)?;
        }
    }
    Ok(())
}

/// How many pools that no process keeps there were.
#[derive(Clone, Copy, Default)]
pub struct Orphans {
    pub pools: usize,
    /// Those of which only the file tiers are left.
    pub without_ram: usize,
    /// Files of them that are set aside.
    pub set_aside: usize,
}

impl Orphans {
    /// Counts one more, before it is drained.
    pub fn count(&mut self, runtime: &Runtime) {
        self.pools += 1;
        self.without_ram += usize::from(!runtime.has_pool());
    }
}

/// Before a run: drains what an earlier one with another configuration left for the same
/// directories. What was left with this configuration is taken over by its manager; what was left
/// for other directories is shown by `forebay status`.
pub fn drain_orphans(config: &Config, runtime: &Runtime) -> Result<Orphans, String> {
    adopt(config)?;
    let mut orphans = Orphans::default();
    for (orphan, keeper) in &pools()? {
        if orphan.instance == runtime.instance || matches!(keeper, Keeper::Manager(_)) {
            continue;
        }
        if orphan.backing().is_none_or(|theirs| overlap(config, &theirs)) {
            orphans.count(orphan);
            orphans.set_aside += drain_orphan(orphan)?;
        }
    }
    Ok(orphans)
}
