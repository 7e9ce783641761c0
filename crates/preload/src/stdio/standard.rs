//! stdin, stdout and stderr at the start.

use super::cookie::{WIDE_DATA, WideData};
use super::foreign::GLIBC_STDIN;
use super::glibc::{stderr, stdin, stdout, unbuffer};
use super::layout::{Stream, WIDE_DATA_AT};
use super::stream::cookie_stream;
use crate::session::session;
use core::sync::atomic::Ordering;

/// Makes the standard streams ours, before a program can have a copy of their pointers.
pub(crate) fn start() {
    if session().is_none() {
        return;
    }
    // SAFETY: glibc's own stream and what belongs to it, which no program has used yet.
    let wide = unsafe {
        GLIBC_STDIN.store(stdin, Ordering::Release);
        Stream::at(stdin).map(|own| own.get(WIDE_DATA_AT).cast::<WideData>().read())
    };
    if let Some(wide) = wide {
        let _ = WIDE_DATA.set(wide);
    }
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
        // SAFETY: the C library's own variables, which programs may assign to.
        unsafe { variable.write(stream) };
    }
}
