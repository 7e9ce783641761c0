//! Nodes and their lives.

use serde::{Deserialize, Serialize};

/// A node's number in its group: of a job of Slurm its place in the list of nodes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct NodeId(pub u16);

/// Which life of a node's manager: each start has a higher one.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u32);

/// One life of one node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

impl Member {
    /// This life of this node.
    pub const fn new(node: u16, incarnation: u32) -> Self {
        Self { node: NodeId(node), incarnation: Incarnation(incarnation) }
    }
}
