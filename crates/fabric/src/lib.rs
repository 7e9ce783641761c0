//! The links between node managers: messages of up to 64 KiB, and transfers of bulk between
//! regions of memory that each side has exposed.
//!
//! - [`Fabric`] is what the node manager sees; `tests/conformance.rs` says what each
//!   implementation does.
//! - [`Tls`] is TLS 1.3 over TCP: both sides prove that they know the group's secret.
//! - `Ucx` is UCX over RDMA, or over TCP on a network that is trusted; with the feature `ucx`.
//! - [`Network`] makes fabrics in one process on a virtual clock, for simulation and tests.
//! - [`Faulty`] lets any other go wrong by a script.
//!
//! The fabric is I/O: it does not know what a message is about, except for those of its own
//! ([`Kind::OWN`] and up), with which transfers are asked for, carried and refused.

mod ends;
mod events;
mod faulty;
mod flow;
mod header;
mod hello;
mod memory;
mod regions;
mod script;
mod table;
mod tls;
#[cfg(feature = "ucx")]
mod ucx;

pub use events::{Counters, Differs, Down, Event, FabricError, LinkStatus, Outcome, Refusal};
pub use faulty::Faulty;
pub use header::{BODY_MAX, HEADER_BYTES, Header, Kind, VERSION};
pub use memory::{Memory, Network};
pub use script::{Fault, FaultScript, Operation, Rule, ScriptError, When, parse_script};
pub use tls::{GroupKey, Tls};
#[cfg(feature = "ucx")]
pub use ucx::{LICENSE as UCX_LICENSE, Over, Ucx, UcxListener, begin as begin_ucx, rdma_devices};

use forebay_membership::Member;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Bytes of one transfer at most.
pub const SPAN_MAX: u64 = 1 << 30;

/// Bytes of an address at most.
pub const ADDRESS_MAX: usize = 512;

/// Bytes of a group's name at most.
pub const GROUP_MAX: usize = 128;

/// Transfers of one side of a link that may be under way at once. A pull whose region was
/// withdrawn counts until the peer has answered it.
pub const TRANSFERS_MAX: usize = 1024;

/// Bytes of messages, with their headers, that wait on one link at most.
pub const QUEUE_MAX: usize = 256 << 10;

/// Links of one member to another at most; one more goes down.
pub const LINKS_MAX: usize = 256;

/// From [`Fabric::connect`] to [`Event::Up`], and from an accepted connection to its end.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);

/// One end of a connection to a peer. A link that is closed is never taken for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(pub(crate) u64);

/// Memory of one fabric that was exposed. A region that was withdrawn is never taken for a later
/// one, so a peer may be told of it by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region(pub(crate) u64);

impl Region {
    /// The region that a peer has told of by this number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// What to tell peers.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What peers may do with a region. Its owner may do both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Peers may pull.
    ReadOnly,
    /// Peers may pull and push.
    ReadWrite,
}

/// A part of a region of this fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSpan {
    /// Exposed here.
    pub region: Region,
    /// From the region's start.
    pub offset: u64,
    /// At most [`SPAN_MAX`].
    pub bytes: u64,
}

/// A part of a region of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// Exposed there.
    pub region: Region,
    /// From the region's start.
    pub offset: u64,
    /// The same as those of the span at this side.
    pub bytes: u64,
}

/// Which node a fabric speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node and its life.
    pub member: Member,
    /// The name of its group, at most [`GROUP_MAX`] bytes.
    pub group: String,
}

/// Links to peers, used by one thread: it calls [`Fabric::poll`] when [`Fabric::wait_fd`] is
/// readable, and nothing else moves anything.
///
/// Every wait has an end: a connection is made in [`CONNECT_TIME`], a transfer ends at its
/// deadline, and a link whose peer is silent ends in at most 5 s. So does one whose peer is
/// stopped for 4.5 s while bytes wait for it.
///
/// Nothing that peers cause is kept without a bound: for each link 256 KiB of messages that wait
/// ([`QUEUE_MAX`]), 1024 transfers of each side ([`TRANSFERS_MAX`]), 512 KiB of answers and 1 MiB
/// that the socket has not taken; 256 links of each member ([`LINKS_MAX`]), 64 connections that
/// peers have made and are not links, and 64 that are told why they end. What the caller does not
/// poll stays in the sockets.
pub trait Fabric: Send {
    /// What it is, for people: `tls`, `ucx`, `memory`.
    fn name(&self) -> &'static str;

