//! The run itself: its state, the virtual clock, and what happens when.

mod rank;
mod read;
mod shelf;
mod snapshot;
mod staged;
mod write;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use forebay_placement::admission::Trail;
use forebay_placement::exposure::Exposure;
use forebay_placement::{Memo, PolicyId};

pub(crate) use self::rank::Portion;
use self::rank::{Kind, Rank};
use self::shelf::Shelf;
use crate::blocks::{BlockId, Blocks, Place};
use crate::fluid::{Fluid, Way};
use crate::machine::Machine;
use crate::manager::Manager;
use crate::outcome::{Outcome, TierOutcome};
use crate::scenario::Run;
use crate::strategy::{Tiers, Trigger};
use crate::workload::{Op, Workload};

/// Decisions that each node's placement engine remembers.
const MEMO_ENTRIES: usize = 64;
/// The same of each process of a replayed run.
const MANAGED_MEMO_ENTRIES: usize = 16;
/// Something that happens at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A rank goes on with its next step.
    Next(u32),
    /// Blocks may have become old enough to be flushed.
    Tick,
    /// A half-life has passed.
    Cool,
    /// The fault of this number happens.
    Fault(usize),
    /// A worker of the node manager is woken, or its pause of this number is over.
    Work { worker: usize, pause: u64 },
    /// A transfer of a replayed run is over.
    Done(usize),
}

/// A transfer under way.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// A rank opens a file.
    Open { rank: u32 },
    /// A rank writes into blocks that have a place in a tier.
    Write { rank: u32, blocks: Vec<(BlockId, u64)> },
    /// A rank writes to the store.
    Direct { rank: u32, blocks: Vec<(BlockId, u64)> },
    /// A rank reads.
    Read { rank: u32, blocks: Vec<(BlockId, u64)> },
    /// Blocks move from a level of a node to another one, down or up.
    Move { node: u32, from: Place, to: usize, blocks: Vec<(BlockId, u32)>, written: u64 },
    /// Blocks are written to the store; then dropped, if the room is wanted.
    Flush { node: u32, level: usize, blocks: Vec<(BlockId, u32, u64)>, evict: bool, written: u64 },
    /// A worker of the node manager moves blocks.
    Work { worker: usize },
}
/// A run under way.
pub(crate) struct Simulation {
    pub run: Run,
    pub fluid: Fluid,
    pub machine: Machine,
    pub blocks: Blocks,
    /// The cluster's tiers that the strategy uses, fastest first.
    pub levels: Vec<usize>,
    pub shelves: Vec<Shelf>,
    pub ranks: Vec<Rank>,
    pub node_alive: Vec<bool>,
    /// Bytes that the ranks of each node have written, and how much of its moves they waited for.
    pub written: Vec<u64>,
    pub exposures: Vec<Exposure>,
    memos: Vec<Memo>,
    /// The policy of files for which no rule names one, and in a replay what each policy remembers.
    pub policy: PolicyId,
    policy_memos: Vec<Memo>,
    pub manager: Manager,
    tasks: Vec<Option<Task>>,
    free_tasks: Vec<usize>,
    timers: BinaryHeap<Reverse<(u64, u64, Event)>>,
    timers_set: u64,
    live: u32,
    arrived: u32,
    pub ended: bool,
    /// Half-lives that have passed.
    passes: u32,
    /// What nodes remember of the reads of blocks that only the store has, by node and word.
    trails: HashMap<(u32, u64), Trail>,
    /// When a flush ended last.
    pub flush_end_ns: u64,
    pub outcome: Outcome,
    pub lost_files: BTreeMap<u32, u64>,
}

/// Runs it to the end.
///
/// # Panics
/// If the policy's name is unknown, or the run breaks a law that it must keep: a tier above its
/// capacity, the clock going back.
pub fn simulate(run: Run) -> Outcome {
    let mut simulation = Simulation::new(run);
    simulation.go();
    simulation.finish()
}

