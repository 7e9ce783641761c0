//! One TCP connection: from its first packet to its last.

use super::keys::GroupKey;
use super::session::{Out, Session};
use super::socket::{self, Moved};
use crate::ends::Target;
use crate::flow::{Core, FRAME_BULK, Flow, Roll, Sink, TimerId};
use crate::header::HEADER_BYTES;
use crate::hello::{Greeting, Hello, no_proof};
use crate::{Down, Event, Link, Refusal};
use forebay_membership::Member;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes that are read from a socket at once: some records, and little enough for the cache.
const READ_BYTES: usize = 128 << 10;

/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 64 << 10;

/// Reads, and frames written, before other connections have their turn: up to 1 MiB.
const READS_IN_TURN: u32 = 8;
const FRAMES_IN_TURN: u32 = 16;

/// Turns of reading what a peer has sent before it went: 64 MiB, more than TCP holds.
const LAST_TURNS: u32 = 64;

/// Bytes that wait for a socket at most: what was gathered, and what TLS says by itself.
const UNSENT_MAX: usize = 1 << 20;

/// What the connections of a fabric share.
pub(super) struct Shared {
    pub(super) core: Core,
    pub(super) key: GroupKey,
    pub(super) hello: Hello,
    pub(super) epoll: OwnedFd,
    /// Accepted, and not up: the oldest first.
    pub(super) unfinished: VecDeque<u64>,
    input: Box<[u8]>,
    out: Out,
    start: Instant,
}

impl Shared {
    pub(super) fn new(core: Core, key: GroupKey, hello: Hello, epoll: OwnedFd) -> Self {
        Self {
            core,
            key,
            hello,
            epoll,
            unfinished: VecDeque::new(),
            input: vec![0; READ_BYTES].into_boxed_slice(),
            out: Out::new(WRITE_BYTES + 2 * FRAME_BULK as usize),
            start: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A connection, under its key in the table and the epoll set.
pub(super) struct Conn {
    key: u64,
    socket: OwnedFd,
    /// What the epoll set is asked for.
    watched: EventFlags,
    /// None before TCP has connected.
    session: Option<Session>,
    /// Whether this side connects.
    pub(super) is_ours: bool,
    /// Where to, and None where the peer has connected.
    pub(super) target: Option<Target>,
    pub(super) timer: Option<TimerId>,
    greeting: Greeting,
    has_greeted: bool,
    /// Whether anything has come from the peer.
    pub(super) has_heard: bool,
    /// What the peer has said of itself, and what came behind that: for the fabric to go on with.
    pub(super) named: Option<(Member, Roll)>,
    early: Vec<u8>,
    /// The number of this end; 0 before it was told.
    number: u64,
    /// None before the peer has said who it is.
    pub(super) flow: Option<Flow>,
    /// The start of a record.
    rest: Vec<u8>,
    /// Written next, from `unsent_at`.
    unsent: Vec<u8>,
    unsent_at: usize,
    is_leaving: bool,
    /// Has the last frames for the peer of one that is leaving.
    last: Option<Flow>,
    pub(super) spoils: bool,
}

/// Encrypts frames.
struct Seal<'a> {
    session: &'a mut Session,
    rest: &'a mut Vec<u8>,
    out: &'a mut Out,
}

impl Sink for Seal<'_> {
    fn put(&mut self, head: &[u8], bulk: &[u8]) -> Result<(), Down> {
        self.session.write(head, self.rest, self.out)?;
        if bulk.is_empty() { Ok(()) } else { self.session.write(bulk, self.rest, self.out) }
    }
}

impl Conn {
    /// One that has been accepted, or is being made to `target`.
    pub(super) fn new(
        socket: OwnedFd,
        session: Option<Session>,
        target: Option<Target>,
        key: u64,
        shared: &Shared,
    ) -> rustix::io::Result<Self> {
        let watched = if session.is_some() { EventFlags::IN } else { EventFlags::OUT };
        epoll::add(&shared.epoll, &socket, EventData::new_u64(key), watched)?;
        Ok(Self {
            key,
            socket,
            watched,
            session,
            is_ours: target.is_some(),
            target,
            timer: None,
            greeting: Greeting::default(),
            has_greeted: false,
            has_heard: false,
            named: None,
            early: Vec::new(),
            number: 0,
            flow: None,
            rest: Vec::new(),
            unsent: Vec::new(),
            unsent_at: 0,
            is_leaving: false,
            last: None,
            spoils: false,
        })
    }

