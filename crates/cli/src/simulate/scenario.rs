//! A scenario: a machine, a workload in several cases, the strategies to compare, and what a paper
//! says that should come out.

use std::fs;
use std::path::Path;

use forebay_node::config::BUFFER_TIERS_MAX;
use forebay_node::config::reader::{Result, Source, Table};
use forebay_placement::{Costs, Model, PolicyId, names};
use forebay_simulator::{
    Cluster, Device, Fault, FaultKind, Movers, Phases, ReadFrom, Run, Store, Strategy, Target,
    Tier, Tiers, Trigger, Workload,
};

use super::trace;

/// A node's ids have 16 bits; ten times the largest machines of today.
const NODES_MAX: u32 = 100_000;
const RANKS_MAX: u32 = 1_024;
const DEVICES_MAX: u32 = 100_000;
const PHASES_MAX: u32 = 10_000;
const REPEAT_MAX: u64 = 1_000;
/// More blocks than this would not fit in an ordinary machine's memory.
const BLOCKS_MAX: u64 = 20_000_000;
const GRAIN_NS: u64 = 100_000;
const BLOCK: u64 = 16 << 20;
const SECONDS_MAX: f64 = 1e9;
const RATIO_MAX: f64 = 1e6;

const ROOT: &[&str] = &[
    "title",
    "seed",
    "grain",
    "cluster",
    "tier",
    "store",
    "workload",
    "case",
    "strategy",
    "fault",
    "reference",
    "ratio",
];
const CLUSTER: &[&str] = &["nodes", "ranks_per_node", "link", "block"];
const TIER: &[&str] =
    &["name", "shared", "devices", "stripe", "capacity", "read", "write", "latency"];
const STORE: &[&str] = &[
    "devices",
    "stripe",
    "read",
    "write",
    "latency",
    "link",
    "seek",
    "request",
    "flush_request",
    "opens",
];
const WORKLOAD: &[&str] = &[
    "kind",
    "phases",
    "compute",
    "jitter",
    "write",
    "read",
    "repeat",
    "read_from",
    "opens",
    "trace",
];
const CASE: &[&str] = &[
    "name",
    "nodes",
    "ranks_per_node",
    "devices",
    "capacity",
    "phases",
    "compute",
    "jitter",
    "write",
    "read",
    "repeat",
    "opens",
];
const STRATEGY: &[&str] = &[
    "name", "kind", "policy", "flush", "period", "demote", "promote", "prefetch", "costs",
    "exposed",
];
const FAULT: &[&str] = &["at", "kind", "tier", "node", "device", "factor"];
const REFERENCE: &[&str] = &["case", "strategy", "open", "write", "read", "io", "flush", "total"];
const RATIO: &[&str] = &["case", "measure", "of", "over", "paper"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Alternating,
    Reads,
    Vpic,
    Hacc,
    Trace,
}

const KINDS: &[(&str, Kind)] = &[
    ("alternating", Kind::Alternating),
    ("reads", Kind::Reads),
    ("vpic", Kind::Vpic),
    ("hacc", Kind::Hacc),
    ("trace", Kind::Trace),
];
const READ_FROM: &[(&str, ReadFrom)] =
    &[("phase", ReadFrom::Phase), ("own", ReadFrom::Own), ("any", ReadFrom::Any)];

#[derive(Clone, Copy)]
enum Buffering {
    Direct,
    DataElevator,
    DataWarp,
    Forebay,
}

const BUFFERINGS: &[(&str, Buffering)] = &[
    ("direct", Buffering::Direct),
    ("data-elevator", Buffering::DataElevator),
    ("datawarp", Buffering::DataWarp),
    ("forebay", Buffering::Forebay),
];
const TRIGGERS: &[(&str, Option<Trigger>)] = &[
    ("per-operation", Some(Trigger::PerOperation)),
    ("per-file", Some(Trigger::PerFile)),
    ("on-exit", Some(Trigger::OnExit)),
    ("periodic", None),
    ("never", Some(Trigger::Never)),
];

const MODELS: &[(&str, Model)] = &[("physical", Model::Physical), ("paper", Model::Paper)];

