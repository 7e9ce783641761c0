//! Telling of what was set aside of files that are nowhere on their store any more.

use crate::text::counted;
use forebay_node::Config;
use forebay_node::log::shown;
use forebay_node::removed::kept;
use forebay_node::runtime::Runtime;
use std::path::{Path, PathBuf};

/// Files that are named; the others are counted.
const NAMED_MAX: usize = 20;

/// What an instance has set aside.
pub struct Aside {
    config: Config,
    runtime: Runtime,
    told: Vec<(PathBuf, i64)>,
}

impl Aside {
    /// Of an instance that is served, or has been left, with its own tiers; else with `config`'s.
    pub fn of(config: &Config, runtime: &Runtime) -> Aside {
        let config = runtime.recorded().unwrap_or_else(|| config.clone());
        let told = kept(&config, runtime);
        Aside { config, runtime: runtime.clone(), told }
    }

    /// Of an instance whose folder says with which configuration it was started.
    pub fn recorded(runtime: &Runtime) -> Option<Aside> {
        runtime.recorded().map(|config| Aside::of(&config, runtime))
    }

    /// Where files are that were there before.
    pub fn old(&self) -> impl Iterator<Item = &Path> {
        self.told.iter().map(|(path, _)| path.as_path())
    }

    /// What was there before, if anything.
    pub fn describe_old(&self) -> Option<String> {
        let (first, _) = self.told.first()?;
        Some(format!(
            "{} that an earlier run found nowhere on the store, such as {}; take what is wanted, and remove the rest",
            counted(self.told.len(), "file is kept", "files are kept"),
            first.display()
        ))
    }

    /// Says that.
    pub fn tell_old(&self) {
        if let Some(text) = self.describe_old() {
            eprintln!("forebay: {text}");
        }
    }

    /// Where files are that have been set aside since the last look, and since when.
    pub fn added(&self) -> Vec<(PathBuf, i64)> {
        let mut now = kept(&self.config, &self.runtime);
        now.retain(|found| !self.told.contains(found));
        now
    }

    /// Says what has been set aside since the last look, and returns the number of files.
    pub fn tell_new(&mut self) -> usize {
        let new = self.added();
        if !new.is_empty() {
            let files = counted(new.len(), "file was", "files were");
            let mut text = format!(
                "{files} removed, or moved away, before the data was on the store. What the tiers had of it is kept; \
                 remove what is not wanted:"
            );
            for (path, _) in new.iter().take(NAMED_MAX) {
                text.push_str(&format!("\n  {}", shown(path)));
            }
            if new.len() > NAMED_MAX {
                text.push_str(&format!("\n  and {} more", new.len() - NAMED_MAX));
            }
            eprintln!("forebay: {text}");
        }
        let count = new.len();
        self.told.extend(new);
        count
    }
}
