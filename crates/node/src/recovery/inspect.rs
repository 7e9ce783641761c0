//! A pool opened to be looked at, by tools that must not change it.

use crate::instance::discovery::is_name_of;
use crate::journal::file::{NOT_OURS, open_owned};
use crate::journal::superblock::{other_version, reason};
use forebay_placement::TierId;
use forebay_pool::segment::{open_pool, text};
use forebay_pool::slot_head::{FORMAT, Foreign};
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
        && (copy.manager_is_alive() || copy.clients().any_lives())
        && let Ok(segment) = Segment::attach(file.as_fd())
    {
        return Ok(Inspected { segment, in_use: true, wrong, owner });
    }
    Ok(Inspected { segment: copy, in_use: false, wrong, owner })
}

impl Inspected {
    /// Opens the slots of a file tier, at the path that the pool says: nothing but the pool's own,
    /// of its owner. A head that is damaged is no reason not to save what can be read: each page
    /// has a checksum.
    ///
    /// # Errors
    /// What to say about them.
    pub(crate) fn slots(&self, tier: TierId) -> Result<File, String> {
        let path = crate::usage::path_of(&self.segment.header().tier[tier].path);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let header = self.segment.header();
        let instance = String::from_utf8_lossy(&header.instance);
        let tier_name = text(&header.tier[tier].name).to_string_lossy();
        let stem = format!("forebay-{instance}-{tier_name}");
        let is_own = name.strip_suffix(SLOTS_END).is_some_and(|name| is_name_of(name, &stem));
        let opened = match is_own {
            true => open_owned(path, OFlags::RDONLY, self.owner),
            false => Err(NOT_OURS),
        };
        let explain = |why: String| format!("{}: {why}", path.display());
        let file = opened.map_err(|errno| explain(reason(path, errno)))?;
        match self.segment.check_head(file.as_fd(), self.segment.slots_end(tier)) {
            Ok(()) | Err(Foreign::Headless) => Ok(File::from(file)),
            Err(foreign) => Err(explain(of_foreign(&foreign))),
        }
    }
}

/// Looks whether `file` has the slots of file tier `tier` of a pool.
///
/// # Errors
/// What to say about it, if they are another pool's.
pub(crate) fn check_head(segment: &Segment, tier: TierId, file: &OwnedFd) -> Result<(), String> {
    let is_empty = || rustix::fs::fstat(file).is_ok_and(|found| found.st_size == 0);
    segment.check_head(file.as_fd(), segment.slots_end(tier)).or_else(|foreign| match foreign {
        // Nothing was ever written there.
        Foreign::Headless if is_empty() => Ok(()),
        foreign => Err(of_foreign(&foreign)),
    })
}

/// For people: why slots, or their table, are not those of the pool.
pub(crate) fn of_foreign(foreign: &Foreign) -> String {
    match foreign {
        Foreign::System(errno) => errno.to_string(),
        Foreign::Headless => "it does not say that it has slots of this pool".to_owned(),
        Foreign::Format(head) => other_version("format", head.format, FORMAT, &head.maker()),
        Foreign::Pool => "it belongs to another pool".to_owned(),
    }
}

fn read_only(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty())
}
