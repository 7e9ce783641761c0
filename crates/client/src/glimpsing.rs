//! Asking how long a file is that other nodes may have, without taking anything from them: what
//! stat, and a seek to the end, need of a file that this node has no lease of.

use crate::leasing::ASK_AGAIN;
use crate::opening::PathAt;
use crate::session::Session;
use crate::sync::WORK_LOOK;
use crate::waiting::Wait;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use forebay_pool::glimpses::{Glimpsed, group_generation};
use forebay_pool::layout::*;
use forebay_pool::lease::{Access, Grant, Lease, LeaseWord};
use forebay_pool::message::Message;
use forebay_pool::parts::{Part, PartLevel};
use forebay_pool::{FileId, Identity, clock, futex};
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

/// How a file is called in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupName {
    pub store: u16,
    pub inode: u64,
    pub born_ns: u64,
}

/// What a record of this node says of the size of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownHere {
    /// All: the node has what it takes.
    All,
    /// Nothing, but that the store has what others have acknowledged.
    Stored,
    /// Nothing: other nodes are to be asked.
    Nothing,
}

impl Session {
    /// Whether what the kernel says of a regular file may not be all: there is something of it
    /// here, or other nodes may have it.
    #[inline]
    pub fn concerns(&self, device: u64, inode: u64) -> bool {
        self.knows(device, inode) || self.shares_files() && self.is_store_device(device)
    }

    /// What this node knows of the size of the file of a record that has this lease.
    pub(crate) fn known_here(&self, file: FileId, lease: LeaseWord) -> KnownHere {
        match (lease.held(), lease.granted()) {
            _ if lease.allows(Access::Read) || lease.commits() => KnownHere::All,
            _ if lease.is_unsure() => KnownHere::Nothing,
            (Lease::Borrowed, _) => KnownHere::All,
            // One that was not taken up yet says nothing: others may have left more on the store.
            (Lease::Shared, _) => {
                let size = self.segment.part_leases().load(file, Part::SIZE);
                match size.level().covers(PartLevel::Read) && size.is_taken() {
                    true => KnownHere::All,
                    false => KnownHere::Nothing,
                }
            }
            (_, None | Some(Grant::Shared)) => KnownHere::Nothing,
            // Those that had it have given it back.
            (_, Some(_)) => KnownHere::Stored,
        }
    }

    /// Whether the file that the kernel says this of can be another one than that of the record,
    /// which this node has as others may have it: one with its inode. The kernel says when its
    /// status was changed.
    pub(crate) fn may_be_new(record: &FileRecord, changed_ns: u64) -> bool {
        let is_ahead = record.has(FileFlags::METADATA_DIRTY) || record.truncated_to().is_some();
        let is_seen = record.store_changed_ns.load(Ordering::Relaxed) == changed_ns;
        !is_ahead && !is_seen
    }

    /// The store in which the file at `at` lies, if any, and its time of birth, as of
    /// [`Session::born_ns`]. `flags` are those of the call.
    pub(crate) fn place_of(
        &self,
        at: PathAt<'_>,
        flags: AtFlags,
        inode: u64,
    ) -> Option<(u64, usize)> {
        let path = at.path.get().filter(|path| !path.is_empty());
        if let Some(path) = path.filter(|_| at.path.is_absolute())
            && let Some((_, store)) = self.in_known_folder(path).map(|known| known.path_and_store())
            && (store.is_some() || flags.contains(AtFlags::SYMLINK_NOFOLLOW))
        {
            // Of a symbolic link that leads out of the store nothing is known to the group.
            return store.map(|store| (self.born_ns(at, flags, inode), store));
        }
        let place = match path {
            None => None,
            Some(path) => {
                let mut place = OFlags::PATH | OFlags::CLOEXEC;
                place.set(OFlags::NOFOLLOW, flags.contains(AtFlags::SYMLINK_NOFOLLOW));
                let folder = at.directory()?;
                Some(rustix::fs::openat(folder, path, place, rustix::fs::Mode::empty()).ok()?)
            }
        };
        let fd = place.as_ref().map_or(at.folder, AsRawFd::as_raw_fd);
        let store = self.managed_path(fd, &mut MaybeUninit::uninit()).1?;
        let at = PathAt { folder: fd, path: c"".into() };
        Some((self.born_ns(at, AtFlags::empty(), inode), store))
    }

    /// Asks the group how long a file is. The caller is not inside any.
    ///
    /// # Errors
    /// `INTR`; `IO` if a node that has it is gone; `TIMEDOUT` if it does not answer, or this node's
    /// manager has stopped.
    #[cold]
    pub(crate) fn glimpse(&self, name: GroupName) -> Result<Glimpsed, Errno> {
        self.restarting(|| self.glimpse_once(name))
    }

    fn glimpse_once(&self, name: GroupName) -> Result<Glimpsed, Errno> {
        let (segment, header) = (&self.segment, self.segment.header());
        let (wait, began_ns) = (Wait::begin(), clock::monotonic_ns());
        let GroupName { store, inode, born_ns } = name;
        let (number, generation) = (segment.glimpses().begin(), group_generation(born_ns));
        let message = Message::Glimpse { store, inode, generation, number };
        let mut asked_ns = None;
        loop {
            let done = header.work_done.load(Ordering::Acquire);
            match segment.glimpses().answer_to(number) {
                Some(Glimpsed::Refused(errno)) => return Err(errno),
                Some(known) => return Ok(known),
                None => {}
            }
            // No group, or no manager any more that could ask one.
            if !self.shares_files() || header.retired.load(Ordering::SeqCst) != retirement::NONE {
                return Ok(Glimpsed::Stored);
            }
            let now_ns = clock::monotonic_ns();
            if asked_ns.is_none_or(|at| now_ns - at > ASK_AGAIN.as_ns()) {
                asked_ns = segment.ask_group(self.owner(), &message).then_some(now_ns);
            }
            futex::wait(&header.work_done, done, WORK_LOOK.as_ms());
            self.go_on_waiting(&wait, now_ns - began_ns)?;
        }
    }

    /// How the group calls the file of a record.
    pub(crate) fn group_name(&self, record: &FileRecord) -> GroupName {
        GroupName {
            store: record.store.load(Ordering::Acquire) as u16,
            inode: record.identity().inode,
            born_ns: record.born_ns.load(Ordering::Acquire),
        }
    }

    /// Whether the record of `identity` says how long its file is; the store of its path, if there
    /// is a record. `changed_ns` is what the kernel says of the file; `is_same` tells whether a
    /// time of birth is that of the file.
    ///
    /// # Errors
    /// `INTR`.
    pub(crate) fn known_of(
        &self,
        identity: Identity,
        changed_ns: u64,
        is_same: impl Fn(u64) -> bool,
    ) -> Result<(KnownHere, Option<usize>), Errno> {
        let found = self.with_record(identity, |file| {
            let record = self.segment.file(file?);
            let born_ns = record.born_ns.load(Ordering::Acquire);
            let store = record.store.load(Ordering::Acquire) as usize;
            let doubted = Self::may_be_new(record, changed_ns).then_some(born_ns);
            Some((self.known_here(file?, record.lease.load()), store, doubted))
        })?;
        Ok(match found {
            None => (KnownHere::Nothing, None),
            Some((_, _, Some(born_ns))) if !is_same(born_ns) => (KnownHere::Nothing, None),
            Some((known, store, _)) => (known, Some(store)),
        })
    }
}
