//! Where in its file a stream is.

use super::cookie::Cookie;
use super::layout::{OFFSET_AT, READ_END_AT, READ_POINTER_AT, Stream};
use libc::{c_int, off64_t};

/// As lseek.
pub(super) fn seek(fd: c_int, offset: off64_t, whence: c_int) -> off64_t {
    // SAFETY: takes numbers only.
    unsafe { libc::lseek64(fd, offset, whence) }
}

/// So that ftell of a stream that only appends says where the next byte goes.
pub(super) fn to_the_end(fd: c_int, flags: c_int) {
    if flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE == libc::O_WRONLY {
        seek(fd, 0, libc::SEEK_END);
    }
}

/// How many bytes were read, and not yet taken.
pub(super) fn read_ahead(stream: Stream) -> usize {
    stream.get(READ_END_AT).addr() - stream.get(READ_POINTER_AT).addr()
}

/// Where glibc has noted the position it goes on: its cookie streams forget that when they
/// write, and would then seek from where they wrote.
pub(super) fn advance(cookie: &Cookie, bytes: usize) {
    // SAFETY: the cookie's own stream, which is locked while it reads or writes.
    let Some(stream) = (unsafe { Stream::at(cookie.stream()) }) else { return };
    let position = stream.get(OFFSET_AT);
    if position >= 0 {
        stream.set(OFFSET_AT, position + bytes as i64);
    }
}
