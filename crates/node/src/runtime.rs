//! Where a node manager's files are: its folder with socket, lock, log and configuration, and its
//! pool in /dev/shm.

use crate::config::{Config, TierKind};
use forebay_pool::slot_record::{INDEX_END, SLOTS_END};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where pools are.
const POOLS: &str = "/dev/shm";

/// How a manager that starts says that another holds the instance's lock.
pub const SERVED: &str = "another node manager serves it";

/// How the name of a configuration begins and ends that is kept beside a tier's slots.
const KEPT_START: &str = "forebay-";
const KEPT_END: &str = ".config";

/// How the line begins that names the machine in a configuration that is kept: a comment.
const KEPT_ON: &str = "# machine: ";

/// What tells this machine from others that share a file tier's folder, and stays over a reboot. Not the
/// machine's number alone: machines of one image may have the same.
fn this_machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (number, host) = (read("/etc/machine-id"), read("/proc/sys/kernel/hostname"));
    format!("{} {}", number.trim(), host.trim()).trim().to_owned()
}

/// The machine that a kept configuration is of.
fn machine_of(kept: &str) -> Option<&str> {
    kept.lines().next()?.strip_prefix(KEPT_ON)
}

/// What other instances have left beside the slots of a configuration.
#[derive(Debug, Default)]
pub struct LeftBeside {
    /// Those of this machine.
    pub ours: Vec<(Runtime, Config)>,
    /// Those of others, which may be at work with them, and the file that says so.
    pub elsewhere: Vec<(PathBuf, Config)>,
}

/// The folders of a configuration's file tiers.
fn file_tiers(config: &Config) -> impl Iterator<Item = &PathBuf> {
    config.tiers.iter().filter_map(|tier| match &tier.kind {
        TierKind::File { path } => Some(path),
        TierKind::Ram => None,
    })
}

/// The names of one instance's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Which instance: sixteen hexadecimal digits that follow from the configuration.
    pub instance: String,
    /// Private folder of the instance.
    pub folder: PathBuf,
    /// The segment.
    pub pool: PathBuf,
}

/// Bytes of the longest folder that leaves room for `/INSTANCE/socket` and the final 0 in the 108
/// bytes of a socket's address.
const FOLDER_MAX: usize = 108 - 1 - "/0123456789abcdef/socket".len();

/// This user's folder for all instances: `$FOREBAY_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/forebay`,
/// else /tmp/forebay-UID. A variable that is empty counts as not set. Made if missing, and refused if
/// it is not this user's alone, or too long for a socket's name.
///
/// # Errors
/// A message that names the folder and what is wrong with it.
pub fn base() -> Result<PathBuf, String> {
    let uid = rustix::process::getuid().as_raw();
    let given = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = given("FOREBAY_RUNTIME_DIR").map(PathBuf::from);
    let session = given("XDG_RUNTIME_DIR")
        .map(|folder| PathBuf::from(folder).join("forebay"))
        .filter(|folder| folder.is_absolute() && folder.parent().is_some_and(Path::is_dir));
    let folder = named.or(session).unwrap_or_else(|| PathBuf::from(format!("/tmp/forebay-{uid}")));
    let wrong = |what: &str| Err(format!("{}: {what}", folder.display()));
    // Commands in other directories must find the same node managers.
    if !folder.is_absolute() {
        return wrong("is not an absolute path; set FOREBAY_RUNTIME_DIR to one that is");
    }
    if folder.as_os_str().len() > FOLDER_MAX {
        return wrong(&format!(
            "sockets below it would have too long a name; set FOREBAY_RUNTIME_DIR to a folder of up \
             to {FOLDER_MAX} bytes"
        ));
    }
    private_folder(&folder)?;
    Ok(folder)
}

/// Writes a file that only this user can read.
///
/// # Errors
/// The system's error.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options.open(path)?.write_all(text.as_bytes())
}

