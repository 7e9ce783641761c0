//! `forebay torture`: programs that verify every byte, on small tiers over a store that fails,
//! while programs, node managers, and now and then everything, are killed, paused, stopped and
//! started.

mod aims;
mod conductor;
mod content;
mod counts;
mod faults;
mod goals;
mod history;
mod hits;
mod keeper;
mod lists;
mod log;
mod model;
mod operations;
mod orphan;
mod other_user;
mod pairs;
mod place;
mod player;
mod points;
mod report;
mod rounds;
mod scenario;
mod script;
mod shadow;
mod system;
mod trouble;
mod verdict;
mod worker;
mod workload;

pub use worker::WorkerArguments;

use clap::Args;
use counts::WordsFile;
use forebay_placement::Random;
use goals::Goals;
use lists::Slice;
use place::Place;
use report::Report;
use scenario::Scenario;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Workers end by themselves so long after the torture's time: if it was killed, nothing goes on.
const GRACE: Duration = Duration::from_secs(300);
/// The time of a torture that ends with its goals.
const FOREVER: Duration = Duration::from_secs(7 * 86_400);
/// No command may take longer than this; one that does hangs.
const WAIT_MAX: Duration = Duration::from_secs(180);
/// The log of all programs begins anew behind this many bytes.
const LOG_MAX: u64 = 256 << 10;
/// What a recovery says that found slots that a process was writing when it died. What was
/// acknowledged is on the store all the same, and nothing else can be told from it.
const DAMAGED: &str = "data of an earlier run is lost";

/// Options of `forebay torture`.
#[derive(Args)]
pub struct TortureArguments {
    /// How long, in minutes [default: 1; with goals, until they are reached]
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Where to make a temporary directory for store, tiers and programs [default: that for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Programs at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=shadow::SHARERS))]
    programs: u64,
    /// Leave out this kind of trouble, to find out what a loss comes from; can be given several
    /// times
    #[arg(long, value_name = "KIND")]
    without: Vec<Kind>,
    /// Repeats the choices of an earlier torture, though not its timing
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Begins with this round of the seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    round: u64,
    /// What to do [default: the mixture; with --release all of them]; can be given several times
    #[arg(long, value_name = "NAME")]
    scenario: Vec<Scenario>,
    /// Of the lists, only every N-th case, from the K-th on
    #[arg(long, value_name = "K/N", default_value = "1/1")]
    slice: Slice,
    /// Of a list, only the case of this number
    #[arg(long, value_name = "I", value_parser = clap::value_parser!(u64).range(1..))]
    case: Option<u64>,
    #[command(flatten)]
    goals: Goals,
}

/// What makes trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Kills of programs
    Workers,
    /// Kills of node managers
    Managers,
    /// Kills of everything at once
    Everything,
    /// Kills of everything, with the loss of what is in memory
    Memory,
    /// Processes that kill themselves at crash points
    Points,
    /// Threads that pause at crash points
    Pauses,
    /// Stopping processes by signals, and continuing them
    Freezes,
    /// Failures of the store
    Faults,
    /// Failures of the file tier
    Tiers,
    /// `forebay stop` under load
    Stops,
    /// Other commands under load
    Commands,
    /// Another user, who tries to read, to change and to block what is not its own
    Users,
}

/// What `torture-worker` is: a keeper, a program, or another user.
pub fn work(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    if arguments.other_user {
        other_user::lurk(arguments)
    } else if arguments.pour {
        Ok(worker::pour(arguments))
    } else if arguments.list.play.is_some() {
        conductor::play(arguments)
    } else if arguments.list.list.is_some() {
        conductor::conduct(arguments)
    } else if arguments.operations.is_some() {
        worker::work(arguments)
    } else {
        keeper::keep(arguments)
    }
}

