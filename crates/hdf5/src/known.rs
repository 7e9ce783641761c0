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
    /// It may be written, and so be elsewhere when it is closed.
    pub is_writable: bool,
    /// Where it lies is known for good.
    pub is_settled: bool,
    /// What was read of it last.
    pub selections: Selections,
}

#[derive(Clone, Copy)]
enum Place {
    /// Never in use: a search ends here.
    Fresh,
    /// In use no more.
    Left,
    Taken(Open),
}

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
    places: UnsafeCell::new([Place::Fresh; KNOWN_MAX]),
};

/// Calls `act` with the table; `None` if another thread keeps it, which a fork may have left behind.
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
        match &places[index] {
            Place::Fresh => return None,
            Place::Taken(open) if open.at == at => return Some(index),
            _ => {}
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
        let free = || order(open.at).find(|&index| !matches!(places[index], Place::Taken(_)));
        if let Some(index) = known.or_else(free) {
            places[index] = Place::Taken(open);
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
    with(|places| match places[place_of(places, at)?] {
        Place::Taken(open) => Some(open),
        _ => None,
    })?
}

/// Changes what is known of a dataset.
pub fn change(at: (usize, Id), act: impl FnOnce(&mut Open)) {
    with(|places| {
        if let Some(Place::Taken(open)) = place_of(places, at).map(|index| &mut places[index]) {
            act(open);
        }
    });
}

/// Follows a dataset no more.
pub fn remove(at: (usize, Id)) {
    with(|places| {
        let Some(mut index) = place_of(places, at) else { return };
        TABLE.count.fetch_sub(1, Ordering::Relaxed);
        places[index] = Place::Left;
        // What no search has to go past is as if it had never been in use.
        while matches!(places[(index + 1) % KNOWN_MAX], Place::Fresh)
            && matches!(places[index], Place::Left)
        {
            places[index] = Place::Fresh;
            index = (index + KNOWN_MAX - 1) % KNOWN_MAX;
        }
    });
}

/// Whether the process has the same dataset open by another identifier.
pub fn is_open_elsewhere(open: &Open) -> bool {
    let is_same = |place: &Place| match place {
        Place::Taken(other) => {
            other.at != open.at && (other.file, other.name) == (open.file, open.name)
        }
        _ => false,
    };
    with(|places| places.iter().any(is_same)).unwrap_or(true)
}

/// Calls `act` with those of a library that are followed, of one file.
pub fn for_each(library: &Library, file: FileIdentity, mut act: impl FnMut(Open)) {
    for index in 0..KNOWN_MAX {
        let found = with(|places| match places[index] {
            Place::Taken(open) => Some(open),
            _ => None,
        });
        // Not with the table: what is done calls the library.
        if let Some(Some(open)) = found
            && open.at.0 == library.number()
            && file == open.file
        {
            act(open);
        }
    }
}
