//! The file table: records found by identity, and exclusive use of a file.

mod record;
mod requests;
mod shared_lock;
#[cfg(test)]
mod tests;

pub use record::last_part;
pub use requests::{FoundFile, SyncState};

use crate::FileId;
use crate::backoff::Backoff;
use crate::checksum::checksum_of;
use crate::crash;
use crate::guards::ExclusiveGuard;
use crate::layout::*;
use crate::opens::Opens;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::{AtomicU32, Ordering, fence};
use rustix::io::Errno;

/// What makes a file this file, whatever its names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl Identity {
    /// Its chain of the file table, of which there are `heads`, a power of two. By the highest bits
    /// of the product, which all bits of the identity change: a check of a damaged pool goes by
    /// that.
    pub(crate) fn head(self, heads: u32) -> u32 {
        let mixed = (self.inode ^ self.device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.rotate_left(heads.trailing_zeros()) as u32 & (heads - 1)
    }
}

impl Segment {
    /// Counts all errors of `file` so far as told to all that have it open. The caller holds its
    /// stripe.
    pub fn have_errors_seen(&self, file: FileId) {
        let record = self.file(file);
        if record.errors() == 0 {
            return;
        }
        self.descriptions().note_errors_seen(file, record.have_errors_seen());
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
        act: impl FnOnce(Option<FileId>) -> R,
    ) -> Result<R, Errno> {
        let head = identity.head(self.header().heads);
        let _stripe = self.lock_stripe(head, owner)?;
        Ok(act(self.search(head, identity)))
    }

    /// Whether the table has `identity`, without a lock.
    pub fn may_have(&self, identity: Identity) -> bool {
        self.search(identity.head(self.header().heads), identity).is_some()
    }

    /// How often programs have changed names of files. A process that makes a record, and finds
    /// this changed since before it looked at the file's name, looks again once the record can be
    /// found: a process that changed the name before that has not found the record, and said
    /// nothing of it. One that changes it later finds it.
    #[inline]
    pub fn name_changes(&self) -> u64 {
        // The record comes before.
        fence(Ordering::SeqCst);
        self.header().name_changes.load(Ordering::SeqCst)
    }

