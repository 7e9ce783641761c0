//! A group of nodes on a virtual clock: the failure detector and the views of `membership`, over a
//! network that loses and delays packets and a store that answers late, with what breaks.
//!
//! ```
//! use forebay_simulator::group::{Fault, Group, simulate};
//!
//! let mut group = Group::of(5);
//! group.faults.push((60_000, Fault::Kill(3)));
//! let outcome = simulate(&group).unwrap();
//! let kill = &outcome.kills[0];
//! assert!(kill.noticed_ms.unwrap() < 8_000);
//! assert!(kill.left_out_ms.unwrap() < 10_000);
//! assert!((10_000..25_000).contains(&kill.succeeded_ms.unwrap()));
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use forebay_membership::{
    Action, Ask, Found, Member, NodeId, Rank, Seat, Swim, SwimTimer, Times, Tuning, View, Views,
};
use forebay_placement::Random;

/// How often it is looked whether two nodes hold themselves to be in charge of the same, in ms.
const CHECK_MS: u64 = 250;
/// After how long an operation on a store that does not answer fails, in ms; half of them fail at
/// once.
const STORE_TIMEOUT_MS: u64 = 1_000;
/// In so many ms at the end no message is stalled.
const QUIET_MS: u64 = 30_000;
/// One of so many messages between managers is stalled, where any is.
const STALLED: u64 = 20;
/// How long all may take to agree after the last fault is mended, in ms: a part that was left
/// alone waits for 2 T, and each that is to make a view and cannot takes T more.
const AGREED_MS: u64 = 90_000;

/// What happens to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The manager of a node is killed.
    Kill(u16),
    /// It is started again, with a higher incarnation.
    Start(u16),
    /// It is stopped (SIGSTOP, or swapped out).
    Stop(u16),
    /// It goes on.
    Continue(u16),
    /// These nodes reach each other, and no other.
    Split(Vec<u16>),
    /// All reach each other again.
    Heal,
    /// A node does not reach the store.
    StoreLost(u16),
    /// It does again.
    StoreBack(u16),
    /// So many packets of 1000 are lost.
    Loss(u32),
}

/// A group, and what happens to it.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its nodes; all begin within a second.
    pub nodes: u16,
    /// For how long it is simulated, in ms.
    pub length_ms: u64,
    /// Periods of the failure detector.
    pub tuning: Tuning,
    /// Periods of views.
    pub times: Times,
    /// Packets of 1000 that are lost.
    pub loss: u32,
    /// How long a packet takes at least, and at most, in microseconds.
    pub latency_us: (u64, u64),
    /// How long an operation on the store takes at least, and at most, in ms.
    pub store_ms: (u64, u64),
    /// How long a message between managers may be stalled, in ms; 0: none is. Packets of the
    /// failure detector are not, and nothing is in the last half minute.
    pub stall_ms: u64,
    /// By how many thousandths the nodes' clocks may be fast or slow.
    pub clock_error: u64,
    /// When what happens, in ms.
    pub faults: Vec<(u64, Fault)>,
    /// What random choices follow from.
    pub seed: u64,
}

impl Group {
    /// A group without faults, for two minutes.
    pub fn of(nodes: u16) -> Self {
        Self {
            nodes,
            length_ms: 120_000,
            tuning: Tuning::default(),
            times: Times::of_hosts(nodes.into()),
            loss: 0,
            latency_us: (50, 500),
            store_ms: (1, 20),
            stall_ms: 0,
            clock_error: 0,
            faults: Vec::new(),
            seed: 1,
        }
    }

