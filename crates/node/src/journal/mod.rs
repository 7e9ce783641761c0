//! The journal: an append-only, checksummed log on the fastest file tier that takes it, which makes a sync durable
//! before the backing store has the bytes (docs/design/durability.md).
//!
//! What the log has of a file counts until the file is *settled*: the store has everything, durably.
//!
//! `log` is the file and `record` its format; `replay` brings to a file what the log has of it. May use
//! `config`, `devices`, `instance` and `store`.

pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod replay;

use crate::config::Config;
use crate::devices::undoable::Undoable;
use crate::instance::runtime::Runtime;
use crate::store::beneath::handle_of;
use crate::store::descriptors::Descriptors;
use forebay_placement::schema::Durability;
use forebay_pool::layout::{FileFlags, PAGES_PER_BUCKET};
use forebay_pool::{PageSet, Segment, crash, private};
use forebay_tiers::IoClient;
use log::{Log, LogError};
use record::{Body, Key, Record};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGES: usize = PAGES_PER_BUCKET as usize;

/// What the journal has to know of a node.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub segment: &'a Segment,
    pub config: &'a Config,
    pub descriptors: &'a Descriptors,
}

/// The journal of a node manager.
pub(crate) struct Journal {
    /// Its file.
    pub path: PathBuf,
    /// The tier that it lies on.
    pub tier: usize,
    bytes: u64,
    state: Mutex<State>,
}

/// What the manager knows of the log.
#[derive(Default)]
pub(crate) struct State {
    log: Option<Log>,
    /// The device failed, or a record has rotted: nothing more is promised before a round has begun anew.
    failed: bool,
    /// Data did not fit: no file's comes to it before a round has begun anew.
    full: bool,
    /// Files that were settled on the store while the log could not note it: they do not keep the round
    /// from beginning anew, and nothing more of them comes to it before.
    unnoted: HashSet<u32>,
    /// Files of which the log has data.
    files: HashMap<u32, Logged>,
    /// Of each file, the sequence of its newest record that a replay would apply.
    newest: HashMap<u32, u64>,
    /// Of files with slots: up to where they were settled in this round.
    settled: HashMap<u32, u64>,
    /// Of files that had slots when this round began: up to where they were settled then.
    live: HashMap<u32, Option<u64>>,
}

/// A file that the store has, durably, up to a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    pub file: u32,
    pub sequence: u64,
}

/// What the log has of a file.
struct Logged {
    generation: u32,
    /// Sequence of the first of its records.
    since: u64,
    key: Key,
    blocks: HashMap<u64, LoggedBlock>,
}

/// Which content of a block is in the log.
struct LoggedBlock {
    bucket: u32,
    version: u32,
    /// Pages that were appended, and what they were like.
    pages: u64,
    hashes: Box<[u64; PAGES]>,
}

/// Pages of a block to be appended.
pub(crate) struct BlockPages<'a> {
    pub block: u64,
    pub bucket: u32,
    pub version: u32,
    pub pages: u64,
    /// The block's bytes.
    pub data: &'a [u8],
    pub page: usize,
}

/// The file's size, time and path, as records of its data have them.
pub(crate) struct Facts<'a> {
    pub sequence: u64,
    pub size: u64,
    pub mtime_ns: u64,
    pub path: &'a [u8],
}

impl Journal {
    /// The journal of this configuration: where it is, or else would be, on its fastest file tier. `None`
    /// if it has none.
    pub fn of(config: &Config, runtime: &Runtime) -> Option<Journal> {
        Journal::on_one_of(config, runtime, |_| true)
    }

    /// The same; a new one rather on a tier that `takes` it. There is never more than one that has anything in it.
    pub fn on_one_of(
        config: &Config,
        runtime: &Runtime,
        takes: impl Fn(usize) -> bool,
    ) -> Option<Journal> {
        let places: Vec<_> = runtime.journals(config).collect();
        let there = places.iter().find(|(_, path)| private::is_there(path));
        let place = there.or_else(|| places.iter().find(|(tier, _)| takes(*tier)));
        let (tier, path) = place.or(places.first())?.clone();
        Some(Journal { path, tier, bytes: config.journal_bytes(), state: Mutex::default() })
    }

