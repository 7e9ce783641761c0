//! Reads and writes that are continued where the kernel answers short: mostly one system call.
//!
//! ```
//! use forebay_device::Span;
//! use forebay_posix::{store_file, whole};
//!
//! let file = tempfile::tempfile().unwrap();
//! let mut bytes = *b"a page";
//! // SAFETY: `bytes` and `read` outlive the calls, and nothing else uses them meanwhile.
//! unsafe {
//!     assert_eq!(whole::write(store_file(&file), 4096, Span::of(&mut bytes)), Ok(6));
//!     let mut read = [0; 8];
//!     // Up to the end of the file, and no further.
//!     assert_eq!(whole::read(store_file(&file), 4096, Span::of(&mut read)), Ok(6));
//!     assert_eq!(&read, b"a page\0\0");
//! }
//! ```

use crate::descriptor;
use forebay_device::{Errno, Span, StoreFile};
use rustix::io::{ReadWriteFlags, pread, preadv, preadv2, pwrite};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::slice;

/// Reads a file from `offset` on, up to its end. Returns how many bytes: fewer than there is room
/// for also where the kernel failed after some.
///
/// # Safety
/// `into` is valid for writes.
///
/// # Errors
/// The kernel's, if there were none.
#[inline]
pub unsafe fn read(file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno> {
    let file = descriptor(file)?;
    let mut done = 0;
    while done < into.bytes {
        let base = into.base.wrapping_add(done).cast::<MaybeUninit<u8>>();
        // SAFETY: the rest of `into`; the slice goes to the kernel alone.
        let rest = unsafe { slice::from_raw_parts_mut(base, into.bytes - done) };
        match pread(file, rest, offset + done as u64) {
            Ok(([], _)) => break,
            Ok((got, _)) => done += got.len(),
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// The same into several pieces of memory, one after the other: by one system call, if the kernel
/// answers in full. The list itself is only read.
///
/// # Safety
/// All of `into` is valid for writes.
///
/// # Errors
/// Those of [`read`].
#[inline]
pub unsafe fn read_pieces(file: StoreFile, offset: u64, into: &mut [Span]) -> Result<usize, Errno> {
    if let [piece] = into {
        // SAFETY: as the caller promises.
        return unsafe { read(file, offset, *piece) };
    }
    // SAFETY: `Span` has the layout of `IoSliceMut`, see `positional`; they go to the kernel alone.
    let slices = unsafe {
        slice::from_raw_parts_mut(into.as_mut_ptr().cast::<IoSliceMut<'_>>(), into.len())
    };
    let first = loop {
        match preadv(descriptor(file)?, slices, offset) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let (mut done, mut end) = (first, 0);
    for piece in &*into {
        let had = first.saturating_sub(end).min(piece.bytes);
        end += piece.bytes;
        let rest = Span { base: piece.base.wrapping_add(had), bytes: piece.bytes - had };
        if rest.bytes == 0 {
            continue;
        }
        // SAFETY: what is left of a piece of the caller's.
        match unsafe { read(file, offset + done as u64, rest) } {
            Ok(got) => done += got,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
        if done < end {
            break;
        }
    }
    Ok(done)
}

/// Reads a file from `offset` on, by one call: fewer bytes than there is room for wherever the
/// kernel says so.
///
/// # Safety
/// `into` is valid for writes.
///
/// # Errors
/// The kernel's.
#[inline]
pub unsafe fn read_once(file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno> {
    let file = descriptor(file)?;
    // SAFETY: as the caller promises; the slice goes to the kernel alone.
    let room =
        unsafe { slice::from_raw_parts_mut(into.base.cast::<MaybeUninit<u8>>(), into.bytes) };
    loop {
        match pread(file, &mut *room, offset) {
            Ok((got, _)) => return Ok(got.len()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The same of what the kernel has in memory, without waiting for a device.
///
/// # Safety
/// `into` is valid for writes.
///
/// # Errors
/// `AGAIN` if it has nothing of it; another where the file system cannot tell.
#[inline]
pub unsafe fn read_cached(file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno> {
    let file = descriptor(file)?;
    // SAFETY: as the caller promises; the slice goes to the kernel alone.
    let room = unsafe { slice::from_raw_parts_mut(into.base, into.bytes) };
    preadv2(file, &mut [IoSliceMut::new(room)], offset, ReadWriteFlags::NOWAIT)
}

/// Writes `from` to a file from `offset` on. Returns how many bytes: fewer where the kernel failed
/// after some.
///
/// # Safety
/// `from` is valid for reads.
///
/// # Errors
/// The kernel's, if there were none; `IO` where it writes nothing.
#[inline]
pub unsafe fn write(file: StoreFile, offset: u64, from: Span) -> Result<usize, Errno> {
    let file = descriptor(file)?;
    let mut done = 0;
    while done < from.bytes {
        let base = from.base.wrapping_add(done).cast_const();
        // SAFETY: the rest of `from`; the slice goes to the kernel alone.
        let rest = unsafe { slice::from_raw_parts(base, from.bytes - done) };
        match pwrite(file, rest, offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
