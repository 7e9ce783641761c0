//! What each fabric does, written once; the table at the end names them.

mod support;

use forebay_fabric::{
    Access, BODY_MAX, Differs, Down, Event, FabricError, Header, Kind, Outcome, QUEUE_MAX, Refusal,
    SPAN_MAX, TRANSFERS_MAX,
};
use forebay_membership::Member;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::time::Duration;
use support::{FAR, GROUP, Memory, Subject, local, numbered, remote, seed};

const MIB: usize = 1 << 20;

fn messages_keep_their_order(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let mut rng = SmallRng::seed_from_u64(seed());
    const COUNT: u64 = 1000;
    for number in 0..COUNT {
        let body = vec![number as u8; rng.random_range(0..3000)];
        subject.send(0, ours, &numbered(number), &body);
        subject.send(1, theirs, &numbered(number + COUNT), &body);
    }
    for number in 0..COUNT {
        for (node, first) in [(1, 0), (0, COUNT)] {
            let (header, body) = subject.message(node);
            assert_eq!(header.request, first + number);
            assert!(body.iter().all(|byte| *byte == number as u8));
            assert_eq!(header.sender, subject.nodes[1 - node].member());
        }
    }
}

fn a_link_is_full_until_its_peer_reads(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let body = vec![5; BODY_MAX];
    let mut sent = 0;
    // A script says "full", too: what stays so while this side polls is the peer's doing.
    let mut tries = 0;
    while tries < 20 {
        match subject.nodes[0].send(ours, &numbered(sent), &body) {
            Ok(()) => (sent, tries) = (sent + 1, 0),
            Err(error) => {
                assert_eq!(error, FabricError::Full);
                tries += 1;
                subject.step(&[0]);
            }
        }
        assert!(sent < 4096, "256 MiB have left, and the peer reads nothing");
    }
    assert!(sent >= QUEUE_MAX as u64 / BODY_MAX as u64 - 1);
    for number in 0..sent {
        let (header, found) = subject.message(1);
        assert_eq!((header.request, found == body), (number, true));
    }
    let room = |event: &Event| matches!(event, Event::Room { link } if *link == ours);
    subject.take(0, room);
    subject.send(0, ours, &numbered(99), &[]);
    assert_eq!(subject.message(1).0.request, 99);
    subject.send(1, theirs, &numbered(98), &[]);
    assert_eq!(subject.message(0).0.request, 98);
}

fn bodies_of_all_sizes(subject: &mut Subject) {
    let (ours, _) = subject.pair();
    let mut rng = SmallRng::seed_from_u64(seed());
    let sizes = [0, 1, 63, 64, 65, 4096, 16_319, 16_320, 16_384, 16_385, BODY_MAX - 1, BODY_MAX];
    for len in sizes {
        let mut body = vec![0; len];
        rng.fill_bytes(&mut body);
        let header = Header {
            kind: Kind(rng.random_range(0..Kind::OWN.0)),
            sender: subject.nodes[0].member(),
            file: rng.random(),
            generation: rng.random(),
            ..numbered(rng.random())
        };
        // The sender is filled in.
        subject.send(0, ours, &Header { sender: Member::new(9, 9), ..header }, &body);
        let (found, bytes) = subject.message(1);
        assert_eq!(found, header, "{len}");
        assert!(bytes == body, "{len} bytes came as others");
    }
}

