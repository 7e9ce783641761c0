//! The lock of shared memory: exclusive for writers, a sequence lock for readers, and robust.
//!
//! ```
//! use forebay_pool::Owner;
//! use forebay_pool::seq_lock::RobustSeqLock;
//!
//! let lock: RobustSeqLock = RobustSeqLock::unheld();
//! let begin = lock.read_begin().expect("no writer holds it");
//! let mut writer = lock.guard(Owner::new(1, 0)).expect("it is free");
//! assert!(lock.read_begin().is_none());
//! writer.changed();
//! drop(writer);
//! // What was read since `begin` may be of two moments.
//! assert!(lock.read_retry(begin));
//! ```

use crate::owner::Owner;
use crate::ranks::{self, Bucket, Fresh, Ranked};
use crate::sync::{AtomicU64, Ordering};
use core::marker::PhantomData;

/// A lock and a version in one word: owner in the upper half, version in the lower.
///
/// Writers hold it; readers take two equal looks at an unheld word instead (a sequence lock). The
/// version rises whenever the protected content changed. It is robust: a holder that has died is
/// told by its owner's stamp, and replaced.
///
/// `R` is its place in the order of locks (`ranks.rs`).
#[repr(transparent)]
pub struct RobustSeqLock<R = Bucket>(AtomicU64, PhantomData<R>);

/// An unheld lock word as a reader saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadStamp(u64);

impl<R: Ranked> RobustSeqLock<R> {
    /// A lock that no thread holds, at version zero.
    #[cfg_attr(not(test), allow(dead_code))]
    pub fn unheld() -> RobustSeqLock<R> {
        RobustSeqLock(AtomicU64::new(0), PhantomData)
    }

