//! What a predictor that was supplied expects of one file, and what of that is brought up when.

use super::{DEPTH_MAX, Limit};
use std::collections::{HashMap, VecDeque};

/// Blocks that are expected and not asked for at most; more than one call of a predictor may
/// expect, which is [`DEPTH_MAX`].
const WAITING_MAX: usize = 2 * DEPTH_MAX as usize;
/// Reads after which a block that was asked for counts as none of those ahead: `AGE` times the
/// depth, and `AGE_MIN`.
const AGE: u64 = 4;
const AGE_MIN: u64 = 64;

/// Blocks of a file that are expected, that were asked for, and that were read.
///
/// Each block that is asked for has a payer, whose [`super::Account`] is charged for it, and to
/// which it is given back if it is read from where it was brought up to. What is expected waits
/// until account and room allow it, in the order in which it was expected; what is read meanwhile
/// is left out. What waits for [`DEPTH_MAX`] reads is not expected any more, and a block that was
/// asked for and is not read for long is in vain.
///
/// ```
/// use forebay_placement::prefetch::{Expectations, Limit};
///
/// let mut file = Expectations::default();
/// file.expect([9, 4, 6]);
/// let limit = Limit { depth: 8, more: 2 };
/// let asked = file.ask(limit, 7, |block| block != 9);
/// assert_eq!(asked, [4, 6], "block 9 is there");
/// assert_eq!(file.settle(4), Some(7));
/// assert_eq!(file.settle(4), None);
/// ```
#[derive(Debug, Default)]
pub struct Expectations {
    /// Blocks, and at which read each was expected.
    waiting: VecDeque<(u64, u64)>,
    /// Those that were asked for: who pays, and at which read that was.
    asked: HashMap<u64, (u64, u64)>,
    /// The same in the order in which they were asked for; may name some that were read.
    order: VecDeque<(u64, u64)>,
    /// The latest reads, the last one at the end.
    read: VecDeque<u64>,
    reads: u64,
}

impl Expectations {
    /// A block is read: it need not be brought up any more.
    pub fn note_read(&mut self, block: u64) {
        self.reads += 1;
        let reads = self.reads;
        self.waiting.retain(|&(waiting, at)| waiting != block && at + DEPTH_MAX >= reads);
        if self.read.len() as u64 >= DEPTH_MAX {
            self.read.pop_front();
        }
        self.read.push_back(block);
    }

    /// Who has paid for this block, which is read, if it was asked for. It was in vain if it is not
    /// there yet, or not any more.
    pub fn settle(&mut self, block: u64) -> Option<u64> {
        self.asked.remove(&block).map(|(payer, _)| payer)
    }

    /// These blocks are expected, after those that wait. What waits already, or was asked for, is
    /// left out, and so is what is more than can wait.
    pub fn expect(&mut self, blocks: impl IntoIterator<Item = u64>) {
        for block in blocks {
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            let waits = |&(waiting, _): &(u64, u64)| waiting == block;
            if !self.asked.contains_key(&block) && !self.waiting.iter().any(waits) {
                self.waiting.push_back((block, self.reads));
            }
        }
    }

    /// Takes blocks to be asked for now, on the account of `payer`: of those that wait the first
    /// ones of which `lacks` says that they are to be brought up.
    pub fn ask(&mut self, limit: Limit, payer: u64, lacks: impl Fn(u64) -> bool) -> Vec<u64> {
        let old = AGE.saturating_mul(limit.depth).saturating_add(AGE_MIN);
        while let Some(&(block, at)) = self.order.front()
            && (at.saturating_add(old) < self.reads || !self.is_asked_at(block, at))
        {
            self.order.pop_front();
            if self.is_asked_at(block, at) {
                self.asked.remove(&block);
            }
        }
        let mut taken = Vec::new();
        while (taken.len() as u64) < limit.more
            && (self.asked.len() as u64) < limit.depth
            && let Some((block, _)) = self.waiting.pop_front()
        {
            if lacks(block) {
                self.asked.insert(block, (payer, self.reads));
                self.order.push_back((block, self.reads));
                taken.push(block);
            }
        }
        taken
    }

    fn is_asked_at(&self, block: u64, at: u64) -> bool {
        self.asked.get(&block).is_some_and(|&(_, asked)| asked == at)
    }

