//! Time, through the kernel's vDSO: no system call.
//!
//! By way of the C library: rustix looks for the vDSO itself, and tools that run a program on an
//! emulated processor (valgrind) have hidden it.

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

/// Nanoseconds since 1970 of a file's time. Times before that wrap, and come back by [`parted_ns`].
pub fn joined_ns(seconds: i64, nanoseconds: i64) -> u64 {
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds) as u64
}

/// Seconds and nanoseconds of a file's time.
pub fn parted_ns(ns: u64) -> (i64, i64) {
    ((ns as i64).div_euclid(1_000_000_000), (ns as i64).rem_euclid(1_000_000_000))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_survive_the_wrap() {
        assert_eq!(stamp_age(5, u32::MAX - 4), 10);
        assert_eq!(stamp_age(5, 6), 0);
        assert_eq!(stamp_age(7, 7), 0);
    }
}
