//! Distances that repeat, and distances between the groups that they make: k pieces at stride s,
//! then a jump to the next k, and so on over three levels (tiles of matrices, bricks of volumes,
//! variables that are read in turns).

/// Levels of strides within each other.
const LEVELS: usize = 3;
/// Repetitions of a distance that make it a pattern.
const REPEATED: u32 = 2;

/// A stride, and how often it repeats before the level above it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    /// From the first piece of one group below to that of the next; 0: not known.
    stride: i64,
    /// Steps in a complete row; 0: not known, it has not ended.
    steps: u32,
    /// Whether it has repeated.
    is_pattern: bool,
}

/// A place in a nest: which piece, and how far each level is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the first piece of each level's latest group begins; of the lowest: the piece.
    starts: [u64; LEVELS],
    /// Steps of each level in its present row.
    steps: [u32; LEVELS],
}

impl Place {
    /// Where its piece begins.
    pub fn offset(&self) -> u64 {
        self.starts[0]
    }

    fn step(&mut self, level: usize, offset: u64) {
        self.steps[level] = self.steps[level].saturating_add(1);
        self.steps[..level].fill(0);
        self.starts[..=level].fill(offset);
    }
}

/// What is known of the distances between pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nest {
    levels: [Level; LEVELS],
    at: Place,
}

impl Nest {
    /// Nothing is known but where the first piece begins.
    pub fn new(offset: u64) -> Nest {
        Nest { at: Place { starts: [offset; LEVELS], ..Place::default() }, ..Nest::default() }
    }

    /// The latest piece.
    pub fn place(&self) -> Place {
        self.at
    }

    /// Whether something has repeated.
    pub fn is_pattern(&self) -> bool {
        self.levels.iter().any(|level| level.is_pattern)
    }

    /// The piece after that at `place`, and the level that goes on; `None` where that is not known.
    pub fn after(&self, place: &Place) -> Option<(Place, usize)> {
        let top = self.levels.iter().rposition(|level| level.is_pattern)?;
        let goes_on = |level: usize| {
            let known = self.levels[level].steps;
            known == 0 || place.steps[level] < known
        };
        let level = (0..=top).find(|&level| goes_on(level))?;
        let offset = place.starts[level].checked_add_signed(self.levels[level].stride)?;
        let mut next = *place;
        next.step(level, offset);
        Some((next, level))
    }

    /// The distance between pieces of the lowest level.
    pub fn stride(&self) -> i64 {
        self.levels[0].stride
    }

    /// The latest piece is this one, which [`Nest::after`] has given.
    pub fn go_to(&mut self, place: Place) {
        self.at = place;
        self.note_patterns();
    }

    /// The latest piece begins here; what is known is learned from that.
    pub fn learn(&mut self, offset: u64) {
        if self.fits(offset) {
            return self.note_patterns();
        }
        let before = self.at.offset();
        *self = Nest::new(before);
        self.levels[0].stride = distance(before, offset).unwrap_or(0);
        self.at.step(0, offset);
    }

    /// Whether the piece goes on with one of the levels, or begins one that was not known.
    fn fits(&mut self, offset: u64) -> bool {
        for level in 0..LEVELS {
            let Some(stride) = distance(self.at.starts[level], offset) else { return false };
            let (known, steps) = (self.levels[level], self.at.steps[level]);
            if known.stride == 0 || known.stride == stride {
                if known.steps > 0 && steps >= known.steps {
                    // A longer row than the last: the levels above were none.
                    self.levels[level].steps = 0;
                    self.levels[level + 1..].fill(Level::default());
                    self.at.steps[level + 1..].fill(0);
                    let begin = self.at.starts[(level + 1).min(LEVELS - 1)];
                    self.at.starts[level + 1..].fill(begin);
                }
                self.levels[level].stride = stride;
                self.at.step(level, offset);
                return stride != 0;
            }
            // A row that has ended says how long rows are; others are as long.
            if known.steps == 0 && steps > 0 {
                self.levels[level].steps = steps;
            } else if known.steps != steps {
                return false;
            }
        }
        false
    }

    fn note_patterns(&mut self) {
        for (level, steps) in self.levels.iter_mut().zip(self.at.steps) {
            level.is_pattern |= steps >= REPEATED;
        }
    }
}

/// From one offset to another.
fn distance(from: u64, to: u64) -> Option<i64> {
    i64::try_from(i128::from(to) - i128::from(from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns these offsets; returns how many were expected.
    fn expected(offsets: impl IntoIterator<Item = u64>) -> usize {
        let mut offsets = offsets.into_iter();
        let mut nest = Nest::new(offsets.next().unwrap());
        offsets
            .filter(|&offset| {
                let next = nest.after(&nest.place()).map(|(place, _)| place);
                let hit = next.is_some_and(|place| place.offset() == offset);
                match next.filter(|_| hit) {
                    Some(place) => nest.go_to(place),
                    None => nest.learn(offset),
                }
                hit
            })
            .count()
    }

    #[test]
    fn one_stride_is_known_after_three_pieces() {
        assert_eq!(expected((0..100).map(|n| n * 1000)), 97);
        assert_eq!(expected((0..100).rev().map(|n| n * 1000)), 97);
    }

    #[test]
    fn tiles_are_known_after_two_rows_and_a_piece() {
        // Eight pieces in each of 40 rows, which begin 100,000 apart, back and forth.
        let tile = (0..40).flat_map(|row| (0..8).map(move |n| row * 100_000 + n * 1000));
        // Five of the second row: its first and those of the first stride up to the jump.
        let known = expected(tile.clone());
        assert!(known >= 40 * 8 - 3 - 2, "{known}");
        let known = expected(tile.map(|offset| 10_000_000 - offset));
        assert!(known >= 40 * 8 - 3 - 2, "{known}");
    }

    #[test]
    fn bricks_are_three_strides_within_each_other() {
        let brick = (0..10).flat_map(|z| {
            (0..6).flat_map(move |y| (0..4).map(move |x| z * 1_000_000 + y * 10_000 + x * 100))
        });
        let known = expected(brick);
        assert!(known >= 240 - 3 - 3 - 3, "{known} of 240");
    }

    #[test]
    fn turns_between_two_sequences_are_a_nest() {
        let turns = (0..50).flat_map(|n| [n * 4096, (1 << 30) + n * 4096]);
        let known = expected(turns);
        assert!(known >= 95, "{known}");
    }

    #[test]
    fn a_row_that_was_begun_in_the_middle_is_learned_anew() {
        let tile = (0..40).flat_map(|row| (0..8).map(move |n| row * 100_000 + n * 1000));
        let known = expected(tile.skip(5));
        assert!(known >= 40 * 8 - 5 - 12, "{known}");
    }

    #[test]
    fn offsets_at_random_are_no_pattern() {
        assert_eq!(expected((1..5_000).map(|n| crate::mix(n) >> 20)), 0);
    }
}
