//! `forebay profile`.

use crate::text::bytes;
use clap::Args;
use forebay_node::Config;
use forebay_node::profile::{
    self, Direction, Kind, Measured, Order, Place, Probe, Skipped, Survey, bandwidth, latency,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Options of `forebay profile`.
#[derive(Args)]
pub struct ProfileArguments {
    /// Write a configuration with what was measured; the file must not exist
    #[arg(long, value_name = "CONFIG")]
    write: Option<PathBuf>,
    /// Measure this directory only; can be given several times
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// The directory whose files are to be buffered; without it a network file system, else the
    /// slowest --dir, else the current directory
    #[arg(long, value_name = "DIR")]
    backing: Option<PathBuf>,
    /// Time for everything together
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Measure for 6 seconds: good enough to tell a disk from an NVMe
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Measure messages between MPI ranks instead, and print them as part of a configuration:
    /// mpiexec -n 2 forebay profile --mpi
    #[arg(long, conflicts_with_all = ["write", "dir", "backing", "seconds", "quick"])]
    mpi: bool,
    /// The library of MPI, where it is not found
    #[arg(long, value_name = "FILE", requires = "mpi")]
    mpi_library: Option<PathBuf>,
}

/// What `--quick` means.
const QUICK: Duration = Duration::from_secs(6);
/// Most that memory takes of the time, and its share.
const MEMORY_TIME: Duration = Duration::from_secs(4);
const MEMORY_SHARE: u32 = 8;

/// Finds and measures this machine's devices, and says so.
pub fn profile(arguments: &ProfileArguments) -> Result<ExitCode, String> {
    if arguments.mpi {
        return crate::ping_pong::ping_pong(arguments.mpi_library.as_deref());
    }
    arguments.write.iter().try_for_each(|file| crate::check_folder(file))?;
    if let Some(file) = arguments.write.as_ref().filter(|file| file.exists()) {
        return Err(format!("{} exists; remove it or name another", file.display()));
    }
    let mut survey = profile::survey(&arguments.dir)?;
    let store = choose_store(arguments, &mut survey)?;
    if survey.places.is_empty() {
        return Err(format!("nothing can be measured:\n{}", list(&survey.skipped)));
    }
    let (memory, found) = measure(arguments, &mut survey);
    let mut text = table(&memory);
    found.iter().for_each(|found| text += &table(found));
    let store = store.or_else(|| slowest(&found));
    let store = found.iter().find(|found| Some(&found.place.path) == store.as_ref());
    let configuration = store.map(|store| profile::configuration(&memory, &found, store));
    if let Some((_, left_out)) = &configuration {
        survey.skipped.extend(left_out.iter().cloned());
    }
    if !survey.skipped.is_empty() {
        let _ = write!(text, "left out\n{}\n", list(&survey.skipped));
    }
    match (&configuration, &arguments.write) {
        (Some((configuration, _)), Some(file)) => {
            write_checked(file, configuration)?;
            let file = file.display();
            let _ =
                writeln!(text, "wrote {file}; use it with: forebay run --config {file} -- COMMAND");
        }
        (Some((configuration, _)), None) => {
            let _ = write!(text, "configuration (--write FILE keeps it)\n\n{configuration}");
        }
        (None, _) => {
            print!("{text}");
            return Err("the backing store could not be measured; name one with --backing".into());
        }
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// The directory to buffer, added to those that are measured; `None` if it is to be the slowest.
fn choose_store(
    arguments: &ProfileArguments,
    survey: &mut Survey,
) -> Result<Option<PathBuf>, String> {
    let named = match &arguments.backing {
        Some(named) => Some(named.clone()),
        None => {
            let network = survey.places.iter().find(|place| place.kind == Kind::Network);
            match network {
                Some(place) => return Ok(Some(place.path.clone())),
                None if !arguments.dir.is_empty() => return Ok(None),
                None => Some(std::env::current_dir().map_err(|error| error.to_string())?),
            }
        }
    };
    let Some(named) = named else { return Ok(None) };
    let mut found = profile::survey(std::slice::from_ref(&named))?;
    let Some(place) = found.places.pop() else {
        let why = found.skipped.first().map_or("", |skipped| &skipped.why);
        return Err(format!("{}: {why}; name another with --backing", named.display()));
    };
    let path = place.path.clone();
    if arguments.dir.is_empty() {
        // A tier on the store's own device would only take from it.
        let device = device(&path);
        survey.places.retain(|other| {
            let same = self::device(&other.path) == device && other.path != path;
            if same {
                let why = "is on the device of the backing store".to_owned();
                survey.skipped.push(Skipped { path: other.path.clone(), why });
            }
            !same
        });
    }
    if survey.places.iter().all(|other| other.path != path) {
        survey.places.push(place);
    }
    Ok(Some(path))
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|found| found.dev())
}

fn slowest(found: &[Measured]) -> Option<PathBuf> {
    let slowest = found.iter().min_by_key(|found| found.speed().write_bandwidth);
    slowest.map(|found| found.place.path.clone())
}

/// Measures memory and every place; those that cannot be measured are left out.
fn measure(arguments: &ProfileArguments, survey: &mut Survey) -> (Measured, Vec<Measured>) {
    let time = if arguments.quick { QUICK } else { Duration::from_secs(arguments.seconds) };
    let for_memory = (time / MEMORY_SHARE).min(MEMORY_TIME);
    let each = (time - for_memory) / survey.places.len().max(1) as u32;
    let progress = Progress::new(profile::memory_steps() + survey.places.len() * profile::steps());
    progress.begin("memory");
    let memory = profile::measure_memory(for_memory, |probe| progress.step(probe));
    let mut found = Vec::new();
    for place in &survey.places {
        progress.begin(&place.path.display().to_string());
        match profile::measure(place, each, |probe| progress.step(probe)) {
            Ok(measured) => found.push(measured),
            Err(skipped) => survey.skipped.push(skipped),
        }
    }
    progress.bar.finish_and_clear();
    (memory, found)
}

struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new(steps: usize) -> Progress {
        let style = ProgressStyle::with_template("measuring {bar:20} {eta} left  {wide_msg}");
        let bar = ProgressBar::new(steps as u64);
        Progress { bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())) }
    }

    fn begin(&self, what: &str) {
        self.bar.set_prefix(what.to_owned());
        if !std::io::stderr().is_terminal() {
            eprintln!("forebay: measuring {what}");
        }
    }

    fn step(&self, probe: &Probe) {
        self.bar.set_message(format!("{}: {}", self.bar.prefix(), describe(probe)));
        self.bar.inc(1);
    }
}

