//! What a segment looks like from outside: for `forebay status`, progress bars and tests.

use crate::observe::holders::Holder;
use crate::observe::in_force::InForce;
use crate::observe::markers::{are_refused, describe};
use crate::observe::outlook::retry_ms;
use crate::usage::{dirty_bytes, ranges, scratch_bytes, whole_buckets_of};
use forebay_placement::TierId;
use forebay_placement::hotness::AccessStats;
use forebay_placement::schema::{Mode, Settings, Trigger};
use forebay_placement::staged::Stage;
use forebay_pool::fence::Flushing;
use forebay_pool::free_map::USED;
use forebay_pool::layout::{
    BucketMeta, ClientSlot, Counter, DeviceSpeed, FOLLOWS, FileFlags, JOBS_MAX, JobRecord,
    StoreHeader, retirement,
};
use forebay_pool::pins::Pin;
use forebay_pool::segment::{open_pool, text};
use forebay_pool::stay::Stay;
use forebay_pool::{FileId, Segment, SegmentError, clock, liveness};
use forebay_sandbox::FaultKind;
use rustix::fd::{AsFd, BorrowedFd};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::time::UNIX_EPOCH;

/// Corrupt ranges that are named.
pub const CORRUPT_MAX: usize = 100;

/// One of the things that clients count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Its name.
    pub name: &'static str,
    /// What is counted.
    pub unit: &'static str,
    /// Which of that.
    pub help: &'static str,
    /// The count since the pool was made.
    pub value: u64,
}

/// How fast a device is now, as far as it is known: what is configured, or assumed, corrected by
/// what was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedStatus {
    /// Bytes a second.
    pub read_bandwidth: u64,
    /// Bytes a second.
    pub write_bandwidth: u64,
}

fn speed_of(device: &DeviceSpeed) -> SpeedStatus {
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    SpeedStatus {
        read_bandwidth: load(&device.read_bandwidth),
        write_bandwidth: load(&device.write_bandwidth),
    }
}

/// A look at a pool that another process serves.
pub struct Observer(Segment);

/// One tier now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// Its name.
    pub name: String,
    /// Bytes it can hold: less than configured where /dev/shm has no room for more.
    pub capacity: u64,
    /// Bytes that it is configured to hold.
    pub configured: u64,
    /// Bytes of its memory that it has now; of a file tier its capacity.
    pub backed: u64,
    /// Bytes of buckets in use, and of pages of small files.
    pub used: u64,
    /// Bytes that are not yet on the store.
    pub dirty: u64,
    /// Bytes of scratch files that the store does not have, and is not meant to get.
    pub scratch: u64,
    /// Bytes that are set aside for jobs.
    pub reserved: u64,
    /// Bytes that programs have pinned there, each pin in whole blocks.
    pub pinned: u64,
    /// Why nothing new goes there, if so: an errno, and for how many milliseconds.
    pub failed: Option<(i32, u32)>,
}

/// A run under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Its number.
    pub number: u32,
    /// Process id of its `forebay run`; 0 if that is gone.
    pub pid: u32,
    /// The mode that it was told, if any.
    pub mode: Option<Mode>,
    /// The trigger that it was told, if any.
    pub trigger: Option<Trigger>,
    /// Bytes set aside for it.
    pub reserved: u64,
    /// Bytes of them that hold blocks.
    pub in_use: u64,
    /// Its scratch files.
    pub scratch_files: usize,
    /// Bytes that its processes have pinned in some tier, each pin in whole blocks.
    pub pinned: u64,
    /// Of each tier of which it has a quota: its name, bytes in use, and bytes that may be.
    pub quotas: Vec<(String, u64, u64)>,
    /// Bytes of its files that the stores lack, and bytes that they may, if that is limited.
    pub cap: Option<(u64, u64)>,
    /// For how long they may lack any, if that is limited.
    pub max_age: Option<Duration>,
}

