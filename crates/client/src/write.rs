//! Writing: into RAM buckets, into slots of file tiers, or around the tiers.

use crate::open_file::OpenFile;
use crate::session::Session;
use crate::span::{Cursor, Readable, Span, Writable, total};
use crate::user_buffers::UserBuffers;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_placement::Destination;
use forebay_placement::schema::Mode;
use forebay_pool::backoff::Backoff;
use forebay_pool::clock::Timer;
use forebay_pool::guards::FreshBucket;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::sums::sum_of;
use forebay_pool::{Entry, Owner, clock, crash, futex, interruption};
use rustix::io::Errno;

/// How long a writer waits for room while none is made, before it writes around the tiers.
const ROOM_PATIENCE: Timer = Timer::seconds(5);
/// How often it then looks whether there is still a manager.
const ROOM_LOOK: Timer = Timer::ms(50);

/// Buckets that are free and still locked by a thread that does not go on, two milliseconds each: after so many a write goes
/// around the tiers, and what cannot do without a bucket fails.
const LOCKED_MOST: usize = 32;

/// A part of a write that falls into one block.
#[derive(Clone, Copy)]
struct Part {
    block: u64,
    within: usize,
    bytes: usize,
    /// Bytes of the call from here on.
    ahead: u64,
    /// Milliseconds at which the call began.
    stamp: u32,
}

/// What became of a part.
enum Outcome {
    Written(usize),
    /// The index is full: the caller takes the file exclusively and writes to the store.
    NoEntry,
    /// The store's file has what a killed process left behind its end: the caller takes the file exclusively and cleans
    /// up first.
    Littered,
}

/// One bit for each page, of 2^`shift` bytes, that bytes `from .. to` of a bucket touch.
#[inline]
pub(crate) fn pages(from: usize, to: usize, shift: u32) -> u64 {
    let (first, end) = (from >> shift, (to + (1 << shift) - 1) >> shift);
    let upto = |n: usize| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    upto(end) & !upto(first)
}

