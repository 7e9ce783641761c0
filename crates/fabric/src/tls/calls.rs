//! What the thread that has the fabric calls.

use super::{TIMER_KEY, Tls};
use crate::ends::{Ends, Target, arm_timer};
use crate::flow::Flow;
use crate::{
    Access, Counters, Down, Event, Fabric, FabricError, Header, Link, LinkStatus, LocalSpan,
    Region, RemoteSpan,
};
use forebay_membership::Member;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::Timespec;
use std::time::Duration;

impl Fabric for Tls {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn member(&self) -> Member {
        self.shared.core.me
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn connect(&mut self, peer: Member, to: &str) -> Result<Link, FabricError> {
        let target = Target::of(peer, to)?;
        let key = self.conns.insert(None);
        match self.begin_connecting(key, target) {
            Ok(true) => {}
            Ok(false) => {
                self.conns.remove(key);
                self.shared.core.down(Link(key), Down::Unreachable);
            }
            Err(errno) => {
                self.conns.remove(key);
                return Err(FabricError::System(format!("cannot connect to {to}: {errno}")));
            }
        }
        Ok(Link(key))
    }

    fn send(&mut self, link: Link, header: &Header, body: &[u8]) -> Result<(), FabricError> {
        let now = self.now();
        let (core, flow) = self.flow(link).ok_or(FabricError::Closed)?;
        flow.send(core, header, body, now)?;
        self.pump(link.0);
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
        self.withdraw_region(region)
    }

    fn pull(
        &mut self,
        link: Link,
        from: RemoteSpan,
        into: LocalSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        self.begin_transfer(link, token, |core, flow, now| {
            flow.pull(core, (from, into), token, (now, within))
        })
    }

    fn push(
        &mut self,
        link: Link,
        from: LocalSpan,
        to: RemoteSpan,
        token: u64,
        within: Duration,
    ) -> Result<(), FabricError> {
        self.begin_transfer(link, token, |core, flow, now| {
            flow.push(core, (from, to), token, (now, within))
        })
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
        let mut listeners = Vec::new();
        for event in ready {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == TIMER_KEY {
                let mut times = [0; 8];
                let _ = rustix::io::read(&self.timer, &mut times);
            } else if key < TIMER_KEY {
                listeners.push(key as usize);
            } else {
                self.go_on(key, flags);
            }
        }
        // Those that are there come first: who has said something is not taken for silent.
        for listener in listeners {
            self.accept(listener);
        }
        self.expire();
        for key in std::mem::take(&mut self.busy) {
            self.pump(key);
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
        let (first, now) = (self.shared.core.timers.first(), self.now());
        arm_timer(&self.timer, &mut self.armed, first, now)
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
