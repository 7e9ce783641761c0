//! Bringing what was written to the store, or to where it is durable.

use crate::access::EnteredFile;
use crate::changed::raise;
use crate::manager_watch::ManagerState;
use crate::open_file::OpenFile;
use crate::recording;
use crate::session::Session;
use crate::waiting::{Wait, surely};
use core::ops::Range;
use core::sync::atomic::Ordering;
use forebay_pool::backoff::STOPPED_TIMEOUT;
use forebay_pool::clock::Timer;
use forebay_pool::guards::BlockGuard;
use forebay_pool::layout::*;
use forebay_pool::mark::{MARK_BYTES, MARKS_AT, Mark};
use forebay_pool::moves::Place;
use forebay_pool::spans::SpanKind;
use forebay_pool::{FileId, FoundFile, Identity, SyncState, clock, crash, futex};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// How often a thread that waits for the node manager looks whether there is one.
pub(crate) const WORK_LOOK: Timer = Timer::ms(50);

impl OpenFile<'_> {
    /// Does what a close of the last descriptor of a description asks for.
    pub(crate) fn closing(&self) {
        if self.is_recorded() {
            return self.closing_noted();
        }
        self.closing_unnoted();
    }

    #[cold]
    #[inline(never)]
    fn closing_noted(&self) {
        let start_ns = recording::begin_ns();
        self.note_close();
        self.closing_unnoted();
        self.session.note_span(SpanKind::Close, start_ns);
    }

    #[inline(always)]
    fn closing_unnoted(&self) {
        // A flush that is under way has cleared `DIRTY`.
        let is_ahead =
            self.may(DescriptionFlags::WRITE) && self.record.has(FileFlags::METADATA_DIRTY);
        if is_ahead && self.commits() {
            return self.publish_closed();
        }
        let written = self.may(DescriptionFlags::WRITE) && self.record.has(FileFlags::DIRTY);
        if !written {
            return;
        }
        // The kernel and ld.so read programs and libraries from the store, at a time we cannot see.
        if self.record.has(FileFlags::EXECUTABLE) && self.may_be_program() {
            if !self.record.may_be_held() {
                let _ = surely(|| self.flush(false, &Wait::begin()));
            }
            // What the manager has open for writing cannot be executed. It closes that after its
            // flush.
            if self.record.may_be_held() {
                let _ = surely(|| self.flush_by_manager(false, &Wait::begin()));
            }
        } else if self.record.is_staged() {
            // Others may have it open still: the node manager sees to that.
            self.session.segment.want_work();
        } else if !self.record.has(FileFlags::SCRATCH)
            && self.session.trigger(self.record) == Trigger::PerFile
        {
            self.session.segment.request_sync(self.id, Some(self.session.owner()), false);
        } else {
            self.end_syncs();
        }
    }

    /// Whether the kernel or ld.so may take the file for a program, a library or a script: by its
    /// first bytes, or where these cannot be told at once.
    fn may_be_program(&self) -> bool {
        let inside = self.enter_restarting(self.session.owner());
        let head = inside.ok().and_then(|inside| inside.head::<4>());
        head.is_none_or(|head| head == *b"\x7fELF" || head.starts_with(b"#!"))
    }

    /// Makes what was written so far safe, and reports an error that this description has not
    /// learned of. Safe is on the store, or, if `durable`, where the file's durability says.
    ///
    /// # Errors
    /// The store's errno, once for each description and error.
    pub fn sync(&self, durable: bool) -> Result<(), Errno> {
        let start_ns = recording::begin_ns();
        if durable {
            self.end_step();
        }
        let synced = self.session.restarting(|| {
            self.sync_once(durable, None)?;
            self.look_afresh()
        });
        self.session.note_span(SpanKind::Sync, start_ns);
        synced
    }

    /// Notes that the program has finished a step of what it writes to the file, for what is to run
    /// after each; see docs/analyse.md.
    pub fn end_step(&self) {
        if self.may(DescriptionFlags::WRITE) && !self.session.carried.is_action() {
            self.record.note_step();
        }
    }

    fn sync_once(&self, durable: bool, written: Option<&Range<u64>>) -> Result<(), Errno> {
        let record = self.record;
        if self.session.segment.was_lengthened(record) {
            // What a killed process has left behind the end was never acknowledged.
            self.exclusively(|file| file.clean_up_store())?;
        }
        // A handler that ran while this process tried it itself ends the wait for the manager.
        let wait = Wait::begin();
        let flushed = match durable.then(|| self.session.durability(record)) {
            // Whatever it says of what survives, others are to see it.
            durability if self.commits() => {
                self.publish(durability == Some(Durability::Store), &wait)
            }
            // What ends with its job needs no safety beyond it.
            _ if record.has(FileFlags::SCRATCH) => Ok(()),
            // A program that uses it through the kernel means the kernel's.
            Some(Durability::Memory) if !record.has(FileFlags::DIRECT) => Ok(()),
            Some(Durability::NonVolatile) => self.log(),
            _ => match written {
                Some(range) if self.write_through(range)? => Ok(()),
                _ => self.flush(durable, &wait),
            },
        };
        let owner = self.session.owner();
        let inside = self.enter_beside(owner);
        let unreported = inside.ok().and_then(|_inside| self.unreported_error());
        match unreported {
            Some(errno) => Err(errno),
            None => flushed,
        }
    }

    /// [`OpenFile::sync`] at the end of a write. That another thread has closed the descriptor
    /// since is not said as `BADF`, nor that a signal has ended the wait as `INTR`: the write is
    /// done, and a program that made it again would append twice, or write over what others have
    /// written since.
    ///
    /// # Errors
    /// As of [`OpenFile::sync`].
    pub fn sync_written(&self, durable: bool) -> Result<(), Errno> {
        let sync = || self.sync_once(durable, None);
        self.session.restarting(sync).map_err(of_done_write)
    }

    /// The same where O_SYNC or O_DSYNC asks for it: of `range`, which was written.
    ///
    /// # Errors
    /// As of [`OpenFile::sync`].
    pub(crate) fn sync_range_written(&self, range: Range<u64>) -> Result<(), Errno> {
        let sync = || self.sync_once(true, Some(&range));
        self.session.restarting(sync).map_err(of_done_write)
    }

    /// Makes what was written so far durable on the store or a file tier.
    fn log(&self) -> Result<(), Errno> {
        if self.is_on_store() {
            return crate::store::fsync(self.fd);
        }
        self.register();
        if self.record.has(FileFlags::DIRECT) {
            // What the kernel was told is not in the journal.
            return self.flush_by_manager(true, &Wait::begin());
        }
        match self.session.await_sync(self.id, FileFlags::TO_LOG)? {
            true => Ok(()),
            false => self.flush_here(true),
        }
    }

    /// Whether nothing that was written is missing on the store, so that the kernel knows how to
    /// make it durable; nor would a recovery write something else over it.
    fn is_on_store(&self) -> bool {
        let record = self.record;
        let unbuffered =
            record.entry0.load(Ordering::Acquire) == 0 && record.root.load(Ordering::Acquire) == 0;
        let behind = record.has(FileFlags::METADATA_DIRTY) || record.has(FileFlags::DIRTY);
        let is_direct = record.has(FileFlags::DIRECT);
        (is_direct || unbuffered || !behind) && !record.is_tracked()
    }

    pub(crate) fn flush(&self, durable: bool, wait: &Wait) -> Result<(), Errno> {
        let record = self.record;
        let unbuffered =
            record.entry0.load(Ordering::Acquire) == 0 && record.root.load(Ordering::Acquire) == 0;
        if durable && self.is_on_store() {
            return crate::store::fsync(self.fd);
        }
        if !durable && (unbuffered || record.has(FileFlags::DIRECT)) {
            return Ok(());
        }
        let written = match durable {
            true => self.write_back_for_sync()?,
            false => self.write_back_few()?,
        };
        if written {
            if durable {
                self.sync_store()?;
            }
            // What journal or slots have got meanwhile may be older than what was written now.
            if !durable || !record.is_tracked() {
                return Ok(());
            }
        }
        self.flush_by_manager(durable, wait)
    }

    /// Makes durable what the store has. An error is every description's to learn of.
    fn sync_store(&self) -> Result<(), Errno> {
        crash::point("write-back.syncing");
        let result = crate::store::fsync(self.fd);
        if let Err(errno) = result {
            self.record.report(errno.raw_os_error() as u32);
        }
        crash::point("write-back.synced");
        result
    }

    /// Has the node manager bring the file to the store, or does it here where there is none.
    pub(crate) fn flush_by_manager(&self, durable: bool, wait: &Wait) -> Result<(), Errno> {
        self.register();
        let durably = FileFlags::DURABLE.when(durable);
        match self.session.await_sync_in(wait, self.id, FileFlags::TO_FLUSH | durably)? {
            true => Ok(()),
            false => self.flush_here(durable),
        }
    }

    /// Flushes the file from this process: no node manager was there to do it.
    pub(crate) fn flush_here(&self, durable: bool) -> Result<(), Errno> {
        crash::point("flush-here.alone");
        if !self.session.segment.header().may_flush() {
            // Others may have been given the file since a manager has looked. It is kept here.
            return Err(Errno::IO);
        }
        let (record, owner) = (self.record, self.session.owner());
        let tracked = record.is_tracked();
        let sequence = if tracked { self.session.segment.next_sequence() } else { 0 };
        record.set(FileFlags::STORE_WRITTEN);
        // Not while another process truncates or punches: it must not come to the store after that.
        self.enter(owner)?.write_back()?;
        if !durable {
            return Ok(());
        }
        crate::store::fsync(self.fd)?;
        if tracked { self.write_checkpoint_mark(sequence) } else { Ok(()) }
    }

    /// Says in the journal's file that what journal and slots have of a file up to `sequence`
    /// counts no more, for a recovery that comes before another node manager.
    fn write_checkpoint_mark(&self, sequence: u64) -> Result<(), Errno> {
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
        let at = MARKS_AT + u64::from(self.id.raw()) * MARK_BYTES as u64;
        if crash::planted("no-mark") {
            return Ok(());
        }
        crash::point("mark.writing");
        forebay_pool::power_loss::writing(file.as_fd(), at, MARK_BYTES as u64);
        if rustix::io::pwrite(&file, &mark.encode(), at)? != MARK_BYTES {
            return Err(Errno::IO);
        }
        crash::point("mark.written");
        crate::store::fsync(file.as_raw_fd())?;
        crash::point("mark.synced");
        Ok(())
    }

    pub(crate) fn last_error(&self) -> Option<Errno> {
        let errno = self.record.last_errno();
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    /// The error of a flush that this description has not yet learned of; it has, afterwards.
    pub(crate) fn unreported_error(&self) -> Option<Errno> {
        let seen = &self.description.error_seen;
        self.record.check_errors(seen).map(Errno::from_raw_os_error)
    }
}