/// A file that is ahead of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Where it was opened.
    pub path: String,
    /// The same, byte for byte.
    pub place: PathBuf,
    /// Its inode number and time of birth, in nanoseconds since 1970 (0 if its store has none).
    pub identity: (u64, u64),
    /// Its size in bytes.
    pub size: u64,
    /// The errno of its last flush, if that failed.
    pub errno: Option<i32>,
    /// Its last flush, if that failed.
    pub failing: Option<Failing>,
    /// Bytes that are not yet on the store.
    pub dirty: u64,
    /// The first ranges of them.
    pub ranges: Vec<Range<u64>>,
    /// Another program has changed it on the store meanwhile.
    pub conflict: bool,
}

impl FileStatus {
    /// Whether it lies where it was opened; `None` if that cannot be seen.
    pub fn is_in_place(&self) -> Option<bool> {
        let found = match self.place.symlink_metadata() {
            Ok(found) => found,
            Err(error) => {
                let gone = [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind());
                return (gone && self.place.is_absolute()).then_some(false);
            }
        };
        let (inode, born_ns) = self.identity;
        let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let is_same_birth =
            born_ns == 0 || born.is_none_or(|born| born.as_nanos() == born_ns.into());
        Some(found.ino() == inode && is_same_birth)
    }
}

/// A rule that asks for a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRule {
    /// File and line.
    pub source: String,
    /// What its datasets are called.
    pub pattern: String,
    /// How often one was noted.
    pub matched: u32,
}

/// The staged files of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedFiles {
    /// The state.
    pub stage: Stage,
    /// How many files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that are not yet on the store.
    pub dirty: u64,
}

/// A file whose rule names a predictor that is not asked any more, as it has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPredictor {
    /// The file.
    pub path: String,
    /// The predictor's program: its path, or the end of it.
    pub program: String,
    /// File and line of the rule.
    pub source: String,
    /// What it did.
    pub fault: &'static str,
}

/// How it stands with a file that cannot be flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Flushes that failed.
    pub tries: u32,
    /// Milliseconds until the next try; 0 when it is due.
    pub retry_ms: u32,
}

/// Ranges of a file that are listed.
const RANGES_MAX: usize = 8;

/// What to say of directories whose files cannot be buffered.
pub(crate) fn unbuffered(segment: &Segment) -> impl Iterator<Item = String> {
    let header = segment.header();
    let stores = header.store[..header.stores as usize].iter();
    let path = |store: &StoreHeader| text(&store.path).to_string_lossy().into_owned();
    stores.filter(|store| are_refused(store)).map(move |store| describe(&path(store)))
}

/// Bytes of pins, in blocks of so many.
fn pinned(pins: impl Iterator<Item = Pin>, bucket: u64) -> u64 {
    pins.fold(0, |all, pin| all.saturating_add(pin.count.saturating_mul(bucket)))
}

impl Observer {
    /// Maps the pool at `path`.
    ///
    /// # Errors
    /// Why it cannot be looked at.
    pub fn of(path: &Path) -> Result<Observer, SegmentError> {
        let file = open_pool(path)?;
        Segment::attach(file.as_fd()).map(Observer)
    }

    /// The same of an open one.
    pub(crate) fn of_file(pool: BorrowedFd<'_>) -> Result<Observer, SegmentError> {
        Segment::attach(pool).map(Observer)
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.0
    }

    /// Whether a node manager serves the pool.
    pub fn is_served(&self) -> bool {
        self.0.manager_is_alive()
    }

    /// Whether the node was given up by its group, so that nothing of the pool goes to the stores.
    pub fn is_given_up(&self) -> bool {
        self.0.header().flushing() == Flushing::GivenUp
    }

    /// Process id of the node manager that served it last.
    pub fn manager(&self) -> u32 {
        self.0.header().manager_pid.load(Ordering::Acquire)
    }

    /// Processes that hold something for which others wait, and do not go on.
    pub fn holders(&self) -> Vec<Holder> {
        crate::observe::holders::holders(&self.0)
    }

    /// What holds for files of which neither rule nor run nor directory say anything.
    pub fn in_force(&self) -> InForce {
        InForce::of(&self.0, None, &Settings::default(), None)
    }

