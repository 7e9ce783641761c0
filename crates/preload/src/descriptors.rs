//! close, dup and fcntl.

use crate::errno::{set_errno, status};
use crate::real::{aliases, real, without_cancellation};
use crate::session::{managed, session_for_standard_error, session_of_table as session};
use crate::stdio::redirect::redirected;
use forebay_client::OpenFlags;
use libc::{c_int, c_uint, c_void};
use rustix::io::Errno;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    let Some(session) = session() else { return really_close(fd) };
    if session.owns(fd) {
        return status(Err(Errno::BADF));
    }
    let (result, error) = session.while_closing(fd, || really_close(fd));
    match error {
        Some(errno) if result == 0 => status(Err(errno)),
        _ => result,
    }
}

/// No thread is cancelled here: what Rust's library closes for us comes this way too, and its
/// frames are not to be unwound.
fn really_close(fd: c_int) -> c_int {
    without_cancellation(|| real!(c"close"(fd => c_int) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let Some(session) = session() else {
        return real!(c"close_range"(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    };
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    const KNOWN: c_int = CLOEXEC | libc::CLOSE_RANGE_UNSHARE as c_int;
    if first > last || flags & !KNOWN != 0 {
        // The kernel refuses it, and nothing is closed.
        return real!(c"close_range"(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    }
    let close = |from: c_uint, upto: c_uint| real!(c"close_range"(from => c_uint, upto => c_uint, flags => c_int) -> c_int);
    session.close_range(first..=last, flags & CLOEXEC != 0, close)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: closes what the program says.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(old: c_int) -> c_int {
    let call = || real!(c"dup"(old => c_int) -> c_int);
    duplicate(old, call)
}

/// dup, and what fcntl does like it.
fn duplicate(old: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let new = match session() {
        Some(session) => return session.while_duplicating(old, call),
        None => call(),
    };
    session_for_standard_error(new, new);
    new
}

/// dup2 and dup3: `new` is replaced by `old` in one step.
fn replace(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    session_for_standard_error(new, old);
    let Some(session) = session() else { return call() };
    match session.replace(old, new, call) {
        Ok(result) => {
            if result >= 0 && old != new {
                redirected(result);
            }
            result
        }
        Err(errno) => status(Err(errno)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    replace(old, new, || real!(c"dup2"(old => c_int, new => c_int) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let call = || real!(c"dup3"(old => c_int, new => c_int, flags => c_int) -> c_int);
    // The kernel refuses other flags, and then `new` stays what it is.
    if flags & !libc::O_CLOEXEC != 0 { call() } else { replace(old, new, call) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let call = |argument: *mut c_void| real!(c"fcntl64"(fd => c_int, command => c_int, argument => *mut c_void) -> c_int);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            return duplicate(fd, || call(argument));
        }
        libc::F_GETFD | libc::F_SETFD => return call(argument),
        _ => {}
    }
    let Some(file) = managed(fd) else {
        let result = call(argument);
        return match (command, session()) {
            (libc::F_GETFL, Some(session)) if result >= 0 => {
                let flags = OpenFlags::from_bits_retain(result as u32);
                session.shown_flags(fd, flags).bits() as c_int
            }
            _ => result,
        };
    };
    match command {
        libc::F_GETFL => match call(argument) {
            -1 => -1,
            flags => file.shown_flags(OpenFlags::from_bits_retain(flags as u32)).bits() as c_int,
        },
        libc::F_SETFL => {
            let flags = OpenFlags::from_bits_retain(argument as usize as u32);
            let hidden = match file.uses_kernel_offset() {
                true => OpenFlags::empty(),
                false => OpenFlags::APPEND | OpenFlags::DIRECT,
            };
            let result = call((flags - hidden).bits() as usize as *mut c_void);
            if result == 0 {
                file.set_hidden_flags(flags);
            }
            result
        }
        libc::F_SETLK | libc::F_SETLKW => {
            file.locking_process();
            file.around_lock(|| call(argument))
        }
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            file.locking();
            file.around_lock(|| call(argument))
        }
        libc::F_SETLEASE => {
            file.leasing();
            call(argument)
        }
        _ => call(argument),
    }
}

/// The lock is the kernel's; it belongs to the description, and must end with it.
#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    let call = || real!(c"flock"(fd => c_int, operation => c_int) -> c_int);
    let Some(file) = managed(fd) else { return call() };
    file.locking();
    file.around_lock(call)
}

/// Ends all locks that belong to a description.
pub(crate) fn unlock(fd: c_int) {
    let errno = crate::errno::errno();
    // SAFETY: a struct of numbers.
    let mut whole: libc::flock = unsafe { core::mem::zeroed() };
    whole.l_type = libc::F_UNLCK as _;
    let (command, operation) = (libc::F_OFD_SETLK, libc::LOCK_UN);
    let at = (&raw mut whole).cast::<c_void>();
    real!(c"fcntl64"(fd => c_int, command => c_int, at => *mut c_void) -> c_int);
    real!(c"flock"(fd => c_int, operation => c_int) -> c_int);
    crate::errno::restore_errno(errno);
}

/// A lock of the process's, as F_SETLK takes it: glibc's lockf does not come by our fcntl.
#[unsafe(no_mangle)]
unsafe extern "C" fn lockf64(fd: c_int, command: c_int, length: libc::off64_t) -> c_int {
    let call =
        || real!(c"lockf64"(fd => c_int, command => c_int, length => libc::off64_t) -> c_int);
    let Some(file) = managed(fd) else { return call() };
    file.locking_process();
    file.around_lock(call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek64(fd: c_int, offset: libc::off_t, number: c_int) -> libc::off_t {
    use forebay_client::Whence;
    let call =
        || real!(c"lseek64"(fd => c_int, offset => libc::off_t, number => c_int) -> libc::off_t);
    let Some(file) = managed(fd) else { return call() };
    if file.uses_kernel_offset() {
        return call();
    }
    let whence = match number {
        libc::SEEK_SET => Whence::Start,
        libc::SEEK_CUR => Whence::Current,
        libc::SEEK_END => Whence::End,
        libc::SEEK_DATA => Whence::Data,
        libc::SEEK_HOLE => Whence::Hole,
        _ => {
            set_errno(Errno::INVAL);
            return -1;
        }
    };
    match file.seek(offset, whence) {
        Ok(offset) => offset as libc::off_t,
        // Closed or replaced by another thread meanwhile.
        // SAFETY: the program's call, made again.
        Err(Errno::BADF) if !file.is_current() => unsafe { lseek64(fd, offset, number) },
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

aliases! {
    "C" lockf = lockf64(fd: c_int, command: c_int, length: libc::off_t) -> c_int;
    "C" fcntl = fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    "C" lseek = lseek64(fd: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t;
}
