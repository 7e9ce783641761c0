//! Moving a block from the slot of a file tier to RAM, where the slot cannot be written any more.

use crate::BucketId;
use crate::checksums::SlotFiles;
use crate::guards::BlockGuard;
use crate::layout::BucketMeta;
use crate::owner::Owner;
use crate::page_set::PageSet;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use core::ops::Range;
use forebay_placement::TierId;
use rustix::io::Errno;

/// Notes of a copy `new` of the block in `old` what is known of it.
fn describe_copy(old: &BucketMeta, new: &BucketMeta, valid: u64, pending: u64) {
    for (new, old) in [(&new.written, &old.written), (&new.dirtied, &old.dirtied)] {
        new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    new.access_stats.store(old.access_stats.load(Ordering::Relaxed), Ordering::Relaxed);
    new.valid.store(valid, Ordering::Release);
    new.pages.reset(pending & valid);
}

impl Segment {
    /// Notes that RAM has some of the file of bucket `meta`.
    pub(crate) fn note_raised(&self, meta: &BucketMeta) {
        let file = meta.file.load(Ordering::Relaxed);
        if self.header().has_file(file) {
            self.file(file).note_tier(TierId::RAM);
        }
    }

    /// Copies the pages of slot `from` and what is known of them to RAM bucket `to`. Both are
    /// locked.
    pub(crate) fn copy_up(
        &self,
        from: BucketId,
        to: BucketId,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let (old, new) = (self.bucket(from), self.bucket(to));
        let (old, new) = (old.ok_or(Errno::IO)?, new.ok_or(Errno::IO)?);
        let sums = self.checksums(from).ok_or(Errno::IO)?;
        let page = self.page_bytes();
        // A dead manager's writes among them: nothing says that they have arrived.
        let pending = old.pending_under_lock();
        let mut valid = old.valid.load(Ordering::Acquire);
        for number in PageSet(valid).pages() {
            let at = number * page;
            // SAFETY: inside the bucket, which only the caller has.
            let content =
                unsafe { core::slice::from_raw_parts_mut(self.bucket_data(to).add(at), page) };
            let read = sums.read_page(number, content, |to| files.read_slot(from, at, to));
            let right = read == Ok(true);
            if !right && pending >> number & 1 == 1 {
                self.mark_corrupt(old, sums, 1 << number);
                return Err(read.err().unwrap_or(Errno::IO));
            }
            if !right {
                // The store has it.
                valid &= !(1 << number);
            }
        }
        self.note_copied(old.file.load(Ordering::Relaxed), pending & valid);
        describe_copy(old, new, valid, pending);
        Ok(())
    }

    /// Copies the valid pages of RAM bucket `from` and what is known of them to another one, `to`,
    /// which has memory for all. Both are locked.
    pub(crate) fn copy_over(&self, from: BucketId, to: BucketId) {
        let (Some(old), Some(new)) = (self.bucket(from), self.bucket(to)) else { return };
        let page = self.page_bytes();
        let valid = old.valid.load(Ordering::Acquire);
        for run in PageSet(valid).runs() {
            let (at, bytes) = (run.start * page, run.len() * page);
            // SAFETY: inside the buckets, which only the caller has; the pages of the first have
            // memory because they are valid.
            unsafe {
                let content = self.bucket_data(from).add(at).cast_const();
                self.bucket_data(to).add(at).copy_from_nonoverlapping(content, bytes);
            }
        }
        let pending = old.pending_under_lock();
        self.note_copied(old.file.load(Ordering::Relaxed), pending & valid);
        describe_copy(old, new, valid, pending);
    }

    /// Makes bytes of one page of a locked block zero, wherever it lies, if that page is valid. A
    /// block whose slot cannot be written moves to RAM. Returns what has the block then, also
    /// beside an error.
    ///
    /// # Errors
    /// The device's errno if there is no room in RAM, or bytes that only the slot has cannot be
    /// read.
    pub(crate) fn zero_in_block<'a>(
        &'a self,
        place: &AtomicU64,
        block: BlockGuard<'a>,
        range: Range<usize>,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> (BlockGuard<'a>, Result<(), Errno>) {
        let page = range.start / self.page_bytes();
        let is_valid = |meta: &BucketMeta| meta.valid.load(Ordering::Relaxed) >> page & 1 == 1;
        if range.is_empty() || !is_valid(block.meta()) {
            return (block, Ok(()));
        }
        let block = if block.tier().is_ram() {
            block
        } else {
            match self.zero_in_slot(files, block.bucket(), range.start, range.end) {
                Ok(()) => return (block, Ok(())),
                Err(errno) => match self.bring_up(place, block, owner, files) {
                    Ok(raised) => raised,
                    Err(block) => return (block, Err(errno)),
                },
            }
        };
        if is_valid(block.meta()) {
            // SAFETY: inside the bucket, whose lock is held.
            unsafe {
                let at = self.bucket_data(block.bucket()).add(range.start);
                at.write_bytes(0, range.len());
            }
        }
        (block, Ok(()))
    }

    /// Moves a locked block to RAM, whose slot cannot be written.
    ///
    /// # Errors
    /// The block, where it was, if there is no room or the slot cannot be read either.
    fn bring_up<'a>(
        &'a self,
        place: &AtomicU64,
        block: BlockGuard<'a>,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<BlockGuard<'a>, BlockGuard<'a>> {
        let meta = block.meta();
        self.wait_for_writeback(meta);
        if !block.is_taken() {
            return Err(block);
        }
        let Some(bucket) = self.take_bucket(owner) else { return Err(block) };
        let file = meta.file.load(Ordering::Relaxed);
        let number = meta.block.load(Ordering::Relaxed);
        match self.init_bucket(bucket, file, number, owner) {
            Some(fresh) => fresh.raise(place, block, files).map_err(|(_, block)| block),
            None => Err(block),
        }
    }
}
