//! Links between node managers: requests with their answers, and bulk to and from the memory of
//! another process, one after the other, with threads that sleep while they wait. Beside what the
//! network itself does, by plain sockets that neither encrypt nor check.
//!
//! Both ends are on this machine and share its processors: the figures are floors for ratios.

use crate::measured::{Claim, Measured, Spread, Unit};
use crate::server::{Server, cpu_ns};
use crate::site::{Site, failed};
use crate::{Options, Scale};
use forebay_fabric::{
    Access, Event, Fabric, FabricError, Header, Identity, Kind, Link, LocalSpan, Outcome, Region,
    RemoteSpan, Tls,
};
use forebay_membership::Member;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The systems, as a peer is told which it is.
pub(crate) const TLS: &str = "tls";
pub(crate) const SOCKETS: &str = "sockets";
pub(crate) const UCX: &str = "ucx";

/// Those that this build has.
pub(crate) const SYSTEMS: &[&str] =
    if cfg!(feature = "ucx") { &[SOCKETS, TLS, UCX] } else { &[SOCKETS, TLS] };

const ROUNDS: u32 = 5;
/// Bytes of a request behind its header, and of its answer.
const REQUEST_BYTES: usize = 64;
/// Bytes of a transfer, each as often as the rest says.
const SIZES: [(u64, usize); 5] =
    [(4 << 10, 8000), (64 << 10, 4000), (BLOCK_BYTES, 2000), (1 << 20, 500), (16 << 20, 40)];
/// Bytes of memory at each end.
const MEMORY: u64 = 16 << 20;
/// Longer than any request takes on a machine that works.
const LIMIT: Duration = Duration::from_secs(60);

/// What moves from one node to another.
const BLOCK_BYTES: u64 = 256 << 10;
/// Blocks that are on their way at a time.
const AT_ONCE: usize = 4;

const REQUEST: &str = "request of 64 B and answer";
const BLOCK: &str = "pull 256 KiB, time";
const BULK: &str = "pull 1 GB in 256 KiB, 4 at a time";
const BULK_CPU: [&str; 2] = ["the same, processor time here", "the same, processor time there"];

/// Of a group that lives as long as the benchmark; its peers are on the same machine, which its
/// user trusts with the program's memory anyway.
const SECRET: [u8; 32] = *b"forebay bench fabric, no secret.";

/// Measures requests, pulls and pushes, over each kind of link.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn fabric(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.scale.of(ROUNDS, 1);
    let mut measured = Measured::new("fabric", "Links between node managers", rounds, is_small);
    measured.is_drawn = false;
    measured.notes.push(format!(
        "{TLS}: TLS 1.3 over TCP, as node managers speak; {SOCKETS}: the same over TCP without any protection. \
         Both ends on this machine, one operation at a time, medians of each round; bulk from and to memory that \
         both ends have used before"
    ));
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for &system in SYSTEMS {
            say(&format!("round {round}: {system}"));
            let peer = Peer::start(options, &site, system, Ipv4Addr::LOCALHOST)?;
            measure(&mut measured, options, &peer, Ipv4Addr::LOCALHOST)?;
        }
    }
    if SYSTEMS.contains(&UCX) {
        measured.notes.push(format!("{UCX}: UCX over TCP, with neither encryption nor signatures"));
    }
    measured.claims = claims();
    Ok(measured)
}

/// What is wanted of links; nothing can be said of those that this build has not.
pub(crate) fn claims() -> Vec<Claim> {
    let wanted = [(TLS, [30e-6, 250e-6, 1.0 / 1.2, 0.9]), (UCX, [25e-6, 110e-6, 1.0 / 2.5, 0.25])];
    let mut claims = Vec::new();
    for (system, [request, block, bulk, processor]) in wanted {
        claims.push(Claim::at_most(REQUEST, system, request));
        claims.push(Claim::at_most(BLOCK, system, block));
        claims.push(Claim::at_most(BULK, system, bulk));
        claims.extend(BULK_CPU.map(|work| Claim::at_most(work, system, processor)));
    }
    claims
}

/// The end that answers, and where it is found.
pub(crate) struct Peer {
    system: &'static str,
    server: Server,
    meeting: PathBuf,
}

impl Peer {
    /// Starts it at an address. One at a time.
    pub fn start(
        options: &Options,
        site: &Site,
        system: &'static str,
        own: Ipv4Addr,
    ) -> Result<Peer, String> {
        let meeting = site.path("peer");
        let _ = fs::remove_file(&meeting);
        let mut command = Command::new(&options.forebay);
        command.arg("bench-peer").arg(system).arg(&meeting).arg(own.to_string());
        let mut server = Server::start("a peer", &mut command, &site.path("peer.log"))?;
        server.wait(|| meeting.exists())?;
        Ok(Peer { system, server, meeting })
    }

