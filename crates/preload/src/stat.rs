//! stat in all its forms, and setting times.

use crate::real::real;
use core::ffi::CStr;
use forebay_client::{StatFields, session};
use libc::{c_char, c_int, c_uint, c_void, stat as Stat, statx as Statx, timespec, timeval};

const NANOSECONDS: u64 = 1_000_000_000;

/// Corrects what the kernel said about a buffered file.
unsafe fn correct(result: c_int, stat: *mut Stat) -> c_int {
    if let (0, Some(session), false) = (result, session(), stat.is_null()) {
        // SAFETY: filled by the call before.
        let stat = unsafe { &mut *stat };
        if stat.st_mode & libc::S_IFMT == libc::S_IFREG {
            let mut fields = StatFields {
                device: stat.st_dev,
                inode: stat.st_ino,
                size: stat.st_size as u64,
                blocks: stat.st_blocks as u64,
                mtime_ns: stat.st_mtime as u64 * NANOSECONDS + stat.st_mtime_nsec as u64,
            };
            if session.correct(&mut fields) {
                stat.st_size = fields.size as i64;
                stat.st_blocks = fields.blocks as i64;
                stat.st_mtime = (fields.mtime_ns / NANOSECONDS) as i64;
                stat.st_mtime_nsec = (fields.mtime_ns % NANOSECONDS) as i64;
                if (stat.st_ctime, stat.st_ctime_nsec) < (stat.st_mtime, stat.st_mtime_nsec) {
                    stat.st_ctime = stat.st_mtime;
                    stat.st_ctime_nsec = stat.st_mtime_nsec;
                }
            }
        }
    }
    result
}

macro_rules! stats {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*) $(then ($($after:ident: $last:ty),*))?;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type,)* stat: *mut Stat $($(, $after: $last)*)?) -> c_int {
            let result = real!($symbol($($argument => $type,)* stat => *mut Stat $($(, $after => $last)*)?) -> c_int);
            unsafe { correct(result, stat) }
        }
    )* };
}

stats! {
    stat c"stat" (path: *const c_char);
    stat64 c"stat64" (path: *const c_char);
    lstat c"lstat" (path: *const c_char);
    lstat64 c"lstat64" (path: *const c_char);
    fstat c"fstat" (fd: c_int);
    fstat64 c"fstat64" (fd: c_int);
    fstatat c"fstatat" (folder: c_int, path: *const c_char) then (flags: c_int);
    fstatat64 c"fstatat64" (folder: c_int, path: *const c_char) then (flags: c_int);
    __xstat c"__xstat" (version: c_int, path: *const c_char);
    __xstat64 c"__xstat64" (version: c_int, path: *const c_char);
    __lxstat c"__lxstat" (version: c_int, path: *const c_char);
    __lxstat64 c"__lxstat64" (version: c_int, path: *const c_char);
    __fxstat c"__fxstat" (version: c_int, fd: c_int);
    __fxstat64 c"__fxstat64" (version: c_int, fd: c_int);
    __fxstatat c"__fxstatat" (version: c_int, folder: c_int, path: *const c_char) then (flags: c_int);
    __fxstatat64 c"__fxstatat64" (version: c_int, folder: c_int, path: *const c_char) then (flags: c_int);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buffer: *mut Statx,
) -> c_int {
    let result = real!(c"statx"(folder => c_int, path => *const c_char, flags => c_int, mask => c_uint, buffer => *mut Statx) -> c_int);
    let Some(session) = session() else { return result };
    if result != 0 || buffer.is_null() {
        return result;
    }
    // SAFETY: filled by the call before.
    let statx = unsafe { &mut *buffer };
    let known = libc::STATX_INO | libc::STATX_SIZE;
    if statx.stx_mask & known != known {
        return result;
    }
    let mtime = &mut statx.stx_mtime;
    let mut fields = StatFields {
        device: libc::makedev(statx.stx_dev_major, statx.stx_dev_minor),
        inode: statx.stx_ino,
        size: statx.stx_size,
        blocks: statx.stx_blocks,
        mtime_ns: mtime.tv_sec as u64 * NANOSECONDS + u64::from(mtime.tv_nsec),
    };
    if session.correct(&mut fields) {
        statx.stx_size = fields.size;
        statx.stx_blocks = fields.blocks;
        mtime.tv_sec = (fields.mtime_ns / NANOSECONDS) as i64;
        mtime.tv_nsec = (fields.mtime_ns % NANOSECONDS) as u32;
        let ctime = &mut statx.stx_ctime;
        if (ctime.tv_sec, ctime.tv_nsec) < (mtime.tv_sec, mtime.tv_nsec) {
            (ctime.tv_sec, ctime.tv_nsec) = (mtime.tv_sec, mtime.tv_nsec);
        }
    }
    result
}

/// After a program set a file's times: a flush that comes later must not undo it.
unsafe fn timed(result: c_int, stat: Result<rustix::fs::Stat, rustix::io::Errno>) -> c_int {
    if let (0, Some(session), Ok(stat)) = (result, session(), stat) {
        let mtime = stat.st_mtime as u64 * NANOSECONDS + stat.st_mtime_nsec;
        session.timed(stat.st_dev, stat.st_ino, mtime);
    }
    result
}

unsafe fn at(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
) -> Result<rustix::fs::Stat, rustix::io::Errno> {
    let flags = rustix::fs::AtFlags::from_bits_retain(flags as u32);
    if path.is_null() {
        return rustix::fs::fstat(unsafe { crate::files::borrow(folder.max(0)) });
    }
    let path = unsafe { CStr::from_ptr(path) };
    match folder {
        libc::AT_FDCWD => rustix::fs::statat(rustix::fs::CWD, path, flags),
        folder => rustix::fs::statat(unsafe { crate::files::borrow(folder.max(0)) }, path, flags),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    let result = real!(c"futimens"(fd => c_int, times => *const timespec) -> c_int);
    unsafe { timed(result, at(fd, core::ptr::null(), 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimensat(
    folder: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    let result = real!(c"utimensat"(folder => c_int, path => *const c_char, times => *const timespec, flags => c_int) -> c_int);
    unsafe { timed(result, at(folder, path, flags)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    let result = real!(c"futimes"(fd => c_int, times => *const timeval) -> c_int);
    unsafe { timed(result, at(fd, core::ptr::null(), 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimesat(folder: c_int, path: *const c_char, times: *const timeval) -> c_int {
    let result = real!(c"futimesat"(folder => c_int, path => *const c_char, times => *const timeval) -> c_int);
    unsafe { timed(result, at(folder, path, 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimes(path: *const c_char, times: *const timeval) -> c_int {
    let result = real!(c"utimes"(path => *const c_char, times => *const timeval) -> c_int);
    unsafe { timed(result, at(libc::AT_FDCWD, path, 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
    let result = real!(c"lutimes"(path => *const c_char, times => *const timeval) -> c_int);
    unsafe { timed(result, at(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utime(path: *const c_char, times: *const c_void) -> c_int {
    let result = real!(c"utime"(path => *const c_char, times => *const c_void) -> c_int);
    unsafe { timed(result, at(libc::AT_FDCWD, path, 0)) }
}
