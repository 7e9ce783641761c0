//! `forebay run`.

use crate::analyse;
use crate::aside::Aside;
use crate::drain::{self, Drained, Progress};
use crate::follow::Followed;
use crate::group::{self, Beginning, GroupArguments};
use crate::instance::InstanceArguments;
use crate::keep::{self, Keep};
use crate::manager::{self, Joined, ends_with_runs};
use crate::movements::Movements;
use crate::recorder::Recorder;
use crate::report::{Collector, Outcome};
use crate::signals;
use crate::summary::Counts;
use crate::task;
use crate::text::{self, counted};
use crate::trace::{LOOK_EVERY, Tracer};
use crate::watch::Watch;
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_node::config::{RunLimits, Ways};
use forebay_node::launch::{find_library, join_pool};
use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_node::{Config, Connection};
use forebay_placement::schema::{Mode, Trigger};
use forebay_pool::calls::{Calls, Wanted};
use forebay_pool::clock;
use forebay_pool::layout::{FOLLOWS, JOBS_MAX, LAYOUT_VERSION};
use forebay_pool::message::Message;
use forebay_pool::spans::Spans;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// Options of `forebay run`.
#[derive(Args)]
pub struct RunArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    #[command(flatten)]
    group: GroupArguments,
    /// Record every movement between tiers in this file (CSV)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Record what the command's processes open, read, write and close in this file (CSV), for
    /// `forebay simulate --replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Read files ahead in the order in which an earlier run has read them, which `--record`
    /// wrote to this file
    #[arg(long, value_name = "FILE")]
    follow: Option<PathBuf>,
    /// The buffering mode of files for which no rule gives one
    #[arg(long, value_name = "MODE", value_parser = modes())]
    mode: Option<String>,
    /// When files are flushed for which no rule gives a trigger
    #[arg(long, value_name = "TRIGGER", value_parser = names(Trigger::ALL))]
    trigger: Option<String>,
    /// Set so much of the tiers aside for what this run writes
    #[arg(long, value_name = "SIZE", value_parser = size)]
    reserve: Option<u64>,
    /// Keep the node manager that this run has started for so long after it, with what is in the
    /// tiers, for the next run: as 10min. `forebay down` ends it before
    #[arg(long, value_name = "TIME", value_parser = keep::time)]
    keep: Option<Duration>,
    /// The most of a tier that files of this run may take, as ram=2GiB or nvme=50%; can be given
    /// for several tiers
    #[arg(long, value_name = "TIER=SIZE")]
    quota: Vec<String>,
    /// The most that the tiers may have of files of this run and the store may lack, as 20GiB or
    /// 25% (of all tiers together): writers wait where it is used up
    #[arg(long, value_name = "SIZE")]
    max_unsafe: Option<String>,
    /// Flush what this run writes before the store has lacked it for so long, as 60s
    #[arg(long, value_name = "TIME")]
    max_age: Option<String>,
    /// Say at the end what the run did (bytes, hit rates, time hidden, what to change) on the
    /// standard error, or in FILE: as JSON or HTML if its name ends so, else as text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        default_missing_value = "-")]
    report: Option<PathBuf>,
    /// Say at the end what was buffered, also where the standard error is no terminal
    #[arg(long)]
    verbose: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl RunArguments {
    /// The command and its arguments.
    pub fn command(&self) -> &[OsString] {
        &self.command
    }

    /// Whether the run is told to buffer nothing.
    pub fn is_bypassed(&self) -> bool {
        code(Mode::ALL, self.mode.as_deref(), |mode| mode as u8) == Mode::Bypass as u8
    }

    /// Whether more is to be said.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Whether it reads as `--report FILE -- COMMAND`, where FILE is taken for the command.
    fn names_report_as_command(&self) -> bool {
        self.report.as_deref() == Some(Path::new("-"))
            && self.command.get(1).is_some_and(|word| word == "--")
    }

    /// Memory for what the processes of the run note, if anything is wanted of them.
    fn memory(&self, is_traced: bool) -> Result<Option<OwnedFd>, String> {
        let wanted = match (&self.record, is_traced) {
            (None, false) => return Ok(None),
            (Some(_), false) => Wanted::CALLS,
            (None, true) => Wanted::SPANS,
            (Some(_), true) => Wanted::CALLS.and(Wanted::SPANS),
        };
        let made = Calls::memory(wanted);
        made.map(Some).map_err(|error| format!("memory for what the run does: {error}"))
    }
}

