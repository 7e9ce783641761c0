//! What happens after the real open.

use crate::dir_cache::{self, Changes};
use crate::fd::borrow;
use crate::fd::descriptor_path;
use crate::open_file::OpenFile;
use crate::outside;
use crate::recording;
use crate::relative::Relative;
use crate::session::Session;
use crate::store;
use crate::waiting::surely;
use core::ffi::CStr;
use core::sync::atomic::{Ordering, fence};
use forebay_pool::layout::*;
use forebay_pool::lease::Lease;
use forebay_pool::segment::text;
use forebay_pool::{FileId, Identity, Marker, Owner, clock};
use rustix::fd::RawFd;
use rustix::fs::{FileType, OFlags, Stat, Statx, StatxFlags};
use rustix::io::Errno;

/// S_ISUID and S_ISGID.
pub(crate) const SET_ID_BITS: u32 = 0o6000;

/// The flags of an `open` call.
pub type OpenFlags = OFlags;

/// Whether `path` is `folder` or lies below it.
pub(crate) fn lies_under(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || folder == b"/")
}

/// Times of a new file that are further from that of its birth were set.
const SECOND_NS: u64 = 1_000_000_000;

/// What the kernel says of an open file.
pub(crate) struct OpenStat {
    pub stat: Stat,
    /// When the file was born; 0 where the file system does not know.
    born_ns: u64,
    /// By which mount it was opened; 0 where the kernel does not tell.
    mount: u64,
    /// Whether its times were taken to be that of its birth, and not asked for.
    times_are_assumed: bool,
}

impl OpenStat {
    /// One system call for everything.
    pub fn of(fd: RawFd) -> Option<OpenStat> {
        Self::with(fd, StatxFlags::BASIC_STATS)
    }

    /// The same of a file that was made just now, which is about to be written at the store. Where
    /// its times were asked for, the kernel gives it other ones at that write, which brings its
    /// inode to the journal of its file system once more (since Linux 6.13).
    fn of_created(fd: RawFd) -> Option<OpenStat> {
        let times = StatxFlags::MTIME | StatxFlags::CTIME;
        let mut seen = Self::with(fd, StatxFlags::BASIC_STATS - times)?;
        if seen.born_ns == 0 {
            return Self::of(fd);
        }
        let (born, born_nsec) = clock::parted_ns(seen.born_ns);
        let stat = &mut seen.stat;
        (stat.st_mtime, stat.st_mtime_nsec) = (born, born_nsec as _);
        (stat.st_ctime, stat.st_ctime_nsec) = (born, born_nsec as _);
        seen.times_are_assumed = true;
        Some(seen)
    }

    fn with(fd: RawFd, wanted: StatxFlags) -> Option<OpenStat> {
        use rustix::fs::{AtFlags, makedev, statx};
        let wanted = wanted | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let Ok(found) = statx(borrow(fd), c"", AtFlags::EMPTY_PATH, wanted) else {
            // Where statx is not allowed.
            let stat = rustix::fs::fstat(borrow(fd)).ok()?;
            return Some(OpenStat { stat, born_ns: 0, mount: 0, times_are_assumed: false });
        };
        let (born, mtime, ctime) = (found.stx_btime, found.stx_mtime, found.stx_ctime);
        let atime = found.stx_atime;
        // SAFETY: integers only.
        let mut stat: Stat = unsafe { core::mem::zeroed() };
        stat.st_dev = makedev(found.stx_dev_major, found.stx_dev_minor);
        stat.st_ino = found.stx_ino;
        stat.st_mode = found.stx_mode.into();
        stat.st_nlink = found.stx_nlink.into();
        stat.st_uid = found.stx_uid;
        stat.st_size = found.stx_size as _;
        stat.st_blocks = found.stx_blocks as _;
        (stat.st_atime, stat.st_atime_nsec) = (atime.tv_sec, atime.tv_nsec.into());
        (stat.st_mtime, stat.st_mtime_nsec) = (mtime.tv_sec, mtime.tv_nsec.into());
        (stat.st_ctime, stat.st_ctime_nsec) = (ctime.tv_sec, ctime.tv_nsec.into());
        let known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born_ns = clock::joined_ns(born.tv_sec, born.tv_nsec.into());
        let (born_ns, mount) = (if known { born_ns } else { 0 }, mount_of(&found));
        Some(OpenStat { stat, born_ns, mount, times_are_assumed: false })
    }
}

/// The mount that a file was reached by; 0 where the kernel does not tell.
fn mount_of(found: &Statx) -> u64 {
    let known = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if known { found.stx_mnt_id } else { 0 }
}