    /// Takes the lock for `owner` if it is free.
    #[inline]
    pub fn guard(&self, owner: Owner) -> Option<LockGuard<'_, R>> {
        self.try_lock(owner).is_ok().then(|| LockGuard { lock: self, release: Release::Unchanged })
    }

    /// The same, for a caller that waits if it is not free.
    ///
    /// # Panics
    /// In a build with debug assertions, if the calling thread holds a lock that comes later in the
    /// [order of locks](crate::ranks).
    #[inline]
    pub(crate) fn guard_or_wait(&self, owner: Owner) -> Option<LockGuard<'_, R>> {
        ranks::waiting(R::RANK, owner, self);
        self.guard(owner)
    }

    /// Takes the lock for `owner`, or gives the holder.
    #[inline]
    pub(crate) fn try_lock(&self, owner: Owner) -> Result<(), Owner> {
        let seen = self.0.load(Ordering::Relaxed);
        if let Some(holder) = Owner::from_raw((seen >> 32) as u32) {
            return Err(holder);
        }
        let held = u64::from(owner.raw()) << 32 | seen;
        // Release, for threads that take it over and then ask for the slot's generation.
        match self.0.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed) {
            // What the holder writes must not be seen by a reader whose first look came earlier.
            Ok(_) => {
                crate::sync::fence(Ordering::Release);
                ranks::taken(R::RANK, owner, self);
                Ok(())
            }
            Err(now) => Err(Owner::from_raw((now >> 32) as u32).unwrap_or(owner)),
        }
    }

    /// Releases the lock and raises the version: the content changed.
    #[inline]
    pub(crate) fn unlock_changed(&self) {
        ranks::released(self);
        let version = (self.0.load(Ordering::Relaxed) as u32).wrapping_add(1);
        self.0.store(u64::from(version), Ordering::Release);
    }

    /// Releases the lock; readers need not look again.
    #[inline]
    pub(crate) fn unlock_unchanged(&self) {
        ranks::released(self);
        let version = self.0.load(Ordering::Relaxed) as u32;
        self.0.store(u64::from(version), Ordering::Release);
    }

    /// Takes the lock away from `dead` and gives it to `owner`. The caller has made sure that
    /// `dead` can never act again.
    pub(crate) fn take_over(&self, dead: Owner, owner: Owner) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        if (seen >> 32) as u32 != dead.raw() {
            return false;
        }
        // What the dead holder changed must not pass as unchanged.
        let version = (seen as u32).wrapping_add(1);
        let held = u64::from(owner.raw()) << 32 | u64::from(version);
        match self.0.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                crate::sync::fence(Ordering::Release);
                ranks::taken(R::RANK, owner, self);
                true
            }
            Err(_) => false,
        }
    }

    /// The same, with a guard.
    pub(crate) fn guard_of_dead(&self, dead: Owner, owner: Owner) -> Option<LockGuard<'_, R>> {
        self.take_over(dead, owner).then(|| LockGuard::of(self, true))
    }

    /// Takes the lock from a dead process of `slot`, if one holds it, and releases it.
    pub(crate) fn take_back(&self, slot: u32) {
        let holder = self.holder().filter(|holder| holder.slot() == slot);
        drop(holder.and_then(|holder| self.guard_of_dead(holder, Owner::reaper(slot))));
    }

    /// Undoes a [`RobustSeqLock::take_over`] from a holder that turned out to live.
    pub(crate) fn hand_back(&self, owner: Owner, holder: Owner) {
        ranks::released(self);
        let seen = self.0.load(Ordering::Relaxed);
        if (seen >> 32) as u32 == owner.raw() {
            let held = u64::from(holder.raw()) << 32 | u64::from(seen as u32);
            let _ = self.0.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The owner that holds the lock now.
    pub fn holder(&self) -> Option<Owner> {
        Owner::from_raw((self.0.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// The version, whether the lock is held or not.
    pub fn version(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32
    }

    /// Begins a lock-free read: `None` while a writer has the lock.
    #[inline]
    pub fn read_begin(&self) -> Option<ReadStamp> {
        let word = self.0.load(Ordering::Acquire);
        (word >> 32 == 0).then_some(ReadStamp(word))
    }

    /// Ends a lock-free read: whether it has to be made again, because a writer had the lock since.
    #[inline]
    pub fn read_retry(&self, begin: ReadStamp) -> bool {
        crate::sync::fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) != begin.0
    }
}

impl RobustSeqLock {
    /// The lock of a bucket that no index entry names yet.
    #[inline(always)]
    pub(crate) fn of_fresh(&self) -> &RobustSeqLock<Fresh> {
        // SAFETY: both are the same word; the parameter is a marker.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// Notes that an index entry names the bucket, which the calling thread has locked.
    #[inline(always)]
    pub(crate) fn note_indexed(&self) {
        ranks::indexed(self);
    }
}

/// What the end of a guard does to its lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// Nothing: the thread has had it before.
    Kept,
    /// Readers need not look again.
    Unchanged,
    /// The version rises.
    Changed,
}

impl Release {
    #[inline(always)]
    pub(crate) fn run<R: Ranked>(self, lock: &RobustSeqLock<R>) {
        match self {
            Release::Kept => {}
            Release::Unchanged => lock.unlock_unchanged(),
            Release::Changed => lock.unlock_changed(),
        }
    }

    /// Unless it is kept.
    #[inline(always)]
    pub(crate) fn changed(self) -> Release {
        if self == Release::Kept { self } else { Release::Changed }
    }
}

/// A lock that the calling thread holds until this ends. A thread that dies leaves it locked.
#[must_use]
pub struct LockGuard<'a, R: Ranked = Bucket> {
    lock: &'a RobustSeqLock<R>,
    release: Release,
}

impl<'a, R: Ranked> LockGuard<'a, R> {
    /// Of a lock that the calling thread has just `taken`, or had before.
    pub(crate) fn of(lock: &'a RobustSeqLock<R>, taken: bool) -> LockGuard<'a, R> {
        LockGuard { lock, release: if taken { Release::Unchanged } else { Release::Kept } }
    }

    /// Notes that what the lock protects has changed: readers look again.
    #[inline]
    pub fn changed(&mut self) {
        self.release = self.release.changed();
    }

    /// Whether the thread did not have the lock before.
    pub(crate) fn is_taken(&self) -> bool {
        self.release != Release::Kept
    }

    /// Leaves the release to the caller.
    #[inline(always)]
    pub(crate) fn into_release(self) -> Release {
        let release = self.release;
        core::mem::forget(self);
        release
    }
}

impl<R: Ranked> Drop for LockGuard<'_, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release.run(self.lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_rises_only_when_content_changed() {
        let (lock, me) = (<RobustSeqLock>::unheld(), Owner::new(3, 1));
        let first = lock.read_begin().unwrap();
        let held = lock.guard(me).unwrap();
        assert!(lock.guard(Owner::new(4, 1)).is_none());
        assert!(lock.read_begin().is_none());
        drop(held);
        assert!(!lock.read_retry(first));
        lock.guard(me).unwrap().changed();
        assert!(lock.read_retry(first));
        // Of a lock that the thread has already.
        let held = lock.guard(me).unwrap();
        LockGuard::of(&lock, false).changed();
        assert_eq!(lock.holder(), Some(me));
        drop(held);
        assert_eq!(lock.holder(), None);
    }

    #[test]
    fn a_dead_holder_is_replaced_once() {
        let (lock, dead, me) = (<RobustSeqLock>::unheld(), Owner::new(3, 1), Owner::new(4, 1));
        lock.try_lock(dead).unwrap();
        assert!(!lock.take_over(me, me));
        assert!(lock.take_over(dead, me));
        assert!(!lock.take_over(dead, me));
        assert_eq!(lock.holder(), Some(me));
    }
}
