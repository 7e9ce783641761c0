//! Figure 11: HACC-IO, 16 steps, a shared file with 9 variables in each, read back after it was
//! written.
//!
//! Computing takes 52 ms a step: (985 - 773) s / 16 = 13 s for 16 GiB of a node, 64 MiB here.

use super::*;
use crate::systems::{data_elevator, datawarp, forebay, no_buffering};

pub const FIGURE: Figure = Figure {
    name: "hermes-fig11",
    title: "Hermes, Figure 11: HACC-IO",
    program: ("hacc", include_str!("../../kernels/hacc.c")),
    scratch: false,
    paper_gib: 16,
    cases: |scale| {
        vec![Case {
            name: "16 steps",
            ranks: 2,
            steps: scale.of(16, 4),
            amount: scale.of(55_184, 13_796),
            unit: 38,
            header: 0,
            last: 52_000,
        }]
    },
    systems: &[
        &no_buffering::SYSTEM,
        &data_elevator::SYSTEM,
        &datawarp::SYSTEM,
        &forebay::MAX_BANDWIDTH,
    ],
    steady: &[],
    claims: &[
        claim(Measure::Access, NO_BUFFERING, 7.5),
        claim(Measure::Access, DATA_ELEVATOR, 2.0),
        claim(Measure::Access, DATAWARP, 2.0),
        claim(Measure::Total, NO_BUFFERING, 1313.0 / 494.0),
        claim(Measure::Total, DATA_ELEVATOR, 773.0 / 494.0),
        claim(Measure::Total, DATAWARP, 985.0 / 494.0),
    ],
};

const fn claim(measure: Measure, of: &'static str, paper: f64) -> Claim {
    Claim { measure, case: 0, of, over: MAX_BANDWIDTH, paper }
}
