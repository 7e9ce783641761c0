//! Ranks: the steps of a process, barriers, and what its time counts as.

use std::collections::VecDeque;

use forebay_placement::Destination;
use forebay_placement::prefetch::{Account, Predictor};
use forebay_placement::schema::Trigger as FileTrigger;

use super::{Event, Simulation, Task};
use crate::blocks::{BlockId, Place};
use crate::cluster::Cluster;
use crate::strategy::Trigger;
use crate::workload::{Cursor, Op, Range};

/// What a rank's time counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Other,
    Open,
    Write,
    Read,
}

/// Blocks of a write that go to one place, with the bytes for each.
#[derive(Clone, Debug)]
pub(crate) struct Portion {
    pub to: Destination,
    pub blocks: VecDeque<(BlockId, u64)>,
}

/// A process of the application.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub node: u32,
    cursor: Cursor,
    pub(super) kind: Kind,
    since_ns: u64,
    /// What it reads.
    pub(super) reading: Range,
    /// The file that it read last, and how.
    pub(super) predictor: (u32, Predictor),
    /// What may be guessed in vain.
    pub(super) account: Account,
    /// Latencies of the current step's requests, waited for at its end.
    pub(super) latency_ns: u64,
    pub todo: VecDeque<Portion>,
    /// Bytes for which it waits in a shelf's queue.
    pub wanted: u64,
    /// What it has decided about its next block, as it waits for room in RAM: where it goes from
    /// there.
    pub(super) decided: Option<Option<usize>>,
    /// What it writes, and the bytes of that which are left.
    pub(super) writing: Range,
    pub(super) ahead: u64,
    pub alive: bool,
    at_barrier: bool,
    pub(super) spent_ns: [u64; 4],
}

impl Rank {
    pub(super) fn new(rank: u32, cluster: &Cluster, seed: u64) -> Self {
        Self {
            node: rank / cluster.ranks_per_node,
            cursor: Cursor::new(rank, cluster.ranks(), seed),
            kind: Kind::Other,
            since_ns: 0,
            reading: Range::default(),
            predictor: (u32::MAX, Predictor::default()),
            account: Account::default(),
            latency_ns: 0,
            todo: VecDeque::new(),
            wanted: 0,
            decided: None,
            writing: Range::default(),
            ahead: 0,
            alive: true,
            at_barrier: false,
            spent_ns: [0; 4],
        }
    }
}

impl Simulation {
    pub(super) fn next_step(&mut self, rank: u32) {
        if !self.ranks[rank as usize].alive {
            return;
        }
        self.account(rank);
        let state = &mut self.ranks[rank as usize];
        let op = state.cursor.next(&self.run.workload);
        let now_ns = self.fluid.now_ns();
        match op {
            None => self.end_rank(rank),
            Some(Op::Compute(ns)) => {
                state.kind = Kind::Other;
                self.at(now_ns.saturating_add(ns), Event::Next(rank));
            }
            Some(Op::Barrier) => {
                // The wait counts as what was done before it.
                state.at_barrier = true;
                self.arrived += 1;
                self.check_barrier();
            }
            Some(Op::Open(file) | Op::Create(file)) => {
                state.kind = Kind::Open;
                let opened = self.blocks.file(file);
                opened.open += 1;
                opened.is_removed = false;
                if matches!(op, Some(Op::Create(_))) {
                    self.resize(file, 0);
                }
                self.start(self.machine.open(), 1, Task::Open { rank });
            }
            Some(Op::Close(number)) => {
                let file = self.blocks.file(number);
                file.open = file.open.saturating_sub(1);
                let (is_last, is_removed) = (file.open == 0, file.is_removed);
                if is_removed {
                    self.end_removed(number);
                } else if self.is_managed() {
                    if self.trigger_of(number) == Some(FileTrigger::PerFile) {
                        self.want_sync(number);
                    }
                } else if is_last && self.run.strategy.trigger == Trigger::PerFile {
                    self.flush_all();
                }
                self.at(now_ns, Event::Next(rank));
            }
            Some(Op::Truncate(file, size)) => {
                state.kind = Kind::Other;
                self.resize(file, size);
                self.at(now_ns, Event::Next(rank));
            }
            Some(Op::Remove(file)) => {
                state.kind = Kind::Other;
                self.blocks.file(file).is_removed = true;
                self.end_removed(file);
                self.at(now_ns, Event::Next(rank));
            }
            // At the end of a file.
            Some(Op::Write(range) | Op::Read(range)) if range.bytes == 0 => self.end_step(rank),
            Some(Op::Write(range)) => {
                state.kind = Kind::Write;
                state.writing = range;
                match self.is_managed() {
                    true => self.stage_write(rank, range),
                    false => self.plan_write(rank, range),
                }
                self.write_on(rank);
            }
            Some(Op::Read(range)) => {
                state.kind = Kind::Read;
                state.reading = range;
                let blocks = self.blocks_of(rank, range);
                let portion = Portion { to: Destination::Store, blocks: blocks.into() };
                self.ranks[rank as usize].todo.push_back(portion);
                self.look_ahead(rank, range);
                self.read_on(rank);
            }
        }
    }

