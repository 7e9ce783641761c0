//! The node manager of a replayed run: its workers, each with what it does at the moment and what
//! it does next, as in the node manager itself. Writes are in `simulation/staged.rs`.
//!
//! A worker looks when it is woken or when it has paused long enough, chooses what to do, and does
//! that piece by piece; what happens meanwhile it sees with its next look. What it decides with are
//! `placement`'s functions.

use std::collections::{BTreeSet, VecDeque};

use forebay_placement::evict::{Candidate, choose};
use forebay_placement::hotness::AccessStats;
use forebay_placement::leave::{
    BATCH_BYTES, CHOICE, Division, Keeps, Reads, Victims, WayDown, divide, fate, keeping_pays,
    piece_blocks, way_down,
};
use forebay_placement::organizer::{Event as Happened, Settings, Task as Decided, organize};
use forebay_placement::promote::{
    self, Left, Level, Rise, asked, exchanges, exchanges_at_once, pairs, promoted, rise,
};
use forebay_placement::room::{Headroom, Pressure, Waits, in_turns, wanted};
use forebay_placement::rounds::{
    Ages, DRAIN_LOOK_MS, LOOK_MS, LOOK_PRESSED_MS, PLACER_LOOK_MS, PLACER_PATIENCE,
    PROMOTER_REST_MS, RIPE_MS, is_ripe, promoter_patience_ms, sync_passes,
};
use forebay_placement::schema::{Settings as FileSettings, Trigger as FileTrigger};
use forebay_placement::{Destination, Hierarchy, PolicyId, destination, pace};

use crate::blocks::{BlockId, Place};
use crate::cluster::Device;
use crate::simulation::{Event, Simulation, Task};
use crate::strategy::{ManagerSettings, Trigger};

const MS: u64 = 1_000_000;

/// What is asked of a run without a node manager: nothing.
static NO_MANAGER: ManagerSettings = ManagerSettings {
    ages: Ages { period_ms: 0, max_age_ms: 0 },
    granularity: 0,
    files: Vec::new(),
    speeds: Vec::new(),
};

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Makes room on a tier.
    Demote(usize),
    /// Takes what is bound for a file tier there.
    Place(usize),
    /// Flushes what is due in a tier.
    Flush(usize),
    /// Serves syncs: the flush of a file, in whichever tiers its blocks lie.
    Sync,
    /// Brings up what is used often.
    Promote,
}

/// Where a piece goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// To this tier.
    Tier(usize),
    /// Wherever what leaves this tier goes.
    Down,
    /// To the store.
    Store,
}

/// Blocks that a worker moves at once.
#[derive(Clone, Debug)]
struct Piece {
    from: usize,
    goal: Goal,
    blocks: Vec<BlockId>,
    /// Whether it makes place for other blocks, or takes theirs.
    exchange: Exchange,
}

/// What a piece is in an exchange of hot blocks for cold ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    /// None of it.
    No,
    /// Its blocks leave: their room is kept for those that come.
    Gone,
    /// Its blocks come into the room that was kept.
    Come,
}

impl Piece {
    fn of(from: usize, goal: Goal, blocks: &[BlockId]) -> Self {
        Self { from, goal, blocks: blocks.to_vec(), exchange: Exchange::No }
    }

    fn exchanging(self, exchange: Exchange) -> Self {
        Self { exchange, ..self }
    }
}

/// A step of what a worker does.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The tier's position; `None` is the store.
    place: Option<usize>,
    writes: bool,
    bytes: u64,
}

/// What a worker is at.
#[derive(Clone, Debug)]
struct UnderWay {
    piece: Piece,
    /// The block, its version at the beginning, and its dirty bytes.
    taken: Vec<(BlockId, u32, u64)>,
    steps: VecDeque<Step>,
    to: Place,
    /// Drop what is clean behind it.
    evict: bool,
    /// Bytes that programs had written when it began.
    written: u64,
}

/// A worker of the node manager.
#[derive(Clone, Debug)]
struct Worker {
    job: Job,
    pieces: VecDeque<Piece>,
    under_way: Option<UnderWay>,
    /// How often room had been asked for at its last look, and blocks had become clean.
    answered: (u32, u32),
    /// Blocks that have left since its last look.
    freed: u32,
    is_awaited: bool,
    has_worked: bool,
    headroom: Headroom,
    /// Until when the promoter rests.
    rests_ns: Option<u64>,
    /// Tells the pause that it is in from earlier ones.
    pause: u64,
    /// How often in a row the tier that it places to had no room.
    in_vain: u32,
    /// Blocks whose room on the tier above is kept for those that come in exchange.
    given_up: u64,
    /// The file whose sync it serves, and passes that are left for it.
    file: Option<(u32, usize)>,
    /// Blocks of its next piece whose flush it has begun, with their versions and dirty bytes.
    begun: Vec<(BlockId, u32, u64)>,
}

/// The node manager of the one node of a replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manager {
    workers: Vec<Worker>,
    /// How often room was asked for.
    pub room_wanted: u32,
    /// How often blocks of RAM became clean while its room was short.
    cleaned: u32,
    /// Blocks that plans want to be free in each tier.
    planned: Vec<u64>,
    /// How often writers began to wait.
    pub waits: u32,
    /// Clean and pinned blocks of each tier, as its demoter saw them last.
    clean: Vec<u64>,
    /// Files whose syncs are wanted.
    syncs: VecDeque<u32>,
    /// Tiers in which blocks became hot, and uses from which they do.
    hot: BTreeSet<usize>,
    promotes_at: Vec<u32>,
    /// Of tiers with hot blocks that had nothing to be exchanged for: how long the promoter waits
    /// to look again, in milliseconds, and until when.
    stuck: Vec<Option<(u64, u64)>>,
    /// Free bytes of RAM that writers' bursts will take.
    pub kept_free: u64,
    /// When each tier's device is free again, and last the store's.
    free_ns: Vec<u64>,
}