fn describe(probe: &Probe) -> String {
    let order = match probe.order {
        Order::Sequential => "sequential",
        Order::Random => "random",
    };
    let direction = match probe.direction {
        Direction::Read => "read",
        Direction::Write => "write",
    };
    format!("{order} {direction}, {} x {}", bytes(probe.bytes as u64), probe.at_once)
}

/// All runs of a place: the median, and the least and the most of the others.
fn table(found: &Measured) -> String {
    let Place { path, kind, device, free } = &found.place;
    let what = match kind {
        Kind::Memory if path == Path::new("memory") => "memory".to_owned(),
        kind => format!("{}: {}", path.display(), kind.describe()),
    };
    let mut text = format!("{what}, {device}, {} free", bytes(*free));
    if !found.direct {
        text += ", without direct I/O: writes are synchronous, reads may come from the page cache";
    }
    let _ = writeln!(
        text,
        "\n  {:34}  {:>9}  {:19}  {:>7}  least .. most",
        "what", "bandwidth", "least .. most", "time"
    );
    for row in &found.rows {
        let [least, median, most] = row.bandwidths().map(|value| bandwidth(value as u64));
        let [quickest, usual, longest] = row.rounds_ns().map(latency);
        let _ = writeln!(
            text,
            "  {:34}  {median:>9}  {:19}  {usual:>7}  {quickest} .. {longest}",
            describe(&row.probe),
            format!("{least} .. {most}")
        );
    }
    text + "\n"
}

fn list(skipped: &[Skipped]) -> String {
    let lines =
        skipped.iter().map(|skipped| format!("  {} {}\n", skipped.path.display(), skipped.why));
    lines.collect()
}

/// Writes the configuration once it is known to be accepted.
fn write_checked(file: &Path, configuration: &str) -> Result<(), String> {
    let named = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut made = fs::OpenOptions::new().write(true).create_new(true).open(file).map_err(named)?;
    let written = made.write_all(configuration.as_bytes()).map_err(named);
    let accepted = written.and_then(|()| {
        Config::load(file, &[]).map_err(|error| format!("{error}\n\n{configuration}"))
    });
    if accepted.is_err() {
        let _ = fs::remove_file(file);
    }
    accepted.map(|_| ())
}
