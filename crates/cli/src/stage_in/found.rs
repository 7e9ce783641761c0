//! The files that the arguments of `forebay stage-in` and their lists, or those of
//! `forebay stage-out`, name.

use crate::signals;
use forebay_pool::Identity;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file to be staged in.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// As the kernel has it.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    pub identity: Identity,
}

/// A path that cannot be staged in.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    pub path: PathBuf,
    pub reason: String,
    /// The error that looking at it ended with; none if it is nothing that can be staged in.
    pub error: Option<io::ErrorKind>,
}

/// All files below some paths, each once, in the order in which they were found, and what cannot be
/// staged in.
#[derive(Default)]
pub struct Files {
    pub found: Vec<Found>,
    pub left: Vec<Left>,
    seen: HashSet<Identity>,
    /// The directories that node managers buffer: no others are looked through.
    stores: Vec<PathBuf>,
}

impl Files {
    /// None yet of those in `stores`.
    pub fn within(stores: Vec<PathBuf>) -> Files {
        Files { stores, ..Files::default() }
    }

    /// Adds what `path` names: a file, or a directory with all below it.
    pub fn add(&mut self, path: &Path) {
        match path.canonicalize().and_then(|whole| Ok((fs::metadata(&whole)?, whole))) {
            Ok((found, whole)) => self.look(whole, &found),
            Err(error) => self.fail(path, &error),
        }
    }

    /// The canonical `path`, and what is below it, until a signal ends the command. Without
    /// recursion: a tree may be deep.
    fn look(&mut self, path: PathBuf, found: &Metadata) {
        let mut ahead = vec![(path, found.clone(), Vec::new())];
        while signals::early().is_none()
            && let Some((path, found, above)) = ahead.pop()
        {
            if found.is_dir() {
                ahead.extend(self.entries(path, &found, above));
            } else if let Some(kind) = special(found.file_type()) {
                self.leave(&path, format!("it is {kind}, and no regular file"));
            } else if self.is_new(&found) {
                self.found.push(Found { path, size: found.size(), identity: identity_of(&found) });
            }
        }
    }

    /// What a directory has, the first one last. `above` are the directories that it is in.
    fn entries(
        &mut self,
        path: PathBuf,
        found: &Metadata,
        above: Vec<Identity>,
    ) -> Vec<(PathBuf, Metadata, Vec<Identity>)> {
        if !self.is_new(found) {
            return Vec::new();
        }
        let is_near = |store: &PathBuf| store.starts_with(&path) || path.starts_with(store);
        if !self.stores.iter().any(is_near) {
            self.leave(&path, NOT_BUFFERED);
            return Vec::new();
        }
        let mut names: Vec<PathBuf> = match fs::read_dir(&path) {
            Ok(entries) => entries
                .take_while(|_| signals::early().is_none())
                .filter_map(|entry| match entry {
                    Ok(entry) => Some(entry.path()),
                    Err(error) => {
                        self.fail(&path, &error);
                        None
                    }
                })
                .collect(),
            Err(error) => {
                self.fail(&path, &error);
                return Vec::new();
            }
        };
        names.sort_unstable();
        let below: Vec<Identity> = above.into_iter().chain([identity_of(found)]).collect();
        let mut entries = Vec::new();
        for name in names.into_iter().rev().take_while(|_| signals::early().is_none()) {
            // A link is what it leads to, also to elsewhere.
            let is_link = fs::symlink_metadata(&name).is_ok_and(|found| found.is_symlink());
            let whole = if is_link { name.canonicalize() } else { Ok(name.clone()) };
            match whole.and_then(|whole| Ok((fs::metadata(&whole)?, whole))) {
                Ok((found, _)) if is_link && below.contains(&identity_of(&found)) => {
                    self.leave(&name, "it leads to a directory that it lies in: a loop");
                }
                Ok((found, whole)) => entries.push((whole, found, below.clone())),
                Err(error) => self.fail(&name, &error),
            }
        }
        entries
    }

    fn is_new(&mut self, found: &Metadata) -> bool {
        self.seen.insert(identity_of(found))
    }

