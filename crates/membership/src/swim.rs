//! Failure detection: the engine of the crate `foca` (SWIM, Das et al. 2002, with suspicion), as a
//! machine that takes packets and timers and answers with actions.

use crate::node::{Member, NodeId};
use foca::{Config, Foca, Identity, NoCustomBroadcast, Notification, PostcardCodec, Runtime};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

/// The largest packet, in bytes: below the smallest usual MTU, with room for what the transport
/// adds.
const PACKET_MAX: usize = 1280;
/// How many others are asked to probe one that does not answer.
const INDIRECT: usize = 3;
/// How many of those that are listed and not known are told of this node at a time: they tell the
/// others.
const ANNOUNCED: usize = 8;

/// The periods of the failure detector, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How often one other node is probed.
    pub probe: u32,
    /// How long its answer may take before others are asked to probe it.
    pub round_trip: u32,
    /// How long a node is suspected before it is held down: as long as it may stop and be taken
    /// for living.
    pub suspicion: u32,
    /// How often those that are listed, and not known or held down, are told of this node.
    pub announce: u32,
    /// A timer that is later than this says nothing of others: this node itself was stopped.
    pub late: u32,
}

impl Default for Tuning {
    /// docs/design/nodes.md has the measurements.
    fn default() -> Self {
        Self { probe: 500, round_trip: 200, suspicion: 5000, announce: 2000, late: 1000 }
    }
}

/// Who sends packets: a life of a node, and how often it has come back in that life after others
/// held it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SwimId {
    member: Member,
    renewals: u32,
}

impl Identity for SwimId {
    type Addr = NodeId;

    fn renew(&self) -> Option<Self> {
        Some(Self { renewals: self.renewals.wrapping_add(1), ..*self })
    }

    fn addr(&self) -> NodeId {
        self.member.node
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        (self.member.incarnation, self.renewals) > (other.member.incarnation, other.renewals)
    }
}

/// What a [`Swim`] wants to hear of again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwimTimer(Wake);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wake {
    Engine(foca::Timer<SwimId>),
    Announce,
}

/// What a [`Swim`] wants done, or has found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this packet to a node. It may be lost.
    Send(NodeId, Vec<u8>),
    /// Hand this timer to [`Swim::on_timer`] after so many milliseconds.
    After(u32, SwimTimer),
    /// A node lives.
    Up(Member),
    /// A node is held down: it has not answered for as long as it may.
    Down(Member),
}

/// The failure detector of one node. Packets of others are taken as they come; whether they are
/// from the group is for the caller to know.
pub struct Swim {
    engine: Foca<SwimId, PostcardCodec, SmallRng, NoCustomBroadcast>,
    listed: Vec<NodeId>,
    /// Whose turn it is among those that are listed.
    next: usize,
    tuning: Tuning,
    /// The engine's next probe, whose mark the timers of this connection have.
    probe: Option<foca::Timer<SwimId>>,
}

