//! Ordinary operations around the hot path: what each takes of the processors, by the program and
//! by the node manager for it, beside the same program on tmpfs and in the plain directory, round
//! by round in the same minutes.
//!
//! CPU time and not elapsed time, because most of these operations wait for no device: what they
//! cost is what another process on the node cannot have. Elapsed times stand beside it.

use crate::measured::{Claim, Measured, Unit};
use crate::micro::{FOREBAY, Forebay, PAGE_CACHE, TMPFS};
use crate::server;
use crate::site::{self, Site};
use crate::{Options, Scale};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: (&str, &str) = ("cliffs", include_str!("../kernels/cliffs.c"));
const MIB: u64 = 1 << 20;
const ROUNDS: u32 = 3;
/// Descriptors that a process has beside those of [`OPEN_MANY`]; cliffs.c counts with the same.
const SPARE: u64 = 64;

/// An operation costs at most so many times what it costs in the plain directory.
const LIKE_PLAIN: f64 = 1.1;
/// The same of creations and of first reads, of which a buffering system has to take note.
const FIRST: f64 = 1.3;
/// The same of programs that start.
const START: f64 = 1.15;

/// What is done before all else in each round: what a run alone costs the manager is no cost of its
/// operations.
const NOTHING: &str = "nothing";

/// What needs more open files than some systems allow.
const OPEN_MANY: &str = "open-many";

/// Bytes at a scale.
struct Size {
    /// Of the RAM tier; no work writes or reads more than half of it.
    pool: u64,
    /// What the largest work leaves in a directory.
    work: u64,
}

impl Size {
    fn of(scale: Scale) -> Size {
        Size { pool: scale.of(1024, 128) * MIB, work: scale.of(512, 64) * MIB }
    }
}

