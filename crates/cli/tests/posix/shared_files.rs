//! Several processes on one file see each other's writes at once.

use crate::harness::{self, LAZY, SLOW_STORE, Setup, Site, TINY, assert_same_bytes, tree};

/// Eight processes write records of odd size; what they leave must be the same as plainly.
fn eight_processes(setup: &Setup, how: &str, records: u32, bytes: u32) {
    let site = Site::new(setup);
    if !site.compile("shared.c", &[]) {
        return;
    }
    let status = site
        .same(&format!("$BIN/shared {how} file 8 {records} {bytes}; sort file > sorted; rm file"));
    assert!(status.count("writes") >= u64::from(8 * records), "{}", status.text);
}

#[test]
fn eight_processes_write_regions_of_one_file() {
    eight_processes(&SLOW_STORE, "disjoint", 40, 100_003);
}

#[test]
fn eight_processes_interleave_records() {
    eight_processes(&SLOW_STORE, "interleaved", 500, 5_003);
    eight_processes(&LAZY, "interleaved", 3_000, 61);
}

#[test]
fn eight_processes_append_whole_records() {
    eight_processes(&LAZY, "append", 500, 5_003);
    eight_processes(&SLOW_STORE, "append", 1_000, 97);
}

/// More threads than a process has words of shared locks, each with a description of its own, and
/// with one for all of them.
#[test]
fn a_hundred_threads_append_to_one_file() {
    let site = Site::new(&LAZY);
    if !site.compile("appenders.c", &["-pthread"]) {
        return;
    }
    let status = site
        .same("$BIN/appenders own 100 300; $BIN/appenders one 100 300; sort own > sorted; rm own");
    assert!(status.count("writes") >= 60_000, "{}", status.text);
}

#[test]
fn eight_processes_share_one_offset() {
    eight_processes(&LAZY, "inherited", 500, 5_003);
}

#[test]
fn eight_processes_overfill_the_tiers() {
    eight_processes(&TINY, "interleaved", 200, 20_011);
    eight_processes(&TINY, "append", 200, 20_011);
}

/// Random operations of three processes, one at a time: every result and the file must be as
/// without Forebay. `FOREBAY_SEED` repeats a run.
fn random_operations(setup: &Setup, offset: u64) {
    let site = Site::new(setup);
    if !site.compile("random.c", &[]) {
        return;
    }
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = given.unwrap_or((now.as_nanos() as u64 >> 10) % 1_000_000 + offset * 1_000_000);
    println!("FOREBAY_SEED={seed}");
    let script = format!("$BIN/random {seed} 700 3 file");
    let wanted = site.run_plainly(&script).expect(0);
    let (got, status) = site.run_buffered(&script);
    let different =
        got.stdout.lines().zip(wanted.stdout.lines()).find(|(got, wanted)| got != wanted);
    if let Some((got, wanted)) = different {
        panic!("FOREBAY_SEED={seed}\ngot    {got}\nwanted {wanted}");
    }
    assert_eq!((got.code, got.stdout.len()), (0, wanted.stdout.len()), "FOREBAY_SEED={seed}");
    let (got, wanted) = (tree(&site.store), tree(&site.plain));
    let content = |tree: &std::collections::BTreeMap<_, harness::Item>| {
        tree.values().next().map_or(Vec::new(), harness::Item::bytes)
    };
    assert_same_bytes(&format!("FOREBAY_SEED={seed}"), &content(&got), &content(&wanted));
    status.assert_live();
}

#[test]
fn random_operations_in_ram() {
    (0..3).for_each(|turn| random_operations(&LAZY, turn));
}

#[test]
fn random_operations_over_a_slow_store() {
    let quick = Setup { flush: "trigger = \"periodic\"\nperiod = \"20ms\"", ..SLOW_STORE };
    (3..6).for_each(|turn| random_operations(&quick, turn));
}

#[test]
fn random_operations_written_through() {
    let through = Setup { flush: "trigger = \"per-operation\"", ..LAZY };
    (6..9).for_each(|turn| random_operations(&through, turn));
}

#[test]
fn random_operations_in_tiny_tiers() {
    let tiny = Setup { flush: "trigger = \"periodic\"\nperiod = \"50ms\"", ..TINY };
    (9..12).for_each(|turn| random_operations(&tiny, turn));
}
