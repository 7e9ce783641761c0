//! Data Elevator's strategy (HiPC'16): the program's files are redirected to the burst buffer as a
//! whole; when a file has been closed, movers copy it to the store while the program goes on.
//!
//! Here the program is given a directory on the emulated burst buffer itself, so redirection costs
//! nothing. The movers are `forebay bench-worker`: several threads, so that reading the burst
//! buffer and writing the store overlap, in pieces of 1 MiB, on the same emulated devices as the
//! other systems.

use super::{System, staging};
use crate::stage::When;

pub const SYSTEM: System = System {
    name: "Data Elevator's strategy",
    config: staging,
    target: "bb",
    flushes: true,
    stage: Some(When::Close),
};
