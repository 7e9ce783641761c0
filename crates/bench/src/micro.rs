//! The hot path: an unmodified program's small pieces of I/O under `forebay run`, on tmpfs and on
//! the page cache, with memcpy measured in the same process, round by round in the same minutes.

use crate::machine::Machine;
use crate::measured::{Claim, Measured, Unit, Wanted};
use crate::server::{self, Server};
use crate::site::{self, Site};
use crate::{Options, Scale};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const PROGRAM: (&str, &str) = ("micro", include_str!("../kernels/micro.c"));

pub(crate) const FOREBAY: &str = "forebay";
pub(crate) const TMPFS: &str = "tmpfs";
pub(crate) const PAGE_CACHE: &str = "page cache";

/// A file that is not buffered.
const UNMANAGED: &str = "/etc/passwd";
/// Bytes of a bucket, of which each small file takes one.
const BUCKET: u64 = 256 << 10;
const MIB: u64 = 1 << 20;
const ROUNDS: u32 = 5;
/// At most so much memory is touched before anything is measured.
const WARM_MAX_MIB: u64 = 8 << 10;
/// What the idle manager may take: a share of a core, and bytes beside its pool.
const IDLE_SHARE: f64 = 0.005;
const IDLE_BYTES: f64 = 64.0 * MIB as f64;
/// Seconds until the program starts.
const START_S: f64 = 0.1;

/// How much is done.
pub(crate) struct Size {
    /// Of a file that is written and read in pieces of 1 MiB, and of one that is drained.
    pub mib: u64,
    /// Of a file that is accessed at random.
    pub random_mib: u64,
    /// Small operations of each kind.
    pub operations: u64,
    /// Small files.
    pub files: u64,
}

impl Size {
    fn of(scale: Scale) -> Size {
        Size {
            mib: scale.of(512, 16),
            random_mib: scale.of(1024, 32),
            operations: scale.of(200_000, 2_000),
            files: scale.of(10_000, 100),
        }
    }

    /// What the RAM tier has to hold.
    pub fn pool_bytes(&self) -> u64 {
        (self.mib + self.random_mib + 64) * MIB + self.files * BUCKET
    }

    /// `micro all`, in a directory.
    pub fn arguments(&self, folder: &Path) -> Vec<String> {
        let numbers = [self.mib, self.random_mib, self.operations, self.files];
        let mut arguments = vec!["all".to_owned(), folder.display().to_string()];
        arguments.extend(numbers.map(|number| number.to_string()));
        arguments.push(UNMANAGED.to_owned());
        arguments
    }
}

