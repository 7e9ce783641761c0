//! freopen.

use super::buffer::{choose_buffer, forget_buffer};
use super::close::fclose;
use super::cookie::ours;
use super::foreign::hand_back;
use super::glibc::{Locked, flush};
use super::layout::*;
use super::mode::{charset_of, flags_of, note_at_exec};
use super::position::to_the_end;
use super::standard::take_back;
use super::stream::{close, duplicate};
use crate::errno::{errno, restore_errno, set_errno};
use crate::files;
use crate::real::{aliases, real};
use crate::session::session;
use core::ffi::CStr;
use libc::{FILE, c_char, c_int};
use rustix::io::Errno;

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    let call = || {
        real!(c"freopen64"(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> usize)
            as *mut FILE
    };
    // SAFETY: a stream of the program's.
    let Some(given) = (unsafe { Stream::at(stream) }) else { return call() };
    take_back(given);
    // SAFETY: the program's mode.
    let text = unsafe { files::text_at(mode) };
    if text.is_some_and(|mode| charset_of(mode.to_bytes()).is_some()) {
        // To reopen it ends its orientation, and nothing of the old file stays in its buffer.
        if ours(given).is_some() {
            let _locked = Locked::new(given);
            // Another thread may have handed it back in between.
            if ours(given).is_some() && given.get(ORIENTATION_AT) != 0 {
                flush(given);
                given.set(ORIENTATION_AT, 0);
            }
        }
        // SAFETY: a stream of the program's.
        if !unsafe { hand_back(stream) } {
            return core::ptr::null_mut();
        }
    }
    // SAFETY: the program's path and mode.
    match unsafe { reopen_ours(path, mode, given) } {
        Some(true) => return stream,
        Some(false) => {}
        // SAFETY: the program's path and mode.
        None => return unsafe { reopen_foreign(path, mode, given, call) },
    }
    let before = errno();
    // SAFETY: a stream of the program's, which ends when it cannot be reopened.
    unsafe { fclose(stream) };
    restore_errno(before);
    core::ptr::null_mut()
}

/// A cookie stream stays one: what it reads and writes is what its descriptor refers to. False,
/// with errno, if the file cannot be opened; `None` if it is not one of ours.
///
/// # Safety
/// As of freopen(3), of `path` and `mode`.
unsafe fn reopen_ours(path: *const c_char, mode: *const c_char, stream: Stream) -> Option<bool> {
    ours(stream)?;
    let _locked = Locked::new(stream);
    // Another thread may have handed it back before that.
    let cookie = ours(stream)?;
    let old = cookie.descriptor();
    flush(stream);
    // SAFETY: the program's mode.
    let text = unsafe { files::text_at(mode) }.map(CStr::to_bytes).unwrap_or_default();
    let Some(flags) = flags_of(text) else {
        set_errno(Errno::INVAL);
        return Some(false);
    };
    let mut own = [0; 32];
    let path = if path.is_null() { own_path(old, &mut own) } else { path };
    // SAFETY: the program's path, or our own, which ends with a zero.
    let new = unsafe { files::open64(path, flags, 0o666) };
    if new < 0 {
        return Some(false);
    }
    if old < 0 {
        cookie.change_descriptor(stream, new);
    } else if new != old {
        note_at_exec(stream, flags);
        let at_exec = stream.get(FLAGS2_AT) & CLOSED_AT_EXEC != 0;
        duplicate(new, old, if at_exec { libc::O_CLOEXEC } else { 0 });
        close(new);
    }
    forget_buffer(stream, cookie);
    let allowed = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => NO_WRITES,
        libc::O_WRONLY => NO_READS,
        _ => 0,
    };
    let append = if flags & libc::O_APPEND != 0 { APPENDING } else { 0 };
    let state = NO_READS | NO_WRITES | APPENDING | EOF_SEEN | ERROR_SEEN | WRITING;
    stream.lower(state | LINE_BUFFERED | UNBUFFERED);
    stream.raise(allowed | append);
    stream.set(OFFSET_AT, -1);
    stream.set(ORIENTATION_AT, 0);
    cookie.by_terminal.set(false);
    to_the_end(cookie.descriptor(), flags);
    choose_buffer(stream);
    Some(true)
}

/// The path by which a process finds its own descriptor.
fn own_path(fd: c_int, buffer: &mut [u8; 32]) -> *const c_char {
    use std::io::Write;
    // Shorter than the buffer whatever the number.
    let _ = write!(&mut buffer[..31], "/proc/self/fd/{fd}");
    buffer.as_ptr().cast()
}

/// glibc re-opens inside itself, where we cannot follow: the stream's new file is used through
/// the kernel by every process.
///
/// # Safety
/// As of freopen(3), of `path` and `mode`.
unsafe fn reopen_foreign(
    path: *const c_char,
    mode: *const c_char,
    stream: Stream,
    call: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    let Some(session) = session() else { return call() };
    let fd = stream.get(FILENO_AT);
    if fd >= 0 {
        flush(stream);
        session.forget(fd);
    }
    // SAFETY: the program's mode.
    let text = unsafe { files::text_at(mode) }.map(CStr::to_bytes).unwrap_or_default();
    let flags = flags_of(text).unwrap_or_default();
    if flags & (libc::O_TRUNC | libc::O_EXCL) == libc::O_TRUNC && !path.is_null() {
        // What is buffered has to go too. An error will be glibc's as well.
        let errno = errno();
        // SAFETY: the program's path.
        let cut = unsafe { files::open64(path, flags & !libc::O_CREAT, 0) };
        if cut >= 0 {
            close(cut);
        }
        restore_errno(errno);
    }
    session.opening(|| {
        let result = call();
        // SAFETY: null, or the stream that the program gave, open again.
        if let Some(stream) = unsafe { Stream::at(result) } {
            let fd = stream.get(FILENO_AT);
            if let Err(errno) = session.opened_raw(fd) {
                real!(c"fclose"(result => *mut FILE) -> c_int);
                set_errno(errno);
                return core::ptr::null_mut();
            }
            // glibc looked for the end before the file was clean.
            to_the_end(fd, flags);
        }
        result
    })
}

aliases! {
    "C" freopen = freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
}
