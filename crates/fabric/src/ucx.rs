//! UCX: over RDMA devices, or over TCP on a network that is trusted.
//!
//! The frames are those of TLS; UCX carries them as active messages, in their order, and each side
//! proves at the start that it has the group's secret. UCX gets nothing of the memory that is
//! exposed: bytes are copied from there and to there by this side, as with TLS, so no peer can
//! use memory that it was not given, or that was withdrawn. One-sided access would save those
//! copies, and could not be withdrawn over TCP.
//!
//! Over TCP UCX itself is open: it writes where a peer says, whatever it was made for (see
//! `docs/security.md`). So TCP is used only where the caller says that the network is trusted.

mod calls;
mod conn;
mod engine;
mod start;

pub use start::{begin, rdma_devices};
pub use ucx_rs::UCX_LICENSE as LICENSE;

use crate::ends::{Ends, Target};
use crate::flow::{Core, Flow, Timer};
use crate::hello::Hello;
use crate::table::Table;
use crate::{
    ADDRESS_MAX, CONNECT_TIME, Down, FabricError, GROUP_MAX, GroupKey, Identity, Link, Outcome,
    Refusal,
};
use conn::{Conn, Shared};
use engine::{Engine, Inbox, Request, Status, Told};
use forebay_membership::Member;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ucx_rs::sys;

/// What UCX may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// RDMA devices, and nothing else.
    Rdma,
    /// TCP, and RDMA devices where there are some: the caller trusts all who can reach this host.
    /// Each that can connect can write this process's memory.
    TrustedNetwork,
}

/// Connections that were accepted and are not links, and those that wait to be accepted. One more
/// waits, and costs the oldest of those that have sent nothing, else the oldest, if that is so old
/// that it is hardly a peer.
const UNFINISHED_MAX: usize = 64;
const WAITING_MAX: usize = 256;
const GRACE: Duration = Duration::from_secs(1);

/// Connections that are told why they end, and how long they may take to hear it.
const LEAVING_MAX: usize = 64;
const LEAVING_TIME: Duration = Duration::from_secs(1);

/// How soon those that wait, and what is being closed, are looked at again.
const LOOK_TIME: Duration = Duration::from_millis(10);

/// Of the timer that looks.
const LOOK_KEY: u64 = u64::MAX;

/// Links by UCX, see [`Fabric`](crate::Fabric).
pub struct Ucx {
    conns: Table<Option<Conn>>,
    shared: Shared,
    inbox: Inbox,
    address: String,
    /// Peers that want to connect.
    waiting: VecDeque<Request>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When it fires.
    armed: Option<Duration>,
    /// Have more to send now.
    busy: BTreeSet<u64>,
    /// Have given to UCX what it has not sent.
    sending: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
    /// The timer that looks is set.
    looks: bool,
}

const TCP: &str = "tcp";

/// The transports for this, as `UCX_TLS` names them: never shared memory, and never a process with
/// itself.
///
/// # Errors
/// What is missing, and what to do.
fn transports(over: Over, devices: &[String]) -> Result<&'static str, String> {
    let has_rdma = cfg!(feature = "rdma");
    match (over, has_rdma, devices.is_empty()) {
        (Over::TrustedNetwork, true, false) => Ok("rc,dc,ud,tcp"),
        (Over::TrustedNetwork, _, _) => Ok(TCP),
        (Over::Rdma, true, false) => Ok("rc,dc,ud"),
        (Over::Rdma, true, true) => Err("there is no RDMA device here (nothing in \
            /sys/class/infiniband); UCX over TCP is open to its network, so it takes \
            trusted_network = true in [group], else use fabric = \"tls\""
            .into()),
        (Over::Rdma, false, _) => {
            let found = match devices {
                [] => "and there is no RDMA device here".to_owned(),
                some => format!("to use {}", some.join(", ")),
            };
            Err(format!(
                "this build has no RDMA: build with --features rdma, {found}; UCX over TCP is \
                 open to its network, so it takes trusted_network = true in [group], else use \
                 fabric = \"tls\""
            ))
        }
    }
}

