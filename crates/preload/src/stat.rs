//! stat in all its forms, and setting times.

use crate::files::{path_at, path_here};
use crate::real::real;
use crate::session;
use crate::status;
use core::ptr::null;
use forebay_client::user_memory::is_readable;
use forebay_client::{NewTime, StatFields, joined_ns, parted_ns};
use libc::{AT_FDCWD as HERE, AT_SYMLINK_NOFOLLOW as LINK};
use libc::{c_char, c_int, c_uint, stat as Stat, statx as Statx, timespec, timeval, utimbuf};
use rustix::fs::AtFlags;

/// Makes the call, and corrects what the kernel says about a buffered file.
///
/// SAFETY: the arguments are those of the call, which has read `path`.
unsafe fn corrected(
    stat: *mut Stat,
    (folder, path, flags): (c_int, *const c_char, c_int),
    call: impl Fn() -> c_int,
) -> c_int {
    let mut before = None;
    loop {
        let result = call();
        let (0, Some(session), false) = (result, session(), stat.is_null()) else { return result };
        // SAFETY: filled by the call before.
        let stat = unsafe { &mut *stat };
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG || !session.knows(stat.st_dev, stat.st_ino)
        {
            return result;
        }
        let mut fields = StatFields {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mtime_ns: joined_ns(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: joined_ns(stat.st_ctime, stat.st_ctime_nsec),
        };
        let said = fields;
        let born = || unsafe { born_ns(folder, path, flags, stat.st_ino) };
        let correction = match session.correct(&mut fields, born) {
            Ok(correction) => correction,
            Err(errno) => return status(Err(errno)),
        };
        if correction.doubtful && before.replace(said) != Some(said) {
            continue;
        }
        if correction.changed {
            stat.st_size = fields.size as i64;
            stat.st_blocks = fields.blocks as i64;
            (stat.st_mtime, stat.st_mtime_nsec) = parted_ns(fields.mtime_ns);
            (stat.st_ctime, stat.st_ctime_nsec) = parted_ns(fields.changed_ns);
        }
        return result;
    }
}

/// When the file of a call was born, nanoseconds; 0 if that is not known, or it is not `inode` any more.
///
/// SAFETY: `path` is null or what the kernel has read.
unsafe fn born_ns(folder: c_int, path: *const c_char, flags: c_int, inode: u64) -> u64 {
    use rustix::fs::{StatxFlags, statx};
    let mut flags = AtFlags::from_bits_retain(flags as u32);
    let path = match path.is_null() {
        true => c"",
        false => unsafe { core::ffi::CStr::from_ptr(path) },
    };
    if path.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    // SAFETY: used for this call alone.
    let folder = unsafe { rustix::fd::BorrowedFd::borrow_raw(folder) };
    let Ok(found) = statx(folder, path, flags, StatxFlags::BTIME | StatxFlags::INO) else {
        return 0;
    };
    let known = StatxFlags::BTIME.bits() | StatxFlags::INO.bits();
    if found.stx_mask & known != known || found.stx_ino != inode {
        return 0;
    }
    joined_ns(found.stx_btime.tv_sec, found.stx_btime.tv_nsec.into())
}

macro_rules! stats {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*) $(then ($($after:ident: $last:ty),*))? is ($folder:expr, $path:expr, $flags:expr);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type,)* stat: *mut Stat $($(, $after: $last)*)?) -> c_int {
            let call = || real!($symbol($($argument => $type,)* stat => *mut Stat $($(, $after => $last)*)?) -> c_int);
            unsafe { corrected(stat, ($folder, $path, $flags), call) }
        }
    )* };
}

stats! {
    stat c"stat" (path: *const c_char) is (HERE, path, 0);
    stat64 c"stat64" (path: *const c_char) is (HERE, path, 0);
    lstat c"lstat" (path: *const c_char) is (HERE, path, LINK);
    lstat64 c"lstat64" (path: *const c_char) is (HERE, path, LINK);
    fstat c"fstat" (fd: c_int) is (fd, null(), 0);
    fstat64 c"fstat64" (fd: c_int) is (fd, null(), 0);
    fstatat c"fstatat" (folder: c_int, path: *const c_char) then (flags: c_int) is (folder, path, flags);
    fstatat64 c"fstatat64" (folder: c_int, path: *const c_char) then (flags: c_int) is (folder, path, flags);
    __xstat c"__xstat" (version: c_int, path: *const c_char) is (HERE, path, 0);
    __xstat64 c"__xstat64" (version: c_int, path: *const c_char) is (HERE, path, 0);
    __lxstat c"__lxstat" (version: c_int, path: *const c_char) is (HERE, path, LINK);
    __lxstat64 c"__lxstat64" (version: c_int, path: *const c_char) is (HERE, path, LINK);
    __fxstat c"__fxstat" (version: c_int, fd: c_int) is (fd, null(), 0);
    __fxstat64 c"__fxstat64" (version: c_int, fd: c_int) is (fd, null(), 0);
    __fxstatat c"__fxstatat" (version: c_int, folder: c_int, path: *const c_char) then (flags: c_int) is (folder, path, flags);
    __fxstatat64 c"__fxstatat64" (version: c_int, folder: c_int, path: *const c_char) then (flags: c_int) is (folder, path, flags);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buffer: *mut Statx,
) -> c_int {
    let mut before = None;
    loop {
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
        let device = libc::makedev(statx.stx_dev_major, statx.stx_dev_minor);
        if !session.knows(device, statx.stx_ino) {
            return result;
        }
        let inode = statx.stx_ino;
        let (mtime, ctime) = (&mut statx.stx_mtime, &mut statx.stx_ctime);
        let mut fields = StatFields {
            device,
            inode: statx.stx_ino,
            size: statx.stx_size,
            blocks: statx.stx_blocks,
            mtime_ns: joined_ns(mtime.tv_sec, mtime.tv_nsec.into()),
            changed_ns: joined_ns(ctime.tv_sec, ctime.tv_nsec.into()),
        };
        let said = fields;
        let born = || unsafe { born_ns(folder, path, flags, inode) };
        let correction = match session.correct(&mut fields, born) {
            Ok(correction) => correction,
            Err(errno) => return status(Err(errno)),
        };
        if correction.doubtful && before.replace(said) != Some(said) {
            continue;
        }
        if correction.changed {
            statx.stx_size = fields.size;
            statx.stx_blocks = fields.blocks;
            let times = [
                (mtime, fields.mtime_ns, libc::STATX_MTIME),
                (ctime, fields.changed_ns, libc::STATX_CTIME),
            ];
            // What the kernel did not fill in stays empty.
            for (time, ns, _) in times.into_iter().filter(|(.., bit)| statx.stx_mask & bit != 0) {
                let (seconds, nanoseconds) = parted_ns(ns);
                (time.tv_sec, time.tv_nsec) = (seconds, nanoseconds as u32);
            }
        }
        return result;
    }
}

