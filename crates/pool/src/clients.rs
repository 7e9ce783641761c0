//! Client slots: claimed by processes, handed to forked children, reaped after a death.

mod reap;
mod recover;
mod slots;
#[cfg(test)]
mod tests;

pub use recover::Recovered;
pub use slots::Clients;

use crate::segment::Segment;

impl Segment {
    /// Copies what `parent` holds, and the job it belongs to, to its child's slot.
    pub fn inherit(&self, parent: u32, child: u32) {
        self.clients().inherit(parent, child);
        self.descriptions().inherit(parent, child);
    }

    /// Gives a reserved slot back: the fork failed.
    pub fn cancel_slot(&self, slot: u32) {
        self.descriptions().release_all(slot);
        self.client(slot).vacate();
    }
}