/// `forebay torture`.
pub fn torture(arguments: &TortureArguments) -> Result<ExitCode, String> {
    let goals = arguments.goals.resolved();
    let time = match arguments.minutes {
        Some(minutes) if minutes > 0.0 && minutes < 1e6 => Duration::from_secs_f64(minutes * 60.0),
        Some(_) => return Err("--minutes: a number above 0".into()),
        None if goals.are_given() => FOREVER,
        None => Duration::from_secs(60),
    };
    if !points::BUILT && goals.pauses.is_some_and(|pauses| pauses > 0) {
        return Err("pauses need a build with debug assertions: run the same with `cargo run -p forebay -- \
                    torture`; or give --pauses 0"
            .into());
    }
    begin(arguments, goals, time)
}

fn by_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn begin(arguments: &TortureArguments, goals: Goals, time: Duration) -> Result<ExitCode, String> {
    let seed = arguments.seed.unwrap_or_else(|| by_clock().as_nanos() as u64 % 1_000_000_000);
    let interrupted = count_interruptions()?;
    let folder = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut without = arguments.without.clone();
    let mut report = Report { rounds: arguments.round, ..Report::default() };
    if !points::BUILT {
        without.extend([Kind::Pauses, Kind::Points]);
        let how = "this build has no debug assertions; `cargo run -p forebay -- torture` has";
        report.left_out.push(format!("pauses and points: {how}"));
    }
    if !without.contains(&Kind::Users) && !other_user::can_be() {
        without.push(Kind::Users);
        report.left_out.push("users: only root can become another one".into());
    }
    let given = arguments.without.iter();
    report.left_out.extend(given.map(|kind| format!("{kind:?}: by --without").to_lowercase()));
    let scenarios = match &arguments.scenario[..] {
        [] if goals.release => scenario::ALL.to_vec(),
        [] => vec![Scenario::Mixture],
        some => scenario::ALL.into_iter().filter(|one| some.contains(one)).collect(),
    };
    let has_lists = scenarios.iter().any(|scenario| scenario.cases().is_some());
    let lists = if has_lists { FOREVER } else { Duration::ZERO };
    let place = Place::new(&folder, !without.contains(&Kind::Users))?;
    eprintln!("forebay: torture with seed {seed} in {}", place.root().display());
    let mut torture = Torture {
        random: Random::new(seed),
        runs: (0..arguments.programs).map(|_| None).collect(),
        other_user: None,
        report,
        since: Instant::now(),
        mixed: Instant::now(),
        until: by_clock()
            .saturating_add(lists)
            .saturating_add(time)
            .saturating_add(GRACE)
            .as_secs(),
        scenarios,
        slice: arguments.slice,
        case: arguments.case,
        place,
        seed,
        time,
        goals,
        without,
        interrupted,
        last_manager: 0,
        crowded: 0,
        compared_at: 0,
        frozen: None,
        aim: None,
        named: 0,
    };
    let result = torture.run();
    let killed = torture.end();
    let Torture { report, place, since, interrupted, goals, scenarios, .. } = torture;
    if let Err(message) = result.and(killed) {
        println!("{}", report.text(seed, since.elapsed(), &goals));
        println!("  everything is left in {}", place.root().display());
        return Err(message);
    }
    print!("{}", report.text(seed, since.elapsed(), &goals));
    let interrupted = interrupted.load(Ordering::Acquire);
    if interrupted > 0 {
        println!(
            "  interrupted: {}",
            match interrupted {
                1 => "all files were compared with what the programs had written until then",
                _ => "twice: what was done since the last comparison was not compared",
            }
        );
    }
    if !report.losses.is_empty() {
        println!("  everything is left in {}", place.root().display());
        println!(
            "  again, with other timing: --seed {seed} --round {}",
            report.rounds.saturating_sub(1)
        );
        return Ok(ExitCode::FAILURE);
    }
    place.remove();
    // One that was cut short may not have come to look.
    if report.intercepted == 0 && interrupted == 0 {
        return Err("nothing was intercepted: the programs used the store directly".into());
    }
    let is_mixed = scenarios.iter().any(|scenario| scenario.cases().is_none());
    let is_reached = !is_mixed || goals.are_met(&report.reached());
    Ok(if is_reached && report.aimed.missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Counts SIGINT, SIGTERM and SIGHUP.
fn count_interruptions() -> Result<Arc<AtomicUsize>, String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let interrupted = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let count = Arc::clone(&interrupted);
        // SAFETY: it adds to a number.
        unsafe {
            signal_hook::low_level::register(signal, move || {
                count.fetch_add(1, Ordering::AcqRel);
            })
        }
        .map_err(|error| format!("setting up signals: {error}"))?;
    }
    Ok(interrupted)
}

