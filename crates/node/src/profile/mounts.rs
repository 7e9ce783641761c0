//! Where a node could keep data: its mounted file systems, and which kind of device is behind each.

use rustix::fs::{Access, access, statvfs};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A place with less free space is not measured: nothing shall be filled up.
const FREE_MIN: u64 = 64 << 20;

/// What is behind a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory: tmpfs.
    Memory,
    /// A local NVMe device.
    Nvme,
    /// Another local device without moving parts.
    Ssd,
    /// A local disk.
    Disk,
    /// Something local whose device is not known, an overlay for instance.
    Local,
    /// A burst buffer of the batch system.
    BurstBuffer,
    /// A file system on other machines.
    Network,
}

impl Kind {
    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Nvme => "NVMe",
            Kind::Ssd => "SSD",
            Kind::Disk => "disk",
            Kind::Local => "local device",
            Kind::BurstBuffer => "burst buffer",
            Kind::Network => "network file system",
        }
    }

    /// A tier's name.
    pub fn tier_name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Nvme => "nvme",
            Kind::Ssd => "ssd",
            Kind::Disk => "disk",
            Kind::Local => "local",
            Kind::BurstBuffer => "bb",
            Kind::Network => "net",
        }
    }
}

/// A directory that can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub path: PathBuf,
    /// What is behind it.
    pub kind: Kind,
    /// The file system's type and source: "ext4 on /dev/nvme0n1p1".
    pub device: String,
    /// Bytes that this user may still write.
    pub free: u64,
}

/// A directory or mount that cannot be measured, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Where.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// A line of /proc/self/mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub point: PathBuf,
    pub fs_type: String,
    pub source: String,
    pub device: (u32, u32),
    pub read_only: bool,
}

/// Types of file systems on other machines. Those of FUSE are asked for separately.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "gpfs",
    "mmfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "pvfs2",
    "orangefs",
    "panfs",
    "wekafs",
    "afs",
    "9p",
    "virtiofs",
    "daos",
    "dvs",
    "gfs2",
    "ocfs2",
    "coda",
];
/// FUSE file systems that keep no files: they show something else.
const FUSE_SHOWS: &[&str] = &["lxcfs", "gvfsd-fuse", "portal", "snapfuse", "archivemount"];
/// Local file systems without a device number of their own.
const LOCAL: &[&str] = &["btrfs", "zfs", "overlay", "aufs", "bcachefs", "fuse-overlayfs"];
/// Names of directories where sites mount their burst buffers.
const BURST_BUFFERS: &[&str] =
    &["bb", "bbfs", "burst", "burstbuffer", "burst_buffer", "datawarp", "dwfs"];

/// Reads the text of /proc/self/mountinfo; lines that are not understood are left out.
pub(super) fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(parse_line).collect()
}

/// Whether something is mounted beneath `folder`, an absolute path without links, so that it may
/// hide what is there; `true` if that cannot be known.
pub(crate) fn may_hide_part_of(folder: &Path) -> bool {
    let Ok(text) = fs::read_to_string("/proc/self/mountinfo") else { return true };
    hides_part_of(folder, &parse(&text))
}

fn hides_part_of(folder: &Path, mounts: &[Mount]) -> bool {
    mounts.iter().any(|mount| mount.point != folder && mount.point.starts_with(folder))
}

