//! What a thread holds until a guard ends. The order of the locks is that of `ranks.rs`: an
//! [`ExclusiveGuard`] cannot outlive the [`SharedGuard`] under which it was taken.
//!
//! A thread that dies drops no guard. What it held is stamped with its owner, and is taken over.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Identity, Owner, TierId};
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let slot = segment.clients().claim(std::process::id(), 1).expect("one of many is free");
//! let me = Owner::new(slot, 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! let place = segment.entry_or_insert(segment.file(file), 0, me).expect("there are nodes");
//! let bucket = segment.take_bucket(me).expect("all are free");
//! let fresh = segment.init_bucket(bucket, file, 0, me).expect("no other thread has it");
//! // Until it is published no other thread can find the bucket; a guard that ends gives it back.
//! let block = fresh.publish(place, TierId::RAM).expect("the entry is empty");
//! let other = Owner::new(slot, 1);
//! assert_eq!(block.meta().lock.holder(), Some(me));
//! drop(block);
//! assert!(segment.lock_block(place, other).is_some());
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::BucketId;
pub use crate::block_guard::BlockGuard;
use crate::checksums::SlotFiles;
use crate::crash;
use crate::entry::Entry;
pub use crate::file_guards::{ExclusiveGuard, SharedGuard};
use crate::layout::BucketMeta;
use crate::owner::Owner;
use crate::ranks::{self, Fresh, Rank};
use crate::segment::Segment;
use crate::seq_lock::LockGuard;
use crate::sync::{AtomicU64, Ordering};
use forebay_placement::TierId;
use rustix::io::Errno;

/// An index entry that keeps all other threads off a block, which lies nowhere in the tiers, while
/// its thread writes the block around them.
#[must_use]
pub struct BusyEntry<'a>(&'a AtomicU64);

impl<'a> BusyEntry<'a> {
    /// Takes the entry `place` for `owner` if it is empty.
    pub fn take(place: &'a AtomicU64, owner: Owner) -> Option<BusyEntry<'a>> {
        ranks::waiting(Rank::Busy, owner, place);
        let busy = Entry::Busy(owner).encode();
        place.compare_exchange(Entry::EMPTY, busy, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        ranks::taken(Rank::Busy, owner, place);
        Some(BusyEntry(place))
    }
}

impl Drop for BusyEntry<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        ranks::released(self.0);
        self.0.store(Entry::EMPTY, Ordering::Release);
    }
}

/// A bucket that the calling thread has locked for a block, and that no index entry names yet. It
/// is given back unless it is published.
#[must_use]
pub struct FreshBucket<'a> {
    segment: &'a Segment,
    meta: &'a BucketMeta,
    bucket: BucketId,
}

impl<'a> FreshBucket<'a> {
    #[inline(always)]
    pub(crate) fn of(
        segment: &'a Segment,
        meta: &'a BucketMeta,
        bucket: BucketId,
        lock: LockGuard<'a, Fresh>,
    ) -> FreshBucket<'a> {
        lock.into_release();
        FreshBucket { segment, meta, bucket }
    }

    /// The bucket's state.
    #[inline]
    pub fn meta(&self) -> &'a BucketMeta {
        self.meta
    }

    /// The bucket.
    #[inline]
    pub fn bucket(&self) -> BucketId {
        self.bucket
    }

    /// Makes the empty index entry `place` name it, as a bucket of `tier`. `None`, and it is given
    /// back, if another thread was faster.
    #[inline]
    pub fn publish(self, place: &AtomicU64, tier: TierId) -> Option<BlockGuard<'a>> {
        let word = Entry::resident(tier, self.bucket).publish(place)?;
        Some(self.published(word, tier))
    }

    /// The entry names it: the guard of the block that it has.
    #[inline(always)]
    fn published(self, word: u64, tier: TierId) -> BlockGuard<'a> {
        let (meta, bucket) = (self.meta, self.bucket);
        core::mem::forget(self);
        BlockGuard::published(meta, word, tier, bucket)
    }

    /// Makes it, a bucket of RAM that has the block's bytes, the block's home in place of `old`,
    /// which is freed and unlocked. No flush reads that.
    pub fn publish_instead(
        self,
        place: &AtomicU64,
        old: BlockGuard<'_>,
        files: &impl SlotFiles,
    ) -> BlockGuard<'a> {
        let segment = self.segment;
        // The old copy must not reach the store after the new one, not even after a reboot.
        segment.void_slot(files, old.bucket());
        crash::point("replace.filled");
        let word = Entry::resident(TierId::RAM, self.bucket).encode();
        segment.buckets().replace(place, word, old);
        self.published(word, TierId::RAM)
    }

    /// Moves to it, a bucket of RAM, the block that `old` has, another one, which no flush reads.
    pub fn take_over(
        self,
        place: &AtomicU64,
        old: BlockGuard<'_>,
        files: &impl SlotFiles,
    ) -> BlockGuard<'a> {
        self.segment.copy_over(old.bucket(), self.bucket);
        self.publish_instead(place, old, files)
    }

    /// Moves to it, a bucket of RAM, the block that `old` has, a slot that no flush reads.
    ///
    /// # Errors
    /// The device's, or `IO`, if bytes that only the slot has cannot be read as they were written:
    /// `old` has the block still, and this bucket is given back.
    pub fn raise<'b>(
        self,
        place: &AtomicU64,
        old: BlockGuard<'b>,
        files: &impl SlotFiles,
    ) -> Result<BlockGuard<'a>, (Errno, BlockGuard<'b>)> {
        let segment = self.segment;
        if let Err(errno) = segment.copy_up(old.bucket(), self.bucket, files) {
            return Err((errno, old));
        }
        segment.note_raised(self.meta);
        Ok(self.publish_instead(place, old, files))
    }
}

impl Drop for FreshBucket<'_> {
    #[inline]
    fn drop(&mut self) {
        self.segment.free_bucket(self.bucket);
        crash::point("bucket.aborted");
        self.meta.lock.unlock_changed();
    }
}
