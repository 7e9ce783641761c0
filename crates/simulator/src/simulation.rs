//! The run itself: ranks, their requests, and the virtual clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use forebay_placement::evict::{Eviction, Ghosts};
use forebay_placement::hotness::Heat;
use forebay_placement::prefetch::{Reach, Stream, WINDOW_BLOCKS, pays};
use forebay_placement::{Destination, Hierarchy, Memo, PolicyId, Request, TierSnapshot};

use crate::blocks::{BlockId, Blocks, Place};
use crate::fluid::Fluid;
use crate::machine::{Machine, Spot};
use crate::outcome::{Outcome, TierOutcome};
use crate::scenario::Run;
use crate::strategy::{Tiers, Trigger};
use crate::workload::{Cursor, Op, Range, Workload};

/// Decisions that each node's placement engine remembers.
const MEMO_ENTRIES: usize = 64;
/// The time in which hotness halves, in milliseconds: a minute, a few phases of computing.
pub(crate) const HALF_LIFE_MS: u32 = 60_000;
/// How long a tier's lowest hotness is good for: finding it means to look at all blocks.
const COLDEST_NS: u64 = 100_000_000;

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
    Move { node: u32, from: Place, to: usize, blocks: Vec<(BlockId, u32)> },
    /// Blocks are written to the store; then dropped, if somebody needs the room.
    Flush { node: u32, level: usize, blocks: Vec<(BlockId, u32, u64)>, evict: bool },
}

