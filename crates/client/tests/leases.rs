//! Leases as programs of several nodes see them: two pools over one store, each with a session, and
//! a thread that does what node managers and their group do.

mod support;

use forebay_client::user_memory::UserPath;
use forebay_client::{OpenFlags, PathAt, Session, StatFields, Whence, joined_ns};
use forebay_placement::Random;
use forebay_pool::glimpses::Glimpsed;
use forebay_pool::layout::FileFlags;
use forebay_pool::lease::{Access, Grant, Lease};
use forebay_pool::message::Message;
use forebay_pool::parts::{PART_BYTES, Part, PartLevel};
use forebay_pool::{FileId, Identity, Owner, Segment, futex, liveness};
use rustix::fd::{AsFd, RawFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use support::{NEW, Site, open, read_at, write_at};

fn identity_of(session: &Session, fd: RawFd) -> Identity {
    let (device, inode) = session.identity_known(fd).unwrap();
    Identity { device, inode }
}

/// One node: its pool, a session of it, and the segment as its node manager has it.
struct Host {
    site: Site,
    session: Session,
    segment: Segment,
    /// Of the group's thread here.
    owner: Owner,
    /// Its descriptors: a close would wait for threads that wait for that thread.
    opened: Mutex<HashMap<Identity, RawFd>>,
}

impl Host {
    fn over(store: &Site) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let site = Site::over(folder, store.store().to_owned());
        let pool = fs::File::options().read(true).write(true).open(site.pool()).unwrap();
        let segment = Segment::attach(pool.as_fd()).unwrap();
        segment.header().shares_files.store(1, Ordering::Release);
        let session = site.session().unwrap();
        let me = std::process::id();
        let slot = segment.clients().claim(me, liveness::start_time(me).unwrap()).unwrap();
        let opened = Mutex::default();
        Host { site, session, segment, owner: Owner::new(slot, 0), opened }
    }

    fn open(&self, name: &str) -> RawFd {
        self.site.open(&self.session, name, NEW).unwrap()
    }

    fn lease(&self, identity: Identity) -> Option<Lease> {
        self.known(identity).map(|file| self.segment.file(file).lease.load().held())
    }

    /// The same, or what it was granted and has not taken up.
    fn granted(&self, identity: Identity) -> Option<Lease> {
        let lease = self.segment.file(self.known(identity)?).lease.load();
        Some(lease.granted().map_or(lease.held(), Grant::lease))
    }

    fn known(&self, identity: Identity) -> Option<FileId> {
        let files = self.segment.found_files().map(|found| found.file);
        files.into_iter().find(|&file| self.segment.file(file).identity() == identity)
    }

    /// Brings what this node has of a file to the store, and leaves it no more than `left`.
    fn reduce(&self, identity: Identity, left: Lease) -> Result<Lease, Errno> {
        let Some(file) = self.known(identity) else { return Ok(Lease::Nothing) };
        let record = self.segment.file(file);
        let is_untaken = || {
            let lease = record.lease.load();
            lease.held() == Lease::Nothing && lease.granted().is_some()
        };
        // A program that waits for it takes it up; one that has only opened the file does not.
        let since = Instant::now();
        while is_untaken() {
            if since.elapsed() > Duration::from_millis(20) {
                let table = self.segment.enter_table(self.owner);
                let held = self.segment.try_lock_exclusive(&table, file, self.owner);
                if held.is_some() && is_untaken() {
                    record.reduce_lease(Lease::Nothing);
                    return Ok(Lease::Nothing);
                }
            }
            thread::yield_now();
        }
        if record.lease.load().held() == Lease::Shared {
            self.reduce_range(file, 0..u64::MAX, || {
                record.end_ahead();
                if left == Lease::Direct {
                    record.turn_direct();
                }
                record.reduce_lease(left);
                self.segment.part_leases().remove_all(file);
            });
            return Ok(left);
        }
        // One that only reads asks for no more than what there is to take.
        let path = PathBuf::from(OsString::from_vec(self.segment.path_of(record)));
        let fd = open(&self.session, &path, OpenFlags::RDONLY | OpenFlags::CLOEXEC)?;
        let opened = self.session.file(fd).unwrap();
        let mut now = left;
        opened.with_clean(|| {
            if record.has(FileFlags::DIRECT) {
                now = Lease::Direct;
            } else if now == Lease::Direct {
                record.turn_direct();
            }
            // What it had before it had the whole file.
            self.segment.part_leases().remove_all(file);
            record.reduce_lease(now);
        })?;
        self.session.close(fd)?;
        Ok(now)
    }
}

