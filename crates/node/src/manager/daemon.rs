//! The node manager from start to end.

mod left;
mod markers;
mod neighbours;
mod threads;

use crate::actions::Actions;
use crate::config::{Config, Group};
use crate::devices::bandwidth::BandwidthEstimator;
use crate::devices::faults::Faults;
use crate::devices::{open_slots, open_store};
use crate::encoded::Desk;
use crate::group::{Grouping, PoolLife};
use crate::instance::guard::{Waits, guard};
use crate::instance::runtime::{Runtime, SERVED};
use crate::instance::service::{Farewell, Service};
use crate::manager::asks;
use crate::manager::control::Control;
use crate::manager::exporter::Exporter;
use crate::manager::housekeeping::{Housekeeper, has_living, is_idle};
use crate::manager::rest::Rest;
use crate::manager::retire::{Progress, Retirement};
use crate::manager::small_files::note_small_files;
use crate::manager::takeover::{register_manager, take_over};
use crate::memory::Memory;
use crate::node::{Node, Rounds};
use crate::observe::status::unbuffered;
use crate::observe::trace::Trace;
use crate::organize::stage::Requests;
use crate::organize::stage::orders::Orders;
use crate::recovery::open::{Fresh, open, remove_from_tiers};
use crate::recovery::rebuild::Rebuilt;
use crate::store::descriptors::Descriptors;
use forebay_cluster::Flushing;
use forebay_membership::{Incarnation, NodeId};
use forebay_pool::clock::Timer;
use forebay_pool::crash;
use forebay_pool::layout::retirement;
use forebay_pool::message::Message;
use forebay_pool::stay::Stay;
use left::{keep_configs, left_out, place_journal, rebuild_all, start_journal, write_config};
use markers::note_markers;
use neighbours::{refuse_elsewhere, refuse_overlap};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use threads::{end_workers, raise_limits, signal_pipe, start_workers, too_few_descriptors};
/// How often tables and clients are looked at.
const ROUND: Timer = Timer::ms(100);
/// The same while a process waits for a drain.
const DRAIN_ROUND: Timer = Timer::ms(10);
/// How long descriptors from clients are left to pile up.
const PILE_UP: Timer = Timer::ms(1);
/// How long a signalled manager waits for programs that may be ending as well.
const COMMON_END: Timer = Timer::ms(500);

/// How long a manager without clients, to which only runs are left, is taken for one that is about
/// to end.
const LEFTOVER: Timer = Timer::seconds(2);

/// How long one that was started for a run waits for it to join: the run may have been killed.
const FIRST_RUN: Timer = Timer::seconds(60);

/// How to run a node manager.
#[derive(Default)]
pub struct Options {
    /// End when no run holds it, no client lives and everything is drained, unless a run or
    /// `forebay up` has asked for more.
    pub ephemeral: bool,
    /// End as soon as everything is drained: recovery.
    pub drain_and_end: bool,
    /// Where to record every movement.
    pub trace: Option<PathBuf>,
    /// What gets a line, which begins with [`crate::WAITS`], when the start has to wait for another
    /// node manager.
    pub report: Option<File>,
    /// What is told that clients can connect, and of the end.
    pub service: Service,
}

impl Options {
    /// One that was started for runs, or for the end of another, goes with the last of them.
    fn ends_by_itself(&self) -> bool {
        self.ephemeral || self.drain_and_end
    }
}

/// What is to be told of a start.
#[derive(Debug)]
pub struct Started {
    /// What was brought to the store of a segment that is gone.
    pub rebuilt: Option<Rebuilt>,
    /// Which other managers may serve the same directories, which tiers are left out, and of which
    /// directories no file can be buffered.
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
    /// It was told to end by a signal while programs use its files: all is on the backing store,
    /// they use the kernel, and the pool stays for a manager that comes later.
    InUse,
}

