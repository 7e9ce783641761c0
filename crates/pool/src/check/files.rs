//! File records by themselves.

use super::Findings;
use crate::FileId;
use crate::layout::*;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::Ordering;

/// What a record is called.
pub(super) fn name(segment: &Segment, file: FileId) -> String {
    let path = segment.path_of(segment.file(file));
    format!("file {file} ({})", String::from_utf8_lossy(&path))
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let segment: &Segment = findings.segment;
    let header = segment.header();
    let high = header.files_high.load(Ordering::Acquire);
    for file in header.file_ids() {
        let record = segment.file(file);
        let state = record.state.load(Ordering::Acquire);
        if state == file_state::FREE {
            continue;
        }
        let place = name(segment, file);
        if file.raw() >= high {
            findings.repaired(&place, "in use behind the mark of those that are");
        }
        if state != file_state::LIVE {
            findings.holder(&place, Owner::from_raw(state));
            continue;
        }
        // Of a manager that died over it the next one looks at all.
        let ahead = FileFlags::METADATA_DIRTY | FileFlags::DIRTY;
        let is_ahead = record.flags.load(Ordering::Acquire).intersects(ahead);
        if is_ahead && !segment.files().is_touched(file) && segment.manager_is_alive() {
            findings.repaired(&place, "ahead of the store, and the manager does not look at it");
        }
        if record.store.load(Ordering::Relaxed) >= header.stores.max(1) {
            findings.refused(&place, "belongs to a store that does not exist");
        }
        if record.path_length.load(Ordering::Acquire) as usize > PATH_BYTES {
            findings.repaired(&place, "its path is longer than there is room for");
        }
        if record.size.load(Ordering::Acquire) > i64::MAX as u64 {
            findings.refused(&place, "its size is no size");
        }
        findings.holder(&place, record.append.holder());
        let exclusive = Owner::from_raw(record.exclusive.load(Ordering::SeqCst));
        findings.holder(&place, exclusive);
        // A truncate that its store refused stays for a process that may, with an error; one of a
        // file that is found nowhere goes with the file.
        let refused = record.errors() != 0 || record.has(FileFlags::UNLINKED);
        if record.has_intent() && exclusive.is_none() && !refused {
            findings.refused(&place, "has a truncate or a punch under way without an owner");
        }
    }
}