    /// The other end, at an address of its own.
    fn connect(&self, own: Ipv4Addr) -> Result<Box<dyn Client>, String> {
        let said = fs::read_to_string(&self.meeting).map_err(|e| failed(&self.meeting, &e))?;
        Ok(match self.system {
            SOCKETS => Box::new(OverSockets::connect(&said)?),
            system => Box::new(OverFabric::connect(system, own, &said)?),
        })
    }
}

/// One round on one system, from an address of our own.
pub(crate) fn measure(
    measured: &mut Measured,
    options: &Options,
    peer: &Peer,
    own: Ipv4Addr,
) -> Result<(), String> {
    let client = &mut *peer.connect(own)?;
    let system = peer.system;
    let few = |count: usize| options.scale.of(count, count / 20).max(2);
    let median = |times: Vec<f64>| Spread::of(times.into_iter()).unwrap_or(Spread::UNKNOWN).median;
    // One before, so that all is there that is made once.
    client.request()?;
    let requests = (0..few(20_000)).map(|_| timed(|| client.request()));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    measured.add(REQUEST, system, Unit::Time, median(requests));
    for (bytes, count) in SIZES {
        let size = if bytes < 1 << 20 {
            format!("{} KiB", bytes >> 10)
        } else {
            format!("{} MiB", bytes >> 20)
        };
        for (what, is_pull) in [("pull", true), ("push", false)] {
            client.transfer(is_pull, bytes)?;
            let times = (0..few(count)).map(|_| timed(|| client.transfer(is_pull, bytes)));
            let took = median(times.collect::<Result<Vec<_>, _>>()?);
            measured.add(&format!("{what} {size}"), system, Unit::Bandwidth(bytes), 1.0 / took);
            if is_pull && bytes == BLOCK_BYTES {
                measured.add(BLOCK, system, Unit::Time, took);
            }
        }
    }
    let blocks = few(4000);
    let spent = || Ok::<_, String>([processor_time(), cpu_ns(peer.server.id())? as f64 / 1e9]);
    let before = spent()?;
    let took = timed(|| client.pull_blocks(blocks))?;
    let per_gb = 1e9 / (blocks as f64 * BLOCK_BYTES as f64);
    measured.add(BULK, system, Unit::Time, took * per_gb);
    for ((work, after), before) in BULK_CPU.into_iter().zip(spent()?).zip(before) {
        measured.add(work, system, Unit::Time, (after - before) * per_gb);
    }
    // What was pulled, and pushed back, is the peer's pattern.
    let is_right = client.memory().iter().zip(0..).all(|(byte, at)| *byte == pattern(at));
    if is_right { Ok(()) } else { Err("wrong bytes came over the link".to_owned()) }
}

fn timed(act: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let since = Instant::now();
    act().map(|()| since.elapsed().as_secs_f64())
}

/// Seconds that this process has had of its processors.
fn processor_time() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// The end that asks.
trait Client {
    /// Sends a request, and waits for its answer.
    fn request(&mut self) -> Result<(), String>;
    /// Bytes from the peer's memory to ours, or back, from the beginning of both.
    fn transfer(&mut self, is_pull: bool, bytes: u64) -> Result<(), String>;
    /// So many blocks from the peer's memory to ours, [`AT_ONCE`] of them at a time.
    fn pull_blocks(&mut self, count: usize) -> Result<(), String>;
    /// What was pulled.
    fn memory(&self) -> &[u8];
}

fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

/// A fabric whose thread sleeps until something happens.
pub(crate) struct Waiting {
    pub fabric: Box<dyn Fabric>,
    /// The latest first.
    events: Vec<Event>,
}

impl Waiting {
    /// Node `node` of the benchmark's group, which listens at this address.
    pub fn new(system: &str, node: u16, own: Ipv4Addr) -> Result<Waiting, String> {
        let identity = Identity { member: Member::new(node, 1), group: "bench".to_owned() };
        let listen = SocketAddr::from((own, 0));
        let fabric: Box<dyn Fabric> = match system {
            #[cfg(feature = "ucx")]
            UCX => {
                let over = forebay_fabric::Over::TrustedNetwork;
                let made = forebay_fabric::Ucx::new(identity, &SECRET, &[listen], over);
                Box::new(made.map_err(said)?)
            }
            TLS => Box::new(Tls::new(identity, &SECRET, &[listen]).map_err(said)?),
            _ => return Err(format!("{system}: no such system in this build")),
        };
        Ok(Waiting { fabric, events: Vec::new() })
    }

