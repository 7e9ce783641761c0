//! open and its forms, temporary files, sizes and syncs.

use crate::real::real;
use crate::session;
use crate::{managed, set_errno, status};
use core::ffi::CStr;
use forebay_client::user_memory::{is_readable, is_writable};
use forebay_client::{Advice, AllocateMode, Identity, InKnownFolder, OpenFlags, Session, Whence};
use libc::{c_char, c_int, c_void, gid_t, mode_t, off_t, uid_t};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// Opens through `call` and takes the file under management.
///
/// A file that is buffered already is not truncated by the kernel but by us, so that no other
/// process sees its old blocks again.
unsafe fn open_by(
    folder: c_int,
    given: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    let Some(session) = session() else { return call(flags) };
    session.opening(|| unsafe { open_in(session, folder, given, flags, call) })
}

unsafe fn open_in(
    session: &Session,
    folder: c_int,
    given: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    const ELSEWHERE: c_int = libc::O_PATH | libc::O_DIRECTORY;
    // Where new files would be scratch, it has to be known which are new.
    let fast = flags & ELSEWHERE == 0 && !session.makes_scratch();
    let absolute = fast && unsafe { begins_with_slash(given) };
    let path = if absolute { unsafe { path_at(given) } } else { None };
    let known = path.and_then(|path| session.in_known_folder(path));
    if let Some(known) = known {
        let fd = unsafe { open_known(session, known, flags, &call) };
        // A symbolic link: it may lead out of the folder.
        if fd >= 0 || crate::errno() != libc::ELOOP || flags & libc::O_NOFOLLOW != 0 {
            return fd;
        }
    }
    let truncates = flags & libc::O_TRUNC != 0 && flags & libc::O_PATH == 0;
    let made = make(flags, &call);
    let ours = made.is_none() && truncates && unsafe { is_known(folder, given) };
    let fd = made.unwrap_or_else(|| call(if ours { flags & !libc::O_TRUNC } else { flags }));
    if fd < 0 {
        return fd;
    }
    let noted = if made.is_some() { flags | libc::O_EXCL } else { flags };
    match session.opened_as(fd, OpenFlags::from_bits_retain(noted as u32), None, path) {
        Ok(_) if ours => unsafe { cut(session, fd) },
        Ok(_) => fd,
        Err(errno) => unsafe { fail(fd, errno) },
    }
}

/// The same for a path in a folder that is known to be managed: the file is truncated when it is
/// seen that there is something to truncate, and no symbolic link is followed.
unsafe fn open_known(
    session: &Session,
    known: InKnownFolder<'_>,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    let ours = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
    let kernel = if ours { flags & !libc::O_TRUNC } else { flags };
    let fd = call(kernel | libc::O_NOFOLLOW);
    if fd < 0 {
        return fd;
    }
    let flags = OpenFlags::from_bits_retain(flags as u32);
    match session.opened_as(fd, flags, Some(known), None) {
        Ok(false) if ours => unsafe { cut(session, fd) },
        Ok(_) => fd,
        Err(errno) => unsafe { fail(fd, errno) },
    }
}

/// Truncates a file that was just opened with O_TRUNC, of which the kernel was not told.
unsafe fn cut(session: &Session, fd: c_int) -> c_int {
    let cut = match session.file(fd) {
        Some(file) => file.empty(),
        None => rustix::fs::ftruncate(unsafe { borrow(fd) }, 0),
    };
    match cut {
        // What is no regular file is not truncated.
        Ok(()) | Err(Errno::INVAL) => fd,
        Err(errno) => unsafe { fail(fd, errno) },
    }
}

unsafe fn fail(fd: c_int, errno: Errno) -> c_int {
    unsafe { crate::descriptors::close(fd) };
    set_errno(errno);
    -1
}

/// Whether a path that the program gave is an absolute one.
unsafe fn begins_with_slash(path: *const c_char) -> bool {
    // SAFETY: just found readable.
    is_readable(path.cast(), 1) && unsafe { *path } == b'/' as c_char
}

/// Where a file that did not exist would be scratch: makes it, if there is none.
fn make(flags: c_int, call: impl Fn(c_int) -> c_int) -> Option<c_int> {
    let asks = flags & libc::O_CREAT != 0 && flags & (libc::O_EXCL | libc::O_PATH) == 0;
    if !asks || !session()?.makes_scratch() {
        return None;
    }
    let errno = crate::errno();
    let fd = call(flags | libc::O_EXCL);
    if fd < 0 {
        crate::restore_errno(errno);
    }
    (fd >= 0).then_some(fd)
}

