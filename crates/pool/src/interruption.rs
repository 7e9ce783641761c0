//! Signal handlers are held off while their thread is inside a file or the table.
//!
//! A handler of the program's that ran between two steps of its own thread would find that
//! thread's locks held and a change half made; one that jumped away would leave both for ever. So
//! every presence is counted here. Whoever is about to call a handler asks [`is_inside`], and if so
//! has the kernel keep the signal and all others until the thread has left, see [`hold_off`].

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

const SIG_SETMASK: i32 = 2;

unsafe extern "C" {
    /// A `sigset_t` has 1024 bits, of which the kernel knows the first 64.
    fn pthread_sigmask(how: i32, set: *const [u64; 16], old: *mut [u64; 16]) -> i32;
}

pub(crate) struct Thread {
    /// Presences.
    depth: Cell<u32>,
    /// Whether a handler was held off. A word of its own: a handler may come, and set it, while
    /// the depth is being changed.
    held_off: Cell<bool>,
    /// The signals that were blocked before all were.
    mask: Cell<u64>,
}

thread_local! {
    // One structure: its address is looked up once for each presence.
    static THREAD: Thread = const {
        Thread { depth: Cell::new(0), held_off: Cell::new(false), mask: Cell::new(0) }
    };
}

/// Whether the calling thread is inside a file or the table.
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.depth.get() > 0)
}

/// For a handler that came while its thread [`is_inside`], and that makes the interrupted code
/// go on with all signals blocked: `mask` is what that code had blocked. It is put back when the
/// thread leaves, and the kernel then delivers what came meanwhile.
pub fn hold_off(mask: u64) {
    THREAD.with(|thread| {
        thread.mask.set(mask);
        thread.held_off.set(true);
    });
}

/// Before a presence is claimed. Returns what [`leave`] takes, so that the thread's storage is looked
/// up once for both.
#[inline]
pub(crate) fn enter() -> *const Thread {
    let thread = THREAD.with(|thread| {
        thread.depth.set(thread.depth.get() + 1);
        core::ptr::from_ref(thread)
    });
    compiler_fence(Ordering::SeqCst);
    thread
}

/// After it was given up.
///
/// # Safety
/// `thread` is from [`enter`], on the same thread.
#[inline]
pub(crate) unsafe fn leave(thread: *const Thread) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: it has no destructor, so it is there as long as the thread.
    let thread = unsafe { &*thread };
    let depth = thread.depth.get().saturating_sub(1);
    thread.depth.set(depth);
    compiler_fence(Ordering::SeqCst);
    if depth == 0 && thread.held_off.get() {
        resume(thread);
    }
}

#[cold]
fn resume(thread: &Thread) {
    thread.held_off.set(false);
    let mut set = [0; 16];
    set[0] = thread.mask.get();
    compiler_fence(Ordering::SeqCst);
    // SAFETY: a set of the C library's size; what is pending is delivered before it returns.
    unsafe { pthread_sigmask(SIG_SETMASK, &set, core::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_inside_until_it_left_as_often_as_it_entered() {
        assert!(!is_inside());
        let (first, second) = (enter(), enter());
        unsafe { leave(second) };
        assert!(is_inside());
        unsafe { leave(first) };
        assert!(!is_inside());
    }

    #[test]
    fn the_mask_is_put_back_at_the_last_leave() {
        const SIGUSR1: u64 = 1 << 9;
        let blocked = || {
            let mut set = [0; 16];
            // SAFETY: reads the mask.
            unsafe { pthread_sigmask(SIG_SETMASK, core::ptr::null(), &mut set) };
            set[0]
        };
        let before = blocked();
        let (first, second) = (enter(), enter());
        hold_off(before | SIGUSR1);
        unsafe { leave(second) };
        assert_eq!(blocked(), before);
        unsafe { leave(first) };
        assert_eq!(blocked(), before | SIGUSR1);
        hold_off(before);
        let third = enter();
        unsafe { leave(third) };
        assert_eq!(blocked(), before);
    }
}
