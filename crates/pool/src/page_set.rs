//! Sets of pages of one block, and what is read of a slot compared with its checksums.

use crate::layout::{PAGES_PER_BUCKET, SlotChecksums};
use core::ops::Range;

/// Pages of one block: page 0 is the lowest bit.
///
/// ```
/// use forebay_pool::PageSet;
///
/// let pages = PageSet::span(1..3) | PageSet(1 << 7);
/// assert_eq!(pages.pages().collect::<Vec<_>>(), [1, 2, 7]);
/// assert_eq!(pages.runs().collect::<Vec<_>>(), [1..3, 7..8]);
/// assert_eq!(pages.bounds(), 1..8);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSet(pub u64);

impl PageSet {
    /// The pages from `range.start` up to `range.end`, which is 64 at most.
    #[inline]
    pub fn span(range: Range<usize>) -> PageSet {
        let below = |end: usize| if end >= 64 { u64::MAX } else { (1 << end) - 1 };
        PageSet(below(range.end) & !below(range.start))
    }

    /// The pages, of 2^`shift` bytes, that the bytes `range` of a block touch.
    #[inline]
    pub fn of_bytes(range: Range<usize>, shift: u32) -> PageSet {
        PageSet::span(range.start >> shift..(range.end + (1 << shift) - 1) >> shift)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// From the first page to the last: what has to be read to have all of them.
    pub fn bounds(self) -> Range<usize> {
        match self.0 {
            0 => 0..0,
            set => set.trailing_zeros() as usize..64 - set.leading_zeros() as usize,
        }
    }

    /// The numbers of the pages, in ascending order.
    pub fn pages(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let page = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(page)
        })
    }

    /// The ranges of neighbouring pages, in ascending order.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let first = (left != 0).then(|| left.trailing_zeros() as usize)?;
            let run = first..first + (left >> first).trailing_ones() as usize;
            left &= !PageSet::span(run.clone()).0;
            Some(run)
        })
    }

    /// Those pages whose number is accepted.
    pub fn filter(self, mut accepts: impl FnMut(usize) -> bool) -> PageSet {
        PageSet(self.pages().filter(|&page| accepts(page)).fold(0, |all, page| all | 1 << page))
    }
}

impl core::ops::BitOr for PageSet {
    type Output = PageSet;

    fn bitor(self, other: PageSet) -> PageSet {
        PageSet(self.0 | other.0)
    }
}

impl SlotChecksums {
    /// The checksums of `pages`, to be taken before their bytes are read.
    pub fn of(&self, pages: PageSet) -> [u32; PAGES_PER_BUCKET as usize] {
        let mut before = [0; PAGES_PER_BUCKET as usize];
        pages.pages().for_each(|page| before[page] = self.get(page));
        before
    }

    /// Those of `pages` that are corrupt: their bytes in `block`, which a whole block has been read
    /// to, are not what was written. `before` has their checksums from before they were read.
    pub fn corrupt_pages(
        &self,
        pages: PageSet,
        before: &[u32; PAGES_PER_BUCKET as usize],
        block: &[u8],
    ) -> PageSet {
        let page = block.len() / PAGES_PER_BUCKET as usize;
        pages.filter(|number| {
            !self.agrees(number, before[number], &block[number * page..(number + 1) * page])
        })
    }

    /// Has page `number` read to `to`. Whether it is what was written, as far as that is known.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read_page<E>(
        &self,
        number: usize,
        to: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let before = self.get(number);
        read(to)?;
        Ok(self.agrees(number, before, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_are_one_run() {
        let of = |pages| PageSet(pages).runs().map(|run| (run.start, run.end)).collect::<Vec<_>>();
        assert_eq!(of(0), []);
        assert_eq!(of(0b1101), [(0, 1), (2, 4)]);
        assert_eq!(of(u64::MAX), [(0, 64)]);
        assert_eq!(of(1 << 63), [(63, 64)]);
    }

    #[test]
    fn spans_and_bounds_are_inverse() {
        for first in 0..64 {
            for end in first + 1..=64 {
                let set = PageSet::span(first..end);
                assert_eq!((set.bounds(), set.0.count_ones() as usize), (first..end, end - first));
                assert!(set.pages().eq(first..end));
            }
        }
        assert!(PageSet::span(5..5).is_empty() && PageSet(0).bounds().is_empty());
    }

    #[test]
    fn pages_of_a_range_of_bytes() {
        let of = |range| PageSet::of_bytes(range, 12).0;
        assert_eq!(of(0..1), 1);
        assert_eq!(of(4095..4097), 0b11);
        assert_eq!(of(4096..8192), 0b10);
        assert_eq!(of(0..64 * 4096), u64::MAX);
        assert_eq!(of(63 * 4096..64 * 4096), 1 << 63);
        assert_eq!(of(0..0) | of(Range { start: 8192, end: 4096 }), 0);
    }

    #[test]
    fn pages_that_are_accepted_stay() {
        assert_eq!(PageSet(0b1111).filter(|page| page % 2 == 1), PageSet(0b1010));
    }
}
