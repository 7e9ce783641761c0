//! The block index: a radix tree per file, like a page table. Block 0 has its entry in the file
//! record, so that a file of one block needs no node.

use crate::entry::Entry;
use crate::free_map::USED;
use crate::layout::*;
use crate::owner::Owner;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};

/// Blocks are counted in 46 bits: 2^63 bytes in buckets of 256 KiB. Eight levels of 6 bits.
pub(crate) const NODE_HEIGHT_MAX: u32 = 8;

pub(crate) fn unpack(root: u64) -> Option<(u32, u32)> {
    let node = (root as u32).checked_sub(1)?;
    // A damaged word has no tree: nobody is to follow it out of its bounds.
    let height = (root >> 56) as u32;
    (1..=NODE_HEIGHT_MAX).contains(&height).then_some((height, node))
}

fn pack(height: u32, node: u32) -> u64 {
    u64::from(height) << 56 | u64::from(node + 1)
}

/// Height of a tree that can hold `block`.
fn height_for(block: u64) -> u32 {
    (64 - block.leading_zeros()).div_ceil(NODE_BITS).max(1)
}

fn slot_at(block: u64, level: u32) -> usize {
    (block >> (level * NODE_BITS)) as usize % NODE_ENTRIES
}

impl Segment {
    /// The entry of `block`, if the index has a place for it.
    #[inline]
    pub fn entry<'a>(&'a self, file: &'a FileRecord, block: u64) -> Option<&'a AtomicU64> {
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

    /// The entry of `block` of file record `file`, if it names `bucket` now. A bucket in which the
    /// block was found a while ago may have become another block's.
    pub fn place_of(&self, file: u32, block: u64, bucket: u32) -> Option<&AtomicU64> {
        let place = self.entry(self.file(file), block)?;
        let entry = Entry::decode(place.load(Ordering::Acquire));
        matches!(entry, Entry::Resident { node: 0, bucket: named, .. } if named == bucket)
            .then_some(place)
    }

    /// The entry of `block`, made if need be. `None` when the index is full.
    #[inline]
    pub fn entry_or_insert<'a>(
        &'a self,
        file: &'a FileRecord,
        block: u64,
        owner: Owner,
    ) -> Option<&'a AtomicU64> {
        match self.entry(file, block) {
            None => self.insert_entry(file, block, owner),
            there => there,
        }
    }

    #[cold]
    fn insert_entry<'a>(
        &'a self,
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
            let place = &self.node(node)?.entry[slot_at(block, level)];
            node = self.child_or_insert(place, owner)?;
        }
        Some(&self.node(node)?.entry[slot_at(block, 0)])
    }

    /// Makes the tree at least `wanted` high: a new root has the old one as its first child.
    fn root_of_height(&self, file: &FileRecord, wanted: u32, owner: Owner) -> Option<(u32, u32)> {
        loop {
            let root = file.root.load(Ordering::Acquire);
            let old = unpack(root);
            if let Some((height, node)) = old
                && height >= wanted
            {
                return Some((height, node));
            }
            let node = self.take_node(owner)?;
            crate::crash::point("index.node");
            let height = match old {
                Some((height, old_node)) => {
                    self.node(node)?.entry[0].store(u64::from(old_node + 1), Ordering::Relaxed);
                    height + 1
                }
                None => wanted,
            };
            let new = pack(height, node);
            let linked =
                file.root.compare_exchange(root, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if linked {
                crate::crash::point("index.root");
                self.node_state(node).store(USED, Ordering::Release);
            } else {
                self.node(node)?.entry[0].store(0, Ordering::Relaxed);
                self.give_node(node, owner);
            }
        }
    }

    fn child_or_insert(&self, place: &AtomicU64, owner: Owner) -> Option<u32> {
        if let Some(node) = (place.load(Ordering::Acquire) as u32).checked_sub(1) {
            return Some(node);
        }
        let node = self.take_node(owner)?;
        match place.compare_exchange(0, u64::from(node + 1), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                crate::crash::point("index.child");
                // The owner's stamp goes when the link is there: a killed owner's is looked for.
                self.node_state(node).store(USED, Ordering::Release);
                Some(node)
            }
            Err(now) => {
                self.give_node(node, owner);
                (now as u32).checked_sub(1)
            }
        }
    }

    /// Calls `visit` with every non-empty entry from `first` on, in ascending order of blocks,
    /// until it returns false.
    pub fn for_each_entry(
        &self,
        file: &FileRecord,
        first: u64,
        mut visit: impl FnMut(u64, &AtomicU64) -> bool,
    ) {
        if first == 0 && file.entry0.load(Ordering::Acquire) != 0 && !visit(0, &file.entry0) {
            return;
        }
        if let Some((height, node)) = unpack(file.root.load(Ordering::Acquire)) {
            // A damaged link that leads back must not hold us for ever.
            let mut budget = self.header().nodes;
            self.walk(node, height.min(NODE_HEIGHT_MAX), 0, first.max(1), &mut budget, &mut visit);
        }
    }

    fn walk(
        &self,
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

    /// Frees the nodes below which nothing is resident; returns how many. The caller has the
    /// file exclusively.
    pub fn prune_index(&self, file: &FileRecord) -> u32 {
        let Some((height, node)) = unpack(file.root.load(Ordering::Acquire)) else { return 0 };
        let mut freed = 0;
        if self.prune(node, height.min(NODE_HEIGHT_MAX), &mut freed) {
            file.root.store(0, Ordering::Release);
            self.release_node(node);
            freed += 1;
        }
        freed
    }

    /// Whether `node` is empty after its empty children were freed.
    fn prune(&self, id: u32, height: u32, freed: &mut u32) -> bool {
        let Some(node) = self.node(id) else { return true };
        let mut empty = true;
        for place in &node.entry {
            let word = place.load(Ordering::Acquire);
            if word == 0 {
                continue;
            }
            let child = (word as u32).wrapping_sub(1);
            if height > 1 && self.prune(child, height - 1, freed) {
                place.store(0, Ordering::Release);
                crate::crash::point("index.pruned");
                self.release_node(child);
                *freed += 1;
            } else {
                empty = false;
            }
        }
        empty
    }

    /// Calls `visit` with each node of `file`'s tree.
    pub fn for_each_node(&self, file: &FileRecord, visit: &mut impl FnMut(u32)) {
        fn down(segment: &Segment, id: u32, height: u32, visit: &mut impl FnMut(u32)) {
            let Some(node) = segment.node(id) else { return };
            visit(id);
            if height > 1 {
                for place in &node.entry {
                    if let Some(child) = (place.load(Ordering::Acquire) as u32).checked_sub(1) {
                        down(segment, child, height - 1, visit);
                    }
                }
            }
        }
        if let Some((height, node)) = unpack(file.root.load(Ordering::Acquire)) {
            down(self, node, height.min(NODE_HEIGHT_MAX), visit);
        }
    }

    fn take_node(&self, owner: Owner) -> Option<u32> {
        if crate::crash::refused("node") {
            return None;
        }
        let slot = self.client(owner.slot());
        for place in &slot.nodes {
            if place.load(Ordering::Relaxed) != 0
                && let Some(node) = place.swap(0, Ordering::Acquire).checked_sub(1)
            {
                return Some(node);
            }
        }
        let mut first = None;
        let hint = owner.slot().wrapping_mul(7);
        let keep = CACHED_NODES as u32 / 2;
        self.free_nodes().take(owner, hint, keep, |node| {
            if first.is_none() {
                first = Some(node);
            } else {
                self.give_node(node, owner);
            }
        });
        first
    }

    /// Gives back a node that is all zero.
    fn give_node(&self, node: u32, owner: Owner) {
        self.node_state(node).store(owner.raw(), Ordering::Relaxed);
        for place in &self.client(owner.slot()).nodes {
            let put = place.compare_exchange(0, node + 1, Ordering::Release, Ordering::Relaxed);
            if put.is_ok() {
                return;
            }
        }
        self.free_nodes().give(node);
    }

    /// Zeroes an unlinked node and gives it back to all.
    pub fn release_node(&self, id: u32) {
        if let Some(node) = self.node(id) {
            for place in &node.entry {
                place.store(0, Ordering::Relaxed);
            }
            self.free_nodes().give(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::anonymous;

    fn small() -> (Segment, rustix::fd::OwnedFd) {
        let mut geometry = Geometry::for_tiers(4096, &[64 << 18]);
        geometry.nodes = 256;
        anonymous(&geometry).unwrap()
    }

    #[test]
    fn heights_follow_the_block_number() {
        for (block, height) in [(0, 1), (1, 1), (63, 1), (64, 2), (4095, 2), (4096, 3)] {
            assert_eq!(height_for(block), height, "block {block}");
        }
        assert_eq!(height_for((1 << 46) - 1), 8);
    }

    #[test]
    fn entries_stay_in_place_while_the_tree_grows() {
        let (segment, _file) = small();
        let (file, me) = (segment.file(0), Owner::new(1, 0));
        let blocks = [0, 5, 63, 64, 70, 4095, 4096, 300_000, 1 << 30, 1 << 45];
        for (count, &block) in blocks.iter().enumerate() {
            segment.entry_or_insert(file, block, me).unwrap().store(block + 1, Ordering::Relaxed);
            for &earlier in &blocks[..=count] {
                let entry = segment.entry(file, earlier).unwrap();
                assert_eq!(entry.load(Ordering::Relaxed), earlier + 1);
            }
        }
        assert!(segment.entry(file, 1 << 44).is_none());
        let mut seen = Vec::new();
        segment.for_each_entry(file, 0, |block, _| {
            seen.push(block);
            true
        });
        assert_eq!(seen, blocks);
        seen.clear();
        segment.for_each_entry(file, 65, |block, _| {
            seen.push(block);
            true
        });
        assert_eq!(seen, blocks[4..]);
    }

    #[test]
    fn pruning_gives_every_node_back() {
        let (segment, _file) = small();
        let (file, me) = (segment.file(0), Owner::new(1, 0));
        let blocks: Vec<u64> = (0..40).map(|n| n * n * n * 17).collect();
        for &block in &blocks {
            segment.entry_or_insert(file, block, me).unwrap().store(9, Ordering::Relaxed);
        }
        let mut used = 0;
        segment.for_each_node(file, &mut |_| used += 1);
        assert!(used > 20);
        assert_eq!(segment.prune_index(file), 0);
        for &block in &blocks {
            segment.entry(file, block).unwrap().store(0, Ordering::Relaxed);
        }
        assert_eq!(segment.prune_index(file), used);
        assert_eq!(file.root.load(Ordering::Relaxed), 0);
        let cached =
            segment.client(1).nodes.iter().filter(|n| n.load(Ordering::Relaxed) != 0).count();
        assert_eq!(segment.free_nodes().available() as usize + cached, 256);
    }

    #[test]
    fn a_full_index_says_so() {
        let (segment, _file) = small();
        let (file, me) = (segment.file(0), Owner::new(1, 0));
        let made = (1..1000).take_while(|n| segment.entry_or_insert(file, n << 20, me).is_some());
        assert!((40..256).contains(&made.count()));
        assert!(segment.entry_or_insert(file, 0, me).is_some());
    }

    #[test]
    fn a_block_is_not_found_in_a_bucket_that_became_anothers() {
        let (segment, _file) = small();
        let me = Owner::new(1, 0);
        let put = |block: u64, word: u64| {
            let place = segment.entry_or_insert(segment.file(3), block, me).unwrap();
            place.store(word, Ordering::Relaxed);
        };
        put(1, Entry::resident(0, 5).encode());
        assert!(segment.place_of(3, 1, 5).is_some());
        // The block moved to another bucket, and its old one has block 2 now.
        put(1, Entry::resident(0, 6).encode());
        put(2, Entry::resident(0, 5).encode());
        assert!(segment.place_of(3, 1, 5).is_none());
        assert!(segment.place_of(3, 2, 5).is_some());
        put(1, 0);
        assert!(segment.place_of(3, 1, 5).is_none());
        assert!(segment.place_of(3, 1 << 30, 5).is_none());
    }
}
