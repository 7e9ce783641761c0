//! The configuration of a node manager: which directories it buffers, through which tiers.
//!
//! A configuration comes from a TOML file ([`Config::load`]), or is chosen by looking at the machine
//! ([`Config::automatic`]). The daemon gets it as text ([`Config::canonical`], [`Config::parse`]).
//! Every error is one message: `FILE:LINE: KEY: what is wrong; what to do`.

use std::fmt::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use rustix::fs::{Access, access, statfs, statvfs};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Pages in a bucket: one bit each in a 64-bit word.
const PAGES_PER_BUCKET: u64 = 64;
/// Page size of a configuration that names none.
const PAGE_SIZE_DEFAULT: u32 = 4 << 10;
/// Largest page size: larger ones would make a bucket exceed the 4 MiB of one flush.
const PAGE_SIZE_MAX: u64 = 64 << 10;
/// A tier with fewer buckets could not keep its flusher, its demoter and a writer busy at once.
const BUCKETS_MIN: u64 = 16;
/// Eight tiers fit in the pool's header; the last is the backing store.
const BUFFER_TIERS_MAX: usize = 7;
/// Backing stores that fit in the pool's header.
const BACKING_MAX: usize = 8;
/// Longest name of a tier in bytes.
const NAME_MAX: usize = 31;
/// The name that status and traces give to the backing store.
const STORE_NAME: &str = "store";
/// A flush more often than this would only keep the processor busy.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// The RAM tier is backed by huge pages of this size.
const HUGE_PAGE: u64 = 2 << 20;
/// Raised when the same canonical text comes to mean something else.
const CANONICAL_VERSION: u32 = 1;

const ROOT_KEYS: &[&str] = &["page_size", "flush", "backing", "tier"];
/// `automatic` is not for people: it says that [`Config::automatic`] wrote the text.
const CANONICAL_KEYS: &[&str] = &["page_size", "flush", "backing", "tier", "automatic"];
const FLUSH_KEYS: &[&str] = &["trigger", "period"];
const BACKING_KEYS: &[&str] = &["path", "mode", "emulate"];
const TIER_KEYS: &[&str] = &["name", "kind", "path", "capacity", "emulate"];
const EMULATE_KEYS: &[&str] = &["bandwidth", "latency"];
const BANDWIDTH_KEYS: &[&str] = &["read", "write"];

const TRIGGERS: &[(&str, Trigger)] = &[
    ("per-operation", Trigger::PerOperation),
    ("per-file", Trigger::PerFile),
    ("on-exit", Trigger::OnExit),
    ("periodic", Trigger::Periodic),
];
const MODES: &[(&str, Mode)] = &[("buffered", Mode::Buffered), ("bypass", Mode::Bypass)];

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
/// Durations are kept in nanoseconds.
const TIME_UNITS: &[(&str, u64)] =
    &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000)];

/// A complete configuration of a node manager, every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a page, the unit of validity; a bucket is 64 pages.
    pub page_size: u32,
    /// When buffered data is written to the backing store.
    pub flush: Flush,
    /// The directories whose files are buffered.
    pub backing: Vec<Backing>,
    /// The tiers above the backing store, fastest first; the first is RAM.
    pub tiers: Vec<Tier>,
    /// Forebay chose the tiers itself, so they do not belong to the identity of the instance.
    pub automatic: bool,
}

/// When buffered data is written to the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What starts a flush.
    pub trigger: Trigger,
    /// The time between two flushes of [`Trigger::Periodic`].
    pub period: Duration,
}

/// What starts a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Every write.
    PerOperation,
    /// The last close of a file.
    PerFile,
    /// The end of the application.
    OnExit,
    /// The clock.
    Periodic,
}

/// A directory on the backing store whose files are buffered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The directory; canonical once [`Config::check_directories`] has passed.
    pub path: PathBuf,
    /// Whether the tiers are used at all.
    pub mode: Mode,
    /// The slower store that this directory stands for.
    pub emulate: Option<Emulate>,
}

/// How the files of a backing directory are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Data goes into the tiers and drains in the background.
    Buffered,
    /// Data goes straight to the store.
    Bypass,
}

