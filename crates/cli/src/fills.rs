//! How full tiers were, and when: kept in a bounded room, more coarsely the longer it lasts.

use crate::timeline;
use forebay_node::status::TierStatus;

/// Looks that are kept.
const LOOKS_MAX: usize = 4_096;

/// What was seen of tiers.
#[derive(Default)]
pub struct Fills {
    /// Their names and capacities, from the fastest down.
    tiers: Vec<(String, u64)>,
    /// Microseconds of CLOCK_REALTIME, and what is used of each tier.
    looks: Vec<(u64, Vec<u64>)>,
}

impl Fills {
    /// Takes how full they are now. Says whether each other look was left out, so that looks may be
    /// half as frequent from now on.
    pub fn note(&mut self, tiers: &[TierStatus]) -> bool {
        if self.tiers.len() != tiers.len() {
            self.tiers = tiers.iter().map(|tier| (tier.name.clone(), 0)).collect();
            self.looks.clear();
        }
        for ((_, capacity), tier) in self.tiers.iter_mut().zip(tiers) {
            *capacity = (*capacity).max(tier.capacity);
        }
        let now_us = forebay_pool::clock::realtime_ns() / 1000;
        // Clocks are set back.
        let now_us = self.looks.last().map_or(now_us, |(last, _)| now_us.max(*last));
        self.looks.push((now_us, tiers.iter().map(|tier| tier.used).collect()));
        let is_full = self.looks.len() > LOOKS_MAX;
        if is_full {
            let mut number = 0;
            self.looks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        is_full
    }

    /// How many looks are kept.
    pub fn looks(&self) -> usize {
        self.looks.len()
    }

    /// Names of the tiers, from the fastest down.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter().map(|(name, _)| name.as_str())
    }

    /// How full each tier was: its name, and moments in microseconds of CLOCK_REALTIME with the
    /// bytes used.
    pub fn levels(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = (u64, u64)>)> {
        self.names().enumerate().map(|(tier, name)| {
            let points = self.looks.iter().map(move |(at_us, used)| (*at_us, used[tier]));
            (name, points)
        })
    }

    /// The same for a picture.
    pub fn pictures(&self) -> Vec<timeline::Level> {
        let capacities = self.tiers.iter().map(|(_, capacity)| *capacity);
        let levels = self.levels().zip(capacities);
        levels
            .map(|((name, points), capacity)| timeline::Level {
                name: name.to_owned(),
                capacity,
                points: points.collect(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_end_has_room() {
        let tier = TierStatus {
            name: "ram".to_owned(),
            capacity: 10,
            configured: 10,
            backed: 0,
            used: 3,
            dirty: 0,
            scratch: 0,
            reserved: 0,
            pinned: 0,
            failed: None,
        };
        let mut fills = Fills::default();
        let thinned = (0..20_000).filter(|_| fills.note(std::slice::from_ref(&tier))).count();
        assert!(thinned > 4 && fills.looks() <= LOOKS_MAX);
        assert!(fills.looks.is_sorted());
        let pictures = fills.pictures();
        assert_eq!((pictures[0].name.as_str(), pictures[0].capacity), ("ram", 10));
        assert_eq!(pictures[0].points.last().map(|(_, bytes)| *bytes), Some(3));
    }
}
