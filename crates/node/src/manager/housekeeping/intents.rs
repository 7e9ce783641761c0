//! Completing truncates and punches that a dead process, or an earlier manager, left undone.

use crate::devices::power_loss::PowerLossBatch;
use crate::node::Node;
use crate::store::descriptors::StoreHandle;
use forebay_device::BackingStore;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::fence::Flushing;
use forebay_pool::layout::*;
use forebay_pool::truncate::StoreOps;
use forebay_pool::{FileId, Owner, crash};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a truncate needs, from the manager's side.
pub(crate) struct FromManager<'a> {
    pub node: &'a Node,
    pub file: FileId,
}

impl StoreOps for FromManager<'_> {
    fn slots(&self) -> &impl SlotFiles {
        self.node
    }

    fn truncate_store(&self, size: u64) -> Result<(), Errno> {
        let (store, held) = self.held()?;
        self.log_truncate()?;
        store.truncate(held.file(), size)?;
        self.node.segment.file(self.file).clear(FileFlags::SYNCED);
        Ok(())
    }

    fn punch_store(&self, range: std::ops::Range<u64>) -> Result<(), Errno> {
        let (store, held) = self.held()?;
        self.log_truncate()?;
        store.punch(held.file(), range)?;
        self.node.segment.file(self.file).clear(FileFlags::SYNCED);
        Ok(())
    }
}

impl FromManager<'_> {
    /// The file, open to be written, and its store.
    fn held(&self) -> Result<(&dyn BackingStore, Arc<StoreHandle>), Errno> {
        let node = self.node;
        let store = node.segment.file(self.file).store.load(Ordering::Relaxed) as usize;
        let folder = &node.config.backing.get(store).ok_or(Errno::STALE)?.path;
        Ok((&*node.stores[store], node.descriptors.of(&node.segment, self.file, folder)?))
    }

    /// The journal has to know before the store changes.
    fn log_truncate(&self) -> Result<(), Errno> {
        let Some(journal) = &self.node.journal else { return Ok(()) };
        journal
            .log_truncate(self.node.context(), self.file, &mut PowerLossBatch::plain())
            .map_err(|_| Errno::IO)
    }
}

/// Completes a truncate or a punch that was taken back as `reaper`'s from an owner that died, and
/// lets other threads in again.
pub(crate) fn finish_truncate(node: &Node, file: FileId, reaper: Owner) {
    // A client that waits for the file may have been faster, and written since.
    let owner = Node::new_owner();
    let Some(_exclusive) = node.segment.take_exclusive(file, reaper, owner) else { return };
    let _ = complete_intent(node, file, owner);
    crash::point("finish.completed");
}

/// Completes what an owner that died has left undone of a file that the caller has exclusively. An
/// error is noted in the record.
///
/// # Errors
/// The store's or a tier's errno; `STALE`, which is not noted, if no name of the file is found, and
/// no program has it open: there is no program to tell of it but those that have a new file with
/// its inode open.
pub(crate) fn complete_intent(node: &Node, file: FileId, owner: Owner) -> Result<(), Errno> {
    let record = node.segment.file(file);
    if node.flushing() != Flushing::Free {
        return Err(Errno::AGAIN);
    }
    record.set(FileFlags::STORE_WRITTEN);
    let store = FromManager { node, file };
    let result = node.segment.complete_intent(file, owner, &store);
    match result {
        // It has lost its last name, as far as is known: what is left of it goes when that is sure.
        Err(Errno::STALE) => {
            record.set(FileFlags::UNLINKED);
        }
        Err(errno) => record.report(errno.raw_os_error() as u32),
        Ok(()) => {}
    }
    result
}
