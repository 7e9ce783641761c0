//! TLS over TCP: connections of what is no peer.

mod support;

use forebay_fabric::{
    Access, Differs, Down, Event, Fabric, FabricError, GroupKey, Header, Identity, Kind, LINKS_MAX,
    Link, Refusal, Tls,
};
use forebay_membership::Member;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::net;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use support::{GROUP, Memory, SECRET, Subject, numbered, seed};

/// A node 0 that is attacked, with a link to node 1 that has to go on.
struct Victim {
    subject: Subject,
    link: Link,
    count: u64,
}

impl Victim {
    fn new() -> Self {
        let mut subject = Subject::tls_with_others();
        let (one, two) = (subject.join(1), subject.join(2));
        let (_, link) = subject.link(two, one);
        Self { subject, link, count: 0 }
    }

    fn address(&self) -> SocketAddr {
        self.subject.nodes[0].address().parse().unwrap()
    }

    /// The link works, and nothing came from elsewhere.
    fn goes_on(&mut self) {
        self.exchange();
        assert_eq!(self.subject.nodes[0].counters().links, 1);
    }

    /// A message over its link.
    fn exchange(&mut self) {
        self.count += 1;
        self.subject.send(0, self.link, &numbered(self.count), &[]);
        assert_eq!(self.subject.message(1).0.request, self.count);
    }

    fn refused(&mut self, why: Refusal, count: u64) {
        self.subject.until(|subject| subject.nodes[0].counters().refused(why) >= count);
        let counters = self.subject.nodes[0].counters();
        assert_eq!((counters.refused(why), counters.refused_in_all()), (count, count));
    }
}

/// TLS of the group, by hand, as the side that connects.
fn by_hand(to: SocketAddr, secret: &[u8; 32]) -> StreamOwned<ClientConnection, TcpStream> {
    let (config, name) = GroupKey::derive(secret).unwrap().client();
    let socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(support::PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), socket)
}

/// The first frame of a member of the group, by a link that ends its others.
fn hello(member: Member) -> Vec<u8> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let mut body = GroupKey::derive(&SECRET).unwrap().group_id(GROUP).to_vec();
    // For any node.
    body.extend([0; 6]);
    body.extend(NUMBER.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    let header = Header { kind: Kind(0xff00), sender: member, ..Header::default() };
    [&header.write(&body)[..], &body].concat()
}

/// Runs `attack` in a thread while the victim goes on.
fn attack<T: Send + 'static>(
    victim: &mut Victim,
    attack: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> T {
    let address = victim.address();
    let thread = std::thread::spawn(move || attack(address));
    while !thread.is_finished() {
        victim.exchange();
    }
    thread.join().unwrap()
}

#[test]
fn another_secret_is_refused() {
    let mut victim = Victim::new();
    let identity = Identity { member: Member::new(3, 1), group: GROUP.into() };
    let listen = ["127.0.0.1:0".parse().unwrap()];
    let stranger = Tls::new(identity, &[8; 32], &listen).unwrap();
    let node = victim.subject.add(Box::new(stranger));
    let address = victim.address().to_string();
    for count in 1..=3 {
        let link = victim.subject.nodes[node].connect(Member::new(1, 1), &address).unwrap();
        assert_eq!(victim.subject.down(node), (link, Down::Tls));
        victim.refused(Refusal::Tls, count);
    }
    // The other way round it is the stranger that is not believed.
    let address = victim.subject.nodes[node].address().to_owned();
    let link = victim.subject.nodes[0].connect(Member::new(3, 1), &address).unwrap();
    assert_eq!(victim.subject.down(0), (link, Down::Tls));
    victim.goes_on();
}

#[test]
fn another_version_is_refused() {
    let mut victim = Victim::new();
    let answered = attack(&mut victim, |address| {
        let mut tls = by_hand(address, &SECRET);
        let mut frame = hello(Member::new(3, 1));
        frame[0] += 1;
        tls.write_all(&frame).unwrap();
        let mut answer = Vec::new();
        let _ = tls.read_to_end(&mut answer);
        answer
    });
    // It hears whom it speaks to, and can say what differs.
    assert_eq!((answered[0], answered[2], answered[3]), (1, 0, 0xff));
    victim.refused(Refusal::Hello, 1);
    victim.goes_on();
}

