//! A modelled cluster on a virtual clock, on which Forebay's own placement decisions are run.
//!
//! [`simulate`] takes a [`Run`] and returns its [`Outcome`]. Where data goes and what moves is
//! decided by `forebay-placement`, the code that the node manager runs; how long it takes is
//! decided by the [fluid model](fluid). See docs/design/simulator.md.

#![forbid(unsafe_code)]

mod blocks;
mod cluster;
mod faults;
pub mod fluid;
pub mod group;
pub mod leases;
mod machine;
mod manager;
mod organizer;
mod outcome;
mod scenario;
mod simulation;
pub mod staging;
mod strategy;
pub mod traffic;
mod workload;

pub use cluster::{Cluster, Device, Store, Tier};
pub use outcome::{Moved, Outcome, TierOutcome};
pub use scenario::{Fault, FaultKind, Run, Target};
pub use simulation::simulate;
pub use strategy::{ManagerSettings, Movers, Strategy, Tiers, Trigger};
pub use workload::{Op, Phases, Range, ReadFrom, Workload};