/// What of an outcome is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Open,
    Write,
    Read,
    Io,
    Flush,
    Total,
}

pub(super) const MEASURES: &[(&str, Measure)] = &[
    ("open", Measure::Open),
    ("write", Measure::Write),
    ("read", Measure::Read),
    ("io", Measure::Io),
    ("flush", Measure::Flush),
    ("total", Measure::Total),
];

/// A scenario, every default filled in.
pub(super) struct Scenario {
    pub title: String,
    pub seed: u64,
    pub grain_ns: u64,
    pub cases: Vec<Case>,
    pub strategies: Vec<Strategy>,
    pub faults: Vec<Fault>,
    pub references: Vec<Reference>,
    pub ratios: Vec<Ratio>,
}

/// One group of bars.
pub(super) struct Case {
    pub name: String,
    pub cluster: Cluster,
    pub workload: Workload,
}

/// Seconds that a paper gives.
pub(super) struct Reference {
    pub case: usize,
    pub strategy: usize,
    pub seconds: Vec<(Measure, f64)>,
}

/// How many times as long something takes with one strategy as with another, as a paper gives it.
pub(super) struct Ratio {
    pub case: usize,
    pub measure: Measure,
    pub of: usize,
    pub over: usize,
    pub paper: f64,
}

impl Scenario {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|e| {
            format!(
                "{name}: cannot be read: {e}; give an existing file, or one of {}",
                super::builtin_names()
            )
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Self::parse(&name, &text, folder)
    }

    /// Reads a text; `folder` is where relative paths start.
    pub fn parse(name: &str, text: &str, folder: &Path) -> Result<Self> {
        let source = Source { name: Some(name), text, folder };
        let document = source.parse()?;
        let root = source.root(&document, ROOT)?;
        let base = base(&root, folder)?;
        let cases = cases(&root, &base)?;
        let strategies = strategies(&root)?;
        let mut scenario = Self {
            title: root.get("title").map_or(Ok(name), |v| v.text())?.to_owned(),
            seed: root.get("seed").map_or(Ok(1), |v| v.number(0, i64::MAX as u64))?,
            grain_ns: root.get("grain").map_or(Ok(GRAIN_NS), |v| v.time())?.max(1),
            faults: faults(&root, &cases)?,
            references: Vec::new(),
            ratios: Vec::new(),
            cases,
            strategies,
        };
        scenario.read_references(&root)?;
        scenario.read_ratios(&root)?;
        Ok(scenario)
    }

    /// One of its runs.
    pub fn run(&self, case: usize, strategy: usize) -> Run {
        Run {
            cluster: self.cases[case].cluster.clone(),
            workload: self.cases[case].workload.clone(),
            strategy: self.strategies[strategy].clone(),
            faults: self.faults.clone(),
            seed: self.seed,
            grain_ns: self.grain_ns,
        }
    }

    fn read_references(&mut self, root: &Table) -> Result<()> {
        for table in root.tables("reference", REFERENCE)? {
            let mut seconds = Vec::new();
            for &(key, measure) in MEASURES {
                if let Some(value) = table.get(key) {
                    seconds.push((measure, value.fraction(SECONDS_MAX)?));
                }
            }
            if seconds.is_empty() {
                return Err(
                    table.error("write", "missing; add write, read, io, flush or total = SECONDS")
                );
            }
            let (case, strategy) = (self.case(&table)?, self.strategy(&table, "strategy")?);
            self.references.push(Reference { case, strategy, seconds });
        }
        Ok(())
    }

    fn read_ratios(&mut self, root: &Table) -> Result<()> {
        for table in root.tables("ratio", RATIO)? {
            let measure =
                table.require("measure", "\"write\", \"read\", \"io\", \"flush\" or \"total\"")?;
            let paper = table.require("paper", "a number")?.fraction(RATIO_MAX)?;
            self.ratios.push(Ratio {
                case: self.case(&table)?,
                measure: measure.one_of(MEASURES)?,
                of: self.strategy(&table, "of")?,
                over: self.strategy(&table, "over")?,
                paper,
            });
        }
        Ok(())
    }

