//! What can be seen of a node manager without stopping it: status and explanations of a pool, the
//! processes that hold it up, its log, the trace of its movements, and what requests for these ask.
//!
//! Reads the segment and /proc, and changes nothing. May use no other folder of this crate.

// First: its macro takes the place of that of the standard library in all that follow.
#[macro_use]
pub mod log;
pub mod markers;

pub mod collective;
pub mod explain;
pub mod holders;
pub mod http;
pub mod in_force;
pub(crate) mod mappers;
pub mod metrics;
pub mod outlook;
pub mod status;
pub(crate) mod trace;
