//! Whether the calling thread is alone in its process.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

static IS_ALONE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// Gives the byte of the C library's that is not 0 while the process has one thread, as far as it
/// has made the others (`__libc_single_threaded`, from glibc 2.32 on).
///
/// # Safety
/// It is that, or null.
pub unsafe fn watch_threads(byte: *mut AtomicU8) {
    IS_ALONE.store(byte, Ordering::Relaxed);
}

/// Whether another thread may run; where that is not known, too.
pub(crate) fn may_be_several() -> bool {
    // SAFETY: the C library's, or null.
    let byte = unsafe { IS_ALONE.load(Ordering::Relaxed).as_ref() };
    byte.is_none_or(|byte| byte.load(Ordering::Relaxed) == 0)
}
