//! The compiled rules of the buffering schema: written once, when the segment is made, and read by
//! every client at open.

use crate::layout::RuleRecord;
use crate::segment::{set_text, text};
use forebay_placement::PolicyId;
use forebay_placement::schema::{
    Conditions, Consistency, Durability, Lifetime, Mode, RANK_RANGES_MAX, RankRange, Rule,
    Settings, Trigger,
};

/// "Not given" where 0 has a meaning.
const NO_TIER: u8 = u8::MAX;
const NO_USER: u32 = u32::MAX;

/// Kinds of [`RuleRecord::lifetime`]; 0 is none.
const KEEP_VERSIONS: u8 = 1;
const OVERWRITE_WHEN_READ: u8 = 2;
const EXPIRES: u8 = 3;

/// Flags of [`RuleRecord::flags`], and where the code of its consistency begins there.
const PIN: u8 = 1;
const CONSISTENCY_AT: u32 = 1;

/// Stores a pattern; it must fit with its terminating zero.
fn pattern(place: &mut [u8], value: &[u8], what: &'static str) -> Result<(), &'static str> {
    if value.len() >= place.len() || value.contains(&0) {
        return Err(what);
    }
    set_text(place, value);
    Ok(())
}

impl RuleRecord {
    /// The record of a rule. `name` and `source` ("schema.xml:12") are for people and cut to what
    /// fits.
    ///
    /// # Errors
    /// Which part does not fit.
    pub fn new(rule: &Rule<'_>, name: &str, source: &str) -> Result<RuleRecord, &'static str> {
        let (when, set) = (&rule.when, &rule.set);
        let (lifetime, lifetime_value) = match set.lifetime {
            None => (0, 0),
            Some(Lifetime::KeepVersions(versions)) => (KEEP_VERSIONS, versions.into()),
            Some(Lifetime::OverwriteWhenRead) => (OVERWRITE_WHEN_READ, 0),
            Some(Lifetime::Expires(after_ns)) => (EXPIRES, after_ns),
        };
        let mut record = RuleRecord {
            size_min: when.size_min,
            size_max: when.size_max,
            lifetime_value,
            user: when.user.unwrap_or(NO_USER),
            ranks: when.ranks.len() as u32,
            rank: Default::default(),
            policy: set.policy.map_or(0, |policy| policy.number() + 1),
            tier: set.tier.unwrap_or(NO_TIER),
            mode: set.mode.map_or(0, |mode| mode as u8),
            trigger: set.trigger.map_or(0, |trigger| trigger as u8),
            durability: set.durability.map_or(0, |durability| durability as u8),
            lifetime,
            priority: set.priority,
            flags: (if set.pin { PIN } else { 0 })
                | set.consistency.map_or(0, |consistency| consistency as u8) << CONSISTENCY_AT,
            reserve: set.reserve,
            path: [0; _],
            process: [0; _],
            dataset: [0; _],
            predictor: [0; _],
            name: [0; _],
            source: [0; _],
        };
        record.rank.get_mut(..when.ranks.len()).ok_or("ranks")?.copy_from_slice(when.ranks);
        pattern(&mut record.path, when.path, "path")?;
        pattern(&mut record.process, when.process, "process")?;
        pattern(&mut record.dataset, when.dataset, "dataset")?;
        set_text(&mut record.name, name.as_bytes());
        set_text(&mut record.source, source.as_bytes());
        Ok(record)
    }

    /// The record of a rule whose files have a predictor: the program at `path`, of which the end
    /// is kept if it does not fit.
    #[must_use]
    pub fn with_predictor(mut self, path: &str) -> RuleRecord {
        let mut begin = path.len().saturating_sub(self.predictor.len() - 1);
        while !path.is_char_boundary(begin) {
            begin += 1;
        }
        set_text(&mut self.predictor, &path.as_bytes()[begin..]);
        self
    }

    /// Whether the rule's files have a predictor that a user has supplied.
    #[inline]
    pub fn has_predictor(&self) -> bool {
        self.predictor[0] != 0
    }

    /// The path of its program, or the end of it; empty if there is none.
    pub fn predictor(&self) -> &[u8] {
        text(&self.predictor).to_bytes()
    }

    /// The rule, for matching.
    pub fn rule(&self) -> Rule<'_> {
        Rule { when: self.conditions(), set: self.settings() }
    }

    /// What it sets, without a look at its texts. A code of another version reads as "not given".
    pub fn settings(&self) -> Settings {
        let lifetime = match self.lifetime {
            KEEP_VERSIONS => Some(Lifetime::KeepVersions(self.lifetime_value as u32)),
            OVERWRITE_WHEN_READ => Some(Lifetime::OverwriteWhenRead),
            EXPIRES => Some(Lifetime::Expires(self.lifetime_value)),
            _ => None,
        };
        Settings {
            policy: self.policy.checked_sub(1).and_then(PolicyId::numbered),
            tier: (self.tier != NO_TIER).then_some(self.tier),
            pin: self.flags & PIN != 0,
            mode: Mode::from_code(self.mode),
            trigger: Trigger::from_code(self.trigger),
            priority: self.priority,
            lifetime,
            durability: Durability::from_code(self.durability),
            reserve: self.reserve,
            consistency: Consistency::from_code(self.flags >> CONSISTENCY_AT),
        }
    }

    fn conditions(&self) -> Conditions<'_> {
        Conditions {
            path: text(&self.path).to_bytes(),
            size_min: self.size_min,
            size_max: self.size_max,
            dataset: text(&self.dataset).to_bytes(),
            user: (self.user != NO_USER).then_some(self.user),
            process: text(&self.process).to_bytes(),
            ranks: self.ranks(),
        }
    }

    fn ranks(&self) -> &[RankRange] {
        &self.rank[..(self.ranks as usize).min(RANK_RANGES_MAX)]
    }

    /// What its writer called it; may be empty.
    pub fn name(&self) -> &[u8] {
        text(&self.name).to_bytes()
    }

    /// File and line in which it is written.
    pub fn source(&self) -> &[u8] {
        text(&self.source).to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::segment::{Segment, anonymous};
    use rustix::fd::AsFd;

    const RANKS: &[RankRange] = &[RankRange { first: 0, last: 63, step: 8 }; RANK_RANGES_MAX];

    fn full(lifetime: Option<Lifetime>) -> Rule<'static> {
        Rule {
            when: Conditions {
                path: b"**/*.h5",
                size_min: 1,
                size_max: u64::MAX - 1,
                dataset: b"/fields/*",
                user: Some(0),
                process: b"lmp*",
                ranks: RANKS,
            },
            set: Settings {
                policy: PolicyId::named("random"),
                tier: Some(0),
                pin: true,
                mode: Some(Mode::Bypass),
                trigger: Some(Trigger::OnExit),
                priority: 255,
                lifetime,
                durability: Some(Durability::Memory),
                reserve: u64::MAX,
                consistency: Some(Consistency::Commit),
            },
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let lifetimes = [
            None,
            Some(Lifetime::KeepVersions(u32::MAX)),
            Some(Lifetime::OverwriteWhenRead),
            Some(Lifetime::Expires(u64::MAX)),
        ];
        for rule in lifetimes.map(full).into_iter().chain([Rule::default()]) {
            let record = RuleRecord::new(&rule, "checkpoints", "schema.xml:12").unwrap();
            assert_eq!(record.rule(), rule);
            assert_eq!(
                (record.name(), record.source()),
                (&b"checkpoints"[..], &b"schema.xml:12"[..])
            );
        }
    }

    #[test]
    fn of_a_long_path_of_a_predictor_the_end_is_kept() {
        let record = || RuleRecord::new(&Rule::default(), "", "").unwrap();
        assert!(!record().has_predictor() && record().predictor().is_empty());
        let named = record().with_predictor("/home/squares.wasm");
        assert!(named.has_predictor());
        assert_eq!(named.predictor(), b"/home/squares.wasm");
        let path = format!("/{}/squares.wasm", "\u{e4}".repeat(200));
        let long = record().with_predictor(&path);
        let kept = std::str::from_utf8(long.predictor()).unwrap();
        assert!(path.ends_with(kept) && (126..128).contains(&kept.len()), "{kept}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let long = [b'x'; 448];
        let error = |when| RuleRecord::new(&Rule { when, ..Rule::default() }, "", "").err();
        assert_eq!(error(Conditions { path: &long, ..Conditions::default() }), Some("path"));
        assert_eq!(error(Conditions { path: &long[1..], ..Conditions::default() }), None);
        assert_eq!(
            error(Conditions { process: &long[..64], ..Conditions::default() }),
            Some("process")
        );
        assert_eq!(error(Conditions { dataset: &long, ..Conditions::default() }), Some("dataset"));
        let many = [RankRange::default(); RANK_RANGES_MAX + 1];
        assert_eq!(error(Conditions { ranks: &many, ..Conditions::default() }), Some("ranks"));
        let name = "n".repeat(1000);
        let record = RuleRecord::new(&Rule::default(), &name, &name).unwrap();
        assert!(name.as_bytes().starts_with(record.name()) && record.name().len() > 40);
    }

    #[test]
    fn a_process_that_attaches_sees_the_rules_in_order() {
        let geometry = Geometry {
            page_size: 4096,
            tier_buckets: vec![64],
            sparse_buckets: Vec::new(),
            clients: 2,
            files: 8,
            descriptions: 64,
            nodes: 64,
        };
        assert!(anonymous(&geometry).unwrap().0.rules().is_empty());
        let file =
            rustix::fs::memfd_create("forebay-rules", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let records =
            [full(None), Rule::default()].map(|rule| RuleRecord::new(&rule, "", "").unwrap());
        drop(Segment::create_with_rules(file.as_fd(), &geometry, &records, |_| {}).unwrap());
        let segment = Segment::attach(file.as_fd()).unwrap();
        let found: Vec<_> = segment.rules().iter().map(RuleRecord::rule).collect();
        assert_eq!(found, [full(None), Rule::default()]);
    }
}
