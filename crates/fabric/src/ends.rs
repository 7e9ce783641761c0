//! What a fabric does with all the ends of links that it has, whatever carries them.

use crate::flow::{Core, Flow, Roll};
use crate::{ADDRESS_MAX, CONNECT_TIME, Down, FabricError, Link, Outcome, Region};
use forebay_membership::Member;
use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// The ends of links of a fabric, each under a key.
pub(crate) trait Ends {
    fn core(&mut self) -> &mut Core;

    /// Those of links that are up, and of those that are not yet.
    fn keys(&self) -> Vec<u64>;

    /// The flow of a link that is up.
    fn flow(&mut self, link: Link) -> Option<(&mut Core, &mut Flow)>;

    /// The numbers of the ends at links to a peer.
    fn alive(&self, peer: Member) -> Vec<u64>;

    /// Ends one, and tells and counts why.
    fn fail(&mut self, key: u64, why: Down);

    /// Sends what a call has added.
    fn pump(&mut self, key: u64);

    /// One has more to send, when its turn comes.
    fn has_more(&mut self, key: u64);

    /// The time of the fabric.
    fn time(&self) -> Duration;

    /// What to tell a peer of the ends of links to it.
    fn roll(&mut self, peer: Member) -> Result<Roll, Down> {
        let alive = self.alive(peer);
        self.core().peers.roll(alive)
    }

    /// Drops links whose other ends are over, with what they have not been read of.
    fn end_what_is_over(&mut self) {
        if !std::mem::take(&mut self.core().peers.has_news) {
            return;
        }
        for key in self.keys() {
            if let Some((core, flow)) = self.flow(Link(key))
                && flow.is_over(core)
            {
                self.fail(key, Down::Closed);
            }
        }
    }

    /// Tells a peer by all other links that one is over of which pushed bytes may be under way.
    fn tell_of_end(&mut self, peer: Member) {
        for key in self.keys() {
            let is_to = self.flow(Link(key)).is_some_and(|(_, flow)| flow.peer() == peer);
            if let Some(roll) = is_to.then(|| self.roll(peer).ok()).flatten()
                && let Some((_, flow)) = self.flow(Link(key))
            {
                flow.tell(roll);
                self.has_more(key);
            }
        }
    }

    /// As of [`Fabric::withdraw`](crate::Fabric::withdraw).
    fn withdraw_region(&mut self, region: Region) -> Result<(), FabricError> {
        self.core().regions.remove(region)?;
        for key in self.keys() {
            if let Some((core, flow)) = self.flow(Link(key))
                && let Err(why) = flow.withdrawn(core, region)
            {
                self.fail(key, why);
            }
        }
        Ok(())
    }

    /// Begins a transfer by `begin`; of a link that is gone its token ends.
    fn begin_transfer(
        &mut self,
        link: Link,
        token: u64,
        begin: impl FnOnce(&mut Core, &mut Flow, Duration) -> Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        let now = self.time();
        let Some((core, flow)) = self.flow(link) else {
            self.core().done(token, Outcome::Gone);
            return Ok(());
        };
        begin(core, flow, now)?;
        self.pump(link.0);
        Ok(())
    }
}

/// Where a connection of this side goes.
pub(crate) struct Target {
    pub peer: Member,
    /// Those that are not tried yet.
    pub addresses: VecDeque<SocketAddr>,
    /// How long each may take.
    pub each: Duration,
}

impl Target {
    /// Of addresses in a list, as of [`Fabric::address`](crate::Fabric::address).
    pub fn of(peer: Member, to: &str) -> Result<Self, FabricError> {
        if to.len() > ADDRESS_MAX {
            return Err(FabricError::Address(format!("{to} is longer than {ADDRESS_MAX}")));
        }
        let addresses: Result<VecDeque<SocketAddr>, _> = to.split(',').map(str::parse).collect();
        let wrong = |_| FabricError::Address(format!("{to:?} is not a list of IP:PORT"));
        let addresses = addresses.map_err(wrong)?;
        let each = CONNECT_TIME / addresses.len().max(1) as u32;
        Ok(Self { peer, addresses, each })
    }
}

/// Sets a timer to fire at `first`, if it does not before. `armed` is when it fires. False if that
/// time has come.
pub(crate) fn arm_timer(
    timer: &OwnedFd,
    armed: &mut Option<Duration>,
    first: Option<Duration>,
    now: Duration,
) -> bool {
    let Some(first) = first else { return true };
    if armed.is_some_and(|at| at <= first) {
        return true;
    }
    if first <= now {
        return false;
    }
    let wait = first - now;
    let wait = Timespec {
        tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    let times = Itimerspec { it_interval: Timespec::default(), it_value: wait };
    if timerfd_settime(timer, TimerfdTimerFlags::empty(), &times).is_ok() {
        *armed = Some(first);
    }
    true
}
