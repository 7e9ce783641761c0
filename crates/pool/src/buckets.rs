//! The buckets of all tiers: their states, their locks and the maps of the free ones.
//!
//! They are slices, and know no segment: see docs/design/views.md.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Entry, Identity, Owner, TierId};
//! use std::sync::atomic::Ordering;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let slot = segment.clients().claim(std::process::id(), 1).expect("one of many is free");
//! let me = Owner::new(slot, 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! let place = segment.entry_or_insert(segment.file(file), 0, me).expect("there are nodes");
//! let bucket = segment.take_bucket(me).expect("all are free");
//! let fresh = segment.init_bucket(bucket, file, 0, me).expect("no other thread has it");
//! let block = fresh.publish(place, TierId::RAM).expect("the entry is empty");
//! assert_eq!(segment.tier_of(bucket), TierId::RAM);
//! segment.buckets().discard(place, block);
//! assert_eq!(Entry::decode(place.load(Ordering::Relaxed)), Entry::Empty);
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::BucketId;
use crate::FileId;
use crate::block_guard::BlockGuard;
use crate::crash;
use crate::entry::Entry;
use crate::free_map::{FREE, FreeMap, RESERVED, States, USED};
use crate::layout::{BucketMeta, JobRecord, SlotChecksums, TierHeader};
use crate::owner::Owner;
use crate::seq_lock::LockGuard;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use forebay_placement::TierId;
use forebay_placement::hotness::AccessStats;

/// The buckets of a node, as slices of shared memory. All threads of all processes may use them at
/// once.
#[derive(Clone, Copy)]
pub struct Buckets<'a> {
    /// All buckets, tier after tier.
    pub metas: &'a [BucketMeta],
    /// What is known of the pages of those that lie in files, the first of them first.
    pub sums: &'a [SlotChecksums],
    /// A bit for each bucket that is probably free.
    pub bits: &'a [AtomicU64],
    /// The tiers in use.
    pub tiers: &'a [TierHeader],
    /// The jobs for which buckets may be set aside.
    pub jobs: &'a [JobRecord],
}

/// What locking a block needs besides the buckets: how long other threads are waited for, whether
/// they live, and what the index says.
pub trait Locking {
    /// Why a wait has ended without the lock.
    type End;

    /// Takes the lock of `bucket`, which another thread had a moment ago.
    ///
    /// # Errors
    /// The wait has ended.
    fn lock<'m>(
        &mut self,
        bucket: &'m BucketMeta,
        owner: Owner,
    ) -> Result<LockGuard<'m>, Self::End>;

    /// Waits a moment for `holder`, which writes a block around the tiers. Whether it is dead.
    ///
    /// # Errors
    /// The wait has ended.
    fn wait_for_busy(&mut self, holder: Owner) -> Result<bool, Self::End>;

    /// Whether the index entry of the block that `bucket` says it has names `bucket`.
    fn is_indexed(&self, bucket: BucketId) -> bool;
}

/// The state words of buckets.
pub struct BucketStates<'a>(&'a [BucketMeta]);

impl<'a> BucketStates<'a> {
    pub(crate) fn of(metas: &'a [BucketMeta]) -> BucketStates<'a> {
        BucketStates(metas)
    }
}

impl States for BucketStates<'_> {
    fn state(&self, item: u32) -> &AtomicU32 {
        &self.0[(item as usize).min(self.0.len() - 1)].state
    }
}

