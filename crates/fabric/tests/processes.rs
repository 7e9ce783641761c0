//! Peers that are processes of their own, which are killed and stopped.

mod support;

use forebay_fabric::{Access, Down, Event, FabricError, Link, Outcome, Region};
use forebay_membership::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{GROUP, Memory, Subject, local, numbered, remote};

/// Half a second is what a manager's death may take to be noticed; tests share a busy machine.
const NOTICED: Duration = Duration::from_secs(5);

const MIB: usize = 1 << 20;
const BULK: usize = 64 * MIB;

/// Set in the process that is a peer.
const PEER: &str = "FOREBAY_FABRIC_TEST_PEER";

/// One by TLS with descriptors for five connections.
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
    let Ok(how) = std::env::var(PEER) else { return };
    let made = if how == FEW { Subject::tls(None) } else { subject_of(&how) };
    let mut fabric = made.make(PEER_MEMBER, GROUP, None);
    let mut memory = Memory::of(5, BULK);
    // SAFETY: the memory is there until the process ends.
    let region = unsafe { fabric.expose(memory.0.as_mut_ptr(), BULK, Access::ReadWrite) }.unwrap();
    if how == FEW {
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

/// Fabrics of a kind, with peers that are not its nodes.
fn subject_of(kind: &str) -> Subject {
    match kind {
        "tls" => Subject::tls_with_others(),
        #[cfg(feature = "ucx")]
        "ucx" => Subject::ucx(None),
        _ => panic!("{kind}: no such kind"),
    }
}

impl Process {
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
        // Each of its threads stops when it is its turn.
        let stops = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            tasks.into_iter().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
                stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
            })
        };
        while signal == Signal::STOP && !stops() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node 0 with a link to the process.
fn with_process(subject: &mut Subject, kind: &str) -> (Process, Link) {
    let process = Process::start_as(kind);
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

fn a_killed_peer_ends_tokens_in_each_phase(kind: &str) {
    let mut subject = subject_of(kind);
    subject.join(1);
    let mut memory = Memory::of(1, BULK);
    let here = subject.expose(0, &mut memory, Access::ReadWrite);
    let bytes = BULK as u64;

    // Nothing is under way.
    let (process, link) = with_process(&mut subject, kind);
    process.signal(Signal::KILL);
    assert_eq!(all_end(&mut subject, link, 0, Instant::now()), 0);

    // A transfer is asked for, and the peer does not come to answer.
    for is_pull in [true, false] {
        let (process, link) = with_process(&mut subject, kind);
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
        let (process, link) = with_process(&mut subject, kind);
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
    let process = Process::start_as(kind);
    process.signal(Signal::STOP);
    let link = subject.nodes[0].connect(PEER_MEMBER, &process.address).unwrap();
    for _ in 0..5 {
        subject.step_all();
    }
    process.signal(Signal::KILL);
    all_end(&mut subject, link, 0, Instant::now());
}

fn a_stopped_peer_is_late(kind: &str) {
    let mut subject = subject_of(kind);
    let (process, link) = with_process(&mut subject, kind);
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

fn a_peer_that_does_not_read_costs_no_time(kind: &str) {
    let mut subject = subject_of(kind);
    let (process, link) = with_process(&mut subject, kind);
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
    let mut subject = Subject::tls_with_others();
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

macro_rules! of_each_kind {
    ($($kind:ident)*) => {
        $(mod $kind {
            of_each_kind! { @cases $kind;
                a_killed_peer_ends_tokens_in_each_phase
                a_stopped_peer_is_late
                a_peer_that_does_not_read_costs_no_time
            }
        })*
    };
    (@cases $kind:ident; $($case:ident)*) => {
        $(#[test]
        fn $case() {
            super::$case(stringify!($kind));
        })*
    };
}

of_each_kind! { tls }
#[cfg(feature = "ucx")]
of_each_kind! { ucx }
