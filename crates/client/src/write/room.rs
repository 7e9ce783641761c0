//! A bucket for a new block.

use super::WrittenPart;
use crate::access::EnteredFile;
use crate::placement::{hierarchy, question};
use crate::session::Session;
use core::sync::atomic::Ordering;
use forebay_placement::{Destination, Request};
use forebay_pool::BucketId;
use forebay_pool::clock::Timer;
use forebay_pool::guards::FreshBucket;
use forebay_pool::layout::*;
use forebay_pool::{Owner, futex};

/// How long a writer waits for room while none is made, before it writes around the tiers.
const ROOM_TIMEOUT: Timer = Timer::seconds(5);
/// How often it then looks whether there is still a manager.
const ROOM_LOOK: Timer = Timer::ms(50);

/// Buckets that are free and still locked by a thread that does not go on, two milliseconds each:
/// after so many a write goes around the tiers, and what cannot do without a bucket fails.
const LOCKED_MOST: usize = 32;

impl EnteredFile<'_> {
    /// A bucket of RAM, with its tier.
    pub(super) fn ram_bucket(&self) -> Option<(TierId, BucketId)> {
        Some((TierId::RAM, self.session.room(self.owner)?))
    }

    /// A bucket for a new block, and its tier: the one that the placement engine chooses, or the
    /// next that has room. `None`: the store.
    pub(super) fn bucket_for(&self, part: WrittenPart, refused: u32) -> Option<(TierId, BucketId)> {
        let takes =
            |tier: TierId| refused >> tier.index() & 1 == 0 && self.session.segment.is_sound(tier);
        if refused == 0
            && let Some(taken) = self.reserved_for()
        {
            if takes(taken.0) {
                return Some(taken);
            }
            self.session.segment.free_bucket(taken.1);
        }
        let first = match self.destination(part.ahead) {
            Destination::Tier(0) => return self.ram_bucket(),
            Destination::Tier(tier) => tier,
            Destination::Store => return None,
        };
        let client = self.session.segment.client(self.owner.slot());
        let tiers = self.session.segment.header().tiers_in_use().skip(first);
        for tier in tiers.filter(|&tier| takes(tier)) {
            let mut hint = client.bucket_hint.load(Ordering::Relaxed);
            if let Some(slot) = self.session.segment.take_slot(tier, self.owner, &mut hint) {
                client.bucket_hint.store(hint, Ordering::Relaxed);
                return Some((tier, slot));
            }
        }
        self.ram_bucket()
    }

    /// Where the next block of a write goes that has `ahead` bytes to go.
    fn destination(&self, ahead: u64) -> Destination {
        let record = self.record;
        let seed = self.session.counters().writes.load(Ordering::Relaxed);
        let settings = self.session.settings(record);
        let (policy, request) = question(&self.session.segment, Some(record), settings, ahead);
        let request = Request { seed, ..request };
        let store = record.store.load(Ordering::Relaxed) as usize;
        self.session.engine.first(policy, &hierarchy(&self.session.segment, store), &request)
    }

    /// A bucket that is set aside for this run, if the file may have one: the fastest first.
    fn reserved_for(&self) -> Option<(TierId, BucketId)> {
        let job = self.session.job()?;
        if job.reserved.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let record = self.record;
        let entitled = job.reserved_for.load(Ordering::Relaxed) == reserved_for::ALL
            || self.session.segment.rule_of(record).is_some_and(|rule| rule.settings().reserve > 0);
        if !entitled {
            return None;
        }
        self.session.segment.take_reserved(job.number.load(Ordering::Relaxed), self.owner)
    }

    /// A bucket that `take` gives, with its tier, locked for `block`. `None` if there is none, or
    /// if each of as many as are tried is still locked by a thread that has given it back and does
    /// not go on.
    #[inline(always)]
    pub(super) fn fresh(
        &self,
        block: u64,
        mut take: impl FnMut() -> Option<(TierId, BucketId)>,
    ) -> Option<(TierId, FreshBucket<'_>)> {
        let (tier, bucket) = take()?;
        match self.session.segment.try_init_bucket(bucket, self.id, block, self.owner) {
            Some(fresh) => Some((tier, fresh)),
            None => self.fresh_beside(bucket, block, take),
        }
    }

    /// The same, where bucket `locked` is still locked.
    #[cold]
    fn fresh_beside(
        &self,
        locked: BucketId,
        block: u64,
        mut take: impl FnMut() -> Option<(TierId, BucketId)>,
    ) -> Option<(TierId, FreshBucket<'_>)> {
        let mut kept = [locked; LOCKED_MOST];
        let mut count = 1;
        let mut fresh = None;
        while count < LOCKED_MOST
            && let Some((tier, bucket)) = take()
        {
            let init = self.session.segment.try_init_bucket(bucket, self.id, block, self.owner);
            if let Some(init) = init {
                fresh = Some((tier, init));
                break;
            }
            kept[count] = bucket;
            count += 1;
        }
        for &bucket in &kept[..count] {
            self.session.segment.free_bucket(bucket);
        }
        fresh
    }
}

impl Session {
    /// A RAM bucket; when none is free, waits while the node manager makes room. `None` when it
    /// does not.
    pub(super) fn room(&self, owner: Owner) -> Option<BucketId> {
        if let Some(bucket) = self.segment.take_bucket(owner) {
            return Some(bucket);
        }
        let header = self.segment.header();
        let mut made = header.room_made.load(Ordering::Acquire);
        // What only lacks memory gets it in a moment; there is no pressure.
        let grows = self.segment.growable() > 0;
        // Nothing has become free since a thread here waited in vain: each write would wait as
        // long.
        if self.waited_in_vain.load(Ordering::Relaxed) == u64::from(made) {
            return None;
        }
        if !grows {
            self.counters().backpressure.fetch_add(1, Ordering::Relaxed);
        }
        let mut idle_ms = 0;
        while idle_ms < ROOM_TIMEOUT.as_ms() {
            made = header.room_made.load(Ordering::Acquire);
            if let Some(bucket) = self.segment.take_bucket(owner) {
                return Some(bucket);
            }
            futex::wait(&header.room_made, made, ROOM_LOOK.as_ms());
            if header.room_made.load(Ordering::Acquire) != made {
                idle_ms = 0;
                continue;
            }
            idle_ms += ROOM_LOOK.as_ms();
            // None makes room that is dead or stopped.
            if !self.segment.manager_is_alive() || self.segment.manager_is_stopped() {
                break;
            }
        }
        self.waited_in_vain.store(u64::from(made), Ordering::Relaxed);
        None
    }

    /// Maps the pages of a RAM bucket, which the caller has locked, before they are touched one by
    /// one; at most once for each piece: that has memory as long as one of its buckets is in use.
    pub(crate) fn populate(&self, bucket: BucketId) {
        let piece = self.segment.piece_of(bucket);
        let number = piece.start / self.segment.piece_buckets();
        let Some(word) = self.populated.get(number as usize) else { return };
        if word.load(Ordering::Relaxed) != 0 || word.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let at = self.segment.bucket_data(BucketId::from_raw(piece.start));
        // SAFETY: part of the segment's mapping; only page tables change.
        let _ = unsafe {
            rustix::mm::madvise(
                at.cast(),
                piece.len() * self.segment.bucket_bytes(),
                rustix::mm::Advice::LinuxPopulateRead,
            )
        };
    }
}