    /// All tiers, fastest first.
    pub fn tiers(&self) -> Vec<TierStatus> {
        let header = self.0.header();
        let bucket = self.0.bucket_bytes() as u64;
        header
            .tiers_in_use()
            .map(|tier| {
                let buckets = whole_buckets_of(&self.0, tier);
                let small = self.0.count_sparse(tier);
                let small = u64::from(small.claimed - small.idle) * self.0.page_bytes() as u64;
                let used = buckets
                    .clone()
                    .filter_map(|bucket| self.0.bucket(bucket))
                    .filter(|meta| meta.state.load(Ordering::Relaxed) == USED)
                    .count();
                let (capacity, backed) = match tier {
                    TierId::RAM => (self.0.ram_capacity() + self.0.lent(), self.0.backed()),
                    tier => (header.tier[tier].buckets, header.tier[tier].buckets),
                };
                let backed = u64::from(backed) * bucket + if tier.is_ram() { small } else { 0 };
                TierStatus {
                    name: text(&header.tier[tier].name).to_string_lossy().into_owned(),
                    capacity: u64::from(capacity) * bucket,
                    backed,
                    configured: u64::from(header.tier[tier].buckets) * bucket,
                    used: used as u64 * bucket + small,
                    dirty: dirty_bytes(&self.0, tier, |_| true),
                    scratch: scratch_bytes(&self.0, tier),
                    reserved: u64::from(header.set_aside[tier].load(Ordering::Relaxed)) * bucket,
                    pinned: pinned(self.0.pins().filter(|pin| pin.tier == tier), bucket),
                    failed: self.0.tier_failure(tier).map(|(errno, since)| {
                        let now = clock::stamp(clock::realtime_coarse_ns());
                        (errno.raw_os_error(), clock::stamp_age(now, since))
                    }),
                }
            })
            .collect()
    }

    /// How fast the tiers are, fastest first, as far as it is known.
    pub fn speeds_of_tiers(&self) -> Vec<SpeedStatus> {
        let header = self.0.header();
        header.tiers_in_use().map(|tier| speed_of(&header.tier[tier].speed)).collect()
    }

    /// The same of the stores.
    pub fn speeds_of_stores(&self) -> Vec<SpeedStatus> {
        let header = self.0.header();
        let stores = header.store.iter().take(header.stores as usize);
        stores.map(|store| speed_of(&store.speed)).collect()
    }

    /// The staged files of each state in which there are any, in the order in which a file passes
    /// through them.
    pub fn staged(&self) -> Vec<StagedFiles> {
        let of_stage = |stage: Stage| {
            let mut found = StagedFiles { stage, files: 0, bytes: 0, dirty: 0 };
            let is_there = |file: &FileId| self.0.file(*file).stage() == Some(stage);
            for file in self.0.files().live().filter(is_there) {
                found.files += 1;
                found.bytes += self.0.file(file).size.load(Ordering::Relaxed);
                self.0.for_each_pending(file, 0, |range| {
                    found.dirty += range.end - range.start;
                    true
                });
            }
            found
        };
        Stage::ALL.map(of_stage).into_iter().filter(|found| found.files > 0).collect()
    }

    /// Bytes that are not yet on the store.
    pub fn dirty(&self) -> u64 {
        self.0.header().tiers_in_use().map(|tier| dirty_bytes(&self.0, tier, |_| true)).sum()
    }

    /// Managed directories.
    pub fn stores(&self) -> Vec<String> {
        let header = self.0.header();
        header.store[..header.stores as usize]
            .iter()
            .map(|store| text(&store.path).to_string_lossy().into_owned())
            .collect()
    }

    /// What to say of directories whose files cannot be buffered.
    pub fn unbuffered(&self) -> Vec<String> {
        unbuffered(&self.0).collect()
    }

    /// Directories that are to be buffered, with the opens of files there that were not, because
    /// such a file cannot be.
    pub fn unmarked(&self) -> Vec<(String, u32)> {
        let header = self.0.header();
        let stores = header.store[..header.stores as usize].iter();
        let count = |store: &StoreHeader| {
            let path = text(&store.path).to_string_lossy().into_owned();
            (path, store.unmarked.load(Ordering::Relaxed))
        };
        stores.filter(|store| store.bypass == 0).map(count).collect()
    }

