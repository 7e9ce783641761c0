//! The memory of sparse buckets, and how much of the RAM tier's is lent to them: so many buckets of
//! the others never get theirs.

use super::Segment;
use crate::layout::{PAGES_PER_BUCKET, TierId};
use crate::sync::Ordering;
use crate::{BucketId, crash};
use core::ops::Range;
use rustix::mm::Advice;

impl Segment {
    /// Gives the pages `pages` of RAM bucket `bucket` memory. False if there is none.
    pub(crate) fn populate_pages(&self, bucket: BucketId, pages: Range<u32>) -> bool {
        // A program that touched them would get SIGBUS where /dev/shm is full.
        self.advise_pages(bucket, pages, Advice::LinuxPopulateWrite)
    }

    /// Takes the memory of the pages `pages` of RAM bucket `bucket` away; their bytes are lost.
    pub(crate) fn remove_pages(&self, bucket: BucketId, pages: Range<u32>) -> bool {
        self.advise_pages(bucket, pages, Advice::LinuxRemove)
    }

    fn advise_pages(&self, bucket: BucketId, pages: Range<u32>, advice: Advice) -> bool {
        if crash::refused("memory") {
            return false;
        }
        let page = self.page_bytes();
        let (first, end) = (pages.start as usize * page, pages.end as usize * page);
        // SAFETY: inside the bucket, of which the caller gives up what it takes away.
        unsafe {
            let at = self.bucket_data(bucket).add(first);
            rustix::mm::madvise(at.cast(), end.saturating_sub(first), advice).is_ok()
        }
    }

    /// Buckets whose memory is lent.
    pub fn lent(&self) -> u32 {
        self.header().sparse_limit.load(Ordering::Acquire).div_ceil(PAGES_PER_BUCKET)
    }

    /// Lends the memory of up to `most` buckets of RAM that have none to sparse ones. Returns of
    /// how many. For the thread that changes the memory of RAM.
    pub fn lend(&self, most: u32) -> u32 {
        let count = most.min(self.growable());
        if count > 0 {
            let pages = count * PAGES_PER_BUCKET;
            self.header().sparse_limit.fetch_add(pages, Ordering::AcqRel);
            crash::point("lend.raised");
            self.correct_free();
        }
        count
    }

    /// Takes up to `most` buckets' memory back of which the sparse ones use none. Returns of how
    /// many. For the thread that changes the memory of RAM.
    pub fn take_back_lent(&self, most: u32) -> u32 {
        let header = self.header();
        let count = most.min(self.sparse_left() / PAGES_PER_BUCKET).min(self.lent());
        if count == 0 {
            return 0;
        }
        let pages = count * PAGES_PER_BUCKET;
        // Pages that are claimed meanwhile are seen here, or see the new limit.
        let limit = header.sparse_limit.fetch_sub(pages, Ordering::SeqCst) - pages;
        if header.sparse_used.load(Ordering::SeqCst) > limit {
            header.sparse_limit.fetch_add(pages, Ordering::AcqRel);
            return 0;
        }
        crash::point("lend.lowered");
        self.correct_free();
        count
    }

    pub(super) fn correct_free(&self) {
        let free = self.free_buckets(TierId::RAM).available() + self.growable();
        self.header().tier[TierId::RAM].free.store(free, Ordering::Relaxed);
    }
}