/// The error of a sync whose write is done.
fn of_done_write(errno: Errno) -> Errno {
    match errno {
        Errno::BADF | Errno::INTR => Errno::IO,
        other => other,
    }
}

impl EnteredFile<'_> {
    /// Brings the dirty pages to the store.
    fn write_back(&self) -> Result<(), Errno> {
        let mut result = Ok(());
        self.session.segment.for_each_entry(self.record, 0, |block, entry| {
            let held = match self.session.segment.lock_block_unless_interrupted(entry, self.owner) {
                Ok(Some(held)) => held,
                Ok(None) => return true,
                Err(errno) => {
                    result = Err(errno);
                    return false;
                }
            };
            let meta = held.meta();
            // A manager may have come since. What it is writing must stay marked: a truncate waits
            // for that.
            self.session.segment.wait_for_writeback(meta);
            // What a dead manager was writing may or may not have arrived. What was cut or punched
            // since is not valid.
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
            if dirty != 0 && !held.tier().is_ram() {
                self.session.segment.record_slot(self.session, held.bucket());
            }
            result.is_ok()
        });
        result
    }

    fn flush_page(&self, held: &BlockGuard<'_>, block: u64, number: usize) -> Result<(), Errno> {
        let page = self.session.segment.page_bytes();
        let start = block * self.session.segment.bucket_bytes() as u64 + (number * page) as u64;
        let size = self.record.size.load(Ordering::Acquire);
        let mut left = (size.saturating_sub(start) as usize).min(page);
        let mut at = number * page;
        let mut offset = start;
        let mut chunk = [0u8; 4096];
        self.session.segment.verify_pages(self.session, held.bucket(), 1 << number)?;
        while left > 0 {
            let count = left.min(chunk.len());
            let from = if held.tier().is_ram() {
                self.session.ram(held.bucket()).after(at).first(count).readable()
            } else {
                self.session.slot_read(held.bucket(), at, (&mut chunk[..count]).into())?;
                chunk[..count].into()
            };
            let written = self.store_write(from, offset)?;
            self.session.note_moved(Place::Tier(held.tier()), Place::Store, written);
            (left, at, offset) = (left - written, at + written, offset + written as u64);
        }
        raise(&self.record.store_size, offset);
        Ok(())
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

    /// Brings everything that is buffered in this segment to the store, whichever process wrote it,
    /// and makes it durable if asked; scratch files only if not: another program is about to read
    /// them on the store. Signals do not end it, as in the kernel. False if some of it did not come
    /// there: what stopped processes hold is waited for only as long as [`STOPPED_TIMEOUT`] says.
    pub fn sync_all(&self, durable: bool) -> bool {
        let ahead = |found: &FoundFile| {
            let record = self.segment.file(found.file);
            // What journal and slots have of it must not come back over what is synced.
            let is_ahead = record.has(FileFlags::METADATA_DIRTY) || durable && record.is_tracked();
            is_ahead && !(durable && record.has(FileFlags::SCRATCH))
        };
        // The tickets first, so that the manager works on all files while we wait for the first.
        for FoundFile { file, .. } in self.segment.found_in_use().filter(ahead) {
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
        let is_late = || clock::monotonic_ns() - began_ns > STOPPED_TIMEOUT.as_ns();
        let mut all = true;
        for found in self.segment.found_in_use().filter(ahead) {
            let record = self.segment.file(found.file);
            let ticket = record.sync_wanted.load(Ordering::Acquire);
            let waits = || self.segment.sync_state(found, ticket) == SyncState::Waiting;
            while waits() {
                let done = header.work_done.load(Ordering::Acquire);
                if !waits() {
                    break;
                }
                futex::wait(&header.work_done, done, WORK_LOOK.as_ms());
                if self.manager_watch.look(&self.segment) != ManagerState::AtWork
                    || is_late() && self.segment.is_held_by_stopped(found.file)
                {
                    all &= !waits();
                    break;
                }
            }
        }
        all
    }

    /// Has the node manager do what `flags` say for a file, and waits. False if no manager is there
    /// to do it.
    ///
    /// # Errors
    /// `INTR` if the manager, or a process that holds some of the file, is stopped, and a signal
    /// ends the wait for it. `TIMEDOUT` if the manager is not continued. It does what it was asked
    /// for when it goes on.
    pub(crate) fn await_sync(&self, file: FileId, flags: FileFlags) -> Result<bool, Errno> {
        self.await_sync_in(&Wait::begin(), file, flags)
    }

    /// The same, in a wait that may have begun before.
    fn await_sync_in(&self, wait: &Wait, file: FileId, flags: FileFlags) -> Result<bool, Errno> {
        let header = self.segment.header();
        let ticket = self.segment.request(file, Some(self.owner()), flags);
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
            match self.manager_watch.look(&self.segment) {
                ManagerState::AtWork => {}
                ManagerState::Gone => return Ok(false),
                ManagerState::Stopped => return Err(Errno::TIMEDOUT),
            }
        }
    }
}
