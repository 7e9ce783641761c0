//! Checksums of pages on file tiers: CRC-32C, of which 0 means "not known". A thread that changes a
//! slot stores 0 for the pages that it touches, writes them, stores their sums, and writes the
//! slot's record.
//!
//! ```
//! use forebay_pool::BucketId;
//! use forebay_pool::checksum::checksum_of;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//!
//! // Below a RAM tier of 16 MiB one of files: its slots come after 64 buckets of 256 KiB.
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20, 64 << 20]))?;
//! let sums = segment.checksums(BucketId::from_raw(64)).expect("a slot");
//! let page = [7u8; 4096];
//! sums.set(3, checksum_of(&page));
//! assert!(sums.agrees(3, sums.get(3), &page) && !sums.agrees(3, sums.get(3), &[8; 4096]));
//! sums.forget(1 << 3);
//! assert_eq!(sums.get(3), 0);
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::BucketId;
use crate::checksum::{Checksum, checksum_of};
use crate::crash;
use crate::layout::{BucketMeta, FileFlags, SlotChecksums};
use crate::page_set::PageSet;
use crate::segment::Segment;
use crate::slot_record::RECORD_BYTES;
use crate::sync::Ordering;
use rustix::io::Errno;

/// Bytes that are read or written at once where only a part of a page changes.
const CHUNK: usize = 4096;

/// The files of the file tiers, as the calling process reaches them.
pub trait SlotFiles {
    /// Reads from byte `within` of slot `bucket`.
    ///
    /// # Errors
    /// The device's errno; `IO` where the file is too short.
    fn read_slot(&self, bucket: BucketId, within: usize, to: &mut [u8]) -> Result<(), Errno>;
    /// Writes to byte `within` of slot `bucket`.
    ///
    /// # Errors
    /// The device's errno.
    fn write_slot(&self, bucket: BucketId, within: usize, from: &[u8]) -> Result<(), Errno>;
    /// Writes the record of slot `bucket`.
    ///
    /// # Errors
    /// The device's errno.
    fn write_record(&self, bucket: BucketId, record: &[u8; RECORD_BYTES]) -> Result<(), Errno>;
}

impl SlotChecksums {
    /// The sum of page `page`; 0 is not known.
    #[inline]
    pub fn get(&self, page: usize) -> u32 {
        self.sum[page % 64].load(Ordering::SeqCst)
    }

    /// Notes a page's sum.
    pub fn set(&self, page: usize, sum: u32) {
        self.sum[page % 64].store(sum, Ordering::SeqCst);
        self.corrupt.fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
    }

    /// The bytes of `pages` are about to change: a thread that reads them meanwhile cannot compare.
    pub fn forget(&self, pages: u64) {
        for page in PageSet(pages).pages() {
            self.sum[page].store(0, Ordering::SeqCst);
        }
        self.corrupt.fetch_and(!pages, Ordering::Relaxed);
    }

    /// Pages of `pages` known to be corrupt.
    pub fn corrupt(&self, pages: u64) -> u64 {
        self.corrupt.load(Ordering::Acquire) & pages
    }

    /// Whether `bytes`, read from page `page`, are what was written. They are, too, where another
    /// thread began to write the page meanwhile: `before` is its sum as it was before they were
    /// read.
    pub fn agrees(&self, page: usize, before: u32, bytes: &[u8]) -> bool {
        before == 0 || checksum_of(bytes) == before || self.get(page) != before
    }
}

impl Segment {
    /// Writes the record of slot `bucket`, whose lock the caller holds. The segment stays right
    /// where that fails: only a reboot will not find the slot's data, and nothing new goes there.
    pub fn record_slot(&self, files: &impl SlotFiles, bucket: BucketId) {
        let flag = || {
            if let Some(meta) = self.bucket(bucket)
                && meta.pending() != 0
                && let file = meta.file.load(Ordering::Relaxed)
                && self.header().has_file(file)
                && !self.file(file).has(FileFlags::SCRATCH)
                && !self.file(file).set(FileFlags::SLOTTED)
            {
                self.files().touch(file);
            }
        };
        // Before and after its number is taken: the manager takes one to reconcile files, too, and
        // clears the flag before that or looks at it after that.
        flag();
        self.sum_unfinished(files, bucket);
        let record = self.slot_record(bucket);
        flag();
        crash::point("record.writing");
        if let Err(errno) = files.write_record(bucket, &record.encode()) {
            self.fail_tier(self.tier_of(bucket), errno);
        }
        crash::point("record.written");
    }

