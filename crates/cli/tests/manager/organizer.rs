//! What the data organizer keeps in the tiers, and what it brings up.

use crate::harness::{Setup, Site, TINY};

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
    // Nothing has to leave for it, so that one epoch brings nearly all, and the next what is left.
    let (ran, status) = site.run_buffered(
        "for epoch in $(seq 12); do \
         [ $epoch != 7 ] || \"$FOREBAY\" status | awk '/count +missed_bytes/ { print $3 }'; \
         for part in 0 1 2 3 4 5; do cksum < part$part >> $OUT/sums; done; done; \
         sort $OUT/sums | uniq -c | awk '{ print $1 }'",
    );
    ran.clone().expect(0);
    let mut said = ran.stdout.split_whitespace();
    let before: u64 = said.next().unwrap().parse().unwrap();
    assert_eq!(said.collect::<Vec<_>>(), ["12"; 6], "{ran:?}");
    let missed = status.count("missed_bytes");
    assert!(missed <= 60 * MIB, "{} MiB of 288 came from the store", missed / MIB);
    let late = missed - before;
    assert!(late <= 12 * MIB, "{} MiB of the last six epochs came from the store", late / MIB);
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

/// The same tiers with rules.
fn with_rules(setup: &Setup, rules: &str) -> Site {
    let site = Site::new(setup);
    let text = std::fs::read_to_string(&site.config).unwrap();
    std::fs::write(&site.config, format!("{text}{rules}")).unwrap();
    site
}

/// What `forebay explain` says of a file while the script's run goes on.
fn explained(site: &Site, script: &str, name: &str) -> String {
    let (ran, _) = site.run_buffered(&format!("{script}; \"$FOREBAY\" explain {name}"));
    ran.expect(0).stdout
}

/// The lines of an explanation that say where the bytes are.
fn lies(explanation: &str) -> String {
    let from = explanation.find("  lies").unwrap_or_else(|| panic!("{explanation}"));
    let to = explanation.find("  new data").unwrap_or(explanation.len());
    explanation[from..to].to_owned()
}

#[test]
fn a_pinned_file_stays_where_it_is() {
    let rules = "[[rule]]\npath = \"dear\"\npin = true\n";
    let site = with_rules(&Setup { flush: "trigger = \"on-exit\"", ..DATASET }, rules);
    let script = "head -c 2M /dev/urandom > dear; head -c 2M /dev/urandom > cheap; \
        for i in 1 2 3 4; do head -c 10M /dev/zero > big$i; done";
    let dear = explained(&site, script, "dear");
    assert!(!lies(&dear).contains("nvme"), "{dear}");
    let cheap = explained(&site, script, "cheap");
    assert!(lies(&cheap).contains("nvme"), "{cheap}");
}

#[test]
fn a_rule_puts_a_file_on_the_tier_it_names() {
    let rules = "[[rule]]\npath = \"*.ckpt\"\ntier = \"nvme\"\n\
        [[rule]]\npath = \"*.log\"\npolicy = \"noop\"\n";
    let site = with_rules(&Setup { flush: "trigger = \"on-exit\"", ..DATASET }, rules);
    let (ran, status) = site.run_buffered(
        "head -c 1M /dev/urandom > a.ckpt; \
         while \"$FOREBAY\" explain a.ckpt | grep -q 'on its way'; do sleep 0.1; done; \
         head -c 1M /dev/urandom > a.log; head -c 1M /dev/urandom > a; \
         \"$FOREBAY\" explain a.ckpt; \"$FOREBAY\" explain a.log; \"$FOREBAY\" explain a",
    );
    let said = ran.expect(0).stdout;
    let places: Vec<_> = said.split("/a").skip(1).map(lies).collect();
    assert_eq!(places.len(), 3, "{said}");
    assert!(places[0].contains(" nvme ") && places[1].contains(" store "), "{said}");
    assert!(places[2].contains(" ram "), "{said}");
    assert!(status.count("write_around") >= 4, "{}", status.text);
}

