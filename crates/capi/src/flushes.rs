//! Flushes of a file: begun, looked at, waited for. What a handle remembers of the last one fits
//! into a word, so that threads which flush one file at once leave the one or the other.

use crate::handles::OpenFile;
use crate::report::{fail, failed};
use crate::session::services;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use forebay_client::services::{FlushBegun, NOT_MANAGED, Services, level, progress};
use rustix::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A flush was begun.
const BEGUN: u32 = 1;
/// To the store.
const STORE: u32 = 2;
/// Of a file that Forebay does not buffer.
const PLAIN: u32 = 4;
/// The store has such a file.
const DONE: u32 = 8;

/// What a handle remembers of a flush.
#[derive(Clone, Copy)]
struct Remembered {
    ticket: u32,
    /// The count of errors, and the last errno.
    errors: u32,
    flags: u32,
}

/// Bits of an errno.
const ERRNO_BITS: u32 = 12;
const FLAG_BITS: u32 = 4;

impl Remembered {
    fn word(self) -> u64 {
        let errors = self.errors >> 16 << ERRNO_BITS | self.errors & ((1 << ERRNO_BITS) - 1);
        u64::from(self.ticket) << 32 | u64::from(errors << FLAG_BITS | self.flags)
    }

    fn of(word: u64) -> Option<Remembered> {
        let (ticket, low) = ((word >> 32) as u32, word as u32);
        let (errors, flags) = (low >> FLAG_BITS, low & ((1 << FLAG_BITS) - 1));
        let errors = errors >> ERRNO_BITS << 16 | errors & ((1 << ERRNO_BITS) - 1);
        (flags & BEGUN != 0).then_some(Remembered { ticket, errors, flags })
    }

    fn reaches(self, level: u32) -> bool {
        level == level::DURABLE || self.flags & STORE != 0
    }
}

/// Checks a level of the caller's.
pub(crate) fn level_of(number: c_int) -> Result<u32, c_int> {
    match u32::try_from(number) {
        Ok(level @ (level::DURABLE | level::STORE)) => Ok(level),
        _ => Err(fail(
            -libc::EINVAL,
            format_args!("{number} is no level to flush to; give FOREBAY_DURABLE or FOREBAY_STORE"),
        )),
    }
}

/// What a call returns whose result is `result`, an error of which is said with `what`.
fn told(result: c_int, what: &str, fd: c_int) -> c_int {
    match result {
        errno if errno == -libc::EOPNOTSUPP => fail(
            errno,
            format_args!(
                "{what} descriptor {fd}: the file is scratch, by its rule or its run: it ends with \
                 the job, and is never brought to the store"
            ),
        ),
        errno if errno == -libc::EBADFD => fail(
            errno,
            format_args!(
                "{what} descriptor {fd}: it is another file's by now; close the handle before its \
                 descriptor, or flush again"
            ),
        ),
        errno if errno < 0 => failed(errno, format_args!("{what} descriptor {fd}")),
        result => result,
    }
}

impl OpenFile {
    fn last_flush(&self) -> Option<Remembered> {
        Remembered::of(self.file.flush.load(Ordering::Acquire))
    }

    fn remember(&self, flush: Remembered, begun: &FlushBegun) {
        self.file.flushed_ns.store(begun.written_ns, Ordering::Relaxed);
        self.file.flushed_file.store(begun.file, Ordering::Relaxed);
        self.file.flush.store(flush.word(), Ordering::Release);
    }

    fn begun(&self, flush: Remembered) -> FlushBegun {
        FlushBegun {
            ticket: flush.ticket,
            errors: flush.errors,
            written_ns: self.file.flushed_ns.load(Ordering::Relaxed),
            file: self.file.flushed_file.load(Ordering::Relaxed),
        }
    }

    /// Notes that something was written through this handle.
    pub fn note_written(&self) {
        if !self.file.has_written.load(Ordering::Relaxed) {
            self.file.has_written.store(true, Ordering::Release);
        }
    }

    /// Begins a flush.
    pub fn flush(&self, level: u32) -> c_int {
        let fd = self.fd();
        // Before: a write that ends from here on may not be covered.
        self.file.has_written.store(false, Ordering::SeqCst);
        let store = if level == level::STORE { STORE } else { 0 };
        let mut begun = FlushBegun::default();
        // SAFETY: `begun` is written to.
        let result = services().map_or(NOT_MANAGED, |services| unsafe {
            (services.begin_flush)(fd, level, &mut begun)
        });
        if result == NOT_MANAGED {
            return self.flush_plain();
        }
        if result < 0 {
            self.file.has_written.store(true, Ordering::SeqCst);
            return told(result, "flush", fd);
        }
        let flush = Remembered { ticket: begun.ticket, errors: begun.errors, flags: BEGUN | store };
        self.remember(flush, &begun);
        0
    }

