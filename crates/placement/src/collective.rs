//! Collective or independent I/O of the ranks of an MPI program: what each of both takes, and which
//! one to choose (Liu et al., "Performance Evaluation and Modeling of HPC I/O on Non-Volatile
//! Memory", section IV). Pure: the caller measures. Sizes are bytes, times seconds, speeds bytes
//! per second.
//!
//! The equations as printed are [`exchange_s`], [`io_s`], [`collective_s`] and [`independent_s`];
//! [`paper`] has the paper's tables. [`times`] is the model that decides: it tells transfers within
//! a node from those between nodes, knows the size of requests, and aggregators with unlike shares.
//!
//! ```
//! use forebay_placement::collective::{Call, Correction, Device, Link, Mode, Network, decide};
//!
//! // 16 ranks on 4 nodes write 1 GB, each piece 64 KiB, over gigabit Ethernet.
//! let call = Call {
//!     ranks: 16,
//!     nodes: 4,
//!     aggregators: 4,
//!     buffer: 16 << 20,
//!     bytes: 1_000_000_000,
//!     largest_domain: 0,
//!     piece: 64 << 10,
//!     is_contiguous: false,
//! };
//! let network = Network {
//!     between: Link { start_s: 50e-6, byte_s: 1.0 / 110e6 },
//!     within: Link { start_s: 1e-6, byte_s: 1.0 / 5e9 },
//! };
//! let measured = |random| Device::measured(100e6, random, 65536.0, 50e-6).unwrap();
//! let mode = |random| {
//!     decide(&call, &network, &measured(random), &Correction::default(), None).unwrap().mode
//! };
//! assert_eq!((mode(5e6), mode(99e6)), (Mode::Collective, Mode::Independent));
//! ```

mod correction;
pub mod paper;

/// Equations (3) and (5), which are those of other models.
pub use crate::outofcore::io_s;
pub use correction::Correction;

/// How much less the other mode has to take before it is chosen instead of the one in use, as a
/// share of the time: what changes with each small error of a measurement pays for the change each
/// time. Below the 5 % that a choice may cost.
pub const MARGIN: f64 = 0.04;
/// How much longer collective I/O may take with fewer aggregators than with the best number: each
/// more costs memory, and messages that the model does not count.
const FEWER: f64 = 1.02;

/// Equation (2) where all messages have one size: the exchange of the slowest aggregator in
/// `iterations` rounds, in each of which `tau` of `message` bytes go over the link.
pub fn exchange_s(link: Link, iterations: f64, message: f64, tau: f64) -> f64 {
    iterations * (link.start_s + link.byte_s * message * tau)
}

/// Equation (1), with what is neither exchange nor I/O as `other_s`.
pub fn collective_s(exchange_s: f64, io_s: f64, other_s: f64) -> f64 {
    exchange_s + io_s + other_s
}

/// Equation (4).
pub fn independent_s(io_s: f64, other_s: f64) -> f64 {
    io_s + other_s
}

/// The paper's estimate of tau: the share of the ranks that are no aggregators.
pub fn tau(ranks: u32, aggregators: u32) -> f64 {
    f64::from(ranks.saturating_sub(aggregators)) / f64::from(ranks.max(1))
}

/// How the ranks of a program do their I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Two-phase: data is exchanged, and few ranks, the aggregators, do contiguous I/O.
    Collective,
    /// Each rank does its own.
    Independent,
}

impl Mode {
    /// As pages and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Collective => "collective",
            Mode::Independent => "independent",
        }
    }

    /// The other one.
    pub fn other(self) -> Mode {
        match self {
            Mode::Collective => Mode::Independent,
            Mode::Independent => Mode::Collective,
        }
    }
}

/// A message between two ranks: a time, and a time for each byte.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// T_s: seconds of a message without bytes.
    pub start_s: f64,
    /// T_w: seconds of each byte.
    pub byte_s: f64,
}

