//! Writes of a replayed run: as in the client library a program asks where each new block goes,
//! writes to RAM while that has or gets room, and leaves it to the node manager to take a block to
//! the tier that it is meant for.

use forebay_placement::schema::Trigger;
use forebay_placement::{Destination, Hierarchy, Request};

use super::rank::Portion;
use super::{Simulation, Task};
use crate::blocks::{BlockId, Place};
use crate::workload::Range;

/// Where a new block goes.
enum Taken {
    /// Into this tier; on its way down to the second.
    Tier(usize, Option<usize>),
    Store,
    /// There is no room yet.
    Wait(Option<usize>),
}

impl Simulation {
    /// Whether a node manager takes what programs leave in RAM to lower tiers.
    pub fn is_managed(&self) -> bool {
        self.run.strategy.manager.is_some()
    }

    /// Begins a write: its blocks in order.
    pub(super) fn stage_write(&mut self, rank: u32, range: Range) {
        let blocks = self.blocks_of(rank, range);
        let portion = Portion { to: Destination::Tier(0), blocks: blocks.into() };
        self.ranks[rank as usize].ahead = range.bytes;
        self.ranks[rank as usize].todo.push_back(portion);
    }

    /// Goes on with a rank's write: its next block.
    pub(super) fn write_staged(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let decided = state.decided.take();
        let Some(&(id, bytes)) = state.todo.front().and_then(|portion| portion.blocks.front())
        else {
            state.todo.clear();
            let file = state.writing.file;
            if self.trigger_of(file) == Some(Trigger::PerOperation) {
                self.want_sync(file);
            }
            self.end_step(rank);
            return;
        };
        let ahead = state.ahead;
        self.come_up_whole(id, bytes);
        let to = match self.blocks[id].place {
            Place::Tier(level) => Taken::Tier(usize::from(level), None),
            Place::Store => match decided {
                Some(Some(level)) if self.waits_in_vain(id) => self.take_below(level),
                Some(bound) => self.take_ram(bound),
                None => self.bucket_for(id, ahead),
            },
        };
        match to {
            Taken::Wait(bound) => {
                // It has decided, and takes the first room that there is.
                self.ranks[rank as usize].decided = Some(bound);
                self.shelves[0].waiting.push_back(rank);
                // Only what is on its way out is waited for by what stays where it is.
                if bound.is_none() || self.moves_down(id) {
                    self.manager.waits = self.manager.waits.wrapping_add(1);
                }
                self.want_room();
            }
            Taken::Tier(level, bound) => {
                if self.blocks[id].place == Place::Store {
                    let before = self.shelves[level].capacity - self.shelves[level].used;
                    self.blocks[id].home = 0;
                    self.put(id, level);
                    self.after_take(level, before);
                }
                self.next_block(rank, bytes);
                self.blocks[id].writers += 1;
                let end_ns = self.pass(Some(level), true, bytes);
                self.start_until(end_ns, Task::Write { rank, blocks: vec![(id, bytes)] });
                if let Some(below) = bound {
                    self.bind(id, below);
                }
            }
            Taken::Store => {
                self.next_block(rank, bytes);
                let end_ns = self.pass(None, true, bytes);
                self.start_until(end_ns, Task::Direct { rank, blocks: vec![(id, bytes)] });
            }
        }
    }

    /// A block of a file tier that is written whole comes to RAM, if that has room.
    fn come_up_whole(&mut self, id: BlockId, bytes: u64) {
        let block = &self.blocks[id];
        let Place::Tier(1..) = block.place else { return };
        if bytes < self.run.cluster.block || block.flushing || block.moving || !self.has_room(0) {
            return;
        }
        self.outcome.replaced += block.dirty;
        self.drop_block(id);
        let block = &mut self.blocks[id];
        (block.dirty, block.valid) = (0, 0);
        block.version += 1;
        let before = self.shelves[0].capacity - self.shelves[0].used;
        self.put(id, 0);
        self.after_take(0, before);
    }

    fn next_block(&mut self, rank: u32, bytes: u64) {
        let state = &mut self.ranks[rank as usize];
        state.ahead = state.ahead.saturating_sub(bytes);
        if let Some(portion) = state.todo.front_mut() {
            portion.blocks.pop_front();
        }
        let Range { file, offset, bytes } = state.writing;
        let end = offset + bytes - state.ahead;
        self.blocks.grows(file, end);
    }

    fn has_room(&self, level: usize) -> bool {
        let shelf = &self.shelves[level];
        shelf.used + self.run.cluster.block <= shelf.capacity
    }