/// What was pushed by a link that is over does not get there after what is pushed by another.
fn old_bytes_never_follow_new_ones(subject: &mut Subject) {
    let (bulk, theirs) = subject.pair();
    let (messages, _) = subject.link(0, 1);
    let bytes = 8 * MIB as u64;
    for (round, how) in ["late", "close", "withdraw", "late"].into_iter().enumerate() {
        let by_other_link = round == 3;
        let (mut old, mut new) = (Memory::of(1, 8 * MIB), Memory::of(2, 8 * MIB));
        let mut target = Memory::of(3, 8 * MIB);
        let there = subject.expose(1, &mut target, Access::ReadWrite);
        let (from, to) = (subject.expose(0, &mut old, Access::ReadOnly), remote(there, 0, bytes));
        let link = if round == 0 { bulk } else { subject.link(0, 1).0 };
        // The peer does not read: as much as fits waits there.
        let within = if how == "late" { Duration::from_millis(30) } else { FAR };
        subject
            .with_room(0, link, |fabric| fabric.push(link, local(from, 0, bytes), to, 1, within));
        let mut sent = 0;
        let one = |subject: &mut Subject| {
            let links = subject.nodes[0].links();
            let status = links.iter().find(|status| status.link == link);
            sent = status.map_or(sent, |status| status.bytes_out);
            subject.step(&[0]);
            subject.events[0].iter().any(|event| matches!(event, Event::Done { .. }))
        };
        match how {
            "late" => subject.until_with(&[0], one),
            "close" => {
                (0..3).for_each(|_| subject.step(&[0]));
                subject.nodes[0].close(link);
            }
            _ => {
                (0..3).for_each(|_| subject.step(&[0]));
                subject.nodes[0].withdraw(from).unwrap();
            }
        }
        let wanted = if how == "late" { Outcome::Late } else { Outcome::Gone };
        assert_eq!(subject.outcome(0, 1), wanted, "{how}");
        // By a link that was there, or a new one, with which the peer begins.
        let from = subject.expose(0, &mut new, Access::ReadOnly);
        let link = match by_other_link {
            true => messages,
            false => {
                let (peer, address) = (subject.nodes[1].member(), subject.nodes[1].address());
                let address = address.to_owned();
                subject.nodes[0].connect(peer, &address).unwrap()
            }
        };
        if !by_other_link {
            subject.take(0, |event| matches!(event, Event::Up { link: of, .. } if *of == link));
        }
        // Of what the peer reads last of the old bytes, and then all.
        let (at, some) = (sent.saturating_sub(8 << 16), 1 << 16);
        subject.push(0, link, (local(from, at, some), remote(there, at, some)), 2);
        assert_eq!(subject.outcome(0, 2), Outcome::Ok, "{how}");
        subject.rest(Duration::from_millis(20));
        subject.nodes[1].withdraw(there).unwrap();
        let part = &target.0[at as usize..][..some as usize];
        assert!(part.iter().all(|byte| *byte == 2), "{how}: old bytes came after new ones");
        let there = subject.expose(1, &mut target, Access::ReadWrite);
        let to = remote(there, 0, bytes);
        subject.push(0, link, (local(from, 0, bytes), to), 3);
        assert_eq!(subject.outcome(0, 3), Outcome::Ok, "{how}");
        subject.rest(Duration::from_millis(20));
        subject.nodes[1].withdraw(there).unwrap();
        assert!(target.0.iter().all(|byte| *byte == 2), "{how}: old bytes came after new ones");
    }
    let downs = |event: &&Event| matches!(event, Event::Down { link, .. } if *link == theirs);
    assert_eq!(subject.events[1].iter().filter(downs).count(), 1, "of the first link");
    assert_eq!(subject.nodes[0].counters().links, subject.nodes[1].counters().links);
}

/// Makes a call that has to fail, as often as a script says that the link is full.
fn error_of(
    subject: &mut Subject,
    mut call: impl FnMut(&mut Subject) -> Result<(), FabricError>,
) -> FabricError {
    for _ in 0..10 {
        match call(subject) {
            Err(FabricError::Full) => subject.step_all(),
            result => return result.unwrap_err(),
        }
    }
    FabricError::Full
}

