//! copy_file_range, sendfile and splice.

use crate::errno::count;
use crate::real::{aliases, real, without_cancellation};
use crate::session::session;
use forebay_client::user_memory::UserOffset;
use forebay_client::{CopySide, Session};
use libc::{c_int, c_uint, off64_t, size_t, ssize_t};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

/// The session, if one of the two descriptors is managed.
fn concerned(one: c_int, other: c_int) -> Option<&'static Session> {
    let session = session()?;
    (session.file(one).is_some() || session.file(other).is_some()).then_some(session)
}

/// A descriptor, and the program's offset for it.
///
/// # Safety
/// As of [`UserOffset::at`].
unsafe fn side<'a>(fd: c_int, offset: *mut off64_t) -> CopySide<'a> {
    // SAFETY: the program's offset.
    CopySide { fd, offset: unsafe { UserOffset::at(offset) } }
}

/// Copies through `act`, which has memory of its own in its frames, so that the thread must not be
/// cancelled in a handler meanwhile.
fn copied(act: impl FnOnce() -> Result<usize, Errno>) -> ssize_t {
    without_cancellation(|| count(act()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    let Some(session) = concerned(from, to) else {
        return real!(c"copy_file_range"(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, bytes => size_t, flags => c_uint) -> ssize_t);
    };
    // SAFETY: the program's offsets.
    let (from, to) = unsafe { (side(from, from_offset), side(to, to_offset)) };
    copied(|| session.copy_range(from, to, bytes, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off64_t,
    bytes: size_t,
) -> ssize_t {
    let Some(session) = concerned(from, to) else {
        return real!(c"sendfile64"(to => c_int, from => c_int, offset => *mut off64_t, bytes => size_t) -> ssize_t);
    };
    // SAFETY: the program's offset.
    let from = unsafe { side(from, offset) };
    copied(|| session.send_file(to, from, bytes))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    let Some(session) = concerned(from, to) else {
        return real!(c"splice"(from => c_int, from_offset => *mut off64_t, to => c_int, to_offset => *mut off64_t, bytes => size_t, flags => c_uint) -> ssize_t);
    };
    // SAFETY: the program's offsets.
    let (from, to) = unsafe { (side(from, from_offset), side(to, to_offset)) };
    copied(|| session.splice(from, to, bytes, SpliceFlags::from_bits_retain(flags)))
}

aliases! {
    "C" sendfile = sendfile64(to: c_int, from: c_int, offset: *mut off64_t, bytes: size_t) -> ssize_t;
}