/// Where a fabric by UCX is going to be reached. Peers that connect wait until there is one.
pub struct UcxListener(Engine);

impl UcxListener {
    /// One that nothing can connect to yet. Over TCP alone UCX has a port of its own on each
    /// network interface: on those with one of these addresses only, unless one of them stands
    /// for all.
    ///
    /// # Errors
    /// [`FabricError::System`] says what is missing for `over`, and the remedy.
    pub fn new(over: Over, at: &[IpAddr]) -> Result<Self, FabricError> {
        let transports = transports(over, &rdma_devices()).map_err(FabricError::System)?;
        let is_limited = transports == TCP && !at.iter().any(IpAddr::is_unspecified);
        let interfaces = if is_limited { start::interfaces(at) } else { Vec::new() };
        Engine::new(transports, &interfaces).map(Self).map_err(FabricError::System)
    }

    /// Listens at one address more, perhaps at all of the host, and says at which port.
    ///
    /// # Errors
    /// [`FabricError::InUse`] if something listens there, else [`FabricError::System`].
    pub fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr, FabricError> {
        self.0.listen(at).map_err(|status| match status.0 {
            sys::ucs_status_t_UCS_ERR_BUSY => FabricError::InUse(at),
            _ => FabricError::System(format!("cannot listen at {at}: {status}")),
        })
    }
}

impl Ucx {
    /// Listens at these addresses, where port 0 stands for any. Each is one that peers can connect
    /// to. All members of the group have the same secret.
    ///
    /// # Errors
    /// [`FabricError::InUse`] or [`FabricError::System`] name the address that is in use or not
    /// ours, or what is missing for `over`, and [`FabricError::Address`] one that stands for all,
    /// and a name or addresses that are too long.
    pub fn new(
        identity: Identity,
        secret: &[u8; 32],
        listen: &[SocketAddr],
        over: Over,
    ) -> Result<Self, FabricError> {
        if let Some(at) = listen.iter().find(|at| at.ip().is_unspecified()) {
            let text = format!("{at} is no address to connect to: name that of an interface");
            return Err(FabricError::Address(text));
        }
        let mut listener =
            UcxListener::new(over, &listen.iter().map(SocketAddr::ip).collect::<Vec<_>>())?;
        let addresses = listen.iter().map(|at| listener.listen(*at).map(|at| at.to_string()));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        Self::on(identity, secret, listener, &addresses.join(","))
    }

