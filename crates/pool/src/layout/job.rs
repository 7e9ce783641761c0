//! Jobs.

use super::TIERS_MAX;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::AtomicU8;

/// States of a job.
pub mod job_state {
    /// Free.
    pub const FREE: u32 = 0;
    /// Being set up by the node manager.
    pub const STARTING: u32 = 1;
    /// Its command, or what that left behind, runs.
    pub const LIVE: u32 = 2;
    /// Its command has ended; processes that it left behind may go on.
    pub const ENDING: u32 = 3;
    /// No process may join it any more: its scratch files are being deleted.
    pub const OVER: u32 = 4;
}

/// Whose files a job's reservation is for.
pub mod reserved_for {
    /// Those whose rule has a reservation.
    pub const RULES: u8 = 0;
    /// All that the job writes.
    pub const ALL: u8 = 1;
}

/// A job: one `forebay run` and all processes that come of it. Written by the node manager.
#[repr(C)]
pub struct JobRecord {
    /// See [`job_state`].
    pub state: AtomicU32,
    /// Which of all jobs, from 1 on; its place is the remainder by `JOBS_MAX`.
    pub number: AtomicU32,
    /// Process id of the `forebay run`.
    pub pid: AtomicU32,
    /// The buffering mode of files whose rule gives none: a code, or 0.
    pub mode: AtomicU8,
    /// The flush trigger of files whose rule gives none: a code, or 0.
    pub trigger: AtomicU8,
    /// See [`reserved_for`].
    pub reserved_for: AtomicU8,
    /// 1: its command has ended, and the node manager has not yet looked what follows.
    pub ended: AtomicU8,
    /// Start time of that process in clock ticks.
    pub start: AtomicU64,
    /// Buckets that are set aside for it, free or in use.
    pub reserved: AtomicU32,
    /// About how many of them are free; at most one too few for each that a killed process had.
    pub free: AtomicU32,
    /// Where the next search for a free one starts.
    pub cursor: AtomicU32,
    /// The descriptor, plus one, that its `forebay run` has of the memory in which the calls of its
    /// processes are recorded, see [`crate::calls`]; 0: they are not. In the upper half but for
    /// [`FOLLOWS`] the same of the orders that they are to follow, see [`crate::orders`].
    pub recording: AtomicU32,
    /// 1: it has a quota of some tier, a cap, or an age: files are noted as its own.
    pub is_limited: AtomicU32,
    /// What it may use of each tier.
    pub quota: [JobQuota; TIERS_MAX],
    /// What of its files may be in the tiers that the store lacks, see [`crate::caps`].
    pub cap: JobQuota,
    /// For how many milliseconds any of that may be so; 0: for ever.
    pub max_age_ms: AtomicU32,
    /// Not used.
    pub unused: AtomicU32,
}

/// What may be in use of something, in pages: of a tier, see [`crate::quota`], or of what the store
/// lacks, see [`crate::caps`].
#[repr(C)]
pub struct JobQuota {
    /// So many; 0: all there are.
    pub limit: AtomicU32,
    /// Raised by each that takes some.
    pub taken: AtomicU32,
    /// What is to be added to `taken` to have what is in use; it wraps.
    pub base: AtomicU32,
}

/// The bit of [`JobRecord::recording`] that a process of the job sets when it reads a file that
/// one of the orders is of.
pub const FOLLOWS: u32 = 1 << 31;

pin_size!(JobRecord, 160);
pin_size!(JobQuota, 12);
