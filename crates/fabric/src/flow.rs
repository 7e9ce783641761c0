//! What goes over one link, without the link: which frame is next, and what a frame that came
//! leads to. The same for all implementations.
//!
//! A message is a header and its body. A transfer moves in frames of a header without a body, and
//! up to [`FRAME_BULK`] bytes behind it, which go from memory to memory; its sum is that of the
//! header, the bytes are left to the carrier. Messages go between the frames of transfers, and
//! transfers take turns.

mod accept;
mod core;
mod peers;
#[cfg(test)]
mod tests;

pub(crate) use self::core::{Core, Timer, TimerId};
pub(crate) use self::peers::Roll;

use self::accept::Reading;
use self::core::Traffic;
use crate::header::{BODY_MAX, HEADER_BYTES};
use crate::regions::Use;
use crate::{
    Down, Event, FabricError, Header, Kind, Link, LinkStatus, LocalSpan, Outcome, QUEUE_MAX,
    Refusal, Region, RemoteSpan, SPAN_MAX, TRANSFERS_MAX,
};
use forebay_membership::Member;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes of bulk behind one header at most: a message waits for no more, and a header for each is
/// a thousandth.
pub(crate) const FRAME_BULK: u64 = 64 << 10;

/// Answers that may wait for a peer that asks and does not read: 512 KiB.
const URGENT_MAX: usize = 8192;

/// Messages that go before a frame of bulk, if both wait.
const MESSAGES_IN_TURN: u32 = 16;

/// Between pings of a link that is in use.
const PING_TIME: Duration = Duration::from_secs(1);
/// The same of a link of which few pings are known.
const FIRST_PING_TIME: Duration = Duration::from_millis(10);

/// How long a transfer may take at most: a year.
const WITHIN_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The last frame of a push.
const LAST: u16 = 1;

/// Takes frames, one after the other.
pub(crate) trait Sink {
    /// Takes a frame that consists of both.
    fn put(&mut self, head: &[u8], bulk: &[u8]) -> Result<(), Down>;
}

/// The state of a link that is up.
pub(crate) struct Flow {
    link: Link,
    peer: Member,
    /// The number of the peer's end.
    number: u64,
    /// The peer is to hear which ends of this side are alive, before anything else.
    roll: Option<Roll>,
    /// Requests and answers of the fabric itself, which have no body.
    urgent: VecDeque<[u8; HEADER_BYTES]>,
    /// With their headers.
    messages: VecDeque<Vec<u8>>,
    queued: usize,
    since_bulk: u32,
    /// A message was answered `Full`, or a transfer.
    wants_queue: bool,
    wants_transfer: bool,
    turns: VecDeque<Turn>,
    /// Transfers that this side began, by the number of the request.
    ours: BTreeMap<u64, Ours>,
    /// Pulls that this side has ended and the peer still answers, with the bytes that are to come.
    abandoned: BTreeMap<u64, u64>,
    /// A push was late of which bytes are under way.
    has_cut: bool,
    /// Of the next request; 0 is none.
    next_request: u64,
    /// Pulls of the peer under way.
    theirs: usize,
    reading: Reading,
    /// When the ping was sent, and whether it was answered.
    pinged: Option<(Duration, bool)>,
    traffic: Traffic,
}

/// A transfer of this side.
struct Ours {
    token: u64,
    timer: TimerId,
    what: Transfer,
    /// Bytes that have come, or were sent.
    moved: u64,
}

enum Transfer {
    Pull(LocalSpan),
    Push(LocalSpan, RemoteSpan),
}

impl Ours {
    fn local(&self) -> LocalSpan {
        match self.what {
            Transfer::Pull(local) | Transfer::Push(local, _) => local,
        }
    }

    fn is_half_pushed(&self) -> bool {
        matches!(self.what, Transfer::Push(..)) && self.moved > 0
    }
}

/// What sends bulk, a frame each time.
enum Turn {
    /// A pull of the peer: bytes of this region.
    Serve { request: u64, region: Region, offset: u64, sent: u64, bytes: u64 },
    /// A push of this side.
    Push(u64),
}

