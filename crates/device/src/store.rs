//! The files below all tiers.

use crate::{Batch, Errno, Span};
use std::ops::Range;

/// An open file of a store: a number that the store gave out, and that only it understands.
///
/// To a store of POSIX files it is the descriptor. It is valid as long as its holder keeps the
/// file open; the store refuses a number that it does not know, with `BADF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFile(i32);

impl StoreFile {
    /// A file that no store has.
    pub const NONE: StoreFile = StoreFile(-1);

    /// The file that its store knows by `number`.
    pub const fn new(number: i32) -> StoreFile {
        StoreFile(number)
    }

    /// The store's number.
    pub const fn number(self) -> i32 {
        self.0
    }
}

/// What a file is known by, whatever its name: no two files of all stores have the same at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The store: of POSIX files the file system's device number.
    pub store: u64,
    /// The file within it: of POSIX files the inode.
    pub id: u64,
}

/// What a store says of a file. Times are nanoseconds since 1970, negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is known by.
    pub identity: Identity,
    /// Bytes up to its end.
    pub size: u64,
    /// Names that lead to it.
    pub links: u64,
    /// When its bytes last changed.
    pub modified_ns: i64,
    /// When anything of it last changed.
    pub changed_ns: i64,
}

/// The files of a store, open ones: names are the kernel's business, and the business of those that
/// open files.
///
/// Its methods wait for what they do, and may be called by any thread. A new implementation passes
/// `crates/tiers/tests/devices.rs`.
pub trait BackingStore: Send + Sync {
    /// What the store says of a file.
    ///
    /// # Errors
    /// The store's.
    fn stat(&self, file: StoreFile) -> Result<Stat, Errno>;

    /// Reads bytes of a file from `offset` on, up to its end. Returns how many: fewer than there is
    /// room for also where the store failed after some.
    ///
    /// # Safety
    /// `into` is valid for writes. Others may write it at the same time, if no thread holds a
    /// reference to it.
    ///
    /// # Errors
    /// The store's, if there were none.
    unsafe fn read(&self, file: StoreFile, offset: u64, into: Span) -> Result<usize, Errno>;

    /// Writes `from` to a file from `offset` on. Returns how many bytes: fewer where the store
    /// failed after some.
    ///
    /// # Safety
    /// `from` is valid for reads. Others may write it at the same time, if no thread holds a
    /// reference to it.
    ///
    /// # Errors
    /// The store's, if there were none.
    unsafe fn write(&self, file: StoreFile, offset: u64, from: Span) -> Result<usize, Errno>;

    /// Returns when what was written to a file, its size and its times outlast a loss of power.
    ///
    /// # Errors
    /// The store's.
    fn sync(&self, file: StoreFile) -> Result<(), Errno>;

    /// Lets a file end at byte `size`; what it gains are zeros.
    ///
    /// # Errors
    /// The store's.
    fn truncate(&self, file: StoreFile, size: u64) -> Result<(), Errno>;

    /// Lets a range of bytes be zeros and take no room. The file's size stays.
    ///
    /// # Errors
    /// The store's; `OPNOTSUPP` where zeros have to be written instead.
    fn punch(&self, file: StoreFile, range: Range<u64>) -> Result<(), Errno>;

    /// Sets when the file's bytes last changed, in nanoseconds since 1970, negative before.
    ///
    /// # Errors
    /// The store's, mostly that only the file's owner may.
    fn set_modified(&self, file: StoreFile, modified_ns: i64) -> Result<(), Errno>;

    /// Returns when everything that was written to any file of the store outlasts a loss of power.
    ///
    /// # Errors
    /// The store's.
    fn sync_all(&self) -> Result<(), Errno>;

    /// Transfers of files, with up to `depth` under way at once.
    fn batch(&self, depth: u32) -> Box<dyn Batch>;
}