    /// Files that all processes use through the kernel, where they were opened; not those that are
    /// written through because they are new and small.
    pub fn direct(&self) -> Vec<PathBuf> {
        let live = self.0.files().live().map(|file| self.0.file(file));
        let direct =
            live.filter(|record| record.has(FileFlags::DIRECT) && !record.is_written_through());
        let path = |record| PathBuf::from(OsStr::from_bytes(&self.0.path_of(record)));
        direct.map(path).collect()
    }

    /// Files that are ahead of the store.
    pub fn files(&self) -> Vec<FileStatus> {
        let ahead = self.0.files().live().filter(|&file| {
            let record = self.0.file(file);
            record.has(FileFlags::METADATA_DIRTY) && !record.has(FileFlags::SCRATCH)
        });
        ahead
            .map(|file| {
                let record = self.0.file(file);
                let errno = record.failing_errno();
                let (mut dirty, mut ranges) = (0, Vec::<Range<u64>>::new());
                self.0.for_each_pending(file, 0, |range| {
                    dirty += range.end - range.start;
                    let count = ranges.len();
                    match ranges.last_mut() {
                        Some(last) if last.end == range.start => last.end = range.end,
                        _ if count < RANGES_MAX => ranges.push(range),
                        _ => {}
                    }
                    true
                });
                let path = self.0.path_of(record);
                let retry_ms = retry_ms(record);
                FileStatus {
                    identity: (
                        record.inode.load(Ordering::Acquire),
                        record.born_ns.load(Ordering::Acquire),
                    ),
                    failing: errno.map(|_| Failing { tries: record.failures(), retry_ms }),
                    dirty,
                    ranges,
                    conflict: record.has(FileFlags::CONFLICT),
                    path: String::from_utf8_lossy(&path).into_owned(),
                    place: PathBuf::from(OsStr::from_bytes(&path)),
                    size: record.size.load(Ordering::Acquire),
                    errno,
                }
            })
            .collect()
    }

    /// Files whose predictors are not asked any more; the log says more of each.
    pub fn failed_predictors(&self) -> Vec<FailedPredictor> {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let failed = |file: FileId| {
            let record = self.0.file(file);
            let code = record.predictor_fault.load(Ordering::Acquire);
            let rule = self.0.rule_of(record).filter(|rule| code != 0 && rule.has_predictor())?;
            let fault = FaultKind::from_code(code).map_or("failed", FaultKind::describe);
            let path = shown(&self.0.path_of(record));
            let (program, source) = (shown(rule.predictor()), shown(rule.source()));
            Some(FailedPredictor { path, program, source, fault })
        };
        self.0.files().live().filter_map(failed).collect()
    }

    /// The rules that ask for datasets, each with how often a dataset was noted for which it holds
    /// since the pool was made.
    pub fn dataset_rules(&self) -> Vec<DatasetRule> {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let rules = self.0.rules().iter().enumerate();
        let asking = rules.filter(|(_, rule)| !rule.rule().when.dataset.is_empty());
        let state = asking.map(|(index, rule)| DatasetRule {
            source: shown(rule.source()),
            pattern: shown(rule.rule().when.dataset),
            matched: self.0.datasets_matched(index),
        });
        state.collect()
    }

    /// How often datasets were noted since the pool was made, and how often there was no room for
    /// one.
    pub fn datasets(&self) -> (u32, u32) {
        self.0.datasets_seen()
    }

    /// Bytes of all files that the stores may lack, if that is limited.
    pub fn cap(&self) -> Option<u64> {
        let limit = self.0.header().cap.limit()?;
        Some(u64::from(limit) * self.0.page_bytes() as u64)
    }

