//! Correcting what the system profiler measured by what transfers really take.
//!
//! ```
//! use forebay_placement::observe::Observed;
//!
//! // The profile says 2 GB/s; for ten seconds the device does 1 GB/s.
//! let mut observed = Observed::new(2_000_000_000, 1_000, 0);
//! let ms = 1_000_000;
//! for moment in 1..=1_000 {
//!     observed.observe(10_000_000, 10 * ms, moment * 10 * ms);
//! }
//! let bandwidth = observed.bandwidth(10_000 * ms);
//! assert!((900_000_000..1_100_000_000).contains(&bandwidth));
//! ```

use crate::TierSnapshot;

/// Nanoseconds of transfers that count as much as the profile: after a second of work, half of
/// an estimate is observed.
const HORIZON_NS: f64 = 1e9;
/// Nanoseconds without a transfer after which half of a correction is forgotten: a tier that was
/// slow once must be tried again.
const STALE_NS: f64 = 60e9;
/// How many times faster or slower than the estimate one transfer is believed to be.
const OUTLIER: f64 = 8.0;

/// Bandwidth and latency of one direction of one tier, as observed.
///
/// Each transfer is weighed by the time it took, so that many tiny ones do not outvote a few
/// large ones; a tiny one, for which the latency is more than half, corrects only the latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// What the profile says, and the estimate, in bytes per nanosecond.
    bandwidth: (f64, f64),
    /// What the profile says, and the estimate, in nanoseconds.
    latency_ns: (f64, f64),
    last_ns: u64,
}

impl Observed {
    /// An estimate that begins with the profile: bytes per second, and nanoseconds.
    pub fn new(bandwidth: u64, latency_ns: u64, now_ns: u64) -> Self {
        let bandwidth = bandwidth.max(1) as f64 / 1e9;
        let latency_ns = latency_ns.max(1) as f64;
        Self {
            bandwidth: (bandwidth, bandwidth),
            latency_ns: (latency_ns, latency_ns),
            last_ns: now_ns,
        }
    }

    /// A transfer of so many bytes took so many nanoseconds, and has just ended.
    pub fn observe(&mut self, bytes: u64, took_ns: u64, now_ns: u64) {
        if bytes == 0 || took_ns == 0 {
            return;
        }
        self.forget(now_ns);
        let (bytes, took_ns) = (bytes as f64, took_ns as f64);
        let weight = took_ns / (took_ns + HORIZON_NS);
        let moving_ns = bytes / self.bandwidth.1;
        if moving_ns < self.latency_ns.1 {
            // At least a tenth: bandwidth may be what is wrong.
            let sample = (took_ns - moving_ns).max(took_ns / 10.0);
            // Latencies are short: weighed by time they would never count.
            approach(&mut self.latency_ns.1, sample, weight.max(1.0 / 64.0));
        } else {
            let sample = bytes / (took_ns - self.latency_ns.1).max(took_ns / 2.0);
            approach(&mut self.bandwidth.1, sample, weight);
        }
    }

    /// Bytes per second now.
    pub fn bandwidth(&self, now_ns: u64) -> u64 {
        let mut then = *self;
        then.forget(now_ns);
        (then.bandwidth.1 * 1e9).round().max(1.0) as u64
    }

    /// Nanoseconds until the first byte moves, now.
    pub fn latency_ns(&self, now_ns: u64) -> u64 {
        let mut then = *self;
        then.forget(now_ns);
        then.latency_ns.1.round().max(1.0) as u64
    }

    /// Goes back towards the profile.
    fn forget(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(self.last_ns) as f64;
        let kept = STALE_NS / (STALE_NS + idle_ns);
        for (profile, estimate) in [&mut self.bandwidth, &mut self.latency_ns] {
            *estimate = *profile + (*estimate - *profile) * kept;
        }
        self.last_ns = self.last_ns.max(now_ns);
    }
}

/// The tier's snapshot with the speeds observed instead of the profile's.
pub fn corrected(
    tier: TierSnapshot,
    reads: &Observed,
    writes: &Observed,
    now_ns: u64,
) -> TierSnapshot {
    TierSnapshot {
        read_bandwidth: reads.bandwidth(now_ns),
        write_bandwidth: writes.bandwidth(now_ns),
        latency_ns: writes.latency_ns(now_ns),
        ..tier
    }
}

