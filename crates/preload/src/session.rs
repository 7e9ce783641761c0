//! The one session of the process, and in a vforked child the one that it has taken.
//!
//! A process that has nothing of the pool takes it when it is asked for first: by a call that may
//! concern a file, or before the process changes so that it could not take it any more, or not
//! where it is: also by a first thread, and by a handler, which may come in the middle of malloc.

use crate::child;
use crate::errno::{errno, restore_errno};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use forebay_client::{
    Carried, Front, Itself, OpenFile, Session, StartError, Told, carries_marker, say,
};
use libc::c_int;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Null without a session. While vforked children run in the process's memory, their number stands
/// above the address, and the sign bit is set: so callers that find a plain address, which is all
/// that they look at, need not ask whether they are such a child.
#[unsafe(link_section = ".data")]
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());

const SHARED: usize = 1 << 63;
const ONE_CHILD: usize = 1 << 48;
const ADDRESS: usize = ONE_CHILD - 1;

fn is_plain(word: *mut Session) -> bool {
    word.addr() as isize > 0
}

/// The session of the process, whichever thread or child asks.
fn of_process(word: *mut Session) -> Option<&'static Session> {
    // SAFETY: set once, never freed.
    unsafe { word.map_addr(|word| word & ADDRESS).as_ref() }
}

/// What a process needs to join the pool.
#[derive(Clone, Copy)]
pub(crate) struct Joining {
    /// The settings that it was started with.
    pub(crate) carried: Carried,
    /// What the image before has said.
    pub(crate) told: Option<Told>,
    /// What the session calls of the library.
    pub(crate) front: Front,
}

impl Joining {
    /// A session of the process, which has probably the number `guess`, and then the user that it
    /// was started as.
    fn start(&self, guess: Option<u32>) -> Result<Box<Session>, StartError> {
        let Joining { carried, told, front } = *self;
        let pool = carried.pool().zip(carried.socket());
        let (pool, socket) = pool.ok_or(StartError::NoPool)?;
        let itself = Itself { number: guess, user: guess.and_then(|_| user()) };
        let mut session = Session::start(pool, socket, carried.job(), told, itself, front)?;
        session.carry(carried);
        Ok(session)
    }

    /// Whether a node manager serves the pool: looked at for a moment.
    fn is_served(&self) -> bool {
        self.carried.socket().is_some_and(forebay_client::manager_stays)
    }
}

/// Has the process, which has probably the number `guess`, use a session of the pool from now on.
/// False where there is no pool for it: it runs as without Forebay.
pub(crate) fn join(joining: Joining, guess: Option<u32>) -> bool {
    match joining.start(guess) {
        Ok(session) => begin(session),
        Err(StartError::NoPool | StartError::Hidden) => return false,
        Err(error) => refuse("start", error),
    }
    true
}

fn begin(session: Box<Session>) {
    let name = c"__libc_single_threaded";
    // SAFETY: a name with its end; what glibc has by it is a byte.
    unsafe {
        let byte = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        forebay_client::watch_threads(byte.cast());
    }
    SESSION.store(Box::into_raw(session), Ordering::Release);
}

/// The user that the process was started as, which the kernel has said.
fn user() -> Option<u32> {
    restore_errno(0);
    // SAFETY: reads what the kernel has put on the stack.
    let user = unsafe { libc::getauxval(libc::AT_EUID) };
    (user != 0 || errno() == 0).then_some(user as u32)
}

/// What a process that has not joined yet will join with: one that has allocated nothing for it.
struct PutOff {
    stage: AtomicU32,
    joining: UnsafeCell<MaybeUninit<Joining>>,
    /// The thread that joins: where its errno is.
    joiner: AtomicPtr<c_int>,
}

mod stage {
    /// Nothing is put off: there is a session, or none for this process.
    pub(super) const SETTLED: u32 = 0;
    pub(super) const PUT_OFF: u32 = 1;
    pub(super) const JOINING: u32 = 2;
}

// SAFETY: written before any other thread is there, and read by the one that begins to join.
unsafe impl Sync for PutOff {}

#[unsafe(link_section = ".data")]
static PUT_OFF: PutOff = PutOff {
    stage: AtomicU32::new(stage::SETTLED),
    joining: UnsafeCell::new(MaybeUninit::uninit()),
    joiner: AtomicPtr::new(core::ptr::null_mut()),
};

/// Has the process join when its session is asked for, or by [`settle`]. To be called once, at its
/// start.
pub(crate) fn put_off(joining: Joining) {
    // SAFETY: no other thread is there.
    unsafe { (*PUT_OFF.joining.get()).write(joining) };
    PUT_OFF.stage.store(stage::PUT_OFF, Ordering::Release);
}

/// Joins the pool if the process has put that off.
#[inline]
pub(crate) fn settle() {
    if PUT_OFF.stage.load(Ordering::Acquire) != stage::SETTLED {
        join_now();
    }
}

/// How often a pool is looked for while a node manager answers, which may be about to end: for
/// three seconds.
const LOOKS: u32 = 300;

/// Calls `act` while the process may have as many descriptors as it may allow itself: it has one
/// thread.
fn with_more_descriptors<R>(act: impl FnOnce() -> R) -> R {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let result = act();
    let _ = setrlimit(Resource::Nofile, limit);
    result
}

