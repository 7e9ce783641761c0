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
use core::cell::{Cell, UnsafeCell};
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
    fn ftrylockfile(stream: *mut FILE) -> c_int;
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
    stream: Cell<*mut FILE>,
    /// The descriptor; -1 when a standard stream was closed.
    fd: AtomicI32,
    /// Standard streams are never freed: programs use them after they have closed them.
    standard: bool,
    /// Whether it is line-buffered because its descriptor was a terminal.
    by_terminal: Cell<bool>,
    /// The buffer that was chosen for it; null if it is glibc's.
    buffer: Cell<*mut u8>,
    /// `_wide_data` of the stream, for when it becomes one of glibc's own.
    wide: UnsafeCell<WideData>,
}

impl Cookie {
    fn descriptor(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Reads through the descriptor, past the stream's buffer.
    pub(crate) unsafe fn read(&self, to: *mut u8, bytes: usize) -> ssize_t {
        // SAFETY: the caller's buffer.
        let got = unsafe { libc::read(self.descriptor(), to.cast(), bytes) };
        self.advance(got.max(0) as usize);
        got
    }

    /// Where glibc has noted the position it goes on: its cookie streams forget that when they
    /// write, and would then seek from where they wrote.
    fn advance(&self, bytes: usize) {
        // SAFETY: the cookie's own stream, which is locked while it reads or writes.
        let Some(stream) = (unsafe { Stream::at(self.stream.get()) }) else { return };
        let position = stream.get(OFFSET_AT);
        if position >= 0 {
            stream.set(OFFSET_AT, position + bytes as i64);
        }
    }

    /// Frees the buffer that was chosen, from which the stream was just taken, for `new`.
    fn change_buffer(&self, new: *mut u8) {
        let old = self.buffer.replace(new);
        // SAFETY: from malloc, or null; the stream uses it no more.
        unsafe { libc::free(old.cast()) };
    }
}

/// The cookie that glibc hands to the functions below.
unsafe fn cookie_of<'a>(cookie: *mut c_void) -> &'a Cookie {
    // SAFETY: made by `cookie_stream`, and freed only by the last of these functions.
    unsafe { &*cookie.cast::<Cookie>() }
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, bytes: size_t) -> ssize_t {
    // SAFETY: glibc's cookie, and its buffer or the program's.
    unsafe { libc::read(cookie_of(cookie).descriptor(), to.cast(), bytes) }
}

unsafe extern "C" fn cookie_write(
    cookie: *mut c_void,
    from: *const c_char,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: glibc's cookie.
    let cookie = unsafe { cookie_of(cookie) };
    let mut done = 0;
    while done < bytes {
        let (rest, left) = (from.wrapping_add(done), bytes - done);
        // SAFETY: what is left of glibc's buffer or the program's.
        match unsafe { libc::write(cookie.descriptor(), rest.cast(), left) } {
            // glibc takes 0 for an error here, and has no use for -1.
            written if written <= 0 => break,
            written => done += written as usize,
        }
    }
    cookie.advance(done);
    done as ssize_t
}

unsafe extern "C" fn cookie_seek(
    cookie: *mut c_void,
    offset: *mut off64_t,
    whence: c_int,
) -> c_int {
    // SAFETY: glibc's cookie, and a variable of its own.
    let (cookie, offset) = unsafe { (cookie_of(cookie), &mut *offset) };
    match seek(cookie.descriptor(), *offset, whence) {
        -1 => -1,
        now => {
            *offset = now;
            0
        }
    }
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: glibc's cookie.
    let result = close(unsafe { cookie_of(cookie) }.descriptor());
    // SAFETY: its stream ends here, and glibc frees the rest.
    unsafe { free_cookie(cookie.cast()) };
    result
}

fn seek(fd: c_int, offset: off64_t, whence: c_int) -> off64_t {
    // SAFETY: takes numbers only.
    unsafe { libc::lseek64(fd, offset, whence) }
}

/// Closes a descriptor that belongs to a stream, or was opened for one.
fn close(fd: c_int) -> c_int {
    // SAFETY: takes a number only.
    unsafe { descriptors::close(fd) }
}

/// Makes `new` the same as `old`.
fn duplicate(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: takes numbers only.
    unsafe { libc::dup3(old, new, flags) }
}

fn allocate(bytes: usize) -> *mut c_void {
    // SAFETY: takes any number.
    unsafe { libc::malloc(bytes) }
}

fn flush(stream: Stream) -> c_int {
    // SAFETY: an open stream; it takes the lock itself.
    unsafe { libc::fflush(stream.as_ptr()) }
}

/// Frees the stream's buffer if it is glibc's, and takes the one byte inside the structure instead.
fn unbuffer(stream: Stream) {
    // SAFETY: an open stream; it takes the lock itself.
    unsafe { libc::setvbuf(stream.as_ptr(), core::ptr::null_mut(), libc::_IONBF, 0) };
}

/// A stream over descriptor `fd`; null with errno if memory is short or the mode is none.
fn cookie_stream(fd: c_int, mode: &CStr, standard: bool) -> *mut FILE {
    let functions = CookieFunctions {
        read: Some(cookie_read),
        write: Some(cookie_write),
        seek: Some(cookie_seek),
        close: Some(cookie_close),
    };
    let place = allocate(size_of::<Cookie>()).cast::<Cookie>();
    if place.is_null() {
        return core::ptr::null_mut();
    }
    let fresh = Cookie {
        stream: Cell::new(core::ptr::null_mut()),
        fd: AtomicI32::new(fd),
        standard,
        by_terminal: Cell::new(false),
        buffer: Cell::new(core::ptr::null_mut()),
        wide: UnsafeCell::new(WIDE_DATA.get().copied().unwrap_or([0; 48])),
    };
    // SAFETY: room for a cookie, from malloc.
    let cookie = unsafe {
        place.write(fresh);
        &*place
    };
    let made = real!(c"fopencookie"(place.cast() => *mut c_void, mode.as_ptr() => *const c_char, functions => CookieFunctions) -> usize)
        as *mut FILE;
    // SAFETY: just made, and the program does not have it yet.
    let Some(stream) = (unsafe { Stream::at(made) }) else {
        // SAFETY: no stream has it.
        unsafe { free_cookie(place) };
        return made;
    };
    cookie.stream.set(made);
    stream.set(FILENO_AT, fd);
    // A cookie stream is one of bytes; ours become so by their first use, as others do.
    stream.set(ORIENTATION_AT, 0);
    stream.set(WIDE_DATA_AT, cookie.wide.get().cast());
    COOKIE_READER.store(stream.get(READER_AT), Ordering::Relaxed);
    COOKIE_JUMPS.store(stream.get(JUMPS_AT), Ordering::Release);
    share_need_of_locks(stream);
    choose_buffer(stream);
    made
}

/// glibc's own stdin, which no program uses any more.
static GLIBC_STDIN: AtomicPtr<FILE> = AtomicPtr::new(core::ptr::null_mut());

fn glibc_stdin() -> Option<Stream<'static>> {
    // SAFETY: null, or a static of glibc's, of which only what does not change is read: its
    // function table, and in share_need_of_locks a flag that glibc sets once.
    unsafe { Stream::at(GLIBC_STDIN.load(Ordering::Acquire)) }
}