impl Swim {
    /// The detector of `me`, in a group of at most `listed`; its random choices follow from `seed`.
    ///
    /// ```
    /// use forebay_membership::{Action, Member, NodeId, Swim, Tuning};
    ///
    /// let (one, two) = (Member::new(0, 1), Member::new(1, 1));
    /// let listed = [one.node, two.node];
    /// let mut swims = [one, two].map(|me| Swim::new(me, &listed, Tuning::default(), 7));
    /// let mut actions = swims[0].begin();
    /// let mut up = Vec::new();
    /// while let Some(action) = actions.pop() {
    ///     match action {
    ///         Action::Send(to, packet) => actions.extend(swims[to.0 as usize].on_packet(&packet)),
    ///         Action::Up(member) => up.push(member),
    ///         _ => {}
    ///     }
    /// }
    /// up.sort();
    /// assert_eq!(up, [one, two]);
    /// ```
    pub fn new(me: Member, listed: &[NodeId], tuning: Tuning, seed: u64) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        let identity = SwimId { member: me, renewals: 0 };
        let engine = Foca::new(identity, config(tuning, listed.len()), rng, PostcardCodec);
        let listed = listed.iter().copied().filter(|node| *node != me.node).collect();
        Self { engine, listed, next: 0, tuning, probe: None }
    }

    /// Begins: announces this node to those that are listed.
    pub fn begin(&mut self) -> Vec<Action> {
        self.announce()
    }

    /// A packet has arrived. One that cannot be understood is dropped.
    pub fn on_packet(&mut self, packet: &[u8]) -> Vec<Action> {
        let mut actions = Actions::default();
        // Whatever is wrong with it is the sender's.
        let _ = self.engine.handle_data(packet, &mut actions);
        self.known(actions)
    }

    /// A timer is due, and this is how many milliseconds late.
    ///
    /// One that is very late was kept from running, and with it this node: packets of others wait
    /// in its socket. It is put off, so that they are read before anything is held against others.
    pub fn on_timer(&mut self, timer: SwimTimer, late_ms: u32) -> Vec<Action> {
        match timer.0 {
            Wake::Announce => self.announce(),
            timer if late_ms > self.tuning.late => {
                vec![Action::After(self.tuning.round_trip, SwimTimer(timer))]
            }
            Wake::Engine(timer) => {
                let mut actions = Actions::default();
                // An engine that has lost count begins its next probe anyway.
                let _ = self.engine.handle_timer(timer, &mut actions);
                self.known(actions)
            }
        }
    }

    /// What is to be done, without lives that are over: the engine tells of a later life that it
    /// is one, and not whether it has ended, too, nor whether it is of this node.
    fn known(&mut self, actions: Actions) -> Vec<Action> {
        let Actions { mut list, is_renamed, probe } = actions;
        self.probe = probe.or(self.probe.take());
        if is_renamed {
            let lives =
                |up: &Member| self.engine.iter_members().any(|member| member.id().member == *up);
            list.retain(|action| !matches!(action, Action::Up(up) if !lives(up)));
        }
        list
    }

    /// Tells those of this node that are listed and not known to live: a group that was split finds
    /// itself again, and one that begins forms.
    fn announce(&mut self) -> Vec<Action> {
        let mut actions = Actions::default();
        // An engine that was held down and has come back probes none of those that it knows until
        // one of them is heard; they may have died meanwhile.
        let _ = self.engine.apply_many(std::iter::empty(), false, &mut actions);
        let known: BTreeSet<NodeId> =
            self.engine.iter_members().map(|member| member.id().member.node).collect();
        let next = self.next;
        let places = (0..self.listed.len()).map(|place| (next + place) % self.listed.len());
        let missed = places.filter(|place| !known.contains(&self.listed[*place]));
        for place in missed.take(ANNOUNCED).collect::<Vec<_>>() {
            self.next = place + 1;
            let node = self.listed[place];
            let to = SwimId { member: Member { node, ..Member::default() }, renewals: 0 };
            let _ = self.engine.announce(to, &mut actions);
        }
        actions.list.push(Action::After(self.tuning.announce, SwimTimer(Wake::Announce)));
        self.known(actions)
    }

    /// A member has said that it ends: it is held down at once, and others are told.
    pub fn left(&mut self, member: Member) -> Vec<Action> {
        let known = self.engine.iter_members().find(|known| known.id().member == member);
        let Some(known) = known else { return Vec::new() };
        let down = foca::Member::new(*known.id(), known.incarnation(), foca::State::Down);
        let mut actions = Actions::default();
        // What is wrong with it, the engine knows better.
        let _ = self.engine.apply_many(std::iter::once(down), true, &mut actions);
        self.known(actions)
    }

    /// Suspects a member that is known to live: it did not answer. Others are told; unless it
    /// objects within [`Tuning::suspicion`] it is held down, as after a probe that failed.
    pub fn suspect(&mut self, member: Member) -> Vec<Action> {
        let Some(foca::Timer::ProbeRandomMember(token)) = self.probe else { return Vec::new() };
        let known = self.engine.iter_members().find(|known| known.id().member == member);
        let Some(known) = known.filter(|known| known.state() == foca::State::Alive) else {
            return Vec::new();
        };
        let (member_id, incarnation) = (*known.id(), known.incarnation());
        let suspect = foca::Member::new(member_id, incarnation, foca::State::Suspect);
        let mut actions = Actions::default();
        // What is wrong with it, the engine knows better.
        let _ = self.engine.apply_many(std::iter::once(suspect), true, &mut actions);
        let mut list = self.known(actions);
        let down = foca::Timer::ChangeSuspectToDown { member_id, incarnation, token };
        list.push(Action::After(self.tuning.suspicion, SwimTimer(Wake::Engine(down))));
        list
    }
}

fn config(tuning: Tuning, nodes: usize) -> Config {
    let ms = |ms: u32| Duration::from_millis(ms.into());
    // Each update reaches all of n nodes when it is sent some log n times; three times that.
    let sent = 3 * (usize::BITS - nodes.leading_zeros()).max(2);
    Config {
        probe_period: ms(tuning.probe),
        probe_rtt: ms(tuning.round_trip),
        num_indirect_probes: NonZeroUsize::new(INDIRECT).unwrap_or(NonZeroUsize::MIN),
        max_transmissions: NonZeroU8::new(sent as u8).unwrap_or(NonZeroU8::MAX),
        suspect_to_down_after: ms(tuning.suspicion),
        remove_down_after: None,
        max_packet_size: NonZeroUsize::new(PACKET_MAX).unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: None,
        // [`Swim::announce`] tells those that are held down, too.
        periodic_announce_to_down_members: None,
        periodic_gossip: None,
    }
}

