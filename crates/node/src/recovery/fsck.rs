//! A pool and what belongs to it, checked without changing them. What the segment itself says is
//! checked in `forebay_pool::check`; here is what lies outside of it, one file for each.

mod files;
mod finding;
mod journal;
mod stores;
mod sums;
mod tiers;

use crate::recovery::inspect::inspect;
use finding::refused;
pub use forebay_pool::check::{Finding, Remedy};
use forebay_pool::layout::{FileFlags, retirement};
use forebay_pool::{FileId, Segment, SegmentError};
pub use journal::{JournalState, check_left};

use std::path::Path;
use std::sync::atomic::Ordering;

/// What a check found.
#[derive(Debug)]
pub struct Checked {
    /// What does not hold.
    pub findings: Vec<Finding>,
    /// Processes were at work meanwhile: only what stayed wrong is a finding.
    pub in_use: bool,
    /// Files that are ahead of the store.
    pub ahead: usize,
    /// Bytes that are not yet on the store.
    pub dirty: u64,
    /// The journal, if there is one.
    pub journal: Option<JournalState>,
}

/// Whether the pool at `path` can be read, and a node manager would take it over.
pub fn is_sound(path: &Path) -> bool {
    inspect(path).is_ok_and(|pool| {
        pool.wrong.is_none()
            && pool.segment.check().iter().all(|finding| finding.remedy == Remedy::Repaired)
    })
}

/// Checks the pool at `path`, its tiers and its stores.
///
/// # Errors
/// Why it cannot be read at all.
pub fn check(path: &Path) -> Result<Checked, SegmentError> {
    let pool = inspect(path)?;
    let segment = &pool.segment;
    if segment.header().retired.load(Ordering::SeqCst) == retirement::REMOVED {
        // Whatever was removed by then: all of it was on the store.
        return Ok(Checked {
            findings: Vec::new(),
            in_use: false,
            ahead: 0,
            dirty: 0,
            journal: None,
        });
    }
    let mut findings = match pool.in_use {
        true => segment.check_in_use(),
        false => segment.check(),
    };
    if let Some(wrong) = &pool.wrong {
        findings.insert(0, refused("header", wrong));
    }
    tiers::check(segment, &mut findings);
    sums::check(&pool, &mut findings);
    stores::check(segment, &mut findings);
    files::check(segment, &mut findings);
    let journal = journal::check(segment, pool.in_use, &mut findings);
    let ahead = |&file: &FileId| segment.file(file).has(FileFlags::METADATA_DIRTY);
    // An index that is damaged need not end.
    let refused = findings.iter().any(|finding| finding.remedy == Remedy::Refused);
    let dirty = match !refused {
        true => segment.files().live().map(|file| segment.pending_bytes(file)).sum(),
        false => 0,
    };
    let ahead = segment.files().live().filter(ahead).count();
    Ok(Checked { findings, in_use: pool.in_use, ahead, dirty, journal })
}

/// Why a manager must not take over `segment`, if so: the first things, and how many in all.
pub(crate) fn refusal(segment: &Segment) -> Option<String> {
    let mut found = match segment.clients().any_lives() {
        true => segment.check_in_use(),
        false => segment.check(),
    };
    tiers::check(segment, &mut found);
    found.retain(|finding| finding.remedy == Remedy::Refused);
    let first = found.first()?;
    Some(format!(
        "it is damaged ({first}; {} findings in all). Nothing was changed: `forebay fsck` lists what is \
         wrong, `forebay salvage --to DIR` saves what can be read",
        found.len()
    ))
}
