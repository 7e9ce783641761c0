//! The shared and the exclusive lock of a file, and of the table: which threads are inside, and
//! which wait until all others have left.
//!
//! They are in client slots and in the record of the file, and know no segment: see
//! docs/design/views.md.

use crate::FileId;
use crate::backoff::Backoff;
use crate::clients::Clients;
use crate::crash;
use crate::file_guards::{ExclusiveGuard, SharedGuard};
use crate::interruption;
use crate::layout::{ClientSlot, FileRecord, LockScope, SHARED_LOCKS, SharedLock};
use crate::owner::Owner;
use crate::ranks::{self, Rank};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::convert::Infallible;

/// How often a thread that does not wait for a file looks whether those inside leave it.
const LOOKS: u32 = 140;

#[inline]
fn take_place(place: &AtomicU64, word: u64) -> bool {
    place.load(Ordering::Relaxed) == 0
        && place.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// A shared lock for a thread whose first choice is taken, or that may have one: the place, `None`
/// if it needs none, and what to put back. A thread that has one already waits for no other, as
/// the [order of locks](crate::ranks) has no second file under a file: else as many threads as
/// there are words could all wait for their second.
#[cold]
fn claim_other(slot: &ClientSlot, owner: Owner, scope: LockScope) -> (Option<&AtomicU64>, u64) {
    let places = || {
        (0..SHARED_LOCKS).map(|n| &slot.shared_locks[(owner.thread() as usize + n) % SHARED_LOCKS])
    };
    let word = SharedLock { thread: owner.thread(), scope }.encode();
    let mine = places().find_map(|place| {
        let held = place.load(Ordering::Relaxed);
        let seen = SharedLock::decode(held)?;
        (seen.thread == owner.thread()).then_some((place, held, seen.scope))
    });
    match mine {
        Some((_, _, outer)) if outer.covers(scope) => return (None, 0),
        Some((place, held, outer)) if scope.covers(outer) => {
            place.swap(word, Ordering::SeqCst);
            return (Some(place), held);
        }
        _ => {}
    }
    let mut backoff = Backoff::default();
    loop {
        if let Some(place) = places().find(|place| take_place(place, word)) {
            return (Some(place), 0);
        }
        if backoff.wait() {
            interruption::run_held_off();
        }
    }
}

/// Notes for the [order of locks](crate::ranks) that the calling thread's word `place` is of
/// `scope`, which is the table, or a file that another may have `exclusive`ly.
#[inline(always)]
fn note_claim(owner: Owner, scope: LockScope, exclusive: Option<&AtomicU32>, place: &AtomicU64) {
    #[cfg(debug_assertions)]
    {
        let rank = scope.rank();
        // A file that the thread has exclusively is not waited for.
        let is_own = |word: &AtomicU32| word.load(Ordering::Relaxed) == owner.raw();
        if !exclusive.is_some_and(is_own) {
            ranks::waiting(rank, owner, place);
        }
        ranks::taken(rank, owner, place);
    }
    #[cfg(not(debug_assertions))]
    let _ = (owner, scope, exclusive, place);
}

/// What a word of shared locks says, if that is that its thread is inside `file`.
fn of_inside(place: &AtomicU64, file: FileId) -> Option<SharedLock> {
    let word = place.load(Ordering::SeqCst);
    SharedLock::is_of(word, LockScope::file(file)).then(|| SharedLock::decode(word))?
}

impl ClientSlot {
    /// Enters the file table, or goes beside a file, for `owner`, a thread of this slot.
    pub(crate) fn enter(&self, owner: Owner, scope: LockScope) -> SharedGuard<'_> {
        self.claim_shared(owner, scope, None)
    }

    /// Enters `file` for `owner`, a thread of this slot; refused with the owner that has it
    /// exclusively.
    #[inline]
    pub(crate) fn try_enter(
        &self,
        file: FileId,
        record: &FileRecord,
        owner: Owner,
    ) -> Result<SharedGuard<'_>, Owner> {
        let inside = self.claim_shared(owner, LockScope::file(file), Some(&record.exclusive));
        match Owner::from_raw(record.exclusive.load(Ordering::SeqCst)) {
            // A thread that is inside already is waited for.
            Some(holder) if holder != owner && inside.place.is_some() => Err(holder),
            _ => Ok(inside),
        }
    }

    #[inline]
    fn claim_shared(
        &self,
        owner: Owner,
        scope: LockScope,
        exclusive: Option<&AtomicU32>,
    ) -> SharedGuard<'_> {
        let word = SharedLock { thread: owner.thread(), scope }.encode();
        let thread = interruption::enter();
        let first = &self.shared_locks[owner.thread() as usize % SHARED_LOCKS];
        // SAFETY: from `enter`, on this thread.
        let is_nested = unsafe { (*thread).is_nested() };
        // One that has a shared lock in another word must not get a second one in its first choice
        // because that is free by now: it would wait for those that wait for it.
        let (place, before) = match !is_nested && take_place(first, word) {
            true => (Some(first), 0),
            false => claim_other(self, owner, scope),
        };
        if let Some(place) = place {
            note_claim(owner, scope, exclusive, place);
        }
        SharedGuard { place, before, thread }
    }

    /// Waits until each other thread than `owner`'s that may use a descriptor of `file` has left it
    /// since. False if that takes more than a moment, and a signal handler waits for this thread.
    pub(crate) fn wait_for_users(&self, file: FileId, owner: Owner) -> bool {
        for place in &self.shared_locks {
            let uses = || {
                SharedLock::decode(place.load(Ordering::SeqCst))
                    .is_some_and(|seen| seen.thread != owner.thread() && seen.scope.uses(file))
            };
            let mut backoff = Backoff::default();
            while uses() {
                backoff.wait();
                if backoff.is_spent() && interruption::is_held_off() {
                    return false;
                }
            }
        }
        true
    }

    /// Whether some thread of it is inside `file`.
    fn is_inside_of(&self, file: FileId) -> bool {
        let scope = LockScope::file(file);
        self.shared_locks.iter().any(|place| SharedLock::is_of(place.load(Ordering::SeqCst), scope))
    }
}

