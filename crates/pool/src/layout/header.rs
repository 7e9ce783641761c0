//! The head of a segment.

use super::{
    CHANGED_NAMES, CLIENTS_MAX, Counters, Emulation, FOLDER_BYTES, INSTANCE_BYTES, JOBS_MAX,
    JobQuota, JobRecord, LinkSpeed, MAKER_BYTES, NEEDED_FILES, OTHERS_WORDS, STORES_MAX,
    StoreHeader, TierHeader, UNRECORDED, WATCHES,
};
use crate::moves::{Moves, Sample};
use crate::stay::StaysUntil;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{BucketId, FileId};
use core::ops::Range;
use forebay_placement::exposure::{EXPOSED_MAX, Exposed};
use forebay_placement::schema::{Durability, Trigger};
use forebay_placement::{Costs, Model, TIERS_MAX, TierId};

/// What [`Header::exposed_permille`] says where the data organizer measures the share.
const EXPOSED_MEASURED: u32 = u32::MAX;

/// The head of the segment, 80 KiB, the token buckets and paths of tiers and stores included.
#[repr(C, align(4096))]
pub struct Header {
    /// [`super::MAGIC`], written last when a segment is made.
    pub magic: AtomicU64,
    /// [`super::LAYOUT_VERSION`].
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
    /// A bit for each client slot that a process has, see [`crate::slot_bits`].
    pub clients_taken: [AtomicU64; CLIENTS_MAX as usize / 64],
    /// One past the highest bucket of the RAM tier that ever had memory; those below have it, but
    /// for those whose state says that it was given back.
    pub ram_ready: AtomicU32,
    /// Where the next search for a free file record starts, the lowest that is known to be free,
    /// so that records in use stay together.
    pub file_cursor: AtomicU32,
    /// One past the highest file record ever used.
    pub files_high: AtomicU32,
    /// How far the manager is with its end, see [`retirement`].
    pub retired: AtomicU32,
    /// 1: other nodes may have files of the stores, too, so a new record begins with
    /// [`crate::lease::Lease::Nothing`].
    pub shares_files: AtomicU32,
    /// The first life of this node in its group that had this pool; 0 if none did.
    pub group_life: AtomicU32,
    /// Until when what is here may go to the stores, see [`crate::fence`].
    pub flush_fence: AtomicU64,
    /// Until when the manager stays without a run.
    pub stays_until: StaysUntil,
    /// Where the next search for a free open-file description starts.
    pub description_cursor: AtomicU32,
    /// The node manager's clock in milliseconds, at most 100 of them late, a second after nothing
    /// has happened for long: good enough for hotness, and free for readers, because the line is in
    /// every cache.
    pub now_ms: AtomicU32,
    /// Futex of the demoters: raised when a thread wants room in RAM.
    pub room_wanted: AtomicU32,
    /// Futex of the placers: raised when a block in RAM is bound for a lower tier.
    pub blocks_bound: AtomicU32,
    /// 1: some placer may be asleep on that.
    pub placers_asleep: AtomicU32,
    /// Futex of the promoter: raised when a block of a file tier was used so often that it may go
    /// up.
    pub blocks_hot: AtomicU32,
    /// 1: the promoter may be asleep on that.
    pub promoter_asleep: AtomicU32,
    /// Futex of waiting clients: raised when RAM buckets became free.
    pub room_made: AtomicU32,
    /// Futex of the flushers: raised when a flush is wanted.
    pub work_wanted: AtomicU32,
    /// Futex of threads that wait for a sync to be done.
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
    /// Thousandths of a move by the data organizer that a writer waits for, or `u32::MAX`: those
    /// in `exposed_now`.
    pub exposed_permille: AtomicU32,
    /// After how many milliseconds an access counts half, see [`Header::half_life_ms`].
    pub half_life: AtomicU32,
    /// How victims are chosen: the index in [`forebay_placement::evict::Eviction::ALL`].
    pub eviction: AtomicU32,
    /// 1: what programs will probably read is brought to RAM ahead of them.
    pub prefetch: AtomicU32,
    /// How many caps there are on what the store lacks, of jobs and of all, see [`crate::caps`].
    pub caps: AtomicU32,
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
    /// The latest time that the kernel gave a change after a look at a file, nanoseconds of
    /// CLOCK_REALTIME: changes after that are not earlier.
    pub stamped_ns: AtomicU64,
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
    /// Buckets below `ram_ready` without memory.
    pub ram_unbacked: AtomicU32,
    /// Buckets of RAM for which there is memory, as far as is known.
    pub ram_limit: AtomicU32,
    /// Futex of the thread that gets memory for buckets: 1 when it is wanted.
    pub memory_wanted: AtomicU32,
    /// Where the next search for buckets without memory starts.
    pub memory_cursor: AtomicU32,
    /// What the last changes of names were about: change n in place n modulo their number, the
    /// lower half of n in the upper half, the sum of the name in the lower.
    pub changed_names: [AtomicU64; CHANGED_NAMES],
    /// How many file records have memory; the first ones.
    pub files_ready: AtomicU32,
    /// How many open-file descriptions have memory; the first ones.
    pub descriptions_ready: AtomicU32,
    /// Raised before a child that is about to be forked gets what its parent holds.
    pub forks: AtomicU32,
    /// Raised after a program has made or removed a symbolic link, or given one or a folder another
    /// name: a path that begins with what was a folder may lead elsewhere.
    pub ways: AtomicU32,
    /// Raised before a record leaves the table, or its file turns direct: what the kernel has said
    /// of such a file before may be older than what was flushed since.
    pub stat_epoch: AtomicU32,
    /// The root directory of the node manager: its inode, and its mount; 0 is not known. Set by
    /// each manager for itself.
    pub root_inode: AtomicU64,
    /// See `root_inode`.
    pub root_mount: AtomicU64,
    /// How many places of `watched` are taken, or a few more.
    pub watches: AtomicU32,
    /// What programs watch, see `watches.rs`.
    pub watched: [AtomicU64; WATCHES],
    /// The share that the data organizer has measured, in thousandths, see
    /// [`forebay_placement::exposure`].
    pub exposed_now: AtomicU32,
    /// The next ticket of those that wait for blocks of other nodes, see `others.rs`.
    pub others_asked: AtomicU32,
    /// A bit for each ticket, which turns when it is answered.
    pub others_answered: [AtomicU64; OTHERS_WORDS],
    /// Raised after each pin, and never 0 once there was one, see [`crate::pins`].
    pub pins: AtomicU32,
    /// Thousandths of a tier that the processes of one job may pin.
    pub pin_permille: AtomicU32,
    /// Messages between ranks of different nodes. Set by each manager, as the next.
    pub between_nodes: LinkSpeed,
    /// Messages between ranks of one node.
    pub within_node: LinkSpeed,
    /// What program files and libraries need, see `needed.rs`.
    pub needed: [AtomicU64; NEEDED_FILES],
    /// What went to the stores of staged files.
    pub staged: StagedCounts,
    /// What went from which place to which.
    pub moves: Moves,
    /// What the totals of that were when the node manager looked last, and before.
    pub samples: [Sample; 2],
    /// What all files together may have in the tiers that the store lacks. Set by each manager.
    pub cap: JobQuota,
    /// Futex of the thread that flushes for caps: raised when that is wanted.
    pub caps_wanted: AtomicU32,
    /// Futex of threads that wait at a cap: raised when the node manager has counted something
    /// else.
    pub caps_counted: AtomicU32,
}

