//! The data organizer's decisions carried out on modelled tiers: room is made, blocks are flushed,
//! demoted, promoted and dropped. What to do is decided by `placement`.

use forebay_placement::evict::{Candidate, choose};
use forebay_placement::flush_order::{Extent, Limits, order};
use forebay_placement::hotness::AccessStats;
use forebay_placement::leave::{
    CHOICE, Fate, Keeps, Reads, Victims, WayDown, fate, keeping_pays, way_down,
};
use forebay_placement::organizer::{Event, Settings, Task as Decided, organize};
use forebay_placement::promote::{self, Level, exchanges, promoted, promotes};
use forebay_placement::{Destination, Plan, Watermarks, Worth, policy};

use crate::blocks::{Block, BlockId, Place};
use crate::simulation::{Simulation, Task};
use crate::strategy::Trigger;

/// Bytes that move or are flushed at once, by each worker, but at least one block.
const BATCH_BYTES: u64 = 64 << 20;

impl Simulation {
    /// Blocks of a batch.
    fn batch(&self) -> usize {
        (BATCH_BYTES / self.run.cluster.block).max(1) as usize
    }

    /// What the data organizer of a node decides about an event.
    fn decide(&self, node: u32, event: &Event<'_>) -> impl Iterator<Item = Decided> + use<> {
        let hierarchy = self.hierarchy(node);
        let settings = Settings {
            marks: self.watermarks(),
            unit: self.run.cluster.block,
            moves_down: self.run.strategy.demote,
        };
        let tasks: Vec<Decided> = organize(event, &hierarchy, &settings).iter().collect();
        tasks.into_iter()
    }

    /// Makes room on a shelf if its watermarks or waiting ranks want it. One batch at a time, as
    /// the node manager has one demoter for each tier.
    pub fn make_room(&mut self, shelf: usize) {
        let state = &self.shelves[shelf];
        // No rank needs room any more when all have ended.
        if state.demoting || !state.alive || self.ended {
            return;
        }
        let (node, level) = self.owner(shelf);
        let wanted = state.wanted;
        let mut tasks = self.decide(node, &Event::Space { tier: level, wanted });
        match tasks.next() {
            Some(Decided::Demote { bytes, .. }) => self.demote(shelf, None, bytes),
            _ => self.wake(shelf),
        }
    }

    /// Makes the room that a plan wants: Move, ReOrganize, Evict of the paper's appendix.
    pub fn make_room_for(&mut self, node: u32, plan: Plan) {
        for task in self.decide(node, &Event::Placed(&plan)) {
            if let Decided::Demote { from, to, bytes } = task {
                let shelf = self.shelf(node, from);
                if !self.shelves[shelf].demoting {
                    self.demote(shelf, Some(to), bytes);
                }
            }
        }
    }

    /// The periodic look at a node's tiers.
    pub fn look(&mut self, node: u32) {
        for task in self.decide(node, &Event::Periodic) {
            match task {
                Decided::Flush { tier, .. } => self.flush(self.shelf(node, tier)),
                Decided::Demote { from, .. } => self.make_room(self.shelf(node, from)),
            }
        }
    }

