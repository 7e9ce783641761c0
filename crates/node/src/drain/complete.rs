//! The end of a flush: pages count as clean, or the failure is noted, and the file is tried again.

use crate::config::TierKind;
use crate::drain::batch::InFlight;
use crate::drain::flusher::{Flusher, Retry};
use crate::node::{BlockRef, Node};
use forebay_pool::backoff::Backoff;
use forebay_pool::checksums::SlotFiles;
use forebay_pool::clock::Timer;
use forebay_pool::free_map::USED;
use forebay_pool::layout::FileFlags;
use forebay_pool::{FileId, SlotRecord};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A file whose flush failed is tried again after this, doubled each time up to the second value.
const RETRY: (Timer, Timer) = (Timer::ms(200), Timer::seconds(10));

/// How often a flusher tries to lock a slot in order to write its record: about 50 ms.
const RECORD_TRIES: u32 = 600;

impl Flusher {
    /// Ends a block's flush. Needs no lock: no other thread touches pages under writeback.
    pub(super) fn end(&self, block: &InFlight, good: bool) {
        if let Some(meta) = self.node.segment.bucket(block.dirty.bucket)
            && meta.pages.end_writeback(block.pages, !good) == 0
        {
            let tier = self.node.segment.tier_of(block.dirty.bucket);
            self.node.header().tier[tier].clean.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Says in a slot's record what the store has now, lest a reboot writes it there again over
    /// what came later. Only after the flush has ended: the thread that holds the lock may be
    /// waiting for that.
    pub(super) fn record(&self, dirty: BlockRef) {
        let segment = &self.node.segment;
        let Some(meta) = segment.bucket(dirty.bucket) else { return };
        if segment.checksums(dirty.bucket).is_none() {
            return;
        }
        // A writer that holds it writes the record itself; one that is stopped is not waited for.
        let mut backoff = Backoff::default();
        let mut tries = 0;
        let _lock = loop {
            if let Some(lock) = meta.lock.guard(self.owner) {
                break lock;
            }
            tries += 1;
            if tries == RECORD_TRIES {
                return;
            }
            backoff.wait();
        };
        match meta.state.load(Ordering::Acquire) {
            USED if segment.is_indexed(dirty.bucket) => {
                segment.record_slot(&*self.node, dirty.bucket);
            }
            USED => {}
            // Evicted since: nothing of it counts any more.
            _ => {
                let void = SlotRecord::void(segment.next_sequence()).encode();
                let _ = self.node.write_record(dirty.bucket, &void);
            }
        }
    }

    /// Notes that a flush of the file that was `born` then failed: programs learn of it at fsync or
    /// close, and the file is tried again later.
    pub(super) fn failed(&mut self, file: FileId, born: u64, errno: Errno) {
        if self.node.segment.file(file).born_ns.load(Ordering::Acquire) != born {
            // The file was deleted, and the record is about another one that has its inode.
            return;
        }
        self.node.segment.file(file).report(errno.raw_os_error() as u32);
        if self.postpone(file) {
            let record = self.node.segment.file(file);
            let path = self.node.shown_path(record);
            error!("flush of {path}: {errno}; the data is kept and tried again");
        }
    }

    /// Notes that a file cannot be written now: a caller that waits for all files need not wait for
    /// it. True if it could before.
    pub(super) fn postpone(&mut self, file: FileId) -> bool {
        let record = self.node.segment.file(file);
        let pauses = (RETRY.0.as_duration(), RETRY.1.as_duration());
        let retry = Retry::after(self.retries.get(&file), pauses);
        let at = self.node.now().wrapping_add(retry.pause.as_millis() as u32);
        self.retries.insert(file, retry);
        record.retry_at.store(at, Ordering::Relaxed);
        !record.set(FileFlags::FAILING)
    }

    /// Notes that a file could be written, in `all` its parts or in those that are this worker's:
    /// what another could not write is still to be told.
    pub(super) fn succeeded(&mut self, file: FileId, all: bool) {
        let record = self.node.segment.file(file);
        let was_own = self.retries.remove(&file).is_some();
        if !record.has(FileFlags::FAILING) {
            return;
        }
        if all {
            self.node.retry_now(file);
        }
        if all || was_own || !self.node.is_pending(file) {
            record.clear(FileFlags::FAILING);
        }
    }
}

/// How long a file that fades is waited for: longer than housekeeping takes for it, whatever else
/// it does.
pub(crate) const FADING: Duration = Duration::from_secs(30);

/// Whether a file has lost its last name and the last living process that had it open: housekeeping
/// drops it as soon as its descriptions are free, and nothing of it has to come to the store. While
/// its store is not there that is not known. Or it is to be set aside, and no try has failed.
pub(crate) fn is_fading(node: &Node, file: FileId) -> bool {
    let record = node.segment.file(file);
    let is_removed = record.has(FileFlags::UNLINKED)
        && record.has(FileFlags::FAILING)
        && record.last_errno() != Errno::NODEV.raw_os_error();
    let may_be_set_aside = || {
        let is = (file, record.generation.load(Ordering::Acquire));
        is_lost(node, file) && !node.not_set_aside().contains(&is)
    };
    (is_removed || may_be_set_aside())
        && node.segment.holders(file).all(|pid| !forebay_pool::liveness::is_alive(pid, 0))
}

/// Whether the last flush of a file said that it is nowhere, and there is a place for what the
/// tiers have of it: housekeeping sets that aside.
pub(crate) fn is_lost(node: &Node, file: FileId) -> bool {
    let errno = node.segment.file(file).failing_errno();
    errno == Some(Errno::STALE.raw_os_error())
        && may_be_lost(node, file)
        && node.config.tiers.iter().any(|tier| matches!(tier.kind, TierKind::File { .. }))
}

/// Whether the manager has no descriptor of a file that is to have a name.
pub(crate) fn may_be_lost(node: &Node, file: FileId) -> bool {
    let record = node.segment.file(file);
    ![FileFlags::UNLINKED, FileFlags::SCRATCH].into_iter().any(|flag| record.has(flag))
        && !record.has_intent()
        && !node.descriptors.has(&node.segment, file)
}

/// Whether some file fades.
pub(crate) fn is_any_fading(node: &Node) -> bool {
    node.segment.files().touched().any(|file| is_fading(node, file))
}
