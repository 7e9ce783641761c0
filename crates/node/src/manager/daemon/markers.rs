//! Looking, before any file is opened, whether those of a store can be buffered.

use crate::node::Node;
use crate::observe::markers::takes;
use forebay_pool::Marker;
use forebay_pool::layout::markers;
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Whether the files of `folder` take markers, as a file without a name tells, or the system.
/// `None` where neither does: then the first file that is opened tells.
fn taken_in(folder: &Path) -> Option<bool> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        return Some(takes(file));
    }
    let folder = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: a string that ends with a zero.
    let bits = unsafe { libc::pathconf(folder.as_ptr(), libc::_PC_FILESIZEBITS) };
    // Of a file's size, and its sign. That there are many is said of file systems that it does not
    // know, too.
    let needed = i64::from(u64::BITS - Marker::HIGHEST.leading_zeros()) + 1;
    (0 < bits && bits < needed).then_some(false)
}

/// Notes of each store whether its files take markers.
pub(super) fn note_markers(node: &Node) {
    for (store, backing) in node.header().store.iter().zip(&node.config.backing) {
        let taken = match taken_in(&backing.path) {
            Some(true) => markers::TAKEN,
            Some(false) => markers::REFUSED,
            None => markers::UNKNOWN,
        };
        store.markers.store(taken, Ordering::Relaxed);
    }
}
