//! What the tiers had of files that are nowhere on their store any more, neither by name nor by identity: it is kept
//! beside the tier's files, as files that can be read, until the user removes it.

use crate::config::{Config, TierKind};
use crate::discovery::{is_private_folder, unguessable_name};
use crate::runtime::Runtime;
use crate::salvage;
use rustix::fd::OwnedFd;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How the name of the folder ends.
const END: &str = ".removed";

/// The folder, which is made with the first file.
pub(crate) struct Keeper {
    /// Its usual name, and the one that it has.
    usual: Option<PathBuf>,
    folder: Option<PathBuf>,
}

impl Keeper {
    /// On the fastest file tier of a configuration.
    pub fn of(config: &Config, runtime: &Runtime) -> Keeper {
        let usual = config.tiers.iter().find_map(|tier| match &tier.kind {
            TierKind::File { path } => {
                Some(path.join(format!("forebay-{}{END}", runtime.instance)))
            }
            TierKind::Ram => None,
        });
        Keeper { usual, folder: None }
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
        let wanted = salvage::name_of_copy(Some(path), store, inode);
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => self.make_folder()?,
        };
        Ok(salvage::create(&folder, &wanted)?.1.into())
    }

    /// A folder that no other user can have made.
    fn make_folder(&mut self) -> Result<PathBuf, (PathBuf, io::Error)> {
        let Some(usual) = &self.usual else {
            return Err((PathBuf::new(), io::ErrorKind::NotFound.into()));
        };
        let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        let folder = match make(usual) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && !is_private_folder(usual) =>
            {
                let other = PathBuf::from(unguessable_name(&usual.to_string_lossy()));
                make(&other).map(|()| other)
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(usual.clone()),
        };
        let folder = folder.map_err(|error| (usual.clone(), error))?;
        self.folder = Some(folder.clone());
        Ok(folder)
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