impl SharedGuard<'_> {
    /// Leaves `file` for a moment, but stays beside it: the caller may hold a lock.
    pub(crate) fn step_out(&self, file: FileId, owner: Owner) {
        if let Some(place) = self.place {
            let beside = SharedLock { thread: owner.thread(), scope: LockScope::beside(file) };
            place.store(beside.encode(), Ordering::Release);
            ranks::becomes(Rank::Table, place);
        }
    }

    /// Enters the file again that [`SharedGuard::step_out`] has left.
    ///
    /// # Errors
    /// The owner that holds the file.
    pub(crate) fn try_step_in(
        &self,
        file: FileId,
        record: &FileRecord,
        owner: Owner,
    ) -> Result<(), Owner> {
        let Some(place) = self.place else { return Ok(()) };
        let scope = LockScope::file(file);
        let word = SharedLock { thread: owner.thread(), scope }.encode();
        place.swap(word, Ordering::SeqCst);
        note_claim(owner, scope, Some(&record.exclusive), place);
        match Owner::from_raw(record.exclusive.load(Ordering::SeqCst)) {
            Some(holder) if holder != owner => {
                self.step_out(file, owner);
                Err(holder)
            }
            _ => Ok(()),
        }
    }
}

impl Clients<'_> {
    /// Takes `file` for `owner` alone and waits until no other thread is inside it. `look` is asked
    /// now and then whether the wait for a thread goes on.
    ///
    /// # Errors
    /// Those of `look`. Others may enter the file then.
    pub(crate) fn lock_exclusive<'r, E>(
        self,
        file: FileId,
        record: &'r FileRecord,
        owner: Owner,
        look: impl Fn(Owner, &Backoff) -> Result<(), E>,
    ) -> Result<ExclusiveGuard<'r>, E> {
        ranks::waiting(Rank::Exclusive, owner, &record.exclusive);
        let mut backoff = Backoff::default();
        // What a dead owner left undone is not to be seen by others, however long that takes.
        let mut was_free = true;
        loop {
            match record.exclusive_exchange(0, owner).err().and_then(Owner::from_raw) {
                None => break,
                Some(holder) if holder == owner => return Ok(ExclusiveGuard::of(record, None)),
                Some(holder) => {
                    if backoff.wait() {
                        if self.is_dead(holder)
                            && record.exclusive_exchange(holder.raw(), owner).is_ok()
                        {
                            was_free = false;
                            break;
                        }
                        look(holder, &backoff)?;
                    }
                }
            }
        }
        let exclusive = ExclusiveGuard::of(record, Some(owner));
        crash::point("file.exclusive-waiting");
        if was_free {
            self.wait_for_others(file, owner, look)?;
        } else {
            let Ok(()) = self.wait_for_others(file, owner, |_, _| Ok::<(), Infallible>(()));
        }
        crash::point("file.exclusive");
        Ok(exclusive)
    }

    /// Like [`Clients::lock_exclusive`], but gives up, and lets others in again, when the file is
    /// held or another thread stays inside for more than a moment.
    pub(crate) fn try_lock_exclusive<'r>(
        self,
        file: FileId,
        record: &'r FileRecord,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'r>> {
        ranks::waiting(Rank::Exclusive, owner, &record.exclusive);
        record.exclusive_exchange(0, owner).ok()?;
        let exclusive = ExclusiveGuard::of(record, Some(owner));
        for (_, slot) in self.all_used() {
            let (mut backoff, mut looks) = (Backoff::default(), 0);
            while slot.is_inside_of(file) {
                if looks == LOOKS {
                    return None;
                }
                looks += 1;
                backoff.wait();
            }
        }
        Some(exclusive)
    }

    fn wait_for_others<E>(
        self,
        file: FileId,
        owner: Owner,
        look: impl Fn(Owner, &Backoff) -> Result<(), E>,
    ) -> Result<(), E> {
        for (number, slot) in self.all_used().filter(|(_, slot)| slot.is_inside_of(file)) {
            let other = Owner::new(number, 0);
            for place in &slot.shared_locks {
                let mut backoff = Backoff::default();
                while let Some(seen) = of_inside(place, file) {
                    if number == owner.slot() && seen.thread == owner.thread() {
                        break;
                    }
                    if backoff.wait() {
                        if self.is_dead(other) {
                            break;
                        }
                        look(other, &backoff)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether some thread may go on reading what it has found of `file`: it is inside, or has the
    /// file to itself.
    pub(crate) fn may_be_reading(self, file: FileId, record: &FileRecord) -> bool {
        record.exclusive.load(Ordering::SeqCst) != 0
            || self.all_used().any(|(_, slot)| slot.is_inside_of(file))
    }

    /// Whether a process that is stopped has `file` to itself, or has a thread inside it.
    pub(crate) fn is_held_by_stopped(self, file: FileId, record: &FileRecord) -> bool {
        let exclusive = Owner::from_raw(record.exclusive.load(Ordering::SeqCst));
        let inside = |(_, slot): &(u32, &ClientSlot)| slot.is_inside_of(file);
        exclusive.is_some_and(|holder| self.is_stopped(holder))
            || self.all_used().filter(inside).any(|(slot, _)| self.is_stopped(Owner::new(slot, 0)))
    }
}

impl FileRecord {
    /// Lets `to` have the file exclusively, if the word says `from`.
    pub(crate) fn exclusive_exchange(&self, from: u32, to: Owner) -> Result<u32, u32> {
        let place = &self.exclusive;
        place.compare_exchange(from, to.raw(), Ordering::SeqCst, Ordering::Relaxed)
    }
}
