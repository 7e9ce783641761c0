//! Where a node manager's files are: its folder with socket, lock, log and configuration, and its
//! pool in /dev/shm.

use crate::config::{Config, Tier, TierKind};
use crate::instance::discovery::{self, FoundPool, is_instance, is_private_folder, own_uid};
use forebay_placement::TierId;
use forebay_pool::private::{self, Wrong};
use forebay_pool::slot_record::{INDEX_END, JOURNAL_END, SLOTS_END};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How a manager that starts says that another holds the instance's lock.
pub const SERVED: &str = "another node manager serves it";

/// How the name of a configuration begins and ends that is kept beside a tier's slots.
pub(crate) const KEPT_START: &str = "forebay-";
const KEPT_END: &str = ".config";

/// How the name of a log begins and ends that is kept when its manager has ended and its folder is removed, and how many are
/// kept in one runtime folder.
const LAST_START: &str = "last-";
const LAST_END: &str = ".log";
const LAST_LOGS: usize = 16;

/// The logs that are kept in a runtime folder, and when they were written last.
fn last_logs(base: &Path) -> Vec<(PathBuf, SystemTime)> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let is_last = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let instance = name.strip_prefix(LAST_START).and_then(|name| name.strip_suffix(LAST_END));
        instance.is_some_and(is_instance)
    };
    let paths = entries.map(|entry| entry.path()).filter(is_last);
    paths
        .filter_map(|path| Some((path.clone(), fs::metadata(path).ok()?.modified().ok()?)))
        .collect()
}

/// The log that was kept last of a manager that has ended, in [`base`].
///
/// # Errors
/// Those of [`base`].
pub fn newest_last_log() -> Result<Option<PathBuf>, String> {
    Ok(last_logs(&base()?).into_iter().max_by_key(|(_, at)| *at).map(|(path, _)| path))
}

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
    let given = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    let named = given("FOREBAY_RUNTIME_DIR").map(PathBuf::from);
    let session = given("XDG_RUNTIME_DIR")
        .map(|folder| PathBuf::from(folder).join("forebay"))
        .filter(|folder| folder.is_absolute() && folder.parent().is_some_and(Path::is_dir));
    let folder = named.or(session).unwrap_or_else(|| shared_base(Path::new(SHARED)));
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

/// Writes a file that only this user can read, if the one that is there is ours alone.
///
/// # Errors
/// What is wrong with it, or the system's error.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::from(private::open_or_create(path, OFlags::WRONLY).map_err(refused)?);
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

/// Reads a file that is ours alone.
///
/// # Errors
/// What is wrong with it, or the system's error.
pub fn read_private(path: &Path) -> io::Result<String> {
    io::read_to_string(File::from(private::open(path, OFlags::RDONLY).map_err(refused)?))
}

/// Opens a log for more to be added.
///
/// # Errors
/// What is wrong with it, or the system's error.
pub fn append_private(path: &Path) -> io::Result<File> {
    private::open_or_create(path, OFlags::WRONLY | OFlags::APPEND).map(File::from).map_err(refused)
}

fn refused(wrong: Wrong) -> io::Error {
    match wrong {
        Wrong::System(errno) => errno.into(),
        other => io::Error::new(ErrorKind::PermissionDenied, other),
    }
}

/// Where the folder of all instances is if nothing is said.
const SHARED: &str = "/tmp";

