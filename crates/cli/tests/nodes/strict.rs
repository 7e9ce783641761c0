//! Files that programs of several nodes use at once, where the group's consistency is strict: each
//! sees what was written before, on whichever node.

use crate::failures::{says, without_cards};
use crate::groups::folders;
use crate::harness::{self, LONG, paused, wait_for};
use crate::namespaces::{Nodes, with_steps};
use std::fs;
use std::time::{Duration, Instant};

/// Of nodes whose managers flush nothing by themselves.
pub fn strict(nodes: &Nodes, count: usize) -> String {
    let config = nodes.configure("strict.toml", "trigger = \"on-exit\"", "");
    let group = format!("\n[group]\nhosts = \"n[0-{}]\"\nconsistency = \"strict\"\n", count - 1);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + &group).unwrap();
    config
}

/// A seed to begin with, and of which round.
pub fn seed() -> u64 {
    let given = std::env::var("FOREBAY_NODES_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| std::process::id().into());
    println!("FOREBAY_NODES_SEED={seed}");
    seed
}

#[test]
fn what_a_program_of_one_node_has_written_those_of_others_see() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let (one, other) = (&nodes[0], &nodes[1]);
    let script = "seq 100000 > numbers; cksum < numbers; echo > victim; step written; \
                  tail -n 1 numbers; stat -c %s numbers; step seen; cat new; [ ! -e gone ] && echo gone";
    let run = one.spawn_buffered(&config, &[], script);
    one.at("written");
    assert_eq!(fs::metadata(nodes.store.join("numbers")).unwrap().len(), 0, "it is buffered");
    let script = "cksum < numbers; echo more >> numbers; stat -c %s numbers; touch gone; rm victim";
    let (ran, status) = other.run_buffered(&config, script);
    let size = (1..=100_000_u64).map(|number| number.to_string().len() as u64 + 1).sum::<u64>() + 5;
    let sum = run.stdout();
    assert_eq!(ran.expect(0).stdout, format!("{sum}{size}\n"));
    status.assert_live();
    one.past("written");
    one.at("seen");
    other.run_buffered(&config, "echo text > new; rm gone").0.expect(0);
    one.past("seen");
    let ran = run.end().expect(0);
    assert_eq!(ran.stdout, format!("{sum}more\n{size}\ntext\ngone\n"), "{ran:?}");
    assert!(!ran.stderr.contains("changed on the store"), "{ran:?}");
}

/// A node that none of the others hears is not in their group: it says so, and its programs go on.
#[test]
fn programs_of_a_node_that_is_not_heard_go_on() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = auto(&nodes);
    let inside = nodes[0].spawn_buffered(&config, &[], "seq 1000 > one; step stays");
    nodes[0].at("stays");
    nodes.set_link(1, false);
    let ran = nodes[1].spawn_buffered(&config, &[], "seq 500 > other; wc -l < other").end();
    let ran = ran.expect(0);
    assert_eq!(ran.stdout.trim(), "500");
    let says = ["no group: n0 has not answered in 40 s", "goes on alone"];
    assert!(says.iter().all(|text| ran.stderr.contains(text)), "{ran:?}");
    nodes[0].status().assert_live();
    nodes[0].past("stays");
    inside.end().expect(0);
    assert_eq!(["one", "other"].map(|name| lines(&nodes, name)), [1000, 500]);
}

/// One that is cut off later has what it has written still, and goes on with that and with others.
#[test]
fn programs_of_a_node_that_is_cut_off_go_on() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = auto(&nodes);
    let script = "seq 1000 > one; step wrote; seq 2000 >> one; seq 500 > other; wc -l < one; \
                  wc -l < other; step done";
    let inside = nodes[0].spawn_buffered(&config, &[], "seq 10 > own; step stays");
    let majority = nodes[1].spawn_buffered(&config, &[], "step stays-too");
    nodes[0].at("stays");
    nodes[1].at("stays-too");
    let cut = nodes[2].spawn_buffered(&config, &[], script);
    nodes[2].at("wrote");
    nodes.set_link(2, false);
    nodes[2].past("wrote");
    nodes[2].at("done");
    nodes.set_link(2, true);
    nodes[2].past("done");
    let ran = cut.end().expect(0);
    assert_eq!(ran.stdout, "3000\n500\n", "{ran:?}");
    assert!(nodes[2].log().contains("this node goes on alone"), "{}", nodes[2].log());
    ["stays", "stays-too"].iter().for_each(|step| nodes[0].past(step));
    [inside, majority].into_iter().for_each(|run| drop(run.end().expect(0)));
    assert_eq!(["own", "one", "other"].map(|name| lines(&nodes, name)), [10, 3000, 500]);
}

