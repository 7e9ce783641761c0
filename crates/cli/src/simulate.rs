//! `forebay simulate`: a modelled cluster on a virtual clock.

mod chart;
mod group;
mod replay;
pub(crate) mod report;
mod scenario;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use clap::Args;
use forebay_simulator::{Outcome, simulate as run};

use scenario::Scenario;

/// A figure of the Hermes paper: what is run, and the machine, which is the same for all figures.
macro_rules! hermes {
    ($name:literal) => {
        concat!(
            include_str!(concat!("simulate/scenarios/", $name, ".toml")),
            include_str!("simulate/scenarios/hermes-machine.toml")
        )
    };
}

/// Scenarios that come with the command, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("hermes-fig8", hermes!("hermes-fig8")),
    ("hermes-fig9", hermes!("hermes-fig9")),
    ("hermes-fig10", hermes!("hermes-fig10")),
    ("hermes-fig11", hermes!("hermes-fig11")),
    ("scale-10000", include_str!("simulate/scenarios/scale-10000.toml")),
];

/// What to simulate, and how to show it.
#[derive(Args)]
pub struct SimulateArguments {
    /// A scenario file (TOML, see docs/simulator.md), or hermes-fig8, hermes-fig9, hermes-fig10,
    /// hermes-fig11 or scale-10000; or group: how nodes find out which of them live
    #[arg(required_unless_present = "replay")]
    scenario: Option<String>,
    /// Run again what `forebay run --record` has recorded, on a node of the --config, and show what
    /// moves between which tiers
    #[arg(long, value_name = "FILE", requires = "config",
          conflicts_with_all = ["scenario", "svg", "seed", "sweep", "show"])]
    replay: Option<PathBuf>,
    /// The configuration of the recorded run
    #[arg(long, value_name = "FILE", requires = "replay")]
    config: Option<PathBuf>,
    /// What moved in the recorded run (its --trace), to be shown beside
    #[arg(long, value_name = "FILE", requires = "replay")]
    trace: Option<PathBuf>,
    /// Print all numbers as JSON
    #[arg(long)]
    json: bool,
    /// Draw the figure
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// What random choices follow from, instead of the scenario's own seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run it with other values of each free parameter, and print the paper's numbers for each
    #[arg(long, conflicts_with_all = ["json", "svg"])]
    sweep: bool,
    /// Print the scenario instead of running it: a start for one's own
    #[arg(long, conflicts_with_all = ["json", "svg", "seed", "sweep"])]
    show: bool,
    #[command(flatten)]
    group: group::GroupArguments,
}

fn builtin_names() -> String {
    let names = BUILT_IN.iter().map(|(name, _)| *name).chain([group::NAME]);
    names.collect::<Vec<_>>().join(", ")
}

/// Runs every case of a scenario with every strategy.
pub fn simulate(arguments: &SimulateArguments) -> Result<ExitCode, String> {
    if let (Some(recording), Some(config)) = (&arguments.replay, &arguments.config) {
        replay::replay(recording, config, arguments.trace.as_deref(), arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let asked = arguments.scenario.as_deref().unwrap_or_default();
    if asked == group::NAME {
        let other = [("--svg", arguments.svg.is_some()), ("--sweep", arguments.sweep)];
        let other = other.into_iter().chain([("--show", arguments.show)]).find(|(_, given)| *given);
        if let Some((option, _)) = other {
            return Err(format!("{option}: the scenario {asked} has none; leave it out"));
        }
        return group::run(&arguments.group, arguments.seed.unwrap_or(1), arguments.json);
    }
    if let Some(option) = arguments.group.given() {
        return Err(format!("{option}: only the scenario {} has it; leave it out", group::NAME));
    }
    let built_in = BUILT_IN.iter().find(|(name, _)| *name == asked);
    if arguments.show {
        let text = match built_in {
            Some((_, text)) => (*text).to_owned(),
            None => {
                fs::read_to_string(asked).map_err(|e| format!("{asked}: cannot be read: {e}"))?
            }
        };
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut scenario = match built_in {
        Some((name, text)) => Scenario::parse(name, text, Path::new("."))?,
        None => Scenario::load(Path::new(asked))?,
    };
    scenario.seed = arguments.seed.unwrap_or(scenario.seed);
    if arguments.sweep {
        return sweep(&scenario);
    }
    let outcomes = outcomes(&scenario, |_, _| true);
    match arguments.json {
        true => print!("{}", report::json(&scenario, &outcomes)),
        false => print!("{}", report::table(&scenario, &outcomes)),
    }
    if let Some(file) = &arguments.svg {
        chart::draw(file, &scenario, &outcomes)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a scenario with each value of each free parameter, one parameter at a time.
fn sweep(scenario: &Scenario) -> Result<ExitCode, String> {
    if scenario.free.is_empty() {
        return Err(
            "the scenario has no free parameters; add [[free]], see docs/simulator.md".into()
        );
    }
    println!("{}\nIn force: *.", scenario.title);
    // Only what a number is of.
    let numbers = scenario.numbers();
    let is_of = |case: usize, strategy: usize| {
        numbers.iter().any(|number| {
            number.case == case && (number.of == strategy || number.over == Some(strategy))
        })
    };
    for free in &scenario.free {
        let run = |(number, value): (usize, &str)| {
            let mut changed = scenario.clone();
            free.apply(&mut changed, number);
            (value.to_owned(), free.is_in_force(scenario, number), outcomes(&changed, is_of))
        };
        let tried: Vec<_> = free.tries().enumerate().map(run).collect();
        print!("{}", report::swept(scenario, free, &tried));
    }
    Ok(ExitCode::SUCCESS)
}

/// The outcome of each strategy in each case, of those that are wanted. Runs are independent of
/// each other, so they share the processors, and it does not matter in which order they end.
fn outcomes(
    scenario: &Scenario,
    is_wanted: impl Fn(usize, usize) -> bool + Sync,
) -> Vec<Vec<Outcome>> {
    let strategies = scenario.strategies.len();
    let count = scenario.cases.len() * strategies;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![Outcome::default(); count]);
    let workers = thread::available_parallelism().map_or(1, |n| n.get()).min(count);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let (case, strategy) = (number / strategies, number % strategies);
            if !is_wanted(case, strategy) {
                continue;
            }
            let outcome = run(scenario.run(case, strategy));
            done.lock().expect("no run has panicked")[number] = outcome;
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let done = done.into_inner().expect("no run has panicked");
    done.chunks(strategies).map(<[Outcome]>::to_vec).collect()
}