/// Measures the hot path; `say` is told what is being done.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong. The files are kept then.
pub fn micro(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let size = Size::of(options.scale);
    let memory = Site::below(Path::new("/dev/shm"), size.pool_bytes() + 2 * size.random_mib * MIB)?;
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let store = Site::below(&folder, 2 * size.random_mib * MIB)?;
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
    let is_small = options.scale == Scale::Small;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "The hot path: an unmodified program under forebay run, on tmpfs and page cache";
    let mut measured = Measured::new("micro", title, rounds, is_small);
    measured.is_drawn = false;

    let wanted_mib = 2 * (size.pool_bytes() / MIB + 2 * size.random_mib);
    let free_mib = Machine::free_bytes().unwrap_or(0) / MIB;
    let warm_mib = wanted_mib.min(free_mib / 2).clamp(1, WARM_MAX_MIB);
    say(&format!("warming {warm_mib} MiB of the machine's memory"));
    server::run(Command::new(&program).args(["warm", &warm_mib.to_string()]))?;

    for folder in ["plain", "dd"] {
        store.folder(folder)?;
    }
    let places = [
        (TMPFS, memory.folder("plain")?),
        (PAGE_CACHE, store.path("plain")),
        (FOREBAY, store.folder("buffered")?),
    ];
    let source = memory.folder("source")?;
    server::run(
        Command::new(&program).arg("fill").arg(source.join("file")).arg(size.mib.to_string()),
    )?;

    let forebay = Forebay::new(options, store, "forebay.toml", &places[2].1, size.pool_bytes())?;
    // A node manager of its own that no run has met yet.
    let fresh =
        Forebay::new(options, store, "fresh.toml", &store.folder("fresh")?, size.pool_bytes() / 4)?;
    say("waiting until the pool is there");
    let manager = forebay.serve()?;
    let before = forebay.writes()?;
    let idle = Duration::from_millis(options.scale.of(5_000, 200));

    // What is first met in a round that does not count: page tables, directories, the disk's
    // caches.
    let first = options.scale.of(0, 1);
    for round in first..=rounds {
        let counts = round > 0;
        let name = if counts { format!("round {round} of {rounds}") } else { "once before".into() };
        for turn in 0..places.len() {
            let (system, folder) = &places[(turn + round as usize) % places.len()];
            say(&format!("{name}: {system}"));
            let mut command = match *system {
                FOREBAY => forebay.run(&program),
                _ => Command::new(&program),
            };
            let printed = server::run(command.args(size.arguments(folder)))?;
            if counts {
                take(&mut measured, system, &printed)?;
            }
        }
        if !counts {
            continue;
        }
        say(&format!("{name}: draining, starting, idling"));
        let drain = Drain {
            mib: size.mib,
            forebay: &forebay,
            program: &program,
            buffered: &places[2].1,
            store,
            source: &source,
        };
        drain.measure(&mut measured)?;
        let since_us = crate::now_us();
        let began = server::run(fresh.run(&program).arg("time"))?;
        let began_us: u64 = began.trim().parse().map_err(|_| format!("not a time: {began:?}"))?;
        let took = began_us.saturating_sub(since_us) as f64 / 1e6;
        measured.add("start of the program", FOREBAY, Unit::Time, took);
        fresh.stop()?;
        let (share, bytes) = idle_cost(manager.id(), idle)?;
        measured.add("idle manager, of a core", FOREBAY, Unit::Share, share);
        measured.add("idle manager, memory beside the pool", FOREBAY, Unit::Memory, bytes);
    }
    let written = forebay.writes()?.saturating_sub(before);
    let least = u64::from(rounds) * size.operations * 4;
    if written < least {
        return Err(format!("only {written} of at least {least} writes went through Forebay"));
    }
    measured.claims = claims(&measured);
    measured.notes.push(format!(
        "Forebay: RAM tier of {} MiB, flushed on exit. Page cache and Forebay's store: {}.",
        size.pool_bytes() / MIB,
        folder_kind(store)
    ));
    Ok(measured)
}

fn folder_kind(store: &Site) -> &'static str {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    match rustix::fs::statfs(store.path("plain")) {
        Ok(found) if found.f_type == TMPFS_MAGIC => {
            "a tmpfs, so that neither is one; name a directory on a disk with --dir"
        }
        _ => "a directory on a disk",
    }
}

/// Takes what `micro all` printed.
pub(crate) fn take(measured: &mut Measured, system: &str, printed: &str) -> Result<(), String> {
    let lines: Vec<(String, f64, u64)> = printed.lines().map(parse).collect::<Result<_, _>>()?;
    for (work, rate, bytes) in &lines {
        let is_small = ["files", "open", "stat", "write-64", "read-64"];
        let unit = match is_small.iter().any(|name| work.starts_with(name)) || *bytes < MIB {
            true => Unit::Rate,
            false => Unit::Bandwidth(*bytes),
        };
        measured.add(work, system, unit, *rate);
    }
    Ok(())
}

/// A line `WORK OPERATIONS BYTES NANOSECONDS`: work, operations in a second, bytes of each.
fn parse(line: &str) -> Result<(String, f64, u64), String> {
    let wrong = || format!("not a line of the program's: {line:?}");
    let words: Vec<&str> = line.split(' ').collect();
    let [work, operations, bytes, ns] = words[..] else { return Err(wrong()) };
    let number = |word: &str| word.parse::<u64>().map_err(|_| wrong());
    let rate = number(operations)? as f64 / number(ns)?.max(1) as f64 * 1e9;
    Ok((work.to_owned(), rate, number(bytes)?))
}

