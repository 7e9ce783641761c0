//! How large a file may become: RLIMIT_FSIZE, and what its store can have.

use crate::open_file::OpenFile;
use crate::session::Session;
use core::sync::atomic::Ordering;
use forebay_pool::Marker;
use forebay_pool::layout::STORES_MAX;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A file that cannot become so large cannot carry our markers either, and is not managed.
const ALWAYS_POSSIBLE: u64 = Marker::HIGHEST;
const SIGXFSZ: i32 = 25;

unsafe extern "C" {
    fn raise(signal: i32) -> i32;
}

/// RLIMIT_FSIZE of the calling process in bytes, plus one.
fn look() -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    limit.min(i64::MAX as u64) + 1
}

/// A vforked child has limits of its own, and so they are remembered with its own session.
impl Session {
    /// To be called whenever the program may have set a limit of its own.
    pub fn limits_changed(&self) {
        self.file_limit.store(look(), Ordering::SeqCst);
        self.reach_changed();
    }

    /// RLIMIT_FSIZE in bytes.
    fn limit_of_files(&self) -> u64 {
        let limit = &self.file_limit;
        if limit.load(Ordering::SeqCst) == 0 {
            // Another thread may have set one meanwhile.
            let _ = limit.compare_exchange(0, look(), Ordering::SeqCst, Ordering::SeqCst);
        }
        limit.load(Ordering::SeqCst) - 1
    }

    /// Whether a file may have bytes up to `end`, as far as RLIMIT_FSIZE goes: else a write to the
    /// kernel sends a signal.
    pub(crate) fn is_within_limit(&self, end: u64) -> bool {
        end < self.file_limit.load(Ordering::Relaxed) || end <= self.limit_of_files()
    }
}

impl OpenFile<'_> {
    /// How many of `length` bytes may be written at `offset`: at least one, if any are asked for.
    ///
    /// # Errors
    /// `INVAL` if the end is no offset; `FBIG` if none may be; the thread also gets SIGXFSZ where
    /// it is RLIMIT_FSIZE that forbids it.
    #[inline]
    pub(crate) fn allowed(&self, offset: u64, length: usize) -> Result<usize, Errno> {
        let end = offset.saturating_add(length as u64);
        if end > i64::MAX as u64 {
            return Err(Errno::INVAL);
        }
        if end < (ALWAYS_POSSIBLE + 1).min(self.session.file_limit.load(Ordering::Relaxed)) {
            return Ok(length);
        }
        self.limited(offset, length)
    }

    /// Whether the description's offset may be `offset`.
    pub(crate) fn can_have(&self, offset: u64) -> bool {
        offset <= ALWAYS_POSSIBLE || self.largest().is_ok_and(|largest| offset <= largest)
    }

    /// How many of `length` bytes from `offset` on a file of this store can have; `None` if it can
    /// have none, not even no bytes there.
    pub(crate) fn possible(&self, offset: u64, length: usize) -> Option<usize> {
        let end = offset.saturating_add(length as u64);
        if self.can_have(end) {
            return Some(length);
        }
        let largest = self.largest().ok()?;
        (offset < largest).then(|| (largest - offset) as usize)
    }

    #[cold]
    fn limited(&self, offset: u64, length: usize) -> Result<usize, Errno> {
        let limit = self.session.limit_of_files();
        if offset.saturating_add(length as u64) <= ALWAYS_POSSIBLE.min(limit) {
            return Ok(length);
        }
        if offset >= limit {
            // SAFETY: as the kernel does.
            unsafe { raise(SIGXFSZ) };
            return Err(Errno::FBIG);
        }
        let largest = self.largest()?;
        if offset >= largest {
            return Err(Errno::FBIG);
        }
        Ok((length as u64).min(limit - offset).min(largest - offset) as usize)
    }

    /// The largest size that the store can have, found by seeking.
    fn largest(&self) -> Result<u64, Errno> {
        let store = self.record.store.load(Ordering::Relaxed) as usize;
        let known_largest = &self.session.largest[store % STORES_MAX];
        let known = known_largest.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(known);
        }
        // A description of its own: the program's offset carries the marker.
        let flags = rustix::fs::OFlags::RDONLY;
        let other = crate::fd::reopen(self.fd, flags)
            .or_else(|_| crate::fd::reopen(self.fd, rustix::fs::OFlags::WRONLY))?;
        let possible = |size| rustix::fs::seek(&other, rustix::fs::SeekFrom::Start(size)).is_ok();
        let (mut low, mut high) = (ALWAYS_POSSIBLE, i64::MAX as u64);
        while low < high {
            let middle = high - (high - low) / 2;
            if possible(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        known_largest.store(low, Ordering::Relaxed);
        Ok(low)
    }
}
