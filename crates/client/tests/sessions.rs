//! Sessions as values: everything that a front end does with one, in this process, on pools without
//! a node manager. What a manager would do for a sync the session does itself then.

mod support;

use forebay_client::{CopySide, Extent, Level, OpenFile, OpenFlags, StartError, Unsafe, Whence};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use support::{NEW, Site, open, read_at, start, write_at};

/// The variable in which a test that starts itself finds its folder.
const FOLDER: &str = "FOREBAY_TEST_FOLDER";

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_and_reaches_the_store_with_a_sync() {
    let site = Site::new();
    let session = site.session().unwrap();
    let fd = site.open(&session, "file", NEW).unwrap();
    let bytes = pattern(70_000);
    assert_eq!(write_at(&session, fd, &bytes, 0), Ok(70_000));
    assert_eq!(read_at(&session, fd, 0), bytes);
    assert_eq!(fs::metadata(site.store().join("file")).unwrap().len(), 0, "it is buffered");

    let file = session.file(fd).unwrap();
    file.truncate(65_000).unwrap();
    assert_eq!(file.size(), Ok(65_000));
    assert_eq!(read_at(&session, fd, 0), bytes[..65_000]);
    file.sync(true).unwrap();
    assert_eq!(fs::read(site.store().join("file")).unwrap(), bytes[..65_000]);
}

#[test]
fn positions_and_flags_are_those_of_the_open() {
    let site = Site::new();
    let session = site.session().unwrap();
    let fd = site.open(&session, "file", NEW | OpenFlags::APPEND).unwrap();
    assert_eq!(write_at(&session, fd, b"one", 0), Ok(3));
    assert_eq!(write_at(&session, fd, b"two", 0), Ok(3));
    assert_eq!(read_at(&session, fd, 0), b"onetwo");
    let file = session.file(fd).unwrap();
    assert_eq!(file.seek(-2, Whence::End), Ok(4));

    let reader = site.open(&session, "file", OpenFlags::RDONLY).unwrap();
    assert_eq!(write_at(&session, reader, b"x", 0), Err(Errno::BADF));
    assert_eq!(session.file(reader).unwrap().truncate(0), Err(Errno::INVAL));
    // An open that truncates is seen by those that have the file open.
    let _cut = site.open(&session, "file", OpenFlags::WRONLY | OpenFlags::TRUNC).unwrap();
    assert_eq!(read_at(&session, reader, 0), b"");
    let exclusive = site.open(&session, "file", NEW | OpenFlags::EXCL);
    assert_eq!(exclusive.unwrap_err(), Errno::EXIST);
}

/// Where a file's bytes are: offset, bytes, in a tier, ahead of the store.
fn extents(file: &OpenFile<'_>, range: std::ops::Range<u64>) -> Vec<(u64, u64, bool, bool)> {
    let mut found = Vec::new();
    let add = |extent: Extent| {
        found.push((extent.offset, extent.bytes, extent.tier.is_some(), extent.is_ahead));
        true
    };
    file.placement(range, add).unwrap();
    found
}

#[test]
fn a_flush_is_done_at_once_where_there_is_no_node_manager() {
    let site = Site::new();
    let session = site.session().unwrap();
    let fd = site.open(&session, "file", NEW).unwrap();
    write_at(&session, fd, &pattern(70_000), 0).unwrap();
    let file = session.file(fd).unwrap();
    let missing = Unsafe { memory: 18 * 4096, tiers: 0, is_resized: true };
    assert_eq!(file.not_on_store(), Ok(missing));
    assert_eq!(extents(&file, 0..u64::MAX), [(0, 70_000, true, true)]);
    assert_eq!(extents(&file, 100..200), [(100, 100, true, true)]);
    assert_eq!(extents(&file, 70_000..80_000), []);

    for level in [Level::Store, Level::Durable] {
        write_at(&session, fd, b"again", 9000).unwrap();
        // No node manager serves it: the process has done it itself.
        assert_eq!(file.begin_flush(level), Ok(None));
        assert_eq!(file.not_on_store().map(|left| left.memory), Ok(0));
    }
    let mut wanted = pattern(70_000);
    wanted[9000..9005].copy_from_slice(b"again");
    assert_eq!(fs::read(site.store().join("file")).unwrap(), wanted);
    // What the tiers have and the store, too, and what only the store has.
    assert_eq!(extents(&file, 0..u64::MAX), [(0, 70_000, true, false)]);
    fs::write(site.store().join("other"), [1; 5000]).unwrap();
    let other = site.open(&session, "other", OpenFlags::RDONLY).unwrap();
    let other = session.file(other).unwrap();
    assert_eq!(extents(&other, 0..u64::MAX), [(0, 5000, false, false)]);
    assert_eq!(other.not_on_store(), Ok(Unsafe::default()));
    assert_eq!(session.close(fd), Ok(()));
    assert_eq!(file.begin_flush(Level::Store), Err(Errno::BADF));
    assert_eq!(file.not_on_store(), Err(Errno::BADF));
}

