//! A process's part in a node manager's segment.

use crate::attachment::Attachment;
use crate::descriptors::Sparse;
use crate::fd::{borrow, duplicate_hidden, may_be_own};
use crate::file_mappings::FileMappings;
use crate::manager::ManagerLink;
use crate::manager_watch::ManagerWatch;
use crate::open::{identity_of, inode_and_mount};
use crate::placement::Engine;
use crate::predictors::Predictors;
use crate::process::Process;
use crate::spawn::{Carried, Reach};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use forebay_pool::{FileId, Owner, Segment};
use rustix::fd::RawFd;
use std::sync::Arc;

/// Descriptors of our own for files that the program has open in a way that we cannot use: for
/// writing only, mostly. More are made and closed at each use.
pub(crate) const KEPT_READERS: usize = 64;

/// What a process knows of its root directory.
pub(crate) mod root {
    /// Nothing.
    pub const UNKNOWN: u32 = 0;
    /// It is the node manager's.
    pub const SHARED: u32 = 1;
    /// It is another one, or cannot be compared.
    pub const OTHER: u32 = 2;
}

/// This process's part in a pool, of which it has one at most. When it is dropped, the files that
/// are still open are used through the kernel.
pub struct Session {
    pub(crate) segment: Segment,
    pub(crate) attachment: Attachment,
    pub(crate) slot: AtomicU32,
    /// Descriptor number -> description plus one, see `parting.rs`.
    pub(crate) table: Sparse,
    /// Description -> descriptors of this process that refer to it.
    pub(crate) references: Sparse,
    /// Calls under way that make a descriptor out of another one.
    pub(crate) duplicating: AtomicU32,
    /// File record -> its generation (plus one) when this process mapped it.
    pub(crate) mapped: Sparse,
    /// The mappings of this process that are followed.
    pub(crate) mappings: FileMappings,
    /// Piece of RAM -> whether its pages are mapped here.
    pub(crate) populated: Sparse,
    /// The `room_made` at which a thread last waited in vain for pages of small files.
    pub(crate) waited_for_pages: AtomicU64,
    /// `room_made` of the header when a thread here had waited in vain for room.
    pub(crate) waited_in_vain: AtomicU64,
    /// What its job had given up of RAM when a thread waited in vain for its quota, plus 2^32.
    pub(crate) quota_in_vain: AtomicU64,
    /// What the node manager had counted when a thread waited in vain at a cap, plus 2^63.
    pub(crate) cap_in_vain: AtomicU64,
    pub(crate) manager: ManagerLink,
    pub(crate) manager_watch: ManagerWatch,
    pub(crate) engine: Engine,
    pub(crate) predictors: Predictors,
    /// The slots of each tier, and behind [`TIERS_MAX`] their tables.
    pub(crate) tier_files: [AtomicU32; 2 * TIERS_MAX],
    /// What rules ask about this process; none without rules.
    pub(crate) process: Option<Arc<Process>>,
    /// Some rule makes files scratch.
    pub(crate) has_scratch_rules: bool,
    /// Some rule has files be under commit.
    pub(crate) has_commit_rules: bool,
    /// Descriptors for reading of our own (upper half), and the descriptions (plus one) that they
    /// are for; see `readers.rs`.
    pub(crate) readers: [AtomicU64; KEPT_READERS],
    /// One more than the last place of `readers` that was ever taken.
    pub(crate) readers_high: AtomicU32,
    /// Highest descriptor number that was ever managed.
    pub(crate) highest: AtomicU32,
    /// Largest size of a file on each store; 0 is not known yet.
    pub(crate) largest: [AtomicU64; STORES_MAX],
    /// RLIMIT_FSIZE in bytes, as last seen, plus one; 0 before it was looked at.
    pub(crate) file_limit: AtomicU64,
    /// See [`Session::use_kernel_only`].
    pub(crate) kernel_only: AtomicBool,
    /// See [`Session::shares_root`]: one of [`root`].
    pub(crate) root: AtomicU32,
    /// Threads that have a descriptor of the program's files that they are about to close.
    pub(crate) lending: AtomicU32,
    /// The user of this process when it joined the pool, who is the node manager's.
    pub(crate) user: u32,
    /// What the environment of every child has to carry.
    pub(crate) carried: Carried,
    pub(crate) reach: Reach,
    pub(crate) front: Front,
}

/// What a front end does for a session.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// Ends the locks of flock and F_OFD_SETLK that a descriptor's description has.
    pub unlock: fn(RawFd),
    /// Is told that a standard descriptor is about to refer to a managed file. May come from a
    /// signal handler.
    pub binds: fn(RawFd),
}

/// Threads of this process that have a number, whichever session they use.
pub(crate) static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

