//! Taking, locking, publishing and discarding buckets.

use crate::clock::{self, Timer};
use crate::crash;
use crate::entry::Entry;
use crate::free_map::{RESERVED, USED};
use crate::futex;
use crate::interruption;
use crate::layout::*;
use crate::liveness;
use crate::owner::{OwnedLock, Owner};
use crate::segment::{MANAGER_SLOT, Segment};
use crate::sync::{AtomicU64, Ordering, pause};
use core::convert::Infallible;
use forebay_placement::hotness::Heat;
use rustix::io::Errno;

/// Buckets a client takes from the free map at once: 4 MiB of 256 KiB buckets.
pub const REFILL: u32 = 16;

/// How a wait for something held goes on: first spinning, then yielding, then short sleeps.
#[derive(Default)]
pub struct Patience {
    turns: u32,
    /// When the first sleep began.
    since_ns: u64,
}

/// Turns of a wait after which a holder that goes on would have let go: two milliseconds at least.
const MOMENT: u32 = 150;
/// Turns after which a holder is not waited for while a signal handler is held off: four seconds at least. One
/// that is stopped has not to be waited for that long, but may keep others waiting that are not.
const LONG: u32 = 40_000;
/// How long a node manager that is stopped is waited for: long enough for a debugger's moment, short enough
/// for a program to end in order before a batch system loses patience.
pub const STOPPED_PATIENCE: Timer = Timer::seconds(30);

impl Patience {
    /// Of a thread that has waited for a moment already: one try.
    pub fn spent() -> Patience {
        Patience { turns: MOMENT, ..Patience::default() }
    }

    /// Of a thread that comes back to what it has waited for: a millisecond.
    pub fn nearly_spent() -> Patience {
        Patience { turns: MOMENT - 10, ..Patience::default() }
    }

    /// Whether the holder has been waited for for a moment: it may be stopped, and is not to be waited
    /// for by those who have others to serve.
    pub fn is_spent(&self) -> bool {
        self.turns >= MOMENT
    }

    /// Whether the wait has taken so long that a signal may end it.
    fn is_long(&self) -> bool {
        self.turns >= LONG
    }

    /// Whether a node manager that is stopped has been waited for long enough.
    fn is_over(&self) -> bool {
        self.since_ns != 0
            && clock::monotonic_ns().saturating_sub(self.since_ns) > STOPPED_PATIENCE.as_ns()
    }

    /// Waits a little. Returns true now and then, when it is worth asking whether the holder
    /// still lives.
    pub fn wait(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            0..=64 => pause(),
            65..=128 => rustix::thread::sched_yield(),
            _ => {
                if self.since_ns == 0 {
                    self.since_ns = clock::monotonic_ns();
                }
                clock::sleep_ns(100_000);
                return self.turns.is_multiple_of(64);
            }
        }
        false
    }
}

impl Segment {
    /// Takes `lock`, waiting as long as its holder lives. Returns false if the caller's own thread
    /// holds it already (a signal handler that came in between); it must then not be released.
    #[inline]
    pub fn lock(&self, lock: &OwnedLock, owner: Owner) -> bool {
        if lock.try_lock(owner).is_ok() {
            return true;
        }
        let Ok(taken) = self.lock_patiently(lock, owner, || (), Segment::waits_on);
        taken
    }

    /// [`Segment::lock`] for a program's thread, whose wait ends when a signal handler has to run and the holder
    /// does not go on.
    ///
    /// # Errors
    /// `INTR`, see [`interruption::restarts`].
    #[inline]
    pub fn lock_unless_interrupted(&self, lock: &OwnedLock, owner: Owner) -> Result<bool, Errno> {
        if lock.try_lock(owner).is_ok() {
            return Ok(true);
        }
        self.lock_patiently(lock, owner, || (), Segment::ends_wait)
    }

