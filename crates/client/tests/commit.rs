//! Files under commit, as programs of two nodes see them: two pools over one store, each with a
//! session, and a thread that grants what the sessions ask for.

mod support;

use forebay_client::{AllocateMode, OpenFlags, Session};
use forebay_placement::Random;
use forebay_placement::schema::{Conditions, Consistency, Rule, Settings};
use forebay_pool::Segment;
use forebay_pool::clock;
use forebay_pool::layout::{FileFlags, RuleRecord};
use forebay_pool::lease::{Grant, Lease};
use forebay_pool::message::Message;
use forebay_pool::{Entry, FileId, futex};
use rustix::fd::{AsFd, RawFd};
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use support::{NEW, Site, read_at, write_at};

const PAGE: usize = 4096;
/// Bytes of a block.
const BLOCK: usize = 64 * PAGE;

/// One node.
struct Host {
    site: Site,
    session: Session,
    segment: Segment,
}

impl Host {
    fn over(store: &Site, latency_ns: u64) -> Host {
        let rule = Rule {
            when: Conditions { path: b"shared*", ..Conditions::default() },
            set: Settings { consistency: Some(Consistency::Commit), ..Settings::default() },
        };
        let rules = [RuleRecord::new(&rule, "shared", "test").unwrap()];
        let folder = tempfile::tempdir().unwrap();
        let site = Site::with_rules(folder, store.store().to_owned(), &rules, latency_ns);
        let pool = fs::File::options().read(true).write(true).open(site.pool()).unwrap();
        let segment = Segment::attach(pool.as_fd()).unwrap();
        segment.header().shares_files.store(1, Ordering::Release);
        let session = site.session().unwrap();
        Host { site, session, segment }
    }

    fn open(&self, name: &str, flags: OpenFlags) -> RawFd {
        self.site.open(&self.session, name, flags).unwrap()
    }

    fn write(&self, fd: RawFd, bytes: &[u8], at: usize) {
        assert_eq!(write_at(&self.session, fd, bytes, at as u64), Ok(bytes.len()));
    }

    fn read(&self, fd: RawFd, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        let file = self.session.file(fd).unwrap();
        let got = file.pread(&bytes[..].as_mut().into(), range.start as u64).unwrap();
        bytes.truncate(got);
        bytes
    }

    fn sync(&self, fd: RawFd) {
        self.session.file(fd).unwrap().sync(true).unwrap();
    }

    fn size(&self, fd: RawFd) -> u64 {
        self.session.file(fd).unwrap().size().unwrap()
    }

    fn lease(&self, fd: RawFd) -> Lease {
        self.segment.file(self.record(fd)).lease.load().held()
    }

    fn record(&self, fd: RawFd) -> FileId {
        let (device, inode) = self.session.identity_known(fd).unwrap();
        let files = self.segment.found_files().map(|found| found.file);
        let mut all = files.into_iter();
        let is_it = |&file: &FileId| {
            let identity = self.segment.file(file).identity();
            (identity.device, identity.inode) == (device, inode)
        };
        all.find(is_it).unwrap()
    }

    /// The pages of the file's first block that are in memory.
    fn valid(&self, fd: RawFd) -> u64 {
        let entry = self.segment.entry(self.segment.file(self.record(fd)), 0).unwrap();
        match Entry::decode(entry.load(Ordering::Acquire)) {
            Entry::Resident { bucket, .. } => {
                self.segment.bucket(bucket).unwrap().valid.load(Ordering::Acquire)
            }
            _ => 0,
        }
    }

    /// Bytes of the file, in whole pages, that the store does not have.
    fn pending(&self, fd: RawFd) -> u64 {
        self.segment.pending_bytes(self.record(fd))
    }
}

/// Two nodes, and what grants them leases.
struct Group {
    hosts: Arc<[Host; 2]>,
    asked: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _turn: MutexGuard<'static, ()>,
}

/// A program has one session: those of several tests at once are in each other's way.
static TURN: Mutex<()> = Mutex::new(());

impl Group {
    fn new() -> (Group, Site) {
        Group::over(0)
    }

