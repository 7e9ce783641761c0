//! The node manager from start to end.

use crate::config::{Config, TierKind};
use crate::devices::faults::Faults;
use crate::devices::gauge::Gauge;
use crate::devices::{open_slots, open_store};
use crate::drain::Flusher;
use crate::instance::guard::{Waits, guard};
use crate::instance::runtime::{Runtime, SERVED};
use crate::journal::Journal;
use crate::journal::superblock::reason;
use crate::manager::control::Control;
use crate::manager::housekeeping::{Housekeeper, has_living, is_full, is_idle};
use crate::manager::retire::{Progress, Retirement};
use crate::manager::takeover::{announce, take_over};
use crate::node::Node;
use crate::observe::status::Observer;
use crate::observe::trace::Trace;
use crate::organize::demote::Demoter;
use crate::organize::promote::Promoter;
use crate::organize::stage::{Requests, Stager};
use crate::recovery::open::{Fresh, open};
use crate::recovery::rebuild::{Rebuilt, rebuild};
use crate::store::descriptors::Descriptors;
use forebay_placement::Watermarks;
use forebay_pool::clock::Timer;
use forebay_pool::message::Message;
use forebay_pool::{crash, private};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of the RAM tier that are reserved and collapsed at a time.
const PIECE: u64 = 16 << 20;
/// How often tables and clients are looked at.
const ROUND: Timer = Timer::ms(100);
/// The same while somebody waits for a drain.
const DRAIN_ROUND: Timer = Timer::ms(10);
/// How long descriptors from clients are left to pile up.
const PILE_UP: Timer = Timer::ms(1);
/// How long a signalled manager waits for programs that may be ending as well.
const COMMON_END: Timer = Timer::ms(500);

/// How long a manager without clients, to which only runs are left, is taken for one that is about to end.
const LEFTOVER: Timer = Timer::seconds(2);

/// How long a starting manager waits for one that seems to be ending.
const ENDING: Duration = Duration::from_secs(5);

/// How to run a node manager.
#[derive(Default)]
pub struct Options {
    /// End when nobody holds it, no client lives and everything is drained.
    pub ephemeral: bool,
    /// End as soon as everything is drained: recovery.
    pub drain_and_end: bool,
    /// Where to record every movement.
    pub trace: Option<PathBuf>,
    /// What gets a line, which begins with [`crate::WAITS`], when the start has to wait for another node manager.
    pub report: Option<File>,
}

/// What is to be told of a start.
#[derive(Debug)]
pub struct Started {
    /// What was brought to the store of a segment that is gone.
    pub rebuilt: Option<Rebuilt>,
    /// Who else may serve the same directories, and which tiers are left out.
    pub warnings: Vec<String>,
}

/// How a node manager ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything is on the backing store; pool and folder are removed.
    Drained,
    /// Some files could not be written; the pool is kept.
    Kept {
        /// Files that could not be written.
        failing: usize,
        /// Bytes that are still in the tiers.
        bytes: u64,
    },
    /// It was told to end by a signal while programs use its files: all is on the backing store, they
    /// use the kernel, and the pool stays for a manager that comes later.
    InUse,
}

