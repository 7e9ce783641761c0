//! Client slots, and what lies in their caches.

use super::Findings;
use crate::BucketId;
use crate::layout::*;
use crate::owner::MANAGER_SLOT;
use crate::segment::Segment;
use crate::sync::Ordering;

pub(super) fn check(findings: &mut Findings<'_>) {
    let segment: &Segment = findings.segment;
    let header = segment.header();
    let taken = segment.clients().taken;
    for slot in 0..header.clients {
        let client = segment.client(slot);
        let place = format_args!("client {slot}").to_string();
        let state = client.state.load(Ordering::Acquire);
        if state > slot_state::REAPING {
            findings.repaired(&place, format!("unknown state {state}"));
        }
        if slot != MANAGER_SLOT && state != slot_state::FREE && !taken.has(slot) {
            findings.repaired(&place, "in use without the mark of those that are");
        }
        for cached in &client.buckets {
            let bucket = cached.load(Ordering::Acquire);
            let known = bucket
                .checked_sub(1)
                .is_none_or(|id| segment.bucket(BucketId::from_raw(id)).is_some());
            if !known {
                findings.repaired(&place, format!("keeps bucket {}, which is none", bucket - 1));
            }
        }
        for cached in &client.nodes {
            let node = cached.load(Ordering::Acquire);
            let known = node.checked_sub(1).is_none_or(|node| segment.index().node(node).is_some());
            if !known {
                findings.repaired(&place, format!("keeps index node {}, which is none", node - 1));
            }
        }
    }
    for (number, stripe) in segment.files().stripes.iter().enumerate() {
        findings.holder(format_args!("stripe {number} of the file table"), stripe.holder());
    }
}
