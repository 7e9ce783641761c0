//! Flushes of a file: begun, looked at, waited for. What a handle remembers of the last one fits
//! into a word, which only a newer one replaces, so that threads may flush one file at once. That
//! a file is safe is never what was remembered, but what its record, or the kernel, says now.

use crate::handles::OpenFile;
use crate::kernel::{self, Named, Status};
use crate::report::{fail, failed};
use crate::session::{is_of_another_build, services};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_client::services::{
    BY_KERNEL, FlushBegun, NOT_MANAGED, Services, UnsafeNow, awaited, level, progress,
};
use std::time::{Duration, Instant};

/// A flush was begun.
const BEGUN: u32 = 1;
/// Of a file that only the kernel knows: this call has synced it.
const PLAIN: u32 = 2;

/// Syncs of a file of the kernel's until its times have stayed what they were.
const SYNCS: u32 = 3;

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

    /// Whether it came after another one: tickets rise, and begin again at the highest.
    fn is_newer(self, than: Remembered) -> bool {
        self.flags & PLAIN != 0 || self.ticket.wrapping_sub(than.ticket) <= u32::MAX / 2
    }
}

/// Stores a flush unless a newer one is there.
fn raise(word: &AtomicU64, flush: Remembered) {
    let newer = |now| {
        let is_newer = Remembered::of(now).is_none_or(|now| flush.is_newer(now));
        is_newer.then_some(flush.word())
    };
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, newer);
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
    let named = Named(fd);
    match result {
        errno if errno == -libc::EOPNOTSUPP => fail(
            errno,
            format_args!(
                "{what} {named}: the file is scratch, by its rule or its run: it ends with the job, \
                 and is never brought to the store"
            ),
        ),
        errno if errno == -libc::EBADFD => fail(
            errno,
            format_args!(
                "{what} {named}: the descriptor is another file's by now; close the handle before \
                 its descriptor, and make another handle"
            ),
        ),
        errno if errno == -libc::ECONNREFUSED => fail(
            errno,
            format_args!(
                "{what} {named}: the node manager has ended before; call forebay_wait(), which \
                 brings the file to the store itself"
            ),
        ),
        errno if errno < 0 => failed(errno, format_args!("{what} {named}")),
        result => result,
    }
}

fn other_build(what: &str, fd: c_int) -> c_int {
    fail(
        crate::report::code::NOT_RUNNING,
        format_args!(
            "{what} {}: libforebay_preload.so in this process is of another build than \
             libforebay.so, which it does not tell what is safe; install both of one version",
            Named(fd)
        ),
    )
}

