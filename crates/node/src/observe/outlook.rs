//! How fast bytes come and go, what is unsafe for longest and when it will be safe, which files and
//! processes are busiest: what `forebay status`, `forebay top` and metrics show besides states.

use super::status::Observer;
use forebay_placement::caps::Age;
use forebay_placement::hotness::Score;
use forebay_placement::rounds::Ages;
use forebay_pool::layout::{FileFlags, FileRecord, Trigger};
use forebay_pool::moves::{Flow, Totals};
use forebay_pool::{FileId, clock, liveness};
use rustix::io::Errno;
use std::fs;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes a second of each tier and of the stores.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Over which time, up to now.
    pub over: Duration,
    /// Of each tier, fastest first.
    pub tiers: Vec<Flow>,
    /// Of all stores together.
    pub store: Flow,
}

/// When something that is not yet on the store will be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Within so long, as fast as the store is: with all else that it does not have yet, as the
    /// order of flushes is not that of writes.
    Within(Duration),
    /// Its file was not closed since it was written, and is flushed then.
    AtClose,
    /// Its run has not ended, and files are flushed at its end.
    AtEnd,
    /// The store refuses it: why, and when it is tried again.
    Fails(Errno, Duration),
    /// The node manager is stopped, by a signal or a debugger.
    Stopped,
    /// No node manager serves the pool.
    Unserved,
    /// The group of nodes has given the node up: it is not flushed from here.
    GivenUp,
}

/// How what is unsafe comes to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Bytes that wait for the store: it refuses their files now.
    pub refused: u64,
    /// How long the store takes for the others, as fast as it is; `None` if there are none, so that
    /// nothing can be said of an end.
    pub time: Option<Duration>,
}

/// The block that is not on the store for longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// Its file, where that was opened.
    pub path: String,
    /// The bytes of the file that the block has.
    pub range: Range<u64>,
    /// How long ago the write was that made it differ from the store.
    pub age: Duration,
    /// When it will be safe.
    pub outlook: Outlook,
}

/// A file that is used.
#[derive(Clone, Debug, PartialEq)]
pub struct HotFile {
    /// Where it was opened.
    pub path: String,
    /// Accesses, of which each counts half after every half-life.
    pub accesses: f32,
    /// Bytes.
    pub size: u64,
    /// Bytes of it that are not yet on the store.
    pub dirty: u64,
}

/// A process that buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Its id.
    pub pid: u32,
    /// When it was started, in clock ticks after boot: with the id, its identity.
    pub start: u64,
    /// What the kernel calls it; empty if it is gone.
    pub name: String,
    /// The number of its job; 0 is none.
    pub job: u32,
    /// Bytes that it has written, since it was started or forked.
    pub written: u64,
    /// Bytes that it has read, from the tiers and, waiting, from the store.
    pub read: u64,
}

impl Observer {
    /// Bytes into and out of each tier and the stores since the pool was made.
    pub fn totals(&self) -> Totals {
        self.segment().totals()
    }

    /// How fast bytes come and go now: since the older of the last two looks that the node manager
    /// took, one to two seconds ago. One that hangs takes none; see [`Rates::over`]. `None` if it
    /// has not looked yet.
    pub fn rates(&self) -> Option<Rates> {
        let (at_ns, before) = self.segment().sampled()?;
        let over = Duration::from_nanos(clock::monotonic_ns().saturating_sub(at_ns));
        Some(self.rates_since(&before, over))
    }

    /// The same, since totals that were taken so long ago.
    pub fn rates_since(&self, before: &Totals, over: Duration) -> Rates {
        let rates = self.totals().rates_since(before, over.as_secs_f64());
        let tiers = self.segment().header().tiers_in_use();
        Rates { over, tiers: tiers.map(|tier| rates.tier(tier)).collect(), store: rates.store() }
    }

    /// The block that is not on the store for longest, scratch files left out, and when it will be
    /// there; `ages` are those of the configuration.
    pub fn oldest(&self, ages: &Ages) -> Option<Oldest> {
        let segment = self.segment();
        let header = segment.header();
        let now = clock::stamp(clock::realtime_coarse_ns());
        let mut found: Option<(u32, FileId, u64, u32)> = None;
        for meta in header.bucket_ids().filter_map(|bucket| segment.bucket(bucket)) {
            let pending = meta.pending();
            let file = meta.file.load(Ordering::Relaxed);
            if pending == 0 || !header.has_file(file) || segment.file(file).has(FileFlags::SCRATCH)
            {
                continue;
            }
            let age = |stamp: u32| match clock::stamp_age(now, stamp) {
                // Written since the clock was read.
                later if later > u32::MAX / 2 => 0,
                age => age,
            };
            let dirty_ms = age(meta.dirtied.load(Ordering::Relaxed));
            if found.is_none_or(|(oldest, ..)| dirty_ms > oldest) {
                let written_ms = age(meta.written.load(Ordering::Relaxed));
                let block = meta.block.load(Ordering::Relaxed);
                found = Some((dirty_ms, file, block, written_ms));
            }
        }
        let (dirty_ms, file, block, written_ms) = found?;
        let record = segment.file(file);
        let unit = segment.bucket_bytes() as u64;
        let start = block.saturating_mul(unit);
        let size = record.size.load(Ordering::Relaxed);
        let outlook = self.outlook(file, ages, (dirty_ms, written_ms));
        Some(Oldest {
            path: String::from_utf8_lossy(&segment.path_of(record)).into_owned(),
            range: start..start.saturating_add(unit).min(size.max(start)),
            age: Duration::from_millis(dirty_ms.into()),
            outlook,
        })
    }