impl Manager {
    /// Of a node with so many tiers.
    pub fn new(levels: usize) -> Self {
        let all = 0..levels;
        let below = 1..levels;
        let jobs = all.clone().map(Job::Demote).chain(below.map(Job::Place));
        let jobs = jobs.chain(all.map(Job::Flush)).chain([Job::Sync, Job::Promote]);
        let worker = |job| Worker {
            job,
            pieces: VecDeque::new(),
            under_way: None,
            answered: (0, 0),
            freed: 0,
            is_awaited: false,
            has_worked: false,
            headroom: Headroom::default(),
            rests_ns: None,
            pause: 0,
            in_vain: 0,
            given_up: 0,
            file: None,
            begun: Vec::new(),
        };
        Self {
            workers: jobs.map(worker).collect(),
            planned: vec![0; levels],
            clean: vec![0; levels],
            promotes_at: vec![1; levels],
            stuck: vec![None; levels],
            kept_free: 0,
            free_ns: vec![0; levels + 1],
            ..Self::default()
        }
    }

    fn number(&self, job: Job) -> Option<usize> {
        self.workers.iter().position(|worker| worker.job == job)
    }

    /// Blocks of a tier that are clean, as far as programs know.
    pub fn clean(&self, level: usize) -> u64 {
        self.clean[level]
    }
}

impl Simulation {
    /// Begins the life of all workers.
    pub fn begin_manager(&mut self) {
        for worker in 0..self.manager.workers.len() {
            self.work(worker);
        }
    }

    fn unit(&self) -> u64 {
        self.run.cluster.block
    }

    fn piece_blocks(&self, level: usize) -> usize {
        piece_blocks(self.shelves[level].capacity, self.unit()) as usize
    }

    fn batch_blocks(&self) -> usize {
        (BATCH_BYTES / self.unit()).max(1) as usize
    }

    /// The tiers as the node manager's workers see them: space, and no speeds.
    fn space(&self) -> Hierarchy {
        self.hierarchy(0)
    }

    /// Blocks in RAM that are on their way down.
    pub fn bound_in_ram(&self) -> u64 {
        let list = &self.shelves[0].list;
        list.iter().filter(|id| self.blocks[**id].bound.is_some()).count() as u64
    }

    /// Blocks in RAM that are on their way to this tier.
    pub fn bound_for(&self, level: usize) -> u64 {
        let list = &self.shelves[0].list;
        let is_bound = |id: &&BlockId| self.blocks[**id].bound == Some(level as u8);
        list.iter().filter(is_bound).count() as u64
    }

    /// When a transfer is over that begins now: at an emulated device it waits for its turn, as
    /// [`pace`] has it in the node manager and in programs; RAM is each one's own.
    pub fn pass(&mut self, place: Option<usize>, writes: bool, bytes: u64) -> u64 {
        let cluster = &self.run.cluster;
        let device = match place {
            Some(level) => cluster.tiers[self.levels[level]].device,
            None => cluster.store.device,
        };
        let Device { read_bandwidth, write_bandwidth, latency_ns } = device;
        let bandwidth = if writes { write_bandwidth } else { read_bandwidth };
        let now_ns = self.now_ns();
        if place == Some(0) {
            return pace(now_ns, 0, bytes, bandwidth, latency_ns).wake_ns;
        }
        let index = place.unwrap_or(self.levels.len());
        let paced = pace(now_ns, self.manager.free_ns[index], bytes, bandwidth, latency_ns);
        self.manager.free_ns[index] = paced.next_free_ns;
        paced.wake_ns
    }

    /// Asks for room, which wakes all demoters.
    pub fn want_room(&mut self) {
        self.manager.room_wanted = self.manager.room_wanted.wrapping_add(1);
        for level in 0..self.levels.len() {
            self.wake_worker(Job::Demote(level));
        }
    }

    /// Blocks of RAM have become clean, or stay there: where its room is short its demoter looks.
    fn look_for_room(&mut self) {
        if self.is_short(0) {
            self.manager.cleaned = self.manager.cleaned.wrapping_add(1);
            for level in 0..self.levels.len() {
                self.wake_worker(Job::Demote(level));
            }
        }
    }

    /// A plan wants so many bytes to be free in a tier.
    pub fn plan_room(&mut self, level: usize, bytes: u64) {
        let blocks = bytes.div_ceil(self.unit());
        if self.manager.planned[level] < blocks {
            self.manager.planned[level] = blocks;
            self.want_room();
        }
    }

    /// Notes that a block in RAM is to go to a tier.
    pub fn bind(&mut self, id: BlockId, level: usize) {
        self.blocks[id].bound = Some(level as u8);
        for below in 1..self.levels.len() {
            self.wake_worker(Job::Place(below));
        }
    }

    /// Space of a tier was taken: its demoter is woken when it falls below the low watermark.
    pub fn after_take(&mut self, level: usize, before: u64) {
        let low = self.low_blocks(level) * self.unit();
        let shelf = &self.shelves[level];
        if before >= low && shelf.capacity - shelf.used < low {
            self.want_room();
        }
    }

    fn low_blocks(&self, level: usize) -> u64 {
        let capacity = self.shelves[level].capacity;
        ((capacity as f64 * self.watermarks().low) as u64 / self.unit()).max(1)
    }

