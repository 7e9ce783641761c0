//! Writing to the store: around the tiers, or of a file that is direct.

use super::WrittenPart;
use crate::access::EnteredFile;
use crate::changed::raise;
use crate::open_file::OpenFile;
use crate::part::Part;
use crate::sharing::Need;
use crate::span::{Cursor, Readable};
use core::sync::atomic::{AtomicU64, Ordering};
use forebay_pool::Entry;
use forebay_pool::guards::BusyEntry;
use forebay_pool::layout::*;
use forebay_pool::moves::Place;
use forebay_pool::{clock, crash};
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Writes to the store of a block that the index has no entry for, with the file for itself.
    #[inline(never)]
    pub(super) fn write_exclusively(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
        bytes: usize,
    ) -> Result<usize, Errno> {
        self.session.counters().write_around.fetch_add(1, Ordering::Relaxed);
        self.exclusively_for(Need::write(offset, bytes), |file| {
            let block = offset / self.session.segment.bucket_bytes() as u64;
            let record = self.record;
            if self.session.segment.entry(record, block).is_some() || record.has(FileFlags::DIRECT)
            {
                return Ok(0);
            }
            file.clean_up_store()?;
            self.touch(clock::realtime_coarse_ns());
            file.lengthening(|| file.write_store(cursor, offset, bytes))
        })
    }
}

impl EnteredFile<'_> {
    /// Writes a part straight to the store while the entry keeps all other threads off the block.
    pub(super) fn write_around(
        &self,
        entry: &AtomicU64,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Option<usize>, Errno> {
        let Some(busy) = BusyEntry::take(entry, self.owner) else { return Ok(None) };
        let offset = part.offset(&self.session.segment);
        crash::point("around.busy");
        let record = self.record;
        let mut lengthens = None;
        // Not `stored`: while another process makes the file longer that says nothing of this
        // write.
        let known = record.store_size.load(Ordering::Acquire);
        if self.session.end_of(part) > known.min(record.size.load(Ordering::Acquire)) {
            match self.session.segment.begin_lengthening(record, self.owner) {
                Ok(Some(begun)) => lengthens = Some(begun),
                other => return other.map(|_| None),
            }
        }
        self.accessed_through(part.part);
        let result = self.write_store(cursor, offset, part.bytes);
        crash::point("around.written");
        if let Some(lengthens) = lengthens {
            self.session.segment.end_lengthening(lengthens);
        }
        drop(busy);
        self.session.counters().write_around.fetch_add(1, Ordering::Relaxed);
        result.map(Some)
    }

    /// Of a file that several nodes write: writes to the store what begins or ends within a page of
    /// which the store has something, and this node nothing. To buffer it would cost a read of each
    /// such page, and its flush. `None`: it is better buffered, as what is small is, which may be
    /// written again and again.
    pub(super) fn write_between(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        part: Part,
    ) -> Result<Option<usize>, Errno> {
        let (record, segment) = (self.record, &self.session.segment);
        let (page, offset) = (segment.page_bytes(), part.offset(segment));
        let is_whole = part.within.is_multiple_of(page) && part.end().is_multiple_of(page);
        let is_small = part.bytes <= page;
        // The store's file is made longer by flushes; and what journal or slots have of it would be
        // older.
        let is_theirs = offset + part.bytes as u64 <= record.stored() && !record.is_tracked();
        if is_whole || is_small || !is_theirs {
            return Ok(None);
        }
        let Some(entry) = segment.entry_or_insert(record, part.block, self.owner) else {
            return Ok(None);
        };
        match Entry::decode(entry.load(Ordering::Acquire)) {
            Entry::Empty => {
                let Some(busy) = BusyEntry::take(entry, self.owner) else { return Ok(None) };
                let written = self.write_store(cursor, offset, part.bytes);
                drop(busy);
                written.map(Some)
            }
            Entry::Resident { tier: TierId::RAM, .. } => {
                let held = segment.lock_block_unless_interrupted(entry, self.owner)?;
                let Some(held) = held.filter(|held| held.tier().is_ram()) else { return Ok(None) };
                match held.meta().valid.load(Ordering::Relaxed) & part.pages(segment) {
                    0 => self.write_store(cursor, offset, part.bytes).map(Some),
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Writes from the cursor to the store and notes the sizes that follow.
    pub(super) fn write_store(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
        bytes: usize,
    ) -> Result<usize, Errno> {
        self.record.set(FileFlags::STORE_WRITTEN);
        let mut done = 0;
        while done < bytes {
            let from = cursor.here().first(bytes - done);
            match self.store_write(from, offset + done as u64) {
                Ok(written) => {
                    cursor.advance(written);
                    done += written;
                    if written < from.len() {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        crash::point("store.written");
        self.session.note_moved(Place::Programs, Place::Store, done);
        let record = self.record;
        raise(&record.store_size, offset + done as u64);
        raise(&record.size, offset + done as u64);
        Ok(done)
    }

    /// Writes through the kernel: the file is used in ways that we cannot follow.
    #[inline(never)]
    pub(super) fn write_direct(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        offset: u64,
    ) -> Result<usize, Errno> {
        let written = self.store_write(cursor.here(), offset)?;
        cursor.advance(written);
        self.session.note_moved(Place::Programs, Place::Store, written);
        Ok(written)
    }
}
