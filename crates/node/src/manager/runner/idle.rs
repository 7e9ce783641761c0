//! Whether the machine has CPU that nothing uses: what operations on buffered data may have.

use forebay_pool::clock::Timer;
use std::time::Instant;

/// How long is looked back at least.
const SPAN: Timer = Timer::ms(500);
/// Of all CPU, one part in so many is idle, and at least half of one core.
const IDLE_PART: u64 = 4;

/// What the kernel has counted of all cores' time, in its ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    /// From /proc/stat: its first line is of all cores.
    fn of(text: &str) -> Option<Ticks> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests count as user.
        let counted = numbers.get(..8)?;
        Some(Ticks { all: counted.iter().sum(), idle: counted[3] + counted[4] })
    }

    fn now() -> Option<Ticks> {
        Ticks::of(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Whether enough was idle since `before`, of so many cores.
    fn is_idle_since(self, before: Ticks, cores: u64) -> bool {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        idle * IDLE_PART >= all && idle * 2 * cores >= all
    }
}

/// Looks at the time that all cores were idle.
#[derive(Debug, Default)]
pub(super) struct Idle {
    before: Option<(Instant, Ticks)>,
    is_idle: bool,
}

impl Idle {
    /// Whether there was idle CPU lately; where that cannot be seen, there is.
    pub fn look(&mut self) -> bool {
        let Some(now) = Ticks::now() else { return true };
        match self.before {
            Some((at, _)) if at.elapsed() < SPAN.as_duration() => return self.is_idle,
            // What was long ago says nothing.
            Some((at, before)) if at.elapsed() < 8 * SPAN.as_duration() => {
                let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
                self.is_idle = now.is_idle_since(before, cores as u64);
            }
            _ => self.is_idle = false,
        }
        self.before = Some((Instant::now(), now));
        self.is_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_and_compared() {
        let text = "cpu  10 20 30 400 50 1 2 3 0 0\ncpu0 1 2 3 4\n";
        let before = Ticks::of(text).unwrap();
        assert_eq!(before, Ticks { all: 516, idle: 450 });
        assert_eq!(Ticks::of("cpu0 1 2"), None);
        let after = |busy, idle| Ticks { all: before.all + busy + idle, idle: before.idle + idle };
        assert!(after(0, 100).is_idle_since(before, 1));
        assert!(!after(100, 0).is_idle_since(before, 4));
        // A quarter of eight cores is two, a quarter of one core is too little.
        assert!(after(600, 200).is_idle_since(before, 8));
        assert!(!after(75, 25).is_idle_since(before, 1));
    }
}
