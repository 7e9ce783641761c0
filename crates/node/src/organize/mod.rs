//! Blocks on their way between tiers: down where room is wanted, up where they are read, and from
//! the store to the tiers ahead of their reader. `forebay_placement` decides what moves.
//!
//! May use `drain`, which makes dirty blocks clean, `node`, and what those use.

mod coldest;
pub(crate) mod demote;
pub(crate) mod grow;
mod lend;
pub(crate) mod mover;
pub(crate) mod place;
pub(crate) mod promote;
pub(crate) mod stage;
