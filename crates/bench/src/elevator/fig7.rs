//! Figure 7: CAMR, 10 checkpoints of 20 steps, weak scaling (Table I), with Chombo-IO's requests.
//!
//! A GB of the paper is a 32nd of a MiB; the program computes between checkpoints for twice as long
//! as the store takes for the smallest one: the paper says that it computes more than VPIC, and
//! shows that movement is hidden.

use super::{COMPARES, STORE, chombo, modelled, programs};
use crate::measured::Measured;
use crate::paper::{self, Printed};
use crate::{Options, Scale};
use forebay_simulator::staging::{Job, Machine};

const CHECKPOINTS: u32 = 10;
/// Cores, and GB of a checkpoint.
const TABLE: [(u32, u64); 4] = [(1024, 43), (2048, 170), (4096, 680), (8192, 2700)];

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let scale = options.scale;
    let case = |(cores, gb): (u32, u64)| {
        let bytes = (gb << 20) / 32;
        let compute_us = 2 * bytes * 1_000_000 / STORE;
        (format!("{cores} cores"), chombo(2, scale.of(CHECKPOINTS, 2), bytes, compute_us))
    };
    let cases: Vec<_> = TABLE[..scale.of(TABLE.len(), 1)].iter().copied().map(case).collect();
    let least = cases[0].1.compute_us;
    let cases = cases.into_iter().map(|(name, mut work)| {
        work.compute_us = least * scale.of(1, 0);
        (name, work)
    });
    let figure = programs::Figure {
        name: "data-elevator-fig7",
        title: "Data Elevator, Figure 7: CAMR, 10 checkpoints, weak scaling",
        cases: cases.collect(),
        printed: PRINTED,
    };
    let mut measured = programs::run(&figure, options, say)?;
    let jobs: Vec<(String, Job)> = TABLE.into_iter().map(job).collect();
    modelled::add_movement(&mut measured, "7b", &jobs, &MODELLED);
    let largest = modelled::movement(&Machine::cori(), &jobs[3].1);
    paper::note(&mut measured, &LARGEST, Some(largest[2].1 / largest[3].1));
    measured.notes.push(COMPARES.to_owned());
    if scale == Scale::Usual {
        let note = "The largest case fills what the store takes while the program computes several \
            times, as in the paper.";
        measured.notes.push(note.to_owned());
    }
    Ok(measured)
}

/// The paper's: 32 cores a node. What is computed is assumed: a minute between checkpoints.
fn job((processes, gb): (u32, u64)) -> (String, Job) {
    let job = Job {
        nodes: processes / 32,
        processes,
        steps: CHECKPOINTS,
        bytes: gb * 1_000_000_000,
        compute_ns: 60_000_000_000,
    };
    (format!("{processes} cores"), job)
}

const PRINTED: [Printed; 3] = programs::printed(
    [
        "7b, measured: store over Data Elevator's strategy",
        "7b, measured: DataWarp command over Data Elevator's strategy",
        "7b, measured: DataWarp API over Data Elevator's strategy",
    ],
    [4.0, 1.2, 3.3],
);
const MODELLED: [Printed; 3] = programs::modelled(
    [
        "7b, model: store over Data Elevator",
        "7b, model: DataWarp command over Data Elevator",
        "7b, model: DataWarp API over Data Elevator",
    ],
    [4.0, 1.2, 3.3],
);
const LARGEST: Printed = Printed::times(
    "7b, model: DataWarp API over Data Elevator, 8192 cores",
    6.7,
    "servers lose more in the model while they take new files and move others",
    "servers lose less in the model; see the sweep",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_one_doubles_cores_and_quadruples_files() {
        for pair in TABLE.windows(2) {
            assert_eq!(pair[1].0, 2 * pair[0].0);
            let factor = pair[1].1 as f64 / pair[0].1 as f64;
            assert!((factor - 4.0).abs() < 0.1, "{factor}");
        }
    }
}
