//! Waiting for the locks of shared memory: as long as the holder lives, within a moment, or until a
//! signal handler has to run.

use crate::backoff::Backoff;
use crate::files::Chain;
use crate::interruption;
use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::ranks::{self, Append, Fresh, Position, Ranked};
use crate::segment::Segment;
use crate::seq_lock::{LockGuard, RobustSeqLock};
use core::convert::Infallible;
use rustix::io::Errno;

impl Segment {
    /// Takes `lock`, waiting as long as its holder lives. A lock that the thread has already stays
    /// its own when the guard ends.
    #[inline]
    pub(crate) fn lock_looking<'a, R: Ranked, E>(
        &self,
        lock: &'a RobustSeqLock<R>,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<LockGuard<'a, R>, E> {
        match lock.guard_or_wait(owner) {
            Some(guard) => Ok(guard),
            None => self.lock_slow(lock, owner, || (), look),
        }
    }

    /// Takes the lock of a description's offset. The wait ends when a signal handler has to run and
    /// the holder does not go on.
    ///
    /// # Errors
    /// `INTR`, see [`interruption::restarts`].
    #[inline]
    pub fn lock_position<'a>(
        &self,
        description: &'a Description,
        owner: Owner,
    ) -> Result<LockGuard<'a, Position>, Errno> {
        self.lock_looking(&description.position, owner, Segment::ends_wait)
    }

    /// Takes the lock of a file's end.
    ///
    /// # Errors
    /// As of [`Segment::lock_position`].
    #[inline]
    pub fn lock_append<'a>(
        &self,
        record: &'a FileRecord,
        owner: Owner,
    ) -> Result<LockGuard<'a, Append>, Errno> {
        self.lock_looking(&record.append, owner, Segment::ends_wait)
    }

    /// Takes the lock of chain `chain` of the file table. No other lock is taken under it.
    ///
    /// # Errors
    /// As of [`Segment::lock_position`].
    pub(crate) fn lock_chain(&self, chain: u32, owner: Owner) -> Result<Chain<'_>, Errno> {
        let files = self.files();
        let stripe = self.lock_looking(files.stripe(chain), owner, Segment::ends_wait)?;
        Ok(files.locked(chain, stripe))
    }

    /// The same, as `Segment::lock_within` does.
    ///
    /// # Errors
    /// The holder.
    pub(crate) fn lock_chain_within(
        &self,
        chain: u32,
        owner: Owner,
        backoff: &mut Backoff,
    ) -> Result<Chain<'_>, Owner> {
        let files = self.files();
        let stripe = self.lock_within(files.stripe(chain), owner, backoff, || ())?;
        Ok(files.locked(chain, stripe))
    }

    /// `taking` is called each time before the lock of a dead process is taken, `look` now and then
    /// with the holder.
    #[cold]
    fn lock_slow<'a, R: Ranked, E>(
        &self,
        lock: &'a RobustSeqLock<R>,
        owner: Owner,
        taking: impl Fn(),
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<LockGuard<'a, R>, E> {
        let mut backoff = Backoff::default();
        loop {
            match lock.try_lock(owner) {
                Ok(()) => return Ok(LockGuard::of(lock, true)),
                Err(holder) if holder == owner && lock.holder() == Some(owner) => {
                    return Ok(LockGuard::of(lock, false));
                }
                Err(holder) => {
                    if backoff.wait() {
                        if self.take_over(lock, holder, owner, &taking) {
                            return Ok(LockGuard::of(lock, true));
                        }
                        look(self, holder, &backoff)?;
                    }
                }
            }
        }
    }

    /// Of a wait that nothing but the holder ends.
    pub(crate) fn waits_on(&self, _: Owner, _: &Backoff) -> Result<(), Infallible> {
        Ok(())
    }

    /// Ends a wait for `holder` if it keeps a signal handler of the calling thread from running,
    /// and does not go on.
    ///
    /// # Errors
    /// `INTR`, see [`interruption::restarts`].
    pub fn ends_wait(&self, holder: Owner, backoff: &Backoff) -> Result<(), Errno> {
        let stands = self.stands(holder, backoff);
        if !interruption::is_held_off() || !stands {
            return Ok(());
        }
        interruption::give_up(interruption::ends());
        Err(Errno::INTR)
    }

    /// [`Segment::ends_wait`] of a wait for what the node manager may hold: one that is stopped is
    /// waited for as long as [`crate::backoff::STOPPED_TIMEOUT`] says.
    ///
    /// # Errors
    /// `INTR`, see [`interruption::restarts`]; `TIMEDOUT`.
    pub fn ends_wait_in_time(&self, holder: Owner, backoff: &Backoff) -> Result<(), Errno> {
        self.ends_wait(holder, backoff)?;
        match holder.slot() == MANAGER_SLOT && backoff.is_over() && self.manager_is_stopped() {
            true => Err(Errno::TIMEDOUT),
            false => Ok(()),
        }
    }

    /// Whether a wait for `holder` may be one for ever: its process is stopped, or it has taken
    /// long.
    pub fn stands(&self, holder: Owner, backoff: &Backoff) -> bool {
        let is_stopped = self.clients().is_stopped(holder);
        backoff.note_stopped(is_stopped);
        is_stopped || backoff.is_long()
    }

    /// Whether the process of the node manager is stopped.
    pub fn manager_is_stopped(&self) -> bool {
        self.clients().is_stopped(Owner::new(MANAGER_SLOT, 0))
    }

    /// Takes `lock` within `backoff`: not from a holder that lives and does not let go, because its
    /// process may be stopped. Waits that share a backoff take no longer than one. `taking` is
    /// called before the lock of a dead process is taken.
    ///
    /// # Errors
    /// The holder.
    pub(crate) fn lock_within<'a, R: Ranked>(
        &self,
        lock: &'a RobustSeqLock<R>,
        owner: Owner,
        backoff: &mut Backoff,
        taking: impl Fn(),
    ) -> Result<LockGuard<'a, R>, Owner> {
        ranks::waiting(R::RANK, owner, lock);
        loop {
            match lock.try_lock(owner) {
                Ok(()) => return Ok(LockGuard::of(lock, true)),
                Err(holder) if backoff.is_spent() => {
                    let freed = self.take_over(lock, holder, owner, &taking);
                    return if freed { Ok(LockGuard::of(lock, true)) } else { Err(holder) };
                }
                Err(_) => drop(backoff.wait()),
            }
        }
    }

    /// Takes the lock of `bucket`, whatever it holds, as `Segment::lock_within` does.
    ///
    /// # Errors
    /// The holder.
    pub fn lock_bucket_within<'a>(
        &self,
        bucket: &'a BucketMeta,
        owner: Owner,
        backoff: &mut Backoff,
    ) -> Result<LockGuard<'a>, Owner> {
        let taking = || self.note_dirty_tail(bucket);
        let guard = self.lock_within(&bucket.lock, owner, backoff, taking)?;
        bucket.pages.repair(&bucket.valid);
        Ok(guard)
    }

    /// Takes the lock of `bucket`, which no index entry names, as `Segment::lock_within` does.
    /// Unlike [`Segment::lock_bucket_within`] it neither counts a dirty tail nor repairs the pages:
    /// such a bucket has none.
    ///
    /// # Errors
    /// The holder.
    pub fn lock_fresh_within<'a>(
        &self,
        bucket: &'a BucketMeta,
        owner: Owner,
        backoff: &mut Backoff,
    ) -> Result<LockGuard<'a, Fresh>, Owner> {
        self.lock_within(bucket.lock.of_fresh(), owner, backoff, || ())
    }

    /// Takes `lock` from `holder` for `owner` if `holder` is dead.
    fn take_over<R: Ranked>(
        &self,
        lock: &RobustSeqLock<R>,
        holder: Owner,
        owner: Owner,
        taking: impl Fn(),
    ) -> bool {
        let clients = self.clients();
        let before = clients.generation(holder);
        if !clients.is_dead(holder) {
            return false;
        }
        taking();
        if !lock.take_over(holder, owner) {
            return false;
        }
        // Between the two, the slot may have been reaped, and claimed by a process that lives.
        let dead = clients.generation(holder) == before;
        if !dead {
            lock.hand_back(owner, holder);
        }
        dead
    }

    /// Takes the lock of `bucket`. A lock left by a dead process is taken back.
    #[inline]
    pub(crate) fn lock_bucket_looking<'a, E>(
        &self,
        bucket: &'a BucketMeta,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<LockGuard<'a>, E> {
        let guard = match bucket.lock.guard_or_wait(owner) {
            Some(guard) => guard,
            None => self.lock_slow(&bucket.lock, owner, || self.note_dirty_tail(bucket), look)?,
        };
        if guard.is_taken() {
            bucket.pages.repair(&bucket.valid);
        }
        Ok(guard)
    }
}
