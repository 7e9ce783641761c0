//! What a placement costs: speeds with the gaps filled, and the two cost models.
//!
//! ```
//! use forebay_placement::cost::Speeds;
//! use forebay_placement::{Hierarchy, TierSnapshot};
//!
//! // Of a tier whose speed is not known, the one above says what to expect.
//! let known = TierSnapshot {
//!     write_bandwidth: 8_000_000_000,
//!     latency_ns: 100,
//!     ..TierSnapshot::default()
//! };
//! let tiers = Hierarchy::new(&[known, TierSnapshot::default()]).unwrap();
//! let speeds = Speeds::of(&tiers);
//! assert_eq!(speeds.paces()[0].write_ns, 0.125);
//! assert_eq!(speeds.paces()[1].write_ns, 0.5);
//! ```

use crate::exposure::EXPOSED_MAX;
use crate::{Hierarchy, TIERS_MAX};

/// Places a byte can go to: every tier, and the backing store.
pub const PLACES_MAX: usize = TIERS_MAX + 1;

/// Bytes per second of a fastest tier whose bandwidth is not known: one core's copy into memory.
const FIRST_BANDWIDTH: f64 = 8e9;
/// Nanoseconds of a fastest tier whose latency is not known: a miss of the processor's caches.
const FIRST_LATENCY_NS: f64 = 100.0;
/// How much slower than the tier above a tier of unknown bandwidth is taken to be.
const BANDWIDTH_STEP: f64 = 4.0;
/// How much longer than that of the tier above an unknown latency is taken to be.
const LATENCY_STEP: f64 = 8.0;

/// How time is computed from size, bandwidth and latency. See docs/design/placement.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Model {
    /// Latency + size / bandwidth, in nanoseconds.
    #[default]
    Physical,
    /// As printed in Hermes' appendix: time multiplied by latency, by dispersion, or divided by
    /// capacity, in each policy's own unit.
    Paper,
}

/// What the placement engine counts as a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    /// How time is computed.
    pub model: Model,
    /// Thousandths of a move by the data organizer that count as waiting; the rest is hidden behind
    /// computation, see [`crate::exposure`].
    pub exposed_permille: u16,
}

impl Costs {
    /// The share of a move that the writer waits for.
    pub fn exposed(&self) -> f64 {
        f64::from(self.exposed_permille) / 1000.0
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self { model: Model::Physical, exposed_permille: EXPOSED_MAX }
    }
}

/// The speed of one place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Nanoseconds for each byte read.
    pub read_ns: f64,
    /// Nanoseconds for each byte written.
    pub write_ns: f64,
    /// Nanoseconds until the first byte moves.
    pub latency_ns: f64,
}

impl Pace {
    /// Nanoseconds that it takes to read so many bytes at once.
    pub fn reading(&self, bytes: u64) -> f64 {
        self.latency_ns + bytes as f64 * self.read_ns
    }

    /// Nanoseconds that it takes to write so many bytes at once.
    pub fn writing(&self, bytes: u64) -> f64 {
        self.latency_ns + bytes as f64 * self.write_ns
    }
}

/// Messages and transfers that follow each other until a block of another node is here: it is asked
/// for, and its bytes are pulled.
const PEER_ROUNDS: f64 = 2.0;

/// Nanoseconds within which another node has to have `bytes` in memory for them to be here sooner
/// from there than from the store; 0 and less where they are here later even if it has them there
/// already. `link` is the pace of the link to it, whose latency is a round trip; a link that has
/// not been measured, with zeros, is taken for a fast one.
///
/// ```
/// use forebay_placement::cost::{Pace, peer_budget_ns};
///
/// let link = Pace { read_ns: 0.8, latency_ns: 60_000.0, ..Pace::default() };
/// // A parallel file system: 1 ms, 1 GB/s.
/// let store = Pace { read_ns: 1.0, latency_ns: 1e6, ..Pace::default() };
/// assert!(peer_budget_ns(&link, &store, 4096) > 0.0);
/// assert!(peer_budget_ns(&link, &store, 1 << 18) > 0.0);
/// // A local SSD: 80 us, 3 GB/s.
/// let store = Pace { read_ns: 0.33, latency_ns: 80_000.0, ..Pace::default() };
/// assert!(peer_budget_ns(&link, &store, 4096) < 0.0);
/// assert!(peer_budget_ns(&link, &store, 1 << 18) < 0.0);
/// ```
pub fn peer_budget_ns(link: &Pace, store: &Pace, bytes: u64) -> f64 {
    store.reading(bytes) - PEER_ROUNDS * link.latency_ns - bytes as f64 * link.read_ns
}

/// Whether a node that has written `pending` bytes of a file of `bytes` keeps them from the store
/// for now, and gives another node, which reads the file, its blocks: they are there sooner than
/// after a flush, and a read from the store or from here. `link` as for [`peer_budget_ns`].
///
/// ```
/// use forebay_placement::cost::{Pace, lending_pays};
///
/// let link = Pace { read_ns: 0.8, latency_ns: 100_000.0, ..Pace::default() };
/// // A parallel file system: 1 ms, 1 GB/s.
/// let store = Pace { read_ns: 1.0, write_ns: 1.0, latency_ns: 1e6 };
/// assert!(lending_pays(&link, &store, 4096, 4096));
/// assert!(lending_pays(&link, &store, 1 << 30, 1 << 30));
/// // A local SSD: 20 us, 3 GB/s.
/// let store = Pace { read_ns: 0.33, write_ns: 0.33, latency_ns: 20_000.0 };
/// assert!(!lending_pays(&link, &store, 4096, 4096));
/// ```
pub fn lending_pays(link: &Pace, store: &Pace, pending: u64, bytes: u64) -> bool {
    store.writing(pending) + peer_budget_ns(link, store, bytes) > 0.0
}

