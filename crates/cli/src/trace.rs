//! `forebay trace`: a run of which a picture is drawn of what its threads and the tiers did, with
//! the same data for Perfetto, and what the performance model says. See docs/design/tracing.md.

mod chrome;
pub mod ledger;
mod model;
mod story;

use crate::movements::Movements;
use crate::run::{self, RunArguments};
use crate::text::counted;
use crate::timeline::{self, Activity, Layer, Panel, Row, Span};
use clap::Args;
use forebay_node::Config;
use forebay_node::config::Mode;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_pool::clock;
use forebay_pool::spans::{SpanKind, Spans};
use ledger::{Ledger, Source};
use model::{Said, Speeds};
use rustix::fs::MemfdFlags;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use story::{Deed, Deeds, Story, Stretch};

/// Options of `forebay trace`.
#[derive(Args)]
pub struct TraceArguments {
    /// Write PREFIX.svg, a picture, and PREFIX.json, for Perfetto and chrome://tracing
    #[arg(long, value_name = "PREFIX", default_value = "forebay-trace")]
    out: PathBuf,
    /// Write both anew so often while the command runs
    #[arg(long, value_name = "SECONDS", default_value = "60",
        value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    #[command(flatten)]
    run: RunArguments,
}

/// How often the run is looked at.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the model's line is printed.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Lines and files are made less often if that takes more than such a part of the time.
const COST_SHARE: u32 = 50;
/// Threads in the picture; the file has all.
const ROWS_MAX: usize = 120;

/// What is done at times, and takes little of them.
struct Beat {
    every: Duration,
    next: Instant,
}

impl Beat {
    fn every(every: Duration) -> Beat {
        Beat { every, next: Instant::now() + every }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// It was done, and has begun then.
    fn done(&mut self, began: Instant) {
        self.next = Instant::now() + self.every.max(began.elapsed() * COST_SHARE);
    }
}

/// What is collected of a run.
pub struct Tracer {
    out: PathBuf,
    every: Duration,
    command: String,
    is_told: bool,
    /// Nothing is buffered, as the run's mode says, or that of all directories.
    is_bypassed: bool,
    ledger: Ledger,
    /// Once the command is started.
    under_way: Option<UnderWay>,
}

struct UnderWay {
    spans: Spans,
    config: Config,
    begin_ns: u64,
    /// When the command ended.
    end_ns: Option<u64>,
    speeds: Speeds,
    observer: Option<Observer>,
    line: Beat,
    files: Beat,
}

/// `forebay trace`.
pub fn trace(arguments: &TraceArguments) -> Result<ExitCode, String> {
    let mut tracer = Tracer::to(&arguments.out, arguments.every)?;
    tracer.command = words(arguments.run.command());
    tracer.is_told = arguments.run.is_verbose() || io::stderr().is_terminal();
    tracer.is_bypassed = arguments.run.is_bypassed();
    let code = run::run(&arguments.run, Some(&mut tracer))?;
    // The command has its own end, whatever becomes of the picture.
    if let Err(why) = tracer.finish() {
        eprintln!(
            "forebay: the trace is not written: {why}; make room there, or give another --out"
        );
    }
    Ok(code)
}

/// A command as people read it.
fn words(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(shown).collect();
    words.join(" ")
}

impl Tracer {
    /// One that writes to files of this prefix; whether it can is tried.
    fn to(out: &Path, every: u32) -> Result<Tracer, String> {
        let failed = |error: &dyn std::fmt::Display, path: &Path| {
            format!("--out: {}: {error}; give another prefix", path.display())
        };
        for ending in ENDINGS {
            let (path, part) = (with(out, ending), with(out, &format!("{ending}.part")));
            if path.is_dir() {
                return Err(failed(&"is a directory", &path));
            }
            let made = File::create(&part).and_then(|_| fs::remove_file(&part));
            made.map_err(|error| failed(&error, &part))?;
        }
        let memory = rustix::fs::memfd_create(c"forebay-movements", MemfdFlags::CLOEXEC)
            .map_err(|error| format!("memory for what is moved: {error}"))?;
        Ok(Tracer {
            out: out.to_owned(),
            every: Duration::from_secs(every.into()),
            command: String::new(),
            is_told: false,
            is_bypassed: false,
            ledger: Ledger::of(Source::of(File::from(memory), true)),
            under_way: None,
        })
    }

    /// Where the node manager is to write what it moves.
    ///
    /// # Errors
    /// The system's.
    pub fn movements(&self) -> Result<Movements, String> {
        let made = Movements::to_memory(self.ledger.source().file());
        made.map_err(|error| format!("memory for what is moved: {error}"))
    }

