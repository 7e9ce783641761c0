//! The file table: records found by identity, and exclusive use of a file.

use crate::backoff::Backoff;
use crate::checksum::checksum_of;
use crate::crash;
use crate::futex;
use crate::guards::{ExclusiveGuard, SharedGuard};
use crate::interruption;
use crate::layout::*;
use crate::message::Message;
use crate::opens::Opens;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use core::ffi::CStr;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// The bits of [`FileRecord::error`] that are the errno, and the one that says that somebody has
/// learned of it.
const ERRNO: u32 = 0xfff;
const SEEN: u32 = 1 << 15;

/// What makes a file this file, whatever its names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl Identity {
    /// Its chain of the file table, of which there are `heads`, a power of two. By the highest bits of the product,
    /// which all bits of the identity change: a check of a damaged pool goes by that.
    pub(crate) fn head(self, heads: u32) -> u32 {
        let mixed = (self.inode ^ self.device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.rotate_left(heads.trailing_zeros()) as u32 & (heads - 1)
    }
}

/// A file that was found in the table, for a caller that may not have it open: its record can be given up, and become
/// another file's.
#[derive(Clone, Copy, Debug)]
pub struct FoundFile {
    /// Its number.
    pub file: u32,
    generation: u32,
}

/// What became of a sync that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncState {
    /// It is under way.
    Waiting,
    /// It is done; it may have failed.
    Done,
    /// The file has no record any more: nothing was buffered of it when that was given up.
    Gone,
}

/// The last part of a path.
pub fn last_part(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &path[start..end]
}

impl FileRecord {
    /// Its identity.
    pub fn identity(&self) -> Identity {
        Identity {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
        }
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: FileFlags) -> bool {
        self.flags.load(Ordering::Acquire).contains(flags)
    }

    /// Sets flags; a plain load when they are set already. Returns whether they were.
    #[inline]
    pub fn set(&self, flags: FileFlags) -> bool {
        self.has(flags) || self.flags.set(flags, Ordering::AcqRel).contains(flags)
    }

    /// Clears flags; returns whether any was set.
    pub fn clear(&self, flags: FileFlags) -> bool {
        self.flags.clear(flags, Ordering::AcqRel).intersects(flags)
    }

    /// Whether a recovery would apply something of it, from the journal or from slots.
    pub fn is_tracked(&self) -> bool {
        self.flags.load(Ordering::Acquire).intersects(FileFlags::LOGGED | FileFlags::SLOTTED)
    }

    /// Whether the journal has anything of it. Whoever has set an intent sees what was set by those
    /// who did not see the intent.
    pub fn is_logged(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has(FileFlags::LOGGED)
    }

