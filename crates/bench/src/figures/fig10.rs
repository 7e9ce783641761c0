//! Figure 10: VPIC-IO, 16 steps, a file with 8 variables of particles in each.
//!
//! Computing takes 20 ms a step: what Data Elevator hides in the paper and DataWarp does not,
//! (1274 - 1115) s / 16 = 10 s, for 32 GiB of a node, 64 MiB here.

use super::*;
use crate::systems::{data_elevator, datawarp, forebay, no_buffering};

pub const FIGURE: Figure = Figure {
    name: "hermes-fig10",
    title: "Hermes, Figure 10: VPIC-IO",
    program: ("vpic", include_str!("../../kernels/vpic.c")),
    scratch: false,
    paper_gib: 32,
    cases: |scale| {
        vec![Case {
            name: "16 steps",
            ranks: 2,
            steps: scale.of(16, 4),
            amount: scale.of(65_536, 16_384),
            unit: 8 * 4,
            header: 4096,
            last: 20_000,
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
        claim(Measure::Write, NO_BUFFERING, 5.0),
        claim(Measure::Write, DATA_ELEVATOR, 2.0),
        claim(Measure::Write, DATAWARP, 2.0),
        claim(Measure::Flush, DATA_ELEVATOR, 1115.0 / 637.0),
        claim(Measure::Flush, DATAWARP, 1274.0 / 637.0),
    ],
};

const fn claim(measure: Measure, of: &'static str, paper: f64) -> Claim {
    Claim { measure, case: 0, of, over: MAX_BANDWIDTH, paper }
}