impl Link {
    /// The line of least squares through times of messages, `(bytes, seconds)`: each time counts by
    /// its relative error, so that small messages say what [`Link::start_s`] is and large ones do
    /// not drown them. Neither term is below zero. `None` of fewer than two sizes.
    pub fn fitted(samples: &[(f64, f64)]) -> Option<Link> {
        let sound = |&&(bytes, time_s): &&(f64, f64)| {
            bytes >= 0.0 && time_s > 0.0 && bytes.is_finite() && time_s.is_finite()
        };
        let (mut weights, mut sizes, mut squares) = (0.0, 0.0, 0.0);
        let (mut times, mut products) = (0.0, 0.0);
        for &(bytes, time_s) in samples.iter().filter(sound) {
            let weight = 1.0 / (time_s * time_s);
            weights += weight;
            sizes += weight * bytes;
            squares += weight * bytes * bytes;
            times += weight * time_s;
            products += weight * bytes * time_s;
        }
        let spread = weights * squares - sizes * sizes;
        // Of no samples it is no number.
        if spread.is_nan() || spread <= 1e-12 * weights * squares {
            return None;
        }
        let byte_s = (weights * products - sizes * times) / spread;
        let start_s = (times - byte_s * sizes) / weights;
        Some(match (start_s < 0.0, byte_s < 0.0) {
            (true, _) => Link { start_s: 0.0, byte_s: products / squares },
            (_, true) => Link { start_s: times / weights, byte_s: 0.0 },
            _ => Link { start_s, byte_s },
        })
    }

    fn is_known(&self) -> bool {
        let terms = [self.start_s, self.byte_s];
        terms.iter().all(|term| term.is_finite() && *term >= 0.0) && terms != [0.0, 0.0]
    }
}

/// Messages between ranks of different nodes, and of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Network {
    /// Between nodes. Not known where there is one node.
    pub between: Link,
    /// Within a node.
    pub within: Link,
}

/// One direction of what holds the bytes: a tier, or the store, as all ranks together see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Bytes per second of requests that follow each other.
    pub bandwidth: f64,
    /// Seconds that a request elsewhere keeps the device from others before bytes move.
    pub seek_s: f64,
    /// Seconds of each request in which the device serves others.
    pub latency_s: f64,
}

impl Device {
    /// From measured bandwidths: bdw_seq, and bdw_ran of requests of `random_bytes` anywhere.
    /// `None` if one of them is not known.
    pub fn measured(
        sequential: f64,
        random: f64,
        random_bytes: f64,
        latency_s: f64,
    ) -> Option<Device> {
        let seek_s = io_s(random_bytes, random) - io_s(random_bytes, sequential);
        let found = Device { bandwidth: sequential, seek_s: seek_s.max(0.0), latency_s };
        found.known().filter(|_| random > 0.0 && random_bytes > 0.0)
    }

    /// What holds a call's bytes where they lie on several: each with its share of them, of any
    /// sum. The parts take their turns. `None` of nothing.
    pub fn of_parts(parts: &[(Device, f64)]) -> Option<Device> {
        let all: f64 = parts.iter().map(|(_, share)| share).sum();
        let mean = |term: fn(&Device) -> f64| {
            parts.iter().map(|(device, share)| term(device) * share).sum::<f64>() / all
        };
        let found = Device {
            bandwidth: 1.0 / mean(|device| 1.0 / device.bandwidth),
            seek_s: mean(|device| device.seek_s),
            latency_s: mean(|device| device.latency_s),
        };
        found.known().filter(|_| all > 0.0)
    }

    /// The device, if all of its terms are known.
    pub fn known(self) -> Option<Device> {
        let is_time = |term: f64| term.is_finite() && term >= 0.0;
        let is_fast = self.bandwidth.is_finite() && self.bandwidth > 0.0;
        (is_fast && is_time(self.seek_s) && is_time(self.latency_s)).then_some(self)
    }
}

/// A collective call of all ranks that have the file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Ranks that take part.
    pub ranks: u32,
    /// Nodes that they run on, with as many ranks each.
    pub nodes: u32,
    /// Ranks that would do the I/O: cb_nodes of ROMIO.
    pub aggregators: u32,
    /// Bytes that an aggregator collects before it does I/O: cb_buffer_size.
    pub buffer: u64,
    /// Bytes of all ranks together.
    pub bytes: u64,
    /// Bytes of the aggregator that has most of them; 0 where all have as many.
    pub largest_domain: u64,
    /// Bytes that lie together in the file, of one rank: the request that it would make.
    pub piece: u64,
    /// What each rank has of the call lies together, whatever `piece` says.
    pub is_contiguous: bool,
}

impl Call {
    /// Requests of all ranks in independent I/O.
    fn requests(&self) -> f64 {
        if self.is_contiguous {
            return f64::from(self.ranks);
        }
        let piece = self.piece.clamp(1, self.bytes.max(1));
        (self.bytes.div_ceil(piece) as f64).max(f64::from(self.ranks))
    }

