//! The descriptors through which the manager flushes: sent by clients, else opened by path.

use forebay_pool::layout::{FileRecord, file_flag};
use forebay_pool::{Identity, Marker, Segment, clock};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// Directory entries looked at when a file was renamed while no manager had a descriptor of it.
const SEARCH_MAX: usize = 2_000_000;

/// How often a file is searched for that moves while it is.
const SEARCHES: usize = 5;

/// Locks that files share by number.
const TURNS: usize = 64;

/// Magic numbers of the file systems that are written past the page cache: ext4 and its predecessors,
/// and XFS. Both keep the page cache right, and copy nothing that a program may change meanwhile.
const DIRECT_KINDS: [i64; 2] = [0xEF53, 0x5846_5342];

/// What is kept of a file.
struct Kept {
    /// Of the file's record.
    generation: u32,
    fd: Arc<OwnedFd>,
    /// One that goes past the page cache, once asked for; `Some(None)` where there is none to be had.
    direct: Option<Option<Arc<OwnedFd>>>,
    /// The program's description, if it is that.
    shared: Option<Marker>,
}

impl Kept {
    fn new(generation: u32, fd: Arc<OwnedFd>) -> Kept {
        Kept { generation, fd, direct: None, shared: None }
    }
}

/// A descriptor for each file that has been written, and for which generation of its record.
pub(crate) struct Descriptors {
    kept: Mutex<HashMap<u32, Kept>>,
    turns: [RwLock<()>; TURNS],
    /// The stores' directories, and the devices that their files are known to be on: on some file
    /// systems not that of the directory. Records are written by programs: whatever they say,
    /// files elsewhere are never touched.
    stores: Vec<PathBuf>,
    devices: Mutex<Vec<u64>>,
    /// Some of what is kept may be a program's own description.
    are_shared: AtomicBool,
}

