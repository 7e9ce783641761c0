//! Node managers as commands meet them: joined (here), started, served by this process, drained
//! where they have left something, stopped.

mod orphans;
mod recover;
mod serve;
mod start;
mod stop;
mod up;

pub use orphans::{await_answer, drain_orphans};
pub use recover::recover;
pub use serve::{NodeArguments, node};
pub use stop::{StopArguments, stop};
pub use up::{DownArguments, UpArguments, describe_served, down, ends_with_runs, up};

use crate::signals;
use crate::task;
use crate::text::bytes;
use crate::watch::Watch;
use forebay_node::config::{TierKind, memory_limit};
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_node::{Config, Connection};
use forebay_pool::message::Message;
use forebay_pool::stay::{Stay, UNTIL_TOLD};
use orphans::{await_release_while, recorded};
use rustix::io::Errno;
use start::{START_TRIES, StartError, keeps_all, start};
use std::time::{Duration, Instant};

/// How a run's node manager came to be.
pub enum Joined {
    /// It was running.
    Running,
    /// It was started for this run.
    Started,
}

/// Waits a while for the end of a manager that no program uses, and that is about to end. A signal
/// ends the wait, also the first interrupt: nothing is drained for a command.
pub fn await_leftover(runtime: &Runtime) {
    await_release_while(runtime, || {
        signals::to_leave().is_none()
            && !signals::is_interrupted()
            && Observer::of(&runtime.pool)
                .is_ok_and(|observer| observer.clients() == 0 && observer.stay() == Stay::Not)
    });
}

/// Waits until the manager at the other end has ended, which no run needs but ours, or until it is
/// clear that it goes on: others hold it, it stays, or programs use it. A signal ends the wait.
pub fn await_end(connection: &Connection, runtime: &Runtime) {
    /// What has just died is seen by the manager in less.
    const LIMIT: Duration = Duration::from_secs(5);
    /// Between two looks at signals.
    const LOOK: Duration = Duration::from_millis(200);
    let since = Instant::now();
    let mut answer = connection.send(Message::AwaitEnd).map(|()| None);
    while let Ok(None) = answer
        && signals::to_leave().is_none()
        && since.elapsed() < LIMIT
    {
        answer = connection.receive(LOOK);
    }
    if !matches!(answer, Ok(Some(_))) {
        await_leftover(runtime);
    }
}

/// Says of the RAM tier of a node manager that was started, if that is so, that the job or control
/// group may not have as much memory.
fn mention_limit(config: &Config) {
    let Some(limit) = memory_limit() else { return };
    for tier in &config.tiers {
        if tier.kind == TierKind::Ram && tier.capacity > limit {
            eprintln!(
                "forebay: tier {}: {} are more than the job or control group may have ({}): when it \
                 gets that full, processes are killed. Give it less, as capacity = \"25%\", or the \
                 job more memory",
                tier.name,
                bytes(tier.capacity),
                bytes(limit)
            );
        }
    }
}

/// Makes sure that a node manager serves the instance, and holds it. `runtime` is then that
/// manager's.
pub fn join(config: &Config, runtime: &mut Runtime) -> Result<(Connection, Joined), String> {
    join_with(config, runtime, None)
}

/// The same of one that stays until it is told to end.
fn join_to_stay(config: &Config, runtime: &mut Runtime) -> Result<Joined, String> {
    let keep = Message::Keep { time_ns: UNTIL_TOLD };
    join_with(config, runtime, Some(keep)).map(|(_, joined)| joined)
}

