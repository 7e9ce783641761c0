//! open and its forms, temporary files, sizes and syncs.

use crate::real::real;
use crate::{managed, set_errno, status};
use core::ffi::CStr;
use forebay_client::{OpenFlags, session};
use libc::{c_char, c_int, c_void, mode_t, off_t};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// Opens through `call` and takes the file under management.
///
/// A file that is buffered already is not truncated by the kernel but by us, so that no other
/// process sees its old blocks again.
unsafe fn open_by(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    let Some(session) = session() else { return call(flags) };
    let truncates = flags & libc::O_TRUNC != 0
        && flags & libc::O_ACCMODE != libc::O_RDONLY
        && flags & libc::O_PATH == 0;
    let ours = truncates && unsafe { is_known(folder, path) };
    let fd = call(if ours { flags & !libc::O_TRUNC } else { flags });
    if fd < 0 {
        return fd;
    }
    session.opened(fd, OpenFlags::from_bits_retain(flags as u32));
    if ours {
        let cut = match session.handle(fd) {
            Some(handle) => session.truncate(handle, 0),
            None => rustix::fs::ftruncate(unsafe { borrow(fd) }, 0),
        };
        if let Err(errno) = cut {
            unsafe { crate::descriptors::close(fd) };
            set_errno(errno);
            return -1;
        }
    }
    fd
}

/// SAFETY: the descriptor is open for the duration of the call.
pub(crate) unsafe fn borrow<'a>(fd: c_int) -> rustix::fd::BorrowedFd<'a> {
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}

