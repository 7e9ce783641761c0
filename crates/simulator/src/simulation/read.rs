//! Reads, and what they bring up.

use forebay_placement::Destination;
use forebay_placement::admission::{Origin, Part, Room, Trail, Verdict};
use forebay_placement::cost::Speeds;
use forebay_placement::hotness::AccessStats;
use forebay_placement::leave::Keeps;
use forebay_placement::mix;
use forebay_placement::prefetch::{Limit, Predictor, WINDOW_BLOCKS, pays};

use super::{Rank, Simulation, Task};
use crate::blocks::{Block, BlockId, Place};
use crate::workload::Range;

impl Simulation {
    /// Goes on with a rank's read: the next blocks that are on one device.
    pub fn read_on(&mut self, rank: u32) {
        let node = self.ranks[rank as usize].node;
        let Some(mut portion) = self.ranks[rank as usize].todo.pop_front() else {
            self.end_step(rank);
            return;
        };
        let (first, _) = portion.blocks[0];
        let (home, place, file) =
            (self.blocks[first].home, self.blocks[first].place, self.blocks[first].file);
        let mut blocks = Vec::new();
        let mut total = 0;
        while let Some(&(id, bytes)) = portion.blocks.front()
            && self.blocks[id].place == place
            && (self.blocks[id].home == home || place == Place::Store)
        {
            portion.blocks.pop_front();
            total += bytes;
            blocks.push((id, bytes));
        }
        if !portion.blocks.is_empty() {
            self.ranks[rank as usize].todo.push_front(portion);
        }
        if self.is_managed() {
            let from = match place {
                Place::Tier(level) => Some(usize::from(level)),
                Place::Store => None,
            };
            let end_ns = self.pass(from, false, total);
            self.start_until(end_ns, Task::Read { rank, blocks });
            return;
        }
        let (way, latency_ns) = match place {
            Place::Tier(level) => {
                let spot = self.spot(home, usize::from(level), file);
                (self.machine.read(node, spot), self.machine.latency_ns(Some(spot.tier)))
            }
            Place::Store => (self.machine.read_direct(node, file), self.machine.latency_ns(None)),
        };
        self.ranks[rank as usize].latency_ns += latency_ns;
        self.start(way, total, Task::Read { rank, blocks });
    }

    /// Brings up what a rank will probably read next.
    pub(super) fn look_ahead(&mut self, rank: u32, range: Range) {
        if !self.run.strategy.prefetch || self.levels.is_empty() {
            return;
        }
        let size = self.run.cluster.block;
        let node = self.ranks[rank as usize].node;
        let hierarchy = self.hierarchy(node);
        let is_up = |simulation: &Self, id: BlockId| simulation.blocks[id].place == Place::Tier(0);
        let first = self.blocks.known(range.file, range.offset / size);
        let first_is_up = first.is_some_and(|id| is_up(self, id));
        let state = &mut self.ranks[rank as usize];
        if state.predictor.0 != range.file {
            state.predictor = (range.file, Predictor::default());
        }
        let predictor = &mut state.predictor.1;
        let touched = predictor.on_touch(range.offset, range.bytes, first_is_up, size);
        state.account.was_used(touched.used * size);
        state.account.was_read(touched.blocks * size);
        let mut blocks = Vec::new();
        loop {
            let state = &mut self.ranks[rank as usize];
            let more = (state.account.balance() / size).min(WINDOW_BLOCKS);
            let limit = Limit { depth: WINDOW_BLOCKS, more };
            let Some(ahead) = state.predictor.1.ask(limit, size) else { break };
            let asked = blocks.len();
            for (offset, bytes) in ahead.pieces() {
                let numbers = offset / size..(offset + bytes).div_ceil(size);
                let known = numbers.filter_map(|number| self.blocks.known(range.file, number));
                blocks.extend(known.filter(|&id| {
                    let from = match self.blocks[id].place {
                        Place::Tier(level) => Destination::Tier(level.into()),
                        Place::Store => Destination::Store,
                    };
                    pays(&hierarchy, from, size)
                }));
            }
            let state = &mut self.ranks[rank as usize];
            let charged = (blocks.len() - asked) as u64;
            state.predictor.1.charge(state.account.take(charged * size) / size);
        }
        blocks.dedup();
        self.stage_in(node, &blocks);
    }