impl Simulation {
    fn new(run: Run) -> Self {
        let mut fluid = Fluid::new(run.grain_ns);
        let machine = Machine::new(&run.cluster, &mut fluid);
        let cluster = &run.cluster;
        let tiers = cluster.tiers.iter().enumerate();
        let levels: Vec<usize> = match run.strategy.tiers {
            Tiers::None => Vec::new(),
            Tiers::Shared => tiers.filter(|(_, tier)| tier.shared).map(|(at, _)| at).collect(),
            Tiers::All => tiers.map(|(at, _)| at).collect(),
        };
        let shelves: Vec<Shelf> = (0..cluster.nodes)
            .flat_map(|_| levels.iter().map(|&level| Shelf::new(cluster, level)))
            .collect();
        let policy = PolicyId::named(&run.strategy.policy).expect("a known policy");
        let memos =
            (0..cluster.nodes).map(|_| Memo::new(policy, cluster.block, MEMO_ENTRIES)).collect();
        let granularity = run.strategy.manager.as_ref().map_or(0, |settings| settings.granularity);
        let policy_memos = (0..PolicyId::COUNT)
            .filter_map(|number| PolicyId::numbered(number as u8))
            .map(|policy| Memo::new(policy, granularity, MANAGED_MEMO_ENTRIES))
            .collect();
        let manager = match run.strategy.manager {
            Some(_) => Manager::new(levels.len()),
            None => Manager::default(),
        };
        let ranks = (0..cluster.ranks()).map(|rank| Rank::new(rank, cluster, run.seed)).collect();
        let outcome = Outcome {
            tiers: levels
                .iter()
                .map(|&level| TierOutcome {
                    name: cluster.tiers[level].name.clone(),
                    capacity: Shelf::new(cluster, level).capacity,
                    ..TierOutcome::default()
                })
                .collect(),
            ..Outcome::default()
        };
        Self {
            ranks,
            node_alive: vec![true; cluster.nodes as usize],
            written: vec![0; cluster.nodes as usize],
            exposures: vec![Exposure::default(); cluster.nodes as usize],
            live: cluster.ranks(),
            arrived: 0,
            blocks: Blocks::default(),
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            timers: BinaryHeap::new(),
            timers_set: 0,
            ended: false,
            flush_end_ns: 0,
            passes: 0,
            trails: HashMap::new(),
            lost_files: BTreeMap::new(),
            fluid,
            machine,
            levels,
            shelves,
            memos,
            policy,
            policy_memos,
            manager,
            outcome,
            run,
        }
    }

    /// Files that a trace reads are there before it begins, but for those that it makes.
    fn prepare(&mut self) {
        let Workload::Trace(ranks) = &self.run.workload else { return };
        let size = self.run.cluster.block;
        let made = |op: &Op| if let Op::Create(file) = op { Some(*file) } else { None };
        let made: HashSet<u32> = ranks.iter().flatten().filter_map(made).collect();
        for (rank, ops) in ranks.iter().enumerate() {
            for op in ops {
                let Op::Read(range) = op else { continue };
                if made.contains(&range.file) {
                    continue;
                }
                let end = range.offset + range.bytes;
                for number in range.offset / size..end.div_ceil(size) {
                    let id = self.blocks.find(range.file, number as u32, self.ranks[rank].node);
                    let block = &mut self.blocks[id];
                    block.valid = block.valid.max((end - number * size).min(size));
                }
            }
        }
    }

    fn go(&mut self) {
        self.prepare();
        for (number, fault) in self.run.faults.clone().into_iter().enumerate() {
            self.at(fault.at_ns, Event::Fault(number));
        }
        if let Trigger::Periodic(period_ns) = self.run.strategy.trigger
            && !self.is_managed()
        {
            self.at(period_ns.max(1), Event::Tick);
        }
        self.at(self.half_life_ns(), Event::Cool);
        self.begin_manager();
        for rank in 0..self.ranks.len() as u32 {
            self.next_step(rank);
        }
        let mut done = Vec::new();
        loop {
            let timer = self.timers.peek().map(|Reverse((at_ns, ..))| *at_ns);
            let end = self.fluid.next_end_ns();
            let Some(at_ns) = [timer, end].into_iter().flatten().min() else { break };
            self.outcome.moments += 1;
            self.fluid.advance(at_ns, &mut done);
            for token in done.drain(..) {
                let task = self.tasks[token].take().expect("a transfer ends once");
                self.free_tasks.push(token);
                self.complete(task);
            }
            while let Some(&Reverse((due_ns, _, event))) = self.timers.peek()
                && due_ns <= at_ns
            {
                self.timers.pop();
                self.happen(event);
            }
        }
        self.outcome.stalled = self.live > 0 || self.tasks.iter().any(Option::is_some);
    }