impl Host {
    /// Brings what is in a range of a file to the store, drops it, and calls `act` while no thread
    /// is inside the file.
    fn reduce_range(&self, file: FileId, range: Range<u64>, act: impl FnOnce()) {
        let record = self.segment.file(file);
        let fd = *self.opened.lock().unwrap().entry(record.identity()).or_insert_with(|| {
            let path = PathBuf::from(OsString::from_vec(self.segment.path_of(record)));
            open(&self.session, &path, OpenFlags::RDONLY | OpenFlags::CLOEXEC).unwrap()
        });
        loop {
            self.session.file(fd).unwrap().sync(false).unwrap();
            let table = self.segment.enter_table(self.owner);
            let held = self.segment.try_lock_exclusive(&table, file, self.owner);
            if held.is_some() && self.segment.drop_clean_blocks_in(file, range.clone(), self.owner)
            {
                act();
                break;
            }
            drop(held);
            drop(table);
            thread::yield_now();
        }
    }

    /// Leaves this node no more than `left` of a part.
    fn reduce_part(&self, file: FileId, part: Part, left: PartLevel) {
        let record = self.segment.file(file);
        let range = match part {
            Part::SIZE => record.size.load(Ordering::Acquire).saturating_sub(1)..u64::MAX,
            part => part.bytes(),
        };
        self.reduce_range(file, range, || match left {
            PartLevel::None => self.segment.part_leases().remove(file, part),
            left => self.segment.part_leases().find(file, part).unwrap().reduce(left),
        });
    }
}

/// Two nodes and their group.
struct Group {
    hosts: Arc<[Host; 2]>,
    ends: Arc<AtomicBool>,
    refuses: Arc<AtomicBool>,
    shares: Arc<AtomicBool>,
    revoked: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    glimpsed: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    _turn: MutexGuard<'static, ()>,
}

/// A program has one session: those of several tests at once are in each other's way.
static TURN: Mutex<()> = Mutex::new(());