impl Flow {
    /// One to an end of the peer that has this number.
    pub(crate) fn new(link: Link, peer: Member, number: u64) -> Self {
        Self {
            link,
            peer,
            number,
            roll: None,
            urgent: VecDeque::new(),
            messages: VecDeque::new(),
            queued: 0,
            since_bulk: 0,
            wants_queue: false,
            wants_transfer: false,
            turns: VecDeque::new(),
            ours: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            has_cut: false,
            next_request: 1,
            theirs: 0,
            reading: Reading::default(),
            pinged: None,
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn status(&self) -> LinkStatus {
        self.traffic.status(self.link, self.peer)
    }

    pub(crate) fn peer(&self) -> Member {
        self.peer
    }

    /// Whether the peer has said that its end is over.
    pub(crate) fn is_over(&self, core: &Core) -> bool {
        core.peers.is_over(self.peer, self.number)
    }

    /// Whether bytes of a push may be under way of which the peer has not said that it has them.
    pub(crate) fn has_half_pushed(&self) -> bool {
        self.has_cut || self.ours.values().any(Ours::is_half_pushed)
    }

    /// Tells the peer which ends of this side are alive; what was to be told before is old.
    pub(crate) fn tell(&mut self, roll: Roll) {
        self.roll = Some(roll);
    }

    /// Queues a message, or says that there is no room.
    pub(crate) fn send(
        &mut self,
        core: &Core,
        header: &Header,
        body: &[u8],
        now: Duration,
    ) -> Result<(), FabricError> {
        if header.kind.is_own() {
            return Err(FabricError::Kind);
        }
        if body.len() > BODY_MAX {
            return Err(FabricError::Length);
        }
        if self.queued + HEADER_BYTES + body.len() > QUEUE_MAX {
            self.wants_queue = true;
            return Err(FabricError::Full);
        }
        let head = Header { sender: core.me, ..*header }.write(body);
        self.queued += HEADER_BYTES + body.len();
        self.messages.push_back([&head, body].concat());
        self.note_use(core.me, now);
        Ok(())
    }

    pub(crate) fn pull(
        &mut self,
        core: &mut Core,
        (from, into): (RemoteSpan, LocalSpan),
        token: u64,
        (now, within): (Duration, Duration),
    ) -> Result<(), FabricError> {
        if let Some(request) = self.begin(core, from, into, token)? {
            let deadline = now + within.min(WITHIN_MAX);
            self.own(core.me, pull_request(request, from));
            self.insert(core, request, token, deadline, Transfer::Pull(into));
            self.note_use(core.me, now);
        }
        Ok(())
    }

    pub(crate) fn push(
        &mut self,
        core: &mut Core,
        (from, to): (LocalSpan, RemoteSpan),
        token: u64,
        (now, within): (Duration, Duration),
    ) -> Result<(), FabricError> {
        if let Some(request) = self.begin(core, to, from, token)? {
            let deadline = now + within.min(WITHIN_MAX);
            self.turns.push_back(Turn::Push(request));
            self.insert(core, request, token, deadline, Transfer::Push(from, to));
            self.note_use(core.me, now);
        }
        Ok(())
    }

    /// The number of a new request, if its spans can be right; else its token has ended.
    fn begin(
        &mut self,
        core: &mut Core,
        remote: RemoteSpan,
        local: LocalSpan,
        token: u64,
    ) -> Result<Option<u64>, FabricError> {
        if self.ours.len() + self.abandoned.len() >= TRANSFERS_MAX {
            self.wants_transfer = true;
            return Err(FabricError::Full);
        }
        let LocalSpan { region, offset, bytes } = local;
        if remote.offset.checked_add(bytes).is_none()
            || remote.bytes != bytes
            || bytes > SPAN_MAX
            || core.regions.check(region, offset, bytes, Use::Own).is_err()
        {
            core.done(token, Outcome::Refused);
            return Ok(None);
        }
        self.next_request += 1;
        Ok(Some(self.next_request - 1))
    }

    fn insert(
        &mut self,
        core: &mut Core,
        request: u64,
        token: u64,
        deadline: Duration,
        what: Transfer,
    ) {
        let timer = core.timers.add(deadline, Timer::Transfer(self.link.0, request));
        self.ours.insert(request, Ours { token, timer, what, moved: 0 });
    }

    /// Ends a transfer of this side, if it has not ended.
    pub(crate) fn end(&mut self, core: &mut Core, request: u64, outcome: Outcome) {
        let Some(ours) = self.ours.remove(&request) else { return };
        core.timers.remove(ours.timer);
        core.done(ours.token, outcome);
        self.has_cut |= outcome == Outcome::Late && ours.is_half_pushed();
        if matches!(ours.what, Transfer::Push(from, _) if ours.moved < from.bytes.max(1)) {
            self.turns.retain(|turn| !matches!(turn, Turn::Push(of) if *of == request));
        }
        self.give_room(core);
    }

    /// Ends all of them.
    pub(crate) fn end_all(&mut self, core: &mut Core) {
        (self.wants_queue, self.wants_transfer) = (false, false);
        for request in self.ours.keys().copied().collect::<Vec<_>>() {
            self.end(core, request, Outcome::Gone);
        }
    }

    /// Ends those that use a region which was withdrawn.
    ///
    /// # Errors
    /// The link has to go down: bytes of a push that cannot be called back may still get there.
    pub(crate) fn withdrawn(&mut self, core: &mut Core, region: Region) -> Result<(), Down> {
        let uses = |ours: &Ours| ours.local().region == region;
        if self.ours.values().any(|ours| uses(ours) && ours.is_half_pushed()) {
            return Err(Down::Withdrawn);
        }
        let found = self.ours.iter().filter(|(_, ours)| uses(ours)).map(|(request, _)| *request);
        for request in found.collect::<Vec<_>>() {
            if let Some(Ours { what: Transfer::Pull(into), moved, .. }) = self.ours.get(&request) {
                self.abandoned.insert(request, into.bytes - moved);
            }
            self.end(core, request, Outcome::Refused);
        }
        Ok(())
    }

    /// Tells of room for what was answered `Full`, once half of it is free.
    fn give_room(&mut self, core: &mut Core) {
        let has_queue = self.queued <= QUEUE_MAX / 2;
        let has_transfer = self.ours.len() + self.abandoned.len() <= TRANSFERS_MAX / 2;
        for (wants, has) in
            [(&mut self.wants_queue, has_queue), (&mut self.wants_transfer, has_transfer)]
        {
            if *wants && has {
                *wants = false;
                core.events.push_back(Event::Room { link: self.link });
            }
        }
    }

    /// Asks for the time that a frame takes to the peer and back, once in a while.
    fn note_use(&mut self, me: Member, now: Duration) {
        let is_known = self.traffic.round_trips.are_enough();
        let between = if is_known { PING_TIME } else { FIRST_PING_TIME };
        let due = match self.pinged {
            None => true,
            Some((at, answered)) => answered && now >= at + between,
        };
        if due {
            self.pinged = Some((now, false));
            self.own(me, Header { kind: Kind::PING, ..Header::default() });
        }
    }

    /// Queues a frame of the fabric itself.
    fn own(&mut self, me: Member, header: Header) {
        self.urgent.push_back(Header { sender: me, ..header }.write(&[]));
    }

    /// As [`Flow::own`], for what the peer has asked for.
    fn answer(&mut self, me: Member, kind: Kind, request: u64) -> Result<(), Down> {
        if self.urgent.len() >= URGENT_MAX {
            return Err(Down::Refused(Refusal::Flood));
        }
        self.own(me, Header { kind, request, ..Header::default() });
        Ok(())
    }

    /// Drops all but the answers, and says that the peer has to go.
    pub(crate) fn leave(&mut self, core: &Core) {
        self.messages.clear();
        self.turns.clear();
        self.roll = None;
        self.own(core.me, Header { kind: Kind::REFUSAL, ..Header::default() });
    }

    /// Whether [`Flow::write_next`] has something.
    pub(crate) fn has_frames(&self) -> bool {
        let is_empty = self.urgent.is_empty() && self.messages.is_empty() && self.turns.is_empty();
        !is_empty || self.roll.is_some()
    }

    /// Gives the next frame to `sink`; false if there is none.
    pub(crate) fn write_next(
        &mut self,
        core: &mut Core,
        sink: &mut impl Sink,
    ) -> Result<bool, Down> {
        if let Some(roll) = self.roll.take() {
            let body = roll.write();
            let head = Header { kind: Kind::ROLL, sender: core.me, ..Header::default() };
            self.traffic.bytes_out += (HEADER_BYTES + body.len()) as u64;
            sink.put(&[&head.write(&body)[..], &body].concat(), &[])?;
            return Ok(true);
        }
        loop {
            if let Some(head) = self.urgent.pop_front() {
                self.traffic.bytes_out += HEADER_BYTES as u64;
                sink.put(&head, &[])?;
                return Ok(true);
            }
            let is_bulks_turn = !self.turns.is_empty() && self.since_bulk >= MESSAGES_IN_TURN;
            if !is_bulks_turn && let Some(message) = self.messages.pop_front() {
                self.since_bulk = if self.turns.is_empty() { 0 } else { self.since_bulk + 1 };
                self.queued -= message.len();
                self.traffic.bytes_out += message.len() as u64;
                self.give_room(core);
                sink.put(&message, &[])?;
                return Ok(true);
            }
            self.since_bulk = 0;
            let sent = match self.turns.pop_front() {
                None => return Ok(false),
                Some(turn @ Turn::Serve { .. }) => self.serve(core, turn, sink)?,
                Some(Turn::Push(request)) => self.push_on(core, request, sink)?,
            };
            if sent {
                return Ok(true);
            }
            // Its transfer has ended: the next one.
        }
    }

    /// Sends the next bytes of a pull of the peer.
    fn serve(&mut self, core: &mut Core, turn: Turn, sink: &mut impl Sink) -> Result<bool, Down> {
        let Turn::Serve { request, region, offset, sent, bytes } = turn else { return Ok(false) };
        let now = (bytes - sent).min(FRAME_BULK);
        let Ok(bulk) = core.regions.bytes(region, offset + sent, now as usize, Use::Pull) else {
            // Withdrawn since.
            self.theirs -= 1;
            core.refuse(Refusal::Region);
            self.answer(core.me, Kind::REFUSAL, request)?;
            return Ok(false);
        };
        let header = Header {
            kind: Kind::PULL_DATA,
            sender: core.me,
            request,
            first_block: sent,
            count: now as u32,
            ..Header::default()
        };
        self.traffic.bytes_out += HEADER_BYTES as u64 + now;
        sink.put(&header.write(&[]), bulk)?;
        let sent = sent + now;
        if sent < bytes {
            self.turns.push_back(Turn::Serve { request, region, offset, sent, bytes });
        } else {
            self.theirs -= 1;
        }
        Ok(true)
    }

    /// Sends the next bytes of a push of this side.
    fn push_on(
        &mut self,
        core: &mut Core,
        request: u64,
        sink: &mut impl Sink,
    ) -> Result<bool, Down> {
        let Some(ours) = self.ours.get_mut(&request) else { return Ok(false) };
        let Transfer::Push(from, to) = ours.what else { return Ok(false) };
        let (sent, now) = (ours.moved, (from.bytes - ours.moved).min(FRAME_BULK));
        let found = core.regions.bytes(from.region, from.offset + sent, now as usize, Use::Own);
        let Ok(bulk) = found else { return Ok(false) };
        ours.moved += now;
        let last = ours.moved == from.bytes;
        let header = Header {
            kind: Kind::PUSH_DATA,
            flags: if last { LAST } else { 0 },
            sender: core.me,
            request,
            file: to.region.0,
            first_block: to.offset + sent,
            count: now as u32,
            ..Header::default()
        };
        self.traffic.bytes_out += HEADER_BYTES as u64 + now;
        sink.put(&header.write(&[]), bulk)?;
        if !last {
            self.turns.push_back(Turn::Push(request));
        }
        Ok(true)
    }
}

fn pull_request(request: u64, from: RemoteSpan) -> Header {
    Header {
        kind: Kind::PULL,
        request,
        file: from.region.0,
        first_block: from.offset,
        count: from.bytes as u32,
        ..Header::default()
    }
}
