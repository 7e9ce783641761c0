//! The process around the threads of a manager: its limits, its threads, its signals.

use crate::config::Rule;
use crate::drain::{CapKeeper, Elevator, Flusher};
use crate::encoded::{DESK_THREADS, Desk, DeskThread};
use crate::manager::asks::Asks;
use crate::manager::leases::LeaseKeeper;
use crate::manager::registrar::Registrar;
use crate::manager::remote::Remote;
use crate::manager::runner::Runner;
use crate::node::Node;
use crate::organize::demote::Demoter;
use crate::organize::grow::Grower;
use crate::organize::place::Placer;
use crate::organize::promote::Promoter;
use crate::organize::stage::orders::{ORDER_THREADS, OrderThread, Orders};
use crate::organize::stage::predict::Predicting;
use crate::organize::stage::{Requests, Stager};
use crate::remote::RemotePost;
use forebay_placement::prefetch::UNDER_WAY;
use forebay_placement::schema::Mode;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Descriptors without which a manager does not start: with two tiers and one directory about 50
/// are its own. What more of them take is looked at when its threads run.
pub(super) const DESCRIPTORS_MIN: usize = 128;

/// The limits that a program was given are not meant for the manager: it keeps descriptors of
/// files that are ahead of the store, maps all of RAM, and writes what all programs wrote.
///
/// # Errors
/// A message when so few descriptors are left that no file could be drained.
pub(super) fn raise_limits() -> Result<(), String> {
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
        Some(limit) if limit < DESCRIPTORS_MIN as u64 => Err(too_few_descriptors(DESCRIPTORS_MIN)),
        _ => Ok(()),
    }
}

/// What to say where at least `wanted` descriptors are needed.
pub(super) fn too_few_descriptors(wanted: usize) -> String {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    format!(
        "the node manager may open only {limit} files; raise the hard limit (ulimit -Hn) to at \
         least {wanted}"
    )
}

/// Ends the threads that [`start_workers`] has started.
pub(super) fn end_workers(
    node: &Node,
    (requests, orders, desk): (&Requests, &Orders, &Desk),
    workers: Vec<JoinHandle<()>>,
) {
    node.stopping.store(true, Ordering::Release);
    node.want_work();
    node.actions.wake();
    node.segment.want_room();
    node.segment.want_memory();
    node.segment.want_caps();
    node.segment.wake_placers();
    node.segment.wake_promoter();
    requests.end();
    orders.end();
    desk.end();
    node.group.end_leases();
    if let Some(remote) = &node.group.remote {
        remote.end();
    }
    for worker in workers {
        let _ = worker.join();
    }
}

pub(super) fn start_workers(
    node: &Arc<Node>,
    requests: Arc<Requests>,
    (orders, desk): (&Arc<Orders>, &Arc<Desk>),
    found: bool,
) -> Result<Vec<JoinHandle<()>>, String> {
    let start = |name: String, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name)
            .spawn(work)
            .map_err(|error| format!("starting a thread: {error}"))
    };
    // On the cores that are for them; see docs/design/organizer.md#cores for what is nice.
    let start_mover = |name: String, is_nice: bool, work: Box<dyn FnOnce() + Send>| {
        let movers = node.config.movers.clone();
        let begin = move || {
            if let Err(why) = movers.enter(is_nice) {
                eprintln!("{why}");
            }
            work();
        };
        start(name, Box::new(begin))
    };
    const NICE: bool = true;
    let mut workers = Vec::new();
    for tier in node.tiers() {
        let name = node.tier_name(tier);
        let flusher = Flusher::new(node);
        workers.push(start_mover(
            format!("flush {name}"),
            NICE,
            Box::new(move || flusher.run(tier)),
        )?);
        let demoter = Demoter::new(node, tier);
        workers.push(start_mover(format!("demote {name}"), NICE, Box::new(move || demoter.run()))?);
    }
    for tier in node.file_tiers() {
        let placer = Placer::new(node, tier);
        let name = format!("place {}", node.tier_name(tier));
        workers.push(start_mover(name, NICE, Box::new(move || placer.run()))?);
    }
    let is_staged = |rule: &Rule| rule.set.mode == Some(Mode::Staged);
    if node.config.rules.iter().any(is_staged) {
        let elevator = Elevator::new(node);
        workers.push(start_mover("elevator".into(), NICE, Box::new(move || elevator.run()))?);
    }
    let keeper = CapKeeper::new(node);
    workers.push(start_mover("caps".into(), !NICE, Box::new(move || keeper.run()))?);
    let runner = Runner::new(node);
    workers.push(start("actions".into(), Box::new(move || runner.run()))?);
    let promoter = Promoter::new(node);
    workers.push(start_mover("promote".into(), NICE, Box::new(move || promoter.run()))?);
    let syncer = Flusher::new(node);
    workers.push(start_mover("sync".into(), !NICE, Box::new(move || syncer.serve_syncs()))?);
    for number in 0..UNDER_WAY {
        let stager = Stager::new(node, Arc::clone(&requests));
        workers.push(start_mover(
            format!("stage {number}"),
            !NICE,
            Box::new(move || stager.run()),
        )?);
    }
    if let Some(predicting) = Predicting::new(node, &requests) {
        workers.push(start("predict".into(), Box::new(move || predicting.run()))?);
    }
    for number in 0..ORDER_THREADS {
        let thread = OrderThread::new(node, orders);
        workers.push(start_mover(
            format!("stage in {number}"),
            NICE,
            Box::new(move || thread.run()),
        )?);
    }
    for number in 0..DESK_THREADS {
        let thread = DeskThread::new(node, desk, number == 0);
        let name = format!("exchange {number}");
        workers.push(start_mover(name, !NICE, Box::new(move || thread.run()))?);
    }
    let registrar = Registrar::new(node);
    workers.push(start("register".into(), Box::new(move || registrar.run()))?);
    if let Some((strand, desk)) = node.group.leases() {
        let keeper = LeaseKeeper::new(node, desk);
        workers.push(start("leases".into(), Box::new(move || keeper.run(&strand)))?);
    }
    if let Some((desk, measures)) = node.group.asks() {
        let asks = Asks::new(node, desk, measures);
        workers.push(start("asks".into(), Box::new(move || asks.run()))?);
    }
    if let Some((remote, readers)) = Remote::of(node)
        && let Some(strand) = node.group.remote.as_ref().map(RemotePost::strand)
    {
        workers.push(start("remote".into(), Box::new(move || strand.keep(Box::new(remote))))?);
        for reader in readers {
            let name = format!("remote {}", node.tier_name(reader.tier()));
            workers.push(start(name, Box::new(move || reader.run()))?);
        }
    }
    let grower = Grower::new(node, found);
    workers.push(start("grow".into(), Box::new(move || grower.run()))?);
    Ok(workers)
}

/// A stream that becomes readable at SIGTERM, SIGINT or SIGHUP.
pub(super) fn signal_pipe() -> Result<OwnedFd, String> {
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
