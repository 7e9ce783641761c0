//! Writing a part of one block into a bucket of the RAM tier, or into the bucket where it is.

use super::room::NO_SPARSE;
use super::{Outcome, WrittenPart};
use crate::access::EnteredFile;
use crate::session::Session;
use crate::span::{Cursor, Readable, Span, Writable};
use crate::store::elsewhere;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::BucketId;
use forebay_pool::backoff::Backoff;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use forebay_pool::{Entry, crash};
use rustix::io::Errno;

impl EnteredFile<'_> {
    #[inline(always)]
    pub(super) fn write_part(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Outcome, Errno> {
        let record = self.record;
        let Some(entry) = self.session.segment.entry_or_insert(record, part.block, self.owner)
        else {
            return Ok(Outcome::NoEntry);
        };
        let mut backoff = Backoff::default();
        let mut refused = 0;
        loop {
            let word = entry.load(Ordering::Acquire);
            let done = match Entry::decode(word) {
                Entry::Empty if self.session.is_littered(record, part) => {
                    return Ok(Outcome::Littered);
                }
                Entry::Empty => self.write_new(entry, cursor, part, &mut refused)?,
                Entry::Busy(holder) => {
                    if backoff.wait() {
                        self.session.segment.free_entry_of_dead(entry, word, holder);
                        self.session.segment.ends_wait_in_time(holder, &backoff)?;
                    }
                    None
                }
                Entry::Resident { tier: TierId::RAM, .. } => {
                    let held =
                        self.session.segment.lock_block_unless_interrupted(entry, self.owner)?;
                    let Some(mut held) = held else { continue };
                    if held.tier().is_ram() && !self.has_memory(held.bucket(), part) {
                        drop(held);
                        if !self.leave_sparse(entry, part.block)? {
                            return Ok(Outcome::NoMemory);
                        }
                        continue;
                    }
                    let result = if held.tier().is_ram() {
                        self.write_bucket(held.bucket(), cursor, part).map(Some)
                    } else {
                        Ok(None)
                    };
                    if !matches!(result, Ok(None)) {
                        held.changed();
                    }
                    result?
                }
                Entry::Resident { .. } => match self.write_over_slot(entry, cursor, part)? {
                    Some(outcome) => return Ok(outcome),
                    None => None,
                },
                Entry::Elsewhere { node, .. } => return Err(elsewhere(node)),
            };
            if let Some(bytes) = done {
                return Ok(Outcome::Written(bytes));
            }
        }
    }

    /// Gives the block a bucket on the tier that the placement engine chooses, or writes around the
    /// tiers when there is none to be had. `None` if another thread was faster, or the tier cannot
    /// be written, which is then one of those that have `refused`: the program is not to see an
    /// error as long as another tier, or the store, takes the block.
    #[inline(never)]
    fn write_new(
        &self,
        entry: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
        refused: &mut u32,
    ) -> Result<Option<usize>, Errno> {
        let bound = Cell::new(None);
        let take = || self.bucket_for(part, *refused, &bound);
        let Some((tier, fresh)) = self.fresh(part.block, take) else {
            return self.write_around(entry, cursor, part);
        };
        if !self.session.segment.back_pages(fresh.bucket(), self.pages_upto(part)) {
            *refused |= NO_SPARSE;
            return Ok(None);
        }
        let Some(held) = fresh.publish(entry, tier) else { return Ok(None) };
        crash::point("write.published");
        // On its way through RAM it is no part of what the file has there.
        self.record.note_tier(bound.get().unwrap_or(tier));
        if tier.is_ram() {
            self.session.populate(held.bucket());
            let written = self.write_bucket(held.bucket(), cursor, part).map(Some);
            if let Some(below) = bound.get() {
                self.session.segment.bind(held.meta(), below);
                self.session.segment.wake_bound();
            }
            return written;
        }
        let start = cursor.position();
        match self.write_slot(held.bucket(), cursor, part) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => {
                *refused |= 1 << tier.index();
                cursor.rewind(start);
                self.session.segment.discard_block(entry, held);
                Ok(None)
            }
        }
    }

    /// Whether the pages of a locked RAM bucket that a part touches have memory, or get it.
    #[inline(always)]
    fn has_memory(&self, bucket: BucketId, part: WrittenPart) -> bool {
        !self.session.segment.is_sparse(bucket)
            || self.session.segment.back_pages(bucket, self.pages_upto(part))
    }

    /// Copies a part into a RAM bucket that is locked and indexed.
    #[inline(always)]
    pub(super) fn write_bucket(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<usize, Errno> {
        let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
        let data = self.session.ram(bucket);
        let touched = part.pages(&self.session.segment);
        let valid = match self.record.has(FileFlags::SHARED) {
            false => meta.valid.load(Ordering::Relaxed),
            true => self.forget_written_over(meta, touched),
        };
        if valid & touched != touched {
            // A page that is written in part needs the rest of its content first.
            self.fill_borders(data, part, valid)?;
        }
        // Dirty before the copy: a page half overwritten by a process that is killed is not clean.
        self.mark_dirty(meta, valid & touched, part.stamp);
        crash::point("write.marked");
        cursor.copy_out(data.after(part.within).first(part.bytes));
        crash::point("write.filled");
        self.mark_written(TierId::RAM, bucket, meta, touched, part);
        Ok(part.bytes)
    }

    /// Brings the pages to their content on the store that are not valid and of which a part is
    /// about to be written.
    #[cold]
    fn fill_borders(
        &self,
        data: Span<'_, Writable>,
        part: WrittenPart,
        valid: u64,
    ) -> Result<(), Errno> {
        let (page, end) = (self.session.segment.page_bytes(), part.end());
        let (first, last) = (part.within / page, (end - 1) / page);
        if !part.within.is_multiple_of(page) && valid >> first & 1 == 0 {
            self.fill_page(data, part, first, page)?;
        }
        if !end.is_multiple_of(page)
            && valid >> last & 1 == 0
            && (last != first || part.within.is_multiple_of(page))
        {
            self.fill_page(data, part, last, page)?;
        }
        Ok(())
    }

    /// Brings one page of a RAM bucket to its content on the store.
    fn fill_page(
        &self,
        data: Span<'_, Writable>,
        part: WrittenPart,
        number: usize,
        page: usize,
    ) -> Result<(), Errno> {
        let start =
            part.block * self.session.segment.bucket_bytes() as u64 + (number * page) as u64;
        let to = data.after(number * page).first(page);
        let bytes = self.known_on_store(start, page);
        let got = if bytes > 0 { self.store_read(to.first(bytes), start)? } else { 0 };
        self.session.note_moved(Place::Missed, Place::Tier(TierId::RAM), got);
        to.after(got).zero();
        Ok(())
    }

    /// How many of `bytes` at `start` the store has, as far as known, and the file, too.
    pub(super) fn known_on_store(&self, start: u64, bytes: usize) -> usize {
        let record = self.record;
        let known = record.stored().min(record.size.load(Ordering::Acquire)).saturating_sub(start);
        known.min(bytes as u64) as usize
    }
}

impl Session {
    /// Whether a killed process may have left something on the store that would show when a write
    /// to `part` raises the size.
    #[inline]
    pub(super) fn is_littered(&self, record: &FileRecord, part: WrittenPart) -> bool {
        self.end_of(part) > record.size.load(Ordering::Acquire)
            && self.segment.was_lengthened(record)
    }

    pub(super) fn end_of(&self, part: WrittenPart) -> u64 {
        part.offset(&self.segment) + part.bytes as u64
    }
}
