//! The folder of all instances of a user, and private files in it.

use crate::instance::discovery::{self, is_private_folder, own_uid};
use forebay_pool::crash;
use forebay_pool::private::{self, Wrong};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the longest folder that leaves room for `/INSTANCE/socket` and the final 0 in the 108
/// bytes of a socket's address.
pub(super) const FOLDER_MAX: usize = 108 - 1 - "/0123456789abcdef/socket".len();

/// This user's folder for all instances: `$FOREBAY_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/forebay`,
/// else /tmp/forebay-UID. A variable that is empty counts as not set. Made if missing, and refused
/// if it is not this user's alone, or too long for a socket's name.
///
/// # Errors
/// A message that names the folder and what is wrong with it.
pub fn base() -> Result<PathBuf, String> {
    let given = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = given("FOREBAY_RUNTIME_DIR").map(PathBuf::from);
    let session = given("XDG_RUNTIME_DIR")
        .map(|folder| PathBuf::from(folder).join("forebay"))
        .filter(|folder| folder.is_absolute() && folder.parent().is_some_and(Path::is_dir));
    let folder = named.or(session).unwrap_or_else(|| shared_base(Path::new(SHARED)));
    let wrong = |what: &str| Err(format!("{}: {what}", folder.display()));
    // Commands in other directories must find the same node managers.
    if !folder.is_absolute() {
        return wrong("is not an absolute path; set FOREBAY_RUNTIME_DIR to one that is");
    }
    if folder.as_os_str().len() > FOLDER_MAX {
        return wrong(&format!(
            "sockets below it would have too long a name; set FOREBAY_RUNTIME_DIR to a folder of up \
             to {FOLDER_MAX} bytes"
        ));
    }
    private_folder(&folder)?;
    Ok(folder)
}

/// Writes a file that only this user can read, if the one that is there is ours alone.
///
/// # Errors
/// What is wrong with it, or the system's error.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::from(private::open_or_create(path, OFlags::WRONLY).map_err(refused)?);
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

/// The same as a whole: whenever this process is killed, the file is the old one or the new one.
/// Not synced.
///
/// # Errors
/// The system's error.
pub(crate) fn replace_private(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    private::remove(&new);
    let mut file = File::from(private::create(&new, OFlags::WRONLY)?);
    file.write_all(text.as_bytes())?;
    crash::point("action.writing");
    fs::rename(&new, path)
}

/// Reads a configuration that is ours alone.
///
/// # Errors
/// What is wrong with it, or the system's error.
pub fn read_private(path: &Path) -> io::Result<String> {
    let file = File::from(private::open(path, OFlags::RDONLY).map_err(refused)?);
    String::from_utf8(crate::config::read_all(file)?).map_err(io::Error::other)
}

/// Opens a log for more to be added.
///
/// # Errors
/// What is wrong with it, or the system's error.
pub fn append_private(path: &Path) -> io::Result<File> {
    private::open_or_create(path, OFlags::WRONLY | OFlags::APPEND).map(File::from).map_err(refused)
}

pub(super) fn refused(wrong: Wrong) -> io::Error {
    match wrong {
        Wrong::System(errno) => errno.into(),
        other => io::Error::new(ErrorKind::PermissionDenied, other),
    }
}

/// Where the folder of all instances is if nothing is said.
pub(super) const SHARED: &str = "/tmp";

/// This user's folder in one that all users share: of the usual name, unless another user has taken
/// that.
pub(super) fn shared_base(shared: &Path) -> PathBuf {
    let stem = format!("forebay-{}", own_uid());
    let usual = shared.join(&stem);
    let entries = || fs::read_dir(shared).into_iter().flatten().flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| discovery::is_name_of(name, &stem)) && is_private_folder(path)
    };
    if is_private_folder(&usual) {
        return usual;
    }
    if let Some(other) = entries().map(|entry| entry.path()).filter(is_ours).min() {
        return other;
    }
    // Of ours only: another is refused, with a message.
    match fs::symlink_metadata(&usual).is_ok_and(|found| found.uid() != own_uid()) {
        true => shared.join(discovery::unguessable_name(&stem)),
        false => usual,
    }
}

pub(super) fn private_folder(folder: &Path) -> Result<(), String> {
    let wrong = |what: &str| format!("{}: {what}", folder.display());
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(wrong(&format!(
                "cannot make the folder: {error}; make it, or set FOREBAY_RUNTIME_DIR to another"
            )));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(|error| wrong(&error.to_string()))?;
    if !found.is_dir() || found.uid() != own_uid() {
        return Err(wrong("is not a folder of yours; remove it or set FOREBAY_RUNTIME_DIR"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(wrong("is open to other users; run chmod 700 on it"));
    }
    Ok(())
}

/// The name of a file, too, has to be there after a power loss.
pub(crate) fn sync_folder_of(path: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Some(folder) = path.parent()
        && let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty())
    {
        let _ = rustix::fs::fsync(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn a_planted_folder_of_all_instances_is_gone_around_and_the_other_found_again() {
        if own_uid() != 0 {
            eprintln!("SKIPPED: only root can be two users");
            return;
        }
        let shared = tempfile::tempdir().unwrap();
        let usual = shared.path().join("forebay-0");
        assert_eq!(shared_base(shared.path()), usual);
        fs::create_dir(&usual).unwrap();
        chown(&usual, Some(65533), Some(65533)).unwrap();
        let other = shared_base(shared.path());
        assert_ne!(other, usual);
        assert_ne!(other, shared_base(shared.path()), "it can be guessed");
        private_folder(&other).unwrap();
        assert_eq!(shared_base(shared.path()), other);
        // Nor is one with a name like ours that another user has made.
        let like = shared.path().join("forebay-0~0000000000000000");
        fs::create_dir(&like).unwrap();
        chown(&like, Some(65533), Some(65533)).unwrap();
        assert_eq!(shared_base(shared.path()), other);
        // One of ours that is open to others is refused, with its name.
        fs::remove_dir(&usual).unwrap();
        assert_eq!(shared_base(shared.path()), other);
        fs::remove_dir(&other).unwrap();
        fs::create_dir(&usual).unwrap();
        fs::set_permissions(&usual, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(shared_base(shared.path()), usual);
    }
}
