//! FILE streams. glibc's own stdio never calls the public `write`, so a stream on a managed file
//! is a cookie stream over our functions, with the real descriptor in its `_fileno`: all
//! of stdio (printf, scanf, getline, ungetc, fileno ...) then works on it as it is.
//!
//! stdin, stdout and stderr are cookie streams from the start, whatever their descriptors are:
//! a program that keeps their pointers has streams that follow every later dup2.

use crate::file_layout::*;
use crate::real::{aliases, real};
use crate::session;
use crate::{descriptors, errno, files, managed, restore_errno, set_errno};
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use rustix::io::Errno;
use std::sync::OnceLock;

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
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    pub(crate) static mut stdin: *mut FILE;
    pub(crate) static mut stdout: *mut FILE;
    pub(crate) static mut stderr: *mut FILE;
}

/// glibc's `struct _IO_wide_data`, and some bytes more: its size differs from version to version.
type WideData = [u64; 48];

/// That of a stream without any operation so far.
static WIDE_DATA: OnceLock<WideData> = OnceLock::new();

/// What belongs to one of our streams. It is used under the stream's lock.
pub(crate) struct Cookie {
    /// The stream itself.
    stream: *mut FILE,
    /// The descriptor; -1 when a standard stream was closed.
    fd: AtomicI32,
    /// Standard streams are never freed: programs use them after they have closed them.
    standard: bool,
    /// Whether it is line-buffered because its descriptor was a terminal.
    by_terminal: bool,
    /// The buffer that was chosen for it; null if it is glibc's.
    buffer: *mut u8,
    /// `_wide_data` of the stream, for when it becomes one of glibc's own.
    wide: WideData,
}

impl Cookie {
    /// Reads through the descriptor, past the stream's buffer.
    pub(crate) unsafe fn read(&self, to: *mut u8, bytes: usize) -> ssize_t {
        let got = unsafe { libc::read(self.fd.load(Ordering::Relaxed), to.cast(), bytes) };
        self.advance(got.max(0) as usize);
        got
    }

    /// Where glibc has noted the position it goes on: its cookie streams forget that when they
    /// write, and would then seek from where they wrote.
    fn advance(&self, bytes: usize) {
        if !self.stream.is_null() {
            let position = unsafe { &mut *field::<i64>(self.stream, OFFSET_AT) };
            if *position >= 0 {
                *position += bytes as i64;
            }
        }
    }
}

unsafe fn descriptor(cookie: *mut c_void) -> c_int {
    unsafe { &*cookie.cast::<Cookie>() }.fd.load(Ordering::Relaxed)
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, bytes: size_t) -> ssize_t {
    unsafe { libc::read(descriptor(cookie), to.cast(), bytes) }
}

unsafe extern "C" fn cookie_write(
    cookie: *mut c_void,
    from: *const c_char,
    bytes: size_t,
) -> ssize_t {
    let mut done = 0;
    while done < bytes {
        let rest = unsafe { from.add(done) };
        match unsafe { libc::write(descriptor(cookie), rest.cast(), bytes - done) } {
            // glibc takes 0 for an error here, and has no use for -1.
            written if written <= 0 => break,
            written => done += written as usize,
        }
    }
    unsafe { &*cookie.cast::<Cookie>() }.advance(done);
    done as ssize_t
}

unsafe extern "C" fn cookie_seek(
    cookie: *mut c_void,
    offset: *mut off64_t,
    whence: c_int,
) -> c_int {
    match unsafe { libc::lseek64(descriptor(cookie), *offset, whence) } {
        -1 => -1,
        now => {
            unsafe { *offset = now };
            0
        }
    }
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    let result = unsafe { descriptors::close(descriptor(cookie)) };
    unsafe { free_cookie(cookie.cast()) };
    result
}