/// glibc locks cookie streams even where there is one thread, because their functions might start
/// others. Ours do not: a stream needs its lock when others do, which is from the first
/// thread on.
fn share_need_of_locks(stream: Stream) {
    if let Some(other) = glibc_stdin() {
        let needs = other.get(FLAGS2_AT) & NEEDS_LOCK;
        stream.set(FLAGS2_AT, stream.get(FLAGS2_AT) & !NEEDS_LOCK | needs);
    }
}

/// glibc's function table of cookie streams, and our reading function as they have it: by these
/// ours are recognized.
static COOKIE_JUMPS: AtomicUsize = AtomicUsize::new(0);
static COOKIE_READER: AtomicUsize = AtomicUsize::new(0);

/// What belongs to the stream if it is one of ours.
#[inline]
pub(crate) fn ours<'a>(stream: Stream<'a>) -> Option<&'a Cookie> {
    let jumps = COOKIE_JUMPS.load(Ordering::Acquire);
    // The program may have cookie streams too.
    let is_ours = jumps != 0
        && stream.get(JUMPS_AT) == jumps
        && stream.get(READER_AT) == COOKIE_READER.load(Ordering::Relaxed);
    // SAFETY: only `cookie_stream` makes streams with this function, and their cookies live as long
    // as they.
    is_ours.then(|| unsafe { &*stream.get(COOKIE_AT).cast::<Cookie>() })
}