/// How often node managers that end are replaced before a run gives up.
const STARTS: u32 = 10;

/// Where the library says which layout it is made for: a section of four bytes.
const LAYOUT_SECTION: &[u8] = b".forebay.layout\0";

/// The layout that a library is made for; `None` if it does not say. Most of a library is for
/// debuggers: what is not asked for is not read.
fn layout_of(library: &File) -> Option<u32> {
    /// More than there are of sections, and of their names.
    const LARGEST: usize = 1 << 20;
    let read = |at: usize, length: usize| {
        let mut bytes = vec![0; Some(length).filter(|&length| length <= LARGEST)?];
        library.read_exact_at(&mut bytes, at as u64).ok().map(|()| bytes)
    };
    let number = |bytes: &[u8], at: usize, length: usize| {
        let bytes = bytes.get(at..at.checked_add(length)?)?;
        let value = bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        usize::try_from(value).ok()
    };
    // The header of a 64-bit ELF file: its table of sections, and which of them has their names.
    let header = read(0, 0x40)?;
    let (table, size) = (number(&header, 0x28, 8)?, number(&header, 0x3a, 2)?);
    let (count, names) = (number(&header, 0x3c, 2)?, number(&header, 0x3e, 2)?);
    let table = read(table, count.checked_mul(size)?)?;
    let mut sections = table.chunks_exact(size.max(0x28));
    let of_names = sections.clone().nth(names)?;
    let names = read(number(of_names, 0x18, 8)?, number(of_names, 0x20, 8)?)?;
    let of_layout = |section: &&[u8]| {
        let name = number(section, 0, 4).and_then(|at| names.get(at..));
        name.is_some_and(|name| name.starts_with(LAYOUT_SECTION))
    };
    let found = sections.find(of_layout)?;
    let layout = read(number(found, 0x18, 8)?, 4)?;
    u32::try_from(number(&layout, 0, 4)?).ok()
}

/// A library of another layout could not use the pool: its programs would run without buffering,
/// and without a word.
fn refuse_other_layout(library: &Path) -> Result<(), String> {
    let name = library.display();
    let file = File::open(library).map_err(|error| format!("{name}: {error}"))?;
    match layout_of(&file) {
        Some(LAYOUT_VERSION) => Ok(()),
        other => {
            let other = other.map_or("an older one".to_owned(), |other| other.to_string());
            Err(format!(
                "{name} is of another version than this command (its layout is {other}, the command's \
                 {LAYOUT_VERSION}); install both of one version"
            ))
        }
    }
}

/// The names that an option takes.
fn names<T>(all: &'static [(&'static str, T)]) -> PossibleValuesParser {
    all.iter().map(|(name, _)| *name).collect::<Vec<_>>().into()
}

/// The modes that a run can have for all of its files.
fn modes() -> PossibleValuesParser {
    let all = Mode::ALL.iter().filter(|(_, mode)| !mode.needs_tier());
    all.map(|(name, _)| *name).collect::<Vec<_>>().into()
}

fn size(text: &str) -> Result<u64, String> {
    let size = forebay_node::config::size_of(text).filter(|&size| size > 0);
    size.ok_or_else(|| "give a size such as 4GiB".to_owned())
}

/// The code of a name, or 0.
fn code<T: Copy>(all: &[(&str, T)], name: Option<&str>, code: impl Fn(T) -> u8) -> u8 {
    let found = all.iter().find(|(known, _)| Some(*known) == name);
    found.map_or(0, |&(_, value)| code(value))
}

/// What a run is told that it may have.
struct Limits {
    /// Of tiers, each by its place: bytes.
    quotas: Vec<(usize, u64)>,
    run: RunLimits,
}

impl Limits {
    fn of(arguments: &RunArguments, config: &Config) -> Result<Limits, String> {
        let quotas = arguments.quota.iter().map(|given| config.quota(given));
        let cap = arguments.max_unsafe.as_deref().map(|given| config.max_unsafe(given));
        let age = arguments.max_age.as_deref().map(Config::max_age);
        Ok(Limits {
            quotas: quotas.collect::<Result<_, _>>()?,
            run: RunLimits {
                max_unsafe: cap.transpose()?.unwrap_or(config.run.max_unsafe),
                max_age: age.transpose()?.unwrap_or(config.run.max_age),
            },
        })
    }

