//! Waiting as long as an emulated device takes.

use core::num::NonZeroU64;
use rustix::io::Errno;
use rustix::thread::{clock_nanosleep_absolute, current_timer_slack, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The kernel may end a sleep 50 us late, which is more than a request of an NVMe device takes.
/// Longer sleeps than this have it.
const EXACT_NS: u64 = 2_000_000;

/// Nanoseconds of CLOCK_MONOTONIC, the same in all processes of a machine.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps until this moment of CLOCK_MONOTONIC (ns), whatever signals arrive.
pub fn sleep_until(wake_ns: u64) {
    let left_ns = wake_ns.saturating_sub(now_ns());
    if left_ns == 0 {
        return;
    }
    let slack = if left_ns < EXACT_NS { current_timer_slack().ok() } else { None };
    if slack.is_some() {
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
    let wake = Timespec {
        tv_sec: (wake_ns / 1_000_000_000) as i64,
        tv_nsec: (wake_ns % 1_000_000_000) as i64,
    };
    while clock_nanosleep_absolute(ClockId::Monotonic, &wake) == Err(Errno::INTR) {}
    if let Some(before) = slack {
        let _ = set_current_timer_slack(NonZeroU64::new(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_in_time_and_leaves_the_threads_slack() {
        let before = current_timer_slack().unwrap();
        for ns in [100_000, EXACT_NS + 1_000_000] {
            let wake_ns = now_ns() + ns;
            sleep_until(wake_ns);
            assert!(now_ns() >= wake_ns);
            assert_eq!(current_timer_slack().unwrap(), before);
        }
        sleep_until(0);
    }
}
