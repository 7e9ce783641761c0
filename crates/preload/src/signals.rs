//! The program's signal handlers, entered through ours: one that comes while its thread is inside
//! a file is held off until it has left.
//!
//! The kernel then keeps the signal, and all others, for that thread; nothing is queued here.
//! Handlers of faults are the program's alone: a fault cannot wait.

use crate::errno::set_errno;
use crate::real::{aliases, real};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use forebay_client::interruption;
use libc::{c_int, c_long, c_void, sighandler_t, siginfo_t, ucontext_t};
use rustix::io::Errno;

/// Signal numbers end at 64.
const SIGNALS: usize = 65;

/// What the program asked for.
struct Wanted {
    handler: AtomicUsize,
    /// SA_SIGINFO and SA_RESETHAND, which the kernel does not have, and SA_RESTART, which it has.
    flags: AtomicI32,
}

static WANTED: [Wanted; SIGNALS] =
    [const { Wanted { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

/// Whether any handler was ever set here.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Notes that the program makes system call `number`, which may set one.
pub(crate) fn is_called(number: c_long) {
    if number == libc::SYS_rt_sigaction {
        HANDLED.store(true, Ordering::Relaxed);
    }
}

/// Whether a handler may run in this process.
pub(crate) fn may_be_handled() -> bool {
    HANDLED.load(Ordering::Relaxed)
}

/// Flags that are kept from the kernel.
const KEPT: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND;

const fn bit(number: c_int) -> u64 {
    1 << (number - 1)
}

/// Signals of faults, and those by which the C library cancels threads and changes users.
const UNTOUCHED: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS)
    | bit(32)
    | bit(33);

type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

fn entrance() -> usize {
    enter as Handler as usize
}

/// One that says nothing: the default action, no flags, an empty mask.
fn no_action() -> libc::sigaction {
    // SAFETY: a struct of numbers, and of a function that may be absent.
    unsafe { core::mem::zeroed() }
}

/// Where the kernel enters. A handler may jump away, or end the thread.
unsafe extern "C-unwind" fn enter(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: what the kernel has entered this handler with.
    if interruption::is_inside() && unsafe { hold_off(number, info, context) } {
        return;
    }
    let wanted = &WANTED[number as usize % SIGNALS];
    if wanted.flags.load(Ordering::Acquire) & libc::SA_RESTART == 0 {
        interruption::note_end();
    }
    if wanted.flags.load(Ordering::Acquire) & libc::SA_RESETHAND != 0 {
        // SAFETY: a whole action; what it replaces is not asked for.
        unsafe { real_sigaction(number, &no_action(), core::ptr::null_mut()) };
    }
    let handler = wanted.handler.load(Ordering::Acquire);
    if handler != 0 {
        // SAFETY: the program's handler, with what the kernel gave for it. One of one argument
        // ignores the other two.
        unsafe { core::mem::transmute::<usize, Handler>(handler)(number, info, context) };
    }
}

/// Gives the signal back to the kernel, and blocks all in the code that it interrupted. False if
/// the kernel does not take it.
///
/// # Safety
/// What the kernel has entered a handler with.
unsafe fn hold_off(number: c_int, info: *mut siginfo_t, context: *mut c_void) -> bool {
    let errno = crate::errno::errno();
    // At once, for this handler as well: with SA_NODEFER it would come again here.
    // SAFETY: a set is numbers, the first of them for all 64 signals; the mask is this thread's.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        (&raw mut all).cast::<u64>().write(!UNTOUCHED);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, core::ptr::null_mut());
    }
    let process = rustix::process::getpid().as_raw_pid();
    let thread = rustix::thread::gettid().as_raw_pid();
    let queued = real!(c"syscall"(libc::SYS_rt_tgsigqueueinfo => i64, process => c_int, thread => c_int, number => c_int, info => *mut siginfo_t) -> i64);
    if queued == 0 {
        // SAFETY: the kernel's state of the interrupted code, in which a mask is one word.
        let mask =
            unsafe { &mut *(&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>() };
        // One that came in between has noted this handler's mask; this one is the program's.
        interruption::hold_off(*mask);
        *mask |= !UNTOUCHED;
    }
    crate::errno::restore_errno(errno);
    queued == 0
}

/// The C library's own.
///
/// # Safety
/// As of sigaction(2).
unsafe fn real_sigaction(
    number: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    real!(c"sigaction"(number => c_int, new => *const libc::sigaction, old => *mut libc::sigaction) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    number: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null, or an action that the C library would read as well.
    let mut changed = unsafe { new.as_ref() }.copied();
    let is_handler =
        |new: &libc::sigaction| !matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if changed.as_ref().is_some_and(is_handler) {
        HANDLED.store(true, Ordering::Relaxed);
        // A handler may come while the heap is locked, and open a file.
        crate::session::settle();
    }
    let ours = (1..SIGNALS as c_int).contains(&number) && UNTOUCHED & bit(number) == 0;
    if !ours || !crate::session::is_attached() {
        // SAFETY: the program's call.
        return unsafe { real_sigaction(number, new, old) };
    }
    let wanted = &WANTED[number as usize];
    let before = (wanted.handler.load(Ordering::Acquire), wanted.flags.load(Ordering::Acquire));
    // Handlers that a vforked child sets are its own, and what is noted here is the parent's: they
    // are entered by the kernel.
    if let Some(new) = &mut changed
        && !crate::child::is_child()
        && is_handler(new)
    {
        wanted.flags.store(new.sa_flags & (KEPT | libc::SA_RESTART), Ordering::Release);
        wanted.handler.store(new.sa_sigaction, Ordering::Release);
        new.sa_sigaction = entrance();
        new.sa_flags = new.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    }
    let asked = changed.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let mut seen = no_action();
    // SAFETY: null or a copy of the program's action, and a place of ours.
    let result = unsafe { real_sigaction(number, asked, &mut seen) };
    if result != 0 {
        if !crate::child::is_child() {
            wanted.handler.store(before.0, Ordering::Release);
            wanted.flags.store(before.1, Ordering::Release);
        }
    } else if !old.is_null() {
        if seen.sa_sigaction == entrance() {
            seen.sa_sigaction = before.0;
            seen.sa_flags = seen.sa_flags & !KEPT | before.1 & KEPT;
        }
        // SAFETY: where the C library would have written it.
        unsafe { old.write(seen) };
    }
    result
}

/// The older calls, each with flags of its own and the signal itself as the mask or none.
///
/// # Safety
/// `handler` is one, as of signal(2).
unsafe fn install(
    number: c_int,
    handler: sighandler_t,
    flags: c_int,
    itself: bool,
) -> sighandler_t {
    if handler == libc::SIG_ERR || !(1..SIGNALS as c_int).contains(&number) {
        set_errno(Errno::INVAL);
        return libc::SIG_ERR;
    }
    let (mut new, mut old) = (no_action(), no_action());
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if itself {
        // SAFETY: a set of ours.
        unsafe { libc::sigaddset(&mut new.sa_mask, number) };
    }
    // SAFETY: both are ours; the handler is the program's.
    match unsafe { sigaction(number, &new, &mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

macro_rules! lasting {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(number: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the program's handler.
            unsafe { install(number, handler, libc::SA_RESTART, true) }
        }
    )* };
}

lasting! { signal bsd_signal ssignal }

macro_rules! single {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(number: c_int, handler: sighandler_t) -> sighandler_t {
            const SA_INTERRUPT: c_int = 0x2000_0000;
            let flags = libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT;
            // SAFETY: the program's handler.
            unsafe { install(number, handler, flags, false) }
        }
    )* };
}

single! { sysv_signal __sysv_signal }

/// The C library sets the handler inside itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
    HANDLED.store(true, Ordering::Relaxed);
    crate::session::settle();
    real!(c"sigset"(number => c_int, handler => sighandler_t) -> isize) as sighandler_t
}

aliases! {
    "C" __sigaction = sigaction(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}
