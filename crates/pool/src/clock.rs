//! Time, through the kernel's vDSO: no system call.
//!
//! By way of the C library: rustix looks for the vDSO itself, and tools that run a program on an
//! emulated processor (valgrind) have hidden it.
//!
//! ```
//! use forebay_pool::clock::{joined_ns, parted_ns, stamp_age};
//!
//! assert_eq!(joined_ns(2, 5), 2_000_000_005);
//! assert_eq!(parted_ns(2_000_000_005), (2, 5));
//! // Stamps wrap after 49 days.
//! assert_eq!(stamp_age(5, u32::MAX - 4), 10);
//! ```

use rustix::time::{ClockId, Timespec};

unsafe extern "C" {
    fn clock_gettime(clock: i32, now: *mut Timespec) -> i32;
}

/// Nanoseconds of CLOCK_REALTIME at the resolution of the kernel's tick, which is what the
/// kernel itself stamps files with.
#[inline]
pub fn realtime_coarse_ns() -> u64 {
    nanoseconds(ClockId::RealtimeCoarse)
}

/// Nanoseconds of CLOCK_REALTIME.
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of CLOCK_BOOTTIME, by which the kernel notes when processes start.
pub fn boottime_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// Nanoseconds since 1970 of a file's time. Times before that wrap, and come back by [`parted_ns`].
pub fn joined_ns(seconds: i64, nanoseconds: i64) -> u64 {
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds) as u64
}

/// Seconds and nanoseconds of a file's time.
pub fn parted_ns(ns: u64) -> (i64, i64) {
    ((ns as i64).div_euclid(1_000_000_000), (ns as i64).rem_euclid(1_000_000_000))
}

/// Year, month and day so many days after 1970-01-01, in the Gregorian calendar.
pub fn date(days: u64) -> (u64, u64, u64) {
    // Years from March on, so that the leap day is the last; in 400 of them there are 146097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        ..10 => (year, month + 3),
        _ => (year + 1, month - 9),
    };
    (era * 400 + year, month, day)
}

/// Milliseconds of a wrapping clock, for ages up to 24 days: the stamp for `ns` nanoseconds.
#[inline]
pub fn stamp(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}

/// Milliseconds from `earlier` to `later`, zero if `earlier` is the later one.
pub fn stamp_age(later: u32, earlier: u32) -> u32 {
    let age = later.wrapping_sub(earlier);
    if age > u32::MAX / 2 { 0 } else { age }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let mut now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a `struct timespec`, whose layout rustix's has on 64 bits.
    unsafe { clock_gettime(clock as i32, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps for `ns` nanoseconds; a signal may end it early.
pub fn sleep_ns(ns: u64) {
    let _ = rustix::thread::nanosleep(&rustix::time::Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
}

/// How long something is waited for, or how often it is done: what a pause of another process can
/// outlast.
///
/// In builds with debug assertions `FOREBAY_TIME_SCALE=N` divides all of them by N, those above
/// [`Timer::LONG`] as if they were that, so that with N = 50 none exceeds 80 ms. Without the
/// variable, and in all other builds, a timer is what it says. Clients and managers take every time
/// constant from here but for naps that only spare the processor (in [`crate::backoff::Backoff`]),
/// times that change no state (how long hotness halves), and what the user sets;
/// `crates/cli/tests/house/workspace.rs` looks for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timer {
    ns: u64,
}

impl Timer {
    /// Longer ones are scaled as if they were this long.
    pub const LONG: Timer = Timer::seconds(4);

    /// So many milliseconds.
    pub const fn ms(ms: u64) -> Timer {
        Timer { ns: ms * 1_000_000 }
    }

    /// So many seconds.
    pub const fn seconds(seconds: u64) -> Timer {
        Timer::ms(seconds * 1000)
    }

    /// In nanoseconds.
    pub fn as_ns(self) -> u64 {
        self.scaled(time_scale()).ns
    }

    /// In milliseconds, rounded up.
    pub fn as_ms(self) -> u64 {
        self.as_ns().div_ceil(1_000_000)
    }

    /// In milliseconds of [`stamp`], rounded up.
    pub fn as_stamp(self) -> u32 {
        self.as_ms().min(u32::MAX.into()) as u32
    }

    /// As the standard library has it.
    pub fn as_duration(self) -> core::time::Duration {
        core::time::Duration::from_nanos(self.as_ns())
    }

    const fn scaled(self, scale: u64) -> Timer {
        if scale <= 1 {
            return self;
        }
        let ns = if self.ns > Timer::LONG.ns { Timer::LONG.ns } else { self.ns };
        Timer { ns: ns / scale }
    }
}

/// By what all timers are divided.
#[cfg(debug_assertions)]
fn time_scale() -> u64 {
    static SCALE: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SCALE.get_or_init(|| {
        let word = crate::environment::Variable::of(b"FOREBAY_TIME_SCALE=");
        core::str::from_utf8(word.bytes()).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
    })
}

#[cfg(not(debug_assertions))]
const fn time_scale() -> u64 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_timer_is_shorter_than_a_pause_of_100_ms() {
        let scaled = |timer: Timer| timer.scaled(50).ns;
        assert_eq!(scaled(Timer::ms(100)), 2_000_000);
        assert_eq!(scaled(Timer::seconds(1)), 20_000_000);
        assert_eq!(scaled(Timer::seconds(600)), 80_000_000);
        assert_eq!(Timer::seconds(600).scaled(1), Timer::seconds(600));
        assert_eq!((Timer::ms(1).as_ms(), Timer::ms(3).scaled(50).as_ms()), (1, 1));
        assert_eq!(Timer::ms(250).as_duration(), core::time::Duration::from_millis(250));
    }

    #[test]
    fn ages_survive_the_wrap() {
        assert_eq!(stamp_age(5, u32::MAX - 4), 10);
        assert_eq!(stamp_age(5, 6), 0);
        assert_eq!(stamp_age(7, 7), 0);
    }
}
