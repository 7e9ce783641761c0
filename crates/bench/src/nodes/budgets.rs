//! What several nodes cost beside one, each beside what it is compared with, in one run.
//!
//! Nodes are namespaces, and share the processors of this machine. The single node is a node
//! manager without a group, on the same node and for files of its own.

use super::spaces::{Program, Side, Spaces};
use super::{address, site};
use crate::links::{self, SOCKETS, SYSTEMS, TLS, UCX};
use crate::measured::{Claim, Measured, Spread, Unit, Wanted};
use crate::server::cpu_ns;
use crate::site::{Site, failed};
use crate::{Options, Scale};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const KERNEL: &str = "without Forebay";
const ALONE: &str = "Forebay, single node";
const GROUP: &str = "Forebay, group";

/// Bytes of a call, and calls of a batch.
const SIZES: [(&str, u64, usize); 2] = [("4 KiB", 4 << 10, 20_000), ("1 MiB", MIB, 200)];
const FIRST: &str = "open and write of 4 KiB, first on the node";
const REMOTE: &str = "read of 256 KiB that another node has in RAM";
const REMOTE_SMALL: &str = "read of a file of 4 KiB that another node has in RAM";
const APART: &str = "two nodes write 1 MiB at a time, a file each";
const SEGMENTED: &str = "two nodes write 1 MiB at a time, halves of a file";
const STRIDED: &str = "two nodes write 1 MiB at a time, in turns of a file";
const RECORDS_APART: &str = "two nodes write 47,008 B at a time, a file each";
const RECORDS: &str = "two nodes write 47,008 B at a time, in turns of a file";
const KILLED: &str = "a killed manager is noticed, by its link";
const SILENT: &str = "a silent cut is noticed, by the link";
const DEAD: &str = "a node that is cut off is noticed, by its silence";
const IDLE: &str = "processor time of an idle manager";
const RESIDENT: &str = "resident memory of an idle manager, but the tiers";
const MORE_RESIDENT: &str = "the same, more than of a single node";

const ROUNDS: u32 = 3;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 256 << 10;
/// Bytes of a record that begins and ends within pages and blocks.
const RECORD: u64 = 47_008;
/// What each node writes of shared files: little, of which the first messages are much, and as much
/// as of a checkpoint.
const SHARED: [u64; 2] = [16 * MIB, 256 * MIB];
/// A store that is slower than another node.
const SLOW: &str = "emulate = { bandwidth = \"64MB/s\", latency = \"4ms\", shared = \"device\" }\n";

/// Measures all of it.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = site(options)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.scale.of(ROUNDS, 1);
    let title = "Several nodes, beside one";
    let mut measured = Measured::new("nodes", title, rounds, is_small);
    measured.is_drawn = false;
    let many = options.scale.of(16, 3);
    let crowd = format!("Forebay, group of {many}");
    let idle_for = options.scale.of(Duration::from_secs(20), Duration::from_secs(1));
    measured.notes.push(format!(
        "nodes are namespaces with networks of their own, on the processors of this machine; \
         consistency = \"strict\", links by TLS where nothing else is said; medians of each round. \
         Idle: mean of the managers of a group of {many}, over {} s",
        idle_for.as_secs()
    ));
    measured.notes.push(
        "NOT MEASURED, as there is none yet: fsync of what is replicated, takeover of what a dead \
         node had"
            .to_owned(),
    );
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        let mut said = |what: &str| say(&format!("round {round}: {what}"));
        pair(&mut measured, options, &site, &format!("pair{round}"), &mut said)?;
        said(&format!("{many} idle nodes"));
        let spaces = Spaces::new(options, &site, &format!("idle{round}"), many)?;
        idle(&mut measured, spaces, &crowd, idle_for)?;
    }
    measured.claims = claims(&crowd);
    Ok(measured)
}