    /// `taking` is called each time before the lock of a dead process is taken, `look` now and then with the holder.
    #[cold]
    fn lock_patiently<E>(
        &self,
        lock: &OwnedLock,
        owner: Owner,
        taking: impl Fn(),
        look: impl Fn(&Segment, Owner, &Patience) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut patience = Patience::default();
        loop {
            match lock.try_lock(owner) {
                Ok(()) => return Ok(true),
                Err(holder) if holder == owner && lock.holder() == Some(owner) => return Ok(false),
                Err(holder) => {
                    if patience.wait() {
                        if self.take_over(lock, holder, owner, &taking) {
                            return Ok(true);
                        }
                        look(self, holder, &patience)?;
                    }
                }
            }
        }
    }

    /// Of a wait that nothing but the holder ends.
    pub(crate) fn waits_on(&self, _: Owner, _: &Patience) -> Result<(), Infallible> {
        Ok(())
    }

    /// Ends a wait for `holder` if it keeps a signal handler of the calling thread from running, and does
    /// not go on.
    ///
    /// # Errors
    /// `INTR`, see [`interruption::restarts`].
    pub fn ends_wait(&self, holder: Owner, patience: &Patience) -> Result<(), Errno> {
        if !interruption::is_held_off() || !self.stands(holder, patience) {
            return Ok(());
        }
        interruption::give_up(interruption::ends());
        Err(Errno::INTR)
    }

    /// [`Segment::ends_wait`] of a wait for what the node manager may hold: one that is stopped is waited for as long
    /// as [`STOPPED_PATIENCE`] says.
    ///
    /// # Errors
    /// `INTR`, see [`interruption::restarts`]; `TIMEDOUT`.
    pub fn ends_wait_in_time(&self, holder: Owner, patience: &Patience) -> Result<(), Errno> {
        self.ends_wait(holder, patience)?;
        match holder.slot() == MANAGER_SLOT && patience.is_over() && self.manager_is_stopped() {
            true => Err(Errno::TIMEDOUT),
            false => Ok(()),
        }
    }

    /// Whether a wait for `holder` may be one for ever: its process is stopped, or it has taken long.
    pub fn stands(&self, holder: Owner, patience: &Patience) -> bool {
        patience.is_long() || self.is_stopped(holder)
    }

    /// Whether the process of the node manager is stopped.
    pub fn manager_is_stopped(&self) -> bool {
        self.is_stopped(Owner::new(MANAGER_SLOT, 0))
    }

    /// Whether the process of `holder` is stopped.
    pub fn is_stopped(&self, holder: Owner) -> bool {
        liveness::is_stopped(match holder.slot() {
            MANAGER_SLOT => self.header().manager_pid.load(Ordering::Acquire),
            slot => self.client(slot).pid.load(Ordering::Acquire),
        })
    }

    /// Takes `lock` within `patience`: not from a holder that lives and does not let go, because its
    /// process may be stopped. Waits that share a patience take no longer than one.
    ///
    /// # Errors
    /// The holder.
    pub fn lock_within(
        &self,
        lock: &OwnedLock,
        owner: Owner,
        patience: &mut Patience,
    ) -> Result<(), Owner> {
        self.lock_within_noting(lock, owner, patience, || ())
    }

    fn lock_within_noting(
        &self,
        lock: &OwnedLock,
        owner: Owner,
        patience: &mut Patience,
        taking: impl Fn(),
    ) -> Result<(), Owner> {
        loop {
            match lock.try_lock(owner) {
                Ok(()) => return Ok(()),
                Err(holder) if patience.is_spent() => {
                    let freed = self.take_over(lock, holder, owner, &taking);
                    return if freed { Ok(()) } else { Err(holder) };
                }
                Err(_) => drop(patience.wait()),
            }
        }
    }