    /// A group of 2 to 8 nodes to which everything happens, and in the end nothing any more; some
    /// end without one of them.
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = 2 + random.below(7) as u16;
        let mut group = Group { seed, clock_error: 100, stall_ms: 15_000, ..Group::of(nodes) };
        group.loss = [0, 0, 20, 100][random.index(4)];
        group.times.looked_for = [1, 3, 32][random.index(3)];
        group.store_ms = [(1, 20), (1, 300), (1, 1_500), (1_400, 2_000)][random.index(4)];
        let mut now_ms = 5_000 + random.below(15_000);
        let node = |random: &mut Random| random.below(nodes.into()) as u16;
        for _ in 0..2 + random.below(7) {
            let first = node(&mut random);
            let (fault, mend) = match random.below(10) {
                0..3 => (Fault::Kill(first), Fault::Start(first)),
                3..5 => (Fault::Stop(first), Fault::Continue(first)),
                5..8 => {
                    let mut side: BTreeSet<u16> = BTreeSet::from([first]);
                    for _ in 0..random.below(nodes.into()) {
                        side.insert(node(&mut random));
                    }
                    (Fault::Split(side.into_iter().collect()), Fault::Heal)
                }
                8 => (Fault::StoreLost(first), Fault::StoreBack(first)),
                _ => (Fault::Loss(300), Fault::Loss(group.loss)),
            };
            // Some are over before anything is noticed, some long after.
            let lasts = [1_500, 6_000, 14_000, 40_000][random.index(4)];
            let lasts = lasts / 2 + random.below(lasts);
            group.faults.push((now_ms, fault));
            group.faults.push((now_ms + lasts, mend));
            now_ms += random.below(20_000);
        }
        let end_ms = group.faults.iter().map(|(at_ms, _)| *at_ms).max().unwrap_or(0);
        let mended = (0..nodes)
            .flat_map(|node| [Fault::Start(node), Fault::Continue(node), Fault::StoreBack(node)]);
        let mended = mended.chain([Fault::Heal, Fault::Loss(0)]);
        group.faults.extend(mended.map(|fault| (end_ms, fault)));
        if random.one_in(3) {
            // One stays away.
            group.faults.push((end_ms, Fault::Kill(node(&mut random))));
        }
        group.faults.sort_by_key(|(at_ms, _)| *at_ms);
        group.length_ms = end_ms + AGREED_MS;
        group
    }
}

/// What became of a killed manager, in ms after the kill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Killed {
    /// The node.
    pub node: u16,
    /// A first other node holds it down.
    pub noticed_ms: Option<u64>,
    /// All others do.
    pub known_ms: Option<u64>,
    /// A view is without it.
    pub left_out_ms: Option<u64>,
    /// All others have seen that view.
    pub seen_ms: Option<u64>,
    /// A first other node may take over what it had.
    pub succeeded_ms: Option<u64>,
}

/// What a simulated group did.
#[derive(Clone, Debug, Default)]
pub struct GroupOutcome {
    /// Packets of the failure detector.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations on the store.
    pub store_calls: u64,
    /// Questions to members that look for others.
    pub inquiries: u64,
    /// The views, in order, with the moment at which each was made, in ms.
    pub views: Vec<(u64, Arc<View>)>,
    /// When all that live were in one view that all had seen, the first time, in ms.
    pub formed_ms: Option<u64>,
    /// What became of those that were killed and not started again.
    pub kills: Vec<Killed>,
    /// Lives that a view left out though they ran.
    pub left_out_living: Vec<Member>,
    /// How long the nodes that ran might not act, in all, in ms.
    pub fenced_ms: u64,
}

#[derive(Debug)]
enum Event {
    Fault(Fault),
    Packet(Vec<u8>),
    Timer { timer: SwimTimer, due_ms: u64 },
    Wake,
    Store(Ask),
    Stored(Ask, Option<Found>),
    Inquiry { from: u16, question: u64 },
    Heard { from: u16, question: u64, seen: Option<(u64, Found)> },
    Told(u32),
    Begin,
    Check,
}

/// An event, and which node's life it is for.
#[derive(Debug)]
struct Due {
    node: u16,
    life: u32,
    event: Event,
}

struct Peer {
    me: Member,
    swim: Swim,
    views: Views,
    /// The view of which the failure detector was told.
    entered: u32,
    runs: bool,
    is_stopped: bool,
    has_store: bool,
    /// What came while it was stopped.
    missed: Vec<Event>,
    /// Its clock: what it shows at the beginning, and how many thousandths of a second pass in one.
    clock: (u64, u64),
    wakes_ms: Option<u64>,
}

struct World<'a> {
    group: &'a Group,
    random: Random,
    now_us: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Due>,
    count: u64,
    peers: Vec<Peer>,
    side: BTreeSet<u16>,
    loss: u32,
    pleas: BTreeMap<u32, BTreeSet<NodeId>>,
    /// Looks of members of the newest view.
    looks: u64,
    outcome: GroupOutcome,
    killed: BTreeMap<u16, (u64, Seat, Killed)>,
    down: BTreeMap<u16, BTreeSet<u16>>,
}

