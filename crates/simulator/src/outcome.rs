//! What came out of a run.

/// Times in seconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Time an average rank spent writing, with the wait for the slowest at the barrier behind.
    pub write_s: f64,
    /// Time an average rank spent reading, with the wait for the slowest.
    pub read_s: f64,
    /// Time an average rank spent opening files, with the wait for the slowest.
    pub open_s: f64,
    /// Time from the end of the last rank until nothing was left to flush: what was not hidden.
    pub flush_s: f64,
    /// When the last rank ended.
    pub ranks_end_s: f64,
    /// When everything had ended.
    pub end_s: f64,
    /// Bytes that writes acknowledged.
    pub written: u64,
    /// Bytes that reads returned.
    pub read: u64,
    /// Bytes that are on the store: written directly, or flushed.
    pub safe: u64,
    /// Bytes that a later write replaced before they were flushed.
    pub replaced: u64,
    /// Bytes in the tiers that the store does not have: scratch data, or what could not be flushed.
    pub kept: u64,
    /// Acknowledged bytes that were lost with a device or a node before they were flushed.
    pub lost: u64,
    /// Files of which something was lost.
    pub lost_files: Vec<u32>,
    /// Bytes of reads that failed, because what they wanted was lost.
    pub unreadable: u64,
    /// Bytes that ranks wrote straight to the store.
    pub direct: u64,
    /// For each tier of the strategy, fastest first.
    pub tiers: Vec<TierOutcome>,
    /// Bytes that moved between each pair of tiers, of a replayed run: whole blocks between tiers,
    /// what was dirty to the store.
    pub moved: Vec<Moved>,
    /// Bytes that flushes wrote to the store, twice if a block was.
    pub flushed: u64,
    /// Seconds that an average server of the store was busy.
    pub store_busy_s: f64,
    /// Requests that the placement policy decided.
    pub plans: u64,
    /// Of those, decisions that were remembered.
    pub remembered: u64,
    /// Moments at which something happened.
    pub moments: u64,
    /// Why the run could not go on, if it could not: all transfers left have no bandwidth.
    pub stalled: bool,
}

/// What came of one tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierOutcome {
    /// Its name.
    pub name: String,
    /// Bytes that ranks wrote to it.
    pub written: u64,
    /// Bytes that ranks read from it.
    pub read: u64,
    /// Bytes that left it for a tier below.
    pub demoted: u64,
    /// Bytes that came to it from below.
    pub promoted: u64,
    /// Clean bytes that were dropped.
    pub evicted: u64,
    /// The most that one node had in it at any moment.
    pub peak: u64,
    /// What one node may have in it.
    pub capacity: u64,
}

/// Bytes that moved from one tier to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The tier's position in the hierarchy.
    pub from: usize,
    /// The other's; `None` is the store.
    pub to: Option<usize>,
    /// How many.
    pub bytes: u64,
}

impl Outcome {
    pub(crate) fn moved(&mut self, from: usize, to: Option<usize>, bytes: u64) {
        match self.moved.iter_mut().find(|moved| (moved.from, moved.to) == (from, to)) {
            Some(moved) => moved.bytes += bytes,
            None => self.moved.push(Moved { from, to, bytes }),
        }
    }

    /// Time that an average rank spent in all of its I/O.
    pub fn io_s(&self) -> f64 {
        self.write_s + self.read_s + self.open_s
    }

    /// I/O and flush, as the paper's bars have it.
    pub fn total_s(&self) -> f64 {
        self.io_s() + self.flush_s
    }
}
