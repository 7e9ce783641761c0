//! Ordinary operations around the hot path: what each takes of the processors, by the program and
//! by the node manager for it, beside the same program on tmpfs and in the plain directory, round
//! by round in the same minutes.
//!
//! CPU time and not elapsed time, because most of these operations wait for no device: what they
//! cost is what another process on the node cannot have. Elapsed times stand beside it.

mod counts;
mod works;

use self::counts::Tools;
use self::works::{NOTHING, OPEN_MANY, WORKS, Work};
use crate::measured::{Claim, Measured, Unit};
use crate::micro::{Backing, FOREBAY, Forebay, PAGE_CACHE, TMPFS};
use crate::server::{self, Server};
use crate::site::{self, Site};
use crate::{Options, Scale};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: (&str, &str) = ("cliffs", include_str!("../kernels/cliffs.c"));
/// The plain directory, with a preload library that does nothing.
const PRELOADED: &str = "empty preload";
/// What the program prints when it is about to begin.
const READY: &str = "ready";
const EMPTY: &str = "int forebay_bench_empty;\n";
const MIB: u64 = 1 << 20;
/// A parallel file system's speed, of a store in a configuration.
const SLOW_STORE: &str = "emulate = { bandwidth = \"200MB/s\", latency = \"1ms\" }\n";
const ROUNDS: u32 = 3;
/// Descriptors that a process has beside those of [`OPEN_MANY`]; cliffs.c counts with the same.
const SPARE: u64 = 64;

/// Bytes at a scale.
struct Size {
    /// Of the RAM tier, the only one; no work writes more than half of it, and one reads more than
    /// all of it.
    pool: u64,
    /// What the largest work leaves in a directory.
    work: u64,
}

impl Size {
    fn of(scale: Scale) -> Size {
        Size { pool: scale.of(1024, 128) * MIB, work: scale.of(1280, 64) * MIB }
    }
}

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
    let memory = Site::below(Path::new("/dev/shm"), size.pool + size.work)?;
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let store = Site::below(&folder, 2 * size.work)?;
    let result = measure(options, &size, &memory, &store, say);
    if result.is_err() {
        memory.keep();
        say(&format!("the files are kept in {}", store.keep().display()));
    }
    result
}

/// Where an operation is measured: a name, and the directory that its own are made in.
struct System {
    name: &'static str,
    parent: PathBuf,
    /// What runs the program there, and its node manager; `None`: nothing.
    under: Option<(Forebay, Server)>,
}

impl System {
    fn plain(name: &'static str, parent: PathBuf) -> System {
        System { name, parent, under: None }
    }

    /// The process of its node manager.
    fn manager(&self) -> Option<u32> {
        self.under.as_ref().map(|(_, manager)| manager.id())
    }
}

/// All that rounds have in common.
struct Bench<'a> {
    program: PathBuf,
    /// The preload library that does nothing.
    empty: PathBuf,
    buffered: PathBuf,
    /// Where tools write what they count.
    scratch: PathBuf,
    measured: Measured,
    say: &'a mut dyn FnMut(&str),
}

/// A work's directories in a system, made for it alone: file systems get slow where much was
/// created and removed.
struct Folders {
    own: PathBuf,
    other: PathBuf,
}

impl Folders {
    fn remove(self) -> Result<(), String> {
        for folder in [&self.own, &self.other] {
            fs::remove_dir_all(folder).map_err(|e| site::failed(folder, &e))?;
        }
        Ok(())
    }
}

