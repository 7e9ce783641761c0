//! Rules of the buffering schema: one meaning for both syntaxes.
//!
//! The readers of TOML and XML give a `RawRule`: keys, values and where they stand. What they mean,
//! and which values are allowed, is decided here, so that a rule is the same in both.
//!
//! ```
//! use forebay_node::config::rules::{KEYS, Part, Values};
//!
//! let pin = KEYS.iter().find(|key| key.name == "pin").expect("a rule may pin its files");
//! assert_eq!((pin.part, pin.values), (Part::Set, Values::Boolean));
//! ```

use super::errors::Errors;
use super::predictors::path_of;
use super::types::{ConfigError, Result, Rule, Tier, quoted};
use super::units::{TIME_UNITS, quantity, size_of};
use forebay_placement::schema::{
    self, Conditions, Consistency, Durability, Lifetime, Mode, RANK_RANGES_MAX, RULES_MAX,
    RankRange, Trigger,
};
use forebay_placement::{PolicyId, TierId, glob, names as policies};
use std::ffi::{CStr, CString};
use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// Says where a rule was written; only in texts that this program wrote.
pub(crate) const SOURCE: &str = "source";

/// The policy that places blocks in the rule's tier.
const USER_DEFINED: &str = "user-defined";

/// Longest pattern of a process' name, and of a dataset, in bytes: what the segment has room for.
const PROCESS_MAX: usize = 63;
const DATASET_MAX: usize = 191;

/// Which part of a rule a key belongs to: an element of the XML schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `<rule>` itself.
    Rule,
    /// `<match>`.
    Match,
    /// `<set>`.
    Set,
}

/// What a key's value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any text.
    Text,
    /// A pattern of up to so many bytes.
    Pattern(usize),
    /// Bytes, with or without a unit.
    Size,
    /// A user's name or number.
    User,
    /// Ranges of ranks.
    Ranks,
    /// The name of a tier.
    Tier,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Number {
        /// The least.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A time with its unit.
    Time,
    /// The name of a placement policy.
    Policy,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// A key of a rule, as it is written in TOML; XML has `-` in place of `_`.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Where it belongs.
    pub part: Part,
    /// What it may say.
    pub values: Values,
}

const fn key(name: &'static str, part: Part, values: Values) -> Key {
    Key { name, part, values }
}

/// The names of an enumeration.
const fn names<T: Copy, const N: usize>(all: &[(&'static str, T)]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = all[at].0;
        at += 1;
    }
    names
}

const MODES: &[&str] = &names::<_, { Mode::ALL.len() }>(Mode::ALL);
const TRIGGERS: &[&str] = &names::<_, { Trigger::ALL.len() }>(Trigger::ALL);
const CONSISTENCIES: &[&str] = &names::<_, { Consistency::ALL.len() }>(Consistency::ALL);
const DURABILITIES: &[&str] = &names::<_, { Durability::ALL.len() }>(Durability::ALL);

/// What a rule can set for a part of a file.
const OF_BLOCKS: &[&str] = &["policy", "tier", "pin", "priority"];

/// All keys of a rule.
pub const KEYS: &[Key] = &[
    key("name", Part::Rule, Values::Text),
    key("path", Part::Match, Values::Pattern(glob::PATTERN_MAX)),
    key("size_min", Part::Match, Values::Size),
    key("size_max", Part::Match, Values::Size),
    key("dataset", Part::Match, Values::Pattern(DATASET_MAX)),
    key("user", Part::Match, Values::User),
    key("process", Part::Match, Values::Pattern(PROCESS_MAX)),
    key("ranks", Part::Match, Values::Ranks),
    key("policy", Part::Set, Values::Policy),
    key("tier", Part::Set, Values::Tier),
    key("pin", Part::Set, Values::Boolean),
    key("mode", Part::Set, Values::OneOf(MODES)),
    key("trigger", Part::Set, Values::OneOf(TRIGGERS)),
    key("priority", Part::Set, Values::Number { min: 0, max: 255 }),
    key("keep_versions", Part::Set, Values::Number { min: 1, max: u32::MAX as u64 }),
    key("overwrite_when_read", Part::Set, Values::Boolean),
    key("expires", Part::Set, Values::Time),
    key("durability", Part::Set, Values::OneOf(DURABILITIES)),
    key("reserve", Part::Set, Values::Size),
    key("consistency", Part::Set, Values::OneOf(CONSISTENCIES)),
    key("predictor", Part::Set, Values::Text),
];

/// The names of all keys, as TOML has them.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name).chain([SOURCE])
}

