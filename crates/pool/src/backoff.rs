//! How a thread waits for something that another one holds.
//!
//! ```
//! use forebay_pool::backoff::Backoff;
//!
//! let mut backoff = Backoff::default();
//! let lock = std::sync::atomic::AtomicBool::new(false);
//! while lock.load(std::sync::atomic::Ordering::Acquire) && !backoff.is_spent() {
//!     backoff.wait();
//! }
//! assert!(!backoff.is_spent());
//! ```

use crate::clock::{self, Timer};
use crate::sync::pause;
use core::cell::Cell;

/// How a wait for something held goes on: first spinning, then yielding, then short sleeps, and
/// longer ones while the process that holds it is stopped.
#[derive(Default)]
pub struct Backoff {
    turns: u32,
    is_holder_stopped: Cell<bool>,
    /// When the first sleep began.
    since_ns: u64,
}

/// Turns of a wait after which a holder that goes on would have let go: two milliseconds at least.
const MOMENT: u32 = 150;
/// Turns after which a holder is not waited for while a signal handler is held off: four seconds at
/// least. One that is stopped has not to be waited for that long, but may keep others waiting that
/// are not.
const LONG: u32 = 40_000;
/// How long a sleep is, and one while the holder is stopped: many may wait for that, and would take
/// the processors from those that do not. Others are looked for often: what they hold they may let
/// go for a moment only.
const SLEEP_NS: u64 = 100_000;
const SLEEP_STOPPED_NS: u64 = 10_000_000;
/// How long a node manager that is stopped is waited for: long enough for a debugger's moment,
/// short enough for a program to end in order before a batch system kills it.
pub const STOPPED_TIMEOUT: Timer = Timer::seconds(30);

impl Backoff {
    /// Of a thread that has waited for a moment already: one try.
    pub fn spent() -> Backoff {
        Backoff { turns: MOMENT, ..Backoff::default() }
    }

    /// Of a thread that comes back to what it has waited for: a millisecond.
    pub fn nearly_spent() -> Backoff {
        Backoff { turns: MOMENT - 10, ..Backoff::default() }
    }

    /// Whether the holder has been waited for for a moment: it may be stopped, and is not to be
    /// waited for by threads that have others to serve.
    pub fn is_spent(&self) -> bool {
        self.turns >= MOMENT
    }

    /// Whether the wait has taken so long that a signal may end it.
    pub(crate) fn is_long(&self) -> bool {
        self.turns >= LONG
    }

    /// Whether a node manager that is stopped has been waited for long enough.
    pub(crate) fn is_over(&self) -> bool {
        self.since_ns != 0
            && clock::monotonic_ns().saturating_sub(self.since_ns) > STOPPED_TIMEOUT.as_ns()
    }

    /// Notes whether the process of the holder is stopped, for sleeps from now on.
    pub(crate) fn note_stopped(&self, is_stopped: bool) {
        self.is_holder_stopped.set(is_stopped);
    }

    /// Waits a little. Returns true now and then, when it is worth asking whether the holder
    /// still lives.
    pub fn wait(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            0..=64 => pause(),
            65..=128 => rustix::thread::sched_yield(),
            _ => {
                if self.since_ns == 0 {
                    self.since_ns = clock::monotonic_ns();
                }
                if self.is_holder_stopped.get() {
                    clock::sleep_ns(SLEEP_STOPPED_NS);
                    return true;
                }
                clock::sleep_ns(SLEEP_NS);
                return self.turns.is_multiple_of(64);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes that wait for a stopped one take no processor from those that do not, and ask each
    /// time whether it goes on.
    #[test]
    fn a_wait_for_a_stopped_process_sleeps_longer_until_that_goes_on() {
        let mut backoff = Backoff::nearly_spent();
        let took = |backoff: &mut Backoff| {
            let since = std::time::Instant::now();
            (backoff.wait(), since.elapsed().as_millis() >= 10)
        };
        assert!((0..20).filter(|_| backoff.wait()).count() < 2);
        backoff.note_stopped(true);
        assert_eq!([took(&mut backoff), took(&mut backoff)], [(true, true); 2]);
        backoff.note_stopped(false);
        assert!((0..200).map(|_| took(&mut backoff)).filter(|took| took.0).count() <= 4);
    }
}