    /// What the node manager is told before the run begins.
    fn messages(&self) -> impl Iterator<Item = Message> {
        let RunLimits { max_unsafe, max_age } = self.run;
        let max_age_ms = u32::try_from(max_age.as_millis()).unwrap_or(u32::MAX);
        let cap = (self.run != RunLimits::default())
            .then_some(Message::Cap { bytes: max_unsafe, max_age_ms });
        let quota = |&(tier, bytes): &(usize, u64)| Message::Quota {
            tier: u8::try_from(tier).unwrap_or(u8::MAX),
            bytes,
        };
        self.quotas.iter().map(quota).chain(cap)
    }
}

/// What came of telling the node manager that a run begins.
enum Begun {
    /// The number of its job; `None` if there are so many that this one goes without.
    Job(Option<u32>),
    /// The node manager has died.
    Gone(Errno),
    /// A signal has come, and the command is not to be started.
    Signalled,
}

/// Tells the node manager that a run begins.
fn begin(
    connection: &Connection,
    runtime: &Runtime,
    arguments: &RunArguments,
    limits: &Limits,
    memories: u32,
) -> Result<Begun, String> {
    for limit in limits.messages() {
        if let Err(errno) = connection.send(limit) {
            return Ok(Begun::Gone(errno));
        }
    }
    let message = Message::BeginJob {
        mode: code(Mode::ALL, arguments.mode.as_deref(), |mode| mode as u8),
        trigger: code(Trigger::ALL, arguments.trigger.as_deref(), |trigger| trigger as u8),
        reserve: arguments.reserve.unwrap_or(0),
        recording: memories,
    };
    if let Err(errno) = connection.send(message) {
        return Ok(Begun::Gone(errno));
    }
    let mut watch = Watch::default();
    loop {
        watch.look(runtime.manager())?;
        let answer = match connection.receive(Duration::from_millis(200)) {
            Ok(answer) => answer,
            Err(errno) => return Ok(Begun::Gone(errno)),
        };
        match answer {
            Some(Message::JobBegun { number }) => return Ok(Begun::Job(Some(number))),
            Some(Message::NoRoom { bytes, asked }) => {
                return Err(format!(
                    "{} cannot be reserved; {} could be now. Ask for less, or give the tiers more \
                     capacity",
                    text::bytes(asked),
                    text::bytes(bytes)
                ));
            }
            Some(Message::Refused) => {
                let is_noted = memories & 0xffff != 0;
                let plain = arguments.mode.is_none()
                    && arguments.trigger.is_none()
                    && arguments.reserve.is_none()
                    && limits.messages().next().is_none()
                    && !is_noted;
                let many = format!(
                    "{JOBS_MAX} runs are under this node manager, and no more can have a quota, \
                     a limit of unsafe bytes, a reservation, a mode or a trigger of their own, or be recorded: wait until \
                     one has ended, or run it without those options"
                );
                return if plain { Ok(Begun::Job(None)) } else { Err(many) };
            }
            Some(_) | None if signals::early().is_some() => return Ok(Begun::Signalled),
            Some(_) | None => {}
        }
    }
}

