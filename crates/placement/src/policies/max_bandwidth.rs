//! MaxBandwidth, equation 1 of Hermes' appendix: the least time to have written the request.

use super::Policy;
use crate::cost::{Model, PLACES_MAX, Pace, Speeds};
use crate::solve::{Place, Places, Rate, solve};
use crate::{Hierarchy, Plan, Request};

/// Nanoseconds in the millisecond in which the appendix gives latencies.
const MS: f64 = 1e6;

/// Puts data in the highest tier, balancing bandwidth, latency and room.
pub(super) struct MaxBandwidth;

impl Policy for MaxBandwidth {
    fn name(&self) -> &'static str {
        "max-bandwidth"
    }

    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        let speeds = Speeds::of(hierarchy);
        let model = hierarchy.costs.model;
        let places = places(hierarchy, |place| writing(model, &speeds.paces()[place]));
        let exposed = hierarchy.costs.exposed();
        solve(request.bytes, &places[..=hierarchy.len()], |from, to| {
            moving(model, &speeds, from, to).times(exposed)
        })
    }

    fn class(&self, request: &Request) -> Request {
        Request { bytes: request.bytes, ..Request::default() }
    }

    fn spreads(&self) -> bool {
        true
    }

    fn compares_hotness(&self) -> bool {
        false
    }
}

/// What each tier and the store offer when room is what is free, and everything that is not pinned
/// can be moved.
pub(super) fn places(hierarchy: &Hierarchy, rate: impl Fn(usize) -> Rate) -> Places {
    let mut places = [Place::default(); PLACES_MAX];
    for (index, tier) in hierarchy.tiers().iter().enumerate() {
        let room = tier.free.min(tier.capacity);
        places[index] = Place { room, movable: tier.movable(), rate: rate(index) };
    }
    let store = hierarchy.len();
    places[store] = Place { room: u64::MAX, movable: 0, rate: rate(store) };
    places
}

/// The cost of writing to a place.
pub(super) fn writing(model: Model, pace: &Pace) -> Rate {
    match model {
        Model::Physical => Rate { fixed: pace.latency_ns, byte: pace.write_ns },
        Model::Paper => Rate { fixed: 0.0, byte: pace.write_ns * pace.latency_ns / MS },
    }
}

/// The cost of the data organizer's Move. The paper gives no formula: its cost in the paper's model
/// is that of placing what is moved.
pub(super) fn moving(model: Model, speeds: &Speeds, from: usize, to: usize) -> Rate {
    let below = &speeds.paces()[to];
    match model {
        Model::Physical => Rate { fixed: below.latency_ns, byte: speeds.move_ns(from, to) },
        Model::Paper => writing(model, below),
    }
}
