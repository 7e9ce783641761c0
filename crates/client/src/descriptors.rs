//! Which descriptors of this process are managed: one word per descriptor number.

use core::sync::atomic::{AtomicU32, Ordering};
use forebay_pool::layout::DESCRIPTIONS_MAX;
use rustix::mm::{MapFlags, ProtFlags};

// A word of the table of descriptors: the description plus one, and while a thread closes or
// replaces the descriptor the bit and that thread's number, so that nothing is taken for that
// thread's mark that is another's.
pub(crate) const PARTING: u32 = 1 << 31;
pub(crate) const THREAD_SHIFT: u32 = 19;
pub(crate) const DESCRIPTION: u32 = (1 << THREAD_SHIFT) - 1;
const _: () = assert!(DESCRIPTIONS_MAX <= DESCRIPTION);

#[inline(always)]
pub(crate) fn is_parting(bound: u32) -> bool {
    bound & PARTING != 0
}

/// The description in a word of the table.
#[inline(always)]
pub(crate) fn description_of(bound: u32) -> Option<u32> {
    (bound & DESCRIPTION).checked_sub(1)
}

/// A map from small numbers to words, in memory that costs nothing until it is used.
pub(crate) struct Sparse {
    words: *const AtomicU32,
    count: usize,
}

// SAFETY: atomics only, in a mapping that belongs to the value and no thread.
unsafe impl Send for Sparse {}
// SAFETY: the same.
unsafe impl Sync for Sparse {}

impl Sparse {
    /// A map for `count` numbers; smaller if the address space is limited.
    pub fn new(mut count: usize) -> Sparse {
        loop {
            // SAFETY: a fresh mapping; zero is a valid AtomicU32.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(
                    core::ptr::null_mut(),
                    count * 4,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            };
            match mapped {
                Ok(words) => return Sparse { words: words.cast(), count },
                Err(_) if count > 1024 => count /= 2,
                Err(_) => return Sparse { words: core::ptr::null(), count: 0 },
            }
        }
    }

    /// So many numbers are there.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Maps for each of `counts` numbers, side by side.
    pub fn group<const N: usize>(counts: [usize; N]) -> [Sparse; N] {
        const PAGE_WORDS: usize = 65_536 / 4;
        let whole = counts.map(|count| count.next_multiple_of(PAGE_WORDS));
        let all = Sparse::new(whole.iter().sum());
        if all.count < whole.iter().sum() {
            return counts.map(Sparse::new);
        }
        // Each of them unmaps its part.
        let all = core::mem::ManuallyDrop::new(all);
        let mut at = all.words;
        whole.map(|count| {
            let part = Sparse { words: at, count };
            at = at.wrapping_add(count);
            part
        })
    }

    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&AtomicU32> {
        // SAFETY: inside the mapping.
        (index < self.count).then(|| unsafe { &*self.words.add(index) })
    }

    #[inline(always)]
    pub fn load(&self, index: usize) -> u32 {
        self.get(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: the map's own memory, and nothing borrows from it any more.
            let _ = unsafe { rustix::mm::munmap(self.words.cast_mut().cast(), self.count * 4) };
        }
    }
}
