//! The C library: `include/forebay/forebay.h` says what each function does.
//!
//! It has no session of its own. The one of the process is the preload library's, which exports a
//! table of functions; without that the functions of files are the kernel's, and those that only
//! Forebay can answer say so. So a program works wherever it is started, and a process never has
//! two sessions. See docs/design/capi.md.
//!
//! # Safety
//! Each exported symbol is `unsafe` on the conditions of its description in the header: pointers
//! are null or valid. Handles may be anything.

#![cfg(target_os = "linux")]

pub mod actions;
mod flushes;
mod handles;
mod kernel;
pub mod phase;
pub mod records;
mod report;
mod session;

use crate::handles::OpenFile;
use crate::kernel::Named;
use crate::report::{code, fail, failed};
use crate::session::services;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::num::NonZeroU64;
use core::sync::atomic::Ordering;
use forebay_client::services::{
    self, ExtentNow, NOT_MANAGED, PinNow, PoolNow, Services, TierNow, UnsafeNow,
};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::Advice;
use rustix::io::Errno;

/// `FOREBAY_API_VERSION` of this library.
const API_VERSION: c_int = 4;

/// `FOREBAY_REQUIRE`: a start fails where the process does not run under Forebay.
const REQUIRE: c_uint = 1;

/// What a program gets to know of the pool: `struct forebay_pool_info`.
#[repr(C)]
struct PoolInfo {
    size: usize,
    now: PoolNow,
}

/// `struct forebay_tier_info`.
#[repr(C)]
struct TierInfo {
    size: usize,
    now: TierNow,
}

/// `struct forebay_safety_info`.
#[repr(C)]
struct SafetyInfo {
    size: usize,
    memory_bytes: u64,
    tier_bytes: u64,
    place: c_int,
    is_buffered: c_int,
}

/// `struct forebay_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    offset: i64,
    bytes: i64,
}

/// `FOREBAY_WHERE_...`: where the least safe bytes are.
mod place {
    use core::ffi::c_int;
    pub const MEMORY: c_int = 0;
    pub const TIER: c_int = 1;
    pub const STORE: c_int = 2;
}

/// Says that a function needs Forebay.
fn not_running(function: &str) -> c_int {
    fail(
        code::NOT_RUNNING,
        format_args!(
            "{function}(): this process does not run under Forebay; start it with \
             `forebay run -- PROGRAM`, and do not take LD_PRELOAD out of its environment"
        ),
    )
}

fn null(function: &str, argument: &str) -> c_int {
    fail(-libc::EINVAL, format_args!("{function}(): {argument} is NULL"))
}

fn borrow<'a>(fd: RawFd) -> Result<BorrowedFd<'a>, Errno> {
    // SAFETY: used for a call at once; it may be none any more, and the call then fails.
    if fd >= 0 { Ok(unsafe { BorrowedFd::borrow_raw(fd) }) } else { Err(Errno::BADF) }
}

/// Closes a descriptor of this library's.
fn close_now(fd: RawFd) -> c_int {
    match services() {
        Some(services) => (services.close)(fd),
        None => kernel::close(fd),
    }
}

/// Why the C library's last function of this thread has failed.
fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Calls `act` with the table; what a file that is not buffered gives where there is none.
fn ask(act: impl FnOnce(&Services) -> c_int) -> c_int {
    services().map_or(NOT_MANAGED, act)
}

/// Fills in as much of a caller's struct as the caller knows: its first field says how long it is.
///
/// # Safety
/// `to` is null or a struct whose first field is its size.
unsafe fn fill<T>(function: &str, to: *mut T, make: impl FnOnce() -> Result<T, c_int>) -> c_int {
    if to.is_null() {
        return null(function, "the struct to be filled in");
    }
    // SAFETY: as the caller says.
    let size = unsafe { to.cast::<usize>().read() };
    if size < size_of::<usize>() || size > 1 << 20 {
        return fail(
            -libc::EINVAL,
            format_args!(
                "{function}(): set the field `size` to sizeof of the struct before the call; it is {size}"
            ),
        );
    }
    let made = match make() {
        Ok(made) => MaybeUninit::new(made),
        Err(code) => return code,
    };
    let head = size_of::<usize>();
    let known = size_of::<T>().min(size);
    // SAFETY: within both, and behind the size, which stays.
    unsafe {
        let (from, to) = (made.as_ptr().cast::<u8>(), to.cast::<u8>());
        core::ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
        // What this library does not know yet.
        to.add(known).write_bytes(0, size - known);
    }
    0
}

