//! Files that processes use through the kernel without a record, because the file table was full.
//!
//! Others must not buffer such a file as long as they do. So a process that finds no place for a
//! file notes one of a few numbers that follow from its identity, in its slot and in the header,
//! and a record that is made while the header has the number of its file is direct. Both happen
//! under the stripe of the file. A process keeps its numbers to its end, because it may have
//! duplicated the descriptor, mapped the file or executed another program; children inherit them.
//! The node manager takes a number out of the header that no slot has any more.

use crate::clients::Clients;
use crate::files::Identity;
use crate::layout::{UNRECORDED, slot_state};
use crate::owner::Owner;
use crate::sync::Ordering;
use forebay_placement::mix;

/// The same for files that are near each other: one process uses many of those.
fn number_of(identity: Identity) -> usize {
    let (group, _) = identity.near();
    mix(group) as usize % UNRECORDED
}

impl Clients<'_> {
    /// Notes that `owner`'s process uses the file of `identity` without a record, or may use it
    /// when the record is gone. The caller holds the stripe of the file, or keeps the file's record
    /// by a description.
    pub fn note_unrecorded(self, identity: Identity, owner: Owner) {
        let number = number_of(identity);
        let bit = 1 << number;
        let mine = self.get(owner.slot());
        mine.unrecorded.fetch_or(bit, Ordering::SeqCst);
        // A child that another thread is about to fork may have copied what this slot had before.
        let pid = mine.pid.load(Ordering::SeqCst);
        for (_, child) in self.used() {
            if child.state.load(Ordering::SeqCst) == slot_state::RESERVED
                && child.pid.load(Ordering::SeqCst) == pid
            {
                child.unrecorded.fetch_or(bit, Ordering::SeqCst);
            }
        }
        // After the slots: see `forget_unrecorded`.
        self.unrecorded[number].fetch_add(1, Ordering::SeqCst);
    }

    /// Whether some process may use the file of `identity` without a record.
    #[inline]
    pub fn is_unrecorded(self, identity: Identity) -> bool {
        self.unrecorded[number_of(identity)].load(Ordering::SeqCst) != 0
    }

    /// Forgets what only processes had that have ended. For the node manager.
    pub fn forget_unrecorded(self) {
        let seen = self.unrecorded.each_ref().map(|count| count.load(Ordering::SeqCst));
        if seen == [0; UNRECORDED] {
            return;
        }
        let noted =
            self.used().fold(0, |all, (_, slot)| all | slot.unrecorded.load(Ordering::SeqCst));
        for (number, (count, seen)) in self.unrecorded.iter().zip(seen).enumerate() {
            // A process that has noted it since has changed the count, or will.
            if noted >> number & 1 == 0 && seen != 0 {
                let _ = count.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }
}
