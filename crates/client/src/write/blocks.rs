//! Writing block by block.

use super::{Outcome, WrittenPart};
use crate::access::EnteredFile;
use crate::changed::raise;
use crate::part::Part;
use crate::sharing::Need;
use crate::span::{Cursor, Readable, Span};
use core::sync::atomic::Ordering;
use forebay_pool::BucketId;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::{Entry, clock, crash};
use rustix::io::Errno;

/// How a write to a file goes on that several nodes write.
pub(super) enum Shared {
    /// The thread was outside of it.
    Changed,
    /// So many bytes are buffered, as far as they lie in one block.
    Buffered(usize),
    /// So many bytes were written.
    Written(usize),
}

impl EnteredFile<'_> {
    /// Writes `length` bytes, all of `pieces` or the first of them, to the file that was entered.
    #[inline]
    pub(super) fn write_inside(
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
    pub(super) fn write_at_once(&self, piece: &Span<'_, Readable>, offset: u64) -> bool {
        let record = self.record;
        let segment = &self.session.segment;
        let (block, within) = segment.block_at(offset);
        let part = Part { block, within, bytes: piece.len() };
        let (telling, known) = (
            FileFlags::DIRECT
                | FileFlags::SET_ID
                | FileFlags::REGISTERED
                | FileFlags::METADATA_DIRTY
                | FileFlags::SHARED,
            record.flags.load(Ordering::Acquire),
        );
        // A write that leaves a gap has to look at what is behind the end.
        let leaves_gap = offset > record.size.load(Ordering::Relaxed);
        let elsewhere = part.end() > segment.bucket_bytes() || leaves_gap;
        if known & telling != FileFlags::REGISTERED | FileFlags::METADATA_DIRTY || elsewhere {
            return false;
        }
        let Some(entry) = segment.entry(record, block) else { return false };
        let seen = Entry::decode(entry.load(Ordering::Acquire));
        if !matches!(seen, Entry::Resident { tier: TierId::RAM, .. }) {
            return false;
        }
        let now = clock::realtime_coarse_ns();
        let locked = segment.lock_block_unless_interrupted(entry, self.owner);
        let Ok(Some(mut held)) = locked else { return false };
        let touched = part.pages(segment);
        let meta = held.meta();
        if !held.tier().is_ram() || meta.valid.load(Ordering::Relaxed) & touched != touched {
            return false;
        }
        let stamp = clock::stamp(now);
        let part = WrittenPart { part, ahead: piece.len() as u64, stamp };
        if meta.pages.dirty() & touched != touched
            && !self.turn_dirty_within_caps(meta, touched, stamp)
        {
            return false;
        }
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
    pub(super) fn write_blocks(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let record = self.record;
        if record.is_written_through() {
            self.write_small(offset, length)?;
        }
        if !record.has(FileFlags::DIRECT) {
            // First, because a write larger than RAM is flushed before it returns.
            self.register_inside();
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
            let mut left = length - done;
            if !record.allows(Access::Write) {
                if done > 0 {
                    // It may not be entered again.
                    self.touch(now);
                }
                match self.write_shared(cursor, at, left, clock::stamp(now)) {
                    Ok(Shared::Written(written)) => {
                        done += written;
                        continue;
                    }
                    Ok(Shared::Buffered(bytes)) => left = bytes,
                    Ok(Shared::Changed) => {
                        // It may have been given back, and its descriptor closed.
                        self.register_inside();
                        continue;
                    }
                    Err(errno) => return if done > 0 { Ok(done) } else { Err(errno) },
                }
            }
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
            let part = WrittenPart {
                part: Part::first(&self.session.segment, at, left),
                ahead: (length - done) as u64,
                stamp: clock::stamp(now),
            };
            let capped = match self.session.segment.has_caps() {
                true => self.write_at_cap(cursor, part),
                false => Ok(None),
            };
            let outcome = match capped {
                Ok(Some(outcome)) => Ok(outcome),
                Ok(None) => self.write_part(cursor, part),
                Err(errno) => Err(errno),
            };
            match outcome {
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
                Ok(Outcome::NoMemory) => {
                    if done > 0 {
                        // It may not be entered again.
                        self.touch(now);
                    }
                    let cleaned = self.outside(|file| file.exclusively(|file| file.clean()));
                    if let Err(errno) = cleaned {
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
        self.end_write(now, done);
        if done > 0 { Ok(done) } else { result.map(|()| 0) }
    }

    /// After a write that began at `now` and has written so many bytes. The caller leaves the file.
    pub(super) fn end_write(&self, now: u64, done: usize) {
        if done > 0 {
            self.touch(now);
            let counters = self.session.counters();
            self.session.count_up(&counters.writes, 1);
            self.session.count_up(&counters.write_bytes, done as u64);
        }
        if self.record.has(FileFlags::UNMAPPED) {
            // What follows is buffered; what was written counts, whatever becomes of this.
            let _ = self.outside(|file| {
                file.buffer_again();
                Ok(())
            });
        }
    }

    /// Before a block of a file is written that several nodes write: waits for its part, and writes
    /// what is used through the kernel. After an error it may be outside.
    #[cold]
    fn write_shared(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        at: u64,
        length: usize,
        stamp: u32,
    ) -> Result<Shared, Errno> {
        if self.hold(&Need::write(at, length))? {
            return Ok(Shared::Changed);
        }
        if self.record.lease.load().commits() {
            let part = Part::first(&self.session.segment, at, length);
            return self.write_committed(cursor, WrittenPart { part, ahead: length as u64, stamp });
        }
        if let Some(end) = self.direct_part(at) {
            let bytes = (length as u64).min(end - at) as usize;
            return self.write_store(cursor, at, bytes).map(Shared::Written);
        }
        let part = Part::first(&self.session.segment, at, length);
        let written = self.write_between(cursor, part)?;
        Ok(written.map_or(Shared::Buffered(length), Shared::Written))
    }

    /// Cleans up after killed processes while this thread is not inside the file. After an error it
    /// may still be outside.
    #[cold]
    fn clean_up_outside(&self) -> Result<(), Errno> {
        self.outside(|file| file.exclusively(|file| file.clean_up_store()))
    }

    #[inline(always)]
    pub(super) fn mark_written(
        &self,
        tier: TierId,
        bucket: BucketId,
        meta: &BucketMeta,
        touched: u64,
        part: WrittenPart,
    ) {
        self.mark_dirty(meta, touched, part.stamp);
        crash::point("write.dirty");
        if meta.valid.load(Ordering::Relaxed) & touched != touched {
            meta.valid.fetch_or(touched, Ordering::Release);
        }
        crash::point("write.valid");
        // Under the lock: a flush, which takes it too, cuts at the size.
        raise(&self.record.size, part.offset(&self.session.segment) + part.bytes as u64);
        crash::point("write.size");
        self.used(tier, bucket, meta);
        if meta.written.load(Ordering::Relaxed) != part.stamp {
            meta.written.store(part.stamp, Ordering::Relaxed);
        }
    }
}
