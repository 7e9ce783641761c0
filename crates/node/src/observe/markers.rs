//! Whether the files of a directory can be buffered: the kernel's offset of one that is open has to
//! be a [`Marker`], and so the file system has to have files that are so large.

use forebay_pool::Marker;
use forebay_pool::layout::{StoreHeader, markers};
use rustix::fd::AsFd;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Whether an open file can have all markers for its offset.
pub(crate) fn takes(fd: impl AsFd) -> bool {
    rustix::fs::seek(fd, SeekFrom::Start(Marker::HIGHEST)).is_ok()
}

/// Whether the regular file at `path` takes markers; `None` if it cannot be opened.
pub(crate) fn taken_by(path: &Path) -> Option<bool> {
    let is_regular =
        |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // What is no file may do something when it is opened.
    rustix::fs::stat(path).ok().filter(|&stat| is_regular(stat))?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |access| rustix::fs::open(path, access | flags, Mode::empty());
    let file = open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY)).ok()?;
    Some(takes(file))
}

/// Whether it is known of a store that is to be buffered that its files take no markers.
pub(crate) fn are_refused(store: &StoreHeader) -> bool {
    store.bypass == 0 && store.markers.load(Ordering::Relaxed) == markers::REFUSED
}

/// Why they are not buffered, and what helps.
pub const WHY: &str = "its file system has no files of 1.75 TiB, and such an offset is how processes know a \
     buffered file (so it is with FAT, and with ext2 and ext3 in blocks of 1 or 2 KiB). Programs use them \
     directly; buffer a directory of another file system, such as ext4 with extents, or XFS";

/// What to say of a directory whose files take no markers.
pub(crate) fn describe(directory: &str) -> String {
    format!("{directory}: its files cannot be buffered: {WHY}")
}
