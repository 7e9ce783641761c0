//! Figure 6 with clients on several nodes: one node subscribes, and the others publish, over the
//! links that node managers have (TLS 1.3 over TCP), or by NATS on the subscriber's node.
//!
//! A message has 32 bytes, behind the header of the link's own. A publisher is done when the
//! subscriber has said that it has all; each message is looked at when it arrives.

use super::spaces::Spaces;
use super::{PORT, address, on_each, site};
use crate::links::{self, Waiting, said};
use crate::measured::{Claim, Measured, Unit};
use crate::systems::{MESSAGE_BYTES, Place, message, nats};
use crate::{Options, Scale};
use forebay_fabric::{Event, FabricError, Header, Kind};
use forebay_membership::Member;
use std::net::SocketAddrV4;
use std::sync::mpsc;
use std::time::Instant;

const PUBLISH: &str = "publish";
const SUBSCRIBE: &str = "subscribe";
const ROUNDS: u32 = 5;
/// Of each publisher.
const MESSAGES: usize = 1 << 17;
/// A message, and the subscriber's word that it has all.
const TEXT: Kind = Kind(1);
const ALL: Kind = Kind(2);

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which message did not come.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = site(options)?;
    let is_small = options.scale == Scale::Small;
    let title = format!(
        "Hermes, Figure 6, between nodes: message queue operations, {} publishing to another",
        if options.nodes == 2 {
            "one node".to_owned()
        } else {
            format!("{} nodes", options.nodes - 1)
        }
    );
    let rounds = options.scale.of(ROUNDS, 1);
    let mut measured = Measured::new("nodes-fig6", &title, rounds, is_small);
    let spaces = Spaces::new(options, &site, "nodes", options.nodes)?;
    let count = options.scale.of(MESSAGES, 2 << 10);
    let publishers = 1..spaces.count();
    let all = count * publishers.len();
    let systems = links::SYSTEMS.iter().filter(|system| **system != links::SOCKETS);
    let systems: Vec<_> =
        systems.map(|system| (*system, format!("Forebay links, {system}"))).collect();

    let broker = &nats::BROKER;
    let place = Place::Network(SocketAddrV4::new(address(0), PORT));
    let has_broker = !measured.lacks(broker.name, broker.program);
    let _server = if has_broker {
        say(&format!("starting {}", broker.name));
        let server = spaces.within(0, || {
            let mut server = (broker.start)(&site, &place, &site.path("server.log"))?;
            server.wait(|| place.connect().is_ok())?;
            Ok(server)
        })?;
        measured.notes.push(format!(
            "{}, on the subscriber's node: {}; one node publishes what is subscribed to",
            broker.name, broker.configuration
        ));
        Some(server)
    } else {
        None
    };
    let rate = |ns: f64| all as f64 / ns * 1e9;
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for (system, name) in &systems {
            say(&format!("round {round}: {name}"));
            let (published, subscribed) = meet(&spaces, system, count)?;
            measured.add(PUBLISH, name, Unit::Rate, rate(published));
            measured.add(SUBSCRIBE, name, Unit::Rate, rate(subscribed));
        }
        if has_broker {
            say(&format!("round {round}: {}", broker.name));
            let body = |node: usize, (): &mut ()| (broker.publish)(&place, node, count);
            let done = on_each(&spaces, publishers.clone(), |_| Ok(()), body)?;
            let longest = done.iter().map(|((), ns)| *ns).fold(0.0, f64::max);
            measured.add(PUBLISH, broker.name, Unit::Rate, rate(longest));
            let ns = spaces.within(1, || (broker.subscribe)(&place, all))?;
            measured.add(SUBSCRIBE, broker.name, Unit::Rate, rate(ns));
        }
    }
    for (turn, work) in [PUBLISH, SUBSCRIBE].into_iter().enumerate() {
        for (_, name) in &systems {
            measured.claims.push(Claim {
                // What is wanted is what the paper says.
                paper: Some(broker.wanted[turn]),
                ..Claim::ratio(work, (work, name), (work, broker.name), broker.wanted[turn])
            });
        }
    }
    Ok(measured)
}

/// All nodes but the first publish, and that one subscribes. Returns nanoseconds of the slowest
/// publisher, and of the subscriber from the first message to the last.
fn meet(spaces: &Spaces, system: &str, count: usize) -> Result<(f64, f64), String> {
    let publishers = spaces.count() - 1;
    let (tell, told) = mpsc::channel();
    let subscribe = move || {
        spaces.within(0, || {
            let mut waiting = Waiting::new(system, 1, address(0))?;
            // An error means that the publishers have failed.
            let _ = tell.send(waiting.fabric.address().to_owned());
            receive(&mut waiting, publishers, count)
        })
    };
    std::thread::scope(|scope| {
        let subscriber = scope.spawn(subscribe);
        let address_of_it = told.recv().map_err(|_| "the subscriber does not begin".to_owned());
        let published = address_of_it.and_then(|to| {
            let make = |node: usize| {
                let mut waiting = Waiting::new(system, node as u16 + 1, address(node))?;
                let link = waiting.fabric.connect(Member::new(1, 1), &to).map_err(said)?;
                match waiting.next()? {
                    Event::Up { .. } => Ok((waiting, link)),
                    other => Err(format!("no link: {other:?}")),
                }
            };
            let body = |node: usize, (waiting, link): &mut (Waiting, _)| {
                let header = Header { kind: TEXT, ..Header::default() };
                for number in 0..count {
                    let text = message(node, number);
                    loop {
                        match waiting.fabric.send(*link, &header, &text) {
                            Ok(()) => break,
                            Err(FabricError::Full) => drop(waiting.next()?),
                            Err(error) => return Err(said(error)),
                        }
                    }
                }
                loop {
                    match waiting.next()? {
                        Event::Message { header, .. } if header.kind == ALL => return Ok(()),
                        Event::Room { .. } => {}
                        other => return Err(format!("a publisher's link: {other:?}")),
                    }
                }
            };
            on_each(spaces, 1..spaces.count(), make, body)
        });
        let received = subscriber.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let subscribed = received?;
        Ok((published?.iter().map(|((), ns)| *ns).fold(0.0, f64::max), subscribed))
    })
}

/// Takes all messages, in order from each publisher, and waits until those have gone.
fn receive(waiting: &mut Waiting, publishers: usize, count: usize) -> Result<f64, String> {
    let mut taken = vec![0; publishers + 1];
    let (mut since, mut took, mut left) = (None, 0.0, publishers);
    while left > 0 {
        match waiting.next()? {
            Event::Message { link, body, .. } => {
                let since = *since.get_or_insert_with(Instant::now);
                let text: Result<[u8; MESSAGE_BYTES], _> = body.try_into();
                let node = text.ok().and_then(|text| {
                    let node = (1..=publishers).find(|&node| text == message(node, taken[node]))?;
                    Some(node)
                });
                let node = node.ok_or("a link has lost a message, or made one up")?;
                taken[node] += 1;
                if taken[node] == count {
                    let header = Header { kind: ALL, ..Header::default() };
                    waiting.fabric.send(link, &header, &[]).map_err(said)?;
                }
                took = since.elapsed().as_nanos() as f64;
            }
            Event::Down { .. } => left -= 1,
            _ => {}
        }
    }
    match taken[1..].iter().all(|&taken| taken == count) {
        true => Ok(took),
        false => Err(format!("of {count} messages of each publisher came {:?}", &taken[1..])),
    }
}
