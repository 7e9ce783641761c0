//! Calls at a description's offset that has become the kernel's while they were on their way, see
//! [`OpenFile::release_to_kernel`]: they are made again, as all that come later are made.

use crate::attributes::Whence;
use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::span::{Readable, Span, Writable};
use core::mem::MaybeUninit;
use rustix::fs::SeekFrom;
use rustix::io::{Errno, IoSlice};

/// Pieces that are moved by one call: as any call may, it moves fewer bytes where there are more.
const PIECES: usize = 16;

impl OpenFile<'_> {
    pub(crate) fn kernels_read(&self, pieces: &[Span<'_, Writable>]) -> Result<usize, Errno> {
        let Some(piece) = pieces.iter().find(|piece| piece.len() > 0) else { return Ok(0) };
        // SAFETY: a writable span, of which nothing is read here.
        let room = unsafe {
            core::slice::from_raw_parts_mut(piece.base().cast::<MaybeUninit<u8>>(), piece.len())
        };
        rustix::io::read(borrow(self.fd), room).map(|(got, _)| got.len())
    }

    /// Returns where it began, too, if no other thread moves the offset.
    pub(crate) fn kernels_write(
        &self,
        pieces: &[Span<'_, Readable>],
    ) -> Result<(u64, usize), Errno> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece.bytes());
        }
        let fd = borrow(self.fd);
        let written = rustix::io::writev(fd, &slices[..pieces.len().min(PIECES)])?;
        let end = rustix::fs::tell(fd)?;
        Ok((end.saturating_sub(written as u64), written))
    }

    pub(crate) fn kernels_seek(&self, offset: i64, whence: Whence) -> Result<u64, Errno> {
        let to = match whence {
            Whence::Start => SeekFrom::Start(u64::try_from(offset).map_err(|_| Errno::INVAL)?),
            Whence::Current => SeekFrom::Current(offset),
            Whence::End => SeekFrom::End(offset),
            Whence::Data => SeekFrom::Data(u64::try_from(offset).map_err(|_| Errno::NXIO)?),
            Whence::Hole => SeekFrom::Hole(u64::try_from(offset).map_err(|_| Errno::NXIO)?),
        };
        rustix::fs::seek(borrow(self.fd), to)
    }
}
