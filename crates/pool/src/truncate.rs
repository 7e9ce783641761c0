//! Cutting and extending a file, as a roll-forward operation: its goal stands in the record, so
//! that whoever finds its owner dead completes it.

use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::Ordering;
use rustix::io::Errno;

/// What a truncate needs from outside shared memory.
pub trait Outside {
    /// Writes zeros over bytes `from .. to` of a bucket that lies on a file tier.
    ///
    /// # Errors
    /// The device's errno.
    fn zero_slot(&self, bucket: u32, from: usize, to: usize) -> Result<(), Errno>;
    /// Sets the size of the file on the backing store.
    ///
    /// # Errors
    /// The store's errno; nothing has changed then.
    fn truncate_store(&self, size: u64) -> Result<(), Errno>;
}

impl Segment {
    /// Sets the size of `file` to `size`. The caller has the file exclusively.
    ///
    /// The store goes first: if it refuses, nothing has happened. What a flush under way may
    /// write behind the new end is waited for before that.
    ///
    /// # Errors
    /// The store's or a tier's errno.
    pub fn truncate(
        &self,
        file: u32,
        size: u64,
        owner: Owner,
        outside: &impl Outside,
    ) -> Result<(), Errno> {
        let record = self.file(file);
        // From here on flushes are cut at the goal.
        record.intent.store(size.wrapping_add(1), Ordering::Release);
        self.settle_beyond(file, size, owner);
        if let Err(errno) = outside.truncate_store(size) {
            record.intent.store(0, Ordering::Release);
            return Err(errno);
        }
        record.store_size.store(size, Ordering::Release);
        let before = record.size.swap(size, Ordering::AcqRel);
        let result = if size < before { self.cut(file, size, owner, outside) } else { Ok(()) };
        record.intent.store(0, Ordering::Release);
        result
    }

    /// Completes the truncate that a dead owner left in the record. The caller has the file
    /// exclusively.
    ///
    /// # Errors
    /// The store's or a tier's errno.
    pub fn complete_intent(
        &self,
        file: u32,
        owner: Owner,
        outside: &impl Outside,
    ) -> Result<(), Errno> {
        let record = self.file(file);
        let Some(size) = record.intent.load(Ordering::Acquire).checked_sub(1) else {
            return Ok(());
        };
        self.settle_beyond(file, size, owner);
        // Left for somebody who may: what is behind the goal stays until then.
        outside.truncate_store(size)?;
        record.store_size.store(size, Ordering::Release);
        record.size.store(size, Ordering::Release);
        let cut = self.cut(file, size, owner, outside);
        record.intent.store(0, Ordering::Release);
        cut
    }

    /// Waits until no flush that began before the intent was set writes blocks behind `size`.
    fn settle_beyond(&self, file: u32, size: u64, owner: Owner) {
        let first = size / self.bucket_bytes() as u64;
        self.for_each_entry(self.file(file), first, |_, place| {
            if let Some(resident) = self.lock_resident(place, owner)
                && let Some(meta) = self.bucket(resident.bucket)
            {
                self.wait_for_writeback(meta);
                if resident.taken {
                    meta.lock.unlock_unchanged();
                }
            }
            true
        });
    }

    /// Discards what lies behind `size`, and zeroes the rest of the last page.
    fn cut(&self, file: u32, size: u64, owner: Owner, outside: &impl Outside) -> Result<(), Errno> {
        let bytes = self.bucket_bytes() as u64;
        let (last, within) = (size / bytes, (size % bytes) as usize);
        let mut result = Ok(());
        self.for_each_entry(self.file(file), last, |block, place| {
            let Some(resident) = self.lock_resident(place, owner) else { return true };
            if block > last || within == 0 {
                self.discard_resident(place, resident);
                return true;
            }
            let Some(meta) = self.bucket(resident.bucket) else { return true };
            let page = self.page_bytes();
            let keep = within.div_ceil(page);
            let kept = if keep >= 64 { u64::MAX } else { (1 << keep) - 1 };
            meta.dirty.fetch_and(kept, Ordering::AcqRel);
            meta.valid.fetch_and(kept, Ordering::AcqRel);
            let end = keep * page;
            let tail_valid = meta.valid.load(Ordering::Relaxed) >> (keep - 1) & 1 == 1;
            if within < end && tail_valid {
                if resident.tier == 0 {
                    // SAFETY: inside the bucket, whose lock is held.
                    unsafe {
                        self.bucket_data(resident.bucket).add(within).write_bytes(0, end - within);
                    }
                } else if let Err(errno) = outside.zero_slot(resident.bucket, within, end) {
                    result = Err(errno);
                }
            }
            if resident.taken {
                meta.lock.unlock_changed();
            }
            true
        });
        result
    }

    /// Drops every block of `file` that is clean. The caller has the file exclusively. Returns
    /// whether nothing is left.
    pub fn drop_clean_blocks(&self, file: u32, owner: Owner) -> bool {
        let mut empty = true;
        self.for_each_entry(self.file(file), 0, |_, place| {
            let Some(resident) = self.lock_resident(place, owner) else { return true };
            let Some(meta) = self.bucket(resident.bucket) else { return true };
            let pending =
                meta.dirty.load(Ordering::Acquire) | meta.writeback.load(Ordering::Acquire);
            if pending == 0 {
                self.discard_resident(place, resident);
            } else {
                empty = false;
                if resident.taken {
                    meta.lock.unlock_unchanged();
                }
            }
            true
        });
        empty
    }

    /// Drops every block of `file`, dirty or not: nobody can ever read it again. The caller has
    /// the file exclusively.
    pub fn drop_all_blocks(&self, file: u32, owner: Owner) {
        self.for_each_entry(self.file(file), 0, |_, place| {
            if let Some(resident) = self.lock_resident(place, owner) {
                self.discard_resident(place, resident);
            }
            true
        });
    }
}
