//! What the manager looks after between requests: dead clients, descriptions that nobody holds,
//! files that nobody has open, index nodes below which nothing is left.

use crate::devices::undoable::UndoableBatch;
use crate::drain::reconcile;
use crate::node::Node;
use crate::observe::mappers;
use crate::store::descriptors::{self, StoreHandle};
use forebay_device::{BackingStore, Span, Target, Transfer};
use forebay_pool::BucketId;
use forebay_pool::clock::Timer;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::opens::Opens;
use forebay_pool::slot_record::RECORD_BYTES;
use forebay_pool::sums::SlotFiles;
use forebay_pool::truncate::Outside;
use forebay_pool::{Owner, crash, liveness};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How long a description that nobody holds can still be adopted by an exec under way.
const ADOPTION: Timer = Timer::seconds(1);
const SHORT_ADOPTION: Timer = Timer::ms(50);
/// How long a description may be on its way through a socket; when descriptions are short, how
/// long it still may.
const FLIGHT: Timer = Timer::seconds(600);
const SHORT_FLIGHT: Timer = Timer::seconds(10);
/// How often descriptions and records are swept.
const SWEEP: Timer = Timer::ms(200);
/// How long some open may be under way until the kernel is asked which files that process has open.
const OPENING: Timer = Timer::seconds(1);

/// A tier that was full is tried again after this, when its file system has room for so many blocks.
const RETRY_FULL: Timer = Timer::seconds(1);
const ROOM_BLOCKS: u64 = 16;
/// Records up to which those are kept that only tell the time of change, see [`Housekeeper::keeps_time`]. Each is looked
/// at in each sweep.
const KEPT_RECORDS: usize = 8192;

/// The manager's watch over clients and tables.
pub(crate) struct Housekeeper {
    node: Arc<Node>,
    owner: Owner,
    /// A pidfd of each live slot, with the slot's generation.
    clients: HashMap<u32, (u32, OwnedFd)>,
    /// Of reserved slots whose parent is gone: a process that may be about to confirm it.
    heirs: HashMap<u32, u32>,
    /// Of each client that was inside something at the last sweep: what it looked like, and since when.
    standing: HashMap<u32, (u64, u32)>,
    /// Of each tier that takes nothing: when it is tried again, or was noticed.
    failed: HashMap<TierId, u32>,
    last_sweep: u32,
    /// Descriptions that were not free at the last sweep.
    used: u32,
    /// Whether there were many records at the last sweep.
    crowded: bool,
    /// Of the last sweep.
    awaited: Awaited,
}

/// Files without a name that some process may be about to open: the generation of the record, and since when.
type Awaited = HashMap<u32, (u32, u32)>;

/// What a truncate needs, from the manager's side.
pub(crate) struct FromManager<'a> {
    pub node: &'a Node,
    pub file: u32,
}

impl SlotFiles for FromManager<'_> {
    fn read_slot(&self, bucket: BucketId, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.node.read_slot(bucket, within, to)
    }

    fn write_slot(&self, bucket: BucketId, within: usize, from: &[u8]) -> Result<(), Errno> {
        self.node.write_slot(bucket, within, from)
    }

    fn write_record(&self, bucket: BucketId, record: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
        self.node.write_record(bucket, record)
    }
}

impl Outside for FromManager<'_> {
    fn truncate_store(&self, size: u64) -> Result<(), Errno> {
        let (store, held) = self.held()?;
        self.note_cut()?;
        store.truncate(held.file(), size)?;
        self.node.segment.file(self.file).clear(FileFlags::SYNCED);
        Ok(())
    }

    fn punch_store(&self, range: std::ops::Range<u64>) -> Result<(), Errno> {
        let (store, held) = self.held()?;
        self.note_cut()?;
        store.punch(held.file(), range)?;
        self.node.segment.file(self.file).clear(FileFlags::SYNCED);
        Ok(())
    }
}

