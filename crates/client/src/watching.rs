//! Programs that watch files (inotify): the kernel tells them of a write when the store gets it, so
//! that what they watch goes there with each write.

use crate::open_file::OpenFile;
use crate::session::Session;
use crate::waiting::surely;
use core::ffi::CStr;
use core::sync::atomic::{Ordering, fence};
use forebay_pool::layout::*;
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};

impl Session {
    /// Notes that the process has begun to watch `path`, a file or a directory; `follows`: what a
    /// symbolic link leads to. It counts as watched until the process ends. Beyond [`WATCHES`] of
    /// them, and of paths that are longer than a record has room for, events come with the flush.
    pub fn watch(&self, path: &CStr, follows: bool) {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follows);
        let Ok(seen) = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()) else {
            return;
        };
        let mut buffer = core::mem::MaybeUninit::uninit();
        let (path, store) = self.managed_path(seen.as_raw_fd(), &mut buffer);
        if store.is_none() || !self.segment.watches().add(self.slot(), path) {
            return;
        }
        // Either we find that a file is open, or the process that opens it finds the watch. Of what
        // is closed and clean the store gets nothing that the kernel could tell of.
        for file in self.segment.files_in_use() {
            let record = self.segment.file(file);
            if self.segment.watches().has(&self.segment.path_of(record)) {
                hurry(record);
                if record.has(FileFlags::DIRTY) && !record.has(FileFlags::SCRATCH) {
                    self.segment.request_sync(file, Some(self.owner()), false);
                    self.segment.want_work();
                }
            }
        }
    }

    /// Whether programs may watch files here.
    #[inline]
    pub(crate) fn has_watches(&self) -> bool {
        self.segment.watches().any()
    }
}

/// Has each write be followed by a flush.
fn hurry(record: &FileRecord) {
    record.set(FileFlags::WATCHED);
    record.trigger.store(Trigger::PerOperation as u8, Ordering::Relaxed);
}

impl OpenFile<'_> {
    /// Notes whether the file is watched, after its trigger was set to what rules say.
    pub(crate) fn find_watches(&self) {
        self.record.clear(FileFlags::WATCHED);
        // Against a process that begins to watch it, and looks for records after that.
        fence(Ordering::SeqCst);
        if self.session.has_watches()
            && self.session.segment.watches().has(&self.session.segment.path_of(self.record))
        {
            hurry(self.record);
        }
    }

    /// Brings a write of a watched file to the store, so that the event comes from the program's
    /// own write. False if it is left to the node manager.
    pub(crate) fn shows_write(&self) -> bool {
        self.record.has(FileFlags::WATCHED) && surely(|| self.write_back_few()).unwrap_or(false)
    }
}
