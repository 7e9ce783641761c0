//! The block index: a radix tree per file, like a page table. Block 0 has its entry in the file
//! record, so that a file of one block needs no node.
//!
//! It is made of slices, and knows no segment: see docs/design/views.md.
//!
//! ```
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::segment::anonymous;
//! use forebay_pool::{Identity, Owner, Entry, TierId};
//! use std::sync::atomic::Ordering;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! let slot = segment.clients().claim(std::process::id(), 1).expect("one of many is free");
//! let me = Owner::new(slot, 0);
//! let name = Identity { device: 1, inode: 2 };
//! let file = segment.with_file_or_new(name, me, |file, _| file).expect("the table is empty");
//! // Block 1,000,000 of a file with holes: a few nodes, and its entry.
//! let record = segment.file(file);
//! assert!(segment.index().entry(record, 1_000_000).is_none());
//! let place = segment.entry_or_insert(record, 1_000_000, me).expect("there are nodes");
//! let bucket = segment.take_bucket(me).expect("all are free");
//! place.store(Entry::resident(TierId::RAM, bucket).encode(), Ordering::Release);
//! let mut blocks = Vec::new();
//! segment.index().for_each_entry(record, 0, |block, _| {
//!     blocks.push(block);
//!     true
//! });
//! assert_eq!(blocks, [1_000_000]);
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::BucketId;
use crate::crash;
use crate::entry::Entry;
use crate::free_map::{FreeMap, States, USED};
use crate::layout::{CACHED_NODES, FileRecord, IndexNode, NODE_BITS, NODE_ENTRIES};
use crate::owner::Owner;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Blocks are counted in 46 bits: 2^63 bytes in buckets of 256 KiB. Eight levels of 6 bits.
pub(crate) const NODE_HEIGHT_MAX: u32 = 8;

pub(crate) fn unpack(root: u64) -> Option<(u32, u32)> {
    let node = (root as u32).checked_sub(1)?;
    // A damaged word has no tree: no thread is to follow it out of its bounds.
    let height = (root >> 56) as u32;
    (1..=NODE_HEIGHT_MAX).contains(&height).then_some((height, node))
}

fn pack(height: u32, node: u32) -> u64 {
    u64::from(height) << 56 | u64::from(node + 1)
}

/// Height of a tree that can hold `block`.
pub(crate) fn height_for(block: u64) -> u32 {
    (64 - block.leading_zeros()).div_ceil(NODE_BITS).max(1)
}

fn slot_at(block: u64, level: u32) -> usize {
    (block >> (level * NODE_BITS)) as usize % NODE_ENTRIES
}

/// The nodes of all files: finds entries.
#[derive(Clone, Copy)]
pub struct Index<'a> {
    nodes: &'a [IndexNode],
}

/// The index with what makes it grow and shrink.
#[derive(Clone, Copy)]
pub struct IndexNodes<'a> {
    /// The nodes.
    pub index: Index<'a>,
    /// Whose each node is.
    pub states: NodeStates<'a>,
    /// A bit for each node that is probably free.
    pub bits: &'a [AtomicU64],
    /// Free nodes that the caller's process keeps for itself.
    pub cache: &'a [AtomicU32],
}

/// The state words of index nodes.
#[derive(Clone, Copy)]
pub struct NodeStates<'a>(pub &'a [AtomicU32]);

impl<'a> NodeStates<'a> {
    fn word(self, node: u32) -> &'a AtomicU32 {
        &self.0[(node as usize).min(self.0.len() - 1)]
    }
}

impl States for NodeStates<'_> {
    fn state(&self, item: u32) -> &AtomicU32 {
        self.word(item)
    }
}

impl<'a> Index<'a> {
    /// An index of `nodes`.
    #[inline(always)]
    pub fn of(nodes: &'a [IndexNode]) -> Index<'a> {
        Index { nodes }
    }

    /// Index node `node`, or `None` when the id is not one.
    #[inline(always)]
    pub fn node(self, node: u32) -> Option<&'a IndexNode> {
        self.nodes.get(node as usize)
    }

