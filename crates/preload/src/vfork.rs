//! vfork, in which the child runs in the memory of its parent, which waits until the child has
//! executed a program or ended.
//!
//! The child is recognized by a word of the thread's storage, which parent and child share: it is
//! set by the child, and cleared by the parent when it goes on. Other threads of the parent go on
//! meanwhile, with their own storage.

use crate::child;
use crate::real::{aliases, real};
use crate::session::{self, session};
use crate::stdio::standard;
use crate::{signals, threads};
use forebay_client::interruption;
use libc::{c_int, c_void, sigset_t};
use rustix::io::Errno;

/// Sets the mask of signals of the calling thread, and returns the one that it had. By the C
/// library's own function: that of a sanitizer's runtime looks at the stack, where the child has
/// been.
fn set_mask(how: c_int, mask: u64) -> u64 {
    // SAFETY: sets are numbers, the first of them for all 64 signals; the mask is this thread's.
    unsafe {
        let (mut new, mut old): (sigset_t, sigset_t) = core::mem::zeroed();
        (&raw mut new).cast::<u64>().write(mask);
        let (new, old) = (&raw const new, &raw mut old);
        real!(c"pthread_sigmask"(how => c_int, new => *const sigset_t, old => *mut sigset_t) -> c_int);
        old.cast::<u64>().read()
    }
}

/// Blocks all signals and returns which were blocked.
fn block_all() -> u64 {
    set_mask(libc::SIG_BLOCK, u64::MAX)
}

fn unblock(mask: u64) {
    set_mask(libc::SIG_SETMASK, mask);
}

/// How a vfork is made.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum How {
    /// As in a process without a session.
    Plainly = 0,
    /// By `follow` and `end` around it.
    Followed = 1,
    /// As a fork: by a child of a vfork, where a slot is short, or on another architecture.
    AsFork = 2,
}

/// What `vfork` needs, in two registers.
#[repr(C)]
struct Begun {
    how: How,
    /// Where the kernel says which number the child has.
    numbers: *mut u32,
}

/// Before a vfork.
extern "C" fn begin() -> Begun {
    Begun { how: prepare(), numbers: child::numbers() }
}

fn prepare() -> How {
    if child::is_child() || interruption::is_inside() {
        return How::AsFork;
    }
    let Some(session) = session() else { return How::Plainly };
    // The fork waits for a slot, and fails if it has to.
    let Some(fork) = session.before_fork() else { return How::AsFork };
    // No handler runs in the child before it is known to be one, nor in the parent before it is
    // known not to be. A thread that is the only one knows whether there are handlers.
    let mask = (signals::may_be_handled() || threads::may_be_others()).then(block_all);
    child::prepare(fork, session.has_files(), mask);
    session::share(true);
    standard::share(true);
    How::Followed
}

/// In the child, at once.
extern "C" fn follow() {
    let (fork, number, mask) = child::begin();
    if let (Some(fork), Some(parents)) = (fork, session::parents())
        && let Err(refused) = parents.vforked(&fork, number)
    {
        session::refuse("start", refused);
    }
    mask.into_iter().for_each(unblock);
}

/// In the parent when it goes on: the kernel has returned `result`. Returns what vfork is to.
extern "C" fn end(result: c_int, how: How) -> c_int {
    if how == How::Followed {
        let (fork, mask, own) = child::end();
        interruption::child_is_gone();
        if let Some(own) = own {
            // SAFETY: the kernel lets the parent go on only when the child has left this memory.
            unsafe { own.give_back() };
        }
        standard::share(false);
        session::share(false);
        if let (Some(fork), Some(session)) = (fork, session()) {
            match result {
                ..0 => session.fork_failed(fork),
                _ => session.fork_succeeded(&fork, result as u32),
            }
        }
        mask.into_iter().for_each(unblock);
    }
    if result < 0 {
        crate::errno::set_errno(Errno::from_raw_os_error(-result));
        return -1;
    }
    result
}

/// A vfork that also says which number the child has: in both namespaces, that of its parent and
/// its own.
#[cfg(target_arch = "x86_64")]
const FLAGS: c_int = libc::CLONE_VM
    | libc::CLONE_VFORK
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_SETTID
    | libc::SIGCHLD;

/// The return address is kept in a register: child and parent return into the caller one after the
/// other, with the same stack, and the child has overwritten what lies below. As the C library's
/// own, the child leaves by a jump, so that a shadow stack keeps its entry for the parent.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {begin}",
        "add rsp, 8",
        "cmp eax, {as_fork}",
        "je {fork}",
        "mov r8d, eax",
        "pop r9",
        "lea r10, [rdx + 4]",
        "mov edi, {flags}",
        "xor esi, esi",
        "mov eax, {clone}",
        "syscall",
        "push r9",
        "test eax, eax",
        "jz 2f",
        "sub rsp, 8",
        "mov edi, eax",
        "mov esi, r8d",
        "call {end}",
        "add rsp, 8",
        "ret",
        "2:",
        "test r8d, r8d",
        "jz 3f",
        "sub rsp, 8",
        "call {follow}",
        "add rsp, 8",
        "3:",
        "xor eax, eax",
        "pop rdi",
        "jmp rdi",
        begin = sym begin,
        follow = sym follow,
        end = sym end,
        fork = sym crate::process::fork,
        as_fork = const How::AsFork as u32,
        flags = const FLAGS,
        clone = const libc::SYS_clone,
    )
}

/// A fork is what vfork is allowed to be.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: the same call.
    unsafe { crate::process::fork() }
}

type Main = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What the child of a clone begins with.
struct Start {
    main: Main,
    argument: *mut c_void,
}

/// Where the child of a clone begins that shares its parent's memory.
unsafe extern "C" fn start(given: *mut c_void) -> c_int {
    follow();
    // SAFETY: `clone` has given it, and waits.
    let Start { main, argument } = unsafe { given.cast::<Start>().read() };
    // SAFETY: the program's function, with its argument.
    unsafe { main(argument) }
}

/// A child that shares the memory, and has descriptors of its own, is as a vforked one. The last
/// three are there only with some flags; the registers are passed on either way.
#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    main: Main,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut libc::pid_t,
    storage: *mut c_void,
    child: *mut libc::pid_t,
) -> c_int {
    // It may be a thread.
    session::settle();
    let call = |main: Main, argument: *mut c_void| real!(c"clone"(main => Main, stack => *mut c_void, flags => c_int, argument => *mut c_void, parent => *mut libc::pid_t, storage => *mut c_void, child => *mut libc::pid_t) -> c_int);
    const VFORKED: c_int = libc::CLONE_VM | libc::CLONE_VFORK;
    const OTHER: c_int = libc::CLONE_THREAD
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_SETTLS
        | libc::CLONE_NEWPID;
    if flags & (VFORKED | OTHER) != VFORKED {
        return call(main, argument);
    }
    let how = prepare();
    if how != How::Followed {
        return call(main, argument);
    }
    let mut given = Start { main, argument };
    match call(start, (&raw mut given).cast()) {
        -1 => end(-crate::errno::errno(), how),
        child => end(child, how),
    }
}

aliases! {
    "C" __clone = clone(main: Main, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut libc::pid_t, storage: *mut c_void, child: *mut libc::pid_t) -> c_int;
}
