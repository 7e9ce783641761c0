//! FILE streams. glibc's own stdio never calls the public `write`, so a stream on a managed file
//! is a cookie stream over our functions, with the real descriptor in its `_fileno`: all
//! of stdio (printf, scanf, getline, ungetc, fileno ...) then works on it as it is.

use crate::real::real;
use crate::{descriptors, files, managed, set_errno};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use forebay_client::session;
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use rustix::io::Errno;

/// glibc's `cookie_io_functions_t`.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn __fpurge(stream: *mut FILE);
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, io: CookieFunctions) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// Offset of `_fileno` in `struct _IO_FILE`: public in <bits/types/struct_FILE.h>, and the same on
/// every 64-bit glibc.
const FILENO_AT: usize = 112;
/// `_flags`, and in it: no reading, no writing, appending.
const FLAGS_AT: usize = 0;
const NO_READS: u32 = 0x4;
const NO_WRITES: u32 = 0x8;
const APPENDING: u32 = 0x1000;
/// `_offset`, the position that glibc remembers; -1 is none.
const OFFSET_AT: usize = 144;
/// The function table, behind the 216 bytes of the structure.
const JUMPS_AT: usize = 216;

unsafe extern "C" fn cookie_read(fd: *mut c_void, to: *mut c_char, bytes: size_t) -> ssize_t {
    unsafe { libc::read(fd as usize as c_int, to.cast(), bytes) }
}

unsafe extern "C" fn cookie_write(fd: *mut c_void, from: *const c_char, bytes: size_t) -> ssize_t {
    let mut done = 0;
    while done < bytes {
        let rest = unsafe { from.add(done) };
        match unsafe { libc::write(fd as usize as c_int, rest.cast(), bytes - done) } {
            // glibc takes 0 for an error here, and has no use for -1.
            written if written <= 0 => break,
            written => done += written as usize,
        }
    }
    done as ssize_t
}

unsafe extern "C" fn cookie_seek(fd: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    let fd = fd as usize as c_int;
    match unsafe { libc::lseek64(fd, *offset, whence) } {
        -1 => -1,
        now => {
            unsafe { *offset = now };
            0
        }
    }
}

unsafe extern "C" fn cookie_close(fd: *mut c_void) -> c_int {
    unsafe { descriptors::close(fd as usize as c_int) }
}

/// A stream over descriptor `fd`; null with errno if memory is short or the mode is none.
unsafe fn cookie_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = CookieFunctions {
        read: Some(cookie_read),
        write: Some(cookie_write),
        seek: Some(cookie_seek),
        close: Some(cookie_close),
    };
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        unsafe { field::<c_int>(stream, FILENO_AT).write(fd) };
        COOKIE_JUMPS.store(unsafe { field::<usize>(stream, JUMPS_AT).read() }, Ordering::Release);
    }
    stream
}

unsafe fn field<T>(stream: *mut FILE, at: usize) -> *mut T {
    unsafe { stream.cast::<u8>().add(at).cast() }
}

/// glibc's function table of cookie streams, by which ours are recognized.
static COOKIE_JUMPS: AtomicUsize = AtomicUsize::new(0);

unsafe fn is_cookie_stream(stream: *mut FILE) -> bool {
    let jumps = COOKIE_JUMPS.load(Ordering::Acquire);
    jumps != 0 && unsafe { field::<usize>(stream, JUMPS_AT).read() } == jumps
}

/// The open flags of an fopen mode, or none.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (&first, rest) = mode.split_first()?;
    let rest = rest.split(|&byte| byte == b',').next().unwrap_or(rest);
    let access = match (first, rest.contains(&b'+')) {
        (b'r' | b'w' | b'a', true) => libc::O_RDWR,
        (b'r', false) => libc::O_RDONLY,
        (b'w' | b'a', false) => libc::O_WRONLY,
        _ => return None,
    };
    let creation = match first {
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => 0,
    };
    let exclusive = if rest.contains(&b'x') { libc::O_EXCL } else { 0 };
    let at_exec = if rest.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some(access | creation | exclusive | at_exec)
}

