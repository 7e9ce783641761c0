//! The journal: heads, checksums and sequence numbers, and what a recovery would take from it.

use super::{Finding, mended, path_of, refused};
use crate::config::Config;
use crate::journal::Journal;
use crate::journal::log::{Contents, Examined, examine};
use crate::runtime::Runtime;
use forebay_pool::Segment;
use forebay_pool::slot_record::SLOTS_END;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// What a recovery would take from a journal if the segment were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalState {
    /// The journal's file.
    pub path: PathBuf,
    /// Records of this round, settled ones too.
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
    let mut tiers = segment.header().tier.iter().map(|tier| path_of(&tier.path).to_str());
    let stem = tiers.find_map(|path| path?.strip_suffix(SLOTS_END))?;
    let path = PathBuf::from(format!("{stem}.journal"));
    let (state, log) = look(&path, findings)?;
    let place = format!("journal {}", path.display());
    if let Some(last) = log.last_sequence.filter(|&last| last >= segment.sequence()) {
        let next = segment.sequence();
        let what = format!("has a record with number {last}; the pool's next one is {next}");
        findings.push(refused(&place, what));
    }
    // A manager may be writing there.
    if let Some(at) = log.behind.filter(|_| !in_use) {
        let what = format!(
            "ends at byte {}, but has a record at {at}: one between is damaged, or was never finished",
            log.end
        );
        findings.push(mended(&place, what));
    }
    Some(state)
}

/// Checks the journal that an instance has left without its pool. `None`: there is none.
pub fn check_left(runtime: &Runtime, config: &Config) -> Option<(JournalState, Vec<Finding>)> {
    let mut findings = Vec::new();
    let path = Journal::of(config, runtime)?.path;
    let (state, log) = look(&path, &mut findings)?;
    if let Some(at) = log.behind {
        let what = format!(
            "ends at byte {}, but has a record at {at}: what lies there was not synced, or is lost",
            log.end
        );
        findings.push(mended(format_args!("journal {}", path.display()), what));
    }
    Some((state, findings))
}

fn look(path: &Path, findings: &mut Vec<Finding>) -> Option<(JournalState, Examined)> {
    let place = format!("journal {}", path.display());
    let looked = examine(path).and_then(|log| Ok((log, Contents::read(path)?)));
    let (log, contents) = match looked {
        Ok(looked) => looked,
        Err(Errno::NOENT) => return None,
        Err(errno) => {
            findings.push(refused(&place, errno));
            return None;
        }
    };
    match (log.heads, log.damaged_heads) {
        (_, 0) => {}
        (0, _) => findings.push(refused(
            &place,
            "has no head that can be read: if the pool is lost, nothing of it can be brought back",
        )),
        (..) => findings.push(mended(&place, "one of its heads is damaged, the other holds")),
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
