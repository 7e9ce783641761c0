//! The memory of RAM: which threads of the node manager change it, and which must be waited for.

use forebay_pool::layout::TierId;
use forebay_pool::{Segment, crash};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Bytes that one round of the control thread makes for a reservation.
const RESERVED_PIECE: u64 = 64 << 20;

/// What threads of the node manager share about the memory of RAM.
#[derive(Default)]
pub(crate) struct Memory {
    /// Held by the thread that gets memory or gives it back.
    changing: Mutex<()>,
    /// Threads of the manager that read buckets without a lock.
    readers: RwLock<()>,
}

impl Memory {
    /// While this is held, no bucket loses its memory that the index named since.
    pub fn reads(&self) -> RwLockReadGuard<'_, ()> {
        self.readers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all readers that may know buckets that were retired before have ended.
    fn readers_have_left(&self) -> bool {
        self.readers.try_write().is_ok()
    }

    /// Lets `count` free buckets have memory, as many as can be had, in pieces: to be called again.
    pub fn grow_for(&self, segment: &Segment, file: BorrowedFd<'_>, count: u32) {
        let free = segment.free_buckets(TierId::RAM).available();
        let missing = count.saturating_add(segment.spare_marks().end).saturating_sub(free);
        let missing = missing.min(segment.growable());
        if missing > 0 {
            let bytes = u64::from(missing) * segment.bucket_bytes() as u64;
            let _ = self.grow(segment, file, bytes.min(RESERVED_PIECE));
            // The grower sees to what is kept ahead, and says how much there is if that failed.
            segment.want_memory();
        }
    }

    /// Gets memory for buckets of `bytes`, see [`Segment::grow`].
    pub fn grow(&self, segment: &Segment, file: BorrowedFd<'_>, bytes: u64) -> Result<u32, Errno> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        segment.grow(file, bytes)
    }

    /// Gives the memory of up to `most` free buckets back. Returns of how many it did.
    pub fn shrink(&self, segment: &Segment, file: BorrowedFd<'_>, most: u32) -> u32 {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = segment.retire(most);
        crash::point("memory.idle-retired");
        let unread = !retired.is_empty() && segment.await_readers() && self.readers_have_left();
        let mut given = 0;
        for buckets in &retired {
            if unread && segment.unback(file, buckets).is_ok() {
                crash::point("memory.given-back");
                given += buckets.len() as u32;
            } else {
                // A thread does not go on: another time.
                segment.restore(buckets);
            }
        }
        given
    }

    /// Lends the memory of up to `most` buckets to sparse ones, see [`Segment::lend`]: of those
    /// that have none, or else of free ones.
    pub fn lend(&self, segment: &Segment, file: BorrowedFd<'_>, most: u32) -> u32 {
        let missing = most.saturating_sub(segment.growable());
        if missing > 0 {
            self.shrink(segment, file, missing.next_multiple_of(segment.piece_buckets()));
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        segment.lend(most)
    }

    /// [`Segment::take_back_lent`].
    pub fn take_back_lent(&self, segment: &Segment, most: u32) -> u32 {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        segment.take_back_lent(most)
    }

    /// Gives the memory of what is retired back once more: a predecessor may have died before it
    /// did. False: another time.
    pub fn finish(&self, segment: &Segment, file: BorrowedFd<'_>) -> bool {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = segment.retired();
        if retired.is_empty() {
            return true;
        }
        let unread = segment.await_readers() && self.readers_have_left();
        unread && retired.iter().all(|buckets| segment.unback(file, buckets).is_ok())
    }
}
