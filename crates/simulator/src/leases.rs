//! Leases on a virtual clock: the directories of a group of nodes with modelled pools, over a
//! network that loses, delays, repeats and reorders messages, with nodes that stop, die and come
//! back. Programs read and write a few files; what they read has to be the newest that was written,
//! or refused with the name of the node that has it.
//!
//! ```
//! use forebay_simulator::leases::{Leases, simulate};
//!
//! let outcome = simulate(&Leases::random(7)).unwrap();
//! // A short run: tests make thousands of them.
//! assert!(outcome.reads > 50 && outcome.writes > 50);
//! ```
//!
//! A file has one number as its content, which each write raises, and which is its size, too. A
//! view is on the modelled store at once; each node finds it with its next look, and may act for
//! half of the grace period after a look began, as `membership::Views` has it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

pub use forebay_directory::KINDS;
use forebay_directory::{
    Body, Claim, Directory, Effect, Facts, Level, Message, Sized, Tuning, Why,
};
use forebay_membership::{FileId, Incarnation, Member, NodeId, Seat, Times, View};
use forebay_placement::Random;

/// How long a node does not answer before a view leaves it out, in ms.
const PATIENCE_MS: u64 = 7_000;
/// How long things may go wrong, and how long it is quiet afterwards, in ms.
const TROUBLE_MS: u64 = 55_000;
const QUIET_MS: u64 = 65_000;
/// From when on all has to work, after the trouble: views agree and all are succeeded.
const CALM_MS: u64 = 47_000;

/// What is made wrong on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A home grants a file to a second node while another one has it.
    GrantsTwice,
    /// A home does not wait until a holder has given back.
    RevokeNotAwaited,
    /// What one member holds is not told to new homes.
    ClaimsSkipped,
    /// A node takes a grant that was for an earlier want.
    StaleGrantTaken,
    /// A home says the size that it knows itself, without a question to the writer.
    SizeOfOneNode,
    /// A home does not hear that a holder cannot give a file back, because it is mapped.
    MappingForgotten,
}

/// A group, its files, and what happens.
#[derive(Clone, Debug)]
pub struct Leases {
    /// How many nodes it has; 2 to 8 make sense.
    pub nodes: u16,
    /// How many files they use.
    pub files: u64,
    /// Messages of 1000 that are lost, while there is trouble.
    pub loss: u64,
    /// Whether nodes stop, die, are cut off and come back.
    pub has_faults: bool,
    /// What is wrong on purpose.
    pub planted: Option<Planted>,
    /// What random choices follow from.
    pub seed: u64,
}

impl Leases {
    /// A group of 2 to 8 nodes with 1 to 4 files, to which everything happens.
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6c65_6173);
        Self {
            nodes: 2 + random.below(7) as u16,
            files: 1 + random.below(4),
            loss: [0, 0, 20, 200][random.index(4)],
            has_faults: !random.one_in(8),
            planted: None,
            seed,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasesOutcome {
    /// Reads, writes and questions for a size that were answered.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Sizes that were told.
    pub sizes: u64,
    /// Wants that were granted.
    pub granted: u64,
    /// Wants and questions that were refused because a node was gone.
    pub lost: u64,
    /// Those that took too long.
    pub late: u64,
    /// Files of which a node died with bytes that were nowhere else.
    pub died_dirty: u64,
    /// Lives of managers that ended with a pool, and without.
    pub kills: u64,
    /// Nodes that died with their pool.
    pub crashes: u64,
    /// Views.
    pub views: u64,
    /// Messages by kind, as [`KINDS`] has them.
    pub messages: [u64; KINDS.len()],
}

impl LeasesOutcome {
    /// Adds what happened in another group.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.sizes += other.sizes;
        self.granted += other.granted;
        self.lost += other.lost;
        self.late += other.late;
        self.died_dirty += other.died_dirty;
        self.kills += other.kills;
        self.crashes += other.crashes;
        self.views += other.views;
        let counts = self.messages.iter_mut().zip(&other.messages);
        counts.for_each(|(to, from)| *to += from);
    }
}

/// What some opens of files cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opens {
    /// How the nodes use the files.
    pub pattern: &'static str,
    /// How many opens there were.
    pub opens: u64,
    /// Messages for them, by kind, as [`KINDS`] has them.
    pub messages: [u64; KINDS.len()],
}

/// Counts the messages of opens in a group of so many nodes in which nothing goes wrong: of files
/// that one node has, and of files that all have, each to read and to write. Each node opens 64
/// files; 256 nodes take some seconds.
pub fn opens(nodes: u16) -> Vec<Opens> {
    let patterns = [
        ("a file of its own, to read", Level::Read, false),
        ("a file of its own, to write", Level::Write, false),
        ("a file that all read", Level::Read, true),
        ("a file that all write in turn", Level::Write, true),
    ];
    patterns.map(|(pattern, level, is_shared)| opens_of(nodes, pattern, level, is_shared)).into()
}

