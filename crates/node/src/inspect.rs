//! A pool opened to be looked at, by tools that must not change it.

use forebay_pool::segment::open_pool;
use forebay_pool::{Segment, SegmentError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// A pool as it is found.
pub struct Inspected {
    /// The pool itself while processes use it, else a private copy.
    pub segment: Segment,
    /// A node manager or a client may be at work in it.
    pub in_use: bool,
    /// What is wrong with a header whose sizes are usable.
    pub wrong: Option<SegmentError>,
}

/// Opens the pool at `path`.
///
/// # Errors
/// Why it cannot be looked at.
pub fn inspect(path: &Path) -> Result<Inspected, SegmentError> {
    let file = match open_pool(path) {
        Ok(file) => file,
        // A copy that somebody has put by. It is only looked at.
        Err(wrong) => read_only(path).map_err(|_| wrong)?,
    };
    let (copy, wrong) = Segment::attach_copy(file.as_fd())?;
    if wrong.is_none()
        && (copy.manager_is_alive() || copy.has_live_clients())
        && let Ok(segment) = Segment::attach(file.as_fd())
    {
        return Ok(Inspected { segment, in_use: true, wrong });
    }
    Ok(Inspected { segment: copy, in_use: false, wrong })
}

fn read_only(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty())
}
