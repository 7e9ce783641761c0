//! What all links of a fabric share.

use super::peers::Peers;
use crate::regions::Regions;
use crate::{Counters, Down, Event, LinkStatus, Outcome, Refusal};
use forebay_membership::Member;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What happens when time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A connection of this key has to be further than it is.
    Connection(u64),
    /// This transfer of this link is late.
    Transfer(u64, u64),
    /// The caller wants to be woken.
    Wake,
}

/// Names a timer: its time, and a number.
pub(crate) type TimerId = (Duration, u64);

/// The timers of a fabric, the first one first.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerId, Timer>,
    last: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, at: Duration, timer: Timer) -> TimerId {
        self.last += 1;
        self.waiting.insert((at, self.last), timer);
        (at, self.last)
    }

    pub(crate) fn remove(&mut self, id: TimerId) {
        self.waiting.remove(&id);
    }

    pub(crate) fn first(&self) -> Option<Duration> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first one out, if its time has come.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Timer> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now);
        first.map(|first| first.remove())
    }
}

/// Regions, timers, events, counters and peers of one fabric.
pub(crate) struct Core {
    pub(crate) me: Member,
    pub(crate) regions: Regions,
    pub(crate) timers: Timers,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
    pub(crate) peers: Peers,
    wake: Option<TimerId>,
}

impl Core {
    pub(crate) fn new(me: Member) -> Self {
        Self {
            me,
            regions: Regions::default(),
            timers: Timers::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            peers: Peers::default(),
            wake: None,
        }
    }

    pub(crate) fn refuse(&mut self, why: Refusal) {
        self.counters.refused[why as usize] += 1;
    }

    pub(crate) fn done(&mut self, token: u64, outcome: Outcome) {
        self.events.push_back(Event::Done { token, outcome });
    }

    /// The last events of a link.
    pub(crate) fn down(&mut self, link: crate::Link, why: Down) {
        self.events.push_back(Event::Down { link, why });
    }

    /// Forgets what has not been told of a link that the caller has closed, but for its tokens.
    pub(crate) fn forget(&mut self, link: crate::Link) {
        self.events.retain(|event| match event {
            Event::Up { link: of, .. }
            | Event::Down { link: of, .. }
            | Event::Message { link: of, .. }
            | Event::Room { link: of } => *of != link,
            Event::Done { .. } => true,
        });
    }

    pub(crate) fn wake_at(&mut self, at: Duration) {
        if let Some(id) = self.wake.take() {
            self.timers.remove(id);
        }
        self.wake = Some(self.timers.add(at, Timer::Wake));
    }
}

/// How long the last pings took. The shortest is what the link takes: a longer one has waited for
/// a processor, here or there.
#[derive(Clone, Copy, Default)]
pub(crate) struct RoundTrips {
    times: [Option<Duration>; RoundTrips::KEPT],
    next: usize,
}

impl RoundTrips {
    const KEPT: usize = 8;

    pub(crate) fn note(&mut self, took: Duration) {
        self.times[self.next] = Some(took);
        self.next = (self.next + 1) % Self::KEPT;
    }

    pub(crate) fn least(&self) -> Option<Duration> {
        self.times.into_iter().flatten().min()
    }

    /// Whether there are as many as are kept.
    pub(crate) fn are_enough(&self) -> bool {
        self.times[Self::KEPT - 1].is_some()
    }
}

/// What a link counts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) round_trips: RoundTrips,
}

impl Traffic {
    pub(crate) fn status(&self, link: crate::Link, peer: Member) -> LinkStatus {
        let Self { bytes_in, bytes_out, round_trips } = *self;
        let round_trip = round_trips.least();
        LinkStatus { link, peer, round_trip, bytes_in, bytes_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_their_order_and_once() {
        let mut timers = Timers::default();
        let at = Duration::from_millis;
        timers.add(at(20), Timer::Connection(1));
        let removed = timers.add(at(10), Timer::Transfer(1, 2));
        timers.add(at(10), Timer::Transfer(1, 3));
        timers.remove(removed);
        assert_eq!(timers.first(), Some(at(10)));
        assert_eq!(timers.take_due(at(9)), None);
        assert_eq!(timers.take_due(at(20)), Some(Timer::Transfer(1, 3)));
        assert_eq!(timers.take_due(at(20)), Some(Timer::Connection(1)));
        assert_eq!((timers.take_due(at(99)), timers.first()), (None, None));
    }

    #[test]
    fn a_ping_that_waited_for_a_processor_says_nothing_of_the_link() {
        let mut trips = RoundTrips::default();
        let ms = Duration::from_millis;
        assert_eq!((trips.least(), trips.are_enough()), (None, false));
        trips.note(ms(40));
        assert_eq!(trips.least(), Some(ms(40)));
        trips.note(ms(2));
        for _ in 0..6 {
            trips.note(ms(40));
            assert_eq!(trips.least(), Some(ms(2)));
        }
        assert!(trips.are_enough());
        // Two more, and only slow ones are left: the link itself has become slow.
        trips.note(ms(40));
        assert_eq!(trips.least(), Some(ms(2)));
        trips.note(ms(30));
        assert_eq!(trips.least(), Some(ms(30)));
    }

    #[test]
    fn the_last_wish_to_be_woken_holds() {
        let mut core = Core::new(Member::new(1, 1));
        core.wake_at(Duration::from_secs(1));
        core.wake_at(Duration::from_secs(3));
        assert_eq!(core.timers.first(), Some(Duration::from_secs(3)));
    }
}