    /// When a block will be on the store that was dirtied, and last written, so long ago.
    fn outlook(&self, file: FileId, ages: &Ages, (dirty_ms, written_ms): (u32, u32)) -> Outlook {
        let segment = self.segment();
        let record = segment.file(file);
        if self.is_given_up() {
            return Outlook::GivenUp;
        }
        if !self.is_served() {
            return Outlook::Unserved;
        }
        if liveness::is_stopped(self.manager()) {
            return Outlook::Stopped;
        }
        if let Some(errno) = record.failing_errno() {
            let retry = Duration::from_millis(retry_ms(record).into());
            return Outlook::Fails(Errno::from_raw_os_error(errno), retry);
        }
        let ends = self.is_retiring();
        // The run's limit holds beside the trigger.
        let most_ms = segment.max_age_of(record).map(|most_ms| {
            Age { most_ms: most_ms.into() }.due_ms().saturating_sub(dirty_ms.into())
        });
        let within = |wait_ms| {
            let drain = self.drain().time.unwrap_or_default();
            Outlook::Within(Duration::from_millis(wait_ms) + drain)
        };
        let waits_ms = match segment.trigger_of(record) {
            _ if ends => 0,
            Trigger::OnExit => return most_ms.map_or(Outlook::AtEnd, within),
            Trigger::PerFile if segment.holders(file).next().is_some() => {
                return most_ms.map_or(Outlook::AtClose, within);
            }
            Trigger::PerFile => 0,
            trigger => {
                let calm = ages.after_ms(trigger, ends).unwrap_or(0);
                let left = calm.saturating_sub(written_ms.into());
                // However often it is written.
                let due = |age: u64| ages.is_due(trigger, ends, 0, age);
                if due(dirty_ms.into()) { 0 } else { left }
            }
        };
        within(most_ms.map_or(waits_ms, |most_ms| most_ms.min(waits_ms)))
    }

    /// How long the store takes for what it does not have yet, and what of that it refuses.
    pub fn drain(&self) -> Drain {
        let segment = self.segment();
        let is_refused = |file: &FileId| {
            let record = segment.file(*file);
            record.failing_errno().is_some() && !record.has(FileFlags::SCRATCH)
        };
        let refused = segment.files().live().filter(is_refused);
        let refused: u64 = refused.map(|file| segment.pending_bytes(file)).sum();
        let left = self.dirty().saturating_sub(refused);
        let speeds = self.speeds_of_stores();
        let slowest = speeds.iter().map(|speed| speed.write_bandwidth).min().unwrap_or(0).max(1);
        let time = (left > 0 || refused == 0)
            .then(|| Duration::from_secs_f64(left as f64 / slowest as f64));
        Drain { refused, time }
    }

    /// The files that were used most lately, up to so many.
    pub fn hottest(&self, count: usize) -> Vec<HotFile> {
        let segment = self.segment();
        let now = segment.header().now_ms.load(Ordering::Relaxed);
        let half_life = segment.header().half_life_ms();
        let heat = |file: FileId| {
            let score = Score(segment.file(file).hotness.load(Ordering::Relaxed));
            (file, score.value_at(now, half_life))
        };
        let mut found: Vec<_> =
            segment.files().live().map(heat).filter(|&(_, accesses)| accesses >= 0.01).collect();
        found.sort_by(|one, other| other.1.total_cmp(&one.1));
        found.truncate(count);
        let described = |(file, accesses): (FileId, f32)| {
            let record = segment.file(file);
            HotFile {
                path: String::from_utf8_lossy(&segment.path_of(record)).into_owned(),
                accesses,
                size: record.size.load(Ordering::Relaxed),
                dirty: match record.has(FileFlags::SCRATCH) {
                    true => 0,
                    false => segment.pending_bytes(file),
                },
            }
        };
        found.into_iter().map(described).collect()
    }

    /// The seconds after which an access counts half.
    pub fn half_life(&self) -> Duration {
        Duration::from_millis(self.segment().header().half_life_ms().into())
    }

    /// The processes that buffer and live, and what they have read and written.
    pub fn process_status(&self) -> Vec<ProcessStatus> {
        let clients = self.segment().clients().taken().map(|(_, client)| client);
        let status = |client: &forebay_pool::layout::ClientSlot| {
            let counters = &client.counters;
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let pid = client.pid.load(Ordering::Acquire);
            let start = client.start.load(Ordering::Acquire);
            let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            liveness::is_alive(pid, start).then(|| ProcessStatus {
                pid,
                start,
                name: name().trim().to_owned(),
                job: client.job.load(Ordering::Relaxed),
                written: load(&counters.write_bytes),
                read: load(&counters.read_bytes).max(load(&counters.missed_bytes)),
            })
        };
        clients.filter_map(status).collect()
    }
}

/// Milliseconds until the next try of a file whose flush fails.
pub(super) fn retry_ms(record: &FileRecord) -> u32 {
    let now = clock::stamp(clock::realtime_coarse_ns());
    let left = record.retry_at.load(Ordering::Relaxed).wrapping_sub(now);
    if left > u32::MAX / 2 { 0 } else { left }
}
