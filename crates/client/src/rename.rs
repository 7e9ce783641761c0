//! The names that files get and lose. Identity decides which file is meant; by its name a manager
//! finds one of which it has no descriptor.

use crate::fd::borrow;
use crate::open::identity_of;
use crate::open_file::OpenFile;
use crate::opening::{NameAt, PathAt};
use crate::session::Session;
use crate::waiting::surely;
use core::cell::Cell;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use forebay_pool::files::last_part;
use forebay_pool::layout::{FileFlags, FileRecord, PATH_BYTES};
use forebay_pool::segment::text;
use forebay_pool::{FileId, Identity, crash};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::ffi::CString;

/// Bytes of a directory's entries that are read at once.
const ENTRIES_BYTES: usize = 8192;

/// How often a file that is renamed all the time is looked for: where it is then is a hint only.
const LOOKS: usize = 20;

impl Session {
    /// How often names were changed, to be asked before one is: see [`Session::name_changed`].
    #[inline]
    pub(crate) fn name_changes(&self) -> u64 {
        self.segment.names().changes()
    }

    /// Notes that a call has changed the name `path`, before it is looked whether the file is
    /// known. Returns whether other calls have since [`Session::name_changes`] was `before`.
    pub(crate) fn name_changed(&self, before: u64, path: &CStr) -> bool {
        crash::point("name.changed");
        let have_others = self.segment.names().changed(before, path.to_bytes());
        crash::point("name.noted");
        have_others
    }

    /// To be called at the end of each call that has changed the name `path`, once the file is
    /// noted that has it now. If other processes have changed it, too, since
    /// [`Session::name_changes`] was `before`, the file that lost it may be another than was there
    /// before the call. The one of them that looks last finds what the kernel has replaced.
    pub(crate) fn look_for_replaced(&self, before: u64, path: &CStr) {
        // Which name the file has now was noted before.
        if self.segment.names().may_others_have_changed(before, path.to_bytes()) {
            self.note_replaced(last_part(path.to_bytes()));
        }
    }