    /// Does what the socket is ready for, but for new frames.
    pub(super) fn ready(&mut self, shared: &mut Shared, flags: EventFlags) -> Result<(), Down> {
        if self.is_leaving {
            return self.leave_on(shared);
        }
        if self.session.is_none() {
            socket::check_connected(&self.socket)?;
            self.session = Some(Session::client(&shared.key)?);
            // Nothing is there: it begins.
            self.take(shared, 0)?;
        } else if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read(shared)?;
        }
        Ok(())
    }

    /// Reads what is there, up to a share.
    fn read(&mut self, shared: &mut Shared) -> Result<(), Down> {
        for _ in 0..READS_IN_TURN {
            let held = self.rest.len();
            let Some(space) = shared.input.get_mut(held..).filter(|space| !space.is_empty()) else {
                return Err(Down::Tls);
            };
            let wanted = space.len();
            let read = match socket::read(&self.socket, space)? {
                Moved::Bytes(read) => read,
                Moved::NotNow => break,
            };
            self.has_heard = true;
            shared.input[..held].copy_from_slice(&self.rest);
            self.take(shared, held + read)?;
            if read < wanted || self.named.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Takes the first `len` bytes of the input.
    fn take(&mut self, shared: &mut Shared, len: usize) -> Result<(), Down> {
        let now = shared.now();
        let Shared { core, hello, input, out, .. } = shared;
        let Conn { session, target, greeting, named, early, flow, .. } = self;
        let Some(session) = session else { return Ok(()) };
        let wanted = target.as_ref().map(|target| target.peer);
        let mut used = 0;
        let plain = |mut bytes: &[u8]| {
            if let Some(flow) = flow {
                return flow.accept(core, bytes, now);
            }
            if named.is_none() {
                *named = greeting.take(&mut bytes, hello, wanted, no_proof)?;
            }
            early.extend_from_slice(bytes);
            Ok(())
        };
        let result = session.read(&mut input[..len], &mut used, out, plain);
        self.rest.clear();
        self.rest.extend_from_slice(&input[used..len]);
        result?;
        self.write_out(shared).map(|_| ())
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Who is at the other end, or should be.
    fn peer(&self) -> Option<Member> {
        let wanted = || self.target.as_ref().map(|target| target.peer);
        self.flow.as_ref().map(Flow::peer).or_else(wanted)
    }

    /// The number of this end, if it is one to this peer, told and alive.
    pub(super) fn number_to(&self, peer: Member) -> Option<u64> {
        let is_alive = self.number > 0 && !self.is_leaving && self.peer() == Some(peer);
        is_alive.then_some(self.number)
    }

    /// Whom to tell who is here, if it is time: the side that connects begins.
    pub(super) fn to_greet(&self) -> Option<Member> {
        let can = self.session.as_ref().is_some_and(|session| !session.is_handshaking());
        let named = self.named.as_ref().map(|(peer, _)| *peer);
        self.target
            .as_ref()
            .map(|target| target.peer)
            .or(named)
            .filter(|_| can && !self.has_greeted)
    }

    /// Says who is here, and of what number this end is; or that there will be no link.
    pub(super) fn greet(&mut self, shared: &mut Shared, roll: Option<&Roll>) -> Result<(), Down> {
        let Some(session) = self.session.as_mut().filter(|session| !session.is_handshaking())
        else {
            return Ok(());
        };
        if !std::mem::replace(&mut self.has_greeted, true) {
            self.number = roll.map_or(0, |roll| roll.number);
            let frame = shared.hello.frame(self.target.as_ref().map(|target| target.peer), roll);
            session.write(&frame, &mut self.rest, &mut shared.out)?;
            self.write_out(shared)?;
        }
        Ok(())
    }

    /// Is a link from now on, to this end of the peer, and takes what came behind its greeting.
    pub(super) fn up(
        &mut self,
        shared: &mut Shared,
        (peer, roll): (Member, Roll),
    ) -> Result<(), Down> {
        let (now, link) = (shared.now(), Link(self.key));
        if let Some(id) = self.timer.take() {
            shared.core.timers.remove(id);
        }
        shared.unfinished.retain(|other| *other != self.key);
        shared.core.counters.links += 1;
        shared.core.events.push_back(Event::Up { link, peer });
        let flow = self.flow.insert(Flow::new(link, peer, roll.number));
        flow.accept(&mut shared.core, &std::mem::take(&mut self.early), now)
    }

    /// Writes frames until the socket takes no more, up to a share; whether there are more.
    pub(super) fn pump(&mut self, shared: &mut Shared) -> Result<bool, Down> {
        let mut frames = 0;
        while self.write_out(shared)? {
            let (Some(flow), Some(session)) = (&mut self.flow, &mut self.session) else {
                return Ok(false);
            };
            let Shared { core, out, .. } = &mut *shared;
            while frames < FRAMES_IN_TURN
                && out.len() < WRITE_BYTES
                && out.has_room(HEADER_BYTES + FRAME_BULK as usize)
                && flow.write_next(core, &mut Seal { session, rest: &mut self.rest, out })?
            {
                frames += 1;
            }
            if out.len() == 0 {
                return Ok(flow.has_frames());
            }
        }
        Ok(false)
    }

    /// Writes what was gathered; whether all of it is gone. The rest waits for the socket.
    fn write_out(&mut self, shared: &mut Shared) -> Result<bool, Down> {
        let Shared { out, epoll, .. } = shared;
        let out = out.take();
        if let Some(byte) = out.last_mut().filter(|_| std::mem::take(&mut self.spoils)) {
            *byte ^= 1;
        }
        let mut out = &out[..];
        loop {
            let waiting = &self.unsent[self.unsent_at..];
            let bytes = if waiting.is_empty() { out } else { waiting };
            if bytes.is_empty() {
                self.unsent = Vec::new();
                self.unsent_at = 0;
                self.watch(epoll, EventFlags::IN);
                return Ok(true);
            }
            match socket::write(&self.socket, bytes)? {
                Moved::Bytes(len) if waiting.is_empty() => out = &out[len..],
                Moved::Bytes(len) => self.unsent_at += len,
                Moved::NotNow => break,
            }
        }
        self.unsent.drain(..self.unsent_at);
        self.unsent_at = 0;
        self.unsent.extend_from_slice(out);
        self.watch(epoll, EventFlags::IN | EventFlags::OUT);
        if self.unsent.len() > UNSENT_MAX {
            return Err(Down::Refused(Refusal::Flood));
        }
        Ok(false)
    }

    fn watch(&mut self, epoll: &OwnedFd, flags: EventFlags) {
        if flags != self.watched {
            self.watched = flags;
            // It fails for what is not in the set only, and this is.
            let _ = epoll::modify(epoll, &self.socket, EventData::new_u64(self.key), flags);
        }
    }

    /// Whether what went wrong when writing was told of by the peer before.
    pub(super) fn last_word(&mut self, shared: &mut Shared) -> Option<Down> {
        if self.is_leaving || self.session.is_none() {
            return None;
        }
        (0..LAST_TURNS).find_map(|_| self.read(shared).err())
    }

    /// Goes on under another key, under which nothing is told any more: says what is left to be
    /// said, and waits for the peer to close, for a reset would take the last words with it.
    pub(super) fn leave(&mut self, shared: &mut Shared, key: u64) -> Result<(), Down> {
        self.key = key;
        // Alerts of TLS are there already.
        let _ = self.write_out(shared);
        let _ = self.greet(shared, None);
        self.last = self.flow.take();
        if let Some(flow) = &mut self.last {
            flow.leave(&shared.core);
        }
        self.is_leaving = true;
        // The key is another one.
        self.watched = EventFlags::empty();
        self.leave_on(shared)
    }

    /// Writes the rest, then says that there is no more, then waits.
    fn leave_on(&mut self, shared: &mut Shared) -> Result<(), Down> {
        if self.write_out(shared)? {
            self.flow = self.last.take();
            let mut more = Ok(true);
            while more == Ok(true) {
                more = self.pump(shared);
            }
            self.last = self.flow.take().filter(Flow::has_frames);
            more?;
            if self.last.is_none() && self.unsent.is_empty() {
                socket::end_writing(&self.socket);
            }
        }
        for _ in 0..READS_IN_TURN {
            if matches!(socket::read(&self.socket, &mut shared.input)?, Moved::NotNow) {
                break;
            }
        }
        Ok(())
    }

    /// Drops what this connection has left in the buffer that all share.
    pub(super) fn clear(shared: &mut Shared) {
        shared.out.take();
    }
}
