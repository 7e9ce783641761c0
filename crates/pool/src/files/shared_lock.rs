//! The shared and the exclusive lock of a file, and of the table: who is inside, and who waits
//! until all others have left.

use crate::FileId;
use crate::backoff::Backoff;
use crate::crash;
use crate::guards::{ExclusiveGuard, SharedGuard};
use crate::interruption;
use crate::layout::*;
use crate::owner::Owner;
use crate::ranks::{self, Rank};
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use rustix::io::Errno;

#[inline]
fn take_place(place: &AtomicU64, word: u64) -> bool {
    place.load(Ordering::Relaxed) == 0
        && place.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// A shared lock for a thread whose first choice is taken, or that may have one: the place, `None`
/// if it needs none, and what to put back. A thread that has one already waits for no other, unless
/// it is in two files: else as many threads as there are words could all wait for their second.
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

impl Segment {
    /// Enters the file table: every lock is held under some shared lock.
    pub fn enter_table(&self, owner: Owner) -> SharedGuard<'_> {
        self.claim_shared(owner, LockScope::TABLE)
    }

    /// Enters the file table with a descriptor of `file`: see [`Segment::wait_for_users`].
    pub fn enter_beside(&self, file: FileId, owner: Owner) -> SharedGuard<'_> {
        self.claim_shared(owner, LockScope::beside(file))
    }

    /// Waits until each other thread of `owner`'s process that may use a descriptor of `file` has
    /// left it since. The caller has taken the descriptor out of its table before, and a thread
    /// that enters looks there afterwards. False if that takes more than a moment, and a signal
    /// handler waits for this thread.
    pub fn wait_for_users(&self, file: FileId, owner: Owner) -> bool {
        for place in &self.client(owner.slot()).shared_locks {
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

    /// Enters `file`; refused with the owner that has it exclusively.
    ///
    /// # Errors
    /// The owner that holds the file.
    #[inline]
    pub fn try_enter(&self, file: FileId, owner: Owner) -> Result<SharedGuard<'_>, Owner> {
        self.try_enter_record(file, self.file(file), owner)
    }

    /// [`Segment::try_enter`] of a file of which the caller has looked up the record.
    ///
    /// # Errors
    /// The owner that holds the file.
    #[inline]
    pub fn try_enter_record(
        &self,
        file: FileId,
        record: &FileRecord,
        owner: Owner,
    ) -> Result<SharedGuard<'_>, Owner> {
        let inside = self.claim_shared(owner, LockScope::file(file));
        match Owner::from_raw(record.exclusive.load(Ordering::SeqCst)) {
            // Who is inside already is waited for.
            Some(holder) if holder != owner && inside.place.is_some() => Err(holder),
            _ => Ok(inside),
        }
    }

    #[inline]
    fn claim_shared(&self, owner: Owner, scope: LockScope) -> SharedGuard<'_> {
        let slot = self.client(owner.slot());
        let word = SharedLock { thread: owner.thread(), scope }.encode();
        let thread = interruption::enter();
        let first = &slot.shared_locks[owner.thread() as usize % SHARED_LOCKS];
        // SAFETY: from `enter`, on this thread.
        let is_nested = unsafe { (*thread).is_nested() };
        // One that has a shared lock in another word must not get a second one in its first choice
        // because that is free by now: it would wait for those that wait for it.
        let (place, before) = match !is_nested && take_place(first, word) {
            true => (Some(first), 0),
            false => claim_other(slot, owner, scope),
        };
        if let Some(place) = place {
            self.note_claim(owner, scope, place);
        }
        SharedGuard { place, before, thread }
    }

    /// Notes for the [order of locks](crate::ranks) that the calling thread's word `place` is of
    /// `scope`.
    #[inline(always)]
    fn note_claim(&self, owner: Owner, scope: LockScope, place: &AtomicU64) {
        #[cfg(debug_assertions)]
        {
            let rank = scope.rank();
            let is_own = |file| self.file(file).exclusive.load(Ordering::Relaxed) == owner.raw();
            // A file that the thread has exclusively is not waited for.
            if !scope.as_file().is_some_and(is_own) {
                ranks::waiting(rank, owner, place);
            }
            ranks::taken(rank, owner, place);
        }
        #[cfg(not(debug_assertions))]
        let _ = (owner, scope, place);
    }

    /// Leaves `file` for a moment, but stays beside it: the caller may hold a lock.
    pub fn step_out(&self, file: FileId, owner: Owner, inside: &SharedGuard<'_>) {
        if let Some(place) = inside.place {
            let beside = SharedLock { thread: owner.thread(), scope: LockScope::beside(file) };
            place.store(beside.encode(), Ordering::Release);
            ranks::becomes(Rank::Table, place);
        }
    }

    /// Enters the file again that [`Segment::step_out`] has left.
    ///
    /// # Errors
    /// The owner that holds the file.
    pub fn try_step_in(
        &self,
        file: FileId,
        owner: Owner,
        inside: &SharedGuard<'_>,
    ) -> Result<(), Owner> {
        let Some(place) = inside.place else { return Ok(()) };
        let word = SharedLock { thread: owner.thread(), scope: LockScope::file(file) }.encode();
        place.swap(word, Ordering::SeqCst);
        self.note_claim(owner, LockScope::file(file), place);
        match Owner::from_raw(self.file(file).exclusive.load(Ordering::SeqCst)) {
            Some(holder) if holder != owner => {
                self.step_out(file, owner, inside);
                Err(holder)
            }
            _ => Ok(()),
        }
    }

    /// Takes `file` for `owner` alone and waits until no other thread is inside it. The caller is
    /// in the table, and looks at `intent` first: a dead owner may have left a truncate undone.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`]. Others may enter the file then.
    pub fn lock_exclusive<'a>(
        &'a self,
        _table: &'a SharedGuard<'_>,
        file: FileId,
        owner: Owner,
    ) -> Result<ExclusiveGuard<'a>, Errno> {
        self.lock_exclusive_looking(file, owner, Segment::ends_wait_in_time)
    }

    pub(crate) fn lock_exclusive_looking<E>(
        &self,
        file: FileId,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<ExclusiveGuard<'_>, E> {
        let record = self.file(file);
        ranks::waiting(Rank::Exclusive, owner, &record.exclusive);
        let mut backoff = Backoff::default();
        // What a dead owner left undone is not to be seen by others, however long that takes.
        let mut was_free = true;
        loop {
            let exchange = |from: u32| {
                record.exclusive.compare_exchange(
                    from,
                    owner.raw(),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
            };
            match exchange(0).err().and_then(Owner::from_raw) {
                None => break,
                Some(holder) if holder == owner => return Ok(ExclusiveGuard::of(record, None)),
                Some(holder) => {
                    if backoff.wait() {
                        if self.clients().is_dead(holder) && exchange(holder.raw()).is_ok() {
                            was_free = false;
                            break;
                        }
                        look(self, holder, &backoff)?;
                    }
                }
            }
        }
        let exclusive = ExclusiveGuard::of(record, Some(owner));
        crash::point("file.exclusive-waiting");
        if was_free {
            self.wait_for_others(file, owner, look)?;
        } else {
            let Ok(()) = self.wait_for_others(file, owner, Segment::waits_on);
        }
        crash::point("file.exclusive");
        Ok(exclusive)
    }

    /// Like [`Segment::lock_exclusive`], but gives up, and lets others in again, when the file is
    /// held or another thread stays inside for more than a moment.
    pub fn try_lock_exclusive<'a>(
        &'a self,
        _table: &'a SharedGuard<'_>,
        file: FileId,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'a>> {
        self.try_lock_exclusive_record(file, owner)
    }

    /// Goes on as `owner` with a file that a dead process had exclusively, and that is `reaper`'s
    /// since.
    pub fn take_exclusive(
        &self,
        file: FileId,
        reaper: Owner,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'_>> {
        let record = self.file(file);
        let (from, to) = (reaper.raw(), owner.raw());
        let taken =
            record.exclusive.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        taken.ok().map(|_| ExclusiveGuard::of(record, Some(owner)))
    }

    pub(crate) fn try_lock_exclusive_record(
        &self,
        file: FileId,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'_>> {
        let record = self.file(file);
        ranks::waiting(Rank::Exclusive, owner, &record.exclusive);
        let (free, mine) = (0, owner.raw());
        record.exclusive.compare_exchange(free, mine, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        let exclusive = ExclusiveGuard::of(record, Some(owner));
        let inside = |slot| {
            let words = &self.client(slot).shared_locks;
            words.iter().any(|word| {
                SharedLock::decode(word.load(Ordering::SeqCst))
                    .is_some_and(|seen| seen.scope == LockScope::file(file))
            })
        };
        let slots = 0..self.header().clients_high.load(Ordering::SeqCst);
        for slot in slots {
            let mut backoff = Backoff::default();
            for _ in 0..140 {
                if !inside(slot) {
                    break;
                }
                backoff.wait();
            }
            if inside(slot) {
                return None;
            }
        }
        Some(exclusive)
    }

    fn wait_for_others<E>(
        &self,
        file: FileId,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in 0..self.header().clients_high.load(Ordering::SeqCst) {
            for place in &self.client(slot).shared_locks {
                let mut backoff = Backoff::default();
                loop {
                    let seen = SharedLock::decode(place.load(Ordering::SeqCst));
                    let Some(seen) = seen.filter(|seen| seen.scope == LockScope::file(file)) else {
                        break;
                    };
                    let other = Owner::new(slot, 0);
                    if slot == owner.slot() && seen.thread == owner.thread() {
                        break;
                    }
                    if backoff.wait() {
                        if self.clients().is_dead(other) {
                            break;
                        }
                        look(self, other, &backoff)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a process that is stopped has `file` to itself, or has a thread inside it.
    pub fn is_held_by_stopped(&self, file: FileId) -> bool {
        let exclusive = Owner::from_raw(self.file(file).exclusive.load(Ordering::SeqCst));
        let inside = |slot: &u32| {
            self.client(*slot).shared_locks.iter().any(|word| {
                SharedLock::decode(word.load(Ordering::SeqCst))
                    .is_some_and(|seen| seen.scope == LockScope::file(file))
            })
        };
        let slots = 0..self.header().clients_high.load(Ordering::SeqCst);
        exclusive.is_some_and(|holder| self.clients().is_stopped(holder))
            || slots.filter(inside).any(|slot| self.clients().is_stopped(Owner::new(slot, 0)))
    }
}