/// Runs a node manager until it is told to end. Calls `ready` once clients can connect.
///
/// # Errors
/// A message that names what is wrong and what to do.
pub fn serve(
    config: Config,
    runtime: &Runtime,
    options: &Options,
    ready: impl FnOnce(Started) -> Result<(), String>,
) -> Result<Ending, String> {
    crash::in_node();
    let lock = runtime.lock().map_err(|errno| format!("{}: {errno}", runtime.folder.display()))?;
    let Some(lock) = lock else {
        return Err(format!("{}: {SERVED}", runtime.folder.display()));
    };
    // For commands that wait for us, and find no pool yet that says who we are.
    let _ = rustix::io::pwrite(&lock, format!("{}\n", std::process::id()).as_bytes(), 0);
    // Its pool may be there since, made by a manager with another runtime folder.
    let now = runtime.again()?;
    if now.folder != runtime.folder {
        return Err(format!("{}: {SERVED}", now.folder.display()));
    }
    let runtime = &mut { now };
    let kept = runtime.read_config();
    if !runtime.config().exists() && config.instance_id() == runtime.instance {
        // Others that start now see what we serve. One that is there stays until ours holds.
        write_config(&config, runtime)?;
    }
    // What was left is drained in any order.
    let drains = options.drain_and_end || runtime.has_left();
    let mut waits = Waits::new(options.report.as_ref());
    refuse_overlap(&config, runtime, drains, &mut waits)?;
    let guard = guard(config.backing.iter().map(|backing| backing.path.as_path()), &mut waits)?;
    raise_limits()?;
    let faults = Faults::of_environment(config.tiers.iter().map(|tier| &tier.name[..]))?;
    let trace = Trace::to(options.trace.as_deref()).map_err(|error| {
        let path = options.trace.as_deref().unwrap_or(Path::new(""));
        format!("--trace: {}: {error}; give another file", path.display())
    })?;
    // Before there is a pool: one that is found stands for a live segment.
    let rebuilt = match runtime.pool.exists() {
        true => None,
        false => {
            refuse_elsewhere(&config, runtime)?;
            rebuild_all(&config, runtime, faults.as_ref())?
        }
    };
    let opened = open(&config, kept.as_ref(), runtime)?;
    let (config, fresh) = (opened.config, opened.fresh);
    // A pool whose configuration is gone has one that is not the instance's: the pool says all of it.
    if config.instance_id() == runtime.instance {
        write_config(&config, runtime)?;
    }
    let stripe_of = |backing: &crate::config::Backing| match backing.stripe {
        0 => std::fs::metadata(&backing.path).map_or(4096, |found| found.blksize()),
        stripe => stripe,
    };
    let header = opened.segment.header();
    let tiers = header.tier.iter().map(|tier| &tier.speed);
    let stores = header.store.iter().map(|store| &store.speed);
    let slot_bytes = opened.segment.bucket_bytes() as u64;
    let device = |file: &OwnedFd| open_slots(file, slot_bytes);
    let mut node = Node {
        gauges: tiers.chain(stores).map(Gauge::new).collect(),
        descriptors: Descriptors::new(config.backing.iter().map(|backing| backing.path.as_path())),
        stripes: config.backing.iter().map(stripe_of).collect(),
        stores: config.backing.iter().map(|backing| open_store(backing.path.clone())).collect(),
        devices: opened.slots.iter().map(|file| file.as_ref().map(device)).collect(),
        segment: opened.segment,
        pool_file: opened.file,
        config,
        runtime: runtime.clone(),
        slots: opened.slots,
        indexes: opened.indexes,
        journal: None,
        watermarks: Watermarks::default(),
        trace,
        faults,
        draining: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        rounds: AtomicU64::new(0),
        flushed_until: AtomicU64::new(0),
        waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| format!("making an event descriptor: {errno}"))?,
    };
    keep_configs(&node)?;
    node.journal = place_journal(&node);
    if opened.found {
        take_over(&node);
    } else {
        announce(&node);
    }
    start_journal(&mut node)?;
    let node = Arc::new(node);
    crash::point("manager.took-over");
    // Before anybody can connect, and tell it to end.
    let signals = signal_pipe()?;
    let requests = Arc::new(Requests::default());
    let mut control = Control::listen(&node, &requests, &runtime.socket())
        .map_err(|errno| format!("{}: {errno}", runtime.socket().display()))?;
    let workers = start_workers(&node, requests)?;
    let warnings = guard.warning.iter().cloned().chain(left_out(&node)).collect();
    ready(Started { rebuilt, warnings })?;
    fresh.into_iter().for_each(Fresh::keep);
    let ending = Manager { node: &node, options, signals }.run(&mut control);
    node.stopping.store(true, Ordering::Release);
    node.want_work();
    node.segment.want_room();
    for worker in workers {
        let _ = worker.join();
    }
    crash::point("manager.ending");
    node.header().manager_pid.store(0, Ordering::Release);
    crash::point("manager.gone");
    if ending == Ending::Drained {
        remove(&node, runtime);
    }
    Ok(ending)
}

