//! Which file record, which bucket: places in the pool's tables.

use crate::sync::{AtomicU32, Ordering};
use core::fmt;

macro_rules! table_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(u32);

        impl $name {
            /// The one that a word of shared memory or of a file names. It may be damaged: whether
            /// there is one of this number is seen where the table is asked.
            #[inline]
            pub const fn from_raw(number: u32) -> $name {
                $name(number)
            }

            /// Its number, from 0.
            #[inline]
            pub const fn raw(self) -> u32 {
                self.0
            }

            /// The next one.
            #[inline]
            pub const fn next(self) -> $name {
                $name(self.0 + 1)
            }

            /// Its place in a table.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// Those of the numbers `first .. end`.
            #[inline]
            pub fn range(
                first: u32,
                end: u32,
            ) -> impl DoubleEndedIterator<Item = $name> + ExactSizeIterator + Clone {
                (first..end).map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

table_id! {
    /// A bucket of any tier: they are counted over all tiers of a node, those of RAM first.
    BucketId
}

table_id! {
    /// A file, by its record in the pool's table. Which file a record is about may change when it
    /// is removed: its generation then rises.
    FileId
}

impl FileId {
    /// The record that a link of the table's chains leads to; none at a chain's end.
    #[inline]
    pub(crate) fn from_link(link: u32) -> Option<FileId> {
        link.checked_sub(1).map(FileId)
    }

    /// The link that leads to its record.
    #[inline]
    pub(crate) fn link(self) -> u32 {
        self.0 + 1
    }
}

/// A word of shared memory that names a file's record.
#[repr(transparent)]
pub struct AtomicFileId(AtomicU32);

impl AtomicFileId {
    /// One that names `file`.
    pub fn new(file: FileId) -> AtomicFileId {
        AtomicFileId(AtomicU32::new(file.0))
    }

    /// The record. It may be damaged, see [`FileId::from_raw`].
    #[inline]
    pub fn load(&self, order: Ordering) -> FileId {
        FileId(self.0.load(order))
    }

    /// Names another.
    #[inline]
    pub fn store(&self, file: FileId, order: Ordering) {
        self.0.store(file.0, order);
    }
}