    /// The largest share of an aggregator, and the rounds in which it goes through its buffer.
    fn rounds(&self) -> (f64, f64) {
        let even = self.bytes.div_ceil(u64::from(self.aggregators));
        let domain = self.largest_domain.clamp(even, self.bytes);
        (domain as f64, domain.div_ceil(self.buffer) as f64)
    }

    /// The share of a round's `message` that comes from other nodes, where `own` is an aggregator's
    /// own: the mean, and that of the aggregator that gets most from there.
    ///
    /// All wait for that one before the next round. With many pieces in a message all aggregators
    /// get the same share; a message of one piece comes from one rank, and that is elsewhere for
    /// all aggregators with a small chance only. In between the difference shrinks as the deviation
    /// of a mean does.
    fn shares_elsewhere(&self, own: f64, message: f64) -> (f64, f64) {
        let mean = (1.0 - 1.0 / f64::from(self.nodes)).min(1.0 - own);
        if self.is_contiguous {
            return (mean, mean);
        }
        let senders = (message / self.piece.max(1) as f64).max(1.0);
        let any = 1.0 - (1.0 - mean).powi(self.aggregators as i32);
        (mean, mean + (any - mean) / senders.sqrt())
    }

    fn is_sound(&self) -> bool {
        self.bytes > 0
            && self.buffer > 0
            && (1..=self.ranks).contains(&self.nodes)
            && (1..=self.ranks).contains(&self.aggregators)
    }
}

/// What both modes take, by their terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Rounds of the slowest aggregator.
    pub rounds: f64,
    /// Of collective I/O: messages between nodes, with T_s of all rounds.
    pub between_s: f64,
    /// Of collective I/O: messages within nodes; T_s too where there is one node.
    pub within_s: f64,
    /// Of collective I/O: the aggregators' requests.
    pub sequential_s: f64,
    /// What of that goes on while other aggregators still wait for messages.
    pub hidden_s: f64,
    /// Of independent I/O: the ranks' requests.
    pub random_s: f64,
}

impl Times {
    /// T_comm.
    pub fn exchange_s(&self) -> f64 {
        self.between_s + self.within_s
    }

    /// T_collective.
    pub fn collective_s(&self) -> f64 {
        collective_s(self.exchange_s(), self.sequential_s - self.hidden_s, 0.0)
    }

    /// T_individual.
    pub fn independent_s(&self) -> f64 {
        independent_s(self.random_s, 0.0)
    }

    /// Collective I/O with two buffers, one exchanged while the other is read or written: what
    /// hides behind the longer of both, but for the first exchange and the last request.
    pub fn overlapped_s(&self) -> f64 {
        let (exchange_s, io_s) = (self.exchange_s(), self.sequential_s);
        let rounds = self.rounds.max(1.0);
        let all_s = (exchange_s + io_s + (rounds - 1.0) * exchange_s.max(io_s)) / rounds;
        all_s.min(self.collective_s())
    }

    /// What a mode takes.
    pub fn of(&self, mode: Mode) -> f64 {
        match mode {
            Mode::Collective => self.collective_s(),
            Mode::Independent => self.independent_s(),
        }
    }
}

/// What both modes take for a call on a device. `None` where something is not known, or the call
/// makes no sense: the program's own mode is left then.
///
/// Beyond the equations:
/// - ranks of a node share its link, and so do its aggregators (the paper's first limitation);
/// - the aggregator with the largest share decides the rounds (its second);
/// - of each round an aggregator has a part itself: its own bytes where each rank's lie together,
///   else its share as a rank; the others wait for the one that gets most from other nodes, but
///   first do their I/O;
/// - independent requests cost a seek each, which the device spends, and a latency, which the rank
///   waits for: whichever of both takes longer.
pub fn times(call: &Call, network: &Network, device: &Device) -> Option<Times> {
    let Call { ranks, nodes, aggregators, .. } = *call;
    let known = call.is_sound()
        && device.known().is_some()
        && (ranks == nodes || network.within.is_known())
        && (nodes == 1 || network.between.is_known());
    if !known {
        return None;
    }
    let (ranks, nodes, aggregators) = (f64::from(ranks), f64::from(nodes), f64::from(aggregators));
    let bytes = call.bytes as f64;
    let (domain, rounds) = call.rounds();
    let own = if call.is_contiguous { aggregators } else { 1.0 } / ranks;
    let (mean, elsewhere) = call.shares_elsewhere(own, domain / rounds);
    let beside = (1.0 - own - elsewhere).max(0.0);
    let sharing = (aggregators / nodes).max(1.0);
    // Rounds begin with a message from afar, where there is one.
    let (far, near) = match (nodes > 1.0, ranks > 1.0) {
        (true, _) => (rounds * network.between.start_s, 0.0),
        (false, true) => (0.0, rounds * network.within.start_s),
        (false, false) => (0.0, 0.0),
    };
    let requests = call.requests();
    let busy_s = io_s(bytes, device.bandwidth) + requests * device.seek_s + device.latency_s;
    let alone_s = io_s(bytes / ranks, device.bandwidth)
        + requests / ranks * (device.seek_s + device.latency_s);
    let afar_s = network.between.byte_s * domain * elsewhere * sharing;
    let moving_s = io_s(bytes, device.bandwidth);
    Some(Times {
        rounds,
        between_s: far + afar_s,
        within_s: near + network.within.byte_s * domain * beside,
        sequential_s: moving_s + rounds * device.latency_s,
        hidden_s: afar_s.min(moving_s * (elsewhere - mean)),
        random_s: busy_s.max(alone_s),
    })
}

