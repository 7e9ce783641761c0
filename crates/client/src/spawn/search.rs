//! Which program a name means, as the C library looks for it.

use core::ffi::CStr;
use rustix::fs::{Access, AtFlags, CWD, FileType, Stat};

/// PATH_MAX.
const LONGEST_PATH: usize = 4096;

/// Calls `act` with the first program that is called `name` in the folders of `search`, and what
/// was seen of its file. `None`, and it is not called, if there is none.
pub(super) fn with_found<R>(
    name: &CStr,
    search: &CStr,
    act: impl FnOnce(&CStr, &Stat) -> R,
) -> Option<R> {
    let name = name.to_bytes_with_nul();
    let mut buffer = [0u8; LONGEST_PATH];
    for folder in search.to_bytes().split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        let length = folder.len() + 1 + name.len();
        let Some(path) = buffer.get_mut(..length) else { continue };
        path[..folder.len()].copy_from_slice(folder);
        path[folder.len()] = b'/';
        path[folder.len() + 1..].copy_from_slice(name);
        let Ok(path) = CStr::from_bytes_with_nul(path) else { continue };
        if let Some(stat) = executable_at(path) {
            return Some(act(path, &stat));
        }
    }
    None
}

/// A file that the kernel would execute: not a directory, a FIFO or a device, whatever their modes
/// are.
fn executable_at(path: &CStr) -> Option<Stat> {
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let found = rustix::fs::stat(path).ok().filter(is_file)?;
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).ok().map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, mknodat};
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn found(name: &CStr, search: &str) -> Option<String> {
        let search = CString::new(search).unwrap();
        with_found(name, &search, |path, _| path.to_str().unwrap().to_owned())
    }

    fn put(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_files_that_can_be_executed_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/tool")).unwrap();
        put(&at("b/tool"), 0o644);
        fs::create_dir(at("c")).unwrap();
        mknodat(CWD, at("c/tool"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        put(&at("d"), 0o755);
        put(&at("e/tool"), 0o755);
        put(&at("f/tool"), 0o755);
        let root = folder.path().display();
        let search = |names: &str| {
            let folders = names.chars().map(|name| format!("{root}/{name}"));
            folders.collect::<Vec<_>>().join(":")
        };
        assert_eq!(found(c"tool", &search("abcd")), None);
        assert_eq!(found(c"tool", &search("abcdef")), Some(format!("{root}/e/tool")));
        assert_eq!(found(c"tool", &search("fe")), Some(format!("{root}/f/tool")));
        assert_eq!(found(c"", &search("abcdef")), None);
        assert_eq!(found(c"other", &search("abcdef")), None);
    }

    #[test]
    fn folders_that_are_too_long_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        put(&folder.path().join("tool"), 0o755);
        let root = folder.path().display();
        let search = format!("/{}:{root}", "x".repeat(LONGEST_PATH));
        assert_eq!(found(c"tool", &search), Some(format!("{root}/tool")));
    }
}
