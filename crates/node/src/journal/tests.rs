//! The journal under a device that fails, and behind a damaged record.

use super::log::Log;
use super::*;
use crate::node::{Node, Rounds};
use crate::observe::trace::Trace;
use crate::store::descriptors::Descriptors;
use forebay_pool::files::Identity;
use forebay_pool::layout::Geometry;
use forebay_pool::segment::anonymous;
use forebay_pool::{BucketId, FileId};
use forebay_posix::Positional;
use forebay_tiers::{Fault, FaultScript, Faulty, Operation, Rule, When};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// A node of which only the journal is used, and two files that it knows.
struct World {
    _folder: tempfile::TempDir,
    node: Node,
    files: [FileId; 2],
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
            sparse_buckets: Vec::new(),
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
            tier: TierId::RAM,
            bytes: 1 << 20,
            state: Mutex::default(),
        };
        let script = FaultScript::new();
        let runtime =
            Runtime { instance: String::new(), folder: PathBuf::new(), pool: PathBuf::new() };
        let node = Node {
            actions: crate::actions::Actions::of(&config, &runtime, false),
            descriptors: Descriptors::new(
                config.backing.iter().map(|backing| backing.path.as_path()),
            ),
            estimators: Vec::new(),
            stripes: Vec::new(),
            segment,
            pool_file,
            group: crate::group::Grouping::of(&config),
            config,
            slots: Vec::new(),
            devices: Vec::new(),
            stores: Vec::new(),
            indexes: Vec::new(),
            runtime,
            journal: Some(journal),
            exposure: Mutex::default(),
            trace: Trace::default(),
            faults: None,
            draining: AtomicBool::new(false),
            cleaned: AtomicU32::new(0),
            kept_free: AtomicU64::new(0),
            resting: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            rounds: Rounds::default(),
            flushed_until: AtomicU64::new(0),
            waker,
            memory: crate::memory::Memory::default(),
            keeps_slots: AtomicU32::new(0),
            not_set_aside: std::sync::Mutex::default(),
            counting_caps: std::sync::Mutex::default(),
        };
        let io = Faulty::new(Positional::default(), script.clone());
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
        journal.open(&mut state, self.node.context(), &mut self.io).unwrap();
        let sequence = self.node.segment.next_sequence();
        let meta = FileMeta { sequence, size: 4096, mtime_ns: 0, path: b"" };
        let data = &sequence.to_le_bytes().repeat(512)[..];
        let pages = BlockPages {
            block: 0,
            bucket: BucketId::from_raw(0),
            version: 0,
            pages: 1,
            data,
            page: 4096,
        };
        let appended = state
            .begin(self.node.context(), file)
            .and_then(|()| state.append_pages(file, &meta, &pages, &mut self.io));
        appended.and_then(|()| state.commit(true, &mut self.io)).is_ok()
    }

    /// Makes the journal be told of a truncate, as of one that is under way.
    fn truncate(&mut self, file: usize, size: u64) {
        let (file, journal) = (self.files[file], self.node.journal.as_ref().unwrap());
        let record = self.node.segment.file(file);
        record.intent.store(size + 1, Ordering::SeqCst);
        assert_eq!(journal.log_truncate(self.node.context(), file, &mut self.io), Ok(()));
        record.intent.store(0, Ordering::SeqCst);
    }

    fn checkpoint(&mut self, file: usize) -> Result<(), LogError> {
        let sequence = self.node.segment.next_sequence();
        self.checkpoint_up_to(file, sequence)
    }

    fn checkpoint_up_to(&mut self, file: usize, sequence: u64) -> Result<(), LogError> {
        let (file, journal) = (self.files[file], self.node.journal.as_ref().unwrap());
        journal.checkpoint(self.node.context(), &[Checkpoint { file, sequence }], &mut self.io)[0]
    }

    fn fail(&self, operation: Operation, times: u64) {
        self.script.add(Rule::new(operation, When::Next(times), Fault::Fail(Errno::IO)));
    }
}

/// Each of the files gets a checkpoint, one after the other.
#[test]
fn after_an_error_a_new_generation_begins_when_every_file_has_a_checkpoint() {
    let mut world = World::new();
    assert!(world.log(0) && world.log(1));
    world.fail(Operation::Sync, 1);
    assert!(!world.log(0));
    assert!(!world.journal().takes_data());
    assert!(world.checkpoint(0).is_err());
    let logged = |file: FileId| world.node.segment.file(file).has(FileFlags::LOGGED);
    assert!(world.files.into_iter().all(logged));
    let due = world.journal().to_checkpoint(world.node.context(), logged);
    assert_eq!(due, Some(world.files[1]));
    assert_eq!(world.checkpoint(1), Ok(()));
    assert!(world.journal().takes_data());
    assert!(world.log(1));
    let contents = contents::Contents::read(&world.journal().path).unwrap();
    assert_eq!(contents.pending(), (1, 4096));
    // The other one has nothing in it, and does not hold it up.
    assert_eq!(world.checkpoint(0), Ok(()));
}

