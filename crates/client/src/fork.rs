//! What a fork needs before, and in the child after.

use crate::attach::{SLOT_LOOK, SLOT_TIMEOUT, StartError, check_namespace};
use crate::session::Session;
use crate::spawn::Managed;
use core::sync::atomic::Ordering;
use forebay_pool::{Segment, clock, crash, liveness};
use rustix::process::Pid;

/// The number of a child, as it is seen.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// By itself.
    pub own: u32,
    /// By its parent, if the child knows: the same in the same namespace.
    pub parents: Option<u32>,
}

/// A slot prepared for the child of a fork, or of a vfork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Fork {
    slot: u32,
    /// Of the slot, as long as it is for this child.
    pub(crate) generation: u32,
    pub(crate) parent: u32,
    /// Whether the slot holds anything that the parent held.
    inherits: bool,
    /// Before the fork.
    pub(crate) since: liveness::Moment,
}

impl Fork {
    /// What the parent has told of the slot that it has prepared.
    pub(crate) fn told(slot: u32, generation: u32, parent: u32, since_ns: u64) -> Fork {
        let since = liveness::Moment::at_ns(since_ns);
        Fork { slot, generation, parent, inherits: true, since }
    }

    /// What a program is told of `managed`, the descriptors that may be, which a child executes
    /// that has done nothing with its slot.
    pub fn told_of(&self, managed: Managed) -> Managed {
        managed.or_nothing(|| !self.inherits)
    }

    /// The slot that the child has.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// In the child: makes the slot its own.
    ///
    /// # Errors
    /// It must not go on.
    pub(crate) fn confirm(&self, segment: &Segment, number: Number) -> Result<(), StartError> {
        let is_in_namespace = || match number.parents {
            Some(parents) => parents == number.own,
            // In a namespace inside of its parent's, a process does not see the parent.
            None => rustix::process::getppid().map_or(0, Pid::as_raw_pid) as u32 == self.parent,
        };
        if !is_in_namespace() {
            check_namespace(segment)?;
        }
        // Unknown without /proc; the manager will fill it in.
        let pid = number.own;
        let start =
            liveness::started_since(self.since).or_else(|| liveness::start_time(pid)).unwrap_or(0);
        match segment.client(self.slot).confirm(self.generation, pid, start) {
            true => Ok(()),
            false => Err(StartError::Taken),
        }
    }
}

impl Session {
    /// Before the fork: gives the child a slot that holds what this process holds. Where all slots
    /// are in use, waits as long as the node manager is taking back those of ended processes.
    /// `None` when none comes; the fork should fail with EAGAIN.
    pub fn before_fork_in_time(&self) -> Option<Fork> {
        let since = clock::monotonic_ns();
        loop {
            if let Some(fork) = self.before_fork() {
                return Some(fork);
            }
            let is_awaited = self.segment.clients().any_ended()
                && self.segment.manager_is_alive()
                && !self.segment.manager_is_stopped()
                && clock::monotonic_ns().saturating_sub(since) < SLOT_TIMEOUT.as_ns();
            if !is_awaited {
                return None;
            }
            crash::point("fork.waiting");
            clock::sleep_ns(SLOT_LOOK.as_ns());
        }
    }

    /// The same without waiting.
    pub fn before_fork(&self) -> Option<Fork> {
        self.look_ahead();
        let own = self.segment.client(self.slot());
        // One that was cloned unseen has its parent's slot, and lives no longer than that.
        let (pid, start) = (own.pid.load(Ordering::Acquire), own.start.load(Ordering::Acquire));
        if forebay_pool::crash::refused("fork") {
            return None;
        }
        let slot = self.segment.clients().reserve(pid, start)?;
        let inherits = self.segment.inherit(self.slot(), slot);
        let generation = self.segment.client(slot).generation.load(Ordering::Acquire);
        Some(Fork { slot, generation, parent: pid, inherits, since: liveness::Moment::now() })
    }

    /// In the parent: the manager can now see whether the child still lives, should it be killed
    /// before it confirms its slot.
    pub fn fork_succeeded(&self, fork: &Fork, child: u32) {
        crash::point("fork.parent");
        self.segment.client(fork.slot).note_child(fork.generation, child);
    }

    /// In the parent, when the fork failed.
    pub fn fork_failed(&self, fork: Fork) {
        self.segment.cancel_slot(fork.slot);
    }

    /// In the child, which has probably the number `guess`: it goes on with its own slot and its
    /// own link to the manager.
    ///
    /// # Errors
    /// It must not go on.
    pub fn forked(&self, fork: Fork, guess: Option<u32>) -> Result<(), StartError> {
        // Its parent's, where the C library has had no part in the fork.
        let own = guess.filter(|&guess| guess != fork.parent).unwrap_or_else(std::process::id);
        crash::point("fork.child");
        fork.confirm(&self.segment, Number { own, parents: None })?;
        self.set_slot(fork.slot);
        self.end_partings();
        // What other threads opened between the preparation and the fork.
        for file in self.files() {
            self.segment.descriptions().hold(fork.slot, file.description_id());
        }
        crate::fd::forked();
        self.mappings.forked();
        self.hold_mapped(fork.slot);
        self.segment.client(fork.slot).joined();
        self.duplicating.store(0, Ordering::Relaxed);
        self.lending.store(0, Ordering::Relaxed);
        self.manager.forked();
        self.engine.forked();
        self.predictors.forked();
        Ok(())
    }
}
