//! Flushing: dirty blocks to the backing store, in file order, coalesced, several writes in
//! flight. Each tier has its own flusher, so that all tiers flush concurrently; one more serves syncs.

use crate::journal::log::LogError;
use crate::journal::{BlockPages, Facts, Settlement};
use crate::node::Node;
use crate::usage::buckets_of;
use forebay_placement::flush_order::{Extent, Limits, Write, order};
use forebay_pool::buckets::Patience;
use forebay_pool::clock::Timer;
use forebay_pool::free_map::USED;
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::sums::{SlotFiles, each_page};
use forebay_pool::{Entry, Owner, SlotRecord, clock, crash, futex};
use forebay_tiers::{IoClient, Transfer};
use libc::iovec;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of one write to the store, at most; more only where the store's stripes are larger.
const WRITE_BYTES: u64 = 4 << 20;
/// Bytes on their way to the store at once, for each flusher.
const BATCH_BYTES: usize = 16 << 20;
/// Writes of at least so many bytes go past the page cache, where that can be: a device is waited for
/// then, but nothing is copied, and no memory is taken from programs.
const DIRECT_BYTES: u64 = 1 << 20;
/// How often all files are looked at for syncs that nobody told of.
const LOOK_EVERYWHERE: Timer = Timer::seconds(1);
/// How often one who waits for requests looks whether it shall end, and a drain for what has become due.
const QUEUE_LOOK: Timer = Timer::ms(250);
const DRAIN_LOOK: Timer = Timer::ms(20);
/// A file whose flush failed is tried again after this, doubled each time up to the second value.
const RETRY: (Timer, Timer) = (Timer::ms(200), Timer::seconds(10));

/// A sync that waits for what a client holds is tried again after this, doubled each time up to the second
/// value.
const ASIDE: (Timer, Timer) = (Timer::ms(2), Timer::ms(100));

/// How often a flusher tries to lock a slot in order to write its record: about 50 ms.
const RECORD_TRIES: u32 = 600;

/// A dirty block as found in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Dirty {
    file: u32,
    block: u64,
    bucket: u32,
}

/// Pages of a block whose flush has begun.
struct Begun {
    dirty: Dirty,
    pages: u64,
    /// End of the file for this flush: nothing is written behind it.
    limit: u64,
    /// Where the block's bytes are for the duration of the flush.
    data: *const u8,
}

/// A worker that flushes, with its own I/O clients.
pub(crate) struct Flusher {
    node: Arc<Node>,
    owner: Owner,
    stores: Vec<Box<dyn IoClient>>,
    tiers: Vec<Box<dyn IoClient>>,
    /// Copies of blocks that lie on file tiers.
    staging: Vec<u8>,
    /// Milliseconds until a failing file is tried again.
    backoff: HashMap<u32, u32>,
    /// For how long clients may hold what the sync that is being served needs.
    patience: Patience,
    /// They have held some of it for longer.
    was_held: bool,
    /// Files whose syncs wait for what a client holds, which may be stopped.
    aside: HashMap<u32, Aside>,
    /// Files that are to be settled and nothing else: one commit of the journal notes all of a round.
    settling: Vec<Settling>,
}

/// A file that is on the store, which the journal is to be told, and the syncs that this answers.
struct Settling {
    settlement: Settlement,
    ticket: u32,
}

/// When a sync that was put aside is tried again.
struct Aside {
    at: Instant,
    pause: Duration,
}

/// Which blocks to flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// Blocks of one tier whose time has come, see [`Flusher::due_after`].
    Due(usize),
    /// All blocks of one file.
    File(u32),
    /// These blocks of one file, with their buckets.
    Blocks(u32, Vec<(u64, u32)>),
}

impl Flusher {
    pub fn new(node: &Arc<Node>) -> Flusher {
        Flusher {
            owner: Node::new_owner(),
            stores: (0..node.config.backing.len()).map(|store| node.store_client(store)).collect(),
            tiers: (0..node.tiers()).map(|tier| node.tier_client(tier)).collect(),
            staging: Vec::new(),
            backoff: HashMap::new(),
            patience: Patience::default(),
            was_held: false,
            aside: HashMap::new(),
            settling: Vec::new(),
            node: Arc::clone(node),
        }
    }

    /// The life of a tier's flusher.
    pub fn run(mut self, tier: usize) {
        let pause = u64::from(self.pause());
        while !self.node.stopping() {
            let seen = self.node.header().work_wanted.load(Ordering::Acquire);
            let draining = self.node.draining.load(Ordering::Acquire);
            let moved = if self.may_be_due() { self.flush(Which::Due(tier)) } else { 0 };
            if moved == 0 {
                // Failing files are looked at again even when nobody asks.
                let wait = if draining { DRAIN_LOOK.as_ms() } else { pause };
                futex::wait(&self.node.header().work_wanted, seen, wait);
            }
        }
    }

    /// Milliseconds for which a block must not have been written, where flushes are periodic.
    fn period(&self) -> u32 {
        self.node.config.flush.period.as_millis().clamp(1, 60_000) as u32
    }

    /// Milliseconds for which a block may be dirty at most.
    fn max_age(&self) -> u32 {
        self.node.config.flush.max_age.as_millis().min(u32::MAX.into()) as u32
    }

    /// Milliseconds between two looks.
    fn pause(&self) -> u32 {
        self.period().min(self.max_age() / 4).max(1)
    }

    /// Whether any file's blocks can be due without anybody's asking.
    fn may_be_due(&self) -> bool {
        let segment = &self.node.segment;
        let rules = segment.rules().iter().filter_map(|rule| rule.settings().trigger);
        let of_job = |job: &JobRecord| Trigger::from_code(job.trigger.load(Ordering::Relaxed));
        let triggers = rules.chain(segment.jobs().filter_map(of_job));
        triggers
            .chain([self.node.header().flush_trigger()])
            .any(|trigger| self.age(trigger).is_some())
    }

    /// Milliseconds after its last write at which a block of this file is flushed; `None` if only on
    /// demand.
    fn due_after(&self, file: u32) -> Option<u32> {
        let record = self.node.segment.file(file);
        if record.has(file_flag::SCRATCH) {
            return None;
        }
        let own = Trigger::from_code(record.trigger.load(Ordering::Relaxed));
        self.age(own.unwrap_or_else(|| self.node.header().flush_trigger()))
    }

    fn age(&self, trigger: Trigger) -> Option<u32> {
        match trigger {
            _ if self.node.draining.load(Ordering::Acquire) => Some(0),
            Trigger::PerOperation => Some(0),
            Trigger::Periodic => Some(self.period()),
            Trigger::PerFile | Trigger::OnExit => None,
        }
    }

