//! The file table: records found by identity, and exclusive use of a file.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Identity, Owner};
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let slot = segment.clients().claim(std::process::id(), 1).expect("one of many is free");
//! let me = Owner::new(slot, 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! let again = segment.with_file_or_new(name, me, |file, is_new| (file, is_new));
//! assert_eq!(again, Some((file, false)));
//! // One thread has it for itself; another, as of a second process, is not inside meanwhile.
//! let table = segment.enter_table(me);
//! let exclusive = segment.try_lock_exclusive(&table, file, me).expect("no other thread has it");
//! let other = Owner::new(segment.clients().claim(std::process::id(), 2).expect("one is free"), 0);
//! assert_eq!(segment.try_enter(file, other).err(), Some(me));
//! drop(exclusive);
//! assert!(segment.try_enter(file, other).is_ok());
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

mod entering;
mod names;
mod paths;
mod record;
mod requests;
mod shared_lock;
mod table;
#[cfg(test)]
mod tests;

pub use names::{Names, last_part};
pub use requests::{FoundFile, SyncState};
pub use table::{Chain, Files, Identity};

use crate::FileId;
use crate::backoff::Backoff;
use crate::guards::ExclusiveGuard;
use crate::layout::*;
use crate::opens::Opens;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::Ordering;
use rustix::io::Errno;

impl Segment {
    fn chain_of(&self, identity: Identity) -> u32 {
        identity.head(self.header().heads)
    }

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
        let chain = self.lock_chain(self.chain_of(identity), owner)?;
        Ok(act(chain.find(identity)))
    }

    /// [`Segment::with_file`] by a thread that others wait for: `None`, and `act` was not called,
    /// if another thread is at the table there, which may be stopped. The caller is in the table.
    pub fn with_file_at_once<R>(
        &self,
        identity: Identity,
        owner: Owner,
        act: impl FnOnce(Option<FileId>) -> R,
    ) -> Option<R> {
        let chain = self.chain_of(identity);
        let chain = self.lock_chain_within(chain, owner, &mut Backoff::spent()).ok()?;
        Some(act(chain.find(identity)))
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
        let begin = |record: &FileRecord| {
            begin(record);
            if self.clients().is_unrecorded(identity) {
                record.set(FileFlags::DIRECT);
            }
        };
        let make = |chain: &Chain<'_>| {
            let mut begin = Some(begin);
            let mut insert = || {
                chain.insert(identity, owner, |record| {
                    if let Some(begin) = begin.take() {
                        begin(record);
                    }
                })
            };
            let mut made = insert();
            while made.is_none() && self.grow_files(self.header().files_ready()) {
                made = insert();
            }
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

    /// [`crate::layout::Header::stat_epoch`]: where it is the same before the kernel is asked and
    /// after the record is looked for, that has not left the table, nor turned direct, in between.
    #[inline]
    pub fn stat_epoch(&self) -> u32 {
        self.header().stat_epoch.load(Ordering::Acquire)
    }

    /// To be called before a record, which is clean, leaves the table or turns direct.
    pub fn raise_stat_epoch(&self) {
        self.header().stat_epoch.fetch_add(1, Ordering::AcqRel);
    }

    fn opening<R>(
        &self,
        identity: Identity,
        owner: Owner,
        make: impl FnOnce(&Chain<'_>) -> Option<FileId>,
        act: impl FnOnce(FileId, bool) -> R,
    ) -> Result<Option<R>, Errno> {
        Ok(self.lock_chain(self.chain_of(identity), owner)?.open(identity, make, act))
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
        let chain = self.chain_of(self.file(file).identity());
        // A thread that opens another file of the stripe may be stopped over that.
        let Ok(chain) = self.lock_chain_within(chain, owner, &mut Backoff::default()) else {
            return false;
        };
        self.raise_stat_epoch();
        let nodes = self.index_nodes(owner.slot());
        let removed = chain.remove(file, owner, opens, unwanted, nodes);
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
        let chain = self.chain_of(record.identity());
        let locked = self.lock_chain_within(chain, owner, &mut Backoff::default());
        if let Ok(_chain) = locked
            && is_it()
        {
            record.handle.store(handle, Ordering::Release);
        }
    }

    /// Brings the records that dead owners of `slot` were linking or unlinking to a state: in the
    /// table if they are linked, else free. `reaper` is in the table. False if that has to be tried
    /// again: a thread that opens another file of the stripe does not go on.
    pub(crate) fn reap_files(&self, slot: u32, reaper: Owner) -> bool {
        let mut backoff = Backoff::default();
        for (file, record) in self.files().left_by(slot) {
            let chain = self.chain_of(record.identity());
            let locked = self.lock_chain_within(chain, reaper, &mut backoff);
            let Ok(chain) = locked else { return false };
            chain.reap(file, self.index_nodes(slot));
        }
        true
    }
}