fn auto(nodes: &Nodes) -> String {
    let config = nodes.configure("auto.toml", "trigger = \"on-exit\"", "");
    let text = fs::read_to_string(&config).unwrap();
    let hosts = format!("\n[group]\nhosts = \"n[0-{}]\"\n", nodes.iter().count() - 1);
    fs::write(&config, text + &hosts).unwrap();
    config
}

fn lines(nodes: &Nodes, name: &str) -> usize {
    fs::read_to_string(nodes.store.join(name)).unwrap().lines().count()
}

/// Without leases, of a page that two nodes have written one has its bytes there, and says so.
#[test]
fn without_leases_a_run_says_that_others_have_changed_its_files() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("open.toml", "trigger = \"on-exit\"", "");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + "\n[group]\nconsistency = \"open\"\n").unwrap();
    let hosts = ["--hosts", "n[0-1]"];
    let write = |text: &str, at: u32| {
        format!("printf {text} | dd of=page conv=notrunc bs=1 seek={at} status=none")
    };
    let one = nodes[0].spawn_buffered(&config, &hosts, &(write("one", 0) + "; step wrote"));
    nodes[0].at("wrote");
    nodes[1].spawn_buffered(&config, &hosts, &write("other", 100)).end().expect(0);
    nodes[0].past("wrote");
    let ran = one.end().expect(0);
    let says = "1 time a file was found changed on the store by others while it was buffered";
    assert!(ran.stderr.contains(says) && ran.stderr.contains("\"strict\""), "{ran:?}");
}

/// Of a file that one node makes longer and shorter, others never see a size from before what its
/// writer was told, by stat, fstat and lseek.
#[test]
fn sizes_that_others_see_are_not_behind_what_the_writer_was_told() {
    let Some(nodes) = Nodes::new(3) else { return };
    if !harness::compile_into(&nodes.out, "grows.c", &[]) {
        return;
    }
    let (config, seed) = (strict(&nodes, 3), seed());
    let run = |node: u64| {
        let steps = if node == 0 { 1500 } else { 0 };
        let script = format!("$OUT/grows $OUT/log {} {steps} file", seed * 4 + node);
        nodes[node as usize].spawn_buffered(&config, &[], &script)
    };
    let runs: Vec<_> = (0..3).map(run).collect();
    for run in runs {
        let ran = run.end().expect(0);
        println!("{}", ran.stdout);
        assert!(ran.stdout.starts_with("ok"), "seed {seed}: {ran:?}");
    }
}

/// One node truncates, opens, removes and replaces what another one has made a moment ago, which
/// has all of it in memory.
#[test]
fn names_of_files_that_another_node_has_just_made() {
    let Some(nodes) = Nodes::new(2) else { return };
    relay(&nodes, "names", &[200, 200]);
    assert_eq!(fs::read_dir(&nodes.store).unwrap().flatten().filter(is_file).count(), 0);
}

/// What a stat says is there can be read, also while programs of several nodes append.
#[test]
fn the_end_of_a_log_that_several_nodes_append_to_is_read() {
    let Some(nodes) = Nodes::new(2) else { return };
    relay(&nodes, "log", &[60_000, 60_000, 0]);
    let log = fs::read(nodes.store.join("log")).unwrap();
    let of = |letter: u8| log.iter().filter(|&&byte| byte == letter).count();
    assert_eq!([b'a', b'b'].map(of), [60_000 * 64; 2]);
    assert_eq!(log.len(), 120_000 * 64);
}