    /// A file gets another size: what was behind it is gone, and is not flushed.
    fn resize(&mut self, file: u32, size: u64) {
        for id in self.blocks.of_file(file) {
            let block = &self.blocks[id];
            let kept = size.saturating_sub(u64::from(block.number) * self.run.cluster.block);
            if block.writers > 0 || kept >= block.valid {
                continue;
            }
            let gone = block.dirty.saturating_sub(kept);
            self.outcome.replaced += gone;
            if let Place::Tier(level) = block.place {
                let shelf = self.shelf(block.home, usize::from(level));
                self.shelves[shelf].dirty -= gone;
                self.shelves[shelf].dirty_blocks -= u32::from(gone > 0 && gone == block.dirty);
            }
            let block = &mut self.blocks[id];
            block.dirty -= gone;
            block.valid = kept;
            block.version += 1;
            if kept == 0 {
                block.bound = None;
                self.drop_block(id);
            }
        }
        self.blocks.resize(file, size);
    }

    /// Of a file without a name nothing is left once no rank has it open.
    fn end_removed(&mut self, file: u32) {
        if !self.blocks.is_open(file) {
            self.resize(file, 0);
        }
    }

    /// Books the time since the last look as what the rank was doing.
    fn account(&mut self, rank: u32) {
        let now_ns = self.fluid.now_ns();
        let state = &mut self.ranks[rank as usize];
        state.spent_ns[state.kind as usize] += now_ns - state.since_ns;
        state.since_ns = now_ns;
    }

    /// Ends a step that did I/O: the latencies of its requests are still to be waited for.
    pub(super) fn end_step(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        let latency_ns = std::mem::take(&mut state.latency_ns);
        self.at(self.now_ns() + latency_ns, Event::Next(rank));
    }

    fn check_barrier(&mut self) {
        if self.arrived < self.live || self.live == 0 {
            return;
        }
        self.arrived = 0;
        for rank in 0..self.ranks.len() as u32 {
            if std::mem::take(&mut self.ranks[rank as usize].at_barrier) {
                self.at(self.now_ns(), Event::Next(rank));
            }
        }
    }

    /// A rank is through, or dead.
    pub fn end_rank(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if !std::mem::take(&mut state.alive) {
            return;
        }
        if std::mem::take(&mut state.at_barrier) {
            self.arrived -= 1;
        }
        self.live -= 1;
        if self.live > 0 {
            self.check_barrier();
            return;
        }
        self.ended = true;
        for file in self.blocks.removed() {
            self.resize(file, 0);
        }
        self.outcome.ranks_end_s = self.now_ns() as f64 / 1e9;
        self.outcome.end_s = self.outcome.ranks_end_s;
        match self.is_managed() {
            true => self.drain(),
            false => self.flush_all(),
        }
    }

    /// The blocks of a range, with the bytes of it in each.
    pub(super) fn blocks_of(&mut self, rank: u32, range: Range) -> Vec<(BlockId, u64)> {
        let (node, size) = (self.ranks[rank as usize].node, self.run.cluster.block);
        let (mut offset, end) = (range.offset, range.offset + range.bytes);
        let mut blocks = Vec::new();
        while offset < end {
            let next = (offset / size + 1) * size;
            let bytes = next.min(end) - offset;
            blocks.push((self.blocks.find(range.file, (offset / size) as u32, node), bytes));
            offset = next;
        }
        blocks
    }
}