/// Keeps the configuration in the instance's folder, in one step: others may be reading it.
fn write_config(config: &Config, runtime: &Runtime) -> Result<(), String> {
    let fresh = runtime.config().with_extension("new");
    crate::instance::runtime::write_private(&fresh, &config.canonical())
        .and_then(|()| std::fs::rename(&fresh, runtime.config()))
        .map_err(|error| format!("{}: {error}", runtime.config().display()))
}

/// Keeps the configuration on each tier that takes something. One whose device refuses that takes nothing at
/// all: after a reboot nothing would say what its slots belong to.
fn keep_configs(node: &Node) -> Result<(), String> {
    for tier in node.file_tiers().filter(|&tier| node.segment.is_sound(tier)) {
        let Err((path, error)) = node.keep_config(tier) else { continue };
        let errno = Errno::from_io_error(&error);
        if !errno.is_some_and(|errno| node.segment.fail_tier(tier, errno)) {
            return Err(format!("{}: {error}", path.display()));
        }
    }
    Ok(())
}

/// Where the journal is, or a new one would be.
fn place_journal(node: &Node) -> Option<Journal> {
    let place =
        || Journal::on_one_of(&node.config, &node.runtime, |tier| node.segment.is_sound(tier));
    let journal = place()?;
    if node.segment.is_sound(journal.tier) || !journal.is_new() {
        return Some(journal);
    }
    // Its file may have been made before it was known that the tier is left out.
    private::remove(&journal.path);
    place()
}

/// Makes the journal, if one is wanted, or carries on the one that is there. A tier whose device refuses a new
/// one is left out, and the next one asked; without any what would go to the journal goes to the store.
fn start_journal(node: &mut Node) -> Result<(), String> {
    while let Some(journal) = node.journal.as_ref()
        && (node.segment.is_sound(journal.tier) || !journal.is_new())
        && let Err(errno) = journal.start(node.context())
    {
        // One that has anything in it is not to be done without.
        if !journal.is_new() || !node.segment.fail_tier(journal.tier, errno) {
            return Err(format!("{}: {}", journal.path.display(), reason(&journal.path, errno)));
        }
        node.journal = place_journal(node);
    }
    Ok(())
}

/// What is to be told of the tiers that are left out.
fn left_out(node: &Node) -> Vec<String> {
    let mut said = Vec::new();
    for tier in node.file_tiers() {
        let Some((errno, _)) = node.segment.tier_failure(tier) else { continue };
        let TierKind::File { path } = &node.config.tiers[tier].kind else { continue };
        let until = match is_full(errno) && node.slots[tier].is_some() {
            true => " until there is room",
            false => "",
        };
        let (name, path) = (node.tier_name(tier), path.display());
        said.push(format!("tier {name} ({path}): {errno}; it is left out{until}"));
    }
    let has_journal = node.journal.as_ref().is_some_and(Journal::takes_data);
    if node.config.wants_journal() && !has_journal && !said.is_empty() {
        said.push(
            "no file tier takes the journal: fsync of files with durability nonvolatile waits for \
             the backing store"
                .to_owned(),
        );
    }
    said
}

/// Brings to the store what tiers hold of the instance: with the tiers of the manager that has left it, and
/// with those that there are today.
fn rebuild_all(
    today: &Config,
    runtime: &Runtime,
    faults: Option<&Arc<Faults>>,
) -> Result<Option<Rebuilt>, String> {
    let Some(left) = runtime.left_on_tiers(today) else { return Ok(None) };
    refuse_elsewhere(&left, runtime)?;
    let first = rebuild(&left, runtime, faults)?;
    let rest = rebuild(today, runtime, faults)?;
    Ok(match (first, rest) {
        (Some(first), Some(rest)) => Some(first.and(rest)),
        (first, rest) => first.or(rest),
    })
}

