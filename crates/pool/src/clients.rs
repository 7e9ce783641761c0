//! Client slots: claimed by processes, handed to forked children, reaped after a death.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::Owner;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let (pid, start) = (std::process::id(), forebay_pool::liveness::start_time(std::process::id()));
//! let slot = segment.clients().claim(pid, start.unwrap_or(0)).expect("one of many is free");
//! assert!(segment.clients().any_lives() && !segment.clients().is_dead(Owner::new(slot, 0)));
//! assert_eq!(segment.clients().slot_of(pid, start.unwrap_or(0)), Some(slot));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

mod reap;
mod recover;
mod slots;
#[cfg(test)]
mod tests;

pub use recover::Recovered;
pub use slots::Clients;

use crate::crash;
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering};

impl Segment {
    /// Copies what `parent` holds, and the job it belongs to, to its child's slot. Returns whether
    /// that is any description.
    pub fn inherit(&self, parent: u32, child: u32) -> bool {
        // First: see `Descriptions::free`.
        self.client(child).joining.store(1, Ordering::SeqCst);
        self.header().forks.fetch_add(1, Ordering::SeqCst);
        crash::point("fork.inheriting");
        self.clients().inherit(parent, child);
        self.descriptions().inherit(parent, child)
    }

    /// Whether `slot`, that of the calling process, has nothing that the next process in it, or the
    /// program that this one executes, would have to give back.
    pub fn has_nothing(&self, slot: u32) -> bool {
        let client = self.client(slot);
        let is_empty = |place: &AtomicU32| place.load(Ordering::Relaxed) == 0;
        !client.is_inside()
            && client.opening.load(Ordering::Relaxed) == 0
            && client.buckets.iter().all(is_empty)
            && self.index_nodes(slot).cache.iter().all(is_empty)
            && !self.descriptions().holds_any(slot)
    }

    /// Gives a reserved slot back: the fork failed.
    pub fn cancel_slot(&self, slot: u32) {
        self.descriptions().release_all(slot);
        self.clients().vacate(slot);
    }
}