    /// The next event.
    pub fn next(&mut self) -> Result<Event, String> {
        let since = Instant::now();
        loop {
            if let Some(event) = self.events.pop() {
                return Ok(event);
            }
            let count = self.fabric.poll(&mut self.events);
            self.events.reverse();
            if count == 0 && self.fabric.arm() {
                self.fabric.wake_in(LIMIT);
                let mut fds = [PollFd::from_borrowed_fd(self.fabric.wait_fd(), PollFlags::IN)];
                poll(&mut fds, None).map_err(|e| format!("poll: {e}"))?;
            }
            if since.elapsed() > LIMIT {
                return Err("nothing happens on the link".to_owned());
            }
        }
    }
}

pub(crate) fn said(error: FabricError) -> String {
    error.to_string()
}

struct OverFabric {
    waiting: Waiting,
    link: Link,
    theirs: Region,
    ours: Region,
    memory: Vec<u8>,
}

impl OverFabric {
    /// By what the peer has said of itself.
    fn connect(system: &str, own: Ipv4Addr, said_by_peer: &str) -> Result<OverFabric, String> {
        let wrong = || format!("not a peer: {said_by_peer}");
        let (address, region) = said_by_peer.trim().split_once(' ').ok_or_else(wrong)?;
        let theirs = Region::from_number(region.parse().map_err(|_| wrong())?);
        let mut memory = vec![0; MEMORY as usize];
        let mut waiting = Waiting::new(system, 2, own)?;
        // SAFETY: the memory outlives the fabric, which is dropped first, and stays where it is; it
        // is looked at between transfers only.
        let ours =
            unsafe { waiting.fabric.expose(memory.as_mut_ptr(), memory.len(), Access::ReadOnly) };
        let link = waiting.fabric.connect(Member::new(1, 1), address).map_err(said)?;
        match waiting.next()? {
            Event::Up { .. } => {}
            other => return Err(format!("no link: {other:?}")),
        }
        Ok(OverFabric { waiting, link, theirs, ours: ours.map_err(said)?, memory })
    }

    /// Begins to pull the block at a place, which is its token.
    fn pull_block(&mut self, place: u64) -> Result<(), String> {
        let (offset, bytes) = (place * BLOCK_BYTES, BLOCK_BYTES);
        let from = RemoteSpan { region: self.theirs, offset, bytes };
        let into = LocalSpan { region: self.ours, offset, bytes };
        self.waiting.fabric.pull(self.link, from, into, place, LIMIT).map_err(said)
    }
}

impl Client for OverFabric {
    fn request(&mut self) -> Result<(), String> {
        let header = Header { kind: Kind(1), ..Header::default() };
        self.waiting.fabric.send(self.link, &header, &[7; REQUEST_BYTES]).map_err(said)?;
        match self.waiting.next()? {
            Event::Message { body, .. } if body == [7; REQUEST_BYTES] => Ok(()),
            other => Err(format!("no answer: {other:?}")),
        }
    }

    fn transfer(&mut self, is_pull: bool, bytes: u64) -> Result<(), String> {
        let local = LocalSpan { region: self.ours, offset: 0, bytes };
        let remote = RemoteSpan { region: self.theirs, offset: 0, bytes };
        let fabric = &mut self.waiting.fabric;
        match is_pull {
            true => fabric.pull(self.link, remote, local, 1, LIMIT),
            false => fabric.push(self.link, local, remote, 1, LIMIT),
        }
        .map_err(said)?;
        match self.waiting.next()? {
            Event::Done { outcome: Outcome::Ok, .. } => Ok(()),
            other => Err(format!("a transfer: {other:?}")),
        }
    }

    fn pull_blocks(&mut self, count: usize) -> Result<(), String> {
        let ahead = AT_ONCE.min(count);
        (0..ahead as u64).try_for_each(|place| self.pull_block(place))?;
        for done in 0..count {
            match self.waiting.next()? {
                Event::Done { outcome: Outcome::Ok, token } if done + ahead < count => {
                    self.pull_block(token)?;
                }
                Event::Done { outcome: Outcome::Ok, .. } => {}
                other => return Err(format!("a transfer: {other:?}")),
            }
        }
        Ok(())
    }

    fn memory(&self) -> &[u8] {
        &self.memory
    }
}

/// Requests of plain sockets: 0 for an answer, else how many bytes are to come or follow, with
/// the highest bit for a push.
struct OverSockets {
    socket: TcpStream,
    memory: Vec<u8>,
}

