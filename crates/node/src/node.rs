//! What all parts of a node manager share.

use crate::actions::Actions;
use crate::config::Config;
use crate::devices::bandwidth::{BandwidthEstimator, BandwidthEstimators, Device, Observing};
use crate::devices::faults::{self, Faults};
use crate::devices::power_loss::PowerLossBatch;
use crate::group::Grouping;
use crate::instance::runtime::Runtime;
use crate::journal::{self, Journal};
use crate::memory::Memory;
use crate::observe::log::shown;
use crate::observe::trace::Trace;
use crate::remote::RemotePost;
use crate::store::descriptors::Descriptors;
use crate::usage::{buckets_of, dirty_bytes, for_each_bucket_of, have_few_blocks, ranges};
use forebay_device::{BackingStore, Batch, SlotDevice, Span};
use forebay_placement::exposure::Exposure;
use forebay_placement::organizer::Settings;
use forebay_placement::{
    Hierarchy, PolicyId, Speed, TierSnapshot, Watermarks, occupy, transfer_ns,
};
use forebay_pool::BucketId;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::clock::Timer;
use forebay_pool::fence::Flushing;
use forebay_pool::layout::*;
use forebay_pool::lease::Lease;
use forebay_pool::moves::Place;
use forebay_pool::segment::MANAGER_SLOT;
use forebay_pool::slot_record::RECORD_BYTES;
use forebay_pool::{Entry, FileId, Owner, Segment, clock, crash, futex, power_loss};
use forebay_tiers::Throttled;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a worker waits for messages on their way.
const MESSAGES_WAIT_MAX: Timer = Timer::ms(250);
/// Requests in flight in each mover's ring.
pub const QUEUE_DEPTH: u32 = 16;

/// Thread numbers of the manager's slot: each thread that locks has its own.
static THREADS: AtomicU32 = AtomicU32::new(0);

/// A block as found in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BlockRef {
    pub file: FileId,
    pub block: u64,
    pub bucket: BucketId,
}

/// The node manager's state.
pub(crate) struct Node {
    pub segment: Segment,
    pub pool_file: OwnedFd,
    pub config: Config,
    pub runtime: Runtime,
    /// The device of each tier; `None` for RAM, and for a tier that could not be opened.
    pub devices: Vec<Option<Box<dyn SlotDevice>>>,
    pub stores: Vec<Box<dyn BackingStore>>,
    /// The file of each file tier's slots; `None` for RAM, and for a tier that could make none.
    pub slots: Vec<Option<OwnedFd>>,
    /// The table of each file tier's slots.
    pub indexes: Vec<Option<OwnedFd>>,
    pub descriptors: Descriptors,
    /// On the fastest file tier that took it, where there is one.
    pub journal: Option<Journal>,
    /// How much of what leaves RAM programs wait for.
    pub exposure: Mutex<Exposure>,
    /// Of each tier, and behind [`TIERS_MAX`] of each store.
    pub estimators: Vec<BandwidthEstimator>,
    /// Bytes of each store's stripe, or block.
    pub stripes: Vec<u64>,
    pub trace: Trace,
    /// What a tester wants to go wrong; `None` in real life.
    pub faults: Option<Arc<Faults>>,
    /// Flush whatever its age.
    pub draining: AtomicBool,
    /// How often RAM's demoter was woken because blocks became clean, and no writer asked.
    pub cleaned: AtomicU32,
    /// Free bytes of RAM that writers' bursts will take, as its demoter has seen.
    pub kept_free: AtomicU64,
    /// Nothing happens: threads wait until they are woken.
    pub resting: AtomicBool,
    /// Threads shall end.
    pub stopping: AtomicBool,
    pub rounds: Rounds,
    /// When, on the monotonic clock in nanoseconds, flushes in the background may begin again.
    pub flushed_until: AtomicU64,
    /// Ends the control thread's wait.
    pub waker: OwnedFd,
    /// What gets memory for buckets of RAM, and gives it back.
    pub memory: Memory,
    /// Bit n: the device of file tier n takes no room of slots back.
    pub keeps_slots: AtomicU32,
    /// Its part in the group of nodes.
    pub group: Grouping,
    /// What runs on files, and is to.
    pub actions: Actions,
    /// See [`Node::not_set_aside`].
    pub not_set_aside: Mutex<HashSet<(FileId, u32)>>,
    /// Held by the thread that counts what the stores lack, see [`forebay_pool::caps`].
    pub counting_caps: Mutex<()>,
}

