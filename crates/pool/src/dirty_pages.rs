//! Which pages of a bucket the store lacks: those that are dirty, and those whose flush has begun.
//!
//! A flush begins under the bucket's lock: it sets `writeback`, then clears `dirty`. It ends
//! without the lock, and if it failed sets `dirty` before it clears `writeback`. So a pending page
//! is in one of the two words at any moment, but moves between them: to read `dirty` first may miss
//! it in both. The words are private for that reason; `tests/model.rs` explores this file with
//! loom.
//!
//! ```
//! use forebay_pool::BucketId;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let pages = &segment.bucket(BucketId::from_raw(0)).unwrap().pages;
//! assert_eq!(pages.pending(), 0);
//! pages.mark_dirty(0b110, || {});
//! pages.begin_writeback(0b110);
//! assert_eq!((pages.dirty(), pages.pending()), (0, 0b110));
//! // What a flush could not write is dirty again.
//! pages.end_writeback(0b110, true);
//! assert_eq!((pages.dirty(), pages.pending()), (0b110, 0b110));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::crash;
use crate::sync::{AtomicU64, Ordering};

/// The pages of a bucket that the store lacks, one bit for each.
#[repr(C)]
pub struct DirtyPages {
    /// Pages that differ from the store.
    dirty: AtomicU64,
    /// Pages being written to the store; they count as dirty after a crash.
    writeback: AtomicU64,
}

impl DirtyPages {
    /// `dirty` pages, and none under writeback.
    #[cfg(test)]
    pub fn new(dirty: u64) -> DirtyPages {
        DirtyPages { dirty: AtomicU64::new(dirty), writeback: AtomicU64::new(0) }
    }

    /// What a flush of `writeback` and writers of `dirty` have left.
    #[cfg(test)]
    pub fn set(&self, dirty: u64, writeback: u64) {
        self.dirty.store(dirty, Ordering::Relaxed);
        self.writeback.store(writeback, Ordering::Relaxed);
    }

    /// Pages that the store lacks, those on their way to it included; for any caller. Of a flush
    /// that begins after the first load and fails before the third the fourth tells. To miss that,
    /// too, one flush has to fail and another to begin meanwhile.
    pub fn pending(&self) -> u64 {
        self.pending_under_lock() | self.pending_under_lock()
    }

    /// The same for a caller that holds the bucket's lock, so that no flush begins: one that fails
    /// in between is seen by the second load.
    #[inline]
    pub fn pending_under_lock(&self) -> u64 {
        let on_its_way = self.writeback.load(Ordering::Acquire);
        on_its_way | self.dirty.load(Ordering::Acquire)
    }

    /// Pages that wait for a flush to begin. The others may be on their way: only
    /// [`DirtyPages::pending`] says what the store has.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// Pages whose flush has begun. For a caller that holds the bucket's lock there will be no
    /// others.
    #[inline]
    pub fn writeback(&self) -> u64 {
        self.writeback.load(Ordering::Acquire)
    }

    /// Marks `pages` of a locked bucket as dirty; nothing but a plain load when they are. `first`
    /// is called before if none was dirty.
    #[inline]
    pub fn mark_dirty(&self, pages: u64, first: impl FnOnce()) {
        let dirty = self.dirty.load(Ordering::Relaxed);
        if dirty & pages != pages {
            if dirty == 0 {
                first();
            }
            self.dirty.fetch_or(pages, Ordering::Release);
        }
    }

    /// Moves dirty `pages` of a locked bucket to writeback.
    pub fn begin_writeback(&self, pages: u64) {
        self.writeback.fetch_or(pages, Ordering::AcqRel);
        crash::point("flush.writeback");
        self.dirty.fetch_and(!pages, Ordering::AcqRel);
    }

    /// Ends the writeback of `pages`: they are on the store, or `failed` and are dirty again. Needs
    /// no lock: no other thread touches pages under writeback. Returns what the store lacks then.
    pub fn end_writeback(&self, pages: u64, failed: bool) -> u64 {
        if failed {
            self.dirty.fetch_or(pages, Ordering::AcqRel);
            crash::point("flush.failed");
        }
        let left = self.writeback.fetch_and(!pages, Ordering::AcqRel) & !pages;
        left | self.dirty.load(Ordering::Acquire)
    }

    /// Ends the writeback of a manager that is dead: those pages that are `valid` are dirty again.
    /// `between` is called halfway if there are any. Returns what was being written.
    pub fn take_back(&self, valid: &AtomicU64, between: impl FnOnce()) -> u64 {
        let torn = self.writeback.load(Ordering::Acquire);
        self.dirty.fetch_or(torn & valid.load(Ordering::Acquire), Ordering::AcqRel);
        if torn != 0 {
            between();
        }
        self.writeback.fetch_and(!torn, Ordering::AcqRel);
        torn
    }

    /// `pages` of a locked bucket are not dirty any more: the caller has brought them to the store,
    /// or they are to be read no more.
    pub fn clear_dirty(&self, pages: u64) {
        self.dirty.fetch_and(!pages, Ordering::AcqRel);
    }

    /// Of a bucket just locked: clears the dirty pages that are not `valid`, of a writer that was
    /// killed between its two marks.
    #[inline]
    pub fn repair(&self, valid: &AtomicU64) {
        let valid = valid.load(Ordering::Relaxed);
        if self.dirty.load(Ordering::Relaxed) & !valid != 0 {
            self.dirty.fetch_and(valid, Ordering::Relaxed);
        }
    }

    /// Makes `dirty` pages of a bucket that no entry names dirty, and no others, none under
    /// writeback.
    pub fn reset(&self, dirty: u64) {
        self.dirty.store(dirty, Ordering::Relaxed);
        self.writeback.store(0, Ordering::Relaxed);
    }
}
