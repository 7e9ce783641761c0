//! Files of the kernel's: calls by the C library's functions, which a preload library without the
//! table stands before, so that none goes around its buffer. None is a cancellation point here.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::fmt::{Display, Formatter, Write};
use core::mem::MaybeUninit;
use rustix::fd::RawFd;
use rustix::time::{ClockId, clock_gettime};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// Makes a call that the thread is not cancelled in: it would unwind this library.
fn uncancelled<R>(call: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: `before` is written to.
    let is_off = unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) } == 0;
    let result = call();
    if is_off {
        // SAFETY: a state that it has had; the old one is not asked for twice.
        unsafe { pthread_setcancelstate(before, &mut 0) };
    }
    result
}

/// A result of the C library's: what it is, or the negative errno.
fn result_of(result: i64) -> i64 {
    if result < 0 { -i64::from(crate::last_errno()) } else { result }
}

/// open(2).
///
/// # Safety
/// The path is one.
pub(crate) unsafe fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: as the caller says.
    uncancelled(|| result_of(unsafe { libc::open(path, flags, mode) }.into())) as c_int
}

/// close(2).
pub(crate) fn close(fd: RawFd) -> c_int {
    // SAFETY: it is this library's, and given up.
    uncancelled(|| result_of(unsafe { libc::close(fd) }.into())) as c_int
}

/// pread(2). Any buffer may be given: the kernel says that it is none.
pub(crate) fn read(fd: RawFd, to: *mut c_void, bytes: usize, offset: u64) -> isize {
    // SAFETY: the caller's buffer.
    uncancelled(|| result_of(unsafe { libc::pread(fd, to, bytes, offset as i64) } as i64)) as isize
}

/// pwrite(2), as [`read`].
pub(crate) fn write(fd: RawFd, from: *const c_void, bytes: usize, offset: u64) -> isize {
    // SAFETY: the caller's buffer.
    let write = || result_of(unsafe { libc::pwrite(fd, from, bytes, offset as i64) } as i64);
    uncancelled(write) as isize
}

/// fsync(2).
pub(crate) fn sync(fd: RawFd) -> c_int {
    // SAFETY: a call with a number.
    uncancelled(|| result_of(unsafe { libc::fsync(fd) }.into())) as c_int
}

/// The size as programs see it.
pub(crate) fn size(fd: RawFd) -> i64 {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `found` is written to.
    match result_of(unsafe { libc::fstat(fd, found.as_mut_ptr()) }.into()) {
        // SAFETY: it was written.
        0 => unsafe { found.assume_init() }.st_size,
        errno => errno,
    }
}

/// What the kernel knows of a file.
#[derive(Clone, Copy)]
pub(crate) struct Status(rustix::fs::Stat);

/// The kernel's own word, whatever stands before its function; the errno without one.
pub(crate) fn status(fd: RawFd) -> Result<Status, c_int> {
    let found = crate::borrow(fd).and_then(rustix::fs::fstat);
    found.map(Status).map_err(|errno| errno.raw_os_error())
}

impl Status {
    /// Device and inode.
    pub fn identity(&self) -> (u64, u64) {
        (self.0.st_dev, self.0.st_ino)
    }

    /// When it was last changed in any way: no call sets this time back. Nanoseconds of
    /// CLOCK_REALTIME; `None` of a file system that seems to know it by the second only.
    pub fn changed_ns(&self) -> Option<u64> {
        let nanoseconds = self.0.st_ctime_nsec;
        let seconds = u64::try_from(self.0.st_ctime).ok()?;
        (nanoseconds != 0).then(|| seconds * 1_000_000_000 + nanoseconds)
    }
}

/// Sleeps until the clock by which the kernel notes changes is past `time_ns`, at most for a few
/// ticks. Whether it is.
pub(crate) fn pass(time_ns: u64) -> bool {
    const LOOKS: u32 = 30;
    (0..LOOKS).any(|_| {
        let clock = clock_gettime(ClockId::RealtimeCoarse);
        let is_past = clock.tv_sec as u64 * 1_000_000_000 + clock.tv_nsec as u64 > time_ns;
        if !is_past {
            nap();
        }
        is_past
    })
}

/// A millisecond.
fn nap() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: a call of the kernel's that reads `pause`; a signal may end it early.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, 0usize) };
}

/// A descriptor in a message: the path of its file beside the number.
pub(crate) struct Named(pub RawFd);

impl Display for Named {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        let mut room = [MaybeUninit::<u8>::uninit(); 300];
        let Named(fd) = *self;
        let mut link = Link { text: [0; 32], at: 0 };
        write!(link, "/proc/self/fd/{fd}")?;
        let link = CStr::from_bytes_until_nul(&link.text).map_err(|_| core::fmt::Error)?;
        match rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut room) {
            Ok((path, rest)) if !path.is_empty() => {
                let cut = if rest.is_empty() { "..." } else { "" };
                write!(f, "{}{cut} (descriptor {fd})", path.escape_ascii())
            }
            _ => write!(f, "descriptor {fd}"),
        }
    }
}

/// The name of a link, with a zero behind it.
struct Link {
    text: [u8; 32],
    at: usize,
}

impl Write for Link {
    fn write_str(&mut self, part: &str) -> core::fmt::Result {
        let end = self.at + part.len();
        let room = self.text.get_mut(self.at..end).ok_or(core::fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.at = end;
        Ok(())
    }
}
