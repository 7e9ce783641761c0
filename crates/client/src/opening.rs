//! The calls that open a file, or change one by its path, around the system calls that a front end
//! makes: which flags the kernel gets, what is truncated by us, what becomes of an error.

use crate::dir_cache;
use crate::fd::{borrow, is_no_follow_ours, note_no_follow, reopen};
use crate::open::{Before, InKnownFolder, OpenFlags, identity_of};
use crate::recording;
use crate::relative::Relative;
use crate::session::Session;
use crate::user_memory::UserPath;
use crate::waiting::surely;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use forebay_pool::clock::{joined_ns, realtime_coarse_ns};
use forebay_pool::encoded::may_be_marked;
use forebay_pool::layout::FileFlags;
use forebay_pool::spans::SpanKind;
use forebay_pool::{FileId, Identity};
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxFlags, statx};
use rustix::io::Errno;

/// A path as a call names it.
#[derive(Clone, Copy)]
pub struct PathAt<'a> {
    /// The directory at which a relative path starts: a descriptor, or `AT_FDCWD`.
    pub folder: RawFd,
    /// The path.
    pub path: UserPath<'a>,
}

impl<'a> PathAt<'a> {
    /// A path that starts at the current directory.
    pub fn here(path: UserPath<'a>) -> PathAt<'a> {
        PathAt { folder: CWD.as_raw_fd(), path }
    }

    /// The same once the path was read; `None` if it cannot be, and the call will fail.
    pub(crate) fn read(self) -> Option<NameAt<'a>> {
        Some(NameAt { folder: self.folder, path: self.path.get()? })
    }

    /// The directory, if it can be one.
    pub(crate) fn directory(&self) -> Option<BorrowedFd<'static>> {
        (self.folder >= 0 || self.folder == CWD.as_raw_fd()).then(|| borrow(self.folder))
    }

    fn open_to(&self, access: OpenFlags) -> Option<OwnedFd> {
        // A FIFO would make a plain open wait for a writer.
        let flags = access | OpenFlags::CLOEXEC | OpenFlags::NONBLOCK;
        rustix::fs::openat(self.directory()?, self.path.get()?, flags, Mode::empty()).ok()
    }

    /// A descriptor through which the file can be written, or else read, and which of them.
    fn open_to_clean(&self) -> Option<(OwnedFd, OpenFlags)> {
        let open = |access| self.open_to(access).map(|file| (file, access));
        open(OpenFlags::WRONLY).or_else(|| open(OpenFlags::RDONLY))
    }
}

/// A [`PathAt`] whose path was read.
#[derive(Clone, Copy)]
pub(crate) struct NameAt<'a> {
    pub folder: RawFd,
    pub path: &'a CStr,
}

impl NameAt<'_> {
    /// The directory at which it starts. No directory at all goes with an absolute path only.
    pub fn directory(&self) -> BorrowedFd<'static> {
        if self.folder == -1 { CWD } else { borrow(self.folder) }
    }

    /// A descriptor that says which file has this name, if any has.
    pub fn open_place(&self) -> Option<OwnedFd> {
        let folder = PathAt { folder: self.folder, path: self.path.into() }.directory()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(folder, self.path, flags, Mode::empty()).ok()
    }

    /// What the file, or the symbolic link, of this name is.
    pub fn stat(&self) -> Option<Stat> {
        let folder = PathAt { folder: self.folder, path: self.path.into() }.directory()?;
        rustix::fs::statat(folder, self.path, AtFlags::SYMLINK_NOFOLLOW).ok()
    }
}

/// Whether a mode that is set lets the owner of a file not write to it.
fn forbids_writing(mode: Option<u32>) -> bool {
    mode.is_some_and(|mode| mode & 0o200 == 0)
}

fn is_file(fd: RawFd) -> bool {
    rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| is_regular(&stat))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