impl<'a> Buckets<'a> {
    /// Bucket `bucket`, or `None` when the id is not one.
    #[inline(always)]
    pub fn meta(self, bucket: BucketId) -> Option<&'a BucketMeta> {
        self.metas.get(bucket.index())
    }

    /// What is known of the pages of a file tier's bucket; `None` for one of RAM.
    #[inline]
    pub fn checksums(self, bucket: BucketId) -> Option<&'a SlotChecksums> {
        let first = self.tiers.get(1)?.first_bucket;
        self.sums.get(bucket.raw().checked_sub(first)? as usize)
    }

    /// The tier that `bucket` belongs to.
    pub fn tier_of(self, bucket: BucketId) -> TierId {
        TierId::RAM
            .below(self.tiers.len())
            .rev()
            .find(|&tier| bucket.raw() >= self.tiers[tier].first_bucket)
            .unwrap_or(TierId::RAM)
    }

    /// The free buckets of `tier`.
    pub fn free_map(self, tier: TierId) -> FreeMap<'a, BucketStates<'a>> {
        let TierHeader { first_bucket, buckets, .. } = self.tiers[tier];
        FreeMap {
            bits: self.bits,
            states: BucketStates(self.metas),
            first: first_bucket,
            count: buckets,
        }
    }

    /// Gives back a bucket that no index entry names. If its lock is held, the holder releases it
    /// afterwards; the next taker waits a moment for that, and takes another.
    pub fn free(self, bucket: BucketId) {
        let Some(meta) = self.meta(bucket) else { return };
        meta.valid.store(0, Ordering::Relaxed);
        meta.pages.reset(0);
        if let Some(sums) = self.checksums(bucket) {
            sums.corrupt.store(0, Ordering::Relaxed);
        }
        if self.give_to_job(bucket, meta) {
            return;
        }
        let tier = self.tier_of(bucket);
        crash::point("bucket.cleared");
        if let Some(pages) = self.pages_left(bucket, tier) {
            // In no free map before the node manager has given them up.
            self.tiers[tier].sparse.idle.fetch_add(pages, Ordering::Relaxed);
            meta.state.store(FREE, Ordering::Release);
            crash::point("sparse.idle");
            return;
        }
        self.free_map(tier).give(bucket.raw());
        crash::point("bucket.freed");
        // Sparse ones are counted by their pages, which stay claimed.
        if !self.is_sparse(bucket, tier) {
            self.tiers[tier].free.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_sparse(self, bucket: BucketId, tier: TierId) -> bool {
        let TierHeader { first_bucket, buckets, .. } = self.tiers[tier];
        bucket.raw() - first_bucket >= buckets
    }

    /// The pages that a sparse slot of a file tier has, if any.
    fn pages_left(self, bucket: BucketId, tier: TierId) -> Option<u32> {
        if tier.is_ram() || !self.is_sparse(bucket, tier) {
            return None;
        }
        let pages = self.checksums(bucket)?.claimed.load(Ordering::Acquire);
        (pages > 0).then_some(pages)
    }

    /// Gives a bucket that is set aside for a job back to its reservation. False if it is not, or
    /// the reservation was released meanwhile.
    fn give_to_job(self, bucket: BucketId, meta: &BucketMeta) -> bool {
        if meta.reserved.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let place = meta.reserved.load(Ordering::SeqCst).wrapping_sub(1) as usize;
        meta.state.store(RESERVED, Ordering::SeqCst);
        if let Some(job) = self.jobs.get(place) {
            job.free.fetch_add(1, Ordering::Release);
        }
        // A thread that releases the reservation clears the mark first, and then looks at the
        // state.
        if meta.reserved.load(Ordering::SeqCst) == 0 {
            self.free_reserved(bucket, meta);
        }
        true
    }

    /// Lets every process have a free bucket whose reservation was released.
    pub fn free_reserved(self, bucket: BucketId, meta: &BucketMeta) {
        let state = &meta.state;
        if state.compare_exchange(RESERVED, FREE, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            let tier = self.tier_of(bucket);
            self.free_map(tier).offer(bucket.raw());
            self.tiers[tier].free.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes a taken and locked bucket the home of `block` of `file`: empty, and in use from
    /// `now_ms` on.
    #[inline]
    pub fn init(self, meta: &BucketMeta, file: FileId, block: u64, now_ms: u32) {
        crash::point("bucket.initializing");
        meta.file.store(file, Ordering::Relaxed);
        meta.block.store(block, Ordering::Relaxed);
        meta.valid.store(0, Ordering::Relaxed);
        meta.pages.reset(0);
        meta.bound_for.store(0, Ordering::Relaxed);
        let access_stats = AccessStats::arriving(now_ms, false);
        // A thread that dies before the write is noted leaves no time of the bucket's last use,
        // which could lie in the future: a drain would not wait for it.
        meta.written.store(now_ms, Ordering::Relaxed);
        meta.dirtied.store(now_ms, Ordering::Relaxed);
        meta.access_stats.store(access_stats.0, Ordering::Relaxed);
        meta.state.store(USED, Ordering::Release);
        crash::point("bucket.initialized");
    }

    /// Locks the bucket that `place` names, if it still names one once it is locked. Waits while
    /// the block is written around.
    ///
    /// # Errors
    /// A wait has ended.
    pub fn lock<L: Locking>(
        self,
        place: &AtomicU64,
        owner: Owner,
        mut locking: L,
    ) -> Result<Option<BlockGuard<'a>>, L::End> {
        loop {
            let word = place.load(Ordering::Acquire);
            match Entry::decode(word) {
                // What another node has is locked there.
                Entry::Empty | Entry::Elsewhere { .. } => return Ok(None),
                Entry::Busy(holder) if holder == owner => return Ok(None),
                Entry::Busy(holder) => {
                    if locking.wait_for_busy(holder)? {
                        free_entry(place, word);
                    }
                }
                Entry::Resident { tier, bucket, .. } => {
                    let Some(meta) = self.meta(bucket) else { return Ok(None) };
                    let lock = locking.lock(meta, owner)?;
                    crash::point("bucket.locked");
                    if place.load(Ordering::Acquire) == word {
                        return Ok(Some(BlockGuard::of(meta, word, tier, bucket, lock)));
                    }
                    self.unlock_left(bucket, meta, lock, &locking);
                }
            }
        }
    }

    /// Unlocks a bucket that was locked for an entry which has another by now. It is in use by no
    /// block if the thread that was discarding it has died over that, and its lock was taken from
    /// it.
    fn unlock_left(
        self,
        bucket: BucketId,
        meta: &BucketMeta,
        mut lock: LockGuard<'_>,
        locking: &impl Locking,
    ) {
        let is_used = lock.is_taken() && meta.state.load(Ordering::Acquire) == USED;
        if is_used && !locking.is_indexed(bucket) {
            self.free(bucket);
        }
        lock.changed();
    }

    /// Removes a locked block, of which no flush is under way, from the index and frees its bucket;
    /// its bytes are gone.
    pub fn discard(self, place: &AtomicU64, mut block: BlockGuard<'_>) {
        crash::point("discard.begin");
        place.store(Entry::EMPTY, Ordering::Release);
        crash::point("discard.unpublished");
        self.free(block.bucket());
        crash::point("discard.freed");
        block.changed();
    }

    /// Lets `place` say `word`, another home of the block that `old` has, and frees that one.
    pub fn replace(self, place: &AtomicU64, word: u64, mut old: BlockGuard<'_>) {
        place.store(word, Ordering::Release);
        crash::point("replace.published");
        self.free(old.bucket());
        crash::point("replace.freed");
        old.changed();
    }
}

/// Locks the bucket that `place` names if that succeeds at once, which is the usual case; else does
/// what `slow` says, which is [`Buckets::lock`]. `meta` finds a bucket.
///
/// # Errors
/// Those of `slow`.
#[inline(always)]
pub fn lock_or<'a, E>(
    place: &AtomicU64,
    owner: Owner,
    meta: impl FnOnce(BucketId) -> Option<&'a BucketMeta>,
    slow: impl FnOnce() -> Result<Option<BlockGuard<'a>>, E>,
) -> Result<Option<BlockGuard<'a>>, E> {
    let word = place.load(Ordering::Acquire);
    if let Entry::Resident { tier, bucket, .. } = Entry::decode(word)
        && let Some(meta) = meta(bucket)
        && let Some(lock) = meta.lock.guard_or_wait(owner)
    {
        meta.pages.repair(&meta.valid);
        crash::point("bucket.locked");
        if place.load(Ordering::Acquire) == word {
            return Ok(Some(BlockGuard::of(meta, word, tier, bucket, lock)));
        }
    }
    slow()
}

/// Empties an entry that says `word`: its owner, which was writing the block around, is dead.
pub fn free_entry(place: &AtomicU64, word: u64) {
    let _ = place.compare_exchange(word, Entry::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
}
