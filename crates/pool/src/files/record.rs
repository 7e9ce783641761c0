//! What a file record says of its file: flags, path, size and errors.

use crate::files::Identity;
use crate::layout::{FileFlags, FileRecord, TierId, file_state};
use crate::lease::{Access, AtomicLease, Grant, Lease};
use crate::sync::{AtomicU32, Ordering, fence};
use forebay_placement::schema::{Consistency, Mode};
use forebay_placement::staged::Stage;
use rustix::fd::AsFd;

/// The bits of [`FileRecord::error`] that are the errno, and the one that says that a program has
/// learned of it.
const ERRNO: u32 = 0xfff;
const SEEN: u32 = 1 << 15;

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

    /// Whether it is used through the kernel for as long as any process has it open.
    pub fn stays_direct(&self) -> bool {
        self.has(FileFlags::DIRECT) && !self.has(FileFlags::MAPPED)
    }

    /// Has it used through the kernel for as long as any process has it open. The caller has it
    /// exclusively, and clean.
    pub fn turn_direct(&self) {
        // In this order: a process that dies here leaves it as it was, or direct.
        self.clear(FileFlags::MAPPED | FileFlags::UNMAPPED);
        self.set(FileFlags::DIRECT);
    }

    /// Has it used through the kernel for as long as any process has it mapped. The caller has it
    /// exclusively, and clean, and holds a description for the mapping.
    pub fn turn_mapped(&self) {
        self.clear(FileFlags::UNMAPPED);
        // Of a new small file, mappings are the reason from now on.
        self.small.store(0, Ordering::Release);
        if !self.has(FileFlags::DIRECT) {
            self.set(FileFlags::DIRECT | FileFlags::MAPPED);
        }
    }

    /// Has it written through to the store as long as it is new and small. The caller has it
    /// exclusively, and nothing was buffered of it yet.
    pub fn turn_small(&self) {
        self.clear(FileFlags::UNMAPPED);
        self.small.store(1, Ordering::Release);
        self.set(FileFlags::DIRECT | FileFlags::MAPPED);
    }

    /// Notes that something is written through to it. Whether that is the first.
    pub fn begin_writing_through(&self) -> bool {
        self.small.compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether it is used through the kernel because it is new and small.
    #[inline]
    pub fn is_written_through(&self) -> bool {
        self.small.load(Ordering::Acquire) != 0 && self.has(FileFlags::DIRECT | FileFlags::MAPPED)
    }

    /// Whether this node may do that with it now. A caller that is inside the file, or has it
    /// exclusively, may until it leaves.
    #[inline]
    pub fn allows(&self, access: Access) -> bool {
        self.lease.load().allows(access)
    }

    /// What was granted is this node's from now on, see [`crate::lease::AtomicLease::take_up`].
    pub fn take_up_lease(&self) {
        self.change_lease(self.lease.load().granted().map(Grant::lease), |lease| lease.take_up());
    }

    /// This node has `left` from now on, see [`crate::lease::AtomicLease::reduce`].
    pub fn reduce_lease(&self, left: Lease) {
        self.change_lease(Some(left), |lease| lease.reduce(left));
    }

    /// Whether nodes that share it see what others have written once that is committed, see
    /// [`Lease::Commit`]: its rule says so, and it is to be on the store at all.
    pub fn is_to_commit(&self) -> bool {
        self.consistency.load(Ordering::Relaxed) == Consistency::Commit as u8
            && !self.has(FileFlags::SCRATCH)
    }

    /// This node has borrowed the file, whose size and time of change (nanoseconds of
    /// CLOCK_REALTIME) the node that lends it says, see [`crate::lease::AtomicLease::borrow`].
    pub fn borrow(&self, size: u64, modified_ns: u64) {
        // As if the store had it: what is not here comes from the node that has.
        self.size.store(size, Ordering::Release);
        self.store_size.store(size, Ordering::Release);
        self.mtime_ns.store(modified_ns, Ordering::Release);
        self.store_mtime_ns.store(modified_ns, Ordering::Release);
        self.change_lease(Some(Lease::Borrowed), AtomicLease::borrow);
    }

    /// Whether what other nodes have of it may be on the store, or come there. A file that this
    /// node lends is its own, though calls look at its lease.
    pub fn is_shared(&self) -> bool {
        self.has(FileFlags::SHARED) && self.lease.load().held() != Lease::Lent
    }

    /// Whether the store may be behind what this node may read of it: see [`Lease::Borrowed`].
    pub fn is_borrowed(&self) -> bool {
        self.lease.load().held() == Lease::Borrowed
    }

    /// A process that dies in the middle leaves it marked as shared, which stops no call.
    fn change_lease(&self, to: Option<Lease>, change: impl FnOnce(&AtomicLease)) {
        let is_looked_at = |to: Lease| to.is_beside_writers() || to == Lease::Lent;
        if to.is_some_and(is_looked_at) {
            self.set(FileFlags::SHARED);
        }
        change(&self.lease);
        if to.is_some_and(|to| !is_looked_at(to)) {
            self.clear(FileFlags::SHARED);
            // It doubts the lease first, and marks the record then: one of both sees the other.
            fence(Ordering::SeqCst);
            if self.lease.load().is_unsure() {
                self.set(FileFlags::SHARED);
            }
        }
    }

    /// Calls need not look at its lease any more than that takes. The caller has it exclusively.
    pub fn settle_lease(&self) {
        self.change_lease(Some(self.lease.load().held()), |_| ());
    }

    /// What this node has of it beside others may be out of date, see
    /// [`crate::lease::AtomicLease::doubt`]. The caller need not have it exclusively.
    pub fn doubt_lease(&self) {
        self.lease.doubt();
        fence(Ordering::SeqCst);
        if self.lease.load().is_unsure() {
            self.set(FileFlags::SHARED);
        }
    }

    /// Whether a recovery would apply something of it, from the journal or from slots.
    pub fn is_tracked(&self) -> bool {
        self.flags.load(Ordering::Acquire).intersects(FileFlags::LOGGED | FileFlags::SLOTTED)
    }

    /// Whether the journal has anything of it. A thread that has set an intent sees what was set by
    /// those that did not see the intent.
    pub fn is_logged(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has(FileFlags::LOGGED)
    }

    /// Notes what the store's file is: its size in bytes, and when it and its status were last
    /// changed, nanoseconds of CLOCK_REALTIME.
    pub fn note_store_file(&self, size: u64, modified_ns: u64, changed_ns: u64) {
        self.store_mtime_ns.store(modified_ns, Ordering::Release);
        self.store_changed_ns.store(changed_ns, Ordering::Release);
        self.store_size.store(size, Ordering::Release);
    }

    /// Ends the state "ahead of the store": the store's file is as was noted last. The caller has
    /// the file exclusively, and nothing of it is dirty.
    pub fn end_ahead(&self) {
        self.clear(
            FileFlags::METADATA_DIRTY
                | FileFlags::DIRTY
                | FileFlags::STORE_WRITTEN
                | FileFlags::CONFLICT_CHECKED,
        );
    }

    /// Whether it lies on the tier that its rule names until no process writes it any more, see
    /// [`forebay_placement::staged`].
    #[inline]
    pub fn is_staged(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == Mode::Staged as u8
    }

    /// The state of a staged file; `None` before it was written, and of one that is not staged.
    pub fn stage(&self) -> Option<Stage> {
        let stage = self.is_staged().then(|| self.stage.load(Ordering::Acquire));
        stage.and_then(Stage::from_code)
    }

    /// Notes that a process has opened it, which is staged, for writing.
    pub fn begin_stage(&self) {
        self.stage.store(Stage::Writing as u8, Ordering::Release);
    }

    /// Takes a staged file from a state to another one. False if it is in another one by now.
    pub fn pass_on(&self, from: Option<Stage>, to: Stage) -> bool {
        let from = from.map_or(0, |stage| stage as u8);
        let passed =
            self.stage.compare_exchange(from, to as u8, Ordering::AcqRel, Ordering::Relaxed);
        passed.is_ok()
    }

    /// Notes that a program has changed its bytes.
    #[inline]
    pub fn note_altered(&self) {
        if self.altered.load(Ordering::Relaxed) == 0 {
            self.altered.store(1, Ordering::Release);
        }
    }

    /// Whether programs have changed its bytes since [`FileRecord::forget_altered`].
    pub fn is_altered(&self) -> bool {
        self.altered.load(Ordering::Acquire) != 0
    }

    /// Takes back what [`FileRecord::note_altered`] has noted. For the node manager, once it has
    /// noted itself what is to be done about it.
    pub fn forget_altered(&self) {
        self.altered.store(0, Ordering::Release);
    }

    /// Notes that a program has finished a step of what it writes to the file.
    pub fn note_step(&self) {
        self.steps.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that tier `tier` holds some of it.
    #[inline]
    pub fn note_tier(&self, tier: TierId) {
        let bit = 1 << tier.index();
        if self.placed.load(Ordering::Relaxed) & bit == 0 {
            self.placed.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Leaves the record, which nothing names any more, to another file.
    pub(crate) fn give_up(&self) {
        self.exclusive.store(0, Ordering::SeqCst);
        // A process that waits for something of the file sees that there is nothing to wait for.
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.state.store(file_state::FREE, Ordering::Release);
    }

    /// Makes a record that was used for another file all zero, but for what only ever rises, and
    /// what links it and says whose it is.
    pub(crate) fn wipe(&self) {
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
        self.lease.begin(Lease::Whole);
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
            &self.hotness,
            &self.rule_review,
            &self.intent,
            &self.range_start,
            &self.range_end,
        ];
        wide.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.rule.store(0, Ordering::Relaxed);
        self.mode.store(0, Ordering::Relaxed);
        self.trigger.store(0, Ordering::Relaxed);
        self.consistency.store(0, Ordering::Relaxed);
        self.predictor_fault.store(0, Ordering::Relaxed);
        self.stage.store(0, Ordering::Relaxed);
        self.altered.store(0, Ordering::Relaxed);
        self.steps.store(0, Ordering::Relaxed);
        self.small.store(0, Ordering::Relaxed);
    }

    /// Whether the node manager may have the file open for writing, or will without looking at it
    /// again: it cannot be executed meanwhile.
    pub fn may_be_held(&self) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        let sent = FileFlags::REGISTERED | FileFlags::OWNER_WRITES;
        flags.contains(FileFlags::HELD) || flags & sent == FileFlags::REGISTERED
    }

    /// Takes the note back that the last name was removed, unless `fd`, of this file, has none: it
    /// may have lost it just now. Returns whether it has one.
    pub fn note_whether_named(&self, fd: impl AsFd) -> bool {
        self.clear(FileFlags::UNLINKED);
        let is_nameless = rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_nlink == 0);
        if is_nameless {
            self.set(FileFlags::UNLINKED);
        }
        !is_nameless
    }

    /// Whether a truncate or a punch is under way, or was left undone by a dead owner.
    pub fn has_intent(&self) -> bool {
        self.intent.load(Ordering::Acquire) != 0 || self.range_end.load(Ordering::Acquire) != 0
    }

    /// Up to where the store's file may have bytes. While a process makes it longer, or has died at
    /// that, only the store's file knows: what is there is there for good, unless it lies behind
    /// the file's size.
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

    /// The size that a truncate under way gives the file: once its goal is noted it happens,
    /// whatever becomes of its process, unless the store refuses it.
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

    /// Which error is the last: differs from an earlier value if there was one since. 0 is none
    /// ever.
    pub fn errors(&self) -> u32 {
        self.error.load(Ordering::Acquire) & !SEEN
    }

    /// The errno of the last flush that failed, 0 if none ever did.
    pub fn last_errno(&self) -> i32 {
        (self.error.load(Ordering::Acquire) & ERRNO) as i32
    }

    /// The errno of its last flush, if that failed. `None` of a file that only waits to be
    /// reconciled: the store has all of it.
    pub fn failing_errno(&self) -> Option<i32> {
        self.has(FileFlags::FAILING).then(|| self.last_errno()).filter(|&errno| errno != 0)
    }

    /// Flushes that failed since the file was first opened; the count wraps after 65,535.
    pub fn failures(&self) -> u32 {
        self.error.load(Ordering::Acquire) >> 16
    }

    /// What a new description has seen of the file's errors: as with the kernel's, one that no
    /// program has learned of yet is still to be told.
    pub(crate) fn sample_errors(&self) -> u32 {
        let error = self.error.load(Ordering::Acquire);
        if error & SEEN != 0 { error & !SEEN } else { 0 }
    }

    /// Whether a flush has failed of which no description has learned yet.
    pub fn has_untold_error(&self) -> bool {
        self.errors() != 0 && self.sample_errors() == 0
    }

    /// Counts all errors so far as told. Returns what a description has then seen.
    pub(crate) fn have_errors_seen(&self) -> u32 {
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