#[cold]
#[inline(never)]
fn join_now() {
    // SAFETY: takes nothing.
    let thread = unsafe { libc::__errno_location() };
    let (from, to) = (stage::PUT_OFF, stage::JOINING);
    if PUT_OFF.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // A call that joining itself makes is the kernel's. Another thread, which the C library has
        // started inside itself, waits.
        while PUT_OFF.stage.load(Ordering::Acquire) == stage::JOINING
            && PUT_OFF.joiner.load(Ordering::Acquire) != thread
        {
            rustix::thread::sched_yield();
        }
        return;
    }
    PUT_OFF.joiner.store(thread, Ordering::Release);
    let before = errno();
    // SAFETY: it was put off.
    let joining = unsafe { (*PUT_OFF.joining.get()).assume_init_read() };
    // It may have been cloned unseen since, and have another number than at its start, and another
    // user.
    let mut started = joining.start(None);
    if started.as_ref().is_err_and(|error| *error == StartError::Pool(Errno::MFILE)) {
        // It has opened as much as it may.
        started = with_more_descriptors(|| joining.start(None));
    }
    for _ in 0..LOOKS {
        if !started.as_ref().is_err_and(|error| *error == StartError::Hidden) {
            break;
        }
        started = if joining.is_served() { joining.start(None) } else { Err(StartError::NoPool) };
    }
    match started {
        Ok(session) => begin(session),
        Err(StartError::NoPool) => {}
        Err(error) => {
            // SAFETY: what the program has printed is not lost with it.
            unsafe { libc::fflush(core::ptr::null_mut()) };
            refuse("go on with", error);
        }
    }
    restore_errno(before);
    PUT_OFF.stage.store(stage::SETTLED, Ordering::Release);
}

/// The session of this process, if it runs under Forebay. A vforked child takes one of its own.
#[inline]
pub(crate) fn session() -> Option<&'static Session> {
    let word = SESSION.load(Ordering::Acquire);
    if is_plain(word) {
        // SAFETY: set once, never freed.
        return Some(unsafe { &*word });
    }
    while_shared(word)
}

#[cold]
#[inline(never)]
fn while_shared(word: *mut Session) -> Option<&'static Session> {
    let Some(session) = of_process(word) else {
        settle();
        return of_process(SESSION.load(Ordering::Acquire));
    };
    if child::is_child() { Some(own(session)) } else { Some(session) }
}

/// The session of the calling child of `parent`'s process.
fn own(parent: &Session) -> &'static Session {
    child::own_session(parent).unwrap_or_else(|refused| refuse("start", refused))
}

/// The same for calls that only change which descriptors there are: in a vforked child without a
/// session, or a process that has not joined yet, they are the kernel's alone.
#[inline]
pub(crate) fn session_of_table() -> Option<&'static Session> {
    let word = SESSION.load(Ordering::Acquire);
    if word.is_null() || !is_plain(word) && child::is_bare() { None } else { session() }
}

/// Before `fd` becomes `number` in a vforked child, or after it has: where that is standard error,
/// one without a session takes one for a managed file, of which the kernel is to have the offset.
/// Without memory for it the child goes on.
pub(crate) fn session_for_standard_error(number: c_int, fd: c_int) {
    if number == libc::STDERR_FILENO
        && let Some(parent) = parents_of_bare()
        && carries_marker(fd)
    {
        let _ = child::own_session(parent);
    }
}

/// The same for calls that look at nothing but what never changes: that of the parent in a vforked
/// child without one.
pub(crate) fn session_or_parents() -> Option<&'static Session> {
    let word = SESSION.load(Ordering::Acquire);
    if !is_plain(word) && child::is_bare() { of_process(word) } else { session() }
}

/// The session of the process in whose memory the caller runs.
pub(crate) fn parents() -> Option<&'static Session> {
    of_process(SESSION.load(Ordering::Acquire))
}

/// Whether this process has joined the pool.
pub(crate) fn is_attached() -> bool {
    !SESSION.load(Ordering::Acquire).is_null()
}

/// The session of the parent, where the caller is a vforked child without one.
#[inline]
pub(crate) fn parents_of_bare() -> Option<&'static Session> {
    let word = SESSION.load(Ordering::Acquire);
    if is_plain(word) || !child::is_bare() { None } else { of_process(word) }
}

/// Notes that a vforked child is about to share the memory, or that one does not any more.
pub(crate) fn share(begins: bool) {
    let change = |word: *mut Session| {
        Some(word.map_addr(|word| match begins {
            true => (word | SHARED) + ONE_CHILD,
            false if word & !(SHARED | ADDRESS) == ONE_CHILD => word & ADDRESS,
            false => word - ONE_CHILD,
        }))
    };
    let _ = SESSION.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
}

/// In a forked child: children of other threads are not here. What it forked from was `session`.
pub(crate) fn alone(session: &'static Session) {
    SESSION.store(core::ptr::from_ref(session).cast_mut(), Ordering::Release);
    child::forked();
}

/// What `fd` refers to, if it is managed.
#[inline(always)]
pub(crate) fn managed(fd: c_int) -> Option<OpenFile<'static>> {
    let word = SESSION.load(Ordering::Acquire);
    if is_plain(word) {
        // SAFETY: set once, never freed.
        return unsafe { &*word }.file(fd);
    }
    managed_while_shared(word, fd)
}

#[cold]
#[inline(never)]
fn managed_while_shared(word: *mut Session, fd: c_int) -> Option<OpenFile<'static>> {
    let session = of_process(word)?;
    match child::is_child() {
        true if child::needs_session(session, fd) => own(session).file(fd),
        true => None,
        false => session.file(fd),
    }
}

/// Ends a program that must not run, or go on, with the status of one that cannot be executed.
pub(crate) fn refuse(what: &str, why: StartError) -> ! {
    let name = rustix::thread::name().unwrap_or_default();
    say(&format!("forebay: cannot {what} {}: {why}\n", name.to_string_lossy()));
    // SAFETY: nothing of the program's is to run any more.
    unsafe { libc::_exit(126) }
}
