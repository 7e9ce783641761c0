//! The system profiler (Hermes section 3.1.2): finds the devices of this machine and measures them,
//! so that a configuration can be written that says how fast each tier is.
//!
//! The paper left this to people. It leaves nothing behind: what it writes to has no name.
//!
//! No example runs here: a measurement takes seconds of a quiet machine. `forebay profile` is one.

mod hierarchy;
mod measured;
pub(crate) mod mounts;

pub use forebay_device::Direction;
pub use forebay_tiers::measure::{Order, Probe, Sample};
pub use hierarchy::{bandwidth, configuration, latency};
pub use measured::{Measured, Row};
pub use mounts::{Kind, Place, Skipped};

use forebay_device::Batch;
use forebay_posix::store_file;
use forebay_tiers::measure::Buffer;
use forebay_tiers::open_batch;
use mounts::Hints;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Part of the free space that a measurement may use for a while.
const FREE_SHARE: u64 = 10;
/// Largest file that is measured with, in bytes: more than devices have caches for.
const FILE_MAX: u64 = 1 << 30;
/// Bytes of one request of a large transfer, and how many of them go at once.
const LARGE: usize = 1 << 20;
const LARGE_AT_ONCE: usize = 8;
/// Bytes of the memory that is measured: more than processors have caches for.
const MEMORY: u64 = 256 << 20;
/// Runs of each probe; the median counts, the others show the spread.
pub const RUNS: usize = 3;
/// Shares of a place's time: one for each run of each probe, and these for laying out the file.
const LAYOUT_SHARES: usize = 4;

/// Bytes and requests at once of the probes, each in both directions.
const SEQUENTIAL: [(usize, usize); 2] = [(LARGE, 1), (LARGE, LARGE_AT_ONCE)];
const RANDOM: [(usize, usize); 3] = [(4 << 10, 1), (4 << 10, 16), (256 << 10, 8)];

/// What there is to measure.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Directories, one for each file system.
    pub places: Vec<Place>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}

/// Looks at this machine's mounted file systems, or at `directories` if there are any.
///
/// # Errors
/// /proc cannot be read.
pub fn survey(directories: &[PathBuf]) -> Result<Survey, String> {
    let text = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    let mounts = mounts::parse(&text);
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let hints = Hints::from(&variables);
    if directories.is_empty() {
        let (places, skipped) = mounts::find(&mounts, &hints);
        return Ok(Survey { places, skipped });
    }
    let mut survey = Survey::default();
    for directory in directories {
        match mounts::place_at(directory, &mounts, &hints) {
            Ok(place) if survey.places.iter().any(|known| known.path == place.path) => {}
            Ok(place) => survey.places.push(place),
            Err(skipped) => survey.skipped.push(skipped),
        }
    }
    Ok(survey)
}

/// Runs of all probes of one place: steps of its progress.
pub fn steps() -> usize {
    (SEQUENTIAL.len() + RANDOM.len()) * 2 * RUNS
}

/// The probes of a place. Writes come first: what is read must have been written.
fn probes() -> Vec<Probe> {
    let both = |direction| {
        let of = move |order: Order| {
            move |(bytes, at_once): (usize, usize)| Probe { order, direction, bytes, at_once }
        };
        let sequential = SEQUENTIAL.into_iter().map(of(Order::Sequential));
        sequential.chain(RANDOM.into_iter().map(of(Order::Random)))
    };
    both(Direction::Write).chain(both(Direction::Read)).collect()
}

/// Measures a directory for about `time`. Calls `step` before each run with what comes.
///
/// # Errors
/// Why it cannot be measured, for instance that it has a quota.
pub fn measure(
    place: &Place,
    time: Duration,
    mut step: impl FnMut(&Probe),
) -> Result<Measured, Skipped> {
    let skip = |errno: Errno| Skipped { path: place.path.clone(), why: errno.to_string() };
    let (file, direct) = unnamed_file(&place.path).map_err(skip)?;
    let mut client = open_batch(None, 16);
    let buffer = Buffer::new(LARGE * LARGE_AT_ONCE);
    let share = time / (steps() + LAYOUT_SHARES) as u32;
    let most = (place.free / FREE_SHARE).min(FILE_MAX);
    let bytes =
        lay_out(&mut *client, &file, most, &buffer, share * LAYOUT_SHARES as u32).map_err(skip)?;
    let mut rows = Vec::new();
    for probe in probes() {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            step(&probe);
            if !direct {
                let _ = fadvise(file.as_fd(), 0, None, Advice::DontNeed);
            }
            let run = probe.run(&mut *client, store_file(&file), bytes, &buffer, share);
            runs.push(run.map_err(skip)?);
        }
        rows.push(Row { probe, runs });
    }
    Ok(Measured { place: place.clone(), rows, direct })
}

