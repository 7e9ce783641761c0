//! One script, run plainly and under Forebay, and what differs.

use crate::harness::{Setup, Site, is_alive, kill, processes_of};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A hierarchy with the name that scripts know it by.
pub struct Place {
    pub name: &'static str,
    pub setup: Setup,
    /// What happens again and again meanwhile.
    pub trouble: Option<Trouble>,
}

impl Place {
    /// Whether this build can make its trouble.
    pub fn is_possible(&self) -> bool {
        cfg!(debug_assertions) || self.trouble != Some(Trouble::Pauses)
    }
}

/// What a program must not notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The manager is told to end, and joined by another run.
    Stops,
    /// Threads of the program pause at points, for longer than every timer of the manager.
    Pauses,
    /// Processes of the program are stopped by SIGSTOP, for longer than every timer of the manager.
    Freezes,
}

const SMALL: Setup = Setup {
    ram: "4MiB",
    nvme: "4MiB",
    nvme_emulate: None,
    store_emulate: None,
    flush: "trigger = \"periodic\"\nperiod = \"5ms\"",
};

const fn quiet(name: &'static str, setup: Setup) -> Place {
    Place { name, setup, trouble: None }
}

/// Small tiers, so that eviction and demotion happen all the time, with each way of flushing.
pub const PLACES: [Place; 10] = [
    quiet("ram", Setup { ram: "64MiB", flush: "trigger = \"on-exit\"", ..SMALL }),
    quiet("lazy", Setup { flush: "trigger = \"on-exit\"", ..SMALL }),
    quiet("periodic", SMALL),
    quiet("through", Setup { flush: "trigger = \"per-operation\"", ..SMALL }),
    quiet("closed", Setup { nvme: "8MiB", flush: "trigger = \"per-file\"", ..SMALL }),
    quiet(
        "slow",
        Setup {
            nvme_emulate: Some("{ latency = \"100us\" }"),
            store_emulate: Some("{ bandwidth = \"300MB/s\", latency = \"500us\" }"),
            flush: "trigger = \"periodic\"\nperiod = \"2ms\"",
            ..SMALL
        },
    ),
    // Each use counts at once, so that blocks are exchanged while others are written.
    quiet(
        "hot",
        Setup {
            nvme: "16MiB",
            flush: "trigger = \"on-exit\"\n[placement]\npolicy = \"hot-data\"\neviction = \"lfu\"",
            ..SMALL
        },
    ),
    Place {
        name: "stopped",
        setup: Setup { flush: "trigger = \"on-exit\"", ..SMALL },
        trouble: Some(Trouble::Stops),
    },
    Place { name: "paused", setup: SMALL, trouble: Some(Trouble::Pauses) },
    Place { name: "frozen", setup: SMALL, trouble: Some(Trouble::Freezes) },
];

/// All timers pass by so many times faster where programs pause: within 80 ms.
const TIME_SCALE: &str = "50";
/// Longer than every timer then.
const PAUSE: Duration = Duration::from_millis(100);
/// Each pass of a point is a pause with a chance of one in so many.
const PAUSE_CHANCE: &str = "300";
/// From one freeze to the next.
const THAW: Duration = Duration::from_millis(3);

/// Tells the manager to end and has another run join it, until the script has ended.
const STOPS: &str = "config=$BIN/forebay.toml
    (unset LD_PRELOAD; while [ ! -e $OUT/over ]; do
        $FOREBAY stop --config $config > $OUT/stops 2>&1 && echo stopped >> $OUT/count
        $FOREBAY run --config $config -- true > $OUT/joins 2>&1 &
        sleep 0.04
    done; wait) & stops=$!
    ";

/// The place of that name.
pub fn place(name: &str) -> &'static Place {
    PLACES.iter().find(|place| place.name == name).unwrap_or_else(|| panic!("no place {name}"))
}

/// How the run under Forebay differs from the plain one.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// The first line that differs, if one does.
    pub line: Option<usize>,
    /// The operation of that line, or what else differs.
    pub kind: String,
    pub text: String,
}

/// What both runs did.
pub struct Outcome {
    pub mismatch: Option<Mismatch>,
    /// Operations that were executed.
    pub operations: usize,
    /// Calls that the tiers served.
    pub buffered: u64,
    /// How often the place's trouble came about.
    pub troubles: usize,
}

