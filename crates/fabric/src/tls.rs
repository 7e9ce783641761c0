//! TLS 1.3 over TCP. One thread, no task, no thread of its own: sockets that never wait, in an
//! epoll set with a timer.
//!
//! Bytes of a transfer are encrypted from where they lie, and go from the decrypted record to
//! where they belong; rustls copies each record once on either side.

mod calls;
mod conn;
mod hello;
mod keys;
mod session;
mod socket;

pub(crate) use hello::differ;
pub use keys::GroupKey;

use crate::flow::{Core, Flow, Timer};
use crate::table::Table;
use crate::{
    ADDRESS_MAX, CONNECT_TIME, Down, FabricError, GROUP_MAX, Identity, Link, Outcome, Refusal,
};
use conn::{Conn, Shared, Target};
use hello::Hello;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use session::Session;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// Connections that were accepted and are not links; one more costs the oldest.
const UNFINISHED_MAX: usize = 64;

/// Connections that are told why they end, and how long they may take to hear it.
const LEAVING_MAX: usize = 64;
const LEAVING_TIME: Duration = Duration::from_secs(1);

/// How long nothing is accepted when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What the epoll set calls the timer; keys of connections are above, listeners below.
const TIMER_KEY: u64 = u32::MAX as u64;

/// Links by TLS over TCP, see [`Fabric`].
pub struct Tls {
    shared: Shared,
    conns: Table<Option<Conn>>,
    listeners: Vec<TcpListener>,
    /// Whether the listeners are in the epoll set.
    is_listening: bool,
    timer: OwnedFd,
    /// When it fires.
    armed: Option<Duration>,
    /// Have more to write.
    busy: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
}

impl Tls {
    /// Listens at these addresses, where port 0 stands for any. All members of the group have the
    /// same secret.
    ///
    /// # Errors
    /// [`FabricError::System`] names the address that is in use or not ours, and
    /// [`FabricError::Address`] a name or addresses that are too long.
    pub fn new(
        identity: Identity,
        secret: &[u8; 32],
        listen: &[SocketAddr],
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
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for at in listen {
            let begin = || {
                let listener = TcpListener::bind(at)?;
                listener.set_nonblocking(true)?;
                Ok((listener.local_addr()?, listener))
            };
            let failed = |error: std::io::Error| {
                FabricError::System(format!("cannot listen at {at}: {error}"))
            };
            let (address, listener) = begin().map_err(failed)?;
            addresses.push(address.to_string());
            listeners.push(listener);
        }
        let address = addresses.join(",");
        if address.len() > ADDRESS_MAX {
            return Err(FabricError::Address(format!("{address} is longer than {ADDRESS_MAX}")));
        }
        let key = GroupKey::derive(secret)?;
        let group = key.group_id(&identity.group);
        let hello = Hello { group, me: identity.member, address };
        let mut made = Self {
            shared: Shared::new(Core::new(identity.member), key, hello, epoll),
            conns: Table::default(),
            listeners,
            is_listening: false,
            timer,
            armed: None,
            busy: BTreeSet::new(),
            leaving: BTreeSet::new(),
        };
        made.listen(true).map_err(system("epoll"))?;
        Ok(made)
    }

    fn listen(&mut self, on: bool) -> rustix::io::Result<()> {
        if self.is_listening == on {
            return Ok(());
        }
        for (index, listener) in self.listeners.iter().enumerate() {
            if on {
                let data = EventData::new_u64(index as u64);
                epoll::add(&self.shared.epoll, listener, data, EventFlags::IN)?;
            } else {
                epoll::delete(&self.shared.epoll, listener)?;
            }
        }
        self.is_listening = on;
        Ok(())
    }

    fn conn(&mut self, key: u64) -> Option<(&mut Shared, &mut Conn)> {
        let conn = self.conns.get_mut(key)?.as_mut()?;
        Some((&mut self.shared, conn))
    }

    /// The shared part, the connection and the flow of a link that is up.
    fn flow(&mut self, link: Link) -> Option<(&mut Shared, &mut Flow)> {
        let (shared, conn) = self.conn(link.0)?;
        Some((shared, conn.flow.as_mut()?))
    }

    /// Accepts what waits, up to a share.
    fn accept(&mut self, listener: usize) {
        for _ in 0..UNFINISHED_MAX {
            let Some(listener) = self.listeners.get(listener) else { return };
            match listener.accept() {
                Ok((socket, _)) => self.begin_accepted(socket.into()),
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock => return,
                    std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::Interrupted => {}
                    _ => {
                        // No descriptors: the listener would be readable all the time.
                        let at = self.shared.now() + PAUSE;
                        self.shared.core.timers.add(at, Timer::Connection(TIMER_KEY));
                        let _ = self.listen(false);
                        return;
                    }
                },
            }
        }
    }

    fn begin_accepted(&mut self, socket: OwnedFd) {
        if self.shared.unfinished.len() >= UNFINISHED_MAX
            && let Some(oldest) = self.shared.unfinished.pop_front()
        {
            self.shared.core.refuse(Refusal::Crowd);
            self.remove(oldest);
        }
        let key = self.conns.insert(None);
        let begin = || {
            rustix::io::ioctl_fionbio(&socket, true).map_err(|_| Down::Closed)?;
            socket::prepare(&socket)?;
            let session = Session::server(&self.shared.key)?;
            Conn::new(socket, Some(session), None, key, &self.shared)
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
    fn begin_connecting(&mut self, key: u64, mut target: Target) -> bool {
        while let Some(to) = target.addresses.pop_front() {
            let Ok(socket) = socket::begin(to) else { continue };
            let Ok(mut conn) = Conn::new(socket, None, Some(target), key, &self.shared) else {
                return false;
            };
            let each = conn.target.as_ref().map_or(CONNECT_TIME, |target| target.each);
            let at = self.shared.now() + each;
            conn.timer = Some(self.shared.core.timers.add(at, Timer::Connection(key)));
            if let Some(place) = self.conns.get_mut(key) {
                *place = Some(conn);
            }
            return true;
        }
        false
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
            flow.end_all(&mut self.shared.core);
        }
        Some(conn)
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
                if target.is_some_and(|target| self.begin_connecting(key, target)) {
                    return;
                }
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
                // It is added again to nothing if it fails, which leaves other links alone.
                Timer::Connection(TIMER_KEY) => {
                    let _ = self.listen(true);
                }
                Timer::Connection(key) => self.fail(key, Down::Timeout),
                Timer::Transfer(key, request) => {
                    if let Some((shared, flow)) = self.flow(Link(key)) {
                        flow.end(&mut shared.core, request, Outcome::Late);
                        self.fail(key, Down::Late);
                    }
                }
            }
        }
    }

    /// Writes what a call has added.
    fn pump(&mut self, link: Link) {
        if let Some((shared, conn)) = self.conn(link.0) {
            let result = conn.pump(shared);
            self.conclude(link.0, result);
        }
    }
}
