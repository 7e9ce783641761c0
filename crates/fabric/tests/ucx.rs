//! What is said to UCX by those who are no peers.
#![cfg(feature = "ucx")]

mod support;

use forebay_fabric::{
    Access, Down, Event, Fabric, FabricError, Identity, Outcome, Over, Refusal, Ucx, UcxListener,
};
use forebay_membership::Member;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use support::{GROUP, Memory, SECRET, Subject, local, numbered, remote, seed};

fn make(node: u16, secret: &[u8; 32]) -> Result<Ucx, FabricError> {
    let identity = Identity { member: Member::new(node, 1), group: GROUP.into() };
    Ucx::new(identity, secret, &["127.0.0.1:0".parse().unwrap()], Over::TrustedNetwork)
}

#[test]
fn another_secret_is_refused() {
    let mut subject = Subject::ucx(None);
    subject.join(1);
    subject.add(Box::new(make(2, &[8; 32]).unwrap()));
    for (from, to) in [(0, 1), (1, 0)] {
        let (peer, at) = (subject.nodes[to].member(), subject.nodes[to].address().to_owned());
        let link = subject.nodes[from].connect(peer, &at).unwrap();
        assert_eq!(subject.down(from), (link, Down::Tls));
        subject.until(|subject| subject.nodes[to].counters().refused(Refusal::Tls) == 1);
    }
    assert!(subject.events.iter().all(Vec::is_empty));
    assert_eq!(subject.nodes[0].counters().links, 0);
}

#[test]
fn without_a_device_or_a_word_it_does_not_begin() {
    if !forebay_fabric::rdma_devices().is_empty() && cfg!(feature = "rdma") {
        println!("skipped: there is an RDMA device");
        return;
    }
    let identity = Identity { member: Member::new(1, 1), group: GROUP.into() };
    let made = Ucx::new(identity, &SECRET, &["127.0.0.1:0".parse().unwrap()], Over::Rdma);
    let Err(FabricError::System(why)) = made else { panic!("it began") };
    assert!(why.contains("trusted_network = true") && why.contains("fabric = \"tls\""), "{why}");
}

#[test]
fn an_address_that_is_in_use_is_named() {
    let one = make(1, &SECRET).unwrap();
    let at: SocketAddr = one.address().parse().unwrap();
    let mut other = UcxListener::new(Over::TrustedNetwork, &[at.ip()]).unwrap();
    assert_eq!(other.listen(at), Err(FabricError::InUse(at)));
    drop(one);
    assert_eq!(other.listen(at), Ok(at));
}

#[test]
fn each_address_is_tried() {
    let mut subject = Subject::ucx(None);
    subject.join(1);
    subject.join(2);
    let peer = subject.nodes[1].member();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("{closed},{closed},{}", subject.nodes[1].address());
    let link = subject.nodes[0].connect(peer, &address).unwrap();
    let up = subject.take(0, |event| matches!(event, Event::Up { .. } | Event::Down { .. }));
    assert_eq!(up, Event::Up { link, peer });
    let link = subject.nodes[0].connect(peer, &format!("{closed},{closed}")).unwrap();
    assert_eq!(subject.down(0), (link, Down::Unreachable));
}

#[test]
fn many_peers_may_come_at_once() {
    let mut subject = Subject::ucx(None);
    subject.join(1);
    subject.join(2);
    let (peer, at) = (subject.nodes[1].member(), subject.nodes[1].address().to_owned());
    const COUNT: usize = 200;
    for _ in 0..COUNT {
        subject.nodes[0].connect(peer, &at).unwrap();
    }
    for node in [0, 1] {
        for _ in 0..COUNT {
            subject.take(node, |event| matches!(event, Event::Up { .. }));
        }
    }
    assert!(subject.events.iter().all(Vec::is_empty));
}

/// A pair that still does what it should.
fn check(subject: &mut Subject, link: forebay_fabric::Link) {
    subject.send(0, link, &numbered(1), b"still there");
    assert_eq!(subject.message(1).1, b"still there");
    let (mut here, mut there) = (Memory::of(1, 1 << 20), Memory::of(2, 1 << 20));
    let into = subject.expose(0, &mut here, Access::ReadWrite);
    let from = subject.expose(1, &mut there, Access::ReadOnly);
    subject.pull(0, link, (remote(from, 0, 1 << 20), local(into, 0, 1 << 20)), 1);
    assert_eq!(subject.outcome(0, 1), Outcome::Ok);
    subject.nodes[0].withdraw(into).unwrap();
    subject.nodes[1].withdraw(from).unwrap();
    assert!(here.0.iter().all(|byte| *byte == 2));
}

/// Lets both sides do what they have to, while a stranger does what `stranger` says.
fn beside(subject: &mut Subject, stranger: impl FnOnce() + Send + 'static) {
    let stranger = std::thread::spawn(stranger);
    subject.until(|_| stranger.is_finished());
    stranger.join().unwrap();
}

#[test]
fn a_port_scan_costs_nothing() {
    let mut subject = Subject::ucx(None);
    let (link, _) = subject.pair();
    let at: SocketAddr = subject.nodes[1].address().parse().unwrap();
    beside(&mut subject, move || {
        for _ in 0..300 {
            drop(TcpStream::connect(at).unwrap());
        }
        let open: Vec<_> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
        drop(open);
    });
    check(&mut subject, link);
    let (later, _) = subject.link(0, 1);
    check(&mut subject, later);
}

#[test]
fn rubbish_at_the_port_costs_nothing() {
    let mut subject = Subject::ucx(None);
    let (link, _) = subject.pair();
    let at: SocketAddr = subject.nodes[1].address().parse().unwrap();
    let mut rng = SmallRng::seed_from_u64(seed());
    for _ in 0..60 {
        let mut rubbish = vec![0; rng.random_range(1..4000)];
        match rng.random_range(0..3) {
            0 => rng.fill_bytes(&mut rubbish),
            1 => rubbish.fill(0xff),
            // A length that could be one, then what could be anything.
            _ => {
                rng.fill_bytes(&mut rubbish);
                let len = (rubbish.len() as u64).to_le_bytes();
                let with = rubbish.len().min(8);
                rubbish[..with].copy_from_slice(&len[..with]);
            }
        }
        beside(&mut subject, move || {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            // It may be closed meanwhile.
            let _ = stream.write_all(&rubbish);
            let _ = stream.read(&mut [0; 64]);
        });
    }
    check(&mut subject, link);
    let (later, _) = subject.link(0, 1);
    check(&mut subject, later);
}
