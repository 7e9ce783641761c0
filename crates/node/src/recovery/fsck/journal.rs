//! The journal: superblock, checksums and sequence numbers, and what a recovery would take from it.

use super::finding::{refused, repaired};
use crate::config::Config;
use crate::instance::runtime::Runtime;
use crate::journal::Journal;
use crate::journal::contents::Contents;
use crate::journal::scan::{Examined, examine};
use crate::journal::superblock::reason;
use crate::usage::path_of;
use forebay_pool::check::{Finding, Remedy};
use forebay_pool::slot_record::{JOURNAL_END, SLOTS_END};
use forebay_pool::{Segment, private};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// What a recovery would take from a journal if the segment were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalState {
    /// The journal's file.
    pub path: PathBuf,
    /// Records of this generation, also those that a checkpoint covers.
    pub records: u64,
    /// Bytes that they take, and that there are.
    pub used: u64,
    /// See `used`.
    pub size: u64,
    /// Files of which it has what the store may lack.
    pub files: usize,
    /// Bytes of those.
    pub bytes: u64,
}

/// Checks the journal of `segment`; there may be none.
pub(super) fn check(
    segment: &Segment,
    in_use: bool,
    findings: &mut Vec<Finding>,
) -> Option<JournalState> {
    let tiers = segment.header().tier.iter().map(|tier| path_of(&tier.path).to_str());
    let paths: Vec<_> = tiers
        .filter_map(|path| path?.strip_suffix(SLOTS_END))
        .map(|stem| PathBuf::from(format!("{stem}{JOURNAL_END}")))
        .collect();
    let path = paths.iter().find(|path| private::is_there(*path)).or(paths.first())?.clone();
    let (state, log) = look(&path, true, findings)?;
    let place = format!("journal {}", path.display());
    if let Some(last) = log.last_sequence.filter(|&last| last >= segment.sequence()) {
        let next = segment.sequence();
        let what = format!("has a record with number {last}; the pool's next one is {next}");
        findings.push(repaired(&place, what));
    }
    // A manager may be writing there.
    if let Some(at) = log.orphan.filter(|_| !in_use) {
        let end = log.end;
        let why = if log.is_damaged { "is damaged" } else { "was never finished" };
        let what = format!("ends at byte {end}, but has a record at {at}: one between {why}");
        findings.push(repaired(&place, what));
    }
    Some(state)
}

/// Checks the journal that an instance has left without its pool. No state: there is none, or it
/// cannot be read, as the findings say.
pub fn check_left(runtime: &Runtime, config: &Config) -> (Option<JournalState>, Vec<Finding>) {
    let mut findings = Vec::new();
    let Some(Journal { path, .. }) = Journal::of(config, runtime) else { return (None, findings) };
    let Some((state, log)) = look(&path, false, &mut findings) else { return (None, findings) };
    let place = format!("journal {}", path.display());
    let end = log.end;
    if log.is_damaged {
        let what = format!("the record at byte {end} is damaged: what a sync acknowledged is lost");
        findings.push(Finding { place, what, remedy: Remedy::Lost });
    } else if let Some(at) = log.orphan {
        let what =
            format!("ends at byte {end}, but has a record at {at}: one between was not synced");
        findings.push(repaired(place, what));
    }
    (Some(state), findings)
}

fn look(
    path: &Path,
    has_pool: bool,
    findings: &mut Vec<Finding>,
) -> Option<(JournalState, Examined)> {
    let place = format!("journal {}", path.display());
    let looked = examine(path).and_then(|log| match Contents::read(path) {
        Err(Errno::BADMSG) => Ok((log, Contents::default())),
        contents => Ok((log, contents?)),
    });
    let (log, contents) = match looked {
        Ok(looked) => looked,
        Err(Errno::NOENT) => return None,
        Err(errno) => {
            findings.push(refused(&place, reason(path, errno)));
            return None;
        }
    };
    match (log.copies, log.damaged_copies) {
        (0, 2) if has_pool => findings.push(repaired(
            &place,
            "both copies of its superblock are damaged: if the pool were lost, recovery would refuse \
             what is left",
        )),
        (0, 2) => {
            findings.push(refused(&place, "both copies of its superblock are damaged"));
        },
        (1, 1) => {
            let what = "one of the two copies of its superblock is damaged, the other holds";
            findings.push(repaired(&place, what));
        }
        _ => {}
    }
    let (files, bytes) = contents.pending();
    let state = JournalState {
        path: path.to_owned(),
        records: log.records,
        used: log.used,
        size: log.size,
        files,
        bytes,
    };
    Some((state, log))
}
