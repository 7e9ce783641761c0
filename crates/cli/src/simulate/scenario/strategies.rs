//! The strategies of a scenario: how data is placed and flushed.

use forebay_node::QUEUE_DEPTH;
use forebay_node::config::reader::{Result, Table, Value};
use forebay_placement::evict::Eviction;
use forebay_placement::exposure::Exposed;
use forebay_placement::hotness::HALF_LIFE_MS;
use forebay_placement::{Model, PolicyId, Watermarks, names};
use forebay_simulator::{Movers, Strategy, Tiers, Trigger};

pub(super) const STRATEGY: &[&str] = &[
    "name",
    "kind",
    "policy",
    "flush",
    "period",
    "demote",
    "promote",
    "prefetch",
    "costs",
    "exposed",
    "queue_depth",
];

/// Requests that a mover of a staging system keeps under way: the paper's two write alike, so that
/// what flushes early does not get in the writers' way.
const STAGING_DEPTH: u32 = 1;
const DEPTH_MAX: u32 = 4096;

/// The share of a move that counts as waiting.
pub(super) fn exposed(value: &Value<'_>) -> Result<Exposed> {
    let fixed = |share: f64| Exposed::Fixed((share * 1000.0).round() as u16);
    let measured = || value.one_of(&[(Exposed::MEASURED, Exposed::Measured)]);
    let unknown = || value.error("give \"measured\", or a number from 0 to 1");
    value.fraction(1.0).map(fixed).or_else(|_| measured()).map_err(|_| unknown())
}

#[derive(Clone, Copy)]
pub(super) enum Buffering {
    Direct,
    DataElevator,
    DataWarp,
    Forebay,
}

pub(super) const BUFFERINGS: &[(&str, Buffering)] = &[
    ("direct", Buffering::Direct),
    ("data-elevator", Buffering::DataElevator),
    ("datawarp", Buffering::DataWarp),
    ("forebay", Buffering::Forebay),
];

pub(super) const TRIGGERS: &[(&str, Option<Trigger>)] = &[
    ("per-operation", Some(Trigger::PerOperation)),
    ("per-file", Some(Trigger::PerFile)),
    ("on-exit", Some(Trigger::OnExit)),
    ("periodic", None),
    ("never", Some(Trigger::Never)),
];

pub(super) const MODELS: &[(&str, Model)] =
    &[("physical", Model::Physical), ("paper", Model::Paper)];

pub(super) fn strategies(root: &Table) -> Result<Vec<Strategy>> {
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

pub(super) fn strategy(table: &Table, name: String) -> Result<Strategy> {
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
    let costs = table.get("costs").map_or(Ok(Model::Physical), |v| v.one_of(MODELS))?;
    let exposed = table.get("exposed").map_or(Ok(Exposed::Measured), |value| exposed(&value))?;
    let depth = if matches!(kind, Buffering::Forebay) { QUEUE_DEPTH } else { STAGING_DEPTH };
    let queue_depth = table.get("queue_depth").map_or(Ok(depth), |v| v.count(1, DEPTH_MAX))?;
    Ok(Strategy {
        name,
        tiers,
        policy,
        trigger,
        movers,
        demote,
        promote,
        prefetch,
        queue_depth,
        costs,
        exposed,
        eviction: Eviction::default(),
        watermarks: Watermarks::default(),
        half_life_ms: HALF_LIFE_MS,
        manager: None,
    })
}
