//! Which file record, which bucket: places in the pool's tables.

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
