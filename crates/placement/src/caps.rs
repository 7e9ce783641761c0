//! When, and how much at a time, is flushed because of a cap on what the store lacks, or an age.
//!
//! ```
//! use forebay_placement::caps::{Age, is_pressed, piece_bytes};
//!
//! assert!(is_pressed(75, 100) && !is_pressed(74, 100));
//! assert_eq!(piece_bytes(8 << 20), 2 << 20);
//! let age = Age { most_ms: 60_000 };
//! assert_eq!(age.due_ms(), 58_000);
//! ```

/// The largest piece that is flushed for one cap before it is another's turn.
const PIECE_BYTES: u64 = 4 << 20;
/// The longest pause between two looks.
const PAUSE_MOST_MS: u64 = 1000;

/// Whether so much of a cap is used that flushes begin whatever the trigger says: three quarters.
pub fn is_pressed(used: u64, limit: u64) -> bool {
    u128::from(used) * 4 >= u128::from(limit) * 3
}

/// Bytes that are flushed at a time for a cap of so many: those that wait are not to wait for much
/// more than they need.
pub fn piece_bytes(limit: u64) -> u64 {
    (limit / 4).clamp(1, PIECE_BYTES)
}

/// For how long the store may lack what a run has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// In milliseconds.
    pub most_ms: u64,
}

impl Age {
    /// Between two looks.
    pub fn pause_ms(self) -> u64 {
        (self.most_ms / 8).clamp(1, PAUSE_MOST_MS)
    }

    /// How long a block has been dirty that goes now: one that would be too old two looks later, so
    /// that there is time for the write.
    pub fn due_ms(self) -> u64 {
        self.most_ms.saturating_sub(2 * self.pause_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_pressed_from_three_quarters_on_whatever_their_size() {
        assert!(!is_pressed(0, 1) && is_pressed(1, 1) && is_pressed(u64::MAX, u64::MAX));
        assert!(!is_pressed(u64::MAX / 2, u64::MAX));
    }

    #[test]
    fn pieces_are_a_quarter_and_bounded() {
        assert_eq!([0, 3, 4 << 20, 1 << 40].map(piece_bytes), [1, 1, 1 << 20, PIECE_BYTES]);
    }

    #[test]
    fn what_is_not_due_is_not_too_old_at_the_next_look() {
        for most_ms in [1, 7, 100, 999, 5_000, 86_400_000] {
            let age = Age { most_ms };
            // The last that is not due now.
            let (due_ms, pause_ms) = (age.due_ms(), age.pause_ms());
            assert!(due_ms == 0 || due_ms - 1 + pause_ms < most_ms, "{most_ms}");
        }
    }
}