    fn case(&self, table: &Table) -> Result<usize> {
        let names: Vec<_> = { self.cases.iter().enumerate() }
            .map(|(index, case)| (case.name.as_str(), index))
            .collect();
        table.require("case", "the name of a case")?.one_of(&names)
    }

    fn strategy(&self, table: &Table, key: &str) -> Result<usize> {
        let names: Vec<_> = { self.strategies.iter().enumerate() }
            .map(|(index, strategy)| (strategy.name.as_str(), index))
            .collect();
        table.require(key, "the name of a strategy")?.one_of(&names)
    }
}

/// What all cases start from.
struct Base {
    cluster: Cluster,
    kind: Kind,
    phases: Phases,
    trace: Option<Vec<Vec<forebay_simulator::Op>>>,
}

fn base(root: &Table, folder: &Path) -> Result<Base> {
    let table = root
        .table("cluster", CLUSTER)?
        .ok_or_else(|| root.error("cluster", "missing; add [cluster] with nodes = a number"))?;
    let cluster = Cluster {
        nodes: table.require("nodes", "a number")?.count(1, NODES_MAX)?,
        ranks_per_node: table.get("ranks_per_node").map_or(Ok(1), |v| v.count(1, RANKS_MAX))?,
        link: table.get("link").map_or(Ok(0), |v| v.bandwidth())?,
        block: match table.get("block") {
            Some(value) => match value.size()? {
                0 => return Err(value.error("is zero; give a size such as \"16MiB\"")),
                block => block,
            },
            None => BLOCK,
        },
        tiers: tiers(root)?,
        store: store(root)?,
    };
    let table = root.table("workload", WORKLOAD)?.ok_or_else(|| {
        root.error(
            "workload",
            "missing; add [workload] with kind = \"alternating\", \"reads\", \
            \"vpic\", \"hacc\" or \"trace\"",
        )
    })?;
    let kind = table.require("kind", "\"alternating\"")?.one_of(KINDS)?;
    let write = table.get("write").map_or(Ok(64 << 20), |v| v.size())?;
    let read_default = if matches!(kind, Kind::Reads | Kind::Hacc) { write } else { 0 };
    let phases = Phases {
        phases: table.get("phases").map_or(Ok(16), |v| v.count(1, PHASES_MAX))?,
        compute_ns: table.get("compute").map_or(Ok(0), |v| v.time())?,
        jitter: (table.get("jitter").map_or(Ok(0.0), |v| v.fraction(1.0))? * 1000.0) as u64,
        write,
        read: table.get("read").map_or(Ok(read_default), |v| v.size())?,
        repeat: table.get("repeat").map_or(Ok(1), |v| v.number(1, REPEAT_MAX))?,
        read_from: match table.get("read_from") {
            Some(value) => value.one_of(READ_FROM)?,
            None if kind == Kind::Hacc => ReadFrom::Phase,
            None => ReadFrom::Own,
        },
        shared_file: matches!(kind, Kind::Vpic | Kind::Hacc),
        opens: table.get("opens").map_or(Ok(1), |v| v.count(1, RANKS_MAX))?,
    };
    let trace = match (kind, table.get("trace")) {
        (Kind::Trace, Some(value)) => {
            Some(trace::load(&folder.join(value.text()?), cluster.ranks())?)
        }
        (Kind::Trace, None) => {
            return Err(table.error("trace", "missing; add trace = the path of a CSV file"));
        }
        (_, Some(value)) => return Err(value.error("only for kind = \"trace\"; remove it")),
        (_, None) => None,
    };
    Ok(Base { cluster, kind, phases, trace })
}

fn device(table: &Table) -> Result<Device> {
    let bandwidth = |key: &str| {
        let value = table.require(key, "a bandwidth such as \"735MiB/s\"")?;
        match value.bandwidth()? {
            0 => Err(value.error("is zero; give a bandwidth such as \"735MiB/s\"")),
            bandwidth => Ok(bandwidth),
        }
    };
    Ok(Device {
        read_bandwidth: bandwidth("read")?,
        write_bandwidth: bandwidth("write")?,
        latency_ns: table.get("latency").map_or(Ok(0), |v| v.time())?,
    })
}

