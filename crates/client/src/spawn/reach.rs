//! Whether programs that this process executes find the library and the pool. A process that forks
//! often has looked a moment ago, and its children know that from it.

use super::Managed;
use crate::mappings::getauxval;
use crate::open::inode_and_mount;
use crate::session::Session;
use crate::user_memory::is_readable;
use core::ffi::c_ulong;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_pool::clock::{self, Timer};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::process::{Resource, getrlimit};

/// Finds out that the stack is memory, from here up to its end, where the kernel has put arguments
/// and environment: a forked child need not ask when it executes a program with these.
fn know_stack() {
    /// The program's path, which lies last of all.
    const AT_EXECFN: c_ulong = 31;
    /// A thread beside the first has another stack.
    const NEAR: usize = 256 << 10;
    let local = 0u8;
    let here = &raw const local;
    let end = getauxval(AT_EXECFN) as usize;
    if let Some(bytes) = end.checked_sub(here.addr()).filter(|&bytes| bytes < NEAR) {
        is_readable(here, bytes);
    }
}

/// For how long it is remembered: a library may be removed.
const REMEMBERED: Timer = Timer::ms(100);

/// What a process has found, and when.
#[derive(Default)]
pub(crate) struct Reach {
    /// By CLOCK_MONOTONIC; 0 is nothing.
    until_ns: AtomicU64,
    /// The root directory that it was found in.
    root: AtomicU64,
    /// Of `changes`, before it was looked for.
    as_of: AtomicU32,
    /// How often limits, users or root directories may have changed.
    changes: AtomicU32,
    forks: AtomicU32,
    /// Whether there was no limit of memory when it was looked for last.
    is_unlimited: AtomicBool,
}

impl Reach {
    fn is_remembered(&self) -> bool {
        clock::monotonic_ns() < self.until_ns.load(Ordering::SeqCst)
            && self.as_of.load(Ordering::SeqCst) == self.changes.load(Ordering::SeqCst)
    }
}

/// A number for the root directory of this process: another one in another namespace of mounts,
/// too. `None` where the kernel does not tell.
fn root() -> Option<u64> {
    let (inode, mount) = inode_and_mount(c"/")?;
    Some(inode.rotate_left(32) ^ mount)
}

impl Session {
    /// Whether a program that this process executes now finds the library and the pool, may use
    /// them as the user it will be, and has the address space for them.
    pub(super) fn can_be_joined(&self) -> bool {
        let reach = &self.reach;
        reach.is_remembered() && root() == Some(reach.root.load(Ordering::SeqCst)) || self.reaches()
    }

    fn reaches(&self) -> bool {
        let library = self.carried.library().is_some_and(|library| {
            rustix::fs::accessat(CWD, library, Access::READ_OK, AtFlags::EACCESS).is_ok()
        });
        let pool = self.carried.pool().is_some_and(|pool| {
            let access = Access::READ_OK | Access::WRITE_OK;
            rustix::fs::accessat(CWD, pool, access, AtFlags::EACCESS).is_ok()
        });
        let stat = c"/proc/self/stat";
        let proc = rustix::fs::accessat(CWD, stat, Access::READ_OK, AtFlags::empty()).is_ok();
        library && pool && proc && self.fits()
    }

    /// Whether a process under this one's limits has the address space to join.
    fn fits(&self) -> bool {
        /// The maps of descriptors and buckets, and what a program needs for itself.
        const BESIDE: u64 = 64 << 20;
        let needed = self.segment.header().segment_bytes + BESIDE;
        let limit = getrlimit(Resource::As).current;
        let is_unlimited = limit.is_none() && getrlimit(Resource::Data).current.is_none();
        self.reach.is_unlimited.store(is_unlimited, Ordering::SeqCst);
        limit.is_none_or(|limit| limit >= needed)
    }

    /// What a program is told of `managed`, which was found to join: with a limit of memory it
    /// joins at once, before it uses that for something else.
    pub(super) fn told_within_limits(&self, managed: Managed) -> Managed {
        let is_unlimited = || self.reach.is_unlimited.load(Ordering::SeqCst);
        match managed {
            Managed::Nothing if !is_unlimited() => Managed::NONE,
            managed => managed,
        }
    }

    /// Before a child is forked, which may execute a program: finds out for it, and for those that
    /// come next, what it would have to ask, if this is not the first one.
    pub(crate) fn look_ahead(&self) {
        let reach = &self.reach;
        if reach.forks.fetch_add(1, Ordering::Relaxed) == 0 || reach.is_remembered() {
            return;
        }
        know_stack();
        let changes = reach.changes.load(Ordering::SeqCst);
        let until_ns = clock::monotonic_ns() + REMEMBERED.as_ns();
        let Some(root) = root() else { return };
        if self.reaches() {
            reach.root.store(root, Ordering::SeqCst);
            reach.as_of.store(changes, Ordering::SeqCst);
            reach.until_ns.store(until_ns, Ordering::SeqCst);
        }
    }

    /// To be called when limits, user or root directory of this process, or of a vforked child that
    /// has no session of its own, may have changed.
    pub fn reach_changed(&self) {
        self.reach.changes.fetch_add(1, Ordering::SeqCst);
    }
}
