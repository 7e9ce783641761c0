//! One connection: from its first message to its last.
//!
//! Each side begins with a preface: what it speaks, and a nonce. Its first frame follows, with a
//! proof behind it that it has the group's secret: a keyed hash of the frame and both nonces. So
//! nothing of an earlier connection can be said again, and what one side has said is no proof of
//! the other, since the hash names the side. After that nothing is encrypted or signed.

use super::engine::{Endpoint, Engine, Sending};
use crate::ends::Target;
use crate::flow::{Core, FRAME_BULK, Flow, Roll, Sink, TimerId};
use crate::header::HEADER_BYTES;
use crate::hello::{Greeting, Hello};
use crate::{Differs, Down, Event, Link, Refusal};
use forebay_membership::Member;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What every connection begins with.
const SPOKEN: [u8; 8] = *b"forebay\x01";

/// Random bytes of each side.
const NONCE_BYTES: usize = 32;

const PREFACE_BYTES: usize = SPOKEN.len() + NONCE_BYTES;

/// Of HMAC-SHA256.
pub(super) const PROOF_BYTES: usize = 32;

/// Bytes of one message of UCX, with one frame more at most: they fit into one segment.
const MESSAGE_BYTES: usize = 128 << 10;

/// Bytes that UCX has and has not sent, at most, with one message more.
const UNSENT_MAX: usize = 512 << 10;

/// Messages of UCX that a connection sends before others have their turn.
const MESSAGES_IN_TURN: u32 = 8;

/// What the connections of a fabric share.
pub(super) struct Shared {
    pub(super) core: Core,
    pub(super) engine: Engine,
    pub(super) proof: hmac::Key,
    pub(super) hello: Hello,
    /// Accepted, and not up: the oldest first.
    pub(super) unfinished: VecDeque<u64>,
    random: SystemRandom,
    start: Instant,
}

impl Shared {
    pub(super) fn new(core: Core, engine: Engine, proof: hmac::Key, hello: Hello) -> Self {
        Self {
            core,
            engine,
            proof,
            hello,
            unfinished: VecDeque::new(),
            random: SystemRandom::new(),
            start: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A connection, under its key in the table.
pub(super) struct Conn {
    pub(super) key: u64,
    pub(super) endpoint: Endpoint,
    /// Whether this side connects.
    pub(super) is_ours: bool,
    /// Where to, and None where the peer has connected.
    pub(super) target: Option<Target>,
    pub(super) timer: Option<TimerId>,
    nonce: [u8; NONCE_BYTES],
    /// The peer's preface, until it is whole.
    preface: Vec<u8>,
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
    /// The number of the next message of UCX in each direction.
    next_in: u64,
    next_out: u64,
    /// Gathered, and not given to UCX.
    out: Vec<u8>,
    sends: VecDeque<Sending>,
    unsent: usize,
    /// Only last words are said, and nothing is heard.
    pub(super) is_leaving: bool,
    pub(super) spoils: bool,
}

/// Gathers frames.
struct Gather<'a> {
    out: &'a mut Vec<u8>,
    spoils: &'a mut bool,
}

impl Sink for Gather<'_> {
    fn put(&mut self, head: &[u8], bulk: &[u8]) -> Result<(), Down> {
        self.out.extend_from_slice(head);
        // The checksum of a frame is that of its header and body.
        if let Some(byte) = self.out.last_mut().filter(|_| std::mem::take(self.spoils)) {
            *byte ^= 1;
        }
        self.out.extend_from_slice(bulk);
        Ok(())
    }
}

impl Conn {
    /// One that has been accepted, or is being made to `target`. Its preface is on its way.
    pub(super) fn new(
        endpoint: Endpoint,
        target: Option<Target>,
        key: u64,
        shared: &mut Shared,
    ) -> Self {
        let mut made = Self {
            key,
            endpoint,
            is_ours: target.is_some(),
            target,
            timer: None,
            nonce: [0; NONCE_BYTES],
            preface: Vec::new(),
            greeting: Greeting::with_proof(PROOF_BYTES),
            has_greeted: false,
            has_heard: false,
            named: None,
            early: Vec::new(),
            number: 0,
            flow: None,
            next_in: 0,
            next_out: 0,
            out: Vec::new(),
            sends: VecDeque::new(),
            unsent: 0,
            is_leaving: false,
            spoils: false,
        };
        // Without random numbers nothing is sent, and the connection ends at its time.
        if shared.random.fill(&mut made.nonce).is_ok() {
            made.out.extend(SPOKEN);
            made.out.extend(made.nonce);
            made.write_out(shared);
        }
        made
    }

