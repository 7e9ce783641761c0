//! The segment's structures, byte for byte. Every size is pinned: another size is another layout
//! version, and a pool left by one is refused by the other.

use crate::dirty_pages::DirtyPages;
use crate::{AtomicFileId, BucketId, FileId};

pub use crate::flags::{AtomicFlags, DescriptionFlags, FileFlags};
pub use crate::lock_scope::{LockScope, SharedLock};
use crate::queue::Queue;
use crate::ranks::{Append, Position, Stripe};
use crate::seq_lock::RobustSeqLock;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::sync::atomic::{AtomicU8, AtomicU16};
use forebay_placement::glob::PATTERN_MAX;
pub use forebay_placement::schema::{Durability, Trigger};
use forebay_placement::schema::{RANK_RANGES_MAX, RULES_MAX, RankRange};
pub use forebay_placement::{NodeId, TIERS_MAX, TierId};

/// The first bytes of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FOREBAY\0");
/// Raised with every change of this file that changes a layout.
pub const LAYOUT_VERSION: u32 = 14;
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
/// Bytes of the path kept in a file record, for recovery and for people.
pub const PATH_BYTES: usize = 760;
/// Changes of names that are remembered.
pub const CHANGED_NAMES: usize = 64;
/// Processes that may make the store's file of one file longer at the same time; more wait.
pub const LENGTHENERS: usize = 4;
/// Locks of the file table.
pub const STRIPES: usize = 8192;
/// Longest path of a tier or a store, with its terminating zero.
pub const LONG_PATH_BYTES: usize = 4096;

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

macro_rules! pin_size {
    ($type:ty, $size:expr) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $size);
    };
}

/// The head of the segment, 72 KiB, the token buckets and paths of tiers and stores included.
#[repr(C, align(4096))]
pub struct Header {
    /// [`MAGIC`], written last when a segment is made.
    pub magic: AtomicU64,
    /// [`LAYOUT_VERSION`].
    pub layout_version: u32,
    /// Bytes of a page.
    pub page_size: u32,
    /// Tiers in use.
    pub tiers: u32,
    /// Stores in use.
    pub stores: u32,
    /// Buckets of all tiers together.
    pub buckets: u32,
    /// Client slots; slot 0 is the node manager's.
    pub clients: u32,
    /// File records.
    pub files: u32,
    /// Open-file descriptions.
    pub descriptions: u32,
    /// Index nodes.
    pub nodes: u32,
    /// Hash heads of the file table.
    pub heads: u32,
    /// Rules of the buffering schema in use.
    pub rules: u32,
    /// Not used.
    pub reserved: u32,
    /// Bytes of the whole segment.
    pub segment_bytes: u64,
    /// Which instance: sixteen hexadecimal digits. This and the next two stay where they are in
    /// every later layout: each version finds the pools of all.
    pub instance: [u8; INSTANCE_BYTES],
    /// Inode of the pool's file: a copy has another.
    pub inode: AtomicU64,
    /// The private folder of the instance, zero-terminated; empty if it is not known. Another
    /// manager may have it elsewhere: what is read while that is written is no folder.
    pub folder: [AtomicU64; FOLDER_BYTES / 8],
    /// The version of Forebay that made it, zero-terminated; it stays where it is in every later
    /// layout, too, so that those that cannot read the rest can say which version can.
    pub maker: [u8; MAKER_BYTES],
    /// A number of its own, at random: slots and their tables have it in their heads, too.
    pub number: u64,

