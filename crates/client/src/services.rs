//! How a library that is loaded into a process finds the session that its preload library has: a
//! table of functions that the latter exports. A process has one session in a pool, and a library
//! with a copy of this crate must not start a second one.
//!
//! The table is an interface between two libraries that may be of different builds: a field keeps
//! its place and its meaning, and new ones come last. All functions return a negative errno on
//! failure, and [`NOT_MANAGED`] of a descriptor that is not Forebay's; they may be called by any
//! thread at any time, from a signal handler as far as read and write may.

use crate::session::Session;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_pool::layout::TierId;
use forebay_pool::segment::text;
use rustix::fd::RawFd;

/// The symbol of the table. Its number rises when a field of an older table changes.
pub const SERVICES: &CStr = c"forebay_services_1";

/// What a function returns of a descriptor that is not buffered: no errno is as low.
pub const NOT_MANAGED: i32 = -5000;

/// Values of a level in the table.
pub mod level {
    /// [`crate::Level::Durable`].
    pub const DURABLE: u32 = 2;
    /// [`crate::Level::Store`].
    pub const STORE: u32 = 3;
}

/// Values of what a flush has come to, as [`Services::progress`] returns them.
pub mod progress {
    /// [`crate::Progress::Waiting`].
    pub const WAITING: i32 = 0;
    /// [`crate::Progress::Done`].
    pub const DONE: i32 = 1;
    /// [`crate::Progress::Changed`].
    pub const CHANGED: i32 = 2;
}

/// What [`Services::begin_flush`] returns where the store's file has all, and only the kernel knows
/// what is durable of it, or written later.
pub const BY_KERNEL: i32 = 1;

/// Values of what a wait has come to, as [`Services::await_flush`] returns them.
pub mod awaited {
    /// [`crate::Awaited::Late`].
    pub const LATE: i32 = 0;
    /// [`crate::Awaited::Done`].
    pub const DONE: i32 = 1;
    /// [`crate::Awaited::Alone`].
    pub const ALONE: i32 = 2;
}

/// Values of what a note of a dataset has come to, as [`Services::note_dataset`] returns them.
pub mod dataset {
    /// It is known, and no rule of datasets holds for it.
    pub const NOTED: i32 = 0;
    /// It is known, and a rule holds for it.
    pub const RULED: i32 = 1;
    /// The pool has no room for it, or for some of its ranges.
    pub const NO_ROOM: i32 = 2;
}

/// Bytes of a file: from `start` on, before `end`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// What is known of the pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolNow {
    /// The file of the pool, zero-terminated; cut off if it is too long.
    pub path: [c_char; 256],
    /// The name of the instance, zero-terminated.
    pub instance: [c_char; 32],
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// How many tiers there are.
    pub tiers: u32,
    /// How many managed directories.
    pub stores: u32,
    /// The process of the node manager.
    pub manager: u32,
    /// 1: that lives.
    pub is_served: u32,
    /// The number of the run that the process belongs to; 0 is none.
    pub job: u32,
    /// 0.
    pub reserved: u32,
}

/// What is known of a tier.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TierNow {
    /// Its name, zero-terminated.
    pub name: [c_char; 64],
    /// The file of its slots, zero-terminated; empty for RAM.
    pub path: [c_char; 4096],
    /// Bytes that it can hold.
    pub capacity: u64,
    /// About how many of them are free.
    pub free: u64,
    /// 1: what it holds is there when the node is started again.
    pub is_lasting: u32,
    /// 1: its device has failed, and it takes nothing new.
    pub has_failed: u32,
}

/// Bytes of a file that the store lacks, in whole pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UnsafeNow {
    /// In memory.
    pub memory: u64,
    /// On file tiers.
    pub tiers: u64,
    /// 1: the store's file has another size.
    pub is_resized: u64,
}

/// Consecutive bytes of a file in one place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtentNow {
    /// The first byte.
    pub offset: i64,
    /// How many.
    pub bytes: i64,
    /// The number of the tier; -1 is the store.
    pub tier: i32,
    /// 1: the store lacks them.
    pub is_ahead: u32,
    /// 0.
    pub reserved: u64,
}

/// What is pinned of a tier, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PinNow {
    /// So much was to be pinned.
    pub asked: u64,
    /// So much is already: of the job, or of all.
    pub pinned: u64,
    /// So much may be.
    pub most: u64,
}

