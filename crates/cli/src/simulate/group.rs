//! `forebay simulate group`: how fast a group of nodes notices that one is gone, and what that
//! costs.

use crate::output;
use forebay_simulator::group::{Fault, Group, GroupOutcome, Killed, simulate};
use forebay_simulator::leases::KINDS;
use forebay_simulator::traffic::{Change, Traffic, traffic};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::ops::Range;
use std::process::ExitCode;

/// The name of the scenario.
pub(super) const NAME: &str = "group";
/// So many nodes, if none are asked for.
const NODES: [u16; 3] = [2, 16, 128];
/// The largest group.
const NODES_MAX: u16 = 10_000;
/// Kills of one run: its figures are their medians.
const KILLS: u16 = 5;
/// In groups of more nodes none is killed, and only the beginning is simulated: each node keeps a
/// list of all, and looks through it for each that it hears of for the first time.
const NODES_KILLED: u16 = 2_048;
/// How long that is, in ms: the group has formed, and goes on as it will.
const BEGIN_MS: u64 = 3_500;
/// The first kill, and from one to the next, in ms: the group has formed, or forgotten the last.
const KILL_MS: u64 = 60_000;

/// What is asked of the scenario `group`.
#[derive(clap::Args, Default)]
pub struct GroupArguments {
    /// Of the scenario group: the sizes of the groups
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: Vec<u16>,
    /// Of the scenario group: how many of 100 packets are lost
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: Option<u32>,
    /// Of the scenario group: instead simulate so many groups of 2 to 8 nodes that are killed,
    /// stopped, split and kept from the store at random, and check what is promised
    #[arg(long, value_name = "N", conflicts_with_all = ["nodes", "loss", "json"],
          value_parser = clap::value_parser!(u64).range(1..))]
    faults: Option<u64>,
}

