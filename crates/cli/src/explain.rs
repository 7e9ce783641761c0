//! `forebay explain`.

use crate::analyse;
use crate::output;
use crate::text::{bytes, counted, fitted};
use clap::Args;
use forebay_node::collective::{Shape, Terms};
use forebay_node::config::size_of;
use forebay_node::explain::{Candidate, Explanation, Extent, Placement, Way};
use forebay_node::in_force::{InForce, Source};
use forebay_node::log::shown;
use forebay_node::markers::WHY;
use forebay_node::profile::{Direction, bandwidth, latency};
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use forebay_placement::schema::{Consistency, Lifetime, METADATA, Mode};
use forebay_pool::datasets::NAME_MAX;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `forebay explain`.
#[derive(Args)]
pub struct ExplainArguments {
    /// A file in a buffered directory, which need not exist, or FILE:/DATASET of it, or
    /// FILE:metadata
    path: PathBuf,
    /// Bytes of the write that is asked about
    #[arg(long, value_name = "SIZE", default_value = BYTES, value_parser = some_size)]
    bytes: u64,
    /// Compare collective with independent I/O of so many MPI ranks, each with --bytes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: Option<u32>,
    /// Nodes that the ranks run on
    #[arg(long, value_name = "N", default_value_t = 1, requires = "ranks",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    nodes: u32,
    /// Ranks that do collective I/O [default: as many as are fastest]
    #[arg(long, value_name = "N", requires = "ranks",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    aggregators: Option<u32>,
    /// Bytes that an aggregator collects: cb_buffer_size
    #[arg(long, value_name = "SIZE", default_value = "16MiB", requires = "ranks",
          value_parser = some_size)]
    buffer: u64,
    /// Bytes of a rank that lie together in the file [default: all of --bytes]
    #[arg(long, value_name = "SIZE", requires = "ranks", value_parser = some_size)]
    piece: Option<u64>,
    /// Show every part of the file, however many there are
    #[arg(long)]
    all: bool,
    /// As JSON: an object with all parts of the file, see docs/explain.md
    #[arg(long, conflicts_with = "all")]
    json: bool,
}

/// A size that something can have: more bytes than a file of Linux's are no question.
fn some_size(text: &str) -> Result<u64, String> {
    let size = size_of(text).filter(|size| (1..=i64::MAX as u64).contains(size));
    size.ok_or_else(|| "give a size such as 4MiB".to_owned())
}

/// Bytes of the write that is asked about where that is not said.
const BYTES: &str = "1MiB";
/// Parts of a file that are shown without `--all`.
const EXTENTS_SHOWN: usize = 20;

