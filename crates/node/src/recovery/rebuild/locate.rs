//! Finding files on their stores again: by the path of their records, or by looking through the
//! stores.

use super::recovered::FileHint;
use crate::config::Config;
use crate::journal::record::FileIdentity;
use crate::store::beneath::{Beneath, SEARCH_MAX, Since, Stores, doubt, knows_births};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why nothing is written to what a record names.
const OUTSIDE: &str = "its record names a path outside of the managed directories";
/// See [`OUTSIDE`].
const UNBORN: &str = "its record does not say when the file was born, as it has to on this store";

/// Where a file is now.
pub(super) enum Location {
    At(PathBuf),
    /// Nothing may be written there, for this reason.
    Refused(&'static str),
    /// Nowhere, on a store that is there: it has been removed.
    Removed,
}

/// Files that are not at their paths, by inode number: that of a removed one is soon another's.
type Missing = HashMap<u64, Vec<FileIdentity>>;

/// Finds files by their paths, and those that are not there by looking through the stores once.
pub(super) fn find_files(
    config: &Config,
    files: &HashMap<FileIdentity, FileHint>,
) -> Result<HashMap<FileIdentity, Location>, String> {
    let stores = stores_of(config);
    let mut found = HashMap::new();
    for (store, backing) in config.backing.iter().enumerate() {
        let mut missing = Missing::new();
        for (&key, hint) in files.iter().filter(|(_, hint)| hint.store == store) {
            let seen = stores.seen(&hint.path);
            match seen.map(|seen| hint.known(key).is(&seen, Since::Ever)) {
                Ok(false) => missing.entry(key.inode).or_default().push(key),
                Err(errno) if is_elsewhere(errno) => {
                    missing.entry(key.inode).or_default().push(key);
                }
                // The write to it meets the other errors again.
                _ => drop(found.insert(key, Location::At(hint.path.clone()))),
            }
        }
        if missing.is_empty() {
            continue;
        }
        let root = std::fs::metadata(&backing.path)
            .map_err(|error| format!("{}: {error}", backing.path.display()))?;
        let mut complete = search(&backing.path, files, &mut missing, &mut found);
        // It may have been moved to another of them that is on the same file system.
        let others = config.backing.iter().enumerate().filter(|(other, _)| *other != store);
        for (_, other) in others {
            if missing.is_empty() {
                break;
            }
            match std::fs::metadata(&other.path) {
                Ok(there) if there.dev() != root.dev() => {}
                _ => complete &= search(&other.path, files, &mut missing, &mut found),
            }
        }
        let births = knows_births(&backing.path);
        for key in missing.into_values().flatten() {
            let path = files.get(&key).map(|hint| &hint.path);
            let leads_out = path.is_some_and(|path| {
                !path.as_os_str().is_empty() && stores.seen(path) == Err(Errno::XDEV)
            });
            if leads_out {
                found.insert(key, Location::Refused(OUTSIDE));
            } else if key.born_ns == 0 && births {
                found.insert(key, Location::Refused(UNBORN));
            } else if complete && key.device == root.dev() {
                found.insert(key, Location::Removed);
            }
        }
    }
    Ok(found)
}

/// Whether a file that cannot be looked at for this reason may lie at another path.
fn is_elsewhere(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::STALE
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::XDEV
            | Errno::INVAL
            | Errno::NAMETOOLONG
    )
}

/// Looks for files beneath `folder`, and takes those that it finds out of `missing`. Returns
/// whether it has seen everything there.
fn search(
    folder: &Path,
    files: &HashMap<FileIdentity, FileHint>,
    missing: &mut Missing,
    found: &mut HashMap<FileIdentity, Location>,
) -> bool {
    let Ok(beneath) = Beneath::of(folder) else { return false };
    let mut unknown = false;
    let walked = beneath.walk(SEARCH_MAX, &mut |entry| {
        let Some(keys) = missing.get_mut(&entry.inode) else { return false };
        let seen = match entry.seen() {
            Ok(Some(seen)) => seen,
            Ok(None) => return false,
            Err(errno) => {
                unknown |= doubt(errno).is_some();
                return false;
            }
        };
        let is_it = |key: &FileIdentity| {
            files.get(key).is_some_and(|hint| hint.known(*key).is(&seen, Since::Ever))
        };
        for key in keys.extract_if(.., |key| is_it(key)) {
            found.insert(key, Location::At(entry.path.clone()));
        }
        if keys.is_empty() {
            missing.remove(&entry.inode);
        }
        missing.is_empty()
    });
    !unknown && walked.is_complete()
}

pub(super) fn stores_of(config: &Config) -> Stores {
    Stores::of(config.backing.iter().map(|backing| backing.path.as_path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::beneath::Known;

    #[test]
    fn a_removed_file_hides_none_that_has_its_inode_number_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("renamed");
        std::fs::write(&path, "").unwrap();
        let text = format!(
            "[[backing]]\npath = {:?}\n[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"8MiB\"\n",
            folder.path()
        );
        let config = Config::parse(&text).unwrap();
        let stat = rustix::fs::stat(&path).unwrap();
        let born_ns = Known::seen(std::fs::File::open(&path).unwrap()).unwrap().born_ns;
        assert_ne!(born_ns, 0, "this file system does not know when files were born");
        let key = |born_ns| FileIdentity { device: stat.st_dev, inode: stat.st_ino, born_ns };
        let hint = || FileHint {
            path: folder.path().join("nowhere"),
            store: 0,
            mtime_ns: 0,
            sequence: 0,
            handle: 0,
        };
        let others = (1..9).map(|before| (key(born_ns - before), hint()));
        let files = others.chain([(key(born_ns), hint())]).collect();
        let found = find_files(&config, &files).unwrap();
        assert!(matches!(&found[&key(born_ns)], Location::At(at) if *at == path));
        assert!((1..9).all(|before| matches!(found[&key(born_ns - before)], Location::Removed)));
    }
}
