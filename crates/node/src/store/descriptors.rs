//! The descriptors through which the manager flushes: sent by clients, else opened by path.

mod short;

use crate::store::beneath::{Known, Roots, Since, Stores, doubt, reopen};
use crate::store::share::Share;
use crate::usage::path_of_file;
use forebay_device::{BackingStore, Stat, StoreFile};
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{FileId, Identity, Marker, Owner, Segment};
use forebay_posix::store_file;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// How often a file is searched for that moves while it is.
const SEARCHES: usize = 5;

/// Locks that files share by number.
const TURNS: usize = 64;

/// Magic numbers of the file systems that are written past the page cache: ext4 and its
/// predecessors, and XFS. Both keep the page cache right, and copy nothing that a program may
/// change meanwhile.
const DIRECT_KINDS: [i64; 2] = [0xEF53, 0x5846_5342];

/// An open file of a store, for as long as this lives.
pub(crate) struct StoreHandle(OwnedFd);

impl StoreHandle {
    /// What its store knows it by.
    pub fn file(&self) -> StoreFile {
        store_file(&self.0)
    }
}

impl From<OwnedFd> for StoreHandle {
    fn from(fd: OwnedFd) -> StoreHandle {
        StoreHandle(fd)
    }
}

/// For names, handles and locks, which are the kernel's.
impl AsFd for StoreHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What is kept of a file.
struct Kept {
    /// Of the file's record.
    generation: u32,
    fd: Arc<StoreHandle>,
    /// A client has sent it to say which file it is: it is opened when it is to be written.
    to_open: bool,
    /// It is known to be of the file.
    is_seen: bool,
    /// One that goes past the page cache, once asked for; `Some(None)` where there is none to be
    /// had.
    direct: Option<Option<Arc<StoreHandle>>>,
    /// The program's description, if it is that.
    shared: Option<Marker>,
    /// Its turn to be flushed when too many are kept: those with the lowest numbers are the first.
    turn: u64,
}

impl Kept {
    fn new(generation: u32, fd: Arc<StoreHandle>) -> Kept {
        let (to_open, is_seen, direct, shared, turn) = (false, true, None, None, 0);
        Kept { generation, fd, to_open, is_seen, direct, shared, turn }
    }
}

/// What is kept.
#[derive(Default)]
struct Map {
    of_file: HashMap<FileId, Kept>,
    /// The turn that was given out last.
    turn: u64,
}

impl Map {
    fn insert(&mut self, file: FileId, kept: Kept) {
        self.turn += 1;
        self.of_file.insert(file, Kept { turn: self.turn, ..kept });
    }
}

/// Whether an error says that no more descriptors are to be had.
pub(crate) fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Whether another descriptor is to be had now.
///
/// # Errors
/// Why not.
fn has_spare() -> Result<(), Errno> {
    let opened = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.map(drop).or_else(|errno| if is_shortage(errno) { Err(errno) } else { Ok(()) })
}

/// Where /proc shows descriptors that process `pid` has of a file.
fn shown(pid: u32, identity: Identity) -> std::io::Result<impl Iterator<Item = PathBuf>> {
    let of_file = move |path: &PathBuf| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.dev() == identity.device && found.ino() == identity.inode)
    };
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(of_file))
}

