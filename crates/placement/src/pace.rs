//! The token bucket of an emulated device: when is it free again, and when may the caller go on?

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What an emulated device can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Bytes per second read; 0 = not limited.
    pub read_bandwidth: u64,
    /// Bytes per second written; 0 = not limited.
    pub write_bandwidth: u64,
    /// Nanoseconds that pass for each transfer without occupying the device.
    pub latency_ns: u64,
}

/// The two moments that follow from a transfer, on the clock of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paced {
    /// When the device can begin the next transfer.
    pub next_free_ns: u64,
    /// When the caller has its bytes.
    pub wake_ns: u64,
}

/// Lets `bytes` pass at `bandwidth` bytes per second (0 = not limited) as soon as the device is
/// free.
///
/// The device is occupied only while bytes move, so the latencies of concurrent transfers overlap.
/// Saturates instead of overflowing.
pub fn pace(now_ns: u64, next_free_ns: u64, bytes: u64, bandwidth: u64, latency_ns: u64) -> Paced {
    let end_ns = now_ns.max(next_free_ns).saturating_add(transfer_ns(bytes, bandwidth));
    Paced { next_free_ns: end_ns, wake_ns: end_ns.saturating_add(latency_ns) }
}

/// Books a transfer on a device that many threads or processes share, as [`pace`] has it.
/// `next_free` is when the device is free again: a word that all of them see, in memory or in
/// shared memory.
///
/// ```
/// use std::sync::atomic::AtomicU64;
///
/// let next_free = AtomicU64::new(0);
/// let first = forebay_placement::occupy(&next_free, 1_000, 500, 1_000_000_000, 70);
/// let second = forebay_placement::occupy(&next_free, 1_000, 500, 1_000_000_000, 70);
/// assert_eq!((first.wake_ns, second.wake_ns), (1_570, 2_070));
/// ```
pub fn occupy(
    next_free: &AtomicU64,
    now_ns: u64,
    bytes: u64,
    bandwidth: u64,
    latency_ns: u64,
) -> Paced {
    let mut seen = next_free.load(Relaxed);
    loop {
        let paced = pace(now_ns, seen, bytes, bandwidth, latency_ns);
        // The word guards no other memory.
        match next_free.compare_exchange_weak(seen, paced.next_free_ns, Relaxed, Relaxed) {
            Ok(_) => return paced,
            Err(current) => seen = current,
        }
    }
}

/// Nanoseconds that `bytes` take at `bandwidth` bytes per second (0 = not limited).
///
/// Rounded up: however small the transfers, together they are never faster than the device.
pub fn transfer_ns(bytes: u64, bandwidth: u64) -> u64 {
    const NS_PER_S: u128 = 1_000_000_000;
    if bandwidth == 0 {
        return 0;
    }
    let ns = (u128::from(bytes) * NS_PER_S).div_ceil(u128::from(bandwidth));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const GB_PER_S: u64 = 1_000_000_000;

    const EXTREMES: [u64; 6] = [0, 1, 999, 1 << 32, u64::MAX - 1, u64::MAX];

    #[test]
    fn an_idle_device_starts_at_once() {
        let paced = pace(5_000, 0, 1_000, 1_000_000_000, 70);
        assert_eq!(paced, Paced { next_free_ns: 6_000, wake_ns: 6_070 });
    }

    #[test]
    fn a_busy_device_queues_and_latencies_overlap() {
        let first = pace(0, 0, 1_000, 1_000_000_000, 70);
        let second = pace(0, first.next_free_ns, 1_000, 1_000_000_000, 70);
        assert_eq!(second, Paced { next_free_ns: 2_000, wake_ns: 2_070 });
    }

    #[test]
    fn without_a_limit_only_latency_remains() {
        assert_eq!(pace(9, 3, u64::MAX, 0, 4), Paced { next_free_ns: 9, wake_ns: 13 });
    }

    #[test]
    fn many_small_transfers_are_not_faster_than_one_large() {
        for bandwidth in 1..200 {
            for bytes in 0..50 {
                assert!(bytes * transfer_ns(1, bandwidth) >= transfer_ns(bytes, bandwidth));
            }
        }
    }

    #[test]
    fn nothing_overflows_and_time_never_runs_back() {
        for now in EXTREMES {
            for next_free in EXTREMES {
                for bytes in EXTREMES {
                    for bandwidth in EXTREMES {
                        for latency in EXTREMES {
                            let paced = pace(now, next_free, bytes, bandwidth, latency);
                            assert!(paced.next_free_ns >= now.max(next_free));
                            assert!(paced.wake_ns >= paced.next_free_ns);
                        }
                    }
                }
            }
        }
        assert_eq!(transfer_ns(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn transfers_queue_up_on_the_device() {
        let next_free = AtomicU64::new(0);
        assert_eq!(occupy(&next_free, 1_000, 500, GB_PER_S, 70).wake_ns, 1_570);
        assert_eq!(occupy(&next_free, 1_000, 500, GB_PER_S, 70).wake_ns, 2_070);
        assert_eq!(occupy(&next_free, 5_000, 0, 0, 70).wake_ns, 5_070);
        assert_eq!(next_free.into_inner(), 5_000);
    }

    #[test]
    fn concurrent_callers_share_the_bandwidth() {
        let next_free = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        occupy(&next_free, 0, 3, GB_PER_S, 0);
                    }
                });
            }
        });
        assert_eq!(next_free.into_inner(), 4 * 10_000 * 3);
    }
}