    /// The entry of `block`, if the index has a place for it.
    #[inline(always)]
    pub fn entry(self, file: &'a FileRecord, block: u64) -> Option<&'a AtomicU64> {
        if block == 0 {
            return Some(&file.entry0);
        }
        let (height, mut node) = unpack(file.root.load(Ordering::Acquire))?;
        if block >> (height * NODE_BITS) != 0 {
            return None;
        }
        for level in (1..height).rev() {
            let child = self.node(node)?.entry[slot_at(block, level)].load(Ordering::Acquire);
            node = (child as u32).checked_sub(1)?;
        }
        Some(&self.node(node)?.entry[slot_at(block, 0)])
    }

    /// The entry of `block` of `file`, if it names `bucket` now. A bucket in which the
    /// block was found a while ago may have become another block's.
    pub fn place_of(
        self,
        file: &'a FileRecord,
        block: u64,
        bucket: BucketId,
    ) -> Option<&'a AtomicU64> {
        let place = self.entry(file, block)?;
        let entry = Entry::decode(place.load(Ordering::Acquire));
        matches!(entry, Entry::Resident { bucket: named, .. } if named == bucket).then_some(place)
    }

    /// Calls `visit` with every non-empty entry from `first` on, in ascending order of blocks,
    /// until it returns false.
    pub fn for_each_entry(
        self,
        file: &FileRecord,
        first: u64,
        mut visit: impl FnMut(u64, &AtomicU64) -> bool,
    ) {
        if first == 0 && file.entry0.load(Ordering::Acquire) != 0 && !visit(0, &file.entry0) {
            return;
        }
        if let Some((height, node)) = unpack(file.root.load(Ordering::Acquire)) {
            // A damaged link that leads back must not hold us for ever.
            let mut budget = self.nodes.len() as u32;
            self.walk(node, height.min(NODE_HEIGHT_MAX), 0, first.max(1), &mut budget, &mut visit);
        }
    }

    fn walk(
        self,
        node: u32,
        height: u32,
        base: u64,
        first: u64,
        budget: &mut u32,
        visit: &mut impl FnMut(u64, &AtomicU64) -> bool,
    ) -> bool {
        let Some(node) = self.node(node) else { return true };
        let Some(left) = budget.checked_sub(1) else { return false };
        *budget = left;
        let span = 1u64 << ((height - 1) * NODE_BITS);
        for (slot, place) in node.entry.iter().enumerate() {
            let start = base + slot as u64 * span;
            if start + (span - 1) < first {
                continue;
            }
            let word = place.load(Ordering::Acquire);
            if word == 0 {
                continue;
            }
            let go_on = if height == 1 {
                visit(start, place)
            } else {
                self.walk((word as u32).wrapping_sub(1), height - 1, start, first, budget, visit)
            };
            if !go_on {
                return false;
            }
        }
        true
    }

    /// Calls `visit` with each node of `file`'s tree.
    pub fn for_each_node(self, file: &FileRecord, visit: &mut impl FnMut(u32)) {
        fn down(index: Index<'_>, id: u32, height: u32, visit: &mut impl FnMut(u32)) {
            let Some(node) = index.node(id) else { return };
            visit(id);
            if height > 1 {
                for place in &node.entry {
                    if let Some(child) = (place.load(Ordering::Acquire) as u32).checked_sub(1) {
                        down(index, child, height - 1, visit);
                    }
                }
            }
        }
        if let Some((height, node)) = unpack(file.root.load(Ordering::Acquire)) {
            down(self, node, height.min(NODE_HEIGHT_MAX), visit);
        }
    }
}

impl<'a> IndexNodes<'a> {
    /// The free nodes.
    pub fn free(self) -> FreeMap<'a, NodeStates<'a>> {
        FreeMap {
            bits: self.bits,
            states: self.states,
            first: 0,
            count: self.states.0.len() as u32,
        }
    }

