//! What of a file waits to be written to the store.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Identity, Owner, TierId};
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
//! block.meta().valid.store(0b111, Ordering::Relaxed);
//! block.meta().mark_dirty(0b101, 1);
//! assert_eq!(block.meta().pending_under_lock(), 0b101);
//! drop(block);
//! // Two pages of 4 KiB.
//! assert_eq!(segment.pending_bytes(file), 8192);
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::entry::Entry;
use crate::layout::{BucketMeta, FileRecord};
use crate::page_set::PageSet;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use crate::{BucketId, FileId};
use core::ops::Range;

impl BucketMeta {
    /// Pages that the store does not have yet, those on their way to it included; for any caller.
    pub fn pending(&self) -> u64 {
        self.pages.pending()
    }

    /// The same for a caller that holds its lock.
    #[inline]
    pub fn pending_under_lock(&self) -> u64 {
        self.pages.pending_under_lock()
    }

    /// Marks pages of a locked bucket as dirty, for a write of time `stamp`; nothing but a plain
    /// load when they are.
    #[inline]
    pub fn mark_dirty(&self, pages: u64, stamp: u32) {
        self.pages.mark_dirty(pages, || self.dirtied.store(stamp, Ordering::Relaxed));
    }

    /// Counts pages as dirty again that a manager was writing which is dead. The caller holds the
    /// lock.
    pub fn take_back_writeback(&self) {
        self.pages.take_back(&self.valid, || ());
    }
}

impl Segment {
    /// Pages of the block that `place` names which the store does not have yet, those on their
    /// way to it included.
    fn pending_pages(&self, place: &AtomicU64) -> u64 {
        loop {
            let word = place.load(Ordering::Acquire);
            let Entry::Resident { bucket, .. } = Entry::decode(word) else { return 0 };
            let Some(meta) = self.bucket(bucket) else { return 0 };
            let pages = meta.pending();
            if place.load(Ordering::Acquire) == word {
                return pages & meta.valid.load(Ordering::Acquire);
            }
        }
    }

    /// Calls `visit` with the byte range of each run of pages of `file` that the store does not
    /// have yet, from the block that `from` lies in on, in ascending order, until it returns
    /// false. Runs of neighbouring blocks are not joined.
    pub fn for_each_pending(
        &self,
        file: FileId,
        from: u64,
        mut visit: impl FnMut(Range<u64>) -> bool,
    ) {
        let (bytes, page) = (self.bucket_bytes() as u64, self.page_bytes() as u64);
        self.for_each_entry(self.file(file), from / bytes, |block, place| {
            let pages = PageSet(self.pending_pages(place));
            let at = |number: usize| block * bytes + number as u64 * page;
            pages.runs().all(|run| visit(at(run.start)..at(run.end)))
        });
    }

    /// The blocks of `file` of which the store lacks something, if that is at most `pages` pages in
    /// as many blocks as `blocks` has room for, all of it in RAM, and nothing is on its way there.
    /// Returns their number.
    pub fn few_dirty(&self, file: FileId, pages: u32, blocks: &mut [u64]) -> Option<usize> {
        let (mut count, mut left, mut few) = (0, pages, true);
        self.for_each_entry(self.file(file), 0, |block, place| {
            let Some(dirty) = self.dirty_in_ram(place) else {
                few = false;
                return false;
            };
            if dirty == 0 {
                return true;
            }
            let room = blocks.get_mut(count);
            match (room, left.checked_sub(dirty.count_ones())) {
                (Some(room), Some(rest)) => (*room, count, left) = (block, count + 1, rest),
                _ => few = false,
            }
            few
        });
        few.then_some(count)
    }

    /// Pages of the block that `place` names which the store lacks; `None` if some are on their
    /// way to it, or not in RAM.
    fn dirty_in_ram(&self, place: &AtomicU64) -> Option<u64> {
        loop {
            let word = place.load(Ordering::Acquire);
            let Entry::Resident { bucket, .. } = Entry::decode(word) else { return Some(0) };
            let Some(meta) = self.bucket(bucket) else { return Some(0) };
            let pages = meta.pending();
            let moves = meta.pages.writeback() != 0;
            if place.load(Ordering::Acquire) != word {
                continue;
            }
            let pages = pages & meta.valid.load(Ordering::Acquire);
            let is_here = !moves && (pages == 0 || self.tier_of(bucket).is_ram());
            return is_here.then_some(pages);
        }
    }

