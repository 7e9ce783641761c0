//! Fabrics of both kinds, and how a test waits for their events.
#![allow(dead_code)] // Each test file uses its part.

use forebay_fabric::{
    Access, Down, Event, Fabric, FabricError, FaultScript, Faulty, Header, Identity, Kind, Link,
    LocalSpan, Network, Outcome, Region, RemoteSpan, Tls, parse_script,
};
use forebay_membership::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What nothing here takes, however slow the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A deadline that no test reaches.
pub const FAR: Duration = Duration::from_secs(300);

pub const GROUP: &str = "test";

pub const SECRET: [u8; 32] = [7; 32];

/// A seed, printed; `FOREBAY_FABRIC_SEED` repeats one.
pub fn seed() -> u64 {
    let given = std::env::var("FOREBAY_FABRIC_SEED").ok().and_then(|text| text.parse().ok());
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = given.unwrap_or(since.as_nanos() as u64);
    println!("FOREBAY_FABRIC_SEED={seed}");
    seed
}

/// What is put around a fabric.
trait Wrap {
    fn wrap<F: Fabric + 'static>(&mut self, fabric: F) -> Box<dyn Fabric>;
}

/// Nothing.
struct Bare;

impl Wrap for Bare {
    fn wrap<F: Fabric + 'static>(&mut self, fabric: F) -> Box<dyn Fabric> {
        Box::new(fabric)
    }
}

impl Wrap for FaultScript {
    fn wrap<F: Fabric + 'static>(&mut self, fabric: F) -> Box<dyn Fabric> {
        Box::new(Faulty::new(fabric, self.clone()))
    }
}

/// Fabrics of one kind that can reach each other, and what happened at each.
pub struct Subject {
    /// Nothing but its nodes makes anything happen: no thread, no other process.
    is_alone: bool,
    /// None for those whose clock is the real one.
    pub network: Option<Network>,
    #[cfg(feature = "ucx")]
    is_ucx: bool,
    script: Option<&'static str>,
    pub nodes: Vec<Box<dyn Fabric>>,
    pub events: Vec<Vec<Event>>,
}

impl Subject {
    pub fn tls(script: Option<&'static str>) -> Self {
        Self {
            is_alone: true,
            network: None,
            #[cfg(feature = "ucx")]
            is_ucx: false,
            script,
            nodes: Vec::new(),
            events: Vec::new(),
        }
    }

    /// UCX over TCP. It has a thread of its own.
    #[cfg(feature = "ucx")]
    pub fn ucx(script: Option<&'static str>) -> Self {
        Self { is_alone: false, is_ucx: true, ..Self::tls(script) }
    }

    /// One with peers that are not its nodes.
    pub fn tls_with_others() -> Self {
        Self { is_alone: false, ..Self::tls(None) }
    }

    pub fn memory(script: Option<&'static str>) -> Self {
        let network = Network::new(seed());
        network.set_delay(Duration::from_micros(20), Duration::from_micros(30));
        Self { network: Some(network), ..Self::tls(script) }
    }

    pub fn make(&self, member: Member, group: &str, at: Option<&str>) -> Box<dyn Fabric> {
        match self.script {
            Some(text) => self.make_faulty(member, group, at, text).0,
            None => self.make_bare(member, group, at, &mut Bare),
        }
    }

    /// One with a script of its own.
    pub fn make_faulty(
        &self,
        member: Member,
        group: &str,
        at: Option<&str>,
        text: &str,
    ) -> (Box<dyn Fabric>, FaultScript) {
        let script = FaultScript::new();
        script.replace(parse_script(text).unwrap());
        (self.make_bare(member, group, at, &mut script.clone()), script)
    }

