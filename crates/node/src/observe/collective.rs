//! What collective and independent I/O of a file would take, and which one to choose: for `forebay
//! explain`. The numbers are those that programs decide with.

use crate::observe::explain::Explanation;
use crate::observe::status::Observer;
use forebay_client::{device_of, network_of};
use forebay_device::Direction;
use forebay_placement::Destination;
use forebay_placement::collective::{
    self, Call, Correction, Decision, Device, Network, crossover, decide,
};
use forebay_pool::layout::*;
use forebay_pool::segment::text;

/// The call that is asked about: of ranks that each have [`Explanation::placement`]'s bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ranks that have the file open.
    pub ranks: u32,
    /// Nodes that they run on.
    pub nodes: u32,
    /// Ranks that would do the I/O; `None`: as many as are fastest.
    pub aggregators: Option<u32>,
    /// Bytes that each of them collects.
    pub buffer: u64,
    /// Bytes that lie together in the file, of one rank; `None`: all that it has.
    pub piece: Option<u64>,
}

/// One direction.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Which.
    pub direction: Direction,
    /// The call, its aggregators filled in.
    pub call: Call,
    /// What holds the bytes: where the file's are, or where new ones would go.
    pub device: Device,
    /// What both modes take, and the choice.
    pub decision: Decision,
    /// The least piece with which independent I/O is as fast, if there is one.
    pub crossover: Option<u64>,
}

impl Observer {
    /// The terms of reading what an explanation says of a file, and of writing as it says.
    ///
    /// # Errors
    /// What has to be known, and what to do about it.
    pub fn collective(&self, found: &Explanation, shape: &Shape) -> Result<[Terms; 2], String> {
        let Shape { ranks, nodes, buffer, piece, .. } = *shape;
        if !(1..=ranks).contains(&nodes) {
            return Err(format!("{ranks} ranks on {nodes} nodes; give each node one at least"));
        }
        if shape.aggregators.is_some_and(|aggregators| !(1..=ranks).contains(&aggregators)) {
            return Err(format!(
                "of {ranks} ranks at least one and at most all can be aggregators"
            ));
        }
        let network = network_of(self.segment());
        let missing =
            [("within", ranks > nodes, network.within), ("between", nodes > 1, network.between)];
        if let Some((link, ..)) =
            missing.into_iter().find(|(_, is_used, link)| *is_used && link.byte_s == 0.0)
        {
            return Err(format!(
                "the configuration does not say how fast messages {link} nodes are (mpi.{link}); \
                 `forebay profile --mpi` measures it"
            ));
        }
        let each = found.placement.bytes;
        let call = Call {
            ranks,
            nodes,
            aggregators: shape.aggregators.unwrap_or(1),
            buffer: buffer.max(1),
            bytes: each.saturating_mul(ranks.into()),
            largest_domain: 0,
            piece: piece.unwrap_or(each),
            is_contiguous: piece.is_none_or(|piece| piece >= each),
        };
        let terms = |direction| {
            self.device(found, direction)
                .and_then(|device| terms(direction, call, shape, &network, device))
                .ok_or_else(|| {
                    "the speed of what holds the bytes is not known; `forebay profile` measures it"
                        .to_owned()
                })
        };
        Ok([terms(Direction::Read)?, terms(Direction::Write)?])
    }

    /// What holds the file's bytes, for reads, or is to hold new ones, for writes.
    fn device(&self, found: &Explanation, direction: Direction) -> Option<Device> {
        let header = self.segment().header();
        let stores = &header.store[..header.stores as usize];
        let is_its = |store: &&StoreHeader| {
            text(&store.path).to_bytes() == found.directory.as_os_str().as_encoded_bytes()
        };
        let store = device_of(&stores.iter().find(is_its)?.speed, direction)?;
        let tier = |tier: TierId| device_of(&header.tier[tier].speed, direction);
        let named = |name: &str| {
            let is_it =
                |&tier: &TierId| text(&header.tier[tier].name).to_bytes() == name.as_bytes();
            header.tiers_in_use().find(is_it)
        };
        let parts: Vec<(Device, f64)> = match direction {
            Direction::Read => found
                .extents
                .iter()
                .map(|extent| {
                    let device = match &extent.tier {
                        Some(name) => tier(named(name)?)?,
                        None => store,
                    };
                    Some((device, (extent.end - extent.start) as f64))
                })
                .collect::<Option<_>>()?,
            Direction::Write => found
                .placement
                .plan
                .pieces()
                .iter()
                .map(|piece| {
                    let device = match piece.to {
                        Destination::Tier(index) => tier(TierId::new(index))?,
                        Destination::Store => store,
                    };
                    Some((device, piece.bytes as f64))
                })
                .collect::<Option<_>>()?,
        };
        // What has no bytes yet would be read from the store.
        Device::of_parts(&parts).or(Some(store))
    }
}

fn terms(
    direction: Direction,
    call: Call,
    shape: &Shape,
    network: &Network,
    device: Device,
) -> Option<Terms> {
    let aggregators = match shape.aggregators {
        Some(aggregators) => aggregators,
        None => collective::aggregators(&call, network, &device)?,
    };
    let call = Call { aggregators, ..call };
    Some(Terms {
        direction,
        call,
        device,
        decision: decide(&call, network, &device, &Correction::default(), None)?,
        crossover: crossover(&call, network, &device),
    })
}
