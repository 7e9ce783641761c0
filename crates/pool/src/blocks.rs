//! What a segment adds to its [buckets](crate::buckets::Buckets): caches of free ones, and waiting
//! for threads that may be dead.

use crate::backoff::Backoff;
use crate::buckets::{self, Locking, free_entry};
use crate::crash;
use crate::entry::Entry;
use crate::futex;
use crate::guards::{BlockGuard, FreshBucket};
use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::segment::Segment;
use crate::seq_lock::LockGuard;
use crate::sync::{AtomicU64, Ordering};
use crate::{BucketId, FileId};
use rustix::io::Errno;

/// Buckets a client takes from the free map at once: 4 MiB of 256 KiB buckets.
pub const REFILL: u32 = 16;

impl Segment {
    /// Takes a RAM bucket for `owner`: from its process's cache, else from the free map.
    pub fn take_bucket(&self, owner: Owner) -> Option<BucketId> {
        if crash::refused("bucket") {
            return None;
        }
        let slot = self.client(owner.slot());
        for place in &slot.buckets {
            if place.load(Ordering::Relaxed) != 0
                && let Some(bucket) = place.swap(0, Ordering::Acquire).checked_sub(1)
            {
                crash::point("bucket.uncached");
                return Some(BucketId::from_raw(bucket));
            }
        }
        self.refill(owner, slot)
    }

    fn refill(&self, owner: Owner, slot: &ClientSlot) -> Option<BucketId> {
        // A small pool is not to be hoarded by the first process that comes.
        let most = REFILL.min(self.ram_buckets() / 32).max(1);
        let mut first = None;
        let hint = slot.bucket_hint.load(Ordering::Relaxed);
        let (found, next) = self.free_buckets(TierId::RAM).take(owner, hint, most, |bucket| {
            let bucket = BucketId::from_raw(bucket);
            if first.is_none() {
                first = Some(bucket);
            } else {
                self.cache_bucket(bucket, slot);
            }
        });
        slot.bucket_hint.store(next, Ordering::Relaxed);
        crash::point("bucket.refilled");
        self.after_take(TierId::RAM, found);
        first
    }

    /// Counts what was taken from tier `tier`, and wakes the thread that can get more: memory for
    /// buckets of RAM that have none, or else room.
    fn after_take(&self, tier: TierId, found: u32) {
        let is_short = self.count_taken(tier, found);
        let lacks_memory = tier.is_ram() && found == 0 && self.growable() > 0;
        if lacks_memory || tier.is_ram() && self.is_short_of_memory() {
            self.want_memory();
        }
        if is_short || found == 0 && !lacks_memory {
            self.want_room();
        }
    }

    /// Notes that `count` buckets of tier `tier` were taken. True if it is short of them since.
    fn count_taken(&self, tier: TierId, count: u32) -> bool {
        let header = &self.header().tier[tier];
        let before = header.free.fetch_sub(count, Ordering::Relaxed);
        let low = header.low.load(Ordering::Relaxed);
        before >= low && before.saturating_sub(count) < low
    }

    /// About how many buckets of tier `tier` are free.
    pub fn free_in(&self, tier: TierId) -> u32 {
        let header = &self.header().tier[tier];
        let free = header.free.load(Ordering::Relaxed);
        // Takers count after the fact: for a moment it may stand below zero.
        if free > header.buckets { 0 } else { free }
    }

    /// Takes one bucket of tier `tier`, past the cache, for `owner`; `hint` is where the search
    /// begins, and is set to where the next one should.
    pub fn take_slot(&self, tier: TierId, owner: Owner, hint: &mut u32) -> Option<BucketId> {
        if crash::refused("slot") {
            return None;
        }
        let mut slot = None;
        let (found, next) = self
            .free_buckets(tier)
            .take(owner, *hint, 1, |taken| slot = Some(BucketId::from_raw(taken)));
        *hint = next;
        self.after_take(tier, found);
        slot
    }

    fn cache_bucket(&self, bucket: BucketId, slot: &ClientSlot) {
        for place in &slot.buckets {
            let put =
                place.compare_exchange(0, bucket.raw() + 1, Ordering::Release, Ordering::Relaxed);
            if put.is_ok() {
                crash::point("bucket.cached");
                return;
            }
        }
        self.free_bucket(bucket);
    }

    /// Wakes the thread that makes room in RAM.
    pub fn want_room(&self) {
        let wanted = &self.header().room_wanted;
        wanted.fetch_add(1, Ordering::Relaxed);
        futex::wake_all(wanted);
    }

