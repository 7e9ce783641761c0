//! Writing: into RAM buckets, into slots of file tiers, or around the tiers.

mod around;
mod block;
mod room;
mod slot;

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::span::{Cursor, Readable, Span, total};
use crate::user_buffers::UserBuffers;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_placement::schema::Mode;
use forebay_pool::BucketId;
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::{Entry, Owner, clock, crash, interruption};
use rustix::io::Errno;

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
    /// The store's file has what a killed process left behind its end: the caller takes the file
    /// exclusively and cleans up first.
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

    /// A write from buffers that cannot be used, because of `refused`. Whether the descriptor may
    /// be written at all comes first.
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

    /// The usual write at the description's offset, with one shared lock for the offset's lock and
    /// for the file. `None`, and nothing was done, where more is needed. That lock is not waited
    /// for inside a file: its holder may want the file exclusively.
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
                && inside.write_at_once(piece, offset)
            {
                description.offset.store(offset + length as u64, Ordering::Release);
                return Ok(length);
            }
            let mut cursor = Cursor::new(pieces);
            let written = inside.write_blocks(&mut cursor, offset, length)?;
            description.offset.store(offset + written as u64, Ordering::Release);
            Ok(written)
        })
    }

    /// Appends `pieces` in one go. Returns where they start and how many bytes were written.
    fn append(&self, pieces: &[Span<'_, Readable>]) -> Result<(u64, usize), Errno> {
        let record = self.record;
        let owner = self.session.owner();
        // Any lock is held under a shared lock.
        let _inside = self.enter_beside(owner)?;
        let _end = self.session.segment.lock_append(record, owner)?;
        self.append_locked(pieces, owner)
    }

    /// The file ends where it does once it is entered: until then another process may truncate it,
    /// and what a dead process left undone is not done.
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
            self.exclusively(|file| file.clean_up_store())?;
        };
        let start = if record.has(FileFlags::DIRECT) {
            crate::store::stat(self.fd).map(|stat| stat.size)
        } else {
            Ok(record.size.load(Ordering::Acquire))
        };
        start.and_then(|start| {
            if length == 0 {
                return Ok((start, 0));
            }
            let length = self.allowed(start, length)?;
            let written = inside.write_inside(pieces, start, length)?;
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
        inside.write_inside(pieces, offset, length)
    }

    /// What the file's rule, its mode and the description ask for behind each write. The caller
    /// holds nothing, so that others write meanwhile, and handlers run.
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

    /// Gives the file the times of a write that found none of its bytes readable: the kernel has
    /// changed them by the time that it finds out.
    fn note_failed_write(&self) {
        let owner = self.session.owner();
        let Ok(_inside) = self.enter(owner) else { return };
        self.register();
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
        crash::point("write.store-written");
        record.set(FileFlags::METADATA_DIRTY);
        crash::point("write.metadata-dirty");
        record.set(FileFlags::DIRTY);
        if record.has(FileFlags::READ_OUT) {
            record.clear(FileFlags::READ_OUT);
        }
    }

    /// Sends the node manager a descriptor of the file, once for all of its writers.
    #[inline]
    pub(crate) fn register(&self) {
        if !self.record.has(FileFlags::REGISTERED) {
            self.register_first();
        }
    }

    #[cold]
    fn register_first(&self) {
        let record = self.record;
        if !self.may(DescriptionFlags::WRITE) || record.set(FileFlags::REGISTERED) {
            return;
        }
        crash::point("register.marked");
        let generation = record.generation.load(Ordering::Relaxed);
        let message = Message::Register { file: self.id, generation };
        let send = |fd| self.session.manager.send_descriptor(message, fd);
        if self.lend(rustix::fs::OFlags::WRONLY, send).is_err() {
            record.clear(FileFlags::REGISTERED);
        }
    }
}