/// A tier above the backing store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// What status, traces and plans call it; unique.
    pub name: String,
    /// Where its buckets live.
    pub kind: TierKind,
    /// Bytes it may hold: a whole number of buckets.
    pub capacity: u64,
    /// The slower device that this tier stands for.
    pub emulate: Option<Emulate>,
}

/// Where the buckets of a tier live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierKind {
    /// The shared-memory pool.
    Ram,
    /// A directory on a local device.
    File {
        /// The directory; canonical once [`Config::check_directories`] has passed.
        path: PathBuf,
    },
}

/// The speed of a device that is imitated on a faster one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulate {
    /// Bytes per second of all reads together; 0 is unlimited.
    pub read_bandwidth: u64,
    /// Bytes per second of all writes together; 0 is unlimited.
    pub write_bandwidth: u64,
    /// Delay of each request in nanoseconds.
    pub latency_ns: u64,
}

/// Why a configuration cannot be used: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    fn new(place: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self(format!("{place}: {problem}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

type Result<T> = std::result::Result<T, ConfigError>;

impl Config {
    /// Reads a configuration file, adds the directories of `--backing` and checks all of it against
    /// this machine; relative paths in the file start at the file's own directory.
    pub fn load(path: &Path, extra_backing: &[PathBuf]) -> Result<Self> {
        let name = path.display().to_string();
        let content = fs::read(path).map_err(|e| {
            ConfigError::new(&name, format_args!("cannot be read: {e}; give an existing file"))
        })?;
        let content = String::from_utf8(content).map_err(|e| {
            let line = line_of(e.as_bytes(), e.utf8_error().valid_up_to());
            ConfigError::new(format_args!("{name}:{line}"), "not UTF-8; save the file as UTF-8")
        })?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let text = Text { content: &content, name: Some(name), folder };
        let (mut config, mut places) = text.read(ROOT_KEYS)?;
        config.add_backing(extra_backing, &mut places);
        config.check_backing_count(&text.place(0, "backing"))?;
        config.check_machine(&places)?;
        Ok(config)
    }

