//! For how long a node manager stays that no run needs. Runs and `forebay up` ask for that, and it
//! is noted with the pool: a manager that takes the pool over after a kill stays as long.

use crate::clock;
use crate::sync::{AtomicU64, Ordering};
use core::time::Duration;

/// It ends with the last run.
const NOT: u64 = 0;

/// In [`crate::message::Message::Keep`]: until it is told to end.
pub const UNTIL_TOLD: u64 = u64::MAX;

/// For how long a node manager stays that no run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// It ends with the last run, or stays by its own options.
    Not,
    /// For so long from now on.
    For(Duration),
    /// Until it is told to end.
    UntilTold,
}

/// Until when that is, in nanoseconds of CLOCK_MONOTONIC: a pool does not outlive the boot.
#[repr(transparent)]
pub struct StaysUntil(AtomicU64);

impl StaysUntil {
    /// For how long from now on.
    pub fn left(&self) -> Stay {
        match self.0.load(Ordering::Acquire) {
            NOT => Stay::Not,
            UNTIL_TOLD => Stay::UntilTold,
            until_ns => match until_ns.saturating_sub(clock::monotonic_ns()) {
                0 => Stay::Not,
                left_ns => Stay::For(Duration::from_nanos(left_ns)),
            },
        }
    }

    /// Whether a time has passed that was asked for, and that was not forgotten since.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire) != NOT && self.left() == Stay::Not
    }

    /// Asks for so many nanoseconds from now on. What others have asked for stays, if it is longer.
    pub fn extend(&self, time_ns: u64) {
        let until_ns = match time_ns {
            0 => return,
            UNTIL_TOLD => UNTIL_TOLD,
            time_ns => clock::monotonic_ns().saturating_add(time_ns).min(UNTIL_TOLD - 1),
        };
        self.0.fetch_max(until_ns, Ordering::AcqRel);
    }

    /// The manager was told to end, or the time is over.
    pub fn forget(&self) {
        self.0.store(NOT, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_holds_until_it_is_over_or_the_manager_is_told_to_end() {
        let stays = StaysUntil(AtomicU64::new(NOT));
        assert_eq!(stays.left(), Stay::Not);
        stays.extend(0);
        assert_eq!((stays.left(), stays.is_over()), (Stay::Not, false));
        stays.extend(1);
        while !stays.is_over() {}
        assert_eq!(stays.left(), Stay::Not);
        stays.extend(3_600_000_000_000);
        stays.extend(1_000_000_000);
        let is_long = |stay| matches!(stay, Stay::For(left) if left.as_secs() > 3000);
        assert!(is_long(stays.left()), "{:?}", stays.left());
        // No number of nanoseconds means for ever.
        stays.extend(UNTIL_TOLD - 1);
        assert!(is_long(stays.left()));
        stays.extend(UNTIL_TOLD);
        stays.extend(1);
        assert_eq!((stays.left(), stays.is_over()), (Stay::UntilTold, false));
        stays.forget();
        assert_eq!((stays.left(), stays.is_over()), (Stay::Not, false));
    }
}