    /// Begins to have the kernel write a file that Forebay does not buffer.
    fn flush_plain(&self) -> c_int {
        // SAFETY: a system call; the descriptor may be none any more, and the call then fails.
        let begun = unsafe { libc::sync_file_range(self.fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        if begun < 0 {
            let errno = crate::last_errno();
            // Of what is no file of a disk: fsync will say what can be had.
            if !matches!(errno, libc::ESPIPE | libc::ENOSYS | libc::EINVAL) {
                self.file.has_written.store(true, Ordering::SeqCst);
                return told(-errno, "flush", self.fd());
            }
        }
        self.remember(
            Remembered { ticket: 0, errors: 0, flags: BEGUN | STORE | PLAIN },
            &FlushBegun::default(),
        );
        0
    }

    /// Whether what was written before the last flush is at `level`: 1 or 0.
    pub fn is_safe(&self, level: u32) -> c_int {
        let Some(flush) = self.last_flush().filter(|flush| flush.reaches(level)) else { return 0 };
        if self.file.has_written.load(Ordering::SeqCst) {
            return 0;
        }
        if flush.flags & PLAIN != 0 {
            return (flush.flags & DONE != 0).into();
        }
        let begun = self.begun(flush);
        // SAFETY: `begun` is read.
        let look = |services: &Services| unsafe { (services.progress)(self.fd(), &begun) };
        match services().map_or(NOT_MANAGED, look) {
            progress::DONE => 1,
            progress::WAITING => 0,
            progress::CHANGED => {
                // It stays so, also once the node manager has brought that to the store.
                self.file.has_written.store(true, Ordering::SeqCst);
                0
            }
            NOT_MANAGED => 0,
            errno => told(errno, "an earlier flush of", self.fd()),
        }
    }

    /// Waits until what was written before the last flush is at `level`; begins one if none is
    /// under way.
    pub fn wait(&self, level: u32, timeout_ms: i64) -> c_int {
        let under_way = self.last_flush().filter(|flush| {
            flush.reaches(level)
                && flush.flags & DONE == 0
                && !self.file.has_written.load(Ordering::SeqCst)
                && (flush.flags & PLAIN != 0 || self.is_under_way(*flush))
        });
        let flush = match under_way {
            Some(flush) => flush,
            None => {
                let begun = self.flush(level);
                match self.last_flush() {
                    Some(flush) if begun == 0 => flush,
                    _ => return begun,
                }
            }
        };
        if flush.flags & PLAIN != 0 {
            return self.wait_plain();
        }
        let begun = self.begun(flush);
        // SAFETY: `begun` is read.
        let wait =
            |services: &Services| unsafe { (services.await_flush)(self.fd(), &begun, timeout_ms) };
        match services().map_or(NOT_MANAGED, wait) {
            1 => 0,
            0 => fail(
                -libc::ETIMEDOUT,
                format_args!(
                    "descriptor {} was not flushed within {timeout_ms} ms; the flush goes on: \
                     wait again, or look with forebay_is_safe()",
                    self.fd()
                ),
            ),
            NOT_MANAGED => self.wait_plain(),
            errno => told(errno, "flush", self.fd()),
        }
    }

    fn is_under_way(&self, flush: Remembered) -> bool {
        let begun = self.begun(flush);
        // SAFETY: `begun` is read.
        let look = |services: &Services| unsafe { (services.progress)(self.fd(), &begun) };
        services().is_some_and(|services| look(services) == progress::WAITING)
    }

    /// Makes a file durable that Forebay does not buffer: the kernel has no limit of time for that.
    fn wait_plain(&self) -> c_int {
        let fd = self.fd();
        // Before: a write that ends from here on may not be covered.
        self.file.has_written.store(false, Ordering::SeqCst);
        // SAFETY: used for a call at once; it may be none any more, and the call then fails.
        let synced = (fd >= 0).then(|| rustix::fs::fsync(unsafe { BorrowedFd::borrow_raw(fd) }));
        match synced {
            Some(Ok(())) => {
                let flags = BEGUN | STORE | PLAIN | DONE;
                self.remember(Remembered { ticket: 0, errors: 0, flags }, &FlushBegun::default());
                0
            }
            other => {
                self.file.has_written.store(true, Ordering::SeqCst);
                let errno = other.and_then(Result::err).unwrap_or(rustix::io::Errno::BADF);
                told(-errno.raw_os_error(), "flush", fd)
            }
        }
    }
}

/// Begins a flush of all files, and waits for it if `timeout_ms` is given.
pub(crate) fn flush_all(level: u32, timeout_ms: Option<i64>) -> c_int {
    let since = Instant::now();
    let function = if timeout_ms.is_some() { "forebay_wait_all" } else { "forebay_flush_all" };
    let Some(services) = services() else { return crate::not_running(function) };
    let begun = (services.begin_flush_of_all)(level);
    let Some(timeout_ms) = timeout_ms.filter(|_| begun == 0) else {
        return told_of_all(begun, function);
    };
    let left = match u64::try_from(timeout_ms) {
        Ok(limit) => {
            let left = Duration::from_millis(limit).saturating_sub(since.elapsed());
            i64::try_from(left.as_millis()).unwrap_or(i64::MAX)
        }
        Err(_) => timeout_ms,
    };
    match (services.await_flush_of_all)(left) {
        1 => 0,
        0 => fail(
            -libc::ETIMEDOUT,
            format_args!("not all files were flushed within {timeout_ms} ms; the flush goes on"),
        ),
        errno => told_of_all(errno, function),
    }
}

fn told_of_all(result: c_int, function: &str) -> c_int {
    match result {
        0 => 0,
        NOT_MANAGED => crate::not_running(function),
        errno => failed(
            errno,
            format_args!("{function}(): `forebay status` names those that cannot be flushed"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_fits_into_a_word() {
        for flush in [
            Remembered { ticket: 0, errors: 0, flags: BEGUN },
            Remembered { ticket: u32::MAX, errors: 0xffff_0fff, flags: BEGUN | STORE | DONE },
            Remembered { ticket: 7, errors: 3 << 16 | 28, flags: BEGUN | PLAIN },
        ] {
            let again = Remembered::of(flush.word()).unwrap();
            let parts = |of: Remembered| (of.ticket, of.errors, of.flags);
            assert_eq!(parts(again), parts(flush));
        }
        assert!(Remembered::of(0).is_none());
    }
}