    /// Takes blocks out of a shelf: the first batch of what is to leave. Where a plan did not say
    /// where to, that is decided for the batch, as in the node manager: all at once would often
    /// find no tier with so much room but the store.
    fn demote(&mut self, shelf: usize, to: Option<Destination>, bytes: u64) {
        let (node, level) = self.owner(shelf);
        let size = self.run.cluster.block;
        let count = bytes.div_ceil(size) as usize;
        // No program of a trace pins.
        let Victims { dropped, kept, mut dirty, pinned: _ } = self.victims(shelf, count);
        let (now_ms, depth) = (self.now_ms(), self.run.strategy.queue_depth);
        for &id in &dropped {
            let block = &self.blocks[id];
            self.outcome.tiers[level].evicted += block.valid;
            self.shelves[shelf].ghosts.left(u64::from(block.file), u64::from(block.number));
            self.drop_block(id);
            self.blocks[id].access_stats = AccessStats::arriving(now_ms, false);
        }
        dirty.truncate(self.batch());
        if !kept.is_empty() {
            // The dirty ones leave when these have.
            self.shelves[shelf].demoting = true;
            self.start_move(node, Place::Tier(level as u8), level + 1, &kept, depth);
        } else if !dirty.is_empty() {
            dirty.sort_unstable_by_key(|id| (self.blocks[*id].file, self.blocks[*id].number));
            let batch = dirty.len() as u64 * size;
            let way = match to {
                Some(Destination::Tier(below)) => WayDown::Tier(below),
                Some(Destination::Store) => WayDown::Flush,
                None => {
                    let moves_down = self.run.strategy.demote || self.shelves[shelf].wanted > 0;
                    way_down(&self.hierarchy(node), level, batch, moves_down)
                }
            };
            match way {
                WayDown::Tier(below) => {
                    self.shelves[shelf].demoting = true;
                    self.start_move(node, Place::Tier(level as u8), below, &dirty, depth);
                }
                WayDown::Flush => {
                    self.shelves[shelf].demoting = true;
                    self.start_flush(node, level, &dirty, true);
                }
                WayDown::Wait => {}
            }
        }
        if !dropped.is_empty() {
            self.wake(shelf);
        } else if kept.is_empty()
            && dirty.is_empty()
            && !self.shelves[shelf].flushing
            && self.nothing_moves(shelf)
        {
            self.write_around(shelf);
        }
    }

    /// Blocks have left RAM, or were to, since the ranks of their node had `written` so much.
    pub(crate) fn note_exposure(&mut self, node: u32, blocks: usize, written: u64) {
        let moved = blocks as u64 * self.run.cluster.block;
        let (now_ms, node) = (self.now_ms(), node as usize);
        let half_life_ms = self.run.strategy.half_life_ms;
        self.exposures[node].note(moved, self.written[node] - written, now_ms, half_life_ms);
    }

    /// When room is made on a tier, and how much.
    pub(crate) fn watermarks(&self) -> Watermarks {
        self.run.strategy.watermarks
    }

    /// Which clean blocks go to the level below when they leave one.
    pub(crate) fn keeps(&self, node: u32, level: usize) -> Keeps {
        let hierarchy = self.hierarchy(node);
        let pays = || keeping_pays(&hierarchy, level + 1, self.run.cluster.block);
        Keeps::of(hierarchy.tier(level + 1).as_ref(), self.watermarks(), pays)
    }

    /// Blocks of a shelf that are to leave it, first those that should leave first.
    fn victims(&mut self, shelf: usize, count: usize) -> Victims<BlockId> {
        let may_leave = |id: &&BlockId| {
            let block = &self.blocks[**id];
            block.writers == 0 && !block.moving && !block.flushing
        };
        // Looked up only where it matters: a shelf may have many blocks.
        let goes_by = policy(&self.run.strategy.policy).filter(|policy| policy.compares_hotness());
        let worth = |file| match goes_by {
            Some(policy) => {
                let bytes = self.blocks.bytes(file, self.run.cluster.block);
                policy.worth(self.hotness(file), bytes, self.shelves[shelf].capacity)
            }
            None => Worth::USUAL,
        };
        let mut candidates: Vec<Candidate> = self.shelves[shelf]
            .list
            .iter()
            .filter(may_leave)
            .map(|&id| Candidate {
                id,
                access_stats: self.blocks[id].access_stats,
                worth: worth(self.blocks[id].file),
                ..Candidate::default()
            })
            .collect();
        let chosen =
            choose(self.run.strategy.eviction, &mut candidates, count * CHOICE, self.now_ms());
        for candidate in candidates.iter().filter(|candidate| !candidate.leaves) {
            self.blocks[candidate.id].access_stats = candidate.access_stats;
        }
        let (node, level) = self.owner(shelf);
        let keeps = self.keeps(node, level);
        let mut room = match self.hierarchy(node).tier(level + 1) {
            Some(below) => (below.free / self.run.cluster.block) as usize,
            None => 0,
        };
        room = room.min(self.batch());
        let mut victims = Victims::default();
        for id in candidates[..chosen].iter().map(|candidate| candidate.id) {
            let Block { file, number, dirty, access_stats, .. } = self.blocks[id];
            let hotness = self.hotness(file);
            let (trail, key) = self.trail(node, file, number);
            let is_copy = trail.is_from_device(key);
            let fate = fate(dirty > 0, Reads::of(hotness, access_stats.is_main(), is_copy), keeps);
            let fate = match fate {
                Fate::Kept if victims.kept.len() >= room => Fate::Dropped,
                fate => fate,
            };
            victims.push(fate, id);
        }
        victims.cheapest(count)
    }

