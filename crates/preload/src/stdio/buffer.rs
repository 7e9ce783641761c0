//! The buffers of our streams.

use super::cookie::{Cookie, ours};
use super::glibc::{forget_pushed_back, purge, unbuffer};
use super::layout::*;
use crate::files;

/// glibc chooses a stream's buffer at first use, as its descriptor is then: of the file system's
/// block size, and line by line on a terminal. For cookie streams it cannot, so we do.
pub(super) fn choose_buffer(stream: Stream) {
    /// What glibc takes when it knows nothing, or at most.
    const LARGEST: i64 = 8192;
    let Some(cookie) = ours(stream) else { return };
    let fd = cookie.descriptor();
    let flags = stream.get(FLAGS_AT);
    let used = [READ_BASE_AT, WRITE_BASE_AT].into_iter().any(|at| !stream.get(at).is_null());
    let by_lines = flags & LINE_BUFFERED != 0 && !cookie.by_terminal.get();
    let other_buffer = stream.get(BUFFER_AT) != cookie.buffer();
    let by_program = by_lines || flags & UNBUFFERED != 0 || other_buffer;
    if used || by_program || fd < 0 {
        return;
    }
    let stat = rustix::fs::fstat(files::borrow(fd)).ok();
    let is_terminal = stat.is_some_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
            && rustix::termios::isatty(files::borrow(fd))
    });
    cookie.by_terminal.set(is_terminal);
    let wanted = stat.map_or(LARGEST, |stat| stat.st_blksize);
    let buffer = match wanted {
        // SAFETY: takes any number.
        1..LARGEST => unsafe { libc::malloc(wanted as usize) }.cast::<u8>(),
        // glibc's own choice.
        _ => core::ptr::null_mut(),
    };
    let (end, whose) = match buffer.is_null() {
        true => (core::ptr::null_mut(), 0),
        false => (buffer.wrapping_add(wanted as usize), USER_BUFFER),
    };
    let by_lines = if is_terminal { LINE_BUFFERED } else { 0 };
    stream.set(FLAGS_AT, flags & !(LINE_BUFFERED | USER_BUFFER) | by_lines | whose);
    stream.set(BUFFER_AT, buffer);
    stream.set(BUFFER_END_AT, end);
    cookie.change_buffer(buffer);
}

/// Forgets what is in a locked stream's buffer, and takes the buffer away: it has to be chosen
/// anew, as at first use. The area of what is pushed back goes too: glibc frees that when it
/// chooses a buffer, and again when the stream is closed.
pub(super) fn forget_buffer(stream: Stream, cookie: &Cookie) {
    forget_pushed_back(stream);
    purge(stream);
    unbuffer(stream);
    take_buffer(stream, cookie);
}

/// Takes the buffer of a locked stream away, and frees the one that was chosen.
pub(super) fn take_buffer(stream: Stream, cookie: &Cookie) {
    stream.set(POINTERS_AT, [core::ptr::null_mut(); 8]);
    stream.lower(USER_BUFFER);
    cookie.change_buffer(core::ptr::null_mut());
}