fn opens_of(nodes: u16, pattern: &'static str, level: Level, is_shared: bool) -> Opens {
    const FILES: u64 = 64;
    let seats = (0..nodes).map(|node| Seat { member: Member::new(node, 1), since: 1 });
    let view = View { number: 1, seats: seats.collect() };
    // A file that changes its writer for each of many nodes would be direct.
    let tuning = Tuning { thrash: usize::MAX, ..Tuning::default() };
    let new = |member| Directory::new(member, Incarnation(1), tuning);
    let mut all: Vec<Directory> = view.members().map(new).collect();
    all.iter_mut().for_each(|directory| directory.view(&view, 0));
    let deliver = |all: &mut Vec<Directory>, messages: &mut [u64; KINDS.len()]| {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            for index in 0..all.len() {
                for effect in all[index].effects() {
                    is_quiet = false;
                    match effect {
                        Effect::Send(to, message) => {
                            messages[message.body.kind()] += 1;
                            let from = all[index].me();
                            all[usize::from(to.node.0)].message(from, message, 0);
                        }
                        Effect::Reduce { file, to } => all[index].reduced(file, to, None, 0),
                        _ => {}
                    }
                }
            }
        }
    };
    deliver(&mut all, &mut [0; KINDS.len()]);
    let mut messages = [0; KINDS.len()];
    for number in 0..FILES {
        for node in 0..all.len() {
            let inode = if is_shared { number } else { number << 16 | node as u64 };
            let file = FileId { store: 0, inode, generation: 0 };
            all[node].want(file, level, 0);
            deliver(&mut all, &mut messages);
        }
    }
    Opens { pattern, opens: FILES * u64::from(nodes), messages }
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Read,
    Write,
    Map,
    Size,
    Release,
    Flush,
}

#[derive(Debug)]
enum Event {
    Message(Member, Message),
    Timer,
    Look,
    Looked { began_ms: u64 },
    Fence,
    Reduce(FileId, Level),
    Measured(FileId, (Member, u64)),
    Operation,
    Fault,
    Mend(u16),
    Views,
    Heal,
    GiveUp(u16),
    Calm,
    Check(FileId),
}

/// What a node's pool has of a file.
#[derive(Clone, Copy, Debug)]
struct Cached {
    value: u64,
    is_dirty: bool,
}

#[derive(Debug)]
struct Node {
    directory: Directory,
    life: u32,
    pool_since: u32,
    runs: bool,
    is_stopped: bool,
    cached: BTreeMap<FileId, Cached>,
    /// Files that some program has mapped shared.
    mapped: BTreeSet<FileId>,
    looked_ms: Option<u64>,
    entered_ms: u64,
    gone_since: BTreeMap<Seat, u64>,
    /// What came while it was stopped.
    missed: Vec<Event>,
    wakes_ms: Option<u64>,
    /// Since when it does not answer.
    silent_ms: Option<u64>,
    /// When it went on.
    mended_ms: u64,
    /// What programs wait for, and since when.
    waiting: BTreeMap<FileId, (u64, Vec<Do>)>,
    /// Questions for a size: file, the size when it was asked, and when that was.
    asked: BTreeMap<u64, (FileId, u64, u64)>,
}

struct World<'a> {
    leases: &'a Leases,
    times: Times,
    random: Random,
    now_us: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    /// With the node and the life for which they are.
    events: BTreeMap<u64, (u16, u32, Event)>,
    count: u64,
    nodes: Vec<Node>,
    files: Vec<FileId>,
    store: BTreeMap<FileId, u64>,
    newest: BTreeMap<FileId, u64>,
    values: u64,
    view: View,
    /// Who has gone, as the group's folder has it.
    folder: BTreeSet<Seat>,
    /// When each link delivers its last message: they are in order, but for those that are late.
    links: BTreeMap<(u16, u16), u64>,
    side: BTreeSet<u16>,
    is_quiet: bool,
    /// Nodes of which it may be said that they have lost something.
    ever_gone: BTreeSet<u16>,
    old_grants: BTreeMap<(u16, FileId), Message>,
    outcome: LeasesOutcome,
    /// Files whose newest bytes a node had that has died with them.
    lost_with: BTreeMap<FileId, u16>,
    /// Refusals up to when all has to work.
    refused_before: u64,
    trace: Option<u64>,
}

/// Simulates a group.
///
/// # Errors
/// What went against a promise, and when: two nodes that may write, a read of what is not the
/// newest, a wrong size, a want that has no end, a loss without a cause.
pub fn simulate(leases: &Leases) -> Result<LeasesOutcome, String> {
    let mut world = World::new(leases);
    world.run().map_err(|why| {
        format!("seed {}, {:.3} s: {why}", leases.seed, world.now_us as f64 / 1e6)
    })?;
    Ok(world.outcome)
}

impl<'a> World<'a> {
    fn new(leases: &'a Leases) -> Self {
        let random = Random::new(leases.seed ^ 0x7265_6164);
        let seats = (0..leases.nodes).map(|node| Seat { member: Member::new(node, 1), since: 1 });
        let view = View { number: 1, seats: seats.collect() };
        let new = |member| node(member, 1);
        let files: Vec<FileId> = (0..leases.files)
            .map(|file| FileId { store: 0, inode: leases.seed << 8 | file, generation: 0 })
            .collect();
        let zero: BTreeMap<FileId, u64> = files.iter().map(|file| (*file, 0)).collect();
        Self {
            leases,
            times: Times::default(),
            random,
            now_us: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            nodes: view.members().map(new).collect(),
            files,
            store: zero.clone(),
            newest: zero,
            values: 0,
            view,
            folder: BTreeSet::new(),
            links: BTreeMap::new(),
            side: BTreeSet::new(),
            is_quiet: false,
            ever_gone: BTreeSet::new(),
            old_grants: BTreeMap::new(),
            outcome: LeasesOutcome { views: 1, ..LeasesOutcome::default() },
            lost_with: BTreeMap::new(),
            refused_before: 0,
            trace: std::env::var("FOREBAY_LEASES_TRACE").ok().and_then(|text| text.parse().ok()),
        }
    }

