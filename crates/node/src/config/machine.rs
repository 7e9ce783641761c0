//! What of a configuration depends on the machine: directories, memory, space.

use super::errors::Errors;
use super::places::Places;
use super::pseudo;
use super::types::{BUCKETS_MIN, Config, ConfigError, Result, Speed, Tier, TierKind};
use super::units::{SIZE_UNITS, Size, quantity, round_down, size};
use forebay_placement::glob;
use rustix::fs::{Access, statfs, statvfs};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

/// The RAM tier is backed by huge pages of this size.
const HUGE_PAGE: u64 = 2 << 20;

impl Config {
    pub(super) fn check_machine(&mut self, places: &Places) -> Result<()> {
        let errors = Errors::default();
        errors.ok(self.check_directories_at(places));
        for (tier, place) in self.tiers.iter().zip(&places.tiers) {
            let (limit, what) = match &tier.kind {
                TierKind::Ram => (memory_info("MemTotal"), "this machine's memory"),
                TierKind::File { path } => {
                    (statvfs(path).ok().map(|fs| fs.f_blocks * fs.f_frsize), "its file system")
                }
            };
            if let Some(limit) = limit.filter(|&limit| tier.capacity > limit) {
                let capacity = size(tier.capacity);
                let limit = Size(limit);
                errors.note(ConfigError::new(
                    &place.capacity,
                    format_args!("{capacity} is more than {what} ({limit}); give less"),
                ));
            }
        }
        errors.end()
    }

    pub(super) fn check_directories_at(&mut self, places: &Places) -> Result<()> {
        let errors = Errors::default();
        let mut backing: Vec<Directory> = Vec::new();
        for (entry, place) in self.backing.iter_mut().zip(&places.backing) {
            // One that could not be read has no path.
            let has_path = !entry.path.as_os_str().is_empty();
            let directory = has_path.then(|| Directory::open(&entry.path, place, READABLE));
            let Some(directory) = directory.and_then(|opened| errors.ok(opened)) else { continue };
            for other in &backing {
                errors.ok(directory
                    .check_apart(other, "give each backing directory once, and none in another"));
            }
            entry.path.clone_from(&directory.path);
            backing.push(directory);
        }
        let mut tiers: Vec<Directory> = Vec::new();
        for (tier, place) in self.tiers.iter_mut().zip(&places.tiers) {
            let TierKind::File { path } = &mut tier.kind else { continue };
            let Some(directory) = errors.ok(Directory::open(path, &place.path, WRITABLE)) else {
                continue;
            };
            for other in &backing {
                errors.ok(directory
                    .check_apart(other, "give the tier a directory outside the backing store"));
            }
            for other in tiers.iter().filter(|other| other.id == directory.id) {
                errors.ok(directory.check_apart(other, "give each tier its own directory"));
            }
            path.clone_from(&directory.path);
            tiers.push(directory);
        }
        // Patterns are compared with all directories.
        errors.end()?;
        self.resolve_patterns(0..self.rules.len(), &places.rules)
    }

    /// Follows the symbolic links in the absolute patterns of these rules, as the kernel does in
    /// the paths that they will be compared with, and refuses those that no buffered file can
    /// match.
    pub(super) fn resolve_patterns(
        &mut self,
        rules: Range<usize>,
        places: &[String],
    ) -> Result<()> {
        for (rule, place) in self.rules[rules].iter_mut().zip(places) {
            if !rule.path.starts_with('/') {
                continue;
            }
            let literal = glob::literal_prefix(rule.path.as_bytes()).len();
            let folder = rule.path[..literal].rfind('/').unwrap_or(0);
            if let Some(canonical) = existing(Path::new(&rule.path[..folder])) {
                rule.path.replace_range(..folder, &canonical);
            }
            let literal = glob::literal_prefix(rule.path.as_bytes());
            let reaches = |backing: &Path| {
                let backing = backing.as_os_str().as_bytes();
                literal.starts_with(backing) || backing.starts_with(literal)
            };
            if !self.backing.iter().any(|backing| reaches(&backing.path)) {
                let listed: Vec<_> =
                    self.backing.iter().map(|backing| backing.path.display().to_string()).collect();
                return Err(ConfigError::new(
                    place,
                    format_args!(
                        "{} can match no buffered file; the backing directories are {}",
                        rule.path,
                        listed.join(", ")
                    ),
                ));
            }
        }
        Ok(())
    }

