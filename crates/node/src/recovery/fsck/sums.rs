//! Checksums of the pages in slots: what was written is what is there.

use super::finding::{refused, repaired};
use crate::recovery::inspect::Inspected;
use crate::usage::{buckets_of, path_of};
use forebay_pool::PageSet;
use forebay_pool::check::Finding;
use forebay_pool::free_map::USED;
use forebay_pool::segment::text;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

pub(super) fn check(pool: &Inspected, findings: &mut Vec<Finding>) {
    let segment = &pool.segment;
    let mut bytes = vec![0; segment.page_bytes()];
    for tier in segment.header().file_tiers() {
        let header = &segment.header().tier[tier];
        // One that is not there is a finding already, if something of it is missed.
        if !path_of(&header.path).exists() {
            continue;
        }
        let slots = match pool.slots(tier) {
            Ok(slots) => slots,
            Err(why) => {
                let name = text(&header.name).to_string_lossy();
                findings.push(refused(format!("tier {name}"), why));
                continue;
            }
        };
        for bucket in buckets_of(segment, tier) {
            let (Some(meta), Some(sums)) = (segment.bucket(bucket), segment.checksums(bucket))
            else {
                continue;
            };
            if meta.state.load(Ordering::Acquire) != USED || meta.lock.holder().is_some() {
                continue;
            }
            let version = meta.lock.version();
            let valid = meta.valid.load(Ordering::Acquire);
            let pending = meta.pending() & valid;
            let (mut corrupt, mut clean) = (0, 0);
            for number in PageSet(valid).pages() {
                let is_known = sums.get(number) != 0;
                let offset = segment.slot_offset(bucket) + (number * bytes.len()) as u64;
                let read = |to: &mut [u8]| slots.read_exact_at(to, offset);
                if is_known && !matches!(sums.read_page(number, &mut bytes, read), Ok(true)) {
                    match pending >> number & 1 {
                        1 => corrupt += 1,
                        _ => clean += 1,
                    }
                }
            }
            // A thread was writing it.
            if meta.lock.version() != version {
                continue;
            }
            let place = format!("tier {}, bucket {bucket}", text(&header.name).to_string_lossy());
            let file = meta.file.load(Ordering::Relaxed);
            let of = match segment.header().has_file(file) {
                true => String::from_utf8_lossy(&segment.path_of(segment.file(file))).into_owned(),
                false => format!("file {file}"),
            };
            let block = meta.block.load(Ordering::Relaxed);
            if corrupt > 0 {
                let what =
                    format!("{corrupt} unflushed pages of block {block} of {of} are corrupt");
                findings.push(refused(&place, what));
            }
            if clean > 0 {
                let what = format!("{clean} clean pages of block {block} of {of} are corrupt");
                findings.push(repaired(&place, what));
            }
        }
    }
}