    /// Whether nothing was ever written to its file, if there is one.
    pub fn is_new(&self) -> bool {
        match private::look(&self.path) {
            Ok(found) => found.st_size == 0,
            Err(wrong) => wrong.is_missing(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the journal's file if some file of the configuration wants it, or carries on one that is
    /// there.
    ///
    /// # Errors
    /// The device's.
    pub fn start(&self, node: Context<'_>) -> Result<(), Errno> {
        match node.config.wants_journal() || private::is_there(&self.path) {
            true => self.make(node),
            false => Ok(()),
        }
    }

    /// Makes the journal's file, or carries on the one that is there, unless it is open.
    ///
    /// # Errors
    /// The device's.
    pub fn make(&self, node: Context<'_>) -> Result<(), Errno> {
        self.lock().open(self, node, &mut Undoable::plain())
    }

    /// Appends what a truncate or a punch that is under way takes from `file`, durably. Nothing if
    /// recovery would apply nothing of it.
    ///
    /// # Errors
    /// Why it could not be appended.
    pub fn cut(&self, node: Context<'_>, file: u32, io: &mut dyn IoClient) -> Result<(), LogError> {
        let record = node.segment.file(file);
        if !record.is_logged() || !record.has_intent() {
            return Ok(());
        }
        let mut state = self.lock();
        // A checkpoint of the file may have been noted meanwhile.
        if !record.is_logged() {
            return Ok(());
        }
        let key = state.key(node, file)?;
        state.open(self, node, io).map_err(LogError::Device)?;
        state.unnoted.remove(&file);
        let punched =
            record.punched().map(|range| Body::Punch { start: range.start, end: range.end });
        let size = record.intent.load(Ordering::Acquire).checked_sub(1);
        for body in punched.into_iter().chain(size.map(|size| Body::Cut { size })) {
            let sequence = node.segment.next_sequence();
            if !crash::planted("journal-no-cut") {
                state.newest.insert(file, sequence);
                state.append(&Record { sequence, key: key.clone(), body }, io)?;
            }
        }
        crash::point("journal.cut");
        state.commit(true, io)
    }

    /// Notes that everything of each file up to its sequence is durable on the store, and begins the log anew if
    /// nothing else is in it. The note is durable itself: a program's next sync of the file goes to the store alone,
    /// and after a power loss older bytes of journal or slots would come back over what it acknowledged.
    ///
    /// A file that the log has newer records of stays `LOGGED`: a truncate may have come between the sequence and
    /// the note, and only a later checkpoint covers its record.
    ///
    /// # Errors
    /// Why it could not be noted, for each file.
    pub fn checkpoint(
        &self,
        node: Context<'_>,
        files: &[Checkpoint],
        io: &mut dyn IoClient,
    ) -> Vec<Result<(), LogError>> {
        let mut state = self.lock();
        if let Err(errno) = state.open(self, node, io) {
            return vec![Err(LogError::Device(errno)); files.len()];
        }
        crash::point("journal.settling");
        let mut results: Vec<_> =
            files.iter().map(|settled| state.append_checkpoint(node, settled, io)).collect();
        let committed = state.commit(true, io);
        crash::point("journal.settled");
        for (&Checkpoint { file, sequence }, result) in files.iter().zip(&mut results) {
            *result = result.and(committed);
            state.settled.insert(file, sequence);
            state.files.remove(&file);
            match result {
                Ok(()) => {
                    state.unnoted.remove(&file);
                    if state.newest.get(&file).is_none_or(|newest| *newest <= sequence) {
                        state.newest.remove(&file);
                        node.segment.file(file).clear(FileFlags::LOGGED);
                    }
                }
                Err(_) => _ = state.unnoted.insert(file),
            }
        }
        if state.restart_if_dead(node, io) {
            for (settled, result) in files.iter().zip(&mut results) {
                if result.is_err() {
                    node.segment.file(settled.file).clear(FileFlags::LOGGED);
                    *result = Ok(());
                }
            }
        }
        results
    }

    /// What slots hold of `file` is about to be settled together with what the log has: until that is
    /// done it counts again.
    pub fn count_again(&self, file: u32) {
        self.lock().unnoted.remove(&file);
    }

    /// Notes that `file` has no name and no user any more, and is dropped.
    pub fn gone(&self, node: Context<'_>, file: u32) {
        let record = node.segment.file(file);
        if !record.is_tracked() {
            return;
        }
        let mut state = self.lock();
        let sequence = node.segment.next_sequence();
        if let (Ok(key), Some(log)) = (state.key(node, file), &mut state.log) {
            // Written with the next commit. Without it recovery finds no such file.
            let _ = log.push(&Record { sequence, key, body: Body::Gone });
        }
        crash::point("journal.gone");
        state.files.remove(&file);
        state.newest.remove(&file);
        state.unnoted.remove(&file);
        record.clear(FileFlags::LOGGED | FileFlags::SLOTTED);
    }

    /// The file that the log has data of for longest, of those that `may` be settled, if half of the log
    /// is used, or nothing comes to it before all are.
    pub fn to_checkpoint(&self, node: Context<'_>, may: impl Fn(u32) -> bool) -> Option<u32> {
        let state = self.lock();
        let is_half_full = state.log.as_ref().is_some_and(|log| log.used() > log.bytes() / 2);
        if !(state.full || state.failed || is_half_full) {
            return None;
        }
        let files = node.segment.live_files().filter(|&file| may(file));
        let files = files.filter(|file| !state.unnoted.contains(file));
        files.min_by_key(|&file| state.logged_since(file))
    }

    /// Begins a round that takes nothing any more anew, if it can be; again and again, for the device may
    /// have failed only for a while.
    pub fn mend(&self, node: Context<'_>, io: &mut dyn IoClient) {
        let mut state = self.lock();
        if state.failed || state.full {
            state.restart_if_dead(node, io);
        }
    }

    /// Whether data of files can be appended.
    pub fn takes_data(&self) -> bool {
        let state = self.lock();
        !state.full && !state.failed && state.log.is_some()
    }

    /// Everything is on the store, durably, and the tiers' files are about to be removed.
    pub fn stop(&self, node: Context<'_>) {
        let mut state = self.lock();
        let sequence = node.segment.next_sequence();
        let io = &mut Undoable::plain();
        if state.log.is_some() {
            let stop = Record { sequence, key: Key::default(), body: Body::Stop };
            let _ = state.append(&stop, io).and_then(|()| state.commit(true, io));
            crash::point("journal.stopped");
        }
    }
}

impl State {
    fn open(
        &mut self,
        journal: &Journal,
        node: Context<'_>,
        io: &mut dyn IoClient,
    ) -> Result<(), Errno> {
        if self.log.is_none() {
            let log = Log::open(&journal.path, journal.bytes, node.segment.header().files, io)?;
            // Only a damaged segment is behind its journal.
            log.found().into_iter().for_each(|found| node.segment.number_from(found));
            if log.is_damaged() {
                let path = journal.path.display();
                eprintln!(
                    "{path}: a record is damaged; all goes to the store before more comes to it"
                );
                self.failed = true;
            }
            self.log = Some(log);
        }
        Ok(())
    }

    fn append(&mut self, record: &Record<'_>, io: &mut dyn IoClient) -> Result<(), LogError> {
        let log = self.log.as_mut().ok_or(LogError::Full)?;
        if self.failed {
            return Err(LogError::Device(Errno::IO));
        }
        let result = log.append(record, io);
        self.failed |= matches!(result, Err(LogError::Device(_)));
        self.full |= matches!(result, Err(LogError::Full));
        result
    }

    fn append_checkpoint(
        &mut self,
        node: Context<'_>,
        &Checkpoint { file, sequence }: &Checkpoint,
        io: &mut dyn IoClient,
    ) -> Result<(), LogError> {
        let key = self.key(node, file)?;
        match crash::planted("journal-no-settled") {
            true => Ok(()),
            false => self.append(&Record { sequence, key, body: Body::Settled }, io),
        }
    }

    /// Writes what was appended; durably, if asked.
    ///
    /// # Errors
    /// The device's. Nothing more is appended then before the log has begun anew: what the kernel
    /// could not write once it does not try again.
    pub fn commit(&mut self, durably: bool, io: &mut dyn IoClient) -> Result<(), LogError> {
        let log = self.log.as_mut().ok_or(LogError::Full)?;
        if self.failed {
            return Err(LogError::Device(Errno::IO));
        }
        let result = log.commit(durably, io);
        self.failed |= result.is_err();
        result
    }

    /// Begins to append data of `file`.
    ///
    /// # Errors
    /// `Full` where there is no log, or no room in it; the device's.
    pub fn begin(&mut self, node: Context<'_>, file: u32) -> Result<(), LogError> {
        if self.failed || self.full || self.log.is_none() {
            return Err(LogError::Full);
        }
        let generation = node.segment.file(file).generation.load(Ordering::Acquire);
        let key = self.key(node, file)?;
        let since = node.segment.sequence();
        self.files
            .entry(file)
            .and_modify(|logged| {
                if logged.generation != generation {
                    logged.blocks.clear();
                }
                (logged.generation, logged.key) = (generation, key.clone());
            })
            .or_insert_with(|| Logged {
                generation,
                since,
                key: key.clone(),
                blocks: HashMap::new(),
            });
        Ok(())
    }

    /// The sequence since which the log has data of `file`; 0 if that is not known.
    fn logged_since(&self, file: u32) -> u64 {
        self.files.get(&file).map_or(0, |logged| logged.since)
    }

    /// Whether the log has these pages, as they are, already.
    pub fn has(&self, file: u32, block: u64, bucket: u32, version: u32, pages: u64) -> bool {
        self.files.get(&file).and_then(|logged| logged.blocks.get(&block)).is_some_and(|known| {
            (known.bucket, known.version) == (bucket, version) && pages & !known.pages == 0
        })
    }

    /// Appends those of a block's pages that the log does not have as they are.
    ///
    /// # Errors
    /// Why not all could be appended.
    pub fn append_pages(
        &mut self,
        file: u32,
        facts: &Facts<'_>,
        pages: &BlockPages<'_>,
        io: &mut dyn IoClient,
    ) -> Result<(), LogError> {
        let page = pages.page;
        let start = pages.block * (PAGES * page) as u64;
        let inside = facts.size.saturating_sub(start).min((PAGES * page) as u64) as usize;
        let logged = self.files.get_mut(&file).ok_or(LogError::Full)?;
        let key = logged.key.clone();
        let known = logged.blocks.remove(&pages.block);
        let mut block = known.unwrap_or_else(|| LoggedBlock {
            bucket: 0,
            version: 0,
            pages: 0,
            hashes: Box::new([0; PAGES]),
        });
        let mut changed = 0u64;
        for number in PageSet(pages.pages).pages() {
            let bytes = (number * page).min(inside)..((number + 1) * page).min(inside);
            let hash = hash_of(&pages.data[bytes]);
            if block.pages >> number & 1 == 0 || block.hashes[number] != hash {
                block.hashes[number] = hash;
                changed |= 1 << number;
            }
        }
        for run in PageSet(changed).runs() {
            let bytes = (run.start * page).min(inside)..(run.end * page).min(inside);
            if bytes.is_empty() {
                continue;
            }
            let body = Body::Data {
                offset: start + bytes.start as u64,
                size: facts.size,
                mtime_ns: facts.mtime_ns,
                path: facts.path,
                bytes: &pages.data[bytes],
            };
            self.newest.insert(file, facts.sequence);
            // What cannot be appended is not remembered.
            self.append(&Record { sequence: facts.sequence, key: key.clone(), body }, io)?;
        }
        (block.bucket, block.version) = (pages.bucket, pages.version);
        block.pages |= changed;
        if let Some(logged) = self.files.get_mut(&file) {
            logged.blocks.insert(pages.block, block);
        }
        Ok(())
    }

    /// What makes the file this file.
    fn key(&self, node: Context<'_>, file: u32) -> Result<Key, LogError> {
        let record = node.segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        if let Some(logged) = self.files.get(&file).filter(|known| known.generation == generation) {
            return Ok(logged.key.clone());
        }
        let identity = record.identity();
        let store = record.store.load(Ordering::Relaxed) as u8;
        let mut key = Key {
            store,
            device: identity.device,
            inode: identity.inode,
            born_ns: record.born_ns.load(Ordering::Acquire),
            ..Key::default()
        };
        let folder = &node.config.backing.get(usize::from(store)).ok_or(LogError::Full)?.path;
        if let Ok(fd) = node.descriptors.of(node.segment, file, folder) {
            identify(&fd, &mut key);
            // As the records of slots and marks name it.
            key.born_ns = record.born_ns.load(Ordering::Acquire);
        }
        Ok(key)
    }

    /// Begins the log anew if nothing in it is live. Returns whether it did.
    fn restart_if_dead(&mut self, node: Context<'_>, io: &mut dyn IoClient) -> bool {
        let Some(log) = &mut self.log else { return false };
        let unnoted = &self.unnoted;
        let live =
            |file: u32| node.segment.file(file).has(FileFlags::LOGGED) && !unnoted.contains(&file);
        if !(self.failed || self.full || log.is_worth_restart())
            || node.segment.live_files().any(live)
        {
            return false;
        }
        // What comes to a slot from now on has a higher sequence, or its file the flag.
        let floor = node.segment.next_sequence();
        let before = log.floor();
        let slotted = node.segment.live_files();
        let slotted = slotted.filter(|&file| node.segment.file(file).has(FileFlags::SLOTTED));
        let slotted: Vec<u32> = slotted.collect();
        let settled_to = |file: &u32| {
            let then = self.live.get(file).copied().unwrap_or(before);
            then.max(self.settled.get(file).copied())
        };
        let live: HashMap<_, _> = slotted.iter().map(|file| (*file, settled_to(file))).collect();
        let mut keys = Vec::new();
        for (&file, &settled) in &live {
            match self.key(node, file) {
                Ok(key) => keys.push((key.name(), settled)),
                Err(_) => return false,
            }
        }
        let Some(log) = &mut self.log else { return false };
        if let Err(error) = log.restart(Some(floor), &keys, io) {
            // The new head may hold after a power loss, which knows nothing of what the old round took.
            self.failed |= matches!(error, LogError::Device(_));
            return false;
        }
        self.live = live;
        self.settled.clear();
        self.newest.clear();
        self.unnoted.clear();
        (self.failed, self.full) = (false, false);
        true
    }
}

/// What the kernel says about the file behind `fd`.
pub(crate) fn identify(fd: &OwnedFd, key: &mut Key) {
    if let Ok(found) = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
        && found.stx_mask & StatxFlags::BTIME.bits() != 0
    {
        let born = found.stx_btime;
        key.born_ns = forebay_pool::clock::joined_ns(born.tv_sec, i64::from(born.tv_nsec));
    }
    if let Some((handle_type, handle)) = handle_of(fd.as_fd()) {
        (key.handle_type, key.handle) = (handle_type, handle);
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

impl Config {
    /// Whether fsync of some file is to be answered when a file tier has its bytes.
    pub(crate) fn wants_journal(&self) -> bool {
        let nonvolatile = Some(Durability::NonVolatile);
        Some(self.flush.durability) == nonvolatile
            || self.rules.iter().any(|rule| rule.set.durability == nonvolatile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;
    use crate::observe::trace::Trace;
    use crate::store::descriptors::Descriptors;
    use forebay_pool::files::Identity;
    use forebay_pool::layout::Geometry;
    use forebay_pool::segment::anonymous;
    use forebay_tiers::{Fault, FaultScript, Faulty, Operation, Positional, Rule, When};
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// A node of which only the journal is used, and two files that it knows.
    struct World {
        _folder: tempfile::TempDir,
        node: Node,
        files: [u32; 2],
        script: FaultScript,
        io: Faulty<Positional>,
    }

    impl World {
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            let text = format!(
                "[[backing]]\npath = {:?}\n[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"8MiB\"\n",
                folder.path()
            );
            let config = Config::parse(&text).unwrap();
            let geometry = Geometry {
                page_size: 4096,
                tier_buckets: vec![64],
                clients: 2,
                files: 8,
                descriptions: 64,
                nodes: 64,
            };
            let (segment, pool_file) = anonymous(&geometry).unwrap();
            let files = [1, 2].map(|inode| {
                let identity = Identity { device: 1, inode };
                segment.with_file_or_new(identity, Node::new_owner(), |file, _| file).unwrap()
            });
            let waker = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            let journal = Journal {
                path: folder.path().join("journal"),
                tier: 0,
                bytes: 1 << 20,
                state: Mutex::default(),
            };
            let script = FaultScript::new();
            let node = Node {
                descriptors: Descriptors::new(
                    config.backing.iter().map(|backing| backing.path.as_path()),
                ),
                gauges: Vec::new(),
                stripes: Vec::new(),
                segment,
                pool_file,
                config,
                slots: Vec::new(),
                indexes: Vec::new(),
                runtime: Runtime {
                    instance: String::new(),
                    folder: PathBuf::new(),
                    pool: PathBuf::new(),
                },
                journal: Some(journal),
                watermarks: forebay_placement::Watermarks::default(),
                trace: Trace::to(None).unwrap(),
                faults: None,
                draining: AtomicBool::new(false),
                stopping: AtomicBool::new(false),
                rounds: AtomicU64::new(0),
                flushed_until: AtomicU64::new(0),
                waker,
            };
            let io = Faulty::new(Positional, script.clone());
            World { _folder: folder, node, files, script, io }
        }

        fn journal(&self) -> &Journal {
            self.node.journal.as_ref().unwrap()
        }

        /// Appends data of a file, as a sync does, which the log answers if this is true.
        fn log(&mut self, file: usize) -> bool {
            let (file, journal) = (self.files[file], self.node.journal.as_ref().unwrap());
            self.node.segment.file(file).set(FileFlags::LOGGED);
            let mut state = journal.lock();
            state.open(journal, self.node.context(), &mut self.io).unwrap();
            let sequence = self.node.segment.next_sequence();
            let facts = Facts { sequence, size: 4096, mtime_ns: 0, path: b"" };
            let data = &sequence.to_le_bytes().repeat(512)[..];
            let pages = BlockPages { block: 0, bucket: 0, version: 0, pages: 1, data, page: 4096 };
            let appended = state
                .begin(self.node.context(), file)
                .and_then(|()| state.append_pages(file, &facts, &pages, &mut self.io));
            appended.and_then(|()| state.commit(true, &mut self.io)).is_ok()
        }

        /// Makes the journal be told of a truncate, as of one that is under way.
        fn cut(&mut self, file: usize, size: u64) {
            let (file, journal) = (self.files[file], self.node.journal.as_ref().unwrap());
            let record = self.node.segment.file(file);
            record.intent.store(size + 1, Ordering::SeqCst);
            assert_eq!(journal.cut(self.node.context(), file, &mut self.io), Ok(()));
            record.intent.store(0, Ordering::SeqCst);
        }

        fn settle(&mut self, file: usize) -> Result<(), LogError> {
            let sequence = self.node.segment.next_sequence();
            self.settle_up_to(file, sequence)
        }

        fn settle_up_to(&mut self, file: usize, sequence: u64) -> Result<(), LogError> {
            let (file, journal) = (self.files[file], self.node.journal.as_ref().unwrap());
            journal.checkpoint(self.node.context(), &[Checkpoint { file, sequence }], &mut self.io)
                [0]
        }

        fn fail(&self, operation: Operation, times: u64) {
            self.script.add(Rule::new(operation, When::Next(times), Fault::Fail(Errno::IO)));
        }
    }

    /// Each of the files is settled on the store, one after the other.
    #[test]
    fn after_an_error_the_round_begins_anew_when_every_file_was_settled() {
        let mut world = World::new();
        assert!(world.log(0) && world.log(1));
        world.fail(Operation::Sync, 1);
        assert!(!world.log(0));
        assert!(!world.journal().takes_data());
        assert!(world.settle(0).is_err());
        let logged = |file: u32| world.node.segment.file(file).has(FileFlags::LOGGED);
        assert!(world.files.into_iter().all(logged));
        let due = world.journal().to_checkpoint(world.node.context(), logged);
        assert_eq!(due, Some(world.files[1]));
        assert_eq!(world.settle(1), Ok(()));
        assert!(world.journal().takes_data());
        assert!(world.log(1));
        let contents = log::Contents::read(&world.journal().path).unwrap();
        assert_eq!(contents.pending(), (1, 4096));
        // The other one has nothing in it, and does not hold it up.
        assert_eq!(world.settle(0), Ok(()));
    }

    /// Its head may be there or not: what came to the round before would be lost with it.
    #[test]
    fn after_a_restart_that_failed_nothing_comes_to_the_round_before() {
        for operation in [Operation::Write, Operation::Sync] {
            let mut world = World::new();
            let is_worth_it = |world: &World| {
                world.journal().lock().log.as_ref().is_some_and(Log::is_worth_restart)
            };
            while !is_worth_it(&world) {
                assert!(world.log(0));
            }
            // The checkpoint can be noted, the new head cannot be made durable.
            let nothing = Fault::Delay(std::time::Duration::ZERO);
            world.script.add(Rule::new(operation, When::Next(1), nothing));
            world.fail(operation, 1);
            assert_eq!(world.settle(0), Ok(()));
            assert_eq!(world.script.hits(), 2);
            assert!(!world.log(1));
            world.node.segment.file(world.files[1]).clear(FileFlags::LOGGED);
            world.node.journal.as_ref().unwrap().mend(world.node.context(), &mut world.io);
            assert!(world.log(1));
        }
    }

    /// A truncate between the sequence of a sync and its checkpoint: its record would be applied once more, over what
    /// has been written and synced since, if no later sync covered it.
    #[test]
    fn a_truncate_within_a_sync_stays_logged_until_the_next_checkpoint() {
        let mut world = World::new();
        assert!(world.log(0));
        let sequence = world.node.segment.next_sequence();
        world.cut(0, 100);
        let is_logged = |world: &World| world.node.segment.file(world.files[0]).is_logged();
        assert_eq!(world.settle_up_to(0, sequence), Ok(()));
        assert!(is_logged(&world));
        assert_eq!(world.settle(0), Ok(()));
        assert!(!is_logged(&world));
        // The journal has nothing of the file: a truncate that comes now is nothing that it has to know.
        world.cut(0, 50);
        let contents = log::Contents::read(&world.journal().path).unwrap();
        assert!(
            contents.files.values().all(|file| file.changes.is_empty()),
            "{}",
            contents.files.len()
        );
    }

    /// What is behind a damaged record counts for a recovery only as long as nobody adds to it.
    #[test]
    fn a_damaged_round_is_not_carried_on() {
        let mut world = World::new();
        assert!(world.log(0) && world.log(0) && world.log(0));
        let path = world.journal().path.clone();
        *world.journal().lock() = State::default();
        let mut bytes = std::fs::read(&path).unwrap();
        let first = bytes.windows(4).position(|window| window == b"FBJR").unwrap();
        bytes[first + 2000] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(log::Contents::read(&path).unwrap().damaged.is_some());
        assert!(!world.log(1));
        assert!(!world.journal().takes_data());
        assert!(world.settle(0).is_err());
        assert_eq!(world.settle(1), Ok(()));
        assert!(world.log(1));
        let contents = log::Contents::read(&path).unwrap();
        assert_eq!((contents.damaged, contents.pending()), (None, (1, 4096)));
    }

    /// Slots that hold some of a file whose checkpoint could not be noted.
    #[test]
    fn what_was_not_noted_counts_again_with_what_slots_hold() {
        let mut world = World::new();
        assert!(world.log(0) && world.log(1));
        world.fail(Operation::Sync, 1);
        assert!(!world.log(0));
        assert!(world.settle(0).is_err());
        world.journal().count_again(world.files[0]);
        assert!(world.settle(1).is_err());
        assert!(!world.journal().takes_data());
        assert_eq!(world.settle(0), Ok(()));
        assert!(world.journal().takes_data());
    }
}
