//! Each fault of a script hits what it should, does what it says, and nothing else.

mod support;

use forebay_fabric::{
    Access, Down, Event, Fabric, FabricError, FaultScript, Link, Outcome, Refusal,
};
use forebay_membership::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;
use support::{GROUP, Memory, Subject, local, numbered, remote};

/// A faulty node 0 with a link to node 1.
fn faulty_pair(subject: &mut Subject, text: &str) -> (Link, Link, FaultScript) {
    let (made, script) = subject.make_faulty(Member::new(1, 1), GROUP, None, text);
    let one = subject.add(made);
    let two = subject.join(2);
    let (ours, theirs) = subject.link(one, two);
    (ours, theirs, script)
}

fn a_cut_loses_the_message_and_its_link(subject: &mut Subject) {
    let (ours, theirs, script) = faulty_pair(subject, "send cut at 3");
    for number in 1..=3 {
        assert_eq!(subject.nodes[0].send(ours, &numbered(number), &[]), Ok(()));
    }
    assert_eq!(subject.down(0), (ours, Down::Injected));
    assert_eq!(subject.nodes[0].send(ours, &numbered(4), &[]), Err(FabricError::Closed));
    assert_eq!(subject.message(1).0.request, 1);
    assert_eq!(subject.message(1).0.request, 2);
    assert_eq!(subject.down(1), (theirs, Down::Closed));
    assert_eq!((script.hits(), &subject.events[1][..]), (1, &[][..]));
}

fn a_delay_keeps_the_order(subject: &mut Subject) {
    let (ours, _, script) = faulty_pair(subject, "send delay 50ms at 2");
    let start = subject.nodes[0].now();
    for number in 1..=4 {
        assert_eq!(subject.nodes[0].send(ours, &numbered(number), &[]), Ok(()));
    }
    assert_eq!(subject.message(1).0.request, 1);
    for number in 2..=4 {
        assert_eq!(subject.message(1).0.request, number);
        assert!(subject.nodes[0].now() >= start + Duration::from_millis(50));
    }
    assert_eq!(script.hits(), 1);
}

fn full_is_followed_by_room(subject: &mut Subject) {
    let (ours, _, script) = faulty_pair(subject, "send full at 2\npull full at 1");
    assert_eq!(subject.nodes[0].send(ours, &numbered(1), &[]), Ok(()));
    assert_eq!(subject.nodes[0].send(ours, &numbered(2), &[]), Err(FabricError::Full));
    subject.take(0, |event| *event == Event::Room { link: ours });
    assert_eq!(subject.nodes[0].send(ours, &numbered(3), &[]), Ok(()));
    assert_eq!(subject.message(1).0.request, 1);
    assert_eq!(subject.message(1).0.request, 3);
    let mut memory = Memory::of(1, 10);
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let (from, into) = (remote(here, 0, 10), local(here, 0, 10));
    let within = Duration::from_secs(1);
    assert_eq!(subject.nodes[0].pull(ours, from, into, 1, within), Err(FabricError::Full));
    subject.take(0, |event| *event == Event::Room { link: ours });
    subject.rest(Duration::from_millis(5));
    assert_eq!((script.hits(), &subject.events[0][..]), (2, &[][..]), "no token, no more room");
}

fn a_spoilt_byte_costs_the_link(subject: &mut Subject) {
    let (ours, theirs, script) = faulty_pair(subject, "send spoil at 2");
    for number in 1..=2 {
        assert_eq!(subject.nodes[0].send(ours, &numbered(number), &[7; 100]), Ok(()));
    }
    assert_eq!(subject.message(1).0.request, 1);
    // TLS notices it before there is a header to look at.
    let is_tls = subject.nodes[1].name() == "tls";
    let why = if is_tls { Down::Tls } else { Down::Refused(Refusal::Sum) };
    assert_eq!(subject.down(1), (theirs, why));
    let (link, why) = subject.down(0);
    assert!(matches!(why, Down::RefusedByPeer | Down::Tls | Down::Closed), "{why:?}");
    assert_eq!((link, script.hits(), &subject.events[1][..]), (ours, 1, &[][..]));
}