    /// Chooses tiers for these backing directories: a quarter of the available memory, then a
    /// quarter of the free space of local scratch, if there is one.
    pub fn automatic(backing: &[PathBuf]) -> Result<Self> {
        let mut config = Self {
            page_size: PAGE_SIZE_DEFAULT,
            flush: Flush::default(),
            backing: Vec::new(),
            tiers: Vec::new(),
            automatic: true,
        };
        let mut places = Places::default();
        config.add_backing(backing, &mut places);
        config.check_backing_count("--backing")?;
        config.check_directories_at(&places)?;

        let capacity = automatic_ram();
        let capacity_min = BUCKETS_MIN * config.bucket_size();
        if capacity < capacity_min {
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
        config.tiers.push(Tier {
            name: "ram".to_owned(),
            kind: TierKind::Ram,
            capacity,
            emulate: None,
        });
        config.tiers.extend(config.scratch_tier(scratch_candidates()));
        Ok(config)
    }

    /// Reads what [`Config::canonical`] wrote, without looking at the machine.
    pub fn parse(canonical: &str) -> Result<Self> {
        let text = Text { content: canonical, name: None, folder: PathBuf::from("/") };
        let (config, _) = text.read(CANONICAL_KEYS)?;
        config.check_backing_count(&text.place(0, "backing"))?;
        Ok(config)
    }

    /// Checks that all directories exist, are writable and are kept apart, and makes their paths
    /// canonical.
    pub fn check_directories(&mut self) -> Result<()> {
        let places = Places {
            backing: (0..self.backing.len()).map(|i| format!("backing[{i}].path")).collect(),
            tiers: (0..self.tiers.len()).map(|i| TierPlaces::keys(&format!("tier[{i}]"))).collect(),
        };
        self.check_directories_at(&places)
    }

    /// The hierarchy and the flush trigger in one line for people.
    pub fn describe(&self) -> String {
        let mut line = String::new();
        for tier in &self.tiers {
            let _ = write!(line, "{} {}", tier.name, Size(tier.capacity));
            if let TierKind::File { path } = &tier.kind {
                let emulated = if tier.emulate.is_some() { ", emulated" } else { "" };
                let _ = write!(line, " ({}{emulated})", path.display());
            }
            line += " -> ";
        }
        for (i, backing) in self.backing.iter().enumerate() {
            let _ = write!(line, "{}{}", if i > 0 { " + " } else { "" }, backing.path.display());
            line += match (backing.mode, backing.emulate) {
                (Mode::Buffered, None) => "",
                (Mode::Buffered, Some(_)) => " (emulated)",
                (Mode::Bypass, None) => " (bypass)",
                (Mode::Bypass, Some(_)) => " (bypass, emulated)",
            };
        }
        let _ = write!(line, ", flush {}", name_in(TRIGGERS, self.flush.trigger));
        if self.flush.trigger == Trigger::Periodic {
            let _ = write!(line, " {:?}", self.flush.period);
        }
        line
    }

    /// The configuration as text that [`Config::parse`] reads back; equal configurations give equal
    /// texts.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        if self.automatic {
            text += "automatic = true\n";
        }
        self.write_store(&mut text);
        for tier in &self.tiers {
            let _ = write!(text, "[[tier]]\nname = {}\n", quoted(&tier.name));
            match &tier.kind {
                TierKind::Ram => text += "kind = \"ram\"\n",
                TierKind::File { path } => {
                    let _ = write!(text, "kind = \"file\"\npath = {}\n", quoted_path(path));
                }
            }
            let _ = writeln!(text, "capacity = {}", tier.capacity);
            write_emulate(&mut text, tier.emulate);
        }
        text
    }

    /// The part of the canonical text that says what is buffered, not where.
    fn write_store(&self, text: &mut String) {
        let _ = write!(
            text,
            "page_size = {}\n[flush]\ntrigger = \"{}\"\nperiod = \"{}ns\"\n",
            self.page_size,
            name_in(TRIGGERS, self.flush.trigger),
            self.flush.period.as_nanos()
        );
        for backing in &self.backing {
            let path = quoted_path(&backing.path);
            let mode = name_in(MODES, backing.mode);
            let _ = write!(text, "[[backing]]\npath = {path}\nmode = \"{mode}\"\n");
            write_emulate(text, backing.emulate);
        }
    }

    /// The identity of the node manager that serves this configuration: 16 hex digits.
    ///
    /// Tiers that were chosen automatically are left out: free memory changes from minute to minute,
    /// and the next run must still find the manager or the pool of the last one.
    pub fn instance_id(&self) -> String {
        let mut text = format!("{CANONICAL_VERSION}\n");
        if self.automatic {
            text += "automatic\n";
            self.write_store(&mut text);
        } else {
            text += &self.canonical();
        }
        format!("{:016x}", fnv1a(text.as_bytes()))
    }

    /// Bytes of a bucket, the unit of buffering.
    pub fn bucket_size(&self) -> u64 {
        u64::from(self.page_size) * PAGES_PER_BUCKET
    }

    fn add_backing(&mut self, directories: &[PathBuf], places: &mut Places) {
        for path in directories {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            self.backing.push(Backing { path, mode: Mode::Buffered, emulate: None });
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

    fn check_machine(&mut self, places: &Places) -> Result<()> {
        self.check_directories_at(places)?;
        for (tier, place) in self.tiers.iter().zip(&places.tiers) {
            let (limit, what) = match &tier.kind {
                TierKind::Ram => (memory_info("MemTotal"), "this machine's memory"),
                TierKind::File { path } => {
                    (statvfs(path).ok().map(|fs| fs.f_blocks * fs.f_frsize), "its file system")
                }
            };
            if let Some(limit) = limit.filter(|&limit| tier.capacity > limit) {
                let capacity = size(tier.capacity);
                let limit = size(limit);
                return Err(ConfigError::new(
                    &place.capacity,
                    format_args!("{capacity} is more than {what} ({limit}); give less"),
                ));
            }
        }
        Ok(())
    }

    fn check_directories_at(&mut self, places: &Places) -> Result<()> {
        let mut backing: Vec<Directory> = Vec::new();
        for (entry, place) in self.backing.iter_mut().zip(&places.backing) {
            let directory = Directory::open(&entry.path, place)?;
            for other in &backing {
                directory
                    .check_apart(other, "give each backing directory once, and none in another")?;
            }
            entry.path.clone_from(&directory.path);
            backing.push(directory);
        }
        let mut tiers: Vec<Directory> = Vec::new();
        for (tier, place) in self.tiers.iter_mut().zip(&places.tiers) {
            let TierKind::File { path } = &mut tier.kind else { continue };
            let directory = Directory::open(path, &place.path)?;
            for other in &backing {
                directory
                    .check_apart(other, "give the tier a directory outside the backing store")?;
            }
            for other in tiers.iter().filter(|other| other.id == directory.id) {
                directory.check_apart(other, "give each tier its own directory")?;
            }
            path.clone_from(&directory.path);
            tiers.push(directory);
        }
        Ok(())
    }

    /// A tier on the first candidate that is local, writable and not the backing store's device.
    fn scratch_tier(&self, candidates: impl IntoIterator<Item = PathBuf>) -> Option<Tier> {
        let devices: Vec<u64> =
            self.backing.iter().filter_map(|b| Some(fs::metadata(&b.path).ok()?.dev())).collect();
        let path = candidates.into_iter().find_map(|path| {
            let directory = Directory::open(&path, "scratch").ok()?;
            let local = is_local_disk(statfs(&directory.path).ok()?.f_type as u32);
            (local && !devices.contains(&directory.id.0)).then_some(directory.path)
        })?;
        let capacity = round_down(free_space(&path)? / 4, self.bucket_size());
        (capacity >= BUCKETS_MIN * self.bucket_size()).then(|| Tier {
            name: "scratch".to_owned(),
            kind: TierKind::File { path },
            capacity,
            emulate: None,
        })
    }
}

impl Default for Flush {
    fn default() -> Self {
        Self { trigger: Trigger::Periodic, period: Duration::from_secs(1) }
    }
}

/// Where the values that are checked against the machine were written.
#[derive(Default)]
struct Places {
    backing: Vec<String>,
    tiers: Vec<TierPlaces>,
}

struct TierPlaces {
    path: String,
    capacity: String,
}

impl TierPlaces {
    fn keys(tier: &str) -> Self {
        Self { path: format!("{tier}.path"), capacity: format!("{tier}.capacity") }
    }
}

// ---------------------------------------------------------------------------------------------
// The TOML text

/// The text of a configuration and what is needed to name a place in it.
struct Text<'t> {
    content: &'t str,
    /// The file; none for a canonical text.
    name: Option<String>,
    /// Where relative paths start.
    folder: PathBuf,
}

