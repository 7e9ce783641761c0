//! Open-file descriptions. None of them outlives the processes that hold it.

use super::Findings;
use crate::layout::*;
use crate::segment::Segment;
use crate::sync::Ordering;

pub(super) fn check(findings: &mut Findings<'_>) {
    let segment: &Segment = findings.segment;
    for id in 0..segment.descriptions().ready() {
        let description = segment.description(id);
        let place = format_args!("description {id}").to_string();
        findings.holder(&place, description.position.holder());
        match description.word.load(Ordering::Acquire) as u32 & 0xff {
            // What it is of is not written down yet.
            description_state::FREE | description_state::OPENING | description_state::CLOSING => {}
            description_state::LIVE | description_state::ZOMBIE => {
                if !segment.header().has_file(description.file.load(Ordering::Acquire)) {
                    findings.refused(&place, "of a file that is none");
                }
            }
            state => findings.refused(&place, format!("unknown state {state}")),
        }
    }
}
