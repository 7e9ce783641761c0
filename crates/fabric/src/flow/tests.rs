//! A peer that sends anything.

use super::{Core, Flow, Sink, URGENT_MAX, WITHIN_MAX};
use crate::header::HEADER_BYTES;
use crate::{
    Access, BODY_MAX, Down, Event, FabricError, Header, Kind, Link, LocalSpan, Outcome, Region,
    RemoteSpan, TRANSFERS_MAX,
};
use forebay_membership::Member;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ME: Member = Member::new(1, 1);
const PEER: Member = Member::new(2, 1);

struct Swallow(u64);

impl Sink for Swallow {
    fn put(&mut self, head: &[u8], bulk: &[u8]) -> Result<(), Down> {
        assert!(head.len() >= HEADER_BYTES);
        self.0 += (head.len() + bulk.len()) as u64;
        Ok(())
    }
}

/// Keeps what is sent.
struct Gather(Vec<u8>);

impl Sink for Gather {
    fn put(&mut self, head: &[u8], bulk: &[u8]) -> Result<(), Down> {
        self.0.extend(head);
        self.0.extend(bulk);
        Ok(())
    }
}

/// One side, with memory of 300 KiB that is exposed.
struct Side {
    core: Core,
    flow: Flow,
    memory: Vec<u8>,
    region: Region,
}

impl Side {
    fn new(me: Member, peer: Member) -> Self {
        let (core, flow) = (Core::new(me), Flow::new(Link(1), peer, 1));
        let mut side = Self { core, flow, memory: vec![1; 300 << 10], region: Region(0) };
        side.expose();
        side
    }

    fn expose(&mut self) {
        let (at, bytes) = (self.memory.as_mut_ptr(), self.memory.len());
        // SAFETY: the memory lives as long as the regions, and is not looked at before.
        self.region = unsafe { self.core.regions.expose(at, bytes, Access::ReadWrite) }.unwrap();
    }

    fn withdraw(&mut self) -> Result<(), Down> {
        self.core.regions.remove(self.region).unwrap();
        self.flow.withdrawn(&mut self.core, self.region)
    }

    fn pull(&mut self, from: Region, bytes: u64) -> Result<(), FabricError> {
        let spans = (
            RemoteSpan { region: from, offset: 0, bytes },
            LocalSpan { region: self.region, offset: 0, bytes },
        );
        self.flow.pull(&mut self.core, spans, 7, (Duration::ZERO, Duration::MAX))
    }

    fn push(&mut self, to: Region, bytes: u64) -> Result<(), FabricError> {
        let spans = (
            LocalSpan { region: self.region, offset: 0, bytes },
            RemoteSpan { region: to, offset: 0, bytes },
        );
        self.flow.push(&mut self.core, spans, 8, (Duration::ZERO, Duration::MAX))
    }

    /// Sends so many frames at most to the other; how many there were.
    fn send_to(&mut self, other: &mut Side, most: usize) -> usize {
        for count in 0..most {
            let mut frame = Gather(Vec::new());
            if !self.flow.write_next(&mut self.core, &mut frame).unwrap() {
                return count;
            }
            other.flow.accept(&mut other.core, &frame.0, Duration::ZERO).unwrap();
        }
        most
    }

    fn rooms(&mut self) -> usize {
        self.core.events.drain(..).filter(|event| matches!(event, Event::Room { .. })).count()
    }

    fn outcomes(&mut self) -> Vec<Outcome> {
        let events = self.core.events.drain(..);
        let outcomes = events.filter_map(|event| match event {
            Event::Done { outcome, .. } => Some(outcome),
            _ => None,
        });
        outcomes.collect()
    }
}

fn sides() -> (Side, Side) {
    (Side::new(ME, PEER), Side::new(PEER, ME))
}

#[test]
fn pulls_that_are_given_up_are_counted_until_they_are_answered() {
    let (mut one, mut two) = sides();
    // More rounds than the peer takes, none of which it has answered.
    for round in 0..3 {
        for number in 0..TRANSFERS_MAX {
            let begun = one.pull(two.region, 100 << 10);
            assert_eq!(begun.is_ok(), round == 0, "{round} {number} {begun:?}");
        }
        assert_eq!(one.withdraw(), Ok(()));
        one.expose();
        one.send_to(&mut two, usize::MAX);
    }
    assert_eq!(one.outcomes(), vec![Outcome::Refused; TRANSFERS_MAX]);
    // One that is answered in the middle of being given up, and refusals, count too.
    two.send_to(&mut one, TRANSFERS_MAX);
    assert_eq!((one.rooms(), one.flow.abandoned.len()), (0, TRANSFERS_MAX));
    two.send_to(&mut one, 3 * TRANSFERS_MAX / 4);
    assert_eq!(one.rooms(), 1);
    two.withdraw().unwrap();
    two.send_to(&mut one, usize::MAX);
    assert_eq!((one.flow.abandoned.len(), two.flow.theirs), (0, 0));
    two.expose();
    assert_eq!(one.pull(two.region, 5), Ok(()));
    one.send_to(&mut two, usize::MAX);
    two.send_to(&mut one, usize::MAX);
    assert_eq!(one.outcomes(), [Outcome::Ok]);
}

