//! A word of the block index: where a block's bytes are.

use crate::BucketId;
use crate::owner::Owner;
use crate::sync::{AtomicU64, Ordering};
use forebay_placement::{NodeId, TierId};

/// What an index entry says. Encoded in one atomic word:
///
/// ```text
/// 63     60 59    56 55        48 47          32 31                 0
/// +--------+--------+------------+--------------+-------------------+
/// | kind   | tier   | 0          | node         | bucket or owner   |
/// +--------+--------+------------+--------------+-------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Only the backing store has the block (or it is a hole).
    Empty,
    /// `owner` writes to the store around the tiers.
    Busy(Owner),
    /// The block lies in a bucket of this node.
    Resident {
        /// The bucket's tier.
        tier: TierId,
        /// Bucket id, counted over all tiers of the node.
        bucket: BucketId,
    },
    /// The block lies in a bucket of another node. No node lends buckets yet: such an entry is
    /// damaged, is never taken for a bucket of this node, and fails the calls that need its bytes.
    Elsewhere {
        /// Node whose segment has the bucket.
        node: NodeId,
        /// The bucket's tier there.
        tier: TierId,
        /// Bucket id, counted over all tiers of that node.
        bucket: BucketId,
    },
}

const KIND_BUSY: u64 = 1;
const KIND_RESIDENT: u64 = 2;

impl Entry {
    /// The word of an empty entry, which is what a zeroed index node holds.
    pub const EMPTY: u64 = 0;

    /// An entry for a bucket of this node.
    pub fn resident(tier: TierId, bucket: BucketId) -> Entry {
        Entry::Resident { tier, bucket }
    }

    /// The entry as a word.
    #[inline]
    pub fn encode(self) -> u64 {
        match self {
            Entry::Empty => Self::EMPTY,
            Entry::Busy(owner) => KIND_BUSY << 60 | u64::from(owner.raw()),
            Entry::Resident { tier, bucket } => {
                Entry::Elsewhere { node: NodeId::LOCAL, tier, bucket }.encode()
            }
            Entry::Elsewhere { node, tier, bucket } => {
                KIND_RESIDENT << 60
                    | (tier.index() as u64 & 0xf) << 56
                    | u64::from(node.raw()) << 32
                    | u64::from(bucket.raw())
            }
        }
    }

    /// Lets the empty index entry `place` say this: the word that is there then. `None` if another
    /// thread was faster.
    #[inline]
    pub fn publish(self, place: &AtomicU64) -> Option<u64> {
        let word = self.encode();
        let put = place.compare_exchange(Self::EMPTY, word, Ordering::AcqRel, Ordering::Relaxed);
        put.is_ok().then_some(word)
    }

    /// The entry in a word. A word that no encoder made reads as empty.
    #[inline]
    pub fn decode(word: u64) -> Entry {
        match word >> 60 {
            KIND_RESIDENT => {
                let tier = TierId::new((word >> 56 & 0xf) as usize);
                let bucket = BucketId::from_raw(word as u32);
                match NodeId::from_raw((word >> 32) as u16) {
                    NodeId::LOCAL => Entry::Resident { tier, bucket },
                    node => Entry::Elsewhere { node, tier, bucket },
                }
            }
            KIND_BUSY => Owner::from_raw(word as u32).map_or(Entry::Empty, Entry::Busy),
            _ => Entry::Empty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_survives_its_word() {
        for entry in [
            Entry::Empty,
            Entry::Busy(Owner::new(4095, 0xfffff)),
            Entry::resident(TierId::new(7), BucketId::from_raw(u32::MAX - 1)),
            Entry::Elsewhere {
                node: NodeId::from_raw(u16::MAX),
                tier: TierId::new(15),
                bucket: BucketId::from_raw(0),
            },
        ] {
            assert_eq!(Entry::decode(entry.encode()), entry);
        }
    }
}