#[test]
fn hotness_counts_accesses_of_each_byte() {
    let site = Site::new(&Setup { ram: "64MiB", flush: "trigger = \"on-exit\"", ..DATASET });
    let script = "dd if=/dev/zero of=large bs=64k count=320 status=none; \
        dd if=/dev/zero of=index bs=256k count=1 status=none; \
        for i in $(seq 20); do cat index > /dev/null; done; \
        dd if=/dev/zero of=cut bs=1M count=8 status=none; : > cut; echo > cut; sleep 0.2; \
        for name in large index cut; do \"$FOREBAY\" explain $name | grep hotness; done";
    let said = site.run_buffered(script).0.expect(0).stdout;
    let hotness = |line: &str| {
        let (_, number) = line.split_once("hotness of the file ").unwrap();
        number.trim_end_matches(':').parse::<f64>().unwrap()
    };
    let [large, index, cut] = said.lines().map(hotness).collect::<Vec<_>>()[..] else {
        panic!("{said}");
    };
    // Each byte was accessed once; each of the index by dd and by twenty times cat.
    assert!((0.9..=1.1).contains(&large), "{said}");
    assert!((19.0..=22.0).contains(&index), "{said}");
    assert!((0.9..=2.0).contains(&cut), "{said}");
}

/// What status says that RAM holds.
fn held(said: &str) -> Vec<&str> {
    said.lines().filter_map(|line| line.trim().strip_prefix("tier ram")).map(str::trim).collect()
}

/// Scans of the whole blocks of a file of so many MiB on a slow store, in no order: what status
/// says that RAM holds after each of them, and how many bytes were read from the store.
fn scans(site: &Site, before: &str, mib: u64, passes: usize) -> Option<(Vec<String>, Vec<u64>)> {
    if !site.compile("cold.c", &[]) {
        return None;
    }
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let bytes: Vec<u8> = (0..mib * MIB / 8).flat_map(word).collect();
    std::fs::write(site.store.join("file"), bytes).unwrap();
    let status = "\"$FOREBAY\" status | grep -E 'tier ram|count +missed_bytes'";
    let scan = format!("$BIN/cold read file {} 262144 262144 1 random; {status}", 4 * mib);
    let (ran, _) = site.run_buffered(&format!("{before}; {}", vec![scan; passes].join("; ")));
    let said = ran.expect(0).stdout;
    let held = held(&said).into_iter().map(str::to_owned).collect();
    let count = |line: &str| line.split_whitespace().next().unwrap().parse().unwrap();
    let missed = said.lines().filter_map(|line| line.split_once("missed_bytes"));
    Some((held, missed.map(|(_, line)| count(line)).collect()))
}

#[test]
fn a_scan_of_a_slow_store_fills_what_is_free() {
    let site = Site::new(&Setup { ram: "64MiB", ..DATASET });
    let Some((held, missed)) = scans(&site, "true", 16, 2) else { return };
    assert!(held.iter().all(|held| held.starts_with("16.00 MiB of")), "{held:?}");
    assert_eq!(missed, [16 * MIB; 2]);
}

#[test]
fn a_scan_of_a_slow_store_displaces_nothing_and_a_second_one_stages_what_it_reads() {
    // Three quarters of RAM and five eighths of NVMe are taken: nothing but a second use says that
    // a block will be read again.
    let full = Setup { ram: "24MiB", nvme: "8MiB", flush: "trigger = \"on-exit\"", ..DATASET };
    let site = with_rules(&full, "[[rule]]\npath = \"below\"\ntier = \"nvme\"\n");
    let fill = "dd if=/dev/zero of=below bs=1M count=5 status=none; \
        while $FOREBAY explain below | grep -q 'on its way'; do sleep 0.1; done; \
        dd if=/dev/zero of=above bs=1M count=18 status=none";
    let Some((held, missed)) = scans(&site, fill, 1, 3) else { return };
    assert!(held[0].starts_with("18.00 MiB of"), "{held:?}");
    assert!(held[1..].iter().all(|held| held.starts_with("19.00 MiB of")), "{held:?}");
    assert_eq!(missed, [MIB, 2 * MIB, 2 * MIB]);
}

