//! The data organizer's decision to make room: how many bytes, and where they go.

use crate::rounds::WAIT_MAX_MS;
use crate::{Hierarchy, TierSnapshot};

/// Fractions of a tier's capacity that steer how much of it is kept free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermarks {
    /// Room is made when less than this is free.
    pub low: f64,
    /// Room is made until this is free.
    pub high: f64,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { low: 0.10, high: 0.25 }
    }
}

/// Where bytes go that leave a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The tier at this position of the hierarchy.
    Tier(usize),
    /// The backing store.
    Store,
}

/// Bytes to free in a tier so that its watermarks hold and `wanted` bytes of waiting writers fit.
///
/// A whole number of `unit`s (the bucket size in bytes), but never more than what is occupied. Both
/// watermarks are at least one unit, so that a tier of a few buckets does not wait until it is
/// full.
pub fn room_needed(snapshot: TierSnapshot, marks: Watermarks, wanted: u64, unit: u64) -> u64 {
    let TierSnapshot { capacity, free, .. } = snapshot;
    let unit = unit.max(1);
    let low = watermark(capacity, marks.low, unit);
    let high = watermark(capacity, marks.high, unit).max(low);
    if free >= low && free >= wanted {
        return 0;
    }
    let missing = high.max(wanted).saturating_sub(free);
    round_up(missing, unit).min(capacity.saturating_sub(free))
}

/// The least number of turns in which a tier is emptied that plans want to be empty.
const TURNS: u64 = 4;

/// What presses for room on a tier, besides its watermarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Room was asked for since the last look.
    pub asked: bool,
    /// Bytes that are kept free because writers have waited for room lately, see [`Headroom`].
    pub headroom: Option<u64>,
    /// Bytes that plans want to be free, as [`in_turns`] has it.
    pub planned: u64,
}

/// Of `planned` bytes that plans want to be free on a tier, what is made room for at once: in
/// turns, what leaves first is chosen anew while more is written.
pub fn in_turns(tier: &TierSnapshot, planned: u64, unit: u64) -> u64 {
    planned.min(tier.free.saturating_add((tier.capacity / TURNS).max(unit)))
}

/// How often writers have begun to wait for room so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// All of them.
    pub all: u64,
    /// Those of them for room in the quota of their run, who have no use of more in the tier.
    pub for_quotas: u64,
}

impl Waits {
    fn for_room(self) -> u64 {
        self.all.saturating_sub(self.for_quotas)
    }
}

/// The room that a tier keeps for writers that come in bursts: as much as the high watermark says,
/// and where they wait all the same, twice as much the next time, up to three quarters of the tier.
/// So what a program computes between two writes is the time in which the tier below takes the
/// last one, whatever its size.
///
/// ```
/// use forebay_placement::room::{Headroom, Waits, Watermarks};
/// use forebay_placement::TierSnapshot;
///
/// let mut headroom = Headroom::default();
/// let mut look = |now_ms, all, free| {
///     let waits = Waits { all, ..Waits::default() };
///     let tier = TierSnapshot { capacity: 100, free, ..TierSnapshot::default() };
///     headroom.look(now_ms, waits, true, &tier, Watermarks::default(), 1)
/// };
/// assert_eq!(look(0, 0, 0), None, "no writer has waited");
/// assert_eq!(look(10, 1, 0), Some(25));
/// assert_eq!(look(20, 3, 10), Some(25), "there was less than that: more would not have helped");
/// assert_eq!(look(30, 3, 25), Some(25));
/// assert_eq!(look(40, 4, 0), Some(50), "a writer has found 25, and has waited");
/// assert_eq!(look(5_050, 4, 50), None, "none comes any more");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headroom {
    /// Waits of writers that have been seen.
    waits: Waits,
    /// When a writer last waited, or took more than the high watermark.
    used_at_ms: Option<u64>,
    bytes: u64,
    kept: u64,
    /// Nearly so much was free since it was last enlarged.
    is_reached: bool,
    /// So much was free since a writer last took more than the high watermark.
    is_full: bool,
}

