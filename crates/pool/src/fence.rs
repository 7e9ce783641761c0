//! Whether what a pool has may go to the stores. Where nodes share files, an operator may give up a
//! node that does not answer, and others are given its files. It may live all the same, stopped or
//! cut off: so what it flushes, it flushes only for a while after it has seen that it was not given
//! up. The manager notes until when; programs that flush themselves look, too.
//!
//! One word of the header, in milliseconds of CLOCK_BOOTTIME. It stays with the pool: a later
//! manager has to look before it flushes what this one has left.

use crate::clock;
use crate::layout::Header;
use crate::sync::Ordering;

/// No group has ever had this pool.
const NONE: u64 = 0;
/// The node was given up.
const GIVEN_UP: u64 = u64::MAX;

/// What may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushing {
    /// To flush.
    Free,
    /// Nothing, until it was looked whether the node was given up.
    Fenced,
    /// Nothing: others may have the files.
    GivenUp,
}

impl Header {
    /// What may be flushed at this moment. For any thread of any process.
    pub fn flushing(&self) -> Flushing {
        match self.flush_fence.load(Ordering::Acquire) {
            NONE => Flushing::Free,
            GIVEN_UP => Flushing::GivenUp,
            until_ms if clock::boottime_ns() / 1_000_000 < until_ms => Flushing::Free,
            _ => Flushing::Fenced,
        }
    }

    /// Whether flushes that begin now are allowed.
    pub fn may_flush(&self) -> bool {
        self.flushing() == Flushing::Free
    }

    /// Whether a group had this pool, so that it has to be looked what has become of its node.
    pub fn has_flush_fence(&self) -> bool {
        self.flush_fence.load(Ordering::Acquire) != NONE
    }

    /// It was seen that the node is not given up: flushes may begin until this moment. That it was
    /// given up is not taken back.
    pub fn flush_until(&self, until_ms: u64) {
        let until_ms = until_ms.clamp(NONE + 1, GIVEN_UP - 1);
        let raise = |now: u64| (now != GIVEN_UP && now != until_ms).then_some(until_ms);
        let _ = self.flush_fence.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise);
    }

    /// The node was given up: nothing of this pool goes to the stores any more.
    pub fn end_flushing(&self) {
        self.flush_fence.store(GIVEN_UP, Ordering::Release);
    }
}
