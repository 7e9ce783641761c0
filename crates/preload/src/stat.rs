//! stat in all its forms, and setting times.

use crate::errno::status;
use crate::files::path_at;
use crate::real::real;
use crate::session::session;
use core::ptr::null;
use forebay_client::user_memory::is_readable;
use forebay_client::{NewTime, PathAt, Session, StatFields, joined_ns, parted_ns};
use libc::{AT_FDCWD as HERE, AT_SYMLINK_NOFOLLOW as LINK};
use libc::{c_char, c_int, c_uint, stat as Stat, statx as Statx, timespec, timeval, utimbuf};
use rustix::fs::AtFlags;

/// Makes the call, and corrects what the kernel says about a buffered file.
#[inline]
fn corrected(
    stat: *mut Stat,
    (folder, path, flags): (c_int, *const c_char, c_int),
    call: impl Fn() -> c_int,
) -> c_int {
    let Some(session) = session() else { return call() };
    let epoch = session.stat_epoch();
    let result = call();
    if result != 0 || stat.is_null() {
        return result;
    }
    // SAFETY: the kernel has just filled it.
    let said = unsafe { &*stat };
    let known = is_known(session, said);
    if !known && !has_left(session, said, epoch) {
        return result;
    }
    // SAFETY: the program's path.
    correct(session, epoch, known, stat, unsafe { path_at(folder, path) }, flags, call)
}

/// Whether a file that is not in the table may have left it since `epoch`.
fn has_left(session: &Session, said: &Stat, epoch: u32) -> bool {
    session.stat_epoch() != epoch
        && said.st_mode & libc::S_IFMT == libc::S_IFREG
        && session.is_store_device(said.st_dev)
}

fn is_known(session: &Session, said: &Stat) -> bool {
    said.st_mode & libc::S_IFMT == libc::S_IFREG && session.concerns(said.st_dev, said.st_ino)
}

/// The same, where `stat` has what the kernel has said of a file that may be buffered; it is
/// asked again first unless it was `asked` of a file that is in the table.
#[inline(never)]
fn correct(
    session: &Session,
    epoch: u32,
    mut asked: bool,
    stat: *mut Stat,
    at: PathAt<'_>,
    flags: c_int,
    call: impl Fn() -> c_int,
) -> c_int {
    let mut result = 0;
    let ask = || {
        if !core::mem::take(&mut asked) {
            result = call();
        }
        // SAFETY: the kernel has filled it.
        let said = unsafe { &*stat };
        (result == 0 && is_known(session, said)).then(|| StatFields {
            device: said.st_dev,
            inode: said.st_ino,
            size: said.st_size as u64,
            blocks: said.st_blocks as u64,
            mtime_ns: joined_ns(said.st_mtime, said.st_mtime_nsec),
            changed_ns: joined_ns(said.st_ctime, said.st_ctime_nsec),
        })
    };
    let flags = AtFlags::from_bits_retain(flags as u32);
    match session.corrected(epoch, ask, (at, flags)) {
        Ok(None) => result,
        Ok(Some(fields)) => {
            // SAFETY: the kernel has filled it.
            let stat = unsafe { &mut *stat };
            stat.st_size = fields.size as i64;
            stat.st_blocks = fields.blocks as i64;
            (stat.st_mtime, stat.st_mtime_nsec) = parted_ns(fields.mtime_ns);
            (stat.st_ctime, stat.st_ctime_nsec) = parted_ns(fields.changed_ns);
            result
        }
        Err(errno) => status(Err(errno)),
    }
}

