//! What a configuration says, and how it is written as text.

use super::active::ActiveRule;
use super::adapters::Ways;
use super::analyses::Analysis;
use super::group::Group;
use super::limits::RunLimits;
use super::messages::Messages;
use super::metrics::Metrics;
use super::movers::Movers;
use super::small_files::{SMALL_FILES, SmallFiles};
use super::units::Size;
use forebay_device::Properties;
use forebay_placement::evict::Eviction;
use forebay_placement::exposure::Exposed;
use forebay_placement::hotness::HALF_LIFE_MS;
use forebay_placement::rounds::Ages;
use forebay_placement::schema::{Durability, RankRange, Settings, Trigger};
use forebay_placement::{Model, PolicyId, TIERS_MAX, Watermarks};
use forebay_posix::FileSlots;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Page size of a configuration that names none.
pub(super) const PAGE_SIZE_DEFAULT: u32 = 4 << 10;
/// A tier with fewer buckets could not keep its flusher, its demoter and a writer busy at once.
pub(super) const BUCKETS_MIN: u64 = 16;
/// Pages in a bucket: one bit each in a 64-bit word.
pub(super) const PAGES_PER_BUCKET: u64 = forebay_pool::layout::PAGES_PER_BUCKET as u64;
/// Tiers of a configuration: one fewer than the pool's header and the placement engine take. The
/// backing store is none of them.
pub const BUFFER_TIERS_MAX: usize = TIERS_MAX - 1;
/// Raised when the same canonical text comes to mean something else.
const CANONICAL_VERSION: u32 = 1;

/// The least and the most that a journal takes by itself.
pub(super) const JOURNAL_MIN: u64 = 1 << 20;
const JOURNAL_MAX: u64 = 1 << 30;

pub(super) const MODES: &[(&str, Mode)] = &[
    ("buffered", Mode::Buffered),
    ("bypass", Mode::Bypass),
    ("sync", Mode::Sync),
    ("scratch", Mode::Scratch),
];

pub(super) const MODELS: &[(&str, Model)] =
    &[("physical", Model::Physical), ("paper", Model::Paper)];

/// A complete configuration of a node manager, every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Bytes of a page, the unit of validity; a bucket is 64 pages.
    pub page_size: u32,
    /// When buffered data is written to the backing store.
    pub flush: Flush,
    /// Where new blocks go.
    pub placement: Placement,
    /// The directories whose files are buffered.
    pub backing: Vec<Backing>,
    /// The tiers above the backing store, fastest first; the first is RAM.
    pub tiers: Vec<Tier>,
    /// How files are buffered that match; the first that does holds.
    pub rules: Vec<Rule>,
    /// The group of nodes. It does not belong to the identity of the instance.
    pub group: Group,
    /// Where the manager's threads run that move data. It does not belong to the identity, either.
    pub movers: Movers,
    /// How fast messages of MPI programs are. Not of the identity, either.
    pub messages: Messages,
    /// Where metrics are told. Not of the identity, either.
    pub metrics: Metrics,
    /// Limits of runs with it. Not of the identity, either.
    pub run: RunLimits,
    /// How programs of a run with it are adapted. That does not belong to the identity, either.
    pub ways: Ways,
    /// For how long a node manager stays that a run with it has started, after the run. That does
    /// not belong to the identity, either.
    pub keep: Duration,
    /// Commands that run on files in the tiers. They do not belong to the identity, either.
    pub analyses: Vec<Analysis>,
    /// Operations that are done on files in the tiers. They do not belong to the identity, either.
    pub active: Vec<ActiveRule>,
    /// Forebay chose the tiers itself, so they do not belong to the identity of the instance.
    pub automatic: bool,
}

/// When buffered data is written to the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What starts a flush.
    pub trigger: Trigger,
    /// [`Trigger::Periodic`]: how long a block is left alone after a write.
    pub period: Duration,
    /// [`Trigger::Periodic`]: how long a block stays dirty at most, however often it is written,
    /// while the store takes it.
    pub max_age: Duration,
    /// Bytes per second of all flushes in the background together; 0 is unlimited.
    pub bandwidth: u64,
    /// What fsync waits for, of files whose rule does not say.
    pub durability: Durability,
    /// Bytes of the journal; 0 is an eighth of its tier, at most 1 GiB.
    pub journal: u64,
    /// Bytes of all files that the tiers may have and the stores may lack; 0 is no limit.
    pub max_unsafe: u64,
}