/// Runs `relay.c`, a program for each count, on one node and the other in turn.
fn relay(nodes: &Nodes, kind: &str, counts: &[u32]) {
    if !harness::compile_into(&nodes.out, "relay.c", &[]) {
        return;
    }
    let config = strict(nodes, 2);
    let run = |(role, count): (usize, &u32)| {
        let script = format!("$OUT/relay {kind} $OUT/turns {role} {count}");
        nodes[role % 2].spawn_buffered(&config, &[], &script)
    };
    let runs: Vec<_> = counts.iter().enumerate().map(run).collect();
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout, "ok\n", "{ran:?}");
    }
}

fn is_file(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_file())
}

/// A stat takes nothing from the node that writes a file, and says what that has, also of a file
/// that no program of its own node has ever opened.
#[test]
fn a_stat_takes_nothing_from_a_writer() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let (one, other) = (&nodes[0], &nodes[1]);
    let script = "seq 1000 > file; mkdir many; \
                  for i in $(seq 100); do echo $i > many/$i; done; step wrote; \
                  $FOREBAY status --json; exec 3>> file; echo more >&3; step appended; \
                  touch -d @1000000000 file; step touched";
    let run = one.spawn_buffered(&config, &[], script);
    one.at("wrote");
    let script = "stat -c %s file; ls -l many | tail -n +2 | awk '{ s += $5 } END { print s }'; \
                  step looked; stat -c %s file; step again; stat -c '%s %Y' file; \
                  step last; stat -c %s file; echo $?";
    let looks = other.spawn_buffered(&config, &[], script);
    other.at("looked");
    assert_eq!(fs::metadata(nodes.store.join("file")).unwrap().len(), 0, "nothing was flushed");
    other.past("looked");
    other.at("again");
    one.past("wrote");
    one.at("appended");
    one.past("appended");
    one.at("touched");
    other.past("again");
    other.at("last");
    let seen = looks.stdout();
    let numbers: usize = (1..=100).map(|number: usize| number.to_string().len() + 1).sum();
    assert_eq!(seen, format!("3893\n{numbers}\n3893\n3898 1000000000\n"));
    one.past("touched");
    let ran = run.end().expect(0);
    let held = ran.stdout.split("\"held\":").nth(1).expect("no leases in the status");
    let written = held.split("\"write\":").nth(1).and_then(|rest| rest.split(['}', ',']).next());
    let written: usize = written.expect("no leases to write").trim().parse().unwrap();
    assert!(written >= 101, "{written} leases are left: {}", ran.stdout);
    other.past("last");
    assert_eq!(looks.end().expect(0).stdout, format!("{seen}3898\n0\n"));
}

#[test]
fn calls_at_random_on_several_nodes_agree() {
    random_calls("");
}

/// A file that is mapped shared on one node is used through the kernel by all.
#[test]
fn calls_and_mappings_at_random_on_several_nodes_agree() {
    random_calls("MAPS=1 ");
}

/// Files of several parts, which all nodes write.
#[test]
fn calls_at_random_on_parts_of_files_agree() {
    random_calls("PARTS=1 ");
}

/// Some of them are mapped on some nodes.
#[test]
fn calls_and_mappings_at_random_on_parts_of_files_agree() {
    random_calls("PARTS=1 MAPS=1 ");
}

/// Files are removed, replaced and exchanged while processes of all nodes have them open.
#[test]
fn calls_on_names_and_bytes_at_random_on_several_nodes_agree() {
    random_calls("NAMES=1 ");
}

/// The same of files of several parts, some of which are mapped.
#[test]
fn calls_on_names_parts_and_mappings_at_random_agree() {
    random_calls("NAMES=1 PARTS=1 MAPS=1 ");
}

fn random_calls(kind: &str) {
    let Some(nodes) = Nodes::new(3) else { return };
    if !harness::compile_into(&nodes.out, "coherent.c", &[]) {
        return;
    }
    let (config, seed) = (strict(&nodes, 3), seed());
    let run = |number: u64| {
        let node = &nodes[number as usize];
        let program = |process: u64| {
            format!(
                "{kind}$OUT/coherent $OUT/model {} 300 first second &",
                seed * 8 + number * 2 + process
            )
        };
        let script = format!("{} one=$!\n{} wait $one && wait $!", program(0), program(1));
        node.spawn_buffered(&config, &[], &script)
    };
    let runs: Vec<_> = (0..3).map(run).collect();
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout.matches("ok").count(), 2, "seed {seed}: {ran:?}");
    }
    assert_stored(&nodes, seed);
}