/// What a caller has set of a struct whose first field says how long it is; the rest is `usual`.
///
/// # Safety
/// `from` is null or such a struct. Any bytes are a value of `T`.
unsafe fn given<T: Copy>(
    function: &str,
    begins: &str,
    from: *const c_void,
    usual: T,
) -> Result<T, c_int> {
    if from.is_null() {
        return Err(null(function, "the struct"));
    }
    // SAFETY: as the caller says.
    let size = unsafe { from.cast::<usize>().read() };
    if size < size_of::<usize>() || size > 1 << 20 {
        return Err(fail(
            -libc::EINVAL,
            format_args!("{function}(): begin the struct with {begins}; its size is {size}"),
        ));
    }
    let mut given = usual;
    let known = size_of::<T>().min(size);
    // SAFETY: the caller's struct is as long as it says.
    unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut given).cast(), known) };
    Ok(given)
}

/// The result of a call with a handle.
fn with_file(file: *mut c_void, act: impl FnOnce(&OpenFile) -> c_int) -> c_int {
    match handles::file(file) {
        Ok(file) => act(&file),
        Err(code) => code,
    }
}

/// An offset and a length of the caller's.
fn range_of(function: &str, offset: i64, bytes: i64) -> Result<(u64, u64), c_int> {
    match (u64::try_from(offset), u64::try_from(bytes)) {
        (Ok(from), Ok(length)) if offset.checked_add(bytes).is_some() => Ok((from, length)),
        _ => Err(fail(
            -libc::EINVAL,
            format_args!("{function}(): {bytes} bytes at offset {offset} are no part of a file"),
        )),
    }
}

fn not_buffered(function: &str, fd: RawFd) -> c_int {
    if services().is_none() {
        return not_running(function);
    }
    fail(
        code::NOT_BUFFERED,
        format_args!(
            "{function}(): {} is no file that Forebay buffers; `forebay explain PATH` says why",
            Named(fd)
        ),
    )
}

#[unsafe(no_mangle)]
extern "C" fn forebay_api_version() -> c_int {
    API_VERSION
}

#[unsafe(no_mangle)]
extern "C" fn forebay_strerror(code: c_int) -> *const c_char {
    report::describe(code)
}