    /// The state word of node `node`.
    pub fn state(self, node: u32) -> &'a AtomicU32 {
        self.states.word(node)
    }

    /// The entry of `block`, made if need be. `None` when the index is full.
    #[cold]
    pub fn entry_or_insert(
        self,
        file: &'a FileRecord,
        block: u64,
        owner: Owner,
    ) -> Option<&'a AtomicU64> {
        let wanted = height_for(block);
        if wanted > NODE_HEIGHT_MAX {
            return None;
        }
        let (height, mut node) = self.root_of_height(file, wanted, owner)?;
        for level in (1..height).rev() {
            let place = &self.index.node(node)?.entry[slot_at(block, level)];
            node = self.child_or_insert(place, owner)?;
        }
        Some(&self.index.node(node)?.entry[slot_at(block, 0)])
    }

    /// Makes the tree at least `wanted` high: a new root has the old one as its first child.
    fn root_of_height(self, file: &FileRecord, wanted: u32, owner: Owner) -> Option<(u32, u32)> {
        loop {
            let root = file.root.load(Ordering::Acquire);
            let old = unpack(root);
            if let Some((height, node)) = old
                && height >= wanted
            {
                return Some((height, node));
            }
            let node = self.take_node(owner)?;
            crash::point("index.node");
            let height = match old {
                Some((height, old_node)) => {
                    self.index.node(node)?.entry[0]
                        .store(u64::from(old_node + 1), Ordering::Relaxed);
                    height + 1
                }
                None => wanted,
            };
            let new = pack(height, node);
            let linked =
                file.root.compare_exchange(root, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if linked {
                crash::point("index.root");
                self.state(node).store(USED, Ordering::Release);
            } else {
                self.index.node(node)?.entry[0].store(0, Ordering::Relaxed);
                self.give_node(node, owner);
            }
        }
    }

    fn child_or_insert(self, place: &AtomicU64, owner: Owner) -> Option<u32> {
        if let Some(node) = (place.load(Ordering::Acquire) as u32).checked_sub(1) {
            return Some(node);
        }
        let node = self.take_node(owner)?;
        match place.compare_exchange(0, u64::from(node + 1), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                crash::point("index.child");
                // The owner's stamp goes when the link is there: a killed owner's is looked for.
                self.state(node).store(USED, Ordering::Release);
                Some(node)
            }
            Err(now) => {
                self.give_node(node, owner);
                (now as u32).checked_sub(1)
            }
        }
    }

    /// Frees the nodes below which nothing is resident; returns how many. The caller has the
    /// file exclusively.
    pub fn prune(self, file: &FileRecord) -> u32 {
        let Some((height, node)) = unpack(file.root.load(Ordering::Acquire)) else { return 0 };
        let mut freed = 0;
        if self.prune_below(node, height.min(NODE_HEIGHT_MAX), &mut freed) {
            file.root.store(0, Ordering::Release);
            self.release(node);
            freed += 1;
        }
        freed
    }

    /// Whether `node` is empty after its empty children were freed.
    fn prune_below(self, id: u32, height: u32, freed: &mut u32) -> bool {
        let Some(node) = self.index.node(id) else { return true };
        let mut empty = true;
        for place in &node.entry {
            let word = place.load(Ordering::Acquire);
            if word == 0 {
                continue;
            }
            let child = (word as u32).wrapping_sub(1);
            if height > 1 && self.prune_below(child, height - 1, freed) {
                place.store(0, Ordering::Release);
                crash::point("index.pruned");
                self.release(child);
                *freed += 1;
            } else {
                empty = false;
            }
        }
        empty
    }

    fn take_node(self, owner: Owner) -> Option<u32> {
        if crash::refused("node") {
            return None;
        }
        for place in self.cache {
            if place.load(Ordering::Relaxed) != 0
                && let Some(node) = place.swap(0, Ordering::Acquire).checked_sub(1)
            {
                return Some(node);
            }
        }
        let mut first = None;
        let hint = owner.slot().wrapping_mul(7);
        let keep = CACHED_NODES as u32 / 2;
        self.free().take(owner, hint, keep, |node| {
            if first.is_none() {
                first = Some(node);
            } else {
                self.give_node(node, owner);
            }
        });
        first
    }

    /// Gives back a node that is all zero.
    fn give_node(self, node: u32, owner: Owner) {
        self.state(node).store(owner.raw(), Ordering::Relaxed);
        for place in self.cache {
            let put = place.compare_exchange(0, node + 1, Ordering::Release, Ordering::Relaxed);
            if put.is_ok() {
                return;
            }
        }
        self.free().give(node);
    }

    /// Zeroes an unlinked node and gives it back to all.
    pub fn release(self, id: u32) {
        if let Some(node) = self.index.node(id) {
            for place in &node.entry {
                place.store(0, Ordering::Relaxed);
            }
            self.free().give(id);
        }
    }
}
