//! fopen, fdopen and tmpfile.

use super::foreign::carries;
use super::layout::{FILENO_AT, Stream};
use super::mode::{charset_of, flags_of, note_at_exec, plain_mode};
use super::position::to_the_end;
use super::stream::{close, close_quietly, cookie_stream, duplicate};
use crate::errno::{errno, restore_errno, set_errno};
use crate::real::{aliases, real};
use crate::session::{managed, session};
use crate::{descriptors, files};
use core::ffi::CStr;
use libc::{FILE, c_char, c_int, c_void};
use rustix::io::Errno;

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let call =
        || real!(c"fopen64"(path => *const c_char, mode => *const c_char) -> usize) as *mut FILE;
    if session().is_none() || path.is_null() || mode.is_null() {
        return call();
    }
    // SAFETY: the program's text, not null.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let Some(flags) = flags_of(text) else { return call() };
    // SAFETY: the program's path.
    let fd = unsafe { files::open64(path, flags, 0o666) };
    if fd < 0 {
        return core::ptr::null_mut();
    }
    to_the_end(fd, flags);
    let stream = if charset_of(text).is_some() {
        charset_stream(fd, flags, text)
    } else if managed(fd).is_some() {
        cookie_stream(fd, plain_mode(flags, text[0]), false)
    } else {
        // SAFETY: the program's mode.
        unsafe { foreign_stream(fd, mode) }
    };
    // SAFETY: just made, and the program does not have it yet.
    match unsafe { Stream::at(stream) } {
        Some(stream) => note_at_exec(stream, flags),
        None => close_quietly(fd),
    }
    stream
}

/// A stream of glibc's own over `fd` in the character set that `mode` names: its fdopen knows none,
/// and ours are of bytes.
fn charset_stream(fd: c_int, flags: c_int, mode: &[u8]) -> *mut FILE {
    const NAME: usize = 80;
    let mut own = [0u8; NAME + 8];
    let plain = plain_mode(flags, mode[0]).to_bytes();
    let charset = charset_of(mode).unwrap_or_default();
    let parts = [plain, b",ccs=", &charset[..charset.len().min(NAME)]].concat();
    own[..parts.len()].copy_from_slice(&parts);
    let (null, own) = (c"/dev/null".as_ptr(), own.as_ptr().cast::<c_char>());
    if let Some(file) = managed(fd)
        && let Err(errno) = file.release_to_kernel()
    {
        set_errno(errno);
        return core::ptr::null_mut();
    }
    let made = real!(c"fopen64"(null => *const c_char, own => *const c_char) -> usize) as *mut FILE;
    // SAFETY: just made, and the program does not have it yet.
    let stream = unsafe { Stream::at(made) };
    let Some(opened) = stream else { return made };
    // On `fd` in the place of what it was made with.
    let at_exec = if flags & libc::O_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    if duplicate(fd, opened.get(FILENO_AT), at_exec) < 0 {
        let why = errno();
        real!(c"fclose"(made => *mut FILE) -> c_int);
        restore_errno(why);
        return core::ptr::null_mut();
    }
    close(fd);
    carries(stream, true);
    made
}

/// glibc's own stream.
///
/// # Safety
/// As of fdopen(3).
unsafe fn foreign_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let stream = real!(c"fdopen"(fd => c_int, mode => *const c_char) -> usize) as *mut FILE;
    // SAFETY: just made, or null.
    carries(unsafe { Stream::at(stream) }, true);
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if mode.is_null() || managed(fd).is_none_or(|file| file.uses_kernel_offset()) {
        // SAFETY: the program's mode.
        return unsafe { foreign_stream(fd, mode) };
    }
    // SAFETY: the program's text, not null.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    // SAFETY: this command takes no argument.
    let now = unsafe { descriptors::fcntl64(fd, libc::F_GETFL, core::ptr::null_mut()) };
    let allows = |flags: &c_int| {
        let (has, wants) = (now & libc::O_ACCMODE, flags & libc::O_ACCMODE);
        has == libc::O_RDWR || has == wants
    };
    let Some(flags) = flags_of(text).filter(allows) else {
        set_errno(Errno::INVAL);
        return core::ptr::null_mut();
    };
    if text[0] == b'a' && now & libc::O_APPEND == 0 {
        // As fdopen does: the description appends from now on.
        let append = (now | libc::O_APPEND) as usize as *mut c_void;
        // SAFETY: the argument of this command is a number.
        unsafe { descriptors::fcntl64(fd, libc::F_SETFL, append) };
        to_the_end(fd, flags);
    }
    cookie_stream(fd, plain_mode(flags, text[0]), false)
}

/// glibc makes these files without a name; ours is one too, and buffered.
fn temporary(call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    if session().is_some() {
        let flags = libc::O_RDWR | libc::O_TMPFILE | libc::O_EXCL;
        // SAFETY: a path of ours.
        let fd = unsafe { files::open64(c"/tmp".as_ptr(), flags, 0o600) };
        if fd >= 0 && managed(fd).is_some() {
            let stream = cookie_stream(fd, c"w+", false);
            if stream.is_null() {
                close_quietly(fd);
            }
            return stream;
        }
        if fd >= 0 {
            close(fd);
        }
    }
    let stream = call();
    // SAFETY: just made, or null.
    carries(unsafe { Stream::at(stream) }, true);
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tmpfile64() -> *mut FILE {
    temporary(|| real!(c"tmpfile64"() -> usize) as *mut FILE)
}

aliases! {
    "C" fopen = fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    "C" tmpfile = tmpfile64() -> *mut FILE;
}
