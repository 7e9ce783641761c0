//! Reading ahead in an order that is known from an earlier run.

use super::{Ahead, Limit, Touched};

/// Blocks of the order that a reader may leave out: they are in memory already.
const LEFT_OUT: usize = 32;
/// Reads of other blocks after which the order is not believed any more; eight right ones make up
/// for one of them.
const WRONG_MAX: u32 = 8;
const RIGHT: u32 = 8;

/// How far a reader is in an order of blocks, which an earlier run has read a file in. What it
/// reads is compared with the order; one that does something else is not followed any more.
///
/// ```
/// use forebay_placement::prefetch::{Follower, Limit};
///
/// let order = [7, 3, 9, 1, 4];
/// let mut follower = Follower::default();
/// follower.on_touch(&order, 7, false);
/// let ahead = follower.ask(&order, Limit { depth: 2, more: 9 }, 4096).expect("9 follows on 3");
/// assert_eq!((ahead.offset, ahead.stride, ahead.count), (3 * 4096, 6 * 4096, 2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// Behind the last block of the order that was read, and that was asked for.
    at: usize,
    front: usize,
    /// The block that was read last, plus one; 0 before the first.
    last: u64,
    charged: u64,
    wrong: u32,
    right: u32,
}

impl Follower {
    /// Whether the reader still reads what the order says.
    pub fn is_followed(&self, order: &[u32]) -> bool {
        self.wrong < WRONG_MAX && self.at < order.len()
    }

    /// `block` is read; whether it had been brought up. As of [`super::Predictor::on_touch`].
    pub fn on_touch(&mut self, order: &[u32], block: u64, is_up: bool) -> Touched {
        let nothing = Touched { blocks: 1, ..Touched::default() };
        if self.last == block + 1 {
            return Touched::default();
        }
        self.last = block + 1;
        let left = order.get(self.at..).unwrap_or_default();
        let found = left.iter().take(LEFT_OUT).position(|&known| u64::from(known) == block);
        let Some(skipped) = found else {
            self.wrong = self.wrong.saturating_add(1);
            return nothing;
        };
        self.right += 1;
        if self.right >= RIGHT {
            (self.right, self.wrong) = (0, self.wrong.saturating_sub(1));
        }
        // What was left out is not read any more.
        let asked = self.front.saturating_sub(self.at + skipped);
        self.charged = self.charged.min(asked as u64);
        self.at += skipped + 1;
        self.front = self.front.max(self.at);
        let was_charged = self.charged > 0;
        self.charged = self.charged.saturating_sub(1);
        Touched { used: u64::from(was_charged && is_up), is_late: was_charged && !is_up, ..nothing }
    }

    /// What is to be asked for now, as of [`super::Predictor::ask`].
    pub fn ask(&mut self, order: &[u32], limit: Limit, block_bytes: u64) -> Option<Ahead> {
        let ahead = (self.front - self.at) as u64;
        // More once a quarter is read: not with every block.
        if !self.is_followed(order) || self.at == 0 || ahead > limit.depth * 3 / 4 {
            return None;
        }
        let most = limit.depth.saturating_sub(ahead).min(limit.more) as usize;
        let left = order.get(self.front..)?;
        let left = &left[..most.min(left.len())];
        let (&first, rest) = left.split_first()?;
        let distance = |from: u32, to: u32| i64::from(to) - i64::from(from);
        let step = rest.first().map_or(1, |&next| distance(first, next));
        let same = left.windows(2).take_while(|pair| distance(pair[0], pair[1]) == step).count();
        let count = same as u64 + 1;
        self.front += count as usize;
        let offset = u64::from(first).checked_mul(block_bytes)?;
        let stride = step.checked_mul(i64::try_from(block_bytes).ok()?)?;
        Some(Ahead { offset, bytes: block_bytes, stride, count })
    }

    /// As of [`super::Predictor::charge`].
    pub fn charge(&mut self, blocks: u64) {
        self.charged = self.charged.saturating_add(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;
    use std::collections::BTreeSet;

    const LIMIT: Limit = Limit { depth: 16, more: 1000 };

    /// Every number below `count` once, in disorder.
    fn shuffled(count: u32, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_by_key(|&block| mix(seed << 32 | u64::from(block)));
        order
    }

    /// Reads blocks; returns how many had been asked for before, and how many were in vain.
    fn follow(order: &[u32], reads: impl Iterator<Item = u32>) -> (usize, usize, Follower) {
        let mut follower = Follower::default();
        let (mut up, mut read, mut hits) = (BTreeSet::new(), BTreeSet::new(), 0);
        for block in reads {
            hits += usize::from(up.contains(&u64::from(block)));
            read.insert(u64::from(block));
            follower.on_touch(order, block.into(), up.contains(&u64::from(block)));
            while let Some(ahead) = follower.ask(order, LIMIT, 4096) {
                let blocks: Vec<u64> = ahead.pieces().map(|(at, _)| at / 4096).collect();
                follower.charge(blocks.len() as u64);
                up.extend(blocks);
            }
        }
        (hits, up.difference(&read).count(), follower)
    }

    #[test]
    fn an_order_that_is_read_again_is_there_before() {
        let order = shuffled(1000, 1);
        let (hits, vain, _) = follow(&order, order.iter().copied());
        assert_eq!((hits, vain), (999, 0));
    }

    #[test]
    fn blocks_may_be_left_out_and_others_be_read_between() {
        let order = shuffled(1000, 2);
        let reads = order.iter().copied().enumerate().filter(|(n, _)| n % 10 != 3);
        let reads = reads.flat_map(|(n, block)| {
            std::iter::once(block).chain((n % 50 == 7).then_some(5_000_000))
        });
        let (hits, _, follower) = follow(&order, reads);
        assert!(hits >= 890 && follower.wrong < WRONG_MAX, "{hits}");
    }

    #[test]
    fn a_program_that_does_something_else_is_not_followed() {
        for seed in 3..100 {
            let order = shuffled(5000, seed);
            let (_, vain, follower) =
                follow(&order, shuffled(5000, 1000 + seed).into_iter().take(60));
            assert!(!follower.is_followed(&order), "seed {seed}");
            assert!(vain <= 16 * 3, "seed {seed}: {vain}");
        }
    }

    #[test]
    fn blocks_that_are_not_there_when_they_are_read_count_as_late_and_not_as_used() {
        let order = shuffled(100, 3);
        let mut follower = Follower::default();
        follower.on_touch(&order, order[0].into(), false);
        while let Some(ahead) = follower.ask(&order, LIMIT, 4096) {
            follower.charge(ahead.count);
        }
        for (n, is_up) in [(1, true), (2, false), (3, true)] {
            let touched = follower.on_touch(&order, order[n].into(), is_up);
            assert_eq!((touched.used, touched.is_late), (u64::from(is_up), !is_up), "block {n}");
        }
    }

    #[test]
    fn what_follows_at_one_distance_is_one_request() {
        let order: Vec<u32> = (0..64).rev().collect();
        let mut follower = Follower::default();
        follower.on_touch(&order, 63, false);
        let ahead = follower.ask(&order, LIMIT, 4096).unwrap();
        assert_eq!((ahead.offset, ahead.stride, ahead.count), (62 * 4096, -4096, 16));
    }
}
