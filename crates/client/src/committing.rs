//! Files under commit: what this node has written others see once it was synced or closed, and this
//! node what others have, once it has opened or synced the file after that.
//!
//! Each node reads and writes such a file as it likes, and asks for nothing. What is dirty of it
//! here this node has written to the last byte: whole pages, see `write/committed.rs`; so a flush
//! puts back no byte of another node. What is clean here are copies, of whole pages, which
//! may be older than the store and are dropped with each open and each sync. What needs more than
//! bytes (a truncate, a mapping, an append) finds nothing buffered, and goes to the kernel.

use crate::access::ExclusiveFile;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::waiting::{Wait, surely};
use core::sync::atomic::Ordering;
use forebay_pool::crash;
use forebay_pool::layout::FileFlags;
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Whether the file is under commit, and buffered.
    pub(crate) fn commits(&self) -> bool {
        self.record.lease.load().commits() && !self.record.has(FileFlags::DIRECT)
    }

    /// What this node may do with the file, which is under commit: anything. A read that goes
    /// beyond the end that is known here looks whether others have made the file longer.
    ///
    /// # Errors
    /// The store's errno.
    pub(crate) fn has_committing(&self, need: &Need) -> Result<bool, Errno> {
        if let Need::Read(range) = need
            && range.end > self.record.size.load(Ordering::Acquire)
        {
            self.learn_stored_size()?;
        }
        Ok(true)
    }

    /// Brings what was written here to the store, where others see it, and sees to it that nothing
    /// of it is written there again.
    ///
    /// # Errors
    /// As of [`OpenFile::sync`].
    pub(crate) fn publish(&self, durable: bool, wait: &Wait) -> Result<(), Errno> {
        self.flush(durable, wait)?;
        crash::point("commit.published");
        // What journal and slots have of it a recovery would write over what others write next.
        if !durable && self.record.is_tracked() {
            self.flush(true, wait)?;
        }
        Ok(())
    }

    /// [`OpenFile::publish`] at a close, where no signal ends it. A failed flush is told as each
    /// one is.
    pub(crate) fn publish_closed(&self) {
        let _ = surely(|| self.publish(false, &Wait::begin()));
    }

    /// Calls `call`, which takes, changes or gives back a lock on the file, and says by a negative
    /// number that it has not. Of a file under commit others that get the lock see what was written
    /// before, and who gets it here sees what they have written.
    pub fn around_lock(&self, call: impl FnOnce() -> i32) -> i32 {
        if self.commits() {
            self.publish_closed();
        }
        let result = call();
        if result >= 0 {
            let _ = surely(|| self.look_afresh());
        }
        result
    }

    /// Has what is read from now on be what the store has by now, but for what was written here
    /// and is not there yet.
    ///
    /// # Errors
    /// As of [`OpenFile::exclusively`]; the store's errno.
    pub(crate) fn look_afresh(&self) -> Result<(), Errno> {
        match self.commits() {
            true => self.exclusively(|file| file.drop_copies()),
            false => Ok(()),
        }
    }
}

impl ExclusiveFile<'_> {
    /// Drops what others may have written again since, and learns how long the file is.
    fn drop_copies(&self) -> Result<(), Errno> {
        if !self.commits() {
            return Ok(());
        }
        let is_empty = self.session.segment.drop_clean_pages(self.id, self.owner, self.session)?;
        crash::point("commit.dropped");
        if is_empty && !self.record.is_tracked() {
            self.clean_up_store()?;
            return self.resize_from_store();
        }
        self.learn_stored_size()
    }

    /// Before a call that changes the store's file otherwise than by a write: nothing of a file
    /// under commit is buffered, and the record has the size that the store's file has.
    ///
    /// # Errors
    /// The errno of the flush; the store's.
    pub(crate) fn settle_committing(&self) -> Result<(), Errno> {
        if !self.commits() {
            return Ok(());
        }
        self.clean()?;
        self.checkpoint()?;
        self.clean_up_store()?;
        self.resize_from_store()
    }
}
