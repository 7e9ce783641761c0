//! Client slots: whose process is gone is reaped.

use super::intents::finish_truncate;
use super::{Housekeeper, mark_pending_files};
use crate::node::Node;
use crate::observe::mappers;
use forebay_pool::layout::*;
use forebay_pool::lease::Lease;
use forebay_pool::{crash, liveness};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Housekeeper {
    /// Notes which clients do not go on with what they are inside of, so that people can be told of
    /// them: a process may be stopped there, or swapped out.
    pub(super) fn watch_standing(&mut self, now: u32) {
        let clients = self.node.segment.clients();
        self.standing.retain(|&slot, _| clients.taken.has(slot));
        for (slot, client) in clients.used() {
            let inside = client.shared_locks.iter().any(|word| word.load(Ordering::Relaxed) != 0);
            if !inside || client.state.load(Ordering::Acquire) != slot_state::LIVE {
                self.standing.remove(&slot);
                client.standing.store(0, Ordering::Relaxed);
                continue;
            }
            let mut look = std::hash::DefaultHasher::new();
            client.generation.load(Ordering::Relaxed).hash(&mut look);
            client
                .shared_locks
                .iter()
                .for_each(|word| word.load(Ordering::Relaxed).hash(&mut look));
            let counters = client.counters.all();
            counters
                .iter()
                .for_each(|counter| counter.value.load(Ordering::Relaxed).hash(&mut look));
            let look = look.finish();
            match self.standing.insert(slot, (look, now)) {
                Some((before, since)) if before == look => {
                    self.standing.insert(slot, (look, since));
                    client.standing.store(since.max(1), Ordering::Relaxed);
                }
                _ => client.standing.store(0, Ordering::Relaxed),
            }
        }
    }

    pub(super) fn look_at_clients(&mut self) {
        let node = Arc::clone(&self.node);
        let clients = node.segment.clients();
        self.clients.retain(|&slot, _| clients.taken.has(slot));
        self.heirs.retain(|&slot, _| clients.taken.has(slot));
        let mut any_reaped = false;
        for (slot, client) in clients.used() {
            let generation = client.generation.load(Ordering::Acquire);
            any_reaped |= match client.state.load(Ordering::Acquire) {
                slot_state::LIVE => {
                    self.heirs.remove(&slot);
                    let known =
                        self.clients.get(&slot).is_some_and(|(known, _)| *known == generation);
                    let alive = if known { self.still_runs(slot) } else { self.watch(slot) };
                    !alive && self.reap(slot)
                }
                slot_state::RESERVED => self.look_at_reserved(slot),
                slot_state::REAPING => self.reap(slot),
                _ => {
                    self.clients.remove(&slot);
                    self.heirs.remove(&slot);
                    false
                }
            }
        }
        // Once for all of them: a script starts a thousand programs a second.
        if any_reaped {
            commit_files(&node);
            node.want_work();
        }
    }

    /// A child whose parent is gone may still be about to confirm its slot, however long it is
    /// stopped before. Returns whether it was reaped.
    fn look_at_reserved(&mut self, slot: u32) -> bool {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let client = segment.client(slot);
        let (pid, start) =
            (client.pid.load(Ordering::Acquire), client.start.load(Ordering::Acquire));
        let is_wanted = match segment.client(slot).child() {
            None => liveness::is_alive(pid, start) || self.has_heir(slot, pid),
            Some(child) => liveness::is_alive(child, 0),
        };
        !is_wanted && segment.client(slot).take_unconfirmed() && self.reap(slot)
    }

    /// Whether a process lives that may have to confirm `slot`, reserved by process `parent` that
    /// is gone: it has the segment and our library mapped, or may have, no slot of its own, and did
    /// not begin before its parent. A process that was about to name itself (`parent` is 0) may
    /// have one, for itself. Where /proc does not tell, there may be one.
    pub(super) fn has_heir(&mut self, slot: u32, parent: u32) -> bool {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let begun = segment.client(slot).start.load(Ordering::Acquire);
        let may_be = |pid: u32| match liveness::start_time(pid) {
            None => false,
            Some(start) => {
                parent == 0 || start >= begun && segment.clients().slot_of(pid, start).is_none()
            }
        };
        if self.heirs.get(&slot).is_some_and(|&pid| may_be(pid)) {
            return true;
        }
        let Ok(mut processes) = mappers::of(&node.pool_file, segment.header().segment_bytes) else {
            return true;
        };
        let found = processes.find(|&pid| may_be(pid));
        if let Some(pid) = found {
            self.heirs.insert(slot, pid);
        }
        found.is_some()
    }

    pub(super) fn watch(&mut self, slot: u32) -> bool {
        let client = self.node.segment.client(slot);
        let pid = client.pid.load(Ordering::Acquire);
        if client.start.load(Ordering::Acquire) == 0 {
            // Forked where it has no /proc to look at.
            client.start.store(liveness::start_time(pid).unwrap_or(0), Ordering::Release);
        }
        let start = client.start.load(Ordering::Acquire);
        let opened = Pid::from_raw(pid as i32)
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match opened {
            Ok(pidfd) if liveness::is_alive(pid, start) => {
                let generation = client.generation.load(Ordering::Acquire);
                self.clients.insert(slot, (generation, pidfd));
                true
            }
            Ok(_) | Err(Errno::SRCH) => false,
            // No pidfd to be had: ask /proc at every round.
            Err(_) => liveness::is_alive(pid, start),
        }
    }

    pub(super) fn still_runs(&self, slot: u32) -> bool {
        let Some((_, pidfd)) = self.clients.get(&slot) else { return false };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
    }

    /// Takes back what the dead process of `slot` had. False if some of it is still to be taken
    /// back, in a later round: what it takes is held by a process that does not go on.
    fn reap(&mut self, slot: u32) -> bool {
        let node = Arc::clone(&self.node);
        let mut unfinished = Vec::new();
        let inside = node.segment.reap_slot(slot, |file, owner| unfinished.push((file, owner)));
        for (file, owner) in unfinished {
            finish_truncate(&node, file, owner);
        }
        let Some(inside) = inside else { return false };
        self.clients.remove(&slot);
        self.heirs.remove(&slot);
        crash::point("housekeeping.reaped");
        if inside {
            mark_pending_files(&node);
        }
        true
    }
}

/// What a process has written to files under commit, and has not closed, is brought to the store
/// when it has gone and no other one writes them: the end of a process closes its files.
fn commit_files(node: &Node) {
    let segment = &node.segment;
    for file in segment.files().touched() {
        let record = segment.file(file);
        let is_left = record.lease.load().held() == Lease::Commit
            && record.has(FileFlags::METADATA_DIRTY)
            && node.is_pending(file)
            && !segment.descriptions().is_open_for_writing(file);
        if is_left {
            segment.request_sync(file, None, false);
        }
    }
}