fn claims(crowd: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    let within = |work: &str, of: &str, against: &str, seconds| Claim {
        wanted: Wanted::Within(seconds),
        ..Claim::ratio(work, (work, of), (work, against), 1.0)
    };
    for way in ["write", "read"] {
        let [small, large] = SIZES.map(|(size, ..)| held(way, size));
        claims.push(Claim::ratio(&large, (&large, GROUP), (&large, ALONE), 0.97));
        claims.push(within(&small, GROUP, ALONE, 15e-9));
    }
    claims.push(within(FIRST, GROUP, KERNEL, 80e-6));
    for (system, large) in [(TLS, 250e-6), (UCX, 110e-6)] {
        claims.push(Claim::at_most(REMOTE, system, large));
        claims.push(Claim::at_most(REMOTE_SMALL, system, 45e-6));
    }
    claims.extend(links::claims());
    for each in SHARED {
        for (work, apart, times) in
            [(SEGMENTED, APART, 0.9), (STRIDED, APART, 0.8), (RECORDS, RECORDS_APART, 0.3)]
        {
            let [work, apart] = [work, apart].map(|work| of_each(work, each));
            claims.push(Claim::ratio(&work, (&work, GROUP), (&apart, GROUP), times));
        }
    }
    for (work, seconds) in [(KILLED, 0.5), (SILENT, 5.0), (DEAD, 8.0)] {
        claims.push(Claim::at_most(work, GROUP, seconds));
    }
    claims.push(Claim::at_most(IDLE, crowd, 0.005));
    claims.push(Claim::at_most(MORE_RESIDENT, crowd, (16 * MIB) as f64));
    claims
}

/// A work of which each node writes so much.
fn of_each(work: &str, each: u64) -> String {
    format!("{work}, {} MiB each", each / MIB)
}

fn held(way: &str, size: &str) -> String {
    format!("{way} {size}, lease held")
}

/// What two nodes are enough for.
fn pair(
    measured: &mut Measured,
    options: &Options,
    site: &Site,
    name: &str,
    say: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let mut spaces = Spaces::new(options, site, name, 2)?;
    let (group, alone) = (spaces.side("group", "", Some(""))?, spaces.side("alone", "", None)?);
    say("starting node managers");
    spaces.keep_group(&group)?;
    spaces.keep(1, &alone)?;
    let sides = [(KERNEL, &alone, false), (ALONE, &alone, true), (GROUP, &group, true)];
    say("reads and writes, first opens");
    for (system, side, is_buffered) in sides {
        let mut program = spaces.start(1, side, is_buffered)?;
        for (size, bytes, count) in SIZES {
            let count = options.scale.of(count, 8);
            let took = program.ask(&format!("rate rate{bytes} {bytes} {count}"))?;
            for (way, ns) in ["write", "read"].into_iter().zip(took) {
                measured.add(&held(way, size), system, Unit::Bandwidth(bytes), 1e9 / ns);
            }
        }
        let files = options.scale.of(1000, 20);
        let prefix = format!("open{is_buffered}");
        side.make_files(&prefix, files)?;
        // A write needs the lease that it asks for; an open alone may not wait for one.
        let each = (0..files).map(|n| program.ask(&format!("write {prefix}{n} 0 0 4096 1 0")));
        let took = each.collect::<Result<Vec<_>, _>>()?.concat();
        let Spread { median, .. } = Spread::of(took.into_iter()).unwrap_or(Spread::UNKNOWN);
        measured.add(FIRST, system, Unit::Rate, 1e9 / median);
    }
    for each in SHARED {
        say(&format!("files that both nodes write, {} MiB each", each / MIB));
        // All works together, with as much beside it.
        let ram_mib = options.scale.of(8 * each / MIB, 64);
        let name = format!("shared{}", each / MIB);
        let shared_by = |name: &str, group| spaces.side_of(name, ram_mib, "", group);
        let keys = format!("folder = \"group-{name}\"\n");
        let side = shared_by(&name, Some(&keys))?;
        let plain = shared_by(&format!("{name}-plain"), None)?;
        spaces.keep_group(&side)?;
        shared(measured, options, &spaces, (KERNEL, &plain, false), each)?;
        shared(measured, options, &spaces, (GROUP, &side, true), each)?;
    }
    for &system in SYSTEMS {
        say(&format!("links: {system}"));
        let peer = spaces.within(1, || links::Peer::start(options, site, system, address(1)))?;
        spaces.within(0, || links::measure(measured, options, &peer, address(0)))?;
        if system != SOCKETS {
            say(&format!("blocks of another node: {system}"));
            remote(measured, options, &mut spaces, system)?;
        }
    }
    say("a killed manager");
    spaces.await_status(0, &group, "a link", is_linked)?;
    let manager = i32::try_from(spaces.manager(1, &group)?).ok().and_then(Pid::from_raw);
    let manager = manager.ok_or("a node manager without a number")?;
    let since = Instant::now();
    kill_process(manager, Signal::KILL).map_err(|e| format!("killing a node manager: {e}"))?;
    spaces.await_status(0, &group, "the end of a link", |status| !is_linked(status))?;
    measured.add(KILLED, GROUP, Unit::Time, since.elapsed().as_secs_f64());
    say("a node that is cut off");
    spaces.keep(1, &group)?;
    spaces.await_status(0, &group, "a node that is back", |status| {
        is_linked(status) && standing(status) == "up"
    })?;
    let since = Instant::now();
    spaces.cut(1)?;
    let mut noticed = [None; 2];
    spaces.await_status(0, &group, "the end of a node", |status| {
        let gone = [!is_linked(status), standing(status) != "up"];
        for (noticed, _) in noticed.iter_mut().zip(gone).filter(|(_, is_gone)| *is_gone) {
            noticed.get_or_insert(since.elapsed());
        }
        noticed.iter().all(Option::is_some)
    })?;
    for (work, took) in [SILENT, DEAD].into_iter().zip(noticed.into_iter().flatten()) {
        measured.add(work, GROUP, Unit::Time, took.as_secs_f64());
    }
    Ok(())
}

