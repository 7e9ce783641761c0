//! How data is buffered: which tiers, by which policy, and when and from which nodes it is
//! flushed.

use crate::cluster::Device;
use forebay_placement::evict::Eviction;
use forebay_placement::exposure::Exposed;
use forebay_placement::rounds::Ages;
use forebay_placement::schema::Settings;
use forebay_placement::{Model, Watermarks};

/// The tiers that a strategy knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiers {
    /// None: everything goes straight to the store.
    None,
    /// The shared ones, as staging systems do.
    Shared,
    /// All.
    All,
}

/// What starts a flush; see the glossary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Every completed write.
    PerOperation,
    /// The last close of a file.
    PerFile,
    /// The end of the application.
    OnExit,
    /// Blocks that were not written for so many nanoseconds.
    Periodic(u64),
    /// Nothing: the data is scratch, and goes to the store only if the tiers overflow.
    Never,
}

/// Which nodes carry data from a shared tier to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movers {
    /// Processes on the compute nodes: the bytes come to the node and leave it again.
    Nodes,
    /// The servers of the shared tier.
    Servers,
}

/// A way of buffering to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// What results call it; unique.
    pub name: String,
    /// The tiers it uses.
    pub tiers: Tiers,
    /// The name of its placement policy.
    pub policy: String,
    /// What starts a flush.
    pub trigger: Trigger,
    /// Which nodes flush a shared tier.
    pub movers: Movers,
    /// Whether room is made by moving to a lower tier; otherwise only by flushing and dropping.
    /// What [`forebay_placement::Policy::moves_down`] says, unless one wants to know what else
    /// would be.
    pub demote: bool,
    /// Whether blocks that are read often come up.
    pub promote: bool,
    /// Whether blocks that will probably be read next are brought up before.
    pub prefetch: bool,
    /// Requests that each mover (a node's demoter, promoter, flusher of a tier) keeps under way,
    /// where a rank waits for each of its own.
    pub queue_depth: u32,
    /// How the placement engine computes costs.
    pub costs: Model,
    /// How much of a move counts as waiting.
    pub exposed: Exposed,
    /// Which blocks leave a tier first.
    pub eviction: Eviction,
    /// When room is made on a tier, and how much.
    pub watermarks: Watermarks,
    /// After how many milliseconds an access counts half.
    pub half_life_ms: u32,
    /// The node manager that takes the lower pieces of plans to their tiers, in a cluster of one
    /// node; without one ranks write them there themselves.
    pub manager: Option<ManagerSettings>,
}

/// What a node manager's configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerSettings {
    /// When dirty blocks are flushed in the background.
    pub ages: Ages,
    /// Bytes to which free space is rounded before a placement is decided anew.
    pub granularity: u64,
    /// What rules set for each file, by its number.
    pub files: Vec<Settings>,
    /// The speeds that plans count with: of each tier, and last of the store.
    pub speeds: Vec<Device>,
}