    /// The node that it speaks for.
    fn member(&self) -> Member;

    /// Where peers find it, as text of at most [`ADDRESS_MAX`] bytes.
    fn address(&self) -> &str;

    /// Begins to make a link to this life of this node. [`Event::Up`] or [`Event::Down`] follows.
    ///
    /// # Errors
    /// [`FabricError::Address`] and [`FabricError::System`].
    fn connect(&mut self, peer: Member, to: &str) -> Result<Link, FabricError>;

    /// Sends a message, whose bytes are copied. Messages of one link arrive in their order, once,
    /// or the link goes down. The header's sender is filled in.
    ///
    /// # Errors
    /// [`FabricError::Full`], after which an [`Event::Room`] follows; [`FabricError::Closed`],
    /// [`FabricError::Length`], [`FabricError::Kind`].
    fn send(&mut self, link: Link, header: &Header, body: &[u8]) -> Result<(), FabricError>;

    /// Lets transfers use memory, in both directions those of this side, and those of peers as
    /// `access` says.
    ///
    /// # Errors
    /// [`FabricError::Region`] if the memory is null or longer than an `isize`.
    ///
    /// # Safety
    /// Until [`Fabric::withdraw`] or the drop of the fabric, the memory stays mapped, readable, and
    /// writable where `access` is [`Access::ReadWrite`] or a pull of this side goes there.
    /// Meanwhile no Rust reference to bytes that a transfer writes is in use. Other threads and
    /// processes may write bytes that a transfer reads; it then carries old and new ones mixed.
    unsafe fn expose(
        &mut self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Region, FabricError>;

    /// Ends the use of a region: from now on nothing touches its memory. Transfers of this side
    /// that use it end with [`Outcome::Refused`], and so do those of peers when they come to it.
    /// A push of this side whose bytes are on their way cannot be called back: its link goes down
    /// with [`Down::Withdrawn`], and its token ends with [`Outcome::Gone`].
    ///
    /// # Errors
    /// [`FabricError::Region`].
    fn withdraw(&mut self, region: Region) -> Result<(), FabricError>;

    /// Copies bytes of the peer's region into one of ours. Unless the call fails, `token` ends
    /// exactly once, by an [`Event::Done`]; what ends [`Outcome::Late`] closes the link. No time
    /// is longer than a year.
    ///
    /// # Errors
    /// [`FabricError::Full`], after which an [`Event::Room`] follows; no event ends this token.
    fn pull(
        &mut self,
        link: Link,
        from: RemoteSpan,
        into: LocalSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError>;

    /// Copies bytes of one of our regions into the peer's; otherwise like [`Fabric::pull`].
    ///
    /// If it does not end with [`Outcome::Ok`] and its link is gone, its bytes may still get there
    /// until this side pushes again, by any link to that peer: not after bytes of that push.
    ///
    /// # Errors
    /// [`FabricError::Full`], as for a pull.
    fn push(
        &mut self,
        link: Link,
        from: LocalSpan,
        to: RemoteSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError>;

    /// Moves what can be moved without waiting, up to a share for each link, and adds what
    /// happened to `events`. How many were added.
    fn poll(&mut self, events: &mut Vec<Event>) -> usize;

    /// Readable when [`Fabric::poll`] has something to do, after [`Fabric::arm`] was true.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Whether the thread may wait for [`Fabric::wait_fd`]; if not, there is more to poll.
    fn arm(&mut self) -> bool;

    /// Closes a link: all its tokens end with [`Outcome::Gone`], and no other event of it follows.
    /// What was sent and the peer has not polled may be lost.
    fn close(&mut self, link: Link);

    /// The fabric's clock, from any start.
    fn now(&self) -> Duration;

    /// Makes [`Fabric::wait_fd`] readable after this time, or before; the last call holds.
    fn wake_in(&mut self, time: Duration);

    /// Spoils a byte of the next frame that leaves by this link; false where that cannot be done.
    /// For [`Faulty`].
    fn spoil(&mut self, link: Link) -> bool;

    /// What was refused, and what is open.
    fn counters(&self) -> Counters;

    /// The links that are up.
    fn links(&self) -> Vec<LinkStatus>;
}