/// Holds a stream's lock.
pub(crate) struct Locked<'a>(Stream<'a>);

impl<'a> Locked<'a> {
    pub(crate) fn new(stream: Stream<'a>) -> Locked<'a> {
        // SAFETY: an open stream.
        unsafe { flockfile(stream.as_ptr()) };
        Locked(stream)
    }

    /// `None` if another thread holds it.
    fn at_once(stream: Stream<'a>) -> Option<Locked<'a>> {
        // SAFETY: an open stream.
        let locked = unsafe { ftrylockfile(stream.as_ptr()) } == 0;
        locked.then(|| Locked(stream))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: an open stream, which this thread has locked.
        unsafe { funlockfile(self.0.as_ptr()) };
    }
}

/// glibc chooses a stream's buffer at first use, as its descriptor is then: of the file system's
/// block size, and line by line on a terminal. For cookie streams it cannot, so we do.
fn choose_buffer(stream: Stream) {
    /// What glibc takes when it knows nothing, or at most.
    const LARGEST: i64 = 8192;
    let Some(cookie) = ours(stream) else { return };
    let fd = cookie.descriptor();
    let flags = stream.get(FLAGS_AT);
    let used = [READ_BASE_AT, WRITE_BASE_AT].into_iter().any(|at| !stream.get(at).is_null());
    let by_lines = flags & LINE_BUFFERED != 0 && !cookie.by_terminal.get();
    let other_buffer = stream.get(BUFFER_AT) != cookie.buffer.get();
    let by_program = by_lines || flags & UNBUFFERED != 0 || other_buffer;
    if used || by_program || fd < 0 {
        return;
    }
    let stat = rustix::fs::fstat(files::borrow(fd)).ok();
    let is_terminal = stat.is_some_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
            && rustix::termios::isatty(files::borrow(fd))
    });
    cookie.by_terminal.set(is_terminal);
    let wanted = stat.map_or(LARGEST, |stat| stat.st_blksize);
    let buffer = match wanted {
        1..LARGEST => allocate(wanted as usize).cast::<u8>(),
        // glibc's own choice.
        _ => core::ptr::null_mut(),
    };
    let (end, whose) = match buffer.is_null() {
        true => (core::ptr::null_mut(), 0),
        false => (buffer.wrapping_add(wanted as usize), USER_BUFFER),
    };
    let by_lines = if is_terminal { LINE_BUFFERED } else { 0 };
    stream.set(FLAGS_AT, flags & !(LINE_BUFFERED | USER_BUFFER) | by_lines | whose);
    stream.set(BUFFER_AT, buffer);
    stream.set(BUFFER_END_AT, end);
    cookie.change_buffer(buffer);
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
        seek(fd, 0, libc::SEEK_END);
    }
}

/// Closes a descriptor and leaves errno as it is.
fn close_quietly(fd: c_int) {
    let before = errno();
    close(fd);
    restore_errno(before);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let call =
        || real!(c"fopen64"(path => *const c_char, mode => *const c_char) -> usize) as *mut FILE;
    if session().is_none() || path.is_null() || mode.is_null() {
        return call();
    }
    // SAFETY: the program's text, not null.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let Some(flags) = flags_of(text) else { return call() };
    // SAFETY: the program's path.
    let fd = unsafe { files::open64(path, flags, 0o666) };
    if fd < 0 {
        return core::ptr::null_mut();
    }
    to_the_end(fd, flags);
    let stream = if charset_of(text).is_some() {
        charset_stream(fd, flags, text)
    } else if managed(fd).is_some() {
        cookie_stream(fd, plain_mode(flags, text[0]), false)
    } else {
        // SAFETY: the program's mode.
        unsafe { foreign_stream(fd, mode) }
    };
    // SAFETY: just made, and the program does not have it yet.
    match unsafe { Stream::at(stream) } {
        Some(stream) => note_at_exec(stream, flags),
        None => close_quietly(fd),
    }
    stream
}

