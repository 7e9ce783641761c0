//! Records of files.

use super::{LENGTHENERS, SHORT_PATH_BYTES};
use crate::flags::{AtomicFlags, FileFlags};
use crate::lease::AtomicLease;
use crate::ranks::Append;
use crate::seq_lock::RobustSeqLock;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::{AtomicU8, AtomicU16};

/// States of a file record: one of these, or the owner that is about to link or unlink it.
pub mod file_state {
    /// Free.
    pub const FREE: u32 = 0;
    /// In the table.
    pub const LIVE: u32 = u32::MAX;
}

/// In a place of [`FileRecord::lengtheners`]: the owner that was there has died.
pub const LENGTHENER_LEFT: u32 = u32::MAX;

/// A file with buffered blocks or with an open description.
#[repr(C, align(16))]
pub struct FileRecord {
    /// See [`file_state`].
    pub state: AtomicU32,
    /// Next record of the hash chain, plus one. Guarded by the stripe.
    pub next: AtomicU32,
    /// Identity: device. Guarded by the stripe while not live.
    pub device: AtomicU64,
    /// Identity: inode.
    pub inode: AtomicU64,
    /// Raised when the record is given up, and when it is used for another file.
    pub generation: AtomicU32,
    /// What it is, and what is to be done for it.
    pub flags: AtomicFlags<FileFlags>,
    /// What this node may do with it while other nodes may have it too, see [`crate::lease`].
    pub lease: AtomicLease,
    /// Raised under the stripe at each open, see [`crate::opens`].
    pub opens: AtomicU32,
    /// Which store.
    pub store: AtomicU32,
    /// Bytes, as the programs see it.
    pub size: AtomicU64,
    /// Bytes of the file on the store, as far as known.
    pub store_size: AtomicU64,
    /// Last modification, CLOCK_REALTIME nanoseconds, where `METADATA_DIRTY` is set.
    pub mtime_ns: AtomicU64,
    /// Modification time of the store's file when it was last known to agree.
    pub store_mtime_ns: AtomicU64,
    /// Entry of block 0.
    pub entry0: AtomicU64,
    /// Radix tree of the other blocks: height in the top byte, node plus one below; 0 is none.
    pub root: AtomicU64,
    /// Owner that has the file for itself, or 0.
    pub exclusive: AtomicU32,
    /// Rule of the schema that holds, plus one; 0 is none. Set by the thread that makes the record,
    /// and again when the file grows to `rule_review`.
    pub rule: AtomicU16,
    /// The buffering mode, all things considered: a code; 0 is asynchronous.
    pub mode: AtomicU8,
    /// The flush trigger, where rule or run give one: a code, or 0.
    pub trigger: AtomicU8,
    /// A truncate under way: its goal plus one.
    pub intent: AtomicU64,
    /// Serializes appending writes.
    pub append: RobustSeqLock<Append>,
    /// Tickets: syncs wanted.
    pub sync_wanted: AtomicU32,
    /// Tickets: syncs done.
    pub sync_done: AtomicU32,
    /// Last flush error: a count in the upper 16 bits, bit 15 once a program has learned of it, the
    /// errno below.
    pub error: AtomicU32,
    /// Bytes of the path that are kept; 0 if it was too long.
    pub path_length: AtomicU32,
    /// Which tiers held some of it since it was last without blocks: bit n for tier n.
    pub placed: AtomicU32,
    /// Milliseconds: the manager does not try this file again before.
    pub retry_at: AtomicU32,
    /// When the file was born, nanoseconds; 0 if the store does not know.
    pub born_ns: AtomicU64,
    /// How often, and how lately, its blocks were used: a [`forebay_placement::hotness::Score`].
    pub hotness: AtomicU64,
    /// Size in bytes from which another rule may hold; `u64::MAX` if none.
    pub rule_review: AtomicU64,
    /// A punch under way: where it starts. Holds only while `range_end` is not 0.
    pub range_start: AtomicU64,
    /// A punch under way: where it ends, or 0.
    pub range_end: AtomicU64,
    /// Last status change as programs see it, CLOCK_REALTIME nanoseconds.
    pub changed_ns: AtomicU64,
    /// Status change time of the store's file that is due to our own flush: what is later was done
    /// by another program.
    pub store_changed_ns: AtomicU64,
    /// Number of the job whose scratch it is.
    pub job: AtomicU32,
    /// Checksum of the kernel's handle of the file, which has the inode's generation; 0 is not
    /// known.
    pub handle: AtomicU32,
    /// Locks of buckets with bytes behind the end that were taken from dead processes since nothing
    /// was left there, see `tail.rs`.
    pub dirty_tails: AtomicU32,
    /// Owners that are giving the store's file bytes behind its end, before the record says so, or
    /// [`LENGTHENER_LEFT`]; 0 is a free place, see `tail.rs`.
    pub lengtheners: [AtomicU32; LENGTHENERS],
    /// Number of the job with limits for which it counts; 0 is none's. See [`crate::quota`].
    pub quota_job: AtomicU32,
    /// When other nodes see what is written to it, as the rules say of its path when the record
    /// begins: the code of a [`forebay_placement::schema::Consistency`]. Other names that it gets
    /// change nothing.
    pub consistency: AtomicU8,
    /// Why the predictor that its rule names is not asked any more: a code, or 0. Set by the node
    /// manager.
    pub predictor_fault: AtomicU8,
    /// Where a staged file stands: the code of a [`forebay_placement::staged::Stage`], or 0. Counts
    /// only while its mode is staged.
    pub stage: AtomicU8,
    /// Not 0: programs have changed its bytes since the node manager last looked whether something
    /// is to run on it. What such commands change themselves does not count.
    pub altered: AtomicU8,
    /// Steps that programs have said are finished: a count that wraps.
    pub steps: AtomicU8,
    /// Not 0 beside [`FileFlags::MAPPED`]: it is direct because it is new and small. 2 once
    /// something was written to it so.
    pub small: AtomicU8,
    /// Canonical path when opened, if that is short: see `files/paths.rs`.
    pub path: [AtomicU8; SHORT_PATH_BYTES],
}

// A million of them, with their hash heads, take less than 300 MiB.
pin_size!(FileRecord, 304);
