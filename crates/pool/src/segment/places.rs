//! Sizes of pages and buckets, and where blocks and slots lie.

use super::Segment;
use crate::BucketId;
use crate::layout::PAGES_PER_BUCKET;

impl Segment {
    /// Bytes of a bucket.
    #[inline]
    pub fn bucket_bytes(&self) -> usize {
        self.bucket_bytes
    }

    /// Bytes of a page.
    #[inline]
    pub fn page_bytes(&self) -> usize {
        self.header().page_size as usize
    }

    /// log2 of it.
    #[inline]
    pub fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The block of a byte offset in a file, and the byte within it.
    #[inline]
    pub fn block_at(&self, offset: u64) -> (u64, usize) {
        let shift = self.page_shift + PAGES_PER_BUCKET.trailing_zeros();
        (offset >> shift, (offset & ((1 << shift) - 1)) as usize)
    }

    /// Buckets of the RAM tier.
    pub fn ram_buckets(&self) -> u32 {
        self.ram_buckets
    }

    /// The slot of its tier that a bucket below RAM is.
    pub fn slot_in_tier(&self, bucket: BucketId) -> u32 {
        bucket.raw() - self.header().tier[self.tier_of(bucket)].first_bucket
    }

    /// Byte offset of a file-tier bucket in its tier's file.
    pub fn slot_offset(&self, bucket: BucketId) -> u64 {
        u64::from(self.slot_in_tier(bucket)) * self.bucket_bytes as u64
    }
}