    /// The life of the thread that serves syncs: those that clients tell of, and, now and then and
    /// when somebody found the queue full, all.
    pub fn serve_syncs(mut self) {
        let node = Arc::clone(&self.node);
        let queue = node.segment.queue();
        let mut looked: Option<Instant> = None;
        while !node.stopping() {
            // All that is there, so that one commit of the journal serves many.
            let mut wanted: Vec<u32> = std::iter::from_fn(|| queue.pop())
                .take(forebay_pool::queue::PLACES)
                .filter_map(|message| match message {
                    // Whatever it says, it is only a hint.
                    Message::Sync { file } if file < node.header().files => Some(file),
                    _ => None,
                })
                .collect();
            let now = Instant::now();
            let due = self.aside.iter().filter(|(_, aside)| aside.at <= now).map(|(&file, _)| file);
            wanted.extend(due);
            wanted.sort_unstable();
            wanted.dedup();
            if queue.has_missed()
                || wanted.is_empty()
                    && looked.is_none_or(|at| at.elapsed() > LOOK_EVERYWHERE.as_duration())
            {
                looked = Some(Instant::now());
                wanted = node.segment.live_files().filter(|&file| self.behind(file)).collect();
                queue.take_back(|owner| node.segment.owner_is_dead(owner));
            }
            self.serve(&wanted);
            if !self.make_room_in_journal() && wanted.is_empty() {
                let next = self.aside.values().map(|aside| aside.at).min();
                let look = QUEUE_LOOK.as_ms();
                let wait = next.map_or(look, |at| {
                    let left = at.saturating_duration_since(Instant::now());
                    look.min(left.as_millis() as u64 + 1)
                });
                queue.wait(wait, || node.stopping());
            }
        }
    }

    fn behind(&self, file: u32) -> bool {
        let record = self.node.segment.file(file);
        record.has(file_flag::TO_CUT)
            || record.sync_wanted.load(Ordering::Acquire)
                != record.sync_done.load(Ordering::Acquire)
    }

    /// Serves the syncs of some files: those that only the journal is wanted for together, with one
    /// sync of its device.
    fn serve(&mut self, files: &[u32]) {
        let node = Arc::clone(&self.node);
        let mut logged = Vec::new();
        for &file in files {
            self.serve_cut(file);
            // One that was put aside has been waited for.
            self.patience = match self.aside.contains_key(&file) {
                true => Patience::nearly_spent(),
                false => Patience::default(),
            };
            let record = node.segment.file(file);
            // First: who asks for more from here on is answered the next time.
            let ticket = record.sync_wanted.load(Ordering::Acquire);
            let wanted = record.flags.load(Ordering::Acquire);
            let store =
                file_flag::DURABLE | file_flag::TO_FLUSH | file_flag::TO_SETTLE | file_flag::LET_GO;
            if wanted & file_flag::TO_LOG == 0 || wanted & store != 0 {
                self.sync(file);
                continue;
            }
            record.clear(file_flag::TO_LOG);
            crash::point("sync.logging");
            match self.log(file) {
                Ok(first) => logged.push((file, ticket, first)),
                Err(_) if node.stopping() => return,
                // The log is full, or its records would not tell what the store has.
                Err(_) => self.sync_with(file, ticket, file_flag::DURABLE),
            }
        }
        self.end_settling();
        let commit = match &node.journal {
            Some(journal) if !logged.is_empty() => {
                journal.lock().commit(true, &mut *self.tiers[journal.tier])
            }
            _ => Ok(()),
        };
        for (file, ticket, first) in logged {
            let done = commit.is_ok() && self.is_safe_with_journal(file, first);
            match done {
                true => {
                    self.answer(file, ticket);
                    crash::point("sync.logged");
                }
                false => self.sync_with(file, ticket, file_flag::DURABLE),
            }
        }
    }

    /// Appends what is not yet on the store. Returns whether the file had nothing in the log before.
    ///
    /// # Errors
    /// Nothing can be promised by the log: the file has to go to the store.
    fn log(&mut self, file: u32) -> Result<bool, LogError> {
        let node = Arc::clone(&self.node);
        let (segment, record) = (&node.segment, node.segment.file(file));
        let Some(journal) = node.journal.as_ref().filter(|journal| journal.takes_data()) else {
            return Err(LogError::Full);
        };
        // Before intents are looked for: who sets one later tells the journal first.
        let slotted = record.has(file_flag::SLOTTED);
        let first = !record.set(file_flag::LOGGED) && !slotted;
        fence(Ordering::SeqCst);
        if !self.await_cut(file) {
            return Err(LogError::Held);
        }
        if !first && !record.has(file_flag::SYNCED) {
            return Err(LogError::Full);
        }
        let mut state = journal.lock();
        state.begin(node.context(), file)?;
        let path = record.path();
        // What is written from here on has a higher one.
        let facts = Facts {
            sequence: segment.next_sequence(),
            size: record.size.load(Ordering::Acquire),
            mtime_ns: record.mtime_ns.load(Ordering::Acquire),
            path: &path,
        };
        let (owner, page) = (self.owner, segment.page_bytes());
        let Flusher { staging, tiers, patience, .. } = self;
        let mut result = Ok(());
        segment.for_each_entry(record, 0, |block, place| {
            let resident = match segment.lock_resident_within(place, owner, patience) {
                Ok(Some(resident)) => resident,
                Ok(None) => return true,
                Err(_) => {
                    result = Err(LogError::Held);
                    return false;
                }
            };
            let Some(meta) = segment.bucket(resident.bucket) else { return true };
            let pending = meta.pending();
            let pages = pending & meta.valid.load(Ordering::Acquire);
            let (bucket, version) = (resident.bucket, meta.lock.version());
            if pages != 0 && !state.has(file, block, bucket, version, pages) {
                let read = match resident.tier {
                    0 => {
                        let data = segment.bucket_data(bucket).cast_const();
                        // SAFETY: the bucket's bytes; its lock is held, so nobody writes.
                        Ok(unsafe { std::slice::from_raw_parts(data, segment.bucket_bytes()) })
                    }
                    _ => read_slot(&node, bucket, pages, staging, tiers).map_err(LogError::Device),
                };
                result = read.and_then(|data| {
                    let pages = BlockPages { block, bucket, version, pages, data, page };
                    state.append_pages(file, &facts, &pages, &mut *tiers[journal.tier])
                });
            }
            if resident.taken {
                meta.lock.unlock_unchanged();
            }
            result.is_ok()
        });
        result.map(|()| first)
    }

    /// Whether what a committed log has makes the file safe; the store is synced for it where it has
    /// more than at its last sync.
    fn is_safe_with_journal(&mut self, file: u32, first: bool) -> bool {
        let record = self.node.segment.file(file);
        // Looked at after the file was: what a flush took from under our eyes is on the store.
        record.has(file_flag::SYNCED) || first && self.sync_store(file).is_ok()
    }

