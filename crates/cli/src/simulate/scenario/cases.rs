//! The cases of a scenario: what its ranks do, and what fails.

use super::workload::{Base, Kind};
use super::{BLOCKS_MAX, Case, DEVICES_MAX, NODES_MAX, PHASES_MAX, RANKS_MAX, REPEAT_MAX};
use forebay_node::config::reader::{Result, Table};
use forebay_simulator::{Fault, FaultKind, Phases, Target, Workload};

pub(super) const CASE: &[&str] = &[
    "name",
    "nodes",
    "ranks_per_node",
    "block",
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

pub(super) const FAULT: &[&str] = &["at", "kind", "tier", "node", "device", "factor"];

pub(super) fn cases(root: &Table, base: &Base) -> Result<Vec<Case>> {
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

pub(super) fn case(table: &Table, name: String, base: &Base) -> Result<Case> {
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
    if let Some(value) = table.get("block") {
        cluster.block = match value.size()? {
            0 => return Err(value.error("is zero; give a size such as \"16MiB\"")),
            block => block,
        };
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

pub(super) fn workload(base: &Base, phases: Phases) -> Workload {
    match &base.trace {
        Some(ranks) => Workload::Trace(ranks.clone()),
        None => Workload::Phases(phases),
    }
}

pub(super) fn faults(root: &Table, cases: &[Case]) -> Result<Vec<Fault>> {
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