#[test]
fn pushes_that_are_given_up_leave_nothing() {
    let (mut one, two) = sides();
    for _ in 0..3 {
        for _ in 0..TRANSFERS_MAX {
            assert_eq!(one.push(two.region, 1 << 10), Ok(()));
        }
        assert_eq!(one.withdraw(), Ok(()));
        one.expose();
        assert!(one.flow.turns.is_empty() && one.flow.urgent.len() <= 1, "more than a ping");
    }
    assert_eq!(one.outcomes(), vec![Outcome::Refused; 3 * TRANSFERS_MAX]);
}

#[test]
fn a_push_is_refused_only_if_nothing_of_it_has_left() {
    let (mut one, mut two) = sides();
    one.push(two.region, 100 << 10).unwrap();
    // A ping, and a frame of bulk.
    assert_eq!(one.send_to(&mut two, 2), 2);
    assert_eq!(one.withdraw(), Err(Down::Withdrawn));
    assert!(one.flow.has_half_pushed());
    assert_eq!(one.outcomes(), []);
    one.flow.end_all(&mut one.core);
    assert_eq!(one.outcomes(), [Outcome::Gone]);
}

#[test]
fn room_comes_for_what_was_full() {
    let (mut one, mut two) = sides();
    let header = Header { kind: Kind(1), ..Header::default() };
    let fill = |one: &mut Side| {
        while one.flow.send(&one.core, &header, &[0; BODY_MAX], Duration::ZERO).is_ok() {}
    };
    // Messages have room, however many transfers there are.
    for _ in 0..TRANSFERS_MAX {
        one.pull(two.region, 1).unwrap();
    }
    fill(&mut one);
    one.send_to(&mut two, usize::MAX);
    assert_eq!((one.rooms(), one.flow.ours.len()), (1, TRANSFERS_MAX));
    // And transfers, however full of messages the link is; if both were full, each is told.
    assert_eq!(one.pull(two.region, 1), Err(FabricError::Full));
    fill(&mut one);
    two.send_to(&mut one, usize::MAX);
    assert_eq!(one.rooms(), 1);
    one.send_to(&mut two, usize::MAX);
    assert_eq!(one.rooms(), 1);
}

#[test]
fn no_time_is_too_long() {
    let (mut one, two) = sides();
    one.pull(two.region, 1).unwrap();
    assert_eq!(one.core.timers.first(), Some(WITHIN_MAX));
    assert_eq!(one.outcomes(), []);
}

#[test]
fn what_is_over_does_not_hold_up_what_waits() {
    let (mut one, mut two) = sides();
    // Pulls that the peer gives up, and a message behind them.
    for _ in 0..40 {
        two.pull(one.region, 1).unwrap();
    }
    two.send_to(&mut one, usize::MAX);
    one.push(two.region, 1 << 10).unwrap();
    assert_eq!(one.withdraw(), Ok(()));
    let header = Header { kind: Kind(1), request: 9, ..Header::default() };
    for _ in 0..40 {
        one.flow.send(&one.core, &header, &[], Duration::ZERO).unwrap();
    }
    one.send_to(&mut two, usize::MAX);
    let came = |event: &&Event| matches!(event, Event::Message { .. });
    assert_eq!(two.core.events.iter().filter(came).count(), 40);
    assert!(!one.flow.has_frames());
}

fn seed() -> u64 {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    seed
}

/// A frame whose sum is right, and with luck the rest.
fn frame(rng: &mut SmallRng, regions: &[Region]) -> Vec<u8> {
    let odd = |rng: &mut SmallRng| rng.random_range(0..60) == 0;
    let usual =
        [Kind(1), Kind::PULL, Kind::PULL_DATA, Kind::PUSH_DATA, Kind::PUSH_DATA, Kind::PING];
    let kind = match odd(rng) {
        true => Kind(rng.random_range(Kind::OWN.0..=Kind::ROLL.0 + 1)),
        false => usual[rng.random_range(0..usual.len())],
    };
    // Those of this side that are odd pull.
    let answers = kind == Kind::PULL_DATA && !odd(rng);
    let writable = kind == Kind::PUSH_DATA && !odd(rng);
    let region = rng.random_range(usize::from(writable)..2);
    let lowest = u64::from(!odd(rng));
    let header = Header {
        kind,
        flags: if odd(rng) { 0 } else { 1 },
        sender: if odd(rng) { ME } else { PEER },
        request: if answers { 1 } else { rng.random_range(lowest..8) },
        file: if odd(rng) { rng.random() } else { regions[region].0 },
        first_block: match (answers, odd(rng)) {
            (true, _) => 0,
            (_, true) => rng.random(),
            _ => rng.random_range(0..300),
        },
        count: match (answers, odd(rng)) {
            (true, _) => 150,
            (_, true) => rng.random(),
            _ => rng.random_range(0..200),
        },
        ..Header::default()
    };
    let body = vec![3; if odd(rng) { rng.random_range(0..300) } else { 0 }];
    let bulk = match kind {
        Kind::PULL_DATA | Kind::PUSH_DATA if header.count < 1000 => header.count as usize,
        _ => 0,
    };
    [&header.write(&body)[..], &body, &vec![0xee; bulk]].concat()
}