/// Runs a command with its files buffered, of which `tracer` collects what it does.
pub fn run(arguments: &RunArguments, mut tracer: Option<&mut Tracer>) -> Result<ExitCode, String> {
    let (mut config, mut runtime) = arguments.instance.runtime()?;
    arguments.group.take(&mut config, &runtime)?;
    let library = find_library()?;
    refuse_other_layout(&library)?;
    let ways = config.ways.or_chosen()?;
    let limits = Limits::of(arguments, &config)?;
    manager::drain_orphans(&config, &runtime)?;
    let mut report = Collector::of(arguments.report.as_deref(), &arguments.command)?;
    let mut trace = arguments.trace.as_deref().map(Movements::to).transpose()?;
    match (&mut tracer, &arguments.trace) {
        (Some(tracer), Some(path)) => tracer.read_from(path)?,
        (Some(tracer), None) => trace = Some(tracer.movements()?),
        (None, Some(path)) => report.read_from(path)?,
        (None, None) if report.is_asked_for() => trace = Some(report.movements()?),
        (None, None) => {}
    }
    let trace = trace.as_ref();
    let follow = |path: &PathBuf| Followed::of(path, config.bucket_size());
    let followed = arguments.follow.as_ref().map(follow).transpose()?;
    let memory = arguments.memory(tracer.is_some())?;
    let record = |path: &PathBuf| memory.as_ref().map(|memory| Recorder::to(path, memory));
    let recorder = arguments.record.as_ref().and_then(record).transpose()?;
    let recording = memory.as_ref().map_or(0, |memory| memory.as_raw_fd() as u32 + 1);
    let following = followed.as_ref().map_or(0, Followed::number);
    if recording > u16::MAX.into() || following > FOLLOWS >> 16 {
        return Err("--record, --follow: too many files are open; close some before".to_owned());
    }
    let memories = recording | following << 16;
    // From here on there may be a node manager of ours.
    signals::install()?;
    let joined = manager::join(&config, &mut runtime);
    if let Some(signal) = signals::early() {
        return Ok(end_before_start(signal, joined.ok(), None, &runtime));
    }
    let (mut connection, joined) = joined?;
    trace.map_or(Ok(()), |trace| trace.begin(&connection, &runtime))?;
    if arguments.instance.config.is_none() && matches!(joined, Joined::Started) {
        // A pool that was found goes on with its own tiers.
        let served = runtime.read_config().unwrap_or_else(|| config.clone());
        let found = if served.tiers == config.tiers { "" } else { " (found, of an earlier run)" };
        eprintln!("forebay: {}{found}", served.describe());
    }
    if !matches!(joined, Joined::Started)
        && let Ok(observer) = Observer::of(&runtime.pool)
    {
        // One that is started says it itself.
        observer.unbuffered().iter().for_each(|said| eprintln!("forebay: {said}"));
    }
    group::mention_other(&config, &runtime);
    let mut tries = 0;
    let job = loop {
        match begin(&connection, &runtime, arguments, &limits, memories)? {
            Begun::Job(job) => break job,
            Begun::Signalled => break None,
            Begun::Gone(_) if tries < STARTS => match rejoin(&config, &mut runtime, trace) {
                Err(_) if signals::early().is_some() => break None,
                joined => connection = joined?,
            },
            Begun::Gone(errno) => return Err(format!("the node manager is gone: {errno}")),
        }
        tries += 1;
    };
    if let Some(signal) = signals::early() {
        return Ok(end_before_start(signal, Some((connection, joined)), job, &runtime));
    }
    // Open until the end: the processes of the run map it when they begin.
    let is_on = Observer::of(&runtime.pool).is_ok_and(|observer| observer.reads_ahead());
    let not_followed = followed.as_ref().and_then(|followed| followed.describe_nothing(is_on));
    not_followed.iter().for_each(|why| eprintln!("forebay: {why}"));
    let before = Counts::now(&runtime);
    // By the clock of what is noted from now on, which lags behind others.
    let begun_ms = clock::realtime_coarse_ns() / 1_000_000;
    let mut aside = Aside::of(&config, &runtime);
    aside.tell_old();
    if let (Some(tracer), Some(memory)) = (&mut tracer, &memory) {
        let spans = Spans::of(memory).map_err(|error| format!("memory of the trace: {error}"))?;
        let spans = spans.ok_or("memory of the trace: it wants no spans")?;
        tracer.begin(spans, &config, &runtime);
    }
    report.begin(&config, &runtime, job);
    let mut child = match spawn(&arguments.command, (&library, &ways), &runtime, job) {
        Ok(child) => child,
        Err(error) => {
            // As shells have it: 127 for a command that is not there, 126 for one that cannot run.
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            if let Some(tracer) = &mut tracer {
                tracer.give_up();
            }
            let name = Path::new(&arguments.command[0]).display();
            let hint = match arguments.names_report_as_command() {
                true => format!(" (to write the report there, say --report={name})"),
                false => String::new(),
            };
            eprintln!("forebay: {name}: {error}{hint}");
            return Ok(ExitCode::from(if missing { 127 } else { 126 }));
        }
    };
    signals::attend(child.id());
    let is_told = arguments.verbose || std::io::stderr().is_terminal();
    let keep = Keep::of(arguments.keep, &config, is_told);
    keep.ask(&connection);
    let mut beginning = Beginning::of(&config);
    let watched = Watched {
        trace,
        keep,
        tracer: tracer.as_deref_mut(),
        beginning: &mut beginning,
        report: &mut report,
    };
    let status = attend(&mut child, &config, &mut runtime, &mut connection, watched)?;
    let code = exit_code(status);
    let ended = Instant::now();
    report.end(&runtime, code);
    let code = ExitCode::from(code);
    if let Some(tracer) = &mut tracer {
        tracer.end(&runtime);
    }
    recorder.map_or(Ok(()), |recorder| recorder.write())?;
    if let (Some(followed), Some(number), None) = (&followed, job, &not_followed)
        && Observer::of(&runtime.pool).is_ok_and(|observer| !observer.follows(number))
    {
        eprintln!("forebay: {}", followed.describe_unmet());
    }
    for _ in 0..STARTS {
        if let Some(number) = job {
            // One that is gone is noticed by the drain.
            let _ = connection.send(Message::EndJob { number });
        }
        let mut may_leave = may_leave(&runtime);
        let look = |progress: &Progress| {
            if let Some(tracer) = &mut tracer {
                tracer.look(&runtime);
            }
            report.look(&runtime);
            may_leave(progress)
        };
        let drained = drain::drain_unless(&connection, &runtime, look)?;
        drop(may_leave);
        let drained = match drained {
            Ok(drained) => drained,
            Err(signal) => {
                let left = describe_left(&runtime);
                eprintln!("forebay: {left}");
                let counts = (&before, &Counts::now(&runtime));
                report.finish(&runtime, &Outcome::Left(left), counts);
                return Ok(signals::ended_by(signal));
            }
        };
        match drained {
            Drained::All => {
                if let Some(tracer) = &mut tracer {
                    tracer.look(&runtime);
                }
                beginning.end(&runtime);
                mention_processes(&runtime, job, keep);
                aside.tell_new();
                let now = Counts::now(&runtime);
                let nothing = now.describe_nothing(&before, &config);
                let summary = is_told && nothing.is_none();
                if let Some(why) = now.describe_unmarked(&before).or(nothing) {
                    eprintln!("forebay: {why}");
                }
                if let Some(unadapted) = now.describe_unadapted(&before) {
                    eprintln!("forebay: {unadapted}");
                }
                if let Some(datasets) = now.describe_datasets(&before) {
                    eprintln!("forebay: {datasets}");
                }
                if let Some(conflicts) = now.describe_conflicts(&before, (&runtime, &config)) {
                    eprintln!("forebay: {conflicts}");
                }
                if let Some(actions) = analyse::report(&runtime, begun_ms) {
                    eprintln!("forebay: {actions}");
                }
                if summary {
                    eprintln!("forebay: {}", now.describe(&before, ended.elapsed()));
                }
                if let Some(stays) = keep.describe(&runtime).filter(|_| is_told) {
                    eprintln!("forebay: {stays}");
                }
                report.finish(&runtime, &Outcome::Drained, (&before, &now));
                return Ok(code);
            }
            Drained::Kept(files) => {
                aside.tell_new();
                if let Some(actions) = analyse::report(&runtime, begun_ms) {
                    eprintln!("forebay: {actions}");
                }
                let kept = drain::describe(&runtime, &files);
                eprintln!("forebay: {kept}");
                let counts = (&before, &Counts::now(&runtime));
                report.finish(&runtime, &Outcome::Kept(kept), counts);
                return Ok(ExitCode::from(crate::FAILED));
            }
            // A new manager finds everything in the pool.
            Drained::Lost => {
                connection = rejoin(&config, &mut runtime, trace)?;
                keep.ask(&connection);
            }
        }
    }
    Err(format!("node managers end again and again; see {}", runtime.readable_log().display()))
}