    /// Node manager's process id; 0 when it has left in order.
    pub manager_pid: AtomicU32,
    /// Raised whenever a node manager attaches.
    pub manager_epoch: AtomicU32,
    /// Start time of the manager's process, in clock ticks after boot.
    pub manager_start: AtomicU64,
    /// One past the highest client slot ever used.
    pub clients_high: AtomicU32,
    /// Buckets of the RAM tier that are backed by memory so far.
    pub ram_ready: AtomicU32,
    /// Where the next search for a free file record starts; the manager sets it back, so that
    /// records in use stay together.
    pub file_cursor: AtomicU32,
    /// One past the highest file record ever used.
    pub files_high: AtomicU32,
    /// How far the manager is with its end, see [`retirement`].
    pub retired: AtomicU32,
    /// Where the next search for a free open-file description starts.
    pub description_cursor: AtomicU32,
    /// The node manager's clock in milliseconds, at most 100 of them late: good enough for hotness,
    /// and free for readers, because the line is in every cache.
    pub now_ms: AtomicU32,
    /// Futex of the demoters: raised when a thread wants room in RAM.
    pub room_wanted: AtomicU32,
    /// Futex of waiting clients: raised when RAM buckets became free.
    pub room_made: AtomicU32,
    /// Futex of the flushers: raised when a flush is wanted.
    pub work_wanted: AtomicU32,
    /// Futex of those who wait for a sync to be done.
    pub work_done: AtomicU32,
    /// When dirty blocks are flushed, see [`Trigger`].
    pub trigger: AtomicU32,
    /// Opens that could not be buffered because the file table or the descriptions were full.
    pub opens_refused: AtomicU32,
    /// The placement policy of files whose rule names none: [`forebay_placement::PolicyId`]'s
    /// number.
    pub policy: AtomicU32,
    /// How the placement engine computes costs: 0 physically, 1 as the paper prints it.
    pub cost_model: AtomicU32,
    /// Thousandths of a move by the data organizer that a writer waits for.
    pub exposed_permille: AtomicU32,
    /// How victims are chosen: the index in [`forebay_placement::evict::Eviction::ALL`].
    pub eviction: AtomicU32,
    /// 1: what programs will probably read is brought to RAM ahead of them.
    pub prefetch: AtomicU32,
    /// Bytes to which free space is rounded before a placement is decided anew.
    pub granularity: AtomicU64,
    /// Counters of clients that are gone; live ones are in their slots.
    pub past: Counters,
    /// Where and how fast each tier is.
    pub tier: [TierHeader; TIERS_MAX],
    /// The managed directories.
    pub store: [StoreHeader; STORES_MAX],
    /// A program without the library may be at the other end of a socket: descriptors that are
    /// sent are used through the kernel.
    pub unmanaged_peers: AtomicU32,
    /// Bit n: the device of file tier n has failed. Nothing new goes there.
    pub failed_tiers: AtomicU32,
    /// The next number for slot records, journal records and syncs: what happens later has a higher
    /// one.
    pub sequence: AtomicU64,
    /// What fsync waits for where no rule says so: the code of a [`Durability`].
    pub durability: AtomicU32,
    /// Times that a file was found changed by others on the store while Forebay had data for it.
    pub conflicts: AtomicU32,
    /// Raised by programs after each call that gives a file another name, or takes one away, and
    /// before they look whether the file is in the table: see [`crate::files::Names::changes`].
    pub name_changes: AtomicU64,
    /// Over all that never changes once the segment is made, see `Header::sum`.
    pub checksum: AtomicU64,
    /// Buckets of each tier that are set aside for jobs, free or in use.
    pub set_aside: [AtomicU32; TIERS_MAX],
    /// The runs under way.
    pub job: [JobRecord; JOBS_MAX],
    /// The PID namespace of the node manager, and so of all whose numbers are here; 0: not known.
    /// See [`crate::liveness::namespace`].
    pub namespace: AtomicU64,
    /// How often processes noted that they use files of each number without a record, see
    /// `unrecorded.rs`. 0: none does.
    pub unrecorded: [AtomicU32; UNRECORDED],
    /// What the last changes of names were about: change n in place n modulo their number, the
    /// lower half of n in the upper half, the sum of the name in the lower.
    pub changed_names: [AtomicU64; CHANGED_NAMES],
}

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
    /// Which of the jobs that had this place one after the other: `n * JOBS_MAX + place`, n from 1.
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
    /// Not used.
    pub spare: AtomicU32,
}

