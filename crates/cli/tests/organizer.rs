//! What the data organizer keeps in the tiers, and what it brings up.

mod common;

use common::{Setup, Site, TINY};

/// A data set of 24 MiB does not fit in RAM, only in RAM and NVMe together.
const DATASET: Setup = Setup {
    ram: "8MiB",
    nvme: "64MiB",
    store_emulate: Some("{ bandwidth = \"200MB/s\", latency = \"1ms\" }"),
    ..TINY
};

const MIB: u64 = 1 << 20;

/// Fills a file of 4 MiB on the store, behind Forebay's back.
fn store(site: &Site, part: u64) {
    let word = |n: u64| (n ^ part << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let bytes: Vec<u8> = (0..4 * MIB / 8).flat_map(word).collect();
    std::fs::write(site.store.join(format!("part{part}")), bytes).unwrap();
}

#[test]
fn a_data_set_that_is_read_again_and_again_comes_from_the_tiers() {
    let site = Site::new(&DATASET);
    for part in 0..6 {
        store(&site, part);
    }
    let (ran, status) = site.run_buffered(
        "for epoch in $(seq 12); do for part in 0 1 2 3 4 5; do cksum < part$part; done; done \
         | sort | uniq -c | sort -n | awk '{ print $1 }'",
    );
    ran.clone().expect(0);
    assert_eq!(ran.stdout.split_whitespace().collect::<Vec<_>>(), ["12"; 6], "{ran:?}");
    // The first epoch is not taken for a habit; the second fills the tiers.
    let missed = status.count("missed_bytes");
    assert!(missed <= 4 * 24 * MIB, "{} MiB came from the store", missed / MIB);
}

#[test]
fn what_is_used_often_on_a_lower_tier_goes_up() {
    // Nothing is clean, so nothing is dropped.
    let site = Site::new(&Setup { flush: "trigger = \"on-exit\"", ..DATASET });
    let trace = site.root().join("trace.csv");
    let script = "dd if=/dev/zero of=hot bs=1M count=2 status=none; \
        dd if=/dev/zero of=cold bs=1M count=20 status=none; sleep 1; \
        for i in $(seq 30); do cksum < hot > /dev/null; sleep 0.1; done";
    let mut command = site.forebay(&["run", "--config"]);
    command.arg(&site.config).arg("--trace").arg(&trace).args(["--", "bash", "-c", script]);
    command.current_dir(&site.store);
    site.end(command).expect(0);
    let trace = std::fs::read_to_string(trace).unwrap();
    let moves = |what: &str| trace.lines().filter(|line| line.contains(what)).count();
    assert!(moves("demote") > 0, "{trace}");
    assert!(moves("promote") > 0, "{trace}");
}
