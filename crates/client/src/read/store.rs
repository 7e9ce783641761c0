//! Bringing blocks that only the store has to RAM, for the read that wants them.

use crate::access::EnteredFile;
use crate::fd::borrow;
use crate::part::Part;
use core::num::NonZeroU64;
use core::sync::atomic::Ordering;
use forebay_placement::hotness::AccessStats;
use forebay_pool::clock;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use rustix::fs::Advice;

impl EnteredFile<'_> {
    /// Brings a block from the store to RAM, clean; `again`: it has been read before. False if that
    /// is not possible now.
    pub(crate) fn stage_in(&self, block: u64, again: bool) -> bool {
        self.stage_in_as(block, again, false)
    }

    /// The same of a block that the caller has counted as used of its job's quota of RAM.
    pub(crate) fn stage_in_counted(&self, block: u64, again: bool) -> bool {
        self.stage_in_as(block, again, true)
    }

    #[inline(never)]
    fn stage_in_as(&self, block: u64, again: bool, is_counted: bool) -> bool {
        let record = self.record;
        let bytes = self.session.segment.bucket_bytes();
        let start = block * bytes as u64;
        let length = || {
            let known = record.stored().min(record.size.load(Ordering::Acquire));
            (known.saturating_sub(start) as usize).min(bytes)
        };
        // What is behind the end may be another node's, which makes the file longer: of a file
        // under commit only whole pages are kept.
        let commits = record.lease.load().commits();
        if length() == 0 || commits && length() < self.session.segment.page_bytes() {
            return false;
        }
        let Some(entry) = self.session.segment.entry_or_insert(record, block, self.owner) else {
            return false;
        };
        let segment = &self.session.segment;
        let page = segment.page_bytes();
        let pages = length().div_ceil(page) as u32;
        let is_small = block == 0 && record.size.load(Ordering::Acquire) <= bytes as u64 / 2;
        // Its job reads on from the store where it has used up what it may have of RAM.
        let counted = if is_small { pages } else { PAGES_PER_BUCKET };
        if !is_counted && !segment.claim_quota(record, TierId::RAM, counted) {
            segment.want_room();
            return false;
        }
        let sparse = if is_small { segment.take_sparse(self.owner, pages) } else { None };
        let Some(bucket) = sparse.or_else(|| segment.take_bucket(self.owner)) else { return false };
        let Some(fresh) = segment.init_bucket(bucket, self.id, block, self.owner) else {
            return false;
        };
        if !segment.back_pages(bucket, pages) {
            return false;
        }
        if again {
            let access_stats = &fresh.meta().access_stats;
            let known = AccessStats(access_stats.load(Ordering::Relaxed)).in_main(true);
            access_stats.store(known.0, Ordering::Relaxed);
        }
        // The file may have become longer meanwhile.
        let length =
            || length().min(if segment.is_sparse(bucket) { pages as usize * page } else { bytes });
        // Another thread may be faster.
        let Some(held) = fresh.publish(entry, TierId::RAM) else { return true };
        record.note_tier(TierId::RAM);
        self.session.populate(bucket);
        let data = self.session.ram(bucket);
        // Now that the block is ours: before, another process may still have written to the store.
        let began = if self.is_emulated() { clock::monotonic_ns() } else { 0 };
        let got = self.store_read(data.first(length()), start).unwrap_or(0);
        self.session.note_moved(Place::Missed, Place::Tier(TierId::RAM), got);
        if self.is_emulated() {
            let took = clock::monotonic_ns().saturating_sub(began);
            self.note_staged(block, got, took);
        }
        let end = got.next_multiple_of(page);
        data.first(end).after(got).zero();
        let now = clock::realtime_coarse_ns();
        held.meta().written.store(clock::stamp(now), Ordering::Relaxed);
        let kept = if commits { got / page * page } else { end };
        let pages = Part { block, within: 0, bytes: kept }.pages(&self.session.segment);
        held.meta().valid.store(pages, Ordering::Release);
        if !self.is_emulated() && self.has_come_from_device(block) {
            // The kernel has it because of us: one copy in memory is enough.
            let bytes = NonZeroU64::new(got as u64);
            let _ = rustix::fs::fadvise(borrow(self.fd), start, bytes, Advice::DontNeed);
        }
        got > 0
    }
}
