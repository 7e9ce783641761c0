//! Fabrics of one process on a virtual clock.

mod network;

pub use network::Network;

use crate::ends::Ends;
use crate::flow::{Core, Flow, Roll, Sink, Timer};
use crate::table::Table;
use crate::{
    Access, CONNECT_TIME, Counters, Down, Event, Fabric, FabricError, Header, Link, LinkStatus,
    LocalSpan, Outcome, Refusal, Region, RemoteSpan,
};
use forebay_membership::Member;
use network::{State, What};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A byte of a header that every frame has, and its sum covers: of `first_block`.
const SPOILED_AT: usize = 40;

/// The fabric of one node of a [`Network`], see [`Fabric`]. When it is dropped, the node is gone.
pub struct Memory {
    network: Network,
    /// Its number in the network.
    place: usize,
    address: String,
    event: Arc<OwnedFd>,
    core: Core,
    ends: Table<End>,
    /// The ends by their wires.
    by_wire: BTreeMap<u64, u64>,
}

/// This end of a wire.
struct End {
    wire: u64,
    /// Whether this side has connected.
    is_maker: bool,
    peer: Member,
    /// The number of this end.
    number: u64,
    /// None before it is up.
    flow: Option<Flow>,
    spoils: bool,
}

/// Makes one piece of a frame.
struct Gather(Vec<u8>);

impl Sink for Gather {
    fn put(&mut self, head: &[u8], bulk: &[u8]) -> Result<(), Down> {
        self.0 = [head, bulk].concat();
        Ok(())
    }
}

impl Memory {
    fn new(
        network: Network,
        place: usize,
        member: Member,
        address: String,
        event: Arc<OwnedFd>,
    ) -> Self {
        let mut core = Core::new(member);
        core.peers.begin_at((place as u64) << 32);
        let (ends, by_wire) = (Table::default(), BTreeMap::new());
        Self { network, place, address, event, core, ends, by_wire }
    }

    /// Takes in what has arrived.
    fn accept(&mut self, wire: u64, what: What) {
        let now = self.now();
        let key = self.by_wire.get(&wire).copied();
        match (what, key) {
            (What::Open { peer, wanted, group, roll }, None) => {
                if let Err(why) = self.let_in(wire, (peer, roll), wanted, &group) {
                    self.network.lock().end(self.place, wire, false, why);
                    self.core.refuse(Refusal::Hello);
                }
            }
            (What::Accepted(peer, roll), Some(key)) => {
                if let Err(why) = self.hear(peer, &roll) {
                    self.fail(key, why);
                } else {
                    self.up(key, peer, roll.number);
                }
            }
            (What::Bytes(bytes), Some(key)) => {
                if let Some((core, flow)) = self.flow(Link(key))
                    && let Err(why) = flow.accept(core, &bytes, now)
                {
                    self.fail(key, why);
                }
                self.end_what_is_over();
            }
            (What::Over(why), Some(key)) => {
                self.remove(key);
                self.network.lock().forget(wire);
                self.core.down(Link(key), why);
            }
            (What::Over(_), None) => self.network.lock().forget(wire),
            (What::Silent, Some(key)) => self.fail(key, Down::Silent),
            // This end is closed, and the other will hear of it.
            _ => {}
        }
    }

    fn let_in(
        &mut self,
        wire: u64,
        (peer, said): (Member, Roll),
        wanted: Member,
        group: &str,
    ) -> Result<(), Down> {
        self.network.lock().check_open(self.place, wanted, group)?;
        self.hear(peer, &said)?;
        let roll = self.roll(peer)?;
        let number = roll.number;
        let accepted = What::Accepted(self.core.me, roll);
        self.network.lock().post(self.place, wire, false, accepted);
        let end = End { wire, is_maker: false, peer, number, flow: None, spoils: false };
        let key = self.ends.insert(end);
        self.by_wire.insert(wire, key);
        self.up(key, peer, said.number);
        Ok(())
    }

    /// Takes in what a peer says of its links, before anything of a new one.
    fn hear(&mut self, peer: Member, roll: &Roll) -> Result<(), Down> {
        self.core.peers.hear(peer, roll.clone())?;
        self.end_what_is_over();
        Ok(())
    }

