//! Truncating a file, and making store and record agree about its size.

use super::ExclusiveFile;
use crate::changed::raise;
use crate::manager_watch::ManagerState;
use crate::open_file::OpenFile;
use crate::recording;
use crate::sharing::Need;
use crate::store;
use crate::sync::WORK_LOOK;
use crate::waiting::Wait;
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::calls::CallKind;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::message::Message;
use forebay_pool::truncate::StoreOps;
use forebay_pool::{clock, crash, futex};
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// What a truncate needs: this process's descriptor of the file, and the tier files.
impl StoreOps for ExclusiveFile<'_> {
    fn slots(&self) -> &impl SlotFiles {
        self.session
    }

    fn truncate_store(&self, size: u64) -> Result<(), Errno> {
        self.log_truncate()?;
        self.resize_store(size)
    }

    fn punch_store(&self, range: Range<u64>) -> Result<(), Errno> {
        self.log_truncate()?;
        let result = match store::punch(self.fd, range.clone()) {
            Err(Errno::BADF) => {
                let writable = crate::fd::reopen(self.fd, rustix::fs::OFlags::WRONLY)?;
                store::punch(writable.as_raw_fd(), range)
            }
            other => other,
        };
        self.record.clear(FileFlags::SYNCED);
        result
    }
}

impl OpenFile<'_> {
    /// Sets the size of the file, at once on the store as well.
    ///
    /// # Errors
    /// `INVAL` if the descriptor is not open for writing or the size is none; the store's errno.
    pub fn truncate(&self, size: i64) -> Result<(), Errno> {
        let size = u64::try_from(size).map_err(|_| Errno::INVAL)?;
        if !self.may(DescriptionFlags::WRITE) {
            return Err(Errno::INVAL);
        }
        let start_ns = recording::begin_ns();
        self.set_size(size)?;
        self.note_since(CallKind::Truncate, start_ns, size, 0);
        Ok(())
    }

    /// Cuts the whole file, as an open with O_TRUNC does, whatever the descriptor may do.
    ///
    /// # Errors
    /// The store's errno, `ACCES` for a file that this process may not write.
    pub(crate) fn empty(&self) -> Result<(), Errno> {
        self.set_size(0)
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.session.restarting(|| self.set_size_once(size))
    }

    fn set_size_once(&self, size: u64) -> Result<(), Errno> {
        self.exclusively_for(Need::Whole(Access::Alone), |file| {
            file.settle_committing()?;
            file.clean_up_store()?;
            file.bring_failing_up(size)?;
            self.record.set(FileFlags::STORE_WRITTEN);
            let truncate = || self.session.segment.truncate(self.id, size, file.owner, file);
            let cut = file.again_in_ram(&[size], truncate);
            crash::point("truncate.untimed");
            let record = self.record;
            if let Err(errno) = cut {
                file.retract_truncate(errno);
                return Err(errno);
            }
            if size == 0 {
                self.session.forget_datasets(self.id, record);
            }
            self.note_altered();
            let now = self.session.time_of_change(record, clock::realtime_coarse_ns());
            record.mtime_ns.store(now, Ordering::Relaxed);
            record.changed_ns.fetch_max(now, Ordering::Relaxed);
            Ok(())
        })
    }
}