/// What the node manager has brought to the stores of staged files since the pool was made.
#[repr(C)]
pub struct StagedCounts {
    /// Writes.
    pub requests: AtomicU64,
    /// Those of them that were a stripe, or the last one of their file up to its end.
    pub whole: AtomicU64,
    /// Bytes that were read back from the store, and were what was written.
    pub compared: AtomicU64,
    /// Writes that were not, and were made again.
    pub unequal: AtomicU64,
}

impl Header {
    /// Whether no process may join any more.
    pub fn is_over(&self) -> bool {
        self.retired.load(Ordering::SeqCst) >= retirement::GONE
    }

    /// The tiers in use, fastest first.
    #[inline]
    pub fn tiers_in_use(
        &self,
    ) -> impl DoubleEndedIterator<Item = TierId> + ExactSizeIterator + Clone + use<> {
        TierId::all(self.tiers as usize)
    }

    /// All file records, in use or not.
    pub fn file_ids(&self) -> impl DoubleEndedIterator<Item = FileId> + ExactSizeIterator + use<> {
        FileId::range(0, self.files_ready())
    }

    /// Whether there is a record of this number: it may come from a damaged word.
    #[inline]
    pub fn has_file(&self, file: FileId) -> bool {
        file.raw() < self.files_ready()
    }

    /// How many file records there are: the others have no memory yet.
    #[inline(always)]
    pub fn files_ready(&self) -> u32 {
        self.files_ready.load(Ordering::Relaxed)
    }