    /// Tells the journal of a truncate or a punch under way, which waits for that.
    fn serve_cut(&mut self, file: u32) {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        if !record.has(file_flag::TO_CUT) {
            return;
        }
        let goal = || {
            let words = [&record.intent, &record.range_start, &record.range_end];
            words.map(|word| word.load(Ordering::Acquire))
        };
        let before = goal();
        if let Some(journal) = &node.journal
            && let Err(error) = journal.cut(node.context(), file, &mut *self.tiers[journal.tier])
        {
            // The next sync goes to the store, and settles the file.
            record.clear(file_flag::SYNCED);
            eprintln!("the journal cannot be told of a truncate: {error:?}");
        }
        // One that was given up while this process was stopped may be followed by another.
        if goal() == before {
            record.clear(file_flag::TO_CUT);
        }
        self.announce_done();
    }

    fn answer(&mut self, file: u32, ticket: u32) {
        self.aside.remove(&file);
        self.node.segment.file(file).sync_done.store(ticket, Ordering::Release);
        self.announce_done();
    }

    fn announce_done(&self) {
        let done = &self.node.header().work_done;
        done.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(done);
    }

    /// When half of the log is used, or its device failed, settles a file that it has data of. Returns
    /// whether there was one.
    fn make_room_in_journal(&mut self) -> bool {
        let node = Arc::clone(&self.node);
        let may = |file: u32| {
            let record = node.segment.file(file);
            record.has(file_flag::LOGGED)
                && !record.has(file_flag::FAILING)
                && !self.aside.contains_key(&file)
        };
        let Some(journal) = &node.journal else { return false };
        let Some(file) = journal.to_be_settled(node.context(), may) else {
            journal.mend(node.context(), &mut *self.tiers[journal.tier]);
            return false;
        };
        let ticket = node.segment.file(file).sync_wanted.load(Ordering::Acquire);
        self.patience = Patience::default();
        self.sync_with(file, ticket, file_flag::DURABLE);
        true
    }

    /// Makes a file durable on the store that has nothing dirty, and notes in the journal that what it
    /// has of it counts no more.
    ///
    /// # Errors
    /// The store's, or the journal's.
    pub fn settle_durably(&mut self, file: u32) -> Result<(), Errno> {
        let node = Arc::clone(&self.node);
        self.take_slotted(file);
        let sequence = node.segment.next_sequence();
        if self.node.is_pending(file) {
            return Err(Errno::AGAIN);
        }
        self.sync_store(file)?;
        self.note_settled(&[Settlement { file, sequence }])[0]
    }

    /// Slots that hold some of the file are to be settled with it. Returns whether there may be some.
    fn take_slotted(&self, file: u32) -> bool {
        let record = self.node.segment.file(file);
        if !record.has(file_flag::SLOTTED) {
            return false;
        }
        if let Some(journal) = &self.node.journal {
            journal.count_again(file);
        }
        // First: a round that begins now must find one of them.
        record.set(file_flag::LOGGED);
        record.clear(file_flag::SLOTTED);
        true
    }

    /// Tells the journal, durably, of files that are on the store. Each file's result.
    fn note_settled(&mut self, files: &[Settlement]) -> Vec<Result<(), Errno>> {
        let node = Arc::clone(&self.node);
        let Some(journal) = &node.journal else { return vec![Ok(()); files.len()] };
        let io = &mut *self.tiers[journal.tier];
        let results = journal.settled(node.context(), files, io).into_iter();
        results.map(|result| result.map_err(|_| Errno::IO)).collect()
    }

    /// Notes that a file could be settled, or not. An error of one that no caller waits for reaches no program: the
    /// store has all of the file, and a later sync finds it unsettled and learns of it.
    fn end_settlement(&mut self, file: u32, result: Result<(), Errno>, is_awaited: bool) {
        match result {
            Ok(()) => {
                if self.node.segment.file(file).clear(file_flag::FAILING) {
                    self.backoff.remove(&file);
                }
            }
            Err(errno) if is_awaited => {
                let born = self.node.segment.file(file).born_ns.load(Ordering::Acquire);
                self.failed(file, born, errno);
            }
            Err(_) => _ = self.postpone(file),
        }
    }

    /// Settles the files of which nothing else was wanted in this round.
    fn end_settling(&mut self) {
        let node = Arc::clone(&self.node);
        let settling = std::mem::take(&mut self.settling);
        if settling.is_empty() {
            return;
        }
        let settlements: Vec<_> = settling.iter().map(|one| one.settlement).collect();
        let results = self.note_settled(&settlements);
        for (Settling { settlement, ticket }, result) in settling.into_iter().zip(results) {
            self.end_settlement(settlement.file, result, false);
            crash::point("sync.synced");
            settle(&node, settlement.file, self.owner);
            self.answer(settlement.file, ticket);
            crash::point("sync.answered");
        }
    }

    /// Makes durable what the store has of a file.
    fn sync_store(&mut self, file: u32) -> Result<(), Errno> {
        let held = self.descriptor(file);
        self.sync_held(file, held)
    }

    fn sync_held(&mut self, file: u32, held: Result<Arc<OwnedFd>, Errno>) -> Result<(), Errno> {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        let store = self.store_of(file);
        // Before: whoever changes the store's file meanwhile takes it away again.
        record.set(file_flag::SYNCED);
        let result = match held {
            Ok(fd) => self.stores[store].sync(fd.as_raw_fd()),
            // Its last writer's descriptor is closed, and it cannot be found by its name.
            Err(_) => self.sync_all_of(store),
        };
        if result.is_err() {
            record.clear(file_flag::SYNCED);
        }
        result
    }

    /// Does for one file what is wanted of it, and answers all syncs wanted so far. An error is noted
    /// in the record and answers them too.
    fn sync(&mut self, file: u32) {
        let record = self.node.segment.file(file);
        let ticket = record.sync_wanted.load(Ordering::Acquire);
        if !self.behind(file) && !self.aside.contains_key(&file) {
            return;
        }
        let all = file_flag::DURABLE
            | file_flag::LET_GO
            | file_flag::TO_LOG
            | file_flag::TO_FLUSH
            | file_flag::TO_SETTLE;
        crash::point("sync.begin");
        let wanted = record.flags.fetch_and(!all, Ordering::AcqRel) & all;
        crash::point("sync.taken");
        self.sync_with(file, ticket, wanted);
    }

    /// Leaves a sync, for which `wanted` is to be done, for later: not answered, and to be tried again.
    fn put_aside(&mut self, file: u32, wanted: u32) {
        self.node.segment.file(file).set(wanted);
        // Trying all of them is never to take more than a tenth of the time.
        let share = Timer::ms(10).as_duration() * self.aside.len() as u32;
        let (first, most) = (ASIDE.0.as_duration(), ASIDE.1.as_duration().max(share));
        let pause = self.aside.get(&file).map_or(first, |aside| (aside.pause * 2).min(most));
        self.aside.insert(file, Aside { at: Instant::now() + pause, pause });
        crash::point("sync.aside");
    }