fn what_may_not_be_sent_is_an_error(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let long = vec![0; BODY_MAX + 1];
    let error = error_of(subject, |subject| subject.nodes[0].send(ours, &numbered(1), &long));
    assert_eq!(error, FabricError::Length);
    let own = Header { kind: Kind(0xff05), ..Header::default() };
    let error = error_of(subject, |subject| subject.nodes[0].send(ours, &own, &[]));
    assert_eq!(error, FabricError::Kind);
    subject.nodes[0].close(ours);
    assert_eq!(subject.nodes[0].send(ours, &numbered(1), &[]), Err(FabricError::Closed));
    assert_eq!(subject.down(1), (theirs, Down::Closed));
}

fn bulk_of_all_sizes(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let mut rng = SmallRng::seed_from_u64(seed());
    let sizes = [0, 1, 100, 65_535, 65_536, 65_537, MIB + 3, 64 * MIB];
    for (token, bytes) in sizes.into_iter().enumerate() {
        let (before, after, shift) = (rng.random_range(0..50), rng.random_range(0..50), 13);
        let mut source = Memory::of(0, bytes + shift);
        rng.fill_bytes(&mut source.0);
        let mut target = Memory::of(1, before + bytes + after);
        let (span, token) = (bytes as u64, token as u64);
        for is_pull in [true, false] {
            target.0.fill(1);
            // The side that has a link asks; both sides do once.
            let (asks, link) = if token % 2 == 0 { (0, ours) } else { (1, theirs) };
            let (from_at, to_at) = if is_pull { (1 - asks, asks) } else { (asks, 1 - asks) };
            let from = subject.expose(from_at, &mut source, Access::ReadOnly);
            let to = subject.expose(to_at, &mut target, Access::ReadWrite);
            if is_pull {
                let spans = (remote(from, shift as u64, span), local(to, before as u64, span));
                subject.pull(asks, link, spans, token);
            } else {
                let spans = (local(from, shift as u64, span), remote(to, before as u64, span));
                subject.push(asks, link, spans, token);
            }
            assert_eq!(subject.outcome(asks, token), Outcome::Ok, "{bytes} bytes");
            subject.nodes[from_at].withdraw(from).unwrap();
            subject.nodes[to_at].withdraw(to).unwrap();
            assert!(target.0[before..before + bytes] == source.0[shift..], "{bytes} bytes differ");
            let around = target.0[..before].iter().chain(&target.0[before + bytes..]);
            assert!(around.into_iter().all(|byte| *byte == 1), "written around {bytes} bytes");
        }
    }
}

fn wrong_spans_of_this_side_cost_their_token(subject: &mut Subject) {
    let (ours, _) = subject.pair();
    let (mut memory, mut other) = (Memory::of(1, 100), Memory::of(2, 100));
    let here = subject.expose(0, &mut memory, Access::ReadOnly);
    let there = subject.expose(1, &mut other, Access::ReadWrite);
    let gone = subject.expose(0, &mut Memory::of(3, 100), Access::ReadWrite);
    subject.nodes[0].withdraw(gone).unwrap();
    assert_eq!(subject.nodes[0].withdraw(gone), Err(FabricError::Region));
    let wrong = [
        (local(here, 0, 101), 101),
        (local(here, 101, 0), 0),
        (local(here, u64::MAX, 2), 2),
        (local(gone, 0, 1), 1),
        (local(here, 0, 10), 11),
        (local(here, 0, SPAN_MAX + 1), SPAN_MAX + 1),
    ];
    for (token, (span, bytes)) in (0..).zip(wrong) {
        subject.pull(0, ours, (remote(there, 0, bytes), span), token);
        assert_eq!(subject.outcome(0, token), Outcome::Refused, "{span:?}");
        subject.push(0, ours, (span, remote(there, 0, bytes)), token);
        assert_eq!(subject.outcome(0, token), Outcome::Refused, "{span:?}");
    }
    // The link does not suffer.
    subject.push(0, ours, (local(here, 0, 100), remote(there, 0, 100)), 9);
    assert_eq!(subject.outcome(0, 9), Outcome::Ok);
    subject.nodes[1].withdraw(there).unwrap();
    assert_eq!(other.0, [1; 100]);
    assert_eq!(subject.nodes[1].counters().refused_in_all(), 0);
}