/// Whether a node gives another one `bytes` that lie in a place of this `pace`: it has them in
/// memory within [`peer_budget_ns`], behind `ahead` such blocks that others wait for. The place
/// reads them at the same time, so that they divide its bandwidth, and not its latency.
///
/// ```
/// use forebay_placement::cost::{Pace, peer_gives};
///
/// // An SSD: 80 us, 3 GB/s. A block of 256 KiB takes it 167 us, and sixteen more 1.6 ms.
/// let ssd = Pace { read_ns: 0.33, latency_ns: 80_000.0, ..Pace::default() };
/// assert!(peer_gives(&ssd, 0, 1 << 18, 1e6));
/// assert!(!peer_gives(&ssd, 16, 1 << 18, 1e6));
/// ```
pub fn peer_gives(place: &Pace, ahead: u64, bytes: u64, budget_ns: f64) -> bool {
    place.reading(bytes.saturating_mul(ahead.saturating_add(1))) < budget_ns
}

/// The speeds of all places of a hierarchy, the store last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    paces: [Pace; PLACES_MAX],
    len: usize,
}

impl Speeds {
    /// The speeds of a hierarchy; what is not known is a quarter of the bandwidth, and eight times
    /// the latency, of the tier above. So a hierarchy without any numbers is used from the top.
    pub fn of(hierarchy: &Hierarchy) -> Self {
        let len = hierarchy.len() + 1;
        let mut paces = [Pace::default(); PLACES_MAX];
        let mut read = FIRST_BANDWIDTH * BANDWIDTH_STEP;
        let mut write = read;
        let mut latency = FIRST_LATENCY_NS / LATENCY_STEP;
        let tiers = hierarchy.tiers().iter().chain([&hierarchy.store]);
        for (pace, tier) in paces.iter_mut().zip(tiers) {
            read = known(tier.read_bandwidth).unwrap_or(read / BANDWIDTH_STEP);
            write = known(tier.write_bandwidth).unwrap_or(write / BANDWIDTH_STEP);
            latency = known(tier.latency_ns).unwrap_or(latency * LATENCY_STEP);
            let sharers = f64::from(tier.sharers.max(1));
            *pace = Pace {
                read_ns: 1e9 * sharers / read,
                write_ns: 1e9 * sharers / write,
                latency_ns: latency,
            };
        }
        Self { paces, len }
    }

    /// The paces of all places, fastest tier first, the store last.
    pub fn paces(&self) -> &[Pace] {
        &self.paces[..self.len]
    }

    /// Nanoseconds to move a byte from one place to another: the slower of reading and writing,
    /// which the data organizer overlaps.
    pub fn move_ns(&self, from: usize, to: usize) -> f64 {
        self.paces[from].read_ns.max(self.paces[to].write_ns)
    }
}

fn known(number: u64) -> Option<f64> {
    (number > 0).then_some(number as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierSnapshot;

    #[test]
    fn unknown_speeds_fall_from_tier_to_tier() {
        let speeds = Speeds::of(&Hierarchy::new(&[TierSnapshot::default(); TIERS_MAX]).unwrap());
        let paces = speeds.paces();
        assert_eq!(paces.len(), PLACES_MAX);
        for pair in paces.windows(2) {
            assert!(pair[0].write_ns < pair[1].write_ns && pair[0].read_ns < pair[1].read_ns);
            assert!(pair[0].latency_ns < pair[1].latency_ns);
        }
        assert_eq!((paces[0].write_ns, paces[0].latency_ns), (0.125, 100.0));
    }

    #[test]
    fn what_is_slower_never_begins_to_pay() {
        let mut random = crate::random::Random::new(7);
        for _ in 0..10_000 {
            let mut number = |below: u64| random.below(below) as f64;
            let (read_ns, latency_ns) = (number(100) / 10.0, number(1_000_000));
            let store = Pace { read_ns, latency_ns, write_ns: 0.0 };
            let (read_ns, latency_ns) = (number(100) / 10.0, number(1_000_000));
            let link = Pace { read_ns, latency_ns, write_ns: 0.0 };
            let bytes = random.below(1 << 20);
            let budget_ns = peer_budget_ns(&link, &store, bytes);
            let slower = Pace { latency_ns: link.latency_ns + 1e4, ..link };
            assert!(peer_budget_ns(&slower, &store, bytes) < budget_ns);
            let slower = Pace { read_ns: store.read_ns + 1.0, ..store };
            assert!(peer_budget_ns(&link, &slower, bytes) >= budget_ns);
            let place = Pace { read_ns: store.read_ns / 4.0, ..link };
            let slower = Pace { read_ns: place.read_ns + 1.0, ..place };
            let ahead = random.below(32);
            let gives = |place: &Pace, ahead| peer_gives(place, ahead, bytes, budget_ns);
            assert!(gives(&place, ahead) || !gives(&slower, ahead));
            assert!(gives(&place, ahead) || !gives(&place, ahead + 1));
            assert!(budget_ns > 0.0 || !gives(&Pace::default(), 0), "nothing comes back in time");
        }
    }

    #[test]
    fn known_speeds_count_and_are_shared() {
        let ram = TierSnapshot { write_bandwidth: 1_000_000_000, ..Default::default() };
        let shared = TierSnapshot { sharers: 4, ..ram };
        let speeds = Speeds::of(&Hierarchy::new(&[ram, shared]).unwrap());
        assert_eq!(speeds.paces()[0].write_ns, 1.0);
        assert_eq!(speeds.paces()[1].write_ns, 4.0);
        assert_eq!(speeds.paces()[2].write_ns, 4.0, "a quarter of what the tier itself can do");
        assert_eq!(speeds.move_ns(0, 1), 4.0);
    }
}