fn stripe(table: &Table, devices: u32) -> Result<u32> {
    let Some(value) = table.get("stripe") else { return Ok(devices) };
    let stripe = value.count(1, devices)?;
    match devices % stripe {
        0 => Ok(stripe),
        _ => {
            Err(value
                .error(format_args!("{stripe} does not divide {devices} devices; give a divisor")))
        }
    }
}

fn tiers(root: &Table) -> Result<Vec<Tier>> {
    let mut tiers: Vec<Tier> = Vec::new();
    for table in root.tables("tier", TIER)? {
        let name = table.require("name", "what results call it")?;
        let text = name.text()?;
        if text == "store" || tiers.iter().any(|tier| tier.name == text) {
            return Err(name.error(format_args!("\"{text}\" is taken; give another name")));
        }
        if tiers.len() == BUFFER_TIERS_MAX {
            return Err(name.error(format_args!("too many tiers; give at most {BUFFER_TIERS_MAX}")));
        }
        let shared = table.get("shared").map_or(Ok(false), |v| v.boolean())?;
        let devices = table.get("devices").map_or(Ok(1), |v| v.count(1, DEVICES_MAX))?;
        if let (false, Some(value)) = (shared, table.get("stripe")) {
            return Err(value.error("only for shared tiers; remove it"));
        }
        tiers.push(Tier {
            name: text.to_owned(),
            shared,
            devices,
            capacity: table.require("capacity", "a size such as \"8GiB\"")?.size()?,
            device: device(&table)?,
            stripe: stripe(&table, devices)?,
        });
    }
    Ok(tiers)
}

fn store(root: &Table) -> Result<Store> {
    let table = root.table("store", STORE)?.ok_or_else(|| {
        root.error("store", "missing; add [store] with read and write = a bandwidth")
    })?;
    let devices = table.get("devices").map_or(Ok(1), |v| v.count(1, DEVICES_MAX))?;
    Ok(Store {
        devices,
        device: device(&table)?,
        stripe: stripe(&table, devices)?,
        link: table.get("link").map_or(Ok(0), |v| v.bandwidth())?,
        seek_ns: table.get("seek").map_or(Ok(0), |v| v.time())?,
        request: table.get("request").map_or(Ok(1 << 20), |v| v.size())?.max(1),
        flush_request: table.get("flush_request").map_or(Ok(4 << 20), |v| v.size())?.max(1),
        opens: table.get("opens").map_or(Ok(0), |v| v.number(0, 1 << 40))?,
    })
}

fn cases(root: &Table, base: &Base) -> Result<Vec<Case>> {
    let tables = root.tables("case", CASE)?;
    let mut cases: Vec<Case> = Vec::new();
    for table in &tables {
        let name = table.require("name", "what results call it")?;
        let text = name.text()?.to_owned();
        if cases.iter().any(|case| case.name == text) {
            return Err(name.error(format_args!("\"{text}\" is taken; give another name")));
        }
        cases.push(case(table, text, base)?);
    }
    if cases.is_empty() {
        cases.push(Case {
            name: "all".to_owned(),
            cluster: base.cluster.clone(),
            workload: workload(base, base.phases),
        });
    }
    for (index, case) in cases.iter().enumerate() {
        let Workload::Phases(phases) = &case.workload else { continue };
        let written = u64::from(case.cluster.ranks())
            .saturating_mul(u64::from(phases.phases))
            .saturating_mul(phases.write.div_ceil(case.cluster.block));
        if written > BLOCKS_MAX {
            let place = tables.get(index).unwrap_or(root);
            return Err(place.error(
                "write",
                format_args!(
                    "{written} blocks of {} bytes are written, and at most {BLOCKS_MAX} can be \
                     followed; give a larger cluster.block",
                    case.cluster.block
                ),
            ));
        }
        if phases.shared_file && phases.write % case.cluster.block != 0 {
            let place = tables.get(index).unwrap_or(root);
            return Err(place.error(
                "write",
                "into a shared file must be a whole number of cluster.block; change one of them",
            ));
        }
    }
    Ok(cases)
}

