//! Noting that a file is ahead of its store.

use crate::fd::reopen;
use crate::open_file::OpenFile;
use crate::opening::NameAt;
use crate::session::Session;
use crate::waiting::surely;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::{FileId, Identity, clock, crash};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// More than a tick of the clock that files are stamped with: 1 to 10 ms.
const TICKS_NS: u64 = 20_000_000;

impl OpenFile<'_> {
    /// Gives the file the times of a write that found none of its bytes readable: the kernel has
    /// changed them by the time that it finds out.
    pub(crate) fn note_failed_write(&self) {
        let owner = self.session.owner();
        let Ok(_inside) = self.enter(owner) else { return };
        self.register_inside();
        self.touch(clock::realtime_coarse_ns());
    }

    /// Notes that the file is ahead of the store.
    #[inline]
    pub(crate) fn touch(&self, now: u64) {
        let record = self.record;
        self.note_altered();
        if record.has(FileFlags::DIRECT) {
            return;
        }
        let now = self.session.time_of_change(record, now);
        if record.mtime_ns.load(Ordering::Relaxed) != now {
            record.mtime_ns.store(now, Ordering::Relaxed);
            record.changed_ns.fetch_max(now, Ordering::Relaxed);
        }
        crash::point("write.store-written");
        record.set(FileFlags::METADATA_DIRTY);
        crash::point("write.metadata-dirty");
        record.set(FileFlags::DIRTY);
        if record.has(FileFlags::READ_OUT) {
            record.clear(FileFlags::READ_OUT);
        }
    }

    /// Notes that the program has changed what the file has, for what is to run on it.
    #[inline]
    pub(crate) fn note_altered(&self) {
        if self.record.altered.load(Ordering::Relaxed) == 0 && !self.session.carried.is_action() {
            self.record.note_altered();
        }
    }

    /// Sends the node manager a descriptor of the file, once for all of its writers: one that says
    /// which file it is where the manager can open it, else one that can be written.
    #[inline]
    pub(crate) fn register(&self) {
        if !self.record.has(FileFlags::REGISTERED) {
            self.register_first(false);
        }
    }

    /// The same, of a thread that is inside the file. It leaves to the node manager to find the
    /// file by its path, if that is possible: see docs/design/registration.md.
    #[inline]
    pub(crate) fn register_inside(&self) {
        if !self.record.has(FileFlags::REGISTERED) {
            self.register_first(true);
        }
    }

    /// Tells the node manager to find the file. False if it cannot be told so, or would not find
    /// it.
    fn have_found(&self) -> bool {
        let record = self.record;
        let findable = FileFlags::FINDABLE | FileFlags::OWNER_WRITES;
        let flags = record.flags.load(Ordering::Acquire);
        if flags & (findable | FileFlags::UNLINKED) != findable {
            return false;
        }
        record.set(FileFlags::TO_FIND);
        crash::point("register.to-find");
        let queue = self.session.segment.registrations();
        // A thread that takes the name away notes that first, and sends a descriptor if it then
        // finds the file still to be found.
        let is_told = !record.has(FileFlags::UNLINKED)
            && queue.push(self.session.owner(), &self.registering(true));
        crash::point("register.told");
        // The manager may have been as fast.
        is_told || !record.clear(FileFlags::TO_FIND)
    }

    #[cold]
    fn register_first(&self, is_inside: bool) {
        let record = self.record;
        if !self.may(DescriptionFlags::WRITE) || record.set(FileFlags::REGISTERED) {
            return;
        }
        crash::point("register.marked");
        // Other nodes may remove the name while this one has what they read then.
        if is_inside && !self.session.shares_files() && self.have_found() {
            return;
        }
        // It keeps no process from executing the file, and holds no lock.
        let place = record.has(FileFlags::OWNER_WRITES).then(|| reopen(self.fd, OFlags::PATH));
        let sent = match place {
            Some(Ok(place)) => {
                let message = self.registering(true);
                self.session.manager.send_descriptor(message, place.as_raw_fd())
            }
            _ => {
                record.clear(FileFlags::OWNER_WRITES);
                self.lend_to_write()
            }
        };
        if sent.is_err() {
            record.clear(FileFlags::REGISTERED);
        }
    }

    /// Before the program takes a lease on the file, which ends where another process opens it: the
    /// node manager will not, it gets a descriptor with which it can be written.
    pub fn leasing(&self) {
        let open = || reopen(self.fd, OFlags::WRONLY | OFlags::NONBLOCK).ok();
        self.session.keep_writable(self.record.identity(), open);
    }

    fn lend_to_write(&self) -> Result<(), Errno> {
        let message = self.registering(false);
        self.lend(OFlags::WRONLY, |fd| self.session.manager.send_descriptor(message, fd))
    }

    fn registering(&self, to_open: bool) -> Message {
        let generation = self.record.generation.load(Ordering::Relaxed);
        Message::Register { file: self.id, generation, to_open }
    }
}