impl Header {
    /// The tiers in use, fastest first.
    #[inline]
    pub fn tiers_in_use(
        &self,
    ) -> impl DoubleEndedIterator<Item = TierId> + ExactSizeIterator + Clone + use<> {
        TierId::all(self.tiers as usize)
    }

    /// All file records, in use or not.
    pub fn file_ids(&self) -> impl DoubleEndedIterator<Item = FileId> + ExactSizeIterator + use<> {
        FileId::range(0, self.files)
    }

    /// Whether there is a record of this number: it may come from a damaged word.
    #[inline]
    pub fn has_file(&self, file: FileId) -> bool {
        file.raw() < self.files
    }

    /// Those of them whose slots lie in a file.
    #[inline]
    pub fn file_tiers(&self) -> impl DoubleEndedIterator<Item = TierId> + Clone + use<> {
        TierId::RAM.below(self.tiers as usize)
    }

    /// All buckets, those behind the last of a tier included.
    pub fn bucket_ids(
        &self,
    ) -> impl DoubleEndedIterator<Item = BucketId> + ExactSizeIterator + Clone + use<> {
        BucketId::range(0, self.buckets)
    }

    /// The flush trigger in force.
    pub fn flush_trigger(&self) -> Trigger {
        Trigger::from_code(self.trigger.load(Ordering::Relaxed) as u8).unwrap_or(Trigger::Periodic)
    }

    /// What fsync waits for where no rule says so.
    pub fn fsync_durability(&self) -> Durability {
        let code = self.durability.load(Ordering::Relaxed) as u8;
        Durability::from_code(code).unwrap_or(Durability::Store)
    }

    /// Says where the instance's folder is; one whose path is too long is not known.
    pub fn set_folder(&self, path: &[u8]) {
        let mut bytes = [0; FOLDER_BYTES];
        if let Some(room) = bytes[..FOLDER_BYTES - 1].get_mut(..path.len()) {
            room.copy_from_slice(path);
        }
        for (word, bytes) in self.folder.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// A checksum of what never changes once the segment is made: sizes, settings, where tiers and
    /// stores are, and `rules`. Every single changed word changes it.
    pub(crate) fn sum(&self, rules: &[u8]) -> u64 {
        let mut sum = Sum(0xcbf2_9ce4_8422_2325);
        for number in [
            self.layout_version,
            self.page_size,
            self.tiers,
            self.stores,
            self.buckets,
            self.clients,
            self.files,
            self.descriptions,
            self.nodes,
            self.heads,
            self.rules,
            self.trigger.load(Ordering::Relaxed),
            self.policy.load(Ordering::Relaxed),
            self.cost_model.load(Ordering::Relaxed),
            self.exposed_permille.load(Ordering::Relaxed),
            self.eviction.load(Ordering::Relaxed),
            self.prefetch.load(Ordering::Relaxed),
            self.durability.load(Ordering::Relaxed),
        ] {
            sum.number(number.into());
        }
        sum.number(self.segment_bytes);
        sum.bytes(&self.instance);
        sum.number(self.number);
        sum.number(self.granularity.load(Ordering::Relaxed));
        for tier in &self.tier {
            sum.number(tier.first_bucket.into());
            sum.number(tier.buckets.into());
            sum.emulation(&tier.emulation);
            sum.bytes(&tier.name);
            sum.bytes(&tier.path);
        }
        for store in &self.store {
            sum.number(store.device);
            sum.number(store.bypass.into());
            sum.emulation(&store.emulation);
            sum.bytes(&store.path);
        }
        sum.bytes(rules);
        sum.0
    }
}

/// A running checksum in the manner of Fowler, Noll and Vo, word by word. Each step is a
/// permutation of the state, so that one word that differs cannot be undone by equal ones.
struct Sum(u64);

impl Sum {
    fn number(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x100_0000_01b3);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.number(u64::from_le_bytes(*word)));
        rest.iter().for_each(|&byte| self.number(byte.into()));
    }

    fn emulation(&mut self, emulation: &Emulation) {
        for number in [emulation.read_bandwidth, emulation.write_bandwidth, emulation.latency_ns] {
            self.number(number);
        }
    }
}

