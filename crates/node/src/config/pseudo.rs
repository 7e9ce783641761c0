//! Directories that cannot be buffered, nor hold a tier, whatever may be written there: those of
//! pseudo file systems, of devices, and that of shared memory itself.

use rustix::fs::statfs;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// File systems that show what the kernel has, by their `statfs` type: what is read or written
/// there is a call to the kernel, no data that could be kept somewhere else for a while.
const PSEUDO: [(u32, &str); 23] = [
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x0000_1cd1, "devpts"),
    (0x7363_6673, "securityfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x4341_5d53, "smackfs"),
    (0x5a3c_69f0, "apparmorfs"),
    (0xcafe_4a11, "bpf"),
    (0x6165_676c, "pstore"),
    (0xde5e_81e4, "efivarfs"),
    (0x6265_6570, "configfs"),
    (0x6573_5543, "fusectl"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x1980_0202, "mqueue"),
    (0x9584_58f6, "hugetlbfs"),
    (0x0765_5821, "resctrl"),
    (0x6759_6969, "rpc_pipefs"),
    (0x6e66_7364, "nfsd"),
    (0x6e73_6673, "nsfs"),
];

/// Why a directory, by its canonical path, is none for data.
pub(super) fn why_not(canonical: &Path) -> Option<String> {
    // An error is one of the calls that need the directory.
    let kind = statfs(canonical).ok()?.f_type as u32;
    if let Some((_, name)) = PSEUDO.iter().find(|(known, _)| *known == kind) {
        return Some(format!(
            "it is of a pseudo file system ({name}), which has no data; give a directory with data"
        ));
    }
    is_of_devices(canonical).then(|| {
        "it is the directory of devices and shared memory; give a directory with data, which may lie in /dev/shm"
            .to_owned()
    })
}

/// Whether it is /dev, what is there on the same file system, or /dev/shm: devtmpfs and tmpfs are
/// of one type. Directories in /dev/shm have data as others.
fn is_of_devices(canonical: &Path) -> bool {
    let (devices, memory) = (Path::new("/dev"), Path::new("/dev/shm"));
    if canonical == memory {
        return true;
    }
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    canonical.starts_with(devices)
        && !canonical.starts_with(memory)
        && device(canonical) == device(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_with_data_are_taken() {
        for (path, said) in [
            ("/proc", "(proc)"),
            ("/proc/self", "(proc)"),
            ("/sys", "(sysfs)"),
            ("/dev", "the directory of devices"),
            ("/dev/shm", "may lie in /dev/shm"),
        ] {
            let why = why_not(Path::new(path));
            assert!(why.as_ref().is_some_and(|why| why.contains(said)), "{path}: {why:?}");
        }
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let usual = tempfile::tempdir().unwrap();
        for path in [Path::new("/"), memory.path(), usual.path()] {
            assert_eq!(why_not(path), None, "{}", path.display());
        }
    }
}
