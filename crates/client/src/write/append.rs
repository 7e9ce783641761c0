//! Writing at the end of a file.

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::small::outgrows_small;
use crate::span::{Readable, Span};
use core::sync::atomic::Ordering;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use forebay_pool::{clock, crash};
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Appends `pieces` in one go. Returns where they start and how many bytes were written.
    pub(super) fn append(&self, pieces: &[Span<'_, Readable>]) -> Result<(u64, usize), Errno> {
        let record = self.record;
        let owner = self.session.owner();
        // Any lock is held under a shared lock.
        let _inside = self.enter_beside(owner)?;
        let _end = self.session.segment.lock_append(record, owner)?;
        self.append_locked(pieces, true)
    }

    /// The file ends where it does once it is entered: until then another process may truncate it,
    /// and what a dead process left undone is not done. For what makes it more than a small file it
    /// is left once more, if it `turns`, before that.
    fn append_locked(
        &self,
        pieces: &[Span<'_, Readable>],
        turns: bool,
    ) -> Result<(u64, usize), Errno> {
        let record = self.record;
        let length = self.writable_length(pieces)?;
        crash::point("append.locked");
        let inside = loop {
            let inside = self.enter_for(Need::Append(length as u64))?;
            if record.has(FileFlags::METADATA_DIRTY) || !self.session.segment.was_lengthened(record)
            {
                break inside;
            }
            drop(inside);
            self.exclusively(|file| file.clean_up_store())?;
        };
        if self.commits() {
            drop(inside);
            return match self.append_committed(pieces)? {
                Some(done) => Ok(done),
                None => self.append_locked(pieces, turns),
            };
        }
        let is_direct = record.has(FileFlags::DIRECT);
        let start = match is_direct {
            true => crate::store::stat(self.fd)?.size,
            false => record.size.load(Ordering::Acquire),
        };
        if length == 0 {
            return Ok((start, 0));
        }
        let length = self.allowed(start, length)?;
        let outgrows = record.is_written_through() && outgrows_small(start, length);
        if turns && outgrows {
            drop(inside);
            self.buffer_again();
            return self.append_locked(pieces, false);
        }
        if is_direct && !outgrows {
            return inside.append_through(pieces, start, length);
        }
        let written = inside.write_inside(pieces, start, length)?;
        Ok((start, written))
    }
}

impl EnteredFile<'_> {
    /// Appends to a file that is used through the kernel, and that ended at `start` a moment ago:
    /// by the kernel's own append, as others may append to it whom our lock does not keep out.
    fn append_through(
        &self,
        pieces: &[Span<'_, Readable>],
        start: u64,
        length: usize,
    ) -> Result<(u64, usize), Errno> {
        let record = self.record;
        if record.is_written_through() {
            self.write_small(start, length)?;
        }
        let now = clock::realtime_coarse_ns();
        let written = match self.store_append(pieces, length, start) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                return Ok((start, self.write_inside(pieces, start, length)?));
            }
            written => written?,
        };
        self.session.note_moved(Place::Programs, Place::Store, written);
        self.end_write(now, written);
        let end = match record.stays_direct() {
            true => crate::store::stat(self.fd)?.size,
            false => start + written as u64,
        };
        Ok((end.saturating_sub(written as u64), written))
    }
}
