//! Faults on purpose: a script says which messages and transfers go wrong, and how.

use crate::{
    Access, Counters, Down, Event, Fabric, FabricError, Fault, FaultScript, Header, Link,
    LinkStatus, LocalSpan, Operation, Outcome, Region, RemoteSpan,
};
use forebay_membership::Member;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Messages that are delayed at once; one more finds the link full.
const DELAYED_MAX: usize = 64;

/// Another fabric with the faults of a script. Operations on links that are not up are not counted.
pub struct Faulty<F> {
    inner: F,
    script: FaultScript,
    up: BTreeSet<Link>,
    /// Transfers under way, by the token that the inner fabric knows.
    transfers: BTreeMap<u64, Moving>,
    last_token: u64,
    /// Of all links, in their order.
    delayed: VecDeque<Delayed>,
    /// Told next, before those of the inner fabric.
    events: Vec<Event>,
    /// Told after what the inner fabric has to say of their tokens.
    downs: Vec<(Link, Down)>,
    /// Have been answered `Full`.
    full: BTreeMap<Link, Full>,
    /// When the caller wants to be woken.
    wake: Option<Duration>,
}

/// Who has found a link full.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Full {
    /// The script says so, or too much is delayed.
    by_script: bool,
    /// The caller waits for the inner fabric.
    caller: bool,
    /// Of what the inner fabric will tell, each by an event of its own.
    messages: bool,
    transfers: bool,
}

struct Moving {
    token: u64,
    link: Link,
    is_torn: bool,
}

struct Delayed {
    link: Link,
    header: Header,
    body: Vec<u8>,
    until: Duration,
}

impl<F: Fabric> Faulty<F> {
    /// Lets the operations of `inner` go wrong as the script says.
    pub fn new(inner: F, script: FaultScript) -> Self {
        Self {
            inner,
            script,
            up: BTreeSet::new(),
            transfers: BTreeMap::new(),
            last_token: 0,
            delayed: VecDeque::new(),
            events: Vec::new(),
            downs: Vec::new(),
            full: BTreeMap::new(),
            wake: None,
        }
    }

    fn decide(&self, link: Link, operation: Operation) -> Option<Fault> {
        if self.up.contains(&link) { self.script.decide(operation) } else { None }
    }

    fn cut(&mut self, link: Link, why: Down) {
        self.inner.close(link);
        self.up.remove(&link);
        self.full.remove(&link);
        self.delayed.retain(|message| message.link != link);
        self.downs.push((link, why));
    }

    fn refuse_full<T>(&mut self, link: Link) -> Result<T, FabricError> {
        self.full.entry(link).or_default().by_script = true;
        Err(FabricError::Full)
    }

    fn delay(
        &mut self,
        link: Link,
        header: &Header,
        body: &[u8],
        time: Duration,
    ) -> Result<(), FabricError> {
        if header.kind.is_own() {
            return Err(FabricError::Kind);
        }
        if body.len() > crate::BODY_MAX {
            return Err(FabricError::Length);
        }
        if self.delayed.len() >= DELAYED_MAX {
            return self.refuse_full(link);
        }
        let until = self.inner.now() + time;
        self.delayed.push_back(Delayed { link, header: *header, body: body.to_vec(), until });
        self.set_wake();
        Ok(())
    }

    /// Sends what has waited long enough, and stands behind no other of its link.
    fn release(&mut self) {
        let now = self.inner.now();
        let mut waits = BTreeSet::new();
        for message in std::mem::take(&mut self.delayed) {
            let Delayed { link, header, body, until } = &message;
            let goes = !waits.contains(link) && *until <= now;
            // A link that is closed has no use for it.
            let is_full = goes && self.inner.send(*link, header, body) == Err(FabricError::Full);
            if is_full {
                self.full.entry(*link).or_default().messages = true;
            }
            if !goes || is_full {
                waits.insert(*link);
                self.delayed.push_back(message);
            }
        }
    }

    /// Lets the inner fabric wake for what is next, here or at the caller. What is due and still
    /// here waits for room.
    fn set_wake(&mut self) {
        let now = self.inner.now();
        let next = self.delayed.iter().map(|message| message.until).filter(|until| *until > now);
        if let Some(first) = next.chain(self.wake).min() {
            self.inner.wake_in(first.saturating_sub(now));
        }
    }

    /// What becomes of a transfer: it has ended here, or goes on with so many bytes.
    fn begin(
        &mut self,
        link: Link,
        operation: Operation,
        token: u64,
        bytes: u64,
    ) -> Result<Option<(u64, u64)>, FabricError> {
        let fault = self.decide(link, operation);
        let (bytes, is_torn) = match fault {
            Some(Fault::Full) => return self.refuse_full(link),
            Some(Fault::Lose) => {
                self.events.push(Event::Done { token, outcome: Outcome::Ok });
                return Ok(None);
            }
            Some(Fault::Tear) if bytes > 1 => (bytes / 2, true),
            Some(fault) => {
                let (outcome, why) = match fault {
                    Fault::Late => (Outcome::Late, Down::Late),
                    _ => (Outcome::Gone, Down::Injected),
                };
                self.events.push(Event::Done { token, outcome });
                self.cut(link, why);
                return Ok(None);
            }
            None => (bytes, false),
        };
        self.last_token += 1;
        self.transfers.insert(self.last_token, Moving { token, link, is_torn });
        Ok(Some((self.last_token, bytes)))
    }

    fn began(
        &mut self,
        link: Link,
        token: u64,
        result: Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        if let Err(error) = result {
            self.transfers.remove(&token);
            if error == FabricError::Full {
                let full = self.full.entry(link).or_default();
                (full.caller, full.transfers) = (true, true);
            }
            return Err(error);
        }
        Ok(())
    }

