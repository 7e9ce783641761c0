//! Reading: lock-free from RAM buckets, through the kernel from slots and from the store.

mod blocks;
mod bucket;
mod others;
mod slot;
mod store;
mod through;

use crate::attributes::Whence;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::span::{Span, Writable, total};
use crate::user_buffers::UserBuffers;
use core::sync::atomic::Ordering;
use forebay_placement::schema::Lifetime;
use forebay_pool::calls::CallKind;
use forebay_pool::layout::*;
use forebay_pool::{clock, interruption};
use rustix::io::Errno;

/// Bytes from which a read has its beginning fetched ahead: as many as are.
const PREFETCH_FROM: usize = 512;

impl OpenFile<'_> {
    /// Reads into `buffers` from `offset`. Returns the bytes read, fewer than were asked for at the
    /// end of the file only, or before memory that cannot be used.
    ///
    /// # Errors
    /// The store's or a tier's errno if nothing was read; `FAULT` or `INVAL` where `buffers` are
    /// none.
    #[inline]
    pub fn pread(&self, buffers: &UserBuffers<'_, Writable>, offset: u64) -> Result<usize, Errno> {
        buffers.with(
            |pieces| self.pread_pieces(pieces, offset),
            |refused| self.read_nothing(refused, buffers.is_faulty(), Some(offset)),
        )
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
        if !self.reads_plainly() {
            return self.pread_recorded(pieces, offset);
        }
        self.pread_unnoted(pieces, offset)
    }

    #[inline(always)]
    fn pread_unnoted(&self, pieces: &[Span<'_, Writable>], offset: u64) -> Result<usize, Errno> {
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

    /// Whether the description may be read, and nothing is noted of that.
    #[inline(always)]
    fn reads_plainly(&self) -> bool {
        let flags = self.description.flags.load(Ordering::Relaxed);
        flags & (DescriptionFlags::READ | DescriptionFlags::RECORDED) == DescriptionFlags::READ
    }

    /// A read that is noted, if the description may be read.
    #[cold]
    fn pread_recorded(&self, pieces: &[Span<'_, Writable>], offset: u64) -> Result<usize, Errno> {
        if !self.may(DescriptionFlags::READ) {
            return Err(Errno::BADF);
        }
        let start_ns = clock::realtime_ns();
        let got = self.pread_unnoted(pieces, offset)?;
        self.note_call(CallKind::Read, start_ns, offset, got);
        Ok(got)
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
        if self.session.shares_files() {
            self.bring_from_others(offset, length)?;
        }
        let need = || Need::Read(offset..end);
        let mut inside = self.enter_for(need())?;
        let mut through = inside.goes_through(offset, length);
        if !through && inside.may_have_grown(end) {
            drop(inside);
            self.look_again()?;
            inside = self.enter_for(need())?;
            through = inside.goes_through(offset, length);
        }
        let result = inside.read_blocks(pieces, offset, length, through);
        if record.rule.load(Ordering::Relaxed) != 0 {
            self.note_read(offset, &result);
        }
        result
    }

    /// Notes that a file has been read to its end, where a lifetime asks for it.
    pub(crate) fn note_read(&self, offset: u64, result: &Result<usize, Errno>) {
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
        buffers.with(
            |pieces| self.read_pieces(pieces),
            |refused| self.read_nothing(refused, buffers.is_faulty(), None),
        )
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
        let got = self.session.restarting(|| self.positioned(read))?;
        got.map_or_else(|| self.kernels_read(pieces), Ok)
    }

    /// The usual read at the description's offset, with one shared lock for the offset's lock and
    /// for the file. `None`, and nothing was done, where more is needed, as in writing.
    #[inline]
    fn read_on(&self, pieces: &[Span<'_, Writable>]) -> Option<Result<usize, Errno>> {
        let (record, description) = (self.record, self.description);
        let length = total(pieces).filter(|&length| length > 0)?;
        if !self.reads_plainly() {
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
        if !self.keeps_offset() {
            return None;
        }
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
}