    /// Has the links of a listener. The caller knows where peers find it: `address` is what
    /// [`Fabric::address`](crate::Fabric::address) says.
    ///
    /// # Errors
    /// [`FabricError::System`], and [`FabricError::Address`] of a name or an address that is too
    /// long.
    pub fn on(
        identity: Identity,
        secret: &[u8; 32],
        UcxListener(engine): UcxListener,
        address: &str,
    ) -> Result<Self, FabricError> {
        if identity.group.len() > GROUP_MAX {
            let text = format!("a group's name has at most {GROUP_MAX} bytes");
            return Err(FabricError::Address(text));
        }
        if address.len() > ADDRESS_MAX {
            return Err(FabricError::Address(format!("{address} is longer than {ADDRESS_MAX}")));
        }
        let system = |what: &'static str| {
            move |error: rustix::io::Errno| FabricError::System(format!("{what}: {error}"))
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        );
        let timer = timer.map_err(system("timer"))?;
        for fd in [engine.wait_fd(), timer.as_fd()] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)
                .map_err(system("epoll"))?;
        }
        let key = GroupKey::derive(secret)?;
        let hello = Hello { group: key.group_id(&identity.group), me: identity.member };
        let mut core = Core::new(identity.member);
        // Nanoseconds: no fabric makes a link in each.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        core.peers.begin_at(since.map_or(0, |since| since.as_nanos() as u64));
        Ok(Self {
            conns: Table::default(),
            shared: Shared::new(core, engine, key.proof().clone(), hello),
            inbox: Inbox::default(),
            address: address.to_owned(),
            waiting: VecDeque::new(),
            epoll,
            timer,
            armed: None,
            busy: BTreeSet::new(),
            sending: BTreeSet::new(),
            leaving: BTreeSet::new(),
            looks: false,
        })
    }

    fn conn(&mut self, key: u64) -> Option<(&mut Shared, &mut Conn)> {
        let conn = self.conns.get_mut(key)?.as_mut()?;
        Some((&mut self.shared, conn))
    }

    /// Does what UCX has told.
    fn go_through(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.shared.engine.take(&mut inbox);
        for told in inbox.told.drain(..) {
            match told {
                Told::Bytes { key, number, from, to } => {
                    let bytes = &inbox.bytes[from..to];
                    let Some((shared, conn)) = self.conn(key) else { continue };
                    let taken = conn.take(shared, number, bytes);
                    match taken.and_then(|()| self.introduce(key)) {
                        Ok(()) => {
                            self.busy.insert(key);
                        }
                        Err(why) => self.fail(key, why),
                    }
                    self.end_what_is_over();
                }
                Told::Failed { key, status } => {
                    let why = self.why(key, status);
                    self.fail(key, why);
                }
                Told::Asked(request) if self.waiting.len() < WAITING_MAX => {
                    self.waiting.push_back(request);
                }
                Told::Asked(request) => {
                    self.shared.core.refuse(Refusal::Crowd);
                    self.shared.engine.reject(request);
                }
            }
        }
        self.inbox = inbox;
    }

    /// Why a connection has failed.
    fn why(&mut self, key: u64, status: Status) -> Down {
        let is_new = self
            .conn(key)
            .is_some_and(|(_, conn)| conn.is_ours && !conn.has_heard && conn.flow.is_none());
        match status.0 {
            sys::ucs_status_t_UCS_ERR_CONNECTION_RESET if is_new => Down::Closed,
            _ if is_new => Down::Unreachable,
            sys::ucs_status_t_UCS_ERR_ENDPOINT_TIMEOUT
            | sys::ucs_status_t_UCS_ERR_TIMED_OUT
            | sys::ucs_status_t_UCS_ERR_UNREACHABLE => Down::Silent,
            _ => Down::Closed,
        }
    }

    /// Accepts peers that wait, while there is room.
    fn accept(&mut self) {
        while !self.waiting.is_empty() {
            if let Some(first) = self.first_to_go() {
                let end = self.conn(first).and_then(|(_, conn)| conn.timer);
                if end.is_some_and(|(end, _)| end + GRACE > self.shared.now() + CONNECT_TIME) {
                    return;
                }
                self.shared.core.refuse(Refusal::Crowd);
                self.remove(first);
            }
            let Some(request) = self.waiting.pop_front() else { return };
            let key = self.conns.insert(None);
            // One that is gone already leaves nothing.
            let Ok(endpoint) = self.shared.engine.accept(key, request) else {
                self.conns.remove(key);
                continue;
            };
            let mut conn = Conn::new(endpoint, None, key, &mut self.shared);
            let at = self.shared.now() + CONNECT_TIME;
            conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
            self.shared.unfinished.push_back(key);
            self.put(key, conn);
        }
    }

    fn put(&mut self, key: u64, conn: Conn) {
        self.sending.insert(key);
        if let Some(place) = self.conns.get_mut(key) {
            *place = Some(conn);
        }
    }

    /// Which is to go if all that may be unfinished are.
    fn first_to_go(&self) -> Option<u64> {
        let keys = || self.shared.unfinished.iter().copied();
        let is_silent = |key: &u64| {
            let conn = self.conns.get(*key).and_then(Option::as_ref);
            conn.is_some_and(|conn| !conn.has_heard)
        };
        let is_full = self.shared.unfinished.len() >= UNFINISHED_MAX;
        keys().find(is_silent).or_else(|| keys().next()).filter(|_| is_full)
    }

    /// Has itself be polled soon, if there is something of which UCX does not tell.
    fn look_soon(&mut self) {
        let has_more = !self.waiting.is_empty() || !self.shared.engine.end_closed();
        if has_more && !std::mem::replace(&mut self.looks, true) {
            let at = self.shared.now() + LOOK_TIME;
            self.shared.core.timers.add(at, Timer::Connection(LOOK_KEY));
        }
    }

    /// Goes to the next address of a link that is not up; false if there is none.
    fn begin_connecting(&mut self, key: u64, mut target: Target) -> bool {
        while let Some(to) = target.addresses.pop_front() {
            let Ok(endpoint) = self.shared.engine.connect(key, to) else { continue };
            let at = self.shared.now() + target.each;
            let mut conn = Conn::new(endpoint, Some(target), key, &mut self.shared);
            conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
            self.put(key, conn);
            return true;
        }
        false
    }

    /// Lets a connection go on at which both sides have to say who they are.
    fn introduce(&mut self, key: u64) -> Result<(), Down> {
        if let Some(peer) = self.conn(key).and_then(|(_, conn)| conn.to_greet()) {
            let roll = self.roll(peer)?;
            if let Some((shared, conn)) = self.conn(key) {
                conn.greet(shared, Some(&roll));
            }
        }
        let Some((shared, conn)) = self.conn(key) else { return Ok(()) };
        let Some((peer, roll)) = conn.named.take() else { return Ok(()) };
        shared.core.peers.hear(peer, roll.clone())?;
        // Before anything of the new link: their memory may be written again by it.
        self.end_what_is_over();
        self.conn(key).map_or(Ok(()), |(shared, conn)| conn.up(shared, (peer, roll)))
    }

    /// Takes a connection out of everything but UCX.
    fn take_out(&mut self, key: u64) -> Option<Conn> {
        let mut conn = self.conns.remove(key)??;
        if let Some(id) = conn.timer.take() {
            self.shared.core.timers.remove(id);
        }
        self.shared.unfinished.retain(|other| *other != key);
        self.busy.remove(&key);
        self.sending.remove(&key);
        let was_leaving = self.leaving.remove(&key);
        if let Some(flow) = conn.flow.as_mut().filter(|_| !was_leaving) {
            self.shared.core.counters.links -= 1;
            let half = flow.has_half_pushed().then(|| flow.peer());
            flow.end_all(&mut self.shared.core);
            if let Some(peer) = half {
                self.tell_of_end(peer);
            }
        }
        Some(conn)
    }

    /// Takes a connection out of everything.
    fn remove(&mut self, key: u64) {
        if let Some(conn) = self.take_out(key) {
            conn.close(&mut self.shared);
        }
    }

    /// Ends a connection, or tries another address, and tells and counts why.
    fn fail(&mut self, key: u64, why: Down) {
        if self.leaving.contains(&key) {
            return self.remove(key);
        }
        if self.connect_again(key) {
            return;
        }
        let Some(conn) = self.take_out(key) else { return };
        let is_ours = conn.is_ours;
        // Otherwise the caller does not know of it.
        let is_told = conn.flow.is_some() || is_ours;
        match why {
            Down::Refused(why) if is_told => self.shared.core.refuse(why),
            _ if is_told => {}
            Down::Timeout => self.shared.core.refuse(Refusal::Timeout),
            Down::Mismatch(_) | Down::Refused(_) => self.shared.core.refuse(Refusal::Hello),
            _ => self.shared.core.refuse(Refusal::Tls),
        }
        if is_told {
            self.shared.core.down(Link(key), why);
        }
        let last_words = matches!(why, Down::Refused(_) | Down::Mismatch(_) | Down::Tls);
        if last_words && self.leaving.len() < LEAVING_MAX {
            self.leave(conn);
        } else {
            conn.close(&mut self.shared);
        }
    }
}