    /// What the caller is told of an event of the inner fabric.
    fn translate(&mut self, event: Event) -> Option<Event> {
        // Of a link that was cut meanwhile nothing is told but its tokens.
        let is_cut = |link: &Link| self.downs.iter().any(|(of, _)| of == link);
        match event {
            Event::Up { link, .. }
            | Event::Down { link, .. }
            | Event::Message { link, .. }
            | Event::Room { link }
                if is_cut(&link) =>
            {
                return None;
            }
            Event::Up { link, .. } => {
                self.up.insert(link);
            }
            Event::Down { link, .. } => {
                self.up.remove(&link);
                self.full.remove(&link);
                self.delayed.retain(|message| message.link != link);
            }
            // One that it tells us, for what is delayed, is none for the caller.
            Event::Room { link } => {
                let full = self.full.get_mut(&link)?;
                let is_told = full.caller;
                // Of two that are to come either may be the first.
                let is_first = full.messages && full.transfers;
                (full.messages, full.transfers) = (is_first, false);
                full.caller &= is_first;
                self.full.retain(|_, full| *full != Full::default());
                if !is_told {
                    return None;
                }
            }
            Event::Done { token, outcome } => {
                let moving = self.transfers.remove(&token)?;
                let outcome = match outcome {
                    Outcome::Ok if moving.is_torn => {
                        self.cut(moving.link, Down::Injected);
                        Outcome::Gone
                    }
                    other => other,
                };
                return Some(Event::Done { token: moving.token, outcome });
            }
            Event::Message { .. } => {}
        }
        Some(event)
    }
}

impl<F: Fabric> Fabric for Faulty<F> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn member(&self) -> Member {
        self.inner.member()
    }

    fn address(&self) -> &str {
        self.inner.address()
    }

    fn connect(&mut self, peer: Member, to: &str) -> Result<Link, FabricError> {
        self.inner.connect(peer, to)
    }

    fn send(&mut self, link: Link, header: &Header, body: &[u8]) -> Result<(), FabricError> {
        match self.decide(link, Operation::Send) {
            Some(Fault::Cut) => {
                self.cut(link, Down::Injected);
                return Ok(());
            }
            Some(Fault::Full) => return self.refuse_full(link),
            Some(Fault::Delay(time)) => return self.delay(link, header, body, time),
            Some(Fault::Spoil) => {
                self.inner.spoil(link);
            }
            _ => {}
        }
        if self.delayed.iter().any(|message| message.link == link) {
            return self.delay(link, header, body, Duration::ZERO);
        }
        match self.inner.send(link, header, body) {
            Err(FabricError::Full) => {
                let full = self.full.entry(link).or_default();
                (full.caller, full.messages) = (true, true);
                Err(FabricError::Full)
            }
            other => other,
        }
    }

    unsafe fn expose(
        &mut self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Region, FabricError> {
        // SAFETY: the caller promises what is asked for there.
        unsafe { self.inner.expose(at, bytes, access) }
    }

    fn withdraw(&mut self, region: Region) -> Result<(), FabricError> {
        self.inner.withdraw(region)
    }

    fn pull(
        &mut self,
        link: Link,
        mut from: RemoteSpan,
        mut into: LocalSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        let begun = self.begin(link, Operation::Pull, token, into.bytes)?;
        let Some((token, bytes)) = begun else { return Ok(()) };
        if bytes < into.bytes && from.bytes == into.bytes {
            (from.bytes, into.bytes) = (bytes, bytes);
        }
        let result = self.inner.pull(link, from, into, token, within);
        self.began(link, token, result)
    }

    fn push(
        &mut self,
        link: Link,
        mut from: LocalSpan,
        mut to: RemoteSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        let begun = self.begin(link, Operation::Push, token, from.bytes)?;
        let Some((token, bytes)) = begun else { return Ok(()) };
        if bytes < from.bytes && from.bytes == to.bytes {
            (from.bytes, to.bytes) = (bytes, bytes);
        }
        let result = self.inner.push(link, from, to, token, within);
        self.began(link, token, result)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        let downs = std::mem::take(&mut self.downs);
        let mut inner = Vec::new();
        self.inner.poll(&mut inner);
        events.append(&mut self.events);
        for event in inner {
            events.extend(self.translate(event));
        }
        // There may be room now.
        self.release();
        events.extend(downs.into_iter().map(|(link, why)| Event::Down { link, why }));
        if self.delayed.len() < DELAYED_MAX {
            for (link, full) in &mut self.full {
                if std::mem::take(&mut full.by_script) {
                    events.push(Event::Room { link: *link });
                }
            }
            self.full.retain(|_, full| *full != Full::default());
        }
        let now = self.inner.now();
        self.wake = self.wake.filter(|at| *at > now);
        self.set_wake();
        events.len() - before
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.inner.wait_fd()
    }

    fn arm(&mut self) -> bool {
        let now = self.inner.now();
        let has_room =
            self.delayed.len() < DELAYED_MAX && self.full.values().any(|full| full.by_script);
        let told = self.events.is_empty() && self.downs.is_empty() && !has_room;
        // What is due and still here waits for room.
        let due = self.wake.is_some_and(|at| at <= now);
        told && !due && self.inner.arm()
    }

    fn close(&mut self, link: Link) {
        self.inner.close(link);
        self.up.remove(&link);
        self.full.remove(&link);
        self.delayed.retain(|message| message.link != link);
        self.downs.retain(|(of, _)| *of != link);
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn wake_in(&mut self, time: Duration) {
        self.wake = Some(self.inner.now().saturating_add(time));
        self.set_wake();
    }

    fn spoil(&mut self, link: Link) -> bool {
        self.inner.spoil(link)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn links(&self) -> Vec<LinkStatus> {
        self.inner.links()
    }
}
