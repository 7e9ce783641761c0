//! The TOML text of a configuration.

use super::adapters::Ways;
use super::errors::Errors;
use super::group::Group;
use super::machine::whole_of;
use super::messages::Messages;
use super::metrics::Metrics;
use super::movers::Movers;
use super::places::{Places, TierPlaces};
use super::quota::{limit_of, whole_limit};
use super::reader::{self, Source, Table, Value, line_of};
use super::rules::{self, Item, RawRule};
use super::small_files::{SMALL_FILES, SmallFiles};
use super::types::{
    BUCKETS_MIN, BUFFER_TIERS_MAX, Backing, Config, ConfigError, Emulate, Flush, JOURNAL_MIN,
    MODELS, MODES, Mode, PAGE_SIZE_DEFAULT, PAGES_PER_BUCKET, Placement, Result, Speed, Tier,
    TierKind,
};
use super::units::{SIZE_UNITS, TIME_UNITS, quantity, round_down, size};
use super::variables::expand;
use super::{active, analyses, metrics};
use crate::config::schema;
use ::toml::de::DeValue;
use forebay_placement::evict::Eviction;
use forebay_placement::exposure::Exposed;
use forebay_placement::schema::{Durability, Trigger};
use forebay_placement::{PolicyId, Watermarks, names};
use forebay_pool::layout::SHARED_PATH_BYTES;
use std::path::PathBuf;
use std::time::Duration;

/// Largest page size: larger ones would make a bucket exceed the 4 MiB of one flush.
const PAGE_SIZE_MAX: u64 = 64 << 10;
/// Longest name of a tier in bytes.
const NAME_MAX: usize = 31;
/// The name that status and traces give to the backing store.
const STORE_NAME: &str = "store";
/// A flush more often than this would only keep the processor busy.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// The shortest and the longest half-life of accesses.
const HALF_LIFE_MIN: Duration = Duration::from_secs(1);
const HALF_LIFE_MAX: Duration = Duration::from_secs(24 * 3600);

pub(super) const ROOT_KEYS: &[&str] = &[
    "page_size",
    "flush",
    "placement",
    "backing",
    "tier",
    "group",
    "node",
    "mpi",
    "metrics",
    "run",
    "analysis",
    "active",
    "rule",
    "schema",
];
/// `automatic` is not for people: it says that [`Config::automatic`] wrote the text.
pub(super) const CANONICAL_KEYS: &[&str] = &[
    "page_size",
    "flush",
    "placement",
    "backing",
    "tier",
    "group",
    "node",
    "mpi",
    "metrics",
    "run",
    "analysis",
    "active",
    "rule",
    "automatic",
];
const FLUSH_KEYS: &[&str] =
    &["trigger", "period", "max_age", "max_unsafe", "bandwidth", "durability", "journal"];
const PLACEMENT_KEYS: &[&str] = &[
    "policy",
    "granularity",
    "eviction",
    "costs",
    "exposed",
    "low_watermark",
    "high_watermark",
    "half_life",
    "prefetch",
    "give_back",
    "pin_limit",
];
const BACKING_KEYS: &[&str] = &[
    "path",
    "mode",
    "bandwidth",
    "latency",
    "seek",
    "emulate",
    "stripe",
    "stripe_count",
    "small_files",
];
/// The most servers over which Lustre lays out a file.
const STRIPE_COUNT_MOST: u64 = 2000;
/// For the tiers together where one of them is wrong, in bytes: more than any have.
const UNKNOWN_CAPACITY: u64 = 1 << 60;
const TIER_KEYS: &[&str] =
    &["name", "kind", "path", "capacity", "quota", "bandwidth", "latency", "seek", "emulate"];
const EMULATE_KEYS: &[&str] = &["bandwidth", "latency"];
/// Those of a store: a tier is one manager's.
const EMULATE_STORE_KEYS: &[&str] = &["bandwidth", "latency", "shared"];
const WAYS: &[&str] = &["read", "write"];

