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
use crate::{Destination, Hierarchy, TIERS_MAX, TierSnapshot, Watermarks, destination};

/// Hotness of a file, in accesses per byte, from which its clean blocks are worth a place below.
const READ_AGAIN: f32 = 1.5;

/// Bytes that a worker moves at once, at most.
pub const BATCH_BYTES: u64 = 16 << 20;
/// The least number of pieces in which a tier is emptied.
const PIECES: u64 = 16;

/// So many times as many blocks as shall leave are considered: those that cost least to move leave.
pub const CHOICE: usize = 2;

/// Blocks of `unit` bytes in each piece in which a tier of this capacity is emptied: a writer that
/// waits for room goes on with the first, and the next sees what has changed. Of a small tier small
/// ones, or its writers would wait until half of it has gone down.
///
/// ```
/// use forebay_placement::leave::piece_blocks;
///
/// assert_eq!(piece_blocks(64 << 20, 1 << 18), 16);
/// assert_eq!(piece_blocks(64 << 30, 1 << 18), 64);
/// assert_eq!(piece_blocks(1 << 20, 1 << 18), 1);
/// ```
pub fn piece_blocks(capacity: u64, unit: u64) -> u64 {
    (BATCH_BYTES.min(capacity / PIECES) / unit.max(1)).max(1)
}

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

/// Blocks that leave a tier, by what becomes of them; each list in the order in which they should
/// leave.
#[derive(Clone, Debug)]
pub struct Victims<T> {
    /// The store has them, and no program is likely to want them.
    pub dropped: Vec<T>,
    /// The store has them, but they are wanted again and again: they go one tier down.
    pub kept: Vec<T>,
    /// The store does not have them yet.
    pub dirty: Vec<T>,
    /// A program has pinned them to the tier below, or one below that: they may go there, and
    /// nowhere else, whether the store has them or not.
    pub pinned: Vec<T>,
}

impl<T> Default for Victims<T> {
    fn default() -> Self {
        Self { dropped: Vec::new(), kept: Vec::new(), dirty: Vec::new(), pinned: Vec::new() }
    }
}

impl<T> Victims<T> {
    /// Adds a block behind those of the same fate.
    pub fn push(&mut self, fate: Fate, block: T) {
        let list = match fate {
            Fate::Dropped => &mut self.dropped,
            Fate::Kept => &mut self.kept,
            Fate::Dirty => &mut self.dirty,
        };
        list.push(block);
    }

    /// Adds those of another choice.
    pub fn append(&mut self, more: Self) {
        self.dropped.extend(more.dropped);
        self.kept.extend(more.kept);
        self.dirty.extend(more.dirty);
        self.pinned.extend(more.pinned);
    }

    /// Of these, of which there are [`CHOICE`] times as many, the `want` that cost least to move.
    ///
    /// ```
    /// use forebay_placement::leave::{Fate, Victims};
    ///
    /// let mut victims = Victims::default();
    /// let fates = [Fate::Dirty, Fate::Dropped, Fate::Kept, Fate::Dirty];
    /// for (block, fate) in fates.into_iter().enumerate() {
    ///     victims.push(fate, block);
    /// }
    /// let Victims { dropped, kept, dirty, .. } = victims.cheapest(3);
    /// assert_eq!((dropped, kept, dirty), (vec![1], vec![2], vec![0]));
    /// ```
    #[must_use]
    pub fn cheapest(mut self, want: usize) -> Self {
        self.dropped.truncate(want);
        self.kept.truncate(want - self.dropped.len());
        self.dirty.truncate(want - self.dropped.len() - self.kept.len());
        let found = self.dropped.len() + self.kept.len() + self.dirty.len();
        self.pinned.truncate(want - found);
        self
    }
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

/// How `bytes` that leave the tier `from` are divided among the lower tiers that move at the same
/// time, in whole `unit`s: as fast as each takes them, so that all are done at about the same time,
/// and no more than each has free above its low watermark. What none of them takes is not in the
/// answer.
///
/// ```
/// use forebay_placement::leave::shares;
/// use forebay_placement::{Hierarchy, TierSnapshot, Watermarks};
///
/// let tier = |free, write_bandwidth| TierSnapshot {
///     capacity: 100, free, write_bandwidth, read_bandwidth: 9000, ..TierSnapshot::default()
/// };
/// let tiers = Hierarchy::new(&[tier(0, 9000), tier(100, 1000), tier(100, 330)]).unwrap();
/// assert_eq!(shares(&tiers, Watermarks::default(), 0, 40, 1)[..3], [0, 31, 9]);
/// ```
pub fn shares(
    hierarchy: &Hierarchy,
    marks: Watermarks,
    from: usize,
    bytes: u64,
    unit: u64,
) -> [u64; TIERS_MAX] {
    let unit = unit.max(1);
    let speeds = Speeds::of(hierarchy);
    let mut rooms = [0; TIERS_MAX];
    for (index, tier) in hierarchy.tiers().iter().enumerate().skip(from.saturating_add(1)) {
        let low = (tier.capacity as f64 * marks.low.clamp(0.0, 1.0)) as u64;
        rooms[index] = tier.free.saturating_sub(low) / unit;
    }
    let rate = |index: usize| 1.0 / speeds.move_ns(from, index).max(f64::MIN_POSITIVE);
    let mut taken = [0; TIERS_MAX];
    let mut left = bytes / unit;
    // Each turn fills a tier, or divides all that is left.
    for _ in 0..hierarchy.len() {
        let open = |index: &usize| rooms[*index] > taken[*index];
        let all: f64 = (0..hierarchy.len()).filter(open).map(rate).sum();
        if left == 0 || all <= 0.0 {
            break;
        }
        let (before, now) = (taken, left);
        // The slow ones first, rounded down: what that leaves is for the fast ones.
        for index in (0..hierarchy.len()).rev() {
            let room = rooms[index] - before[index];
            if room > 0 {
                let share = (now as f64 * rate(index) / all) as u64;
                let share = share.min(room).min(left);
                taken[index] += share;
                left -= share;
            }
        }
        if taken == before {
            break;
        }
    }
    for index in 0..hierarchy.len() {
        let rest = left.min(rooms[index] - taken[index]);
        taken[index] += rest;
        left -= rest;
    }
    taken.map(|units| units * unit)
}

/// Who moves blocks down that leave a tier while writers wait: how many each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// The tier's demoter, first: a writer goes on with what it moves.
    pub itself: u64,
    /// The placer of each lower tier. What none of them takes is the demoter's, too.
    pub placers: [u64; TIERS_MAX],
}

