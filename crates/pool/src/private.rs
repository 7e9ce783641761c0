//! Files of ours in directories that others may write to, /dev/shm and the folders of file tiers:
//! used only if no other user can have a hand in them.
//!
//! ```
//! use forebay_pool::private;
//!
//! let path = std::env::temp_dir().join(format!("forebay-doc-{}", std::process::id()));
//! let file = private::open_or_create(&path, rustix::fs::OFlags::RDWR);
//! assert!(file.is_ok() && private::is_there(&path));
//! private::remove(&path);
//! assert!(!private::is_there(&path));
//! ```

use core::fmt;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

/// The mode of every file of ours.
pub const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Why a file is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A system call failed.
    System(Errno),
    /// It is no regular file.
    Kind,
    /// It belongs to this user.
    Owner(u32),
    /// It has these permissions, not those of its owner alone.
    Mode(u32),
    /// It has so many names.
    Links(u64),
}

impl Wrong {
    /// What to return where only an errno can be.
    pub fn errno(self) -> Errno {
        match self {
            Self::System(errno) => errno,
            Self::Kind => Errno::LOOP,
            Self::Owner(_) | Self::Mode(_) | Self::Links(_) => Errno::PERM,
        }
    }

    /// Whether there is no such file.
    pub fn is_missing(self) -> bool {
        self == Self::System(Errno::NOENT)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(errno) => write!(f, "{errno}"),
            Self::Kind => f.write_str("it is not a regular file; remove it"),
            Self::Owner(uid) => {
                write!(f, "it belongs to user {uid}, not to you; it is not used: have it removed")
            }
            Self::Mode(mode) => write!(
                f,
                "its mode is {mode:04o}, and others may have it open; if it was never open to them, run \
                 chmod 600 on it, else remove it"
            ),
            Self::Links(links) => write!(
                f,
                "it has {links} names (hard links); remove the others, which `find -samefile` lists"
            ),
        }
    }
}

impl core::error::Error for Wrong {}

/// Whether a file is ours alone: regular, with one name, of this user, and of mode 0600.
///
/// # Errors
/// What is wrong with it.
pub fn check(found: &Stat) -> Result<(), Wrong> {
    check_for(found, rustix::process::geteuid().as_raw())
}

/// The same for `user`.
fn check_for(found: &Stat, user: u32) -> Result<(), Wrong> {
    // Of another size on other machines.
    #[allow(clippy::unnecessary_cast)]
    let links = found.st_nlink as u64;
    let mode = found.st_mode & 0o7777;
    if found.st_uid != user {
        Err(Wrong::Owner(found.st_uid))
    } else if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        Err(Wrong::Kind)
    } else if mode != MODE.bits() {
        Err(Wrong::Mode(mode))
    } else if links != 1 {
        Err(Wrong::Links(links))
    } else {
        Ok(())
    }
}

/// Opens a file that is ours alone; `flags` say for what.
///
/// # Errors
/// What is wrong with it, `System(NOENT)` if there is none.
pub fn open(path: impl Arg + Copy, flags: OFlags) -> Result<OwnedFd, Wrong> {
    open_seen(path, flags, rustix::process::geteuid().as_raw()).map(|(file, _)| file)
}

/// The same for a process of `user`, with what was seen of the file.
///
/// # Errors
/// As of [`open`].
pub fn open_seen(
    path: impl Arg + Copy,
    flags: OFlags,
    user: u32,
) -> Result<(OwnedFd, Stat), Wrong> {
    // A FIFO would wait for its other end.
    let usual = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = rustix::fs::openat(rustix::fs::CWD, path, flags | usual, Mode::empty()).map_err(
        |errno| {
            // Say rather what it is than how opening it failed.
            match errno {
                Errno::NOENT => Wrong::System(errno),
                _ => look(path).err().unwrap_or(Wrong::System(errno)),
            }
        },
    )?;
    let seen = rustix::fs::fstat(&file).map_err(Wrong::System)?;
    check_for(&seen, user)?;
    Ok((file, seen))
}

/// Makes a file that is ours alone.
///
/// # Errors
/// The system's errno; `EXIST` when there is something of this name.
pub fn create(path: impl Arg, flags: OFlags) -> Result<OwnedFd, Errno> {
    let usual = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL;
    let file = rustix::fs::openat(rustix::fs::CWD, path, flags | usual, MODE)?;
    // Whatever the process's mask has taken away.
    rustix::fs::fchmod(file.as_fd(), MODE)?;
    Ok(file)
}

/// Opens a file that is ours alone, or makes it.
///
/// # Errors
/// What is wrong with the one that is there, or the system's errno.
pub fn open_or_create(path: impl Arg + Copy, flags: OFlags) -> Result<OwnedFd, Wrong> {
    loop {
        match open(path, flags) {
            Err(wrong) if wrong.is_missing() => {}
            other => return other,
        }
        match create(path, flags) {
            // Made by another process meanwhile.
            Err(Errno::EXIST) => {}
            other => return other.map_err(Wrong::System),
        }
    }
}

/// Looks at what has this name, without opening it.
///
/// # Errors
/// What is wrong with it, `System(NOENT)` if there is none.
pub fn look(path: impl Arg) -> Result<Stat, Wrong> {
    let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(Wrong::System)?;
    check(&found).map(|()| found)
}

/// Removes the file of this name unless it is another user's: root, and the owner of its folder,
/// could remove that too.
pub fn remove(path: impl Arg + Copy) {
    // Another user cannot put theirs in its place meanwhile: the sticky bit keeps ours there.
    if !is_planted(path) {
        let _ = rustix::fs::unlink(path);
    }
}

/// Whether this name was taken by another user: what is there is none of ours.
pub fn is_planted(path: impl Arg) -> bool {
    matches!(look(path), Err(Wrong::Owner(_)))
}

/// Whether there is something of this name that is not another user's.
pub fn is_there(path: impl Arg) -> bool {
    !matches!(look(path), Err(Wrong::Owner(_) | Wrong::System(_)))
}