impl Ucx {
    /// Goes on with another address of a link that is not up, if there is one.
    fn connect_again(&mut self, key: u64) -> bool {
        let Some((shared, conn)) = self.conn(key) else { return false };
        if conn.flow.is_some() || conn.target.as_ref().is_none_or(|to| to.addresses.is_empty()) {
            return false;
        }
        if let Some(id) = conn.timer.take() {
            shared.core.timers.remove(id);
        }
        let target = conn.target.take();
        // The caller knows it by its key.
        let conn = self.conns.get_mut(key).and_then(Option::take);
        if let Some(conn) = conn {
            conn.close(&mut self.shared);
        }
        if target.is_some_and(|target| self.begin_connecting(key, target)) {
            return true;
        }
        self.conns.remove(key);
        self.busy.remove(&key);
        self.sending.remove(&key);
        self.shared.core.down(Link(key), Down::Unreachable);
        true
    }

    /// Says to the peer of a connection that is over why it is, under a key by which nothing is
    /// told any more, and closes it later: a peer loses what it has not read when it is closed.
    fn leave(&mut self, mut conn: Conn) {
        let key = self.conns.insert(None);
        self.shared.engine.rename(&conn.endpoint, key);
        conn.leave(&mut self.shared, key);
        let at = self.shared.now() + LEAVING_TIME;
        conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
        self.leaving.insert(key);
        self.put(key, conn);
    }