impl Text<'_> {
    fn read(&self, root_keys: &'static [&'static str]) -> Result<(Config, Places)> {
        let document = DeTable::parse(self.content).map_err(|e| self.syntax_error(&e))?;
        let root = Section::new(self, String::new(), 0, document.get_ref(), root_keys)?;

        let page_size = root.get("page_size").map_or(Ok(PAGE_SIZE_DEFAULT), |e| e.page_size())?;
        let bucket_size = u64::from(page_size) * PAGES_PER_BUCKET;
        let flush = root.get("flush").map_or(Ok(Flush::default()), |e| e.flush())?;
        let automatic = root.get("automatic").map_or(Ok(false), |e| e.boolean())?;

        let mut places = Places::default();
        let mut backing = Vec::new();
        for section in root.sections("backing", BACKING_KEYS)? {
            let path = section.require("path", "the directory to buffer")?;
            places.backing.push(path.place());
            backing.push(Backing {
                path: path.path()?,
                mode: section.get("mode").map_or(Ok(Mode::Buffered), |e| e.one_of(MODES))?,
                emulate: section.get("emulate").map(|e| e.emulate()).transpose()?,
            });
        }
        let mut tiers: Vec<Tier> = Vec::new();
        for section in root.sections("tier", TIER_KEYS)? {
            let (tier, place) = section.tier(&tiers, bucket_size)?;
            tiers.push(tier);
            places.tiers.push(place);
        }
        if tiers.is_empty() {
            return Err(ConfigError::new(
                self.place(0, "tier"),
                "no tier; add [[tier]] with name = \"ram\", kind = \"ram\" and a capacity",
            ));
        }
        Ok((Config { page_size, flush, backing, tiers, automatic }, places))
    }

    fn place(&self, offset: usize, key: &str) -> String {
        match &self.name {
            Some(name) => format!("{name}:{}: {key}", line_of(self.content.as_bytes(), offset)),
            None => format!("configuration: {key}"),
        }
    }

    /// The parser speaks of a position; its line names the key.
    fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let offset = error.span().map_or(0, |span| span.start).min(self.content.len());
        let line = self.content.as_bytes()[..offset].iter().rposition(|&b| b == b'\n');
        let line = self.content[line.map_or(0, |at| at + 1)..].lines().next().unwrap_or("").trim();
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        ConfigError::new(self.place(offset, line), format_args!("not valid TOML: {message}"))
    }
}