    /// Notes that tier `tier` holds some of it.
    #[inline]
    pub fn note_tier(&self, tier: TierId) {
        let bit = 1 << tier.index();
        if self.placed.load(Ordering::Relaxed) & bit == 0 {
            self.placed.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The path it was opened by; empty if that was too long to keep.
    pub fn path(&self) -> Vec<u8> {
        let length = (self.path_length.load(Ordering::Acquire) as usize).min(PATH_BYTES);
        self.path[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// Leaves the record, which nothing names any more, to another file.
    fn give_up(&self) {
        self.exclusive.store(0, Ordering::SeqCst);
        // A process that waits for something of the file sees that there is nothing to wait for.
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.state.store(file_state::FREE, Ordering::Release);
    }

    /// Makes a record that was used for another file all zero, but for what only ever rises, and what links it
    /// and says whose it is.
    fn wipe(&self) {
        let words = [
            &self.exclusive,
            &self.retry_at,
            &self.path_length,
            &self.error,
            &self.store,
            &self.placed,
            &self.job,
            &self.handle,
            &self.dirty_tails,
        ];
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.flags.store(FileFlags::NONE, Ordering::Relaxed);
        self.lengtheners.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let wide = [
            &self.size,
            &self.store_size,
            &self.mtime_ns,
            &self.store_mtime_ns,
            &self.changed_ns,
            &self.store_changed_ns,
            &self.born_ns,
            &self.entry0,
            &self.root,
            &self.heat,
            &self.rule_review,
            &self.intent,
            &self.range_start,
            &self.range_end,
        ];
        wide.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.rule.store(0, Ordering::Relaxed);
        self.mode.store(0, Ordering::Relaxed);
        self.trigger.store(0, Ordering::Relaxed);
    }

    /// Takes the note back that the last name was removed, unless `fd`, of this file, has none: it may have lost it just now.
    /// Returns whether it has one.
    pub fn note_whether_named(&self, fd: impl AsFd) -> bool {
        self.clear(FileFlags::UNLINKED);
        let is_nameless = rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_nlink == 0);
        if is_nameless {
            self.set(FileFlags::UNLINKED);
        }
        !is_nameless
    }

    /// Keeps `path`, if it fits.
    pub fn set_path(&self, path: &[u8]) {
        let fits = path.len() <= PATH_BYTES;
        self.path_length.store(0, Ordering::Release);
        if fits {
            for (place, &byte) in self.path.iter().zip(path) {
                place.store(byte, Ordering::Relaxed);
            }
            self.path_length.store(path.len() as u32, Ordering::Release);
        }
    }

    /// Whether the last part of the path is `name`.
    pub fn is_called(&self, name: &[u8]) -> bool {
        let length = (self.path_length.load(Ordering::Acquire) as usize).min(PATH_BYTES);
        let Some(start) = length.checked_sub(name.len() + 1) else { return false };
        let byte = |at: usize| self.path[at].load(Ordering::Relaxed);
        byte(start) == b'/' && (start + 1..length).map(byte).eq(name.iter().copied())
    }

    /// Copies the path to `to`, with a 0 behind it.
    pub fn copy_path<'a>(&self, to: &'a mut [u8; PATH_BYTES + 1]) -> Option<&'a CStr> {
        let length = (self.path_length.load(Ordering::Acquire) as usize).min(PATH_BYTES);
        for (place, byte) in to.iter_mut().zip(&self.path[..length]) {
            *place = byte.load(Ordering::Relaxed);
        }
        to[length] = 0;
        CStr::from_bytes_until_nul(to).ok()
    }

    /// Replaces the last part of the path, if that is `old`, by `new`; returns whether it was, and the
    /// path is the new one now.
    pub fn rename_last(&self, old: &[u8], new: &[u8]) -> bool {
        let length = (self.path_length.load(Ordering::Acquire) as usize).min(PATH_BYTES);
        let Some(folder) = length.checked_sub(old.len() + 1) else { return false };
        let place = |from: usize, name: &[u8]| from..from + name.len();
        let begins = self.path[folder].load(Ordering::Relaxed) == b'/';
        let is_old = || {
            let known = &self.path[place(folder + 1, old)];
            known.iter().zip(old).all(|(known, &byte)| known.load(Ordering::Relaxed) == byte)
        };
        if !begins || folder + 1 + new.len() > PATH_BYTES || !is_old() {
            return false;
        }
        self.path_length.store(0, Ordering::Release);
        for (known, &byte) in self.path[place(folder + 1, new)].iter().zip(new) {
            known.store(byte, Ordering::Relaxed);
        }
        self.path_length.store((folder + 1 + new.len()) as u32, Ordering::Release);
        true
    }

    /// Whether a truncate or a punch is under way, or was left undone by a dead owner.
    pub fn has_intent(&self) -> bool {
        self.intent.load(Ordering::Acquire) != 0 || self.range_end.load(Ordering::Acquire) != 0
    }

    /// Up to where the store's file may have bytes. While a process makes it longer, or has died at that, only the
    /// store's file knows: what is there is there for good, unless it lies behind the file's size.
    #[inline]
    pub fn stored(&self) -> u64 {
        // In this order: a process leaves its place after it has raised the size.
        match self.has_lengtheners() {
            true => u64::MAX,
            false => self.store_size.load(Ordering::Acquire),
        }
    }

    /// Whether a process makes the store's file longer, or has died at that.
    #[inline]
    pub fn has_lengtheners(&self) -> bool {
        self.lengtheners.iter().any(|place| place.load(Ordering::Acquire) != 0)
    }

    /// The size that a truncate under way gives the file: once its goal is noted it happens, whatever becomes of its
    /// process, unless the store refuses it.
    #[inline]
    pub fn truncated_to(&self) -> Option<u64> {
        self.intent.load(Ordering::Acquire).checked_sub(1)
    }

    /// The bytes that a punch under way takes away.
    pub fn punched(&self) -> Option<core::ops::Range<u64>> {
        let end = self.range_end.load(Ordering::Acquire);
        (end != 0).then(|| self.range_start.load(Ordering::Relaxed)..end)
    }

    /// Notes a flush error for every description to learn of once.
    pub fn report(&self, errno: u32) {
        let next = |old: u32| Some((old >> 16).wrapping_add(1) << 16 | (errno & ERRNO));
        let _ = self.error.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// Which error is the last: differs from an earlier value if there was one since. 0 is none ever.
    pub fn errors(&self) -> u32 {
        self.error.load(Ordering::Acquire) & !SEEN
    }

    /// The errno of the last flush that failed, 0 if none ever did.
    pub fn last_errno(&self) -> i32 {
        (self.error.load(Ordering::Acquire) & ERRNO) as i32
    }

    /// The errno of its last flush, if that failed. `None` of a file that only waits for its settlement: the store has all of it.
    pub fn failing_errno(&self) -> Option<i32> {
        self.has(FileFlags::FAILING).then(|| self.last_errno()).filter(|&errno| errno != 0)
    }

    /// Flushes that failed since the file was first opened; the count wraps after 65,535.
    pub fn failures(&self) -> u32 {
        self.error.load(Ordering::Acquire) >> 16
    }

    /// What a new description has seen of the file's errors: as with the kernel's, one that nobody
    /// has learned of yet is still to be told.
    pub(crate) fn sample_errors(&self) -> u32 {
        let error = self.error.load(Ordering::Acquire);
        if error & SEEN != 0 { error & !SEEN } else { 0 }
    }

    /// Whether a flush has failed of which no description has learned yet.
    pub fn has_untold_error(&self) -> bool {
        self.errors() != 0 && self.sample_errors() == 0
    }

    /// Counts all errors so far as told. Returns what a description has then seen.
    fn have_errors_seen(&self) -> u32 {
        let mark = |error: u32| (error != 0).then_some(error | SEEN);
        let _ = self.error.fetch_update(Ordering::AcqRel, Ordering::Relaxed, mark);
        self.errors()
    }

    /// The errno to tell through a description that has seen `seen`, which then has seen it.
    pub fn check_errors(&self, seen: &AtomicU32) -> Option<i32> {
        let now = self.errors();
        if now == 0 || seen.swap(now, Ordering::AcqRel) == now {
            return None;
        }
        let mark = |error: u32| (error & !SEEN == now).then_some(error | SEEN);
        let _ = self.error.fetch_update(Ordering::AcqRel, Ordering::Relaxed, mark);
        Some((now & ERRNO) as i32)
    }
}

#[inline]
fn take_place(place: &AtomicU64, word: u64) -> bool {
    place.load(Ordering::Relaxed) == 0
        && place.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// A shared lock for a thread whose first choice is taken: the place, `None` if it needs none, and what to put
/// back. A thread that has one already waits for no other, unless it is in two files: else as many threads
/// as there are words could all wait for their second.
#[cold]
fn claim_other(slot: &ClientSlot, owner: Owner, file: u32) -> (Option<&AtomicU64>, u64) {
    let places = || {
        (0..SHARED_LOCKS).map(|n| &slot.shared_locks[(owner.thread() as usize + n) % SHARED_LOCKS])
    };
    let word = SharedLock { thread: owner.thread(), file }.encode();
    let mine = places().find_map(|place| {
        let held = place.load(Ordering::Relaxed);
        let seen = SharedLock::decode(held)?;
        (seen.thread == owner.thread()).then_some((place, held, seen.file))
    });
    match mine {
        Some((_, _, held)) if file == SharedLock::TABLE || SharedLock::beside(held) == file => {
            return (None, 0);
        }
        Some((_, _, held)) if held == file => return (None, 0),
        Some((place, held, outer))
            if outer == SharedLock::TABLE || outer == SharedLock::beside(file) =>
        {
            place.swap(word, Ordering::SeqCst);
            return (Some(place), held);
        }
        _ => {}
    }
    let mut backoff = Backoff::default();
    loop {
        if let Some(place) = places().find(|place| take_place(place, word)) {
            return (Some(place), 0);
        }
        if backoff.wait() {
            interruption::run_held_off();
        }
    }
}

impl Segment {
    /// Enters the file table: every lock is held under some shared lock.
    pub fn enter_table(&self, owner: Owner) -> SharedGuard<'_> {
        self.claim_shared(owner, SharedLock::TABLE)
    }

    /// Enters the file table with a descriptor of `file`: see [`Segment::wait_for_users`].
    pub fn enter_beside(&self, file: u32, owner: Owner) -> SharedGuard<'_> {
        self.claim_shared(owner, SharedLock::beside(file))
    }

    /// Waits until each other thread of `owner`'s process that may use a descriptor of `file` has left it since.
    /// The caller has taken the descriptor out of its table before, and whoever enters looks there afterwards.
    /// False if that takes more than a moment, and a signal handler waits for this thread.
    pub fn wait_for_users(&self, file: u32, owner: Owner) -> bool {
        for place in &self.client(owner.slot()).shared_locks {
            let uses = || {
                SharedLock::decode(place.load(Ordering::SeqCst))
                    .is_some_and(|seen| seen.thread != owner.thread() && seen.uses(file))
            };
            let mut backoff = Backoff::default();
            while uses() {
                backoff.wait();
                if backoff.is_spent() && interruption::is_held_off() {
                    return false;
                }
            }
        }
        true
    }

    /// Enters `file`; refused with the owner that has it exclusively.
    ///
    /// # Errors
    /// The owner that holds the file.
    #[inline]
    pub fn try_enter(&self, file: u32, owner: Owner) -> Result<SharedGuard<'_>, Owner> {
        self.try_enter_record(file, self.file(file), owner)
    }