impl Flush {
    /// When dirty blocks are flushed in the background.
    pub fn ages(&self) -> Ages {
        Ages::new(self.period.as_millis(), self.max_age.as_millis())
    }
}

/// Where new blocks go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// The policy of files whose rule names none.
    pub policy: PolicyId,
    /// Bytes to which free space is rounded before a placement is decided anew; 0 is one bucket, or
    /// a 256th of the RAM tier if that is more.
    pub granularity: u64,
    /// How victims are chosen in RAM.
    pub eviction: Eviction,
    /// How times are computed.
    pub costs: Model,
    /// How much of a move by the data organizer counts as waiting.
    pub exposed: Exposed,
    /// When room is made on a tier, and how much.
    pub watermarks: Watermarks,
    /// After how long an access counts half.
    pub half_life: Duration,
    /// Whether what programs will probably read is brought to RAM ahead of them.
    pub prefetch: bool,
    /// How long memory of RAM is free before /dev/shm gets it back; zero: it never does.
    pub give_back: Duration,
    /// Thousandths of each tier that the processes of one job may pin.
    pub pin_permille: u16,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            policy: PolicyId::default(),
            granularity: 0,
            eviction: Eviction::default(),
            costs: Model::default(),
            exposed: Exposed::default(),
            watermarks: Watermarks::default(),
            half_life: Duration::from_millis(HALF_LIFE_MS.into()),
            prefetch: true,
            give_back: Duration::from_secs(30),
            pin_permille: 500,
        }
    }
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
    /// The file by which other node managers share that one.
    pub shared: Option<PathBuf>,
    /// How fast it is, as far as it was said.
    pub speed: Speed,
    /// Bytes between two offsets at which a flush preferably begins and ends; 0 is the block size
    /// that `stat` tells.
    pub stripe: u64,
    /// Over how many servers of a Lustre store a staged file is laid out, at most; 0 leaves it as
    /// its directory says.
    pub stripe_count: u32,
    /// How new small files are treated.
    pub small_files: SmallFiles,
}

/// How the files of a backing directory are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Data goes into the tiers and drains in the background.
    Buffered,
    /// Data goes straight to the store.
    Bypass,
    /// Data goes into the tiers, and a write has returned when the store has it, too.
    Sync,
    /// Files that a run makes are deleted at its end and not written to the store.
    Scratch,
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
    /// How fast it is, as far as it was said.
    pub speed: Speed,
    /// Bytes of it that the files of one run may take, where the run says nothing; 0 is all.
    pub quota: u64,
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

impl Tier {
    /// What may be expected of its device.
    pub fn properties(&self) -> Properties {
        match self.kind {
            TierKind::Ram => Properties::RAM,
            TierKind::File { .. } => FileSlots::PROPERTIES,
        }
    }
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

/// How fast a device is: what the cost model computes with. 0 where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Bytes per second.
    pub read_bandwidth: u64,
    /// Bytes per second.
    pub write_bandwidth: u64,
    /// Nanoseconds until the first byte.
    pub latency_ns: u64,
    /// Nanoseconds that a read elsewhere takes of the device's time before bytes move.
    pub read_seek_ns: u64,
    /// The same of a write.
    pub write_seek_ns: u64,
}

/// A rule of the buffering schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// What people call it; may be empty.
    pub name: String,
    /// File and line where it is written.
    pub source: String,
    /// Pattern of the path; empty is any.
    pub path: String,
    /// Least size of the file in bytes.
    pub size_min: u64,
    /// Largest size of the file in bytes.
    pub size_max: Option<u64>,
    /// Pattern of the HDF5 dataset; empty is any.
    pub dataset: String,
    /// User id.
    pub user: Option<u32>,
    /// Pattern of the process' name; empty is any.
    pub process: String,
    /// Ranks; empty is any.
    pub ranks: Vec<RankRange>,
    /// The program that predicts what is read of the files; empty is none.
    pub predictor: String,
    /// What it sets, `tier` included.
    pub set: Settings,
}

