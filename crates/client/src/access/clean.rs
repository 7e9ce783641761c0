//! Making a file clean for calls that go through the kernel, or direct for as long as it is open.

use super::{EnteredFile, ExclusiveFile};
use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::store;
use crate::waiting::{Wait, surely};
use core::sync::atomic::Ordering;
use forebay_pool::crash;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Makes the file clean and unbuffered, calls `act`, which may use the descriptor in any way
    /// that takes no kernel offset, and notes the size that follows.
    ///
    /// # Errors
    /// The errno of the flush; `act` is not called then.
    pub fn with_clean<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        self.session.counters().passthrough.fetch_add(1, Ordering::Relaxed);
        let mut act = Some(act);
        self.session.restarting(|| self.with_clean_once(&mut act))
    }

    /// Calls `act`, which has the kernel look at the store's file now or later, once that has what
    /// was written before. The file stays buffered: what is written during the call, or after it,
    /// comes there with a flush.
    ///
    /// # Errors
    /// As of [`OpenFile::with_clean`].
    pub fn with_stored<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        self.session.restarting(|| self.enter_for(Need::Whole(Access::Read)).map(drop))?;
        let written = self.session.restarting(|| self.write_back_few())?;
        match written && !self.record.has(FileFlags::METADATA_DIRTY) {
            true => Ok(act()),
            false => self.with_clean(act),
        }
    }

    /// `act` is taken where it is called.
    fn with_clean_once<R, F: FnOnce() -> R>(&self, act: &mut Option<F>) -> Result<R, Errno> {
        self.exclusively_for(self.kernel_need(), |file| {
            file.clean()?;
            file.checkpoint()?;
            file.clean_up_store()?;
            file.restore_times();
            let record = self.record;
            if record.has(FileFlags::METADATA_DIRTY) {
                // From here on the store's file is the truth, whatever becomes of this process.
                let _ = file.resize_from_store();
            }
            record.set(FileFlags::STORE_WRITTEN);
            crash::point("passthrough.begin");
            let act = act.take().ok_or(Errno::IO)?;
            Ok(file.lengthening(|| {
                let result = act();
                record.clear(FileFlags::SYNCED);
                crash::point("passthrough.end");
                let _ = file.resize_from_store();
                result
            }))
        })
    }

    /// Lets all processes use the file through the kernel from now on, until it is closed
    /// everywhere: it is used in a way that outlasts a call. `act` is called once the file is
    /// clean.
    ///
    /// # Errors
    /// The errno of the flush; `act` is not called then.
    pub fn make_direct<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        self.with_clean(|| {
            self.session.segment.raise_stat_epoch();
            self.record.turn_direct();
            act()
        })
    }

    /// The same until no process has the file mapped. The caller holds a description for the
    /// mapping that `act` makes.
    ///
    /// # Errors
    /// As of [`OpenFile::make_direct`].
    pub(crate) fn make_mapped<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        self.with_clean(|| {
            self.session.segment.raise_stat_epoch();
            self.record.turn_mapped();
            crash::point("mapping.direct");
            act()
        })
    }

    /// Buffers the file again if it was direct only because of mappings, of which none is left, or
    /// because it was new and small. Not while others are inside for more than a moment, or if the
    /// store fails: it stays direct then, and a later call tries again.
    pub(crate) fn buffer_again(&self) {
        let (record, segment) = (self.record, &self.session.segment);
        let owner = self.session.owner();
        let Ok(guard) = self.enter_beside(owner) else { return };
        let entered = EnteredFile { file: self, owner, guard };
        // Before the look: a mapping that ends later sets it again.
        record.clear(FileFlags::UNMAPPED);
        let is_unmapped = || {
            record.has(FileFlags::MAPPED)
                && (record.is_written_through() || !segment.descriptions().is_mapped(self.id))
        };
        // Not to exclude others for nothing.
        if !is_unmapped() {
            return;
        }
        crash::point("mapping.unmapped");
        let guard = segment.try_lock_exclusive(&entered.guard, self.id, owner);
        let done = guard.is_some_and(|guard| {
            let file = ExclusiveFile { entered: &entered, guard };
            file.complete_left();
            !is_unmapped() || file.end_direct().is_ok()
        });
        if !done {
            record.set(FileFlags::UNMAPPED);
        }
    }

    /// [`OpenFile::make_direct`] where it must not be left undone: signal handlers run, but end no
    /// wait.
    ///
    /// # Errors
    /// The errno of the flush.
    pub fn turn_direct(&self) -> Result<(), Errno> {
        surely(|| self.make_direct(|| ()))
    }

    /// Hands the descriptor to a program without Forebay: the file turns direct, and the kernel's
    /// offset becomes the description's, where it is not that already.
    ///
    /// # Errors
    /// The errno of the flush.
    pub fn release_to_kernel(&self) -> Result<(), Errno> {
        let release = |_| self.make_direct(|| self.hand_offset_to_kernel());
        surely(|| self.positioned(release)).map(|_| ())
    }

    /// Has the kernel have the offset of a direct file's description. The caller has the lock of
    /// that offset.
    pub(super) fn hand_offset_to_kernel(&self) {
        let (fd, flags) = (borrow(self.fd), &self.description.flags);
        flags.set(DescriptionFlags::RELEASING, Ordering::AcqRel);
        crash::point("release.begun");
        if self.may(DescriptionFlags::APPEND)
            && let Ok(kernel) = rustix::fs::fcntl_getfl(fd)
        {
            let _ = rustix::fs::fcntl_setfl(fd, kernel | rustix::fs::OFlags::APPEND);
        }
        let offset = self.description.offset.load(Ordering::Acquire);
        let _ = rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(offset));
        crash::point("release.sought");
        // Last of all: other processes go by that from then on.
        flags.set(DescriptionFlags::KERNEL_OFFSET, Ordering::AcqRel);
    }

    /// Makes the file clean and has the node manager close its descriptor of it, because a program
    /// that anyone has open for writing cannot be executed.
    ///
    /// # Errors
    /// The errno of the flush.
    pub(crate) fn release_descriptor(&self) -> Result<(), Errno> {
        let record = self.record;
        let written = surely(|| self.write_back_few())?;
        if !written || record.has(FileFlags::METADATA_DIRTY) {
            surely(|| self.with_clean(|| ()))?;
        }
        if record.may_be_held() {
            surely(|| self.session.await_sync(self.id, FileFlags::TO_FLUSH | FileFlags::RELEASE))?;
        }
        Ok(())
    }

    /// Whether some process has the file open for writing, so that a private mapping of it, too,
    /// may be expected to follow it.
    pub fn may_change(&self) -> bool {
        self.may(DescriptionFlags::WRITE)
            // Those that have written it while it was mapped have not registered it.
            || (self.record.has(FileFlags::REGISTERED) || self.record.has(FileFlags::MAPPED))
                && self.session.segment.descriptions().is_open_for_writing(self.id)
    }
}