    /// Notes the sums of those dirty pages of slot `bucket`, whose lock the caller holds, that have
    /// none: a thread has died while it wrote them, and what it left counts. In a record without
    /// their sums they would stand for whatever is there after a loss of power: the bytes that
    /// another file had there, or none.
    pub fn sum_unfinished(&self, files: &impl SlotFiles, bucket: BucketId) {
        let (Some(meta), Some(sums)) = (self.bucket(bucket), self.checksums(bucket)) else {
            return;
        };
        let dirty = meta.pending() & meta.valid.load(Ordering::Acquire);
        for number in PageSet(dirty).pages().filter(|&number| sums.get(number) == 0) {
            // A page that cannot be read stays without, and is not recovered.
            if let Ok(sum) = self.sum_in_slot(files, bucket, number) {
                sums.set(number, sum);
            }
        }
    }

    /// Says in its record that the store lacks nothing of slot `bucket`, whose lock the caller
    /// holds and whose content it is about to drop or has somewhere else.
    pub fn void_slot(&self, files: &impl SlotFiles, bucket: BucketId) {
        let Some(meta) = self.bucket(bucket) else { return };
        let pending = meta.pending();
        if self.checksums(bucket).is_some() && pending != 0 {
            let void = crate::SlotRecord::void(self.next_sequence()).encode();
            crash::point("record.voiding");
            if let Err(errno) = files.write_record(bucket, &void) {
                self.fail_tier(self.tier_of(bucket), errno);
            }
        }
    }

    /// Reads `pages` of slot `bucket`, whose lock the caller holds, and compares. What is wrong and
    /// clean is no longer valid: the store has it. Returns those pages.
    ///
    /// # Errors
    /// `IO` if a dirty page is wrong or cannot be read: it is marked as corrupt, and a process that
    /// syncs the file learns of it.
    pub fn verify_pages(
        &self,
        files: &impl SlotFiles,
        bucket: BucketId,
        pages: u64,
    ) -> Result<u64, Errno> {
        let (Some(meta), Some(sums)) = (self.bucket(bucket), self.checksums(bucket)) else {
            return Ok(0);
        };
        let (mut invalid, mut result) = (0, Ok(()));
        for number in PageSet(pages & meta.valid.load(Ordering::Acquire)).pages() {
            if self.is_page_right(files, sums, bucket, number) {
                sums.corrupt.fetch_and(!(1 << number), Ordering::Relaxed);
                continue;
            }
            let bit = 1 << number;
            let pending = meta.pending();
            if pending & bit == 0 {
                invalid |= bit;
            } else {
                self.mark_corrupt(meta, sums, bit);
                result = Err(Errno::IO);
            }
        }
        if invalid != 0 {
            meta.valid.fetch_and(!invalid, Ordering::AcqRel);
            self.record_slot(files, bucket);
        }
        result.map(|()| invalid)
    }

    /// Notes that dirty pages of a slot are not what was written. Returns those not known before.
    pub fn mark_corrupt(&self, meta: &BucketMeta, sums: &SlotChecksums, pages: u64) -> u64 {
        let new = pages & !sums.corrupt.fetch_or(pages, Ordering::AcqRel);
        let file = meta.file.load(Ordering::Relaxed);
        if new != 0 && self.header().has_file(file) {
            self.file(file).report(Errno::IO.raw_os_error() as u32);
        }
        new
    }