impl Speed {
    /// A memory bus, as long as it has not been measured.
    const RAM: Speed = Speed::both_ways(10_000_000_000, 100);
    /// An NVMe device.
    const DEVICE: Speed = Speed::both_ways(2_000_000_000, 50_000);
    /// A process' share of a parallel file system.
    const STORE: Speed = Speed::both_ways(500_000_000, 5_000_000);

    const fn both_ways(bandwidth: u64, latency_ns: u64) -> Speed {
        Speed {
            read_bandwidth: bandwidth,
            write_bandwidth: bandwidth,
            latency_ns,
            read_seek_ns: 0,
            write_seek_ns: 0,
        }
    }

    /// What is known here, else there.
    fn or(self, other: Speed) -> Speed {
        let first = |one: u64, two: u64| if one > 0 { one } else { two };
        Speed {
            read_bandwidth: first(self.read_bandwidth, other.read_bandwidth),
            write_bandwidth: first(self.write_bandwidth, other.write_bandwidth),
            latency_ns: first(self.latency_ns, other.latency_ns),
            read_seek_ns: first(self.read_seek_ns, other.read_seek_ns),
            write_seek_ns: first(self.write_seek_ns, other.write_seek_ns),
        }
    }

    fn of(said: Speed, emulate: Option<Emulate>, otherwise: Speed) -> Speed {
        let emulated = emulate.map_or(Speed::default(), |emulate| Speed {
            read_bandwidth: emulate.read_bandwidth,
            write_bandwidth: emulate.write_bandwidth,
            latency_ns: emulate.latency_ns,
            ..Speed::default()
        });
        said.or(emulated).or(otherwise)
    }
}

impl Tier {
    /// The same as far as it is said or emulated.
    pub fn said_speed(&self) -> Speed {
        Speed::of(self.speed, self.emulate, Speed::default())
    }

    /// How fast it is: as said, else as emulated, else as such devices are.
    pub fn known_speed(&self) -> Speed {
        let kind = if self.kind == TierKind::Ram { Speed::RAM } else { Speed::DEVICE };
        Speed::of(self.speed, self.emulate, kind)
    }
}

impl Backing {
    /// The same as far as it is said or emulated.
    pub fn said_speed(&self) -> Speed {
        Speed::of(self.speed, self.emulate, Speed::default())
    }

    /// How fast it is: as said, else as emulated, else as such stores are.
    pub fn known_speed(&self) -> Speed {
        Speed::of(self.speed, self.emulate, Speed::STORE)
    }
}

/// Why a configuration cannot be used: where, what, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(place: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self(format!("{place}: {problem}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl From<String> for ConfigError {
    /// A message that is whole.
    fn from(message: String) -> Self {
        Self(message)
    }
}

pub(crate) type Result<T> = std::result::Result<T, ConfigError>;

