//! Forebay with each of the policies that the paper evaluates.

use super::System;
use crate::hierarchy::Hierarchy;

/// A second of the paper is a millisecond here, so Forebay's period of 1 s would be 1 ms; but then
/// blocks would be flushed while the next write to the same file is still under way.
const PERIOD: &str = "10ms";

pub const MAX_BANDWIDTH: System = System {
    name: "Forebay max-bandwidth",
    config: |hierarchy, scratch| config(hierarchy, scratch, "max-bandwidth"),
    target: "pfs",
    flushes: true,
    stage: None,
};

pub const MAX_LOCALITY: System = System {
    name: "Forebay max-locality",
    config: |hierarchy, scratch| config(hierarchy, scratch, "max-locality"),
    ..MAX_BANDWIDTH
};

pub const HOT_DATA: System = System {
    name: "Forebay hot-data",
    config: |hierarchy, scratch| config(hierarchy, scratch, "hot-data"),
    ..MAX_BANDWIDTH
};

fn config(hierarchy: &Hierarchy, scratch: bool, policy: &str) -> String {
    let trigger = if scratch { "on-exit" } else { "periodic" };
    format!(
        "[flush]\ntrigger = \"{trigger}\"\nperiod = \"{PERIOD}\"\n[placement]\npolicy = \"{policy}\"\n"
    ) + &hierarchy.store("buffered")
        + &hierarchy.tiers()
}