impl Ending {
    /// For the service manager.
    fn describe(self, runtime: &Runtime) -> String {
        match self {
            Ending::Drained => "everything is on the store".to_owned(),
            Ending::InUse => {
                "everything is on the store; programs go on without buffering".to_owned()
            }
            Ending::Kept { failing, .. } => format!(
                "{failing} files could not be written; {} keeps the data",
                runtime.pool.display()
            ),
        }
    }
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
    // For commands that wait for us, and find no pool yet that names this process.
    let _ = rustix::io::pwrite(&lock, format!("{}\n", std::process::id()).as_bytes(), 0);
    let runtime = &mut { look_again(runtime)? };
    crash::point("manager.looked");
    let kept = runtime.read_config();
    if !runtime.config().exists() && config.instance_id() == runtime.instance {
        // Others that start now see what we serve. One that is there stays until ours holds.
        write_config(&config, runtime)?;
    }
    // What was left is drained in any order.
    let drains = options.drain_and_end || runtime.has_left();
    let mut waits = Waits::new(options.report.as_ref());
    refuse_overlap(&config, runtime, drains, &mut waits)?;
    let stores = config.backing.iter().map(|backing| backing.path.as_path());
    let mut guard = guard(stores, config.is_in_group(), &mut waits)?;
    if config.is_in_group() {
        // The mark is one of another node's manager.
        guard.warning = None;
    }
    // One with another runtime folder may have made its pool before we had the mark, and has none
    // itself while it removes that.
    *runtime = look_again(runtime)?;
    raise_limits()?;
    let faults = Faults::of_environment(config.tiers.iter().map(|tier| &tier.name[..]))?;
    let trace = Trace::default();
    let record = |path: &PathBuf| {
        let failed = |error| format!("--trace: {}: {error}; give another file", path.display());
        trace.record_at(path).map_err(failed)
    };
    // Until the manager ends.
    let _recording = options.trace.as_ref().map(record).transpose()?;
    // Before there is a pool: one that is found stands for a live segment.
    let rebuilt = match runtime.has_pool() {
        true => None,
        false => {
            refuse_elsewhere(&config, runtime)?;
            rebuild_all(&config, runtime, faults.as_ref())?
        }
    };
    let opened = open(&config, kept.as_ref(), runtime)?;
    // The group is that of today, whatever was found. One that only drains needs none.
    let group = if options.drain_and_end { Group::default() } else { config.group };
    // What runs on files is no part of what was found, either.
    let (analyses, active, metrics) = (config.analyses, config.active, config.metrics);
    // Which group had what was found is known to the manager after this one, too.
    let had = kept.as_ref().map(|kept| kept.group.clone()).unwrap_or_default();
    let before = kept.as_ref().filter(|kept| kept.shares_files()).and_then(group_of);
    let (config, fresh) =
        (Config { group, analyses, active, metrics, ..opened.config }, opened.fresh);
    // A pool whose configuration is gone has one that is not the instance's: the pool says all of
    // it.
    if config.instance_id() == runtime.instance {
        let is_alone = config.group == Group::default();
        let group = if is_alone { had } else { config.group.clone() };
        write_config(&Config { group, ..config.clone() }, runtime)?;
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
    let actions = Actions::of(&config, runtime, opened.found);
    if options.drain_and_end {
        actions.give_up();
    }
    let mut node = Node {
        estimators: tiers.chain(stores).map(BandwidthEstimator::new).collect(),
        descriptors: Descriptors::new(config.backing.iter().map(|backing| backing.path.as_path())),
        stripes: config.backing.iter().map(stripe_of).collect(),
        stores: config.backing.iter().map(|backing| open_store(backing.path.clone())).collect(),
        devices: opened.slots.iter().map(|file| file.as_ref().map(device)).collect(),
        segment: opened.segment,
        pool_file: opened.file,
        group: Grouping::of(&config),
        config,
        runtime: runtime.clone(),
        slots: opened.slots,
        indexes: opened.indexes,
        journal: None,
        exposure: Mutex::default(),
        trace,
        faults,
        draining: AtomicBool::new(false),
        cleaned: AtomicU32::new(0),
        kept_free: AtomicU64::new(0),
        resting: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
        rounds: Rounds::default(),
        flushed_until: AtomicU64::new(0),
        waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| format!("making an event descriptor: {errno}"))?,
        memory: Memory::default(),
        keeps_slots: AtomicU32::new(0),
        actions,
        not_set_aside: std::sync::Mutex::default(),
        counting_caps: std::sync::Mutex::default(),
    };
    let leaves = u32::from(node.faults.is_some());
    let stores = node.header().store.iter();
    stores.for_each(|store| store.left_to_manager.store(leaves, Ordering::Relaxed));
    let shares = u32::from(node.config.shares_files());
    node.header().shares_files.store(shares, Ordering::Release);
    node.config.messages.set(node.header());
    node.segment.set_cap(node.config.flush.max_unsafe / node.segment.page_bytes() as u64);
    note_mounts(&node);
    note_markers(&node);
    note_small_files(&node)?;
    keep_configs(&node)?;
    node.journal = place_journal(&node);
    if opened.found {
        take_over(&node);
    } else {
        register_manager(&node);
    }
    start_journal(&mut node)?;
    let node = Arc::new(node);
    crash::point("manager.took-over");
    if !options.ends_by_itself() {
        // What was asked for before is not for this one, nor for those that follow it.
        node.header().stays_until.forget();
    }
    // Before a process can connect, and tell it to end.
    let signals = signal_pipe()?;
    let requests = Arc::new(Requests::default());
    let orders = Arc::new(Orders::default());
    let desk = Arc::new(Desk::default());
    let mut control = Control::listen(
        &node,
        (&requests, &orders, &desk),
        &runtime.socket(),
        options.ends_by_itself(),
    )
    .map_err(|errno| format!("{}: {errno}", runtime.socket().display()))?;
    let (exporter, not_told) = Exporter::of(&node)?.unzip();
    let exporter = exporter.map(Arc::new);
    let telling = exporter.as_ref().map(|exporter| tell_metrics(exporter, &node)).transpose()?;
    let end_telling = |has_drained| {
        if let (Some(exporter), Some(thread)) = (&exporter, telling) {
            exporter.wake();
            let _ = thread.join();
            exporter.end(&node, has_drained);
        }
    };
    let workers = start_workers(&node, Arc::clone(&requests), (&orders, &desk), opened.found)?;
    if let Err(wanted) = node.descriptors.share.look() {
        end_workers(&node, (&requests, &orders, &desk), workers);
        node.header().manager_pid.store(0, Ordering::Release);
        end_telling(false);
        return Err(too_few_descriptors(wanted));
    }
    let not_told = not_told.unwrap_or_default();
    not_told.iter().for_each(|why| eprintln!("{why}"));
    let warnings = guard.warning.iter().cloned().chain(left_out(&node)).chain(not_told);
    let warnings = warnings.chain(unbuffered(&node.segment)).collect();
    ready(Started { rebuilt, warnings })?;
    options.service.ready(&format!("serving {}", node.config.describe()));
    fresh.into_iter().for_each(Fresh::keep);
    node.group.begin(pool_life(&node, before), node.faults.as_deref());
    let ending = Manager { node: &node, options, signals }.run(&mut control);
    options.service.stopping(&ending.describe(runtime));
    end_workers(&node, (&requests, &orders, &desk), workers);
    node.group.end();
    crash::point("manager.ending");
    node.header().manager_pid.store(0, Ordering::Release);
    crash::point("manager.gone");
    end_telling(ending == Ending::Drained);
    if ending == Ending::Drained {
        node.descriptors.close_all();
        if let Some(journal) = &node.journal {
            journal.stop(node.context());
        }
        // A manager that finds it removes the rest.
        node.header().retired.store(retirement::REMOVED, Ordering::SeqCst);
        remove_from_tiers(&node.config, runtime);
        // When its pool is gone it has ended, as far as others know: a store may be unmounted. What
        // has to be unmapped until the process is gone takes a while. Until then it keeps others
        // from starting, see `look_again`.
        drop(guard);
        crash::point("manager.unmarked");
        runtime.remove();
        crash::point("manager.removed");
    }
    Ok(ending)
}