    /// The sync of a file is wanted, which its trigger asks for.
    pub fn want_sync(&mut self, file: u32) {
        if !self.manager.syncs.contains(&file) {
            self.manager.syncs.push_back(file);
        }
        self.wake_worker(Job::Sync);
        for level in 0..self.levels.len() {
            self.wake_worker(Job::Flush(level));
        }
    }

    /// All programs have ended: everything is flushed.
    pub fn drain(&mut self) {
        for level in 0..self.levels.len() {
            self.wake_worker(Job::Flush(level));
        }
    }

    /// A block of a file tier was used.
    pub fn note_use(&mut self, id: BlockId) {
        let Place::Tier(level @ 1..) = self.blocks[id].place else { return };
        let block = promote::Block::of(self.blocks[id].access_stats, false);
        let level = usize::from(level);
        if promote::is_asked_for(&block, self.manager.promotes_at[level]) {
            self.manager.hot.insert(level);
            self.wake_worker(Job::Promote);
        }
    }

    fn wake_worker(&mut self, job: Job) {
        // Behind what happens now, as another thread is.
        if let Some(worker) = self.manager.number(job) {
            let pause = self.pause_of(worker);
            self.at(self.now_ns(), Event::Work { worker, pause });
        }
    }

    fn pause_of(&mut self, worker: usize) -> u64 {
        self.manager.workers[worker].pause
    }

    /// A pause of a worker is over, or it is woken: of one that is at work, or has looked since, no
    /// notice is taken.
    pub fn resume(&mut self, worker: usize, pause: u64) {
        let state = &self.manager.workers[worker];
        if state.pause == pause && state.under_way.is_none() {
            self.work(worker);
        }
    }