#[test]
fn a_file_larger_than_all_tiers_that_is_read_in_any_order_does_not_wander_through_them() {
    let site = Site::new(&TINY);
    if !site.compile("cold.c", &[]) {
        return;
    }
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let bytes: Vec<u8> = (0..32 * MIB / 8).flat_map(word).collect();
    std::fs::write(site.store.join("file"), bytes).unwrap();
    let (ran, status) = site.run_buffered(
        "$BIN/cold read file 32 1048576 1048576 3 row; \
         $BIN/cold read file 8192 4096 4096 1 random; \"$FOREBAY\" status",
    );
    let said = ran.expect(0).stdout;
    assert!(held(&said)[0].starts_with("0 B of"), "{said}");
    assert_eq!(status.count("missed_bytes"), 4 * 32 * MIB, "{}", status.text);
}

#[test]
fn how_much_of_a_move_is_exposed_follows_the_load() {
    let exposed = |script: &str, keys: &str| {
        // Slower than what writes.
        let nvme_emulate = Some("{ bandwidth = \"60MB/s\", latency = \"1ms\" }");
        let flush = "trigger = \"on-exit\"";
        let site = Site::new(&Setup { flush, nvme_emulate, ..DATASET });
        let text = std::fs::read_to_string(&site.config).unwrap();
        std::fs::write(&site.config, format!("[placement]\n{keys}\n{text}")).unwrap();
        let said = explained(&site, script, "file");
        let (_, share) = said.rsplit_once("moves     ").unwrap_or_else(|| panic!("{said}"));
        share.trim_end().trim_end_matches(" % exposed").parse::<f64>().unwrap()
    };
    // What leaves RAM leaves it while the program computes, or while it writes.
    let computes = "for n in $(seq 20); do
        dd if=/dev/zero of=file bs=2M count=1 seek=$n conv=notrunc status=none; sleep 0.1; done";
    let writes = "dd if=/dev/zero of=file bs=256k count=200 status=none";
    let (hidden, waited_for) = (exposed(computes, ""), exposed(writes, ""));
    assert!(hidden + 15.0 <= waited_for, "{hidden} and {waited_for} %");
    assert_eq!(exposed(computes, "exposed = \"25%\""), 25.0);
}

#[test]
fn watermarks_and_half_life_are_as_configured() {
    let site = Site::new(&Setup { flush: "trigger = \"on-exit\"", ..DATASET });
    let text = std::fs::read_to_string(&site.config).unwrap();
    let keys = "low_watermark = \"60%\"\nhigh_watermark = \"75%\"\nhalf_life = \"1s\"";
    std::fs::write(&site.config, format!("[placement]\n{keys}\n{text}")).unwrap();
    let hotness = "\"$FOREBAY\" explain file | sed -n 's/.*hotness of the file \\(.*\\):/\\1/p'";
    let script = format!(
        "dd if=/dev/zero of=file bs=1M count=6 status=none; {hotness}; sleep 4; {hotness}
         \"$FOREBAY\" status | grep 'tier ram'"
    );
    let said = site.run_buffered(&script).0.expect(0).stdout;
    let lines: Vec<_> = said.lines().collect();
    let [before, after, ram] = lines[..] else { panic!("{said}") };
    let (before, after): (f64, f64) = (before.parse().unwrap(), after.parse().unwrap());
    assert!(before > 0.4 && after < before / 6.0, "{said}");
    // Of 8 MiB 40 % are in use at most: room is made from there on, down to a quarter, while the
    // program writes, and what it writes after that stays.
    let used = ram.split_whitespace().nth(2).and_then(|used| used.parse::<f64>().ok());
    assert!(used.is_some_and(|used| (2.0..=3.2).contains(&used)), "{said}");
}
