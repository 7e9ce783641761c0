//! Entering files, and having one exclusively.

mod clean;
mod truncate;

use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::waiting::Wait;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use forebay_pool::backoff::Backoff;
use forebay_pool::guards::{ExclusiveGuard, SharedGuard};
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::{Owner, crash};
use rustix::io::Errno;

/// An open file that the calling thread has entered: until this is dropped no thread has the file
/// exclusively, and the descriptor stays what it is. What looks at blocks is a method of it.
#[must_use]
pub(crate) struct EnteredFile<'f> {
    file: &'f OpenFile<'f>,
    /// The thread.
    pub owner: Owner,
    /// Of the file; of the table beside it, where the thread has the file exclusively.
    guard: SharedGuard<'f>,
}

impl<'f> Deref for EnteredFile<'f> {
    type Target = OpenFile<'f>;

    #[inline(always)]
    fn deref(&self) -> &OpenFile<'f> {
        self.file
    }
}

/// An open file that the calling thread has for itself.
#[must_use]
pub(crate) struct ExclusiveFile<'e> {
    entered: &'e EnteredFile<'e>,
    guard: ExclusiveGuard<'e>,
}

impl<'e> Deref for ExclusiveFile<'e> {
    type Target = EnteredFile<'e>;

    fn deref(&self) -> &EnteredFile<'e> {
        self.entered
    }
}

