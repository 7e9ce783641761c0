//! Cutting and extending a file, and taking a range out of it, as roll-forward operations: the
//! goal stands in the record, so that a thread that finds its owner dead completes it.
//!
//! ```
//! use forebay_pool::checksums::SlotFiles;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::slot_record::RECORD_BYTES;
//! use forebay_pool::truncate::StoreOps;
//! use forebay_pool::{BucketId, Identity, Owner};
//! use rustix::io::Errno;
//! use std::cell::Cell;
//! use std::ops::Range;
//!
//! /// A store that says yes, and no file tiers.
//! struct Store(Cell<u64>);
//! # impl SlotFiles for Store {
//! #     fn read_slot(&self, _: BucketId, _: usize, _: &mut [u8]) -> Result<(), Errno> {
//! #         Err(Errno::IO)
//! #     }
//! #     fn write_slot(&self, _: BucketId, _: usize, _: &[u8]) -> Result<(), Errno> {
//! #         Err(Errno::IO)
//! #     }
//! #     fn write_record(&self, _: BucketId, _: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
//! #         Err(Errno::IO)
//! #     }
//! # }
//!
//! impl StoreOps for Store {
//!     fn slots(&self) -> &impl SlotFiles { self }
//!     fn truncate_store(&self, size: u64) -> Result<(), Errno> { Ok(self.0.set(size)) }
//!     fn punch_store(&self, _: Range<u64>) -> Result<(), Errno> { Ok(()) }
//! }
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let me = Owner::new(segment.clients().claim(std::process::id(), 1).expect("one is free"), 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! let (table, store) = (segment.enter_table(me), Store(Cell::new(0)));
//! let _exclusive = segment.try_lock_exclusive(&table, file, me).expect("no other thread has it");
//! assert_eq!(segment.truncate(file, 5000, me, &store), Ok(()));
//! assert_eq!(store.0.get(), 5000);
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::backoff::Backoff;
use crate::checksums::SlotFiles;
use crate::crash;
use crate::guards::BlockGuard;
use crate::layout::BucketMeta;
use crate::owner::Owner;
use crate::page_set::PageSet;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use crate::{BucketId, FileId};
use core::ops::Range;
use forebay_placement::hotness::Score;
use rustix::io::Errno;

/// What a truncate needs from outside shared memory.
pub trait StoreOps {
    /// How the slots of file tiers are reached.
    fn slots(&self) -> &impl SlotFiles;
    /// Sets the size of the file on the backing store.
    ///
    /// # Errors
    /// The store's errno; nothing has changed then.
    fn truncate_store(&self, size: u64) -> Result<(), Errno>;
    /// Makes the bytes of a range of the file on the backing store zero.
    ///
    /// # Errors
    /// The store's errno; nothing has changed then.
    fn punch_store(&self, range: Range<u64>) -> Result<(), Errno>;
}

impl Segment {
    /// Sets the size of `file` to `size`. The caller has the file exclusively.
    ///
    /// The store goes first: if it refuses, nothing has happened. What a flush under way may
    /// write behind the new end is waited for before that.
    ///
    /// # Errors
    /// The store's or a tier's errno, or one of [`Segment::ends_wait_in_time`].
    pub fn truncate(
        &self,
        file: FileId,
        size: u64,
        owner: Owner,
        store: &impl StoreOps,
    ) -> Result<(), Errno> {
        let (record, files) = (self.file(file), store.slots());
        self.clear_tail(file, size, owner, files)?;
        // From here on flushes are cut at the goal.
        record.intent.store(size.wrapping_add(1), Ordering::Release);
        crash::point("truncate.intent");
        let quiesced = self.quiesce_beyond(file, size, owner, files, Segment::ends_wait_in_time);
        crash::point("truncate.quiesced");
        // A block that was waited for in vain has its record as it was.
        let upto = quiesced.map_or_else(|(block, _)| block, |()| u64::MAX);
        let quiesced = quiesced.map_err(|(_, errno)| errno);
        if let Err(errno) = quiesced.and_then(|()| store.truncate_store(size)) {
            record.intent.store(0, Ordering::Release);
            // The records of slots have it again.
            self.rerecord(file, size, upto, owner, files);
            return Err(errno);
        }
        crash::point("truncate.store");
        record.store_size.store(size, Ordering::Release);
        let before = record.size.swap(size, Ordering::AcqRel);
        crash::point("truncate.size");
        if size < before {
            let score = Score(record.hotness.load(Ordering::Relaxed)).cut(before, size);
            record.hotness.store(score.0, Ordering::Relaxed);
        }
        let result =
            if size < before { self.discard_beyond(file, size, owner, files) } else { Ok(()) };
        crash::point("truncate.discarded");
        record.intent.store(0, Ordering::Release);
        crash::point("truncate.done");
        result
    }

    /// Makes the bytes of `range` zero, in the tiers and on the store. The caller has the file
    /// exclusively. The store goes first, by `on_store`: if it refuses, nothing has happened.
    ///
    /// # Errors
    /// The store's or a tier's errno, or one of [`Segment::ends_wait_in_time`].
    pub fn punch(
        &self,
        file: FileId,
        range: Range<u64>,
        owner: Owner,
        store: &impl StoreOps,
        on_store: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let record = self.file(file);
        record.range_start.store(range.start, Ordering::Relaxed);
        // From here on no flush of a block in the range begins.
        record.range_end.store(range.end, Ordering::Release);
        crash::point("punch.intent");
        let quiesced =
            self.quiesce_range(file, range.clone(), owner, Segment::ends_wait_in_time, |_| {});
        crash::point("punch.quiesced");
        let quiesced = quiesced.map_err(|(_, errno)| errno);
        let sized = quiesced.and_then(|()| {
            let size = record.size.load(Ordering::Acquire);
            if range.end < size || record.store_size.load(Ordering::Acquire) >= size {
                return Ok(());
            }
            // No flush of a last page will give the store's file its size. Before the punch: where
            // the file is brought to the store for this, with what will be zeros, it has its last
            // page still.
            store.truncate_store(size)?;
            record.store_size.store(size, Ordering::Release);
            crash::point("punch.sized");
            Ok(())
        });
        let result = sized.and_then(|()| on_store()).and_then(|()| {
            crash::point("punch.store");
            self.punch_blocks(file, range.clone(), owner, store.slots())?;
            crash::point("punch.discarded");
            Ok(())
        });
        crash::point("punch.end");
        record.range_end.store(0, Ordering::Release);
        result
    }

    /// Completes the truncate or the punch that a dead owner left in the record. The caller has the
    /// file exclusively.
    ///
    /// # Errors
    /// The store's or a tier's errno.
    pub fn complete_intent(
        &self,
        file: FileId,
        owner: Owner,
        store: &impl StoreOps,
    ) -> Result<(), Errno> {
        let (record, files) = (self.file(file), store.slots());
        if let Some(range) = record.punched() {
            self.punch(file, range.clone(), owner, store, || store.punch_store(range))?;
        }
        let Some(size) = record.intent.load(Ordering::Acquire).checked_sub(1) else {
            return Ok(());
        };
        let quiesced = self.quiesce_beyond(file, size, owner, files, Segment::waits_on);
        let Ok(()) = quiesced.map_err(|(_, never)| never);
        crash::point("complete.quiesced");
        // Left for a caller that may: what is behind the goal stays until then.
        store.truncate_store(size)?;
        crash::point("complete.store");
        record.store_size.store(size, Ordering::Release);
        record.size.store(size, Ordering::Release);
        let result = self.discard_beyond(file, size, owner, files);
        crash::point("complete.discarded");
        record.intent.store(0, Ordering::Release);
        result
    }

    /// Waits until no flush that began before the intent was set writes blocks behind `size`, and
    /// sees to it that no slot's record has bytes there: a recovery must not put them behind a cut.
    fn quiesce_beyond<E>(
        &self,
        file: FileId,
        size: u64,
        owner: Owner,
        files: &impl SlotFiles,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<(), (u64, E)> {
        let rerecord = |bucket| self.rerecord_slot(bucket, files);
        self.quiesce_range(file, size..u64::MAX, owner, look, rerecord)
    }

    /// Writes the records of the slots that have blocks of `file` from `size` on, and before block
    /// `upto`.
    fn rerecord(&self, file: FileId, size: u64, upto: u64, owner: Owner, files: &impl SlotFiles) {
        let bytes = self.bucket_bytes() as u64;
        if upto <= size / bytes {
            return;
        }
        let rerecord = |bucket| self.rerecord_slot(bucket, files);
        let range = size..upto.saturating_mul(bytes);
        let quiesced = self.quiesce_range(file, range, owner, Segment::waits_on, rerecord);
        let Ok(()) = quiesced.map_err(|(_, never)| never);
    }

    fn rerecord_slot(&self, bucket: BucketId, files: &impl SlotFiles) {
        let pending = self.bucket(bucket).map_or(0, BucketMeta::pending_under_lock);
        if pending != 0 && self.checksums(bucket).is_some() {
            self.record_slot(files, bucket);
        }
    }

    /// Waits until no flush that began before the intent was set writes blocks of `range`, and
    /// calls `each` for their buckets, which are locked meanwhile. `look` may end the wait for a
    /// block, which is told with its error.
    fn quiesce_range<E>(
        &self,
        file: FileId,
        range: Range<u64>,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
        each: impl Fn(BucketId),
    ) -> Result<(), (u64, E)> {
        let bytes = self.bucket_bytes() as u64;
        let quiesce = |place: &AtomicU64| -> Result<(), E> {
            if let Some(block) = self.lock_block_looking(place, owner, &look)? {
                self.wait_for_writeback_looking(block.meta(), &look)?;
                each(block.bucket());
            }
            Ok(())
        };
        let mut result = Ok(());
        self.for_each_entry(self.file(file), range.start / bytes, |block, place| {
            if block < range.end.div_ceil(bytes) {
                result = quiesce(place).map_err(|error| (block, error));
                return result.is_ok();
            }
            false
        });
        result
    }

    /// Discards what lies behind `size`, and zeroes the rest of the last page. While the intent is
    /// set the records of slots have nothing of it.
    fn discard_beyond(
        &self,
        file: FileId,
        size: u64,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let bytes = self.bucket_bytes() as u64;
        let (last, within) = (size / bytes, (size % bytes) as usize);
        let mut result = Ok(());
        self.for_each_entry(self.file(file), last, |block, place| {
            let Some(locked) = self.lock_block(place, owner) else { return true };
            if block > last || within == 0 {
                self.discard_block(place, locked);
                return true;
            }
            if let Err(errno) = self.cut_block(place, locked, within, owner, files) {
                result = Err(errno);
            }
            true
        });
        result
    }

    /// Discards the pages of a locked block behind the first `within` bytes, which are not none,
    /// zeroes the rest of the last page, and unlocks it.
    ///
    /// # Errors
    /// As of [`Segment::zero_in_block`]. A thread that raises the size with a gap comes back to it.
    pub(crate) fn cut_block(
        &self,
        place: &AtomicU64,
        block: BlockGuard<'_>,
        within: usize,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let meta = block.meta();
        let page = self.page_bytes();
        let keep = within.div_ceil(page);
        let kept = PageSet::span(0..keep).0;
        meta.pages.clear_dirty(!kept);
        crash::point("cut-block.dirty");
        meta.valid.fetch_and(kept, Ordering::AcqRel);
        crash::point("cut-block.valid");
        let rest = within..keep * page;
        let (block, result) = self.zero_in_block(place, block, rest, owner, files);
        if result.is_err() {
            self.note_dirty_tail(meta);
        }
        self.unlock_changed(block, files);
        result
    }

    /// Unlocks a block whose bytes have changed, and writes the record of its slot before.
    fn unlock_changed(&self, mut block: BlockGuard<'_>, files: &impl SlotFiles) {
        if !block.tier().is_ram() {
            self.record_slot(files, block.bucket());
        }
        block.changed();
    }

    /// Makes the buffered bytes of `range` zero: whole pages are forgotten, so that the store's
    /// hole shows, parts of pages are overwritten.
    fn punch_blocks(
        &self,
        file: FileId,
        range: Range<u64>,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<(), Errno> {
        let (bytes, page) = (self.bucket_bytes() as u64, self.page_bytes());
        let mut result = Ok(());
        self.for_each_entry(self.file(file), range.start / bytes, |block, place| {
            let start = block * bytes;
            if start >= range.end {
                return false;
            }
            let Some(mut locked) = self.lock_block(place, owner) else { return true };
            let meta = locked.meta();
            let from = range.start.saturating_sub(start) as usize;
            let to = (range.end - start).min(bytes) as usize;
            let (first, end) = (from.div_ceil(page), to / page);
            let whole = PageSet::span(first..end).0;
            if meta.valid.load(Ordering::Relaxed) & !whole == 0 {
                self.abandon(place, locked, files);
                return true;
            }
            // Not valid first: what is dirty and not valid is nothing.
            meta.valid.fetch_and(!whole, Ordering::AcqRel);
            crash::point("punch-block.valid");
            meta.pages.clear_dirty(whole);
            let head = from..to.min(first * page);
            let tail = (end * page).max(head.end)..to;
            for part in [head, tail] {
                let zeroed;
                (locked, zeroed) = self.zero_in_block(place, locked, part, owner, files);
                result = zeroed.and(result);
            }
            self.unlock_changed(locked, files);
            true
        });
        result
    }

    /// Drops every block of `file` that is clean. The caller has the file exclusively. Returns
    /// whether nothing is left.
    pub fn drop_clean_blocks(&self, file: FileId, owner: Owner) -> bool {
        self.drop_clean_blocks_in(file, 0..u64::MAX, owner)
    }

    /// The same of the blocks in which one of `bytes` lies.
    pub fn drop_clean_blocks_in(&self, file: FileId, bytes: Range<u64>, owner: Owner) -> bool {
        let mut empty = true;
        let mut backoff = Backoff::default();
        let block_bytes = self.bucket_bytes() as u64;
        self.for_each_entry(self.file(file), bytes.start / block_bytes, |block, place| {
            if block * block_bytes >= bytes.end {
                return false;
            }
            let block = match self.lock_block_within(place, owner, &mut backoff) {
                Ok(Some(block)) => block,
                Ok(None) => return true,
                Err(_) => {
                    empty = false;
                    return true;
                }
            };
            if block.meta().pending_under_lock() == 0 {
                self.discard_block(place, block);
            } else {
                empty = false;
            }
            true
        });
        empty
    }

    /// Drops every page of `file` that is clean, also of blocks in which others are not: what other
    /// nodes have written since is read from the store. The caller has the file exclusively.
    /// Returns whether nothing is left.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`]: some may be left that are clean.
    pub fn drop_clean_pages(
        &self,
        file: FileId,
        owner: Owner,
        files: &impl SlotFiles,
    ) -> Result<bool, Errno> {
        let (mut empty, mut result) = (true, Ok(()));
        self.for_each_entry(self.file(file), 0, |_, place| {
            let block = match self.lock_block_looking(place, owner, Segment::ends_wait_in_time) {
                Ok(Some(block)) => block,
                Ok(None) => return true,
                Err(errno) => {
                    result = Err(errno);
                    return false;
                }
            };
            let meta = block.meta();
            let kept = meta.pending_under_lock() & meta.valid.load(Ordering::Acquire);
            if kept == 0 {
                self.discard_block(place, block);
                return true;
            }
            empty = false;
            if meta.valid.fetch_and(kept, Ordering::AcqRel) & !kept != 0 {
                crash::point("drop-clean.valid");
                self.unlock_changed(block, files);
            }
            true
        });
        result.map(|()| empty)
    }

    /// Drops every block of `file`, dirty or not: no process can ever read it again. The caller has
    /// the file exclusively.
    pub fn drop_all_blocks(&self, file: FileId, owner: Owner, files: &impl SlotFiles) {
        self.for_each_entry(self.file(file), 0, |_, place| {
            if let Some(block) = self.lock_block(place, owner) {
                self.abandon(place, block, files);
            }
            true
        });
    }

    /// Drops a locked block, dirty or not. Its record goes first: it must not be found again.
    pub(crate) fn abandon(&self, place: &AtomicU64, block: BlockGuard<'_>, files: &impl SlotFiles) {
        self.void_slot(files, block.bucket());
        self.discard_block(place, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;
    use crate::layout::Geometry;
    use crate::segment::anonymous;
    use crate::slot_record::{RECORD_BYTES, SlotRecord};
    use core::cell::RefCell;
    use forebay_placement::TierId;

    /// A store that notes what it is asked, or refuses.
    #[derive(Default)]
    struct Store {
        said: RefCell<Vec<String>>,
        refuses: bool,
    }

    impl SlotFiles for Store {
        fn read_slot(&self, _: BucketId, _: usize, _: &mut [u8]) -> Result<(), Errno> {
            unreachable!("all blocks are in RAM")
        }

        fn write_slot(&self, _: BucketId, _: usize, _: &[u8]) -> Result<(), Errno> {
            unreachable!("all blocks are in RAM")
        }

        fn write_record(&self, _: BucketId, record: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
            let record = SlotRecord::decode(record).unwrap().unwrap();
            let SlotRecord { block, dirty, size, .. } = record;
            self.said.borrow_mut().push(format!("record {block} {:b} {size}", dirty & 0xff));
            Ok(())
        }
    }

    impl StoreOps for Store {
        fn slots(&self) -> &impl SlotFiles {
            self
        }

        fn truncate_store(&self, size: u64) -> Result<(), Errno> {
            self.said.borrow_mut().push(format!("size {size}"));
            if self.refuses { Err(Errno::IO) } else { Ok(()) }
        }

        fn punch_store(&self, range: Range<u64>) -> Result<(), Errno> {
            self.said.borrow_mut().push(format!("punch {range:?}"));
            if self.refuses { Err(Errno::IO) } else { Ok(()) }
        }
    }

    const PAGE: u64 = 4096;
    const BLOCK: u64 = 64 * PAGE;

    /// A segment whose file 3 has three full dirty blocks of ones.
    fn full() -> (Segment, rustix::fd::OwnedFd, Owner) {
        full_on(TierId::RAM)
    }

    /// The same with the blocks on `tier`.
    fn full_on(tier: TierId) -> (Segment, rustix::fd::OwnedFd, Owner) {
        let geometry = Geometry::for_tiers(4096, &[64 << 18, 64 << 18]);
        let (segment, memory) = anonymous(&geometry).unwrap();
        let me = Owner::new(1, 0);
        for block in 0..3 {
            let bucket = match tier {
                TierId::RAM => segment.take_bucket(me).unwrap(),
                tier => segment.take_slot(tier, me, &mut 0).unwrap(),
            };
            let fresh = segment.init_bucket(bucket, FileId::from_raw(3), block, me).unwrap();
            let meta = fresh.meta();
            meta.valid.store(u64::MAX, Ordering::Relaxed);
            meta.pages.reset(u64::MAX);
            if tier.is_ram() {
                // SAFETY: a bucket of this test's own.
                unsafe { segment.bucket_data(bucket).write_bytes(1, BLOCK as usize) };
            }
            if let Some(sums) = segment.checksums(bucket) {
                (0..64).for_each(|page| sums.set(page, 1));
            }
            let place =
                segment.entry_or_insert(segment.file(FileId::from_raw(3)), block, me).unwrap();
            drop(fresh.publish(place, tier));
        }
        segment.file(FileId::from_raw(3)).size.store(3 * BLOCK, Ordering::Relaxed);
        (segment, memory, me)
    }

    /// The byte of each page start that is valid, for a block.
    fn page_bytes(segment: &Segment, block: u64) -> Option<Vec<Option<u8>>> {
        let word = segment.entry(segment.file(FileId::from_raw(3)), block)?.load(Ordering::Relaxed);
        let Entry::Resident { bucket, .. } = Entry::decode(word) else { return None };
        let valid = segment.bucket(bucket)?.valid.load(Ordering::Relaxed);
        assert_eq!(segment.bucket(bucket)?.pages.dirty(), valid);
        // SAFETY: within the bucket, and no other thread is there.
        let at = |page: usize| unsafe { *segment.bucket_data(bucket).add(page * PAGE as usize) };
        Some((0..64).map(|page| (valid >> page & 1 == 1).then(|| at(page))).collect())
    }

    #[test]
    fn of_blocks_with_dirty_pages_the_clean_ones_are_dropped() {
        for tier in [TierId::RAM, TierId::new(1)] {
            let (segment, _memory, me) = full_on(tier);
            let (file, store) = (FileId::from_raw(3), Store::default());
            let meta = |block| {
                let word = segment.entry(segment.file(file), block)?.load(Ordering::Relaxed);
                let Entry::Resident { bucket, .. } = Entry::decode(word) else { return None };
                segment.bucket(bucket)
            };
            meta(0).unwrap().pages.reset(0);
            meta(1).unwrap().pages.reset(0b1010);
            meta(2).unwrap().pages.reset(0b0111);
            meta(2).unwrap().pages.begin_writeback(0b0001);
            let version = meta(1).unwrap().lock.read_begin().unwrap();
            assert_eq!(segment.drop_clean_pages(file, me, &store), Ok(false));
            assert!(meta(0).is_none());
            assert!(meta(1).unwrap().lock.read_retry(version), "readers look again");
            let valid = [1, 2].map(|block| meta(block).unwrap().valid.load(Ordering::Relaxed));
            assert_eq!(valid, [0b1010, 0b0111]);
            let said = store.said.take();
            assert_eq!(said.is_empty(), tier.is_ram(), "{said:?}");
            for block in [1, 2] {
                meta(block).unwrap().pages.reset(0);
            }
            assert_eq!(segment.drop_clean_pages(file, me, &store), Ok(true));
            assert!(meta(1).is_none() && meta(2).is_none());
        }
    }

    #[test]
    fn a_punch_forgets_whole_pages_and_zeroes_parts() {
        let (segment, _memory, me) = full();
        let store = Store::default();
        let range = 62 * PAGE + 10..2 * BLOCK + PAGE + 1;
        segment
            .punch(FileId::from_raw(3), range.clone(), me, &store, || store.punch_store(range))
            .unwrap();
        let first = page_bytes(&segment, 0).unwrap();
        assert_eq!(first[62..], [Some(1), None]);
        assert_eq!(page_bytes(&segment, 1), None);
        let last = page_bytes(&segment, 2).unwrap();
        assert_eq!(last[..3], [None, Some(0), Some(1)]);
        assert_eq!(segment.pending_bytes(FileId::from_raw(3)), (63 + 63) * PAGE);
        assert_eq!(*store.said.borrow(), ["punch 253962..528385"]);
        assert!(!segment.file(FileId::from_raw(3)).has_intent());
    }

    #[test]
    fn a_punch_that_the_store_refuses_changes_nothing() {
        let (segment, _memory, me) = full();
        let store = Store { refuses: true, ..Store::default() };
        let result = segment.punch(FileId::from_raw(3), 0..3 * BLOCK, me, &store, || {
            store.punch_store(0..3 * BLOCK)
        });
        assert_eq!(result, Err(Errno::IO));
        assert_eq!(segment.pending_bytes(FileId::from_raw(3)), 3 * BLOCK);
        assert!(!segment.file(FileId::from_raw(3)).has_intent());
    }

    /// Else a recovery could put what was cut away behind the end that the store has already.
    #[test]
    fn records_of_slots_forget_what_a_truncate_takes_before_the_store_is_cut() {
        let (segment, _memory, me) = full_on(TierId::new(1));
        let store = Store::default();
        let (size, cut) = (3 * BLOCK, BLOCK + 2 * PAGE);
        segment.truncate(FileId::from_raw(3), cut, me, &store).unwrap();
        let kept = format!("record 1 11 {cut}");
        let gone = format!("record 2 0 {cut}");
        assert_eq!(*store.said.borrow(), [&kept[..], &gone, &format!("size {cut}"), &kept]);
        assert_eq!(segment.pending_bytes(FileId::from_raw(3)), cut);

        let (segment, _memory, me) = full_on(TierId::new(1));
        let store = Store { refuses: true, ..Store::default() };
        assert_eq!(segment.truncate(FileId::from_raw(3), 0, me, &store), Err(Errno::IO));
        let gone = (0..3).map(|block| format!("record {block} 0 0"));
        let back = (0..3).map(|block| format!("record {block} 11111111 {size}"));
        let said: Vec<_> = gone.chain(["size 0".to_owned()]).chain(back).collect();
        assert_eq!(*store.said.borrow(), said);
        assert_eq!(segment.pending_bytes(FileId::from_raw(3)), size);
    }

    /// Else a rebuild after a power loss could put them behind the end.
    #[test]
    fn records_forget_what_a_truncate_takes_of_pages_that_a_dead_manager_was_writing() {
        let (segment, _memory, me) = full_on(TierId::new(1));
        assert!(!segment.manager_is_alive());
        for bucket in segment.header().bucket_ids() {
            let meta = segment.bucket(bucket).unwrap();
            meta.pages.set(0, meta.pages.dirty());
        }
        let store = Store::default();
        segment.truncate(FileId::from_raw(3), 0, me, &store).unwrap();
        let gone = (0..3).map(|block| format!("record {block} 0 0"));
        assert_eq!(*store.said.borrow(), gone.chain(["size 0".to_owned()]).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_dead_owner_left_of_a_punch_is_completed() {
        let (segment, _memory, me) = full();
        let store = Store::default();
        segment.file(FileId::from_raw(3)).range_start.store(BLOCK, Ordering::Relaxed);
        segment.file(FileId::from_raw(3)).range_end.store(3 * BLOCK, Ordering::Relaxed);
        assert!(segment.file(FileId::from_raw(3)).has_intent());
        segment.complete_intent(FileId::from_raw(3), me, &store).unwrap();
        assert_eq!(segment.pending_bytes(FileId::from_raw(3)), BLOCK);
        // Nothing is left at the end whose flush would make the store's file as long as ours.
        assert_eq!(*store.said.borrow(), ["size 786432", "punch 262144..786432"]);
        assert!(!segment.file(FileId::from_raw(3)).has_intent());
    }
}