impl Descriptors {
    /// For files of these stores.
    pub fn new<'a>(stores: impl Iterator<Item = &'a Path>) -> Descriptors {
        let stores: Vec<_> = stores.map(Path::to_owned).collect();
        let device = |folder: &PathBuf| std::fs::metadata(folder).ok().map(|found| found.dev());
        let devices = Mutex::new(stores.iter().filter_map(device).collect());
        let turns = std::array::from_fn(|_| RwLock::default());
        let are_shared = AtomicBool::default();
        Descriptors { kept: Mutex::default(), turns, stores, devices, are_shared }
    }

    /// Whether `fd` is of the regular file that `record` is about, and lies where stores are. It
    /// may have been moved out of their directories since it was opened.
    pub fn is_file_of(&self, record: &FileRecord, fd: impl AsFd) -> bool {
        let identity = record.identity();
        if !is_of(&fd, identity) {
            return false;
        }
        let mut devices = self.devices.lock().unwrap_or_else(|poison| poison.into_inner());
        if devices.contains(&identity.device) {
            return true;
        }
        let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let path = std::fs::read_link(link).unwrap_or_default();
        let inside = self.stores.iter().any(|store| path.starts_with(store));
        if inside {
            devices.push(identity.device);
        }
        inside
    }

    fn map(&self) -> MutexGuard<'_, HashMap<u32, Kept>> {
        self.kept.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Keeps a descriptor that a client sent, if it really is one of the file and can be written.
    pub fn offer(&self, segment: &Segment, file: u32, generation: u32, fd: OwnedFd) -> bool {
        let fits = file < segment.header().files && {
            let record = segment.file(file);
            // A file that was settled before the message came is not to be held open.
            record.generation.load(std::sync::atomic::Ordering::Acquire) == generation
                && record.has(file_flag::ANNOUNCED)
                && self.is_file_of(record, &fd)
                && rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| {
                    !matches!(flags & OFlags::RWMODE, OFlags::RDONLY)
                        && !flags.contains(OFlags::PATH)
                })
        };
        if fits {
            let (fd, shared) = own(fd);
            forebay_pool::crash::point("announce.received");
            let kept = Kept { shared, ..Kept::new(generation, Arc::new(fd)) };
            self.are_shared.fetch_or(shared.is_some(), Ordering::AcqRel);
            self.map().insert(file, kept);
            // It may have been settled since we looked, by somebody who found nothing to close.
            if !segment.file(file).has(file_flag::ANNOUNCED) {
                self.close(file);
            }
        }
        fits
    }

    /// A descriptor of `file` that can be written.
    ///
    /// # Errors
    /// The errno of opening it by its path; `STALE` when no file with its identity can be found.
    pub fn of(&self, segment: &Segment, file: u32, store: &Path) -> Result<Arc<OwnedFd>, Errno> {
        let record = segment.file(file);
        let generation = record.generation.load(std::sync::atomic::Ordering::Acquire);
        if let Some(kept) = self.map().get(&file)
            && kept.generation == generation
        {
            return Ok(Arc::clone(&kept.fd));
        }
        let fd = Arc::new(open_by_name(record, store, &self.stores)?);
        self.map().insert(file, Kept::new(generation, Arc::clone(&fd)));
        Ok(fd)
    }

    /// A descriptor of `file` like one that a program has of it: there is no other way to a file without
    /// a name. `None` if no program has it open, or the file may not be written.
    pub fn of_programs(&self, segment: &Segment, file: u32) -> Option<Arc<OwnedFd>> {
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let (identity, born) = (record.identity(), record.born_ns.load(Ordering::Acquire));
        let mut found = segment.holders(file).filter_map(|pid| {
            let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
            let of_file = |path: &PathBuf| {
                std::fs::metadata(path).is_ok_and(|found| {
                    found.dev() == identity.device && found.ino() == identity.inode
                })
            };
            let open = |path: PathBuf| {
                let fd = open_at_once(&path, OFlags::WRONLY).ok()?;
                (self.is_file_of(record, &fd) && same_birth(&fd, born)).then_some(fd)
            };
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(of_file).find_map(open)
        });
        let fd = Arc::new(found.next()?);
        self.map().insert(file, Kept::new(generation, Arc::clone(&fd)));
        Some(fd)
    }

    /// A descriptor that is at hand already.
    pub fn at_hand(&self, segment: &Segment, file: u32) -> Option<Arc<OwnedFd>> {
        let generation = segment.file(file).generation.load(std::sync::atomic::Ordering::Acquire);
        let map = self.map();
        map.get(&file).filter(|kept| kept.generation == generation).map(|kept| Arc::clone(&kept.fd))
    }

    /// A description of the same file that goes past the page cache, beside one that is at hand. It is
    /// closed with that one.
    pub fn direct(&self, segment: &Segment, file: u32) -> Option<Arc<OwnedFd>> {
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        let mut map = self.map();
        let kept = map.get_mut(&file).filter(|kept| kept.generation == generation)?;
        let Kept { fd, direct, .. } = kept;
        direct.get_or_insert_with(|| open_direct(fd).ok().map(Arc::new)).clone()
    }

    /// Notes that the one that [`direct`](Self::direct) gave does not do.
    pub fn refuse_direct(&self, file: u32) {
        if let Some(kept) = self.map().get_mut(&file) {
            kept.direct = Some(None);
        }
    }

    /// Who writes to a file past the page cache has this alone; who writes through it shares it. Where
    /// both touch one large folio at a time, the kernel cannot keep the cache right.
    pub fn turn(&self, file: u32) -> &RwLock<()> {
        &self.turns[file as usize % TURNS]
    }

    /// Ends the locks of descriptions that we share with programs, and that no process has any more: those that
    /// were killed, ended, or executed another program could not do so themselves.
    pub fn end_locks(&self, segment: &Segment) {
        if !self.are_shared.load(Ordering::Acquire) {
            return;
        }
        let (mut ended, mut others) = (Vec::new(), false);
        let mut map = self.map();
        for kept in map.values_mut() {
            match kept.shared {
                Some(marker) if segment.is_wanted(marker) => others = true,
                Some(_) => {
                    kept.shared = None;
                    ended.push(Arc::clone(&kept.fd));
                }
                None => {}
            }
        }
        self.are_shared.store(others, Ordering::Release);
        drop(map);
        ended.iter().for_each(|fd| unlock(fd));
    }

    /// Closes the descriptor of a file that is clean and closed.
    pub fn close(&self, file: u32) {
        self.map().remove(&file);
    }
}