const PUSH: u64 = 1 << 63;

impl OverSockets {
    fn connect(address: &str) -> Result<OverSockets, String> {
        let wrong = |e: std::io::Error| format!("connecting to {address}: {e}");
        let socket = TcpStream::connect(address.trim()).map_err(wrong)?;
        socket.set_nodelay(true).map_err(wrong)?;
        Ok(OverSockets { socket, memory: vec![0; MEMORY as usize] })
    }
}

fn broken(error: std::io::Error) -> String {
    format!("a plain socket: {error}")
}

impl Client for OverSockets {
    fn request(&mut self) -> Result<(), String> {
        let mut bytes = [0; 8 + REQUEST_BYTES];
        self.socket.write_all(&bytes).map_err(broken)?;
        self.socket.read_exact(&mut bytes[8..]).map_err(broken)
    }

    fn transfer(&mut self, is_pull: bool, bytes: u64) -> Result<(), String> {
        let asked = if is_pull { bytes } else { bytes | PUSH };
        let part = &mut self.memory[..bytes as usize];
        self.socket.write_all(&asked.to_le_bytes()).map_err(broken)?;
        if is_pull {
            return self.socket.read_exact(part).map_err(broken);
        }
        self.socket.write_all(part).map_err(broken)?;
        self.socket.read_exact(&mut [0]).map_err(broken)
    }

    fn pull_blocks(&mut self, count: usize) -> Result<(), String> {
        for turn in 0..count + AT_ONCE {
            if turn < count {
                self.socket.write_all(&BLOCK_BYTES.to_le_bytes()).map_err(broken)?;
            }
            if turn >= AT_ONCE {
                let part = &mut self.memory[..BLOCK_BYTES as usize];
                self.socket.read_exact(part).map_err(broken)?;
            }
        }
        Ok(())
    }

    fn memory(&self) -> &[u8] {
        &self.memory
    }
}

/// The end that answers, a process of its own: listens at `own`, writes to `meeting` where it
/// is, and serves until its only client is gone.
///
/// # Errors
/// An unknown `system`, or what could not be made.
pub fn peer(system: &str, meeting: &Path, own: Ipv4Addr) -> Result<(), String> {
    match system {
        SOCKETS => serve_sockets(meeting, own),
        _ => serve_fabric(system, meeting, own),
    }
}

/// In one step, so that what is there is whole.
fn announce(meeting: &Path, text: &str) -> Result<(), String> {
    let fresh = meeting.with_extension("new");
    let done = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, meeting));
    done.map_err(|e| failed(meeting, &e))
}

fn serve_fabric(system: &str, meeting: &Path, own: Ipv4Addr) -> Result<(), String> {
    let mut memory: Vec<u8> = (0..MEMORY).map(pattern).collect();
    let mut waiting = Waiting::new(system, 1, own)?;
    // SAFETY: the memory outlives the fabric, declared after it, and is not used otherwise.
    let region =
        unsafe { waiting.fabric.expose(memory.as_mut_ptr(), memory.len(), Access::ReadWrite) };
    let region = region.map_err(said)?.number();
    announce(meeting, &format!("{} {region}", waiting.fabric.address()))?;
    loop {
        match waiting.next()? {
            Event::Message { link, header, body } => {
                waiting.fabric.send(link, &header, &body).map_err(said)?;
            }
            Event::Down { .. } => return Ok(()),
            _ => {}
        }
    }
}

fn serve_sockets(meeting: &Path, own: Ipv4Addr) -> Result<(), String> {
    let mut memory: Vec<u8> = (0..MEMORY).map(pattern).collect();
    let listener = TcpListener::bind((own, 0)).map_err(broken)?;
    announce(meeting, &listener.local_addr().map_err(broken)?.to_string())?;
    let (mut socket, _) = listener.accept().map_err(broken)?;
    socket.set_nodelay(true).map_err(broken)?;
    let mut asked = [0; 8];
    while socket.read_exact(&mut asked).is_ok() {
        let asked = u64::from_le_bytes(asked);
        let bytes = (asked & !PUSH).min(MEMORY) as usize;
        match (bytes, asked & PUSH != 0) {
            (0, _) => {
                let mut request = [0; REQUEST_BYTES];
                socket.read_exact(&mut request).map_err(broken)?;
                socket.write_all(&request).map_err(broken)?;
            }
            (_, false) => socket.write_all(&memory[..bytes]).map_err(broken)?,
            (_, true) => {
                socket.read_exact(&mut memory[..bytes]).map_err(broken)?;
                socket.write_all(&[0]).map_err(broken)?;
            }
        }
    }
    Ok(())
}