/// What a status says of a list of the group, about node 1.
fn about<'a>(status: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    let all = status["group"][list].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter(|one| one["node"] == 1)
}

fn is_linked(status: &Value) -> bool {
    about(status, "links").any(|link| link["state"] == "up")
}

fn standing(status: &Value) -> &str {
    about(status, "nodes").next().and_then(|node| node["standing"].as_str()).unwrap_or("unknown")
}

/// Files that both nodes write at once.
fn shared(
    measured: &mut Measured,
    options: &Options,
    spaces: &Spaces,
    (system, side, is_buffered): (&str, &Side, bool),
    whole: u64,
) -> Result<(), String> {
    let mut programs = [spaces.start(0, side, is_buffered)?, spaces.start(1, side, is_buffered)?];
    let each = options.scale.of(whole, 2 * MIB);
    for (work, name, bytes, second, stride) in [
        (APART, "apart", MIB, None, 1),
        (SEGMENTED, "segments", MIB, Some(each), 1),
        (STRIDED, "strided", MIB, Some(MIB), 2),
        (RECORDS_APART, "records-apart", RECORD, None, 1),
        (RECORDS, "records", RECORD, Some(RECORD), 2),
    ] {
        let (count, stride) = (each / bytes, stride * bytes);
        let of = |node: usize| match second {
            Some(second) => (format!("{name}{is_buffered}"), second * node as u64),
            None => (format!("{name}{node}{is_buffered}"), 0),
        };
        for (node, program) in programs.iter_mut().enumerate() {
            let (file, offset) = of(node);
            program.tell(&format!("write {file} {offset} {stride} {bytes} {count} {node}"))?;
        }
        let took = programs.iter_mut().map(Program::hear).collect::<Result<Vec<_>, _>>()?;
        let longest = took.concat().into_iter().fold(0.0, f64::max);
        let work = of_each(work, whole);
        measured.add(&work, system, Unit::Bandwidth(bytes), 2.0 * count as f64 / longest * 1e9);
        // Each node looks at what the other one has written.
        for (node, program) in programs.iter_mut().rev().enumerate() {
            let (file, offset) = of(node);
            program.ask(&format!("check {file} {offset} {stride} {bytes} {count} {node}"))?;
        }
    }
    Ok(())
}

