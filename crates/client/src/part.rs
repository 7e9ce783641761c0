//! The part of a read or a write that falls into one block.

use forebay_pool::{PageSet, Segment};

/// A part of a read or a write that falls into one block.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub block: u64,
    /// Where in the block it begins.
    pub within: usize,
    pub bytes: usize,
}

impl Part {
    /// The first part of `bytes` from `offset` on.
    #[inline(always)]
    pub fn first(segment: &Segment, offset: u64, bytes: usize) -> Part {
        let (block, within) = segment.block_at(offset);
        Part { block, within, bytes: (segment.bucket_bytes() - within).min(bytes) }
    }

    /// Where in the block it ends.
    #[inline(always)]
    pub fn end(&self) -> usize {
        self.within + self.bytes
    }

    /// Where in the file it begins.
    #[inline(always)]
    pub fn offset(&self, segment: &Segment) -> u64 {
        self.block * segment.bucket_bytes() as u64 + self.within as u64
    }

    /// The pages of the block that it touches.
    #[inline(always)]
    pub fn pages(&self, segment: &Segment) -> u64 {
        PageSet::of_bytes(self.within..self.end(), segment.page_shift()).0
    }
}
