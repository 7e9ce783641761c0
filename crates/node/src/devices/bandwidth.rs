//! What the devices really do: every batch of transfers corrects the speeds that placement computes
//! with (Hermes section 3.1.2, the system profiler's part while a job runs).

use forebay_device::{Batch, Direction, Errno, StoreFile, Transfer, Worked};
use forebay_placement::TierId;
use forebay_placement::observe::Observed;
use forebay_pool::layout::DeviceSpeed;
use forebay_pool::{clock, crash};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A tier or a store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Device {
    Tier(TierId),
    Store(usize),
}

/// The estimates of one device.
pub(crate) struct BandwidthEstimator {
    reads: Mutex<Observed>,
    writes: Mutex<Observed>,
    /// Workers that use it now, and divide what it can do.
    users: AtomicU32,
}

impl BandwidthEstimator {
    /// Begins with what the configuration says.
    pub fn new(speed: &DeviceSpeed) -> BandwidthEstimator {
        let now = clock::monotonic_ns();
        let latency = speed.latency_ns.load(Ordering::Relaxed);
        let begin = |bandwidth: u64| Mutex::new(Observed::new(bandwidth, latency, now));
        BandwidthEstimator {
            reads: begin(speed.read_bandwidth.load(Ordering::Relaxed)),
            writes: begin(speed.write_bandwidth.load(Ordering::Relaxed)),
            users: AtomicU32::new(0),
        }
    }

    /// `bytes` went in `took_ns`, of which as many others had a part as `users` says.
    fn observe(
        &self,
        speed: &DeviceSpeed,
        direction: Direction,
        bytes: u64,
        took_ns: u64,
        users: u32,
    ) {
        let now = clock::monotonic_ns();
        let (observed, bandwidth) = match direction {
            Direction::Read => (&self.reads, &speed.read_bandwidth),
            Direction::Write => (&self.writes, &speed.write_bandwidth),
        };
        let mut observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
        observed.observe(bytes.saturating_mul(u64::from(users)), took_ns, now);
        bandwidth.store(observed.bandwidth(now), Ordering::Relaxed);
        speed.latency_ns.store(observed.latency_ns(now), Ordering::Relaxed);
    }
}

/// The estimates of all devices.
pub(crate) trait BandwidthEstimators: Send + Sync {
    /// The estimates of a device, and where clients read them.
    fn estimator(&self, device: Device) -> (&BandwidthEstimator, &DeviceSpeed);
}

/// A batch whose transfers are observed.
pub(crate) struct Observing<G> {
    inner: Box<dyn Batch>,
    estimators: Arc<G>,
    device: Device,
}

impl<G: BandwidthEstimators> Observing<G> {
    pub fn new(inner: Box<dyn Batch>, estimators: &Arc<G>, device: Device) -> Observing<G> {
        Observing { inner, estimators: Arc::clone(estimators), device }
    }
}

impl<G: BandwidthEstimators> Batch for Observing<G> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        self.run_beside(transfers, &mut || {});
    }

    fn run_beside(&mut self, transfers: &mut [Transfer], work: &mut dyn FnMut()) -> Worked {
        let (estimator, speed) = self.estimators.estimator(self.device);
        let users = estimator.users.fetch_add(1, Ordering::AcqRel) + 1;
        let start = clock::monotonic_ns();
        crash::point("io.begin");
        let mut work_ns = 0;
        let worked = self.inner.run_beside(transfers, &mut || {
            let start = clock::monotonic_ns();
            work();
            work_ns = clock::monotonic_ns() - start;
        });
        crash::point("io.end");
        let before_ns = if worked == Worked::Before { work_ns } else { 0 };
        let took = (clock::monotonic_ns() - start).saturating_sub(before_ns);
        estimator.users.fetch_sub(1, Ordering::AcqRel);
        let Some(direction) = transfers.first().map(Transfer::direction) else { return worked };
        if transfers.iter().all(|transfer| transfer.direction() == direction) {
            let bytes = transfers.iter().filter_map(|transfer| transfer.result().ok()).sum();
            estimator.observe(speed, direction, bytes, took, users);
        }
        worked
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        crash::point("io.syncing");
        let result = self.inner.sync(file);
        crash::point("io.synced");
        result
    }
}
