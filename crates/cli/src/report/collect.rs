//! Collecting what a run did, and making the document of it.

use super::{SCHEMA, advice, keep, text, write_to};
use crate::batch::BatchJob;
use crate::movements::Movements;
use crate::summary::Counts;
use crate::trace::ledger::{Ledger, Source};
use forebay_node::Config;
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_pool::clock;
use rustix::fs::MemfdFlags;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Moments and movements that a document has at most, of each tier and way.
const POINTS_MAX: usize = 500;
/// Files that are named.
const NAMED: usize = 10;

/// How a run ended.
pub enum Outcome {
    /// All is on the store.
    Drained,
    /// This is not: why.
    Kept(String),
    /// The drain was left to the node manager: what is left.
    Left(String),
}

impl Outcome {
    fn json(&self, drain: Duration) -> Value {
        let (name, said) = match self {
            Outcome::Drained => {
                let took = super::page::seconds(drain.as_secs_f64());
                ("drained", format!("all on the store {took} after that"))
            }
            Outcome::Kept(why) => ("kept", format!("NOT all on the store: {why}")),
            Outcome::Left(what) => ("left", what.clone()),
        };
        json!({ "name": name, "said": said })
    }
}

/// Where `--report` wants the report.
enum Target {
    /// On the standard error, as text.
    Shown,
    File(PathBuf),
}

/// Collects what a run did.
pub struct Collector {
    target: Option<Target>,
    command: String,
    ledger: Ledger,
    /// The node manager says what it moves.
    is_measured: bool,
    observer: Option<Observer>,
    under_way: Option<UnderWay>,
}

/// From the command's start.
struct UnderWay {
    config: Config,
    job: Option<u32>,
    begin_ns: u64,
    refused: u32,
    is_shared: bool,
    /// What was seen of its limits on unsafe bytes, if it has any.
    limits: Option<Limits>,
    ended: Option<Ended>,
}

/// A run's limits on unsafe bytes.
#[derive(Default)]
struct Limits {
    /// The most that was seen, and what may be.
    cap: Option<(u64, u64)>,
    max_age: Option<Duration>,
}

impl Limits {
    fn json(&self) -> Value {
        json!({
            "max_unsafe": self.cap.map(|(_, limit)| limit),
            "most_unsafe": self.cap.map(|(most, _)| most),
            "max_age_seconds": self.max_age.map(|age| age.as_secs_f64()),
        })
    }
}

/// What is known at the command's end.
struct Ended {
    at: Instant,
    at_ns: u64,
    code: u8,
    ahead: u64,
    direct: Vec<PathBuf>,
}

impl Collector {
    /// For a run with this `--report`: a file, or "-" for the standard error.
    ///
    /// # Errors
    /// Why there can be no such file.
    pub fn of(wanted: Option<&Path>, command: &[OsString]) -> Result<Collector, String> {
        let target = match wanted {
            None => None,
            Some(file) if file == Path::new("-") => Some(Target::Shown),
            Some(file) => {
                if file.is_dir() {
                    let file = file.display();
                    return Err(format!("--report: {file}: is a directory; give a file"));
                }
                crate::check_folder(file).map_err(|error| format!("--report: {error}"))?;
                Some(Target::File(std::path::absolute(file).unwrap_or_else(|_| file.to_owned())))
            }
        };
        let memory = rustix::fs::memfd_create(c"forebay-report", MemfdFlags::CLOEXEC)
            .map_err(|error| format!("memory for the report: {error}"))?;
        let mut ledger = Ledger::of(Source::of(File::from(memory), true));
        if target.is_none() {
            ledger.look_seldom();
        }
        let words: Vec<_> = command.iter().map(shown).collect();
        Ok(Collector {
            target,
            command: words.join(" "),
            ledger,
            is_measured: false,
            observer: None,
            under_way: None,
        })
    }

    /// Whether a report was asked for, so that it is worth to note each movement.
    pub fn is_asked_for(&self) -> bool {
        self.target.is_some()
    }

    /// Where the node manager is to write what it moves.
    ///
    /// # Errors
    /// The system's.
    pub fn movements(&mut self) -> Result<Movements, String> {
        let made = Movements::to_memory(self.ledger.source().file());
        self.is_measured = true;
        made.map_err(|error| format!("memory for the report: {error}"))
    }

    /// Reads that from a file that the user wants to have.
    ///
    /// # Errors
    /// The system's.
    pub fn read_from(&mut self, path: &Path) -> Result<(), String> {
        let file = File::open(path)
            .map_err(|error| format!("--trace: {}: {error}; give another file", path.display()))?;
        self.ledger.read_from(Source::of(file, false));
        self.is_measured = true;
        Ok(())
    }

    /// The command is about to be started.
    pub fn begin(&mut self, config: &Config, runtime: &Runtime, job: Option<u32>) {
        self.observer = Observer::of(&runtime.pool).ok();
        self.under_way = Some(UnderWay {
            config: config.clone(),
            job,
            begin_ns: clock::realtime_ns(),
            refused: self.observer.as_ref().map_or(0, Observer::refused),
            is_shared: false,
            limits: None,
            ended: None,
        });
        self.look_at(runtime, true);
    }