    fn sync_with(&mut self, file: u32, ticket: u32, wanted: u32) {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        // The store has it, then, and whoever asked for the journal has more than that.
        let durable = wanted & (file_flag::DURABLE | file_flag::TO_LOG) != 0;
        let let_go = wanted & file_flag::LET_GO != 0;
        let born = record.born_ns.load(Ordering::Acquire);
        let errors = record.errors();
        let only_clean = wanted == file_flag::TO_SETTLE;
        // Slots that are filled from here on are not settled by this, and their file has the flag.
        let was_logged = record.has(file_flag::LOGGED);
        let slotted = (durable || only_clean) && self.take_slotted(file);
        let tracked = was_logged || slotted;
        let sequence = if tracked { node.segment.next_sequence() } else { 0 };
        // Taken now: once the file is settled it may be the only one of a file without a name.
        let held = (durable || tracked).then(|| self.descriptor(file));
        // What was dirty before is flushed in the first pass, unless its block moved meanwhile, which
        // it can do once for each tier. A file that is written all the time is not waited for.
        for _ in 0..2 + TIERS_MAX {
            if only_clean {
                break;
            }
            self.was_held = false;
            self.flush(Which::File(file));
            let failed = record.errors() != errors;
            if failed || !self.node.is_pending(file) {
                break;
            }
            if self.was_held {
                // All but what is held is on the store. Others do not wait for its holder.
                self.put_aside(file, wanted);
                return;
            }
            if node.stopping() {
                // Not answered: the client sees the manager gone and flushes the file itself.
                return;
            }
        }
        let settles = tracked && (durable || only_clean && !self.node.is_pending(file));
        if (durable || settles && was_logged)
            && let Some(held) = held
            && record.errors() == errors
            && let Err(errno) = self.sync_held(file, held)
        {
            self.failed(file, born, errno);
        }
        if settles && record.errors() == errors {
            let settlement = Settlement { file, sequence };
            if only_clean {
                self.settling.push(Settling { settlement, ticket });
                return;
            }
            // A program that waits for a sync must not find older bytes after a power loss.
            let result = self.note_settled(&[settlement])[0];
            self.end_settlement(file, result, true);
        }
        crash::point("sync.synced");
        if let_go {
            node.await_messages();
        }
        if let_go || settles {
            settle(&node, file, self.owner);
        }
        self.answer(file, ticket);
        crash::point("sync.answered");
    }

    /// Makes durable all that the store's file system has.
    fn sync_all_of(&self, store: usize) -> Result<(), Errno> {
        let folder = &self.node.config.backing.get(store).ok_or(Errno::STALE)?.path;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        let began = clock::monotonic_ns();
        rustix::fs::syncfs(&folder)?;
        forebay_pool::undo::synced_all(folder.as_fd(), began);
        Ok(())
    }

    /// Begins to wait anew for what a client holds.
    pub fn be_patient(&mut self) {
        self.patience = Patience::default();
    }

    /// Flushes the blocks that `which` names. Returns the bytes written.
    pub fn flush(&mut self, which: Which) -> u64 {
        let mut found = self.collect(&which);
        found.sort_unstable();
        let mut written = 0;
        let bucket = self.node.segment.bucket_bytes();
        let mut rest = &found[..];
        while let Some(first) = rest.first().copied() {
            let same = rest.iter().take_while(|dirty| dirty.file == first.file).count();
            let (of_file, others) = rest.split_at(same);
            rest = others;
            for batch in of_file.chunks((BATCH_BYTES / bucket).max(1)) {
                match self.flush_batch(first.file, batch, &which) {
                    Some(bytes) => written += bytes,
                    None => break,
                }
                if self.node.stopping() {
                    return written;
                }
            }
            settle(&self.node, first.file, self.owner);
        }
        if let Which::File(file) = which {
            let record = self.node.segment.file(file);
            if record.has(file_flag::AHEAD) && !self.node.is_pending(file) {
                // What is to be settled needs a descriptor, of which no flush has made use.
                let _ = self.descriptor(file);
            }
            settle(&self.node, file, self.owner);
        }
        written
    }

    fn collect(&self, which: &Which) -> Vec<Dirty> {
        let segment = &self.node.segment;
        let mut found = Vec::new();
        match *which {
            Which::Blocks(file, ref blocks) => {
                let dirty = |&(block, bucket): &(u64, u32)| Dirty { file, block, bucket };
                found.extend(blocks.iter().map(dirty));
            }
            Which::File(file) => segment.for_each_entry(segment.file(file), 0, |block, place| {
                if let Entry::Resident { bucket, .. } = Entry::decode(place.load(Ordering::Acquire))
                    && let Some(meta) = segment.bucket(bucket)
                    // What is on its way already is waited for when its turn comes.
                    && meta.pending() != 0
                {
                    found.push(Dirty { file, block, bucket });
                }
                true
            }),
            Which::Due(tier) => {
                // The table of files is shorter than that of buckets.
                let is_dirty = |file| {
                    let record = segment.file(file);
                    record.has(file_flag::DIRTY) && !record.has(file_flag::SCRATCH)
                };
                if !segment.live_files().any(is_dirty) {
                    return found;
                }
                let now = self.node.now();
                // What would be too old at the next look goes now.
                let oldest = self.max_age().saturating_sub(self.pause());
                for bucket in buckets_of(segment, tier) {
                    let Some(meta) = segment.bucket(bucket) else { continue };
                    if meta.pages.dirty() == 0 || meta.state.load(Ordering::Acquire) != USED {
                        continue;
                    }
                    let file = meta.file.load(Ordering::Relaxed);
                    let age = clock::stamp_age(now, meta.written.load(Ordering::Relaxed));
                    let dirty_for = clock::stamp_age(now, meta.dirtied.load(Ordering::Relaxed));
                    let is_due = |file| {
                        self.due_after(file)
                            .is_some_and(|after| age >= after || dirty_for >= oldest)
                    };
                    if file < segment.header().files && is_due(file) && self.may_try(file, now) {
                        let block = meta.block.load(Ordering::Relaxed);
                        found.push(Dirty { file, block, bucket });
                    }
                }
            }
        }
        found
    }

    /// Whether a failing file's time has come.
    pub fn may_try(&self, file: u32, now: u32) -> bool {
        let record = self.node.segment.file(file);
        !record.has(file_flag::FAILING)
            || clock::stamp_age(now, record.retry_at.load(Ordering::Relaxed)) > 0
    }

    /// The store of a file. Programs write the record: what is no store is taken for the last.
    fn store_of(&self, file: u32) -> usize {
        let store = self.node.segment.file(file).store.load(Ordering::Relaxed) as usize;
        store.min(self.node.config.backing.len() - 1)
    }

