//! Whether a file that this node has written, and another one wants to read, is lent: then its
//! blocks go to that node from here, and to the store later.

use crate::node::Node;
use forebay_placement::cost::{Pace, Speeds, lending_pays};
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::lease::Lease;
use forebay_pool::{Entry, FileId, PageSet};
use std::sync::atomic::Ordering;

/// Bytes per second that a link is taken to carry until it was observed: TLS, one core.
pub(super) const LINK_BANDWIDTH: u64 = 1_200_000_000;
/// Nanoseconds that a question to another node is taken to last until it was observed.
pub(super) const LINK_LATENCY_NS: u64 = 100_000;

/// Whether all of a file is here, some of it not on the store, and others have it sooner from here.
/// A caller that has the file exclusively may lend it then.
pub(super) fn is_worth_lending(node: &Node, file: FileId) -> bool {
    let (segment, record) = (&node.segment, node.segment.file(file));
    let others = [FileFlags::DIRECT, FileFlags::SCRATCH, FileFlags::UNLINKED, FileFlags::CONFLICT];
    let is_plain = record.lease.load().held() == Lease::Whole
        && record.truncated_to().is_none()
        && !record.has_intent()
        && !record.has_lengtheners()
        && !others.into_iter().any(|flag| record.has(flag));
    let pending = segment.pending_bytes(file);
    is_plain && pending > 0 && pays(node, file, pending) && is_whole(node, record)
}

fn pays(node: &Node, file: FileId, pending: u64) -> bool {
    let link = Pace {
        read_ns: 1e9 / LINK_BANDWIDTH as f64,
        latency_ns: LINK_LATENCY_NS as f64,
        write_ns: 0.0,
    };
    let hierarchy = forebay_client::hierarchy(&node.segment, node.store_of(file));
    let store = Speeds::of(&hierarchy).paces().last().copied().unwrap_or_default();
    let bytes = node.segment.file(file).size.load(Ordering::Acquire);
    lending_pays(&link, &store, pending, bytes)
}

/// Whether the tiers have each page of a file.
fn is_whole(node: &Node, record: &FileRecord) -> bool {
    let segment = &node.segment;
    let (bucket, page) = (segment.bucket_bytes() as u64, segment.page_bytes() as u64);
    let size = record.size.load(Ordering::Acquire);
    let (mut next, mut is_whole) = (0, true);
    segment.for_each_entry(record, 0, |block, place| {
        let bytes = size.saturating_sub(block.saturating_mul(bucket)).min(bucket);
        if bytes == 0 {
            return false;
        }
        let pages = PageSet::span(0..bytes.div_ceil(page) as usize);
        let meta = match Entry::decode(place.load(Ordering::Acquire)) {
            Entry::Resident { bucket, .. } => segment.bucket(bucket),
            _ => None,
        };
        let valid = meta.map_or(0, |meta| meta.valid.load(Ordering::Acquire));
        is_whole = block == next && valid & pages.0 == pages.0;
        next = block + 1;
        is_whole
    });
    is_whole && next == size.div_ceil(bucket)
}