/// Bandwidths and latency of an emulated device, and its token bucket.
#[repr(C)]
pub struct Emulation {
    /// Bytes per second; 0 is not limited.
    pub read_bandwidth: u64,
    /// Bytes per second; 0 is not limited.
    pub write_bandwidth: u64,
    /// Nanoseconds added to each transfer.
    pub latency_ns: u64,
    /// CLOCK_MONOTONIC nanoseconds at which the device is free again.
    pub next_free_ns: AtomicU64,
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
}

/// A tier: its buckets are `first_bucket .. first_bucket + buckets`.
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
    /// Raised when a block of it that might be promoted was used.
    pub used: AtomicU32,
    /// About how many hold blocks that the store has, and that may leave: dropping them takes no
    /// time.
    pub clean: AtomicU32,
    /// Why nothing new goes there, where the header's `failed_tiers` says so: an errno.
    pub failed_errno: AtomicU32,
    /// Milliseconds: since when.
    pub failed_at: AtomicU32,
    /// Its emulated device, if any.
    pub emulation: Emulation,
    /// How fast it is.
    pub speed: DeviceSpeed,
    /// Name, zero-terminated.
    pub name: [u8; 56],
    /// The file that holds the slots of a file tier; empty for RAM.
    pub path: [u8; LONG_PATH_BYTES],
}

/// A managed directory of a backing store.
#[repr(C)]
pub struct StoreHeader {
    /// Device number.
    pub device: u64,
    /// 1: everything goes straight to the store.
    pub bypass: u32,
    /// The buffering mode of files for which neither a rule nor their run gives one: a code, or 0.
    pub mode: u32,
    /// Its emulated device, if any.
    pub emulation: Emulation,
    /// How fast it is.
    pub speed: DeviceSpeed,
    /// Canonical path, zero-terminated.
    pub path: [u8; LONG_PATH_BYTES],
}

/// What clients count, from the start of their pool. Tests use it to prove that interception was
/// live.
#[repr(C)]
pub struct Counters {
    /// Calls: files opened for buffering.
    pub opens: AtomicU64,
    /// Calls: writes served from the tiers.
    pub writes: AtomicU64,
    /// Bytes: written by them.
    pub write_bytes: AtomicU64,
    /// Calls: reads served at least in part from the tiers.
    pub reads: AtomicU64,
    /// Bytes: read by them.
    pub read_bytes: AtomicU64,
    /// Blocks: written to the store past the tiers, which had no room.
    pub write_around: AtomicU64,
    /// Waits: of a writer, for room in the tiers.
    pub backpressure: AtomicU64,
    /// Calls: passed to the kernel after the file was made clean.
    pub passthrough: AtomicU64,
    /// Bytes: read from the store by programs that waited for them.
    pub missed_bytes: AtomicU64,
}

/// One of the [`Counters`].
pub struct Counter<'a> {
    /// Its name, as `forebay status` has it.
    pub name: &'static str,
    /// What is counted.
    pub unit: &'static str,
    /// Which of that: a line for people.
    pub help: &'static str,
    /// The count.
    pub value: &'a AtomicU64,
}

impl Counters {
    /// All counters, always in the same order.
    pub fn all(&self) -> [Counter<'_>; 9] {
        let of = |name, unit, help, value| Counter { name, unit, help, value };
        [
            of("opens", "calls", "files opened for buffering", &self.opens),
            of("writes", "calls", "writes served from the tiers", &self.writes),
            of("write_bytes", "bytes", "written by them", &self.write_bytes),
            of("reads", "calls", "reads served at least in part from the tiers", &self.reads),
            of("read_bytes", "bytes", "read by them", &self.read_bytes),
            of(
                "write_around",
                "blocks",
                "written to the store past the tiers, which had no room",
                &self.write_around,
            ),
            of("backpressure", "waits", "of a writer, for room in the tiers", &self.backpressure),
            of(
                "passthrough",
                "calls",
                "passed to the kernel after the file was made clean",
                &self.passthrough,
            ),
            of(
                "missed_bytes",
                "bytes",
                "read from the store by programs that waited for them",
                &self.missed_bytes,
            ),
        ]
    }
}

