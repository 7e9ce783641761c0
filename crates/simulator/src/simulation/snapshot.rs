//! What the placement engine and the data organizer are shown of a node's tiers.

use forebay_placement::{Costs, Hierarchy, TIERS_MAX, TierSnapshot};

use super::Simulation;
use crate::blocks::BlockId;

/// How long a tier's lowest hotness is good for: finding it means to look at all blocks.
const COLDEST_NS: u64 = 100_000_000;

impl Simulation {
    /// A node's tiers as its placement engine and its data organizer see them.
    pub fn hierarchy(&self, node: u32) -> Hierarchy {
        let cluster = &self.run.cluster;
        let mut tiers = [TierSnapshot::default(); TIERS_MAX];
        for (level, &tier) in self.levels.iter().enumerate() {
            let shelf = &self.shelves[self.shelf(node, level)];
            let tier = &cluster.tiers[tier];
            let capacity = if shelf.alive { shelf.capacity } else { 0 };
            let seen = |bandwidth: u64| match tier.shared {
                true => self.seen(bandwidth * u64::from(tier.devices)),
                false => bandwidth * u64::from(tier.devices),
            };
            tiers[level] = TierSnapshot {
                capacity,
                free: capacity.saturating_sub(shelf.used),
                kept: if level == 0 { self.manager.kept_free } else { 0 },
                dirty: shelf.dirty,
                read_bandwidth: seen(tier.device.read_bandwidth),
                write_bandwidth: seen(tier.device.write_bandwidth),
                latency_ns: tier.device.latency_ns,
                sharers: if tier.shared { cluster.nodes } else { 1 },
                ..TierSnapshot::default()
            };
        }
        let store = &cluster.store;
        let below = TierSnapshot {
            capacity: u64::MAX,
            free: u64::MAX,
            read_bandwidth: self.seen(store.device.read_bandwidth * u64::from(store.devices)),
            write_bandwidth: self.seen(store.device.write_bandwidth * u64::from(store.devices)),
            latency_ns: store.device.latency_ns,
            sharers: cluster.nodes,
            ..TierSnapshot::default()
        };
        let hierarchy = Hierarchy::new(&tiers[..self.levels.len()]).expect("few tiers");
        let strategy = &self.run.strategy;
        let measured =
            || self.exposures[node as usize].permille(self.now_ms(), strategy.half_life_ms);
        let exposed_permille = strategy.exposed.permille(measured);
        hierarchy.with_store(below).with_costs(Costs { model: strategy.costs, exposed_permille })
    }

    /// The same as placement engines see it: what the store has is as good as free.
    pub fn as_ranks_see(&self, node: u32) -> Hierarchy {
        let mut hierarchy = self.hierarchy(node);
        for (level, tier) in hierarchy.tiers_mut().iter_mut().enumerate() {
            let shelf = &self.shelves[self.shelf(node, level)];
            let is_clean = |id: &&BlockId| {
                let block = &self.blocks[**id];
                block.dirty == 0 && block.writers == 0 && block.valid > 0
            };
            let clean = shelf.list.iter().filter(is_clean).count() as u64;
            tier.free = (tier.free + clean * self.run.cluster.block).min(tier.capacity);
        }
        hierarchy
    }

    /// What all nodes together can have of the bandwidth of shared devices, through their links.
    fn seen(&self, bandwidth: u64) -> u64 {
        match self.run.cluster.link {
            0 => bandwidth,
            link => bandwidth.min(link.saturating_mul(u64::from(self.run.cluster.nodes))),
        }
    }

    /// The hotness of a file now.
    pub fn hotness(&self, file: u32) -> f32 {
        let half_life_ms = self.run.strategy.half_life_ms;
        self.blocks.hotness(file, self.run.cluster.block, self.now_ms(), half_life_ms)
    }

    /// Looks for the lowest hotness in each of a node's tiers, unless that was done just now.
    pub fn refresh_coldest(&mut self, node: u32) {
        let now_ns = self.now_ns();
        for level in 0..self.levels.len() {
            let shelf = self.shelf(node, level);
            if self.shelves[shelf].coldest.1 <= now_ns {
                let files = self.shelves[shelf].list.iter().map(|id| self.blocks[*id].file);
                let hotness = files.map(|file| self.hotness(file));
                let coldest = hotness.reduce(f32::min).unwrap_or(0.0);
                self.shelves[shelf].coldest = (coldest, now_ns + COLDEST_NS);
            }
        }
    }

    /// Adds what [`Simulation::refresh_coldest`] has found.
    pub fn add_coldest(&self, node: u32, hierarchy: &mut Hierarchy) {
        for (level, tier) in hierarchy.tiers_mut().iter_mut().enumerate() {
            tier.coldest = self.shelves[self.shelf(node, level)].coldest.0;
        }
    }
}
