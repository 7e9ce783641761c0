//! read, write and their positional, vectored and fortified forms.

use crate::real::real;
use crate::{count, managed};
use forebay_client::Iovec;
use forebay_client::probe::{is_readable, is_writable};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use rustix::io::Errno;

/// Whether a buffer can be used, for reading from it or for writing to it.
type Check = fn(*const u8, usize) -> bool;

fn one(buffer: *const c_void, bytes: size_t, check: Check) -> Result<[Iovec; 1], Errno> {
    if !check(buffer.cast(), bytes) {
        return Err(Errno::FAULT);
    }
    Ok([Iovec { base: buffer as *mut u8, length: bytes }])
}

unsafe fn several<'a>(
    pieces: *const iovec,
    number: c_int,
    check: Check,
) -> Result<&'a [Iovec], Errno> {
    let number = usize::try_from(number).ok().filter(|&number| number <= 1024);
    let number = number.ok_or(Errno::INVAL)?;
    if number == 0 {
        return Ok(&[]);
    }
    if !is_readable(pieces.cast(), number * size_of::<iovec>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: one layout, and readable.
    let pieces = unsafe { core::slice::from_raw_parts(pieces.cast::<Iovec>(), number) };
    match pieces.iter().all(|piece| check(piece.base, piece.length)) {
        true => Ok(pieces),
        false => Err(Errno::FAULT),
    }
}

fn at(offset: off_t) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    match managed(fd) {
        Some((session, handle)) if !session.uses_kernel_offset(handle) => {
            let piece = one(buffer, bytes, is_writable);
            count(piece.and_then(|piece| unsafe { session.read(handle, &piece) }))
        }
        _ => real!(c"read"(fd => c_int, buffer => *mut c_void, bytes => size_t) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    match managed(fd) {
        Some((session, handle)) if !session.uses_kernel_offset(handle) => count(
            one(buffer, bytes, is_readable)
                .and_then(|piece| unsafe { session.write(handle, &piece) }),
        ),
        _ => real!(c"write"(fd => c_int, buffer => *const c_void, bytes => size_t) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    let Some((session, handle)) = managed(fd) else {
        return real!(c"pread64"(fd => c_int, buffer => *mut c_void, bytes => size_t, offset => off_t) -> ssize_t);
    };
    count(at(offset).and_then(|offset| {
        let piece = one(buffer, bytes, is_writable)?;
        unsafe { session.pread(handle, &piece, offset) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe { pread64(fd, buffer, bytes, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    let Some((session, handle)) = managed(fd) else {
        return real!(c"pwrite64"(fd => c_int, buffer => *const c_void, bytes => size_t, offset => off_t) -> ssize_t);
    };
    count(at(offset).and_then(|offset| {
        let piece = one(buffer, bytes, is_readable)?;
        unsafe { session.pwrite(handle, &piece, offset) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    unsafe { pwrite64(fd, buffer, bytes, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, pieces: *const iovec, number: c_int) -> ssize_t {
    match managed(fd) {
        Some((session, handle)) if !session.uses_kernel_offset(handle) => {
            let pieces = unsafe { several(pieces, number, is_writable) };
            count(pieces.and_then(|pieces| unsafe { session.read(handle, pieces) }))
        }
        _ => real!(c"readv"(fd => c_int, pieces => *const iovec, number => c_int) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, pieces: *const iovec, number: c_int) -> ssize_t {
    match managed(fd) {
        Some((session, handle)) if !session.uses_kernel_offset(handle) => count(
            unsafe { several(pieces, number, is_readable) }
                .and_then(|pieces| unsafe { session.write(handle, pieces) }),
        ),
        _ => real!(c"writev"(fd => c_int, pieces => *const iovec, number => c_int) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    let Some((session, handle)) = managed(fd) else {
        return real!(c"preadv64"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t) -> ssize_t);
    };
    count(at(offset).and_then(|offset| {
        let pieces = unsafe { several(pieces, number, is_writable) }?;
        unsafe { session.pread(handle, pieces, offset) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    unsafe { preadv64(fd, pieces, number, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    let Some((session, handle)) = managed(fd) else {
        return real!(c"pwritev64"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t) -> ssize_t);
    };
    count(at(offset).and_then(|offset| {
        let pieces = unsafe { several(pieces, number, is_readable) }?;
        unsafe { session.pwrite(handle, pieces, offset) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    unsafe { pwritev64(fd, pieces, number, offset) }
}

/// Flags of the second forms that change nothing for buffered data, or only how fast it is.
const HARMLESS: c_int = libc::RWF_HIPRI | libc::RWF_NOWAIT;

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64v2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    if managed(fd).is_none() {
        return real!(c"preadv64v2"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t, flags => c_int) -> ssize_t);
    }
    if flags & !HARMLESS != 0 {
        return count(Err(Errno::OPNOTSUPP));
    }
    match offset {
        -1 => unsafe { readv(fd, pieces, number) },
        _ => unsafe { preadv64(fd, pieces, number, offset) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    unsafe { preadv64v2(fd, pieces, number, offset, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let Some((session, handle)) = managed(fd) else {
        return real!(c"pwritev64v2"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t, flags => c_int) -> ssize_t);
    };
    let sync = libc::RWF_SYNC | libc::RWF_DSYNC;
    if flags & !(HARMLESS | sync) != 0 {
        return count(Err(Errno::OPNOTSUPP));
    }
    let written = match offset {
        -1 => unsafe { writev(fd, pieces, number) },
        _ => unsafe { pwritev64(fd, pieces, number, offset) },
    };
    if written > 0
        && flags & sync != 0
        && let Err(errno) = session.sync(handle, true)
    {
        return count(Err(errno));
    }
    written
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    unsafe { pwritev64v2(fd, pieces, number, offset, flags) }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// The fortified forms know the size of the buffer.
fn check(bytes: size_t, room: size_t) {
    if bytes > room {
        // SAFETY: what glibc itself does with such a program.
        unsafe { __chk_fail() }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    check(bytes, room);
    unsafe { read(fd, buffer, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    check(bytes, room);
    unsafe { pread64(fd, buffer, bytes, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    unsafe { __pread_chk(fd, buffer, bytes, offset, room) }
}