fn a_region_that_is_gone_costs_the_token(subject: &mut Subject) {
    let (ours, _) = subject.pair();
    let mut memory = Memory::of(1, 3 * MIB);
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let gone = subject.expose(1, &mut Memory::of(2, 3 * MIB), Access::ReadWrite);
    subject.nodes[1].withdraw(gone).unwrap();
    // Its place is taken by another one, which is not meant.
    let mut other = Memory::of(2, 3 * MIB);
    let next = subject.expose(1, &mut other, Access::ReadWrite);
    let bytes = 3 * MIB as u64;
    subject.pull(0, ours, (remote(gone, 0, bytes), local(here, 0, bytes)), 1);
    assert_eq!(subject.outcome(0, 1), Outcome::Refused);
    subject.push(0, ours, (local(here, 0, bytes), remote(gone, 0, bytes)), 2);
    assert_eq!(subject.outcome(0, 2), Outcome::Refused);
    assert!(subject.nodes[1].counters().refused(Refusal::Region) >= 2);
    subject.push(0, ours, (local(here, 0, 5), remote(next, 0, 5)), 3);
    assert_eq!(subject.outcome(0, 3), Outcome::Ok);
    subject.nodes[1].withdraw(next).unwrap();
    assert!(other.0[5..].iter().all(|byte| *byte == 2), "a push went to another region");
}

fn wrong_spans_of_the_peer_cost_the_link(subject: &mut Subject) {
    subject.pair();
    let (mut memory, mut other) = (Memory::of(1, 100), Memory::of(2, 100));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadOnly);
    let cases = [
        (remote(there, 1, 100), true, Refusal::Bounds),
        (remote(there, u64::MAX - 200, 100), true, Refusal::Bounds),
        (remote(there, 1, 100), false, Refusal::Bounds),
        (remote(there, 0, 100), false, Refusal::Access),
    ];
    for (count, (span, is_pull, why)) in cases.into_iter().enumerate() {
        let (ours, theirs) = subject.link(0, 1);
        let token = count as u64;
        if is_pull {
            subject.pull(0, ours, (span, local(here, 0, 100)), token);
        } else {
            subject.push(0, ours, (local(here, 0, 100), span), token);
        }
        assert_eq!(subject.outcome(0, token), Outcome::Refused);
        assert_eq!(subject.down(0), (ours, Down::RefusedByPeer));
        assert_eq!(subject.down(1), (theirs, Down::Refused(why)));
    }
    let counters = subject.nodes[1].counters();
    assert_eq!((counters.refused(Refusal::Bounds), counters.refused(Refusal::Access)), (3, 1));
    assert_eq!((counters.links, subject.nodes[0].counters().links), (1, 1), "the first link");
    assert_eq!((memory.0, other.0), (vec![1; 100], vec![2; 100]));
}

