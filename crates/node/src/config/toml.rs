//! The TOML text of a configuration.

use super::places::{Places, TierPlaces};
use super::reader::{self, Source, Table, Value, line_of};
use super::rules::{self, Item, RawRule};
use super::types::{
    BUCKETS_MIN, BUFFER_TIERS_MAX, Backing, Config, ConfigError, Emulate, Flush, JOURNAL_MIN,
    MODELS, MODES, Mode, PAGE_SIZE_DEFAULT, PAGES_PER_BUCKET, Placement, Result, Speed, Tier,
    TierKind,
};
use super::units::{SIZE_UNITS, TIME_UNITS, quantity, round_down, size};
use crate::config::schema;
use ::toml::de::DeValue;
use forebay_placement::evict::Eviction;
use forebay_placement::schema::{Durability, Trigger};
use forebay_placement::{Costs, PolicyId, names};
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

pub(super) const ROOT_KEYS: &[&str] =
    &["page_size", "flush", "placement", "backing", "tier", "rule", "schema"];
/// `automatic` is not for people: it says that [`Config::automatic`] wrote the text.
pub(super) const CANONICAL_KEYS: &[&str] =
    &["page_size", "flush", "placement", "backing", "tier", "rule", "automatic"];
const FLUSH_KEYS: &[&str] = &["trigger", "period", "max_age", "bandwidth", "durability", "journal"];
const PLACEMENT_KEYS: &[&str] =
    &["policy", "granularity", "eviction", "costs", "exposed", "prefetch", "give_back"];
const BACKING_KEYS: &[&str] = &["path", "mode", "bandwidth", "latency", "emulate", "stripe"];
const TIER_KEYS: &[&str] = &["name", "kind", "path", "capacity", "bandwidth", "latency", "emulate"];
const EMULATE_KEYS: &[&str] = &["bandwidth", "latency"];
const BANDWIDTH_KEYS: &[&str] = &["read", "write"];

/// The text of a configuration and what is needed to name a place in it.
pub(super) struct Text<'t> {
    pub content: &'t str,
    /// The file; none for a canonical text.
    pub name: Option<String>,
    /// Where relative paths start.
    pub folder: PathBuf,
}

impl Text<'_> {
    pub fn read(&self, root_keys: &'static [&'static str]) -> Result<(Config, Places)> {
        let source = self.source();
        let document = source.parse()?;
        let root = source.root(&document, root_keys)?;

        let page_size = root.get("page_size").map_or(Ok(PAGE_SIZE_DEFAULT), |e| e.page_size())?;
        let bucket_size = u64::from(page_size) * PAGES_PER_BUCKET;
        let flush = root.get("flush").map_or(Ok(Flush::default()), |e| e.flush())?;
        let placement =
            root.get("placement").map_or(Ok(Placement::default()), |e| e.placement())?;
        let automatic = root.get("automatic").map_or(Ok(false), |e| e.boolean())?;

        let mut places = Places::default();
        let mut backing = Vec::new();
        for section in root.tables("backing", BACKING_KEYS)? {
            let path = section.require("path", "... (the directory to buffer)")?;
            places.backing.push(path.place());
            backing.push(Backing {
                path: path.path()?,
                mode: section.get("mode").map_or(Ok(Mode::Buffered), |e| e.one_of(MODES))?,
                emulate: section.get("emulate").map(|e| e.emulate()).transpose()?,
                speed: section.speed()?,
                stripe: section
                    .get("stripe")
                    .map_or(Ok(0), |e| e.bytes("", "a size such as \"1MiB\""))?,
            });
        }
        let mut tiers: Vec<Tier> = Vec::new();
        for section in root.tables("tier", TIER_KEYS)? {
            let (tier, place) = section.tier(&tiers, bucket_size)?;
            tiers.push(tier);
            places.tiers.push(place);
        }
        if tiers.is_empty() {
            return Err(ConfigError::new(
                source.place(0, "tier"),
                "no tier; add [[tier]] with name = \"ram\", kind = \"ram\" and a capacity",
            ));
        }
        let (rules, of_rules) = rules::read(&self.rules(&root)?, &tiers)?;
        places.rules = of_rules;
        let config = Config { page_size, flush, placement, backing, tiers, rules, automatic };
        let place = root.get("flush").map(|entry| entry.place());
        config.check_durability(flush.durability, place.as_deref().unwrap_or("flush"))?;
        Ok((config, places))
    }

    /// The rules of `[[rule]]`, then those of the schema's file.
    fn rules(&self, root: &Table<'_>) -> Result<Vec<RawRule>> {
        // Only a text that was written by this program says where its rules come from.
        let known: Vec<&str> =
            rules::keys().filter(|&key| key != rules::SOURCE || self.name.is_none()).collect();
        let sections = root.tables("rule", &known)?;
        let mut found = sections.iter().map(Table::rule).collect::<reader::Result<Vec<_>>>()?;
        if let Some(entry) = root.get("schema") {
            found.extend(schema::load(&entry.path()?, &entry.place())?);
        }
        Ok(found)
    }

    pub fn source(&self) -> Source<'_> {
        Source { name: self.name.as_deref(), text: self.content, folder: &self.folder }
    }
}

