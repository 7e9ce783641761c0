//! Placement decisions as pure functions: no I/O, no clock, no threads.
//!
//! Whoever acts (client, node manager, simulator) passes a snapshot by value and carries out the
//! answer; nothing here sees live state.

#![forbid(unsafe_code)]

mod hierarchy;
mod pace;
mod room;

pub use hierarchy::{Hierarchy, TIERS_MAX, TierSnapshot};
pub use pace::{Paced, Speed, pace, transfer_ns};
pub use room::{Destination, Watermarks, destination, room_needed};
