//! TLS 1.3 over TCP. One thread, no task, no thread of its own: sockets that never wait, in an
//! epoll set with a timer.
//!
//! Bytes of a transfer are encrypted from where they lie, and go from the decrypted record to
//! where they belong; rustls copies each record once on either side.

mod calls;
mod conn;
mod keys;
mod session;
mod socket;

pub use keys::GroupKey;

use crate::ends::{Ends, Target};
use crate::flow::{Core, Flow, Timer};
use crate::hello::Hello;
use crate::table::Table;
use crate::{
    ADDRESS_MAX, CONNECT_TIME, Down, FabricError, GROUP_MAX, Identity, Link, Outcome, Refusal,
};
use conn::{Conn, Shared};
use forebay_membership::Member;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use session::Session;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Connections that were accepted and are not links. One more waits, and costs the oldest of those
/// that have sent nothing, else the oldest, if that is so old that it is hardly a peer: many peers
/// that come at once are not turned away.
const UNFINISHED_MAX: usize = 64;
const GRACE: Duration = Duration::from_secs(1);

/// Connections that are accepted before those that are there have their turn.
const ACCEPTS_IN_TURN: u32 = 8;

/// Connections that are told why they end, and how long they may take to hear it.
const LEAVING_MAX: usize = 64;
const LEAVING_TIME: Duration = Duration::from_secs(1);

/// How long nothing is accepted when there are no descriptors, or too many unfinished connections.
const PAUSE: Duration = Duration::from_millis(100);
const CROWD_PAUSE: Duration = Duration::from_millis(10);

/// What the epoll set calls the timer; keys of connections are above, listeners below.
const TIMER_KEY: u64 = u32::MAX as u64;

/// Links by TLS over TCP, see [`Fabric`](crate::Fabric).
pub struct Tls {
    shared: Shared,
    address: String,
    conns: Table<Option<Conn>>,
    /// Each with whether it is in the epoll set.
    listeners: Vec<(TcpListener, bool)>,
    timer: OwnedFd,
    /// When it fires.
    armed: Option<Duration>,
    /// Have more to write.
    busy: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
}

