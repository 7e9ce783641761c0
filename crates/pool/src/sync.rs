//! The atomics that the lock-free code uses. The model tests compile the same sources against
//! loom's (see `tests/model.rs`).

pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// One turn of a short wait.
#[inline]
pub fn pause() {
    core::hint::spin_loop();
}