    /// Prints what happens in the seed that `FOREBAY_LEASES_TRACE` names.
    fn note(&self, what: impl Fn() -> String) {
        if self.trace == Some(self.leases.seed) {
            eprintln!("{:.3} {}", self.now_us as f64 / 1e6, what());
        }
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    fn at(&mut self, at_us: u64, node: u16, event: Event) {
        let life = self.nodes[usize::from(node)].life;
        self.count += 1;
        self.queue.push(Reverse((at_us, self.count)));
        self.events.insert(self.count, (node, life, event));
    }

    fn after(&mut self, ms: u64, node: u16, event: Event) {
        self.at(self.now_us + ms * 1000, node, event);
    }

    fn run(&mut self) -> Result<(), String> {
        for node in 0..self.leases.nodes {
            let first_ms = self.random.below(1_000);
            self.after(first_ms, node, Event::Look);
        }
        self.after(1_000, 0, Event::Operation);
        self.after(500, 0, Event::Views);
        if self.leases.has_faults {
            self.after(3_000, 0, Event::Fault);
        }
        self.after(TROUBLE_MS, 0, Event::Heal);
        let end_us = (TROUBLE_MS + QUIET_MS) * 1000;
        while let Some(Reverse((at_us, number))) = self.queue.pop() {
            if at_us > end_us {
                break;
            }
            self.now_us = at_us;
            let Some((node, life, event)) = self.events.remove(&number) else { continue };
            self.note(|| format!("node {node}.{life}: {event:?}"));
            match event {
                Event::Operation => self.operation()?,
                Event::Fault => self.fault(),
                Event::Mend(node) => self.mend(node),
                Event::Views => {
                    self.check_waits()?;
                    self.views();
                }
                Event::Heal => self.heal(),
                Event::GiveUp(node) => self.give_up(node),
                Event::Calm => self.refused_before = self.outcome.lost + self.outcome.late,
                Event::Check(file) => self.check_all_work(node, file)?,
                event => {
                    let peer = &mut self.nodes[usize::from(node)];
                    if !peer.runs || peer.life != life {
                        continue;
                    }
                    match peer.is_stopped {
                        true => peer.missed.push(event),
                        false => self.happen(node, event)?,
                    }
                }
            }
            self.check()?;
        }
        self.check_the_end()
    }

    /// Something happens at a node that runs.
    fn happen(&mut self, node: u16, event: Event) -> Result<(), String> {
        let now_ms = self.now_ms();
        // A node that was stopped looks at the clock before it reads what has come meanwhile.
        let is_fenced = self.is_fenced(node);
        let peer = &mut self.nodes[usize::from(node)];
        if is_fenced {
            peer.directory.fenced(true, now_ms);
            // A mapping goes on, and others are given the file: that is not modelled.
            peer.mapped.clear();
        }
        match event {
            Event::Message(from, message) => peer.directory.message(from, message, now_ms),
            Event::Timer if peer.wakes_ms.is_some_and(|wakes_ms| wakes_ms > now_ms) => {}
            Event::Timer => {
                peer.wakes_ms = None;
                peer.directory.timer(now_ms);
            }
            Event::Look => {
                let slow = if self.random.one_in(30) { 1_200 } else { 40 };
                let takes_ms = 1 + self.random.below(slow);
                self.after(takes_ms, node, Event::Looked { began_ms: now_ms });
            }
            Event::Looked { began_ms } => self.looked(node, began_ms),
            Event::Fence => peer.directory.fenced(is_fenced, now_ms),
            Event::Reduce(file, to) => self.reduce(node, file, to),
            Event::Measured(file, token) => {
                let value = self.value(node, file);
                let peer = &mut self.nodes[usize::from(node)];
                peer.directory.sized(file, token, facts(value), now_ms);
            }
            _ => {}
        }
        self.carry_out(node)
    }

    fn is_fenced(&self, node: u16) -> bool {
        let looked_ms = self.nodes[usize::from(node)].looked_ms;
        looked_ms.is_none_or(|looked_ms| self.now_ms() >= looked_ms + self.times.valid)
    }

    fn looked(&mut self, node: u16, began_ms: u64) {
        let now_ms = self.now_ms();
        let (view, folder) = (self.view.clone(), self.folder.clone());
        let folder: Vec<Seat> = folder.into_iter().collect();
        let peer = &mut self.nodes[usize::from(node)];
        peer.looked_ms = peer.looked_ms.max(Some(began_ms));
        if !self.is_fenced(node) {
            let peer = &mut self.nodes[usize::from(node)];
            if peer.directory.view_number() != Some(view.number) {
                peer.entered_ms = now_ms;
            }
            peer.directory.remember(&folder);
            peer.directory.view(&view, now_ms);
            if peer.directory.view_number().is_none() {
                peer.mapped.clear();
            }
            peer.directory.fenced(false, now_ms);
            for seat in peer.directory.awaited() {
                let entered_ms = peer.entered_ms;
                let since_ms = *peer.gone_since.entry(seat).or_insert(entered_ms);
                if now_ms >= since_ms + self.times.grace {
                    peer.directory.succeeded(seat, now_ms);
                }
            }
            let fence_ms = began_ms + self.times.valid;
            self.at(fence_ms * 1000, node, Event::Fence);
        }
        self.after(self.times.look, node, Event::Look);
    }

    /// The newest that a node has of a file.
    fn value(&self, node: u16, file: FileId) -> u64 {
        let cached = self.nodes[usize::from(node)].cached.get(&file);
        cached.map_or(self.store[&file], |cached| cached.value)
    }

    /// What programs of a node may do with a file, whether its manager runs or not.
    fn usable(&self, node: u16, file: FileId) -> Level {
        match self.nodes[usize::from(node)].directory.usable(file) {
            Level::Write => Level::Write,
            // Programs see by the clock until when copies are good.
            level if !self.is_fenced(node) => level,
            _ => Level::None,
        }
    }

    fn flush(&mut self, node: u16, file: FileId) {
        if let Some(cached) = self.nodes[usize::from(node)].cached.get_mut(&file)
            && std::mem::take(&mut cached.is_dirty)
        {
            self.store.insert(file, cached.value);
        }
    }

    /// Brings a file down, when its flush has ended.
    fn reduce(&mut self, node: u16, file: FileId, to: Level) {
        let is_dirty = self.nodes[usize::from(node)].cached.get(&file).is_some_and(|c| c.is_dirty);
        if is_dirty && self.is_fenced(node) {
            self.after(500, node, Event::Reduce(file, to));
            return;
        }
        let now_ms = self.now_ms();
        if self.nodes[usize::from(node)].directory.held(file) <= to {
            return;
        }
        self.flush(node, file);
        let value = self.value(node, file);
        let peer = &mut self.nodes[usize::from(node)];
        if peer.mapped.contains(&file) {
            peer.cached.remove(&file);
            peer.directory.reduced(file, Level::Direct, None, now_ms);
            peer.directory.want(file, Level::Direct, now_ms);
            return;
        }
        if to == Level::None {
            peer.cached.remove(&file);
        }
        peer.directory.reduced(file, to, Some(facts(value)), now_ms);
    }

    /// Does what a directory wants.
    fn carry_out(&mut self, node: u16) -> Result<(), String> {
        let now_ms = self.now_ms();
        loop {
            let effects = self.nodes[usize::from(node)].directory.effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.note(|| format!("node {node} wants {effect:?}"));
                match effect {
                    Effect::Send(to, message) => self.send(node, to, message),
                    Effect::Granted { file, level, facts } => {
                        self.outcome.granted += 1;
                        let newest = self.newest[&file];
                        if let Some(facts) = facts.filter(|facts| facts.size != newest) {
                            return Err(format!("node {node} is told {facts:?} of {newest}"));
                        }
                        let waiting = self.nodes[usize::from(node)].waiting.remove(&file);
                        for what in waiting.into_iter().flat_map(|(_, what)| what) {
                            // It may have been taken back already.
                            if level.covers(needed(what)) {
                                self.act(node, file, what)?;
                            }
                        }
                    }
                    Effect::Reduce { file, to } => {
                        let takes_ms = self.random.below(if self.is_quiet { 20 } else { 300 });
                        self.after(takes_ms, node, Event::Reduce(file, to));
                    }
                    Effect::Measure { file, token } => {
                        let takes_ms = self.random.below(5);
                        self.after(takes_ms, node, Event::Measured(file, token));
                    }
                    Effect::Glimpsed { file, token, sized } => {
                        let asked = self.nodes[usize::from(node)].asked.remove(&token);
                        self.glimpsed(node, file, asked, sized)?;
                    }
                    Effect::Refused { file, why } => {
                        self.nodes[usize::from(node)].waiting.remove(&file);
                        self.refused(node, why)?;
                    }
                    Effect::Lost { file } => {
                        let peer = &mut self.nodes[usize::from(node)];
                        let cached = peer.cached.remove(&file);
                        if cached.is_some_and(|c| c.is_dirty && c.value == self.newest[&file]) {
                            return Err(format!("node {node} sets aside the newest of {file:?}"));
                        }
                    }
                    Effect::Behind { .. } => {}
                }
            }
        }
        let peer = &mut self.nodes[usize::from(node)];
        if let Some(due_ms) = peer.directory.next_timer() {
            let due_ms = due_ms.max(now_ms + 1);
            if peer.wakes_ms.is_none_or(|wakes_ms| due_ms < wakes_ms) {
                peer.wakes_ms = Some(due_ms);
                self.at(due_ms * 1000, node, Event::Timer);
            }
        }
        Ok(())
    }

