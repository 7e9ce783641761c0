//! A directory's files.

use crate::{MakeBatch, descriptor};
use forebay_device::{BackingStore, Batch, Errno, Identity, Stat, StoreFile};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::ops::Range;
use std::path::PathBuf;

const NS: i64 = 1_000_000_000;

/// The files of a directory that is mounted: to it, a [`StoreFile`] is a descriptor.
#[derive(Clone, Debug)]
pub struct PosixStore {
    folder: PathBuf,
    make_batch: MakeBatch,
}

impl PosixStore {
    /// The store of `folder`, with the batches that `make_batch` makes.
    pub fn new(folder: PathBuf, make_batch: MakeBatch) -> PosixStore {
        PosixStore { folder, make_batch }
    }

    /// Opens the directory.
    ///
    /// # Errors
    /// The errno of opening it.
    pub fn open_folder(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.folder, flags, Mode::empty())
    }
}

impl BackingStore for PosixStore {
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

    fn truncate(&self, file: StoreFile, size: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(descriptor(file)?, size)
    }

    fn punch(&self, file: StoreFile, range: Range<u64>) -> Result<(), Errno> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(descriptor(file)?, mode, range.start, range.end - range.start)
    }

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
