//! Reading what the tiers do not have, and bringing blocks of it to RAM.

use crate::access::EnteredFile;
use crate::open_file::OpenFile;
use crate::part::Part;
use crate::span::{Cursor, Writable};
use core::sync::atomic::Ordering;
use forebay_pool::layout::*;
use rustix::io::Errno;

impl OpenFile<'_> {
    /// Whether a block that only the store has is worth a bucket: it will be read in small pieces,
    /// or its file is read again; and RAM is not short.
    pub(super) fn wants_stage_in(&self, length: usize) -> bool {
        let advice = self.description.flags.load(Ordering::Relaxed);
        if advice.contains(DescriptionFlags::RANDOM) {
            return false;
        }
        let low = self.session.segment.header().tier[TierId::RAM].low.load(Ordering::Relaxed);
        let again = self.record.opens.load(Ordering::Relaxed) > 1
            || advice.contains(DescriptionFlags::SEQUENTIAL);
        (again || length < self.session.segment.bucket_bytes())
            && self.session.segment.free_in(TierId::RAM) > low
    }
}

impl EnteredFile<'_> {
    /// Brings a block from the store to RAM, clean. False if that is not possible now.
    #[inline(never)]
    pub(super) fn stage_in(&self, block: u64) -> bool {
        let record = self.record;
        let bytes = self.session.segment.bucket_bytes();
        let start = block * bytes as u64;
        let length = || {
            let known = record.stored().min(record.size.load(Ordering::Acquire));
            (known.saturating_sub(start) as usize).min(bytes)
        };
        if length() == 0 {
            return false;
        }
        let Some(entry) = self.session.segment.entry_or_insert(record, block, self.owner) else {
            return false;
        };
        let Some(bucket) = self.session.segment.take_bucket(self.owner) else { return false };
        let fresh = self.session.segment.init_bucket(bucket, self.id, block, self.owner);
        let Some(fresh) = fresh else { return false };
        // Another thread may be faster.
        let Some(held) = fresh.publish(entry, TierId::RAM) else { return true };
        record.note_tier(TierId::RAM);
        self.session.populate(bucket);
        let data = self.session.ram(bucket);
        // Now that the block is ours: before, another process may still have written to the store.
        let got = self.store_read(data.first(length()), start).unwrap_or(0);
        let page = self.session.segment.page_bytes();
        let end = got.next_multiple_of(page);
        data.first(end).after(got).zero();
        let now = forebay_pool::clock::realtime_coarse_ns();
        held.meta().written.store(forebay_pool::clock::stamp(now), Ordering::Relaxed);
        let pages = Part { block, within: 0, bytes: end }.pages(&self.session.segment);
        held.meta().valid.store(pages, Ordering::Release);
        got > 0
    }

    /// Reads a file of which nothing is buffered: what the kernel says is true, its end included.
    #[inline(never)]
    pub(super) fn read_through(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        length: usize,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < length {
            let to = cursor.here();
            match self.store_read(to, offset + done as u64) {
                Ok(got) => {
                    cursor.advance(got);
                    done += got;
                    if got < to.len() {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads bytes below the file's size from the store; what the store does not have is zero.
    #[inline(never)]
    pub(super) fn read_store(
        &self,
        cursor: &mut Cursor<'_, Writable>,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Errno> {
        let known = self.record.stored();
        let mut done = 0;
        while done < bytes {
            let to = cursor.here().first(bytes - done);
            let at = offset + done as u64;
            let got = if at < known { self.store_read(to, at)? } else { 0 };
            to.after(got).zero();
            cursor.advance(to.len());
            done += to.len();
        }
        Ok(())
    }
}
