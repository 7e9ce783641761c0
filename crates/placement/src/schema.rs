//! The buffering schema (Hermes sections 3.1.2 and 3.2): rules that say how the files they match
//! are buffered, and whether a rule matches.
//!
//! Rules are written by people in XML or TOML, compiled by the node manager, and matched by clients
//! at open. Nothing here allocates.
//!
//! ```
//! use forebay_placement::schema::{Conditions, FileMeta, Rule, Settings, first_match};
//!
//! let when = Conditions { path: b"**/*.tmp", ..Conditions::default() };
//! let rule = Rule { when, set: Settings::default() };
//! let file_meta = |path| FileMeta { path, ..FileMeta::default() };
//! assert!(first_match([rule], &file_meta(b"/pfs/a.tmp")).is_some());
//! assert!(first_match([rule], &file_meta(b"/pfs/a.h5")).is_none());
//! ```

use crate::{PolicyId, glob};

/// Rules of one schema: matching tries each in turn, at every open.
pub const RULES_MAX: usize = 128;
/// Ranges of ranks in one rule.
pub const RANK_RANGES_MAX: usize = 8;

/// Makes an enum whose values have a name, for people, and a code, for the segment.
macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $value:ident = $code:literal $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$doc])* $value = $code,)*
        }

        impl $type {
            /// All values with their names, as they are written.
            pub const ALL: &'static [(&'static str, $type)] = &[$(($name, $type::$value),)*];

            /// The name, as it is written.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name,)*
                }
            }

            /// The value of a code that `as u8` gave.
            pub fn from_code(code: u8) -> Option<$type> {
                $type::ALL.iter().map(|&(_, value)| value).find(|&value| value as u8 == code)
            }
        }
    };
}

named! {
    /// The buffering mode (Hermes section 3.2.1).
    Mode {
        /// Persistent, asynchronous: write-back.
        Async = 1 "async",
        /// Persistent, synchronous: write-through; a write has returned when the store has it.
        Sync = 2 "sync",
        /// Not persistent: never written to the store, deleted when the run ends.
        Scratch = 3 "scratch",
        /// Not buffered at all: write-around.
        Bypass = 4 "bypass",
        /// Persistent: the whole file lies on the tier that its rule names until no process writes
        /// it any more, and goes to the store then, see [`crate::staged`].
        Staged = 5 "staged",
    }
}

impl Mode {
    /// Whether it is said by a rule alone, which also names the tier.
    pub fn needs_tier(self) -> bool {
        self == Mode::Staged
    }
}

named! {
    /// When dirty blocks are flushed (Hermes section 3.2.1).
    Trigger {
        /// As soon as each write has returned.
        PerOperation = 1 "per-operation",
        /// When a file is closed.
        PerFile = 2 "per-file",
        /// When the run ends.
        OnExit = 3 "on-exit",
        /// In the background, when a block has not been written for a while.
        Periodic = 4 "periodic",
    }
}

named! {
    /// Where bytes must be before fsync returns.
    Durability {
        /// On the backing store.
        Store = 1 "store",
        /// On a tier that survives loss of power.
        NonVolatile = 2 "nonvolatile",
        /// In memory: fsync does nothing.
        Memory = 3 "memory",
    }
}

named! {
    /// When programs of other nodes see what was written, where nodes share files.
    Consistency {
        /// At once: a node asks the group before it writes what others may have.
        Strict = 1 "strict",
        /// Once its writer has synced or closed the file, and the reader has opened or synced it
        /// after that. Nodes write what they like beside each other, and ask for none of it.
        Commit = 2 "commit",
    }
}

/// When buffered data is no longer needed (Hermes section 3.2.1, non-persistent mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The oldest is dropped when there are more versions than this.
    KeepVersions(u32),
    /// It may be overwritten once it was read.
    OverwriteWhenRead,
    /// It is dropped so many nanoseconds after it was written.
    Expires(u64),
}

/// Ranks `first`, `first + step`, up to `last`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RankRange {
    /// The lowest rank.
    pub first: u32,
    /// No rank is higher.
    pub last: u32,
    /// Distance between ranks, at least 1.
    pub step: u32,
}

impl RankRange {
    /// Whether `rank` is one of them.
    pub fn has(&self, rank: u32) -> bool {
        (self.first..=self.last).contains(&rank)
            && (rank - self.first).is_multiple_of(self.step.max(1))
    }
}

