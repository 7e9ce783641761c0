//! The segment: made, attached to, and seen as its structures.
//!
//! ```
//! use forebay_pool::Owner;
//! use forebay_pool::files::Identity;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//!
//! // A RAM tier of 16 MiB, in buckets of 64 pages of 4 KiB.
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! assert_eq!(segment.bucket_bytes(), 256 << 10);
//! let file = Identity { device: 1, inode: 2 };
//! let made = segment.with_file_or_new(file, Owner::new(1, 0), |_, is_new| is_new);
//! assert_eq!(made, Some(true));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

mod attach;
mod create;
mod error;
mod grown;
mod head;
mod lending;
mod mapping;
mod marks;
mod memory;
mod places;
mod sequence;
mod shared_devices;
mod tables;
mod tiers;

pub use crate::owner::MANAGER_SLOT;
pub use attach::{open_pool, open_pool_seen};
pub use create::{anonymous, create_pool, set_text};
pub use error::SegmentError;
pub use head::{PoolIdentity, identify, is_blank, text};
pub use tiers::is_own_fault;

use crate::layout::{Offsets, STORES_MAX};
use crate::shared_device::SharedDevice;
use core::ptr::NonNull;

/// A mapped segment. Shared by all threads; unmapped when dropped.
pub struct Segment {
    base: NonNull<u8>,
    mapped: usize,
    offsets: Offsets,
    bucket_bytes: usize,
    /// log2 of a page's bytes: a division of a 4 KiB write's offset costs as much as its lock.
    page_shift: u32,
    ram_buckets: u32,
    /// The numbers of the sparse buckets of RAM.
    sparse: core::ops::Range<u32>,
    trails: u32,
    /// Of each store whose emulated device other node managers share.
    shared_devices: [Option<SharedDevice>; STORES_MAX],
}

impl Segment {
    /// The same mapping for a second user in the same address space.
    ///
    /// # Safety
    /// The copy is never dropped, and not used after `self`.
    pub unsafe fn again(&self) -> Segment {
        // SAFETY: only one of both is dropped.
        let shared_devices = unsafe { core::ptr::read(&raw const self.shared_devices) };
        let (offsets, sparse) = (self.offsets, self.sparse.clone());
        Segment { offsets, sparse, shared_devices, ..*self }
    }
}

// SAFETY: the mapping belongs to the value and no thread.
unsafe impl Send for Segment {}
// SAFETY: all content is atomics, or bytes guarded by the protocol of the bucket locks.
unsafe impl Sync for Segment {}
