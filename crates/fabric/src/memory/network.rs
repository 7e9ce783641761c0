//! The network between fabrics of one process: a virtual clock, and what is under way.

use super::Memory;
use crate::flow::Roll;
use crate::{ADDRESS_MAX, Differs, Down, FabricError, GROUP_MAX, Identity};
use forebay_membership::{Member, NodeId};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes under way in one direction of a link at most, as the buffers of a socket.
const WINDOW: usize = 1 << 20;

/// A link whose network is cut ends after this time, as one of TCP does.
const SILENT_TIME: Duration = Duration::from_millis(4500);

/// A network in one process, for simulations and tests; clones are the same network. Nothing takes
/// time but what is asked for, and nothing happens before the clock gets there.
///
/// With the same seed and the same calls in the same order, the same happens.
///
/// ```
/// use forebay_fabric::{Event, Fabric, Identity, Network};
/// use forebay_membership::{Member, NodeId};
/// use std::time::Duration;
///
/// let network = Network::new(1);
/// network.set_delay(Duration::from_micros(10), Duration::from_micros(5));
/// let join = |node| {
///     let identity = Identity { member: Member::new(node, 1), group: "demo".into() };
///     network.join(identity, &format!("node{node}"))
/// };
/// let (mut one, mut two) = (join(1)?, join(2)?);
/// let link = one.connect(two.member(), two.address())?;
/// let mut events = Vec::new();
/// while let Some(wait) = network.next_due().filter(|_| events.is_empty()) {
///     network.advance(wait);
///     two.poll(&mut Vec::new());
///     one.poll(&mut events);
/// }
/// assert_eq!(events, [Event::Up { link, peer: two.member() }]);
/// # Ok::<(), forebay_fabric::FabricError>(())
/// ```
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

pub(super) struct State {
    pub(super) now: Duration,
    random: u64,
    delay: Duration,
    jitter: Duration,
    nodes: Vec<Node>,
    wires: BTreeMap<u64, Wire>,
    last_wire: u64,
    /// By when they arrive, and a number.
    under_way: BTreeMap<(Duration, u64), Delivery>,
    last_delivery: u64,
    /// Pairs of nodes, the lower one first.
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// What a cut keeps from arriving, in the order it was sent.
    held: Vec<Delivery>,
}

struct Node {
    identity: Identity,
    address: String,
    /// None of one that was killed.
    event: Option<Arc<OwnedFd>>,
    /// When its first timer is due.
    timer: Option<Duration>,
    life: Life,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Stopped,
    Killed,
}

/// A connection of two nodes. Direction 0 is from the one that has connected.
struct Wire {
    ends: [usize; 2],
    /// When the last of each direction arrives: the next does not before.
    last_due: [Duration; 2],
    in_flight: [usize; 2],
    /// Which ends have said that it is over.
    ended: [bool; 2],
}

/// Something that arrives at one end of a wire.
pub(super) struct Delivery {
    pub(super) wire: u64,
    direction: usize,
    pub(super) what: What,
}

pub(super) enum What {
    /// A node connects.
    Open { peer: Member, wanted: Member, group: String, roll: Roll },
    /// It is let in.
    Accepted(Member, Roll),
    /// Frames.
    Bytes(Vec<u8>),
    /// It is over.
    Over(Down),
    /// It is over if the cut lasts so long.
    Silent,
}

