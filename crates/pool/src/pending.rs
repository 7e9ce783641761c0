//! What of a file waits to be written to the store.

use crate::entry::Entry;
use crate::layout::BucketMeta;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use core::ops::Range;

mod words;

impl BucketMeta {
    /// Pages that the store does not have yet, those on their way to it included; for any caller.
    pub fn pending(&self) -> u64 {
        words::pending(&self.dirty, &self.writeback)
    }

    /// The same for who holds its lock.
    #[inline]
    pub fn pending_under_lock(&self) -> u64 {
        words::pending_under_lock(&self.dirty, &self.writeback)
    }
}

impl Segment {
    /// Pages of the block that `place` names which the store does not have yet, those on their
    /// way to it included.
    fn pending_pages(&self, place: &AtomicU64) -> u64 {
        loop {
            let word = place.load(Ordering::Acquire);
            let Entry::Resident { bucket, .. } = Entry::decode(word) else { return 0 };
            let Some(meta) = self.bucket(bucket) else { return 0 };
            let pages = meta.pending();
            if place.load(Ordering::Acquire) == word {
                return pages & meta.valid.load(Ordering::Acquire);
            }
        }
    }

    /// Calls `visit` with the byte range of each run of pages of `file` that the store does not
    /// have yet, from the block that `from` lies in on, in ascending order, until it returns
    /// false. Runs of neighbouring blocks are not joined.
    pub fn for_each_pending(
        &self,
        file: u32,
        from: u64,
        mut visit: impl FnMut(Range<u64>) -> bool,
    ) {
        let (bytes, page) = (self.bucket_bytes() as u64, self.page_bytes() as u64);
        self.for_each_entry(self.file(file), from / bytes, |block, place| {
            let mut pages = self.pending_pages(place);
            while pages != 0 {
                let first = pages.trailing_zeros();
                let count = (pages >> first).trailing_ones();
                let start = block * bytes + u64::from(first) * page;
                if !visit(start..start + u64::from(count) * page) {
                    return false;
                }
                let upto = first + count;
                pages &= if upto >= 64 { 0 } else { u64::MAX << upto };
            }
            true
        });
    }

    /// Bytes of `file`, in whole pages, that the store does not have yet.
    pub fn pending_bytes(&self, file: u32) -> u64 {
        let mut sum = 0;
        self.for_each_pending(file, 0, |range| {
            sum += range.end - range.start;
            true
        });
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::owner::Owner;
    use crate::segment::anonymous;

    #[test]
    fn runs_of_pending_pages_are_found_in_order() {
        let (segment, _file) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let me = Owner::new(1, 0);
        let block = |number: u64, valid: u64, dirty: u64, writeback: u64| {
            let bucket = segment.take_bucket(me).unwrap();
            segment.dress_bucket(bucket, 3, number, me);
            let meta = segment.bucket(bucket).unwrap();
            meta.valid.store(valid, Ordering::Relaxed);
            meta.dirty.store(dirty, Ordering::Relaxed);
            meta.writeback.store(writeback, Ordering::Relaxed);
            let place = segment.entry_or_insert(segment.file(3), number, me).unwrap();
            place.store(Entry::resident(0, bucket).encode(), Ordering::Release);
            meta.lock.unlock_changed();
        };
        block(0, 0b1111, 0b0101, 0b0010);
        block(2, u64::MAX, 0, 0);
        block(700, u64::MAX, u64::MAX, 0);
        let runs = |from: u64| {
            let mut found = Vec::new();
            segment.for_each_pending(3, from, |range| {
                found.push((range.start / 4096, range.end / 4096));
                true
            });
            found
        };
        assert_eq!(runs(0), [(0, 3), (700 * 64, 701 * 64)]);
        assert_eq!(runs(1 << 20), [(700 * 64, 701 * 64)]);
        assert_eq!(segment.pending_bytes(3), 67 * 4096);
    }
}
