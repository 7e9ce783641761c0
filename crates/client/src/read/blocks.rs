//! Reading block by block.

use crate::access::EnteredFile;
use crate::part::Part;
use crate::range::READ_AHEAD_BLOCKS;
use crate::span::{Cursor, Span, Writable};
use core::sync::atomic::Ordering;
use forebay_placement::Destination;
use forebay_pool::Entry;
use forebay_pool::layout::*;
use rustix::io::Errno;

impl EnteredFile<'_> {
    #[inline(never)]
    pub(super) fn read_on_slowly(
        &self,
        pieces: &[Span<'_, Writable>],
        offset: u64,
        length: usize,
    ) -> Option<Result<usize, Errno>> {
        let record = self.record;
        let end = offset.checked_add(length as u64).filter(|&end| end <= i64::MAX as u64)?;
        // To look at the store for more may take the file exclusively.
        if end > record.size.load(Ordering::Acquire) && !record.has(FileFlags::METADATA_DIRTY) {
            return None;
        }
        let result = self.read_blocks(pieces, offset, length);
        if record.rule.load(Ordering::Relaxed) != 0 {
            self.note_read(offset, &result);
        }
        Some(result)
    }

    /// The usual read, inside the file: one piece of one block that lies in RAM and that no thread
    /// is writing. False, and nothing was done that shows, where it is not that.
    #[inline(always)]
    pub(super) fn read_at_once(&self, piece: &Span<'_, Writable>, offset: u64) -> bool {
        let record = self.record;
        let segment = &self.session.segment;
        let (block, within) = segment.block_at(offset);
        let part = Part { block, within, bytes: piece.len() };
        let unusual = record.has(FileFlags::DIRECT)
            || record.rule.load(Ordering::Relaxed) != 0
            || piece.len() == 0
            || part.end() > segment.bucket_bytes()
            // No overflow: a bucket is smaller than what is left of an offset's range.
            || offset > i64::MAX as u64
            || offset + piece.len() as u64 > record.size.load(Ordering::Acquire);
        if unusual {
            return false;
        }
        let Some(entry) = segment.entry(record, block) else { return false };
        let word = entry.load(Ordering::Acquire);
        let Entry::Resident { tier: TierId::RAM, bucket, .. } = Entry::decode(word) else {
            return false;
        };
        let Some(meta) = segment.bucket(bucket) else { return false };
        let Some(first) = meta.lock.read_begin() else { return false };
        let touched = part.pages(segment);
        if meta.valid.load(Ordering::Acquire) & touched != touched {
            return false;
        }
        piece.copy_from(self.session.ram(bucket).after(within).readable());
        // Equal entry first, equal version second: see the design page.
        if entry.load(Ordering::Acquire) != word || meta.lock.read_retry(first) {
            return false;
        }
        if self.used(TierId::RAM, bucket, meta) {
            self.predict_after(TierId::RAM, part, piece.len());
        }
        let counters = self.session.counters();
        self.session.count_up(&counters.reads, 1);
        self.session.count_up(&counters.read_bytes, piece.len() as u64);
        true
    }

    #[inline(never)]
    pub(super) fn read_blocks(
        &self,
        pieces: &[Span<'_, Writable>],
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let record = self.record;
        let mut cursor = Cursor::new(pieces);
        let unbuffered = record.entry0.load(Ordering::Acquire) == 0
            && record.root.load(Ordering::Acquire) == 0
            && !record.has(FileFlags::METADATA_DIRTY);
        // Asked for only where a block is not there: the others are read without.
        let wanted = || self.wants_stage_in(length);
        if record.has(FileFlags::DIRECT) || unbuffered && !wanted() {
            if unbuffered && !record.has(FileFlags::DIRECT) {
                let known = record.store_size.load(Ordering::Acquire).saturating_sub(offset);
                let within = (length as u64).min(known) as usize;
                self.predict(offset, within, Destination::Store);
            }
            return self.read_through(&mut cursor, offset, length);
        }
        let size = record.size.load(Ordering::Acquire);
        let length = (length as u64).min(size.saturating_sub(offset)) as usize;
        let mut done = 0;
        let mut buffered = false;
        while done < length {
            let at = offset + done as u64;
            let part = Part::first(&self.session.segment, at, length - done);
            let mut entry = self.session.segment.entry(record, part.block);
            let absent = entry.is_none_or(|entry| entry.load(Ordering::Acquire) == Entry::EMPTY);
            if absent {
                self.predict(at, length - done, Destination::Store);
            }
            if absent && wanted() {
                if self.may(DescriptionFlags::SEQUENTIAL) {
                    self.want_staged(part.block + 1, READ_AHEAD_BLOCKS);
                }
                if self.stage_in(part.block) {
                    entry = self.session.segment.entry(record, part.block);
                }
            }
            let resident = match entry {
                Some(entry) => self.read_resident(entry, &mut cursor, part, length - done),
                None => Ok(false),
            };
            let result = match resident {
                Ok(true) => {
                    buffered = true;
                    Ok(())
                }
                Ok(false) => self.read_store(&mut cursor, at, part.bytes),
                Err(errno) => Err(errno),
            };
            match result {
                Ok(()) => done += part.bytes,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        if buffered {
            let counters = self.session.counters();
            self.session.count_up(&counters.reads, 1);
            self.session.count_up(&counters.read_bytes, done as u64);
        }
        Ok(done)
    }

    /// Of a read that has `left` bytes to go, `part` was found in a bucket of `tier`.
    #[inline(never)]
    pub(super) fn predict_after(&self, tier: TierId, part: Part, left: usize) {
        // What was brought up to RAM came from where it takes long to read.
        let from = match tier {
            TierId::RAM => Destination::Store,
            tier => Destination::Tier(tier.index()),
        };
        self.predict(part.offset(&self.session.segment), left, from);
    }
}