/// A key of a rule, its value, and where it stands: `FILE:LINE: KEY`.
pub(crate) struct Item {
    pub key: String,
    pub value: String,
    pub place: String,
}

/// A rule as it was read.
pub(crate) struct RawRule {
    /// `FILE:LINE: rule[0]`.
    pub place: String,
    /// `FILE:LINE`.
    pub source: String,
    /// Where relative paths start; none in a text that this program wrote.
    pub folder: Option<PathBuf>,
    pub items: Vec<Item>,
}

impl Rule {
    /// The rule, for matching and for the segment.
    pub fn compiled(&self) -> schema::Rule<'_> {
        schema::Rule {
            when: Conditions {
                path: self.path.as_bytes(),
                size_min: self.size_min,
                size_max: self.size_max.unwrap_or(u64::MAX),
                dataset: self.dataset.as_bytes(),
                user: self.user,
                process: self.process.as_bytes(),
                ranks: &self.ranks,
            },
            set: self.set,
        }
    }

    /// Adds it to a configuration's text.
    pub(super) fn write(&self, text: &mut String, tiers: &[Tier], with_source: bool) {
        text.push_str("[[rule]]\n");
        let mut line = |key: &str, value: &dyn fmt::Display| {
            let _ = writeln!(text, "{key} = {value}");
        };
        let mut words: Vec<(&str, String)> = vec![
            ("name", self.name.clone()),
            ("path", self.path.clone()),
            ("dataset", self.dataset.clone()),
            ("process", self.process.clone()),
            ("user", self.user.map_or(String::new(), |user| user.to_string())),
            ("ranks", ranks_text(&self.ranks)),
            ("predictor", self.predictor.clone()),
            ("policy", self.set.policy.map_or("", policy_name).to_owned()),
            ("mode", self.set.mode.map_or("", Mode::name).to_owned()),
            ("trigger", self.set.trigger.map_or("", Trigger::name).to_owned()),
            ("durability", self.set.durability.map_or("", Durability::name).to_owned()),
            ("consistency", self.set.consistency.map_or("", Consistency::name).to_owned()),
        ];
        if let Some(tier) = self.set.tier {
            let tier = tiers.get(usize::from(tier)).map_or("", |tier| &tier.name);
            words.push(("tier", tier.to_owned()));
        }
        if with_source {
            words.push((SOURCE, self.source.clone()));
        }
        for (key, word) in words.iter().filter(|(_, word)| !word.is_empty()) {
            line(key, &quoted(word));
        }
        if self.size_min > 0 {
            line("size_min", &self.size_min);
        }
        if let Some(size_max) = self.size_max {
            line("size_max", &size_max);
        }
        if self.set.pin {
            line("pin", &true);
        }
        if self.set.priority > 0 {
            line("priority", &self.set.priority);
        }
        match self.set.lifetime {
            Some(Lifetime::KeepVersions(versions)) => line("keep_versions", &versions),
            Some(Lifetime::OverwriteWhenRead) => line("overwrite_when_read", &true),
            Some(Lifetime::Expires(after_ns)) => line("expires", &format_args!("\"{after_ns}ns\"")),
            None => {}
        }
        if self.set.reserve > 0 {
            line("reserve", &self.set.reserve);
        }
    }
}

/// Where the path of each rule stands, and its predictor.
#[derive(Default)]
pub(crate) struct RulePlaces {
    pub paths: Vec<String>,
    pub predictors: Vec<String>,
}