/// Its superblock may be there or not: what was appended to the generation before would be lost
/// with it.
#[test]
fn after_a_restart_that_failed_nothing_is_appended_to_the_generation_before() {
    for operation in [Operation::Write, Operation::Sync] {
        let mut world = World::new();
        let is_worth_it =
            |world: &World| world.journal().lock().log.as_ref().is_some_and(Log::is_worth_restart);
        while !is_worth_it(&world) {
            assert!(world.log(0));
        }
        // The checkpoint can be logged, the new superblock cannot be made durable.
        let nothing = Fault::Delay(std::time::Duration::ZERO);
        world.script.add(Rule::new(operation, When::Next(1), nothing));
        world.fail(operation, 1);
        assert_eq!(world.checkpoint(0), Ok(()));
        assert_eq!(world.script.hits(), 2);
        assert!(!world.log(1));
        world.node.segment.file(world.files[1]).clear(FileFlags::LOGGED);
        world.node.journal.as_ref().unwrap().repair(world.node.context(), &mut world.io);
        assert!(world.log(1));
    }
}

/// A checkpoint of another thread was noted after a sync had set the flag, and before it appended.
#[test]
fn a_file_is_logged_when_its_data_are_appended_after_a_checkpoint() {
    let mut world = World::new();
    assert!(world.log(0));
    assert_eq!(world.checkpoint(0), Ok(()));
    let record = world.node.segment.file(world.files[0]);
    assert!(!record.is_logged());
    let begin = || world.journal().lock().begin(world.node.context(), world.files[0]);
    assert_eq!(begin(), Ok(()));
    assert!(record.is_logged());
    // A truncate that has seen no flag has told the journal nothing.
    record.clear(FileFlags::LOGGED);
    record.intent.store(1, Ordering::SeqCst);
    assert_eq!(begin(), Err(LogError::Held));
}

/// A truncate between the sequence of a sync and its checkpoint: its record would be applied once
/// more, over what has been written and synced since, if no later sync covered it.
#[test]
fn a_truncate_within_a_sync_stays_logged_until_the_next_checkpoint() {
    let mut world = World::new();
    assert!(world.log(0));
    let sequence = world.node.segment.next_sequence();
    world.truncate(0, 100);
    let is_logged = |world: &World| world.node.segment.file(world.files[0]).is_logged();
    assert_eq!(world.checkpoint_up_to(0, sequence), Ok(()));
    assert!(is_logged(&world));
    assert_eq!(world.checkpoint(0), Ok(()));
    assert!(!is_logged(&world));
    // The journal has nothing of the file: a truncate that comes now is nothing that it has to
    // know.
    world.truncate(0, 50);
    let contents = contents::Contents::read(&world.journal().path).unwrap();
    assert!(
        contents.files.values().all(|file| file.changes.is_empty()),
        "{}",
        contents.files.len()
    );
}

/// What is behind a damaged record counts for a recovery only as long as nothing is appended.
#[test]
fn a_damaged_generation_is_not_carried_on() {
    let mut world = World::new();
    assert!(world.log(0) && world.log(0) && world.log(0));
    let path = world.journal().path.clone();
    *world.journal().lock() = State::default();
    let mut bytes = std::fs::read(&path).unwrap();
    let first = bytes.windows(4).position(|window| window == b"FBJR").unwrap();
    bytes[first + 2000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(contents::Contents::read(&path).unwrap().damaged.is_some());
    assert!(!world.log(1));
    assert!(!world.journal().takes_data());
    assert!(world.checkpoint(0).is_err());
    assert_eq!(world.checkpoint(1), Ok(()));
    assert!(world.log(1));
    let contents = contents::Contents::read(&path).unwrap();
    assert_eq!((contents.damaged, contents.pending()), (None, (1, 4096)));
}

/// Slots that hold some of a file whose checkpoint could not be logged.
#[test]
fn a_checkpoint_that_was_not_logged_is_expected_again_with_what_slots_hold() {
    let mut world = World::new();
    assert!(world.log(0) && world.log(1));
    world.fail(Operation::Sync, 1);
    assert!(!world.log(0));
    assert!(world.checkpoint(0).is_err());
    world.journal().expect_checkpoint(world.files[0]);
    assert!(world.checkpoint(1).is_err());
    assert!(!world.journal().takes_data());
    assert_eq!(world.checkpoint(0), Ok(()));
    assert!(world.journal().takes_data());
}
