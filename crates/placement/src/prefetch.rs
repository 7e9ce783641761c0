//! What will be read next: one predictor for each reader, and what guessing may cost.
//!
//! As in Linux' readahead (mm/readahead.c), a window doubles while reading goes on as expected, and
//! more is asked for while there is some of it left. Unlike there, reads at distances that repeat
//! are followed too, in both directions and within each other ([`Predictor`]), an order that an
//! earlier run has read a file in ([`Follower`]), and what a program expects that a user has
//! supplied ([`Expectations`]). How far is looked ahead follows from the speeds of source and
//! reader ([`depth()`]), and what is guessed in vain is bounded ([`Account`]).

mod account;
mod depth;
mod expectations;
mod follower;
mod nest;
mod predictor;

pub use account::{Account, GRACE};
pub use depth::{Consumption, DEPTH_MAX, KEPT, UNDER_WAY, batch, depth, room};
pub use expectations::Expectations;
pub use follower::Follower;
pub use predictor::{Limit, Predictor, Touched};

use crate::cost::{Pace, Speeds};
use crate::{Destination, Hierarchy};

/// Blocks that are looked ahead of a reader at most where the kernel does it, or the speed of the
/// source is not known.
pub const WINDOW_BLOCKS: u64 = 16;
/// How many times longer than from the fastest tier it must take to read a block for bringing it up
/// ahead to pay: that copies the block once more.
const PAYS: f64 = 8.0;

/// Whether blocks that are read one after the other from this place should come to the fastest tier
/// before they are asked for.
pub fn pays(hierarchy: &Hierarchy, from: Destination, block_bytes: u64) -> bool {
    let fastest = pace_of(hierarchy, Destination::Tier(0));
    pace_of(hierarchy, from).reading(block_bytes) >= PAYS * fastest.reading(block_bytes)
}

/// How fast that place is; of a tier that there is not, the store.
pub fn pace_of(hierarchy: &Hierarchy, place: Destination) -> Pace {
    let speeds = Speeds::of(hierarchy);
    let last = speeds.paces().len() - 1;
    match place {
        Destination::Tier(tier) => speeds.paces()[tier.min(last)],
        Destination::Store => speeds.paces()[last],
    }
}

/// What to stage in: `count` pieces of `bytes`, each `stride` further than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Offset of the first piece.
    pub offset: u64,
    /// Bytes of each piece.
    pub bytes: u64,
    /// From each piece to the next; negative when reading backwards. Of one piece: its length, in
    /// the direction in which reading goes on.
    pub stride: i64,
    /// How many pieces.
    pub count: u64,
}

impl Ahead {
    /// Blocks in which the pieces lie.
    pub fn blocks(&self, block_bytes: u64) -> u64 {
        let of_piece = |(offset, bytes): (u64, u64)| {
            (offset % block_bytes).saturating_add(bytes).div_ceil(block_bytes)
        };
        self.pieces().map(of_piece).fold(0, u64::saturating_add)
    }

    /// The pieces: offset and bytes; none before the file's begin.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.count).map_while(|n| {
            let distance = i64::try_from(n).ok()?.checked_mul(self.stride)?;
            Some((self.offset.checked_add_signed(distance)?, self.bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 256 << 10;

    #[test]
    fn only_slow_places_are_read_ahead() {
        let tier = |bandwidth, latency_ns| crate::TierSnapshot {
            read_bandwidth: bandwidth,
            latency_ns,
            ..crate::TierSnapshot::default()
        };
        let ram = tier(10_000_000_000, 100);
        let hierarchy = Hierarchy::new(&[ram, tier(5_000_000_000, 20_000), tier(500_000_000, 0)]);
        let hierarchy = hierarchy.unwrap().with_store(tier(5_000_000_000, 4_000_000));
        let answers = [0, 1, 2].map(|tier| pays(&hierarchy, Destination::Tier(tier), BLOCK));
        assert_eq!(answers, [false, false, true]);
        assert!(pays(&hierarchy, Destination::Store, BLOCK), "its latency is enough");
        assert!(!pays(&Hierarchy::default(), Destination::Store, BLOCK), "nowhere to bring it");
    }
}
