//! A policy that draws lots, to compare the others with.

use super::Policy;
use crate::cost::{PLACES_MAX, Speeds};
use crate::random::mix;
use crate::{Destination, Hierarchy, Plan, Request};

/// The whole request goes to one of the places that have room for it, all equally likely. The same
/// request has the same lot.
pub(super) struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        let mut fitting = [hierarchy.len(); PLACES_MAX];
        let mut count = 0;
        for (index, tier) in hierarchy.tiers().iter().enumerate() {
            if tier.free.min(tier.capacity) >= request.bytes {
                fitting[count] = index;
                count += 1;
            }
        }
        // One more: the store, with which the array was filled.
        let lot = mix(request.seed ^ mix(request.bytes ^ mix(request.file_bytes)));
        let place = fitting[(lot % (count as u64 + 1)) as usize];
        let pace = Speeds::of(hierarchy).paces()[place];
        let cost_ns = pace.latency_ns + request.bytes as f64 * pace.write_ns;
        let to = match place == hierarchy.len() {
            true => Destination::Store,
            false => Destination::Tier(place),
        };
        Plan::whole(to, request.bytes, cost_ns)
    }

    fn compares_hotness(&self) -> bool {
        false
    }
}