/// What is wanted, see docs/performance.md.
fn claims(measured: &Measured) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut ratio = |what: &str, work: &str, memcpy: Option<(&str, f64)>, tmpfs: f64| {
        if let Some((copy, times)) = memcpy {
            claims.push(Claim::ratio(what, (work, FOREBAY), (copy, FOREBAY), times));
        }
        if tmpfs > 0.0 {
            claims.push(Claim::ratio(what, (work, FOREBAY), (work, TMPFS), tmpfs));
        }
    };
    let (to_cold, from_cold) = ("memcpy-to-cold-1m", "memcpy-from-cold-1m");
    ratio("write 1 MiB, resident", "write-1m", Some((to_cold, 0.9)), 1.8);
    ratio("write 1 MiB, new blocks", "write-1m-new", Some((to_cold, 0.75)), 4.0);
    ratio("read 1 MiB, resident", "read-1m", Some((from_cold, 0.9)), 1.8);
    ratio("pwrite 4 KiB, random", "write-4k-random", None, 2.0);
    ratio("pread 4 KiB, random", "read-4k-random", None, 2.0);
    ratio("pwrite 4 KiB within 1 MiB", "write-4k-hot", None, 4.0);
    ratio("pread 4 KiB within 1 MiB", "read-4k-hot", None, 4.0);
    ratio("write 64 bytes", "write-64", None, 8.0);
    ratio("read 64 bytes", "read-64", None, 8.0);

    // Two processes write no faster than two processes copy.
    let copies = |work| measured.median(work, FOREBAY);
    let limit = match (copies("memcpy-two"), copies(to_cold)) {
        (Some(two), Some(one)) => (0.9 * two / one).min(1.8),
        _ => 1.8,
    };
    let two = "two processes, disjoint 1 MiB";
    claims.push(Claim::ratio(two, ("write-1m-two", FOREBAY), ("write-1m", FOREBAY), limit));
    claims.push(Claim::ratio(two, ("write-1m-two", FOREBAY), ("memcpy-two", FOREBAY), 0.75));
    let same = "two processes, the same 4 KiB";
    claims.push(Claim::ratio(same, ("write-4k-same", FOREBAY), ("write-4k-hot", FOREBAY), 0.3));
    claims.push(Claim::ratio(
        "the slower one's share of them",
        ("write-4k-same-slower", FOREBAY),
        ("write-4k-same", FOREBAY),
        0.1,
    ));
    let files = "create, write 4 KiB, close, stat, unlink";
    claims.push(Claim::ratio(files, ("files", FOREBAY), ("files", PAGE_CACHE), 0.9));
    let within = |what: &str, work: &str, seconds| Claim {
        wanted: Wanted::Within(seconds),
        ..Claim::ratio(what, (work, FOREBAY), (work, PAGE_CACHE), 1.0)
    };
    claims.push(within("open and close", "open-close", 10e-6));
    claims.push(within("stat of an unmanaged file", "stat-unmanaged", 100e-9));
    claims.push(Claim::ratio("drain", ("drain", FOREBAY), ("drain", DD), 0.9));
    for (work, most) in [
        ("start of the program", START_S),
        ("idle manager, of a core", IDLE_SHARE),
        ("idle manager, memory beside the pool", IDLE_BYTES),
    ] {
        claims.push(Claim::at_most(work, FOREBAY, most));
    }
    claims
}

const DD: &str = "dd bs=1M oflag=direct conv=fsync";

/// What is drained, from where, and what it is compared with.
struct Drain<'a> {
    mib: u64,
    forebay: &'a Forebay,
    program: &'a Path,
    buffered: &'a Path,
    store: &'a Site,
    source: &'a Path,
}

impl Drain<'_> {
    /// Drains a file, and has `dd` write the same bytes to the same store. Both end when the bytes
    /// are durable.
    fn measure(&self, measured: &mut Measured) -> Result<(), String> {
        let Self { mib, forebay, program, buffered, store, source } = *self;
        let unit = Unit::Bandwidth(MIB);
        let file = buffered.join("file");
        let mut fill = forebay.run(program);
        let done = server::run(fill.arg("fill").arg(&file).arg(mib.to_string()))?;
        let failed = |e: std::io::Error| site::failed(&file, &e);
        File::open(&file).and_then(|file| file.sync_all()).map_err(failed)?;
        let end_us = crate::now_us();
        let done_us: u64 = done.trim().parse().map_err(|_| format!("not a time: {done:?}"))?;
        let seconds = end_us.saturating_sub(done_us).max(1) as f64 / 1e6;
        site::compare(source, buffered)?;
        fs::remove_file(&file).map_err(failed)?;
        measured.add("drain", FOREBAY, unit, mib as f64 / seconds);

        let copy = store.path("dd").join("file");
        let (from, to) = (source.join("file"), copy.clone());
        let dd = |flags: &[&str]| {
            let mut dd = Command::new("dd");
            dd.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
            dd.args(["bs=1M", "conv=fsync"]).args(flags);
            let since = Instant::now();
            server::run(&mut dd).map(|_| since.elapsed().as_secs_f64())
        };
        // Not every file system takes O_DIRECT.
        let seconds = match dd(&["oflag=direct"]) {
            Ok(seconds) => seconds,
            Err(why) => {
                let note = format!("dd runs without oflag=direct, which fails here: {why}");
                if !measured.notes.contains(&note) {
                    measured.notes.push(note);
                }
                dd(&[])?
            }
        };
        fs::remove_file(&copy).map_err(|e| site::failed(&copy, &e))?;
        measured.add("drain", DD, unit, mib as f64 / seconds);
        Ok(())
    }
}