impl Headroom {
    /// Bytes that are to be free, as of a look at the tier at `now_ms`; `None` if no writer has
    /// waited within the last [`WAIT_MAX_MS`]. `moves_down`: what leaves goes to another tier; what
    /// would go to the store leaves the readers without it, so no more than the watermark is kept
    /// free then.
    pub fn look(
        &mut self,
        now_ms: u64,
        waits: Waits,
        moves_down: bool,
        tier: &TierSnapshot,
        marks: Watermarks,
        unit: u64,
    ) -> Option<u64> {
        let unit = unit.max(1);
        let share = |of: f64| (tier.capacity as f64 * of.clamp(0.0, 1.0)) as u64 / unit * unit;
        let high = share(marks.high);
        let most = if moves_down { share(HEADROOM_MAX).max(high) } else { high };
        // A count that is summed up while it changes may be too small for a moment.
        let before = self.waits;
        self.waits = Waits {
            all: waits.all.max(before.all),
            for_quotas: waits.for_quotas.max(before.for_quotas),
        };
        let has_waited = self.waits.all > before.all;
        if self.waits.for_room() > before.for_room() && self.is_reached {
            (self.bytes, self.is_reached) = (self.bytes.saturating_mul(2), false);
        }
        self.bytes = self.bytes.clamp(high, most);
        let takes_more = self.is_full && tier.free <= self.bytes - high && self.bytes > high;
        let is_full = tier.free >= self.bytes;
        // Nearly so much is enough: a device that is just fast enough never gets there.
        self.is_reached |= tier.free >= self.bytes / 4 * 3;
        self.is_full = is_full || self.is_full && !takes_more;
        if has_waited || takes_more {
            self.used_at_ms = Some(now_ms);
        }
        let is_pressed = |at_ms: &u64| now_ms.saturating_sub(*at_ms) < WAIT_MAX_MS;
        if self.used_at_ms.as_ref().is_some_and(is_pressed) {
            self.kept = self.bytes - high;
            return Some(self.bytes);
        }
        *self = Headroom { waits: self.waits, ..Headroom::default() };
        None
    }
}

impl Headroom {
    /// Writers have waited for room lately, as of the last look.
    pub fn is_pressed(&self) -> bool {
        self.used_at_ms.is_some()
    }

    /// Bytes beyond the high watermark that the last look has said are kept free: for
    /// [`TierSnapshot::kept`].
    pub fn kept(&self) -> u64 {
        self.kept
    }
}

/// The most of a tier that is kept free for bursts of writers.
const HEADROOM_MAX: f64 = 0.75;

/// Bytes that are to be free on a tier for those that press: what plans want, one bucket for a
/// writer that has found none, and where writers wait, who come in bursts, what is kept for them.
///
/// ```
/// use forebay_placement::TierSnapshot;
/// use forebay_placement::room::{Pressure, in_turns, wanted};
///
/// let tier = TierSnapshot { capacity: 100, free: 2, ..TierSnapshot::default() };
/// let wanted = |pressure| wanted(pressure, 1);
/// assert_eq!(wanted(Pressure::default()), 0);
/// assert_eq!(wanted(Pressure { asked: true, ..Pressure::default() }), 1);
/// assert_eq!(wanted(Pressure { headroom: Some(25), ..Pressure::default() }), 25);
/// let planned = in_turns(&tier, 90, 1);
/// assert_eq!(wanted(Pressure { planned, ..Pressure::default() }), 27);
/// ```
pub fn wanted(pressure: Pressure, unit: u64) -> u64 {
    let asked = if pressure.asked { unit.max(1) } else { 0 };
    pressure.planned.max(asked).max(pressure.headroom.unwrap_or(0))
}

/// Bytes that can be taken of a tier for what nothing is to leave it for: [`room_needed`] still
/// asks for nothing then. A whole number of `unit`s.
///
/// ```
/// use forebay_placement::room::{room_needed, room_to_spare};
/// use forebay_placement::{TierSnapshot, Watermarks};
///
/// // A tenth of 16 buckets of 4 bytes is two of them.
/// let mut tier = TierSnapshot { capacity: 64, free: 28, ..TierSnapshot::default() };
/// assert_eq!(room_to_spare(&tier, Watermarks::default(), 4), 20);
/// tier.free -= 20;
/// assert_eq!(room_needed(tier, Watermarks::default(), 0, 4), 0);
/// tier.free -= 4;
/// assert!(room_needed(tier, Watermarks::default(), 0, 4) > 0);
/// ```
pub fn room_to_spare(tier: &TierSnapshot, marks: Watermarks, unit: u64) -> u64 {
    let unit = unit.max(1);
    tier.free.saturating_sub(watermark(tier.capacity, marks.low, unit)) / unit * unit
}

