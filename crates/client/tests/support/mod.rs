//! A pool without a node manager for tests, and what they do with a session.

use forebay_client::{Front, Itself, OpenFlags, Session, StartError};
use forebay_pool::Segment;
use forebay_pool::layout::{Geometry, Header, RuleRecord};
use forebay_pool::segment::{self, set_text};
use rustix::fd::{AsFd, RawFd};
use rustix::fs::{AtFlags, CWD, Mode, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A pool and the directory that it buffers, both gone at the end.
pub struct Site {
    pub folder: tempfile::TempDir,
    store: PathBuf,
}

impl Site {
    pub fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        fs::create_dir(&store).unwrap();
        Site::over(folder, store)
    }

    /// With a pool in `folder`.
    pub fn over(folder: tempfile::TempDir, store: PathBuf) -> Site {
        Site::with_rules(folder, store, &[], 0)
    }

    /// The same with a schema of these rules, and a store of this latency, which is emulated if it
    /// has one.
    pub fn with_rules(
        folder: tempfile::TempDir,
        store: PathBuf,
        rules: &[RuleRecord],
        latency_ns: u64,
    ) -> Site {
        let site = Site { folder, store };
        let device = fs::metadata(site.store()).unwrap().dev();
        let path = site.store().canonicalize().unwrap();
        let pool = segment::create_pool(&site.pool()).unwrap();
        let wanted = StatxFlags::MNT_ID;
        let mount = statx(CWD, site.store(), AtFlags::empty(), wanted).unwrap().stx_mnt_id;
        let describe = |header: &mut Header| {
            header.stores = 1;
            // As a node manager does: what is opened through another one may be a store's file.
            header.store[0].mount = mount.into();
            header.store[0].device = device;
            header.store[0].emulation.latency_ns = latency_ns;
            set_text(&mut header.store[0].path, path.as_os_str().as_bytes());
        };
        let geometry = Geometry::for_tiers(4096, &[16 << 20]);
        let segment = Segment::create_with_rules(pool.as_fd(), &geometry, rules, describe).unwrap();
        while segment.grow(pool.as_fd(), 2 << 20).unwrap() > 0 {}
        site
    }

    pub fn store(&self) -> &Path {
        &self.store
    }

    pub fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    pub fn session(&self) -> Result<Session, StartError> {
        start(&self.pool())
    }

    pub fn open(&self, session: &Session, name: &str, flags: OpenFlags) -> Result<RawFd, Errno> {
        open(session, &self.store().join(name), flags)
    }
}

pub fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub fn start(pool: &Path) -> Result<Session, StartError> {
    const NO_SOCKET: &CStr = c"/nowhere";
    let front = Front { unlock: |_| {}, binds: |_| {} };
    Session::start(&text(pool), NO_SOCKET, None, None, Itself::default(), front)
        .map(|session| *session)
}

pub fn open(session: &Session, path: &Path, flags: OpenFlags) -> Result<RawFd, Errno> {
    session.open(CWD, &text(path), flags, Mode::from_raw_mode(0o600))
}

pub const NEW: OpenFlags = OpenFlags::RDWR.union(OpenFlags::CREATE).union(OpenFlags::CLOEXEC);

pub fn write_at(session: &Session, fd: RawFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    let file = session.file(fd).unwrap();
    file.write_placed(&bytes.into(), Some(offset), file.appends())
}

pub fn read_at(session: &Session, fd: RawFd, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; 100_000];
    let file = session.file(fd).unwrap();
    let got = file.pread(&bytes[..].as_mut().into(), offset).unwrap();
    bytes.truncate(got);
    bytes
}
