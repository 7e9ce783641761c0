//! `forebay simulate`: a modelled cluster on a virtual clock.

mod chart;
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

/// Scenarios that come with the command, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("hermes-fig8", include_str!("simulate/scenarios/hermes-fig8.toml")),
    ("hermes-fig9", include_str!("simulate/scenarios/hermes-fig9.toml")),
    ("hermes-fig10", include_str!("simulate/scenarios/hermes-fig10.toml")),
    ("hermes-fig11", include_str!("simulate/scenarios/hermes-fig11.toml")),
    ("scale-10000", include_str!("simulate/scenarios/scale-10000.toml")),
];

/// What to simulate, and how to show it.
#[derive(Args)]
pub struct SimulateArguments {
    /// A scenario file (TOML, see docs/simulator.md), or hermes-fig8, hermes-fig9, hermes-fig10,
    /// hermes-fig11 or scale-10000
    scenario: String,
    /// Print all numbers as JSON
    #[arg(long)]
    json: bool,
    /// Draw the figure
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// What random choices follow from, instead of the scenario's own seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print the scenario instead of running it: a start for one's own
    #[arg(long, conflicts_with_all = ["json", "svg", "seed"])]
    show: bool,
}

fn builtin_names() -> String {
    BUILT_IN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Runs every case of a scenario with every strategy.
pub fn simulate(arguments: &SimulateArguments) -> Result<ExitCode, String> {
    let built_in = BUILT_IN.iter().find(|(name, _)| *name == arguments.scenario);
    if arguments.show {
        let text = match built_in {
            Some((_, text)) => (*text).to_owned(),
            None => fs::read_to_string(&arguments.scenario)
                .map_err(|e| format!("{}: cannot be read: {e}", arguments.scenario))?,
        };
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut scenario = match built_in {
        Some((name, text)) => Scenario::parse(name, text, Path::new("."))?,
        None => Scenario::load(Path::new(&arguments.scenario))?,
    };
    scenario.seed = arguments.seed.unwrap_or(scenario.seed);
    let outcomes = outcomes(&scenario);
    match arguments.json {
        true => print!("{}", report::json(&scenario, &outcomes)),
        false => print!("{}", report::table(&scenario, &outcomes)),
    }
    if let Some(file) = &arguments.svg {
        chart::draw(file, &scenario, &outcomes)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The outcome of each strategy in each case. Runs are independent of each other, so they share the
/// processors, and it does not matter in which order they end.
fn outcomes(scenario: &Scenario) -> Vec<Vec<Outcome>> {
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
            let outcome = run(scenario.run(number / strategies, number % strategies));
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