/// The share of a core that a process takes while no process asks it for anything, and the bytes it
/// has beside what it shares.
fn idle_cost(id: u32, over: Duration) -> Result<(f64, f64), String> {
    // What the run before left behind is no idling.
    thread::sleep(over / 5);
    let (before, since) = (server::cpu_ns(id)?, Instant::now());
    thread::sleep(over);
    let share =
        server::cpu_ns(id)?.saturating_sub(before) as f64 / since.elapsed().as_nanos() as f64;
    let file = PathBuf::from(format!("/proc/{id}/status"));
    let status = fs::read_to_string(&file).map_err(|e| site::failed(&file, &e))?;
    let kilobytes = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    let resident = kilobytes("RssAnon:").zip(kilobytes("RssFile:"));
    let (own, files) = resident.ok_or_else(|| format!("{}: no RssAnon", file.display()))?;
    Ok((share, (own + files) * 1024.0))
}

/// Forebay over one directory.
pub(crate) struct Forebay {
    command: PathBuf,
    runtime: PathBuf,
    config: PathBuf,
}

/// A store of a configuration: its directory, and what else is said of it.
pub(crate) struct Backing<'a> {
    pub path: &'a Path,
    /// Lines `key = value`.
    pub lines: &'a str,
}

impl Forebay {
    /// With a RAM tier of so many bytes, flushed on exit.
    pub fn new(
        options: &Options,
        site: &Site,
        name: &str,
        store: &Path,
        bytes: u64,
    ) -> Result<Forebay, String> {
        let policy = "[flush]\ntrigger = \"on-exit\"\n";
        let backing = Backing { path: store, lines: "" };
        Forebay::with_policy(options, site, name, &backing, bytes, policy)
    }

    /// With a RAM tier of so many bytes, and these lines about flushing.
    pub fn with_policy(
        options: &Options,
        site: &Site,
        name: &str,
        backing: &Backing<'_>,
        bytes: u64,
        policy: &str,
    ) -> Result<Forebay, String> {
        let config = site.path(name);
        let text = format!(
            "{policy}[[backing]]\npath = \"{}\"\n{}\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = {bytes}\n",
            backing.path.display(),
            backing.lines
        );
        fs::write(&config, text).map_err(|e| site::failed(&config, &e))?;
        let runtime = site.path(&format!("{name}-run"));
        Ok(Forebay { command: options.forebay.clone(), runtime, config })
    }

    fn forebay(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.command);
        command.arg(subcommand).env("FOREBAY_RUNTIME_DIR", &self.runtime);
        command
    }

    /// A node manager whose pool is there completely.
    pub fn serve(&self) -> Result<Server, String> {
        let mut command = self.forebay("node");
        command.arg("--config").arg(&self.config);
        let log = self.config.with_extension("log");
        let mut server = Server::start("forebay node", &mut command, &log)?;
        let mut failure = None;
        server.wait(|| match server::run(&mut self.forebay("status")) {
            Ok(status) => status.contains("  tier ") && !status.contains("when set up"),
            Err(why) => {
                failure = Some(why);
                true
            }
        })?;
        failure.map_or(Ok(server), Err)
    }

    /// `forebay run` of a program.
    pub fn run(&self, program: &Path) -> Command {
        let mut command = self.forebay("run");
        command.arg("--config").arg(&self.config).arg("--").arg(program);
        command
    }

    /// Ends what `run` started.
    fn stop(&self) -> Result<(), String> {
        crate::runner::end_manager(self.forebay("stop").arg("--config").arg(&self.config))
    }

    /// How many writes programs have given to Forebay so far.
    pub fn writes(&self) -> Result<u64, String> {
        self.count("writes")
    }

    /// One of the counts of `forebay status`.
    pub fn count(&self, name: &str) -> Result<u64, String> {
        let status = server::run(&mut self.forebay("status"))?;
        let of_line = |line: &str| {
            let mut words = line.split_whitespace();
            let is_it = words.next() == Some("count") && words.next() == Some(name);
            words.next().filter(|_| is_it)?.parse().ok()
        };
        let count = status.lines().find_map(of_line);
        count.ok_or_else(|| format!("no count of {name} in {status}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_rates() {
        assert_eq!(parse("write-1m 512 1048576 256000000000"), Ok(("write-1m".into(), 2.0, MIB)));
        for line in ["", "write 1 2", "write 1 2 x", "write 1 2 3 4"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