    fn refused(&mut self, node: u16, why: Why) -> Result<(), String> {
        match why {
            Why::Lost(other) => {
                self.outcome.lost += 1;
                if !self.ever_gone.contains(&other.0) {
                    return Err(format!("node {node} is told that node {} lost it", other.0));
                }
            }
            Why::Late => self.outcome.late += 1,
            Why::Superseded => {}
            Why::Full => return Err(format!("node {node} is told that a table is full")),
        }
        Ok(())
    }

    fn glimpsed(
        &mut self,
        node: u16,
        file: FileId,
        asked: Option<(FileId, u64, u64)>,
        sized: Sized,
    ) -> Result<(), String> {
        let Some((_, least, _)) = asked else { return Ok(()) };
        let size = match sized {
            Sized::Known(facts) => facts.size,
            Sized::Store => self.store[&file],
            Sized::Refused(why) => return self.refused(node, why),
        };
        self.outcome.sizes += 1;
        if size < least || size > self.newest[&file] {
            let newest = self.newest[&file];
            return Err(format!("node {node} is told the size {size} of {least} to {newest}"));
        }
        Ok(())
    }

    /// A program does something that it may do.
    fn act(&mut self, node: u16, file: FileId, what: Do) -> Result<(), String> {
        let level = self.usable(node, file);
        if !level.covers(needed(what)) {
            return Ok(());
        }
        let is_direct = level == Level::Direct || self.is_mapped(node, file);
        self.note(|| format!("node {node} does {what:?} under {level:?} with {}", file.inode));
        match what {
            Do::Read | Do::Size => {
                let value = if is_direct { self.store[&file] } else { self.value(node, file) };
                self.outcome.reads += 1;
                if value != self.newest[&file] {
                    let newest = self.newest[&file];
                    return Err(format!("node {node} reads {value} of {newest} in {file:?}"));
                }
                if !is_direct {
                    let cached = &mut self.nodes[usize::from(node)].cached;
                    cached.entry(file).or_insert(Cached { value, is_dirty: false });
                }
            }
            Do::Map => {
                self.flush(node, file);
                let peer = &mut self.nodes[usize::from(node)];
                peer.cached.remove(&file);
                peer.mapped.insert(file);
                self.store_new(file);
            }
            Do::Write if is_direct => self.store_new(file),
            Do::Write => {
                let cached = Cached { value: self.new_value(file), is_dirty: true };
                self.nodes[usize::from(node)].cached.insert(file, cached);
            }
            Do::Flush | Do::Release => {}
        }
        Ok(())
    }