impl FromManager<'_> {
    /// The file, open to be written, and its store.
    fn held(&self) -> Result<(&dyn BackingStore, Arc<StoreHandle>), Errno> {
        let node = self.node;
        let store = node.segment.file(self.file).store.load(Ordering::Relaxed) as usize;
        let folder = &node.config.backing.get(store).ok_or(Errno::STALE)?.path;
        Ok((&*node.stores[store], node.descriptors.of(&node.segment, self.file, folder)?))
    }

    /// The journal has to know before the store changes.
    fn note_cut(&self) -> Result<(), Errno> {
        let Some(journal) = &self.node.journal else { return Ok(()) };
        journal
            .log_truncate(self.node.context(), self.file, &mut UndoableBatch::plain())
            .map_err(|_| Errno::IO)
    }
}

/// Completes a truncate or a punch that was taken back as `reaper`'s from an owner that died, and lets
/// everybody in again.
pub(crate) fn finish_truncate(node: &Node, file: u32, reaper: Owner) {
    // A client that waits for the file may have been faster, and written since.
    let owner = Node::new_owner();
    let Some(_exclusive) = node.segment.take_exclusive(file, reaper, owner) else { return };
    let _ = complete_intent(node, file, owner);
    crash::point("finish.completed");
}

/// Completes what an owner that died has left undone of a file that the caller has exclusively. An error is noted in the record.
///
/// # Errors
/// The store's or a tier's errno; `STALE`, which is not noted, if no name of the file is found, and no program has it open:
/// there is no program to tell of it but those that have a new file with its inode open.
pub(crate) fn complete_intent(node: &Node, file: u32, owner: Owner) -> Result<(), Errno> {
    let record = node.segment.file(file);
    record.set(FileFlags::STORE_WRITTEN);
    let outside = FromManager { node, file };
    let result = node.segment.complete_intent(file, owner, &outside);
    match result {
        // It has lost its last name, as far as is known: what is left of it goes when that is sure.
        Err(Errno::STALE) => {
            record.set(FileFlags::UNLINKED);
        }
        Err(errno) => record.report(errno.raw_os_error() as u32),
        Ok(()) => {}
    }
    result
}

impl Housekeeper {
    pub fn new(node: &Arc<Node>) -> Housekeeper {
        Housekeeper {
            node: Arc::clone(node),
            owner: Node::new_owner(),
            clients: HashMap::new(),
            heirs: HashMap::new(),
            standing: HashMap::new(),
            failed: HashMap::new(),
            // Long ago, on a clock that wraps: zero might be in the future.
            last_sweep: node.now().wrapping_sub(1_000),
            used: 0,
            crowded: false,
            awaited: Awaited::default(),
        }
    }

