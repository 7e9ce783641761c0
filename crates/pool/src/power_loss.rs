//! A loss of power, simulated by test builds: with `FOREBAY_POWER_LOSS=DIR` what a write or a
//! truncate replaces is first kept in DIR, and a sync of the file makes that void. A test that puts
//! a part of it back has what a disk may look like that was never told to sync. Without debug
//! assertions all of this is nothing.
//!
//! DIR/DEVICE-INODE-BIRTH has for each page that was changed a head of five words, and what it was:
//! time, kind (0: write, 1: sync, 2: new size, 3: sync of some bytes), offset, number of old bytes,
//! old size of the file. A sync of some bytes has their number, in a word, instead of old bytes.
//! DIR/DEVICE-all has the syncs of all its files.

use rustix::fd::BorrowedFd;

/// Before `bytes` are written at `offset` of `fd`.
#[inline(always)]
pub fn writing(fd: BorrowedFd<'_>, offset: u64, bytes: u64) {
    #[cfg(debug_assertions)]
    kept::keep(fd, offset, Some(bytes));
    #[cfg(not(debug_assertions))]
    let _ = (fd, offset, bytes);
}

/// Before the size of `fd` is set to `size`.
#[inline(always)]
pub fn resizing(fd: BorrowedFd<'_>, size: u64) {
    #[cfg(debug_assertions)]
    kept::keep(fd, size, None);
    #[cfg(not(debug_assertions))]
    let _ = (fd, size);
}

/// After a sync of `fd` that began at `began`, of the monotonic clock.
#[inline(always)]
pub fn synced(fd: BorrowedFd<'_>, began: u64) {
    #[cfg(debug_assertions)]
    kept::forget(fd, began);
    #[cfg(not(debug_assertions))]
    let _ = (fd, began);
}

/// After a write of `bytes` at `offset` that began at `began`, of the monotonic clock, and that the
/// kernel has synced with the size of the file.
#[inline(always)]
pub fn wrote_through(fd: BorrowedFd<'_>, offset: u64, bytes: u64, began: u64) {
    #[cfg(debug_assertions)]
    kept::forget_range(fd, offset, bytes, began);
    #[cfg(not(debug_assertions))]
    let _ = (fd, offset, bytes, began);
}

/// After a sync of the whole file system of `fd` that began at `began`, of the monotonic clock.
#[inline(always)]
pub fn synced_all(fd: BorrowedFd<'_>, began: u64) {
    #[cfg(debug_assertions)]
    kept::forget_all(fd, began);
    #[cfg(not(debug_assertions))]
    let _ = (fd, began);
}

#[cfg(debug_assertions)]
mod kept {
    use crate::environment::Variable;
    use rustix::fd::{BorrowedFd, OwnedFd};
    use rustix::fs::{Mode, OFlags};
    use rustix::io::IoSlice;
    use std::sync::OnceLock;

    const PAGE: u64 = 4096;

    fn file_of(fd: BorrowedFd<'_>, all: bool) -> Option<(OwnedFd, u64)> {
        static FOLDER: OnceLock<Variable> = OnceLock::new();
        let folder = FOLDER.get_or_init(|| Variable::of(b"FOREBAY_POWER_LOSS="));
        let folder = core::str::from_utf8(folder.bytes()).ok().filter(|path| !path.is_empty())?;
        let stat = rustix::fs::fstat(fd).ok()?;
        let path = match all {
            true => format!("{folder}/{}-all", stat.st_dev),
            // The number may be that of a file that was removed.
            false => format!("{folder}/{}-{}-{}", stat.st_dev, stat.st_ino, born_ns(fd)?),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        let kept =
            rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        Some((kept, stat.st_size as u64))
    }

    fn born_ns(fd: BorrowedFd<'_>) -> Option<u64> {
        let wanted = rustix::fs::StatxFlags::BTIME;
        let born =
            rustix::fs::statx(fd, c"", rustix::fs::AtFlags::EMPTY_PATH, wanted).ok()?.stx_btime;
        Some(crate::clock::joined_ns(born.tv_sec, born.tv_nsec.into()))
    }

    fn add(kept: &OwnedFd, head: [u64; 5], bytes: &[u8]) {
        let head = head.map(u64::to_ne_bytes);
        let _ = rustix::io::writev(kept, &[IoSlice::new(head.as_flattened()), IoSlice::new(bytes)]);
    }

    /// `None`: all bytes from `offset` on, which is the new size.
    pub fn keep(fd: BorrowedFd<'_>, offset: u64, bytes: Option<u64>) {
        let Some((kept, size)) = file_of(fd, false) else { return };
        // The descriptor may be one that cannot read.
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let Ok(reader) = rustix::fs::openat(rustix::fs::CWD, path, OFlags::CLOEXEC, Mode::empty())
        else {
            return;
        };
        let now = crate::clock::monotonic_ns();
        let end = offset.saturating_add(bytes.unwrap_or(u64::MAX));
        let kind = if bytes.is_some() { 0 } else { 2 };
        let mut at = offset;
        loop {
            let next = (at / PAGE * PAGE + PAGE).min(end);
            let mut old = [0u8; PAGE as usize];
            let wanted = &mut old[..(next - at) as usize];
            let got = rustix::io::pread(&reader, &mut *wanted, at).unwrap_or(0);
            // Beyond the old end a write replaces nothing, which is zeros.
            let count = if bytes.is_none() { got } else { wanted.len() };
            add(&kept, [now, kind, at, count as u64, size], &wanted[..count]);
            at = next;
            if at >= end || bytes.is_none() && at >= size {
                return;
            }
        }
    }

    pub fn forget(fd: BorrowedFd<'_>, began: u64) {
        forget_of(fd, began, false);
    }

    pub fn forget_range(fd: BorrowedFd<'_>, offset: u64, bytes: u64, began: u64) {
        if crate::crash::planted("fsync-lies") {
            return;
        }
        let Some((kept, size)) = file_of(fd, false) else { return };
        add(&kept, [began, 3, offset, 8, size], &bytes.to_ne_bytes());
    }

    pub fn forget_all(fd: BorrowedFd<'_>, began: u64) {
        forget_of(fd, began, true);
    }

    fn forget_of(fd: BorrowedFd<'_>, began: u64, all: bool) {
        if crate::crash::planted("fsync-lies") {
            return;
        }
        let Some((kept, size)) = file_of(fd, all) else { return };
        add(&kept, [began, 1, 0, 0, size], &[]);
    }
}