impl Group {
    fn new() -> (Group, Site) {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let store = Site::new();
        let hosts = Arc::new([Host::over(&store), Host::over(&store)]);
        let (ends, refuses) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (shares, revoked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (asked, glimpsed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let decide = {
            let (hosts, ends) = (Arc::clone(&hosts), Arc::clone(&ends));
            let decider = Decider {
                refuses: Arc::clone(&refuses),
                shares: Arc::clone(&shares),
                revoked: Arc::clone(&revoked),
                asked: Arc::clone(&asked),
                glimpsed: Arc::clone(&glimpsed),
            };
            move || {
                while !ends.load(Ordering::Acquire) {
                    let mut any = false;
                    for me in 0..2 {
                        any |= decider.serve(&hosts, me);
                    }
                    if !any {
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        };
        let thread = Some(thread::spawn(decide));
        let group =
            Group { hosts, ends, refuses, shares, revoked, asked, glimpsed, thread, _turn: turn };
        (group, store)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A session that ends with open files leaves them to the kernel, which the group decides.
        for host in self.hosts.iter() {
            let open: Vec<RawFd> = host.session.files().map(|file| file.fd).collect();
            open.into_iter().for_each(|fd| host.session.close(fd).unwrap_or(()));
        }
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the group's thread has panicked");
        }
    }
}

/// How the group decides.
struct Decider {
    refuses: Arc<AtomicBool>,
    /// Files that are written are shared.
    shares: Arc<AtomicBool>,
    revoked: Arc<AtomicU64>,
    /// Parts that were asked for.
    asked: Arc<AtomicU64>,
    /// Sizes that were asked for.
    glimpsed: Arc<AtomicU64>,
}

impl Decider {
    /// Answers what programs of node `me` have asked for. Returns whether they had.
    fn serve(&self, hosts: &[Host; 2], me: usize) -> bool {
        let (mine, other) = (&hosts[me], &hosts[1 - me]);
        match mine.segment.asks().pop() {
            None => return false,
            Some(Message::Lease { file }) => self.decide(mine, other, file),
            Some(Message::Part { file, part, level, ahead }) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                let last = part.raw().saturating_add(ahead.count * ahead.stride.max(1));
                let all = (part.raw()..=last).step_by(ahead.stride.max(1) as usize);
                for part in all.map(Part::from_raw) {
                    self.decide_part(mine, other, file, part, level);
                }
            }
            Some(Message::Glimpse { inode, number, .. }) => {
                self.glimpse(mine, other, inode, number)
            }
            Some(_) => return true,
        }
        let done = &mine.segment.header().work_done;
        done.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(done);
        true
    }

    /// What the nodes know of a file that the store does not: of one that they share, both.
    fn glimpse(&self, mine: &Host, other: &Host, inode: u64, number: u64) {
        self.glimpsed.fetch_add(1, Ordering::Relaxed);
        let known_to = |host: &Host| {
            let files = host.segment.found_files().map(|found| host.segment.file(found.file));
            let record = files.into_iter().find(|record| record.identity().inode == inode)?;
            let size = record.truncated_to().unwrap_or(record.size.load(Ordering::Acquire));
            let mtime_ns = record.mtime_ns.load(Ordering::Acquire);
            match record.lease.load().held() {
                Lease::Whole if record.has(FileFlags::METADATA_DIRTY) => {
                    Some(Glimpsed::Known { size, mtime_ns })
                }
                Lease::Shared => Some(Glimpsed::AtLeast { size }),
                _ => None,
            }
        };
        let known = match (known_to(mine), known_to(other)) {
            (Some(Glimpsed::AtLeast { size: a }), Some(Glimpsed::AtLeast { size: b })) => {
                Some(Glimpsed::AtLeast { size: a.max(b) })
            }
            (mine, other) => other.or(mine),
        };
        let known = match self.refuses.load(Ordering::Acquire) {
            true => Glimpsed::Refused(Errno::STALE),
            false => known.unwrap_or(Glimpsed::Stored),
        };
        mine.segment.glimpses().answer(number, known);
    }

    fn decide(&self, mine: &Host, other: &Host, file: FileId) {
        let record = mine.segment.file(file);
        let Some(asked) = record.lease.load().asked() else { return };
        if self.refuses.load(Ordering::Acquire) {
            return record.lease.refuse(Errno::STALE);
        }
        let identity = record.identity();
        let theirs = other.granted(identity).unwrap_or(Lease::Nothing);
        let shares = self.shares.load(Ordering::Acquire) && asked != Access::Alone;
        let left = match (asked, theirs) {
            (_, Lease::Direct | Lease::Nothing) => theirs,
            // The kernel has it open from before the session, for instance.
            _ if record.has(FileFlags::DIRECT) => Lease::Direct,
            (_, Lease::Whole | Lease::Shared) if shares => Lease::Shared,
            (Access::Read, Lease::Whole | Lease::Read) => Lease::Read,
            _ => Lease::Nothing,
        };
        let now = match left == theirs {
            true => theirs,
            false => {
                self.revoked.fetch_add(1, Ordering::Relaxed);
                other.reduce(identity, left).unwrap()
            }
        };
        if record.has(FileFlags::DIRECT) {
            return record.lease.grant(Grant::Direct);
        }
        if now != Lease::Shared && record.lease.load().held() == Lease::Shared {
            // What this node has of its parts it keeps.
            return record.lease.grant(Grant::Whole);
        }
        record.lease.grant(match (now, asked) {
            (Lease::Direct, _) => Grant::Direct,
            (Lease::Shared, _) => Grant::Shared,
            (_, Access::Read) => Grant::Read,
            (_, Access::Write | Access::Alone) => Grant::Whole,
        });
    }

    fn decide_part(&self, mine: &Host, other: &Host, file: FileId, part: Part, level: PartLevel) {
        let record = mine.segment.file(file);
        if record.lease.load().held() != Lease::Shared {
            return;
        }
        let leases = mine.segment.part_leases();
        if self.refuses.load(Ordering::Acquire) {
            return leases.insert(file, part).unwrap().refuse(Errno::STALE);
        }
        if leases.load(file, part).level().covers(level) {
            return;
        }
        let mut granted = level;
        if let Some(theirs) = other.known(record.identity()) {
            let has = other.segment.part_leases().load(theirs, part).level();
            let mut left = match (level, has) {
                (_, PartLevel::None) => has,
                (PartLevel::Read, PartLevel::Read | PartLevel::Write) if part != Part::SIZE => {
                    PartLevel::Read
                }
                (PartLevel::Shared, PartLevel::Shared) => has,
                _ => PartLevel::None,
            };
            if left != has {
                let turn = self.revoked.fetch_add(1, Ordering::Relaxed);
                // Of those that change hands, some are used through the kernel for a while.
                if part != Part::SIZE && has != PartLevel::Direct && turn.is_multiple_of(8) {
                    (granted, left) = (PartLevel::Direct, PartLevel::None);
                }
                other.reduce_part(theirs, part, left);
            }
            if part == Part::SIZE {
                let size = other.segment.file(theirs).size.load(Ordering::Acquire);
                record.size.fetch_max(size, Ordering::AcqRel);
            }
        }
        if leases.load(file, part).level() != PartLevel::None {
            mine.reduce_part(file, part, PartLevel::None);
        }
        leases.insert(file, part).unwrap().grant(granted);
    }
}

/// What a stat of `name` says on a host: size, and time of modification in nanoseconds.
fn stat(host: &Host, name: &str) -> Result<(u64, u64), Errno> {
    let path = CString::new(host.site.store().join(name).into_os_string().into_vec()).unwrap();
    let mut said = None;
    let at = PathAt::here(UserPath::from(path.as_c_str()));
    let ask = || {
        let stat = rustix::fs::stat(path.as_c_str()).unwrap();
        let fields = StatFields {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mtime_ns: joined_ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns: joined_ns(stat.st_ctime, stat.st_ctime_nsec as i64),
        };
        said = Some(fields);
        host.session.concerns(stat.st_dev, stat.st_ino).then_some(fields)
    };
    let epoch = host.session.stat_epoch();
    let corrected = host.session.corrected(epoch, ask, (at, AtFlags::empty()))?;
    let fields = corrected.or(said).unwrap();
    Ok((fields.size, fields.mtime_ns))
}

/// A node that has a file is not asked for by its own programs, and keeps it when others look.
#[test]
fn a_stat_takes_nothing_and_asks_only_where_nothing_is_known() {
    let (group, store) = Group::new();
    let [one, other] = &*group.hosts;
    let asked = || group.glimpsed.load(Ordering::Relaxed);
    fs::write(store.store().join("plain"), [1; 70]).unwrap();
    assert_eq!(stat(one, "plain").unwrap().0, 70);
    assert_eq!(asked(), 1, "others might have it");
    let a = one.open("file");
    assert_eq!(write_at(&one.session, a, &[7; 1000], 0), Ok(1000));
    let before = asked();
    let (size, mtime_ns) = stat(one, "file").unwrap();
    assert_eq!((size, one.session.file(a).unwrap().size()), (1000, Ok(1000)));
    assert_eq!(asked(), before, "what this node has no message is sent for");
    // One that has no record of it.
    assert_eq!(stat(other, "file"), Ok((1000, mtime_ns)));
    assert_eq!(asked(), before + 1);
    one.session.file(a).unwrap().truncate(300).unwrap();
    assert_eq!(stat(other, "file").unwrap().0, 300);
    let identity = identity_of(&one.session, a);
    assert_eq!((one.lease(identity), other.lease(identity)), (Some(Lease::Whole), None));
    assert_eq!(group.revoked.load(Ordering::Relaxed), 0, "nothing was taken");
    // One that has it open, and nothing of it any more.
    let b = other.open("file");
    assert_eq!(read_at(&other.session, b, 0), [7; 300]);
    assert_eq!(write_at(&one.session, a, &[8; 50], 300), Ok(50));
    assert_eq!(other.lease(identity), Some(Lease::Nothing));
    let revoked = group.revoked.load(Ordering::Relaxed);
    assert_eq!(other.session.file(b).unwrap().size(), Ok(350));
    assert_eq!(stat(other, "file").unwrap().0, 350);
    assert_eq!(group.revoked.load(Ordering::Relaxed), revoked);
    assert_eq!(one.lease(identity), Some(Lease::Whole));
    // What both read, both know.
    assert_eq!(read_at(&other.session, b, 340), [8; 10]);
    let before = asked();
    assert_eq!((stat(one, "file").unwrap().0, stat(other, "file").unwrap().0), (350, 350));
    assert_eq!(asked(), before);
    // No node says it: that is no reason to say what was.
    assert_eq!(write_at(&one.session, a, &[9; 50], 350), Ok(50));
    group.refuses.store(true, Ordering::Release);
    assert_eq!(stat(other, "file"), Err(Errno::STALE));
    assert_eq!(other.session.file(b).unwrap().size(), Err(Errno::STALE));
    group.refuses.store(false, Ordering::Release);
}

#[test]
fn what_one_node_has_written_another_reads() {
    let (group, store) = Group::new();
    let [one, other] = &*group.hosts;
    let a = one.open("file");
    assert_eq!(write_at(&one.session, a, b"from one", 0), Ok(8));
    assert_eq!(fs::read(store.store().join("file")).unwrap(), b"", "it is buffered");
    let identity = identity_of(&one.session, a);
    assert_eq!(one.lease(identity), Some(Lease::Whole));

    let reads = other.site.open(&other.session, "file", OpenFlags::RDONLY).unwrap();
    assert_eq!(read_at(&other.session, reads, 0), b"from one");
    assert_eq!(
        (one.lease(identity), other.lease(identity)),
        (Some(Lease::Read), Some(Lease::Read))
    );
    // Both keep it.
    let before = group.revoked.load(Ordering::Relaxed);
    assert_eq!(read_at(&one.session, a, 0), b"from one");
    assert_eq!(read_at(&other.session, reads, 5), b"one");
    assert_eq!(group.revoked.load(Ordering::Relaxed), before, "no message under a lease");

    let b = other.open("file");
    assert_eq!(write_at(&other.session, b, b"other, and longer", 5), Ok(17));
    assert_eq!(
        (one.lease(identity), other.lease(identity)),
        (Some(Lease::Nothing), Some(Lease::Whole))
    );
    assert_eq!(one.session.file(a).unwrap().seek(0, Whence::End), Ok(22));
    assert_eq!(read_at(&one.session, a, 0), b"from other, and longer");
}

#[test]
fn sizes_appends_and_truncates_of_one_node_hold_on_the_other() {
    let (group, _store) = Group::new();
    let [one, other] = &*group.hosts;
    let append =
        |host: &Host| host.site.open(&host.session, "log", NEW | OpenFlags::APPEND).unwrap();
    let (a, b) = (append(one), append(other));
    for turn in 0..4 {
        assert_eq!(write_at(&one.session, a, b"one ", 0), Ok(4), "{turn}");
        assert_eq!(write_at(&other.session, b, b"two ", 0), Ok(4), "{turn}");
    }
    assert_eq!(read_at(&one.session, a, 0), b"one two ".repeat(4));
    other.session.file(b).unwrap().truncate(6).unwrap();
    assert_eq!(one.session.file(a).unwrap().size(), Ok(6));
    assert_eq!(read_at(&one.session, a, 0), b"one tw");
    // An open that truncates is seen, too.
    assert_eq!(write_at(&one.session, a, b"more", 0), Ok(4));
    let cut = other.site.open(&other.session, "log", OpenFlags::WRONLY | OpenFlags::TRUNC).unwrap();
    assert_eq!(one.session.file(a).unwrap().size(), Ok(0));
    other.session.close(cut).unwrap();
}

#[test]
fn a_refusal_is_an_error_and_changes_nothing() {
    let (group, _store) = Group::new();
    let [one, other] = &*group.hosts;
    let a = one.open("file");
    assert_eq!(write_at(&one.session, a, b"bytes", 0), Ok(5));
    group.refuses.store(true, Ordering::Release);
    let b = other.open("file");
    let file = other.session.file(b).unwrap();
    assert_eq!(file.pread(&[0; 4][..].as_mut().into(), 0), Err(Errno::STALE));
    assert_eq!(write_at(&other.session, b, b"x", 0), Err(Errno::STALE));
    assert_eq!(file.truncate(0), Err(Errno::STALE));
    group.refuses.store(false, Ordering::Release);
    assert_eq!(read_at(&other.session, b, 0), b"bytes");
}

#[test]
fn a_file_that_one_node_uses_through_the_kernel_is_so_on_the_other() {
    let (group, store) = Group::new();
    let [one, other] = &*group.hosts;
    let a = one.open("file");
    assert_eq!(write_at(&one.session, a, b"bytes", 0), Ok(5));
    one.session.file(a).unwrap().make_direct(|| ()).unwrap();
    let b = other.open("file");
    assert_eq!(write_at(&other.session, b, b"other", 5), Ok(5));
    assert_eq!(fs::read(store.store().join("file")).unwrap(), b"bytesother");
    let identity = identity_of(&one.session, a);
    assert_eq!(
        (one.lease(identity), other.lease(identity)),
        (Some(Lease::Direct), Some(Lease::Direct))
    );
    assert_eq!(read_at(&one.session, a, 0), b"bytesother");
}

/// One that a node uses so before any other knows it, while others would share it.
#[test]
fn a_file_that_the_kernel_has_open_is_never_shared() {
    let (group, _store) = Group::new();
    group.shares.store(true, Ordering::Release);
    let [one, other] = &*group.hosts;
    let a = one.open("file");
    let identity = identity_of(&one.session, a);
    one.segment.file(one.known(identity).unwrap()).turn_direct();
    let b = other.open("file");
    for round in 1..5u64 {
        for (host, fd) in [(other, b), (one, a)] {
            let file = host.session.file(fd).unwrap();
            assert_eq!(file.write_placed(&(&[round as u8; 500][..]).into(), None, true), Ok(500));
        }
        for (host, fd) in [(one, a), (other, b)] {
            assert_eq!(host.session.file(fd).unwrap().size(), Ok(round * 1000));
        }
        assert_eq!(read_at(&one.session, a, round * 1000 - 1), [round as u8]);
    }
    assert_eq!(
        (one.lease(identity), other.lease(identity)),
        (Some(Lease::Direct), Some(Lease::Direct))
    );
}

/// What the files have, whichever node has written it.
type Model = Mutex<Vec<Vec<u8>>>;

/// One thread of a node: calls at random on all files, each whole before the next of any thread;
/// in all of the first bytes of the file, or around the ends of its parts.
fn work(host: &Host, files: &[RawFd], model: &Model, seed: u64, calls: u32, parts: u64) {
    let mut random = Random::new(seed);
    for _ in 0..calls {
        let mut model = model.lock().unwrap();
        let number = random.below(files.len() as u64) as usize;
        let (fd, expected) = (files[number], &mut model[number]);
        let file = host.session.file(fd).unwrap();
        let at = random.below(parts) * PART_BYTES + random.below(40_000);
        let at = if parts > 1 { at.saturating_sub(20_000) } else { at };
        let length = 1 + random.below(6_000);
        match random.below(if parts > 1 { 200 } else { 20 }) {
            20..80 | 0..8 => {
                let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                assert_eq!(write_at(&host.session, fd, &bytes, at), Ok(bytes.len()), "seed {seed}");
                let end = (at + length) as usize;
                expected.resize(expected.len().max(end), 0);
                expected[at as usize..end].copy_from_slice(&bytes);
            }
            80..160 | 8..16 => {
                let mut bytes = vec![0; length as usize];
                let got = file.pread(&bytes[..].as_mut().into(), at).unwrap();
                bytes.truncate(got);
                let from = expected.len().min(at as usize);
                let upto = expected.len().min((at + length) as usize);
                let wanted = &expected[from..upto];
                let differs = bytes.iter().zip(wanted).position(|(got, wanted)| got != wanted);
                let lengths = (bytes.len(), wanted.len());
                assert!(
                    bytes == wanted,
                    "seed {seed}: {at} + {length}, {lengths:?}, byte {differs:?}"
                );
            }
            160..170 => {
                let bytes = vec![seed as u8; length as usize];
                let piece = (&bytes[..]).into();
                assert_eq!(file.write_placed(&piece, None, true), Ok(bytes.len()), "seed {seed}");
                expected.extend_from_slice(&bytes);
            }
            16 => {
                file.truncate(at as i64).unwrap();
                expected.resize(at as usize, 0);
            }
            170..199 | 17 => assert_eq!(file.size(), Ok(expected.len() as u64), "seed {seed}"),
            18 => file.sync(random.below(2) == 0).unwrap(),
            _ => file.advise(0, 0, forebay_client::Advice::DontNeed),
        }
        // Else one thread has all its turns before the next.
        drop(model);
        thread::yield_now();
    }
}

#[test]
fn calls_at_random_on_two_nodes_agree() {
    random_calls(false);
}

#[test]
fn calls_at_random_on_files_that_two_nodes_share_agree() {
    random_calls(true);
}

fn random_calls(shares: bool) {
    let given = std::env::var("FOREBAY_LEASE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| std::process::id().into());
    println!("FOREBAY_LEASE_SEED={seed}");
    let (group, store) = Group::new();
    group.shares.store(shares, Ordering::Release);
    let parts = if shares { 3 } else { 1 };
    let names = ["first", "second"];
    let model = Model::new(vec![Vec::new(); names.len()]);
    thread::scope(|scope| {
        for (number, host) in group.hosts.iter().enumerate() {
            for thread in 0..2 {
                let files: Vec<RawFd> = names.iter().map(|name| host.open(name)).collect();
                let (model, seed) = (&model, seed * 4 + number as u64 * 2 + thread);
                scope.spawn(move || work(host, &files, model, seed, 1_500, parts));
            }
        }
    });
    assert!(group.revoked.load(Ordering::Relaxed) > 100, "they have taken from each other");
    for host in group.hosts.iter() {
        host.session.files().for_each(|file| file.sync(true).unwrap());
    }
    for (name, expected) in names.iter().zip(model.into_inner().unwrap()) {
        assert!(fs::read(store.store().join(name)).unwrap() == expected, "seed {seed}: {name}");
    }
}

/// Both write and read at once, each what no other thread does.
#[test]
fn parts_that_two_nodes_write_at_once_are_what_each_has_written() {
    let (group, store) = Group::new();
    group.shares.store(true, Ordering::Release);
    const RECORD: usize = 47_008;
    const RECORDS: u64 = 60;
    let record = |number: u64| -> Vec<u8> {
        (0..RECORD as u64).map(|at| (number * 31 + at * 7 + at / 251) as u8).collect()
    };
    // So that it is shared from the beginning.
    let opened = [group.hosts[0].open("file"), group.hosts[1].open("file")];
    for (host, fd) in group.hosts.iter().zip(opened) {
        assert_eq!(write_at(&host.session, fd, &record(0)[..1], 0), Ok(1));
    }
    thread::scope(|scope| {
        for (node, (host, &fd)) in group.hosts.iter().zip(&opened).enumerate() {
            for thread in 0..2 {
                scope.spawn(move || {
                    let me = node as u64 * 2 + thread;
                    // Strided: others write what lies between.
                    for number in (me..RECORDS).step_by(4) {
                        let at = number * RECORD as u64;
                        let bytes = record(number);
                        assert_eq!(write_at(&host.session, fd, &bytes, at), Ok(RECORD));
                        let mut found = vec![0; RECORD];
                        let file = host.session.file(fd).unwrap();
                        assert_eq!(file.pread(&found[..].as_mut().into(), at), Ok(RECORD));
                        assert!(found == bytes, "record {number}");
                    }
                });
            }
        }
    });
    for (host, fd) in group.hosts.iter().zip(opened) {
        let file = host.session.file(fd).unwrap();
        assert_eq!(file.size(), Ok(RECORDS * RECORD as u64));
        for number in 0..RECORDS {
            let mut found = vec![0; RECORD];
            let at = number * RECORD as u64;
            assert_eq!(file.pread(&found[..].as_mut().into(), at), Ok(RECORD));
            assert!(found == record(number), "record {number}");
        }
    }
    group.hosts.iter().for_each(|host| {
        host.session.files().for_each(|file| file.sync(true).unwrap());
    });
    let stored = fs::read(store.store().join("file")).unwrap();
    assert_eq!(stored.len() as u64, RECORDS * RECORD as u64);
    let whole: Vec<u8> = (0..RECORDS).flat_map(record).collect();
    assert!(stored == whole);
}

/// Of pages that others have written a node reads none to write a part of them: what is larger goes
/// to the store in one call. What is small, or here already, is buffered.
#[test]
fn what_lies_between_records_of_another_node_goes_to_the_store() {
    const RECORD: usize = 12_000;
    let (group, store) = Group::new();
    group.shares.store(true, Ordering::Release);
    let [one, other] = &*group.hosts;
    let (a, b) = (one.open("file"), other.open("file"));
    let stored =
        |range: Range<usize>| fs::read(store.store().join("file")).unwrap()[range].to_vec();
    for place in [0, 2, 4] {
        let at = (place * RECORD) as u64;
        assert_eq!(write_at(&one.session, a, &[place as u8 + 1; RECORD], at), Ok(RECORD));
    }
    let mut expected: Vec<u8> = (1..=6).flat_map(|place| [place; RECORD]).collect();
    for place in [1, 3] {
        let at = (place * RECORD) as u64;
        assert_eq!(write_at(&other.session, b, &[place as u8 + 1; RECORD], at), Ok(RECORD));
        assert_eq!(stored(place * RECORD..(place + 1) * RECORD), [place as u8 + 1; RECORD]);
    }
    assert_eq!(stored(0..5 * RECORD), expected[..5 * RECORD]);
    // Small.
    let mut write = |node: &Host, fd, byte: u8, range: Range<usize>| {
        let bytes = vec![byte; range.len()];
        assert_eq!(write_at(&node.session, fd, &bytes, range.start as u64), Ok(range.len()));
        expected[range].fill(byte);
    };
    write(other, b, 8, 13_000..13_100);
    assert_eq!(stored(13_000..13_100), [2; 100]);
    // Next to what is here.
    write(other, b, 9, 14_000..26_000);
    assert_eq!(stored(14_000..26_000), [vec![2; 10_000], vec![3; 2_000]].concat());
    // Behind all, where the store has nothing to be read.
    write(other, b, 7, 5 * RECORD..6 * RECORD);
    assert_eq!(fs::metadata(store.store().join("file")).unwrap().len(), 5 * RECORD as u64);
    for (node, fd) in [(other, b), (one, a)] {
        assert!(read_at(&node.session, fd, 0) == expected);
    }
}

/// Programs that go from part to part ask for many at a time.
#[test]
fn parts_in_a_row_are_asked_for_ahead() {
    let (group, _store) = Group::new();
    group.shares.store(true, Ordering::Release);
    let [one, other] = &*group.hosts;
    let (a, b) = (one.open("file"), other.open("file"));
    assert_eq!(write_at(&one.session, a, b"bytes", 0), Ok(5));
    for part in 64..128 {
        assert_eq!(write_at(&other.session, b, b"more", part * PART_BYTES), Ok(4));
    }
    // Those and the size, and perhaps one more time where that took long.
    let asked = group.asked.load(Ordering::Relaxed);
    assert!((2..=12).contains(&asked), "{asked}");
    assert_eq!(one.session.file(a).unwrap().size(), Ok(127 * PART_BYTES + 4));
    for part in (130..330).step_by(3) {
        assert_eq!(write_at(&other.session, b, b"more", part * PART_BYTES), Ok(4));
    }
    let asked = group.asked.load(Ordering::Relaxed) - asked;
    assert!((2..=14).contains(&asked), "{asked}");
    // Those between are not this node's.
    assert_eq!(write_at(&one.session, a, b"less", 131 * PART_BYTES), Ok(4));
    assert_eq!(read_at(&other.session, b, 131 * PART_BYTES)[..4], *b"less");
}

#[test]
fn a_part_that_is_refused_is_an_error_and_changes_nothing() {
    let (group, _store) = Group::new();
    group.shares.store(true, Ordering::Release);
    let [one, other] = &*group.hosts;
    let (a, b) = (one.open("file"), other.open("file"));
    assert_eq!(write_at(&one.session, a, b"bytes", 0), Ok(5));
    assert_eq!(write_at(&other.session, b, b"more", PART_BYTES), Ok(4));
    let identity = identity_of(&one.session, a);
    assert_eq!(
        (one.lease(identity), other.lease(identity)),
        (Some(Lease::Shared), Some(Lease::Shared))
    );
    group.refuses.store(true, Ordering::Release);
    let file = other.session.file(b).unwrap();
    assert_eq!(file.pread(&[0; 4][..].as_mut().into(), 0), Err(Errno::STALE));
    assert_eq!(write_at(&other.session, b, b"x", 0), Err(Errno::STALE));
    assert_eq!(file.size(), Err(Errno::STALE));
    let mut more = [0; 4];
    assert_eq!(file.pread(&more[..].as_mut().into(), PART_BYTES), Ok(4), "it has this");
    assert_eq!(&more, b"more");
    group.refuses.store(false, Ordering::Release);
    assert_eq!(file.size(), Ok(PART_BYTES + 4));
    assert_eq!(read_at(&other.session, b, 0)[..5], *b"bytes");
    file.truncate(3).unwrap();
    assert_eq!(other.lease(identity), Some(Lease::Whole), "a truncate has the file alone");
    assert_eq!(read_at(&one.session, a, 0), b"byt");
}
