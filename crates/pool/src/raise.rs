//! Moving a block from the slot of a file tier to RAM, where the slot cannot be written any more.

use crate::buckets::Resident;
use crate::crash;
use crate::entry::Entry;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sums::{SlotFiles, each_page};
use crate::sync::{AtomicU64, Ordering};
use core::ops::Range;
use rustix::io::Errno;

impl Segment {
    /// Makes RAM bucket `bucket`, which has the block's bytes and is locked, the block's home in place of `resident`,
    /// which is freed and unlocked. No flush reads that, and the caller has its lock.
    pub fn publish_instead(
        &self,
        place: &AtomicU64,
        resident: Resident,
        bucket: u32,
        files: &impl SlotFiles,
    ) -> Resident {
        // The old copy must not reach the store after the new one, not even after a reboot.
        self.void_slot(files, resident.bucket);
        crash::point("replace.filled");
        let word = Entry::resident(0, bucket).encode();
        place.store(word, Ordering::Release);
        crash::point("replace.published");
        self.free_bucket(resident.bucket);
        crash::point("replace.freed");
        if let Some(old) = self.bucket(resident.bucket).filter(|_| resident.taken) {
            old.lock.unlock_changed();
        }
        Resident { word, tier: 0, bucket, taken: true }
    }

    /// Moves the block that `resident` has, a slot that the caller has locked itself and that no flush reads, to
    /// `bucket` of RAM, which is dressed for it. What has the block then is locked.
    ///
    /// # Errors
    /// The device's, or `IO`, if bytes that only the slot has cannot be read as they were written. Nothing has
    /// changed then, and the caller has both locks.
    pub fn raise(
        &self,
        place: &AtomicU64,
        resident: Resident,
        bucket: u32,
        files: &impl SlotFiles,
    ) -> Result<Resident, Errno> {
        self.copy_up(resident.bucket, bucket, files)?;
        if let Some(meta) = self.bucket(bucket) {
            let file = meta.file.load(Ordering::Relaxed);
            if file < self.header().files {
                self.file(file).note_tier(0);
            }
        }
        Ok(self.publish_instead(place, resident, bucket, files))
    }

    /// Copies the pages of slot `from` and what is known of them to RAM bucket `to`. Both are locked.
    fn copy_up(&self, from: u32, to: u32, files: &impl SlotFiles) -> Result<(), Errno> {
        let (old, new) = (self.bucket(from), self.bucket(to));
        let (old, new) = (old.ok_or(Errno::IO)?, new.ok_or(Errno::IO)?);
        let sums = self.sums(from).ok_or(Errno::IO)?;
        let page = self.page_bytes();
        // A dead manager's writes among them: nothing says that they have arrived.
        let pending = old.pending_under_lock();
        let mut valid = old.valid.load(Ordering::Acquire);
        for number in each_page(valid) {
            let at = number * page;
            // SAFETY: inside the bucket, which only the caller has.
            let content =
                unsafe { core::slice::from_raw_parts_mut(self.bucket_data(to).add(at), page) };
            let read = files.read_slot(from, at, content);
            let right = read.is_ok() && sums.agrees(number, sums.get(number), content);
            if !right && pending >> number & 1 == 1 {
                self.mark_rotten(old, sums, 1 << number);
                return read.and(Err(Errno::IO));
            }
            if !right {
                // The store has it.
                valid &= !(1 << number);
            }
        }
        for (new, old) in [(&new.written, &old.written), (&new.dirtied, &old.dirtied)] {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        new.heat.store(old.heat.load(Ordering::Relaxed), Ordering::Relaxed);
        new.valid.store(valid, Ordering::Release);
        new.pages.reset(pending & valid);
        Ok(())
    }

    /// Makes bytes of one page of a locked block zero, wherever it lies, if that page is valid. A block whose slot
    /// cannot be written moves to RAM: what has the block then, and is locked, is in `resident`.
    ///
    /// # Errors
    /// The device's errno if there is no room in RAM, or bytes that only the slot has cannot be read.
    pub(crate) fn zero_in_block(
        &self,
        place: &AtomicU64,
        resident: &mut Resident,
        range: Range<usize>,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let is_valid = |bucket: u32| {
            let valid = self.bucket(bucket).map_or(0, |meta| meta.valid.load(Ordering::Relaxed));
            valid >> (range.start / self.page_bytes()) & 1 == 1
        };
        if range.is_empty() || !is_valid(resident.bucket) {
            return Ok(());
        }
        if resident.tier > 0 {
            let Err(errno) = self.zero_in_slot(files, resident.bucket, range.start, range.end)
            else {
                return Ok(());
            };
            let file = self.bucket(resident.bucket).map(|meta| {
                self.wait_for_writeback(meta);
                (meta.file.load(Ordering::Relaxed), meta.block.load(Ordering::Relaxed))
            });
            let (file, block) = file.filter(|_| resident.taken).ok_or(errno)?;
            let bucket = self.take_bucket(owner).ok_or(errno)?;
            if !self.dress_bucket(bucket, file, block, owner) {
                return Err(errno);
            }
            match self.raise(place, *resident, bucket, files) {
                Ok(raised) => *resident = raised,
                Err(_) => {
                    self.undress_bucket(bucket);
                    return Err(errno);
                }
            }
        }
        if is_valid(resident.bucket) {
            // SAFETY: inside the bucket, whose lock is held.
            unsafe {
                let at = self.bucket_data(resident.bucket).add(range.start);
                at.write_bytes(0, range.len());
            }
        }
        Ok(())
    }
}
