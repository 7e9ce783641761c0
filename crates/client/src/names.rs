//! The names that files get and lose. Identity decides which file is meant; by its name a manager finds
//! one of which it has no descriptor.

use crate::session::{Session, borrow};
use crate::waits::surely;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use forebay_pool::Identity;
use forebay_pool::layout::{FileRecord, file_flag};
use rustix::fd::AsRawFd;
use rustix::fs::{CWD, Mode, OFlags};

impl Session {
    /// Notes that the last name of a file is about to be removed.
    pub fn unlinked(&self, device: u64, inode: u64) {
        let note = |file: Option<u32>| {
            if let Some(file) = file {
                self.segment.file(file).set(file_flag::UNLINKED);
            }
        };
        let _ = surely(|| self.with_record(Identity { device, inode }, note));
        forebay_pool::crash::point("unlink.noted");
    }

    /// Notes that a file got the name `path`, which starts at `folder`; `old` is the name that it lost,
    /// if that started there, too. Returns whether the file is known, and its name lies in no managed
    /// directory: no later manager would find it there.
    pub fn named(&self, identity: Identity, folder: i32, path: &CStr, old: Option<&CStr>) -> bool {
        let note = |file: Option<u32>| {
            let Some(record) = file.map(|file| self.segment.file(file)) else { return true };
            // Most programs rename within one directory: that costs no system call.
            let names = old.and_then(|old| last_parts(old.to_bytes(), path.to_bytes()));
            let same = names.is_some_and(|(old, new)| record.rename_last(old, new));
            same && !record.has(file_flag::SCRATCH)
        };
        // It has happened.
        let noted = surely(|| self.with_record(identity, note)).unwrap_or(false);
        !noted && self.named_elsewhere(identity, folder, path)
    }

    #[cold]
    fn named_elsewhere(&self, identity: Identity, folder: i32, path: &CStr) -> bool {
        let mut buffer = MaybeUninit::uninit();
        let (path, store) = self.managed_path_at(folder, path, &mut buffer);
        let note = |file: Option<u32>| {
            if let Some(file) = file {
                self.note_name(self.segment.file(file), path, store);
            }
            file
        };
        let known = surely(|| self.with_record(identity, note)).unwrap_or(None);
        let owner = self.owner();
        let inside = self.segment.enter_table(owner);
        if let Some(file) = known
            && self.segment.file(file).has(file_flag::SCRATCH)
        {
            self.renamed(file, path);
        }
        self.segment.leave(owner, inside);
        known.is_some() && store.is_none()
    }

    /// Whether `path`, which starts at `folder`, lies in a managed directory.
    pub fn is_managed_path(&self, folder: i32, path: &CStr) -> bool {
        let mut buffer = MaybeUninit::uninit();
        self.managed_path_at(folder, path, &mut buffer).1.is_some()
    }

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

    /// Notes the canonical path of a file, and the store that it lies in, by which a manager finds it
    /// that has no descriptor of it. One outside of the stores is no place to look.
    pub(crate) fn note_name(&self, record: &FileRecord, path: &[u8], store: Option<usize>) {
        if let Some(store) = store {
            record.store.store(store as u32, Ordering::Release);
            record.set_path(path);
        }
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
