//! Taking, locking, publishing and discarding buckets.

use crate::BucketId;
use crate::backoff::Backoff;
use crate::crash;
use crate::entry::Entry;
use crate::free_map::{RESERVED, USED};
use crate::futex;
use crate::guards::{BlockGuard, FreshBucket};
use crate::layout::*;
use crate::owner::Owner;
use crate::segment::{MANAGER_SLOT, Segment};
use crate::seq_lock::LockGuard;
use crate::sync::{AtomicU64, Ordering};
use forebay_placement::hotness::Heat;
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
        if self.count_taken(TierId::RAM, found) || found == 0 {
            self.want_room();
        }
        first
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

    /// Takes one bucket of tier `tier`, past the cache, for `owner`; `hint` is where the search begins, and
    /// is set to where the next one should.
    pub fn take_slot(&self, tier: TierId, owner: Owner, hint: &mut u32) -> Option<BucketId> {
        if crash::refused("slot") {
            return None;
        }
        let mut slot = None;
        let (found, next) = self
            .free_buckets(tier)
            .take(owner, *hint, 1, |taken| slot = Some(BucketId::from_raw(taken)));
        *hint = next;
        if self.count_taken(tier, found) || found == 0 {
            self.want_room();
        }
        slot
    }

    /// Gives a bucket that is set aside for a job back to its reservation. False if it is not, or the
    /// reservation was released meanwhile.
    fn give_to_job(&self, bucket: BucketId, meta: &BucketMeta) -> bool {
        if meta.reserved.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let place = meta.reserved.load(Ordering::SeqCst).wrapping_sub(1) as usize;
        meta.state.store(RESERVED, Ordering::SeqCst);
        if let Some(job) = self.header().job.get(place) {
            job.free.fetch_add(1, Ordering::Release);
        }
        // Whoever releases the reservation clears the mark first, and then looks at the state.
        if meta.reserved.load(Ordering::SeqCst) == 0 {
            self.free_reserved(bucket, meta);
        }
        true
    }

    /// Lets everybody have a free bucket whose reservation was released.
    pub(crate) fn free_reserved(&self, bucket: BucketId, meta: &BucketMeta) {
        let free = crate::free_map::FREE;
        let state = &meta.state;
        if state.compare_exchange(RESERVED, free, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            let tier = self.tier_of(bucket);
            self.free_buckets(tier).offer(bucket.raw());
            self.header().tier[tier].free.fetch_add(1, Ordering::Relaxed);
        }
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

    /// Wakes whoever makes room in RAM.
    pub fn want_room(&self) {
        let wanted = &self.header().room_wanted;
        wanted.fetch_add(1, Ordering::Relaxed);
        futex::wake_all(wanted);
    }

    /// Gives back a bucket that no index entry names. If its lock is held, the holder releases it
    /// afterwards; the next taker waits a moment for that, and takes another.
    pub fn free_bucket(&self, bucket: BucketId) {
        if let Some(meta) = self.bucket(bucket) {
            meta.valid.store(0, Ordering::Relaxed);
            meta.pages.reset(0);
            if let Some(sums) = self.sums(bucket) {
                sums.rotten.store(0, Ordering::Relaxed);
            }
            if self.give_to_job(bucket, meta) {
                return;
            }
            let tier = self.tier_of(bucket);
            crash::point("bucket.cleared");
            self.free_buckets(tier).give(bucket.raw());
            crash::point("bucket.freed");
            self.header().tier[tier].free.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes a taken bucket the home of `block` of `file`: locks it, marks it empty and used. The
    /// caller then fills it and publishes it in the index. `None`, and the bucket is given back, where
    /// a thread that gave it back, or took it for another block's, has been stopped before letting go of it.
    pub fn init_bucket(
        &self,
        bucket: BucketId,
        file: u32,
        block: u64,
        owner: Owner,
    ) -> Option<FreshBucket<'_>> {
        let fresh = self.try_init_bucket(bucket, file, block, owner);
        if fresh.is_none() {
            self.free_bucket(bucket);
        }
        fresh
    }

    /// [`Segment::init_bucket`], where the caller keeps what cannot be locked until it has another one: it would be
    /// given the same again.
    pub fn try_init_bucket(
        &self,
        bucket: BucketId,
        file: u32,
        block: u64,
        owner: Owner,
    ) -> Option<FreshBucket<'_>> {
        let meta = self.bucket(bucket)?;
        let lock = self.lock_within(&meta.lock, owner, &mut Backoff::default(), || ()).ok()?;
        crash::point("bucket.dressing");
        meta.file.store(file, Ordering::Relaxed);
        meta.block.store(block, Ordering::Relaxed);
        meta.valid.store(0, Ordering::Relaxed);
        meta.pages.reset(0);
        let now = self.header().now_ms.load(Ordering::Relaxed);
        let heat = Heat::arriving(now, false);
        // A thread that dies before the write is noted leaves no time of the bucket's last use, which
        // could lie in the future: a drain would not wait for it.
        meta.written.store(now, Ordering::Relaxed);
        meta.dirtied.store(now, Ordering::Relaxed);
        meta.heat.store(heat.0, Ordering::Relaxed);
        meta.state.store(USED, Ordering::Release);
        crash::point("bucket.dressed");
        Some(FreshBucket::of(self, meta, bucket, lock))
    }

    /// Locks the bucket that `place` names, if it still names one once it is locked. Waits while the
    /// block is written around.
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
        let word = place.load(Ordering::Acquire);
        if let Entry::Resident { tier, bucket, .. } = Entry::decode(word)
            && let Some(meta) = self.bucket(bucket)
            && let Some(lock) = meta.lock.guard(owner)
        {
            meta.pages.repair(&meta.valid);
            crash::point("bucket.locked");
            if place.load(Ordering::Acquire) == word {
                return Ok(Some(BlockGuard::of(meta, word, tier, bucket, lock)));
            }
        }
        self.lock_block_slow(place, owner, look)
    }

    #[cold]
    fn lock_block_slow<E>(
        &self,
        place: &AtomicU64,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<Option<BlockGuard<'_>>, E> {
        let mut backoff = Backoff::default();
        loop {
            let word = place.load(Ordering::Acquire);
            match Entry::decode(word) {
                Entry::Empty => return Ok(None),
                Entry::Busy(holder) => {
                    if holder == owner {
                        return Ok(None);
                    }
                    if backoff.wait() {
                        self.free_entry_of_dead(place, word, holder);
                        look(self, holder, &backoff)?;
                    }
                }
                Entry::Resident { tier, bucket, .. } => {
                    let Some(meta) = self.bucket(bucket) else { return Ok(None) };
                    let lock = self.lock_bucket_looking(meta, owner, &look)?;
                    crash::point("bucket.locked");
                    if place.load(Ordering::Acquire) == word {
                        return Ok(Some(BlockGuard::of(meta, word, tier, bucket, lock)));
                    }
                    self.unlock_left(bucket, meta, lock);
                }
            }
        }
    }

    /// Unlocks a bucket that was locked for an entry which has another by now. It is in use by no block if the thread that
    /// was discarding it has died over that, and its lock was taken from it.
    fn unlock_left(&self, bucket: BucketId, meta: &BucketMeta, mut lock: LockGuard<'_>) {
        if lock.is_taken() && meta.state.load(Ordering::Acquire) == USED && !self.is_indexed(bucket)
        {
            self.free_bucket(bucket);
        }
        lock.changed();
    }

    /// Takes the entry back that a dead `holder` was writing around; `word` says so.
    pub fn free_entry_of_dead(&self, place: &AtomicU64, word: u64, holder: Owner) {
        if self.owner_is_dead(holder) {
            let empty = Entry::EMPTY;
            let _ = place.compare_exchange(word, empty, Ordering::AcqRel, Ordering::Relaxed);
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
        loop {
            let word = place.load(Ordering::Acquire);
            let (tier, bucket) = match Entry::decode(word) {
                Entry::Resident { tier, bucket, .. } => (tier, bucket),
                Entry::Busy(holder) if holder != owner => {
                    if !backoff.is_spent() {
                        backoff.wait();
                        continue;
                    }
                    if !self.owner_is_dead(holder) {
                        return Err(holder);
                    }
                    self.free_entry_of_dead(place, word, holder);
                    continue;
                }
                _ => return Ok(None),
            };
            let Some(meta) = self.bucket(bucket) else { return Ok(None) };
            let lock = self.lock_bucket_within(meta, owner, backoff)?;
            if place.load(Ordering::Acquire) == word {
                return Ok(Some(BlockGuard::of(meta, word, tier, bucket, lock)));
            }
            self.unlock_left(bucket, meta, lock);
        }
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

    /// Removes a locked block from the index and frees its bucket; its bytes are gone.
    pub fn discard_block(&self, place: &AtomicU64, mut block: BlockGuard<'_>) {
        self.wait_for_writeback(block.meta());
        crash::point("discard.begin");
        place.store(Entry::EMPTY, Ordering::Release);
        crash::point("discard.unpublished");
        self.free_bucket(block.bucket());
        crash::point("discard.freed");
        block.changed();
    }
}