/// Starts the thread that tells metrics.
fn tell_metrics(exporter: &Arc<Exporter>, node: &Arc<Node>) -> Result<JoinHandle<()>, String> {
    let (exporter, node) = (Arc::clone(exporter), Arc::clone(node));
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || exporter.run(&node))
        .map_err(|error| format!("starting a thread: {error}"))
}

/// The folder of a configuration's group, and this node's number in it.
fn group_of(config: &Config) -> Option<(PathBuf, NodeId)> {
    let hosts = config.group.hosts.as_ref()?;
    Some((config.group_folder()?, hosts.node))
}

/// Which lives of this node in its group the pool knows.
fn pool_life(node: &Arc<Node>, before: Option<(PathBuf, NodeId)>) -> PoolLife {
    let first = node.header().group_life.load(Ordering::Acquire);
    let measures = node.group.asks().map(|(_, measures)| measures).unwrap_or_default();
    let at_once = asks::at_once(node, &measures);
    let (flushed, fenced) = (Arc::clone(node), Arc::clone(node));
    let flushing = Arc::new(move |until| match until {
        Flushing::Until(until_ms) => flushed.header().flush_until(until_ms),
        Flushing::GivenUp => {
            flushed.header().end_flushing();
            flushed.want_work();
        }
    });
    let node = Arc::clone(node);
    // A life that was killed before the group heard of it has not claimed what those before it
    // had: the first one stays. Where lives begin anew, with another folder, so does this.
    let begun = move |life: Incarnation| {
        if first == 0 || life.0 < first {
            node.header().group_life.store(life.0, Ordering::Release);
        }
    };
    let oldest = (first != 0).then_some(Incarnation(first));
    let is_fenced = fenced.header().has_flush_fence();
    let is_given_up = fenced.header().flushing() == forebay_pool::fence::Flushing::GivenUp;
    let before = before.filter(|_| is_fenced);
    let lives = Arc::clone(&fenced);
    let oldest_now = Arc::new(move || {
        let first = lives.header().group_life.load(Ordering::Acquire);
        (first != 0).then_some(Incarnation(first))
    });
    let is_fenced_now =
        Arc::new(move || fenced.header().flushing() == forebay_pool::fence::Flushing::Fenced);
    PoolLife {
        at_once,
        oldest,
        before,
        is_fenced,
        is_given_up,
        oldest_now,
        is_fenced_now,
        flushing,
        begun: Box::new(begun),
    }
}