/// What to keep of a descriptor that a client has sent. One of the program's own description, known by the marker in
/// its offset, is exchanged for another if the file's permissions allow: locks on it would not end.
fn own(fd: OwnedFd) -> (OwnedFd, Option<Marker>) {
    match rustix::fs::tell(&fd).ok().and_then(Marker::decode) {
        Some(marker) => match reopen(&fd, OFlags::WRONLY) {
            Ok(own) => (own, None),
            Err(_) => (fd, Some(marker)),
        },
        // It was made for us, without waiting.
        None => {
            let _ = rustix::fs::fcntl_setfl(&fd, OFlags::empty());
            (fd, None)
        }
    }
}

/// Ends all locks that belong to the description of `fd`.
fn unlock(fd: &OwnedFd) {
    // SAFETY: a struct of numbers.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_UNLCK as _;
    // SAFETY: an open descriptor, and a lock that is read.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &whole) };
    let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
}

/// A description of our own of the file behind `fd`.
pub(crate) fn reopen(fd: &OwnedFd, access: OFlags) -> Result<OwnedFd, Errno> {
    open_at_once(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd())), access)
}

/// A description of the file behind `fd` that goes past the page cache.
///
/// # Errors
/// `OPNOTSUPP` where that is not known to be safe, else the errno of opening it.
fn open_direct(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    if !DIRECT_KINDS.contains(&(rustix::fs::fstatfs(fd)?.f_type as i64)) {
        return Err(Errno::OPNOTSUPP);
    }
    let direct = reopen(fd, OFlags::WRONLY)?;
    rustix::fs::fcntl_setfl(&direct, OFlags::DIRECT)?;
    Ok(direct)
}

/// Opens a file without waiting for the other end of a FIFO, or for the holder of a lease.
fn open_at_once(path: &Path, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    Ok(fd)
}

fn is_of(fd: impl AsFd, identity: Identity) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && Identity { device: stat.st_dev, inode: stat.st_ino } == identity
    })
}

/// Opens a file by the path that it had last, or wherever it was moved to within the stores: first
/// `store`, which it was made in.
fn open_by_name(record: &FileRecord, store: &Path, stores: &[PathBuf]) -> Result<OwnedFd, Errno> {
    let identity = record.identity();
    let born = record.born_ns.load(Ordering::Acquire);
    // It may be renamed between the search and its opening; a program must not be told of that.
    for _ in 0..SEARCHES {
        let known = PathBuf::from(OsString::from_vec(record.path()));
        let opened = match stores.iter().any(|store| known.starts_with(store)) {
            true => open_born(&known, identity, born),
            false => Err(Errno::NOENT),
        };
        match opened {
            Err(Errno::NXIO | Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {}
            Err(Errno::ISDIR | Errno::LOOP) => {}
            // No path at all: the record was damaged.
            Err(Errno::INVAL | Errno::NAMETOOLONG) => {}
            result => return result,
        }
        let others = stores.iter().map(PathBuf::as_path).filter(|other| *other != store);
        let mut folders = std::iter::once(store).chain(others);
        let found = search_all(&mut folders, identity)?;
        record.set_path(found.as_os_str().as_bytes());
    }
    let known = PathBuf::from(OsString::from_vec(record.path()));
    open_born(&known, identity, born).map_err(|_| Errno::STALE)
}

/// Opens a file for writing that was born when the record says: its inode may belong to another file
/// by now.
fn open_born(path: &Path, identity: Identity, born: u64) -> Result<OwnedFd, Errno> {
    let fd = open_checked(path, OFlags::WRONLY, identity)?;
    if same_birth(&fd, born) { Ok(fd) } else { Err(Errno::STALE) }
}

/// Whether the file behind `fd` may have been born at `born`, in nanoseconds; 0 is not known.
pub(crate) fn same_birth(fd: impl AsFd, born: u64) -> bool {
    let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let known = found.ok().filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0);
    known.is_none_or(|found| {
        born == 0
            || born == clock::joined_ns(found.stx_btime.tv_sec, i64::from(found.stx_btime.tv_nsec))
    })
}

pub(crate) fn open_checked(
    path: &Path,
    access: OFlags,
    identity: Identity,
) -> Result<OwnedFd, Errno> {
    let fd = open_at_once(path, access | OFlags::NOFOLLOW)?;
    if is_of(&fd, identity) { Ok(fd) } else { Err(Errno::STALE) }
}

