//! What papers print, beside what was found here: on which side of it, and why.

use crate::measured::Measured;

/// How a number of a paper is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// So many times.
    Times,
    /// So many percent; the number is a share.
    Percent,
}

impl Shown {
    fn text(self, value: f64) -> String {
        match self {
            Shown::Times => format!("{value:.2}x"),
            Shown::Percent => format!("{:.1} %", value * 100.0),
        }
    }
}

/// A number of a paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Printed {
    /// What it is of.
    pub what: &'static str,
    pub value: f64,
    pub shown: Shown,
    /// Why more, and why less, may come out here.
    pub above: &'static str,
    pub below: &'static str,
}

/// Nearer than this it is the same.
const SAME: f64 = 0.05;

impl Printed {
    pub const fn times(
        what: &'static str,
        value: f64,
        above: &'static str,
        below: &'static str,
    ) -> Printed {
        Printed { what, value, shown: Shown::Times, above, below }
    }

    pub const fn percent(
        what: &'static str,
        value: f64,
        above: &'static str,
        below: &'static str,
    ) -> Printed {
        Printed { what, value, shown: Shown::Percent, above, below }
    }

    /// A line on both numbers. Shares are as far apart as they differ, others relative to the
    /// paper's.
    pub fn beside(&self, here: f64) -> String {
        let scale = match self.shown {
            Shown::Times => self.value.abs(),
            Shown::Percent => 1.0,
        };
        let off = (here - self.value) / scale;
        let side = match off {
            _ if off.abs() <= SAME => "as printed".to_owned(),
            _ if off > 0.0 => format!("above: {}", self.above),
            _ => format!("below: {}", self.below),
        };
        let (here, paper) = (self.shown.text(here), self.shown.text(self.value));
        format!("Beside the paper: {}: {here} here, {paper} there; {side}", self.what)
    }
}

/// Notes a number of a paper beside what was found, if it was.
pub(crate) fn note(measured: &mut Measured, printed: &Printed, here: Option<f64>) {
    let line = match here {
        Some(here) => printed.beside(here),
        None => format!(
            "Beside the paper: {}: {} there; NOT MEASURED here",
            printed.what,
            printed.shown.text(printed.value)
        ),
    };
    measured.notes.push(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_and_the_middle_are_named() {
        let printed = Printed::times("a rate", 2.0, "the store is slow", "the store is fast");
        assert!(printed.beside(2.05).ends_with("2.05x here, 2.00x there; as printed"));
        assert!(printed.beside(3.0).ends_with("above: the store is slow"));
        assert!(printed.beside(1.0).ends_with("below: the store is fast"));
        let share = Printed::percent("a share", -0.927, "more", "less");
        assert!(share.beside(-0.9).contains("-90.0 % here, -92.7 % there; as printed"));
        assert!(share.beside(-0.5).ends_with("above: more"));
    }
}