    /// What a worker was waiting for has happened.
    pub fn work(&mut self, worker: usize) {
        self.manager.workers[worker].pause += 1;
        loop {
            if self.manager.workers[worker].under_way.is_some() {
                if !self.go_on(worker) {
                    return;
                }
                self.finish_piece(worker);
                continue;
            }
            match self.manager.workers[worker].pieces.pop_front() {
                Some(piece) if self.is_held(worker, &piece) => {
                    self.manager.workers[worker].pieces.push_front(piece);
                    return;
                }
                Some(piece) => self.start_piece(worker, piece),
                None => {
                    if let Some(wait_ns) = self.look_for_work(worker) {
                        let pause = self.manager.workers[worker].pause;
                        if let Some(wait_ns) = wait_ns {
                            self.at(self.now_ns() + wait_ns, Event::Work { worker, pause });
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Whether a sync waits for a flush of one of its blocks that another worker is at: those
    /// before it are begun, and stay where they are meanwhile.
    fn is_held(&mut self, worker: usize, piece: &Piece) -> bool {
        if self.manager.workers[worker].job != Job::Sync {
            return false;
        }
        for &id in &piece.blocks {
            if self.manager.workers[worker].begun.iter().any(|(begun, ..)| *begun == id) {
                continue;
            }
            if self.blocks[id].flushing {
                return true;
            }
            let begun = self.begin_flush(id);
            self.manager.workers[worker].begun.extend(begun);
        }
        false
    }

    /// Begins the flush of a block, if it is dirty in a tier.
    fn begin_flush(&mut self, id: BlockId) -> Option<(BlockId, u32, u64)> {
        let block = &mut self.blocks[id];
        let is_there = matches!(block.place, Place::Tier(_));
        if !is_there || block.dirty == 0 || block.flushing || block.writers > 0 {
            return None;
        }
        block.flushing = true;
        Some((id, block.version, block.dirty))
    }

    /// Starts the next step of what a worker is at; false if it has to wait for it.
    fn go_on(&mut self, worker: usize) -> bool {
        let state = &mut self.manager.workers[worker];
        let Some(under_way) = state.under_way.as_mut() else { return true };
        match under_way.steps.pop_front() {
            None => return true,
            Some(Step { place, writes, bytes }) => {
                let wake_ns = self.pass(place, writes, bytes);
                self.start_until(wake_ns, Task::Work { worker });
            }
        }
        false
    }

    /// Fills a worker's list. `None`: there is something to do; else for how long it pauses, if it
    /// is not to be woken only.
    fn look_for_work(&mut self, worker: usize) -> Option<Option<u64>> {
        match self.manager.workers[worker].job {
            Job::Demote(level) => self.look_demoter(worker, level),
            Job::Place(level) => self.look_placer(worker, level),
            Job::Flush(level) => self.look_flusher(worker, level),
            Job::Sync => self.look_syncer(worker),
            Job::Promote => self.look_promoter(worker),
        }
    }

    fn look_demoter(&mut self, worker: usize, level: usize) -> Option<Option<u64>> {
        let now_ns = self.now_ns();
        let (unit, marks) = (self.unit(), self.watermarks());
        let now = (self.manager.room_wanted, self.manager.cleaned);
        let state = &mut self.manager.workers[worker];
        if std::mem::take(&mut state.has_worked) && state.freed == 0 && state.answered == now {
            return Some(self.demoter_pause(worker));
        }
        let asked = self.manager.workers[worker].answered.0 != now.0;
        self.manager.workers[worker].answered = now;
        let hierarchy = self.space();
        let Some(snapshot) = hierarchy.tier(level) else { return Some(None) };
        if Level::of(&snapshot, marks, 0).is_roomy {
            (level + 1..self.levels.len()).for_each(|below| self.manager.promotes_at[below] = 1);
        }
        let waits = Waits { all: self.manager.waits.into(), for_quotas: 0 };
        let moves_down = destination(&hierarchy, level, unit) != Destination::Store;
        let state = &mut self.manager.workers[worker];
        let headroom = state.headroom.look(now_ns / MS, waits, moves_down, &snapshot, marks, unit);
        let is_pressed = headroom.is_some();
        let kept = state.headroom.kept();
        if level == 0 {
            self.manager.kept_free = kept;
        }
        let planned = std::mem::take(&mut self.manager.planned[level]) * unit;
        let planned = in_turns(&snapshot, planned, unit);
        let headroom = headroom.filter(|_| level == 0);
        let pressure = Pressure { asked: asked && level == 0, headroom, planned };
        let wanted = wanted(pressure, unit);
        let settings = Settings { marks, unit, moves_down: true };
        let event = Happened::Space { tier: level, wanted };
        let bytes: u64 = organize(&event, &hierarchy, &settings)
            .iter()
            .map(|task| if let Decided::Demote { bytes, .. } = task { bytes } else { 0 })
            .sum();
        let bound = if level == 0 { self.bound_in_ram() * unit } else { 0 };
        let bytes = bytes.saturating_sub(bound);
        if bytes == 0 {
            if asked && level == 0 {
                self.post_room();
            }
            return Some(self.demoter_pause(worker));
        }
        let gets_room = level == 0 && snapshot.free + bound >= planned.max(1);
        self.manager.workers[worker].is_awaited =
            asked && (is_pressed || planned > 0) && wanted > snapshot.free + bound && !gets_room;
        let mut victims = self.leaving(level, (bytes / unit) as usize, &hierarchy);
        let mut freed = 0;
        for id in std::mem::take(&mut victims.dropped) {
            self.evict_clean(id, level);
            freed += 1;
        }
        if freed > 0 && level == 0 {
            self.post_room();
        }
        self.manager.workers[worker].freed = freed;
        let piece = self.piece_blocks(level);
        let mut pieces = VecDeque::new();
        for blocks in victims.kept.chunks(piece) {
            let goal = Goal::Tier(level + 1);
            pieces.push_back(Piece::of(level, goal, blocks));
        }
        if level == 0 && (is_pressed || planned > 0) {
            self.spread(&mut victims.dirty);
        }
        let moves = |id: &BlockId| self.policy_of(self.blocks[*id].file).policy().moves_down();
        for blocks in victims.dirty.chunk_by(|a, b| moves(a) == moves(b)) {
            for blocks in blocks.chunks(piece) {
                pieces.push_back(Piece::of(level, Goal::Down, blocks));
            }
        }
        let state = &mut self.manager.workers[worker];
        state.has_worked = true;
        state.pieces = pieces;
        None
    }

    fn is_short(&self, level: usize) -> bool {
        let shelf = &self.shelves[level];
        shelf.capacity - shelf.used < self.low_blocks(level) * self.unit()
    }

    fn demoter_pause(&self, worker: usize) -> Option<u64> {
        let lately = self.manager.workers[worker].headroom.is_pressed();
        // When all have ended nothing is left but the drain.
        (!self.ended).then_some(if lately { LOOK_PRESSED_MS } else { LOOK_MS } * MS)
    }

    /// What leaves a tier: what is dropped, kept one tier down, and dirty.
    fn leaving(&mut self, level: usize, want: usize, hierarchy: &Hierarchy) -> Victims<BlockId> {
        let now_ms = self.now_ms();
        let capacity = self.shelves[level].capacity;
        let mut clean = 0;
        let mut candidates = Vec::new();
        for &id in &self.shelves[level].list {
            let block = &self.blocks[id];
            if block.flushing || block.writers > 0 || block.bound.is_some() {
                continue;
            }
            // One that is being filled has nothing yet, and nothing that could be dropped.
            clean += u64::from(block.valid > 0 && block.dirty == 0);
            let of_file = self.policy_of(block.file).policy();
            let bytes = self.blocks.written_end(block.file);
            let FileSettings { pin, priority, .. } = self.settings_of(block.file);
            candidates.push(Candidate {
                id,
                access_stats: block.access_stats,
                pinned: pin,
                priority,
                worth: of_file.worth(self.hotness(block.file), bytes, capacity),
                leaves: false,
            });
        }
        self.manager.clean[level] = clean;
        let found = choose(self.run.strategy.eviction, &mut candidates, want * CHOICE, now_ms);
        for candidate in candidates.iter().filter(|candidate| !candidate.leaves) {
            self.blocks[candidate.id].access_stats = candidate.access_stats;
        }
        let below = hierarchy.tier(level + 1);
        let pays = || keeping_pays(hierarchy, level + 1, self.unit());
        let keeps = Keeps::of(below.as_ref(), self.watermarks(), pays);
        let mut victims = Victims::default();
        for id in candidates[..found].iter().map(|candidate| candidate.id) {
            let (file, number) = (self.blocks[id].file, self.blocks[id].number);
            let (hotness, is_again) = (self.hotness(file), self.blocks[id].access_stats.is_main());
            let (trail, key) = self.trail(0, file, number);
            let reads = Reads::of(hotness, is_again, trail.is_from_device(key));
            victims.push(fate(self.blocks[id].dirty > 0, reads, keeps), id);
        }
        let mut victims = victims.cheapest(want);
        for list in [&mut victims.kept, &mut victims.dirty] {
            list.sort_unstable_by_key(|id| (self.blocks[*id].file, self.blocks[*id].number));
        }
        victims
    }

    /// Leaves to the placers of other tiers the share of these blocks that they move in the time
    /// that the first needs for what stays.
    fn spread(&mut self, dirty: &mut Vec<BlockId>) {
        let spreads = |id: &BlockId| self.policy_of(self.blocks[*id].file).policy().spreads();
        let spreading: Vec<BlockId> = dirty.iter().copied().filter(spreads).collect();
        let hierarchy = self.as_programs_see();
        let count = spreading.len() as u64;
        let Division { itself, placers } =
            divide(&hierarchy, self.watermarks(), 0, count, self.unit());
        let mut spreading = spreading.into_iter().skip(itself as usize);
        let mut given = BTreeSet::new();
        for (level, &count) in placers.iter().enumerate().take(self.levels.len()).skip(1) {
            for id in spreading.by_ref().take(count as usize) {
                self.bind(id, level);
                given.insert(id);
            }
        }
        dirty.retain(|id| !given.contains(id));
    }

    fn evict_clean(&mut self, id: BlockId, level: usize) {
        self.outcome.tiers[level].evicted += self.blocks[id].valid;
        self.drop_block(id);
        let now_ms = self.now_ms();
        self.blocks[id].access_stats = AccessStats::arriving(now_ms, false);
        let clean = &mut self.manager.clean[level];
        *clean = clean.saturating_sub(1);
    }

    fn look_placer(&mut self, worker: usize, level: usize) -> Option<Option<u64>> {
        let now_ns = self.now_ns();
        let is_short = self.is_short(0);
        let mut ready = Vec::new();
        let (mut bound, mut stays) = (0, false);
        for id in self.shelves[0].list.clone() {
            let block = &mut self.blocks[id];
            if block.bound != Some(level as u8) {
                continue;
            }
            if block.dirty == 0 && block.valid > 0 && block.writers == 0 {
                block.bound = None;
                stays = true;
                continue;
            }
            bound += 1;
            let is_full = block.valid >= self.run.cluster.block;
            let age_ms = (now_ns - block.written_ns) / MS;
            let goes = is_ripe(is_full, is_short, age_ms, RIPE_MS);
            if goes && block.writers == 0 && !block.flushing && !block.moving {
                ready.push(id);
            }
        }
        if stays {
            self.look_for_room();
        }
        let wait = Some((bound > 0).then_some(PLACER_LOOK_MS * MS));
        let is_full = self.shelves[level].used + self.unit() > self.shelves[level].capacity;
        let state = &mut self.manager.workers[worker];
        state.in_vain = if is_full && !ready.is_empty() { state.in_vain + 1 } else { 0 };
        let waits = is_full && state.in_vain <= PLACER_PATIENCE;
        if ready.is_empty() {
            self.post_room();
        }
        if ready.is_empty() || waits {
            return wait;
        }
        if is_full {
            self.manager.workers[worker].in_vain = 0;
            // To the next tier that has room, or like any other block.
            for id in ready {
                match destination(&self.space(), level, self.unit()) {
                    Destination::Tier(below) => self.bind(id, below),
                    Destination::Store => self.blocks[id].bound = None,
                }
            }
            self.want_room();
            self.post_room();
            return wait;
        }
        ready.sort_unstable_by_key(|id| (self.blocks[*id].file, self.blocks[*id].number));
        let piece = self.piece_blocks(0);
        let spreads = |id: &BlockId| self.policy_of(self.blocks[*id].file).policy().spreads();
        let groups = ready.chunk_by(|a, b| spreads(a) == spreads(b));
        let pieces: VecDeque<Piece> = groups
            .flat_map(|group| group.chunks(piece))
            .map(|blocks| Piece::of(0, Goal::Tier(level), blocks))
            .collect();
        self.manager.workers[worker].pieces = pieces;
        None
    }

    fn look_flusher(&mut self, worker: usize, level: usize) -> Option<Option<u64>> {
        let pause_ms = if self.ended { DRAIN_LOOK_MS } else { self.settings().ages.pause_ms() };
        let mut due: Vec<BlockId> = self.shelves[level].list.clone();
        due.retain(|id| self.is_due_now(*id));
        if due.is_empty() {
            // The drain is over when nothing is under way.
            let mut workers = self.manager.workers.iter();
            let goes_on = !self.ended || workers.any(|worker| worker.under_way.is_some());
            return Some((goes_on && self.may_be_due()).then_some(pause_ms * MS));
        }
        self.manager.workers[worker].pieces = self.by_file(due, level);
        None
    }

    fn may_be_due(&self) -> bool {
        let of_files = self.settings().files.iter().filter_map(|file| file.trigger);
        let mut triggers = of_files.chain(self.usual_trigger());
        let ages = self.settings().ages;
        self.ended || triggers.any(|trigger| ages.after_ms(trigger, false).is_some())
    }

    fn is_due_now(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        // Of a file without a name only a want of room, or a sync, takes anything to the store.
        if block.dirty == 0 || block.flushing || self.blocks.is_removed(block.file) {
            return false;
        }
        let age_ms = |since_ns| (self.now_ns() - since_ns) / MS;
        let (age_ms, dirty_ms) = (age_ms(block.written_ns), age_ms(block.dirtied_ns));
        let trigger = self.trigger_of(block.file);
        let ages = self.settings().ages;
        trigger.is_some_and(|trigger| ages.is_due(trigger, self.ended, age_ms, dirty_ms))
    }

    pub fn settings(&self) -> &ManagerSettings {
        self.run.strategy.manager.as_ref().unwrap_or(&NO_MANAGER)
    }

    /// What rules set for a file.
    pub fn settings_of(&self, file: u32) -> FileSettings {
        self.settings().files.get(file as usize).copied().unwrap_or_default()
    }

    /// When the dirty blocks of a file are flushed; `None`: never.
    pub fn trigger_of(&self, file: u32) -> Option<FileTrigger> {
        self.settings_of(file).trigger.or_else(|| self.usual_trigger())
    }

    fn usual_trigger(&self) -> Option<FileTrigger> {
        match self.run.strategy.trigger {
            Trigger::PerOperation => Some(FileTrigger::PerOperation),
            Trigger::PerFile => Some(FileTrigger::PerFile),
            Trigger::OnExit => Some(FileTrigger::OnExit),
            Trigger::Periodic(_) => Some(FileTrigger::Periodic),
            Trigger::Never => None,
        }
    }

    /// The policy that places and moves the blocks of a file.
    pub fn policy_of(&self, file: u32) -> PolicyId {
        self.settings_of(file).policy.unwrap_or(self.policy)
    }

    /// Batches of a flush, in file order, each of one file.
    fn by_file(&self, mut blocks: Vec<BlockId>, from: usize) -> VecDeque<Piece> {
        blocks.sort_unstable_by_key(|id| (self.blocks[*id].file, self.blocks[*id].number));
        let most = self.batch_blocks();
        let of_files = blocks.chunk_by(|a, b| self.blocks[*a].file == self.blocks[*b].file);
        of_files
            .flat_map(|of_file| of_file.chunks(most))
            .map(|batch| Piece::of(from, Goal::Store, batch))
            .collect()
    }

    fn look_syncer(&mut self, worker: usize) -> Option<Option<u64>> {
        let (file, left) = match self.manager.workers[worker].file.take() {
            Some((file, left)) if left > 0 => (file, left),
            _ => {
                let passes = sync_passes(self.levels.len());
                let Some(file) = self.manager.syncs.pop_front() else { return Some(None) };
                (file, passes)
            }
        };
        self.manager.workers[worker].file = Some((file, left - 1));
        let blocks = self.blocks.of_file(file);
        let of_file = blocks.into_iter();
        let dirty = of_file.filter(|id| {
            let block = &self.blocks[*id];
            (block.dirty > 0 || block.flushing) && matches!(block.place, Place::Tier(_))
        });
        let pieces = self.by_file(dirty.collect(), 0);
        if pieces.is_empty() {
            self.manager.workers[worker].file = None;
        }
        self.manager.workers[worker].pieces = pieces;
        None
    }

    fn look_promoter(&mut self, worker: usize) -> Option<Option<u64>> {
        let now_ns = self.now_ns();
        let state = &mut self.manager.workers[worker];
        if std::mem::take(&mut state.has_worked) {
            // Uses in the pause wake no thread; they are seen behind it.
            state.rests_ns = Some(now_ns + PROMOTER_REST_MS * MS);
        }
        let of_stuck = self.manager.stuck.iter().enumerate();
        let of_stuck = of_stuck.filter_map(|(level, stuck)| Some((stuck.as_ref()?.1, level)));
        let next_look = of_stuck.min();
        if self.ended || self.manager.hot.is_empty() && next_look.is_none() {
            return Some(None);
        }
        if let Some(rests_ns) = state.rests_ns.filter(|rests_ns| *rests_ns > now_ns) {
            return Some(Some(rests_ns - now_ns));
        }
        let level = match (self.manager.hot.pop_first(), next_look) {
            (Some(level), _) => level,
            (None, Some((due_ns, level))) if due_ns <= now_ns => level,
            (None, next_look) => return Some(next_look.map(|(due_ns, _)| due_ns - now_ns)),
        };
        let (unit, marks) = (self.unit(), self.watermarks());
        let hierarchy = self.space();
        self.manager.workers[worker].has_worked = true;
        let mut hot: Vec<(promote::Block, BlockId)> = self.uses(level).collect();
        hot.retain(|(block, id)| block.uses > 0 && self.may_come(*id));
        hot.sort_by_key(|(block, _)| std::cmp::Reverse(block.uses));
        let mut least = u32::MAX;
        let mut pieces = VecDeque::new();
        let mut left = Left::Nothing;
        for above in 0..level {
            let Some(snapshot) = hierarchy.tier(above) else { continue };
            let may_leave = self.uses(above).filter(|(block, _)| !block.pinned);
            let to =
                Level::of(&snapshot, marks, 0).with_coldest(may_leave.map(|(block, _)| block.uses));
            least = least.min(asked(&to));
            let compares = |id: &BlockId| self.compares_hotness(self.blocks[*id].file);
            let Rise { mut comes, exchanged, rest } =
                rise(hot, &snapshot, &to, (marks, unit), compares);
            hot = rest;
            comes.sort_unstable_by_key(|id| (self.blocks[*id].file, self.blocks[*id].number));
            let most = exchanges_at_once(&snapshot, unit, comes.len() as u64) as usize;
            let (came, wanted) = (comes.len(), exchanged.len());
            if !comes.is_empty() {
                pieces.push_back(Piece::of(level, Goal::Tier(above), &comes));
            }
            let exchanged = self.exchange(&exchanged[..most.min(wanted)], level, above, &to);
            let gone = exchanged.first().map_or(0, |gone| gone.blocks.len());
            left = left.max(Left::of(came + gone, came + wanted));
            pieces.extend(exchanged);
        }
        self.manager.promotes_at[level] = least;
        let patience_ms = self.manager.stuck[level].map_or(0, |(patience_ms, _)| patience_ms);
        self.manager.stuck[level] = (left == Left::Stuck).then(|| {
            let patience_ms = promoter_patience_ms(patience_ms);
            (patience_ms, now_ns + patience_ms * MS)
        });
        if left == Left::More {
            self.manager.hot.insert(level);
        }
        self.manager.workers[worker].pieces = pieces;
        None
    }

    /// The blocks of a tier, with what is known of their use.
    fn uses(&self, level: usize) -> impl Iterator<Item = (promote::Block, BlockId)> {
        self.shelves[level].list.iter().map(|&id| {
            let block = &self.blocks[id];
            (promote::Block::of(block.access_stats, self.settings_of(block.file).pin), id)
        })
    }

    /// Whether the policy of a file compares hotness. Where a rule names a tier, none does.
    fn compares_hotness(&self, file: u32) -> bool {
        let is_free = self.settings_of(file).tier.is_none();
        is_free && self.policy_of(file).policy().compares_hotness()
    }

    /// Pieces that bring hot blocks, the hottest first, to a tier without room to spare, each for a
    /// block there that is colder.
    fn exchange(
        &self,
        hot: &[(promote::Block, BlockId)],
        level: usize,
        above: usize,
        to: &Level,
    ) -> Vec<Piece> {
        let Some((hottest, _)) = hot.first() else { return Vec::new() };
        let capacity = self.shelves[above].capacity;
        let rank = |id: BlockId| {
            let file = self.blocks[id].file;
            let bytes = self.blocks.written_end(file);
            let worth = self.policy_of(file).policy().worth(self.hotness(file), bytes, capacity);
            (self.settings_of(file).priority, worth)
        };
        let may_leave = |id: BlockId| {
            let block = &self.blocks[id];
            let is_still = block.writers == 0 && !block.moving && !block.flushing;
            is_still && block.bound.is_none() && self.policy_of(block.file).policy().moves_down()
        };
        let cold = self.uses(above).filter(|(block, id)| {
            let rival = Level { coldest: block.uses, ..*to };
            !block.pinned && exchanges(hottest, &rival) && may_leave(*id)
        });
        let cold = cold.map(|(block, id)| (rank(id), block.uses, id)).collect();
        let pairs = pairs(hot.iter().map(|(block, id)| (*block, rank(*id), *id)), cold, to);
        let bytes = pairs.len() as u64 * self.unit();
        let WayDown::Tier(below) = way_down(&self.space(), above, bytes, true) else {
            return Vec::new();
        };
        let (mut up, mut down): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        if up.is_empty() {
            return Vec::new();
        }
        for list in [&mut up, &mut down] {
            list.sort_unstable_by_key(|id| (self.blocks[*id].file, self.blocks[*id].number));
        }
        let gone = Piece::of(above, Goal::Tier(below), &down);
        let come = Piece::of(level, Goal::Tier(above), &up);
        let (gone, come) = (gone.exchanging(Exchange::Gone), come.exchanging(Exchange::Come));
        vec![gone, come]
    }

    /// Begins a piece: what has become of its blocks meanwhile is seen now.
    fn start_piece(&mut self, worker: usize, piece: Piece) {
        let job = self.manager.workers[worker].job;
        let is_demoter = matches!(job, Job::Demote(_));
        let goal = match piece.goal {
            Goal::Down => {
                let state = &self.manager.workers[worker];
                let file = self.blocks[piece.blocks[0]].file;
                let moves_down = self.policy_of(file).policy().moves_down()
                    || state.is_awaited && state.freed == 0;
                let bytes = piece.blocks.len() as u64 * self.unit();
                match way_down(&self.space(), piece.from, bytes, moves_down) {
                    WayDown::Tier(below) => Goal::Tier(below),
                    WayDown::Flush => Goal::Store,
                    WayDown::Wait => return,
                }
            }
            goal => goal,
        };
        match goal {
            Goal::Tier(to) => self.start_shift(worker, piece, to),
            _ => self.start_store(worker, piece, is_demoter),
        }
    }

    fn start_shift(&mut self, worker: usize, piece: Piece, to: usize) {
        let unit = self.unit();
        let mut taken = Vec::new();
        let mut bytes = 0;
        for &id in &piece.blocks {
            let block = &self.blocks[id];
            let is_there = block.place == Place::Tier(piece.from as u8);
            if !is_there || block.writers > 0 || block.moving || block.valid == 0 {
                continue;
            }
            let given_up = &mut self.manager.workers[worker].given_up;
            if piece.exchange == Exchange::Come && *given_up > 0 {
                *given_up -= 1;
            } else if self.shelves[to].used + unit > self.shelves[to].capacity {
                break;
            } else {
                let before = self.shelves[to].capacity - self.shelves[to].used;
                self.reserve(to, unit);
                self.after_take(to, before);
            }
            let block = &mut self.blocks[id];
            block.moving = true;
            bytes += block.valid;
            taken.push((id, block.version, block.dirty));
        }
        if taken.is_empty() {
            self.end_exchange(worker, piece.exchange, to);
            return;
        }
        // In memory its sums are computed, before the device gets it or after.
        let steps = [(piece.from, false), (to, true)];
        let step = |(level, writes)| Step { place: Some(level), writes, bytes };
        let steps = steps.into_iter().map(step).collect();
        let to = Place::Tier(to as u8);
        let written = self.written[0];
        let under_way = UnderWay { piece, taken, steps, to, evict: false, written };
        self.manager.workers[worker].under_way = Some(under_way);
    }

    /// What was kept for blocks that did not come is free.
    fn end_exchange(&mut self, worker: usize, exchange: Exchange, above: usize) {
        if exchange == Exchange::Come {
            let kept = std::mem::take(&mut self.manager.workers[worker].given_up);
            self.shelves[above].used -= kept * self.unit();
            if kept > 0 && above == 0 {
                self.post_room();
            }
        }
    }

    fn start_store(&mut self, worker: usize, piece: Piece, evict: bool) {
        let mut taken = std::mem::take(&mut self.manager.workers[worker].begun);
        for &id in &piece.blocks {
            taken.extend(self.begin_flush(id));
        }
        let mut from_tiers = vec![0; self.levels.len()];
        for &(id, _, dirty) in &taken {
            if let Place::Tier(level) = self.blocks[id].place {
                from_tiers[usize::from(level)] += dirty;
            }
        }
        if taken.is_empty() && !evict {
            return;
        }
        let mut steps = VecDeque::new();
        for (level, &bytes) in from_tiers.iter().enumerate().skip(1) {
            if bytes > 0 {
                steps.push_back(Step { place: Some(level), writes: false, bytes });
            }
        }
        let bytes = from_tiers.iter().sum();
        if bytes > 0 {
            steps.push_back(Step { place: None, writes: true, bytes });
        }
        let (to, written) = (Place::Store, self.written[0]);
        let under_way = UnderWay { piece, taken, steps, to, evict, written };
        self.manager.workers[worker].under_way = Some(under_way);
    }

    /// All steps of a piece are done: the index names the new places.
    fn finish_piece(&mut self, worker: usize) {
        let Some(done) = self.manager.workers[worker].under_way.take() else { return };
        let freed = match done.to {
            Place::Tier(to) => self.shifted(&done, usize::from(to)),
            Place::Store => self.stored(&done),
        };
        if done.piece.from == 0 && (done.evict || done.to != Place::Store) {
            self.note_exposure(0, freed as usize, done.written);
        }
        match (done.piece.exchange, done.to) {
            (Exchange::Gone, _) => {
                self.manager.workers[worker].given_up += u64::from(freed);
                self.reserve(done.piece.from, u64::from(freed) * self.unit());
            }
            (Exchange::Come, Place::Tier(to)) => {
                self.end_exchange(worker, Exchange::Come, usize::from(to));
            }
            _ => {}
        }
        self.manager.workers[worker].freed += freed;
        let job = self.manager.workers[worker].job;
        if let (Place::Tier(to), true) = (done.to, self.ended) {
            self.wake_worker(Job::Flush(usize::from(to)));
        }
        if let (Job::Demote(level @ 1..), true) = (job, freed > 0)
            && self.bound_for(level) > 0
        {
            self.wake_worker(Job::Place(level));
        }
        let from_ram = done.piece.from == 0;
        if freed > 0 && from_ram && matches!(job, Job::Demote(_) | Job::Place(_)) {
            self.post_room();
        }
    }

    fn shifted(&mut self, done: &UnderWay, to: usize) -> u32 {
        let (unit, now_ms) = (self.unit(), self.now_ms());
        let mut moved = 0;
        for &(id, version, _) in &done.taken {
            let block = &mut self.blocks[id];
            block.moving = false;
            let from = Place::Tier(done.piece.from as u8);
            let is_same = block.version == version && block.writers == 0 && !block.flushing;
            if !is_same || block.place != from {
                self.shelves[to].used -= unit;
                continue;
            }
            let (valid, stats) = (block.valid, block.access_stats);
            let up = to < done.piece.from;
            block.access_stats = if up { promoted(stats, now_ms) } else { stats.stamped(now_ms) };
            match up {
                true => self.outcome.tiers[to].promoted += valid,
                false => self.outcome.tiers[done.piece.from].demoted += valid,
            }
            self.outcome.moved(done.piece.from, Some(to), unit);
            self.blocks[id].bound = None;
            self.drop_block(id);
            self.enlist(id, to);
            moved += 1;
        }
        moved
    }

    fn stored(&mut self, done: &UnderWay) -> u32 {
        self.flush_end_ns = self.now_ns();
        for &(id, version, bytes) in &done.taken {
            let block = &mut self.blocks[id];
            block.flushing = false;
            self.outcome.flushed += bytes;
            let Place::Tier(level) = block.place else { continue };
            let level = usize::from(level);
            self.outcome.moved(level, None, bytes);
            if self.blocks[id].version != version {
                continue;
            }
            self.blocks[id].dirty = 0;
            self.shelves[level].dirty -= bytes;
            self.shelves[level].dirty_blocks -= 1;
            self.outcome.safe += bytes;
            self.manager.clean[level] += 1;
        }
        self.wake_worker(Job::Sync);
        if done.taken.iter().any(|(id, ..)| self.blocks[*id].place == Place::Tier(0)) {
            self.look_for_room();
            if self.bound_in_ram() > 0 {
                (1..self.levels.len()).for_each(|below| self.wake_worker(Job::Place(below)));
            }
        }
        if !done.evict {
            return 0;
        }
        let mut freed = 0;
        for &id in &done.piece.blocks {
            let block = &self.blocks[id];
            let is_there = block.place == Place::Tier(done.piece.from as u8);
            if is_there && block.dirty == 0 && block.writers == 0 && !block.moving {
                self.evict_clean(id, done.piece.from);
                freed += 1;
            }
        }
        freed
    }

    /// Room was made in RAM, or nothing is on its way out any more: those that wait look again, in
    /// turn.
    pub fn post_room(&mut self) {
        let waiting = self.shelves[0].waiting.len();
        for _ in 0..waiting {
            let is_full = self.shelves[0].used + self.unit() > self.shelves[0].capacity;
            if is_full && !self.has_vain_wait() {
                break;
            }
            let Some(rank) = self.next_waiting(0) else { break };
            self.write_on(rank);
        }
    }
}