/// What stands for the metadata of an HDF5 file where a dataset's path does: all that is in no
/// dataset. Only a rule that asks for it in this word, and by no pattern, matches it.
pub const METADATA: &str = "metadata";

/// What must hold of a file and of the process that opens it; what is left out always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// Pattern of the path, see [`glob::matches`]: absolute if it begins with `/`, else relative to
    /// the managed directory. Empty: any.
    pub path: &'a [u8],
    /// Least size of the file in bytes.
    pub size_min: u64,
    /// Largest size of the file in bytes.
    pub size_max: u64,
    /// Pattern of the HDF5 dataset's path in its file. Empty: any, also none.
    pub dataset: &'a [u8],
    /// User id of the process.
    pub user: Option<u32>,
    /// Pattern of the process' name. Empty: any.
    pub process: &'a [u8],
    /// The process' rank is in one of these. Empty: any, also none.
    pub ranks: &'a [RankRange],
}

impl Default for Conditions<'_> {
    fn default() -> Self {
        Self {
            path: b"",
            size_min: 0,
            size_max: u64::MAX,
            dataset: b"",
            user: None,
            process: b"",
            ranks: &[],
        }
    }
}

/// What a rule says of the files it matches; `None` leaves it to the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The placement policy.
    pub policy: Option<PolicyId>,
    /// The tier that new blocks go to: its position in the hierarchy.
    pub tier: Option<u8>,
    /// Never evicted from the tier it is in.
    pub pin: bool,
    /// The buffering mode.
    pub mode: Option<Mode>,
    /// The flush trigger.
    pub trigger: Option<Trigger>,
    /// The process group's: 0 is usual, 255 before all others.
    pub priority: u8,
    /// When buffered data is no longer needed.
    pub lifetime: Option<Lifetime>,
    /// What fsync waits for.
    pub durability: Option<Durability>,
    /// Bytes that are set aside in each job for the files that match; 0 is none.
    pub reserve: u64,
    /// When other nodes see what was written. Looked for by [`consistency`], in all rules.
    pub consistency: Option<Consistency>,
}

/// A rule of the schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule<'a> {
    /// What it matches.
    pub when: Conditions<'a>,
    /// What it sets.
    pub set: Settings,
}

/// What is known of a file when it is opened, and of the process that opens it.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileMeta<'a> {
    /// The file's canonical path.
    pub path: &'a [u8],
    /// The managed directory it lies in, without a `/` at its end.
    pub directory: &'a [u8],
    /// Bytes of the file.
    pub size: u64,
    /// The HDF5 dataset that is accessed; plain files have none.
    pub dataset: Option<&'a [u8]>,
    /// User id of the process.
    pub user: u32,
    /// The process' command name (at most 15 bytes, as the kernel cuts it).
    pub command: &'a [u8],
    /// The last part of the process' first argument.
    pub program: &'a [u8],
    /// The process' rank in its parallel job.
    pub rank: Option<u32>,
}

/// Whether a rule applies to a file.
pub fn matches(when: &Conditions<'_>, file_meta: &FileMeta<'_>) -> bool {
    mismatch(when, file_meta).is_none()
}

/// The first condition that does not hold, by its key in the schema.
pub fn mismatch(when: &Conditions<'_>, file_meta: &FileMeta<'_>) -> Option<&'static str> {
    // The cheap ones first.
    if file_meta.size < when.size_min {
        return Some("size-min");
    }
    if file_meta.size > when.size_max {
        return Some("size-max");
    }
    if when.user.is_some_and(|user| user != file_meta.user) {
        return Some("user");
    }
    let in_ranks = |rank| when.ranks.iter().any(|range| range.has(rank));
    if !when.ranks.is_empty() && !file_meta.rank.is_some_and(in_ranks) {
        return Some("ranks");
    }
    let of_dataset = |dataset: &[u8]| match dataset == METADATA.as_bytes() {
        true => when.dataset == METADATA.as_bytes(),
        false => glob::matches(when.dataset, dataset),
    };
    if !when.dataset.is_empty() && !file_meta.dataset.is_some_and(of_dataset) {
        return Some("dataset");
    }
    let called = |name| glob::matches(when.process, name);
    if !when.process.is_empty() && !called(file_meta.program) && !called(file_meta.command) {
        return Some("process");
    }
    (!when.path.is_empty() && !path_matches(when.path, file_meta)).then_some("path")
}