impl Session {
    pub(crate) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }

    /// Tells it from other sessions of this process.
    pub(crate) fn number(&self) -> u64 {
        self.attachment.number()
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// The stamp of the calling thread.
    #[inline]
    pub(crate) fn owner(&self) -> Owner {
        let thread = THREAD.with(|thread| {
            let mut number = thread.get();
            if number == 0 {
                number = THREADS.fetch_add(1, Ordering::SeqCst) + 1;
                thread.set(number);
            }
            number
        });
        Owner::new(self.slot(), thread)
    }

    /// Whether threads other than the calling one may have used a session of this process.
    pub(crate) fn may_have_other_threads(&self) -> bool {
        let mine = u32::from(THREAD.with(Cell::get) != 0);
        THREADS.load(Ordering::SeqCst) > mine
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.segment.client(self.slot()).counters
    }

    /// Counts `more`. While no other thread has come here, without a locked instruction; one that
    /// comes at this very moment may make us lose a count.
    #[inline]
    pub(crate) fn count_up(&self, counter: &AtomicU64, more: u64) {
        if THREADS.load(Ordering::Relaxed) <= 1 {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        } else {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Notes that so many bytes went from one place to another, where that is not RAM and the
    /// program: that costs a system call or more, beside which this is nothing.
    pub(crate) fn note_moved(&self, from: Place, to: Place, bytes: usize) {
        self.segment.header().moves.add(from, to, bytes as u64);
    }

    /// Whether `fd` is one of Forebay's own, which a program must not close.
    pub fn owns(&self, fd: RawFd) -> bool {
        may_be_own(fd)
            && (self.manager.owns(fd)
                || self.tier_files.iter().any(|file| file.load(Ordering::Relaxed) == fd as u32 + 1)
                || self.readers.iter().any(|word| {
                    let word = word.load(Ordering::Relaxed);
                    word != 0 && (word >> 32) as RawFd == fd
                }))
    }

    /// Whether `fd` is still what we opened: a program may close what is not its own.
    pub(crate) fn is_of(&self, fd: RawFd, file: FileId) -> bool {
        let identity = self.segment.file(file).identity();
        rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| identity_of(&stat) == identity)
    }

    /// Gives number `fd`, one of Forebay's own, up to the program. False if no other is to be had.
    pub fn make_way(&self, fd: RawFd) -> bool {
        if self.manager.owns(fd) {
            return self.manager.make_way(fd);
        }
        let mine = |file: &&AtomicU32| file.load(Ordering::Acquire) == fd as u32 + 1;
        if let Some(place) = self.tier_files.iter().find(mine) {
            let Some(other) = duplicate_hidden(fd) else { return false };
            place.store(other as u32 + 1, Ordering::SeqCst);
            self.wait_for_threads();
        }
        true
    }

    /// Waits until each thread that was inside a file has left it: what it looked up before, it
    /// does not use any more.
    fn wait_for_threads(&self) {
        for place in &self.segment.client(self.slot()).shared_locks {
            let seen = place.load(Ordering::SeqCst);
            let mut backoff = forebay_pool::backoff::Backoff::default();
            while seen != 0 && place.load(Ordering::SeqCst) == seen {
                backoff.wait();
            }
        }
    }

    /// Opens what may be out of reach when the process has another root directory or is another
    /// user's.
    pub fn keep_reach(&self) {
        for tier in self.segment.header().file_tiers() {
            let _ = self.tier_file(tier);
            let _ = self.index_file(tier);
        }
        self.manager.connect();
    }

    /// To be called when the process may have got another root directory.
    pub fn root_changed(&self) {
        crate::dir_cache::forget();
        self.reach_changed();
        self.root.store(root::UNKNOWN, Ordering::SeqCst);
    }

    /// Whether this process has the node manager's root directory, as far as can be known: asked of
    /// the kernel once.
    pub(crate) fn shares_root(&self) -> bool {
        match self.root.load(Ordering::Relaxed) {
            root::UNKNOWN => self.look_at_root(),
            known => known == root::SHARED,
        }
    }

    #[cold]
    fn look_at_root(&self) -> bool {
        let header = self.segment.header();
        let is_theirs = inode_and_mount(c"/").is_some_and(|(inode, mount)| {
            mount == header.root_mount.load(Ordering::Relaxed)
                && inode == header.root_inode.load(Ordering::Relaxed)
        });
        let found = if is_theirs { root::SHARED } else { root::OTHER };
        self.root.store(found, Ordering::Relaxed);
        is_theirs
    }

    /// The program submits I/O in ways that cannot be seen: all files that it has or will open
    /// are used through the kernel.
    ///
    /// # Errors
    /// The errno of a flush; the program is not to begin then.
    pub fn use_kernel_only(&self) -> Result<(), rustix::io::Errno> {
        self.kernel_only.store(true, Ordering::Release);
        self.files().try_for_each(|file| match file.uses_kernel_offset() {
            true => Ok(()),
            false => file.release_to_kernel(),
        })
    }

    pub(crate) fn is_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Acquire)
    }
}