/// A stream over descriptor `fd`; null with errno if memory is short or the mode is none.
unsafe fn cookie_stream(fd: c_int, mode: *const c_char, standard: bool) -> *mut FILE {
    let functions = CookieFunctions {
        read: Some(cookie_read),
        write: Some(cookie_write),
        seek: Some(cookie_seek),
        close: Some(cookie_close),
    };
    let cookie = unsafe { libc::malloc(size_of::<Cookie>()) }.cast::<Cookie>();
    if cookie.is_null() {
        return core::ptr::null_mut();
    }
    let fresh = Cookie {
        stream: core::ptr::null_mut(),
        fd: AtomicI32::new(fd),
        standard,
        by_terminal: false,
        buffer: core::ptr::null_mut(),
        wide: WIDE_DATA.get().copied().unwrap_or([0; 48]),
    };
    unsafe { cookie.write(fresh) };
    let stream = real!(c"fopencookie"(cookie.cast() => *mut c_void, mode => *const c_char, functions => CookieFunctions) -> usize)
        as *mut FILE;
    if stream.is_null() {
        unsafe { libc::free(cookie.cast()) };
        return stream;
    }
    unsafe {
        (*cookie).stream = stream;
        field::<c_int>(stream, FILENO_AT).write(fd);
        // A cookie stream is one of bytes; ours become so by their first use, as others do.
        field::<c_int>(stream, ORIENTATION_AT).write(0);
        field::<*mut WideData>(stream, WIDE_DATA_AT).write(&raw mut (*cookie).wide);
        COOKIE_READER.store(field::<usize>(stream, READER_AT).read(), Ordering::Relaxed);
        COOKIE_JUMPS.store(field::<usize>(stream, JUMPS_AT).read(), Ordering::Release);
        share_need_of_locks(stream);
        choose_buffer(stream);
    }
    stream
}

/// glibc's own stdin, which no program uses any more.
static GLIBC_STDIN: AtomicPtr<FILE> = AtomicPtr::new(core::ptr::null_mut());

/// glibc locks cookie streams even where there is one thread, because their functions might start
/// others. Ours do not: a stream needs its lock when others do, which is from the first
/// thread on.
unsafe fn share_need_of_locks(stream: *mut FILE) {
    let other = GLIBC_STDIN.load(Ordering::Acquire);
    if !other.is_null() {
        unsafe {
            let needs = field::<u32>(other, FLAGS2_AT).read() & NEEDS_LOCK;
            let flags = field::<u32>(stream, FLAGS2_AT);
            flags.write(flags.read() & !NEEDS_LOCK | needs);
        }
    }
}

/// glibc's function table of cookie streams, and our reading function as they have it: by these
/// ours are recognized.
static COOKIE_JUMPS: AtomicUsize = AtomicUsize::new(0);
static COOKIE_READER: AtomicUsize = AtomicUsize::new(0);

/// What belongs to the stream if it is one of ours.
#[inline]
pub(crate) unsafe fn ours<'a>(stream: *mut FILE) -> Option<&'a mut Cookie> {
    let jumps = COOKIE_JUMPS.load(Ordering::Acquire);
    if stream.is_null() || jumps == 0 {
        return None;
    }
    // The program may have cookie streams too.
    let is_ours = unsafe {
        field::<usize>(stream, JUMPS_AT).read() == jumps
            && field::<usize>(stream, READER_AT).read() == COOKIE_READER.load(Ordering::Relaxed)
    };
    is_ours.then(|| unsafe { &mut **field::<*mut Cookie>(stream, COOKIE_AT) })
}

/// Holds a stream's lock.
pub(crate) struct Locked(*mut FILE);

impl Locked {
    pub(crate) unsafe fn new(stream: *mut FILE) -> Locked {
        unsafe { flockfile(stream) };
        Locked(stream)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        unsafe { funlockfile(self.0) };
    }
}

/// glibc chooses a stream's buffer at first use, as its descriptor is then: of the file system's
/// block size, and line by line on a terminal. For cookie streams it cannot, so we do.
unsafe fn choose_buffer(stream: *mut FILE) {
    /// What glibc takes when it knows nothing, or at most.
    const LARGEST: i64 = 8192;
    let Some(cookie) = (unsafe { ours(stream) }) else { return };
    let fd = cookie.fd.load(Ordering::Relaxed);
    let flags = unsafe { flags_place(stream) };
    let [base, end] = [BUFFER_AT, BUFFER_AT + 8].map(|at| unsafe { field::<*mut u8>(stream, at) });
    let used = [READ_BASE_AT, WRITE_BASE_AT]
        .into_iter()
        .any(|at| !unsafe { field::<*mut u8>(stream, at).read() }.is_null());
    let by_lines = *flags & LINE_BUFFERED != 0 && !cookie.by_terminal;
    let by_program =
        by_lines || *flags & UNBUFFERED != 0 || unsafe { base.read() } != cookie.buffer;
    if used || by_program || fd < 0 {
        return;
    }
    let stat = rustix::fs::fstat(files::borrow(fd)).ok();
    cookie.by_terminal = stat.is_some_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
            && rustix::termios::isatty(files::borrow(fd))
    });
    *flags &= !(LINE_BUFFERED | USER_BUFFER);
    if cookie.by_terminal {
        *flags |= LINE_BUFFERED;
    }
    let wanted = stat.map_or(LARGEST, |stat| stat.st_blksize);
    unsafe { libc::free(cookie.buffer.cast()) };
    cookie.buffer = match wanted {
        1..LARGEST => unsafe { libc::malloc(wanted as usize) }.cast(),
        // glibc's own choice.
        _ => core::ptr::null_mut(),
    };
    unsafe {
        base.write(cookie.buffer);
        end.write(core::ptr::null_mut());
        if !cookie.buffer.is_null() {
            *flags |= USER_BUFFER;
            end.write(cookie.buffer.add(wanted as usize));
        }
    }
}

