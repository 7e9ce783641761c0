//! What the network in one process does to links, on its clock.

mod support;

use forebay_fabric::{Access, Down, Event, Identity, Kind, Network, Outcome};
use forebay_membership::{Member, NodeId};
use std::time::Duration;
use support::{GROUP, Memory, Subject, local, numbered, remote};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

fn network(subject: &Subject) -> Network {
    subject.network.clone().unwrap()
}

#[test]
fn a_short_cut_delays() {
    let mut subject = Subject::memory(None);
    let (ours, theirs) = subject.pair();
    let network = network(&subject);
    subject.send(0, ours, &numbered(1), &[]);
    network.cut(TWO, ONE);
    subject.send(0, ours, &numbered(2), &[]);
    subject.send(1, theirs, &numbered(3), &[]);
    subject.rest(Duration::from_millis(3900));
    assert_eq!(subject.events, [[], []]);
    network.heal(ONE, TWO);
    assert_eq!(subject.message(1).0.request, 1);
    assert_eq!(subject.message(1).0.request, 2);
    assert_eq!(subject.message(0).0.request, 3);
    subject.rest(Duration::from_secs(10));
    assert_eq!(subject.events, [[], []]);
}

#[test]
fn a_long_cut_ends_links_of_the_two() {
    let mut subject = Subject::memory(None);
    let (ours, theirs) = subject.pair();
    subject.join(3);
    let (third, _) = subject.link(0, 2);
    let network = network(&subject);
    let start = network.now();
    network.cut(ONE, TWO);
    subject.send(0, ours, &numbered(1), &[]);
    assert_eq!(subject.down(0), (ours, Down::Silent));
    assert_eq!(subject.down(1), (theirs, Down::Silent));
    let took = network.now() - start;
    assert!((4..5).contains(&took.as_secs()), "{took:?}");
    // No new link either, until it is healed.
    let peer = Member::new(2, 1);
    let link = subject.nodes[0].connect(peer, "2.1").unwrap();
    assert_eq!(subject.down(0), (link, Down::Timeout));
    assert_eq!(network.now() - start - took, Duration::from_secs(5));
    subject.send(0, third, &numbered(4), &[]);
    assert_eq!(subject.message(2).0.request, 4);
    network.heal(ONE, TWO);
    subject.rest(Duration::from_secs(10));
    let ups = |event: &Event| !matches!(event, Event::Up { .. } | Event::Down { .. });
    assert!(!subject.events[1].iter().any(ups), "what was lost arrives");
    subject.events.iter_mut().for_each(Vec::clear);
    subject.link(0, 1);
}

#[test]
fn a_killed_node_is_gone_and_another_life_may_come() {
    let mut subject = Subject::memory(None);
    let (ours, _) = subject.pair();
    let network = network(&subject);
    network.kill(Member::new(2, 1));
    assert_eq!(subject.down(0), (ours, Down::Closed));
    let made = subject.make(Member::new(2, 2), GROUP, Some("2.1"));
    subject.nodes[1] = made;
    subject.link(0, 1);
    let taken = Identity { member: Member::new(4, 1), group: GROUP.into() };
    let error = network.join(taken, "2.1").err().unwrap().to_string();
    assert!(error.contains("2.1") && error.contains("in use"), "{error}");
}

#[test]
fn a_stopped_node_is_late_and_goes_on() {
    let mut subject = Subject::memory(None);
    let (ours, theirs) = subject.pair();
    let (mut memory, mut other) = (Memory::of(1, 10), Memory::of(2, 10));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadOnly);
    let network = network(&subject);
    network.stop(Member::new(2, 1));
    let (from, into) = (remote(there, 0, 10), local(here, 0, 10));
    let within = Duration::from_secs(2);
    subject.nodes[0].pull(ours, from, into, 1, within).unwrap();
    let start = network.now();
    assert_eq!(subject.outcome(0, 1), Outcome::Late);
    assert_eq!(network.now(), start + within);
    assert_eq!(subject.down(0), (ours, Down::Late));
    assert_eq!(subject.events[1], []);
    network.resume(Member::new(2, 1));
    assert_eq!(subject.down(1), (theirs, Down::Closed));
    assert_eq!(memory.0, [1; 10]);
}

/// Times of what arrives, in a fixed run.
fn run(seed: u64) -> Vec<(Duration, usize, u64)> {
    let network = Network::new(seed);
    network.set_delay(Duration::from_micros(10), Duration::from_micros(90));
    let mut subject = Subject::tls(None);
    subject.network = Some(network.clone());
    let (ours, theirs) = subject.pair();
    let mut log = Vec::new();
    for number in 0..50 {
        subject.send(0, ours, &numbered(number), &[1; 100]);
        subject.send(1, theirs, &numbered(number), &[2; 10]);
    }
    subject.until(|subject| {
        for node in [0, 1] {
            for event in subject.events[node].drain(..) {
                let Event::Message { header, .. } = event else { panic!("{event:?}") };
                assert_eq!(header.kind, Kind(1));
                log.push((network.now(), node, header.request));
            }
        }
        log.len() == 100
    });
    log
}

#[test]
fn the_seed_decides() {
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn the_clock_stands_while_it_is_not_moved() {
    let mut subject = Subject::memory(None);
    let (ours, _) = subject.pair();
    let network = network(&subject);
    network.set_delay(Duration::from_secs(1), Duration::ZERO);
    subject.send(0, ours, &numbered(1), &[]);
    for _ in 0..10 {
        let mut events = Vec::new();
        assert_eq!((subject.nodes[1].poll(&mut events), subject.nodes[1].arm()), (0, true));
    }
    network.advance(Duration::from_millis(999));
    assert!(subject.nodes[1].arm());
    network.advance(Duration::from_millis(1));
    assert!(!subject.nodes[1].arm());
    assert_eq!(subject.message(1).0.request, 1);
}
