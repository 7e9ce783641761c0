//! Shelves: a node's part of a tier, its space and its blocks.

use std::collections::{BTreeSet, VecDeque};

use forebay_placement::evict::Ghosts;
use forebay_placement::hotness::AccessStats;

use super::Simulation;
use crate::blocks::{BlockId, Place};
use crate::cluster::Cluster;
use crate::machine::Spot;

/// A node's part of a tier.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub capacity: u64,
    pub used: u64,
    pub peak: u64,
    pub list: Vec<BlockId>,
    pub dirty_blocks: u32,
    pub dirty: u64,
    /// Ranks that wait for room, and what they want.
    pub waiting: VecDeque<u32>,
    pub wanted: u64,
    pub demoting: bool,
    pub flushing: bool,
    /// Transfers that bring blocks here from below.
    pub promoting: u32,
    /// Blocks of this shelf that ranks of its node read, and that may deserve a faster tier.
    pub hot: BTreeSet<BlockId>,
    pub alive: bool,
    pub ghosts: Ghosts,
    /// The lowest hotness of its files, and until when that is good.
    pub(super) coldest: (f32, u64),
}

impl Shelf {
    /// An empty one, of the cluster's tier `level`.
    pub(super) fn new(cluster: &Cluster, level: usize) -> Self {
        let tier = &cluster.tiers[level];
        let all = tier.capacity * u64::from(tier.devices);
        // Of a shared tier each node has an equal part reserved.
        let part = if tier.shared { all / u64::from(cluster.nodes) } else { all };
        Self {
            capacity: part / cluster.block * cluster.block,
            used: 0,
            peak: 0,
            list: Vec::new(),
            dirty_blocks: 0,
            dirty: 0,
            waiting: VecDeque::new(),
            wanted: 0,
            demoting: false,
            flushing: false,
            promoting: 0,
            hot: BTreeSet::new(),
            alive: true,
            ghosts: Ghosts::new((part / cluster.block) as usize),
            coldest: (0.0, 0),
        }
    }
}

impl Simulation {
    pub fn shelf(&self, node: u32, level: usize) -> usize {
        node as usize * self.levels.len() + level
    }

    pub fn spot(&self, node: u32, level: usize, file: u32) -> Spot {
        Spot { tier: self.levels[level], node, file }
    }

    /// Gives a block a place in a level of its home.
    pub fn put(&mut self, id: BlockId, level: usize) {
        let size = self.run.cluster.block;
        let shelf = self.shelf(self.blocks[id].home, level);
        self.reserve(shelf, size);
        self.enlist(id, level);
        let (now_ms, block) = (self.now_ms(), &mut self.blocks[id]);
        let known =
            self.shelves[shelf].ghosts.remembers(u64::from(block.file), u64::from(block.number));
        block.access_stats = AccessStats::arriving(now_ms, known);
    }

    /// Takes space of a shelf.
    pub fn reserve(&mut self, shelf: usize, bytes: u64) {
        let shelf = &mut self.shelves[shelf];
        shelf.used += bytes;
        shelf.peak = shelf.peak.max(shelf.used);
        assert!(shelf.used <= shelf.capacity, "a tier above its capacity");
    }

    /// Makes a block one of a level of its home, in space that is reserved already.
    pub fn enlist(&mut self, id: BlockId, level: usize) {
        let at = self.shelf(self.blocks[id].home, level);
        let shelf = &mut self.shelves[at];
        let block = &mut self.blocks[id];
        block.place = Place::Tier(level as u8);
        block.at = shelf.list.len() as u32;
        shelf.list.push(id);
        shelf.dirty += block.dirty;
        shelf.dirty_blocks += u32::from(block.dirty > 0);
        let file = block.file;
        let file = self.blocks.file(file);
        file.levels[level] += 1;
        file.seen_in |= 1 << level;
    }

    /// Takes a block out of its level and frees its space.
    pub fn drop_block(&mut self, id: BlockId) {
        let Place::Tier(level) = self.blocks[id].place else { return };
        let at = self.shelf(self.blocks[id].home, usize::from(level));
        let shelf = &mut self.shelves[at];
        let block = &mut self.blocks[id];
        block.place = Place::Store;
        shelf.dirty -= block.dirty;
        shelf.dirty_blocks -= u32::from(block.dirty > 0);
        shelf.used -= self.run.cluster.block;
        let position = block.at;
        let file = block.file;
        shelf.list.swap_remove(position as usize);
        if let Some(&other) = shelf.list.get(position as usize) {
            self.blocks[other].at = position;
        }
        self.blocks.file(file).levels[usize::from(level)] -= 1;
    }
}