fn a_region_may_go_while_it_is_used(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let (mut memory, mut other) = (Memory::of(1, 64 * MIB), Memory::of(2, 64 * MIB));
    let mut here = subject.expose(0, &mut memory, Access::ReadWrite);
    let bytes = 64 * MIB as u64;
    for token in 0..4 {
        let there = subject.expose(1, &mut other, Access::ReadWrite);
        let (at_peer, is_pull) = (token < 2, token % 2 == 0);
        if is_pull {
            subject.pull(0, ours, (remote(there, 0, bytes), local(here, 0, bytes)), token);
        } else {
            subject.push(0, ours, (local(here, 0, bytes), remote(there, 0, bytes)), token);
        }
        let start = subject.nodes[1].links()[0];
        let moved = |subject: &Subject| {
            let now = subject.nodes[1].links()[0];
            now.bytes_in + now.bytes_out - start.bytes_in - start.bytes_out
        };
        subject.until(|subject| moved(subject) > MIB as u64);
        if at_peer {
            subject.nodes[1].withdraw(there).unwrap();
            other.0.fill(9);
        } else {
            let gone = subject.expose(0, &mut memory, Access::ReadWrite);
            subject.nodes[0].withdraw(gone).unwrap();
            subject.nodes[0].withdraw(here).unwrap();
            memory.0.fill(8);
        }
        if token == 3 {
            // Its bytes are on their way.
            assert_eq!(subject.outcome(0, token), Outcome::Gone);
            assert_eq!(subject.down(0), (ours, Down::Withdrawn));
            assert_eq!(subject.down(1), (theirs, Down::Closed));
            return;
        }
        assert_eq!(subject.outcome(0, token), Outcome::Refused, "{token}");
        // What is under way goes nowhere, and what comes then is right.
        subject.send(1, theirs, &numbered(token), &[]);
        assert_eq!(subject.message(0).0.request, token);
        subject.send(0, ours, &numbered(token), &[]);
        assert_eq!(subject.message(1).0.request, token);
        if at_peer {
            assert!(other.0.iter().all(|byte| *byte == 9), "written after it was withdrawn");
        } else {
            assert!(memory.0.iter().all(|byte| *byte == 8), "written after it was withdrawn");
            here = subject.expose(0, &mut memory, Access::ReadWrite);
        }
    }
}

fn messages_pass_bulk(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let (mut memory, mut other) = (Memory::of(1, 64 * MIB), Memory::of(2, 64 * MIB));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadOnly);
    let bytes = 64 * MIB as u64;
    subject.pull(0, ours, (remote(there, 0, bytes), local(here, 0, bytes)), 1);
    // One of few bytes takes its turn between the frames of that.
    subject.pull(0, ours, (remote(there, 0, 5), local(here, 0, 5)), 2);
    subject.until(|subject| subject.nodes[0].links()[0].bytes_in > MIB as u64);
    subject.send(1, theirs, &numbered(7), &[]);
    let done = |subject: &Subject| {
        let is_done = |event: &Event| matches!(event, Event::Done { token: 1, .. });
        subject.events[0].iter().any(is_done)
    };
    assert_eq!(subject.message(0).0.request, 7);
    assert!(!done(subject), "the message waited for the transfer");
    assert_eq!(subject.outcome(0, 2), Outcome::Ok);
    assert!(!done(subject), "the small transfer waited for the large one");
    assert_eq!(subject.outcome(0, 1), Outcome::Ok);
}

fn transfers_without_number_find_the_link_full(subject: &mut Subject) {
    let (ours, _) = subject.pair();
    let (mut memory, mut other) = (Memory::of(1, 4096), Memory::of(2, 4096));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadOnly);
    let mut ended = vec![0; 3 * TRANSFERS_MAX];
    for token in 0..3 * TRANSFERS_MAX as u64 {
        let at = token % 4096;
        let spans = (remote(there, at, 1), local(here, at, 1));
        let before = subject.nodes[0].pull(ours, spans.0, spans.1, token, FAR);
        let is_full = token >= TRANSFERS_MAX as u64 && before == Err(FabricError::Full);
        assert!(before.is_ok() || is_full, "{token}: {before:?}");
        if is_full {
            subject.pull(0, ours, spans, token);
        }
    }
    let all = |subject: &mut Subject| {
        for event in subject.events[0].drain(..) {
            if let Event::Done { token, outcome } = event {
                assert_eq!(outcome, Outcome::Ok);
                ended[token as usize] += 1;
            }
        }
        ended.iter().all(|count| *count > 0)
    };
    subject.until(all);
    assert!(ended.iter().all(|count| *count == 1), "a token ended twice");
    subject.nodes[0].withdraw(here).unwrap();
    assert!(memory.0[..3 * TRANSFERS_MAX].iter().all(|byte| *byte == 2));
}

