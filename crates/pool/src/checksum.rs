//! CRC-32C of pages, slot records and other bytes in shared memory and on file tiers; 0 stands for
//! "not known".
//!
//! ```
//! use forebay_pool::checksum::{Checksum, checksum_of};
//!
//! let mut checksum = Checksum::default();
//! checksum.add(b"a page, ");
//! checksum.add(b"piece by piece");
//! assert_eq!(checksum.sum(), checksum_of(b"a page, piece by piece"));
//! ```

/// A checksum that is computed piece by piece.
#[derive(Clone, Copy, Default)]
pub struct Checksum(u32);

impl Checksum {
    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// The sum of all bytes; never 0.
    pub fn sum(self) -> u32 {
        self.0.max(1)
    }
}

/// The sum of a page, or of other bytes; never 0.
pub fn checksum_of(bytes: &[u8]) -> u32 {
    let mut checksum = Checksum::default();
    checksum.add(bytes);
    checksum.sum()
}