#[test]
fn a_listener_of_another_version_is_named() {
    let mut victim = Victim::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let config = GroupKey::derive(&SECRET).unwrap().server();
        let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
        let mut frame = hello(Member::new(3, 1));
        frame[0] += 1;
        tls.write_all(&frame).unwrap();
        let _ = tls.read_to_end(&mut Vec::new());
    });
    let link = victim.subject.nodes[0].connect(Member::new(3, 1), &address).unwrap();
    assert_eq!(victim.subject.down(0), (link, Down::Mismatch(Differs::Version)));
    victim.subject.until(|_| thread.is_finished());
    thread.join().unwrap();
    victim.goes_on();
}

#[test]
fn rubbish_is_refused() {
    let mut victim = Victim::new();
    let seed = seed();
    attack(&mut victim, move |address| {
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..100 {
            let mut bytes = vec![0; rng.random_range(10..3000)];
            rng.fill_bytes(&mut bytes);
            if rng.random() {
                // As if it were the start of TLS.
                bytes[..5].copy_from_slice(&[22, 3, 1, rng.random_range(0..60), rng.random()]);
            }
            let mut socket = TcpStream::connect(address).unwrap();
            let _ = socket.write_all(&bytes);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    victim.refused(Refusal::Tls, 100);
    victim.goes_on();
}

#[test]
fn rubbish_of_a_member_costs_its_link() {
    let mut victim = Victim::new();
    let mut memory = Memory::of(1, 4096);
    let region = victim.subject.expose(0, &mut memory, Access::ReadOnly);
    let seed = seed();
    attack(&mut victim, move |address| {
        let mut rng = SmallRng::seed_from_u64(seed);
        for count in 0..40 {
            let mut tls = by_hand(address, &SECRET);
            let member = Member::new(3, 1);
            if count % 4 > 0 {
                tls.write_all(&hello(member)).unwrap();
            }
            for _ in 0..50 {
                let bytes = if count % 4 == 1 {
                    let mut bytes = vec![0; 3000];
                    rng.fill_bytes(&mut bytes);
                    bytes
                } else {
                    let header = Header {
                        kind: Kind(rng.random_range(0xff00..0xff0a)),
                        sender: member,
                        file: region.number(),
                        request: rng.random_range(0..3),
                        first_block: rng.random_range(0..5000),
                        count: rng.random_range(0..5000),
                        ..Header::default()
                    };
                    header.write(&[]).to_vec()
                };
                if tls.write_all(&bytes).is_err() {
                    break;
                }
            }
            // To its end, which the other side makes.
            let _ = tls.read_to_end(&mut Vec::new());
        }
    });
    let ended = |subject: &mut Subject| {
        let downs = subject.events[0].iter().filter(|e| matches!(e, Event::Down { .. })).count();
        let ups = subject.events[0].iter().filter(|e| matches!(e, Event::Up { .. })).count();
        subject.nodes[0].counters().refused(Refusal::Hello) == 10 && (ups, downs) == (30, 30)
    };
    victim.subject.until(ended);
    for event in victim.subject.events[0].drain(..) {
        let is_refused = matches!(event, Event::Down { why: Down::Refused(_), .. });
        // What looks like a refusal of the link is one.
        let is_ended = matches!(event, Event::Down { why: Down::RefusedByPeer, .. });
        assert!(is_refused || is_ended || matches!(event, Event::Up { .. }), "{event:?}");
    }
    victim.subject.nodes[0].withdraw(region).unwrap();
    assert!(memory.0.iter().all(|byte| *byte == 1), "what may only be read was written");
    victim.goes_on();
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let mut victim = Victim::new();
    let start = Instant::now();
    let read = attack(&mut victim, |address| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.read(&mut [0]).unwrap()
    });
    assert_eq!(read, 0, "the end of the stream");
    let took = start.elapsed();
    assert!((5..20).contains(&took.as_secs()), "closed after {took:?}");
    victim.refused(Refusal::Timeout, 1);
    assert_eq!(victim.subject.nodes[0].counters().unfinished, 0);
    victim.goes_on();
}

#[test]
fn a_port_scanner_does_not_keep_peers_out() {
    let mut victim = Victim::new();
    let sockets = attack(&mut victim, |address| {
        let connect = |_| TcpStream::connect(address).unwrap();
        (0..200).map(connect).collect::<Vec<_>>()
    });
    victim.subject.until(|subject| subject.nodes[0].counters().refused(Refusal::Crowd) > 64);
    assert!(victim.subject.nodes[0].counters().unfinished <= 64);
    let node = victim.subject.join(3);
    let (_, link) = victim.subject.link(node, 0);
    victim.subject.nodes[0].close(link);
    victim.subject.down(node);
    drop(sockets);
    let all = |subject: &mut Subject| {
        let counters = subject.nodes[0].counters();
        counters.refused_in_all() == 200 && counters.unfinished == 0
    };
    victim.subject.until(all);
    victim.goes_on();
}

#[test]
fn who_speaks_is_not_turned_away_for_who_is_silent() {
    let mut victim = Victim::new();
    // One that has begun to speak, and is slow; then more than may be that say nothing.
    let speaks = attack(&mut victim, |address| {
        let mut speaks = TcpStream::connect(address).unwrap();
        // The start of a record.
        speaks.write_all(&[22, 3, 1, 1]).unwrap();
        speaks.set_read_timeout(Some(support::PATIENCE)).unwrap();
        speaks
    });
    let count = |subject: &Subject| subject.nodes[0].counters().refused(Refusal::Crowd);
    let silent = attack(&mut victim, |address| {
        (0..70).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
    });
    victim.subject.until(|subject| count(subject) == 7);
    speaks.set_nonblocking(true).unwrap();
    let end = (&speaks).read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::WouldBlock), "it was turned away");
    drop(silent);
    victim.goes_on();
}