/// Begins ten pulls and ten pushes with tokens 0 to 19, of which none can end: the peer sleeps.
fn begin_twenty(subject: &mut Subject, link: forebay_fabric::Link, memory: &mut [Memory; 2]) {
    let [memory, other] = memory;
    let here = subject.expose(0, memory, Access::ReadWrite);
    let there = subject.expose(1, other, Access::ReadWrite);
    let bytes = 64 * MIB as u64;
    for token in (0..20).step_by(2) {
        let spans = (remote(there, 0, bytes), local(here, 0, bytes));
        subject.pull(0, link, spans, token);
        let spans = (local(here, 0, bytes), remote(there, 0, bytes));
        subject.push(0, link, spans, token + 1);
    }
    for _ in 0..3 {
        subject.step(&[0]);
    }
    assert_eq!(subject.events[0], []);
}

fn gone_once_each(subject: &mut Subject, tokens: usize) {
    let mut ended = vec![0; 20];
    for event in subject.events[0].drain(..) {
        let Event::Done { token, outcome } = event else { panic!("{event:?}") };
        assert_eq!(outcome, Outcome::Gone);
        ended[token as usize] += 1;
    }
    assert_eq!(ended.iter().sum::<usize>(), tokens);
    assert!(ended.iter().all(|count| *count <= 1), "{ended:?}");
}

fn closing_ends_all_tokens(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let mut memory = [Memory::of(1, 64 * MIB), Memory::of(2, 64 * MIB)];
    begin_twenty(subject, ours, &mut memory);
    subject.nodes[0].close(ours);
    assert_eq!(subject.down(1), (theirs, Down::Closed));
    subject.rest(Duration::from_millis(20));
    gone_once_each(subject, 20);
    // A later link is another one, whatever it looks like.
    let (again, _) = subject.link(0, 1);
    assert_ne!(again, ours);
    assert_eq!(subject.nodes[0].send(ours, &numbered(1), &[]), Err(FabricError::Closed));
    let mut small = Memory::of(1, 1);
    let region = subject.expose(0, &mut small, Access::ReadWrite);
    subject.pull(0, ours, (remote(region, 0, 1), local(region, 0, 1)), 5);
    assert_eq!(subject.outcome(0, 5), Outcome::Gone);
    subject.nodes[0].close(ours);
    subject.send(0, again, &numbered(3), &[]);
    assert_eq!(subject.message(1).0.request, 3);
}

fn a_peer_that_ends_ends_all_tokens(subject: &mut Subject) {
    let (ours, _) = subject.pair();
    let mut memory = [Memory::of(1, 64 * MIB), Memory::of(2, 64 * MIB)];
    begin_twenty(subject, ours, &mut memory);
    let other = subject.make(Member::new(3, 1), GROUP, None);
    drop(std::mem::replace(&mut subject.nodes[1], other));
    assert_eq!(subject.down(0), (ours, Down::Closed));
    gone_once_each(subject, 20);
}

fn late_closes_the_link(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    let mut memory = [Memory::of(1, 64 * MIB), Memory::of(2, 64 * MIB)];
    begin_twenty(subject, ours, &mut memory);
    let mut target = Memory::of(3, 64 * MIB);
    let here = subject.expose(0, &mut target, Access::ReadWrite);
    let there = subject.expose(1, &mut memory[1], Access::ReadOnly);
    let (from, into) = (remote(there, 0, 64 * MIB as u64), local(here, 0, 64 * MIB as u64));
    let before = subject.nodes[0].now();
    let within = Duration::from_millis(100);
    subject.with_room(0, ours, |fabric| fabric.pull(ours, from, into, 99, within));
    let is_late = |subject: &mut Subject| !subject.events[0].is_empty();
    subject.until_with(&[0], is_late);
    assert!(subject.nodes[0].now() >= before + within);
    assert_eq!(subject.events[0].remove(0), Event::Done { token: 99, outcome: Outcome::Late });
    subject.until_with(&[0], |subject| subject.events[0].len() == 21);
    let down = Event::Down { link: ours, why: Down::Late };
    assert_eq!(subject.events[0].pop(), Some(down));
    gone_once_each(subject, 20);
    // The peer wakes, and nothing of what it does gets there.
    subject.nodes[0].withdraw(here).unwrap();
    target.0.fill(4);
    assert_eq!(subject.down(1), (theirs, Down::Closed));
    subject.rest(Duration::from_millis(50));
    assert!(target.0.iter().all(|byte| *byte == 4), "written after it was late");
}

