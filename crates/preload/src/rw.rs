//! read, write and their positional, vectored and fortified forms.

use crate::real::{aliases, cancellable, cancellation_point};
use crate::{count, managed};
use forebay_client::{OpenFile, UserBuffers};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use rustix::io::Errno;

/// As [`count`]; but where another thread has closed or replaced the descriptor before the call
/// came to it, `again` makes the call of what the number is by now.
#[inline(always)]
fn count_current(
    file: &OpenFile<'_>,
    result: Result<usize, Errno>,
    again: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match result {
        Ok(bytes) => bytes as ssize_t,
        Err(Errno::BADF) if !file.is_current() => again(),
        Err(errno) => count(Err(errno)),
    }
}

fn at(offset: off_t) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            // SAFETY: the program's buffer.
            let buffers = unsafe { UserBuffers::at(buffer.cast(), bytes) };
            let result = file.read(&buffers);
            // SAFETY: the program's call, made again.
            count_current(&file, result, || unsafe { read(fd, buffer, bytes) })
        }
        _ => cancellable!(c"read"(fd => c_int, buffer => *mut c_void, bytes => size_t) -> ssize_t),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            // SAFETY: the program's buffer.
            let buffers = unsafe { UserBuffers::at(buffer.cast(), bytes) };
            let result = file.write_placed(&buffers, None, file.appends());
            // SAFETY: the program's call, made again.
            count_current(&file, result, || unsafe { write(fd, buffer, bytes) })
        }
        _ => {
            cancellable!(c"write"(fd => c_int, buffer => *const c_void, bytes => size_t) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pread64(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"pread64"(fd => c_int, buffer => *mut c_void, bytes => size_t, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let result = at(offset).and_then(|offset| {
        // SAFETY: the program's buffer.
        let buffers = unsafe { UserBuffers::at(buffer.cast(), bytes) };
        file.pread(&buffers, offset)
    });
    // SAFETY: the program's call, made again.
    count_current(&file, result, || unsafe { pread64(fd, buffer, bytes, offset) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pwrite64(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"pwrite64"(fd => c_int, buffer => *const c_void, bytes => size_t, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let result = at(offset).and_then(|offset| {
        // SAFETY: the program's buffer.
        let buffers = unsafe { UserBuffers::at(buffer.cast(), bytes) };
        file.write_placed(&buffers, Some(offset), file.appends())
    });
    // SAFETY: the program's call, made again.
    count_current(&file, result, || unsafe { pwrite64(fd, buffer, bytes, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, pieces: *const iovec, number: c_int) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            // SAFETY: the program's list and buffers.
            let buffers = unsafe { UserBuffers::listed(pieces.cast(), number) };
            let result = file.read(&buffers);
            // SAFETY: the program's call, made again.
            count_current(&file, result, || unsafe { readv(fd, pieces, number) })
        }
        _ => {
            cancellable!(c"readv"(fd => c_int, pieces => *const iovec, number => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, pieces: *const iovec, number: c_int) -> ssize_t {
    match managed(fd) {
        Some(file) if !file.uses_kernel_offset() => {
            cancellation_point();
            // SAFETY: the program's list and buffers.
            let buffers = unsafe { UserBuffers::listed(pieces.cast(), number) };
            let result = file.write_placed(&buffers, None, file.appends());
            // SAFETY: the program's call, made again.
            count_current(&file, result, || unsafe { writev(fd, pieces, number) })
        }
        _ => {
            cancellable!(c"writev"(fd => c_int, pieces => *const iovec, number => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"preadv64"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let result = at(offset).and_then(|offset| {
        // SAFETY: the program's list and buffers.
        let buffers = unsafe { UserBuffers::listed(pieces.cast(), number) };
        file.pread(&buffers, offset)
    });
    // SAFETY: the program's call, made again.
    count_current(&file, result, || unsafe { preadv64(fd, pieces, number, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
) -> ssize_t {
    let Some(file) = managed(fd) else {
        return cancellable!(c"pwritev64"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t) -> ssize_t);
    };
    cancellation_point();
    let result = at(offset).and_then(|offset| {
        // SAFETY: the program's list and buffers.
        let buffers = unsafe { UserBuffers::listed(pieces.cast(), number) };
        file.write_placed(&buffers, Some(offset), file.appends())
    });
    // SAFETY: the program's call, made again.
    count_current(&file, result, || unsafe { pwritev64(fd, pieces, number, offset) })
}

/// Flags of the second forms that are newer than the libc crate.
const RWF_NOAPPEND: c_int = 0x20;
const RWF_DONTCACHE: c_int = 0x80;
const SYNCED: c_int = libc::RWF_SYNC | libc::RWF_DSYNC;
/// Flags that both directions take, although some say nothing to a read, or only how fast a
/// transfer shall be. What is buffered is at hand, and so never EAGAIN.
const KNOWN: c_int =
    libc::RWF_HIPRI | libc::RWF_NOWAIT | libc::RWF_APPEND | RWF_NOAPPEND | RWF_DONTCACHE | SYNCED;

/// The place that the second forms mean by `offset`: -1 is the description's.
fn place(offset: off_t, flags: c_int) -> Result<Option<u64>, Errno> {
    if flags & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if flags & libc::RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(Errno::INVAL);
    }
    if offset == -1 { Ok(None) } else { at(offset).map(Some) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    match managed(fd) {
        Some(file) if offset != -1 || !file.uses_kernel_offset() => {
            cancellation_point();
            let result = place(offset, flags).and_then(|place| {
                // SAFETY: the program's list and buffers.
                let buffers = unsafe { UserBuffers::listed(pieces.cast(), number) };
                match place {
                    Some(offset) => file.pread(&buffers, offset),
                    None => file.read(&buffers),
                }
            });
            // SAFETY: the program's call, made again.
            count_current(&file, result, || unsafe {
                preadv64v2(fd, pieces, number, offset, flags)
            })
        }
        _ => {
            cancellable!(c"preadv64v2"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t, flags => c_int) -> ssize_t)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    pieces: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    match managed(fd) {
        Some(file) if offset != -1 || !file.uses_kernel_offset() => {
            cancellation_point();
            let result = place(offset, flags).and_then(|place| {
                // SAFETY: the program's list and buffers.
                let buffers = unsafe { UserBuffers::listed(pieces.cast(), number) };
                let append = match flags & (libc::RWF_APPEND | RWF_NOAPPEND) {
                    0 => file.appends(),
                    chosen => chosen == libc::RWF_APPEND,
                };
                let written = file.write_placed(&buffers, place, append)?;
                if written > 0 && flags & SYNCED != 0 {
                    file.sync_written(true)?;
                }
                Ok(written)
            });
            // SAFETY: the program's call, made again.
            count_current(&file, result, || unsafe {
                pwritev64v2(fd, pieces, number, offset, flags)
            })
        }
        _ => {
            cancellable!(c"pwritev64v2"(fd => c_int, pieces => *const iovec, number => c_int, offset => off_t, flags => c_int) -> ssize_t)
        }
    }
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
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    check(bytes, room);
    // SAFETY: the program's call; the buffer has room.
    unsafe { read(fd, buffer, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    check(bytes, room);
    // SAFETY: the program's call; the buffer has room.
    unsafe { pread64(fd, buffer, bytes, offset) }
}

aliases! {
    "C-unwind" pread = pread64(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t;
    "C-unwind" pwrite = pwrite64(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t) -> ssize_t;
    "C-unwind" preadv = preadv64(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t) -> ssize_t;
    "C-unwind" pwritev = pwritev64(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t) -> ssize_t;
    "C-unwind" preadv2 = preadv64v2(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t, flags: c_int) -> ssize_t;
    "C-unwind" pwritev2 = pwritev64v2(fd: c_int, pieces: *const iovec, number: c_int, offset: off_t, flags: c_int) -> ssize_t;
    "C-unwind" __pread64_chk = __pread_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t;
}