    fn up(&mut self, key: u64, peer: Member, number: u64) {
        if let Some(end) = self.ends.get_mut(key) {
            end.flow = Some(Flow::new(Link(key), peer, number));
            self.core.counters.links += 1;
            self.core.events.push_back(Event::Up { link: Link(key), peer });
        }
    }

    /// Takes an end out of everything here.
    fn remove(&mut self, key: u64) -> Option<End> {
        let mut end = self.ends.remove(key)?;
        self.by_wire.remove(&end.wire);
        if let Some(flow) = &mut end.flow {
            self.core.counters.links -= 1;
            let half = flow.has_half_pushed().then(|| flow.peer());
            flow.end_all(&mut self.core);
            if let Some(peer) = half {
                self.tell_of_end(peer);
            }
        }
        Some(end)
    }

    /// Ends a link from this side. The other is told what it has to know.
    fn fail(&mut self, key: u64, why: Down) {
        let Some(mut end) = self.remove(key) else { return };
        let mut state = self.network.lock();
        if let (Down::Refused(why), Some(flow)) = (why, &mut end.flow) {
            self.core.refuse(why);
            flow.leave(&self.core);
            write_all(flow, &mut self.core, |frame| {
                state.post(self.place, end.wire, end.is_maker, What::Bytes(frame));
            });
        }
        state.end(self.place, end.wire, end.is_maker, Down::Closed);
        drop(state);
        self.core.down(Link(key), why);
    }

    /// Sends what there is, as far as the network takes it.
    fn pump(&mut self, key: u64) {
        let Some(end) = self.ends.get_mut(key) else { return };
        let Some(flow) = &mut end.flow else { return };
        let mut state = self.network.lock();
        let mut result = Ok(());
        while result.is_ok() && flow.has_frames() && state.has_window(end.wire, end.is_maker) {
            let mut frame = Gather(Vec::new());
            match flow.write_next(&mut self.core, &mut frame) {
                Ok(true) => {
                    if std::mem::take(&mut end.spoils) {
                        frame.0[SPOILED_AT] ^= 1;
                    }
                    state.post(self.place, end.wire, end.is_maker, What::Bytes(frame.0));
                }
                Ok(false) => break,
                Err(why) => result = Err(why),
            }
        }
        drop(state);
        if let Err(why) = result {
            self.fail(key, why);
        }
    }

    /// Whether an end could send at once.
    fn can_pump(&self, state: &State, end: &End) -> bool {
        let has_frames = end.flow.as_ref().is_some_and(Flow::has_frames);
        has_frames && state.has_window(end.wire, end.is_maker)
    }

    fn expire(&mut self) {
        let now = self.now();
        while let Some(timer) = self.core.timers.take_due(now) {
            match timer {
                Timer::Wake => {}
                Timer::Connection(key) => {
                    let waits = |end: &End| end.flow.is_none();
                    if self.ends.get(key).is_some_and(waits) {
                        self.fail(key, Down::Timeout);
                    }
                }
                Timer::Transfer(key, request) => {
                    if let Some((core, flow)) = self.flow(Link(key)) {
                        flow.end(core, request, Outcome::Late);
                        self.fail(key, Down::Late);
                    }
                }
            }
        }
    }

    /// Lets the network know when this node has something to do.
    fn tell_timer(&mut self) {
        let first = self.core.timers.first();
        self.network.lock().set_timer(self.place, first);
    }
}

impl Ends for Memory {
    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    fn keys(&self) -> Vec<u64> {
        self.ends.keys()
    }

    fn flow(&mut self, link: Link) -> Option<(&mut Core, &mut Flow)> {
        Some((&mut self.core, self.ends.get_mut(link.0)?.flow.as_mut()?))
    }

    fn alive(&self, peer: Member) -> Vec<u64> {
        let ends = self.ends.iter().filter(|(_, end)| end.peer == peer);
        ends.map(|(_, end)| end.number).collect()
    }

    fn fail(&mut self, key: u64, why: Down) {
        Memory::fail(self, key, why);
    }

    fn pump(&mut self, key: u64) {
        Memory::pump(self, key);
        self.tell_timer();
    }

    /// Each poll sends what all have.
    fn has_more(&mut self, _: u64) {}

    fn time(&self) -> Duration {
        self.now()
    }
}