#[unsafe(no_mangle)]
extern "C" fn forebay_last_message() -> *const c_char {
    report::last_message()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_start(flags: c_uint, session: *mut *mut c_void) -> c_int {
    if session.is_null() {
        return null("forebay_start", "session");
    }
    // SAFETY: the caller's to write.
    unsafe { session.write(core::ptr::null_mut()) };
    if flags & !REQUIRE != 0 {
        return fail(
            -libc::EINVAL,
            format_args!("forebay_start(): {flags:#x} has flags that this version does not know"),
        );
    }
    if flags & REQUIRE != 0 && services().is_none() {
        return not_running("forebay_start");
    }
    match handles::begin_session() {
        // SAFETY: the caller's to write.
        Ok(made) => unsafe {
            session.write(made);
            0
        },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_end(session: *mut c_void) -> c_int {
    match handles::end_session(session, close_now) {
        errno if (-4095..0).contains(&errno) => {
            failed(errno, format_args!("forebay_end(): closing the session's files"))
        }
        code => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_is_active(session: *mut c_void) -> c_int {
    match handles::session(session) {
        Ok(_session) => services().is_some().into(),
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_pool(session: *mut c_void, info: *mut c_void) -> c_int {
    let _session = match handles::session(session) {
        Ok(session) => session,
        Err(code) => return code,
    };
    let make = || {
        let mut now = MaybeUninit::<PoolNow>::uninit();
        // SAFETY: `now` is written to.
        match ask(|services| unsafe { (services.pool)(now.as_mut_ptr()) }) {
            // SAFETY: it was written.
            0 => Ok(PoolInfo { size: 0, now: unsafe { now.assume_init() } }),
            _ => Err(not_running("forebay_pool")),
        }
    };
    // SAFETY: the caller's struct.
    unsafe { fill("forebay_pool", info.cast::<PoolInfo>(), make) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_tier(session: *mut c_void, number: c_int, info: *mut c_void) -> c_int {
    let _session = match handles::session(session) {
        Ok(session) => session,
        Err(code) => return code,
    };
    let make = || {
        let mut now = MaybeUninit::<TierNow>::uninit();
        let number_ = u32::try_from(number).unwrap_or(u32::MAX);
        // SAFETY: `now` is written to.
        match ask(|services| unsafe { (services.tier)(number_, now.as_mut_ptr()) }) {
            // SAFETY: it was written.
            0 => Ok(TierInfo { size: 0, now: unsafe { now.assume_init() } }),
            NOT_MANAGED => Err(not_running("forebay_tier")),
            errno => Err(fail(
                errno,
                format_args!(
                    "forebay_tier(): there is no tier {number}; forebay_pool() says how many there are"
                ),
            )),
        }
    };
    // SAFETY: the caller's struct.
    unsafe { fill("forebay_tier", info.cast::<TierInfo>(), make) }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_flush_all(session: *mut c_void, level: c_int) -> c_int {
    match handles::session(session).and_then(|_| flushes::level_of(level)) {
        Ok(level) => flushes::flush_all(level, None),
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_wait_all(session: *mut c_void, level: c_int, timeout_ms: i64) -> c_int {
    match handles::session(session).and_then(|_| flushes::level_of(level)) {
        Ok(level) => flushes::flush_all(level, Some(timeout_ms)),
        Err(code) => code,
    }
}

/// Makes a handle of `fd`.
///
/// # Safety
/// `file` can be written to.
unsafe fn give(
    session: &handles::OpenSession,
    fd: RawFd,
    is_borrowed: bool,
    file: *mut *mut c_void,
) -> c_int {
    match handles::add_file(session, fd, is_borrowed) {
        // SAFETY: as the caller says.
        Ok(made) => unsafe {
            file.write(made);
            0
        },
        Err(code) => {
            if !is_borrowed {
                close_now(fd);
            }
            code
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_open(
    session: *mut c_void,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    file: *mut *mut c_void,
) -> c_int {
    if file.is_null() {
        return null("forebay_open", "file");
    }
    // SAFETY: the caller's to write.
    unsafe { file.write(core::ptr::null_mut()) };
    if path.is_null() {
        return null("forebay_open", "path");
    }
    let session = match handles::session(session) {
        Ok(session) => session,
        Err(code) => return code,
    };
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the caller's path.
    let fd = match ask(|services| unsafe { (services.open)(path, flags, mode) }) {
        // SAFETY: the caller's path.
        NOT_MANAGED => unsafe { kernel::open(path, flags, mode) },
        fd => fd,
    };
    if fd < 0 {
        // SAFETY: the caller's path.
        let path = unsafe { CStr::from_ptr(path) };
        return failed(fd, format_args!("forebay_open(): {}", path.to_bytes().escape_ascii()));
    }
    // SAFETY: not null.
    unsafe { give(&session, fd, false, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_use_fd(
    session: *mut c_void,
    fd: c_int,
    file: *mut *mut c_void,
) -> c_int {
    if file.is_null() {
        return null("forebay_use_fd", "file");
    }
    // SAFETY: the caller's to write.
    unsafe { file.write(core::ptr::null_mut()) };
    let session = match handles::session(session) {
        Ok(session) => session,
        Err(code) => return code,
    };
    if let Err(errno) = borrow(fd).and_then(rustix::io::fcntl_getfd) {
        return failed(-errno.raw_os_error(), format_args!("forebay_use_fd(): descriptor {fd}"));
    }
    // SAFETY: not null.
    unsafe { give(&session, fd, true, file) }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_fd(file: *mut c_void) -> c_int {
    with_file(file, OpenFile::fd)
}

#[unsafe(no_mangle)]
extern "C" fn forebay_is_buffered(file: *mut c_void) -> c_int {
    with_file(file, |file| (ask(|services| (services.manages)(file.fd())) == 0).into())
}

#[unsafe(no_mangle)]
extern "C" fn forebay_close(file: *mut c_void) -> c_int {
    match handles::close_file(file, close_now) {
        errno if (-4095..0).contains(&errno) => {
            failed(errno, format_args!("forebay_close(): what was written to the file"))
        }
        code => code,
    }
}

/// A read or a write: checks what was given, and calls `buffered`, or `plain` where the file is
/// not.
fn transfer(
    function: &'static str,
    file: *mut c_void,
    (is_null, bytes, offset): (bool, i64, i64),
    buffered: impl FnOnce(&Services, RawFd, usize, u64) -> isize,
    plain: impl FnOnce(RawFd, usize, u64) -> isize,
    done: impl FnOnce(&OpenFile),
) -> i64 {
    let file = match handles::file(file) {
        Ok(file) => file,
        Err(code) => return code.into(),
    };
    if is_null && bytes != 0 {
        return null(function, "the buffer").into();
    }
    let (offset, bytes) = match range_of(function, offset, bytes) {
        Ok(range) => range,
        Err(code) => return code.into(),
    };
    let (fd, length) = (file.fd(), bytes as usize);
    let managed = services().map(|services| buffered(services, fd, length, offset));
    let result = match managed {
        Some(result) if result != NOT_MANAGED as isize => result,
        _ => plain(fd, length, offset),
    };
    if result < 0 {
        let text = format_args!("{function}(): {bytes} bytes at offset {offset} of {}", Named(fd));
        return failed(result as c_int, text).into();
    }
    done(&file);
    result as i64
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_read(
    file: *mut c_void,
    buffer: *mut c_void,
    bytes: i64,
    offset: i64,
) -> i64 {
    let buffered = |services: &Services, fd, length, offset| {
        // SAFETY: the caller's buffer.
        unsafe { (services.read)(fd, buffer.cast(), length, offset) }
    };
    let plain = |fd, length, offset| kernel::read(fd, buffer, length, offset);
    transfer("forebay_read", file, (buffer.is_null(), bytes, offset), buffered, plain, |_| ())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_write(
    file: *mut c_void,
    buffer: *const c_void,
    bytes: i64,
    offset: i64,
) -> i64 {
    let buffered = |services: &Services, fd, length, offset| {
        // SAFETY: the caller's buffer.
        unsafe { (services.write)(fd, buffer.cast(), length, offset) }
    };
    let plain = |fd, length, offset| kernel::write(fd, buffer, length, offset);
    let given = (buffer.is_null(), bytes, offset);
    transfer("forebay_write", file, given, buffered, plain, OpenFile::note_written)
}

#[unsafe(no_mangle)]
extern "C" fn forebay_size(file: *mut c_void) -> i64 {
    let file = match handles::file(file) {
        Ok(file) => file,
        Err(code) => return code.into(),
    };
    let fd = file.fd();
    let size = services().map_or(NOT_MANAGED.into(), |services| (services.size)(fd));
    let size = match size {
        size if size == NOT_MANAGED.into() => kernel::size(fd),
        size => size,
    };
    match size {
        0.. => size,
        errno => failed(errno as c_int, format_args!("forebay_size(): {}", Named(fd))).into(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_flush(file: *mut c_void, level: c_int) -> c_int {
    with_file(file, |file| match flushes::level_of(level) {
        Ok(level) => file.flush(level),
        Err(code) => code,
    })
}

#[unsafe(no_mangle)]
extern "C" fn forebay_wait(file: *mut c_void, level: c_int, timeout_ms: i64) -> c_int {
    with_file(file, |file| match flushes::level_of(level) {
        Ok(level) => file.wait(level, timeout_ms),
        Err(code) => code,
    })
}

#[unsafe(no_mangle)]
extern "C" fn forebay_is_safe(file: *mut c_void, level: c_int) -> c_int {
    with_file(file, |file| match flushes::level_of(level) {
        Ok(level) => file.is_safe(level),
        Err(code) => code,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_safety(file: *mut c_void, info: *mut c_void) -> c_int {
    let file = match handles::file(file) {
        Ok(file) => file,
        Err(code) => return code,
    };
    let fd = file.fd();
    let make = || {
        let mut now = UnsafeNow::default();
        // SAFETY: `now` is written to.
        let result = ask(|services| unsafe { (services.not_on_store)(fd, &mut now) });
        let place = match (now.memory, now.is_resized, now.tiers) {
            (0, 0, 0) => place::STORE,
            (0, 0, _) => place::TIER,
            _ => place::MEMORY,
        };
        match result {
            0 | NOT_MANAGED => Ok(SafetyInfo {
                size: 0,
                memory_bytes: now.memory,
                tier_bytes: now.tiers,
                place,
                is_buffered: (result == 0).into(),
            }),
            errno => Err(failed(errno, format_args!("forebay_safety(): {}", Named(fd)))),
        }
    };
    // SAFETY: the caller's struct.
    unsafe { fill("forebay_safety", info.cast::<SafetyInfo>(), make) }
}

/// The hints, by the numbers that advice to the kernel has.
const HINTS: [Advice; 5] =
    [Advice::Normal, Advice::Random, Advice::Sequential, Advice::WillNeed, Advice::DontNeed];

/// Passes a hint on, to the kernel and to the session.
fn advise(fd: RawFd, offset: u64, bytes: u64, hint: usize) -> c_int {
    let Some(&advice) = HINTS.get(hint) else { return -libc::EINVAL };
    let by_kernel =
        borrow(fd).and_then(|fd| rustix::fs::fadvise(fd, offset, NonZeroU64::new(bytes), advice));
    match (ask(|services| (services.advise)(fd, offset, bytes, hint as c_int)), by_kernel) {
        (NOT_MANAGED, Err(errno)) => -errno.raw_os_error(),
        (NOT_MANAGED, Ok(())) => 0,
        (told, _) => told,
    }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_hint(file: *mut c_void, hint: c_int, offset: i64, bytes: i64) -> c_int {
    const FUNCTION: &str = "forebay_hint";
    with_file(file, |file| {
        let Some(hint) = usize::try_from(hint).ok().filter(|&hint| hint < HINTS.len()) else {
            return fail(
                -libc::EINVAL,
                format_args!("{FUNCTION}(): {hint} is none of the values FOREBAY_HINT_..."),
            );
        };
        let (offset, bytes) = match range_of(FUNCTION, offset, bytes) {
            Ok(range) => range,
            Err(code) => return code,
        };
        match advise(file.fd(), offset, bytes, hint) {
            0 => 0,
            errno => failed(errno, format_args!("{FUNCTION}(): {}", Named(file.fd()))),
        }
    })
}

/// The place of `WillNeed` among the hints.
const WILL_READ: usize = 3;

/// Ranges that one call of `forebay_will_read` takes: what the node manager keeps.
const RANGES: c_int = 64;

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_will_read(
    file: *mut c_void,
    ranges: *const c_void,
    count: c_int,
) -> c_int {
    const FUNCTION: &str = "forebay_will_read";
    with_file(file, |file| {
        if !(0..=RANGES).contains(&count) {
            return fail(
                -libc::EINVAL,
                format_args!("{FUNCTION}(): {count} ranges; give 0 to {RANGES}"),
            );
        }
        if ranges.is_null() && count > 0 {
            return null(FUNCTION, "ranges");
        }
        let ranges: &[Range] = match count {
            0 => &[],
            // SAFETY: the caller's list, of so many.
            _ => unsafe { core::slice::from_raw_parts(ranges.cast(), count as usize) },
        };
        // All of them are looked at first: nothing is done of a list with a wrong one.
        for range in ranges {
            if let Err(code) = range_of(FUNCTION, range.offset, range.bytes) {
                return code;
            }
        }
        for range in ranges.iter().filter(|range| range.bytes > 0) {
            let (offset, bytes) = (range.offset as u64, range.bytes as u64);
            let told = advise(file.fd(), offset, bytes, WILL_READ);
            if told != 0 {
                return failed(told, format_args!("{FUNCTION}(): {}", Named(file.fd())));
            }
        }
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_placement(
    file: *mut c_void,
    offset: i64,
    bytes: i64,
    extents: *mut c_void,
    room: c_int,
) -> i64 {
    const FUNCTION: &str = "forebay_placement";
    let file = match handles::file(file) {
        Ok(file) => file,
        Err(code) => return code.into(),
    };
    let (offset, bytes) = match range_of(FUNCTION, offset, bytes) {
        Ok(range) => range,
        Err(code) => return code.into(),
    };
    let Ok(room) = usize::try_from(room) else {
        return fail(-libc::EINVAL, format_args!("{FUNCTION}(): room for {room} extents")).into();
    };
    if extents.is_null() && room > 0 {
        return null(FUNCTION, "extents").into();
    }
    let fd = file.fd();
    let look = |services: &Services| {
        // SAFETY: the caller's array, of so many.
        unsafe { (services.placement)(fd, offset, bytes, extents.cast::<ExtentNow>(), room) }
    };
    match services().map_or(NOT_MANAGED.into(), look) {
        count @ 0.. => count,
        none if none == NOT_MANAGED.into() => not_buffered(FUNCTION, fd).into(),
        errno => failed(errno as c_int, format_args!("{FUNCTION}(): {}", Named(fd))).into(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_phase_begin(session: *mut c_void, name: *const c_char) -> c_int {
    if let Err(code) = handles::look_at_session(session) {
        return code;
    }
    if name.is_null() {
        return null("forebay_phase_begin", "name");
    }
    let Some(services) = services() else { return 0 };
    // SAFETY: the caller's text.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: a text of this length.
    unsafe { (services.begin_phase)(name.as_ptr().cast(), name.count_bytes()) }
}

#[unsafe(no_mangle)]
extern "C" fn forebay_phase_end(session: *mut c_void) -> c_int {
    match handles::look_at_session(session) {
        Ok(()) => services().map_or(0, |services| (services.end_phase)()),
        Err(code) => code,
    }
}

/// Gives up all that is pinned for a handle.
fn unpin_all(handle: u32) -> c_int {
    session::services().map_or(0, |services| (services.unpin)(handle, 0, 0))
}

#[unsafe(no_mangle)]
extern "C" fn forebay_pin(file: *mut c_void, offset: i64, bytes: i64, tier: c_int) -> c_int {
    const FUNCTION: &str = "forebay_pin";
    with_file(file, |file| {
        let (offset, bytes) = match range_of(FUNCTION, offset, bytes) {
            Ok(range) => range,
            Err(code) => return code,
        };
        let (fd, mut now) = (file.fd(), PinNow::default());
        let number = u32::try_from(tier).unwrap_or(u32::MAX);
        // Before: another thread that closes the handle gives up what this call pins.
        file.file.has_pins.store(true, Ordering::Relaxed);
        let handle = file.file.pin_handle();
        let told = ask(|services| {
            // SAFETY: `now` is written to.
            unsafe { (services.pin)(fd, offset, bytes, number, handle, &mut now) }
        });
        let PinNow { asked, pinned, most } = now;
        match told {
            services::pin::DONE => 0,
            NOT_MANAGED => not_buffered(FUNCTION, fd),
            services::pin::BY_KERNEL => fail(
                code::NOT_BUFFERED,
                format_args!(
                    "{FUNCTION}(): {} is used through the kernel (mapped, or bypassed), and has no \
                     blocks in a tier; `forebay explain PATH` says why",
                    Named(fd)
                ),
            ),
            services::pin::JOB_LIMIT => fail(
                -libc::EDQUOT,
                format_args!(
                    "{FUNCTION}(): {asked} bytes in tier {tier}, where this run has pinned {pinned} \
                     and may pin {most}; unpin what is not needed, or raise placement.pin_limit in \
                     the configuration"
                ),
            ),
            services::pin::TIER_LIMIT => fail(
                -libc::ENOSPC,
                format_args!(
                    "{FUNCTION}(): {asked} bytes in tier {tier}, where all runs together have pinned \
                     {pinned} and may pin {most}; unpin what is not needed, or give the tier more \
                     capacity"
                ),
            ),
            services::pin::QUOTA => fail(
                -libc::EDQUOT,
                format_args!(
                    "{FUNCTION}(): {asked} bytes in tier {tier}, of which this run has a quota of \
                     {most} and has pinned {pinned}; unpin what is not needed, or raise the quota \
                     (--quota of forebay run, or quota of the tier in the configuration)"
                ),
            ),
            services::pin::QUOTA_ROOM => fail(
                -libc::EAGAIN,
                format_args!(
                    "{FUNCTION}(): not all of {} could be brought to tier {tier}: the run uses \
                     {pinned} bytes of its quota of {most} there, and none became free for seconds; \
                     unpin what is not needed, or raise the quota (--quota of forebay run); nothing \
                     is pinned by this call",
                    Named(fd)
                ),
            ),
            services::pin::UNSERVED => fail(
                -libc::EAGAIN,
                format_args!(
                    "{FUNCTION}(): not all of {} could be brought to tier {tier}: the node manager, \
                     which makes room, is stopped or dead (`forebay status` says more); nothing is \
                     pinned by this call",
                    Named(fd)
                ),
            ),
            errno if errno == -libc::EBADF => failed(
                errno,
                format_args!(
                    "{FUNCTION}(): {}: the store has bytes of it that would be read; open it for \
                     reading, too (O_RDWR)",
                    Named(fd)
                ),
            ),
            errno if errno == -libc::EINVAL => failed(
                errno,
                format_args!(
                    "{FUNCTION}(): {}: {bytes} bytes from {offset} on are more than one pin can \
                     say; pin less than 128 TiB at a time, within the first PiB",
                    Named(fd)
                ),
            ),
            errno if errno == -libc::ENOENT => fail(
                errno,
                format_args!(
                    "{FUNCTION}(): there is no tier {tier}; forebay_pool() says how many there are"
                ),
            ),
            errno if errno == -libc::EAGAIN => fail(
                errno,
                format_args!(
                    "{FUNCTION}(): not all of {} could be brought to tier {tier}: there was no room \
                     for seconds, or the store could not be read; nothing is pinned by this call",
                    Named(fd)
                ),
            ),
            errno => failed(errno, format_args!("{FUNCTION}(): {}", Named(fd))),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn forebay_unpin(file: *mut c_void, offset: i64, bytes: i64) -> c_int {
    const FUNCTION: &str = "forebay_unpin";
    with_file(file, |file| {
        let (offset, bytes) = match range_of(FUNCTION, offset, bytes) {
            Ok(range) => range,
            Err(code) => return code,
        };
        match services() {
            None => not_running(FUNCTION),
            Some(services) => (services.unpin)(file.file.pin_handle(), offset, bytes),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn forebay_step(file: *mut c_void) -> c_int {
    const FUNCTION: &str = "forebay_step";
    with_file(file, |file| {
        let fd = file.fd();
        match ask(|services| (services.end_step)(fd)) {
            0 => 0,
            NOT_MANAGED => not_buffered(FUNCTION, fd),
            errno => failed(errno, format_args!("{FUNCTION}(): {}", Named(fd))),
        }
    })
}
