//! errno, and results as C functions give them.

use libc::{c_int, ssize_t};
use rustix::io::Errno;

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// This thread's errno as an error.
pub(crate) fn last_error() -> Errno {
    Errno::from_raw_os_error(errno())
}

/// Puts errno back to what it was.
pub(crate) fn restore_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno }
}

/// A byte count or -1 with errno.
pub(crate) fn count(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(bytes) => bytes as ssize_t,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// 0 or -1 with errno.
pub(crate) fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
