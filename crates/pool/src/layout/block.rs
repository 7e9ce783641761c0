//! Buckets, and the nodes of the index that leads to them.

use super::{NODE_ENTRIES, PAGES_PER_BUCKET};
use crate::AtomicFileId;
use crate::dirty_pages::DirtyPages;
use crate::seq_lock::RobustSeqLock;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::AtomicU16;

/// A bucket of any tier.
#[repr(C, align(64))]
pub struct BucketMeta {
    /// Guards everything below, and versions the content.
    pub lock: RobustSeqLock,
    /// `FREE`, `USED`, `FILLING`, `RESERVED`, `UNBACKED`, or the owner whose cache it is in.
    pub state: AtomicU32,
    /// File record of the block it holds.
    pub file: AtomicFileId,
    /// Block number within the file.
    pub block: AtomicU64,
    /// Pages that hold the block's content.
    pub valid: AtomicU64,
    /// Pages that the store lacks.
    pub pages: DirtyPages,
    /// Milliseconds of the last write.
    pub written: AtomicU32,
    /// Milliseconds of the write that made it dirty.
    pub dirtied: AtomicU32,
    /// Place of the job that it is set aside for, plus one; 0 is none's.
    pub reserved: AtomicU16,
    /// In RAM, the file tier that the block is on its way to; 0: it stays. Set by the program that
    /// a plan gave that place, or by the demoter; the tier's placer takes it there. Where it is
    /// wrong after a crash, one block lies on another tier than was meant.
    pub bound_for: AtomicU16,
    /// How often, and how lately, the block was used: a
    /// [`forebay_placement::hotness::AccessStats`].
    pub access_stats: AtomicU32,
}

/// What is known of the pages of a file tier's bucket. Guarded by the bucket's lock.
#[repr(C)]
pub struct SlotChecksums {
    /// The checksum of each page, or 0: not known.
    pub sum: [AtomicU32; PAGES_PER_BUCKET as usize],
    /// Dirty pages whose bytes are not the ones that were written: the store is never given them.
    pub corrupt: AtomicU64,
    /// Of a sparse slot: so many pages from the first on may have room in the tier's file, and are
    /// counted as in use.
    pub claimed: AtomicU32,
    unused: u32,
}

/// What is known of the memory of a sparse bucket's pages: of the first so many, without gaps.
/// Changed by the holder of the bucket's lock.
#[repr(C)]
pub struct SparsePages {
    /// Pages that may have memory, and are counted as in use.
    pub claimed: AtomicU32,
    /// Pages that have memory: to touch one never fails.
    pub backed: AtomicU32,
}

/// A node of the block index.
#[repr(C, align(64))]
pub struct IndexNode {
    /// Index entries in a leaf, children (node plus one) above.
    pub entry: [AtomicU64; NODE_ENTRIES],
}

pin_size!(BucketMeta, 64);
pin_size!(SlotChecksums, 272);
pin_size!(SparsePages, 8);
pin_size!(IndexNode, 512);