/// A table of the file, all of whose keys are known.
struct Section<'t> {
    text: &'t Text<'t>,
    /// The key of the table: `tier[1]`, empty for the root.
    key: String,
    offset: usize,
    table: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    fn new(
        text: &'t Text<'t>,
        key: String,
        offset: usize,
        table: &'t DeTable<'t>,
        known: &[&str],
    ) -> Result<Self> {
        let section = Self { text, key, offset, table };
        let unknown = table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .min_by_key(|key| key.span().start);
        match unknown {
            Some(unknown) => Err(ConfigError::new(
                text.place(unknown.span().start, &section.path_of(unknown.get_ref())),
                format_args!("unknown key; known here: {}", known.join(", ")),
            )),
            None => Ok(section),
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.key.is_empty() { key.to_owned() } else { format!("{}.{key}", self.key) }
    }

    fn get(&self, key: &str) -> Option<Entry<'t>> {
        let (name, value) = self.table.get_key_value(key)?;
        Some(Entry {
            text: self.text,
            key: self.path_of(key),
            span: name.span(),
            value: value.get_ref(),
        })
    }

    fn require(&self, key: &str, meaning: &str) -> Result<Entry<'t>> {
        self.get(key)
            .ok_or_else(|| self.error(key, format_args!("missing; add {key} = ... ({meaning})")))
    }

    /// An error about a key that is not there: it is shown at the head of the table.
    fn error(&self, key: &str, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(self.text.place(self.offset, &self.path_of(key)), problem)
    }

    /// The tables of `[[key]]`.
    fn sections(&self, key: &str, known: &[&str]) -> Result<Vec<Section<'t>>> {
        let Some(entry) = self.get(key) else { return Ok(Vec::new()) };
        let wrong = || entry.error(format_args!("must be a list of tables; write [[{key}]]"));
        let tables = entry.value.as_array().ok_or_else(wrong)?;
        let mut sections = Vec::new();
        for (i, table) in tables.iter().enumerate() {
            let offset = Spanned::span(table).start;
            let table = table.get_ref().as_table().ok_or_else(wrong)?;
            sections.push(Section::new(self.text, format!("{key}[{i}]"), offset, table, known)?);
        }
        Ok(sections)
    }

    fn tier(&self, above: &[Tier], bucket_size: u64) -> Result<(Tier, TierPlaces)> {
        if above.len() == BUFFER_TIERS_MAX {
            let problem = format_args!("too many tiers; give at most {BUFFER_TIERS_MAX}");
            return Err(ConfigError::new(self.text.place(self.offset, &self.key), problem));
        }
        let name = self.require("name", "what status and traces call it")?.tier_name(above)?;
        let kind = self.require("kind", "\"ram\" or \"file\"")?;
        let path = self.get("path");
        let emulate = self.get("emulate");
        let capacity = self.require("capacity", "a size such as \"64MiB\"")?;

        let places = TierPlaces {
            path: path.as_ref().map_or_else(String::new, |entry| entry.place()),
            capacity: capacity.place(),
        };
        let is_ram = kind.one_of(&[("ram", true), ("file", false)])?;
        let kind = match (is_ram, path) {
            (true, Some(path)) => {
                return Err(path.error("a ram tier has no directory; remove path"));
            }
            (false, None) => {
                return Err(self.error("path", "missing; a file tier needs a directory"));
            }
            (true, None) if !above.is_empty() => {
                return Err(
                    kind.error("only the first tier may be ram; keep one ram tier, at the top")
                );
            }
            (false, Some(_)) if above.is_empty() => {
                return Err(
                    kind.error("the first tier must be ram; put a [[tier]] of kind ram before it")
                );
            }
            (true, None) => TierKind::Ram,
            (false, Some(path)) => TierKind::File { path: path.path()? },
        };
        if let (true, Some(emulate)) = (is_ram, &emulate) {
            return Err(emulate.error("memory is not emulated; remove emulate"));
        }
        let capacity = capacity.capacity(bucket_size)?;
        let emulate = emulate.map(|entry| entry.emulate()).transpose()?;
        Ok((Tier { name, kind, capacity, emulate }, places))
    }
}