impl Bench<'_> {
    fn folders(&self, system: &System, name: &str) -> Result<Folders, String> {
        // Another name for each, and in each run: directories may be placed by their names.
        let name = format!("{name}-{}-{}", system.name.replace(' ', "-"), std::process::id());
        let own = system.parent.join(&name);
        fs::create_dir(&own).map_err(|e| site::failed(&own, &e))?;
        let other = elsewhere(&own, &self.buffered)?;
        Ok(Folders { own, other })
    }

    /// The arguments that have the program do a work so many times, or prepare it.
    fn words(work: &Work, folders: &Folders, count: u64, prepares: bool) -> Vec<String> {
        let shown = |path: &Path| path.display().to_string();
        let (name, text) = match &work.script {
            Some(script) => ("script", Some(if prepares { script.prepare } else { script.run })),
            None => (work.name, None),
        };
        let words =
            [name.to_owned(), shown(&folders.own), shown(&folders.other), count.to_string()];
        words.into_iter().chain(text.map(str::to_owned)).collect()
    }

    /// Makes a work's directories in a system, and what it finds in them.
    fn prepare(
        &self,
        work: &Work,
        system: &System,
        count: u64,
        name: &str,
    ) -> Result<Folders, String> {
        let folders = self.folders(system, name)?;
        let words = Self::words(work, &folders, count, true);
        server::run(Command::new(&self.program).arg("prepare").args(words))?;
        Ok(folders)
    }

    /// The command that does a work in a system, run by the command that `wrapped` begins with.
    fn command(
        &self,
        work: &Work,
        system: &System,
        folders: &Folders,
        count: u64,
        wrapped: &[String],
    ) -> Command {
        let program = self.program.display().to_string();
        let mut words = wrapped.iter().chain([&program]);
        let first = Path::new(words.next().unwrap_or(&program));
        let mut command = match &system.under {
            Some((forebay, _)) => forebay.run(first),
            None => Command::new(first),
        };
        if system.name == PRELOADED {
            command.env("LD_PRELOAD", &self.empty);
        }
        command.args(words).args(Self::words(work, folders, count, false));
        command
    }

    /// What a work costs in a system.
    fn cost(&self, work: &Work, system: &System, count: u64, name: &str) -> Result<Cost, String> {
        let folders = self.prepare(work, system, count, name)?;
        let mut command = self.command(work, system, &folders, count, &[]);
        let manager = || system.manager().map_or(Ok(0), server::cpu_ns);
        let (before, printed) = server::run_from(&mut command, READY, manager)?;
        let mut cost = parse(&printed)?;
        // The run has drained: what it left to the manager is done.
        cost.manager = manager()?.saturating_sub(before) as f64 / 1e9;
        folders.remove()?;
        Ok(cost)
    }
}