    fn make_bare(
        &self,
        member: Member,
        group: &str,
        at: Option<&str>,
        wrap: &mut impl Wrap,
    ) -> Box<dyn Fabric> {
        let identity = Identity { member, group: group.into() };
        match &self.network {
            Some(network) => {
                let default = format!("{}.{}", member.node.0, member.incarnation.0);
                wrap.wrap(network.join(identity, at.unwrap_or(&default)).unwrap())
            }
            None => {
                let listen = at.unwrap_or("127.0.0.1:0").parse().unwrap();
                #[cfg(feature = "ucx")]
                if self.is_ucx {
                    let over = forebay_fabric::Over::TrustedNetwork;
                    let made = forebay_fabric::Ucx::new(identity, &SECRET, &[listen], over);
                    return wrap.wrap(made.unwrap());
                }
                wrap.wrap(Tls::new(identity, &SECRET, &[listen]).unwrap())
            }
        }
    }

    /// Adds a node of the group; its place.
    pub fn join(&mut self, node: u16) -> usize {
        let made = self.make(Member::new(node, 1), GROUP, None);
        self.add(made)
    }

    pub fn add(&mut self, made: Box<dyn Fabric>) -> usize {
        self.nodes.push(made);
        self.events.push(Vec::new());
        self.nodes.len() - 1
    }

    /// Two nodes with a link, as each of them knows it.
    pub fn pair(&mut self) -> (Link, Link) {
        let (one, two) = (self.join(1), self.join(2));
        self.link(one, two)
    }

    pub fn link(&mut self, from: usize, to: usize) -> (Link, Link) {
        let (peer, address) = (self.nodes[to].member(), self.nodes[to].address().to_owned());
        let ours = self.nodes[from].connect(peer, &address).unwrap();
        let up = |event: &Event| matches!(event, Event::Up { .. });
        assert_eq!(self.take(from, up), Event::Up { link: ours, peer });
        let Event::Up { link: theirs, peer } = self.take(to, up) else { unreachable!() };
        assert_eq!(peer, self.nodes[from].member());
        (ours, theirs)
    }

    /// Polls these nodes once; if nothing happened, waits a little, or moves the clock.
    pub fn step(&mut self, nodes: &[usize]) {
        let mut happened = 0;
        for &node in nodes {
            happened += self.nodes[node].poll(&mut self.events[node]);
        }
        // No short circuit: each is armed.
        let idle = nodes.iter().fold(true, |idle, &node| self.nodes[node].arm() & idle);
        if happened > 0 || !idle {
            return;
        }
        let ready = |fabric: &dyn Fabric| {
            let mut fds = [PollFd::from_borrowed_fd(fabric.wait_fd(), PollFlags::IN)];
            let wait = Timespec::default();
            poll(&mut fds, Some(&wait)) == Ok(1)
        };
        match &self.network {
            Some(network) => {
                // What has arrived at a node that is not polled is due all the time.
                let next = network.next_due().unwrap_or(Duration::from_millis(1));
                network.advance(next.max(Duration::from_micros(50)));
                for &node in nodes {
                    let is_ready = ready(self.nodes[node].as_ref());
                    let happened = self.nodes[node].poll(&mut self.events[node]);
                    assert!(is_ready || happened == 0, "node {node} was not woken");
                }
            }
            None => {
                let mut fds: Vec<_> = nodes
                    .iter()
                    .map(|&node| {
                        PollFd::from_borrowed_fd(self.nodes[node].wait_fd(), PollFlags::IN)
                    })
                    .collect();
                let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let found = poll(&mut fds, Some(&wait));
                if found != Ok(0) || !self.is_alone {
                    return;
                }
                // What comes between the wait and this is not missed: it is still to be told. A
                // deadline may pass between the two looks, and is told by the second alone.
                for &node in nodes {
                    let is_ready = ready(self.nodes[node].as_ref());
                    let before = self.events[node].len();
                    let happened = self.nodes[node].poll(&mut self.events[node]);
                    let events = &self.events[node];
                    let is_late = events[before..].iter().any(is_deadline);
                    assert!(
                        is_ready || happened == 0 || is_late,
                        "node {node} was not woken: {events:?}"
                    );
                }
            }
        }
    }

    pub fn step_all(&mut self) {
        let all: Vec<_> = (0..self.nodes.len()).collect();
        self.step(&all);
    }

    /// Steps until `done`, with all nodes.
    pub fn until(&mut self, done: impl FnMut(&mut Self) -> bool) {
        let all: Vec<_> = (0..self.nodes.len()).collect();
        self.until_with(&all, done);
    }

