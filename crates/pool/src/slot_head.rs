//! The head of a file of slots, and that of their table: which version of Forebay has made it, and
//! for which pool. It is the last 1 KiB of the file, behind all slots, or records: so it is found
//! whatever the version, and with or without the pool. It is there twice, so that a bit that rots
//! is no loss.
//!
//! ```
//! use forebay_pool::slot_head::{HEAD_BYTES, SlotHead};
//!
//! let mut bytes = SlotHead::new(7).encode();
//! assert_eq!(SlotHead::decode(&bytes).unwrap().pool, 7);
//! // One of its two copies is enough.
//! bytes[16] ^= 1;
//! assert_eq!(SlotHead::decode(&bytes), Some(SlotHead::new(7)));
//! bytes[HEAD_BYTES / 2 + 16] ^= 1;
//! assert_eq!(SlotHead::decode(&bytes), None);
//! ```

use crate::checksum::checksum_of;
use crate::layout::{MAKER, MAKER_BYTES};
use crate::power_loss;
use crate::segment::{Segment, set_text, text};
use crate::slot_record::RECORD_BYTES;
use forebay_placement::TierId;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Bytes of a head: as many as of a record of the table, of which it is the last.
pub const HEAD_BYTES: usize = RECORD_BYTES;
/// Raised with every change of how slots or the records of their table are written.
pub const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"FBSLHEAD";
const FORMAT_AT: usize = 8;
const POOL_AT: usize = 16;
const MAKER_AT: usize = 24;
const COPY_BYTES: usize = HEAD_BYTES / 2;
const SUM_AT: usize = COPY_BYTES - 4;

/// What a head says. Magic number, format, maker and checksum stay where they are in every later
/// format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotHead {
    /// See [`FORMAT`].
    pub format: u32,
    /// The pool's number, see [`crate::layout::Header::number`].
    pub pool: u64,
    maker: [u8; MAKER_BYTES],
}

/// Why a file is not one of a pool's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// It cannot be read.
    System(Errno),
    /// It has no head.
    Headless,
    /// A later version of Forebay made it.
    Format(SlotHead),
    /// It is another pool's.
    Pool,
}

impl SlotHead {
    /// The head of what this version makes for the pool of this number.
    pub fn new(pool: u64) -> SlotHead {
        let mut maker = [0; MAKER_BYTES];
        set_text(&mut maker, MAKER.as_bytes());
        SlotHead { format: FORMAT, pool, maker }
    }

    /// Which version of Forebay made the file.
    pub fn maker(&self) -> String {
        text(&self.maker).to_string_lossy().into_owned()
    }

    /// The bytes that stand for it.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        for copy in bytes.chunks_exact_mut(COPY_BYTES) {
            copy[..8].copy_from_slice(&MAGIC);
            copy[FORMAT_AT..][..4].copy_from_slice(&self.format.to_le_bytes());
            copy[POOL_AT..][..8].copy_from_slice(&self.pool.to_le_bytes());
            copy[MAKER_AT..][..MAKER_BYTES].copy_from_slice(&self.maker);
            let sum = checksum_of(&copy[..SUM_AT]);
            copy[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// The head that `bytes` are, of whatever format.
    pub fn decode(bytes: &[u8]) -> Option<SlotHead> {
        let bytes: &[u8; HEAD_BYTES] = bytes.try_into().ok()?;
        bytes.chunks_exact(COPY_BYTES).find_map(SlotHead::decode_copy)
    }

    fn decode_copy(copy: &[u8]) -> Option<SlotHead> {
        let half = |at: usize| Some(u32::from_le_bytes(*copy.get(at..)?.first_chunk()?));
        if copy[..8] != MAGIC || half(SUM_AT)? != checksum_of(&copy[..SUM_AT]) {
            return None;
        }
        Some(SlotHead {
            format: half(FORMAT_AT)?,
            pool: u64::from_le_bytes(*copy.get(POOL_AT..)?.first_chunk()?),
            maker: *copy.get(MAKER_AT..)?.first_chunk()?,
        })
    }

    /// The head of a file of any size; `None` for one without.
    ///
    /// # Errors
    /// The device's.
    pub fn find(file: BorrowedFd<'_>) -> Result<Option<SlotHead>, Errno> {
        let size = rustix::fs::fstat(file)?.st_size as u64;
        match size.checked_sub(HEAD_BYTES as u64) {
            Some(at) => SlotHead::read(file, at),
            None => Ok(None),
        }
    }

    fn read(file: BorrowedFd<'_>, at: u64) -> Result<Option<SlotHead>, Errno> {
        let mut bytes = [0; HEAD_BYTES];
        loop {
            match rustix::io::pread(file, &mut bytes, at) {
                Err(Errno::INTR) => {}
                got => return Ok((got? == HEAD_BYTES).then(|| SlotHead::decode(&bytes)).flatten()),
            }
        }
    }
}

impl Segment {
    /// Where the slots of file tier `tier` have their head: behind all of them.
    pub fn slots_end(&self, tier: TierId) -> u64 {
        u64::from(self.slots_of(tier)) * self.bucket_bytes() as u64
    }

    /// Where their table has its head.
    pub fn records_end(&self, tier: TierId) -> u64 {
        u64::from(self.slots_of(tier)) * RECORD_BYTES as u64
    }

    /// One past the number of the last slot of a file tier, the sparse ones included.
    fn slots_of(&self, tier: TierId) -> u32 {
        let of_tier = &self.header().tier[tier];
        match of_tier.sparse.buckets {
            0 => of_tier.buckets,
            _ => self.header().sparse(tier).end - of_tier.first_bucket,
        }
    }

    /// Whether `file`, whose head has to be at `end`, is one of this pool's.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check_head(&self, file: BorrowedFd<'_>, end: u64) -> Result<(), Foreign> {
        match SlotHead::read(file, end).map_err(Foreign::System)? {
            None => Err(Foreign::Headless),
            Some(head) if head.format != FORMAT => Err(Foreign::Format(head)),
            Some(head) if head.pool != self.header().number => Err(Foreign::Pool),
            Some(_) => Ok(()),
        }
    }

    /// Writes the head of a file that has none.
    ///
    /// # Errors
    /// The device's.
    pub fn write_head(&self, file: BorrowedFd<'_>, end: u64) -> Result<(), Errno> {
        power_loss::writing(file, end, HEAD_BYTES as u64);
        let bytes = SlotHead::new(self.header().number).encode();
        match rustix::io::pwrite(file, &bytes, end)? {
            HEAD_BYTES => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else_is() {
        let head = SlotHead::new(0x0123_4567_89ab_cdef);
        let bytes = head.encode();
        assert_eq!(SlotHead::decode(&bytes), Some(head));
        assert_eq!(head.maker(), MAKER);
        for bit in 0..COPY_BYTES * 8 {
            let (mut one, mut both) = (bytes, bytes);
            one[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SlotHead::decode(&one), Some(head), "bit {bit}");
            both[bit / 8] ^= 1 << (bit % 8);
            both[COPY_BYTES + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SlotHead::decode(&both), None, "bit {bit}");
        }
        assert_eq!(SlotHead::decode(&bytes[1..]), None);
        assert_eq!(SlotHead::decode(&[0; HEAD_BYTES]), None);
    }
}