/// The inode of what lies at `path`, and the mount by which this process reaches it. `None` where
/// the kernel does not tell.
pub fn inode_and_mount(path: impl rustix::path::Arg) -> Option<(u64, u64)> {
    use rustix::fs::{AtFlags, CWD, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
    let mount = mount_of(&found);
    (mount != 0).then_some((found.stx_ino, mount))
}

/// The path of a file that is about to be opened, in a folder that was seen a moment ago, in a
/// store or elsewhere. Unless it is a symbolic link, it is the canonical one.
#[derive(Clone, Copy)]
pub(crate) struct InKnownFolder<'a> {
    path: &'a [u8],
    store: Option<usize>,
    /// Before the open, by the clock that stamps files.
    now_ns: u64,
    /// Before the open.
    changes: Changes,
}

impl<'a> InKnownFolder<'a> {
    /// As [`Session::managed_path`] gives them.
    pub fn path_and_store(self) -> (&'a [u8], Option<usize>) {
        (self.path, self.store)
    }

    fn is_in_store(&self) -> bool {
        self.store.is_some()
    }
}

/// What is known of a file before it is opened.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    /// Where it lies.
    pub known: Option<InKnownFolder<'a>>,
    /// The absolute path that the program gives.
    pub path: Option<&'a CStr>,
    /// The other one.
    pub relative: Option<&'a Relative<'a>>,
    /// The time, by the clock that stamps files; 0 where it does not matter who makes the file.
    pub now_ns: u64,
}

impl<'a> Before<'a> {
    /// Nothing.
    pub const NOTHING: Before<'static> =
        Before { known: None, path: None, relative: None, now_ns: 0 };

    /// What is known of a file in a folder that was just seen.
    pub fn of(known: InKnownFolder<'a>) -> Before<'a> {
        Before { known: Some(known), path: None, relative: None, now_ns: known.now_ns }
    }

    /// Whether the file was made while the call that opened it was under way, by whomever, is
    /// empty, and has the times of its birth: to empty it changes nothing.
    fn is_fresh(&self, seen: &OpenStat) -> bool {
        let is_of_birth = |ns: u64| ns.abs_diff(seen.born_ns) < SECOND_NS;
        let accessed_ns = clock::joined_ns(seen.stat.st_atime, seen.stat.st_atime_nsec as i64);
        self.now_ns != 0
            && seen.born_ns >= self.now_ns
            && seen.stat.st_size == 0
            && is_of_birth(accessed_ns)
            && is_of_birth(mtime_ns(&seen.stat))
    }
}

pub(crate) fn identity_of(stat: &Stat) -> Identity {
    Identity { device: stat.st_dev, inode: stat.st_ino }
}

pub(crate) fn mtime_ns(stat: &Stat) -> u64 {
    clock::joined_ns(stat.st_mtime, stat.st_mtime_nsec as i64)
}

pub(crate) fn ctime_ns(stat: &Stat) -> u64 {
    clock::joined_ns(stat.st_ctime, stat.st_ctime_nsec as i64)
}

impl Session {
    /// Whether a managed store is on device `device`.
    #[inline]
    pub fn is_store_device(&self, device: u64) -> bool {
        let header = self.segment.header();
        header.store[..header.stores as usize].iter().any(|store| store.device == device)
    }

    /// Whether the file of these `stat` fields is in the table: an open with O_TRUNC must then
    /// truncate through [`OpenFile::truncate`], because programs may have it buffered.
    #[inline]
    pub fn knows(&self, device: u64, inode: u64) -> bool {
        self.is_store_device(device) && self.segment.files().may_have(Identity { device, inode })
    }

    /// Calls `open`, which lets the kernel open a file, and takes that under management: the node
    /// manager knows as long that the process may have files open of which it has no description
    /// yet.
    ///
    /// No guard that is dropped: a thread that is cancelled, or leaves by a long jump, may run no
    /// destructor. The node manager asks the kernel then.
    #[inline]
    pub fn opening<R>(&self, open: impl FnOnce() -> R) -> R {
        let slot = self.slot();
        self.segment.client(slot).begin_open();
        let opened = open();
        // Not in a child that a signal handler has forked within: it has another slot.
        if self.slot() == slot {
            self.segment.client(slot).end_open();
        }
        opened
    }

    /// Takes `fd`, just opened with `flags`, under management if it is a regular file in a
    /// managed directory.
    ///
    /// # Errors
    /// `NFILE` when all open-file descriptions are in use and the file is, or may be, buffered;
    /// `INTR`. It is not managed then.
    pub fn opened(&self, fd: RawFd, flags: OpenFlags) -> Result<(), Errno> {
        self.opened_as(fd, flags, Before::NOTHING).map(|_| ())
    }