/// The compiled executor, or nothing if there is no compiler. Each run of the tests replaces that
/// of the one before, which may still execute it.
fn compiled(source: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    fs::create_dir_all(&folder).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let program = folder.join(source.rsplit('/').next().unwrap().trim_end_matches(".c"));
    let fresh = program.with_extension(std::process::id().to_string());
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-D_GNU_SOURCE", "-pthread", "-o"]).arg(&fresh).arg(&file);
    match compiler.args(flags).output() {
        Ok(made) if made.status.success() => {
            fs::rename(&fresh, &program).unwrap();
            Some(program)
        }
        Ok(made) => panic!("{source}: {}", String::from_utf8_lossy(&made.stderr)),
        Err(error) => {
            crate::harness::skip(&format!("cc: {error}"));
            None
        }
    }
}

/// The executor, compiled once for all runs of this process.
pub fn executor() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("fuzz.c", &[])).as_deref()
}

/// A library that makes errors between the program and Forebay.
pub fn faults() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(|| compiled("fuzz/faults.c", &["-shared", "-fPIC"])).as_deref()
}

/// Runs a script on both sides. A fault is a name that `programs/fuzz/faults.c` knows.
pub fn run(place: &Place, lines: &[String], fault: Option<&str>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| run_both(place, lines, fault))) {
        Ok(outcome) => outcome,
        Err(reason) => {
            let text = reason.downcast_ref::<String>().cloned().unwrap_or_default();
            let mismatch = Mismatch { line: None, kind: "panic".to_owned(), text };
            Outcome { mismatch: Some(mismatch), operations: 0, buffered: 0, troubles: 0 }
        }
    }
}

