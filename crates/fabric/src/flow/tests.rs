//! A peer that sends anything.

use super::{Core, Flow, Sink, URGENT_MAX};
use crate::header::HEADER_BYTES;
use crate::{Access, Down, Event, Header, Kind, Link, LocalSpan, Region, RemoteSpan};
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

fn seed() -> u64 {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    seed
}

/// A frame whose sum is right, and little else.
fn frame(rng: &mut SmallRng, regions: &[Region]) -> Vec<u8> {
    let kind = match rng.random_range(0..20) {
        0 => rng.random(),
        1 => rng.random_range(0..100),
        _ => rng.random_range(Kind::OWN.0..=Kind::PONG.0),
    };
    let small = rng.random_range(0..300);
    let region = match rng.random_range(0..10) {
        0 => rng.random(),
        _ => regions[rng.random_range(0..regions.len())].0,
    };
    let header = Header {
        kind: Kind(kind),
        flags: rng.random_range(0..2),
        sender: if rng.random_range(0..50) == 0 { ME } else { PEER },
        request: rng.random_range(0..8),
        file: region,
        first_block: if rng.random_range(0..9) == 0 { rng.random() } else { small },
        count: if rng.random_range(0..9) == 0 { rng.random() } else { rng.random_range(0..200) },
        ..Header::default()
    };
    let body = vec![3; if rng.random_range(0..20) == 0 { small as usize } else { 0 }];
    let bulk = match header.kind {
        Kind::PULL_DATA | Kind::PUSH_DATA if header.count < 1000 => header.count as usize,
        _ => 0,
    };
    [&header.write(&body)[..], &body, &vec![0xee; bulk]].concat()
}

#[test]
fn no_frame_gets_where_it_may_not() {
    let mut rng = SmallRng::seed_from_u64(seed());
    let (mut ended, mut accepted) = (0, 0);
    for _ in 0..3000 {
        let mut core = Core::new(ME);
        let mut flow = Flow::new(Link(1), PEER);
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
    assert!(ended > 1000 && accepted > 3000, "{ended} ended, {accepted} frames were taken");
}

#[test]
fn rubbish_is_refused_at_once() {
    let mut rng = SmallRng::seed_from_u64(seed());
    for _ in 0..3000 {
        let mut core = Core::new(ME);
        let mut flow = Flow::new(Link(1), PEER);
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
        let mut flow = Flow::new(Link(1), PEER);
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