    /// [`Session::opened`] where the open cannot fail any more: signal handlers run, but end no
    /// wait.
    ///
    /// # Errors
    /// `NFILE`, as of [`Session::opened`].
    pub fn opened_surely(&self, fd: RawFd, flags: OpenFlags) -> Result<(), Errno> {
        surely(|| self.opened(fd, flags))
    }

    /// Whether `path` lies in a folder that this thread has just seen: asked before the open, and
    /// if so said afterwards to [`Session::opened_as`]. The open must then be refused if the path
    /// is a symbolic link.
    pub(crate) fn in_known_folder<'a>(&self, path: &'a CStr) -> Option<InKnownFolder<'a>> {
        let path = path.to_bytes();
        let (now_ns, changes) = (clock::realtime_coarse_ns(), self.changes_of_paths());
        let store = dir_cache::store_of(self.number(), path, changes, now_ns)?;
        Some(InKnownFolder { path, store, now_ns, changes })
    }

    fn changes_of_paths(&self) -> Changes {
        let ways = self.segment.header().ways.load(Ordering::SeqCst);
        Changes { names: self.segment.names().changes(), ways }
    }

    /// [`Session::opened`] of a file of which something is known. Returns whether there is nothing
    /// of it that O_TRUNC could take away: it was made just now, and is empty, or it is no regular
    /// file.
    ///
    /// # Errors
    /// As of [`Session::opened`].
    pub(crate) fn opened_as(
        &self,
        fd: RawFd,
        flags: OpenFlags,
        before: Before<'_>,
    ) -> Result<bool, Errno> {
        // What had this number before was closed where it could not be seen.
        self.forget(fd);
        if flags.contains(OFlags::PATH) {
            return Ok(false);
        }
        let names = before
            .known
            .map_or_else(|| self.segment.names().changes(), |known| known.changes.names);
        forebay_pool::crash::point("open.opened");
        let Some(mut seen) = self.stat_opened(fd, flags, before) else { return Ok(false) };
        if FileType::from_raw_mode(seen.stat.st_mode) != FileType::RegularFile {
            return Ok(true);
        }
        if self.is_store_device(seen.stat.st_dev) {
            let writes = flags & OFlags::RWMODE != OFlags::RDONLY;
            let empties = writes && flags.contains(OFlags::TRUNC);
            if self.restarting(|| self.restore_encoded(fd, &seen.stat, empties))? {
                seen = OpenStat::of(fd).ok_or(Errno::IO)?;
            }
            if !self.has_place_for(fd) {
                // The kernel may not have what is buffered.
                let is_known = self.is_in_table(&seen.stat);
                return if is_known { Err(Errno::NOMEM) } else { Ok(false) };
            }
            if self.is_kernel_only() {
                return self.opened_raw_as(fd, Some(flags)).map(|_| false);
            }
            return self.restarting(|| {
                let made = self.manage(fd, flags, &seen, before);
                if made.is_err() {
                    self.forget(fd);
                } else if self.segment.names().changes() != names {
                    // In the meantime: this process may have missed it, and that one the record.
                    self.look_for_name(fd);
                }
                made
            });
        }
        Ok(before.is_fresh(&seen))
    }

    /// What the kernel says of a file that was just opened.
    fn stat_opened(&self, fd: RawFd, flags: OpenFlags, before: Before<'_>) -> Option<OpenStat> {
        let is_exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let may_be_created =
            is_exclusive || flags.contains(OFlags::CREATE | OFlags::TRUNC) && before.now_ns != 0;
        if !may_be_created || !self.writes_some_through() {
            return OpenStat::of(fd);
        }
        let seen = OpenStat::of_created(fd)?;
        let is_regular = FileType::from_raw_mode(seen.stat.st_mode) == FileType::RegularFile;
        let is_managed = is_regular && self.is_store_device(seen.stat.st_dev);
        let is_created = is_exclusive || before.is_fresh(&seen);
        match is_created || !seen.times_are_assumed || !is_managed {
            true => Some(seen),
            false => OpenStat::of(fd),
        }
    }

    fn manage(
        &self,
        fd: RawFd,
        flags: OpenFlags,
        seen: &OpenStat,
        before: Before<'_>,
    ) -> Result<bool, Errno> {
        let (owner, stat) = (self.owner(), &seen.stat);
        let mut made = false;
        // Described under the table's lock: a record without a description may be removed.
        let mut open = || {
            self.find_or_insert(seen, fd, before, |file, new| {
                made |= new;
                self.segment.open_description(file, description_flags(flags), owner)
            })
        };
        let found = twice(&mut open);
        // Another node may have made it in the same tick of the clock, and have its bytes.
        let created = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let fresh = created || !self.shares_files() && before.is_fresh(seen);
        let Some(marker) = self.described(found)? else { return Ok(fresh) };
        if !self.mark(fd, marker) {
            self.segment.descriptions().release(self.slot(), marker.description);
            return Ok(false);
        }
        let hidden = flags & (OFlags::APPEND | OFlags::DIRECT);
        if !hidden.is_empty()
            && let Ok(kernel) = rustix::fs::fcntl_getfl(borrow(fd))
        {
            let _ = rustix::fs::fcntl_setfl(borrow(fd), kernel & !hidden);
        }
        forebay_pool::crash::point("open.marked");
        self.bind(fd, marker.description);
        self.counters().opens.fetch_add(1, Ordering::Relaxed);
        let Some(file) = self.file(fd) else { return Ok(false) };
        let is_new = file.part_from_namesake(seen, before)? || made;
        if stat.st_mode & SET_ID_BITS != 0 {
            file.record.set(FileFlags::SET_ID);
        }
        if stat.st_mode & 0o111 != 0 {
            file.record.set(FileFlags::EXECUTABLE);
        }
        if stat.st_nlink > 0 && file.record.has(FileFlags::UNLINKED) {
            // A new file that got the inode in the clock tick in which the old one was made; or the
            // name is being removed.
            forebay_pool::crash::point("open.named");
            self.look_for_name(fd);
        }
        if file.record.has(FileFlags::UNMAPPED) {
            file.buffer_again();
        }
        file.refresh(stat.st_size as u64, mtime_ns(stat))?;
        // Only the kernel can say that no process was faster.
        let is_empty = is_new && (stat.st_size == 0 || flags.contains(OFlags::TRUNC));
        let is_ruled = file.find_rule(created, is_empty);
        if is_empty && !is_ruled {
            file.begin_small(flags);
        }
        if seen.times_are_assumed && !file.record.is_written_through() {
            file.exclusively(|file| {
                let written = FileFlags::METADATA_DIRTY | FileFlags::DIRTY;
                let is_as_stored = !file.record.flags.load(Ordering::Acquire).intersects(written);
                if is_as_stored { file.resize_from_store() } else { Ok(()) }
            })?;
        }
        let writes = flags & OFlags::RWMODE != OFlags::RDONLY;
        if writes && stat.st_size == 0 && self.shares_files() {
            // There is nothing to be read.
            file.ask_to_write();
        }
        file.look_afresh()?;
        self.release_if_standard_error(fd, fd);
        if recording::is_on() {
            self.note_open(fd, stat, flags.contains(OFlags::TRUNC));
        }
        Ok(is_new && fresh)
    }

    /// Gives `fd` its marker. False, and that is counted, if its file can have no such offset.
    ///
    /// All processes have to agree on that: where it is not known of the file system, one that
    /// takes this marker has to take all.
    fn mark(&self, fd: RawFd, marker: Marker) -> bool {
        let set =
            |offset| rustix::fs::seek(borrow(fd), rustix::fs::SeekFrom::Start(offset)).is_ok();
        let file = self.segment.description(marker.description).file.load(Ordering::Acquire);
        let store = self.segment.file(file).store.load(Ordering::Relaxed) as usize;
        let Some(store) = self.segment.header().store.get(store) else { return false };
        let known = store.markers.load(Ordering::Relaxed);
        let takes = known == markers::TAKEN || set(Marker::HIGHEST);
        if takes && known != markers::TAKEN {
            store.markers.store(markers::TAKEN, Ordering::Relaxed);
        }
        if takes && set(marker.encode()) {
            return true;
        }
        // Not in place of what another file has shown: on ext4 it may be that of some alone.
        let (unknown, refused) = (markers::UNKNOWN, markers::REFUSED);
        let relaxed = Ordering::Relaxed;
        let _ = store.markers.compare_exchange(unknown, refused, relaxed, relaxed);
        store.unmarked.fetch_add(1, relaxed);
        false
    }

    /// The description that was taken of a file, if that has a record.
    ///
    /// # Errors
    /// `NFILE` if all are in use; that of the look for the record.
    fn described(
        &self,
        opened: Result<Option<Option<Marker>>, Errno>,
    ) -> Result<Option<Marker>, Errno> {
        match opened? {
            Some(None) => {
                self.segment.header().opens_refused.fetch_add(1, Ordering::Relaxed);
                Err(Errno::NFILE)
            }
            Some(marker) => Ok(marker),
            None => Ok(None),
        }
    }

    /// Calls `then` with the record of a file that is in the table, wherever it lies: it is found
    /// by its identity, and by its birth, which tells it from a removed file that had its inode
    /// number. `None` if there is none.
    ///
    /// # Errors
    /// As of [`Session::find_or_insert`].
    fn find<R>(
        &self,
        identity: Identity,
        seen: &OpenStat,
        owner: Owner,
        then: impl FnOnce(FileId) -> Option<R>,
    ) -> Result<Option<R>, Errno> {
        let inside = self.segment.enter_table(owner);
        forebay_pool::crash::point("open.seen");
        let found = self.segment.reopen_file(identity, owner, |file| {
            let record = self.segment.file(file);
            if record.born_ns.load(Ordering::Acquire) != seen.born_ns {
                return None;
            }
            if seen.stat.st_nlink == 0 {
                record.set(FileFlags::UNLINKED);
            }
            then(file)
        });
        forebay_pool::crash::point("open.found");
        drop(inside);
        Ok(found?.flatten())
    }

    /// Calls `then` with the record of the file behind `fd`, made if the file lies in a managed
    /// directory, while the table cannot change.
    ///
    /// # Errors
    /// `INTR`; `then` was not called.
    pub(crate) fn find_or_insert<R>(
        &self,
        seen: &OpenStat,
        fd: RawFd,
        before: Before<'_>,
        then: impl FnOnce(FileId, bool) -> R,
    ) -> Result<Option<R>, Errno> {
        let (identity, known) = (identity_of(&seen.stat), before.known);
        let owner = self.owner();
        let mut then = Some(then);
        let mut find = || match self.segment.files().may_have(identity) {
            true => self.find(identity, seen, owner, |file| Some(then.take()?(file, false))),
            false => Ok(None),
        };
        if !known.is_some_and(|known| known.is_in_store())
            && let found @ Some(_) = find()?
        {
            return Ok(found);
        }
        let mut buffer = core::mem::MaybeUninit::uninit();
        let changes = self.changes_of_paths();
        // A folder elsewhere may have been moved, or replaced, since.
        let still = |known: &InKnownFolder<'_>| known.is_in_store() || known.changes == changes;
        let (path, store) = match known.filter(still) {
            Some(known) => known.path_and_store(),
            None => self.path_of_opened(fd, seen, before, changes, &mut buffer),
        };
        if known.is_none() && before.path.is_some_and(|named| named.to_bytes() == path) {
            dir_cache::remember(self.number(), path, store, changes);
        }
        // One that was moved out of a managed directory has a record: by now, if it had not before.
        let Some(store) = store else {
            let found = find()?;
            if found.is_none() {
                outside::note(identity, self.is_other_mount(seen.mount));
            }
            return Ok(found);
        };
        let Some(then) = then else { return Ok(None) };
        if outside::may_be_open_as_another(&seen.stat) {
            self.comes_from_outside(&seen.stat, Some(fd));
        }
        let inside = self.segment.enter_table(owner);
        let header = self.segment.header();
        let begin = |record: &FileRecord| {
            start_record(record, &seen.stat, store as u32, self.user);
            forebay_pool::crash::point("open.recorded");
            record.born_ns.store(seen.born_ns, Ordering::Relaxed);
            self.segment.set_path(record, path);
            if self.manager_finds(record, seen.mount, store) {
                record.set(FileFlags::FINDABLE);
            }
            if header.store[store].bypass != 0 {
                record.set(FileFlags::DIRECT);
            } else if self.shares_files() {
                record.lease.begin(Lease::Nothing);
                record.consistency.store(self.consistency_of(path, store), Ordering::Relaxed);
            }
        };
        forebay_pool::crash::point("open.seen");
        let found = self.segment.open_file(identity, owner, begin, |file, new| {
            if seen.stat.st_nlink == 0 {
                self.segment.file(file).set(FileFlags::UNLINKED);
            }
            if new && self.is_retired() {
                let record = self.segment.file(file);
                record.set(FileFlags::DIRECT);
                // No manager is left to ask others for it.
                record.lease.begin(Lease::Direct);
            }
            then(file, new)
        });
        forebay_pool::crash::point("open.found");
        drop(inside);
        if found.as_ref().is_ok_and(Option::is_none) {
            self.segment.header().opens_refused.fetch_add(1, Ordering::Relaxed);
            self.segment.want_room();
        }
        found
    }

    /// Whether the manager makes all files direct. The caller's record is in the table by now:
    /// either this sees that, or the manager sees the record as it is.
    fn is_retired(&self) -> bool {
        fence(Ordering::SeqCst);
        self.segment.header().retired.load(Ordering::SeqCst) != retirement::NONE
    }

    /// [`Session::managed_path`] of a file that was just opened.
    fn path_of_opened<'b>(
        &self,
        fd: RawFd,
        seen: &OpenStat,
        before: Before<'_>,
        changes: Changes,
        buffer: &'b mut core::mem::MaybeUninit<[u8; 4096]>,
    ) -> (&'b [u8], Option<usize>) {
        let Some(name) = before.relative.and_then(|relative| relative.of_file(seen)) else {
            return self.managed_path(fd, buffer);
        };
        let as_of = (changes, clock::realtime_coarse_ns());
        if let Some((length, store)) = name.seen(self, as_of, buffer) {
            // SAFETY: so many bytes were written there.
            let path = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast(), length) };
            return (path, store);
        }
        let (path, store) = self.managed_path(fd, buffer);
        name.remember(self, path, store, as_of);
        (path, store)
    }

    /// Whether the node manager finds by its path the file of a new record that was reached by
    /// `mount`: it has to mean the same to both.
    fn manager_finds(&self, record: &FileRecord, mount: u64, store: usize) -> bool {
        let theirs = self.segment.header().store[store].mount.load(Ordering::Relaxed);
        mount != 0
            && mount == theirs
            && record.path_length.load(Ordering::Relaxed) != 0
            && self.shares_root()
    }

    /// Whether a file was reached by a mount by which the node manager reaches no store.
    fn is_other_mount(&self, mount: u64) -> bool {
        let header = self.segment.header();
        let mut stores = header.store[..header.stores as usize].iter();
        mount != 0 && !stores.any(|store| store.mount.load(Ordering::Relaxed) == mount)
    }

    /// The canonical path behind `fd`, and which store's directory it lies in.
    pub(crate) fn managed_path<'a>(
        &self,
        fd: RawFd,
        buffer: &'a mut core::mem::MaybeUninit<[u8; 4096]>,
    ) -> (&'a [u8], Option<usize>) {
        let path = link_of(fd, buffer).unwrap_or_default();
        let header = self.segment.header();
        let store = header.store[..header.stores as usize]
            .iter()
            .position(|store| lies_under(path, text(&store.path).to_bytes()));
        (path, store)
    }

    /// Notes that `fd` is used by code that cannot be intercepted (glibc's own, for instance): if
    /// the file would be managed, every process uses it through the kernel until this process ends
    /// or closes `fd`. Returns its description, if it has one.
    ///
    /// # Errors
    /// It must not be used: `NFILE` if it would have to have one, and all are in use; the errno of
    /// the flush if the kernel does not have what is buffered.
    pub fn opened_raw(&self, fd: RawFd) -> Result<Option<u32>, Errno> {
        self.opened_raw_as(fd, None)
    }

    /// The same of a descriptor that was `asked` for with these flags, if that is known.
    fn opened_raw_as(&self, fd: RawFd, asked: Option<OpenFlags>) -> Result<Option<u32>, Errno> {
        let names = self.segment.names().changes();
        let Some(mut seen) = OpenStat::of(fd) else { return Ok(None) };
        if FileType::from_raw_mode(seen.stat.st_mode) != FileType::RegularFile
            || !self.is_store_device(seen.stat.st_dev)
        {
            return Ok(None);
        }
        let Ok(access) = rustix::fs::fcntl_getfl(borrow(fd)) else { return Ok(None) };
        // Nothing can be read or written through such a one.
        if access.contains(OFlags::PATH) {
            return Ok(None);
        }
        if surely(|| self.restore_encoded(fd, &seen.stat, false))? {
            seen = OpenStat::of(fd).ok_or(Errno::IO)?;
        }
        // It may have been opened with a flag that the program had not set.
        let mut shown = self.shown_flags(fd, access);
        if let Some(asked) = asked {
            shown.set(OFlags::NOFOLLOW, asked.contains(OFlags::NOFOLLOW));
        }
        let flags = description_flags(shown) | DescriptionFlags::KERNEL_OFFSET;
        let open = |file, _| self.segment.open_description(file, flags, self.owner());
        let found = twice(|| surely(|| self.find_or_insert(&seen, fd, Before::NOTHING, open)));
        let Some(marker) = self.described(found)? else { return Ok(None) };
        self.bind(fd, marker.description);
        if let Some(file) = self.file(fd)
            && let Err(errno) = surely(|| file.part_from_namesake(&seen, Before::NOTHING))
                .and_then(|_| file.turn_direct())
        {
            self.forget(fd);
            return Err(errno);
        }
        if self.segment.names().changes() != names {
            self.look_for_name(fd);
        }
        Ok(Some(marker.description))
    }
}