impl EnteredFile<'_> {
    /// Writes `length` bytes, all of `pieces` or the first of them, to the file that was entered.
    #[inline]
    fn write_inside(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        if let [piece] = pieces
            && piece.len() == length
            && self.write_at_once(piece, offset)
        {
            return Ok(length);
        }
        let mut cursor = Cursor::new(pieces);
        self.write_blocks(&mut cursor, offset, length)
    }

    /// The usual write, inside the file: one piece to valid pages of one block that lies in RAM.
    /// False, and nothing was done, where it is not that.
    #[inline(always)]
    fn write_at_once(&self, piece: &Span<'_, Readable>, offset: u64) -> bool {
        let record = self.record;
        let (block, within) = self.session.segment.block_at(offset);
        let end = within.saturating_add(piece.len());
        let (telling, known) = (
            FileFlags::DIRECT
                | FileFlags::SET_ID
                | FileFlags::REGISTERED
                | FileFlags::METADATA_DIRTY,
            record.flags.load(Ordering::Acquire),
        );
        // A write that leaves a gap has to look at what is behind the end.
        let leaves_gap = offset > record.size.load(Ordering::Relaxed);
        let elsewhere = end > self.session.segment.bucket_bytes() || leaves_gap;
        if known & telling != FileFlags::REGISTERED | FileFlags::METADATA_DIRTY || elsewhere {
            return false;
        }
        let Some(entry) = self.session.segment.entry(record, block) else { return false };
        let seen = Entry::decode(entry.load(Ordering::Acquire));
        if !matches!(seen, Entry::Resident { tier: TierId::RAM, .. }) {
            return false;
        }
        let now = clock::realtime_coarse_ns();
        let locked = self.session.segment.lock_block_unless_interrupted(entry, self.owner);
        let Ok(Some(mut held)) = locked else { return false };
        let touched = pages(within, end, self.session.segment.page_shift());
        let meta = held.meta();
        if !held.tier().is_ram() || meta.valid.load(Ordering::Relaxed) & touched != touched {
            return false;
        }
        let stamp = clock::stamp(now);
        let part = Part { block, within, bytes: piece.len(), ahead: piece.len() as u64, stamp };
        meta.mark_dirty(touched, stamp);
        crash::point("write.marked");
        self.session.ram(held.bucket()).after(within).copy_from(*piece);
        crash::point("write.filled");
        self.mark_written(TierId::RAM, held.bucket(), meta, touched, part);
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
    ) -> Result<usize, Errno> {
        let record = self.record;
        let bucket_bytes = self.session.segment.bucket_bytes();
        if !record.has(FileFlags::DIRECT) {
            // First, because a write larger than RAM is flushed before it returns.
            self.register();
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
                if let Err(errno) = self.clean_up_outside() {
                    return if done > 0 { Ok(done) } else { Err(errno) };
                }
                continue;
            }
            if turns_ahead {
                // Before the first byte: whatever this process dies at, the record says what the
                // file is.
                self.touch(now);
            }
            if leaves_gap
                && let Err(errno) =
                    self.session.segment.clear_tail(self.id, at, self.owner, self.session)
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
            match self.write_part(cursor, part) {
                Ok(Outcome::Written(bytes)) => done += bytes,
                Ok(Outcome::NoEntry) => {
                    if done > 0 {
                        // It may not be entered again.
                        self.touch(now);
                    }
                    let entered = self.outside(|file| {
                        result = file
                            .write_exclusively(cursor, at, part.bytes)
                            .map(|written| done += written);
                        Ok(())
                    });
                    if let Err(errno) = entered {
                        return if done > 0 { Ok(done) } else { Err(errno) };
                    }
                }
                Ok(Outcome::Littered) => {
                    if let Err(errno) = self.clean_up_outside() {
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

    /// Cleans up after killed processes while this thread is not inside the file. After an error it
    /// may still be outside.
    #[cold]
    fn clean_up_outside(&self) -> Result<(), Errno> {
        self.outside(|file| file.exclusively(|file| file.clean_up_store()))
    }

    #[inline(always)]
    fn mark_written(
        &self,
        tier: TierId,
        bucket: BucketId,
        meta: &BucketMeta,
        touched: u64,
        part: Part,
    ) {
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
}

/// The time of a change that happens at `now`, coarsely: later than what a process has seen, and
/// than the change before.
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