    /// Notes that a block in RAM goes to the file tier `tier`. [`Segment::wake_bound`] tells the
    /// placers.
    pub fn bind(&self, meta: &BucketMeta, tier: TierId) {
        meta.bound_for.store(tier.index() as u16, Ordering::Relaxed);
        self.header().tier[tier].bound.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes the placers of tiers for which blocks are [bound](Segment::bind).
    pub fn wake_bound(&self) {
        let header = self.header();
        // A placer that has not seen this says that it is asleep before it looks at the futex.
        header.blocks_bound.fetch_add(1, Ordering::SeqCst);
        if header.placers_asleep.swap(0, Ordering::SeqCst) != 0 {
            futex::wake_all(&header.blocks_bound);
        }
    }

    /// Wakes all placers, whatever they wait for.
    pub fn wake_placers(&self) {
        let bound = &self.header().blocks_bound;
        bound.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(bound);
    }

    /// Notes that a block of file tier `tier` was used so often that it may go up, and wakes the
    /// promoter.
    #[cold]
    pub fn note_hot(&self, tier: TierId) {
        let header = self.header();
        header.tier[tier].used.fetch_add(1, Ordering::Relaxed);
        header.blocks_hot.fetch_add(1, Ordering::SeqCst);
        if header.promoter_asleep.load(Ordering::SeqCst) != 0
            && header.promoter_asleep.swap(0, Ordering::SeqCst) != 0
        {
            futex::wake_all(&header.blocks_hot);
        }
    }

    /// Wakes the promoter, whatever it waits for.
    pub fn wake_promoter(&self) {
        let hot = &self.header().blocks_hot;
        hot.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(hot);
    }

    /// About how many blocks in RAM are on their way to lower tiers.
    pub fn bound_in_ram(&self) -> u32 {
        let tiers = TierId::RAM.below(self.header().tiers as usize);
        let bound = tiers.map(|tier| self.header().tier[tier].bound.load(Ordering::Relaxed));
        bound.fold(0, u32::saturating_add).min(self.ram_buckets())
    }

    /// Tells the demoter of a tier that a plan wants so many more bytes to be free there.
    pub fn plan_room(&self, tier: TierId, bytes: u64) {
        let buckets = bytes.div_ceil(self.bucket_bytes() as u64).min(u32::MAX.into()) as u32;
        let planned = &self.header().tier[tier].room_planned;
        if planned.fetch_max(buckets, Ordering::Relaxed) < buckets {
            self.want_room();
        }
    }

    /// [`free`](crate::buckets::Buckets::free).
    pub fn free_bucket(&self, bucket: BucketId) {
        self.buckets().free(bucket);
    }

    /// Whether the index entry of the bucket's block names this bucket.
    pub fn is_indexed(&self, bucket: BucketId) -> bool {
        let Some(meta) = self.bucket(bucket) else { return false };
        let file = meta.file.load(Ordering::Relaxed);
        if !self.header().has_file(file)
            || self.file(file).state.load(Ordering::Acquire) != file_state::LIVE
        {
            return false;
        }
        let block = meta.block.load(Ordering::Relaxed);
        self.entry(self.file(file), block).is_some_and(|place| {
            matches!(
                Entry::decode(place.load(Ordering::Acquire)),
                Entry::Resident { bucket: named, .. } if named == bucket
            )
        })
    }

    /// Makes a taken bucket the home of `block` of `file`: locks it, marks it empty and used. The
    /// caller then fills it and publishes it in the index. `None`, and the bucket is given back,
    /// where a thread that gave it back, or took it for another block's, has been stopped before
    /// letting go of it.
    pub fn init_bucket(
        &self,
        bucket: BucketId,
        file: FileId,
        block: u64,
        owner: Owner,
    ) -> Option<FreshBucket<'_>> {
        let fresh = self.try_init_bucket(bucket, file, block, owner);
        if fresh.is_none() {
            self.free_bucket(bucket);
        }
        fresh
    }

