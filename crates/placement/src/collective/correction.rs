//! What calls really take, over what the model says.

use super::Mode;

/// How much a call counts, at least; the first ones count more.
const WEIGHT: f64 = 1.0 / 8.0;
/// How many times more or less than expected one call is believed to take.
const OUTLIER: f64 = 8.0;
/// The most that a mode is corrected by, either way.
const MOST: f64 = 64.0;
/// The share of the time that may go into trying the mode that is thought to be slower: what was
/// never tried cannot be corrected.
const TRIED: f64 = 0.02;
/// Calls between two tries, at least: modes that are almost alike do not take turns.
const CALLS: u32 = 16;

/// What was observed of one mode.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    /// By what the model's time is multiplied.
    factor: f64,
    /// Calls in this mode.
    calls: u32,
    /// Seconds and calls in the other mode since the last one in this.
    away_s: f64,
    away: u32,
}

impl Default for Seen {
    fn default() -> Self {
        Self { factor: 1.0, calls: 0, away_s: 0.0, away: 0 }
    }
}

/// Corrects both modes of a file's calls by what was observed of them, and says when to try the one
/// that is not in use. One for each file and direction.
///
/// ```
/// use forebay_placement::collective::{Correction, Mode};
///
/// let mut correction = Correction::default();
/// (0..50).for_each(|_| correction.observe(Mode::Collective, 2.0, 3.0));
/// assert!((correction.factor(Mode::Collective) - 1.5).abs() < 0.01);
/// assert_eq!(correction.factor(Mode::Independent), 1.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    collective: Seen,
    independent: Seen,
}

impl Correction {
    fn seen(&self, mode: Mode) -> &Seen {
        match mode {
            Mode::Collective => &self.collective,
            Mode::Independent => &self.independent,
        }
    }

    /// A call in this mode, of which the model says `expected_s` without corrections, took
    /// `took_s`. What is no time is ignored.
    pub fn observe(&mut self, mode: Mode, expected_s: f64, took_s: f64) {
        let ratio = took_s / expected_s;
        if !ratio.is_finite() || ratio <= 0.0 {
            return;
        }
        let (used, other) = match mode {
            Mode::Collective => (&mut self.collective, &mut self.independent),
            Mode::Independent => (&mut self.independent, &mut self.collective),
        };
        let weight = WEIGHT.max(1.0 / f64::from(used.calls.saturating_add(2)));
        let off = (ratio / used.factor).clamp(1.0 / OUTLIER, OUTLIER);
        // off^weight, from below: the weighted harmonic mean, which needs no library of functions.
        let moved = used.factor / (1.0 + weight * (1.0 / off - 1.0));
        used.factor = moved.clamp(1.0 / MOST, MOST);
        used.calls = used.calls.saturating_add(1);
        (used.away_s, used.away) = (0.0, 0);
        other.away_s += took_s;
        other.away = other.away.saturating_add(1);
    }

    /// By what the model's time of this mode is multiplied.
    pub fn factor(&self, mode: Mode) -> f64 {
        self.seen(mode).factor
    }

    /// Whether this mode is to be tried, although a call in it is expected to take `longer_s` more.
    pub(super) fn is_due(&self, mode: Mode, longer_s: f64) -> bool {
        let seen = self.seen(mode);
        seen.away >= CALLS && longer_s <= seen.away_s * TRIED
    }
}
