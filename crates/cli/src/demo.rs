//! `forebay demo`: an ordinary checkpointing program, first directly on an emulated slow file system,
//! then under `forebay run`.
//!
//! All of it happens in a temporary directory; only a table and a timeline picture stay.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, process};

use sha2::{Digest, Sha256};

use crate::timeline::{self, Activity, Panel, Row, Span};

const PROGRAM: &str = include_str!("../demo/checkpoint.c");

/// The tiers of the run under Forebay, fastest first.
const TIERS: [&str; 3] = ["ram", "nvme", "bb"];

/// The emulated store: the parallel file system as one of the paper's client nodes sees it.
///
/// Hermes (HPDC'18), Figure 7 measures each device with all 32 client nodes at once; a node's share
/// is 1/32 of that:
///
/// | device           |         write |            read | latency |
/// |------------------|---------------|-----------------|---------|
/// | NVMe             | 33103 -> 1034 | 38674 -> 1208   | 20 us   |
/// | 8 burst buffers  |  2762 -> 86   |  3326 -> 104    | 55-66 us|
/// | 16 PFS servers   |   735 -> 23   |   883 -> 27.6   | 4.16 ms |
///
/// in MB/s.
const STORE: &str =
    "emulate = { bandwidth = { read = \"27.6MB/s\", write = \"23MB/s\" }, latency = \"4160us\" }";

/// The tiers between RAM and the store, emulated as [`STORE`] is.
const LOWER_TIERS: &str = r#"
[[tier]]
name = "nvme"
kind = "file"
path = "nvme"
capacity = "128MiB"
emulate = { bandwidth = { read = "1208MB/s", write = "1034MB/s" }, latency = "20us" }
[[tier]]
name = "bb"
kind = "file"
path = "bb"
capacity = "256MiB"
emulate = { bandwidth = { read = "104MB/s", write = "86MB/s" }, latency = "60us" }
"#;

const RAM_TIER: &str = "[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n";

/// Hermes (HPDC'18), section 4.2.1 and Figure 8: alternating compute and I/O, written data also
/// flushed to the PFS, against no buffering.
const PAPER_SPEEDUP: &str = "8x";

/// Checkpoints of both runs, buffers and some room for the file systems' own needs.
const FREE_SPACE_MIN: u64 = 1 << 30;

/// What the demo runs, and where its results go.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `forebay` command.
    pub forebay: PathBuf,
    /// The directory for the table and the picture.
    pub output: PathBuf,
    /// How much the program does.
    pub workload: Workload,
}

impl Options {
    /// The standard demo with this very binary.
    pub fn new(output: PathBuf) -> Result<Self, String> {
        let forebay = env::current_exe().map_err(|e| format!("cannot find my own binary: {e}"))?;
        Ok(Self { forebay, output, workload: Workload::default() })
    }
}

/// How much the program computes and writes.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Checkpoints, each a file of its own.
    pub steps: u32,
    /// Bytes of a checkpoint.
    pub bytes: u64,
    /// Mean computing time of a step in milliseconds; the steps grow longer.
    pub compute_ms: u64,
}

/// Computing takes as long as the store needs for the checkpoints (the paper's balanced case), but
/// more of it comes late: the first checkpoints outrun the store by more than the RAM tier holds.
impl Default for Workload {
    fn default() -> Self {
        Self { steps: 8, bytes: 24 << 20, compute_ms: 1_100 }
    }
}

impl Workload {
    fn total_bytes(&self) -> u64 {
        u64::from(self.steps) * self.bytes
    }
}

/// Runs the demo; succeeds only if both runs left the same files, byte for byte.
pub fn demo(options: &Options) -> Result<ExitCode, String> {
    let output = &options.output;
    fs::create_dir_all(output).map_err(|e| failed(output, &e))?;
    let site = Site::build()?;
    println!("{}", introduction(&options.workload));
    let program = compile(&site)?;
    let scene = Scene { options, site: &site, program: &program };
    match scene.play() {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => {
            site.keep();
            Ok(ExitCode::FAILURE)
        }
        Err(problem) => {
            site.keep();
            Err(problem)
        }
    }
}

