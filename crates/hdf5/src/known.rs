//! The datasets that the process has open, by their identifiers: those of two libraries may be the
//! same.

use crate::library::{Id, Library};
use crate::selection::Selections;
use crate::session::FileIdentity;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Open datasets that are followed at the same time; of more, no rule holds and nothing is
/// predicted.
const KNOWN_MAX: usize = 1024;
/// How often a thread looks whether another one has left the table, before it does without: that
/// one copies some words.
const LOOKS: usize = 10_000;

/// Dimensions of a dataset that selections are predicted of, and chunks looked up.
pub const RANK_MAX: usize = 8;

/// How the bytes of a dataset lie in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In one piece.
    Contiguous,
    /// In chunks of so many elements of each dimension.
    Chunked([u64; RANK_MAX]),
}

/// An open dataset.
#[derive(Clone, Copy)]
pub struct Open {
    /// Its library, and its identifier there.
    pub at: (usize, Id),
    /// Its file.
    pub file: FileIdentity,
    /// A hash of its name when it was opened.
    pub name: u64,
    /// How it lies there.
    pub layout: Layout,
    /// Dimensions; 0 where there are more than [`RANK_MAX`].
    pub rank: usize,
    /// Its extent when it was noted last, where it has no more dimensions than that.
    pub extent: [u64; RANK_MAX],
    /// It may be written, and so be elsewhere when it is closed.
    pub is_writable: bool,
    /// Where it lies is known for good.
    pub is_settled: bool,
    /// What was read of it last.
    pub selections: Selections,
}

#[derive(Clone, Copy)]
struct Place {
    /// It has been in use: a search goes on behind it.
    was_used: bool,
    open: Option<Open>,
}

const FRESH: Place = Place { was_used: false, open: None };

struct Table {
    is_busy: AtomicBool,
    count: AtomicUsize,
    places: UnsafeCell<[Place; KNOWN_MAX]>,
}

// SAFETY: the places are touched only by the thread that has set `is_busy`.
unsafe impl Sync for Table {}

static TABLE: Table = Table {
    is_busy: AtomicBool::new(false),
    count: AtomicUsize::new(0),
    places: UnsafeCell::new([FRESH; KNOWN_MAX]),
};

/// Calls `act` with the table; `None` if another thread keeps it, which a fork may have left
/// behind.
fn with<R>(act: impl FnOnce(&mut [Place; KNOWN_MAX]) -> R) -> Option<R> {
    let is_free = || !TABLE.is_busy.swap(true, Ordering::Acquire);
    let is_mine = (0..LOOKS).any(|_| {
        is_free() || {
            core::hint::spin_loop();
            false
        }
    });
    if !is_mine {
        return None;
    }
    // SAFETY: this thread has set `is_busy`.
    let result = act(unsafe { &mut *TABLE.places.get() });
    TABLE.is_busy.store(false, Ordering::Release);
    Some(result)
}

fn order(at: (usize, Id)) -> impl Iterator<Item = usize> {
    // Identifiers of one library are counted up.
    let first = at.1 as usize ^ at.0 >> 12;
    (0..KNOWN_MAX).map(move |step| (first + step) % KNOWN_MAX)
}

fn place_of(places: &[Place; KNOWN_MAX], at: (usize, Id)) -> Option<usize> {
    for index in order(at) {
        let place = &places[index];
        if place.open.as_ref().is_some_and(|open| open.at == at) {
            return Some(index);
        }
        if !place.was_used {
            return None;
        }
    }
    None
}

/// What identifies a dataset of a library.
pub fn key(library: &Library, id: Id) -> (usize, Id) {
    (library.number(), id)
}

/// Adds a dataset. Where there is no place it is not followed.
pub fn add(open: Open) {
    with(|places| {
        let known = place_of(places, open.at);
        let free = || order(open.at).find(|&index| places[index].open.is_none());
        if let Some(index) = known.or_else(free) {
            places[index] = Place { was_used: true, open: Some(open) };
            TABLE.count.fetch_add(usize::from(known.is_none()), Ordering::Relaxed);
        }
    });
}

/// Whether any dataset is followed.
pub fn is_any() -> bool {
    TABLE.count.load(Ordering::Relaxed) > 0
}

/// A dataset, if it is followed.
pub fn find(at: (usize, Id)) -> Option<Open> {
    if !is_any() {
        return None;
    }
    with(|places| places[place_of(places, at)?].open)?
}

/// Changes what is known of a dataset.
pub fn change(at: (usize, Id), act: impl FnOnce(&mut Open)) {
    with(|places| {
        if let Some(index) = place_of(places, at)
            && let Some(open) = &mut places[index].open
        {
            act(open);
        }
    });
}

/// Follows a dataset no more.
pub fn remove(at: (usize, Id)) {
    with(|places| {
        let Some(mut index) = place_of(places, at) else { return };
        TABLE.count.fetch_sub(1, Ordering::Relaxed);
        places[index].open = None;
        // What no search has to go past is as if it had never been in use.
        while !places[(index + 1) % KNOWN_MAX].was_used
            && places[index].was_used
            && places[index].open.is_none()
        {
            places[index] = FRESH;
            index = (index + KNOWN_MAX - 1) % KNOWN_MAX;
        }
    });
}

/// Whether the process has the same dataset open by another identifier.
pub fn is_open_elsewhere(open: &Open) -> bool {
    let is_same =
        |other: &Open| other.at != open.at && (other.file, other.name) == (open.file, open.name);
    let is_any = |places: &mut [Place; KNOWN_MAX]| {
        places.iter().filter_map(|place| place.open.as_ref()).any(is_same)
    };
    with(is_any).unwrap_or(true)
}

/// Calls `act` with those of a library that are followed, of one file.
pub fn for_each(library: &Library, file: FileIdentity, mut act: impl FnMut(Open)) {
    for index in 0..KNOWN_MAX {
        let found = with(|places| places[index].open);
        // Not with the table: what is done calls the library.
        if let Some(Some(open)) = found
            && open.at.0 == library.number()
            && file == open.file
        {
            act(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_hides_nothing() {
        let file = FileIdentity::at(c"/").unwrap();
        let open = |id: Id, name| Open {
            at: (1 << 20, id),
            file,
            name,
            layout: Layout::Contiguous,
            rank: 1,
            extent: [0; RANK_MAX],
            is_writable: true,
            is_settled: false,
            selections: Selections::default(),
        };
        // Three in a row of places.
        let (first, second) = (open(5, 1), open(5 + KNOWN_MAX as Id, 1));
        let third = open(5 + 2 * KNOWN_MAX as Id, 2);
        [first, second, third].into_iter().for_each(add);
        assert!(is_open_elsewhere(&first) && !is_open_elsewhere(&third));
        remove(first.at);
        change(third.at, |open| open.is_settled = true);
        assert!(find(first.at).is_none() && find(second.at).is_some());
        assert!(find(third.at).unwrap().is_settled && !is_open_elsewhere(&second));
        remove(third.at);
        remove(second.at);
        assert!(!is_any() && find(second.at).is_none());
        let is_fresh = |places: &mut [Place; KNOWN_MAX]| places.iter().all(|place| !place.was_used);
        assert_eq!(with(is_fresh), Some(true));
    }
}