    /// Bytes of `file`, in whole pages, that the store does not have yet.
    pub fn pending_bytes(&self, file: FileId) -> u64 {
        let mut sum = 0;
        self.for_each_pending(file, 0, |range| {
            sum += range.end - range.start;
            true
        });
        sum
    }
}

/// What of a file the store did not have at one moment: what a program writes later, and be it to
/// the same pages, is no part of it.
pub struct Owed {
    file: FileId,
    generation: u32,
    /// The last flush that failed before, and the manager that flushes.
    errors: u32,
    manager: u32,
    blocks: Vec<OwedBlock>,
}

struct OwedBlock {
    block: u64,
    /// Where it lies.
    bucket: BucketId,
    pages: u64,
    /// When the bucket became dirty. It becomes so anew only after all its dirty pages were taken
    /// to be written, which happens only when none are being written any more.
    dirtied: u32,
    /// Whether it has become dirty anew since.
    anew: bool,
    /// Whether all that were dirty have been taken.
    taken: bool,
}

impl Owed {
    /// Bytes, in whole pages.
    pub fn bytes(&self, segment: &Segment) -> u64 {
        let pages: u32 = self.blocks.iter().map(|owed| owed.pages.count_ones()).sum();
        u64::from(pages) * segment.page_bytes() as u64
    }
}

impl Segment {
    /// What the store does not have of `file` now.
    pub fn owed(&self, file: FileId) -> Owed {
        let record = self.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let errors = record.errors();
        let manager = self.header().manager_epoch.load(Ordering::Acquire);
        let mut blocks = Vec::new();
        self.for_each_entry(record, 0, |block, place| {
            blocks.extend(self.owed_block(block, place));
            true
        });
        Owed { file, generation, errors, manager, blocks }
    }