    /// Reads that from a file that the user wants to have.
    ///
    /// # Errors
    /// The system's.
    pub fn read_from(&mut self, path: &Path) -> Result<(), String> {
        let file = File::open(path)
            .map_err(|error| format!("--trace: {}: {error}; give another file", path.display()))?;
        self.ledger.read_from(Source::of(file, false));
        Ok(())
    }

    /// The command is about to be started.
    pub fn begin(&mut self, spans: Spans, config: &Config, runtime: &Runtime) {
        self.is_bypassed |= config.backing.iter().all(|backing| backing.mode == Mode::Bypass);
        self.under_way = Some(UnderWay {
            spans,
            config: config.clone(),
            begin_ns: clock::realtime_ns(),
            end_ns: None,
            speeds: Speeds::default(),
            observer: None,
            line: Beat::every(LINE_EVERY),
            files: Beat::every(self.every),
        });
        self.look_at(runtime, true);
    }

    /// The command could not be started: there is nothing to be shown.
    pub fn give_up(&mut self) {
        self.under_way = None;
    }

    /// Looks at the run: is called again and again, until after its drain.
    pub fn look(&mut self, runtime: &Runtime) {
        self.look_at(runtime, false);
        let Some(mut at) = self.under_way.take() else { return };
        if at.end_ns.is_none() {
            let began = Instant::now();
            if self.is_told && at.line.is_due() {
                eprintln!("forebay: {}", self.said(&at).1.line());
                at.line.done(began);
            }
            let began = Instant::now();
            if at.files.is_due() {
                // It is tried again, and at the end it is said.
                let (story, said) = self.said(&at);
                let _ = self.write(&at, &story, &said);
                at.files.done(began);
            }
        }
        self.under_way = Some(at);
    }

    fn look_at(&mut self, runtime: &Runtime, always: bool) {
        let Some(at) = &mut self.under_way else { return };
        // Another manager may have made the pool anew.
        let is_known = at.observer.as_ref().is_some_and(Observer::is_served);
        if !is_known {
            at.observer = Observer::of(&runtime.pool).ok();
        }
        self.ledger.look(at.observer.as_ref(), always);
        if let Some(observer) = &at.observer {
            at.speeds = Speeds::of(observer, &at.config);
        }
    }

    /// The command has ended; what it has left is drained from now on.
    pub fn end(&mut self, runtime: &Runtime) {
        self.look_at(runtime, true);
        self.ledger.end();
        if let Some(at) = &mut self.under_way {
            at.end_ns = Some(clock::realtime_ns());
        }
    }

    fn said(&self, at: &UnderWay) -> (Story, Said) {
        let end_ns = at.end_ns.unwrap_or_else(clock::realtime_ns).max(at.begin_ns);
        let story = Story::of(&at.spans, at.begin_ns, end_ns);
        let said = match self.is_bypassed {
            true => Said::of_bypassed(),
            false => Said::of(&story, &self.ledger, at.speeds),
        };
        (story, said)
    }

    /// Writes the files, and says what the model says. Nothing where the command was not started.
    fn finish(mut self) -> Result<(), String> {
        let Some(at) = self.under_way.take() else { return Ok(()) };
        self.ledger.look(None, false);
        let (story, said) = self.said(&at);
        let written = self.write(&at, &story, &said);
        eprintln!("forebay: {}", said.line());
        if !said.terms().is_empty() {
            eprintln!("forebay: {}", said.terms());
        }
        if let Some(missed) = story.describe_missed() {
            eprintln!("forebay: trace: {missed}");
        }
        written?;
        let spans = story.threads.iter().map(|deeds| deeds.deeds.len()).sum();
        eprintln!(
            "forebay: traced {} in {}: {} and {}",
            counted(story.threads.len(), "thread", "threads"),
            counted::<usize>(spans, "stretch", "stretches"),
            with(&self.out, SVG).display(),
            with(&self.out, JSON).display()
        );
        if story.threads.is_empty() {
            eprintln!(
                "forebay: trace: no thread was seen to use a buffered file, or to mark a phase"
            );
        }
        Ok(())
    }

    fn write(&self, at: &UnderWay, story: &Story, said: &Said) -> Result<(), String> {
        let put = |ending: &str, write: &dyn Fn(&Path) -> Result<(), String>| {
            let (path, part) =
                (with(&self.out, ending), with(&self.out, &format!("{ending}.part")));
            let named = |error: io::Error| format!("{}: {error}", path.display());
            let written = write(&part).and_then(|()| fs::rename(&part, &path).map_err(named));
            if written.is_err() {
                let _ = fs::remove_file(&part);
            }
            written
        };
        put(JSON, &|part| {
            let named = |error: io::Error| format!("{}: {error}", part.display());
            let file = File::create(part).map_err(named)?;
            let of = (story, &at.spans, &self.ledger);
            chrome::write(BufWriter::new(file), &self.command, of, said).map_err(named)
        })?;
        put(SVG, &|part| self.draw(part, at, story))
    }

