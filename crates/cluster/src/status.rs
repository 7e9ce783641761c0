//! What a group says of itself.

use crate::error::GroupError;
use forebay_fabric::Down;
use forebay_membership::{GivenUp, Incarnation, Member, NodeId, Rank, Seat};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What one node knows of its group, at one moment.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// This life of this node.
    pub me: Member,
    /// The name of its host.
    pub host: String,
    /// Where others reach it, as its card says.
    pub address: String,
    /// The group's folder.
    pub folder: PathBuf,
    /// What it is in the group.
    pub rank: Rank,
    /// For how long it may act if it does not look again; zero if it may not.
    pub acts_for: Duration,
    /// Its seat in the newest view that it has seen, if it has one.
    pub seat: Option<Seat>,
    /// The number of that view, 0 if there is none, and how long ago this node saw it first.
    pub view: (u32, Duration),
    /// Seats of those that have gone and may have written what is nowhere else, as the newest view
    /// has them, and what was given up.
    pub lost: Vec<Seat>,
    /// The lives that were given up, by ascending node.
    pub given_up: Vec<GivenUp>,
    /// One of these is this node's own, or had its pool.
    pub is_given_up: bool,
    /// Each host of the list, by ascending number.
    pub nodes: Vec<NodeStatus>,
    /// The last look of its own that succeeded.
    pub last_look: Option<LookStatus>,
    /// The last look, proposal or plea that failed.
    pub store_error: Option<StoreError>,
    /// The last search for other nodes' cards that failed, in the folder or by their names.
    pub card_error: Option<StoreError>,
    /// Packets.
    pub packets: PacketCounters,
    /// The links to the other members, by ascending node.
    pub links: Vec<LinkStatus>,
    /// Why a node that is not in the list of hosts is in the folder: the last one.
    pub stranger: Option<GroupError>,
}

/// How it is with the link to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// None was needed yet, or the other one is to make it.
    #[default]
    Unused,
    /// It is being made.
    Connecting,
    /// It carries messages.
    Up,
    /// It is gone, or could not be made, and is tried again in a while.
    Waiting,
}

/// The link to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Which one.
    pub peer: Member,
    /// How it is.
    pub state: LinkState,
    /// For how long.
    pub since: Duration,
    /// Of the last measurement; one each 10 s at least.
    pub round_trip: Option<Duration>,
    /// Bytes that came by the link since it was made, as it was counted last: a second ago at most
    /// while it is in use.
    pub bytes_in: u64,
    /// The same of what was sent.
    pub bytes_out: u64,
    /// Bytes a second that came while it was last in use.
    pub rate_in: u64,
    /// The same of what was sent.
    pub rate_out: u64,
    /// The last time that a link was lost or could not be made: how long ago, and why.
    pub last_down: Option<(Duration, Down)>,
    /// Messages that wait for it.
    pub waiting: usize,
}

/// A host of the list.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its number.
    pub node: NodeId,
    /// Its name in the list.
    pub name: String,
    /// Its newest life that is known.
    pub incarnation: Option<Incarnation>,
    /// Where its packets go; `None` for this node, and while it is not known.
    pub address: Option<SocketAddr>,
    /// Whether it answers.
    pub standing: Standing,
    /// Its seat in the newest view, if it has one.
    pub seat: Option<Seat>,
    /// Why its newest life is not of this node's group, though it is in the folder.
    pub refused: Option<GroupError>,
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does, or is this node.
    Up,
    /// It has ended by itself: its manager has, or goes on without the group.
    Left,
    /// It does not any more, and is in the newest view.
    Down,
    /// It does not any more, and is in no view any more.
    LeftOut,
    /// It has not been heard since this node began.
    NeverHeard,
}

/// A look at the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookStatus {
    /// How long ago it was asked for.
    pub ago: Duration,
    /// How long it took, with the wait for its turn.
    pub took: Duration,
}

/// An operation on the folder that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// How long ago.
    pub ago: Duration,
    /// Why.
    pub error: GroupError,
    /// No operation has succeeded since.
    pub lasts: bool,
}

/// Packets since this node began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Sent.
    pub sent: u64,
    /// Not sent: no address of the node is known, or the socket takes no more.
    pub unsent: u64,
    /// Taken.
    pub taken: u64,
    /// Dropped: no message of a group, or one that is too long.
    pub malformed: u64,
    /// Dropped: another version of their form.
    pub version: u64,
    /// Dropped: of another group, or of one that knows another secret.
    pub group: u64,
    /// Dropped: the keyed sum is wrong.
    pub sum: u64,
    /// Dropped: for another node, which had this address before.
    pub astray: u64,
    /// Dropped: of this node itself, in this or another life.
    pub own: u64,
    /// Dropped: of an earlier life of a node.
    pub outdated: u64,
    /// Dropped: of a node that is not in the list of hosts.
    pub unlisted: u64,
}

impl PacketCounters {
    /// All that were dropped.
    pub fn dropped(&self) -> u64 {
        let Self { malformed, version, group, sum, astray, own, outdated, unlisted, .. } = self;
        malformed + version + group + sum + astray + own + outdated + unlisted
    }
}