impl ExclusiveFile<'_> {
    /// Calls `act`, which may give the store's file another size, and notes the one that follows.
    /// The caller has the file exclusively, and has cleaned up after others.
    pub(crate) fn lengthening<R>(&self, act: impl FnOnce() -> R) -> R {
        let lengthener = self.session.segment.begin_lengthening(self.record, self.owner);
        let result = act();
        if let Ok(Some(lengthener)) = lengthener {
            self.session.segment.end_lengthening(lengthener);
        }
        result
    }

    /// Makes store and record agree about the size, if a process was killed while it gave the
    /// store's file another one: what is behind the end was never acknowledged. The caller has the
    /// file exclusively.
    ///
    /// # Errors
    /// The store's errno.
    pub(crate) fn clean_up_store(&self) -> Result<(), Errno> {
        let record = self.record;
        if !record.has_lengtheners() {
            return Ok(());
        }
        crash::point("lengthen.repairing");
        let stored = store::stat(self.fd)?.size;
        if record.is_shared() {
            // What is there may be another node's as well: it counts as written.
            raise(&record.store_size, stored);
            raise(&record.size, stored);
            self.session.segment.forget_lengtheners(record);
            return Ok(());
        }
        let is_ahead = record.has(FileFlags::METADATA_DIRTY) && !record.has(FileFlags::DIRECT);
        let size = if is_ahead { record.size.load(Ordering::Acquire) } else { stored };
        if stored > size {
            record.set(FileFlags::STORE_WRITTEN);
            self.resize_store(size)?;
        }
        if is_ahead {
            record.store_size.fetch_min(size, Ordering::AcqRel);
            raise(&record.store_size, stored.min(size));
        } else {
            record.store_size.store(size, Ordering::Release);
            record.size.store(size, Ordering::Release);
        }
        self.session.segment.forget_lengtheners(record);
        Ok(())
    }

    /// Gives the store's file a size, also through a descriptor that may only read.
    fn resize_store(&self, size: u64) -> Result<(), Errno> {
        let result = match store::truncate(self.fd, size) {
            Err(Errno::INVAL | Errno::BADF) => {
                let writable = crate::fd::reopen(self.fd, rustix::fs::OFlags::WRONLY)?;
                store::truncate(writable.as_raw_fd(), size)
            }
            other => other,
        };
        self.record.clear(FileFlags::SYNCED);
        result
    }

    /// Tells the journal of a truncate or a punch, the intent of which stands in the record, before
    /// the store changes: else a recovery would undo one half of it.
    pub(crate) fn log_truncate(&self) -> Result<(), Errno> {
        let record = self.record;
        if !record.is_logged() {
            return Ok(());
        }
        let header = self.session.segment.header();
        record.set(FileFlags::TO_RECORD_TRUNCATE);
        self.session.segment.post(Some(self.session.owner()), &Message::Sync { file: self.id });
        let wait = Wait::begin();
        while record.has(FileFlags::TO_RECORD_TRUNCATE) {
            let done = header.work_done.load(Ordering::Acquire);
            if !record.has(FileFlags::TO_RECORD_TRUNCATE) {
                break;
            }
            futex::wait(&header.work_done, done, WORK_LOOK.as_ms());
            if !record.has(FileFlags::TO_RECORD_TRUNCATE) {
                break;
            }
            if let Err(errno) = wait.look(|| self.session.segment.manager_is_stopped()) {
                record.clear(FileFlags::TO_RECORD_TRUNCATE);
                return Err(errno);
            }
            match self.session.manager_watch.look(&self.session.segment) {
                ManagerState::AtWork => {}
                ManagerState::Gone => {
                    record.clear(FileFlags::TO_RECORD_TRUNCATE);
                    return self.flush_here(true);
                }
                ManagerState::Stopped => {
                    record.clear(FileFlags::TO_RECORD_TRUNCATE);
                    return Err(Errno::TIMEDOUT);
                }
            }
        }
        Ok(())
    }

    /// The journal was told of a cut that did not happen, because of `errno`: what it has of the
    /// file must not count.
    pub(crate) fn retract_truncate(&self, errno: Errno) {
        if !self.record.is_logged() {
            return;
        }
        let flags = FileFlags::TO_FLUSH | FileFlags::DURABLE;
        if matches!(errno, Errno::INTR | Errno::TIMEDOUT) {
            // A manager that is stopped does it when it goes on.
            self.session.segment.request(self.id, Some(self.session.owner()), flags);
        } else {
            let _ = self.session.await_sync(self.id, flags);
        }
    }
}