    /// Runs under way.
    pub fn jobs(&self) -> Vec<JobStatus> {
        let segment = &self.0;
        let tiers = segment.header().tiers_in_use();
        let used: Vec<_> = tiers
            .filter(|&tier| segment.has_quotas(tier))
            .map(|tier| (tier, segment.count_by_job(tier)))
            .collect();
        let page = segment.page_bytes() as u64;
        let lacking = segment.has_caps().then(|| segment.count_unsafe());
        let quota = |job: &JobRecord, (tier, used): &(TierId, [u32; JOBS_MAX])| {
            let limit = u64::from(job.quota[*tier].limit()?) * page;
            let number = job.number.load(Ordering::Acquire);
            let used = u64::from(used[number as usize % JOBS_MAX]) * page;
            let name = text(&segment.header().tier[*tier].name).to_string_lossy().into_owned();
            Some((name, used, limit))
        };
        let status = |job: &JobRecord| {
            let number = job.number.load(Ordering::Acquire);
            let reserved = u64::from(job.reserved.load(Ordering::Acquire));
            JobStatus {
                number,
                pid: if segment.job_is_run(job) { job.pid.load(Ordering::Relaxed) } else { 0 },
                mode: Mode::from_code(job.mode.load(Ordering::Relaxed)),
                trigger: Trigger::from_code(job.trigger.load(Ordering::Relaxed)),
                reserved: reserved * segment.bucket_bytes() as u64,
                in_use: if reserved > 0 { segment.reserved_in_use(number) } else { 0 },
                scratch_files: segment.scratch_of(number).count(),
                pinned: pinned(segment.pins_of_job(number), segment.bucket_bytes() as u64),
                quotas: used.iter().filter_map(|used| quota(job, used)).collect(),
                cap: lacking.as_ref().and_then(|lacking| {
                    let limit = u64::from(job.cap.limit()?) * page;
                    let used = lacking.by_job[number as usize % JOBS_MAX];
                    Some((u64::from(used) * page, limit))
                }),
                max_age: match job.max_age_ms.load(Ordering::Relaxed) {
                    0 => None,
                    ms => Some(Duration::from_millis(ms.into())),
                },
            }
        };
        segment.jobs().map(status).collect()
    }

    /// Bytes on file tiers that are not on the store and cannot be read as they were written, by
    /// file: the first [`CORRUPT_MAX`] ranges.
    pub fn corrupt(&self) -> Vec<(String, Range<u64>)> {
        let bucket = self.0.bucket_bytes() as u64;
        let page = self.0.page_bytes() as u64;
        let of_block = |(file, block, pages): (FileId, u64, u64)| {
            let path = String::from_utf8_lossy(&self.0.path_of(self.0.file(file))).into_owned();
            let start = block * bucket;
            ranges(pages, page)
                .map(move |range| (path.clone(), start + range.start..start + range.end))
        };
        self.0.corrupt_pages().flat_map(of_block).take(CORRUPT_MAX).collect()
    }