impl Table<'_> {
    /// How fast a device is, as far as it is said.
    fn speed(&self) -> reader::Result<Speed> {
        let (read_bandwidth, write_bandwidth) =
            self.get("bandwidth").map_or(Ok((0, 0)), |entry| entry.bandwidths())?;
        let latency_ns = self.get("latency").map_or(Ok(0), |entry| entry.duration_ns("50us"))?;
        Ok(Speed { read_bandwidth, write_bandwidth, latency_ns })
    }

    fn rule(&self) -> reader::Result<RawRule> {
        let mut entries: Vec<_> = self.table.keys().map(|key| key.get_ref()).collect();
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
            items,
        })
    }

    fn tier(&self, above: &[Tier], bucket_size: u64) -> reader::Result<(Tier, TierPlaces)> {
        if above.len() == BUFFER_TIERS_MAX {
            let problem = format_args!("too many tiers; give at most {BUFFER_TIERS_MAX}");
            return Err(format!("{}: {problem}", self.source.place(self.offset, &self.path)));
        }
        let name =
            self.require("name", "... (what status and traces call it)")?.tier_name(above)?;
        let kind = self.require("kind", "... (\"ram\" or \"file\")")?;
        let path = self.get("path");
        let emulate = self.get("emulate");
        let capacity = self.require("capacity", "... (a size such as \"64MiB\")")?;

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
        let speed = self.speed()?;
        Ok((Tier { name, kind, capacity, emulate, speed }, places))
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

    fn path(&self) -> reader::Result<PathBuf> {
        let example = "a directory such as \"/scratch/me\"";
        let path = self.value.as_str().ok_or_else(|| self.wrong_type(example))?;
        if path.is_empty() {
            return Err(self.error(format_args!("is empty; give {example}")));
        }
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
    fn bytes(&self, suffix: &str, expected: &str) -> reader::Result<u64> {
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

    fn capacity(&self, bucket_size: u64) -> reader::Result<u64> {
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

    fn duration_ns(&self, example: &str) -> reader::Result<u64> {
        let expected = format!("a time such as \"{example}\"");
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(&expected))?;
        quantity(value, TIME_UNITS).ok_or_else(|| {
            self.error(format_args!(
                "\"{value}\" cannot be read; give {expected}, in ns, us, ms, s or min"
            ))
        })
    }

    fn flush(&self) -> reader::Result<Flush> {
        let section = self.table(FLUSH_KEYS, "a table: [flush]")?;
        let default = Flush::default();
        let trigger =
            section.get("trigger").map_or(Ok(default.trigger), |e| e.one_of(Trigger::ALL))?;
        let period = section.get("period").map_or(Ok(default.period), |e| e.period())?;
        let max_age = section.get("max_age").map_or(Ok(default.max_age), |e| e.period())?;
        let bandwidth = section
            .get("bandwidth")
            .map_or(Ok(0), |e| e.bytes("/s", "a bandwidth such as \"500MB/s\""))?;
        let durability = section.get("durability");
        let durability =
            durability.map_or(Ok(default.durability), |e| e.one_of(Durability::ALL))?;
        let journal = section.get("journal").map_or(Ok(0), |e| e.journal())?;
        Ok(Flush { trigger, period, max_age, bandwidth, durability, journal })
    }

    fn journal(&self) -> reader::Result<u64> {
        match self.bytes("", "a size such as \"64MiB\"")? {
            bytes if bytes < JOURNAL_MIN => {
                Err(self.error(format_args!("{} is too small; give at least 1MiB", self.shown())))
            }
            bytes => Ok(bytes.next_multiple_of(4096)),
        }
    }

    fn placement(&self) -> reader::Result<Placement> {
        let section = self.table(PLACEMENT_KEYS, "a table: [placement]")?;
        let default = Placement::default();
        let policies: Vec<_> =
            names().filter_map(|name| Some((name, PolicyId::named(name)?))).collect();
        let policy = section.get("policy").map_or(Ok(default.policy), |e| e.one_of(&policies))?;
        let granularity = section
            .get("granularity")
            .map_or(Ok(0), |e| e.bytes("", "a size such as \"16MiB\""))?;
        let ways = Eviction::ALL.map(|eviction| (eviction.name(), eviction));
        let eviction = section.get("eviction").map_or(Ok(default.eviction), |e| e.one_of(&ways))?;
        let model = section.get("costs").map_or(Ok(default.costs.model), |e| e.one_of(MODELS))?;
        let exposed_permille =
            section.get("exposed").map_or(Ok(default.costs.exposed_permille), |e| e.permille())?;
        let costs = Costs { model, exposed_permille };
        let prefetch = section.get("prefetch").map_or(Ok(default.prefetch), |e| e.boolean())?;
        let give_back = section.get("give_back").map_or(Ok(default.give_back), |e| {
            e.duration_ns("30s, or 0s: never").map(Duration::from_nanos)
        })?;
        Ok(Placement { policy, granularity, eviction, costs, prefetch, give_back })
    }

    /// A share, in thousandths.
    fn permille(&self) -> reader::Result<u16> {
        let expected = "a share from \"0%\" to \"100%\"";
        let value = self.value.as_str().ok_or_else(|| self.wrong_type(expected))?;
        value
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
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

    fn emulate(&self) -> reader::Result<Emulate> {
        let example = "a table such as { bandwidth = \"23MB/s\", latency = \"4ms\" }";
        let section = self.table(EMULATE_KEYS, example)?;
        if section.table.is_empty() {
            return Err(self.error(format_args!("is empty; give {example}, or remove it")));
        }
        let (read_bandwidth, write_bandwidth) =
            section.get("bandwidth").map_or(Ok((0, 0)), |e| e.bandwidths())?;
        let latency_ns = section.get("latency").map_or(Ok(0), |e| e.duration_ns("4ms"))?;
        Ok(Emulate { read_bandwidth, write_bandwidth, latency_ns })
    }

    /// Bandwidth of reads and of writes.
    fn bandwidths(&self) -> reader::Result<(u64, u64)> {
        let example = "a bandwidth such as \"23MB/s\"";
        if !self.value.is_table() {
            let both = self.bytes("/s", example)?;
            return Ok((both, both));
        }
        let section = self.table(BANDWIDTH_KEYS, example)?;
        let one = |key| section.get(key).map_or(Ok(0), |e| e.bytes("/s", example));
        Ok((one("read")?, one("write")?))
    }
}