fn another_life_at_the_address_is_refused(subject: &mut Subject) {
    let (ours, _) = subject.pair();
    let address = subject.nodes[1].address().to_owned();
    let first = subject.nodes[1].member();
    let later = Member::new(2, 2);
    let other = subject.make(Member::new(3, 1), GROUP, None);
    drop(std::mem::replace(&mut subject.nodes[1], other));
    assert_eq!(subject.down(0), (ours, Down::Closed));
    let made = subject.make(later, GROUP, Some(&address));
    subject.nodes[1] = made;
    for (wanted, differs) in [(first, Differs::Incarnation), (Member::new(4, 2), Differs::Node)] {
        let link = subject.nodes[0].connect(wanted, &address).unwrap();
        assert_eq!(subject.down(0), (link, Down::Mismatch(differs)));
    }
    subject.until(|subject| subject.nodes[1].counters().refused(Refusal::Hello) == 2);
    subject.link(0, 1);
    assert_eq!(subject.nodes[1].counters().links, 1);
}

fn another_group_is_refused(subject: &mut Subject) {
    subject.join(1);
    let other = subject.make(Member::new(2, 1), "other", None);
    subject.add(other);
    let address = subject.nodes[1].address().to_owned();
    let link = subject.nodes[0].connect(Member::new(2, 1), &address).unwrap();
    assert_eq!(subject.down(0), (link, Down::Mismatch(Differs::Group)));
    subject.until(|subject| subject.nodes[1].counters().refused(Refusal::Hello) == 1);
    assert_eq!(subject.events[1], []);
}

fn an_address_without_a_listener(subject: &mut Subject) {
    subject.pair();
    let address = subject.nodes[1].address().to_owned();
    let other = subject.make(Member::new(3, 1), GROUP, None);
    drop(std::mem::replace(&mut subject.nodes[1], other));
    subject.down(0);
    let link = subject.nodes[0].connect(Member::new(2, 1), &address).unwrap();
    assert_eq!(subject.down(0), (link, Down::Unreachable));
    assert_eq!(subject.nodes[0].send(link, &numbered(1), &[]), Err(FabricError::Closed));
}

fn both_connect_at_once(subject: &mut Subject) {
    let (one, two) = (subject.join(1), subject.join(2));
    let mut links = Vec::new();
    for (from, to) in [(one, two), (two, one)] {
        let (peer, address) = (subject.nodes[to].member(), subject.nodes[to].address().to_owned());
        links.push(subject.nodes[from].connect(peer, &address).unwrap());
    }
    let mut ups = [Vec::new(), Vec::new()];
    for node in [one, two, one, two] {
        let up = subject.take(node, |event| matches!(event, Event::Up { .. }));
        let Event::Up { link, peer } = up else { unreachable!() };
        assert_eq!(peer, subject.nodes[1 - node].member());
        ups[node].push(link);
    }
    for node in [one, two] {
        assert!(ups[node].contains(&links[node]) && ups[node][0] != ups[node][1]);
        for link in ups[node].clone() {
            subject.send(node, link, &numbered(1), &[]);
            assert_eq!(subject.message(1 - node).0.request, 1);
        }
    }
}