/// The open flags of an fopen mode, or none.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (&first, rest) = mode.split_first()?;
    // glibc looks at six characters.
    let rest = &rest[..rest.len().min(6)];
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

/// The character set that a mode names.
fn charset_of(mode: &[u8]) -> Option<&[u8]> {
    let mark = b",ccs=";
    let at = mode.windows(mark.len()).position(|piece| piece == mark)?;
    mode[at + mark.len()..].split(|&byte| byte == b',').next()
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

/// So that ftell of a stream that only appends says where the next byte goes.
fn to_the_end(fd: c_int, flags: c_int) {
    if flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE == libc::O_WRONLY {
        unsafe { libc::lseek64(fd, 0, libc::SEEK_END) };
    }
}

/// Closes a descriptor and leaves errno as it is.
fn close_quietly(fd: c_int) {
    let before = errno();
    unsafe { descriptors::close(fd) };
    restore_errno(before);
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
    to_the_end(fd, flags);
    let stream = if charset_of(text).is_some() {
        unsafe { charset_stream(fd, flags, text) }
    } else if managed(fd).is_some() {
        unsafe { cookie_stream(fd, plain_mode(flags, text[0]).as_ptr(), false) }
    } else {
        unsafe { foreign_stream(fd, mode) }
    };
    if stream.is_null() {
        close_quietly(fd);
        return stream;
    }
    unsafe { note_at_exec(stream, flags) };
    stream
}

/// A stream of glibc's own over `fd` in the character set that `mode` names: its fdopen knows none,
/// and ours are of bytes.
unsafe fn charset_stream(fd: c_int, flags: c_int, mode: &[u8]) -> *mut FILE {
    const NAME: usize = 80;
    let mut own = [0u8; NAME + 8];
    let plain = plain_mode(flags, mode[0]).to_bytes();
    let charset = charset_of(mode).unwrap_or_default();
    let parts = [plain, b",ccs=", &charset[..charset.len().min(NAME)]].concat();
    own[..parts.len()].copy_from_slice(&parts);
    let (null, own) = (c"/dev/null".as_ptr(), own.as_ptr().cast::<c_char>());
    if let Some(file) = managed(fd)
        && let Err(errno) = file.release_to_kernel()
    {
        set_errno(errno);
        return core::ptr::null_mut();
    }
    let stream =
        real!(c"fopen64"(null => *const c_char, own => *const c_char) -> usize) as *mut FILE;
    if stream.is_null() {
        return stream;
    }
    unsafe {
        // On `fd` in the place of what it was made with.
        let at_exec = if flags & libc::O_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        if libc::dup3(fd, number(stream), at_exec) < 0 {
            let why = errno();
            real!(c"fclose"(stream => *mut FILE) -> c_int);
            restore_errno(why);
            return core::ptr::null_mut();
        }
        descriptors::close(fd);
        carries(stream, true);
    }
    stream
}

/// Before an operation on wide characters: glibc's cookie streams are of bytes only. One of ours
/// without an orientation becomes a stream of glibc's own, and its file is used through the kernel
/// by every process.
///
/// False, with errno and the stream's mark of an error, if the file cannot be made clean: then it
/// stays as it is, and the operation must not be made.
pub(crate) unsafe fn hand_back(stream: *mut FILE) -> bool {
    // SAFETY: a stream of the program's.
    let Some(cookie) = (unsafe { ours(stream) }) else { return true };
    // SAFETY: ours, and locked; glibc's own stream has the function table of files.
    unsafe {
        let _locked = Locked::new(stream);
        let fd = cookie.fd.load(Ordering::Relaxed);
        if field::<c_int>(stream, ORIENTATION_AT).read() != 0 || ours(stream).is_none() {
            return true;
        }
        // A seek reads ahead, and gives no orientation.
        let pointer = |at: usize| field::<*mut u8>(stream, at).read();
        let ahead = pointer(READ_END_AT).addr() - pointer(READ_POINTER_AT).addr();
        if ahead > 0 && libc::lseek64(fd, -(ahead as off64_t), libc::SEEK_CUR) < 0 {
            *flags_place(stream) |= ERROR_SEEN;
            return false;
        }
        let buffer = pointer(BUFFER_AT);
        field::<[*mut u8; 6]>(stream, POINTERS_AT).write([buffer; 6]);
        field::<i64>(stream, OFFSET_AT).write(-1);
        if let Some(file) = managed(fd)
            && let Err(errno) = file.release_to_kernel()
        {
            set_errno(errno);
            *flags_place(stream) |= ERROR_SEEN;
            return false;
        }
        // glibc takes a buffer of its own, and makes that of wide characters as large.
        if !cookie.buffer.is_null() && buffer == cookie.buffer {
            field::<[usize; 8]>(stream, POINTERS_AT).write([0; 8]);
            *flags_place(stream) &= !USER_BUFFER;
            libc::free(cookie.buffer.cast());
            cookie.buffer = core::ptr::null_mut();
        }
        if cookie.by_terminal {
            *flags_place(stream) &= !LINE_BUFFERED;
        }
        let files = field::<usize>(GLIBC_STDIN.load(Ordering::Acquire), JUMPS_AT).read();
        *flags_place(stream) |= FILE_BUFFER;
        field::<usize>(stream, JUMPS_AT).write(files);
        carries(stream, true);
    }
    true
}

/// What belongs to a stream that was one of ours before [`hand_back`].
unsafe fn formerly_ours<'a>(stream: *mut FILE) -> Option<&'a mut Cookie> {
    let reader = COOKIE_READER.load(Ordering::Relaxed);
    if stream.is_null() || reader == 0 {
        return None;
    }
    // SAFETY: glibc's own streams are longer than a cookie stream.
    unsafe {
        let cookie = field::<*mut Cookie>(stream, COOKIE_AT).read();
        let is_ours = field::<usize>(stream, READER_AT).read() == reader && !cookie.is_null();
        (is_ours && (*cookie).stream == stream).then(|| &mut *cookie)
    }
}

/// glibc's own stream.
unsafe fn foreign_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let stream = real!(c"fdopen"(fd => c_int, mode => *const c_char) -> usize) as *mut FILE;
    unsafe { carries(stream, true) };
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let Some(file) = managed(fd) else { return unsafe { foreign_stream(fd, mode) } };
    if mode.is_null() || file.uses_kernel_offset() {
        return unsafe { foreign_stream(fd, mode) };
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
    if text[0] == b'a' && now & libc::O_APPEND == 0 {
        // As fdopen does: the description appends from now on.
        let append = (now | libc::O_APPEND) as usize as *mut c_void;
        unsafe { descriptors::fcntl64(fd, libc::F_SETFL, append) };
        to_the_end(fd, flags);
    }
    unsafe { cookie_stream(fd, plain_mode(flags, text[0]).as_ptr(), false) }
}

/// glibc makes these files without a name; ours is one too, and buffered.
unsafe fn temporary(call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    if session().is_some() {
        let flags = libc::O_RDWR | libc::O_TMPFILE | libc::O_EXCL;
        let fd = unsafe { files::open64(c"/tmp".as_ptr(), flags, 0o600) };
        if fd >= 0 && managed(fd).is_some() {
            let stream = unsafe { cookie_stream(fd, c"w+".as_ptr(), false) };
            if stream.is_null() {
                close_quietly(fd);
            }
            return stream;
        }
        if fd >= 0 {
            unsafe { descriptors::close(fd) };
        }
    }
    let stream = call();
    unsafe { carries(stream, true) };
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tmpfile64() -> *mut FILE {
    unsafe { temporary(|| real!(c"tmpfile64"() -> usize) as *mut FILE) }
}

/// A cookie stream stays one: what it reads and writes is what its descriptor refers to.
unsafe fn reopen_ours(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    cookie: &mut Cookie,
) -> *mut FILE {
    let locked = unsafe { Locked::new(stream) };
    let old = cookie.fd.load(Ordering::Relaxed);
    unsafe { libc::fflush(stream) };
    let text = unsafe { files::text_at(mode) }.map(CStr::to_bytes).unwrap_or_default();
    let mut own = [0; 32];
    let path = if path.is_null() { own_path(old, &mut own) } else { path };
    let new = match flags_of(text) {
        Some(flags) => unsafe { files::open64(path, flags, 0o666) },
        None => {
            set_errno(Errno::INVAL);
            -1
        }
    };
    if new < 0 {
        let before = errno();
        drop(locked);
        unsafe { fclose(stream) };
        restore_errno(before);
        return core::ptr::null_mut();
    }
    let flags = flags_of(text).unwrap_or_default();
    unsafe {
        if old < 0 {
            cookie.fd.store(new, Ordering::Relaxed);
            field::<c_int>(stream, FILENO_AT).write(new);
        } else if new != old {
            note_at_exec(stream, flags);
            let at_exec = *field::<u32>(stream, FLAGS2_AT) & CLOSED_AT_EXEC != 0;
            libc::dup3(new, old, if at_exec { libc::O_CLOEXEC } else { 0 });
            descriptors::close(new);
        }
        forget_buffer(stream);
        let allowed = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => NO_WRITES,
            libc::O_WRONLY => NO_READS,
            _ => 0,
        };
        let append = if flags & libc::O_APPEND != 0 { APPENDING } else { 0 };
        let place = flags_place(stream);
        let state = NO_READS | NO_WRITES | APPENDING | EOF_SEEN | ERROR_SEEN | WRITING;
        *place = *place & !(state | LINE_BUFFERED | UNBUFFERED) | allowed | append;
        field::<i64>(stream, OFFSET_AT).write(-1);
        field::<c_int>(stream, ORIENTATION_AT).write(0);
        cookie.by_terminal = false;
        to_the_end(cookie.fd.load(Ordering::Relaxed), flags);
        choose_buffer(stream);
    }
    stream
}

/// Notes that a stream was opened with `e`, as glibc does.
unsafe fn note_at_exec(stream: *mut FILE, flags: c_int) {
    if flags & libc::O_CLOEXEC != 0 {
        unsafe { *field::<u32>(stream, FLAGS2_AT) |= CLOSED_AT_EXEC };
    }
}

/// Takes a stream's buffer away: it has to be chosen anew, as at first use.
unsafe fn forget_buffer(stream: *mut FILE) {
    unsafe {
        __fpurge(stream);
        // Frees it if it is glibc's, and takes the one byte inside the structure instead.
        libc::setvbuf(stream, core::ptr::null_mut(), libc::_IONBF, 0);
        field::<[usize; 8]>(stream, POINTERS_AT).write([0; 8]);
        *flags_place(stream) &= !USER_BUFFER;
        if let Some(cookie) = ours(stream) {
            libc::free(cookie.buffer.cast());
            cookie.buffer = core::ptr::null_mut();
        }
    }
}

/// The path by which a process finds its own descriptor.
fn own_path(fd: c_int, buffer: &mut [u8; 32]) -> *const c_char {
    use std::io::Write;
    // Shorter than the buffer whatever the number.
    let _ = write!(&mut buffer[..31], "/proc/self/fd/{fd}");
    buffer.as_ptr().cast()
}

/// glibc re-opens inside itself, where we cannot follow: the stream's new file is used through
/// the kernel by every process.
unsafe fn reopen_foreign(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    call: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    let Some(session) = session() else { return call() };
    let fd = unsafe { number(stream) };
    if fd >= 0 {
        unsafe { libc::fflush(stream) };
        session.forget(fd);
    }
    let text = unsafe { files::text_at(mode) }.map(CStr::to_bytes).unwrap_or_default();
    let flags = flags_of(text).unwrap_or_default();
    if flags & (libc::O_TRUNC | libc::O_EXCL) == libc::O_TRUNC && !path.is_null() {
        // What is buffered has to go too. An error will be glibc's as well.
        let errno = errno();
        let cut = unsafe { files::open64(path, flags & !libc::O_CREAT, 0) };
        if cut >= 0 {
            unsafe { descriptors::close(cut) };
        }
        restore_errno(errno);
    }
    session.opening(|| {
        let result = call();
        if !result.is_null() {
            let fd = unsafe { number(result) };
            if let Err(errno) = session.opened_raw(fd) {
                real!(c"fclose"(result => *mut FILE) -> c_int);
                set_errno(errno);
                return core::ptr::null_mut();
            }
            // glibc looked for the end before the file was clean.
            to_the_end(fd, flags);
        }
        result
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    if unsafe { files::text_at(mode) }.is_some_and(|mode| charset_of(mode.to_bytes()).is_some()) {
        // To reopen it ends its orientation, and nothing of the old file stays in its buffer.
        // SAFETY: a stream of the program's.
        unsafe {
            if ours(stream).is_some() && field::<c_int>(stream, ORIENTATION_AT).read() != 0 {
                libc::fflush(stream);
                field::<c_int>(stream, ORIENTATION_AT).write(0);
            }
            if !hand_back(stream) {
                return core::ptr::null_mut();
            }
        }
    }
    if let Some(cookie) = unsafe { ours(stream) } {
        return unsafe { reopen_ours(path, mode, stream, cookie) };
    }
    unsafe {
        reopen_foreign(path, mode, stream, || {
            real!(c"freopen64"(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> usize)
                as *mut FILE
        })
    }
}

/// Makes the standard streams ours, before a program can have a copy of their pointers.
pub(crate) fn start() {
    if session().is_none() {
        return;
    }
    // SAFETY: glibc's own stream, which no program has used yet.
    let wide = unsafe {
        GLIBC_STDIN.store(stdin, Ordering::Release);
        field::<*const WideData>(stdin, WIDE_DATA_AT).read().read()
    };
    let _ = WIDE_DATA.set(wide);
    let all = [
        (0, &raw mut stdin, c"r"),
        (1, &raw mut stdout, c"w"),
        // Last, because the exit flushes the newest stream first.
        (2, &raw mut stderr, c"w"),
    ];
    for (fd, variable, mode) in all {
        // SAFETY: the C library's own variables, which programs may assign to.
        unsafe {
            let stream = cookie_stream(fd, mode.as_ptr(), true);
            if stream.is_null() {
                continue;
            }
            if fd == 2 {
                libc::setvbuf(stream, core::ptr::null_mut(), libc::_IONBF, 0);
            }
            variable.write(stream);
        }
    }
}

/// Called when `fd` refers to something else than before.
pub(crate) fn redirected(fd: c_int) {
    if carries_foreign(fd)
        && let Some(file) = managed(fd)
    {
        // glibc's stream reads and writes it inside itself.
        let _ = file.release_to_kernel();
    }
    if let 0 | 1 = fd {
        unsafe { choose_buffer(if fd == 0 { stdin } else { stdout }) };
    }
}

/// Descriptors that carry a stream of glibc's own, one bit each.
static FOREIGN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn carries_foreign(fd: c_int) -> bool {
    let word = FOREIGN.get(fd as usize / 64);
    word.is_some_and(|word| word.load(Ordering::Acquire) >> (fd % 64) & 1 == 1)
}

/// Notes that glibc's own `stream` was opened, or is about to be closed.
pub(crate) unsafe fn carries(stream: *mut FILE, opened: bool) {
    if stream.is_null() || session().is_none() {
        return;
    }
    let fd = unsafe { number(stream) };
    if let Some(word) = FOREIGN.get(fd as usize / 64) {
        match opened {
            true => word.fetch_or(1 << (fd % 64), Ordering::AcqRel),
            false => word.fetch_and(!(1 << (fd % 64)), Ordering::AcqRel),
        };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    let call = || real!(c"fclose"(stream => *mut FILE) -> c_int);
    match unsafe { ours(stream) } {
        Some(cookie) if cookie.standard => unsafe { close_standard(stream, cookie) },
        Some(_) => call(),
        None => {
            // SAFETY: a stream of the program's, which ends here.
            let former = unsafe { formerly_ours(stream) };
            if let Some(cookie) = &former
                && cookie.standard
            {
                return unsafe { close_standard_foreign(stream) };
            }
            if let (Some(session), false) = (session(), stream.is_null()) {
                unsafe { carries(stream, false) };
                // glibc closes the descriptor of a stream of its own inside itself.
                let fd = unsafe { number(stream) };
                if managed(fd).is_some() {
                    unsafe { libc::fflush(stream) };
                    session.forget(fd);
                }
            }
            let result = call();
            if let Some(cookie) = former {
                // SAFETY: the stream that used it is gone.
                unsafe { free_cookie(cookie) };
            }
            result
        }
    }
}

/// As [`close_standard`], of one that was handed back.
unsafe fn close_standard_foreign(stream: *mut FILE) -> c_int {
    // SAFETY: a stream of the program's, locked.
    unsafe {
        let _locked = Locked::new(stream);
        let fd = number(stream);
        if fd < 0 {
            set_errno(Errno::BADF);
            return libc::EOF;
        }
        carries(stream, false);
        let flushed = libc::fflush(stream);
        field::<c_int>(stream, FILENO_AT).write(-1);
        *flags_place(stream) |= NO_READS | NO_WRITES;
        if descriptors::close(fd) == 0 && flushed == 0 { 0 } else { libc::EOF }
    }
}

/// Frees what belonged to a stream.
unsafe fn free_cookie(cookie: *mut Cookie) {
    // SAFETY: both from malloc, and not used any more.
    unsafe {
        libc::free((*cookie).buffer.cast());
        libc::free(cookie.cast());
    }
}

/// As glibc does with its static streams: it stays, closed.
unsafe fn close_standard(stream: *mut FILE, cookie: &mut Cookie) -> c_int {
    let _locked = unsafe { Locked::new(stream) };
    let fd = cookie.fd.load(Ordering::Relaxed);
    if fd < 0 {
        set_errno(Errno::BADF);
        return libc::EOF;
    }
    let writing = unsafe { *flags_place(stream) } & WRITING != 0;
    let flushed = if writing { unsafe { libc::fflush(stream) } } else { 0 };
    let before = errno();
    unsafe {
        forget_buffer(stream);
        *flags_place(stream) |= NO_READS | NO_WRITES;
        *flags_place(stream) &= !(WRITING | LINE_BUFFERED | UNBUFFERED);
        field::<c_int>(stream, FILENO_AT).write(-1);
    }
    cookie.fd.store(-1, Ordering::Relaxed);
    let closed = unsafe { descriptors::close(fd) };
    if flushed != 0 {
        restore_errno(before);
    }
    if flushed == 0 && closed == 0 { 0 } else { libc::EOF }
}

/// glibc writes through a stream of its own on a copy of the descriptor, so that stderr keeps
/// having no orientation.
#[unsafe(no_mangle)]
unsafe extern "C" fn perror(text: *const c_char) {
    let stream = unsafe { stderr };
    let call = || {
        let _ = real!(c"perror"(text => *const c_char) -> c_int);
    };
    if unsafe { ours(stream) }.is_none() {
        return call();
    }
    let _locked = unsafe { Locked::new(stream) };
    let orientation = unsafe { field::<c_int>(stream, ORIENTATION_AT) };
    let before = unsafe { orientation.replace(-1) };
    call();
    unsafe { orientation.write(before) };
}

/// glibc writes inside itself: to memory first, then.
#[unsafe(no_mangle)]
unsafe extern "C" fn backtrace_symbols_fd(calls: *const *mut c_void, number: c_int, fd: c_int) {
    use rustix::fd::AsRawFd;
    let call = |fd: c_int| {
        let _ = real!(c"backtrace_symbols_fd"(calls => *const *mut c_void, number => c_int, fd => c_int) -> c_int);
    };
    let memory = rustix::fs::memfd_create(c"backtrace", rustix::fs::MemfdFlags::CLOEXEC);
    let (Some(_), Ok(memory)) = (managed(fd), memory) else { return call(fd) };
    call(memory.as_raw_fd());
    let mut buffer = [0u8; 1024];
    let mut at = 0;
    while let Ok(bytes @ 1..) = rustix::io::pread(&memory, &mut buffer[..], at) {
        at += bytes as u64;
        unsafe { libc::write(fd, buffer.as_ptr().cast(), bytes) };
    }
}

aliases! {
    "C" fopen = fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    "C" tmpfile = tmpfile64() -> *mut FILE;
    "C" freopen = freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
}