    fn draw(&self, file: &Path, at: &UnderWay, story: &Story) -> Result<(), String> {
        let name = |number: u32| at.spans.name(number);
        let mut shown: Vec<&Deeds> = story.threads.iter().collect();
        if shown.len() > ROWS_MAX {
            // Those that did most, in their order.
            let mut busy: Vec<_> = shown.iter().map(|deeds| deeds.blocked_ns()).collect();
            busy.sort_unstable_by(|one, other| other.cmp(one));
            let least = busy[ROWS_MAX - 1];
            shown.retain(|deeds| deeds.blocked_ns() >= least);
            shown.truncate(ROWS_MAX);
        }
        let rows = shown.iter().map(|deeds| row(deeds, &story.phases, name)).collect();
        let origin_us = story.begin_ns / 1000;
        let marks = at.end_ns.map(|end_ns| {
            let seconds = (end_ns - at.begin_ns) as f64 / 1e9;
            (end_ns / 1000, format!("the command ends: {seconds:.3} s"))
        });
        let title = match story.threads.len() - shown.len() {
            0 => "threads".to_owned(),
            more => format!("threads ({more} more in the other file)"),
        };
        let threads = Panel {
            title,
            origin_us,
            rows,
            marks: marks.into_iter().collect(),
            levels: Vec::new(),
        };
        let tiers = Panel {
            title: "node manager: what moves between tiers, and how full they are".to_owned(),
            origin_us,
            rows: self.ledger.rows(),
            marks: Vec::new(),
            levels: self.ledger.fills().pictures(),
        };
        timeline::draw_phases(file, &self.command, &[threads, tiers], &story.phases)
    }
}

const SVG: &str = ".svg";
const JSON: &str = ".json";
const ENDINGS: [&str; 2] = [SVG, JSON];

/// A file of a prefix.
fn with(prefix: &Path, ending: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// The row of a thread: what it computes below, marked phases above it, calls above all.
fn row(deeds: &Deeds, phases: &[String], name: impl Fn(u32) -> String) -> Row {
    let span = |stretch: &Stretch| Span {
        start_us: stretch.start_ns / 1000,
        end_us: stretch.end_ns / 1000,
        bytes: stretch.bytes,
    };
    let mut over: Vec<Layer> = Vec::new();
    let mut compute = Vec::new();
    for (deed, stretch) in &deeds.deeds {
        let (activity, is_low) = match deed {
            Deed::Compute => {
                compute.push(span(stretch));
                continue;
            }
            Deed::Phase { name: number, depth } => {
                let name = name(*number);
                let place = phases.iter().position(|known| *known == name);
                (
                    Activity::Phase(place.unwrap_or(timeline::PHASES).min(timeline::PHASES)),
                    *depth > 0,
                )
            }
            Deed::Calls(SpanKind::Write) => (Activity::Write, false),
            Deed::Calls(SpanKind::Read) => (Activity::Read, false),
            Deed::Calls(SpanKind::Sync) => (Activity::Sync, false),
            Deed::Calls(_) => (Activity::Other, false),
        };
        match over.iter_mut().find(|layer| layer.activity == activity && layer.is_low == is_low) {
            Some(layer) => layer.spans.push(span(stretch)),
            None => over.push(Layer { activity, spans: vec![span(stretch)], is_low }),
        }
    }
    let depth = |layer: &Layer| match layer.activity {
        Activity::Phase(place) => (u8::from(layer.is_low), place),
        // Reads and writes may be shorter than what can be seen: above what is around them.
        Activity::Other => (2, 0),
        _ => (3, 0),
    };
    over.sort_by_key(depth);
    let (read, written) = deeds.bytes();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let note = format!(
        "{:.0} + {:.0} MiB in {:.2} s",
        mib(read),
        mib(written),
        deeds.blocked_ns() as f64 / 1e9
    );
    let thread = &deeds.thread;
    let rank = thread.rank.map_or(String::new(), |rank| format!("{rank}: "));
    let title = format!("{rank}{} {}", String::from_utf8_lossy(&thread.name), thread.id);
    Row { name: title, activity: Activity::Compute, spans: compute, over, note: Some(note) }
}
