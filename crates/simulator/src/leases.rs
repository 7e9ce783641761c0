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
//! A file has some parts, each with one number as its content, which each write raises, and a
//! size. Nodes whose programs have it open for writing share it. A view is on the modelled store at
//! once; each node finds it with its next look, and may act for
//! half of the grace period after a look began, as `membership::Views` has it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

pub use forebay_directory::KINDS;
use forebay_directory::{
    Ahead, Body, Claim, Directory, Effect, Facts, Level, Message, Object, Of, Run, Sized, Step,
    Terms, Tuning, Why,
};
use forebay_membership::{FileId, GivenUp, Incarnation, Member, NodeId, Seat, Times, View};
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
    /// A node goes on using a part that it was granted when it does not share the file any more.
    PartWithoutShared,
    /// A home takes a file that is shared for given back when its holder still has parts.
    WholeWhilePartHeld,
    /// A node that shares a file extends it without a lease of its size.
    ExtendsWithoutLease,
    /// A home forgets what one node made of the size.
    SizeOfOneForgotten,
    /// Parts that others have are granted ahead.
    AheadOfOthers,
    /// A member is told that all have told the homes what they have as soon as it has itself.
    TellersNotAwaited,
    /// A member takes what it has told a home for heard, whether that has come or not.
    HomesNotAwaited,
    /// A node flushes whether it has looked or not: also after it was given up.
    FlushNotFenced,
    /// A node goes on writing what it lends.
    WritesWhatIsLent,
    /// A node that has borrowed a file reads of it from the store what it lacks.
    BorrowerReadsStore,
}

/// How many parts of a file are used.
const PARTS: u32 = 3;

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
    /// Whether nodes share files.
    pub shares: bool,
    /// How many members one has below it, where all tell homes what they have.
    pub below: usize,
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
            shares: !random.one_in(4),
            below: [1, 2, 16][(seed % 3) as usize],
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
    /// Sizes that were extended.
    pub extended: u64,
    /// Those of them by appends.
    pub appended: u64,
    /// Files that were truncated.
    pub truncated: u64,
    /// Wants that were granted.
    pub granted: u64,
    /// Files that were granted to be shared.
    pub shared: u64,
    /// Files that were lent,
    pub lent: u64,
    /// and those that were granted to be borrowed.
    pub borrowed: u64,
    /// Parts that came from the node that lends them.
    pub pulled: u64,
    /// Parts that were granted ahead.
    pub ahead: u64,
    /// Parts that were granted to be used through the kernel.
    pub direct: u64,
    /// Wants and questions that were refused because a node was gone.
    pub lost: u64,
    /// Those that took too long.
    pub late: u64,
    /// Parts and sizes that a node died with and that were nowhere else.
    pub died_dirty: u64,
    /// Lives of managers that ended with a pool, and without.
    pub kills: u64,
    /// Nodes that died with their pool.
    pub crashes: u64,
    /// Nodes that were given up, and had their pool still.
    pub orphans: u64,
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
        self.extended += other.extended;
        self.appended += other.appended;
        self.truncated += other.truncated;
        self.granted += other.granted;
        self.shared += other.shared;
        self.lent += other.lent;
        self.borrowed += other.borrowed;
        self.pulled += other.pulled;
        self.ahead += other.ahead;
        self.direct += other.direct;
        self.lost += other.lost;
        self.late += other.late;
        self.died_dirty += other.died_dirty;
        self.kills += other.kills;
        self.crashes += other.crashes;
        self.orphans += other.orphans;
        self.views += other.views;
        let counts = self.messages.iter_mut().zip(&other.messages);
        counts.for_each(|(to, from)| *to += from);
    }
}

/// What programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    Read,
    Write,
    /// Writes behind the end.
    Extend,
    Append,
    Truncate,
    /// Maps the file, and writes to it.
    Map,
    /// Reads the size.
    Size,
    Release,
    Flush,
}

/// Something that a program does: with a part, if it is about one.
#[derive(Clone, Copy, Debug)]
struct Doing {
    what: Do,
    part: Object,
    /// How often it has waited.
    waits: u8,
}

impl Doing {
    /// What it needs.
    fn needs(&self) -> (Object, Level) {
        let (whole, size) = (Object::whole(self.part.file), Object::size(self.part.file));
        match self.what {
            Do::Read => (self.part, Level::Read),
            Do::Write => (self.part, Level::Write),
            Do::Extend => (size, Level::Shared),
            Do::Append => (size, Level::Write),
            Do::Truncate => (whole, Level::Write),
            Do::Map => (whole, Level::Write),
            Do::Size | Do::Release | Do::Flush => (size, Level::Read),
        }
    }

    /// What is needed of the whole first.
    fn needs_whole(&self) -> Level {
        match self.needs().1 {
            Level::Shared => Level::Write,
            level => level,
        }
    }
}

#[derive(Debug)]
enum Event {
    Message(Member, Message),
    Timer,
    Look,
    Looked {
        began_ms: u64,
    },
    Fence,
    Reduce {
        object: Object,
        to: Level,
        may_share: bool,
    },
    /// What is to be kept was asked for, and has come as far as it comes at once.
    Share(FileId),
    Measured(Object, (Member, u64)),
    Operation,
    Fault,
    Mend(u16),
    Views,
    Heal,
    GiveUp(u16),
    /// One that may live is.
    GiveUpLife(u16),
    /// What was given up need not be named any more.
    Forget(Member),
    Calm,
    Check(Object, Do),
}

