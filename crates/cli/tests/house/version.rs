//! What `forebay --version` says of the build.

#[path = "../../build/commit.rs"]
mod commit;

use crate::harness::{FOREBAY, LAZY, Site, have};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_version_says_how_the_command_was_built() {
    let said = |option: &str| {
        let ran = Command::new(FOREBAY).arg(option).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    assert_eq!(said("-V"), format!("forebay {VERSION}\n"));
    let whole = said("--version");
    let lines: Vec<_> = whole.lines().collect();
    assert_eq!(lines[0], format!("forebay {VERSION}"));
    let names: Vec<_> = lines[1..5].iter().map(|line| &line[..9]).collect();
    assert_eq!(names, ["commit   ", "profile  ", "target   ", "features "], "{whole}");
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    assert_eq!(&lines[2][9..], profile);
    assert!(lines[3][9..].starts_with(std::env::consts::ARCH), "{whole}");
    assert_eq!(lines[4][9..].contains("bench"), cfg!(feature = "bench"), "{whole}");
}

/// Runs git in a folder, as a user without settings.
fn git(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new("git");
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "a")
            .env(format!("GIT_{who}_EMAIL"), "a@example.org");
    }
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let ran = command.arg("-C").arg(folder).args(words).output().unwrap();
    assert!(ran.status.success(), "{words:?}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

/// What a look at a checkout has found: the commit, and the files that tell, with what was in them.
struct Looked {
    at: PathBuf,
    commit: String,
    files: Vec<(PathBuf, String)>,
}

#[test]
fn the_commit_is_found_as_git_has_it_and_its_files_change_with_it() {
    if !have(&["git"]) {
        return;
    }
    let site = Site::new(&LAZY);
    let main = site.out.join("main");
    fs::create_dir(&main).unwrap();
    assert_eq!(commit::checkout(&main), None, "no checkout");
    git(&main, &["init", "-q", "-b", "trunk"]);
    assert_eq!(commit::checkout(&main), None, "no commit");
    let empty = ["commit", "-q", "--allow-empty", "-m", "x"];
    let mut last: Option<Looked> = None;
    let mut look = |folder: &Path, what: &str| {
        let found = commit::checkout(folder).unwrap_or_else(|| panic!("{what}: nothing"));
        assert_eq!(found.commit, git(folder, &["rev-parse", "HEAD"]), "{what}");
        let text = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
        if let Some(Looked { at, commit: before, files }) = &last
            && at == folder
        {
            let changed = files.iter().any(|(path, then)| text(path) != *then);
            assert!(changed || *before == found.commit, "{what}: cargo would not see it");
        }
        let files = found.files.iter().map(|path| (path.clone(), text(path))).collect();
        last = Some(Looked { at: folder.to_owned(), commit: found.commit, files });
    };
    git(&main, &empty);
    look(&main, "a branch");
    git(&main, &["pack-refs", "--all"]);
    look(&main, "a packed branch");
    git(&main, &empty);
    look(&main, "a commit to a packed branch");
    git(&main, &["checkout", "-q", "-b", "deep/branch", "HEAD~"]);
    look(&main, "another branch");
    git(&main, &["checkout", "-q", "--detach", "trunk"]);
    look(&main, "no branch");
    let other = site.out.join("other");
    git(&main, &["worktree", "add", "-q", "-b", "other", other.to_str().unwrap(), "HEAD~"]);
    look(&other, "another work tree");
    git(&other, &empty);
    look(&other, "a commit there");
}