    fn take_ram(&mut self, bound: Option<usize>) -> Taken {
        if self.has_room(0) { Taken::Tier(0, bound) } else { Taken::Wait(bound) }
    }

    /// What the placement engine says of a new block of a write that has so many bytes to go.
    fn bucket_for(&mut self, id: BlockId, ahead: u64) -> Taken {
        let size = self.run.cluster.block;
        let file = self.blocks[id].file;
        let own = self.policy_of(file);
        let settings = self.settings_of(file);
        let policy = match settings.tier {
            Some(_) => forebay_placement::PolicyId::named("user-defined").unwrap_or(own),
            None => own,
        };
        let request = Request {
            bytes: ahead.next_multiple_of(size),
            file_bytes: self.blocks.written_end(file),
            dispersion: self.blocks.seen_in(file),
            file_hotness: self.hotness(file),
            priority: settings.priority,
            pinned: settings.tier.map(|tier| Destination::Tier(usize::from(tier))),
            fallback: own,
            seed: u64::from(id),
        };
        self.refresh_coldest(0);
        let mut hierarchy = self.as_programs_see();
        self.add_coldest(0, &mut hierarchy);
        let memo = &mut self.policy_memos[usize::from(policy.number())];
        let piece = memo.plan(&hierarchy, &request).first_piece();
        if let Destination::Tier(tier) = piece.to
            && piece.room > 0
        {
            self.plan_room(tier, piece.bytes);
        }
        let spreads = policy.policy().spreads();
        if spreads && piece.to != Destination::Store && piece.bytes < ahead {
            self.plan_room(0, ahead);
        }
        let first = match piece.to {
            Destination::Tier(0) => return self.take_ram(None),
            Destination::Tier(tier) => tier,
            Destination::Store => return Taken::Store,
        };
        let bound = (!spreads).then_some(first);
        if policy.policy().stages() {
            let gets_room = self.has_room(0) || self.bound_in_ram() > 0 || spreads;
            if gets_room {
                return self.take_ram(bound);
            }
        }
        self.take_below(first)
    }

    /// Room on the first tier from `first` on that has it.
    fn take_below(&mut self, first: usize) -> Taken {
        match (first..self.levels.len()).find(|&level| self.has_room(level)) {
            Some(level) => Taken::Tier(level, None),
            None => self.take_ram(None),
        }
    }

    fn moves_down(&self, id: BlockId) -> bool {
        self.policy_of(self.blocks[id].file).policy().moves_down()
    }

    /// Whether a new block that waits for one on its way out of RAM waits for nothing.
    fn waits_in_vain(&self, id: BlockId) -> bool {
        !self.has_room(0) && self.bound_in_ram() == 0 && !self.moves_down(id)
    }

    /// Whether the first that waits for room in RAM is such a one.
    pub fn has_vain_wait(&self) -> bool {
        let first = self.shelves[0].waiting.front();
        let state = first.map(|rank| &self.ranks[*rank as usize]);
        let waits = state.filter(|state| matches!(state.decided, Some(Some(_))));
        let block = waits.and_then(|state| state.todo.front()?.blocks.front());
        block.is_some_and(|&(id, _)| self.waits_in_vain(id))
    }

    /// The tiers as programs see them: what is on its way to one has its room, and what the store
    /// has is as good as free. Speeds are rounded to eighths.
    pub fn as_programs_see(&self) -> Hierarchy {
        let mut hierarchy = self.hierarchy(0);
        let size = self.run.cluster.block;
        let rounded = |number: u64| {
            let step = number.checked_ilog2().map_or(0, |log| log.saturating_sub(3));
            number >> step << step
        };
        for (level, tier) in hierarchy.tiers_mut().iter_mut().enumerate() {
            let bound = if level > 0 { self.bound_for(level) * size } else { 0 };
            let clean = self.manager.clean(level) * size;
            tier.free = tier.free.saturating_sub(bound).saturating_add(clean).min(tier.capacity);
            tier.dirty = 0;
        }
        let levels = self.levels.len();
        for (place, speed) in self.settings().speeds.iter().enumerate().take(levels + 1) {
            let snapshot = match place < levels {
                true => &mut hierarchy.tiers_mut()[place],
                false => &mut hierarchy.store,
            };
            snapshot.read_bandwidth = rounded(speed.read_bandwidth);
            snapshot.write_bandwidth = rounded(speed.write_bandwidth);
            snapshot.latency_ns = rounded(speed.latency_ns);
        }
        hierarchy
    }
}