/// A client slot's states.
pub mod slot_state {
    /// Free.
    pub const FREE: u32 = 0;
    /// Taken by a parent for the child it is about to fork.
    pub const RESERVED: u32 = 1;
    /// A running process.
    pub const LIVE: u32 = 2;
    /// Being cleared by the thread that saw the process dead.
    pub const REAPING: u32 = 3;
}

/// A process that buffers. Padded so that no two slots share a cache line.
#[repr(C, align(128))]
pub struct ClientSlot {
    /// See [`slot_state`].
    pub state: AtomicU32,
    /// Process id.
    pub pid: AtomicU32,
    /// Start time of the process in clock ticks: with the pid, its identity.
    pub start: AtomicU64,
    /// Raised when the slot is taken and when it becomes free, so that nothing late is taken for
    /// the new process's.
    pub generation: AtomicU32,
    /// Next word of the free map to search.
    pub bucket_hint: AtomicU32,
    /// Free buckets kept for this process, plus one; 0 is an empty place.
    pub buckets: [AtomicU32; CACHED_BUCKETS],
    /// Index nodes kept for this process, plus one.
    pub nodes: [AtomicU32; CACHED_NODES],
    /// Of a reserved slot: the child it is for, as soon as the parent knows, see
    /// [`crate::Segment::child_of`].
    pub child: AtomicU32,
    /// The bucket that was used last, plus one: uses that follow each other count as one.
    pub last_bucket: AtomicU32,
    /// What this process did.
    pub counters: Counters,
    /// For each thread inside a buffered file: the thread and the file, see [`SharedLock`].
    pub shared_locks: [AtomicU64; SHARED_LOCKS],
    /// Number of the job that the process belongs to; 0 is none. Inherited by forked children.
    pub job: AtomicU32,
    /// Milliseconds, never 0: since when it has been in one and the same place without doing
    /// anything, as the node manager sees it. 0: it goes on.
    pub standing: AtomicU32,
    /// The numbers of files that the process uses without a record, a bit each, see
    /// `unrecorded.rs`. Inherited by forked children.
    pub unrecorded: AtomicU64,
    /// Opens that are under way, from before the kernel's until the file's description is live, see
    /// [`crate::Segment::openers`].
    pub opening: AtomicU32,
}

/// Values of [`Header::retired`]. Whatever it is, every process opens through the file table, so
/// that all that have a file open see the same of it.
pub mod retirement {
    /// Files are buffered.
    pub const NONE: u32 = 0;
    /// The manager makes all files clean and direct; those that come into the table are direct.
    pub const CLEARING: u32 = 1;
    /// All files are direct. The manager stays for the processes that have them open.
    pub const DIRECT: u32 = 2;
    /// The segment is about to be removed: no process uses it, and none may join.
    pub const GONE: u32 = 3;
}

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
#[repr(C, align(64))]
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
    /// Length of `path`; 0 if it did not fit.
    pub path_length: AtomicU32,
    /// Which tiers held some of it since it was last without blocks: bit n for tier n.
    pub placed: AtomicU32,
    /// Milliseconds: the manager does not try this file again before.
    pub retry_at: AtomicU32,
    /// When the file was born, nanoseconds; 0 if the store does not know.
    pub born_ns: AtomicU64,
    /// How often, and how lately, the file was used: a [`forebay_placement::hotness::Score`].
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
    /// was left there, see [`crate::tail`].
    pub dirty_tails: AtomicU32,
    /// Owners that are giving the store's file bytes behind its end, before the record says so, or
    /// [`LENGTHENER_LEFT`]; 0 is a free place, see [`crate::tail`].
    pub lengtheners: [AtomicU32; LENGTHENERS],
    /// Canonical path when opened; a hint, identity decides.
    pub path: [AtomicU8; PATH_BYTES],
}

