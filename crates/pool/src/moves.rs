//! What went from which place to which: bytes since the pool was made, for rates of tiers and
//! store.
//!
//! Programs copy to and from RAM without a count of their own: what they say in their
//! [`Counters`](crate::layout::Counters) is RAM's, but for what is noted here.
//!
//! ```
//! use forebay_pool::TierId;
//! use forebay_pool::layout::Geometry;
//! use forebay_pool::moves::Place;
//! use forebay_pool::segment::anonymous;
//!
//! let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20]))?;
//! segment.header().moves.add(Place::Tier(TierId::RAM), Place::Store, 4096);
//! let totals = segment.totals();
//! assert_eq!(totals.tier(TierId::RAM).out, 4096);
//! assert_eq!((totals.store().into, totals.store().out), (4096, 0));
//! # Ok::<(), forebay_pool::SegmentError>(())
//! ```

use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering, fence};
use forebay_placement::{TIERS_MAX, TierId};

/// The places that have a row and a column of their own.
const PLACES: usize = TIERS_MAX + 3;
/// The tiers, and the stores together behind them.
const FLOWS: usize = TIERS_MAX + 1;

/// Where bytes come from, or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tier.
    Tier(TierId),
    /// The stores together.
    Store,
    /// The memory of programs.
    Programs,
    /// The stores, read by a program that waits: counted as `missed_bytes`, too.
    Missed,
}

impl Place {
    fn index(self) -> usize {
        match self {
            Place::Tier(tier) => tier.index() % TIERS_MAX,
            Place::Store => TIERS_MAX,
            Place::Programs => TIERS_MAX + 1,
            Place::Missed => TIERS_MAX + 2,
        }
    }
}

/// Bytes from each place to each. Written by programs and by the node manager.
#[repr(C)]
pub struct Moves {
    bytes: [[AtomicU64; PLACES]; PLACES],
}

impl Moves {
    /// So many bytes have gone from one place to another.
    #[inline]
    pub fn add(&self, from: Place, to: Place, bytes: u64) {
        self.bytes[from.index()][to.index()].fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many have.
    pub fn between(&self, from: Place, to: Place) -> u64 {
        self.bytes[from.index()][to.index()].load(Ordering::Relaxed)
    }
}

/// Bytes into and out of a place since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes that came.
    pub into: u64,
    /// Bytes that were read from it.
    pub out: u64,
}

impl Flow {
    /// What came and went since `before`, in bytes a second, `seconds` of which have passed.
    pub fn rate_since(self, before: Flow, seconds: f64) -> Flow {
        let rate = |now: u64, then: u64| match seconds > 0.0 {
            true => (now.saturating_sub(then) as f64 / seconds) as u64,
            false => 0,
        };
        Flow { into: rate(self.into, before.into), out: rate(self.out, before.out) }
    }
}

/// The flow of each tier, and of the stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals([Flow; FLOWS]);

impl Totals {
    /// That of a tier.
    pub fn tier(&self, tier: TierId) -> Flow {
        self.0[tier.index() % TIERS_MAX]
    }

    /// That of the stores together.
    pub fn store(&self) -> Flow {
        self.0[TIERS_MAX]
    }

    /// Of all, see [`Flow::rate_since`].
    pub fn rates_since(&self, before: &Totals, seconds: f64) -> Totals {
        let flows = std::array::from_fn(|at| self.0[at].rate_since(before.0[at], seconds));
        Totals(flows)
    }
}

/// What the totals were at one moment. Written by the node manager alone.
#[repr(C)]
pub struct Sample {
    /// CLOCK_MONOTONIC nanoseconds; 0 while it is written, and before.
    at_ns: AtomicU64,
    flows: [[AtomicU64; 2]; FLOWS],
}

impl Sample {
    fn write(&self, at_ns: u64, totals: &Totals) {
        self.at_ns.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, flow) in self.flows.iter().zip(&totals.0) {
            to[0].store(flow.into, Ordering::Relaxed);
            to[1].store(flow.out, Ordering::Relaxed);
        }
        self.at_ns.store(at_ns, Ordering::Release);
    }

    /// When it was taken, and what it says; `None` if there is none, or it is being written.
    fn read(&self) -> Option<(u64, Totals)> {
        let at_ns = self.at_ns.load(Ordering::Acquire);
        let flow = |from: &[AtomicU64; 2]| Flow {
            into: from[0].load(Ordering::Relaxed),
            out: from[1].load(Ordering::Relaxed),
        };
        let totals = Totals(std::array::from_fn(|at| flow(&self.flows[at])));
        fence(Ordering::Acquire);
        let is_same = self.at_ns.load(Ordering::Relaxed) == at_ns;
        (at_ns != 0 && is_same).then_some((at_ns, totals))
    }
}

