//! What becomes of the blocks that leave a tier (Hermes section 3.1.2: the data organizer moves
//! data down "to free space"; section 3.2.2: it does so periodically, or when triggered).
//!
//! ```
//! use forebay_placement::leave::{Fate, WayDown, fate, way_down};
//! use forebay_placement::{Hierarchy, TierSnapshot};
//!
//! let tier = |free| TierSnapshot { capacity: 100, free, ..TierSnapshot::default() };
//! let tiers = Hierarchy::new(&[tier(0), tier(60)]).unwrap();
//!
//! // A clean block is dropped, a dirty one goes to the tier below while that has room.
//! assert_eq!(fate(false, 0.0, None), Fate::Dropped);
//! assert_eq!(fate(true, 0.0, None), Fate::Dirty);
//! assert_eq!(way_down(&tiers, 0, 50, true, false), WayDown::Tier(1));
//! assert_eq!(way_down(&tiers, 0, 70, true, false), WayDown::Flush);
//! ```

use crate::promote::Level;
use crate::{Destination, Hierarchy, destination};

/// Hotness of a file, in uses, from which its clean blocks are worth a place below.
const READ_AGAIN: f32 = 1.5;

/// What becomes of a block that leaves its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is clean and goes: the store has it, and it is not likely to be read again.
    Dropped,
    /// It is clean and moves to the tier below, where it can be read again.
    Kept,
    /// It is dirty: [`way_down`] says where its bytes go.
    Dirty,
}

/// Decides about a block of a file of this hotness. `below` is the next tier; without it, clean
/// blocks are dropped whatever their hotness.
pub fn fate(is_dirty: bool, file_hotness: f32, below: Option<&Level>) -> Fate {
    match below {
        _ if is_dirty => Fate::Dirty,
        Some(below) if below.is_roomy && file_hotness >= READ_AGAIN => Fate::Kept,
        _ => Fate::Dropped,
    }
}

/// Where the bytes of dirty blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayDown {
    /// To this tier.
    Tier(usize),
    /// To the store, and then the blocks are clean and go.
    Flush,
    /// Nowhere yet: they are flushed without being asked for, and leave when they are clean.
    Wait,
}

/// Decides about `bytes` of dirty blocks that leave the tier `from`.
///
/// `moves_down`: blocks may move to a lower tier, because the policy fills tiers from the top
/// ([`Policy::moves_down`](crate::Policy::moves_down)) or because a write waits for their room.
/// `is_flushed`: dirty blocks are flushed before their room is needed, as with the periodic
/// trigger; a writer that begins to wait meanwhile shall not wait for the store.
pub fn way_down(
    hierarchy: &Hierarchy,
    from: usize,
    bytes: u64,
    moves_down: bool,
    is_flushed: bool,
) -> WayDown {
    match destination(hierarchy, from, bytes) {
        Destination::Tier(below) if moves_down => WayDown::Tier(below),
        Destination::Tier(_) if is_flushed => WayDown::Wait,
        _ => WayDown::Flush,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierSnapshot;

    #[test]
    fn clean_blocks_are_kept_only_where_they_displace_nothing() {
        let roomy = Level { is_roomy: true, ..Level::default() };
        assert_eq!(fate(false, READ_AGAIN, Some(&roomy)), Fate::Kept);
        assert_eq!(fate(false, READ_AGAIN - 0.1, Some(&roomy)), Fate::Dropped);
        assert_eq!(fate(false, 99.0, Some(&Level::default())), Fate::Dropped);
        assert_eq!(fate(true, 99.0, Some(&roomy)), Fate::Dirty);
    }

    #[test]
    fn a_tier_below_is_used_only_if_blocks_may_move() {
        let tier = |free| TierSnapshot { capacity: 10, free, ..TierSnapshot::default() };
        let tiers = Hierarchy::new(&[tier(0), tier(4), tier(8)]).unwrap();
        let way = |from, bytes, moves, flushed| way_down(&tiers, from, bytes, moves, flushed);
        assert_eq!(way(0, 4, true, true), WayDown::Tier(1));
        assert_eq!(way(0, 5, true, false), WayDown::Tier(2));
        assert_eq!(way(0, 4, false, true), WayDown::Wait);
        assert_eq!(way(0, 4, false, false), WayDown::Flush);
        // Without a tier that has the room, waiting would be for ever.
        assert_eq!(way(0, 9, true, true), WayDown::Flush);
        assert_eq!(way(2, 1, true, true), WayDown::Flush);
    }
}
