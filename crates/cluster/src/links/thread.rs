//! The thread "group-links": it owns the fabric, makes links to members, and closes those to
//! nodes that are none.

use super::lull::{After, Lulls};
use super::post::{Pull, Shown, Waiting};
use super::{LinkEvent, LinkHandler, MESH_MAX, Post, TICK};
use crate::clock::now_ms;
use crate::remote::Staging;
use crate::status::LinkState;
use forebay_fabric::{
    Down, Event, Fabric, FabricError, Header, Link, LinkStatus as Carried, LocalSpan, Outcome,
};
use forebay_membership::{Member, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// A connection that failed is tried again after this time, then after twice as long, and so on.
const BACKOFF_MIN_MS: u64 = 100;
const BACKOFF_MAX_MS: u64 = 10_000;
/// A link that has lasted so long was a good one: the next begins without back-off.
const GOOD_MS: u64 = 10_000;
/// How often a link without messages is measured.
const TICK_MS: u64 = 10_000;
/// For how long a message waits for a link.
const WAIT_MS: u64 = 5_000;
/// For how long a link is kept that one has made who is in no view that this node has seen: it
/// may have seen a later one.
const STRANGER_MS: u64 = 30_000;
/// Between two counts of bytes, and the longest wait.
const SHOW_MS: u64 = 1_000;
const SLEEP_MAX_MS: u64 = 60_000;
/// Messages to one member before others have their turn.
const ROUND_MAX: usize = 64;

/// See the module.
pub(crate) struct Links {
    me: Member,
    post: Post,
    fabric: Box<dyn Fabric>,
    /// Exposed by the fabric, which is dropped before it.
    staging: Option<Arc<Staging>>,
    handler: LinkHandler,
    /// Told of members whose link is lost, for the failure detector.
    lost: Box<dyn Fn(Member) + Send>,
    /// Those to which there are, were, or are to be links.
    peers: BTreeMap<Member, Peer>,
    /// Whose each link is.
    owners: BTreeMap<Link, Member>,
    /// Members, and whether there are so few that each has a link to each.
    is_mesh: bool,
    /// Since when something is sent or comes that was not counted, and when it is to be.
    used_ms: Option<u64>,
    lulls: Lulls,
}

/// One that a link leads to.
#[derive(Default)]
struct Peer {
    is_member: bool,
    /// When it stopped being one, or came without being one.
    stranger_ms: u64,
    at: Option<SocketAddr>,
    /// Those that are up, the first of which carries messages.
    up: Vec<Link>,
    /// Those that are being made.
    begun: Option<Link>,
    /// Since when it is as it is.
    since_ms: u64,
    /// When a link may be tried, and how long after the next failure.
    next_ms: u64,
    backoff_ms: u64,
    last_down: Option<(u64, Down)>,
    tick_ms: u64,
    /// Bytes in and out at the last count.
    bytes: [u64; 2],
    /// The fabric has no room for it.
    is_full: bool,
}

impl Links {
    pub fn new(
        post: Post,
        fabric: Box<dyn Fabric>,
        staging: Option<Arc<Staging>>,
        handler: LinkHandler,
        lost: Box<dyn Fn(Member) + Send>,
    ) -> Self {
        Self {
            staging,
            me: fabric.member(),
            post,
            fabric,
            handler,
            lost,
            peers: BTreeMap::new(),
            owners: BTreeMap::new(),
            is_mesh: false,
            used_ms: None,
            lulls: Lulls::new(Instant::now()),
        }
    }

    /// Until the group stops.
    pub fn run(mut self) {
        let mut events = Vec::new();
        loop {
            self.fabric.poll(&mut events);
            let came = (!events.is_empty()).then_some(After::Came);
            for event in events.drain(..) {
                self.on_event(event);
            }
            let sent = self.post.has_news().then_some(After::Sent);
            if self.post.book().stops {
                return;
            }
            self.take_members();
            self.pull();
            let due_ms = self.drive();
            let due_ms = due_ms.min(self.show());
            if let Some(what) = came.or(sent) {
                self.lulls.note(Instant::now(), what);
            }
            let looks = now_ms() < due_ms && self.looks(&mut events);
            if !looks && self.fabric.arm() && self.post.may_sleep() {
                self.sleep(due_ms);
            }
        }
    }

    /// Looks for what may come soon, and lets other threads have the processor meanwhile. Whether
    /// something has come.
    fn looks(&mut self, events: &mut Vec<Event>) -> bool {
        let Some(until) = self.lulls.looks_until() else { return false };
        while Instant::now() < until {
            if self.fabric.poll(events) > 0 || self.post.has_news() {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// Waits for the fabric, for another thread, or for a moment.
    fn sleep(&self, due_ms: u64) {
        let wait_ms = due_ms.saturating_sub(now_ms()).min(SLEEP_MAX_MS);
        let wait = Timespec {
            tv_sec: (wait_ms / 1000) as i64,
            tv_nsec: (wait_ms % 1000 * 1_000_000) as _,
        };
        let (wake, carries) = (self.post.wake_fd(), self.fabric.wait_fd());
        let mut fds =
            [PollFd::from_borrowed_fd(carries, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        // A signal that interrupts it makes one more round.
        let _ = poll(&mut fds, Some(&wait));
        self.post.is_awake();
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    fn on_event(&mut self, event: Event) {
        let now_ms = now_ms();
        self.used_ms.get_or_insert(now_ms);
        match event {
            Event::Up { link, peer: member } => {
                self.owners.insert(link, member);
                let peer = self.peers.entry(member).or_default();
                peer.begun.take_if(|begun| *begun == link);
                if !peer.is_member && peer.up.is_empty() {
                    peer.stranger_ms = now_ms;
                }
                peer.up.push(link);
                if peer.up.len() == 1 {
                    (peer.since_ms, peer.tick_ms) = (now_ms, now_ms);
                    peer.is_full = false;
                    self.tell(LinkEvent::Up(member));
                }
            }
            Event::Down { link, why } => self.down(link, why, now_ms),
            Event::Message { link, header, body } => {
                if let Some(from) = self.owners.get(&link).copied()
                    && header.kind != TICK
                {
                    self.tell(LinkEvent::Message { from, header: &header, body: &body });
                }
            }
            Event::Room { link } => {
                if let Some(peer) =
                    self.owners.get(&link).and_then(|owner| self.peers.get_mut(owner))
                {
                    peer.is_full = false;
                }
            }
            Event::Done { token, outcome } => self.tell(LinkEvent::Pulled { token, outcome }),
        }
    }

    fn tell(&mut self, event: LinkEvent<'_>) {
        (self.handler)(&self.post, event);
    }

    /// Begins what is to be pulled.
    fn pull(&mut self) {
        let pulls = std::mem::take(&mut self.post.book().pulls);
        for Pull { of, from, to, token, within } in pulls {
            let region = self.staging.as_ref().and_then(|staging| staging.region());
            let link = self.peers.get(&of).and_then(|peer| peer.up.first().copied());
            let begun = region.zip(link).is_some_and(|(region, link)| {
                let into = LocalSpan { region, offset: to, bytes: from.bytes };
                self.fabric.pull(link, from, into, token, within).is_ok()
            });
            if !begun {
                self.tell(LinkEvent::Pulled { token, outcome: Outcome::Gone });
            }
            self.used_ms.get_or_insert(now_ms());
        }
    }

    /// A link is gone, or was not made.
    fn down(&mut self, link: Link, why: Down, now_ms: u64) {
        let Some(member) = self.owners.remove(&link) else { return };
        let Some(peer) = self.peers.get_mut(&member) else { return };
        let was_up = peer.up.contains(&link);
        peer.begun.take_if(|begun| *begun == link);
        peer.up.retain(|other| *other != link);
        peer.last_down = Some((now_ms, why));
        peer.is_full = false;
        if !peer.up.is_empty() {
            return;
        }
        if was_up && now_ms.saturating_sub(peer.since_ms) >= GOOD_MS {
            peer.backoff_ms = 0;
        }
        peer.since_ms = now_ms;
        peer.backoff_ms = (2 * peer.backoff_ms).clamp(BACKOFF_MIN_MS, BACKOFF_MAX_MS);
        peer.next_ms = now_ms + peer.backoff_ms;
        peer.bytes = [0; 2];
        let is_member = peer.is_member;
        if !is_member && peer.begun.is_none() {
            self.peers.remove(&member);
        }
        let has_dropped = self.drop_queue(member);
        if was_up || has_dropped {
            self.tell(LinkEvent::Down(member));
        }
        if was_up && is_member {
            (self.lost)(member);
        }
    }

    /// Drops what waits for a member; whether anything did. New messages are refused until the next
    /// try.
    fn drop_queue(&mut self, member: Member) -> bool {
        let mut book = self.post.book();
        let entry = book.members.get_mut(&member.node).filter(|entry| entry.member == member);
        entry.is_some_and(|entry| {
            entry.shown.state = LinkState::Waiting;
            let (queue, is_full) = entry.take();
            is_full || !queue.is_empty()
        })
    }

    /// Takes the members of another view, and closes links to those that are none any more.
    fn take_members(&mut self) {
        let members: BTreeMap<NodeId, (Member, Option<SocketAddr>)> = {
            let mut book = self.post.book();
            book.has_mail = false;
            if !std::mem::take(&mut book.has_changed) {
                return;
            }
            book.members.iter().map(|(node, entry)| (*node, (entry.member, entry.at))).collect()
        };
        let now_ms = now_ms();
        self.is_mesh = members.len() < MESH_MAX;
        let is_member =
            |member: &Member| members.get(&member.node).is_some_and(|(life, _)| life == member);
        let left: Vec<Member> = self
            .peers
            .iter()
            .filter(|(member, peer)| peer.is_member && !is_member(member))
            .map(|(member, _)| *member)
            .collect();
        left.into_iter().for_each(|member| self.close(member));
        for (member, at) in members.into_values() {
            let peer = self.peers.entry(member).or_default();
            if !peer.is_member {
                peer.is_member = true;
                if peer.up.is_empty() {
                    peer.since_ms = now_ms;
                }
            }
            if peer.at != at {
                // Where it is now was not tried.
                (peer.at, peer.next_ms, peer.backoff_ms) = (at, now_ms, 0);
            }
        }
    }

    /// Ends all links to one that is no member.
    fn close(&mut self, member: Member) {
        let Some(peer) = self.peers.remove(&member) else { return };
        for link in peer.up.iter().chain(&peer.begun) {
            self.owners.remove(link);
            self.fabric.close(*link);
        }
        if !peer.up.is_empty() {
            self.tell(LinkEvent::Down(member));
        }
    }

    /// Does what is due for each peer; returns when something is again.
    fn drive(&mut self) -> u64 {
        let now_ms = now_ms();
        let mut due_ms = u64::MAX;
        let members: Vec<Member> = self.peers.keys().copied().collect();
        for member in members {
            let Some(peer) = self.peers.get_mut(&member) else { continue };
            if !peer.is_member {
                let end_ms = peer.stranger_ms + STRANGER_MS;
                match end_ms <= now_ms {
                    true => self.close(member),
                    false => due_ms = due_ms.min(end_ms),
                }
                continue;
            }
            due_ms = due_ms.min(match peer.up.first().copied() {
                Some(link) => self.carry(member, link, now_ms),
                None => self.connect(member, now_ms),
            });
        }
        due_ms
    }

    /// Sends what waits by a link that is up, and measures it now and then.
    fn carry(&mut self, member: Member, link: Link, now_ms: u64) -> u64 {
        let Some(peer) = self.peers.get_mut(&member) else { return u64::MAX };
        if peer.tick_ms <= now_ms {
            // All links at one moment: the thread wakes once.
            peer.tick_ms = (now_ms / TICK_MS + 1) * TICK_MS;
            let tick = Header { kind: TICK, ..Header::default() };
            // One that is full is in use, and so measured.
            let _ = self.fabric.send(link, &tick, &[]);
            self.used_ms.get_or_insert(now_ms);
        }
        let tick_ms = peer.tick_ms;
        if peer.is_full {
            return tick_ms;
        }
        let (mut queue, was_refused) = {
            let mut book = self.post.book();
            let entry = book.members.get_mut(&member.node).filter(|entry| entry.member == member);
            entry.map(super::post::Entry::take).unwrap_or_default()
        };
        let mut sent = 0;
        while let Some(Waiting { header, body, .. }) = queue.front() {
            match self.fabric.send(link, header, body) {
                Err(FabricError::Full) => {
                    if let Some(peer) = self.peers.get_mut(&member) {
                        peer.is_full = true;
                    }
                    break;
                }
                // What cannot be sent by a link that is gone is lost with it, which is told.
                _ => queue.pop_front(),
            };
            sent += 1;
            self.used_ms.get_or_insert(now_ms);
            if sent >= ROUND_MAX {
                break;
            }
        }
        let has_more = !queue.is_empty();
        if has_more {
            let mut book = self.post.book();
            let entry = book.members.get_mut(&member.node).filter(|of| of.member == member);
            entry.into_iter().for_each(|entry| entry.put_back(std::mem::take(&mut queue)));
        }
        if was_refused {
            self.tell(LinkEvent::Room(member));
        }
        let is_full = self.peers.get(&member).is_some_and(|peer| peer.is_full);
        if has_more && !is_full { now_ms } else { tick_ms }
    }

    /// Makes a link where one is wanted and it is time.
    fn connect(&mut self, member: Member, now_ms: u64) -> u64 {
        let oldest_ms = {
            let book = self.post.book();
            let entry = book.members.get(&member.node).filter(|of| of.member == member);
            entry.and_then(|entry| entry.queue.front()).map(|waiting| waiting.since_ms)
        };
        let end_ms = oldest_ms.map_or(u64::MAX, |since_ms| since_ms + WAIT_MS);
        if end_ms <= now_ms {
            self.drop_queue(member);
            if let Some(peer) = self.peers.get_mut(&member) {
                peer.next_ms = peer.next_ms.max(now_ms + BACKOFF_MIN_MS);
            }
            self.tell(LinkEvent::Down(member));
            return now_ms + BACKOFF_MIN_MS;
        }
        let Some(peer) = self.peers.get_mut(&member) else { return u64::MAX };
        if now_ms < peer.next_ms {
            return peer.next_ms.min(end_ms);
        }
        // Of two that would connect at once one does: the other waits to be connected to.
        let is_wanted = oldest_ms.is_some() || (self.is_mesh && self.me < member);
        let Some(at) = peer.at.filter(|_| is_wanted && peer.begun.is_none()) else { return end_ms };
        match self.fabric.connect(member, &at.to_string()) {
            Ok(link) => {
                peer.begun = Some(link);
                self.owners.insert(link, member);
                end_ms
            }
            // No descriptors, or no memory: later.
            Err(_) => {
                peer.backoff_ms = (2 * peer.backoff_ms).clamp(BACKOFF_MIN_MS, BACKOFF_MAX_MS);
                peer.next_ms = now_ms + peer.backoff_ms;
                peer.next_ms.min(end_ms)
            }
        }
    }

    /// Tells others how links are; returns when to do so again.
    fn show(&mut self) -> u64 {
        let now_ms = now_ms();
        // What moves in that time is counted together, and the round trip of it is known then.
        let passed_ms = self.used_ms.map(|used_ms| now_ms.saturating_sub(used_ms));
        let passed_ms = passed_ms.filter(|passed_ms| *passed_ms >= SHOW_MS);
        let carried = if passed_ms.is_some() { self.fabric.links() } else { Vec::new() };
        if passed_ms.is_some() {
            self.used_ms = None;
        }
        let mut book = self.post.book();
        for entry in book.members.values_mut() {
            let Some(peer) = self.peers.get_mut(&entry.member) else { continue };
            let state = match (peer.up.is_empty(), peer.begun) {
                (false, _) => LinkState::Up,
                (true, Some(_)) => LinkState::Connecting,
                (true, None) if now_ms < peer.next_ms => LinkState::Waiting,
                (true, None) => LinkState::Unused,
            };
            let before = entry.shown;
            entry.shown = Shown {
                state,
                since_ms: if state == before.state { before.since_ms } else { now_ms },
                last_down: peer.last_down,
                ..before
            };
            if state != LinkState::Up {
                (entry.shown.round_trip, entry.shown.rates) = (None, [0; 2]);
            } else if let Some(passed_ms) = passed_ms {
                let own = carried.iter().filter(|of| of.peer == entry.member);
                let (mut round_trip, mut bytes) = (None, [0; 2]);
                for Carried { round_trip: time, bytes_in, bytes_out, .. } in own {
                    round_trip = round_trip.or(*time);
                    bytes = [bytes[0] + bytes_in, bytes[1] + bytes_out];
                }
                let rate = |now: u64, before: u64| now.saturating_sub(before) * 1000 / passed_ms;
                let rates = [rate(bytes[0], peer.bytes[0]), rate(bytes[1], peer.bytes[1])];
                peer.bytes = bytes;
                entry.shown = Shown { round_trip, bytes, rates, ..entry.shown };
            }
        }
        self.used_ms.map_or(u64::MAX, |used_ms| used_ms + SHOW_MS)
    }
}
