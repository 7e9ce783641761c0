//! Where a node manager's files are: its folder with socket, lock, log and configuration, and its
//! pool in /dev/shm.

mod base;
mod beside;
mod logs;

pub(crate) use base::replace_private;
pub(crate) use base::sync_folder_of;
pub use base::{append_private, base, read_private, write_private};
pub(crate) use beside::KEPT_START;
pub use beside::LeftBeside;
pub use logs::newest_last_log;

use crate::config::Config;
use crate::instance::discovery::{self, FoundPool, is_instance};
use base::private_folder;
use forebay_pool::private::{self, Wrong};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// How a manager that starts says that another holds the instance's lock.
pub const SERVED: &str = "another node manager serves it";

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

impl Runtime {
    /// The names for a configuration: those of the instance's pool if there is one, wherever its
    /// manager was started. Its folder need not exist, see [`Runtime::prepare`].
    ///
    /// # Errors
    /// A message that names the folder of all instances and what is wrong with it.
    pub fn of(config: &Config) -> Result<Runtime, String> {
        Runtime::find(&base()?, &config.instance_id())
    }

    /// The names of the instance of this name, which need not be that of today's configuration.
    ///
    /// # Errors
    /// Those of [`base()`], and a message if that is no instance's name.
    pub fn of_instance(instance: &str) -> Result<Runtime, String> {
        match is_instance(instance) {
            true => Runtime::find(&base()?, instance),
            false => Err(format!("{instance}: not the name of an instance")),
        }
    }

    /// The same instance, as it is now: its pool may have been made meanwhile, under another name.
    ///
    /// # Errors
    /// Those of [`base()`].
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

    /// All instances of this user: those that have a pool, wherever they were started, and those
    /// that have a folder in [`base()`].
    ///
    /// # Errors
    /// Those of [`base()`], and of looking into /dev/shm.
    pub fn all() -> Result<Vec<Runtime>, String> {
        let base = base()?;
        let entries = fs::read_dir(&base).map_err(|e| format!("{}: {e}", base.display()))?;
        let names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| is_instance(name))
            .collect();
        // After the folders: the pool of an instance whose folder is made meanwhile is later than
        // that. One that is being made is of no concern to a command with another runtime folder.
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

    /// What runs on files, and has run lately: [`crate::actions::table`].
    pub fn actions(&self) -> PathBuf {
        self.folder.join("actions")
    }

    /// The actions that were registered while the node manager ran.
    pub fn analyses(&self) -> PathBuf {
        self.folder.join("analyses")
    }

    /// The configuration the instance was started with.
    pub fn config(&self) -> PathBuf {
        self.folder.join("config")
    }

    /// The configuration the instance was started with, if it can be read, and is the one that the
    /// instance is named after.
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

    /// Process id of the node manager that holds the instance's lock, or held it last: it may not
    /// have a pool yet.
    pub fn manager(&self) -> Option<u32> {
        // One with a shorter id leaves the end of what was there.
        fs::read_to_string(self.folder.join("lock")).ok()?.lines().next()?.parse().ok()
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

    /// Removes the instance's folder if nothing goes with it that is to be drained: its manager
    /// could not start. What another machine has on a shared tier does not count.
    pub fn remove_unless_used(&self) {
        let elsewhere = || self.read_config().and_then(|config| self.kept_elsewhere(&config));
        if !self.has_left() || (!self.has_pool() && elsewhere().is_some()) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

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

    /// A command lists a pool, which ends; its name is taken before the command looks again.
    #[test]
    fn what_another_user_has_put_in_the_place_of_a_pool_is_nothing_left() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root can make a file that another user owns");
        }
        let folder = tempfile::tempdir().unwrap();
        let (instance, pool) = ("0".repeat(16), folder.path().join("pool"));
        let runtime = Runtime { instance, folder: folder.path().join("instance"), pool };
        private::create(&runtime.pool, OFlags::RDWR).unwrap();
        assert!(runtime.has_pool() && runtime.has_left());
        std::os::unix::fs::chown(&runtime.pool, Some(65534), Some(65534)).unwrap();
        assert!(!runtime.has_pool() && !runtime.has_left());
    }
}
