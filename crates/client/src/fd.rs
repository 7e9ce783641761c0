//! Descriptors of this process: numbers for system calls, and where Forebay's own lie.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use forebay_pool::crash;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Forebay's own descriptors go above this, out of the way of programs that count theirs.
const OWN_DESCRIPTORS: RawFd = 900;
/// Or above the program's limit, if that is not higher than this: the kernel's table of
/// descriptors grows with the highest.
const LIMIT_MAX: u64 = 4096;
/// Numbers above the limit that are searched for a free one.
const ROOM: u64 = 64;
/// Forebay's own descriptors have numbers below this, as long as the program leaves some free
/// there.
pub(crate) const OWN_END: u32 = (LIMIT_MAX + ROOM) as u32;
/// The lowest of them.
static LOWEST_OWN: AtomicI32 = AtomicI32::new(RawFd::MAX);
/// Descriptors, from 0 on, of which is known whether [`NO_FOLLOW`] has them.
const WATCHED: usize = 4096;
/// Descriptors that no session manages, and that were opened with O_NOFOLLOW though the program had
/// not asked for it: a bit each.
static NO_FOLLOW: [AtomicU64; WATCHED / 64] = [const { AtomicU64::new(0) }; WATCHED / 64];

/// Whether the kernel's table of this process is known to reach them.
static HAS_ROOM: AtomicBool = AtomicBool::new(false);

/// Lets the kernel's table of descriptors reach Forebay's own. Called before the process has a
/// second thread: of a table that several threads use, the kernel lets each growth wait until all
/// processors have stopped using the old one (`synchronize_rcu` in fs/file.c), some 20 ms, which
/// would fall into the first read of a tier. A table never shrinks. Safe from any thread.
pub fn make_room_for_own_descriptors() {
    if !HAS_ROOM.swap(true, Ordering::Relaxed) && lowest_own() == RawFd::MAX {
        // A place alone stands for any descriptor: closing it gives no lock back. By a call that
        // all programs make, as they may have forbidden others to themselves (seccomp).
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(root) = rustix::fs::openat(CWD, c"/", flags, Mode::empty()) {
            drop(duplicate_high(&root));
        }
    }
}

/// In a forked child: its table is as large as what it has open.
pub(crate) fn forked() {
    HAS_ROOM.store(false, Ordering::Relaxed);
}

fn lowest_own() -> RawFd {
    LOWEST_OWN.load(Ordering::Relaxed)
}

/// Notes whether `fd` was opened with O_NOFOLLOW though the program had not asked for it.
#[inline]
pub(crate) fn note_no_follow(fd: RawFd, is_ours: bool) {
    let Some(word) = NO_FOLLOW.get(fd as usize / 64) else { return };
    let bit = 1 << (fd % 64);
    if (word.load(Ordering::Relaxed) & bit != 0) != is_ours {
        word.fetch_xor(bit, Ordering::Relaxed);
    }
}

/// Whether O_NOFOLLOW of `fd`, which no session manages, is to be kept from the program.
pub(crate) fn is_no_follow_ours(fd: RawFd) -> bool {
    NO_FOLLOW
        .get(fd as usize / 64)
        .is_some_and(|word| word.load(Ordering::Relaxed) >> (fd % 64) & 1 != 0)
}

/// `fd` for system calls.
pub(crate) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: a program may close any descriptor at any time, so that nothing here relies on one
    // being open: a call on one that is closed fails with EBADF, and one that was closed and opened
    // again is noticed, see `parting.rs`.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether `fd` has a number that one of Forebay's own may have.
pub(crate) fn may_be_own(fd: RawFd) -> bool {
    fd >= lowest_own()
}

/// Moves a descriptor of Forebay's own out of the program's way.
pub(crate) fn hide(fd: OwnedFd) -> RawFd {
    let hidden = duplicate_high(&fd).unwrap_or(fd).into_raw_fd();
    LOWEST_OWN.fetch_min(hidden, Ordering::Relaxed);
    hidden
}

/// Another number, out of the program's way, for what `fd` is open for. `None` where no more is to
/// be had.
pub(crate) fn duplicate_hidden(fd: RawFd) -> Option<RawFd> {
    let other = rustix::io::fcntl_dupfd_cloexec(borrow(fd), OWN_DESCRIPTORS).ok()?.into_raw_fd();
    LOWEST_OWN.fetch_min(other, Ordering::Relaxed);
    Some(other)
}

/// Calls `act` with each descriptor of this process. False if they cannot be listed.
pub(crate) fn each_descriptor(mut act: impl FnMut(RawFd)) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat(rustix::fs::CWD, c"/proc/self/fd", flags, Mode::empty())
    else {
        return false;
    };
    let mut buffer = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = rustix::fs::RawDir::new(&folder, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = core::str::from_utf8(entry.file_name().to_bytes()).unwrap_or("");
        if let Ok(fd) = name.parse::<RawFd>() {
            act(fd);
        }
    }
    true
}

/// A duplicate of `fd` out of the program's way.
fn duplicate_high(fd: &OwnedFd) -> Option<OwnedFd> {
    above_limit(fd).or_else(|| rustix::io::fcntl_dupfd_cloexec(fd, OWN_DESCRIPTORS).ok())
}

/// A duplicate of `fd` that no program under the present limit can have asked for.
fn above_limit(fd: &OwnedFd) -> Option<OwnedFd> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.filter(|&current| current <= LIMIT_MAX)?;
    let raised = current + ROOM;
    if limit.maximum.is_some_and(|maximum| maximum < raised) {
        return None;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }).ok()?;
    let other = rustix::io::fcntl_dupfd_cloexec(fd, current as RawFd);
    let _ = setrlimit(Resource::Nofile, limit);
    other.ok()
}

/// The path under which a process finds its own descriptor `fd`.
pub(crate) fn descriptor_path(fd: RawFd, buffer: &mut [u8; 32]) -> &core::ffi::CStr {
    let folder = b"/proc/self/fd/";
    let number = rustix::path::DecInt::new(fd);
    let digits = number.as_bytes();
    buffer[..folder.len()].copy_from_slice(folder);
    buffer[folder.len()..folder.len() + digits.len()].copy_from_slice(digits);
    core::ffi::CStr::from_bytes_until_nul(buffer).unwrap_or(c"")
}

/// A new description of the file behind `fd`.
pub(crate) fn reopen(fd: RawFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    if crash::refused("descriptor") {
        return Err(Errno::MFILE);
    }
    let path = &mut [0; 32];
    rustix::fs::openat(
        rustix::fs::CWD,
        descriptor_path(fd, path),
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    )
}
