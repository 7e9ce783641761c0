//! What an instance has on its file tiers: slots and their tables, the journal, its configuration;
//! and what other instances have left there.

use super::base::{read_private, refused, write_private};
use super::{Runtime, base, sync_folder_of};
use crate::config::{Config, Tier, TierKind};
use crate::instance::discovery::{self, is_instance};
use forebay_placement::TierId;
use forebay_pool::private;
use forebay_pool::slot_record::{INDEX_END, JOURNAL_END, SLOTS_END};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// How the name of a configuration begins and ends that is kept beside a tier's slots.
pub(crate) const KEPT_START: &str = "forebay-";

pub(super) const KEPT_END: &str = ".config";

/// How the line begins that names the machine in a configuration that is kept: a comment.
pub(super) const KEPT_ON: &str = "# machine: ";

/// What tells this machine from others that share a file tier's folder, and stays over a reboot.
/// Not the machine's number alone: machines of one image may have the same.
pub(super) fn this_machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (number, host) = (read("/etc/machine-id"), read("/proc/sys/kernel/hostname"));
    format!("{} {}", number.trim(), host.trim()).trim().to_owned()
}

/// The machine that a kept configuration is of.
pub(super) fn machine_of(kept: &str) -> Option<&str> {
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
pub(super) fn file_tiers(config: &Config) -> impl Iterator<Item = &PathBuf> {
    config.tiers.iter().filter_map(|tier| match &tier.kind {
        TierKind::File { path } => Some(path),
        TierKind::Ram => None,
    })
}

impl Runtime {
    /// The file of a file tier's slots, in the tier's folder.
    pub fn slots(&self, folder: &Path, tier: &str) -> PathBuf {
        self.of_tier(folder, tier, SLOTS_END)
    }

    /// A file of a tier, under the name that its files have. The tier's files lie side by side
    /// under one name with several ends: the usual one, or where another user has taken that, one
    /// with a random number. Those that are there are found; without any it is a name that is free.
    pub(super) fn of_tier(&self, folder: &Path, tier: &str, end: &str) -> PathBuf {
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

    /// Whether the tiers have files of the instance, which may hold data although its segment is
    /// gone.
    pub fn has_slots(&self, config: &Config) -> bool {
        let is_there = |path: &PathBuf| private::is_there(path);
        self.slot_files(config).iter().any(|(slots, index)| is_there(slots) || is_there(index))
            || self.journals(config).any(|(_, path)| is_there(&path))
    }

    /// Keeps the configuration beside the slots of file tier `tier`, durably: after a reboot the
    /// instance's folder may be gone, and nothing else says which stores they belong to.
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

    pub(super) fn kept_configs(&self, config: &Config) -> Vec<PathBuf> {
        file_tiers(config).map(|folder| self.kept_config(folder)).collect()
    }

    pub(super) fn kept_config(&self, folder: &Path) -> PathBuf {
        let stem = format!("{KEPT_START}{}", self.instance);
        folder.join(discovery::stem_in(folder, &stem, &[KEPT_END]) + KEPT_END)
    }

    /// The file beside the slots that says that another machine has them: one that shares the
    /// folder, and may be at work with them.
    pub(crate) fn kept_elsewhere(&self, config: &Config) -> Option<PathBuf> {
        self.kept_configs(config).into_iter().find(|path| {
            let kept = read_private(path).unwrap_or_default();
            machine_of(&kept).is_some_and(|machine| machine != this_machine())
        })
    }

    /// Other instances of this user which have left something on the file tiers of `config`: those
    /// of this machine whose folder is gone, and those of other machines.
    ///
    /// # Errors
    /// Those of [`base()`].
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
                && (runtime.has_pool() || runtime.has_slots(&theirs))
                && !served()
                && !left.ours.iter().any(|(known, _)| *known == runtime)
            {
                left.ours.push((runtime, theirs));
            }
        }
        Ok(left)
    }

    /// Whether the instance has a pool. What another user has put under its name is none.
    pub fn has_pool(&self) -> bool {
        private::is_there(&self.pool)
    }

    /// Whether the instance has left anything that is to be drained, as far as its folder says.
    pub fn has_left(&self) -> bool {
        // What cannot be read may name anything.
        let on_tiers = || match self.read_config() {
            Some(config) => self.has_slots(&config),
            None => self.config().exists(),
        };
        self.has_pool() || on_tiers()
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