/// The meaning of rules, and where what is looked at later stands.
pub(crate) fn read(raw: &[RawRule], tiers: &[Tier]) -> Result<(Vec<Rule>, RulePlaces)> {
    check_count(raw.len(), raw.get(RULES_MAX).map_or("", |rule| &rule.place))?;
    let places = |key: &str| {
        let place = |rule: &RawRule| {
            rule.item(key).map_or_else(|| rule.place.clone(), |item| item.place.clone())
        };
        raw.iter().map(place).collect()
    };
    let errors = Errors::default();
    let rules = raw.iter().filter_map(|rule| errors.ok(interpret(rule, tiers))).collect();
    errors.end()?;
    Ok((rules, RulePlaces { paths: places("path"), predictors: places("predictor") }))
}

/// # Errors
/// There are more than the segment has room for.
pub(crate) fn check_count(rules: usize, place: &str) -> Result<()> {
    if rules > RULES_MAX {
        let problem = format_args!("{rules} rules; give at most {RULES_MAX}");
        return Err(ConfigError::new(place, problem));
    }
    Ok(())
}

/// The meaning of one rule.
pub(crate) fn interpret(raw: &RawRule, tiers: &[Tier]) -> Result<Rule> {
    let mut rule = Rule { source: raw.source.clone(), ..Rule::default() };
    let mut lifetimes: Vec<&Item> = Vec::new();
    let errors = Errors::default();
    for item in &raw.items {
        let lifetime = rule.set.lifetime;
        errors.ok(item.set(&mut rule, raw, tiers));
        if rule.set.lifetime != lifetime {
            lifetimes.push(item);
        }
    }
    errors.end()?;
    if let [first, second, ..] = lifetimes[..] {
        let problem = format_args!("a rule has one lifetime; keep this or {}", first.place);
        return Err(second.error(problem));
    }
    raw.check_together(&mut rule)?;
    Ok(rule)
}