impl Tls {
    /// Listens at these addresses, where port 0 stands for any. Each is one that peers can connect
    /// to. All members of the group have the same secret.
    ///
    /// # Errors
    /// [`FabricError::System`] names the address that is in use or not ours, and
    /// [`FabricError::Address`] one that stands for all, and a name or addresses that are too long.
    pub fn new(
        identity: Identity,
        secret: &[u8; 32],
        listen: &[SocketAddr],
    ) -> Result<Self, FabricError> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for at in listen {
            if at.ip().is_unspecified() {
                let text = format!("{at} is no address to connect to: name that of an interface");
                return Err(FabricError::Address(text));
            }
            let begin = || {
                let listener = TcpListener::bind(at)?;
                Ok((listener.local_addr()?, listener))
            };
            let failed = |error: std::io::Error| {
                FabricError::System(format!("cannot listen at {at}: {error}"))
            };
            let (address, listener) = begin().map_err(failed)?;
            addresses.push(address.to_string());
            listeners.push(listener);
        }
        Self::on(identity, secret, listeners, &addresses.join(","))
    }

    /// Listens at sockets that are bound already, perhaps at all addresses of the host. The caller
    /// knows where peers find them: `address` is what [`Fabric::address`](crate::Fabric::address)
    /// says.
    ///
    /// # Errors
    /// [`FabricError::System`], and [`FabricError::Address`] of a name or an address that is too
    /// long.
    pub fn on(
        identity: Identity,
        secret: &[u8; 32],
        listeners: Vec<TcpListener>,
        address: &str,
    ) -> Result<Self, FabricError> {
        if identity.group.len() > GROUP_MAX {
            let text = format!("a group's name has at most {GROUP_MAX} bytes");
            return Err(FabricError::Address(text));
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
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER_KEY), EventFlags::IN)
            .map_err(system("timer"))?;
        if address.len() > ADDRESS_MAX {
            return Err(FabricError::Address(format!("{address} is longer than {ADDRESS_MAX}")));
        }
        let key = GroupKey::derive(secret)?;
        let group = key.group_id(&identity.group);
        let hello = Hello { group, me: identity.member };
        let mut core = Core::new(identity.member);
        // Nanoseconds: no fabric makes a link in each.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        core.peers.begin_at(since.map_or(0, |since| since.as_nanos() as u64));
        let unheard = |error| FabricError::System(format!("cannot listen: {error}"));
        listeners
            .iter()
            .try_for_each(|listener| listener.set_nonblocking(true))
            .map_err(unheard)?;
        let mut made = Self {
            shared: Shared::new(core, key, hello, epoll),
            address: address.to_owned(),
            conns: Table::default(),
            listeners: listeners.into_iter().map(|listener| (listener, false)).collect(),
            timer,
            armed: None,
            busy: BTreeSet::new(),
            leaving: BTreeSet::new(),
        };
        made.listen(true).map_err(system("epoll"))?;
        Ok(made)
    }

    fn listen(&mut self, on: bool) -> rustix::io::Result<()> {
        for (index, (listener, is_on)) in self.listeners.iter_mut().enumerate() {
            if on && !*is_on {
                let data = EventData::new_u64(index as u64);
                epoll::add(&self.shared.epoll, &*listener, data, EventFlags::IN)?;
            } else if *is_on && !on {
                epoll::delete(&self.shared.epoll, &*listener)?;
            }
            *is_on = on;
        }
        Ok(())
    }

    fn conn(&mut self, key: u64) -> Option<(&mut Shared, &mut Conn)> {
        let conn = self.conns.get_mut(key)?.as_mut()?;
        Some((&mut self.shared, conn))
    }

    /// Accepts what waits, up to a share.
    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_IN_TURN {
            if self.is_crowded() {
                return self.pause(CROWD_PAUSE);
            }
            let Some((listener, _)) = self.listeners.get(listener) else { return };
            match listener.accept() {
                Ok((socket, _)) => self.begin_accepted(socket.into()),
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock => return,
                    std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::Interrupted => {}
                    // No descriptors.
                    _ => return self.pause(PAUSE),
                },
            }
        }
    }

    /// Which is to go if all that may be unfinished are.
    fn first_to_go(&self) -> Option<&Conn> {
        let conns = || {
            let keys = self.shared.unfinished.iter();
            keys.filter_map(|key| self.conns.get(*key)?.as_ref())
        };
        let is_full = self.shared.unfinished.len() >= UNFINISHED_MAX;
        conns().find(|conn| !conn.has_heard).or_else(|| conns().next()).filter(|_| is_full)
    }

    /// Whether one more has to wait: that which would go for it is young.
    fn is_crowded(&self) -> bool {
        let end = self.first_to_go().and_then(|conn| conn.timer);
        end.is_some_and(|(end, _)| end + GRACE > self.shared.now() + CONNECT_TIME)
    }

    /// Accepts nothing for a while: listeners would be readable all the time.
    fn pause(&mut self, time: Duration) {
        if self.listeners.iter().any(|(_, is_on)| *is_on) {
            // It fails for what is not in the set only, and these are.
            let _ = self.listen(false);
            self.listen_in(time);
        }
    }

    fn listen_in(&mut self, time: Duration) {
        let at = self.shared.now() + time;
        self.shared.core.timers.add(at, Timer::Connection(TIMER_KEY));
    }

    fn begin_accepted(&mut self, socket: OwnedFd) {
        if let Some(first) = self.first_to_go().map(Conn::key) {
            self.shared.core.refuse(Refusal::Crowd);
            self.remove(first);
        }
        let key = self.conns.insert(None);
        let begin = || {
            rustix::io::ioctl_fionbio(&socket, true).map_err(|_| Down::Closed)?;
            socket::prepare(&socket)?;
            let session = Session::server(&self.shared.key)?;
            Conn::new(socket, Some(session), None, key, &self.shared).map_err(|_| Down::Closed)
        };
        // One that is gone already leaves nothing.
        let Ok(mut conn) = begin() else {
            self.conns.remove(key);
            return;
        };
        let at = self.shared.now() + CONNECT_TIME;
        conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
        self.shared.unfinished.push_back(key);
        if let Some(place) = self.conns.get_mut(key) {
            *place = Some(conn);
        }
    }

    /// Goes to the next address of a link that is not up; false if there is none.
    ///
    /// # Errors
    /// The kernel has no room for another socket.
    fn begin_connecting(&mut self, key: u64, mut target: Target) -> rustix::io::Result<bool> {
        while let Some(to) = target.addresses.pop_front() {
            let Some(socket) = socket::begin(to)? else { continue };
            let mut conn = Conn::new(socket, None, Some(target), key, &self.shared)?;
            let each = conn.target.as_ref().map_or(CONNECT_TIME, |target| target.each);
            let at = self.shared.now() + each;
            conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
            if let Some(place) = self.conns.get_mut(key) {
                *place = Some(conn);
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Lets a connection go on at which both sides have to say who they are.
    fn introduce(&mut self, key: u64) -> Result<(), Down> {
        if let Some(peer) = self.conn(key).and_then(|(_, conn)| conn.to_greet()) {
            let roll = self.roll(peer)?;
            if let Some((shared, conn)) = self.conn(key) {
                conn.greet(shared, Some(&roll))?;
            }
        }
        let Some((shared, conn)) = self.conn(key) else { return Ok(()) };
        let Some((peer, roll)) = conn.named.take() else { return Ok(()) };
        shared.core.peers.hear(peer, roll.clone())?;
        // Before anything of the new link: their memory may be written again by it.
        self.end_what_is_over();
        self.conn(key).map_or(Ok(()), |(shared, conn)| conn.up(shared, (peer, roll)))
    }

    /// Takes a connection out of everything; its socket is closed when it is dropped.
    fn remove(&mut self, key: u64) -> Option<Conn> {
        let mut conn = self.conns.remove(key)??;
        if let Some(id) = conn.timer.take() {
            self.shared.core.timers.remove(id);
        }
        self.shared.unfinished.retain(|other| *other != key);
        self.busy.remove(&key);
        self.leaving.remove(&key);
        if let Some(flow) = &mut conn.flow {
            self.shared.core.counters.links -= 1;
            let half = flow.has_half_pushed().then(|| flow.peer());
            flow.end_all(&mut self.shared.core);
            if let Some(peer) = half {
                self.tell_of_end(peer);
            }
        }
        Some(conn)
    }

    /// Does what the socket of a connection is ready for, and what that leads to.
    fn go_on(&mut self, key: u64, flags: EventFlags) {
        let Some((shared, conn)) = self.conn(key) else { return };
        let result = conn.ready(shared, flags).and_then(|()| self.introduce(key));
        if result.is_ok() {
            self.end_what_is_over();
        }
        let pump = |(shared, conn): (&mut Shared, &mut Conn)| conn.pump(shared);
        let result = result.and_then(|()| self.conn(key).map_or(Ok(false), pump));
        self.conclude(key, result);
        self.end_what_is_over();
    }

    /// Does with a connection what came of its last step.
    fn conclude(&mut self, key: u64, result: Result<bool, Down>) {
        match result {
            Ok(true) => {
                self.busy.insert(key);
            }
            Ok(false) => {}
            Err(Down::Closed) => {
                // What the peer said before it closed tells more.
                let told = self.conn(key).and_then(|(shared, conn)| conn.last_word(shared));
                self.fail(key, told.unwrap_or(Down::Closed));
            }
            Err(why) => self.fail(key, why),
        }
    }

    /// Ends a connection, or tries another address, and tells and counts why.
    fn fail(&mut self, key: u64, why: Down) {
        if self.leaving.contains(&key) {
            self.remove(key);
            return;
        }
        if let Some((shared, conn)) = self.conn(key) {
            let more = |target: &Target| !target.addresses.is_empty();
            if conn.flow.is_none() && conn.target.as_ref().is_some_and(more) {
                Conn::clear(shared);
                if let Some(id) = conn.timer.take() {
                    shared.core.timers.remove(id);
                }
                let target = conn.target.take();
                // Its descriptor is free for the next one.
                if let Some(place) = self.conns.get_mut(key) {
                    *place = None;
                }
                if target.is_some_and(|target| self.begin_connecting(key, target) == Ok(true)) {
                    return;
                }
                self.conns.remove(key);
                return self.shared.core.down(Link(key), why);
            }
        }
        let Some(mut conn) = self.remove(key) else { return };
        // Otherwise the caller does not know of it.
        let is_told = conn.flow.is_some() || conn.is_ours;
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
            let key = self.conns.insert(None);
            if conn.leave(&mut self.shared, key).is_ok() {
                let at = self.shared.now() + LEAVING_TIME;
                conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
                self.leaving.insert(key);
                if let Some(place) = self.conns.get_mut(key) {
                    *place = Some(conn);
                }
            } else {
                self.conns.remove(key);
            }
        }
        Conn::clear(&mut self.shared);
    }

    fn expire(&mut self) {
        let now = self.shared.now();
        if self.armed.is_some_and(|at| at <= now) {
            self.armed = None;
        }
        while let Some(timer) = self.shared.core.timers.take_due(now) {
            match timer {
                Timer::Wake => {}
                // Without memory in the kernel it fails, and is tried again.
                Timer::Connection(TIMER_KEY) => {
                    if self.listen(true).is_err() {
                        self.listen_in(PAUSE);
                    }
                }
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

    /// Writes what a call has added.
    fn pump(&mut self, key: u64) {
        if let Some((shared, conn)) = self.conn(key) {
            let result = conn.pump(shared);
            self.conclude(key, result);
        }
    }
}

impl Ends for Tls {
    fn core(&mut self) -> &mut Core {
        &mut self.shared.core
    }

    fn keys(&self) -> Vec<u64> {
        self.conns.keys()
    }

    fn flow(&mut self, link: Link) -> Option<(&mut Core, &mut Flow)> {
        let (shared, conn) = self.conn(link.0)?;
        Some((&mut shared.core, conn.flow.as_mut()?))
    }

    fn alive(&self, peer: Member) -> Vec<u64> {
        self.conns.iter().filter_map(|(_, conn)| conn.as_ref()?.number_to(peer)).collect()
    }

    fn fail(&mut self, key: u64, why: Down) {
        Tls::fail(self, key, why);
    }

    fn pump(&mut self, key: u64) {
        Tls::pump(self, key);
    }

    fn has_more(&mut self, key: u64) {
        self.busy.insert(key);
    }

    fn time(&self) -> Duration {
        self.shared.now()
    }
}