fn introduction(workload: &Workload) -> String {
    format!(
        "Forebay demo: a program that computes and writes checkpoints, on an emulated cluster node\n\
         \n   \
         store    parallel file system, 23 MB/s write, 27.6 MB/s read\n   \
         tiers    RAM 64 MiB -> NVMe 128 MiB (1034 MB/s) -> burst buffer 256 MiB (86 MB/s)\n   \
         program  {} x (compute, write {} MiB), read the last one back; C, without Forebay code\n\
         \n   \
         Speeds are those of the Hermes paper's testbed (HPDC'18, Figure 7), for one of 32 nodes.",
        workload.steps,
        workload.bytes >> 20
    )
}

// ---------------------------------------------------------------------------------------------
// The site: a temporary directory with everything the two runs need

/// The temporary directory of the demo, removed when dropped.
struct Site(PathBuf);

impl Site {
    fn build() -> Result<Self, String> {
        let parent = std::path::absolute(env::temp_dir()).map_err(|e| e.to_string())?;
        let advice = |problem: String| {
            format!("{}: {problem}; set TMPDIR to a directory with more room", parent.display())
        };
        let space = rustix::fs::statvfs(&parent).map_err(|e| advice(e.to_string()))?;
        let free = space.f_bavail * space.f_frsize;
        if free < FREE_SPACE_MIN {
            return Err(advice(format!("only {} MiB free, the demo needs 1024", free >> 20)));
        }
        let site = Self(parent.join(format!("forebay-demo-{}", process::id())));
        let created = DirBuilder::new().mode(0o700).create(&site.0);
        if let Err(error) = created {
            let message = format!("cannot create {}: {error}", site.0.display());
            std::mem::forget(site); // It is not ours to remove.
            return Err(message);
        }
        for directory in ["pfs-direct", "pfs-forebay", "nvme", "bb"] {
            let directory = site.path(directory);
            fs::create_dir(&directory).map_err(|e| failed(&directory, &e))?;
        }
        let direct = format!("[[backing]]\npath = \"pfs-direct\"\nmode = \"bypass\"\n{STORE}\n");
        site.write("direct.toml", &(direct + RAM_TIER))?;
        let buffered =
            format!("[flush]\nperiod = \"200ms\"\n[[backing]]\npath = \"pfs-forebay\"\n{STORE}\n");
        site.write("buffered.toml", &(buffered + RAM_TIER + LOWER_TIERS))?;
        site.write("checkpoint.c", PROGRAM)?;
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, content: &str) -> Result<(), String> {
        let file = self.path(name);
        fs::write(&file, content).map_err(|e| failed(&file, &e))
    }

