//! The links of a group: what they carry and tell ([`Post`], [`LinkEvent`]), and the thread
//! "group-links" that has them ([`thread`]).

mod lull;
mod post;
mod thread;

pub use post::{LinkEvent, LinkHandler, Post, SendError};
pub(crate) use thread::Links;

use forebay_fabric::Kind;

/// In a view of so many members each has a link to each; in a larger one links are made when
/// something is sent.
pub const MESH_MAX: usize = 16;

/// What the thread itself sends: nothing but a reason to measure the round trip.
pub(crate) const TICK: Kind = Kind(0);
