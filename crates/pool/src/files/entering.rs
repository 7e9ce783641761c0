//! What a segment adds to the locks of files and of the table: it finds slot and record.

use crate::FileId;
use crate::backoff::Backoff;
use crate::guards::{ExclusiveGuard, SharedGuard};
use crate::layout::{FileRecord, LockScope};
use crate::owner::Owner;
use crate::segment::Segment;
use rustix::io::Errno;

impl Segment {
    /// Enters the file table: every lock is held under some shared lock.
    pub fn enter_table(&self, owner: Owner) -> SharedGuard<'_> {
        self.client(owner.slot()).enter(owner, LockScope::TABLE)
    }

    /// Enters the file table with a descriptor of `file`: see [`Segment::wait_for_users`].
    pub fn enter_beside(&self, file: FileId, owner: Owner) -> SharedGuard<'_> {
        self.client(owner.slot()).enter(owner, LockScope::beside(file))
    }

    /// Waits until each other thread of `owner`'s process that may use a descriptor of `file` has
    /// left it since. The caller has taken the descriptor out of its table before, and a thread
    /// that enters looks there afterwards. False if that takes more than a moment, and a signal
    /// handler waits for this thread.
    pub fn wait_for_users(&self, file: FileId, owner: Owner) -> bool {
        self.client(owner.slot()).wait_for_users(file, owner)
    }

    /// Enters `file`; refused with the owner that has it exclusively.
    ///
    /// # Errors
    /// The owner that holds the file.
    #[inline]
    pub fn try_enter(&self, file: FileId, owner: Owner) -> Result<SharedGuard<'_>, Owner> {
        self.try_enter_record(file, self.file(file), owner)
    }

    /// [`Segment::try_enter`] of a file of which the caller has looked up the record.
    ///
    /// # Errors
    /// The owner that holds the file.
    #[inline]
    pub fn try_enter_record(
        &self,
        file: FileId,
        record: &FileRecord,
        owner: Owner,
    ) -> Result<SharedGuard<'_>, Owner> {
        self.client(owner.slot()).try_enter(file, record, owner)
    }

    /// Leaves `file` for a moment, but stays beside it: the caller may hold a lock.
    pub fn step_out(&self, file: FileId, owner: Owner, inside: &SharedGuard<'_>) {
        inside.step_out(file, owner);
    }

    /// Enters the file again that [`Segment::step_out`] has left.
    ///
    /// # Errors
    /// The owner that holds the file.
    pub fn try_step_in(
        &self,
        file: FileId,
        owner: Owner,
        inside: &SharedGuard<'_>,
    ) -> Result<(), Owner> {
        inside.try_step_in(file, self.file(file), owner)
    }

    /// Takes `file` for `owner` alone and waits until no other thread is inside it. The caller is
    /// in the table, and looks at `intent` first: a dead owner may have left a truncate undone.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`]. Others may enter the file then.
    pub fn lock_exclusive<'a>(
        &'a self,
        _table: &'a SharedGuard<'_>,
        file: FileId,
        owner: Owner,
    ) -> Result<ExclusiveGuard<'a>, Errno> {
        self.lock_exclusive_looking(file, owner, Segment::ends_wait_in_time)
    }

    pub(crate) fn lock_exclusive_looking<E>(
        &self,
        file: FileId,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<ExclusiveGuard<'_>, E> {
        let look = |holder, backoff: &Backoff| look(self, holder, backoff);
        self.clients().lock_exclusive(file, self.file(file), owner, look)
    }

    /// Like [`Segment::lock_exclusive`], but gives up, and lets others in again, when the file is
    /// held or another thread stays inside for more than a moment.
    pub fn try_lock_exclusive<'a>(
        &'a self,
        _table: &'a SharedGuard<'_>,
        file: FileId,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'a>> {
        self.try_lock_exclusive_record(file, owner)
    }

    pub(crate) fn try_lock_exclusive_record(
        &self,
        file: FileId,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'_>> {
        self.clients().try_lock_exclusive(file, self.file(file), owner)
    }

    /// Goes on as `owner` with a file that a dead process had exclusively, and that is `reaper`'s
    /// since.
    pub fn take_exclusive(
        &self,
        file: FileId,
        reaper: Owner,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'_>> {
        let record = self.file(file);
        let taken = record.exclusive_exchange(reaper.raw(), owner);
        taken.ok().map(|_| ExclusiveGuard::of(record, Some(owner)))
    }

    /// Whether a process that is stopped has `file` to itself, or has a thread inside it.
    pub fn is_held_by_stopped(&self, file: FileId) -> bool {
        self.clients().is_held_by_stopped(file, self.file(file))
    }
}
