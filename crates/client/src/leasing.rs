//! Asking for a file that other nodes may have too, before it is looked at or changed.
//!
//! What lies in RAM needs no look at the lease: a node that has nothing of a file has no block of
//! it, and one that may only read it has no block that a write finds written before. So only calls
//! that go further look, and each looks again once it is inside the file: a lease is given back
//! with the file held exclusively.

use crate::access::{EnteredFile, ExclusiveFile};
use crate::manager_watch::ManagerState;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::sync::WORK_LOOK;
use crate::waiting::Wait;
use core::sync::atomic::Ordering;
use forebay_pool::clock::Timer;
use forebay_pool::layout::*;
use forebay_pool::lease::{Access, Grant, Lease};
use forebay_pool::{FileId, Identity, clock, crash, futex};
use rustix::io::Errno;

/// How long a call waits for a lease: the group may be without the node that has the file, and
/// decides that within this time.
const LEASE_TIMEOUT: Timer = Timer::seconds(60);
/// A signal handler that is kept waits for so long.
const HANDLER_TIMEOUT: Timer = Timer::seconds(4);
/// The node manager is told again after this: it may be another one.
const ASK_AGAIN: Timer = Timer::seconds(1);

impl OpenFile<'_> {
    /// Enters the file once this node may do that with it.
    ///
    /// # Errors
    /// As of [`OpenFile::enter`]; what the lease is refused with; `IO` if it does not come.
    #[inline]
    pub(crate) fn enter_for(&self, access: Access) -> Result<EnteredFile<'_>, Errno> {
        loop {
            // A handler that ran in a wait may have forked.
            let inside = self.enter(self.session.owner())?;
            if self.record.allows(access) {
                return Ok(inside);
            }
            drop(inside);
            self.obtain(access)?;
        }
    }

    /// [`OpenFile::exclusively`] once this node may do that with the file.
    ///
    /// # Errors
    /// As of [`OpenFile::exclusively`] and [`OpenFile::enter_for`].
    pub(crate) fn exclusively_for<R>(
        &self,
        access: Access,
        act: impl FnOnce(&ExclusiveFile<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut act = Some(act);
        loop {
            let done = self.exclusively(|file| match file.record.allows(access) {
                true => act.take().ok_or(Errno::IO)?(file).map(Some),
                false => Ok(None),
            })?;
            match done {
                Some(result) => return Ok(result),
                None => self.obtain(access)?,
            }
        }
    }

    /// What a call may do through the kernel with the descriptor.
    pub(crate) fn kernel_access(&self) -> Access {
        if self.may(DescriptionFlags::WRITE) { Access::Write } else { Access::Read }
    }

    /// Waits until this node may do that with the file. The caller is not inside it.
    ///
    /// # Errors
    /// As of [`OpenFile::enter_for`].
    #[cold]
    pub(crate) fn obtain(&self, access: Access) -> Result<(), Errno> {
        let wait = LeaseWait::begin(self.session, self.id, self.record, access);
        loop {
            wait.on(|| self.is_current())?;
            if self.record.allows(access) {
                return Ok(());
            }
            if !self.is_current() {
                return Err(Errno::BADF);
            }
            self.take_up()?;
        }
    }

    /// Makes what was granted this node's. The record has the file as it was when this node had it
    /// last: others may have changed it since.
    fn take_up(&self) -> Result<(), Errno> {
        let (record, segment) = (self.record, &self.session.segment);
        self.exclusively(|file| {
            let lease = record.lease.load();
            let Some(grant) = lease.granted() else { return Ok(()) };
            crash::point("lease.granted");
            if lease.held() == Lease::Nothing {
                file.resize_from_store()?;
                crash::point("lease.sized");
            }
            if grant == Grant::Direct {
                file.clean()?;
                segment.raise_stat_epoch();
                record.turn_direct();
            }
            record.lease.take_up();
            crash::point("lease.taken");
            Ok(())
        })
    }
}

impl Session {
    /// Whether other nodes may have files of the stores, too.
    #[inline]
    pub(crate) fn shares_files(&self) -> bool {
        self.segment.header().shares_files.load(Ordering::Acquire) != 0
    }

    /// Before a call asks the kernel about a file that this process need not have open: waits until
    /// what the store says is true. Returns whether it did. The file is left as it is where that
    /// cannot be known: the group may be without the node that has it.
    ///
    /// # Errors
    /// `INTR`.
    pub(crate) fn await_true(&self, identity: Identity) -> Result<bool, Errno> {
        if !self.shares_files() {
            return Ok(false);
        }
        let lacking = self.with_record(identity, |file| {
            let file = file?;
            let record = self.segment.file(file);
            lacks(record, Access::Read).then(|| (file, record.generation.load(Ordering::Acquire)))
        })?;
        let Some((file, generation)) = lacking else { return Ok(false) };
        let record = self.segment.file(file);
        let wait = LeaseWait::begin(self, file, record, Access::Read);
        match wait.on(|| record.generation.load(Ordering::Acquire) == generation) {
            Err(Errno::INTR) => Err(Errno::INTR),
            _ => Ok(true),
        }
    }
}

/// Whether processes have to wait for the group before they do that.
fn lacks(record: &FileRecord, access: Access) -> bool {
    !record.allows(access) && record.lease.load().granted().is_none()
}

/// A wait for the group.
struct LeaseWait<'s> {
    session: &'s Session,
    file: FileId,
    record: &'s FileRecord,
    access: Access,
    wait: Wait,
    began_ns: u64,
    refusals: u32,
}

impl<'s> LeaseWait<'s> {
    fn begin(session: &'s Session, file: FileId, record: &'s FileRecord, access: Access) -> Self {
        let (wait, began_ns) = (Wait::begin(), clock::monotonic_ns());
        let refusals = record.lease.load().refusals();
        LeaseWait { session, file, record, access, wait, began_ns, refusals }
    }

    /// Waits until something was granted, or this node may, or the record `is_same` no more.
    fn on(&self, is_same: impl Fn() -> bool) -> Result<(), Errno> {
        let segment = &self.session.segment;
        let done_word = &segment.header().work_done;
        let mut told_ns = None;
        loop {
            let done = done_word.load(Ordering::Acquire);
            if !lacks(self.record, self.access) || !is_same() {
                return Ok(());
            }
            let lease = self.record.lease.load();
            if lease.refusals() != self.refusals {
                return Err(lease.refused());
            }
            let now_ns = clock::monotonic_ns();
            let is_new = self.record.lease.ask(self.access);
            if is_new || told_ns.is_none_or(|at| now_ns - at > ASK_AGAIN.as_ns()) {
                segment.files().touch(self.file);
                let message = forebay_pool::message::Message::Lease { file: self.file };
                segment.post(Some(self.session.owner()), &message);
                told_ns = Some(now_ns);
            }
            futex::wait(done_word, done, WORK_LOOK.as_ms());
            let waited_ns = now_ns - self.began_ns;
            self.wait
                .look(|| segment.manager_is_stopped() || waited_ns > HANDLER_TIMEOUT.as_ns())?;
            if waited_ns > LEASE_TIMEOUT.as_ns() {
                return Err(Errno::IO);
            }
            if self.session.manager_watch.look(segment) == ManagerState::Stopped {
                return Err(Errno::TIMEDOUT);
            }
        }
    }
}