/// SAFETY: the descriptor is open for the duration of the call.
pub(crate) unsafe fn borrow<'a>(fd: c_int) -> rustix::fd::BorrowedFd<'a> {
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}

/// Whether the file at `path` is in the file table.
unsafe fn is_known(folder: c_int, path: *const c_char) -> bool {
    unsafe { stat_known(folder, path, AtFlags::empty()) }.is_some()
}

/// What the file behind `fd` is, if it is in the file table.
pub(crate) unsafe fn fstat_known(fd: c_int) -> Option<rustix::fs::Stat> {
    session()?;
    let stat = rustix::fs::fstat(unsafe { borrow((fd >= 0).then_some(fd)?) }).ok()?;
    is_in_table(&stat).then_some(stat)
}

/// What the file at `path` is, if it is in the file table.
pub(crate) unsafe fn stat_known(
    folder: c_int,
    path: *const c_char,
    flags: AtFlags,
) -> Option<rustix::fs::Stat> {
    unsafe { stat_at(folder, path, flags) }.filter(is_in_table)
}

unsafe fn stat_at(folder: c_int, path: *const c_char, flags: AtFlags) -> Option<rustix::fs::Stat> {
    session()?;
    let path = unsafe { path_at(path) }?;
    // AT_FDCWD is not a descriptor to borrow; rustix has its own name for it.
    let stat = match folder {
        libc::AT_FDCWD => rustix::fs::statat(rustix::fs::CWD, path, flags),
        folder if folder < 0 => return None,
        folder => rustix::fs::statat(unsafe { borrow(folder) }, path, flags),
    };
    stat.ok()
}

/// Whether the file table may have the file, now or after an open that is under way.
fn may_be_in_table(stat: &rustix::fs::Stat) -> bool {
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    regular && session().is_some_and(|session| session.is_store_device(stat.st_dev))
}

/// Whether the file table has the file. What is no regular file may have got the inode number of
/// one whose record is still there.
pub(crate) fn is_in_table(stat: &rustix::fs::Stat) -> bool {
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    regular && session().is_some_and(|session| session.knows(stat.st_dev, stat.st_ino))
}

