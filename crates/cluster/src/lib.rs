//! A node manager's part in its group: the threads, the socket and the files around the state
//! machines of `membership`. The threads of a [`Group`] find out which nodes live, make views on
//! the backing store, and say at each moment what this node is and so may do ([`Group::rank`]).
//!
//! - The thread "group" has the UDP socket, the failure detector, the views and their timers.
//! - The thread "group-store" has the group's folder: a store that hangs stops it alone, and this
//!   node is fenced in time.
//! - The thread "group-links" has the links to the other members (`fabric`): messages by
//!   [`Group::send`], and a [`LinkHandler`] for those that come.
//! - The thread "group-leases", where files are shared ([`Sharing`]), has the timers of the
//!   directory of leases, which is a [`Strand`].
//!
//! Packets are signed with the group's secret, which is in the folder; they are not encrypted. They
//! have lives of nodes, numbers of views and times in them, and no data of files.
//!
//! docs/design/nodes.md has the requirements, the alternatives and the arithmetic.

mod clock;
mod error;
mod faults;
mod folder;
mod group;
mod leases;
mod links;
mod meeting;
mod packets;
mod protocol;
mod remote;
mod status;
mod strand;
mod terms;

pub use error::GroupError;
pub use faults::{Before, Faults, Loses, Operation};
pub use folder::given_up;
pub use forebay_fabric::{FaultScript as LinkFaults, parse_script as parse_link_faults};
pub use forebay_fabric::{Header, Outcome, Region, RemoteSpan};
/// For `main`, and for those who pass a build with UCX on.
#[cfg(feature = "ucx")]
pub use forebay_fabric::{UCX_LICENSE, begin_ucx};
pub use group::{Group, GroupConfig, Transport};
pub use leases::{Flushing, LeaseCommand, LeaseDesk, LeaseOrder, Sharing, ToldFlushing};
pub use links::{LinkEvent, LinkHandler, MESH_MAX, Post, SendError};
pub use meeting::Meeting;
pub use protocol::Protocol;
pub use remote::{
    Finder, Hints, Holders, INLINE_MAX, REMOTE, RUN_BLOCKS, RemoteMessage, Staging, holder_of,
};
pub use status::{
    GroupStatus, LinkState, LinkStatus, LookStatus, NodeStatus, PacketCounters, Standing,
    StoreError,
};
pub use strand::{Strand, Taker};