/// Slots of another machine, with the same configuration, may be in use there.
fn refuse_elsewhere(config: &Config, runtime: &Runtime) -> Result<(), String> {
    let kept = runtime.kept_elsewhere(config).filter(|_| runtime.has_slots(config));
    kept.map_or(Ok(()), |kept| {
        Err(format!(
            "{}: another machine has left its data here, or is at work with it; give each machine a \
             folder of its own. If that machine is gone, or this is it under another name, remove the \
             file: its data is brought to the store then",
            kept.display()
        ))
    })
}

/// Two managers must not buffer the same files: neither would see what the other holds. Nor may one
/// begin, unless it `drains`, before what another left is drained.
fn refuse_overlap(
    config: &Config,
    runtime: &Runtime,
    drains: bool,
    waits: &mut Waits<'_>,
) -> Result<(), String> {
    // One without clients is probably ending.
    let patience = Instant::now() + ENDING;
    loop {
        match find_overlap(config, runtime, drains)? {
            None => return Ok(()),
            Some((true, message)) if Instant::now() < patience => {
                waits.say(&message);
                std::thread::sleep(Duration::from_millis(50));
            }
            Some((_, message)) => return Err(message),
        }
    }
}

/// Another manager that serves a directory of ours: whether it is without clients, and what to say.
/// Unless we drain, also one that is gone and has left something.
fn find_overlap(
    config: &Config,
    runtime: &Runtime,
    drains: bool,
) -> Result<Option<(bool, String)>, String> {
    for other in Runtime::all()? {
        if other.instance == runtime.instance {
            continue;
        }
        let Some(theirs) = other.backing() else { continue };
        let serves = matches!(other.lock(), Ok(None));
        // Its data is older than all that would be written now, and would come to the store later.
        if !serves && (drains || !other.has_left()) {
            continue;
        }
        for ours in &config.backing {
            let overlaps = |path: &std::path::Path| {
                ours.path.starts_with(path) || path.starts_with(&ours.path)
            };
            if let Some(theirs) = theirs.iter().find(|theirs| overlaps(theirs)) {
                // A manager that ends removes its pool before its folder.
                let unused = !other.pool.exists()
                    || Observer::of(&other.pool).is_ok_and(|observer| observer.clients() == 0);
                if !serves {
                    let message = format!(
                        "instance {} holds what an earlier run left for {}; `forebay recover` drains it",
                        other.instance,
                        theirs.display()
                    );
                    return Ok(Some((false, message)));
                }
                if let Some(users) = used_directly(&other) {
                    let message = format!(
                        "{} is used by processes of an earlier run with another configuration \
                         (instance {}): {users}; wait for their end, or use that configuration",
                        theirs.display(),
                        other.instance
                    );
                    return Ok(Some((unused, message)));
                }
                let message = format!(
                    "{} is served with another configuration (instance {}, directory {}); use that \
                     one, or end it with `forebay stop`",
                    ours.path.display(),
                    other.instance,
                    theirs.display()
                );
                return Ok(Some((unused, message)));
            }
        }
    }
    Ok(None)
}

/// The processes that use the files of an instance whose manager was told to end; `None` if it was not.
fn used_directly(instance: &Runtime) -> Option<String> {
    let observer = Observer::of(&instance.pool).ok()?;
    let pids: Vec<_> = observer.processes().iter().map(u32::to_string).collect();
    (observer.is_retiring() && !pids.is_empty()).then(|| pids.join(", "))
}

/// Descriptors without which a manager does not start: with 7 tiers and 8 directories about 50 are its
/// own, each process of the program takes one, and each file that is being drained one or two.
const DESCRIPTORS_MIN: u64 = 128;

/// The limits that a program was given are not meant for the manager: it keeps a descriptor of
/// every file that is being drained, maps all of RAM, and writes what all programs wrote.
///
/// # Errors
/// A message when so few descriptors are left that no file could be drained.
fn raise_limits() -> Result<(), String> {
    for resource in [Resource::Nofile, Resource::Fsize, Resource::As, Resource::Data, Resource::Cpu]
    {
        let limit = rustix::process::getrlimit(resource);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let without = Rlimit { current: None, maximum: None };
        // Only the administrator may lift a hard limit; without that less can be buffered.
        let lifted = !matches!(resource, Resource::Nofile)
            && rustix::process::setrlimit(resource, without).is_ok();
        if !lifted {
            let _ = rustix::process::setrlimit(resource, raised);
        }
    }
    // A file that is too large is an error to report, not the end.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    match rustix::process::getrlimit(Resource::Nofile).current {
        Some(limit) if limit < DESCRIPTORS_MIN => Err(format!(
            "the node manager may open only {limit} files; raise the hard limit (ulimit -Hn) to at \
             least {DESCRIPTORS_MIN}"
        )),
        _ => Ok(()),
    }
}