impl ExclusiveFile<'_> {
    /// Flushes until no block is buffered.
    ///
    /// # Errors
    /// The errno of the flush.
    pub(crate) fn clean(&self) -> Result<(), Errno> {
        if self.record.has(FileFlags::DIRECT) {
            return Ok(());
        }
        for _ in 0..100 {
            if self.session.segment.drop_clean_blocks(self.id, self.owner) {
                return Ok(());
            }
            if !self.write_back_entered()? {
                self.flush_by_manager(false, &Wait::begin())?;
            }
        }
        Err(self.last_error().unwrap_or(Errno::IO))
    }

    /// Buffers a file again of which no mapping is left, or that is no new small one any more.
    ///
    /// # Errors
    /// The store's errno: it stays direct.
    fn end_direct(&self) -> Result<(), Errno> {
        let record = self.record;
        self.clean_up_store()?;
        self.resize_from_store()?;
        if !record.is_written_through() {
            // What mappings have written may come to the store's device, and to the file's times,
            // later.
            record.set(FileFlags::STORE_WRITTEN);
        }
        // Times that programs have seen were the kernel's.
        record.set(FileFlags::LOOKED_AT);
        record.clear(FileFlags::SYNCED);
        crash::point("mapping.buffering");
        record.clear(FileFlags::DIRECT | FileFlags::MAPPED);
        record.small.store(0, Ordering::Release);
        crash::point("mapping.buffered");
        Ok(())
    }

    /// Before the kernel changes a file in ways of its own: what journal and slots have of it
    /// counts no more. The caller has it exclusively, and clean.
    pub(crate) fn checkpoint(&self) -> Result<(), Errno> {
        let record = self.record;
        if !record.is_tracked() {
            return Ok(());
        }
        let error = record.errors();
        if !self.session.await_sync(self.id, FileFlags::TO_FLUSH | FileFlags::DURABLE)? {
            return self.flush_here(true);
        }
        match record.errors() == error {
            true => Ok(()),
            false => Err(self.last_error().unwrap_or(Errno::IO)),
        }
    }

    /// Gives the store's file, which was just flushed, the times that programs see. The caller has
    /// the file exclusively.
    fn restore_times(&self) {
        let record = self.record;
        if !record.has(FileFlags::METADATA_DIRTY) || record.has(FileFlags::DIRECT) {
            return;
        }
        let modified_ns = record.mtime_ns.load(Ordering::Acquire);
        // Only the owner of a file may set its times; others see the time of the flush.
        let _ = store::set_modified(self.fd, modified_ns);
        if let Ok(stat) = store::stat(self.fd) {
            record.store_changed_ns.store(stat.changed_ns as u64, Ordering::Release);
        }
    }

    /// Gives the record, of a clean file, the size and the times that the store's file has.
    ///
    /// # Errors
    /// The store's errno: they are what they were.
    pub(crate) fn resize_from_store(&self) -> Result<(), Errno> {
        let record = self.record;
        let found = store::stat(self.fd);
        if let Ok(stat) = &found {
            record.size.store(stat.size, Ordering::Release);
            record.store_size.store(stat.size, Ordering::Release);
            record.store_mtime_ns.store(stat.modified_ns as u64, Ordering::Release);
            let changed = stat.changed_ns as u64;
            if record.store_changed_ns.swap(changed, Ordering::AcqRel) != changed {
                record.changed_ns.store(changed, Ordering::Release);
            }
        }
        record.clear(
            FileFlags::METADATA_DIRTY
                | FileFlags::DIRTY
                | FileFlags::STORE_WRITTEN
                | FileFlags::CONFLICT_CHECKED,
        );
        found.map(|_| ())
    }
}