/// The text of a configuration and what is needed to name a place in it.
pub(super) struct Text<'t> {
    pub content: &'t str,
    /// The file; none for a canonical text.
    pub name: Option<String>,
    /// Where relative paths start.
    pub folder: PathBuf,
    /// What is wrong with it, once it was read.
    pub errors: Errors,
}

impl Text<'_> {
    pub fn read(&self, root_keys: &'static [&'static str]) -> Result<(Config, Places)> {
        let source = self.source();
        let document = source.parse()?;
        let root = source.root(&document, root_keys)?;

        let errors = &self.errors;
        let page_size = root.read("page_size", PAGE_SIZE_DEFAULT, errors, |e| e.page_size());
        let bucket_size = u64::from(page_size) * PAGES_PER_BUCKET;
        let flush = root.read("flush", Flush::default(), errors, |e| e.flush(errors));
        let placement =
            root.read("placement", Placement::default(), errors, |e| e.placement(errors));
        let group = root.read("group", Group::default(), errors, |e| e.group(errors));
        let movers = root.read("node", Movers::default(), errors, |e| e.movers(errors));
        let messages = root.read("mpi", Messages::default(), errors, |e| e.messages(errors));
        let metrics = root.read("metrics", Metrics::default(), errors, |e| e.metrics(errors));
        let usual = Ways::usual(&messages);
        let (ways, keep) =
            root.read("run", (usual, Duration::ZERO), errors, |e| e.run(usual, errors));
        let analyses = errors.or(analyses::read(&root), Vec::new());
        let active = errors.or(active::read(&root, &analyses), Vec::new());
        let automatic = root.read("automatic", false, errors, |e| e.boolean());

        let mut places = Places {
            cores: root.place_of("node.cores"),
            metrics: metrics::PATHS.map(|key| root.place_of(key)),
            group: root.place_of("group"),
            ..Places::default()
        };
        let mut backing = Vec::new();
        let directories = root.tables("backing", BACKING_KEYS);
        for section in directories.iter().flatten() {
            let (entry, place) = section.backing(errors);
            backing.push(entry);
            places.backing.push(place);
        }
        let mut tiers: Vec<Tier> = Vec::new();
        let before = errors.count();
        let sections = match root.tables("tier", TIER_KEYS) {
            Ok(sections) => sections,
            Err(error) => {
                errors.ok(directories);
                return Err(error.into());
            }
        };
        for (index, section) in sections.iter().enumerate() {
            if let Some((tier, place)) = section.tier(index, &tiers, bucket_size, errors) {
                tiers.push(tier);
                places.tiers.push(place);
            }
        }
        let are_right = errors.count() == before;
        if tiers.is_empty() && are_right {
            errors.note(ConfigError::new(
                source.place(0, "tier"),
                "no tier; add [[tier]] with name = \"ram\", kind = \"ram\" and a capacity",
            ));
        }
        // Tiers that are wrong are in the way of rules only where these cannot name them.
        let as_named: Option<Vec<Tier>> = match are_right {
            true => Some(tiers.clone()),
            false => sections.iter().map(|section| section.tier_as_named()).collect(),
        };
        let mut rules = Vec::new();
        if let Some(as_named) = as_named {
            let raw = errors.or(self.rules(&root), Vec::new());
            let read = errors.or(rules::read(&raw, &as_named), Default::default());
            (places.rules, places.predictors) = (read.1.paths, read.1.predictors);
            rules = read.0;
        }
        directories?;
        let all = tiers.iter().fold(0, |sum: u64, tier| sum.saturating_add(tier.capacity));
        // Of tiers that are wrong nothing is known that a limit could be too large for.
        let all = if are_right { all } else { UNKNOWN_CAPACITY };
        let (max_unsafe, run) = root.limits(all, bucket_size, errors);
        let flush = Flush { max_unsafe, ..flush };
        let config = Config {
            page_size,
            flush,
            run,
            placement,
            backing,
            tiers,
            rules,
            group,
            movers,
            messages,
            metrics,
            ways,
            keep,
            analyses,
            active,
            automatic,
        };
        let place = root.get("flush").map(|entry| entry.place());
        let place = place.as_deref().unwrap_or("flush");
        if !config.tiers.is_empty() && are_right {
            errors.ok(config.check_durability(flush.durability, place));
        }
        Ok((config, places))
    }

    /// The rules of `[[rule]]`, then those of the schema's file.
    fn rules(&self, root: &Table<'_>) -> Result<Vec<RawRule>> {
        // Only a text that was written by this program says where its rules come from.
        let known: Vec<&str> =
            rules::keys().filter(|&key| key != rules::SOURCE || self.name.is_none()).collect();
        let sections = root.tables("rule", &known)?;
        let mut found = sections
            .iter()
            .map(|section| section.rule(&known))
            .collect::<reader::Result<Vec<_>>>()?;
        if let Some(entry) = root.get("schema") {
            found.extend(schema::load(&entry.path()?, &entry.place())?);
        }
        Ok(found)
    }

    pub fn source(&self) -> Source<'_> {
        let errors = Some(&self.errors);
        Source { name: self.name.as_deref(), text: self.content, folder: &self.folder, errors }
    }
}

