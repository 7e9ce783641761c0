//! Entering files, and having one exclusively.

mod clean;
mod truncate;

use crate::open_file::OpenFile;
use crate::waits::Wait;
use core::sync::atomic::Ordering;
use forebay_pool::backoff::Backoff;
use forebay_pool::guards::SharedGuard;
use forebay_pool::layout::*;
use forebay_pool::{Owner, crash};
use rustix::io::Errno;

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
}
