//! Which buffered files a path means, and in whose pools they are: what `flush`, `wait` and
//! `elsewhere` ask.

use crate::manager;
use crate::text::bytes;
use forebay_client::{Front, Itself, Session};
use forebay_node::Connection;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_pool::layout::FileFlags;
use forebay_pool::liveness;
use forebay_pool::segment::{open_pool, text};
use forebay_pool::{FileId, FoundFile, Identity, Segment, SegmentError};
use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A named file or directory.
pub(crate) struct Named {
    path: PathBuf,
    identity: Identity,
    is_folder: bool,
}

impl Named {
    /// Looks at what a path names.
    pub fn of(path: &Path) -> Result<Named, String> {
        let explain = |error| format!("{}: {error}", path.display());
        let found = std::fs::metadata(path).map_err(explain)?;
        let whole = std::fs::canonicalize(path).map_err(explain)?;
        let identity = Identity { device: found.dev(), inode: found.ino() };
        Ok(Named { path: whole, identity, is_folder: found.is_dir() })
    }

    /// Whether it names, or holds, the file of a record that was opened as `path`. A file whose
    /// path is not certain, because it was moved or has other names, may lie in any directory.
    fn means(&self, identity: Identity, path: &Path) -> bool {
        if !self.is_folder {
            return identity == self.identity;
        }
        match std::fs::symlink_metadata(path) {
            Ok(found) if (Identity { device: found.dev(), inode: found.ino() }) == identity => {
                found.nlink() > 1 || path.starts_with(&self.path)
            }
            _ => identity.device == self.identity.device,
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it lies in this directory, or this directory in it.
    pub fn is_near(&self, folder: &Path) -> bool {
        self.path.starts_with(folder) || folder.starts_with(&self.path)
    }

    /// Makes durable what the store has of it.
    pub fn sync_store(&self) -> Result<(), String> {
        // A FIFO would wait for its other end.
        let usual = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |flags| rustix::fs::open(&self.path, flags | usual, Mode::empty());
        // Only a description is needed, whichever way the file may be opened.
        let file = open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY));
        let synced = file.and_then(|file| {
            match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
                FileType::Directory => rustix::fs::syncfs(&file),
                FileType::RegularFile => rustix::fs::fsync(&file),
                _ => Ok(()),
            }
        });
        synced.map_err(|errno| format!("{}: {errno}", self.path.display()))
    }
}

/// A pool in which some of the named files may be buffered.
pub(crate) struct Pool {
    path: PathBuf,
    /// Of the pool's file.
    identity: Identity,
    /// Without one, no folder of ours tells of it: it counts only for what lies in its own
    /// directories.
    runtime: Option<Runtime>,
    pub segment: Segment,
}

impl Pool {
    /// All pools of this user that may be of concern to `named`, wherever their managers were
    /// started, and a message for each that cannot be read, and may hold some of them. One that
    /// holds nothing of them, as its folder says, is only mentioned.
    ///
    /// # Errors
    /// Those of looking for pools.
    pub fn all(named: &[Named]) -> Result<(Vec<Pool>, Vec<String>), String> {
        let (mut pools, mut unreadable) = (Vec::new(), Vec::new());
        for runtime in Runtime::all()? {
            let is_stray = !runtime.folder.exists();
            let path = runtime.pool.clone();
            let backing = runtime.read_config().map(|config| config.backing);
            let backing = backing.map(|all| all.into_iter().map(|backing| backing.path).collect());
            let backing: Option<Vec<PathBuf>> = backing;
            match Pool::of(&path, (!is_stray).then_some(runtime)) {
                Ok(pool) => pools.push(pool),
                // One that is just being removed, or made.
                Err(_) if !path.exists() => {}
                Err(error) => {
                    let stores = backing.unwrap_or_default();
                    let is_near = |store: &PathBuf| named.iter().any(|named| named.is_near(store));
                    let error = format!("{}: {error}", path.display());
                    if stores.iter().any(is_near) {
                        unreadable.push(error);
                    } else if stores.is_empty() {
                        unreadable.push(format!(
                            "{error}. Which directories it buffers cannot be told: what is named here is not known to be \
                             safe"
                        ));
                    } else {
                        eprintln!("forebay: passed over: {error}");
                    }
                }
            }
        }
        Ok((pools, unreadable))
    }

    fn of(path: &Path, runtime: Option<Runtime>) -> Result<Pool, SegmentError> {
        let file = open_pool(path)?;
        let found = rustix::fs::fstat(&file)
            .map_err(|errno| SegmentError::System("looking at the pool", errno))?;
        let identity = Identity { device: found.st_dev, inode: found.st_ino };
        let segment = Segment::attach(file.as_fd())?;
        Ok(Pool { path: path.to_owned(), identity, runtime, segment })
    }

    /// The records of files that are ahead of the store and that `named` means.
    pub fn ahead(&self, named: &[Named]) -> Vec<FoundFile> {
        // Scratch files are not meant for the store.
        let ahead = |&FoundFile { file, .. }: &FoundFile| {
            let record = self.segment.file(file);
            record.has(FileFlags::METADATA_DIRTY) && !record.has(FileFlags::SCRATCH)
        };
        let meant = self.meant(named);
        meant.into_iter().filter(ahead).collect()
    }