impl GroupArguments {
    /// The option that was given, if one was.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--nodes", !self.nodes.is_empty()),
            ("--loss", self.loss.is_some()),
            ("--faults", self.faults.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}

/// Runs the scenario.
pub(super) fn run(
    arguments: &GroupArguments,
    seed: u64,
    as_json: bool,
) -> Result<ExitCode, String> {
    if let Some(count) = arguments.faults {
        return faults(seed, count);
    }
    let sizes = if arguments.nodes.is_empty() { &NODES[..] } else { &arguments.nodes };
    let mut rows = Vec::new();
    for &nodes in sizes {
        let group = group(nodes, arguments.loss.unwrap_or(0) * 10, seed);
        let outcome = simulate(&group)?;
        rows.push(Row::of(&group, &outcome));
    }
    match as_json {
        true => output::json(Value::from_iter(rows.iter().map(Row::json))),
        false => print!("{}", table(&rows)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Groups to which everything happens.
fn faults(seed: u64, count: u64) -> Result<ExitCode, String> {
    let (mut views, mut kills, mut living) = (0, 0, 0);
    for seed in seed..seed.saturating_add(count) {
        let group = Group::random(seed);
        let outcome =
            simulate(&group).map_err(|why| format!("{why}; again: --faults 1 --seed {seed}"))?;
        views += outcome.views.len();
        kills += group.faults.iter().filter(|(_, fault)| matches!(fault, Fault::Kill(_))).count();
        living += outcome.left_out_living.len();
    }
    println!(
        "{count} groups, seeds {seed} to {}: {views} views, {kills} kills, {living} nodes left out that could not be reached.\n\
         No node ever acted when another could take over from it, and in the end all agreed.",
        seed.saturating_add(count).saturating_sub(1)
    );
    Ok(ExitCode::SUCCESS)
}

/// A group some of whose nodes are killed, one after the other, the first of all among them: it is
/// the one that makes views.
fn group(nodes: u16, loss: u32, seed: u64) -> Group {
    if nodes > NODES_KILLED {
        return Group { loss, seed, length_ms: BEGIN_MS, ..Group::of(nodes) };
    }
    let kills = KILLS.min(nodes.saturating_sub(1) / 2).max(u16::from(nodes > 1));
    let mut group = Group { loss, seed, ..Group::of(nodes) };
    let nodes_killed = (0..kills).map(|kill| kill * (nodes / kills.max(1)));
    let times = (1..).map(|kill| kill * KILL_MS);
    group.faults = times.zip(nodes_killed.map(Fault::Kill)).collect();
    group.length_ms = (u64::from(kills) + 2) * KILL_MS;
    group
}

/// What is shown of one group.
struct Row {
    nodes: u16,
    formed_s: Option<f64>,
    noticed_s: Option<f64>,
    known_s: Option<f64>,
    left_out_s: Option<f64>,
    seen_s: Option<f64>,
    succeeded_s: Option<f64>,
    packets: f64,
    packet_bytes: f64,
    inquiries: f64,
    store_calls: f64,
    left_out_living: usize,
    /// Messages of leases: what opens cost, and changes of the view.
    leases: Traffic,
}

impl Row {
    fn of(group: &Group, outcome: &GroupOutcome) -> Self {
        let median = |of: fn(&Killed) -> Option<u64>| {
            let mut reached: Vec<u64> = outcome.kills.iter().filter_map(of).collect();
            reached.sort_unstable();
            reached.get(reached.len() / 2).map(|ms| *ms as f64 / 1e3)
        };
        let (seconds, nodes) = (group.length_ms as f64 / 1e3, f64::from(group.nodes));
        Row {
            nodes: group.nodes,
            formed_s: outcome.formed_ms.map(|ms| ms as f64 / 1e3),
            noticed_s: median(|kill| kill.noticed_ms),
            known_s: median(|kill| kill.known_ms),
            left_out_s: median(|kill| kill.left_out_ms),
            seen_s: median(|kill| kill.seen_ms),
            succeeded_s: median(|kill| kill.succeeded_ms),
            packets: outcome.packets as f64 / nodes / seconds,
            packet_bytes: outcome.bytes as f64 / outcome.packets.max(1) as f64,
            inquiries: outcome.inquiries as f64 / nodes / seconds,
            store_calls: outcome.store_calls as f64 / seconds,
            left_out_living: outcome.left_out_living.len(),
            leases: traffic(group.nodes),
        }
    }

    /// How many messages an open costs, for each way to use files, by kind.
    fn per_open(&self) -> Value {
        let opens = self.leases.opens.iter();
        let each = opens.map(|opens| (opens.pattern, by_kind(&opens.messages, opens.opens as f64)));
        Value::Object(each.map(|(name, counts)| (name.to_owned(), counts)).collect())
    }

    /// How many messages, and bytes, a change of the view costs each node.
    fn per_view(&self) -> Value {
        let nodes = f64::from(self.nodes);
        let each = self.leases.changes.iter().map(|change| {
            let counts = json!({
                "messages_per_node": by_kind(&change.messages, nodes),
                "bytes_per_node": change.bytes as f64 / nodes,
                "messages_of_one_node_at_most": change.most,
            });
            (change.what.to_owned(), counts)
        });
        Value::Object(each.collect())
    }

    fn json(&self) -> Value {
        json!({
            "nodes": self.nodes,
            "formed_s": self.formed_s,
            "noticed_s": self.noticed_s,
            "known_s": self.known_s,
            "left_out_s": self.left_out_s,
            "seen_s": self.seen_s,
            "succeeded_s": self.succeeded_s,
            "packets_per_node_s": self.packets,
            "packet_bytes": self.packet_bytes,
            "inquiries_per_node_s": self.inquiries,
            "store_calls_per_s": self.store_calls,
            "left_out_living": self.left_out_living,
            "messages_per_open": self.per_open(),
            "messages_per_view": self.per_view(),
        })
    }
}

/// Messages by kind, of which there are any, divided.
fn by_kind(messages: &[u64; KINDS.len()], by: f64) -> Value {
    let counts = KINDS.iter().zip(messages).filter(|(_, count)| **count > 0);
    let each = counts.map(|(kind, count)| ((*kind).to_owned(), Value::from(*count as f64 / by)));
    Value::Object(each.collect())
}

fn sum(messages: &[u64; KINDS.len()], kinds: Range<usize>) -> u64 {
    messages[kinds].iter().sum()
}

/// The kinds of which there are any.
fn used(messages: &[u64; KINDS.len()]) -> Vec<usize> {
    (0..KINDS.len()).filter(|kind| messages[*kind] > 0).collect()
}

fn table(rows: &[Row]) -> String {
    let seconds = |at: Option<f64>| at.map_or("-".to_owned(), |at| format!("{at:.1} s"));
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn Fn(&Row) -> String| {
        let _ = write!(text, "{name:<42}");
        rows.iter().for_each(|row| {
            let _ = write!(text, "{:>12}", value(row));
        });
        text.push('\n');
    };
    line("nodes", &|row| row.nodes.to_string());
    line("formed after", &|row| seconds(row.formed_s));
    line("a killed manager is noticed by one after", &|row| seconds(row.noticed_s));
    line("  by all after", &|row| seconds(row.known_s));
    line("  in no view after", &|row| seconds(row.left_out_s));
    line("  which all have seen after", &|row| seconds(row.seen_s));
    line("  may be taken over from after", &|row| seconds(row.succeeded_s));
    line("packets a second, of each node", &|row| format!("{:.1}", row.packets));
    line("  bytes of each", &|row| format!("{:.0}", row.packet_bytes));
    line("questions a second, of each node", &|row| format!("{:.2}", row.inquiries));
    line("calls to the store a second, of all", &|row| format!("{:.1}", row.store_calls));
    line("left out though they ran", &|row| row.left_out_living.to_string());
    line("messages of leases for each open:", &|_| String::new());
    let patterns = rows.iter().map(|row| &row.leases.opens).next();
    for (index, pattern) in patterns.into_iter().flatten().enumerate() {
        let of = |row: &Row, kinds: Range<usize>| {
            let Some(opens) = row.leases.opens.get(index) else { return "-".to_owned() };
            format!("{:.2}", sum(&opens.messages, kinds) as f64 / opens.opens as f64)
        };
        line(&format!("  {}", pattern.pattern), &|row| of(row, 0..KINDS.len()));
        for kind in used(&pattern.messages) {
            line(&format!("    {}", KINDS[kind]), &|row| of(row, kind..kind + 1));
        }
    }
    line("messages of leases of each node, for:", &|_| String::new());
    let changes = rows.iter().map(|row| &row.leases.changes).max_by_key(|changes| changes.len());
    for (index, change) in changes.into_iter().flatten().enumerate() {
        let of = |row: &Row, value: &dyn Fn(&Change) -> f64| {
            let Some(change) = row.leases.changes.get(index) else { return "-".to_owned() };
            format!("{:.2}", value(change) / f64::from(row.nodes))
        };
        let count = |kinds: Range<usize>| {
            move |change: &Change| sum(&change.messages, kinds.clone()) as f64
        };
        line(&format!("  {}", change.what), &|row| of(row, &count(0..KINDS.len())));
        for kind in used(&change.messages) {
            line(&format!("    {}", KINDS[kind]), &|row| of(row, &count(kind..kind + 1)));
        }
        line("    bytes", &|row| of(row, &|change| change.bytes as f64));
        let most = |row: &Row| row.leases.changes.get(index).map(|change| change.most.to_string());
        line("    of one node at most", &|row| most(row).unwrap_or("-".to_owned()));
    }
    text
}