/// A kind of operation: its name, how often, and how many times the plain cost it may have.
struct Work(&'static str, u64, f64);

const WORKS: [Work; 28] = [
    Work("write-4k-buffers", 65_536, LIKE_PLAIN),
    Work("read-4k-buffers", 65_536, LIKE_PLAIN),
    Work("read-1m-buffers", 512, LIKE_PLAIN),
    Work("chmod-executable", 512, LIKE_PLAIN),
    Work("chmod-same", 512, LIKE_PLAIN),
    Work("write-fsync", 512, LIKE_PLAIN),
    Work("write-osync", 512, LIKE_PLAIN),
    Work("ioctl-getflags", 16_384, LIKE_PLAIN),
    Work("create-close", 1024, FIRST),
    Work("create-unlink", 1024, FIRST),
    Work("open-absolute", 16_384, LIKE_PLAIN),
    Work("open-relative", 16_384, LIKE_PLAIN),
    Work("openat-directory", 16_384, LIKE_PLAIN),
    Work("open-elsewhere", 16_384, 1.05),
    Work("cold-open-read", 1024, FIRST),
    Work("cold-read-1m", 256, FIRST),
    Work("cold-read-random", 1024, FIRST),
    Work("mmap-private", 256, LIKE_PLAIN),
    Work("sendfile-pipe", 4096, LIKE_PLAIN),
    Work("splice-pipe", 4096, LIKE_PLAIN),
    Work("rename", 2048, LIKE_PLAIN),
    Work("link-unlink", 2048, LIKE_PLAIN),
    Work("set-times", 4096, LIKE_PLAIN),
    Work("truncate", 2048, LIKE_PLAIN),
    Work("fork-exit", 512, START),
    Work("vfork-exec", 128, START),
    Work("vfork-exec-large", 64, START),
    Work(OPEN_MANY, 20_000, LIKE_PLAIN),
];

/// What a run printed, and what the manager did for it.
struct Cost {
    operations: f64,
    /// CPU seconds of the program, and of the manager.
    program: f64,
    manager: f64,
    /// Seconds that passed.
    elapsed: f64,
}

/// Measures ordinary operations; `say` is told what is being done.
///
/// # Errors
/// What could not be made or run. The files are kept then.
pub fn cliffs(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let size = Size::of(options.scale);
    let memory = Site::below(Path::new("/dev/shm"), size.pool + 2 * size.work)?;
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let store = Site::below(&folder, 2 * size.work)?;
    let result = measure(options, &size, &memory, &store, say);
    if result.is_err() {
        memory.keep();
        say(&format!("the files are kept in {}", store.keep().display()));
    }
    result
}

fn measure(
    options: &Options,
    size: &Size,
    memory: &Site,
    store: &Site,
    say: &mut dyn FnMut(&str),
) -> Result<Measured, String> {
    let program = memory.compile(PROGRAM.0, PROGRAM.1)?;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "Ordinary operations a second of CPU time, the node manager's included";
    let mut measured = Measured::new("cliffs", title, rounds, options.scale == Scale::Small);
    measured.is_drawn = false;
    let buffered = store.folder("buffered")?;
    let folders = [
        (TMPFS, memory.folder("plain")?),
        (PAGE_CACHE, store.folder("plain")?),
        (FOREBAY, buffered.clone()),
    ];
    // As a run without a configuration has it.
    let policy = "[flush]\ntrigger = \"periodic\"\n";
    let forebay =
        Forebay::with_policy(options, store, "forebay.toml", &buffered, size.pool, policy)?;
    let times = |count: u64| options.scale.of(count, count.min(16));
    let refused = refused(times, getrlimit(Resource::Nofile).maximum);
    if let Some(why) = &refused {
        say(why);
        measured.notes.push(format!("NOT MEASURED: {why}"));
    }
    let done = |work: &&Work| refused.is_none() || work.0 != OPEN_MANY;
    say("waiting until the pool is there");
    let manager = forebay.serve(store)?;
    for round in 1..=rounds {
        let mut base = 0.0;
        for Work(work, count, _) in [Work(NOTHING, 1, 1.0)].iter().chain(&WORKS).filter(done) {
            say(&format!("round {round} of {rounds}: {work}"));
            let count = times(*count).to_string();
            for turn in 0..folders.len() {
                let (system, parent) = &folders[(turn + round as usize) % folders.len()];
                // File systems get slow where much was created and removed: a directory for each.
                let folder = parent.join(format!("{work}-{round}"));
                fs::create_dir(&folder).map_err(|e| site::failed(&folder, &e))?;
                let other = elsewhere(&folder, &buffered)?;
                let shown = |path: &Path| path.display().to_string();
                let words = [work.to_string(), shown(&folder), shown(&other), count.clone()];
                server::run(Command::new(&program).arg("prepare").args(&words))?;
                let before = server::cpu_ns(manager.id())?;
                let mut command = match *system {
                    FOREBAY => forebay.run(&program),
                    _ => Command::new(&program),
                };
                let printed = server::run(command.args(&words))?;
                let mut cost = parse(&printed)?;
                if *system == FOREBAY {
                    // The run has drained: what it left to the manager is done.
                    let spent = server::cpu_ns(manager.id())?.saturating_sub(before) as f64 / 1e9;
                    if *work == NOTHING {
                        base = spent;
                    }
                    cost.manager = (spent - base).max(0.0);
                }
                if *work != NOTHING {
                    add(&mut measured, work, system, &cost);
                }
                for folder in [&folder, &other] {
                    fs::remove_dir_all(folder).map_err(|e| site::failed(folder, &e))?;
                }
            }
        }
    }
    for Work(work, _, most) in WORKS.iter().filter(done) {
        let claim = Claim::ratio(work, (work, FOREBAY), (work, PAGE_CACHE), 1.0 / most);
        measured.claims.push(claim);
    }
    measured.notes.push(format!(
        "Forebay: RAM tier of {} MiB, flushed every second. Operations a second of CPU time, the \
         program's and, for Forebay, the manager's until all is on the store. `(elapsed)`: a second \
         that passed.",
        size.pool / MIB
    ));
    Ok(measured)
}

/// Why [`OPEN_MANY`] cannot be measured where a process may have `most` open files; `None`: without
/// a limit.
fn refused(times: impl Fn(u64) -> u64, most: Option<u64>) -> Option<String> {
    let count = WORKS.iter().find(|work| work.0 == OPEN_MANY).map(|work| times(work.1))?;
    let (needed, most) = (count + SPARE, most?);
    (most < needed).then(|| {
        format!(
            "{OPEN_MANY}: it needs {needed} open files, and the hard limit is {most} \
             (`ulimit -Hn {needed}`)"
        )
    })
}

/// Makes the directory for what is not to be buffered while `folder` is used: beside the parent of
/// that, on the same device, and outside of `buffered`.
fn elsewhere(folder: &Path, buffered: &Path) -> Result<PathBuf, String> {
    let parent = folder.parent().unwrap_or(folder);
    let other = parent.with_file_name("elsewhere");
    let failed = |e| site::failed(&other, &e);
    fs::create_dir(&other).map_err(failed)?;
    let found = other.canonicalize().map_err(failed)?;
    let buffered = buffered.canonicalize().map_err(|e| site::failed(buffered, &e))?;
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).map_err(failed);
    if found.starts_with(buffered) || device(&found)? != device(parent)? {
        return Err(format!("{}: it is buffered, or on another device", found.display()));
    }
    Ok(found)
}

