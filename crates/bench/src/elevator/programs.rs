//! Figures 6 and 7: a program of many steps, in all ways.

use super::{Bench, Devices, ONE_MACHINE, System, ratio, rounds};
use crate::measured::{Claim, Measured, Unit};
use crate::paper::{self, Printed};
use crate::science::Work;
use crate::site::Site;
use crate::{Options, Scale};

const ROUNDS: u32 = 3;
const SYSTEMS: [System; 3] = [System::Direct, System::Command, System::Api];

/// A figure.
pub(super) struct Figure {
    pub name: &'static str,
    pub title: &'static str,
    pub cases: Vec<(String, Work)>,
    /// Of the three others over Data Elevator, the means of all cases.
    pub printed: [Printed; 3],
}

/// What a paper says of the three others, measured here.
pub(super) const fn printed(names: [&'static str; 3], values: [f64; 3]) -> [Printed; 3] {
    [
        Printed::times(names[0], values[0], STORE_SLOWER, STORE_FASTER),
        Printed::times(names[1], values[1], ONE_MACHINE, COMMAND_FASTER),
        Printed::times(names[2], values[2], ONE_MACHINE, API_FASTER),
    ]
}

/// The same of the model.
pub(super) const fn modelled(names: [&'static str; 3], values: [f64; 3]) -> [Printed; 3] {
    [
        Printed::times(names[0], values[0], MODEL_ABOVE, MODEL_STORE),
        Printed::times(names[1], values[1], MODEL_ABOVE, MODEL_BELOW),
        Printed::times(names[2], values[2], MODEL_ABOVE, MODEL_API),
    ]
}

const STORE_SLOWER: &str = "more of the movement is hidden behind computing here";
const STORE_FASTER: &str = "the store is as fast for the program as for movers here; in the paper few \
    nodes write to it with collective I/O";
const COMMAND_FASTER: &str = "little is computed, so that little is hidden, and one mover keeps the \
    store nearly as busy as four do";
const API_FASTER: &str = "the servers' contention that slows DataWarp down in the paper is not \
    emulated on one machine; see the model";
const MODEL_ABOVE: &str =
    "servers give less to the store in the model, or lose more while they do both";
const MODEL_BELOW: &str = "servers give more to the store in the model";
const MODEL_STORE: &str = "programs and movers give as much to the store from a node in the model, so \
    that only requests that are no stripes make the store slower";
const MODEL_API: &str = "servers lose less in the model while they do both; see the sweep";

fn execution(case: &str) -> String {
    format!("{case}: end to end")
}

fn movement(case: &str) -> String {
    format!("{case}: data movement")
}

/// Runs a figure.
pub(super) fn run(
    figure: &Figure,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Measured, String> {
    let scale = options.scale;
    let site = Site::new(options)?;
    let bench = Bench::new(options, &site)?;
    let is_small = scale == Scale::Small;
    let rounds_ = scale.of(ROUNDS, 1);
    let mut measured = Measured::new(figure.name, figure.title, rounds_, is_small);
    measured.is_drawn = false;
    bench.science.note(&mut measured);
    rounds(options, &mut measured, |measured, round| {
        for (case, work) in &figure.cases {
            for system in System::ALL {
                say(&format!("round {round}: {case}, {}", system.name()));
                let ran = bench.run(system, &Devices::new(scale, 2), work)?;
                let name = system.name();
                measured.add(&execution(case), name, Unit::Time, ran.all_s());
                measured.add(&movement(case), name, Unit::Time, ran.movement_s(work));
            }
        }
        Ok(())
    })?;
    let strategy = System::Strategy.name();
    for (other, printed) in SYSTEMS.into_iter().zip(&figure.printed) {
        let of_case = |(case, _): &(String, Work)| {
            let work = movement(case);
            ratio(&measured, (&work, other.name()), (&work, strategy))
        };
        let ratios: Option<Vec<f64>> = figure.cases.iter().map(of_case).collect();
        let mean = ratios.map(|all| all.iter().sum::<f64>() / all.len().max(1) as f64);
        paper::note(&mut measured, printed, mean);
    }
    measured.claims = figure.cases.iter().flat_map(|(case, _)| claims(case, figure)).collect();
    Ok(measured)
}

/// Forebay, as it is without a rule, is at least as fast as each other way; staged files as those
/// that are moved at the end.
fn claims(case: &str, figure: &Figure) -> Vec<Claim> {
    let work = movement(case);
    let ours = System::Async.name();
    let others = [System::Direct, System::Command, System::Api, System::Strategy];
    let papers = figure.printed.iter().map(|printed| Some(printed.value)).chain([None]);
    let claim = |(other, paper): (System, Option<f64>)| {
        let claim = Claim::ratio(&work, (&work, other.name()), (&work, ours), 1.0);
        Claim { paper, ..claim }
    };
    others.into_iter().zip(papers).map(claim).collect()
}
