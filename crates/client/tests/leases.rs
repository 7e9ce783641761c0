//! Leases as programs of several nodes see them: two pools over one store, each with a session, and
//! a thread that does what node managers and their group do.

mod support;

use forebay_client::{OpenFlags, Session, Whence};
use forebay_placement::Random;
use forebay_pool::layout::FileFlags;
use forebay_pool::lease::{Access, Grant, Lease};
use forebay_pool::message::Message;
use forebay_pool::{FileId, Identity, Segment, futex};
use rustix::fd::{AsFd, RawFd};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
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
}

impl Host {
    fn over(store: &Site) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let site = Site::over(folder, store.store().to_owned());
        let pool = fs::File::options().read(true).write(true).open(site.pool()).unwrap();
        let segment = Segment::attach(pool.as_fd()).unwrap();
        segment.header().shares_files.store(1, Ordering::Release);
        let session = site.session().unwrap();
        Host { site, session, segment }
    }

    fn open(&self, name: &str) -> RawFd {
        self.site.open(&self.session, name, NEW).unwrap()
    }

    fn lease(&self, identity: Identity) -> Option<Lease> {
        self.known(identity).map(|file| self.segment.file(file).lease.load().held())
    }

    fn known(&self, identity: Identity) -> Option<FileId> {
        let files = self.segment.found_files().map(|found| found.file);
        files.into_iter().find(|&file| self.segment.file(file).identity() == identity)
    }

    /// Brings what this node has of a file to the store, and leaves it no more than `left`.
    fn reduce(&self, identity: Identity, left: Lease) -> Result<Lease, Errno> {
        let Some(file) = self.known(identity) else { return Ok(Lease::Nothing) };
        let record = self.segment.file(file);
        // One that only reads asks for no more than what there is to take.
        let path = PathBuf::from(OsString::from_vec(self.segment.path_of(record)));
        let fd = open(&self.session, &path, OpenFlags::RDONLY | OpenFlags::CLOEXEC)?;
        let opened = self.session.file(fd).unwrap();
        let mut now = left;
        opened.with_clean(|| {
            if record.has(FileFlags::DIRECT) {
                now = Lease::Direct;
            }
            record.lease.reduce(now);
        })?;
        self.session.close(fd)?;
        Ok(now)
    }
}

/// Two nodes and their group.
struct Group {
    hosts: Arc<[Host; 2]>,
    ends: Arc<AtomicBool>,
    refuses: Arc<AtomicBool>,
    revoked: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Group {
    fn new() -> (Group, Site) {
        let store = Site::new();
        let hosts = Arc::new([Host::over(&store), Host::over(&store)]);
        let (ends, refuses) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let revoked = Arc::<AtomicU64>::default();
        let decide = {
            let (hosts, ends, refuses, revoked) =
                (Arc::clone(&hosts), Arc::clone(&ends), Arc::clone(&refuses), Arc::clone(&revoked));
            move || {
                while !ends.load(Ordering::Acquire) {
                    let mut any = false;
                    for me in 0..2 {
                        any |= serve(&hosts, me, &refuses, &revoked);
                    }
                    if !any {
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        };
        let thread = Some(thread::spawn(decide));
        (Group { hosts, ends, refuses, revoked, thread }, store)
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

/// Answers what programs of node `me` have asked for. Returns whether they had.
fn serve(hosts: &[Host; 2], me: usize, refuses: &AtomicBool, revoked: &AtomicU64) -> bool {
    let (mine, other) = (&hosts[me], &hosts[1 - me]);
    let Some(message) = mine.segment.queue().pop() else { return false };
    let Message::Lease { file } = message else { return true };
    let record = mine.segment.file(file);
    let Some(asked) = record.lease.load().asked() else { return true };
    if refuses.load(Ordering::Acquire) {
        record.lease.refuse(Errno::STALE);
    } else {
        let identity = record.identity();
        let theirs = other.lease(identity).unwrap_or(Lease::Nothing);
        let left = match (asked, theirs) {
            (_, Lease::Direct | Lease::Nothing) => theirs,
            (Access::Read, _) => Lease::Read,
            (Access::Write, _) => Lease::Nothing,
        };
        let now = match left == theirs {
            true => theirs,
            false => {
                revoked.fetch_add(1, Ordering::Relaxed);
                other.reduce(identity, left).unwrap()
            }
        };
        record.lease.grant(match (now, asked) {
            (Lease::Direct, _) => Grant::Direct,
            (_, Access::Read) => Grant::Read,
            (_, Access::Write) => Grant::Whole,
        });
    }
    let done = &mine.segment.header().work_done;
    done.fetch_add(1, Ordering::AcqRel);
    futex::wake_all(done);
    true
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

    let b = other.open("file");
    assert_eq!(read_at(&other.session, b, 0), b"from one");
    assert_eq!(
        (one.lease(identity), other.lease(identity)),
        (Some(Lease::Read), Some(Lease::Read))
    );
    // Both keep it.
    let before = group.revoked.load(Ordering::Relaxed);
    assert_eq!(read_at(&one.session, a, 0), b"from one");
    assert_eq!(read_at(&other.session, b, 5), b"one");
    assert_eq!(group.revoked.load(Ordering::Relaxed), before, "no message under a lease");

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

/// What the files have, whichever node has written it.
type Model = Mutex<Vec<Vec<u8>>>;

/// One thread of a node: calls at random on all files, each whole before the next of any thread.
fn work(host: &Host, files: &[RawFd], model: &Model, seed: u64, calls: u32) {
    let mut random = Random::new(seed);
    for _ in 0..calls {
        let mut model = model.lock().unwrap();
        let number = random.below(files.len() as u64) as usize;
        let (fd, expected) = (files[number], &mut model[number]);
        let file = host.session.file(fd).unwrap();
        let at = random.below(40_000);
        let length = 1 + random.below(6_000);
        match random.below(20) {
            0..8 => {
                let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                assert_eq!(write_at(&host.session, fd, &bytes, at), Ok(bytes.len()), "seed {seed}");
                let end = (at + length) as usize;
                expected.resize(expected.len().max(end), 0);
                expected[at as usize..end].copy_from_slice(&bytes);
            }
            8..16 => {
                let mut bytes = vec![0; length as usize];
                let got = file.pread(&bytes[..].as_mut().into(), at).unwrap();
                bytes.truncate(got);
                let from = expected.len().min(at as usize);
                let upto = expected.len().min((at + length) as usize);
                assert!(bytes == expected[from..upto], "seed {seed}: {at} + {length}");
            }
            16 => {
                file.truncate(at as i64).unwrap();
                expected.resize(at as usize, 0);
            }
            17 => assert_eq!(file.size(), Ok(expected.len() as u64), "seed {seed}"),
            18 => file.sync(random.below(2) == 0).unwrap(),
            _ => file.advise(0, 0, forebay_client::Advice::DontNeed),
        }
    }
}

#[test]
fn calls_at_random_on_two_nodes_agree() {
    let given = std::env::var("FOREBAY_LEASE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| std::process::id().into());
    println!("FOREBAY_LEASE_SEED={seed}");
    let (group, store) = Group::new();
    let names = ["first", "second"];
    let model = Model::new(vec![Vec::new(); names.len()]);
    thread::scope(|scope| {
        for (number, host) in group.hosts.iter().enumerate() {
            for thread in 0..2 {
                let files: Vec<RawFd> = names.iter().map(|name| host.open(name)).collect();
                let (model, seed) = (&model, seed * 4 + number as u64 * 2 + thread);
                scope.spawn(move || work(host, &files, model, seed, 1_500));
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
