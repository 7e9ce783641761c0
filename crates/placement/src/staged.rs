//! Whole files that are staged on a tier (Data Elevator, section III-B): the state of each, and
//! what follows when.
//!
//! ```
//! use forebay_placement::staged::{Seen, Stage, next};
//!
//! let mut stage = None;
//! let mut step = |is_written, is_held, is_behind| {
//!     stage = next(stage, Seen { is_written, is_held, is_behind }).or(stage);
//!     stage.map(Stage::letter)
//! };
//! assert_eq!(step(true, false, false), Some('W'));
//! assert_eq!(step(false, true, true), Some('B'), "closed by the last process");
//! assert_eq!(step(false, true, true), Some('A'), "an analysis wants it first");
//! assert_eq!(step(false, false, true), Some('M'), "all analyses have ended");
//! assert_eq!(step(false, false, true), Some('D'));
//! assert_eq!(step(false, false, false), Some('F'), "the store has everything");
//! ```

/// The state of a staged file, with the letter of Data Elevator's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// W: some process has it open for writing.
    Writing = 1,
    /// B: no process has; it lies on its tier.
    Buffered = 2,
    /// D: it goes to the store.
    Draining = 3,
    /// F: the store has all of it, durably and compared.
    Drained = 4,
    /// A: commands read it on its tier, and it does not go to the store before they have ended.
    Analysing = 5,
    /// M: they have ended, and it is to go to the store.
    Analysed = 6,
}

impl Stage {
    /// All, in the order in which a file passes through them.
    pub const ALL: [Stage; 6] = [
        Stage::Writing,
        Stage::Buffered,
        Stage::Analysing,
        Stage::Analysed,
        Stage::Draining,
        Stage::Drained,
    ];

    /// The letter that Data Elevator's table has for it.
    pub fn letter(self) -> char {
        match self {
            Stage::Writing => 'W',
            Stage::Buffered => 'B',
            Stage::Analysing => 'A',
            Stage::Analysed => 'M',
            Stage::Draining => 'D',
            Stage::Drained => 'F',
        }
    }

    /// What it means, for people.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Writing => "being written",
            Stage::Buffered => "buffered",
            Stage::Analysing => "being analysed",
            Stage::Analysed => "analysed",
            Stage::Draining => "draining",
            Stage::Drained => "drained",
        }
    }

    /// The state of a code that `as u8` gave; 0 is none yet.
    pub fn from_code(code: u8) -> Option<Stage> {
        Stage::ALL.into_iter().find(|&stage| stage as u8 == code)
    }
}

/// What is seen of a staged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Some process has it open for writing.
    pub is_written: bool,
    /// It is not to go to its store before what runs on it, or is about to, has ended.
    pub is_held: bool,
    /// The store lacks some of it, or is not known to have it durably.
    pub is_behind: bool,
}

/// The state after `stage`; `None` if it stays. A file that is opened for writing again is written
/// whatever it was before; one that was written without that being seen is drained again.
pub fn next(stage: Option<Stage>, seen: Seen) -> Option<Stage> {
    match stage {
        Some(Stage::Writing) if seen.is_written => None,
        _ if seen.is_written => Some(Stage::Writing),
        Some(Stage::Writing) => Some(Stage::Buffered),
        Some(Stage::Buffered) if seen.is_held => Some(Stage::Analysing),
        Some(Stage::Analysing) => (!seen.is_held).then_some(Stage::Analysed),
        Some(Stage::Buffered | Stage::Analysed) => Some(Stage::Draining),
        Some(Stage::Draining) => (!seen.is_behind).then_some(Stage::Drained),
        None | Some(Stage::Drained) => seen.is_behind.then_some(Stage::Buffered),
    }
}

/// For how long nothing was written to a stripe that goes to the store before its file is closed.
pub const EARLY_MS: u64 = 5_000;
/// The same while its tier is short of room.
pub const EARLY_SHORT_MS: u64 = 500;

/// Whether a stripe of a file that is being written goes to the store now, to which nothing was
/// written for `age_ms`; `after_ms` is [`EARLY_MS`] or [`EARLY_SHORT_MS`], in the caller's time.
/// Only one that is written as a whole, so that its request is one. A later write to it is drained
/// again: that costs a second request, and no byte.
///
/// ```
/// use forebay_placement::staged::{EARLY_MS, EARLY_SHORT_MS, goes_early};
///
/// assert!(goes_early(true, 6_000, EARLY_MS) && goes_early(true, 600, EARLY_SHORT_MS));
/// assert!(!goes_early(true, 600, EARLY_MS) && !goes_early(false, 60_000, EARLY_SHORT_MS));
/// ```
pub fn goes_early(is_whole: bool, age_ms: u64, after_ms: u64) -> bool {
    is_whole && age_ms >= after_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back_and_letters_differ() {
        let mut letters: Vec<_> = Stage::ALL.map(Stage::letter).into();
        letters.dedup();
        assert_eq!(letters.len(), Stage::ALL.len());
        for stage in Stage::ALL {
            assert_eq!(Stage::from_code(stage as u8), Some(stage));
        }
        assert_eq!((Stage::from_code(0), Stage::from_code(7)), (None, None));
    }

    #[test]
    fn nothing_is_drained_that_is_behind_or_written() {
        for stage in [None].into_iter().chain(Stage::ALL.map(Some)) {
            for bits in 0..8 {
                let (is_written, is_held, is_behind) =
                    (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                let after = next(stage, Seen { is_written, is_held, is_behind }).or(stage);
                let is_done = after.is_none() || after == Some(Stage::Drained);
                assert!(!is_done || !is_written && !is_behind, "{stage:?} {bits:b}");
                assert!(!is_written || after == Some(Stage::Writing));
                // One that is on its way is not called back.
                let begins = after == Some(Stage::Draining) && stage == Some(Stage::Buffered);
                assert!(!begins || !is_held, "{stage:?} {bits:b}");
            }
        }
    }

    #[test]
    fn every_state_leads_to_the_end() {
        for mut stage in [None].into_iter().chain(Stage::ALL.map(Some)) {
            for _ in 0..Stage::ALL.len() {
                // A drain has brought everything to the store by the time that is looked at again.
                let is_behind =
                    stage.is_some_and(|stage| stage != Stage::Draining && stage != Stage::Drained);
                stage =
                    next(stage, Seen { is_written: false, is_held: false, is_behind }).or(stage);
            }
            assert!(stage.is_none_or(|stage| stage == Stage::Drained), "{stage:?}");
        }
    }
}