fn what_a_link_carries_is_counted(subject: &mut Subject) {
    let (ours, theirs) = subject.pair();
    assert!(subject.nodes[0].links()[0].round_trip.is_none());
    subject.send(0, ours, &numbered(1), &[0; 100]);
    subject.message(1);
    subject.send(1, theirs, &numbered(1), &[0; 50]);
    subject.message(0);
    subject.until(|subject| {
        let both = [0, 1].map(|node| subject.nodes[node].links()[0]);
        both.iter().all(|status| status.round_trip.is_some())
    });
    // What is under way arrives.
    subject.rest(Duration::from_millis(100));
    for (node, link, sent, came) in [(0, ours, 164, 114), (1, theirs, 114, 164)] {
        let status = subject.nodes[node].links()[0];
        assert_eq!((status.link, status.peer), (link, subject.nodes[1 - node].member()));
        // With a ping and a pong each way, or a few where the messages were slow.
        let pings = status.bytes_out - sent;
        assert!(pings >= 128 && pings.is_multiple_of(64), "{status:?}");
        assert_eq!(status.bytes_in - came, pings, "{status:?}");
        let limit = Duration::from_secs(60);
        assert!(status.round_trip.is_some_and(|time| time < limit && !time.is_zero()));
    }
    // Nothing is said on a link that is idle.
    let before = subject.nodes[0].links();
    subject.rest(Duration::from_millis(1100));
    assert_eq!(subject.nodes[0].links(), before);
}

fn wakes_as_asked(subject: &mut Subject) {
    subject.join(1);
    let start = subject.nodes[0].now();
    subject.nodes[0].wake_in(Duration::from_secs(3600));
    subject.nodes[0].wake_in(Duration::from_millis(5));
    let fd_is_ready = |subject: &Subject| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let fd = subject.nodes[0].wait_fd();
        let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut fds, Some(&wait)) == Ok(1)
    };
    let began = std::time::Instant::now();
    while subject.nodes[0].arm() && !fd_is_ready(subject) {
        assert!(began.elapsed() < support::PATIENCE);
        if let Some(network) = &subject.network {
            network.advance(Duration::from_millis(1));
        }
    }
    assert!(subject.nodes[0].now() >= start + Duration::from_millis(5));
    subject.step(&[0]);
    assert!(subject.nodes[0].arm(), "it was woken and polled");
}

macro_rules! conformance {
    ($($fabric:ident: $make:expr;)*) => {
        $(mod $fabric {
            use super::*;

            conformance! { @cases $make;
                messages_keep_their_order
                a_link_is_full_until_its_peer_reads
                bodies_of_all_sizes
                what_may_not_be_sent_is_an_error
                old_bytes_never_follow_new_ones
                bulk_of_all_sizes
                wrong_spans_of_this_side_cost_their_token
                wrong_spans_of_the_peer_cost_the_link
                a_region_that_is_gone_costs_the_token
                a_region_may_go_while_it_is_used
                messages_pass_bulk
                transfers_without_number_find_the_link_full
                closing_ends_all_tokens
                a_peer_that_ends_ends_all_tokens
                late_closes_the_link
                another_life_at_the_address_is_refused
                another_group_is_refused
                an_address_without_a_listener
                both_connect_at_once
                what_a_link_carries_is_counted
                wakes_as_asked
            }
        })*
    };
    (@cases $make:expr; $($case:ident)*) => {
        $(#[test]
        fn $case() {
            super::$case(&mut $make);
        })*
    };
}

/// What must not be noticed.
const FAULTS: Option<&str> = Some("send delay 200us every 7\nsend full every 11");

conformance! {
    tls: Subject::tls(None);
    memory: Subject::memory(None);
    faulty_tls: Subject::tls(FAULTS);
    faulty_memory: Subject::memory(FAULTS);
}

#[cfg(feature = "ucx")]
conformance! {
    ucx: Subject::ucx(None);
    faulty_ucx: Subject::ucx(FAULTS);
}