/// The first tier below `from` that has `bytes` free, else the backing store.
pub fn destination(hierarchy: &Hierarchy, from: usize, bytes: u64) -> Destination {
    let mut below = hierarchy.tiers().iter().enumerate().skip(from.saturating_add(1));
    below
        .find(|(_, tier)| tier.free >= bytes)
        .map_or(Destination::Store, |(index, _)| Destination::Tier(index))
}

/// Bytes of a fraction of the capacity: whole units, at least one, at most the capacity.
fn watermark(capacity: u64, fraction: f64, unit: u64) -> u64 {
    let bytes = (capacity as f64 * fraction.clamp(0.0, 1.0)) as u64;
    round_up(bytes.max(1), unit).min(capacity)
}

fn round_up(bytes: u64, unit: u64) -> u64 {
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn tier(capacity: u64, free: u64) -> TierSnapshot {
        TierSnapshot { capacity, free, ..Default::default() }
    }

    #[test]
    fn waits_for_the_low_mark_and_then_goes_to_the_high_one() {
        let marks = Watermarks::default();
        assert_eq!(room_needed(tier(100 * MIB, 10 * MIB), marks, 0, MIB), 0);
        assert_eq!(room_needed(tier(100 * MIB, 9 * MIB), marks, 0, MIB), 16 * MIB);
        assert_eq!(room_needed(tier(100 * MIB, 0), marks, 0, MIB), 25 * MIB);
    }

    #[test]
    fn waiting_writers_are_served_above_the_marks() {
        let marks = Watermarks::default();
        assert_eq!(room_needed(tier(100 * MIB, 30 * MIB), marks, 30 * MIB, MIB), 0);
        assert_eq!(room_needed(tier(100 * MIB, 30 * MIB), marks, 40 * MIB, MIB), 10 * MIB);
        assert_eq!(room_needed(tier(100 * MIB, 30 * MIB), marks, u64::MAX, MIB), 70 * MIB);
    }

    #[test]
    fn a_tier_of_one_bucket_is_emptied_when_full() {
        assert_eq!(room_needed(tier(MIB, 0), Watermarks::default(), 0, MIB), MIB);
        assert_eq!(room_needed(tier(MIB, MIB), Watermarks::default(), 0, MIB), 0);
    }

    /// Every tier of up to 24 bytes, at every level, with sensible and senseless marks.
    #[test]
    fn holds_its_promises_for_every_small_tier() {
        let fractions = [f64::NAN, -1.0, 0.0, 0.1, 0.25, 0.9, 1.0, 7.0];
        for unit in 0..5 {
            for capacity in 0..=24 {
                for (free, wanted) in
                    (0..=capacity).flat_map(|f| (0..=capacity + 2).map(move |w| (f, w)))
                {
                    for (low, high) in fractions.iter().flat_map(|l| fractions.map(|h| (*l, h))) {
                        let marks = Watermarks { low, high };
                        check(tier(capacity, free), marks, wanted, unit);
                    }
                }
            }
        }
    }

    fn check(snapshot: TierSnapshot, marks: Watermarks, wanted: u64, unit: u64) {
        let room = room_needed(snapshot, marks, wanted, unit);
        let free = snapshot.free + room;
        let context = format!("{snapshot:?} {marks:?} wanted {wanted} unit {unit} -> {room}");
        assert!(free <= snapshot.capacity, "more than there is: {context}");
        assert!(free >= wanted.min(snapshot.capacity), "writers still wait: {context}");
        assert!(free >= unit.min(snapshot.capacity), "not one unit free: {context}");
        let low = (snapshot.capacity as f64 * marks.low.clamp(0.0, 1.0)) as u64;
        assert!(free >= low, "below the low mark: {context}");
        assert!(
            room.is_multiple_of(unit.max(1)) || free == snapshot.capacity,
            "part of a unit: {context}"
        );
        let after = TierSnapshot { free, ..snapshot };
        assert_eq!(room_needed(after, marks, wanted, unit), 0, "not settled: {context}");
    }

    #[test]
    fn nothing_overflows() {
        let marks = Watermarks { low: 1.0, high: 1.0 };
        assert_eq!(room_needed(tier(u64::MAX, 0), marks, u64::MAX, u64::MAX - 1), u64::MAX);
        assert_eq!(room_needed(tier(1, 2), marks, u64::MAX, 1), 0, "more free than there is");
    }

    /// Bursts of any size, with pauses in which the tier below keeps up: after a few of them no
    /// writer waits any more, where three quarters of the tier are enough.
    #[test]
    fn writers_in_bursts_soon_find_enough_room() {
        let marks = Watermarks::default();
        for capacity in [4_u64, 16, 100, 1000] {
            for burst in 1..=capacity * 3 / 4 {
                let (mut headroom, mut free, mut waits, mut now_ms) =
                    (Headroom::default(), 0, 0, 0);
                let mut waited_last = None;
                for round in 0..40 {
                    let missing = burst.saturating_sub(free);
                    if missing > 0 {
                        waits += 1;
                        waited_last = Some(round);
                    }
                    free = free.saturating_sub(burst);
                    // The demoter looks when it is woken, and again when it has made room.
                    for _ in 0..2 {
                        now_ms += 1;
                        let seen = tier(capacity, free);
                        let waits = Waits { all: waits, for_quotas: 0 };
                        let kept = headroom.look(now_ms, waits, true, &seen, marks, 1);
                        assert!(kept.is_none_or(|kept| kept <= capacity * 3 / 4), "{kept:?}");
                        free += room_needed(seen, marks, kept.unwrap_or(0), 1);
                    }
                }
                assert!(
                    waited_last.is_none_or(|last| last < 6),
                    "{capacity} {burst}: {waited_last:?}"
                );
            }
        }
    }

    #[test]
    fn where_the_store_is_next_no_more_than_the_watermark_is_kept() {
        let (mut headroom, marks) = (Headroom::default(), Watermarks::default());
        let waits = |all, for_quotas| Waits { all, for_quotas };
        for all in 1..50 {
            let kept = headroom.look(all, waits(all, 0), false, &tier(100, 25), marks, 1);
            assert_eq!((kept, headroom.kept()), (Some(25), 0));
        }
        let kept = headroom.look(50, waits(50, 1), true, &tier(100, 25), marks, 1);
        assert_eq!((kept, headroom.kept()), (Some(25), 0), "it waits for its quota");
        let kept = headroom.look(51, waits(51, 1), true, &tier(100, 25), marks, 1);
        assert_eq!((kept, headroom.kept()), (Some(50), 25), "there is another tier now");
    }

    /// All hierarchies of up to three tiers with 0, 1 or 2 bytes free.
    #[test]
    fn goes_to_the_first_lower_tier_that_has_the_space() {
        for len in 0..=3_usize {
            for code in 0..3_u64.pow(len as u32) {
                let tiers: Vec<_> =
                    (0..len).map(|n| tier(2, code / 3_u64.pow(n as u32) % 3)).collect();
                let hierarchy = Hierarchy::new(&tiers).unwrap();
                for (from, bytes) in (0..=3).flat_map(|f| (0..=3).map(move |b| (f, b))) {
                    match destination(&hierarchy, from, bytes) {
                        Destination::Tier(to) => {
                            assert!(to > from && tiers[to].free >= bytes);
                            assert!(tiers[from + 1..to].iter().all(|t| t.free < bytes));
                        }
                        Destination::Store => {
                            assert!(tiers.iter().skip(from + 1).all(|t| t.free < bytes));
                        }
                    }
                }
            }
        }
        let one = Hierarchy::new(&[tier(2, 2)]).unwrap();
        assert_eq!(destination(&one, usize::MAX, 0), Destination::Store);
    }
}
