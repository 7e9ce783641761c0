//! An emulated device: the real transfer first, then a sleep until the device would have done it.

use forebay_device::{Batch, Direction, Errno, StoreFile, Transfer, Worked};
use forebay_placement::{Speed, occupy};
use forebay_posix::{now_ns, sleep_until};
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

/// Another batch with the speed of an emulated device.
///
/// `D` leads to the moment (CLOCK_MONOTONIC, ns; 0 at first) from which the device is free. All
/// clients of one device share that word: an `Arc`, a `&'static`, or a place in shared memory.
pub struct Throttled<C, D> {
    inner: C,
    speed: Speed,
    next_free: D,
}

impl<C: Batch, D: Deref<Target = AtomicU64> + Send> Throttled<C, D> {
    /// Slows `inner` down to `speed`.
    pub fn new(inner: C, speed: Speed, next_free: D) -> Self {
        Self { inner, speed, next_free }
    }

    /// Charges the device, as of `start_ns`; returns when the caller may go on.
    fn charge(&self, start_ns: u64, transfer: &Transfer) -> u64 {
        let bandwidth = match transfer.direction() {
            Direction::Read => self.speed.read_bandwidth,
            Direction::Write => self.speed.write_bandwidth,
        };
        let bytes = transfer.result().unwrap_or(0);
        occupy(&self.next_free, start_ns, bytes, bandwidth, self.speed.latency_ns).wake_ns
    }
}

impl<C: Batch, D: Deref<Target = AtomicU64> + Send> Batch for Throttled<C, D> {
    fn name(&self) -> &'static str {
        "throttled"
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        self.run_beside(transfers, &mut || {});
    }

    /// The time that the real transfers and the work take counts as part of the emulated time.
    fn run_beside(&mut self, transfers: &mut [Transfer], work: &mut dyn FnMut()) -> Worked {
        let start_ns = now_ns();
        self.inner.run(transfers);
        let wake_ns = transfers.iter().map(|transfer| self.charge(start_ns, transfer)).max();
        work();
        sleep_until(wake_ns.unwrap_or(0));
        Worked::Beside
    }

    /// Waits for the device's queue and one latency.
    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        let start_ns = now_ns();
        let result = self.inner.sync(file);
        let latency_ns = self.speed.latency_ns;
        sleep_until(occupy(&self.next_free, start_ns, 0, 0, latency_ns).wake_ns);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Null;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    const GB_PER_S: u64 = 1_000_000_000;

    #[test]
    fn each_direction_is_charged_what_it_moved() {
        let speed =
            Speed { read_bandwidth: GB_PER_S / 2, write_bandwidth: GB_PER_S, latency_ns: 70 };
        let next_free = Arc::new(AtomicU64::new(0));
        let client = Throttled::new(Null, speed, Arc::clone(&next_free));
        // SAFETY: transfers without buffers.
        let (mut read, mut write) = unsafe {
            (
                Transfer::read(StoreFile::NONE, 0, Vec::new()),
                Transfer::write(StoreFile::NONE, 0, Vec::new()),
            )
        };
        read.finish(Ok(300));
        write.finish(Ok(400));
        assert_eq!(client.charge(1_000, &read), 1_670);
        assert_eq!(client.charge(1_000, &write), 2_070);
        write.finish(Err(Errno::IO));
        assert_eq!(client.charge(1_000, &write), 2_070);
        assert_eq!(next_free.load(Relaxed), 2_000);
    }

    #[test]
    fn returns_no_earlier_than_the_device_is_done() {
        let latency_ns = 2_000_000;
        let speed = Speed { latency_ns, ..Speed::default() };
        let mut client = Throttled::new(Null, speed, Arc::new(AtomicU64::new(0)));
        let start_ns = now_ns();
        // SAFETY: a transfer without buffers.
        client.run(&mut [unsafe { Transfer::write(StoreFile::NONE, 0, Vec::new()) }]);
        assert!(now_ns() >= start_ns + latency_ns);
        client.sync(StoreFile::NONE).unwrap();
        assert!(now_ns() >= start_ns + 2 * latency_ns);
    }

    #[test]
    fn work_is_done_while_the_device_is_busy() {
        let latency_ns = 20_000_000;
        let speed = Speed { latency_ns, ..Speed::default() };
        let mut client = Throttled::new(Null, speed, Arc::new(AtomicU64::new(0)));
        // SAFETY: a transfer without buffers.
        let mut transfers = [unsafe { Transfer::write(StoreFile::NONE, 0, Vec::new()) }];
        let (start_ns, mut worked_ns) = (now_ns(), 0);
        assert_eq!(client.run_beside(&mut transfers, &mut || worked_ns = now_ns()), Worked::Beside);
        assert!(worked_ns >= start_ns);
        assert!(now_ns() >= start_ns + latency_ns);
    }
}
