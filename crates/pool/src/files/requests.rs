//! What the node manager is asked to do with a file, and whether it has done it.

use crate::FileId;
use crate::crash;
use crate::futex;
use crate::layout::*;
use crate::message::Message;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::Ordering;

/// A file that was found in the table, for a caller that may not have it open: its record can be
/// given up, and become another file's.
#[derive(Clone, Copy, Debug)]
pub struct FoundFile {
    /// Its number.
    pub file: FileId,
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

impl Segment {
    /// Asks other nodes of the group for something, by way of the node manager. False if the queue
    /// is full: the caller waits a moment, and asks again.
    pub fn ask_group(&self, owner: Owner, message: &Message) -> bool {
        let _inside = self.enter_table(owner);
        self.asks().push(owner, message)
    }

    /// Tells the node manager something through the queue. If that is full, or there is no `owner`,
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

    /// Asks the node manager to bring what is buffered of `file` to the store, and to sync the
    /// store if `durable`. There is no `owner` where the caller has no slot. Returns the ticket to
    /// wait for.
    pub fn request_sync(&self, file: FileId, owner: Option<Owner>, durable: bool) -> u32 {
        let durably = FileFlags::DURABLE.when(durable);
        self.request(file, owner, FileFlags::TO_FLUSH | durably)
    }

    /// Asks the node manager for what `flags` say of `file`. Returns the ticket to wait for.
    pub fn request(&self, file: FileId, owner: Option<Owner>, flags: FileFlags) -> u32 {
        let record = self.file(file);
        record.set(flags);
        let ticket = record.sync_wanted.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.files().touch(file);
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
        self.files().live().map(|file| self.found(file))
    }

    /// Those among them that are open, or ahead of the store, and some others.
    pub fn found_in_use(&self) -> impl Iterator<Item = FoundFile> + '_ {
        self.files().touched().map(|file| self.found(file))
    }

    /// The files that some process has open, and those that something may be left to be done for;
    /// some come twice. An open one need not be among the latter while the node manager ends its
    /// looks at it, see [`crate::files::Files::settle`].
    pub fn files_in_use(&self) -> impl Iterator<Item = FileId> + '_ {
        // In this order: one that is closed meanwhile, and ahead of its store, is found then.
        self.descriptions().files().chain(self.files().touched())
    }

    /// To be called before it is looked which file it is.
    pub(super) fn found(&self, file: FileId) -> FoundFile {
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

    /// Whether the sync of `ticket` is done; it may have failed. For a caller that has the file
    /// open, so that it keeps its record.
    pub fn is_synced(&self, file: FileId, ticket: u32) -> bool {
        let behind = ticket.wrapping_sub(self.file(file).sync_done.load(Ordering::Acquire));
        behind == 0 || behind > u32::MAX / 2
    }
}

impl FileRecord {
    /// Whether a sync was asked for that the node manager has not done yet.
    pub fn awaits_sync(&self) -> bool {
        self.sync_wanted.load(Ordering::Acquire) != self.sync_done.load(Ordering::Acquire)
    }
}