/// Opens a description once more where all were in use: one may have been closed, or got memory, in
/// this moment.
fn twice(
    mut open: impl FnMut() -> Result<Option<Option<Marker>>, Errno>,
) -> Result<Option<Option<Marker>>, Errno> {
    let found = open();
    if found == Ok(Some(None)) { open() } else { found }
}

impl OpenFile<'_> {
    /// Looks whether a file that is not ahead of the store was changed there.
    pub(crate) fn look_again(&self) -> Result<(), Errno> {
        match store::stat(self.fd) {
            Ok(stat) => self.refresh(stat.size, stat.modified_ns as u64),
            Err(_) => Ok(()),
        }
    }

    /// Makes a known file agree with the store when nothing of it is buffered ahead of the store:
    /// another node may have changed it since it was last open here.
    fn refresh(&self, size: u64, modified_ns: u64) -> Result<(), Errno> {
        let (record, session) = (self.record, self.session);
        let differs = record.size.load(Ordering::Acquire) != size
            || record.store_mtime_ns.load(Ordering::Acquire) != modified_ns;
        // Of a file that several nodes write, leases say what is buffered rightly.
        let is_ours = || {
            let telling = FileFlags::METADATA_DIRTY | FileFlags::DIRTY | FileFlags::SHARED;
            record.flags.load(Ordering::Acquire).intersects(telling) || record.is_borrowed()
        };
        if !differs || is_ours() {
            return Ok(());
        }
        self.exclusively(|file| {
            if is_ours() {
                return Ok(());
            }
            // Looked at again: it may have been written and flushed since.
            let Ok(stat) = store::stat(self.fd) else { return Ok(()) };
            if session.segment.drop_clean_blocks(self.id, file.owner) {
                record.size.store(stat.size, Ordering::Release);
                record.store_size.store(stat.size, Ordering::Release);
                record.store_mtime_ns.store(stat.modified_ns as u64, Ordering::Release);
                record.clear(FileFlags::STORE_WRITTEN | FileFlags::CONFLICT_CHECKED);
            }
            Ok(())
        })
    }

    /// A record of a file that was deleted while no manager held it open may meet a new file with
    /// the same inode: the time of birth tells. Returns whether that was so.
    fn part_from_namesake(&self, seen: &OpenStat, before: Before<'_>) -> Result<bool, Errno> {
        let (record, session, stat) = (self.record, self.session, &seen.stat);
        let born = seen.born_ns;
        if record.born_ns.load(Ordering::Acquire) == born {
            return Ok(false);
        }
        // A truncate that was left undone was one of the old file.
        self.alone(|file| {
            if record.born_ns.load(Ordering::Acquire) == born {
                return Ok(false);
            }
            forebay_pool::crash::point("open.parting");
            session.segment.drop_all_blocks(self.id, file.owner, session);
            // What made the old one direct says nothing of the new one.
            record.clear(!FileFlags::NONE);
            record.small.store(0, Ordering::Release);
            if session.segment.clients().is_unrecorded(record.identity()) {
                // A process has the new one open from before it came into the store.
                record.set(FileFlags::DIRECT);
            }
            if session.shares_files() {
                record.lease.begin(Lease::Nothing);
            }
            // Of the new one: it may have been made without a name.
            record.note_whether_named(borrow(self.fd));
            record.job.store(0, Ordering::Release);
            record.quota_job.store(0, Ordering::Relaxed);
            // Else it would be looked for, and saved, under the name of the old one.
            let mut buffer = core::mem::MaybeUninit::uninit();
            let (path, store) = match before.known.filter(|known| known.is_in_store()) {
                Some(known) => known.path_and_store(),
                None => {
                    let changes = session.changes_of_paths();
                    session.path_of_opened(self.fd, seen, before, changes, &mut buffer)
                }
            };
            session.note_name(record, path, store);
            let is_retired = session.is_retired();
            let is_bypassed = |store: usize| session.segment.header().store[store].bypass != 0;
            if is_retired || store.is_none_or(is_bypassed) {
                record.set(FileFlags::DIRECT);
            }
            let consistency = store.map_or(0, |store| session.consistency_of(path, store));
            record.consistency.store(consistency, Ordering::Relaxed);
            start_as_stored(record, stat, session.user);
            record.handle.store(0, Ordering::Release);
            record.intent.store(0, Ordering::Release);
            record.range_end.store(0, Ordering::Release);
            session.segment.forget_lengtheners(record);
            // Errors of the old file are not for processes that open the new one; others may be as
            // far as this.
            session.with_record(record.identity(), |_| {
                session.segment.have_errors_seen(self.id);
            })?;
            forebay_pool::crash::point("open.parted");
            // Last: what is left of the old file by a process that dies here must not reach the new
            // one. Nor may what comes for the old one, whose birth is looked at in the table.
            session.with_record(record.identity(), |_| {
                record.born_ns.store(born, Ordering::Release);
                if session.shares_files() {
                    // What came for the old one until now. No manager that is retired asks others.
                    record.lease.begin(if is_retired { Lease::Direct } else { Lease::Nothing });
                }
            })?;
            Ok(true)
        })
    }
}

