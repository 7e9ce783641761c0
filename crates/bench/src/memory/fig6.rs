//! Figure 6: operations on a message queue. Two clients publish; one subscribes.
//!
//! Forebay's is the queue through which clients tell the node manager what needs no descriptor, of
//! the size that every segment has. Two processes publish while a third takes what comes, and wait
//! where the queue is full. NATS passes
//! messages on while they are published, and drops those that have no subscriber; the others keep
//! them. Messages have 32 bytes everywhere, and are looked at when they arrive.

use super::{CLIENTS, together};
use crate::measured::{Claim, Measured, Unit};
use crate::server::Server;
use crate::site::{Site, failed};
use crate::systems::{Broker, MESSAGE_BYTES, Place, memcached, nats, single_server};
use crate::{Options, Scale};
use forebay_pool::FileId;
use forebay_pool::message::{self, Message};
use forebay_pool::queue::PLACES;
use forebay_pool::{Owner, Queue};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const FOREBAY: &str = "Forebay queue";
const PUBLISH: &str = "publish";
const SUBSCRIBE: &str = "subscribe";
const ROUNDS: u32 = 5;
/// Messages of a round.
const MESSAGES: usize = 1 << 19;
/// How long processes wait for each other.
const START_MAX: Duration = Duration::from_secs(60);

const _: () = assert!(message::MESSAGE_BYTES == MESSAGE_BYTES);

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which message did not come.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "Hermes, Figure 6: message queue operations";
    let mut measured = Measured::new("hermes-fig6", title, rounds, is_small);
    // Of each publisher.
    let count = options.scale.of(MESSAGES / CLIENTS, 2 << 10);

    measured.notes.push(format!(
        "{FOREBAY}: {PLACES} places, as in every segment; {CLIENTS} processes publish while another subscribes"
    ));
    let brokers = [&nats::BROKER, &memcached::BROKER, &single_server::BROKER];
    let mut served: Vec<(&Broker, Place, _)> = Vec::new();
    for broker in brokers {
        let name = broker.name;
        if measured.lacks(name, broker.program) {
            continue;
        }
        say(&format!("starting {name}"));
        let place = match broker.has_socket {
            true => Place::Socket(site.path(&format!("{name}.socket"))),
            false => Place::loopback()?,
        };
        let mut server = (broker.start)(&site, &place, &site.path("server.log"))?;
        server.wait(|| place.connect().is_ok())?;
        measured.notes.push(format!("{name}, {}: {}", place.name(), broker.configuration));
        served.push((broker, place, server));
    }
    let rate = |count: usize, ns: f64| count as f64 / ns * 1e9;
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        say(&format!("round {round}: {FOREBAY}"));
        let (published, subscribed) = meet(options, &site, count)?;
        measured.add(PUBLISH, FOREBAY, Unit::Rate, rate(CLIENTS * count, published));
        measured.add(SUBSCRIBE, FOREBAY, Unit::Rate, rate(CLIENTS * count, subscribed));
        for (broker, place, _) in &served {
            let name = broker.name;
            say(&format!("round {round}: {name}"));
            // To wait for each answer would take ten times as long.
            let count = if broker.program.is_none() { count / 8 } else { count };
            let of = |e: String| format!("{name}: {e}");
            (broker.clear)(place).map_err(of)?;
            let ns = together(|client| (broker.publish)(place, client, count)).map_err(of)?;
            measured.add(PUBLISH, name, Unit::Rate, rate(CLIENTS * count, ns));
            let ns = (broker.subscribe)(place, CLIENTS * count).map_err(of)?;
            measured.add(SUBSCRIBE, name, Unit::Rate, rate(CLIENTS * count, ns));
        }
    }
    for (turn, work) in [PUBLISH, SUBSCRIBE].into_iter().enumerate() {
        for broker in brokers {
            measured.claims.push(Claim {
                // What is wanted is what the paper says.
                paper: Some(broker.wanted[turn]),
                ..Claim::ratio(work, (work, FOREBAY), (work, broker.name), broker.wanted[turn])
            });
        }
    }
    Ok(measured)
}

/// What the processes share: the queue as a segment has it, and what starts and times them.
struct Meeting {
    queue: Queue,
    /// Publishers that wait for the start.
    ready: AtomicU32,
    go: AtomicU32,
    /// What each of them took.
    took_ns: [AtomicU64; CLIENTS],
}

/// A file in which processes meet, mapped.
struct Shared {
    meeting: *mut Meeting,
}

