//! Hit rates of the ways to evict, on loops, skewed use, and skewed use disturbed by scans; and
//! what must hold for every choice.

mod common;

use common::seeded;
use forebay_placement::evict::{Candidate, Eviction, Ghosts, choose};
use forebay_placement::hotness::AccessStats;
use forebay_placement::{Random, Worth};
use std::collections::HashMap;

const BLOCKS: usize = 256;
const BATCH: usize = 8;
/// Uses between two passes that cool.
const HALF_LIFE_USES: usize = 4_000;
/// Milliseconds between two uses.
const STEP_MS: u32 = 600;

/// The share of a trace's uses that find their block in a tier of [`BLOCKS`] blocks.
fn hit_rate(eviction: Eviction, trace: &[u64]) -> f64 {
    let mut held: HashMap<u64, AccessStats> = HashMap::new();
    let mut ghosts = Ghosts::new(BLOCKS);
    let mut hits = 0;
    for (number, &block) in trace.iter().enumerate() {
        let now_ms = number as u32 * STEP_MS;
        if number % HALF_LIFE_USES == 0 {
            held.values_mut().for_each(|access_stats| *access_stats = access_stats.cooled(1));
        }
        if let Some(access_stats) = held.get_mut(&block) {
            *access_stats = eviction.used(*access_stats, now_ms);
            hits += 1;
            continue;
        }
        if held.len() == BLOCKS {
            let mut candidates: Vec<_> = held
                .iter()
                .map(|(&id, &access_stats)| Candidate {
                    id: id as u32,
                    access_stats,
                    ..Candidate::default()
                })
                .collect();
            let victims = choose(eviction, &mut candidates, BATCH, now_ms);
            assert_eq!(victims, BATCH);
            for (index, candidate) in candidates.iter().enumerate() {
                let id = u64::from(candidate.id);
                assert_eq!(candidate.leaves, index < victims);
                if candidate.leaves {
                    held.remove(&id);
                    ghosts.left(1, id);
                } else {
                    held.insert(id, candidate.access_stats);
                }
            }
        }
        let main = ghosts.remembers(1, block);
        held.insert(block, AccessStats::arriving(now_ms, main));
    }
    f64::from(hits) / trace.len() as f64
}

/// Uses of 4096 blocks, the n-th most popular one 1/n as often as the first.
fn skewed(random: &mut Random, uses: usize) -> Vec<u64> {
    let weights: Vec<f64> = (1..=4096).map(|rank| 1.0 / f64::from(rank)).collect();
    let total: f64 = weights.iter().sum();
    (0..uses)
        .map(|_| {
            let mut lot = random.below(1 << 40) as f64 / (1_u64 << 40) as f64 * total;
            let found = weights.iter().position(|weight| {
                lot -= weight;
                lot < 0.0
            });
            found.unwrap_or(0) as u64
        })
        .collect()
}

/// The same, with a file of `scan` blocks read once after every `every` uses.
fn with_scans(uses: Vec<u64>, every: usize, scan: u64) -> Vec<u64> {
    let mut trace = Vec::new();
    for (number, part) in uses.chunks(every).enumerate() {
        trace.extend(part);
        trace.extend((0..scan).map(|block| 1_000_000 + number as u64 * scan + block));
    }
    trace
}

#[test]
fn the_default_resists_scans_and_loses_little_elsewhere() {
    let mut random = seeded(8);
    let zipf = skewed(&mut random, 20_000);
    let scans = with_scans(skewed(&mut random, 20_000), 500, 500);
    let turned = skewed(&mut random, 20_000).iter().map(|block| block * 1021 % 4096).collect();
    let shift = [zipf.clone(), turned].concat();
    let looped: Vec<u64> = (0..40).flat_map(|_| 0..BLOCKS as u64 * 5 / 4).collect();
    let fits: Vec<u64> = (0..40).flat_map(|_| 0..BLOCKS as u64 - 8).collect();
    let traces = [
        ("skewed use of 4096 blocks (Zipf, 1/n)", zipf),
        ("the same, 500 blocks scanned after each 500 uses", scans),
        ("the same, other blocks get popular half-way", shift),
        ("loop over 320 blocks, all brought up", looped),
        ("loop over 248 blocks", fits),
    ];
    println!("hit rates of lru, lfu, s3-fifo");
    let rates = traces.map(|(name, trace)| {
        let row = Eviction::ALL.map(|eviction| hit_rate(eviction, &trace));
        let line = format!("| {name} | {:.3} | {:.3} | {:.3} |", row[0], row[1], row[2]);
        println!("{line}");
        let page = include_str!("../../../docs/design/placement.md");
        // The page shows the usual seed.
        assert!(std::env::var_os("FOREBAY_SEED").is_some() || page.contains(&line), "{line}");
        row
    });
    let ratio = |trace: usize| rates[trace][2] / rates[trace][0];
    assert!(ratio(0) > 1.0, "{}", ratio(0));
    assert!(ratio(1) > 1.2, "scans: {}", ratio(1));
    assert!(ratio(2) > 0.98, "{}", ratio(2));
    assert!(rates[4][2] > 0.97, "a loop that fits stays");
}

