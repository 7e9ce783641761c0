//! Tiers, stores, and how fast their devices are.

use super::{LONG_PATH_BYTES, SHARED_PATH_BYTES};
use crate::sync::{AtomicU32, AtomicU64};

/// Bandwidths and latency of an emulated device, and its token bucket.
#[repr(C)]
pub struct Emulation {
    /// Bytes per second; 0 is not limited.
    pub read_bandwidth: u64,
    /// Bytes per second; 0 is not limited.
    pub write_bandwidth: u64,
    /// Nanoseconds added to each transfer.
    pub latency_ns: u64,
    /// CLOCK_MONOTONIC nanoseconds at which the device is free again. Of a store: unless other
    /// node managers share it, see [`crate::Segment::store_next_free`].
    pub next_free_ns: AtomicU64,
}

impl Emulation {
    /// Whether the device is emulated: what is read from it takes its time each time, wherever the
    /// kernel has the bytes.
    #[inline]
    pub fn reads_slowly(&self) -> bool {
        self.read_bandwidth != 0 || self.latency_ns != 0
    }
}

/// How fast a device is, as far as known: what the cost model computes with. The node manager may
/// correct it; each number is right by itself.
#[repr(C)]
pub struct DeviceSpeed {
    /// Bytes per second.
    pub read_bandwidth: AtomicU64,
    /// Bytes per second.
    pub write_bandwidth: AtomicU64,
    /// Nanoseconds until the first byte.
    pub latency_ns: AtomicU64,
    /// Nanoseconds that a read elsewhere takes of the device's time before bytes move.
    pub read_seek_ns: AtomicU64,
    /// The same of a write.
    pub write_seek_ns: AtomicU64,
}

/// How fast messages between the ranks of MPI programs are: see [`forebay_placement::collective`].
#[repr(C)]
pub struct LinkSpeed {
    /// Bytes per second; 0 is not known.
    pub bandwidth: AtomicU64,
    /// Nanoseconds of a message without bytes.
    pub latency_ns: AtomicU64,
}

/// The sparse buckets of a tier, which follow its other ones, and the pages that they may have: see
/// docs/design/small-files.md.
#[repr(C)]
pub struct SparseHeader {
    /// How many there are, a multiple of 64.
    pub buckets: u32,
    /// How many have ever been in use, a multiple of 64. Of a file tier: how many have tables.
    pub ready: AtomicU32,
    /// Where the next search for a free one begins.
    pub hint: AtomicU32,
    /// About how many pages they have; the node manager corrects it.
    pub used: AtomicU32,
    /// How many they may have: as many as the buckets have that are lent to them.
    pub limit: AtomicU32,
    /// The node manager is woken when there are fewer left than that.
    pub low: AtomicU32,
    /// About how many pages those slots of a file tier have that are free, and that the node
    /// manager is to give up.
    pub idle: AtomicU32,
    /// Raised when a program found no page in a file tier.
    pub missed: AtomicU32,
}

/// A tier: its buckets are `first_bucket .. first_bucket + buckets`, and behind them sparse ones.
#[repr(C)]
pub struct TierHeader {
    /// First bucket id, a multiple of 64.
    pub first_bucket: u32,
    /// Buckets of the tier.
    pub buckets: u32,
    /// About how many of them are free; the node manager corrects it.
    pub free: AtomicU32,
    /// The tier's demoter is woken when `free` falls below this.
    pub low: AtomicU32,
    /// About how many hold blocks that may not leave.
    pub pinned: AtomicU32,
    /// The bits of an f32: the lowest hotness among the files whose blocks it holds.
    pub coldest: AtomicU32,
    /// Raised when a block of it was used so often that it may be promoted.
    pub used: AtomicU32,
    /// From how many uses on that is, if the block was not promoted lately; 0 is 1. Kept by the
    /// node manager.
    pub promotes_at: AtomicU32,
    /// About how many hold blocks that the store has, and that may leave: dropping them takes no
    /// time.
    pub clean: AtomicU32,
    /// About how many blocks in RAM are bound for this tier.
    pub bound: AtomicU32,
    /// Buckets that plans want to be made free here before they place anything; the demoter takes
    /// the number back to 0.
    pub room_planned: AtomicU32,
    /// Why nothing new goes there, where the header's `failed_tiers` says so: an errno.
    pub failed_errno: AtomicU32,
    /// Milliseconds: since when.
    pub failed_at: AtomicU32,
    /// Its sparse buckets.
    pub sparse: SparseHeader,
    /// Its emulated device, if any.
    pub emulation: Emulation,
    /// How fast it is.
    pub speed: DeviceSpeed,
    /// Name, zero-terminated.
    pub name: [u8; 56],
    /// The file that holds the slots of a file tier; empty for RAM.
    pub path: [u8; LONG_PATH_BYTES],
}

/// Whether a store's files take a [`crate::Marker`].
pub mod markers {
    /// Not known: no file of it was opened yet.
    pub const UNKNOWN: u32 = 0;
    /// Those of most file systems do.
    pub const TAKEN: u32 = 1;
    /// Its file system can have no files that are so large.
    pub const REFUSED: u32 = 2;
}

/// A managed directory of a backing store.
#[repr(C)]
pub struct StoreHeader {
    /// Device number.
    pub device: u64,
    /// The directory's inode number: another one may be mounted over it, or take its place.
    pub inode: u64,
    /// 1: everything goes straight to the store.
    pub bypass: u32,
    /// The buffering mode of files for which neither a rule nor their run gives one: a code, or 0.
    pub mode: u32,
    /// 1: programs leave to the node manager what they need not write there themselves, because it
    /// injects faults. Set by each manager for itself.
    pub left_to_manager: AtomicU32,
    /// Whether files there take a marker, see [`markers`].
    pub markers: AtomicU32,
    /// Opens of files there that were not buffered, because they take no marker.
    pub unmarked: AtomicU32,
    /// 1: new small files are written through, see [`FileFlags::MAPPED`]. Set by the node manager.
    ///
    /// [`FileFlags::MAPPED`]: super::FileFlags::MAPPED
    pub writes_through: AtomicU32,
    /// Nanoseconds in which it takes a small file, as was measured last; 0 if that was not.
    pub small_file_ns: AtomicU64,
    /// The mount by which the node manager reaches it; 0 where the kernel does not tell. Set by
    /// each manager for itself.
    pub mount: AtomicU64,
    /// Its emulated device, if any.
    pub emulation: Emulation,
    /// How fast it is.
    pub speed: DeviceSpeed,
    /// The file with the token bucket of its emulated device, where several node managers share
    /// that: zero-terminated, empty if they do not.
    pub shared: [u8; SHARED_PATH_BYTES],
    /// Canonical path, zero-terminated.
    pub path: [u8; LONG_PATH_BYTES],
}

pin_size!(DeviceSpeed, 40);
pin_size!(LinkSpeed, 16);
pin_size!(SparseHeader, 32);
pin_size!(TierHeader, 4312);
pin_size!(StoreHeader, 4480);