fn parse_line(line: &str) -> Option<Mount> {
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let (head, tail) = line.split_once(" - ")?;
    let head: Vec<&str> = head.split(' ').collect();
    let tail: Vec<&str> = tail.split(' ').collect();
    let (major, minor) = head.get(2)?.split_once(':')?;
    let is_read_only = |options: &str| options.split(',').any(|option| option == "ro");
    Some(Mount {
        point: unescape(head.get(4)?),
        fs_type: (*tail.first()?).to_owned(),
        source: unescape(tail.get(1)?).to_string_lossy().into_owned(),
        device: (major.parse().ok()?, minor.parse().ok()?),
        read_only: is_read_only(head.get(5)?) || tail.get(2).is_some_and(|o| is_read_only(o)),
    })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                found.push(byte);
                at += 4;
            }
            None => {
                found.push(bytes[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(found).into()
}

/// What a mount is, with /sys/dev/block at `blocks` and the batch system's burst buffers at
/// `hints`; `None` if it keeps no files.
pub(super) fn kind_of(mount: &Mount, blocks: &Path, hints: &[PathBuf]) -> Option<Kind> {
    let named = |name: &std::ffi::OsStr| BURST_BUFFERS.iter().any(|known| name == *known);
    let fuse = mount.fs_type.strip_prefix("fuse.");
    let is_network = NETWORK.contains(&mount.fs_type.as_str())
        || fuse.is_some_and(|of| !FUSE_SHOWS.contains(&of) && !LOCAL.contains(&of));
    let device = device_of(mount);
    let is_local = device.is_some() || LOCAL.contains(&mount.fs_type.as_str());
    if fuse.is_some_and(|of| FUSE_SHOWS.contains(&of)) {
        return None;
    }
    if matches!(mount.fs_type.as_str(), "tmpfs" | "ramfs") {
        return Some(Kind::Memory);
    }
    let buffers = hints.iter().any(|hint| hint.starts_with(&mount.point))
        && mount.point != Path::new("/")
        || mount.point.iter().any(named);
    if buffers && (is_network || is_local) {
        return Some(Kind::BurstBuffer);
    }
    if is_network {
        return Some(Kind::Network);
    }
    let device = match device {
        Some(device) => device,
        None => return is_local.then_some(Kind::Local),
    };
    Some(block_kind(&blocks.join(format!("{}:{}", device.0, device.1))).unwrap_or(Kind::Local))
}

/// The block device of a mount. Some file systems have a number of their own; the source then names
/// the device.
fn device_of(mount: &Mount) -> Option<(u32, u32)> {
    if mount.device.0 != 0 {
        return Some(mount.device);
    }
    let found = Some(&mount.source).filter(|source| source.starts_with("/dev/"))?;
    let number = fs::metadata(found).ok()?.rdev();
    Some((rustix::fs::major(number), rustix::fs::minor(number)))
}

/// What a block device is, from its folder in /sys; a mapped device is what it is mapped to.
fn block_kind(folder: &Path) -> Option<Kind> {
    let folder = folder.canonicalize().ok()?;
    if let Some(below) = fs::read_dir(folder.join("slaves")).ok()?.flatten().next() {
        return block_kind(&below.path());
    }
    // A partition's queue is that of its device.
    block_kind_of_queue(&folder).or_else(|| block_kind_of_queue(folder.parent()?))
}

fn block_kind_of_queue(folder: &Path) -> Option<Kind> {
    let rotational = fs::read_to_string(folder.join("queue/rotational")).ok()?;
    let name = folder.file_name()?.to_string_lossy().into_owned();
    Some(match rotational.trim() {
        "1" => Kind::Disk,
        _ if name.starts_with("nvme") => Kind::Nvme,
        _ => Kind::Ssd,
    })
}

/// What the environment says of directories.
pub(super) struct Hints {
    /// Burst buffers that the batch system gave to this job.
    pub burst_buffers: Vec<PathBuf>,
    /// Directories for data, the most likely first.
    pub scratch: Vec<PathBuf>,
    /// The user's name, after which directories are called.
    pub user: String,
}

impl Hints {
    pub fn from(variables: &BTreeMap<String, String>) -> Hints {
        let is_buffer = |name: &str| {
            ["DW_JOB_", "DW_PERSISTENT_STRIPED_", "BB_"].iter().any(|start| name.starts_with(start))
                || name == "BBPATH"
        };
        let paths = |wanted: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
            let values = variables.iter().filter(|(name, _)| wanted(name)).map(|(_, value)| value);
            values.map(PathBuf::from).filter(|path| path.is_absolute()).collect()
        };
        let burst_buffers = paths(&is_buffer);
        let named = ["FOREBAY_SCRATCH", "SLURM_TMPDIR", "LOCAL_SCRATCH", "SCRATCH", "TMPDIR"];
        let usual = ["/local/scratch", "/scratch/local", "/nvme", "/var/tmp", "/tmp"];
        let mut scratch = burst_buffers.clone();
        scratch.extend(named.iter().flat_map(|name| paths(&|found| found == *name)));
        scratch.extend(usual.iter().map(PathBuf::from));
        let user = variables.get("USER").cloned().unwrap_or_default();
        Hints { burst_buffers, scratch, user }
    }
}

/// One directory for each mounted file system that keeps files, and what was left out.
pub(super) fn find(mounts: &[Mount], hints: &Hints) -> (Vec<Place>, Vec<Skipped>) {
    let (mut places, mut skipped) = (Vec::<(u64, Place)>::new(), Vec::new());
    for mount in mounts {
        let Some(kind) = kind_of(mount, Path::new("/sys/dev/block"), &hints.burst_buffers) else {
            continue;
        };
        // A mount that another one hides, or that a file is, is not seen at its path.
        let Ok(seen) = fs::metadata(&mount.point) else { continue };
        let known = |(device, _): &(u64, Place)| *device == seen.dev();
        if !seen.is_dir() || places.iter().any(known) {
            continue;
        }
        let own = [mount.point.join(&hints.user), mount.point.clone()];
        let on_it =
            |path: &&PathBuf| fs::metadata(path).is_ok_and(|found| found.dev() == seen.dev());
        let candidates: Vec<&PathBuf> = hints.scratch.iter().chain(&own).filter(on_it).collect();
        let writable = candidates.iter().find_map(|path| usable(path).ok());
        let is_kernels = ["/proc", "/sys", "/run"].iter().any(|own| mount.point.starts_with(own));
        if kind == Kind::Memory && (is_kernels || mount.read_only) {
            continue;
        }
        let why = match (kind, writable) {
            (Kind::Memory, _) => "is memory, which the RAM tier uses already",
            _ if mount.read_only => "is mounted read-only",
            (_, None) => "has no directory that you may write in; name one with --dir",
            (_, Some(free)) if free < FREE_MIN => "has less than 64 MiB free",
            (_, Some(_)) => "",
        };
        if why.is_empty() {
            let path = candidates.into_iter().find(|path| usable(path).is_ok());
            places.extend(path.map(|path| {
                let device = format!("{} on {}", mount.fs_type, mount.source);
                let free = usable(path).unwrap_or(0);
                (seen.dev(), Place { path: path.clone(), kind, device, free })
            }));
        } else if !skipped.iter().any(|other: &Skipped| other.path == mount.point) {
            skipped.push(Skipped { path: mount.point.clone(), why: why.to_owned() });
        }
    }
    // A file system that is mounted twice is skipped in one place and used in another.
    skipped.retain(|skipped| {
        let device = fs::metadata(&skipped.path).map_or(0, |found| found.dev());
        !places.iter().any(|(known, _)| *known == device)
    });
    (places.into_iter().map(|(_, place)| place).collect(), skipped)
}

/// The mount behind a directory that was asked for, and its free space.
pub(super) fn place_at(path: &Path, mounts: &[Mount], hints: &Hints) -> Result<Place, Skipped> {
    let skip = |why: String| Skipped { path: path.to_owned(), why };
    let path = path.canonicalize().map_err(|error| skip(error.to_string()))?;
    let free = usable(&path).map_err(skip)?;
    if free < FREE_MIN {
        return Err(skip("has less than 64 MiB free".to_owned()));
    }
    // The last of those that are mounted over each other.
    let below = |mount: &&Mount| path.starts_with(&mount.point);
    let depth = |mount: &&Mount| mount.point.components().count();
    let mount = mounts.iter().filter(below).max_by_key(depth);
    let kind = mount
        .and_then(|mount| kind_of(mount, Path::new("/sys/dev/block"), &hints.burst_buffers))
        .unwrap_or(Kind::Local);
    let device =
        mount.map_or_else(String::new, |mount| format!("{} on {}", mount.fs_type, mount.source));
    if mount.is_some_and(|mount| mount.read_only) {
        return Err(skip("is mounted read-only".to_owned()));
    }
    Ok(Place { path, kind, device, free })
}

/// Free bytes of a directory that may be written.
fn usable(path: &Path) -> Result<u64, String> {
    if !fs::metadata(path).is_ok_and(|found| found.is_dir()) {
        return Err("is not a directory".to_owned());
    }
    access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| match errno {
        rustix::io::Errno::ROFS => "is mounted read-only".to_owned(),
        _ => "may not be written by you".to_owned(),
    })?;
    let space = statvfs(path).map_err(|errno| errno.to_string())?;
    Ok(space.f_bavail * space.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:22 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1g
25 22 259:1 / /local/my\\040nvme rw - xfs /dev/nvme0n1p1 rw
26 22 0:40 / /lustre rw,flock - lustre 10.0.0.1@o2ib:/scratch rw
27 22 0:41 / /home rw - nfs4 server:/home ro,vers=4.2
28 22 0:42 / /mnt/bb rw - xfs /dev/mapper/bb rw
29 22 0:43 / /var/opt/cray/dws/mounts/batch/1/ss rw - dvs /dws rw
30 22 0:44 / /run/user/0/gvfs rw - fuse.gvfsd-fuse gvfsd-fuse rw
31 22 0:45 / /dfs rw - fuse.daos dfuse rw
32 22 253:0 / /data rw - ext4 /dev/mapper/vg-data rw
33 22 8:17 / /archive ro - ext4 /dev/sdb1 ro
34 22 0:50 / /over rw - overlay overlay rw
not a mount at all
";

    /// A /sys/dev/block with an NVMe device, a disk, an SSD, and a mapped device on the SSD.
    fn blocks() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let device = |name: &str, rotational: &str| {
            let folder = sys.path().join("devices").join(name);
            fs::create_dir_all(folder.join("queue")).unwrap();
            fs::create_dir_all(folder.join("slaves")).unwrap();
            fs::write(folder.join("queue/rotational"), rotational).unwrap();
            folder
        };
        let partition = |of: &Path, name: &str, number: &str| {
            fs::create_dir_all(of.join(name).join("slaves")).unwrap();
            std::os::unix::fs::symlink(of.join(name), sys.path().join(number)).unwrap();
        };
        partition(&device("nvme0n1", "0\n"), "nvme0n1p1", "259:1");
        partition(&device("sda", "1\n"), "sda2", "8:2");
        let ssd = device("sdb", "0\n");
        partition(&ssd, "sdb1", "8:17");
        let mapped = device("dm-0", "1\n");
        std::os::unix::fs::symlink(&ssd, mapped.join("slaves/sdb")).unwrap();
        std::os::unix::fs::symlink(&mapped, sys.path().join("253:0")).unwrap();
        sys
    }

    #[test]
    fn every_kind_of_mount_is_told() {
        let blocks = blocks();
        let hints = [PathBuf::from("/var/opt/cray/dws/mounts/batch/1/ss/job")];
        let mounts = parse(NODE);
        let kinds: Vec<_> = mounts
            .iter()
            .map(|mount| (mount.point.to_str().unwrap(), kind_of(mount, blocks.path(), &hints)))
            .collect();
        assert_eq!(
            kinds,
            [
                ("/", Some(Kind::Disk)),
                ("/proc", None),
                ("/dev/shm", Some(Kind::Memory)),
                ("/local/my nvme", Some(Kind::Nvme)),
                ("/lustre", Some(Kind::Network)),
                ("/home", Some(Kind::Network)),
                ("/mnt/bb", None),
                ("/var/opt/cray/dws/mounts/batch/1/ss", Some(Kind::BurstBuffer)),
                ("/run/user/0/gvfs", None),
                ("/dfs", Some(Kind::Network)),
                ("/data", Some(Kind::Ssd)),
                ("/archive", Some(Kind::Ssd)),
                ("/over", Some(Kind::Local)),
            ],
            "/dev/mapper/bb does not exist here"
        );
        assert!(mounts[5].read_only && mounts[11].read_only && !mounts[4].read_only);
        let bb = Mount { device: (8, 17), ..mounts[6].clone() };
        assert_eq!(kind_of(&bb, blocks.path(), &[]), Some(Kind::BurstBuffer));
    }

    #[test]
    fn the_batch_systems_variables_are_understood() {
        let variables = [
            ("DW_JOB_STRIPED", "/var/dw/1/"),
            ("DW_PERSISTENT_STRIPED_DATA", "/var/dw/p"),
            ("BBPATH", "/mnt/bb/me"),
            ("BB_SIZE", "10GB"),
            ("TMPDIR", "/tmp/job"),
            ("SLURM_TMPDIR", "/local/job"),
            ("USER", "me"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let hints = Hints::from(&variables);
        let buffers = ["/mnt/bb/me", "/var/dw/1/", "/var/dw/p"].map(PathBuf::from);
        assert_eq!(hints.burst_buffers, buffers);
        assert!(hints.scratch.starts_with(&buffers));
        let rest: Vec<_> = hints.scratch[3..5].to_vec();
        assert_eq!(rest, ["/local/job", "/tmp/job"].map(PathBuf::from));
        assert_eq!(hints.user, "me");
    }

    #[test]
    fn this_machine_has_a_place() {
        let mounts = parse(&fs::read_to_string("/proc/self/mountinfo").unwrap());
        assert!(!mounts.is_empty());
        let folder = tempfile::tempdir().unwrap();
        let hints = Hints::from(&BTreeMap::new());
        let place = place_at(folder.path(), &mounts, &hints).unwrap();
        assert!(place.free > 0 && !place.device.is_empty(), "{place:?}");
        let (places, skipped) = find(&mounts, &hints);
        assert!(places.iter().all(|place| place.kind != Kind::Memory && place.path.is_dir()));
        assert!(skipped.iter().any(|skipped| skipped.path == Path::new("/dev/shm")), "{skipped:?}");
    }

    #[test]
    fn what_cannot_be_written_is_skipped_with_a_reason() {
        let mounts = parse(NODE);
        let hints = Hints::from(&BTreeMap::new());
        let why = |path: &str| place_at(Path::new(path), &mounts, &hints).unwrap_err().why;
        assert!(why("/no/such/place").starts_with("No such file"));
        assert_eq!(why("/proc/self/exe"), "is not a directory");
        assert_eq!(unescape("a\\134b\\04x"), PathBuf::from("a\\b\\04x"));
    }
}
