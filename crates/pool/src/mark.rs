//! Marks in a tier's journal: what a client says about a file when no node manager is there to
//! append to the log.
//!
//! ```
//! use forebay_pool::mark::{MARK_BYTES, Mark};
//!
//! let mark = Mark { device: 1, inode: 2, born_ns: 3, sequence: 4 };
//! assert_eq!(Mark::decode(&mark.encode()), Some(mark));
//! assert_eq!(Mark::decode(&[0; MARK_BYTES]), None);
//! ```

/// Where the marks begin in the journal's file.
pub const MARKS_AT: u64 = 128 << 10;
/// Bytes of a mark; the place of a file's mark follows from its file record.
pub const MARK_BYTES: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"FBMARK1\0");

/// The store has everything of a file up to a sequence, durably.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// When the file was born, nanoseconds.
    pub born_ns: u64,
    /// Up to which sequence.
    pub sequence: u64,
}

impl Mark {
    /// The mark as it is written.
    pub fn encode(self) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        let words = [MAGIC, self.device, self.inode, self.born_ns, self.sequence];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The mark in some bytes, if it is one.
    pub fn decode(bytes: &[u8; MARK_BYTES]) -> Option<Mark> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let crc = u32::from_le_bytes(bytes[60..].try_into().ok()?);
        (word(0)? == MAGIC && crc == crc32c::crc32c(&bytes[..60])).then_some(Mark {
            device: word(8)?,
            inode: word(16)?,
            born_ns: word(24)?,
            sequence: word(32)?,
        })
    }
}