macro_rules! stats {
    ($($name:ident $symbol:literal ($($argument:ident: $type:ty),*) $(then ($($after:ident: $last:ty),*))? is ($folder:expr, $path:expr, $flags:expr);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type,)* stat: *mut Stat $($(, $after: $last)*)?) -> c_int {
            let call = || real!($symbol($($argument => $type,)* stat => *mut Stat $($(, $after => $last)*)?) -> c_int);
            corrected(stat, ($folder, $path, $flags), call)
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
    let call = || real!(c"statx"(folder => c_int, path => *const c_char, flags => c_int, mask => c_uint, buffer => *mut Statx) -> c_int);
    let (Some(session), false) = (session(), buffer.is_null()) else { return call() };
    let epoch = session.stat_epoch();
    let mut result = 0;
    let ask = || {
        result = call();
        if result != 0 {
            return None;
        }
        // SAFETY: the kernel has just filled it.
        let said = unsafe { &*buffer };
        let filled = libc::STATX_INO | libc::STATX_SIZE;
        let device = libc::makedev(said.stx_dev_major, said.stx_dev_minor);
        let is_regular = u32::from(said.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        let known = said.stx_mask & filled == filled && is_regular;
        let concerns = known && session.concerns(device, said.stx_ino);
        concerns.then(|| StatFields {
            device,
            inode: said.stx_ino,
            size: said.stx_size,
            blocks: said.stx_blocks,
            mtime_ns: joined_ns(said.stx_mtime.tv_sec, said.stx_mtime.tv_nsec.into()),
            changed_ns: joined_ns(said.stx_ctime.tv_sec, said.stx_ctime.tv_nsec.into()),
        })
    };
    // SAFETY: the program's path.
    let at = unsafe { path_at(folder, path) };
    let at_flags = AtFlags::from_bits_retain(flags as u32);
    match session.corrected(epoch, ask, (at, at_flags)) {
        Ok(None) => result,
        Ok(Some(fields)) => {
            // SAFETY: the kernel has filled it.
            let statx = unsafe { &mut *buffer };
            statx.stx_size = fields.size;
            statx.stx_blocks = fields.blocks;
            let times = [
                (&mut statx.stx_mtime, fields.mtime_ns, libc::STATX_MTIME),
                (&mut statx.stx_ctime, fields.changed_ns, libc::STATX_CTIME),
            ];
            // What the kernel did not fill in stays empty.
            for (time, ns, _) in times.into_iter().filter(|(.., bit)| statx.stx_mask & bit != 0) {
                let (seconds, nanoseconds) = parted_ns(ns);
                (time.tv_sec, time.tv_nsec) = (seconds, nanoseconds as u32);
            }
            result
        }
        Err(errno) => status(Err(errno)),
    }
}

/// Device and inode number of a file that is in the file table.
type Known = Option<(u64, u64)>;

/// Sets the times of a file through `call`. One that is in the file table is held meanwhile, so
/// that no flush sets its times in between; a later flush restores what was set here.
fn timed(known: Known, mtime: NewTime, call: impl Fn() -> c_int) -> c_int {
    let (Some(session), Some((device, inode))) = (session(), known) else { return call() };
    let mut result = -1;
    let set = session.set_times(device, inode, mtime, || {
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
/// # Safety
/// As far as `times` can be read, it does not change meanwhile.
unsafe fn of_timespec(times: *const timespec) -> NewTime {
    if times.is_null() {
        return NewTime::Now;
    }
    if !is_readable(times.cast(), 2 * size_of::<timespec>()) {
        return NewTime::Kept;
    }
    // SAFETY: just found readable.
    let mtime = unsafe { &*times.add(1) };
    match mtime.tv_nsec {
        libc::UTIME_OMIT => NewTime::Kept,
        libc::UTIME_NOW => NewTime::Now,
        nanoseconds => NewTime::At(joined_ns(mtime.tv_sec, nanoseconds)),
    }
}

/// The same for calls with microseconds.
///
/// # Safety
/// As of [`of_timespec`].
unsafe fn of_timeval(times: *const timeval) -> NewTime {
    if times.is_null() {
        return NewTime::Now;
    }
    if !is_readable(times.cast(), 2 * size_of::<timeval>()) {
        return NewTime::Kept;
    }
    // SAFETY: just found readable.
    let mtime = unsafe { &*times.add(1) };
    NewTime::At(joined_ns(mtime.tv_sec, mtime.tv_usec.wrapping_mul(1000)))
}

/// Which file is at `path` beneath `folder`, or `folder` itself if there is no path, if it is in
/// the file table.
///
/// # Safety
/// As of [`path_at`].
unsafe fn at(folder: c_int, path: *const c_char, flags: c_int) -> Known {
    let flags = AtFlags::from_bits_retain(flags as u32);
    if path.is_null() {
        return known(folder);
    }
    // SAFETY: the program's path.
    let stat = session()?.stat_known(unsafe { path_at(folder, path) }, flags)?;
    Some((stat.st_dev, stat.st_ino))
}

/// The same of `path` alone.
///
/// # Safety
/// As of [`path_at`].
unsafe fn here(path: *const c_char, flags: AtFlags) -> Known {
    // SAFETY: the program's path.
    unsafe { at(HERE, path, flags.bits() as c_int) }
}

/// The same of the file behind `fd`.
fn known(fd: c_int) -> Known {
    session()?.identity_known(fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    let call = || real!(c"futimens"(fd => c_int, times => *const timespec) -> c_int);
    // SAFETY: the program's times.
    let (stat, mtime) = unsafe { (known(fd), of_timespec(times)) };
    timed(stat, mtime, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimensat(
    folder: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    let call = || real!(c"utimensat"(folder => c_int, path => *const c_char, times => *const timespec, flags => c_int) -> c_int);
    // SAFETY: the program's path and times.
    let (stat, mtime) = unsafe { (at(folder, path, flags), of_timespec(times)) };
    timed(stat, mtime, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    let call = || real!(c"futimes"(fd => c_int, times => *const timeval) -> c_int);
    // SAFETY: the program's times.
    let (stat, mtime) = unsafe { (known(fd), of_timeval(times)) };
    timed(stat, mtime, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn futimesat(folder: c_int, path: *const c_char, times: *const timeval) -> c_int {
    let call = || real!(c"futimesat"(folder => c_int, path => *const c_char, times => *const timeval) -> c_int);
    // SAFETY: the program's path and times.
    let (stat, mtime) = unsafe { (at(folder, path, 0), of_timeval(times)) };
    timed(stat, mtime, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utimes(path: *const c_char, times: *const timeval) -> c_int {
    let call = || real!(c"utimes"(path => *const c_char, times => *const timeval) -> c_int);
    // SAFETY: the program's path and times.
    let (stat, mtime) = unsafe { (here(path, AtFlags::empty()), of_timeval(times)) };
    timed(stat, mtime, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
    let call = || real!(c"lutimes"(path => *const c_char, times => *const timeval) -> c_int);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    // SAFETY: the program's path and times.
    let (stat, mtime) = unsafe { (here(path, flags), of_timeval(times)) };
    timed(stat, mtime, call)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
    let call = || real!(c"utime"(path => *const c_char, times => *const utimbuf) -> c_int);
    let mtime = match () {
        () if times.is_null() => NewTime::Now,
        () if !is_readable(times.cast(), size_of::<utimbuf>()) => NewTime::Kept,
        // SAFETY: just found readable.
        () => NewTime::At(joined_ns(unsafe { (*times).modtime }, 0)),
    };
    // SAFETY: the program's path.
    timed(unsafe { here(path, AtFlags::empty()) }, mtime, call)
}