/// The path at an address that the program gave; `None` if it is no memory of the program's, or
/// longer than any path.
pub(crate) unsafe fn path_at<'a>(path: *const c_char) -> Option<&'a CStr> {
    let mut length = 0;
    while length < libc::PATH_MAX as usize {
        let at = path.wrapping_add(length).cast::<u8>();
        let page = 4096 - at as usize % 4096;
        if !is_readable(at, page) {
            return None;
        }
        // SAFETY: just found readable.
        let piece = unsafe { core::slice::from_raw_parts(at, page) };
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            let whole = path.cast::<u8>();
            // SAFETY: readable up to its zero.
            let bytes = unsafe { core::slice::from_raw_parts(whole, length + end + 1) };
            return CStr::from_bytes_with_nul(bytes).ok();
        }
        length += page;
    }
    None
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
        let made = OpenFlags::RDWR | OpenFlags::CREATE | OpenFlags::EXCL;
        let flags = made | OpenFlags::from_bits_retain(flags as u32);
        if let Err(errno) = session.opened(fd, flags) {
            unsafe { crate::descriptors::close(fd) };
            return status(Err(errno));
        }
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
        Some(file) => status(file.truncate(size)),
        None => real!(c"ftruncate64"(fd => c_int, size => off_t) -> c_int),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, size: off_t) -> c_int {
    unsafe { ftruncate64(fd, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate64(path: *const c_char, size: off_t) -> c_int {
    let known = unsafe { stat_known(libc::AT_FDCWD, path, AtFlags::empty()) };
    let (Some(session), Some(known), true) = (session(), known, size >= 0) else {
        return real!(c"truncate64"(path => *const c_char, size => off_t) -> c_int);
    };
    // Closing a descriptor of a file ends the locks that the process has on it, so that none is
    // opened for a file that it has open.
    if unsafe { libc::euidaccess(path, libc::W_OK) } == 0
        && let Some(writer) = session.writer(known.st_dev, known.st_ino)
    {
        return status(writer.truncate(size));
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
        Some(file) => status(file.sync(true)),
        None => real!(c"fsync"(fd => c_int) -> c_int),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    match managed(fd) {
        Some(file) => status(file.sync(true)),
        None => real!(c"fdatasync"(fd => c_int) -> c_int),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sync_file_range(fd: c_int, offset: off_t, bytes: off_t, flags: u32) -> c_int {
    // The kernel says whether the range and the flags are possible.
    let result = real!(c"sync_file_range"(fd => c_int, offset => off_t, bytes => off_t, flags => u32) -> c_int);
    match managed(fd) {
        Some(file) if result == 0 && flags != 0 => status(file.sync(false)),
        _ => result,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sync() {
    if let Some(session) = session() {
        session.sync_all(true);
    }
    let _ = real!(c"sync"() -> c_int);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syncfs(fd: c_int) -> c_int {
    let all = session().is_none_or(|session| session.sync_all(true));
    match real!(c"syncfs"(fd => c_int) -> c_int) {
        0 if !all => status(Err(Errno::IO)),
        result => result,
    }
}

/// Passes a call that changes or reads the file below us through once the file is clean.
pub(crate) fn passed(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    match managed(fd) {
        Some(file) => match file.with_clean(call) {
            Ok(result) => result,
            Err(errno) => status(Err(errno)),
        },
        None => call(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
    match managed(fd) {
        Some(file) => {
            let mode = AllocateMode::from_bits_retain(mode as u32);
            status(file.allocate(mode, offset, bytes))
        }
        None => {
            real!(c"fallocate64"(fd => c_int, mode => c_int, offset => off_t, bytes => off_t) -> c_int)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
    unsafe { fallocate64(fd, mode, offset, bytes) }
}

/// This one returns its error. Where the store cannot allocate, the C library writes zeros, behind
/// our back: the file is clean then.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate64(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
    let call =
        || real!(c"posix_fallocate64"(fd => c_int, offset => off_t, bytes => off_t) -> c_int);
    let Some(file) = managed(fd) else { return call() };
    match file.allocate(AllocateMode::empty(), offset, bytes) {
        Ok(()) => 0,
        Err(Errno::OPNOTSUPP) => file.with_clean(call).unwrap_or_else(Errno::raw_os_error),
        Err(errno) => errno.raw_os_error(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
    unsafe { posix_fallocate64(fd, offset, bytes) }
}

/// The kernel judges the call, and takes its own share of the advice; then it is ours.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_fadvise64(
    fd: c_int,
    offset: off_t,
    bytes: off_t,
    advice: c_int,
) -> c_int {
    let result = real!(c"posix_fadvise64"(fd => c_int, offset => off_t, bytes => off_t, advice => c_int) -> c_int);
    let meant = match advice {
        libc::POSIX_FADV_NORMAL => Advice::Normal,
        libc::POSIX_FADV_SEQUENTIAL => Advice::Sequential,
        libc::POSIX_FADV_RANDOM => Advice::Random,
        libc::POSIX_FADV_WILLNEED => Advice::WillNeed,
        libc::POSIX_FADV_DONTNEED => Advice::DontNeed,
        _ => return result,
    };
    if let (0, Some(file)) = (result, managed(fd)) {
        file.advise(offset.max(0) as u64, bytes as u64, meant);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_fadvise(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int {
    unsafe { posix_fadvise64(fd, offset, bytes, advice) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readahead(fd: c_int, offset: off_t, bytes: usize) -> isize {
    let result = real!(c"readahead"(fd => c_int, offset => off_t, bytes => usize) -> isize);
    if let (0, Some(file), 1..) = (result, managed(fd), bytes) {
        file.advise(offset.max(0) as u64, bytes as u64, Advice::WillNeed);
    }
    result
}

/// Requests that a terminal or a pipe gets, too often to look twice.
const FREQUENT: [libc::c_ulong; 3] = [libc::TCGETS, libc::TIOCGWINSZ, libc::FIOCLEX];
/// Sharing of blocks between files: `_IOW(0x94, 9, int)` and `_IOW(0x94, 13, ...)`.
const FICLONE: libc::c_ulong = 0x4004_9409;
const FICLONERANGE: libc::c_ulong = 0x4020_940d;
/// What puts a file behind a loop device, from `linux/loop.h`.
const LOOP_SET_FD: libc::c_ulong = 0x4c00;
const LOOP_CHANGE_FD: libc::c_ulong = 0x4c06;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;

#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int {
    let call =
        || real!(c"ioctl"(fd => c_int, request => libc::c_ulong, argument => *mut c_void) -> c_int);
    if request == FICLONE || request == FICLONERANGE {
        // Buffered blocks cannot be shared; the callers copy instead.
        let source = match request {
            FICLONE => argument as usize as c_int,
            // SAFETY: struct file_clone_range begins with the source descriptor.
            _ if is_readable(argument.cast(), size_of::<i64>()) => unsafe {
                *argument.cast::<i64>() as c_int
            },
            _ => -1,
        };
        if managed(fd).is_some() || managed(source).is_some() {
            return status(Err(Errno::OPNOTSUPP));
        }
        return call();
    }
    if request == libc::FIONREAD
        && let Some(file) = managed(fd)
        && !file.uses_kernel_offset()
    {
        let left = file.seek(0, Whence::Current).and_then(|offset| {
            // As the kernel does: what does not fit into the int is cut off.
            Ok(file.size()?.wrapping_sub(offset) as c_int)
        });
        return status(left.and_then(|left| {
            if !is_writable(argument.cast(), size_of::<c_int>()) {
                return Err(Errno::FAULT);
            }
            // SAFETY: just found writable.
            unsafe { argument.cast::<c_int>().write(left) };
            Ok(())
        }));
    }
    let behind = match request {
        LOOP_SET_FD | LOOP_CHANGE_FD => argument as usize as c_int,
        // SAFETY: struct loop_config begins with the descriptor.
        LOOP_CONFIGURE if is_readable(argument.cast(), size_of::<c_int>()) => unsafe {
            *argument.cast::<c_int>()
        },
        _ => -1,
    };
    if let Some(file) = managed(behind) {
        // From here on the kernel reads and writes the file for the device.
        return file.make_direct(call).unwrap_or_else(|errno| status(Err(errno)));
    }
    if FREQUENT.contains(&request) { call() } else { passed(fd, call) }
}

/// Notes that a call changed the status of the file that `stat` describes.
fn changed(result: c_int, stat: Option<rustix::fs::Stat>) -> c_int {
    if let (0, Some(session), Some(stat)) = (result, session(), stat) {
        session.status_changed(stat.st_dev, stat.st_ino, stat.st_mode);
    }
    result
}

/// Linkers make their output executable after they have closed it.
unsafe fn executable(result: c_int, mode: mode_t, folder: c_int, path: *const c_char) -> c_int {
    if result == 0
        && mode & 0o111 != 0
        && unsafe { is_known(folder, path) }
        && let Some(path) = unsafe { path_at(path) }
    {
        open_to_read(folder, path).iter().for_each(crate::spawn::make_clean);
    }
    result
}

fn open_to_read(folder: c_int, path: &CStr) -> Option<OwnedFd> {
    let flags = OpenFlags::RDONLY | OpenFlags::CLOEXEC | OpenFlags::NONBLOCK;
    let none = rustix::fs::Mode::empty();
    match folder {
        libc::AT_FDCWD => rustix::fs::open(path, flags, none).ok(),
        folder => rustix::fs::openat(unsafe { borrow(folder) }, path, flags, none).ok(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    let result = real!(c"chmod"(path => *const c_char, mode => mode_t) -> c_int);
    changed(result, unsafe { stat_known(libc::AT_FDCWD, path, AtFlags::empty()) });
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
    changed(result, unsafe { stat_known(folder, path, link_flags(flags)) });
    unsafe { executable(result, mode, folder, path) }
}

/// AT_SYMLINK_NOFOLLOW, as far as a call has it.
fn link_flags(flags: c_int) -> AtFlags {
    AtFlags::from_bits_retain(flags as u32) & AtFlags::SYMLINK_NOFOLLOW
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    let result = real!(c"fchmod"(fd => c_int, mode => mode_t) -> c_int);
    changed(result, unsafe { fstat_known(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int {
    let result = real!(c"fchown"(fd => c_int, user => uid_t, group => gid_t) -> c_int);
    changed(result, unsafe { fstat_known(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
    let result = real!(c"chown"(path => *const c_char, user => uid_t, group => gid_t) -> c_int);
    changed(result, unsafe { stat_known(libc::AT_FDCWD, path, AtFlags::empty()) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
    let result = real!(c"lchown"(path => *const c_char, user => uid_t, group => gid_t) -> c_int);
    changed(result, unsafe { stat_known(libc::AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchownat(
    folder: c_int,
    path: *const c_char,
    user: uid_t,
    group: gid_t,
    flags: c_int,
) -> c_int {
    let result = real!(c"fchownat"(folder => c_int, path => *const c_char, user => uid_t, group => gid_t, flags => c_int) -> c_int);
    changed(result, unsafe { stat_known(folder, path, link_flags(flags)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    let call = || real!(c"link"(from => *const c_char, to => *const c_char) -> c_int);
    unsafe { linking(call, Some(from), libc::AT_FDCWD, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let call = || real!(c"linkat"(from_folder => c_int, from => *const c_char, to_folder => c_int, to => *const c_char, flags => c_int) -> c_int);
    let old = (from_folder == to_folder).then_some(from);
    unsafe { linking(call, old, to_folder, to) }
}

/// Makes a call that gives a file the name `path`, and notes that before the caller looks whether the file is in the table.
fn noting_name(path: Option<&CStr>, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if let (0, Some(session), Some(path)) = (result, session(), path) {
        session.name_changed(session.name_changes(), path);
    }
    result
}

/// At the end of a call that has changed the name `path`, before which names had been changed so often.
fn renamed(result: c_int, names: Option<u64>, path: Option<&CStr>) -> c_int {
    if let (0, Some(session), Some(names), Some(path)) = (result, session(), names, path) {
        session.look_for_replaced(names, path);
    }
    result
}

/// How often names were changed.
fn name_changes() -> Option<u64> {
    session().map(|session| session.name_changes())
}

/// Passes a call through that gives a file the name `path`, too.
unsafe fn linking(
    call: impl FnOnce() -> c_int,
    old: Option<*const c_char>,
    folder: c_int,
    path: *const c_char,
) -> c_int {
    let (names, name) = (name_changes(), unsafe { path_at(path) });
    let result = noting_name(name, call);
    let file = unsafe { stat_known(folder, path, AtFlags::SYMLINK_NOFOLLOW) };
    changed(result, file);
    unsafe { named(result, file, old, folder, path) };
    renamed(result, names, name)
}

/// Passes a call through that takes the name `path` away, and notes it if it was the file's last.
unsafe fn removing(folder: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    let names = name_changes();
    let result = unsafe { taking_away(folder, path, call) };
    renamed(result, names, unsafe { path_at(path) })
}

/// The same, of a call at the end of which [`renamed`] is still to come.
unsafe fn taking_away(folder: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    let Some(session) = session() else { return call() };
    let names = session.name_changes();
    let doomed = unsafe { stat_at(folder, path, AtFlags::SYMLINK_NOFOLLOW) };
    let doomed = doomed.filter(may_be_in_table);
    let Some((doomed, name)) = doomed.zip(unsafe { path_at(path) }) else { return call() };
    session.unlinking(&doomed);
    let result = call();
    if result == 0 {
        session.unlinked(&doomed, names, name);
    }
    changed(result, Some(doomed).filter(is_in_table))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let call = || real!(c"unlink"(path => *const c_char) -> c_int);
    unsafe { removing(libc::AT_FDCWD, path, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    let call =
        || real!(c"unlinkat"(folder => c_int, path => *const c_char, flags => c_int) -> c_int);
    unsafe { removing(folder, path, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    let call = || real!(c"remove"(path => *const c_char) -> c_int);
    unsafe { removing(libc::AT_FDCWD, path, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let call = || real!(c"rename"(from => *const c_char, to => *const c_char) -> c_int);
    unsafe { replacing(libc::AT_FDCWD, from, libc::AT_FDCWD, to, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
) -> c_int {
    let call = || real!(c"renameat"(from_folder => c_int, from => *const c_char, to_folder => c_int, to => *const c_char) -> c_int);
    unsafe { replacing(from_folder, from, to_folder, to, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: libc::c_uint,
) -> c_int {
    let call = || real!(c"renameat2"(from_folder => c_int, from => *const c_char, to_folder => c_int, to => *const c_char, flags => libc::c_uint) -> c_int);
    // Without flags the target is replaced; with them it is kept, or refused.
    match flags {
        0 => unsafe { replacing(from_folder, from, to_folder, to, call) },
        _ => {
            let names = name_changes();
            let source = unsafe { Moved::of(from_folder, from, to_folder, to) };
            // Of an exchange.
            let other = unsafe { Moved::of(to_folder, to, from_folder, from) };
            let result = noting_name(unsafe { path_at(to) }, call);
            if flags & libc::RENAME_EXCHANGE != 0 {
                // A process that replaces that name meanwhile has to know, too.
                noting_name(unsafe { path_at(from) }, || result);
            }
            unsafe {
                source.end(result);
                other.end(result);
                if flags & libc::RENAME_EXCHANGE != 0 {
                    renamed(result, names, path_at(from));
                }
                renamed(result, names, path_at(to))
            }
        }
    }
}

/// Files are found again by their names. A scratch file that got another one may be kept for it; what
/// leaves the managed directories turns direct, because no later manager would look for it there.
pub(crate) unsafe fn named(
    result: c_int,
    file: Option<rustix::fs::Stat>,
    old: Option<*const c_char>,
    folder: c_int,
    path: *const c_char,
) -> c_int {
    if let (0, Some(file), Some(session)) = (result, file, session())
        && let Some(path) = unsafe { path_at(path) }
    {
        let identity = Identity { device: file.st_dev, inode: file.st_ino };
        let old = old.and_then(|old| unsafe { path_at(old) });
        if session.named(identity, folder, path, old)
            && let Some(file) = open_to_read(folder, path)
        {
            // An error stays with the file.
            let _ = session.opened_raw(file.as_raw_fd());
            session.forget(file.as_raw_fd());
        }
    }
    result
}

/// What a rename moves.
struct Moved {
    /// A file that may be in the table.
    file: Option<rustix::fs::Stat>,
    /// A directory that lies in a managed one.
    is_folder: bool,
    old: Option<*const c_char>,
    folder: c_int,
    path: *const c_char,
}

impl Moved {
    /// To be asked before the call.
    unsafe fn of(
        from_folder: c_int,
        from: *const c_char,
        folder: c_int,
        path: *const c_char,
    ) -> Moved {
        let stat = unsafe { stat_at(from_folder, from, AtFlags::SYMLINK_NOFOLLOW) };
        let is_folder = stat.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
            && unsafe { is_managed_path(from_folder, from) };
        let old = (from_folder == folder).then_some(from);
        Moved { file: stat.filter(may_be_in_table), is_folder, old, folder, path }
    }

    /// To be told what came of it.
    unsafe fn end(self, result: c_int) -> c_int {
        // Of which files lie in it, only the store knows; it happens rarely.
        if self.is_folder
            && result == 0
            && !unsafe { is_managed_path(self.folder, self.path) }
            && let Some(session) = session()
        {
            session.sync_all(false);
        }
        let file = self.file.filter(is_in_table);
        changed(result, file);
        unsafe { named(result, file, self.old, self.folder, self.path) }
    }
}

unsafe fn is_managed_path(folder: c_int, path: *const c_char) -> bool {
    session()
        .zip(unsafe { path_at(path) })
        .is_some_and(|(session, path)| session.is_managed_path(folder, path))
}

/// A rename takes the name away from what was there, unless both are names of one file.
unsafe fn replacing(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    call: impl FnOnce() -> c_int,
) -> c_int {
    if session().is_none() {
        return call();
    }
    let names = name_changes();
    let source = unsafe { Moved::of(from_folder, from, to_folder, to) };
    let target = unsafe { stat_at(to_folder, to, AtFlags::SYMLINK_NOFOLLOW) };
    let target = target.filter(may_be_in_table);
    let one =
        |(a, b): (rustix::fs::Stat, rustix::fs::Stat)| a.st_ino == b.st_ino && a.st_dev == b.st_dev;
    let result = match target {
        Some(_) if !source.file.zip(target).is_some_and(one) => unsafe {
            taking_away(to_folder, to, call)
        },
        _ => noting_name(unsafe { path_at(to) }, call),
    };
    unsafe {
        source.end(result);
        renamed(result, names, path_at(to))
    }
}