    /// Those of them whose slots lie in a file.
    #[inline]
    pub fn file_tiers(&self) -> impl DoubleEndedIterator<Item = TierId> + Clone + use<> {
        TierId::RAM.below(self.tiers as usize)
    }

    /// All buckets, those behind the last of a tier included, but for sparse ones that have never
    /// been in use.
    pub fn bucket_ids(&self) -> impl DoubleEndedIterator<Item = BucketId> + Clone + use<> {
        let mut ranges = [(0, 0); TIERS_MAX];
        for tier in self.tiers_in_use() {
            let first = self.tier[tier].first_bucket;
            ranges[tier.index()] = (first, self.sparse_in_use(tier).end);
        }
        ranges.into_iter().flat_map(|(first, end)| BucketId::range(first, end))
    }

    /// Those among them that are not sparse, and have a number in `within`.
    pub(crate) fn whole_buckets_in(
        &self,
        within: Range<u32>,
    ) -> impl Iterator<Item = BucketId> + use<> {
        let mut ranges = [(0, 0); TIERS_MAX];
        for tier in self.tiers_in_use() {
            let first = self.tier[tier].first_bucket;
            let end = (first + self.tier[tier].buckets).min(within.end);
            ranges[tier.index()] = (first.max(within.start).min(end), end);
        }
        ranges.into_iter().flat_map(|(first, end)| BucketId::range(first, end))
    }

    /// Sparse slots of all file tiers.
    pub(crate) fn sparse_slots(&self) -> u32 {
        self.file_tiers().map(|tier| self.tier[tier].sparse.buckets).sum()
    }

    /// The numbers of the sparse buckets of a tier.
    #[inline]
    pub fn sparse(&self, tier: TierId) -> core::ops::Range<u32> {
        let of_tier = &self.tier[tier];
        let first = of_tier.first_bucket + of_tier.buckets.next_multiple_of(64);
        first..first + of_tier.sparse.buckets
    }

    /// Those of them that have ever been in use.
    #[inline]
    pub fn sparse_in_use(&self, tier: TierId) -> core::ops::Range<u32> {
        let Range { start, end } = self.sparse(tier);
        start..start + self.tier[tier].sparse.ready.load(Ordering::Acquire).min(end - start)
    }

    /// The flush trigger in force.
    pub fn flush_trigger(&self) -> Trigger {
        Trigger::from_code(self.trigger.load(Ordering::Relaxed) as u8).unwrap_or(Trigger::Periodic)
    }

    /// How much of a move by the data organizer counts as waiting.
    pub fn exposed(&self) -> Exposed {
        match self.exposed_permille.load(Ordering::Relaxed) {
            EXPOSED_MEASURED => Exposed::Measured,
            permille => Exposed::Fixed(permille.min(1000) as u16),
        }
    }

    /// Sets that, before the pool has clients.
    pub fn set_exposed(&self, exposed: Exposed) {
        let permille = match exposed {
            Exposed::Measured => EXPOSED_MEASURED,
            Exposed::Fixed(permille) => permille.into(),
        };
        self.exposed_permille.store(permille, Ordering::Relaxed);
        self.exposed_now.store(EXPOSED_MAX.into(), Ordering::Relaxed);
    }

    /// After how many milliseconds an access counts half; at least 1.
    pub fn half_life_ms(&self) -> u32 {
        self.half_life.load(Ordering::Relaxed).max(1)
    }

    /// How placement counts now.
    pub fn costs(&self) -> Costs {
        let model = match self.cost_model.load(Ordering::Relaxed) {
            0 => Model::Physical,
            _ => Model::Paper,
        };
        let measured = || self.exposed_now.load(Ordering::Relaxed).min(1000) as u16;
        Costs { model, exposed_permille: self.exposed().permille(measured) }
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
            self.half_life.load(Ordering::Relaxed),
            self.eviction.load(Ordering::Relaxed),
            self.prefetch.load(Ordering::Relaxed),
            self.durability.load(Ordering::Relaxed),
            self.pin_permille.load(Ordering::Relaxed),
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
            sum.number(tier.sparse.buckets.into());
            sum.emulation(&tier.emulation);
            sum.bytes(&tier.name);
            sum.bytes(&tier.path);
        }
        for store in &self.store {
            sum.number(store.device);
            sum.number(store.inode);
            sum.number(store.bypass.into());
            sum.emulation(&store.emulation);
            sum.bytes(&store.shared);
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
    /// The same, and everything is on the store: what belongs to it is being removed.
    pub const REMOVED: u32 = 4;
}

pin_size!(Header, 20 * 4096);
