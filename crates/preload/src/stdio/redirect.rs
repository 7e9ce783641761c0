//! What follows when a descriptor refers to something else than before.

use super::buffer::choose_buffer;
use super::cookie::ours;
use super::foreign::carries_foreign;
use super::glibc::{Locked, stdin, stdout};
use super::layout::Stream;
use crate::session::managed;
use libc::c_int;

/// Called when `fd` refers to something else than before.
pub(crate) fn redirected(fd: c_int) {
    // A vforked child's descriptor, and its parent's streams.
    if crate::child::is_child() {
        return;
    }
    if carries_foreign(fd)
        && let Some(file) = managed(fd)
    {
        // glibc's stream reads and writes it inside itself.
        let _ = file.release_to_kernel();
    }
    // SAFETY: streams of the program's, locked below.
    let standard = unsafe {
        match fd {
            0 => Stream::at(stdin),
            1 => Stream::at(stdout),
            _ => None,
        }
    };
    // One that another thread holds is in use, and keeps its buffer.
    if let Some(stream) = standard
        && ours(stream).is_some()
        && let Some(_locked) = Locked::at_once(stream)
    {
        choose_buffer(stream);
    }
}