fn private_folder(folder: &Path) -> Result<(), String> {
    let wrong = |what: &str| format!("{}: {what}", folder.display());
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(wrong(&format!(
                "cannot make the folder: {error}; make it, or set FOREBAY_RUNTIME_DIR to another"
            )));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(|error| wrong(&error.to_string()))?;
    if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() {
        return Err(wrong("is not a folder of yours; remove it or set FOREBAY_RUNTIME_DIR"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(wrong("is open to other users; run chmod 700 on it"));
    }
    Ok(())
}

impl Runtime {
    /// The names for a configuration. Its folder need not exist, see [`Runtime::prepare`].
    ///
    /// # Errors
    /// A message that names the folder of all instances and what is wrong with it.
    pub fn of(config: &Config) -> Result<Runtime, String> {
        Ok(Runtime::named(&base()?, &config.instance_id()))
    }

    /// Makes the instance's folder, which a manager that ends removes.
    ///
    /// # Errors
    /// A message that names the folder and what is wrong with it.
    pub fn prepare(&self) -> Result<(), String> {
        private_folder(&self.folder)
    }

    fn named(base: &Path, instance: &str) -> Runtime {
        let uid = rustix::process::getuid().as_raw();
        Runtime {
            instance: instance.to_owned(),
            folder: base.join(instance),
            pool: Path::new(POOLS).join(format!("forebay-{uid}-{instance}.pool")),
        }
    }

    /// All instances of this user whose folder or pool exists.
    ///
    /// # Errors
    /// Those of [`base`].
    pub fn all() -> Result<Vec<Runtime>, String> {
        let base = base()?;
        let entries = fs::read_dir(&base).map_err(|e| format!("{}: {e}", base.display()))?;
        let mut found: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .map(|name| Runtime::named(&base, &name))
            .collect();
        found.sort_by(|a, b| a.instance.cmp(&b.instance));
        Ok(found)
    }

    /// Pools of this user that belong to no instance of [`Runtime::all`]: their folder is gone, or
    /// FOREBAY_RUNTIME_DIR was another one.
    ///
    /// # Errors
    /// Those of [`base`], and of looking into /dev/shm.
    pub fn strays() -> Result<Vec<PathBuf>, String> {
        let known: Vec<_> = Runtime::all()?.into_iter().map(|runtime| runtime.pool).collect();
        let entries = fs::read_dir(POOLS).map_err(|error| format!("{POOLS}: {error}"))?;
        let start = format!("forebay-{}-", rustix::process::getuid().as_raw());
        let ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&start) && name.ends_with(".pool"))
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths.filter(ours).filter(|path| !known.contains(path)).collect())
    }

    /// The node manager's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// What the node manager has to say, for people.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The configuration the instance was started with.
    pub fn config(&self) -> PathBuf {
        self.folder.join("config")
    }

    /// The configuration the instance was started with, if it can be read.
    pub fn read_config(&self) -> Option<Config> {
        Config::parse(&fs::read_to_string(self.config()).ok()?).ok()
    }

    /// Takes the instance's lock, which a node manager holds as long as it lives. `None` when
    /// another has it.
    ///
    /// # Errors
    /// The system's errno.
    pub fn lock(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(self.folder.join("lock"), flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // A manager that ended may have removed the file between the two calls.
            Ok(()) => {
                let ours = rustix::fs::fstat(&lock)?;
                let named = rustix::fs::stat(self.folder.join("lock"));
                let same = named.is_ok_and(|named| named.st_ino == ours.st_ino);
                Ok(same.then_some(lock))
            }
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Process id of the node manager that holds the instance's lock, or held it last: it may not have
    /// a pool yet.
    pub fn manager(&self) -> Option<u32> {
        fs::read_to_string(self.folder.join("lock")).ok()?.trim().parse().ok()
    }

    /// Removes the instance's folder and pool. For a node manager that has drained everything.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.pool);
        // Out of the way first: a new manager may be making its own at this moment.
        let gone = self.folder.with_extension(format!("ended-{}", std::process::id()));
        if fs::rename(&self.folder, &gone).is_ok() {
            let _ = fs::remove_dir_all(&gone);
        }
    }

    /// Removes the instance's folder if nothing goes with it that is to be drained: its manager could
    /// not start. What another machine has on a shared tier does not count.
    pub fn remove_unless_used(&self) {
        let elsewhere = || self.read_config().and_then(|config| self.kept_elsewhere(&config));
        if !self.has_left() || (!self.pool.exists() && elsewhere().is_some()) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// The file of a file tier's slots, in the tier's folder.
    pub fn slots(&self, folder: &Path, tier: &str) -> PathBuf {
        folder.join(format!("forebay-{}-{tier}{SLOTS_END}", self.instance))
    }

    /// The slots and the table of each file tier of the instance's configuration.
    pub fn slot_files(&self, config: &Config) -> Vec<(PathBuf, PathBuf)> {
        let of_tier = |tier: &crate::config::Tier| match &tier.kind {
            TierKind::File { path } => {
                Some((self.slots(path, &tier.name), self.index(path, &tier.name)))
            }
            TierKind::Ram => None,
        };
        config.tiers.iter().filter_map(of_tier).collect()
    }

    /// Whether the tiers have files of the instance, which may hold data although its segment is gone.
    pub fn has_slots(&self, config: &Config) -> bool {
        let journal = crate::journal::Journal::of(config, self);
        self.slot_files(config).iter().any(|(slots, index)| slots.exists() || index.exists())
            || journal.is_some_and(|journal| journal.path.exists())
    }

    /// Keeps the configuration beside the slots of each file tier: after a reboot the instance's folder
    /// may be gone, and nothing else says which stores they belong to.
    ///
    /// # Errors
    /// A message that names the file.
    pub(crate) fn keep_config(&self, config: &Config) -> Result<(), String> {
        let text = format!("{KEPT_ON}{}\n{}", this_machine(), config.canonical());
        let durable = crate::journal::Journal::of(config, self).is_some();
        for path in self.kept_configs(config) {
            if fs::read_to_string(&path).is_ok_and(|kept| kept == text) {
                continue;
            }
            let explain = |error| format!("{}: {error}", path.display());
            write_private(&path, &text).map_err(explain)?;
            if durable {
                fs::File::open(&path).and_then(|file| file.sync_all()).map_err(explain)?;
                crate::journal::log::sync_folder_of(&path);
            }
        }
        Ok(())
    }

    /// Removes what [`Runtime::keep_config`] has kept.
    pub(crate) fn forget_config(&self, config: &Config) {
        self.kept_configs(config).iter().for_each(|path| drop(fs::remove_file(path)));
    }

    fn kept_configs(&self, config: &Config) -> Vec<PathBuf> {
        let name = format!("{KEPT_START}{}{KEPT_END}", self.instance);
        file_tiers(config).map(|folder| folder.join(&name)).collect()
    }

    /// The file beside the slots that says that another machine has them: one that shares the folder,
    /// and may be at work with them.
    pub(crate) fn kept_elsewhere(&self, config: &Config) -> Option<PathBuf> {
        self.kept_configs(config).into_iter().find(|path| {
            let kept = fs::read_to_string(path).unwrap_or_default();
            machine_of(&kept).is_some_and(|machine| machine != this_machine())
        })
    }

    /// Other instances of this user which have left something on the file tiers of `config`: those of
    /// this machine whose folder is gone, and those of other machines.
    ///
    /// # Errors
    /// Those of [`base`].
    pub fn left_beside(config: &Config) -> Result<LeftBeside, String> {
        let base = base()?;
        let own = config.instance_id();
        let instance_of = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            let instance = name.strip_prefix(KEPT_START)?.strip_suffix(KEPT_END)?;
            (instance.len() == 16 && instance != own).then(|| instance.to_owned())
        };
        let entries = file_tiers(config).filter_map(|folder| fs::read_dir(folder).ok());
        let mut left = LeftBeside::default();
        for path in entries.flatten().filter_map(|entry| Some(entry.ok()?.path())) {
            let Some(instance) = instance_of(&path) else { continue };
            let uid = rustix::process::getuid().as_raw();
            let ours = fs::symlink_metadata(&path).is_ok_and(|found| found.uid() == uid);
            let Some(kept) = ours.then(|| fs::read_to_string(&path).ok()).flatten() else {
                continue;
            };
            let Ok(theirs) = Config::parse(&kept) else { continue };
            if theirs.instance_id() != instance {
                continue;
            }
            let runtime = Runtime::named(&base, &instance);
            if machine_of(&kept) != Some(&this_machine()) {
                let is_known =
                    left.elsewhere.iter().any(|(_, known)| known.instance_id() == instance);
                if runtime.has_slots(&theirs) && !runtime.folder.exists() && !is_known {
                    left.elsewhere.push((path, theirs));
                }
                continue;
            }
            let served =
                || crate::status::Observer::of(&runtime.pool).is_ok_and(|pool| pool.is_served());
            if !runtime.folder.exists()
                && (runtime.pool.exists() || runtime.has_slots(&theirs))
                && !served()
                && !left.ours.iter().any(|(known, _)| *known == runtime)
            {
                left.ours.push((runtime, theirs));
            }
        }
        Ok(left)
    }

    /// Whether the instance has left anything that is to be drained, as far as its folder says.
    pub fn has_left(&self) -> bool {
        self.pool.exists() || self.read_config().is_some_and(|config| self.has_slots(&config))
    }

    /// The table of a file tier's slots, beside them.
    pub fn index(&self, folder: &Path, tier: &str) -> PathBuf {
        folder.join(format!("forebay-{}-{tier}{INDEX_END}", self.instance))
    }

    /// The journal's file, in the folder of the tier that it lies on.
    pub fn journal(&self, folder: &Path, tier: &str) -> PathBuf {
        folder.join(format!("forebay-{}-{tier}.journal", self.instance))
    }
}
