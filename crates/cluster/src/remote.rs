//! Blocks that other members have in memory: what nodes say to each other about them
//! ([`RemoteMessage`]), who is asked for a block first ([`Finder`]), what it has said ([`Hints`]),
//! and the memory through which bytes go ([`Staging`]). What is done with them is the node
//! manager's.

mod finder;
mod hints;
mod message;
mod staging;

pub use finder::{Finder, RUN_BLOCKS};
pub use hints::{Hints, Holders, holder_of};
pub(crate) use message::REMOTE_VERSION;
pub use message::{INLINE_MAX, RemoteMessage};
pub use staging::Staging;

use forebay_fabric::Kind;

/// Messages about blocks of other members.
pub const REMOTE: Kind = Kind(2);
