//! Keeping the tiers' files of an instance under other names, which are free.

use crate::instance::runtime::sync_folder_of;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Renames files of tiers, those that are there. Returns their new names.
///
/// # Errors
/// A message that names the file that cannot be renamed; all have their old names then.
pub(super) fn keep(paths: impl Iterator<Item = PathBuf>) -> Result<Vec<String>, String> {
    let mut moved: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in paths {
        match rename_to_lost(&path) {
            Ok(free) => moved.push((path, free)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                for (path, free) in moved.iter().rev() {
                    let _ = rename_to_free(free, path);
                }
                return Err(format!("{}: {error}", path.display()));
            }
        }
    }
    // Before the journal goes: slots may not be there again without it.
    moved.iter().for_each(|(path, _)| sync_folder_of(path));
    Ok(moved.iter().map(|(_, free)| free.display().to_string()).collect())
}

/// Gives a file a name that is free, and replaces nothing: others may put links there, also to
/// nowhere.
fn rename_to_lost(path: &Path) -> std::io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lost");
    let mut free = PathBuf::from(&name);
    let mut number = 0;
    loop {
        match rename_to_free(path, &free) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other.map(|()| free),
        }
        number += 1;
        let mut next = name.clone();
        next.push(format!(".{number}"));
        free = PathBuf::from(next);
    }
}

fn rename_to_free(path: &Path, free: &Path) -> std::io::Result<()> {
    match rustix::fs::renameat_with(CWD, path, CWD, free, RenameFlags::NOREPLACE) {
        // This file system cannot do that.
        Err(Errno::INVAL) if std::fs::symlink_metadata(free).is_ok() => {
            Err(ErrorKind::AlreadyExists.into())
        }
        Err(Errno::INVAL) => std::fs::rename(path, free),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_all_or_none() {
        let folder = tempfile::tempdir().unwrap();
        // A name that has no room for more.
        let names = ["slots", "absent", "index", &"n".repeat(253)];
        let paths = names.map(|name| folder.path().join(name));
        let [slots, absent, index, unmovable] = &paths;
        for path in [slots, index, unmovable] {
            std::fs::write(path, "").unwrap();
        }
        let why = keep(paths.iter().cloned()).unwrap_err();
        assert!(why.starts_with(unmovable.to_str().unwrap()), "{why}");
        assert!([slots, index, unmovable].into_iter().all(|path| path.exists()));
        let kept = keep(paths[..3].iter().cloned()).unwrap();
        assert_eq!(kept, [slots, index].map(|path| format!("{}.lost", path.display())));
        assert!(!slots.exists() && !index.exists() && !absent.exists());
        std::fs::write(slots, "").unwrap();
        let kept = keep(paths[..1].iter().cloned()).unwrap();
        assert_eq!(kept, [format!("{}.lost.1", slots.display())]);
        // A link to nowhere is there all the same.
        std::fs::write(slots, "").unwrap();
        let planted = folder.path().join("slots.lost.2");
        std::os::unix::fs::symlink("/nowhere", &planted).unwrap();
        let kept = keep(paths[..1].iter().cloned()).unwrap();
        assert_eq!(kept, [format!("{}.lost.3", slots.display())]);
        assert!(planted.is_symlink());
    }
}