/// Whether process `pid` may have a file open. It may where /proc does not tell.
pub(crate) fn may_have_open(pid: u32, identity: Identity) -> bool {
    match shown(pid, identity) {
        Ok(mut found) => found.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// A descriptor for each file that has been written, and for which generation of its record.
pub(crate) struct Descriptors {
    kept: Mutex<Map>,
    /// Files that are still to be found, as too many descriptors are kept; with the generations of
    /// their records.
    put_off: Mutex<VecDeque<(FileId, u32)>>,
    pub share: Share,
    turns: [RwLock<()>; TURNS],
    /// The stores' directories, and the devices that their files are known to be on: on some file
    /// systems not that of the directory. Records are written by programs: whatever they say,
    /// files elsewhere are never touched.
    stores: Stores,
    devices: Mutex<Vec<u64>>,
    /// Some of what is kept may be a program's own description.
    are_shared: AtomicBool,
}

impl Descriptors {
    /// For files of these stores.
    pub fn new<'a>(stores: impl Iterator<Item = &'a Path>) -> Descriptors {
        let stores = Stores::of(stores);
        let device = |folder: &Path| std::fs::metadata(folder).ok().map(|found| found.dev());
        let devices = Mutex::new(stores.iter().filter_map(device).collect());
        let turns = std::array::from_fn(|_| RwLock::default());
        let are_shared = AtomicBool::default();
        let (kept, put_off) = (Mutex::default(), Mutex::default());
        let share = Share::default();
        Descriptors { kept, put_off, share, turns, stores, devices, are_shared }
    }

    /// What the kernel says of `fd`, if it is of the regular file that is `known`, and lies where
    /// stores are: it may have been moved out of their directories since it was opened. A later
    /// file with the inode number of one that is gone is another: its sender may not know.
    pub fn same(&self, known: &Known, fd: impl AsFd) -> Option<Known> {
        let seen = Known::seen(&fd).ok().filter(|seen| known.is(seen, Since::Boot))?;
        let identity = Identity { device: seen.device, inode: seen.inode };
        self.is_of_stores(identity, fd).then_some(seen)
    }

    /// Whether `fd`, of a file of `identity`, lies where stores are.
    fn is_of_stores(&self, identity: Identity, fd: impl AsFd) -> bool {
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

    fn map(&self) -> MutexGuard<'_, Map> {
        self.kept.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Keeps a descriptor that a client sent, if it really is one of the file and can be written.
    pub fn offer(
        &self,
        segment: &Segment,
        file: FileId,
        generation: u32,
        fd: OwnedFd,
        owner: Owner,
    ) -> bool {
        let is_writable = rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| {
            !matches!(flags & OFlags::RWMODE, OFlags::RDONLY) && !flags.contains(OFlags::PATH)
        });
        if !is_writable || !is_wanted(segment, file, generation) {
            return false;
        }
        let Some(seen) = self.same(&Known::of(segment.file(file)), &fd) else { return false };
        let (fd, shared) = own(fd);
        note_handle(segment, file, generation, &seen, owner);
        let kept = Kept { shared, ..Kept::new(generation, Arc::new(fd.into())) };
        self.are_shared.fetch_or(shared.is_some(), Ordering::AcqRel);
        self.receive(segment, file, kept);
        true
    }

    /// Keeps a descriptor that a client sent to say which file is to be opened when it is flushed.
    /// One that has lost its last name will hardly be: nothing is asked about it before.
    pub fn offer_to_open(
        &self,
        segment: &Segment,
        file: FileId,
        generation: u32,
        fd: OwnedFd,
        owner: Owner,
    ) -> bool {
        if !is_wanted(segment, file, generation) {
            return false;
        }
        let record = segment.file(file);
        let is_seen = !record.has(FileFlags::UNLINKED);
        if is_seen {
            let Some(seen) = self.same(&Known::of(record), &fd) else { return false };
            note_handle(segment, file, generation, &seen, owner);
        }
        let kept = Kept { to_open: true, is_seen, ..Kept::new(generation, Arc::new(fd.into())) };
        self.receive(segment, file, kept);
        true
    }

    /// Finds the file of a record that no descriptor was sent for, and keeps one that says which it
    /// is: where its path says, else as a program has it open, else by its inode in its own
    /// directory. What is not found so is left to the flush, which looks everywhere.
    ///
    /// The thread that takes `TO_FIND` from the record has looked; a second one drops what it has
    /// found.
    ///
    /// # Errors
    /// That no descriptor is to be had: the file is still to be found.
    pub fn find(
        &self,
        segment: &Segment,
        file: FileId,
        roots: &mut Roots,
        owner: Owner,
    ) -> Result<(), Errno> {
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        if !record.has(FileFlags::TO_FIND) || !is_wanted(segment, file, generation) {
            return Ok(());
        }
        forebay_pool::crash::point("register.finding");
        let known = Known::of(record);
        let found = self.look_for(segment, file, &known, roots)?;
        if let Some((_, seen)) = &found {
            note_handle(segment, file, generation, seen, owner);
            forebay_pool::crash::point("register.found");
        }
        let mut map = self.map();
        // The record may be another file's by now.
        if record.generation.load(Ordering::Acquire) != generation
            || !record.clear(FileFlags::TO_FIND)
        {
            return Ok(());
        }
        let has_one = map.of_file.get(&file).is_some_and(|kept| kept.generation == generation);
        match found {
            // A better one was sent.
            _ if has_one => {}
            Some((place, _)) => {
                let kept = Kept::new(generation, Arc::new(place.into()));
                map.insert(file, Kept { to_open: true, ..kept });
            }
            // The next writer sends one.
            None => {
                record.clear(FileFlags::FINDABLE);
                record.clear(FileFlags::REGISTERED);
            }
        }
        drop(map);
        segment.files().touch(file);
        if !record.has(FileFlags::REGISTERED) {
            self.close(segment, file);
        }
        Ok(())
    }

    fn look_for(
        &self,
        segment: &Segment,
        file: FileId,
        known: &Known,
        roots: &mut Roots,
    ) -> Result<Option<(OwnedFd, Known)>, Errno> {
        let record = segment.file(file);
        let path = || path_of_file(segment, record);
        let mut last = PathBuf::new();
        // It may be renamed between a look at its path and at what lies there.
        for _ in 0..SEARCHES {
            let at = path();
            if at == last {
                break;
            }
            match self.stores.place(&at, known, roots) {
                Ok(found) => return Ok(Some(found)),
                Err(errno) if is_shortage(errno) => return Err(errno),
                Err(_) => last = at,
            }
        }
        if let Some(found) = self.places_of_programs(segment, file, known).next() {
            return Ok(Some(found));
        }
        // What has lost its last name is in no directory.
        let is_named = !record.has(FileFlags::UNLINKED);
        let found = is_named.then(|| self.stores.place_beside(&last, known).ok()).flatten();
        // Descriptors may have become short in between.
        match found {
            None => has_spare().map(|()| None),
            found => Ok(found),
        }
    }

    /// Descriptors that say which file it is, like those that programs have of it: at most one of
    /// each.
    fn places_of_programs<'a>(
        &'a self,
        segment: &'a Segment,
        file: FileId,
        known: &'a Known,
    ) -> impl Iterator<Item = (OwnedFd, Known)> + 'a {
        let identity = Identity { device: known.device, inode: known.inode };
        let open = move |path: PathBuf| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let there = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
            let seen = self.same(known, &there)?;
            Some((there, seen))
        };
        let of_process = move |pid| shown(pid, identity).ok()?.find_map(open);
        segment.holders(file).filter_map(of_process)
    }

    fn receive(&self, segment: &Segment, file: FileId, kept: Kept) {
        forebay_pool::crash::point("register.received");
        self.keep(segment, file, kept);
        // It may have been checkpointed since we looked, by a thread that found nothing to close.
        if !segment.file(file).has(FileFlags::REGISTERED) {
            self.close(segment, file);
        }
    }

    /// A descriptor of `file` that can be written.
    ///
    /// # Errors
    /// The errno of opening it by its path; `STALE` when no file with its identity can be found,
    /// and no program has it open; that no descriptor is to be had, and none can be given up.
    pub fn of(
        &self,
        segment: &Segment,
        file: FileId,
        store: &Path,
    ) -> Result<Arc<StoreHandle>, Errno> {
        self.with_room(segment, || self.try_of(segment, file, store))
    }

    fn try_of(
        &self,
        segment: &Segment,
        file: FileId,
        store: &Path,
    ) -> Result<Arc<StoreHandle>, Errno> {
        let record = segment.file(file);
        if let Some(fd) = self.at_hand(segment, file) {
            return Ok(fd);
        }
        // Not by name: it has lost its last one, and what has that name now is another file.
        if record.has(FileFlags::UNLINKED)
            && let Some(fd) = self.of_programs(segment, file)
        {
            return Ok(fd);
        }
        let generation = record.generation.load(std::sync::atomic::Ordering::Acquire);
        match open_by_name(segment, record, store, &self.stores) {
            Ok(fd) => {
                let fd = Arc::new(StoreHandle::from(fd));
                self.keep(segment, file, Kept::new(generation, Arc::clone(&fd)));
                Ok(fd)
            }
            Err(errno) if is_shortage(errno) => Err(errno),
            // Whatever became of its name, or of its store's.
            Err(errno) => self
                .of_programs(segment, file)
                // Which may only have lacked a descriptor to be opened with.
                .or_else(|| self.at_hand(segment, file))
                .ok_or(errno),
        }
    }

    /// A descriptor of `file` like one that a program has of it: there is no other way to a file
    /// without a name. `None` if no program has it open, or the file may not be written.
    fn of_programs(&self, segment: &Segment, file: FileId) -> Option<Arc<StoreHandle>> {
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let known = Known::of(record);
        let open = |(place, _): (OwnedFd, Known)| reopen(&place, OFlags::WRONLY).ok();
        let fd = self.places_of_programs(segment, file, &known).find_map(open)?;
        let fd = Arc::new(StoreHandle::from(fd));
        self.keep(segment, file, Kept::new(generation, Arc::clone(&fd)));
        Some(fd)
    }

    /// A descriptor that is at hand already, or at most has to be opened.
    pub fn at_hand(&self, segment: &Segment, file: FileId) -> Option<Arc<StoreHandle>> {
        let ask = |kept: &Kept| (Arc::clone(&kept.fd), kept.to_open, kept.is_seen);
        match self.ask_kept(segment, file, ask)? {
            (fd, false, _) => Some(fd),
            (place, true, is_seen) => self.open_kept(segment, file, &place, is_seen),
        }
    }

    /// Whether there is one.
    pub fn has(&self, segment: &Segment, file: FileId) -> bool {
        self.ask_kept(segment, file, |_| ()).is_some()
    }

    /// What the store says of a file of which a descriptor is at hand, without opening it.
    pub fn stat(&self, segment: &Segment, file: FileId, store: &dyn BackingStore) -> Option<Stat> {
        let fd = self.ask_kept(segment, file, |kept| Arc::clone(&kept.fd))?;
        let Identity { device, inode } = segment.file(file).identity();
        let found = store.stat(fd.file()).ok()?;
        (found.identity == forebay_device::Identity { store: device, id: inode }).then_some(found)
    }

    fn ask_kept<R>(
        &self,
        segment: &Segment,
        file: FileId,
        ask: impl FnOnce(&Kept) -> R,
    ) -> Option<R> {
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        self.map().of_file.get(&file).filter(|kept| kept.generation == generation).map(ask)
    }

    /// Opens the file of a descriptor that was sent to say which it is. `None` if it is another
    /// one, or may not be written any more: it is looked for by its name then.
    fn open_kept(
        &self,
        segment: &Segment,
        file: FileId,
        place: &Arc<StoreHandle>,
        is_seen: bool,
    ) -> Option<Arc<StoreHandle>> {
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        if !is_seen && self.same(&Known::of(record), &**place).is_none() {
            return None;
        }
        // Before it is: a process that is about to execute it sees one or the other.
        record.set(FileFlags::HELD);
        let opened = reopen(&place.0, OFlags::WRONLY);
        let mut map = self.map();
        let kept = map.of_file.get_mut(&file).filter(|kept| kept.generation == generation);
        match (kept, opened) {
            // By another thread, or sent once more.
            (Some(kept), _) if !kept.to_open => Some(Arc::clone(&kept.fd)),
            (Some(kept), Ok(fd)) => {
                kept.fd = Arc::new(fd.into());
                kept.to_open = false;
                Some(Arc::clone(&kept.fd))
            }
            _ => {
                if map.of_file.get(&file).is_none_or(|kept| kept.to_open) {
                    record.clear(FileFlags::HELD);
                }
                None
            }
        }
    }

    /// A description of the same file that goes past the page cache, beside one that is at hand. It
    /// is closed with that one.
    pub fn direct(&self, segment: &Segment, file: FileId) -> Option<Arc<StoreHandle>> {
        let generation = segment.file(file).generation.load(Ordering::Acquire);
        let mut map = self.map();
        let same = |kept: &&mut Kept| kept.generation == generation && !kept.to_open;
        let is_full = map.of_file.len() >= self.share.most();
        let Kept { fd, direct, .. } = map.of_file.get_mut(&file).filter(same)?;
        if direct.is_none() && is_full {
            return None;
        }
        direct.get_or_insert_with(|| open_direct(fd).ok().map(|fd| Arc::new(fd.into()))).clone()
    }

    /// Notes that the one that [`direct`](Self::direct) gave does not do.
    pub fn refuse_direct(&self, file: FileId) {
        if let Some(kept) = self.map().of_file.get_mut(&file) {
            kept.direct = Some(None);
        }
    }

    /// A thread that writes to a file past the page cache has this alone; one that writes through
    /// it shares it. Where both touch one large folio at a time, the kernel cannot keep the cache
    /// right.
    pub fn turn(&self, file: FileId) -> &RwLock<()> {
        &self.turns[file.index() % TURNS]
    }

    /// Ends the locks of descriptions that we share with programs, and that no process has any
    /// more: those that were killed, ended, or executed another program could not do so themselves.
    pub fn end_locks(&self, segment: &Segment) {
        if !self.are_shared.load(Ordering::Acquire) {
            return;
        }
        let (mut ended, mut others) = (Vec::new(), false);
        let mut map = self.map();
        for kept in map.of_file.values_mut() {
            match kept.shared {
                Some(marker) if segment.descriptions().is_wanted(marker) => others = true,
                Some(_) => {
                    kept.shared = None;
                    ended.push(Arc::clone(&kept.fd));
                }
                None => {}
            }
        }
        self.are_shared.store(others, Ordering::Release);
        drop(map);
        ended.iter().for_each(|fd| unlock(fd.as_fd()));
    }

    /// Whether any of them is of a description that a program has, too.
    pub fn are_shared(&self) -> bool {
        self.are_shared.load(Ordering::Acquire)
    }

    /// Closes the descriptor of a file that is clean and closed.
    pub fn close(&self, segment: &Segment, file: FileId) {
        let mut map = self.map();
        let kept = map.of_file.remove(&file);
        // Closed before a process can find that it is.
        drop(kept);
        segment.file(file).clear(FileFlags::HELD);
    }

    /// Closes all that are kept: no thread flushes any more.
    pub fn close_all(&self) {
        self.map().of_file.clear();
    }

    fn keep(&self, segment: &Segment, file: FileId, kept: Kept) {
        let mut map = self.map();
        if !kept.to_open {
            segment.file(file).set(FileFlags::HELD);
        }
        map.insert(file, kept);
        drop(map);
        // It may have been closed, and settled, meanwhile: the descriptor must not stay.
        segment.files().touch(file);
    }
}

