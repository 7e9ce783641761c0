//! stdin, stdout and stderr: streams of ours from the start, which are lent to glibc for as long as
//! their descriptors are not managed. glibc looks at the descriptor of a stream when it is first
//! used, and not before.
//!
//! What lends and takes back is one word of the stream, its function table: those of files and of
//! cookie streams differ only in the functions that call the kernel.

use super::buffer::choose_buffer;
use super::cookie::{
    Cookie, WideData, cookie_jumps, cookie_of, note_wide_data, ours, ours_or_former,
};
use super::foreign::{GLIBC_STDIN, carries, glibc_stdin};
use super::glibc::{stderr, stdin, stdout, unbuffer};
use super::layout::*;
use super::stream::cookie_stream;
use crate::session::managed;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use libc::c_int;

#[unsafe(link_section = ".data")]
static STANDARD: [AtomicPtr<Cookie>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];

/// What belongs to those that are lent.
fn lent() -> impl Iterator<Item = &'static Cookie> {
    let all = STANDARD.iter().map(|place| place.load(Ordering::Acquire));
    // SAFETY: cookies of standard streams, which are never freed.
    let all = all.filter(|cookie| !cookie.is_null()).map(|own| unsafe { cookie_of(own.cast()) });
    all.filter(|cookie| cookie.lent.load(Ordering::Acquire))
}

/// Lends a `stream` that no program has yet.
fn lend(stream: Stream, cookie: &Cookie) {
    cookie.lent.store(true, Ordering::Release);
    // As one on a file: glibc chooses its buffer at first use.
    stream.raise(FILE_BUFFER);
    use_as(cookie, false);
}

/// The stream is ours again, for good. One of wide characters stays glibc's.
fn end_loan(cookie: &Cookie) {
    // SAFETY: a standard stream, which is never freed.
    let Some(stream) = (unsafe { Stream::at(cookie.stream()) }) else { return };
    if !cookie.lent.swap(false, Ordering::AcqRel) {
        return;
    }
    match stream.get(ORIENTATION_AT) > 0 {
        true => carries(Some(stream), true),
        false => stream.set(JUMPS_AT, cookie_jumps()),
    }
}

/// Has a lent stream read and write as one of ours, or as one of glibc's. All that differs is
/// what calls the kernel, so that it may be in use.
fn use_as(cookie: &Cookie, ours: bool) {
    // SAFETY: a standard stream, which is never freed.
    let stream = unsafe { Stream::at(cookie.stream()) };
    let of_files = glibc_stdin().map(|own| own.get(JUMPS_AT));
    if let (Some(stream), Some(of_files)) = (stream, of_files)
        && stream.get(ORIENTATION_AT) <= 0
    {
        stream.set(JUMPS_AT, if ours { cookie_jumps() } else { of_files });
        fence(Ordering::SeqCst);
        // Another thread may have taken it back meanwhile.
        if !cookie.lent.load(Ordering::Acquire) {
            stream.set(JUMPS_AT, cookie_jumps());
        }
    }
}

/// Takes `stream` back for good, if it is lent.
pub(super) fn take_back(stream: Stream) {
    if let Some(cookie) = ours_or_former(stream) {
        end_loan(cookie);
    }
}

/// Before `fd` refers to a managed file: glibc must not read and write it inside itself.
pub(crate) fn binds(fd: c_int) {
    // In a vforked child they are used as ours anyway, and are its parent's.
    if !crate::child::is_child() {
        lent().filter(|cookie| cookie.descriptor() == fd).for_each(end_loan);
    }
}

/// Vforked children that run in the process's memory.
#[unsafe(link_section = ".data")]
static CHILDREN: AtomicUsize = AtomicUsize::new(0);

/// Notes that a vforked child is about to use the streams as well, or does not any more: what its
/// descriptors refer to only it knows, and while it runs no stream is glibc's.
pub(crate) fn share(begins: bool) {
    match begins {
        true => CHILDREN.fetch_add(1, Ordering::SeqCst),
        false => CHILDREN.fetch_sub(1, Ordering::SeqCst),
    };
    follow_children();
}

/// In a forked child: those of other threads are not here.
pub(crate) fn alone() {
    if CHILDREN.swap(0, Ordering::SeqCst) > 0 {
        follow_children();
    }
}

fn follow_children() {
    loop {
        let children = CHILDREN.load(Ordering::SeqCst);
        lent().for_each(|cookie| use_as(cookie, children > 0));
        // Another thread may have made one meanwhile.
        if CHILDREN.load(Ordering::SeqCst) == children {
            return;
        }
    }
}

/// Makes the standard streams ours, before a program can have a copy of their pointers.
#[inline(always)]
pub(crate) fn start() {
    // SAFETY: glibc's own stream and what belongs to it, which no program has used yet.
    let wide = unsafe {
        GLIBC_STDIN.store(stdin, Ordering::Release);
        Stream::at(stdin).map(|own| own.get(WIDE_DATA_AT).cast::<WideData>().read())
    };
    wide.into_iter().for_each(note_wide_data);
    let all = [
        (0, &raw mut stdin, c"r"),
        (1, &raw mut stdout, c"w"),
        // Last, because the exit flushes the newest stream first.
        (2, &raw mut stderr, c"w"),
    ];
    for (fd, variable, mode) in all {
        let stream = cookie_stream(fd, mode, true);
        // SAFETY: just made, and the program does not have it yet.
        let Some(made) = (unsafe { Stream::at(stream) }) else { continue };
        if fd == 2 {
            unbuffer(made);
        }
        let Some(cookie) = ours(made) else { continue };
        STANDARD[fd as usize].store(core::ptr::from_ref(cookie).cast_mut(), Ordering::Release);
        match managed(fd) {
            None => lend(made, cookie),
            // The standard error has no buffer.
            Some(_) => choose_buffer(made),
        }
        // SAFETY: the C library's own variables, which programs may assign to.
        unsafe { variable.write(stream) };
    }
}