    /// The records of files that `named` means, ahead of the store or not.
    pub fn meant(&self, named: &[Named]) -> Vec<FoundFile> {
        if self.runtime.is_none() && !named.iter().any(|named| self.is_near(named)) {
            return Vec::new();
        }
        let meant = |&FoundFile { file, .. }: &FoundFile| {
            let (identity, path) = (self.segment.file(file).identity(), self.path(file));
            named.iter().any(|named| named.means(identity, &path))
        };
        self.segment.found_files().filter(meant).collect()
    }

    /// The directories whose files it buffers.
    pub fn stores(&self) -> impl Iterator<Item = &Path> {
        let header = self.segment.header();
        let stores = header.store[..header.stores as usize].iter();
        stores.map(|store| Path::new(OsStr::from_bytes(text(&store.path).to_bytes())))
    }

    /// Whether it buffers what is named, or something below that.
    pub fn is_near(&self, named: &Named) -> bool {
        self.stores().any(|store| named.is_near(store))
    }

    /// Whether it is one that all of `named` would be in, if it were buffered.
    pub fn buffers(&self, named: &Named) -> bool {
        self.stores().any(|store| named.path.starts_with(store))
    }

    /// Whether a file at this canonical path is in one of its directories.
    pub fn holds(&self, path: &Path) -> bool {
        self.stores().any(|store| path.starts_with(store))
    }

    /// The instance; `None` if no folder of ours tells of it.
    pub fn runtime(&self) -> Option<&Runtime> {
        self.runtime.as_ref()
    }

    /// Takes part in it as a program under `forebay run` does, for a command that opens files.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn join(&self, command: &str) -> Result<Session, String> {
        let place = self.path.display();
        let by_hand = || format!("{place} belongs to no instance of this user's runtime folder");
        let runtime = self.runtime.as_ref().ok_or_else(by_hand)?;
        let pid = std::process::id();
        let start = liveness::start_time(pid).unwrap_or(0);
        // It runs under the preload library, whose part in the pool would be taken over.
        if self.segment.clients().slot_of(pid, start).is_some() {
            return Err(format!(
                "forebay {command} cannot work under `forebay run` of the same instance: give it before \
                 the run, with a node manager that `forebay up` has started, or beside it, in a shell of its own"
            ));
        }
        let text = |path: &Path| {
            CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())
        };
        let (pool, socket) = (text(&self.path)?, text(&runtime.socket())?);
        // Our files have no locks, and none of them is a standard one.
        let front = Front { unlock: |_| {}, binds: |_| {} };
        Session::start(&pool, &socket, None, None, Itself::default(), front)
            .map(|session| *session)
            .map_err(|error| format!("{place}: {error}"))
    }

    /// Where a file was opened.
    pub fn path(&self, file: FileId) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.segment.path_of(self.segment.file(file))))
    }

    /// The files among `files` whose last flush failed, with the reason.
    pub fn failing(&self, files: &[FileId]) -> Vec<String> {
        let failing = |&&file: &&FileId| {
            self.segment.file(file).has(FileFlags::FAILING) && self.segment.pending_bytes(file) > 0
        };
        files.iter().filter(failing).map(|&file| self.explain(file)).collect()
    }

    /// Where the pool's file is.
    pub fn place(&self) -> &Path {
        &self.path
    }

    /// Why a file's data is not on the store, for people.
    pub fn explain(&self, file: FileId) -> String {
        let errno = self.segment.file(file).last_errno();
        let error = std::io::Error::from_raw_os_error(errno);
        format!("{}: {error}; its data is kept and tried again", self.path(file).display())
    }

    /// Process id of its node manager.
    pub fn manager(&self) -> Option<u32> {
        Some(self.segment.header().manager_pid.load(Ordering::Acquire)).filter(|&pid| pid != 0)
    }

    /// Whether its node manager has died, or could not bring everything to the store.
    pub fn is_abandoned(&self) -> bool {
        !self.segment.manager_is_alive()
    }

    /// Whether the pool was removed, as by a node manager that ends when everything is on the
    /// store.
    pub fn is_gone(&self) -> bool {
        !std::fs::symlink_metadata(&self.path).is_ok_and(|found| {
            Identity { device: found.dev(), inode: found.ino() } == self.identity
        })
    }

    /// What is to be said of a pool that is gone, if not all of `files` was on the store.
    pub fn lost(&self, files: &[FileId]) -> Option<String> {
        let left: u64 = files.iter().map(|&file| self.segment.pending_bytes(file)).sum();
        let path = self.path.display();
        (left > 0).then(|| format!("{path} was removed, and {} were not on the store", bytes(left)))
    }

    /// Whether programs use it.
    pub fn is_in_use(&self) -> bool {
        Observer::of(&self.path).is_ok_and(|observer| observer.clients() > 0)
    }

    /// Starts another node manager, unless its run was faster, and holds it.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn revive(&self) -> Result<Connection, String> {
        let by_hand = || {
            format!(
                "{} has no node manager; run `forebay recover` to drain it",
                self.path.display()
            )
        };
        manager::revive(self.runtime.as_ref().ok_or_else(by_hand)?)
    }
}
