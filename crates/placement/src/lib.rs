//! Placement decisions as pure functions: no I/O, no clock, no threads.
//!
//! The caller (client, node manager, simulator) passes a snapshot by value and carries out the
//! answer; nothing here sees live state.

#![forbid(unsafe_code)]

pub mod admission;
pub mod caps;
pub mod collective;
pub mod cost;
pub mod evict;
pub mod exposure;
pub mod flush_order;
pub mod glob;
mod hierarchy;
pub mod hotness;
mod ids;
pub mod leave;
mod memo;
pub mod observe;
pub mod organizer;
pub mod outofcore;
mod pace;
mod policies;
pub mod prefetch;
pub mod promote;
mod random;
mod request;
pub mod room;
pub mod rounds;
pub mod schema;
mod solve;
pub mod staged;

pub use cost::{Costs, Model};
pub use hierarchy::{Hierarchy, TIERS_MAX, TierSnapshot};
pub use ids::{NodeId, TierId};
pub use memo::{Memo, Place};
pub use pace::{Paced, Speed, occupy, pace, transfer_ns};
pub use policies::{Policy, PolicyId, Worth, names, policy};
pub use random::{Random, mix};
pub use request::{Piece, Plan, Request};
pub use room::{Destination, Watermarks, destination, room_needed};
