//! One run: a cluster, a workload, a way of buffering, and what goes wrong meanwhile.

use crate::cluster::Cluster;
use crate::strategy::Strategy;
use crate::workload::Workload;

/// Everything that decides the outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The machine.
    pub cluster: Cluster,
    /// What the ranks do.
    pub workload: Workload,
    /// How data is buffered.
    pub strategy: Strategy,
    /// What breaks, and when.
    pub faults: Vec<Fault>,
    /// Decides whatever is random.
    pub seed: u64,
    /// Transfers end at whole multiples of so many nanoseconds.
    pub grain_ns: u64,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When.
    pub at_ns: u64,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Devices work at this fraction of their speed, from 0 to 1, until a later `Slow` says 1.
    Slow {
        /// Which devices.
        target: Target,
        /// What is left of their speed.
        factor: f64,
    },
    /// A tier is gone for ever, with all that is on it.
    Fail(Target),
    /// A node is gone for ever, with its ranks and its private tiers.
    Node(u32),
}

/// The devices that a fault touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The tier's position in the cluster's list, or the backing store.
    pub tier: Option<usize>,
    /// The node, of a private tier; otherwise all nodes.
    pub node: Option<u32>,
    /// The device, of a shared tier or of the store; otherwise all devices.
    pub device: Option<u32>,
}