impl Network {
    /// An empty network without delay.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            random: seed,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            nodes: Vec::new(),
            wires: BTreeMap::new(),
            last_wire: 0,
            under_way: BTreeMap::new(),
            last_delivery: 0,
            cuts: BTreeSet::new(),
            held: Vec::new(),
        })))
    }

    /// The fabric of a node that peers find at this address, where no other running one is.
    ///
    /// # Errors
    /// [`FabricError::Address`] and [`FabricError::System`].
    pub fn join(&self, identity: Identity, address: &str) -> Result<Memory, FabricError> {
        if address.len() > ADDRESS_MAX || identity.group.len() > GROUP_MAX {
            return Err(FabricError::Address("the address or the group's name is too long".into()));
        }
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| FabricError::System(format!("eventfd: {error}")))?;
        let event = Arc::new(event);
        let mut state = self.lock();
        let taken = |node: &Node| node.address == address && node.life != Life::Killed;
        if state.nodes.iter().any(taken) {
            return Err(FabricError::System(format!("cannot listen at {address}: in use")));
        }
        let member = identity.member;
        state.nodes.push(Node {
            identity,
            address: address.into(),
            event: Some(event.clone()),
            timer: None,
            life: Life::Running,
        });
        let place = state.nodes.len() - 1;
        drop(state);
        Ok(Memory::new(self.clone(), place, member, address.into(), event))
    }

    /// How long everything takes from now on: `delay`, and up to `jitter` more. What is sent on a
    /// link keeps its order.
    pub fn set_delay(&self, delay: Duration, jitter: Duration) {
        let mut state = self.lock();
        state.delay = delay;
        state.jitter = jitter;
    }

    /// The clock: the time since the network was made.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Moves the clock on. Fabrics that have something to do then are readable.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.now += by;
        state.wake_all();
    }

    /// How long until something happens by itself; none if nothing will.
    pub fn next_due(&self) -> Option<Duration> {
        let state = self.lock();
        let runs = |place: usize| state.nodes[place].life == Life::Running;
        let arrives =
            state.under_way.iter().find(|(_, delivery)| state.goes_to(delivery).is_some_and(runs));
        let timers = state.nodes.iter().filter(|node| node.life == Life::Running);
        let first = timers.filter_map(|node| node.timer).min();
        let first = first.into_iter().chain(arrives.map(|((due, _), _)| *due)).min();
        first.map(|due| due.saturating_sub(state.now))
    }

    /// Nothing gets through between two nodes. Links end after 4.5 s; what is sent until then
    /// arrives if the cut is healed before.
    pub fn cut(&self, one: NodeId, other: NodeId) {
        let mut state = self.lock();
        let pair = sorted([one, other]);
        if !state.cuts.insert(pair) {
            return;
        }
        let wires = state.wires_of(pair);
        let of_pair = |delivery: &Delivery| wires.contains(&delivery.wire);
        let found = state.under_way.iter().filter(|(_, found)| of_pair(found)).map(|(at, _)| *at);
        for at in found.collect::<Vec<_>>() {
            let delivery = state.under_way.remove(&at);
            state.held.extend(delivery);
        }
        let due = state.now + SILENT_TIME;
        for (wire, direction) in wires.into_iter().flat_map(|wire| [(wire, 0), (wire, 1)]) {
            state.insert(due, Delivery { wire, direction, what: What::Silent });
        }
    }

    /// Ends a cut.
    pub fn heal(&self, one: NodeId, other: NodeId) {
        let mut state = self.lock();
        let pair = sorted([one, other]);
        if !state.cuts.remove(&pair) {
            return;
        }
        let wires = state.wires_of(pair);
        state.under_way.retain(|_, delivery| {
            !(matches!(delivery.what, What::Silent) && wires.contains(&delivery.wire))
        });
        let (now, held) = std::mem::take(&mut state.held)
            .into_iter()
            .partition(|delivery| wires.contains(&delivery.wire));
        state.held = held;
        for delivery in Vec::into_iter(now) {
            state.route(delivery);
        }
        state.wake_all();
    }

    /// Ends a node as `kill -9` does: its fabric does nothing any more, and the other ends of its
    /// links are told by its kernel.
    pub fn kill(&self, member: Member) {
        let mut state = self.lock();
        if let Some(place) = state.place(member) {
            state.kill(place);
        }
    }

    /// Stops a node as SIGSTOP does: what arrives waits, its timers do not run.
    pub fn stop(&self, member: Member) {
        self.set_life(member, Life::Stopped);
    }

    /// Lets a stopped node go on.
    pub fn resume(&self, member: Member) {
        self.set_life(member, Life::Running);
        self.lock().wake_all();
    }

    fn set_life(&self, member: Member, life: Life) {
        let mut state = self.lock();
        if let Some(place) = state.place(member) {
            state.nodes[place].life = life;
        }
    }

    /// A thread that panicked with the lock left nothing half done.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sorted([one, other]: [NodeId; 2]) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

