//! What programs do is recorded, and replayed in the simulator: the same bytes move between the
//! same tiers.

use crate::harness::{Site, TINY, have, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

const MIB: u64 = 1 << 20;

/// Devices so slow that their time is what decides, whatever else the machine does.
const HIERARCHY: &str = r#"
[[backing]]
path = "store"
emulate = { bandwidth = { read = "60MB/s", write = "50MB/s" }, latency = "4ms" }
[[tier]]
name = "ram"
kind = "ram"
capacity = "8MiB"
[[tier]]
name = "nvme"
kind = "file"
path = "nvme"
capacity = "16MiB"
emulate = { bandwidth = { read = "240MB/s", write = "200MB/s" }, latency = "20us" }
[[tier]]
name = "bb"
kind = "file"
path = "bb"
capacity = "64MiB"
emulate = { bandwidth = { read = "84MB/s", write = "70MB/s" }, latency = "60us" }
"#;
const POLICIES: [&str; 4] = ["max-bandwidth", "max-locality", "hot-data", "user-defined"];
const TRIGGERS: [&str; 4] = ["on-exit", "periodic", "per-file", "per-operation"];
/// Of one policy: the rest of its files goes where room is.
const RULES: &str = "[[rule]]\npath = \"huge\"\ntier = \"bb\"\n";
/// An index of 512 KiB, nine files of 4 MiB, and one of 12, each followed by 150 ms without I/O.
/// The store takes 4 MiB in 104 ms: were that as long as the pause, microseconds would decide of
/// each file whether it is clean when the next one needs its room.
const PROGRAM: [&str; 3] = ["10", "4", "150"];
const WRITTEN: u64 = 48 * MIB + MIB / 2;
/// How often a run is recorded at most: no two move quite the same.
const RECORDINGS: u32 = 16;
/// Two runs agree if what moves between any two tiers differs by at most this share of what the
/// program wrote; where the order of a flush and a move decides more, by the second.
const SHARES: (u64, u64) = (10, 4);
/// See docs/design/simulator.md.
const LOOSE: (&str, &str) = ("max-locality", "per-operation");
/// A program that took longer to write had a machine that others kept from it: it takes 0.1 to 0.4
/// s. Such a recording says nothing about devices.
const BUSY_S: f64 = 0.7;

/// Bytes by where from and where to.
type Moved = BTreeMap<(String, String), u64>;

fn moved(report: &Value) -> Moved {
    let ways = report["moved"].as_array().unwrap().iter();
    let way = |way: &Value| {
        let name = |key: &str| way[key].as_str().unwrap().to_owned();
        ((name("from"), name("to")), way["bytes"].as_u64().unwrap())
    };
    ways.map(way).collect()
}

/// The largest difference between two runs, in bytes, and between which tiers.
fn difference(one: &Moved, other: &Moved) -> (u64, String) {
    let of = |moved: &Moved, way: &(String, String)| moved.get(way).copied().unwrap_or(0);
    let ways = one.keys().chain(other.keys());
    let each = ways.map(|way| (of(one, way).abs_diff(of(other, way)), format!("{way:?}")));
    each.max().unwrap_or_default()
}

/// Records a run of the program, replays it, and returns what moved in both.
fn both(site: &Site, policy: &str, trigger: &str) -> (Moved, Moved, String) {
    let rules = if policy == "user-defined" { RULES } else { "" };
    let settings = format!(
        "[placement]\npolicy = \"{policy}\"\n[flush]\ntrigger = \"{trigger}\"\nperiod = \"50ms\"\n"
    );
    fs::write(&site.config, format!("{settings}{HIERARCHY}{rules}")).unwrap();
    let config = site.config.to_str().unwrap();
    let [calls, moves] = ["calls.csv", "moves.csv"].map(|name| site.root().join(name));
    let [calls, moves] = [calls.to_str().unwrap(), moves.to_str().unwrap()];
    let program = site.root().join("phases");
    let words = ["run", "--config", config, "--trace", moves, "--record", calls, "--"];
    let store = site.root().join("store");
    let program = [program.to_str().unwrap(), store.to_str().unwrap()];
    site.end(site.forebay(&[&words[..], &program, &PROGRAM].concat())).expect(0);
    let words = ["simulate", "--replay", calls, "--config", config, "--trace", moves, "--json"];
    let said = site.end(site.forebay(&words)).expect(0).stdout;
    let report: Value = serde_json::from_str(&said).unwrap();
    for name in fs::read_dir(store).unwrap() {
        fs::remove_file(name.unwrap().path()).unwrap();
    }
    (moved(&report["recorded"]), moved(&report["replayed"]), said)
}

#[test]
fn a_replay_moves_what_the_recorded_run_has_moved() {
    let site = Site::new(&TINY);
    if !site.compile("phases.c", &[]) {
        return;
    }
    fs::create_dir_all(site.root().join("bb")).unwrap();
    for policy in POLICIES {
        for trigger in TRIGGERS {
            let is_loose = (policy, trigger) == LOOSE;
            let most = WRITTEN / if is_loose { SHARES.1 } else { SHARES.0 };
            let (mut seen, mut last) = (Vec::new(), String::new());
            let agrees = (0..RECORDINGS).any(|_| {
                let (recorded, replayed, said) = both(&site, policy, trigger);
                let flushed = |moved: &Moved| {
                    let ways = moved.iter().filter(|((_, to), _)| to == "store");
                    ways.map(|(_, bytes)| bytes).sum::<u64>()
                };
                // All of it, in both, and nothing twice but what was written while it was flushed.
                assert!(flushed(&recorded) >= WRITTEN, "{policy}, {trigger}: {said}");
                assert!(flushed(&replayed) >= WRITTEN, "{policy}, {trigger}: {said}");
                let report: Value = serde_json::from_str(&said).unwrap();
                if report["recorded"]["write_s"].as_f64().unwrap() > BUSY_S {
                    return false;
                }
                let (bytes, way) = difference(&recorded, &replayed);
                seen.push(format!("{way} by {bytes}"));
                last = said;
                bytes <= most
            });
            if seen.is_empty() {
                skip(&format!("{policy}, {trigger}: this machine was busy in each recording"));
                continue;
            }
            println!("{policy}, {trigger}: {seen:?} of {most}: {last}");
            assert!(agrees, "{policy}, {trigger} differs more than {most}: {seen:?}, {last}");
        }
    }
}

#[test]
fn a_replay_flushes_nothing_of_what_a_run_removes_and_cuts() {
    if !have(&["dd", "cp", "mv", "rm", "truncate"]) {
        return skip("no dd, cp, mv, rm or truncate");
    }
    let site = Site::new(&TINY);
    fs::create_dir_all(site.root().join("bb")).unwrap();
    let settings = "[placement]\npolicy = \"max-bandwidth\"\n[flush]\ntrigger = \"on-exit\"\n";
    fs::write(&site.config, format!("{settings}{HIERARCHY}")).unwrap();
    let [calls, moves] = ["calls.csv", "moves.csv"].map(|name| site.root().join(name));
    let [calls, moves] = [calls.to_str().unwrap(), moves.to_str().unwrap()];
    let script = "cd \"$1\" && dd if=/dev/zero of=gone bs=1M count=4 status=none && \
                  dd if=/dev/zero of=kept bs=1M count=1 status=none && \
                  truncate -s 300K kept && cp kept copy && \
                  dd if=/dev/zero of=old bs=1M count=2 status=none && mv kept old && rm gone";
    let config = site.config.to_str().unwrap();
    let store = site.root().join("store");
    let words = ["run", "--config", config, "--trace", moves, "--record", calls, "--"];
    let program = ["sh", "-c", script, "sh", store.to_str().unwrap()];
    site.end(site.forebay(&[&words[..], &program].concat())).expect(0);
    let text = fs::read_to_string(calls).unwrap();
    let count = |operation: &str, file: &str, offset: &str| {
        let is_it = |line: &&str| {
            let fields: Vec<&str> = line.split(',').collect();
            fields[1] == operation && fields[2].ends_with(file) && fields[3] == offset
        };
        text.lines().filter(is_it).count()
    };
    assert_eq!(count("truncate", "/kept", "307200"), 1, "{text}");
    assert_eq!((count("remove", "/gone", ""), count("remove", "/old", "")), (1, 1), "{text}");
    assert_eq!(count("remove", "/kept", ""), 0, "it has another name: {text}");
    assert!(count("read", "/kept", "0") > 0 && count("write", "/copy", "0") > 0, "{text}");
    let words = ["simulate", "--replay", calls, "--config", config, "--trace", moves, "--json"];
    let said = site.end(site.forebay(&words)).expect(0).stdout;
    let report: Value = serde_json::from_str(&said).unwrap();
    let flushed = |run: &str| {
        let moved = moved(&report[run]);
        moved.iter().filter(|((_, to), _)| to == "store").map(|(_, bytes)| bytes).sum::<u64>()
    };
    let [recorded, replayed] = ["recorded", "replayed"].map(flushed);
    assert_eq!((recorded, replayed), (600 << 10, 600 << 10), "{said}");
    fs::write(moves, "").unwrap();
    let refused = site.end(site.forebay(&words));
    let wanted = format!("{moves}:1: a trace of movements begins with start_us,");
    assert!(refused.stderr.contains(&wanted), "{}", refused.stderr);
    refused.expect(125);
}

#[test]
fn calls_of_all_processes_of_a_run_are_recorded() {
    if !have(&["dd"]) {
        return skip("no dd");
    }
    let site = Site::new(&TINY);
    let calls = site.root().join("calls.csv");
    // Also of one that gets no environment, of one that is forked, and of what is appended.
    let script = "dd if=/dev/zero of=plain bs=4096 count=3 status=none && \
                  env -i dd if=/dev/zero of=bare bs=1000 count=2 status=none && \
                  (echo more >> plain) && dd if=plain of=/dev/null bs=1M status=none && \
                  dd if=\"$1\" of=/dev/null status=none";
    let config = site.config.to_str().unwrap();
    let words = ["run", "--config", config, "--record", calls.to_str().unwrap()];
    let program = ["--", "bash", "-c", script, "bash", config];
    site.end(site.forebay(&[&words[..], &program].concat())).expect(0);
    let text = fs::read_to_string(&calls).unwrap();
    assert!(!text.contains(config), "it is not in the store: {text}");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0].join(","), "rank,operation,file,offset,bytes,seconds");
    assert_eq!(lines[1][1], "begin", "{text}");
    let count = |operation: &str, file: &str, offset: &str, bytes: &str| {
        let is_it = |line: &&Vec<&str>| {
            line[1] == operation && line[2].ends_with(file) && line[3] == offset && line[4] == bytes
        };
        lines.iter().filter(is_it).count()
    };
    for block in ["0", "4096", "8192"] {
        assert_eq!(count("write", "/plain", block, "4096"), 1, "{text}");
    }
    assert_eq!(count("write", "/bare", "1000", "1000"), 1, "{text}");
    assert_eq!(count("write", "/plain", "12288", "5"), 1, "{text}");
    assert_eq!(count("read", "/plain", "0", "12293"), 1, "{text}");
    assert_eq!((count("create", "/plain", "", ""), count("create", "/bare", "", "")), (1, 1));
    assert_eq!(count("open", "/plain", "", ""), 2, "{text}");
    assert_eq!(count("close", "/plain", "", ""), 3, "{text}");
    let ranks: std::collections::BTreeSet<&str> = lines[2..].iter().map(|line| line[0]).collect();
    assert_eq!(ranks.len(), 4, "{text}");
    let refused =
        site.end(site.forebay(&["run", "--config", config, "--record", "/no/file", "true"]));
    let said = refused.expect(125).stderr;
    assert!(said.contains("--record: /no/file: "), "{said}");
}