    pub(super) fn has_read(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        let (now_ms, eviction) = (self.now_ms(), self.run.strategy.eviction);
        self.touch(blocks);
        for &(id, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.access_stats = eviction.used(block.access_stats, now_ms);
            if block.lost {
                self.outcome.unreadable += bytes;
                continue;
            }
            self.outcome.read += bytes;
            if let Place::Tier(level) = block.place {
                self.outcome.tiers[usize::from(level)].read += bytes;
            }
        }
        let node = self.ranks[rank as usize].node;
        match self.blocks[blocks[0].0].place {
            Place::Tier(_) if self.is_managed() => {
                for &(id, _) in blocks {
                    self.note_use(id);
                }
            }
            Place::Tier(_) => self.promote(node, blocks),
            Place::Store => self.admit(rank, blocks),
        }
        self.read_on(rank);
    }

    /// Blocks that were just read from the store come up to the fastest tier of the reader's node,
    /// as far as that admits them. What was read as a whole is there; the rest is read again.
    fn admit(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        if !self.run.strategy.promote || self.levels.is_empty() {
            return;
        }
        let Rank { node, reading, .. } = self.ranks[rank as usize];
        let (size, now_ms) = (self.run.cluster.block, self.now_ms());
        let speeds = Speeds::of(&self.hierarchy(node));
        let Some(&store) = speeds.paces().last() else { return };
        let mut in_part = Vec::new();
        for &(id, bytes) in blocks {
            let Block { file, number, valid, place, .. } = self.blocks[id];
            if place != Place::Store || !self.may_come(id) {
                continue;
            }
            let within = reading.offset.saturating_sub(u64::from(number) * size);
            // No kernel has a copy here.
            let part = Part { within, bytes, stored: valid, block: size, is_uncached: true };
            let room = self.room(node);
            let (trail, key) = self.trail(node, file, number);
            let verdict = trail.admits(key, &part, room, || store);
            *trail = trail.after(key, &part, Origin::Device, store.reading(bytes) as u64);
            match verdict {
                Verdict::Through => {}
                _ if bytes < valid => in_part.push(id),
                _ if !self.has_space(node, size) => {}
                _ => {
                    self.blocks[id].home = node;
                    self.put(id, 0);
                    let arrived = AccessStats::arriving(now_ms, verdict == Verdict::Again);
                    self.blocks[id].access_stats = arrived.counted();
                    self.outcome.tiers[0].promoted += valid;
                }
            }
        }
        self.stage_in(node, &in_part);
        self.make_room(self.shelf(node, 0));
    }

    fn has_space(&self, node: u32, bytes: u64) -> bool {
        self.hierarchy(node).tier(0).is_some_and(|tier| tier.free >= bytes)
    }

    /// The room of a node's fastest tier for copies.
    fn room(&self, node: u32) -> Room {
        let size = self.run.cluster.block;
        let hierarchy = self.hierarchy(node);
        let Some(tier) = hierarchy.tier(0) else { return Room::None };
        let count = |bytes: u64| (bytes / size) as u32;
        let low = (tier.capacity as f64 * self.watermarks().low) as u64;
        let below = || self.keeps(node, 0) == Keeps::Read;
        Room::of(count(tier.free), count(low).max(1), count(tier.capacity), below)
    }

    /// What a node remembers of the reads of a block, and the block's key: as in the node manager's
    /// segment, blocks share as many words as the tiers have room for.
    pub(crate) fn trail(&mut self, node: u32, file: u32, number: u32) -> (&mut Trail, u16) {
        let whose = mix(u64::from(file));
        let size = self.run.cluster.block;
        let first = self.shelf(node, 0);
        let of_node = &self.shelves[first..first + self.levels.len()];
        let words: u64 = of_node.iter().map(|shelf| shelf.capacity / size).sum();
        let place = (whose >> 32).wrapping_add(u64::from(number)) % words.max(1);
        let key = (mix(whose ^ u64::from(number)) >> 48) as u16;
        (self.trails.entry((node, place)).or_default(), key)
    }

    /// Counts for their files that blocks are used: one that no tier has by the share that is read.
    pub(super) fn touch(&mut self, blocks: &[(BlockId, u64)]) {
        let (now_ms, size) = (self.now_ms(), self.run.cluster.block);
        let half_life_ms = self.run.strategy.half_life_ms;
        for &(id, bytes) in blocks {
            let Block { file, place, .. } = self.blocks[id];
            let accesses = match place {
                Place::Store => bytes as f32 / size as f32,
                Place::Tier(_) => 1.0,
            };
            let file = self.blocks.file(file);
            file.score = file.score.plus(accesses, now_ms, half_life_ms);
        }
    }
}
