//! Counting uses of blocks and files, for eviction, promotion and the HotData policy. What a use
//! adds is `placement`'s to say.

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::part::Part;
use core::sync::atomic::Ordering;
use forebay_placement::evict::Eviction;
use forebay_placement::hotness::{AccessStats, Score, sampled};
use forebay_placement::mix;
use forebay_placement::promote::{Block, is_asked_for};
use forebay_pool::BucketId;
use forebay_pool::layout::*;

impl OpenFile<'_> {
    /// Notes so many accesses of the file, in blocks.
    #[inline(never)]
    pub(crate) fn accessed(&self, blocks: f32) {
        let header = self.session.segment.header();
        let (now, half_life) = (header.now_ms.load(Ordering::Relaxed), header.half_life_ms());
        let add = |score| Some(Score(score).plus(blocks, now, half_life).0);
        let hotness = &self.record.hotness;
        let _ = hotness.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Notes an access of a part of a block that lies in no bucket, so that nothing says whether it
    /// goes on with an earlier one: it counts by its share of what the block has.
    pub(crate) fn accessed_through(&self, part: Part) {
        let block = self.session.segment.bucket_bytes() as u64;
        let size = self.record.size.load(Ordering::Relaxed);
        let has = size.saturating_sub(part.block.saturating_mul(block)).clamp(1, block);
        let share = (part.bytes as f32 / has as f32).min(1.0);
        let number = || self.use_number(part.block << 32 | part.within as u64);
        let times = if share < 0.5 { sampled(number()) } else { self.score().counts(number) };
        if times > 0 {
            self.accessed(share * times as f32);
        }
    }

    fn score(&self) -> Score {
        Score(self.record.hotness.load(Ordering::Relaxed))
    }

    /// Another number for each use of a `place`, by each process.
    fn use_number(&self, place: u64) -> u64 {
        let counters = self.session.counters();
        let reads = counters.reads.load(Ordering::Relaxed);
        let calls = reads.wrapping_add(counters.writes.load(Ordering::Relaxed));
        mix(place) ^ u64::from(self.session.slot()) << 48 ^ calls
    }
}

impl EnteredFile<'_> {
    /// Notes that a block in `bucket` was used. Uses of one bucket that follow each other, as of a
    /// program that reads in small pieces, count as one in each second. Whether it is worth to see
    /// what follows: the block lies below RAM, or was brought up ahead.
    #[inline]
    pub(crate) fn used(&self, tier: TierId, bucket: BucketId, meta: &BucketMeta) -> bool {
        let slot = self.session.segment.client(self.session.slot());
        if slot.last_bucket.load(Ordering::Relaxed) == bucket.raw() + 1 {
            return false;
        }
        slot.last_bucket.store(bucket.raw() + 1, Ordering::Relaxed);
        self.count(tier, bucket, meta)
    }

    fn count(&self, tier: TierId, bucket: BucketId, meta: &BucketMeta) -> bool {
        let header = self.session.segment.header();
        let now = header.now_ms.load(Ordering::Relaxed);
        let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
        let eviction = Eviction::ALL[header.eviction.load(Ordering::Relaxed) as usize % 3];
        let after = eviction.used(access_stats, now).ahead(false);
        if after != access_stats {
            meta.access_stats.store(after.0, Ordering::Relaxed);
            if !tier.is_ram() {
                let asked = header.tier[tier].promotes_at.load(Ordering::Relaxed);
                if is_asked_for(&Block::of(after, false), asked) {
                    self.session.segment.note_hot(tier);
                }
            }
        }
        match self.score().counts(|| self.use_number(bucket.raw().into())) {
            0 => {}
            accesses => self.accessed(accesses as f32),
        }
        let is_hit = tier.is_ram() && access_stats.is_ahead();
        if is_hit {
            self.session.count_up(&self.session.counters().guess_hits, 1);
        }
        !tier.is_ram() || is_hit
    }
}
