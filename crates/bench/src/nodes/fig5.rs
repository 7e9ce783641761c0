//! Figure 5 with clients on several nodes: what a program pays to find a file, and to be the one
//! that may write it, beside a server on one of the nodes that all of them ask.
//!
//! Under Forebay the first open of a file on a node asks the file's home, one of the members; from
//! then on its lease is held, and nothing is asked. Files are the same on all nodes, and clean.
//! Nodes share the processors of this machine.

use super::spaces::Spaces;
use super::{PORT, address, on_each, site};
use crate::measured::{Claim, Measured, Spread, Unit};
use crate::memory::fig5::{Client, Keys, PIPELINE};
use crate::systems::{Place, Store, memcached, redis};
use crate::{Options, Scale};
use std::net::SocketAddrV4;

const KERNEL: &str = "without Forebay";
const ALONE: &str = "Forebay, each node alone";
const GROUP: &str = "Forebay, group";
const FIRST: &str = "open, first on the node";
const AGAIN: &str = "open, again";
const STAT: &str = "stat";
const TURN: &str = "open and write 4 KiB, after another node";
const LOOKUP: &str = "lookup";
const UPDATE: &str = "update";
const ROUNDS: u32 = 5;

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which answer was wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = site(options)?;
    let is_small = options.scale == Scale::Small;
    let title = format!(
        "Hermes, Figure 5, between nodes: metadata operations, clients on {} nodes",
        options.nodes
    );
    let rounds = options.scale.of(ROUNDS, 1);
    let mut measured = Measured::new("nodes-fig5", &title, rounds, is_small);
    let mut spaces = Spaces::new(options, &site, "nodes", options.nodes)?;
    let (group, alone) = (spaces.side("group", "", Some(""))?, spaces.side("alone", "", None)?);
    measured.notes.push(
        "operations of all nodes together: one client on each node; of opens, stats and turns the \
         reciprocal of their medians"
            .to_owned(),
    );
    say("starting node managers");
    spaces.keep_group(&group)?;
    let each = || 0..options.nodes;
    each().try_for_each(|node| spaces.keep(node, &alone))?;

    let mut served: Vec<(&'static Store, Place, _)> = Vec::new();
    for (number, store) in [&redis::STORE, &memcached::STORE].into_iter().enumerate() {
        let name = store.name;
        if measured.lacks(name, store.program) {
            continue;
        }
        say(&format!("starting {name}"));
        let place = Place::Network(SocketAddrV4::new(address(0), PORT + number as u16));
        let server = spaces.within(0, || {
            let mut server = (store.start)(&site, &place, &site.path("server.log"))?;
            server.wait(|| place.connect().is_ok())?;
            Ok(server)
        })?;
        measured.notes.push(format!("{name} on one of the nodes: {}", store.configuration));
        served.push((store, place, server));
    }

    let files = options.scale.of(1000, 20);
    let turns = options.scale.of(50, 3);
    let keys = Keys { files: options.scale.of(64, 8), blocks: 16 };
    let operations = options.scale.of(64 << 10, 512);
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for (system, side, is_buffered) in
            [(KERNEL, &alone, false), (ALONE, &alone, true), (GROUP, &group, true)]
        {
            say(&format!("round {round}: {system}"));
            let prefix = format!("round{round}-{is_buffered}-");
            side.make_files(&prefix, files)?;
            let programs = each().map(|node| spaces.start(node, side, is_buffered));
            let mut programs = programs.collect::<Result<Vec<_>, _>>()?;
            for program in &mut programs {
                program.tell(&format!("opens {prefix} {files}"))?;
            }
            let mut rates = [0.0; 3];
            for program in &mut programs {
                let took = program.hear()?;
                rates.iter_mut().zip(took).for_each(|(rate, ns)| *rate += 1e9 / ns);
            }
            for (work, rate) in [FIRST, AGAIN, STAT].into_iter().zip(rates) {
                measured.add(work, system, Unit::Rate, rate);
            }
            // Node managers that do not know of each other have no turns.
            if system != ALONE {
                let mut took = Vec::new();
                for turn in 0..turns {
                    let write = format!("write turn{prefix}{turn} 0 0 4096 1 0");
                    programs[0].ask(&write)?;
                    took.extend(programs[1].ask(&write)?);
                }
                let Spread { median, .. } = Spread::of(took.into_iter()).unwrap_or(Spread::UNKNOWN);
                measured.add(TURN, system, Unit::Rate, 1e9 / median);
            }
        }
        for (store, place, _) in &served {
            for (pipeline, operations) in [(1, operations / 8), (PIPELINE, operations)] {
                let name = match pipeline {
                    1 => store.name.to_owned(),
                    _ => format!("{}, {pipeline} at a time", store.name),
                };
                for (work, updates) in [(LOOKUP, false), (UPDATE, true)] {
                    say(&format!("round {round}: {name}, {work}"));
                    let make = |node: usize| {
                        let mut client = Client::new(store, place, pipeline, keys, node)?;
                        client.fill()?;
                        Ok(client)
                    };
                    let body = |_, client: &mut Client| client.work(operations, updates);
                    let done = on_each(&spaces, each(), make, body);
                    let done = done.map_err(|e| format!("{name}: {e}"))?;
                    let longest = done.iter().map(|(_, ns)| *ns).fold(0.0, f64::max);
                    let all = (operations * spaces.count()) as f64;
                    measured.add(work, &name, Unit::Rate, all / longest * 1e9);
                }
            }
        }
    }
    for (store, ..) in &served {
        for own in [AGAIN, STAT] {
            let what = format!("{own}, to a lookup");
            let against = (LOOKUP, store.name);
            measured.claims.push(Claim {
                // What is wanted is what the paper says.
                paper: Some(store.wanted),
                ..Claim::ratio(&what, (own, GROUP), against, store.wanted)
            });
        }
    }
    for work in [AGAIN, STAT] {
        measured.claims.push(Claim::ratio(work, (work, GROUP), (work, ALONE), 0.97));
    }
    Ok(measured)
}