    /// Leaves everything for a closer look.
    fn keep(self) {
        eprintln!("forebay: the files of the demo are kept in {}", self.0.display());
        std::mem::forget(self);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("forebay: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Compiles the program with `$CC`, which may carry arguments, or `cc`.
fn compile(site: &Site) -> Result<PathBuf, String> {
    let compiler = env::var("CC").ok().filter(|cc| !cc.trim().is_empty());
    let compiler = compiler.as_deref().unwrap_or("cc");
    let mut words = compiler.split_whitespace();
    let program = site.path("checkpoint");
    let output = Command::new(words.next().unwrap_or("cc"))
        .args(words)
        .args(["-O2", "-o"])
        .args([&program, &site.path("checkpoint.c")])
        .output()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!(
                "no C compiler: `{compiler}` is not installed; install one (package gcc or clang), \
                 or name yours in CC"
            ),
            _ => format!("cannot run the C compiler `{compiler}`: {e}; name another in CC"),
        })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{compiler}` cannot compile the program:\n{}", message.trim_end()));
    }
    Ok(program)
}

// ---------------------------------------------------------------------------------------------
// The two runs

/// The program in its place.
struct Scene<'a> {
    options: &'a Options,
    site: &'a Site,
    program: &'a Path,
}

/// What a run did, and when `forebay run` was done with it.
struct Run {
    phases: Vec<(Activity, Span)>,
    end_us: u64,
}

impl Scene<'_> {
    /// Runs the program both ways and shows the result; says whether both left the same files.
    fn play(&self) -> Result<bool, String> {
        println!("\n1  The program directly on the store\n");
        let direct = self.run("direct.toml", "pfs-direct", None)?;
        println!("\n2  The same program under `forebay run`\n");
        let trace = self.site.path("trace.csv");
        let buffered = self.run("buffered.toml", "pfs-forebay", Some(&trace))?;

        println!("\n3  Result\n");
        let times = table(&direct, &buffered);
        println!("{times}");
        let (sums, equal) = compare(self.site, &self.options.workload)?;
        println!("{sums}");

        let output = &self.options.output;
        let table = output.join("table.txt");
        fs::write(&table, format!("{times}\n{sums}")).map_err(|e| failed(&table, &e))?;
        let picture = output.join("timeline.svg");
        draw(&picture, &direct, &buffered, &trace)?;
        println!("   timeline  {}\n   table     {}", picture.display(), table.display());
        Ok(equal)
    }

    /// Runs the program under `forebay run` with this configuration.
    fn run(&self, config: &str, files: &str, trace: Option<&Path>) -> Result<Run, String> {
        let Workload { steps, bytes, compute_ms } = self.options.workload;
        let forebay = &self.options.forebay;
        let unusable = |e: io::Error| format!("cannot run {}: {e}", forebay.display());

        let mut command = Command::new(forebay);
        command.arg("run").arg("--config").arg(self.site.path(config));
        if let Some(trace) = trace {
            command.arg("--trace").arg(trace);
        }
        command.arg("--").arg(self.program).arg(self.site.path(files));
        command.args([u64::from(steps), bytes, compute_ms].map(|n| n.to_string()));
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(unusable)?;
        let phases = child.stdout.take().map_or(Ok(Vec::new()), |output| self.follow(output));
        let status = child.wait().map_err(unusable)?;
        let end_us = now_us();
        if !status.success() {
            return Err(format!("`forebay run --config {config}` ended with {status}"));
        }
        Ok(Run { phases: phases?, end_us })
    }

    /// Reads the program's report while it runs, and tells each step.
    fn follow(&self, output: impl Read) -> Result<Vec<(Activity, Span)>, String> {
        let mut phases: Vec<(Activity, Span)> = Vec::new();
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|e| format!("cannot read the program's report: {e}"))?;
            let (activity, span) = phase(&line)
                .ok_or_else(|| format!("not a line of the program's report: {line}"))?;
            let computed = phases.last().map_or(0, |(_, before)| before.length_us());
            phases.push((activity, span));
            let mib = span.bytes >> 20;
            let done = phases.iter().filter(|(activity, _)| *activity == Activity::Write).count();
            match activity {
                Activity::Write => println!(
                    "   checkpoint {done} of {}: computed {}, wrote {mib} MiB in {}",
                    self.options.workload.steps,
                    seconds(computed),
                    seconds(span.length_us())
                ),
                Activity::Read => {
                    println!("   read back {mib} MiB in {}", seconds(span.length_us()));
                }
                _ => {}
            }
        }
        Ok(phases)
    }
}

impl Run {
    fn start_us(&self) -> u64 {
        self.phases.first().map_or(self.end_us, |(_, span)| span.start_us)
    }

    /// When the program was done.
    fn program_end_us(&self) -> u64 {
        self.phases.last().map_or(self.end_us, |(_, span)| span.end_us)
    }

    fn time_in(&self, activities: &[Activity]) -> u64 {
        let chosen = self.phases.iter().filter(|(activity, _)| activities.contains(activity));
        chosen.map(|(_, span)| span.length_us()).sum()
    }

    /// The I/O time that the program saw.
    fn io_us(&self) -> u64 {
        self.time_in(&[Activity::Write, Activity::Read])
    }

    /// The paper's measure: the time spent writing, and the flushing that computing did not hide.
    fn write_and_drain_us(&self) -> u64 {
        self.time_in(&[Activity::Write]) + self.end_us.saturating_sub(self.program_end_us())
    }

    /// The time until all was safe on the store.
    fn safe_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us())
    }

    fn panel(&self, title: &str, movements: Vec<Row>) -> Panel {
        let row = |name: &str, activity: Activity| Row {
            name: name.to_owned(),
            activity,
            spans: self.phases.iter().filter(|(a, _)| *a == activity).map(|(_, s)| *s).collect(),
        };
        let mut rows = vec![
            row("compute", Activity::Compute),
            row("write", Activity::Write),
            row("read", Activity::Read),
        ];
        rows.extend(movements);
        let safe = format!("all safe on the store: {}", seconds(self.safe_us()));
        Panel {
            title: title.to_owned(),
            origin_us: self.start_us(),
            rows,
            marks: vec![(self.end_us, safe)],
        }
    }
}

/// Reads `phase,start_us,end_us,bytes`.
fn phase(line: &str) -> Option<(Activity, Span)> {
    let fields: Vec<&str> = line.split(',').collect();
    let [name, start, end, bytes] = fields[..] else { return None };
    let activity = match name {
        "compute" => Activity::Compute,
        "write" => Activity::Write,
        "read" => Activity::Read,
        _ => return None,
    };
    let span = Span {
        start_us: start.parse().ok()?,
        end_us: end.parse().ok()?,
        bytes: bytes.parse().ok()?,
    };
    Some((activity, span))
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

// ---------------------------------------------------------------------------------------------
// The result

fn table(direct: &Run, buffered: &Run) -> String {
    let row = |name: &str, measure: fn(&Run) -> u64, paper: &str| {
        let (before, after) = (measure(direct), measure(buffered));
        let speedup = before as f64 / after.max(1) as f64;
        let (before, after) = (seconds(before), seconds(after));
        format!("   {name:<44}{before:>11}{after:>11}{:>10}{paper:>8}\n", format!("{speedup:.1}x"))
    };
    let mut text = format!(
        "   {:<44}{:>11}{:>11}{:>10}{:>8}\n",
        "", "directly", "Forebay", "speed-up", "paper"
    );
    text += &row("I/O time the program saw", Run::io_us, "-");
    text += &row("time writing + flushing not hidden", Run::write_and_drain_us, PAPER_SPEEDUP);
    text += &row("time until all was safe on the store", Run::safe_us, "-");
    text += "\n   paper: Hermes (HPDC'18), section 4.2.1 and Figure 8, alternating compute and I/O against\n   \
             no buffering, measured as in that row: writing, plus flushing that computing did not hide.\n";
    text
}

fn seconds(time_us: u64) -> String {
    format!("{:.3} s", time_us as f64 / 1e6)
}

/// Compares the checksums of all files of both runs; says whether everything is there and equal.
fn compare(site: &Site, workload: &Workload) -> Result<(String, bool), String> {
    let direct = checksums(&site.path("pfs-direct"))?;
    let buffered = checksums(&site.path("pfs-forebay"))?;
    let line = |name: &str, (bytes, sum): &(u64, String), remark: &str| {
        format!("   {name:<12}{bytes:>10}  {sum:<64} {remark}\n")
    };
    let missing = (0, "missing".to_owned());

    let mut text = format!("   {:<12}{:>10}  SHA-256\n", "file", "bytes");
    for name in direct.keys().chain(buffered.keys().filter(|name| !direct.contains_key(*name))) {
        let before = direct.get(name).unwrap_or(&missing);
        let after = buffered.get(name).unwrap_or(&missing);
        if before == after {
            text += &line(name, before, "same");
        } else {
            text += &line(name, before, "direct");
            text += &line(name, after, "Forebay");
        }
    }
    // Two runs that both lost the same file are equal, and wrong.
    let bytes: u64 = direct.values().map(|(bytes, _)| bytes).sum();
    let expected = workload.total_bytes();
    let equal = direct == buffered;
    text += &match (equal, bytes == expected) {
        (false, _) => "   FAILED: the two runs left different files.\n".to_owned(),
        (_, false) => format!("   FAILED: both runs left {bytes} bytes instead of {expected}.\n"),
        _ => format!("   All {} files are the same, {bytes} bytes.\n", direct.len()),
    };
    Ok((text, equal && bytes == expected))
}

/// Size and SHA-256 of each file of a directory.
fn checksums(directory: &Path) -> Result<BTreeMap<String, (u64, String)>, String> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(|e| failed(directory, &e))? {
        let file = entry.map_err(|e| failed(directory, &e))?.path();
        let mut hash = Sha256::new();
        let bytes = File::open(&file)
            .and_then(|mut content| io::copy(&mut content, &mut hash))
            .map_err(|e| failed(&file, &e))?;
        let sum = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sums.insert(name, (bytes, sum));
    }
    Ok(sums)
}

/// Draws both runs on one time axis.
fn draw(picture: &Path, direct: &Run, buffered: &Run, trace: &Path) -> Result<(), String> {
    let lines = fs::read_to_string(trace).map_err(|e| failed(trace, &e))?;
    let movements =
        timeline::movements(&lines, &TIERS).map_err(|e| format!("{}: {e}", trace.display()))?;
    let panels = [
        direct.panel("directly on the store", Vec::new()),
        buffered.panel("under forebay run", movements),
    ];
    timeline::draw(picture, "The same program, without and with Forebay", &panels)
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What stands in for the binary: runs the command behind `--`, then does `after` with the
    /// site in `$site`, and leaves the trace that was asked for.
    fn stand_in(folder: &Path, after: &str) -> Options {
        let script = format!(
            r#"#!/bin/sh
[ "$1 $2" = "run --config" ] && [ -s "$3" ] || exit 9
site=${{3%/*}}
trace=
[ "$4" = --trace ] && trace=$5 && shift 2
[ "$4" = -- ] && shift 4 || exit 9
"$@" || exit
now=$(date +%s%6N)
[ -z "$trace" ] || printf '%s\n' start_us,end_us,action,from,to,bytes \
    $now,$((now + 900)),flush,ram,store,4096 $now,$((now + 90)),demote,ram,nvme,4096 >"$trace"
{after}
"#
        );
        let forebay = folder.join("forebay");
        fs::write(&forebay, script).unwrap();
        fs::set_permissions(&forebay, fs::Permissions::from_mode(0o755)).unwrap();
        let workload = Workload { steps: 3, bytes: 1 << 20, compute_ms: 5 };
        Options { forebay, output: folder.join("out"), workload }
    }

    /// The tests share the process id that names the site, so they take turns.
    fn play(after: &str) -> (tempfile::TempDir, Result<ExitCode, String>) {
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let folder = tempfile::tempdir().unwrap();
        let result = demo(&stand_in(folder.path(), after));
        let site = env::temp_dir().join(format!("forebay-demo-{}", process::id()));
        let succeeded = result.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS);
        assert_ne!(site.exists(), succeeded, "the site is kept only for a closer look");
        if !succeeded {
            fs::remove_dir_all(site).unwrap();
        }
        (folder, result)
    }

    #[test]
    fn equal_runs_succeed() {
        let (folder, result) = play("");
        assert_eq!(result.unwrap(), ExitCode::SUCCESS);
        let table = fs::read_to_string(folder.path().join("out/table.txt")).unwrap();
        assert!(table.contains("All 3 files are the same, 3145728 bytes."), "{table}");
        assert_eq!(table.matches(" same\n").count(), 3);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        let picture = fs::read_to_string(folder.path().join("out/timeline.svg")).unwrap();
        for text in ["directly on the store", "under forebay run", "ram → store", "ram → nvme"]
        {
            assert!(picture.contains(text), "{text}");
        }
    }

    #[test]
    fn one_wrong_byte_fails() {
        let flip = "[ -z \"$trace\" ] || printf x | dd of=$site/pfs-forebay/step-02.dat \
                    bs=1 seek=77 conv=notrunc 2>/dev/null";
        let (folder, result) = play(flip);
        assert_eq!(result.unwrap(), ExitCode::FAILURE);
        let table = fs::read_to_string(folder.path().join("out/table.txt")).unwrap();
        assert!(table.contains("FAILED: the two runs left different files."), "{table}");
        assert!(table.contains(" direct\n") && table.contains(" Forebay\n"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }

    #[test]
    fn a_file_that_both_runs_lost_fails() {
        let (folder, result) = play("rm -f $site/pfs-*/step-03.dat");
        assert_eq!(result.unwrap(), ExitCode::FAILURE);
        let table = fs::read_to_string(folder.path().join("out/table.txt")).unwrap();
        assert!(table.contains("left 2097152 bytes instead of 3145728"), "{table}");
    }

    #[test]
    fn a_failed_run_is_an_error() {
        let (_folder, result) = play("exit 3");
        let error = result.unwrap_err();
        assert_eq!(error, "`forebay run --config direct.toml` ended with exit status: 3");
    }

    #[test]
    fn the_program_reports_phases() {
        let span = Span { start_us: 10, end_us: 15, bytes: 7 };
        assert_eq!(phase("write,10,15,7"), Some((Activity::Write, span)));
        for line in ["", "write,10,15", "sleep,10,15,7", "read,10,x,7", "read,1,2,3,4"] {
            assert_eq!(phase(line), None, "{line}");
        }
    }
}
