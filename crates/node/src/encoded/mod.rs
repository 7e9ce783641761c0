//! Files of a store that are replaced by an encoded form of themselves, and come back when a
//! program opens them: see docs/design/encoded.md.
//!
//! The file stays what it is (inode, names, owner, mode, attributes, times, size); its bytes are
//! exchanged in place. Before the first of them changes, all encoded bytes are durable in a file
//! `beside`, and the file's mark says so; so a kill, or a loss of power, at any
//! step leaves the original bytes, or the means to make them.

mod beside;
mod desk;
mod encode;
mod swap;

pub use beside::Seen;
pub(crate) use desk::{DESK_THREADS, Desk, DeskThread, Task, Work};
pub use encode::{Encoded, encode};
pub use forebay_active::encoded::Format;
pub(crate) use swap::Dropping;

use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a file was not replaced or restored.
#[derive(Debug)]
pub enum Failure {
    /// The store's errno, and what was done.
    System(&'static str, Errno),
    /// The encoded bytes are damaged: what is wrong.
    Damaged(String),
    /// The encoded bytes that a mark names are not where they were put.
    Missing(PathBuf),
    /// It is of another size than its mark says, so that a program without Forebay has changed it.
    Resized {
        /// Bytes of the original.
        original: u64,
        /// Bytes that it is long.
        size: u64,
    },
    /// A program without Forebay has written behind the encoded bytes: at this offset.
    Overwritten(u64),
    /// The node manager ends: the next one goes on.
    Ending,
    /// It is not replaced: why.
    Refused(Refusal),
}

/// Why a file is left as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A process has it open.
    Open,
    /// It was changed since it was read.
    Changed,
    /// The store does not have all of it yet.
    Pending,
    /// It would not become enough smaller.
    Gain,
    /// It is none that is encoded: an executable, a library, or one with special mode bits.
    Kind,
    /// It is another user's, or its owner may not write it.
    Owner,
    /// The store has no leases, so that it cannot be seen whether a process has the file open.
    Leases,
    /// The store has no extended attributes.
    Attributes,
    /// The store does not tell how much room a file takes, so that an encoded one is not known as
    /// one.
    Blocks,
    /// Several nodes have the store.
    Nodes,
    /// It is encoded already.
    Already,
    /// It lies in none of the instance's directories.
    Elsewhere,
    /// Too many files are being replaced: to be asked again.
    Busy,
}

impl Refusal {
    /// The first is [`forebay_pool::message::BUSY`].
    const ALL: [Refusal; 13] = [
        Refusal::Busy,
        Refusal::Open,
        Refusal::Changed,
        Refusal::Pending,
        Refusal::Gain,
        Refusal::Kind,
        Refusal::Owner,
        Refusal::Leases,
        Refusal::Attributes,
        Refusal::Blocks,
        Refusal::Nodes,
        Refusal::Already,
        Refusal::Elsewhere,
    ];

    /// Its number in messages, from 1.
    pub fn code(self) -> u16 {
        Refusal::ALL.iter().position(|it| *it == self).unwrap_or(0) as u16 + 1
    }

    /// The refusal with that number.
    pub fn of(code: u16) -> Option<Refusal> {
        Refusal::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Whether the same may be tried again soon.
    pub fn may_pass(self) -> bool {
        matches!(self, Refusal::Open | Refusal::Changed | Refusal::Pending | Refusal::Busy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Open => "a process has it open",
            Refusal::Changed => "it was changed while it was encoded",
            Refusal::Pending => "the store does not have all of it yet",
            Refusal::Gain => "its encoded form is not smaller by 64 KiB",
            Refusal::Kind => {
                "it is, or may be, a program or a library, or has a set-id or sticky bit"
            }
            Refusal::Owner => "it is another user's, or its mode does not let its owner write",
            Refusal::Leases => {
                "its file system has no leases (fcntl F_SETLEASE), so that it cannot be seen whether \
                 a process has it open"
            }
            Refusal::Attributes => "its file system has no extended attributes",
            Refusal::Blocks => {
                "its file system does not tell that it takes less room than it is long"
            }
            Refusal::Nodes => "several nodes have its directory",
            Refusal::Already => "it is encoded already",
            Refusal::Elsewhere => "it lies in none of the directories that are buffered",
            Refusal::Busy => "too many files are being replaced",
        })
    }
}

impl Failure {
    /// The errno that a program gets.
    pub fn errno(&self) -> Errno {
        match self {
            Failure::System(_, errno @ (Errno::NOSPC | Errno::DQUOT | Errno::NFILE)) => *errno,
            Failure::Ending => Errno::AGAIN,
            _ => Errno::IO,
        }
    }

    fn errno_of(error: &std::io::Error) -> Errno {
        Errno::from_io_error(error).unwrap_or(Errno::IO)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<forebay_active::Error> for Failure {
    fn from(error: forebay_active::Error) -> Failure {
        match error.io() {
            Some(io) => Failure::System("decoding it", Failure::errno_of(io)),
            None => Failure::Damaged(error.to_string()),
        }
    }
}

/// For `map_err`: what was being done.
fn doing(what: &'static str) -> impl Fn(Errno) -> Failure {
    move |errno| Failure::System(what, errno)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::System(what, errno) => write!(f, "{what}: {errno}"),
            Failure::Damaged(what) => write!(f, "its encoded form {what}"),
            Failure::Missing(path) => {
                write!(f, "its encoded bytes are not in {}, where they were put", path.display())
            }
            Failure::Resized { original, size } => write!(
                f,
                "a program without Forebay has made it {size} bytes long; `truncate -s {original}` of it \
                 undoes that"
            ),
            Failure::Overwritten(offset) => write!(
                f,
                "a program without Forebay has written to it, at byte {offset}, where nothing of its \
                 encoded form is"
            ),
            Failure::Ending => f.write_str("the node manager ends"),
            Failure::Refused(refusal) => refusal.fmt(f),
        }
    }
}

/// The one of `stores` that the file at `path` lies in.
fn store_of<'a>(stores: &'a [PathBuf], path: &Path) -> Option<&'a Path> {
    stores.iter().map(PathBuf::as_path).find(|store| path.starts_with(store))
}
