//! A directory's files.

use crate::{MakeBatch, Positional, descriptor, whole};
use forebay_device::{BackingStore, Batch, Errno, Identity, Span, Stat, StoreFile};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::ops::Range;
use std::path::PathBuf;

const NS: i64 = 1_000_000_000;

/// The files of a directory that is mounted: to it, a [`StoreFile`] is a descriptor.
#[derive(Clone, Debug)]
pub struct PosixStore {
    folder: Option<PathBuf>,
    make_batch: MakeBatch,
}

impl PosixStore {
    /// The store of `folder`, with the batches that `make_batch` makes.
    pub fn new(folder: PathBuf, make_batch: MakeBatch) -> PosixStore {
        PosixStore { folder: Some(folder), make_batch }
    }

    /// The store of files that are open, wherever they lie: it cannot be synced as a whole.
    pub const fn of_descriptors() -> PosixStore {
        PosixStore { folder: None, make_batch: Positional::open }
    }

    /// Opens the directory.
    ///
    /// # Errors
    /// The errno of opening it; `BADF` if it is not known.
    pub fn open_folder(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(self.folder.as_ref().ok_or(Errno::BADF)?, flags, Mode::empty())
    }
}

impl BackingStore for PosixStore {
    #[inline]
    fn stat(&self, file: StoreFile) -> Result<Stat, Errno> {
        let found = rustix::fs::fstat(descriptor(file)?)?;
        let ns = |seconds: i64, rest: i64| seconds.wrapping_mul(NS).wrapping_add(rest);
        Ok(Stat {
            identity: Identity { store: found.st_dev, id: found.st_ino },
            size: found.st_size as u64,
            links: found.st_nlink as u64,
            modified_ns: ns(found.st_mtime, found.st_mtime_nsec as i64),
            changed_ns: ns(found.st_ctime, found.st_ctime_nsec as i64),
        })
    }

    #[inline]
    unsafe fn read(&self, file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno> {
        // SAFETY: as the caller promises.
        unsafe { whole::read(file, offset, into) }
    }

    #[inline]
    unsafe fn write(&self, file: StoreFile, offset: u64, from: Span) -> Result<usize, Errno> {
        // SAFETY: as the caller promises.
        unsafe { whole::write(file, offset, from) }
    }

    #[inline]
    fn sync(&self, file: StoreFile) -> Result<(), Errno> {
        rustix::fs::fsync(descriptor(file)?)
    }

    #[inline]
    fn truncate(&self, file: StoreFile, size: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(descriptor(file)?, size)
    }

    #[inline]
    fn punch(&self, file: StoreFile, range: Range<u64>) -> Result<(), Errno> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(descriptor(file)?, mode, range.start, range.end - range.start)
    }

    #[inline]
    fn set_modified(&self, file: StoreFile, modified_ns: i64) -> Result<(), Errno> {
        let (seconds, rest) = (modified_ns.div_euclid(NS), modified_ns.rem_euclid(NS));
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: rest as _ },
        };
        rustix::fs::futimens(descriptor(file)?, &times)
    }

    fn sync_all(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(self.open_folder()?)
    }

    fn batch(&self, depth: u32) -> Box<dyn Batch> {
        (self.make_batch)(None, depth)
    }
}
