//! The standing lists of `forebay torture`: a slice of each, which depends on the seed.

use crate::harness::{self, Ran, Site, USUAL};
use std::fs;

/// A slice of a list: every `of`-th case. Nothing is lost, and nothing left behind.
fn played(scenario: &str, of: u64) -> Ran {
    let site = Site::new(&USUAL);
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let (seed_word, slice) = (seed.to_string(), format!("{}/{of}", seed % of + 1));
    let dir = site.out.to_str().unwrap();
    let words = ["torture", "--scenario", scenario, "--slice", &slice, "--dir", dir];
    let ran = site.end(site.forebay(&[&words[..], &["--seed", &seed_word]].concat()));
    assert!(ran.stdout.contains("losses      none"), "{slice}: {ran:?}");
    let left: Vec<_> = fs::read_dir(&site.out).unwrap().collect();
    assert!(left.is_empty(), "{left:?}: {ran:?}");
    ran
}

/// The same, of a list that ends well then.
fn slice(scenario: &str, of: u64) -> Ran {
    played(scenario, of).expect(0)
}

#[test]
fn pairs_of_operations_lose_nothing() {
    let ran = slice("pairs", 97);
    let played = ran.stdout.lines().find(|line| line.contains(" cases played")).unwrap();
    let cases: u64 = played.split_whitespace().nth(1).unwrap().parse().unwrap();
    let hits: Vec<_> = ["kills within", "pauses within"]
        .iter()
        .map(|what| {
            let line = ran.stdout.lines().find(|line| line.contains(what)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        })
        .collect();
    assert!(cases >= 128, "{ran:?}");
    // Without points all are behind an operation.
    let least = if cfg!(debug_assertions) { [20, 10] } else { [0, 0] };
    assert!(hits[0] >= least[0] && hits[1] >= least[1], "{ran:?}");
}

#[test]
fn a_case_is_played_again_by_its_number() {
    let site = Site::new(&USUAL);
    let dir = site.out.to_str().unwrap();
    let words = ["torture", "--scenario", "pairs", "--case", "3302", "--seed", "2", "--dir", dir];
    let ran = site.end(site.forebay(&words)).expect(0);
    assert!(ran.stdout.contains("pairs       1 of 1 cases played"), "{ran:?}");
}

/// How many cases of a slice had their fault.
fn faults(ran: &Ran) -> u64 {
    let line = ran.stdout.lines().find(|line| line.contains("had their fault"));
    let line = line.unwrap_or_else(|| panic!("no faults: {ran:?}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn failed_transfers_lose_nothing() {
    // The kind of transfer changes fastest in the list: a slice has all six.
    let ran = slice("backend-calls", 7);
    assert!(faults(&ran) >= 3, "{ran:?}");
}

#[test]
fn refused_allocations_lose_nothing() {
    let ran = slice("allocations", 3);
    assert!(!cfg!(debug_assertions) || faults(&ran) >= 5, "{ran:?}");
}

#[test]
fn pauses_and_kills_at_points_lose_nothing() {
    if !cfg!(debug_assertions) {
        return harness::skip("crash points are only in builds with debug assertions");
    }
    // Pauses come first in the list, then kills: a slice has both.
    let ran = played("points", 55);
    let line = ran.stdout.lines().find(|line| line.contains("came to their point")).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Some need a race, which a busy machine may not grant in time: the report names them.
    assert!(numbers[1] >= 8 && numbers[0] + 2 >= numbers[1], "{ran:?}");
}

#[test]
fn full_tiers_lose_nothing() {
    let site = Site::new(&USUAL);
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let (seed, dir) = (seed.to_string(), site.out.to_str().unwrap());
    let words = ["torture", "--scenario", "full-tiers", "--minutes", "0.1", "--dir", dir];
    let ran = site.end(site.forebay(&[&words[..], &["--seed", &seed]].concat()));
    assert!(ran.code == 0 && ran.stdout.contains("losses      none"), "seed {seed}: {ran:?}");
}