/// Looks for a file by identity below each of `folders`.
///
/// # Errors
/// `STALE` if it is in none of them; another one if that is not known.
pub(crate) fn search_all(
    folders: &mut dyn Iterator<Item = &Path>,
    identity: Identity,
) -> Result<PathBuf, Errno> {
    folders
        .map(|folder| search(folder, identity))
        .find(|found| *found != Err(Errno::STALE))
        .unwrap_or(Err(Errno::STALE))
}

/// Looks for a file by identity below `folder`, which it has been moved within. Folders of other users
/// that may not be read are passed over.
///
/// # Errors
/// `STALE` if it is not there. Another one if not everything could be looked at: it may be there.
fn search(folder: &Path, identity: Identity) -> Result<PathBuf, Errno> {
    search_most(folder, identity, SEARCH_MAX)
}

/// What an error of looking at something says of whether the file is there; `None`: it is not.
fn doubt(error: &std::io::Error) -> Option<Errno> {
    match Errno::from_io_error(error) {
        // It went while it was looked at.
        Some(Errno::NOENT | Errno::NOTDIR) => None,
        // Of the folder, not of the file that is searched for.
        Some(Errno::STALE) | None => Some(Errno::IO),
        errno => errno,
    }
}

/// Whether `folder` is this user's; if that cannot be known, whether its parent is.
fn is_own(folder: &Path) -> bool {
    let owner = |path: &Path| std::fs::symlink_metadata(path).map(|found| found.uid());
    let parent = || folder.parent().and_then(|parent| owner(parent).ok());
    owner(folder).ok().or_else(parent) == Some(rustix::process::getuid().as_raw())
}

fn search_most(folder: &Path, identity: Identity, most: usize) -> Result<PathBuf, Errno> {
    use std::os::unix::fs::DirEntryExt;
    let mut folders = vec![folder.to_owned()];
    let (mut seen, mut unknown) = (0, None);
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
                if !denied || is_own(&folder) {
                    unknown = unknown.or(doubt(&error));
                }
                continue;
            }
        };
        for entry in entries {
            let Ok(entry) = entry else {
                unknown = Some(Errno::IO);
                break;
            };
            seen += 1;
            if seen > most {
                return Err(Errno::NFILE);
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.ino() == identity.inode => match entry.metadata() {
                    Ok(found) if found.dev() == identity.device => return Ok(entry.path()),
                    Ok(_) => {}
                    Err(error) => unknown = unknown.or(doubt(&error)),
                },
                Ok(_) => {}
                Err(error) => unknown = unknown.or(doubt(&error)),
            }
        }
    }
    Err(unknown.unwrap_or(Errno::STALE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_search_that_did_not_see_everything_does_not_say_that_a_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        (0..9).for_each(|number| fs::write(folder.path().join(number.to_string()), "").unwrap());
        let found = fs::metadata(folder.path().join("5")).unwrap();
        let identity = Identity { device: found.dev(), inode: found.ino() };
        assert_eq!(search(folder.path(), identity), Ok(folder.path().join("5")));
        // Outside of the folder.
        let outside = tempfile::NamedTempFile::new().unwrap();
        let gone = outside.as_file().metadata().unwrap();
        let gone = Identity { device: gone.dev(), inode: gone.ino() };
        assert_eq!(search(folder.path(), gone), Err(Errno::STALE));
        assert_eq!(search_most(folder.path(), gone, 9), Err(Errno::STALE));
        assert_eq!(search_most(folder.path(), gone, 8), Err(Errno::NFILE));
    }

    #[test]
    fn only_what_is_known_to_be_gone_leaves_no_doubt() {
        let doubt_of = |errno: Errno| doubt(&errno.into());
        assert_eq!(doubt_of(Errno::NOENT), None);
        assert_eq!(doubt_of(Errno::ACCESS), Some(Errno::ACCESS));
        assert_eq!(doubt_of(Errno::STALE), Some(Errno::IO));
        let folder = tempfile::tempdir().unwrap();
        assert!(is_own(folder.path()) && is_own(&folder.path().join("none")));
        assert_eq!(is_own(Path::new("/proc/1")), rustix::process::getuid().is_root());
    }
}
