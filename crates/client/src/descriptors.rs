//! Which descriptors of this process are managed: one word per descriptor number.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
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

/// A map from small numbers to words, in memory that it takes when it is used first: most programs
/// that start have no file of a store.
pub(crate) struct Sparse {
    words: AtomicPtr<AtomicU32>,
    /// So many of them are there.
    count: AtomicUsize,
    /// Where they are, and in the lowest bits how often the wanted number was halved for want of
    /// room: threads that map it at the same time, or a handler that interrupts one, agree by this.
    place: AtomicUsize,
    wanted: usize,
}

/// Bits of an address that tell nothing, because it is that of a page.
const HALVINGS: usize = 0xff;

impl Sparse {
    /// A map for `wanted` numbers; fewer if the address space is limited.
    pub fn new(wanted: usize) -> Sparse {
        Sparse {
            words: AtomicPtr::new(core::ptr::null_mut()),
            count: AtomicUsize::new(0),
            place: AtomicUsize::new(0),
            wanted: wanted.max(1),
        }
    }

    /// The same without memory, and for as many numbers.
    pub fn again(&self) -> Sparse {
        Sparse::new(self.wanted)
    }

    /// Whether it has no memory so far.
    pub fn is_unused(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes memory for maps that have none yet, side by side.
    pub fn map<const N: usize>(maps: [&Sparse; N]) {
        if maps.iter().any(|map| map.is_unused()) {
            Sparse::map_now(&maps);
        }
    }

    #[cold]
    fn map_now(maps: &[&Sparse]) {
        let whole = |map: &Sparse| map.wanted.next_multiple_of(PAGE_WORDS);
        match fresh(maps.iter().map(|map| whole(map)).sum()) {
            Some(mut at) => {
                for map in maps {
                    map.settle_at(at, 0);
                    at = at.wrapping_add(whole(map));
                }
            }
            None => maps.iter().for_each(|map| map.map_some()),
        }
    }

    /// Takes memory for as many numbers as there is room for.
    fn map_some(&self) {
        for halvings in 0..HALVINGS {
            let count = self.wanted >> halvings;
            if count < 1024 && halvings > 0 {
                return;
            }
            if let Some(words) = fresh(count.next_multiple_of(PAGE_WORDS)) {
                return self.settle_at(words, halvings);
            }
        }
    }

    /// Uses fresh memory at `words`, or if another thread was first, what that has taken.
    fn settle_at(&self, words: *mut AtomicU32, halvings: usize) {
        let mine = words.expose_provenance() | halvings;
        let first = self.place.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            give_back(words, (self.wanted >> halvings).next_multiple_of(PAGE_WORDS));
        }
        let place = first.map_or_else(|taken| taken, |_| mine);
        let words = core::ptr::with_exposed_provenance_mut(place & !HALVINGS);
        self.words.store(words, Ordering::Relaxed);
        self.count.store(self.wanted >> (place & HALVINGS), Ordering::Release);
    }

    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&AtomicU32> {
        let count = self.count.load(Ordering::Acquire);
        // SAFETY: inside the memory, which stays until the map is dropped.
        (index < count).then(|| unsafe { &*self.words.load(Ordering::Relaxed).add(index) })
    }

    #[inline(always)]
    pub fn load(&self, index: usize) -> u32 {
        self.get(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }
}

/// The largest page that there is, in words.
const PAGE_WORDS: usize = 65_536 / 4;

/// Memory for `count` words, which are zero, and cost nothing until they are used.
fn fresh(count: usize) -> Option<*mut AtomicU32> {
    // SAFETY: a fresh mapping; zero is a valid AtomicU32.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            count * 4,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    mapped.ok().map(|words| words.cast())
}

fn give_back(words: *mut AtomicU32, count: usize) {
    // SAFETY: the caller's own memory, and nothing borrows from it any more.
    let _ = unsafe { rustix::mm::munmap(words.cast(), count * 4) };
}

impl Drop for Sparse {
    fn drop(&mut self) {
        let place = *self.place.get_mut();
        if place != 0 {
            let words = core::ptr::with_exposed_provenance_mut(place & !HALVINGS);
            let count = self.wanted >> (place & HALVINGS);
            give_back(words, count.next_multiple_of(PAGE_WORDS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_with_the_first_use() {
        let maps = [Sparse::new(1 << 20), Sparse::new(3)];
        assert!(maps.iter().all(|map| map.get(0).is_none() && map.load(2) == 0));
        Sparse::map([&maps[0], &maps[1]]);
        let words = |map: &Sparse| map.get(2).map(core::ptr::from_ref);
        let first = maps.each_ref().map(words);
        assert!(maps[0].get(1 << 20).is_none() && maps[1].get(3).is_none());
        maps[1].get(2).unwrap().store(7, Ordering::SeqCst);
        Sparse::map([&maps[0], &maps[1]]);
        Sparse::map_now(&[&maps[0], &maps[1]]);
        maps[1].map_some();
        assert_eq!(maps.each_ref().map(words), first);
        assert_eq!((maps[0].load(2), maps[1].load(2)), (0, 7));
        assert!(maps[0].again().get(0).is_none());
    }

    #[test]
    fn threads_that_map_at_the_same_time_have_the_same() {
        for _ in 0..50 {
            let map = Sparse::new(1 << 16);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        Sparse::map([&map]);
                        map.get(5).unwrap().fetch_add(1, Ordering::SeqCst);
                    });
                }
            });
            assert_eq!(map.load(5), 4);
        }
    }
}
