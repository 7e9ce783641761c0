//! A pool opened to be looked at, by tools that must not change it.

use crate::journal::log::{NOT_OURS, open_owned, reason};
use forebay_pool::segment::open_pool;
use forebay_pool::slot_record::SLOTS_END;
use forebay_pool::{Segment, SegmentError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// A pool as it is found.
pub struct Inspected {
    /// The pool itself while processes use it, else a private copy.
    pub segment: Segment,
    /// A node manager or a client may be at work in it.
    pub in_use: bool,
    /// What is wrong with a header whose sizes are usable.
    pub wrong: Option<SegmentError>,
    /// Whose pool it is: a user id.
    pub owner: u32,
}

/// Opens the pool at `path`.
///
/// # Errors
/// Why it cannot be looked at.
pub fn inspect(path: &Path) -> Result<Inspected, SegmentError> {
    let file = match open_pool(path) {
        Ok(file) => file,
        // A copy that a user has put by. It is only looked at.
        Err(wrong) => read_only(path).map_err(|_| wrong)?,
    };
    let owner = rustix::fs::fstat(&file)
        .map_err(|errno| SegmentError::System("looking at it", errno))?
        .st_uid;
    let (copy, wrong) = Segment::attach_copy(file.as_fd())?;
    if wrong.is_none()
        && (copy.manager_is_alive() || copy.has_live_clients())
        && let Ok(segment) = Segment::attach(file.as_fd())
    {
        return Ok(Inspected { segment, in_use: true, wrong, owner });
    }
    Ok(Inspected { segment: copy, in_use: false, wrong, owner })
}

impl Inspected {
    /// Opens the slots of a file tier, at the path that the pool says: nothing but slots of the pool's owner.
    ///
    /// # Errors
    /// What to say about them.
    pub(crate) fn slots(&self, tier: usize) -> Result<File, String> {
        let path = crate::fsck::path_of(&self.segment.header().tier[tier].path);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let opened = match name.starts_with("forebay-") && name.ends_with(SLOTS_END) {
            true => open_owned(path, OFlags::RDONLY, self.owner),
            false => Err(NOT_OURS),
        };
        opened
            .map(File::from)
            .map_err(|errno| format!("{}: {}", path.display(), reason(path, errno)))
    }
}

fn read_only(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty())
}
