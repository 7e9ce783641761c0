//! Looking, before any file is opened, whether those of a store can be buffered.

use crate::node::Node;
use crate::observe::markers::takes;
use forebay_pool::layout::markers;
use rustix::fs::{Mode, OFlags};
use std::path::Path;
use std::sync::atomic::Ordering;

/// FAT of each kind, whose files have less than 4 GiB.
const MSDOS_SUPER_MAGIC: i64 = 0x4d44;

/// Whether the files of `folder` take markers, as a file without a name tells, or the system.
/// `None` where neither does: then the first file that is opened tells.
fn taken_in(folder: &Path) -> Option<bool> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        return Some(takes(file));
    }
    // Without such files (one that is read-only, NFS, FUSE) only FAT is known. What `pathconf` says
    // is no help: 32 bits of each file system that the C library does not know, of tmpfs and
    // overlayfs, too.
    let kind = rustix::fs::statfs(folder).ok()?.f_type as i64;
    (kind == MSDOS_SUPER_MAGIC).then_some(false)
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