/// A key of the file and its value.
struct Entry<'t> {
    text: &'t Text<'t>,
    key: String,
    span: Range<usize>,
    value: &'t DeValue<'t>,
}

impl<'t> Entry<'t> {
    fn place(&self) -> String {
        self.text.place(self.span.start, &self.key)
    }

    fn error(&self, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(self.place(), problem)
    }

    fn wrong_type(&self, expected: &str) -> ConfigError {
        let found = self.value.type_str();
        self.error(format_args!("is of type {found}; give {expected}"))
    }

    fn section(&self, known: &[&str], example: &str) -> Result<Section<'t>> {
        let table = self.value.as_table().ok_or_else(|| self.wrong_type(example))?;
        Section::new(self.text, self.key.clone(), self.span.start, table, known)
    }

    fn boolean(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T> {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let allowed = names.join(", ");
        let expected = format!("one of {allowed}");
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(&expected))?;
        choices
            .iter()
            .find(|(name, _)| *name == value)
            .map(|&(_, choice)| choice)
            .ok_or_else(|| self.error(format_args!("\"{value}\" is unknown; give {expected}")))
    }

    fn path(&self) -> Result<PathBuf> {
        let example = "a directory such as \"/scratch/me\"";
        let path = self.value.as_str().ok_or_else(|| self.wrong_type(example))?;
        if path.is_empty() {
            return Err(self.error(format_args!("is empty; give {example}")));
        }
        Ok(self.text.folder.join(path))
    }

    fn tier_name(&self, above: &[Tier]) -> Result<String> {
        let example = "a name such as \"nvme\"";
        let name = self.value.as_str().ok_or_else(|| self.wrong_type(example))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
            return Err(self.error(format_args!(
                "{name:?} is no name; give 1 to {NAME_MAX} letters, digits, '-' or '_'"
            )));
        }
        if name == STORE_NAME {
            return Err(self.error("\"store\" means the backing store; give another name"));
        }
        if let Some(i) = above.iter().position(|tier| tier.name == name) {
            return Err(self.error(format_args!(
                "\"{name}\" is already the name of tier[{i}]; give another name"
            )));
        }
        Ok(name.to_owned())
    }

    /// The value as written, for messages.
    fn shown(&self) -> String {
        match self.value {
            DeValue::Integer(number) => number.to_string(),
            DeValue::String(string) => format!("{string:?}"),
            other => other.type_str().to_owned(),
        }
    }

    /// A number of bytes: a bare integer, or a string of a number, a unit and `suffix`.
    fn bytes(&self, suffix: &str, expected: &str) -> Result<u64> {
        let bytes = match self.value {
            DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
            DeValue::String(s) => s
                .strip_suffix(suffix)
                .and_then(|s| quantity(s, SIZE_UNITS).or_else(|| s.trim().parse().ok())),
            _ => return Err(self.wrong_type(expected)),
        };
        match bytes {
            Some(0) => Err(self.error(format_args!("{} is zero; give {expected}", self.shown()))),
            Some(bytes) => Ok(bytes),
            None => Err(self.error(format_args!(
                "{} cannot be read; give {expected}, in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB{suffix}",
                self.shown()
            ))),
        }
    }

    fn page_size(&self) -> Result<u32> {
        let bytes = self.bytes("", "a size such as \"4KiB\"")?;
        if !bytes.is_power_of_two() || !(4 << 10..=PAGE_SIZE_MAX).contains(&bytes) {
            return Err(self.error(format_args!(
                "{} is no page size; give 4KiB, 8KiB, 16KiB, 32KiB or 64KiB",
                self.shown()
            )));
        }
        Ok(bytes as u32)
    }

    fn capacity(&self, bucket_size: u64) -> Result<u64> {
        let bytes = self.bytes("", "a size such as \"64MiB\"")?;
        let least = BUCKETS_MIN * bucket_size;
        if bytes < least {
            let (limit, what) = if bytes < bucket_size {
                (bucket_size, "one bucket")
            } else {
                (least, "16 buckets")
            };
            return Err(self.error(format_args!(
                "{} is less than {what} ({}); give at least {}",
                self.shown(),
                size(limit),
                size(least)
            )));
        }
        Ok(round_down(bytes, bucket_size))
    }

    fn duration_ns(&self, example: &str) -> Result<u64> {
        let expected = format!("a time such as \"{example}\"");
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(&expected))?;
        quantity(value, TIME_UNITS).ok_or_else(|| {
            self.error(format_args!(
                "\"{value}\" cannot be read; give {expected}, in ns, us, ms, s or min"
            ))
        })
    }

    fn flush(&self) -> Result<Flush> {
        let section = self.section(FLUSH_KEYS, "a table: [flush]")?;
        let default = Flush::default();
        let trigger = section.get("trigger").map_or(Ok(default.trigger), |e| e.one_of(TRIGGERS))?;
        let period = section.get("period").map_or(Ok(default.period), |e| e.period())?;
        Ok(Flush { trigger, period })
    }

    fn period(&self) -> Result<Duration> {
        let period = Duration::from_nanos(self.duration_ns("1s")?);
        if period < PERIOD_MIN {
            return Err(
                self.error(format_args!("{} is too short; give at least 1ms", self.shown()))
            );
        }
        Ok(period)
    }

    fn emulate(&self) -> Result<Emulate> {
        let example = "a table such as { bandwidth = \"23MB/s\", latency = \"4ms\" }";
        let section = self.section(EMULATE_KEYS, example)?;
        if section.table.is_empty() {
            return Err(self.error(format_args!("is empty; give {example}, or remove it")));
        }
        let (read_bandwidth, write_bandwidth) =
            section.get("bandwidth").map_or(Ok((0, 0)), |e| e.bandwidths())?;
        let latency_ns = section.get("latency").map_or(Ok(0), |e| e.duration_ns("4ms"))?;
        Ok(Emulate { read_bandwidth, write_bandwidth, latency_ns })
    }

    /// Bandwidth of reads and of writes.
    fn bandwidths(&self) -> Result<(u64, u64)> {
        let example = "a bandwidth such as \"23MB/s\"";
        if !self.value.is_table() {
            let both = self.bytes("/s", example)?;
            return Ok((both, both));
        }
        let section = self.section(BANDWIDTH_KEYS, example)?;
        let one = |key| section.get(key).map_or(Ok(0), |e| e.bytes("/s", example));
        Ok((one("read")?, one("write")?))
    }
}

