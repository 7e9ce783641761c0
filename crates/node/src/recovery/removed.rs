//! What the tiers had of files that are nowhere on their store any more, neither by name nor by
//! identity: it is kept beside the tier's files, as files that can be read, until the user removes
//! it. A recovery after a reboot keeps what fsync has acknowledged; a node manager sets aside what
//! it could not flush.

use crate::config::{Config, TierKind};
use crate::instance::discovery::{is_name_of, is_private_folder, unguessable_name};
use crate::instance::runtime::{KEPT_START, Runtime};
use crate::recovery::copies;
use crate::store::beneath::Known;
use forebay_pool::crash;
use rustix::fd::OwnedFd;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How the name of the folder ends.
const END: &str = ".removed";

/// A file that is not whole yet.
const PARTIAL: &str = ".forebay-partial";

/// The files in a folder, and what is below it.
fn files_in(folder: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let mut folders = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(seen) if seen.is_dir() => folders.push(entry.path()),
                Ok(seen) if entry.file_name() != PARTIAL => found.push((entry.path(), seen)),
                _ => {}
            }
        }
    }
    found
}

/// The folders in a tier's whose names begin with `stem`, and that no other user can have made; the
/// one with the usual name first.
fn private_folders(tier: &Path, stem: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(tier).into_iter().flatten().flatten();
    let is_ours = |name: &str| name.strip_suffix(END).is_some_and(|name| is_name_of(name, stem));
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| is_ours(name)).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let paths = names.into_iter().map(|name| tier.join(name));
    paths.filter(|path| is_private_folder(path)).collect()
}

/// What was kept of an instance's files that were nowhere on their store, and when it was put
/// there: seconds since 1970.
pub fn kept(config: &Config, runtime: &Runtime) -> Vec<(PathBuf, i64)> {
    let Some((tier, stem)) = Keeper::of(config, runtime).place else { return Vec::new() };
    let files = private_folders(&tier, &stem).into_iter().flat_map(|folder| files_in(&folder));
    let mut found: Vec<_> = files.map(|(path, seen)| (path, seen.ctime())).collect();
    found.sort();
    found
}

/// How the name of what is set aside ends: which file it was.
fn mark((inode, born_ns): (u64, u64)) -> String {
    format!("{inode}-{born_ns}")
}

/// Whether `path` is where the file with this inode number and time of birth was set aside.
pub fn is_of(path: &Path, identity: (u64, u64)) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let rest = name.strip_suffix(mark(identity).as_bytes());
    rest.is_some_and(|rest| rest.ends_with(b".") || rest == UNNAMED_START.as_bytes())
}

/// How the name begins where a file's own cannot be had.
const UNNAMED_START: &str = "inode-";

/// The folder, which is made with the first file.
pub(crate) struct Keeper {
    /// The tier's folder, and how the name in it begins.
    place: Option<(PathBuf, String)>,
    folder: Option<PathBuf>,
    /// Bytes beyond which nothing more is set aside there.
    most: u64,
    /// What is there, once it was summed.
    used: Option<u64>,
}

impl Keeper {
    /// On the fastest file tier of a configuration.
    pub fn of(config: &Config, runtime: &Runtime) -> Keeper {
        let found = config.tiers.iter().find_map(|tier| match &tier.kind {
            TierKind::File { path } => Some((path, tier.capacity)),
            TierKind::Ram => None,
        });
        let most = found.map_or(0, |(_, capacity)| capacity);
        let stem = format!("{KEPT_START}{}", runtime.instance);
        let place = found.map(|(path, _)| (path.clone(), stem));
        Keeper { place, folder: None, most, used: None }
    }

    /// Makes the file that takes what there is of the one that was opened as `path`.
    ///
    /// # Errors
    /// The system's, and of which file.
    pub fn make(
        &mut self,
        path: &Path,
        store: &Path,
        inode: u64,
    ) -> Result<OwnedFd, (PathBuf, io::Error)> {
        let wanted = copies::name_of_copy(Some(path), store, inode);
        let folder = self.folder()?;
        Ok(copies::create(&folder, &wanted)?.1.into())
    }

