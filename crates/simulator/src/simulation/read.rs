//! Reads, and what they bring up.

use forebay_placement::Destination;
use forebay_placement::evict::Eviction;
use forebay_placement::prefetch::{Reach, Stream, WINDOW_BLOCKS, pays};

use super::{HALF_LIFE_MS, Simulation, Task};
use crate::blocks::{BlockId, Place};
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
        let state = &mut self.ranks[rank as usize];
        if state.stream.0 != range.file {
            state.stream = (range.file, Stream::default());
        }
        let reach = Reach { first: size, most: WINDOW_BLOCKS * size };
        let Some(ahead) = state.stream.1.on_read(range.offset, range.bytes, reach) else { return };
        let node = state.node;
        let mut blocks = Vec::new();
        for (offset, bytes) in ahead.pieces() {
            let numbers = offset / size..(offset + bytes).div_ceil(size);
            blocks.extend(numbers.filter_map(|number| self.blocks.known(range.file, number)));
        }
        blocks.dedup();
        let hierarchy = self.hierarchy(node);
        blocks.retain(|id| {
            let from = match self.blocks[*id].place {
                Place::Tier(level) => Destination::Tier(level.into()),
                Place::Store => Destination::Store,
            };
            pays(&hierarchy, from, size)
        });
        self.stage_in(node, &blocks);
    }

    pub(super) fn has_read(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        let now_ms = self.now_ms();
        self.touch(blocks);
        for &(id, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.access_stats = Eviction::default().used(block.access_stats, now_ms);
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
        self.promote(node, blocks);
        self.read_on(rank);
    }

    /// Counts one use of each file.
    pub(super) fn touch(&mut self, blocks: &[(BlockId, u64)]) {
        let now_ms = self.now_ms();
        let mut last = None;
        for (id, _) in blocks {
            let number = self.blocks[*id].file;
            if last.replace(number) != Some(number) {
                let file = self.blocks.file(number);
                file.score = file.score.touch(now_ms, HALF_LIFE_MS);
            }
        }
    }
}
