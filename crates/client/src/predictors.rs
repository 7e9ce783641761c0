//! The prefetch predictors of `placement` for the threads of one process.

use crate::later::{Later, Zeros};
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use forebay_placement::mix;
use forebay_placement::prefetch::{Account, Consumption, Follower, Predictor};
use forebay_pool::clock::Timer;

/// Readers that a process's predictors follow at a time: more than it has threads that read one
/// after the other. Two that share an index begin anew at each other's reads.
const FOLLOWED: usize = 64;

/// How long after its last read a reader counts as one that goes on.
const GOES_ON: Timer = Timer::seconds(1);

/// The reader that a predictor follows: a description (with its generation), and a thread, for
/// those that share a description read different parts.
pub(crate) type Reader = (u64, u32);

/// The predictors of one process.
pub(crate) struct Predictors {
    all: Later<All>,
    /// What all of them may guess in vain.
    pub account: Account,
}

/// 24 KiB.
struct All {
    places: [Place; FOLLOWED],
    /// The last read of each, in milliseconds of the node manager's clock; 0: none.
    read_at: [AtomicU32; FOLLOWED],
}

// SAFETY: a reader and the numbers that are known of it, which are begun with their own zeros.
unsafe impl Zeros for All {
    fn begin(&mut self) {
        self.places.iter_mut().for_each(|place| *place = Place::default());
        self.read_at.iter_mut().for_each(|read_at| *read_at = AtomicU32::new(0));
    }
}

/// What is known of one reader.
#[derive(Default)]
pub(crate) struct Reading {
    whose: Reader,
    pub predictor: Predictor,
    pub consumption: Consumption,
    pub follower: Follower,
    /// The order that it follows, if that was looked for, and if there is one.
    pub order: Option<Option<u32>>,
    /// Blocks that it has read.
    pub blocks: u64,
    /// Of a file with a predictor of its rule: the blocks that the node manager was told of last.
    pub told: Range<u64>,
}

#[derive(Default)]
struct Place {
    /// A thread that finds it in use goes without: it may be a signal handler that interrupted its
    /// user.
    busy: AtomicBool,
    state: UnsafeCell<Reading>,
}

// SAFETY: the state is touched only by the thread that set `busy`.
unsafe impl Sync for Place {}

impl Predictors {
    pub fn new() -> Predictors {
        Predictors { all: Later::new(), account: Account::default() }
    }

    /// Notes that a reader reads at `now_ms`; returns how many have lately.
    pub fn count_readers(&self, reader: Reader, now_ms: u32) -> u64 {
        let Some(all) = self.all.get_or_make() else { return 1 };
        all.read_at[index(reader)].store(now_ms.max(1), Ordering::Relaxed);
        let goes_on_ms = GOES_ON.as_ms();
        let goes_on = |read_at: &&AtomicU32| match read_at.load(Ordering::Relaxed) {
            0 => false,
            read_at => u64::from(now_ms.saturating_sub(read_at)) < goes_on_ms,
        };
        all.read_at.iter().filter(goes_on).count() as u64
    }

    /// Calls `act`, which makes no system call, with what is known of a reader; `None` while that
    /// is in use.
    pub fn with<R>(&self, reader: Reader, act: impl FnOnce(&mut Reading) -> R) -> Option<R> {
        let place = &self.all.get_or_make()?.places[index(reader)];
        if place.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: see `busy`.
        let reading = unsafe { &mut *place.state.get() };
        if reading.whose != reader {
            *reading = Reading { whose: reader, ..Reading::default() };
        }
        let result = act(reading);
        place.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// In a forked child: a thread of the parent may have been at it, and what the parent may guess
    /// in vain is not the child's.
    pub fn forked(&self) {
        if let Some(all) = self.all.get() {
            all.places.iter().for_each(|place| place.busy.store(false, Ordering::Release));
            all.read_at.iter().for_each(|read_at| read_at.store(0, Ordering::Relaxed));
        }
        self.account.begin_anew();
    }
}

/// Where a reader's predictor is.
fn index(reader: Reader) -> usize {
    mix(reader.0 ^ u64::from(reader.1).rotate_left(32)) as usize % FOLLOWED
}
