//! What a placement decision costs: `cargo bench -p forebay-placement`.
//!
//! | workload | what it answers |
//! |---|---|
//! | fits | the common case: the fastest tier has room |
//! | splits | upper tiers nearly full: place, skip, split and flush are all tried |
//! | latencies | small pieces, high latencies: skipping pays, so little is cut off |
//! | remembered | the same decisions from a memo |
//!
//! Budgets: 20 microseconds to decide in a hierarchy of 8 tiers, 1 microsecond to remember.

use forebay_placement::{
    Costs, Hierarchy, Memo, Model, PolicyId, Request, TIERS_MAX, TierSnapshot, names,
};
use std::hint::black_box;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const ROUNDS: u32 = 5;

fn main() {
    println!("nanoseconds for a decision, {TIERS_MAX} tiers, best of {ROUNDS} rounds");
    println!(
        "{:<16}{:>12}{:>12}{:>12}{:>14}",
        "policy", "fits", "splits", "latencies", "remembered"
    );
    for model in [Model::Physical, Model::Paper] {
        println!("{model:?}");
        for name in names() {
            let id = PolicyId::named(name).unwrap();
            let decide = |hierarchies: &[Hierarchy], requests: &[Request]| {
                best_ns(hierarchies, requests, |hierarchy, request| {
                    black_box(id.policy().plan(black_box(hierarchy), black_box(request)));
                })
            };
            let (fits, splits, latencies) = (fits(model), splits(model), latencies(model));
            let mut memo = Memo::new(id, MIB, 256);
            let remembered = best_ns(&splits, &requests(MIB), |hierarchy, request| {
                black_box(memo.plan(black_box(hierarchy), black_box(request)));
            });
            println!(
                "{name:<16}{:>12.0}{:>12.0}{:>12.0}{remembered:>14.0}",
                decide(&fits, &requests(MIB)),
                decide(&splits, &requests(64 * MIB)),
                decide(&latencies, &requests(16 * MIB)),
            );
        }
    }
}

/// Nanoseconds for each call, over all pairs, in the fastest round.
fn best_ns(
    hierarchies: &[Hierarchy],
    requests: &[Request],
    mut call: impl FnMut(&Hierarchy, &Request),
) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut calls = 0_u32;
        while calls < 20_000 {
            for (hierarchy, request) in hierarchies.iter().zip(requests) {
                call(hierarchy, request);
                calls += 1;
            }
        }
        best = f64::min(best, start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

/// Eight tiers, each a third as fast, twice as slow to answer and four times as large as the last.
fn hierarchy(model: Model, free: impl Fn(u64) -> u64, latency_ns: u64) -> Hierarchy {
    let tiers: Vec<_> = (0..TIERS_MAX as u32)
        .map(|n| {
            let capacity = (256 * MIB) << (2 * n);
            TierSnapshot {
                capacity,
                free: free(capacity),
                read_bandwidth: 12_000_000_000 / 3_u64.pow(n),
                write_bandwidth: 10_000_000_000 / 3_u64.pow(n),
                latency_ns: latency_ns << n,
                coldest: 0.5,
                ..TierSnapshot::default()
            }
        })
        .collect();
    let costs = Costs { model, ..Costs::default() };
    Hierarchy::new(&tiers).unwrap().with_costs(costs)
}

fn fits(model: Model) -> Vec<Hierarchy> {
    (0..16).map(|n| hierarchy(model, |capacity| capacity - n * MIB, 100)).collect()
}

fn splits(model: Model) -> Vec<Hierarchy> {
    (0..16).map(|n| hierarchy(model, |_| (n % 4 + 1) * 3 * MIB, 100)).collect()
}

fn latencies(model: Model) -> Vec<Hierarchy> {
    (1..17).map(|n| hierarchy(model, |_| n * MIB / 4, 100_000)).collect()
}

fn requests(bytes: u64) -> Vec<Request> {
    let request = Request { bytes, file_hotness: 1.0, dispersion: 1, ..Request::default() };
    (0..16).map(|n| Request { file_bytes: n * MIB, ..request }).collect()
}
