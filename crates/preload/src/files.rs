//! open and its forms, temporary files, sizes and syncs.

use crate::errno::status;
use crate::real::{aliases, real};
use crate::session::{managed, parents_of_bare, session};
use core::ffi::CStr;
use forebay_client::user_memory::{UserPath, is_readable, is_writable};
use forebay_client::{Advice, AllocateMode, OpenFlags, PathAt, Whence};
use libc::{c_char, c_int, c_void, gid_t, mode_t, off_t, uid_t};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// Opens through `call`.
///
/// # Safety
/// As of [`UserPath::at`], of `path`.
unsafe fn open_by(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl Fn(c_int) -> c_int,
) -> c_int {
    // A vforked child needs no session to open what is there and no regular file.
    if let Some(parents) = parents_of_bare()
        // SAFETY: the program's path.
        && parents.has_other_kind(unsafe { path_at(folder, path) })
    {
        return call(flags);
    }
    let Some(session) = session() else { return call(flags) };
    let before = crate::errno::errno();
    let call = |flags: OpenFlags| descriptor(call(flags.bits() as c_int));
    // SAFETY: the program's path.
    let at = unsafe { path_at(folder, path) };
    match session.open_with(at, OpenFlags::from_bits_retain(flags as u32), call) {
        Ok(fd) => {
            // The kernel may have been asked twice.
            crate::errno::restore_errno(before);
            fd
        }
        Err(errno) => failed(errno),
    }
}

/// The path that a call names.
///
/// # Safety
/// As of [`UserPath::at`], of `path`.
pub(crate) unsafe fn path_at<'a>(folder: c_int, path: *const c_char) -> PathAt<'a> {
    // SAFETY: a program that changes a path during a call gets what it asks for.
    PathAt { folder, path: unsafe { UserPath::at(path) } }
}

/// A path that starts at the current directory.
///
/// # Safety
/// As of [`UserPath::at`], of `path`.
pub(crate) unsafe fn path_here<'a>(path: *const c_char) -> PathAt<'a> {
    // SAFETY: the program's path.
    unsafe { path_at(libc::AT_FDCWD, path) }
}

/// The text that the program gave; `None` if it is no memory of the program's, or longer than any
/// path.
///
/// # Safety
/// As of [`UserPath::at`], of `text`.
pub(crate) unsafe fn text_at<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the program's path.
    unsafe { path_here(text) }.path.get()
}

/// What a call of the C library's returned: a descriptor, or why there is none.
fn descriptor(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(crate::errno::last_error()) } else { Ok(result) }
}

/// The same of a call without a value.
fn done(result: c_int) -> Result<(), Errno> {
    descriptor(result).map(|_| ())
}

/// -1 with errno.
fn failed(errno: Errno) -> c_int {
    status(Err(errno))
}