impl OpenFile<'_> {
    /// Whether the description was opened with O_APPEND.
    pub fn appends(&self) -> bool {
        self.may(DescriptionFlags::APPEND)
    }

    /// Writes `buffers`: at the end of the file if `append`, else at `offset`, or, without one, at
    /// the description's, which moves behind them.
    ///
    /// # Errors
    /// The store's or a tier's errno if nothing was written; `FBIG` beyond what the store, or
    /// RLIMIT_FSIZE, allows; `FAULT` or `INVAL` where `buffers` are none.
    #[inline]
    pub fn write_placed(
        &self,
        buffers: &UserBuffers<'_, Readable>,
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        match buffers.pieces() {
            Some(pieces) => self.write_pieces(pieces, offset, append),
            None => self.write_part_of(buffers, offset, append),
        }
    }

    /// Writes several pieces of which some cannot be used, or none.
    #[cold]
    #[inline(never)]
    fn write_part_of(
        &self,
        buffers: &UserBuffers<'_, Readable>,
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        match buffers.with_part(|pieces| self.write_pieces(pieces, offset, append)) {
            Ok(result) => result,
            Err(refused) => self.write_nothing(refused, buffers.is_faulty(), offset, append),
        }
    }

    /// A write from buffers that cannot be used, because of `refused`. Whether the descriptor may be
    /// written at all comes first.
    fn write_nothing(
        &self,
        refused: Errno,
        is_faulty: bool,
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        self.write_pieces(&[], offset, append)?;
        if is_faulty {
            self.note_failed_write();
        }
        Err(refused)
    }

    #[inline]
    fn write_pieces(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        if offset.is_none()
            && !append
            && let Some(result) = self.write_on(pieces)
        {
            match result {
                Err(Errno::INTR) if interruption::restarts() => {}
                result => return result,
            }
        }
        let written = self.session.restarting(|| self.write_once(pieces, offset, append))?;
        // Of a write that is done: whatever becomes of this, it is not made again.
        if written > 0 {
            self.after_write()?;
        }
        Ok(written)
    }

    #[inline]
    fn write_once(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        match offset {
            Some(offset) if append => {
                let end = total(pieces).and_then(|length| offset.checked_add(length as u64));
                let possible = end.is_some_and(|end| end <= i64::MAX as u64);
                if !possible && self.may(DescriptionFlags::WRITE) {
                    return Err(Errno::INVAL);
                }
                self.append(pieces).map(|(_, bytes)| bytes)
            }
            Some(offset) => self.write_at(pieces, offset),
            None => self.positioned(|offset| {
                let (start, written) = if append {
                    self.append(pieces)?
                } else {
                    (offset, self.write_at(pieces, offset)?)
                };
                if written > 0 {
                    let moved = start + written as u64;
                    self.description.offset.store(moved, Ordering::Release);
                }
                Ok(written)
            }),
        }
    }

    /// The usual write at the description's offset, with one presence for the offset's lock and for the
    /// file. `None`, and nothing was done, where more is needed. Nobody waits for that lock inside a
    /// file: who has it may want the file exclusively.
    #[inline(never)]
    fn write_on(&self, pieces: &[Span<'_, Readable>]) -> Option<Result<usize, Errno>> {
        let (record, description) = (self.record, self.description);
        let length = total(pieces).filter(|&length| length > 0)?;
        let waits = self.may(DescriptionFlags::SYNC)
            || record.mode.load(Ordering::Relaxed) == Mode::Sync as u8
            || self.session.flushes_each_write(record);
        if waits || !self.may(DescriptionFlags::WRITE) {
            return None;
        }
        let owner = self.session.owner();
        let inside = match self.enter(owner) {
            Ok(inside) => inside,
            Err(errno) => return Some(Err(errno)),
        };
        let _position = description.position.guard(owner)?;
        let offset = description.offset.load(Ordering::Acquire);
        let size = record.size.load(Ordering::Relaxed).max(offset.saturating_add(length as u64));
        // Another rule may turn the file direct, which takes it exclusively.
        let goes_on = size < record.rule_review.load(Ordering::Relaxed);
        goes_on.then(|| {
            let length = self.allowed(offset, length)?;
            if let [piece] = pieces
                && piece.len() == length
                && self.write_at_once(piece, offset, owner)
            {
                description.offset.store(offset + length as u64, Ordering::Release);
                return Ok(length);
            }
            let mut cursor = Cursor::new(pieces);
            let written = self.write_blocks(&mut cursor, offset, length, owner, &inside)?;
            description.offset.store(offset + written as u64, Ordering::Release);
            Ok(written)
        })
    }

    /// Appends `pieces` in one go. Returns where they start and how many bytes were written.
    fn append(&self, pieces: &[Span<'_, Readable>]) -> Result<(u64, usize), Errno> {
        let record = self.record;
        let owner = self.session.owner();
        // Any lock is held under a presence.
        let _inside = self.enter_beside(owner)?;
        let _end = self.session.segment.lock_append(record, owner)?;
        self.append_locked(pieces, owner)
    }

    /// The file ends where it does once it is entered: until then another process may truncate it, and what a dead
    /// process left undone is not done.
    fn append_locked(
        &self,
        pieces: &[Span<'_, Readable>],
        owner: Owner,
    ) -> Result<(u64, usize), Errno> {
        let record = self.record;
        let length = self.writable_length(pieces)?;
        crash::point("append.locked");
        let inside = loop {
            let inside = self.enter(owner)?;
            if record.has(FileFlags::METADATA_DIRTY) || !self.session.segment.was_lengthened(record)
            {
                break inside;
            }
            drop(inside);
            self.exclusively(|| self.clean_up_store())?;
        };
        let start = if record.has(FileFlags::DIRECT) {
            rustix::fs::fstat(crate::session::borrow(self.fd)).map(|stat| stat.st_size as u64)
        } else {
            Ok(record.size.load(Ordering::Acquire))
        };
        start.and_then(|start| {
            if length == 0 {
                return Ok((start, 0));
            }
            let length = self.allowed(start, length)?;
            let written = self.write_inside(pieces, start, length, owner, &inside)?;
            Ok((start, written))
        })
    }

    /// Bytes of `pieces`, if the description may write.
    #[inline]
    fn writable_length(&self, pieces: &[Span<'_, Readable>]) -> Result<usize, Errno> {
        if !self.may(DescriptionFlags::WRITE) {
            return Err(Errno::BADF);
        }
        total(pieces).ok_or(Errno::INVAL)
    }

    #[inline]
    fn write_at(&self, pieces: &[Span<'_, Readable>], offset: u64) -> Result<usize, Errno> {
        let length = self.writable_length(pieces)?;
        if length == 0 {
            return Ok(0);
        }
        let length = self.allowed(offset, length)?;
        let owner = self.session.owner();
        let inside = self.enter(owner)?;
        self.write_inside(pieces, offset, length, owner, &inside)
    }

    /// Writes `length` bytes, all of `pieces` or the first of them, to the file that was entered.
    #[inline]
    fn write_inside(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: u64,
        length: usize,
        owner: Owner,
        inside: &SharedGuard,
    ) -> Result<usize, Errno> {
        if let [piece] = pieces
            && piece.len() == length
            && self.write_at_once(piece, offset, owner)
        {
            return Ok(length);
        }
        let mut cursor = Cursor::new(pieces);
        self.write_blocks(&mut cursor, offset, length, owner, inside)
    }

    /// What the file's rule, its mode and the description ask for behind each write. The caller holds nothing, so that
    /// others write meanwhile, and handlers run.
    #[inline]
    fn after_write(&self) -> Result<(), Errno> {
        self.review_rule();
        let record = self.record;
        let mode = record.mode.load(Ordering::Relaxed);
        if self.may(DescriptionFlags::SYNC) {
            self.sync_written(true)?;
        } else if mode == Mode::Sync as u8 {
            // Write-through: the store has it; only a sync makes the store durable.
            self.sync_written(false)?;
        } else if self.session.flushes_each_write(record) && mode != Mode::Scratch as u8 {
            self.session.segment.request_sync(self.id, Some(self.session.owner()), false);
            self.session.segment.want_work();
        }
        Ok(())
    }

    /// The usual write, inside the file: one piece to valid pages of one block that lies in RAM. False,
    /// and nothing was done, where it is not that.
    #[inline(always)]
    fn write_at_once(&self, piece: &Span<'_, Readable>, offset: u64, owner: Owner) -> bool {
        let record = self.record;
        let (block, within) = self.session.segment.block_at(offset);
        let end = within.saturating_add(piece.len());
        let (telling, known) = (
            FileFlags::DIRECT
                | FileFlags::SET_ID
                | FileFlags::ANNOUNCED
                | FileFlags::METADATA_DIRTY,
            record.flags.load(Ordering::Acquire),
        );
        // A write that leaves a gap has to look at what is behind the end.
        let leaves_gap = offset > record.size.load(Ordering::Relaxed);
        let elsewhere = end > self.session.segment.bucket_bytes() || leaves_gap;
        if known & telling != FileFlags::ANNOUNCED | FileFlags::METADATA_DIRTY || elsewhere {
            return false;
        }
        let Some(place) = self.session.segment.entry(record, block) else { return false };
        let entry = Entry::decode(place.load(Ordering::Acquire));
        if !matches!(entry, Entry::Resident { tier: 0, .. }) {
            return false;
        }
        let now = clock::realtime_coarse_ns();
        let locked = self.session.segment.lock_block_unless_interrupted(place, owner);
        let Ok(Some(mut held)) = locked else { return false };
        let touched = pages(within, end, self.session.segment.page_shift());
        let meta = held.meta();
        if held.tier() != 0 || meta.valid.load(Ordering::Relaxed) & touched != touched {
            return false;
        }
        let stamp = clock::stamp(now);
        let part = Part { block, within, bytes: piece.len(), ahead: piece.len() as u64, stamp };
        meta.mark_dirty(touched, stamp);
        crash::point("write.soiled");
        self.session.ram(held.bucket()).after(within).copy_from(*piece);
        crash::point("write.filled");
        self.mark_written(0, held.bucket(), meta, touched, part);
        held.changed();
        drop(held);
        crash::point("write.copied");
        self.touch(now);
        let counters = self.session.counters();
        self.session.count_up(&counters.writes, 1);
        self.session.count_up(&counters.write_bytes, piece.len() as u64);
        true
    }

    /// Writes inside the file, which is left for a moment where it has to be.
    #[inline(never)]
    fn write_blocks(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
        length: usize,
        owner: Owner,
        inside: &SharedGuard,
    ) -> Result<usize, Errno> {
        let record = self.record;
        let bucket_bytes = self.session.segment.bucket_bytes();
        if !record.has(FileFlags::DIRECT) {
            // First, because a write larger than RAM is flushed before it returns.
            self.announce();
            if record.has(FileFlags::SET_ID) {
                self.clear_set_id(offset);
            }
        }
        let now = clock::realtime_coarse_ns();
        let mut done = 0;
        let mut result = Ok(());
        while done < length && result.is_ok() {
            if record.has(FileFlags::DIRECT) {
                result =
                    self.write_direct(cursor, offset + done as u64).map(|written| done += written);
                continue;
            }
            let at = offset + done as u64;
            let leaves_gap = at > record.size.load(Ordering::Acquire);
            let turns_ahead = !record.has(FileFlags::METADATA_DIRTY);
            if (leaves_gap || turns_ahead) && self.session.segment.was_lengthened(record) {
                if let Err(errno) = self.clean_up_outside(owner, inside) {
                    return if done > 0 { Ok(done) } else { Err(errno) };
                }
                continue;
            }
            if turns_ahead {
                // Before the first byte: whatever this process dies at, the record says what the file is.
                self.touch(now);
            }
            if leaves_gap
                && let Err(errno) = self.session.segment.clear_tail(self.id, at, owner, self)
            {
                result = Err(errno);
                continue;
            }
            let (block, within) = self.session.segment.block_at(at);
            let part = Part {
                block,
                within,
                bytes: (bucket_bytes - within).min(length - done),
                ahead: (length - done) as u64,
                stamp: clock::stamp(now),
            };
            match self.write_part(cursor, part, owner) {
                Ok(Outcome::Written(bytes)) => done += bytes,
                Ok(Outcome::NoEntry) => {
                    if done > 0 {
                        // It may not be entered again.
                        self.touch(now);
                    }
                    self.session.segment.step_out(self.id, owner, inside);
                    result = self
                        .write_exclusively(cursor, at, part.bytes)
                        .map(|written| done += written);
                    if let Err(errno) = self.step_in(owner, inside) {
                        return if done > 0 { Ok(done) } else { Err(errno) };
                    }
                }
                Ok(Outcome::Littered) => {
                    if let Err(errno) = self.clean_up_outside(owner, inside) {
                        return if done > 0 { Ok(done) } else { Err(errno) };
                    }
                }
                Err(errno) => result = Err(errno),
            }
        }
        crash::point("write.copied");
        if done > 0 {
            self.touch(now);
            let counters = self.session.counters();
            self.session.count_up(&counters.writes, 1);
            self.session.count_up(&counters.write_bytes, done as u64);
        }
        if done > 0 { Ok(done) } else { result.map(|()| 0) }
    }

    /// Cleans up after killed processes while this thread is not inside the file. After an error it may still be
    /// outside.
    #[cold]
    fn clean_up_outside(&self, owner: Owner, inside: &SharedGuard) -> Result<(), Errno> {
        self.session.segment.step_out(self.id, owner, inside);
        self.exclusively(|| self.clean_up_store())?;
        self.step_in(owner, inside)
    }

    /// Gives the file the times of a write that found none of its bytes readable: the kernel has
    /// changed them by the time that it finds out.
    fn note_failed_write(&self) {
        let owner = self.session.owner();
        let Ok(_inside) = self.enter(owner) else { return };
        self.announce();
        self.touch(clock::realtime_coarse_ns());
    }

    /// Notes that the file is ahead of the store.
    #[inline]
    pub(crate) fn touch(&self, now: u64) {
        let record = self.record;
        if record.has(FileFlags::DIRECT) {
            return;
        }
        let now = time_of_change(record, now);
        if record.mtime_ns.load(Ordering::Relaxed) != now {
            record.mtime_ns.store(now, Ordering::Relaxed);
            record.changed_ns.store(now, Ordering::Relaxed);
        }
        crash::point("write.touched");
        record.set(FileFlags::METADATA_DIRTY);
        crash::point("write.ahead");
        record.set(FileFlags::DIRTY);
        if record.has(FileFlags::READ_OUT) {
            record.clear(FileFlags::READ_OUT);
        }
    }

    /// Sends the node manager a descriptor of the file, once for all of its writers.
    #[inline]
    pub(crate) fn announce(&self) {
        if !self.record.has(FileFlags::ANNOUNCED) {
            self.announce_first();
        }
    }

    #[cold]
    fn announce_first(&self) {
        let record = self.record;
        if !self.may(DescriptionFlags::WRITE) || record.set(FileFlags::ANNOUNCED) {
            return;
        }
        crash::point("announce.marked");
        let generation = record.generation.load(Ordering::Relaxed);
        let message = Message::Announce { file: self.id, generation };
        let send = |fd| self.session.manager.send_descriptor(message, fd);
        if self.lend(rustix::fs::OFlags::WRONLY, send).is_err() {
            record.clear(FileFlags::ANNOUNCED);
        }
    }

    #[inline(always)]
    fn write_part(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
        owner: Owner,
    ) -> Result<Outcome, Errno> {
        let record = self.record;
        let Some(place) = self.session.segment.entry_or_insert(record, part.block, owner) else {
            return Ok(Outcome::NoEntry);
        };
        let mut backoff = Backoff::default();
        let mut refused = 0;
        loop {
            let word = place.load(Ordering::Acquire);
            let done = match Entry::decode(word) {
                Entry::Empty if self.session.is_littered(record, part) => {
                    return Ok(Outcome::Littered);
                }
                Entry::Empty => self.write_new(place, cursor, part, owner, &mut refused)?,
                Entry::Busy(holder) => {
                    if backoff.wait() {
                        self.session.segment.free_entry_of_dead(place, word, holder);
                        self.session.segment.ends_wait_in_time(holder, &backoff)?;
                    }
                    None
                }
                Entry::Resident { tier: 0, .. } => {
                    let held = self.session.segment.lock_block_unless_interrupted(place, owner)?;
                    let Some(mut held) = held else { continue };
                    let result = if held.tier() == 0 {
                        self.write_bucket(held.bucket(), cursor, part).map(Some)
                    } else {
                        Ok(None)
                    };
                    if !matches!(result, Ok(None)) {
                        held.changed();
                    }
                    result?
                }
                Entry::Resident { .. } => self.write_over_slot(place, cursor, part, owner)?,
            };
            if let Some(bytes) = done {
                return Ok(Outcome::Written(bytes));
            }
        }
    }

    /// Gives the block a bucket on the tier that the placement engine chooses, or writes around the
    /// tiers when there is none to be had. `None` if another thread was faster, or the tier cannot be written,
    /// which is then one of those that have `refused`: the program is not to see an error as long as
    /// another tier, or the store, takes the block.
    #[inline(never)]
    fn write_new(
        &self,
        place: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
        owner: Owner,
        refused: &mut u32,
    ) -> Result<Option<usize>, Errno> {
        let take = || self.bucket_for(part, owner, *refused);
        let Some((tier, fresh)) = self.fresh(part.block, owner, take) else {
            return self.write_around(place, cursor, part, owner);
        };
        let Some(held) = fresh.publish(place, tier) else { return Ok(None) };
        crash::point("write.published");
        self.record.note_tier(tier);
        if tier == 0 {
            self.session.populate(held.bucket());
            return self.write_bucket(held.bucket(), cursor, part).map(Some);
        }
        let start = cursor.position();
        match self.write_slot(held.bucket(), cursor, part) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => {
                *refused |= 1 << tier;
                cursor.rewind(start);
                self.session.segment.discard_block(place, held);
                Ok(None)
            }
        }
    }

    /// A bucket that `take` gives, with its tier, locked for `block`. `None` if there is none, or if each of as many as
    /// are tried is still locked by a thread that has given it back and does not go on.
    #[inline(always)]
    fn fresh(
        &self,
        block: u64,
        owner: Owner,
        mut take: impl FnMut() -> Option<(usize, u32)>,
    ) -> Option<(usize, FreshBucket<'_>)> {
        let (tier, bucket) = take()?;
        match self.session.segment.try_init_bucket(bucket, self.id, block, owner) {
            Some(fresh) => Some((tier, fresh)),
            None => self.fresh_beside(bucket, block, owner, take),
        }
    }

    /// The same, where bucket `locked` is still locked.
    #[cold]
    fn fresh_beside(
        &self,
        locked: u32,
        block: u64,
        owner: Owner,
        mut take: impl FnMut() -> Option<(usize, u32)>,
    ) -> Option<(usize, FreshBucket<'_>)> {
        let mut kept = [locked; LOCKED_MOST];
        let mut count = 1;
        let mut fresh = None;
        while count < LOCKED_MOST
            && let Some((tier, bucket)) = take()
        {
            let init = self.session.segment.try_init_bucket(bucket, self.id, block, owner);
            if let Some(init) = init {
                fresh = Some((tier, init));
                break;
            }
            kept[count] = bucket;
            count += 1;
        }
        for &bucket in &kept[..count] {
            self.session.segment.free_bucket(bucket);
        }
        fresh
    }

    /// Copies a part into a RAM bucket that is locked and indexed.
    #[inline(always)]
    fn write_bucket(
        &self,
        bucket: u32,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
    ) -> Result<usize, Errno> {
        let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
        let data = self.session.ram(bucket);
        let end = part.within + part.bytes;
        let touched = pages(part.within, end, self.session.segment.page_shift());
        let valid = meta.valid.load(Ordering::Relaxed);
        if valid & touched != touched {
            // A page that is written in part needs the rest of its content first.
            self.fill_borders(data, part, valid)?;
        }
        // Dirty before the copy: a page half overwritten by a process that is killed is not clean.
        meta.mark_dirty(valid & touched, part.stamp);
        crash::point("write.soiled");
        cursor.copy_out(data.after(part.within).first(part.bytes));
        crash::point("write.filled");
        self.mark_written(0, bucket, meta, touched, part);
        Ok(part.bytes)
    }

    /// Brings the pages to their content on the store that are not valid and of which a part is
    /// about to be written.
    #[cold]
    fn fill_borders(&self, data: Span<'_, Writable>, part: Part, valid: u64) -> Result<(), Errno> {
        let (page, end) = (self.session.segment.page_bytes(), part.within + part.bytes);
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

    #[inline(always)]
    fn mark_written(&self, tier: usize, bucket: u32, meta: &BucketMeta, touched: u64, part: Part) {
        meta.mark_dirty(touched, part.stamp);
        crash::point("write.dirty");
        if meta.valid.load(Ordering::Relaxed) & touched != touched {
            meta.valid.fetch_or(touched, Ordering::Release);
        }
        crash::point("write.valid");
        // Under the lock: a flush, which takes it too, cuts at the size.
        let start = part.block * self.session.segment.bucket_bytes() as u64 + part.within as u64;
        raise(&self.record.size, start + part.bytes as u64);
        crash::point("write.size");
        self.used(tier, bucket, meta);
        if meta.written.load(Ordering::Relaxed) != part.stamp {
            meta.written.store(part.stamp, Ordering::Relaxed);
        }
    }

    /// Brings one page of a RAM bucket to its content on the store.
    fn fill_page(
        &self,
        data: Span<'_, Writable>,
        part: Part,
        number: usize,
        page: usize,
    ) -> Result<(), Errno> {
        let start =
            part.block * self.session.segment.bucket_bytes() as u64 + (number * page) as u64;
        let to = data.after(number * page).first(page);
        let bytes = self.known_on_store(start, page);
        let got = if bytes > 0 { self.store_read(to.first(bytes), start)? } else { 0 };
        to.after(got).zero();
        Ok(())
    }

    /// How many of `bytes` at `start` the store has, as far as known, and the file, too.
    fn known_on_store(&self, start: u64, bytes: usize) -> usize {
        let record = self.record;
        let known = record.stored().min(record.size.load(Ordering::Acquire)).saturating_sub(start);
        known.min(bytes as u64) as usize
    }

    /// Writes to a block that lies on a file tier: a block written whole moves to RAM, a part is
    /// written in place. `None` if the block moved meanwhile.
    #[inline(never)]
    fn write_over_slot(
        &self,
        place: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
        owner: Owner,
    ) -> Result<Option<usize>, Errno> {
        let whole = part.bytes == self.session.segment.bucket_bytes();
        // Locked before the block's is: no other thread waits for one that nothing names.
        let fresh = if whole { self.session.segment.take_bucket(owner) } else { None };
        let init =
            |bucket: u32| self.session.segment.init_bucket(bucket, self.id, part.block, owner);
        let fresh = fresh.and_then(init);
        let held = self.session.segment.lock_block_unless_interrupted(place, owner)?;
        let Some(mut held) = held.filter(|held| held.tier() > 0) else { return Ok(None) };
        // It could not be freed while the manager, which may be stopped, brings some of it to the store.
        let fresh = fresh.filter(|_| held.meta().pages.writeback() == 0);
        let Some(fresh) = fresh else {
            let start = cursor.position();
            let result = self.write_slot(held.bucket(), cursor, part);
            held.changed();
            drop(held);
            return match result {
                Ok(bytes) => Ok(Some(bytes)),
                Err(errno) => {
                    cursor.rewind(start);
                    self.bring_up(place, part.block, owner).map_err(|failed| match failed {
                        Errno::INTR | Errno::TIMEDOUT => failed,
                        _ => errno,
                    })?;
                    Ok(None)
                }
            };
        };
        self.session.populate(fresh.bucket());
        let result = self.write_bucket(fresh.bucket(), cursor, part);
        drop(fresh.publish_instead(place, held, self));
        result.map(Some)
    }

    /// Moves a block to RAM that lies in a slot which cannot be written any more.
    ///
    /// # Errors
    /// `NOSPC` if there is no room in RAM, or threads that do not go on still lock what is free; the device's, or `IO`, if bytes that only the slot has cannot be
    /// read as they were written.
    #[cold]
    fn bring_up(&self, place: &AtomicU64, block: u64, owner: Owner) -> Result<(), Errno> {
        let take = || self.session.room(owner).map(|bucket| (0, bucket));
        let fresh = self.fresh(block, owner, take);
        let (_, fresh) = fresh.ok_or(Errno::NOSPC)?;
        let held = self.session.segment.lock_block_unless_interrupted(place, owner)?;
        let Some(held) = held.filter(|held| held.tier() > 0 && held.is_taken()) else {
            return Ok(());
        };
        self.session.segment.wait_for_writeback_unless_interrupted(held.meta())?;
        fresh.raise(place, held, self).map(drop).map_err(|(errno, _)| errno)
    }

    /// Before a part of the page at `offset` is made zero: moves its block to RAM if the tier that it lies on has
    /// failed. The caller has the file exclusively.
    ///
    /// # Errors
    /// `INTR`; `TIMEDOUT`. What else keeps the block where it is shows when it is changed.
    pub(crate) fn bring_failing_up(&self, offset: u64) -> Result<(), Errno> {
        let (record, block) = (self.record, offset / self.session.segment.bucket_bytes() as u64);
        if offset.is_multiple_of(self.session.segment.page_bytes() as u64) {
            return Ok(());
        }
        let Some(place) = self.session.segment.entry(record, block) else { return Ok(()) };
        match Entry::decode(place.load(Ordering::Acquire)) {
            Entry::Resident { tier, .. }
                if tier > 0 && !self.session.segment.is_sound(tier.into()) =>
            {
                match self.bring_up(place, block, self.session.owner()) {
                    Err(errno @ (Errno::INTR | Errno::TIMEDOUT)) => Err(errno),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Writes a part into a slot that is locked and indexed: whole pages, so that each has its sum.
    fn write_slot(
        &self,
        bucket: u32,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
    ) -> Result<usize, Errno> {
        let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
        let page = self.session.segment.page_bytes();
        let end = part.within + part.bytes;
        let shift = self.session.segment.page_shift();
        let touched = pages(part.within, end, shift);
        let whole = pages(part.within.next_multiple_of(page), end / page * page, shift);
        // What stays of a page must be right; if it is not, and clean, the store has it. Dirty pages of
        // the usual size are looked at when they are read anyway.
        let dirty = meta.pending_under_lock();
        let seen = if page == 4096 { dirty } else { 0 };
        self.session.segment.judge_pages(self, bucket, touched & !whole & !seen)?;
        meta.mark_dirty(meta.valid.load(Ordering::Relaxed) & touched, part.stamp);
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
        self.session.segment.record_slot(self, bucket);
        Ok(part.bytes)
    }

    /// Writes bytes of one page of a slot: a part of it, or what lies in several pieces.
    fn write_page(
        &self,
        bucket: u32,
        cursor: &mut Cursor<'_, Readable>,
        block: u64,
        range: core::ops::Range<usize>,
    ) -> Result<(), Errno> {
        let meta = self.session.segment.bucket(bucket).ok_or(Errno::IO)?;
        let number = range.start / self.session.segment.page_bytes();
        let keep = meta.valid.load(Ordering::Relaxed) >> number & 1 == 1;
        let start = block * self.session.segment.bucket_bytes() as u64;
        self.session.segment.rewrite_page(self, bucket, number, keep, |at, chunk| {
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

    /// A bucket for a new block, and its tier: the one that the placement engine chooses, or the next
    /// that has room. `None`: the store.
    fn bucket_for(&self, part: Part, owner: Owner, refused: u32) -> Option<(usize, u32)> {
        let takes = |tier: usize| refused >> tier & 1 == 0 && self.session.segment.is_sound(tier);
        if refused == 0
            && let Some(taken) = self.reserved_for(owner)
        {
            if takes(taken.0) {
                return Some(taken);
            }
            self.session.segment.free_bucket(taken.1);
        }
        let first = match self.destination(part.ahead) {
            Destination::Tier(0) => return self.session.room(owner).map(|bucket| (0, bucket)),
            Destination::Tier(tier) => tier,
            Destination::Store => return None,
        };
        let client = self.session.segment.client(owner.slot());
        let tiers = first..self.session.segment.header().tiers as usize;
        for tier in tiers.filter(|&tier| takes(tier)) {
            let mut hint = client.bucket_hint.load(Ordering::Relaxed);
            if let Some(slot) = self.session.segment.take_slot(tier, owner, &mut hint) {
                client.bucket_hint.store(hint, Ordering::Relaxed);
                return Some((tier, slot));
            }
        }
        self.session.room(owner).map(|bucket| (0, bucket))
    }

    /// A bucket that is set aside for this run, if the file may have one: the fastest first.
    fn reserved_for(&self, owner: Owner) -> Option<(usize, u32)> {
        let job = self.session.job()?;
        if job.reserved.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let record = self.record;
        let entitled = job.reserved_for.load(Ordering::Relaxed) == reserved_for::ALL
            || self.session.segment.rule_of(record).is_some_and(|rule| rule.settings().reserve > 0);
        if !entitled {
            return None;
        }
        self.session.segment.take_reserved(job.number.load(Ordering::Relaxed), owner)
    }

    /// Writes a part straight to the store while the entry keeps everybody else off the block.
    fn write_around(
        &self,
        place: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
        owner: Owner,
    ) -> Result<Option<usize>, Errno> {
        let busy = Entry::Busy(owner).encode();
        if place.compare_exchange(Entry::EMPTY, busy, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Ok(None);
        }
        let offset = part.block * self.session.segment.bucket_bytes() as u64 + part.within as u64;
        crash::point("around.busy");
        let record = self.record;
        let mut lengthens = None;
        // Not `stored`: while another process makes the file longer that says nothing of this write.
        let known = record.store_size.load(Ordering::Acquire);
        if self.session.end_of(part) > known.min(record.size.load(Ordering::Acquire)) {
            match self.session.segment.begin_lengthening(record, owner) {
                Ok(Some(begun)) => lengthens = Some(begun),
                other => {
                    place.store(Entry::EMPTY, Ordering::Release);
                    return other.map(|_| None);
                }
            }
        }
        let result = self.write_store(cursor, offset, part.bytes);
        crash::point("around.written");
        if let Some(lengthens) = lengthens {
            self.session.segment.end_lengthening(lengthens);
        }
        place.store(Entry::EMPTY, Ordering::Release);
        self.session.counters().arounds.fetch_add(1, Ordering::Relaxed);
        result.map(Some)
    }

    /// Writes from the cursor to the store and notes the sizes that follow.
    fn write_store(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
        bytes: usize,
    ) -> Result<usize, Errno> {
        self.record.set(FileFlags::STORE_WRITTEN);
        let mut done = 0;
        while done < bytes {
            let from = cursor.here().first(bytes - done);
            match self.store_write(from, offset + done as u64) {
                Ok(written) => {
                    cursor.advance(written);
                    done += written;
                    if written < from.len() {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        crash::point("store.written");
        let record = self.record;
        raise(&record.store_size, offset + done as u64);
        raise(&record.size, offset + done as u64);
        Ok(done)
    }

    /// Writes to the store of a block that the index has no place for, with the file for itself.
    #[inline(never)]
    fn write_exclusively(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
        bytes: usize,
    ) -> Result<usize, Errno> {
        self.session.counters().arounds.fetch_add(1, Ordering::Relaxed);
        self.exclusively(|| {
            let block = offset / self.session.segment.bucket_bytes() as u64;
            let record = self.record;
            if self.session.segment.entry(record, block).is_some() || record.has(FileFlags::DIRECT)
            {
                return Ok(0);
            }
            self.clean_up_store()?;
            self.touch(clock::realtime_coarse_ns());
            self.lengthening(|| self.write_store(cursor, offset, bytes))
        })
    }

    /// Writes through the kernel: the file is used in ways that we cannot follow.
    #[inline(never)]
    fn write_direct(&self, cursor: &mut Cursor<'_, Readable>, offset: u64) -> Result<usize, Errno> {
        let written = self.store_write(cursor.here(), offset)?;
        cursor.advance(written);
        Ok(written)
    }
}

impl Session {
    /// Whether a killed process may have left something on the store that would show when a write to `part` raises
    /// the size.
    #[inline]
    fn is_littered(&self, record: &FileRecord, part: Part) -> bool {
        self.end_of(part) > record.size.load(Ordering::Acquire)
            && self.segment.was_lengthened(record)
    }

    fn end_of(&self, part: Part) -> u64 {
        part.block * self.segment.bucket_bytes() as u64 + (part.within + part.bytes) as u64
    }

    /// Writes whole pages of a slot from one piece of the application's memory.
    fn write_pages(
        &self,
        bucket: u32,
        within: usize,
        from: Span<'_, Readable>,
    ) -> Result<(), Errno> {
        let sums = self.segment.sums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let first = within / page;
        // The application may change it meanwhile: see below.
        let memory = from.bytes();
        sums.forget(pages(within, within + from.len(), self.segment.page_shift()));
        let mut before = [0u32; PAGES_PER_BUCKET as usize];
        for (sum, page) in before.iter_mut().zip(memory.chunks_exact(page)) {
            *sum = sum_of(page);
        }
        self.slot_write(bucket, within, from)?;
        for (index, content) in memory.chunks_exact(page).enumerate() {
            if sum_of(content) == before[index] {
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

    /// A RAM bucket; when none is free, waits while the node manager makes room. `None` when it
    /// does not.
    fn room(&self, owner: Owner) -> Option<u32> {
        if let Some(bucket) = self.segment.take_bucket(owner) {
            return Some(bucket);
        }
        let header = self.segment.header();
        let mut made = header.room_made.load(Ordering::Acquire);
        // Nothing has become free since a thread here waited in vain: each write would wait as long.
        if self.waited_in_vain.load(Ordering::Relaxed) == u64::from(made) {
            return None;
        }
        self.counters().waits.fetch_add(1, Ordering::Relaxed);
        let mut idle_ms = 0;
        while idle_ms < ROOM_PATIENCE.as_ms() {
            made = header.room_made.load(Ordering::Acquire);
            if let Some(bucket) = self.segment.take_bucket(owner) {
                return Some(bucket);
            }
            futex::wait(&header.room_made, made, ROOM_LOOK.as_ms());
            if header.room_made.load(Ordering::Acquire) != made {
                idle_ms = 0;
                continue;
            }
            idle_ms += ROOM_LOOK.as_ms();
            if !self.segment.manager_is_alive() {
                return None;
            }
            // Nor does it make room while it is stopped.
            if self.segment.manager_is_stopped() {
                break;
            }
        }
        self.waited_in_vain.store(u64::from(made), Ordering::Relaxed);
        None
    }

    /// Maps a RAM bucket's pages before they are touched one by one; at most once for each
    /// sixteen buckets.
    pub(crate) fn populate(&self, bucket: u32) {
        let Some(word) = self.populated.get(bucket as usize / 16) else { return };
        if word.load(Ordering::Relaxed) != 0 || word.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let first = bucket / 16 * 16;
        let ready = self.segment.header().ram_ready.load(Ordering::Acquire);
        let count = ready.saturating_sub(first).min(16);
        let at = self.segment.bucket_data(first);
        // SAFETY: part of the segment's mapping; only page tables change.
        let _ = unsafe {
            rustix::mm::madvise(
                at.cast(),
                count as usize * self.segment.bucket_bytes(),
                rustix::mm::Advice::LinuxPopulateRead,
            )
        };
    }
}

/// The time of a change that happens at `now`, coarsely: later than what somebody has seen, and than
/// the change before.
pub(crate) fn time_of_change(record: &FileRecord, now: u64) -> u64 {
    let mut now = now;
    if record.has(FileFlags::LOOKED_AT) {
        record.clear(FileFlags::LOOKED_AT);
        now = clock::realtime_ns();
    }
    now.max(record.changed_ns.load(Ordering::Relaxed))
}

/// Raises a size; a plain load when it is large enough already.
pub(crate) fn raise(size: &AtomicU64, to: u64) {
    if size.load(Ordering::Acquire) < to {
        size.fetch_max(to, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::pages;

    #[test]
    fn pages_of_a_range() {
        assert_eq!(pages(0, 1, 12), 1);
        assert_eq!(pages(4095, 4097, 12), 0b11);
        assert_eq!(pages(4096, 8192, 12), 0b10);
        assert_eq!(pages(0, 64 * 4096, 12), u64::MAX);
        assert_eq!(pages(63 * 4096, 64 * 4096, 12), 1 << 63);
        assert_eq!(pages(0, 0, 12) | pages(8192, 4096, 12), 0);
    }
}