/// What a rank's time counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
    kind: Kind,
    since_ns: u64,
    /// The file that it read last, and how.
    stream: (u32, Stream),
    /// Latencies of the current step's requests, waited for at its end.
    latency_ns: u64,
    pub todo: VecDeque<Portion>,
    /// Bytes for which it waits in a shelf's queue.
    pub wanted: u64,
    pub alive: bool,
    at_barrier: bool,
    spent_ns: [u64; 4],
}

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
    pub promoting: bool,
    pub alive: bool,
    pub ghosts: Ghosts,
    /// The lowest hotness of its files, and until when that is good.
    coldest: (f32, u64),
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
    memos: Vec<Memo>,
    tasks: Vec<Option<Task>>,
    free_tasks: Vec<usize>,
    timers: BinaryHeap<Reverse<(u64, u64, Event)>>,
    timers_set: u64,
    live: u32,
    arrived: u32,
    pub ended: bool,
    /// Half-lives that have passed.
    passes: u32,
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
        let shelf = |level: usize| {
            let tier = &cluster.tiers[level];
            let all = tier.capacity * u64::from(tier.devices);
            // Of a shared tier each node has an equal part reserved.
            let part = if tier.shared { all / u64::from(cluster.nodes) } else { all };
            Shelf {
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
                promoting: false,
                alive: true,
                ghosts: Ghosts::new((part / cluster.block) as usize),
                coldest: (0.0, 0),
            }
        };
        let shelves =
            (0..cluster.nodes).flat_map(|_| levels.iter().map(|&level| shelf(level))).collect();
        let policy = PolicyId::named(&run.strategy.policy).expect("a known policy");
        let memos =
            (0..cluster.nodes).map(|_| Memo::new(policy, cluster.block, MEMO_ENTRIES)).collect();
        let rank = |rank: u32| Rank {
            node: rank / cluster.ranks_per_node,
            cursor: Cursor::new(rank, cluster.ranks(), run.seed),
            kind: Kind::Other,
            since_ns: 0,
            stream: (u32::MAX, Stream::default()),
            latency_ns: 0,
            todo: VecDeque::new(),
            wanted: 0,
            alive: true,
            at_barrier: false,
            spent_ns: [0; 4],
        };
        let outcome = Outcome {
            tiers: levels
                .iter()
                .map(|&level| TierOutcome {
                    name: cluster.tiers[level].name.clone(),
                    capacity: shelf(level).capacity,
                    ..TierOutcome::default()
                })
                .collect(),
            ..Outcome::default()
        };
        Self {
            ranks: (0..cluster.ranks()).map(rank).collect(),
            node_alive: vec![true; cluster.nodes as usize],
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
            lost_files: BTreeMap::new(),
            fluid,
            machine,
            levels,
            shelves,
            memos,
            outcome,
            run,
        }
    }

    /// Files that a trace reads are there before it begins.
    fn prepare(&mut self) {
        let Workload::Trace(ranks) = &self.run.workload else { return };
        let size = self.run.cluster.block;
        for (rank, ops) in ranks.iter().enumerate() {
            for op in ops {
                let Op::Read(range) = op else { continue };
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
        if let Trigger::Periodic(period_ns) = self.run.strategy.trigger {
            self.at(period_ns.max(1), Event::Tick);
        }
        self.at(u64::from(HALF_LIFE_MS) * 1_000_000, Event::Cool);
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

    // -----------------------------------------------------------------------------------------
    // Clock, transfers

    pub fn now_ns(&self) -> u64 {
        self.fluid.now_ns()
    }

    /// The clock of hotness: milliseconds in 32 bits.
    pub fn now_ms(&self) -> u32 {
        (self.now_ns() / 1_000_000) as u32
    }

    pub fn at(&mut self, at_ns: u64, event: Event) {
        self.timers_set += 1;
        self.timers.push(Reverse((at_ns, self.timers_set, event)));
    }

    pub fn start(&mut self, way: crate::fluid::Way, bytes: u64, task: Task) {
        let token = match self.free_tasks.pop() {
            Some(token) => token,
            None => {
                self.tasks.push(None);
                self.tasks.len() - 1
            }
        };
        self.tasks[token] = Some(task);
        self.fluid.start(way, bytes, token);
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
                    block.heat = block.heat.cooled(self.passes);
                }
                self.at(self.now_ns() + u64::from(HALF_LIFE_MS) * 1_000_000, Event::Cool);
            }
            Event::Cool => {}
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
            Task::Move { node, from, to, blocks } => self.moved(node, from, to, &blocks),
            Task::Flush { node, level, blocks, evict } => {
                self.flushed(node, level, &blocks, evict);
            }
        }
    }

    // -----------------------------------------------------------------------------------------
    // Ranks

    fn next_step(&mut self, rank: u32) {
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
            Some(Op::Open(file)) => {
                state.kind = Kind::Open;
                self.blocks.file(file).open += 1;
                self.start(self.machine.open(), 1, Task::Open { rank });
            }
            Some(Op::Close(file)) => {
                let file = self.blocks.file(file);
                file.open = file.open.saturating_sub(1);
                if file.open == 0 && self.run.strategy.trigger == Trigger::PerFile {
                    self.flush_all();
                }
                self.at(now_ns, Event::Next(rank));
            }
            Some(Op::Write(range)) => {
                state.kind = Kind::Write;
                self.plan_write(rank, range);
                self.write_on(rank);
            }
            Some(Op::Read(range)) => {
                state.kind = Kind::Read;
                let blocks = self.blocks_of(rank, range);
                let portion = Portion { to: Destination::Store, blocks: blocks.into() };
                self.ranks[rank as usize].todo.push_back(portion);
                self.look_ahead(rank, range);
                self.read_on(rank);
            }
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
    fn end_step(&mut self, rank: u32) {
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
        self.outcome.ranks_end_s = self.now_ns() as f64 / 1e9;
        self.outcome.end_s = self.outcome.ranks_end_s;
        self.flush_all();
    }

    /// The blocks of a range, with the bytes of it in each.
    fn blocks_of(&mut self, rank: u32, range: Range) -> Vec<(BlockId, u64)> {
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

    // -----------------------------------------------------------------------------------------
    // Writing

    /// Asks the placement engine where the new blocks of a write go; resident ones stay.
    fn plan_write(&mut self, rank: u32, range: Range) {
        let node = self.ranks[rank as usize].node;
        let size = self.run.cluster.block;
        let blocks = self.blocks_of(rank, range);
        let fresh = blocks.iter().filter(|(id, _)| self.blocks[*id].place == Place::Store).count();
        let mut pieces = Vec::new();
        if fresh > 0 {
            let request = self.request(range.file, fresh as u64 * size, u64::from(rank));
            let mut hierarchy = self.hierarchy(node);
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
        let file_hotness = self.blocks.hotness(file, self.now_ms(), HALF_LIFE_MS);
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

    /// A node's tiers as its placement engine and its data organizer see them.
    pub fn hierarchy(&self, node: u32) -> Hierarchy {
        let cluster = &self.run.cluster;
        let mut tiers = [TierSnapshot::default(); forebay_placement::TIERS_MAX];
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
        hierarchy.with_store(below).with_costs(self.run.strategy.costs)
    }

    /// What all nodes together can have of the bandwidth of shared devices, through their links.
    fn seen(&self, bandwidth: u64) -> u64 {
        match self.run.cluster.link {
            0 => bandwidth,
            link => bandwidth.min(link.saturating_mul(u64::from(self.run.cluster.nodes))),
        }
    }

    /// Looks for the lowest hotness in each of a node's tiers, unless that was done just now.
    pub fn refresh_coldest(&mut self, node: u32) {
        let (now_ns, now_ms) = (self.now_ns(), self.now_ms());
        for level in 0..self.levels.len() {
            let shelf = self.shelf(node, level);
            if self.shelves[shelf].coldest.1 <= now_ns {
                let files = self.shelves[shelf].list.iter().map(|id| self.blocks[*id].file);
                let hotness = files.map(|file| self.blocks.hotness(file, now_ms, HALF_LIFE_MS));
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

    /// Goes on with a rank's write: the next portion that is for one device, or a wait for room.
    pub fn write_on(&mut self, rank: u32) {
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

    fn wrote(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        let (now_ns, now_ms) = (self.now_ns(), self.now_ms());
        self.touch(blocks);
        let (home, level) = match self.blocks[blocks[0].0].place {
            Place::Tier(level) => (self.blocks[blocks[0].0].home, usize::from(level)),
            Place::Store => unreachable!("a block stays while somebody writes into it"),
        };
        let shelf = self.shelf(home, level);
        for &(id, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.writers -= 1;
            block.version += 1;
            block.lost = false;
            block.valid = block.valid.saturating_add(bytes).min(self.run.cluster.block);
            block.written_ns = now_ns;
            block.heat = Eviction::default().used(block.heat, now_ms);
            let dirty = (block.dirty + bytes).min(block.valid);
            let more = dirty - block.dirty;
            self.outcome.replaced += bytes - more;
            self.shelves[shelf].dirty_blocks += u32::from(block.dirty == 0 && dirty > 0);
            self.shelves[shelf].dirty += more;
            block.dirty = dirty;
            self.outcome.written += bytes;
            self.outcome.tiers[level].written += bytes;
        }
        if self.run.strategy.trigger == Trigger::PerOperation {
            self.flush(shelf);
        }
        self.make_room(shelf);
        self.write_on(rank);
    }

    fn wrote_directly(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
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

    // -----------------------------------------------------------------------------------------
    // Reading

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
    fn look_ahead(&mut self, rank: u32, range: Range) {
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

    fn has_read(&mut self, rank: u32, blocks: &[(BlockId, u64)]) {
        let now_ms = self.now_ms();
        self.touch(blocks);
        for &(id, bytes) in blocks {
            let block = &mut self.blocks[id];
            block.heat = Eviction::default().used(block.heat, now_ms);
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
    fn touch(&mut self, blocks: &[(BlockId, u64)]) {
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

    // -----------------------------------------------------------------------------------------
    // Shelves

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
        block.heat = Heat::arriving(now_ms, known);
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
        self.blocks.file(file).levels[level] += 1;
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