    /// What a file has after one more write.
    fn new_value(&mut self, file: FileId) -> u64 {
        self.values += 1;
        self.outcome.writes += 1;
        self.newest.insert(file, self.values);
        self.values
    }

    /// A write through the kernel.
    fn store_new(&mut self, file: FileId) {
        let value = self.new_value(file);
        self.store.insert(file, value);
    }

    /// Whether a program of a node has a file mapped, so that it stores to it at any time.
    fn is_mapped(&self, node: u16, file: FileId) -> bool {
        self.nodes[usize::from(node)].mapped.contains(&file)
    }

    /// A program of some node wants to do something.
    fn operation(&mut self) -> Result<(), String> {
        let every_ms = if self.is_quiet { 400 } else { 60 };
        let next_ms = 1 + self.random.below(2 * every_ms);
        self.after(next_ms, 0, Event::Operation);
        let node = self.random.below(self.leases.nodes.into()) as u16;
        let file = self.files[self.random.index(self.files.len())];
        let what = match self.random.below(100) {
            0..35 => Do::Read,
            35..70 => Do::Write,
            70..72 => Do::Map,
            72..80 => Do::Size,
            80..90 => Do::Release,
            _ => Do::Flush,
        };
        let (now_ms, may) = (self.now_ms(), self.usable(node, file));
        let is_fenced = self.is_fenced(node);
        let peer = &self.nodes[usize::from(node)];
        if !peer.runs && peer.directory.held(file) == Level::None {
            return Ok(());
        }
        let can_ask = peer.runs && !peer.is_stopped;
        match what {
            // No lease is looked at.
            Do::Map if peer.mapped.contains(&file) && !is_fenced => {
                self.note(|| format!("node {node} stores to the mapped {}", file.inode));
                self.store_new(file);
            }
            Do::Read | Do::Write | Do::Map if may.covers(needed(what)) => {
                self.act(node, file, what)?;
            }
            Do::Read | Do::Write | Do::Map if can_ask => {
                let peer = &mut self.nodes[usize::from(node)];
                let waiting = peer.waiting.entry(file).or_insert((now_ms, Vec::new()));
                if waiting.1.len() < 4 {
                    waiting.1.push(what);
                }
                peer.directory.want(file, needed(what), now_ms);
            }
            Do::Size if can_ask && peer.directory.held(file) == Level::None => {
                let newest = self.newest[&file];
                let peer = &mut self.nodes[usize::from(node)];
                let token = peer.directory.glimpse(file, now_ms);
                peer.asked.insert(token, (file, newest, now_ms));
            }
            Do::Release if can_ask && !is_fenced && !peer.waiting.contains_key(&file) => {
                self.flush(node, file);
                let peer = &mut self.nodes[usize::from(node)];
                peer.cached.remove(&file);
                peer.mapped.remove(&file);
                peer.directory.release(file, now_ms);
            }
            Do::Flush if can_ask && !is_fenced => self.flush(node, file),
            _ => {}
        }
        if self.nodes[usize::from(node)].runs && !self.nodes[usize::from(node)].is_stopped {
            self.carry_out(node)?;
        }
        Ok(())
    }