/// `fd` for system calls.
pub(crate) fn borrow<'a>(fd: c_int) -> rustix::fd::BorrowedFd<'a> {
    // SAFETY: used for a call at once. A program may close any descriptor meanwhile: the call then
    // fails.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the program's path.
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
pub(crate) unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the program's path.
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
unsafe extern "C" fn creat(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the program's call, in another form.
    unsafe { open64(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's call, in another form.
    unsafe { open64(path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's call, in another form.
    unsafe { open64(path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's call, in another form.
    unsafe { openat64(folder, path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's call, in another form.
    unsafe { openat64(folder, path, flags, 0) }
}

/// mkstemp and its kin open inside the C library; the descriptor is taken over afterwards.
fn take_over(fd: c_int, flags: c_int) -> c_int {
    let (Some(session), true) = (session(), fd >= 0) else { return fd };
    let made = OpenFlags::RDWR | OpenFlags::CREATE | OpenFlags::EXCL;
    let flags = made | OpenFlags::from_bits_retain(flags as u32);
    session.take_over(fd, flags).unwrap_or_else(failed)
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
unsafe extern "C" fn truncate64(path: *const c_char, size: off_t) -> c_int {
    // SAFETY: the program's path.
    let here = unsafe { path_here(path) };
    match session().and_then(|session| session.truncate_path(here.path, size)) {
        Some(result) => status(result),
        None => real!(c"truncate64"(path => *const c_char, size => off_t) -> c_int),
    }
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
pub(crate) unsafe extern "C" fn readahead(fd: c_int, offset: off_t, bytes: usize) -> isize {
    let result = real!(c"readahead"(fd => c_int, offset => off_t, bytes => usize) -> isize);
    if let (0, Some(file), 1..) = (result, managed(fd), bytes) {
        file.advise(offset.max(0) as u64, bytes as u64, Advice::WillNeed);
    }
    result
}

/// Requests that neither read nor change what a file holds: those that a terminal or a pipe gets,
/// and those of attributes, `FS_IOC_GETFLAGS`, `FS_IOC32_GETFLAGS`, `FS_IOC_GETVERSION` and
/// `FS_IOC_FSGETXATTR`, which git, tar, cp and rsync make for each file.
const BESIDE_CONTENT: [libc::c_ulong; 9] = [
    libc::TCGETS,
    libc::TIOCGWINSZ,
    libc::FIOCLEX,
    libc::FIONCLEX,
    libc::FIONBIO,
    0x8008_6601,
    0x8004_6601,
    0x8008_7601,
    0x801c_581f,
];
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
    if BESIDE_CONTENT.contains(&request) { call() } else { passed(fd, call) }
}

/// Makes a call that changes owner or mode of the file at `path`; `mode` is what it sets, if it
/// does.
///
/// # Safety
/// As of [`UserPath::at`], of `path`.
unsafe fn changing(
    folder: c_int,
    path: *const c_char,
    flags: AtFlags,
    mode: Option<mode_t>,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match session() {
        Some(session) => {
            // SAFETY: the program's path.
            let at = unsafe { path_at(folder, path) };
            status(session.change_status(at, flags, mode, || done(call())))
        }
        None => call(),
    }
}

fn changing_fd(fd: c_int, mode: Option<mode_t>, call: impl FnOnce() -> c_int) -> c_int {
    match session() {
        Some(session) => status(session.change_status_of(fd, mode, || done(call()))),
        None => call(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    let call = || real!(c"chmod"(path => *const c_char, mode => mode_t) -> c_int);
    // SAFETY: the program's path.
    unsafe { changing(libc::AT_FDCWD, path, AtFlags::empty(), Some(mode), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmodat(
    folder: c_int,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
) -> c_int {
    let call = || real!(c"fchmodat"(folder => c_int, path => *const c_char, mode => mode_t, flags => c_int) -> c_int);
    // SAFETY: the program's path.
    unsafe { changing(folder, path, link_flags(flags), Some(mode), call) }
}

/// Makes a call of fchmodat2's kind, which with AT_EMPTY_PATH may be about a descriptor.
///
/// # Safety
/// As of [`UserPath::at`], of the path.
pub(crate) unsafe fn change_mode_at(
    (folder, path): (c_int, *const c_char),
    mode: mode_t,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's path.
    let is_empty = || unsafe { path_at(folder, path) }.path.get().is_some_and(CStr::is_empty);
    match flags & libc::AT_EMPTY_PATH != 0 && is_empty() {
        true => changing_fd(folder, Some(mode), call),
        // SAFETY: the program's path.
        false => unsafe { changing(folder, path, link_flags(flags), Some(mode), call) },
    }
}

/// AT_SYMLINK_NOFOLLOW, as far as a call has it.
fn link_flags(flags: c_int) -> AtFlags {
    AtFlags::from_bits_retain(flags as u32) & AtFlags::SYMLINK_NOFOLLOW
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    changing_fd(fd, Some(mode), || real!(c"fchmod"(fd => c_int, mode => mode_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int {
    changing_fd(fd, None, || real!(c"fchown"(fd => c_int, user => uid_t, group => gid_t) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
    let call = || real!(c"chown"(path => *const c_char, user => uid_t, group => gid_t) -> c_int);
    // SAFETY: the program's path.
    unsafe { changing(libc::AT_FDCWD, path, AtFlags::empty(), None, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
    let call = || real!(c"lchown"(path => *const c_char, user => uid_t, group => gid_t) -> c_int);
    // SAFETY: the program's path.
    unsafe { changing(libc::AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW, None, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fchownat(
    folder: c_int,
    path: *const c_char,
    user: uid_t,
    group: gid_t,
    flags: c_int,
) -> c_int {
    let call = || real!(c"fchownat"(folder => c_int, path => *const c_char, user => uid_t, group => gid_t, flags => c_int) -> c_int);
    // SAFETY: the program's path.
    unsafe { changing(folder, path, link_flags(flags), None, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    let call = || real!(c"link"(from => *const c_char, to => *const c_char) -> c_int);
    let Some(session) = session() else { return call() };
    // SAFETY: the program's paths.
    let (from, to) = unsafe { (path_here(from), path_here(to)) };
    status(session.link(from, to, || done(call())))
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
    let Some(session) = session() else { return call() };
    // SAFETY: the program's paths.
    let (from, to) = unsafe { (path_at(from_folder, from), path_at(to_folder, to)) };
    status(session.link(from, to, || done(call())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlink(target: *const c_char, path: *const c_char) -> c_int {
    linking(|| real!(c"symlink"(target => *const c_char, path => *const c_char) -> c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlinkat(target: *const c_char, folder: c_int, path: *const c_char) -> c_int {
    linking(
        || real!(c"symlinkat"(target => *const c_char, folder => c_int, path => *const c_char) -> c_int),
    )
}

/// Makes a call that makes a symbolic link.
fn linking(call: impl FnOnce() -> c_int) -> c_int {
    let made = call();
    if made == 0
        && let Some(session) = session()
    {
        session.way_changed();
    }
    made
}

/// Makes a call that removes the name `path`.
///
/// # Safety
/// As of [`UserPath::at`], of `path`.
unsafe fn removing(folder: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    let Some(session) = session() else { return call() };
    // SAFETY: the program's path.
    let at = unsafe { path_at(folder, path) };
    status(session.unlink(at, || done(call())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let call = || real!(c"unlink"(path => *const c_char) -> c_int);
    // SAFETY: the program's path.
    unsafe { removing(libc::AT_FDCWD, path, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    let call =
        || real!(c"unlinkat"(folder => c_int, path => *const c_char, flags => c_int) -> c_int);
    // SAFETY: the program's path.
    unsafe { removing(folder, path, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: *const c_char) -> c_int {
    let call = || real!(c"remove"(path => *const c_char) -> c_int);
    // SAFETY: the program's path.
    unsafe { removing(libc::AT_FDCWD, path, call) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let call = || real!(c"rename"(from => *const c_char, to => *const c_char) -> c_int);
    let Some(session) = session() else { return call() };
    // SAFETY: the program's paths.
    let (from, to) = unsafe { (path_here(from), path_here(to)) };
    status(session.rename(from, to, || done(call())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
) -> c_int {
    let call = || real!(c"renameat"(from_folder => c_int, from => *const c_char, to_folder => c_int, to => *const c_char) -> c_int);
    let Some(session) = session() else { return call() };
    // SAFETY: the program's paths.
    let (from, to) = unsafe { (path_at(from_folder, from), path_at(to_folder, to)) };
    status(session.rename(from, to, || done(call())))
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
    let Some(session) = session() else { return call() };
    // SAFETY: the program's paths.
    let (from, to) = unsafe { (path_at(from_folder, from), path_at(to_folder, to)) };
    let exchanges = flags & libc::RENAME_EXCHANGE != 0;
    // Without flags the target is replaced; with them it is kept, or refused.
    status(match flags {
        0 => session.rename(from, to, || done(call())),
        _ => session.rename_keeping(from, to, exchanges, || done(call())),
    })
}

aliases! {
    "C" pub(crate) openat = openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    "C" open = open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    "C" creat64 = creat(path: *const c_char, mode: mode_t) -> c_int;
    "C" ftruncate = ftruncate64(fd: c_int, size: off_t) -> c_int;
    "C" truncate = truncate64(path: *const c_char, size: off_t) -> c_int;
    "C" fallocate = fallocate64(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int;
    "C" posix_fallocate = posix_fallocate64(fd: c_int, offset: off_t, bytes: off_t) -> c_int;
    "C" posix_fadvise = posix_fadvise64(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int;
}