fn path_matches(pattern: &[u8], file_meta: &FileMeta<'_>) -> bool {
    if pattern[0] == b'/' {
        return glob::matches(pattern, file_meta.path);
    }
    let rest = file_meta.path.strip_prefix(file_meta.directory).unwrap_or(file_meta.path);
    glob::matches(pattern, rest.strip_prefix(b"/").unwrap_or(rest))
}

/// The position of the rule that holds: the first that matches.
pub fn first_match<'a>(
    rules: impl IntoIterator<Item = Rule<'a>>,
    file_meta: &FileMeta<'_>,
) -> Option<usize> {
    rules.into_iter().position(|rule| matches(&rule.when, file_meta))
}

/// When other nodes see what is written to the file at `path`, which lies in the managed directory
/// `directory`: as the first rule says that says anything of that and whose path matches, whether
/// that rule [holds](first_match) for the rest or not. Nothing else of the file or of its process
/// counts, so that all nodes find the same.
///
/// ```
/// use forebay_placement::schema::{Conditions, Consistency, Rule, Settings, consistency};
///
/// let rule = |path, consistency| Rule {
///     when: Conditions { path, ..Conditions::default() },
///     set: Settings { consistency, ..Settings::default() },
/// };
/// let rules = [rule(&b"**"[..], None), rule(b"out/*", Some(Consistency::Commit))];
/// assert_eq!(consistency(rules, b"/pfs/out/a", b"/pfs"), Consistency::Commit);
/// assert_eq!(consistency(rules, b"/pfs/in/a", b"/pfs"), Consistency::Strict);
/// ```
pub fn consistency<'a>(
    rules: impl IntoIterator<Item = Rule<'a>>,
    path: &[u8],
    directory: &[u8],
) -> Consistency {
    let file_meta = FileMeta { path, directory, ..FileMeta::default() };
    let is_meant = |rule: &Rule<'_>| {
        let when = Conditions { path: rule.when.path, ..Conditions::default() };
        matches(&when, &file_meta)
    };
    let said = rules.into_iter().filter(|rule| rule.set.consistency.is_some());
    let mut meant = said.filter(is_meant).filter_map(|rule| rule.set.consistency);
    meant.next().unwrap_or(Consistency::Strict)
}