/// Ends a run that a signal has ended before its command was started: a node manager of its own has
/// ended then, too, or ends when it has started, unless it has what an earlier run left, or others
/// have joined it.
fn end_before_start(
    signal: i32,
    joined: Option<(Connection, Joined)>,
    job: Option<u32>,
    runtime: &Runtime,
) -> ExitCode {
    // Another one ends the wait.
    signals::command_ended();
    if let Some((connection, joined)) = joined {
        if let Some(number) = job {
            let _ = connection.send(Message::EndJob { number });
        }
        drop(connection);
        if matches!(joined, Joined::Started) {
            manager::await_leftover(runtime);
            if Observer::of(&runtime.pool).is_ok_and(|observer| observer.dirty() > 0) {
                eprintln!("forebay: {}", describe_left(runtime));
            }
        }
    }
    signals::ended_by(signal)
}

/// What is not yet on the store, which process goes on with it, and how to watch that.
fn describe_left(runtime: &Runtime) -> String {
    let Ok(observer) = Observer::of(&runtime.pool) else {
        return "the node manager has just ended".to_owned();
    };
    let (left, manager) = (observer.files(), observer.manager());
    let path = match &left[..] {
        [only] => shown(&only.path),
        _ => observer.stores().join(" "),
    };
    format!(
        "{} of {} not yet on the backing store; node manager {manager} goes on in the background. \
         `forebay status` shows it, `forebay wait {path}` waits for it",
        text::bytes(observer.dirty()),
        counted(left.len(), "file are", "files are")
    )
}