    fn leave(&mut self, path: &Path, reason: impl ToString) {
        self.left.push(Left { path: path.to_owned(), reason: reason.to_string(), error: None });
    }

    fn fail(&mut self, path: &Path, error: &io::Error) {
        let (reason, kind) = (error.to_string(), error.kind());
        self.left.push(Left { path: path.to_owned(), reason, error: Some(kind) });
    }
}

/// Why a directory, or a file, is not looked at.
pub const NOT_BUFFERED: &str =
    "no node manager of yours buffers it; `forebay up` starts one, `forebay status` lists them";

fn identity_of(found: &Metadata) -> Identity {
    Identity { device: found.dev(), inode: found.ino() }
}

/// What a file is that is neither a regular one nor a directory.
fn special(kind: FileType) -> Option<&'static str> {
    let is_special = [
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_block_device() || kind.is_char_device(), "a device"),
    ];
    is_special.into_iter().find(|(is_it, _)| *is_it).map(|(_, name)| name)
}

/// The paths in a list: one on each line, or, with `nul`, each ended by a NUL.
///
/// # Errors
/// A message that names the list.
pub fn listed(list: &Path, nul: bool) -> Result<Vec<PathBuf>, String> {
    let mut text = Vec::new();
    let read = match list == Path::new("-") {
        true => std::io::stdin().lock().read_to_end(&mut text).map(drop),
        false => fs::read(list).map(|read| text = read),
    };
    read.map_err(|error| format!("--files-from {}: {error}", list.display()))?;
    let path = |name: &[u8]| PathBuf::from(OsStr::from_bytes(name));
    if !nul && text.contains(&0) {
        return Err(format!(
            "--files-from {}: it has a NUL byte; with -0 paths are ended by these, as `find -print0` does",
            list.display()
        ));
    }
    let end = if nul { 0 } else { b'\n' };
    let names = text.split(|byte| *byte == end).filter(|name| !name.is_empty());
    Ok(names.map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_tree_is_found_in_order_and_each_file_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("b/c")).unwrap();
        fs::write(root.join("b/c/two"), "22").unwrap();
        fs::write(root.join("a"), "1").unwrap();
        fs::hard_link(root.join("a"), root.join("b/again")).unwrap();
        symlink(root.join("b"), root.join("b/c/loop")).unwrap();
        symlink("nowhere", root.join("b/dangling")).unwrap();
        fs::create_dir(root.join("above")).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("file"), "3").unwrap();
        symlink(elsewhere.path(), root.join("c")).unwrap();
        let mut files = Files::within(vec![root.join("above"), root.join("a"), root.join("b")]);
        files.add(&root);
        files.add(&root.join("a"));
        let found: Vec<_> = files.found.iter().map(|found| (&found.path, found.size)).collect();
        assert_eq!(found, [(&root.join("a"), 1), (&root.join("b/c/two"), 2)]);
        let left: Vec<_> = files.left.iter().map(|left| &left.path).collect();
        assert_eq!(
            left,
            [
                &root.join("b/dangling"),
                &root.join("b/c/loop"),
                &elsewhere.path().canonicalize().unwrap()
            ]
        );
        assert_eq!(files.left[2].reason, NOT_BUFFERED);
        assert!(files.left[1].reason.contains("loop"), "{:?}", files.left);
    }

    #[test]
    fn lists_have_lines_or_nul_ended_names() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list");
        fs::write(&list, b"one\n\ntwo two\nthr\xffee").unwrap();
        let wanted = [&b"one"[..], b"two two", b"thr\xffee"]
            .map(|name| PathBuf::from(OsStr::from_bytes(name)));
        assert_eq!(listed(&list, false).unwrap(), wanted);
        fs::write(&list, b"a\nb\0c\0").unwrap();
        assert_eq!(listed(&list, true).unwrap(), ["a\nb", "c"].map(PathBuf::from));
        assert!(listed(&list, false).unwrap_err().contains("-0"));
        assert!(listed(&folder.path().join("none"), false).unwrap_err().contains("none"));
    }
}
