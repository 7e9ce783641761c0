//! The clock of groups.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine began, with those in which it slept: what a node may do ends
/// also while it sleeps.
pub(crate) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
