//! What the manager looks after between requests: dead clients, descriptions that no process holds,
//! files that no process has open, index nodes below which nothing is left.

mod aside;
mod clients;
mod files;
mod intents;
mod tiers;

pub(crate) use intents::{complete_intent, finish_truncate};

use crate::manager::small_files::SmallFilesWatch;
use crate::node::Node;
use aside::Aside;
use files::{Awaited, Doubted, Expected};
use forebay_pool::clock::Timer;
use forebay_pool::layout::*;
use forebay_pool::{Owner, crash, liveness};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
/// How often descriptions and records are swept.
const SWEEP: Timer = Timer::ms(200);
/// How often the totals of what moved are kept, for rates.
const SAMPLE: Timer = Timer::seconds(1);
/// How often a process's use of one and the same bucket counts anew.
const SAME_USE: Timer = Timer::seconds(1);
/// How often the store is asked whether another program has deleted what is not yet flushed: about
/// once before a flush. Names that our programs remove are noted.
const NAMES: Timer = Timer::seconds(1);
/// The manager's watch over clients and tables.
pub(crate) struct Housekeeper {
    node: Arc<Node>,
    owner: Owner,
    /// A pidfd of each live slot, with the slot's generation.
    clients: HashMap<u32, (u32, OwnedFd)>,
    /// Of reserved slots whose parent is gone: a process that may be about to confirm it.
    heirs: HashMap<u32, u32>,
    /// Of each client that was inside something at the last sweep: what it looked like, and since
    /// when.
    standing: HashMap<u32, (u64, u32)>,
    /// Of each tier that takes nothing: when it is tried again, or was noticed.
    failed: HashMap<TierId, u32>,
    last_sweep: u32,
    /// When the totals of what moved were kept last.
    sampled: u32,
    /// When the store was last asked whether closed files have lost their names, and whether the
    /// sweep under way asks.
    names_asked: u32,
    /// When uses of one bucket in a row ended last.
    uses_ended: u32,
    asks_for_names: bool,
    /// Descriptions that were not free at the last sweep.
    used: u32,
    /// Whether there were many records when all had been looked at last.
    crowded: bool,
    /// Of the records that are looked at in turn, the next one, and how many were in use so far.
    next: u32,
    counted: usize,
    /// Of the records whose index nodes are freed when these are scarce, the next one.
    next_pruned: u32,
    /// Opens that had found no free record when all were looked at last, and when that was.
    refused: (u32, u32),
    /// Of the last sweep.
    awaited: Awaited,
    doubted: RefCell<Doubted>,
    expected: RefCell<Expected>,
    aside: RefCell<Aside>,
    small_files: SmallFilesWatch,
    /// The manager is about to end.
    pub ends: bool,
}

impl Housekeeper {
    pub fn new(node: &Arc<Node>) -> Housekeeper {
        Housekeeper {
            node: Arc::clone(node),
            owner: Node::new_owner(),
            clients: HashMap::new(),
            heirs: HashMap::new(),
            standing: HashMap::new(),
            failed: HashMap::new(),
            // Long ago, on a clock that wraps: zero might be in the future.
            last_sweep: node.now().wrapping_sub(1_000),
            sampled: node.now().wrapping_sub(60_000),
            names_asked: node.now(),
            uses_ended: node.now(),
            asks_for_names: false,
            used: 0,
            crowded: false,
            next: 0,
            counted: 0,
            next_pruned: 0,
            refused: (0, node.now().wrapping_sub(60_000)),
            awaited: Awaited::default(),
            doubted: RefCell::default(),
            expected: RefCell::default(),
            aside: RefCell::default(),
            small_files: SmallFilesWatch::of(node),
            ends: false,
        }
    }