    fn send(&mut self, from: u16, to: Member, message: Message) {
        self.outcome.messages[message.body.kind()] += 1;
        let me = self.nodes[usize::from(from)].directory.me();
        let message = self.plant(me, to, message);
        let Some(message) = message else { return };
        if self.side.contains(&from) != self.side.contains(&to.node.0) {
            return;
        }
        let is_trouble = !self.is_quiet;
        if is_trouble && self.random.below(1000) < self.leases.loss {
            return;
        }
        let is_again = is_trouble && self.random.one_in(50);
        for _ in 0..1 + u8::from(is_again) {
            let link = (from, to.node.0);
            let mut at_us = self.now_us + 50 + self.random.below(1_000);
            if is_trouble && self.random.one_in(25) {
                // One of a link that was broken meanwhile.
                at_us += self.random.below(12_000_000);
            } else {
                at_us = at_us.max(self.links.get(&link).copied().unwrap_or(0) + 1);
                self.links.insert(link, at_us);
            }
            self.deliver(at_us, me, to, message.clone());
        }
    }

    fn deliver(&mut self, at_us: u64, from: Member, to: Member, message: Message) {
        let known = &self.nodes[usize::from(to.node.0)];
        if known.life == to.incarnation.0 {
            self.at(at_us, to.node.0, Event::Message(from, message));
        }
    }

    /// What a faulty home, or holder, would make of a message.
    fn plant(&mut self, from: Member, to: Member, mut message: Message) -> Option<Message> {
        let view = message.view;
        let soon_us = self.now_us + 500;
        let Some(planted) = self.leases.planted else { return Some(message) };
        match (planted, &mut message.body) {
            (Planted::GrantsTwice, Body::Open { file, request, level, .. }) => {
                let (file, request, level) = (*file, *request, *level);
                let serial = u64::from(view) << 32 | 0xffff_0000 | self.random.below(1 << 15);
                let body = Body::Granted { file, request, serial, level, facts: None };
                self.deliver(soon_us, to, from, Message { view, body });
                return Some(message);
            }
            (Planted::RevokeNotAwaited, Body::Revoke { file, serial, .. }) => {
                let (file, serial) = (*file, *serial);
                let body = Body::Released { file, serial, level: Level::None, facts: None };
                self.deliver(soon_us, to, from, Message { view, body });
                return None;
            }
            (Planted::ClaimsSkipped, Body::Claims { items, .. }) if from.node.0 == 0 => {
                items.retain(|item| !matches!(item, Claim::Holds { .. }));
            }
            (Planted::StaleGrantTaken, Body::Granted { file, .. }) => {
                self.old_grants.insert((to.node.0, *file), message.clone());
            }
            (Planted::StaleGrantTaken, Body::Open { file, request, .. }) => {
                let old = self.old_grants.get(&(from.node.0, *file)).cloned();
                if let Some(Message { body: Body::Granted { file, serial, level, .. }, .. }) = old {
                    let (request, serial) = (*request, serial + 1);
                    let body = Body::Granted { file, request, serial, level, facts: None };
                    self.deliver(soon_us, to, from, Message { view, body });
                }
            }
            (Planted::MappingForgotten, Body::Released { level, .. })
                if *level == Level::Direct =>
            {
                *level = Level::None;
            }
            (Planted::SizeOfOneNode, Body::Glimpse { file, request }) => {
                let (file, request, sized) = (*file, *request, Sized::Store);
                let body = Body::Size { file, request, sized };
                self.deliver(soon_us, to, from, Message { view, body });
                return None;
            }
            _ => {}
        }
        Some(message)
    }

    /// Something goes wrong.
    fn fault(&mut self) {
        if self.is_quiet {
            return;
        }
        let next_ms = 500 + self.random.below(15_000);
        self.after(next_ms, 0, Event::Fault);
        let node = self.random.below(self.leases.nodes.into()) as u16;
        let lasts = [1_500, 6_000, 14_000, 40_000][self.random.index(4)];
        let lasts_ms = lasts / 2 + self.random.below(lasts);
        let now_ms = self.now_ms();
        match self.random.below(12) {
            0..3 => self.end(node, false),
            3..5 => self.end(node, true),
            5..7 => {
                let is_dead = |node: &u16| !self.nodes[usize::from(*node)].runs;
                let dead = (0..self.leases.nodes).find(is_dead);
                if let Some(dead) = dead {
                    // It is said to be gone for good, and so is its pool.
                    self.end(dead, false);
                    self.give_up(dead);
                    return;
                }
            }
            7..9 => {
                let peer = &mut self.nodes[usize::from(node)];
                peer.is_stopped = true;
                peer.silent_ms = peer.silent_ms.or(Some(now_ms));
            }
            _ => {
                self.side = BTreeSet::from([node]);
                for _ in 0..self.random.below(u64::from(self.leases.nodes) / 2) {
                    self.side.insert(self.random.below(self.leases.nodes.into()) as u16);
                }
                for node in self.side.clone() {
                    let peer = &mut self.nodes[usize::from(node)];
                    peer.silent_ms = peer.silent_ms.or(Some(now_ms));
                }
            }
        }
        self.after(lasts_ms, 0, Event::Mend(node));
    }

