//! Reading pages of slots, and comparing them with their checksums.

use crate::session::Session;
use crate::span::{Cursor, Writable};
use forebay_pool::BucketId;
use forebay_pool::checksum::Checksum;
use forebay_pool::layout::*;
use rustix::io::Errno;

impl Session {
    /// Copies from valid pages of a slot, and compares them with their sums.
    pub(super) fn read_pages(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        within: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let (mut at, end) = (within, within + bytes);
        while at < end {
            let to = cursor.here();
            let run = to.len().min(end - at) / page * page;
            if !at.is_multiple_of(page) || run == 0 {
                let upto = (at / page * page + page).min(end);
                self.read_page(bucket, cursor, at..upto)?;
                at = upto;
                continue;
            }
            let first = at / page;
            let mut before = [0u32; PAGES_PER_BUCKET as usize];
            for (index, sum) in before.iter_mut().take(run / page).enumerate() {
                *sum = sums.get(first + index);
            }
            let to = to.first(run);
            self.slot_read(bucket, at, to)?;
            for (index, content) in to.readable().bytes().chunks_exact(page).enumerate() {
                if !sums.agrees(first + index, before[index], content) {
                    // Another thread may have changed it in the application's memory.
                    let start = (first + index) * page;
                    let into = [to.after(index * page).first(page)];
                    let mut again = Cursor::new(&into);
                    self.read_page(bucket, &mut again, start..start + page)?;
                }
            }
            cursor.advance(run);
            at += run;
        }
        Ok(())
    }

    /// Copies bytes of one valid page of a slot, all of which is read and compared.
    fn read_page(
        &self,
        bucket: BucketId,
        cursor: &mut Cursor<'_, Writable>,
        range: core::ops::Range<usize>,
    ) -> Result<(), Errno> {
        let sums = self.segment.checksums(bucket).ok_or(Errno::IO)?;
        let page = self.segment.page_bytes();
        let number = range.start / page;
        let before = sums.get(number);
        let (mut sum, mut chunk) = (Checksum::default(), [0u8; 4096]);
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