fn start_workers(node: &Arc<Node>, requests: Arc<Requests>) -> Result<Vec<JoinHandle<()>>, String> {
    let start = |name: String, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name)
            .spawn(work)
            .map_err(|error| format!("starting a thread: {error}"))
    };
    let mut workers = Vec::new();
    for tier in node.tiers() {
        let name = node.tier_name(tier);
        let flusher = Flusher::new(node);
        workers.push(start(format!("flush {name}"), Box::new(move || flusher.run(tier)))?);
        let demoter = Demoter::new(node, tier);
        workers.push(start(format!("demote {name}"), Box::new(move || demoter.run()))?);
    }
    let promoter = Promoter::new(node);
    workers.push(start("promote".into(), Box::new(move || promoter.run()))?);
    let syncer = Flusher::new(node);
    workers.push(start("sync".into(), Box::new(move || syncer.serve_syncs()))?);
    let stager = Stager::new(node, requests);
    workers.push(start("stage".into(), Box::new(move || stager.run()))?);
    let growing = Arc::clone(node);
    workers.push(start("grow".into(), Box::new(move || grow(&growing)))?);
    Ok(workers)
}

/// Reserves the rest of the RAM tier in the background.
fn grow(node: &Node) {
    while !node.stopping() {
        match node.segment.grow(node.pool_file.as_fd(), PIECE) {
            Ok(0) => return,
            Ok(_) => node.announce_room(),
            Err(errno) => {
                let ready = node.header().ram_ready.load(Ordering::Acquire);
                let mib =
                    |buckets: u32| (u64::from(buckets) * node.segment.bucket_bytes() as u64) >> 20;
                eprintln!(
                    "the RAM tier stays at {} MiB of {} MiB: /dev/shm: {errno}",
                    mib(ready),
                    mib(node.segment.ram_buckets()),
                );
                return;
            }
        }
    }
}

/// A stream that becomes readable at SIGTERM, SIGINT or SIGHUP.
fn signal_pipe() -> Result<OwnedFd, String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let fail = |error: std::io::Error| format!("setting up signals: {error}");
    let (receiver, sender) = UnixStream::pair().map_err(fail)?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let sender = sender.try_clone().map_err(fail)?;
        signal_hook::low_level::pipe::register(signal, sender).map_err(fail)?;
    }
    receiver.set_nonblocking(true).map_err(fail)?;
    Ok(receiver.into())
}

struct Manager<'a> {
    node: &'a Arc<Node>,
    options: &'a Options,
    signals: OwnedFd,
}

/// Who wants the manager to end.
#[derive(Clone, Copy)]
struct Told {
    since: Instant,
    /// By a signal: it ends although programs go on.
    by_signal: bool,
    /// Runs that had joined by then. One that comes later wants it to go on.
    joined: u64,
}

impl Told {
    /// Whether it is to end although programs go on: not before those had time to end that a batch
    /// system, or a terminal, sent the same signal.
    fn has_waited(self) -> bool {
        self.by_signal && self.since.elapsed() > COMMON_END.as_duration()
    }
}

