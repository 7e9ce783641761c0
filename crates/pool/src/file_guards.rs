//! What a thread has of a file until a guard ends. They know no segment: see docs/design/views.md.

use crate::crash;
use crate::interruption;
use crate::layout::{FileRecord, SharedLock};
use crate::owner::Owner;
use crate::ranks::{self, Rank};
use crate::sync::{AtomicU64, Ordering};

/// Shared use of a file, or of the file table: a shared lock of the thread, in one of its process's
/// words. Every lock is held under one. The last one taken ends first.
#[derive(Debug)]
#[must_use]
pub struct SharedGuard<'a> {
    /// `None` if the thread was there already.
    pub(crate) place: Option<&'a AtomicU64>,
    /// What the word was: of the table, where a thread has gone on to a file.
    pub(crate) before: u64,
    pub(crate) thread: *const interruption::Thread,
}

impl Drop for SharedGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(self.before, Ordering::Release);
            SharedLock::note(self.before, place);
        }
        // SAFETY: a guard is not `Send`, so this is the thread that got it.
        unsafe { interruption::leave(self.thread) };
    }
}

/// Exclusive use of a file: no other thread is inside it.
#[must_use]
pub struct ExclusiveGuard<'a> {
    record: &'a FileRecord,
    /// The owner's stamp, 0 if the thread had the file before.
    stamp: u32,
}

impl<'a> ExclusiveGuard<'a> {
    /// Of a file that the calling thread has just taken for `owner`; for none if it had it before.
    pub(crate) fn of(record: &'a FileRecord, owner: Option<Owner>) -> ExclusiveGuard<'a> {
        if let Some(owner) = owner {
            ranks::taken(Rank::Exclusive, owner, &record.exclusive);
        }
        ExclusiveGuard { record, stamp: owner.map_or(0, Owner::raw) }
    }

    /// Whether the thread did not have the file before.
    pub fn is_taken(&self) -> bool {
        self.stamp != 0
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        if self.stamp != 0 {
            ranks::released(&self.record.exclusive);
        }
        // The record may have been given up since, and be another file's.
        if self.stamp != 0 && self.record.exclusive.load(Ordering::SeqCst) == self.stamp {
            crash::point("file.exclusive-releasing");
            self.record.exclusive.store(0, Ordering::SeqCst);
        }
    }
}
