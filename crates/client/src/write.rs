//! Writing: into RAM buckets, into slots of file tiers, or around the tiers.

mod append;
mod around;
mod block;
mod blocks;
mod capped;
mod committed;
mod copied;
mod room;
mod slot;

use crate::open_file::OpenFile;
use crate::part::Part;
use crate::sharing::Need;
use crate::span::{Cursor, Readable, Span, total};
use crate::user_buffers::UserBuffers;
use core::ops::{Deref, Range};
use core::sync::atomic::Ordering;
use forebay_placement::schema::Mode;
use forebay_pool::calls::CallKind;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::{clock, interruption};
use rustix::io::Errno;

/// A part of a write.
#[derive(Clone, Copy)]
struct WrittenPart {
    part: Part,
    /// Bytes of the call from here on.
    ahead: u64,
    /// Milliseconds at which the call began.
    stamp: u32,
}

impl Deref for WrittenPart {
    type Target = Part;

    #[inline(always)]
    fn deref(&self) -> &Part {
        &self.part
    }
}

/// What became of a part.
enum Outcome {
    Written(usize),
    /// The index is full: the caller takes the file exclusively and writes to the store.
    NoEntry,
    /// There is no memory for more of a block that is in RAM: the caller brings the file to the
    /// store first, so that it lies nowhere.
    NoMemory,
    /// The store's file has what a killed process left behind its end: the caller takes the file
    /// exclusively and cleans up first.
    Littered,
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
        buffers.with(
            |pieces| self.write_pieces(pieces, offset, append),
            |refused| self.write_nothing(refused, buffers.is_faulty(), offset, append),
        )
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
        if self.is_recorded() {
            return self.write_recorded(pieces, offset, append);
        }
        self.write_slowly(pieces, offset, append).map(|(_, written)| written)
    }

    /// A write that is noted.
    #[cold]
    fn write_recorded(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: Option<u64>,
        append: bool,
    ) -> Result<usize, Errno> {
        let start_ns = clock::realtime_ns();
        let (start, written) = self.write_slowly(pieces, offset, append)?;
        self.note_call(CallKind::Write, start_ns, start, written);
        Ok(written)
    }

    /// Returns where it began, too.
    #[inline]
    fn write_slowly(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: Option<u64>,
        append: bool,
    ) -> Result<(u64, usize), Errno> {
        let once = || self.write_once(pieces, offset, append);
        let Some((start, written)) = self.session.restarting(once)? else {
            // What is asked for behind a write the kernel knows of its description.
            return self.kernels_write(pieces);
        };
        // Of a write that is done: whatever becomes of this, it is not made again.
        if written > 0 {
            self.after_write(start..start + written as u64)?;
        }
        Ok((start, written))
    }

    /// `None`, and nothing was done, where the offset is the kernel's.
    #[inline]
    fn write_once(
        &self,
        pieces: &[Span<'_, Readable>],
        offset: Option<u64>,
        append: bool,
    ) -> Result<Option<(u64, usize)>, Errno> {
        match offset {
            Some(offset) if append => {
                let end = total(pieces).and_then(|length| offset.checked_add(length as u64));
                let possible = end.is_some_and(|end| end <= i64::MAX as u64);
                if !possible && self.may(DescriptionFlags::WRITE) {
                    return Err(Errno::INVAL);
                }
                self.append(pieces).map(Some)
            }
            Some(offset) => Ok(Some((offset, self.write_at(pieces, offset)?))),
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
                Ok((start, written))
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
        let flags = description.flags.load(Ordering::Relaxed);
        let waits = flags.intersects(DescriptionFlags::SYNC | DescriptionFlags::RECORDED)
            || record.mode.load(Ordering::Relaxed) == Mode::Sync as u8
            || self.session.flushes_each_write(record);
        if waits || !flags.contains(DescriptionFlags::WRITE) {
            return None;
        }
        let owner = self.session.owner();
        let inside = match self.enter(owner) {
            Ok(inside) => inside,
            Err(errno) => return Some(Err(errno)),
        };
        let _position = description.position.guard(owner)?;
        if !self.keeps_offset() {
            return None;
        }
        let offset = description.offset.load(Ordering::Acquire);
        let size = record.size.load(Ordering::Relaxed).max(offset.saturating_add(length as u64));
        // Another rule may turn the file direct, which takes it exclusively.
        let goes_on =
            size < record.rule_review.load(Ordering::Relaxed) && record.allows(Access::Write);
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
        let inside = self.enter_for(Need::write(offset, length))?;
        inside.write_inside(pieces, offset, length)
    }

    /// What the file's rule, its mode and the description ask for behind each write. The caller
    /// holds nothing, so that others write meanwhile, and handlers run.
    #[inline]
    fn after_write(&self, written: Range<u64>) -> Result<(), Errno> {
        self.review_rule();
        let record = self.record;
        let mode = record.mode.load(Ordering::Relaxed);
        if self.may(DescriptionFlags::SYNC) {
            self.sync_range_written(written)?;
        } else if mode == Mode::Sync as u8 {
            // Write-through: the store has it; only a sync makes the store durable.
            self.sync_written(false)?;
        } else if self.session.flushes_each_write(record)
            && mode != Mode::Scratch as u8
            && !self.shows_write()
        {
            self.session.segment.request_sync(self.id, Some(self.session.owner()), false);
            self.session.segment.want_work();
        }
        Ok(())
    }
}