    /// [`Segment::lock_bucket`], as [`Segment::lock_within`] does.
    ///
    /// # Errors
    /// The holder.
    pub fn lock_bucket_within(
        &self,
        bucket: &BucketMeta,
        owner: Owner,
        patience: &mut Patience,
    ) -> Result<(), Owner> {
        let taking = || self.note_soiled(bucket);
        self.lock_within_noting(&bucket.lock, owner, patience, taking)?;
        bucket.pages.repair(&bucket.valid);
        Ok(())
    }

    /// Takes `lock` from `holder` for `owner` if `holder` is dead.
    fn take_over(&self, lock: &OwnedLock, holder: Owner, owner: Owner, taking: impl Fn()) -> bool {
        let before = self.generation(holder);
        if !self.owner_is_dead(holder) {
            return false;
        }
        taking();
        if !lock.take_over(holder, owner) {
            return false;
        }
        // Between the two, the slot may have been reaped, and claimed by a process that lives.
        let dead = self.generation(holder) == before;
        if !dead {
            lock.hand_back(owner, holder);
        }
        dead
    }

    /// Which of the processes that had `owner`'s slot one after the other has it now.
    fn generation(&self, owner: Owner) -> u32 {
        match owner.slot() {
            MANAGER_SLOT => self.header().manager_epoch.load(Ordering::SeqCst),
            slot => self.client(slot).generation.load(Ordering::SeqCst),
        }
    }

    /// Takes the lock of `bucket`. A lock left by a dead process is taken back.
    #[inline]
    pub fn lock_bucket(&self, bucket: &BucketMeta, owner: Owner) -> bool {
        let Ok(taken) = self.lock_bucket_looking(bucket, owner, Segment::waits_on);
        taken
    }