    /// Looks at the run: is called again and again, until after its drain.
    pub fn look(&mut self, runtime: &Runtime) {
        self.look_at(runtime, false);
    }

    fn look_at(&mut self, runtime: &Runtime, always: bool) {
        let Some(at) = &mut self.under_way else { return };
        // Another manager may have made the pool anew.
        if !self.observer.as_ref().is_some_and(Observer::is_served) {
            self.observer = Observer::of(&runtime.pool).ok();
        }
        let before = self.ledger.looks();
        self.ledger.look(self.observer.as_ref(), always);
        if self.ledger.looks() != before
            && let Some(observer) = &self.observer
        {
            let mut jobs = observer.jobs();
            jobs.retain(|job| job.pid != 0);
            at.is_shared |= jobs.iter().any(|job| Some(job.number) != at.job);
            let own = jobs.iter().find(|job| Some(job.number) == at.job);
            if let Some(own) = own.filter(|own| own.cap.is_some() || own.max_age.is_some()) {
                let limits = at.limits.get_or_insert_default();
                let most = limits.cap.map_or(0, |(most, _)| most);
                limits.cap = own.cap.map(|(used, limit)| (most.max(used), limit)).or(limits.cap);
                limits.max_age = own.max_age;
            }
        }
    }

    /// The command has ended, with this status; what it has left is drained from now on.
    pub fn end(&mut self, runtime: &Runtime, code: u8) {
        self.look_at(runtime, true);
        let observer = self.observer.as_ref();
        let Some(at) = &mut self.under_way else { return };
        at.ended = Some(Ended {
            at: Instant::now(),
            at_ns: clock::realtime_ns(),
            code,
            ahead: observer.map_or(0, Observer::dirty),
            direct: observer.map(Observer::direct).unwrap_or_default(),
        });
    }

    /// Makes the document: writes what `--report` asked for, and keeps it for `forebay report`.
    /// What was counted before the run, and now; and, if nothing was buffered, why.
    pub fn finish(
        &mut self,
        runtime: &Runtime,
        outcome: &Outcome,
        (before, now): (&Counts, &Counts),
    ) {
        self.look_at(runtime, true);
        let Some(document) = self.document(runtime, outcome, before, now) else { return };
        keep(&document);
        match &self.target {
            None => {}
            Some(Target::Shown) => {
                text::of(&document).lines().for_each(|line| eprintln!("{line}"));
            }
            Some(Target::File(file)) => match write_to(file, &document) {
                Ok(()) => eprintln!("forebay: report: {}", file.display()),
                // The command has its own end, whatever becomes of the report.
                Err(why) => eprintln!("forebay: the report is not written: {why}"),
            },
        }
    }

    fn document(
        &mut self,
        runtime: &Runtime,
        outcome: &Outcome,
        before: &Counts,
        now: &Counts,
    ) -> Option<Value> {
        let at = self.under_way.take()?;
        let Ended { at: ended, at_ns, code, ahead, direct } = at.ended?;
        let drain = ended.elapsed();
        let took = Duration::from_nanos(at_ns.saturating_sub(at.begin_ns)).as_secs_f64();
        let count = |name: &str| now.since(before, name);
        let (written, read) = (count("write_bytes"), count("read_bytes"));
        // A call that finds nothing in the tiers is no read of theirs: its bytes are missed alone.
        let missed = count("missed_bytes");
        let most = read.max(missed);
        let share = (most > 0).then(|| read.saturating_sub(missed) as f64 / most as f64);
        let writing = written.saturating_sub(ahead);
        let speeds = self.observer.as_ref().map(Observer::speeds_of_stores).unwrap_or_default();
        let slowest = speeds.iter().map(|speed| speed.write_bandwidth).filter(|&b| b > 0).min();
        let hidden = match (self.is_measured, slowest) {
            (true, _) => {
                let (beside, after) = self.ledger.store_seconds(true, at_ns / 1000);
                let (ahead, _) = self.ledger.store_seconds(false, at_ns / 1000);
                json!({
                    "basis": "measured",
                    "store_write_seconds": beside,
                    "after_seconds": after,
                    "ahead_read_seconds": ahead,
                })
            }
            // It cannot have gone on for longer than the command.
            (false, Some(speed)) => json!({
                "basis": "estimated",
                "store_write_seconds": (writing as f64 / speed as f64).min(took),
            }),
            (false, None) => json!({ "basis": "unknown" }),
        };
        let origin = at.begin_ns / 1000;
        let pid = std::process::id();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let refused = self.observer.as_ref().map_or(0, Observer::refused);
        let mut document = json!({
            "schema": SCHEMA,
            "forebay": env!("CARGO_PKG_VERSION"),
            "command": self.command,
            "pid": pid,
            "host": host.trim_end(),
            "job": BatchJob::current().map(|job| job.json()),
            "instance": runtime.instance,
            "stores": at.config.backing.iter().map(|b| b.path.to_string_lossy()).collect::<Vec<_>>(),
            "begin": at.begin_ns as f64 / 1e9,
            "command_seconds": took,
            "drain_seconds": drain.as_secs_f64(),
            "exit": code,
            "outcome": outcome.json(drain),
            "shared": at.is_shared,
            "nothing": now.describe_nothing(before, &at.config),
            "bytes": {
                "written": written,
                "read": read,
                "from_store": missed,
                "ahead_at_end": ahead,
            },
            "calls": {
                "opens": count("opens"), "writes": count("writes"), "reads": count("reads"),
            },
            "hits": {
                "read_share": share,
                "guessed": count("guessed"),
                "guess_hits": count("guess_hits"),
                "guess_misses": count("guess_misses"),
            },
            "limits": at.limits.as_ref().map(Limits::json),
            "hidden": hidden,
            "refused": refused.saturating_sub(at.refused),
            "tiers": self.tiers(origin),
            "movements": self.moved(origin),
            "counters": now.all_since(before),
        });
        document["around"] = around(&document, &now.unmarked_since(before), &direct).into();
        document["advice"] = advice::of(&document).into();
        Some(document)
    }

