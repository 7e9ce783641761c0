//! The paths of files that are lost with a node: the group knows them by their numbers.

use forebay_node::log::shown;
use forebay_node::runtime::Runtime;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

/// Names that are looked at, of all stores together: some tenths of a second on a parallel store.
const NAMES_MAX: usize = 10_000;

/// Gives the lost files of a group's report their paths, as far as they are found with little work.
pub fn name(runtime: &Runtime, report: &mut Value) {
    let Some(files) = report["leases"]["lost_files"].as_array_mut() else { return };
    let mut nameless: BTreeMap<u64, Vec<&mut Value>> = BTreeMap::new();
    for file in files.iter_mut().filter(|file| file["path"].is_null()) {
        if let Some(inode) = file["inode"].as_u64() {
            nameless.entry(inode).or_default().push(file);
        }
    }
    let Some(config) = runtime.read_config().filter(|_| !nameless.is_empty()) else { return };
    let mut left = NAMES_MAX;
    for (store, backing) in config.backing.iter().enumerate() {
        look(&backing.path, &mut left, |inode, path| {
            for file in nameless.get_mut(&inode).into_iter().flatten() {
                if file["store"] == store {
                    file["path"] = json!(shown(path));
                }
            }
        });
    }
}

/// Calls `see` with names below a folder, those that are nearest first.
fn look(folder: &Path, left: &mut usize, mut see: impl FnMut(u64, &Path)) {
    let mut folders = std::collections::VecDeque::from([PathBuf::from(folder)]);
    while let Some(folder) = folders.pop_front() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if *left == 0 {
                return;
            }
            *left -= 1;
            see(entry.ino(), &entry.path());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push_back(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_until_so_many_were_seen() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("file"), "").unwrap();
        let seen = |most: usize| {
            let (mut left, mut seen) = (most, Vec::new());
            look(folder.path(), &mut left, |_, path| seen.push(path.to_owned()));
            seen
        };
        assert_eq!(seen(5), [inner.clone(), inner.join("file")]);
        assert_eq!(seen(1), [inner]);
    }
}
