//! Reading: lock-free from RAM buckets, through the kernel from slots and from the store.

use crate::access::EnteredFile;
use crate::attributes::Whence;
use crate::open_file::OpenFile;
use crate::range::READ_AHEAD_BLOCKS;
use crate::session::Session;
use crate::span::{Cursor, Span, Writable, total};
use crate::store::elsewhere;
use crate::user_buffers::UserBuffers;
use crate::write::pages;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_placement::Destination;
use forebay_placement::schema::Lifetime;
use forebay_pool::BucketId;
use forebay_pool::checksum::Checksum;
use forebay_pool::guards::BlockGuard;
use forebay_pool::layout::*;
use forebay_pool::{Entry, interruption};
use rustix::io::Errno;

/// Tries without the lock before a reader takes it.
const LOCKLESS_TRIES: u32 = 16;

/// Bytes from which a read has its beginning fetched ahead: as many as are.
const PREFETCH_FROM: usize = 512;

/// A part of a read that falls into one block.
#[derive(Clone, Copy)]
struct Part {
    block: u64,
    within: usize,
    bytes: usize,
}

impl OpenFile<'_> {
    /// Reads into `buffers` from `offset`. Returns the bytes read, fewer than were asked for at the
    /// end of the file only, or before memory that cannot be used.
    ///
    /// # Errors
    /// The store's or a tier's errno if nothing was read; `FAULT` or `INVAL` where `buffers` are
    /// none.
    #[inline]
    pub fn pread(&self, buffers: &UserBuffers<'_, Writable>, offset: u64) -> Result<usize, Errno> {
        match buffers.pieces() {
            Some(pieces) => self.pread_pieces(pieces, offset),
            None => self.read_part(buffers, Some(offset)),
        }
    }

    /// Reads to several pieces of which some cannot be used, or to none.
    #[cold]
    #[inline(never)]
    fn read_part(
        &self,
        buffers: &UserBuffers<'_, Writable>,
        offset: Option<u64>,
    ) -> Result<usize, Errno> {
        let read = |pieces: &[Span<'_, Writable>]| match offset {
            Some(offset) => self.pread_pieces(pieces, offset),
            None => self.read_pieces(pieces),
        };
        match buffers.with_part(read) {
            Ok(result) => result,
            Err(refused) => self.read_nothing(refused, buffers.is_faulty(), offset),
        }
    }

    /// A read to buffers that cannot be used, because of `refused`. Whether the descriptor may be
    /// read at all comes first, and at the end of the file nothing is copied, wherever to.
    fn read_nothing(
        &self,
        refused: Errno,
        is_faulty: bool,
        offset: Option<u64>,
    ) -> Result<usize, Errno> {
        match offset {
            Some(offset) => self.pread_pieces(&[], offset)?,
            None => self.read_pieces(&[])?,
        };
        if !is_faulty {
            return Err(refused);
        }
        let from = match offset {
            Some(offset) => offset,
            None => self.seek(0, Whence::Current)?,
        };
        if from < self.size()? { Err(refused) } else { Ok(0) }
    }

    fn pread_pieces(&self, pieces: &[Span<'_, Writable>], offset: u64) -> Result<usize, Errno> {
        if !self.may(DescriptionFlags::READ) {
            return Err(Errno::BADF);
        }
        let record = self.record;
        if let [piece] = pieces {
            if piece.len() >= PREFETCH_FROM {
                self.session.segment.prefetch(record, offset);
            }
            let owner = self.session.owner();
            let inside = self.enter_restarting(owner)?;
            let done = inside.read_at_once(piece, offset);
            drop(inside);
            if done {
                return Ok(piece.len());
            }
        }
        self.session.restarting(|| self.pread_slowly(pieces, offset))
    }

    #[inline(never)]
    fn pread_slowly(&self, pieces: &[Span<'_, Writable>], offset: u64) -> Result<usize, Errno> {
        let record = self.record;
        let length = total(pieces).ok_or(Errno::INVAL)?;
        if length == 0 {
            return Ok(0);
        }
        let end = offset
            .checked_add(length as u64)
            .filter(|&end| end <= i64::MAX as u64)
            .ok_or(Errno::INVAL)?;
        if end > record.size.load(Ordering::Acquire) && !record.has(FileFlags::METADATA_DIRTY) {
            // Another node may be appending to it.
            self.look_again()?;
        }
        let owner = self.session.owner();
        let inside = self.enter(owner)?;
        let result = inside.read_blocks(pieces, offset, length);
        if record.rule.load(Ordering::Relaxed) != 0 {
            self.note_read(offset, &result);
        }
        result
    }

    /// Notes that a file has been read to its end, where a lifetime asks for it.
    fn note_read(&self, offset: u64, result: &Result<usize, Errno>) {
        let record = self.record;
        let Ok(got) = *result else { return };
        if offset + got as u64 >= record.size.load(Ordering::Acquire)
            && self.session.settings(record).lifetime == Some(Lifetime::OverwriteWhenRead)
        {
            record.set(FileFlags::READ_OUT);
        }
    }

    /// Reads into `buffers` from the description's offset, and moves it.
    ///
    /// # Errors
    /// As of [`OpenFile::pread`].
    #[inline]
    pub fn read(&self, buffers: &UserBuffers<'_, Writable>) -> Result<usize, Errno> {
        match buffers.pieces() {
            Some(pieces) => self.read_pieces(pieces),
            None => self.read_part(buffers, None),
        }
    }

    fn read_pieces(&self, pieces: &[Span<'_, Writable>]) -> Result<usize, Errno> {
        match self.read_on(pieces) {
            Some(Err(Errno::INTR)) if interruption::restarts() => {}
            Some(result) => return result,
            None => {}
        }
        let description = self.description;
        let read = |offset| {
            let got = self.pread_pieces(pieces, offset)?;
            description.offset.store(offset + got as u64, Ordering::Release);
            Ok(got)
        };
        self.session.restarting(|| self.positioned(read))
    }

    /// The usual read at the description's offset, with one shared lock for the offset's lock and
    /// for the file. `None`, and nothing was done, where more is needed, as in writing.
    #[inline]
    fn read_on(&self, pieces: &[Span<'_, Writable>]) -> Option<Result<usize, Errno>> {
        let (record, description) = (self.record, self.description);
        let length = total(pieces).filter(|&length| length > 0)?;
        if !self.may(DescriptionFlags::READ) {
            return None;
        }
        if length >= PREFETCH_FROM {
            self.session.segment.prefetch(record, description.offset.load(Ordering::Relaxed));
        }
        let owner = self.session.owner();
        let inside = match self.enter_restarting(owner) {
            Ok(inside) => inside,
            Err(errno) => return Some(Err(errno)),
        };
        let _position = description.position.guard(inside.owner)?;
        let offset = description.offset.load(Ordering::Acquire);
        let result = if let [piece] = pieces
            && inside.read_at_once(piece, offset)
        {
            Some(Ok(length))
        } else {
            inside.read_on_slowly(pieces, offset, length)
        };
        if let Some(Ok(got)) = result {
            description.offset.store(offset + got as u64, Ordering::Release);
        }
        result
    }

    /// Whether a block that only the store has is worth a bucket: it will be read in small pieces,
    /// or its file is read again; and RAM is not short.
    fn wants_stage_in(&self, length: usize) -> bool {
        let advice = self.description.flags.load(Ordering::Relaxed);
        if advice.contains(DescriptionFlags::RANDOM) {
            return false;
        }
        let low = self.session.segment.header().tier[TierId::RAM].low.load(Ordering::Relaxed);
        let again = self.record.opens.load(Ordering::Relaxed) > 1
            || advice.contains(DescriptionFlags::SEQUENTIAL);
        (again || length < self.session.segment.bucket_bytes())
            && self.session.segment.free_in(TierId::RAM) > low
    }
}

impl EnteredFile<'_> {
    #[inline(never)]
    fn read_on_slowly(
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
    fn read_at_once(&self, piece: &Span<'_, Writable>, offset: u64) -> bool {
        let record = self.record;
        let (block, within) = self.session.segment.block_at(offset);
        let end_within = within.saturating_add(piece.len());
        let unusual = record.has(FileFlags::DIRECT)
            || record.rule.load(Ordering::Relaxed) != 0
            || piece.len() == 0
            || end_within > self.session.segment.bucket_bytes()
            // No overflow: a bucket is smaller than what is left of an offset's range.
            || offset > i64::MAX as u64
            || offset + piece.len() as u64 > record.size.load(Ordering::Acquire);
        if unusual {
            return false;
        }
        let Some(entry) = self.session.segment.entry(record, block) else { return false };
        let word = entry.load(Ordering::Acquire);
        let Entry::Resident { tier: TierId::RAM, bucket, .. } = Entry::decode(word) else {
            return false;
        };
        let Some(meta) = self.session.segment.bucket(bucket) else { return false };
        let Some(first) = meta.lock.read_begin() else { return false };
        let touched = pages(within, end_within, self.session.segment.page_shift());
        if meta.valid.load(Ordering::Acquire) & touched != touched {
            return false;
        }
        piece.copy_from(self.session.ram(bucket).after(within).readable());
        // Equal entry first, equal version second: see the design page.
        if entry.load(Ordering::Acquire) != word || meta.lock.read_retry(first) {
            return false;
        }
        if self.used(TierId::RAM, bucket, meta) {
            let part = Part { block, within, bytes: piece.len() };
            self.predict_after(TierId::RAM, part, piece.len());
        }
        let counters = self.session.counters();
        self.session.count_up(&counters.reads, 1);
        self.session.count_up(&counters.read_bytes, piece.len() as u64);
        true
    }

    #[inline(never)]
    fn read_blocks(
        &self,
        pieces: &[Span<'_, Writable>],
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let record = self.record;
        let mut cursor = Cursor::new(pieces);
        let bucket_bytes = self.session.segment.bucket_bytes();
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
            let (block, within) = self.session.segment.block_at(at);
            let part = Part { block, within, bytes: (bucket_bytes - within).min(length - done) };
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

    /// Brings a block from the store to RAM, clean. False if that is not possible now.
    #[inline(never)]
    fn stage_in(&self, block: u64) -> bool {
        let record = self.record;
        let bytes = self.session.segment.bucket_bytes();
        let start = block * bytes as u64;
        let length = || {
            let known = record.stored().min(record.size.load(Ordering::Acquire));
            (known.saturating_sub(start) as usize).min(bytes)
        };
        if length() == 0 {
            return false;
        }
        let Some(entry) = self.session.segment.entry_or_insert(record, block, self.owner) else {
            return false;
        };
        let Some(bucket) = self.session.segment.take_bucket(self.owner) else { return false };
        let fresh = self.session.segment.init_bucket(bucket, self.id, block, self.owner);
        let Some(fresh) = fresh else { return false };
        // Another thread may be faster.
        let Some(held) = fresh.publish(entry, TierId::RAM) else { return true };
        record.note_tier(TierId::RAM);
        self.session.populate(bucket);
        let data = self.session.ram(bucket);
        // Now that the block is ours: before, another process may still have written to the store.
        let got = self.store_read(data.first(length()), start).unwrap_or(0);
        let page = self.session.segment.page_bytes();
        let end = got.next_multiple_of(page);
        data.first(end).after(got).zero();
        let now = forebay_pool::clock::realtime_coarse_ns();
        held.meta().written.store(forebay_pool::clock::stamp(now), Ordering::Relaxed);
        let pages = if got == 0 { 0 } else { pages(0, end, self.session.segment.page_shift()) };
        held.meta().valid.store(pages, Ordering::Release);
        got > 0
    }

    /// Reads a file of which nothing is buffered: what the kernel says is true, its end included.
    #[inline(never)]
    fn read_through(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < length {
            let to = cursor.here();
            match self.store_read(to, offset + done as u64) {
                Ok(got) => {
                    cursor.advance(got);
                    done += got;
                    if got < to.len() {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads bytes below the file's size from the store; what the store does not have is zero.
    #[inline(never)]
    fn read_store(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Errno> {
        let known = self.record.stored();
        let mut done = 0;
        while done < bytes {
            let to = cursor.here().first(bytes - done);
            let at = offset + done as u64;
            let got = if at < known { self.store_read(to, at)? } else { 0 };
            to.after(got).zero();
            cursor.advance(to.len());
            done += to.len();
        }
        Ok(())
    }

    /// Reads a part, with which a read of `left` bytes goes on, from the bucket that `entry` names;
    /// false when the store has it.
    #[inline]
    fn read_resident(
        &self,
        entry: &AtomicU64,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
        left: usize,
    ) -> Result<bool, Errno> {
        let start = cursor.position();
        for _ in 0..LOCKLESS_TRIES {
            let word = entry.load(Ordering::Acquire);
            let (tier, bucket) = match Entry::decode(word) {
                Entry::Resident { tier, bucket } => (tier, bucket),
                Entry::Elsewhere { node, .. } => return Err(elsewhere(node)),
                Entry::Empty | Entry::Busy(_) => return Ok(false),
            };
            let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
            let Some(first) = meta.lock.read_begin() else {
                forebay_pool::sync::pause();
                continue;
            };
            let valid = meta.valid.load(Ordering::Acquire);
            let result = self.copy_bucket(tier, bucket, valid, cursor, part);
            // Equal entry first, equal version second: see the design page.
            let same = entry.load(Ordering::Acquire) == word && !meta.lock.read_retry(first);
            if same && (result.is_ok() || tier.is_ram()) {
                if self.used(tier, bucket, meta) {
                    self.predict_after(tier, part, left);
                }
                return result.map(|()| true);
            }
            cursor.rewind(start);
            if same {
                // A corrupt page, or a device that fails: to be looked at while no thread writes.
                break;
            }
        }
        let held = self.session.segment.lock_block_unless_interrupted(entry, self.owner)?;
        let Some(mut held) = held else { return Ok(false) };
        let valid = held.meta().valid.load(Ordering::Acquire);
        let result = self.copy_locked(&held, cursor, part);
        if held.meta().valid.load(Ordering::Acquire) != valid {
            held.changed();
        }
        result.map(|()| true)
    }

    /// Of a read that has `left` bytes to go, `part` was found in a bucket of `tier`.
    #[inline(never)]
    fn predict_after(&self, tier: TierId, part: Part, left: usize) {
        // What was brought up to RAM came from where it takes long to read.
        let from = match tier {
            TierId::RAM => Destination::Store,
            tier => Destination::Tier(tier.index()),
        };
        let offset = part.block * self.session.segment.bucket_bytes() as u64 + part.within as u64;
        self.predict(offset, left, from);
    }

    #[inline(never)]
    fn copy_locked(
        &self,
        held: &BlockGuard<'_>,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
    ) -> Result<(), Errno> {
        let meta = held.meta();
        let touched =
            pages(part.within, part.within + part.bytes, self.session.segment.page_shift());
        self.session.segment.verify_pages(self.session, held.bucket(), touched)?;
        let valid = meta.valid.load(Ordering::Acquire);
        self.copy_bucket(held.tier(), held.bucket(), valid, cursor, part)
    }

    /// Copies valid pages from the bucket and the others from the store.
    #[inline]
    fn copy_bucket(
        &self,
        tier: TierId,
        bucket: BucketId,
        valid: u64,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
    ) -> Result<(), Errno> {
        let end = part.within + part.bytes;
        let touched = pages(part.within, end, self.session.segment.page_shift());
        if tier.is_ram() && valid & touched == touched {
            let from = self.session.ram(bucket).after(part.within).first(part.bytes);
            cursor.copy_in(from.readable());
            return Ok(());
        }
        self.copy_runs(tier, bucket, valid, cursor, part)
    }

    /// The same, run by run of pages that are alike.
    #[inline(never)]
    fn copy_runs(
        &self,
        tier: TierId,
        bucket: BucketId,
        valid: u64,
        cursor: &mut Cursor<'_, Writable>,
        part: Part,
    ) -> Result<(), Errno> {
        let end = part.within + part.bytes;
        let page = self.session.segment.page_bytes();
        let block_start = part.block * self.session.segment.bucket_bytes() as u64;
        let mut at = part.within;
        while at < end {
            let number = at / page;
            let here = valid >> number & 1 == 1;
            // The run of pages that are alike.
            let same = if here { valid >> number } else { !(valid >> number) };
            let run = same.trailing_ones() as usize;
            let upto = ((number + run) * page).min(end);
            if !here {
                self.read_store(cursor, block_start + at as u64, upto - at)?;
            } else if tier.is_ram() {
                cursor.copy_in(self.session.ram(bucket).first(upto).after(at).readable());
            } else {
                self.session.read_pages(bucket, cursor, at, upto - at)?;
            }
            at = upto;
        }
        Ok(())
    }
}

impl Session {
    /// Copies from valid pages of a slot, and compares them with their sums.
    fn read_pages(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        within: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let (mut at, end) = (within, within + bytes);
        while at < end {
            let to = cursor.here();
            let run = to.len().min(end - at) / page * page;
            if !at.is_multiple_of(page) || run == 0 {
                let upto = (at / page * page + page).min(end);
                self.read_page(bucket, cursor, at..upto)?;
                at = upto;
                continue;
            }
            let first = at / page;
            let mut before = [0u32; PAGES_PER_BUCKET as usize];
            for (index, sum) in before.iter_mut().take(run / page).enumerate() {
                *sum = sums.get(first + index);
            }
            let to = to.first(run);
            self.slot_read(bucket, at, to)?;
            for (index, content) in to.readable().bytes().chunks_exact(page).enumerate() {
                if !sums.agrees(first + index, before[index], content) {
                    // Another thread may have changed it in the application's memory.
                    let start = (first + index) * page;
                    let into = [to.after(index * page).first(page)];
                    let mut again = Cursor::new(&into);
                    self.read_page(bucket, &mut again, start..start + page)?;
                }
            }
            cursor.advance(run);
            at += run;
        }
        Ok(())
    }

    /// Copies bytes of one valid page of a slot, all of which is read and compared.
    fn read_page(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        range: core::ops::Range<usize>,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let number = range.start / page;
        let before = sums.get(number);
        let (mut sum, mut chunk) = (Checksum::default(), [0u8; 4096]);
        for at in (number * page..(number + 1) * page).step_by(chunk.len()) {
            self.slot_read(bucket, at, (&mut chunk[..]).into())?;
            sum.add(&chunk);
            let end = at + chunk.len();
            let here = &chunk[range.start.clamp(at, end) - at..range.end.clamp(at, end) - at];
            cursor.copy_in(here.into());
        }
        let right = before == 0 || sum.sum() == before || sums.get(number) != before;
        if right { Ok(()) } else { Err(Errno::IO) }
    }
}