/// All of it is on the store, and what was there in the end is what the model has.
pub fn assert_stored(nodes: &Nodes, seed: u64) {
    let model = fs::read(nodes.out.join("model")).unwrap();
    // See coherent.c: which file each name means, and the files.
    const HEAD: usize = 8 * (1 + 4 + 64);
    const EACH: usize = 8 + (1 << 22);
    let number_at = |at: usize| u64::from_le_bytes(model[at..][..8].try_into().unwrap()) as usize;
    for (number, name) in ["first", "second"].iter().enumerate() {
        let model = &model[HEAD + number_at(8 * (1 + number)) * EACH..][..EACH];
        let size = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
        let stored = fs::read(nodes.store.join(name)).unwrap();
        assert!(stored == model[8..][..size], "seed {seed}: {name}");
    }
}

/// A grant that no program has taken up makes no copy of what the record has: a program that looked
/// at the file before others wrote it, and opens it after, appends to what they have written.
#[test]
fn a_program_that_opens_a_file_while_its_lease_goes_appends_to_what_is_there() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    let [flag, log] = ["flag", "log"].map(|name| nodes.out.join(name));
    [&flag, &log].iter().for_each(|file| fs::write(file, "").unwrap());
    let writes = nodes[1].spawn_buffered(&config, &[], "seq 100 > file; step wrote");
    nodes[1].at("wrote");
    // That keeps its record.
    let script = "exec 5< file; FOREBAY_PAUSE=open.seen:1:while=$OUT/flag FOREBAY_PAUSE_IN=client \
                  FOREBAY_PAUSE_LOG=$OUT/log bash -c 'echo more >> file' & \
                  step begun; : >> file; step touched; wait; cat file";
    let appends = nodes[0].spawn_buffered(&config, &[], script);
    nodes[0].at("begun");
    wait_for("the pause", LONG, || paused(&log));
    nodes[0].past("begun");
    nodes[0].at("touched");
    let numbers = nodes[2].run("seq 100").expect(0).stdout;
    assert_eq!(nodes[2].run_buffered(&config, "cat file").0.expect(0).stdout, numbers);
    fs::remove_file(&flag).unwrap();
    nodes[0].past("touched");
    assert_eq!(appends.end().expect(0).stdout, format!("{numbers}more\n"));
    nodes[1].past("wrote");
    writes.end().expect(0);
    assert_eq!(fs::read_to_string(nodes.store.join("file")).unwrap(), format!("{numbers}more\n"));
}

/// A node that cannot look at the group's folder may have been left out: what it has in memory
/// beside others, programs do not get until it has looked again.
#[test]
fn copies_of_a_node_that_is_fenced_are_not_read() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let (one, other) = (&nodes[0], &nodes[1]);
    let run = one.spawn_buffered(&config, &[], "seq 1000 > file; cksum < file; step wrote");
    one.at("wrote");
    let script = "cksum < file; step read; cksum < file > $OUT/again; step again";
    let reader = other.spawn_buffered(&config, &[], script);
    other.at("read");
    // Its card is not where it looks.
    without_cards(&nodes, &folders(&nodes)[0], &[1], || {
        says(&nodes, 1, "FENCED");
        other.past("read");
        // It has the time to go wrong; right it is whatever the time.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(fs::read_to_string(nodes.out.join("again")).unwrap(), "");
    });
    other.at("again");
    other.past("again");
    one.past("wrote");
    let sum = run.end().expect(0).stdout;
    assert_eq!(reader.end().expect(0).stdout, sum);
    assert_eq!(fs::read_to_string(nodes.out.join("again")).unwrap(), sum);
}