impl Table<'_> {
    /// The value of a key as `read` has it, or `default` if it is not there, or wrong.
    pub(super) fn read<T>(
        &self,
        key: &str,
        default: T,
        errors: &Errors,
        read: impl FnOnce(&Value<'_>) -> reader::Result<T>,
    ) -> T {
        match self.get(key) {
            Some(value) => errors.or(read(&value), default),
            None => default,
        }
    }

    /// When room is made on a tier, and how much.
    fn watermarks(&self, default: Watermarks, errors: &Errors) -> Watermarks {
        let share = |value: &Value<'_>| Ok(f64::from(value.permille()?) / 1000.0);
        let marks = Watermarks {
            low: self.read("low_watermark", default.low, errors, share),
            high: self.read("high_watermark", default.high, errors, share),
        };
        let given = self.get("low_watermark").or_else(|| self.get("high_watermark"));
        if let (Some(given), true) = (given, marks.low > marks.high) {
            errors.note(given.error(format_args!(
                "a low watermark of {:.1}% is above the high one, {:.1}%; give both, the high one \
                 not below",
                marks.low * 100.0,
                marks.high * 100.0
            )));
        }
        marks
    }

    /// How fast a device is, as far as it is said.
    fn speed(&self) -> reader::Result<Speed> {
        let (read_bandwidth, write_bandwidth) =
            self.get("bandwidth").map_or(Ok((0, 0)), |entry| entry.bandwidths())?;
        let latency_ns = self.get("latency").map_or(Ok(0), |entry| entry.duration_ns("50us"))?;
        let (read_seek_ns, write_seek_ns) =
            self.get("seek").map_or(Ok((0, 0)), |entry| entry.seeks())?;
        Ok(Speed { read_bandwidth, write_bandwidth, latency_ns, read_seek_ns, write_seek_ns })
    }

    /// A `[[rule]]`, of which the keys are taken that are `known`.
    fn rule(&self, known: &[&str]) -> reader::Result<RawRule> {
        let mut entries: Vec<_> = self.table.keys().map(|key| key.get_ref()).collect();
        entries.retain(|key| known.contains(&key.as_ref()));
        entries.sort_unstable();
        let item = |key: &str| {
            let entry = self.get(key).expect("it is a key of this table");
            Ok(Item { key: key.to_owned(), value: entry.plain()?, place: entry.place() })
        };
        let items = entries.into_iter().map(|key| item(key)).collect::<reader::Result<_>>()?;
        let file = self.source.name.unwrap_or("configuration");
        let line = line_of(self.source.text.as_bytes(), self.offset);
        Ok(RawRule {
            place: self.source.place(self.offset, &self.path),
            source: format!("{file}:{line}"),
            folder: self.source.name.map(|_| self.source.folder.to_owned()),
            items,
        })
    }

    /// A `[[backing]]`, and where its path stands. One whose path cannot be read has none.
    fn backing(&self, errors: &Errors) -> (Backing, String) {
        let path = errors.ok(self.require("path", "... (the directory to buffer)"));
        let place = path.as_ref().map_or_else(String::new, |path| path.place());
        let example = "a size such as \"1MiB\"";
        let (emulate, shared) = self
            .read("emulate", None, errors, |e| e.emulate(EMULATE_STORE_KEYS).map(Some))
            .map_or((None, None), |(emulate, shared)| (Some(emulate), shared));
        let stripe = self.read("stripe", 0, errors, |e| e.bytes("", example));
        let stripe_count = |given: &Value<'_>| match stripe {
            0 => Err(given.error("needs the length of a stripe; add stripe")),
            _ => given.number(1, STRIPE_COUNT_MOST).map(|count| count as u32),
        };
        let backing = Backing {
            path: path.and_then(|path| errors.ok(path.path())).unwrap_or_default(),
            mode: self.read("mode", Mode::Buffered, errors, |e| e.one_of(MODES)),
            emulate,
            shared,
            speed: errors.or(self.speed(), Speed::default()),
            stripe,
            stripe_count: self.read("stripe_count", 0, errors, stripe_count),
            small_files: self
                .read("small_files", SmallFiles::default(), errors, |e| e.one_of(SMALL_FILES)),
        };
        (backing, place)
    }

    /// The `index`-th `[[tier]]`, below those of `above`, and where it stands; `None` if it is
    /// wrong.
    fn tier(
        &self,
        index: usize,
        above: &[Tier],
        bucket_size: u64,
        errors: &Errors,
    ) -> Option<(Tier, TierPlaces)> {
        if index >= BUFFER_TIERS_MAX {
            let problem = format_args!("too many tiers; give at most {BUFFER_TIERS_MAX}");
            errors.note(format!("{}: {problem}", self.source.place(self.offset, &self.path)));
            return None;
        }
        let before = errors.count();
        let name = errors.ok(self
            .require("name", "... (what status and traces call it)")
            .and_then(|name| name.tier_name(above)));
        let kind = errors.ok(self.tier_kind(index));
        let capacity = errors.ok(self.require("capacity", "... (a size such as \"64MiB\")"));
        let emulate = self
            .read("emulate", None, errors, |e| e.emulate(EMULATE_KEYS).map(Some))
            .map(|(emulate, _)| emulate);
        let speed = errors.or(self.speed(), Speed::default());
        let capacity = capacity?;
        let places = TierPlaces {
            path: self.get("path").map_or_else(String::new, |entry| entry.place()),
            capacity: capacity.place(),
        };
        let capacity = errors.ok(capacity.capacity(kind.as_ref(), bucket_size));
        let quota = match capacity {
            Some(capacity) => {
                self.read("quota", 0, errors, |e| e.limit(capacity, bucket_size, "quota"))
            }
            None => 0,
        };
        let tier = Tier { name: name?, kind: kind?, capacity: capacity?, emulate, speed, quota };
        (errors.count() == before).then_some((tier, places))
    }

    /// As much of a `[[tier]]` as rules ask for, whatever else is wrong; `None` without a name.
    fn tier_as_named(&self) -> Option<Tier> {
        let text = |key: &str| self.get(key).and_then(|value| value.value.as_str());
        let kind = match text("kind") {
            Some("ram") => TierKind::Ram,
            _ => TierKind::File { path: PathBuf::new() },
        };
        let name = text("name")?.to_owned();
        Some(Tier { name, kind, capacity: 0, emulate: None, speed: Speed::default(), quota: 0 })
    }

    fn tier_kind(&self, index: usize) -> reader::Result<TierKind> {
        let kind = self.require("kind", "... (\"ram\" or \"file\")")?;
        let is_ram = kind.one_of(&[("ram", true), ("file", false)])?;
        if let (true, Some(emulate)) = (is_ram, self.get("emulate")) {
            return Err(emulate.error("memory is not emulated; remove emulate"));
        }
        Ok(match (is_ram, self.get("path")) {
            (true, Some(path)) => {
                return Err(path.error("a ram tier has no directory; remove path"));
            }
            (false, None) => {
                return Err(self.error("path", "missing; a file tier needs a directory"));
            }
            (true, None) if index > 0 => {
                return Err(
                    kind.error("only the first tier may be ram; keep one ram tier, at the top")
                );
            }
            (false, Some(_)) if index == 0 => {
                return Err(
                    kind.error("the first tier must be ram; put a [[tier]] of kind ram before it")
                );
            }
            (true, None) => TierKind::Ram,
            (false, Some(path)) => TierKind::File { path: path.path()? },
        })
    }
}