impl Manager<'_> {
    fn run(&self, control: &mut Control) -> Ending {
        let mut housekeeper = Housekeeper::new(self.node);
        let mut retirement = Retirement::new(self.node);
        let told_now = |by_signal, joined| Told { since: Instant::now(), by_signal, joined };
        let mut told = self.options.drain_and_end.then(|| told_now(false, 0));
        // Since when only programs and runs are waited for.
        let mut left: Option<Instant> = None;
        loop {
            let busy = told.is_some() && !retirement.is_over() || retirement.is_busy();
            self.wait(control, &housekeeper, busy);
            if control.serve() && told.is_none() {
                told = Some(told_now(false, control.joined));
            }
            if self.is_signalled() {
                told.get_or_insert_with(|| told_now(true, control.joined)).by_signal = true;
            }
            self.node.rounds.fetch_add(1, Ordering::AcqRel);
            housekeeper.look_around();
            if told.is_some_and(|told| !told.by_signal && control.joined > told.joined) {
                told = None;
                eprintln!("another run has joined: buffering goes on");
            }
            if told.is_none() {
                control.answer_end(Message::GoesOn);
            }
            let idle = control.holders() == 0 && is_idle(self.node);
            let wanted = control.is_draining() || !idle;
            // One that was started for runs, or for the end of another, goes with the last of them.
            let by_itself = self.options.ephemeral || self.options.drain_and_end;
            if told.is_none() && (wanted || !by_itself || !control.was_held) {
                retirement.take_back();
                continue;
            }
            // The flushers go on; the manager ends when they are done.
            self.node.draining.store(true, Ordering::Release);
            self.node.want_work();
            let since = told.map(|told| told.since);
            let still_idle = || control.holders() == 0 && is_idle(self.node);
            let progress = retirement.go_on(since, idle, still_idle);
            match progress {
                Progress::Direct => _ = left.get_or_insert_with(Instant::now),
                _ => left = None,
            }
            match progress {
                Progress::Gone => return Ending::Drained,
                Progress::Refused(failing) if told.is_some() => {
                    let bytes = self.node.dirty_bytes_total();
                    return Ending::Kept { failing, bytes };
                }
                Progress::Direct
                    if told.is_some_and(Told::has_waited)
                        && (control.holders() > 0 || has_living(self.node)) =>
                {
                    return Ending::InUse;
                }
                // Without a client it ends in a moment, unless a run holds it whose programs cannot be seen.
                Progress::Direct
                    if !is_idle(self.node)
                        || left.is_some_and(|since| since.elapsed() > LEFTOVER.as_duration()) =>
                {
                    control.answer_end(Message::InUse);
                }
                _ => {}
            }
        }
    }

    fn is_signalled(&self) -> bool {
        let mut byte = [0u8; 16];
        matches!(rustix::io::read(&self.signals, &mut byte[..]), Ok(1..))
    }

    fn wait(&self, control: &Control, housekeeper: &Housekeeper, ending: bool) {
        let mut fds: Vec<PollFd<'_>> = control.watched().collect();
        fds.push(PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.node.waker.as_fd(), PollFlags::IN));
        fds.extend(housekeeper.watched());
        if control.is_busy {
            // To be woken for each of them would cost their senders more than they wait for room.
            let pile_up = Timespec { tv_sec: 0, tv_nsec: PILE_UP.as_ns() as i64 };
            let waker = PollFd::from_borrowed_fd(self.node.waker.as_fd(), PollFlags::IN);
            let _ = rustix::event::poll(&mut [waker], Some(&pile_up));
        }
        let busy = ending || control.is_draining() || control.is_beginning();
        let round = if busy { DRAIN_ROUND } else { ROUND };
        let limit = Timespec { tv_sec: 0, tv_nsec: round.as_ns() as i64 };
        let _ = rustix::event::poll(&mut fds, Some(&limit));
        let _ = rustix::io::read(&self.node.waker, &mut [0u8; 8][..]);
    }
}

/// Removes everything that a drained instance has. No client is left.
fn remove(node: &Node, runtime: &Runtime) {
    if let Some(journal) = &node.journal {
        journal.stop(node.context());
    }
    for tier in &node.config.tiers {
        if let TierKind::File { path } = &tier.kind {
            private::remove(&runtime.index(path, &tier.name));
            crash::point("manager.table-gone");
            private::remove(&runtime.slots(path, &tier.name));
        }
    }
    runtime.remove();
    crash::point("manager.removed");
    // Last: it says that nothing else counts.
    if let Some(journal) = &node.journal {
        private::remove(&journal.path);
    }
    runtime.forget_config(&node.config);
}
