//! The baseline: the program reads and writes the emulated store directly. Forebay only makes it
//! wait as long as the device would take (`mode = "bypass"`).

use super::System;

pub const SYSTEM: System = System {
    name: "no buffering",
    config: |hierarchy, _| hierarchy.store("bypass") + &hierarchy.no_tiers(),
    target: "pfs",
    flushes: false,
    stage: None,
};
