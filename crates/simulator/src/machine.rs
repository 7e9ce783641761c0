//! The cluster as resources of the fluid model, and the way that each kind of transfer takes.

use crate::cluster::{Cluster, Device};
use crate::fluid::{Fluid, Resource, Way};
use crate::strategy::Movers;

/// Both directions of a node's link.
#[derive(Clone, Copy, Debug)]
struct Link {
    out: Resource,
    into: Resource,
}

/// The resources of one tier: one for each node if private, one for each stripe group if shared.
#[derive(Clone, Debug)]
struct TierResources {
    first: Resource,
    groups: u32,
    shared: bool,
    /// Devices behind one resource.
    width: u32,
    device: Device,
}

/// Where bytes are, as far as their way is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The tier's position in the cluster's list.
    pub tier: usize,
    /// The node whose tier it is, or that a shared tier's space is reserved for.
    pub node: u32,
    /// Decides the stripe group.
    pub file: u32,
}

/// All resources of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    links: Vec<Link>,
    link_bandwidth: u64,
    tiers: Vec<TierResources>,
    store: TierResources,
    /// Bytes per second that one server takes of a flush.
    flush_bandwidth: u64,
    store_link: Link,
    store_link_bandwidth: u64,
    metadata: Resource,
    opens: u64,
    /// Device-seconds that a seek adds to each byte of direct and of coalesced pieces.
    direct_seek: f64,
    flush_seek: f64,
}

impl Machine {
    /// Adds the cluster's resources to the model.
    pub fn new(cluster: &Cluster, fluid: &mut Fluid) -> Self {
        let mut add = |count: u32| {
            let first = fluid.add(1.0);
            for _ in 1..count {
                fluid.add(1.0);
            }
            first
        };
        let links = (0..cluster.nodes).map(|_| Link { out: add(1), into: add(1) }).collect();
        let tiers = cluster
            .tiers
            .iter()
            .map(|tier| {
                let stripe = tier.stripe.clamp(1, tier.devices);
                let (groups, width) = match tier.shared {
                    true => (tier.devices / stripe, stripe),
                    false => (cluster.nodes, tier.devices),
                };
                TierResources {
                    first: add(groups),
                    groups,
                    shared: tier.shared,
                    width,
                    device: tier.device,
                }
            })
            .collect();
        let store = &cluster.store;
        let stripe = store.stripe.clamp(1, store.devices);
        let groups = store.devices / stripe;
        let seek =
            |piece: u64| store.seek_ns as f64 / 1e9 / piece.max(1) as f64 / f64::from(stripe);
        Self {
            links,
            link_bandwidth: cluster.link,
            tiers,
            store: TierResources {
                first: add(groups),
                groups,
                shared: true,
                width: stripe,
                device: store.device,
            },
            flush_bandwidth: match store.flush_bandwidth {
                0 => store.device.write_bandwidth,
                bandwidth => bandwidth,
            },
            store_link: Link { out: add(1), into: add(1) },
            store_link_bandwidth: store.link * u64::from(store.devices),
            metadata: add(1),
            opens: store.opens,
            direct_seek: seek(store.request),
            flush_seek: seek(store.flush_request),
        }
    }

    /// The resources of a tier of the cluster, or of the store, that a fault touches.
    pub fn resources(&self, tier: Option<usize>, node: Option<u32>) -> Vec<Resource> {
        let of = tier.map_or(&self.store, |tier| &self.tiers[tier]);
        match (of.shared, node) {
            (false, Some(node)) => vec![of.first + node],
            _ => (of.first..of.first + of.groups).collect(),
        }
    }

    /// The resource whose group holds this device of a shared tier or of the store.
    pub fn group_of_device(&self, tier: Option<usize>, device: u32) -> Resource {
        let of = tier.map_or(&self.store, |tier| &self.tiers[tier]);
        of.first + (device / of.width).min(of.groups - 1)
    }

    /// The resource of a spot's device, for measuring how busy it is.
    pub fn device(&self, spot: Spot) -> Resource {
        let tier = &self.tiers[spot.tier];
        tier.first + if tier.shared { spot.file % tier.groups } else { spot.node }
    }

    /// What a request to a tier waits before bytes move.
    pub fn latency_ns(&self, tier: Option<usize>) -> u64 {
        tier.map_or(&self.store, |tier| &self.tiers[tier]).device.latency_ns
    }