impl Value<'_> {
    /// A value as it would stand in XML.
    fn plain(&self) -> reader::Result<String> {
        match self.value {
            DeValue::String(string) => Ok(string.clone().into_owned()),
            DeValue::Boolean(yes) => Ok(yes.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            _ => Err(self.wrong_type("a string, a number, true or false")),
        }
    }

    pub(super) fn path(&self) -> reader::Result<PathBuf> {
        self.path_such_as("a directory such as \"/scratch/me\"")
    }

    pub(super) fn path_such_as(&self, example: &str) -> reader::Result<PathBuf> {
        let path = self.value.as_str().ok_or_else(|| self.wrong_type(example))?;
        if path.is_empty() {
            return Err(self.error(format_args!("is empty; give {example}")));
        }
        // What this program wrote is as it stands.
        if self.source.name.is_none() {
            return Ok(PathBuf::from(path));
        }
        let path = expand(path, |name| std::env::var(name).ok());
        let path =
            path.map_err(|problem| self.error(format_args!("{}: {problem}", self.shown())))?;
        Ok(self.source.folder.join(path))
    }

    fn tier_name(&self, above: &[Tier]) -> reader::Result<String> {
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
    pub(super) fn bytes(&self, suffix: &str, expected: &str) -> reader::Result<u64> {
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

    fn page_size(&self) -> reader::Result<u32> {
        let bytes = self.bytes("", "a size such as \"4KiB\"")?;
        if !bytes.is_power_of_two() || !(4 << 10..=PAGE_SIZE_MAX).contains(&bytes) {
            return Err(self.error(format_args!(
                "{} is no page size; give 4KiB, 8KiB, 16KiB, 32KiB or 64KiB",
                self.shown()
            )));
        }
        Ok(bytes as u32)
    }

    /// The capacity of a tier of this kind, if that is known.
    fn capacity(&self, kind: Option<&TierKind>, bucket_size: u64) -> reader::Result<u64> {
        let bytes = match self.value.as_str().is_some_and(|text| text.trim().ends_with('%')) {
            true => self.share_of(kind)?,
            false => self.bytes("", "a size such as \"64MiB\"")?,
        };
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

    /// So much of what there is for a tier of this kind; of one whose kind is not known: enough, so
    /// that no more is said of it.
    fn share_of(&self, kind: Option<&TierKind>) -> reader::Result<u64> {
        let permille = u128::from(self.permille()?);
        let Some(kind) = kind else { return Ok(u64::MAX) };
        let whole = whole_of(kind).ok_or_else(|| {
            self.error("it cannot be told of how much; give a size such as \"64MiB\"")
        })?;
        Ok((u128::from(whole) * permille / 1000) as u64)
    }

    /// A size or a share of so many bytes, which people call `what`.
    pub(super) fn limit(&self, capacity: u64, bucket_size: u64, what: &str) -> reader::Result<u64> {
        let given = match self.value.as_str() {
            Some(text) => limit_of(text, capacity, bucket_size, what),
            None => self
                .bytes("", "a size such as \"2GiB\"")
                .map(|bytes| whole_limit(bytes, capacity, bucket_size, what))?,
        };
        given.map_err(|why| self.error(format_args!("{}: {why}", self.shown())))
    }

    pub(super) fn duration_ns(&self, example: &str) -> reader::Result<u64> {
        let expected = format!("a time such as \"{example}\"");
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(&expected))?;
        quantity(value, TIME_UNITS).ok_or_else(|| {
            self.error(format_args!(
                "\"{value}\" cannot be read; give {expected}, in ns, us, ms, s, min or h"
            ))
        })
    }

    fn flush(&self, errors: &Errors) -> reader::Result<Flush> {
        let section = self.table(FLUSH_KEYS, "a table: [flush]")?;
        let default = Flush::default();
        Ok(Flush {
            trigger: section.read("trigger", default.trigger, errors, |e| e.one_of(Trigger::ALL)),
            period: section.read("period", default.period, errors, |e| e.period()),
            max_age: section.read("max_age", default.max_age, errors, |e| e.period()),
            bandwidth: section
                .read("bandwidth", 0, errors, |e| e.bytes("/s", "a bandwidth such as \"500MB/s\"")),
            durability: section
                .read("durability", default.durability, errors, |e| e.one_of(Durability::ALL)),
            journal: section.read("journal", 0, errors, |e| e.journal()),
            // A share is known once the tiers are.
            max_unsafe: default.max_unsafe,
        })
    }

    fn journal(&self) -> reader::Result<u64> {
        match self.bytes("", "a size such as \"64MiB\"")? {
            bytes if bytes < JOURNAL_MIN => {
                Err(self.error(format_args!("{} is too small; give at least 1MiB", self.shown())))
            }
            bytes => Ok(bytes.next_multiple_of(4096)),
        }
    }

    fn placement(&self, errors: &Errors) -> reader::Result<Placement> {
        let section = self.table(PLACEMENT_KEYS, "a table: [placement]")?;
        let default = Placement::default();
        let policies: Vec<_> =
            names().filter_map(|name| Some((name, PolicyId::named(name)?))).collect();
        let ways = Eviction::ALL.map(|eviction| (eviction.name(), eviction));
        Ok(Placement {
            policy: section.read("policy", default.policy, errors, |e| e.one_of(&policies)),
            granularity: section
                .read("granularity", 0, errors, |e| e.bytes("", "a size such as \"16MiB\"")),
            eviction: section.read("eviction", default.eviction, errors, |e| e.one_of(&ways)),
            costs: section.read("costs", default.costs, errors, |e| e.one_of(MODELS)),
            exposed: section.read("exposed", default.exposed, errors, |e| e.exposed()),
            watermarks: section.watermarks(default.watermarks, errors),
            half_life: section.read("half_life", default.half_life, errors, |e| e.half_life()),
            prefetch: section.read("prefetch", default.prefetch, errors, |e| e.boolean()),
            give_back: section.read("give_back", default.give_back, errors, |e| {
                e.duration_ns(r#"30s" or "0s"#).map(Duration::from_nanos)
            }),
            pin_permille: section
                .read("pin_limit", default.pin_permille, errors, |e| e.pin_limit()),
        })
    }

    fn pin_limit(&self) -> reader::Result<u16> {
        const WANTED: &str =
            "a share from \"0%\" to \"75%\": the rest of a tier is for what is written";
        match self.share(WANTED)? {
            permille @ 0..=750 => Ok(permille),
            _ => Err(self.error(format_args!("{} is too much; give {WANTED}", self.shown()))),
        }
    }

    fn exposed(&self) -> reader::Result<Exposed> {
        if self.value.as_str() == Some(Exposed::MEASURED) {
            return Ok(Exposed::Measured);
        }
        self.share("\"measured\", or a share from \"0%\" to \"100%\"").map(Exposed::Fixed)
    }

    fn half_life(&self) -> reader::Result<Duration> {
        let half_life = Duration::from_nanos(self.duration_ns("1min")?);
        match (HALF_LIFE_MIN..=HALF_LIFE_MAX).contains(&half_life) {
            true => Ok(half_life),
            false => Err(self.error(format_args!(
                "{} is out of range; give a time from 1s to 1440min",
                self.shown()
            ))),
        }
    }

    /// A share, in thousandths.
    fn permille(&self) -> reader::Result<u16> {
        self.share("a share from \"0%\" to \"100%\"")
    }

    fn share(&self, expected: &str) -> reader::Result<u16> {
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(expected))?;
        value
            .strip_suffix('%')
            .map(str::trim)
            .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
            .and_then(|number| number.parse::<f64>().ok())
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|percent| (percent * 10.0).round() as u16)
            .ok_or_else(|| self.error(format_args!("\"{value}\" is no share; give {expected}")))
    }

    fn period(&self) -> reader::Result<Duration> {
        let period = Duration::from_nanos(self.duration_ns("1s")?);
        if period < PERIOD_MIN {
            return Err(
                self.error(format_args!("{} is too short; give at least 1ms", self.shown()))
            );
        }
        Ok(period)
    }

    /// Of a table with these keys: the speeds, and the file by which managers share the device.
    fn emulate(&self, keys: &'static [&'static str]) -> reader::Result<(Emulate, Option<PathBuf>)> {
        let example = "a table such as { bandwidth = \"23MB/s\", latency = \"4ms\" }";
        let section = self.table(keys, example)?;
        if section.table.keys().all(|key| key.get_ref() == "shared") {
            return Err(self.error(format_args!("is empty; give {example}, or remove it")));
        }
        let (read_bandwidth, write_bandwidth) =
            section.get("bandwidth").map_or(Ok((0, 0)), |e| e.bandwidths())?;
        let latency_ns = section.get("latency").map_or(Ok(0), |e| e.duration_ns("4ms"))?;
        let shared = section.get("shared").map(|entry| entry.shared()).transpose()?;
        Ok((Emulate { read_bandwidth, write_bandwidth, latency_ns }, shared))
    }

    /// The file by which managers share an emulated store.
    fn shared(&self) -> reader::Result<PathBuf> {
        let path = self.path_such_as("a file such as \"/dev/shm/me/slow\"")?;
        if path.as_os_str().len() >= SHARED_PATH_BYTES {
            return Err(self.error(format_args!(
                "{} is longer than {} bytes; give a shorter path",
                path.display(),
                SHARED_PATH_BYTES - 1
            )));
        }
        Ok(path)
    }

    /// Nanoseconds of reads and of writes.
    fn seeks(&self) -> reader::Result<(u64, u64)> {
        const EXAMPLE: &str = "8ms";
        if !self.value.is_table() {
            let both = self.duration_ns(EXAMPLE)?;
            return Ok((both, both));
        }
        let section = self.table(WAYS, "a time such as \"8ms\"")?;
        let one = |key| section.get(key).map_or(Ok(0), |e| e.duration_ns(EXAMPLE));
        Ok((one("read")?, one("write")?))
    }

    /// Bandwidth of reads and of writes.
    fn bandwidths(&self) -> reader::Result<(u64, u64)> {
        let example = "a bandwidth such as \"23MB/s\"";
        if !self.value.is_table() {
            let both = self.bytes("/s", example)?;
            return Ok((both, both));
        }
        let section = self.table(WAYS, example)?;
        let one = |key| section.get(key).map_or(Ok(0), |e| e.bytes("/s", example));
        Ok((one("read")?, one("write")?))
    }
}