fn measure(
    options: &Options,
    size: &Size,
    memory: &Site,
    store: &Site,
    say: &mut dyn FnMut(&str),
) -> Result<Measured, String> {
    let program = memory.compile(PROGRAM.0, PROGRAM.1)?;
    let empty = memory.compile_with("empty.so", EMPTY, &["-shared", "-fPIC"])?;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "Ordinary operations a second of CPU time, the node manager's included";
    let mut measured = Measured::new("cliffs", title, rounds, options.scale == Scale::Small);
    measured.is_drawn = false;
    let buffered = store.folder("buffered")?;
    let plain = store.folder("plain")?;
    let tops = [memory.path(""), store.path(""), plain.clone(), buffered.clone()];
    tops.iter().for_each(|top| spread(top));
    let serve = |name: &'static str, config: &str, parent: PathBuf, lines: &str| {
        spread(&parent);
        let backing = Backing { path: &parent, lines };
        // As a run without a configuration has it.
        let policy = "[flush]\ntrigger = \"periodic\"\n";
        let forebay = Forebay::with_policy(options, store, config, &backing, size.pool, policy)?;
        let manager = forebay.serve()?;
        Ok::<_, String>(System { name, parent, under: Some((forebay, manager)) })
    };
    let times = |count: u64| options.scale.of(count, count.min(16));
    let refused = refused(times, getrlimit(Resource::Nofile).maximum);
    let missing = |work: &Work| {
        let program = work.script.as_ref().map(|script| script.program)?;
        let found = server::run(Command::new("sh").args(["-c", "command -v \"$0\"", program]));
        found.err().map(|_| format!("{}: {program} is not installed", work.name))
    };
    let named = |work: &&Work| options.works.iter().any(|name| name == work.name);
    if let Some(name) =
        options.works.iter().find(|name| WORKS.iter().all(|work| work.name != **name))
    {
        let names: Vec<_> = WORKS.iter().map(|work| work.name).collect();
        return Err(format!("{name}: no such kind of operation; there are {}", names.join(", ")));
    }
    let mut works = Vec::new();
    for work in WORKS.iter().filter(|work| options.works.is_empty() || named(work)) {
        let why = if work.name == OPEN_MANY { refused.clone() } else { missing(work) };
        match why {
            Some(why) => {
                say(&why);
                measured.notes.push(format!("NOT MEASURED: {why}"));
            }
            None => works.push(work),
        }
    }
    say("waiting until the pool is there");
    let scratch = memory.folder("counts")?;
    let systems = [
        System::plain(TMPFS, memory.folder("plain")?),
        System::plain(PAGE_CACHE, plain.clone()),
        System::plain(PRELOADED, plain),
        serve(FOREBAY, "forebay.toml", buffered.clone(), "")?,
    ];
    let mut bench = Bench { program, empty, buffered, scratch, measured, say };
    for round in 1..=rounds {
        let mut base = 0.0;
        for work in std::iter::once(&NOTHING).chain(works.iter().copied()) {
            (bench.say)(&format!("round {round} of {rounds}: {}", work.name));
            for turn in 0..systems.len() {
                let system = &systems[(turn + round as usize) % systems.len()];
                if system.name == PRELOADED && !work.starts {
                    continue;
                }
                let name = format!("{}-{round}", work.name);
                let mut cost = bench.cost(work, system, times(work.count), &name)?;
                if work.name == NOTHING.name {
                    base = cost.manager.max(base);
                    continue;
                }
                cost.manager = (cost.manager - base).max(0.0);
                add(&mut bench.measured, work.name, system.name, &cost);
            }
        }
    }
    let [bypassed, slow] = ["slow-bypassed", "slow"].map(|name| store.folder(name));
    let bypass = format!("mode = \"bypass\"\n{SLOW_STORE}");
    let slow_systems = [
        serve(PAGE_CACHE, "bypassed.toml", bypassed?, &bypass)?,
        serve(FOREBAY, "slow.toml", slow?, SLOW_STORE)?,
    ];
    for work in works.iter().filter(|work| work.is_of_files()) {
        for round in 1..=rounds {
            (bench.say)(&format!("round {round} of {rounds}, on a slow store: {}", work.name));
            for turn in 0..slow_systems.len() {
                let system = &slow_systems[(turn + round as usize) % slow_systems.len()];
                let name = format!("{}-slow-{round}", work.name);
                let cost = bench.cost(work, system, times(work.count), &name)?;
                let rate = cost.operations / cost.elapsed.max(1e-9);
                bench.measured.add(&slow_row(work), system.name, Unit::Rate, rate);
            }
        }
    }
    let tools = Tools::find(&mut bench.measured.notes);
    for work in works.iter().filter(|work| work.name != OPEN_MANY) {
        (bench.say)(&format!("counting: {}", work.name));
        bench.count(work, &systems, &tools)?;
    }
    let mut measured = bench.measured;
    for work in &works {
        let against = if work.starts { PRELOADED } else { PAGE_CACHE };
        let of = (work.name, FOREBAY);
        measured.claims.push(Claim::ratio(work.name, of, (work.name, against), 1.0 / work.most));
    }
    for row in works.iter().filter(|work| work.is_of_files()).map(|work| slow_row(work)) {
        measured.claims.push(Claim::ratio(&row, (&row, FOREBAY), (&row, PAGE_CACHE), 1.0));
    }
    measured.notes.push(format!(
        "Forebay: RAM tier of {} MiB, flushed every second. Operations a second of CPU time, the \
         program's and, for Forebay, the manager's until all is on the store. `(elapsed)`: a second \
         that passed. `empty preload`: in the plain directory with a preload library that does \
         nothing. `(slow store)`: runs a second that passed, over an emulated store of 200 MB/s and \
         1 ms for each transfer; `page cache` is the same program on that store with `mode = \
         \"bypass\"`.",
        size.pool / MIB
    ));
    Ok(measured)
}

/// Has ext4 place each directory that is made in `folder` in a part of the disk of its own, as it
/// does below its root: where much was created and removed, creating takes up to 50 times as long.
/// Other file systems have nothing of the kind.
fn spread(folder: &Path) {
    /// `EXT4_TOPDIR_FL`; `chattr +T`.
    const TOP: u32 = 0x0002_0000;
    if let Ok(open) = fs::File::open(folder)
        && let Ok(flags) = ioctl_getflags(&open)
    {
        let _ = ioctl_setflags(&open, flags | IFlags::from_bits_retain(TOP));
    }
}

/// Why [`OPEN_MANY`] cannot be measured where a process may have `most` open files; `None`: without
/// a limit.
fn refused(times: impl Fn(u64) -> u64, most: Option<u64>) -> Option<String> {
    let count = WORKS.iter().find(|work| work.name == OPEN_MANY).map(|work| times(work.count))?;
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
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let other = parent.with_file_name(format!("elsewhere-{name}"));
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

/// The row of a work on a slow store.
fn slow_row(work: &Work) -> String {
    format!("{} (slow store)", work.name)
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
        assert!(why.contains("needs 19064 open files, and the hard limit is 4096"), "{why}");
        assert_eq!(refused(|count| count.min(16), Some(4096)), None);
        assert_eq!(refused(|count| count, None), None);
        assert_eq!(refused(|count| count, Some(19_064)), None);
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