    fn nothing_moves(&self, shelf: usize) -> bool {
        let is_quiet = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.writers == 0 && !block.moving && !block.flushing
        };
        self.shelves[shelf].list.iter().all(is_quiet)
    }

    /// No room can be made: ranks that wait write to the store.
    pub fn write_around(&mut self, shelf: usize) {
        while let Some(rank) = self.next_waiting(shelf) {
            if let Some(portion) = self.ranks[rank as usize].todo.front_mut() {
                portion.to = Destination::Store;
            }
            self.write_on(rank);
        }
    }

    /// Moves blocks of a node to another level, where space is taken now.
    fn start_move(&mut self, node: u32, from: Place, to: usize, blocks: &[BlockId], requests: u32) {
        let size = self.run.cluster.block;
        let target = self.shelf(node, to);
        let file = self.blocks[blocks[0]].file;
        let mut moving = Vec::with_capacity(blocks.len());
        let mut bytes = 0;
        for &id in blocks {
            self.reserve(target, size);
            let block = &mut self.blocks[id];
            block.moving = true;
            bytes += block.valid;
            moving.push((id, block.version));
        }
        let target = self.spot(node, to, file);
        let way = match from {
            Place::Tier(level) => {
                let source = self.spot(self.blocks[blocks[0]].home, usize::from(level), file);
                self.machine.transfer(source, target)
            }
            Place::Store => self.machine.stage_in(target),
        };
        let way = way.at_once(requests);
        let written = self.written[node as usize];
        self.start(way, bytes, Task::Move { node, from, to, blocks: moving, written });
    }

    /// Blocks have been copied; those that changed meanwhile stay where they are.
    pub fn moved(&mut self, node: u32, from: Place, to: usize, blocks: &[(BlockId, u32)]) {
        let size = self.run.cluster.block;
        let target = self.shelf(node, to);
        let now_ms = self.now_ms();
        for &(id, version) in blocks {
            let block = &mut self.blocks[id];
            block.moving = false;
            if block.version != version || block.writers > 0 || block.place != from {
                self.shelves[target].used -= size;
                continue;
            }
            let valid = block.valid;
            match from {
                Place::Tier(level) if usize::from(level) < to => {
                    self.outcome.tiers[usize::from(level)].demoted += valid;
                    block.access_stats =
                        AccessStats::arriving(now_ms, false).with_moves(block.access_stats.moves());
                }
                _ => {
                    self.outcome.tiers[to].promoted += valid;
                    block.access_stats = match from {
                        Place::Tier(_) => promoted(block.access_stats, now_ms),
                        Place::Store => AccessStats::arriving(now_ms, false).counted(),
                    };
                }
            }
            self.drop_block(id);
            self.blocks[id].home = node;
            self.enlist(id, to);
        }
        match from {
            Place::Tier(level) if usize::from(level) < to => {
                let source = self.shelf(node, usize::from(level));
                self.shelves[source].demoting = false;
                self.wake(source);
                self.make_room(source);
            }
            _ => {
                self.shelves[target].promoting -= 1;
                for level in to + 1..self.levels.len() {
                    self.promote_from(node, level);
                }
            }
        }
        self.make_room(target);
        if self.ended {
            // Blocks that were on their way when all that is dirty began to be flushed.
            self.flush_all();
        }
    }

    /// Flushes on all shelves: all tiers concurrently.
    pub fn flush_all(&mut self) {
        for shelf in 0..self.shelves.len() {
            self.flush(shelf);
        }
    }

    /// Flushes blocks of a shelf that are due, in file order; one batch at a time, as the node
    /// manager has one flusher for each tier.
    pub fn flush(&mut self, shelf: usize) {
        let state = &self.shelves[shelf];
        if state.flushing || state.dirty_blocks == 0 || !state.alive {
            return;
        }
        let size = self.run.cluster.block;
        let mut due: Vec<Extent> = { state.list.iter() }
            .filter(|&&id| self.is_due(id))
            .map(|&id| {
                let block = &self.blocks[id];
                let offset = u64::from(block.number) * size;
                Extent { file: block.file, offset, bytes: block.dirty, id }
            })
            .collect();
        let limits = Limits { most: self.run.cluster.store.flush_request, ..Limits::default() };
        let mut ends = 0;
        let mut first = None;
        for write in order(&mut due, limits) {
            // A batch goes to one file's servers.
            let is_of_file = *first.get_or_insert(write.file) == write.file;
            if !is_of_file || write.extents.start >= self.batch() {
                break;
            }
            ends = write.extents.end;
        }
        due.truncate(ends.min(self.batch()));
        let batch: Vec<BlockId> = due.into_iter().map(|extent| extent.id).collect();
        if batch.is_empty() {
            return;
        }
        let (node, level) = self.owner(shelf);
        self.shelves[shelf].flushing = true;
        self.start_flush(node, level, &batch, false);
    }

    fn is_due(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        if block.dirty == 0 || block.writers > 0 || block.moving || block.flushing {
            return false;
        }
        match self.run.strategy.trigger {
            Trigger::Never => false,
            _ if self.ended => true,
            Trigger::PerOperation => true,
            Trigger::PerFile => !self.blocks.is_open(block.file),
            Trigger::OnExit => false,
            Trigger::Periodic(period_ns) => self.now_ns() - block.written_ns >= period_ns,
        }
    }

    fn start_flush(&mut self, node: u32, level: usize, blocks: &[BlockId], evict: bool) {
        let mut total = 0;
        let mut flushing = Vec::with_capacity(blocks.len());
        for &id in blocks {
            let block = &mut self.blocks[id];
            block.flushing = true;
            total += block.dirty;
            flushing.push((id, block.version, block.dirty));
        }
        let spot = self.spot(node, level, self.blocks[blocks[0]].file);
        let way = self.machine.flush(spot, self.run.strategy.movers);
        let way = way.at_once(self.run.strategy.queue_depth);
        let written = self.written[node as usize];
        self.start(way, total, Task::Flush { node, level, blocks: flushing, evict, written });
    }

    /// Blocks are on the store. Those that changed meanwhile stay dirty.
    pub fn flushed(
        &mut self,
        node: u32,
        level: usize,
        blocks: &[(BlockId, u32, u64)],
        evict: bool,
    ) {
        let shelf = self.shelf(node, level);
        self.flush_end_ns = self.now_ns();
        for &(id, version, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.flushing = false;
            self.outcome.flushed += bytes;
            if block.version != version {
                continue;
            }
            block.dirty = 0;
            self.shelves[shelf].dirty -= bytes;
            self.shelves[shelf].dirty_blocks -= 1;
            self.outcome.safe += bytes;
            if evict && self.blocks[id].writers == 0 {
                self.outcome.tiers[level].evicted += self.blocks[id].valid;
                self.drop_block(id);
            }
        }
        match evict {
            true => {
                self.shelves[shelf].demoting = false;
                self.wake(shelf);
            }
            false => {
                self.shelves[shelf].flushing = false;
                self.flush(shelf);
            }
        }
        self.make_room(shelf);
    }

    /// Blocks that were just read from a tier come up to the fastest one of the reader's node for
    /// which they are hot enough, as soon as that takes a batch.
    pub fn promote(&mut self, node: u32, blocks: &[(BlockId, u64)]) {
        let Place::Tier(below) = self.blocks[blocks[0].0].place else { return };
        if !self.run.strategy.promote || below == 0 {
            return;
        }
        let shelf = self.shelf(node, usize::from(below));
        self.shelves[shelf].hot.extend(blocks.iter().map(|(id, _)| *id));
        self.promote_from(node, usize::from(below));
    }

    /// Moves up what is hot enough of that which a node's ranks have read from a level, to the
    /// fastest tier that takes it. At most one batch is on its way to each tier.
    fn promote_from(&mut self, node: u32, below: usize) {
        let shelf = self.shelf(node, below);
        for to in 0..below {
            let hot: Vec<BlockId> = self.shelves[shelf].hot.iter().copied().collect();
            if hot.is_empty() || self.promote_to(node, below, to, &hot) {
                return;
            }
        }
        // What no tier takes now is looked at again when it is read again.
        self.shelves[shelf].hot.clear();
    }

    /// Brings blocks up to the fastest tier of a node, as far as there is room to spare.
    pub fn stage_in(&mut self, node: u32, blocks: &[BlockId]) {
        let target = self.shelf(node, 0);
        let Some(tier) = self.hierarchy(node).tier(0) else { return };
        if self.shelves[target].promoting > 0 || Level::of(&tier, self.watermarks(), 0).wants_room {
            return;
        }
        let is_above = |place: Place| place == Place::Tier(0);
        let below = blocks.iter().find(|id| !is_above(self.blocks[**id].place));
        let Some((from, home)) = below.map(|id| (self.blocks[*id].place, self.blocks[*id].home))
        else {
            return;
        };
        let room = (tier.free / self.run.cluster.block) as usize;
        let staged: Vec<BlockId> = { blocks.iter().copied() }
            .filter(|id| {
                let block = &self.blocks[*id];
                block.place == from && (from == Place::Store || block.home == home)
            })
            .filter(|id| self.may_come(*id))
            .take(room.min(self.batch()))
            .collect();
        if !staged.is_empty() {
            self.shelves[target].promoting += 1;
            self.start_move(node, from, 0, &staged, self.run.strategy.queue_depth);
        }
    }

    /// Whether a block has content, and nothing else is being done to it.
    pub(crate) fn may_come(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        let quiet = block.writers == 0 && !block.moving && !block.flushing;
        quiet && !block.lost && block.valid > 0
    }

    /// Moves those of the blocks of a level up that are hot enough; whether the tier is at it.
    fn promote_to(&mut self, node: u32, below: usize, to: usize, blocks: &[BlockId]) -> bool {
        let (source, target) = (self.shelf(node, below), self.shelf(node, to));
        let Some(tier) = self.hierarchy(node).tier(to) else { return false };
        let under_way = self.shelves[target].promoting as usize;
        if under_way >= self.batch() {
            return true;
        }
        // Half of the low watermark is left to writers, as the node manager leaves it.
        let marks = self.watermarks();
        let writers = (tier.capacity as f64 * marks.low) as u64 / 2 + self.shelves[target].wanted;
        let room = (tier.free.saturating_sub(writers) / self.run.cluster.block) as usize;
        let uses = self.shelves[target].list.iter().map(|id| self.blocks[*id].access_stats.count());
        let level = Level::of(&tier, marks, uses.min().unwrap_or(0));
        let compares = policy(&self.run.strategy.policy).is_some_and(|of| of.compares_hotness());
        let from = Place::Tier(below as u8);
        let hot: Vec<BlockId> = { blocks.iter().copied() }
            .filter(|id| self.blocks[*id].place == from && self.may_come(*id))
            .filter(|id| {
                let block = promote::Block::of(self.blocks[*id].access_stats, false);
                promotes(&block, &level) || compares && exchanges(&block, &level)
            })
            .take(room.min(self.batch() - under_way))
            .collect();
        if hot.is_empty() {
            return false;
        }
        // Each is there as soon as its own requests are done.
        let requests = self.run.strategy.queue_depth / hot.len() as u32;
        for id in &hot {
            self.shelves[source].hot.remove(id);
            self.shelves[target].promoting += 1;
            self.start_move(node, from, to, &[*id], requests);
        }
        true
    }

    fn owner(&self, shelf: usize) -> (u32, usize) {
        let levels = self.levels.len();
        ((shelf / levels) as u32, shelf % levels)
    }
}
