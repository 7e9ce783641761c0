//! Figure 6: VPIC, 20 steps of 88 GB each, on more and more cores with as many particles.
//!
//! A GB of the paper is a quarter of a MiB; steps compute for 20 ms, as the paper says that little
//! is computed and not how much.

use super::{COMPARES, modelled, programs, vpic};
use crate::Options;
use crate::measured::Measured;
use crate::paper::Printed;
use forebay_simulator::staging::Job;

const STEPS: u32 = 20;
const STEP_GB: u64 = 88;
const COMPUTE_US: u64 = 20_000;

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let scale = options.scale;
    let bytes = (STEP_GB << 20) / scale.of(4, 64);
    let steps = scale.of(STEPS, 2);
    let cases = [1, 2, 4].map(|ranks| {
        let name = format!("{ranks} ranks");
        (name, vpic(ranks, steps, bytes, COMPUTE_US))
    });
    let figure = programs::Figure {
        name: "data-elevator-fig6",
        title: "Data Elevator, Figure 6: VPIC, 20 steps, strong scaling",
        cases: cases[..scale.of(3, 1)].to_vec(),
        printed: PRINTED,
    };
    let mut measured = programs::run(&figure, options, say)?;
    let jobs: Vec<(String, Job)> = [1024, 2048, 4096, 8192].into_iter().map(job).collect();
    modelled::add_movement(&mut measured, "6b", &jobs, &MODELLED);
    measured.notes.push(COMPARES.to_owned());
    Ok(measured)
}

/// The paper's: 32 cores a node.
fn job(processes: u32) -> (String, Job) {
    let bytes = STEP_GB * 1_000_000_000;
    let job = Job { nodes: processes / 32, processes, steps: STEPS, bytes, compute_ns: 0 };
    (format!("{processes} cores"), job)
}

const PRINTED: [Printed; 3] = programs::printed(
    [
        "6b, measured: store over Data Elevator's strategy",
        "6b, measured: DataWarp command over Data Elevator's strategy",
        "6b, measured: DataWarp API over Data Elevator's strategy",
    ],
    [1.7, 1.8, 4.2],
);
const MODELLED: [Printed; 3] = programs::modelled(
    [
        "6b, model: store over Data Elevator",
        "6b, model: DataWarp command over Data Elevator",
        "6b, model: DataWarp API over Data Elevator",
    ],
    [1.7, 1.8, 4.2],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_steps_are_what_the_paper_says() {
        let (_, job) = job(1024);
        assert_eq!(job.nodes, 32);
        let terabytes = (u64::from(job.steps) * job.bytes) as f64 / 1e12;
        assert!((terabytes - 1.7).abs() < 0.1, "{terabytes}");
    }
}