impl OpenFile<'_> {
    /// Enters the file, waiting while another thread has it exclusively.
    ///
    /// # Errors
    /// `INTR`; `BADF` if the descriptor is not what it was.
    #[inline(always)]
    pub(crate) fn enter(&self, owner: Owner) -> Result<EnteredFile<'_>, Errno> {
        crash::point("file.entering");
        match self.session.segment.try_enter_record(self.id, self.record, owner) {
            Ok(guard) if self.is_current() => Ok(EnteredFile { file: self, owner, guard }),
            Ok(guard) => self.turn_back(guard),
            Err(_) => self.enter_slow(owner),
        }
    }

    /// [`OpenFile::enter`] of a call that has done nothing yet, and waits again where a handler
    /// allows it.
    ///
    /// # Errors
    /// As of [`OpenFile::enter`].
    #[inline(always)]
    pub(crate) fn enter_restarting(&self, owner: Owner) -> Result<EnteredFile<'_>, Errno> {
        crash::point("file.entering");
        match self.session.segment.try_enter_record(self.id, self.record, owner) {
            Ok(guard) if self.is_current() => Ok(EnteredFile { file: self, owner, guard }),
            Ok(guard) => self.turn_back(guard),
            Err(_) => self.enter_restarting_slow(),
        }
    }

    #[cold]
    fn enter_restarting_slow(&self) -> Result<EnteredFile<'_>, Errno> {
        // A handler may have forked, and the child goes on with a slot of its own.
        self.session.restarting(|| self.enter_slow(self.session.owner()))
    }

    #[cold]
    fn enter_slow(&self, owner: Owner) -> Result<EnteredFile<'_>, Errno> {
        let (mut backoff, wait) = (Backoff::default(), Wait::begin());
        loop {
            match self.session.segment.try_enter(self.id, owner) {
                Ok(guard) if self.is_current() => {
                    return Ok(EnteredFile { file: self, owner, guard });
                }
                Ok(guard) => return self.turn_back(guard),
                Err(_) if !self.is_current() => return Err(Errno::BADF),
                Err(holder) => {
                    if !backoff.wait() {
                        continue;
                    }
                    if self.session.segment.clients().is_dead(holder) {
                        // Completes what the dead owner left, and lets others in again.
                        self.exclusively(|_| Ok(()))?;
                    }
                    self.session.look(&wait, holder, &backoff)?;
                }
            }
        }
    }

    /// Leaves what was entered with a file that turned out not to be what it was.
    #[cold]
    fn turn_back(&self, guard: SharedGuard) -> Result<EnteredFile<'_>, Errno> {
        drop(guard);
        Err(Errno::BADF)
    }

    /// Calls `act` while no other thread of any process is inside the file.
    ///
    /// # Errors
    /// `INTR`, or `BADF` if the descriptor is not what it was, and `act` was not called; those of
    /// `act`.
    pub(crate) fn exclusively<R>(
        &self,
        act: impl FnOnce(&ExclusiveFile<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.alone(|file| {
            file.complete_left();
            act(file)
        })
    }

    /// The same, without completing what a dead owner has left undone.
    ///
    /// # Errors
    /// Those of [`OpenFile::exclusively`].
    pub(crate) fn alone<R>(
        &self,
        act: impl FnOnce(&ExclusiveFile<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut act = Some(act);
        self.session.restarting(|| {
            let owner = self.session.owner();
            let guard = self.enter_beside(owner)?;
            let entered = EnteredFile { file: self, owner, guard };
            let exclusive = entered.exclude()?;
            // Called once: only the waits above begin again.
            let act = act.take().ok_or(Errno::IO)?;
            Ok(act(&exclusive))
        })?
    }

    /// The same at once, or not at all: `None` where the descriptor is not what it was, or other
    /// threads are inside.
    pub(crate) fn try_alone<R>(
        &self,
        owner: Owner,
        act: impl FnOnce(&ExclusiveFile<'_>) -> R,
    ) -> Option<R> {
        let guard = self.enter_beside(owner).ok()?;
        let entered = EnteredFile { file: self, owner, guard };
        let guard = self.session.segment.try_lock_exclusive(&entered.guard, self.id, owner)?;
        Some(act(&ExclusiveFile { entered: &entered, guard }))
    }

    /// Calls `act` with the description's offset while no other thread moves it. `None`, and it was
    /// not called, where the offset is the kernel's, which it may have become a moment ago.
    ///
    /// # Errors
    /// `INTR`, or `BADF` if the descriptor is not what it was, and `act` was not called; those of
    /// `act`.
    pub(crate) fn positioned<R>(
        &self,
        act: impl FnOnce(u64) -> Result<R, Errno>,
    ) -> Result<Option<R>, Errno> {
        let description = self.description;
        let mut act = Some(act);
        self.session
            .restarting(|| {
                let owner = self.session.owner();
                let _inside = self.enter_beside(owner)?;
                let _position = self.session.segment.lock_position(description, owner)?;
                if !self.keeps_offset() {
                    if !self.uses_kernel_offset() {
                        // A process was killed in the middle of it.
                        self.hand_offset_to_kernel();
                    }
                    return Ok(None);
                }
                // Called once: only the waits above begin again.
                let act = act.take().ok_or(Errno::IO)?;
                Ok(Some(act(description.offset.load(Ordering::Acquire))))
            })?
            .transpose()
    }
}

impl EnteredFile<'_> {
    /// Calls `act` while the thread is not inside the file, and enters it again. After an error it
    /// may still be outside.
    ///
    /// # Errors
    /// Those of `act`; as of [`OpenFile::enter`].
    pub(crate) fn outside<R>(
        &self,
        act: impl FnOnce(&OpenFile<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let had = self.record.lease.load();
        let result = self.step_outside(act)?;
        // What this node had of the file may have been taken meanwhile. Who uses parts of it looks
        // by itself.
        let used = [Access::Write, Access::Read].into_iter().find(|&access| had.allows(access));
        if let Some(access) = used {
            self.hold(&Need::Whole(access))?;
        }
        Ok(result)
    }

    /// The same, without a look whether this node may still use the file.
    ///
    /// # Errors
    /// As of [`EnteredFile::outside`].
    pub(crate) fn step_outside<R>(
        &self,
        act: impl FnOnce(&OpenFile<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.session.segment.step_out(self.id, self.owner, &self.guard);
        let result = act(self.file)?;
        self.step_in()?;
        Ok(result)
    }

    fn step_in(&self) -> Result<(), Errno> {
        let (mut backoff, wait) = (Backoff::default(), Wait::begin());
        while let Err(holder) = self.session.segment.try_step_in(self.id, self.owner, &self.guard) {
            if !backoff.wait() {
                continue;
            }
            if self.session.segment.clients().is_dead(holder) {
                self.exclude()?.complete_left();
            }
            self.session.look(&wait, holder, &backoff)?;
        }
        Ok(())
    }

    /// Waits until no other thread is inside the file.
    fn exclude(&self) -> Result<ExclusiveFile<'_>, Errno> {
        let guard = self.session.segment.lock_exclusive(&self.guard, self.id, self.owner)?;
        Ok(ExclusiveFile { entered: self, guard })
    }
}

impl ExclusiveFile<'_> {
    /// Completes what a dead owner left, if the thread did not have the file before.
    fn complete_left(&self) {
        let record = self.record;
        if self.guard.is_taken() && record.has_intent() {
            record.set(FileFlags::STORE_WRITTEN);
            let _ = self.session.segment.complete_intent(self.id, self.owner, self);
        }
    }
}
