//! The memory of sparse buckets, and how much of the RAM tier's is lent to them: so many buckets of
//! the others never get theirs.

use super::Segment;
use crate::free_map::{FILLING, FREE, UNBACKED};
use crate::layout::{PAGES_PER_BUCKET, TierId};
use crate::sync::Ordering;
use crate::{BucketId, Owner, crash};
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
        self.header().tier[TierId::RAM]
            .sparse
            .limit
            .load(Ordering::Acquire)
            .div_ceil(PAGES_PER_BUCKET)
    }

    /// Lends the memory of up to `most` buckets of RAM that have none to sparse ones. Returns of
    /// how many. For the thread that changes the memory of RAM.
    pub fn lend(&self, most: u32) -> u32 {
        let count = most.min(self.growable());
        if count > 0 {
            let pages = count * PAGES_PER_BUCKET;
            self.header().tier[TierId::RAM].sparse.limit.fetch_add(pages, Ordering::AcqRel);
            crash::point("lend.raised");
            self.correct_free();
        }
        count
    }

    /// Takes up to `most` buckets' memory back of which the sparse ones use none. Returns of how
    /// many. For the thread that changes the memory of RAM.
    pub fn take_back_lent(&self, most: u32) -> u32 {
        let header = self.header();
        let count = most.min(self.sparse_left(TierId::RAM) / PAGES_PER_BUCKET).min(self.lent());
        if count == 0 {
            return 0;
        }
        let pages = count * PAGES_PER_BUCKET;
        // Pages that are claimed meanwhile are seen here, or see the new limit.
        let limit =
            header.tier[TierId::RAM].sparse.limit.fetch_sub(pages, Ordering::SeqCst) - pages;
        if header.tier[TierId::RAM].sparse.used.load(Ordering::SeqCst) > limit {
            header.tier[TierId::RAM].sparse.limit.fetch_add(pages, Ordering::AcqRel);
            return 0;
        }
        crash::point("lend.lowered");
        self.correct_free();
        count
    }

    /// Takes up to `most` free slots of a file tier whose room is to be lent to sparse ones: once
    /// it has been taken from the tier's file they are to be [lent](Segment::lend_slot), or freed.
    pub fn retire_slots(&self, tier: TierId, most: u32, owner: Owner) -> Vec<BucketId> {
        let mut retired = Vec::new();
        if self.header().tier[tier].sparse.buckets == 0 {
            return retired;
        }
        // The last ones first: others are taken from the beginning on.
        let map = self.free_buckets(tier);
        map.take(owner, map.count.div_ceil(64).saturating_sub(1), most, |slot| {
            let slot = BucketId::from_raw(slot);
            if let Some(meta) = self.bucket(slot) {
                meta.state.store(FILLING, Ordering::Release);
                retired.push(slot);
            }
        });
        let free = &self.header().tier[tier].free;
        free.fetch_sub(retired.len() as u32, Ordering::Relaxed);
        crash::point("lend.slots-retired");
        retired
    }

    /// Lends the room of a retired slot to the sparse ones of its tier.
    pub fn lend_slot(&self, slot: BucketId) {
        let Some(meta) = self.bucket(slot) else { return };
        // First the state, by which a new manager counts what is lent.
        meta.state.store(UNBACKED, Ordering::Release);
        crash::point("lend.slot-unbacked");
        let limit = &self.header().tier[self.tier_of(slot)].sparse.limit;
        limit.fetch_add(PAGES_PER_BUCKET, Ordering::AcqRel);
    }

    /// The slots of a file tier whose room is lent.
    pub(crate) fn lent_slots(&self, tier: TierId) -> impl DoubleEndedIterator<Item = BucketId> {
        let of_tier = &self.header().tier[tier];
        let (first, count) = (of_tier.first_bucket, of_tier.buckets);
        let is_lent = |&slot: &BucketId| {
            self.bucket(slot).is_some_and(|meta| meta.state.load(Ordering::Acquire) == UNBACKED)
        };
        BucketId::range(first, first + count).filter(is_lent)
    }

    /// Takes the room of up to `most` slots of a file tier back of which the sparse ones use none.
    /// Returns of how many. For the node manager.
    pub fn take_back_slots(&self, tier: TierId, most: u32) -> u32 {
        let of_tier = &self.header().tier[tier];
        let count = most.min(self.sparse_left(tier) / PAGES_PER_BUCKET);
        if count == 0 {
            return 0;
        }
        let pages = count * PAGES_PER_BUCKET;
        // As in `take_back_lent`.
        let limit = of_tier.sparse.limit.fetch_sub(pages, Ordering::SeqCst).saturating_sub(pages);
        if of_tier.sparse.used.load(Ordering::SeqCst) > limit {
            of_tier.sparse.limit.fetch_add(pages, Ordering::AcqRel);
            return 0;
        }
        crash::point("lend.slots-lowered");
        let mut back = 0;
        for slot in self.lent_slots(tier).take(count as usize) {
            let Some(meta) = self.bucket(slot) else { continue };
            let state = &meta.state;
            if state.compare_exchange(UNBACKED, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.free_buckets(tier).offer(slot.raw());
                back += 1;
            }
        }
        of_tier.free.fetch_add(back, Ordering::Relaxed);
        // Others have taken some of them back meanwhile.
        of_tier.sparse.limit.fetch_add((count - back) * PAGES_PER_BUCKET, Ordering::AcqRel);
        back
    }

    pub(super) fn correct_free(&self) {
        let free = self.free_buckets(TierId::RAM).available() + self.growable();
        self.header().tier[TierId::RAM].free.store(free, Ordering::Relaxed);
    }
}