    /// A tier on the first candidate that is local, writable and not the backing store's device.
    pub(super) fn scratch_tier(
        &self,
        candidates: impl IntoIterator<Item = PathBuf>,
    ) -> Option<Tier> {
        let devices: Vec<u64> =
            self.backing.iter().filter_map(|b| Some(fs::metadata(&b.path).ok()?.dev())).collect();
        let path = candidates.into_iter().find_map(|path| {
            let directory = Directory::open(&path, "scratch", WRITABLE).ok()?;
            let local = is_local_disk(statfs(&directory.path).ok()?.f_type as u32);
            (local && !devices.contains(&directory.id.0)).then_some(directory.path)
        })?;
        let capacity = round_down(free_space(&path)? / 4, self.bucket_size());
        (capacity >= BUCKETS_MIN * self.bucket_size()).then(|| Tier {
            name: "scratch".to_owned(),
            kind: TierKind::File { path },
            capacity,
            emulate: None,
            speed: Speed::default(),
            quota: 0,
        })
    }
}

/// The canonical path of a folder of which at least a beginning exists.
fn existing(folder: &Path) -> Option<String> {
    folder.ancestors().find_map(|ancestor| {
        let canonical = ancestor.canonicalize().ok()?;
        let rest = folder.strip_prefix(ancestor).ok()?;
        let whole = if rest.as_os_str().is_empty() { canonical } else { canonical.join(rest) };
        let whole = whole.to_str()?.trim_end_matches('/').to_owned();
        Some(whole)
    })
}

/// A directory that exists and may be written.
struct Directory {
    path: PathBuf,
    /// Device and inode: the same for every path that leads here, bind mounts included.
    id: (u64, u64),
    place: String,
}

/// What this user has to be able to do in a directory, and what it is called.
type Needs = (Access, &'static str);

/// Of a backing directory: data sets that only others may write are read, too. What may be written
/// in it is between the program and the kernel.
const READABLE: Needs = (Access::READ_OK.union(Access::EXEC_OK), "readable");
/// Of a tier, whose file is made there.
const WRITABLE: Needs = (Access::WRITE_OK.union(Access::EXEC_OK), "writable");

impl Directory {
    fn open(path: &Path, place: &str, (access, name): Needs) -> Result<Self> {
        let error = |problem: fmt::Arguments<'_>| {
            ConfigError::new(place, format_args!("{}: {problem}", path.display()))
        };
        let canonical = path.canonicalize().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                error(format_args!("no such directory; create it, or give another"))
            }
            _ => error(format_args!("{e}; give another directory")),
        })?;
        let metadata = fs::metadata(&canonical)
            .map_err(|e| error(format_args!("{e}; give another directory")))?;
        if !metadata.is_dir() {
            return Err(error(format_args!("not a directory; give a directory")));
        }
        if let Some(why) = pseudo::why_not(&canonical) {
            return Err(error(format_args!("{why}")));
        }
        if canonical.to_str().is_none() {
            return Err(error(format_args!("its path is not UTF-8; give one that is")));
        }
        rustix::fs::access(&canonical, access).map_err(|e| {
            error(format_args!("not {name} ({e}); allow it with chmod, or give another directory"))
        })?;
        Ok(Self { path: canonical, id: (metadata.dev(), metadata.ino()), place: place.to_owned() })
    }

    fn contains(&self, other: &Directory) -> bool {
        other.path.ancestors().any(|ancestor| {
            fs::metadata(ancestor).is_ok_and(|found| (found.dev(), found.ino()) == self.id)
        })
    }

    fn check_apart(&self, other: &Directory, remedy: &str) -> Result<()> {
        let relation = if self.id == other.id {
            "is the same directory as"
        } else if self.contains(other) {
            "contains"
        } else if other.contains(self) {
            "lies in"
        } else {
            return Ok(());
        };
        let (mine, theirs) = (self.path.display(), other.path.display());
        let problem = format_args!("{mine} {relation} {theirs} ({}); {remedy}", other.place);
        Err(ConfigError::new(&self.place, problem))
    }
}

/// A field of /proc/meminfo in bytes.
fn memory_info(field: &str) -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    quantity(&line.replace(" kB", "KiB"), SIZE_UNITS)
}

/// Limit and use of memory of one control group, in files of these names.
type MemoryFiles = (&'static str, &'static str);
const VERSION_2: MemoryFiles = ("memory.max", "memory.current");
const VERSION_1: MemoryFiles = ("memory.limit_in_bytes", "memory.usage_in_bytes");