    /// Descriptors that become readable when a client dies.
    pub fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.clients
            .values()
            .map(|(_, pidfd)| PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN))
    }

    /// One round.
    pub fn look_around(&mut self) {
        self.look_at_clients();
        self.node.descriptors.end_locks(&self.node.segment);
        crate::manager::jobs::look_at_jobs(&self.node, self.owner);
        let now = self.node.now();
        self.node.header().now_ms.store(now, Ordering::Relaxed);
        if forebay_pool::clock::stamp_age(now, self.last_sweep) >= SWEEP.as_stamp() {
            self.last_sweep = now;
            self.look_who_stands(now);
            self.look_at_tiers(now);
            self.sweep(now);
        }
    }

    /// Tells of tiers that take nothing new, and tries those again now and then that were full.
    fn look_at_tiers(&mut self, now: u32) {
        let node = Arc::clone(&self.node);
        for tier in node.file_tiers() {
            let name = node.tier_name(tier);
            let Some((errno, _)) = node.segment.tier_failure(tier) else {
                self.failed.remove(&tier);
                continue;
            };
            let is_full = is_full(errno);
            let Some(&tried) = self.failed.get(&tier) else {
                self.failed.insert(tier, now);
                let why = if is_full { "it is full" } else { "its device fails" };
                eprintln!(
                    "tier {name}: {why} ({errno}): no more blocks go there, and what can be read is drained"
                );
                continue;
            };
            if !is_full || forebay_pool::clock::stamp_age(now, tried) < RETRY_FULL.as_stamp() {
                continue;
            }
            self.failed.insert(tier, now);
            if self.takes_a_block(tier) {
                node.segment.restore_tier(tier);
                self.failed.remove(&tier);
                eprintln!("tier {name}: there is room again");
                node.segment.want_room();
            }
        }
    }

    /// Whether a free slot of a tier can be written, and its file system has room for some more.
    fn takes_a_block(&self, tier: TierId) -> bool {
        let segment = &self.node.segment;
        let Some(file) = self.node.slots[tier].as_ref() else { return false };
        let bytes = segment.bucket_bytes();
        let room = rustix::fs::fstatvfs(file).map_or(0, |found| found.f_bavail * found.f_frsize);
        if room < ROOM_BLOCKS * bytes as u64 {
            return false;
        }
        let files = (&self.node.slots[tier], &self.node.indexes[tier]);
        if crate::recovery::open::give_heads(segment, tier, files).is_err()
            || self.node.keep_config(tier).is_err()
        {
            return false;
        }
        // Without one nothing that lies in slots could be settled. What it lies on may have been full, too.
        if self
            .node
            .journal
            .as_ref()
            .is_some_and(|journal| journal.make(self.node.context()).is_err())
        {
            return false;
        }
        let Some(slot) = segment.take_slot(tier, self.owner, &mut 0) else { return false };
        let mut zeros = vec![0u8; bytes];
        let buffer = Span::of(&mut zeros);
        let target = Target::Slot(segment.slot_in_tier(slot));
        // SAFETY: the buffer outlives the run; the slot was taken and is no other thread's.
        let mut writes = [unsafe { Transfer::write(target, 0, vec![buffer]) }];
        self.node.tier_client(tier).run(&mut writes);
        segment.free_bucket(slot);
        writes[0].result() == Ok(bytes as u64)
    }

    /// Notes which clients do not go on with what they are inside of, so that people can be told of them:
    /// a process may be stopped there, or swapped out.
    fn look_who_stands(&mut self, now: u32) {
        let segment = &self.node.segment;
        for slot in 1..segment.header().clients_high.load(Ordering::Acquire) {
            let client = segment.client(slot);
            let inside = client.presence.iter().any(|word| word.load(Ordering::Relaxed) != 0);
            if !inside || client.state.load(Ordering::Acquire) != slot_state::LIVE {
                self.standing.remove(&slot);
                client.standing.store(0, Ordering::Relaxed);
                continue;
            }
            let mut look = std::hash::DefaultHasher::new();
            client.generation.load(Ordering::Relaxed).hash(&mut look);
            client.presence.iter().for_each(|word| word.load(Ordering::Relaxed).hash(&mut look));
            let counters = client.counters.all();
            counters.iter().for_each(|(_, value)| value.load(Ordering::Relaxed).hash(&mut look));
            let look = look.finish();
            match self.standing.insert(slot, (look, now)) {
                Some((before, since)) if before == look => {
                    self.standing.insert(slot, (look, since));
                    client.standing.store(since.max(1), Ordering::Relaxed);
                }
                _ => client.standing.store(0, Ordering::Relaxed),
            }
        }
    }

    fn look_at_clients(&mut self) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        for slot in 1..segment.header().clients_high.load(Ordering::Acquire) {
            let client = segment.client(slot);
            let generation = client.generation.load(Ordering::Acquire);
            match client.state.load(Ordering::Acquire) {
                slot_state::LIVE => {
                    self.heirs.remove(&slot);
                    let known =
                        self.clients.get(&slot).is_some_and(|(known, _)| *known == generation);
                    let alive = if known { self.still_runs(slot) } else { self.watch(slot) };
                    if !alive {
                        self.reap(slot);
                    }
                }
                slot_state::RESERVED => self.look_at_reserved(slot),
                slot_state::REAPING => self.reap(slot),
                _ => {
                    self.clients.remove(&slot);
                    self.heirs.remove(&slot);
                }
            }
        }
    }

    /// A child whose parent is gone may still be about to confirm its slot, however long it is stopped before.
    fn look_at_reserved(&mut self, slot: u32) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let client = segment.client(slot);
        let (pid, start) =
            (client.pid.load(Ordering::Acquire), client.start.load(Ordering::Acquire));
        let is_wanted = match segment.child_of(slot) {
            None => liveness::is_alive(pid, start) || self.has_heir(slot, pid),
            Some(child) => liveness::is_alive(child, 0),
        };
        if !is_wanted && segment.take_unconfirmed(slot) {
            self.reap(slot);
        }
    }

    /// Whether a process lives that may have to confirm `slot`, reserved by process `parent` that is gone: it has
    /// the segment and our library mapped, or may have, no slot of its own, and did not begin before its parent. A process
    /// that was about to say who it is (`parent` is 0) may have one, for itself. Where /proc does not tell, there may be one.
    fn has_heir(&mut self, slot: u32, parent: u32) -> bool {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        let begun = segment.client(slot).start.load(Ordering::Acquire);
        let may_be = |pid: u32| match liveness::start_time(pid) {
            None => false,
            Some(start) => parent == 0 || start >= begun && segment.slot_of(pid, start).is_none(),
        };
        if self.heirs.get(&slot).is_some_and(|&pid| may_be(pid)) {
            return true;
        }
        let Ok(mut processes) = mappers::of(&node.pool_file, segment.header().segment_bytes) else {
            return true;
        };
        let found = processes.find(|&pid| may_be(pid));
        if let Some(pid) = found {
            self.heirs.insert(slot, pid);
        }
        found.is_some()
    }

    fn watch(&mut self, slot: u32) -> bool {
        let client = self.node.segment.client(slot);
        let pid = client.pid.load(Ordering::Acquire);
        if client.start.load(Ordering::Acquire) == 0 {
            // Forked where it has no /proc to look at.
            client.start.store(liveness::start_time(pid).unwrap_or(0), Ordering::Release);
        }
        let start = client.start.load(Ordering::Acquire);
        let opened = Pid::from_raw(pid as i32)
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match opened {
            Ok(pidfd) if liveness::is_alive(pid, start) => {
                let generation = client.generation.load(Ordering::Acquire);
                self.clients.insert(slot, (generation, pidfd));
                true
            }
            Ok(_) | Err(Errno::SRCH) => false,
            // No pidfd to be had: ask /proc at every round.
            Err(_) => liveness::is_alive(pid, start),
        }
    }

    fn still_runs(&self, slot: u32) -> bool {
        let Some((_, pidfd)) = self.clients.get(&slot) else { return false };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
    }

    fn reap(&mut self, slot: u32) {
        let node = Arc::clone(&self.node);
        let mut unfinished = Vec::new();
        let inside = node.segment.reap_slot(slot, |file, owner| unfinished.push((file, owner)));
        for (file, owner) in unfinished {
            finish_truncate(&node, file, owner);
        }
        // The rest is taken back in a later round: what it takes is held by a process that does not go on.
        let Some(inside) = inside else { return };
        self.clients.remove(&slot);
        self.heirs.remove(&slot);
        crash::point("housekeeping.reaped");
        if inside {
            mark_pending_files(&node);
        }
        node.want_work();
    }

    /// Frees descriptions that nobody holds, and records of files that nobody has open.
    fn sweep(&mut self, now: u32) {
        let node = Arc::clone(&self.node);
        let segment = &node.segment;
        // Before the descriptions are looked at. What may be being opened now is left for the next time.
        let counted = |file| segment.count_opens(file).map(|opens| (file, opens));
        let files: Vec<(u32, Opens)> = segment.live_files().filter_map(counted).collect();
        self.crowded = files.len() > KEPT_RECORDS.min(segment.header().files as usize / 2);
        let mut open = vec![false; segment.header().files as usize];
        // When they are short, those that were closed wait less for an exec that wants them.
        let (grace, flight) = match self.used > segment.header().descriptions / 2 {
            true => (SHORT_ADOPTION, SHORT_FLIGHT),
            false => (ADOPTION, FLIGHT),
        };
        let (grace, flight) = (grace.as_stamp(), flight.as_stamp());
        let mut used = 0;
        segment.sweep_descriptions(now, grace, flight, |description| {
            used += 1;
            let description = segment.description(description);
            if let Some(open) = open.get_mut(description.file.load(Ordering::Acquire) as usize) {
                *open = true;
            }
        });
        self.used = used;
        segment.forget_unrecorded();
        crate::manager::jobs::end_lifetimes(&node, self.owner, &files, &open);
        let table = segment.enter_table(self.owner);
        let mut awaited = Awaited::new();
        for &(file, opens) in &files {
            if !open[file as usize] {
                self.look_at_closed(&table, file, opens, &mut awaited);
            }
        }
        self.awaited = awaited;
        self.prune(&table, &files);
    }

    /// A file without an open description: forgotten once nothing of it is buffered, and its blocks
    /// dropped if it has no name any more.
    fn look_at_closed(
        &self,
        table: &SharedGuard<'_>,
        file: u32,
        opens: Opens,
        awaited: &mut Awaited,
    ) {
        let segment = &self.node.segment;
        let try_exclusive = || segment.try_lock_exclusive(table, file, self.owner);
        let record = segment.file(file);
        // What the kernel says comes first: the inode may belong to a new file by now.
        let nameless = || match self.node.descriptors.at_hand(segment, file) {
            Some(held) => self.node.stores[self.node.store_of(file)]
                .stat(held.file())
                .is_ok_and(|stat| stat.links == 0),
            // Noted before the call: it may have failed, or not have come about.
            None => record.has(FileFlags::UNLINKED) && self.is_gone(file),
        };
        let unchanged = || opens.are_still(&record.opens);
        let mut dropped = false;
        if self.is_spent(file) {
            if let Some(_exclusive) = try_exclusive()
                && unchanged()
                && self.is_spent(file)
            {
                segment.drop_clean_blocks(file, self.owner);
            }
        } else if nameless()
            && !self.may_be_being_opened(file, awaited)
            && let Some(_exclusive) = try_exclusive()
        {
            // No process can come to have it open any more.
            if unchanged() && nameless() {
                crate::drain::conflict::vet_dropped(&self.node, file);
                crash::point("housekeeping.dropping");
                if let Some(journal) = &self.node.journal {
                    journal.gone(self.node.context(), file);
                }
                segment.drop_all_blocks(file, self.owner, &*self.node);
                crash::point("housekeeping.dropped");
                record.clear(FileFlags::METADATA_DIRTY | FileFlags::DIRTY | FileFlags::FAILING);
                dropped = true;
            }
        }
        reconcile(&self.node, file, self.owner);
        if record.has(FileFlags::SCRATCH) && !dropped {
            // It ends with its job, empty or not.
            let held = self.node.descriptors.at_hand(segment, file).is_some();
            if (held || record.has(FileFlags::DIRECT))
                && let Some(_exclusive) = try_exclusive()
                && unchanged()
            {
                crate::manager::jobs::lay_down(&self.node, file);
            }
            return;
        }
        let empty = || {
            let mut empty = true;
            segment.for_each_entry(record, 0, |_, _| {
                empty = false;
                false
            });
            empty && (!record.has(FileFlags::METADATA_DIRTY) || dropped) && !record.is_tracked()
        };
        if self.keeps_time(record) || !empty() {
            return;
        }
        crash::point("housekeeping.removing");
        // Whoever stages or flushes is inside the file without having it open.
        let Some(exclusive) = try_exclusive() else { return };
        if segment.remove_file(file, exclusive, self.owner, opens, empty) {
            segment.header().file_cursor.fetch_min(file, Ordering::Relaxed);
            self.node.descriptors.close(file);
        }
    }

    /// Whether a record of which nothing is buffered any more is kept for the time of change that programs saw before
    /// the flush. Without it, that of the flush would appear at some later time, and tools that ask whether a file is still
    /// the one they looked at (git, rsync, backups) would take it for changed. Only while there is room for records, and if
    /// the time of birth tells the file from a later one with the inode.
    fn keeps_time(&self, record: &FileRecord) -> bool {
        let seen = record.changed_ns.load(Ordering::Acquire);
        !self.crowded
            && seen < record.store_changed_ns.load(Ordering::Acquire)
            && record.born_ns.load(Ordering::Acquire) != 0
            && !record.has(FileFlags::UNLINKED)
            && !record.has(FileFlags::DIRECT)
            && !record.has_untold_error()
    }

    /// Whether some process may have opened a file, as far as the kernel knows, and not come to its record yet. The file was
    /// seen to have no name before.
    fn may_be_being_opened(&self, file: u32, awaited: &mut Awaited) -> bool {
        let segment = &self.node.segment;
        let openers: Vec<u32> = segment.openers().collect();
        if openers.is_empty() {
            return false;
        }
        let (record, now) = (segment.file(file), self.node.now());
        let generation = record.generation.load(Ordering::Acquire);
        let known = self.awaited.get(&file).filter(|(known, _)| *known == generation);
        let since = known.map_or(now, |(_, since)| *since);
        // An open can take long: of another file, a FIFO for one.
        if forebay_pool::clock::stamp_age(now, since) >= OPENING.as_stamp()
            && !openers.iter().any(|&pid| descriptors::may_have_open(pid, record.identity()))
        {
            return false;
        }
        awaited.insert(file, (generation, since));
        true
    }

    /// Whether the last name of a file was to be removed, and the store has all of it: wherever it may
    /// be, nothing is lost with its blocks.
    fn is_spent(&self, file: u32) -> bool {
        let record = self.node.segment.file(file);
        record.has(FileFlags::UNLINKED)
            && !record.has(FileFlags::METADATA_DIRTY)
            && !record.has(FileFlags::SCRATCH)
            && !record.is_tracked()
            && !self.node.is_pending(file)
    }

    /// Whether a file of which its last name was to be removed cannot be found any more.
    fn is_gone(&self, file: u32) -> bool {
        let record = self.node.segment.file(file);
        let store = record.store.load(Ordering::Relaxed) as usize;
        let Some(backing) = self.node.config.backing.get(store) else { return false };
        match self.node.descriptors.of(&self.node.segment, file, &backing.path) {
            Err(Errno::STALE) => true,
            Err(_) => false,
            Ok(fd) => !record.note_whether_named(&*fd),
        }
    }

    /// When index nodes become scarce, frees those below which nothing is left.
    fn prune(&self, table: &SharedGuard<'_>, files: &[(u32, Opens)]) {
        let segment = &self.node.segment;
        let nodes = segment.index_nodes(self.owner.slot()).free();
        if nodes.available() > nodes.count / 4 {
            return;
        }
        for &(file, _) in files {
            if let Some(_exclusive) = segment.try_lock_exclusive(table, file, self.owner) {
                segment.index_nodes(self.owner.slot()).prune(segment.file(file));
            }
        }
    }
}