    /// The metadata server's part of opening a file.
    pub fn open(&self) -> Way {
        Way::default().through(self.metadata, self.opens)
    }

    /// A rank on `node` writes to a spot.
    pub fn write(&self, node: u32, spot: Spot) -> Way {
        self.enter_tier(self.link(Way::default(), Some(node), self.holder(spot)), spot)
    }

    /// A rank on `node` reads from a spot.
    pub fn read(&self, node: u32, spot: Spot) -> Way {
        self.link(self.leave_tier(Way::default(), spot), self.holder(spot), Some(node))
    }

    /// A rank writes straight to the store.
    pub fn write_direct(&self, node: u32, file: u32) -> Way {
        let way = Way::default().through(self.links[node as usize].out, self.link_bandwidth);
        self.enter_store(way, file, self.store.device.write_bandwidth, self.direct_seek)
    }

    /// A rank reads straight from the store.
    pub fn read_direct(&self, node: u32, file: u32) -> Way {
        let bandwidth = self.store.device.read_bandwidth * u64::from(self.store.width);
        Way::default()
            .at_cost(self.group(file), 1.0 / bandwidth as f64 + self.direct_seek)
            .through(self.store_link.out, self.store_link_bandwidth)
            .through(self.links[node as usize].into, self.link_bandwidth)
    }

    /// The data organizer moves a file's bytes from one spot to another.
    pub fn transfer(&self, from: Spot, to: Spot) -> Way {
        let way = self.leave_tier(Way::default(), from);
        let way = match (self.holder(from), self.holder(to)) {
            // Between two shared tiers the mover's node is in the middle.
            (None, None) => self.link(self.link(way, None, Some(from.node)), Some(from.node), None),
            (from, to) => self.link(way, from, to),
        };
        self.enter_tier(way, to)
    }

    /// The data organizer writes a file's bytes to the store.
    pub fn flush(&self, from: Spot, movers: Movers) -> Way {
        let link = self.links[from.node as usize];
        let way = self.leave_tier(Way::default(), from);
        let way = match (self.tiers[from.tier].shared, movers) {
            (true, Movers::Servers) => way,
            (true, Movers::Nodes) => {
                way.through(link.into, self.link_bandwidth).through(link.out, self.link_bandwidth)
            }
            (false, _) => way.through(link.out, self.link_bandwidth),
        };
        self.enter_store(way, from.file, self.flush_bandwidth, self.flush_seek)
    }

    /// The data organizer brings a file's bytes from the store into a tier.
    pub fn stage_in(&self, to: Spot) -> Way {
        let way = self.read_direct(to.node, to.file);
        let way = match self.tiers[to.tier].shared {
            true => way.through(self.links[to.node as usize].out, self.link_bandwidth),
            false => way,
        };
        self.enter_tier(way, to)
    }

    /// The node that holds a spot; none if it is shared.
    fn holder(&self, spot: Spot) -> Option<u32> {
        (!self.tiers[spot.tier].shared).then_some(spot.node)
    }

    /// Out of one node and into another; a side that is not a node has links of its own to spare.
    fn link(&self, way: Way, from: Option<u32>, to: Option<u32>) -> Way {
        if from == to {
            return way;
        }
        let way = match from {
            Some(node) => way.through(self.links[node as usize].out, self.link_bandwidth),
            None => way,
        };
        match to {
            Some(node) => way.through(self.links[node as usize].into, self.link_bandwidth),
            None => way,
        }
    }

    fn leave_tier(&self, way: Way, spot: Spot) -> Way {
        let tier = &self.tiers[spot.tier];
        way.through(self.device(spot), tier.device.read_bandwidth * u64::from(tier.width))
    }

    fn enter_tier(&self, way: Way, spot: Spot) -> Way {
        let tier = &self.tiers[spot.tier];
        way.through(self.device(spot), tier.device.write_bandwidth * u64::from(tier.width))
    }

    fn enter_store(&self, way: Way, file: u32, bandwidth: u64, seek: f64) -> Way {
        let bandwidth = bandwidth * u64::from(self.store.width);
        way.through(self.store_link.into, self.store_link_bandwidth)
            .at_cost(self.group(file), 1.0 / bandwidth as f64 + seek)
    }

    fn group(&self, file: u32) -> Resource {
        self.store.first + file % self.store.groups
    }
}
