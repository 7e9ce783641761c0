//! fclose.

use super::buffer::forget_buffer;
use super::cookie::{Cookie, ours, ours_or_former};
use super::foreign::carries;
use super::glibc::{Locked, flush};
use super::layout::*;
use super::standard::take_back;
use super::stream::close;
use crate::errno::{errno, restore_errno, set_errno};
use crate::real::real;
use crate::session::{managed, session};
use libc::{FILE, c_int};
use rustix::io::Errno;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    let call = || real!(c"fclose"(stream => *mut FILE) -> c_int);
    // SAFETY: a stream of the program's, which ends here.
    let Some(given) = (unsafe { Stream::at(stream) }) else { return call() };
    let former = ours_or_former(given);
    if former.is_some_and(|cookie| cookie.standard) {
        return close_standard(given);
    }
    if ours(given).is_some() {
        return call();
    }
    if let Some(session) = session() {
        carries(Some(given), false);
        // glibc closes the descriptor of a stream of its own inside itself.
        let fd = given.get(FILENO_AT);
        if managed(fd).is_some() {
            flush(given);
            session.forget(fd);
        }
    }
    let former = former.map(core::ptr::from_ref);
    let result = call();
    if let Some(cookie) = former {
        // SAFETY: the stream that used it is gone.
        unsafe { Cookie::free(cookie.cast_mut()) };
    }
    result
}

/// As glibc does with its static streams: it stays, closed.
fn close_standard(stream: Stream) -> c_int {
    let _locked = Locked::new(stream);
    let fd = stream.get(FILENO_AT);
    if fd < 0 {
        set_errno(Errno::BADF);
        return libc::EOF;
    }
    take_back(stream);
    let own = ours(stream);
    let writing = stream.get(FLAGS_AT) & WRITING != 0;
    let flushed = if writing || own.is_none() { flush(stream) } else { 0 };
    let before = errno();
    match own {
        Some(cookie) => {
            forget_buffer(stream, cookie);
            stream.lower(WRITING | LINE_BUFFERED | UNBUFFERED);
            cookie.change_descriptor(stream, -1);
        }
        None => {
            carries(Some(stream), false);
            stream.set(FILENO_AT, -1);
        }
    }
    stream.raise(NO_READS | NO_WRITES);
    let closed = close(fd);
    if flushed != 0 {
        restore_errno(before);
    }
    if flushed == 0 && closed == 0 { 0 } else { libc::EOF }
}
