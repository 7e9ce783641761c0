//! Files that recovery makes for what a store cannot take: their names, their times, the directory
//! for them.

use forebay_pool::clock;
use rustix::fd::AsFd;
use rustix::fs::{Timespec, Timestamps};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Where files go whose path is not known.
pub(crate) const UNNAMED: &str = "forebay-unnamed";

/// The name of the copy of a file that was opened as `path` below `store`; of one whose path is not
/// known, or leads elsewhere, its inode tells.
pub(crate) fn name_of_copy(path: Option<&Path>, store: &Path, inode: u64) -> PathBuf {
    let relative = path.and_then(|path| path.strip_prefix(store).ok()).filter(|path| {
        let mut parts = path.components();
        parts.clone().count() > 0 && parts.all(|part| matches!(part, Component::Normal(_)))
    });
    match relative {
        Some(relative) => relative.to_owned(),
        None => Path::new(UNNAMED).join(format!("inode-{inode}")),
    }
}

/// Makes `wanted` below `target`, or a name like it that is still free.
///
/// # Errors
/// The system's, and of which file.
pub(crate) fn create(
    target: &Path,
    wanted: &Path,
) -> Result<(PathBuf, File), (PathBuf, io::Error)> {
    let whole = target.join(wanted);
    let folder = whole.parent().unwrap_or(target);
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let mut turn = 0;
    loop {
        turn += 1;
        let mut name = wanted.as_os_str().to_owned();
        if turn > 1 {
            name.push(format!(".{turn}"));
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        match made.and_then(|()| options.open(target.join(&name))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && turn < 1000 => {}
            Err(error) => return Err((whole, error)),
            Ok(file) => return Ok((name.into(), file)),
        }
    }
}

/// Gives a file a modification time, in nanoseconds of CLOCK_REALTIME, if it may: only the owner of
/// a file sets its times.
pub(crate) fn set_modified(file: impl AsFd, mtime_ns: u64) {
    let (seconds, nanoseconds) = clock::parted_ns(mtime_ns);
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
    };
    let _ = rustix::fs::futimens(file, &times);
}

/// Makes the target directory, or accepts an empty one.
///
/// # Errors
/// The system's, and `DirectoryNotEmpty`.
pub fn prepare_target(target: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match std::fs::read_dir(target)?.next() {
        None => Ok(()),
        Some(_) => Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty)),
    }
}
