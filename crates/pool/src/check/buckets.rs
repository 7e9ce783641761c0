//! Buckets: what holds unflushed data is named by the index, and the free maps know their bounds.

use super::{Findings, Set};
use crate::free_map::{FILLING, FREE, RESERVED, UNBACKED, USED};
use crate::layout::*;
use crate::owner::{MANAGER_SLOT, Owner};
use crate::segment::Segment;
use crate::sync::Ordering;

pub(super) fn check(findings: &mut Findings<'_>, named: &Set) {
    let segment: &Segment = findings.segment;
    let header = segment.header();
    let ready = header.ram_ready.load(Ordering::Acquire);
    for bucket in header.bucket_ids() {
        let Some(meta) = segment.bucket(bucket) else { continue };
        let place = format_args!("bucket {bucket}").to_string();
        let state = meta.state.load(Ordering::Acquire);
        let pending = meta.pending();
        let holder = meta.lock.holder();
        findings.holder(&place, holder);
        let tier = segment.tier_of(bucket);
        let claimed = segment.claimed(bucket);
        let of_tier = &header.tier[tier];
        if bucket.raw() - of_tier.first_bucket >= of_tier.buckets && claimed.is_none() {
            if state != FREE {
                findings.refused(&place, "in use behind the last of its tier");
            }
            continue;
        }
        if bucket.raw() < segment.ram_buckets()
            && bucket.raw() >= ready
            && !matches!(state, FREE | UNBACKED)
        {
            findings.repaired(&place, "in use before it was made ready");
        }
        // The holder of the lock is in the middle of it.
        if holder.is_some() {
            continue;
        }
        if let Some(claimed) = claimed {
            let end = u64::BITS - meta.valid.load(Ordering::Acquire).leading_zeros();
            let claimed = claimed.load(Ordering::Acquire);
            let backed = match segment.sparse_pages(bucket) {
                Some(pages) => pages.backed.load(Ordering::Acquire),
                None => claimed,
            };
            if end > backed || backed > claimed || claimed > PAGES_PER_BUCKET {
                findings.repaired(&place, "its pages are not counted");
            }
        }
        match state {
            USED if !named.has(bucket.raw()) && pending != 0 => {
                findings.refused(&place, unflushed(segment, meta, "no index entry leads to it"));
            }
            USED if !named.has(bucket.raw()) => {
                findings.repaired(&place, "in use, but in no index entry")
            }
            USED if meta.pages.dirty() & !meta.valid.load(Ordering::Acquire) != 0 => {
                findings.repaired(&place, "has unflushed pages that are not valid");
            }
            FREE | RESERVED | UNBACKED if pending != 0 => {
                findings.refused(&place, unflushed(segment, meta, "it counts as free"));
            }
            RESERVED if meta.reserved.load(Ordering::Acquire) == 0 => {
                findings.repaired(&place, "reserved for no job");
            }
            UNBACKED if claimed.is_some() || !tier.is_ram() && of_tier.sparse.buckets == 0 => {
                findings.repaired(&place, "is said to have no memory, and nothing is lent there");
            }
            FREE | USED | FILLING | RESERVED | UNBACKED => {}
            stamp => {
                let known = Owner::from_raw(stamp)
                    .is_some_and(|owner| owner.slot() < header.clients && owner.thread() != 0);
                if !known || pending != 0 {
                    findings.refused(&place, format!("its state {stamp:#x} is none"));
                }
            }
        }
    }
    for tier in header.tiers_in_use() {
        let map = segment.free_buckets(tier);
        if map.has_stray_bits() {
            findings.repaired(format_args!("tier {tier}"), "offers buckets that do not exist");
        }
    }
    if segment.index_nodes(MANAGER_SLOT).free().has_stray_bits() {
        findings.repaired("block index", "offers nodes that do not exist");
    }
}

fn unflushed(segment: &Segment, meta: &BucketMeta, why: &str) -> String {
    let file = meta.file.load(Ordering::Relaxed);
    let block = meta.block.load(Ordering::Relaxed);
    let of = match segment.header().has_file(file) {
        true => super::files::name(segment, file),
        false => format!("file {file}, which is none"),
    };
    format!("has unflushed pages of block {block} of {of}, and {why}")
}