#[test]
fn refusals_come_before_the_end() {
    let mut victim = Victim::new();
    const COUNT: u64 = 100;
    let (requests, mut heard) = attack(&mut victim, |address| {
        let member = Member::new(3, 1);
        let mut tls = by_hand(address, &SECRET);
        let pull = |request| Header {
            kind: Kind(0xff01),
            sender: member,
            request,
            // No region is ever 0.
            ..Header::default()
        };
        let mut frames = hello(member);
        frames.extend((1..=COUNT).flat_map(|request| pull(request).write(&[])));
        frames.extend([0xee; 64]);
        tls.write_all(&frames).unwrap();
        let mut heard = Vec::new();
        let _ = tls.read_to_end(&mut heard);
        (COUNT, heard)
    });
    // Behind its hello.
    let body = u32::from_le_bytes([heard[52], heard[53], heard[54], heard[55]]) as usize;
    heard.drain(..64 + body);
    let refused = heard.chunks(64).filter(|head| head[2..4] == [0x05, 0xff]);
    let refused: Vec<_> =
        refused.map(|head| u64::from_le_bytes(head[16..24].try_into().unwrap())).collect();
    assert_eq!(refused, (1..=requests).chain([0]).collect::<Vec<_>>());
    victim.goes_on();
}

#[test]
fn many_peers_may_come_at_once() {
    let mut subject = Subject::tls_with_others();
    let (one, two) = (subject.join(1), subject.join(2));
    let (peer, address) = (subject.nodes[one].member(), subject.nodes[one].address().to_owned());
    const COUNT: usize = LINKS_MAX;
    for _ in 0..COUNT {
        subject.nodes[two].connect(peer, &address).unwrap();
    }
    let counters = |subject: &Subject| subject.nodes[one].counters();
    subject.until(|subject| counters(subject).links == COUNT);
    assert_eq!(counters(&subject).refused_in_all(), 0);
    let up = |event: &Event| matches!(event, Event::Up { .. });
    assert!(subject.events[two].iter().all(up));
    subject.until(|subject| counters(subject).links == subject.nodes[two].counters().links);
    // One more of the same member is too many, and costs itself alone.
    subject.events[two].clear();
    let link = subject.nodes[two].connect(peer, &address).unwrap();
    let (found, why) = subject.down(two);
    assert!(found != link || why == Down::Refused(Refusal::Flood), "{why:?}");
    assert_eq!((found, counters(&subject).links), (link, COUNT));
}

