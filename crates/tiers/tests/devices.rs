//! What every tier's device and every store does, written once; the tables at the end name them.
//!
//! One that keeps nothing gives zeros for what was written, and has empty files. All else that the
//! cases ask for it does like the others. What their batches do besides is in `conformance.rs`.

use forebay_device::{BackingStore, Batch, Errno, SlotDevice, Span, StoreFile, Target, Transfer};
use forebay_placement::Speed;
use forebay_posix::{FileSlots, MakeBatch, Positional, PosixStore, store_file};
use forebay_tiers::{FaultScript, Faulty, Null, Throttled, open_batch};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use tempfile::TempDir;

const SLOT: usize = 10_000;
const SLOTS: u32 = 8;
const DEPTH: u32 = 4;

/// Bytes whose value depends on their position, so that any shift shows.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (seed..seed + len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// The batch as it is, and with what the node manager lays around one.
fn wraps(batch: impl Fn() -> Box<dyn Batch>) -> [Box<dyn Batch>; 3] {
    let speed = Speed { read_bandwidth: 20 << 30, write_bandwidth: 10 << 30, latency_ns: 100_000 };
    [
        batch(),
        Box::new(Throttled::new(batch(), speed, Arc::new(AtomicU64::new(0)))),
        Box::new(Faulty::new(batch(), FaultScript::new())),
    ]
}

fn run(
    batch: &mut dyn Batch,
    transfer: unsafe fn(Target, u64, Vec<Span>) -> Transfer,
    target: Target,
    offset: u64,
    bytes: &mut [u8],
) -> Result<u64, Errno> {
    let buffers = bytes.chunks_mut(777).map(Span::of).collect();
    // SAFETY: the bytes are this call's until the run is over.
    let mut transfers = [unsafe { transfer(target, offset, buffers) }];
    batch.run(&mut transfers);
    transfers[0].result()
}

fn read(batch: &mut dyn Batch, to: Target, at: u64, bytes: &mut [u8]) -> Result<u64, Errno> {
    run(batch, Transfer::read, to, at, bytes)
}

fn write(batch: &mut dyn Batch, to: Target, at: u64, bytes: &mut [u8]) -> Result<u64, Errno> {
    run(batch, Transfer::write, to, at, bytes)
}

/// A tier under test.
struct Tier {
    device: Box<dyn SlotDevice>,
    keeps: bool,
    _file: Option<File>,
}

impl Tier {
    fn of_file(make_batch: MakeBatch) -> Tier {
        let file = tempfile::tempfile().unwrap();
        let device = FileSlots::new(store_file(&file), SLOT as u64, make_batch);
        Tier { device: Box::new(device), keeps: true, _file: Some(file) }
    }

    fn nothing() -> Tier {
        Tier { device: Box::new(Null), keeps: false, _file: None }
    }

    fn read(&self, slot: u32, from: usize, into: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: the bytes are the caller's alone.
        unsafe { self.device.read(slot, from as u64, &mut [Span::of(into)]) }
    }

    fn write(&self, slot: u32, from: usize, bytes: &[u8]) -> Result<(), Errno> {
        let bytes = Span { base: bytes.as_ptr().cast_mut(), bytes: bytes.len() };
        // SAFETY: borrowed from the caller, and only read.
        unsafe { self.device.write(slot, from as u64, bytes) }
    }

    /// What slots have after `written` was.
    fn kept(&self, written: &[u8]) -> Vec<u8> {
        if self.keeps { written.to_vec() } else { vec![0; written.len()] }
    }

    fn assert_has(&self, slot: u32, from: usize, written: &[u8]) {
        let mut found = vec![9; written.len()];
        assert_eq!(self.read(slot, from, &mut found), Ok(()));
        assert!(found == self.kept(written), "slot {slot} has other bytes");
    }
}

