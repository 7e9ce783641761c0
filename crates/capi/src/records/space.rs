//! Which parts of a packed file are free.

use std::collections::BTreeMap;

/// The free parts below `end`, and everything from there on.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Where a part begins, and its bytes; no two touch.
    free: BTreeMap<u64, u64>,
    end: u64,
}

/// What a record takes: whole units, so that no two records share one.
pub(crate) fn rounded(bytes: u64, unit: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(unit.max(1)).unwrap_or(u64::MAX)
}

impl Space {
    /// All but the parts in `used`, each a start and bytes, which do not overlap.
    pub fn around(mut used: Vec<(u64, u64)>) -> Space {
        used.sort_unstable();
        let mut space = Space::default();
        for (start, bytes) in used {
            if start > space.end {
                space.free.insert(space.end, start - space.end);
            }
            space.end = space.end.max(start.saturating_add(bytes));
        }
        space
    }

    /// Takes `bytes` that begin at a multiple of `unit`: the lowest ones.
    pub fn take(&mut self, bytes: u64, unit: u64) -> Option<u64> {
        let fits = |(&start, &length): (&u64, &u64)| {
            let from = start.checked_next_multiple_of(unit)?;
            (from - start).checked_add(bytes).filter(|&need| need <= length).map(|_| from)
        };
        if let Some(from) = self.free.iter().find_map(fits) {
            let (&start, &length) = self.free.range(..=from).next_back()?;
            self.free.remove(&start);
            if from > start {
                self.free.insert(start, from - start);
            }
            if from + bytes < start + length {
                self.free.insert(from + bytes, start + length - from - bytes);
            }
            return Some(from);
        }
        let from = self.end.checked_next_multiple_of(unit)?;
        let end = from.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok())?;
        if from > self.end {
            self.free.insert(self.end, from - self.end);
        }
        self.end = end;
        Some(from)
    }

    /// Gives back what was taken.
    pub fn give(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            (start, bytes) = (before, bytes + length);
        }
        if let Some(length) = self.free.remove(&(start + bytes)) {
            bytes += length;
        }
        self.free.insert(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_taken_again_and_parts_grow_together() {
        let mut space = Space::default();
        let parts: Vec<_> = (0..4).map(|_| space.take(100, 50).unwrap()).collect();
        assert_eq!(parts, [0, 100, 200, 300]);
        for start in [0, 200, 100] {
            space.give(start, 100);
        }
        assert_eq!(space.take(300, 50), Some(0));
        assert_eq!(space.take(100, 64), Some(448), "from the end, rounded up");
        assert_eq!(space.take(40, 1), Some(400), "what was left by that");
    }

    #[test]
    fn gaps_between_used_parts_are_free() {
        let mut space = Space::around(vec![(300, 100), (0, 100)]);
        assert_eq!(space.take(200, 100), Some(100));
        assert_eq!(space.take(1, 1), Some(400));
        assert_eq!(space.take(u64::MAX, 1), None);
    }

    #[test]
    fn no_two_parts_overlap() {
        let (mut space, mut taken) = (Space::default(), Vec::<(u64, u64)>::new());
        let mut random = 1u64;
        for _ in 0..4000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = random >> 33;
            if number.is_multiple_of(3) && !taken.is_empty() {
                let (start, bytes) = taken.swap_remove(number as usize % taken.len());
                space.give(start, bytes);
                continue;
            }
            let (bytes, unit) = (number % 1000 + 1, 1 << (number % 8));
            let start = space.take(bytes, unit).unwrap();
            assert_eq!(start % unit, 0);
            assert!(taken.iter().all(|&(at, of)| start >= at + of || start + bytes <= at));
            taken.push((start, bytes));
        }
        assert!(space.end < 2_000_000, "{}", space.end);
    }
}