    /// Does with a connection what came of its last step.
    fn conclude(&mut self, key: u64, result: Result<bool, Down>) {
        match result {
            Ok(true) => {
                self.busy.insert(key);
            }
            Ok(false) => {}
            Err(why) => self.fail(key, why),
        }
    }

    /// Gives to UCX what a call has added.
    fn pump(&mut self, key: u64) {
        if let Some((shared, conn)) = self.conn(key) {
            let result = conn.pump(shared);
            let has_sent = conn.reap(shared);
            if has_sent {
                self.sending.remove(&key);
            } else {
                self.sending.insert(key);
            }
            self.conclude(key, result);
        }
    }

    /// Frees what UCX has sent, and gives it more.
    fn go_on(&mut self) {
        for key in self.sending.iter().copied().collect::<Vec<_>>() {
            self.pump(key);
        }
        for key in std::mem::take(&mut self.busy) {
            self.pump(key);
        }
    }

    fn expire(&mut self) {
        let now = self.shared.now();
        if self.armed.is_some_and(|at| at <= now) {
            self.armed = None;
        }
        while let Some(timer) = self.shared.core.timers.take_due(now) {
            match timer {
                Timer::Wake => {}
                Timer::Connection(LOOK_KEY) => self.looks = false,
                Timer::Connection(key) => self.fail(key, Down::Timeout),
                Timer::Transfer(key, request) => {
                    if let Some((core, flow)) = self.flow(Link(key)) {
                        flow.end(core, request, Outcome::Late);
                        self.fail(key, Down::Late);
                    }
                }
            }
        }
    }
}

impl Ends for Ucx {
    fn core(&mut self) -> &mut Core {
        &mut self.shared.core
    }

    fn keys(&self) -> Vec<u64> {
        self.conns.keys()
    }

    fn flow(&mut self, link: Link) -> Option<(&mut Core, &mut Flow)> {
        let (shared, conn) = self.conn(link.0)?;
        if conn.is_leaving {
            return None;
        }
        Some((&mut shared.core, conn.flow.as_mut()?))
    }

    fn alive(&self, peer: Member) -> Vec<u64> {
        self.conns.iter().filter_map(|(_, conn)| conn.as_ref()?.number_to(peer)).collect()
    }

    fn fail(&mut self, key: u64, why: Down) {
        Ucx::fail(self, key, why);
    }

    fn pump(&mut self, key: u64) {
        Ucx::pump(self, key);
    }

    fn has_more(&mut self, key: u64) {
        self.busy.insert(key);
    }

    fn time(&self) -> Duration {
        self.shared.now()
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            self.shared.engine.reject(request);
        }
        for key in self.conns.keys() {
            self.remove(key);
        }
    }
}