    /// A manager is killed, or a node dies with its pool.
    fn end(&mut self, node: u16, has_pool: bool) {
        let now_ms = self.now_ms();
        let peer = &mut self.nodes[usize::from(node)];
        let has_nothing = peer.directory.all_held().is_empty();
        if !peer.runs && (has_pool || has_nothing) {
            return;
        }
        peer.runs = false;
        peer.silent_ms = peer.silent_ms.or(Some(now_ms));
        peer.waiting.clear();
        peer.asked.clear();
        if has_pool {
            self.outcome.kills += 1;
            return;
        }
        self.outcome.crashes += 1;
        self.ever_gone.insert(node);
        for (file, _) in peer.cached.iter().filter(|(_, cached)| cached.is_dirty) {
            self.outcome.died_dirty += 1;
            self.lost_with.insert(*file, node);
        }
        // Nothing of it is left, and it will not go on with its pool.
        let old = self.nodes[usize::from(node)].life;
        let new = Directory::new(Member::new(node, old), Incarnation(old), tuning());
        let peer = &mut self.nodes[usize::from(node)];
        (peer.directory, peer.pool_since) = (new, old + 1);
        peer.cached.clear();
        peer.mapped.clear();
    }

    /// A node is well again.
    fn mend(&mut self, node: u16) {
        self.side.remove(&node);
        if self.side.len() < 2 {
            self.side.clear();
        }
        for other in 0..self.leases.nodes {
            let peer = &mut self.nodes[usize::from(other)];
            if peer.runs && !peer.is_stopped && !self.side.contains(&other) {
                peer.silent_ms = None;
            }
        }
        let (now_us, now_ms) = (self.now_us, self.now_ms());
        let peer = &mut self.nodes[usize::from(node)];
        peer.mended_ms = now_ms;
        if !self.side.contains(&node) {
            peer.silent_ms = None;
        }
        if std::mem::replace(&mut peer.is_stopped, false) {
            for event in std::mem::take(&mut peer.missed) {
                self.at(now_us, node, event);
            }
        }
        let peer = &mut self.nodes[usize::from(node)];
        if !peer.runs {
            peer.life += 1;
            let me = Member::new(node, peer.life);
            let held = peer.directory.all_held();
            let mut directory = Directory::new(me, Incarnation(peer.pool_since), tuning());
            held.into_iter().for_each(|(file, level)| directory.adopt(file, level));
            peer.directory = directory;
            peer.runs = true;
            (peer.looked_ms, peer.wakes_ms) = (None, None);
            peer.gone_since.clear();
            peer.missed.clear();
            // What it was told to drop, it drops.
            let drops = peer.directory.effects();
            for effect in drops {
                if let Effect::Reduce { file, to } = effect {
                    self.after(1, node, Event::Reduce(file, to));
                }
            }
            self.after(1, node, Event::Look);
        }
    }

    /// The group makes a view, where another one is wanted.
    fn views(&mut self) {
        self.after(500, 0, Event::Views);
        let now_ms = self.now_ms();
        let number = self.view.number + 1;
        let mut seats = Vec::new();
        for node in 0..self.leases.nodes {
            let peer = &self.nodes[usize::from(node)];
            let silent_ms = peer.silent_ms.map_or(0, |since_ms| now_ms - since_ms);
            let before = self.view.seat_of(NodeId(node));
            let is_silent = silent_ms > 0 && (before.is_none() || silent_ms > PATIENCE_MS);
            let member = Member::new(node, peer.life);
            let is_known = peer.runs && before.is_none_or(|seat| seat.member != member);
            match before {
                _ if is_silent => {
                    self.ever_gone.insert(node);
                }
                _ if is_known => seats.push(Seat { member, since: number }),
                Some(seat) => seats.push(seat),
                None => {}
            }
        }
        if seats != self.view.seats && !seats.is_empty() {
            for seat in &self.view.seats {
                if !seats.contains(seat) {
                    self.ever_gone.insert(seat.member.node.0);
                    self.folder.insert(*seat);
                }
            }
            // Who comes back with its pool has what it had.
            let nodes = &self.nodes;
            self.folder.retain(|gone| {
                let is_back = |seat: &Seat| seat.member.node == gone.member.node;
                let oldest = nodes[usize::from(gone.member.node.0)].pool_since;
                !(seats.iter().any(is_back) && gone.member.incarnation.0 >= oldest)
            });
            self.view = View { number, seats };
            self.outcome.views += 1;
        }
    }

    /// Nothing goes wrong any more, and what is gone for good is said to be.
    fn heal(&mut self) {
        self.is_quiet = true;
        for node in 0..self.leases.nodes {
            self.side.clear();
            self.mend(node);
            self.after(30_000, 0, Event::GiveUp(node));
        }
        self.after(CALM_MS, 0, Event::Calm);
        for node in 0..self.leases.nodes {
            for file in self.files.clone() {
                let at_ms = CALM_MS + self.random.below(QUIET_MS - CALM_MS - 10_000);
                self.after(at_ms, node, Event::Check(file));
            }
        }
    }