    /// Descriptors that become readable when a client dies.
    pub fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.clients
            .values()
            .map(|(_, pidfd)| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN))
    }

    /// Whether nothing has to be looked at in the next rounds: whatever ends tells us so.
    pub fn has_nothing_to_do(&self) -> bool {
        let clients = self.node.segment.clients();
        let is_watched = |slot: u32, client: &ClientSlot| match client.state.load(Ordering::Acquire)
        {
            slot_state::FREE => true,
            slot_state::LIVE => self
                .clients
                .get(&slot)
                .is_some_and(|(known, _)| *known == client.generation.load(Ordering::Acquire)),
            _ => false,
        };
        self.standing.is_empty()
            && self.failed.is_empty()
            && self.awaited.is_empty()
            && self.heirs.is_empty()
            && !self.node.descriptors.are_shared()
            && clients.used().all(|(slot, client)| is_watched(slot, client))
    }

    /// Lets the next use of the bucket that a process has used last count as another one.
    fn end_uses(&self) {
        for (_, client) in self.node.segment.clients().used() {
            if client.last_bucket.load(Ordering::Relaxed) != 0 {
                client.last_bucket.store(0, Ordering::Relaxed);
            }
        }
    }

    /// One round; with a sweep of records, if one `sweeps` now or the last one is long ago.
    pub fn look_around(&mut self, sweeps: bool) {
        self.look_at_clients();
        self.node.descriptors.end_locks(&self.node.segment);
        crate::manager::jobs::look_at_jobs(&self.node, self.owner);
        let now = self.node.now();
        self.node.header().now_ms.store(now, Ordering::Relaxed);
        if forebay_pool::clock::stamp_age(now, self.sampled) >= SAMPLE.as_stamp() {
            self.sampled = now;
            self.node.segment.sample(forebay_pool::clock::monotonic_ns());
        }
        self.small_files.look(&self.node, now);
        if sweeps || forebay_pool::clock::stamp_age(now, self.last_sweep) >= SWEEP.as_stamp() {
            self.last_sweep = now;
            let asked_for = forebay_pool::clock::stamp_age(now, self.names_asked);
            self.asks_for_names = asked_for >= NAMES.as_stamp();
            if self.asks_for_names {
                self.names_asked = now;
            }
            if forebay_pool::clock::stamp_age(now, self.uses_ended) >= SAME_USE.as_stamp() {
                self.uses_ended = now;
                self.end_uses();
            }
            self.node.segment.clients().note_taken();
            self.watch_standing(now);
            self.look_at_tiers(now);
            self.sweep(now);
        }
    }
}

/// Marks every file with dirty blocks as such: a process that died inside a write may not have come
/// to it. Those of which nothing is dirty, and which are ahead of the store all the same, are
/// brought to an end.
pub(crate) fn mark_pending_files(node: &Node) {
    for file in node.segment.files().touched() {
        let record = node.segment.file(file);
        if !record.has(FileFlags::DIRTY | FileFlags::METADATA_DIRTY) && node.is_pending(file) {
            record.set(FileFlags::METADATA_DIRTY);
            crash::point("pending.ahead");
            record.set(FileFlags::DIRTY);
        }
        if record.has(FileFlags::METADATA_DIRTY) && !node.is_pending(file) {
            node.segment.request_sync(file, None, false);
        }
    }
}

/// Whether the store's file of some file that is being brought to an end has what a dead process
/// left there.
pub(crate) fn is_any_littered(node: &Node) -> bool {
    let is_left = |place: &AtomicU32| place.load(Ordering::Acquire) == LENGTHENER_LEFT;
    node.segment.files().touched().any(|file| {
        let record = node.segment.file(file);
        record.lengtheners.iter().any(is_left)
            && record.has(FileFlags::METADATA_DIRTY)
            && record.awaits_sync()
    })
}

/// Whether an error says that a device has no room.
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// Whether the manager has anything that some process may still want.
pub(crate) fn is_idle(node: &Node) -> bool {
    let segment = &node.segment;
    segment.clients().taken().next().is_none() && !node.has_actions_left()
}

/// Whether a process lives that uses the segment, and not only the slots of some are still to be
/// freed.
pub(crate) fn has_living(node: &Node) -> bool {
    let segment = &node.segment;
    segment.clients().used().any(|(_, client)| {
        let (pid, start) =
            (client.pid.load(Ordering::Acquire), client.start.load(Ordering::Acquire));
        let may_live = |child| liveness::is_alive(child, 0);
        match client.state.load(Ordering::Acquire) {
            slot_state::FREE => false,
            // Looked at in each round, and reaped unless the child may live.
            slot_state::RESERVED if client.child().is_none_or(may_live) => true,
            _ => liveness::is_alive(pid, start),
        }
    })
}