    /// Takes a message of UCX.
    pub(super) fn take(
        &mut self,
        shared: &mut Shared,
        number: u64,
        mut bytes: &[u8],
    ) -> Result<(), Down> {
        // Some may have come before it left, and were dropped.
        if self.is_leaving {
            return Ok(());
        }
        // UCX keeps the order of one lane, and promises nothing.
        if number != self.next_in {
            return Err(Down::Refused(Refusal::Order));
        }
        self.next_in += 1;
        self.has_heard = true;
        let now = shared.now();
        if let Some(flow) = &mut self.flow {
            return flow.accept(&mut shared.core, bytes, now);
        }
        let wanted = PREFACE_BYTES - self.preface.len();
        let (now, later) = bytes.split_at(wanted.min(bytes.len()));
        self.preface.extend_from_slice(now);
        bytes = later;
        let spoken = self.preface.len().min(SPOKEN.len());
        if self.preface[..spoken] != SPOKEN[..spoken] {
            let is_ours = spoken == SPOKEN.len() && self.preface[..7] == SPOKEN[..7];
            return Err(if is_ours { Down::Mismatch(Differs::Version) } else { Down::Tls });
        }
        if self.named.is_none() && self.preface.len() == PREFACE_BYTES {
            let wanted = self.target.as_ref().map(|target| target.peer);
            let keyed = self.keyed(!self.is_ours);
            let check = |frame: &[u8], proof: &[u8]| {
                let said = [&keyed[..], frame].concat();
                hmac::verify(&shared.proof, &said, proof).map_err(|_| Down::Tls)
            };
            self.named = self.greeting.take(&mut bytes, &shared.hello, wanted, check)?;
        }
        self.early.extend_from_slice(bytes);
        Ok(())
    }

    /// What stands before a frame that is proved: the side that says it, and both nonces.
    fn keyed(&self, by_the_one_that_connects: bool) -> Vec<u8> {
        let theirs = &self.preface[SPOKEN.len()..];
        let (first, second) = match self.is_ours {
            true => (&self.nonce[..], theirs),
            false => (theirs, &self.nonce[..]),
        };
        [&[u8::from(by_the_one_that_connects)], first, second].concat()
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

    fn has_preface(&self) -> bool {
        self.preface.len() == PREFACE_BYTES
    }

    /// Whom to tell who is here, if it is time: the side that connects begins.
    pub(super) fn to_greet(&self) -> Option<Member> {
        let named = self.named.as_ref().map(|(peer, _)| *peer);
        let wanted = self.target.as_ref().map(|target| target.peer);
        wanted.or(named).filter(|_| self.has_preface() && !self.has_greeted)
    }

    /// Says who is here, and of what number this end is; or that there will be no link.
    pub(super) fn greet(&mut self, shared: &mut Shared, roll: Option<&Roll>) {
        if self.has_preface() && !std::mem::replace(&mut self.has_greeted, true) {
            self.number = roll.map_or(0, |roll| roll.number);
            let frame = shared.hello.frame(self.target.as_ref().map(|target| target.peer), roll);
            let said = [&self.keyed(self.is_ours)[..], &frame].concat();
            self.out.extend(&frame);
            self.out.extend(hmac::sign(&shared.proof, &said).as_ref());
            self.write_out(shared);
        }
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

    /// Gives frames to UCX until it has enough, up to a share; whether there is more to do now.
    pub(super) fn pump(&mut self, shared: &mut Shared) -> Result<bool, Down> {
        self.reap(shared);
        for _ in 0..MESSAGES_IN_TURN {
            if self.unsent >= UNSENT_MAX {
                // Goes on when UCX has sent some.
                return Ok(false);
            }
            let Some(flow) = &mut self.flow else { return Ok(false) };
            let Conn { out, spoils, .. } = self;
            while out.len() < MESSAGE_BYTES
                && flow.write_next(&mut shared.core, &mut Gather { out, spoils })?
            {}
            if !self.write_out(shared) {
                return Ok(false);
            }
        }
        Ok(self.flow.as_ref().is_some_and(Flow::has_frames) && self.unsent < UNSENT_MAX)
    }

    /// Gives what was gathered to UCX; whether there was something.
    fn write_out(&mut self, shared: &mut Shared) -> bool {
        if self.out.is_empty() {
            return false;
        }
        let bytes = std::mem::take(&mut self.out);
        debug_assert!(bytes.len() <= MESSAGE_BYTES + FRAME_BULK as usize + HEADER_BYTES);
        // What fails here is told of as the connection's end.
        if let Ok(Some(sending)) = shared.engine.send(&self.endpoint, self.next_out, bytes) {
            self.unsent += sending.len();
            self.sends.push_back(sending);
        }
        self.next_out += 1;
        true
    }

    /// Frees what UCX has sent; whether nothing is left.
    pub(super) fn reap(&mut self, shared: &mut Shared) -> bool {
        while self.sends.front().is_some_and(|sending| shared.engine.is_done(sending))
            && let Some(sending) = self.sends.pop_front()
        {
            self.unsent -= sending.len();
            shared.engine.release(sending);
        }
        self.sends.is_empty()
    }

    /// Says what is left to be said, and from now on waits for the peer to close.
    pub(super) fn leave(&mut self, shared: &mut Shared, key: u64) {
        self.key = key;
        self.greet(shared, None);
        if let Some(flow) = &mut self.flow {
            flow.leave(&shared.core);
        }
        self.is_leaving = true;
        // A flow that leaves has a few answers at most.
        let _ = self.pump(shared);
    }

    /// Closes it at once.
    pub(super) fn close(self, shared: &mut Shared) {
        shared.engine.close(self.endpoint, self.sends);
    }
}
