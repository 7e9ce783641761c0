//! Which client slots processes have: a bit each, so that a look at all processes costs as much as
//! there are, and not as much as there ever were.
//!
//! They are a slice, and know no segment: see docs/design/views.md.

use crate::owner::MANAGER_SLOT;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A bit for each client slot, set once the slot is not free any more and before anything is noted
/// in it, and cleared when nothing is and before it is free again. The manager's slot has none.
/// All threads of all processes may use them at once.
#[derive(Clone, Copy)]
pub struct SlotBits<'a> {
    /// 64 slots each.
    pub words: &'a [AtomicU64],
    /// One past the highest slot that ever had its bit: few of the words need be looked at.
    pub high: &'a AtomicU32,
    /// Slots that there are, whatever a damaged bit or mark says.
    pub count: u32,
}

impl<'a> SlotBits<'a> {
    /// The slots of programs that have their bits, in ascending order. A slot that gets its bit
    /// later may be missed: its process sees what the caller has written before.
    #[inline]
    pub fn iter(self) -> SetBits<'a> {
        let end = self.high.load(Ordering::SeqCst).min(self.count);
        let words = end.div_ceil(64).min(self.words.len() as u32);
        SetBits { words: &self.words[..words as usize], end, at: 0, left: 0 }
    }

    /// Whether `slot` has its bit.
    pub fn has(self, slot: u32) -> bool {
        let is_set = |(word, bit): (&AtomicU64, u64)| word.load(Ordering::SeqCst) & bit != 0;
        slot < self.high.load(Ordering::SeqCst) && self.word(slot).is_some_and(is_set)
    }

    pub(crate) fn set(self, slot: u32) {
        if let Some((word, bit)) = self.word(slot) {
            self.high.fetch_max(slot + 1, Ordering::SeqCst);
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    pub(crate) fn clear(self, slot: u32) {
        if let Some((word, bit)) = self.word(slot) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    fn word(self, slot: u32) -> Option<(&'a AtomicU64, u64)> {
        Some((self.words.get(slot as usize / 64)?, 1 << (slot % 64)))
    }
}

/// See [`SlotBits::iter`]. By hand, because each close has one.
pub struct SetBits<'a> {
    words: &'a [AtomicU64],
    end: u32,
    /// The next word.
    at: usize,
    /// What is left of the one before.
    left: u64,
}

impl Iterator for SetBits<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        loop {
            while self.left == 0 {
                self.left = self.words.get(self.at)?.load(Ordering::SeqCst);
                self.at += 1;
            }
            let slot = (self.at as u32 - 1) * 64 + self.left.trailing_zeros();
            self.left &= self.left - 1;
            if slot != MANAGER_SLOT && slot < self.end {
                return Some(slot);
            }
        }
    }
}