    /// A descriptor of a file, to write it.
    ///
    /// # Errors
    /// Those of [`crate::store::descriptors::Descriptors::of`].
    pub fn descriptor(&self, file: u32) -> Result<Arc<OwnedFd>, Errno> {
        let record = self.node.segment.file(file);
        let folder = &self.node.config.backing[self.store_of(file)].path;
        let descriptors = &self.node.descriptors;
        // One that is on its way may be the only one there is: the file may have no name.
        if record.has(file_flag::ANNOUNCED)
            && descriptors.at_hand(&self.node.segment, file).is_none()
        {
            self.node.await_messages();
        }
        descriptors.of(&self.node.segment, file, folder)
    }

    /// Flushes some blocks of one file. `None` after an error: the rest would fail too.
    fn flush_batch(&mut self, file: u32, batch: &[Dirty], which: &Which) -> Option<u64> {
        let start = clock::realtime_ns();
        let born = self.node.segment.file(file).born_ns.load(Ordering::Acquire);
        // A file without a name is dropped with its last descriptor; until then only a want of
        // room, a sync or a drain sends it to the store.
        let draining = self.node.draining.load(Ordering::Acquire);
        let nameless = |fd: Arc<OwnedFd>| rustix::fs::fstat(&*fd).is_ok_and(|s| s.st_nlink == 0);
        if matches!(which, Which::Due(_))
            && !draining
            && self.node.descriptors.at_hand(&self.node.segment, file).is_some_and(nameless)
        {
            return None;
        }
        if matches!(which, Which::Due(_)) {
            self.node.await_turn(self.dirty_bytes(batch));
        }
        let patient = matches!(which, Which::File(_));
        if patient && !self.await_cut(file) {
            self.was_held = true;
        }
        let mut begun: Vec<_> =
            batch.iter().filter_map(|&dirty| self.begin(dirty, patient)).collect();
        if begun.is_empty() {
            return Some(0);
        }
        // Only now: while the file has blocks in writeback nobody settles it, and closes the
        // descriptor that may be the only one of a file without a name.
        let fd = match self.descriptor(file) {
            Ok(fd) => fd,
            Err(errno) => {
                // One that has lost its last name is dropped when it is certain that no process has it open:
                // that it cannot be written is no error to tell.
                let gone =
                    errno == Errno::STALE && self.node.segment.file(file).has(file_flag::UNLINKED);
                match gone {
                    true => drop(self.postpone(file)),
                    false => self.failed(file, born, errno),
                }
                begun.iter().for_each(|block| self.end(block, false));
                return None;
            }
        };
        crate::drain::conflict::vet(&self.node, file, &fd);
        // What cannot be read as it was written is kept, and is never given to the store; the rest is.
        let unread = self.stage(&mut begun);
        let store = self.store_of(file);
        let (mut writes, pieces) = self.writes(&begun, fd.as_raw_fd(), store);
        crash::point("flush.writing");
        self.write(file, store, &mut writes);
        let mut bytes = 0;
        let mut good = vec![true; begun.len()];
        let mut error = None;
        for (write, blocks) in writes.iter().zip(pieces) {
            match write.result() {
                Ok(written) => {
                    bytes += written;
                    let end = write.offset() + written;
                    self.node.segment.file(file).store_size.fetch_max(end, Ordering::AcqRel);
                }
                Err(errno) => {
                    error = Some(errno);
                    good[blocks].fill(false);
                }
            }
        }
        // Before any page counts as clean, or as not written: who sees that sees the error.
        self.node.segment.file(file).clear(file_flag::SYNCED);
        if let Some(errno) = error.or(unread.then_some(Errno::IO)) {
            self.failed(file, born, errno);
        }
        for (block, good) in begun.iter().zip(good) {
            crash::point("flush.ending");
            self.end(block, good);
            self.record(block.dirty);
        }
        let tier = begun.first().map_or(0, |block| self.node.segment.tier_of(block.dirty.bucket));
        self.node.trace.moved(start, "flush", self.node.tier_name(tier), "store", bytes);
        match error {
            Some(_) => None,
            None if unread => Some(bytes),
            None => {
                let record = self.node.segment.file(file);
                if bytes > 0 && record.clear(file_flag::FAILING) {
                    self.backoff.remove(&file);
                }
                Some(bytes)
            }
        }
    }

    /// Runs the writes of one file: large ones past the page cache if no program has the file open.
    fn write(&mut self, file: u32, store: usize, writes: &mut [Transfer]) {
        let node = Arc::clone(&self.node);
        let client = &mut self.stores[store];
        let turn = node.descriptors.turn(file);
        let alone = (writes.iter().any(is_for_direct) && !node.is_emulated(store))
            .then(|| turn.try_write().ok())
            .flatten()
            // A program might write through the cache, or change what is on its way.
            .filter(|_| !node.segment.open_files()[file as usize]);
        let direct = alone.as_ref().and_then(|_| node.descriptors.direct(&node.segment, file));
        let Some(direct) = direct else {
            drop(alone);
            let _shared = turn.read().unwrap_or_else(PoisonError::into_inner);
            return client.run(writes);
        };
        let through = writes.first().map_or(-1, Transfer::fd);
        writes
            .iter_mut()
            .filter(|write| is_for_direct(write))
            .for_each(|write| write.redirect(direct.as_raw_fd()));
        writes.chunk_by_mut(|a, b| a.fd() == b.fd()).for_each(|same| client.run(same));
        for write in writes.iter_mut().filter(|write| write.fd() == direct.as_raw_fd()) {
            write.redirect(through);
            // So says a device of larger blocks.
            if write.result() == Err(Errno::INVAL) {
                node.descriptors.refuse_direct(file);
                client.run(std::slice::from_mut(write));
            }
        }
    }

    fn dirty_bytes(&self, batch: &[Dirty]) -> u64 {
        let segment = &self.node.segment;
        let metas = batch.iter().filter_map(|dirty| segment.bucket(dirty.bucket));
        let pages: u32 = metas.map(|meta| meta.pages.dirty().count_ones()).sum();
        u64::from(pages) * segment.page_bytes() as u64
    }