    fn finish(mut self) -> Outcome {
        let ranks = self.ranks.len() as f64;
        let mean = |kind: Kind| {
            self.ranks.iter().map(|rank| rank.spent_ns[kind as usize] as f64).sum::<f64>()
                / 1e9
                / ranks
        };
        let (open_s, write_s, read_s) = (mean(Kind::Open), mean(Kind::Write), mean(Kind::Read));
        let outcome = &mut self.outcome;
        (outcome.open_s, outcome.write_s, outcome.read_s) = (open_s, write_s, read_s);
        outcome.kept = self.shelves.iter().map(|shelf| shelf.dirty).sum();
        outcome.lost_files = self.lost_files.keys().copied().collect();
        outcome.lost = self.lost_files.values().sum();
        outcome.flush_s = (self.flush_end_ns as f64 / 1e9 - outcome.ranks_end_s).max(0.0);
        for (index, shelf) in self.shelves.iter().enumerate() {
            let tier = &mut outcome.tiers[index % self.levels.len()];
            tier.peak = tier.peak.max(shelf.peak);
        }
        let groups = self.machine.resources(None, None);
        let busy: f64 = groups.iter().map(|&group| self.fluid.busy_seconds(group)).sum();
        outcome.store_busy_s = busy / groups.len() as f64;
        for memo in &self.memos {
            let (hits, misses) = memo.hits_and_misses();
            outcome.plans += hits + misses;
            outcome.remembered += hits;
        }
        self.outcome
    }

    pub fn now_ns(&self) -> u64 {
        self.fluid.now_ns()
    }

    /// The clock of hotness: milliseconds in 32 bits.
    pub fn now_ms(&self) -> u32 {
        (self.now_ns() / 1_000_000) as u32
    }

    fn half_life_ns(&self) -> u64 {
        u64::from(self.run.strategy.half_life_ms) * 1_000_000
    }

    pub fn at(&mut self, at_ns: u64, event: Event) {
        self.timers_set += 1;
        self.timers.push(Reverse((at_ns, self.timers_set, event)));
    }

    pub fn start(&mut self, way: Way, bytes: u64, task: Task) {
        let token = self.token(task);
        self.fluid.start(way, bytes, token);
    }

    /// Starts what takes until then.
    pub fn start_until(&mut self, end_ns: u64, task: Task) {
        let token = self.token(task);
        self.at(end_ns, Event::Done(token));
    }

    fn token(&mut self, task: Task) -> usize {
        let token = match self.free_tasks.pop() {
            Some(token) => token,
            None => {
                self.tasks.push(None);
                self.tasks.len() - 1
            }
        };
        self.tasks[token] = Some(task);
        token
    }

    /// Ends the transfers that `is_wanted`, and returns them in the order in which they began.
    pub fn cancel(&mut self, is_wanted: impl Fn(&Self, &Task) -> bool) -> Vec<Task> {
        let wanted: Vec<bool> = self
            .tasks
            .iter()
            .map(|task| task.as_ref().is_some_and(|task| is_wanted(self, task)))
            .collect();
        let cancelled = self.fluid.cancel(|token| wanted[token]);
        let take = |(token, _): (usize, u64)| {
            self.free_tasks.push(token);
            self.tasks[token].take()
        };
        cancelled.into_iter().filter_map(take).collect()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Next(rank) => self.next_step(rank),
            Event::Tick => {
                for node in 0..self.run.cluster.nodes {
                    self.look(node);
                }
                if let Trigger::Periodic(period_ns) = self.run.strategy.trigger
                    && !self.ended
                {
                    self.at(self.now_ns() + period_ns.max(1), Event::Tick);
                }
            }
            Event::Cool if !self.ended => {
                self.passes += 1;
                for block in self.blocks.all_mut() {
                    block.access_stats = block.access_stats.cooled(self.passes);
                }
                self.at(self.now_ns() + self.half_life_ns(), Event::Cool);
            }
            Event::Cool => {}
            Event::Work { worker, pause } => self.resume(worker, pause),
            Event::Done(token) => {
                let task = self.tasks[token].take().expect("a transfer ends once");
                self.free_tasks.push(token);
                self.complete(task);
            }
            Event::Fault(number) => self.fault(self.run.faults[number].kind),
        }
    }

    fn complete(&mut self, task: Task) {
        self.outcome.end_s = self.now_ns() as f64 / 1e9;
        match task {
            Task::Open { rank } => self.end_step(rank),
            Task::Write { rank, blocks } => self.wrote(rank, &blocks),
            Task::Direct { rank, blocks } => self.wrote_directly(rank, &blocks),
            Task::Read { rank, blocks } => self.has_read(rank, &blocks),
            Task::Move { node, from, to, blocks, written } => {
                if from == Place::Tier(0) {
                    self.note_exposure(node, blocks.len(), written);
                }
                self.moved(node, from, to, &blocks);
            }
            Task::Flush { node, level, blocks, evict, written } => {
                if level == 0 && evict {
                    self.note_exposure(node, blocks.len(), written);
                }
                self.flushed(node, level, &blocks, evict);
            }
            Task::Work { worker } => self.work(worker),
        }
    }
}