/// The folders of the control groups that limit the memory of a process, from its own to the
/// outermost that can be seen: of version 2, and of version 1 where its memory controller is. A
/// container sees the hierarchy from some group on, the root of its mount.
fn memory_groups(groups: &str, mounts: &str) -> Vec<(PathBuf, MemoryFiles)> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let (mut place, mut kind) = (place.split(' ').skip(3), kind.split(' '));
        let (Some(root), Some(at)) = (place.next(), place.next()) else { continue };
        let files = match (kind.next(), kind.nth(1)) {
            (Some("cgroup2"), _) => VERSION_2,
            (Some("cgroup"), Some(options)) if options.split(',').any(|o| o == "memory") => {
                VERSION_1
            }
            _ => continue,
        };
        let is_of = |controllers: &str| match files {
            VERSION_1 => controllers.split(',').any(|controller| controller == "memory"),
            _ => controllers.is_empty(),
        };
        let own = groups.lines().find_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            is_of(controllers).then_some(group)
        });
        let Some(below) = own.and_then(|own| Path::new(own).strip_prefix(root).ok()) else {
            continue;
        };
        let (top, own) = (Path::new(at), Path::new(at).join(below));
        let all = own.ancestors().take_while(|folder| folder.starts_with(top));
        found.extend(all.map(|folder| (folder.to_owned(), files)));
    }
    found
}

/// The least that `of` makes of limit and use of memory in this process's control groups, as those
/// of a batch system's job, and of what such a system says that the job may have.
fn cgroup_memory(of: impl Fn(u64, u64) -> u64) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let groups = memory_groups(&groups, &mounts);
    let limits = groups.into_iter().filter_map(|(folder, (limit, used))| {
        Some(of(number(folder.join(limit))?, number(folder.join(used))?))
    });
    // What of that is used cannot be told.
    limits.chain(job_memory(|name| env::var(name).ok()).map(|limit| of(limit, 0))).min()
}

/// Bytes of memory that Slurm gives a job on this node, where the job was given a limit: it may
/// count what a job takes without a control group that would hold it back.
fn job_memory(variable: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let number = |name: &str| variable(name)?.parse::<u64>().ok().filter(|&number| number > 0);
    let of_node = number("SLURM_MEM_PER_NODE");
    let of_cores = || number("SLURM_MEM_PER_CPU")?.checked_mul(number("SLURM_CPUS_ON_NODE")?);
    of_node.or_else(of_cores)?.checked_mul(1 << 20)
}

/// Bytes that a tier of this kind could have if nothing else were there: the same in each run.
pub(super) fn whole_of(kind: &TierKind) -> Option<u64> {
    match kind {
        TierKind::Ram => {
            let total = memory_info("MemTotal")?;
            Some(cgroup_memory(|limit, _| limit).map_or(total, |limit| limit.min(total)))
        }
        TierKind::File { path } => statvfs(path).ok().map(|fs| fs.f_blocks * fs.f_frsize),
    }
}

/// Bytes of memory that the job or control group of this process may have together, where that is
/// less than the machine has.
pub fn memory_limit() -> Option<u64> {
    let total = memory_info("MemTotal")?;
    cgroup_memory(|limit, _| limit).filter(|&limit| limit < total)
}

/// Where the room of a tier comes from, and how much of it can be had now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Whose room.
    pub what: String,
    /// Bytes.
    pub free: u64,
}

impl Room {
    /// All that a tier of this kind needs room in.
    pub fn of(kind: &TierKind) -> Vec<Room> {
        let room = |what: &str, free: u64| Room { what: what.to_owned(), free };
        match kind {
            TierKind::Ram => {
                // Without a limit, version 1 says a number that no machine has.
                let total = memory_info("MemTotal").unwrap_or(0);
                let limit = cgroup_memory(u64::saturating_sub).filter(|&free| free < total);
                let limit =
                    limit.map(|free| room("what the job or control group may still have", free));
                let memory =
                    room("the memory that is available", memory_info("MemAvailable").unwrap_or(0));
                let shared = free_space(Path::new("/dev/shm")).unwrap_or(0);
                limit
                    .into_iter()
                    .chain([memory, room("what is free in /dev/shm", shared)])
                    .collect()
            }
            TierKind::File { path } => {
                vec![room("what is free in its file system", free_space(path).unwrap_or(0))]
            }
        }
    }
}

/// Bytes of memory that can be had without paging.
pub(crate) fn available_memory() -> u64 {
    let available = memory_info("MemAvailable").unwrap_or(0);
    cgroup_memory(u64::saturating_sub).map_or(available, |limit| limit.min(available))
}

/// A quarter of the memory that can be had, but at most half of what /dev/shm has left.
pub(crate) fn automatic_ram() -> u64 {
    let available = available_memory();
    let shared = free_space(Path::new("/dev/shm")).unwrap_or(0);
    round_down((available / 4).min(shared / 2), HUGE_PAGE)
}

fn free_space(path: &Path) -> Option<u64> {
    statvfs(path).ok().map(|fs| fs.f_bavail * fs.f_frsize)
}