impl State {
    /// The node that is not killed and has this name.
    fn place(&self, member: Member) -> Option<usize> {
        let found = |node: &Node| node.identity.member == member && node.life != Life::Killed;
        self.nodes.iter().position(found)
    }

    /// Between which nodes it is.
    fn pair(&self, wire: &Wire) -> (NodeId, NodeId) {
        sorted(wire.ends.map(|place| self.nodes[place].identity.member.node))
    }

    fn wires_of(&self, pair: (NodeId, NodeId)) -> BTreeSet<u64> {
        let wires = self.wires.iter().filter(|(_, wire)| self.pair(wire) == pair);
        wires.map(|(id, _)| *id).collect()
    }

    fn goes_to(&self, delivery: &Delivery) -> Option<usize> {
        let wire = self.wires.get(&delivery.wire)?;
        Some(wire.ends[1 - delivery.direction])
    }

    pub(super) fn is_running(&self, place: usize) -> bool {
        self.nodes[place].life == Life::Running
    }

    pub(super) fn kill(&mut self, place: usize) {
        self.nodes[place].life = Life::Killed;
        self.nodes[place].timer = None;
        self.nodes[place].event = None;
        let ends = |wire: &Wire| wire.ends.iter().position(|end| *end == place);
        let wires = self.wires.iter().filter_map(|(id, wire)| Some((*id, ends(wire)?)));
        for (wire, direction) in wires.collect::<Vec<_>>() {
            self.over(wire, direction, Down::Closed);
        }
        let wires = &self.wires;
        let lives = |delivery: &Delivery| {
            wires.get(&delivery.wire).is_some_and(|wire| wire.ends[1 - delivery.direction] != place)
        };
        self.under_way.retain(|_, delivery| lives(delivery));
        self.held.retain(lives);
    }

    /// Makes a wire from `place` to the node at `address`.
    pub(super) fn open(
        &mut self,
        place: usize,
        address: &str,
        wanted: Member,
        roll: Roll,
    ) -> Option<u64> {
        let found = |node: &Node| node.address == address && node.life != Life::Killed;
        let to = self.nodes.iter().position(found)?;
        self.last_wire += 1;
        let wire = self.last_wire;
        let ends = [place, to];
        let made =
            Wire { ends, last_due: [Duration::ZERO; 2], in_flight: [0; 2], ended: [false; 2] };
        self.wires.insert(wire, made);
        let Identity { member: peer, group } = self.nodes[place].identity.clone();
        let what = What::Open { peer, wanted, group, roll };
        self.send(Delivery { wire, direction: 0, what });
        Some(wire)
    }

    /// Why the node at `place` does not let a peer in.
    pub(super) fn check_open(&self, place: usize, wanted: Member, group: &str) -> Result<(), Down> {
        let identity = &self.nodes[place].identity;
        if identity.group != group {
            return Err(Down::Mismatch(Differs::Group));
        }
        crate::hello::differ(identity.member, wanted)
    }

    /// Sends from one end of a wire, if it is still there.
    pub(super) fn post(&mut self, place: usize, wire: u64, is_maker: bool, what: What) {
        if self.nodes[place].life != Life::Killed {
            self.send(Delivery { wire, direction: usize::from(!is_maker), what });
        }
    }

    /// Whether one end of a wire may send bytes.
    pub(super) fn has_window(&self, wire: u64, is_maker: bool) -> bool {
        let direction = usize::from(!is_maker);
        self.wires.get(&wire).is_some_and(|wire| wire.in_flight[direction] < WINDOW)
    }