#[test]
fn copies_between_descriptors_have_what_is_buffered() {
    let site = Site::new();
    let session = site.session().unwrap();
    let from = site.open(&session, "from", NEW).unwrap();
    let to = site.open(&session, "to", NEW).unwrap();
    let bytes = pattern(90_000);
    assert_eq!(write_at(&session, from, &bytes, 0), Ok(90_000));

    let offset = Cell::new(10_000);
    let given = CopySide { fd: from, offset: Some((&offset).into()) };
    let at_its_own = |fd| CopySide { fd, offset: None };
    assert_eq!(session.copy_range(given, at_its_own(to), 100_000, 0), Ok(80_000));
    assert_eq!(
        (offset.get(), session.file(to).unwrap().seek(0, Whence::Current)),
        (90_000, Ok(80_000))
    );
    assert_eq!(read_at(&session, to, 0), bytes[10_000..]);
    let outcome = session.copy_range(given, given, 1, 0);
    assert_eq!(outcome, Ok(0), "there is nothing behind the end");

    offset.set(0);
    assert_eq!(session.send_file(to, given, 1_000), Ok(1_000));
    assert_eq!(read_at(&session, to, 80_000), bytes[..1_000]);

    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let (reader, writer) = (reader.as_raw_fd(), writer.as_raw_fd());
    let at_once = SpliceFlags::NONBLOCK;
    let empty = session.splice(at_its_own(reader), at_its_own(to), 5, at_once);
    assert_eq!(empty, Err(Errno::AGAIN));
    assert_eq!(session.splice(given, at_its_own(writer), 3_000, at_once), Ok(3_000));
    assert_eq!(offset.get(), 4_000);
    assert_eq!(session.splice(at_its_own(reader), at_its_own(to), 5_000, at_once), Ok(3_000));
    assert_eq!(read_at(&session, to, 81_000), bytes[1_000..4_000]);
}

#[test]
fn a_session_that_ends_leaves_its_files_to_the_kernel() {
    let site = Site::new();
    let session = site.session().unwrap();
    let fd = site.open(&session, "file", NEW).unwrap();
    write_at(&session, fd, b"some bytes", 0).unwrap();
    let file = session.file(fd).unwrap();
    file.seek(4, Whence::Start).unwrap();
    drop(session);
    // SAFETY: it stays open.
    let kernel = unsafe { BorrowedFd::borrow_raw(fd) };
    assert_eq!(fs::read(site.store().join("file")).unwrap(), b"some bytes");
    assert_eq!(rustix::fs::tell(kernel), Ok(4));
    // Its slot and all else are there for another one.
    let again = site.session().unwrap();
    let fd = site.open(&again, "file", OpenFlags::RDWR).unwrap();
    write_at(&again, fd, b"more", 5).unwrap();
    assert_eq!(read_at(&again, fd, 0), b"some mores");
}

#[test]
fn a_start_says_why_it_fails() {
    let site = Site::new();
    let missing = start(&site.folder.path().join("none"));
    assert_eq!(missing.err(), Some(StartError::Hidden));
    let _session = site.session().unwrap();
    assert_eq!(site.session().err(), Some(StartError::Attached));
}

#[test]
fn sessions_of_two_pools_keep_to_their_own_files() {
    let (one, other) = (Site::new(), Site::new());
    let (first, second) = (one.session().unwrap(), other.session().unwrap());
    let fd = one.open(&first, "file", NEW).unwrap();
    assert_eq!(write_at(&first, fd, b"first", 0), Ok(5));
    assert!(second.file(fd).is_none());
    let fd = other.open(&second, "file", NEW).unwrap();
    assert_eq!(write_at(&second, fd, b"second", 0), Ok(6));
    assert_eq!(read_at(&second, fd, 0), b"second");
    drop(first);
    assert_eq!(read_at(&second, fd, 0), b"second");
    assert_eq!(fs::read(one.store().join("file")).unwrap(), b"first");
    assert_eq!(fs::read(other.store().join("file")).unwrap(), b"");
}

/// The other process of the test below.
#[test]
#[ignore = "started by another test"]
fn another_process() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let session = start(&folder.join("pool")).unwrap();
    let fd = open(&session, &folder.join("store/file"), OpenFlags::RDWR).unwrap();
    assert_eq!(read_at(&session, fd, 0), b"from the first");
    assert_eq!(write_at(&session, fd, b"second", 9), Ok(6));
    assert_eq!(session.close(fd), Ok(()));
}

#[test]
fn two_processes_see_each_other_s_writes() {
    let site = Site::new();
    let session = site.session().unwrap();
    let fd = site.open(&session, "file", NEW).unwrap();
    write_at(&session, fd, b"from the first", 0).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["another_process", "--exact", "--ignored"]).env(FOLDER, site.folder.path());
    let ran = other.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "{ran:?}");
    assert_eq!(read_at(&session, fd, 0), b"from the second");
    assert_eq!(fs::read(site.store().join("file")).unwrap(), b"", "both have it in memory only");
}

#[test]
fn a_close_range_spares_all_own_descriptors_where_the_limit_is_4096() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < 5000) {
        return;
    }
    let site = Site::new();
    let session = site.session().unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(4096), ..limit }).unwrap();
    for name in ["one", "other"] {
        // It may only write, so that looking for data needs a descriptor of our own.
        let flags = OpenFlags::WRONLY | OpenFlags::CREATE | OpenFlags::CLOEXEC;
        let fd = site.open(&session, name, flags).unwrap();
        assert_eq!(write_at(&session, fd, b"bytes", 0), Ok(5));
        assert_eq!(session.file(fd).unwrap().seek(0, Whence::Data), Ok(0));
    }
    let own: Vec<u32> = (0..5000).filter(|&fd| session.owns(fd as RawFd)).collect();
    assert!(own.iter().filter(|&&fd| fd >= 4096).count() >= 2, "{own:?}");
    let mut closed = Vec::new();
    let result = session.close_range(4000..=u32::MAX, true, |from, upto| {
        closed.push(from..=upto);
        0
    });
    assert_eq!(result, 0);
    let spared = |fd: &u32| !closed.iter().any(|range| range.contains(fd));
    assert!(own.iter().all(spared), "{own:?}: {closed:?}");
}
