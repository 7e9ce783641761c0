//! The node manager: the daemon that owns a node's segment, moves data down the hierarchy, and
//! takes back what dead processes held.
//!
//! One folder for each concern; those further down in this list use those further up:
//! `observe`, `config`, `instance`, `profile`, `store`, `devices`, `journal`, `memory` (of RAM),
//! `remote` (blocks of other nodes), `group` (of nodes), `actions` (what runs on files), `node`
//! (the state that all threads share), `encoded`, `drain`, `organize`, `recovery`, `manager`.

// First, for its macro.
#[macro_use]
mod observe;

pub mod actions;
pub mod config;
mod devices;
mod drain;
pub mod encoded;
mod group;
mod instance;
mod journal;
mod manager;
mod memory;
mod node;
mod organize;
pub mod profile;
mod recovery;
mod remote;
mod store;
mod usage;

pub use actions::REFUSED;
pub use config::Config;
#[cfg(feature = "ucx")]
pub use forebay_cluster::{UCX_LICENSE, begin_ucx};
pub use forebay_membership::HostList;
pub use instance::discovery::unguessable;
pub use instance::guard::{WAITS, is_served};
pub use instance::service::Service;
pub use instance::{launch, neighbours, runtime};
pub use manager::control::Connection;
pub use manager::daemon::{Ending, Options, Started, serve};
pub use node::QUEUE_DEPTH;
pub use observe::trace::HEADING as TRACE_HEADING;
pub use observe::{
    collective, explain, holders, http, in_force, log, markers, metrics, outlook, status,
};
pub use recovery::rebuild::Rebuilt;
pub use recovery::{fsck, removed, salvage};
