//! Which blocks leave a tier.
//!
//! The default is S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are all you need for cache
//! eviction", SOSP 2023). A block that arrives is on probation. Probation is a FIFO queue of a
//! tenth of the tier: a block that reaches its end unused leaves, so a scan passes through that
//! tenth and displaces nothing else; one that was used twice goes to the main queue. There, one
//! that reaches the end unused leaves, and one that was used goes round again, at most three times.
//! A use only counts, up to a limit, and moves nothing: a hot block is not written to. One that
//! left not long ago and comes back (a *ghost*) skips probation.
//!
//! Queues are not linked lists: a block's place is its [`AccessStats`], that is the time when it
//! joined its queue and one bit for which, so there is nothing to repair after a crash.
//!
//! ```
//! use forebay_placement::evict::{Candidate, Eviction, choose};
//! use forebay_placement::hotness::AccessStats;
//!
//! // Two blocks that came at the same time; one was used since, again and again.
//! let now_ms = 60_000;
//! let once = AccessStats::arriving(0, false);
//! let often = once.counted().counted().in_main(true);
//! let candidate = |id, access_stats| Candidate { id, access_stats, ..Candidate::default() };
//! let mut blocks = [candidate(1, often), candidate(2, once)];
//! assert_eq!(choose(Eviction::S3Fifo, &mut blocks, 1, now_ms), 1);
//! assert_eq!(blocks[0].id, 2);
//! ```

use crate::Worth;
use crate::hotness::AccessStats;
use crate::random::mix;

/// Share of a tier that is for blocks on probation.
const PROBATION_SHARE: usize = 10;
/// Uses that lead from probation to the main queue.
const USES_TO_STAY: u32 = 2;
/// Most rounds that uses buy in the main queue.
const ROUNDS_MAX: u32 = 3;
/// Milliseconds after a block's arrival in which further uses belong to the one that brought it: a
/// program that reads a block in pieces uses it once.
const CORRELATED_MS: u32 = 512;

/// How victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// Those not used for the longest time.
    Lru,
    /// Those used least.
    Lfu,
    /// S3-FIFO, which resists scans.
    #[default]
    S3Fifo,
}

impl Eviction {
    /// All ways, the default last.
    pub const ALL: [Eviction; 3] = [Eviction::Lru, Eviction::Lfu, Eviction::S3Fifo];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Eviction::Lru => "lru",
            Eviction::Lfu => "lfu",
            Eviction::S3Fifo => "s3-fifo",
        }
    }

    /// The way of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// A block's access statistics after a use. Often the same: then nothing needs to be stored.
    pub fn used(self, access_stats: AccessStats, now_ms: u32) -> AccessStats {
        match self {
            Eviction::Lru | Eviction::Lfu => access_stats.counted().stamped(now_ms),
            Eviction::S3Fifo if access_stats.age_ms(now_ms) < CORRELATED_MS => access_stats,
            Eviction::S3Fifo => access_stats.counted(),
        }
    }
}

/// A block that might leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The caller's name for it.
    pub id: u32,
    /// What is known of its use. [`choose`] may change it; the caller stores what has changed.
    pub access_stats: AccessStats,
    /// It must not leave.
    pub pinned: bool,
    /// Blocks of lower priority leave first.
    pub priority: u8,
    /// Of those of one priority, blocks of files that are worth less.
    pub worth: Worth,
    /// Set by [`choose`]: it leaves.
    pub leaves: bool,
}

