//! DataWarp's strategy: the job's files are on the burst buffer, and staged out to the store when
//! the job has ended.
//!
//! As with Data Elevator the program writes to the emulated burst buffer itself, and the same
//! movers do the copying, all files at once.

use super::{System, staging};
use crate::stage::When;

pub const SYSTEM: System = System {
    name: "DataWarp's strategy",
    config: staging,
    target: "bb",
    flushes: true,
    stage: Some(When::Exit),
};