fn description_flags(flags: OpenFlags) -> DescriptionFlags {
    let access = match flags & OFlags::RWMODE {
        OFlags::WRONLY => DescriptionFlags::WRITE,
        OFlags::RDWR => DescriptionFlags::READ | DescriptionFlags::WRITE,
        _ => DescriptionFlags::READ,
    };
    let mut chosen = access | recording::flags();
    for (flag, ours) in [
        (OFlags::APPEND, DescriptionFlags::APPEND),
        (OFlags::DIRECT, DescriptionFlags::UNCACHED),
        (OFlags::DSYNC, DescriptionFlags::SYNC),
        (OFlags::NOFOLLOW, DescriptionFlags::NO_FOLLOW),
    ] {
        if flags.intersects(flag) {
            chosen |= ours;
        }
    }
    chosen
}

fn start_record(record: &FileRecord, stat: &Stat, store: u32, user: u32) {
    record.store.store(store, Ordering::Relaxed);
    start_as_stored(record, stat, user);
    start_without_rule(record);
}

/// Gives a record the size and the times that the store's file has; `user` is whose processes
/// these are.
fn start_as_stored(record: &FileRecord, stat: &Stat, user: u32) {
    if stat.st_uid == user && stat.st_mode & 0o200 != 0 {
        record.set(FileFlags::OWNER_WRITES);
    }
    for size in [&record.size, &record.store_size] {
        size.store(stat.st_size as u64, Ordering::Release);
    }
    for modified in [&record.mtime_ns, &record.store_mtime_ns] {
        modified.store(mtime_ns(stat), Ordering::Release);
    }
    for changed in [&record.changed_ns, &record.store_changed_ns] {
        changed.store(ctime_ns(stat), Ordering::Release);
    }
}