    /// Moves a block's dirty pages to writeback.
    fn begin(&mut self, dirty: Dirty, patient: bool) -> Option<Begun> {
        let segment = &self.node.segment;
        let meta = segment.bucket(dirty.bucket)?;
        if patient {
            if segment.lock_bucket_within(meta, self.owner, &mut self.patience).is_err() {
                self.was_held = true;
                return None;
            }
            // Another flusher's write is part of what a sync waits for.
            segment.wait_for_writeback(meta);
        } else if meta.lock.try_lock(self.owner).is_err() {
            // A writer is at it; the next pass comes soon.
            return None;
        }
        let still = meta.state.load(Ordering::Acquire) == USED
            && meta.file.load(Ordering::Relaxed) == dirty.file
            && meta.block.load(Ordering::Relaxed) == dirty.block
            && segment.is_indexed(dirty.bucket)
            && meta.pages.writeback() == 0
            && dirty.block < i64::MAX as u64 / segment.bucket_bytes() as u64
            && !self.is_being_punched(dirty);
        let mut begun = None;
        if still {
            let record = segment.file(dirty.file);
            let size = record.size.load(Ordering::Acquire);
            let goal = record.intent.load(Ordering::Acquire).checked_sub(1);
            let limit = goal.map_or(size, |goal| goal.min(size));
            let dirtied = meta.pages.dirty() & meta.valid.load(Ordering::Acquire);
            // What a truncate under way takes stays dirty: the store may refuse it.
            let pages = match goal {
                Some(goal) if goal < size => dirtied & self.pages_before(goal, dirty.block),
                _ => dirtied,
            };
            if pages != 0 {
                meta.pages.begin_writeback(pages);
                let data = match segment.tier_of(dirty.bucket) {
                    0 => segment.bucket_data(dirty.bucket).cast_const(),
                    _ => std::ptr::null(),
                };
                begun = Some(Begun { dirty, pages, limit, data });
            }
        }
        meta.lock.unlock_unchanged();
        begun
    }

    /// The pages of a block that lie before byte `end` of the file, with all their bytes.
    fn pages_before(&self, end: u64, block: u64) -> u64 {
        let bytes = end.saturating_sub(block * self.node.segment.bucket_bytes() as u64);
        let pages = bytes / self.node.segment.page_bytes() as u64;
        if pages == 0 { 0 } else { span(0, pages.min(64) as usize) }
    }

    /// Whether a punch under way touches the block: it must not reach the store after the punch.
    fn is_being_punched(&self, dirty: Dirty) -> bool {
        let bytes = self.node.segment.bucket_bytes() as u64;
        let (start, end) = (dirty.block * bytes, (dirty.block + 1) * bytes);
        let punched = self.node.segment.file(dirty.file).punched();
        punched.is_some_and(|punched| punched.start < end && start < punched.end)
    }

    /// Waits until no truncate or punch of the file is under way, or its owner is dead. The caller holds
    /// nothing that they could wait for. False if its owner does not go on with it.
    fn await_cut(&mut self, file: u32) -> bool {
        let node = Arc::clone(&self.node);
        let record = node.segment.file(file);
        while record.has_intent() && !self.node.stopping() {
            // It may wait for this thread.
            self.serve_cut(file);
            if self.patience.is_spent() {
                let holder = Owner::from_raw(record.exclusive.load(Ordering::SeqCst));
                return holder.is_none_or(|holder| node.segment.owner_is_dead(holder));
            }
            self.patience.wait();
        }
        true
    }

    /// Reads blocks that lie on file tiers to memory. Pages that cannot be read, or are not what was
    /// written, are dirty again and no part of this flush. Returns whether there were any.
    fn stage(&mut self, begun: &mut [Begun]) -> bool {
        let node = Arc::clone(&self.node);
        let bucket = node.segment.bucket_bytes();
        let page = node.segment.page_bytes();
        let on_file = begun.iter().filter(|block| block.data.is_null()).count();
        if self.staging.len() < on_file * bucket {
            self.staging.resize(on_file * bucket, 0);
        }
        let mut reads: HashMap<usize, (Vec<Transfer>, Vec<usize>)> = HashMap::new();
        let mut before = vec![[0u32; PAGES_PER_BUCKET as usize]; begun.len()];
        let mut failed = false;
        let mut staging = std::mem::take(&mut self.staging);
        let mut places = staging.chunks_mut(bucket);
        for (index, block) in begun.iter_mut().enumerate() {
            let Some(sums) = node.segment.sums(block.dirty.bucket) else { continue };
            let Some(place) = places.next() else { break };
            block.data = place.as_ptr();
            let tier = node.segment.tier_of(block.dirty.bucket);
            let Some(slots) = node.slots[tier].as_ref() else {
                failed = true;
                self.give_back(block, block.pages);
                continue;
            };
            each_page(block.pages).for_each(|page| before[index][page] = sums.get(page));
            let (first, end) = bounds(block.pages);
            let range = &mut place[first * page..end * page];
            let buffer = iovec { iov_base: range.as_mut_ptr().cast(), iov_len: range.len() };
            let offset = node.segment.slot_offset(block.dirty.bucket) + (first * page) as u64;
            // SAFETY: the staging buffer outlives the run below, and nobody else has it.
            let read = unsafe { Transfer::read(slots.as_raw_fd(), offset, vec![buffer]) };
            let (reads, blocks) = reads.entry(tier).or_default();
            reads.push(read);
            blocks.push(index);
        }
        self.staging = staging;
        for (tier, (mut reads, blocks)) in reads {
            self.tiers[tier].run(&mut reads);
            for (read, index) in reads.iter().zip(blocks) {
                let block = &mut begun[index];
                let result = match read.result() {
                    Ok(got) if got == read.len() => Ok(()),
                    Ok(_) => Err(Errno::IO),
                    Err(errno) => Err(errno),
                };
                let wrong = match node.note_device(tier, result) {
                    Ok(()) => self.rotten(block, &before[index]),
                    Err(_) => self.unreadable(block),
                };
                if wrong != 0 {
                    failed = true;
                    self.give_back(block, wrong);
                }
            }
        }
        failed
    }

    /// Pages of a staged block that are not what was written.
    fn rotten(&self, block: &Begun, before: &[u32; PAGES_PER_BUCKET as usize]) -> u64 {
        let page = self.node.segment.page_bytes();
        let Some(sums) = self.node.segment.sums(block.dirty.bucket) else { return 0 };
        let wrong = |&number: &usize| {
            // SAFETY: inside the staging buffer.
            let bytes = unsafe { std::slice::from_raw_parts(block.data.add(number * page), page) };
            !sums.agrees(number, before[number], bytes)
        };
        let wrong = each_page(block.pages).filter(wrong).fold(0, |all, page| all | 1 << page);
        let known = sums.rotten(block.pages & !wrong);
        if known != 0 {
            // It could not be read before, and can be now.
            sums.rotten.fetch_and(!known, Ordering::AcqRel);
        }
        wrong
    }

    /// Pages of a block that cannot be read one by one either; the others are then staged.
    fn unreadable(&self, block: &Begun) -> u64 {
        let page = self.node.segment.page_bytes();
        let Some(sums) = self.node.segment.sums(block.dirty.bucket) else { return block.pages };
        let wrong = |&number: &usize| {
            let before = sums.get(number);
            // SAFETY: inside the staging buffer, which is this flusher's.
            let to = unsafe {
                let at = block.data.cast_mut().add(number * page);
                std::slice::from_raw_parts_mut(at, page)
            };
            let read = self.node.read_slot(block.dirty.bucket, number * page, to);
            read.is_err() || !sums.agrees(number, before, to)
        };
        each_page(block.pages).filter(wrong).fold(0, |all, page| all | 1 << page)
    }

