//! What is read of a dataset next: of hyperslabs that go on by the same step, the next one.

use crate::known::RANK_MAX;

/// Equal steps that make a prediction.
const STEPS: u32 = 2;
/// Reads without a prediction after which a dataset is not looked at any more: a look takes as long
/// as a small read.
const LOOKS: u32 = 64;

/// A box of elements: from each of `start` up to each of `end`, both within.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slab {
    /// The lowest index of each dimension.
    pub start: [u64; RANK_MAX],
    /// The highest.
    pub end: [u64; RANK_MAX],
}

/// The hyperslabs that were read of a dataset, as far as they say what is next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selections {
    last: Option<Slab>,
    step: [i64; RANK_MAX],
    equal: u32,
    /// Reads since the last prediction.
    idle: u32,
}

impl Selections {
    /// Whether it is worth a look.
    pub fn may_go_on(&self) -> bool {
        self.idle < LOOKS
    }

    /// Takes in what is read now, and gives what is read next, if that can be told: a box of the
    /// same size, by the step that the last ones had, within `dims`.
    pub fn next(&mut self, now: Slab, dims: &[u64]) -> Option<Slab> {
        let next = self.predict(now, dims);
        self.idle = if next.is_some() { 0 } else { self.idle + 1 };
        next
    }

    fn predict(&mut self, now: Slab, dims: &[u64]) -> Option<Slab> {
        let last = self.last.replace(now)?;
        let sizes = |slab: &Slab| core::array::from_fn(|d| slab.end[d].wrapping_sub(slab.start[d]));
        let (size, before): ([u64; RANK_MAX], [u64; RANK_MAX]) = (sizes(&now), sizes(&last));
        let step: [i64; RANK_MAX] =
            core::array::from_fn(|d| now.start[d].wrapping_sub(last.start[d]) as i64);
        let goes_on = size == before && step.iter().any(|&step| step != 0);
        self.equal = if goes_on && step == self.step { self.equal + 1 } else { u32::from(goes_on) };
        self.step = step;
        if self.equal < STEPS {
            return None;
        }
        let mut next = now;
        for (d, &dim) in dims.iter().enumerate().take(RANK_MAX) {
            next.start[d] = now.start[d].checked_add_signed(step[d])?;
            next.end[d] = now.end[d].checked_add_signed(step[d])?.min(dim.checked_sub(1)?);
            if next.start[d] > next.end[d] {
                return None;
            }
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab(start: [u64; 2], size: [u64; 2]) -> Slab {
        let mut slab = Slab::default();
        for d in 0..2 {
            slab.start[d] = start[d];
            slab.end[d] = start[d] + size[d] - 1;
        }
        slab
    }

    #[test]
    fn the_third_of_equal_steps_says_what_is_next() {
        let (mut seen, dims) = (Selections::default(), [40, 100]);
        let at = |n: u64| slab([0, 30 * n], [40, 20]);
        assert_eq!(seen.next(at(0), &dims), None);
        assert_eq!(seen.next(at(1), &dims), None);
        assert_eq!(seen.next(at(2), &dims), Some(slab([0, 90], [40, 10])), "cut at the end");
        assert_eq!(seen.next(at(3), &dims), None, "there is no more");
    }

    #[test]
    fn what_has_no_steps_is_looked_at_for_a_while() {
        let mut seen = Selections::default();
        for _ in 0..LOOKS {
            assert!(seen.may_go_on());
            seen.next(slab([3, 3], [1, 1]), &[40, 100]);
        }
        assert!(!seen.may_go_on());
    }

    #[test]
    fn other_steps_and_sizes_begin_anew() {
        let (mut seen, dims) = (Selections::default(), [40, 100]);
        let down = |row: u64| slab([row, 0], [2, 100]);
        for row in [30, 28] {
            assert_eq!(seen.next(down(row), &dims), None);
        }
        assert_eq!(seen.next(down(26), &dims), Some(down(24)));
        assert_eq!(seen.next(down(10), &dims), None, "another step");
        assert_eq!(seen.next(slab([8, 0], [3, 100]), &dims), None, "another size");
        assert_eq!(seen.next(slab([6, 0], [3, 100]), &dims), None);
        assert_eq!(seen.next(slab([4, 0], [3, 100]), &dims), Some(slab([2, 0], [3, 100])));
        assert_eq!(seen.next(slab([2, 0], [3, 100]), &dims), Some(slab([0, 0], [3, 100])));
        assert_eq!(seen.next(slab([0, 0], [3, 100]), &dims), None, "before the first");
        assert_eq!(seen.next(slab([0, 0], [3, 100]), &dims), None, "the same again");
    }
}
