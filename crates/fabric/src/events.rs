//! What a fabric tells, and what its calls fail with.

use crate::{BODY_MAX, Header, Link};
use forebay_membership::Member;
use std::time::Duration;

/// What happened. Given out by [`Fabric::poll`](crate::Fabric::poll), in the order of each link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link can be used: one that was asked for, or one that a peer has made.
    Up {
        /// The link.
        link: Link,
        /// Who is at its other end.
        peer: Member,
    },
    /// A link is gone, and all its tokens have ended. Not told of a link that this side closed.
    Down {
        /// The link.
        link: Link,
        /// Why.
        why: Down,
    },
    /// The peer sent a message.
    Message {
        /// From where.
        link: Link,
        /// Its node and incarnation are those of the peer.
        header: Header,
        /// At most [`BODY_MAX`] bytes.
        body: Vec<u8>,
    },
    /// Half of the room is free of that which a link answered [`FabricError::Full`]: of the queue
    /// of messages, or of the transfers. If both were full there is one event for each, and
    /// what is tried again after the first may be answered so again.
    Room {
        /// The link.
        link: Link,
    },
    /// A transfer has ended.
    Done {
        /// As given to [`Fabric::pull`](crate::Fabric::pull) or
        /// [`Fabric::push`](crate::Fabric::push).
        token: u64,
        /// How.
        outcome: Outcome,
    },
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes are where they should be.
    Ok,
    /// The link is gone. Any part of the bytes may have moved.
    Gone,
    /// The deadline passed. The link is closed: nothing moves here from now on. What was pushed
    /// may still get to the peer, see [`Fabric::push`](crate::Fabric::push).
    Late,
    /// A span is wrong or was withdrawn, at this side or the other. Nothing moves from now on.
    Refused,
}

/// What two ends did not agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differs {
    /// The version of what is sent.
    Version,
    /// The group's name. Another secret is [`Down::Tls`], with every fabric.
    Group,
    /// The node: another one has that address.
    Node,
    /// The node's life.
    Incarnation,
}

/// Why a link is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// The peer closed it, or its process ended.
    Closed,
    /// The peer's machine or the network between does not answer, or the peer was stopped and has
    /// read nothing of what waits for it, for 4.5 s.
    Silent,
    /// The address is not one, or there is no listener.
    Unreachable,
    /// The connection was not made within [`CONNECT_TIME`](crate::CONNECT_TIME).
    Timeout,
    /// TLS failed, or the proof that stands for it with UCX: the peer does not have the group's
    /// secret, or what came was changed on its way.
    Tls,
    /// The peer is not the one that was asked for.
    Mismatch(Differs),
    /// The peer sent what it may not.
    Refused(Refusal),
    /// The peer has refused what this side sent.
    RefusedByPeer,
    /// A transfer was not done at its deadline.
    Late,
    /// A region was withdrawn while bytes of it were pushed.
    Withdrawn,
    /// A fault was asked for.
    Injected,
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Down::Closed => "closed by the peer, or its process has ended",
            Down::Silent => "the peer's machine or the network does not answer",
            Down::Unreachable => "nothing listens there",
            Down::Timeout => "not connected within 5 s",
            Down::Tls => "the peer has another secret, or what came was changed on its way",
            Down::Mismatch(Differs::Version) => "the peer is of another version",
            Down::Mismatch(Differs::Group) => "the peer is of another group",
            Down::Mismatch(Differs::Node) => "another node has that address",
            Down::Mismatch(Differs::Incarnation) => "another life of the node has that address",
            Down::Refused(_) => "the peer sent what it may not",
            Down::RefusedByPeer => "the peer has refused what this side sent",
            Down::Late => "a transfer was not done at its deadline",
            Down::Withdrawn => "a region was withdrawn while its bytes were pushed",
            Down::Injected => "a fault on purpose",
        })
    }
}

/// What is wrong with what a peer sent. Each is counted, see [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The version of a header.
    Version,
    /// A kind that the fabric keeps for itself and does not have.
    Kind,
    /// A body longer than [`BODY_MAX`], or not of the length that its header says.
    Length,
    /// The checksum.
    Sum,
    /// Another sender than the peer of the link.
    Sender,
    /// A frame at a time when it makes no sense.
    Order,
    /// A region that is not exposed (any more). It alone does not cost the link.
    Region,
    /// Bytes outside of a region.
    Bounds,
    /// A push into what may only be read.
    Access,
    /// More requests than a side may have under way, answers that are not read, or more than
    /// [`LINKS_MAX`](crate::LINKS_MAX) links.
    Flood,
    /// A connection that did not get through TLS, or proved nothing: another secret, or none.
    Tls,
    /// A connection whose first frame names another version, group or receiver.
    Hello,
    /// A connection that took too long to say who it is.
    Timeout,
    /// A connection too many that had not said who it is.
    Crowd,
}

impl Refusal {
    /// How many there are.
    pub const COUNT: usize = Refusal::Crowd as usize + 1;
}

/// Why a call failed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricError {
    /// The link has no room; [`Event::Room`] tells when it has.
    Full,
    /// There is no such link, or it is not up.
    Closed,
    /// No such region, or a null or huge one.
    Region,
    /// A body longer than [`BODY_MAX`].
    Length,
    /// A kind that the fabric keeps for itself.
    Kind,
    /// An address that is none, or longer than [`ADDRESS_MAX`](crate::ADDRESS_MAX); a group's name
    /// that is too long.
    Address(String),
    /// Something else listens there.
    #[cfg(feature = "ucx")]
    InUse(std::net::SocketAddr),
    /// It cannot listen there, or the process has no descriptors left.
    System(String),
}

impl std::fmt::Display for FabricError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FabricError::Full => f.write_str("the link has no room"),
            FabricError::Closed => f.write_str("the link is closed"),
            FabricError::Region => f.write_str("no such region"),
            FabricError::Length => write!(f, "a body has at most {BODY_MAX} bytes"),
            FabricError::Kind => f.write_str("the kind is one of the fabric's own"),
            #[cfg(feature = "ucx")]
            FabricError::InUse(at) => write!(f, "cannot listen at {at}: it is in use"),
            FabricError::Address(what) | FabricError::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for FabricError {}

/// What was refused so far, and what is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub(crate) refused: [u64; Refusal::COUNT],
    /// Links that are up.
    pub links: usize,
    /// Connections that were accepted and have not said who they are.
    pub unfinished: usize,
}

impl Counters {
    /// How often this was refused.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    /// All that was refused.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }
}

/// What went over a link that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// The link.
    pub link: Link,
    /// Who is at its other end.
    pub peer: Member,
    /// The shortest of the last eight pings; one is sent at most once a second while the link is in
    /// use, the first eight sooner.
    pub round_trip: Option<Duration>,
    /// Headers, bodies and bulk that came; without TLS and TCP.
    pub bytes_in: u64,
    /// The same, of what was sent.
    pub bytes_out: u64,
}