    /// Blocks that were read, the last one first.
    pub fn behind(&self) -> impl Iterator<Item = u64> + '_ {
        self.read.iter().rev().copied()
    }

    /// How many blocks were read.
    pub fn reads(&self) -> u64 {
        self.reads
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Account, GRACE};
    use super::*;
    use crate::mix;
    use std::collections::BTreeSet;

    const BLOCK: u64 = 256 << 10;

    /// Reads blocks of which `predict` expects others, with one account; returns how many of them
    /// had been brought up before, and how many were brought up.
    fn run(
        reads: &[u64],
        depth: u64,
        mut predict: impl FnMut(usize, u64) -> Vec<u64>,
    ) -> (usize, usize) {
        let (account, mut file) = (Account::default(), Expectations::default());
        let (mut up, mut hits, mut guessed) = (BTreeSet::new(), 0, 0);
        for (n, &block) in reads.iter().enumerate() {
            let is_up = up.contains(&block);
            hits += usize::from(is_up);
            if file.settle(block).is_some() && is_up {
                account.was_used(BLOCK);
            }
            file.note_read(block);
            account.was_read(BLOCK);
            file.expect(predict(n, block));
            let limit = Limit { depth, more: account.balance() / BLOCK };
            let asked = file.ask(limit, 0, |block| !up.contains(&block));
            assert_eq!(account.take(asked.len() as u64 * BLOCK), asked.len() as u64 * BLOCK);
            guessed += asked.len();
            up.extend(asked);
            let vain = (guessed - hits) as u64 * BLOCK;
            assert!(vain <= GRACE as u64 + (n as u64 + 1) * BLOCK / 20, "{vain} at {n}");
            assert!(file.asked.len() as u64 <= depth && file.waiting.len() <= WAITING_MAX);
            assert!(file.order.len() <= 4 * WAITING_MAX);
        }
        (hits, guessed)
    }

    /// Squares of a prime: no distance repeats.
    fn squares(count: u64) -> Vec<u64> {
        (1..=count).map(|n| n * n % 4093).collect()
    }

    #[test]
    fn what_is_always_right_is_there_before() {
        let reads = squares(2000);
        let next = |ahead: usize| {
            let reads = reads.clone();
            move |n: usize, _| reads.get(n + ahead).copied().into_iter().collect()
        };
        assert_eq!(run(&reads, 64, next(8)), (1992, 1992));
        // All at once, from the first read on.
        let all = reads.clone();
        let (hits, guessed) = run(&reads, 64, |n, _| {
            if n % 500 == 0 { all[n + 1..(n + 501).min(2000)].to_vec() } else { Vec::new() }
        });
        assert_eq!((hits, guessed), (1999, 1999));
    }

    #[test]
    fn what_is_always_wrong_costs_a_twentieth_and_the_grace() {
        let reads: Vec<u64> = (0..4000).collect();
        for depth in [8, 1024] {
            let wrong = |n: usize, block: u64| {
                (0..20).map(|k| 1_000_000 + mix(block << 8 | k) % 1_000_000 + n as u64).collect()
            };
            let (hits, guessed) = run(&reads, depth, wrong);
            assert_eq!(hits, 0);
            assert!(guessed <= 16 + 200, "{guessed}");
        }
    }

    #[test]
    fn one_that_is_wrong_for_long_and_right_then_is_believed_again() {
        let reads: Vec<u64> = (0..8000).collect();
        let (hits, _) = run(&reads, 16, |n, block| match n {
            0..4000 => vec![1_000_000 + block],
            _ => (1..16).map(|k| block + k).collect(),
        });
        // What was expected wrongly waits for 1024 reads more.
        assert!(hits > 2900, "{hits}");
    }

    #[test]
    fn what_is_read_before_it_is_asked_for_is_left_out() {
        let mut file = Expectations::default();
        file.expect(0..10);
        file.note_read(3);
        file.expect([4, 5, 11]);
        let asked = file.ask(Limit { depth: 100, more: 100 }, 1, |block| block != 5);
        assert_eq!(asked, [0, 1, 2, 4, 6, 7, 8, 9, 11]);
        assert_eq!((file.settle(5), file.settle(11)), (None, Some(1)));
        file.expect([11, 4]);
        assert_eq!(file.ask(Limit { depth: 100, more: 100 }, 2, |_| true), [11]);
        assert_eq!(file.settle(11), Some(2));
        file.note_read(9);
        assert_eq!(file.behind().collect::<Vec<_>>(), [9, 3]);
    }
}
