//! Counting uses of blocks and files, for eviction, promotion and the HotData policy.

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use core::sync::atomic::Ordering;
use forebay_placement::evict::Eviction;
use forebay_placement::hotness::{AccessStats, HALF_LIFE_MS, Score};
use forebay_pool::BucketId;
use forebay_pool::layout::*;

/// One in so many reads of another block counts as a use of the file.
const SAMPLE: u64 = 8;

impl OpenFile<'_> {
    /// Notes that a file was used: at each open, and at some reads.
    pub(crate) fn used_file(&self) {
        let now = self.session.segment.header().now_ms.load(Ordering::Relaxed);
        let access_stats = &self.record.hotness;
        let score = Score(access_stats.load(Ordering::Relaxed));
        // A thread that comes in between has counted a use as well.
        let after = score.touch(now, HALF_LIFE_MS).0;
        let _ = access_stats.compare_exchange(score.0, after, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl EnteredFile<'_> {
    /// Notes that a block in `bucket` was used. Uses of one bucket that follow each other, as of a
    /// program that reads in small pieces, count as one. Whether it is worth to see what follows:
    /// the block lies below RAM, or was brought up ahead.
    #[inline]
    pub(crate) fn used(&self, tier: TierId, bucket: BucketId, meta: &BucketMeta) -> bool {
        let slot = self.session.segment.client(self.session.slot());
        if slot.last_bucket.load(Ordering::Relaxed) == bucket.raw() + 1 {
            return false;
        }
        slot.last_bucket.store(bucket.raw() + 1, Ordering::Relaxed);
        self.count(tier, meta)
    }

    fn count(&self, tier: TierId, meta: &BucketMeta) -> bool {
        let header = self.session.segment.header();
        let now = header.now_ms.load(Ordering::Relaxed);
        let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
        let eviction = Eviction::ALL[header.eviction.load(Ordering::Relaxed) as usize % 3];
        let after = eviction.used(access_stats, now).ahead(false);
        if after != access_stats {
            meta.access_stats.store(after.0, Ordering::Relaxed);
            if !tier.is_ram() {
                header.tier[tier].used.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.session.counters().reads.load(Ordering::Relaxed).is_multiple_of(SAMPLE) {
            self.used_file();
        }
        !tier.is_ram() || access_stats.is_ahead()
    }
}
