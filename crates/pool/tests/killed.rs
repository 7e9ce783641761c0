//! Real processes share a pool and are killed with SIGKILL at random moments, hundreds of times.
//!
//! The test binary starts itself as workers that read, write, move and discard blocks by the
//! production protocol, each with two threads. The parent plays the node manager: it kills workers,
//! takes back what they held, and starts new ones; now and then it kills them all, starts managers
//! that are killed in the middle of [`Segment::recover`], recovers itself, and examines everything
//! in the pool.
//!
//! What must hold is kept in a second shared memory, the [`Ledger`]: every write has a sequence
//! number, given under the block's lock and noted as done after the write has returned. Every word
//! of a bucket says which file, block, write and place it belongs to. So a reader can tell foreign
//! bytes, torn writes and lost writes; only a write whose writer was killed may be seen in part.
//!
//! The seed is printed, and can be given as FOREBAY_SEED. Both memories are unnamed files: nothing
//! is left behind, whatever happens to the test.

use forebay_pool::BucketId;
use forebay_pool::backoff::Backoff;
use forebay_pool::descriptions::Marker;
use forebay_pool::free_map::{FREE, USED};
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::segment::{self, MANAGER_SLOT};
use forebay_pool::{Entry, FileId, Identity, Owner, Segment, clock, liveness};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WORKERS: usize = 4;
const THREADS: u32 = 2;
const RUN: Duration = Duration::from_secs(15);
const LEAST_KILLS: u64 = 100;
/// A worker that does nothing for so long hangs.
const STUCK: Duration = Duration::from_secs(60);

const DEVICE: u64 = 7;
const FILES: usize = 4;
const BLOCKS: usize = 40;
/// Inode numbers of files that come and go.
const PASSING: u64 = 1000;
/// Fewer than blocks, so that writers run out of them.
const RAM_BUCKETS: u32 = 96;

/// The blocks in use: index trees of all heights.
fn block_number(index: usize) -> u64 {
    let at = index as u64;
    match index {
        0..20 => at,
        20..25 => at - 20 + 62,
        25..30 => at - 25 + 4094,
        30..35 => at - 30 + 262_142,
        35..38 => at - 35 + (1 << 30),
        _ => at - 38 + (1 << 45),
    }
}

// ---------------------------------------------------------------------------------------------
// The ledger.

const SEQUENCES: usize = 1 << 15;

/// What is known of a block.
#[repr(C)]
struct Cell {
    /// The last sequence number given.
    begun: AtomicU64,
    /// The highest whose write has returned.
    acknowledged: AtomicU64,
    /// What stands on the backing store.
    store: AtomicU64,
    /// A bit for each write that has returned.
    done: [AtomicU64; SEQUENCES / 64],
    /// A bit for each write that a reader saw in part.
    torn: [AtomicU64; SEQUENCES / 64],
}

impl Cell {
    /// Under the block's lock.
    fn begin(&self) -> u64 {
        let sequence = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(sequence < SEQUENCES as u64, "too many writes for the ledger");
        sequence
    }

    fn acknowledge(&self, sequence: u64) {
        mark(&self.done, sequence);
        self.acknowledged.fetch_max(sequence, Ordering::SeqCst);
    }
}

fn mark(bits: &[AtomicU64], bit: u64) {
    bits[bit as usize / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
}

/// What workers do, in the order of [`Ledger::counts`].
const KINDS: [&str; 15] = [
    "reads from buckets",
    "reads from the store",
    "new blocks",
    "rewrites",
    "writes around",
    "evictions",
    "exclusive sections",
    "intents completed by clients",
    "descriptions opened",
    "descriptions adopted",
    "descriptions freed",
    "files made",
    "files removed",
    "messages sent",
    "messages received",
];

#[repr(C)]
struct Shared {
    /// The process that has a file exclusively: pid and start time.
    token: [AtomicU64; FILES],
    /// Operations each worker has done.
    beats: [AtomicU64; WORKERS],
    counts: [AtomicU64; KINDS.len()],
    /// Markers of descriptions, for others to adopt.
    markers: [AtomicU64; 16],
    cells: [Cell; FILES * BLOCKS],
}

/// The mapping of [`Shared`].
struct Ledger(*const Shared);

// SAFETY: all content is atomics.
unsafe impl Send for Ledger {}
// SAFETY: the same.
unsafe impl Sync for Ledger {}

impl std::ops::Deref for Ledger {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        // SAFETY: mapped until the process ends; zeros are valid.
        unsafe { &*self.0 }
    }
}

impl Ledger {
    fn map(file: BorrowedFd<'_>) -> Ledger {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping.
        let base = unsafe {
            mmap(std::ptr::null_mut(), size_of::<Shared>(), access, MapFlags::SHARED, file, 0)
        };
        Ledger(base.unwrap().cast())
    }

    fn create() -> (Ledger, OwnedFd) {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("forebay-ledger", flags).unwrap();
        rustix::fs::ftruncate(&file, size_of::<Shared>() as u64).unwrap();
        (Ledger::map(file.as_fd()), file)
    }

    fn count(&self, kind: &str) {
        let kind = KINDS.iter().position(|&known| known == kind).unwrap();
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
    }

    fn cell(&self, file: usize, block: usize) -> &Cell {
        &self.cells[file * BLOCKS + block]
    }
}

// ---------------------------------------------------------------------------------------------
// What is in a bucket.