impl Segment {
    /// What came and went so far.
    pub fn totals(&self) -> Totals {
        let header = self.header();
        let (mut written, mut read, mut missed) = (0u64, 0u64, 0u64);
        let of_slots = self.clients().used().map(|(_, client)| &client.counters);
        for counters in of_slots.chain([&header.past]) {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            // Programs write them: whatever stands there is added.
            written = written.wrapping_add(load(&counters.write_bytes));
            read = read.wrapping_add(load(&counters.read_bytes));
            missed = missed.wrapping_add(load(&counters.missed_bytes));
        }
        let moves = &header.moves;
        let tiers = || header.tiers_in_use().map(Place::Tier);
        let others = || tiers().chain([Place::Store, Place::Programs, Place::Missed]);
        let flow = |place: Place| Flow {
            into: others().map(|from| moves.between(from, place)).fold(0, u64::wrapping_add),
            out: others().map(|to| moves.between(place, to)).fold(0, u64::wrapping_add),
        };
        let mut totals = Totals::default();
        for tier in header.tiers_in_use() {
            totals.0[tier.index()] = flow(Place::Tier(tier));
        }
        totals.0[TIERS_MAX] = flow(Place::Store);
        totals.0[TIERS_MAX].out = totals.0[TIERS_MAX].out.wrapping_add(missed);
        let noted = flow(Place::Programs);
        let ram = &mut totals.0[TierId::RAM.index()];
        ram.into = ram.into.wrapping_add(written.saturating_sub(noted.out));
        ram.out = ram.out.wrapping_add(read.saturating_sub(noted.into));
        totals
    }

    /// Keeps the totals of this moment for [`Segment::sampled`], in place of the older of the two
    /// samples. Called by the node manager's control thread alone, about once a second.
    pub fn sample(&self, now_ns: u64) {
        let totals = self.totals();
        let samples = &self.header().samples;
        let at = |sample: &Sample| sample.at_ns.load(Ordering::Relaxed);
        let older = usize::from(at(&samples[1]) < at(&samples[0]));
        samples[older].write(now_ns.max(1), &totals);
    }

    /// The older of the node manager's samples, so that some time has passed since: when it was
    /// taken (CLOCK_MONOTONIC, nanoseconds), and what it says.
    pub fn sampled(&self) -> Option<(u64, Totals)> {
        let samples = self.header().samples.iter();
        samples.filter_map(Sample::read).min_by_key(|&(at_ns, _)| at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::segment::anonymous;

    #[test]
    fn what_programs_do_is_rams_but_for_what_is_noted() {
        let (segment, _memory) =
            anonymous(&Geometry::for_tiers(4096, &[16 << 20, 64 << 20])).unwrap();
        let (ram, nvme) = (TierId::RAM, TierId::new(1));
        let header = segment.header();
        header.past.write_bytes.store(100, Ordering::Relaxed);
        header.past.read_bytes.store(50, Ordering::Relaxed);
        header.past.missed_bytes.store(7, Ordering::Relaxed);
        header.moves.add(Place::Programs, Place::Tier(nvme), 30);
        header.moves.add(Place::Programs, Place::Store, 10);
        header.moves.add(Place::Tier(nvme), Place::Programs, 20);
        header.moves.add(Place::Missed, Place::Tier(ram), 7);
        header.moves.add(Place::Tier(ram), Place::Tier(nvme), 5);
        let totals = segment.totals();
        assert_eq!(totals.tier(ram), Flow { into: 60 + 7, out: 30 + 5 });
        assert_eq!(totals.tier(nvme), Flow { into: 35, out: 20 });
        assert_eq!(totals.store(), Flow { into: 10, out: 7 });
    }

    #[test]
    fn the_older_of_two_samples_is_compared_with() {
        let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[16 << 20])).unwrap();
        assert_eq!(segment.sampled(), None);
        for (at, bytes) in [(1, 10), (2, 20), (3, 40)] {
            segment.header().moves.add(Place::Tier(TierId::RAM), Place::Store, bytes);
            segment.sample(at * 1_000_000_000);
        }
        let (at_ns, before) = segment.sampled().unwrap();
        assert_eq!((at_ns, before.store().into), (2_000_000_000, 30));
        let rates = segment.totals().rates_since(&before, 2.0);
        assert_eq!((rates.store().into, rates.tier(TierId::RAM).out), (20, 20));
        assert_eq!(segment.totals().rates_since(&before, 0.0).store().into, 0);
    }
}