    pub fn until_with(&mut self, nodes: &[usize], mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "nothing comes; there is {:?}", self.events);
            self.step(nodes);
        }
    }

    /// Steps for a while on the clock of the fabrics.
    pub fn rest(&mut self, time: Duration) {
        let end = self.nodes[0].now() + time;
        // The clock of a network does not pass it.
        self.nodes[0].wake_in(time);
        self.until(|subject| subject.nodes[0].now() >= end);
    }

    /// Takes the first event of this kind out, and waits for it if there is none.
    pub fn take(&mut self, node: usize, what: impl Fn(&Event) -> bool) -> Event {
        self.until(|subject| subject.events[node].iter().any(&what));
        let at = self.events[node].iter().position(what).unwrap();
        self.events[node].remove(at)
    }

    /// The outcome of a token, with which nothing else may come.
    pub fn outcome(&mut self, node: usize, token: u64) -> Outcome {
        let done = |event: &Event| matches!(event, Event::Done { token: of, .. } if *of == token);
        let Event::Done { outcome, .. } = self.take(node, done) else { unreachable!() };
        outcome
    }

    pub fn message(&mut self, node: usize) -> (Header, Vec<u8>) {
        let message = |event: &Event| matches!(event, Event::Message { .. });
        let Event::Message { header, body, .. } = self.take(node, message) else { unreachable!() };
        (header, body)
    }

    pub fn down(&mut self, node: usize) -> (Link, Down) {
        let down = |event: &Event| matches!(event, Event::Down { .. });
        let Event::Down { link, why } = self.take(node, down) else { unreachable!() };
        (link, why)
    }

    /// Does what may find the link full, again each time that there is room.
    pub fn with_room(
        &mut self,
        node: usize,
        link: Link,
        mut call: impl FnMut(&mut dyn Fabric) -> Result<(), FabricError>,
    ) {
        while let Err(error) = call(self.nodes[node].as_mut()) {
            assert_eq!(error, FabricError::Full);
            self.take(node, |event| *event == Event::Room { link });
        }
    }

    pub fn send(&mut self, node: usize, link: Link, header: &Header, body: &[u8]) {
        self.with_room(node, link, |fabric| fabric.send(link, header, body));
    }

    pub fn pull(&mut self, node: usize, link: Link, spans: (RemoteSpan, LocalSpan), token: u64) {
        let (from, into) = spans;
        self.with_room(node, link, |fabric| fabric.pull(link, from, into, token, FAR));
    }

    pub fn push(&mut self, node: usize, link: Link, spans: (LocalSpan, RemoteSpan), token: u64) {
        let (from, to) = spans;
        self.with_room(node, link, |fabric| fabric.push(link, from, to, token, FAR));
    }

    /// Exposes memory, which has to outlive the subject or be withdrawn.
    pub fn expose(&mut self, node: usize, memory: &mut Memory, access: Access) -> Region {
        // SAFETY: the tests keep their memory to their ends, and look at it between transfers.
        unsafe { self.nodes[node].expose(memory.0.as_mut_ptr(), memory.0.len(), access) }.unwrap()
    }
}

/// Memory that is exposed.
pub struct Memory(pub Vec<u8>);

impl Memory {
    pub fn of(byte: u8, bytes: usize) -> Self {
        Self(vec![byte; bytes])
    }
}

/// Whether a time brought this event, and nothing that came from a peer.
fn is_deadline(event: &Event) -> bool {
    match event {
        Event::Done { outcome, .. } => *outcome == Outcome::Late,
        Event::Down { why, .. } => matches!(why, Down::Late | Down::Timeout | Down::Silent),
        _ => false,
    }
}

pub fn local(region: Region, offset: u64, bytes: u64) -> LocalSpan {
    LocalSpan { region, offset, bytes }
}

pub fn remote(region: Region, offset: u64, bytes: u64) -> RemoteSpan {
    RemoteSpan { region, offset, bytes }
}

/// A header whose request is a number.
pub fn numbered(request: u64) -> Header {
    Header { kind: Kind(1), request, ..Header::default() }
}
