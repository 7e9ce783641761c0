//! Blocks that several nodes read: from the store once, and from each other's memory after that.
//! The store is one emulated device for all, and slow enough for that to pay.

use crate::harness::{self, LONG, Running, wait_for};
use crate::namespaces::{Node, Nodes};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Of `count` nodes that share files on a store with 64 MB/s and a latency of 4 ms.
fn sharing(nodes: &Nodes, count: usize, more: &str) -> String {
    let backing = "emulate = { bandwidth = \"64MB/s\", latency = \"4ms\", shared = \"device\" }";
    let config = nodes.configure("sharing.toml", "trigger = \"on-exit\"", backing);
    let group = format!(
        "\n[group]\nhosts = \"n[0-{}]\"\nconsistency = \"strict\"\nfolder = \"group\"\n",
        count - 1
    );
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + &group + more).unwrap();
    config
}

/// A file on the store of bytes that no two places have alike.
fn make(nodes: &Nodes, name: &str, bytes: u64, seed: u64) -> String {
    let path = nodes.store.join(name);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..bytes / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    fs::write(&path, words.collect::<Vec<u8>>()).unwrap();
    nodes[0].run(&format!("cksum < {name}")).expect(0).stdout
}

/// What the node's manager has counted of blocks, and the bytes that were read from the store here.
fn counted(node: &Node) -> (Value, u64) {
    let text = node.spawn(&[harness::FOREBAY, "status", "--json"]).end().expect(0).stdout;
    let status: Value = serde_json::from_str(&text).unwrap();
    let blocks = status[0]["group"]["blocks"].clone();
    assert!(blocks.is_object(), "{text}");
    let staged = blocks["staged_bytes"].as_u64().unwrap();
    (blocks, node.status().count("missed_bytes") + staged)
}

/// Waits until all nodes are in one view and have links: before that each reads for itself.
fn await_group(nodes: &Nodes, count: usize) {
    wait_for("the group", LONG, || {
        let is_whole = |node: &Node| {
            let ran = node.spawn(&[harness::FOREBAY, "status", "--json"]).end();
            let status: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            let group = &status[0]["group"];
            let up = |link: &&Value| link["state"] == "up";
            let links =
                group["links"].as_array().map_or(0, |links| links.iter().filter(up).count());
            group["rank"] == "inside" && links == count - 1
        };
        nodes.iter().take(count).all(is_whole).then_some(())
    });
}

/// Runs a script on each node at once, after the group is there, and lets none end before all have
/// read: what a node has is gone with its manager.
fn on_all(
    nodes: &Nodes,
    count: usize,
    config: &str,
    script: impl Fn(usize) -> String,
) -> Vec<Running> {
    on_each(nodes, &vec![config; count], script)
}

/// The same with a configuration for each.
fn on_each(nodes: &Nodes, configs: &[&str], script: impl Fn(usize) -> String) -> Vec<Running> {
    let count = configs.len();
    let runs: Vec<Running> = (0..count)
        .map(|number| {
            let script = format!("step begun{number}\n{}\nstep read{number}", script(number));
            nodes[number].spawn_buffered(configs[number], &[], &script)
        })
        .collect();
    (0..count).for_each(|number| nodes[number].at(&format!("begun{number}")));
    await_group(nodes, count);
    runs
}

fn go(nodes: &Nodes, count: usize, step: &str) {
    (0..count).for_each(|number| nodes[number].past(&format!("{step}{number}")));
}

fn all_at(nodes: &Nodes, count: usize, step: &str) {
    (0..count).for_each(|number| nodes[number].at(&format!("{step}{number}")));
}

#[test]
fn a_file_that_all_read_at_once_is_read_from_the_store_once() {
    let Some(nodes) = Nodes::new(3) else { return };
    let sum = make(&nodes, "data", 24 * MIB, 1);
    let config = sharing(&nodes, 3, "");
    let runs = on_all(&nodes, 3, &config, |_| "cksum < data; cksum < data".to_owned());
    go(&nodes, 3, "begun");
    all_at(&nodes, 3, "read");
    let counts: Vec<_> = nodes.iter().map(counted).collect();
    let read: u64 = counts.iter().map(|(_, bytes)| bytes).sum();
    assert!(read <= 24 * MIB * 11 / 10, "{read} bytes were read from the store: {counts:?}");
    let of =
        |key: &str| counts.iter().map(|(blocks, _)| blocks[key].as_u64().unwrap()).sum::<u64>();
    assert!(of("from_nodes") >= 2 * 96 * 9 / 10, "{counts:?}");
    go(&nodes, 3, "read");
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, format!("{sum}{sum}"));
    }
}

