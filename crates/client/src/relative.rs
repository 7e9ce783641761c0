//! Files that a program names from a directory on, its current one or one that it has open: their
//! canonical path without a question at /proc, which costs more than the open, where the same
//! thread has seen their folder from the same directory a moment ago. See `dir_cache.rs`.
//!
//! Which directory that is, is asked after the open. Where another thread may have changed the
//! current one in between, the name is looked at again: one that changes it to and fro within these
//! microseconds, while a third directory has the same names, is not noticed.

use crate::dir_cache::{self, Base, Changes};
use crate::fd::borrow;
use crate::open::{OpenStat, identity_of};
use crate::opening::{NameAt, PathAt};
use crate::session::Session;
use crate::threads;
use core::cell::OnceCell;
use core::mem::MaybeUninit;
use rustix::fs::AtFlags;

/// A file as a program has just named it from a directory on.
pub(crate) struct Relative<'a> {
    at: PathAt<'a>,
    /// The name was no symbolic link.
    is_itself: bool,
    /// What was found out of it, once.
    found: OnceCell<Option<FromBase<'a>>>,
}

/// The name of a file that was opened, and the directory that it starts at.
pub(crate) struct FromBase<'a> {
    name: NameAt<'a>,
    base: Base,
}

impl<'a> Relative<'a> {
    /// The file that was opened as `at`; `is_itself` if that is known to be no symbolic link.
    pub fn new(at: PathAt<'a>, is_itself: bool) -> Relative<'a> {
        Relative { at, is_itself, found: OnceCell::new() }
    }

    /// The name of what `seen` says, if it is that of the file and no symbolic link. Another thread
    /// may have changed the current directory since.
    pub fn of_file(&self, seen: &OpenStat) -> Option<&FromBase<'a>> {
        self.found.get_or_init(|| self.find(seen)).as_ref()
    }

    fn find(&self, seen: &OpenStat) -> Option<FromBase<'a>> {
        let name = self.at.read()?;
        let base = Base::of(name.folder)?;
        let is_file = || {
            let folder = borrow(name.folder);
            rustix::fs::statat(folder, name.path, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| identity_of(&stat) == identity_of(&seen.stat))
        };
        let is_sure = self.is_itself && !threads::may_be_several();
        (is_sure || is_file()).then_some(FromBase { name, base })
    }
}

impl FromBase<'_> {
    /// The canonical path where its folder was seen: its length in `buffer`, and the store that it
    /// lies in.
    pub fn seen(
        &self,
        session: &Session,
        as_of: (Changes, u64),
        buffer: &mut MaybeUninit<[u8; 4096]>,
    ) -> Option<(usize, Option<usize>)> {
        dir_cache::path_from(session.number(), self.place(), as_of, buffer)
    }

    /// Remembers the folder, where `path` is the canonical one.
    pub fn remember(
        &self,
        session: &Session,
        path: &[u8],
        store: Option<usize>,
        as_of: (Changes, u64),
    ) {
        dir_cache::remember_from(session.number(), self.place(), path, store, as_of);
    }

    fn place(&self) -> (Base, &[u8]) {
        (self.base, self.name.path.to_bytes())
    }
}