/// The least size above `size` at which another rule may hold; `u64::MAX` if there is none. A
/// caller that lets a file grow to it matches again.
pub fn next_review<'a>(rules: impl IntoIterator<Item = Rule<'a>>, size: u64) -> u64 {
    rules
        .into_iter()
        .flat_map(|rule| [rule.when.size_min, rule.when.size_max.saturating_add(1)])
        .filter(|&bound| bound > size)
        .min()
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_meta() -> FileMeta<'static> {
        FileMeta {
            path: b"/lustre/me/run/a.h5",
            directory: b"/lustre/me",
            size: 100,
            dataset: None,
            user: 1000,
            command: b"long-name-of-pr",
            program: b"long-name-of-program",
            rank: Some(64),
        }
    }

    fn when(change: impl FnOnce(&mut Conditions<'static>)) -> bool {
        let mut conditions = Conditions::default();
        change(&mut conditions);
        matches(&conditions, &file_meta())
    }

    #[test]
    fn a_rule_without_conditions_matches_everything() {
        assert!(when(|_| ()) && matches(&Conditions::default(), &FileMeta::default()));
    }

    #[test]
    fn each_condition_can_fail_alone() {
        assert!(when(|c| c.path = b"run/*.h5") && !when(|c| c.path = b"*.h5"));
        assert!(when(|c| c.path = b"/lustre/**/*.h5") && !when(|c| c.path = b"/run/*.h5"));
        assert!(when(|c| c.size_min = 100) && !when(|c| c.size_min = 101));
        assert!(when(|c| c.size_max = 100) && !when(|c| c.size_max = 99));
        assert!(when(|c| c.user = Some(1000)) && !when(|c| c.user = Some(0)));
        assert!(when(|c| c.process = b"long-name-of-program"));
        assert!(when(|c| c.process = b"long-name-of-pr") && !when(|c| c.process = b"long"));
        assert!(!when(|c| c.dataset = b"**"), "a plain file has no dataset");
        let why = |when: Conditions<'_>| mismatch(&when, &file_meta());
        let never = Conditions { path: b"x", process: b"x", ..Conditions::default() };
        assert_eq!(why(never), Some("process"));
        assert_eq!(why(Conditions { process: b"", ..never }), Some("path"));
        assert_eq!(why(Conditions { size_max: 0, user: Some(1), ..never }), Some("size-max"));
        let with = FileMeta { dataset: Some(b"/fields/rho"), ..file_meta() };
        let fields = Conditions { dataset: b"/fields/*", ..Conditions::default() };
        assert!(matches(&fields, &with));
        let metadata = FileMeta { dataset: Some(METADATA.as_bytes()), ..file_meta() };
        let asks = |dataset| Conditions { dataset, ..Conditions::default() };
        assert!(matches(&asks(b"metadata"), &metadata) && !matches(&asks(b"**"), &metadata));
        assert!(matches(&asks(b"**"), &with) && !matches(&asks(b"metadata"), &with));
    }

    #[test]
    fn ranks_are_ranges_with_a_step() {
        const EVERY_32ND: &[RankRange] = &[RankRange { first: 0, last: 1023, step: 32 }];
        const OTHERS: &[RankRange] = &[
            RankRange { first: 63, last: 63, step: 1 },
            RankRange { first: 65, last: u32::MAX, step: 0 },
        ];
        assert!(when(|c| c.ranks = EVERY_32ND) && !when(|c| c.ranks = OTHERS));
        let serial = FileMeta { rank: None, ..file_meta() };
        assert!(!matches(&Conditions { ranks: EVERY_32ND, ..Conditions::default() }, &serial));
        assert!(OTHERS[1].has(u32::MAX) && OTHERS[1].has(66));
    }

    #[test]
    fn the_whole_store_can_be_managed() {
        let root = FileMeta { path: b"/a/b", directory: b"/", ..file_meta() };
        assert!(matches(&Conditions { path: b"a/b", ..Conditions::default() }, &root));
    }

    #[test]
    fn the_first_match_holds_until_a_bound_of_size_is_passed() {
        let sizes = |size_min, size_max| Rule {
            when: Conditions { size_min, size_max, ..Conditions::default() },
            ..Rule::default()
        };
        let rules = [sizes(200, 299), sizes(0, 149), sizes(0, u64::MAX)];
        let at = |size| first_match(rules, &FileMeta { size, ..file_meta() });
        assert_eq!([0, 149, 150, 199, 200, 299, 300].map(at), [1, 1, 2, 2, 0, 0, 2].map(Some));
        assert_eq!(next_review(rules, 0), 150);
        assert_eq!(next_review(rules, 150), 200);
        assert_eq!(next_review(rules, 200), 300);
        assert_eq!(next_review(rules, 300), u64::MAX);
        // Between two reviews nothing changes.
        let mut expected = at(0);
        let mut review = next_review(rules, 0);
        for size in 0..1000 {
            if size >= review {
                (expected, review) = (at(size), next_review(rules, size));
            }
            assert_eq!(at(size), expected, "{size}");
        }
        assert_eq!(first_match([], &file_meta()), None);
    }

    #[test]
    fn consistency_is_that_of_the_first_rule_that_says_it_of_the_path() {
        let rule = |path, size_min, consistency| Rule {
            when: Conditions { path, size_min, ..Conditions::default() },
            set: Settings { consistency, ..Settings::default() },
        };
        let (strict, commit) = (Some(Consistency::Strict), Some(Consistency::Commit));
        let rules = [
            rule(&b"**"[..], 0, None),
            rule(b"run/exact.h5", 0, strict),
            // No size keeps it from holding.
            rule(b"run/*.h5", 1 << 40, commit),
        ];
        let of = |name: &str| {
            consistency(rules, format!("/lustre/me/run/{name}").as_bytes(), b"/lustre/me")
        };
        assert_eq!(of("a.h5"), Consistency::Commit);
        assert_eq!(of("exact.h5"), Consistency::Strict);
        assert_eq!(of("a.nc"), Consistency::Strict);
        assert_eq!(consistency([], b"/a", b"/"), Consistency::Strict);
        let all = [rule(b"", 0, commit)];
        assert_eq!(consistency(all, b"/a", b"/"), Consistency::Commit);
    }

    #[test]
    fn names_and_codes_lead_back() {
        for &(name, value) in Mode::ALL {
            assert_eq!(value.name(), name);
            assert_eq!(Mode::from_code(value as u8), Some(value));
        }
        assert_eq!((Trigger::from_code(0), Durability::from_code(9)), (None, None));
    }
}