fn run_both(place: &Place, lines: &[String], fault: Option<&str>) -> Outcome {
    let site = Site::new(&place.setup);
    let program = executor().expect("a compiler").display();
    fs::write(site.out.join("script"), lines.join("\n") + "\n").unwrap();
    let wanted = site.run_plainly(&format!("exec {program} $OUT/script $OUT/plain"));
    let preload = match fault {
        Some(fault) => format!(
            "FAULT='{fault}' LD_PRELOAD={}:$LD_PRELOAD ",
            faults().expect("a compiler").display()
        ),
        None => String::new(),
    };
    let (before, after) = match place.trouble {
        Some(Trouble::Stops) => (STOPS, ": > $OUT/over; wait $stops;"),
        _ => ("", ""),
    };
    let log = site.out.join("pauses").display().to_string();
    let seed = lines.len().to_string();
    let environment: &[(&str, &str)] = match place.trouble {
        Some(Trouble::Pauses) => &[
            ("FOREBAY_TIME_SCALE", TIME_SCALE),
            ("FOREBAY_PAUSE", &format!("*:1/{PAUSE_CHANCE}:{}", PAUSE.as_millis())),
            ("FOREBAY_PAUSE_IN", "client"),
            ("FOREBAY_PAUSE_SEED", &seed),
            ("FOREBAY_PAUSE_LOG", &log),
        ],
        Some(Trouble::Freezes) => &[("FOREBAY_TIME_SCALE", TIME_SCALE)],
        _ => &[],
    };
    let script = format!(
        "{before}{preload}{program} $OUT/script $OUT/managed; code=$?; {after} \
         cat $FOREBAY_RUNTIME_DIR/*/log > $OUT/log; exit $code"
    );
    let (over, runtime) = (AtomicBool::new(false), site.runtime());
    let ((got, status), frozen) = std::thread::scope(|scope| {
        let freezes = place.trouble == Some(Trouble::Freezes);
        let freezer = freezes.then(|| scope.spawn(|| freeze(&runtime, &over)));
        let ran = site.run_buffered_with(environment, &script);
        over.store(true, Ordering::Release);
        (ran, freezer.map_or(0, |freezer| freezer.join().unwrap()))
    });
    let read = |name: &str| {
        let log = fs::read(site.out.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    };
    let (wanted_log, got_log) = (read("plain.log"), read("managed.log"));
    assert_eq!(wanted.code, 0, "the plain run itself failed: {wanted:?}\n{}", tail(&wanted_log));
    let mut mismatch = compare_logs(lines, &got_log, &wanted_log);
    if mismatch.is_none() && (got.code != 0 || !got.stderr.is_empty()) {
        let text = format!("exit {} {} {}", got.code, got.stdout, got.stderr);
        mismatch = Some(Mismatch { line: None, kind: "end".to_owned(), text });
    }
    if mismatch.is_none() {
        mismatch = compare_trees(&site.store, &site.plain);
    }
    let log = fs::read_to_string(site.out.join("log")).unwrap_or_default();
    if let (Some(mismatch), false) = (&mut mismatch, log.is_empty()) {
        mismatch.text += &format!("\n    node manager: {}", log.trim().replace('\n', "\n    "));
    }
    let buffered =
        ["reads", "writes", "passthrough", "write_around"].map(|name| status.count(name));
    Outcome {
        mismatch,
        operations: wanted_log.lines().count(),
        buffered: buffered.iter().sum(),
        troubles: frozen
            + read(if place.trouble == Some(Trouble::Stops) { "count" } else { "pauses" })
                .lines()
                .count(),
    }
}

/// Stops one process of the script's after the other, and lets it go on, until the script is over.
/// Returns how many were stopped for all of the time.
fn freeze(runtime: &Path, over: &AtomicBool) -> usize {
    let program = executor().expect("a compiler");
    let is_one =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    let mut frozen = 0;
    for turn in 0.. {
        if over.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(THAW);
        let all: Vec<_> = processes_of(runtime).into_iter().filter(is_one).collect();
        let Some(&pid) = all.get(turn % all.len().max(1)) else { continue };
        kill(pid, Signal::STOP);
        std::thread::sleep(PAUSE);
        frozen += usize::from(is_alive(pid));
        kill(pid, Signal::CONT);
    }
    frozen
}

fn tail(log: &str) -> &str {
    log.lines().next_back().unwrap_or_default()
}

fn compare_logs(lines: &[String], got: &str, wanted: &str) -> Option<Mismatch> {
    let (mut got, mut wanted) = (got.lines(), wanted.lines());
    loop {
        let pair = (got.next(), wanted.next());
        let (got, wanted) = match pair {
            (None, None) => return None,
            (got, wanted) if got == wanted => continue,
            (got, wanted) => (got.unwrap_or("nothing"), wanted.unwrap_or("nothing")),
        };
        let number = |text: &str| text.split(' ').next().and_then(|n| n.parse::<usize>().ok());
        let line = number(wanted).or(number(got));
        let script = line.and_then(|line| lines.get(line)).map_or("?", String::as_str);
        let kind = script.split(' ').nth(1).unwrap_or("?").to_owned();
        let text = format!("{script}\n    got    {got}\n    wanted {wanted}");
        return Some(Mismatch { line, kind, text });
    }
}

/// What must be the same of a file in the end.
#[derive(PartialEq, Eq, Debug)]
struct Left {
    mode: u32,
    links: u64,
    size: u64,
    /// A modification time that was set; `None` if it is that of a write.
    mtime: Option<(i64, i64)>,
    content: u64,
    bytes: Vec<u8>,
}

fn compare_trees(got: &Path, wanted: &Path) -> Option<Mismatch> {
    let (got, wanted) = (left_in(got), left_in(wanted));
    let mismatch = |text: String| {
        Some(Mismatch { line: None, kind: "files".to_owned(), text: format!("in the end: {text}") })
    };
    if got.keys().ne(wanted.keys()) {
        let (got, wanted) = (got.keys(), wanted.keys());
        return mismatch(format!("files {got:?} instead of {wanted:?}"));
    }
    for ((name, got), wanted) in got.iter().zip(wanted.values()) {
        if got == wanted {
            continue;
        }
        let short = |left: &Left| {
            let Left { mode, links, size, mtime, .. } = left;
            format!("mode {mode:o} links {links} size {size} mtime {mtime:?}")
        };
        let at = got.bytes.iter().zip(&wanted.bytes).position(|(a, b)| a != b);
        return mismatch(format!(
            "{}: {} instead of {}; contents differ at {at:?}",
            name.display(),
            short(got),
            short(wanted)
        ));
    }
    None
}

fn left_in(folder: &Path) -> BTreeMap<PathBuf, Left> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let recent = now.as_secs() as i64 - 1000..=now.as_secs() as i64 + 1;
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let regular = stat.is_file();
            if stat.is_dir() {
                folders.push(path.clone());
            }
            let bytes = match regular {
                true => fs::read(&path).unwrap(),
                false => Vec::new(),
            };
            let hash =
                |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            let left = Left {
                mode: stat.mode(),
                links: if regular { stat.nlink() } else { 0 },
                size: if regular { stat.size() } else { 0 },
                mtime: (regular && !recent.contains(&stat.mtime()))
                    .then(|| (stat.mtime(), stat.mtime_nsec())),
                content: bytes.iter().fold(0, hash),
                bytes,
            };
            found.insert(path.strip_prefix(folder).unwrap().to_owned(), left);
        }
    }
    found
}