fn slots_are_kept_apart(tier: &Tier) {
    let content = |slot: u32| pattern(SLOT, slot as usize * 31);
    for slot in (0..SLOTS).rev() {
        assert_eq!(tier.write(slot, 0, &content(slot)), Ok(()));
    }
    for slot in 0..SLOTS {
        tier.assert_has(slot, 0, &content(slot));
    }
    assert_eq!(tier.write(3, 0, &[7; SLOT]), Ok(()));
    tier.assert_has(2, 0, &content(2));
    tier.assert_has(3, 0, &[7; SLOT]);
    tier.assert_has(4, 0, &content(4));
}

fn parts_of_slots(tier: &Tier) {
    assert_eq!(tier.write(1, 0, &[1; SLOT]), Ok(()));
    for (from, bytes) in [(0, 1), (SLOT - 1, 1), (4096, 4096), (SLOT, 0), (17, 0)] {
        let part = pattern(bytes, from);
        assert_eq!(tier.write(1, from, &part), Ok(()));
        tier.assert_has(1, from, &part);
    }
    tier.assert_has(1, 1, &[1; 4095]);
    tier.assert_has(1, 8192, &[1; SLOT - 8193]);
}

fn pieces_are_filled_one_after_the_other(tier: &Tier) {
    let written = pattern(SLOT, 5);
    assert_eq!(tier.write(2, 0, &written), Ok(()));
    let kept = tier.kept(&written);
    let (mut head, mut none, mut middle, mut tail) = ([9; 100], [9; 0], [9; 4096], [9; 1]);
    let mut read = |from| {
        let mut pieces = [&mut head[..], &mut none, &mut middle, &mut tail].map(Span::of);
        // SAFETY: the bytes are the caller's alone.
        unsafe { tier.device.read(2, from, &mut pieces) }
    };
    assert_eq!(read(4000), Ok(()));
    assert!([&head[..], &middle, &tail].concat() == kept[4000..8197]);
    if tier.keeps {
        let mut read = |from| {
            let mut pieces = [&mut head[..], &mut middle].map(Span::of);
            // SAFETY: as above.
            unsafe { tier.device.read(2, from, &mut pieces) }
        };
        assert_eq!(read(SLOT as u64 - 4196), Ok(()));
        assert_eq!(read(SLOT as u64 - 4195), Err(Errno::INVAL));
    }
}

/// Batches and single calls see each other's bytes, whatever is laid around the batch.
fn batches_and_calls_agree(tier: &Tier) {
    for (slot, mut batch) in (0..).zip(wraps(|| tier.device.batch(DEPTH))) {
        let mut bytes = pattern(SLOT - 100, slot as usize);
        let target = Target::Slot(slot);
        assert_eq!(write(&mut batch, target, 100, &mut bytes), Ok(bytes.len() as u64));
        tier.assert_has(slot, 100, &bytes);
        assert_eq!(tier.write(slot, 50, &[5; 100]), Ok(()));
        let mut found = vec![9; 200];
        assert_eq!(read(&mut batch, target, 50, &mut found), Ok(200));
        assert!(found[..100] == tier.kept(&[5; 100]) && found[100..] == tier.kept(&bytes[50..150]));
    }
}

fn many_slots_in_one_batch(tier: &Tier) {
    let mut bytes = pattern(SLOT * SLOTS as usize, 3);
    for mut batch in wraps(|| tier.device.batch(DEPTH)) {
        let writes = bytes.chunks_mut(SLOT).enumerate().map(|(slot, part)| {
            // SAFETY: `bytes` outlives the run, and nothing else uses it.
            unsafe { Transfer::write(Target::Slot(slot as u32), 0, vec![Span::of(part)]) }
        });
        let mut writes: Vec<_> = writes.collect();
        batch.run(&mut writes);
        assert!(writes.iter().all(|write| write.result() == Ok(SLOT as u64)));
    }
    for (slot, part) in bytes.chunks(SLOT).enumerate() {
        tier.assert_has(slot as u32, 0, part);
    }
}

fn any_thread_may_use_it(tier: &Tier) {
    thread::scope(|scope| {
        for slot in 0..SLOTS {
            scope.spawn(move || {
                for _ in 0..50 {
                    tier.write(slot, 0, &[slot as u8; SLOT]).unwrap();
                }
            });
        }
    });
    for slot in 0..SLOTS {
        tier.assert_has(slot, 0, &[slot as u8; SLOT]);
    }
}