/// Writes the file from its beginning, as much as the time allows: later probes overwrite, and
/// read, what is there. Returns its size.
fn lay_out(
    client: &mut dyn Batch,
    file: &OwnedFd,
    most: u64,
    buffer: &Buffer,
    time: Duration,
) -> Result<u64, Errno> {
    let start = std::time::Instant::now();
    let round = (LARGE * LARGE_AT_ONCE) as u64;
    let whole = Probe {
        order: Order::Sequential,
        direction: Direction::Write,
        bytes: LARGE,
        at_once: LARGE_AT_ONCE,
    };
    let mut bytes = 0;
    // At least two rounds, so that random requests have somewhere to go.
    while bytes < round * 2 || bytes < most && start.elapsed() < time {
        if bytes + round > most {
            break;
        }
        bytes += round;
        // A probe of one round over the last part: offsets count from the file's beginning.
        whole.run_at(client, store_file(file), bytes - round, buffer)?;
    }
    client.sync(store_file(file))?;
    if bytes == 0 { Err(Errno::NOSPC) } else { Ok(bytes) }
}

/// A file that no other process sees, and that ends with its descriptor: without the page cache if
/// the file system can, else with each write waiting for the device.
fn unnamed_file(folder: &Path) -> Result<(OwnedFd, bool), Errno> {
    let mut last = Errno::OPNOTSUPP;
    for (flag, direct) in [(OFlags::DIRECT, true), (OFlags::DSYNC, false)] {
        match open_unnamed(folder, OFlags::RDWR | OFlags::CLOEXEC | flag) {
            Ok(file) => return Ok((file, direct)),
            Err(errno) => last = errno,
        }
    }
    Err(last)
}

fn open_unnamed(folder: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            // Not known there, as on NFS: a name that is gone in the next moment.
            let name =
                folder.join(crate::instance::discovery::unguessable_name(".forebay-profile"));
            let made = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL, mode);
            // A file system may make the file and then refuse the flags.
            if !matches!(made, Err(Errno::EXIST)) {
                let _ = rustix::fs::unlink(&name);
            }
            made
        }
        other => other,
    }
}

/// Measures this machine's memory for about `time`; see [`measure`].
pub fn measure_memory(time: Duration, mut step: impl FnMut(&Probe)) -> Measured {
    let free = crate::config::available_memory();
    let bytes = (free / FREE_SHARE).clamp(8 << 20, MEMORY);
    let mut memory = vec![0u64; (bytes / 8) as usize];
    // The kernel gives memory out at its first touch, which is not what is measured.
    memory.fill(1);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(64);
    let share = time / (MEMORY_PROBES * RUNS) as u32;
    let mut rows = Vec::new();
    for probe in memory_probes(threads) {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            step(&probe);
            runs.push(probe.run_in_memory(&mut memory, share));
        }
        rows.push(Row { probe, runs });
    }
    let device = format!("{threads} processors");
    let place = Place { path: PathBuf::from("memory"), kind: Kind::Memory, device, free };
    Measured { place, rows, direct: true }
}

/// Probes of memory.
const MEMORY_PROBES: usize = 7;

/// Steps of the progress of [`measure_memory`].
pub fn memory_steps() -> usize {
    MEMORY_PROBES * RUNS
}

fn memory_probes(threads: usize) -> [Probe; MEMORY_PROBES] {
    use Direction::{Read, Write};
    use Order::{Random, Sequential};
    let probe = |order, direction, bytes, at_once| Probe { order, direction, bytes, at_once };
    [
        probe(Sequential, Write, LARGE, 1),
        probe(Sequential, Write, LARGE, threads),
        probe(Sequential, Read, LARGE, 1),
        probe(Sequential, Read, LARGE, threads),
        probe(Random, Write, 4 << 10, threads),
        probe(Random, Read, 4 << 10, threads),
        probe(Random, Read, 8, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let survey = survey(&[folder.path().to_owned(), folder.path().join("gone")]).unwrap();
        assert_eq!(survey.places.len(), 1);
        assert!(survey.skipped[0].why.starts_with("No such file"), "{:?}", survey.skipped);
        let mut taken = 0;
        let found = measure(&survey.places[0], Duration::from_millis(300), |_| {
            taken += 1;
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
        })
        .unwrap();
        assert_eq!(taken, steps());
        assert!(found.rows.iter().all(|row| row.runs.len() == RUNS));
        let speed = found.speed();
        assert!(speed.read_bandwidth > 0 && speed.write_bandwidth > 0 && speed.latency_ns > 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_is_measured() {
        let mut taken = 0;
        let found = measure_memory(Duration::from_millis(50), |_| taken += 1);
        assert_eq!(taken, memory_steps());
        let speed = found.speed();
        assert!(speed.read_bandwidth > 0 && speed.write_bandwidth > 0 && speed.latency_ns > 0);
    }

    #[test]
    fn the_median_counts_and_the_others_show_the_spread() {
        let probe =
            Probe { order: Order::Sequential, direction: Direction::Read, bytes: 1, at_once: 1 };
        let run = |bandwidth, round_ns| Sample { bandwidth, round_ns, bytes: 1 };
        let row = Row { probe, runs: vec![run(3.0, 30), run(1.0, 50), run(2.0, 10)] };
        assert_eq!((row.bandwidths(), row.rounds_ns()), ([1.0, 2.0, 3.0], [10, 30, 50]));
    }

    #[test]
    fn a_place_without_room_is_not_filled() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place {
            path: folder.path().to_owned(),
            kind: Kind::Local,
            device: String::new(),
            free: 1 << 20,
        };
        let skipped = measure(&place, Duration::from_millis(10), |_| ()).unwrap_err();
        assert!(skipped.why.contains("No space"), "{skipped:?}");
    }
}
