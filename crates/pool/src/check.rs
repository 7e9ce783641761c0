//! What has to hold of a segment at rest, looked at without changing anything: for `forebay fsck`,
//! and before a node manager takes over what another has left. One file for each thing that is
//! checked.
//!
//! What a killed process may leave is no violation: what it held is explained by its lock, its
//! shared lock or its stamp. While processes are at work, something may look wrong for a moment;
//! see [`Segment::check_in_use`].
//!
//! ```
//! use forebay_pool::BucketId;
//! use forebay_pool::check::Remedy;
//! use forebay_pool::free_map::USED;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use std::sync::atomic::Ordering;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! assert_eq!(segment.check(), []);
//! // A bucket that is in use, and that no index entry names: a new manager frees it.
//! let lost = segment.bucket(BucketId::from_raw(0)).expect("there is one");
//! lost.state.store(USED, Ordering::Relaxed);
//! let findings = segment.check();
//! assert!(findings.iter().any(|finding| finding.remedy == Remedy::Repaired), "{findings:?}");
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

mod buckets;
mod clients;
mod descriptions;
mod files;
mod index;
mod table;

use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::segment::Segment;
use crate::sync::Ordering;
use std::fmt;

/// Findings that are listed; a table full of rubbish is not described record by record.
const FINDINGS_MAX: usize = 1000;
/// Looks at a segment in use, and the time between them.
const LOOKS: u32 = 10;
const LOOK_NS: u64 = 20_000_000;

/// What a manager that takes over does about a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Nothing is lost by it, and recovery puts it right.
    Repaired,
    /// Recovery leaves the data of this file in the pool, and brings the others to the store.
    Kept,
    /// Recovery brings back the rest, and says that this is lost.
    Lost,
    /// Recovery refuses the pool: bytes might be lost, or come to the wrong place.
    Refused,
}

/// A violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which record.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
    /// What becomes of it.
    pub remedy: Remedy,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The findings of one look.
pub(crate) struct Findings<'a> {
    segment: &'a Segment,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn refused(&mut self, place: impl fmt::Display, what: impl Into<String>) {
        self.add(place, what.into(), Remedy::Refused);
    }

    fn repaired(&mut self, place: impl fmt::Display, what: impl Into<String>) {
        self.add(place, what.into(), Remedy::Repaired);
    }

    fn add(&mut self, place: impl fmt::Display, what: String, remedy: Remedy) {
        if self.found.len() < FINDINGS_MAX {
            self.found.push(Finding { place: place.to_string(), what, remedy });
        }
    }

    /// Looks at the owner that is stamped as the holder of something: no thread holds anything
    /// without a shared lock, but for the manager's own threads.
    fn holder(&mut self, place: impl fmt::Display, holder: Option<Owner>) {
        let Some(holder) = holder.filter(|holder| holder.slot() != MANAGER_SLOT) else { return };
        if holder.slot() >= self.segment.header().clients || holder.thread() == 0 {
            return self.refused(place, "held by no thread that can be");
        }
        if holder.is_reaper() {
            // Left by a manager that died over it; the next completes it.
            return;
        }
        let client = self.segment.client(holder.slot());
        let state = client.state.load(Ordering::Acquire);
        let present = client.is_inside();
        if !present || !matches!(state, slot_state::LIVE | slot_state::REAPING) {
            self.refused(place, format!("held by client {}, which is nowhere", holder.slot()));
        }
    }
}

impl Segment {
    /// Everything that does not hold. Of a segment in use some of it may be true for a moment only.
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = Findings { segment: self, found: Vec::new() };
        clients::check(&mut findings);
        files::check(&mut findings);
        table::check(&mut findings);
        let named = index::check(&mut findings);
        buckets::check(&mut findings, &named);
        descriptions::check(&mut findings);
        findings.found
    }

    /// What does not hold at any of several looks: of a segment in use.
    pub fn check_in_use(&self) -> Vec<Finding> {
        let mut found = self.check();
        for _ in 1..LOOKS {
            if found.is_empty() {
                break;
            }
            crate::clock::sleep_ns(LOOK_NS);
            let again = self.check();
            found.retain(|finding| again.contains(finding));
        }
        found
    }
}

/// A set of numbers below a bound.
pub(crate) struct Set(Vec<u64>);

impl Set {
    fn below(bound: u32) -> Set {
        Set(vec![0; bound.div_ceil(64) as usize])
    }

    /// Adds a number; false if it is a member already, or out of bounds.
    fn add(&mut self, number: u32) -> bool {
        let Some(word) = self.0.get_mut(number as usize / 64) else { return false };
        let bit = 1 << (number % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests;
