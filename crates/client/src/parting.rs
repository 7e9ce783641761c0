//! Closing and replacing descriptors while other threads may use them.
//!
//! A thread looks a descriptor up, enters the file, or the table beside it, and then looks whether
//! the descriptor is still what it was. A thread that closes or replaces it first marks it in the
//! table, and then waits until no other thread is inside the file or beside it; only then does this
//! process give the description up, and the kernel the descriptor. So a thread that has found its
//! file unchanged keeps description, record and kernel's descriptor until it leaves, and one that
//! has not is told `BADF`, and looks the descriptor up again. One that finds the mark waits: at no
//! moment does a descriptor that carries a marker look as if it were not managed.

use crate::descriptors::{DESCRIPTION, PARTING, Sparse, THREAD_SHIFT, description_of, is_parting};
use crate::fd::{OWN_END, borrow, is_no_follow_ours, note_no_follow};
use crate::open_file::OpenFile;
use crate::session::{Session, THREADS};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};
use forebay_pool::backoff::Backoff;
use forebay_pool::descriptions::GivenUp;
use forebay_pool::guards::SharedGuard;
use forebay_pool::interruption::{self, without_handlers};
use forebay_pool::layout::{DescriptionFlags, FileFlags};
use forebay_pool::{Marker, Owner, crash};
use rustix::fd::RawFd;
use rustix::io::Errno;

/// To which libc, the loader of a program and runtimes of languages write messages by calls that
/// cannot be seen.
const STANDARD_ERROR: RawFd = 2;

/// Whether this process has more than one thread, as far as /proc tells.
fn has_other_threads() -> bool {
    /// Links of a directory without any in it.
    const EMPTY: u64 = 2;
    rustix::fs::stat(c"/proc/self/task").map_or(true, |folder| folder.st_nlink > EMPTY + 1)
}

/// What is left of a descriptor that was parted from.
#[derive(Default)]
struct Parted {
    /// As of [`Session::while_closing`].
    error: Option<Errno>,
    /// Its description, if it was the last descriptor of that.
    given: Option<GivenUp>,
}

fn mark_of(owner: Owner) -> u32 {
    PARTING | owner.thread() << THREAD_SHIFT & !PARTING
}

impl OpenFile<'_> {
    /// Enters the table, beside the file.
    ///
    /// # Errors
    /// `BADF` if the descriptor is not what it was.
    pub(crate) fn enter_beside(&self, owner: Owner) -> Result<SharedGuard<'_>, Errno> {
        crash::point("file.entering");
        let inside = self.session.segment.enter_beside(self.id, owner);
        if self.is_current() { Ok(inside) } else { Err(Errno::BADF) }
    }

    /// Gives up this descriptor's part in its description. Returns what can be freed once the
    /// kernel has closed the descriptor.
    fn give_up(&self, prepared: bool) -> Option<GivenUp> {
        let last = self
            .session
            .references
            .get(self.description_id() as usize)
            .is_some_and(|references| references.fetch_sub(1, Ordering::SeqCst) == 1);
        last.then(|| {
            if !prepared {
                self.closing();
            }
            self.session.close_readers(self.description_id(), self.id);
            let marker = self.session.segment.descriptions().marker(self.description_id());
            let descriptions = self.session.segment.descriptions();
            let given = descriptions.give_up(self.session.slot(), self.description_id());
            self.session.end_locks(self.fd, marker);
            given
        })
    }
}