impl Session {
    /// Opens a file for a front end that leaves the system calls to the session. It closes the
    /// descriptor with [`Session::close`].
    ///
    /// # Errors
    /// The kernel's; `NFILE` when all open-file descriptions are in use; the store's if the file
    /// cannot be truncated.
    pub fn open(
        &self,
        folder: BorrowedFd<'_>,
        path: &CStr,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<RawFd, Errno> {
        let at = PathAt { folder: folder.as_raw_fd(), path: UserPath::from(path) };
        let call =
            |flags| rustix::fs::openat(folder, path, flags, mode).map(IntoRawFd::into_raw_fd);
        self.open_with(at, flags, call)
    }

    /// The same of a path of the program's; `mode` as `open` takes it.
    ///
    /// # Errors
    /// As of [`Session::open`]; `FAULT` where the path is no memory of the program's.
    pub fn open_at(&self, at: PathAt<'_>, flags: OpenFlags, mode: u32) -> Result<RawFd, Errno> {
        let path = at.path.get().ok_or(Errno::FAULT)?;
        self.open(borrow(at.folder), path, flags, Mode::from_raw_mode(mode))
    }

    /// Opens the file at `at` through `call`, which lets the kernel open it with the flags given,
    /// and takes it under management.
    ///
    /// A file that is buffered already is not truncated by the kernel but by us, so that no other
    /// process sees its old blocks again.
    ///
    /// # Errors
    /// As of [`Session::open`].
    pub fn open_with(
        &self,
        at: PathAt<'_>,
        flags: OpenFlags,
        call: impl Fn(OpenFlags) -> Result<RawFd, Errno>,
    ) -> Result<RawFd, Errno> {
        if recording::is_on() {
            return self.open_noted(at, flags, &call);
        }
        self.opening(|| self.open_in(at, flags, call))
    }

    #[cold]
    #[inline(never)]
    fn open_noted(
        &self,
        at: PathAt<'_>,
        flags: OpenFlags,
        call: &dyn Fn(OpenFlags) -> Result<RawFd, Errno>,
    ) -> Result<RawFd, Errno> {
        let start_ns = recording::begin_ns();
        let opened = self.opening(|| self.open_in(at, flags, call));
        // What is not buffered is nothing to be shown, nor what has failed.
        if opened.is_ok_and(|fd| self.file(fd).is_some()) {
            self.note_span(SpanKind::Open, start_ns);
        }
        opened
    }

    #[inline]
    fn open_in(
        &self,
        at: PathAt<'_>,
        flags: OpenFlags,
        call: impl Fn(OpenFlags) -> Result<RawFd, Errno>,
    ) -> Result<RawFd, Errno> {
        let elsewhere = flags.intersects(OpenFlags::PATH | OpenFlags::DIRECTORY);
        let truncates = flags.contains(OpenFlags::TRUNC) && !flags.contains(OpenFlags::PATH);
        let writes = flags & OpenFlags::RWMODE != OpenFlags::RDONLY;
        // Where new files would be scratch, it has to be known which are new; of a file that is
        // truncated and not written, whether it is known, as the kernel may have to do it.
        let fast = !elsewhere && !self.makes_scratch() && (writes || !truncates);
        let is_absolute = fast && at.path.is_absolute();
        let path = if is_absolute { at.path.get() } else { None };
        if let Some(known) = path.and_then(|path| self.in_known_folder(path)) {
            let opened = self.open_known(known, flags, &call);
            // A symbolic link: it may lead out of the folder.
            if opened != Err(Errno::LOOP) || flags.contains(OpenFlags::NOFOLLOW) {
                return opened;
            }
        }
        let made = self.make(flags, &call);
        // Another node may have what is not known here.
        let is_known = || {
            let stat = self.stat_at(at, AtFlags::empty());
            let is_known = |stat: &Stat| self.is_in_table(stat) || self.may_be_encoded(stat);
            self.shares_files() || stat.as_ref().is_some_and(is_known)
        };
        // One that is opened to be written can be truncated afterwards: then it is seen whether it
        // is known, or was only made by this call.
        let ours = made.is_none() && truncates && (writes || is_known());
        let now_ns = if ours { realtime_coarse_ns() } else { 0 };
        let asked = if ours { flags - OpenFlags::TRUNC } else { flags };
        let is_relative = fast && !is_absolute;
        let is_itself = flags.contains(OpenFlags::NOFOLLOW)
            || flags.contains(OpenFlags::CREATE | OpenFlags::EXCL);
        // Of what may be made in a store the path is needed: a name that is no link tells it.
        let adds = is_relative
            && !is_itself
            && flags.contains(OpenFlags::CREATE)
            && dir_cache::was_in_store();
        let (fd, noted, is_ours) = match made {
            Some(fd) => (fd, flags | OpenFlags::EXCL, false),
            None if adds => match call(asked | OpenFlags::NOFOLLOW) {
                Err(Errno::LOOP) => (call(asked)?, flags, false),
                opened => (opened?, flags, true),
            },
            None => (call(asked)?, flags, false),
        };
        let relative = is_relative.then(|| Relative::new(at, is_itself || is_ours));
        let before = Before { known: None, path, relative: relative.as_ref(), now_ns };
        let opened = self.opened_as(fd, noted, before);
        // What is managed has a flag for it.
        note_no_follow(fd, is_ours && self.table.load(fd as usize) == 0);
        match opened {
            Ok(false) if ours => self.truncate_opened(fd),
            Ok(_) => Ok(fd),
            Err(errno) => self.fail(fd, errno),
        }
    }

    /// The same for a path in a folder of which is known whether it is managed, by a call that
    /// writes if it truncates: that is done when it is seen that there is something to truncate.
    /// No symbolic link is followed.
    #[inline]
    fn open_known(
        &self,
        known: InKnownFolder<'_>,
        flags: OpenFlags,
        call: impl Fn(OpenFlags) -> Result<RawFd, Errno>,
    ) -> Result<RawFd, Errno> {
        let ours = flags.contains(OpenFlags::TRUNC);
        let kernel = if ours { flags - OpenFlags::TRUNC } else { flags };
        let made = if ours { self.make(flags, &call) } else { None };
        let (fd, noted) = match made {
            Some(fd) => (fd, flags | OpenFlags::EXCL),
            None => (call(kernel | OpenFlags::NOFOLLOW)?, flags),
        };
        let opened = self.opened_as(fd, noted, Before::of(known));
        // What is managed has a flag for it.
        let unmanaged = self.table.load(fd as usize) == 0;
        note_no_follow(fd, unmanaged && !flags.contains(OpenFlags::NOFOLLOW));
        match opened {
            Ok(false) if ours => self.truncate_opened(fd),
            Ok(_) => Ok(fd),
            Err(errno) => self.fail(fd, errno),
        }
    }

    /// The flags that F_GETFL shall show of `fd`, which is not managed, where the kernel says
    /// `flags`.
    pub fn shown_flags(&self, fd: RawFd, flags: OpenFlags) -> OpenFlags {
        let added = flags.contains(OpenFlags::NOFOLLOW) && is_no_follow_ours(fd);
        if added { flags - OpenFlags::NOFOLLOW } else { flags }
    }

    /// Where it has to be known whether this call makes a file, makes it, if there is none: one
    /// that did not exist would be scratch, or need not be truncated. Of one that another node has
    /// just made, times do not tell.
    fn make(
        &self,
        flags: OpenFlags,
        call: impl Fn(OpenFlags) -> Result<RawFd, Errno>,
    ) -> Option<RawFd> {
        let asks = flags.contains(OpenFlags::CREATE)
            && !flags.intersects(OpenFlags::EXCL | OpenFlags::PATH);
        let truncates = || flags.contains(OpenFlags::TRUNC) && self.shares_files();
        let has_to = asks && (self.makes_scratch() || truncates());
        if has_to { call(flags | OpenFlags::EXCL).ok() } else { None }
    }

    /// Truncates a file that was just opened with O_TRUNC, of which the kernel was not told.
    fn truncate_opened(&self, fd: RawFd) -> Result<RawFd, Errno> {
        let cut = match self.file(fd) {
            Some(file) => file.empty(),
            None => match rustix::fs::ftruncate(borrow(fd), 0) {
                // One that may only read: the kernel asks for the permission to write all the same.
                Err(Errno::INVAL) if is_file(fd) => reopen(fd, OFlags::WRONLY)
                    .and_then(|writable| rustix::fs::ftruncate(writable, 0)),
                other => other,
            },
        };
        match cut {
            // What is no regular file is not truncated.
            Ok(()) | Err(Errno::INVAL) => Ok(fd),
            Err(errno) => self.fail(fd, errno),
        }
    }

    fn fail(&self, fd: RawFd, errno: Errno) -> Result<RawFd, Errno> {
        let _ = self.close(fd);
        Err(errno)
    }

    /// Closes a descriptor for a front end that leaves the system calls to the session.
    ///
    /// # Errors
    /// The errno that a flush of the file reported and this description has not yet learned of.
    pub fn close(&self, fd: RawFd) -> Result<(), Errno> {
        // SAFETY: the caller gives the descriptor up.
        let ((), error) = self.while_closing(fd, || unsafe { rustix::io::close(fd) });
        error.map_or(Ok(()), Err)
    }

    /// Takes `fd` over, which was opened with `flags` where it could not be seen; closes it if that
    /// is not possible.
    ///
    /// # Errors
    /// As of [`Session::opened`].
    pub fn take_over(&self, fd: RawFd, flags: OpenFlags) -> Result<RawFd, Errno> {
        match self.opened(fd, flags) {
            Ok(()) => Ok(fd),
            Err(errno) => self.fail(fd, errno),
        }
    }

    /// What the file at `at` is.
    pub(crate) fn stat_at(&self, at: PathAt<'_>, flags: AtFlags) -> Option<Stat> {
        rustix::fs::statat(at.directory()?, at.path.get()?, flags).ok()
    }

    /// Whether there is something at `at` that is no regular file.
    pub fn has_other_kind(&self, at: PathAt<'_>) -> bool {
        self.stat_at(at, AtFlags::empty()).is_some_and(|stat| !is_regular(&stat))
    }

    /// What the file at `at` is, if it is in the file table.
    pub fn stat_known(&self, at: PathAt<'_>, flags: AtFlags) -> Option<Stat> {
        self.stat_at(at, flags).filter(|stat| self.is_in_table(stat))
    }

    /// When the file of a call was born, nanoseconds; 0 if that is not known, or it is not `inode`
    /// any more.
    pub fn born_ns(&self, at: PathAt<'_>, flags: AtFlags, inode: u64) -> u64 {
        let path = at.path.get().unwrap_or_default();
        let empty = if path.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
        let wanted = StatxFlags::BTIME | StatxFlags::INO;
        let Ok(found) = statx(borrow(at.folder), path, flags | empty, wanted) else { return 0 };
        if found.stx_mask & wanted.bits() != wanted.bits() || found.stx_ino != inode {
            return 0;
        }
        joined_ns(found.stx_btime.tv_sec, found.stx_btime.tv_nsec.into())
    }

    /// What the file behind `fd` is, if it is in the file table.
    pub fn fstat_known(&self, fd: RawFd) -> Option<Stat> {
        let stat = rustix::fs::fstat(borrow((fd >= 0).then_some(fd)?)).ok()?;
        self.is_in_table(&stat).then_some(stat)
    }

    /// Device and inode number of the file behind `fd`, if it is in the file table.
    pub fn identity_known(&self, fd: RawFd) -> Option<(u64, u64)> {
        match self.file(fd) {
            Some(file) => {
                let identity = file.record.identity();
                Some((identity.device, identity.inode))
            }
            None => self.fstat_known(fd).map(|stat| (stat.st_dev, stat.st_ino)),
        }
    }

    /// Whether the file table may have the file, now or after an open that is under way.
    pub(crate) fn may_be_in_table(&self, stat: &Stat) -> bool {
        is_regular(stat) && self.is_store_device(stat.st_dev)
    }

    /// Whether the file may be one of a store that is encoded: it is looked at when it is opened.
    pub(crate) fn may_be_encoded(&self, stat: &Stat) -> bool {
        self.may_be_in_table(stat) && may_be_marked(stat)
    }

    /// Whether the file table has the file. What is no regular file may have got the inode number
    /// of one whose record is still there.
    pub fn is_in_table(&self, stat: &Stat) -> bool {
        is_regular(stat) && self.knows(stat.st_dev, stat.st_ino)
    }

    /// Sets the size of the file at `path`. `None` if that is the kernel's business.
    pub fn truncate_path(&self, path: UserPath<'_>, size: i64) -> Option<Result<(), Errno>> {
        let at = PathAt::here(path);
        let may_matter = |stat: &Stat| match self.shares_files() {
            true => self.may_be_in_table(stat),
            false => self.is_in_table(stat) || self.may_be_encoded(stat),
        };
        let known = self.stat_at(at, AtFlags::empty()).filter(may_matter).filter(|_| size >= 0)?;
        let path = path.get()?;
        // Closing a descriptor of a file ends the locks that the process has on it, so that none is
        // opened for a file that it has open.
        let may_write = rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
        if may_write && let Some(writer) = self.writer(known.st_dev, known.st_ino) {
            return Some(writer.truncate(size));
        }
        let flags = OpenFlags::WRONLY | OpenFlags::CLOEXEC;
        let truncate = || {
            let fd = self.open(CWD, path, flags, Mode::empty())?;
            let result = match self.file(fd) {
                Some(file) => file.truncate(size),
                None => rustix::fs::ftruncate(borrow(fd), size as u64),
            };
            let _ = self.close(fd);
            result
        };
        Some(truncate())
    }

    /// Notes that a call changed the status of the file that `stat` describes.
    pub(crate) fn note_status(&self, stat: Option<Stat>) {
        if let Some(stat) = stat {
            self.status_changed(stat.st_dev, stat.st_ino, stat.st_mode);
        }
    }

    /// Makes a call that changes owner or mode of the file at `at`; `mode` is what it sets, if it
    /// does.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn change_status(
        &self,
        at: PathAt<'_>,
        flags: AtFlags,
        mode: Option<u32>,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if forbids_writing(mode)
            && let Some(stat) = self.stat_known(at, flags)
        {
            self.keep_writable(identity_of(&stat), || at.open_to(OpenFlags::WRONLY));
        }
        call()?;
        let found = self.stat_at(at, flags);
        let mode = mode.unwrap_or(0);
        if mode & 0o111 != 0
            && let Some(found) = found.filter(|found| self.may_be_encoded(found))
            && let Some(file) = at.open_to(OpenFlags::RDONLY)
        {
            // The kernel executes what the store has. An error is one to who opens it, too.
            let _ = surely(|| self.restore_encoded(file.as_raw_fd(), &found, false));
        }
        let stat = found.filter(|found| self.is_in_table(found));
        self.note_status(stat);
        // Linkers make their output executable after they have closed it.
        if mode & 0o111 != 0
            && let Some(stat) = match flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
                true => self.stat_known(at, AtFlags::empty()),
                false => stat,
            }
            && !self.is_executable_now(&stat)
            && let Some((file, access)) = at.open_to_clean()
        {
            self.make_clean_as(file.as_raw_fd(), access);
        }
        Ok(())
    }

    /// Whether the store has all of a file, and no process of ours keeps it from being executed but
    /// those that the program knows of.
    fn is_executable_now(&self, stat: &Stat) -> bool {
        let behind =
            FileFlags::METADATA_DIRTY | FileFlags::DIRTY | FileFlags::LOGGED | FileFlags::SLOTTED;
        let identity = identity_of(stat);
        let is_clean = |file: Option<FileId>| {
            file.is_none_or(|file| {
                let record = self.segment.file(file);
                !record.flags.load(Ordering::Acquire).intersects(behind)
                    && !record.may_be_held()
                    && !record.has_intent()
            })
        };
        surely(|| self.with_record(identity, is_clean)).unwrap_or(false)
    }

    /// The same of the file behind `fd`.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn change_status_of(
        &self,
        fd: RawFd,
        mode: Option<u32>,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if forbids_writing(mode)
            && let Some((device, inode)) = self.identity_known(fd)
        {
            let open = || reopen(fd, OpenFlags::WRONLY | OpenFlags::NONBLOCK).ok();
            self.keep_writable(Identity { device, inode }, open);
        }
        call()?;
        let is_noted = self.file(fd).is_some_and(|file| file.status_changed(mode.unwrap_or(0)));
        if !is_noted {
            self.note_status(self.fstat_known(fd));
        }
        Ok(())
    }

    /// Makes a file that may be executed, or loaded as a library, what it is on the store: the
    /// kernel and the loader read it there, at a time we cannot see.
    pub(crate) fn make_clean(&self, fd: RawFd) {
        self.make_clean_as(fd, OpenFlags::RDONLY);
    }

    /// The same of a descriptor that was opened with `access`.
    fn make_clean_as(&self, fd: RawFd, access: OpenFlags) {
        let Ok(stat) = rustix::fs::fstat(borrow(fd)) else { return };
        if !self.knows(stat.st_dev, stat.st_ino) {
            return;
        }
        let managed = self.file(fd).is_some();
        if !managed && self.opened_surely(fd, access).is_err() {
            // There is no description to be had for it.
            self.sync_all(false);
        }
        if let Some(file) = self.file(fd) {
            // An error stays with the file; the program will not run, and the writer learns why.
            let _ = file.release_descriptor();
        }
        if !managed {
            self.forget(fd);
        }
    }

    /// Lets all processes use the file at `path` through the kernel for as long as this one may
    /// have it open where that cannot be seen: a child opens it before it can have a session.
    ///
    /// # Errors
    /// The errno of the flush; `NFILE` when all open-file descriptions are in use.
    pub fn hand_over(&self, path: UserPath<'_>) -> Result<(), Errno> {
        let at = PathAt::here(path);
        if self.stat_known(at, AtFlags::empty()).is_none() {
            return Ok(());
        }
        let flags = OpenFlags::RDONLY | OpenFlags::CLOEXEC;
        let Some(path) = path.get() else { return Ok(()) };
        let Ok(opened) = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) else {
            return Ok(());
        };
        self.opened_surely(opened.as_raw_fd(), OpenFlags::RDONLY)?;
        let Some(file) = self.file(opened.as_raw_fd()) else { return Ok(()) };
        file.hold_mapping();
        let turned = file.turn_direct();
        self.forget(file.fd);
        turned
    }

    /// Files are found again by their names. A scratch file that got another one may be kept for
    /// it; what leaves the managed directories turns direct, because no later manager would look
    /// for it there.
    pub(crate) fn note_named(
        &self,
        file: Option<Stat>,
        old: Option<&CStr>,
        at: NameAt<'_>,
        known: Option<(Vec<u8>, usize)>,
    ) {
        let Some(file) = file else { return };
        let identity = identity_of(&file);
        let opens = PathAt { folder: at.folder, path: at.path.into() };
        if self.named(identity, at, old, known)
            && let Some(file) = opens.open_to(OpenFlags::RDONLY)
        {
            // An error stays with the file.
            let _ = self.opened_raw(file.as_raw_fd());
            self.forget(file.as_raw_fd());
        }
    }
}
