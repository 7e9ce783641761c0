//! The modelled cluster: what a scenario says of nodes, tiers, links and the backing store.

/// What one device can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Bytes per second read.
    pub read_bandwidth: u64,
    /// Bytes per second written.
    pub write_bandwidth: u64,
    /// Nanoseconds that pass for each request without occupying the device.
    pub latency_ns: u64,
}

/// A tier: one device in each node, or shared devices that all nodes reach over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// What results call it; unique.
    pub name: String,
    /// Whether all nodes use the same devices.
    pub shared: bool,
    /// Devices of the tier if shared, devices in each node if not.
    pub devices: u32,
    /// Bytes that one device holds for Forebay.
    pub capacity: u64,
    /// What one device can do.
    pub device: Device,
    /// Devices that a file is spread over; a file is as slow as the slowest of them.
    pub stripe: u32,
}

/// The backing store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Its servers.
    pub devices: u32,
    /// What one server can do.
    pub device: Device,
    /// Servers that a file is spread over.
    pub stripe: u32,
    /// Bytes per second of each server's link, each way; 0 is not limited.
    pub link: u64,
    /// Time that a server loses to each contiguous piece, because others are served in between.
    pub seek_ns: u64,
    /// Bytes of a contiguous piece of what applications write and read directly.
    pub request: u64,
    /// Bytes of a contiguous piece of a flush, which is coalesced and in file order.
    pub flush_request: u64,
    /// Bytes per second that one server takes of a flush, which is coalesced and in file order, if
    /// that is not what it takes of applications; 0 is the same.
    pub flush_bandwidth: u64,
    /// Files that the metadata server opens in a second; 0 is not limited.
    pub opens: u64,
}

/// Nodes, their tiers, and the store below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Compute nodes.
    pub nodes: u32,
    /// Ranks on each node.
    pub ranks_per_node: u32,
    /// Bytes per second of each node's link, each way; 0 is not limited.
    pub link: u64,
    /// The granularity at which data is tracked: a whole number of production's buckets.
    pub block: u64,
    /// Tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// The backing store.
    pub store: Store,
}

impl Cluster {
    /// All ranks.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }
}
