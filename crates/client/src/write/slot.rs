//! Writing into slots of file tiers, and moving blocks up from slots that cannot be written.

use super::{Outcome, WrittenPart};
use crate::access::{EnteredFile, ExclusiveFile};
use crate::session::Session;
use crate::span::{Cursor, Readable, Span};
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::BucketId;
use forebay_pool::checksum::checksum_of;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use forebay_pool::{Entry, PageSet, crash};
use rustix::io::Errno;

impl EnteredFile<'_> {
    /// Writes to a block that lies on a file tier: a block written whole moves to RAM, a part is
    /// written in place. `None` if the block moved meanwhile.
    #[inline(never)]
    pub(super) fn write_over_slot(
        &self,
        entry: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Option<Outcome>, Errno> {
        let segment = &self.session.segment;
        let held = segment.lock_block_unless_interrupted(entry, self.owner)?;
        let Some(mut held) = held.filter(|held| !held.tier().is_ram()) else { return Ok(None) };
        // A block that the manager, which may be stopped, is bringing to the store could not be
        // freed.
        let moves = part.bytes == segment.bucket_bytes() && held.meta().pages.writeback() == 0;
        let pages = PAGES_PER_BUCKET;
        let moves = moves && segment.claim_quota(self.record, TierId::RAM, pages);
        let bucket = if moves { segment.take_bucket(self.owner) } else { None };
        let init = |bucket| segment.init_bucket(bucket, self.id, part.block, self.owner);
        let fresh = bucket.and_then(init);
        let Some(fresh) = fresh else {
            if !segment.back_pages(held.bucket(), self.pages_upto(part)) {
                drop(held);
                // It has grown out of its slot.
                return match self.bring_up(entry, part.block) {
                    Ok(()) => Ok(None),
                    Err(errno @ (Errno::INTR | Errno::TIMEDOUT)) => Err(errno),
                    Err(_) => Ok(Some(Outcome::NoMemory)),
                };
            }
            let start = cursor.position();
            let result = self.write_slot(held.bucket(), cursor, part);
            held.changed();
            drop(held);
            return match result {
                Ok(bytes) => Ok(Some(Outcome::Written(bytes))),
                Err(errno) => {
                    cursor.rewind(start);
                    self.bring_up(entry, part.block).map_err(|failed| match failed {
                        Errno::INTR | Errno::TIMEDOUT => failed,
                        _ => errno,
                    })?;
                    Ok(None)
                }
            };
        };
        self.session.populate(fresh.bucket());
        let result = self.write_bucket(fresh.bucket(), cursor, part);
        drop(fresh.publish_instead(entry, held, self.session));
        result.map(|bytes| Some(Outcome::Written(bytes)))
    }

    /// Moves a block to RAM that lies in a slot which cannot be written any more.
    ///
    /// # Errors
    /// `NOSPC` if there is no room in RAM, or threads that do not go on still lock what is free;
    /// the device's, or `IO`, if bytes that only the slot has cannot be read as they were written.
    #[cold]
    pub(crate) fn bring_up(&self, entry: &AtomicU64, block: u64) -> Result<(), Errno> {
        self.bring_up_counted(entry, block)?;
        self.session.segment.note_quota(self.record, TierId::RAM, PAGES_PER_BUCKET);
        Ok(())
    }

    /// The same of a block that the caller has counted as used of its job's quota of RAM.
    ///
    /// # Errors
    /// Those of [`EnteredFile::bring_up`].
    pub(crate) fn bring_up_counted(&self, entry: &AtomicU64, block: u64) -> Result<(), Errno> {
        // There may be no room for seconds: no lock is held meanwhile.
        let mut taken = Some(self.ram_bucket().ok_or(Errno::NOSPC)?);
        let result = self.bring_up_to(entry, block, &mut taken);
        if let Some((_, unused)) = taken {
            self.session.segment.free_bucket(unused);
        }
        result
    }

    /// Moves a block to the bucket that was `taken` for it, or to another one.
    fn bring_up_to(
        &self,
        entry: &AtomicU64,
        block: u64,
        taken: &mut Option<(TierId, BucketId)>,
    ) -> Result<(), Errno> {
        let segment = &self.session.segment;
        let held = segment.lock_block_unless_interrupted(entry, self.owner)?;
        let Some(held) = held.filter(|held| !held.tier().is_ram() && held.is_taken()) else {
            return Ok(());
        };
        segment.wait_for_writeback_unless_interrupted(held.meta())?;
        let another = || Some((TierId::RAM, segment.take_bucket(self.owner)?));
        let fresh = self.fresh(block, || taken.take().or_else(another));
        let (_, fresh) = fresh.ok_or(Errno::NOSPC)?;
        fresh.raise(entry, held, self.session).map(drop).map_err(|(errno, _)| errno)
    }

    /// Writes a part into a slot that is locked and indexed: whole pages, so that each has its sum.
    pub(super) fn write_slot(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<usize, Errno> {
        let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
        let page = self.session.segment.page_bytes();
        let end = part.end();
        let shift = self.session.segment.page_shift();
        let touched = part.pages(&self.session.segment);
        let whole =
            PageSet::of_bytes(part.within.next_multiple_of(page)..end / page * page, shift).0;
        // What stays of a page must be right; if it is not, and clean, the store has it. Dirty
        // pages of the usual size are looked at when they are read anyway.
        let dirty = meta.pending_under_lock();
        let seen = if page == 4096 { dirty } else { 0 };
        self.session.segment.verify_pages(self.session, bucket, touched & !whole & !seen)?;
        self.mark_dirty(meta, meta.valid.load(Ordering::Relaxed) & touched, part.stamp);
        let mut at = part.within;
        while at < end {
            let from = cursor.here();
            let run = from.len().min(end - at) / page * page;
            crash::point("slot.writing");
            if at.is_multiple_of(page) && run > 0 {
                self.session.write_pages(bucket, at, from.first(run))?;
                cursor.advance(run);
                at += run;
            } else {
                let upto = (at / page * page + page).min(end);
                self.write_page(bucket, cursor, part.block, at..upto)?;
                at = upto;
            }
            crash::point("slot.written");
        }
        let tier = self.session.segment.tier_of(bucket);
        self.mark_written(tier, bucket, meta, touched, part);
        self.session.note_moved(Place::Programs, Place::Tier(tier), part.bytes);
        self.session.segment.record_slot(self.session, bucket);
        Ok(part.bytes)
    }

    /// Writes bytes of one page of a slot: a part of it, or what lies in several pieces.
    fn write_page(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Readable>,
        block: u64,
        range: core::ops::Range<usize>,
    ) -> Result<(), Errno> {
        let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
        let number = range.start / self.session.segment.page_bytes();
        let keep = meta.valid.load(Ordering::Relaxed) >> number & 1 == 1;
        let start = block * self.session.segment.bucket_bytes() as u64;
        self.session.segment.rewrite_page(self.session, bucket, number, keep, |at, chunk| {
            let end = at + chunk.len();
            let here = range.start.clamp(at, end) - at..range.end.clamp(at, end) - at;
            let offset = start + at as u64;
            if !keep && here.len() < chunk.len() {
                let known = self.known_on_store(offset, chunk.len());
                if known > 0 {
                    self.store_read((&mut chunk[..known]).into(), offset)?;
                }
            }
            cursor.copy_out((&mut chunk[here]).into());
            Ok(())
        })
    }
}

impl ExclusiveFile<'_> {
    /// Calls `act`, which makes a part of the pages at `offsets` zero; once more if it was the
    /// first to find that the tier of one of them fails.
    ///
    /// # Errors
    /// That of `act`, or of [`ExclusiveFile::bring_failing_up`].
    pub(crate) fn again_in_ram(
        &self,
        offsets: &[u64],
        mut act: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let failed @ Err(_) = act() else { return Ok(()) };
        let mut moved = false;
        for &offset in offsets {
            moved |= self.bring_failing_up(offset)?;
        }
        if moved { act() } else { failed }
    }

    /// Before a part of the page at `offset` is made zero: moves its block to RAM if the tier that
    /// it lies on has failed. Returns whether it was moved.
    ///
    /// # Errors
    /// `INTR`; `TIMEDOUT`. What else keeps the block where it is shows when it is changed.
    pub(crate) fn bring_failing_up(&self, offset: u64) -> Result<bool, Errno> {
        let (record, block) = (self.record, offset / self.session.segment.bucket_bytes() as u64);
        if offset.is_multiple_of(self.session.segment.page_bytes() as u64) {
            return Ok(false);
        }
        let Some(entry) = self.session.segment.entry(record, block) else { return Ok(false) };
        match Entry::decode(entry.load(Ordering::Acquire)) {
            Entry::Resident { tier, .. }
                if !tier.is_ram() && !self.session.segment.is_sound(tier) =>
            {
                match self.bring_up(entry, block) {
                    Err(errno @ (Errno::INTR | Errno::TIMEDOUT)) => Err(errno),
                    Err(_) => Ok(false),
                    Ok(()) => Ok(true),
                }
            }
            _ => Ok(false),
        }
    }
}

impl Session {
    /// Writes whole pages of a slot from one piece of the application's memory.
    fn write_pages(
        &self,
        bucket: BucketId,
        within: usize,
        from: Span<'_, Readable>,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let first = within / page;
        // The application may change it meanwhile: see below.
        let memory = from.bytes();
        sums.forget(PageSet::of_bytes(within..within + from.len(), self.segment.page_shift()).0);
        let mut before = [0u32; PAGES_PER_BUCKET as usize];
        for (sum, page) in before.iter_mut().zip(memory.chunks_exact(page)) {
            *sum = checksum_of(page);
        }
        self.slot_write(bucket, within, from)?;
        crash::point("slot.summing");
        for (index, content) in memory.chunks_exact(page).enumerate() {
            if checksum_of(content) == before[index] {
                sums.set(first + index, before[index]);
                continue;
            }
            // Another thread changes what is being written: a copy that holds still has a sum.
            self.segment.rewrite_page(self, bucket, first + index, false, |at, chunk| {
                let to = Span::from(&mut chunk[..]);
                to.copy_from(from.after(at - within));
                Ok(())
            })?;
        }
        Ok(())
    }
}
