//! The thread "group": packets, timers, and what follows from them.

use super::keeper::{CARDS, Done, FoundCard, Task};
use super::shared::{Contact, Parted, Shared, State};
use crate::clock::now_ms;
use crate::error::GroupError;
use crate::faults::Faults;
use crate::folder::Known;
use crate::folder::secret::fill;
use crate::packets::{Message, PACKET_MAX, Packets, Refusal, Seen};
use forebay_membership::{Action, Ask, Member, NodeId, Swim, SwimTimer, Tuning, View};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// How many packets are taken before timers have their turn.
const PACKETS: usize = 256;
/// Cards that bring nothing new are looked for less and less often, down to this share.
const FIND_SLOWEST: u64 = 8;
/// How often a member is asked whose link was lost, before it is suspected.
const QUESTIONS: u32 = 3;
/// What no question of [`forebay_membership::Views`] has: the answer says nothing but that its
/// sender lives.
const NO_QUESTION: u64 = u64::MAX;
/// No wait is longer, in ms.
const WAIT_MAX_MS: u64 = 60_000;

/// See the module.
pub struct Engine {
    shared: Arc<Shared>,
    me: Member,
    socket: UdpSocket,
    packets: Packets,
    faults: Faults,
    tasks: Sender<Task>,
    results: Receiver<Done>,
    swim: Swim,
    /// The view of which that was told.
    entered: u32,
    /// The failure detector has begun.
    has_begun: bool,
    /// It begins then at the latest, with the addresses that are known.
    begin_ms: u64,
    /// What it wants to hear of, by the moment and the order in which it was asked for.
    timers: BTreeMap<(u64, u64), SwimTimer>,
    timers_made: u64,
    find: Finding,
    /// Members whose link was lost, and that have not been heard since.
    doubts: BTreeMap<Member, Doubt>,
    /// Between two questions to one of them.
    doubt_ms: u64,
    buffer: Vec<u8>,
}

/// How often one was asked, and when it is to be asked next.
#[derive(Clone, Copy)]
struct Doubt {
    asked: u32,
    next_ms: u64,
}

/// When cards are looked for.
struct Finding {
    is_under_way: bool,
    /// Another node asks for it.
    is_heeded: bool,
    next_ms: u64,
    /// How often.
    each_ms: u64,
    /// The least of it.
    least_ms: u64,
}

impl Engine {
    pub fn new(
        shared: Arc<Shared>,
        socket: UdpSocket,
        packets: Packets,
        tuning: Tuning,
        (faults, (tasks, results)): (Faults, (Sender<Task>, Receiver<Done>)),
    ) -> Result<Self, GroupError> {
        let mut seed = [0; 8];
        fill(&mut seed)?;
        let (me, hosts) = {
            let state = shared.lock();
            (state.me, state.contacts.len())
        };
        let listed: Vec<_> = (0..hosts).map(|node| NodeId(node as u16)).collect();
        let (now_ms, least_ms) = (now_ms(), u64::from(tuning.announce));
        Ok(Self {
            shared,
            me,
            socket,
            packets,
            faults,
            tasks,
            results,
            swim: Swim::new(me, &listed, tuning, u64::from_le_bytes(seed)),
            entered: 0,
            has_begun: false,
            begin_ms: now_ms + least_ms,
            timers: BTreeMap::new(),
            timers_made: 0,
            find: Finding {
                is_under_way: false,
                is_heeded: false,
                next_ms: now_ms,
                each_ms: least_ms,
                least_ms,
            },
            doubts: BTreeMap::new(),
            doubt_ms: u64::from(tuning.round_trip),
            buffer: vec![0; PACKET_MAX + 1],
        })
    }

