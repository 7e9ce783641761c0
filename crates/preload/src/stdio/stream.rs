//! Our streams: cookie streams that read, write, seek and close by the library's own functions.

use super::buffer::choose_buffer;
use super::cookie::{Cookie, cookie_of};
use super::foreign::share_need_of_locks;
use super::layout::Stream;
use super::position::{advance, seek};
use crate::descriptors;
use crate::errno::{errno, restore_errno};
use crate::real::real;
use core::ffi::CStr;
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

/// glibc's `cookie_io_functions_t`.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, bytes: size_t) -> ssize_t {
    // SAFETY: glibc's cookie, and its buffer or the program's.
    unsafe { libc::read(cookie_of(cookie).descriptor(), to.cast(), bytes) }
}

unsafe extern "C" fn cookie_write(
    cookie: *mut c_void,
    from: *const c_char,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: glibc's cookie.
    let cookie = unsafe { cookie_of(cookie) };
    let mut done = 0;
    while done < bytes {
        let (rest, left) = (from.wrapping_add(done), bytes - done);
        // SAFETY: what is left of glibc's buffer or the program's.
        match unsafe { libc::write(cookie.descriptor(), rest.cast(), left) } {
            // glibc takes 0 for an error here, and has no use for -1.
            written if written <= 0 => break,
            written => done += written as usize,
        }
    }
    advance(cookie, done);
    done as ssize_t
}

unsafe extern "C" fn cookie_seek(
    cookie: *mut c_void,
    offset: *mut off64_t,
    whence: c_int,
) -> c_int {
    // SAFETY: glibc's cookie, and a variable of its own.
    let (cookie, offset) = unsafe { (cookie_of(cookie), &mut *offset) };
    match seek(cookie.descriptor(), *offset, whence) {
        -1 => -1,
        now => {
            *offset = now;
            0
        }
    }
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: glibc's cookie.
    let result = close(unsafe { cookie_of(cookie) }.descriptor());
    // SAFETY: its stream ends here, and glibc frees the rest.
    unsafe { Cookie::free(cookie.cast()) };
    result
}

/// A stream over descriptor `fd`; null with errno if memory is short or the mode is none.
pub(super) fn cookie_stream(fd: c_int, mode: &CStr, standard: bool) -> *mut FILE {
    let functions = CookieFunctions {
        read: Some(cookie_read),
        write: Some(cookie_write),
        seek: Some(cookie_seek),
        close: Some(cookie_close),
    };
    let cookie = Cookie::allocate(fd, standard);
    if cookie.is_null() {
        return core::ptr::null_mut();
    }
    let made = real!(c"fopencookie"(cookie.cast() => *mut c_void, mode.as_ptr() => *const c_char, functions => CookieFunctions) -> usize)
        as *mut FILE;
    // SAFETY: just made, and the program does not have it yet.
    let Some(stream) = (unsafe { Stream::at(made) }) else {
        // SAFETY: no stream has it.
        unsafe { Cookie::free(cookie) };
        return made;
    };
    // SAFETY: the new stream's, which frees it when it is closed.
    unsafe { &*cookie }.belongs_to(stream);
    share_need_of_locks(stream);
    // That of a standard stream depends on what it is used for.
    if !standard {
        choose_buffer(stream);
    }
    made
}

/// Closes a descriptor that belongs to a stream, or was opened for one.
pub(super) fn close(fd: c_int) -> c_int {
    // SAFETY: takes a number only.
    unsafe { descriptors::close(fd) }
}

/// Makes `new` the same as `old`.
pub(super) fn duplicate(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: takes numbers only.
    unsafe { libc::dup3(old, new, flags) }
}

/// Closes a descriptor and leaves errno as it is.
pub(super) fn close_quietly(fd: c_int) {
    let before = errno();
    close(fd);
    restore_errno(before);
}