#[test]
fn small_files_are_read_once_by_the_group_however_they_are_dealt_out() {
    let Some(nodes) = Nodes::new(3) else { return };
    const FILES: usize = 90;
    let sums: Vec<String> = (0..FILES)
        .map(|n| make(&nodes, &format!("f{n}"), 8 * 1024 + 512 * n as u64, n as u64))
        .collect();
    let all: u64 = (0..FILES as u64).map(|n| 8 * 1024 + 512 * n).sum();
    let config = sharing(&nodes, 3, "");
    let script = |number: usize| {
        let epoch = |epoch: usize| {
            let mine = (0..FILES).filter(|n| (n + epoch) % 3 == number);
            let names: Vec<String> = mine.map(|n| format!("f{n}")).collect();
            format!("for f in {}; do cksum < $f; done", names.join(" "))
        };
        format!("{}\nstep first{number}\n{}", epoch(0), epoch(1))
    };
    let runs = on_all(&nodes, 3, &config, script);
    go(&nodes, 3, "begun");
    all_at(&nodes, 3, "first");
    go(&nodes, 3, "first");
    all_at(&nodes, 3, "read");
    let counts: Vec<_> = nodes.iter().map(counted).collect();
    let read: u64 = counts.iter().map(|(_, bytes)| bytes).sum();
    assert!(read <= all * 11 / 10, "{read} of {all} bytes were read from the store: {counts:?}");
    go(&nodes, 3, "read");
    for (number, run) in runs.into_iter().enumerate() {
        let of = |epoch: usize| (0..FILES).filter(move |n| (n + epoch) % 3 == number);
        let wanted: String = of(0).chain(of(1)).map(|n| &sums[n][..]).collect();
        assert_eq!(run.end().expect(0).stdout, wanted);
    }
}

/// A node that has copies goes, in each way that a node can go, while another one reads them.
#[test]
fn a_holder_that_goes_in_the_middle_costs_time_and_no_bytes() {
    for way in ["killed", "stopped", "cut"] {
        let Some(nodes) = Nodes::new(2) else { return };
        let sum = make(&nodes, "data", 24 * MIB, 3);
        let config = sharing(&nodes, 2, "");
        let script = |number: usize| match number {
            0 => "cksum < data".to_owned(),
            _ => "step wait; (head -c 4000000; : > $OUT/started; cat) < data | cksum".to_owned(),
        };
        let mut runs = on_all(&nodes, 2, &config, script);
        nodes[0].past("begun0");
        nodes[0].at("read0");
        nodes[1].past("begun1");
        nodes[1].at("wait");
        nodes[1].past("wait");
        wait_for("the reader", LONG, || nodes.out.join("started").exists().then_some(()));
        let began = Instant::now();
        match way {
            "killed" => nodes[0].kill_all(),
            "stopped" => nodes[0].signal(Signal::STOP),
            _ => nodes.set_link(0, false),
        }
        nodes[1].at("read1");
        // Bounded by deadlines, and far from 80 blocks that each wait for one.
        assert!(began.elapsed() < Duration::from_secs(30), "{way}: {:?}", began.elapsed());
        let (blocks, _) = counted(&nodes[1]);
        assert!(blocks["from_nodes"].as_u64() > Some(0), "{way}: {blocks}");
        match way {
            "stopped" => nodes[0].signal(Signal::CONT),
            "cut" => nodes.set_link(0, true),
            _ => {}
        }
        nodes[1].past("read1");
        assert_eq!(runs.pop().unwrap().end().expect(0).stdout, sum, "{way}");
        nodes[0].past("read0");
        let ran = runs.pop().unwrap().end();
        if way == "killed" {
            nodes[0].spawn(&[harness::FOREBAY, "recover"]).end().expect(0);
        } else {
            assert_eq!(ran.expect(0).stdout, sum, "{way}");
        }
    }
}

/// A file that one node writes anew, again and again, while two others read it: each read is one of
/// a version as a whole, and never an older one than was read before.
#[test]
fn readers_never_see_what_a_writer_has_replaced() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = sharing(&nodes, 3, "");
    fs::write(nodes.store.join("file"), vec![b'0'; 600_000]).unwrap();
    let script = |number: usize| {
        match number {
        0 => "for v in 1 2 3 4 5 6; do \
              head -c 600000 /dev/zero | tr '\\0' $v | dd of=file bs=600000 iflag=fullblock conv=notrunc status=none; \
              echo $v > $OUT/version; cksum < file > /dev/null; done"
            .to_owned(),
        _ => "end=$((SECONDS + 60)); while [ $SECONDS -lt $end ]; do \
              known=$(cat $OUT/version); seen=$(tr -d '\\n' < file | fold -w 600000 | cut -c1); \
              [ \"$seen\" -ge \"$known\" ] || { echo \"read $seen after $known\"; exit 1; }; \
              last=$(tail -c 1 file); [ \"$last\" -ge \"$known\" ] || { echo \"end $last after $known\"; exit 1; }; \
              [ $known = 6 ] && break; done; echo read"
            .to_owned(),
    }
    };
    fs::write(nodes.out.join("version"), "0\n").unwrap();
    let busy =
        (0..2).map(|_| nodes[0].spawn(&["sh", "-c", "while [ ! -e $OUT/quiet ]; do :; done"]));
    let busy: Vec<_> = busy.collect();
    let runs = on_all(&nodes, 3, &config, script);
    go(&nodes, 3, "begun");
    all_at(&nodes, 3, "read");
    go(&nodes, 3, "read");
    let outputs: Vec<_> = runs.into_iter().map(Running::end).collect();
    fs::write(nodes.out.join("quiet"), "").unwrap();
    busy.into_iter().for_each(|run| drop(run.end().expect(0)));
    for (number, ran) in outputs.into_iter().enumerate() {
        let ran = ran.expect(0);
        assert!(number == 0 || ran.stdout == "read\n", "{number}: {ran:?}");
    }
}