impl Session {
    #[cold]
    pub(crate) fn file_later(&self, fd: RawFd) -> Option<OpenFile<'_>> {
        let mut backoff = Backoff::default();
        loop {
            let bound = self.table.load(fd as usize);
            if !is_parting(bound) {
                return self.file_bound(fd, bound);
            }
            backoff.wait();
        }
    }

    /// Calls `close`, which closes `fd`. Returns what it returns, and the errno that a flush of the
    /// file reported and this description has not yet learned of.
    pub fn while_closing<R>(&self, fd: RawFd, close: impl FnOnce() -> R) -> (R, Option<Errno>) {
        let Some(cell) = self.table.get(fd as usize) else { return (close(), None) };
        if cell.load(Ordering::Relaxed) == 0 {
            return (close(), None);
        }
        let mut given = None;
        let result = self.parting(fd, cell, |mark, parted| {
            let result = close();
            self.unmark(cell, mark, 0);
            given = parted.given;
            (result, parted.error)
        });
        self.free(given, 0);
        result
    }

    /// Frees a description that this process has given up, if no process can come to it any more:
    /// the kernel has closed the descriptor, and the caller is in the middle of `own` calls that
    /// make a descriptor out of another one. Otherwise the manager does.
    fn free(&self, given: Option<GivenUp>, own: u32) {
        let Some(given) = given else { return };
        crash::point("descriptor.closed");
        if self.duplicating.load(Ordering::SeqCst) == own {
            self.segment.free_description(given, self.owner());
        }
    }

    /// Calls `make`, which makes a descriptor out of another one, and binds it: as long as that is
    /// under way, the description may have a descriptor that is not counted.
    ///
    /// No guard that is dropped, as in [`Session::opening`]: descriptions that are then never freed
    /// at once are freed by the manager.
    fn duplicating<R>(&self, make: impl FnOnce() -> R) -> R {
        let slot = self.slot();
        self.duplicating.fetch_add(1, Ordering::SeqCst);
        let made = make();
        // Not in a child that a signal handler has forked within: it begins with none.
        if self.slot() == slot {
            self.duplicating.fetch_sub(1, Ordering::SeqCst);
        }
        made
    }

    /// Has the descriptors of `range` closed, or marked to be closed by an exec, but for our own:
    /// `close` does it from one number to another. Returns its first result that is not 0, or 0.
    pub fn close_range(
        &self,
        range: RangeInclusive<u32>,
        at_exec: bool,
        mut close: impl FnMut(u32, u32) -> i32,
    ) -> i32 {
        let (mut from, last) = (*range.start(), *range.end());
        let mut pieces = || loop {
            let own = (from..=last.min(OWN_END)).find(|&fd| self.owns(fd as RawFd));
            let upto = own.map_or(Some(last), |own| own.checked_sub(1));
            if let Some(upto) = upto.filter(|&upto| upto >= from) {
                let result = close(from, upto);
                if result != 0 {
                    return result;
                }
            }
            match own {
                Some(own) if own < last => from = own + 1,
                _ => return 0,
            }
        };
        if at_exec { pieces() } else { self.while_closing_all(range, pieces) }
    }

    /// Calls `close`, which closes all descriptors of `range` but for our own.
    fn while_closing_all<R>(&self, range: RangeInclusive<u32>, close: impl FnOnce() -> R) -> R {
        let highest = self.highest.load(Ordering::Acquire);
        let managed = || {
            let numbers = *range.start()..=(*range.end()).min(highest);
            numbers.filter_map(|fd| Some((fd as RawFd, self.table.get(fd as usize)?)))
        };
        let owner = self.owner();
        let result = without_handlers(|| {
            for (fd, cell) in managed().filter(|(_, cell)| cell.load(Ordering::Relaxed) != 0) {
                // Handlers wait for all of it.
                while !is_parting(cell.load(Ordering::Acquire))
                    && self.part_from(fd, cell, owner, None).is_none()
                {}
            }
            let result = close();
            for (_, cell) in managed() {
                let word = cell.load(Ordering::Relaxed);
                if word & !DESCRIPTION == mark_of(owner) {
                    self.unmark(cell, word, 0);
                }
            }
            result
        });
        // Opened by another thread after it was looked at, and closed all the same.
        let highest = self.highest.load(Ordering::Acquire);
        for fd in *range.start()..=(*range.end()).min(highest) {
            let bound = self.table.load(fd as usize);
            if bound != 0 && !is_parting(bound) && !self.is_bound_so(fd as RawFd, bound) {
                self.forget(fd as RawFd);
            }
        }
        result
    }

    /// Whether the kernel's descriptor `fd` is what `bound`, the word of the table, says.
    pub(crate) fn is_bound_so(&self, fd: RawFd, bound: u32) -> bool {
        let Some(file) = self.file_bound(fd, bound) else { return false };
        match file.uses_kernel_offset() {
            true => self.is_of(fd, file.id),
            false => {
                let marker = rustix::fs::tell(borrow(fd)).ok().and_then(Marker::decode);
                marker == Some(self.segment.descriptions().marker(file.description_id()))
                    // Another process has just let the kernel have it.
                    || file.uses_kernel_offset() && self.is_of(fd, file.id)
            }
        }
    }

    /// Takes `fd` over, which was made of a descriptor that became a managed one at this moment.
    fn take_in(&self, fd: RawFd) {
        if self.adopt(fd).is_none() {
            // An error is that of a full table, or of the store, and nothing can be done about it
            // here.
            let _ = self.opened_raw(fd);
        }
    }

    /// Forgets descriptor `fd`, which was closed where it could not be seen, or is about to be.
    /// Returns the errno that a flush of its file reported and this description has not yet learned
    /// of.
    pub fn forget(&self, fd: RawFd) -> Option<Errno> {
        let cell = self.table.get(fd as usize)?;
        let seen = cell.load(Ordering::Acquire);
        if is_parting(seen) {
            // By a thread that has closed it, but has not said so.
            self.unmark(cell, seen, 0);
        }
        if cell.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.parting(fd, cell, |mark, parted| {
            self.unmark(cell, mark, 0);
            // The descriptor may still be open: the manager frees it.
            parted.error
        })
    }

    /// Has `call`, a dup2 or dup3, let descriptor `new` refer to what `old` refers to, in one step.
    /// Returns its result, negative if nothing was done.
    ///
    /// # Errors
    /// `BADF` if `new` is one of our own, and cannot be another number; `call` was not called.
    pub fn replace(
        &self,
        old: RawFd,
        new: RawFd,
        call: impl FnOnce() -> RawFd,
    ) -> Result<RawFd, Errno> {
        // A descriptor that is not open replaces nothing.
        if old == new || old < 0 || new < 0 || rustix::io::fcntl_getfd(borrow(old)).is_err() {
            return Ok(call());
        }
        if self.owns(new) && !self.make_way(new) {
            return Err(Errno::BADF);
        }
        let result =
            self.duplicating(|| self.while_replacing(old, new, call, |&result| result >= 0));
        if result >= 0 {
            note_no_follow(new, is_no_follow_ours(old));
        }
        Ok(result)
    }

    /// Lets descriptor `new` refer to what `old` refers to: `call`, a dup2 or dup3, does it, and
    /// says whether it has. Other threads find the old file or the new one.
    fn while_replacing<R>(
        &self,
        old: RawFd,
        new: RawFd,
        call: impl FnOnce() -> R,
        is_done: impl FnOnce(&R) -> bool,
    ) -> R {
        let source = self.file(old);
        let cell = self.table.get(new as usize);
        let unmanaged = cell.is_none_or(|cell| cell.load(Ordering::Relaxed) == 0);
        if source.is_none() && unmanaged {
            let result = call();
            if is_done(&result) && self.table.load(old as usize) != 0 {
                self.take_in(new);
            }
            return result;
        }
        let Some(cell) = cell else { return call() };
        self.release_if_standard_error(new, old);
        if let Some(source) = source.filter(|_| unmanaged)
            && !source.uses_kernel_offset()
            && has_other_threads()
            && rustix::io::fcntl_getfd(borrow(new)).is_ok()
        {
            // A thread that has just found `new` unmanaged gives it to the kernel, and nothing
            // tells when it has.
            let _ = source.release_to_kernel();
        }
        let mut given = None;
        if source.is_some() {
            self.binds(new);
        }
        let result = self.parting(new, cell, |mark, parted| {
            crash::point("descriptor.replacing");
            let result = call();
            crash::point("descriptor.replaced");
            let mut next = 0;
            if !is_done(&result) {
                // It is still what it was.
                next = self.adopt(new).map_or(0, |description| description + 1);
            } else if let Some(source) = source {
                next = self.share(source, new);
            } else if self.table.load(old as usize) != 0 {
                self.take_in(new);
            }
            self.unmark(cell, mark, next);
            given = parted.given;
            result
        });
        self.free(given, 1);
        result
    }

    /// Calls `call`, which makes a new descriptor, if it is one, that refers to what `old` refers
    /// to.
    pub fn while_duplicating(&self, old: RawFd, call: impl FnOnce() -> RawFd) -> RawFd {
        // Most descriptors are not managed.
        if self.table.load(old as usize) == 0 {
            return self.duplicate(old, call);
        }
        self.duplicating(|| self.duplicate(old, call))
    }

    fn duplicate(&self, old: RawFd, call: impl FnOnce() -> RawFd) -> RawFd {
        let source = self.file(old);
        crash::point("descriptor.duplicating");
        let new = call();
        if new < 0 {
            return new;
        }
        // Whatever had this number was closed where it could not be seen.
        self.forget(new);
        note_no_follow(new, is_no_follow_ours(old));
        match (source, self.table.get(new as usize)) {
            (Some(source), Some(cell)) => {
                let bound = self.share(source, new);
                self.set_bound(cell, new, bound);
                self.release_if_standard_error(new, new);
            }
            // Another thread has replaced it meanwhile.
            (None, Some(_)) if self.table.load(old as usize) != 0 => self.take_in(new),
            _ => {}
        }
        new
    }

    /// Does what is to be done, and may wait, before the process gives up its last descriptor of a
    /// description. Returns the file for which it was.
    fn prepare_closing(&self, fd: RawFd) -> Option<OpenFile<'_>> {
        let file = self.file(fd)?;
        let last = self.references.load(file.description_id() as usize) == 1;
        last.then(|| {
            file.closing();
            file
        })
    }

    /// Parts from descriptor `fd` and calls `act` with the mark, which it is to take away, and what
    /// is left of it. No handler of the program's runs meanwhile: it would
    /// wait for its own thread.
    fn parting<R>(&self, fd: RawFd, cell: &AtomicU32, act: impl FnOnce(u32, Parted) -> R) -> R {
        let mut act = Some(act);
        loop {
            let prepared = self.prepare_closing(fd);
            let done = without_handlers(|| {
                let (mark, parted) = self.part_from(fd, cell, self.owner(), prepared)?;
                Some(act.take()?(mark, parted))
            });
            if let Some(result) = done {
                return result;
            }
        }
    }

    /// Marks descriptor `fd`, and gives up what it refers to once no other thread may use it.
    /// Returns the mark, and what is left of it; `None`, and nothing was done, if a handler has
    /// waited for more than a moment.
    fn part_from(
        &self,
        fd: RawFd,
        cell: &AtomicU32,
        owner: Owner,
        prepared: Option<OpenFile<'_>>,
    ) -> Option<(u32, Parted)> {
        // Before the mark, which may become a managed descriptor.
        if fd as u32 > self.highest.load(Ordering::Relaxed) {
            self.highest.fetch_max(fd as u32, Ordering::AcqRel);
        }
        let mut backoff = Backoff::default();
        let (seen, mark) = loop {
            let seen = cell.load(Ordering::SeqCst);
            let mark = mark_of(owner) | seen & DESCRIPTION;
            let exchange =
                || cell.compare_exchange(seen, mark, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            if !is_parting(seen) && exchange() {
                break (seen, mark);
            }
            backoff.wait();
            if backoff.is_spent() && interruption::is_held_off() {
                return None;
            }
        };
        crash::point("descriptor.parting");
        let prepared = prepared.map(|file| file.bound_as(mark)).filter(OpenFile::is_current);
        let Some(file) = prepared.or_else(|| self.file_bound(fd, mark)) else {
            return Some((mark, Parted::default()));
        };
        // A thread that has no number yet gets one before it looks at the mark.
        if THREADS.load(Ordering::SeqCst) > 1 && !self.segment.wait_for_users(file.id, owner) {
            self.unmark(cell, mark, seen);
            return None;
        }
        // As with the kernel's, a descriptor that only reads is told at fsync, not at close.
        let writes = file.may(DescriptionFlags::WRITE);
        let error = writes.then(|| file.unreported_error()).flatten();
        let given = file.give_up(prepared.is_some());
        Some((mark, Parted { error, given }))
    }

    /// Puts `next` in the place of a mark, if that is still there.
    fn unmark(&self, cell: &AtomicU32, mark: u32, next: u32) {
        let _ = cell.compare_exchange(mark, next, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// In a forked child: the threads that were closing or replacing descriptors are not here, and
    /// what became of these the kernel knows.
    pub(crate) fn end_partings(&self) {
        let highest = self.highest.load(Ordering::Acquire);
        let cells =
            || (0..=highest).filter_map(|fd| Some((fd as RawFd, self.table.get(fd as usize)?)));
        let parting = |(_, cell): &(RawFd, &AtomicU32)| is_parting(cell.load(Ordering::Relaxed));
        if !cells().any(|cell| parting(&cell)) {
            return;
        }
        // Whether they had given their part up cannot be told: all are counted again.
        for id in 0..self.segment.descriptions().ready() {
            if let Some(references) = self.references.get(id as usize)
                && references.load(Ordering::Relaxed) != 0
            {
                references.store(0, Ordering::Relaxed);
            }
        }
        for (_, cell) in cells().filter(|cell| !parting(cell)) {
            if let Some(id) = description_of(cell.load(Ordering::Relaxed))
                && let Some(references) = self.references.get(id as usize)
            {
                references.fetch_add(1, Ordering::Relaxed);
            }
        }
        for (fd, cell) in cells().filter(parting) {
            let before = description_of(cell.swap(0, Ordering::SeqCst));
            self.adopt(fd);
            if let Some(id) = before
                && self.references.load(id as usize) == 0
            {
                self.segment.descriptions().release(self.slot(), id);
            }
        }
    }

    /// Counts `new`, which the kernel has just made to refer to what `source`'s descriptor refers
    /// to. Returns what to put into the table.
    fn share(&self, source: OpenFile<'_>, new: RawFd) -> u32 {
        let more = |count: u32| (count > 0).then_some(count + 1);
        let counted =
            self.references.get(source.description_id() as usize).is_some_and(|references| {
                references.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
            });
        if counted {
            if source.is_current() {
                return source.description_id() + 1;
            }
            if let Some(file) = self.file_bound(new, source.description_id() + 1) {
                let _ = file.give_up(false);
            }
        }
        // Another thread has closed or replaced the other one meanwhile: only the kernel knows what
        // this one is.
        self.adopt(new).map_or(0, |description| description + 1)
    }

    /// Whether `fd` has a place in the table of descriptors: before that is known, or a file is
    /// bound, the tables may have no memory.
    pub(crate) fn has_place_for(&self, fd: RawFd) -> bool {
        Sparse::map([&self.table, &self.references, &self.mapped, &self.populated]);
        self.table.get(fd as usize).is_some()
    }

    /// Takes the memory for the tables of descriptors, for which there may be none later: before
    /// the process gets another limit of its address space.
    pub fn make_room_for_files(&self) {
        self.has_place_for(0);
    }

    /// Binds descriptor `fd` to `description`, of which this process holds a reference.
    pub(crate) fn bind(&self, fd: RawFd, description: u32) {
        self.has_place_for(fd);
        if let Some(references) = self.references.get(description as usize) {
            references.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(cell) = self.table.get(fd as usize) {
            self.set_bound(cell, fd, description + 1);
        }
    }

    /// Where `number`, which `fd` is or is about to be, is that of standard error: the kernel has
    /// the offset of what is written there, so that messages which cannot be seen come to the right
    /// place, and the file is used through the kernel. If the store fails it stays as it is.
    pub fn release_if_standard_error(&self, number: RawFd, fd: RawFd) {
        if number == STANDARD_ERROR
            && let Some(file) = self.file(fd)
            && file.may(DescriptionFlags::WRITE)
            && !file.uses_kernel_offset()
        {
            // With a manager that is stopped each redirection of a script would wait for long.
            let is_behind = file.record.has(FileFlags::METADATA_DIRTY);
            if !is_behind || !self.segment.manager_is_stopped() {
                let _ = file.release_to_kernel();
            }
        }
    }

    /// Before `fd` refers to a managed file.
    fn binds(&self, fd: RawFd) {
        if fd <= 2 {
            (self.front.binds)(fd);
        }
    }

    fn set_bound(&self, cell: &AtomicU32, fd: RawFd, bound: u32) {
        self.binds(fd);
        cell.store(bound, Ordering::SeqCst);
        self.highest.fetch_max(fd as u32, Ordering::AcqRel);
    }
}
