//! Figure 8: alternating compute and I/O, with three ratios of computing to I/O.
//!
//! A thousandth of what a node does in `forebay simulate hermes-fig8`: MiB for GiB, ms for s. The
//! store takes 91 ms for the 2 MiB of a step; computing takes 1, 12 and 30 ms. `docs/simulator.md`
//! derives these times: beyond 91 ms all is flushed in time, and every policy finds RAM empty.

use super::*;
use crate::systems::{data_elevator, datawarp, forebay, no_buffering};

pub const FIGURE: Figure = Figure {
    name: "hermes-fig8",
    title: "Hermes, Figure 8: alternating compute and I/O",
    program: ("alternating", include_str!("../../kernels/alternating.c")),
    scratch: false,
    paper_gib: 32,
    cases: |scale| {
        let case = |name, compute_us| Case {
            name,
            ranks: 2,
            steps: scale.of(16, 4),
            amount: scale.of(1 << 20, 1 << 19),
            unit: 1,
            header: 0,
            last: compute_us,
        };
        vec![
            case("data-intensive", 1_000),
            case("balanced", 12_000),
            case("compute-intensive", 30_000),
        ]
    },
    systems: &[
        &no_buffering::SYSTEM,
        &data_elevator::SYSTEM,
        &datawarp::SYSTEM,
        &forebay::MAX_BANDWIDTH,
        &forebay::MAX_LOCALITY,
    ],
    steady: &[NO_BUFFERING, DATAWARP],
    claims: &[
        claim(0, NO_BUFFERING, MAX_BANDWIDTH, 8.0),
        claim(0, DATA_ELEVATOR, MAX_BANDWIDTH, 2.0),
        claim(0, DATAWARP, MAX_BANDWIDTH, 2.0),
        claim(2, NO_BUFFERING, MAX_BANDWIDTH, 8.0),
        claim(2, DATA_ELEVATOR, MAX_BANDWIDTH, 2.0),
        claim(2, DATAWARP, MAX_BANDWIDTH, 2.0),
        claim(2, MAX_LOCALITY, MAX_BANDWIDTH, 4.0),
        claim(0, MAX_LOCALITY, MAX_BANDWIDTH, 1.0),
    ],
};

const fn claim(case: usize, of: &'static str, over: &'static str, paper: f64) -> Claim {
    Claim { measure: Measure::Write, case, of, over, paper }
}