fn properties_do_not_change(tier: &Tier) {
    let properties = tier.device.properties();
    assert_eq!(tier.write(0, 0, &[1]), Ok(()));
    assert_eq!(tier.device.properties(), properties);
    assert_eq!(properties.keeps_journal(), tier.keeps, "what keeps nothing keeps no journal");
}

fn discarded_slots_are_zeros(tier: &Tier) {
    for slot in 0..SLOTS {
        assert_eq!(tier.write(slot, 0, &[slot as u8 + 1; SLOT]), Ok(()));
    }
    for slots in [2..3, 4..7, 7..7] {
        assert_eq!(tier.device.discard(slots), Ok(()));
    }
    for slot in 0..SLOTS {
        let content = if [2, 4, 5, 6].contains(&slot) { 0 } else { slot as u8 + 1 };
        tier.assert_has(slot, 0, &[content; SLOT]);
    }
    assert_eq!(tier.write(5, 0, &[9; SLOT]), Ok(()));
    tier.assert_has(5, 0, &[9; SLOT]);
}

fn nothing_goes_beyond_a_slot(tier: &Tier) {
    assert_eq!(tier.write(1, 0, &[1; SLOT]), Ok(()));
    let ends = [(1, SLOT), (SLOT, 1), (usize::MAX, 1)];
    for (from, bytes) in ends {
        let mut bytes = vec![2; bytes];
        let refused = Err(Errno::INVAL);
        assert_eq!(tier.write(0, from, &bytes), refused);
        assert_eq!(tier.read(0, from, &mut bytes), refused);
        for mut batch in wraps(|| tier.device.batch(DEPTH)) {
            let target = Target::Slot(0);
            assert_eq!(write(&mut batch, target, from as u64, &mut bytes), Err(Errno::INVAL));
            assert_eq!(read(&mut batch, target, from as u64, &mut bytes), Err(Errno::INVAL));
        }
    }
    tier.assert_has(1, 0, &[1; SLOT]);
}

/// A store under test, with a file for each call of `make`.
struct Store {
    store: Box<dyn BackingStore>,
    keeps: bool,
    folder: TempDir,
}

impl Store {
    fn of_folder(make_batch: MakeBatch) -> Store {
        let folder = tempfile::tempdir().unwrap();
        let store = PosixStore::new(folder.path().to_owned(), make_batch);
        Store { store: Box::new(store), keeps: true, folder }
    }

    fn nothing() -> Store {
        Store { store: Box::new(Null), keeps: false, folder: tempfile::tempdir().unwrap() }
    }

