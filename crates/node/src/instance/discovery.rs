//! Which pools this user has, wherever their node managers were started: found in /dev/shm by owner
//! and content, not by name. And names that no other user can have taken before us.

use forebay_pool::private;
use forebay_pool::segment::{identify, is_blank};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where pools are.
pub(crate) const POOLS: &str = "/dev/shm";

/// What stands between a name and the random number that is added where another user has taken it.
/// No name of a tier has it.
const MARK: char = '~';

/// A pool of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundPool {
    pub path: PathBuf,
    /// Its instance.
    pub instance: String,
    /// The instance's folder, if the pool says which, and it is private.
    pub folder: Option<PathBuf>,
    /// It was never finished: nothing is in it, and it does not tell of its folder. A manager is
    /// making it, or was killed at that.
    pub is_blank: bool,
}

/// Whether `name` is that of an instance.
pub(crate) fn is_instance(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The user whose files are ours.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A number that cannot be guessed.
///
/// # Panics
/// If the kernel has no random numbers.
pub fn unguessable() -> u64 {
    let mut number = [0u8; 8];
    // SAFETY: the buffer is as long as said.
    let got = unsafe { libc::getrandom(number.as_mut_ptr().cast(), number.len(), 0) };
    assert_eq!(got, number.len() as isize, "the kernel has random numbers");
    u64::from_ne_bytes(number)
}

/// `stem`, with a random number behind it.
pub(crate) fn unguessable_name(stem: &str) -> String {
    format!("{stem}{MARK}{:016x}", unguessable())
}

/// Whether `name` is `stem`, alone or with a random number behind it.
pub(crate) fn is_name_of(name: &str, stem: &str) -> bool {
    let rest = name.strip_prefix(stem);
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(MARK).is_some_and(is_instance))
}

/// The stem of files in `folder` that have the names `stem` + one of `ends`: the usual stem, unless
/// another user has taken one of its names and we have none. One that is ours already, with a
/// random number, if there is one.
pub(crate) fn stem_in(folder: &Path, stem: &str, ends: &[&str]) -> String {
    let path = |stem: &str, end: &str| folder.join(format!("{stem}{end}"));
    let is_ours = |found: &fs::Metadata| found.uid() == own_uid();
    let has_ours = |stem: &str| {
        ends.iter().any(|end| fs::symlink_metadata(path(stem, end)).is_ok_and(|f| is_ours(&f)))
    };
    if has_ours(stem) {
        return stem.to_owned();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let of_name = |name: String| {
        let other = ends.iter().find_map(|end| name.strip_suffix(end))?;
        (other != stem && is_name_of(other, stem)).then(|| other.to_owned())
    };
    if let Some(other) = names.filter_map(of_name).filter(|other| has_ours(other)).min() {
        return other;
    }
    match ends.iter().any(|end| private::is_planted(path(stem, end))) {
        true => unguessable_name(stem),
        false => stem.to_owned(),
    }
}

/// The instance that the name of a pool tells.
fn named_instance(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.strip_suffix(".pool")?;
    let instance = name.strip_prefix(&format!("forebay-{}-", own_uid()))?.get(..16)?;
    let stem = pool_stem(instance);
    (is_instance(instance) && is_name_of(name, &stem)).then(|| instance.to_owned())
}

/// How the names of an instance's pool begin.
fn pool_stem(instance: &str) -> String {
    format!("forebay-{}-{instance}", own_uid())
}

/// The pool that a manager of `instance` makes: of the usual name unless another user has that.
pub(crate) fn pool_name(instance: &str) -> PathBuf {
    let stem = pool_stem(instance);
    let usual = Path::new(POOLS).join(format!("{stem}.pool"));
    match private::is_planted(&usual) {
        true => Path::new(POOLS).join(format!("{}.pool", unguessable_name(&stem))),
        false => usual,
    }
}

/// Whether a folder is this user's alone.
pub(crate) fn is_private_folder(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == own_uid() && found.permissions().mode() & 0o077 == 0
    })
}

/// The folder that a pool tells of, if it can be no other user's: neither it nor the one above it.
fn trusted(folder: PathBuf) -> Option<PathBuf> {
    let above = folder.parent()?;
    (folder.is_absolute() && is_private_folder(above) && is_private_folder(&folder))
        .then_some(folder)
}

/// What kind of pool `path` is, if it is one of this user's.
fn look_at(path: PathBuf) -> Option<FoundPool> {
    let found = fs::symlink_metadata(&path).ok()?;
    if !found.is_file() || found.uid() != own_uid() {
        return None;
    }
    let named = named_instance(&path);
    let file = private::open(&path, OFlags::RDONLY).ok();
    let is_blank = file.as_ref().is_some_and(|file| is_blank(file.as_fd()));
    let told = file.and_then(|file| identify(file.as_fd()));
    let told = told.filter(|told| told.is_original || named.as_ref() == Some(&told.instance));
    let (instance, folder) = match told {
        Some(told) if is_instance(&told.instance) => (told.instance, trusted(told.folder)),
        // Unfinished, damaged, or of an older version.
        _ => (named?, None),
    };
    Some(FoundPool { path, instance, folder, is_blank })
}

/// All pools of this user, by instance.
///
/// # Errors
/// A message when /dev/shm cannot be listed.
pub(crate) fn pools() -> Result<Vec<FoundPool>, String> {
    let entries = fs::read_dir(POOLS).map_err(|error| format!("{POOLS}: {error}"))?;
    let mut found: Vec<_> = entries.filter_map(|entry| look_at(entry.ok()?.path())).collect();
    found.sort_by(|a, b| (&a.instance, &a.path).cmp(&(&b.instance, &b.path)));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_a_number_are_known() {
        let stem = "forebay-0123456789abcdef-nvme";
        assert!(is_name_of(stem, stem));
        assert!(is_name_of(&unguessable_name(stem), stem));
        assert_ne!(unguessable_name(stem), unguessable_name(stem));
        for other in ["forebay-0123456789abcdef-nvme2", "forebay-0123456789abcdef-nvme~", "x"] {
            assert!(!is_name_of(other, stem), "{other}");
        }
        let pool = format!("/dev/shm/{}.pool", pool_stem("0123456789abcdef"));
        assert_eq!(named_instance(Path::new(&pool)).as_deref(), Some("0123456789abcdef"));
        assert_eq!(named_instance(Path::new("/dev/shm/forebay-x.pool")), None);
    }

    #[test]
    fn a_folder_that_others_can_replace_is_not_trusted() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("instance");
        fs::create_dir(&folder).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        mode(root.path(), 0o700).unwrap();
        mode(&folder, 0o700).unwrap();
        assert_eq!(trusted(folder.clone()), Some(folder.clone()));
        mode(&folder, 0o750).unwrap();
        assert_eq!(trusted(folder.clone()), None);
        mode(&folder, 0o700).unwrap();
        mode(root.path(), 0o777).unwrap();
        assert_eq!(trusted(folder), None);
    }
}