impl Config {
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
            let mode = (backing.mode != Mode::Buffered).then(|| name_in(MODES, backing.mode));
            let emulated = backing.emulate.map(|_| "emulated");
            let shared = backing.shared.as_ref().map(|_| "shared");
            let notes: Vec<&str> = mode.into_iter().chain(emulated).chain(shared).collect();
            if !notes.is_empty() {
                let _ = write!(line, " ({})", notes.join(", "));
            }
        }
        let _ = write!(line, ", flush {}", self.flush.trigger.name());
        if self.flush.trigger == Trigger::Periodic {
            let _ = write!(line, " {:?}", self.flush.period);
        }
        line
    }

    /// The configuration as text that [`Config::parse`] reads back; equal configurations give equal
    /// texts.
    pub fn canonical(&self) -> String {
        let mut text = self.text(true);
        self.write_movers(&mut text);
        self.messages.write(&mut text);
        self.metrics.write(&mut text);
        self.write_run(&mut text);
        self.write_analyses(&mut text);
        self.write_active(&mut text);
        self.write_group(&mut text);
        text
    }

    /// `with_sources`: where each rule was written is said, too.
    fn text(&self, with_sources: bool) -> String {
        let mut text = String::new();
        if self.automatic {
            text += "automatic = true\n";
        }
        self.write_store(&mut text, with_sources);
        for tier in &self.tiers {
            let _ = write!(text, "[[tier]]\nname = {}\n", quoted(&tier.name));
            match &tier.kind {
                TierKind::Ram => text += "kind = \"ram\"\n",
                TierKind::File { path } => {
                    let _ = write!(text, "kind = \"file\"\npath = {}\n", quoted_path(path));
                }
            }
            let _ = writeln!(text, "capacity = {}", tier.capacity);
            write_given(&mut text, "quota", tier.quota);
            write_emulate(&mut text, tier.emulate, None);
            write_speed(&mut text, tier.speed);
        }
        text
    }

    /// The part of the canonical text that says what is buffered, not where.
    fn write_store(&self, text: &mut String, with_sources: bool) {
        let _ = write!(
            text,
            "page_size = {}\n[flush]\ntrigger = \"{}\"\nperiod = \"{}ns\"\nmax_age = \"{}ns\"\n",
            self.page_size,
            self.flush.trigger.name(),
            self.flush.period.as_nanos(),
            self.flush.max_age.as_nanos()
        );
        write_given(text, "bandwidth", self.flush.bandwidth);
        write_given(text, "journal", self.flush.journal);
        write_given(text, "max_unsafe", self.flush.max_unsafe);
        if self.flush.durability != Durability::Store {
            let _ = writeln!(text, "durability = \"{}\"", self.flush.durability.name());
        }
        let usual = Placement::default();
        let Placement { policy, granularity, eviction, costs, exposed, .. } = self.placement;
        let Placement { watermarks, half_life, prefetch, give_back, pin_permille, .. } =
            self.placement;
        let _ = write!(
            text,
            "[placement]\npolicy = \"{}\"\neviction = \"{}\"\ncosts = \"{}\"\n",
            policy.policy().name(),
            eviction.name(),
            name_in(MODELS, costs),
        );
        if let Exposed::Fixed(permille) = exposed {
            let _ = writeln!(text, "exposed = \"{}%\"", f64::from(permille) / 10.0);
        }
        let marks = [
            ("low_watermark", watermarks.low, usual.watermarks.low),
            ("high_watermark", watermarks.high, usual.watermarks.high),
        ];
        for (key, mark, _) in marks.into_iter().filter(|(_, mark, usual)| mark != usual) {
            let _ = writeln!(text, "{key} = \"{}%\"", (mark * 1000.0).round() / 10.0);
        }
        if half_life != usual.half_life {
            let _ = writeln!(text, "half_life = \"{}ns\"", half_life.as_nanos());
        }
        write_given(text, "granularity", granularity);
        if !prefetch {
            *text += "prefetch = false\n";
        }
        if give_back != usual.give_back {
            let _ = writeln!(text, "give_back = \"{}ns\"", give_back.as_nanos());
        }
        if pin_permille != usual.pin_permille {
            let _ = writeln!(text, "pin_limit = \"{}%\"", f64::from(pin_permille) / 10.0);
        }
        for backing in &self.backing {
            let path = quoted_path(&backing.path);
            let mode = name_in(MODES, backing.mode);
            let _ = write!(text, "[[backing]]\npath = {path}\nmode = \"{mode}\"\n");
            write_emulate(text, backing.emulate, backing.shared.as_deref());
            write_speed(text, backing.speed);
            write_given(text, "stripe", backing.stripe);
            if backing.stripe_count > 0 {
                let _ = writeln!(text, "stripe_count = {}", backing.stripe_count);
            }
            if backing.small_files != SmallFiles::default() {
                let name = name_in(SMALL_FILES, backing.small_files);
                let _ = writeln!(text, "small_files = \"{name}\"");
            }
        }
        for rule in &self.rules {
            rule.write(text, &self.tiers, with_sources);
        }
    }

    /// The identity of the node manager that serves this configuration: 16 hex digits.
    ///
    /// Tiers that were chosen automatically are left out: free memory changes from minute to
    /// minute, and the next run must still find the manager or the pool of the last one.
    pub fn instance_id(&self) -> String {
        let mut text = format!("{CANONICAL_VERSION}\n");
        if self.automatic {
            text += "automatic\n";
            self.write_store(&mut text, false);
        } else {
            text += &self.text(false);
        }
        format!("{:016x}", fnv1a(text.as_bytes()))
    }

    /// Bytes to which free space is rounded before a placement is decided anew.
    pub fn granularity(&self) -> u64 {
        let ram = self.tiers.first().map_or(0, |tier| tier.capacity);
        let automatic = (ram / 256).next_multiple_of(self.bucket_size()).max(self.bucket_size());
        if self.placement.granularity > 0 { self.placement.granularity } else { automatic }
    }

    /// Bytes of the journal, which lies on the fastest file tier that takes it.
    pub fn journal_bytes(&self) -> u64 {
        let takes_it = self.tiers.iter().find(|tier| tier.properties().keeps_journal());
        let capacity = takes_it.map_or(0, |tier| tier.capacity);
        let automatic = (capacity / 8).clamp(JOURNAL_MIN, JOURNAL_MAX);
        if self.flush.journal > 0 { self.flush.journal } else { automatic }
    }

    /// Checks that there is a tier for what fsync is to wait for.
    ///
    /// # Errors
    /// `place` wants a file tier, and there is none.
    pub(super) fn check_durability(&self, durability: Durability, place: &str) -> Result<()> {
        let keeps_journal = |tier: &Tier| tier.properties().keeps_journal();
        if durability == Durability::NonVolatile && !self.tiers.iter().any(keeps_journal) {
            let problem = "\"nonvolatile\" needs a file tier; add [[tier]] with kind = \"file\", or give \"store\"";
            return Err(ConfigError::new(place, problem));
        }
        Ok(())
    }

    /// Sets what fsync waits for, of files whose rule does not say; `place` names the key that
    /// asks.
    ///
    /// # Errors
    /// There is no tier for it.
    pub fn set_durability(&mut self, durability: Durability, place: &str) -> Result<()> {
        self.check_durability(durability, place)?;
        self.flush.durability = durability;
        Ok(())
    }

    /// Bytes of a bucket, the unit of buffering.
    pub fn bucket_size(&self) -> u64 {
        u64::from(self.page_size) * PAGES_PER_BUCKET
    }
}