/// The line of a byte, counted from one.
fn line_of(text: &[u8], offset: usize) -> usize {
    text[..offset].iter().filter(|&&b| b == b'\n').count() + 1
}

/// Reads a decimal number and its unit, exactly; none if malformed or more than 64 bits hold.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let scale = u128::from(*scale);
    let whole = u128::from(whole.parse::<u64>().ok()?) * scale;
    let fraction =
        u128::from(fraction.parse::<u64>().ok()?) * scale / 10u128.pow(fraction.len() as u32);
    u64::try_from(whole + fraction).ok()
}

fn name_in<T: PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    choices.iter().find(|(_, choice)| *choice == value).map_or("", |(name, _)| name)
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Paths are UTF-8: [`Directory::open`] refuses others.
fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn write_emulate(text: &mut String, emulate: Option<Emulate>) {
    let Some(Emulate { read_bandwidth, write_bandwidth, latency_ns }) = emulate else { return };
    let limits: Vec<String> = [("read", read_bandwidth), ("write", write_bandwidth)]
        .iter()
        .filter(|(_, bandwidth)| *bandwidth > 0)
        .map(|(name, bandwidth)| format!("{name} = {bandwidth}"))
        .collect();
    let limits = limits.join(", ");
    let _ =
        writeln!(text, "emulate = {{ bandwidth = {{ {limits} }}, latency = \"{latency_ns}ns\" }}");
}