/// Sets the times of a file through `call`. One that is in the file table is held meanwhile, so
/// that no flush sets its times in between; a later flush restores what was set here.
unsafe fn timed(stat: Option<rustix::fs::Stat>, mtime: NewTime, call: impl Fn() -> c_int) -> c_int {
    let (Some(session), Some(stat)) = (session(), stat) else { return call() };
    let mut result = -1;
    let set = session.set_times(stat.st_dev, stat.st_ino, mtime, || {
        result = call();
        result == 0
    });
    match set {
        Ok(()) => result,
        Err(errno) => status(Err(errno)),
    }
}

/// The modification time of a call.
///
/// SAFETY: `times` is null or what the kernel will read, too.
unsafe fn of_timespec(times: *const timespec) -> NewTime {
    if times.is_null() {
        return NewTime::Now;
    }
    if !is_readable(times.cast(), 2 * size_of::<timespec>()) {
        return NewTime::Kept;
    }
    let mtime = unsafe { &*times.add(1) };
    match mtime.tv_nsec {
        libc::UTIME_OMIT => NewTime::Kept,
        libc::UTIME_NOW => NewTime::Now,
        nanoseconds => NewTime::At(joined_ns(mtime.tv_sec, nanoseconds)),
    }
}

/// The same for calls with microseconds.
unsafe fn of_timeval(times: *const timeval) -> NewTime {
    if times.is_null() {
        return NewTime::Now;
    }
    if !is_readable(times.cast(), 2 * size_of::<timeval>()) {
        return NewTime::Kept;
    }
    let mtime = unsafe { &*times.add(1) };
    NewTime::At(joined_ns(mtime.tv_sec, mtime.tv_usec.wrapping_mul(1000)))
}

unsafe fn at(folder: c_int, path: *const c_char, flags: c_int) -> Option<rustix::fs::Stat> {
    let flags = AtFlags::from_bits_retain(flags as u32);
    if path.is_null() {
        return known(folder);
    }
    session()?.stat_known(unsafe { path_at(folder, path) }, flags)
}

/// What the file at `path` is, if it is in the file table.
unsafe fn here(path: *const c_char, flags: AtFlags) -> Option<rustix::fs::Stat> {
    session()?.stat_known(unsafe { path_here(path) }, flags)
}

/// What the file behind `fd` is, if it is in the file table.
fn known(fd: c_int) -> Option<rustix::fs::Stat> {
    session()?.fstat_known(fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    let call = || real!(c"futimens"(fd => c_int, times => *const timespec) -> c_int);
    unsafe { timed(known(fd), of_timespec(times), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimensat(
    folder: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    let call = || real!(c"utimensat"(folder => c_int, path => *const c_char, times => *const timespec, flags => c_int) -> c_int);
    unsafe { timed(at(folder, path, flags), of_timespec(times), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    let call = || real!(c"futimes"(fd => c_int, times => *const timeval) -> c_int);
    unsafe { timed(known(fd), of_timeval(times), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimesat(folder: c_int, path: *const c_char, times: *const timeval) -> c_int {
    let call = || real!(c"futimesat"(folder => c_int, path => *const c_char, times => *const timeval) -> c_int);
    unsafe { timed(at(folder, path, 0), of_timeval(times), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimes(path: *const c_char, times: *const timeval) -> c_int {
    let call = || real!(c"utimes"(path => *const c_char, times => *const timeval) -> c_int);
    unsafe { timed(here(path, AtFlags::empty()), of_timeval(times), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
    let call = || real!(c"lutimes"(path => *const c_char, times => *const timeval) -> c_int);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    unsafe { timed(here(path, flags), of_timeval(times), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
    let call = || real!(c"utime"(path => *const c_char, times => *const utimbuf) -> c_int);
    let mtime = match () {
        () if times.is_null() => NewTime::Now,
        () if !is_readable(times.cast(), size_of::<utimbuf>()) => NewTime::Kept,
        () => NewTime::At(joined_ns(unsafe { (*times).modtime }, 0)),
    };
    unsafe { timed(here(path, AtFlags::empty()), mtime, call) }
}
