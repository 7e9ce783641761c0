//! The machine of a scenario: its nodes, tiers, store, and links.

use super::DEVICES_MAX;
use forebay_node::config::BUFFER_TIERS_MAX;
use forebay_node::config::reader::{Result, Table};
use forebay_simulator::{Device, Store, Tier};

pub(super) const CLUSTER: &[&str] = &["nodes", "ranks_per_node", "link", "block"];

pub(super) const TIER: &[&str] =
    &["name", "shared", "devices", "stripe", "capacity", "read", "write", "latency"];

pub(super) const STORE: &[&str] = &[
    "devices",
    "stripe",
    "read",
    "write",
    "latency",
    "link",
    "seek",
    "request",
    "flush_request",
    "flush",
    "opens",
];

pub(super) fn device(table: &Table) -> Result<Device> {
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

pub(super) fn stripe(table: &Table, devices: u32) -> Result<u32> {
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

pub(super) fn tiers(root: &Table) -> Result<Vec<Tier>> {
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

pub(super) fn store(root: &Table) -> Result<Store> {
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
        flush_bandwidth: table.get("flush").map_or(Ok(0), |v| v.bandwidth())?,
        opens: table.get("opens").map_or(Ok(0), |v| v.number(0, 1 << 40))?,
    })
}