/// File, block and sequence number in the upper half, and a checksum of them and of the place.
fn pattern(file: usize, block: usize, sequence: u64, at: usize) -> u64 {
    let head = (file as u64 + 1) << 24 | (block as u64) << 16 | sequence;
    let mixed = (head << 20 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    head << 32 | mixed >> 32
}

/// The words of a bucket. Whole words are written, so that a kill never tears one.
fn words(segment: &Segment, bucket: BucketId) -> &[AtomicU64] {
    // SAFETY: the bucket's bytes are mapped and aligned as long as the segment.
    unsafe {
        std::slice::from_raw_parts(
            segment.bucket_data(bucket).cast::<AtomicU64>(),
            segment.bucket_bytes() / 8,
        )
    }
}

/// Checks a block's words and returns the sequence number of the oldest write in them, and whether
/// it is the only one. Writes seen in part are noted in the ledger.
fn examine(ledger: &Ledger, file: usize, block: usize, words: &[u64]) -> (u64, bool) {
    let sequence = |word: u64| word >> 32 & 0xffff;
    let mut oldest = u64::MAX;
    for (at, &word) in words.iter().enumerate() {
        let found = sequence(word);
        assert_eq!(
            word,
            pattern(file, block, found, at),
            "file {file} block {block} word {at} is foreign: {word:#x}"
        );
        assert!(found <= oldest, "file {file} block {block} word {at}: newer behind older");
        oldest = found;
    }
    let mut last = oldest;
    for &word in words.iter().rev() {
        if sequence(word) != last {
            last = sequence(word);
            mark(&ledger.cell(file, block).torn, last);
        }
    }
    (oldest, last == oldest)
}

// ---------------------------------------------------------------------------------------------
// Random numbers.

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

// ---------------------------------------------------------------------------------------------
// Workers.

struct Worker<'a> {
    segment: &'a Segment,
    ledger: &'a Ledger,
    owner: Owner,
    /// File records of the lasting files.
    files: [FileId; FILES],
    token: u64,
    random: Random,
    buffer: Vec<u64>,
    open: Vec<(Marker, FileId)>,
    /// Messages sent so far.
    said: u64,
}