/// The instance as its pool tells it now.
///
/// # Errors
/// That a manager with another runtime folder serves it, or is about to remove its pool.
fn look_again(runtime: &Runtime) -> Result<Runtime, String> {
    let now = runtime.again()?;
    match now.folder == runtime.folder {
        true => Ok(now),
        false => Err(format!("{}: {SERVED}", now.folder.display())),
    }
}

/// Notes by which mounts this process reaches the stores, and its root directory: a program that
/// reaches them by the same knows paths that mean the same here.
fn note_mounts(node: &Node) {
    let look = |path: &Path| forebay_client::inode_and_mount(path).unwrap_or_default();
    let header = node.header();
    let (inode, mount) = look(Path::new("/"));
    header.root_inode.store(inode, Ordering::Relaxed);
    header.root_mount.store(mount, Ordering::Relaxed);
    for (store, backing) in header.store.iter().zip(&node.config.backing) {
        store.mount.store(look(&backing.path).1, Ordering::Relaxed);
    }
}

struct Manager<'a> {
    node: &'a Arc<Node>,
    options: &'a Options,
    signals: OwnedFd,
}

/// What asks the manager to end.
#[derive(Clone, Copy)]
struct Told {
    since: Instant,
    /// By a signal: it ends although programs go on.
    by_signal: bool,
    /// Runs that had joined when that was asked. One that comes later wants it to go on.
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
        let begun = Instant::now();
        let mut housekeeper = Housekeeper::new(self.node);
        let mut retirement = Retirement::new(self.node);
        let told_now = |by_signal, joined| Told { since: Instant::now(), by_signal, joined };
        let mut told = self.options.drain_and_end.then(|| told_now(false, 0));
        // Since when only programs and runs are waited for.
        let mut left: Option<Instant> = None;
        let mut rest = Rest::new(self.node);
        let mut farewell = Farewell::default();
        let stays = &self.node.header().stays_until;
        loop {
            let busy = told.is_some() && !retirement.is_over() || retirement.is_busy();
            let is_woken = self.wait(control, &housekeeper, &rest, busy);
            if self.node.resting.load(Ordering::SeqCst) {
                let goes_on = !is_woken && !stays.is_over();
                if goes_on && rest.goes_on(self.node, || housekeeper.look_around(false)) {
                    continue;
                }
                rest.end(self.node);
            }
            let was_told = told.is_some();
            if let Some(joined) = control.serve() {
                told.get_or_insert_with(|| told_now(false, joined));
            }
            if self.is_signalled() {
                self.node.actions.give_up();
                self.node.want_work();
                told.get_or_insert_with(|| told_now(true, control.joined)).by_signal = true;
            }
            // One that was not asked for by a signal may be taken back.
            if told.is_some_and(|told| told.by_signal) {
                farewell.go_on(&self.options.service, || self.node.dirty_bytes_total());
            }
            let sweeps = control.wants_sweep();
            self.node.rounds.end_one();
            housekeeper.look_around(sweeps);
            if told.is_some_and(|told| !told.by_signal && control.joined > told.joined) {
                told = None;
                info!("another run has joined: buffering goes on");
            }
            match told {
                // It was wanted until now, and not by runs that join it from now on.
                Some(_) if !was_told => stays.forget(),
                Some(_) => {}
                None if control.is_end_awaited() && self.goes_on(control) => {
                    control.answer_end(Message::GoesOn);
                }
                None => {}
            }
            if stays.is_over() {
                info!("no run has come in the time for which the last one has kept it");
                stays.forget();
            }
            let idle = control.holders() == 0 && is_idle(self.node);
            let wanted = control.is_draining() || !idle;
            let awaits_first = self.options.ends_by_itself()
                && control.joined == 0
                && begun.elapsed() < FIRST_RUN.as_duration();
            if told.is_none() && (wanted || self.stays() || awaits_first) {
                retirement.take_back();
                housekeeper.ends = false;
                let is_asked = control.is_busy || control.is_draining() || control.is_beginning();
                rest.consider(self.node, &housekeeper, !is_asked && !awaits_first);
                continue;
            }
            // The flushers go on; the manager ends when they are done.
            housekeeper.ends = true;
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
                // Without a client it ends in a moment, unless a run holds it whose programs cannot
                // be seen.
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

    /// Whether it does not end now. Of processes that have just died only slots are left.
    fn goes_on(&self, control: &Control) -> bool {
        self.stays() || control.holders() > 0 || has_living(self.node)
    }

    /// Whether it goes on although no run needs it.
    fn stays(&self) -> bool {
        !self.options.ends_by_itself() || self.node.header().stays_until.left() != Stay::Not
    }

    fn is_signalled(&self) -> bool {
        let mut byte = [0u8; 16];
        matches!(rustix::io::read(&self.signals, &mut byte[..]), Ok(1..))
    }

    /// Waits until there is something to do, or the next round is due. Whether there is something.
    fn wait(
        &self,
        control: &Control,
        housekeeper: &Housekeeper,
        rest: &Rest,
        ending: bool,
    ) -> bool {
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
        let round = match busy {
            // A drain of which nothing is left when it is asked for waits for no round.
            _ if control.has_looked() => Duration::ZERO,
            true => DRAIN_ROUND.as_duration(),
            false if self.node.resting.load(Ordering::SeqCst) => rest.pause(),
            false => ROUND.as_duration(),
        };
        let limit =
            Timespec { tv_sec: round.as_secs() as i64, tv_nsec: round.subsec_nanos().into() };
        let is_woken = rustix::event::poll(&mut fds, Some(&limit)) != Ok(0);
        if is_woken {
            let _ = rustix::io::read(&self.node.waker, &mut [0u8; 8][..]);
        }
        is_woken
    }
}