impl OpenFile {
    fn word(&self, level: u32) -> &'static AtomicU64 {
        if level == level::STORE { &self.file.to_store } else { &self.file.to_any }
    }

    fn last_flush(&self, level: u32) -> Option<Remembered> {
        Remembered::of(self.word(level).load(Ordering::SeqCst))
    }

    fn remember(&self, level: u32, flush: Remembered) {
        if level == level::STORE {
            raise(&self.file.to_store, flush);
        }
        raise(&self.file.to_any, flush);
    }

    fn begun(&self, flush: Remembered, level: u32) -> FlushBegun {
        FlushBegun {
            ticket: flush.ticket,
            errors: flush.errors,
            seen: if level == level::STORE { 0 } else { self.file.seen.load(Ordering::SeqCst) },
            file: self.file.flushed_file.load(Ordering::SeqCst),
        }
    }

    /// Notes that something was written through this handle.
    pub fn note_written(&self) {
        self.file.has_written.store(true, Ordering::SeqCst);
    }

    /// What the kernel knows of the file; an error where the descriptor is another one's by now.
    fn status(&self) -> Result<Status, c_int> {
        let found = kernel::status(self.fd()).map_err(|errno| -errno)?;
        let (device, inode) = found.identity();
        let is_it = device == self.file.device.load(Ordering::Relaxed)
            && inode == self.file.inode.load(Ordering::Relaxed);
        if is_it { Ok(found) } else { Err(-libc::EBADFD) }
    }

    /// Begins a flush.
    pub fn flush(&self, level: u32) -> c_int {
        let fd = self.fd();
        if let Err(errno) = self.status() {
            return told(errno, "flush", fd);
        }
        // Before: a write that ends from here on may not be covered.
        self.file.has_written.store(false, Ordering::SeqCst);
        let mut begun = FlushBegun::default();
        // SAFETY: `begun` is written to.
        let result = services().map_or(NOT_MANAGED, |services| unsafe {
            (services.begin_flush)(fd, level, &mut begun)
        });
        let result = match result {
            0 => {
                if level == level::DURABLE {
                    self.file.seen.store(begun.seen, Ordering::SeqCst);
                }
                self.file.flushed_file.store(begun.file, Ordering::SeqCst);
                let (ticket, errors) = (begun.ticket, begun.errors);
                self.remember(level, Remembered { ticket, errors, flags: BEGUN });
                return 0;
            }
            NOT_MANAGED | BY_KERNEL => self.sync_plain(level),
            errno => told(errno, "flush", fd),
        };
        if result < 0 {
            self.file.has_written.store(true, Ordering::SeqCst);
        }
        result
    }

    /// Makes a file durable that only the kernel knows, which has no limit of time for that.
    fn sync_plain(&self, level: u32) -> c_int {
        let fd = self.fd();
        let mut settled_ns = None;
        // A file system may note a change late, with the sync: once more, then.
        for _ in 0..SYNCS {
            // Before the sync, and when its clock is past that: each later change shows in it.
            let before_ns = match self.status().map(|found| found.changed_ns()) {
                Ok(before_ns) => before_ns.filter(|&time_ns| kernel::pass(time_ns)),
                Err(errno) => return told(errno, "flush", fd),
            };
            let begin_ns = self.status().ok().and_then(|found| found.changed_ns());
            let synced = kernel::sync(fd);
            if synced < 0 {
                return told(synced, "flush", fd);
            }
            let after_ns = self.status().ok().and_then(|found| found.changed_ns());
            if before_ns == begin_ns && begin_ns == after_ns {
                settled_ns = before_ns;
                break;
            }
        }
        if is_of_another_build() {
            return other_build("flush", fd);
        }
        self.file.synced_ns.fetch_max(settled_ns.unwrap_or(0), Ordering::SeqCst);
        self.remember(level, Remembered { ticket: 0, errors: 0, flags: BEGUN | PLAIN });
        0
    }

    /// Whether what the kernel has of the file was not changed since it was synced, and that is all
    /// of it.
    fn is_safe_plain(&self, status: Status) -> c_int {
        let synced_ns = self.file.synced_ns.load(Ordering::SeqCst);
        let mut missing = UnsafeNow::default();
        // SAFETY: `missing` is written to.
        let look =
            |services: &Services| unsafe { (services.not_on_store)(self.fd(), &mut missing) };
        match services().map_or(NOT_MANAGED, look) {
            0 | NOT_MANAGED => {}
            errno => return told(errno, "an earlier flush of", self.fd()),
        }
        // After: what came to the store meanwhile has changed its file.
        let is_clean = (missing.memory, missing.tiers, missing.is_resized) == (0, 0, 0);
        let now = self.status().unwrap_or(status).changed_ns();
        (is_clean && synced_ns != 0 && now == Some(synced_ns)).into()
    }

    /// Whether all that was written to the file is at `level`: 1, or 0 if not, or not known.
    pub fn is_safe(&self, level: u32) -> c_int {
        const WHAT: &str = "an earlier flush of";
        let status = match self.status() {
            Ok(status) => status,
            Err(_) => return told(-libc::EBADFD, WHAT, self.fd()),
        };
        let Some(flush) = self.last_flush(level) else { return 0 };
        if flush.flags & PLAIN != 0 {
            return self.is_safe_plain(status);
        }
        match self.progress(flush, level) {
            progress::DONE => 1,
            // Written since by others, or the journal's blocks were moved: that is not known.
            progress::CHANGED
                if level == level::DURABLE && !self.file.has_written.load(Ordering::SeqCst) =>
            {
                self.flush(level).min(0)
            }
            progress::WAITING | progress::CHANGED | NOT_MANAGED => 0,
            errno => told(errno, WHAT, self.fd()),
        }
    }

    fn progress(&self, flush: Remembered, level: u32) -> c_int {
        let begun = self.begun(flush, level);
        // SAFETY: `begun` is read.
        let look = |services: &Services| unsafe { (services.progress)(self.fd(), &begun) };
        services().map_or(NOT_MANAGED, look)
    }

    /// Waits until what was written before the last flush is at `level`; begins one if none is
    /// under way.
    pub fn wait(&self, level: u32, timeout_ms: i64) -> c_int {
        let fd = self.fd();
        if let Err(errno) = self.status() {
            return told(errno, "flush", fd);
        }
        let last = self.last_flush(level).filter(|flush| {
            flush.flags & PLAIN == 0 && !self.file.has_written.load(Ordering::SeqCst)
        });
        let under_way = match last.map(|flush| (flush, self.progress(flush, level))) {
            // One that only looks, again and again, may find its own flush done between two looks.
            Some((_, progress::DONE)) => return 0,
            Some((flush, progress::WAITING)) => Some(flush),
            _ => None,
        };
        let flush = match under_way {
            Some(flush) => flush,
            None => match (self.flush(level), self.last_flush(level)) {
                (0, Some(flush)) if flush.flags & PLAIN == 0 => flush,
                (result, _) => return result,
            },
        };
        let begun = self.begun(flush, level);
        // SAFETY: `begun` is read.
        let wait = |services: &Services| unsafe { (services.await_flush)(fd, &begun, timeout_ms) };
        match services().map_or(NOT_MANAGED, wait) {
            awaited::DONE => 0,
            awaited::LATE => fail(
                -libc::ETIMEDOUT,
                format_args!(
                    "{} was not flushed within {timeout_ms} ms; the flush goes on: wait again, or \
                     look with forebay_is_safe()",
                    Named(fd)
                ),
            ),
            // The flush is this call's to do.
            awaited::ALONE | NOT_MANAGED => self.flush(level),
            errno => told(errno, "flush", fd),
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
        errno if errno == -libc::ECONNREFUSED => fail(
            errno,
            format_args!(
                "{function}(): no node manager answers, and only it has the files of other \
                 programs; forebay_wait() brings a file of this one to the store without it, and \
                 `forebay recover` the others once their programs have ended"
            ),
        ),
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
            Remembered { ticket: u32::MAX, errors: 0xffff_0fff, flags: BEGUN },
            Remembered { ticket: 7, errors: 3 << 16 | 28, flags: BEGUN | PLAIN },
        ] {
            let again = Remembered::of(flush.word()).unwrap();
            let parts = |of: Remembered| (of.ticket, of.errors, of.flags);
            assert_eq!(parts(again), parts(flush));
        }
        assert!(Remembered::of(0).is_none());
    }

    #[test]
    fn an_older_flush_does_not_replace_a_newer_one() {
        let flush = |ticket| Remembered { ticket, errors: 0, flags: BEGUN };
        let word = AtomicU64::new(0);
        let kept = |ticket| {
            raise(&word, flush(ticket));
            Remembered::of(word.load(Ordering::SeqCst)).map(|flush| flush.ticket)
        };
        assert_eq!([5, 7, 6].map(kept), [Some(5), Some(7), Some(7)]);
        // They begin again behind the highest.
        raise(&word, flush(u32::MAX / 2 + 6));
        assert_eq!([u32::MAX - 1, 3, u32::MAX].map(kept), [Some(u32::MAX - 1), Some(3), Some(3)]);
    }
}