    /// Takes pages that are not what was written out of a flush, and names them.
    fn give_back(&self, block: &mut Begun, pages: u64) {
        let segment = &self.node.segment;
        let bucket = block.dirty.bucket;
        if let (Some(meta), Some(sums)) = (segment.bucket(bucket), segment.sums(bucket)) {
            self.node.name_rotten(meta, sums, pages, true);
            meta.pages.end_writeback(pages, true);
        }
        block.pages &= !pages;
    }

    /// Says in a slot's record what the store has now, lest a reboot writes it there again over what
    /// came later. Only after the flush has ended: whoever holds the lock may be waiting for that.
    fn record(&self, dirty: Dirty) {
        let segment = &self.node.segment;
        let Some(meta) = segment.bucket(dirty.bucket) else { return };
        if segment.sums(dirty.bucket).is_none() {
            return;
        }
        // A writer that holds it writes the record itself; one that is stopped is not waited for.
        let mut patience = Patience::default();
        let mut tries = 0;
        while meta.lock.try_lock(self.owner).is_err() {
            tries += 1;
            if tries == RECORD_TRIES {
                return;
            }
            patience.wait();
        }
        match meta.state.load(Ordering::Acquire) {
            USED if segment.is_indexed(dirty.bucket) => {
                segment.record_slot(&*self.node, dirty.bucket);
            }
            USED => {}
            // Evicted since: nothing of it counts any more.
            _ => {
                let void = SlotRecord::void(segment.next_sequence()).encode();
                let _ = self.node.write_record(dirty.bucket, &void);
            }
        }
        meta.lock.unlock_unchanged();
    }

    /// The writes for some blocks of one file in ascending order: neighbouring pages become one
    /// write, up to where the next stripes of the store begin. Beside each, the range of blocks
    /// that it covers.
    fn writes(
        &self,
        begun: &[Begun],
        fd: i32,
        store: usize,
    ) -> (Vec<Transfer>, Vec<std::ops::Range<usize>>) {
        let page = self.node.segment.page_bytes();
        let bucket = self.node.segment.bucket_bytes() as u64;
        let mut extents = Vec::new();
        for (index, block) in begun.iter().enumerate() {
            let mut pages = block.pages;
            while pages != 0 {
                let first = pages.trailing_zeros() as usize;
                let count = (pages >> first).trailing_ones() as usize;
                pages &= !span(first, count);
                let offset = block.dirty.block * bucket + (first * page) as u64;
                let end = (offset + (count * page) as u64).min(block.limit);
                if offset < end {
                    let bytes = end - offset;
                    extents.push(Extent {
                        file: block.dirty.file,
                        offset,
                        bytes,
                        id: index as u32,
                    });
                }
            }
        }
        let stripe = self.node.stripes.get(store).copied().unwrap_or(1);
        let limits = Limits { most: WRITE_BYTES.max(stripe), stripe };
        let mut writes: Vec<Write> = order(&mut extents, limits).collect();
        // The end of a file, which mostly is inside a page, must not keep the rest from going direct.
        if let Some(last) = writes.last_mut() {
            let odd = (last.offset + last.bytes) % page as u64;
            if odd != 0 && last.bytes >= DIRECT_BYTES + odd {
                last.bytes -= odd;
                let (offset, end) = (last.offset + last.bytes, last.extents.end);
                let tail = Write { offset, bytes: odd, extents: end - 1..end, ..*last };
                writes.push(tail);
            }
        }
        let transfer = |write: Write| {
            let of_write = &extents[write.extents];
            let end = write.offset + write.bytes;
            let buffers = of_write.iter().map(|extent| {
                let block = &begun[extent.id as usize];
                let from = extent.offset.max(write.offset);
                let length = (extent.offset + extent.bytes).min(end) - from;
                // SAFETY: inside the bucket.
                let base = unsafe { block.data.add((from - block.dirty.block * bucket) as usize) };
                iovec { iov_base: base.cast_mut().cast(), iov_len: length as usize }
            });
            let index = |extent: Option<&Extent>| extent.map_or(0, |extent| extent.id as usize);
            let blocks = index(of_write.first())..index(of_write.last()) + 1;
            // SAFETY: pages under writeback stay where they are until the flush has ended; staged
            // ones are this flusher's.
            (unsafe { Transfer::write(fd, write.offset, buffers.collect()) }, blocks)
        };
        writes.into_iter().map(transfer).unzip()
    }

