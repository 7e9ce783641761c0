//! The names that files get and lose. Identity decides which file is meant; by its name a manager
//! finds one of which it has no descriptor.

use crate::fd::borrow;
use crate::open::identity_of;
use crate::opening::{NameAt, PathAt};
use crate::session::Session;
use crate::waiting::surely;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use forebay_pool::files::last_part;
use forebay_pool::layout::{FileFlags, FileRecord, PATH_BYTES};
use forebay_pool::{FileId, Identity, crash};
use rustix::fd::{AsRawFd, RawFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

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

    /// Notes of all files that are known as `name`, and are not there, that they were removed: the
    /// manager looks whether it is true.
    #[cold]
    fn note_replaced(&self, name: &[u8]) {
        for file in self.segment.files().live() {
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

    /// Notes that a file got the name `path`, which starts at `folder`; `old` is the name that it
    /// lost, if that started there, too. Returns whether the file is known, and its name lies in no
    /// managed directory: no later manager would find it there.
    pub(crate) fn named(
        &self,
        identity: Identity,
        folder: i32,
        path: &CStr,
        old: Option<&CStr>,
    ) -> bool {
        let note = |file: Option<FileId>| {
            let Some(record) = file.map(|file| self.segment.file(file)) else { return true };
            // That it was unlinked stays: another process may have removed this name, too, by now.
            // A thread that opens it, or finds it, takes that back. Most programs rename within one
            // directory: that costs no system call.
            let names = old.and_then(|old| last_parts(old.to_bytes(), path.to_bytes()));
            let same = names.is_some_and(|(old, new)| self.segment.rename_last(record, old, new))
                || self.segment.has_path(record, path.to_bytes());
            same && !record.has(FileFlags::SCRATCH)
        };
        // It has happened.
        let noted = surely(|| self.with_record(identity, note)).unwrap_or(false);
        !noted && self.named_elsewhere(identity, folder, path)
    }

    #[cold]
    fn named_elsewhere(&self, identity: Identity, folder: i32, path: &CStr) -> bool {
        let mut buffer = MaybeUninit::uninit();
        let (path, store) = match self.in_known_folder(path) {
            Some(known) => known.path_and_store(),
            None => self.managed_path_at(folder, path, &mut buffer),
        };
        self.is_named(identity, path, store) && store.is_none()
    }

    /// Notes that `path`, canonical, in `store`, is a file's name. Returns whether the file is
    /// known.
    fn is_named(&self, identity: Identity, path: &[u8], store: Option<usize>) -> bool {
        let note = |file: Option<FileId>| {
            if let Some(file) = file {
                self.note_name(self.segment.file(file), path, store);
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
        // No directory at all goes with an absolute path only.
        let at = if folder == -1 { CWD } else { borrow(folder) };
        let opened = rustix::fs::openat(at, path, flags, Mode::empty());
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

/// What a rename moves.
struct Moved<'a> {
    /// A file that may be in the table.
    file: Option<Stat>,
    /// Where a directory lies that is in a managed one.
    folder: Option<Vec<u8>>,
    /// What the kernel says of it.
    stat: Option<Stat>,
    /// What it is called before, if that starts at the directory at which the new name does.
    old: Option<&'a CStr>,
    to: NameAt<'a>,
}

impl Session {
    /// To be asked before a rename.
    fn moved<'a>(&self, from: NameAt<'a>, to: NameAt<'a>) -> Moved<'a> {
        let stat = from.stat();
        let is_folder = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let mut buffer = MaybeUninit::uninit();
        let folder = (stat.is_some_and(is_folder))
            .then(|| self.managed_path_at(from.folder, from.path, &mut buffer))
            .and_then(|(path, store)| store.map(|_| path.to_vec()));
        let old = (from.folder == to.folder).then_some(from.path);
        let file = stat.filter(|stat| self.may_be_in_table(stat));
        Moved { file, folder, stat, old, to }
    }

    /// To be called after the rename.
    fn has_moved(&self, moved: Moved<'_>) {
        match (moved.folder, moved.stat) {
            (Some(old), _) => self.folder_has_moved(&old, moved.to),
            (None, Some(stat)) => self.has_come(&stat),
            (None, None) => {}
        }
        let file = moved.file.filter(|stat| self.is_in_table(stat));
        self.note_status(file);
        self.note_named(file, moved.old, moved.to);
    }

    /// To be called after a call has given a name to what `stat` describes, which is no folder that
    /// was managed before. The table may have a record of an older file with its inode number.
    fn has_come(&self, stat: &Stat) {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => self.symlink_changed(),
            _ => self.comes_from_outside(stat, None),
        }
    }

    /// To be called after a program has made a symbolic link, or given one another name.
    pub fn symlink_changed(&self) {
        self.segment.header().symlinks.fetch_add(1, Ordering::SeqCst);
    }

    /// What is known of a folder that has left the managed directories goes to the store, and
    /// turns direct: no later manager would look for it where it is. `old` is the folder's path
    /// before.
    fn folder_has_moved(&self, old: &[u8], to: NameAt<'_>) {
        let mut buffer = MaybeUninit::uninit();
        let (new, None) = self.managed_path_at(to.folder, to.path, &mut buffer) else { return };
        // Which files lie in it, only the store knows of those whose names are not known; it
        // happens rarely.
        self.sync_all(false);
        for file in self.segment.files().live() {
            let path = self.segment.path_of(self.segment.file(file));
            let Some(rest) = path.strip_prefix(old).filter(|rest| rest.starts_with(b"/")) else {
                continue;
            };
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(opened) = rustix::fs::open([new, rest].concat(), flags, Mode::empty()) {
                // An error stays with the file.
                let _ = self.opened_raw(opened.as_raw_fd());
                self.forget(opened.as_raw_fd());
            }
        }
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
        self.note_named(file, old, to);
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
        let doomed = at.stat().filter(|stat| self.may_be_in_table(stat));
        self.taking_away(at, doomed, names, call)?;
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
        if doomed.st_nlink == 1 {
            self.keep_findable(identity_of(&doomed), at);
        }
        call()?;
        self.unlinked(&doomed, names, at.path);
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
            self.note_new_name(to.path);
        }
        self.has_moved(source);
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
        self.note_new_name(to.path);
        if exchanges {
            // A process that replaces that name meanwhile has to know, too.
            self.note_new_name(from.path);
        }
        self.has_moved(source);
        self.has_moved(other);
        if exchanges {
            self.look_for_replaced(names, from.path);
        }
        self.look_for_replaced(names, to.path);
        Ok(())
    }
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
