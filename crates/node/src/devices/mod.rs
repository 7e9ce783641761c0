//! What is laid around the batches of `forebay_tiers`: observed speeds, scripted faults, and
//! the note of each write that lets a test undo what a loss of power would take.
//!
//! May use no other folder of this crate.

pub(crate) mod faults;
pub(crate) mod gauge;
pub(crate) mod undoable;
