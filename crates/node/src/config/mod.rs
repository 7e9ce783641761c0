//! The configuration of a node manager: which directories it buffers, through which tiers.
//!
//! A configuration comes from a TOML file ([`Config::load`]), or is chosen by looking at the
//! machine ([`Config::automatic`]). The daemon gets it as text ([`Config::canonical`],
//! [`Config::parse`]). Every error is one message: `FILE:LINE: KEY: what is wrong; what to do`.
//!
//! The schema in XML is read here, too. May use no other folder of this crate.
//!
//! ```
//! use forebay_node::Config;
//!
//! let text = r#"
//!     [[backing]]
//!     path = "/tmp"
//!
//!     [[tier]]
//!     name = "ram"
//!     kind = "ram"
//!     capacity = "64MiB"
//! "#;
//! let config = Config::parse(text).expect("it is whole");
//! assert_eq!((config.tiers.len(), config.page_size), (1, 4096));
//! let wrong = Config::parse(&text.replace("capacity", "capcity")).unwrap_err();
//! assert!(wrong.to_string().contains("capcity"));
//! ```

pub mod active;
mod adapters;
pub mod analyses;
mod errors;
mod group;
mod limits;
mod machine;
mod messages;
mod metrics;
mod movers;
mod mpi;
mod places;
mod predictors;
mod pseudo;
mod quota;
pub mod reader;
mod registered;
pub mod rules;
mod schema;
mod small_files;
mod toml;
mod types;
pub(crate) mod units;
mod variables;

pub use active::ActiveRule;
pub use adapters::Ways;
pub use analyses::{Analysis, DrainWhen, On};
pub use errors::Errors;
pub use forebay_placement::schema::Trigger;
use forebay_pool::layout::STORES_MAX;
pub use group::{Consistency, Group, Hosts};
pub use limits::RunLimits;
pub use messages::{MessageSpeed, Messages};
pub use metrics::{Listen, Metrics};
pub use movers::Movers;
pub use predictors::{Predictors, load_predictor};
pub use registered::Registered;
pub use schema::XSD;
pub use small_files::SmallFiles;
pub(crate) use types::Result;
pub use types::{
    BUFFER_TIERS_MAX, Backing, Config, ConfigError, Emulate, Flush, Mode, Placement, Rule, Speed,
    Tier, TierKind,
};
pub use units::{size_of, time_of};
pub use variables::expand;

pub use machine::{Room, memory_limit};
pub(crate) use machine::{automatic_ram as machine_ram, available_memory, is_local_disk};
use machine::{automatic_ram, scratch_candidates};
use places::{Places, TierPlaces};
use reader::line_of;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{CANONICAL_KEYS, ROOT_KEYS, Text};
use types::{BUCKETS_MIN, PAGE_SIZE_DEFAULT};
use units::size;

/// Longest configuration: 128 rules with the longest paths, several times over.
const TEXT_MAX: u64 = 4 << 20;

/// Reads a file, of which others may have made anything; `None` if it has more than `most` bytes.
///
/// # Errors
/// The system's error.
pub(crate) fn read_up_to(most: u64, file: fs::File) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content)?;
    Ok(Some(content).filter(|content| content.len() as u64 <= most))
}

/// Reads a configuration.
///
/// # Errors
/// The system's error, or that it is longer than any configuration.
pub(crate) fn read_all(file: fs::File) -> io::Result<Vec<u8>> {
    let long = || io::Error::other(format!("larger than {}, no configuration is", size(TEXT_MAX)));
    read_up_to(TEXT_MAX, file)?.ok_or_else(long)
}

/// Backing stores that fit in the pool's header.
const BACKING_MAX: usize = STORES_MAX;

impl Config {
    /// Reads a configuration file, adds the directories of `--backing` and checks all of it against
    /// this machine; relative paths in the file start at the file's own directory.
    pub fn load(path: &Path, extra_backing: &[PathBuf]) -> Result<Self> {
        Config::load_for(path, extra_backing, Predictors::Needed)
    }

    /// The same, with predictors needed or not.
    pub fn load_for(
        path: &Path,
        extra_backing: &[PathBuf],
        predictors: Predictors,
    ) -> Result<Self> {
        Config::of_content(path, Config::content_of(path)?, extra_backing, predictors)
    }

