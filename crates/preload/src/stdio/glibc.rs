//! glibc's own variables and functions of streams.

use super::layout::{SAVED_AT, Stream};
use libc::{FILE, c_int};

unsafe extern "C" {
    fn _IO_free_backup_area(stream: *mut FILE);
    fn __fpurge(stream: *mut FILE);
    fn flockfile(stream: *mut FILE);
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    pub(super) static mut stdin: *mut FILE;
    pub(super) static mut stdout: *mut FILE;
    pub(super) static mut stderr: *mut FILE;
}

/// Holds a stream's lock.
pub(super) struct Locked<'a>(Stream<'a>);

impl<'a> Locked<'a> {
    pub(super) fn new(stream: Stream<'a>) -> Locked<'a> {
        // SAFETY: an open stream.
        unsafe { flockfile(stream.as_ptr()) };
        Locked(stream)
    }

    /// `None` if another thread holds it.
    pub(super) fn at_once(stream: Stream<'a>) -> Option<Locked<'a>> {
        // SAFETY: an open stream.
        let locked = unsafe { ftrylockfile(stream.as_ptr()) } == 0;
        locked.then(|| Locked(stream))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: an open stream, which this thread has locked.
        unsafe { funlockfile(self.0.as_ptr()) };
    }
}

pub(super) fn flush(stream: Stream) -> c_int {
    // SAFETY: an open stream; it takes the lock itself.
    unsafe { libc::fflush(stream.as_ptr()) }
}

/// Forgets what is in the buffer of a locked stream.
pub(super) fn purge(stream: Stream) {
    // SAFETY: an open stream.
    unsafe { __fpurge(stream.as_ptr()) };
}

/// Frees what a locked stream has for bytes that are pushed back, and forgets them.
pub(super) fn forget_pushed_back(stream: Stream) {
    if !stream.get(SAVED_AT).is_null() {
        // SAFETY: an open stream, which has such an area.
        unsafe { _IO_free_backup_area(stream.as_ptr()) };
    }
}

/// Frees the stream's buffer if it is glibc's, and takes the one byte inside the structure instead.
pub(super) fn unbuffer(stream: Stream) {
    // SAFETY: an open stream; it takes the lock itself.
    unsafe { libc::setvbuf(stream.as_ptr(), core::ptr::null_mut(), libc::_IONBF, 0) };
}
