//! Whether the node manager that is waited for goes on.

use core::sync::atomic::Ordering;
use forebay_pool::Segment;
use forebay_pool::clock::{self, Timer};
use forebay_pool::liveness::{self, Halt};

/// How long a manager that is stopped is waited for: long enough for a debugger's moment, short enough
/// for a program to end in order before a batch system loses patience.
const STOPPED_PATIENCE: Timer = Timer::seconds(30);

/// What is seen of the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// It goes on, or may do so in a moment.
    AtWork,
    /// There is none.
    Gone,
    /// It was stopped (SIGSTOP, a debugger) a while ago.
    Stopped,
}

/// A look at the manager now and then, for one wait.
#[derive(Default)]
pub(crate) struct Vigil {
    /// Its clock when that was last seen to move, and ours then.
    beat: u32,
    since_ns: u64,
}

impl Vigil {
    /// To be called while nothing comes.
    pub fn look(&mut self, segment: &Segment) -> Seen {
        let (beat, now) = (segment.header().now_ms.load(Ordering::Relaxed), clock::monotonic_ns());
        if self.since_ns == 0 || beat != self.beat {
            (self.beat, self.since_ns) = (beat, now);
        }
        if !segment.manager_is_alive() {
            return Seen::Gone;
        }
        let pid = segment.header().manager_pid.load(Ordering::Acquire);
        let stands = now.saturating_sub(self.since_ns) > STOPPED_PATIENCE.as_ns();
        match stands && liveness::halt(pid) == Some(Halt::Stopped) {
            true => Seen::Stopped,
            false => Seen::AtWork,
        }
    }
}