/// readlink of /proc/self/fd/N without allocating.
pub(crate) fn link_of(fd: RawFd, buffer: &mut core::mem::MaybeUninit<[u8; 4096]>) -> Option<&[u8]> {
    let path = &mut [0; 32];
    let path = descriptor_path(fd, path);
    // SAFETY: an array that is not initialized is one of such bytes.
    let space = unsafe { &mut *buffer.as_mut_ptr().cast::<[core::mem::MaybeUninit<u8>; 4096]>() };
    let (link, _) = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut space[..]).ok()?;
    let link: &[u8] = link;
    // A file without a name any more is still the file it was.
    Some(link.strip_suffix(b" (deleted)").unwrap_or(link))
}

/// A record that no rule has been looked up for.
fn start_without_rule(record: &FileRecord) {
    record.rule.store(0, Ordering::Relaxed);
    record.mode.store(0, Ordering::Relaxed);
    record.trigger.store(0, Ordering::Relaxed);
    record.rule_review.store(u64::MAX, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_holds_what_is_below_it_and_not_its_namesakes() {
        assert!(lies_under(b"/scratch/me/a", b"/scratch/me"));
        assert!(lies_under(b"/scratch/me", b"/scratch/me"));
        assert!(lies_under(b"/a", b"/"));
        assert!(!lies_under(b"/scratch/mean/a", b"/scratch/me"));
        assert!(!lies_under(b"/scratch", b"/scratch/me"));
    }

    #[test]
    fn access_modes_are_told_apart() {
        use forebay_pool::layout::DescriptionFlags as Flags;
        assert_eq!(description_flags(OFlags::RDONLY), Flags::READ);
        assert_eq!(
            description_flags(OFlags::WRONLY | OFlags::APPEND),
            Flags::WRITE | Flags::APPEND
        );
        assert_eq!(
            description_flags(OFlags::RDWR | OFlags::SYNC),
            Flags::READ | Flags::WRITE | Flags::SYNC
        );
    }
}
