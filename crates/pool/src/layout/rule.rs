//! Rules of the buffering schema.

use forebay_placement::glob::PATTERN_MAX;
use forebay_placement::schema::{RANK_RANGES_MAX, RankRange};

/// A rule of the buffering schema, see `rules.rs`. Texts are zero-terminated.
#[repr(C)]
#[derive(Clone)]
pub struct RuleRecord {
    /// Bytes of the file: at least, at most.
    pub(crate) size_min: u64,
    pub(crate) size_max: u64,
    /// Versions or nanoseconds, as `lifetime` says.
    pub(crate) lifetime_value: u64,
    /// User id; all ones is any.
    pub(crate) user: u32,
    /// Ranges of `rank` in use; 0 is any rank.
    pub(crate) ranks: u32,
    pub(crate) rank: [RankRange; RANK_RANGES_MAX],
    /// Codes of the settings; 0 is not given, but for `tier`, where it is all ones.
    pub(crate) policy: u8,
    pub(crate) tier: u8,
    pub(crate) mode: u8,
    pub(crate) trigger: u8,
    pub(crate) durability: u8,
    pub(crate) lifetime: u8,
    pub(crate) priority: u8,
    pub(crate) flags: u8,
    /// Patterns; empty matches all.
    pub(crate) path: [u8; PATTERN_MAX + 1],
    pub(crate) process: [u8; 64],
    pub(crate) dataset: [u8; 192],
    /// The end of the path of the predictor's program; empty: there is none.
    pub(crate) predictor: [u8; 128],
    /// For people.
    pub(crate) name: [u8; 56],
    pub(crate) source: [u8; 120],
    /// Bytes that each job gets for the files that match.
    pub(crate) reserve: u64,
}

pin_size!(RuleRecord, 1152);