fn a_late_token_closes_the_link(subject: &mut Subject) {
    let (ours, theirs, script) = faulty_pair(subject, "push late at 2");
    let (mut memory, mut other) = (Memory::of(1, 10), Memory::of(2, 10));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadWrite);
    subject.push(0, ours, (local(here, 0, 5), remote(there, 0, 5)), 1);
    assert_eq!(subject.outcome(0, 1), Outcome::Ok);
    subject.push(0, ours, (local(here, 5, 5), remote(there, 5, 5)), 2);
    assert_eq!(subject.outcome(0, 2), Outcome::Late);
    assert_eq!(subject.down(0), (ours, Down::Late));
    assert_eq!(subject.down(1), (theirs, Down::Closed));
    assert_eq!((script.hits(), other.0), (1, vec![1, 1, 1, 1, 1, 2, 2, 2, 2, 2]));
}

fn a_torn_transfer_moves_its_half(subject: &mut Subject) {
    for is_pull in [true, false] {
        let (ours, theirs, script) = faulty_pair(subject, "pull tear\npush tear");
        let (one, two) = (subject.nodes.len() - 2, subject.nodes.len() - 1);
        let (mut memory, mut other) = (Memory::of(1, 1 << 20), Memory::of(2, 1 << 20));
        let here = subject.expose(one, &mut memory, Access::ReadWrite);
        let there = subject.expose(two, &mut other, Access::ReadWrite);
        let bytes = 1 << 20;
        if is_pull {
            subject.pull(one, ours, (remote(there, 0, bytes), local(here, 0, bytes)), 1);
        } else {
            subject.push(one, ours, (local(here, 0, bytes), remote(there, 0, bytes)), 1);
        }
        assert_eq!(subject.outcome(one, 1), Outcome::Gone);
        assert_eq!(subject.down(one), (ours, Down::Injected));
        assert_eq!(subject.down(two), (theirs, Down::Closed));
        subject.rest(Duration::from_millis(5));
        assert_eq!(subject.events[one], [], "one end of a link");
        let (from, to) = if is_pull { (2, &memory) } else { (1, &other) };
        let (half, rest) = to.0.split_at(1 << 19);
        assert!(half.iter().all(|byte| *byte == from) && rest.iter().all(|byte| *byte != from));
        assert_eq!(script.hits(), 1);
        subject.nodes.clear();
        subject.events.clear();
    }
}

fn a_lost_transfer_ends_well_and_moves_nothing(subject: &mut Subject) {
    let (ours, _, script) = faulty_pair(subject, "pull lose at 1\npush lose at 1");
    let (mut memory, mut other) = (Memory::of(1, 10), Memory::of(2, 10));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadWrite);
    for token in [1, 2] {
        subject.pull(0, ours, (remote(there, 0, 5), local(here, 0, 5)), token);
        assert_eq!(subject.outcome(0, token), Outcome::Ok);
        let is_there = token == 2;
        assert_eq!(memory.0[..5], [if is_there { 2 } else { 1 }; 5]);
        subject.push(0, ours, (local(here, 5, 5), remote(there, 5, 5)), 10 + token);
        assert_eq!(subject.outcome(0, 10 + token), Outcome::Ok);
        assert_eq!(other.0[5..], [if is_there { 1 } else { 2 }; 5]);
    }
    assert_eq!(script.hits(), 2);
}

fn a_cut_transfer_ends_with_its_link(subject: &mut Subject) {
    let (ours, theirs, script) = faulty_pair(subject, "pull cut at 2");
    let (mut memory, mut other) = (Memory::of(1, 1 << 20), Memory::of(2, 1 << 20));
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let there = subject.expose(1, &mut other, Access::ReadWrite);
    let spans = (remote(there, 0, 1 << 20), local(here, 0, 1 << 20));
    subject.pull(0, ours, spans, 1);
    subject.pull(0, ours, spans, 2);
    assert_eq!(subject.outcome(0, 2), Outcome::Gone);
    assert_eq!(subject.outcome(0, 1), Outcome::Gone);
    assert_eq!(subject.down(0), (ours, Down::Injected));
    assert_eq!(subject.down(1), (theirs, Down::Closed));
    assert_eq!(script.hits(), 1);
}