    /// Makes the file that takes what the tiers have of the one that was opened as `path` beneath
    /// `store`, about so many bytes: `write` writes it, under another name at first. It replaces
    /// what was set aside of the same file before. Returns where it is, durably.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn set_aside(
        &mut self,
        (path, store): (&Path, &Path),
        known: &Known,
        bytes: u64,
        write: impl FnOnce(&File) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let explain = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {error}")
        };
        let folder = self.folder().map_err(|(path, error)| explain(&path)(error))?;
        let taken = |found: &fs::Metadata| found.blocks() * 512;
        let used = *self
            .used
            .get_or_insert_with(|| files_in(&folder).iter().map(|(_, found)| taken(found)).sum());
        if used.saturating_add(bytes) > self.most {
            return Err(format!(
                "{} has {used} bytes already, and may have {}; remove what is not wanted",
                folder.display(),
                self.most
            ));
        }
        let partial = folder.join(PARTIAL);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let out = options.open(&partial).map_err(explain(&partial))?;
        let written = write(&out).and_then(|()| out.sync_all().map_err(explain(&partial)));
        if let Err(why) = written {
            let _ = fs::remove_file(&partial);
            return Err(why);
        }
        crash::point("aside.written");
        let mark = mark((known.inode, known.born_ns));
        let mut named = copies::name_of_copy(Some(path), store, known.inode).into_os_string();
        named.push(format!(".{mark}"));
        let unnamed = Path::new(copies::UNNAMED).join(format!("{UNNAMED_START}{mark}"));
        let place = |name: &Path| {
            let whole = folder.join(name);
            let above = whole.parent().unwrap_or(&folder);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
            fs::rename(&partial, &whole)?;
            // Those that were made, too.
            for above in whole.ancestors().skip(1).take_while(|above| above.starts_with(&folder)) {
                File::open(above)?.sync_all()?;
            }
            File::open(folder.parent().unwrap_or(&folder))?.sync_all()?;
            Ok(whole)
        };
        // A name may be too long now, or a folder's.
        let placed = place(Path::new(&named)).or_else(|_| place(&unnamed));
        let placed = placed.map_err(explain(&folder))?;
        self.used = Some(used + out.metadata().map_or(bytes, |found| taken(&found)));
        Ok(placed)
    }

    /// A folder that no other user can have made.
    fn folder(&mut self) -> Result<PathBuf, (PathBuf, io::Error)> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let Some((tier, stem)) = &self.place else {
            return Err((PathBuf::new(), io::ErrorKind::NotFound.into()));
        };
        let path = match private_folders(tier, stem).into_iter().next() {
            Some(path) => path,
            None => {
                let make = |stem: &str| {
                    let path = tier.join(format!("{stem}{END}"));
                    let made = fs::DirBuilder::new().mode(0o700).create(&path);
                    made.map(|()| path.clone()).map_err(|error| (path, error))
                };
                match make(stem) {
                    Err((_, error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                        make(&unguessable_name(stem))?
                    }
                    made => made?,
                }
            }
        };
        self.folder = Some(path.clone());
        Ok(path)
    }

    /// Makes everything durable. Returns the folder, if there is anything in it.
    ///
    /// # Errors
    /// The system's, and of which file.
    pub fn finish(self) -> Result<Option<PathBuf>, (PathBuf, io::Error)> {
        if let Some(folder) = &self.folder {
            let synced = File::open(folder).and_then(|file| Ok(rustix::fs::syncfs(file)?));
            synced.map_err(|error| (folder.clone(), error))?;
        }
        Ok(self.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn a_folder_has_its_end_whatever_lies_in_the_way_and_is_found_again() {
        let tier = tempfile::tempdir().unwrap();
        let usual = tier.path().join("forebay-0123456789abcdef.removed");
        let make = || {
            let stem = "forebay-0123456789abcdef".to_owned();
            let place = Some((tier.path().to_owned(), stem));
            Keeper { place, folder: None, most: 0, used: None }.folder().unwrap()
        };
        assert_eq!(make(), usual);
        assert_eq!(make(), usual);
        // One of ours that others may enter.
        fs::set_permissions(&usual, fs::Permissions::from_mode(0o755)).unwrap();
        let is_other = |folder: &Path| {
            let name = folder.file_name().unwrap().to_str().unwrap();
            let number = name.strip_prefix("forebay-0123456789abcdef~");
            number.and_then(|rest| rest.strip_suffix(END)).is_some_and(|number| number.len() == 16)
        };
        let other = make();
        assert!(is_other(&other) && is_private_folder(&other), "{}", other.display());
        assert_eq!(make(), other);
        fs::remove_dir(&other).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&usual, Some(65533), Some(65533)).unwrap();
            let other = make();
            assert!(is_other(&other) && is_private_folder(&other), "{}", other.display());
            assert_eq!(make(), other);
        }
    }
}
