//! Too many files for the descriptors that the manager may have: which are flushed first, and which
//! are found again when they are flushed.

use super::{Descriptors, StoreHandle, is_shortage};
use crate::store::beneath::{Known, Roots};
use crate::usage::path_of_file;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{FileId, Segment};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// So many descriptors are closed at a time where none is to be had.
const GIVEN_UP: usize = 16;

impl Descriptors {
    /// Whether no more are to be kept of files that can be found later.
    pub fn are_full(&self) -> bool {
        self.map().of_file.len() >= self.share.most()
    }

    /// Whether no more fit at all.
    pub fn are_too_many(&self) -> bool {
        self.map().of_file.len() >= self.share.all()
    }

    fn those_put_off(&self) -> MutexGuard<'_, VecDeque<(FileId, u32)>> {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a file to be found when there is room, at the latest when it is flushed.
    pub fn put_off(&self, segment: &Segment, file: FileId) {
        let mut put_off = self.those_put_off();
        // A file is there once more when it has been flushed and written again.
        if put_off.len() < 2 * segment.header().files_ready() as usize {
            put_off.push_back((file, segment.file(file).generation.load(Ordering::Acquire)));
        }
    }

    /// The first of the files that were put off, and are still to be found.
    pub fn next_put_off(&self, segment: &Segment) -> Option<FileId> {
        let mut put_off = self.those_put_off();
        while let Some((file, generation)) = put_off.pop_front() {
            let record = segment.file(file);
            if record.generation.load(Ordering::Acquire) == generation
                && record.has(FileFlags::TO_FIND)
            {
                return Some(file);
            }
        }
        None
    }

    /// Whether files wait for room, or descriptors are kept that leave none to others.
    pub fn are_short(&self) -> bool {
        let kept = self.map().of_file.len();
        kept > self.share.most() || kept >= self.share.most() && !self.those_put_off().is_empty()
    }

    /// The files whose turn it is to be flushed, at most `count`, with the generations of their
    /// records.
    pub fn first_kept(&self, count: usize) -> Vec<(FileId, u32)> {
        let map = self.map();
        let mut kept: Vec<_> =
            map.of_file.iter().map(|(&file, kept)| (kept.turn, file, kept.generation)).collect();
        drop(map);
        if kept.len() > count {
            kept.select_nth_unstable(count);
            kept.truncate(count);
        }
        kept.sort_unstable();
        kept.into_iter().map(|(_, file, generation)| (file, generation)).collect()
    }

    /// Lets all others have their turn before this file.
    pub fn pass_over(&self, file: FileId) {
        let mut map = self.map();
        map.turn += 1;
        let turn = map.turn;
        if let Some(kept) = map.of_file.get_mut(&file) {
            kept.turn = turn;
        }
    }

    /// Closes the descriptor of a file that can be found without it: the file is then as one that
    /// the manager has been told of and has not looked for yet. Returns whether that was so.
    pub fn give_up(&self, segment: &Segment, file: FileId) -> bool {
        let record = segment.file(file);
        let generation = record.generation.load(Ordering::Acquire);
        let wanted = FileFlags::FINDABLE | FileFlags::OWNER_WRITES | FileFlags::REGISTERED;
        let can_be_found = || {
            let flags = record.flags.load(Ordering::Acquire);
            flags.contains(wanted) && !flags.contains(FileFlags::UNLINKED)
        };
        let kept = self.ask_kept(segment, file, |kept| {
            (kept.is_seen && kept.shared.is_none()).then(|| Arc::clone(&kept.fd))
        });
        let Some(fd) = kept.flatten() else { return false };
        if !can_be_found() || !self.lies_where_it_should(segment, record, &fd) {
            return false;
        }
        let mut map = self.map();
        let is_it = map
            .of_file
            .get(&file)
            .is_some_and(|kept| kept.generation == generation && Arc::ptr_eq(&kept.fd, &fd));
        if !is_it {
            return false;
        }
        // In this order, as a thread that registers it: one that takes its name away, or its
        // owner's permission, looks at the flag afterwards.
        record.set(FileFlags::TO_FIND);
        forebay_pool::crash::point("register.giving-up");
        if !can_be_found() || record.generation.load(Ordering::Acquire) != generation {
            record.clear(FileFlags::TO_FIND);
            return false;
        }
        map.of_file.remove(&file);
        drop(fd);
        record.clear(FileFlags::HELD);
        true
    }

    /// Whether the record's path leads to the file of `fd`.
    fn lies_where_it_should(
        &self,
        segment: &Segment,
        record: &FileRecord,
        fd: &StoreHandle,
    ) -> bool {
        let path = path_of_file(segment, record);
        let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        // That needs no descriptor, of which there may be none.
        let is_there = std::fs::read_link(link).is_ok_and(|real| real == path);
        let known = Known::of(record);
        is_there && self.stores.hold(&path)
            || self.stores.place(&path, &known, &mut Roots::default()).is_ok()
    }

    /// Where no descriptor is to be had: closes some of files that can be found without. Returns
    /// whether there were any.
    fn make_room(&self, segment: &Segment) -> bool {
        let kept = self.first_kept(usize::MAX).into_iter();
        kept.filter(|&(file, _)| self.give_up(segment, file)).take(GIVEN_UP).count() > 0
    }

    /// Opens something, and where no descriptor is to be had, tries again as long as some can be
    /// closed for it.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn with_room<R>(
        &self,
        segment: &Segment,
        mut open: impl FnMut() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        loop {
            match open() {
                Err(errno) if is_shortage(errno) && self.make_room(segment) => {}
                result => return result,
            }
        }
    }

    /// What to do about a descriptor that was sent, and lost for want of descriptors.
    pub fn lost(&self, segment: &Segment, file: FileId, generation: u32) {
        if !super::is_wanted(segment, file, generation) || self.has(segment, file) {
            return;
        }
        let record = segment.file(file);
        if record.has(FileFlags::FINDABLE) && record.has(FileFlags::OWNER_WRITES) {
            record.set(FileFlags::TO_FIND);
            self.put_off(segment, file);
        } else {
            // The next writer sends another.
            record.clear(FileFlags::REGISTERED);
        }
    }
}
