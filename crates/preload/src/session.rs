//! The one session of the process.

use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_client::{OpenFile, Session, StartError, say};
use libc::c_int;

static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());

/// Has the process use `session` from now on.
pub(crate) fn begin(session: Session) {
    SESSION.store(Box::into_raw(Box::new(session)), Ordering::Release);
}

/// The session of this process, if it runs under Forebay.
#[inline]
pub(crate) fn session() -> Option<&'static Session> {
    // SAFETY: set once, never freed.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// What `fd` refers to, if it is managed.
#[inline(always)]
pub(crate) fn managed(fd: c_int) -> Option<OpenFile<'static>> {
    session()?.file(fd)
}

/// Ends a program that must not run, with the status of one that cannot be executed.
pub(crate) fn refuse(why: StartError) -> ! {
    let mut name = [0; 16];
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let length = rustix::fs::open(c"/proc/self/comm", flags, rustix::fs::Mode::empty())
        .and_then(|comm| rustix::io::read(comm, &mut name[..]));
    let name = String::from_utf8_lossy(&name[..length.unwrap_or(0)]);
    say(&format!("forebay: cannot start {}: {why}\n", name.trim_end()));
    // SAFETY: nothing of the program has begun.
    unsafe { libc::_exit(126) }
}
