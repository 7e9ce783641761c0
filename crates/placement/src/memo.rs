//! Decisions remembered: the memoization of Hermes section 3.2.2, and its knob.

use crate::hierarchy::TIERS_MAX;
use crate::random::mix;
use crate::{Hierarchy, Plan, PolicyId, Request, TierSnapshot};

/// Entries that share a place in the table.
const WAYS: usize = 4;

/// A policy with a memory of its latest decisions, for one thread.
///
/// Before anything is decided, free space is rounded down to the granularity, pinned space up to
/// it, and hotness and file sizes to three significant bits. So an answer holds until a tier's free
/// space has changed by the granularity, and never overfills a tier. Its size is fixed: nothing is
/// allocated after it was made. A change of a tier's capacity or speed, or of the costs, forgets
/// everything.
#[derive(Debug)]
pub struct Memo<Places = Box<[Place]>> {
    policy: PolicyId,
    granularity: u64,
    /// What the entries were decided for, without what changes all the time.
    fixed: Hierarchy,
    places: Places,
    oldest: usize,
    hits: u64,
    misses: u64,
}

/// What distinguishes decisions while capacities and speeds stay.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    class: Request,
    free: [u32; TIERS_MAX],
    pinned: [u32; TIERS_MAX],
    coldest: [f32; TIERS_MAX],
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    plan: Plan,
}

/// Room for one decision.
#[derive(Clone, Debug, Default)]
pub struct Place(Option<Entry>);

impl Memo {
    /// A memory of about this many decisions (600 bytes each) of a policy. The granularity is in
    /// bytes; a multiple of the bucket size makes plans end at bucket borders where a tier is full.
    pub fn new(policy: PolicyId, granularity: u64, entries: usize) -> Self {
        let entries = entries.next_power_of_two().max(WAYS);
        Self::within(policy, granularity, vec![Place::default(); entries].into_boxed_slice())
    }
}

impl<Places: AsRef<[Place]> + AsMut<[Place]>> Memo<Places> {
    /// The same in the room of the caller's: a power of two of places, at least four.
    pub fn within(policy: PolicyId, granularity: u64, places: Places) -> Self {
        let granularity = granularity.max(1);
        let fixed = Hierarchy::default();
        Self { policy, granularity, fixed, places, oldest: 0, hits: 0, misses: 0 }
    }

    /// The policy's plan for the request, with the hierarchy rounded as said above.
    pub fn plan(&mut self, hierarchy: &Hierarchy, request: &Request) -> Plan {
        if !self.is_for(hierarchy) {
            self.fixed = fixed(hierarchy);
            self.places.as_mut().fill(Place(None));
        }
        let key = self.key(hierarchy, request);
        let places = self.places.as_ref();
        let set = key.hash() as usize % (places.len() / WAYS) * WAYS;
        let mut ways = places[set..set + WAYS].iter().filter_map(|place| place.0.as_ref());
        if let Some(entry) = ways.find(|entry| entry.key == key) {
            self.hits += 1;
            return entry.plan;
        }
        self.misses += 1;
        let plan = self.policy.policy().plan(&self.rounded(&key), &key.class);
        self.oldest = (self.oldest + 1) % WAYS;
        self.places.as_mut()[set + self.oldest] = Place(Some(Entry { key, plan }));
        plan
    }

    /// How many plans were remembered, and how many were made.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    fn is_for(&self, hierarchy: &Hierarchy) -> bool {
        let tiers = self.fixed.tiers().iter().zip(hierarchy.tiers());
        self.fixed.len() == hierarchy.len()
            && self.fixed.costs == hierarchy.costs
            && self.fixed.store == hierarchy.store
            && { tiers }.all(|(fixed, tier)| {
                fixed.capacity == tier.capacity
                    && fixed.read_bandwidth == tier.read_bandwidth
                    && fixed.write_bandwidth == tier.write_bandwidth
                    && fixed.latency_ns == tier.latency_ns
                    && fixed.sharers == tier.sharers
            })
    }

    fn key(&self, hierarchy: &Hierarchy, request: &Request) -> Key {
        let class = self.policy.policy().class(request);
        let class = Request {
            file_bytes: rounded_bytes(class.file_bytes),
            file_hotness: rounded_down(class.file_hotness),
            ..class
        };
        let mut key =
            Key { class, free: [0; TIERS_MAX], pinned: [0; TIERS_MAX], coldest: [0.0; TIERS_MAX] };
        let looks_at_hotness = self.policy.policy().compares_hotness();
        for (index, tier) in hierarchy.tiers().iter().enumerate() {
            let units = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
            key.free[index] = units(tier.free / self.granularity);
            key.pinned[index] = units(tier.pinned.div_ceil(self.granularity));
            if looks_at_hotness {
                key.coldest[index] = rounded_up(tier.coldest);
            }
        }
        key
    }

    /// The hierarchy that a key stands for.
    fn rounded(&self, key: &Key) -> Hierarchy {
        let mut hierarchy = self.fixed;
        for (index, tier) in hierarchy.tiers_mut().iter_mut().enumerate() {
            let bytes = |units: u32| u64::from(units).saturating_mul(self.granularity);
            tier.free = bytes(key.free[index]);
            tier.pinned = bytes(key.pinned[index]);
            tier.coldest = key.coldest[index];
        }
        hierarchy
    }
}

impl Key {
    fn hash(&self) -> u64 {
        let class = &self.class;
        let mut hash = class.bytes ^ class.seed.rotate_left(32);
        hash = mix(hash) ^ class.file_bytes;
        hash = mix(hash) ^ u64::from(class.file_hotness.to_bits()) << 32;
        hash ^= u64::from(class.dispersion) << 8 | u64::from(class.priority);
        for index in 0..TIERS_MAX {
            let word = u64::from(self.free[index]) << 32 | u64::from(self.pinned[index]);
            let word = word ^ u64::from(self.coldest[index].to_bits()).rotate_left(16);
            hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        mix(hash)
    }
}

/// What of a hierarchy does not change from decision to decision.
fn fixed(hierarchy: &Hierarchy) -> Hierarchy {
    let mut fixed = *hierarchy;
    for tier in fixed.tiers_mut() {
        *tier = TierSnapshot { free: 0, pinned: 0, dirty: 0, coldest: 0.0, ..*tier };
    }
    fixed
}

/// The first three significant bits of a size.
fn rounded_bytes(bytes: u64) -> u64 {
    let cut = (u64::BITS - bytes.leading_zeros()).saturating_sub(3);
    bytes >> cut << cut
}

/// Bits of a float behind the first two of its fraction.
const FINE: u32 = (1 << 21) - 1;

/// The next score below that has three significant bits; what is no score counts as 0.
fn rounded_down(score: f32) -> f32 {
    if score > 0.0 { f32::from_bits(score.to_bits() & !FINE) } else { 0.0 }
}

/// The next score above that has three significant bits.
fn rounded_up(score: f32) -> f32 {
    if score > 0.0 { f32::from_bits((score.to_bits() + FINE) & !FINE) } else { 0.0 }
}

const _: () = assert!(size_of::<Option<Entry>>() <= 640);
