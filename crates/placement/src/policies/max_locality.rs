//! MaxLocality, equation 2 of Hermes' appendix: the least time, weighted by how many tiers a unit
//! is spread over.

use super::Policy;
use super::max_bandwidth::{moving, places, writing};
use crate::cost::{Model, Speeds};
use crate::solve::{Rate, solve};
use crate::{Hierarchy, Plan, Request, TIERS_MAX};

/// Keeps each file in as few tiers as it can, and gives no file more of a tier than its threshold.
pub(super) struct MaxLocality;

impl Policy for MaxLocality {
    fn name(&self) -> &'static str {
        "max-locality"
    }

    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        let speeds = Speeds::of(hierarchy);
        let model = hierarchy.costs.model;
        let tiers = hierarchy.len();
        let placed = request.dispersion & mask(tiers);
        let degree = f64::from(placed.count_ones());
        let weight = |place: usize| match place < tiers && placed >> place & 1 == 1 {
            true => degree,
            false => degree + 1.0,
        };
        let mut places = places(hierarchy, |place| {
            let pace = &speeds.paces()[place];
            match model {
                Model::Physical => writing(model, pace).times(weight(place)),
                Model::Paper => Rate { fixed: 0.0, byte: pace.write_ns * weight(place) },
            }
        });
        let thresholds = thresholds(hierarchy, request);
        for (index, tier) in hierarchy.tiers().iter().enumerate() {
            let room = places[index].room.min(thresholds[index]);
            // ReOrganize keeps a unit together as long as the tier may have so much of one: what
            // is above the threshold goes on to the next tier, and moves nothing.
            let movable = tier.movable().min(thresholds[index] - room);
            (places[index].room, places[index].movable) = (room, movable);
        }
        // Not hidden, unlike Move: a writer waits for what it makes others give up.
        solve(request.bytes, &places[..=tiers], |from, to| match model {
            Model::Physical => moving(model, &speeds, from, to),
            Model::Paper => Rate { fixed: 0.0, byte: speeds.paces()[to].write_ns },
        })
    }

    fn class(&self, request: &Request) -> Request {
        Request {
            bytes: request.bytes,
            file_bytes: request.file_bytes,
            dispersion: request.dispersion,
            priority: request.priority,
            ..Request::default()
        }
    }

    /// "Without any data movement between layers" (section 4.2.1).
    fn moves_down(&self) -> bool {
        false
    }

    fn compares_hotness(&self) -> bool {
        false
    }
}

fn mask(tiers: usize) -> u8 {
    ((1_u16 << tiers) - 1) as u8
}

/// R of each tier: how much more of the request's unit it takes.
///
/// A tier's threshold is its capacity times the share of the whole hierarchy that lies in it and
/// above it: 1/81, 17/81 and 81/81 for capacities 1 : 16 : 64. A priority raises it towards the
/// whole capacity. What a unit has in a tier is not recorded; it is taken to have filled the tiers
/// that hold some of it from the top.
fn thresholds(hierarchy: &Hierarchy, request: &Request) -> [u64; TIERS_MAX] {
    let total: f64 = hierarchy.tiers().iter().map(|tier| tier.capacity as f64).sum();
    let mut left = [0; TIERS_MAX];
    let (mut above, mut unit) = (0.0, request.file_bytes);
    for (index, tier) in hierarchy.tiers().iter().enumerate() {
        let capacity = tier.capacity as f64;
        above += capacity;
        let share = if total > 0.0 { above / total } else { 1.0 };
        let share = share + (1.0 - share) * f64::from(request.priority) / 255.0;
        let threshold = (capacity * share).round() as u64;
        let held = if request.dispersion >> index & 1 == 1 { unit.min(threshold) } else { 0 };
        unit -= held;
        left[index] = threshold - held;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierSnapshot;

    fn hierarchy() -> Hierarchy {
        let tier =
            |gb: u64| TierSnapshot { capacity: gb << 30, free: gb << 30, ..Default::default() };
        Hierarchy::new(&[tier(32), tier(512), tier(2048)]).unwrap()
    }

    #[test]
    fn thresholds_follow_the_ratio_of_capacities() {
        let left = thresholds(&hierarchy(), &Request::default());
        let gib = |number: f64| (number * f64::from(1 << 30)).round() as u64;
        assert_eq!(left[0], gib(32.0 / 81.0));
        assert_eq!(left[1], gib(512.0 * 17.0 / 81.0));
        assert_eq!(left[2], 2048 << 30, "the last tier takes what the others do not");
    }

    #[test]
    fn priority_lifts_the_threshold() {
        let usual = thresholds(&hierarchy(), &Request::default())[0];
        let request = Request { priority: 128, ..Request::default() };
        assert!(thresholds(&hierarchy(), &request)[0] > 16 << 30);
        let request = Request { priority: 255, ..Request::default() };
        assert_eq!(thresholds(&hierarchy(), &request)[0], 32 << 30);
        assert!(usual < 1 << 30);
    }

    /// A file larger than what a tier may have of one is divided over all, and nothing moves for
    /// it; a small one that was begun in a tier stays there though that has become full.
    #[test]
    fn only_what_a_tier_may_have_of_a_unit_makes_others_move() {
        let mut full = hierarchy();
        full.tiers_mut().iter_mut().zip([80, 19, 4]).for_each(|(tier, ns)| {
            (tier.write_bandwidth, tier.read_bandwidth) = (ns * 100_000_000, ns * 100_000_000);
        });
        full.tiers_mut()[0].free = 0;
        let request = |file_bytes| Request {
            bytes: 1 << 20,
            file_bytes,
            dispersion: 1,
            ..Request::default()
        };
        let plan = |request| {
            let plan = MaxLocality.plan(&full, &request);
            (plan.first(), plan.pieces()[0].room)
        };
        assert_eq!(plan(request(1 << 20)), (crate::Destination::Tier(0), 1 << 20));
        assert_eq!(plan(request(1 << 30)), (crate::Destination::Tier(1), 0));
    }

    #[test]
    fn a_unit_uses_up_its_threshold_from_the_top() {
        let request = Request { file_bytes: 1 << 30, dispersion: 0b11, ..Request::default() };
        let fresh = thresholds(&hierarchy(), &Request::default());
        let left = thresholds(&hierarchy(), &request);
        assert_eq!(left[0], 0);
        assert_eq!(fresh[1] - left[1], (1 << 30) - fresh[0]);
    }
}