/// A stream of glibc's own over `fd` in the character set that `mode` names: its fdopen knows none,
/// and ours are of bytes.
fn charset_stream(fd: c_int, flags: c_int, mode: &[u8]) -> *mut FILE {
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
    let made = real!(c"fopen64"(null => *const c_char, own => *const c_char) -> usize) as *mut FILE;
    // SAFETY: just made, and the program does not have it yet.
    let stream = unsafe { Stream::at(made) };
    let Some(opened) = stream else { return made };
    // On `fd` in the place of what it was made with.
    let at_exec = if flags & libc::O_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    if duplicate(fd, opened.get(FILENO_AT), at_exec) < 0 {
        let why = errno();
        real!(c"fclose"(made => *mut FILE) -> c_int);
        restore_errno(why);
        return core::ptr::null_mut();
    }
    close(fd);
    carries(stream, true);
    made
}

/// Before an operation on wide characters: glibc's cookie streams are of bytes only. One of ours
/// without an orientation becomes a stream of glibc's own, and its file is used through the kernel
/// by every process.
///
/// False, with errno and the stream's mark of an error, if the file cannot be made clean: then it
/// stays as it is, and the operation must not be made.
pub(crate) unsafe fn hand_back(stream: *mut FILE) -> bool {
    // SAFETY: a stream of the program's; it is locked below, and then looked at again.
    let Some(stream) = (unsafe { Stream::at(stream) }) else { return true };
    let (Some(cookie), Some(of_files)) = (ours(stream), glibc_stdin()) else { return true };
    let _locked = Locked::new(stream);
    let fd = cookie.descriptor();
    if stream.get(ORIENTATION_AT) != 0 || ours(stream).is_none() {
        return true;
    }
    // A seek reads ahead, and gives no orientation.
    let ahead = stream.get(READ_END_AT).addr() - stream.get(READ_POINTER_AT).addr();
    if ahead > 0 && seek(fd, -(ahead as off64_t), libc::SEEK_CUR) < 0 {
        stream.raise(ERROR_SEEN);
        return false;
    }
    let buffer = stream.get(BUFFER_AT);
    stream.set(POSITIONS_AT, [buffer; 6]);
    stream.set(OFFSET_AT, -1);
    if let Some(file) = managed(fd)
        && let Err(errno) = file.release_to_kernel()
    {
        set_errno(errno);
        stream.raise(ERROR_SEEN);
        return false;
    }
    // glibc takes a buffer of its own, and makes that of wide characters as large.
    if !cookie.buffer.get().is_null() && buffer == cookie.buffer.get() {
        stream.set(POINTERS_AT, [core::ptr::null_mut(); 8]);
        stream.lower(USER_BUFFER);
        cookie.change_buffer(core::ptr::null_mut());
    }
    if cookie.by_terminal.get() {
        stream.lower(LINE_BUFFERED);
    }
    stream.raise(FILE_BUFFER);
    // glibc's own stream has the function table of files.
    stream.set(JUMPS_AT, of_files.get(JUMPS_AT));
    carries(Some(stream), true);
    true
}

/// What belongs to a stream that was one of ours before [`hand_back`].
fn formerly_ours<'a>(stream: Stream<'a>) -> Option<&'a Cookie> {
    let reader = COOKIE_READER.load(Ordering::Relaxed);
    let cookie = stream.get(COOKIE_AT).cast::<Cookie>();
    if reader == 0 || stream.get(READER_AT) != reader || cookie.is_null() {
        return None;
    }
    // SAFETY: a stream of glibc's has its lock there, or other data of the library's, which are no
    // function of ours; only `cookie_stream` makes streams with that one, and their cookies live as
    // long as they.
    let cookie = unsafe { &*cookie };
    (cookie.stream.get() == stream.as_ptr()).then_some(cookie)
}