/// The number of aggregators with which collective I/O takes least, or a smaller one with which it
/// takes almost as little. Tried are the powers of two, one for each node, and all ranks. `None` as
/// of [`times`].
pub fn aggregators(call: &Call, network: &Network, device: &Device) -> Option<u32> {
    let with = |aggregators: u32| {
        let call = Call { aggregators, largest_domain: 0, ..*call };
        times(&call, network, device).map(|times| times.collective_s())
    };
    let powers = (0..u32::BITS).map(|power| 1 << power);
    let tried = || powers.clone().chain([call.nodes, call.ranks]).filter(|n| *n <= call.ranks);
    let least_s = tried().filter_map(with).min_by(f64::total_cmp)?;
    tried().filter(|n| with(*n).is_some_and(|time_s| time_s <= least_s * FEWER)).min()
}

/// The bytes of a piece from which on independent I/O is at least as fast, as a power of two;
/// `None` if it never is, up to what a rank has of the call, or as of [`times`].
pub fn crossover(call: &Call, network: &Network, device: &Device) -> Option<u64> {
    let most = call.bytes / u64::from(call.ranks.max(1));
    let pieces = (0..u64::BITS).map(|power| 1 << power).take_while(|piece| *piece <= most);
    let is_faster = |piece: &u64| {
        let call = Call { piece: *piece, is_contiguous: false, ..*call };
        let found = times(&call, network, device);
        found.is_some_and(|times| times.independent_s() <= times.collective_s())
    };
    pieces.into_iter().find(is_faster)
}

/// A choice, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The mode to use.
    pub mode: Mode,
    /// The terms, without corrections: what [`Correction::observe`] compares with.
    pub times: Times,
    /// What collective I/O is expected to take.
    pub collective_s: f64,
    /// What independent I/O is expected to take.
    pub independent_s: f64,
}

impl Decision {
    /// What the chosen mode is expected to take.
    pub fn expected_s(&self) -> f64 {
        match self.mode {
            Mode::Collective => self.collective_s,
            Mode::Independent => self.independent_s,
        }
    }
}

/// Chooses the mode of a call. `before` is the mode of the call before it on the same file: the
/// other one is chosen only where it takes less by [`MARGIN`], or where it is due to be tried, for
/// up to 2 % of the time. `None` as of [`times`].
///
/// All ranks of a call have to come to the same answer: they pass the same arguments, or one of
/// them decides for all. Safe from any thread; allocates nothing.
pub fn decide(
    call: &Call,
    network: &Network,
    device: &Device,
    correction: &Correction,
    before: Option<Mode>,
) -> Option<Decision> {
    let times = times(call, network, device)?;
    let expected_s = |mode: Mode| times.of(mode) * correction.factor(mode);
    let (collective_s, independent_s) =
        (expected_s(Mode::Collective), expected_s(Mode::Independent));
    let better = if independent_s < collective_s { Mode::Independent } else { Mode::Collective };
    let longer_s = expected_s(better.other()) - expected_s(better);
    let mode = match before {
        _ if correction.is_due(better.other(), longer_s) => better.other(),
        Some(mode) if expected_s(mode) <= expected_s(better) * (1.0 + MARGIN) => mode,
        _ => better,
    };
    Some(Decision { mode, times, collective_s, independent_s })
}

#[cfg(test)]
mod tests;
