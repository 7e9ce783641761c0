//! Figure 9: repetitive reads of scratch data. In each phase a rank writes a file and reads as many
//! bytes: all of a file once, a quarter of one 4 times, or a sixteenth 16 times.

use super::*;
use crate::systems::{data_elevator, datawarp, forebay, no_buffering};

pub const FIGURE: Figure = Figure {
    name: "hermes-fig9",
    title: "Hermes, Figure 9: repetitive reads",
    program: ("repetitive", include_str!("../../kernels/repetitive.c")),
    scratch: true,
    paper_gib: 16,
    cases: |scale| {
        let case = |name, repeats| Case {
            name,
            ranks: 2,
            steps: 4,
            amount: scale.of(8 << 20, 1 << 19),
            unit: 1,
            header: 0,
            last: repeats,
        };
        vec![case("read once", 1), case("read x4", 4), case("read x16", 16)]
    },
    systems: &[
        &no_buffering::SYSTEM,
        &data_elevator::SYSTEM,
        &datawarp::SYSTEM,
        &forebay::MAX_BANDWIDTH,
        &forebay::HOT_DATA,
    ],
    steady: &[NO_BUFFERING, DATA_ELEVATOR, DATAWARP],
    claims: &[
        claim(NO_BUFFERING, HOT_DATA, 38.0),
        claim(DATA_ELEVATOR, HOT_DATA, 11.0),
        claim(DATAWARP, HOT_DATA, 11.0),
    ],
};

const fn claim(of: &'static str, over: &'static str, paper: f64) -> Claim {
    Claim { measure: Measure::Read, case: 2, of, over, paper }
}