/// The signal that leaves the drain to the node manager, once it has come. The first interrupt only
/// says what a second one does.
fn may_leave(runtime: &Runtime) -> impl FnMut(&Progress) -> Option<i32> {
    let mut told = false;
    move |progress| {
        let signal = signals::to_leave();
        if signal.is_none() && signals::is_interrupted() && !told {
            told = true;
            progress
                .tell(&format!("{}; interrupt again to leave it to that", describe_left(runtime)));
        }
        signal
    }
}

/// Processes that the command left behind keep their node manager. Those of other runs are for
/// these to mention; a run without a job mentions those of all runs that have none.
fn mention_processes(runtime: &Runtime, job: Option<u32>, keep: Keep) {
    /// Those that are ending right now are not worth a line, nor more time than they take.
    const ENDING: Duration = Duration::from_millis(250);
    let Ok(observer) = Observer::of(&runtime.pool) else { return };
    let left = || observer.processes_of(job.unwrap_or(0));
    let since = Instant::now();
    for pid in left() {
        task::await_end(pid, ENDING.saturating_sub(since.elapsed()));
    }
    let left = left().len();
    if left > 0 {
        let ends = match ends_with_runs(runtime) && !keep.is_asked() {
            true => " and ends after that",
            false => "",
        };
        eprintln!(
            "forebay: {} the buffered files; the node manager drains what is written{ends}",
            counted(left, "process still uses", "processes still use")
        );
    }
}

fn rejoin(
    config: &Config,
    runtime: &mut Runtime,
    trace: Option<&Movements>,
) -> Result<Connection, String> {
    eprintln!("forebay: the node manager is gone; starting another");
    let (connection, _) = manager::join(config, runtime)?;
    trace.map_or(Ok(()), |trace| trace.begin(&connection, runtime))?;
    Ok(connection)
}

fn spawn(
    words: &[OsString],
    (library, ways): (&Path, &Ways),
    runtime: &Runtime,
    job: Option<u32>,
) -> std::io::Result<Child> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    join_pool(&mut command, (library, ways), runtime, job);
    command.spawn()
}

/// What is looked at while the command runs.
struct Watched<'a> {
    trace: Option<&'a Movements>,
    keep: Keep,
    tracer: Option<&'a mut Tracer>,
    beginning: &'a mut Beginning,
    report: &'a mut Collector,
}

/// Waits for the command, and replaces a manager that dies.
fn attend(
    child: &mut Child,
    config: &Config,
    runtime: &mut Runtime,
    connection: &mut Connection,
    mut watched: Watched<'_>,
) -> Result<ExitStatus, String> {
    let every = watched.tracer.as_ref().map_or(Duration::from_millis(200), |_| LOOK_EVERY);
    let (ended, wait) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            await_end(child.id());
            signals::command_ended();
            ended.send(child.wait())
        });
        loop {
            match wait.recv_timeout(every) {
                Ok(status) => {
                    return status.map_err(|error| format!("waiting for the command: {error}"));
                }
                Err(_) if connection.receive(Duration::ZERO).is_err() => {
                    // Without one the command goes on, more slowly.
                    if let Ok(new) = rejoin(config, runtime, watched.trace) {
                        watched.keep.ask(&new);
                        *connection = new;
                    }
                }
                Err(_) => {
                    watched.beginning.look(runtime);
                    watched.report.look(runtime);
                    if let Some(tracer) = &mut watched.tracer {
                        tracer.look(runtime);
                    }
                }
            }
        }
    })
}

/// Waits until a child has ended, and leaves it to be waited for: until then no other process has
/// its id.
pub fn await_end(child: u32) {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(child as i32) else { return };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
}

/// The command's own status; 128 + signal if a signal ended it, as shells have it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
