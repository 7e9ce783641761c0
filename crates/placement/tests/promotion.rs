//! Two tiers and an organizer under all sorts of use: blocks come to rest, and the most used ones
//! lie in the upper tier.

mod common;

use common::seeded;
use forebay_placement::evict::{Candidate, Eviction, choose};
use forebay_placement::hotness::{AccessStats, FORGIVE_PASSES};
use forebay_placement::promote::{Block, Level, promoted, promotes};

const HALF_LIFE_MS: u32 = 60_000;
/// How often the organizer looks.
const PERIOD_MS: u32 = 1_000;

struct Tiers {
    upper: usize,
    access_stats: Vec<AccessStats>,
    is_up: Vec<bool>,
    promotions: Vec<u32>,
    hits: u32,
    uses: u32,
}

impl Tiers {
    /// So many blocks, all in the lower tier, below an upper one of `upper` blocks.
    fn new(blocks: usize, upper: usize) -> Self {
        Self {
            upper,
            access_stats: vec![AccessStats::arriving(0, false); blocks],
            is_up: vec![false; blocks],
            promotions: vec![0; blocks],
            hits: 0,
            uses: 0,
        }
    }

    fn use_block(&mut self, block: usize, now_ms: u32) {
        self.access_stats[block] = Eviction::S3Fifo.used(self.access_stats[block], now_ms);
        self.hits += u32::from(self.is_up[block]);
        self.uses += 1;
    }

    fn held(&self) -> Vec<Candidate> {
        (0..self.access_stats.len())
            .filter(|&block| self.is_up[block])
            .map(|block| Candidate {
                id: block as u32,
                access_stats: self.access_stats[block],
                ..Candidate::default()
            })
            .collect()
    }

    /// What the organizer does in each period: hot blocks go up, and others make room for them.
    fn organize(&mut self, now_ms: u32) {
        if now_ms.is_multiple_of(HALF_LIFE_MS) {
            self.access_stats.iter_mut().for_each(|access_stats| {
                *access_stats = access_stats.cooled(now_ms / HALF_LIFE_MS)
            });
        }
        for block in 0..self.access_stats.len() {
            let held = self.held();
            let coldest = held.iter().map(|held| held.access_stats.count()).min();
            let level = Level {
                is_roomy: held.len() < self.upper,
                wants_room: false,
                coldest: coldest.unwrap_or(0),
            };
            let facts = Block::of(self.access_stats[block], false);
            if self.is_up[block] || !promotes(&facts, &level) {
                continue;
            }
            if !level.is_roomy {
                self.make_room(held, now_ms);
            }
            self.is_up[block] = true;
            self.access_stats[block] = promoted(self.access_stats[block], now_ms);
            self.promotions[block] += 1;
        }
    }

    fn make_room(&mut self, mut held: Vec<Candidate>, now_ms: u32) {
        assert_eq!(choose(Eviction::Lfu, &mut held, 1, now_ms), 1);
        self.is_up[held[0].id as usize] = false;
    }

    fn hit_rate(&self) -> f64 {
        f64::from(self.hits) / f64::from(self.uses)
    }
}

/// Uses a block every `every[block]` periods, for so many half-lives.
fn run(tiers: &mut Tiers, every: &[u32], half_lives: u32) {
    for period in 0..half_lives * HALF_LIFE_MS / PERIOD_MS {
        let now_ms = (period + 1) * PERIOD_MS;
        for (block, &every) in every.iter().enumerate() {
            if (period + block as u32).is_multiple_of(every) {
                tiers.use_block(block, now_ms);
            }
        }
        tiers.organize(now_ms);
    }
}

#[test]
fn under_steady_use_every_block_comes_to_rest() {
    let mut random = seeded(10);
    for _ in 0..6 {
        let every: Vec<_> = (0..24).map(|_| 1 + random.below(120) as u32).collect();
        let mut tiers = Tiers::new(every.len(), 8);
        run(&mut tiers, &every, 96);
        let most = tiers.promotions.iter().max().unwrap();
        assert!(*most <= 3 + 96 / FORGIVE_PASSES, "{:?}", tiers.promotions);
        let all: u32 = tiers.promotions.iter().sum();
        println!("promotions of 24 blocks in 96 half-lives: {all}, at most {most}");
        assert!(all <= 8 * 3, "{:?}", tiers.promotions);
    }
}

/// Whatever the program does, moves are bounded: here it does its worst.
#[test]
fn nothing_makes_a_block_go_up_and_down_for_ever() {
    let mut random = seeded(11);
    let mut tiers = Tiers::new(16, 4);
    let periods = 64 * HALF_LIFE_MS / PERIOD_MS;
    for period in 0..periods {
        let now_ms = (period + 1) * PERIOD_MS;
        // Uses now only what is below, and leaves alone what has come up.
        let below: Vec<_> = (0..16).filter(|&block| !tiers.is_up[block]).collect();
        for _ in 0..20 {
            tiers.use_block(random.pick(&below), now_ms);
        }
        tiers.organize(now_ms);
    }
    let most = *tiers.promotions.iter().max().unwrap();
    println!("promotions in 64 half-lives: {:?}", tiers.promotions);
    assert!(most <= 3 + 64 / FORGIVE_PASSES, "{most}");
    assert!(most >= 2, "the worst case was not so bad");
}

#[test]
fn repeated_reads_come_from_the_upper_tier() {
    let every: Vec<_> = (0..32).map(|block| if block % 8 == 3 { 4 } else { 400 }).collect();
    let mut tiers = Tiers::new(every.len(), 4);
    run(&mut tiers, &every, 10);
    assert!((0..32).all(|block| tiers.is_up[block] == (block % 8 == 3)), "{:?}", tiers.is_up);
    assert!(tiers.hit_rate() > 0.8, "{}", tiers.hit_rate());
}

/// A loop over more than fits: no block is hotter than another, so those that are up stay.
#[test]
fn a_loop_that_does_not_fit_hits_what_does() {
    let mut tiers = Tiers::new(40, 32);
    run(&mut tiers, &[40; 40], 40);
    println!("loop over 40 blocks, 32 fit: {:.3}", tiers.hit_rate());
    assert!(tiers.hit_rate() > 0.7, "{}", tiers.hit_rate());
    assert!(tiers.promotions.iter().sum::<u32>() <= 3 * 40);
}