/// glibc's own stream.
unsafe fn foreign_stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let stream = real!(c"fdopen"(fd => c_int, mode => *const c_char) -> usize) as *mut FILE;
    // SAFETY: just made, or null.
    carries(unsafe { Stream::at(stream) }, true);
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if mode.is_null() || managed(fd).is_none_or(|file| file.uses_kernel_offset()) {
        // SAFETY: the program's mode.
        return unsafe { foreign_stream(fd, mode) };
    }
    // SAFETY: the program's text, not null.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    // SAFETY: this command takes no argument.
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
        // SAFETY: the argument of this command is a number.
        unsafe { descriptors::fcntl64(fd, libc::F_SETFL, append) };
        to_the_end(fd, flags);
    }
    cookie_stream(fd, plain_mode(flags, text[0]), false)
}

/// glibc makes these files without a name; ours is one too, and buffered.
fn temporary(call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    if session().is_some() {
        let flags = libc::O_RDWR | libc::O_TMPFILE | libc::O_EXCL;
        // SAFETY: a path of ours.
        let fd = unsafe { files::open64(c"/tmp".as_ptr(), flags, 0o600) };
        if fd >= 0 && managed(fd).is_some() {
            let stream = cookie_stream(fd, c"w+", false);
            if stream.is_null() {
                close_quietly(fd);
            }
            return stream;
        }
        if fd >= 0 {
            close(fd);
        }
    }
    let stream = call();
    // SAFETY: just made, or null.
    carries(unsafe { Stream::at(stream) }, true);
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tmpfile64() -> *mut FILE {
    temporary(|| real!(c"tmpfile64"() -> usize) as *mut FILE)
}

/// A cookie stream stays one: what it reads and writes is what its descriptor refers to. False,
/// with errno, if the file cannot be opened.
unsafe fn reopen_ours(
    path: *const c_char,
    mode: *const c_char,
    stream: Stream,
    cookie: &Cookie,
) -> bool {
    let _locked = Locked::new(stream);
    let old = cookie.descriptor();
    flush(stream);
    // SAFETY: the program's mode.
    let text = unsafe { files::text_at(mode) }.map(CStr::to_bytes).unwrap_or_default();
    let Some(flags) = flags_of(text) else {
        set_errno(Errno::INVAL);
        return false;
    };
    let mut own = [0; 32];
    let path = if path.is_null() { own_path(old, &mut own) } else { path };
    // SAFETY: the program's path, or our own, which ends with a zero.
    let new = unsafe { files::open64(path, flags, 0o666) };
    if new < 0 {
        return false;
    }
    if old < 0 {
        cookie.fd.store(new, Ordering::Relaxed);
        stream.set(FILENO_AT, new);
    } else if new != old {
        note_at_exec(stream, flags);
        let at_exec = stream.get(FLAGS2_AT) & CLOSED_AT_EXEC != 0;
        duplicate(new, old, if at_exec { libc::O_CLOEXEC } else { 0 });
        close(new);
    }
    forget_buffer(stream);
    let allowed = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => NO_WRITES,
        libc::O_WRONLY => NO_READS,
        _ => 0,
    };
    let append = if flags & libc::O_APPEND != 0 { APPENDING } else { 0 };
    let state = NO_READS | NO_WRITES | APPENDING | EOF_SEEN | ERROR_SEEN | WRITING;
    stream.lower(state | LINE_BUFFERED | UNBUFFERED);
    stream.raise(allowed | append);
    stream.set(OFFSET_AT, -1);
    stream.set(ORIENTATION_AT, 0);
    cookie.by_terminal.set(false);
    to_the_end(cookie.descriptor(), flags);
    choose_buffer(stream);
    true
}

/// Notes that a stream was opened with `e`, as glibc does.
fn note_at_exec(stream: Stream, flags: c_int) {
    if flags & libc::O_CLOEXEC != 0 {
        stream.set(FLAGS2_AT, stream.get(FLAGS2_AT) | CLOSED_AT_EXEC);
    }
}