fn add(measured: &mut Measured, work: &str, system: &str, cost: &Cost) {
    let rate = |seconds: f64| cost.operations / seconds.max(1e-9);
    measured.add(work, system, Unit::Rate, rate(cost.program + cost.manager));
    if system == FOREBAY {
        let part = format!("{work} (program alone)");
        measured.add(&part, system, Unit::Rate, rate(cost.program));
    }
    measured.add(&format!("{work} (elapsed)"), system, Unit::Rate, rate(cost.elapsed));
}

/// A line `OPERATIONS CPU-NANOSECONDS NANOSECONDS`.
fn parse(printed: &str) -> Result<Cost, String> {
    let wrong = || format!("not a line of the program's: {printed:?}");
    let numbers: Result<Vec<u64>, _> = printed.split_whitespace().map(str::parse).collect();
    let numbers = numbers.map_err(|_| wrong())?;
    let [operations, cpu, elapsed] = numbers[..] else { return Err(wrong()) };
    let seconds = |ns: u64| ns as f64 / 1e9;
    let (program, elapsed) = (seconds(cpu), seconds(elapsed));
    Ok(Cost { operations: operations as f64, program, manager: 0.0, elapsed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_elsewhere_is_not_buffered() {
        let site = Site::below(&std::env::temp_dir(), 0).unwrap();
        let buffered = site.folder("buffered").unwrap();
        let folder = buffered.join("open-elsewhere-1");
        let other = elsewhere(&folder, &buffered).unwrap();
        assert!(other.is_dir() && !other.starts_with(buffered.canonicalize().unwrap()));
        fs::remove_dir(&other).unwrap();
        let why = elsewhere(&folder, &site.path("")).unwrap_err();
        assert!(why.contains("it is buffered"), "{why}");
    }

    #[test]
    fn a_limit_that_is_too_low_is_named() {
        let why = refused(|count| count, Some(4096)).unwrap();
        assert!(why.contains("needs 20064 open files, and the hard limit is 4096"), "{why}");
        assert_eq!(refused(|count| count.min(16), Some(4096)), None);
        assert_eq!(refused(|count| count, None), None);
        assert_eq!(refused(|count| count, Some(20_064)), None);
    }

    #[test]
    fn a_line_is_a_cost() {
        let cost = parse("4 2000000000 3000000000\n").unwrap();
        assert_eq!((cost.operations, cost.program, cost.elapsed), (4.0, 2.0, 3.0));
        for line in ["", "1 2", "1 2 x", "1 2 3 4"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
