//! Writes: the placement engine is asked, blocks get a place, and ranks wait for room.

use forebay_placement::{Destination, Request};

use super::rank::Portion;
use super::{Simulation, Task};
use crate::blocks::{BlockId, Place};
use crate::strategy::Trigger;
use crate::workload::Range;

impl Simulation {
    /// Asks the placement engine where the new blocks of a write go; resident ones stay.
    pub(super) fn plan_write(&mut self, rank: u32, range: Range) {
        let node = self.ranks[rank as usize].node;
        let size = self.run.cluster.block;
        let blocks = self.blocks_of(rank, range);
        let fresh = blocks.iter().filter(|(id, _)| self.blocks[*id].place == Place::Store).count();
        let mut pieces = Vec::new();
        if fresh > 0 {
            let request = self.request(range.file, fresh as u64 * size, u64::from(rank));
            let mut hierarchy = self.as_ranks_see(node);
            if self.run.strategy.policy == "hot-data" {
                self.refresh_coldest(node);
                self.add_coldest(node, &mut hierarchy);
            }
            let plan = self.memos[node as usize].plan(&hierarchy, &request);
            self.make_room_for(node, plan);
            pieces.extend(plan.pieces().iter().map(|piece| (piece.to, piece.bytes)));
        }
        let mut pieces = pieces.into_iter();
        let (mut to, mut left) = (Destination::Store, 0);
        let todo = &mut self.ranks[rank as usize].todo;
        for (id, bytes) in blocks {
            let target = match self.blocks[id].place {
                Place::Tier(level) => Destination::Tier(usize::from(level)),
                Place::Store => {
                    while left == 0 {
                        (to, left) = pieces.next().unwrap_or((Destination::Store, u64::MAX));
                    }
                    // A piece that ends within a block ends behind it: blocks have one place.
                    left = left.saturating_sub(size);
                    to
                }
            };
            match todo.back_mut() {
                Some(portion) if portion.to == target => portion.blocks.push_back((id, bytes)),
                _ => todo.push_back(Portion { to: target, blocks: [(id, bytes)].into() }),
            }
        }
    }

    fn request(&mut self, file: u32, bytes: u64, rank: u64) -> Request {
        let seed = self.run.seed ^ (u64::from(file) << 32 | rank);
        let size = self.run.cluster.block;
        let file_hotness = self.hotness(file);
        let file = self.blocks.file(file);
        Request {
            bytes,
            file_bytes: file.placed() * size,
            dispersion: file.dispersion(),
            file_hotness,
            seed,
            ..Request::default()
        }
    }

    /// Goes on with a rank's write: the next portion that is for one device, or a wait for room.
    pub fn write_on(&mut self, rank: u32) {
        if self.is_managed() {
            return self.write_staged(rank);
        }
        let node = self.ranks[rank as usize].node;
        let size = self.run.cluster.block;
        let Some(mut portion) = self.ranks[rank as usize].todo.pop_front() else {
            self.end_step(rank);
            return;
        };
        let (first, _) = portion.blocks[0];
        let mut blocks = Vec::new();
        if let Place::Tier(level) = self.blocks[first].place {
            // In place, wherever that is.
            let (home, place) = (self.blocks[first].home, self.blocks[first].place);
            while let Some(&(id, bytes)) = portion.blocks.front()
                && (self.blocks[id].home, self.blocks[id].place) == (home, place)
            {
                portion.blocks.pop_front();
                blocks.push((id, bytes));
            }
            self.write_to_tier(rank, home, usize::from(level), blocks);
        } else if let Destination::Tier(level) = portion.to
            && self.shelves[self.shelf(node, level)].alive
        {
            let shelf = self.shelf(node, level);
            while let Some(&(id, bytes)) = portion.blocks.front()
                && self.blocks[id].place == Place::Store
                && self.shelves[shelf].used + size <= self.shelves[shelf].capacity
            {
                portion.blocks.pop_front();
                self.blocks[id].home = node;
                self.put(id, level);
                blocks.push((id, bytes));
            }
            if blocks.is_empty() {
                self.wait_for_room(rank, shelf, portion);
                return;
            }
            self.write_to_tier(rank, node, level, blocks);
            self.make_room(shelf);
        } else {
            while let Some(&(id, bytes)) = portion.blocks.front()
                && self.blocks[id].place == Place::Store
            {
                portion.blocks.pop_front();
                blocks.push((id, bytes));
            }
            let bytes = blocks.iter().map(|(_, bytes)| bytes).sum();
            let way = self.machine.write_direct(node, self.blocks[first].file);
            self.ranks[rank as usize].latency_ns += self.machine.latency_ns(None);
            self.start(way, bytes, Task::Direct { rank, blocks });
        }
        if !portion.blocks.is_empty() {
            self.ranks[rank as usize].todo.push_front(portion);
        }
    }

