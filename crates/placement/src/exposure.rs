//! How much of the data organizer's moves programs wait for. Hermes (section 3.2.2) hides what it
//! moves behind computation; what a plan has to move first costs as much as is not hidden.
//!
//! A move is hidden when nothing is written meanwhile, and exposed when programs write as fast as
//! it makes room: each byte that they write while bytes leave RAM exposes one of those. That does
//! not depend on where plans send what is written, so that a share that is acted on does not change
//! itself.
//!
//! ```
//! use forebay_placement::exposure::{EXPOSED_MAX, Exposure};
//!
//! const HALF_LIFE_MS: u32 = 60_000;
//! const GIB: u64 = 1 << 30;
//! let mut exposure = Exposure::default();
//! assert_eq!(exposure.permille(0, HALF_LIFE_MS), EXPOSED_MAX);
//! // A program that computes while its checkpoint goes down.
//! exposure.note(GIB, 0, 0, HALF_LIFE_MS);
//! assert!(exposure.permille(0, HALF_LIFE_MS) < 50);
//! // One that writes all the time.
//! (0..20).for_each(|_| exposure.note(GIB, 2 * GIB, 0, HALF_LIFE_MS));
//! assert!(exposure.permille(0, HALF_LIFE_MS) > 900);
//! ```

use crate::hotness::decayed;
use crate::leave::BATCH_BYTES;

/// The highest share that is measured, in thousandths: docs/design/placement.md says why it is not
/// all.
pub const EXPOSED_MAX: u16 = 980;
/// A measured share is one of so many steps below the highest, so that plans can be remembered.
const STEPS: u16 = 20;

/// The share of a move that counts as waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exposed {
    /// What an [`Exposure`] says.
    #[default]
    Measured,
    /// So many thousandths, whatever programs do.
    Fixed(u16),
}

impl Exposed {
    /// How the measured share is written.
    pub const MEASURED: &str = "measured";

    /// The share in force, in thousandths, where `measured` is what an [`Exposure`] says.
    pub fn permille(self, measured: impl FnOnce() -> u16) -> u16 {
        match self {
            Exposed::Measured => measured(),
            Exposed::Fixed(permille) => permille,
        }
    }
}

/// What was moved out of RAM lately, and written meanwhile: each byte counts half as much for every
/// half-life that has passed since. Of what is not known the highest share is assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exposure {
    moved: f64,
    written: f64,
    noted_ms: u32,
}

impl Exposure {
    /// Bytes that have left RAM, and how many programs have written in the same time.
    pub fn note(&mut self, moved: u64, written: u64, now_ms: u32, half_life_ms: u32) {
        let left = self.left(now_ms, half_life_ms);
        self.moved = self.moved * left + moved as f64;
        self.written = self.written * left + written.min(moved) as f64;
        self.noted_ms = now_ms;
    }

    /// The exposed share of moves, in thousandths.
    pub fn permille(&self, now_ms: u32, half_life_ms: u32) -> u16 {
        let left = self.left(now_ms, half_life_ms);
        let (moved, written) = (self.moved * left, self.written * left);
        let assumed = BATCH_BYTES as f64;
        let share = (assumed + written) / (assumed + moved);
        (share * f64::from(STEPS)).round() as u16 * (EXPOSED_MAX / STEPS)
    }

    /// How much of a byte that was noted last counts now.
    fn left(&self, now_ms: u32, half_life_ms: u32) -> f64 {
        // Not by `exp2`: the library of mathematics would be loaded with each program.
        const ALL: u64 = 1 << 32;
        let age_ms = u64::from(now_ms.wrapping_sub(self.noted_ms));
        decayed(ALL, age_ms, half_life_ms) as f64 / ALL as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotness::HALF_LIFE_MS;

    const MIB: u64 = 1 << 20;

    #[test]
    fn follows_the_load_and_forgets_it() {
        let mut exposure = Exposure::default();
        let mut now_ms = u32::MAX - 3_000;
        let mut runs_for = |seconds: u32, written: u64, exposure: &mut Exposure| {
            for _ in 0..seconds * 10 {
                exposure.note(64 * MIB, written, now_ms, HALF_LIFE_MS);
                now_ms = now_ms.wrapping_add(100);
            }
            exposure.permille(now_ms, HALF_LIFE_MS)
        };
        assert_eq!(runs_for(10, 64 * MIB, &mut exposure), EXPOSED_MAX);
        assert!(runs_for(300, 0, &mut exposure) < 50);
        assert!((440..540).contains(&runs_for(600, 32 * MIB, &mut exposure)));
        let long = now_ms.wrapping_add(100 * HALF_LIFE_MS);
        assert_eq!(exposure.permille(long, HALF_LIFE_MS), EXPOSED_MAX, "all of it is forgotten");
    }

    /// Whatever was noted, in steps.
    #[test]
    fn is_a_share_below_the_highest() {
        for (moved, written) in [(0, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0)] {
            let mut exposure = Exposure::default();
            for now_ms in [0, 1, u32::MAX, 5] {
                exposure.note(moved, written, now_ms, HALF_LIFE_MS);
                let permille = exposure.permille(now_ms, HALF_LIFE_MS);
                assert!(permille <= EXPOSED_MAX, "{moved} {written}: {permille}");
                assert_eq!(permille % (EXPOSED_MAX / STEPS), 0);
            }
        }
    }
}