/// What [`Services::pin`] returns beside a negative errno.
pub mod pin {
    /// It is pinned.
    pub const DONE: i32 = 0;
    /// The job would have pinned more of the tier than it may.
    pub const JOB_LIMIT: i32 = 1;
    /// All jobs together would have.
    pub const TIER_LIMIT: i32 = 2;
    /// The file is used through the kernel.
    pub const BY_KERNEL: i32 = 3;
    /// More would be pinned of the tier than the quota of the job.
    pub const QUOTA: i32 = 4;
    /// The job's quota of the tier had no room for seconds; `pinned` is what it uses.
    pub const QUOTA_ROOM: i32 = 5;
    /// The node manager is stopped or dead, and makes no room.
    pub const UNSERVED: i32 = 6;
}

/// Values of what adapters count, for [`Services::count`].
pub mod counted {
    /// [`crate::Counted::MpiFiles`].
    pub const MPI_FILES: u32 = 0;
    /// [`crate::Counted::MpiCalls`].
    pub const MPI_CALLS: u32 = 1;
    /// [`crate::Counted::MpiBytes`].
    pub const MPI_BYTES: u32 = 2;
    /// [`crate::Counted::MpiIndependent`].
    pub const MPI_INDEPENDENT: u32 = 3;
    /// [`crate::Counted::MpiHinted`].
    pub const MPI_HINTED: u32 = 4;
    /// [`crate::Counted::MpiUnadapted`].
    pub const MPI_UNADAPTED: u32 = 5;
}

/// How fast what holds some bytes is, in one direction: see
/// [`forebay_placement::collective::Device`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceNow {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds.
    pub seek_s: f64,
    /// Seconds.
    pub latency_s: f64,
}

/// How fast messages between ranks are: see [`forebay_placement::collective::Network`]. Zeros are
/// not known.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkNow {
    /// Seconds of a message without bytes to another node.
    pub between_start_s: f64,
    /// Seconds of each byte.
    pub between_byte_s: f64,
    /// The same within a node.
    pub within_start_s: f64,
    /// The same within a node.
    pub within_byte_s: f64,
}

/// A flush that was asked for: what [`crate::Flush`] has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FlushBegun {
    /// See [`crate::Flush::ticket`].
    pub ticket: u32,
    /// See [`crate::Flush::errors`].
    pub errors: u32,
    /// See [`crate::Flush::seen`].
    pub seen: u64,
    /// See [`crate::Flush::file`].
    pub file: u64,
}

