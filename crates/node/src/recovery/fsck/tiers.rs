//! The files of file tiers: there, and long enough for what lies in their slots.

use super::finding::{refused, repaired};
use crate::recovery::inspect::check_head;
use crate::usage::{buckets_of, path_of};
use forebay_pool::check::Finding;
use forebay_pool::free_map::USED;
use forebay_pool::private;
use forebay_pool::segment::text;
use forebay_pool::{PageSet, Segment};
use rustix::fs::OFlags;
use std::sync::atomic::Ordering;

pub(super) fn check(segment: &Segment, findings: &mut Vec<Finding>) {
    let page = segment.page_bytes() as u64;
    for tier in segment.header().file_tiers() {
        let header = &segment.header().tier[tier];
        let path = path_of(&header.path);
        let place = format!("tier {} ({})", text(&header.name).to_string_lossy(), path.display());
        // Where its last valid page ends, of all and of the unflushed ones.
        let (mut used, mut unflushed) = (0, 0);
        for bucket in buckets_of(segment, tier) {
            let Some(meta) = segment.bucket(bucket) else { continue };
            let holds = meta.state.load(Ordering::Acquire) == USED && meta.lock.holder().is_none();
            let end = |pages: u64| match PageSet(pages).bounds().end {
                0 => 0,
                end => segment.slot_offset(bucket) + end as u64 * page,
            };
            if holds {
                let valid = meta.valid.load(Ordering::Acquire);
                used = used.max(end(valid));
                unflushed = unflushed.max(end(meta.pending() & valid));
            }
        }
        let length = match std::fs::metadata(path) {
            Ok(found) if found.is_file() => found.len(),
            Ok(_) => {
                findings.push(refused(&place, "is not a file"));
                continue;
            }
            Err(_) if used == 0 => continue,
            Err(error) => {
                findings.push(refused(&place, error));
                continue;
            }
        };
        // What it is opened for, and by which user, is not the concern here.
        let file = private::open(path, OFlags::RDONLY).ok();
        if let Some(why) = file.and_then(|file| check_head(segment, tier, &file).err()) {
            findings.push(refused(&place, why));
        } else if length < unflushed {
            findings.push(refused(
                &place,
                format!("has {length} bytes; unflushed ones end at {unflushed}"),
            ));
        } else if length < used {
            findings
                .push(repaired(&place, format!("has {length} bytes; clean ones end at {used}")));
        }
    }
}
