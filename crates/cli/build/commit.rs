//! Which commit a checkout is at, by the files of git: no program is needed, and it is known which
//! files tell.

use std::fs;
use std::path::{Path, PathBuf};

/// What is known of a checkout.
#[derive(Debug, PartialEq, Eq)]
pub struct Checkout {
    pub commit: String,
    /// The files that change when another commit is checked out or made.
    pub files: Vec<PathBuf>,
}

/// The checkout whose root is this folder, if it is one.
pub fn checkout(root: &Path) -> Option<Checkout> {
    let text = |path: &Path| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    let marker = root.join(".git");
    // In another work tree it is a file with the name of its folder.
    let folder = match text(&marker) {
        Some(named) => root.join(named.strip_prefix("gitdir: ")?),
        None => marker,
    };
    let common = text(&folder.join("commondir")).map_or(folder.clone(), |path| folder.join(path));
    let mut files = vec![folder.join("HEAD")];
    let head = text(&files[0])?;
    let commit = match head.strip_prefix("ref: ") {
        None => head,
        Some(branch) => {
            // A branch that is packed has a file of its own again after its next commit, which is
            // in the log, too.
            files.push(folder.join("logs/HEAD"));
            let loose = common.join(branch);
            match text(&loose) {
                Some(commit) => {
                    files.push(loose);
                    commit
                }
                None => {
                    files.push(common.join("packed-refs"));
                    let packed = text(&common.join("packed-refs"))?;
                    let of_branch = |line: &str| Some(line.strip_suffix(branch)?.trim().to_owned());
                    packed.lines().find_map(of_branch)?
                }
            }
        }
    };
    // Cargo takes one that is missing for one that has changed.
    files.retain(|path| path.exists());
    let is_commit = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then_some(Checkout { commit, files })
}
