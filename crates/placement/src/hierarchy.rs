//! What a decision may know of the tiers: a copy, taken at one moment.

/// The most tiers a hierarchy has: real machines have two to four above the backing store.
pub const TIERS_MAX: usize = 8;

/// The space of one tier at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSnapshot {
    /// Bytes the tier holds when full.
    pub capacity: u64,
    /// Bytes of it that are free.
    pub free: u64,
}

/// Snapshots of up to [`TIERS_MAX`] tiers, fastest first; the backing store lies below the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hierarchy {
    tiers: [TierSnapshot; TIERS_MAX],
    len: usize,
}

impl Hierarchy {
    /// The hierarchy of these tiers, fastest first, or `None` if they are more than [`TIERS_MAX`].
    pub fn new(tiers: &[TierSnapshot]) -> Option<Self> {
        let mut hierarchy = Self { len: tiers.len(), ..Self::default() };
        hierarchy.tiers.get_mut(..tiers.len())?.copy_from_slice(tiers);
        Some(hierarchy)
    }

    /// All tiers, fastest first.
    pub fn tiers(&self) -> &[TierSnapshot] {
        &self.tiers[..self.len]
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

    #[test]
    fn holds_exactly_up_to_its_limit() {
        let tiers: Vec<_> =
            (0..=TIERS_MAX as u64).map(|n| TierSnapshot { capacity: n, free: n }).collect();
        for len in 0..=TIERS_MAX {
            let hierarchy = Hierarchy::new(&tiers[..len]).unwrap();
            assert_eq!(hierarchy.tiers(), &tiers[..len]);
            assert_eq!(hierarchy.len(), len);
            assert_eq!(hierarchy.is_empty(), len == 0);
            assert_eq!(hierarchy.tier(len), None);
        }
        assert_eq!(Hierarchy::new(&tiers), None);
    }
}