/// Simulates a group.
///
/// # Errors
/// What went against a promise, and when: a node that acted when another could take over from it,
/// or nodes that did not agree in the end.
pub fn simulate(group: &Group) -> Result<GroupOutcome, String> {
    let mut world = World::new(group);
    world
        .run()
        .map_err(|why| format!("seed {}, {:.3} s: {why}", group.seed, world.now_us as f64 / 1e6))?;
    let kills = world.killed.into_values().map(|(_, _, killed)| killed).collect();
    Ok(GroupOutcome { kills, ..world.outcome })
}

impl<'a> World<'a> {
    fn new(group: &'a Group) -> Self {
        let mut random = Random::new(group.seed ^ 0x6772_6f75);
        let peers = (0..group.nodes).map(|node| {
            let error = random.below(2 * group.clock_error + 1);
            let clock = (random.below(1 << 32), 1000 - group.clock_error.min(999) + error);
            peer(group, Member::new(node, 1), clock, random.next_u64(), 0)
        });
        let peers = peers.collect();
        Self {
            group,
            random,
            now_us: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            peers,
            side: BTreeSet::new(),
            loss: group.loss,
            pleas: BTreeMap::new(),
            looks: 0,
            outcome: GroupOutcome::default(),
            killed: BTreeMap::new(),
            down: BTreeMap::new(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for node in 0..self.group.nodes {
            let at_us = self.random.below(1_000_000);
            self.at(at_us, node, Event::Begin);
        }
        for (at_ms, fault) in &self.group.faults {
            self.at(at_ms * 1000, 0, Event::Fault(fault.clone()));
        }
        self.at(CHECK_MS * 1000, 0, Event::Check);
        while let Some(Reverse((at_us, number))) = self.queue.pop() {
            if at_us > self.group.length_ms * 1000 {
                break;
            }
            self.now_us = at_us;
            let Some(due) = self.events.remove(&number) else { continue };
            match due.event {
                Event::Fault(fault) => self.fail(&fault),
                Event::Check => self.check()?,
                // What is under way at the store goes on there, whatever becomes of its manager.
                Event::Store(ask) => self.store(due.node, due.life, ask)?,
                event => {
                    let peer = &mut self.peers[usize::from(due.node)];
                    if !peer.runs || peer.me.incarnation.0 != due.life {
                        continue;
                    }
                    match peer.is_stopped {
                        true => peer.missed.push(event),
                        false => self.happen(due.node, event),
                    }
                }
            }
        }
        self.agree()
    }

    fn at(&mut self, at_us: u64, node: u16, event: Event) {
        let life = self.peers[usize::from(node)].me.incarnation.0;
        self.at_life(at_us, (node, life), event);
    }

    fn at_life(&mut self, at_us: u64, (node, life): (u16, u32), event: Event) {
        self.count += 1;
        self.queue.push(Reverse((at_us, self.count)));
        self.events.insert(self.count, Due { node, life, event });
    }

    fn local_ms(&self, node: u16) -> u64 {
        let (begin, rate) = self.peers[usize::from(node)].clock;
        begin + self.now_us * rate / 1_000_000
    }

    /// The moment at which a node's clock shows this.
    fn global_us(&self, node: u16, local_ms: u64) -> u64 {
        let (begin, rate) = self.peers[usize::from(node)].clock;
        (local_ms.saturating_sub(begin) * 1_000_000).div_ceil(rate)
    }

    fn happen(&mut self, node: u16, event: Event) {
        let now_ms = self.local_ms(node);
        let peer = &mut self.peers[usize::from(node)];
        match event {
            Event::Begin => {
                let actions = peer.swim.begin();
                self.act(node, actions);
            }
            Event::Packet(bytes) => {
                let actions = peer.swim.on_packet(&bytes);
                self.act(node, actions);
            }
            Event::Timer { timer, due_ms } => {
                let late_ms = now_ms.saturating_sub(due_ms) as u32;
                let actions = peer.swim.on_timer(timer, late_ms);
                self.act(node, actions);
            }
            Event::Wake => peer.wakes_ms = None,
            Event::Stored(ask, found) => match ask {
                Ask::Look => peer.views.looked(found, now_ms),
                Ask::Propose(view) => {
                    peer.views.proposed(found.is_some(), now_ms);
                    for member in view.members().filter(|member| member.node.0 != node) {
                        if found.is_some() {
                            self.message(node, member.node.0, Event::Told(view.number));
                        }
                    }
                }
                Ask::Plead(_) => peer.views.pleaded(found.is_some(), now_ms),
                Ask::Inquire(..) => {}
            },
            Event::Inquiry { from, question } => {
                let seen = peer.views.last_seen(now_ms);
                self.message(node, from, Event::Heard { from: node, question, seen });
            }
            Event::Heard { from, question, seen } => {
                peer.views.heard(NodeId(from), question, seen, now_ms);
            }
            Event::Told(number) => peer.views.told(number, now_ms),
            Event::Store(_) | Event::Fault(_) | Event::Check => {}
        }
        self.poll(node);
    }

    fn act(&mut self, node: u16, actions: Vec<Action>) {
        let now_ms = self.local_ms(node);
        for action in actions {
            match action {
                Action::Send(to, packet) => {
                    self.outcome.packets += 1;
                    self.outcome.bytes += packet.len() as u64;
                    if self.random.below(1000) >= self.loss.into() {
                        self.message(node, to.0, Event::Packet(packet));
                    }
                }
                Action::After(ms, timer) => {
                    let due_ms = now_ms + u64::from(ms);
                    let at_us = self.global_us(node, due_ms).max(self.now_us + 1);
                    self.at(at_us, node, Event::Timer { timer, due_ms });
                }
                Action::Up(member) => {
                    self.peers[usize::from(node)].views.up(member, now_ms);
                    self.down.entry(member.node.0).or_default().remove(&node);
                }
                Action::Down(member) => {
                    self.peers[usize::from(node)].views.down(member, now_ms);
                    self.down.entry(member.node.0).or_default().insert(node);
                }
            }
        }
    }

    /// A message to another node, in its current life.
    fn message(&mut self, from: u16, to: u16, event: Event) {
        if self.side.contains(&from) == self.side.contains(&to) {
            let (least, most) = self.group.latency_us;
            let mut at_us = self.now_us + least + self.random.below(most - least + 1);
            let is_packet = matches!(event, Event::Packet(_));
            let may_stall = self.now_us + QUIET_MS * 1000 < self.group.length_ms * 1000;
            if !is_packet && may_stall && self.random.one_in(STALLED) {
                at_us += self.random.below(self.group.stall_ms * 1000 + 1);
            }
            self.at(at_us, to, event);
        }
    }

    fn poll(&mut self, node: u16) {
        let now_ms = self.local_ms(node);
        let peer = &mut self.peers[usize::from(node)];
        if let Some(view) = peer.views.view().filter(|view| view.number > peer.entered) {
            peer.entered = view.number;
            let actions = peer.swim.entered(view);
            self.act(node, actions);
        }
        let views = &mut self.peers[usize::from(node)].views;
        match views.poll(now_ms) {
            Some(Ask::Inquire(to, question)) => {
                self.outcome.inquiries += 1;
                self.message(node, to.0, Event::Inquiry { from: node, question });
            }
            Some(ask) => {
                self.outcome.store_calls += 1;
                let delay_us = self.store_delay_us();
                self.at(self.now_us + delay_us, node, Event::Store(ask));
            }
            None => {}
        }
        let next_ms = self.peers[usize::from(node)].views.next_ms(now_ms);
        let at_us = self.global_us(node, next_ms).max(self.now_us + 1);
        let peer = &mut self.peers[usize::from(node)];
        if peer.wakes_ms.is_none_or(|wakes_ms| next_ms < wakes_ms) {
            peer.wakes_ms = Some(next_ms);
            self.at(at_us, node, Event::Wake);
        }
    }

    fn store_delay_us(&mut self) -> u64 {
        let (least, most) = self.group.store_ms;
        (least * 1000 + self.random.below((most - least) * 1000 + 1)) / 2
    }

    /// The store carries out an operation, and answers the life that has asked.
    fn store(&mut self, node: u16, life: u32, ask: Ask) -> Result<(), String> {
        if !self.peers[usize::from(node)].has_store {
            let fails_ms = if self.random.one_in(2) { STORE_TIMEOUT_MS } else { 1 };
            let at_us = self.now_us + fails_ms * 1000;
            self.at_life(at_us, (node, life), Event::Stored(ask, None));
            return Ok(());
        }
        let newest = self.outcome.views.last().map(|(_, view)| view.clone());
        let number = newest.as_ref().map_or(0, |view| view.number);
        let mut found = Found { newest, ..Found::default() };
        match &ask {
            Ask::Propose(view) if view.number == number + 1 => self.make(Arc::new(view.clone())),
            Ask::Propose(view) if view.number > number + 1 => {
                return Err(format!("view {} follows {number}", view.number));
            }
            Ask::Propose(_) | Ask::Inquire(..) => {}
            Ask::Plead(number) => {
                self.pleas.entry(*number).or_default().insert(NodeId(node));
            }
            Ask::Look => {
                let is_member = |view: &View| view.has(Member::new(node, life));
                self.looks += u64::from(found.newest.as_deref().is_some_and(is_member));
                found.looks = self.looks;
                found.pleas = self.pleas.get(&number).into_iter().flatten().copied().collect();
            }
        }
        let at_us = self.now_us + self.store_delay_us();
        self.at_life(at_us, (node, life), Event::Stored(ask, Some(found)));
        Ok(())
    }

    fn make(&mut self, view: Arc<View>) {
        let now_ms = self.now_us / 1000;
        let before = self.outcome.views.last().map(|(_, view)| view.clone());
        let before = before.iter().flat_map(|view| view.members());
        for member in before.filter(|member| !view.has(*member)) {
            let peer = &self.peers[usize::from(member.node.0)];
            if peer.me == member && peer.runs && !peer.is_stopped {
                self.outcome.left_out_living.push(member);
            }
            if let Some((at_ms, life, killed)) = self.killed.get_mut(&member.node.0)
                && life.member == member
            {
                killed.left_out_ms = Some(now_ms - *at_ms);
            }
        }
        self.outcome.views.push((now_ms, view));
    }

    fn fail(&mut self, fault: &Fault) {
        let now_ms = self.now_us / 1000;
        match fault {
            Fault::Kill(node) => {
                let peer = &mut self.peers[usize::from(*node)];
                if std::mem::replace(&mut peer.runs, false) {
                    let killed = Killed { node: *node, ..Killed::default() };
                    let none = Seat { member: peer.me, since: 0 };
                    let seat = peer.views.seat().unwrap_or(none);
                    self.killed.insert(*node, (now_ms, seat, killed));
                    self.down.entry(*node).or_default().clear();
                }
            }
            Fault::Start(node) if !self.peers[usize::from(*node)].runs => {
                self.killed.remove(node);
                let old = &self.peers[usize::from(*node)];
                let (clock, has_store) = (old.clock, old.has_store);
                let me = Member::new(*node, old.me.incarnation.0 + 1);
                let (seed, local_ms) = (self.random.next_u64(), self.local_ms(*node));
                let new = peer(self.group, me, clock, seed, local_ms);
                self.peers[usize::from(*node)] = Peer { has_store, ..new };
                self.at(self.now_us, *node, Event::Begin);
            }
            Fault::Start(_) => {}
            Fault::Stop(node) => self.peers[usize::from(*node)].is_stopped = true,
            Fault::Continue(node) => {
                let peer = &mut self.peers[usize::from(*node)];
                peer.is_stopped = false;
                for event in std::mem::take(&mut peer.missed) {
                    self.at(self.now_us, *node, event);
                }
            }
            Fault::Split(side) => self.side = side.iter().copied().collect(),
            Fault::Heal => self.side.clear(),
            Fault::StoreLost(node) => self.peers[usize::from(*node)].has_store = false,
            Fault::StoreBack(node) => self.peers[usize::from(*node)].has_store = true,
            Fault::Loss(loss) => self.loss = *loss,
        }
    }

    fn running(&self) -> impl Iterator<Item = (u16, &Peer)> {
        (0..).zip(&self.peers).filter(|(_, peer)| peer.runs)
    }

    /// Those that run and may not act.
    fn fenced(&self) -> impl Iterator<Item = (u16, &Peer)> {
        self.running().filter(|(node, peer)| {
            !peer.is_stopped && peer.views.rank(self.local_ms(*node)) != Rank::Inside
        })
    }

    /// Looks whether a promise is broken, and notes what has been reached.
    fn check(&mut self) -> Result<(), String> {
        let now_ms = self.now_us / 1000;
        // Who has seen a view takes over from no member of it: of all that have seen one as the
        // newest, one is asked then.
        let mut by_view = BTreeMap::<u32, Vec<(u16, &Peer)>>::new();
        for (node, peer) in self.running() {
            let number = peer.views.view().map_or(0, |view| view.number);
            by_view.entry(number).or_default().push((node, peer));
        }
        for (node, peer) in self.running() {
            let acts = peer.views.rank(self.local_ms(node)) == Rank::Inside;
            let Some(seat) = peer.views.seat().filter(|_| acts) else { continue };
            let succeeds = |(other, successor): &(u16, &Peer)| {
                successor.views.may_take_over(seat, self.local_ms(*other))
            };
            let has_seat =
                |view: &View| view.seat_of(NodeId(node)) == Some(seat) && view.number >= seat.since;
            let others = by_view.values().flat_map(|peers| {
                let is_in = peers.first().and_then(|(_, peer)| peer.views.view());
                &peers[..if is_in.is_some_and(has_seat) { 1 } else { peers.len() }]
            });
            if let Some((other, _)) = others.copied().find(succeeds) {
                return Err(format!("node {other} may take over from {seat:?}, which acts"));
            }
        }
        let fenced = self.fenced().count() as u64;
        if self.outcome.formed_ms.is_some() {
            self.outcome.fenced_ms += fenced * CHECK_MS;
        } else if fenced == 0 && self.is_agreed() {
            self.outcome.formed_ms = Some(now_ms);
        }
        self.follow_kills();
        self.at(self.now_us + CHECK_MS * 1000, 0, Event::Check);
        Ok(())
    }

    fn follow_kills(&mut self) {
        let now_ms = self.now_us / 1000;
        for (node, (at_ms, life, mut killed)) in std::mem::take(&mut self.killed) {
            let since_ms = Some(now_ms - at_ms);
            let others = self.running().count();
            let down = self.down.get(&node).map_or(0, BTreeSet::len);
            killed.noticed_ms = killed.noticed_ms.or(since_ms.filter(|_| down > 0));
            killed.known_ms = killed.known_ms.or(since_ms.filter(|_| down >= others));
            if killed.left_out_ms.is_some() {
                let has_seen = |(_, peer): (u16, &Peer)| {
                    peer.views.view().is_some_and(|view| !view.has(life.member))
                };
                let succeeds = |(other, peer): (u16, &Peer)| {
                    peer.views.may_take_over(life, self.local_ms(other))
                };
                let all = self.running().all(has_seen);
                let any = self.running().any(succeeds);
                killed.seen_ms = killed.seen_ms.or(since_ms.filter(|_| all));
                killed.succeeded_ms = killed.succeeded_ms.or(since_ms.filter(|_| any));
            }
            self.killed.insert(node, (at_ms, life, killed));
        }
    }

    /// Whether all that run are in one view, without others, which all have seen.
    fn is_agreed(&self) -> bool {
        let members: Vec<Member> = self.running().map(|(_, peer)| peer.me).collect();
        let newest = self.outcome.views.last().map(|(_, view)| view);
        let has_seen = |view: &View, newest: &View| std::ptr::eq(view, newest) || view == newest;
        newest.is_some_and(|newest| {
            newest.members().eq(members)
                && self
                    .running()
                    .all(|(_, peer)| peer.views.view().is_some_and(|view| has_seen(view, newest)))
        })
    }

    /// What has to be so at the end.
    fn agree(&self) -> Result<(), String> {
        if let Some((node, peer)) = self.fenced().next() {
            let (rank, view) = (peer.views.rank(self.local_ms(node)), peer.views.view());
            let newest = self.outcome.views.last();
            return Err(format!("node {node} is {rank:?} at the end, in {view:?} of {newest:?}"));
        }
        if !self.is_agreed() {
            let newest = self.outcome.views.last();
            return Err(format!("the members at the end are {newest:?}"));
        }
        Ok(())
    }
}

fn peer(group: &Group, me: Member, clock: (u64, u64), seed: u64, local_ms: u64) -> Peer {
    let listed: Vec<NodeId> = (0..group.nodes).map(NodeId).collect();
    Peer {
        me,
        swim: Swim::new(me, &listed, group.tuning, seed),
        views: Views::new(me, group.times, local_ms.max(clock.0)),
        entered: 0,
        runs: true,
        is_stopped: false,
        has_store: true,
        missed: Vec::new(),
        clock,
        wakes_ms: None,
    }
}