/// 64-bit Fowler-Noll-Vo hash, variant 1a: short, and the same everywhere and for ever.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// A size for people, rounded to one decimal.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) =
            [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
                .into_iter()
                .find(|(_, scale)| self.0 >= *scale)
                .unwrap_or(("B", 1));
        write!(f, "{:.1} {unit}", self.0 as f64 / scale as f64)
    }
}

/// A size as it is written in the file: exact where it can be.
fn size(bytes: u64) -> String {
    let unit = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        .into_iter()
        .find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale));
    match unit {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => Size(bytes).to_string(),
    }
}

fn round_down(bytes: u64, unit: u64) -> u64 {
    bytes / unit * unit
}

// ---------------------------------------------------------------------------------------------
// The machine

/// A directory that exists and may be written.
struct Directory {
    path: PathBuf,
    /// Device and inode: the same for every path that leads here, bind mounts included.
    id: (u64, u64),
    place: String,
}

impl Directory {
    fn open(path: &Path, place: &str) -> Result<Self> {
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
        if canonical.to_str().is_none() {
            return Err(error(format_args!("its path is not UTF-8; give one that is")));
        }
        access(&canonical, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| {
            error(format_args!(
                "not writable ({e}); allow it with chmod, or give another directory"
            ))
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

/// What the memory limits of this process's control groups (a job of a batch system) still allow.
fn cgroup_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    Path::new("/sys/fs/cgroup")
        .join(group)
        .ancestors()
        .take_while(|directory| directory.starts_with("/sys/fs/cgroup"))
        .filter_map(|directory| {
            let limit = number(directory.join("memory.max"))?;
            Some(limit.saturating_sub(number(directory.join("memory.current"))?))
        })
        .min()
}

/// A quarter of the memory that can be had, but at most half of what /dev/shm has left.
fn automatic_ram() -> u64 {
    let available = memory_info("MemAvailable").unwrap_or(0);
    let available = cgroup_memory().map_or(available, |limit| limit.min(available));
    let shared = free_space(Path::new("/dev/shm")).unwrap_or(0);
    round_down((available / 4).min(shared / 2), HUGE_PAGE)
}

fn free_space(path: &Path) -> Option<u64> {
    statvfs(path).ok().map(|fs| fs.f_bavail * fs.f_frsize)
}

fn scratch_candidates() -> impl Iterator<Item = PathBuf> {
    let variables = ["FOREBAY_SCRATCH", "SLURM_TMPDIR", "LOCAL_SCRATCH", "TMPDIR"];
    let places = ["/local/scratch", "/scratch/local", "/nvme"];
    let named = variables.into_iter().filter_map(|name| env::var_os(name).map(PathBuf::from));
    named.filter(|path| path.is_absolute()).chain(places.map(PathBuf::from))
}

/// Whether a file system of this `statfs` type keeps its data on a device of this node; memory and
/// network file systems do not.
fn is_local_disk(fs_type: u32) -> bool {
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
    fn quantities_are_exact() {
        for (text, bytes) in [
            ("1B", 1),
            ("4KiB", 4096),
            ("1.5 MiB", 3 << 19),
            ("23MB", 23_000_000),
            ("27.6MB", 27_600_000),
            ("0.1GB", 100_000_000),
            ("2TiB", 2 << 40),
            (" 3TB ", 3_000_000_000_000),
        ] {
            assert_eq!(quantity(text, SIZE_UNITS), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "1", "-1KB", "1.KB", ".5KB", "1.2.3KB", "1 K iB", "1kb", "1e3KB"] {
            assert_eq!(quantity(text, SIZE_UNITS), None, "{text}");
        }
        assert_eq!(quantity("16777215TiB", SIZE_UNITS), Some(u64::MAX - (1 << 40) + 1));
        assert_eq!(quantity("16777216TiB", SIZE_UNITS), None);
        assert_eq!(quantity("4.16ms", TIME_UNITS), Some(4_160_000));
        assert_eq!(quantity("2min", TIME_UNITS), Some(120_000_000_000));
    }

    #[test]
    fn the_hash_is_fnv1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_machine_can_be_read() {
        let total = memory_info("MemTotal").unwrap();
        assert!(total > 1 << 20 && memory_info("MemAvailable").unwrap() <= total);
        assert_eq!(memory_info("NoSuchField"), None);
        assert_eq!(automatic_ram() % HUGE_PAGE, 0);
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
