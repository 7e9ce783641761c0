//! What the thread that has the fabric calls.

use super::conn::Target;
use super::{TIMER_KEY, Tls};
use crate::flow::Flow;
use crate::{
    ADDRESS_MAX, Access, CONNECT_TIME, Counters, Down, Event, Fabric, FabricError, Header, Link,
    LinkStatus, LocalSpan, Outcome, Region, RemoteSpan,
};
use forebay_membership::Member;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

impl Fabric for Tls {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn member(&self) -> Member {
        self.shared.core.me
    }

    fn address(&self) -> &str {
        &self.shared.hello.address
    }

    fn connect(&mut self, peer: Member, to: &str) -> Result<Link, FabricError> {
        let wrong = || FabricError::Address(format!("{to:?} is not a list of IP:PORT"));
        if to.len() > ADDRESS_MAX {
            return Err(FabricError::Address(format!("{to} is longer than {ADDRESS_MAX}")));
        }
        let addresses: Result<VecDeque<SocketAddr>, _> = to.split(',').map(str::parse).collect();
        let addresses = addresses.map_err(|_| wrong())?;
        let each = CONNECT_TIME / addresses.len().max(1) as u32;
        let key = self.conns.insert(None);
        if !self.begin_connecting(key, Target { peer, addresses, each }) {
            self.conns.remove(key);
            self.shared.core.down(Link(key), Down::Unreachable);
        }
        Ok(Link(key))
    }

    fn send(&mut self, link: Link, header: &Header, body: &[u8]) -> Result<(), FabricError> {
        let (shared, flow) = self.flow(link).ok_or(FabricError::Closed)?;
        flow.send(&shared.core, header, body, shared.now())?;
        self.pump(link);
        Ok(())
    }

    unsafe fn expose(
        &mut self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Region, FabricError> {
        // SAFETY: the caller promises what is asked for there.
        unsafe { self.shared.core.regions.expose(at, bytes, access) }
    }

    fn withdraw(&mut self, region: Region) -> Result<(), FabricError> {
        self.shared.core.regions.remove(region)?;
        for key in self.conns.keys() {
            if let Some((shared, flow)) = self.flow(Link(key)) {
                flow.withdrawn(&mut shared.core, region);
            }
        }
        Ok(())
    }

    fn pull(
        &mut self,
        link: Link,
        from: RemoteSpan,
        into: LocalSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        let now = self.now();
        let Some((shared, flow)) = self.flow(link) else {
            self.shared.core.done(token, Outcome::Gone);
            return Ok(());
        };
        flow.pull(&mut shared.core, (from, into), token, (now, now.saturating_add(within)))?;
        self.pump(link);
        Ok(())
    }

    fn push(
        &mut self,
        link: Link,
        from: LocalSpan,
        to: RemoteSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        let now = self.now();
        let Some((shared, flow)) = self.flow(link) else {
            self.shared.core.done(token, Outcome::Gone);
            return Ok(());
        };
        flow.push(&mut shared.core, (from, to), token, (now, now.saturating_add(within)))?;
        self.pump(link);
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> usize {
        let mut ready = Vec::with_capacity(64);
        let now = Timespec::default();
        // Interrupted by a signal, it comes again: the set stays readable.
        let found =
            epoll::wait(&self.shared.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&now));
        if found.is_err() {
            ready.clear();
        }
        for event in ready {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == TIMER_KEY {
                let mut times = [0; 8];
                let _ = rustix::io::read(&self.timer, &mut times);
            } else if key < TIMER_KEY {
                self.accept(key as usize);
            } else if let Some((shared, conn)) = self.conn(key) {
                let result = conn.ready(shared, flags);
                self.conclude(key, result);
            }
        }
        self.expire();
        for key in std::mem::take(&mut self.busy) {
            self.pump(Link(key));
        }
        let before = events.len();
        events.extend(self.shared.core.events.drain(..));
        events.len() - before
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        if !self.shared.core.events.is_empty() || !self.busy.is_empty() {
            return false;
        }
        let Some(first) = self.shared.core.timers.first() else { return true };
        if self.armed.is_some_and(|at| at <= first) {
            return true;
        }
        let now = self.now();
        if first <= now {
            return false;
        }
        let wait = first - now;
        let wait = Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let times = Itimerspec { it_interval: Timespec::default(), it_value: wait };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times).is_ok() {
            self.armed = Some(first);
        }
        true
    }

    fn close(&mut self, link: Link) {
        self.remove(link.0);
        self.shared.core.forget(link);
    }

    fn now(&self) -> Duration {
        self.shared.now()
    }

    fn wake_in(&mut self, time: Duration) {
        let at = self.now().saturating_add(time);
        self.shared.core.wake_at(at);
    }

    fn spoil(&mut self, link: Link) -> bool {
        let Some((_, conn)) = self.conn(link.0) else { return false };
        conn.spoils = true;
        true
    }

    fn counters(&self) -> Counters {
        Counters { unfinished: self.shared.unfinished.len(), ..self.shared.core.counters }
    }

    fn links(&self) -> Vec<LinkStatus> {
        let conns = self.conns.iter().filter_map(|(_, conn)| conn.as_ref()?.flow.as_ref());
        conns.map(Flow::status).collect()
    }
}
