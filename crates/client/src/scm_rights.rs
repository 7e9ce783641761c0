//! Descriptors that go to other processes through sockets.
//!
//! The marker in the kernel's offset travels with a descriptor, so that a receiver with the library
//! shares description and offset with the sender. Whether the receiver has it can only be
//! concluded: the peer is a client of this pool, and no program without the library was started
//! with a socket that it could receive from.

use crate::fd::borrow;
use crate::open_file::OpenFile;
use crate::session::Session;
use core::sync::atomic::Ordering;
use forebay_pool::{Marker, clock, liveness};
use rustix::fd::RawFd;
use rustix::fs::FileType;
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Whether the descriptor stays buffered if it is sent to process `peer`.
    pub fn may_pass(&self, peer: u32) -> bool {
        self.session.segment.header().unmanaged_peers.load(Ordering::SeqCst) == 0
            && liveness::start_time(peer)
                .is_some_and(|start| self.session.segment.clients().slot_of(peer, start).is_some())
    }

    /// Notes that a descriptor is about to be sent.
    pub fn sending(&self) {
        let now = clock::stamp(clock::realtime_coarse_ns());
        self.session.segment.descriptions().take_off(self.description_id(), now);
    }

    /// Takes back [`OpenFile::sending`]: it was not sent.
    pub fn not_passed(&self) {
        self.session.segment.descriptions().land(self.description_id());
    }
}

impl Session {
    /// Takes over `fd`, a copy of a descriptor of another process.
    ///
    /// # Errors
    /// As of [`Session::opened_raw`]: it must not be used.
    pub fn copied(&self, fd: RawFd) -> Result<(), Errno> {
        self.forget(fd);
        self.adopt_or_open(fd)
    }

    /// Takes over `fd`, which was just received; `again` if it will be received once more. False if
    /// it was on its way for so long that its offset is lost, or no description is to be had: it
    /// must not be used.
    pub fn received(&self, fd: RawFd, again: bool) -> bool {
        // What had this number before was closed where it could not be seen.
        self.forget(fd);
        let Ok(stat) = rustix::fs::fstat(borrow(fd)) else { return true };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || !self.is_store_device(stat.st_dev)
        {
            return true;
        }
        let marked = rustix::fs::tell(borrow(fd)).ok().and_then(Marker::decode).is_some();
        match self.adopt(fd) {
            Some(description) if !again => self.segment.descriptions().land(description),
            Some(_) => {}
            None if marked => return false,
            None => return self.opened_raw(fd).is_ok(),
        }
        self.release_if_standard_error(fd, fd);
        true
    }

    /// A program without the library is about to start: if it inherits a socket, descriptors
    /// are from now on sent for use through the kernel.
    pub(crate) fn note_unmanaged_peers(&self) {
        let unmanaged_peers = &self.segment.header().unmanaged_peers;
        if unmanaged_peers.load(Ordering::Relaxed) != 0 {
            return;
        }
        let inherited = |fd: RawFd| {
            let socket = rustix::fs::fstat(borrow(fd))
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
            socket
                && rustix::io::fcntl_getfd(borrow(fd))
                    .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
        };
        let mut found = false;
        if !crate::fd::each_descriptor(|fd| found |= inherited(fd)) || found {
            unmanaged_peers.store(1, Ordering::SeqCst);
        }
    }
}