impl RawRule {
    fn item(&self, key: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.key == key)
    }

    /// All nodes have to find the same for a file, whatever process opens it, and when.
    fn check_consistency(&self) -> Result<()> {
        let Some(item) = self.item("consistency") else { return Ok(()) };
        let is_other = |other: &&Item| {
            let is_match = |key: &Key| key.name == other.key && matches!(key.part, Part::Match);
            other.key != "path" && KEYS.iter().any(is_match)
        };
        match self.items.iter().find(is_other) {
            Some(other) => Err(item.error(format_args!(
                "goes with path alone, as all nodes have to find the same for a file; remove it, \
                 or {}",
                other.place
            ))),
            None => Ok(()),
        }
    }

    /// A file has one mode, one trigger and one life, whatever lies in it.
    fn check_dataset(&self) -> Result<()> {
        if self.item("dataset").is_none() {
            return Ok(());
        }
        let is_of_files = |item: &&Item| {
            let is_set = |key: &Key| key.name == item.key && matches!(key.part, Part::Set);
            KEYS.iter().any(is_set) && !OF_BLOCKS.contains(&item.key.as_str())
        };
        match self.items.iter().find(is_of_files) {
            Some(item) => Err(item.error(format_args!(
                "is of whole files, and {} asks for a part of one; a rule with a dataset sets {}",
                self.item("dataset").map_or("", |item| &item.place),
                OF_BLOCKS.join(", ")
            ))),
            None => Ok(()),
        }
    }

    /// What contradicts itself.
    fn check_together(&self, rule: &mut Rule) -> Result<()> {
        let at = |key: &str| self.item(key).map_or(&self.place, |item| &item.place);
        if rule.size_max.is_some_and(|size_max| rule.size_min > size_max) {
            let problem = format_args!(
                "{} is more than the largest size, {}; no file matches",
                rule.size_min,
                rule.size_max.unwrap_or(u64::MAX)
            );
            return Err(ConfigError::new(at("size_min"), problem));
        }
        self.check_consistency()?;
        self.check_dataset()?;
        let set = &mut rule.set;
        // What a mode leaves no room for.
        let moot: &[&str] = match set.mode {
            Some(Mode::Bypass) => {
                &["policy", "tier", "pin", "trigger", "reserve", "consistency", "predictor"]
            }
            Some(Mode::Sync) => &["trigger"],
            // What a file is, is decided when it is made, and empty.
            Some(Mode::Scratch) if rule.size_min > 0 => &["trigger", "size_min"],
            Some(Mode::Scratch) => &["trigger", "durability", "consistency"],
            Some(Mode::Staged) => &["trigger", "consistency"],
            Some(Mode::Async) | None => &[],
        };
        if let Some(item) = moot.iter().find_map(|key| self.item(key)) {
            let mode = set.mode.map_or("", Mode::name);
            return Err(item.error(format_args!("has no meaning with mode {mode}; remove one")));
        }
        if set.mode.is_some_and(Mode::needs_tier) {
            let wrong = |key, problem: &str| Err(ConfigError::new(at(key), problem));
            match set.tier {
                None => {
                    let problem = "staged needs the tier on which the files lie; add a file tier";
                    return wrong("mode", problem);
                }
                Some(tier) if TierId::new(usize::from(tier)).is_ram() => {
                    let problem = "staged needs a file tier, which keeps files over a reboot; \
                                   name another tier";
                    return wrong("tier", problem);
                }
                Some(_) => {}
            }
        }
        match (set.policy.map(policy_name), set.tier) {
            (None, Some(_)) => set.policy = PolicyId::named(USER_DEFINED),
            (Some(USER_DEFINED), None) => {
                return Err(ConfigError::new(
                    at("policy"),
                    "user-defined places data in the rule's tier; add a tier",
                ));
            }
            (Some(policy), Some(_)) if policy != USER_DEFINED => {
                return Err(ConfigError::new(
                    at("policy"),
                    format_args!(
                        "{policy} chooses the tier itself; remove the tier, or say user-defined"
                    ),
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Item {
    pub fn error(&self, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(&self.place, problem)
    }

    /// Sets in a rule what its key says.
    fn set(&self, rule: &mut Rule, raw: &RawRule, tiers: &[Tier]) -> Result<()> {
        let set = &mut rule.set;
        match self.key.as_str() {
            "name" => rule.name = self.value.clone(),
            SOURCE => rule.source = self.value.clone(),
            "path" => rule.path = self.path()?,
            "size_min" => rule.size_min = self.size()?,
            "size_max" => rule.size_max = Some(self.size()?),
            "dataset" => rule.dataset = self.pattern(DATASET_MAX)?,
            "user" => rule.user = Some(self.user()?),
            "process" => rule.process = self.pattern(PROCESS_MAX)?,
            "ranks" => rule.ranks = self.ranks()?,
            "policy" => set.policy = Some(self.policy()?),
            "tier" => set.tier = Some(self.tier(tiers)?),
            "pin" => set.pin = self.boolean()?,
            "mode" => set.mode = Some(self.one_of(Mode::ALL)?),
            "trigger" => set.trigger = Some(self.one_of(Trigger::ALL)?),
            "priority" => set.priority = self.number(0, 255)? as u8,
            "keep_versions" => {
                let versions = self.number(1, u32::MAX.into())? as u32;
                set.lifetime = Some(Lifetime::KeepVersions(versions));
            }
            "overwrite_when_read" => {
                if self.boolean()? {
                    set.lifetime = Some(Lifetime::OverwriteWhenRead);
                }
            }
            "expires" => {
                set.lifetime = Some(Lifetime::Expires(self.time_ns()?));
            }
            "reserve" => set.reserve = self.size()?,
            "consistency" => set.consistency = Some(self.one_of(Consistency::ALL)?),
            "predictor" => {
                let path = path_of(&self.value, raw.folder.as_deref());
                rule.predictor = path.map_err(|problem| self.error(problem))?;
            }
            "durability" => {
                set.durability = Some(self.one_of(Durability::ALL)?);
                let keeps_journal = |tier: &Tier| tier.properties().keeps_journal();
                if set.durability == Some(Durability::NonVolatile)
                    && !tiers.iter().any(keeps_journal)
                {
                    return Err(self.error(format_args!(
                        "\"nonvolatile\" needs a file tier; add one, or give \"store\""
                    )));
                }
            }
            other => return Err(self.error(format_args!("\"{other}\" is no key of a rule"))),
        }
        Ok(())
    }

    fn unreadable(&self, expected: impl fmt::Display) -> ConfigError {
        self.error(format_args!("\"{}\" cannot be read; give {expected}", self.value))
    }

    fn one_of<T: Copy>(&self, choices: &[(&'static str, T)]) -> Result<T> {
        let found = choices.iter().find(|(name, _)| *name == self.value);
        found.map(|&(_, choice)| choice).ok_or_else(|| self.unknown(choices.iter().map(|c| c.0)))
    }

    fn unknown<'a>(&self, allowed: impl Iterator<Item = &'a str>) -> ConfigError {
        let names: Vec<String> = allowed.map(|name| format!("\"{name}\"")).collect();
        let value = &self.value;
        self.error(format_args!("\"{value}\" is unknown; give one of {}", names.join(", ")))
    }

    fn policy(&self) -> Result<PolicyId> {
        PolicyId::named(&self.value).ok_or_else(|| self.unknown(policies()))
    }

    fn tier(&self, tiers: &[Tier]) -> Result<u8> {
        let found = tiers.iter().position(|tier| tier.name == self.value);
        found
            .map(|tier| tier as u8)
            .ok_or_else(|| self.unknown(tiers.iter().map(|tier| tier.name.as_str())))
    }

    fn boolean(&self) -> Result<bool> {
        self.one_of(&[("true", true), ("false", false)])
    }

    fn number(&self, min: u64, max: u64) -> Result<u64> {
        let number = self.value.trim().parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| self.unreadable(format_args!("a number from {min} to {max}")))
    }

    fn size(&self) -> Result<u64> {
        size_of(&self.value).ok_or_else(|| {
            self.unreadable("a size such as \"64MiB\", in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")
        })
    }

    fn time_ns(&self) -> Result<u64> {
        quantity(&self.value, TIME_UNITS)
            .filter(|&time_ns| time_ns > 0)
            .ok_or_else(|| self.unreadable("a time such as \"90min\", in ns, us, ms, s, min or h"))
    }

    fn pattern(&self, longest: usize) -> Result<String> {
        glob::check(self.value.as_bytes())
            .map_err(|what| self.error(format_args!("\"{}\" is no pattern: {what}", self.value)))?;
        if self.value.len() > longest {
            return Err(self.error(format_args!("is longer than {longest} bytes; shorten it")));
        }
        Ok(self.value.clone())
    }

    fn path(&self) -> Result<String> {
        let pattern = self.pattern(glob::PATTERN_MAX)?;
        if pattern.split('/').any(|name| name == "." || name == "..") {
            return Err(self.error(format_args!(
                "\"{pattern}\" has \".\" or \"..\" in it, which no canonical path has; remove it"
            )));
        }
        Ok(pattern)
    }

    fn user(&self) -> Result<u32> {
        if let Ok(user) = self.value.parse() {
            return Ok(user);
        }
        CString::new(self.value.as_str()).ok().and_then(|name| user_id(&name)).ok_or_else(|| {
            self.error(format_args!(
                "there is no user \"{}\" on this machine; give a user's name or number",
                self.value
            ))
        })
    }

    fn ranks(&self) -> Result<Vec<RankRange>> {
        let ranges: Option<Vec<RankRange>> = self.value.split(',').map(rank_range).collect();
        ranges.filter(|ranges| ranges.len() <= RANK_RANGES_MAX).ok_or_else(|| {
            self.unreadable(format_args!(
                "up to {RANK_RANGES_MAX} ranks or ranges such as \"0,8-15,0-1023:64\" \
                 (first-last:step), separated by commas"
            ))
        })
    }
}

fn policy_name(policy: PolicyId) -> &'static str {
    policy.policy().name()
}

/// `7`, `8-15` or `0-1023:64`.
fn rank_range(text: &str) -> Option<RankRange> {
    // Not what `parse` takes besides digits: a sign.
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?;
    let text = text.trim();
    let (range, step) = text.split_once(':').unwrap_or((text, "1"));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let range = RankRange { first: number(first)?, last: number(last)?, step: number(step)? };
    (range.first <= range.last && range.step > 0).then_some(range)
}

fn ranks_text(ranks: &[RankRange]) -> String {
    let text = |range: &RankRange| format!("{}-{}:{}", range.first, range.last, range.step);
    ranks.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The number of a user, from wherever this machine looks up its users.
fn user_id(name: &CStr) -> Option<u32> {
    // Entries with long lists of members do not exist for users; 16 KiB is what glibc suggests at
    // most.
    let mut buffer = [0 as libc::c_char; 16 << 10];
    let mut found = std::ptr::null_mut();
    // SAFETY: an all-zero passwd is one with null pointers, and glibc writes it before we read it.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        libc::getpwnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found);
        (!found.is_null()).then_some(entry.pw_uid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::{Speed, TierKind};
    use super::*;

    #[test]
    fn ranks_are_read_exactly() {
        let range = |first, last, step| Some(RankRange { first, last, step });
        assert_eq!(rank_range("7"), range(7, 7, 1));
        assert_eq!(rank_range(" 8-15 "), range(8, 15, 1));
        assert_eq!(rank_range("0-1023:64"), range(0, 1023, 64));
        for wrong in ["", "-", "1-", "-1", "2-1", "1:0", "a", "1-2-3", "+1", "4294967296"] {
            assert_eq!(rank_range(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn users_are_found() {
        assert_eq!(user_id(c"root"), Some(0));
        assert_eq!(user_id(c"no such user"), None);
    }

    #[test]
    fn the_table_of_keys_agrees_with_what_is_read() {
        let path = std::path::PathBuf::from("/nvme");
        let tiers = [Tier {
            name: "nvme".to_owned(),
            kind: TierKind::File { path },
            capacity: 1 << 30,
            emulate: None,
            speed: Speed::default(),
            quota: 0,
        }];
        let item = |key: &Key, value: &str| Item {
            key: key.name.to_owned(),
            value: value.to_owned(),
            place: "here".to_owned(),
        };
        for key in KEYS.iter().filter(|key| key.values != Values::Text) {
            let read = |value: &str| {
                let raw = RawRule {
                    place: String::new(),
                    source: String::new(),
                    folder: None,
                    items: vec![item(key, value)],
                };
                interpret(&raw, &tiers)
            };
            let allowed = match key.values {
                Values::Policy => {
                    policies().filter(|n| *n != USER_DEFINED).map(str::to_owned).collect()
                }
                // A mode that needs a tier beside it is for tests of whole rules.
                Values::OneOf(names) => {
                    let needs_tier = |name: &str| {
                        let of_name = Mode::ALL.iter().find(|(known, _)| *known == name);
                        of_name.is_some_and(|(_, mode)| mode.needs_tier())
                    };
                    let alone = names.iter().filter(|name| !needs_tier(name));
                    alone.map(|name| (*name).to_owned()).collect()
                }
                Values::Boolean => vec!["true".to_owned(), "false".to_owned()],
                Values::Number { min, max } => vec![min.to_string(), max.to_string()],
                Values::Pattern(longest) => vec!["x".repeat(longest)],
                Values::Size => vec!["1KiB".to_owned(), "0".to_owned()],
                Values::Time => vec!["1.5min".to_owned()],
                Values::User => vec!["root".to_owned(), "12".to_owned()],
                Values::Ranks => vec!["0,8-15".to_owned()],
                Values::Tier | Values::Text => vec![],
            };
            for value in allowed {
                assert!(read(&value).is_ok(), "{} = {value}: {:?}", key.name, read(&value));
            }
            let refused = match key.values {
                Values::Number { max, .. } => (max + 1).to_string(),
                Values::Pattern(longest) => "x".repeat(longest + 1),
                _ => "no such value".to_owned(),
            };
            let error = read(&refused).unwrap_err().to_string();
            assert!(error.starts_with("here: "), "{error}");
        }
    }
}
