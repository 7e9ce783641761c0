//! The order in which the two words of a bucket are read that say what the store lacks.
//!
//! A flush begins under the bucket's lock: it sets `writeback`, then clears `dirty`. It ends without the lock, and if it
//! failed sets `dirty` before it clears `writeback`. So a pending page is in one of the two words at any moment, but
//! moves between them; who reads `dirty` first may miss it in both.

use crate::sync::{AtomicU64, Ordering};

/// Pages that the store lacks, for who holds the bucket's lock, so that no flush begins: one that fails in
/// between is seen by the second load.
#[inline]
pub fn pending_under_lock(dirty: &AtomicU64, writeback: &AtomicU64) -> u64 {
    let on_its_way = writeback.load(Ordering::Acquire);
    on_its_way | dirty.load(Ordering::Acquire)
}

/// The same for everybody: of a flush that begins after the first load and fails before the third the fourth
/// tells. To miss that, too, one flush has to fail and another to begin meanwhile.
pub fn pending(dirty: &AtomicU64, writeback: &AtomicU64) -> u64 {
    pending_under_lock(dirty, writeback) | pending_under_lock(dirty, writeback)
}
