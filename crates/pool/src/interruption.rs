//! Signal handlers are held off while their thread is inside a file or the table.
//!
//! A handler of the program's that ran between two steps of its own thread would find that thread's
//! locks held and a change half made; one that jumped away would leave both for ever. So every
//! shared lock is counted here. The code that is about to call a handler asks [`is_inside`], and if
//! so has the kernel keep the signal and all others until the thread has left, see [`hold_off`].
//!
//! A thread that waits inside for a process that does not go on must not keep a handler waiting for
//! ever: it looks whether one [`is_held_off`], and if so gives the wait up and leaves. What comes
//! then is said by [`restarts`]: the call is made again where all handlers that ran ask for that
//! (SA_RESTART), as in the kernel, and fails with EINTR otherwise.
//!
//! ```
//! use forebay_pool::interruption::{is_held_off, is_inside};
//!
//! // A thread that has no shared lock lets handlers run.
//! assert!(!is_inside() && !is_held_off());
//! ```

use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

const SIG_SETMASK: i32 = 2;

unsafe extern "C" {
    /// A `sigset_t` has 1024 bits, of which the kernel knows the first 64.
    fn pthread_sigmask(how: i32, set: *const [u64; 16], old: *mut [u64; 16]) -> i32;
}

pub(crate) struct Thread {
    /// Shared locks.
    depth: Cell<u32>,
    /// Whether a handler was held off. A word of its own: a handler may come, and set it, while
    /// the depth is being changed.
    held_off: Cell<bool>,
    /// The signals that were blocked before all were.
    mask: Cell<u64>,
    /// Handlers that have run without SA_RESTART.
    ended: Cell<u32>,
    /// `ended`, plus one, before a wait was given up; 0 if none was.
    gave_up: Cell<u64>,
}

impl Thread {
    /// Whether the thread has entered more than once, and so may have a shared lock already.
    #[inline(always)]
    pub(crate) fn is_nested(&self) -> bool {
        self.depth.get() > 1
    }
}

thread_local! {
    // One structure: its address is looked up once for each shared lock.
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            held_off: Cell::new(false),
            mask: Cell::new(0),
            ended: Cell::new(0),
            gave_up: Cell::new(0),
        }
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

/// Whether a handler waits until the calling thread has left.
pub fn is_held_off() -> bool {
    THREAD.with(|thread| thread.held_off.get())
}

/// Forgets what a vforked child has left in this thread's storage, which it shared: it may have
/// been killed inside a file. The thread was not inside anything.
pub fn child_is_gone() {
    THREAD.with(|thread| {
        thread.depth.set(0);
        thread.held_off.set(false);
        thread.gave_up.set(0);
    });
}

/// Notes that a handler without SA_RESTART is about to run.
pub fn note_end() {
    THREAD.with(|thread| thread.ended.set(thread.ended.get().wrapping_add(1)));
}

/// How many handlers without SA_RESTART the calling thread has run.
pub fn ends() -> u32 {
    THREAD.with(|thread| thread.ended.get())
}

/// Notes that the calling thread gives a wait up, which began when [`ends`] was `ends`. The call
/// then leaves all that it is in, and asks [`restarts`].
pub fn give_up(ends: u32) {
    THREAD.with(|thread| thread.gave_up.set(u64::from(ends) + 1));
}

/// For a call that gave a wait up and has left: whether it is to be made again. False as long as
/// the thread is inside anything else: then that decides. To be asked once.
#[cold]
pub fn restarts() -> bool {
    THREAD.with(|thread| {
        if thread.depth.get() > 0 {
            return false;
        }
        let before = thread.gave_up.replace(0);
        before == u64::from(thread.ended.get()) + 1
    })
}

/// Calls `act` while no handler of the program's runs in this thread.
#[inline]
pub fn without_handlers<R>(act: impl FnOnce() -> R) -> R {
    let thread = enter();
    let result = act();
    // SAFETY: from `enter`, on this thread.
    unsafe { leave(thread) };
    result
}

/// Before a shared lock is claimed. Returns what [`leave`] takes, so that the thread's storage is
/// looked up once for both.
#[inline]
pub(crate) fn enter() -> *const Thread {
    let thread = THREAD.with(|thread| {
        thread.depth.set(thread.depth.get() + 1);
        core::ptr::from_ref(thread)
    });
    compiler_fence(Ordering::SeqCst);
    thread
}

/// While a thread that has entered, and has no shared lock yet, waits for one: handlers that are
/// held off run. One that jumps away leaves nothing.
pub(crate) fn run_held_off() {
    THREAD.with(|thread| {
        if thread.depth.get() == 1 && thread.held_off.get() {
            thread.depth.set(0);
            resume(thread);
            thread.depth.set(1);
        }
    });
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

    fn end(thread: *const Thread) {
        // SAFETY: entered by this thread.
        unsafe { leave(thread) };
    }

    #[test]
    fn a_thread_is_inside_until_it_left_as_often_as_it_entered() {
        assert!(!is_inside());
        let (first, second) = (enter(), enter());
        end(second);
        assert!(is_inside());
        end(first);
        assert!(!is_inside());
    }

    #[test]
    fn a_call_restarts_unless_a_handler_ended_it() {
        assert!(!restarts(), "no wait was given up");
        give_up(ends());
        let first = enter();
        assert!(!restarts(), "not while it is inside");
        end(first);
        assert!(restarts());
        assert!(!restarts(), "only once");
        give_up(ends());
        note_end();
        assert!(!restarts());
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
        end(second);
        assert_eq!(blocked(), before);
        end(first);
        assert_eq!(blocked(), before | SIGUSR1);
        hold_off(before);
        let third = enter();
        end(third);
        assert_eq!(blocked(), before);
    }
}
