//! What becomes of the blocks that leave a tier (Hermes section 3.1.2: the data organizer moves
//! data down "to free space"; section 3.2.2: it does so periodically, or when triggered).
//!
//! ```
//! use forebay_placement::leave::{Fate, Keeps, Reads, WayDown, fate, way_down};
//! use forebay_placement::{Hierarchy, TierSnapshot};
//!
//! let tier = |free| TierSnapshot { capacity: 100, free, ..TierSnapshot::default() };
//! let tiers = Hierarchy::new(&[tier(0), tier(60)]).unwrap();
//!
//! // A clean block is dropped, a dirty one goes to the tier below while that has room.
//! assert_eq!(fate(false, Reads::None, Keeps::Nothing), Fate::Dropped);
//! assert_eq!(fate(true, Reads::None, Keeps::Nothing), Fate::Dirty);
//! assert_eq!(way_down(&tiers, 0, 50, true), WayDown::Tier(1));
//! assert_eq!(way_down(&tiers, 0, 70, true), WayDown::Flush);
//! ```

use crate::cost::Speeds;
use crate::promote::Level;
use crate::{Destination, Hierarchy, TierSnapshot, Watermarks, destination};

/// Hotness of a file, in accesses per byte, from which its clean blocks are worth a place below.
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

/// Which copies of what the store has go to a tier when they leave the one above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeps {
    /// None: they would displace others, or there is no such tier.
    Nothing,
    /// Those that have been read again.
    Reused,
    /// All that have been read from the store, if only once.
    Read,
}

impl Keeps {
    /// What the tier `below` keeps, if there is one; `pays` says whether [`keeping_pays`].
    pub fn of(
        below: Option<&TierSnapshot>,
        marks: Watermarks,
        pays: impl FnOnce() -> bool,
    ) -> Keeps {
        match below {
            Some(below) if !Level::of(below, marks, 0).is_roomy => Keeps::Nothing,
            Some(below) if keeps_read(below.free, below.capacity) && pays() => Keeps::Read,
            Some(_) => Keeps::Reused,
            None => Keeps::Nothing,
        }
    }
}

/// Whether a tier with so much room free, of so much, keeps what has been read once: the other half
/// is for what is read again.
pub fn keeps_read(free: u64, capacity: u64) -> bool {
    free > capacity / 2
}

/// Whether a copy of a block of the store is worth to be moved down to `tier` though it was read
/// only once: one more read in two pays for writing it there and for reading it.
pub fn keeping_pays(hierarchy: &Hierarchy, tier: usize, block_bytes: u64) -> bool {
    let speeds = Speeds::of(hierarchy);
    let [.., store] = speeds.paces() else { return false };
    let Some(tier) = hierarchy.tier(tier).and(speeds.paces().get(tier)) else { return false };
    store.reading(block_bytes) >= 2.0 * (tier.writing(block_bytes) + tier.reading(block_bytes))
}

/// What is known of the reads of a block that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// None: it was written here.
    None,
    /// It has come from the store.
    Once,
    /// It has been read again, or its file has.
    Again,
}

impl Reads {
    /// Of a block of a file of this hotness; `is_again`: the block itself has been read again,
    /// `is_copy`: it has come from the store.
    pub fn of(file_hotness: f32, is_again: bool, is_copy: bool) -> Reads {
        match file_hotness >= READ_AGAIN || is_again {
            true => Reads::Again,
            false if is_copy => Reads::Once,
            false => Reads::None,
        }
    }
}

/// Decides about a block. `below` is about the next tier.
pub fn fate(is_dirty: bool, reads: Reads, below: Keeps) -> Fate {
    let least = match below {
        _ if is_dirty => return Fate::Dirty,
        Keeps::Nothing => return Fate::Dropped,
        Keeps::Reused => Reads::Again,
        Keeps::Read => Reads::Once,
    };
    if reads >= least { Fate::Kept } else { Fate::Dropped }
}