pub(super) fn scratch_candidates() -> impl Iterator<Item = PathBuf> {
    let variables = ["FOREBAY_SCRATCH", "SLURM_TMPDIR", "LOCAL_SCRATCH", "TMPDIR"];
    let places = ["/local/scratch", "/scratch/local", "/nvme"];
    let named = variables.into_iter().filter_map(|name| env::var_os(name).map(PathBuf::from));
    named.filter(|path| path.is_absolute()).chain(places.map(PathBuf::from))
}

/// Whether a file system of this `statfs` type keeps its data on a device of this node; memory and
/// network file systems do not.
pub(crate) fn is_local_disk(fs_type: u32) -> bool {
    const ELSEWHERE: [u32; 21] = [
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0x0000_6969, // NFS
        0x0000_517b, // SMB
        0xff53_4d42, // CIFS
        0xfe53_4d42, // SMB2
        0x0bd0_0bd0, // Lustre
        0x4750_4653, // GPFS
        0x1983_0326, // BeeGFS
        0x1983_0327, // WekaFS
        0x00c3_6400, // Ceph
        0x2003_0528, // OrangeFS
        0xaad7_aaea, // PanFS
        0x6573_5546, // FUSE, virtiofs
        0x0102_1997, // 9P
        0x5346_414f, // AFS
        0x6b41_4653, // kAFS
        0x7375_7245, // Coda
        0x0000_564c, // NCP
        0x0116_1970, // GFS2
        0x7461_636f, // OCFS2
    ];
    !ELSEWHERE.contains(&fs_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_can_be_read() {
        let total = memory_info("MemTotal").unwrap();
        assert!(total > 1 << 20 && memory_info("MemAvailable").unwrap() <= total);
        assert_eq!(memory_info("NoSuchField"), None);
        assert_eq!(automatic_ram() % HUGE_PAGE, 0);
    }

    #[test]
    fn control_groups_of_both_versions_limit_memory() {
        let pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let folders = |groups: &str, mounts: &str| -> Vec<String> {
            let found = memory_groups(groups, mounts).into_iter();
            found.map(|(folder, files)| folder.join(files.0).display().to_string()).collect()
        };
        assert_eq!(
            folders("0::/slurm/job_7\n", pure),
            ["slurm/job_7/", "slurm/", ""].map(|at| format!("/sys/fs/cgroup/{at}memory.max"))
        );
        // Of version 1, beside an empty hierarchy of version 2.
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "5:cpu:/else\n4:memory:/slurm/uid_1/job_7\n0::/\n";
        let found = folders(own, hybrid);
        let limit = "memory.limit_in_bytes";
        assert_eq!(found[0], format!("/sys/fs/cgroup/memory/slurm/uid_1/job_7/{limit}"));
        assert_eq!(found[3], format!("/sys/fs/cgroup/memory/{limit}"));
        assert_eq!(found[4..], ["/sys/fs/cgroup/unified/memory.max"]);
        // A container, to which its own group is mounted.
        let inside = "40 30 0:28 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = folders("4:memory:/docker/x/inner\n", inside);
        assert_eq!(found, ["inner/", ""].map(|at| format!("/sys/fs/cgroup/memory/{at}{limit}")));
        assert_eq!(folders("4:memory:/elsewhere\n", inside), [""; 0]);
    }

    #[test]
    fn a_job_of_slurm_has_the_memory_that_it_was_given() {
        let job = |set: &[(&str, &str)]| {
            job_memory(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(job(&[("SLURM_MEM_PER_NODE", "4000")]), Some(4000 << 20));
        let cores = [("SLURM_MEM_PER_CPU", "100"), ("SLURM_CPUS_ON_NODE", "8")];
        assert_eq!(job(&cores), Some(800 << 20));
        assert_eq!(job(&cores[..1]), None);
        assert_eq!(job(&[("SLURM_MEM_PER_NODE", "0")]), None, "all of the node's");
        assert_eq!(job(&[]), None);
    }

    #[test]
    fn scratch_is_local_and_not_the_store() {
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        let disk = tempfile::tempdir().unwrap();
        if !is_local_disk(statfs(disk.path()).unwrap().f_type as u32) {
            return; // Without a local disk there is nothing to choose.
        }
        let mut config = Config::automatic(&[shm.path().to_owned()]).unwrap();
        let file = disk.path().join("file");
        fs::write(&file, "").unwrap();
        let candidates = [PathBuf::from("/missing"), file, shm.path().into(), disk.path().into()];
        let tier = config.scratch_tier(candidates.clone()).unwrap();
        assert_eq!(tier.kind, TierKind::File { path: disk.path().canonicalize().unwrap() });
        assert!(tier.capacity > 0 && tier.capacity.is_multiple_of(config.bucket_size()));

        config.backing[0].path = disk.path().to_owned();
        assert_eq!(config.scratch_tier(candidates), None);
    }
}