    /// Notes of files that are known as `name`, and are not there, that they were removed: the
    /// manager looks whether it is true. Of those that are open, or that something may be left to
    /// be done for, as which they count when they have got a name. Of one that is closed and clean
    /// nothing can be lost, or come to another file: its blocks leave the tiers as they grow cold.
    #[cold]
    fn note_replaced(&self, name: &[u8]) {
        for file in self.segment.files_in_use() {
            let record = self.segment.file(file);
            if record.has(FileFlags::UNLINKED) || !self.segment.is_called(record, name) {
                continue;
            }
            let identity = record.identity();
            let mut path = [0; PATH_BYTES + 1];
            let Some(path) = self.segment.copy_path(record, &mut path) else { continue };
            let is_replaced = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => (found.st_dev, found.st_ino) != (identity.device, identity.inode),
                Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR),
            };
            if is_replaced {
                self.set_unlinked(identity);
            }
        }
    }

    /// Notes that a name of a file, which `stat` describes, is about to be removed, if it is the
    /// last one: a process that is killed after the call has no time to. The manager looks whether
    /// it is true.
    pub(crate) fn unlinking(&self, stat: &Stat) {
        if stat.st_nlink == 1 {
            self.note_unlinked(stat);
        }
        crash::point("unlink.noted");
    }

    /// Notes that the name `path` of a file, which `stat` described after [`Session::name_changes`]
    /// was `before`, was removed. Again: a process that has opened the file until then has found
    /// that it still had its name. And of several names all others may have been removed meanwhile.
    pub(crate) fn unlinked(&self, stat: &Stat, before: u64, path: &CStr) {
        if self.name_changed(before, path) || stat.st_nlink == 1 {
            self.note_unlinked(stat);
        }
    }

    fn note_unlinked(&self, stat: &Stat) {
        self.set_unlinked(identity_of(stat));
    }

    fn set_unlinked(&self, identity: Identity) {
        let note = |file: Option<FileId>| {
            if let Some(file) = file {
                self.segment.file(file).set(FileFlags::UNLINKED);
                self.segment.files().touch(file);
            }
        };
        if self.segment.files().may_have(identity) {
            let _ = surely(|| self.with_record(identity, note));
        }
    }

    /// Notes that a file got the name `at`; `old` is the name that it lost, if that started at the
    /// same directory. `known` is the canonical path, and the store that it lies in, if they are.
    /// Returns whether the file is known, and its name lies in no managed directory: no later
    /// manager would find it there.
    pub(crate) fn named(
        &self,
        identity: Identity,
        at: NameAt<'_>,
        old: Option<&CStr>,
        known: Option<(Vec<u8>, usize)>,
    ) -> bool {
        let path = at.path;
        let note = |file: Option<FileId>| {
            let Some(file) = file else { return true };
            let record = self.segment.file(file);
            // That it was unlinked stays: another process may have removed this name, too, by now.
            // A thread that opens it, or finds it, takes that back. Most programs rename within one
            // directory: that costs no system call.
            let names = old.and_then(|old| last_parts(old.to_bytes(), path.to_bytes()));
            let same = names.is_some_and(|(old, new)| self.segment.rename_last(record, old, new))
                || self.segment.has_path(record, path.to_bytes());
            // A process that takes the name away meanwhile looks for it: see `note_replaced`.
            self.segment.files().touch(file);
            same && !record.has(FileFlags::SCRATCH)
        };
        // It has happened.
        let noted = surely(|| self.with_record(identity, note)).unwrap_or(false);
        !noted && self.named_elsewhere(identity, at, known)
    }

    #[cold]
    fn named_elsewhere(
        &self,
        identity: Identity,
        at: NameAt<'_>,
        known: Option<(Vec<u8>, usize)>,
    ) -> bool {
        let mut buffer = MaybeUninit::uninit();
        let (path, store) = match (&known, self.in_known_folder(at.path)) {
            (Some((path, store)), _) => (&path[..], Some(*store)),
            (None, Some(known)) => known.path_and_store(),
            (None, None) => self.managed_path_at(at.folder, at.path, &mut buffer),
        };
        self.is_named(identity, path, store) && store.is_none()
    }

    /// Notes that `path`, canonical, in `store`, is a file's name. Returns whether the file is
    /// known.
    fn is_named(&self, identity: Identity, path: &[u8], store: Option<usize>) -> bool {
        let note = |file: Option<FileId>| {
            if let Some(file) = file {
                self.note_name(self.segment.file(file), path, store);
                self.segment.files().touch(file);
            }
            file
        };
        let known = surely(|| self.with_record(identity, note)).unwrap_or(None);
        let owner = self.owner();
        let _inside = self.segment.enter_table(owner);
        if let Some(file) = known
            && self.segment.file(file).has(FileFlags::SCRATCH)
        {
            self.renamed(file, path);
        }
        known.is_some()
    }

    /// Looks again which name the file behind `fd` has, and whether it has any: one was changed by
    /// a process that may not have found the record, which was not in the table yet.
    #[cold]
    pub(crate) fn look_for_name(&self, fd: RawFd) {
        let Some(file) = self.file(fd) else { return };
        let record = file.record;
        for _ in 0..LOOKS {
            let names = self.segment.names().changes();
            let Ok(stat) = rustix::fs::fstat(borrow(fd)) else { return };
            if stat.st_nlink == 0 {
                record.set(FileFlags::UNLINKED);
                return;
            }
            let mut buffer = MaybeUninit::uninit();
            let (path, store) = self.managed_path(fd, &mut buffer);
            crash::point("name.seen");
            self.is_named(record.identity(), path, store);
            if store.is_none() {
                // An error stays with the file.
                let _ = file.turn_direct();
            }
            if self.segment.names().changes() != names {
                continue;
            }
            if record.has(FileFlags::UNLINKED) {
                record.note_whether_named(borrow(fd));
            }
            return;
        }
    }

    /// The canonical path of `path`, which starts at `folder`, and the store that it lies in.
    fn managed_path_at<'a>(
        &self,
        folder: i32,
        path: &CStr,
        buffer: &'a mut MaybeUninit<[u8; 4096]>,
    ) -> (&'a [u8], Option<usize>) {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = NameAt { folder, path }.directory();
        let opened = rustix::fs::openat(folder, path, flags, Mode::empty());
        opened.ok().map(|fd| self.managed_path(fd.as_raw_fd(), buffer)).unwrap_or_default()
    }

    /// Notes the canonical path of a file, and the store that it lies in, by which a manager finds
    /// it that has no descriptor of it. One outside of the stores is no place to look.
    pub(crate) fn note_name(&self, record: &FileRecord, path: &[u8], store: Option<usize>) {
        if let Some(store) = store {
            self.segment.move_path(record, store as u32, path);
        }
    }
}