/// Divides `blocks` of `unit` bytes that leave the tier `from` among its demoter and the placers of
/// the lower tiers, so that all [`shares`] move at the same time. Of what goes to the tier that the
/// demoter itself moves to, the placer there takes half: while one computes sums, the device works
/// for the other.
///
/// ```
/// use forebay_placement::leave::{Division, divide};
/// use forebay_placement::{Hierarchy, TierSnapshot, Watermarks};
///
/// let tier = |free, write_bandwidth| TierSnapshot {
///     capacity: 100, free, write_bandwidth, read_bandwidth: 9000, ..TierSnapshot::default()
/// };
/// let tiers = Hierarchy::new(&[tier(0, 9000), tier(100, 1000), tier(100, 330)]).unwrap();
/// let Division { itself, placers } = divide(&tiers, Watermarks::default(), 0, 40, 1);
/// assert_eq!((itself, &placers[..3]), (16, &[0, 15, 9][..]));
/// ```
pub fn divide(
    hierarchy: &Hierarchy,
    marks: Watermarks,
    from: usize,
    blocks: u64,
    unit: u64,
) -> Division {
    let unit = unit.max(1);
    let bytes = blocks.saturating_mul(unit);
    let mut placers = shares(hierarchy, marks, from, bytes, unit).map(|share| share / unit);
    let mut itself = 0;
    if let Destination::Tier(own) = destination(hierarchy, from, unit) {
        itself = placers[own].div_ceil(2);
        placers[own] -= itself;
    }
    Division { itself, placers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierSnapshot;

    fn tier(free: u64, write_bandwidth: u64) -> TierSnapshot {
        TierSnapshot {
            capacity: 1000,
            free,
            write_bandwidth,
            read_bandwidth: 1_000_000,
            ..TierSnapshot::default()
        }
    }

    /// Every hierarchy of three tiers with some room, at several speeds.
    #[test]
    fn shares_fit_and_take_their_time_together() {
        let marks = Watermarks::default();
        for code in 0..4_u64.pow(4) {
            let digit = |place| code / 4_u64.pow(place) % 4;
            let speeds = [1000 + 1000 * digit(0), 100 + 300 * digit(1)];
            let rooms = [300 * digit(2), 300 * digit(3)];
            let tiers = [tier(0, 9000), tier(rooms[0], speeds[0]), tier(rooms[1], speeds[1])];
            let hierarchy = Hierarchy::new(&tiers).unwrap();
            for bytes in [0, 7, 100, 640, 2000] {
                let shares = shares(&hierarchy, marks, 0, bytes, 10);
                let context = format!("{speeds:?} {rooms:?} {bytes} -> {shares:?}");
                let most = rooms.map(|room| room.saturating_sub(100) / 10 * 10);
                assert_eq!(shares[0], 0, "{context}");
                assert!(shares[1] <= most[0] && shares[2] <= most[1], "{context}");
                let all = shares.iter().sum::<u64>();
                assert_eq!(all, (bytes / 10 * 10).min(most[0] + most[1]), "{context}");
                // A tier that has room left is not done later than by one unit.
                for (one, other) in [(0, 1), (1, 0)] {
                    let time = |tier: usize| shares[tier + 1] as f64 / speeds[tier] as f64;
                    if shares[one + 1] < most[one] {
                        let late = time(other) - time(one);
                        assert!(late <= 20.0 / speeds[other].min(speeds[one]) as f64, "{context}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_division_loses_no_block_and_leaves_its_first_half_to_the_demoter() {
        let marks = Watermarks::default();
        for rooms in [[0, 0], [0, 900], [150, 900], [900, 0], [900, 900]] {
            let tiers = [tier(0, 9000), tier(rooms[0], 1000), tier(rooms[1], 300)];
            let hierarchy = Hierarchy::new(&tiers).unwrap();
            for blocks in [0, 1, 2, 7, 50] {
                let shares = shares(&hierarchy, marks, 0, blocks * 10, 10).map(|share| share / 10);
                let Division { itself, placers } = divide(&hierarchy, marks, 0, blocks, 10);
                let context = format!("{rooms:?} {blocks}: {itself} {placers:?}");
                let all = itself + placers.iter().sum::<u64>();
                assert_eq!(all, shares.iter().sum::<u64>(), "{context}");
                assert!(all <= blocks, "{context}");
                let own = if rooms[0] >= 10 { 1 } else { 2 };
                assert_eq!(itself, shares[own].div_ceil(2), "{context}");
                assert_eq!(placers[own], shares[own] / 2, "{context}");
            }
        }
    }

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
