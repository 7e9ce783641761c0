//! What the ranks of a scenario do, where no case says otherwise.

use super::super::trace;
use super::cluster::{CLUSTER, store, tiers};
use super::{BLOCK, NODES_MAX, PHASES_MAX, RANKS_MAX, REPEAT_MAX};
use forebay_node::config::reader::{Result, Table};
use forebay_simulator::{Cluster, Phases, ReadFrom};
use std::path::Path;

pub(super) const WORKLOAD: &[&str] = &[
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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Alternating,
    Reads,
    Vpic,
    Hacc,
    Trace,
}

pub(super) const KINDS: &[(&str, Kind)] = &[
    ("alternating", Kind::Alternating),
    ("reads", Kind::Reads),
    ("vpic", Kind::Vpic),
    ("hacc", Kind::Hacc),
    ("trace", Kind::Trace),
];

pub(super) const READ_FROM: &[(&str, ReadFrom)] =
    &[("phase", ReadFrom::Phase), ("own", ReadFrom::Own), ("any", ReadFrom::Any)];

/// What all cases start from.
pub(super) struct Base {
    pub(super) cluster: Cluster,
    pub(super) kind: Kind,
    pub(super) phases: Phases,
    pub(super) trace: Option<Vec<Vec<forebay_simulator::Op>>>,
}

pub(super) fn base(root: &Table, folder: &Path) -> Result<Base> {
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
            Some(trace::load(&folder.join(value.text()?), Some(cluster.ranks()))?.ranks)
        }
        (Kind::Trace, None) => {
            return Err(table.error("trace", "missing; add trace = the path of a CSV file"));
        }
        (_, Some(value)) => return Err(value.error("only for kind = \"trace\"; remove it")),
        (_, None) => None,
    };
    Ok(Base { cluster, kind, phases, trace })
}
