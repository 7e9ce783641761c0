//! Why a segment cannot be used.

use crate::layout::{LAYOUT_VERSION, MAKER};
use crate::private::Wrong;
use rustix::io::Errno;
use std::fmt;

/// Why a segment cannot be used.
#[derive(Debug)]
pub enum SegmentError {
    /// A system call failed while doing what the text says.
    System(&'static str, Errno),
    /// Another user may have a hand in the file.
    NotPrivate(Wrong),
    /// Not a Forebay pool, or one that was never finished.
    NotAPool,
    /// Made by another version: the layout version found, and which version of Forebay made it;
    /// empty if it does not say.
    OtherVersion(u32, String),
    /// The sizes in its header contradict each other or the file.
    Damaged(&'static str),
    /// /dev/shm has no room for even the tables: bytes needed.
    NoRoom(u64),
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(what, errno) => write!(f, "{what}: {errno}"),
            Self::NotPrivate(wrong) => write!(f, "{wrong}"),
            Self::NotAPool => f.write_str("it is not a Forebay pool (wrong magic number)"),
            Self::OtherVersion(found, maker) => {
                let maker = if maker.is_empty() { maker } else { &format!(": {maker}") };
                write!(
                    f,
                    "it was made by another version of Forebay{maker} (layout {found}, this is \
                     {MAKER} with layout {LAYOUT_VERSION}; docs/recovery.md#which-version names the one)"
                )
            }
            Self::Damaged(what) => write!(f, "its header is damaged: {what}"),
            Self::NoRoom(bytes) => write!(
                f,
                "no room for its tables ({} MiB); free space in /dev/shm or make the tiers smaller",
                bytes >> 20
            ),
        }
    }
}

impl std::error::Error for SegmentError {}

impl From<Wrong> for SegmentError {
    fn from(wrong: Wrong) -> SegmentError {
        match wrong {
            Wrong::System(errno) => SegmentError::System("opening the pool", errno),
            other => SegmentError::NotPrivate(other),
        }
    }
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> SegmentError {
    move |errno| SegmentError::System(what, errno)
}
