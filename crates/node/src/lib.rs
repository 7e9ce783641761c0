//! The node manager: the daemon that owns a node's segment, moves data down the hierarchy, and
//! takes back what dead processes held.

// First: its macro takes the place of that of the standard library in all that follow.
#[macro_use]
pub mod log;

mod beneath;
pub mod config;
mod conflict;
mod control;
mod daemon;
mod demote;
mod descriptors;
mod discovery;
pub mod explain;
mod faults;
mod flush;
pub mod fsck;
mod gauge;
mod guard;
pub mod holders;
mod housekeeping;
pub mod inspect;
mod jobs;
mod journal;
mod mappers;
mod mover;
pub mod neighbours;
mod node;
pub mod profile;
mod promote;
mod rebuild;
mod recorded;
mod recovery;
mod removed;
mod retire;
pub mod runtime;
pub mod salvage;
pub mod schema;
mod stage;
pub mod status;
mod trace;
mod undoable;

pub use config::Config;
pub use control::Connection;
pub use daemon::{Ending, Options, Started, serve};
pub use guard::{WAITS, is_served};
pub use rebuild::Rebuilt;