struct Torture {
    place: Place,
    random: Random,
    /// `forebay run` of each worker.
    runs: Vec<Option<Child>>,
    other_user: Option<Child>,
    report: Report,
    seed: u64,
    time: Duration,
    goals: Goals,
    since: Instant,
    /// When the mixture began.
    mixed: Instant,
    until: u64,
    scenarios: Vec<Scenario>,
    slice: Slice,
    case: Option<u64>,
    without: Vec<Kind>,
    interrupted: Arc<AtomicUsize>,
    last_manager: u32,
    /// Writes that waited for room, or went around the tiers, at most in one pool.
    crowded: u64,
    /// Operations at the last comparison.
    compared_at: u64,
    /// A node manager that is stopped, and until when.
    frozen: Option<(u32, Instant)>,
    /// The case of the list of points that is being played.
    aim: Option<aims::Aim>,
    /// Points without a pause that are named on file.
    named: usize,
}

impl Torture {
    fn run(&mut self) -> Result<(), String> {
        for scenario in self.scenarios.clone() {
            if !self.is_over() {
                match scenario {
                    Scenario::Mixture => self.mixture(self.goals)?,
                    Scenario::FullTiers => self.full_tiers()?,
                    Scenario::Points => self.points()?,
                    list => self.list(list)?,
                }
            }
        }
        Ok(())
    }

    fn has_reached_all(&self) -> bool {
        self.goals.are_given() && self.goals.are_met(&self.report.reached())
    }

    fn may(&self, kind: Kind) -> bool {
        !self.without.contains(&kind)
    }

    fn is_over(&self) -> bool {
        self.has_lost() || self.is_interrupted()
    }

    fn has_lost(&self) -> bool {
        !self.report.losses.is_empty()
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) > 0
    }

    /// Whether to give up at once.
    fn is_urgent(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) > 1
    }

    fn workers(&self) -> std::ops::Range<u64> {
        0..self.runs.len() as u64
    }

    /// Runs a command to its end; its exit code, and what it said.
    fn command(&mut self, name: &str, words: &[&str]) -> Result<(Option<i32>, String), String> {
        let path = self.place.root().join(name);
        let _ = std::fs::remove_file(&path);
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let environment = self.of_aimed_managers().unwrap_or_default();
        let mut child = self.place.start(name, &words, &environment)?;
        let code = self.await_end(&mut child, Instant::now())?;
        let said = std::fs::read_to_string(path).unwrap_or_default();
        let last: Vec<_> = said.lines().rev().take(5).collect();
        if code.is_none() {
            self.report.losses.push(format!("{} hangs: {}", words.join(" "), last.join("; ")));
        }
        Ok((code, said))
    }

    /// Ends everything, whatever came of it.
    fn end(&mut self) -> Result<(), String> {
        self.thaw(true);
        let mut all: Vec<_> = self.runs.iter_mut().map(Option::take).collect();
        all.push(self.other_user.take());
        let killed = self.place.kill_all(&mut all);
        self.gather();
        self.gather_logs();
        killed
    }
}

fn explain(error: std::io::Error) -> String {
    format!("looking at the store: {error}")
}
