//! A locked block. It knows no segment: see docs/design/views.md.

use crate::BucketId;
use crate::layout::BucketMeta;
use crate::seq_lock::{LockGuard, Release};
use forebay_placement::TierId;

/// A block of a file whose bucket the calling thread has locked. Readers look again only if it was
/// told that the bucket has [changed](BlockGuard::changed).
#[must_use]
pub struct BlockGuard<'a> {
    meta: &'a BucketMeta,
    word: u64,
    bucket: BucketId,
    tier: TierId,
    release: Release,
}

impl<'a> BlockGuard<'a> {
    #[inline(always)]
    pub(crate) fn of(
        meta: &'a BucketMeta,
        word: u64,
        tier: TierId,
        bucket: BucketId,
        lock: LockGuard<'a>,
    ) -> BlockGuard<'a> {
        BlockGuard { meta, word, bucket, tier, release: lock.into_release() }
    }

    /// Of a fresh bucket, which the calling thread has locked and filled, once `word` is in the
    /// index.
    #[inline(always)]
    pub(crate) fn published(
        meta: &'a BucketMeta,
        word: u64,
        tier: TierId,
        bucket: BucketId,
    ) -> BlockGuard<'a> {
        meta.lock.note_indexed();
        BlockGuard { meta, word, bucket, tier, release: Release::Changed }
    }

    /// The bucket's state.
    #[inline]
    pub fn meta(&self) -> &'a BucketMeta {
        self.meta
    }

    /// The index entry's word.
    #[inline]
    pub fn word(&self) -> u64 {
        self.word
    }

    /// The bucket.
    #[inline]
    pub fn bucket(&self) -> BucketId {
        self.bucket
    }

    /// The bucket's tier.
    #[inline]
    pub fn tier(&self) -> TierId {
        self.tier
    }

    /// Whether the thread did not have the lock before.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.release != Release::Kept
    }

    /// Notes that the bucket has changed.
    #[inline]
    pub fn changed(&mut self) {
        self.release = self.release.changed();
    }
}

impl Drop for BlockGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release.run(&self.meta.lock);
    }
}
