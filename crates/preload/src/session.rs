//! The one session of the process, and in a vforked child the one that it has taken.

use crate::child;
use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_client::{OpenFile, Session, StartError, say};
use libc::c_int;

/// Null without a session. While vforked children run in the process's memory, their number stands
/// above the address, and the sign bit is set: so callers that find a plain address, which is all
/// that they look at, need not ask whether they are such a child.
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

/// Has the process use `session` from now on.
pub(crate) fn begin(session: Session) {
    SESSION.store(Box::into_raw(Box::new(session)), Ordering::Release);
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
    let session = of_process(word)?;
    if child::is_child() { Some(own(session)) } else { Some(session) }
}

/// The session of the calling child of `parent`'s process.
fn own(parent: &Session) -> &'static Session {
    child::own_session(parent).unwrap_or_else(|refused| refuse(refused))
}

/// The same for calls that only change which descriptors there are: in a vforked child without a
/// session they are the kernel's alone.
#[inline]
pub(crate) fn session_of_table() -> Option<&'static Session> {
    let word = SESSION.load(Ordering::Acquire);
    if !is_plain(word) && child::is_bare() { None } else { session() }
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

/// Whether this process runs under Forebay.
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

/// Ends a program that must not run, with the status of one that cannot be executed.
pub(crate) fn refuse(why: StartError) -> ! {
    let mut name = [0; 16];
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let length =
        rustix::fs::openat(rustix::fs::CWD, c"/proc/self/comm", flags, rustix::fs::Mode::empty())
            .and_then(|comm| rustix::io::read(comm, &mut name[..]));
    let name = String::from_utf8_lossy(&name[..length.unwrap_or(0)]);
    say(&format!("forebay: cannot start {}: {why}\n", name.trim_end()));
    // SAFETY: nothing of the program has begun.
    unsafe { libc::_exit(126) }
}