/// Joins, with a word before that.
fn join_with(
    config: &Config,
    runtime: &mut Runtime,
    word: Option<Message>,
) -> Result<(Connection, Joined), String> {
    let mut watch = Watch::default();
    let mut tries = 0;
    for _ in 0..50 {
        look_again(runtime)?;
        if let Some(connection) = hold(runtime, &mut watch, word)? {
            look_again(runtime)?;
            is_seen(runtime)?;
            return Ok((connection, Joined::Running));
        }
        runtime.prepare()?;
        // Another run may be starting it right now; the lock tells.
        match runtime.lock() {
            Ok(Some(lock)) => {
                drop(lock);
                match start(config, runtime, &["--ephemeral"]) {
                    Err(StartError::Died(why)) if tries < START_TRIES => {
                        tries += 1;
                        eprintln!("forebay: {why}; starting another");
                        continue;
                    }
                    // Another run's was faster.
                    Ok(()) | Err(StartError::Served(_)) => {}
                    // It may be in another folder.
                    Err(error)
                        if !look_again(runtime)? && matches!(runtime.lock(), Ok(Some(_))) =>
                    {
                        // With its log, if that says more than we do.
                        if matches!(error, StartError::Refused(_)) {
                            runtime.remove_unless_used();
                        }
                        return Err(error.to_string());
                    }
                    _ => {}
                }
                look_again(runtime)?;
                if let Some(connection) = hold(runtime, &mut watch, word)? {
                    mention_limit(&runtime.read_config().unwrap_or_else(|| config.clone()));
                    return Ok((connection, Joined::Started));
                }
            }
            Ok(None) => {
                watch.look(runtime.manager())?;
                go_on_unless_signalled()?;
                await_release_by_end(runtime, Duration::from_millis(100));
            }
            // One that has just ended has removed the folder behind `prepare`.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(format!("{}: {errno}", runtime.folder.display())),
        }
    }
    Err(format!(
        "the node manager of {} holds its lock and does not answer; see {}",
        runtime.folder.display(),
        runtime.readable_log().display()
    ))
}

/// Makes sure that a node manager serves a pool whose own has died, and holds it: it goes on where
/// that one ended, and drains and ends when no run and no program uses the pool.
///
/// # Errors
/// Why there is none, and what to do.
pub fn revive(runtime: &Runtime) -> Result<Connection, String> {
    let Some(config) = recorded(runtime) else {
        let (config, pool) = (runtime.config(), runtime.pool.display());
        return Err(format!("{}: cannot be read; {pool} stays", config.display()));
    };
    let dirty = Observer::of(&runtime.pool).map_or(0, |observer| observer.dirty());
    eprintln!(
        "forebay: instance {} has no node manager, and {} are not yet on the store: another goes on",
        runtime.instance,
        bytes(dirty)
    );
    let joined = join(&config, &mut runtime.clone()).map_err(|error| keeps_all(error, runtime))?;
    Ok(joined.0)
}

/// Takes the instance as its pool now tells it: a manager with another runtime folder may have
/// come. Says whether that is so.
fn look_again(runtime: &mut Runtime) -> Result<bool, String> {
    let now = runtime.again()?;
    let moved = now.folder != runtime.folder;
    if moved && runtime.folder.exists() {
        runtime.abandon_folder();
    }
    *runtime = now;
    Ok(moved)
}

/// Whether the pool of a manager that we hold can be seen: without it programs would run beside
/// what it buffers.
fn is_seen(runtime: &Runtime) -> Result<(), String> {
    match runtime.has_pool() {
        true => Ok(()),
        false => Err(format!(
            "{}: the node manager there has a pool that is not seen from here: in another container, with another /dev/shm; \
             run the command there, or with another FOREBAY_RUNTIME_DIR when it has ended",
            runtime.folder.display()
        )),
    }
}

/// Waits for `limit`, or until the process has ended in that time which holds the instance's lock.
fn await_release_by_end(runtime: &Runtime, limit: Duration) {
    let since = Instant::now();
    let ended = runtime.manager().is_some_and(|pid| task::await_end(pid, limit));
    // One whose end is not seen, or that had ended before and has I/O under way: the lock is held.
    if !ended || since.elapsed() < Duration::from_millis(1) {
        std::thread::sleep(limit.saturating_sub(since.elapsed()));
    }
}

/// An error when a signal has come before the command was started.
fn go_on_unless_signalled() -> Result<(), String> {
    signals::early().map_or(Ok(()), |signal| Err(format!("ended by signal {signal}")))
}

/// Connects to the instance's manager and keeps it from ending. `None` when there is none, or
/// when it is ending already.
///
/// # Errors
/// That it is stopped.
fn hold(
    runtime: &Runtime,
    watch: &mut Watch,
    word: Option<Message>,
) -> Result<Option<Connection>, String> {
    let Ok(connection) = Connection::to(&runtime.socket()) else { return Ok(None) };
    let said = word.map_or(Ok(()), |word| connection.send(word));
    if said.and_then(|()| connection.send(Message::Hold)).is_err() {
        return Ok(None);
    }
    let since = Instant::now();
    loop {
        match connection.receive(Duration::from_millis(100)) {
            Ok(None) => {
                watch.look(runtime.manager())?;
                go_on_unless_signalled()?;
            }
            answer => return Ok((answer == Ok(Some(Message::Held))).then_some(connection)),
        }
        if since.elapsed() > ANSWER && !watch.sees_a_halt() {
            return Ok(None);
        }
    }
}

/// How long a manager that is not stopped may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
