//! Numbers of events.

use super::Segment;
use crate::sync::Ordering;

impl Segment {
    /// The number that the next event will have.
    pub fn sequence(&self) -> u64 {
        self.header().sequence.load(Ordering::SeqCst)
    }

    /// Lets the next number be above `found`, which an event had.
    pub fn number_from(&self, found: u64) {
        // One that no event can have had leaves room for those to come.
        let next = found.saturating_add(1).min(1 << 63);
        self.header().sequence.fetch_max(next, Ordering::SeqCst);
    }

    /// A number for an event: above those of all earlier ones.
    pub fn next_sequence(&self) -> u64 {
        self.header().sequence.fetch_add(1, Ordering::SeqCst)
    }
}