fn case(table: &Table, name: String, base: &Base) -> Result<Case> {
    let mut cluster = base.cluster.clone();
    let mut phases = base.phases;
    if base.trace.is_some() {
        for key in [
            "nodes",
            "ranks_per_node",
            "phases",
            "compute",
            "jitter",
            "write",
            "read",
            "repeat",
            "opens",
        ] {
            if let Some(value) = table.get(key) {
                return Err(value.error("a trace says this itself; remove it"));
            }
        }
    }
    if let Some(value) = table.get("nodes") {
        cluster.nodes = value.count(1, NODES_MAX)?;
    }
    if let Some(value) = table.get("ranks_per_node") {
        cluster.ranks_per_node = value.count(1, RANKS_MAX)?;
    }
    let names: Vec<_> = cluster.tiers.iter().map(|tier| tier.name.clone()).collect();
    let mut places: Vec<_> = names.iter().map(String::as_str).collect();
    if let Some(capacities) = table.table("capacity", &places)? {
        for tier in &mut cluster.tiers {
            if let Some(value) = capacities.get(&tier.name) {
                tier.capacity = value.size()?;
            }
        }
    }
    places.push("store");
    if let Some(devices) = table.table("devices", &places)? {
        for tier in &mut cluster.tiers {
            if let Some(value) = devices.get(&tier.name) {
                tier.devices = value.count(1, DEVICES_MAX)?;
                tier.stripe = tier.devices;
            }
        }
        if let Some(value) = devices.get("store") {
            cluster.store.devices = value.count(1, DEVICES_MAX)?;
            cluster.store.stripe = cluster.store.devices;
        }
    }
    if let Some(value) = table.get("phases") {
        phases.phases = value.count(1, PHASES_MAX)?;
    }
    if let Some(value) = table.get("compute") {
        phases.compute_ns = value.time()?;
    }
    if let Some(value) = table.get("jitter") {
        phases.jitter = (value.fraction(1.0)? * 1000.0) as u64;
    }
    if let Some(value) = table.get("write") {
        let write = value.size()?;
        if phases.read == phases.write && base.kind == Kind::Hacc {
            phases.read = write;
        }
        phases.write = write;
    }
    if let Some(value) = table.get("read") {
        phases.read = value.size()?;
    }
    if let Some(value) = table.get("repeat") {
        phases.repeat = value.number(1, REPEAT_MAX)?;
    }
    if let Some(value) = table.get("opens") {
        phases.opens = value.count(1, RANKS_MAX)?;
    }
    Ok(Case { name, cluster, workload: workload(base, phases) })
}

fn workload(base: &Base, phases: Phases) -> Workload {
    match &base.trace {
        Some(ranks) => Workload::Trace(ranks.clone()),
        None => Workload::Phases(phases),
    }
}

fn strategies(root: &Table) -> Result<Vec<Strategy>> {
    let mut strategies: Vec<Strategy> = Vec::new();
    for table in root.tables("strategy", STRATEGY)? {
        let name = table.require("name", "what results call it")?;
        let text = name.text()?;
        if strategies.iter().any(|strategy| strategy.name == text) {
            return Err(name.error(format_args!("\"{text}\" is taken; give another name")));
        }
        strategies.push(strategy(&table, text.to_owned())?);
    }
    if strategies.is_empty() {
        return Err(root.error(
            "strategy",
            "missing; add [[strategy]] with a name and kind = \"direct\", \"data-elevator\", \
             \"datawarp\" or \"forebay\"",
        ));
    }
    Ok(strategies)
}