    /// How full the tiers were.
    fn tiers(&self, origin_us: u64) -> Vec<Value> {
        let tier = |level: crate::timeline::Level| {
            let peak = level.points.iter().map(|(_, used)| *used).max().unwrap_or(0);
            // Of what is left out, the highest.
            let each = level.points.len().div_ceil(POINTS_MAX).max(1);
            let points = level.points.chunks(each).map(|chunk| {
                let (at, _) = chunk[0];
                let most = chunk.iter().map(|(_, used)| *used).max().unwrap_or(0);
                json!([at.saturating_sub(origin_us) as f64 / 1e6, most])
            });
            let points: Vec<_> = points.collect();
            json!({
                "name": level.name, "capacity": level.capacity, "peak": peak, "points": points,
            })
        };
        self.ledger.fills().pictures().into_iter().map(tier).collect()
    }

    /// What the node manager moved, and when.
    fn moved(&self, origin_us: u64) -> Vec<Value> {
        let way = |way: &crate::trace::ledger::Way| {
            let (from, to) = way.ends();
            let mut spans = way.spans();
            let mut gap = 1000;
            while spans.len() > POINTS_MAX {
                spans = crate::timeline::merged(&spans, gap);
                gap *= 2;
            }
            let at = |us: u64| us.saturating_sub(origin_us) as f64 / 1e6;
            let spans: Vec<_> =
                spans.iter().map(|s| json!([at(s.start_us), at(s.end_us), s.bytes])).collect();
            json!({
                "action": way.action(), "from": from, "to": to, "bytes": way.bytes(),
                "spans": spans,
            })
        };
        self.ledger.ways().map(way).collect()
    }
}

/// What did not go through the tiers, and why.
fn around(document: &Value, unmarked: &[(String, u32)], direct: &[PathBuf]) -> Vec<Value> {
    let mut all = Vec::new();
    let mut add = |code: &str, what: String, why: String| {
        all.push(json!({ "code": code, "what": what, "why": why }));
    };
    let count = |name: &str| super::page::number(document, &format!("/counters/{name}"));
    let counted = |count: u64, one: &str, several: &str| crate::text::counted(count, one, several);
    if count("write_around") > 0 {
        add(
            "full",
            format!("{} written to the store", counted(count("write_around"), "block", "blocks")),
            "the tiers, or what the run may have of them, were full for too long".to_owned(),
        );
    }
    if count("small_files") > 0 {
        add(
            "small",
            format!("{}, while new and small", crate::text::files(count("small_files") as usize)),
            "the store takes such files as quickly as the tiers: they were written through, as without Forebay \
             (small_files = \"buffer\" of the directory buffers them)"
                .to_owned(),
        );
    }
    if count("passthrough") > 0 {
        add(
            "kernel",
            counted(count("passthrough"), "call", "calls"),
            "only the kernel can do them (mappings, splice, io_uring, programs without Forebay); what was \
             buffered of the files was brought to the store first"
                .to_owned(),
        );
    }
    if !direct.is_empty() {
        let mut named: Vec<_> = direct.iter().take(NAMED).map(shown).collect();
        if direct.len() > NAMED {
            named.push(format!("and {} more", direct.len() - NAMED));
        }
        add(
            "direct",
            format!(
                "{} at the command's end: {}",
                crate::text::files(direct.len()),
                named.join(", ")
            ),
            "used through the kernel, as a process has them mapped, or a program without Forebay has them open"
                .to_owned(),
        );
    }
    for (directory, opens) in unmarked {
        add(
            "unmarked",
            format!("{} beneath {directory}", counted(u64::from(*opens), "open", "opens")),
            forebay_node::markers::WHY.to_owned(),
        );
    }
    let refused = super::page::number(document, "/refused");
    if refused > 0 {
        add(
            "tables",
            counted(refused, "open", "opens"),
            "the tables of files or descriptors were full".to_owned(),
        );
    }
    all
}
