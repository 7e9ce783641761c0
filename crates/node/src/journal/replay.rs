//! After a loss of the segment: what the journal has, and the store has not, is written to the file that
//! it was written to. Which and when, together with what slots have, is `recovery/rebuild`'s concern.

use super::contents::Change;
use forebay_device::{Batch, Span, Transfer};
use forebay_pool::undo;
use forebay_posix::store_file;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Makes one change of a file again.
///
/// # Errors
/// The store's.
pub(crate) fn redo(io: &mut dyn Batch, fd: &OwnedFd, change: &Change) -> Result<(), Errno> {
    match change {
        Change::Data { offset, size, bytes, .. } => {
            write_bytes(io, fd, *offset, bytes)?;
            if (rustix::fs::fstat(fd)?.st_size as u64) < *size {
                resize(fd, *size)?;
            }
            Ok(())
        }
        Change::Truncate { size } => resize(fd, *size),
        Change::Punch { start, end } => punch(io, fd, *start, *end),
    }
}

/// Writes all of `bytes` to a file.
///
/// # Errors
/// The store's.
pub(crate) fn write_bytes(
    io: &mut dyn Batch,
    fd: &OwnedFd,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Errno> {
    let buffer = Span { base: bytes.as_ptr().cast_mut(), bytes: bytes.len() };
    // SAFETY: the bytes outlive the run, which only reads them.
    let mut writes = [unsafe { Transfer::write(store_file(fd), offset, vec![buffer]) }];
    io.run(&mut writes);
    match writes[0].result()? {
        written if written == bytes.len() as u64 => Ok(()),
        _ => Err(Errno::IO),
    }
}

fn resize(fd: &OwnedFd, size: u64) -> Result<(), Errno> {
    undo::resizing(fd.as_fd(), size);
    rustix::fs::ftruncate(fd, size)
}

/// Makes a range zero that does not let the file grow.
fn punch(io: &mut dyn Batch, fd: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let end = end.min(rustix::fs::fstat(fd)?.st_size as u64);
    if start >= end {
        return Ok(());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    undo::writing(fd.as_fd(), start, end - start);
    match rustix::fs::fallocate(fd, mode, start, end - start) {
        Err(Errno::OPNOTSUPP) => {
            let zeros = vec![0; (end - start).min(1 << 20) as usize];
            for at in (start..end).step_by(zeros.len()) {
                let count = (end - at).min(zeros.len() as u64) as usize;
                write_bytes(io, fd, at, &zeros[..count])?;
            }
            Ok(())
        }
        other => other,
    }
}
