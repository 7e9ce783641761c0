//! The prefetch predictors of `placement` for the threads of one process.

use crate::later::{Later, Zeros};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use forebay_placement::mix;
use forebay_placement::prefetch::{Ahead, Touches};

/// Readers that a process's predictors follow at a time: more than it has threads that read one
/// after the other. Two that share an index begin anew at each other's reads.
const FOLLOWED: usize = 64;

/// The reader that a predictor follows: a description (with its generation), and a thread, for
/// those that share a description read different parts.
type Reader = (u64, u32);

/// The predictors of one process.
pub(crate) struct Predictors(Later<All>);

/// 6 KiB.
struct All([Predictor; FOLLOWED]);

// SAFETY: a reader and the numbers that are known of it, which are begun with their own zeros.
unsafe impl Zeros for All {
    fn begin(&mut self) {
        self.0.iter_mut().for_each(|place| *place = Predictor::default());
    }
}

#[derive(Default)]
struct Predictor {
    /// A thread that finds it in use goes without: it may be a signal handler that interrupted its
    /// user.
    busy: AtomicBool,
    state: UnsafeCell<(Reader, Touches)>,
}

// SAFETY: the state is touched only by the thread that set `busy`.
unsafe impl Sync for Predictor {}

impl Predictors {
    pub fn new() -> Predictors {
        Predictors(Later::new())
    }

    /// Notes a read, and says what `reader` will probably read next.
    pub fn touch(&self, reader: Reader, offset: u64, bytes: u64, block: u64) -> Option<Ahead> {
        let index = mix(reader.0 ^ u64::from(reader.1).rotate_left(32)) as usize % FOLLOWED;
        let predictor = &self.0.get_or_make()?.0[index];
        if predictor.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: see `busy`.
        let (whose, touches) = unsafe { &mut *predictor.state.get() };
        if *whose != reader {
            (*whose, *touches) = (reader, Touches::default());
        }
        let ahead = touches.on_touch(offset, bytes, block);
        predictor.busy.store(false, Ordering::Release);
        ahead
    }

    /// In a forked child: a thread of the parent may have been at it.
    pub fn forked(&self) {
        let all = self.0.get().map_or(&[][..], |all| &all.0);
        all.iter().for_each(|predictor| predictor.busy.store(false, Ordering::Release));
    }
}