    /// What stands in a configuration file, unread; a pipe has it once.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn content_of(path: &Path) -> Result<Vec<u8>> {
        fs::File::open(path).and_then(read_all).map_err(|e| {
            let unreadable = format_args!("cannot be read: {e}; give an existing file");
            ConfigError::new(path.display(), unreadable)
        })
    }

    /// As [`Config::load_for`], of what stands in the file.
    pub fn of_content(
        path: &Path,
        content: Vec<u8>,
        extra_backing: &[PathBuf],
        predictors: Predictors,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let content = String::from_utf8(content).map_err(|e| {
            let line = line_of(e.as_bytes(), e.utf8_error().valid_up_to());
            ConfigError::new(format_args!("{name}:{line}"), "not UTF-8; save the file as UTF-8")
        })?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let text = Text { content: &content, name: Some(name), folder, errors: Errors::default() };
        let read = text.read(ROOT_KEYS);
        let (mut config, mut places) = match read {
            Ok(read) => read,
            Err(error) => return Err(text.errors.with(error)),
        };
        config.add_backing(extra_backing, &mut places);
        text.errors.ok(config.check_backing_count(&text.source().place(0, "backing")));
        text.errors.ok(config.check_machine(&places));
        if predictors == Predictors::Needed {
            let rules = 0..config.rules.len();
            text.errors.ok(config.check_predictors(rules, &places.predictors));
        }
        text.errors.ok(config.check_movers(&places.cores));
        text.errors.ok(config.check_metrics(&places.metrics));
        text.errors.ok(config.check_group(&places.group));
        text.errors.end()?;
        Ok(config)
    }

    /// Chooses tiers for these backing directories: a quarter of the available memory, then a
    /// quarter of the free space of local scratch, if there is one.
    pub fn automatic(backing: &[PathBuf]) -> Result<Self> {
        let config = Self::automatic_of_any_size(backing)?;
        config.check_memory()?;
        Ok(config)
    }

    /// Whether there is memory for a RAM tier that was chosen automatically.
    pub fn check_memory(&self) -> Result<()> {
        let capacity = automatic_ram();
        let capacity_min = BUCKETS_MIN * self.bucket_size();
        if self.automatic && capacity < capacity_min {
            return Err(ConfigError::new(
                "memory",
                format_args!(
                    "only {} can be had for the RAM tier; free some memory or space in /dev/shm \
                     until there is {}, or name the tiers with --config",
                    size(capacity),
                    size(capacity_min)
                ),
            ));
        }
        Ok(())
    }

    /// The same as [`Config::automatic`], however little memory there is: to name a pool that may
    /// be there already, and take the memory.
    pub fn automatic_of_any_size(backing: &[PathBuf]) -> Result<Self> {
        let mut config = Self {
            page_size: PAGE_SIZE_DEFAULT,
            flush: Flush::default(),
            run: RunLimits::default(),
            placement: Placement::default(),
            backing: Vec::new(),
            tiers: Vec::new(),
            rules: Vec::new(),
            group: Group::default(),
            movers: Movers::default(),
            messages: Messages::default(),
            metrics: Metrics::default(),
            ways: Ways::default(),
            keep: Duration::ZERO,
            analyses: Vec::new(),
            active: Vec::new(),
            automatic: true,
        };
        let mut places = Places::default();
        config.add_backing(backing, &mut places);
        config.check_backing_count("--backing")?;
        config.check_directories_at(&places)?;

        let capacity = automatic_ram().max(BUCKETS_MIN * config.bucket_size());
        config.tiers.push(Tier {
            name: "ram".to_owned(),
            kind: TierKind::Ram,
            capacity,
            emulate: None,
            speed: Speed::default(),
            quota: 0,
        });
        config.tiers.extend(config.scratch_tier(scratch_candidates()));
        Ok(config)
    }

    /// Reads what [`Config::canonical`] wrote, without looking at the machine.
    pub fn parse(canonical: &str) -> Result<Self> {
        let (folder, errors) = (PathBuf::from("/"), Errors::default());
        let text = Text { content: canonical, name: None, folder, errors };
        let (config, _) = text.read(CANONICAL_KEYS)?;
        text.errors.ok(config.check_backing_count(&text.source().place(0, "backing")));
        text.errors.end()?;
        Ok(config)
    }

    /// Adds the rules of a schema's file, before all others.
    pub fn add_schema(&mut self, file: &Path, predictors: Predictors) -> Result<()> {
        let (rules, places) = rules::read(&schema::load(file, "--schema")?, &self.tiers)?;
        let added = rules.len();
        self.rules.splice(..0, rules);
        self.resolve_patterns(0..added, &places.paths)?;
        if predictors == Predictors::Needed {
            self.check_predictors(0..added, &places.predictors)?;
        }
        rules::check_count(self.rules.len(), "--schema")
    }

    /// Checks that all directories exist, are writable and are kept apart, and makes their paths
    /// canonical.
    pub fn check_directories(&mut self) -> Result<()> {
        let places = Places {
            backing: (0..self.backing.len()).map(|i| format!("backing[{i}].path")).collect(),
            tiers: (0..self.tiers.len()).map(|i| TierPlaces::keys(&format!("tier[{i}]"))).collect(),
            rules: self.rules.iter().map(|rule| rule.source.clone()).collect(),
            ..Places::default()
        };
        self.check_directories_at(&places)
    }

    fn add_backing(&mut self, directories: &[PathBuf], places: &mut Places) {
        for path in directories {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            self.backing.push(Backing {
                path,
                mode: Mode::Buffered,
                emulate: None,
                shared: None,
                speed: Speed::default(),
                stripe: 0,
                stripe_count: 0,
                small_files: SmallFiles::default(),
            });
            places.backing.push("--backing".to_owned());
        }
    }

    fn check_backing_count(&self, place: &str) -> Result<()> {
        match self.backing.len() {
            0 => Err(ConfigError::new(
                place,
                "no backing directory; add [[backing]] with a path to the configuration file or \
                 give --backing DIR",
            )),
            n if n > BACKING_MAX => Err(ConfigError::new(
                place,
                format_args!("{n} backing directories; give at most {BACKING_MAX}"),
            )),
            _ => Ok(()),
        }
    }
}
