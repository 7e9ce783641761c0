//! `forebay simulate --replay`: what `forebay run --record` has recorded, run again on a modelled
//! machine of the same configuration, and both beside each other.

use super::trace::{self, Recorded};
use crate::output;
use crate::text::bytes;
use forebay_node::config::Tier as ConfiguredTier;
use forebay_node::{Config, TRACE_HEADING};
use forebay_placement::schema::{self, Conditions, FileMeta, Settings};
use forebay_placement::{pace, policy};
use forebay_pool::layout::PAGES_PER_BUCKET;
use forebay_simulator::{
    Cluster, Device, ManagerSettings, Movers, Outcome, Run, Store, Strategy, Tier, Tiers, Trigger,
    Workload, simulate,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Transfers end at whole microseconds.
const GRAIN_NS: u64 = 1_000;
/// Calls of at least so many bytes say how fast RAM is.
const LARGE: u64 = 64 << 10;
/// The share of those calls, the fastest, that surely did not wait for anything else.
const UNDISTURBED: f64 = 0.05;
/// What RAM is taken to do if no call says.
const RAM_BANDWIDTH: u64 = 5_000_000_000;

/// What one run did, recorded or replayed.
#[derive(Default)]
struct Seen {
    /// Bytes that moved, by where from and where to.
    moved: BTreeMap<(String, String), u64>,
    /// Seconds in writes and in reads, of all ranks together.
    write_s: f64,
    read_s: f64,
    /// Seconds to the end of the last rank, and to the end of the last movement.
    ranks_s: f64,
    end_s: f64,
}

/// Replays a recording, and shows what came of it beside the movements of the recorded run, if
/// there is a file of those.
pub(super) fn replay(
    recording: &Path,
    config: &Path,
    movements: Option<&Path>,
    as_json: bool,
) -> Result<(), String> {
    let config = Config::load(config, &[]).map_err(|error| error.to_string())?;
    let recorded = trace::load(recording, None)?;
    let outcome = simulate(run(&config, &recorded)?);
    let replayed = replayed(&config, &recorded, &outcome);
    let seen = movements.map(|file| of_recording(file, &recorded)).transpose()?;
    match as_json {
        true => output::json(report_json(seen.as_ref(), &replayed)),
        false => print!("{}", report(seen.as_ref(), &replayed)),
    }
    Ok(())
}

/// The run of the recorded steps on a node of this configuration.
fn run(config: &Config, recorded: &Recorded) -> Result<Run, String> {
    let [backing] = &config.backing[..] else {
        return Err("--replay: more than one backing directory; record a run with one".to_owned());
    };
    let block = u64::from(config.page_size) * u64::from(PAGES_PER_BUCKET);
    let seen = |speed: forebay_node::config::Speed| Device {
        read_bandwidth: speed.read_bandwidth,
        write_bandwidth: speed.write_bandwidth,
        latency_ns: speed.latency_ns,
    };
    let below = config.tiers.iter().skip(1).map(|tier| seen(tier.known_speed()));
    let block_s = below.chain([seen(backing.known_speed())]).fold(
        (f64::INFINITY, f64::INFINITY),
        |(read, write), device| {
            let took =
                |bandwidth| pace(0, 0, block, bandwidth, device.latency_ns).wake_ns as f64 / 1e9;
            (read.min(took(device.read_bandwidth)), write.min(took(device.write_bandwidth)))
        },
    );
    let tier = |(level, tier): (usize, &ConfiguredTier)| Tier {
        name: tier.name.clone(),
        shared: false,
        devices: 1,
        capacity: tier.capacity,
        device: if level == 0 { ram(recorded, block_s) } else { seen(tier.known_speed()) },
        stripe: 1,
    };
    let ram_bytes = config.tiers.first().map_or(0, |tier| tier.capacity);
    let cluster = Cluster {
        nodes: 1,
        ranks_per_node: recorded.ranks.len().max(1) as u32,
        link: 0,
        block,
        tiers: config.tiers.iter().enumerate().map(tier).collect(),
        store: Store {
            devices: 1,
            device: seen(backing.known_speed()),
            stripe: 1,
            link: 0,
            seek_ns: 0,
            request: block,
            flush_request: block,
            flush_bandwidth: 0,
            opens: 0,
        },
    };
    let speeds = config.tiers.iter().map(|tier| seen(tier.known_speed()));
    let manager = ManagerSettings {
        ages: config.flush.ages(),
        granularity: match config.placement.granularity {
            0 => block.max(ram_bytes / 256),
            bytes => bytes,
        },
        files: recorded.files.iter().map(|file| settings(config, file)).collect(),
        speeds: speeds.chain([seen(backing.known_speed())]).collect(),
    };
    let policy_name = config.placement.policy.policy().name();
    let strategy = Strategy {
        name: policy_name.to_owned(),
        tiers: Tiers::All,
        policy: policy_name.to_owned(),
        trigger: match config.flush.trigger {
            schema::Trigger::PerOperation => Trigger::PerOperation,
            schema::Trigger::PerFile => Trigger::PerFile,
            schema::Trigger::OnExit => Trigger::OnExit,
            schema::Trigger::Periodic => Trigger::Periodic(manager.ages.period_ms * 1_000_000),
        },
        movers: Movers::Nodes,
        demote: policy(policy_name).is_some_and(|policy| policy.moves_down()),
        promote: true,
        prefetch: false,
        queue_depth: 1,
        costs: config.placement.costs,
        exposed: config.placement.exposed,
        eviction: config.placement.eviction,
        watermarks: config.placement.watermarks,
        half_life_ms: config.placement.half_life.as_millis() as u32,
        manager: Some(manager),
    };
    Ok(Run {
        cluster,
        workload: Workload::Trace(recorded.ranks.clone()),
        strategy,
        faults: Vec::new(),
        seed: 1,
        grain_ns: GRAIN_NS,
    })
}

/// What the rules of a configuration set for a file of this path.
fn settings(config: &Config, path: &str) -> Settings {
    let directory = config.backing.first().map(|backing| backing.path.clone()).unwrap_or_default();
    let file_meta = FileMeta {
        path: path.as_bytes(),
        directory: directory.as_os_str().as_encoded_bytes(),
        ..FileMeta::default()
    };
    let rule = config.rules.iter().find(|rule| {
        let when = Conditions { path: rule.path.as_bytes(), ..Conditions::default() };
        schema::matches(&when, &file_meta)
    });
    rule.map(|rule| rule.set).unwrap_or_default()
}

/// How fast RAM is, software included, by the calls that waited for nothing else: those that took
/// no longer than the fastest ones do for as many bytes, and than a block takes at the fastest
/// device below, in `block_s` of reading and writing.
fn ram(recorded: &Recorded, block_s: (f64, f64)) -> Device {
    let speed = |calls: &[(u64, f64)], block_s: f64| {
        let large = calls.iter().filter(|(bytes, took)| *bytes >= LARGE && *took > 0.0);
        let speed = |(bytes, took): &(u64, f64)| *bytes as f64 / took;
        let mut speeds: Vec<f64> = large.clone().map(speed).collect();
        speeds.sort_by(|a, b| b.total_cmp(a));
        let fastest = speeds.get((speeds.len() as f64 * UNDISTURBED) as usize).copied();
        let fastest = fastest.unwrap_or(RAM_BANDWIDTH as f64);
        let undisturbed = large.filter(|(bytes, took)| *took < *bytes as f64 / fastest + block_s);
        let sums = undisturbed
            .fold((0.0, 0.0), |sums, (bytes, took)| (sums.0 + *bytes as f64, sums.1 + took));
        (if sums.1 > 0.0 { sums.0 / sums.1 } else { fastest }) as u64
    };
    Device {
        read_bandwidth: speed(&recorded.reads, block_s.0),
        write_bandwidth: speed(&recorded.writes, block_s.1),
        latency_ns: 0,
    }
}

const STORE: &str = "store";

fn replayed(config: &Config, recorded: &Recorded, outcome: &Outcome) -> Seen {
    let name = |level: usize| config.tiers[level].name.clone();
    let way = |moved: &forebay_simulator::Moved| {
        let to = moved.to.map_or(STORE.to_owned(), name);
        ((name(moved.from), to), moved.bytes)
    };
    let ranks = recorded.ranks.len() as f64;
    Seen {
        moved: outcome.moved.iter().map(way).collect(),
        write_s: outcome.write_s * ranks,
        read_s: outcome.read_s * ranks,
        ranks_s: outcome.ranks_end_s,
        end_s: outcome.ranks_end_s + outcome.flush_s,
    }
}

/// What the recorded run did.
fn of_recording(movements: &Path, recorded: &Recorded) -> Result<Seen, String> {
    let name = movements.display();
    let text = fs::read_to_string(movements)
        .map_err(|error| format!("{name}: cannot be read: {error}; give the file of --trace"))?;
    let mut seen = Seen {
        write_s: recorded.writes.iter().map(|(_, took)| took).sum(),
        read_s: recorded.reads.iter().map(|(_, took)| took).sum(),
        ranks_s: recorded.ends_s,
        ..Seen::default()
    };
    let mut span = (u64::MAX, 0);
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(TRACE_HEADING) {
        return Err(format!("{name}:1: a trace of movements begins with {TRACE_HEADING}"));
    }
    for (index, line) in lines {
        let wrong = || format!("{name}:{}: not a movement: {line}", index + 1);
        let [start, end, _, from, to, bytes] = line.split(',').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (start, end, bytes) = (number(start)?, number(end)?, number(bytes)?);
        span = (span.0.min(start), span.1.max(end));
        *seen.moved.entry((from.to_owned(), to.to_owned())).or_default() += bytes;
    }
    let begin_us = recorded.begin_us;
    seen.end_s = (span.1.saturating_sub(begin_us) as f64 / 1e6).max(seen.ranks_s);
    Ok(seen)
}

/// The lines of a comparison: what, and numbers that a unit is written behind.
fn times(seen: &Seen) -> [(&'static str, f64); 4] {
    [
        ("in writes", seen.write_s),
        ("in reads", seen.read_s),
        ("to the end of the programs", seen.ranks_s),
        ("to the end of the drain", seen.end_s),
    ]
}

fn off(recorded: f64, replayed: f64) -> String {
    if recorded == 0.0 {
        return String::new();
    }
    format!("{:+.0} %", (replayed / recorded - 1.0) * 100.0)
}

fn report(recorded: Option<&Seen>, replayed: &Seen) -> String {
    let nothing = Seen::default();
    let known = recorded.unwrap_or(&nothing);
    let mut text = String::new();
    let head = if recorded.is_some() { "recorded" } else { "" };
    let _ = writeln!(text, "{:<28}{head:>12}{:>12}{:>8}", "", "replayed", "");
    let mut ways: Vec<_> = known.moved.keys().chain(replayed.moved.keys()).collect();
    ways.sort();
    ways.dedup();
    for way in ways {
        let of = |seen: &Seen| seen.moved.get(way).copied().unwrap_or(0);
        let (was, is) = (of(known), of(replayed));
        let was_text = if recorded.is_some() { bytes(was) } else { String::new() };
        let name = format!("{} → {}", way.0, way.1);
        let off = off(was as f64, is as f64);
        let _ = writeln!(text, "{name:<28}{was_text:>12}{:>12}{off:>8}", bytes(is));
    }
    for ((name, was), (_, is)) in times(known).into_iter().zip(times(replayed)) {
        let was_text = if recorded.is_some() { format!("{was:.3} s") } else { String::new() };
        let is_text = format!("{is:.3} s");
        let off = off(was, is);
        let _ = writeln!(text, "{name:<28}{was_text:>12}{is_text:>12}{off:>8}");
    }
    text
}

fn report_json(recorded: Option<&Seen>, replayed: &Seen) -> Value {
    let of = |seen: &Seen| {
        let moved = seen
            .moved
            .iter()
            .map(|((from, to), bytes)| json!({ "from": from, "to": to, "bytes": bytes }));
        json!({
            "moved": moved.collect::<Vec<_>>(),
            "write_s": seen.write_s,
            "read_s": seen.read_s,
            "programs_s": seen.ranks_s,
            "drain_s": seen.end_s,
        })
    };
    json!({ "recorded": recorded.map(of), "replayed": of(replayed) })
}