/// Passes one connection on, and keeps what the side that has connected says.
fn listen_in(to: SocketAddr) -> (SocketAddr, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut back, mut front) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let answers = std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut front);
            let _ = front.shutdown(std::net::Shutdown::Both);
        });
        let mut heard = Vec::new();
        let mut piece = [0; 65536];
        while let Ok(len @ 1..) = client.read(&mut piece) {
            heard.extend(&piece[..len]);
            server.write_all(&piece[..len]).unwrap();
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
        answers.join().unwrap();
        heard
    });
    (address, thread)
}

#[test]
fn what_was_heard_is_of_no_use() {
    let mut victim = Victim::new();
    let node = victim.subject.join(3);
    let (proxy, thread) = listen_in(victim.address());
    let peer = Member::new(1, 1);
    let link = victim.subject.nodes[node].connect(peer, &proxy.to_string()).unwrap();
    let up = Event::Up { link, peer };
    victim.subject.take(node, |event| *event == up);
    victim.subject.send(node, link, &numbered(77), b"for one ear");
    assert_eq!(victim.subject.message(0).0.request, 77);
    victim.subject.nodes[node].close(link);
    victim.subject.down(0);
    victim.subject.until(|_| thread.is_finished());
    let heard = thread.join().unwrap();
    assert!(heard.len() > 300 && !heard.windows(11).any(|part| part == b"for one ear"));
    victim.subject.events[0].clear();
    for count in 1..=3 {
        let heard = heard.clone();
        attack(&mut victim, move |address| {
            let mut socket = TcpStream::connect(address).unwrap();
            let _ = socket.write_all(&heard);
            let _ = socket.read_to_end(&mut Vec::new());
        });
        victim.refused(Refusal::Tls, count);
    }
    assert_eq!(victim.subject.events[0], []);
    victim.goes_on();
}

/// A port that is taken, and where nothing listens.
fn closed_port() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

#[test]
fn each_address_is_tried() {
    let mut subject = Subject::tls_with_others();
    subject.join(1);
    let identity = Identity { member: Member::new(2, 1), group: GROUP.into() };
    let listen = ["127.0.0.1:0".parse().unwrap(), "127.0.0.2:0".parse().unwrap()];
    subject.add(Box::new(Tls::new(identity, &SECRET, &listen).unwrap()));
    let both = subject.nodes[1].address().to_owned();
    let (first, second) = both.split_once(',').unwrap();
    assert!(first.starts_with("127.0.0.1:") && second.starts_with("127.0.0.2:"), "{both}");
    // Nothing listens at the first, another node at the second.
    let (_socket, closed) = closed_port();
    let other = subject.join(3);
    let other = subject.nodes[other].address().to_owned();
    let all = format!("{closed},{other},{second}");
    let peer = Member::new(2, 1);
    let link = subject.nodes[0].connect(peer, &all).unwrap();
    let up = Event::Up { link, peer };
    subject.take(0, |event| *event == up);
    assert!(subject.events[0].is_empty());
    // One that is tried and one that cannot be.
    let link = subject.nodes[0].connect(peer, &format!("{closed},255.255.255.255:1")).unwrap();
    assert_eq!(subject.down(0), (link, Down::Unreachable));
    for wrong in ["", "127.0.0.1", "localhost:1", &format!("{first}:1"), &"1".repeat(513)] {
        let error = subject.nodes[0].connect(peer, wrong).unwrap_err();
        assert!(matches!(error, FabricError::Address(_)), "{wrong}: {error}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let identity = Identity { member: Member::new(1, 1), group: GROUP.into() };
    let any = "127.0.0.1:0".parse().unwrap();
    let first = Tls::new(identity.clone(), &SECRET, &[any]).unwrap();
    let taken: SocketAddr = first.address().parse().unwrap();
    let error = Tls::new(identity.clone(), &SECRET, &[taken]).err().unwrap().to_string();
    assert!(error.contains(&taken.to_string()) && error.contains("in use"), "{error}");
    for any in ["0.0.0.0:0", "[::]:0"] {
        let error = Tls::new(identity.clone(), &SECRET, &[any.parse().unwrap()]).err().unwrap();
        assert!(matches!(error, FabricError::Address(_)), "{error:?}");
        assert!(error.to_string().contains("interface"), "{error}");
    }
    let long = Identity { member: Member::new(1, 1), group: "g".repeat(129) };
    assert!(matches!(Tls::new(long, &SECRET, &[]), Err(FabricError::Address(_))));
}
