//! The client slots: claimed by processes, handed to forked children, and which of the processes
//! that have them live.
//!
//! They are slices, and know no segment: see docs/design/views.md.

use crate::crash;
use crate::layout::{ClientSlot, LockScope, SharedLock, UNRECORDED, slot_state};
use crate::liveness;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::slot_bits::SlotBits;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Process numbers are below 2^22 (Linux's PID_MAX_LIMIT); beside a child's stand the lower bits of
/// the generation of the slot that is for it.
const PID_BITS: u32 = 22;
const PID_MASK: u32 = (1 << PID_BITS) - 1;

/// The processes that use a pool, as slices of shared memory. All threads of all processes may use
/// them at once.
#[derive(Clone, Copy)]
pub struct Clients<'a> {
    /// The slots; the first is the node manager's.
    pub slots: &'a [ClientSlot],
    /// Which of them processes have.
    pub taken: SlotBits<'a>,
    /// The process of the node manager, 0 if there is none, and when it started.
    pub manager: (&'a AtomicU32, &'a AtomicU64),
    /// Which of the managers that came one after the other it is.
    pub manager_epoch: &'a AtomicU32,
    /// How often processes noted that they use files of each number without a record.
    pub unrecorded: &'a [AtomicU32; UNRECORDED],
}

impl ClientSlot {
    /// Counts an open that the slot's process is about to begin, until [`ClientSlot::end_open`].
    #[inline]
    pub fn begin_open(&self) {
        self.opening.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends an open: it has failed, or the file's description is live.
    #[inline]
    pub fn end_open(&self) {
        self.opening.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes that its process holds all descriptions of which it has descriptors.
    pub fn joined(&self) {
        self.joining.store(0, Ordering::SeqCst);
    }

    /// Whether some thread of its process has a shared lock.
    pub fn is_inside(&self) -> bool {
        self.shared_locks.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Lets the process that reaps the slot look for what it holds.
    pub fn seem_inside(&self) {
        let word = SharedLock { thread: 1, scope: LockScope::TABLE }.encode();
        self.shared_locks[0].store(word, Ordering::SeqCst);
    }

    /// Whether its process still runs.
    pub fn lives(&self) -> bool {
        let (pid, start) = (self.pid.load(Ordering::Acquire), self.start.load(Ordering::Acquire));
        liveness::is_alive(pid, start)
    }

    /// Notes, for the parent that has reserved the slot in its `generation`, which child it is for.
    /// The child may have had it, and died, and the slot be another's.
    pub fn note_child(&self, generation: u32, child: u32) {
        let word = generation << PID_BITS | child & PID_MASK;
        self.child.store(word, Ordering::Release);
    }

    /// The child that the slot, a reserved one, is for, if the parent has named one.
    pub fn child(&self) -> Option<u32> {
        let word = self.child.load(Ordering::Acquire);
        let generation = self.generation.load(Ordering::Acquire);
        let is_of_now = word >> PID_BITS == generation << PID_BITS >> PID_BITS;
        (is_of_now && word & PID_MASK != 0).then_some(word & PID_MASK)
    }

    /// Makes the slot, a reserved one, that of process `pid`. False if it is not the one any more
    /// that was reserved when it had `generation`: it was taken for that of a process that is dead.
    pub fn confirm(&self, generation: u32, pid: u32, start: u64) -> bool {
        let is_ours = self.state.load(Ordering::SeqCst) == slot_state::RESERVED
            && self.generation.load(Ordering::SeqCst) == generation;
        if !is_ours {
            return false;
        }
        // First, so that the manager knows which process lives.
        self.note_child(generation, pid);
        self.pid.store(pid, Ordering::Release);
        self.start.store(start, Ordering::Release);
        self.leaves(slot_state::RESERVED, slot_state::LIVE)
    }

    /// Takes the slot, a reserved one, away from a child that was never there, or is dead: to be
    /// reaped. False if it was confirmed meanwhile.
    pub fn take_unconfirmed(&self) -> bool {
        self.leaves(slot_state::RESERVED, slot_state::REAPING)
    }

    fn leaves(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Frees the slot, of which nothing is held. The process that reserves it next must not be
    /// taken for the process that had it, nor for one whose child that was for.
    fn vacate(&self) {
        self.pid.store(0, Ordering::Release);
        self.child.store(0, Ordering::Release);
        self.unrecorded.store(0, Ordering::SeqCst);
        self.mpi_job.store(0, Ordering::SeqCst);
        self.joining.store(0, Ordering::SeqCst);
        // A parent may still be about to name its child, which is gone.
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.state.store(slot_state::FREE, Ordering::Release);
    }
}

impl<'a> Clients<'a> {
    /// Slot `slot`; slots beyond the last read as the manager's.
    #[inline]
    pub fn get(self, slot: u32) -> &'a ClientSlot {
        self.slots.get(slot as usize).unwrap_or(&self.slots[MANAGER_SLOT as usize])
    }

    /// The slots of programs that may live, or that are still to be reaped, with their numbers. One
    /// that becomes free meanwhile may be among them.
    pub fn used(self) -> impl Iterator<Item = (u32, &'a ClientSlot)> {
        self.taken.iter().map(move |slot| (slot, self.get(slot)))
    }

    /// The same, but for those that are free.
    pub fn taken(self) -> impl Iterator<Item = (u32, &'a ClientSlot)> {
        self.used().filter(|(_, slot)| slot.state.load(Ordering::SeqCst) != slot_state::FREE)
    }

    /// The same, and the manager's.
    pub(crate) fn all_used(self) -> impl Iterator<Item = (u32, &'a ClientSlot)> {
        core::iter::once((MANAGER_SLOT, self.get(MANAGER_SLOT))).chain(self.used())
    }

    /// Sees to it that each slot that is not free has its bit: a process that was killed while it
    /// took one may have left it without. For the node manager.
    pub fn note_taken(self) {
        for (slot, client) in (0u32..).zip(self.slots).skip(1) {
            let is_free = client.state.load(Ordering::SeqCst) == slot_state::FREE;
            if !is_free && !self.taken.has(slot) {
                self.taken.set(slot);
            }
        }
    }

    /// Frees `slot`, of which nothing is held.
    pub(crate) fn vacate(self, slot: u32) {
        self.taken.clear(slot);
        crash::point("slot.unnoted");
        self.get(slot).vacate();
    }

    /// Claims a slot for process `pid` that started at `start`. `None` when all are in use.
    pub fn claim(self, pid: u32, start: u64) -> Option<u32> {
        if crash::refused("client") {
            return None;
        }
        let slot = self.reserve(pid, start)?;
        self.get(slot).state.store(slot_state::LIVE, Ordering::Release);
        Some(slot)
    }

    /// Takes a slot for a child about to be forked by `pid`. Until the child confirms with
    /// [`ClientSlot::confirm`], the slot lives as long as its parent, or as the child.
    pub fn reserve(self, pid: u32, start: u64) -> Option<u32> {
        for (slot, client) in (0u32..).zip(self.slots).skip(1) {
            let (from, to) = (slot_state::FREE, slot_state::RESERVED);
            let state = &client.state;
            if state.load(Ordering::Relaxed) != from
                || state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                continue;
            }
            crash::point("slot.reserved");
            self.taken.set(slot);
            // The start before the process: with that of an earlier one it would be taken for dead.
            client.start.store(start, Ordering::Release);
            client.pid.store(pid, Ordering::SeqCst);
            client.job.store(0, Ordering::Release);
            client.unrecorded.store(0, Ordering::SeqCst);
            client.told.store(0, Ordering::SeqCst);
            client.mpi_job.store(0, Ordering::SeqCst);
            client.generation.fetch_add(1, Ordering::AcqRel);
            // Different clients start their searches in different places.
            client.bucket_hint.store(slot.wrapping_mul(37), Ordering::Relaxed);
            return Some(slot);
        }
        None
    }

    /// Lets the process of `child` use without records what that of `parent` does, and belong to
    /// the job that it belongs to.
    pub(crate) fn inherit(self, parent: u32, child: u32) {
        let (parent, child) = (self.get(parent), self.get(child));
        child.unrecorded.fetch_or(parent.unrecorded.load(Ordering::SeqCst), Ordering::SeqCst);
        child.job.store(parent.job.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// The processes that have opens under way. A file without a description may still be read by
    /// one: it may have the file open, as far as the kernel knows, and not have come to its record,
    /// and the file have lost its name meanwhile. When it was seen to have no name, and after that
    /// there is no opener, no process will come to have it open.
    pub fn openers(self) -> impl Iterator<Item = u32> {
        let opens = |(_, slot): &(u32, &ClientSlot)| slot.opening.load(Ordering::SeqCst) != 0;
        self.taken().filter(opens).map(|(_, slot)| slot.pid.load(Ordering::Acquire))
    }

    /// The live slot of process `pid`, if it has one: an exec keeps the process and its slot.
    pub fn slot_of(self, pid: u32, start: u64) -> Option<u32> {
        let is_its = |client: &ClientSlot| {
            client.state.load(Ordering::Acquire) == slot_state::LIVE
                && client.pid.load(Ordering::Acquire) == pid
                && client.start.load(Ordering::Acquire) == start
        };
        self.used().find(|(_, client)| is_its(client)).map(|(slot, _)| slot)
    }

    /// Whether any process of job `number` lives.
    pub fn has_of_job(self, number: u32) -> bool {
        self.taken().any(|(_, slot)| slot.job.load(Ordering::SeqCst) == number)
    }

    /// Whether some slot is free, or that of a process that has ended.
    pub fn any_ended(self) -> bool {
        let is_free = |slot: &ClientSlot| slot.state.load(Ordering::SeqCst) == slot_state::FREE;
        self.slots.iter().skip(1).any(|slot| is_free(slot) || !slot.lives())
    }

    /// Whether a program may be at work.
    pub fn any_lives(self) -> bool {
        self.taken().any(|(_, slot)| slot.lives())
    }

    /// Whether a node manager serves the pool.
    pub fn manager_is_alive(self) -> bool {
        let (pid, start) = self.manager;
        let pid = pid.load(Ordering::Acquire);
        pid != 0 && liveness::is_alive(pid, start.load(Ordering::Acquire))
    }

    /// Whether the process behind `owner` is gone for certain.
    pub fn is_dead(self, owner: Owner) -> bool {
        if owner.slot() == MANAGER_SLOT {
            return !self.manager_is_alive();
        }
        let Some(slot) = self.slots.get(owner.slot() as usize) else { return true };
        match slot.state.load(Ordering::Acquire) {
            slot_state::LIVE => !slot.lives(),
            // A reserved slot's child holds nothing yet.
            slot_state::RESERVED => false,
            // Its locks are being freed, unless the manager died over that.
            slot_state::REAPING => !self.manager_is_alive(),
            _ => true,
        }
    }

    /// Whether `holder` is dead, and the manager is taking back what it held.
    pub fn is_being_reaped(self, holder: Owner) -> bool {
        let slot = self.slots.get(holder.slot() as usize);
        holder.slot() != MANAGER_SLOT
            && slot.is_some_and(|slot| slot.state.load(Ordering::Acquire) == slot_state::REAPING)
    }

    /// Whether the process of `holder` is stopped.
    pub fn is_stopped(self, holder: Owner) -> bool {
        liveness::is_stopped(match holder.slot() {
            MANAGER_SLOT => self.manager.0.load(Ordering::Acquire),
            slot => self.get(slot).pid.load(Ordering::Acquire),
        })
    }

    /// Which of the processes that had `owner`'s slot one after the other has it now.
    pub(crate) fn generation(self, owner: Owner) -> u32 {
        match owner.slot() {
            MANAGER_SLOT => self.manager_epoch.load(Ordering::SeqCst),
            slot => self.get(slot).generation.load(Ordering::SeqCst),
        }
    }
}
