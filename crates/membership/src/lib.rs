//! Which nodes are in a group, and what each of them may do: pure state machines without I/O,
//! clock or threads. The node manager drives them with sockets and a store, the simulator with a
//! virtual clock.
//!
//! - [`Swim`] notices that a node is gone, by SWIM's probes (Mochi's SSG, section 4.2.2, does the
//!   same). It may be wrong: it decides nothing.
//! - [`Views`] decides which nodes are in the group, by files on the backing store of which each
//!   can be made once, and says until when a node may act on that.
//! - [`HostList`] says which nodes a group may have, and which number each has.
//! - [`Places`] says which nodes answer for a file, from the members of a view alone.
//! - [`GroupFile`], [`View::to_text`] and [`Card`] are the names and texts of the files by which
//!   all this is on the backing store.
//!
//! docs/design/nodes.md has the requirements, the alternatives and the arithmetic.

mod files;
mod hosts;
mod node;
mod places;
#[cfg(test)]
mod seed;
mod swim;
mod views;

pub use files::{Card, GroupFile, TextError};
pub use hosts::{Announced, AnnouncedHosts, HostList, HostsError};
pub use node::{Incarnation, Member, NodeId};
pub use places::{FileId, PARTITIONS, PLACES, Partition, Places};
pub use swim::{Action, Swim, SwimTimer, Tuning};
pub use views::{Ask, Found, GivenUp, NotGivenUp, Rank, Seat, Times, View, Views};
