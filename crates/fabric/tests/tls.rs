//! TLS over TCP: peers that are killed and stopped, and connections of what is no peer.

mod support;

use forebay_fabric::{
    Access, Differs, Down, Event, Fabric, FabricError, GroupKey, Header, Identity, Kind, Link,
    Outcome, Refusal, Region, Tls,
};
use forebay_membership::Member;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{GROUP, Memory, SECRET, Subject, local, numbered, remote, seed};

/// Half a second is what a manager's death may take to be noticed; tests share a busy machine.
const NOTICED: Duration = Duration::from_secs(2);

const MIB: usize = 1 << 20;
const BULK: usize = 64 * MIB;

/// Set in the process that is a peer.
const PEER: &str = "FOREBAY_FABRIC_TEST_PEER";

/// One with descriptors for five connections.
const FEW: &str = "few";

/// A peer in a process of its own, which ends with it.
struct Process {
    child: Child,
    address: String,
    /// 64 MiB of fives that may be written.
    region: Region,
}

const PEER_MEMBER: Member = Member::new(2, 1);

/// Not a test: what the processes of [`Process`] run.
#[test]
fn peer_process() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    let identity = Identity { member: PEER_MEMBER, group: GROUP.into() };
    let mut fabric = Tls::new(identity, &SECRET, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let mut memory = Memory::of(5, BULK);
    // SAFETY: the memory is there until the process ends.
    let region = unsafe { fabric.expose(memory.0.as_mut_ptr(), BULK, Access::ReadWrite) }.unwrap();
    if std::env::var_os(PEER).is_some_and(|how| how == FEW) {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let limit = Rlimit { current: Some(open + 5), maximum: Some(open + 5) };
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    println!("\nPEER {} {}", fabric.address(), region.number());
    loop {
        let mut events = Vec::new();
        fabric.poll(&mut events);
        for event in events {
            if let Event::Message { link, header, body } = event {
                let _ = fabric.send(link, &header, &body);
            }
        }
        if fabric.arm() {
            let stdin = std::io::stdin();
            let mut fds = [
                PollFd::from_borrowed_fd(fabric.wait_fd(), PollFlags::IN),
                PollFd::new(&stdin, PollFlags::IN),
            ];
            poll(&mut fds, None).unwrap();
            // The test is over.
            if !fds[1].revents().is_empty() {
                return;
            }
        }
    }
}

impl Process {
    fn start() -> Self {
        Self::start_as("1")
    }

    fn start_as(how: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer_process", "--nocapture"])
            .env(PEER, how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = lines.map(Result::unwrap).find(|line| line.starts_with("PEER ")).unwrap();
        let words: Vec<_> = told.split(' ').collect();
        let (address, region) = (words[1].to_owned(), words[2].parse().unwrap());
        Self { child, address, region: Region::from_number(region) }
    }

    /// The time of a processor that it has used.
    fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = [11, 12].map(|at| fields[at].parse::<u64>().unwrap());
        Duration::from_millis(10 * (ticks[0] + ticks[1]))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node 0 with a link to the process.
fn with_process(subject: &mut Subject) -> (Process, Link) {
    let process = Process::start();
    if subject.nodes.is_empty() {
        subject.join(1);
    }
    let link = subject.nodes[0].connect(PEER_MEMBER, &process.address).unwrap();
    let up = subject.take(0, |event| matches!(event, Event::Up { .. }));
    assert_eq!(up, Event::Up { link, peer: PEER_MEMBER });
    (process, link)
}

/// Waits for the end of these tokens and the link: all that have not succeeded are gone.
fn all_end(subject: &mut Subject, link: Link, tokens: usize, start: Instant) -> usize {
    let (found, why) = subject.down(0);
    let took = start.elapsed();
    assert!(took < NOTICED, "noticed after {took:?}");
    assert_eq!((found, why), (link, Down::Closed));
    let mut gone = 0;
    let mut ended = vec![false; tokens];
    for event in subject.events[0].drain(..) {
        let Event::Done { token, outcome } = event else { panic!("{event:?}") };
        assert!(matches!(outcome, Outcome::Ok | Outcome::Gone), "{outcome:?}");
        gone += usize::from(outcome == Outcome::Gone);
        assert!(!std::mem::replace(&mut ended[token as usize], true), "{token} ended twice");
    }
    assert!(ended.iter().all(|ended| *ended), "{ended:?}");
    gone
}

#[test]
fn a_killed_peer_ends_tokens_in_each_phase() {
    let mut subject = Subject::tls(None);
    subject.join(1);
    let mut memory = Memory::of(1, BULK);
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let bytes = BULK as u64;

    // Nothing is under way.
    let (process, link) = with_process(&mut subject);
    process.signal(Signal::KILL);
    assert_eq!(all_end(&mut subject, link, 0, Instant::now()), 0);

    // A transfer is asked for, and the peer does not come to answer.
    for is_pull in [true, false] {
        let (process, link) = with_process(&mut subject);
        process.signal(Signal::STOP);
        let (ours, theirs) = (local(here, 0, bytes), remote(process.region, 0, bytes));
        if is_pull {
            subject.pull(0, link, (theirs, ours), 0);
        } else {
            subject.push(0, link, (ours, theirs), 0);
        }
        for _ in 0..5 {
            subject.step_all();
        }
        process.signal(Signal::KILL);
        assert_eq!(all_end(&mut subject, link, 1, Instant::now()), 1);
    }

    // Bytes are on their way.
    for is_pull in [true, false] {
        let (process, link) = with_process(&mut subject);
        const COUNT: usize = 20;
        for token in 0..COUNT as u64 {
            let (ours, theirs) = (local(here, 0, bytes), remote(process.region, 0, bytes));
            if is_pull {
                subject.pull(0, link, (theirs, ours), token);
            } else {
                subject.push(0, link, (ours, theirs), token);
            }
        }
        subject.until(|subject| {
            let status = subject.nodes[0].links()[0];
            status.bytes_in + status.bytes_out > 20 * MIB as u64
        });
        process.signal(Signal::KILL);
        let gone = all_end(&mut subject, link, COUNT, Instant::now());
        assert!(gone > COUNT / 2, "only {gone} were under way");
    }

    // The link is not up yet.
    let process = Process::start();
    process.signal(Signal::STOP);
    let link = subject.nodes[0].connect(PEER_MEMBER, &process.address).unwrap();
    for _ in 0..5 {
        subject.step_all();
    }
    process.signal(Signal::KILL);
    all_end(&mut subject, link, 0, Instant::now());
}

#[test]
fn a_stopped_peer_is_late() {
    let mut subject = Subject::tls(None);
    let (process, link) = with_process(&mut subject);
    // Another link of the same node goes on.
    let other = subject.join(3);
    let (third, _) = subject.link(0, other);
    let mut memory = Memory::of(1, BULK);
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let bytes = BULK as u64;
    let spans = (remote(process.region, 0, bytes), local(here, 0, bytes));
    subject.pull(0, link, spans, 1);
    subject.until(|subject| subject.nodes[0].links()[0].bytes_in > MIB as u64);
    process.signal(Signal::STOP);
    let start = Instant::now();
    let within = Duration::from_millis(500);
    subject.nodes[0].pull(link, spans.0, spans.1, 2, within).unwrap();
    while start.elapsed() < within / 2 {
        subject.send(0, third, &numbered(7), &[]);
        assert_eq!(subject.message(other).0.request, 7);
    }
    assert_eq!(subject.outcome(0, 2), Outcome::Late);
    assert!(start.elapsed() >= within);
    assert_eq!(subject.outcome(0, 1), Outcome::Gone);
    assert_eq!(subject.down(0), (link, Down::Late));
    // It goes on, and nothing of what it does gets there.
    subject.nodes[0].withdraw(here).unwrap();
    memory.0.fill(4);
    process.signal(Signal::CONT);
    subject.rest(Duration::from_millis(200));
    assert!(memory.0.iter().all(|byte| *byte == 4));
    let again = subject.nodes[0].connect(PEER_MEMBER, &process.address).unwrap();
    let up = Event::Up { link: again, peer: PEER_MEMBER };
    subject.take(0, |event| *event == up);
}

#[test]
fn a_peer_that_does_not_read_costs_no_time() {
    let mut subject = Subject::tls(None);
    let (process, link) = with_process(&mut subject);
    process.signal(Signal::STOP);
    let is_full = |subject: &mut Subject| {
        let sent = subject.nodes[0].send(link, &numbered(1), &[0; 60_000]);
        sent == Err(FabricError::Full)
    };
    subject.until(is_full);
    let settled = |subject: &mut Subject| {
        subject.step_all();
        subject.nodes[0].arm() && !subject.events[0].iter().any(|e| matches!(e, Event::Room { .. }))
    };
    subject.until(settled);
    let mut woken = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        let wait = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        let mut fds = [PollFd::from_borrowed_fd(subject.nodes[0].wait_fd(), PollFlags::IN)];
        woken += poll(&mut fds, Some(&wait)).unwrap();
        subject.nodes[0].poll(&mut subject.events[0]);
        subject.nodes[0].arm();
    }
    assert!(woken < 20, "woken {woken} times");
}

#[test]
fn a_node_without_descriptors_waits_for_some() {
    let mut subject = Subject::tls(None);
    subject.join(1);
    let process = Process::start_as(FEW);
    let address: SocketAddr = process.address.parse().unwrap();
    let sockets: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(200));
    let (start, before) = (Instant::now(), process.processor_time());
    std::thread::sleep(Duration::from_millis(600));
    let used = process.processor_time() - before;
    assert!(used * 5 < start.elapsed(), "{used:?} of {:?}", start.elapsed());
    drop(sockets);
    let link = subject.nodes[0].connect(PEER_MEMBER, &process.address).unwrap();
    let up = Event::Up { link, peer: PEER_MEMBER };
    subject.take(0, |event| *event == up);
}

/// A node 0 that is attacked, with a link to node 1 that has to go on.
struct Victim {
    subject: Subject,
    link: Link,
    count: u64,
}

impl Victim {
    fn new() -> Self {
        let mut subject = Subject::tls(None);
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

/// The first frame of a member of the group.
fn hello(member: Member) -> Vec<u8> {
    let mut body = GroupKey::derive(&SECRET).unwrap().group_id(GROUP).to_vec();
    // For any node, from no address.
    body.extend([0; 8]);
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
    victim.refused(Refusal::Crowd, 136);
    assert_eq!(victim.subject.nodes[0].counters().unfinished, 64);
    let node = victim.subject.join(3);
    let (_, link) = victim.subject.link(node, 0);
    victim.subject.nodes[0].close(link);
    victim.subject.down(node);
    drop(sockets);
    victim.subject.until(|subject| subject.nodes[0].counters().unfinished == 0);
    victim.goes_on();
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

#[test]
fn each_address_is_tried() {
    let mut subject = Subject::tls(None);
    subject.join(1);
    let identity = Identity { member: Member::new(2, 1), group: GROUP.into() };
    let listen = ["127.0.0.1:0".parse().unwrap(), "127.0.0.2:0".parse().unwrap()];
    subject.add(Box::new(Tls::new(identity, &SECRET, &listen).unwrap()));
    let both = subject.nodes[1].address().to_owned();
    let (first, second) = both.split_once(',').unwrap();
    assert!(first.starts_with("127.0.0.1:") && second.starts_with("127.0.0.2:"), "{both}");
    // Nothing listens at the first, another node at the second.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
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
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let identity = Identity { member: Member::new(1, 1), group: GROUP.into() };
    let first = Tls::new(identity.clone(), &SECRET, &[taken]).unwrap();
    assert_eq!(first.address(), taken.to_string());
    let error = Tls::new(identity, &SECRET, &[taken]).err().unwrap().to_string();
    assert!(error.contains(&taken.to_string()) && error.contains("in use"), "{error}");
    let long = Identity { member: Member::new(1, 1), group: "g".repeat(129) };
    assert!(matches!(Tls::new(long, &SECRET, &[]), Err(FabricError::Address(_))));
}
