//! Pages that a write makes dirty, and caps on how many the store may lack, see
//! `forebay_pool::caps`: nothing of this is done for pages that are dirty already.

use super::{Outcome, WrittenPart};
use crate::access::EnteredFile;
use crate::session::Session;
use crate::span::{Cursor, Readable};
use core::sync::atomic::Ordering;
use forebay_pool::Entry;
use forebay_pool::backoff::Backoff;
use forebay_pool::layout::*;
use rustix::io::Errno;

/// Pages among `pages` of a locked bucket that the store has.
fn new_pages(meta: &BucketMeta, pages: u64) -> u32 {
    (pages & !meta.pending_under_lock()).count_ones()
}

impl EnteredFile<'_> {
    /// Marks pages of a locked bucket as dirty, for a write of time `stamp`; nothing but a plain
    /// load when they are.
    #[inline(always)]
    pub(super) fn mark_dirty(&self, meta: &BucketMeta, pages: u64, stamp: u32) {
        if meta.pages.dirty() & pages != pages {
            if self.session.segment.has_caps() {
                self.note_unsafe(meta, pages);
            }
            meta.mark_dirty(pages, stamp);
        }
    }

    /// Before they are marked: a count that comes too late would let others pass.
    #[cold]
    fn note_unsafe(&self, meta: &BucketMeta, pages: u64) {
        self.session.segment.note_unsafe(self.record, new_pages(meta, pages));
    }

    /// Marks pages of a locked bucket as dirty that are not. False, and nothing was done, where a
    /// cap has no room for them: they are to be waited for without the lock.
    #[inline(never)]
    pub(super) fn turn_dirty_within_caps(&self, meta: &BucketMeta, pages: u64, stamp: u32) -> bool {
        let segment = &self.session.segment;
        if segment.has_caps() && !segment.has_room_unsafe(self.record, new_pages(meta, pages)) {
            return false;
        }
        self.mark_dirty(meta, pages, stamp);
        true
    }

    /// Before a part of a write, where something is capped: waits until its pages may be dirty, and
    /// returns nothing. If that takes too long, what became of the part, which goes to the store.
    #[cold]
    pub(super) fn write_at_cap(
        &self,
        cursor: &mut Cursor<'_, Readable>,
        part: WrittenPart,
    ) -> Result<Option<Outcome>, Errno> {
        let segment = &self.session.segment;
        if self.session.awaits_cap(self.record, self.pages_to_dirty(part)) {
            return Ok(None);
        }
        let Some(entry) = segment.entry_or_insert(self.record, part.block, self.owner) else {
            return Ok(Some(Outcome::NoEntry));
        };
        let mut backoff = Backoff::default();
        loop {
            let word = entry.load(Ordering::Acquire);
            match Entry::decode(word) {
                Entry::Empty if self.session.is_littered(self.record, part) => {
                    return Ok(Some(Outcome::Littered));
                }
                Entry::Empty => {
                    if let Some(written) = self.write_around(entry, cursor, part)? {
                        return Ok(Some(Outcome::Written(written)));
                    }
                }
                Entry::Busy(holder) => {
                    if backoff.wait() {
                        segment.free_entry_of_dead(entry, word, holder);
                        segment.ends_wait_in_time(holder, &backoff)?;
                    }
                }
                // All of it may have become dirty by another thread since.
                Entry::Resident { .. } if self.pages_to_dirty(part) == 0 => return Ok(None),
                // The caller brings the file to the store, so that it lies nowhere.
                Entry::Resident { .. } => return Ok(Some(Outcome::NoMemory)),
                // What is written there is another node's.
                Entry::Elsewhere { .. } => return Ok(None),
            }
        }
    }

    /// Pages that a part makes dirty, as far as can be seen without its block's lock.
    fn pages_to_dirty(&self, part: WrittenPart) -> u32 {
        let segment = &self.session.segment;
        let pages = part.pages(segment);
        let entry = segment.entry(self.record, part.block);
        let seen = entry.map(|entry| Entry::decode(entry.load(Ordering::Acquire)));
        match seen {
            Some(Entry::Resident { bucket, .. }) => {
                let pending = segment.bucket(bucket).map_or(0, BucketMeta::pending);
                (pages & !pending).count_ones()
            }
            _ => pages.count_ones(),
        }
    }
}

/// Beside what the node manager has counted: that a thread has waited.
const WAITED: u64 = 1 << 63;

impl Session {
    /// Waits until so many pages of a file may be dirty that are not, while the node manager
    /// flushes. False when it does not.
    fn awaits_cap(&self, record: &FileRecord, pages: u32) -> bool {
        let segment = &self.segment;
        let has_room = || pages == 0 || segment.has_room_unsafe(record, pages);
        if has_room() {
            return true;
        }
        let counted = || segment.counted_unsafe(record) | WAITED;
        // Nothing has become safe since a thread here waited in vain.
        if self.cap_in_vain.load(Ordering::Relaxed) == counted() {
            segment.want_caps();
            return false;
        }
        self.counters().backpressure.fetch_add(1, Ordering::Relaxed);
        self.counters().cap_waits.fetch_add(1, Ordering::Relaxed);
        let made = &segment.header().caps_counted;
        let Err(seen) = self.await_limit(made, counted, || segment.want_caps(), has_room) else {
            return true;
        };
        self.cap_in_vain.store(seen, Ordering::Relaxed);
        has_room()
    }
}
