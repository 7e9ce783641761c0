//! Marks of phases for programs of Rust: what `forebay_phase_begin` and `forebay_phase_end` of the
//! header are for others.
//!
//! ```
//! use forebay_capi::phase::Phase;
//!
//! let step = Phase::begin("forward");
//! // ... compute ...
//! drop(step);
//! ```

use crate::session::services;
use core::marker::PhantomData;

/// A phase of the calling thread, from [`Phase::begin`] until it is dropped. `forebay trace` shows
/// it; elsewhere it does nothing. It is not [`Send`]: phases of a thread lie within each other.
#[derive(Debug)]
#[must_use = "a phase ends when it is dropped"]
pub struct Phase {
    of_thread: PhantomData<*mut ()>,
}

impl Phase {
    /// Begins a phase within those that the thread is in. The first 63 bytes of its name are kept.
    /// Any thread may call it; no lock, no system call but a thread's first one.
    pub fn begin(name: &str) -> Phase {
        if let Some(services) = services() {
            // SAFETY: a text of this length.
            unsafe { (services.begin_phase)(name.as_ptr(), name.len()) };
        }
        Phase { of_thread: PhantomData }
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if let Some(services) = services() {
            (services.end_phase)();
        }
    }
}
