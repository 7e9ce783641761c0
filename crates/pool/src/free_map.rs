//! The shared free list: a bit per item that says "probably free", and a state word that decides.
//!
//! Taking an item is one compare and swap on its state, Free -> Cached(owner), so at no instant
//! does an item belong to no thread. A bit that a killed process cleared without taking the item is
//! set again by [`FreeMap::repair`]. Bits are taken up to sixteen at a time from one word, which
//! gives neighbouring items to one client.
//!
//! ```
//! use forebay_pool::Owner;
//! use forebay_pool::free_map::{FREE, FreeMap, States};
//! use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
//!
//! struct Table([AtomicU32; 64]);
//! impl States for &Table {
//!     fn state(&self, item: u32) -> &AtomicU32 {
//!         &self.0[item as usize]
//!     }
//! }
//!
//! let table = Table([const { AtomicU32::new(FREE) }; 64]);
//! let map = FreeMap { bits: &[AtomicU64::new(0)], states: &table, first: 0, count: 64 };
//! // The states say what is free; the bits follow from them.
//! map.repair(64);
//! let mut taken = Vec::new();
//! map.take(Owner::new(1, 0), 0, 2, |item| taken.push(item));
//! assert_eq!((taken.as_slice(), map.available()), ([0, 1].as_slice(), 62));
//! assert_ne!(table.0[0].load(Ordering::Relaxed), FREE);
//! map.give(0);
//! assert_eq!(map.available(), 63);
//! ```

use crate::owner::Owner;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The state of an item that anyone may take.
pub const FREE: u32 = 0;
/// The state of an item in use; what uses it is found through the block index.
pub const USED: u32 = u32::MAX;
/// The state of a slot that a demotion is filling; taken by the node manager only.
pub const FILLING: u32 = u32::MAX - 1;
/// The state of a bucket that is set aside for a job and free: it is in no free map.
pub const RESERVED: u32 = u32::MAX - 2;
/// The state of a bucket of RAM without memory behind it: it is in no free map.
pub const UNBACKED: u32 = u32::MAX - 3;

/// Where the state words are.
pub trait States {
    /// The state word of item `item`.
    fn state(&self, item: u32) -> &AtomicU32;
}

/// A view of the bits and states of the items `first .. first + count`; `first` is a multiple of
/// 64.
pub struct FreeMap<'a, S: States> {
    /// All bits, from item 0 on.
    pub bits: &'a [AtomicU64],
    /// All states.
    pub states: S,
    /// First item of this view.
    pub first: u32,
    /// Items of this view.
    pub count: u32,
}

impl<S: States> FreeMap<'_, S> {
    fn words(&self) -> core::ops::Range<usize> {
        let first = self.first as usize / 64;
        first..first + (self.count as usize).div_ceil(64)
    }

    /// Takes up to `most` items for `owner`, starting the search at a word chosen by `hint`, and
    /// calls `taken` with each. Returns how many it took and the word to start from next time.
    pub fn take(
        &self,
        owner: Owner,
        hint: u32,
        most: u32,
        mut taken: impl FnMut(u32),
    ) -> (u32, u32) {
        let words = self.words();
        let len = words.len();
        let mut found = 0;
        for turn in 0..len {
            let at = words.start + (hint as usize + turn) % len;
            found += self.take_from_word(at, owner, most - found, &mut taken);
            if found >= most {
                return (found, ((hint as usize + turn) % len) as u32);
            }
        }
        (found, hint)
    }

    fn take_from_word(
        &self,
        at: usize,
        owner: Owner,
        most: u32,
        taken: &mut impl FnMut(u32),
    ) -> u32 {
        let mut seen = self.bits[at].load(Ordering::Relaxed);
        loop {
            let wanted = lowest_bits(seen, most);
            if wanted == 0 {
                return 0;
            }
            match self.bits[at].compare_exchange_weak(
                seen,
                seen & !wanted,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    crate::crash::point("map.bits-taken");
                    return self.claim(at, wanted, owner, taken);
                }
                Err(now) => seen = now,
            }
        }
    }

    fn claim(&self, at: usize, mut bits: u64, owner: Owner, taken: &mut impl FnMut(u32)) -> u32 {
        let mut found = 0;
        while bits != 0 {
            let item = at as u32 * 64 + bits.trailing_zeros();
            bits &= bits - 1;
            let state = self.states.state(item);
            if state
                .compare_exchange(FREE, owner.raw(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                crate::crash::point("map.claimed");
                taken(item);
                found += 1;
            }
        }
        found
    }

    /// Takes the items `first .. first + count`, which lie in one word, if all of them are free,
    /// and gives them `state`. Returns whether it did; if not, each is what it was.
    pub fn take_all(&self, first: u32, count: u32, state: u32) -> bool {
        let at = first as usize / 64;
        let mask = (u64::MAX >> (64 - count)) << (first % 64);
        let cleared = self.bits[at].fetch_update(Ordering::Acquire, Ordering::Relaxed, |seen| {
            (seen & mask == mask).then_some(seen & !mask)
        });
        if cleared.is_err() {
            return false;
        }
        crate::crash::point("map.bits-of-all-taken");
        for item in first..first + count {
            let place = self.states.state(item);
            if place.compare_exchange(FREE, state, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // Its bit was older than its state.
                (first..item).for_each(|taken| self.give(taken));
                self.repair_some(item..first + count);
                return false;
            }
            crate::crash::point("map.one-of-all-claimed");
        }
        true
    }

    /// Gives an item back. The caller has unlinked it from everything.
    pub fn give(&self, item: u32) {
        self.states.state(item).store(FREE, Ordering::Release);
        crate::crash::point("map.given");
        self.offer(item);
    }

    /// Sets the bit of an item that became available; its state must already be `FREE`.
    pub fn offer(&self, item: u32) {
        self.bits[item as usize / 64].fetch_or(1 << (item % 64), Ordering::Release);
    }

    /// Whether bits behind the last item are set.
    pub fn has_stray_bits(&self) -> bool {
        let last = (self.first + self.count) as usize / 64;
        !self.count.is_multiple_of(64)
            && self.bits[last].load(Ordering::Relaxed) >> (self.count % 64) != 0
    }

    /// How many bits are set. Other threads may change it at once.
    pub fn available(&self) -> u32 {
        self.words().map(|at| self.bits[at].load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Sets the bit of each of the first `ready` items whose state is `FREE`, and clears those that
    /// belong to no item. Safe at any time.
    pub fn repair(&self, ready: u32) {
        if !self.count.is_multiple_of(64) {
            let last = (self.first + self.count) as usize / 64;
            self.bits[last].fetch_and((1 << (self.count % 64)) - 1, Ordering::Relaxed);
        }
        self.repair_some(self.first..self.first + ready.min(self.count));
    }

    fn repair_some(&self, items: core::ops::Range<u32>) {
        for item in items {
            if self.states.state(item).load(Ordering::Acquire) == FREE {
                self.offer(item);
            }
        }
    }
}

fn lowest_bits(word: u64, most: u32) -> u64 {
    let (mut rest, mut chosen) = (word, 0);
    for _ in 0..most {
        if rest == 0 {
            break;
        }
        chosen |= rest & rest.wrapping_neg();
        rest &= rest - 1;
    }
    chosen
}
