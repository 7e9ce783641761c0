//! Checksums of pages on file tiers: CRC-32C, of which 0 means "not known".

use crate::layout::SlotSums;
use crate::sync::Ordering;

/// A checksum that is computed piece by piece.
#[derive(Clone, Copy, Default)]
pub struct Summing(u32);

impl Summing {
    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// The sum of all bytes; never 0.
    pub fn sum(self) -> u32 {
        self.0.max(1)
    }
}

/// The sum of a page; never 0.
pub fn sum_of(page: &[u8]) -> u32 {
    let mut summing = Summing::default();
    summing.add(page);
    summing.sum()
}

/// The numbers of the pages in a set.
pub fn each_page(mut pages: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let page = (pages != 0).then(|| pages.trailing_zeros() as usize)?;
        pages &= pages - 1;
        Some(page)
    })
}

impl SlotSums {
    /// The sum of page `page`; 0 is not known.
    #[inline]
    pub fn get(&self, page: usize) -> u32 {
        self.sum[page % 64].load(Ordering::SeqCst)
    }

    /// Notes a page's sum.
    pub fn set(&self, page: usize, sum: u32) {
        self.sum[page % 64].store(sum, Ordering::SeqCst);
        self.rotten.fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
    }

    /// The bytes of `pages` are about to change: who reads them meanwhile cannot compare.
    pub fn forget(&self, pages: u64) {
        for page in each_page(pages) {
            self.sum[page].store(0, Ordering::SeqCst);
        }
        self.rotten.fetch_and(!pages, Ordering::Relaxed);
    }

    /// Pages of `pages` known to be rotten.
    pub fn rotten(&self, pages: u64) -> u64 {
        self.rotten.load(Ordering::Acquire) & pages
    }

    /// Whether `bytes`, read from page `page`, are what was written. They are, too, where somebody
    /// began to write the page meanwhile: `before` is its sum as it was before they were read.
    pub fn agrees(&self, page: usize, before: u32, bytes: &[u8]) -> bool {
        before == 0 || sum_of(bytes) == before || self.get(page) != before
    }
}