    /// Ends a wire from one end, and tells the other.
    pub(super) fn end(&mut self, place: usize, wire: u64, is_maker: bool, why: Down) {
        if self.nodes[place].life != Life::Killed {
            self.over(wire, usize::from(!is_maker), why);
        }
    }

    /// One end of a wire is over. Of two that are, or of one that was killed, it is forgotten.
    fn over(&mut self, wire: u64, direction: usize, why: Down) {
        let Some(found) = self.wires.get_mut(&wire) else { return };
        found.ended[direction] = true;
        let other = found.ends[1 - direction];
        if found.ended[1 - direction] || self.nodes[other].life == Life::Killed {
            self.forget(wire);
        } else {
            self.send(Delivery { wire, direction, what: What::Over(why) });
        }
    }

    /// Forgets a wire of which both ends know that it is over, with what is under way.
    pub(super) fn forget(&mut self, wire: u64) {
        self.wires.remove(&wire);
        self.under_way.retain(|_, delivery| delivery.wire != wire);
        self.held.retain(|delivery| delivery.wire != wire);
    }

    fn send(&mut self, delivery: Delivery) {
        let Some(wire) = self.wires.get_mut(&delivery.wire) else { return };
        if let What::Bytes(bytes) = &delivery.what {
            wire.in_flight[delivery.direction] += bytes.len();
        }
        self.route(delivery);
    }

    fn route(&mut self, delivery: Delivery) {
        let Some(wire) = self.wires.get(&delivery.wire) else { return };
        if self.nodes[wire.ends[1 - delivery.direction]].life == Life::Killed {
            return;
        }
        if self.cuts.contains(&self.pair(wire)) {
            self.held.push(delivery);
            return;
        }
        let jitter = self.jitter.as_nanos() as u64;
        let jitter = if jitter == 0 { 0 } else { self.next_random() % jitter };
        let mut due = self.now + self.delay + Duration::from_nanos(jitter);
        if let Some(wire) = self.wires.get_mut(&delivery.wire) {
            let last = &mut wire.last_due[delivery.direction];
            due = due.max(*last);
            *last = due;
        }
        self.insert(due, delivery);
    }

    fn insert(&mut self, due: Duration, delivery: Delivery) {
        self.last_delivery += 1;
        let to = self.goes_to(&delivery);
        self.under_way.insert((due, self.last_delivery), delivery);
        if let Some(to) = to.filter(|_| due <= self.now) {
            self.wake(to);
        }
    }

    /// SplitMix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether something for this node has arrived.
    pub(super) fn has_due(&self, place: usize) -> bool {
        let mut due = self.under_way.iter().take_while(|((due, _), _)| *due <= self.now);
        due.any(|(_, delivery)| self.goes_to(delivery) == Some(place))
    }

    /// Takes the next that has arrived.
    pub(super) fn take_due(&mut self, place: usize) -> Option<Delivery> {
        let mut due = self.under_way.iter().take_while(|((due, _), _)| *due <= self.now);
        let (at, _) = due.find(|(_, delivery)| self.goes_to(delivery) == Some(place))?;
        let at = *at;
        let delivery = self.under_way.remove(&at)?;
        if let What::Bytes(bytes) = &delivery.what
            && let Some(wire) = self.wires.get_mut(&delivery.wire)
        {
            wire.in_flight[delivery.direction] -= bytes.len();
            let from = wire.ends[delivery.direction];
            self.wake(from);
        }
        Some(delivery)
    }

    pub(super) fn set_timer(&mut self, place: usize, timer: Option<Duration>) {
        if self.nodes[place].life != Life::Killed {
            self.nodes[place].timer = timer;
        }
    }

    fn wake_all(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            let timer = node.timer.is_some_and(|due| due <= self.now);
            if node.life == Life::Running && (timer || self.has_due(place)) {
                self.wake(place);
            }
        }
    }

    fn wake(&self, place: usize) {
        // It fails where the counter is full, and then the node is woken anyway.
        if let Some(event) = &self.nodes[place].event {
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}