/// The access part of a mode, as fopencookie wants it.
fn plain_mode(flags: c_int, first: u8) -> &'static CStr {
    match (first, flags & libc::O_ACCMODE == libc::O_RDWR) {
        (b'r', false) => c"r",
        (b'r', true) => c"r+",
        (b'w', false) => c"w",
        (b'w', true) => c"w+",
        (_, false) => c"a",
        (_, true) => c"a+",
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let call =
        || real!(c"fopen64"(path => *const c_char, mode => *const c_char) -> usize) as *mut FILE;
    if session().is_none() || path.is_null() || mode.is_null() {
        return call();
    }
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let Some(flags) = flags_of(text) else { return call() };
    let fd = unsafe { files::open64(path, flags, 0o666) };
    if fd < 0 {
        return core::ptr::null_mut();
    }
    let stream = match managed(fd) {
        Some(_) => {
            if text[0] == b'a' && flags & libc::O_ACCMODE == libc::O_WRONLY {
                // So that ftell says where the next byte goes.
                unsafe { libc::lseek64(fd, 0, libc::SEEK_END) };
            }
            unsafe { cookie_stream(fd, plain_mode(flags, text[0]).as_ptr()) }
        }
        None => real!(c"fdopen"(fd => c_int, mode => *const c_char) -> usize) as *mut FILE,
    };
    if stream.is_null() {
        let errno = unsafe { *libc::__errno_location() };
        unsafe { descriptors::close(fd) };
        set_errno(Errno::from_raw_os_error(errno));
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    unsafe { fopen64(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let call = || real!(c"fdopen"(fd => c_int, mode => *const c_char) -> usize) as *mut FILE;
    let Some((session, handle)) = managed(fd) else { return call() };
    if mode.is_null() || session.uses_kernel_offset(handle) {
        return call();
    }
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let now = unsafe { descriptors::fcntl64(fd, libc::F_GETFL, core::ptr::null_mut()) };
    let allows = |flags: &c_int| {
        let (has, wants) = (now & libc::O_ACCMODE, flags & libc::O_ACCMODE);
        has == libc::O_RDWR || has == wants
    };
    let Some(flags) = flags_of(text).filter(allows) else {
        set_errno(Errno::INVAL);
        return core::ptr::null_mut();
    };
    if text[0] == b'a' {
        // As fdopen does: the description appends from now on.
        let append = (now | libc::O_APPEND) as usize as *mut c_void;
        unsafe { descriptors::fcntl64(fd, libc::F_SETFL, append) };
    }
    unsafe { cookie_stream(fd, plain_mode(flags, text[0]).as_ptr()) }
}

/// A cookie stream stays one: what it reads and writes is what its descriptor refers to.
unsafe fn reopen_cookie(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    let old = unsafe { libc::fileno(stream) };
    unsafe { libc::fflush(stream) };
    let flags = unsafe { files::path_at(mode) }.and_then(|mode| flags_of(mode.to_bytes()));
    let Some(flags) = flags else {
        set_errno(Errno::INVAL);
        unsafe { libc::fclose(stream) };
        return core::ptr::null_mut();
    };
    let mut own = [0; 32];
    let path = if path.is_null() { own_path(old, &mut own) } else { path };
    let new = unsafe { files::open64(path, flags, 0o666) };
    if new < 0 {
        let errno = unsafe { *libc::__errno_location() };
        unsafe { libc::fclose(stream) };
        set_errno(Errno::from_raw_os_error(errno));
        return core::ptr::null_mut();
    }
    unsafe {
        __fpurge(stream);
        libc::clearerr(stream);
        libc::dup3(new, old, flags & libc::O_CLOEXEC);
        descriptors::close(new);
        let allowed = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => NO_WRITES,
            libc::O_WRONLY => NO_READS,
            _ => 0,
        };
        let append = if flags & libc::O_APPEND != 0 { APPENDING } else { 0 };
        let place = field::<u32>(stream, FLAGS_AT);
        place.write(place.read() & !(NO_READS | NO_WRITES | APPENDING) | allowed | append);
        field::<i64>(stream, OFFSET_AT).write(-1);
    }
    stream
}

/// The path by which a process finds its own descriptor.
fn own_path(fd: c_int, buffer: &mut [u8; 32]) -> *const c_char {
    use std::io::Write;
    // Shorter than the buffer whatever the number.
    let _ = write!(&mut buffer[..31], "/proc/self/fd/{fd}");
    buffer.as_ptr().cast()
}

/// glibc re-opens inside itself, where we cannot follow: the stream's new file is used through
/// the kernel by everybody.
unsafe fn reopen(stream: *mut FILE, call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    let Some(session) = session() else { return call() };
    let fd = unsafe { libc::fileno(stream) };
    if fd >= 0 {
        unsafe { libc::fflush(stream) };
        session.forget(fd);
    }
    let result = call();
    if !result.is_null() {
        session.opened_raw(unsafe { libc::fileno(result) });
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    if unsafe { is_cookie_stream(stream) } {
        return unsafe { reopen_cookie(path, mode, stream) };
    }
    unsafe {
        reopen(stream, || {
            real!(c"freopen64"(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> usize)
                as *mut FILE
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    unsafe { freopen64(path, mode, stream) }
}

/// Which of the three standard streams are cookie streams already.
static REPLACED: AtomicU32 = AtomicU32::new(0);

/// Replaces the standard streams whose descriptors are managed.
pub(crate) fn start() {
    if session().is_some() {
        for fd in 0..3 {
            redirected(fd);
        }
    }
    STARTED.store(true, Ordering::Release);
}

/// Whether other libraries may have taken copies of the standard streams' pointers.
static STARTED: AtomicBool = AtomicBool::new(false);

/// glibc closes the descriptor of a stream of its own inside itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    if let (Some(session), false) = (session(), stream.is_null())
        && !unsafe { is_cookie_stream(stream) }
    {
        let fd = unsafe { libc::fileno(stream) };
        if managed(fd).is_some() {
            unsafe { libc::fflush(stream) };
            session.forget(fd);
        }
    }
    real!(c"fclose"(stream => *mut FILE) -> c_int)
}

/// Called when `fd` may have become managed: if a standard stream writes to it, that stream must
/// write through us.
pub(crate) fn redirected(fd: c_int) {
    if !(0..3).contains(&fd) {
        return;
    }
    if managed(fd).is_none() {
        // Back on the terminal: as glibc has it there, each line at once.
        let replaced = REPLACED.load(Ordering::Acquire) >> fd & 1 == 1;
        let terminal = || rustix::termios::isatty(unsafe { files::borrow(fd) });
        if fd == 1 && replaced && terminal() {
            unsafe { libc::setvbuf(stdout, core::ptr::null_mut(), libc::_IOLBF, 0) };
        }
        return;
    }
    // C++ streams keep the pointers that they found at start.
    let cpp = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZSt4cout".as_ptr()) };
    if STARTED.load(Ordering::Acquire)
        && !cpp.is_null()
        && let Some((session, handle)) = managed(fd)
    {
        let _ = session.release_to_kernel(handle);
        return;
    }
    if REPLACED.fetch_or(1 << fd, Ordering::AcqRel) >> fd & 1 == 1 {
        return;
    }
    let (variable, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        _ => (&raw mut stderr, c"w"),
    };
    // SAFETY: the C library's own variables, which programs may assign to.
    unsafe {
        let old = variable.read();
        if fd > 0 && !old.is_null() {
            libc::fflush(old);
        }
        let stream = cookie_stream(fd, mode.as_ptr());
        if stream.is_null() {
            REPLACED.fetch_and(!(1 << fd), Ordering::AcqRel);
            return;
        }
        if fd == 2 {
            libc::setvbuf(stream, core::ptr::null_mut(), libc::_IONBF, 0);
        }
        variable.write(stream);
    }
}
