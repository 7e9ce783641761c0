//! Entering files, having one exclusively, and making one clean for calls that go through the
//! kernel.

use crate::open_file::OpenFile;
use crate::session::{Session, borrow};
use crate::vigil::Seen;
use crate::waits::{Wait, surely};
use crate::write::{raise, time_of_change};
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::backoff::{Backoff, STOPPED_PATIENCE};
use forebay_pool::clock::Timer;
use forebay_pool::guards::BlockGuard;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::mark::{MARK_BYTES, MARKS_AT, Mark};
use forebay_pool::message::Message;
use forebay_pool::slot_record::RECORD_BYTES;
use forebay_pool::sums::SlotFiles;
use forebay_pool::truncate::Outside;
use forebay_pool::{FoundFile, Identity, Owner, SyncState, clock, crash, futex};
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{FallocateFlags, Timespec, Timestamps};
use rustix::io::Errno;

/// How often one who waits for the node manager looks whether there is one.
const WORK_LOOK: Timer = Timer::ms(50);

impl SlotFiles for OpenFile<'_> {
    fn read_slot(&self, bucket: u32, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.session.read_slot(bucket, within, to)
    }

    fn write_slot(&self, bucket: u32, within: usize, from: &[u8]) -> Result<(), Errno> {
        SlotFiles::write_slot(self.session, bucket, within, from)
    }

    fn write_record(&self, bucket: u32, record: &[u8; RECORD_BYTES]) -> Result<(), Errno> {
        self.session.write_record(bucket, record)
    }
}

/// What a truncate needs: this process's descriptor of the file, and the tier files.
impl Outside for OpenFile<'_> {
    fn truncate_store(&self, size: u64) -> Result<(), Errno> {
        self.note_cut()?;
        self.resize_store(size)
    }

    fn punch_store(&self, range: Range<u64>) -> Result<(), Errno> {
        self.note_cut()?;
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = range.end - range.start;
        forebay_pool::undo::writing(borrow(self.fd), range.start, bytes);
        let result = match rustix::fs::fallocate(borrow(self.fd), mode, range.start, bytes) {
            Err(Errno::BADF) => {
                let writable = crate::store::reopen(self.fd, rustix::fs::OFlags::WRONLY)?;
                rustix::fs::fallocate(writable, mode, range.start, bytes)
            }
            other => other,
        };
        self.record.clear(FileFlags::SYNCED);
        result
    }
}