/// Moves an estimate towards a sample, in logarithms: half as fast is as far off as twice as fast.
fn approach(estimate: &mut f64, sample: f64, weight: f64) {
    let ratio = (sample / *estimate).clamp(1.0 / OUTLIER, OUTLIER);
    // ratio^weight, from below: 1 / (1 + w (1/r - 1)), the weighted harmonic mean.
    *estimate /= 1.0 + weight * (1.0 / ratio - 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    const GB: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// A device with this speed and latency does transfers of these sizes, one after the other.
    fn work(
        observed: &mut Observed,
        bandwidth: u64,
        latency_ns: u64,
        sizes: &[u64],
        count: u64,
    ) -> u64 {
        let mut now_ns = observed.last_ns;
        for n in 0..count {
            let bytes = sizes[(mix(n) % sizes.len() as u64) as usize];
            // Up to a tenth more or less.
            let noise = 900 + mix(n + 77) % 200;
            let took_ns = (latency_ns + bytes * GB / bandwidth) * noise / 1000;
            now_ns += took_ns;
            observed.observe(bytes, took_ns, now_ns);
        }
        now_ns
    }

    fn is_near(found: u64, expected: u64, percent: u64) {
        let off = found.abs_diff(expected) * 100 / expected;
        assert!(off <= percent, "{found} is {off} % off {expected}");
    }

    #[test]
    fn finds_a_device_that_is_a_fifth_of_its_profile() {
        let mut observed = Observed::new(2 * GB, 20_000, 0);
        let now = work(&mut observed, GB * 2 / 5, 20_000, &[MIB, 4 * MIB], 3_000);
        is_near(observed.bandwidth(now), GB * 2 / 5, 10);
        let now = work(&mut observed, 3 * GB, 20_000, &[MIB, 4 * MIB], 9_000);
        is_near(observed.bandwidth(now), 3 * GB, 10);
    }

    #[test]
    fn tiny_transfers_correct_the_latency_and_not_the_bandwidth() {
        let mut observed = Observed::new(2 * GB, 20_000, 0);
        let now = work(&mut observed, 2 * GB, 80_000, &[512, 4096], 10_000);
        is_near(observed.bandwidth(now), 2 * GB, 2);
        is_near(observed.latency_ns(now), 80_000, 15);
    }

    #[test]
    fn one_stall_hardly_counts() {
        let mut observed = Observed::new(GB, 20_000, 0);
        let now = work(&mut observed, GB, 20_000, &[MIB], 2_000);
        observed.observe(MIB, GB / 10, now);
        assert!(observed.bandwidth(now) > GB / 2, "{}", observed.bandwidth(now));
    }

    #[test]
    fn what_was_slow_is_tried_again() {
        let mut observed = Observed::new(GB, 20_000, 0);
        let now = work(&mut observed, GB / 20, 20_000, &[MIB], 1_000);
        assert!(observed.bandwidth(now) < GB / 10);
        is_near(observed.bandwidth(now + 60 * GB), GB / 2, 10);
        is_near(observed.bandwidth(now + 6_000 * GB), GB, 2);
    }

    #[test]
    fn snapshots_carry_what_was_observed() {
        let mut reads = Observed::new(GB, 5, 0);
        reads.observe(0, 5, 5);
        reads.observe(5, 0, 5);
        let tier = TierSnapshot { capacity: 7, sharers: 3, ..TierSnapshot::default() };
        let expected =
            TierSnapshot { read_bandwidth: GB, write_bandwidth: 2 * GB, latency_ns: 9, ..tier };
        assert_eq!(corrected(tier, &reads, &Observed::new(2 * GB, 9, 0), 5), expected);
    }

    #[test]
    fn nothing_makes_an_estimate_senseless() {
        let mut observed = Observed::new(0, 0, u64::MAX);
        for n in 0..2_000_u64 {
            observed.observe(mix(n) >> (n % 64), mix(n + 1) >> (n % 61), mix(n + 2));
            let now = mix(n + 3);
            assert!(observed.bandwidth(now) > 0 && observed.latency_ns(now) > 0);
            assert!(observed.bandwidth.1.is_finite() && observed.latency_ns.1.is_finite());
        }
    }
}