    fn make(&self, name: &str) -> File {
        let path = self.folder.path().join(name);
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn size(&self, file: StoreFile) -> u64 {
        self.store.stat(file).unwrap().size
    }

    fn write(&self, file: StoreFile, offset: u64, bytes: &mut [u8]) {
        let mut batch = self.store.batch(DEPTH);
        assert_eq!(write(&mut batch, file.into(), offset, bytes), Ok(bytes.len() as u64));
    }

    fn read_now(&self, file: StoreFile, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the bytes are the caller's alone.
        unsafe { self.store.read(file, at, Span::of(into)) }
    }

    fn write_now(&self, file: StoreFile, at: u64, from: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the bytes are the caller's alone.
        unsafe { self.store.write(file, at, Span::of(from)) }
    }

    /// What a file has, up to its end.
    fn content(&self, file: StoreFile) -> Vec<u8> {
        let mut found = vec![9; self.size(file) as usize];
        let mut batch = self.store.batch(DEPTH);
        assert_eq!(read(&mut batch, file.into(), 0, &mut found), Ok(found.len() as u64));
        found
    }

    fn assert_has(&self, file: StoreFile, expected: &[u8]) {
        let expected = if self.keeps { expected } else { &[] };
        assert!(self.content(file) == expected, "the file has other bytes");
    }
}

/// Single calls and batches see each other's bytes; a read ends at the end of the file.
fn calls_and_batches_agree(store: &Store) {
    let file = store.make("a");
    let file = store_file(&file);
    let mut bytes = pattern(9000, 4);
    assert_eq!(store.write_now(file, 0, &mut bytes), Ok(9000));
    store.assert_has(file, &bytes);
    store.write(file, 100, &mut [3; 50]);
    bytes[100..150].fill(3);
    for (offset, expected) in [(0, 9000), (8999, 1), (9000, 0), (1 << 40, 0)] {
        let mut found = vec![9; 10_000];
        let got = store.read_now(file, offset, &mut found);
        let expected = if store.keeps { expected } else { 0 };
        assert_eq!(got, Ok(expected), "at {offset}");
        let (read, untouched) = found.split_at(expected);
        assert!(expected == 0 || read == &bytes[offset as usize..]);
        assert!(untouched.iter().all(|&byte| byte == 9), "bytes beyond the end were touched");
    }
    assert_eq!(store.write_now(file, 0, &mut []), Ok(0));
    assert_eq!(store.read_now(file, 0, &mut []), Ok(0));
    assert_eq!(store.store.sync(file), Ok(()));
}

fn sizes_follow_writes_and_truncates(store: &Store) {
    let file = store.make("a");
    let file = store_file(&file);
    assert_eq!(store.size(file), 0);
    let mut bytes = pattern(5000, 0);
    store.write(file, 0, &mut bytes);
    store.assert_has(file, &bytes);
    for (size, rest) in [(3000, 3000), (3000, 3000), (9000, 3000), (0, 0)] {
        assert_eq!(store.store.truncate(file, size), Ok(()));
        let mut expected = bytes[..rest].to_vec();
        expected.resize(size as usize, 0);
        store.assert_has(file, &expected);
    }
}

fn punched_ranges_are_zeros(store: &Store) {
    let file = store.make("a");
    let file = store_file(&file);
    let mut bytes = pattern(20_000, 1);
    store.write(file, 0, &mut bytes);
    for range in [4096..8192, 1..2, 9000..13_001, 19_999..30_000] {
        match store.store.punch(file, range.clone()) {
            Ok(()) => {
                let (start, end) = (range.start as usize, (range.end as usize).min(bytes.len()));
                bytes[start..end].fill(0);
            }
            other => assert_eq!(other, Err(Errno::OPNOTSUPP)),
        }
        store.assert_has(file, &bytes);
    }
}

fn times_come_back(store: &Store) {
    let file = store.make("a");
    let file = store_file(&file);
    for modified_ns in [0, 1_700_000_000_123_456_789, 999_999_999, -1_500_000_000] {
        assert_eq!(store.store.set_modified(file, modified_ns), Ok(()));
        let stat = store.store.stat(file).unwrap();
        assert_eq!(stat.modified_ns, if store.keeps { modified_ns } else { 0 });
        assert!(!store.keeps || stat.changed_ns > 1_700_000_000_000_000_000);
    }
}

fn identities_are_of_files_and_not_of_names(store: &Store) {
    let (file, other) = (store.make("a"), store.make("b"));
    let stat = |file: &File| store.store.stat(store_file(file)).unwrap();
    let links = |count: u64| if store.keeps { count } else { 1 };
    assert_eq!(stat(&file).identity == stat(&other).identity, !store.keeps);
    assert_eq!(stat(&file).links, 1);
    let path = |name: &str| store.folder.path().join(name);
    std::fs::hard_link(path("a"), path("c")).unwrap();
    assert_eq!(stat(&file).links, links(2));
    assert_eq!(stat(&store.make("c")).identity, stat(&file).identity);
    std::fs::remove_file(path("a")).unwrap();
    std::fs::remove_file(path("c")).unwrap();
    assert_eq!(stat(&file).links, links(0));
    assert_eq!(stat(&file).identity == stat(&store.make("a")).identity, !store.keeps);
}

fn everything_can_be_synced(store: &Store) {
    let file = store.make("a");
    store.write(store_file(&file), 0, &mut [1; 100]);
    assert_eq!(store.store.batch(DEPTH).sync(store_file(&file)), Ok(()));
    assert_eq!(store.store.sync_all(), Ok(()));
}

fn batches_with_what_is_laid_around(store: &Store) {
    let file = store.make("a");
    let target = Target::from(store_file(&file));
    let mut bytes = pattern(30_000, 2);
    for mut batch in wraps(|| store.store.batch(DEPTH)) {
        assert_eq!(write(&mut batch, target, 0, &mut bytes), Ok(30_000));
        store.assert_has(store_file(&file), &bytes);
        bytes.reverse();
    }
}

fn files_that_it_does_not_know(store: &Store) {
    for file in [StoreFile::NONE, StoreFile::new(1 << 20)] {
        assert_eq!(store.store.stat(file), Err(Errno::BADF));
        assert_eq!(store.store.truncate(file, 0), Err(Errno::BADF));
        assert_eq!(store.store.sync(file), Err(Errno::BADF));
        assert_eq!(store.write_now(file, 0, &mut [1]), Err(Errno::BADF));
        assert_eq!(store.read_now(file, 0, &mut [1]), Err(Errno::BADF));
        assert_eq!(store.store.punch(file, 0..1), Err(Errno::BADF));
        assert_eq!(store.store.set_modified(file, 0), Err(Errno::BADF));
        assert_eq!(store.store.batch(DEPTH).sync(file), Err(Errno::BADF));
        for mut batch in wraps(|| store.store.batch(DEPTH)) {
            assert_eq!(write(&mut batch, file.into(), 0, &mut [1]), Err(Errno::BADF));
        }
    }
    let mut batch = store.store.batch(DEPTH);
    assert_eq!(write(&mut batch, Target::Slot(0), 0, &mut [1]), Err(Errno::BADF));
}

#[test]
fn a_store_that_is_gone_cannot_be_synced() {
    let Store { store, folder, .. } = Store::of_folder(Positional::open);
    folder.close().unwrap();
    assert_eq!(store.sync_all(), Err(Errno::NOENT));
    assert_eq!(PosixStore::of_descriptors().sync_all(), Err(Errno::BADF));
}

/// Makes a module of the cases for each implementation.
macro_rules! devices {
    ($($name:ident: $make:expr => $($case:ident)*;)*) => {
        $(mod $name {
            $(#[test]
            fn $case() {
                use super::*;
                super::$case(&$make);
            })*
        })*
    };
}

devices! {
    slots_in_a_file: Tier::of_file(open_batch) =>
        slots_are_kept_apart parts_of_slots pieces_are_filled_one_after_the_other batches_and_calls_agree many_slots_in_one_batch
        any_thread_may_use_it properties_do_not_change nothing_goes_beyond_a_slot
        discarded_slots_are_zeros;
    slots_in_a_file_positional: Tier::of_file(Positional::open) =>
        slots_are_kept_apart parts_of_slots pieces_are_filled_one_after_the_other batches_and_calls_agree many_slots_in_one_batch
        any_thread_may_use_it properties_do_not_change nothing_goes_beyond_a_slot
        discarded_slots_are_zeros;
    slots_of_nothing: Tier::nothing() =>
        slots_are_kept_apart parts_of_slots pieces_are_filled_one_after_the_other batches_and_calls_agree many_slots_in_one_batch
        any_thread_may_use_it properties_do_not_change discarded_slots_are_zeros;
    files: Store::of_folder(open_batch) =>
        calls_and_batches_agree sizes_follow_writes_and_truncates punched_ranges_are_zeros times_come_back
        identities_are_of_files_and_not_of_names everything_can_be_synced
        batches_with_what_is_laid_around files_that_it_does_not_know;
    files_positional: Store::of_folder(Positional::open) =>
        calls_and_batches_agree sizes_follow_writes_and_truncates punched_ranges_are_zeros times_come_back
        identities_are_of_files_and_not_of_names everything_can_be_synced
        batches_with_what_is_laid_around files_that_it_does_not_know;
    files_of_nothing: Store::nothing() =>
        calls_and_batches_agree sizes_follow_writes_and_truncates punched_ranges_are_zeros times_come_back
        identities_are_of_files_and_not_of_names everything_can_be_synced
        batches_with_what_is_laid_around;
}