/// This user's folder in one that all users share: of the usual name, unless another user has taken that.
fn shared_base(shared: &Path) -> PathBuf {
    let stem = format!("forebay-{}", own_uid());
    let usual = shared.join(&stem);
    let entries = || fs::read_dir(shared).into_iter().flatten().flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| discovery::is_name_of(name, &stem)) && is_private_folder(path)
    };
    if is_private_folder(&usual) {
        return usual;
    }
    if let Some(other) = entries().map(|entry| entry.path()).filter(is_ours).min() {
        return other;
    }
    // Of ours only: another is refused, with a message.
    match fs::symlink_metadata(&usual).is_ok_and(|found| found.uid() != own_uid()) {
        true => shared.join(discovery::unguessable_name(&stem)),
        false => usual,
    }
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
    if !found.is_dir() || found.uid() != own_uid() {
        return Err(wrong("is not a folder of yours; remove it or set FOREBAY_RUNTIME_DIR"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(wrong("is open to other users; run chmod 700 on it"));
    }
    Ok(())
}

impl Runtime {
    /// The names for a configuration: those of the instance's pool if there is one, wherever its manager
    /// was started. Its folder need not exist, see [`Runtime::prepare`].
    ///
    /// # Errors
    /// A message that names the folder of all instances and what is wrong with it.
    pub fn of(config: &Config) -> Result<Runtime, String> {
        Runtime::find(&base()?, &config.instance_id())
    }

    /// The names of the instance of this name, which need not be that of today's configuration.
    ///
    /// # Errors
    /// Those of [`base`], and a message if that is no instance's name.
    pub fn of_instance(instance: &str) -> Result<Runtime, String> {
        match is_instance(instance) {
            true => Runtime::find(&base()?, instance),
            false => Err(format!("{instance}: not the name of an instance")),
        }
    }

    /// The same instance, as it is now: its pool may have been made meanwhile, under another name.
    ///
    /// # Errors
    /// Those of [`base`].
    pub fn again(&self) -> Result<Runtime, String> {
        Runtime::find(&base()?, &self.instance)
    }

    fn find(base: &Path, instance: &str) -> Result<Runtime, String> {
        let mut pools = discovery::pools()?.into_iter();
        let found = pools.find(|pool| pool.instance == instance);
        Ok(match found {
            Some(pool) => Runtime::found(base, pool),
            None => Runtime::named(base, instance),
        })
    }

    fn found(base: &Path, pool: FoundPool) -> Runtime {
        let FoundPool { path, instance, folder, .. } = pool;
        let folder = folder.unwrap_or_else(|| base.join(&instance));
        Runtime { instance, folder, pool: path }
    }

    /// Makes the instance's folder, which a manager that ends removes.
    ///
    /// # Errors
    /// A message that names the folder and what is wrong with it.
    pub fn prepare(&self) -> Result<(), String> {
        private_folder(&self.folder)
    }

    /// An instance without a pool: under the name that its next one gets.
    fn named(base: &Path, instance: &str) -> Runtime {
        Runtime {
            instance: instance.to_owned(),
            folder: base.join(instance),
            pool: discovery::pool_name(instance),
        }
    }

    /// All instances of this user: those that have a pool, wherever they were started, and those that
    /// have a folder in [`base`].
    ///
    /// # Errors
    /// Those of [`base`], and of looking into /dev/shm.
    pub fn all() -> Result<Vec<Runtime>, String> {
        let base = base()?;
        let entries = fs::read_dir(&base).map_err(|e| format!("{}: {e}", base.display()))?;
        let names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| is_instance(name))
            .collect();
        // After the folders: the pool of an instance whose folder is made meanwhile is later than that.
        // One that is being made is of no concern to a command with another runtime folder.
        let is_known = |pool: &FoundPool| !pool.is_blank || names.contains(&pool.instance);
        let pools = discovery::pools()?.into_iter().filter(is_known);
        let mut all: Vec<_> = pools.map(|pool| Runtime::found(&base, pool)).collect();
        for name in &names {
            // What is beside another folder's pool has lost a race for it.
            if !all.iter().any(|known| known.instance == *name) {
                all.push(Runtime::named(&base, name));
            }
        }
        all.sort_by(|a, b| a.instance.cmp(&b.instance));
        Ok(all)
    }

    /// The directories that the instance buffers, as its configuration says, or its pool; `None` if
    /// neither can be read.
    pub fn backing(&self) -> Option<Vec<PathBuf>> {
        if let Some(config) = self.read_config() {
            return Some(config.backing.into_iter().map(|backing| backing.path).collect());
        }
        let pool = crate::observe::status::Observer::of(&self.pool).ok()?;
        let header = pool.segment().header();
        let stores = header.store[..header.stores as usize].iter();
        Some(stores.map(|store| crate::usage::path_of(&store.path).to_owned()).collect())
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

    /// The configuration the instance was started with, if it can be read, and is the one that the instance
    /// is named after.
    pub fn read_config(&self) -> Option<Config> {
        let config = Config::parse(&read_private(&self.config()).ok()?).ok()?;
        (config.instance_id() == self.instance).then_some(config)
    }

    /// Takes the instance's lock, which a node manager holds as long as it lives. `None` when
    /// another has it.
    ///
    /// # Errors
    /// The system's errno.
    pub fn lock(&self) -> Result<Option<OwnedFd>, Errno> {
        let lock = private::open_or_create(&self.folder.join("lock"), OFlags::RDWR);
        let lock = lock.map_err(Wrong::errno)?;
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
        // One with a shorter id leaves the end of what was there.
        fs::read_to_string(self.folder.join("lock")).ok()?.lines().next()?.parse().ok()
    }

    /// Where the log is kept of the instance's last manager that has ended, when its folder is removed.
    fn last_log(&self) -> PathBuf {
        self.folder.with_file_name(format!("{LAST_START}{}{LAST_END}", self.instance))
    }

    /// The log to read: that of the instance's manager, or, when that has ended and its folder is removed, the
    /// one that is kept of it.
    pub fn readable_log(&self) -> PathBuf {
        let (log, last) = (self.log(), self.last_log());
        if !log.exists() && last.exists() { last } else { log }
    }

    /// Keeps the log of a folder that is about to be removed, if it says anything. No more than [`LAST_LOGS`]
    /// are kept, the newest.
    fn keep_log(&self, folder: &Path) {
        let log = folder.join("log");
        if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
            let _ = fs::rename(&log, self.last_log());
        }
        let mut kept = last_logs(self.folder.parent().unwrap_or(folder));
        kept.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
        kept.iter().skip(LAST_LOGS).for_each(|(path, _)| drop(fs::remove_file(path)));
    }

    /// Removes the instance's folder and pool. For a node manager that has drained everything.
    pub fn remove(&self) {
        private::remove(&self.pool);
        // Out of the way first: a new manager may be making its own at this moment.
        let gone = self.folder.with_extension(format!("ended-{}", std::process::id()));
        if fs::rename(&self.folder, &gone).is_ok() {
            self.keep_log(&gone);
            let _ = fs::remove_dir_all(&gone);
        }
    }

    /// Removes the instance's folder if nothing goes with it that is to be drained: its manager could
    /// not start. What another machine has on a shared tier does not count.
    pub fn remove_unless_used(&self) {
        let elsewhere = || self.read_config().and_then(|config| self.kept_elsewhere(&config));
        if !self.has_left() || (!self.pool.exists() && elsewhere().is_some()) {
            self.keep_log(&self.folder);
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// Removes the instance's folder after its pool was found to have another, unless it is in use.
    pub fn abandon_folder(&self) {
        if let Ok(Some(_lock)) = self.lock() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// The file of a file tier's slots, in the tier's folder.
    pub fn slots(&self, folder: &Path, tier: &str) -> PathBuf {
        self.of_tier(folder, tier, SLOTS_END)
    }

    /// A file of a tier, under the name that its files have. The tier's files lie side by side under one
    /// name with several ends: the usual one, or where another user has taken that, one with a random
    /// number. Those that are there are found; without any it is a name that is free.
    fn of_tier(&self, folder: &Path, tier: &str, end: &str) -> PathBuf {
        let stem = format!("{KEPT_START}{}-{tier}", self.instance);
        let mut stem = discovery::stem_in(folder, &stem, &[SLOTS_END, INDEX_END, JOURNAL_END]);
        stem.push_str(end);
        folder.join(stem)
    }

    /// The slots and the table of each file tier of the instance's configuration.
    pub fn slot_files(&self, config: &Config) -> Vec<(PathBuf, PathBuf)> {
        let of_tier = |tier: &Tier| match &tier.kind {
            TierKind::File { path } => {
                Some((self.slots(path, &tier.name), self.index(path, &tier.name)))
            }
            TierKind::Ram => None,
        };
        config.tiers.iter().filter_map(of_tier).collect()
    }

    /// Where the journal can be: on each tier that keeps one, with its number.
    pub(crate) fn journals(&self, config: &Config) -> impl Iterator<Item = (TierId, PathBuf)> {
        let path_on = |(number, tier): (usize, &Tier)| match &tier.kind {
            TierKind::File { path } if tier.properties().keeps_journal() => {
                Some((TierId::new(number), self.journal(path, &tier.name)))
            }
            _ => None,
        };
        config.tiers.iter().enumerate().filter_map(path_on)
    }

    /// Whether the tiers have files of the instance, which may hold data although its segment is gone.
    pub fn has_slots(&self, config: &Config) -> bool {
        let is_there = |path: &PathBuf| private::is_there(path);
        self.slot_files(config).iter().any(|(slots, index)| is_there(slots) || is_there(index))
            || self.journals(config).any(|(_, path)| is_there(&path))
    }

    /// Keeps the configuration beside the slots of file tier `tier`, durably: after a reboot the instance's folder
    /// may be gone, and nothing else says which stores they belong to.
    ///
    /// # Errors
    /// The file, and what is wrong with it, or the system's error. Nothing is left of it then.
    pub(crate) fn keep_config(
        &self,
        config: &Config,
        tier: TierId,
    ) -> Result<(), (PathBuf, io::Error)> {
        let TierKind::File { path: folder } = &config.tiers[tier].kind else { return Ok(()) };
        let text = format!("{KEPT_ON}{}\n{}", this_machine(), config.canonical());
        let path = self.kept_config(folder);
        if read_private(&path).is_ok_and(|kept| kept == text) {
            return Ok(());
        }
        let write = || {
            write_private(&path, &text)?;
            let kept = private::open(&path, OFlags::RDONLY).map_err(refused)?;
            File::from(kept).sync_all()
        };
        match write() {
            Ok(()) => sync_folder_of(&path),
            Err(error) => {
                // A part of it would say nothing. A file that is not ours stays.
                if error.raw_os_error().is_some() {
                    private::remove(&path);
                }
                return Err((path, error));
            }
        }
        Ok(())
    }

    /// Removes what [`Runtime::keep_config`] has kept.
    pub(crate) fn forget_config(&self, config: &Config) {
        let kept = self.kept_configs(config).into_iter();
        kept.filter(|path| private::look(path).is_ok()).for_each(|path| private::remove(&path));
    }

    /// What [`Runtime::keep_config`] has kept beside the slots of `config`'s tiers.
    pub(crate) fn kept_beside(&self, config: &Config) -> Option<Config> {
        self.kept_configs(config).iter().find_map(|path| {
            let kept = Config::parse(&read_private(path).ok()?).ok()?;
            (kept.instance_id() == self.instance).then_some(kept)
        })
    }

    fn kept_configs(&self, config: &Config) -> Vec<PathBuf> {
        file_tiers(config).map(|folder| self.kept_config(folder)).collect()
    }

    fn kept_config(&self, folder: &Path) -> PathBuf {
        let stem = format!("{KEPT_START}{}", self.instance);
        folder.join(discovery::stem_in(folder, &stem, &[KEPT_END]) + KEPT_END)
    }

    /// The file beside the slots that says that another machine has them: one that shares the folder,
    /// and may be at work with them.
    pub(crate) fn kept_elsewhere(&self, config: &Config) -> Option<PathBuf> {
        self.kept_configs(config).into_iter().find(|path| {
            let kept = read_private(path).unwrap_or_default();
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
            let stem = name.strip_suffix(KEPT_END)?;
            let instance = stem.strip_prefix(KEPT_START)?.get(..16)?;
            let is_kept = discovery::is_name_of(stem, &format!("{KEPT_START}{instance}"));
            (is_kept && is_instance(instance) && instance != own).then(|| instance.to_owned())
        };
        let entries = file_tiers(config).filter_map(|folder| fs::read_dir(folder).ok());
        let mut left = LeftBeside::default();
        for path in entries.flatten().filter_map(|entry| Some(entry.ok()?.path())) {
            let Some(instance) = instance_of(&path) else { continue };
            let Ok(kept) = read_private(&path) else { continue };
            let Ok(theirs) = Config::parse(&kept) else { continue };
            if theirs.instance_id() != instance {
                continue;
            }
            let runtime = Runtime::find(&base, &instance)?;
            if machine_of(&kept) != Some(&this_machine()) {
                let is_known =
                    left.elsewhere.iter().any(|(_, known)| known.instance_id() == instance);
                if runtime.has_slots(&theirs) && !runtime.folder.exists() && !is_known {
                    left.elsewhere.push((path, theirs));
                }
                continue;
            }
            let served = || {
                crate::observe::status::Observer::of(&runtime.pool)
                    .is_ok_and(|pool| pool.is_served())
            };
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
        // What cannot be read may name anything.
        let on_tiers = || match self.read_config() {
            Some(config) => self.has_slots(&config),
            None => self.config().exists(),
        };
        self.pool.exists() || on_tiers()
    }

    /// The table of a file tier's slots, beside them.
    pub fn index(&self, folder: &Path, tier: &str) -> PathBuf {
        self.of_tier(folder, tier, INDEX_END)
    }

    /// The journal's file, in the folder of the tier that it lies on.
    pub fn journal(&self, folder: &Path, tier: &str) -> PathBuf {
        self.of_tier(folder, tier, JOURNAL_END)
    }
}

/// The name of a file, too, has to be there after a power loss.
pub(crate) fn sync_folder_of(path: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Some(folder) = path.parent()
        && let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty())
    {
        let _ = rustix::fs::fsync(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn the_manager_is_the_one_that_has_locked_last() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime {
            instance: "0".repeat(16),
            folder: folder.path().to_owned(),
            pool: folder.path().join("pool"),
        };
        assert_eq!(runtime.manager(), None);
        let lock = File::create(folder.path().join("lock")).unwrap();
        for pid in [41234, 7, 999] {
            rustix::io::pwrite(&lock, format!("{pid}\n").as_bytes(), 0).unwrap();
            assert_eq!(runtime.manager(), Some(pid));
        }
    }

    #[test]
    fn a_planted_folder_of_all_instances_is_gone_around_and_the_other_found_again() {
        if own_uid() != 0 {
            eprintln!("SKIPPED: only root can be two users");
            return;
        }
        let shared = tempfile::tempdir().unwrap();
        let usual = shared.path().join("forebay-0");
        assert_eq!(shared_base(shared.path()), usual);
        fs::create_dir(&usual).unwrap();
        chown(&usual, Some(65533), Some(65533)).unwrap();
        let other = shared_base(shared.path());
        assert_ne!(other, usual);
        assert_ne!(other, shared_base(shared.path()), "it can be guessed");
        private_folder(&other).unwrap();
        assert_eq!(shared_base(shared.path()), other);
        // Nor is one with a name like ours that another user has made.
        let like = shared.path().join("forebay-0~0000000000000000");
        fs::create_dir(&like).unwrap();
        chown(&like, Some(65533), Some(65533)).unwrap();
        assert_eq!(shared_base(shared.path()), other);
        // One of ours that is open to others is refused, with its name.
        fs::remove_dir(&usual).unwrap();
        assert_eq!(shared_base(shared.path()), other);
        fs::remove_dir(&other).unwrap();
        fs::create_dir(&usual).unwrap();
        fs::set_permissions(&usual, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(shared_base(shared.path()), usual);
    }
}
