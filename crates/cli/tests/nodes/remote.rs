//! Blocks that several nodes read: from the store once, and from each other's memory after that.
//! The store is one emulated device for all, and slow enough for that to pay.

use crate::harness::{self, LONG, Ran, Running, wait_for};
use crate::namespaces::{Node, Nodes};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Of `count` nodes that share files on a store with 64 MB/s and a latency of 4 ms.
pub fn sharing(nodes: &Nodes, count: usize, more: &str) -> String {
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
pub fn await_group(nodes: &Nodes, count: usize) {
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
pub fn on_all(
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

pub fn go(nodes: &Nodes, count: usize, step: &str) {
    (0..count).for_each(|number| nodes[number].past(&format!("{step}{number}")));
}

pub fn all_at(nodes: &Nodes, count: usize, step: &str) {
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

/// What a node has just written lies in its memory, and those that read it get it from there.
#[test]
fn what_another_node_has_written_is_read_from_its_memory() {
    let Some(nodes) = Nodes::new(2) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = with_ram(&nodes, &sharing(&nodes, 2, ""), "64MiB");
    // Each writes a file of its own, and every second record of one that both have open.
    let records = |what: &str, file: &str, rank: usize, ranks: usize| {
        format!("$OUT/records {what} strided {file} {rank} {ranks} {} {MIB}", 4 * ranks)
    };
    let runs = on_all(&nodes, 2, &config, |node| {
        let other = 1 - node;
        let write =
            [records("write", &format!("own-{node}"), 0, 1), records("write", "shared", node, 2)];
        let read = [format!("cksum < own-{other}"), records("check", "shared", other, 2)];
        let (write, read) = (write.join(" && "), read.join(" && "));
        format!("exec 9<>shared\nstep open{node}\n{write} || exit 1\nstep wrote{node}\n{read}")
    });
    go(&nodes, 2, "begun");
    all_at(&nodes, 2, "open");
    go(&nodes, 2, "open");
    all_at(&nodes, 2, "wrote");
    go(&nodes, 2, "wrote");
    all_at(&nodes, 2, "read");
    let counts: Vec<_> = nodes.iter().map(counted).collect();
    for (blocks, bytes) in &counts {
        assert!(*bytes <= 8 * MIB * 2 / 10, "{bytes} bytes were read from the store: {counts:?}");
        assert!(blocks["from_nodes"].as_u64().unwrap() >= 32 * 8 / 10, "{counts:?}");
    }
    go(&nodes, 2, "read");
    for run in runs {
        let ran = run.end().expect(0);
        let sum = nodes[0].run("cksum < own-0").expect(0).stdout;
        assert_eq!(ran.stdout, format!("ok\nok\n{sum}ok\n"), "{ran:?}");
    }
}

/// Questions that a node has sent for blocks: who has them, and for their bytes.
fn asked(blocks: &Value) -> [u64; 2] {
    ["finds", "gets"].map(|key| blocks[key].as_u64().unwrap())
}

/// Node 0 writes files, and node 1 reads each of their blocks, without order: what node 1 has
/// counted after it has read them, and how many it has read.
fn asked_for_what_another_has_written(
    nodes: &Nodes,
    (files, blocks, bytes): (usize, usize, usize),
) -> Value {
    let count = nodes.iter().count();
    let config = with_ram(nodes, &sharing(nodes, count, ""), "64MiB");
    // Beside a machine's other work the store is to be the slower one still.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"4ms\"", "\"30ms\"")).unwrap();
    let script = |number: usize| {
        let each = |what: &str| format!("for f in $(seq {files}); do {what}; done");
        // Every third of them, so that no run of blocks is brought up ahead.
        let order: Vec<String> =
            (0..3).flat_map(|n| (n..blocks).step_by(3)).map(|n| n.to_string()).collect();
        let copy = format!(
            "dd if=f$f bs={bytes} skip=$b count=1 status=none | cmp - <(tail -c +$((b*{bytes}+1)) \
             $OUT/f$f | head -c {bytes}) || exit 1"
        );
        match number {
            0 => each(&format!("head -c {} /dev/urandom | tee $OUT/f$f > f$f", blocks * bytes)),
            1 => {
                let all = format!("for b in {}; do {copy}; done", order.join(" "));
                format!("step wait\n{}", each(&all))
            }
            _ => String::new(),
        }
    };
    let runs = on_all(nodes, count, &config, script);
    go(nodes, count, "begun");
    nodes[0].at("read0");
    nodes[1].at("wait");
    nodes[1].past("wait");
    nodes[1].at("read1");
    let (counts, missed) = counted(&nodes[1]);
    go(nodes, count, "read");
    runs.into_iter().for_each(|run| drop(run.end().expect(0)));
    let [finds, gets] = asked(&counts);
    println!("{files} files of {blocks} blocks: {finds} finds, {gets} gets: {counts}");
    let all = (files * blocks) as u64;
    assert!(counts["from_nodes"].as_u64().unwrap() >= all * 9 / 10, "{missed}, {counts}");
    counts
}

/// One node is asked where the blocks of a run are, once, and those that have them for each block.
#[test]
fn a_block_that_another_node_has_written_costs_one_question() {
    let Some(nodes) = Nodes::new(3) else { return };
    let (files, blocks) = (12, 12);
    let counts = asked_for_what_another_has_written(&nodes, (files, blocks, MIB as usize / 4));
    let asked: u64 = asked(&counts).iter().sum();
    let most = (files * blocks + files) as u64;
    assert!(asked <= most, "{asked} questions, and not {most}: {counts}");
}

/// Of two nodes the one that knows where a block is has it.
#[test]
fn a_small_file_that_the_other_node_has_written_costs_one_question() {
    let Some(nodes) = Nodes::new(2) else { return };
    let files = 48;
    let counts = asked_for_what_another_has_written(&nodes, (files, 1, 4096));
    let asked: u64 = asked(&counts).iter().sum();
    assert!(asked <= files as u64, "{asked} questions, and not {files}: {counts}");
}

/// With the word that it may read a file a node gets to know who has its first blocks.
#[test]
fn a_small_file_costs_one_question_where_a_third_node_knows_who_has_it() {
    let Some(nodes) = Nodes::new(3) else { return };
    let files = 96;
    let counts = asked_for_what_another_has_written(&nodes, (files, 1, 4096));
    let asked: u64 = asked(&counts).iter().sum();
    // A program may be faster than that word.
    let most = (files + files / 8) as u64;
    assert!(asked <= most, "{asked} questions, and not {most}: {counts}");
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
              echo $v > $OUT/next; mv $OUT/next $OUT/version; cksum < file > /dev/null; done"
            .to_owned(),
        _ => "end=$((SECONDS + 60)); while [ $SECONDS -lt $end ]; do \
              known=$(cat $OUT/version); seen=$(tr -d '\\n' < file | fold -w 600000 | cut -c1); \
              [ \"$seen\" -ge \"$known\" ] || { echo \"read $seen after $known\"; break; }; \
              last=$(tail -c 1 file); [ \"$last\" -ge \"$known\" ] || { echo \"end $last after $known\"; break; }; \
              [ $known = 6 ] && break; done; echo read"
            .to_owned(),
    }
    };
    fs::write(nodes.out.join("version"), "0\n").unwrap();
    let busy = Busy::new(&nodes);
    let runs = on_all(&nodes, 3, &config, script);
    go(&nodes, 3, "begun");
    all_at(&nodes, 3, "read");
    go(&nodes, 3, "read");
    let outputs: Vec<_> = runs.into_iter().map(Running::end).collect();
    busy.end(&nodes);
    for (number, ran) in outputs.into_iter().enumerate() {
        let ran = ran.expect(0);
        assert!(number == 0 || ran.stdout == "read\n", "{number}: {ran:?}");
    }
}

/// Loops that keep two processors busy.
pub struct Busy(Vec<Running>);

impl Busy {
    pub fn new(nodes: &Nodes) -> Busy {
        let run = |_| nodes[0].spawn(&["sh", "-c", "while [ ! -e $OUT/quiet ]; do :; done"]);
        Busy((0..2).map(run).collect())
    }

    pub fn end(self, nodes: &Nodes) {
        fs::write(nodes.out.join("quiet"), "").unwrap();
        self.0.into_iter().for_each(|run| drop(run.end().expect(0)));
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
pub fn with_ram(nodes: &Nodes, config: &str, ram: &str) -> String {
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

/// What goes wrong with the managers of readers: a script of faults, and variables in which `$OUT`
/// is the folder of all nodes.
#[derive(Default)]
struct Trouble<'t> {
    script: &'t str,
    variables: &'t [(&'t str, &'t str)],
}

/// What has come of it.
struct Outcome {
    nodes: Nodes,
    seed: u64,
    /// Of the writer, and of the readers.
    rans: Vec<Ran>,
    /// What the managers of the readers have counted of blocks.
    counts: [Value; 2],
}

/// Files of the writer and its readers.
const FILES: usize = 6;

/// Two nodes with small tiers read files of which a third one changes pages, for some seconds,
/// while something goes wrong with the managers of the readers. `meanwhile` is called while all are
/// at work.
fn in_trouble(trouble: &Trouble, meanwhile: impl Fn(&Nodes)) -> Option<Outcome> {
    let nodes = Nodes::new(3)?;
    if !harness::compile_into(&nodes.out, "versions.c", &[]) {
        return None;
    }
    let (seed, out) = (crate::strict::seed(), nodes.out.to_str().unwrap().to_owned());
    nodes[0].run(&format!("$OUT/versions make {FILES}")).expect(0);
    let config = sharing(&nodes, 3, "");
    let small = with_ram(&nodes, &config, "4MiB");
    fs::write(nodes.out.join("faults"), trouble.script).unwrap();
    let with_script = !trouble.script.is_empty();
    let script = [("FOREBAY_FAULTS", "$OUT/faults"), ("FOREBAY_FAULTS_LOG", "$OUT/hits")];
    let script = script.iter().filter(|_| with_script);
    let variables = script.chain(trouble.variables);
    let variables: Vec<String> =
        variables.map(|(name, what)| format!("{name}={}", what.replace("$OUT", &out))).collect();
    let run = |number: usize| {
        let what = if number == 0 { "write" } else { "read" };
        let calls = format!("$OUT/versions {what} $OUT/table {FILES} {}", seed + number as u64);
        let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }";
        let script =
            format!("{step}; step begun{number}; {calls}; code=$?; step read{number}; exit $code");
        let run = [harness::FOREBAY, "run", "--config", &small, "--", "bash", "-c", &script];
        let variables = variables.iter().map(String::as_str).filter(|_| number > 0);
        let words: Vec<&str> = ["env"].into_iter().chain(variables).chain(run).collect();
        nodes[number].spawn(&words)
    };
    let runs: Vec<Running> = (0..3).map(run).collect();
    (0..3).for_each(|number| nodes[number].at(&format!("begun{number}")));
    await_group(&nodes, 3);
    go(&nodes, 3, "begun");
    std::thread::sleep(Duration::from_secs(4));
    meanwhile(&nodes);
    std::thread::sleep(Duration::from_secs(4));
    fs::write(nodes.out.join("table.end"), "").unwrap();
    all_at(&nodes, 3, "read");
    let counts = [1, 2].map(|number| counted(&nodes[number]).0);
    go(&nodes, 3, "read");
    let rans = runs.into_iter().map(Running::end).collect();
    Some(Outcome { nodes, seed, rans, counts })
}

impl Outcome {
    /// Each page that was read was one of a version that it may have been of, each call has ended
    /// in time, and the store has the last versions.
    fn assert_right(&self) {
        const LONGEST: f64 = 30.0;
        let Outcome { nodes, seed, rans, counts } = self;
        for (number, ran) in rans.iter().enumerate() {
            let words: Vec<&str> = ran.stdout.split_whitespace().collect();
            let ["ok,", calls, "calls,", "the", "longest", longest, "s"] = words[..] else {
                panic!("node {number}, seed {seed}: {ran:?}");
            };
            println!("node {number}: {calls} calls, the longest {longest} s");
            let (calls, longest): (u64, f64) = (calls.parse().unwrap(), longest.parse().unwrap());
            let ends = ran.code == 0 && calls >= 5 && longest < LONGEST;
            assert!(ends, "node {number}, seed {seed}: {ran:?}, {counts:?}");
        }
        println!("{counts:?}");
        nodes[0].run(&format!("$OUT/versions check $OUT/table {FILES}")).expect(0);
    }

    /// Some page was not right.
    fn assert_wrong(&self) {
        let is_wrong = |ran: &Ran| ran.code == 1 && ran.stdout.contains(" page ");
        assert!(self.rans.iter().any(is_wrong), "seed {}: {:?}", self.seed, self.rans);
    }

    /// One of what the managers of both readers have counted.
    fn sum(&self, key: &str) -> u64 {
        self.counts.iter().map(|blocks| blocks[key].as_u64().unwrap()).sum()
    }

    /// Lines of a file that all nodes write.
    fn lines(&self, name: &str) -> usize {
        fs::read_to_string(self.nodes.out.join(name)).unwrap_or_default().lines().count()
    }
}

#[test]
fn readers_beside_a_writer_get_blocks_of_each_other_and_of_no_older_version() {
    let Some(outcome) = in_trouble(&Trouble::default(), |_| {}) else { return };
    outcome.assert_right();
    assert!(outcome.sum("from_nodes") > 20 && outcome.sum("given_from_tiers") > 0);
}

/// Links that are lost when a pull takes too long, and messages that are late.
#[test]
fn pulls_that_are_late_cost_readers_time_and_no_bytes() {
    let script = "links pull late every 9\nlinks send delay 200ms every 40\n";
    let trouble = Trouble { script, ..Trouble::default() };
    let Some(outcome) = in_trouble(&trouble, |_| {}) else { return };
    outcome.assert_right();
    assert!(outcome.sum("failed") > 0);
}

/// What ends well and has moved nothing: in its place are bytes of another block, or version.
#[test]
fn pulls_that_bring_other_bytes_are_not_taken() {
    let script = "links pull lose every 3\n";
    let trouble = Trouble { script, ..Trouble::default() };
    let Some(outcome) = in_trouble(&trouble, |_| {}) else { return };
    outcome.assert_right();
    let says = |number: usize| outcome.nodes[number].log().contains("are not what it has said");
    assert!(says(1) || says(2));
    // That the readers would notice.
    let trouble = Trouble { script, variables: &[("FOREBAY_PLANT", "remote-unsummed")] };
    if let Some(outcome) = in_trouble(&trouble, |_| {}) {
        outcome.assert_wrong();
    }
}

/// Between look, answer, pull and arrival there is time to write, evict and move the block.
#[test]
fn blocks_that_change_while_they_are_given_are_not_taken() {
    for point in ["remote.pull*", "remote.slot-read*"] {
        let pause = format!("{point}:1/4:300");
        let variables = [
            ("FOREBAY_PAUSE", &*pause),
            ("FOREBAY_PAUSE_IN", "node"),
            ("FOREBAY_PAUSE_LOG", "$OUT/paused"),
        ];
        let trouble = Trouble { variables: &variables, ..Trouble::default() };
        let Some(outcome) = in_trouble(&trouble, |_| {}) else { return };
        outcome.assert_right();
        assert!(outcome.lines("paused") > 0, "{point}");
    }
}

/// No place from which a block could be given is ever free: readers go to the store at once.
#[test]
fn holders_without_a_place_send_their_readers_to_the_store() {
    let variables = [("FOREBAY_REFUSE", "staging:1.."), ("FOREBAY_REFUSE_LOG", "$OUT/refused")];
    let trouble = Trouble { variables: &variables, ..Trouble::default() };
    let Some(outcome) = in_trouble(&trouble, |_| {}) else { return };
    outcome.assert_right();
    assert!(outcome.lines("refused") > 0 && outcome.sum("from_store") > 0);
    // The writer has all its places.
    let of_readers = outcome.counts.iter().flat_map(|blocks| blocks["nodes"].as_array().unwrap());
    let of_readers = of_readers.filter(|node| node["node"] != 0);
    assert_eq!(of_readers.map(|node| node["pulled_bytes"].as_u64().unwrap()).sum::<u64>(), 0);
}

/// The file tiers of the readers hang, fail, and lie.
#[test]
fn devices_of_holders_that_fail_cost_readers_time_and_no_bytes() {
    for script in
        ["nvme read delay 2s every 20\n", "nvme read fail EIO at 30\n", "nvme read lose every 7\n"]
    {
        let Some(outcome) = in_trouble(&Trouble { script, ..Trouble::default() }, |_| {}) else {
            return;
        };
        outcome.assert_right();
        assert!(outcome.lines("hits") > 0, "{script}");
    }
}

/// A holder is stopped, again and again.
#[test]
fn holders_that_are_stopped_cost_readers_time_and_no_bytes() {
    let outcome = in_trouble(&Trouble::default(), |nodes| {
        for _ in 0..3 {
            nodes[1].signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(1500));
            nodes[1].signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    let Some(outcome) = outcome else { return };
    outcome.assert_right();
    assert!(outcome.sum("from_nodes") > 0);
}

/// A data set that no node's tiers hold in RAM, nor all of them together, but RAM and file tiers of
/// all: each epoch deals its files out anew, and it is read from the store once.
#[test]
fn a_set_larger_than_all_ram_is_read_from_the_store_once() {
    let Some(nodes) = Nodes::new(3) else { return };
    const FILES: usize = 18;
    const EACH: u64 = 2 * MIB;
    const EPOCHS: usize = 3;
    let sums: Vec<String> =
        (0..FILES).map(|n| make(&nodes, &format!("f{n}"), EACH, n as u64)).collect();
    let all = FILES as u64 * EACH;
    let config = with_ram(&nodes, &sharing(&nodes, 3, ""), "8MiB");
    let of = |number: usize, epoch: usize| (0..FILES).filter(move |n| (n + epoch) % 3 == number);
    let script = |number: usize| {
        let epoch = |epoch: usize| {
            let names: Vec<String> = of(number, epoch).map(|n| format!("f{n}")).collect();
            format!("for f in {}; do cksum < $f; done; step epoch{epoch}-{number}", names.join(" "))
        };
        (0..EPOCHS).map(epoch).collect::<Vec<_>>().join("\n")
    };
    let runs = on_all(&nodes, 3, &config, script);
    go(&nodes, 3, "begun");
    let mut read = Vec::new();
    let mut counts = Vec::new();
    for epoch in 0..EPOCHS {
        let at = |number: usize| format!("epoch{epoch}-{number}");
        (0..3).for_each(|number| nodes[number].at(&at(number)));
        counts = nodes.iter().map(counted).collect();
        read.push(counts.iter().map(|(_, bytes)| bytes).sum::<u64>());
        (0..3).for_each(|number| nodes[number].past(&at(number)));
    }
    println!("of {all} bytes {read:?} were read from the store: {counts:?}");
    all_at(&nodes, 3, "read");
    go(&nodes, 3, "read");
    for (number, run) in runs.into_iter().enumerate() {
        let wanted: String =
            (0..EPOCHS).flat_map(|epoch| of(number, epoch)).map(|n| &sums[n][..]).collect();
        assert_eq!(run.end().expect(0).stdout, wanted);
    }
    let told: u64 = counts.iter().map(|(blocks, _)| blocks["from_store"].as_u64().unwrap()).sum();
    let blocks = all / (MIB / 4);
    assert!(told <= blocks * 11 / 10, "{told} of {blocks} blocks: {counts:?}");
    // Where RAM was full for a moment, a read has gone through to the store besides.
    assert!(read[EPOCHS - 1] <= all * 5 / 4, "of {all} bytes {read:?}: {counts:?}");
}
