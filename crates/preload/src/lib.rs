//! The LD_PRELOAD library: it exports the C library's I/O symbols, asks the client whether a
//! descriptor is managed, and calls the client or the real function. It decides nothing itself.
//!
//! One file for each family of calls. `docs/posix.md` lists every symbol.
//!
//! # Safety
//! Each exported symbol, and each callback of glibc's, is `unsafe` on the conditions of the C
//! function's manual page. A program's memory is looked at before it is used where the real
//! function would answer `EFAULT`.

// `real!` is used inside and outside of unsafe blocks.
#![allow(non_snake_case, unused_unsafe)]
#![cfg(target_os = "linux")]

mod aio;
mod copies;
mod descriptors;
mod exec;
mod files;
mod memory;
mod process;
mod real;
mod rw;
mod signals;
mod sockets;
mod stat;
mod stdio;
mod syscall;
mod variadic;

use core::sync::atomic::{AtomicPtr, Ordering};
use forebay_client::{Carried, OpenFile, Session, StartError, Variables, say};
use libc::{c_char, c_int, ssize_t};
use rustix::io::Errno;

/// Attaches the process. Runs before the constructors of every other library, the C library's
/// included: `environ` is not set yet, so the variables come from the arguments.
unsafe extern "C" fn start(_: c_int, _: *const *const c_char, variables: *const *const c_char) {
    // SAFETY: the process's environment, as the loader gives it to each constructor.
    let Some(given) = (unsafe { Variables::at(variables) }) else { return };
    let carried = Carried::of(given);
    // A linker leaves out what nothing refers to.
    core::hint::black_box(&LAYOUT);
    if let (Some(pool), Some(socket)) = (carried.pool(), carried.socket()) {
        match Session::start(pool, socket, carried.job(), descriptors::unlock) {
            Ok(session) => {
                let session = Box::new(session.carrying(carried));
                SESSION.store(Box::into_raw(session), Ordering::Release);
            }
            // The program runs as without Forebay.
            Err(StartError::NoPool) => {}
            Err(error) => refuse(error),
        }
        stdio::standard::start();
    }
}

/// Ends a program that must not run, with the status of one that cannot be executed.
fn refuse(why: StartError) -> ! {
    let mut name = [0; 16];
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let length = rustix::fs::open(c"/proc/self/comm", flags, rustix::fs::Mode::empty())
        .and_then(|comm| rustix::io::read(comm, &mut name[..]));
    let name = String::from_utf8_lossy(&name[..length.unwrap_or(0)]);
    say(&format!("forebay: cannot start {}: {why}\n", name.trim_end()));
    // SAFETY: nothing of the program has begun.
    unsafe { libc::_exit(126) }
}

/// Which layout of shared memory this library is made for: `forebay run` reads it from the file.
#[used]
#[unsafe(link_section = ".forebay.layout")]
static LAYOUT: [u8; 4] = forebay_client::LAYOUT_VERSION.to_le_bytes();

#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());

/// The session of this process, if it runs under Forebay.
#[inline]
fn session() -> Option<&'static Session> {
    // SAFETY: set once, never freed.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// What `fd` refers to, if it is managed.
#[inline(always)]
fn managed(fd: c_int) -> Option<OpenFile<'static>> {
    session()?.file(fd)
}

fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// This thread's errno as an error.
fn last_error() -> Errno {
    Errno::from_raw_os_error(errno())
}

/// Puts errno back to what it was.
fn restore_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno }
}

/// A byte count or -1 with errno.
fn count(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(bytes) => bytes as ssize_t,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// 0 or -1 with errno.
fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
