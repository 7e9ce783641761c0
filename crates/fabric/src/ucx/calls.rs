//! What the thread that has the fabric calls.

use super::Ucx;
use crate::ends::{Ends, Target, arm_timer};
use crate::flow::Flow;
use crate::{
    Access, Counters, Down, Event, Fabric, FabricError, Header, Link, LinkStatus, LocalSpan,
    Region, RemoteSpan,
};
use forebay_membership::Member;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Turns of UCX in one poll: some 4 MiB of bulk.
const TURNS: u32 = 16;

impl Fabric for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
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
        if !self.begin_connecting(key, target) {
            self.conns.remove(key);
            self.shared.core.down(Link(key), Down::Unreachable);
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
        let mut times = [0; 8];
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.timer, &mut times);
        for _ in 0..TURNS {
            let has_moved = self.shared.engine.progress();
            let has_news = self.shared.engine.has_news();
            self.go_through();
            self.accept();
            self.go_on();
            if !has_moved && !has_news {
                break;
            }
        }
        self.expire();
        self.look_soon();
        let before = events.len();
        events.extend(self.shared.core.events.drain(..));
        events.len() - before
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        let has_more = !self.busy.is_empty() || self.shared.engine.has_news();
        if !self.shared.core.events.is_empty() || has_more || !self.shared.engine.arm() {
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
        let unfinished = self.shared.unfinished.len() + self.waiting.len();
        Counters { unfinished, ..self.shared.core.counters }
    }

    fn links(&self) -> Vec<LinkStatus> {
        let conns = self.conns.iter().filter_map(|(_, conn)| conn.as_ref());
        let flows = conns.filter(|conn| !conn.is_leaving).filter_map(|conn| conn.flow.as_ref());
        flows.map(Flow::status).collect()
    }
}
