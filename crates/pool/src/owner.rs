//! Who holds something in shared memory, and the lock word that says so.

use crate::sync::{AtomicU64, Ordering};

/// A client slot (12 bits) and a thread of it (20 bits). Never zero: thread numbers start at one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u32);

impl Owner {
    /// Bits of the thread number.
    pub const THREAD_BITS: u32 = 20;
    const REAPER: u32 = (1 << Self::THREAD_BITS) - 1;

    /// The owner for thread `thread` (counted from 0, wrapped into 20 bits) of `slot`.
    #[inline]
    pub fn new(slot: u32, thread: u32) -> Owner {
        // A division only for a process that had a million threads.
        let few = thread < Self::REAPER - 1;
        let thread = if few { thread } else { thread % (Self::REAPER - 1) };
        Owner((slot << Self::THREAD_BITS) | (thread + 1))
    }

    /// Who holds what a dead process of `slot` held until it is given back. No thread has this
    /// number, so that nobody mistakes the reaper for the dead thread.
    pub fn reaper(slot: u32) -> Owner {
        Owner((slot << Self::THREAD_BITS) | Self::REAPER)
    }

    /// Whether it is a dead process's place-holder, see [`Owner::reaper`].
    pub fn is_reaper(self) -> bool {
        self.0 & Self::REAPER == Self::REAPER
    }

    /// The owner stamped in a word, if any.
    #[inline]
    pub fn from_raw(raw: u32) -> Option<Owner> {
        (raw != 0).then_some(Owner(raw))
    }

    /// The word to stamp.
    #[inline]
    pub fn raw(self) -> u32 {
        self.0
    }

    /// The client slot.
    #[inline]
    pub fn slot(self) -> u32 {
        self.0 >> Self::THREAD_BITS
    }

    /// The thread number within its slot, from one.
    #[inline]
    pub fn thread(self) -> u32 {
        self.0 & ((1 << Self::THREAD_BITS) - 1)
    }
}

/// A lock and a version in one word: owner in the upper half, version in the lower.
///
/// Writers hold it; readers take two equal looks at an unheld word instead (a sequence lock).
/// The version rises whenever the protected content changed.
#[repr(transparent)]
pub struct OwnedLock(AtomicU64);

/// An unheld lock word as a reader saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glance(u64);

impl OwnedLock {
    /// A lock that nobody holds, at version zero.
    #[cfg_attr(not(test), allow(dead_code))]
    pub fn unheld() -> OwnedLock {
        OwnedLock(AtomicU64::new(0))
    }

    /// Takes the lock for `owner`, or says who holds it.
    #[inline]
    pub fn try_lock(&self, owner: Owner) -> Result<(), Owner> {
        let seen = self.0.load(Ordering::Relaxed);
        if let Some(holder) = Owner::from_raw((seen >> 32) as u32) {
            return Err(holder);
        }
        let held = u64::from(owner.raw()) << 32 | seen;
        // Release, for those who take it over and then ask for the slot's generation.
        match self.0.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed) {
            // What the holder writes must not be seen by a reader whose first look came earlier.
            Ok(_) => {
                crate::sync::fence(Ordering::Release);
                Ok(())
            }
            Err(now) => Err(Owner::from_raw((now >> 32) as u32).unwrap_or(owner)),
        }
    }

    /// Releases the lock and raises the version: the content changed.
    #[inline]
    pub fn unlock_changed(&self) {
        let version = (self.0.load(Ordering::Relaxed) as u32).wrapping_add(1);
        self.0.store(u64::from(version), Ordering::Release);
    }

    /// Releases the lock; readers need not look again.
    #[inline]
    pub fn unlock_unchanged(&self) {
        let version = self.0.load(Ordering::Relaxed) as u32;
        self.0.store(u64::from(version), Ordering::Release);
    }

    /// Takes the lock away from `dead` and gives it to `owner`. The caller has made sure that
    /// `dead` can never act again.
    pub fn take_over(&self, dead: Owner, owner: Owner) -> bool {
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
                true
            }
            Err(_) => false,
        }
    }

    /// Undoes a [`OwnedLock::take_over`] from a holder that turned out to live.
    pub fn hand_back(&self, owner: Owner, holder: Owner) {
        let seen = self.0.load(Ordering::Relaxed);
        if (seen >> 32) as u32 == owner.raw() {
            let held = u64::from(holder.raw()) << 32 | u64::from(seen as u32);
            let _ = self.0.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Who holds the lock now.
    pub fn holder(&self) -> Option<Owner> {
        Owner::from_raw((self.0.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// The version, whoever holds the lock.
    pub fn version(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32
    }

    /// A reader's first look: `None` while a writer is inside.
    #[inline]
    pub fn glance(&self) -> Option<Glance> {
        let word = self.0.load(Ordering::Acquire);
        (word >> 32 == 0).then_some(Glance(word))
    }

    /// A reader's second look: whether nothing changed since the first.
    #[inline]
    pub fn unchanged_since(&self, first: Glance) -> bool {
        crate::sync::fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == first.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_keeps_slot_and_thread_apart() {
        let owner = Owner::new(4095, 77);
        assert_eq!((owner.slot(), owner.thread()), (4095, 78));
        assert_ne!(Owner::new(0, 0).raw(), 0);
        assert_ne!(Owner::new(0, (1 << 20) - 1).raw(), 0);
    }

    #[test]
    fn the_version_rises_only_when_content_changed() {
        let (lock, me) = (OwnedLock::unheld(), Owner::new(3, 1));
        let first = lock.glance().unwrap();
        lock.try_lock(me).unwrap();
        assert_eq!(lock.try_lock(Owner::new(4, 1)), Err(me));
        assert!(lock.glance().is_none());
        lock.unlock_unchanged();
        assert!(lock.unchanged_since(first));
        lock.try_lock(me).unwrap();
        lock.unlock_changed();
        assert!(!lock.unchanged_since(first));
    }

    #[test]
    fn a_dead_holder_is_replaced_once() {
        let (lock, dead, me) = (OwnedLock::unheld(), Owner::new(3, 1), Owner::new(4, 1));
        lock.try_lock(dead).unwrap();
        assert!(!lock.take_over(me, me));
        assert!(lock.take_over(dead, me));
        assert!(!lock.take_over(dead, me));
        assert_eq!(lock.holder(), Some(me));
    }
}