/// The table. Pointers must be valid for what is read or written through them; buffers of data may
/// be anything, and give `EFAULT`.
#[repr(C)]
pub struct Services {
    /// Bytes of the table: what is behind them an older library does not have.
    pub bytes: usize,
    /// 1 if the process has a session, else 0.
    pub is_active: extern "C" fn() -> i32,
    /// Says what the pool is.
    pub pool: unsafe extern "C" fn(*mut PoolNow) -> i32,
    /// Says what a tier is; `ENOENT` if there is none of this number.
    pub tier: unsafe extern "C" fn(u32, *mut TierNow) -> i32,
    /// `open`, with flags and mode; the descriptor.
    pub open: unsafe extern "C" fn(*const c_char, i32, u32) -> RawFd,
    /// `close`, also of a descriptor that is not managed.
    pub close: extern "C" fn(RawFd) -> i32,
    /// Whether a descriptor is managed: 0 or [`NOT_MANAGED`].
    pub manages: extern "C" fn(RawFd) -> i32,
    /// `pread`; no cancellation point.
    pub read: unsafe extern "C" fn(RawFd, *mut u8, usize, u64) -> isize,
    /// `pwrite`; no cancellation point.
    pub write: unsafe extern "C" fn(RawFd, *const u8, usize, u64) -> isize,
    /// The size in bytes.
    pub size: extern "C" fn(RawFd) -> i64,
    /// `posix_fadvise` beyond the kernel's part: the advice by its number there.
    pub advise: extern "C" fn(RawFd, u64, u64, i32) -> i32,
    /// Begins a flush to a [`level`]: 0, or [`BY_KERNEL`].
    pub begin_flush: unsafe extern "C" fn(RawFd, u32, *mut FlushBegun) -> i32,
    /// How it stands with a flush: a number of [`progress`].
    pub progress: unsafe extern "C" fn(RawFd, *const FlushBegun) -> i32,
    /// Waits for a flush, so many milliseconds, or for ever if they are negative: a number of
    /// [`awaited`].
    pub await_flush: unsafe extern "C" fn(RawFd, *const FlushBegun, i64) -> i32,
    /// Begins a flush of all files of the pool to a [`level`].
    pub begin_flush_of_all: extern "C" fn(u32) -> i32,
    /// Waits for that, so many milliseconds, or for ever if they are negative: 1 if it is done, 0
    /// if the time is over.
    pub await_flush_of_all: extern "C" fn(i64) -> i32,
    /// Says what the store lacks.
    pub not_on_store: unsafe extern "C" fn(RawFd, *mut UnsafeNow) -> i32,
    /// Says where so many bytes from an offset on are: fills in as many extents as there is room
    /// for, and returns how many there are.
    pub placement: unsafe extern "C" fn(RawFd, u64, u64, *mut ExtentNow, usize) -> i64,
    /// Notes that a phase begins in this thread, by a name of so many bytes, if the run is traced:
    /// 0. Not for signal handlers.
    pub begin_phase: unsafe extern "C" fn(*const u8, usize) -> i32,
    /// Notes that the innermost phase of this thread ends, if the run is traced: 0.
    pub end_phase: extern "C" fn() -> i32,
    /// Pins so many bytes from an offset on, all up to the end if they are 0, in a tier, for a
    /// handle: a number of [`pin`]. `ENOENT`: there is no such tier; `EAGAIN`: not all could be
    /// brought there.
    pub pin: unsafe extern "C" fn(RawFd, u64, u64, u32, u32, *mut PinNow) -> i32,
    /// Gives up the pins of a handle that lie in a range whole; returns how many.
    pub unpin: extern "C" fn(u32, u64, u64) -> i32,
    /// Has pieces brought to RAM that will be read: the first by its offset and bytes, from each to
    /// the next so many bytes, and how many. 1 if they were asked for, else 0.
    pub will_read: extern "C" fn(RawFd, u64, u64, i64, u64) -> i32,
    /// Counts more of what [`counted`] has: 0.
    pub count: extern "C" fn(u32, u64) -> i32,
    /// The lowest managed descriptor of a file that is buffered, by its device and inode.
    pub descriptor_of: extern "C" fn(u64, u64) -> i32,
    /// Notes that a dataset, by a name of so many bytes, lies in these ranges, of which there are
    /// so many, and no longer elsewhere: a number of [`dataset`]. Not for signal handlers.
    pub note_dataset: unsafe extern "C" fn(RawFd, *const u8, usize, *const ByteRange, usize) -> i32,
    /// Whether a rule may ask for the metadata of files of datasets apart: 1 or 0.
    pub tells_metadata_apart: extern "C" fn(RawFd) -> i32,
    /// Notes that from an offset on these ranges, of which there are so many, are metadata, and
    /// nothing else is: a number of [`dataset`]. Nothing is noted where no rule holds. Not for
    /// signal handlers.
    pub note_metadata: unsafe extern "C" fn(RawFd, u64, *const ByteRange, usize) -> i32,
    /// Notes that what was at a path in the file, a dataset or a group, by a name of so many bytes,
    /// is at another one now, or nowhere, if that has no bytes; returns of how many datasets it was
    /// the path. Not for signal handlers.
    pub rename_datasets: unsafe extern "C" fn(RawFd, *const u8, usize, *const u8, usize) -> i32,
    /// Notes that a step of what the program writes to the file is finished: 0.
    pub end_step: extern "C" fn(RawFd) -> i32,
    /// How fast what holds so many bytes from an offset on is, as a mean, for reads or, if the
    /// number is 1, for writes: 0. Of descriptor -1 the fastest tier. `ENODATA`: it is not known.
    pub device: unsafe extern "C" fn(RawFd, u64, u64, u32, *mut DeviceNow) -> i32,
    /// How fast messages between ranks of MPI programs are: 0.
    pub network: unsafe extern "C" fn(*mut NetworkNow) -> i32,
    /// Notes that the process is a rank of this job of MPI, and has the adapter: 0.
    pub join_mpi_job: extern "C" fn(u64) -> i32,
    /// How many processes of the node have noted that of this job.
    pub ranks_of_mpi_job: extern "C" fn(u64) -> i32,
    /// Whether a file of this name lies beneath a managed directory, or would: 0 or
    /// [`NOT_MANAGED`]. Not for signal handlers.
    pub covers: unsafe extern "C" fn(*const c_char) -> i32,
    /// Asks the node manager of what runs on files, in so many bytes of text, and fills in as much
    /// of its answer as there is room for; the bytes of all of it. The number is 1 afterwards if an
    /// earlier manager may have carried it out, else 0. Not for signal handlers.
    pub ask_of_actions: unsafe extern "C" fn(*const u8, usize, *mut u8, usize, *mut u32) -> i64,
}

