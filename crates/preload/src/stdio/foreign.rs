//! Streams of glibc's own, which it reads and writes inside itself: their files are used through
//! the kernel by every process.

use super::buffer::take_buffer;
use super::cookie::ours;
use super::glibc::{Locked, forget_pushed_back};
use super::layout::*;
use super::position::{read_ahead, seek};
use crate::errno::set_errno;
use crate::session::managed;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use libc::{FILE, c_int, off64_t};

/// glibc's own stdin, which no program uses any more.
#[unsafe(link_section = ".data")]
pub(super) static GLIBC_STDIN: AtomicPtr<FILE> = AtomicPtr::new(core::ptr::null_mut());

pub(super) fn glibc_stdin() -> Option<Stream<'static>> {
    // SAFETY: null, or a static of glibc's, of which only what does not change is read: its
    // function table, and in share_need_of_locks a flag that glibc sets once.
    unsafe { Stream::at(GLIBC_STDIN.load(Ordering::Acquire)) }
}

/// glibc locks cookie streams even where there is one thread, because their functions might start
/// others. Ours do not: a stream needs its lock when others do, which is from the first
/// thread on.
pub(super) fn share_need_of_locks(stream: Stream) {
    if let Some(other) = glibc_stdin() {
        let needs = other.get(FLAGS2_AT) & NEEDS_LOCK;
        stream.set(FLAGS2_AT, stream.get(FLAGS2_AT) & !NEEDS_LOCK | needs);
    }
}

/// Descriptors that carry a stream of glibc's own, one bit each.
static FOREIGN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

pub(super) fn carries_foreign(fd: c_int) -> bool {
    let word = FOREIGN.get(fd as usize / 64);
    word.is_some_and(|word| word.load(Ordering::Acquire) >> (fd % 64) & 1 == 1)
}

/// Notes that glibc's own `stream` was opened, or is about to be closed.
pub(crate) fn carries(stream: Option<Stream>, opened: bool) {
    // The streams of a vforked child are its parent's, and its descriptors are not.
    let Some(stream) = stream.filter(|_| !crate::child::is_child()) else {
        return;
    };
    let fd = stream.get(FILENO_AT);
    if let Some(word) = FOREIGN.get(fd as usize / 64) {
        match opened {
            true => word.fetch_or(1 << (fd % 64), Ordering::AcqRel),
            false => word.fetch_and(!(1 << (fd % 64)), Ordering::AcqRel),
        };
    }
}

/// Before an operation on wide characters: glibc's cookie streams are of bytes only. One of ours
/// without an orientation becomes a stream of glibc's own, and its file is used through the kernel
/// by every process.
///
/// False, with errno and the stream's mark of an error, if the file cannot be made clean: then it
/// stays as it is, and the operation must not be made.
///
/// # Safety
/// As of [`Stream::at`].
pub(super) unsafe fn hand_back(stream: *mut FILE) -> bool {
    // SAFETY: a stream of the program's; it is locked below, and then looked at again.
    let Some(stream) = (unsafe { Stream::at(stream) }) else { return true };
    let (Some(cookie), Some(of_files)) = (ours(stream), glibc_stdin()) else { return true };
    let _locked = Locked::new(stream);
    let fd = cookie.descriptor();
    if stream.get(ORIENTATION_AT) != 0 || ours(stream).is_none() {
        return true;
    }
    // ungetc and a seek, which reads ahead, give no orientation.
    forget_pushed_back(stream);
    let ahead = read_ahead(stream);
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
    if !cookie.buffer().is_null() && buffer == cookie.buffer() {
        take_buffer(stream, cookie);
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
