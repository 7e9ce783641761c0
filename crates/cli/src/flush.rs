//! `forebay flush`: brings files to the store now. Also which buffered files a path means.

use crate::drain::{Progress, bytes};
use crate::elsewhere;
use clap::Args;
use forebay_node::runtime::Runtime;
use forebay_pool::layout::file_flag;
use forebay_pool::segment::{open_pool, text};
use forebay_pool::{Identity, Segment, SegmentError, futex};
use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Options of `forebay flush`.
#[derive(Args)]
pub struct FlushArguments {
    /// Show how it comes along, and when all will be safe, however little time it takes
    #[arg(long)]
    progress: bool,
    /// Files, and directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

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

    /// Whether it names, or holds, the file of a record that was opened as `path`. A file whose path
    /// is not certain, because it was moved or has other names, may lie in any directory.
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
    /// No folder of ours tells of it: it counts only for what lies in its own directories.
    is_stray: bool,
    pub segment: Segment,
}

impl Pool {
    /// All pools of this user, also those whose runtime folder is another one, or gone.
    pub fn all() -> Result<Vec<Pool>, String> {
        let mut pools = Vec::new();
        for runtime in Runtime::all()? {
            let path = runtime.pool;
            match Pool::of(&path) {
                Ok(segment) => pools.push(Pool { path, segment, is_stray: false }),
                // One that is just being removed, or made.
                Err(_) if !path.exists() => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        // What is no pool, or damaged, is said by those who look after it.
        let strays = Runtime::strays()?.into_iter();
        let readable =
            |path: PathBuf| Some(Pool { segment: Pool::of(&path).ok()?, path, is_stray: true });
        pools.extend(strays.filter_map(readable));
        Ok(pools)
    }

    fn of(path: &Path) -> Result<Segment, SegmentError> {
        let opened = open_pool(path);
        let file = opened.map_err(|errno| SegmentError::System("opening the pool", errno))?;
        Segment::attach(file.as_fd())
    }

    /// The records of files that are ahead of the store and that `named` means.
    pub fn ahead(&self, named: &[Named]) -> Vec<u32> {
        // Scratch files are not meant for the store.
        let ahead = |&file: &u32| {
            let record = self.segment.file(file);
            record.has(file_flag::AHEAD) && !record.has(file_flag::SCRATCH)
        };
        let near = |named: &Named| self.stores().any(|store| named.is_near(store));
        if self.is_stray && !named.iter().any(near) {
            return Vec::new();
        }
        let meant = |&file: &u32| {
            let (identity, path) = (self.segment.file(file).identity(), self.path(file));
            named.iter().any(|named| named.means(identity, &path))
        };
        self.segment.live_files().filter(ahead).filter(meant).collect()
    }

    /// The directories whose files it buffers.
    fn stores(&self) -> impl Iterator<Item = &Path> {
        let header = self.segment.header();
        let stores = header.store[..header.stores as usize].iter();
        stores.map(|store| Path::new(OsStr::from_bytes(text(&store.path).to_bytes())))
    }

    /// Whether it is one that all of `named` would be in, if it were buffered.
    pub fn buffers(&self, named: &Named) -> bool {
        self.stores().any(|store| named.path.starts_with(store))
    }

    /// Where a file was opened.
    pub fn path(&self, file: u32) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.segment.file(file).path()))
    }

    /// The files among `files` whose last flush failed, with the reason.
    pub fn failing(&self, files: &[u32]) -> Vec<String> {
        let failing = |&&file: &&u32| {
            self.segment.file(file).has(file_flag::FAILING) && self.segment.pending_bytes(file) > 0
        };
        files.iter().filter(failing).map(|&file| self.explain(file)).collect()
    }

    fn explain(&self, file: u32) -> String {
        let errno = self.segment.file(file).last_errno();
        let error = std::io::Error::from_raw_os_error(errno);
        format!("{}: {error}; its data is kept and tried again", self.path(file).display())
    }

    /// That nobody serves the pool, if so.
    pub fn abandoned(&self) -> Option<String> {
        (!self.segment.manager_is_alive()).then(|| {
            format!(
                "{} has no node manager; run `forebay recover` to drain it",
                self.path.display()
            )
        })
    }

    /// Flushes `files` and waits. Adds what went wrong to `errors`.
    fn flush(&self, files: &[u32], progress: &mut Progress, errors: &mut Vec<String>) {
        let header = self.segment.header();
        let noted = |file: u32| self.segment.file(file).errors();
        // All tickets first, so that the manager works on all files.
        let mut wanted: Vec<_> = files
            .iter()
            .map(|&file| (file, noted(file), self.segment.request_sync(file, None, true)))
            .collect();
        let pending = |file: u32| self.segment.pending_bytes(file);
        progress.show(files.iter().map(|&file| pending(file)).sum());
        while !wanted.is_empty() {
            let seen = header.work_done.load(Ordering::Acquire);
            wanted.retain(|&(file, before, ticket)| {
                let done = self.segment.is_synced(file, ticket);
                if done && noted(file) != before {
                    errors.push(self.explain(file));
                }
                !done
            });
            progress.show(wanted.iter().map(|&(file, ..)| pending(file)).sum());
            if let (Some(error), false) = (self.abandoned(), wanted.is_empty()) {
                errors.push(error);
                return;
            }
            if !wanted.is_empty() {
                futex::wait(&header.work_done, seen, 50);
            }
        }
    }
}

/// Prints errors; the status of a command that met them, or of one that met none.
pub(crate) fn report(errors: &[String]) -> ExitCode {
    errors.iter().for_each(|error| eprintln!("forebay: {error}"));
    ExitCode::from(u8::from(!errors.is_empty()))
}

/// `forebay flush`.
pub fn flush(arguments: &FlushArguments) -> Result<ExitCode, String> {
    let mut errors = Vec::new();
    let looked = arguments.paths.iter().map(|path| Named::of(path));
    let (named, missing): (Vec<_>, Vec<_>) = looked.partition(Result::is_ok);
    let named: Vec<Named> = named.into_iter().flatten().collect();
    errors.extend(missing.into_iter().filter_map(Result::err));
    let mut progress = Progress::shown("flushing", arguments.progress);
    let (mut count, mut sum) = (0, 0);
    let pools = Pool::all()?;
    for pool in &pools {
        let files = pool.ahead(&named);
        count += files.len();
        sum += files.iter().map(|&file| pool.segment.pending_bytes(file)).sum::<u64>();
        pool.flush(&files, &mut progress, &mut errors);
    }
    progress.end();
    errors.extend(elsewhere::unknown(&named, &pools)?);
    errors.extend(named.iter().filter_map(|named| named.sync_store().err()));
    if errors.is_empty() {
        println!("flushed {count} files ({})", bytes(sum));
    }
    Ok(report(&errors))
}
