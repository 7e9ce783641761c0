//! inotify: what is watched goes to the store with each write.

use crate::real::real;
use crate::session::session;
use forebay_client::user_memory::UserPath;
use libc::{c_char, c_int};

#[unsafe(no_mangle)]
unsafe extern "C" fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
    let watch =
        real!(c"inotify_add_watch"(fd => c_int, path => *const c_char, mask => u32) -> c_int);
    if watch >= 0
        && mask & libc::IN_MODIFY != 0
        && let Some(session) = session()
        // SAFETY: the program's path, which the kernel has just read.
        && let Some(path) = unsafe { UserPath::at(path) }.get()
    {
        session.watch(path, mask & libc::IN_DONT_FOLLOW == 0);
    }
    watch
}