// The sizes that version 1 has for good.
const _: () = assert!(size_of::<PoolNow>() == 328 && size_of::<TierNow>() == 4184);
const _: () = assert!(size_of::<ExtentNow>() == 32 && size_of::<UnsafeNow>() == 24);
const _: () = assert!(size_of::<FlushBegun>() == 24 && size_of::<PinNow>() == 24);
// What grows at its end.
const _: () = assert!(size_of::<Services>() == 288);

/// The table of the process's preload library, as a library beside it finds it: once, by its
/// symbol. All threads may share it.
#[derive(Debug)]
pub struct Found(AtomicPtr<Services>);

impl Found {
    /// No table has such an address: the process has none, or not one that is long enough.
    const ABSENT: *mut Services = core::ptr::without_provenance_mut(1);

    /// Before the first look.
    pub const fn new() -> Found {
        Found(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The table, if the process runs under Forebay now. `look_up` is asked until it was answered:
    /// the address of a symbol in all that was loaded with the program, as `dlsym` gives it, which
    /// then stays.
    #[inline]
    pub fn get(&self, look_up: impl FnOnce(&CStr) -> *mut c_void) -> Option<&'static Services> {
        let mut table = self.0.load(Ordering::Acquire);
        if table.is_null() {
            let found = look_up(SERVICES).cast::<Services>();
            // SAFETY: what its library exports by this name, and what stays.
            table = if unsafe { is_whole(found) } { found } else { Self::ABSENT };
            self.0.store(table, Ordering::Release);
        }
        if self.is_absent() {
            return None;
        }
        // SAFETY: a table that its library exports, which was loaded with the program and stays.
        let services = unsafe { &*table };
        ((services.is_active)() == 1).then_some(services)
    }

    /// Whether the process was seen to have no such table.
    pub fn is_absent(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ABSENT
    }
}

impl Default for Found {
    fn default() -> Found {
        Found::new()
    }
}

/// Whether a table has all that this build knows of.
///
/// # Safety
/// `table` is null, or that of a preload library of any build.
pub unsafe fn is_whole(table: *const Services) -> bool {
    // SAFETY: all tables begin with their length.
    !table.is_null() && unsafe { (*table).bytes } >= size_of::<Services>()
}

/// The first bytes of a text, with a zero behind them.
pub fn cut_off<const N: usize>(from: &[u8]) -> [c_char; N] {
    let mut to = [0; N];
    to[..N - 1].iter_mut().zip(from).for_each(|(to, &from)| *to = from as c_char);
    to
}

impl Session {
    /// What the pool is now.
    pub fn pool_now(&self) -> PoolNow {
        let header = self.segment.header();
        PoolNow {
            path: cut_off(self.carried.pool().map_or(&[], CStr::to_bytes)),
            instance: cut_off(&header.instance),
            page_bytes: self.segment.page_bytes() as u64,
            block_bytes: self.segment.bucket_bytes() as u64,
            tiers: header.tiers,
            stores: header.stores,
            manager: header.manager_pid.load(Ordering::Acquire),
            is_served: self.segment.manager_is_alive().into(),
            job: self.segment.client(self.slot()).job.load(Ordering::Relaxed),
            reserved: 0,
        }
    }

    /// What the tier of this number is now; `None` if there is none.
    pub fn tier_now(&self, number: u32) -> Option<TierNow> {
        let header = self.segment.header();
        let id = header.tiers_in_use().find(|id| id.index() == number as usize)?;
        let (tier, bucket) = (&header.tier[id], self.segment.bucket_bytes() as u64);
        let free = self.segment.free_in(id).min(tier.buckets);
        Some(TierNow {
            name: cut_off(text(&tier.name).to_bytes()),
            path: cut_off(text(&tier.path).to_bytes()),
            capacity: u64::from(tier.buckets) * bucket,
            free: u64::from(free) * bucket,
            is_lasting: (id != TierId::RAM).into(),
            has_failed: (!self.segment.is_sound(id)).into(),
        })
    }
}