    /// What clients have counted, those that are gone and those that live.
    pub fn counters(&self) -> Vec<Count> {
        let header = self.0.header();
        let of = |counter: &Counter<'_>| Count {
            name: counter.name,
            unit: counter.unit,
            help: counter.help,
            value: counter.value.load(Ordering::Relaxed),
        };
        let mut sums: Vec<_> = header.past.all().iter().map(of).collect();
        for (_, client) in self.0.clients().used() {
            for (sum, counter) in sums.iter_mut().zip(client.counters.all()) {
                // Programs write them: whatever stands there is shown.
                sum.value = sum.value.wrapping_add(counter.value.load(Ordering::Relaxed));
            }
        }
        let of_name = |name: &str| sums.iter().find(|count| count.name == name);
        let value = |name| of_name(name).map_or(0, |count| count.value);
        let used = value("guess_hits").saturating_add(self.waiting_guesses());
        sums.push(Count {
            name: "guess_misses",
            unit: "blocks",
            help: "of them, gone from RAM before they were read",
            value: value("guessed").saturating_sub(used),
        });
        let staged = &header.staged;
        let of_staged = [
            ("staged_requests", "writes", "to stores, of staged files", &staged.requests),
            ("staged_whole", "writes", "of them, a stripe or the end of a file", &staged.whole),
            ("staged_compared", "bytes", "of them, read back and right", &staged.compared),
            ("staged_unequal", "writes", "of them, not right, and made again", &staged.unequal),
        ];
        sums.extend(of_staged.map(|(name, unit, help, value)| {
            let value = value.load(Ordering::Relaxed);
            Count { name, unit, help, value }
        }));
        sums
    }

    /// Blocks in RAM that were brought there because a program will probably read them, and that
    /// none has read.
    fn waiting_guesses(&self) -> u64 {
        let is_waiting = |meta: &BucketMeta| {
            let access_stats = AccessStats(meta.access_stats.load(Ordering::Relaxed));
            meta.state.load(Ordering::Relaxed) == USED && access_stats.is_ahead()
        };
        let buckets = whole_buckets_of(&self.0, TierId::RAM);
        buckets.filter_map(|bucket| self.0.bucket(bucket)).filter(|meta| is_waiting(meta)).count()
            as u64
    }

    /// Whether what programs will probably read is brought up before.
    pub fn reads_ahead(&self) -> bool {
        self.0.header().prefetch.load(Ordering::Relaxed) != 0
    }

    /// Whether a process of this job has read a file that one of the orders is of which the job is
    /// to follow.
    pub fn follows(&self, job: u32) -> bool {
        self.0.job(job).is_some_and(|job| job.recording.load(Ordering::Relaxed) & FOLLOWS != 0)
    }

    /// Live client processes. Slots of others are no count: those that died are taken back by a
    /// node manager, and an orphaned pool has none.
    pub fn clients(&self) -> usize {
        self.processes().len()
    }

    /// Process ids of the clients that live, in ascending order.
    pub fn processes(&self) -> Vec<u32> {
        self.living(|_| true)
    }

    /// The same, of job `number` alone; of 0: of those that no job has.
    pub fn processes_of(&self, number: u32) -> Vec<u32> {
        self.living(|client| client.job.load(Ordering::SeqCst) == number)
    }

    fn living(&self, is_meant: impl Fn(&ClientSlot) -> bool) -> Vec<u32> {
        let clients = self.0.clients().taken().map(|(_, client)| client);
        let of = |client: &ClientSlot| {
            let (pid, start) = (&client.pid, &client.start);
            (pid.load(Ordering::Acquire), start.load(Ordering::Acquire))
        };
        let alive = |&(pid, start): &(u32, u64)| liveness::is_alive(pid, start);
        let meant = clients.filter(|client| is_meant(client));
        let mut found: Vec<_> = meant.map(of).filter(alive).map(|(pid, _)| pid).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Files that the manager has still to bring to the store, or, when it was told to end, to make
    /// direct, and the processes that have them open.
    pub fn unfinished(&self) -> Vec<(String, Vec<u32>)> {
        let ends = self.is_retiring();
        let left = |&file: &FileId| {
            let record = self.0.file(file);
            let is_where_it_ends = !ends || record.has(FileFlags::DIRECT);
            let done = record.has(FileFlags::SCRATCH)
                || is_where_it_ends && !record.has(FileFlags::METADATA_DIRTY);
            !done
        };
        let described = |file| {
            let path = String::from_utf8_lossy(&self.0.path_of(self.0.file(file))).into_owned();
            (path, self.0.holders(file).collect())
        };
        self.0.files().live().filter(left).map(described).collect()
    }

    /// Whether the manager was told to end and all files are used through the kernel: it stays for
    /// the processes that have them open.
    pub fn is_direct(&self) -> bool {
        self.0.header().retired.load(Ordering::Acquire) == retirement::DIRECT
    }

    /// For how long the manager stays that no run needs, as far as runs and `forebay up` have said.
    pub fn stay(&self) -> Stay {
        self.0.header().stays_until.left()
    }

    /// Whether the manager was told to end.
    pub fn is_retiring(&self) -> bool {
        self.0.header().retired.load(Ordering::Acquire) != retirement::NONE
    }

    /// Times that a file was found changed by others on the store.
    pub fn conflicts(&self) -> u32 {
        self.0.header().conflicts.load(Ordering::Relaxed)
    }

    /// Opens that were not buffered because the file table or the descriptions were full.
    pub fn refused(&self) -> u32 {
        self.0.header().opens_refused.load(Ordering::Relaxed)
    }
}