/// Three nodes write one file at the same time, in records that end in the middle of pages and
/// parts: each a segment of it, or each every third record. Then each reads what the next has
/// written.
#[test]
fn what_several_nodes_write_to_one_file_at_once_is_all_there() {
    let Some(nodes) = Nodes::new(3) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = strict(&nodes, 3);
    const RECORDS: u64 = 3 * 100;
    const BYTES: u64 = 47_008;
    let run = |node: u64| {
        let with = |what: &str, node: u64, file: &str| {
            let how = if file == "strided" { "strided" } else { "segmented" };
            format!("$OUT/records {what} {how} {file} {node} 3 {RECORDS} {BYTES}")
        };
        let (next, both) = ((node + 1) % 3, ["strided", "segmented"]);
        let writes = both.map(|file| with("write", node, file)).join(" && ");
        let reads = both.map(|file| with("check", next, file)).join(" && ");
        let script = format!("{writes} || exit 1; step written-{node}; {reads}");
        nodes[node as usize].spawn_buffered(&config, &[], &script)
    };
    let runs: Vec<_> = (0..3).map(run).collect();
    for node in 0..3 {
        nodes[node].at(&format!("written-{node}"));
    }
    for node in 0..3 {
        nodes[node].past(&format!("written-{node}"));
    }
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout.matches("ok").count(), 4, "{ran:?}");
    }
    let stored = ["strided", "segmented"].map(|name| fs::read(nodes.store.join(name)).unwrap());
    assert_eq!(stored[0].len() as u64, RECORDS * BYTES);
    assert!(stored[0] == stored[1]);
}

/// Where the table of leases has no place for a part, others make room for it at once: programs
/// have far more parts here than there are places, and a second to wait for each would be minutes.
#[test]
fn more_parts_than_there_are_places_for_are_written_without_waits() {
    let Some(nodes) = Nodes::new(2) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = strict(&nodes, 2);
    let run = |node: usize| {
        let records = |what: &str, node: usize| {
            format!("$OUT/records {what} segmented file {node} 2 1200 1048000 || exit 1")
        };
        let script = format!(
            ": >> file; step begun-{node}; {}; step wrote-{node}; {}",
            records("write", node),
            records("check", 1 - node)
        );
        let plant = "FOREBAY_PLANT=few-parts";
        let begin = ["env", plant, harness::FOREBAY, "run", "--config", &config, "--"];
        nodes[node].spawn(&[&begin[..], &["bash", "-c", &with_steps(&script)]].concat())
    };
    let runs = [run(0), run(1)];
    for step in ["begun", "wrote"] {
        let step = |node: usize| format!("{step}-{node}");
        (0..2).for_each(|node| nodes[node].at(&step(node)));
        (0..2).for_each(|node| nodes[node].past(&step(node)));
    }
    for run in runs {
        assert_eq!(run.end().expect(0).stdout.matches("ok").count(), 2);
    }
}

/// Files that are larger than the memory of all nodes, in segments, in turns and by appends: each
/// byte is right, and no call waits for a block that no node has kept, or for a lease that two
/// nodes wait for in turn.
#[test]
fn programs_of_several_nodes_use_more_than_their_memory() {
    let Some(nodes) = Nodes::new(3) else { return };
    if !harness::compile_into(&nodes.out, "larger.c", &[]) {
        return;
    }
    let config = strict(&nodes, 3);
    fs::create_dir(nodes.out.join("meet")).unwrap();
    let run = |node: usize| {
        let script = format!("$OUT/larger $OUT/meet {node} 3 80");
        nodes[node].spawn_buffered(&config, &[], &script)
    };
    for run in (0..3).map(run).collect::<Vec<_>>() {
        let ran = run.end().expect(0);
        assert!(ran.stdout.contains("ok"), "{ran:?}");
    }
}