    /// Ends a block's flush. Needs no lock: nobody else touches pages under writeback.
    fn end(&self, block: &Begun, good: bool) {
        if let Some(meta) = self.node.segment.bucket(block.dirty.bucket)
            && meta.pages.end_writeback(block.pages, !good) == 0
        {
            let tier = self.node.segment.tier_of(block.dirty.bucket);
            self.node.header().tier[tier].clean.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that a flush of the file that was `born` then failed: programs learn of it at fsync or close, and the file is
    /// tried again later.
    fn failed(&mut self, file: u32, born: u64, errno: Errno) {
        if self.node.segment.file(file).born_ns.load(Ordering::Acquire) != born {
            // The file was deleted, and the record is about another one that has its inode.
            return;
        }
        self.node.segment.file(file).report(errno.raw_os_error() as u32);
        if self.postpone(file) {
            let record = self.node.segment.file(file);
            let path = String::from_utf8_lossy(&record.path()).into_owned();
            eprintln!("flush of {path}: {errno}; the data is kept and tried again");
        }
    }

    /// Notes that a file cannot be written now: a caller that waits for all files need not wait for it. True
    /// if it could before.
    fn postpone(&mut self, file: u32) -> bool {
        let record = self.node.segment.file(file);
        let (first, most) = (RETRY.0.as_stamp(), RETRY.1.as_stamp());
        let pause = self.backoff.get(&file).map_or(first, |ms| (ms * 2).min(most));
        self.backoff.insert(file, pause);
        record.retry_at.store(self.node.now().wrapping_add(pause), Ordering::Relaxed);
        !record.set(file_flag::FAILING)
    }
}

/// How long a file that fades is waited for: longer than housekeeping takes for it, whatever else it does.
pub(crate) const FADING: Duration = Duration::from_secs(30);

/// Whether a file has lost its last name and the last living process that had it open: housekeeping drops it
/// as soon as its descriptions are free, and nothing of it has to come to the store.
pub(crate) fn is_fading(node: &Node, file: u32) -> bool {
    let record = node.segment.file(file);
    record.has(file_flag::UNLINKED)
        && record.has(file_flag::FAILING)
        && node.segment.holders(file).all(|pid| !forebay_pool::liveness::is_alive(pid, 0))
}

/// Whether some file fades.
pub(crate) fn is_any_fading(node: &Node) -> bool {
    node.segment.live_files().any(|file| is_fading(node, file))
}

/// Whether a write can go past the page cache, and is worth it.
fn is_for_direct(write: &Transfer) -> bool {
    // Also of the page cache, beside whose pages the write goes.
    let unit = rustix::param::page_size().max(4096);
    let fits = |buffer: &iovec| (buffer.iov_base.addr() | buffer.iov_len).is_multiple_of(unit);
    write.len() >= DIRECT_BYTES
        && write.offset().is_multiple_of(unit as u64)
        && write.buffers().iter().all(fits)
}

/// Reads these pages of a slot, whose lock the caller holds, to where they are in a bucket, and compares
/// them with their sums.
fn read_slot<'s>(
    node: &Node,
    bucket: u32,
    pages: u64,
    staging: &'s mut Vec<u8>,
    tiers: &mut [Box<dyn IoClient>],
) -> Result<&'s [u8], Errno> {
    let segment = &node.segment;
    let (bytes, page, tier) =
        (segment.bucket_bytes(), segment.page_bytes(), segment.tier_of(bucket));
    if staging.len() < bytes {
        staging.resize(bytes, 0);
    }
    let (first, end) = bounds(pages);
    let range = &mut staging[first * page..end * page];
    let buffer = iovec { iov_base: range.as_mut_ptr().cast(), iov_len: range.len() };
    let fd = node.slots[tier].as_ref().ok_or(Errno::STALE)?.as_raw_fd();
    let offset = segment.slot_offset(bucket) + (first * page) as u64;
    // SAFETY: the staging buffer outlives the run, and nobody else has it.
    let mut reads = [unsafe { Transfer::read(fd, offset, vec![buffer]) }];
    tiers[tier].run(&mut reads);
    let got = match reads[0].result() {
        Ok(got) if got == reads[0].len() => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    };
    node.note_device(tier, got)?;
    let (Some(meta), Some(sums)) = (segment.bucket(bucket), segment.sums(bucket)) else {
        return Err(Errno::STALE);
    };
    let is_wrong = |&number: &usize| {
        !sums.agrees(number, sums.get(number), &staging[number * page..(number + 1) * page])
    };
    let wrong = each_page(pages).filter(is_wrong).fold(0, |all, number| all | 1 << number);
    if wrong != 0 {
        node.name_rotten(meta, sums, wrong, true);
        return Err(Errno::IO);
    }
    Ok(&staging[..bytes])
}

/// First page and one past the last of a set.
fn bounds(pages: u64) -> (usize, usize) {
    (pages.trailing_zeros() as usize, 64 - pages.leading_zeros() as usize)
}

fn span(first: usize, count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { ((1 << count) - 1) << first }
}

/// If nothing of the file is dirty any more, gives the store its times, ends the state "ahead
/// of the store", and closes the manager's descriptor. Done with the file held, so that no writer is in the middle of it.
pub(crate) fn settle(node: &Node, file: u32, owner: Owner) {
    let segment = &node.segment;
    let record = segment.file(file);
    let settled = !record.has(file_flag::AHEAD)
        && !record.has(file_flag::ANNOUNCED)
        && !record.is_tracked()
        && node.descriptors.at_hand(segment, file).is_none();
    if settled || node.is_pending(file) {
        return;
    }
    let inside = segment.enter_table(owner);
    if segment.try_exclude(file, owner) {
        crash::point("settle.begin");
        settle_held(node, file);
        segment.include(file);
    }
    segment.leave(owner, inside);
}

/// The same, of a file that the caller has exclusively.
pub(crate) fn settle_held(node: &Node, file: u32) {
    let record = node.segment.file(file);
    if record.has_intent() || node.is_pending(file) {
        return;
    }
    let held = node.descriptors.at_hand(&node.segment, file);
    let agrees =
        !record.has(file_flag::AHEAD) || held.is_some_and(|fd| agree_with_store(node, record, &fd));
    if agrees && record.clear(file_flag::CONFLICT) {
        // Clean blocks may hold what somebody else has changed on the store.
        node.segment.drop_clean_blocks(file, Node::new_owner());
    }
    if agrees && record.is_tracked() {
        // The sync thread comes back to it when journal and slots count no more.
        let failing = record.has(file_flag::FAILING)
            && clock::stamp_age(node.now(), record.retry_at.load(Ordering::Relaxed)) == 0;
        if !record.has(file_flag::TO_SETTLE) && !failing {
            node.segment.request(file, Some(Node::new_owner()), file_flag::TO_SETTLE);
        }
    } else if agrees {
        // A program that is open for writing cannot be executed. The next writer sends his own.
        record.clear(file_flag::ANNOUNCED);
        crash::point("settle.closing");
        node.descriptors.close(file);
    }
}

/// Gives the store's file its size and times. Returns whether both agree now.
fn agree_with_store(node: &Node, record: &FileRecord, fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let (size, stored) = (record.size.load(Ordering::Acquire), stat.st_size as u64);
    let is_littered = stored > size && record.has_lengtheners();
    if stored < size || is_littered {
        forebay_pool::undo::resizing(rustix::fd::AsFd::as_fd(fd), size);
        if rustix::fs::ftruncate(fd, size).is_err() {
            return false;
        }
        record.clear(file_flag::SYNCED);
    }
    crash::point("settle.sized");
    node.segment.forget_lengtheners(record);
    let (seconds, nanoseconds) = clock::parted_ns(record.mtime_ns.load(Ordering::Acquire));
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
    };
    // Only the owner of a file may set its times; others see the time of the flush.
    let _ = rustix::fs::futimens(fd, &times);
    crash::point("settle.timed");
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let mtime = clock::joined_ns(stat.st_mtime, stat.st_mtime_nsec as i64);
    let changed = clock::joined_ns(stat.st_ctime, stat.st_ctime_nsec as i64);
    record.store_mtime_ns.store(mtime, Ordering::Release);
    record.store_changed_ns.store(changed, Ordering::Release);
    record.store_size.store(stat.st_size as u64, Ordering::Release);
    record.size.store(stat.st_size as u64, Ordering::Release);
    crash::point("settle.noted");
    record.clear(file_flag::AHEAD | file_flag::DIRTY | file_flag::TOUCHED | file_flag::VETTED);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_pages() {
        assert_eq!(bounds(0b0110), (1, 3));
        assert_eq!(bounds(u64::MAX), (0, 64));
        assert_eq!(span(0, 64), u64::MAX);
        assert_eq!(span(3, 2), 0b11000);
    }
}