impl<'a> Worker<'a> {
    /// The client's `enter`: a file that a dead process had exclusively is taken over.
    fn enter(&self, file: usize) -> SharedGuard<'a> {
        let mut backoff = Backoff::default();
        loop {
            match self.segment.try_enter(self.files[file], self.owner) {
                Ok(inside) => return inside,
                Err(holder) => {
                    if backoff.wait() && self.segment.clients().is_dead(holder) {
                        self.exclusively(file, |_| {});
                    }
                }
            }
        }
    }

    /// No other may have the file exclusively while this thread is in it.
    fn check_not_exclusive(&self, file: usize) {
        let token = self.ledger.token[file].load(Ordering::SeqCst);
        if token != 0 && token != self.token {
            let (pid, start) = (token as u32 & 0x3f_ffff, token >> 22);
            let alive = liveness::start_time(pid).is_some_and(|now| now << 22 >> 22 == start);
            assert!(!alive, "file {file} is exclusive to {pid} and entered by another");
        }
    }

    fn visit<R>(&mut self, file: usize, act: impl FnOnce(&mut Self, &FileRecord) -> R) -> R {
        let _inside = self.enter(file);
        self.check_not_exclusive(file);
        let segment = self.segment;
        let result = act(self, segment.file(self.files[file]));
        self.check_not_exclusive(file);
        result
    }

    fn exclusively(&self, file: usize, act: impl FnOnce(&FileRecord)) {
        let inside = self.segment.enter_table(self.owner);
        let id = self.files[file];
        let exclusive = self.segment.lock_exclusive(&inside, id, self.owner).unwrap();
        assert!(exclusive.is_taken());
        self.check_not_exclusive(file);
        self.ledger.token[file].store(self.token, Ordering::SeqCst);
        let record = self.segment.file(id);
        if record.intent.swap(0, Ordering::SeqCst) != 0 {
            self.ledger.count("intents completed by clients");
        }
        act(record);
        let token = self.ledger.token[file].swap(0, Ordering::SeqCst);
        assert_eq!(token, self.token, "file {file} was exclusive to two");
        drop(exclusive);
        self.ledger.count("exclusive sections");
    }

    /// Fills a locked bucket as the client's `write_bucket` does. Returns the sequence number.
    fn fill(&self, file: usize, block: usize, bucket: BucketId) -> u64 {
        let meta = self.segment.bucket(bucket).unwrap();
        assert_eq!(meta.lock.holder(), Some(self.owner));
        assert_eq!(meta.file.load(Ordering::Relaxed), self.files[file]);
        assert_eq!(meta.block.load(Ordering::Relaxed), block_number(block));
        let sequence = self.ledger.cell(file, block).begin();
        let valid = meta.valid.load(Ordering::Relaxed);
        meta.mark_dirty(valid, 0);
        for (at, word) in words(self.segment, bucket).iter().enumerate() {
            word.store(pattern(file, block, sequence, at), Ordering::Relaxed);
        }
        meta.mark_dirty(u64::MAX, 0);
        linger(sequence as usize / 8);
        if meta.valid.load(Ordering::Relaxed) != u64::MAX {
            meta.valid.fetch_or(u64::MAX, Ordering::Release);
        }
        assert_eq!(meta.lock.holder(), Some(self.owner), "a held lock was taken away");
        sequence
    }

    /// The client's `write_part` for a whole block.
    fn write(&mut self, file: usize, block: usize) {
        self.visit(file, |this, record| {
            let (segment, owner) = (this.segment, this.owner);
            let Some(place) = segment.entry_or_insert(record, block_number(block), owner) else {
                return;
            };
            let sequence = loop {
                if let Some(mut locked) = segment.lock_block(place, owner) {
                    assert!(locked.is_taken());
                    locked.changed();
                    let sequence = this.fill(file, block, locked.bucket());
                    this.ledger.count("rewrites");
                    break sequence;
                }
                let Some(bucket) = segment.take_bucket(owner) else {
                    if let Some(sequence) = this.write_around(file, block, place) {
                        break sequence;
                    }
                    continue;
                };
                linger(block);
                let home = (this.files[file], block_number(block));
                let Some(fresh) = segment.init_bucket(bucket, home.0, home.1, owner) else {
                    continue;
                };
                if let Some(_published) = fresh.publish(place, TierId::RAM) {
                    let sequence = this.fill(file, block, bucket);
                    this.ledger.count("new blocks");
                    break sequence;
                }
            };
            this.ledger.cell(file, block).acknowledge(sequence);
        });
    }

    /// The client's `write_around`.
    fn write_around(&self, file: usize, block: usize, place: &AtomicU64) -> Option<u64> {
        let busy = Entry::Busy(self.owner).encode();
        place.compare_exchange(Entry::EMPTY, busy, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let cell = self.ledger.cell(file, block);
        let sequence = cell.begin();
        linger(block);
        cell.store.store(sequence, Ordering::SeqCst);
        let left = place.swap(Entry::EMPTY, Ordering::Release);
        assert_eq!(left, busy, "a busy entry was taken away");
        self.ledger.count("writes around");
        Some(sequence)
    }

    /// The client's `read_resident`: lock-free, and after sixteen tries with the lock.
    fn read(&mut self, file: usize, block: usize) {
        let floor = self.ledger.cell(file, block).acknowledged.load(Ordering::SeqCst);
        self.visit(file, |this, record| {
            let (segment, owner) = (this.segment, this.owner);
            let place = segment.entry(record, block_number(block));
            let bytes = place.is_some_and(|place| {
                (0..16).find_map(|_| this.read_once(place)).unwrap_or_else(|| {
                    let Some(locked) = segment.lock_block(place, owner) else { return false };
                    this.copy(locked.bucket());
                    locked.meta().valid.load(Ordering::Relaxed) != 0
                })
            });
            let found = if bytes {
                this.ledger.count("reads from buckets");
                examine(this.ledger, file, block, &this.buffer).0
            } else {
                this.ledger.count("reads from the store");
                this.ledger.cell(file, block).store.load(Ordering::SeqCst)
            };
            assert!(found >= floor, "file {file} block {block}: {found}, but {floor} was done");
        });
    }

    /// A turn of a lock-free read: whether the bucket has the bytes; `None` if it changed.
    fn read_once(&mut self, place: &AtomicU64) -> Option<bool> {
        let word = place.load(Ordering::Acquire);
        let Entry::Resident { bucket, .. } = Entry::decode(word) else { return Some(false) };
        let meta = self.segment.bucket(bucket).unwrap();
        let first = meta.lock.read_begin()?;
        let valid = meta.valid.load(Ordering::Acquire);
        assert!(valid == 0 || valid == u64::MAX || meta.lock.read_retry(first));
        if valid != 0 {
            self.copy(bucket);
        }
        let same = place.load(Ordering::Acquire) == word && !meta.lock.read_retry(first);
        same.then_some(valid != 0)
    }

    fn copy(&mut self, bucket: BucketId) {
        for (to, from) in self.buffer.iter_mut().zip(words(self.segment, bucket)) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Moves a block to the store and frees its bucket, as a manager does.
    fn evict(&mut self, file: usize, block: usize) {
        self.visit(file, |this, record| {
            let segment = this.segment;
            let Some(place) = segment.entry(record, block_number(block)) else { return };
            let Some(locked) = segment.lock_block(place, this.owner) else { return };
            if locked.meta().valid.load(Ordering::Relaxed) != 0 {
                this.copy(locked.bucket());
                let (sequence, whole) = examine(this.ledger, file, block, &this.buffer);
                if !whole {
                    return;
                }
                this.ledger.cell(file, block).store.store(sequence, Ordering::SeqCst);
            }
            segment.discard_block(place, locked);
            this.ledger.count("evictions");
        });
    }

    /// Discards blocks under an intent, as a truncate does, and prunes the index.
    fn truncate(&mut self, file: usize, first: usize, prune: bool) {
        self.exclusively(file, |record| {
            record.intent.store(1, Ordering::Release);
            linger(first);
            for block in first..(first + 4).min(BLOCKS) {
                let cell = self.ledger.cell(file, block);
                let place = self.segment.entry(record, block_number(block));
                let locked = place
                    .and_then(|place| Some((place, self.segment.lock_block(place, self.owner)?)));
                let sequence = cell.begin();
                cell.store.store(sequence, Ordering::SeqCst);
                if let Some((place, locked)) = locked {
                    self.segment.discard_block(place, locked);
                }
                cell.acknowledge(sequence);
            }
            if prune {
                self.segment.index_nodes(self.owner.slot()).prune(record);
            }
            record.intent.store(0, Ordering::Release);
        });
    }

    /// Opens, adopts, uses and releases descriptions. One thread of each process does.
    fn describe(&mut self) {
        let (segment, owner) = (self.segment, self.owner);
        let slot = self.random.below(16) as usize;
        let mailbox = &self.ledger.markers[slot];
        let file = self.files[self.random.below(FILES as u64) as usize];
        let _inside = segment.enter_table(owner);
        if self.open.len() >= 6 {
            let (marker, _) = self.open.remove(self.random.below(6) as usize);
            let descriptions = segment.descriptions();
            let given = descriptions.give_up(owner.slot(), marker.description);
            // One that only reads its mailbox may take part in it meanwhile.
            if self.random.below(2) == 0 && descriptions.free(given, owner, |_| false) {
                self.ledger.count("descriptions freed");
            }
        } else if self.random.below(2) == 0 {
            let identity = segment.file(file).identity();
            let opened = segment.reopen_file(identity, owner, |file| {
                segment.open_description(file, DescriptionFlags::READ, owner)
            });
            if let Ok(Some(Some(marker))) = opened {
                self.open.push((marker, file));
                mailbox.store(marker.encode(), Ordering::SeqCst);
                self.ledger.count("descriptions opened");
            }
        } else if let Some(marker) = Marker::decode(mailbox.load(Ordering::SeqCst))
            && self.open.iter().all(|(other, _)| other.description != marker.description)
        {
            let file = &segment.description(marker.description).file;
            let file = file.load(Ordering::SeqCst);
            let identity = segment.file(file).identity();
            // It may be of another file by now; then the number of its use is another, too.
            if segment.reopen_file(identity, owner, |_| segment.descriptions().adopt(marker, owner))
                == Ok(Some(true))
            {
                self.open.push((marker, file));
                self.ledger.count("descriptions adopted");
            }
        }
        for &(marker, file) in &self.open {
            let description = segment.description(marker.description);
            assert_eq!(
                segment.descriptions().marker(marker.description),
                marker,
                "a held description went"
            );
            assert_eq!(description.file.load(Ordering::SeqCst), file);
            let _position = segment.lock_position(description, owner).unwrap();
            description.offset.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes a file that no test needs, or removes it.
    fn churn(&mut self) {
        let (segment, owner) = (self.segment, self.owner);
        let identity = Identity { device: DEVICE, inode: PASSING + self.random.below(24) };
        let block = 1 + self.random.below(5000);
        let inside = segment.enter_table(owner);
        if self.random.below(2) == 0 {
            let made = segment.with_file_or_new(identity, owner, |file, new| {
                if new {
                    segment.entry_or_insert(segment.file(file), block, owner);
                }
                new
            });
            if made == Some(true) {
                self.ledger.count("files made");
            }
        } else if let Ok(Some(file)) = segment.with_file(identity, owner, |file| file)
            && let Some(opens) = segment.files().count_opens(file)
            && let Some(exclusive) = segment.try_lock_exclusive(&inside, file, owner)
        {
            let is_it = || segment.file(file).identity() == identity;
            if segment.remove_file(file, exclusive, owner, opens, is_it) {
                self.ledger.count("files removed");
            }
        }
    }

    fn append_lock(&mut self, file: usize) {
        let (segment, owner) = (self.segment, self.owner);
        let _inside = segment.enter_table(owner);
        let record = segment.file(self.files[file]);
        let _append = segment.lock_append(record, owner).unwrap();
        record.size.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the manager something through the queue: in each message all words follow from the
    /// sender and its last message.
    fn say(&mut self) {
        for _ in 0..8 {
            let (first, blocks) = (self.said + 1, self.owner.raw());
            let message = Message::Stage {
                file: FileId::from_raw(sender(self.token)),
                generation: !blocks,
                first,
                blocks,
            };
            let inside = self.segment.enter_table(self.owner);
            let sent = self.segment.queue().push(self.owner, &message);
            drop(inside);
            if sent {
                self.said += 1;
                self.ledger.count("messages sent");
            }
        }
    }

    fn step(&mut self) {
        let file = self.random.below(FILES as u64) as usize;
        // Some blocks are hot.
        let range = if self.random.below(2) == 0 { 4 } else { BLOCKS as u64 };
        let block = self.random.below(range) as usize;
        match self.random.below(100) {
            0..55 => self.write(file, block),
            55..78 => self.read(file, block),
            78..83 => self.evict(file, block),
            83..86 => self.truncate(file, block, self.random.0 & 1 == 0),
            86..92 if self.owner.thread() == 1 => self.describe(),
            86..96 => self.churn(),
            96..98 => self.say(),
            _ => self.append_lock(file),
        }
    }
}

/// Stays where a kill is wanted, now and then.
fn linger(number: usize) {
    if number.is_multiple_of(4) {
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn identity_of(file: usize) -> Identity {
    Identity { device: DEVICE, inode: file as u64 }
}

fn sender(token: u64) -> u32 {
    (token ^ token >> 32) as u32
}

fn open_by_name(variable: &str) -> std::fs::File {
    let path = std::env::var(variable).unwrap();
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

const ROLE: &str = "FOREBAY_KILLED_ROLE";
const POOL: &str = "FOREBAY_KILLED_POOL";
const LEDGER: &str = "FOREBAY_KILLED_LEDGER";
const SEED: &str = "FOREBAY_SEED";

/// Not a test by itself: what this binary does when [`processes_are_killed_at_random`] starts it.
#[test]
fn a_process_to_be_killed() {
    let Ok(role) = std::env::var(ROLE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let segment = Segment::attach(open_by_name(POOL).as_fd()).unwrap();
    let ledger = Ledger::map(open_by_name(LEDGER).as_fd());
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    let pid = std::process::id();
    let start = liveness::start_time(pid).unwrap();
    if role == "manager" {
        segment.header().manager_start.store(start, Ordering::SeqCst);
        segment.header().manager_pid.store(pid, Ordering::SeqCst);
        loop {
            segment.recover(|file, owner| complete(&segment, file, owner));
        }
    }
    let number: usize = role.parse().unwrap();
    let slot = segment.clients().claim(pid, start).unwrap();
    let mut files = [FileId::from_raw(0); FILES];
    let owner = Owner::new(slot, 0);
    let inside = segment.enter_table(owner);
    for (file, id) in files.iter_mut().enumerate() {
        *id = segment.with_file(identity_of(file), owner, |file| file.unwrap()).unwrap();
    }
    drop(inside);
    let work = |thread: u32| {
        let mut worker = Worker {
            segment: &segment,
            ledger: &ledger,
            owner: Owner::new(slot, thread),
            files,
            token: u64::from(pid) | start << 22,
            random: Random(seed ^ u64::from(thread) << 60),
            buffer: vec![0; segment.bucket_bytes() / 8],
            open: Vec::new(),
            said: 0,
        };
        loop {
            worker.step();
            ledger.beats[number].fetch_add(1, Ordering::SeqCst);
        }
    };
    // A failed check ends the process at once; the parent sees the status.
    let work = |thread| {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(thread)));
        std::process::exit(101);
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
}

/// Finishes the truncate of a dead owner: in this test, nothing remains to be done but to end it.
fn complete(segment: &Segment, file: FileId, dead: Owner) {
    let record = segment.file(file);
    if record.exclusive.load(Ordering::SeqCst) == dead.raw() {
        record.intent.store(0, Ordering::SeqCst);
        let _ =
            record.exclusive.compare_exchange(dead.raw(), 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

// ---------------------------------------------------------------------------------------------
// The parent.

/// A child process, killed when this is dropped.
struct Running {
    child: Child,
    /// The worker's beats when it was started.
    beats: u64,
    seen: u64,
    moved: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Things that a kill can leak for good, counted and then given back.
#[derive(Default, Debug)]
struct Leaks {
    /// Index nodes taken, but neither cached nor in a tree.
    nodes_taken: u32,
    /// Free index nodes without their bit.
    nodes_without_bit: u32,
    /// File records in use that no chain names.
    files: u32,
    /// Client slots that were being claimed.
    slots: u32,
}

struct Manager {
    segment: Segment,
    ledger: Ledger,
    files: [OwnedFd; 2],
    random: Random,
    workers: Vec<Option<Running>>,
    kills: u64,
    kills_inside: u64,
    recoveries: u64,
    managers_killed: u64,
    orphans: u64,
    leaks: Leaks,
    /// What each sender said last.
    heard: HashMap<(FileId, u32), u64>,
}

impl Manager {
    fn new(seed: u64) -> Manager {
        let mut geometry = Geometry::for_tiers(4096, &[u64::from(RAM_BUCKETS) << 18]);
        (geometry.clients, geometry.files) = (16, 64);
        (geometry.descriptions, geometry.nodes) = (64, 512);
        let (segment, pool) = segment::anonymous(&geometry).unwrap();
        let (ledger, file) = Ledger::create();
        let me = Owner::new(MANAGER_SLOT, 0);
        let inside = segment.enter_table(me);
        for file in 0..FILES {
            assert_eq!(segment.with_file_or_new(identity_of(file), me, |_, new| new), Some(true));
        }
        drop(inside);
        Manager {
            segment,
            ledger,
            files: [pool, file],
            random: Random(seed),
            workers: (0..WORKERS).map(|_| None).collect(),
            kills: 0,
            kills_inside: 0,
            recoveries: 0,
            managers_killed: 0,
            orphans: 0,
            leaks: Leaks::default(),
            heard: HashMap::new(),
        }
    }

    /// Makes this process the pool's node manager.
    fn serve(&self) {
        let pid = std::process::id();
        let header = self.segment.header();
        header.manager_start.store(liveness::start_time(pid).unwrap(), Ordering::SeqCst);
        header.manager_pid.store(pid, Ordering::SeqCst);
    }

    fn spawn(&mut self, role: &str) -> Child {
        let name = |file: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_to_be_killed", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env(POOL, name(&self.files[0]))
            .env(LEDGER, name(&self.files[1]))
            .env(SEED, self.random.next().to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }

    fn start_worker(&mut self, number: usize) {
        let beats = self.ledger.beats[number].load(Ordering::SeqCst);
        let child = self.spawn(&number.to_string());
        let now = Instant::now();
        self.workers[number] = Some(Running { child, beats, seen: beats, moved: now });
    }

    /// Kills a worker if it is at work. Returns its pid.
    fn kill(&mut self, number: usize) -> Option<u32> {
        let running = self.workers[number].as_mut()?;
        if self.ledger.beats[number].load(Ordering::SeqCst) == running.beats {
            return None;
        }
        let mut running = self.workers[number].take()?;
        let _ = running.child.kill();
        let status = running.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "worker {number} failed by itself: {status}");
        self.kills += 1;
        let pid = running.child.id();
        let inside = |slot: &u32| {
            let client = self.segment.client(*slot);
            let present = client.shared_locks.iter().any(|word| word.load(Ordering::SeqCst) != 0);
            client.pid.load(Ordering::SeqCst) == pid && present
        };
        self.kills_inside += (1..16).filter(inside).count() as u64;
        Some(pid)
    }

    fn reap(&mut self, pid: u32) {
        for slot in 1..self.segment.header().clients {
            let client = self.segment.client(slot);
            if client.state.load(Ordering::SeqCst) == slot_state::LIVE
                && client.pid.load(Ordering::SeqCst) == pid
            {
                let generation = client.generation.load(Ordering::SeqCst);
                let done = self
                    .segment
                    .reap_slot(slot, |file, owner| complete(&self.segment, file, owner));
                if done.is_none() {
                    continue;
                }
                let left = self.stamped(slot);
                // Unless a new process has the slot already.
                if client.generation.load(Ordering::SeqCst) == generation {
                    assert!(left.is_empty(), "{pid} still has buckets {left:?}");
                }
            }
        }
    }

    /// Buckets that bear the stamp of `slot`, as taken or as locked.
    fn stamped(&self, slot: u32) -> Vec<BucketId> {
        let bears = |id: &BucketId| {
            let meta = self.segment.bucket(*id).unwrap();
            let state = meta.state.load(Ordering::SeqCst);
            let taken = Owner::from_raw(state).filter(|_| state != USED);
            [taken, meta.lock.holder()].iter().flatten().any(|owner| owner.slot() == slot)
        };
        BucketId::range(0, RAM_BUCKETS).filter(bears).collect()
    }

    fn check_progress(&mut self) {
        for number in 0..WORKERS {
            let Some(running) = &mut self.workers[number] else { continue };
            if let Some(status) = running.child.try_wait().unwrap() {
                panic!("worker {number} failed by itself: {status}");
            }
            let now = self.ledger.beats[number].load(Ordering::SeqCst);
            if now != running.seen {
                (running.seen, running.moved) = (now, Instant::now());
            }
            if running.moved.elapsed() > STUCK {
                self.describe_locks();
                panic!("worker {number} hangs");
            }
        }
    }

    fn describe_locks(&self) {
        for bucket in BucketId::range(0, RAM_BUCKETS) {
            if let Some(holder) = self.segment.bucket(bucket).unwrap().lock.holder() {
                eprintln!("bucket {bucket} is locked by {}/{}", holder.slot(), holder.thread());
            }
        }
        for file in self.segment.files().live() {
            let record = self.segment.file(file);
            let exclusive = record.exclusive.load(Ordering::SeqCst);
            let append = record.append.holder();
            if exclusive != 0 || append.is_some() {
                eprintln!("file {file}: exclusive {exclusive:#x}, append {append:?}");
            }
        }
        for slot in 0..16 {
            let client = self.segment.client(slot);
            let state = client.state.load(Ordering::SeqCst);
            let pid = client.pid.load(Ordering::SeqCst);
            let present =
                client.shared_locks.iter().filter(|word| word.load(Ordering::SeqCst) != 0);
            let present = present.count();
            eprintln!("slot {slot}: state {state}, pid {pid}, {present} shared locks");
        }
    }

    fn sweep(&mut self) {
        self.listen();
        let now = clock::stamp(clock::monotonic_ns());
        self.segment.descriptions().sweep(now, 3, 0, |_| {});
    }

    /// Kills one worker, leaves the others alone with what it held for a while, and replaces it.
    fn kill_one(&mut self) {
        let number = self.random.below(WORKERS as u64) as usize;
        if let Some(pid) = self.kill(number) {
            if self.random.below(3) == 0 {
                // Long enough for waiting threads to find the owner dead themselves.
                std::thread::sleep(Duration::from_millis(self.random.below(40)));
            }
            self.reap(pid);
            self.start_worker(number);
        }
    }

    /// Kills all processes, also managers in recovery; recovers, and examines the pool.
    fn kill_all(&mut self) {
        for number in 0..WORKERS {
            self.kill(number);
            self.workers[number] = None;
        }
        for _ in 0..2 {
            let child = self.spawn("manager");
            let pid = child.id();
            let mut manager = Running { child, beats: 0, seen: 0, moved: Instant::now() };
            while self.segment.header().manager_pid.load(Ordering::SeqCst) != pid {
                assert!(manager.child.try_wait().unwrap().is_none(), "the manager failed");
                std::thread::yield_now();
            }
            let delay = self.random.below(400);
            std::thread::sleep(Duration::from_micros(delay));
            drop(manager);
            self.managers_killed += 1;
        }
        self.serve();
        let found = self.segment.recover(|file, owner| complete(&self.segment, file, owner));
        assert_eq!(found.clients, 0);
        self.orphans += u64::from(found.orphans);
        self.recoveries += 1;
        self.examine();
    }

    /// Everything in the pool is in its place: no process is at work, and the pool was recovered.
    fn examine(&mut self) {
        self.examine_slots();
        self.examine_locks();
        self.examine_buckets();
        self.examine_blocks();
        self.examine_files();
        self.examine_nodes();
        self.examine_queue();
        self.examine_descriptions();
    }

    fn examine_slots(&mut self) {
        for slot in 0..self.segment.header().clients {
            let client = self.segment.client(slot);
            if slot != MANAGER_SLOT
                && client.state.load(Ordering::SeqCst) == slot_state::RESERVED
                && self.leaks.slots < 1000
            {
                self.leaks.slots += 1;
                self.segment.cancel_slot(slot);
            }
            assert_eq!(client.state.load(Ordering::SeqCst), slot_state::FREE, "slot {slot}");
            let idle = client.shared_locks.iter().all(|word| word.load(Ordering::SeqCst) == 0);
            assert!(idle, "slot {slot} has a shared lock");
            let mut kept = client.buckets.iter().chain(&client.nodes);
            assert!(kept.all(|place| place.load(Ordering::SeqCst) == 0), "slot {slot} has a cache");
        }
    }

    fn examine_locks(&self) {
        let segment = &self.segment;
        assert!(
            segment.files().stripes.iter().all(|stripe| stripe.holder().is_none()),
            "a stripe is held"
        );
        for id in 0..segment.descriptions().ready() {
            assert_eq!(segment.description(id).position.holder(), None, "description {id}");
        }
        for id in segment.header().bucket_ids() {
            assert_eq!(segment.bucket(id).unwrap().lock.holder(), None, "bucket {id}");
        }
        for file in segment.files().live() {
            let record = segment.file(file);
            assert_eq!(record.append.holder(), None, "file {file}");
            assert_eq!(record.exclusive.load(Ordering::SeqCst), 0, "file {file} is exclusive");
            assert_eq!(record.intent.load(Ordering::SeqCst), 0, "file {file} has an intent");
        }
    }

    /// Every bucket is free with its bit, or in use by the one entry that names it. (Repairing
    /// while others take may leave a bit too many; a thread that takes it finds the state and moves
    /// on.)
    fn examine_buckets(&self) {
        let segment = &self.segment;
        let mut named = HashMap::new();
        for file in segment.files().live() {
            segment.for_each_entry(segment.file(file), 0, |block, place| {
                match Entry::decode(place.load(Ordering::SeqCst)) {
                    Entry::Resident { tier: TierId::RAM, bucket } => {
                        let before = named.insert(bucket, (file, block));
                        assert_eq!(before, None, "bucket {bucket} is also in {file}:{block}");
                    }
                    other => panic!("file {file} block {block}: {other:?}"),
                }
                true
            });
        }
        let map = segment.free_buckets(TierId::RAM);
        let (mut free, mut spare) = (0, 0);
        for id in BucketId::range(0, RAM_BUCKETS) {
            let meta = segment.bucket(id).unwrap();
            let bit = map.bits[id.index() / 64].load(Ordering::SeqCst) >> (id.raw() % 64) & 1 == 1;
            match (meta.state.load(Ordering::SeqCst), named.get(&id)) {
                (FREE, None) => {
                    assert!(bit, "bucket {id} has lost its bit");
                    free += 1;
                }
                (USED, Some(&(file, block))) => {
                    assert_eq!(meta.file.load(Ordering::SeqCst), file, "bucket {id}");
                    assert_eq!(meta.block.load(Ordering::SeqCst), block, "bucket {id}");
                    spare += u32::from(bit);
                }
                (state, named) => panic!("bucket {id} is {state:#x} and named by {named:?}"),
            }
        }
        assert_eq!(map.available(), free + spare);
        assert_eq!(segment.header().tier[0].free.load(Ordering::SeqCst), free + spare);
        assert_eq!(free as usize + named.len(), RAM_BUCKETS as usize);
    }

    /// Every completed write is there, whole, and marked as dirty if the store has not got it.
    fn examine_blocks(&self) {
        let segment = &self.segment;
        for (number, cell) in self.ledger.cells.iter().enumerate() {
            let (file, block) = (number / BLOCKS, number % BLOCKS);
            let what = format!("file {file} block {block}");
            let done = cell.acknowledged.load(Ordering::SeqCst);
            let stored = cell.store.load(Ordering::SeqCst);
            let me = Owner::new(MANAGER_SLOT, 0);
            let id = segment.with_file(identity_of(file), me, |file| file.unwrap()).unwrap();
            let place = segment.entry(segment.file(id), block_number(block));
            let word = place.map_or(Entry::EMPTY, |place| place.load(Ordering::SeqCst));
            let mut found = stored;
            if let Entry::Resident { bucket, .. } = Entry::decode(word) {
                let meta = segment.bucket(bucket).unwrap();
                let valid = meta.valid.load(Ordering::SeqCst);
                let dirty = meta.pages.dirty();
                assert_eq!(dirty & !valid, 0, "{what}: dirty and not valid");
                assert!(valid == 0 || valid == u64::MAX, "{what}: valid {valid:#x}");
                if valid != 0 {
                    let words = words(segment, bucket).iter();
                    let copy: Vec<u64> = words.map(|word| word.load(Ordering::SeqCst)).collect();
                    found = examine(&self.ledger, file, block, &copy).0;
                    assert_eq!(dirty, u64::MAX, "{what} is not on the store and not dirty");
                }
            }
            assert!(found >= done, "{what}: {done} was completed, {found} is there");
            for (at, (torn, done)) in cell.torn.iter().zip(&cell.done).enumerate() {
                let both = torn.load(Ordering::SeqCst) & done.load(Ordering::SeqCst);
                assert_eq!(both, 0, "{what}: completed writes from {} on seen torn", at * 64);
            }
        }
    }

    /// Finds records that are in use and in no chain, and frees them. (That the lasting files are
    /// found has been seen already.)
    fn examine_files(&mut self) {
        let segment = &self.segment;
        let me = Owner::new(MANAGER_SLOT, 0);
        let live: Vec<FileId> = segment.files().live().collect();
        for file in live {
            let record = segment.file(file);
            if segment.with_file(record.identity(), me, |found| found) != Ok(Some(file)) {
                self.leaks.files += 1;
                segment.index_nodes(MANAGER_SLOT).prune(record);
                record.state.store(file_state::FREE, Ordering::SeqCst);
            }
        }
    }

    /// Every index node is in one tree or free; those that kills have leaked are given back.
    fn examine_nodes(&mut self) {
        let segment = &self.segment;
        let count = segment.header().nodes;
        let mut seen = vec![false; count as usize];
        for file in segment.files().live() {
            segment.index().for_each_node(segment.file(file), &mut |node| {
                assert!(!seen[node as usize], "node {node} is in two places");
                seen[node as usize] = true;
            });
        }
        let map = segment.index_nodes(MANAGER_SLOT).free();
        for node in 0..count {
            let bit = map.bits[node as usize / 64].load(Ordering::SeqCst) >> (node % 64) & 1 == 1;
            let state = segment.index_nodes(MANAGER_SLOT).state(node).load(Ordering::SeqCst);
            let entries = &segment.index().node(node).unwrap().entry;
            let zero = entries.iter().all(|entry| entry.load(Ordering::SeqCst) == 0);
            match (seen[node as usize], state) {
                (true, state) => assert_eq!(state, USED, "node {node}"),
                (false, FREE) => {
                    assert!(zero, "free node {node} is not empty");
                    self.leaks.nodes_without_bit += u32::from(!bit);
                    map.offer(node);
                }
                (false, _) => {
                    self.leaks.nodes_taken += 1;
                    segment.index_nodes(MANAGER_SLOT).release(node);
                }
            }
        }
    }

    /// Takes all messages: they are whole, and none is missing, twice, or out of its sender's
    /// order.
    fn listen(&mut self) {
        while let Some(message) = self.segment.queue().pop() {
            let Message::Stage { file, generation, first, blocks } = message else {
                panic!("no process sent {message:?}")
            };
            assert_eq!(generation, !blocks, "a torn message");
            let before = self.heard.insert((file, blocks), first).unwrap_or(0);
            assert_eq!(first, before + 1, "messages of one sender");
            self.ledger.count("messages received");
        }
    }

    /// All that was sent has come, and no place of the queue is lost.
    fn examine_queue(&mut self) {
        self.listen();
        let count = |kind| {
            let at = KINDS.iter().position(|&other| other == kind).unwrap();
            self.ledger.counts[at].load(Ordering::SeqCst)
        };
        assert!(count("messages received") >= count("messages sent"));
        let (queue, me) = (self.segment.queue(), Owner::new(MANAGER_SLOT, 0));
        for file in 0..forebay_pool::queue::PLACES as u32 {
            assert!(
                queue.push(me, &Message::Sync { file: FileId::from_raw(file) }),
                "a place of the queue is lost"
            );
        }
        assert!(!queue.push(me, &Message::Hold));
        for file in 0..forebay_pool::queue::PLACES as u32 {
            assert_eq!(queue.pop(), Some(Message::Sync { file: FileId::from_raw(file) }));
        }
    }

    /// No process holds a description any more, so all become free.
    fn examine_descriptions(&self) {
        for slot in 0..self.segment.header().clients {
            assert_eq!(
                self.segment.descriptions().held(slot, 0).load(Ordering::SeqCst),
                0,
                "slot {slot}"
            );
        }
        self.segment.descriptions().sweep(0, 0, 0, |_| {});
        self.segment.descriptions().sweep(0, 0, 0, |_| {});
        let mut left = 0;
        self.segment.descriptions().sweep(0, 0, 0, |_| left += 1);
        assert_eq!(left, 0, "descriptions are left");
    }
}

#[test]
fn processes_are_killed_at_random() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(clock::realtime_ns);
    println!("{SEED}={seed}");
    static DONE: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        std::thread::sleep(RUN * 4 + STUCK);
        if !DONE.load(Ordering::SeqCst) {
            eprintln!("the test hangs; {SEED}={seed}");
            std::process::exit(1);
        }
    });

    let start = Instant::now();
    let mut manager = Manager::new(seed);
    manager.serve();
    while start.elapsed() < RUN {
        for number in 0..WORKERS {
            manager.start_worker(number);
        }
        let rounds = 20 + manager.random.below(60);
        for _ in 0..rounds {
            let delay = manager.random.below(25_000);
            std::thread::sleep(Duration::from_micros(delay));
            manager.kill_one();
            manager.sweep();
            manager.check_progress();
        }
        manager.kill_all();
    }
    DONE.store(true, Ordering::SeqCst);

    let counts = KINDS.iter().zip(&manager.ledger.counts);
    let counts: Vec<_> = counts.map(|(kind, count)| (kind, count.load(Ordering::SeqCst))).collect();
    for (kind, count) in &counts {
        println!("{count:8} {kind}");
    }
    println!(
        "{} kills, {} of them inside; {} recoveries after {} managers killed in theirs; {} orphans",
        manager.kills,
        manager.kills_inside,
        manager.recoveries,
        manager.managers_killed,
        manager.orphans
    );
    println!("{:?}", manager.leaks);
    assert!(manager.kills >= LEAST_KILLS, "only {} kills", manager.kills);
    assert!(manager.kills_inside >= LEAST_KILLS / 2, "only {} inside", manager.kills_inside);
    for (kind, count) in counts {
        assert!(count > 0 || *kind == "intents completed by clients", "no {kind}");
    }
}
