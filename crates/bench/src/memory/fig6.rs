//! Figure 6: operations on a message queue. Two clients publish; one subscribes.
//!
//! Forebay's is the queue through which clients tell the node manager what needs no descriptor,
//! here with room for all messages of a round, so that none waits for the other side. NATS passes
//! messages on while they are published, and drops those that have no subscriber; the others keep
//! them. Messages have 32 bytes everywhere, and are looked at when they arrive.

use super::{CLIENTS, together};
use crate::measured::{Claim, Measured, Unit};
use crate::site::Site;
use crate::systems::{Broker, MESSAGE_BYTES, Place, memcached, nats, single_server};
use crate::{Options, Scale};
use forebay_pool::FileId;
use forebay_pool::message::{self, Message};
use forebay_pool::{Owner, Queue};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::process::Command;
use std::time::Instant;

const FOREBAY: &str = "Forebay queue";
const PUBLISH: &str = "publish";
const SUBSCRIBE: &str = "subscribe";
const ROUNDS: u32 = 5;
/// Messages that the queue has room for.
const ROOM: usize = 1 << 19;

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
    let count = options.scale.of(ROOM / CLIENTS, 2 << 10);

    let queue = Shared::new()?;
    let brokers = [&nats::BROKER, &memcached::BROKER, &single_server::BROKER];
    let mut served: Vec<(&Broker, Place, _)> = Vec::new();
    for broker in brokers {
        let name = broker.name;
        if let Some(program) = broker.program
            && Command::new(program).arg("--version").output().is_err()
        {
            measured.notes.push(format!("NOT MEASURED: {name}: {program} is not installed"));
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
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}: {FOREBAY}"));
        let ns = together(|client| queue.publish(client, count))?;
        measured.add(PUBLISH, FOREBAY, Unit::Rate, rate(CLIENTS * count, ns));
        let ns = queue.subscribe(CLIENTS * count)?;
        measured.add(SUBSCRIBE, FOREBAY, Unit::Rate, rate(CLIENTS * count, ns));
        for (broker, place, _) in &served {
            let name = broker.name;
            say(&format!("round {round} of {rounds}: {name}"));
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

/// A queue in memory that processes could share.
struct Shared {
    queue: *mut Queue<ROOM>,
}

// SAFETY: a queue is made for many threads, and lives as long as this.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Result<Shared, String> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = size_of::<Queue<ROOM>>();
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: new memory, zeroed, which is an empty queue.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
        Ok(Shared { queue: memory.map_err(|e| format!("memory for a queue: {e}"))?.cast() })
    }

    fn queue(&self) -> &Queue<ROOM> {
        // SAFETY: mapped as long as this lives.
        unsafe { &*self.queue }
    }

    fn publish(&self, client: usize, count: usize) -> Result<(), String> {
        let owner = Owner::new(1, client as u32);
        for number in 0..count {
            if !self.queue().push(owner, &stamped(client, number)) {
                return Err("the queue is full".into());
            }
        }
        Ok(())
    }

    /// Takes all; those of each publisher must come in order.
    fn subscribe(&self, count: usize) -> Result<f64, String> {
        let mut next = [0; CLIENTS];
        let since = Instant::now();
        for _ in 0..count {
            let found = self.queue().pop().ok_or("the queue has lost a message")?;
            let due = next
                .iter_mut()
                .enumerate()
                .find(|(from, number)| found == stamped(*from, **number));
            *due.ok_or("the queue has mixed messages up")?.1 += 1;
        }
        Ok(since.elapsed().as_nanos() as f64)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no thread uses it any more.
        let _ = unsafe { munmap(self.queue.cast(), size_of::<Queue<ROOM>>()) };
    }
}

/// A message that says which thread published it, and its number there.
fn stamped(client: usize, number: usize) -> Message {
    let file = FileId::from_raw(client as u32);
    Message::Stage { file, generation: 0, first: number as u64, blocks: 1 }
}
