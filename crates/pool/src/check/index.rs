//! The block index: trees within their bounds, no node in two places, and entries that agree with
//! what the buckets say of themselves.

use super::files::name;
use super::{Findings, Set};
use crate::entry::Entry;
use crate::free_map::{FREE, USED};
use crate::index::{NODE_HEIGHT_MAX, unpack};
use crate::layout::*;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use crate::{BucketId, FileId};

struct Walk<'a, 'b> {
    findings: &'b mut Findings<'a>,
    segment: &'a Segment,
    /// Nodes that were met.
    linked: Set,
    /// Buckets that entries name.
    named: Set,
    file: FileId,
}

/// Returns the buckets that some entry names.
pub(super) fn check(findings: &mut Findings<'_>) -> Set {
    let segment: &Segment = findings.segment;
    let header = segment.header();
    let mut walk = Walk {
        segment,
        findings,
        linked: Set::below(header.nodes),
        named: Set::below(header.buckets),
        file: FileId::from_raw(0),
    };
    for file in header.file_ids() {
        let record = segment.file(file);
        if record.state.load(Ordering::Acquire) != file_state::LIVE {
            continue;
        }
        walk.file = file;
        walk.entry(0, &record.entry0);
        let root = record.root.load(Ordering::Acquire);
        match unpack(root) {
            _ if root == 0 => {}
            Some((height, node)) if root << 8 >> 40 == 0 => walk.node(node, height, 0),
            _ => walk.refused("the root of its index is none"),
        }
    }
    for slot in 0..header.clients {
        for cached in &segment.client(slot).nodes {
            let node = cached.load(Ordering::Acquire).checked_sub(1);
            if node.is_some_and(|node| walk.linked.has(node)) {
                walk.findings.repaired(format_args!("client {slot}"), "keeps an index node in use");
            }
        }
    }
    walk.named
}

impl Walk<'_, '_> {
    fn refused(&mut self, what: impl Into<String>) {
        self.findings.refused(name(self.segment, self.file), what);
    }

    fn node(&mut self, id: u32, height: u32, base: u64) {
        debug_assert!((1..=NODE_HEIGHT_MAX).contains(&height));
        let Some(node) = self.segment.index().node(id).filter(|_| self.linked.add(id)) else {
            return self.refused(format!("index node {id} is none, or in two places"));
        };
        if self.segment.index_nodes(crate::segment::MANAGER_SLOT).state(id).load(Ordering::Acquire)
            == FREE
        {
            self.refused(format!("index node {id} counts as free"));
        }
        let span = 1u64 << ((height - 1) * NODE_BITS);
        for (slot, place) in node.entry.iter().enumerate() {
            let start = base + slot as u64 * span;
            let word = place.load(Ordering::Acquire);
            match (word as u32).checked_sub(1) {
                _ if height == 1 => self.entry(start, place),
                Some(child) if word >> 32 == 0 => self.node(child, height - 1, start),
                _ if word == 0 => {}
                _ => self.refused(format!("index node {id} leads nowhere")),
            }
        }
    }

    fn entry(&mut self, block: u64, place: &AtomicU64) {
        let word = place.load(Ordering::Acquire);
        let entry = Entry::decode(word);
        if entry.encode() != word {
            return self.refused(format!("block {block}: its entry is no entry"));
        }
        match entry {
            Entry::Empty => {}
            Entry::Busy(owner) => {
                let place = format!("{}, block {block}", name(self.segment, self.file));
                self.findings.holder(place, Some(owner));
            }
            Entry::Resident { tier, bucket } => self.resident(block, tier, bucket),
            Entry::Elsewhere { bucket, .. } => self.is_none(block, bucket),
        }
    }

    fn is_none(&mut self, block: u64, bucket: BucketId) {
        self.refused(format!("block {block} lies in bucket {bucket}, which is none"));
    }

    fn resident(&mut self, block: u64, tier: TierId, bucket: BucketId) {
        let header = self.segment.header();
        let of_tier = header.tier[..header.tiers as usize].get(tier.index());
        let within = of_tier.is_some_and(|tier| {
            bucket.raw().checked_sub(tier.first_bucket).is_some_and(|number| number < tier.buckets)
        });
        let within =
            within || of_tier.is_some() && header.sparse_in_use(tier).contains(&bucket.raw());
        let Some(meta) = self.segment.bucket(bucket).filter(|_| within) else {
            return self.is_none(block, bucket);
        };
        if !self.named.add(bucket.raw()) {
            self.refused(format!("block {block} lies in bucket {bucket}, as another block does"));
        }
        let agrees = meta.state.load(Ordering::Acquire) == USED
            && meta.file.load(Ordering::Relaxed) == self.file
            && meta.block.load(Ordering::Relaxed) == block;
        // The holder of the lock may be about to make them agree, but not where there is something
        // to lose: a block is published when it is whole, and freed when it is not.
        if !agrees && (meta.lock.holder().is_none() || meta.pending() != 0) {
            self.refused(format!("block {block} lies in bucket {bucket}, which says otherwise"));
        }
    }
}

impl Segment {
    /// The resident blocks of `file` with their buckets, as far as its index can be followed: each
    /// node is entered once, whatever leads to it. For tools that look at damaged pools.
    pub fn resident_blocks(&self, file: FileId) -> Vec<(u64, BucketId)> {
        let record = self.file(file);
        let mut found = Vec::new();
        let mut seen = Set::below(self.header().nodes);
        let mut note = |block: u64, word: u64| {
            if let Entry::Resident { bucket, .. } = Entry::decode(word)
                && self.bucket(bucket).is_some()
            {
                found.push((block, bucket));
            }
        };
        note(0, record.entry0.load(Ordering::Acquire));
        let mut nodes = Vec::new();
        nodes.extend(unpack(record.root.load(Ordering::Acquire)).map(|(h, node)| (node, h, 0)));
        while let Some((id, height, base)) = nodes.pop() {
            let Some(node) = self.index().node(id).filter(|_| seen.add(id)) else { continue };
            let span = 1u64 << ((height - 1) * NODE_BITS);
            for (slot, place) in node.entry.iter().enumerate() {
                let (start, word) = (base + slot as u64 * span, place.load(Ordering::Acquire));
                match (word as u32).checked_sub(1) {
                    // Block 0 has its entry in the record.
                    _ if height == 1 && start > 0 => note(start, word),
                    Some(child) if height > 1 => nodes.push((child, height - 1, start)),
                    _ => {}
                }
            }
        }
        found.sort_unstable();
        found
    }
}