/// A rule of the buffering schema, see [`crate::rules`]. Texts are zero-terminated.
#[repr(C)]
#[derive(Clone)]
pub struct RuleRecord {
    /// Bytes of the file: at least, at most.
    pub(crate) size_min: u64,
    pub(crate) size_max: u64,
    /// Versions or nanoseconds, as `lifetime` says.
    pub(crate) lifetime_value: u64,
    /// User id; all ones is any.
    pub(crate) user: u32,
    /// Ranges of `rank` in use; 0 is any rank.
    pub(crate) ranks: u32,
    pub(crate) rank: [RankRange; RANK_RANGES_MAX],
    /// Codes of the settings; 0 is not given, but for `tier`, where it is all ones.
    pub(crate) policy: u8,
    pub(crate) tier: u8,
    pub(crate) mode: u8,
    pub(crate) trigger: u8,
    pub(crate) durability: u8,
    pub(crate) lifetime: u8,
    pub(crate) priority: u8,
    pub(crate) flags: u8,
    /// Patterns; empty matches all.
    pub(crate) path: [u8; PATTERN_MAX + 1],
    pub(crate) process: [u8; 64],
    pub(crate) dataset: [u8; 192],
    /// For people.
    pub(crate) name: [u8; 56],
    pub(crate) source: [u8; 120],
    /// Bytes that each job gets for the files that match.
    pub(crate) reserve: u64,
}

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
    /// byte. Only that process changes it, or who reaps it.
    pub const OPENING: u32 = 3;
}

/// An open-file description: what dup, fork and exec share.
#[repr(C, align(64))]
pub struct Description {
    /// Generation (upper half) and [`description_state`].
    pub word: AtomicU64,
    /// Guards `offset`.
    pub position: RobustSeqLock<Position>,
    /// File offset.
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
    /// Not used.
    pub reserved: AtomicU32,
}

/// A bucket of any tier.
#[repr(C, align(64))]
pub struct BucketMeta {
    /// Guards everything below, and versions the content.
    pub lock: RobustSeqLock,
    /// `FREE`, `USED`, `FILLING`, `RESERVED`, or the owner whose cache it is in.
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
    pub reserved: AtomicU32,
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
}

/// A node of the block index.
#[repr(C, align(64))]
pub struct IndexNode {
    /// Index entries in a leaf, children (node plus one) above.
    pub entry: [AtomicU64; NODE_ENTRIES],
}

pin_size!(BucketMeta, 64);
pin_size!(SlotChecksums, 264);
pin_size!(Description, 64);
pin_size!(FileRecord, 1024);
pin_size!(IndexNode, 512);
pin_size!(Counters, 72);
pin_size!(ClientSlot, 896);
pin_size!(RuleRecord, 1024);
pin_size!(JobRecord, 40);
pin_size!(Queue, 65_792);
pin_size!(DeviceSpeed, 24);
pin_size!(TierHeader, 4248);
pin_size!(StoreHeader, 4168);
pin_size!(Header, 18 * 4096);

/// What the segment is sized by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a page: 4 KiB to 64 KiB, a power of two.
    pub page_size: u32,
    /// Buckets of each tier, RAM first.
    pub tier_buckets: Vec<u32>,
    /// Client slots, at most 4096.
    pub clients: u32,
    /// File records.
    pub files: u32,
    /// Open-file descriptions, at most 65,536 (the marker has 16 bits for them).
    pub descriptions: u32,
    /// Index nodes.
    pub nodes: u32,
}

