//! Noting that a file is ahead of its store.

use crate::open_file::OpenFile;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::layout::*;
use forebay_pool::message::Message;
use forebay_pool::{clock, crash};

impl OpenFile<'_> {
    /// Gives the file the times of a write that found none of its bytes readable: the kernel has
    /// changed them by the time that it finds out.
    pub(crate) fn note_failed_write(&self) {
        let owner = self.session.owner();
        let Ok(_inside) = self.enter(owner) else { return };
        self.register();
        self.touch(clock::realtime_coarse_ns());
    }

    /// Notes that the file is ahead of the store.
    #[inline]
    pub(crate) fn touch(&self, now: u64) {
        let record = self.record;
        if record.has(FileFlags::DIRECT) {
            return;
        }
        let now = time_of_change(record, now);
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

    /// Sends the node manager a descriptor of the file, once for all of its writers.
    #[inline]
    pub(crate) fn register(&self) {
        if !self.record.has(FileFlags::REGISTERED) {
            self.register_first();
        }
    }

    #[cold]
    fn register_first(&self) {
        let record = self.record;
        if !self.may(DescriptionFlags::WRITE) || record.set(FileFlags::REGISTERED) {
            return;
        }
        crash::point("register.marked");
        let generation = record.generation.load(Ordering::Relaxed);
        let message = Message::Register { file: self.id, generation };
        let send = |fd| self.session.manager.send_descriptor(message, fd);
        if self.lend(rustix::fs::OFlags::WRONLY, send).is_err() {
            record.clear(FileFlags::REGISTERED);
        }
    }
}

/// The time of a change that happens at `now`, coarsely: later than what a process has seen, and
/// than the change before.
pub(crate) fn time_of_change(record: &FileRecord, now: u64) -> u64 {
    let mut now = now;
    if record.has(FileFlags::LOOKED_AT) {
        record.clear(FileFlags::LOOKED_AT);
        now = clock::realtime_ns();
    }
    now.max(record.changed_ns.load(Ordering::Relaxed))
}

/// Raises a size; a plain load when it is large enough already.
pub(crate) fn raise(size: &AtomicU64, to: u64) {
    if size.load(Ordering::Acquire) < to {
        size.fetch_max(to, Ordering::AcqRel);
    }
}
