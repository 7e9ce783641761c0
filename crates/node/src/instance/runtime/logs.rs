//! Logs of managers: of those that run, and the last ones of those that have ended.

use super::{Runtime, base};
use crate::instance::discovery::is_instance;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How the name of a log begins and ends that is kept when its manager has ended and its folder is
/// removed, and how many are kept in one runtime folder.
pub(super) const LAST_START: &str = "last-";

pub(super) const LAST_END: &str = ".log";

pub(super) const LAST_LOGS: usize = 16;

/// The logs that are kept in a runtime folder, and when they were written last.
pub(super) fn last_logs(base: &Path) -> Vec<(PathBuf, SystemTime)> {
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

/// The log that was kept last of a manager that has ended, in [`base()`].
///
/// # Errors
/// Those of [`base()`].
pub fn newest_last_log() -> Result<Option<PathBuf>, String> {
    Ok(last_logs(&base()?).into_iter().max_by_key(|(_, at)| *at).map(|(path, _)| path))
}

impl Runtime {
    /// Where the log is kept of the instance's last manager that has ended, when its folder is
    /// removed.
    pub(super) fn last_log(&self) -> PathBuf {
        self.folder.with_file_name(format!("{LAST_START}{}{LAST_END}", self.instance))
    }

    /// The log to read: that of the instance's manager, or, when that has ended and its folder is
    /// removed, the one that is kept of it.
    pub fn readable_log(&self) -> PathBuf {
        let (log, last) = (self.log(), self.last_log());
        if !log.exists() && last.exists() { last } else { log }
    }

    /// Keeps the log of a folder that is about to be removed, if it says anything. No more than
    /// [`LAST_LOGS`] are kept, the newest.
    pub(super) fn keep_log(&self, folder: &Path) {
        let log = folder.join("log");
        if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
            let _ = fs::rename(&log, self.last_log());
        }
        let mut kept = last_logs(self.folder.parent().unwrap_or(folder));
        kept.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
        kept.iter().skip(LAST_LOGS).for_each(|(path, _)| drop(fs::remove_file(path)));
    }
}