/// Blocks of files that node 0 has read from a slow store, and node 1 reads then.
fn remote(
    measured: &mut Measured,
    options: &Options,
    spaces: &mut Spaces,
    system: &str,
) -> Result<(), String> {
    let fabric = match system {
        TLS => "",
        _ => "fabric = \"ucx\"\ntrusted_network = true\n",
    };
    let name = format!("remote-{system}");
    let side = spaces.side(&name, SLOW, Some(&format!("folder = \"group-{name}\"\n{fabric}")))?;
    let count = options.scale.of(128, 8);
    side.make_file("large", count * BLOCK as usize)?;
    side.make_files("small", count)?;
    spaces.keep_group(&side)?;
    let reads = [format!("read large {BLOCK} {count}"), format!("read-each small 4096 {count}")];
    let mut took = Vec::new();
    for node in 0..2 {
        let mut program = spaces.start(node, &side, true)?;
        took = reads.iter().map(|read| program.ask(read)).collect::<Result<Vec<_>, _>>()?.concat();
    }
    let came = spaces.status(1, &side)?["group"]["blocks"]["from_nodes"].as_u64().unwrap_or(0);
    if came < 2 * count as u64 {
        return Err(format!("of {} blocks, {came} came from the node that has them", 2 * count));
    }
    for (work, ns) in [REMOTE, REMOTE_SMALL].into_iter().zip(took) {
        measured.add(work, system, Unit::Time, ns / 1e9);
    }
    Ok(())
}

/// Node managers that have nothing to do, of a group and of a single node.
fn idle(
    measured: &mut Measured,
    mut spaces: Spaces,
    crowd: &str,
    time: Duration,
) -> Result<(), String> {
    let (group, alone) = (spaces.side("group", "", Some(""))?, spaces.side("alone", "", None)?);
    spaces.keep_group(&group)?;
    spaces.keep(0, &alone)?;
    let single = vec![spaces.manager(0, &alone)?];
    let members = (0..spaces.count()).map(|node| spaces.manager(node, &group));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    let spent = |managers: &[u32]| managers.iter().map(|&id| cpu_ns(id)).sum::<Result<u64, _>>();
    let since = Instant::now();
    let before = [spent(&single)?, spent(&members)?];
    thread::sleep(time);
    let after = [spent(&single)?, spent(&members)?];
    let elapsed = since.elapsed().as_nanos() as f64;
    let mut memory = [0.0; 2];
    for (number, (system, managers)) in [(ALONE, single), (crowd, members)].into_iter().enumerate()
    {
        let count = managers.len() as f64;
        let share = after[number].saturating_sub(before[number]) as f64 / count / elapsed;
        measured.add(IDLE, system, Unit::Share, share);
        let sum = managers.iter().map(|&id| resident(id)).sum::<Result<u64, _>>()?;
        memory[number] = sum as f64 / count;
        measured.add(RESIDENT, system, Unit::Memory, memory[number]);
    }
    measured.add(MORE_RESIDENT, crowd, Unit::Memory, memory[1] - memory[0]);
    Ok(())
}

/// Bytes of a process in memory, but those that it shares with programs.
fn resident(id: u32) -> Result<u64, String> {
    let path = PathBuf::from(format!("/proc/{id}/status"));
    let text = fs::read_to_string(&path).map_err(|e| failed(&path, &e))?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim_end_matches("kB").trim().parse::<u64>().ok());
        number.ok_or_else(|| format!("{} has no {name}", path.display()))
    };
    Ok((kib("RssAnon:")? + kib("RssFile:")?) << 10)
}
