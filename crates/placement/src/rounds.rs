//! When the workers of a node manager look, and what is due then (Hermes section 3.1.2: the data
//! organizer acts on capacity, time, requests and accesses). All times are milliseconds.
//!
//! ```
//! use forebay_placement::rounds::Ages;
//! use forebay_placement::schema::Trigger;
//!
//! let ages = Ages { period_ms: 100, max_age_ms: 8_000 };
//! assert!(ages.is_due(Trigger::Periodic, false, 100, 100));
//! assert!(!ages.is_due(Trigger::Periodic, false, 99, 99));
//! // What is written all the time goes all the same, with the last look before it is too old.
//! assert!(ages.is_due(Trigger::Periodic, false, 0, 7_900));
//! assert!(!ages.is_due(Trigger::OnExit, false, 9_000, 9_000));
//! assert!(ages.is_due(Trigger::OnExit, true, 0, 0), "a drain takes everything");
//! ```

use crate::schema::Trigger;

/// How often a demoter looks that was not woken.
pub const LOOK_MS: u64 = 500;
/// The same while writers wait now and then.
pub const LOOK_PRESSED_MS: u64 = 50;
/// For how long a writer that waited may wait still, and a demoter counts on that.
pub const WAIT_MAX_MS: u64 = 5_000;
/// How often a placer looks at what is not ripe, or has no room yet.
pub const PLACER_LOOK_MS: u64 = 50;
/// How often in a row a placer finds no room before blocks go to another tier.
pub const PLACER_PATIENCE: u32 = 2;
/// For how long the promoter rests after a look at blocks that were used: what becomes hot
/// meanwhile goes up together, hottest first.
pub const PROMOTER_REST_MS: u64 = 100;
/// How long the promoter waits at most to look again for what it had to leave below, after a few
/// looks and after many: see [`promoter_patience_ms`].
const PROMOTER_PATIENCE_MS: u64 = 500;
const PROMOTER_PATIENCE_MAX_MS: u64 = 10_000;
/// How often a drain looks for what has become due.
pub const DRAIN_LOOK_MS: u64 = 20;
/// A block that was not written in full leaves RAM when nothing was written to it for so long:
/// later writes to it would have to wait for the tier's device.
pub const RIPE_MS: u64 = 500;
/// The longest period of flushes.
const PERIOD_MAX_MS: u64 = 60_000;

/// Whether a block in RAM that is bound for a lower tier goes there now: it is written in full, or
/// was not written for `ripe_ms` ([`RIPE_MS`], in the caller's time), or RAM `is_short` of room.
pub fn is_ripe(is_full: bool, is_short: bool, age_ms: u64, ripe_ms: u64) -> bool {
    is_full || is_short || age_ms >= ripe_ms
}

/// How long after a look the promoter looks again where it had to leave hot blocks below, as there
/// was nothing above that they could be exchanged for at that moment: no use of theirs may tell it
/// any more, because counts of uses end at seven. Twice as long each time, from
/// [`PROMOTER_REST_MS`] to half a second, and then a tenth longer, to 10 s after half a minute or
/// more: it may stay so. `before_ms` is the last such wait, 0 if something moved since.
pub fn promoter_patience_ms(before_ms: u64) -> u64 {
    match before_ms {
        PROMOTER_PATIENCE_MS.. => (before_ms + before_ms / 10).min(PROMOTER_PATIENCE_MAX_MS),
        _ => (2 * before_ms).clamp(PROMOTER_REST_MS, PROMOTER_PATIENCE_MS),
    }
}

/// Passes of a sync over its file's blocks, on a node of so many tiers. What was dirty before is
/// flushed in the first, unless its block moved meanwhile, which it can do once for each tier. A
/// file that is written all the time is not waited for.
pub fn sync_passes(tiers: usize) -> usize {
    2 + tiers
}

/// When dirty blocks are flushed in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// For how long a block must not have been written, where flushes are periodic.
    pub period_ms: u64,
    /// For how long a block may be dirty at most.
    pub max_age_ms: u64,
}

impl Ages {
    /// As configured.
    pub fn new(period_ms: u128, max_age_ms: u128) -> Self {
        let period_ms = period_ms.clamp(1, PERIOD_MAX_MS.into()) as u64;
        Self { period_ms, max_age_ms: max_age_ms.min(u32::MAX.into()) as u64 }
    }

    /// Between two looks of a flusher at what is due.
    pub fn pause_ms(&self) -> u64 {
        self.period_ms.min(self.max_age_ms / 4).max(1)
    }

    /// How long after its last write a block is flushed whose file has this trigger; `None` if only
    /// on demand. Of a drain nothing is too young.
    pub fn after_ms(&self, trigger: Trigger, is_drain: bool) -> Option<u64> {
        match trigger {
            _ if is_drain => Some(0),
            Trigger::PerOperation => Some(0),
            Trigger::Periodic => Some(self.period_ms),
            Trigger::PerFile | Trigger::OnExit => None,
        }
    }

    /// Whether a dirty block is to be flushed now that was last written `age_ms` ago, and is dirty
    /// for `dirty_ms`. What would be too old at the next look goes now.
    pub fn is_due(&self, trigger: Trigger, is_drain: bool, age_ms: u64, dirty_ms: u64) -> bool {
        let oldest_ms = self.max_age_ms.saturating_sub(self.pause_ms());
        let after_ms = self.after_ms(trigger, is_drain);
        after_ms.is_some_and(|after_ms| age_ms >= after_ms || dirty_ms >= oldest_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_ram_full_or_after_a_while() {
        let is_ripe = |is_full, is_short, age_ms| is_ripe(is_full, is_short, age_ms, RIPE_MS);
        assert!(is_ripe(true, false, 0) && is_ripe(false, true, 0));
        assert!(is_ripe(false, false, RIPE_MS) && !is_ripe(false, false, RIPE_MS - 1));
    }

    #[test]
    fn a_promoter_that_finds_nothing_to_exchange_looks_less_and_less_often() {
        let waits = std::iter::successors(Some(promoter_patience_ms(0)), |&wait| {
            Some(promoter_patience_ms(wait))
        });
        let waits: Vec<_> = waits.take(60).collect();
        assert_eq!(waits[..6], [100, 200, 400, 500, 550, 605]);
        assert_eq!(waits[59], 10_000);
        assert!(waits[..10].iter().sum::<u64>() < 6_000, "it may be for a moment only: {waits:?}");
    }

    #[test]
    fn a_pause_is_long_enough_for_the_oldest() {
        for (period, max_age, pause) in [(1000, 30_000, 1000), (1000, 2000, 500), (0, 0, 1)] {
            let ages = Ages::new(period, max_age);
            assert_eq!(ages.pause_ms(), pause, "{ages:?}");
        }
        assert_eq!(Ages::new(1 << 40, 1 << 60).period_ms, PERIOD_MAX_MS);
    }

    #[test]
    fn triggers_say_how_old_a_block_must_be() {
        let ages = Ages::new(100, 10_000);
        let after = |trigger| [false, true].map(|is_drain| ages.after_ms(trigger, is_drain));
        assert_eq!(after(Trigger::PerOperation), [Some(0), Some(0)]);
        assert_eq!(after(Trigger::Periodic), [Some(100), Some(0)]);
        assert_eq!(after(Trigger::PerFile), [None, Some(0)]);
        assert_eq!(after(Trigger::OnExit), [None, Some(0)]);
    }
}