impl OpenFile<'_> {
    /// Enters the file, waiting while somebody has it exclusively.
    ///
    /// # Errors
    /// `INTR`; `BADF` if the descriptor is not what it was.
    #[inline(always)]
    pub(crate) fn enter(&self, owner: Owner) -> Result<SharedGuard<'_>, Errno> {
        crash::point("file.entering");
        match self.session.segment.try_enter_record(self.id, self.record, owner) {
            Ok(inside) if self.is_current() => Ok(inside),
            Ok(inside) => self.session.turn_back(inside),
            Err(_) => self.enter_slow(owner),
        }
    }

    /// [`Session::enter`] of a call that has done nothing yet, and waits again where a handler allows it.
    ///
    /// # Errors
    /// As of [`Session::enter`].
    #[inline(always)]
    pub(crate) fn enter_restarting(&self, owner: Owner) -> Result<SharedGuard<'_>, Errno> {
        crash::point("file.entering");
        match self.session.segment.try_enter_record(self.id, self.record, owner) {
            Ok(inside) if self.is_current() => Ok(inside),
            Ok(inside) => self.session.turn_back(inside),
            Err(_) => self.enter_restarting_slow(owner),
        }
    }

    #[cold]
    fn enter_restarting_slow(&self, owner: Owner) -> Result<SharedGuard<'_>, Errno> {
        self.session.restarting(|| self.enter_slow(owner))
    }

    #[cold]
    fn enter_slow(&self, owner: Owner) -> Result<SharedGuard<'_>, Errno> {
        let (mut backoff, wait) = (Backoff::default(), Wait::begin());
        loop {
            match self.session.segment.try_enter(self.id, owner) {
                Ok(inside) if self.is_current() => return Ok(inside),
                Ok(inside) => return self.session.turn_back(inside),
                Err(_) if !self.is_current() => return Err(Errno::BADF),
                Err(holder) => {
                    if !backoff.wait() {
                        continue;
                    }
                    if self.session.segment.owner_is_dead(holder) {
                        // Completes what the dead owner left, and lets everybody in again.
                        self.exclusively(|| Ok(()))?;
                    }
                    self.session.look(&wait, holder, &backoff)?;
                }
            }
        }
    }

    /// Enters the file again that was left by [`forebay_pool::Segment::step_out`].
    ///
    /// # Errors
    /// `INTR`; it is still left then.
    pub(crate) fn step_in(&self, owner: Owner, inside: &SharedGuard) -> Result<(), Errno> {
        let (mut backoff, wait) = (Backoff::default(), Wait::begin());
        while let Err(holder) = self.session.segment.try_step_in(self.id, owner, inside) {
            if !backoff.wait() {
                continue;
            }
            if self.session.segment.owner_is_dead(holder) {
                let exclusive = self.session.segment.lock_exclusive(inside, self.id, owner)?;
                self.complete_left(exclusive.is_taken());
            }
            self.session.look(&wait, holder, &backoff)?;
        }
        Ok(())
    }

    /// Calls `act` while no other thread of any process is inside the file.
    ///
    /// # Errors
    /// `INTR`, or `BADF` if the descriptor is not what it was, and `act` was not called; those of `act`.
    pub(crate) fn exclusively<R>(
        &self,
        act: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.alone(|taken| {
            self.complete_left(taken);
            act()
        })
    }

    /// The same, without completing what a dead owner has left undone. `act` is told whether this thread did not have
    /// the file before.
    ///
    /// # Errors
    /// Those of [`Session::exclusively`].
    pub(crate) fn alone<R>(&self, act: impl FnOnce(bool) -> Result<R, Errno>) -> Result<R, Errno> {
        let owner = self.session.owner();
        let mut act = Some(act);
        self.session.restarting(|| {
            let inside = self.enter_beside(owner)?;
            let exclusive = self.session.segment.lock_exclusive(&inside, self.id, owner)?;
            // Called once: only the waits above begin again.
            let act = act.take().ok_or(Errno::IO)?;
            Ok(act(exclusive.is_taken()))
        })?
    }

    /// Completes what a dead owner left, if the caller has `taken` the file exclusively just now.
    fn complete_left(&self, taken: bool) {
        let record = self.record;
        if taken && record.has_intent() {
            record.set(FileFlags::STORE_WRITTEN);
            let _ = self.session.segment.complete_intent(self.id, self.session.owner(), self);
        }
    }

    /// Calls `act` with the description's offset while no other thread moves it.
    ///
    /// # Errors
    /// `INTR`, or `BADF` if the descriptor is not what it was, and `act` was not called; those of `act`.
    pub(crate) fn positioned<R>(
        &self,
        act: impl FnOnce(u64) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let owner = self.session.owner();
        let description = self.description;
        let mut act = Some(act);
        self.session.restarting(|| {
            let _inside = self.enter_beside(owner)?;
            let _position = self.session.segment.lock_position(description, owner)?;
            // Called once: only the waits above begin again.
            let act = act.take().ok_or(Errno::IO)?;
            Ok(act(description.offset.load(Ordering::Acquire)))
        })?
    }

    /// Sets the size of the file, at once on the store as well.
    ///
    /// # Errors
    /// `INVAL` if the descriptor is not open for writing or the size is none; the store's errno.
    pub fn truncate(&self, size: i64) -> Result<(), Errno> {
        let size = u64::try_from(size).map_err(|_| Errno::INVAL)?;
        if !self.may(DescriptionFlags::WRITE) {
            return Err(Errno::INVAL);
        }
        self.set_size(size)
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
        self.exclusively(|| {
            self.clean_up_store()?;
            self.bring_failing_up(size)?;
            self.record.set(FileFlags::STORE_WRITTEN);
            let cut = self.session.segment.truncate(self.id, size, self.session.owner(), self);
            crash::point("truncate.untimed");
            let record = self.record;
            if let Err(errno) = cut {
                self.undo_cut(errno);
                return Err(errno);
            }
            let now = time_of_change(record, clock::realtime_coarse_ns());
            record.mtime_ns.store(now, Ordering::Relaxed);
            record.changed_ns.store(now, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Makes the file clean and unbuffered, calls `act`, which may use the descriptor in any way
    /// that takes no kernel offset, and notes the size that follows.
    ///
    /// # Errors
    /// The errno of the flush; `act` is not called then.
    pub fn with_clean<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        self.session.counters().passed.fetch_add(1, Ordering::Relaxed);
        let mut act = Some(act);
        self.session.restarting(|| self.with_clean_once(&mut act))
    }

    /// `act` is taken where it is called.
    fn with_clean_once<R, F: FnOnce() -> R>(&self, act: &mut Option<F>) -> Result<R, Errno> {
        self.exclusively(|| {
            self.clean()?;
            self.settle()?;
            self.clean_up_store()?;
            self.restore_times();
            let record = self.record;
            if record.has(FileFlags::METADATA_DIRTY) {
                // From here on the store's file is the truth, whatever becomes of this process.
                self.resize_from_store();
            }
            record.set(FileFlags::STORE_WRITTEN);
            crash::point("clean.passing");
            let act = act.take().ok_or(Errno::IO)?;
            Ok(self.lengthening(|| {
                let result = act();
                record.clear(FileFlags::SYNCED);
                crash::point("clean.passed");
                self.resize_from_store();
                result
            }))
        })
    }

    /// Calls `act`, which may give the store's file another size, and notes the one that follows. The caller has the file
    /// exclusively, and has cleaned up after others.
    pub(crate) fn lengthening<R>(&self, act: impl FnOnce() -> R) -> R {
        let place = self.session.segment.begin_lengthening(self.record, self.session.owner());
        let result = act();
        if let Ok(Some(place)) = place {
            self.session.segment.end_lengthening(place);
        }
        result
    }

    /// Makes store and record agree about the size, if a process was killed while it gave the store's file another
    /// one: what is behind the end was never acknowledged. The caller has the file exclusively.
    ///
    /// # Errors
    /// The store's errno.
    pub(crate) fn clean_up_store(&self) -> Result<(), Errno> {
        let record = self.record;
        if !record.has_lengtheners() {
            return Ok(());
        }
        crash::point("lengthen.mending");
        let stored = rustix::fs::fstat(borrow(self.fd))?.st_size as u64;
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
        forebay_pool::undo::resizing(borrow(self.fd), size);
        let result = match rustix::fs::ftruncate(borrow(self.fd), size) {
            Err(Errno::INVAL | Errno::BADF) => {
                let writable = crate::store::reopen(self.fd, rustix::fs::OFlags::WRONLY)?;
                rustix::fs::ftruncate(writable, size)
            }
            other => other,
        };
        self.record.clear(FileFlags::SYNCED);
        result
    }

    /// Lets everybody use the file through the kernel from now on, until it is closed everywhere:
    /// it is used in a way that outlasts a call. `act` is called once the file is clean.
    ///
    /// # Errors
    /// The errno of the flush; `act` is not called then.
    pub fn make_direct<R>(&self, act: impl FnOnce() -> R) -> Result<R, Errno> {
        self.with_clean(|| {
            self.record.set(FileFlags::DIRECT);
            act()
        })
    }

    /// [`OpenFile::make_direct`] where it must not be left undone: signal handlers run, but end no wait.
    ///
    /// # Errors
    /// The errno of the flush.
    pub fn turn_direct(&self) -> Result<(), Errno> {
        surely(|| self.make_direct(|| ()))
    }

    /// Hands the descriptor to a program without Forebay: the file turns direct, and the kernel's
    /// offset becomes the description's.
    ///
    /// # Errors
    /// The errno of the flush.
    pub fn release_to_kernel(&self) -> Result<(), Errno> {
        let release = |offset| {
            self.make_direct(|| {
                let _ = rustix::fs::seek(borrow(self.fd), rustix::fs::SeekFrom::Start(offset));
                let flags = &self.description.flags;
                let flags = flags.set(DescriptionFlags::KERNEL_OFFSET, Ordering::AcqRel);
                if flags.contains(DescriptionFlags::APPEND)
                    && let Ok(kernel) = rustix::fs::fcntl_getfl(borrow(self.fd))
                {
                    let append = kernel | rustix::fs::OFlags::APPEND;
                    let _ = rustix::fs::fcntl_setfl(borrow(self.fd), append);
                }
            })
        };
        surely(|| self.positioned(release))
    }

    /// Whether some process has the file open for writing, so that a private mapping of it, too, may
    /// be expected to follow it.
    pub fn may_change(&self) -> bool {
        self.may(DescriptionFlags::WRITE)
            || self.record.has(FileFlags::ANNOUNCED)
                && self.session.segment.is_open_for_writing(self.id)
    }

    /// Keeps the file direct for as long as this process or a child of it may have it mapped.
    pub fn hold_mapping(&self) {
        let generation = self.record.generation.load(Ordering::Relaxed).wrapping_add(1);
        let held = self.session.mapped.get(self.id as usize);
        if held.is_some_and(|held| held.swap(generation, Ordering::AcqRel) == generation) {
            return;
        }
        let flags = DescriptionFlags::MAPPING;
        let (identity, owner) = (self.record.identity(), self.session.owner());
        // Without a description to spare the file may turn buffered again after its last close,
        // while a mapping still shows what was there before.
        let open = |file| {
            let held = self.session.segment.open_description(file, flags, owner);
            if held.is_none() {
                self.session.segment.note_unrecorded(identity, owner);
            }
        };
        let _ = surely(|| {
            let _inside = self.session.segment.enter_table(owner);
            self.session.segment.reopen_file(identity, owner, open)
        });
    }

    /// Flushes until no block is buffered. The caller has the file exclusively.
    fn clean(&self) -> Result<(), Errno> {
        if self.record.has(FileFlags::DIRECT) {
            return Ok(());
        }
        for _ in 0..100 {
            if self.session.segment.drop_clean_blocks(self.id, self.session.owner()) {
                return Ok(());
            }
            self.flush(false)?;
        }
        Err(self.last_error().unwrap_or(Errno::IO))
    }

    /// Gives the store's file, which was just flushed, the times that programs see. The caller has
    /// the file exclusively.
    fn restore_times(&self) {
        let record = self.record;
        if !record.has(FileFlags::METADATA_DIRTY) || record.has(FileFlags::DIRECT) {
            return;
        }
        let (seconds, nanoseconds) = clock::parted_ns(record.mtime_ns.load(Ordering::Acquire));
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
        };
        // Only the owner of a file may set its times; others see the time of the flush.
        let _ = rustix::fs::futimens(borrow(self.fd), &times);
        if let Ok(stat) = rustix::fs::fstat(borrow(self.fd)) {
            record.store_changed_ns.store(crate::open::ctime_ns(&stat), Ordering::Release);
        }
    }

    fn resize_from_store(&self) {
        let record = self.record;
        if let Ok(stat) = rustix::fs::fstat(borrow(self.fd)) {
            record.size.store(stat.st_size as u64, Ordering::Release);
            record.store_size.store(stat.st_size as u64, Ordering::Release);
            record.store_mtime_ns.store(crate::open::mtime_ns(&stat), Ordering::Release);
            let changed = crate::open::ctime_ns(&stat);
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
    }

    /// Before the kernel changes a file in ways of its own: what journal and slots have of it counts
    /// no more. The caller has it exclusively, and clean.
    fn settle(&self) -> Result<(), Errno> {
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

    /// Tells the journal of a truncate or a punch, the intent of which stands in the record, before the
    /// store changes: else a recovery would undo one half of it.
    pub(crate) fn note_cut(&self) -> Result<(), Errno> {
        let record = self.record;
        if !record.is_logged() {
            return Ok(());
        }
        let header = self.session.segment.header();
        record.set(FileFlags::TO_CUT);
        self.session.segment.tell(Some(self.session.owner()), &Message::Sync { file: self.id });
        let wait = Wait::begin();
        while record.has(FileFlags::TO_CUT) {
            let done = header.work_done.load(Ordering::Acquire);
            if !record.has(FileFlags::TO_CUT) {
                break;
            }
            futex::wait(&header.work_done, done, WORK_LOOK.as_ms());
            if !record.has(FileFlags::TO_CUT) {
                break;
            }
            if let Err(errno) = wait.look(|| self.session.segment.manager_is_stopped()) {
                record.clear(FileFlags::TO_CUT);
                return Err(errno);
            }
            match self.session.vigil.look(&self.session.segment) {
                Seen::AtWork => {}
                Seen::Gone => {
                    record.clear(FileFlags::TO_CUT);
                    return self.flush_here(true);
                }
                Seen::Stopped => {
                    record.clear(FileFlags::TO_CUT);
                    return Err(Errno::TIMEDOUT);
                }
            }
        }
        Ok(())
    }

    /// The journal was told of a cut that did not happen, because of `errno`: what it has of the file must not
    /// count.
    pub(crate) fn undo_cut(&self, errno: Errno) {
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

    /// Makes what was written so far safe, and reports an error that this description has not learned
    /// of. Safe is on the store, or, if `durable`, where the file's durability says.
    ///
    /// # Errors
    /// The store's errno, once for each description and error.
    pub fn sync(&self, durable: bool) -> Result<(), Errno> {
        self.session.restarting(|| self.sync_once(durable))
    }

    fn sync_once(&self, durable: bool) -> Result<(), Errno> {
        let record = self.record;
        let flushed = match durable.then(|| self.session.durability(record)) {
            // What ends with its job needs no safety beyond it.
            _ if record.has(FileFlags::SCRATCH) => Ok(()),
            // Who uses it through the kernel means the kernel's.
            Some(Durability::Memory) if !record.has(FileFlags::DIRECT) => Ok(()),
            Some(Durability::NonVolatile) => self.log(),
            _ => self.flush(durable),
        };
        let owner = self.session.owner();
        let inside = self.enter_beside(owner);
        let unreported = inside.ok().and_then(|_inside| self.unreported_error());
        match unreported {
            Some(errno) => Err(errno),
            None => flushed,
        }
    }

    /// [`OpenFile::sync`] at the end of a write. That another thread has closed the descriptor since is not said as
    /// `BADF`, nor that a signal has ended the wait as `INTR`: the write is done, and a program that made it again
    /// would append twice, or write over what others have written since.
    ///
    /// # Errors
    /// As of [`OpenFile::sync`].
    pub fn sync_written(&self, durable: bool) -> Result<(), Errno> {
        self.sync(durable).map_err(|errno| match errno {
            Errno::BADF | Errno::INTR => Errno::IO,
            other => other,
        })
    }

    /// Makes what was written so far durable on the store or a file tier.
    fn log(&self) -> Result<(), Errno> {
        if self.is_on_store() {
            return crate::store::fsync(self.fd);
        }
        self.announce();
        match self.session.await_sync(self.id, FileFlags::TO_LOG)? {
            true => Ok(()),
            false => self.flush_here(true),
        }
    }

    /// Whether nothing that was written is missing on the store, so that the kernel knows how to make it
    /// durable; nor would a recovery write something else over it.
    fn is_on_store(&self) -> bool {
        let record = self.record;
        let unbuffered =
            record.entry0.load(Ordering::Acquire) == 0 && record.root.load(Ordering::Acquire) == 0;
        let behind = record.has(FileFlags::METADATA_DIRTY) || record.has(FileFlags::DIRTY);
        record.has(FileFlags::DIRECT) || (unbuffered || !behind) && !record.is_tracked()
    }

    pub(crate) fn flush(&self, durable: bool) -> Result<(), Errno> {
        let record = self.record;
        let unbuffered =
            record.entry0.load(Ordering::Acquire) == 0 && record.root.load(Ordering::Acquire) == 0;
        if durable && self.is_on_store() {
            return crate::store::fsync(self.fd);
        }
        if !durable && (unbuffered || record.has(FileFlags::DIRECT)) {
            return Ok(());
        }
        self.announce();
        let durably = FileFlags::DURABLE.when(durable);
        match self.session.await_sync(self.id, FileFlags::TO_FLUSH | durably)? {
            true => Ok(()),
            false => self.flush_here(durable),
        }
    }

    /// Makes the file clean and has the node manager close its descriptor of it, because a program
    /// that anyone has open for writing cannot be executed.
    ///
    /// # Errors
    /// The errno of the flush.
    pub fn let_go(&self) -> Result<(), Errno> {
        surely(|| self.with_clean(|| ()))?;
        surely(|| self.session.await_sync(self.id, FileFlags::TO_FLUSH | FileFlags::LET_GO))?;
        Ok(())
    }

    /// Flushes the file from this process: no node manager was there to do it.
    fn flush_here(&self, durable: bool) -> Result<(), Errno> {
        crash::point("flush-here.alone");
        let (record, owner) = (self.record, self.session.owner());
        let tracked = record.is_tracked();
        let sequence = if tracked { self.session.segment.next_sequence() } else { 0 };
        record.set(FileFlags::STORE_WRITTEN);
        // Not while somebody truncates or punches: it must not come to the store after that.
        let inside = self.enter(owner)?;
        let mut result = Ok(());
        self.session.segment.for_each_entry(record, 0, |block, place| {
            let held = match self.session.segment.lock_block_unless_interrupted(place, owner) {
                Ok(Some(held)) => held,
                Ok(None) => return true,
                Err(errno) => {
                    result = Err(errno);
                    return false;
                }
            };
            let meta = held.meta();
            // A manager may have come since. What it is writing must stay marked: a truncate waits for that.
            self.session.segment.wait_for_writeback(meta);
            // What a dead manager was writing may or may not have arrived. What was cut or punched since is not valid.
            let valid = meta.valid.load(Ordering::Acquire);
            meta.take_back_writeback();
            let dirty = meta.pages.dirty() & valid;
            let pages = 0..PAGES_PER_BUCKET as usize;
            crash::point("flush-here.begin");
            for page in pages.filter(|page| dirty >> page & 1 == 1) {
                if let Err(errno) = self.flush_page(&held, block, page) {
                    result = Err(errno);
                    break;
                }
                crash::point("flush-here.page");
                meta.pages.clear_dirty(1 << page);
            }
            if dirty != 0 && held.tier() > 0 {
                self.session.segment.record_slot(self, held.bucket());
            }
            result.is_ok()
        });
        drop(inside);
        result?;
        if !durable {
            return Ok(());
        }
        crate::store::fsync(self.fd)?;
        if tracked { self.mark_settled(sequence) } else { Ok(()) }
    }

    /// Says in the journal's file that what journal and slots have of a file up to `sequence` counts no
    /// more, for a recovery that comes before another node manager.
    fn mark_settled(&self, sequence: u64) -> Result<(), Errno> {
        let record = self.record;
        let identity = record.identity();
        let mark = Mark {
            device: identity.device,
            inode: identity.inode,
            born_ns: record.born_ns.load(Ordering::Acquire),
            sequence,
        };
        let file = match self.session.open_journal() {
            // Nothing was ever logged, and what slots have is in their records.
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let at = MARKS_AT + u64::from(self.id) * MARK_BYTES as u64;
        if crash::planted("no-mark") {
            return Ok(());
        }
        crash::point("mark.writing");
        forebay_pool::undo::writing(file.as_fd(), at, MARK_BYTES as u64);
        if rustix::io::pwrite(&file, &mark.encode(), at)? != MARK_BYTES {
            return Err(Errno::IO);
        }
        crash::point("mark.written");
        crate::store::fsync(file.as_raw_fd())?;
        crash::point("mark.synced");
        Ok(())
    }

    fn flush_page(&self, held: &BlockGuard<'_>, block: u64, number: usize) -> Result<(), Errno> {
        let page = self.session.segment.page_bytes();
        let start = block * self.session.segment.bucket_bytes() as u64 + (number * page) as u64;
        let size = self.record.size.load(Ordering::Acquire);
        let mut left = (size.saturating_sub(start) as usize).min(page);
        let mut at = number * page;
        let mut offset = start;
        let mut chunk = [0u8; 4096];
        self.session.segment.judge_pages(self, held.bucket(), 1 << number)?;
        while left > 0 {
            let count = left.min(chunk.len());
            let from = if held.tier() == 0 {
                self.session.ram(held.bucket()).after(at).first(count).readable()
            } else {
                self.session.slot_read(held.bucket(), at, (&mut chunk[..count]).into())?;
                chunk[..count].into()
            };
            let written = self.store_write(from, offset)?;
            (left, at, offset) = (left - written, at + written, offset + written as u64);
        }
        raise(&self.record.store_size, offset);
        Ok(())
    }

    fn last_error(&self) -> Option<Errno> {
        let errno = self.record.last_errno();
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    /// The error of a flush that this description has not yet learned of; it has, afterwards.
    pub(crate) fn unreported_error(&self) -> Option<Errno> {
        let seen = &self.description.error_seen;
        self.record.check_errors(seen).map(Errno::from_raw_os_error)
    }
}

impl Session {
    /// A descriptor of this process through which that file can be written.
    pub(crate) fn writer(&self, device: u64, inode: u64) -> Option<OpenFile<'_>> {
        self.files().find(|&file| {
            file.may(DescriptionFlags::WRITE)
                && file.record.identity() == Identity { device, inode }
        })
    }

    /// Brings everything that is buffered in this segment to the store, whichever process wrote it, and makes
    /// it durable if asked; scratch files only if not: another program is about to read them on the store.
    /// Signals do not end it, as in the kernel. False if some of it did not come there: what stopped processes
    /// hold is waited for only as long as [`STOPPED_PATIENCE`] says.
    pub fn sync_all(&self, durable: bool) -> bool {
        let ahead = |found: &FoundFile| {
            let record = self.segment.file(found.file);
            record.has(FileFlags::METADATA_DIRTY) && !(durable && record.has(FileFlags::SCRATCH))
        };
        // The tickets first, so that the manager works on all files while we wait for the first.
        for FoundFile { file, .. } in self.segment.found_files().filter(ahead) {
            match self.durability(self.segment.file(file)) {
                Durability::NonVolatile if durable => {
                    self.segment.request(file, Some(self.owner()), FileFlags::TO_LOG);
                }
                _ => {
                    self.segment.request_sync(file, Some(self.owner()), durable);
                }
            }
        }
        let header = self.segment.header();
        let began_ns = clock::monotonic_ns();
        let is_late = || clock::monotonic_ns() - began_ns > STOPPED_PATIENCE.as_ns();
        let mut all = true;
        for found in self.segment.found_files().filter(ahead) {
            let record = self.segment.file(found.file);
            let ticket = record.sync_wanted.load(Ordering::Acquire);
            let waits = || self.segment.sync_state(found, ticket) == SyncState::Waiting;
            while waits() {
                let done = header.work_done.load(Ordering::Acquire);
                if !waits() {
                    break;
                }
                futex::wait(&header.work_done, done, WORK_LOOK.as_ms());
                if self.vigil.look(&self.segment) != Seen::AtWork
                    || is_late() && self.segment.is_held_by_stopped(found.file)
                {
                    all &= !waits();
                    break;
                }
            }
        }
        all
    }

    /// Has the node manager do what `flags` say for a file, and waits. False if no manager is there to
    /// do it.
    ///
    /// # Errors
    /// `INTR` if the manager, or a process that holds some of the file, is stopped, and a signal ends the wait for it.
    /// `TIMEDOUT` if the manager is not continued. It does what it was asked for when it goes on.
    fn await_sync(&self, file: u32, flags: FileFlags) -> Result<bool, Errno> {
        let header = self.segment.header();
        let ticket = self.segment.request(file, Some(self.owner()), flags);
        let wait = Wait::begin();
        let stands = || self.segment.manager_is_stopped() || self.segment.is_held_by_stopped(file);
        loop {
            let done = header.work_done.load(Ordering::Acquire);
            if self.segment.is_synced(file, ticket) {
                return Ok(true);
            }
            futex::wait(&header.work_done, done, WORK_LOOK.as_ms());
            if self.segment.is_synced(file, ticket) {
                return Ok(true);
            }
            wait.look(stands)?;
            if header.work_done.load(Ordering::Acquire) != done {
                continue;
            }
            match self.vigil.look(&self.segment) {
                Seen::AtWork => {}
                Seen::Gone => return Ok(false),
                Seen::Stopped => return Err(Errno::TIMEDOUT),
            }
        }
    }
}
