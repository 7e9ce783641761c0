//! Waits that a signal ends: for what a process holds that is stopped.
//!
//! Everything that waits for another process returns EINTR when a signal handler has to run and
//! that process does not go on. Calls that a program has made are then made again, or fail, as the
//! handler asks ([`Session::restarting`]); what must not be left undone is tried again in any case,
//! after the handler has run ([`surely`]).

use crate::manager_watch::ManagerState;
use crate::session::Session;
use forebay_pool::backoff::Backoff;
use forebay_pool::{FileId, Identity, Owner, interruption};
use rustix::io::Errno;

/// Makes a call that waits until no handler ends it.
pub(crate) fn surely<R>(mut act: impl FnMut() -> Result<R, Errno>) -> Result<R, Errno> {
    loop {
        match act() {
            Err(Errno::INTR) => drop(interruption::restarts()),
            result => return result,
        }
    }
}

/// A wait that may be made outside of everything, where handlers run at once.
pub(crate) struct Wait {
    ends: u32,
}

impl Wait {
    pub fn begin() -> Wait {
        Wait { ends: interruption::ends() }
    }

    /// Fails if a handler has ended the wait, or is held off by it, and `stands` says that what is
    /// waited for may never come.
    pub fn look(&self, stands: impl FnOnce() -> bool) -> Result<(), Errno> {
        let ended = interruption::ends() != self.ends || interruption::is_held_off();
        if !ended || !stands() {
            return Ok(());
        }
        interruption::give_up(self.ends);
        Err(Errno::INTR)
    }
}

impl Session {
    /// Makes a call that waits again while all handlers that ended its waits have SA_RESTART.
    /// However many come, a node manager that is stopped is not waited for longer than without
    /// them: the call fails with TIMEDOUT then.
    #[inline]
    pub(crate) fn restarting<R>(
        &self,
        mut act: impl FnMut() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        loop {
            match act() {
                Err(Errno::INTR) if interruption::restarts() => {
                    if self.is_manager_given_up() {
                        return Err(Errno::TIMEDOUT);
                    }
                }
                result => return result,
            }
        }
    }

    #[cold]
    fn is_manager_given_up(&self) -> bool {
        self.manager_watch.look(&self.segment) == ManagerState::Stopped
    }

    /// [`Wait::look`], of a wait for `holder`.
    pub(crate) fn look(&self, wait: &Wait, holder: Owner, backoff: &Backoff) -> Result<(), Errno> {
        wait.look(|| self.segment.stands(holder, backoff))?;
        self.segment.ends_wait_in_time(holder, backoff)
    }

    /// Calls `act` in the table with the record of `identity`, if there is one.
    ///
    /// # Errors
    /// `INTR`; `act` was not called.
    pub(crate) fn with_record<R>(
        &self,
        identity: Identity,
        mut act: impl FnMut(Option<FileId>) -> R,
    ) -> Result<R, Errno> {
        self.restarting(|| {
            let owner = self.owner();
            let _inside = self.segment.enter_table(owner);
            self.segment.with_file(identity, owner, &mut act)
        })
    }
}