/// What a link does when messages of another one are delayed and due, and wait for room.
#[test]
fn one_that_waits_for_room_does_not_hold_up_others() {
    let mut subject = Subject::memory(None);
    let (ours, _, script) = faulty_pair(&mut subject, "send delay 1ms from 1");
    subject.join(3);
    let (other, _) = subject.link(0, 2);
    let network = subject.network.clone().unwrap();
    network.stop(Member::new(2, 1));
    // Node 1 sleeps: more than the link holds, and all of it is due.
    for number in 0..40 {
        subject.nodes[0].send(ours, &numbered(number), &[1; 60_000]).unwrap();
    }
    let start = subject.nodes[0].now();
    let is_due = |subject: &mut Subject| subject.nodes[0].now() > start + Duration::from_millis(5);
    subject.until_with(&[0, 2], is_due);
    script.replace(forebay_fabric::parse_script("send delay 50ms").unwrap());
    subject.nodes[0].send(other, &numbered(99), &[]).unwrap();
    subject.nodes[0].wake_in(Duration::from_secs(10));
    let start = subject.nodes[0].now();
    let came = |subject: &mut Subject| !subject.events[2].is_empty();
    subject.events[2].clear();
    subject.until_with(&[0, 2], came);
    assert!(subject.nodes[0].now() < start + Duration::from_secs(1), "woken at the caller's time");
    network.resume(Member::new(2, 1));
    for number in 0..40 {
        assert_eq!(subject.message(1).0.request, number);
    }
}

fn is_readable(fabric: &dyn Fabric) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fabric.wait_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(1)
}

/// Room of the inner fabric is for what is delayed, too.
#[test]
fn what_is_delayed_leaves_when_there_is_room() {
    let mut subject = Subject::tls(None);
    let (ours, _, script) = faulty_pair(&mut subject, "");
    let mut sent = 0;
    let mut send = |subject: &mut Subject| {
        let result = subject.nodes[0].send(ours, &numbered(sent), &[1; 60_000]);
        sent += u64::from(result.is_ok());
        result
    };
    for _ in 0..20 {
        while send(&mut subject).is_ok() {}
        subject.step(&[0]);
    }
    script.replace(forebay_fabric::parse_script("send delay 1ms").unwrap());
    for _ in 0..10 {
        assert_eq!(send(&mut subject), Ok(()));
    }
    std::thread::sleep(Duration::from_millis(5));
    subject.nodes[0].poll(&mut Vec::new());
    let (mut came, mut last) = (0, std::time::Instant::now());
    while came < sent {
        assert!(last.elapsed() < Duration::from_secs(3), "{came} of {sent} came");
        let mut events = Vec::new();
        subject.nodes[1].poll(&mut events);
        let messages = events.iter().filter(|event| matches!(event, Event::Message { .. }));
        let before = came;
        came += messages.count() as u64;
        if came > before {
            last = std::time::Instant::now();
        }
        // Nothing but what has happened wakes it.
        if !subject.nodes[0].arm() || is_readable(subject.nodes[0].as_ref()) {
            subject.nodes[0].poll(&mut Vec::new());
        }
    }
}

macro_rules! faults {
    ($($case:ident)*) => {
        mod tls {
            $(#[test]
            fn $case() {
                super::$case(&mut super::Subject::tls(None));
            })*
        }

        #[cfg(feature = "ucx")]
        mod ucx {
            $(#[test]
            fn $case() {
                super::$case(&mut super::Subject::ucx(None));
            })*
        }

        mod memory {
            $(#[test]
            fn $case() {
                super::$case(&mut super::Subject::memory(None));
            })*
        }
    };
}

faults! {
    a_cut_loses_the_message_and_its_link
    a_delay_keeps_the_order
    full_is_followed_by_room
    a_spoilt_byte_costs_the_link
    a_late_token_closes_the_link
    a_torn_transfer_moves_its_half
    a_lost_transfer_ends_well_and_moves_nothing
    a_cut_transfer_ends_with_its_link
}
