//! Faults on purpose, for testers: what goes wrong with a group's packets, its links and its
//! folder. Without them nothing of this runs.

use forebay_fabric::FaultScript;
use forebay_membership::NodeId;
use rustix::io::Errno;

/// What the thread "group-store" is about to do at the group's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Count a look, and find the newest view.
    Look,
    /// Make a view.
    Propose,
    /// Plead.
    Plead,
    /// Read the cards of other nodes.
    Find,
    /// Leave the group.
    Leave,
}

/// Whether a packet from the first node to the second is lost.
pub type Loses = Box<dyn Fn(NodeId, NodeId) -> bool + Send>;

/// What happens before an operation on the folder: it is slow where this takes time, hangs where
/// this does not return, and fails with the error.
pub type Before = Box<dyn FnMut(Operation) -> Result<(), Errno> + Send>;

/// What goes wrong with one node's part in a group.
#[derive(Default)]
pub struct Faults {
    /// Asked before each packet is sent, on the thread "group".
    pub loses: Option<Loses>,
    /// Called before each operation, on the thread "group-store".
    pub before: Option<Before>,
    /// What goes wrong with messages of links.
    pub links: Option<FaultScript>,
}

impl Faults {
    pub(crate) fn loses(&self, from: NodeId, to: NodeId) -> bool {
        self.loses.as_ref().is_some_and(|loses| loses(from, to))
    }
}