fn strategy(table: &Table, name: String) -> Result<Strategy> {
    let kind = table.require("kind", "\"forebay\"")?.one_of(BUFFERINGS)?;
    let policies: Vec<_> = names().map(|name| (name, name)).collect();
    let policy = table.get("policy").map(|value| value.one_of(&policies)).transpose()?;
    let flush = table.get("flush").map(|value| value.one_of(TRIGGERS)).transpose()?;
    let period_ns = match table.get("period") {
        Some(value) => match value.time()? {
            0 => return Err(value.error("is zero; give a time such as \"1s\"")),
            ns => ns,
        },
        None => 1_000_000_000,
    };
    let trigger = |default: Trigger| match flush {
        None => default,
        Some(trigger) => trigger.unwrap_or(Trigger::Periodic(period_ns)),
    };
    if let (Some(_), false) = (policy, matches!(kind, Buffering::Forebay)) {
        return Err(table.error("policy", "only for kind = \"forebay\"; remove it"));
    }
    let (tiers, trigger, movers) = match kind {
        Buffering::Direct => (Tiers::None, Trigger::OnExit, Movers::Nodes),
        Buffering::DataElevator => (Tiers::Shared, trigger(Trigger::PerFile), Movers::Nodes),
        Buffering::DataWarp => (Tiers::Shared, trigger(Trigger::OnExit), Movers::Servers),
        Buffering::Forebay => (Tiers::All, trigger(Trigger::Periodic(period_ns)), Movers::Nodes),
    };
    let policy = policy.unwrap_or("max-bandwidth").to_owned();
    let moves_down = PolicyId::named(&policy).is_none_or(|id| id.policy().moves_down());
    let demote = table.get("demote").map_or(Ok(moves_down), |value| value.boolean())?;
    let promote = table.get("promote").map_or(Ok(policy == "hot-data"), |v| v.boolean())?;
    let prefetch = table.get("prefetch").map_or(Ok(false), |v| v.boolean())?;
    let model = table.get("costs").map_or(Ok(Model::Physical), |v| v.one_of(MODELS))?;
    let exposed = table.get("exposed").map(|v| v.fraction(1.0)).transpose()?;
    let default = Costs::default().exposed_permille;
    let exposed_permille = exposed.map_or(default, |share| (share * 1000.0).round() as u16);
    let costs = Costs { model, exposed_permille };
    Ok(Strategy { name, tiers, policy, trigger, movers, demote, promote, prefetch, costs })
}

fn faults(root: &Table, cases: &[Case]) -> Result<Vec<Fault>> {
    const KINDS: &[(&str, u8)] = &[("slow", 0), ("fail", 1), ("node", 2)];
    let mut faults = Vec::new();
    for table in root.tables("fault", FAULT)? {
        let at_ns = table.require("at", "a time such as \"30s\"")?.time()?;
        let kind = table.require("kind", "\"slow\", \"fail\" or \"node\"")?.one_of(KINDS)?;
        // Every case has to have what breaks.
        let nodes = cases.iter().map(|case| case.cluster.nodes).min().unwrap_or(1);
        let node = table.get("node").map(|value| value.count(0, nodes - 1)).transpose()?;
        if kind == 2 {
            let node = node.ok_or_else(|| table.error("node", "missing; add node = a number"))?;
            faults.push(Fault { at_ns, kind: FaultKind::Node(node) });
            continue;
        }
        let cluster = &cases[0].cluster;
        let names =
            cluster.tiers.iter().enumerate().map(|(at, tier)| (tier.name.as_str(), Some(at)));
        let mut names: Vec<_> = names.collect();
        if kind == 0 {
            names.push(("store", None));
        }
        let tier = table.require("tier", "the name of a tier")?.one_of(&names)?;
        let shared = tier.is_none_or(|tier| cluster.tiers[tier].shared);
        if let (true, Some(value)) = (shared, table.get("node")) {
            return Err(value.error("only for tiers that are not shared; give device instead"));
        }
        let least = |case: &Case| {
            tier.map_or(case.cluster.store.devices, |tier| case.cluster.tiers[tier].devices)
        };
        let devices = cases.iter().map(least).min().unwrap_or(1);
        let device = match table.get("device") {
            Some(value) if !shared || kind == 1 => {
                return Err(value.error("only for slow shared tiers and the store; remove it"));
            }
            Some(value) => Some(value.count(0, devices - 1)?),
            None => None,
        };
        let target = Target { tier, node, device };
        let kind = match kind {
            0 => {
                let factor = table.require("factor", "a number from 0 to 1")?.fraction(1.0)?;
                FaultKind::Slow { target, factor }
            }
            _ => FaultKind::Fail(target),
        };
        faults.push(Fault { at_ns, kind });
    }
    Ok(faults)
}