/// Where the bytes of dirty blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayDown {
    /// To this tier.
    Tier(usize),
    /// To the store, and then the blocks are clean and go.
    Flush,
    /// Nowhere yet: new blocks go to the tier below meanwhile, and these leave when they are clean.
    Wait,
}

/// Decides about `bytes` of dirty blocks that leave the tier `from`.
///
/// `moves_down`: blocks may move to a lower tier, because the policy of their files fills tiers
/// from the top ([`Policy::moves_down`](crate::Policy::moves_down)) or because a write waits for
/// their room. What starts a flush is not asked: no process is to wait for the store while a lower
/// tier has room.
pub fn way_down(hierarchy: &Hierarchy, from: usize, bytes: u64, moves_down: bool) -> WayDown {
    match destination(hierarchy, from, bytes) {
        Destination::Tier(below) if moves_down => WayDown::Tier(below),
        Destination::Tier(_) => WayDown::Wait,
        Destination::Store => WayDown::Flush,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierSnapshot;

    #[test]
    fn clean_blocks_are_kept_only_where_they_displace_nothing() {
        let keeps = |free| {
            let tier = TierSnapshot { capacity: 100, free, ..TierSnapshot::default() };
            Keeps::of(Some(&tier), Watermarks::default(), || true)
        };
        assert_eq!([25, 26, 50, 51].map(keeps), {
            use Keeps::*;
            [Nothing, Reused, Reused, Read]
        });
        assert_eq!(Reads::of(READ_AGAIN, false, false), Reads::Again);
        assert_eq!(Reads::of(0.0, true, false), Reads::Again);
        assert_eq!(Reads::of(READ_AGAIN - 0.1, false, true), Reads::Once);
        assert_eq!(Reads::of(READ_AGAIN - 0.1, false, false), Reads::None);
        let fates =
            |keeps| [Reads::None, Reads::Once, Reads::Again].map(|reads| fate(false, reads, keeps));
        assert_eq!(fates(Keeps::Nothing), [Fate::Dropped; 3]);
        assert_eq!(fates(Keeps::Reused), [Fate::Dropped, Fate::Dropped, Fate::Kept]);
        assert_eq!(fates(Keeps::Read), [Fate::Dropped, Fate::Kept, Fate::Kept]);
        assert_eq!(fate(true, Reads::Again, Keeps::Read), Fate::Dirty);
    }

    #[test]
    fn what_was_read_once_is_kept_only_above_a_much_slower_store() {
        let device = |bandwidth, latency_ns| TierSnapshot {
            read_bandwidth: bandwidth,
            write_bandwidth: bandwidth,
            latency_ns,
            ..TierSnapshot::default()
        };
        let tiers = [device(8_000_000_000, 100), device(1_000_000_000, 20_000)];
        let pays = |tier, store| {
            keeping_pays(&Hierarchy::new(&tiers).unwrap().with_store(store), tier, 1 << 18)
        };
        assert!(pays(1, device(200_000_000, 1_000_000)));
        assert!(!pays(1, device(1_000_000_000, 20_000)), "as fast as the tier");
        assert!(!pays(1, device(300_000_000, 20_000)), "not much slower");
        assert!(!pays(2, device(200_000_000, 1_000_000)), "no such tier");
    }

    #[test]
    fn a_tier_below_is_used_only_if_blocks_may_move() {
        let tier = |free| TierSnapshot { capacity: 10, free, ..TierSnapshot::default() };
        let tiers = Hierarchy::new(&[tier(0), tier(4), tier(8)]).unwrap();
        let way = |from, bytes, moves| way_down(&tiers, from, bytes, moves);
        assert_eq!(way(0, 4, true), WayDown::Tier(1));
        assert_eq!(way(0, 5, true), WayDown::Tier(2));
        assert_eq!(way(0, 4, false), WayDown::Wait);
        // Without a tier that has the room, waiting would be for ever.
        assert_eq!(way(0, 9, true), WayDown::Flush);
        assert_eq!(way(0, 9, false), WayDown::Flush);
        assert_eq!(way(2, 1, true), WayDown::Flush);
    }
}