    /// [`Segment::init_bucket`], where the caller keeps what cannot be locked until it has another
    /// one: it would be given the same again.
    pub fn try_init_bucket(
        &self,
        bucket: BucketId,
        file: FileId,
        block: u64,
        owner: Owner,
    ) -> Option<FreshBucket<'_>> {
        let meta = self.bucket(bucket)?;
        let lock = self.lock_fresh_within(meta, owner, &mut Backoff::default()).ok()?;
        self.buckets().init(meta, file, block, self.header().now_ms.load(Ordering::Relaxed));
        Some(FreshBucket::of(self, meta, bucket, lock))
    }

    /// Locks the bucket that `place` names, if it still names one once it is locked. Waits while
    /// the block is written around.
    #[inline]
    pub fn lock_block(&self, place: &AtomicU64, owner: Owner) -> Option<BlockGuard<'_>> {
        let Ok(block) = self.lock_block_looking(place, owner, Segment::waits_on);
        block
    }

    /// [`Segment::lock_block`] for a program's thread, as [`Segment::lock_position`] does.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`].
    #[inline]
    pub fn lock_block_unless_interrupted(
        &self,
        place: &AtomicU64,
        owner: Owner,
    ) -> Result<Option<BlockGuard<'_>>, Errno> {
        self.lock_block_looking(place, owner, Segment::ends_wait_in_time)
    }

    #[inline]
    pub(crate) fn lock_block_looking<E>(
        &self,
        place: &AtomicU64,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<Option<BlockGuard<'_>>, E> {
        let slow = || self.lock_block_slow(place, owner, look);
        buckets::lock_or(place, owner, |bucket| self.bucket(bucket), slow)
    }

    #[cold]
    fn lock_block_slow<E>(
        &self,
        place: &AtomicU64,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<Option<BlockGuard<'_>>, E> {
        let locking = Looking { segment: self, backoff: Backoff::default(), look };
        self.buckets().lock(place, owner, locking)
    }

    /// Takes the entry back that a dead `holder` was writing around; `word` says so.
    pub fn free_entry_of_dead(&self, place: &AtomicU64, word: u64, holder: Owner) {
        if self.clients().is_dead(holder) {
            free_entry(place, word);
        }
    }

    /// [`Segment::lock_block`], as `Segment::lock_within` does.
    ///
    /// # Errors
    /// The thread that holds the bucket, or writes the block around.
    pub fn lock_block_within(
        &self,
        place: &AtomicU64,
        owner: Owner,
        backoff: &mut Backoff,
    ) -> Result<Option<BlockGuard<'_>>, Owner> {
        self.buckets().lock(place, owner, Within { segment: self, backoff })
    }

    /// Waits until no flush reads `meta`'s bytes. The caller holds its lock, so none begins; a
    /// flush ends without the lock.
    pub fn wait_for_writeback(&self, meta: &BucketMeta) {
        let Ok(()) = self.wait_for_writeback_looking(meta, Segment::waits_on);
    }

    /// [`Segment::wait_for_writeback`], as [`Segment::lock_position`] does.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`].
    pub fn wait_for_writeback_unless_interrupted(&self, meta: &BucketMeta) -> Result<(), Errno> {
        self.wait_for_writeback_looking(meta, Segment::ends_wait_in_time)
    }

    pub(crate) fn wait_for_writeback_looking<E>(
        &self,
        meta: &BucketMeta,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut backoff = Backoff::default();
        while meta.pages.writeback() != 0 {
            if backoff.wait() {
                // A manager that is dead writes nothing more; its successor is alive only after it
                // has counted these pages as dirty again.
                if !self.manager_is_alive() {
                    break;
                }
                look(self, Owner::new(MANAGER_SLOT, 0), &backoff)?;
            }
        }
        Ok(())
    }

    /// Waits until no flush reads a locked block, and removes it:
    /// [`discard`](crate::buckets::Buckets::discard).
    pub fn discard_block(&self, place: &AtomicU64, block: BlockGuard<'_>) {
        self.wait_for_writeback(block.meta());
        self.buckets().discard(place, block);
    }
}

/// Waits as long as the holder lives, and `look` does not end the wait.
struct Looking<'s, F> {
    segment: &'s Segment,
    backoff: Backoff,
    look: F,
}

impl<E, F: Fn(&Segment, Owner, &Backoff) -> Result<(), E>> Locking for Looking<'_, F> {
    type End = E;

    fn lock<'m>(&mut self, bucket: &'m BucketMeta, owner: Owner) -> Result<LockGuard<'m>, E> {
        self.segment.lock_bucket_looking(bucket, owner, &self.look)
    }

    fn wait_for_busy(&mut self, holder: Owner) -> Result<bool, E> {
        if !self.backoff.wait() {
            return Ok(false);
        }
        if self.segment.clients().is_dead(holder) {
            return Ok(true);
        }
        (self.look)(self.segment, holder, &self.backoff).map(|()| false)
    }

    fn is_indexed(&self, bucket: BucketId) -> bool {
        self.segment.is_indexed(bucket)
    }
}

/// Waits for a moment that is shared with other waits. A wait ends with the holder.
struct Within<'s> {
    segment: &'s Segment,
    backoff: &'s mut Backoff,
}

impl Locking for Within<'_> {
    type End = Owner;

    fn lock<'m>(&mut self, bucket: &'m BucketMeta, owner: Owner) -> Result<LockGuard<'m>, Owner> {
        self.segment.lock_bucket_within(bucket, owner, self.backoff)
    }

    fn wait_for_busy(&mut self, holder: Owner) -> Result<bool, Owner> {
        if !self.backoff.is_spent() {
            self.backoff.wait();
            return Ok(false);
        }
        if self.segment.clients().is_dead(holder) { Ok(true) } else { Err(holder) }
    }

    fn is_indexed(&self, bucket: BucketId) -> bool {
        self.segment.is_indexed(bucket)
    }
}
