//! Reading and writing the journal's file, and other files of a user on a tier.

use forebay_device::{Batch, Span, Transfer};
use forebay_posix::store_file;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::path::Path;

/// For a file in whose place another user has put one, or that another user may have written to.
pub(crate) const NOT_OURS: Errno = Errno::KEYREJECTED;

/// Opens a file that user `owner` has made on a tier; waits for nothing. For those of this user see
/// [`forebay_pool::private`].
///
/// # Errors
/// The device's; [`NOT_OURS`] if another user may have written it, or it has another name
/// elsewhere.
pub(crate) fn open_owned(path: &Path, access: OFlags, owner: u32) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let found = rustix::fs::fstat(&file)?;
    let ours = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && found.st_uid == owner
        && found.st_mode & 0o022 == 0
        && found.st_nlink == 1;
    if ours { Ok(file) } else { Err(NOT_OURS) }
}

/// Writes all of `bytes`.
///
/// # Errors
/// The device's.
pub(super) fn write(
    io: &mut dyn Batch,
    file: &OwnedFd,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), Errno> {
    let buffer = Span::of(bytes);
    // SAFETY: `bytes` outlives the run.
    let mut writes = [unsafe { Transfer::write(store_file(file), offset, vec![buffer]) }];
    io.run(&mut writes);
    match writes[0].result()? {
        written if written == bytes.len() as u64 => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Reads up to the end of `to` or of the file. Returns how many bytes it has read.
///
/// # Errors
/// The device's.
pub(super) fn read_full(file: &OwnedFd, to: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < to.len() {
        match rustix::io::pread(file, &mut to[done..], at + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Where data is at or behind `at`; `u64::MAX` if there is none.
pub(crate) fn data_from(file: impl AsFd, at: u64) -> Result<u64, Errno> {
    match rustix::fs::seek(&file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data),
        Err(Errno::NXIO) => Ok(u64::MAX),
        // Where it cannot be told.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno),
    }
}