impl Geometry {
    /// Sizes for tiers of the given bytes: tables grow with the buckets, because every dirty file
    /// needs at least one. A processes' limit of 1024 and 16,384 open descriptions cost 4 MiB.
    pub fn for_tiers(page_size: u32, tier_bytes: &[u64]) -> Geometry {
        let bucket = u64::from(page_size) * u64::from(PAGES_PER_BUCKET);
        let tier_buckets: Vec<u32> = tier_bytes
            .iter()
            .map(|bytes| u32::try_from(bytes / bucket).unwrap_or(u32::MAX / 16))
            .collect();
        let total: u32 = tier_buckets.iter().sum();
        let files = total.clamp(8192, 1 << 17);
        Geometry {
            page_size,
            tier_buckets,
            clients: 1024,
            files,
            descriptions: 1 << 14,
            nodes: (total / 16 + files).next_multiple_of(64),
        }
    }

    /// Bytes of a bucket.
    pub fn bucket_bytes(&self) -> u64 {
        u64::from(self.page_size) * u64::from(PAGES_PER_BUCKET)
    }
}

/// Byte offsets of the sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    pub(crate) rules: usize,
    pub(crate) queue: usize,
    pub(crate) clients: usize,
    pub(crate) bitmaps: usize,
    pub(crate) stripes: usize,
    pub(crate) heads: usize,
    pub(crate) files: usize,
    pub(crate) descriptions: usize,
    pub(crate) nodes: usize,
    pub(crate) node_states: usize,
    pub(crate) node_bits: usize,
    pub(crate) buckets: usize,
    pub(crate) bucket_bits: usize,
    pub(crate) sums: usize,
    /// End of the sections that are reserved at start.
    pub(crate) fixed_end: usize,
    /// The RAM tier's data.
    pub(crate) data: usize,
    /// Bytes of the whole segment.
    pub(crate) end: usize,
}

/// Alignment of the RAM tier's data: a huge page.
pub const DATA_ALIGN: usize = 2 << 20;

/// Counts from which the offsets follow.
pub(crate) struct Counts {
    pub clients: u32,
    pub descriptions: u32,
    pub heads: u32,
    pub files: u32,
    pub nodes: u32,
    pub buckets: u32,
    pub ram_buckets: u32,
    pub bucket_bytes: u64,
}

impl Offsets {
    pub(crate) fn of(counts: &Counts) -> Offsets {
        let mut at = core::mem::size_of::<Header>();
        let mut section = |bytes: usize| {
            let start = at;
            at = (at + bytes).next_multiple_of(4096);
            start
        };
        let count = |n: u32, each: usize| n as usize * each;
        let rules = section(RULES_MAX * size_of::<RuleRecord>());
        let queue = section(size_of::<Queue>());
        let clients = section(count(counts.clients, size_of::<ClientSlot>()));
        let bitmaps = section(count(counts.clients, counts.descriptions as usize / 8));
        let stripes = section(STRIPES * size_of::<RobustSeqLock<Stripe>>());
        let heads = section(count(counts.heads, 4));
        let files = section(count(counts.files, size_of::<FileRecord>()));
        let descriptions = section(count(counts.descriptions, size_of::<Description>()));
        let nodes = section(count(counts.nodes, size_of::<IndexNode>()));
        let node_states = section(count(counts.nodes, 4));
        let node_bits = section(count(counts.nodes.div_ceil(64), 8));
        let buckets = section(count(counts.buckets, size_of::<BucketMeta>()));
        let bucket_bits = section(count(counts.buckets.div_ceil(64), 8));
        let slots = counts.buckets - counts.ram_buckets.next_multiple_of(64).min(counts.buckets);
        let sums = section(count(slots, size_of::<SlotChecksums>()));
        let fixed_end = section(0);
        let data = fixed_end.next_multiple_of(DATA_ALIGN);
        let bytes = u64::from(counts.ram_buckets) * counts.bucket_bytes;
        let end = data + (bytes as usize).next_multiple_of(DATA_ALIGN);
        Offsets {
            rules,
            queue,
            clients,
            bitmaps,
            stripes,
            heads,
            files,
            descriptions,
            nodes,
            node_states,
            node_bits,
            buckets,
            bucket_bits,
            sums,
            fixed_end,
            data,
            end,
        }
    }
}
