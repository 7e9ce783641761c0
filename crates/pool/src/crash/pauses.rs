//! Pauses at crash points, see the module above.

use super::armed::matches;
use crate::clock;
use crate::environment::Variable;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fs::{Mode, OFlags};
use rustix::io::IoSlice;

/// What a file that is waited for may take at most to disappear.
const WHILE_NS: u64 = 180_000_000_000;
/// How often it is looked for: seventy processes that wait must leave the processors to the others.
const LOOK_NS: u64 = 5_000_000;

/// Passes of the points that match, in this process.
static PASSED: AtomicU64 = AtomicU64::new(0);
/// Pauses of this process.
static PAUSED: AtomicU64 = AtomicU64::new(0);

enum When {
    /// At this pass.
    At(u64),
    /// At one of so many, by chance.
    OneOf(u64),
}

enum Until {
    /// So many nanoseconds have passed.
    Passed(u64),
    /// The file in [`Pauses::file`] is gone.
    Gone,
}

/// What `FOREBAY_PAUSE` and its companions ask for.
pub(super) struct Pauses {
    name: Variable,
    when: When,
    until: Until,
    file: Variable,
    role: Variable,
    log: Variable,
    seed: u64,
    /// How often this process pauses at most.
    most: u64,
}

impl Pauses {
    /// `None` if nothing is asked for, or not so that it can be understood.
    pub(super) fn asked_for() -> Option<Pauses> {
        let asked = Variable::of(b"FOREBAY_PAUSE=");
        let text = core::str::from_utf8(asked.bytes()).ok()?;
        let mut parts = text.splitn(3, ':');
        let (name, when, until) = (parts.next()?, parts.next()?, parts.next()?);
        let when = match when.strip_prefix("1/") {
            Some(of) => When::OneOf(of.parse().ok().filter(|&of| of > 0)?),
            None => When::At(when.parse().ok()?),
        };
        let file = until.strip_prefix("while=");
        let until = match file {
            Some(_) => Until::Gone,
            None => Until::Passed(until.parse::<u64>().ok()?.checked_mul(1_000_000)?),
        };
        let seed = Variable::of(b"FOREBAY_PAUSE_SEED=");
        let most = Variable::of(b"FOREBAY_PAUSE_MOST=");
        Some(Pauses {
            name: Variable::from(name),
            when,
            until,
            file: Variable::from(file.unwrap_or("")),
            role: Variable::of(b"FOREBAY_PAUSE_IN="),
            log: Variable::of(b"FOREBAY_PAUSE_LOG="),
            seed: core::str::from_utf8(seed.bytes()).ok()?.parse().unwrap_or(1),
            most: core::str::from_utf8(most.bytes()).ok()?.parse().unwrap_or(u64::MAX),
        })
    }

    /// Pauses the thread that passes `name` in a process of `role`, if it is its turn.
    pub(super) fn pass(&self, name: &'static str, role: &[u8]) {
        if !self.role.allows(role) || !matches(self.name.bytes(), name) {
            return;
        }
        let pass = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
        let turn = match self.when {
            When::At(number) => pass == number,
            When::OneOf(of) => self.draw(pass).is_multiple_of(of),
        };
        if !turn || PAUSED.fetch_add(1, Ordering::Relaxed) >= self.most {
            return;
        }
        match self.until {
            Until::Passed(ns) => {
                sleep_fully(ns);
                self.note(name, role);
            }
            Until::Gone if self.is_there() => {
                self.note(name, role);
                let since = clock::monotonic_ns();
                while self.is_there() && clock::monotonic_ns() - since < WHILE_NS {
                    clock::sleep_ns(LOOK_NS);
                }
            }
            Until::Gone => {}
        }
    }

    /// A number for pass `pass` of this thread of this process.
    fn draw(&self, pass: u64) -> u64 {
        let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
        let place =
            (process.as_raw_nonzero().get() as u64) << 32 | thread.as_raw_nonzero().get() as u64;
        // The finalizer of splitmix64.
        let mut mixed =
            self.seed ^ place.rotate_left(17) ^ pass.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn is_there(&self) -> bool {
        rustix::fs::access(self.file.c_str(), rustix::fs::Access::EXISTS).is_ok()
    }

    /// Adds a line to the log.
    fn note(&self, name: &'static str, role: &[u8]) {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let Ok(log) = rustix::fs::openat(rustix::fs::CWD, self.log.c_str(), flags, mode) else {
            return;
        };
        let mut digits = [0u8; 10];
        let pid = decimal(rustix::process::getpid().as_raw_nonzero().get() as u32, &mut digits);
        let line = [role, b" ", name.as_bytes(), b" ", pid, b"\n"].map(IoSlice::new);
        let _ = rustix::io::writev(log, &line);
    }
}

/// Sleeps for all of `ns` nanoseconds, whatever signals come.
fn sleep_fully(ns: u64) {
    let since = clock::monotonic_ns();
    while let left @ 1.. = ns.saturating_sub(clock::monotonic_ns() - since) {
        clock::sleep_ns(left);
    }
}

fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[first..];
        }
    }
}