/// What to keep of a descriptor that a client has sent. One of the program's own description, known
/// by the marker in its offset, is exchanged for another if the file's permissions allow: locks on
/// it would not end.
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
fn unlock(fd: BorrowedFd<'_>) {
    // SAFETY: a struct of numbers.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_UNLCK as _;
    // SAFETY: an open descriptor, and a lock that is read.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &whole) };
    let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
}

/// A description of the file behind `fd` that goes past the page cache.
///
/// # Errors
/// `OPNOTSUPP` where that is not known to be safe, else the errno of opening it.
fn open_direct(fd: &StoreHandle) -> Result<OwnedFd, Errno> {
    if !DIRECT_KINDS.contains(&(rustix::fs::fstatfs(fd)?.f_type as i64)) {
        return Err(Errno::OPNOTSUPP);
    }
    let direct = reopen(&fd.0, OFlags::WRONLY)?;
    rustix::fs::fcntl_setfl(&direct, OFlags::DIRECT)?;
    Ok(direct)
}

/// Whether a descriptor of a file is still to be kept: one that was checkpointed before the message
/// came is not to be held open.
fn is_wanted(segment: &Segment, file: FileId, generation: u32) -> bool {
    segment.header().has_file(file) && {
        let record = segment.file(file);
        record.generation.load(Ordering::Acquire) == generation && record.has(FileFlags::REGISTERED)
    }
}

