//! Failure detection: the engine of the crate `foca` (SWIM, Das et al. 2002, with suspicion), as a
//! machine that takes packets and timers and answers with actions.

use crate::node::{Incarnation, Member, NodeId};
use crate::views::View;
use foca::{
    Codec, Config, Foca, Header, Identity, Message, NoCustomBroadcast, Notification, PostcardCodec,
    Runtime,
};
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
    /// What the engine holds for living.
    known: Known,
    /// Those that are held for living as a view has them, and were not heard since.
    listed_by_views: BTreeSet<NodeId>,
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
        Self {
            engine,
            listed,
            known: Known::default(),
            listed_by_views: BTreeSet::new(),
            next: 0,
            tuning,
            probe: None,
        }
    }

    /// Begins: announces this node to those that are listed.
    pub fn begin(&mut self) -> Vec<Action> {
        self.announce()
    }

    /// A packet has arrived. One that cannot be understood is dropped.
    pub fn on_packet(&mut self, packet: &[u8]) -> Vec<Action> {
        let mut actions = Actions::default();
        let mut rest = packet;
        let header: Result<Header<SwimId>, _> = PostcardCodec.decode_header(&mut rest);
        let news = header.ok().and_then(|header| {
            self.listed_by_views.remove(&header.src.member.node);
            self.news_of(packet, rest, &header.message)
        });
        // Whatever is wrong with it is the sender's.
        let _ = self.engine.handle_data(news.as_deref().unwrap_or(packet), &mut actions);
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
        let Actions { mut list, changed, renamed, is_renamed, probe } = actions;
        self.probe = probe.or(self.probe.take());
        for (id, is_up) in changed {
            self.known.note(id, is_up);
        }
        let members = || self.engine.iter_members().map(foca::Member::id);
        for id in renamed {
            let lives = members().find(|lives| lives.member.node == id.member.node);
            self.known.note(*lives.unwrap_or(&id), lives.is_some());
        }
        if is_renamed {
            let lives = |up: &Member| members().any(|id| id.member == *up);
            list.retain(|action| !matches!(action, Action::Up(up) if !lives(up)));
        }
        list
    }

    /// The packet, of which this is what follows its header, without what the engine knows already,
    /// if that is any: the engine looks for each
    /// life in a list of all, and while a large group forms nearly all that it is told is old.
    fn news_of(&self, packet: &[u8], rest: &[u8], message: &Message<SwimId>) -> Option<Vec<u8>> {
        if matches!(message, Message::Announce | Message::TurnUndead | Message::Broadcast) {
            return None;
        }
        let head = packet.len() - rest.len();
        let (count, mut rest) = rest.split_first_chunk::<2>()?;
        let count = u16::from_be_bytes(*count);
        let mut news = packet[..head + 2].to_vec();
        let mut kept = 0u16;
        for _ in 0..count {
            let before = rest;
            let update: foca::Member<SwimId> = PostcardCodec.decode_member(&mut rest).ok()?;
            if !self.known.is_old(&update) {
                kept += 1;
                news.extend_from_slice(&before[..before.len() - rest.len()]);
            }
        }
        if kept == count {
            return None;
        }
        news[head..head + 2].copy_from_slice(&kept.to_be_bytes());
        news.extend_from_slice(rest);
        Some(news)
    }

    /// Tells those of this node that are listed and not known to live: a group that was split finds
    /// itself again, and one that begins forms.
    fn announce(&mut self) -> Vec<Action> {
        let mut actions = Actions::default();
        // An engine that was held down and has come back probes none of those that it knows until
        // one of them is heard; they may have died meanwhile.
        let _ = self.engine.apply_many(std::iter::empty(), false, &mut actions);
        let next = self.next;
        let places = (0..self.listed.len()).map(|place| (next + place) % self.listed.len());
        let missed = places.filter(|place| !self.known.has(self.listed[*place]));
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

    /// This node is a member of a view that is new to it: the others live, as who made it has heard
    /// of them. Else most nodes of a large group would hold most others for gone until each has
    /// been told of each, and would leave them out when it is their turn to make a view. No
    /// other node is told, as all members learn it so.
    ///
    /// Who was only heard of so, and is in this view no more, is suspected: the word that it is
    /// down may have passed before this node knew it.
    pub fn entered(&mut self, view: &View) -> Vec<Action> {
        let me = self.engine.identity().member;
        if !view.has(me) {
            return Vec::new();
        }
        let listed: Vec<NodeId> = self.listed_by_views.iter().copied().collect();
        let mut list = Vec::new();
        for node in listed {
            let life = self.known.life(node).map(|incarnation| Member { node, incarnation });
            if life.is_none_or(|life| !view.has(life)) {
                self.listed_by_views.remove(&node);
                list.extend(life.map(|life| self.suspect(life)).into_iter().flatten());
            }
        }
        let others = view.members().filter(|other| other.node != me.node);
        let new: Vec<Member> = others.filter(|other| !self.known.has(other.node)).collect();
        let alive = |member: &Member| foca::Member::alive(SwimId { member: *member, renewals: 0 });
        let mut actions = Actions::default();
        // What is wrong with one, the engine knows better.
        let _ = self.engine.apply_many(new.iter().map(alive), false, &mut actions);
        list.extend(self.known(actions));
        let lives = |member: &&Member| self.known.life(member.node) == Some(member.incarnation);
        self.listed_by_views.extend(new.iter().filter(lives).map(|member| member.node));
        list
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

/// Who lives, as the engine has told.
#[derive(Default)]
struct Known {
    /// By node the incarnation of the life, and one more; 0 where none lives, and where it is not
    /// noted, as it has come back after it was held down, or has the last incarnation of all.
    lives: Vec<u32>,
    /// Those that live and are not noted.
    others: BTreeSet<NodeId>,
}

impl Known {
    fn note(&mut self, id: SwimId, is_up: bool) {
        let Member { node, incarnation } = id.member;
        let place = usize::from(node.0);
        if place >= self.lives.len() {
            self.lives.resize(place + 1, 0);
        }
        let is_noted = is_up && id.renewals == 0;
        self.lives[place] = if is_noted { incarnation.0.wrapping_add(1) } else { 0 };
        match is_up && self.lives[place] == 0 {
            true => self.others.insert(node),
            false => self.others.remove(&node),
        };
    }

    fn has(&self, node: NodeId) -> bool {
        self.lives.get(usize::from(node.0)).is_some_and(|life| *life > 0)
            || self.others.contains(&node)
    }

    /// The life in which a node lives, where it is noted.
    fn life(&self, node: NodeId) -> Option<Incarnation> {
        let life = self.lives.get(usize::from(node.0)).copied();
        life.and_then(|life| life.checked_sub(1)).map(Incarnation)
    }

    /// Whether the engine would do nothing for an update: it is of an earlier life than one that
    /// lives, or says that one lives that does, and no more.
    fn is_old(&self, update: &foca::Member<SwimId>) -> bool {
        let id = update.id();
        let life = self.life(id.member.node);
        life > Some(id.member.incarnation)
            || life == Some(id.member.incarnation)
                && id.renewals == 0
                && update.state() == foca::State::Alive
                && update.incarnation() == 0
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
    /// What has become of whom.
    changed: Vec<(SwimId, bool)>,
    /// Who lives, or does not, under another name.
    renamed: Vec<SwimId>,
    /// A node has another life.
    is_renamed: bool,
    /// The next probe.
    probe: Option<foca::Timer<SwimId>>,
}

impl Runtime<SwimId> for &mut Actions {
    fn notify(&mut self, notification: Notification<'_, SwimId>) {
        let action = match notification {
            Notification::MemberUp(id) => {
                self.changed.push((*id, true));
                Action::Up(id.member)
            }
            Notification::MemberDown(id) => {
                self.changed.push((*id, false));
                Action::Down(id.member)
            }
            Notification::Rename(before, after) if before.member != after.member => {
                // Only one life of a node is known at a time.
                self.is_renamed = true;
                self.renamed.push(*after);
                self.list.push(Action::Down(before.member));
                Action::Up(after.member)
            }
            Notification::Rename(_, after) => {
                self.renamed.push(*after);
                return;
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

    #[test]
    fn those_of_a_view_live_until_it_is_known_better() {
        let listed: Vec<_> = (0..4).map(NodeId).collect();
        let me = Member::new(0, 1);
        let mut swim = Swim::new(me, &listed, Tuning::default(), 7);
        let view = |number, nodes: &[u16]| {
            let member = |node: &u16| Member::new(*node, 1);
            let seat = |node| crate::Seat { member: member(node), since: 1 };
            View { number, seats: nodes.iter().map(seat).collect(), ..View::default() }
        };
        let ups = |actions: &[Action]| {
            let up = |action: &Action| match action {
                Action::Up(member) => Some(member.node.0),
                _ => None,
            };
            actions.iter().filter_map(up).collect::<Vec<_>>()
        };
        // Of a view that it is not in, which may be that of a group that has died, nothing follows.
        assert_eq!(swim.entered(&view(1, &[1, 2, 3])), []);
        assert_eq!(ups(&swim.entered(&view(2, &[0, 1, 2, 3]))), [1, 2, 3]);
        assert_eq!(swim.entered(&view(3, &[0, 1, 2, 3])), []);
        // One that was heard since is not suspected because a view is without it.
        let mut other = Swim::new(Member::new(3, 1), &listed, Tuning::default(), 7);
        for action in other.begin() {
            if let Action::Send(NodeId(0), packet) = action {
                swim.on_packet(&packet);
            }
        }
        let suspicion = Tuning::default().suspicion;
        let is_suspicion =
            |action: &Action| matches!(action, Action::After(ms, _) if *ms == suspicion);
        let actions = swim.entered(&view(4, &[0, 1]));
        assert_eq!(actions.iter().filter(|action| is_suspicion(action)).count(), 1);
        assert_eq!(swim.suspect(Member::new(2, 1)), []);
        assert_ne!(swim.suspect(Member::new(3, 1)), []);
    }

    #[test]
    fn only_what_changes_nothing_is_old() {
        let id = |incarnation, renewals| SwimId { member: Member::new(3, incarnation), renewals };
        let update = |id, incarnation, state| foca::Member::new(id, incarnation, state);
        let alive = |id| update(id, 0, foca::State::Alive);
        let mut known = Known::default();
        assert!(!known.is_old(&alive(id(1, 0))));
        known.note(id(2, 0), true);
        assert!(known.is_old(&alive(id(2, 0))) && known.is_old(&alive(id(1, 7))));
        assert!(known.is_old(&update(id(1, 0), 3, foca::State::Down)));
        for new in [
            alive(id(3, 0)),
            alive(id(2, 1)),
            update(id(2, 0), 1, foca::State::Alive),
            update(id(2, 0), 0, foca::State::Suspect),
            update(id(2, 0), 0, foca::State::Down),
        ] {
            assert!(!known.is_old(&new), "{new:?}");
        }
        // Who has come back under another name lives, and all of it is news.
        known.note(id(2, 1), true);
        assert!(known.has(NodeId(3)) && !known.is_old(&alive(id(2, 0))));
        known.note(id(2, 1), false);
        assert!(!known.has(NodeId(3)) && known.life(NodeId(3)).is_none());
        known.note(id(u32::MAX, 0), true);
        assert!(known.has(NodeId(3)) && !known.is_old(&alive(id(0, 0))));
    }
}