/// What a node's pool has of a part, or of a size.
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
    cached: BTreeMap<Object, Cached>,
    /// Files that some program has mapped shared.
    mapped: BTreeSet<FileId>,
    /// Files that it lends, and has the size of.
    lends: BTreeSet<FileId>,
    looked_ms: Option<u64>,
    entered_ms: u64,
    gone_since: BTreeMap<Seat, u64>,
    /// When it saw what was given up.
    given_since: BTreeMap<GivenUp, u64>,
    /// When it was given up with its pool, if it does not know that yet.
    orphan_ms: Option<u64>,
    /// What came while it was stopped.
    missed: Vec<Event>,
    wakes_ms: Option<u64>,
    /// Since when it does not answer.
    silent_ms: Option<u64>,
    /// When it went on.
    mended_ms: u64,
    /// What programs wait for, and since when.
    waiting: BTreeMap<Object, (u64, Vec<Doing>)>,
    /// Questions for a size.
    asked: BTreeMap<u64, Asked>,
    /// Parts that it was ever granted: see [`Planted::PartWithoutShared`].
    ever: BTreeSet<Object>,
}

/// A question for a size.
#[derive(Clone, Debug)]
struct Asked {
    file: FileId,
    since_ms: u64,
    /// The sizes that it had meanwhile, at least and at most: each time until it became shorter.
    /// Nodes that extend it at one moment are not asked at one moment.
    sizes: Vec<(u64, u64)>,
    /// What the store had when it was asked.
    stored: u64,
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
    store: BTreeMap<Object, u64>,
    newest: BTreeMap<Object, u64>,
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
    old_grants: BTreeMap<(u16, Object), Message>,
    outcome: LeasesOutcome,
    /// Parts and sizes of which a node had something new that has died with it.
    lost_with: BTreeSet<(Object, u16)>,
    /// What was the newest of parts that were given up, and until when those that have borrowed
    /// them may have it.
    borrowed_lost: BTreeMap<Object, (u64, u64)>,
    /// Refusals up to when all has to work.
    refused_before: u64,
    /// What went wrong where nothing is returned.
    wrong: Option<String>,
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
        let view = View { number: 1, seats: seats.collect(), ..View::default() };
        let new = |member| node(member, 1, leases.below);
        let files: Vec<FileId> = (0..leases.files)
            .map(|file| FileId { store: 0, inode: leases.seed << 8 | file, generation: 0 })
            .collect();
        let zero: BTreeMap<Object, u64> =
            files.iter().flat_map(|file| all_of(*file)).map(|object| (object, 0)).collect();
        Self {
            leases,
            times: Times::of_hosts(leases.nodes.into()),
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
            lost_with: BTreeSet::new(),
            borrowed_lost: BTreeMap::new(),
            refused_before: 0,
            wrong: None,
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
                Event::GiveUpLife(node) if self.is_left_out(node) => {
                    self.give_up_life(node, self.nodes[usize::from(node)].life);
                }
                Event::GiveUpLife(_) => {}
                Event::Forget(given) => {
                    self.folder.retain(|seat| seat.member.node != given.node || seat.member > given)
                }
                Event::Calm => self.refused_before = self.outcome.lost + self.outcome.late,
                Event::Check(part, what) => self.check_all_work(node, part, what)?,
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
            Event::Fence => {
                let is_over = self.is_fenced(node);
                self.nodes[usize::from(node)].directory.fenced(is_over, now_ms);
            }
            Event::Reduce { object, to, may_share } => self.reduce(node, object, to, may_share),
            Event::Share(file) => self.share(node, file),
            Event::Measured(object, token) => {
                let size = Object::size(object.file);
                let value = self.value(node, size);
                let peer = &mut self.nodes[usize::from(node)];
                let is_ahead = peer.cached.get(&size).is_some_and(|cached| cached.is_dirty);
                // Of a file that it alone writes, and has flushed, the store knows it.
                let known = (is_ahead || object.of == Of::Size).then(|| facts(value));
                peer.directory.sized(object, token, known, now_ms);
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
        let lost = self.folder.iter().copied().collect();
        let view = View { lost, ..self.view.clone() };
        let peer = &mut self.nodes[usize::from(node)];
        peer.looked_ms = peer.looked_ms.max(Some(began_ms));
        let pool = Member::new(node, peer.pool_since);
        if view.has_given_up(pool) {
            return self.set_pool_aside(node);
        }
        if !self.is_fenced(node) {
            let peer = &mut self.nodes[usize::from(node)];
            if peer.directory.view_number() != Some(view.number) {
                peer.entered_ms = now_ms;
            }
            peer.directory.view(&view, now_ms);
            if peer.directory.view_number().is_none() {
                peer.mapped.clear();
            }
            peer.directory.fenced(false, now_ms);
            for given in &view.given_up {
                let since_ms = *peer.given_since.entry(*given).or_insert(now_ms);
                if now_ms >= since_ms + self.times.patience {
                    peer.directory.give_up(*given, now_ms);
                }
            }
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

    /// A node finds that it was given up: its programs get errors, and its pool is kept for an
    /// operator. It begins anew with an empty one.
    fn set_pool_aside(&mut self, node: u16) {
        let old = self.nodes[usize::from(node)].life;
        let directory =
            Directory::new(Member::new(node, old), Incarnation(old), tuning(self.leases.below));
        let peer = &mut self.nodes[usize::from(node)];
        (peer.directory, peer.pool_since, peer.orphan_ms) = (directory, old + 1, None);
        peer.cached.clear();
        peer.mapped.clear();
        peer.waiting.clear();
        peer.asked.clear();
        if std::mem::replace(&mut peer.runs, false) {
            peer.silent_ms = peer.silent_ms.or(Some(self.now_us / 1000));
            self.after(3_000, 0, Event::Mend(node));
        }
    }

    /// Whether what a node has may go to the store.
    fn may_flush(&self, node: u16) -> bool {
        !self.is_fenced(node) || self.leases.planted == Some(Planted::FlushNotFenced)
    }

    /// The newest that a node has of a part, or of a size.
    fn value(&self, node: u16, object: Object) -> u64 {
        let cached = self.nodes[usize::from(node)].cached.get(&object);
        cached.map_or(self.store[&object], |cached| cached.value)
    }

    /// What programs of a node may do, whether its manager runs or not.
    fn usable(&self, node: u16, object: Object) -> Level {
        let peer = &self.nodes[usize::from(node)];
        let is_ghost =
            self.leases.planted == Some(Planted::PartWithoutShared) && peer.ever.contains(&object);
        match peer.directory.usable(object) {
            Level::Lent if self.leases.planted == Some(Planted::WritesWhatIsLent) => Level::Write,
            level if level.is_dirty() => level,
            Level::None if is_ghost => Level::Write,
            // Programs see by the clock until when copies are good.
            level if !self.is_fenced(node) => level,
            _ => Level::None,
        }
    }

    fn flush(&mut self, node: u16, object: Object) {
        let is_shared = self.is_shared(node, object.file);
        if let Some(cached) = self.nodes[usize::from(node)].cached.get_mut(&object)
            && std::mem::take(&mut cached.is_dirty)
        {
            // The store's file is made longer only, where others may have done so, too.
            let others = if is_shared && object.of == Of::Size { self.store[&object] } else { 0 };
            let value = cached.value.max(others);
            self.store.insert(object, value);
            match self.nodes[usize::from(node)].orphan_ms {
                // No other node has been given it yet.
                Some(since_ms) if self.now_ms() < since_ms + self.times.patience => {
                    self.set_newest(object, value);
                }
                Some(_) => {
                    let why = format!("node {node} flushes {object:?}, and was given up");
                    self.wrong.get_or_insert(why);
                }
                None => {}
            }
        }
    }

    /// Whether a program of a node has a file mapped, so that it stores to it at any time.
    fn is_mapped(&self, node: u16, file: FileId) -> bool {
        self.nodes[usize::from(node)].mapped.contains(&file)
    }

    fn is_shared(&self, node: u16, file: FileId) -> bool {
        self.nodes[usize::from(node)].directory.held(Object::whole(file)) == Level::Shared
    }

    /// Flushes, and drops, all of a file but for that of which a node has leases of its own.
    fn drop_but(&mut self, node: u16, file: FileId, has_leases: bool) {
        for object in all_of(file) {
            let peer = &self.nodes[usize::from(node)];
            let Some(cached) = peer.cached.get(&object) else { continue };
            let level = if has_leases { peer.directory.held(object) } else { Level::None };
            let is_kept = match cached.is_dirty {
                true => level.is_dirty(),
                false => level != Level::None && level != Level::Direct,
            };
            if !is_kept || object.of == Of::Size {
                self.flush(node, object);
            }
            if !is_kept {
                self.nodes[usize::from(node)].cached.remove(&object);
            }
        }
    }

    /// Brings something down, when its flush has ended.
    fn reduce(&mut self, node: u16, object: Object, to: Level, may_share: bool) {
        let is_whole = object.of == Of::Whole;
        let peer = &self.nodes[usize::from(node)];
        let is_in = |other: &Object| *other == object || is_whole && other.file == object.file;
        let is_dirty = peer.cached.iter().any(|(other, cached)| is_in(other) && cached.is_dirty);
        if is_dirty && !self.may_flush(node) {
            self.after(500, node, Event::Reduce { object, to, may_share });
            return;
        }
        let now_ms = self.now_ms();
        let level = peer.directory.held(object);
        if level <= to {
            return;
        }
        let (file, size) = (object.file, Object::size(object.file));
        if is_whole && self.is_mapped(node, file) {
            // It cannot be taken away: all others use the kernel, too.
            self.drop_but(node, file, false);
            let peer = &mut self.nodes[usize::from(node)];
            peer.directory.reduced(object, Level::Direct, None, now_ms);
            peer.directory.want(object, Level::Direct, Terms::default(), now_ms);
            return;
        }
        let shares = if to == Level::Lent { 1 } else { 2 };
        if is_whole && may_share && level == Level::Write && self.random.below(3) < shares {
            // What is dirty stays, if that can be had at once.
            let peer = &self.nodes[usize::from(node)];
            let dirty =
                peer.cached.iter().filter(|(other, cached)| is_in(other) && cached.is_dirty);
            let dirty: Vec<Object> = dirty.map(|(object, _)| *object).collect();
            for part in dirty.into_iter().filter(|part| part.of != Of::Size) {
                if self.random.one_in(2) {
                    let peer = &mut self.nodes[usize::from(node)];
                    peer.directory.want(part, Level::Write, Terms::ahead(1), now_ms);
                }
            }
            let takes_ms = self.random.below(10);
            self.after(takes_ms, node, Event::Share(file));
            return;
        }
        let known = self.value(node, size);
        let mut level_left = to;
        match is_whole {
            // As if the store were slow, and the one that asks near.
            true if (to, level) == (Level::Lent, Level::Write) && self.random.one_in(2) => {
                self.outcome.lent += 1;
                self.nodes[usize::from(node)].lends.insert(file);
            }
            true if to >= Level::Read && level.is_its_own() => {
                level_left = Level::Read;
                all_of(file).into_iter().for_each(|object| self.flush(node, object));
            }
            true => self.drop_but(node, file, false),
            false => {
                self.flush(node, object);
                if to == Level::None || level == Level::Shared {
                    self.nodes[usize::from(node)].cached.remove(&object);
                }
            }
        }
        let peer = &mut self.nodes[usize::from(node)];
        if is_whole && level_left != Level::Lent {
            peer.lends.remove(&file);
        }
        peer.directory.reduced(object, level_left, Some(facts(known)), now_ms);
    }

    /// Others come to a file that this node goes on using.
    fn share(&mut self, node: u16, file: FileId) {
        let whole = Object::whole(file);
        if self.nodes[usize::from(node)].directory.held(whole) != Level::Write {
            return;
        }
        if !self.may_flush(node) {
            self.after(500, node, Event::Share(file));
            return;
        }
        if self.is_mapped(node, file) {
            return self.reduce(node, whole, Level::None, false);
        }
        let now_ms = self.now_ms();
        let known = self.value(node, Object::size(file));
        self.drop_but(node, file, true);
        let peer = &mut self.nodes[usize::from(node)];
        peer.directory.reduced(whole, Level::Shared, Some(facts(known)), now_ms);
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
                    Effect::Granted { object, level, facts } => {
                        self.granted(node, object, level, facts)?;
                    }
                    Effect::Ahead { file, runs, .. } => {
                        for Run { first, count } in runs {
                            self.outcome.ahead += u64::from(count);
                            let parts = (first..first + count).map(|part| Object::part(file, part));
                            self.nodes[usize::from(node)].ever.extend(parts);
                        }
                    }
                    Effect::Reduce { object, to, may_share } => {
                        let takes_ms = self.random.below(if self.is_quiet { 20 } else { 300 });
                        self.after(takes_ms, node, Event::Reduce { object, to, may_share });
                    }
                    Effect::Measure { object, token } => {
                        // Its thread may be kept waiting.
                        let most_ms = if self.random.below(4) == 0 { 300 } else { 5 };
                        let takes_ms = self.random.below(most_ms);
                        self.after(takes_ms, node, Event::Measured(object, token));
                    }
                    Effect::Glimpsed { file, token, sized } => {
                        let asked = self.nodes[usize::from(node)].asked.remove(&token);
                        self.glimpsed(node, file, asked, sized)?;
                    }
                    Effect::Refused { object, why } => {
                        let waiting = self.nodes[usize::from(node)].waiting.remove(&object);
                        self.refused(node, why)?;
                        if why == Why::Unshared {
                            let waiting = waiting.into_iter().flat_map(|(_, waiting)| waiting);
                            waiting.for_each(|doing| self.ask_for(node, doing));
                        }
                    }
                    Effect::Lost { object } => self.set_aside(node, object)?,
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

    fn granted(
        &mut self,
        node: u16,
        object: Object,
        level: Level,
        facts: Option<Facts>,
    ) -> Result<(), String> {
        self.outcome.granted += 1;
        let size = Object::size(object.file);
        let (newest, store) = (self.newest[&size], self.store[&size]);
        let (is_whole, whole) = (object.of == Of::Whole, Object::whole(object.file));
        self.outcome.shared += u64::from(is_whole && level == Level::Shared);
        self.outcome.borrowed += u64::from(level == Level::Borrowed);
        let peer = &mut self.nodes[usize::from(node)];
        // The answer to a part may be what the whole is.
        let is_own = peer.directory.held(object) == level;
        // One that is about to share the file flushes it by then.
        let is_alone = !is_whole && peer.directory.held(whole) == Level::Write;
        if level == Level::Direct && is_own && !is_alone {
            self.outcome.direct += u64::from(!is_whole);
            let is_in = |other: &Object| *other == object || is_whole && other.file == object.file;
            if peer.cached.iter().any(|(other, cached)| is_in(other) && cached.is_dirty) {
                return Err(format!("node {node} has what is not flushed of {object:?}, direct"));
            }
            peer.cached.retain(|other, _| !is_in(other));
        }
        if is_own && matches!(object.of, Of::Part(_)) {
            peer.ever.insert(object);
        }
        // Without facts it is the store's.
        let is_mapped = peer.mapped.contains(&object.file);
        // Who has all of it may have made it shorter by now.
        let says_size =
            object == size && !is_alone || is_whole && level != Level::Shared && !is_mapped;
        if is_own && says_size && level != Level::Direct {
            let own = peer.cached.get(&size).copied();
            let known = facts.map_or(store, |facts| facts.size);
            let is_lent = peer.lends.contains(&object.file);
            let known =
                own.map_or(known, |own| if is_lent { own.value } else { own.value.max(known) });
            if level != Level::Shared && known != newest || known > newest {
                return Err(format!(
                    "node {node} is told {facts:?} of {newest} with {level:?} of {object:?}"
                ));
            }
            let is_dirty = own.is_some_and(|own| own.is_dirty);
            if level != Level::Lent {
                peer.lends.remove(&object.file);
            }
            peer.cached.insert(size, Cached { value: known, is_dirty });
        }
        let waiting = self.nodes[usize::from(node)].waiting.remove(&object);
        for doing in waiting.into_iter().flat_map(|(_, waiting)| waiting) {
            // It may have been taken back already, or only a part of it be there.
            match self.missing(node, &doing) {
                None => self.act(node, doing)?,
                Some(_) => self.ask_for(node, doing),
            }
        }
        Ok(())
    }

    /// What a program waits for first, to do something, and whether it may be shared.
    fn missing(&self, node: u16, doing: &Doing) -> Option<(Object, Level, bool)> {
        let (object, level) = doing.needs();
        let whole = Object::whole(object.file);
        if self.is_mapped(node, object.file) {
            // What others read meanwhile would not have what is stored to it.
            let has_it = matches!(self.usable(node, whole), Level::Write | Level::Direct);
            return (!has_it).then_some((whole, Level::Direct, false));
        }
        let has_no_lease = self.leases.planted == Some(Planted::ExtendsWithoutLease)
            && doing.what == Do::Extend
            && self.usable(node, whole) == Level::Shared;
        let is_borrowed = self.usable(node, object) == Level::Borrowed
            && matches!(doing.what, Do::Read | Do::Size)
            && self.borrowed(node, object.max(Object::size(object.file))).is_some();
        if self.usable(node, object).covers(level) || has_no_lease || is_borrowed {
            return None;
        }
        match self.usable(node, whole) {
            Level::Shared if object != whole => Some((object, level, false)),
            _ if object == whole => Some((whole, level, false)),
            _ => Some((whole, doing.needs_whole(), self.leases.shares)),
        }
    }

    /// What a node that has borrowed a file has of a part, or gets from the one that lends it.
    fn borrowed(&self, node: u16, part: Object) -> Option<u64> {
        if self.leases.planted == Some(Planted::BorrowerReadsStore) {
            return Some(self.value(node, part));
        }
        let peer = &self.nodes[usize::from(node)];
        if let Some(cached) = peer.cached.get(&part) {
            return Some(cached.value);
        }
        let lends = |other: &u16| {
            let peer = &self.nodes[usize::from(*other)];
            let is_reached = self.side.contains(other) == self.side.contains(&node);
            let has_it = match self.usable(*other, Object::whole(part.file)) {
                Level::Lent => true,
                Level::Read | Level::Borrowed => peer.cached.contains_key(&part),
                _ => false,
            };
            let may_act = !self.is_fenced(*other) && peer.directory.view_number().is_some();
            peer.runs && !peer.is_stopped && is_reached && has_it && may_act
        };
        let of = (0..self.leases.nodes).filter(|other| *other != node).find(lends)?;
        (peer.runs && !peer.is_stopped && part.of != Of::Size).then(|| self.value(of, part))
    }

    /// A program waits, if it has not done so too often.
    fn ask_for(&mut self, node: u16, mut doing: Doing) {
        let Some((object, level, may_share)) = self.missing(node, &doing) else { return };
        doing.waits += 1;
        if doing.waits > 12 {
            return;
        }
        let now_ms = self.now_ms();
        let terms = match object.of {
            Of::Whole => {
                let may_borrow = level == Level::Read
                    && self.usable(node, object) != Level::Borrowed
                    && !self.random.one_in(4);
                Terms { may_share, may_borrow, ..Terms::default() }
            }
            Of::Size => Terms::default(),
            Of::Part(_) => match self.random.below(4) {
                0 => Terms::default(),
                1 => Terms::ahead(1),
                2 => Terms::ahead(2),
                _ => Terms::strided(1, 2),
            },
        };
        let peer = &mut self.nodes[usize::from(node)];
        let waiting = peer.waiting.entry(object).or_insert((now_ms, Vec::new()));
        if waiting.1.len() < 6 {
            waiting.1.push(doing);
        }
        peer.directory.want(object, level, terms, now_ms);
    }

    /// Others have been given something meanwhile.
    fn set_aside(&mut self, node: u16, object: Object) -> Result<(), String> {
        for other in all_of(object.file) {
            if other != object && object.of != Of::Whole {
                continue;
            }
            let cached = self.nodes[usize::from(node)].cached.remove(&other);
            let newest = self.newest[&other];
            let is_newest = |cached: Cached| cached.is_dirty && cached.value == newest;
            // A size may be as large by others, too.
            if cached.is_some_and(is_newest) && other.of != Of::Size {
                return Err(format!("node {node} sets aside the newest of {other:?}"));
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
            Why::Superseded | Why::Unshared => {}
            Why::Full => return Err(format!("node {node} is told that a table is full")),
        }
        Ok(())
    }

    fn glimpsed(
        &mut self,
        node: u16,
        file: FileId,
        asked: Option<Asked>,
        sized: Sized,
    ) -> Result<(), String> {
        let Some(Asked { sizes, stored, .. }) = asked else { return Ok(()) };
        let store = self.store[&Object::size(file)];
        let size = match sized {
            Sized::Known(facts) => facts.size,
            // The program asks again: the store may have had more when the others were asked.
            Sized::AtLeast(facts) if facts.size > store && store != stored => return Ok(()),
            Sized::AtLeast(facts) => facts.size.max(store),
            Sized::Store => store,
            Sized::Refused(why) => return self.refused(node, why),
        };
        self.outcome.sizes += 1;
        if !sizes.iter().any(|(least, most)| (*least..=*most).contains(&size)) {
            return Err(format!("node {node} is told the size {size}, which is not in {sizes:?}"));
        }
        Ok(())
    }

    fn set_newest(&mut self, object: Object, value: u64) {
        self.newest.insert(object, value);
        if object.of == Of::Size {
            for asked in self.nodes.iter_mut().flat_map(|peer| peer.asked.values_mut()) {
                if asked.file == object.file {
                    match asked.sizes.last_mut() {
                        Some((_, most)) if *most <= value => *most = value,
                        _ => asked.sizes.push((value, value)),
                    }
                }
            }
        }
    }

    /// Writes, and acknowledges it.
    fn put(&mut self, node: u16, object: Object, value: u64, is_direct: bool) {
        self.outcome.writes += 1;
        if is_direct {
            self.store.insert(object, value);
        } else {
            let cached = Cached { value, is_dirty: true };
            self.nodes[usize::from(node)].cached.insert(object, cached);
        }
    }

    /// A program stores to what it has mapped. No lease is looked at.
    fn store_to(&mut self, node: u16, part: Object) {
        if self.nodes[usize::from(node)].orphan_ms.is_some() {
            return;
        }
        self.values += 1;
        self.note(|| format!("node {node} stores to the mapped {part:?}"));
        self.put(node, part, self.values, true);
        self.set_newest(part, self.values);
    }

    /// A program does something that it may do.
    fn act(&mut self, node: u16, doing: Doing) -> Result<(), String> {
        if self.missing(node, &doing).is_some() {
            return Ok(());
        }
        let (object, _) = doing.needs();
        let (file, level) = (object.file, self.usable(node, object));
        let is_direct = level == Level::Direct || self.is_mapped(node, file);
        let size = Object::size(file);
        self.note(|| format!("node {node} does {doing:?} under {level:?}"));
        // Of a whole it is the size that matters.
        let object = object.max(size);
        let newest = self.newest[&object];
        let value = match level {
            Level::Borrowed => {
                let is_here = self.nodes[usize::from(node)].cached.contains_key(&object);
                self.outcome.pulled += u64::from(!is_here);
                self.borrowed(node, object).unwrap_or(0)
            }
            _ if is_direct => self.store[&object],
            _ => self.value(node, object),
        };
        if self.nodes[usize::from(node)].orphan_ms.is_some() {
            // Programs of a node that was given up go on with what they have until it has looked:
            // that others see nothing of it is all that is promised.
            let cached = &mut self.nodes[usize::from(node)].cached;
            if let Some(cached) = cached.get_mut(&object).filter(|_| doing.what == Do::Write) {
                self.values += 1;
                *cached = Cached { value: self.values, is_dirty: true };
            }
            return Ok(());
        }
        match doing.what {
            Do::Read | Do::Size => {
                self.outcome.reads += 1;
                let lost = self
                    .borrowed_lost
                    .get(&object)
                    .filter(|(_, until_ms)| level == Level::Borrowed && self.now_ms() < *until_ms);
                if value != newest && lost.is_none_or(|(lost, _)| *lost != value) {
                    return Err(format!("node {node} reads {value} of {newest} in {object:?}"));
                }
                if !is_direct {
                    let cached = &mut self.nodes[usize::from(node)].cached;
                    cached.entry(object).or_insert(Cached { value, is_dirty: false });
                }
            }
            Do::Write => {
                self.values += 1;
                self.put(node, object, self.values, is_direct);
                self.set_newest(object, self.values);
            }
            Do::Extend | Do::Append => {
                let is_append = doing.what == Do::Append;
                if is_append && value != newest {
                    return Err(format!("node {node} appends at {value} of {newest} in {file:?}"));
                }
                self.outcome.extended += 1;
                self.outcome.appended += u64::from(is_append);
                let end = value + 1 + if is_append { 0 } else { self.random.below(8) };
                self.put(node, size, end, is_direct);
                self.set_newest(size, end.max(newest));
            }
            Do::Map => {
                self.drop_but(node, file, false);
                self.nodes[usize::from(node)].mapped.insert(file);
                self.store_to(node, doing.part);
            }
            Do::Truncate => {
                self.outcome.truncated += 1;
                for object in all_of(file) {
                    self.values += 1;
                    let value = if object == size { self.random.below(9) } else { self.values };
                    self.put(node, object, value, is_direct);
                    self.set_newest(object, value);
                }
            }
            Do::Flush | Do::Release => {}
        }
        Ok(())
    }

    /// A program of some node wants to do something.
    fn operation(&mut self) -> Result<(), String> {
        let every_ms = if self.is_quiet { 400 } else { 60 };
        let next_ms = 1 + self.random.below(2 * every_ms);
        self.after(next_ms, 0, Event::Operation);
        let node = self.random.below(self.leases.nodes.into()) as u16;
        let file = self.files[self.random.index(self.files.len())];
        let part = Object::part(file, self.random.below(PARTS.into()) as u32);
        let what = match self.random.below(100) {
            0..30 => Do::Read,
            30..55 => Do::Write,
            55..63 => Do::Extend,
            63..67 => Do::Append,
            67..69 => Do::Truncate,
            69..71 => Do::Map,
            71..78 => Do::Size,
            78..84 => Do::Release,
            _ => Do::Flush,
        };
        let doing = Doing { what, part, waits: 0 };
        let now_ms = self.now_ms();
        let is_fenced = self.is_fenced(node);
        let (whole, size) = (Object::whole(file), Object::size(file));
        let peer = &self.nodes[usize::from(node)];
        let has_some = peer.directory.held(whole) != Level::None;
        if !peer.runs && !has_some {
            return Ok(());
        }
        let can_ask = peer.runs && !peer.is_stopped;
        let is_waited = peer.waiting.keys().any(|object| object.file == file);
        match what {
            Do::Map | Do::Write if self.is_mapped(node, file) => {
                if !is_fenced {
                    self.store_to(node, part);
                }
            }
            Do::Size if can_ask && !has_some => {
                let newest = self.newest[&size];
                let stored = self.store[&size];
                let peer = &mut self.nodes[usize::from(node)];
                let token = peer.directory.glimpse(file, now_ms);
                let asked = Asked { file, since_ms: now_ms, sizes: vec![(newest, newest)], stored };
                peer.asked.insert(token, asked);
            }
            Do::Release if can_ask && !is_fenced && !is_waited => {
                if self.is_shared(node, file) && self.random.one_in(2) {
                    self.flush(node, part);
                    let peer = &mut self.nodes[usize::from(node)];
                    peer.cached.remove(&part);
                    peer.directory.release(part, now_ms);
                } else {
                    self.drop_but(node, file, false);
                    let peer = &mut self.nodes[usize::from(node)];
                    peer.mapped.remove(&file);
                    peer.directory.release(whole, now_ms);
                }
            }
            Do::Flush if can_ask && self.may_flush(node) => {
                all_of(file).into_iter().for_each(|object| self.flush(node, object));
            }
            Do::Release | Do::Flush => {}
            _ => match self.missing(node, &doing) {
                None => self.act(node, doing)?,
                Some(_) if can_ask => self.ask_for(node, doing),
                Some(_) => {}
            },
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
        let ahead = Ahead::default();
        match (planted, &mut message.body) {
            (Planted::GrantsTwice, Body::Open { object, request, level, .. }) => {
                let (object, request, level) = (*object, *request, *level);
                let serial = u64::from(view) << 32 | 0xffff_0000 | self.random.below(1 << 15);
                let body = Body::Granted { object, request, serial, level, facts: None, ahead };
                self.deliver(soon_us, to, from, Message { view, body });
                return Some(message);
            }
            (Planted::RevokeNotAwaited, Body::Revoke { object, serial, .. }) => {
                let (object, serial, level) = (*object, *serial, Level::None);
                let body = Body::Released { object, serial, level, facts: None, ahead };
                self.deliver(soon_us, to, from, Message { view, body });
                return None;
            }
            (Planted::WholeWhilePartHeld, Body::Revoke { object, serial, .. }) => {
                let (object, serial, level) = (*object, *serial, Level::None);
                let holder = &self.nodes[usize::from(to.node.0)].directory;
                if object.of == Of::Whole && holder.held(object) == Level::Shared {
                    let body = Body::Released { object, serial, level, facts: None, ahead };
                    self.deliver(soon_us, to, from, Message { view, body });
                    return None;
                }
            }
            (Planted::ClaimsSkipped, Body::Claims { items, .. } | Body::Tell { items, .. })
                if from.node.0 == 0 =>
            {
                items.retain(|item| !matches!(item, Claim::Holds { .. }));
            }
            (Planted::TellersNotAwaited, Body::Roll { step: Step::Told, is_up, .. }) if *is_up => {
                self.deliver(soon_us, from, to, message.clone());
                if let Body::Roll { is_up, .. } = &mut message.body {
                    *is_up = false;
                }
                self.deliver(soon_us, to, from, message);
                return None;
            }
            (Planted::HomesNotAwaited, Body::Tell { is_last: true, .. }) => {
                self.deliver(soon_us, to, from, Message { view, body: Body::Told });
            }
            (Planted::StaleGrantTaken, Body::Granted { object, .. }) => {
                self.old_grants.insert((to.node.0, *object), message.clone());
            }
            (Planted::StaleGrantTaken, Body::Open { object, request, .. }) => {
                let old = self.old_grants.get(&(from.node.0, *object)).cloned();
                if let Some(Message { body: Body::Granted { object, serial, level, .. }, .. }) = old
                {
                    let (request, serial) = (*request, serial + 1);
                    let body = Body::Granted { object, request, serial, level, facts: None, ahead };
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
            (Planted::SizeOfOneForgotten, Body::Released { object, facts, .. })
                if object.of == Of::Size =>
            {
                facts.iter_mut().for_each(|facts| facts.size = 0);
            }
            (Planted::AheadOfOthers, Body::Granted { object, ahead, .. }) => {
                if matches!(object.of, Of::Part(_)) {
                    *ahead = Ahead::of(1, 0b11);
                }
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
        match self.random.below(14) {
            12..14 => {
                // One that lives, stopped or cut off, or whose manager was killed, is said to be
                // gone; where there is none, one is stopped for so long that it is.
                let out = (0..self.leases.nodes).find(|node| self.is_left_out(*node));
                if let Some(out) = out {
                    return self.give_up_life(out, self.nodes[usize::from(out)].life);
                }
                let peer = &mut self.nodes[usize::from(node)];
                peer.is_stopped = true;
                peer.silent_ms = peer.silent_ms.or(Some(now_ms));
                self.after(PATIENCE_MS + 2_000, 0, Event::GiveUpLife(node));
                self.after(PATIENCE_MS + 24_000, 0, Event::Mend(node));
                return;
            }
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

    /// Whether a view has left out a node, with its pool.
    fn is_left_out(&self, node: u16) -> bool {
        let since = self.nodes[usize::from(node)].pool_since;
        let is_lost =
            |seat: &Seat| seat.member.node.0 == node && seat.member.incarnation.0 >= since;
        self.view.seat_of(NodeId(node)).is_none() && self.folder.iter().any(is_lost)
    }

    /// A manager is killed, or a node dies with its pool.
    fn end(&mut self, node: u16, has_pool: bool) {
        let now_ms = self.now_ms();
        let peer = &mut self.nodes[usize::from(node)];
        if !peer.runs && (has_pool || peer.directory.all_held().is_empty()) {
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
        // What was given up before is not lost once more.
        let is_orphan = peer.orphan_ms.take().is_some();
        let dirty = peer.cached.iter().filter(|(_, cached)| cached.is_dirty && !is_orphan);
        for (object, _) in dirty {
            self.outcome.died_dirty += 1;
            self.lost_with.insert((*object, node));
        }
        // Nothing of it is left, and it will not go on with its pool.
        let old = self.nodes[usize::from(node)].life;
        let new =
            Directory::new(Member::new(node, old), Incarnation(old), tuning(self.leases.below));
        let peer = &mut self.nodes[usize::from(node)];
        (peer.directory, peer.pool_since) = (new, old + 1);
        peer.cached.clear();
        peer.mapped.clear();
        peer.lends.clear();
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
            // Its flushers go on before it has looked at anything.
            if self.may_flush(node) && self.random.one_in(2) {
                let objects: Vec<Object> =
                    self.files.iter().flat_map(|file| all_of(*file)).collect();
                objects.into_iter().for_each(|object| self.flush(node, object));
            }
        }
        let peer = &self.nodes[usize::from(node)];
        if !peer.runs && self.view.has_given_up(Member::new(node, peer.pool_since)) {
            self.set_pool_aside(node);
        }
        let peer = &mut self.nodes[usize::from(node)];
        if !peer.runs {
            peer.life += 1;
            let me = Member::new(node, peer.life);
            let held = peer.directory.all_held();
            let mut directory =
                Directory::new(me, Incarnation(peer.pool_since), tuning(self.leases.below));
            held.into_iter().for_each(|(object, level)| directory.adopt(object, level));
            peer.directory = directory;
            peer.runs = true;
            (peer.looked_ms, peer.wakes_ms) = (None, None);
            peer.gone_since.clear();
            peer.given_since.clear();
            peer.missed.clear();
            // What it was told to drop, it drops.
            let drops = peer.directory.effects();
            for effect in drops {
                if let Effect::Reduce { object, to, may_share } = effect {
                    self.after(1, node, Event::Reduce { object, to, may_share });
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
            let is_given_up = self.view.has_given_up(member);
            let is_known =
                peer.runs && !is_given_up && before.is_none_or(|seat| seat.member != member);
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
            self.view = View { number, seats, ..std::mem::take(&mut self.view) };
            self.outcome.views += 1;
        }
    }

    /// Nothing goes wrong any more, and what is gone for good is said to be.
    fn heal(&mut self) {
        self.is_quiet = true;
        for node in 0..self.leases.nodes {
            self.side.clear();
            self.mend(node);
            self.after(18_000, 0, Event::GiveUp(node));
        }
        self.after(CALM_MS, 0, Event::Calm);
        for node in 0..self.leases.nodes {
            for file in self.files.clone() {
                let at_ms = CALM_MS + self.random.below(QUIET_MS - CALM_MS - 10_000);
                let part = Object::part(file, self.random.below(PARTS.into()) as u32);
                let what = [Do::Write, Do::Append][self.random.index(2)];
                self.after(at_ms, node, Event::Check(part, what));
            }
        }
    }

    /// What a node had in earlier lives does not come back.
    fn give_up(&mut self, node: u16) {
        let earlier = self.nodes[usize::from(node)].pool_since - 1;
        if earlier > 0 {
            self.give_up_life(node, earlier);
        }
    }

    /// What a node had up to this life is given up, whether it lives or not: by a view, which each
    /// member sees with its next look, and from which on it waits until what may be on its way to
    /// the store has come.
    fn give_up_life(&mut self, node: u16, life: u32) {
        let member = Member::new(node, life);
        if self.view.has_given_up(member) {
            return;
        }
        let now_ms = self.now_ms();
        let number = self.view.number + 1;
        let mut given_up = std::mem::take(&mut self.view.given_up);
        given_up.retain(|given| given.member.node.0 != node);
        given_up.push(GivenUp { member, view: number });
        given_up.sort_unstable();
        (self.view.number, self.view.given_up) = (number, given_up);
        self.outcome.views += 1;
        let wait_ms = self.times.patience;
        self.after(wait_ms, 0, Event::Forget(member));
        let peer = &mut self.nodes[usize::from(node)];
        if peer.pool_since <= life {
            self.outcome.orphans += 1;
            peer.orphan_ms = Some(now_ms);
            let dirty = peer.cached.iter().filter(|(_, cached)| cached.is_dirty);
            let dirty: Vec<Object> = dirty.map(|(object, _)| *object).collect();
            self.lost_with.extend(dirty.into_iter().map(|object| (object, node)));
        }
        // What it had is gone for good: the store's bytes are the newest, and of sizes what others
        // made of them.
        let is_its = |(_, other): &&(Object, u16)| *other == node;
        let lost: Vec<(Object, u16)> = self.lost_with.iter().filter(is_its).copied().collect();
        for (object, node) in lost {
            self.lost_with.remove(&(object, node));
            // Those that have borrowed it have it until they have heard of that, and waited.
            let until_ms = now_ms + self.times.valid + self.times.patience;
            self.borrowed_lost.insert(object, (self.newest[&object], until_ms));
            let others = self.nodes.iter().filter(|peer| peer.orphan_ms.is_none());
            let cached = others.filter_map(|peer| peer.cached.get(&object));
            let sizes = cached.filter(|cached| cached.is_dirty && object.of == Of::Size);
            let most = sizes.map(|cached| cached.value).max().unwrap_or(0);
            self.set_newest(object, self.store[&object].max(most));
        }
    }

    /// After all trouble each node can use each file.
    fn check_all_work(&mut self, node: u16, part: Object, what: Do) -> Result<(), String> {
        let doing = Doing { what, part, waits: 0 };
        match self.missing(node, &doing) {
            None => self.act(node, doing)?,
            Some(_) => self.ask_for(node, doing),
        }
        self.carry_out(node)
    }

    /// At most one node may write a file, or a part of it, and none but it may use it then.
    fn check(&self) -> Result<(), String> {
        if let Some(why) = &self.wrong {
            return Err(why.clone());
        }
        let has_ghosts = self.leases.planted == Some(Planted::PartWithoutShared);
        for (index, file) in self.files.iter().enumerate() {
            let shared = self.check_object(Object::whole(*file))?;
            // One file after the other: what is wrong with a part lasts for some events.
            let is_next = self.count as usize % self.files.len() == index;
            if has_ghosts || shared > 1 && is_next {
                for object in all_of(*file) {
                    self.check_object(object)?;
                }
            }
        }
        Ok(())
    }

    /// How many nodes share it.
    fn check_object(&self, object: Object) -> Result<usize, String> {
        let mut shared = 0;
        // How many have each level.
        let mut all = [0; Level::ALL.len()];
        for node in 0..self.leases.nodes {
            if self.nodes[usize::from(node)].orphan_ms.is_some() {
                continue;
            }
            let level = self.usable(node, object);
            shared += usize::from(level == Level::Shared);
            if Level::ALL.iter().any(|other| all[*other as usize] > 0 && level.conflicts(*other)) {
                let levels: Vec<(u16, Level)> =
                    (0..=node).map(|node| (node, self.usable(node, object))).collect();
                return Err(format!("nodes have {levels:?} of {object:?}"));
            }
            all[level as usize] += 1;
        }
        Ok(shared)
    }

    /// Nothing waits for longer than it may.
    fn check_waits(&self) -> Result<(), String> {
        let wait_ms = tuning(self.leases.below).wait_ms + 5_000;
        for (number, peer) in self.nodes.iter().enumerate() {
            let is_late = |since_ms: u64| {
                let is_well = peer.runs && peer.silent_ms.is_none() && !peer.is_stopped;
                let from_ms = peer.mended_ms.max(since_ms + wait_ms - 5_000);
                is_well && from_ms + 5_000 < self.now_ms()
            };
            if let Some((file, _)) = peer.waiting.iter().find(|(_, (since, _))| is_late(*since)) {
                return Err(format!("node {number} waits for {file:?} without an end"));
            }
            if peer.asked.values().any(|asked| is_late(asked.since_ms)) {
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

/// The size and the parts of a file.
fn all_of(file: FileId) -> Vec<Object> {
    let parts = (0..PARTS).map(|part| Object::part(file, part));
    std::iter::once(Object::size(file)).chain(parts).collect()
}

fn facts(value: u64) -> Facts {
    Facts { size: value, mtime_ns: value as i64 }
}

fn tuning(below: usize) -> Tuning {
    Tuning { wait_ms: 30_000, direct_ms: 3_000, below, ..Tuning::default() }
}

fn node(member: Member, pool_since: u32, below: usize) -> Node {
    Node {
        directory: Directory::new(member, Incarnation(pool_since), tuning(below)),
        life: member.incarnation.0,
        pool_since,
        runs: true,
        is_stopped: false,
        cached: BTreeMap::new(),
        mapped: BTreeSet::new(),
        lends: BTreeSet::new(),
        looked_ms: None,
        entered_ms: 0,
        gone_since: BTreeMap::new(),
        given_since: BTreeMap::new(),
        orphan_ms: None,
        missed: Vec::new(),
        wakes_ms: None,
        silent_ms: None,
        mended_ms: 0,
        waiting: BTreeMap::new(),
        asked: BTreeMap::new(),
        ever: BTreeSet::new(),
    }
}