/// A read of a large file passes through the probation share; what was used twice stays.
#[test]
fn a_scan_displaces_nothing_that_is_in_use() {
    let now = 10_000_000;
    let mut held: Vec<_> = (0..90)
        .map(|id| {
            let access_stats = AccessStats::arriving(1_000, true).counted();
            Candidate { id, access_stats, ..Candidate::default() }
        })
        .collect();
    let mut scanned = 1_000;
    for step in 0..1_000 {
        while held.len() < 100 {
            let access_stats = AccessStats::arriving(now + step * 300, false);
            held.push(Candidate { id: scanned, access_stats, ..Candidate::default() });
            scanned += 1;
        }
        let victims = choose(Eviction::S3Fifo, &mut held, 1, now + step * 300);
        // Ten blocks are the share of probation: with the eleventh, the oldest of them leaves.
        assert_eq!(victims, 1);
        held.remove(0);
        if step > 10 {
            let of_the_scan = held.iter().filter(|block| block.id >= 1_000).count();
            assert!(of_the_scan <= 11, "{of_the_scan} of the scan");
        }
    }
    let stayed = held.iter().filter(|block| block.id < 1_000).count();
    assert!(stayed >= 89, "{stayed} of 90 stayed");
}

#[test]
fn pieces_of_one_use_count_once() {
    let access_stats = AccessStats::arriving(0, false);
    let pieces =
        (0..64).fold(access_stats, |access_stats, ms| Eviction::S3Fifo.used(access_stats, ms));
    assert_eq!(pieces, access_stats);
    assert_eq!(Eviction::S3Fifo.used(access_stats, 1_000).count(), 1);
}

#[test]
fn what_is_used_all_the_time_is_not_written_to() {
    let hot = (0..20).fold(AccessStats::arriving(0, false), |access_stats, n| {
        Eviction::S3Fifo.used(access_stats, 1_000 * n)
    });
    assert_eq!(Eviction::S3Fifo.used(hot, 99_000), hot);
}

fn any_blocks(random: &mut Random) -> Vec<Candidate> {
    (0..random.below(40) as u32)
        .map(|id| Candidate {
            id,
            access_stats: AccessStats(random.next_u64() as u32),
            pinned: random.below(4) == 0,
            priority: random.below(2) as u8,
            worth: Worth::of(random.below(2) as f32 * 7.0),
            leaves: random.below(2) == 0,
        })
        .collect()
}

#[test]
fn every_choice_keeps_its_promises() {
    let mut random = seeded(9);
    for _ in 0..20_000 {
        let before = any_blocks(&mut random);
        let (want, now) = (random.below(45) as usize, random.next_u64() as u32);
        for eviction in Eviction::ALL {
            let mut blocks = before.clone();
            let victims = choose(eviction, &mut blocks, want, now);
            let context = format!("{eviction:?} want {want} of {before:?}: {blocks:?}");
            let free_to_leave = before.iter().filter(|block| !block.pinned).count();
            assert_eq!(victims, want.min(free_to_leave), "{context}");
            assert!(blocks[..victims].iter().all(|block| block.leaves && !block.pinned));
            assert!(blocks[victims..].iter().all(|block| !block.leaves), "{context}");
            let rank = |block: &Candidate| (block.priority, block.worth);
            let last = blocks[..victims].iter().map(rank).max().unwrap_or((0, Worth::of(0.0)));
            let stays = blocks[victims..].iter().filter(|block| !block.pinned);
            assert!(stays.clone().all(|block| rank(block) >= last), "{context}");
            let mut ids: Vec<_> = blocks.iter().map(|block| block.id).collect();
            ids.sort_unstable();
            assert!(ids.iter().copied().eq(0..before.len() as u32), "{context}");
            let same = |block: &&Candidate| rank(block) == last;
            match eviction {
                Eviction::Lru => {
                    let youngest = blocks[..victims].iter().filter(same);
                    let youngest = youngest.map(|block| block.access_stats.age_ms(now)).min();
                    let oldest =
                        stays.filter(same).map(|block| block.access_stats.age_ms(now)).max();
                    assert!(oldest.unwrap_or(0) <= youngest.unwrap_or(u32::MAX), "{context}");
                }
                Eviction::Lfu => {
                    let most = blocks[..victims].iter().filter(same);
                    let most = most.map(|block| block.access_stats.count()).max().unwrap_or(0);
                    assert!(
                        stays.filter(same).all(|block| block.access_stats.count() >= most),
                        "{context}"
                    );
                }
                Eviction::S3Fifo => {}
            }
        }
    }
}

#[test]
fn ghosts_are_remembered_for_as_long_as_the_tier_is_large() {
    let mut ghosts = Ghosts::new(1_000);
    assert!(!ghosts.remembers(1, 7));
    for block in 0..5_000 {
        ghosts.left(1, block);
    }
    assert!((0..4_000).all(|block| !ghosts.remembers(1, block)));
    let remembered = (4_000..5_000).filter(|&block| ghosts.remembers(1, block)).count();
    assert!(remembered > 600, "{remembered}: some share a place");
    assert!((4_000..5_000).all(|block| !ghosts.remembers(2, block)));
}

#[test]
fn names_are_those_of_the_configuration() {
    for eviction in Eviction::ALL {
        assert_eq!(Eviction::named(eviction.name()), Some(eviction));
    }
    assert_eq!(Eviction::named("fifo"), None);
    assert_eq!(Eviction::default().name(), "s3-fifo");
}
