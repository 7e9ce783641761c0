//! Open-file descriptions.

use crate::AtomicFileId;
use crate::flags::{AtomicFlags, DescriptionFlags};
use crate::ranks::Position;
use crate::seq_lock::RobustSeqLock;
use crate::sync::{AtomicU32, AtomicU64};

/// States of an open-file description, in the lowest byte of its word; its generation is in the
/// upper half.
pub mod description_state {
    /// Anyone may take it.
    pub const FREE: u32 = 0;
    /// Named by some bitmap.
    pub const LIVE: u32 = 1;
    /// Named by no bitmap at the last look; an exec under way may still revive it.
    pub const ZOMBIE: u32 = 2;
    /// Being opened or taken part in by the process whose client slot is given above the lowest
    /// byte. Only that process changes it, or the one that reaps it.
    pub const OPENING: u32 = 3;
    /// Being freed by the process whose client slot is given above the lowest byte, which has given
    /// it up. One that takes part in it changes it, or the one that reaps that process.
    pub const CLOSING: u32 = 4;
}

/// An open-file description: what dup, fork and exec share.
#[repr(C, align(64))]
pub struct Description {
    /// Generation (upper half) and [`description_state`].
    pub word: AtomicU64,
    /// Guards `offset`.
    pub position: RobustSeqLock<Position>,
    /// File offset; of a pin its range, see [`crate::pins`].
    pub offset: AtomicU64,
    /// File record.
    pub file: AtomicFileId,
    /// Generation of the file record.
    pub file_generation: AtomicU32,
    /// How it was opened, and what became of it.
    pub flags: AtomicFlags<DescriptionFlags>,
    /// The file's `error` when it was last reported through this description.
    pub error_seen: AtomicU32,
    /// Milliseconds when it became a zombie.
    pub zombie_since: AtomicU32,
    /// Messages to other processes that carry a descriptor of it and have not been received.
    pub in_flight: AtomicU32,
    /// Milliseconds when the last of them was sent.
    pub sent: AtomicU32,
    /// Of a pin: which of its process's handles it belongs to.
    pub handle: AtomicU32,
}

pin_size!(Description, 64);