    fn is_page_right(
        &self,
        files: &impl SlotFiles,
        sums: &SlotChecksums,
        bucket: BucketId,
        number: usize,
    ) -> bool {
        let Ok(sum) = self.sum_in_slot(files, bucket, number) else { return false };
        let known = sums.get(number);
        known == 0 || known == sum
    }

    /// The sum of what page `number` of slot `bucket` has.
    fn sum_in_slot(
        &self,
        files: &impl SlotFiles,
        bucket: BucketId,
        number: usize,
    ) -> Result<u32, Errno> {
        let page = self.page_bytes();
        let (mut sum, mut chunk) = (Checksum::default(), [0; CHUNK]);
        for at in (number * page..(number + 1) * page).step_by(CHUNK) {
            files.read_slot(bucket, at, &mut chunk)?;
            sum.add(&chunk);
        }
        Ok(sum.sum())
    }

    /// Writes page `number` of slot `bucket`, whose lock the caller holds, piece by piece: `change`
    /// is given where in the bucket each piece begins and what the slot has there, zeros unless
    /// `keep`. The caller has judged what is kept, unless it is a dirty page of one piece, and
    /// writes the slot's record afterwards.
    ///
    /// # Errors
    /// The device's errno, or that of `change`; the page's content is then not known. `IO` for a
    /// page of one piece that is corrupt.
    pub fn rewrite_page(
        &self,
        files: &impl SlotFiles,
        bucket: BucketId,
        number: usize,
        keep: bool,
        mut change: impl FnMut(usize, &mut [u8; CHUNK]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let sums = self.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.page_bytes();
        let known = sums.get(number);
        let mut sum = Checksum::default();
        for at in (number * page..(number + 1) * page).step_by(CHUNK) {
            let mut chunk = [0; CHUNK];
            if keep {
                files.read_slot(bucket, at, &mut chunk)?;
                if page == CHUNK && known != 0 && checksum_of(&chunk) != known {
                    self.bucket(bucket).map(|meta| self.mark_corrupt(meta, sums, 1 << number));
                    return Err(Errno::IO);
                }
            }
            change(at, &mut chunk)?;
            sums.forget(1 << number);
            sum.add(&chunk);
            files.write_slot(bucket, at, &chunk)?;
        }
        crash::point("slot.summing");
        sums.set(number, sum.sum());
        Ok(())
    }

    /// Writes zeros over bytes `from .. to` of one valid page of slot `bucket`, whose lock the
    /// caller holds. The caller writes the slot's record afterwards.
    ///
    /// # Errors
    /// The device's errno; `IO` if the page is dirty and corrupt.
    pub fn zero_in_slot(
        &self,
        files: &impl SlotFiles,
        bucket: BucketId,
        from: usize,
        to: usize,
    ) -> Result<(), Errno> {
        let number = from / self.page_bytes();
        if self.verify_pages(files, bucket, 1 << number)? != 0 {
            // The store has it, and has its zeros already.
            return Ok(());
        }
        let written = self.rewrite_page(files, bucket, number, true, |at, chunk| {
            let range = from.clamp(at, at + CHUNK) - at..to.clamp(at, at + CHUNK) - at;
            chunk[range].fill(0);
            Ok(())
        });
        match self.bucket(bucket) {
            Some(meta) if written.is_err() && meta.pending() >> number & 1 == 0 => {
                // Neither does the store miss it.
                meta.valid.fetch_and(!(1 << number), Ordering::AcqRel);
                Ok(())
            }
            _ => written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;
    use crate::layout::Geometry;
    use crate::segment::anonymous;
    use crate::{Identity, Owner};
    use core::cell::RefCell;
    use forebay_placement::TierId;
    use rustix::fd::OwnedFd;

    /// One slot in memory, its table, and what fails.
    struct Memory {
        slot: RefCell<Vec<u8>>,
        records: RefCell<Vec<crate::SlotRecord>>,
        fails: bool,
    }

    impl SlotFiles for Memory {
        fn read_slot(&self, _: BucketId, within: usize, to: &mut [u8]) -> Result<(), Errno> {
            to.copy_from_slice(&self.slot.borrow()[within..within + to.len()]);
            if self.fails { Err(Errno::IO) } else { Ok(()) }
        }

        fn write_slot(&self, _: BucketId, within: usize, from: &[u8]) -> Result<(), Errno> {
            self.slot.borrow_mut()[within..within + from.len()].copy_from_slice(from);
            if self.fails { Err(Errno::IO) } else { Ok(()) }
        }

        fn write_record(&self, _: BucketId, record: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
            let record = crate::SlotRecord::decode(record).unwrap().unwrap();
            self.records.borrow_mut().push(record);
            if self.fails { Err(Errno::IO) } else { Ok(()) }
        }
    }

    /// A slot whose page 0 is dirty and whose page 1 is clean, both full of sevens.
    fn two_pages(page: u32) -> (Segment, OwnedFd, Memory, BucketId) {
        let bytes = 64 * 64 * u64::from(page);
        let (segment, shared) = anonymous(&Geometry::for_tiers(page, &[bytes, bytes])).unwrap();
        let me = Owner::new(1, 0);
        let identity = Identity { device: 1, inode: 2 };
        let file = segment.with_file_or_new(identity, me, |file, _| file).unwrap();
        let bucket = segment.take_slot(TierId::new(1), me, &mut 0).unwrap();
        core::mem::forget(segment.init_bucket(bucket, file, 0, me).unwrap());
        let memory = Memory {
            slot: RefCell::new(vec![7; segment.bucket_bytes()]),
            records: RefCell::default(),
            fails: false,
        };
        let (meta, sums) = (segment.bucket(bucket).unwrap(), segment.checksums(bucket).unwrap());
        meta.valid.store(0b11, Ordering::Relaxed);
        meta.pages.reset(0b01);
        let sum = checksum_of(&vec![7; page as usize]);
        sums.set(0, sum);
        sums.set(1, sum);
        (segment, shared, memory, bucket)
    }

    #[test]
    fn a_corrupt_page_becomes_invalid_where_it_is_clean_and_an_error_where_it_is_dirty() {
        for page in [4096u32, 16384] {
            let (segment, _shared, memory, bucket) = two_pages(page);
            let (meta, sums) =
                (segment.bucket(bucket).unwrap(), segment.checksums(bucket).unwrap());
            assert_eq!(segment.verify_pages(&memory, bucket, u64::MAX), Ok(0));
            memory.slot.borrow_mut()[2 * page as usize - 1] ^= 1;
            assert_eq!(segment.verify_pages(&memory, bucket, u64::MAX), Ok(0b10));
            assert_eq!(meta.valid.load(Ordering::Relaxed), 0b01);
            assert_eq!(memory.records.borrow().last().unwrap().valid, 0b01);
            memory.slot.borrow_mut()[5] ^= 64;
            assert_eq!(segment.verify_pages(&memory, bucket, u64::MAX), Err(Errno::IO));
            assert_eq!((meta.valid.load(Ordering::Relaxed), sums.corrupt(u64::MAX)), (1, 1));
            let file = meta.file.load(Ordering::Relaxed);
            assert_eq!(segment.file(file).error.load(Ordering::Relaxed) & 0xffff, 5);
            if page == 4096 {
                let result = segment.rewrite_page(&memory, bucket, 0, true, |_, _| unreachable!());
                assert_eq!(result, Err(Errno::IO));
            }
            // Written anew as a whole it is good again.
            segment.rewrite_page(&memory, bucket, 0, false, |_, _| Ok(())).unwrap();
            assert_eq!(segment.verify_pages(&memory, bucket, u64::MAX), Ok(0));
            assert_eq!(sums.corrupt(u64::MAX), 0);
        }
    }

    /// What a thread that was killed amid a write has left counts, and is told from what a loss of
    /// power makes of it.
    #[test]
    fn a_record_has_the_sums_of_dirty_pages_that_have_none() {
        for page in [4096u32, 16384] {
            let (segment, _shared, mut memory, bucket) = two_pages(page);
            let sums = segment.checksums(bucket).unwrap();
            let seven = sums.get(0);
            sums.forget(0b11);
            segment.record_slot(&memory, bucket);
            let sums_of_last = |memory: &Memory| memory.records.borrow().last().unwrap().sums;
            assert_eq!(sums_of_last(&memory)[..2], [seven, 0], "the store has page 1");
            assert!(sums_of_last(&memory)[2..].iter().all(|&sum| sum == 0));
            sums.forget(0b01);
            memory.fails = true;
            segment.record_slot(&memory, bucket);
            let record = memory.records.borrow().last().cloned().unwrap();
            assert_eq!(record.sums[0], 0);
            assert!(!record.page_agrees(0, &vec![7; page as usize]));
        }
    }

    /// It is not known whether they have arrived: the next manager counts them as dirty again,
    /// wherever the block lies then.
    #[test]
    fn pages_that_a_dead_manager_was_writing_stay_pending_when_their_block_is_raised() {
        let (segment, _shared, memory, bucket) = two_pages(4096);
        let me = Owner::new(1, 0);
        let meta = segment.bucket(bucket).unwrap();
        let file = meta.file.load(Ordering::Relaxed);
        meta.pages.set(0b01, 0b10);
        let place = segment.entry_or_insert(segment.file(file), 0, me).unwrap();
        place.store(Entry::resident(TierId::new(1), bucket).encode(), Ordering::Release);
        meta.lock.unlock_changed();
        assert!(!segment.manager_is_alive());
        let block = segment.lock_block(place, me).unwrap();
        segment.wait_for_writeback(meta);
        let to = segment.take_bucket(me).unwrap();
        let fresh = segment.init_bucket(to, file, 0, me).unwrap();
        let Ok(raised) = fresh.raise(place, block, &memory) else { panic!("not raised") };
        assert_eq!((raised.tier(), raised.meta().pending()), (TierId::RAM, 0b11));
        drop(raised);
        assert_eq!((meta.lock.holder(), segment.bucket(to).unwrap().lock.holder()), (None, None));
    }

    #[test]
    fn zeros_in_a_page_change_its_sum() {
        for page in [4096u32, 16384] {
            let (segment, _shared, memory, bucket) = two_pages(page);
            let end = page as usize;
            segment.zero_in_slot(&memory, bucket, end - 5000.min(end - 1), end).unwrap();
            assert_eq!(segment.verify_pages(&memory, bucket, 1), Ok(0));
            let slot = memory.slot.borrow();
            assert_eq!(slot.iter().filter(|&&byte| byte == 0).count(), 5000.min(end - 1));
            assert_eq!((slot[0], slot[end - 1], slot[end]), (7, 0, 7));
        }
    }

    #[test]
    fn a_page_in_the_middle_of_a_write_is_not_corrupt() {
        let (segment, _shared, memory, bucket) = two_pages(4096);
        let sums = segment.checksums(bucket).unwrap();
        let before = sums.get(0);
        assert!(sums.agrees(0, before, &memory.slot.borrow()[..4096]));
        assert!(!sums.agrees(0, before, &[0; 4096]));
        sums.forget(1);
        assert!(sums.agrees(0, before, &[0; 4096]));
        assert!(sums.agrees(0, 0, &[0; 4096]));
    }

    #[test]
    fn a_device_that_fails_takes_its_tier_out_of_the_hierarchy() {
        let (segment, _shared, memory, bucket) = two_pages(4096);
        let memory = Memory { fails: true, ..memory };
        assert!(segment.is_sound(TierId::new(1)));
        // What the store has is read from there; what it has not is an error.
        assert_eq!(segment.verify_pages(&memory, bucket, 0b10), Ok(0b10));
        assert_eq!(segment.verify_pages(&memory, bucket, 0b01), Err(Errno::IO));
        assert!(!segment.is_sound(TierId::new(1)) && segment.is_sound(TierId::RAM));
    }
}
