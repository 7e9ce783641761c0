//! The file table: every record in use is in the chain of its identity, once.

use super::files::name;
use super::{Findings, Set};
use crate::FileId;
use crate::files::Identity;
use crate::layout::*;
use crate::segment::Segment;
use crate::sync::Ordering;
use std::collections::HashMap;

pub(super) fn check(findings: &mut Findings<'_>) {
    let segment: &Segment = findings.segment;
    let header = segment.header();
    let mut chained = Set::below(header.files);
    for head in 0..header.heads {
        let mut link = segment.files().head(head).load(Ordering::Acquire);
        while let Some(file) = FileId::from_link(link) {
            if !header.has_file(file) || !chained.add(file.raw()) {
                let what = "leads to a record that is none, or in another chain";
                findings.refused(format_args!("chain {head} of the file table"), what);
                break;
            }
            let record = segment.file(file);
            let live = record.state.load(Ordering::Acquire) == file_state::LIVE;
            if live && record.identity().head(header.heads) != head {
                findings.refused(name(segment, file), "is in another's chain of the file table");
            }
            link = record.next.load(Ordering::Acquire);
        }
    }
    let mut known: HashMap<Identity, FileId> = HashMap::new();
    for file in header.file_ids() {
        let record = segment.file(file);
        if record.state.load(Ordering::Acquire) != file_state::LIVE {
            continue;
        }
        if !chained.has(file.raw()) {
            findings.refused(name(segment, file), "is in no chain of the file table");
        }
        if let Some(other) = known.insert(record.identity(), file) {
            findings.refused(name(segment, file), format!("is the same file as record {other}"));
        }
    }
}
