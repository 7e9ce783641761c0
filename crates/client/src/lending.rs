//! Descriptors that go to the node manager, and the locks that must not stay with it: those of
//! flock and of F_OFD_SETLK belong to the open file description, and last as long as a process has
//! it.

use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::session::Session;
use core::sync::atomic::{Ordering, fence};
use forebay_pool::Marker;
use forebay_pool::layout::{DescriptionFlags, FileFlags};
use rustix::fd::{AsRawFd, RawFd};
use rustix::fs::OFlags;

/// How often a thread that is about to take a fcntl lock yields to one that has a descriptor of
/// ours: that one may have been cancelled.
const TURNS: u32 = 10_000;

impl OpenFile<'_> {
    /// Calls `send` with a descriptor of the file, open for `access`, that is meant for the node
    /// manager. It is one of a description of its own: whatever becomes of the message, it holds no
    /// lock of the program's. Where there is none to be had, because the file's permissions refuse
    /// it, or to close it would end the process's fcntl locks, it is the program's: the description
    /// is `SHARED` then.
    pub(crate) fn lend<R>(&self, access: OFlags, send: impl FnOnce(RawFd) -> R) -> R {
        self.session.lending.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let own = match self.record.has(FileFlags::FCNTL_LOCKED) {
            true => None,
            // It may have a lease.
            false => crate::fd::reopen(self.fd, access | OFlags::NONBLOCK).ok(),
        };
        let fd = own.as_ref().map_or(self.fd, AsRawFd::as_raw_fd);
        if own.is_none() {
            self.description.flags.set(DescriptionFlags::SHARED, Ordering::SeqCst);
        }
        let result = send(fd);
        drop(own);
        self.session.lending.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Calls `act` with a descriptor of this process through which the file can be written: this
    /// one, or one of a description of its own, which is closed afterwards. `None`, and `act` was
    /// not called, where there is none to be had, or to close it would end the process's fcntl
    /// locks.
    pub(crate) fn through_writable<R>(&self, act: impl FnOnce(RawFd) -> R) -> Option<R> {
        if self.may(DescriptionFlags::WRITE) {
            return Some(act(self.fd));
        }
        // A child that another thread forks meanwhile has it until it executes a program, and none
        // that is open for writing can be executed.
        if self.record.has(FileFlags::EXECUTABLE) {
            return None;
        }
        self.session.lending.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let own = match self.record.has(FileFlags::FCNTL_LOCKED) {
            true => None,
            // It may have a lease.
            false => crate::fd::reopen(self.fd, OFlags::WRONLY | OFlags::NONBLOCK).ok(),
        };
        let result = own.as_ref().map(|own| act(own.as_raw_fd()));
        drop(own);
        self.session.lending.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Notes that a description is about to be locked for itself.
    pub fn locking(&self) {
        self.description.flags.set(DescriptionFlags::LOCKED, Ordering::SeqCst);
    }

    /// Notes that a process is about to lock the file for itself.
    pub fn locking_process(&self) {
        self.record.set(FileFlags::FCNTL_LOCKED);
        fence(Ordering::SeqCst);
        // Another thread may be about to close a descriptor of the file, and the lock would end
        // with it.
        for _ in 0..TURNS {
            if self.session.lending.load(Ordering::SeqCst) == 0 {
                break;
            }
            rustix::thread::sched_yield();
        }
    }
}

impl Session {
    /// Ends the locks of a description that the node manager shares, after this process has given
    /// it up. `fd`, the last descriptor of it, is still open.
    pub(crate) fn end_locks(&self, fd: RawFd, marker: Marker) {
        let held = DescriptionFlags::LOCKED | DescriptionFlags::SHARED;
        let flags = self.segment.description(marker.description).flags.load(Ordering::SeqCst);
        if !flags.contains(held) || self.segment.descriptions().is_wanted(marker) {
            return;
        }
        // The number may be another file's by now, closed and opened where we could not see.
        let here = rustix::fs::tell(borrow(fd)).ok().and_then(Marker::decode);
        if here == Some(marker) {
            (self.front.unlock)(fd);
        }
    }
}