impl Session {
    /// The time of a change that happens at `now`, coarsely: later than what a process has seen,
    /// and not before the change before, nor one of another file that had a finer time.
    pub(crate) fn time_of_change(&self, record: &FileRecord, now: u64) -> u64 {
        let before = record.changed_ns.load(Ordering::Relaxed);
        let stamped = &self.segment.header().stamped_ns;
        if record.has(FileFlags::LOOKED_AT) && record.clear(FileFlags::LOOKED_AT) {
            let fine = self.fine_time(before);
            match stamped.load(Ordering::Relaxed).saturating_sub(fine) < TICKS_NS {
                true => stamped.fetch_max(fine, Ordering::Relaxed),
                // The clock was set back.
                false => stamped.swap(fine, Ordering::Relaxed),
            };
            return fine.max(before);
        }
        let ahead = stamped.load(Ordering::Relaxed).saturating_sub(now);
        let now = if ahead < TICKS_NS { now + ahead } else { now };
        now.max(before)
    }

    /// The time of a change after a look at the file, whose last one was at `before`, by the clock
    /// that the kernel stamps files with: between two of its ticks it is fine where the times of an
    /// inode were looked at (since Linux 6.13), and no file gets an earlier time afterwards. Only
    /// the kernel can say that, of an inode of its own: the pool's is one.
    #[cold]
    fn fine_time(&self, before: u64) -> u64 {
        use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
        let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times =
            Timestamps { last_access: special(UTIME_NOW), last_modification: special(UTIME_OMIT) };
        let pool = self.carried.pool();
        let stamp = || {
            rustix::fs::utimensat(CWD, pool?, &times, AtFlags::empty()).ok()?;
            let found = rustix::fs::statx(CWD, pool?, AtFlags::empty(), StatxFlags::CTIME).ok()?;
            Some(clock::joined_ns(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into()))
        };
        // Its times may not have been looked at since the last change.
        let again = |time| if time > before { Some(time) } else { stamp() };
        stamp().and_then(again).unwrap_or_else(clock::realtime_ns)
    }

    /// Before the last name of a file, `at`, is taken away, after that was noted: the node manager
    /// may not have found it yet, and is sent a descriptor.
    pub(crate) fn keep_findable(&self, identity: Identity, at: NameAt<'_>) {
        if !self.segment.files().may_have(identity) {
            return;
        }
        let left = |file: Option<FileId>| {
            let record = self.segment.file(file?);
            let generation = record.generation.load(Ordering::Relaxed);
            record.has(FileFlags::TO_FIND).then_some((file?, generation))
        };
        let left = surely(|| self.with_record(identity, left));
        let Ok(Some((file, generation))) = left else { return };
        let Some(place) = at.open_place() else { return };
        crash::point("register.leaving");
        let message = Message::Register { file, generation, to_open: true };
        if self.manager.send_descriptor(message, place.as_raw_fd()).is_ok() {
            self.segment.file(file).clear(FileFlags::TO_FIND);
        }
    }

    /// Before the owner's permission to write is taken away from a file: the node manager, which
    /// could open it until now, gets a descriptor with which it can be written. `open` opens one
    /// where this process has none.
    pub(crate) fn keep_writable(&self, identity: Identity, open: impl FnOnce() -> Option<OwnedFd>) {
        // In this order: a thread that registers it looks whether it may be opened afterwards.
        let left = |file: Option<FileId>| {
            let file = file?;
            let record = self.segment.file(file);
            let is_to_open = record.clear(FileFlags::OWNER_WRITES);
            let generation = record.generation.load(Ordering::Relaxed);
            (is_to_open && record.has(FileFlags::REGISTERED)).then_some((file, generation))
        };
        let left = surely(|| self.with_record(identity, left));
        let Ok(Some((file, generation))) = left else { return };
        crash::point("register.changing");
        let sent = match self.writer(identity.device, identity.inode) {
            Some(writer) => writer.lend_to_write().is_ok(),
            // To close it would end the process's fcntl locks.
            None if self.segment.file(file).has(FileFlags::FCNTL_LOCKED) => false,
            None => open().is_some_and(|opened| {
                let message = Message::Register { file, generation, to_open: false };
                self.manager.send_descriptor(message, opened.as_raw_fd()).is_ok()
            }),
        };
        if !sent {
            // While it can still be opened.
            let _ = surely(|| self.await_sync(file, FileFlags::TO_FLUSH));
        }
    }
}

/// Raises a size; a plain load when it is large enough already.
pub(crate) fn raise(size: &AtomicU64, to: u64) {
    if size.load(Ordering::Acquire) < to {
        size.fetch_max(to, Ordering::AcqRel);
    }
}