#[test]
fn no_frame_gets_where_it_may_not() {
    let mut rng = SmallRng::seed_from_u64(seed());
    let (mut ended, mut accepted, mut pushed) = (0, 0, 0);
    for _ in 0..3000 {
        let mut core = Core::new(ME);
        let mut flow = Flow::new(Link(1), PEER, 1);
        let mut memory = [vec![1_u8; 700], vec![2_u8; 700]];
        // SAFETY: the middles of `memory`, which is looked at when all is over.
        let regions = unsafe {
            let at = |memory: &mut Vec<u8>| memory[100..].as_mut_ptr();
            [
                core.regions.expose(at(&mut memory[0]), 500, Access::ReadOnly).unwrap(),
                core.regions.expose(at(&mut memory[1]), 500, Access::ReadWrite).unwrap(),
            ]
        };
        let now = Duration::from_secs(1);
        for token in 0..3 {
            let local = LocalSpan { region: regions[1], offset: 0, bytes: 150 };
            let remote = RemoteSpan { region: regions[0], offset: 0, bytes: 150 };
            flow.pull(&mut core, (remote, local), token, (now, now)).unwrap();
            flow.push(&mut core, (local, remote), token + 3, (now, now)).unwrap();
        }
        let mut result = Ok(());
        for _ in 0..40 {
            let bytes = frame(&mut rng, &regions);
            for piece in bytes.chunks(rng.random_range(1..300)) {
                result = result.and_then(|()| flow.accept(&mut core, piece, now));
            }
            let mut sink = Swallow(0);
            if result.is_err() || !flow.write_next(&mut core, &mut sink).unwrap() {
                break;
            }
            accepted += 1;
        }
        ended += usize::from(result.is_err());
        pushed += usize::from(memory[1].contains(&0xee));
        flow.end_all(&mut core);
        let mut tokens = [0; 6];
        for event in &core.events {
            if let Event::Done { token, .. } = event {
                tokens[*token as usize] += 1;
            }
        }
        assert_eq!(tokens, [1; 6], "each token ends once");
        assert!(core.timers.first().is_none(), "a timer is left");
        assert!(memory[0].iter().all(|byte| *byte == 1), "what may only be read was written");
        let around = memory[1][..100].iter().chain(&memory[1][600..]);
        assert!(around.into_iter().all(|byte| *byte == 2), "written around a region");
    }
    assert!(ended > 1000 && accepted > 10_000, "{ended} ended, {accepted} frames were taken");
    assert!(pushed > 1000, "only {pushed} peers got anything into the region");
    println!("{ended} ended, {accepted} frames were taken, {pushed} peers pushed");
}

#[test]
fn rubbish_is_refused_at_once() {
    let mut rng = SmallRng::seed_from_u64(seed());
    for _ in 0..3000 {
        let mut core = Core::new(ME);
        let mut flow = Flow::new(Link(1), PEER, 1);
        let mut bytes = [0; HEADER_BYTES];
        rng.fill_bytes(&mut bytes);
        // A header that happens to have the version is not found by chance.
        bytes[0] = 1;
        bytes[1] = rng.random_range(0..2);
        let refused = flow.accept(&mut core, &bytes, Duration::ZERO).is_err();
        assert!(refused || Header::body_bytes(&bytes).is_ok_and(|len| len > 0));
        assert_eq!(core.events, []);
    }
}

#[test]
fn a_peer_that_asks_and_does_not_read_is_refused() {
    for kind in [Kind::PING, Kind::PULL] {
        let mut core = Core::new(ME);
        let mut flow = Flow::new(Link(1), PEER, 1);
        // No such region: each is answered with a refusal.
        let header = Header { kind, sender: PEER, request: 1, ..Header::default() };
        let frame = header.write(&[]);
        let mut asked = 0;
        let why = loop {
            match flow.accept(&mut core, &frame, Duration::ZERO) {
                Ok(()) => asked += 1,
                Err(why) => break why,
            }
        };
        assert_eq!(why, Down::Refused(crate::Refusal::Flood));
        assert_eq!((asked, flow.urgent.len()), (URGENT_MAX, URGENT_MAX));
    }
}