/// Gives all frames to `post`, whatever the window.
fn write_all(flow: &mut Flow, core: &mut Core, mut post: impl FnMut(Vec<u8>)) {
    let mut frame = Gather(Vec::new());
    while let Ok(true) = flow.write_next(core, &mut frame) {
        post(std::mem::take(&mut frame.0));
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.network.lock().kill(self.place);
    }
}

impl Fabric for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn member(&self) -> Member {
        self.core.me
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn connect(&mut self, peer: Member, to: &str) -> Result<Link, FabricError> {
        let roll = self.roll(peer);
        let number = roll.as_ref().map_or(0, |roll| roll.number);
        let wire = roll.and_then(|roll| {
            let wire = self.network.lock().open(self.place, to, peer, roll);
            wire.ok_or(Down::Unreachable)
        });
        let at = self.now() + CONNECT_TIME;
        // Without a wire it is over at once.
        let end = End {
            wire: wire.unwrap_or(0),
            is_maker: true,
            peer,
            number,
            flow: None,
            spoils: false,
        };
        let key = self.ends.insert(end);
        match wire {
            Ok(wire) => {
                self.by_wire.insert(wire, key);
                self.core.timers.add(at, Timer::Connection(key));
                self.tell_timer();
            }
            Err(why) => {
                self.ends.remove(key);
                self.core.down(Link(key), why);
            }
        }
        Ok(Link(key))
    }

    fn send(&mut self, link: Link, header: &Header, body: &[u8]) -> Result<(), FabricError> {
        let now = self.now();
        let (core, flow) = self.flow(link).ok_or(FabricError::Closed)?;
        flow.send(core, header, body, now)?;
        self.pump(link.0);
        Ok(())
    }

    unsafe fn expose(
        &mut self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Region, FabricError> {
        // SAFETY: the caller promises what is asked for there.
        unsafe { self.core.regions.expose(at, bytes, access) }
    }

    fn withdraw(&mut self, region: Region) -> Result<(), FabricError> {
        self.withdraw_region(region)
    }

    fn pull(
        &mut self,
        link: Link,
        from: RemoteSpan,
        into: LocalSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        self.begin_transfer(link, token, |core, flow, now| {
            flow.pull(core, (from, into), token, (now, within))
        })
    }

    fn push(
        &mut self,
        link: Link,
        from: LocalSpan,
        to: RemoteSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        self.begin_transfer(link, token, |core, flow, now| {
            flow.push(core, (from, to), token, (now, within))
        })
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> usize {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        if !self.network.lock().is_running(self.place) {
            return 0;
        }
        // What is under way of a link is its share. The lock is not held while it is taken in.
        let next = |network: &Network, place| network.lock().take_due(place);
        while let Some(delivery) = next(&self.network, self.place) {
            self.accept(delivery.wire, delivery.what);
        }
        self.expire();
        for key in self.ends.keys() {
            self.pump(key);
        }
        self.tell_timer();
        let before = events.len();
        events.extend(self.core.events.drain(..));
        events.len() - before
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        let state = self.network.lock();
        if !state.is_running(self.place) {
            return true;
        }
        let is_due = self.core.timers.first().is_some_and(|at| at <= state.now);
        let can_pump = self.ends.iter().any(|(_, end)| self.can_pump(&state, end));
        self.core.events.is_empty() && !is_due && !can_pump && !state.has_due(self.place)
    }

    fn close(&mut self, link: Link) {
        if let Some(end) = self.remove(link.0) {
            self.network.lock().end(self.place, end.wire, end.is_maker, Down::Closed);
        }
        self.core.forget(link);
        self.tell_timer();
    }

    fn now(&self) -> Duration {
        self.network.now()
    }

    fn wake_in(&mut self, time: Duration) {
        let at = self.now().saturating_add(time);
        self.core.wake_at(at);
        self.tell_timer();
    }

    fn spoil(&mut self, link: Link) -> bool {
        let found = self.ends.get_mut(link.0).filter(|end| end.flow.is_some());
        found.map(|end| end.spoils = true).is_some()
    }

    fn counters(&self) -> Counters {
        self.core.counters
    }

    fn links(&self) -> Vec<LinkStatus> {
        self.ends.iter().filter_map(|(_, end)| end.flow.as_ref()).map(Flow::status).collect()
    }
}
