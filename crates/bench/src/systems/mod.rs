//! What the paper compares, one file each.

pub mod data_elevator;
pub mod datawarp;
pub mod forebay;
pub mod no_buffering;

use crate::hierarchy::Hierarchy;
use crate::stage::When;

/// A way to run a program on the emulated devices.
pub struct System {
    /// As in tables.
    pub name: &'static str,
    /// The configuration file that emulates the devices; for a workload whose files are scratch
    /// data, nothing is flushed while the program runs.
    pub config: fn(&Hierarchy, scratch: bool) -> String,
    /// The directory that the program is given.
    pub target: &'static str,
    /// Whether anything is left to be flushed when the program ends.
    pub flushes: bool,
    /// When its files are moved from there to the store, where somebody other than Forebay does it.
    pub stage: Option<When>,
}

/// The store and the burst buffer, each as slow as it is, and neither buffered: what the staging
/// systems have.
fn staging(hierarchy: &Hierarchy, _scratch: bool) -> String {
    hierarchy.store("bypass") + &hierarchy.burst_buffer_directory() + &hierarchy.no_tiers()
}