impl Default for Flush {
    fn default() -> Self {
        Self {
            trigger: Trigger::Periodic,
            period: Duration::from_secs(1),
            max_age: Duration::from_secs(30),
            bandwidth: 0,
            durability: Durability::Store,
            journal: 0,
            max_unsafe: 0,
        }
    }
}

/// A number, unless it is zero and so not given.
fn write_given(text: &mut String, key: &str, number: u64) {
    if number > 0 {
        let _ = writeln!(text, "{key} = {number}");
    }
}

fn name_in<T: PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    choices.iter().find(|(_, choice)| *choice == value).map_or("", |(name, _)| name)
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Paths are UTF-8: `Directory::open` in `machine.rs` refuses others.
pub(super) fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn write_emulate(text: &mut String, emulate: Option<Emulate>, shared: Option<&Path>) {
    let Some(Emulate { read_bandwidth, write_bandwidth, latency_ns }) = emulate else { return };
    let limits = limits(read_bandwidth, write_bandwidth);
    let shared =
        shared.map_or_else(String::new, |path| format!(", shared = {}", quoted_path(path)));
    let _ = writeln!(
        text,
        "emulate = {{ bandwidth = {{ {limits} }}, latency = \"{latency_ns}ns\"{shared} }}"
    );
}

fn write_speed(text: &mut String, speed: Speed) {
    let limits = limits(speed.read_bandwidth, speed.write_bandwidth);
    if !limits.is_empty() {
        let _ = writeln!(text, "bandwidth = {{ {limits} }}");
    }
    if speed.latency_ns > 0 {
        let _ = writeln!(text, "latency = \"{}ns\"", speed.latency_ns);
    }
    let (read, write) = (speed.read_seek_ns, speed.write_seek_ns);
    if read > 0 || write > 0 {
        let _ = writeln!(text, "seek = {{ read = \"{read}ns\", write = \"{write}ns\" }}");
    }
}

fn limits(read_bandwidth: u64, write_bandwidth: u64) -> String {
    let limits: Vec<String> = [("read", read_bandwidth), ("write", write_bandwidth)]
        .iter()
        .filter(|(_, bandwidth)| *bandwidth > 0)
        .map(|(name, bandwidth)| format!("{name} = {bandwidth}"))
        .collect();
    limits.join(", ")
}

/// 64-bit Fowler-Noll-Vo hash, variant 1a: short, and the same everywhere and for ever.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
