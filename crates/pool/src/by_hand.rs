//! Locks that are released by hand, for callers that do not use [`crate::guards`] yet.

use crate::guards::{BlockGuard, ExclusiveGuard, FreshBucket, SharedGuard};
use crate::owner::Owner;
use crate::segment::Segment;
use crate::seq_lock::{LockGuard, RobustSeqLock};
use crate::sums::SlotFiles;
use crate::sync::{AtomicU64, Ordering};
use core::mem::forget;
use rustix::io::Errno;

/// A resident block whose bucket is locked by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// The index entry's word.
    pub word: u64,
    /// Tier of the bucket.
    pub tier: usize,
    /// The bucket.
    pub bucket: u32,
    /// False when the caller's own thread held the lock already and it must stay held.
    pub taken: bool,
}

impl Resident {
    fn of(block: BlockGuard<'_>) -> Resident {
        let (word, tier) = (block.word(), block.tier());
        let (bucket, taken) = (block.bucket(), block.is_taken());
        forget(block);
        Resident { word, tier, bucket, taken }
    }
}

impl Segment {
    /// Takes `lock` for a program's thread, whose wait ends when a signal handler has to run and the holder
    /// does not go on. False if the thread has it already; it must then not be released.
    ///
    /// # Errors
    /// As of [`Segment::lock_position`].
    #[inline]
    pub fn lock_unless_interrupted(
        &self,
        lock: &RobustSeqLock,
        owner: Owner,
    ) -> Result<bool, Errno> {
        let guard = self.lock_looking(lock, owner, Segment::ends_wait)?;
        let taken = guard.is_taken();
        forget(guard);
        Ok(taken)
    }

    /// [`Segment::lock_block_unless_interrupted`].
    ///
    /// # Errors
    /// As of that.
    #[inline]
    pub fn lock_resident_unless_interrupted(
        &self,
        place: &AtomicU64,
        owner: Owner,
    ) -> Result<Option<Resident>, Errno> {
        Ok(self.lock_block_unless_interrupted(place, owner)?.map(Resident::of))
    }

    /// [`Segment::init_bucket`].
    pub fn dress_bucket(&self, bucket: u32, file: u32, block: u64, owner: Owner) -> bool {
        self.init_bucket(bucket, file, block, owner).map(forget).is_some()
    }

    /// [`Segment::try_init_bucket`].
    pub fn try_dress_bucket(&self, bucket: u32, file: u32, block: u64, owner: Owner) -> bool {
        self.try_init_bucket(bucket, file, block, owner).map(forget).is_some()
    }

    fn fresh(&self, bucket: u32) -> Option<FreshBucket<'_>> {
        let meta = self.bucket(bucket)?;
        Some(FreshBucket::of(self, meta, bucket, LockGuard::of(&meta.lock, true)))
    }

    fn block(&self, resident: Resident) -> Option<BlockGuard<'_>> {
        let Resident { word, tier, bucket, taken } = resident;
        let meta = self.bucket(bucket)?;
        let lock = LockGuard::of(&meta.lock, taken);
        Some(BlockGuard::of(meta, word, tier as u8, bucket, lock))
    }

    /// Gives back a dressed bucket that lost the race for its index entry.
    pub fn undress_bucket(&self, bucket: u32) {
        drop(self.fresh(bucket));
    }

    /// [`Segment::discard_block`].
    pub fn discard_resident(&self, place: &AtomicU64, resident: Resident) {
        if let Some(block) = self.block(resident) {
            self.discard_block(place, block);
        }
    }

    /// [`FreshBucket::publish_instead`].
    pub fn publish_instead(
        &self,
        place: &AtomicU64,
        resident: Resident,
        bucket: u32,
        files: &impl SlotFiles,
    ) -> Resident {
        match (self.fresh(bucket), self.block(resident)) {
            (Some(fresh), Some(old)) => Resident::of(fresh.publish_instead(place, old, files)),
            _ => resident,
        }
    }

    /// [`FreshBucket::raise`], but for the locks: the caller has both if it fails.
    ///
    /// # Errors
    /// As of that.
    pub fn raise(
        &self,
        place: &AtomicU64,
        resident: Resident,
        bucket: u32,
        files: &impl SlotFiles,
    ) -> Result<Resident, Errno> {
        self.copy_up(resident.bucket, bucket, files)?;
        if let Some(meta) = self.bucket(bucket) {
            self.note_raised(meta);
        }
        Ok(self.publish_instead(place, resident, bucket, files))
    }

    /// Ends what was entered.
    #[inline(always)]
    pub fn leave(&self, _: Owner, inside: SharedGuard<'_>) {
        drop(inside);
    }

    /// [`Segment::lock_exclusive`]; false if the thread has the file already.
    ///
    /// # Errors
    /// As of that.
    pub fn exclude_unless_interrupted(&self, file: u32, owner: Owner) -> Result<bool, Errno> {
        let exclusive = self.exclude_looking(file, owner, Segment::ends_wait_in_time)?;
        let taken = exclusive.is_taken();
        forget(exclusive);
        Ok(taken)
    }

    /// Ends exclusive use.
    pub fn include(&self, file: u32) {
        let record = self.file(file);
        let owner = Owner::from_raw(record.exclusive.load(Ordering::SeqCst));
        drop(ExclusiveGuard::of(record, owner));
    }
}
