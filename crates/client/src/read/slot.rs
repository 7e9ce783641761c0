//! Reading pages of slots, and comparing them with their checksums.

use crate::session::Session;
use crate::span::{Cursor, Span, Writable};
use core::ops::Range;
use forebay_pool::BucketId;
use forebay_pool::checksum::Checksum;
use forebay_pool::layout::*;
use rustix::io::Errno;

/// Bytes of a page that is read to the stack: of buckets of the usual size.
const BOUNCE: usize = 4096;

/// Sums of pages that lie one after the other; 0 is not known.
type Sums = [u32; PAGES_PER_BUCKET as usize];

impl Session {
    /// Copies from valid pages of a slot, and compares them with their sums.
    pub(super) fn read_pages(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        within: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        let page = self.segment.page_bytes();
        let (mut at, end) = (within, within + bytes);
        let is_whole = at.is_multiple_of(page) && end.is_multiple_of(page);
        let has_several = at / page != end.saturating_sub(1) / page;
        if page == BOUNCE && !is_whole && has_several && cursor.here().len() >= bytes {
            return self.read_beyond_pages(bucket, cursor, at..end);
        }
        while at < end {
            let to = cursor.here();
            let run = to.len().min(end - at) / page * page;
            if !at.is_multiple_of(page) || run == 0 {
                let upto = (at / page * page + page).min(end);
                self.read_page(bucket, cursor, at..upto)?;
                at = upto;
                continue;
            }
            let to = to.first(run);
            let before = self.sums(bucket, at / page..(at + run) / page)?;
            self.slot_read(bucket, at, to)?;
            let pages = to.readable().bytes().chunks_exact(page);
            self.compare(bucket, &before, pages, to, at..at + run)?;
            cursor.advance(run);
            at += run;
        }
        Ok(())
    }

    /// Copies valid bytes of a slot that begin or end within a page to one piece of memory: by one
    /// request, which has the pages at the ends in full, to compare them.
    #[inline(never)]
    fn read_beyond_pages(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        range: Range<usize>,
    ) -> Result<(), Errno> {
        let first = range.start / BOUNCE;
        let (before_it, behind_it) = (range.start % BOUNCE, range.end % BOUNCE);
        let (mut head, mut tail) = ([0u8; BOUNCE], [0u8; BOUNCE]);
        let in_head = if before_it == 0 { 0 } else { BOUNCE - before_it };
        let to = cursor.here().first(range.len());
        let (middle, last) = (to.after(in_head), to.after(range.len() - behind_it));
        let middle = middle.first(middle.len() - behind_it);
        let before = self.sums(bucket, first..range.end.div_ceil(BOUNCE))?;
        let ends = [(&mut head, before_it), (&mut tail, behind_it)]
            .map(|(page, part)| Span::from(&mut page[..if part == 0 { 0 } else { BOUNCE }]));
        self.slot_read_pieces(bucket, first * BOUNCE, [ends[0], middle, ends[1]])?;
        to.copy_from(ends[0].readable().after(before_it));
        last.copy_from(ends[1].readable().first(behind_it));
        let pages = ends[0].readable().bytes().chunks_exact(BOUNCE);
        let pages = pages.chain(middle.readable().bytes().chunks_exact(BOUNCE));
        let pages = pages.chain(ends[1].readable().bytes().chunks_exact(BOUNCE));
        self.compare(bucket, &before, pages, to, range.clone())?;
        cursor.advance(range.len());
        Ok(())
    }

    /// The sums of pages of a slot as they are before these are read.
    fn sums(&self, bucket: BucketId, pages: Range<usize>) -> Result<Sums, Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let mut before = [0; PAGES_PER_BUCKET as usize];
        for (sum, page) in before.iter_mut().zip(pages) {
            *sum = sums.get(page);
        }
        Ok(before)
    }

    /// Compares `pages`, which were read, with their sums `before` that. They have `range` of the
    /// slot, and may have more at its ends; `to` got it.
    fn compare<'p>(
        &self,
        bucket: BucketId,
        before: &Sums,
        pages: impl Iterator<Item = &'p [u8]>,
        to: Span<'_, Writable>,
        range: Range<usize>,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let first = range.start / page;
        for (index, content) in pages.enumerate() {
            let number = first + index;
            if !sums.agrees(number, before[index], content) {
                // Another thread may have changed it in the application's memory, or on its way.
                let start = (number * page).max(range.start);
                let upto = ((number + 1) * page).min(range.end);
                let into = [to.after(start - range.start).first(upto - start)];
                self.read_page(bucket, &mut Cursor::new(&into), start..upto)?;
            }
        }
        Ok(())
    }

    /// Copies bytes of one valid page of a slot, all of which is read and compared.
    fn read_page(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        range: Range<usize>,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let number = range.start / page;
        let before = sums.get(number);
        let (mut sum, mut chunk) = (Checksum::default(), [0u8; BOUNCE]);
        for at in (number * page..(number + 1) * page).step_by(chunk.len()) {
            self.slot_read(bucket, at, (&mut chunk[..]).into())?;
            sum.add(&chunk);
            let end = at + chunk.len();
            let here = &chunk[range.start.clamp(at, end) - at..range.end.clamp(at, end) - at];
            cursor.copy_in(here.into());
        }
        let right = before == 0 || sum.sum() == before || sums.get(number) != before;
        if right { Ok(()) } else { Err(Errno::IO) }
    }
}