    /// Notes that the name `path` was changed, before the caller looks whether the file is in the
    /// table. Returns whether other names were since [`Segment::name_changes`] was `before`.
    pub fn name_changed(&self, before: u64, path: &[u8]) -> bool {
        let header = self.header();
        let seen = header.name_changes.fetch_add(1, Ordering::SeqCst);
        let change = seen << 32 | u64::from(checksum_of(last_part(path)));
        header.changed_names[seen as usize % CHANGED_NAMES].store(change, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        seen != before
    }

    /// Whether another process may have changed a name like that of `path`, beside one change of
    /// the caller's, since [`Segment::name_changes`] was `before`.
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

    /// [`Segment::open_file`] of a file of which nothing is known.
    pub fn with_file_or_new<R>(
        &self,
        identity: Identity,
        owner: Owner,
        act: impl FnOnce(FileId, bool) -> R,
    ) -> Option<R> {
        self.open_file(identity, owner, |_| (), act).ok().flatten()
    }

    /// Finds or makes the record of `identity`, counts an open of it, and calls `act` with it and
    /// whether it is new, while the table cannot change under it: there a description is taken, see
    /// [`crate::opens`]. A new one is given to `begin`, all zero, before another thread can find
    /// it. `None` when the table is full. The caller is in the table.
    ///
    /// # Errors
    /// As of [`Segment::with_file`].
    pub fn open_file<R>(
        &self,
        identity: Identity,
        owner: Owner,
        begin: impl FnOnce(&FileRecord),
        act: impl FnOnce(FileId, bool) -> R,
    ) -> Result<Option<R>, Errno> {
        let make = |head: u32| {
            let made = self.insert(head, identity, owner, begin);
            if made.is_none() {
                self.clients().note_unrecorded(identity, owner);
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
        act: impl FnOnce(FileId) -> R,
    ) -> Result<Option<R>, Errno> {
        self.opening(identity, owner, |_| None, |file, _| act(file))
    }

    fn opening<R>(
        &self,
        identity: Identity,
        owner: Owner,
        make: impl FnOnce(u32) -> Option<FileId>,
        act: impl FnOnce(FileId, bool) -> R,
    ) -> Result<Option<R>, Errno> {
        let head = identity.head(self.header().heads);
        let _stripe = self.lock_stripe(head, owner)?;
        let found = match self.search(head, identity) {
            Some(file) => Some((file, false)),
            None => make(head).map(|file| (file, true)),
        };
        Ok(found.map(|(file, new)| {
            let record = self.file(file);
            // Linked by one that died before it said so, or stayed linked when one died that
            // removed it.
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

    /// How often `file` has been opened, if no thread may be opening it now. The caller then looks
    /// at the descriptions, and has seen all of the file's if the count is the same afterwards.
    pub fn count_opens(&self, file: FileId) -> Option<Opens> {
        let record = self.file(file);
        let head = record.identity().head(self.header().heads);
        Opens::counted(&record.opens, self.stripe(head))
    }

    fn search(&self, head: u32, identity: Identity) -> Option<FileId> {
        self.search_from(self.head(head).load(Ordering::Acquire), head, identity)
    }

    fn search_from(&self, mut link: u32, head: u32, identity: Identity) -> Option<FileId> {
        let heads = self.header().heads;
        // A chain that a damaged link made into a ring must not hold us for ever.
        for _ in 0..self.header().files {
            let file = FileId::from_link(link)?;
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
    ) -> Option<FileId> {
        let file = self.take_file(owner)?;
        crash::point("file.taken");
        let record = self.file(file);
        record.generation.fetch_add(1, Ordering::Relaxed);
        record.wipe();
        record.device.store(identity.device, Ordering::Relaxed);
        record.inode.store(identity.inode, Ordering::Relaxed);
        begin(record);
        if self.clients().is_unrecorded(identity) {
            record.set(FileFlags::DIRECT);
        }
        // Complete before it can be found: one that dies here leaves nothing, or a record of this
        // file.
        let head = self.head(head);
        // After the identity: see `search`.
        record.next.store(head.load(Ordering::Relaxed), Ordering::Release);
        crash::point("file.linking");
        head.store(file.link(), Ordering::Release);
        crash::point("file.linked");
        record.state.store(file_state::LIVE, Ordering::Release);
        Some(file)
    }

    fn take_file(&self, owner: Owner) -> Option<FileId> {
        if crash::refused("file") {
            return None;
        }
        let free = |file: &FileId| {
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
        let mut all = FileId::range(start, files).chain(FileId::range(0, start));
        let file = all.find(free)?;
        cursor.store(file.next().raw(), Ordering::Relaxed);
        self.header().files_high.fetch_max(file.next().raw(), Ordering::AcqRel);
        Some(file)
    }

    /// Removes `file`, which the caller has `exclusive`, from the table if no thread has opened it
    /// since `opens` were counted, and `unwanted` says so, while the table cannot change under it.
    /// The caller has seen since that no description names the file. The record's index must be
    /// empty of buckets; its nodes are freed here. A record that was removed is free for another
    /// file. False also if some thread holds the stripe for more than a moment: it may be stopped.
    pub fn remove_file(
        &self,
        file: FileId,
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
            // Stamped, so that a thread that finds us dead in between completes or undoes it.
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

    /// Keeps the checksum of a file's handle in its record, if `is_it` says that it is the file's
    /// while the table cannot change under it; not if that would take long. The caller is in the
    /// table.
    pub fn note_handle(
        &self,
        file: FileId,
        owner: Owner,
        handle: u32,
        is_it: impl FnOnce() -> bool,
    ) {
        let record = self.file(file);
        let head = record.identity().head(self.header().heads);
        if let Ok(_stripe) = self.lock_stripe_within(head, owner, &mut Backoff::default())
            && is_it()
        {
            record.handle.store(handle, Ordering::Release);
        }
    }

    fn names(&self, head: u32, file: FileId) -> bool {
        let mut link = self.head(head).load(Ordering::Acquire);
        for _ in 0..self.header().files {
            match FileId::from_link(link) {
                Some(at) if at == file => return true,
                Some(at) => link = self.file(at).next.load(Ordering::Acquire),
                None => break,
            }
        }
        false
    }

    /// Brings the records that dead owners of `slot` were linking or unlinking to a state: in the
    /// table if they are linked, else free. `reaper` is in the table. False if that has to be tried
    /// again: a thread that opens another file of the stripe does not go on.
    pub(crate) fn reap_files(&self, slot: u32, reaper: Owner) -> bool {
        let mut backoff = Backoff::default();
        for file in self.header().file_ids() {
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

    fn unlink(&self, head: u32, file: FileId) -> bool {
        let mut link: &AtomicU32 = self.head(head);
        for _ in 0..self.header().files {
            let Some(at) = FileId::from_link(link.load(Ordering::Acquire)) else { return false };
            if at == file {
                link.store(self.file(file).next.load(Ordering::Relaxed), Ordering::Release);
                return true;
            }
            link = &self.file(at).next;
        }
        false
    }

    /// All records in the table.
    pub fn live_files(&self) -> impl Iterator<Item = FileId> {
        let high = self.header().files_high.load(Ordering::Acquire);
        FileId::range(0, high.min(self.header().files))
            .filter(|&file| self.file(file).state.load(Ordering::Acquire) == file_state::LIVE)
    }
}