/// Where a rename takes what it moves.
enum Goal {
    /// Into this managed directory, whose canonical path it is, of this store.
    Managed(Vec<u8>, usize),
    /// Into a directory from which no later manager would bring it to the store.
    Outside,
}

/// What a rename moves.
struct Moved<'a> {
    /// A file that may be in the table.
    file: Option<Stat>,
    /// It is a directory that lies in a managed one.
    is_folder: bool,
    /// What the kernel says of it.
    stat: Option<Stat>,
    /// What it is called before, if that starts at the directory at which the new name does.
    old: Option<&'a CStr>,
    to: NameAt<'a>,
    /// Where it goes, if that had to be asked for.
    goal: Option<Goal>,
    /// See [`Session::name_changes`], before it was asked for.
    names: u64,
    /// It is a file that was handed over, and stays direct until it has moved.
    held: Option<HandedOver<'a>>,
}

/// A file that was brought to the store, and that all processes use through the kernel as long as
/// this lives.
struct HandedOver<'s> {
    session: &'s Session,
    opened: OwnedFd,
}

impl Drop for HandedOver<'_> {
    fn drop(&mut self) {
        self.session.forget(self.opened.as_raw_fd());
    }
}

impl Session {
    /// To be asked before a rename. What leaves the managed directories is handed over: had it not
    /// been by then, a process or a manager that is killed later would take with it where it is.
    fn moved<'a>(&'a self, from: NameAt<'a>, to: NameAt<'a>) -> Moved<'a> {
        let names = self.name_changes();
        let stat = from.stat();
        let is_folder = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let mut buffer = MaybeUninit::uninit();
        let folder = (stat.filter(is_folder))
            .map(|stat| (stat, self.managed_path_at(from.folder, from.path, &mut buffer)))
            .and_then(|(stat, (path, store))| Some((stat, path, store?)));
        let file = stat.filter(|stat| self.may_be_in_table(stat));
        let old = (from.folder == to.folder).then_some(from.path);
        let is_beside =
            old.is_some_and(|old| last_parts(old.to_bytes(), to.path.to_bytes()).is_some());
        let (mut goal, mut held) = (None, None);
        if let Some((stat, path, store)) = &folder {
            // One of the managed directories itself leaves them by another name.
            let is_whole = text(&self.segment.header().store[*store].path).to_bytes() == *path;
            goal = if is_beside && !is_whole { None } else { self.goal(stat, to) };
            if matches!(goal, Some(Goal::Outside)) {
                self.hand_over_folder(path.to_vec());
            }
        } else if let Some(stat) = &file
            && !is_beside
            && self.is_ahead(identity_of(stat), |_| true)
        {
            goal = self.goal(stat, to);
            if matches!(goal, Some(Goal::Outside)) {
                held = self.hand_over_file(identity_of(stat), from);
                self.keep_findable(identity_of(stat), from);
            }
        }
        crash::point("rename.handed-over");
        Moved { file, is_folder: folder.is_some(), stat, old, to, goal, names, held }
    }

    /// To be called after the rename, once the caller has noted `noted` changes of names.
    fn has_moved(&self, moved: Moved<'_>, noted: u64) {
        crash::point("rename.moved");
        // A folder on the way may have been renamed since it was asked for. A process that does so
        // later finds what has moved when it looks at all that is in that folder.
        let is_as_asked = self.name_changes().wrapping_sub(moved.names) <= noted;
        let is_outside = matches!(moved.goal, Some(Goal::Outside));
        match (moved.stat, moved.is_folder) {
            (Some(_), true) if is_outside || !is_as_asked => self.folder_has_moved(moved.to),
            (Some(stat), false) => self.has_come(&stat),
            _ => {}
        }
        let file = moved.file.filter(|stat| self.is_in_table(stat));
        self.note_status(file);
        let known = match moved.goal {
            Some(Goal::Managed(folder, store)) if is_as_asked => {
                let name = last_part(moved.to.path.to_bytes());
                let folder = folder.strip_suffix(b"/").unwrap_or(&folder);
                Some(([folder, b"/", name].concat(), store))
            }
            _ => None,
        };
        self.note_named(file, moved.old, moved.to, known);
        drop(moved.held);
    }

    /// To be called after a call has given a name to what `stat` describes, which is no folder that
    /// was managed before. The table may have a record of an older file with its inode number.
    fn has_come(&self, stat: &Stat) {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => self.way_changed(),
            _ => self.comes_from_outside(stat, None),
        }
    }

    /// To be called after a rename, before the new name is noted: a process that opens a file by
    /// what was remembered until now looks for its name again then.
    fn way_moved(&self, moved: &Moved<'_>) {
        if moved.stat.is_some_and(|stat| is_way(&stat)) {
            self.way_changed();
        }
    }

    /// To be called after a program has made or removed a symbolic link, or given one or a folder
    /// another name.
    pub fn way_changed(&self) {
        self.segment.header().ways.fetch_add(1, Ordering::SeqCst);
    }

    /// What came into a folder that has left the managed directories goes to the store, and turns
    /// direct, if it came after all of it did: no later manager would look for it where it is.
    fn folder_has_moved(&self, to: NameAt<'_>) {
        let mut buffer = MaybeUninit::uninit();
        if let (new, None) = self.managed_path_at(to.folder, to.path, &mut buffer) {
            self.hand_over_folder(new.to_vec());
        }
    }

    /// Where something would lie if it were renamed to `to`, `stat` being what it is. `None` if
    /// there is no such directory on its device, or none whose name tells.
    fn goal(&self, stat: &Stat, to: NameAt<'_>) -> Option<Goal> {
        if let Some(known) = self.in_known_folder(to.path)
            && let (path, Some(store)) = known.path_and_store()
        {
            let folder = &path[..path.len() - last_part(path).len() - 1];
            return Some(Goal::Managed(folder.to_vec(), store));
        }
        let (path, name) = (to.path.to_bytes(), last_part(to.path.to_bytes()));
        if matches!(name, b"" | b"." | b"..") {
            return None;
        }
        let cut = name.as_ptr() as usize - path.as_ptr() as usize;
        let parent = CString::new(if cut == 0 { &b"."[..] } else { &path[..cut] }).ok()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(to.directory(), &parent, flags, Mode::empty()).ok()?;
        let mut buffer = MaybeUninit::uninit();
        match self.managed_path(opened.as_raw_fd(), &mut buffer) {
            (folder, Some(store)) => Some(Goal::Managed(folder.to_vec(), store)),
            // Else the call will fail.
            (_, None) => {
                let parent = rustix::fs::fstat(&opened).ok()?;
                (parent.st_dev == stat.st_dev).then_some(Goal::Outside)
            }
        }
    }

    /// Brings all files below `folder` to the store that the table may have, and makes them direct.
    /// Which these are, only the folder says: names in records are those of the last look. What
    /// cannot be seen in it is at least brought to the store, as far as the manager can.
    fn hand_over_folder(&self, folder: Vec<u8>) {
        if self.segment.files().live().next().is_none() {
            return;
        }
        let mut is_whole = true;
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            is_whole &= self.hand_over_entries(&folder, &mut folders).is_ok();
        }
        if !is_whole {
            self.sync_all(false);
        }
    }

    /// The same of the files in `folder`; the folders in it are added to `folders`.
    fn hand_over_entries(&self, folder: &[u8], folders: &mut Vec<Vec<u8>>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(rustix::fs::CWD, folder, flags, Mode::empty())?;
        let device = rustix::fs::fstat(&opened)?.st_dev;
        let mut result = Ok(());
        let mut space = Vec::with_capacity(ENTRIES_BYTES);
        let mut entries = RawDir::new(&opened, space.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            let identity = Identity { device, inode: entry.ino() };
            match kind {
                FileType::Directory => folders.push([folder, b"/", name.to_bytes()].concat()),
                FileType::RegularFile if self.segment.files().may_have(identity) => {
                    let at = NameAt { folder: opened.as_raw_fd(), path: name };
                    match self.hand_over_at(identity, at) {
                        // Removed meanwhile.
                        Ok(_) | Err(Errno::NOENT) => {}
                        Err(errno) => result = Err(errno),
                    }
                }
                _ => {}
            }
        }
        result
    }

    /// Brings the file `at` to the store, and makes it direct as long as what this returns lives:
    /// nothing, if this process has it open, and locked.
    ///
    /// # Errors
    /// Why it cannot be opened. An error of the store stays with the file.
    fn hand_over_at(
        &self,
        identity: Identity,
        at: NameAt<'_>,
    ) -> Result<Option<HandedOver<'_>>, Errno> {
        let is_locked = |file: &OpenFile<'_>| {
            file.record.identity() == identity && file.record.has(FileFlags::FCNTL_LOCKED)
        };
        // Another descriptor would end the process's fcntl locks when it is closed.
        if let Some(file) = self.files().find(is_locked)
            && file.turn_direct() != Err(Errno::BADF)
        {
            return Ok(None);
        }
        let open = |access| {
            let flags = access | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(at.directory(), at.path, flags, Mode::empty())
        };
        let opened = match open(OFlags::RDONLY) {
            Err(Errno::ACCESS) => open(OFlags::WRONLY)?,
            other => other?,
        };
        let _ = self.opened_raw(opened.as_raw_fd());
        crash::point("rename.handed-over-one");
        Ok(Some(HandedOver { session: self, opened }))
    }

    /// The same of a file alone. One that cannot be opened goes to the store as far as the manager
    /// can bring it there.
    fn hand_over_file(&self, identity: Identity, at: NameAt<'_>) -> Option<HandedOver<'_>> {
        let handed = self.hand_over_at(identity, at);
        if handed.is_err() {
            self.sync_all(false);
        }
        handed.ok().flatten()
    }

    /// Whether the table has a file that is ahead of its store, or that a recovery would write to,
    /// and of which `and` is true.
    fn is_ahead(&self, identity: Identity, and: impl Fn(&FileRecord) -> bool) -> bool {
        let is_so = |file: Option<FileId>| {
            file.is_some_and(|file| {
                let record = self.segment.file(file);
                let behind = FileFlags::DIRTY | FileFlags::METADATA_DIRTY;
                let is_behind = record.flags.load(Ordering::Acquire).intersects(behind);
                (is_behind || record.is_tracked()) && and(record)
            })
        };
        self.segment.files().may_have(identity)
            && surely(|| self.with_record(identity, is_so)).unwrap_or(false)
    }

    /// Whether no later manager would find a file that is ahead of its store, and has several
    /// names, once it has lost the name `at`: it is known by that one.
    fn is_lost_without(&self, identity: Identity, at: NameAt<'_>) -> bool {
        let name = last_part(at.path.to_bytes());
        let known = Cell::new([0; PATH_BYTES + 1]);
        let is_called = |record: &FileRecord| {
            let mut path = [0; PATH_BYTES + 1];
            let _ = self.segment.copy_path(record, &mut path);
            known.set(path);
            // It has none where that is too long.
            path[0] == 0 || self.segment.is_called(record, name)
        };
        if !self.is_ahead(identity, is_called) {
            return false;
        }
        // In another directory the name may be the same. What is known may have been renamed since.
        let known = known.into_inner();
        let known = CStr::from_bytes_until_nul(&known).unwrap_or_default();
        let mut buffer = MaybeUninit::uninit();
        let (path, _) = self.managed_path_at(at.folder, at.path, &mut buffer);
        let stays = path != known.to_bytes()
            && rustix::fs::statat(CWD, known, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| identity_of(&stat) == identity);
        !stays
    }

    /// Notes a new name before the caller looks whether the file is in the table.
    fn note_new_name(&self, path: &CStr) {
        self.name_changed(self.name_changes(), path);
    }

    /// Makes a call that gives a file the name `to`, too; it has the name `from`.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn link(
        &self,
        from: PathAt<'_>,
        to: PathAt<'_>,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some((from, to)) = from.read().zip(to.read()) else { return call() };
        let names = self.name_changes();
        call()?;
        self.note_new_name(to.path);
        let stat = to.stat();
        if let Some(stat) = &stat {
            self.has_come(stat);
        }
        let file = stat.filter(|stat| self.is_in_table(stat));
        self.note_status(file);
        let old = (from.folder == to.folder).then_some(from.path);
        self.note_named(file, old, to, None);
        self.look_for_replaced(names, to.path);
        Ok(())
    }

    /// Makes a call that takes the name `at` away, and notes it if it was the file's last.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn unlink(
        &self,
        at: PathAt<'_>,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(at) = at.read() else { return call() };
        let names = self.name_changes();
        let stat = at.stat();
        let doomed = stat.filter(|stat| self.may_be_in_table(stat));
        self.taking_away(at, doomed, names, call)?;
        if stat.is_some_and(|stat| is_way(&stat)) {
            self.way_changed();
        }
        self.look_for_replaced(names, at.path);
        Ok(())
    }

    /// The same, of `doomed`, a file that may be in the table, if it is one; names had been changed
    /// `names` times before it was looked at. What may be left to do is
    /// [`Session::look_for_replaced`].
    fn taking_away(
        &self,
        at: NameAt<'_>,
        doomed: Option<Stat>,
        names: u64,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(doomed) = doomed else { return call() };
        self.unlinking(&doomed);
        let identity = identity_of(&doomed);
        let held = match doomed.st_nlink > 1 && self.is_lost_without(identity, at) {
            true => self.hand_over_file(identity, at),
            false => None,
        };
        self.keep_findable(identity, at);
        call()?;
        crash::point("unlink.done");
        drop(held);
        self.unlinked(&doomed, names, at.path);
        self.note_removed(&doomed);
        self.note_status(Some(doomed).filter(|stat| self.is_in_table(stat)));
        Ok(())
    }

    /// Makes a call that renames `from` to `to`, which takes the name away from what was there,
    /// unless both are names of one file.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn rename(
        &self,
        from: PathAt<'_>,
        to: PathAt<'_>,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some((from, to)) = from.read().zip(to.read()) else { return call() };
        let names = self.name_changes();
        let source = self.moved(from, to);
        let target = to.stat().filter(|stat| self.may_be_in_table(stat));
        let one = |(a, b): (Stat, Stat)| a.st_ino == b.st_ino && a.st_dev == b.st_dev;
        if target.is_some() && !source.file.zip(target).is_some_and(one) {
            self.taking_away(to, target, names, call)?;
        } else {
            call()?;
            self.way_moved(&source);
            self.note_new_name(to.path);
        }
        self.has_moved(source, 1);
        self.look_for_replaced(names, to.path);
        Ok(())
    }

    /// Makes a call that renames `from` to `to` where that is no file yet, or, if it `exchanges`,
    /// is one that gets the name `from`.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn rename_keeping(
        &self,
        from: PathAt<'_>,
        to: PathAt<'_>,
        exchanges: bool,
        call: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some((from, to)) = from.read().zip(to.read()) else { return call() };
        let names = self.name_changes();
        let (source, other) = (self.moved(from, to), self.moved(to, from));
        call()?;
        self.way_moved(&source);
        self.way_moved(&other);
        self.note_new_name(to.path);
        if exchanges {
            // A process that replaces that name meanwhile has to know, too.
            self.note_new_name(from.path);
        }
        let noted = 1 + u64::from(exchanges);
        self.has_moved(source, noted);
        self.has_moved(other, noted);
        if exchanges {
            self.look_for_replaced(names, from.path);
        }
        self.look_for_replaced(names, to.path);
        Ok(())
    }
}

/// Whether paths may lead through it.
fn is_way(stat: &Stat) -> bool {
    matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::Symlink)
}

/// The last parts of two paths, if nothing else of them differs.
fn last_parts<'a>(old: &'a [u8], new: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let split = |path: &'a [u8]| {
        path.split_at(path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1))
    };
    let ((old_folder, old), (new_folder, new)) = (split(old), split(new));
    let names_itself = |name: &[u8]| matches!(name, b"" | b"." | b"..");
    (old_folder == new_folder && !names_itself(old) && !names_itself(new)).then_some((old, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_one_folder_have_last_parts() {
        let of = |old: &'static str, new: &'static str| last_parts(old.as_bytes(), new.as_bytes());
        assert_eq!(of("a", "bc"), Some((&b"a"[..], &b"bc"[..])));
        assert_eq!(of("/x/a", "/x/b"), Some((&b"a"[..], &b"b"[..])));
        for (old, new) in [("a", "x/a"), ("x/a", "y/a"), ("x/a", "x/.."), ("x/", "x/b"), ("a", ".")]
        {
            assert_eq!(of(old, new), None, "{old} {new}");
        }
    }
}