/// What a node said to have it has evicted: its readers go to the store, and get the right bytes.
#[test]
fn holders_that_have_evicted_send_their_readers_to_the_store() {
    let Some(nodes) = Nodes::new(2) else { return };
    let sum = make(&nodes, "data", 24 * MIB, 5);
    let config = sharing(&nodes, 2, "");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"32MiB\"", "\"4MiB\"")).unwrap();
    let runs = on_all(&nodes, 2, &config, |_| "cksum < data; cksum < data".to_owned());
    go(&nodes, 2, "begun");
    all_at(&nodes, 2, "read");
    go(&nodes, 2, "read");
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, format!("{sum}{sum}"));
    }
}

/// A copy of a configuration, with a RAM tier of so much.
fn with_ram(nodes: &Nodes, config: &str, ram: &str) -> String {
    let text = fs::read_to_string(config).unwrap();
    let path = nodes.root().join(format!("ram-{ram}.toml"));
    fs::write(&path, text.replacen("\"32MiB\"", &format!("\"{ram}\""), 1)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What has left RAM for a file tier of one node comes from there, and not from the store.
#[test]
fn blocks_on_a_file_tier_of_another_node_come_from_there() {
    let Some(nodes) = Nodes::new(2) else { return };
    let sum = make(&nodes, "data", 12 * MIB, 6);
    let config = sharing(&nodes, 2, "");
    let small = with_ram(&nodes, &config, "4MiB");
    let script = |number: usize| match number {
        0 => "cksum < data".to_owned(),
        _ => "step wait; cksum < data".to_owned(),
    };
    let runs = on_each(&nodes, &[&small, &config], script);
    go(&nodes, 2, "begun");
    nodes[0].at("read0");
    nodes[1].at("wait");
    nodes[1].past("wait");
    nodes[1].at("read1");
    let counts: Vec<_> = nodes.iter().map(counted).collect();
    let read: u64 = counts.iter().map(|(_, bytes)| bytes).sum();
    assert!(read <= 12 * MIB * 11 / 10, "{read} bytes were read from the store: {counts:?}");
    let given = counts[0].0["given_from_tiers"].as_u64().unwrap();
    assert!(given >= 48 / 2, "{counts:?}");
    go(&nodes, 2, "read");
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, sum);
    }
}

/// A holder whose file tier is slower than the store says so, and its readers go there.
#[test]
fn blocks_on_a_tier_that_is_slower_than_the_store_are_not_given() {
    let Some(nodes) = Nodes::new(2) else { return };
    let sum = make(&nodes, "data", 8 * MIB, 7);
    let config = sharing(&nodes, 2, "");
    let small = with_ram(&nodes, &config, "4MiB");
    let text = fs::read_to_string(&small).unwrap();
    let slow = "path = \"node/nvme\"\nemulate = { bandwidth = \"20MB/s\", latency = \"20ms\" }";
    fs::write(&small, text.replace("path = \"node/nvme\"", slow)).unwrap();
    let script = |number: usize| match number {
        // What was read again is kept below, however slow that is.
        0 => "for i in 1 2 3; do cksum < data; done".to_owned(),
        _ => "step wait; cksum < data".to_owned(),
    };
    let mut runs = on_each(&nodes, &[&small, &config], script);
    go(&nodes, 2, "begun");
    nodes[0].at("read0");
    nodes[1].at("wait");
    nodes[1].past("wait");
    nodes[1].at("read1");
    let (holder, _) = counted(&nodes[0]);
    assert!(holder["declined"].as_u64() > Some(0), "{holder}");
    assert_eq!(holder["given_from_tiers"], 0, "{holder}");
    let shown = nodes[0].status().text;
    assert!(shown.contains("not given, as the store is faster"), "{shown}");
    go(&nodes, 2, "read");
    assert_eq!(runs.pop().unwrap().end().expect(0).stdout, sum);
    assert_eq!(runs.pop().unwrap().end().expect(0).stdout, sum.repeat(3));
}
