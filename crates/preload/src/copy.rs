//! Copies inside the kernel between descriptors, done here when one of them is managed.

use crate::real::real;
use crate::{count, managed};
use libc::{c_int, c_uint, off64_t, size_t, ssize_t};
use rustix::io::Errno;

/// Bytes copied at once.
const PIECE: usize = 256 << 10;
/// What one such call of the kernel moves at most.
const MOST: usize = 0x7fff_f000;

/// One end of a copy: a descriptor, and the offset variable or null for the descriptor's own.
#[derive(Clone, Copy)]
struct End {
    fd: c_int,
    offset: *mut off64_t,
}

impl End {
    unsafe fn read(self, to: *mut u8, bytes: usize) -> ssize_t {
        match unsafe { self.offset.as_ref() } {
            Some(&offset) => unsafe { libc::pread64(self.fd, to.cast(), bytes, offset) },
            None => unsafe { libc::read(self.fd, to.cast(), bytes) },
        }
    }

    unsafe fn write(self, from: *const u8, bytes: usize) -> ssize_t {
        match unsafe { self.offset.as_ref() } {
            Some(&offset) => unsafe { libc::pwrite64(self.fd, from.cast(), bytes, offset) },
            None => unsafe { libc::write(self.fd, from.cast(), bytes) },
        }
    }

    unsafe fn advance(self, bytes: i64) {
        if !self.offset.is_null() {
            unsafe { *self.offset += bytes };
        }
    }

    /// Bytes up to the end that a managed file has now: a copy within one file moves its end, and
    /// must not follow it.
    unsafe fn remaining(self) -> usize {
        let mut stat = unsafe { core::mem::zeroed::<libc::stat>() };
        if managed(self.fd).is_none() || unsafe { libc::fstat(self.fd, &mut stat) } != 0 {
            return usize::MAX;
        }
        let position = match unsafe { self.offset.as_ref() } {
            Some(&offset) => offset,
            None => unsafe { libc::lseek64(self.fd, 0, libc::SEEK_CUR) },
        };
        stat.st_size.saturating_sub(position).max(0) as usize
    }

    /// Takes back bytes that were read and could not be written.
    unsafe fn unread(self, bytes: i64) {
        if self.offset.is_null() {
            unsafe { libc::lseek64(self.fd, -bytes, libc::SEEK_CUR) };
        }
    }
}

unsafe fn copy(from: End, to: End, bytes: usize, once: bool) -> ssize_t {
    let buffer = unsafe { libc::malloc(PIECE) }.cast::<u8>();
    if buffer.is_null() {
        return count(Err(Errno::NOMEM));
    }
    let bytes = bytes.min(MOST).min(unsafe { from.remaining() });
    let (mut done, mut failed) = (0usize, false);
    while done < bytes && !failed {
        let got = unsafe { from.read(buffer, PIECE.min(bytes - done)) };
        if got <= 0 {
            failed = got < 0;
            break;
        }
        let mut put = 0;
        while put < got {
            let written = unsafe { to.write(buffer.add(put as usize), (got - put) as usize) };
            if written <= 0 {
                failed = true;
                break;
            }
            put += written;
            unsafe { to.advance(written as i64) };
        }
        if put < got {
            unsafe { from.unread((got - put) as i64) };
        }
        unsafe { from.advance(put as i64) };
        done += put as usize;
        if once {
            break;
        }
    }
    unsafe { libc::free(buffer.cast()) };
    if failed && done == 0 { -1 } else { done as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    if managed(from).is_none() && managed(to).is_none() {
        return real!(c"copy_file_range"(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, bytes => size_t, flags => c_uint) -> ssize_t);
    }
    if flags != 0 {
        return count(Err(Errno::INVAL));
    }
    unsafe {
        copy(End { fd: from, offset: from_offset }, End { fd: to, offset: to_offset }, bytes, false)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off64_t,
    bytes: size_t,
) -> ssize_t {
    if managed(from).is_none() && managed(to).is_none() {
        return real!(c"sendfile64"(to => c_int, from => c_int, offset => *mut off64_t, bytes => size_t) -> ssize_t);
    }
    unsafe {
        copy(End { fd: from, offset }, End { fd: to, offset: core::ptr::null_mut() }, bytes, false)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off64_t,
    bytes: size_t,
) -> ssize_t {
    unsafe { sendfile64(to, from, offset, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    if managed(from).is_none() && managed(to).is_none() {
        return real!(c"splice"(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, bytes => size_t, flags => c_uint) -> ssize_t);
    }
    // A pipe gives what it has; asking for more would wait for it.
    let bytes = bytes.min(PIECE);
    unsafe {
        copy(End { fd: from, offset: from_offset }, End { fd: to, offset: to_offset }, bytes, true)
    }
}