/// A program that writes faster than its node flushes keeps a file from others no longer than it
/// takes to flush what its memory holds.
#[test]
fn a_writer_that_is_faster_than_the_store_gives_its_file_back() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let script = "until [ -e $OUT/past-end ]; do \
                  dd if=/dev/zero of=file bs=1M count=48 conv=notrunc status=none; \
                  [ -e $OUT/at-going ] || : > $OUT/at-going; done";
    let writes = nodes[0].spawn_buffered(&config, &[], script);
    nodes[0].at("going");
    let begun = Instant::now();
    let script = "printf new | dd of=file bs=1 seek=100000000 conv=notrunc status=none";
    nodes[1].run_buffered(&config, script).0.expect(0);
    let took = begun.elapsed();
    nodes[0].past("end");
    writes.end().expect(0);
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// A file has the record of one that was removed, and nothing of what a node had of that.
#[test]
fn what_several_nodes_write_to_one_file_after_the_other_is_all_there() {
    let Some(nodes) = Nodes::new(2) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = strict(&nodes, 2);
    const ROUNDS: u64 = 5;
    let run = |node: u64| {
        let records = |what: &str, node: u64| {
            format!("$OUT/records {what} strided file-$i {node} 2 16 1048576 || exit 1")
        };
        let script = format!(
            "for i in $(seq {ROUNDS}); do {}; step wrote-{node}-$i; {}; step read-{node}-$i; \
             rm -f file-$i; step removed-{node}-$i; done",
            records("write", node),
            records("check", 1 - node)
        );
        nodes[node as usize].spawn_buffered(&config, &[], &script)
    };
    let runs = [run(0), run(1)];
    for round in 1..=ROUNDS {
        for step in ["wrote", "read", "removed"] {
            let step = |node: usize| format!("{step}-{node}-{round}");
            (0..2).for_each(|node| nodes[node].at(&step(node)));
            (0..2).for_each(|node| nodes[node].past(&step(node)));
        }
    }
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout.matches("ok").count() as u64, 2 * ROUNDS, "{ran:?}");
    }
}

/// Programs of both nodes go on when a manager is killed: its run starts another one, which gives
/// back what the first one was granted.
#[test]
fn a_manager_that_is_killed_is_followed_by_one_that_gives_files_back() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let (one, other) = (&nodes[0], &nodes[1]);
    let script = "$FOREBAY status > $OUT/manager; seq 50000 > file; cksum < file; \
                  step written; seq 60000 > later; cksum < later; step later";
    let run = one.spawn_buffered(&config, &[], script);
    one.at("written");
    let status = harness::Status::parse(fs::read_to_string(nodes.out.join("manager")).unwrap());
    let inside = status.manager;
    one.run(&format!("kill -9 {inside}")).expect(0);
    one.past("written");
    one.at("later");
    let sums = run.stdout();
    let ran = other.spawn_buffered(&config, &[], "cksum < file; cksum < later").end().expect(0);
    assert_eq!(ran.stdout, sums);
    one.past("later");
    run.end().expect(0);
}

/// The same while both write one file: the one that follows finds which parts its node has.
#[test]
fn a_manager_that_is_killed_among_writers_is_followed_by_one_that_goes_on() {
    let Some(nodes) = Nodes::new(2) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = strict(&nodes, 2);
    let run = |node: u64| {
        let all = |what: &str, node: u64| {
            format!(
                "for i in 1 2 3 4; do $OUT/records {what} strided file-$i {node} 2 200 47008 || \
                 exit 1; done"
            )
        };
        let script = format!(
            "$FOREBAY status > $OUT/manager-{node}; step begun-{node}; {}; step written-{node}; {}",
            all("write", node),
            all("check", 1 - node)
        );
        nodes[node as usize].spawn_buffered(&config, &[], &script)
    };
    let runs = [run(0), run(1)];
    let steps = |step: &str| {
        (0..2).for_each(|node| nodes[node].at(&format!("{step}-{node}")));
        (0..2).for_each(|node| nodes[node].past(&format!("{step}-{node}")));
    };
    steps("begun");
    let status = fs::read_to_string(nodes.out.join("manager-0")).unwrap();
    let manager = harness::Status::parse(status).manager;
    nodes[0].run(&format!("kill -9 {manager}")).expect(0);
    steps("written");
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout.matches("ok").count(), 8, "{ran:?}");
    }
    let stored = fs::read(nodes.store.join("file-1")).unwrap();
    assert_eq!(stored.len(), 200 * 47_008);
    for number in 2..=4 {
        assert!(stored == fs::read(nodes.store.join(format!("file-{number}"))).unwrap());
    }
}