/// Rounds of the control thread: each has read everything that was sent before it began.
#[derive(Default)]
pub(crate) struct Rounds {
    count: AtomicU64,
    /// Futex of the threads that wait for a round, and how many they are.
    ended: AtomicU32,
    waiting: AtomicU32,
}

impl Rounds {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether some thread waits for one.
    pub fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Another one has read everything.
    pub fn end_one(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        // Either a waiting thread sees that this is another number, or we see that it waits.
        self.ended.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            futex::wake_all(&self.ended);
        }
    }

    /// Waits for the end of two more: the one under way may have passed a sender by already.
    /// `wake` sees to it that the next begins, and says for how long to wait for it; `None` ends
    /// the wait.
    fn await_two(&self, mut wake: impl FnMut() -> Option<Duration>) {
        let target = self.count() + 2;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let seen = self.ended.load(Ordering::SeqCst);
            if self.count() >= target {
                break;
            }
            let Some(left) = wake() else { break };
            futex::wait(&self.ended, seen, left.as_millis() as u64 + 1);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Node {
    /// A stamp for the calling thread; to be kept by it.
    pub fn new_owner() -> Owner {
        Owner::new(MANAGER_SLOT, THREADS.fetch_add(1, Ordering::Relaxed))
    }

    /// Files, with their records' generations, that are nowhere and could not be set aside.
    pub fn not_set_aside(&self) -> MutexGuard<'_, HashSet<(FileId, u32)>> {
        self.not_set_aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// Whether what is in the pool may go to the store now.
    pub fn flushing(&self) -> Flushing {
        match crash::planted("flush-unfenced") {
            true => Flushing::Free,
            false => self.header().flushing(),
        }
    }

    /// The path of a file, for people.
    pub fn shown_path(&self, record: &FileRecord) -> String {
        shown(OsStr::from_bytes(&self.segment.path_of(record)))
    }

    pub fn tiers(&self) -> impl DoubleEndedIterator<Item = TierId> + ExactSizeIterator + use<> {
        TierId::all(self.config.tiers.len())
    }

    /// The tiers whose slots lie in files.
    pub fn file_tiers(&self) -> impl DoubleEndedIterator<Item = TierId> + use<> {
        TierId::RAM.below(self.config.tiers.len())
    }

    pub fn tier_name(&self, tier: TierId) -> &str {
        &self.config.tiers[tier].name
    }

    /// For how many milliseconds a thread waits that looks after something every `look`: while the
    /// manager rests until it is woken. To be asked after the thread has seen the word on which it
    /// waits.
    pub fn wait_ms(&self, look: u64) -> u64 {
        const UNTIL_WOKEN: u64 = 3_600_000;
        if self.resting.load(Ordering::SeqCst) { UNTIL_WOKEN } else { look }
    }

    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Free and total bytes of every tier now.
    pub fn hierarchy(&self) -> Hierarchy {
        let bucket = self.segment.bucket_bytes() as u64;
        let snapshots: Vec<_> = self
            .tiers()
            .map(|tier| {
                let map = self.segment.free_buckets(tier);
                // Buckets without memory are as good as free: it comes before they are needed.
                let (count, without) = match tier {
                    TierId::RAM => (self.segment.ram_capacity(), self.segment.growable()),
                    _ => (map.count, 0),
                };
                // What is lent to small files, and unused, is taken back when it is needed.
                let lent = match tier {
                    TierId::RAM => 0,
                    _ => {
                        u64::from(self.segment.sparse_left(tier)) * self.segment.page_bytes() as u64
                    }
                };
                // A tier whose device fails takes nothing more.
                let free = match self.segment.is_sound(tier) {
                    true => u64::from(map.available() + without) * bucket + lent,
                    false => 0,
                };
                // What is set aside no other job fills or empties.
                let count =
                    count.saturating_sub(self.header().set_aside[tier].load(Ordering::Relaxed));
                let kept = if tier.is_ram() { self.kept_free.load(Ordering::Relaxed) } else { 0 };
                TierSnapshot {
                    capacity: u64::from(count) * bucket,
                    free,
                    kept,
                    ..TierSnapshot::default()
                }
            })
            .collect();
        Hierarchy::new(&snapshots).expect("the configuration has at most TIERS_MAX tiers")
    }

    /// What the organizer's decisions go by.
    pub fn organizer_settings(&self) -> Settings {
        Settings {
            marks: self.watermarks(),
            unit: self.segment.bucket_bytes() as u64,
            // Where blocks go is decided for each, by the policy of its file.
            moves_down: true,
        }
    }

    /// Whether the blocks of a file move to lower tiers to make room, as its policy says.
    pub fn moves_down(&self, file: FileId) -> bool {
        self.policy_of(file).policy().moves_down()
    }

    /// Whether it does not matter in which lower tier the blocks of a file lie, as its policy says.
    pub fn spreads(&self, file: FileId) -> bool {
        self.policy_of(file).policy().spreads()
    }

    /// The policy that places and moves the blocks of a file.
    fn policy_of(&self, file: FileId) -> PolicyId {
        let segment = &self.segment;
        let rule = segment.header().has_file(file).then(|| segment.rule_of(segment.file(file)));
        let settings = rule.flatten().map(RuleRecord::settings).unwrap_or_default();
        forebay_client::policy_of(segment, &settings)
    }

    /// What the journal has to know of this node.
    pub fn context(&self) -> journal::Context<'_> {
        let Node { segment, config, descriptors, .. } = self;
        journal::Context { segment, config, descriptors }
    }

    /// Waits until flushes in the background may write `bytes` more: their bandwidth is limited.
    pub fn await_turn(&self, bytes: u64) {
        let bandwidth = self.config.flush.bandwidth;
        if bandwidth == 0 {
            return;
        }
        let now = clock::monotonic_ns();
        let booked = occupy(&self.flushed_until, now, bytes, bandwidth, 0);
        let begin = booked.next_free_ns.saturating_sub(transfer_ns(bytes, bandwidth));
        while !self.stopping()
            && let Some(left) = begin.checked_sub(clock::monotonic_ns()).filter(|&left| left > 0)
        {
            clock::sleep_ns(left.min(50_000_000));
        }
    }

    /// The index entry of a block, if it still names the bucket that the block was found in: that
    /// may have become another block's since.
    pub fn place(&self, found: &BlockRef) -> Option<&AtomicU64> {
        let segment = &self.segment;
        if !segment.header().has_file(found.file) || !segment.is_indexed(found.bucket) {
            return None;
        }
        segment.index().place_of(segment.file(found.file), found.block, found.bucket)
    }

    /// Whether several nodes may read a file, and so have blocks of it.
    pub fn is_read_by_several(&self, file: FileId) -> bool {
        let is_read = |lease| matches!(lease, Lease::Read | Lease::Lent | Lease::Borrowed);
        self.group.remote.is_some()
            && self.header().has_file(file)
            && is_read(self.segment.file(file).lease.load().held())
    }

    /// Whether a block of such a file has not come from another node: others are sent here for it,
    /// and read it from the store when it is dropped.
    pub fn is_own_copy(&self, found: &BlockRef) -> bool {
        let is_pulled =
            |remote: &RemotePost| remote.is_pulled(found.bucket, found.file, found.block);
        self.is_read_by_several(found.file) && !self.group.remote.as_ref().is_some_and(is_pulled)
    }

    /// Whether any block of the file is dirty or being flushed.
    pub fn is_pending(&self, file: FileId) -> bool {
        let segment = &self.segment;
        let mut pending = false;
        segment.for_each_entry(segment.file(file), 0, |_, place| {
            if let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire))
                && let Some(meta) = segment.bucket(bucket)
            {
                pending |= meta.pending() != 0;
            }
            !pending
        });
        pending
    }

    /// Whether an action is to run on some file that no process writes any more, or has not ended.
    pub fn has_actions_left(&self) -> bool {
        let segment = &self.segment;
        let is_due = |file: FileId| {
            self.actions.awaits(segment, file) && !segment.descriptions().is_open_for_writing(file)
        };
        self.actions.are_any()
            && (self.actions.are_pending() || segment.files().touched().any(is_due))
    }

    /// Dirty bytes of all tiers that were last written up to the stamp `until`.
    pub fn dirty_bytes_until(&self, until: u32) -> u64 {
        let old = |meta: &BucketMeta| {
            let written = meta.written.load(Ordering::Relaxed);
            written == until || clock::stamp_age(until, written) > 0
        };
        let segment = &self.segment;
        let is_meant = |file: &FileId| !segment.file(*file).has(FileFlags::SCRATCH);
        // Nothing of any other is dirty.
        let files: Vec<FileId> = segment.files().touched().filter(is_meant).collect();
        let buckets = self.tiers().map(|tier| buckets_of(segment, tier).size_hint().0).sum();
        if !have_few_blocks(segment, &files, buckets) {
            return self.tiers().map(|tier| dirty_bytes(segment, tier, old)).sum();
        }
        let mut pages = 0;
        for_each_bucket_of(segment, &files, |_, _, meta| {
            if old(meta) {
                pages += u64::from(meta.pending().count_ones());
            }
        });
        pages * segment.page_bytes() as u64
    }

    /// Dirty bytes of all tiers.
    pub fn dirty_bytes_total(&self) -> u64 {
        self.tiers().map(|tier| dirty_bytes(&self.segment, tier, |_| true)).sum()
    }

    /// Waits until every message that was sent before this call has been read, or so long that the
    /// thread that reads them must be waiting for the caller: housekeeping waits for the end of
    /// flushes under way before it drops their blocks.
    pub fn await_messages(&self) {
        let since = std::time::Instant::now();
        let most = MESSAGES_WAIT_MAX.as_duration();
        self.rounds.await_two(|| {
            let left = most.checked_sub(since.elapsed()).filter(|_| !self.stopping())?;
            self.wake_control();
            Some(left)
        });
    }

    /// Has the control thread begin its next round.
    pub fn wake_control(&self) {
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Wakes the flushers, and the thread that serves syncs.
    pub fn want_work(&self) {
        self.segment.want_work();
        self.segment.queue().ring();
        self.segment.asks().ring();
        self.segment.registrations().ring();
    }

    /// Tells waiting writers that RAM buckets became free.
    pub fn post_room(&self) {
        let made = &self.header().room_made;
        made.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(made);
    }

    /// Counts what the stores lack, if that is capped, and wakes those that wait at a cap.
    pub fn recount_unsafe(&self) {
        if self.segment.has_caps() {
            let _one = self.counting_caps.lock().unwrap_or_else(PoisonError::into_inner);
            self.segment.recount_unsafe();
        }
    }

    /// Blocks of RAM have become clean, or stay there: where room is short its demoter looks again,
    /// as no writer that waits asks before it is posted room.
    pub fn look_for_room(&self) {
        let ram = &self.header().tier[TierId::RAM];
        if self.segment.free_in(TierId::RAM) < ram.low.load(Ordering::Relaxed) {
            // First: whose count is taken for a writer's is looked at once more.
            self.cleaned.fetch_add(1, Ordering::Release);
            self.segment.want_room();
        }
    }

    /// Transfers of tier `tier`'s slots, slowed down if the tier is emulated.
    pub fn tier_client(self: &Arc<Node>, tier: TierId) -> Box<dyn Batch> {
        let batch = match &self.devices[tier] {
            Some(device) => device.batch(QUEUE_DEPTH),
            // The journal may lie where there are no slots.
            None => PowerLossBatch::open(None, QUEUE_DEPTH),
        };
        let emulation = &self.header().tier[tier].emulation;
        let client = throttled(batch, emulation, &emulation.next_free_ns, self);
        let client = faults::around(client, self.faults.as_ref(), self.tier_name(tier));
        Box::new(Observing::new(client, self, Device::Tier(tier)))
    }

    /// Transfers of files of store `store`.
    pub fn store_client(self: &Arc<Node>, store: usize) -> Box<dyn Batch> {
        let batch = self.stores[store].batch(QUEUE_DEPTH);
        let emulation = &self.header().store[store % STORES_MAX].emulation;
        let client = throttled(batch, emulation, self.segment.store_next_free(store), self);
        let client = faults::around(client, self.faults.as_ref(), faults::STORE);
        Box::new(Observing::new(client, self, Device::Store(store % STORES_MAX)))
    }

    /// Whether store `store` is slowed down.
    pub fn is_emulated(&self, store: usize) -> bool {
        let emulation = &self.header().store[store % STORES_MAX].emulation;
        emulation.write_bandwidth != 0 || emulation.latency_ns != 0
    }

    /// When room is made on a tier, and how much.
    pub fn watermarks(&self) -> Watermarks {
        self.config.placement.watermarks
    }

    /// One of the counters, of all programs together, those that have ended included.
    pub fn counted(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let of_slots = self.segment.clients().used().map(|(_, client)| &client.counters);
        let all = of_slots.chain([&self.header().past]);
        all.map(|counters| counter(counters).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Notes that so many blocks were brought to RAM because a program will probably read them.
    pub fn count_guessed(&self, blocks: usize) {
        self.header().past.guessed.fetch_add(blocks as u64, Ordering::Relaxed);
    }

    /// Notes a movement that began at `start_ns` (CLOCK_REALTIME) and ends now.
    pub fn moved(&self, start_ns: u64, action: &str, from: Place, to: Place, bytes: u64) {
        self.header().moves.add(from, to, bytes);
        let name = |place| match place {
            Place::Tier(tier) => self.tier_name(tier),
            _ => "store",
        };
        self.trace.moved(start_ns, action, name(from), name(to), bytes);
    }

    /// Bytes that programs have written so far.
    pub fn written(&self) -> u64 {
        self.counted(|counters| &counters.write_bytes)
    }

    /// Notes that so many blocks have left RAM since programs had `written` so much.
    pub fn note_exposure(&self, blocks: u32, written: u64) {
        let moved = u64::from(blocks) * self.segment.bucket_bytes() as u64;
        let mut exposure = self.exposure.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, half_life) = (self.now(), self.header().half_life_ms());
        exposure.note(moved, self.written().saturating_sub(written), now, half_life);
        let permille = exposure.permille(now, half_life);
        self.header().exposed_now.store(permille.into(), Ordering::Relaxed);
    }

    /// Milliseconds of the clock that stamps writes.
    pub fn now(&self) -> u32 {
        clock::stamp(clock::realtime_coarse_ns())
    }

    /// Whether a file whose last flush failed may be tried again.
    pub fn may_retry(&self, file: FileId) -> bool {
        let at = self.segment.file(file).retry_at.load(Ordering::Relaxed);
        clock::stamp_age(self.now(), at) > 0
    }

    /// Lets a file whose last flush failed be tried again at once.
    pub fn retry_now(&self, file: FileId) {
        self.segment.file(file).retry_at.store(self.now().wrapping_sub(1), Ordering::Relaxed);
    }
}

impl Node {
    /// Keeps the configuration beside the slots of tier `tier`, unless it is that of a pool alone.
    ///
    /// # Errors
    /// Those of [`Runtime::keep_config`].
    pub fn keep_config(&self, tier: TierId) -> Result<(), (PathBuf, std::io::Error)> {
        match self.config.instance_id() == self.runtime.instance {
            true => self.runtime.keep_config(&self.config, tier),
            false => Ok(()),
        }
    }

    /// Takes a tier out of the hierarchy if `result` says that its device fails, or is full.
    /// Housekeeping tells of it.
    pub fn note_device(&self, tier: TierId, result: Result<(), Errno>) -> Result<(), Errno> {
        if let Err(errno) = result {
            self.segment.fail_tier(tier, errno);
        }
        result
    }

    /// Marks dirty pages of a slot as not what was written. Says so where it is new, or where it
    /// makes the flush of the file fail.
    pub fn report_corrupt(
        &self,
        meta: &BucketMeta,
        sums: &SlotChecksums,
        pages: u64,
        flushes: bool,
    ) {
        let mut new = self.segment.mark_corrupt(meta, sums, pages);
        let file = meta.file.load(Ordering::Relaxed);
        if !self.header().has_file(file) {
            return;
        }
        if flushes && !self.segment.file(file).has(FileFlags::FAILING) {
            new = pages;
        }
        let path = self.shown_path(self.segment.file(file));
        let start = meta.block.load(Ordering::Relaxed) * self.segment.bucket_bytes() as u64;
        for range in ranges(new, self.segment.page_bytes() as u64) {
            let (from, to) = (start + range.start, start + range.end);
            error!(
                "{path}: bytes {from}..{to} cannot be read as they were written; they are not flushed"
            );
        }
    }

    fn device_of(&self, bucket: BucketId) -> Result<(TierId, &dyn SlotDevice), Errno> {
        let tier = self.segment.tier_of(bucket);
        Ok((tier, self.devices[tier].as_deref().ok_or(Errno::STALE)?))
    }

    /// The store of a file. Programs write the record: what is no store is taken for the last.
    pub fn store_of(&self, file: FileId) -> usize {
        let store = self.segment.file(file).store.load(Ordering::Relaxed) as usize;
        store.min(self.stores.len() - 1)
    }
}

impl BandwidthEstimators for Node {
    fn estimator(&self, device: Device) -> (&BandwidthEstimator, &DeviceSpeed) {
        match device {
            Device::Tier(tier) => (&self.estimators[tier], &self.header().tier[tier].speed),
            Device::Store(store) => {
                (&self.estimators[TIERS_MAX + store], &self.header().store[store].speed)
            }
        }
    }
}

impl SlotFiles for Node {
    fn read_slot(&self, bucket: BucketId, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        let (tier, device) = self.device_of(bucket)?;
        let slot = self.segment.slot_in_tier(bucket);
        // SAFETY: the bytes are the caller's alone.
        let got = unsafe { device.read(slot, within as u64, &mut [Span::of(to)]) };
        self.note_device(tier, got)
    }

    fn write_slot(&self, bucket: BucketId, within: usize, from: &[u8]) -> Result<(), Errno> {
        let (tier, device) = self.device_of(bucket)?;
        let put = match crash::slot_fault("manager-write") {
            Some(errno) => Err(errno),
            // SAFETY: the bytes are borrowed from the caller, and only read.
            None => unsafe {
                let from = Span { base: from.as_ptr().cast_mut(), bytes: from.len() };
                device.write(self.segment.slot_in_tier(bucket), within as u64, from)
            },
        };
        self.note_device(tier, put)
    }

    fn write_record(&self, bucket: BucketId, record: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
        let (tier, device) = self.device_of(bucket)?;
        // What does not outlive the segment, or is another node's, has no records here.
        if !device.properties().keeps_journal() {
            return Ok(());
        }
        let index = self.indexes[tier].as_ref().ok_or(Errno::STALE)?;
        let offset = self.segment.record_offset(bucket);
        power_loss::writing(index.as_fd(), offset, RECORD_BYTES as u64);
        match rustix::io::pwrite(index, record, offset)? {
            RECORD_BYTES => Ok(()),
            _ => Err(Errno::IO),
        }
    }
}

/// The token bucket of an emulated device lies in the segment, or in a file that managers share:
/// the node keeps both mapped.
struct TokenBucket {
    _node: Arc<Node>,
    next_free_ns: *const AtomicU64,
}

// SAFETY: the pointer is into what `_node` has mapped, and leads to an atomic.
unsafe impl Send for TokenBucket {}

impl std::ops::Deref for TokenBucket {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: see above.
        unsafe { &*self.next_free_ns }
    }
}

fn throttled(
    batch: Box<dyn Batch>,
    emulation: &Emulation,
    next_free_ns: *const AtomicU64,
    node: &Arc<Node>,
) -> Box<dyn Batch> {
    let speed = Speed {
        read_bandwidth: emulation.read_bandwidth,
        write_bandwidth: emulation.write_bandwidth,
        latency_ns: emulation.latency_ns,
    };
    if speed.read_bandwidth == 0 && speed.write_bandwidth == 0 && speed.latency_ns == 0 {
        return batch;
    }
    let device = TokenBucket { _node: Arc::clone(node), next_free_ns };
    Box::new(Throttled::new(batch, speed, device))
}
