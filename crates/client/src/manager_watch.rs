//! Whether the node manager that is waited for goes on.

use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::Segment;
use forebay_pool::backoff::STOPPED_TIMEOUT;
use forebay_pool::clock;

/// What is seen of the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ManagerState {
    /// It goes on, or may do so in a moment.
    AtWork,
    /// There is none.
    Gone,
    /// It was stopped (SIGSTOP, a debugger) a while ago.
    Stopped,
}

/// Looks at the manager now and then, for all waits of this process: one that begins again, after a
/// signal, goes on where the last one ended, and of many files only the first is waited for.
#[derive(Default)]
pub(crate) struct ManagerWatch {
    /// The manager's clock when that was last seen to move, in the upper half, and ours then; 0 if
    /// it was never looked at.
    seen: AtomicU64,
}

impl ManagerWatch {
    /// To be called while nothing comes.
    pub fn look(&self, segment: &Segment) -> ManagerState {
        let (beat, now) =
            (segment.header().now_ms.load(Ordering::Relaxed), clock::stamp(clock::monotonic_ns()));
        let seen = self.seen.load(Ordering::Relaxed);
        let mut since = seen as u32;
        if seen == 0 || (seen >> 32) as u32 != beat {
            self.seen.store(u64::from(beat) << 32 | u64::from(now), Ordering::Relaxed);
            since = now;
        }
        if !segment.manager_is_alive() {
            return ManagerState::Gone;
        }
        let stands = clock::stamp_age(now, since) > STOPPED_TIMEOUT.as_stamp();
        match stands && segment.manager_is_stopped() {
            true => ManagerState::Stopped,
            false => ManagerState::AtWork,
        }
    }
}
