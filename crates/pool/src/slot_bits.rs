//! Which client slots processes have: a bit each, so that a look at all processes costs as much as
//! there are, and not as much as there ever were.
//!
//! They are a slice, and know no segment: see docs/design/views.md.

use crate::owner::MANAGER_SLOT;
use crate::sync::{AtomicU64, Ordering};

/// A bit for each client slot, set once the slot is not free any more and before anything is noted
/// in it, and cleared when nothing is and before it is free again. The manager's slot has none.
/// All threads of all processes may use them at once.
#[derive(Clone, Copy)]
pub struct SlotBits<'a> {
    /// 64 slots each.
    pub words: &'a [AtomicU64],
    /// Slots that there are, whatever a damaged bit says.
    pub count: u32,
}

impl<'a> SlotBits<'a> {
    /// The slots of programs that have their bits, in ascending order. A slot that gets its bit
    /// later may be missed: its process sees what the caller has written before.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        let count = self.count;
        self.words.iter().zip((0..).step_by(64)).flat_map(move |(word, first)| {
            let mut left = word.load(Ordering::SeqCst);
            core::iter::from_fn(move || {
                let slot = (left != 0).then(|| first + left.trailing_zeros())?;
                left &= left - 1;
                Some(slot)
            })
            .filter(move |slot| *slot != MANAGER_SLOT && *slot < count)
        })
    }

    /// Whether `slot` has its bit.
    pub fn has(self, slot: u32) -> bool {
        self.word(slot).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    pub(crate) fn set(self, slot: u32) {
        if let Some((word, bit)) = self.word(slot) {
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