impl Shared {
    /// Maps a file; a new one is zeroed, which is an empty queue.
    fn map(path: &Path) -> Result<Shared, String> {
        let failed = |e: std::io::Error| failed(path, &e);
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(failed)?;
        let bytes = size_of::<Meeting>();
        file.set_len(bytes as u64).map_err(failed)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: new memory; of what is in it every bit pattern is one of atomic words.
        let memory = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) };
        Ok(Shared { meeting: memory.map_err(|e| failed(e.into()))?.cast() })
    }

    fn meeting(&self) -> &Meeting {
        // SAFETY: mapped as long as this lives, and aligned to a page.
        unsafe { &*self.meeting }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.meeting.cast(), size_of::<Meeting>()) };
    }
}

/// One of the publishers, a process of its own: publishes when all are ready.
///
/// # Errors
/// The file cannot be mapped, or the consumer does not start it.
pub fn publisher(path: &Path, client: u32, count: usize) -> Result<(), String> {
    let shared = Shared::map(path)?;
    let meeting = shared.meeting();
    let took = meeting.took_ns.get(client as usize).ok_or("no such publisher")?;
    meeting.ready.fetch_add(1, Ordering::AcqRel);
    let since = Instant::now();
    while meeting.go.load(Ordering::Acquire) == 0 {
        if since.elapsed() > START_MAX {
            return Err("nobody starts the publishers".into());
        }
        thread::yield_now();
    }
    let owner = Owner::new(client + 1, 0);
    let since = Instant::now();
    for number in 0..count {
        // As a client that has nothing else to do: the consumer needs the processor.
        while !meeting.queue.push(owner, &stamped(client as usize, number)) {
            thread::yield_now();
        }
    }
    took.store(since.elapsed().as_nanos() as u64, Ordering::Release);
    Ok(())
}

/// Two processes publish while this one subscribes, as a node manager does. Returns nanoseconds of
/// the slowest publisher, and of the subscriber from the first message to the last.
fn meet(options: &Options, site: &Site, count: usize) -> Result<(f64, f64), String> {
    let path = site.path("queue");
    let _ = fs::remove_file(&path);
    let shared = Shared::map(&path)?;
    let meeting = shared.meeting();
    let start = |client: usize| {
        let mut command = Command::new(&options.forebay);
        command.arg("bench-publisher").arg(&path).args([client.to_string(), count.to_string()]);
        Server::start("a publisher", &mut command, &site.path(&format!("publisher{client}.log")))
    };
    let mut publishers: Vec<Server> = (0..CLIENTS).map(start).collect::<Result<_, _>>()?;
    let is_ready = || meeting.ready.load(Ordering::Acquire) == CLIENTS as u32;
    publishers[0].wait(is_ready)?;
    meeting.go.store(1, Ordering::Release);
    let subscribed = subscribe(&meeting.queue, CLIENTS * count)?;
    let took = |client: &AtomicU64| client.load(Ordering::Acquire);
    let since = Instant::now();
    while meeting.took_ns.iter().any(|client| took(client) == 0) {
        if since.elapsed() > START_MAX {
            return Err("a publisher does not end".into());
        }
        thread::yield_now();
    }
    let published = meeting.took_ns.iter().map(took).max().unwrap_or(0);
    Ok((published as f64, subscribed))
}

/// Takes so many messages; each must come once. Of one publisher they may pass each other: the
/// consumer does not wait for a place that is claimed when it looks.
fn subscribe(queue: &Queue, count: usize) -> Result<f64, String> {
    let mut seen = vec![false; count];
    let mut since = None;
    let mut taken = 0;
    let began = Instant::now();
    while taken < count {
        let Some(found) = queue.pop() else {
            queue.wait(1, || false);
            if began.elapsed() > START_MAX {
                return Err("the queue has lost a message".into());
            }
            continue;
        };
        since.get_or_insert_with(Instant::now);
        let due = turn(&found, count / CLIENTS).and_then(|turn| seen.get_mut(turn));
        if std::mem::replace(due.ok_or("the queue has made up a message")?, true) {
            return Err("the queue has given a message twice".into());
        }
        taken += 1;
    }
    Ok(since.map_or(0.0, |since: Instant| since.elapsed().as_nanos() as f64))
}

/// Which of all messages it is, if publishers have so many each.
fn turn(message: &Message, each: usize) -> Option<usize> {
    let Message::Stage { file, first, .. } = *message else { return None };
    let (client, number) = (file.raw() as usize, usize::try_from(first).ok()?);
    let is_stamped = *message == stamped(client, number) && number < each;
    is_stamped.then_some(client * each + number)
}

/// A message that says which process published it, and its number there.
fn stamped(client: usize, number: usize) -> Message {
    let file = FileId::from_raw(client as u32);
    Message::Stage { file, generation: 0, first: number as u64, blocks: 1 }
}
