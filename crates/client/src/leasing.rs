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
use crate::sharing::{Lacking, Need};
use crate::sync::WORK_LOOK;
use crate::waiting::Wait;
use core::sync::atomic::Ordering;
use forebay_pool::clock::Timer;
use forebay_pool::layout::*;
use forebay_pool::lease::{Access, Grant, Lease, LeaseWord};
use forebay_pool::message::Message;
use forebay_pool::parts::Part;
use forebay_pool::{FileId, clock, crash, futex};
use rustix::io::Errno;

/// How long a call waits for a lease: the group may be without the node that has the file, and
/// decides that within this time.
const LEASE_TIMEOUT: Timer = Timer::seconds(60);
/// A signal handler that is kept waits for so long.
const HANDLER_TIMEOUT: Timer = Timer::seconds(4);
/// The node manager is told again after this: it may be another one.
pub(crate) const ASK_AGAIN: Timer = Timer::seconds(1);

impl OpenFile<'_> {
    /// Enters the file once this node may do that with it.
    ///
    /// # Errors
    /// As of [`OpenFile::enter`]; what the lease is refused with; `IO` if it does not come.
    #[inline]
    pub(crate) fn enter_for(&self, need: Need) -> Result<EnteredFile<'_>, Errno> {
        loop {
            // A handler that ran in a wait may have forked.
            let inside = self.enter(self.session.owner())?;
            if self.record.allows(need.access()) || self.has_parts(&need)? {
                return Ok(inside);
            }
            drop(inside);
            self.obtain(&need)?;
        }
    }

    /// [`OpenFile::exclusively`] once this node may do that with the file.
    ///
    /// # Errors
    /// As of [`OpenFile::exclusively`] and [`OpenFile::enter_for`].
    pub(crate) fn exclusively_for<R>(
        &self,
        need: Need,
        act: impl FnOnce(&ExclusiveFile<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut act = Some(act);
        loop {
            let done = self.exclusively(|file| {
                match file.record.allows(need.access()) || file.has_parts(&need)? {
                    true => act.take().ok_or(Errno::IO)?(file).map(Some),
                    false => Ok(None),
                }
            })?;
            match done {
                Some(result) => return Ok(result),
                None => self.obtain(&need)?,
            }
        }
    }

    /// Asks for a file that was opened to be written, and waits for nothing: where programs of
    /// several nodes open it together, it is shared before any of them has written, and none has
    /// to flush what it has for that.
    pub(crate) fn ask_to_write(&self) {
        let (session, record) = (self.session, self.record);
        let lease = record.lease.load();
        let may_ask = lease.held() == Lease::Nothing && lease.granted().is_none();
        if may_ask && record.lease.ask(Access::Write) {
            // Where it cannot be told now, the first call that needs the file does.
            let _ = session.segment.ask_group(session.owner(), &Message::Lease { file: self.id });
        }
    }

    /// What a call needs that may do anything through the kernel with the descriptor.
    pub(crate) fn kernel_need(&self) -> Need {
        Need::Whole(if self.may(DescriptionFlags::WRITE) { Access::Alone } else { Access::Read })
    }

    /// Waits until this node may do that with the file. The caller is not inside it.
    ///
    /// # Errors
    /// As of [`OpenFile::enter_for`].
    #[cold]
    pub(crate) fn obtain(&self, need: &Need) -> Result<(), Errno> {
        let mut wait = LeaseWait::begin(self.session, self.id, self.record, need);
        loop {
            let lease = wait.on(|| self.is_current())?;
            if !self.is_current() {
                return Err(Errno::BADF);
            }
            // Else it has what it needs, of the whole or of parts, and looks once it is inside.
            if lease.allows(need.access()) || lease.commits() || lease.granted().is_none() {
                return Ok(());
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
            match lease.held() {
                // One that was borrowed was flushed by the one that lent it.
                Lease::Nothing | Lease::Borrowed => {
                    file.resize_from_store()?;
                    crash::point("lease.sized");
                }
                // What others have made of it is on the store.
                Lease::Shared => self.learn_stored_size()?,
                // Copies may be older than what they are from now on.
                Lease::Commit if grant != Grant::Commit => {
                    file.clean()?;
                    file.resize_from_store()?;
                }
                _ => {}
            }
            if grant == Grant::Direct {
                file.clean()?;
                segment.raise_stat_epoch();
                record.turn_direct();
            }
            record.take_up_lease();
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

    /// Whether a wait for the group that has lasted `waited_ns` goes on.
    ///
    /// # Errors
    /// `INTR`; `IO` after a minute; `TIMEDOUT` if the node manager has stopped.
    pub(crate) fn go_on_waiting(&self, wait: &Wait, waited_ns: u64) -> Result<(), Errno> {
        let segment = &self.segment;
        wait.look(|| segment.manager_is_stopped() || waited_ns > HANDLER_TIMEOUT.as_ns())?;
        if waited_ns > LEASE_TIMEOUT.as_ns() {
            return Err(Errno::IO);
        }
        match self.manager_watch.look(segment) {
            ManagerState::Stopped => Err(Errno::TIMEDOUT),
            ManagerState::AtWork | ManagerState::Gone => Ok(()),
        }
    }
}

/// What processes have to wait for before they do that.
fn lacks(session: &Session, file: FileId, lease: LeaseWord, need: &Need) -> Option<Lacking> {
    match (lease.held(), lease.granted()) {
        _ if lease.allows(need.access()) || lease.commits() => None,
        (_, Some(_)) => None,
        (Lease::Shared, None) if !lease.is_unsure() => session.lacking(file, need),
        (Lease::Borrowed, None) if !lease.is_unsure() && matches!(need, Need::Read(_)) => None,
        (_, None) => Some(Lacking::Whole(need.access())),
    }
}

/// A wait for the group.
struct LeaseWait<'s> {
    session: &'s Session,
    file: FileId,
    record: &'s FileRecord,
    need: &'s Need,
    wait: Wait,
    began_ns: u64,
    refusals: u32,
    /// The part that is waited for, and its last refusal before that.
    part: Option<(Part, u32)>,
}

impl<'s> LeaseWait<'s> {
    fn begin(
        session: &'s Session,
        file: FileId,
        record: &'s FileRecord,
        need: &'s Need,
    ) -> LeaseWait<'s> {
        let (wait, began_ns) = (Wait::begin(), clock::monotonic_ns());
        let refusals = record.lease.load().refusals();
        LeaseWait { session, file, record, need, wait, began_ns, refusals, part: None }
    }

    /// Waits until something was granted, or this node may, or the record `is_same` no more.
    fn on(&mut self, is_same: impl Fn() -> bool) -> Result<LeaseWord, Errno> {
        let segment = &self.session.segment;
        let done_word = &segment.header().work_done;
        let (mut told_ns, mut told) = (None, None);
        loop {
            let done = done_word.load(Ordering::Acquire);
            let lease = self.record.lease.load();
            let lacking = lacks(self.session, self.file, lease, self.need);
            let Some(lacking) = lacking.filter(|_| is_same()) else { return Ok(lease) };
            self.look_for_refusal(lease, lacking)?;
            let now_ns = clock::monotonic_ns();
            let is_new = told != Some(lacking.object()) && self.is_untold(lacking);
            if is_new || told_ns.is_none_or(|at| now_ns - at > ASK_AGAIN.as_ns()) {
                told_ns = self.tell(lacking).then_some(now_ns);
                told = Some(lacking.object());
            }
            futex::wait(done_word, done, WORK_LOOK.as_ms());
            self.session.go_on_waiting(&self.wait, now_ns - self.began_ns)?;
        }
    }

    fn look_for_refusal(&mut self, lease: LeaseWord, lacking: Lacking) -> Result<(), Errno> {
        if lease.refusals() != self.refusals {
            return Err(lease.refused());
        }
        if let Lacking::Part { part, .. } = lacking {
            let word = self.session.segment.part_leases().load(self.file, part);
            match self.part {
                Some((waited_for, seen)) if waited_for == part => {
                    if word.refusals() != seen && word.refusals() != 0 {
                        return Err(word.refused());
                    }
                }
                _ => self.part = Some((part, word.refusals())),
            }
        }
        Ok(())
    }

    /// Notes in the record what is asked for. Whether the manager is to be told.
    fn is_untold(&self, lacking: Lacking) -> bool {
        match lacking {
            Lacking::Whole(access) => self.record.lease.ask(access),
            Lacking::Part { .. } => true,
        }
    }

    /// Tells the manager. False if the queue is full.
    fn tell(&self, lacking: Lacking) -> bool {
        let (segment, file) = (&self.session.segment, self.file);
        let message = match lacking {
            Lacking::Whole(access) => {
                self.record.lease.ask(access);
                segment.files().touch(file);
                Message::Lease { file }
            }
            Lacking::Part { part, level, behind } => {
                let ahead = self.session.worth_asking_ahead(file, part, level, behind);
                Message::Part { file, part, level, ahead }
            }
        };
        segment.ask_group(self.session.owner(), &message)
    }
}
