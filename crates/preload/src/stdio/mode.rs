//! The mode with which a stream is opened.

use super::layout::{CLOSED_AT_EXEC, FLAGS2_AT, Stream};
use core::ffi::CStr;
use libc::c_int;

/// The open flags of an fopen mode, or none.
pub(super) fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (&first, rest) = mode.split_first()?;
    // glibc looks at six characters.
    let rest = &rest[..rest.len().min(6)];
    let access = match (first, rest.contains(&b'+')) {
        (b'r' | b'w' | b'a', true) => libc::O_RDWR,
        (b'r', false) => libc::O_RDONLY,
        (b'w' | b'a', false) => libc::O_WRONLY,
        _ => return None,
    };
    let creation = match first {
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => 0,
    };
    let exclusive = if rest.contains(&b'x') { libc::O_EXCL } else { 0 };
    let at_exec = if rest.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some(access | creation | exclusive | at_exec)
}

/// The character set that a mode names.
pub(super) fn charset_of(mode: &[u8]) -> Option<&[u8]> {
    let mark = b",ccs=";
    let at = mode.windows(mark.len()).position(|piece| piece == mark)?;
    mode[at + mark.len()..].split(|&byte| byte == b',').next()
}

/// The access part of a mode, as fopencookie wants it.
pub(super) fn plain_mode(flags: c_int, first: u8) -> &'static CStr {
    match (first, flags & libc::O_ACCMODE == libc::O_RDWR) {
        (b'r', false) => c"r",
        (b'r', true) => c"r+",
        (b'w', false) => c"w",
        (b'w', true) => c"w+",
        (_, false) => c"a",
        (_, true) => c"a+",
    }
}

/// Notes that a stream was opened with `e`, as glibc does.
pub(super) fn note_at_exec(stream: Stream, flags: c_int) {
    if flags & libc::O_CLOEXEC != 0 {
        stream.set(FLAGS2_AT, stream.get(FLAGS2_AT) | CLOSED_AT_EXEC);
    }
}