    /// [`Segment::try_enter`] of a file of which the caller has looked up the record.
    ///
    /// # Errors
    /// The owner that holds the file.
    #[inline]
    pub fn try_enter_record(
        &self,
        file: u32,
        record: &FileRecord,
        owner: Owner,
    ) -> Result<SharedGuard<'_>, Owner> {
        let inside = self.claim_shared(owner, file);
        match Owner::from_raw(record.exclusive.load(Ordering::SeqCst)) {
            // Who is inside already is waited for.
            Some(holder) if holder != owner && inside.place.is_some() => Err(holder),
            _ => Ok(inside),
        }
    }

    #[inline]
    fn claim_shared(&self, owner: Owner, file: u32) -> SharedGuard<'_> {
        let slot = self.client(owner.slot());
        let word = SharedLock { thread: owner.thread(), file }.encode();
        let thread = interruption::enter();
        let first = &slot.shared_locks[owner.thread() as usize % SHARED_LOCKS];
        let (place, before) = match take_place(first, word) {
            true => (Some(first), 0),
            false => claim_other(slot, owner, file),
        };
        SharedGuard { place, before, thread }
    }

    /// Leaves `file` for a moment, but stays beside it: the caller may hold a lock.
    pub fn step_out(&self, file: u32, owner: Owner, inside: &SharedGuard<'_>) {
        if let Some(place) = inside.place {
            let word =
                SharedLock { thread: owner.thread(), file: SharedLock::beside(file) }.encode();
            place.store(word, Ordering::Release);
        }
    }

    /// Enters the file again that [`Segment::step_out`] has left.
    ///
    /// # Errors
    /// The owner that holds the file.
    pub fn try_step_in(
        &self,
        file: u32,
        owner: Owner,
        inside: &SharedGuard<'_>,
    ) -> Result<(), Owner> {
        let Some(place) = inside.place else { return Ok(()) };
        place.swap(SharedLock { thread: owner.thread(), file }.encode(), Ordering::SeqCst);
        match Owner::from_raw(self.file(file).exclusive.load(Ordering::SeqCst)) {
            Some(holder) if holder != owner => {
                self.step_out(file, owner, inside);
                Err(holder)
            }
            _ => Ok(()),
        }
    }

    /// Takes `file` for `owner` alone and waits until no other thread is inside it. The caller is
    /// in the table, and looks at `intent` first: a dead owner may have left a truncate undone.
    ///
    /// # Errors
    /// As of [`Segment::ends_wait_in_time`]. Others may enter the file then.
    pub fn lock_exclusive<'a>(
        &'a self,
        _table: &'a SharedGuard<'_>,
        file: u32,
        owner: Owner,
    ) -> Result<ExclusiveGuard<'a>, Errno> {
        self.exclude_looking(file, owner, Segment::ends_wait_in_time)
    }

    pub(crate) fn exclude_looking<E>(
        &self,
        file: u32,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<ExclusiveGuard<'_>, E> {
        let record = self.file(file);
        let mut backoff = Backoff::default();
        // What a dead owner left undone is not to be seen by others, however long that takes.
        let mut was_free = true;
        loop {
            let exchange = |from: u32| {
                record.exclusive.compare_exchange(
                    from,
                    owner.raw(),
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
            };
            match exchange(0).err().and_then(Owner::from_raw) {
                None => break,
                Some(holder) if holder == owner => return Ok(ExclusiveGuard::of(record, None)),
                Some(holder) => {
                    if backoff.wait() {
                        if self.owner_is_dead(holder) && exchange(holder.raw()).is_ok() {
                            was_free = false;
                            break;
                        }
                        look(self, holder, &backoff)?;
                    }
                }
            }
        }
        let exclusive = ExclusiveGuard::of(record, Some(owner));
        crash::point("file.excluding");
        if was_free {
            self.wait_for_others(file, owner, look)?;
        } else {
            let Ok(()) = self.wait_for_others(file, owner, Segment::waits_on);
        }
        crash::point("file.excluded");
        Ok(exclusive)
    }

    /// Like [`Segment::lock_exclusive`], but gives up, and lets others in again, when the file is held
    /// or another thread stays inside for more than a moment.
    pub fn try_lock_exclusive<'a>(
        &'a self,
        _table: &'a SharedGuard<'_>,
        file: u32,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'a>> {
        self.exclude_in_time(file, owner)
    }

    /// Goes on as `owner` with a file that a dead process had exclusively, and that is `reaper`'s since.
    pub fn take_exclusive(
        &self,
        file: u32,
        reaper: Owner,
        owner: Owner,
    ) -> Option<ExclusiveGuard<'_>> {
        let record = self.file(file);
        let (from, to) = (reaper.raw(), owner.raw());
        let taken =
            record.exclusive.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        taken.ok().map(|_| ExclusiveGuard::of(record, Some(owner)))
    }

    pub(crate) fn exclude_in_time(&self, file: u32, owner: Owner) -> Option<ExclusiveGuard<'_>> {
        let record = self.file(file);
        let (free, mine) = (0, owner.raw());
        record.exclusive.compare_exchange(free, mine, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        let exclusive = ExclusiveGuard::of(record, Some(owner));
        let inside = |slot| {
            let words = &self.client(slot).shared_locks;
            words.iter().any(|word| {
                SharedLock::decode(word.load(Ordering::SeqCst))
                    .is_some_and(|seen| seen.file == file)
            })
        };
        let slots = 0..self.header().clients_high.load(Ordering::SeqCst);
        for slot in slots {
            let mut backoff = Backoff::default();
            for _ in 0..140 {
                if !inside(slot) {
                    break;
                }
                backoff.wait();
            }
            if inside(slot) {
                return None;
            }
        }
        Some(exclusive)
    }

    fn wait_for_others<E>(
        &self,
        file: u32,
        owner: Owner,
        look: impl Fn(&Segment, Owner, &Backoff) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in 0..self.header().clients_high.load(Ordering::SeqCst) {
            for place in &self.client(slot).shared_locks {
                let mut backoff = Backoff::default();
                loop {
                    let seen = SharedLock::decode(place.load(Ordering::SeqCst));
                    let Some(seen) = seen.filter(|seen| seen.file == file) else { break };
                    let other = Owner::new(slot, 0);
                    if slot == owner.slot() && seen.thread == owner.thread() {
                        break;
                    }
                    if backoff.wait() {
                        if self.owner_is_dead(other) {
                            break;
                        }
                        look(self, other, &backoff)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a process that is stopped has `file` to itself, or has a thread inside it.
    pub fn is_held_by_stopped(&self, file: u32) -> bool {
        let exclusive = Owner::from_raw(self.file(file).exclusive.load(Ordering::SeqCst));
        let inside = |slot: &u32| {
            self.client(*slot).shared_locks.iter().any(|word| {
                SharedLock::decode(word.load(Ordering::SeqCst))
                    .is_some_and(|seen| seen.file == file)
            })
        };
        let slots = 0..self.header().clients_high.load(Ordering::SeqCst);
        exclusive.is_some_and(|holder| self.is_stopped(holder))
            || slots.filter(inside).any(|slot| self.is_stopped(Owner::new(slot, 0)))
    }

    /// Counts all errors of `file` so far as told to all that have it open. The caller holds its stripe.
    pub fn have_errors_seen(&self, file: u32) {
        let record = self.file(file);
        if record.errors() == 0 {
            return;
        }
        let seen = record.have_errors_seen();
        let descriptions = (0..self.header().descriptions).map(|id| self.description(id));
        for description in descriptions.filter(|one| one.file.load(Ordering::Acquire) == file) {
            description.error_seen.store(seen, Ordering::Release);
        }
    }

    /// Calls `act` with the record of `identity`, if there is one, while the table cannot change
    /// under it. The caller is in the table.
    ///
    /// # Errors
    /// `INTR`, as of [`Segment::lock_position`]; `act` was not called.
    pub fn with_file<R>(
        &self,
        identity: Identity,
        owner: Owner,
        act: impl FnOnce(Option<u32>) -> R,
    ) -> Result<R, Errno> {
        let head = identity.head(self.header().heads);
        let _stripe = self.lock_stripe(head, owner)?;
        Ok(act(self.search(head, identity)))
    }

    /// Whether the table has `identity`, without a lock.
    pub fn may_have(&self, identity: Identity) -> bool {
        self.search(identity.head(self.header().heads), identity).is_some()
    }

    /// How often programs have changed names of files. A process that makes a record, and finds this changed since before it
    /// looked at the file's name, looks again once the record can be found: a process that changed the name before that has
    /// not found the record, and said nothing of it. One that changes it later finds it.
    #[inline]
    pub fn name_changes(&self) -> u64 {
        // The record comes before.
        fence(Ordering::SeqCst);
        self.header().name_changes.load(Ordering::SeqCst)
    }

    /// Notes that the name `path` was changed, before the caller looks whether the file is in the table. Returns whether other
    /// names were since [`Segment::name_changes`] was `before`.
    pub fn name_changed(&self, before: u64, path: &[u8]) -> bool {
        let header = self.header();
        let seen = header.name_changes.fetch_add(1, Ordering::SeqCst);
        let change = seen << 32 | u64::from(checksum_of(last_part(path)));
        header.changed_names[seen as usize % CHANGED_NAMES].store(change, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        seen != before
    }

    /// Whether another process may have changed a name like that of `path`, beside one change of the caller's, since
    /// [`Segment::name_changes`] was `before`.
    pub fn may_others_have_changed(&self, before: u64, path: &[u8]) -> bool {
        let (now, own) = (self.name_changes(), 1);
        let changes = now.wrapping_sub(before);
        if changes <= own {
            return false;
        }
        let sum = checksum_of(last_part(path));
        let is_like = |number: u64| {
            let change =
                self.header().changed_names[number as usize % CHANGED_NAMES].load(Ordering::SeqCst);
            // Of one that is being noted it is not known.
            change >> 32 != number & u64::from(u32::MAX) || change as u32 == sum
        };
        let range = (0..changes).map(|nth| before.wrapping_add(nth));
        changes > CHANGED_NAMES as u64
            || range.filter(|&number| is_like(number)).count() > own as usize
    }

    /// Tells the node manager something through the queue. If that is full, or `owner` is nobody,
    /// the manager looks for itself.
    pub fn post(&self, owner: Option<Owner>, message: &Message) {
        let told = owner.is_some_and(|owner| {
            let _inside = self.enter_table(owner);
            self.queue().push(owner, message)
        });
        if !told {
            self.queue().miss();
        }
    }

    /// Asks the node manager to bring what is buffered of `file` to the store, and to sync the store
    /// if `durable`. `owner` is nobody's where the caller has no slot. Returns the ticket to wait for.
    pub fn request_sync(&self, file: u32, owner: Option<Owner>, durable: bool) -> u32 {
        let durably = FileFlags::DURABLE.when(durable);
        self.request(file, owner, FileFlags::TO_FLUSH | durably)
    }

    /// Asks the node manager for what `flags` say of `file`. Returns the ticket to wait for.
    pub fn request(&self, file: u32, owner: Option<Owner>, flags: FileFlags) -> u32 {
        let record = self.file(file);
        record.set(flags);
        let ticket = record.sync_wanted.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        crash::point("sync.requested");
        self.post(owner, &Message::Sync { file });
        ticket
    }

    /// Wakes the flushers of all tiers.
    pub fn want_work(&self) {
        let wanted = &self.header().work_wanted;
        wanted.fetch_add(1, Ordering::AcqRel);
        futex::wake_all(wanted);
    }

    /// The files in the table.
    pub fn found_files(&self) -> impl Iterator<Item = FoundFile> + '_ {
        self.live_files().map(|file| self.found(file))
    }

    /// To be called before it is looked which file it is.
    fn found(&self, file: u32) -> FoundFile {
        FoundFile { file, generation: self.file(file).generation.load(Ordering::Acquire) }
    }

    /// What became of the sync of `ticket`.
    pub fn sync_state(&self, found: FoundFile, ticket: u32) -> SyncState {
        let FoundFile { file, generation } = found;
        let record = self.file(file);
        let is_done = self.is_synced(file, ticket);
        if record.generation.load(Ordering::Acquire) != generation
            || record.state.load(Ordering::Acquire) == file_state::FREE
        {
            return SyncState::Gone;
        }
        if is_done { SyncState::Done } else { SyncState::Waiting }
    }

    /// Whether the sync of `ticket` is done; it may have failed. For a caller that has the file open, so that it keeps
    /// its record.
    pub fn is_synced(&self, file: u32, ticket: u32) -> bool {
        let behind = ticket.wrapping_sub(self.file(file).sync_done.load(Ordering::Acquire));
        behind == 0 || behind > u32::MAX / 2
    }

    /// [`Segment::open_file`] of a file of which nothing is known.
    pub fn with_file_or_new<R>(
        &self,
        identity: Identity,
        owner: Owner,
        act: impl FnOnce(u32, bool) -> R,
    ) -> Option<R> {
        self.open_file(identity, owner, |_| (), act).ok().flatten()
    }

    /// Finds or makes the record of `identity`, counts an open of it, and calls `act` with it and whether it is
    /// new, while the table cannot change under it: there a description is taken, see [`crate::opens`]. A new
    /// one is given to `begin`, all zero, before anybody else can find it. `None` when the table is full.
    /// The caller is in the table.
    ///
    /// # Errors
    /// As of [`Segment::with_file`].
    pub fn open_file<R>(
        &self,
        identity: Identity,
        owner: Owner,
        begin: impl FnOnce(&FileRecord),
        act: impl FnOnce(u32, bool) -> R,
    ) -> Result<Option<R>, Errno> {
        let make = |head| {
            let made = self.insert(head, identity, owner, begin);
            if made.is_none() {
                self.note_unrecorded(identity, owner);
            }
            made
        };
        self.opening(identity, owner, make, act)
    }

    /// The same for a record that exists; `None` if there is none.
    ///
    /// # Errors
    /// As of [`Segment::with_file`].
    pub fn reopen_file<R>(
        &self,
        identity: Identity,
        owner: Owner,
        act: impl FnOnce(u32) -> R,
    ) -> Result<Option<R>, Errno> {
        self.opening(identity, owner, |_| None, |file, _| act(file))
    }

    fn opening<R>(
        &self,
        identity: Identity,
        owner: Owner,
        make: impl FnOnce(u32) -> Option<u32>,
        act: impl FnOnce(u32, bool) -> R,
    ) -> Result<Option<R>, Errno> {
        let head = identity.head(self.header().heads);
        let _stripe = self.lock_stripe(head, owner)?;
        let found = match self.search(head, identity) {
            Some(file) => Some((file, false)),
            None => make(head).map(|file| (file, true)),
        };
        Ok(found.map(|(file, new)| {
            let record = self.file(file);
            // Linked by one that died before it said so, or stayed linked when one died that removed it.
            if record.state.load(Ordering::Acquire) != file_state::LIVE {
                record.state.store(file_state::LIVE, Ordering::Release);
            }
            record.opens.fetch_add(1, Ordering::SeqCst);
            crash::point("file.found");
            let result = act(file, new);
            crash::point("file.described");
            result
        }))
    }

    /// How often `file` has been opened, if no thread may be opening it now. The caller then looks at the
    /// descriptions, and has seen all of the file's if the count is the same afterwards.
    pub fn count_opens(&self, file: u32) -> Option<Opens> {
        let record = self.file(file);
        let head = record.identity().head(self.header().heads);
        Opens::counted(&record.opens, self.stripe(head))
    }

    fn search(&self, head: u32, identity: Identity) -> Option<u32> {
        self.search_from(self.head(head).load(Ordering::Acquire), head, identity)
    }

    fn search_from(&self, mut link: u32, head: u32, identity: Identity) -> Option<u32> {
        let heads = self.header().heads;
        // A chain that a damaged link made into a ring must not hold us for ever.
        for _ in 0..self.header().files {
            let file = link.checked_sub(1)?;
            let record = self.file(file);
            if record.identity() == identity && record.state.load(Ordering::Acquire) != 0 {
                return Some(file);
            }
            link = record.next.load(Ordering::Acquire);
            // Without the stripe: the record may be one of another chain by now.
            if record.identity().head(heads) != head {
                link = self.head(head).load(Ordering::Acquire);
            }
        }
        None
    }

    fn insert(
        &self,
        head: u32,
        identity: Identity,
        owner: Owner,
        begin: impl FnOnce(&FileRecord),
    ) -> Option<u32> {
        let file = self.take_file(owner)?;
        crash::point("file.taken");
        let record = self.file(file);
        record.generation.fetch_add(1, Ordering::Relaxed);
        record.wipe();
        record.device.store(identity.device, Ordering::Relaxed);
        record.inode.store(identity.inode, Ordering::Relaxed);
        begin(record);
        if self.is_unrecorded(identity) {
            record.set(FileFlags::DIRECT);
        }
        // Complete before it can be found: one that dies here leaves nothing, or a record of this file.
        let head = self.head(head);
        // After the identity: see `search`.
        record.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        crash::point("file.linking");
        head.store(file + 1, Ordering::Release);
        crash::point("file.linked");
        record.state.store(file_state::LIVE, Ordering::Release);
        Some(file)
    }

    fn take_file(&self, owner: Owner) -> Option<u32> {
        if crash::refused("file") {
            return None;
        }
        let free = |file: &u32| {
            let state = &self.file(*file).state;
            state.load(Ordering::Relaxed) == file_state::FREE
                && state
                    .compare_exchange(
                        file_state::FREE,
                        owner.raw(),
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_ok()
        };
        let cursor = &self.header().file_cursor;
        let files = self.header().files;
        let start = cursor.load(Ordering::Relaxed).min(files);
        let file = (start..files).chain(0..start).find(free)?;
        cursor.store(file + 1, Ordering::Relaxed);
        self.header().files_high.fetch_max(file + 1, Ordering::AcqRel);
        Some(file)
    }

    /// Removes `file`, which the caller has `exclusive`, from the table if no thread has opened it since `opens` were
    /// counted, and `unwanted` says so, while the table cannot change under it. The caller has seen since
    /// that no description names the file. The record's index must be empty of buckets; its nodes are freed here.
    /// A record that was removed is free for another file. False also if some thread holds
    /// the stripe for more than a moment: it may be stopped.
    pub fn remove_file(
        &self,
        file: u32,
        exclusive: ExclusiveGuard<'_>,
        owner: Owner,
        opens: Opens,
        unwanted: impl FnOnce() -> bool,
    ) -> bool {
        let record = self.file(file);
        let head = record.identity().head(self.header().heads);
        // Who opens another file of the stripe may be stopped over that.
        let Ok(_stripe) = self.lock_stripe_within(head, owner, &mut Backoff::default()) else {
            return false;
        };
        let removed = opens.are_still(&record.opens) && unwanted() && self.names(head, file);
        if removed {
            // Stamped, so that whoever finds us dead in between completes or undoes it.
            record.state.store(owner.raw(), Ordering::Release);
            crash::point("file.removing");
            self.unlink(head, file);
            crash::point("file.unlinked");
            self.index_nodes(owner.slot()).prune(record);
            crash::point("file.pruned");
            record.give_up();
        }
        drop(exclusive);
        removed
    }

    /// Keeps the checksum of a file's handle in its record, if `is_it` says that it is the file's while the table
    /// cannot change under it; not if that would take long. The caller is in the table.
    pub fn note_handle(&self, file: u32, owner: Owner, handle: u32, is_it: impl FnOnce() -> bool) {
        let record = self.file(file);
        let head = record.identity().head(self.header().heads);
        if let Ok(_stripe) = self.lock_stripe_within(head, owner, &mut Backoff::default())
            && is_it()
        {
            record.handle.store(handle, Ordering::Release);
        }
    }

    fn names(&self, head: u32, file: u32) -> bool {
        let mut link = self.head(head).load(Ordering::Acquire);
        for _ in 0..self.header().files {
            match link.checked_sub(1) {
                Some(at) if at == file => return true,
                Some(at) => link = self.file(at).next.load(Ordering::Acquire),
                None => break,
            }
        }
        false
    }

    /// Brings the records that dead owners of `slot` were linking or unlinking to a state: in
    /// the table if they are linked, else free. `reaper` is in the table. False if that has to be tried
    /// again: a thread that opens another file of the stripe does not go on.
    pub(crate) fn reap_files(&self, slot: u32, reaper: Owner) -> bool {
        let mut backoff = Backoff::default();
        for file in 0..self.header().files {
            let record = self.file(file);
            let state = record.state.load(Ordering::Acquire);
            if matches!(state, file_state::FREE | file_state::LIVE)
                || Owner::from_raw(state).is_none_or(|owner| owner.slot() != slot)
            {
                continue;
            }
            let head = record.identity().head(self.header().heads);
            let Ok(_stripe) = self.lock_stripe_within(head, reaper, &mut backoff) else {
                return false;
            };
            if self.names(head, file) {
                record.state.store(file_state::LIVE, Ordering::Release);
            } else {
                self.index_nodes(slot).prune(record);
                record.give_up();
            }
        }
        true
    }

    fn unlink(&self, head: u32, file: u32) -> bool {
        let mut link: &AtomicU32 = self.head(head);
        for _ in 0..self.header().files {
            let Some(at) = link.load(Ordering::Acquire).checked_sub(1) else { return false };
            if at == file {
                link.store(self.file(file).next.load(Ordering::Relaxed), Ordering::Release);
                return true;
            }
            link = &self.file(at).next;
        }
        false
    }

    /// All records in the table.
    pub fn live_files(&self) -> impl Iterator<Item = u32> {
        let high = self.header().files_high.load(Ordering::Acquire);
        (0..high.min(self.header().files))
            .filter(|&file| self.file(file).state.load(Ordering::Acquire) == file_state::LIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::anonymous;

    #[test]
    fn changes_of_a_name_by_others_are_told_from_those_of_other_names() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let change = |path: &str| segment.name_changed(segment.name_changes(), path.as_bytes());
        let before = segment.name_changes();
        assert!(!segment.may_others_have_changed(before, b"file"));
        change("folder/file");
        assert!(!segment.may_others_have_changed(before, b"/else/where/file"));
        change("folder/files");
        change("file/other/");
        assert!(!segment.may_others_have_changed(before, b"file"));
        change("file//");
        assert!(segment.may_others_have_changed(before, b"file"));
        assert!(!segment.may_others_have_changed(before, b"files"));
        // Which names they were is not known any more.
        (0..CHANGED_NAMES).for_each(|number| _ = change(&number.to_string()));
        assert!(segment.may_others_have_changed(before, b"files"));
        // One is being noted.
        let before = segment.name_changes();
        segment.header().name_changes.fetch_add(1, Ordering::SeqCst);
        change("files");
        assert!(segment.may_others_have_changed(before, b"files"));
    }

    #[test]
    fn a_record_is_called_by_the_last_part_of_its_path() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let record = segment.file(0);
        record.set_path(b"/folder/file");
        assert!(record.is_called(b"file"));
        for other in [&b"ile"[..], b"files", b"folder", b"", b"older/file", b"/folder/file"] {
            assert!(!record.is_called(other), "{other:?}");
        }
        let mut path = [1; PATH_BYTES + 1];
        assert_eq!(record.copy_path(&mut path), Some(c"/folder/file"));
    }

    #[test]
    fn a_record_is_found_by_identity_until_it_is_removed() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let inside = segment.enter_table(me);
        let alone = |file| segment.try_lock_exclusive(&inside, file, me).unwrap();
        let identities: Vec<_> =
            (0..500).map(|n| Identity { device: n % 3, inode: n * 7 }).collect();
        for &id in &identities {
            let new = segment.with_file_or_new(id, me, |_, new| new);
            assert_eq!(new, Some(true));
        }
        for &id in &identities {
            let file = segment.with_file(id, me, |file| file).unwrap().unwrap();
            assert_eq!(segment.file(file).identity(), id);
            let opens = segment.count_opens(file).unwrap();
            assert!(!segment.remove_file(file, alone(file), me, opens, || false));
            if id.inode % 2 == 0 {
                assert!(segment.remove_file(file, alone(file), me, opens, || true));
            }
        }
        for &id in &identities {
            assert_eq!(segment.may_have(id), id.inode % 2 == 1);
        }
    }

    #[test]
    fn a_sync_of_a_file_that_loses_its_record_is_not_waited_for() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let inside = segment.enter_table(me);
        let alone = |file| segment.try_lock_exclusive(&inside, file, me).unwrap();
        let make = |inode| {
            segment.with_file_or_new(Identity { device: 1, inode }, me, |file, _| file).unwrap()
        };
        let ask = |file| {
            let found = segment.found(file);
            (found, segment.request_sync(file, None, true))
        };
        let file = make(1);
        let (found, first) = ask(file);
        let (_, second) = ask(file);
        segment.file(file).sync_done.store(first, Ordering::Release);
        assert_eq!(segment.sync_state(found, first), SyncState::Done);
        assert_eq!(segment.sync_state(found, second), SyncState::Waiting);
        let opens = segment.count_opens(file).unwrap();
        assert!(segment.remove_file(file, alone(file), me, opens, || true));
        assert_eq!(segment.sync_state(found, second), SyncState::Gone);
        // Asked for when it has none already.
        let (late, third) = ask(file);
        assert_eq!(segment.sync_state(late, third), SyncState::Gone);
        segment.header().file_cursor.store(0, Ordering::Relaxed);
        assert_eq!(make(2), file, "not used again");
        for (found, ticket) in [(found, second), (late, third)] {
            assert_eq!(segment.sync_state(found, ticket), SyncState::Gone);
        }
        let (found, ticket) = ask(file);
        assert_eq!(segment.sync_state(found, ticket), SyncState::Waiting);
    }

    #[test]
    fn each_bit_of_an_identity_says_which_chain_it_is_in() {
        let heads = Geometry::for_tiers(4096, &[64 << 18]).files.next_power_of_two();
        let identity = Identity { device: 0xfd02, inode: 6_014_233 };
        let flipped = |bit: u32| {
            let (one, Identity { device, inode }) = (1u64 << bit, identity);
            [Identity { device, inode: inode ^ one }, Identity { device: device ^ one, inode }]
        };
        for other in (0..64).flat_map(flipped) {
            assert_ne!(other.head(heads), identity.head(heads), "{other:?}");
        }
    }

    #[test]
    fn a_search_that_stands_on_a_record_of_another_chain_begins_again() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let inside = segment.enter_table(me);
        let alone = |file| segment.try_lock_exclusive(&inside, file, me).unwrap();
        let heads = segment.header().heads;
        let head = Identity { device: 1, inode: 1 }.head(heads);
        let mut same = (1..).map(|inode| Identity { device: 1, inode });
        let mut next = |is: bool| same.find(|id| (id.head(heads) == head) == is).unwrap();
        let (behind, before, elsewhere) = (next(true), next(true), next(false));
        let make = |id| segment.with_file_or_new(id, me, |file, _| file).unwrap();
        let (behind_at, before_at) = (make(behind), make(before));
        // Another thread has come as far as this.
        let link = segment.head(head).load(Ordering::Acquire);
        assert_eq!(link, before_at + 1);
        let opens = segment.count_opens(before_at).unwrap();
        assert!(segment.remove_file(before_at, alone(before_at), me, opens, || true));
        segment.header().file_cursor.store(0, Ordering::Relaxed);
        assert_eq!(make(elsewhere), before_at, "not used again");
        assert_eq!(segment.search_from(link, head, behind), Some(behind_at));
        assert_eq!(segment.search_from(link, head, before), None);
    }

    #[test]
    fn threads_that_are_inside_wait_for_no_second_shared_lock() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let id = Identity { device: 1, inode: 1 };
        segment.header().clients_high.store(2, Ordering::SeqCst);
        let owners: Vec<_> = (0..SHARED_LOCKS as u32).map(|thread| Owner::new(1, thread)).collect();
        let outer: Vec<_> = owners.iter().map(|&owner| segment.enter_table(owner)).collect();
        let file = segment.with_file_or_new(id, owners[0], |file, _| file).unwrap();
        let other = Owner::new(2, 0);
        let may_exclude = || segment.exclude_in_time(file, other).is_some();
        for (&owner, table) in owners.iter().zip(outer) {
            let again = segment.enter_table(owner);
            let inside = segment.try_enter(file, owner).unwrap();
            let twice = segment.try_enter(file, owner).unwrap();
            assert!(!may_exclude());
            drop(twice);
            segment.step_out(file, owner, &inside);
            let exclusive = segment.exclude_in_time(file, other).unwrap();
            assert_eq!(segment.try_step_in(file, owner, &inside), Err(other));
            drop(exclusive);
            segment.try_step_in(file, owner, &inside).unwrap();
            assert!(!may_exclude());
            drop(inside);
            drop(again);
            assert!(may_exclude());
            drop(table);
        }
        let words = &segment.client(1).shared_locks;
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_full_table_says_so() {
        let mut geometry = Geometry::for_tiers(4096, &[64 << 18]);
        geometry.files = 8;
        let (segment, _file) = anonymous(&geometry).unwrap();
        let me = Owner::new(1, 0);
        let made: Vec<_> = (0..9)
            .map(|inode| segment.with_file_or_new(Identity { device: 1, inode }, me, |_, new| new))
            .collect();
        assert_eq!(made[..8], [Some(true); 8]);
        assert_eq!(made[8], None);
    }

    #[test]
    fn an_error_is_told_once_to_each_and_unseen_to_one_later() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let record = segment.file(0);
        let open = || AtomicU32::new(record.sample_errors());
        let (one, two) = (open(), open());
        assert_eq!(record.check_errors(&one), None);
        record.report(28);
        // Nobody has learned of it: a description opened now will.
        let three = open();
        assert_eq!(record.check_errors(&one), Some(28));
        assert_eq!(record.check_errors(&one), None);
        // Opened after somebody has: no news.
        let four = open();
        assert_eq!(
            [&two, &three, &four].map(|d| record.check_errors(d)),
            [Some(28), Some(28), None]
        );
        record.report(5);
        record.report(28);
        assert_eq!((record.failures(), record.last_errno()), (3, 28));
        let told = [&one, &two, &three, &four].map(|d| record.check_errors(d));
        assert_eq!(told, [Some(28); 4], "two errors are told as one, the last");
        assert_eq!(record.check_errors(&four), None);
    }

    #[test]
    fn errors_of_a_file_before_are_told_to_none_that_has_the_new_one_open() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let record = segment.file(0);
        let open = |file, slot| {
            segment.open_description(file, DescriptionFlags::NONE, Owner::new(slot, 0)).unwrap()
        };
        let [one, two, other] =
            [open(0, 1), open(0, 2), open(1, 1)].map(|marker| marker.description);
        let seen = |id: u32| &segment.description(id).error_seen;
        record.report(5);
        segment.file(1).report(5);
        segment.have_errors_seen(0);
        let told = [one, two].map(|id| record.check_errors(seen(id)));
        assert_eq!(told, [None, None]);
        assert_eq!(segment.file(1).check_errors(seen(other)), Some(5));
        record.report(28);
        let told = [one, two].map(|id| record.check_errors(seen(id)));
        assert_eq!(told, [Some(28), Some(28)]);
    }

    #[test]
    fn exclusive_use_waits_for_those_inside() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        segment.header().clients_high.store(3, Ordering::Relaxed);
        let (reader, truncater) = (Owner::new(1, 0), Owner::new(2, 0));
        let inside = segment.try_enter(5, reader).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let table = segment.enter_table(truncater);
                core::mem::forget(segment.lock_exclusive(&table, 5, truncater).unwrap());
            });
            while segment.file(5).exclusive.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(segment.try_enter(5, Owner::new(1, 1)).unwrap_err(), truncater);
            assert!(!waiting.is_finished());
            drop(inside);
            waiting.join().unwrap();
        });
        assert!(segment.try_enter(5, reader).is_err());
        drop(segment.take_exclusive(5, truncater, truncater).unwrap());
        assert!(segment.try_enter(5, reader).is_ok());
    }
}