/// Takes a locked stream's buffer away: it has to be chosen anew, as at first use.
fn forget_buffer(stream: Stream) {
    // SAFETY: an open stream.
    unsafe { __fpurge(stream.as_ptr()) };
    unbuffer(stream);
    stream.set(POINTERS_AT, [core::ptr::null_mut(); 8]);
    stream.lower(USER_BUFFER);
    if let Some(cookie) = ours(stream) {
        cookie.change_buffer(core::ptr::null_mut());
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
    stream: Stream,
    call: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    let Some(session) = session() else { return call() };
    let fd = stream.get(FILENO_AT);
    if fd >= 0 {
        flush(stream);
        session.forget(fd);
    }
    // SAFETY: the program's mode.
    let text = unsafe { files::text_at(mode) }.map(CStr::to_bytes).unwrap_or_default();
    let flags = flags_of(text).unwrap_or_default();
    if flags & (libc::O_TRUNC | libc::O_EXCL) == libc::O_TRUNC && !path.is_null() {
        // What is buffered has to go too. An error will be glibc's as well.
        let errno = errno();
        // SAFETY: the program's path.
        let cut = unsafe { files::open64(path, flags & !libc::O_CREAT, 0) };
        if cut >= 0 {
            close(cut);
        }
        restore_errno(errno);
    }
    session.opening(|| {
        let result = call();
        // SAFETY: null, or the stream that the program gave, open again.
        if let Some(stream) = unsafe { Stream::at(result) } {
            let fd = stream.get(FILENO_AT);
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
    let call = || {
        real!(c"freopen64"(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> usize)
            as *mut FILE
    };
    // SAFETY: a stream of the program's.
    let Some(given) = (unsafe { Stream::at(stream) }) else { return call() };
    // SAFETY: the program's mode.
    let text = unsafe { files::text_at(mode) };
    if text.is_some_and(|mode| charset_of(mode.to_bytes()).is_some()) {
        // To reopen it ends its orientation, and nothing of the old file stays in its buffer.
        if ours(given).is_some() {
            let _locked = Locked::new(given);
            if given.get(ORIENTATION_AT) != 0 {
                flush(given);
                given.set(ORIENTATION_AT, 0);
            }
        }
        // SAFETY: a stream of the program's.
        if !unsafe { hand_back(stream) } {
            return core::ptr::null_mut();
        }
    }
    let Some(cookie) = ours(given) else {
        // SAFETY: the program's path and mode.
        return unsafe { reopen_foreign(path, mode, given, call) };
    };
    // SAFETY: the program's path and mode.
    if unsafe { reopen_ours(path, mode, given, cookie) } {
        return stream;
    }
    let before = errno();
    // SAFETY: a stream of the program's, which ends when it cannot be reopened.
    unsafe { fclose(stream) };
    restore_errno(before);
    core::ptr::null_mut()
}

/// Makes the standard streams ours, before a program can have a copy of their pointers.
pub(crate) fn start() {
    if session().is_none() {
        return;
    }
    // SAFETY: glibc's own stream and what belongs to it, which no program has used yet.
    let wide = unsafe {
        GLIBC_STDIN.store(stdin, Ordering::Release);
        Stream::at(stdin).map(|own| own.get(WIDE_DATA_AT).cast::<WideData>().read())
    };
    if let Some(wide) = wide {
        let _ = WIDE_DATA.set(wide);
    }
    let all = [
        (0, &raw mut stdin, c"r"),
        (1, &raw mut stdout, c"w"),
        // Last, because the exit flushes the newest stream first.
        (2, &raw mut stderr, c"w"),
    ];
    for (fd, variable, mode) in all {
        let stream = cookie_stream(fd, mode, true);
        // SAFETY: just made, and the program does not have it yet.
        let Some(made) = (unsafe { Stream::at(stream) }) else { continue };
        if fd == 2 {
            unbuffer(made);
        }
        // SAFETY: the C library's own variables, which programs may assign to.
        unsafe { variable.write(stream) };
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
    // SAFETY: streams of the program's, locked below.
    let standard = unsafe {
        match fd {
            0 => Stream::at(stdin),
            1 => Stream::at(stdout),
            _ => None,
        }
    };
    // One that another thread holds is in use, and keeps its buffer.
    if let Some(stream) = standard
        && ours(stream).is_some()
        && let Some(_locked) = Locked::at_once(stream)
    {
        choose_buffer(stream);
    }
}

/// Descriptors that carry a stream of glibc's own, one bit each.
static FOREIGN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn carries_foreign(fd: c_int) -> bool {
    let word = FOREIGN.get(fd as usize / 64);
    word.is_some_and(|word| word.load(Ordering::Acquire) >> (fd % 64) & 1 == 1)
}

/// Notes that glibc's own `stream` was opened, or is about to be closed.
pub(crate) fn carries(stream: Option<Stream>, opened: bool) {
    let (Some(stream), Some(_)) = (stream, session()) else { return };
    let fd = stream.get(FILENO_AT);
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
    // SAFETY: a stream of the program's, which ends here.
    let Some(given) = (unsafe { Stream::at(stream) }) else { return call() };
    match ours(given) {
        Some(cookie) if cookie.standard => return close_standard(given, cookie),
        Some(_) => return call(),
        None => {}
    }
    let former = formerly_ours(given);
    if former.is_some_and(|cookie| cookie.standard) {
        return close_standard_foreign(given);
    }
    if let Some(session) = session() {
        carries(Some(given), false);
        // glibc closes the descriptor of a stream of its own inside itself.
        let fd = given.get(FILENO_AT);
        if managed(fd).is_some() {
            flush(given);
            session.forget(fd);
        }
    }
    let former = former.map(core::ptr::from_ref);
    let result = call();
    if let Some(cookie) = former {
        // SAFETY: the stream that used it is gone.
        unsafe { free_cookie(cookie.cast_mut()) };
    }
    result
}

/// As [`close_standard`], of one that was handed back.
fn close_standard_foreign(stream: Stream) -> c_int {
    let _locked = Locked::new(stream);
    let fd = stream.get(FILENO_AT);
    if fd < 0 {
        set_errno(Errno::BADF);
        return libc::EOF;
    }
    carries(Some(stream), false);
    let flushed = flush(stream);
    stream.set(FILENO_AT, -1);
    stream.raise(NO_READS | NO_WRITES);
    if close(fd) == 0 && flushed == 0 { 0 } else { libc::EOF }
}

/// Frees what belonged to a stream.
unsafe fn free_cookie(cookie: *mut Cookie) {
    // SAFETY: both from malloc, and not used any more.
    unsafe {
        libc::free((*cookie).buffer.get().cast());
        libc::free(cookie.cast());
    }
}

/// As glibc does with its static streams: it stays, closed.
fn close_standard(stream: Stream, cookie: &Cookie) -> c_int {
    let _locked = Locked::new(stream);
    let fd = cookie.descriptor();
    if fd < 0 {
        set_errno(Errno::BADF);
        return libc::EOF;
    }
    let writing = stream.get(FLAGS_AT) & WRITING != 0;
    let flushed = if writing { flush(stream) } else { 0 };
    let before = errno();
    forget_buffer(stream);
    stream.raise(NO_READS | NO_WRITES);
    stream.lower(WRITING | LINE_BUFFERED | UNBUFFERED);
    stream.set(FILENO_AT, -1);
    cookie.fd.store(-1, Ordering::Relaxed);
    let closed = close(fd);
    if flushed != 0 {
        restore_errno(before);
    }
    if flushed == 0 && closed == 0 { 0 } else { libc::EOF }
}

/// glibc writes through a stream of its own on a copy of the descriptor, so that stderr keeps
/// having no orientation.
#[unsafe(no_mangle)]
unsafe extern "C" fn perror(text: *const c_char) {
    let call = || {
        let _ = real!(c"perror"(text => *const c_char) -> c_int);
    };
    // SAFETY: a stream of the program's, locked below.
    let stream = unsafe { Stream::at(stderr) };
    let Some(stream) = stream.filter(|&stream| ours(stream).is_some()) else { return call() };
    let _locked = Locked::new(stream);
    let before = stream.get(ORIENTATION_AT);
    stream.set(ORIENTATION_AT, -1);
    call();
    stream.set(ORIENTATION_AT, before);
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
        // SAFETY: as many bytes of our buffer as were read.
        unsafe { libc::write(fd, buffer.as_ptr().cast(), bytes) };
    }
}

aliases! {
    "C" fopen = fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    "C" tmpfile = tmpfile64() -> *mut FILE;
    "C" freopen = freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
}