    /// Until the group stops.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.stops() {
            let next_ms = self.round(&mut shared.lock());
            self.wait(next_ms);
        }
    }

    /// Handles what has come and what is due; returns when there is something again.
    fn round(&mut self, state: &mut State) -> u64 {
        while let Ok(done) = self.results.try_recv() {
            self.take(state, done);
        }
        // Before timers: who has answered is not to be held for silent.
        self.receive(state);
        self.run_timers(state);
        self.enter(state);
        let now_ms = now_ms();
        if let Some(ask) = state.views.poll(now_ms) {
            self.ask(state, ask, now_ms);
        }
        let finds_ms = self.find_cards(state, now_ms);
        if !self.has_begun && (now_ms >= self.begin_ms || finds_ms.is_none()) {
            self.begin(state);
        }
        for parted in self.shared.take_parted() {
            match parted {
                Parted::Unlinked(member) => self.doubt(state, member, now_ms),
                Parted::Left(member) => {
                    let actions = self.swim.left(member);
                    self.act(state, actions);
                    state.views.left(member, now_ms);
                }
            }
        }
        let doubts_ms = self.ask_lost(state, now_ms);
        self.shared.publish(state, now_ms);
        let timer_ms = self.timers.first_key_value().map(|((due_ms, _), _)| *due_ms);
        let begin_ms = (!self.has_begun).then_some(self.begin_ms);
        let finds_ms = finds_ms.filter(|_| !self.find.is_under_way);
        let next_ms = [timer_ms, begin_ms, finds_ms, doubts_ms].into_iter().flatten().min();
        next_ms.unwrap_or(u64::MAX).min(state.views.next_ms(now_ms))
    }

    /// Tells the failure detector of a view that is new.
    fn enter(&mut self, state: &mut State) {
        let view = state.views.view().filter(|view| view.number > self.entered);
        let Some(view) = view else { return };
        self.entered = view.number;
        let actions = self.swim.entered(view);
        self.act(state, actions);
    }

    fn begin(&mut self, state: &mut State) {
        self.has_begun = true;
        let actions = self.swim.begin();
        self.act(state, actions);
    }

    /// Waits for a packet, for the other thread, or for a moment.
    fn wait(&mut self, next_ms: u64) {
        let wait_ms = next_ms.saturating_sub(now_ms()).min(WAIT_MAX_MS);
        let wait = Timespec {
            tv_sec: (wait_ms / 1000) as i64,
            tv_nsec: (wait_ms % 1000 * 1_000_000) as _,
        };
        let wake = self.shared.wake_fd();
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        // A signal that interrupts it makes one more round.
        let _ = poll(&mut fds, Some(&wait));
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    fn receive(&mut self, state: &mut State) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..PACKETS {
            // Also an error of an earlier packet, which its sender got back, ends the turn.
            let Ok((bytes, source)) = self.socket.recv_from(&mut buffer) else { break };
            self.on_packet(state, &buffer[..bytes], source);
        }
        self.buffer = buffer;
    }

    fn on_packet(&mut self, state: &mut State, packet: &[u8], source: SocketAddr) {
        let opened = self.packets.open(packet);
        let counters = &mut state.packets;
        let (from, message) = match opened {
            Ok((from, _)) if from.node == self.me.node => {
                counters.own += 1;
                return;
            }
            Ok(opened) => opened,
            Err(refusal) => {
                let count = match refusal {
                    Refusal::Malformed => &mut counters.malformed,
                    Refusal::Version => &mut counters.version,
                    Refusal::Group => &mut counters.group,
                    Refusal::Sum => &mut counters.sum,
                    Refusal::Astray => &mut counters.astray,
                };
                *count += 1;
                return;
            }
        };
        if message == Message::Heed {
            counters.taken += 1;
            let Finding { is_heeded, next_ms, least_ms, .. } = &mut self.find;
            (*is_heeded, *next_ms) = (true, (*next_ms).min(now_ms() + *least_ms));
            return;
        }
        let Some(contact) = state.contacts.get_mut(usize::from(from.node.0)) else {
            counters.unlisted += 1;
            return;
        };
        if Some(from.incarnation) < contact.life {
            counters.outdated += 1;
            return;
        }
        counters.taken += 1;
        contact.life = Some(from.incarnation);
        // The address of its card is believed rather than this one.
        if contact.address.is_none_or(|(of, _)| of < from.incarnation) {
            contact.address = Some((from.incarnation, source));
            state.has_moved = true;
        }
        self.doubts.remove(&from);
        let now_ms = now_ms();
        match message {
            Message::Swim(bytes) => {
                let actions = self.swim.on_packet(&bytes);
                self.act(state, actions);
            }
            Message::Inquire { question, view } => {
                state.views.told(view, now_ms);
                let seen = state.views.last_seen(now_ms);
                let seen = seen.map(|(age_ms, found)| (age_ms, Seen::of(found, view)));
                self.send(state, from.node, &Message::Answer { question, seen });
            }
            Message::Answer { question, seen } => {
                // While it is asked, the view of the question is this node's still.
                let found = |seen: Seen| seen.into_found(state.views.view());
                let seen = seen.map(|(age_ms, seen)| (age_ms, found(seen)));
                state.views.heard(from.node, question, seen, now_ms);
            }
            Message::Heed => {}
        }
    }

    fn run_timers(&mut self, state: &mut State) {
        let begun_ms = now_ms();
        while let Some(timer) = self.timers.first_entry()
            && timer.key().0 <= begun_ms
        {
            let ((due_ms, _), timer) = timer.remove_entry();
            let late_ms = u32::try_from(now_ms() - due_ms).unwrap_or(u32::MAX);
            let actions = self.swim.on_timer(timer, late_ms);
            self.act(state, actions);
        }
    }

    fn act(&mut self, state: &mut State, actions: Vec<Action>) {
        let now_ms = now_ms();
        for action in actions {
            match action {
                Action::Send(to, packet) => self.send(state, to, &Message::Swim(packet)),
                Action::After(ms, timer) => {
                    self.timers_made += 1;
                    let due_ms = now_ms + u64::from(ms.max(1));
                    self.timers.insert((due_ms, self.timers_made), timer);
                }
                Action::Up(member) => {
                    if let Some(contact) = state.contact(member.node) {
                        let life = Some(member.incarnation);
                        contact.life = contact.life.max(life);
                        (contact.up, contact.is_heard) = (contact.up.max(life), true);
                    }
                    state.views.up(member, now_ms);
                }
                Action::Down(member) => {
                    if let Some(contact) = state.contact(member.node) {
                        contact.up.take_if(|up| *up == member.incarnation);
                    }
                    state.views.down(member, now_ms);
                    // It may come back elsewhere.
                    self.find.each_ms = self.find.least_ms;
                }
            }
        }
    }

    fn send(&mut self, state: &mut State, to: NodeId, message: &Message) {
        let address = state.contact(to).and_then(|contact| contact.address);
        let packet = address.and_then(|_| self.packets.seal(to, message));
        let is_sent = match (address, packet) {
            (Some(_), Some(_)) if self.faults.loses(self.me.node, to) => true,
            (Some((_, address)), Some(packet)) => self.socket.send_to(&packet, address).is_ok(),
            _ => false,
        };
        match is_sent {
            true => state.packets.sent += 1,
            false => state.packets.unsent += 1,
        }
    }

    fn ask(&mut self, state: &mut State, ask: Ask, now_ms: u64) {
        if let Ask::Inquire(to, question) = ask {
            let view = state.views.view().map_or(0, |view| view.number);
            self.send(state, to, &Message::Inquire { question, view });
            return;
        }
        // Pleas count where a member does not answer; looks of others for one that is outside.
        let is_missed = |member: Member| {
            let contact = state.contacts.get(usize::from(member.node.0));
            member != self.me && contact.is_none_or(|contact| contact.up.is_none())
        };
        let view = state.views.view().filter(|view| view.has(self.me));
        let lists = view.is_none_or(|view| view.members().any(is_missed));
        // Its other end is there until this thread has ended.
        let _ = self.tasks.send(Task::Ask(ask, now_ms, lists));
    }

    /// The link to a member was lost: if it is held for living it is to be asked.
    fn doubt(&mut self, state: &mut State, member: Member, now_ms: u64) {
        let contact = state.contact(member.node);
        if contact.is_some_and(|contact| contact.up == Some(member.incarnation)) {
            self.doubts.entry(member).or_insert(Doubt { asked: 0, next_ms: now_ms });
        }
    }

    /// Asks members whose links were lost whether they live, which any packet says. Those that do
    /// not answer are suspected, as after a probe. Returns when to ask again.
    fn ask_lost(&mut self, state: &mut State, now_ms: u64) -> Option<u64> {
        let due = self.doubts.iter().filter(|(_, doubt)| doubt.next_ms <= now_ms);
        let due: Vec<_> = due.map(|(member, doubt)| (*member, *doubt)).collect();
        let view = state.views.view().map_or(0, |view| view.number);
        for (member, Doubt { asked, .. }) in due {
            if asked == QUESTIONS {
                self.doubts.remove(&member);
                let actions = self.swim.suspect(member);
                self.act(state, actions);
                continue;
            }
            let next_ms = now_ms + self.doubt_ms;
            self.doubts.insert(member, Doubt { asked: asked + 1, next_ms });
            self.send(state, member.node, &Message::Inquire { question: NO_QUESTION, view });
        }
        self.doubts.values().map(|doubt| doubt.next_ms).min()
    }

    /// Tells members of a view that is new that it is there. What is lost they find later.
    fn tell(&mut self, state: &mut State, view: &View) {
        let message = Message::Inquire { question: NO_QUESTION, view: view.number };
        let me = self.me;
        for member in view.members().filter(|member| *member != me) {
            self.send(state, member.node, &message);
        }
    }

    /// Lets cards be looked for, if nodes are missing and it is time; returns when it is the next
    /// time, `None` if none is missing.
    fn find_cards(&mut self, state: &mut State, now_ms: u64) -> Option<u64> {
        let me = self.me.node;
        let mut missing = state.contacts.iter().zip(0..).filter(|(contact, node)| {
            NodeId(*node) != me && (contact.up.is_none() || contact.address.is_none())
        });
        let is_heeded = self.find.is_heeded;
        if self.find.is_under_way || now_ms < self.find.next_ms {
            return (is_heeded || missing.next().is_some()).then_some(self.find.next_ms);
        }
        let known = |contact: &Contact| Known { card: contact.card, left: contact.left };
        let wanted: BTreeMap<NodeId, Known> =
            missing.map(|(contact, node)| (NodeId(node), known(contact))).collect();
        if wanted.is_empty() && !is_heeded {
            return None;
        }
        (self.find.is_under_way, self.find.is_heeded) = (true, false);
        self.find.next_ms = now_ms + self.find.each_ms;
        let _ = self.tasks.send(Task::Find(wanted));
        Some(self.find.next_ms)
    }

    /// Takes what the other thread has done.
    fn take(&mut self, state: &mut State, done: Done) {
        let now_ms = now_ms();
        match done {
            Done::Cards(cards, error) => {
                self.take_cards(state, cards, now_ms);
                state.card_error.note(error, now_ms, &self.shared);
            }
            Done::Asked(ask, asked_ms, found) => {
                let (found, error) = match found {
                    Ok(found) => (Some(found), None),
                    Err(error) => (None, Some(error)),
                };
                state.store_error.note(error, now_ms, &self.shared);
                match ask {
                    Ask::Look => {
                        if found.is_some() {
                            state.look_ms = Some((asked_ms, now_ms));
                        }
                        state.views.looked(found, now_ms);
                    }
                    Ask::Propose(view) => {
                        state.views.proposed(found.is_some(), now_ms);
                        if found.is_some() {
                            self.tell(state, &view);
                        }
                    }
                    Ask::Plead(_) => state.views.pleaded(found.is_some(), now_ms),
                    Ask::Inquire(..) => {}
                }
            }
        }
    }

    /// A node is in the folder that is of another group: says so, and has that one say so.
    fn refuse(
        &mut self,
        state: &mut State,
        of: Member,
        address: Option<SocketAddr>,
        error: GroupError,
    ) {
        let before = match state.contact(of.node) {
            Some(contact) => {
                contact.card = contact.card.max(Some(of.incarnation));
                contact.life = contact.life.max(Some(of.incarnation));
                let refused = contact.refused.replace((of.incarnation, error.clone()));
                refused.map(|(incarnation, error)| (Member { incarnation, ..of }, error))
            }
            None => state.stranger.replace((of, error.clone())),
        };
        if before.as_ref().is_some_and(|before| *before == (of, error.clone())) {
            return;
        }
        self.shared.tell(&error);
        if let Some((address, packet)) = address.zip(self.packets.seal(of.node, &Message::Heed)) {
            match self.socket.send_to(&packet, address) {
                Ok(_) => state.packets.sent += 1,
                Err(_) => state.packets.unsent += 1,
            }
        }
    }

    fn take_cards(&mut self, state: &mut State, cards: Vec<FoundCard>, now_ms: u64) {
        let count = cards.len();
        for FoundCard { card, is_left, address, refused } in cards {
            let Member { node, incarnation } = card.member();
            if let Some(error) = refused {
                self.refuse(state, card.member(), address, error);
                if let Some(contact) = state.contact(node) {
                    contact.left = contact.left.max(is_left.then_some(incarnation));
                }
                continue;
            }
            let Some(contact) = state.contact(node) else { continue };
            contact.left = contact.left.max(is_left.then_some(incarnation));
            contact.card = contact.card.max(Some(incarnation));
            contact.life = contact.life.max(Some(incarnation));
            let is_newer = contact.address.is_none_or(|(of, _)| of <= incarnation);
            if let Some(address) = address.filter(|_| is_newer) {
                let before = contact.address.replace((incarnation, address));
                state.has_moved |= before != contact.address;
            }
            if is_left {
                // The view that it was left out of may be the first one that this node has seen.
                state.views.left(card.member(), now_ms);
            }
        }
        self.find.is_under_way = false;
        match count {
            0 => {
                let slowest_ms = FIND_SLOWEST * self.find.least_ms;
                self.find.each_ms = (2 * self.find.each_ms).min(slowest_ms);
                // Names that had no address are asked for again.
                for contact in &mut state.contacts {
                    let is_known = contact.left.max(contact.refused.as_ref().map(|(of, _)| *of));
                    contact.card.take_if(|of| contact.address.is_none() && is_known < Some(*of));
                }
            }
            _ => self.find.each_ms = self.find.least_ms,
        }
        if count >= CARDS {
            self.find.next_ms = now_ms;
        }
        if !self.has_begun {
            self.begin(state);
        }
    }
}
