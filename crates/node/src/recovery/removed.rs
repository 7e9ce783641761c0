//! What the tiers had of files that are nowhere on their store any more, neither by name nor by
//! identity: it is kept beside the tier's files, as files that can be read, until the user removes
//! it.

use crate::config::{Config, TierKind};
use crate::instance::discovery::{is_private_folder, stem_in, unguessable_name};
use crate::instance::runtime::{KEPT_START, Runtime};
use crate::recovery::copies;
use rustix::fd::OwnedFd;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How the name of the folder ends.
const END: &str = ".removed";

/// The folder, which is made with the first file.
pub(crate) struct Keeper {
    /// The tier's folder, and how the name in it begins.
    place: Option<(PathBuf, String)>,
    folder: Option<PathBuf>,
}

impl Keeper {
    /// On the fastest file tier of a configuration.
    pub fn of(config: &Config, runtime: &Runtime) -> Keeper {
        let place = config.tiers.iter().find_map(|tier| match &tier.kind {
            TierKind::File { path } => {
                Some((path.clone(), format!("{KEPT_START}{}", runtime.instance)))
            }
            TierKind::Ram => None,
        });
        Keeper { place, folder: None }
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
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => self.make_folder()?,
        };
        Ok(copies::create(&folder, &wanted)?.1.into())
    }

    /// A folder that no other user can have made.
    fn make_folder(&mut self) -> Result<PathBuf, (PathBuf, io::Error)> {
        let Some((tier, usual)) = &self.place else {
            return Err((PathBuf::new(), io::ErrorKind::NotFound.into()));
        };
        let named = |stem: &str| tier.join(format!("{stem}{END}"));
        let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        let mut path = named(&stem_in(tier, usual, &[END]));
        let mut made = make(&path);
        if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
            made = match is_private_folder(&path) {
                true => Ok(()),
                false => {
                    path = named(&unguessable_name(usual));
                    make(&path)
                }
            };
        }
        made.map_err(|error| (path.clone(), error))?;
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
            Keeper { place, folder: None }.make_folder().unwrap()
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
        fs::remove_dir(&other).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&usual, Some(65533), Some(65533)).unwrap();
            let other = make();
            assert!(is_other(&other) && is_private_folder(&other), "{}", other.display());
            assert_eq!(make(), other);
        }
    }
}