/// Says which rule holds for a file, where its bytes are, and where new ones would go.
pub fn explain(arguments: &ExplainArguments) -> Result<ExitCode, String> {
    let (runtime, observer, explanation) = find(&arguments.path, arguments.bytes)?;
    let shape = arguments.ranks.map(|ranks| Shape {
        ranks,
        nodes: arguments.nodes,
        aggregators: arguments.aggregators,
        buffer: arguments.buffer,
        piece: arguments.piece,
    });
    let modes = shape.map(|shape| observer.collective(&explanation, &shape)).transpose()?;
    match arguments.json {
        true => output::json(json(&observer, &runtime, &explanation, modes.as_ref())),
        false => {
            print!("{}", show(&observer, &runtime, &explanation, arguments.all));
            modes.iter().for_each(|modes| print!("{}", show_modes(modes)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be said of a file where nothing but its path is given, as JSON.
pub fn json_of(path: &Path) -> Result<Value, String> {
    let (runtime, observer, explanation) = find(path, some_size(BYTES)?)?;
    Ok(json(&observer, &runtime, &explanation, None))
}

/// The instance that buffers a file, or a dataset of it, and how, asked for a write of `bytes`.
fn find(path: &Path, bytes: u64) -> Result<(Runtime, Observer, Explanation), String> {
    let (path, dataset) = with_dataset(path);
    let path = canonical(&path)?;
    for runtime in Runtime::all()?.into_iter().filter(Runtime::has_pool) {
        // One of another version, or that ends right now, is not this file's.
        let Ok(observer) = Observer::of(&runtime.pool) else { continue };
        if let Some(explanation) = observer.explain(&path, dataset.as_deref(), bytes) {
            return Ok((runtime, observer, explanation));
        }
    }
    Err(format!(
        "{} is in no directory that a node manager of yours buffers now; `forebay status` lists them",
        path.display()
    ))
}

/// A file, and the dataset of it that is meant, if what stands there is no file as a whole.
fn with_dataset(path: &Path) -> (PathBuf, Option<String>) {
    let of_dataset = |text: &str| {
        let (file, dataset) = text.split_once(":/")?;
        // As HDF5 understands a path: names between slashes, and "." is none.
        let names = dataset.split('/').filter(|name| !name.is_empty() && *name != ".");
        let names: Vec<_> = names.collect();
        Some((PathBuf::from(file), Some(format!("/{}", names.join("/")))))
    };
    let of_metadata = |text: &str| {
        let file = text.strip_suffix(METADATA)?.strip_suffix(':')?;
        Some((PathBuf::from(file), Some(METADATA.to_owned())))
    };
    let found = path.to_str().and_then(|text| of_metadata(text).or_else(|| of_dataset(text)));
    let part = found.filter(|_| std::fs::symlink_metadata(path).is_err());
    part.unwrap_or_else(|| (path.to_owned(), None))
}

/// The path as the kernel has it; the last name need not exist.
fn canonical(path: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let absolute = std::path::absolute(path).map_err(failed)?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(format!("{}: not a file", path.display()));
    };
    Ok(folder.canonicalize().map_err(failed)?.join(name))
}

fn show(observer: &Observer, runtime: &Runtime, found: &Explanation, all: bool) -> String {
    let mut text = String::new();
    let line = &mut text;
    let _ = writeln!(line, "{}", shown(&found.path));
    let mode = match (found.bypass, found.mode) {
        _ if found.unbufferable => ", not buffered".to_owned(),
        (true, _) => ", not buffered (mode bypass)".to_owned(),
        (false, Some(mode)) => format!(", mode {}", mode.name()),
        (false, None) => String::new(),
    };
    let _ = writeln!(line, "  instance  {}{mode}", runtime.instance);
    let _ = writeln!(line, "  directory {}", found.directory.display());
    if found.unbufferable {
        let _ = writeln!(line, "            its files cannot be buffered: {WHY}");
    }
    if found.writes_through {
        let took = found.small_file_ns.map_or(String::new(), |ns| {
            format!(": the store takes one in {} us", ns.div_ceil(1000))
        });
        let _ = writeln!(line, "            new small files are written through{took}");
    }
    match &found.file {
        Some(file) => {
            let behind =
                if file.ahead { "ahead of the store's" } else { "the store's is the same" };
            let direct = match (file.direct, file.written_through) {
                (true, true) => "; new and small, written through",
                (true, false) => "; used through the kernel",
                (false, _) => "",
            };
            let mode = file.mode.filter(|&mode| mode != Mode::Async);
            let mode = mode.map_or(String::new(), |mode| format!("; mode {}", mode.name()));
            let job = file.job.map_or(String::new(), |job| format!(" of job {job}"));
            let stage = file
                .stage
                .map_or(String::new(), |stage| format!(", {} ({})", stage.name(), stage.letter()));
            let store = bytes(file.store_size);
            let _ = writeln!(
                line,
                "  file      {}, {behind} {store}{direct}{mode}{job}{stage}",
                bytes(found.size)
            );
            if let Some(errno) = file.errno {
                let error = std::io::Error::from_raw_os_error(errno);
                let _ = writeln!(line, "            its last flush failed: {error}");
            }
        }
        None => {
            let _ = writeln!(line, "  file      {}, nothing of it is buffered", bytes(found.size));
        }
    }
    for (index, action) in analyse::of_file(runtime, &found.path).iter().enumerate() {
        let head = if index == 0 { "actions" } else { "" };
        let _ = writeln!(line, "  {head:8}  {action}");
    }
    if let Some(mark) = &found.encoded {
        let ratio = mark.original as f64 / mark.encoded as f64;
        let _ = writeln!(
            line,
            "  encoded   {}, {} on the store ({ratio:.1}:1) until a program opens it",
            mark.form_name(),
            bytes(mark.encoded)
        );
    }
    datasets(line, found, all);
    rules(line, found);
    let _ = writeln!(line, "  in force  {}", in_force(&found.in_force));
    if let Some(consistency) = found.consistency {
        let seen = match consistency {
            Consistency::Strict => "other nodes see what is written at once",
            Consistency::Commit => "other nodes see what was synced or closed",
        };
        let _ = writeln!(line, "  nodes     consistency {}: {seen}", consistency.name());
    }
    extents(line, &found.extents, all);
    for (range, tier) in &found.pins {
        let length = bytes(range.end - range.start);
        let _ = writeln!(line, "  pinned    {} .. {} {tier} {length}", range.start, range.end);
    }
    if !found.bypass && !found.unbufferable {
        placement(line, observer, &found.placement);
    }
    text.lines().map(|line| fitted(line, 12) + "\n").collect()
}

/// The datasets that are known, with the bytes in which they lie and the rules that ask for them.
fn datasets(text: &mut String, found: &Explanation, all: bool) {
    if let (Some(name), []) = (&found.dataset, &found.datasets[..]) {
        let why = match name.len() > NAME_MAX {
            true => format!("names of more than {NAME_MAX} bytes are not followed"),
            false => "no program was seen to use it since the file came to the pool".to_owned(),
        };
        let _ = writeln!(text, "  dataset   {} is not known: {why}", shown(name));
    }
    let most = if all { found.datasets.len() } else { found.datasets.len().min(EXTENTS_SHOWN) };
    for (index, dataset) in found.datasets[..most].iter().enumerate() {
        let head = if index == 0 { "dataset" } else { "" };
        let length = dataset.ranges.iter().map(|range| range.end - range.start).sum();
        let parts = match &dataset.ranges[..] {
            [] => "not in the file yet".to_owned(),
            [range] => format!("{} .. {} {}", range.start, range.end, bytes(length)),
            ranges => format!("{} parts {}", ranges.len(), bytes(length)),
        };
        let rule = dataset.rule.as_ref().map_or(String::new(), |rule| format!(", rule {rule}"));
        let _ = writeln!(text, "  {head:8}  {} {parts}{rule}", shown(&dataset.name));
    }
    if most < found.datasets.len() {
        let _ = writeln!(text, "            and {} more (--all)", found.datasets.len() - most);
    }
}

/// Everything of an explanation, for programs: `docs/explain.md` says what is what.
fn json(
    observer: &Observer,
    runtime: &Runtime,
    found: &Explanation,
    modes: Option<&[Terms; 2]>,
) -> Value {
    let file = found.file.map(|file| {
        json!({
            "store_size": file.store_size,
            "ahead": file.ahead,
            "direct": file.direct,
            "written_through": file.written_through,
            "mode": file.mode.map(Mode::name),
            "job": file.job,
            "stage": file.stage.map(|stage| stage.letter().to_string()),
            "errno": file.errno,
        })
    });
    let rules = found.rules.iter().map(|rule| {
        json!({
            "name": rule.name,
            "source": rule.source,
            "holds": rule.holds,
            "mismatch": rule.mismatch,
        })
    });
    let extents = found.extents.iter().map(|extent| {
        json!({
            "range": [extent.start, extent.end],
            "tier": extent.tier,
            "bound_for": extent.bound_for,
            "dirty": extent.dirty,
            "valid": extent.valid,
        })
    });
    let pins = found
        .pins
        .iter()
        .map(|(range, tier)| json!({ "range": [range.start, range.end], "tier": tier }));
    let datasets = found.datasets.iter().map(|dataset| {
        let ranges: Vec<_> =
            dataset.ranges.iter().map(|range| json!([range.start, range.end])).collect();
        json!({ "name": dataset.name, "rule": dataset.rule, "ranges": ranges })
    });
    let placement = &found.placement;
    let places = placement.candidates.iter().map(|place| {
        json!({
            "name": place.name,
            "free": place.space.map(|(free, _)| free),
            "capacity": place.space.map(|(_, capacity)| capacity),
            "pinned": place.pinned,
            "coldest": place.coldest,
            "write_bandwidth": place.write_bandwidth,
            "latency_ns": place.latency_ns,
            "cost_ns": place.cost_ns,
        })
    });
    let plan = placement.plan.pieces().iter().zip(&placement.ways).map(|(piece, way)| {
        json!({
            "to": observer.name_of(piece.to),
            "bytes": piece.bytes,
            "room": piece.room,
            "way": match way {
                Way::Written => "written",
                Way::Moved => "moved",
                Way::Spread => "spread",
            },
        })
    });
    json!({
        "path": found.path.to_string_lossy(),
        "instance": runtime.instance,
        "directory": found.directory.to_string_lossy(),
        "bypass": found.bypass,
        "unbufferable": found.unbufferable,
        "mode": found.mode.map(Mode::name),
        "writes_through": found.writes_through,
        "small_file_ns": found.small_file_ns,
        "size": found.size,
        "encoded": found
            .encoded
            .map(|mark| json!({ "form": mark.form_name(), "encoded_bytes": mark.encoded })),
        "file": file,
        "rules": rules.collect::<Vec<_>>(),
        "settings": settings(found),
        "consistency": found.consistency.map(Consistency::name),
        "extents": extents.collect::<Vec<_>>(),
        "dataset": found.dataset,
        "datasets": datasets.collect::<Vec<_>>(),
        "actions": analyse::json(runtime, Some(&found.path)),
        "pins": pins.collect::<Vec<_>>(),
        "placement": {
            "policy": placement.policy,
            "bytes": placement.bytes,
            "hotness": placement.hotness,
            "exposed": placement.exposed,
            "places": places.collect::<Vec<_>>(),
            "plan": plan.collect::<Vec<_>>(),
        },
        "modes": modes.map(|modes| modes.iter().map(json_of_modes).collect::<Vec<_>>()),
    })
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

fn json_of_modes(terms: &Terms) -> Value {
    let Terms { call, device, decision, .. } = terms;
    json!({
        "direction": way(terms.direction),
        "mode": decision.mode.name(),
        "bytes": call.bytes,
        "piece": call.piece,
        "aggregators": call.aggregators,
        "rounds": decision.times.rounds,
        "between_s": decision.times.between_s,
        "within_s": decision.times.within_s,
        "sequential_s": decision.times.sequential_s,
        "hidden_s": decision.times.hidden_s,
        "random_s": decision.times.random_s,
        "collective_s": decision.collective_s,
        "independent_s": decision.independent_s,
        "overlapped_s": decision.times.overlapped_s(),
        "crossover": terms.crossover,
        "bandwidth": device.bandwidth,
        "seek_s": device.seek_s,
        "latency_s": device.latency_s,
    })
}

/// The terms of both modes, reads first.
fn show_modes(modes: &[Terms; 2]) -> String {
    let mut text = String::new();
    let time = |time_s: f64| match (time_s * 1e9) as u64 {
        0 => "0s".to_owned(),
        ns => latency(ns),
    };
    for terms in modes {
        let Terms { call, device, decision, .. } = terms;
        let times = decision.times;
        let aggregators = counted(call.aggregators, "aggregator", "aggregators");
        let _ = writeln!(
            text,
            "  {:9} {} of {} ranks: {} I/O",
            match terms.direction {
                Direction::Read => "mpi reads",
                Direction::Write => "mpi write",
            },
            bytes(call.bytes),
            call.ranks,
            decision.mode.name(),
        );
        let _ = writeln!(
            text,
            "            collective {}: {} between nodes, {} within, {} I/O, {aggregators}, {}",
            time(decision.collective_s),
            time(times.between_s),
            time(times.within_s),
            time(times.sequential_s),
            counted(times.rounds as u64, "round", "rounds"),
        );
        let crossover = match terms.crossover {
            Some(1) => "as fast with pieces of any size".to_owned(),
            Some(piece) => format!("as fast with pieces from {} on", bytes(piece)),
            None => "never as fast with pieces".to_owned(),
        };
        let _ = writeln!(
            text,
            "            independent {}: {}, {} each seek; {crossover}",
            time(decision.independent_s),
            bandwidth(device.bandwidth as u64),
            time(device.seek_s),
        );
    }
    text.lines().map(|line| fitted(line, 12) + "\n").collect()
}

/// Policy, mode and trigger, each with who says so.
pub fn in_force(found: &InForce) -> String {
    let part = |(what, name, source): (_, _, Source)| format!("{what} {name} ({})", source.name());
    found.parts().map(part).join(", ")
}

fn rules(text: &mut String, found: &Explanation) {
    if found.rules.is_empty() {
        let _ = writeln!(text, "  rule      none; there is no schema");
        return;
    }
    if found.rules.iter().all(|rule| !rule.holds) {
        let _ = writeln!(text, "  rule      none matches");
    }
    for rule in &found.rules {
        let name = if rule.name.is_empty() { "without a name" } else { &rule.name };
        let source = &rule.source;
        match (rule.holds, rule.mismatch) {
            (true, _) => {
                let _ = writeln!(text, "  rule      {name} ({source}) holds: {}", settings(found));
                // Those below are not asked.
                break;
            }
            (false, Some(key)) => {
                let _ = writeln!(text, "            {name} ({source}) does not match: {key}");
            }
            (false, None) => {
                let _ = writeln!(
                    text,
                    "            {name} ({source}) did not match the process that opened it last"
                );
            }
        }
    }
}

fn settings(found: &Explanation) -> String {
    let set = found.settings;
    let mut parts = Vec::new();
    let mut part = |key: &str, value: Option<&str>| {
        parts.extend(value.map(|value| format!("{key} {value}")));
    };
    part("policy", set.policy.map(|policy| policy.policy().name()));
    let tier = set.tier.and_then(|tier| found.placement.candidates.get(usize::from(tier)));
    part("tier", tier.map(|tier| tier.name.as_str()));
    part("mode", set.mode.map(|mode| mode.name()));
    part("trigger", set.trigger.map(|trigger| trigger.name()));
    part("durability", set.durability.map(|durability| durability.name()));
    part("consistency", set.consistency.map(|consistency| consistency.name()));
    let lifetime = match set.lifetime {
        Some(Lifetime::KeepVersions(count)) => Some(format!("keep-versions {count}")),
        Some(Lifetime::OverwriteWhenRead) => Some("overwrite-when-read true".to_owned()),
        Some(Lifetime::Expires(after_ns)) => {
            Some(format!("expires {:?}", std::time::Duration::from_nanos(after_ns)))
        }
        None => None,
    };
    let reserve = (set.reserve > 0).then(|| bytes(set.reserve));
    part("reserve", reserve.as_deref());
    part("pin", set.pin.then_some("true"));
    let holds = found.rules.iter().find(|rule| rule.holds && !rule.predictor.is_empty());
    part("predictor", holds.map(|rule| rule.predictor.as_str()));
    let priority = set.priority.to_string();
    part("priority", (set.priority > 0).then_some(&priority));
    parts.extend(lifetime);
    if parts.is_empty() { "it sets nothing".to_owned() } else { parts.join(", ") }
}

fn extents(text: &mut String, extents: &[Extent], all: bool) {
    let shown = if all { extents.len() } else { extents.len().min(EXTENTS_SHOWN) };
    for (index, extent) in extents[..shown].iter().enumerate() {
        let head = if index == 0 { "lies" } else { "" };
        let place = extent.tier.as_deref().unwrap_or("store");
        let length = extent.end - extent.start;
        let mut what = match (&extent.tier, extent.dirty) {
            (None, _) => String::new(),
            (Some(_), 0) => ", clean".to_owned(),
            (Some(_), dirty) => format!(", {} not yet on the store", bytes(dirty)),
        };
        if let Some(tier) = &extent.bound_for {
            let _ = write!(what, ", on its way to {tier}");
        }
        if extent.tier.is_some() && extent.valid < length {
            let _ = write!(what, ", {} only on the store", bytes(length - extent.valid));
        }
        let range = format!("{} .. {}", extent.start, extent.end);
        let _ = writeln!(text, "  {head:8}  {range} {place} {}{what}", bytes(length));
    }
    if shown < extents.len() {
        let _ = writeln!(text, "            and {} more parts (--all)", extents.len() - shown);
        let mut sums = BTreeMap::<&str, u64>::new();
        for extent in extents {
            *sums.entry(extent.tier.as_deref().unwrap_or("store")).or_default() +=
                extent.end - extent.start;
        }
        let sums: Vec<_> =
            sums.iter().map(|(name, sum)| format!("{name} {}", bytes(*sum))).collect();
        let _ = writeln!(text, "            in all {}", sums.join(", "));
    }
}

fn placement(text: &mut String, observer: &Observer, placement: &Placement) {
    let Placement { policy, bytes: asked, hotness, exposed, .. } = placement;
    let _ = writeln!(
        text,
        "  new data  {} by policy {policy}, hotness of the file {hotness:.1}:",
        bytes(*asked)
    );
    let _ = writeln!(
        text,
        "  {:10} {:>10} {:>10} {:>10} {:>7} {:>8} {:>7} {:>8}",
        "place", "free", "of", "pinned", "coldest", "writes", "latency", "time"
    );
    for candidate in &placement.candidates {
        let Candidate { name, space, pinned, coldest, write_bandwidth, latency_ns, cost_ns } =
            candidate;
        let unknown = || ("-".to_owned(), "-".to_owned());
        let (free, all) =
            space.map_or_else(unknown, |(free, capacity)| (bytes(free), bytes(capacity)));
        let _ = writeln!(
            text,
            "  {name:10} {free:>10} {all:>10} {:>10} {coldest:>7.1} {:>8} {:>7} {:>8}",
            bytes(*pinned),
            bandwidth(*write_bandwidth),
            latency(*latency_ns),
            latency(*cost_ns as u64)
        );
    }
    for (piece, way) in placement.plan.pieces().iter().zip(&placement.ways) {
        let room = match piece.room {
            0 => String::new(),
            room => format!(", after {} of it moved down", bytes(room)),
        };
        let to = observer.name_of(piece.to);
        let way = match way {
            Way::Written => String::new(),
            Way::Moved => ", by way of ram; the manager moves it".to_owned(),
            Way::Spread => {
                ": written to ram, from which as much moves to all lower tiers at once".to_owned()
            }
        };
        let _ = writeln!(text, "            -> {} to {to}{room}{way}", bytes(piece.bytes));
    }
    let _ = writeln!(text, "  moves     {:.0} % exposed", exposed * 100.0);
}