    /// Over a store that is worth to be kept out of the way, so that what is read comes to memory.
    fn slow() -> (Group, Site) {
        Group::over(20_000)
    }

    fn over(latency_ns: u64) -> (Group, Site) {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let store = Site::new();
        let hosts = Arc::new([(); 2].map(|()| Host::over(&store, latency_ns)));
        let (asked, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let serve = {
            let (hosts, asked, ends) = (Arc::clone(&hosts), Arc::clone(&asked), Arc::clone(&ends));
            move || {
                while !ends.load(Ordering::Acquire) {
                    if !hosts.iter().fold(false, |any, host| any | grant(host, &asked)) {
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        };
        let thread = Some(thread::spawn(serve));
        (Group { hosts, asked, ends, thread, _turn: turn }, store)
    }
}

/// Grants what a node has asked for. Returns whether it had.
fn grant(host: &Host, asked: &AtomicU64) -> bool {
    let Some(message) = host.segment.asks().pop() else { return false };
    let Message::Lease { file } = message else { panic!("{message:?}: no parts are asked for") };
    asked.fetch_add(1, Ordering::Relaxed);
    let record = host.segment.file(file);
    if record.lease.load().asked().is_some() {
        assert!(record.is_to_commit(), "all files of these tests are");
        record.lease.grant(Grant::Commit);
    }
    let done = &host.segment.header().work_done;
    done.fetch_add(1, Ordering::AcqRel);
    futex::wake_all(done);
    true
}

impl Drop for Group {
    fn drop(&mut self) {
        for host in self.hosts.iter() {
            let open: Vec<RawFd> = host.session.files().map(|file| file.fd).collect();
            open.into_iter().for_each(|fd| host.session.close(fd).unwrap_or(()));
        }
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the granting thread has panicked");
        }
    }
}

fn stored(store: &Site, name: &str) -> Vec<u8> {
    fs::read(store.store().join(name)).unwrap()
}

#[test]
fn whole_pages_wait_and_parts_of_pages_go_to_the_store() {
    let (group, store) = Group::new();
    let [one, _] = &*group.hosts;
    let fd = one.open("shared", NEW);
    one.write(fd, &vec![1; 2 * PAGE + 100], PAGE - 50);
    assert_eq!(one.lease(fd), Lease::Commit);
    assert_eq!(one.pending(fd), 2 * PAGE as u64);
    let there = stored(&store, "shared");
    assert_eq!(there.len(), 3 * PAGE + 50);
    let ones = |range: Range<usize>| there[range].iter().filter(|&&byte| byte == 1).count();
    assert_eq!([ones(0..PAGE), ones(PAGE..3 * PAGE), ones(3 * PAGE..3 * PAGE + 50)], [50, 0, 50]);
    // A part of a page that waits is written there, and the flush has it.
    one.write(fd, &[2; 10], PAGE + 7);
    assert_eq!(one.read(fd, PAGE + 6..PAGE + 18), [&[1][..], &[2; 10], &[1]].concat());
    assert_eq!(one.pending(fd), 2 * PAGE as u64);
    one.sync(fd);
    assert_eq!(one.pending(fd), 0);
    let mut wanted = [vec![0; PAGE - 50], vec![1; 2 * PAGE + 100]].concat();
    wanted[PAGE + 7..PAGE + 17].fill(2);
    assert!(stored(&store, "shared") == wanted);
    // Of one that the store has, the rest may be another node's by now.
    one.write(fd, &[3; 10], PAGE + 7);
    assert_eq!(one.pending(fd), 0);
    wanted[PAGE + 7..PAGE + 17].fill(3);
    assert!(stored(&store, "shared") == wanted);
    assert!(read_at(&one.session, fd, 0) == wanted);
}

#[test]
fn what_was_synced_or_closed_is_seen_after_a_sync_or_an_open() {
    let (group, _store) = Group::new();
    let [one, other] = &*group.hosts;
    let a = one.open("shared", NEW);
    one.write(a, &[1; 2 * PAGE], 0);
    one.sync(a);
    let b = other.open("shared", OpenFlags::RDONLY | OpenFlags::CLOEXEC);
    assert!(read_at(&other.session, b, 0) == [1; 2 * PAGE]);
    // It may keep what it has read, and the other one what it has written.
    one.write(a, &[2; 2 * PAGE], 0);
    assert!(read_at(&other.session, b, 0) == [1; 2 * PAGE]);
    other.sync(b);
    assert!(read_at(&other.session, b, 0) == [1; 2 * PAGE], "the writer has not synced");
    one.sync(a);
    other.sync(b);
    assert!(read_at(&other.session, b, 0) == [2; 2 * PAGE]);
    // A close is a sync, and an open is one, too.
    one.write(a, &[3; 4 * PAGE], PAGE);
    one.session.close(a).unwrap();
    let c = other.open("shared", OpenFlags::RDONLY | OpenFlags::CLOEXEC);
    assert_eq!(other.size(c), 5 * PAGE as u64);
    let wanted = [vec![2; PAGE], vec![3; 4 * PAGE]].concat();
    assert!([b, c].map(|fd| read_at(&other.session, fd, 0)).iter().all(|seen| *seen == wanted));
}

/// A copy of a page's content lies beside pages that wait for their flush.
#[test]
fn a_sync_drops_copies_in_blocks_that_are_written_again() {
    let (group, _store) = Group::new();
    let [one, other] = &*group.hosts;
    let (a, b) = (one.open("shared", NEW), other.open("shared", NEW));
    one.write(a, &vec![1; BLOCK], 0);
    one.sync(a);
    other.write(b, &[2; PAGE], 0);
    assert_eq!(other.read(b, PAGE..PAGE + 5), [1; 5]);
    one.write(a, &[3; PAGE], PAGE);
    one.sync(a);
    // What is dirty stays what this node has written.
    other.session.file(b).unwrap().sync(false).unwrap();
    assert_eq!(other.read(b, 0..PAGE + 5), [&[2; PAGE][..], &[3; 5]].concat());
    one.sync(a);
    assert_eq!(one.read(a, 0..PAGE + 5), [&[2; PAGE][..], &[3; 5]].concat());
}

#[test]
fn a_file_is_never_made_shorter_by_what_a_node_does_not_know() {
    let (group, store) = Group::new();
    let [one, other] = &*group.hosts;
    let (a, b) = (one.open("shared", NEW), other.open("shared", NEW));
    one.write(a, &[1; PAGE], 0);
    other.write(b, &[2; PAGE], 9 * PAGE);
    other.sync(b);
    one.sync(a);
    assert_eq!(stored(&store, "shared").len(), 10 * PAGE);
    assert_eq!([one.size(a), other.size(b)], [10 * PAGE as u64; 2]);
    assert_eq!(one.read(a, 9 * PAGE..11 * PAGE), [2; PAGE]);
    // Before this node has looked, a size is what the store has at least.
    other.write(b, &[3; 10], 10 * PAGE);
    assert_eq!(one.size(a), 10 * PAGE as u64 + 10);
    assert_eq!(one.read(a, 10 * PAGE..11 * PAGE), [3; 10]);
}

#[test]
fn what_changes_more_than_bytes_finds_nothing_buffered() {
    let (group, store) = Group::new();
    let [one, other] = &*group.hosts;
    let (a, b) = (one.open("shared", NEW), other.open("shared", NEW));
    one.write(a, &[1; 3 * PAGE], 0);
    one.session.file(a).unwrap().truncate(PAGE as i64 + 10).unwrap();
    assert!(stored(&store, "shared") == [1; PAGE + 10]);
    assert_eq!(one.pending(a), 0);
    other.sync(b);
    assert_eq!((other.size(b), one.size(a)), (PAGE as u64 + 10, PAGE as u64 + 10));
    // The end has moved within a page of which this node has a copy.
    assert_eq!(one.read(a, 0..4 * PAGE).len(), PAGE + 10);
    other.write(b, &[2; 20], PAGE + 10);
    one.sync(a);
    assert_eq!(one.read(a, PAGE..4 * PAGE), [[1; 10], [2; 10], [2; 10]].concat());
    let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
    one.write(a, &[4; PAGE], 0);
    one.session.file(a).unwrap().allocate(punch, 0, 10).unwrap();
    assert_eq!(one.pending(a), 0);
    other.sync(b);
    assert_eq!(other.read(b, 0..12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4]);
    // A longer file again: what was cut is not there.
    one.session.file(a).unwrap().truncate(0).unwrap();
    one.session.file(a).unwrap().truncate(PAGE as i64).unwrap();
    other.sync(b);
    assert!(other.read(b, 0..2 * PAGE) == [0; PAGE]);
}

#[test]
fn appends_of_two_nodes_are_all_there() {
    let (group, store) = Group::new();
    const EACH: usize = 200;
    let append = |number: usize| {
        let hosts = Arc::clone(&group.hosts);
        move || {
            let host = &hosts[number];
            let fd = host.open("shared", NEW | OpenFlags::APPEND);
            for round in 0..EACH {
                let line = format!("{number} {round:5} {}\n", "x".repeat(round % 90));
                let file = host.session.file(fd).unwrap();
                let put = file.write_placed(&line.as_bytes().into(), None, true);
                assert_eq!(put, Ok(line.len()));
            }
            host.session.close(fd).unwrap();
        }
    };
    let threads = [0, 1].map(|number| thread::spawn(append(number)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let text = String::from_utf8(stored(&store, "shared")).unwrap();
    for number in 0..2 {
        let own = text.lines().filter(|line| line.starts_with(&number.to_string()));
        let rounds: Vec<usize> =
            own.map(|line| line[1..].split_whitespace().next().unwrap().parse().unwrap()).collect();
        assert!(rounds.iter().copied().eq(0..EACH), "{rounds:?}");
    }
}

/// A copy of the page in which the file has ended has no zeros for what others add there.
#[test]
fn what_another_node_adds_behind_the_end_is_read_as_it_is() {
    let (group, _store) = Group::slow();
    let [one, other] = &*group.hosts;
    let b = other.open("shared", NEW);
    other.write(b, &[1; 5000], 0);
    other.sync(b);
    let a = one.open("shared", NEW);
    assert!((0..5).all(|_| one.read(a, 0..5000) == [1; 5000]));
    assert_eq!(one.valid(a), 1, "the whole page is in memory, and the last one is not");
    other.write(b, &[2; 100], 5000);
    assert_eq!(one.read(a, 4990..5200), [&[1; 10][..], &[2; 100]].concat());
}

#[test]
fn a_copy_that_is_written_over_is_dirty_alone() {
    let (group, _store) = Group::slow();
    let [one, _] = &*group.hosts;
    let fd = one.open("shared", NEW);
    one.write(fd, &vec![1; BLOCK], 0);
    one.session.file(fd).unwrap().sync(false).unwrap();
    assert!((0..2).all(|_| one.read(fd, 0..BLOCK) == vec![1; BLOCK]));
    assert_eq!(one.valid(fd), u64::MAX, "it is in memory");
    one.write(fd, &[5; PAGE], 3 * PAGE);
    assert_eq!(one.pending(fd), PAGE as u64);
    assert_eq!(one.read(fd, 3 * PAGE - 1..3 * PAGE + 1), [1, 5]);
    assert!(one.segment.file(one.record(fd)).has(FileFlags::SHARED));
}

#[test]
fn a_descriptor_with_o_sync_shows_each_write() {
    let (group, store) = Group::new();
    let [one, _] = &*group.hosts;
    let fd = one.open("shared", NEW | OpenFlags::DSYNC);
    one.write(fd, &[1; 2 * PAGE], 0);
    assert!(stored(&store, "shared") == [1; 2 * PAGE]);
}

#[test]
fn files_that_no_rule_names_are_not_under_commit() {
    let (group, _store) = Group::new();
    let [one, _] = &*group.hosts;
    let fd = one.open("shared-too", NEW);
    assert!(one.segment.file(one.record(fd)).is_to_commit());
    let (device, inode) = one.session.identity_known(fd).unwrap();
    assert!(device != 0 && inode != 0);
    let path = one.site.store().join("other");
    fs::write(path, "").unwrap();
    let reads = one.open("other", OpenFlags::RDONLY | OpenFlags::CLOEXEC);
    assert!(!one.segment.file(one.record(reads)).is_to_commit());
}

#[test]
fn bytes_that_two_nodes_write_beside_each_other_are_all_there() {
    write_beside(Group::new());
}

/// Copies of what others have written are kept in memory, too.
#[test]
fn bytes_that_two_nodes_write_beside_copies_are_all_there() {
    write_beside(Group::slow());
}

/// Both nodes write at the same time, each its own bytes, in pieces of any size and alignment that
/// lie between those of the other. Not one is lost, or overwritten by what was there before, and
/// after a sync of both each reads what both have written. Nothing is asked for after the opens.
fn write_beside((group, store): (Group, Site)) {
    let given = std::env::var("FOREBAY_COMMIT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| clock::realtime_ns() % 1_000_000);
    println!("FOREBAY_COMMIT_SEED={seed}");
    const BYTES: usize = 5 * BLOCK / 2 + 77;
    let files = [0, 1].map(|number| group.hosts[number].open("shared", NEW));
    let model = Arc::new(Mutex::new(vec![0_u8; BYTES]));
    let mut random = Random::new(seed);
    let (mut end, mut asked) = (0, 0);
    for round in 0..12_u64 {
        let mut owned = [Vec::new(), Vec::new()];
        let mut at = 0;
        while at < BYTES {
            let most = if random.below(3) == 0 { 60_000 } else { 3 * PAGE as u64 };
            let upto = BYTES.min(at + 1 + random.below(most) as usize);
            if let Some(of) = owned.get_mut(random.below(3) as usize) {
                of.push(at..upto);
                end = end.max(upto);
            }
            at = upto;
        }
        let threads: Vec<_> = [0, 1]
            .into_iter()
            .zip(owned)
            .map(|(number, own)| {
                let (hosts, model) = (Arc::clone(&group.hosts), Arc::clone(&model));
                let seed = seed + 100 * round + number as u64;
                thread::spawn(move || {
                    write_own(&hosts[number], files[number], &own, &model, seed);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let [one, other] = &*group.hosts;
        one.sync(files[0]);
        other.sync(files[1]);
        one.sync(files[0]);
        let model = model.lock().unwrap();
        assert_same(&stored(&store, "shared"), &model[..end], seed, "on the store");
        for (host, fd) in group.hosts.iter().zip(files) {
            assert_eq!(host.size(fd), end as u64, "seed {seed}");
            for _ in 0..2 {
                assert_same(&host.read(fd, 0..BYTES), &model[..end], seed, "read");
            }
        }
        if round == 0 {
            asked = group.asked.load(Ordering::Relaxed);
        }
    }
    assert_eq!(group.asked.load(Ordering::Relaxed), asked, "nothing after the first use");
}

/// Writes bytes of these ranges at random, some of them several times, syncs now and then, and
/// reads back what it has written.
fn write_own(host: &Host, fd: RawFd, own: &[Range<usize>], model: &Mutex<Vec<u8>>, seed: u64) {
    let mut random = Random::new(seed);
    for range in own {
        let mut wanted = vec![0; range.len()];
        let mut write = |range_within: Range<usize>, random: &mut Random| {
            let bytes: Vec<u8> = range_within.clone().map(|_| random.below(256) as u8).collect();
            wanted[range_within.clone()].copy_from_slice(&bytes);
            host.write(fd, &bytes, range.start + range_within.start);
        };
        write(0..range.len(), &mut random);
        for _ in 0..random.below(4) {
            let from = random.below(range.len() as u64) as usize;
            let upto = from + 1 + random.below((range.len() - from) as u64) as usize;
            write(from..upto.min(range.len()), &mut random);
            if random.below(10) == 0 {
                host.session.file(fd).unwrap().sync(random.below(2) == 0).unwrap();
            }
        }
        assert_same(&host.read(fd, range.clone()), &wanted, seed, "its own bytes");
        model.lock().unwrap()[range.clone()].copy_from_slice(&wanted);
    }
}

#[track_caller]
fn assert_same(got: &[u8], wanted: &[u8], seed: u64, what: &str) {
    let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    let lengths = (got.len(), wanted.len());
    assert!(got == wanted, "seed {seed}, {what}: {lengths:?}, byte {differs:?}");
}