#[derive(Default)]
struct Actions {
    list: Vec<Action>,
    /// A node has another life.
    is_renamed: bool,
    /// The next probe.
    probe: Option<foca::Timer<SwimId>>,
}

impl Runtime<SwimId> for &mut Actions {
    fn notify(&mut self, notification: Notification<'_, SwimId>) {
        let action = match notification {
            Notification::MemberUp(id) => Action::Up(id.member),
            Notification::MemberDown(id) => Action::Down(id.member),
            Notification::Rename(before, after) if before.member != after.member => {
                // Only one life of a node is known at a time.
                self.is_renamed = true;
                self.list.push(Action::Down(before.member));
                Action::Up(after.member)
            }
            _ => return,
        };
        self.list.push(action);
    }

    fn send_to(&mut self, to: SwimId, packet: &[u8]) {
        self.list.push(Action::Send(to.member.node, packet.to_vec()));
    }

    fn submit_after(&mut self, event: foca::Timer<SwimId>, after: Duration) {
        let ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
        if matches!(event, foca::Timer::ProbeRandomMember(_)) {
            self.probe = Some(event.clone());
        }
        self.list.push(Action::After(ms, SwimTimer(Wake::Engine(event))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Nodes on a virtual clock, whose packets take no time.
    struct World {
        now_ms: u64,
        swims: Vec<Option<Swim>>,
        timers: BTreeMap<(u64, u64), (usize, SwimTimer)>,
        made: u64,
        /// Who has held whom down, and when.
        downs: Vec<(u64, usize, Member)>,
    }

    impl World {
        fn of(nodes: u16) -> Self {
            let listed: Vec<_> = (0..nodes).map(NodeId).collect();
            let swim = |node| Swim::new(Member::new(node, 1), &listed, Tuning::default(), 7);
            let swims = (0..nodes).map(|node| Some(swim(node))).collect();
            let mut world =
                Self { now_ms: 0, swims, timers: BTreeMap::new(), made: 0, downs: Vec::new() };
            for node in 0..usize::from(nodes) {
                world.at(node, &Swim::begin);
            }
            world.run_until(20_000);
            world
        }

        /// Lets a node do something, and what follows from it at once.
        fn at(&mut self, node: usize, does: &dyn Fn(&mut Swim) -> Vec<Action>) {
            let Some(swim) = self.swims[node].as_mut() else { return };
            for action in does(swim) {
                match action {
                    Action::Send(to, packet) => {
                        self.at(usize::from(to.0), &|swim| swim.on_packet(&packet));
                    }
                    Action::After(ms, timer) => {
                        self.made += 1;
                        let due_ms = self.now_ms + u64::from(ms);
                        self.timers.insert((due_ms, self.made), (node, timer));
                    }
                    Action::Down(member) => self.downs.push((self.now_ms, node, member)),
                    Action::Up(_) => {}
                }
            }
        }

        fn run_until(&mut self, end_ms: u64) {
            while let Some(next) = self.timers.first_entry()
                && next.key().0 <= end_ms
            {
                let ((due_ms, _), (node, timer)) = next.remove_entry();
                self.now_ms = due_ms;
                self.at(node, &|swim| swim.on_timer(timer.clone(), 0));
            }
            self.now_ms = end_ms;
        }
    }

    #[test]
    fn one_that_is_suspected_and_lives_objects() {
        let mut world = World::of(3);
        for round in 1..5 {
            world.at(0, &|swim| swim.suspect(Member::new(2, 1)));
            world.run_until(20_000 + 10_000 * round);
        }
        assert_eq!(world.downs, []);
    }

    #[test]
    fn one_that_is_suspected_and_dead_is_down_after_the_time_of_suspicion() {
        let mut world = World::of(3);
        let dead = Member::new(2, 1);
        world.swims[2] = None;
        let begun_ms = world.now_ms;
        world.at(0, &|swim| swim.suspect(dead));
        // Others hear of it, and hold it down when this one does.
        world.run_until(begun_ms + u64::from(Tuning::default().suspicion) + 1);
        let first = world.downs.first().copied();
        assert_eq!(first, Some((begun_ms + u64::from(Tuning::default().suspicion), 0, dead)));
        world.run_until(begun_ms + 20_000);
        assert_eq!(world.downs.len(), 2, "{:?}", world.downs);
    }

    #[test]
    fn only_a_life_that_is_known_is_suspected_and_once() {
        let mut world = World::of(2);
        let swim = world.swims[0].as_mut().unwrap();
        assert_eq!(swim.suspect(Member::new(1, 2)), []);
        assert_eq!(swim.suspect(Member::new(0, 1)), []);
        assert_eq!(swim.suspect(Member::new(9, 1)), []);
        assert_ne!(swim.suspect(Member::new(1, 1)), []);
        assert_eq!(swim.suspect(Member::new(1, 1)), []);
    }
}