    /// What a node had in earlier lives does not come back.
    fn give_up(&mut self, node: u16) {
        let now_ms = self.now_ms();
        self.folder.retain(|seat| seat.member.node.0 != node);
        for other in 0..self.leases.nodes {
            let peer = &mut self.nodes[usize::from(other)];
            peer.directory.give_up(NodeId(node), now_ms);
        }
        // What it had is gone for good: the store's bytes are the newest.
        let is_its = |(_, other): &(&FileId, &u16)| **other == node;
        let files: Vec<FileId> =
            self.lost_with.iter().filter(is_its).map(|(file, _)| *file).collect();
        for file in files {
            self.lost_with.remove(&file);
            let newest = self.store[&file];
            self.newest.insert(file, newest);
            for (_, least, _) in self
                .nodes
                .iter_mut()
                .flat_map(|peer| peer.asked.values_mut())
                .filter(|(asked, ..)| *asked == file)
            {
                *least = newest.min(*least);
            }
        }
    }

    /// After all trouble each node can write each file.
    fn check_all_work(&mut self, node: u16, file: FileId) -> Result<(), String> {
        let now_ms = self.now_ms();
        let peer = &mut self.nodes[usize::from(node)];
        peer.waiting.entry(file).or_insert((now_ms, Vec::new())).1.push(Do::Write);
        peer.directory.want(file, Level::Write, now_ms);
        self.carry_out(node)
    }

    /// At most one node may write a file, and none but it may use it then.
    fn check(&self) -> Result<(), String> {
        for file in &self.files {
            let all = (0..self.leases.nodes).map(|node| (node, self.usable(node, *file)));
            let used: Vec<(u16, Level)> = all.filter(|(_, level)| *level != Level::None).collect();
            for (index, (node, level)) in used.iter().enumerate() {
                let against = |(_, other): &&(u16, Level)| level.conflicts(*other);
                if let Some((other, theirs)) = used[index + 1..].iter().find(against) {
                    return Err(format!(
                        "node {node} has {level:?} and node {other} has {theirs:?} of {file:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Nothing waits for longer than it may.
    fn check_waits(&self) -> Result<(), String> {
        let wait_ms = tuning().wait_ms + 5_000;
        for (number, peer) in self.nodes.iter().enumerate() {
            let is_late = |since_ms: u64| {
                let is_well = peer.runs && peer.silent_ms.is_none() && !peer.is_stopped;
                let from_ms = peer.mended_ms.max(since_ms + wait_ms - 5_000);
                is_well && from_ms + 5_000 < self.now_ms()
            };
            if let Some((file, _)) = peer.waiting.iter().find(|(_, (since, _))| is_late(*since)) {
                return Err(format!("node {number} waits for {file:?} without an end"));
            }
            if peer.asked.values().any(|(_, _, since_ms)| is_late(*since_ms)) {
                return Err(format!("node {number} waits for a size without an end"));
            }
        }
        Ok(())
    }

    /// In the end nothing is left over.
    fn check_the_end(&self) -> Result<(), String> {
        let refused = self.outcome.lost + self.outcome.late - self.refused_before;
        if refused > 0 {
            return Err(format!("{refused} wants were refused when all was well again"));
        }
        let is_old = |since_ms: u64| since_ms + 5_000 < self.now_ms();
        for (number, peer) in self.nodes.iter().enumerate() {
            if let Some((file, _)) = peer.waiting.iter().find(|(_, (since, _))| is_old(*since)) {
                return Err(format!("node {number} waits for {file:?} when all was well again"));
            }
        }
        for (number, peer) in self.nodes.iter().enumerate() {
            let status = peer.directory.status();
            let is_well = status.view == Some(self.view.number)
                && status.partitions.1 == 0
                && status.silent.is_empty()
                && status.awaited.is_empty()
                && status.lost.is_empty()
                && status.doubted.is_empty();
            if !is_well {
                return Err(format!("node {number} at the end: {status:?}"));
            }
        }
        Ok(())
    }
}

fn needed(what: Do) -> Level {
    match what {
        Do::Write | Do::Map => Level::Write,
        _ => Level::Read,
    }
}

fn facts(value: u64) -> Facts {
    Facts { size: value, mtime_ns: value as i64 }
}

fn tuning() -> Tuning {
    Tuning { wait_ms: 30_000, direct_ms: 3_000, ..Tuning::default() }
}

fn node(member: Member, pool_since: u32) -> Node {
    Node {
        directory: Directory::new(member, Incarnation(pool_since), tuning()),
        life: member.incarnation.0,
        pool_since,
        runs: true,
        is_stopped: false,
        cached: BTreeMap::new(),
        mapped: BTreeSet::new(),
        looked_ms: None,
        entered_ms: 0,
        gone_since: BTreeMap::new(),
        missed: Vec::new(),
        wakes_ms: None,
        silent_ms: None,
        mended_ms: 0,
        waiting: BTreeMap::new(),
        asked: BTreeMap::new(),
    }
}
