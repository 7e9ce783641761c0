//! What a decision may know of the tiers: a copy, taken at one moment.

use crate::cost::Costs;

/// The most tiers a hierarchy has above its backing store: real machines have two to four. All
/// other limits of tiers follow from this one.
pub const TIERS_MAX: usize = 8;

/// One tier at one moment: its space in bytes, and what the system profiler or observation
/// ([`crate::observe`]) says of its speed.
///
/// A speed of 0 is not known. [`crate::cost::Speeds`] then guesses it from the tier above.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TierSnapshot {
    /// Bytes the tier holds when full.
    pub capacity: u64,
    /// Bytes of it that are free.
    pub free: u64,
    /// Free bytes that writers' bursts will take: nothing is to come up for their sake. See
    /// [`crate::room::Headroom`].
    pub kept: u64,
    /// Bytes that may not leave it: pins, reservations.
    pub pinned: u64,
    /// Bytes that the backing store does not have yet.
    pub dirty: u64,
    /// Bytes per second read.
    pub read_bandwidth: u64,
    /// Bytes per second written.
    pub write_bandwidth: u64,
    /// Nanoseconds until the first byte moves.
    pub latency_ns: u64,
    /// How many use the tier at the same time and divide its bandwidth; 0 counts as 1.
    pub sharers: u32,
    /// The lowest hotness among the tier's blocks that may leave: H of the appendix, equation 3.
    pub coldest: f32,
}

impl TierSnapshot {
    /// Bytes that the data organizer can move away.
    pub fn movable(&self) -> u64 {
        self.capacity.saturating_sub(self.free).saturating_sub(self.pinned)
    }
}

/// Snapshots of up to [`TIERS_MAX`] tiers, fastest first; the backing store lies below the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hierarchy {
    tiers: [TierSnapshot; TIERS_MAX],
    len: usize,
    /// Speed of the backing store. It is taken to have room for everything.
    pub store: TierSnapshot,
    /// What the placement engine counts as a cost.
    pub costs: Costs,
}

impl Default for Hierarchy {
    fn default() -> Self {
        let store = TierSnapshot { capacity: u64::MAX, free: u64::MAX, ..Default::default() };
        Self { tiers: Default::default(), len: 0, store, costs: Costs::default() }
    }
}

impl Hierarchy {
    /// The hierarchy of these tiers, fastest first, above a store of unknown speed, or `None` if
    /// they are more than [`TIERS_MAX`].
    pub fn new(tiers: &[TierSnapshot]) -> Option<Self> {
        let mut hierarchy = Self { len: tiers.len(), ..Self::default() };
        hierarchy.tiers.get_mut(..tiers.len())?.copy_from_slice(tiers);
        Some(hierarchy)
    }

    /// The same tiers above this store.
    pub fn with_store(self, store: TierSnapshot) -> Self {
        Self { store, ..self }
    }

    /// The same tiers, with costs counted like this.
    pub fn with_costs(self, costs: Costs) -> Self {
        Self { costs, ..self }
    }

    /// The same tiers, where tier `tier` has `bytes` more free than was said.
    pub fn with_more_free(mut self, tier: usize, bytes: u64) -> Self {
        if let Some(tier) = self.tiers_mut().get_mut(tier) {
            tier.free = tier.free.saturating_add(bytes).min(tier.capacity);
        }
        self
    }

    /// All tiers, fastest first.
    pub fn tiers(&self) -> &[TierSnapshot] {
        &self.tiers[..self.len]
    }

    /// All tiers, to be corrected in place.
    pub fn tiers_mut(&mut self) -> &mut [TierSnapshot] {
        &mut self.tiers[..self.len]
    }

    /// The tier at this position, 0 being the fastest.
    pub fn tier(&self, index: usize) -> Option<TierSnapshot> {
        self.tiers().get(index).copied()
    }

    /// The number of tiers above the backing store.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing but the backing store.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(capacity: u64, free: u64) -> TierSnapshot {
        TierSnapshot { capacity, free, ..Default::default() }
    }

    #[test]
    fn holds_exactly_up_to_its_limit() {
        let tiers: Vec<_> = (0..=TIERS_MAX as u64).map(|n| tier(n, n)).collect();
        for len in 0..=TIERS_MAX {
            let mut hierarchy = Hierarchy::new(&tiers[..len]).unwrap();
            assert_eq!(hierarchy.tiers(), &tiers[..len]);
            assert_eq!(hierarchy.tiers_mut(), &tiers[..len]);
            assert_eq!(hierarchy.len(), len);
            assert_eq!(hierarchy.is_empty(), len == 0);
            assert_eq!(hierarchy.tier(len), None);
        }
        assert_eq!(Hierarchy::new(&tiers), None);
    }

    #[test]
    fn what_is_pinned_or_free_cannot_be_moved() {
        assert_eq!(tier(10, 4).movable(), 6);
        assert_eq!(TierSnapshot { pinned: 5, ..tier(10, 4) }.movable(), 1);
        assert_eq!(TierSnapshot { pinned: 9, ..tier(10, 4) }.movable(), 0);
    }
}
