//! The data organizer's decision to make room: how many bytes, and where they go.

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
    /// Writers have waited for room lately.
    pub is_pressed: bool,
    /// Bytes that plans want to be free, as [`in_turns`] has it.
    pub planned: u64,
}

/// Of `planned` bytes that plans want to be free on a tier, what is made room for at once: in
/// turns, what leaves first is chosen anew while more is written.
pub fn in_turns(tier: &TierSnapshot, planned: u64, unit: u64) -> u64 {
    planned.min(tier.free.saturating_add((tier.capacity / TURNS).max(unit)))
}

/// Bytes that are to be free on a tier for those that press: what plans want, one bucket for a
/// writer that has found none, and where writers wait, who come in bursts, all the room that may be
/// kept.
///
/// ```
/// use forebay_placement::room::{Pressure, in_turns, wanted};
/// use forebay_placement::{TierSnapshot, Watermarks};
///
/// let tier = TierSnapshot { capacity: 100, free: 2, ..TierSnapshot::default() };
/// let wanted = |pressure| wanted(&tier, Watermarks::default(), pressure, 1);
/// assert_eq!(wanted(Pressure::default()), 0);
/// assert_eq!(wanted(Pressure { asked: true, ..Pressure::default() }), 1);
/// assert_eq!(wanted(Pressure { is_pressed: true, ..Pressure::default() }), 25);
/// let planned = in_turns(&tier, 90, 1);
/// assert_eq!(wanted(Pressure { planned, ..Pressure::default() }), 27);
/// ```
pub fn wanted(tier: &TierSnapshot, marks: Watermarks, pressure: Pressure, unit: u64) -> u64 {
    let unit = unit.max(1);
    let high = (tier.capacity as f64 * marks.high.clamp(0.0, 1.0)) as u64;
    let asked = if pressure.asked { unit } else { 0 };
    let pressed = if pressure.is_pressed { high / unit * unit } else { 0 };
    pressure.planned.max(asked).max(pressed)
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