    #[inline]
    fn lock_bucket_looking<E>(
        &self,
        bucket: &BucketMeta,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Patience) -> Result<(), E>,
    ) -> Result<bool, E> {
        let lock = &bucket.lock;
        let taken = lock.try_lock(owner).is_ok()
            || self.lock_patiently(lock, owner, || self.note_soiled(bucket), look)?;
        if taken {
            bucket.pages.repair(&bucket.valid);
        }
        Ok(taken)
    }

    /// Takes a RAM bucket for `owner`: from its process's cache, else from the free map.
    pub fn take_bucket(&self, owner: Owner) -> Option<u32> {
        if crash::refused("bucket") {
            return None;
        }
        let slot = self.client(owner.slot());
        for place in &slot.buckets {
            if place.load(Ordering::Relaxed) != 0
                && let Some(bucket) = place.swap(0, Ordering::Acquire).checked_sub(1)
            {
                crash::point("bucket.uncached");
                return Some(bucket);
            }
        }
        self.refill(owner, slot)
    }

    fn refill(&self, owner: Owner, slot: &ClientSlot) -> Option<u32> {
        // A small pool is not to be hoarded by the first process that comes.
        let most = REFILL.min(self.ram_buckets() / 32).max(1);
        let mut first = None;
        let hint = slot.bucket_hint.load(Ordering::Relaxed);
        let (found, next) = self.free_buckets(0).take(owner, hint, most, |bucket| {
            if first.is_none() {
                first = Some(bucket);
            } else {
                self.cache_bucket(bucket, slot);
            }
        });
        slot.bucket_hint.store(next, Ordering::Relaxed);
        crash::point("bucket.refilled");
        if self.count_taken(0, found) || found == 0 {
            self.want_room();
        }
        first
    }

    /// Notes that `count` buckets of tier `tier` were taken. True if it is short of them since.
    fn count_taken(&self, tier: usize, count: u32) -> bool {
        let header = &self.header().tier[tier];
        let before = header.free.fetch_sub(count, Ordering::Relaxed);
        let low = header.low.load(Ordering::Relaxed);
        before >= low && before.saturating_sub(count) < low
    }

    /// About how many buckets of tier `tier` are free.
    pub fn free_in(&self, tier: usize) -> u32 {
        let header = &self.header().tier[tier];
        let free = header.free.load(Ordering::Relaxed);
        // Takers count after the fact: for a moment it may stand below zero.
        if free > header.buckets { 0 } else { free }
    }

    /// Takes one bucket of tier `tier`, past the cache, for `owner`; `hint` is where the search begins, and
    /// is set to where the next one should.
    pub fn take_slot(&self, tier: usize, owner: Owner, hint: &mut u32) -> Option<u32> {
        if crash::refused("slot") {
            return None;
        }
        let mut slot = None;
        let (found, next) =
            self.free_buckets(tier).take(owner, *hint, 1, |taken| slot = Some(taken));
        *hint = next;
        if self.count_taken(tier, found) || found == 0 {
            self.want_room();
        }
        slot
    }

    /// Gives a bucket that is set aside for a job back to its reservation. False if it is not, or the
    /// reservation was released meanwhile.
    fn give_to_job(&self, bucket: u32, meta: &BucketMeta) -> bool {
        if meta.reserved.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let place = meta.reserved.load(Ordering::SeqCst).wrapping_sub(1) as usize;
        meta.state.store(RESERVED, Ordering::SeqCst);
        if let Some(job) = self.header().job.get(place) {
            job.free.fetch_add(1, Ordering::Release);
        }
        // Whoever releases the reservation clears the mark first, and then looks at the state.
        if meta.reserved.load(Ordering::SeqCst) == 0 {
            self.free_reserved(bucket, meta);
        }
        true
    }

    /// Lets everybody have a free bucket whose reservation was released.
    pub(crate) fn free_reserved(&self, bucket: u32, meta: &BucketMeta) {
        let free = crate::free_map::FREE;
        let state = &meta.state;
        if state.compare_exchange(RESERVED, free, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            let tier = self.tier_of(bucket);
            self.free_buckets(tier).offer(bucket);
            self.header().tier[tier].free.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn cache_bucket(&self, bucket: u32, slot: &ClientSlot) {
        for place in &slot.buckets {
            let put = place.compare_exchange(0, bucket + 1, Ordering::Release, Ordering::Relaxed);
            if put.is_ok() {
                crash::point("bucket.cached");
                return;
            }
        }
        self.free_bucket(bucket);
    }

    /// Wakes whoever makes room in RAM.
    pub fn want_room(&self) {
        let wanted = &self.header().room_wanted;
        wanted.fetch_add(1, Ordering::Relaxed);
        futex::wake_all(wanted);
    }

    /// Gives back a bucket that no index entry names. If its lock is held, the holder releases it
    /// afterwards; the next taker waits a moment for that, and takes another.
    pub fn free_bucket(&self, bucket: u32) {
        if let Some(meta) = self.bucket(bucket) {
            meta.valid.store(0, Ordering::Relaxed);
            meta.pages.reset(0);
            if let Some(sums) = self.sums(bucket) {
                sums.rotten.store(0, Ordering::Relaxed);
            }
            if self.give_to_job(bucket, meta) {
                return;
            }
            let tier = self.tier_of(bucket);
            crash::point("bucket.cleared");
            self.free_buckets(tier).give(bucket);
            crash::point("bucket.freed");
            self.header().tier[tier].free.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes a taken bucket the home of `block` of `file`: locks it, marks it empty and used. The
    /// caller then fills it and publishes it in the index. False, and the bucket is given back, where
    /// a thread that gave it back, or took it for another block's, has been stopped before letting go of it.
    pub fn dress_bucket(&self, bucket: u32, file: u32, block: u64, owner: Owner) -> bool {
        let dressed = self.try_dress_bucket(bucket, file, block, owner);
        if !dressed {
            self.free_bucket(bucket);
        }
        dressed
    }

    /// [`Segment::dress_bucket`], where the caller keeps what cannot be dressed until it has another one: it would be
    /// given the same again.
    pub fn try_dress_bucket(&self, bucket: u32, file: u32, block: u64, owner: Owner) -> bool {
        let Some(meta) = self.bucket(bucket) else { return false };
        let locked = self.lock_within(&meta.lock, owner, &mut Patience::default()).is_ok();
        if locked {
            crash::point("bucket.dressing");
            meta.file.store(file, Ordering::Relaxed);
            meta.block.store(block, Ordering::Relaxed);
            meta.valid.store(0, Ordering::Relaxed);
            meta.pages.reset(0);
            let now = self.header().now_ms.load(Ordering::Relaxed);
            let heat = Heat::arriving(now, false);
            // Whoever dies before the write is noted leaves no time of the bucket's last use, which
            // could lie in the future: a drain would not wait for it.
            meta.written.store(now, Ordering::Relaxed);
            meta.dirtied.store(now, Ordering::Relaxed);
            meta.heat.store(heat.0, Ordering::Relaxed);
            meta.state.store(USED, Ordering::Release);
            crash::point("bucket.dressed");
        }
        locked
    }

    /// Gives back a dressed bucket that lost the race for its index entry.
    pub fn undress_bucket(&self, bucket: u32) {
        self.free_bucket(bucket);
        crash::point("bucket.undressed");
        if let Some(meta) = self.bucket(bucket) {
            meta.lock.unlock_changed();
        }
    }

    /// Locks the bucket that `place` names, if it still names one once it is locked. Returns the
    /// entry's word, tier and bucket. Waits while the block is written around.
    #[inline]
    pub fn lock_resident(&self, place: &AtomicU64, owner: Owner) -> Option<Resident> {
        let Ok(resident) = self.lock_resident_looking(place, owner, Segment::waits_on);
        resident
    }

    /// [`Segment::lock_resident`], as [`Segment::lock_unless_interrupted`] does.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`].
    #[inline]
    pub fn lock_resident_unless_interrupted(
        &self,
        place: &AtomicU64,
        owner: Owner,
    ) -> Result<Option<Resident>, Errno> {
        self.lock_resident_looking(place, owner, Segment::ends_wait_in_time)
    }

    #[inline]
    pub(crate) fn lock_resident_looking<E>(
        &self,
        place: &AtomicU64,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Patience) -> Result<(), E>,
    ) -> Result<Option<Resident>, E> {
        let word = place.load(Ordering::Acquire);
        if let Entry::Resident { tier, bucket, .. } = Entry::decode(word)
            && let Some(meta) = self.bucket(bucket)
            && meta.lock.try_lock(owner).is_ok()
        {
            meta.pages.repair(&meta.valid);
            crash::point("bucket.locked");
            if place.load(Ordering::Acquire) == word {
                let tier = usize::from(tier);
                return Ok(Some(Resident { word, tier, bucket, taken: true }));
            }
            meta.lock.unlock_unchanged();
        }
        self.lock_resident_patiently(place, owner, look)
    }

    #[cold]
    fn lock_resident_patiently<E>(
        &self,
        place: &AtomicU64,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Patience) -> Result<(), E>,
    ) -> Result<Option<Resident>, E> {
        let mut patience = Patience::default();
        loop {
            let word = place.load(Ordering::Acquire);
            match Entry::decode(word) {
                Entry::Empty => return Ok(None),
                Entry::Busy(holder) => {
                    if holder == owner {
                        return Ok(None);
                    }
                    if patience.wait() {
                        self.free_entry_of_dead(place, word, holder);
                        look(self, holder, &patience)?;
                    }
                }
                Entry::Resident { tier, bucket, .. } => {
                    let Some(meta) = self.bucket(bucket) else { return Ok(None) };
                    let taken = self.lock_bucket_looking(meta, owner, &look)?;
                    crash::point("bucket.locked");
                    if place.load(Ordering::Acquire) == word {
                        let tier = usize::from(tier);
                        return Ok(Some(Resident { word, tier, bucket, taken }));
                    }
                    if taken {
                        self.unlock_left(bucket, meta);
                    }
                }
            }
        }
    }

    /// Unlocks a bucket that was locked for an entry which has another by now. It is in use by no block if the thread that
    /// was discarding it has died over that, and its lock was taken from it.
    fn unlock_left(&self, bucket: u32, meta: &BucketMeta) {
        if meta.state.load(Ordering::Acquire) == USED && !self.is_indexed(bucket) {
            self.free_bucket(bucket);
        }
        meta.lock.unlock_changed();
    }

    /// Takes the entry back that a dead `holder` was writing around; `word` says so.
    pub fn free_entry_of_dead(&self, place: &AtomicU64, word: u64, holder: Owner) {
        if self.owner_is_dead(holder) {
            let empty = Entry::EMPTY;
            let _ = place.compare_exchange(word, empty, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// [`Segment::lock_resident`], as [`Segment::lock_within`] does.
    ///
    /// # Errors
    /// Who holds the bucket, or writes the block around.
    pub fn lock_resident_within(
        &self,
        place: &AtomicU64,
        owner: Owner,
        patience: &mut Patience,
    ) -> Result<Option<Resident>, Owner> {
        loop {
            let word = place.load(Ordering::Acquire);
            let (tier, bucket) = match Entry::decode(word) {
                Entry::Resident { tier, bucket, .. } => (usize::from(tier), bucket),
                Entry::Busy(holder) if holder != owner => {
                    if !patience.is_spent() {
                        patience.wait();
                        continue;
                    }
                    if !self.owner_is_dead(holder) {
                        return Err(holder);
                    }
                    self.free_entry_of_dead(place, word, holder);
                    continue;
                }
                _ => return Ok(None),
            };
            let Some(meta) = self.bucket(bucket) else { return Ok(None) };
            self.lock_bucket_within(meta, owner, patience)?;
            if place.load(Ordering::Acquire) == word {
                return Ok(Some(Resident { word, tier, bucket, taken: true }));
            }
            self.unlock_left(bucket, meta);
        }
    }

    /// Waits until no flush reads `meta`'s bytes. The caller holds its lock, so none begins; a
    /// flush ends without the lock.
    pub fn wait_for_writeback(&self, meta: &BucketMeta) {
        let Ok(()) = self.wait_for_writeback_looking(meta, Segment::waits_on);
    }

    /// [`Segment::wait_for_writeback`], as [`Segment::lock_unless_interrupted`] does.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`].
    pub fn wait_for_writeback_unless_interrupted(&self, meta: &BucketMeta) -> Result<(), Errno> {
        self.wait_for_writeback_looking(meta, Segment::ends_wait_in_time)
    }

    pub(crate) fn wait_for_writeback_looking<E>(
        &self,
        meta: &BucketMeta,
        look: impl Fn(&Segment, Owner, &Patience) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut patience = Patience::default();
        while meta.pages.writeback() != 0 {
            if patience.wait() {
                // A manager that is dead writes nothing more; its successor is alive only after it
                // has counted these pages as dirty again.
                if !self.manager_is_alive() {
                    break;
                }
                look(self, Owner::new(MANAGER_SLOT, 0), &patience)?;
            }
        }
        Ok(())
    }

    /// Removes a locked resident bucket from the index and frees it; its bytes are gone.
    pub fn discard_resident(&self, place: &AtomicU64, resident: Resident) {
        if let Some(meta) = self.bucket(resident.bucket) {
            self.wait_for_writeback(meta);
        }
        crash::point("discard.begin");
        place.store(Entry::EMPTY, Ordering::Release);
        crash::point("discard.unpublished");
        self.free_bucket(resident.bucket);
        crash::point("discard.freed");
        if let Some(meta) = self.bucket(resident.bucket) {
            meta.lock.unlock_changed();
        }
    }
}

/// A resident block whose bucket is locked by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// The index entry's word.
    pub word: u64,
    /// Tier of the bucket.
    pub tier: usize,
    /// The bucket.
    pub bucket: u32,
    /// False when the caller's own thread held the lock already and it must stay held.
    pub taken: bool,
}
