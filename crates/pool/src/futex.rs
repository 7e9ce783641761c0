//! Sleeping and waking across processes on a word of the segment.
//!
//! ```
//! use forebay_pool::futex;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! let word = AtomicU32::new(0);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         word.store(1, Ordering::Release);
//!         futex::wake_all(&word);
//!     });
//!     while word.load(Ordering::Acquire) == 0 {
//!         futex::wait(&word, 0, 1000);
//!     }
//! });
//! ```

use crate::sync::AtomicU32;
use rustix::thread::futex::{Flags, Timespec, wait as futex_wait, wake as futex_wake};

/// Sleeps while `word` is `seen`, at most `timeout_ms`. May return early for no reason.
pub fn wait(word: &AtomicU32, seen: u32, timeout_ms: u64) {
    let timeout = Timespec {
        tv_sec: (timeout_ms / 1000) as i64,
        tv_nsec: (timeout_ms % 1000 * 1_000_000) as _,
    };
    let _ = futex_wait(word, Flags::empty(), seen, Some(&timeout));
}

/// Wakes all threads that sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    let _ = futex_wake(word, Flags::empty(), i32::MAX as u32);
}