/// Chooses up to `want` victims among all blocks of a tier. They are first in `blocks` afterwards,
/// in the order in which they should leave; the result says how many they are, which is less than
/// `want` only if all others are pinned.
///
/// Sorts in place: n log n steps for n blocks, and no allocation.
pub fn choose(eviction: Eviction, blocks: &mut [Candidate], want: usize, now_ms: u32) -> usize {
    blocks.iter_mut().for_each(|block| block.leaves = false);
    let uses = |block: &Candidate| match eviction {
        Eviction::Lfu => block.access_stats.count(),
        Eviction::Lru | Eviction::S3Fifo => 0,
    };
    let rank = |block: &Candidate| (block.priority, block.worth);
    let queue = |block: &Candidate| eviction == Eviction::S3Fifo && block.access_stats.is_main();
    blocks.sort_unstable_by_key(|block| {
        let age = u32::MAX - block.access_stats.age_ms(now_ms);
        (block.pinned, rank(block), queue(block), uses(block), age, block.id)
    });
    let free_to_leave = blocks.partition_point(|block| !block.pinned);
    let mut left = want;
    for group in blocks[..free_to_leave].chunk_by_mut(|a, b| rank(a) == rank(b)) {
        if left == 0 {
            break;
        }
        left -= match eviction {
            Eviction::Lru | Eviction::Lfu => first(group, left),
            Eviction::S3Fifo => s3_fifo(group, left, now_ms),
        };
    }
    let victims = want - left;
    blocks.sort_by_key(|block| !block.leaves);
    victims
}

/// The first `want` that do not leave yet.
fn first(blocks: &mut [Candidate], want: usize) -> usize {
    let staying = blocks.iter_mut().filter(|block| !block.leaves);
    staying.take(want).map(|block| block.leaves = true).count()
}

/// The queues' ends, as often as it takes. `blocks`: probation and main queue, each oldest first.
fn s3_fifo(blocks: &mut [Candidate], want: usize, now_ms: u32) -> usize {
    let share = blocks.len() / PROBATION_SHARE;
    let (probation, main) =
        blocks.split_at_mut(blocks.partition_point(|b| !b.access_stats.is_main()));
    let (on_probation, on_main) = (probation.len(), main.len());
    let mut queue = probation.iter_mut();
    let (mut passed, mut victims, mut main_left) = (0, 0, on_main);
    let mut end = 0;
    while victims < want {
        if on_probation - passed > share || main_left == 0 {
            let Some(block) = queue.next() else { break };
            passed += 1;
            if block.access_stats.count() >= USES_TO_STAY {
                block.access_stats = block.access_stats.in_main(true).with_count(0).stamped(now_ms);
            } else {
                block.leaves = true;
                victims += 1;
            }
            continue;
        }
        let block = &mut main[end % on_main];
        end += 1;
        match block.access_stats.count() {
            _ if block.leaves => {}
            0 => {
                block.leaves = true;
                victims += 1;
                main_left -= 1;
            }
            uses => {
                let rounds = uses.min(ROUNDS_MAX) - 1;
                block.access_stats = block.access_stats.with_count(rounds).stamped(now_ms);
            }
        }
    }
    // What has just gone from probation to the main queue, when there is nothing else.
    victims + first(blocks, want - victims)
}

/// Blocks that left not long ago: the ghost queue of S3-FIFO, as a table of fingerprints. One that
/// is forgotten too early only costs a second probation.
#[derive(Debug)]
pub struct Ghosts {
    /// Fingerprint, and the number of the departure; 0 is empty.
    table: Box<[(u32, u32)]>,
    departures: u32,
    window: u32,
}

impl Ghosts {
    /// Remembers about the last `blocks` departures, usually as many as the tier has blocks: 16
    /// bytes for each, allocated now.
    pub fn new(blocks: usize) -> Self {
        let places = (2 * blocks).next_power_of_two();
        let window = u32::try_from(blocks).unwrap_or(u32::MAX);
        Self { table: vec![(0, 0); places].into_boxed_slice(), departures: 0, window }
    }

    /// A block has left.
    pub fn left(&mut self, file: u64, block: u64) {
        let (place, fingerprint) = self.place(file, block);
        self.departures = self.departures.wrapping_add(1).max(1);
        self.table[place] = (fingerprint, self.departures);
    }

    /// Whether a block that arrives has left not long ago.
    pub fn remembers(&self, file: u64, block: u64) -> bool {
        let (place, fingerprint) = self.place(file, block);
        let (found, departure) = self.table[place];
        departure != 0
            && found == fingerprint
            && self.departures.wrapping_sub(departure) < self.window
    }

    fn place(&self, file: u64, block: u64) -> (usize, u32) {
        let hash = mix(mix(file) ^ block);
        (hash as usize & (self.table.len() - 1), (hash >> 32) as u32)
    }
}