    fn owed_block(&self, block: u64, place: &AtomicU64) -> Option<OwedBlock> {
        let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire)) else {
            return None;
        };
        let meta = self.bucket(bucket)?;
        // In this order: a time that is too early would let pass as taken what is dirty since.
        let taken = meta.pages.dirty() == 0;
        let pages = self.pending_pages(place);
        let dirtied = meta.dirtied.load(Ordering::Acquire);
        (pages != 0).then_some(OwedBlock { block, bucket, pages, dirtied, anew: false, taken })
    }

    /// Takes what the store has got since from `owed`.
    pub fn update_owed(&self, owed: &mut Owed) {
        let record = self.file(owed.file);
        if record.generation.load(Ordering::Acquire) != owed.generation {
            // Its record is another file's: of it nothing was left.
            return owed.blocks.clear();
        }
        let mut blocks = core::mem::take(&mut owed.blocks);
        blocks.retain_mut(|block| self.is_owed(record, block));
        let manager = self.header().manager_epoch.load(Ordering::Acquire);
        let goes_on = manager == owed.manager && self.manager_is_alive();
        if goes_on && record.errors() == owed.errors {
            owed.blocks = blocks;
        } else {
            // What was taken to be written may be dirty again.
            *owed = self.owed(owed.file);
        }
    }

    /// Whether the store lacks any of it. The file's last error has to be looked at afterwards.
    fn is_owed(&self, record: &FileRecord, owed: &mut OwedBlock) -> bool {
        let Some(place) = self.entry(record, owed.block) else { return false };
        let word = place.load(Ordering::Acquire);
        let Entry::Resident { bucket, .. } = Entry::decode(word) else { return false };
        let Some(meta) = self.bucket(bucket) else { return false };
        let left = self.pending_pages(place) & owed.pages;
        if left == 0 {
            return false;
        }
        if bucket != owed.bucket {
            // Moved, or written anew: as if it was asked for now.
            return self.owed_block(owed.block, place).map(|anew| *owed = anew).is_some();
        }
        if self
            .checksums(bucket)
            .is_some_and(|sums| sums.corrupt.load(Ordering::Acquire) & left != 0)
        {
            return true;
        }
        let dirtied = meta.dirtied.load(Ordering::Acquire);
        let was_taken = dirtied != owed.dirtied;
        let is_written = owed.taken && meta.pages.writeback() == 0;
        if place.load(Ordering::Acquire) != word {
            // It was another block's that was looked at.
            return true;
        }
        if is_written || was_taken && owed.anew {
            return false;
        }
        owed.pages = left;
        if was_taken {
            (owed.dirtied, owed.anew, owed.taken) = (dirtied, true, true);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::owner::Owner;
    use crate::segment::anonymous;
    use forebay_placement::TierId;

    #[test]
    fn what_is_written_anew_is_not_owed() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let (pid, start) = (std::process::id(), crate::liveness::start_time(std::process::id()));
        segment.header().manager_pid.store(pid, Ordering::Relaxed);
        segment.header().manager_start.store(start.unwrap(), Ordering::Relaxed);
        let bucket = segment.take_bucket(me).unwrap();
        core::mem::forget(segment.init_bucket(bucket, FileId::from_raw(3), 0, me).unwrap());
        let meta = segment.bucket(bucket).unwrap();
        let place = segment.entry_or_insert(segment.file(FileId::from_raw(3)), 0, me).unwrap();
        place.store(Entry::resident(TierId::RAM, bucket).encode(), Ordering::Release);
        let set = |dirty: u64, writeback: u64, dirtied: u32| {
            meta.valid.store(u64::MAX, Ordering::Relaxed);
            meta.dirtied.store(dirtied, Ordering::Relaxed);
            meta.pages.set(dirty, writeback);
        };
        let left = |owed: &mut Owed| {
            segment.update_owed(owed);
            owed.bytes(&segment) / 4096
        };
        // Dirty, taken and dirty anew, written, though dirty.
        set(0b11, 0, 1);
        let mut owed = segment.owed(FileId::from_raw(3));
        assert_eq!(left(&mut owed), 2);
        set(0b111, 0, 1);
        assert_eq!(left(&mut owed), 2);
        set(0b11, 0b111, 2);
        assert_eq!(left(&mut owed), 2);
        set(0b11, 0, 2);
        assert_eq!(left(&mut owed), 0);
        // The same, without a look while nothing was being written.
        set(0b11, 0, 1);
        owed = segment.owed(FileId::from_raw(3));
        set(0b11, 0b11, 2);
        assert_eq!(left(&mut owed), 2);
        set(0b11, 0b11, 3);
        assert_eq!(left(&mut owed), 0);
        // Being written at first: that it becomes dirty says nothing.
        set(0, 0b1, 1);
        owed = segment.owed(FileId::from_raw(3));
        set(0b1, 0b1, 2);
        assert_eq!(left(&mut owed), 1);
        set(0b1, 0b1, 3);
        assert_eq!(left(&mut owed), 0);
        // After an error everything counts that is dirty then.
        set(0b1, 0, 1);
        owed = segment.owed(FileId::from_raw(3));
        set(0b1, 0b1, 2);
        assert_eq!(left(&mut owed), 1);
        segment.file(FileId::from_raw(3)).report(5);
        set(0b11, 0, 2);
        assert_eq!(left(&mut owed), 2);
        set(0b1, 0, 2);
        assert_eq!(left(&mut owed), 1);
        segment.discard_block(place, segment.lock_block(place, me).unwrap());
        assert_eq!(left(&mut owed), 0);
    }

    #[test]
    fn runs_of_pending_pages_are_found_in_order() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let block = |number: u64, valid: u64, dirty: u64, writeback: u64| {
            let bucket = segment.take_bucket(me).unwrap();
            core::mem::forget(
                segment.init_bucket(bucket, FileId::from_raw(3), number, me).unwrap(),
            );
            let meta = segment.bucket(bucket).unwrap();
            meta.valid.store(valid, Ordering::Relaxed);
            meta.pages.set(dirty, writeback);
            let place =
                segment.entry_or_insert(segment.file(FileId::from_raw(3)), number, me).unwrap();
            place.store(Entry::resident(TierId::RAM, bucket).encode(), Ordering::Release);
            meta.lock.unlock_changed();
        };
        block(0, 0b1111, 0b0101, 0b0010);
        block(2, u64::MAX, 0, 0);
        block(700, u64::MAX, u64::MAX, 0);
        let runs = |from: u64| {
            let mut found = Vec::new();
            segment.for_each_pending(FileId::from_raw(3), from, |range| {
                found.push((range.start / 4096, range.end / 4096));
                true
            });
            found
        };
        assert_eq!(runs(0), [(0, 3), (700 * 64, 701 * 64)]);
        assert_eq!(runs(1 << 20), [(700 * 64, 701 * 64)]);
        assert_eq!(segment.pending_bytes(FileId::from_raw(3)), 67 * 4096);
    }
}