/// Keeps the kernel's handle of a file in its record, as long as that is the file's.
fn note_handle(segment: &Segment, file: FileId, generation: u32, seen: &Known, owner: Owner) {
    let record = segment.file(file);
    if record.handle.load(Ordering::Relaxed) != 0 {
        return;
    }
    let _table = segment.enter_table(owner);
    segment.note_handle(file, owner, seen.handle, || {
        record.generation.load(Ordering::Acquire) == generation
            && record.identity() == Identity { device: seen.device, inode: seen.inode }
            && record.born_ns.load(Ordering::Acquire) == seen.born_ns
    });
}

/// Opens a file by the path that it had last, or wherever it was moved to within the stores: first
/// `store`, which it was made in.
fn open_by_name(
    segment: &Segment,
    record: &FileRecord,
    store: &Path,
    stores: &Stores,
) -> Result<OwnedFd, Errno> {
    let known = Known::of(record);
    let open = || {
        let path = path_of_file(segment, record);
        stores.open(&path, OFlags::WRONLY, &known, Since::Boot)
    };
    // It may be renamed between the search and its opening; a program must not be told of that.
    for _ in 0..SEARCHES {
        match open() {
            Err(Errno::NXIO | Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {}
            Err(Errno::ISDIR | Errno::LOOP | Errno::XDEV) => {}
            // No path at all: the record was damaged.
            Err(Errno::INVAL | Errno::NAMETOOLONG) => {}
            result => return result,
        }
        let found = stores.search(store, &known, Since::Boot)?;
        segment.set_path(record, found.as_os_str().as_bytes());
    }
    // It is there.
    open().map_err(|errno| doubt(errno).unwrap_or(Errno::IO))
}