    fn write_to_tier(&mut self, rank: u32, home: u32, level: usize, blocks: Vec<(BlockId, u64)>) {
        let mut total = 0;
        for &(id, bytes) in &blocks {
            self.blocks[id].writers += 1;
            total += bytes;
        }
        let spot = self.spot(home, level, self.blocks[blocks[0].0].file);
        let way = self.machine.write(self.ranks[rank as usize].node, spot);
        self.ranks[rank as usize].latency_ns += self.machine.latency_ns(Some(spot.tier));
        self.start(way, total, Task::Write { rank, blocks });
    }

    fn wait_for_room(&mut self, rank: u32, shelf: usize, portion: Portion) {
        let wanted = portion.blocks.len() as u64 * self.run.cluster.block;
        let state = &mut self.ranks[rank as usize];
        state.wanted = wanted;
        state.todo.push_front(portion);
        self.shelves[shelf].waiting.push_back(rank);
        self.shelves[shelf].wanted += wanted;
        self.make_room(shelf);
    }

    /// Lets ranks go on whose block fits now.
    pub fn wake(&mut self, shelf: usize) {
        let size = self.run.cluster.block;
        while self.shelves[shelf].used + size <= self.shelves[shelf].capacity {
            let Some(rank) = self.next_waiting(shelf) else { return };
            self.write_on(rank);
        }
    }

    /// Takes the first rank out of a shelf's queue.
    pub fn next_waiting(&mut self, shelf: usize) -> Option<u32> {
        let rank = self.shelves[shelf].waiting.pop_front()?;
        self.shelves[shelf].wanted -= std::mem::take(&mut self.ranks[rank as usize].wanted);
        Some(rank)
    }

    fn count_written(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        let node = self.ranks[rank as usize].node as usize;
        self.written[node] += blocks.iter().map(|(_, bytes)| bytes).sum::<u64>();
    }

    pub(super) fn wrote(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        let (now_ns, now_ms) = (self.now_ns(), self.now_ms());
        let eviction = self.run.strategy.eviction;
        self.touch(blocks);
        let (home, level) = match self.blocks[blocks[0].0].place {
            Place::Tier(level) => (self.blocks[blocks[0].0].home, usize::from(level)),
            Place::Store => unreachable!("a block stays while a rank writes into it"),
        };
        let shelf = self.shelf(home, level);
        self.count_written(rank, blocks);
        for &(id, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.writers -= 1;
            block.version += 1;
            block.lost = false;
            block.valid = block.valid.saturating_add(bytes).min(self.run.cluster.block);
            block.written_ns = now_ns;
            block.access_stats = eviction.used(block.access_stats, now_ms);
            let dirty = (block.dirty + bytes).min(block.valid);
            let more = dirty - block.dirty;
            self.outcome.replaced += bytes - more;
            self.shelves[shelf].dirty_blocks += u32::from(block.dirty == 0 && dirty > 0);
            if block.dirty == 0 {
                block.dirtied_ns = now_ns;
            }
            self.shelves[shelf].dirty += more;
            block.dirty = dirty;
            self.outcome.written += bytes;
            self.outcome.tiers[level].written += bytes;
        }
        if self.is_managed() {
            for &(id, _) in blocks {
                self.note_use(id);
            }
            return self.write_on(rank);
        }
        if self.run.strategy.trigger == Trigger::PerOperation {
            self.flush(shelf);
        }
        self.make_room(shelf);
        self.write_on(rank);
    }

    pub(super) fn wrote_directly(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        self.count_written(rank, blocks);
        for &(id, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.lost = false;
            block.valid = block.valid.saturating_add(bytes).min(self.run.cluster.block);
            self.outcome.written += bytes;
            self.outcome.safe += bytes;
            self.outcome.direct += bytes;
        }
        self.write_on(rank);
    }
}