/// Marks every file with dirty blocks as such: a process that died inside a write may not have come
/// to it. Those of which nothing is dirty, and which are ahead of the store all the same, are brought to an end.
pub(crate) fn mark_pending_files(node: &Node) {
    for file in node.segment.live_files() {
        let record = node.segment.file(file);
        if !record.has(FileFlags::DIRTY | FileFlags::METADATA_DIRTY) && node.is_pending(file) {
            record.set(FileFlags::METADATA_DIRTY);
            crash::point("pending.ahead");
            record.set(FileFlags::DIRTY);
        }
        if record.has(FileFlags::METADATA_DIRTY) && !node.is_pending(file) {
            node.segment.request_sync(file, None, false);
        }
    }
}

/// Whether the store's file of some file that is being brought to an end has what a dead process left there.
pub(crate) fn is_any_littered(node: &Node) -> bool {
    let is_left = |place: &AtomicU32| place.load(Ordering::Acquire) == LENGTHENER_LEFT;
    node.segment.live_files().any(|file| {
        let record = node.segment.file(file);
        record.lengtheners.iter().any(is_left)
            && record.has(FileFlags::METADATA_DIRTY)
            && record.sync_wanted.load(Ordering::Acquire)
                != record.sync_done.load(Ordering::Acquire)
    })
}

/// Whether an error says that a device has no room.
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// Whether the manager has anything that some process may still want.
pub(crate) fn is_idle(node: &Node) -> bool {
    let segment = &node.segment;
    (1..segment.header().clients_high.load(Ordering::Acquire))
        .all(|slot| segment.client(slot).state.load(Ordering::Acquire) == slot_state::FREE)
}

/// Whether a process lives that uses the segment, and not only the slots of some are still to be freed.
pub(crate) fn has_living(node: &Node) -> bool {
    let segment = &node.segment;
    let high = segment.header().clients_high.load(Ordering::Acquire);
    (1..high).any(|slot| {
        let client = segment.client(slot);
        let (pid, start) =
            (client.pid.load(Ordering::Acquire), client.start.load(Ordering::Acquire));
        let may_live = |child| liveness::is_alive(child, 0);
        match client.state.load(Ordering::Acquire) {
            slot_state::FREE => false,
            // Looked at in each round, and reaped unless the child may live.
            slot_state::RESERVED if segment.child_of(slot).is_none_or(may_live) => true,
            _ => liveness::is_alive(pid, start),
        }
    })
}