/// Whether the file at `path` is in the file table.
unsafe fn is_known(folder: c_int, path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    let path = unsafe { CStr::from_ptr(path) };
    // AT_FDCWD is not a descriptor to borrow; rustix has its own name for it.
    let stat = match folder {
        libc::AT_FDCWD => rustix::fs::statat(rustix::fs::CWD, path, AtFlags::empty()),
        folder if folder < 0 => return false,
        folder => rustix::fs::statat(unsafe { borrow(folder) }, path, AtFlags::empty()),
    };
    stat.is_ok_and(|stat| session().is_some_and(|session| session.knows(stat.st_dev, stat.st_ino)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    unsafe {
        open_by(
            folder,
            path,
            flags,
            |flags| real!(c"openat64"(folder => c_int, path => *const c_char, flags => c_int, mode => mode_t) -> c_int),
        )
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    unsafe { openat64(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe {
        open_by(
            libc::AT_FDCWD,
            path,
            flags,
            |flags| real!(c"open64"(path => *const c_char, flags => c_int, mode => mode_t) -> c_int),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { open64(path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat(path: *const c_char, mode: mode_t) -> c_int {
    unsafe { open64(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat64(path: *const c_char, mode: mode_t) -> c_int {
    unsafe { creat(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    unsafe { open64(path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    unsafe { open64(path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    unsafe { openat64(folder, path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    unsafe { openat64(folder, path, flags, 0) }
}

/// mkstemp and its kin open inside the C library; the descriptor is taken over afterwards.
fn take_over(fd: c_int, flags: c_int) -> c_int {
    if let (Some(session), true) = (session(), fd >= 0) {
        let flags = OpenFlags::RDWR | OpenFlags::from_bits_retain(flags as u32);
        session.opened(fd, flags);
    }
    fd
}

macro_rules! temporary_files {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*) $flags:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(template: *mut c_char, $($argument: $type),*) -> c_int {
            let fd = real!($symbol(template => *mut c_char, $($argument => $type),*) -> c_int);
            take_over(fd, $flags)
        }
    )* };
}

temporary_files! {
    mkstemp c"mkstemp" () 0;
    mkstemp64 c"mkstemp64" () 0;
    mkostemp c"mkostemp" (flags: c_int) flags;
    mkostemp64 c"mkostemp64" (flags: c_int) flags;
    mkstemps c"mkstemps" (suffix: c_int) 0;
    mkstemps64 c"mkstemps64" (suffix: c_int) 0;
    mkostemps c"mkostemps" (suffix: c_int, flags: c_int) flags;
    mkostemps64 c"mkostemps64" (suffix: c_int, flags: c_int) flags;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, size: off_t) -> c_int {
    match managed(fd) {
        Some((session, handle)) => status(session.truncate(handle, size)),
        None => real!(c"ftruncate64"(fd => c_int, size => off_t) -> c_int),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, size: off_t) -> c_int {
    unsafe { ftruncate64(fd, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate64(path: *const c_char, size: off_t) -> c_int {
    if size < 0 || !unsafe { is_known(libc::AT_FDCWD, path) } {
        return real!(c"truncate64"(path => *const c_char, size => off_t) -> c_int);
    }
    let fd = unsafe { open64(path, libc::O_WRONLY | libc::O_CLOEXEC, 0) };
    if fd < 0 {
        return -1;
    }
    let result = unsafe { ftruncate64(fd, size) };
    // SAFETY: this thread's errno, kept over the close.
    let errno = unsafe { *libc::__errno_location() };
    unsafe { crate::descriptors::close(fd) };
    unsafe { *libc::__errno_location() = errno };
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate(path: *const c_char, size: off_t) -> c_int {
    unsafe { truncate64(path, size) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    match managed(fd) {
        Some((session, handle)) => status(session.sync(handle, true)),
        None => real!(c"fsync"(fd => c_int) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    match managed(fd) {
        Some((session, handle)) => status(session.sync(handle, true)),
        None => real!(c"fdatasync"(fd => c_int) -> c_int),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sync_file_range(fd: c_int, offset: off_t, bytes: off_t, flags: u32) -> c_int {
    match managed(fd) {
        Some((session, handle)) => status(session.sync(handle, false)),
        None => {
            real!(c"sync_file_range"(fd => c_int, offset => off_t, bytes => off_t, flags => u32) -> c_int)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sync() {
    if let Some(session) = session() {
        session.sync_all();
    }
    let _ = real!(c"sync"() -> c_int);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syncfs(fd: c_int) -> c_int {
    if let Some(session) = session() {
        session.sync_all();
    }
    real!(c"syncfs"(fd => c_int) -> c_int)
}

/// Passes a call that changes or reads the file below us through once the file is clean.
pub(crate) fn passed(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    match managed(fd) {
        Some((session, handle)) => match session.with_clean(handle, call) {
            Ok(result) => result,
            Err(errno) => status(Err(errno)),
        },
        None => call(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
    passed(
        fd,
        || real!(c"fallocate64"(fd => c_int, mode => c_int, offset => off_t, bytes => off_t) -> c_int),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
    unsafe { fallocate64(fd, mode, offset, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate64(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
    let call =
        || real!(c"posix_fallocate64"(fd => c_int, offset => off_t, bytes => off_t) -> c_int);
    match managed(fd) {
        // This one returns its error.
        Some((session, handle)) => {
            session.with_clean(handle, call).unwrap_or_else(Errno::raw_os_error)
        }
        None => call(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
    unsafe { posix_fallocate64(fd, offset, bytes) }
}

/// Requests that a terminal or a pipe gets, too often to look twice.
const FREQUENT: [libc::c_ulong; 3] = [libc::TCGETS, libc::TIOCGWINSZ, libc::FIOCLEX];
/// Sharing of blocks between files: `_IOW(0x94, 9, int)` and `_IOW(0x94, 13, ...)`.
const FICLONE: libc::c_ulong = 0x4004_9409;
const FICLONERANGE: libc::c_ulong = 0x4020_940d;

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int {
    let call =
        || real!(c"ioctl"(fd => c_int, request => libc::c_ulong, argument => *mut c_void) -> c_int);
    if request == FICLONE || request == FICLONERANGE {
        // Buffered blocks cannot be shared; the callers copy instead.
        let source = match request {
            FICLONE => argument as usize as c_int,
            // SAFETY: struct file_clone_range begins with the source descriptor.
            _ if !argument.is_null() => unsafe { *argument.cast::<i64>() as c_int },
            _ => -1,
        };
        if managed(fd).is_some() || managed(source).is_some() {
            return status(Err(Errno::OPNOTSUPP));
        }
        return call();
    }
    if FREQUENT.contains(&request) { call() } else { passed(fd, call) }
}

/// Linkers make their output executable after they have closed it.
unsafe fn executable(result: c_int, mode: mode_t, folder: c_int, path: *const c_char) -> c_int {
    if result == 0 && mode & 0o111 != 0 && unsafe { is_known(folder, path) } {
        let path = unsafe { CStr::from_ptr(path) };
        let flags = OpenFlags::RDONLY | OpenFlags::CLOEXEC;
        let none = rustix::fs::Mode::empty();
        let file = match folder {
            libc::AT_FDCWD => rustix::fs::open(path, flags, none),
            folder => rustix::fs::openat(unsafe { borrow(folder) }, path, flags, none),
        };
        if let Ok(file) = file {
            crate::spawn::make_clean(&file);
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    let result = real!(c"chmod"(path => *const c_char, mode => mode_t) -> c_int);
    unsafe { executable(result, mode, libc::AT_FDCWD, path) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmodat(
    folder: c_int,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
) -> c_int {
    let result = real!(c"fchmodat"(folder => c_int, path => *const c_char, mode => mode_t, flags => c_int) -> c_int);
    unsafe { executable(result, mode, folder, path) }
}
