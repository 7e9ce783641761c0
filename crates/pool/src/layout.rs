//! The segment's structures, byte for byte. Every size is pinned: another size is another layout
//! version, and a pool left by one is refused by the other.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//!
//! // A RAM tier of 16 MiB in 64 buckets, and 256 slots in files below it.
//! let geometry = Geometry::for_tiers(4096, &[16 << 20, 64 << 20]);
//! let (segment, _memory) = anonymous(&geometry)?;
//! let header = segment.header();
//! assert_eq!((header.tiers, header.page_size), (2, 4096));
//! assert_eq!([header.tier[0].buckets, header.tier[1].buckets], [64, 256]);
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

macro_rules! pin_size {
    ($type:ty, $size:expr) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $size);
    };
}

mod block;
mod client;
mod description;
mod device;
mod file;
mod header;
mod job;
mod rule;
mod sections;

pub use block::{BucketMeta, IndexNode, SlotChecksums, SparsePages};
pub use client::{ClientSlot, Counter, Counters, slot_state};
pub use description::{Description, description_state};
pub use device::{
    DeviceSpeed, Emulation, LinkSpeed, SparseHeader, StoreHeader, TierHeader, markers,
};
pub use file::{FileRecord, LENGTHENER_LEFT, file_state};
pub use header::{Header, StagedCounts, retirement};
pub use job::{FOLLOWS, JobQuota, JobRecord, job_state, reserved_for};
pub use rule::RuleRecord;
pub(crate) use sections::Counts;
pub use sections::{DATA_ALIGN, Geometry, Offsets};

pub use crate::flags::{AtomicFlags, DescriptionFlags, FileFlags};
use crate::glimpses::AnswerTable;
pub use crate::lock_scope::{LockScope, SharedLock};
use crate::queue::Queue;
pub use forebay_placement::schema::{Durability, Trigger};
pub use forebay_placement::{NodeId, TIERS_MAX, TierId};

/// The first bytes of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FOREBAY\0");
/// Raised with every change of these files that changes a layout.
pub const LAYOUT_VERSION: u32 = 36;

/// Words of the answers that processes wait for which want blocks of other nodes: 64 in each.
pub const OTHERS_WORDS: usize = 16;
/// Pages of a bucket; `valid` and `dirty` are one word each.
pub const PAGES_PER_BUCKET: u32 = 64;
/// Managed directories.
pub const STORES_MAX: usize = 8;
/// Runs under one node manager at the same time whose files have a mode, a trigger, a reservation
/// or a life of their own.
pub const JOBS_MAX: usize = 32;
/// Threads of one process that can be inside buffered files at the same instant; more wait.
pub const SHARED_LOCKS: usize = 64;
/// Free buckets a process keeps for itself: 16 from one refill, and 16 handed back.
pub const CACHED_BUCKETS: usize = 32;
/// Index nodes a process keeps for itself.
pub const CACHED_NODES: usize = 8;
/// Entries of an index node, and log2 of it.
pub const NODE_ENTRIES: usize = 64;
/// log2 of [`NODE_ENTRIES`].
pub const NODE_BITS: u32 = 6;
/// Longest path that is kept of a file, for recovery and for people.
pub const PATH_BYTES: usize = 760;
/// Bytes of a path beneath its store's directory that are kept in the file record.
pub const SHORT_PATH_BYTES: usize = 58;
/// Bytes of one in the first table of longer paths.
pub const LONGER_PATH_BYTES: usize = 192;
/// Program files and libraries of which is remembered what they need, see `needed.rs`.
pub const NEEDED_FILES: usize = 256;
/// Changes of names that are remembered.
pub const CHANGED_NAMES: usize = 64;
/// Files and directories that programs watch at the same time; flushes of others are not hurried.
pub const WATCHES: usize = 64;
/// Processes that may make the store's file of one file longer at the same time; more wait.
pub const LENGTHENERS: usize = 4;
/// Open-file descriptions that get memory at a time: 64 bytes each, and 2 KiB of bits for each
/// client slot.
pub const DESCRIPTIONS_PIECE: u32 = 1 << 14;
/// File records that get memory at a time.
pub const FILES_PIECE: u32 = 1 << 13;
/// Most file records of a pool.
pub const FILES_MAX: u32 = 1 << 20;
/// Most open-file descriptions of a pool: a marker has 18 bits for them.
pub const DESCRIPTIONS_MAX: u32 = 1 << 18;
/// Most client slots.
pub const CLIENTS_MAX: u32 = 1024;
/// Sparse slots of a file tier whose tables get memory at a time: 168 KiB.
pub const SPARSE_PIECE: u32 = 512;
/// Leases of parts of files, at most: 128 GiB of files that several nodes write.
pub const PART_LEASES: usize = 1 << 17;
/// Locks of the file table.
pub const STRIPES: usize = 8192;
/// Longest path of a tier or a store, with its terminating zero.
pub const LONG_PATH_BYTES: usize = 4096;
/// Longest path of the file of a shared device, with its terminating zero.
pub const SHARED_PATH_BYTES: usize = 256;

/// Bytes of an instance's name.
pub const INSTANCE_BYTES: usize = 16;
/// Bytes of the path of an instance's folder with its terminating zero: with `/socket` it fits into
/// a socket's address.
pub const FOLDER_BYTES: usize = 104;

/// Numbers of files that are used without a record, see [`ClientSlot::unrecorded`].
pub const UNRECORDED: usize = 64;

/// Bytes of the version of Forebay that made a pool, with its terminating zero.
pub const MAKER_BYTES: usize = 32;
/// That of this one.
pub const MAKER: &str = env!("CARGO_PKG_VERSION");
/// The first layout with a [`Header::maker`].
pub(crate) const NAMES_MAKER: u32 = 11;

pin_size!(Queue, 65_792);
pin_size!(AnswerTable, 32_832);
