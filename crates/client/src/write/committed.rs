//! Writing to a file under commit, see `committing.rs`: whole pages are buffered. Of a page that is
//! written in part other nodes may write the rest at the same time: these bytes, and no others, go
//! to the store at once; or to the page as it is in memory, where that waits for its flush and so
//! is all this node's.

use super::blocks::Shared;
use super::{Part, WrittenPart};
use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::sharing::Need;
use crate::span::{Cursor, Readable, Span, total};
use crate::store::elsewhere;
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::backoff::Backoff;
use forebay_pool::guards::BusyEntry;
use forebay_pool::layout::*;
use forebay_pool::lease::Access;
use forebay_pool::moves::Place;
use forebay_pool::{Entry, crash};
use rustix::io::Errno;

impl EnteredFile<'_> {
    /// Writes the first bytes from the cursor to the file, which is under commit, or says how many
    /// are buffered as usual. After an error it may be outside.
    pub(super) fn write_committed(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Shared, Errno> {
        let page = self.session.segment.page_bytes();
        let lead = part.within % page;
        if lead == 0 && part.bytes >= page {
            return Ok(Shared::Buffered(part.bytes / page * page));
        }
        let bytes = part.bytes.min(page - lead);
        self.write_in_page(cursor, WrittenPart { part: Part { bytes, ..part.part }, ..part })
    }

    /// Writes a part of one page.
    fn write_in_page(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Shared, Errno> {
        let (record, segment) = (self.record, &self.session.segment);
        let offset = part.offset(segment);
        let Some(entry) = segment.entry_or_insert(record, part.block, self.owner) else {
            // Nothing of the block can be buffered.
            return self.write_store(cursor, offset, part.bytes).map(Shared::Written);
        };
        let mut backoff = Backoff::default();
        loop {
            let word = entry.load(Ordering::Acquire);
            match Entry::decode(word) {
                Entry::Empty => {
                    let Some(busy) = BusyEntry::take(entry, self.owner) else { continue };
                    let written = self.write_store(cursor, offset, part.bytes);
                    drop(busy);
                    return written.map(Shared::Written);
                }
                Entry::Busy(holder) => {
                    if backoff.wait() {
                        segment.free_entry_of_dead(entry, word, holder);
                        segment.ends_wait_in_time(holder, &backoff)?;
                    }
                }
                Entry::Resident { tier: TierId::RAM, .. } => {
                    if let Some(written) = self.write_in_resident(entry, cursor, part)? {
                        return Ok(Shared::Written(written));
                    }
                }
                Entry::Resident { .. } => match self.bring_up(entry, part.block) {
                    Ok(()) => {}
                    Err(errno @ (Errno::INTR | Errno::TIMEDOUT)) => return Err(errno),
                    // It cannot come to memory: then it lies nowhere.
                    Err(_) => {
                        self.outside(|file| file.exclusively(|file| file.clean()))?;
                        return Ok(Shared::Changed);
                    }
                },
                Entry::Elsewhere { node, .. } => return Err(elsewhere(node)),
            }
        }
    }

    /// The same of a block that lies in RAM. `None` if it has moved.
    fn write_in_resident(
        &self,
        entry: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Option<usize>, Errno> {
        let segment = &self.session.segment;
        let held = segment.lock_block_unless_interrupted(entry, self.owner)?;
        let Some(mut held) = held.filter(|held| held.tier().is_ram()) else { return Ok(None) };
        let (meta, page) = (held.meta(), part.pages(segment));
        let is_dirty = || meta.pages.dirty() & meta.valid.load(Ordering::Acquire) & page != 0;
        if !is_dirty() && meta.pages.writeback() & page != 0 {
            // Once a sync that waits for this flush is over, others may write to the page.
            segment.wait_for_writeback_unless_interrupted(meta)?;
        }
        if is_dirty() {
            // No flush of it begins before this lock is gone, and so no sync of this node that has
            // others write to the page.
            let written = self.write_bucket(held.bucket(), cursor, part);
            held.changed();
            return written.map(Some);
        }
        if meta.valid.fetch_and(!page, Ordering::AcqRel) & page != 0 {
            held.changed();
            crash::point("commit.forgotten");
        }
        self.write_store(cursor, part.offset(segment), part.bytes).map(Some)
    }

    /// Before pages of a locked bucket are written over: copies that may be old are no content any
    /// more, so that a process that is killed in the middle does not leave them as dirty. Returns
    /// which pages are valid then. Only of a file under commit.
    #[cold]
    pub(super) fn forget_written_over(&self, meta: &BucketMeta, touched: u64) -> u64 {
        let valid = meta.valid.load(Ordering::Relaxed);
        if !self.record.lease.load().commits() {
            return valid;
        }
        let copies = touched & valid & !meta.pages.pending_under_lock();
        meta.valid.fetch_and(!copies, Ordering::AcqRel) & !copies
    }
}

impl OpenFile<'_> {
    /// Appends to a file under commit: the kernel does, behind all that the store has by then.
    /// Returns where that starts and how many bytes were written; `None` if the file is under
    /// commit no more. The caller has the file's lock for appending.
    ///
    /// Where another node appends at the same time the start may be too high, and no byte is lost.
    ///
    /// # Errors
    /// The errno of the flush, or the store's.
    pub(super) fn append_committed(
        &self,
        pieces: &[Span<'_, Readable>],
    ) -> Result<Option<(u64, usize)>, Errno> {
        let length = total(pieces).ok_or(Errno::INVAL)?;
        self.exclusively_for(Need::Whole(Access::Write), |file| {
            if !file.commits() {
                return Ok(None);
            }
            file.settle_committing()?;
            let end = self.record.size.load(Ordering::Acquire);
            if length == 0 {
                return Ok(Some((end, 0)));
            }
            let length = self.allowed(end, length)?;
            self.record.set(FileFlags::STORE_WRITTEN);
            let written = file.lengthening(|| self.store_append(pieces, length, end))?;
            crash::point("commit.appended");
            file.resize_from_store()?;
            let counters = self.session.counters();
            self.session.count_up(&counters.writes, 1);
            self.session.count_up(&counters.write_bytes, written as u64);
            self.session.note_moved(Place::Programs, Place::Store, written);
            let end = self.record.size.load(Ordering::Acquire);
            Ok(Some((end.saturating_sub(written as u64), written)))
        })
    }
}
