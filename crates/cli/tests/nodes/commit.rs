//! Files under commit: what one node has written others see once it was synced or closed, and they
//! have opened or synced the file after that. No byte of another node is lost meanwhile.

use crate::groups::group;
use crate::harness::{self, LONG, Running, Status, wait_for};
use crate::namespaces::{Node, Nodes};
use crate::remote::Busy;
use std::fs;

/// Bytes of a record that is no multiple of a page.
const BYTES: u64 = 47_008;

/// Of nodes whose files are under commit, all but those named `strict*`, and whose managers flush
/// nothing by themselves. `more` is more of the configuration.
pub fn commit(nodes: &Nodes, more: &str) -> String {
    let config = nodes.configure("commit.toml", "trigger = \"on-exit\"", "");
    let last = nodes.iter().count() - 1;
    let more = format!(
        "{more}\n[group]\nhosts = \"n[0-{last}]\"\nconsistency = \"strict\"\n\
         [[rule]]\nname = \"exact\"\npath = \"strict*\"\nconsistency = \"strict\"\n\
         [[rule]]\nname = \"shared\"\npath = \"**\"\nconsistency = \"commit\"\n"
    );
    fs::write(&config, fs::read_to_string(&config).unwrap() + &more).unwrap();
    config
}

/// The words of one of `count` programs that write, or check, records of `bytes` in turns.
fn records(what: &str, file: &str, (node, count): (usize, usize), all: u64, bytes: u64) -> String {
    format!("$OUT/records {what} strided {file} {node} {count} {all} {bytes}")
}

/// Lets all nodes come to a step, and then go on.
fn together(nodes: &Nodes, step: &str) {
    let step = |node: usize| format!("{step}-{node}");
    let count = nodes.iter().count();
    (0..count).for_each(|node| nodes[node].at(&step(node)));
    (0..count).for_each(|node| nodes[node].past(&step(node)));
}

/// How many messages about leases a node has: what it holds, wants and has granted.
fn leases(node: &Node) -> serde_json::Value {
    group(node)["leases"].clone()
}

/// All nodes write records of one file in turns, close it, and then read what the next has written.
/// `between` is run beside the first pass.
fn all_write_and_read(nodes: &Nodes, config: &str, (all, bytes): (u64, u64), between: impl Fn()) {
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let count = nodes.iter().count();
    let run = |node: usize| {
        let next = (node + 1) % count;
        let words = |what: &str, of: usize| records(what, "file", (of, count), all, bytes);
        let script = format!(
            "step begun-{node}; {} || exit 1; step wrote-{node}; {} || exit 1; step read-{node}",
            words("write", node),
            words("check", next)
        );
        nodes[node].spawn_buffered(config, &[], &script)
    };
    let runs: Vec<Running> = (0..count).map(run).collect();
    together(nodes, "begun");
    between();
    (0..count).for_each(|node| nodes[node].at(&format!("wrote-{node}")));
    let stored = fs::read(nodes.store.join("file")).unwrap();
    assert_records(&stored, all * bytes);
    for node in nodes.iter() {
        let leases = leases(node);
        let (held, wanted) = (&leases["held"], &leases["wanted"]);
        assert_eq!(held["direct"].as_u64(), Some(1), "{leases}");
        assert_eq!(leases["committed"].as_u64(), Some(1), "{leases}");
        assert_eq!((held["shared"].as_u64(), wanted.as_u64()), (Some(0), Some(0)), "{leases}");
    }
    (0..count).for_each(|node| nodes[node].past(&format!("wrote-{node}")));
    together(nodes, "read");
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout.matches("ok").count(), 2, "{ran:?}");
        assert!(!ran.stderr.contains("changed on the store"), "{ran:?}");
    }
    assert_records(&fs::read(nodes.store.join("file")).unwrap(), all * bytes);
}

/// What `records.c` writes.
#[track_caller]
fn assert_records(stored: &[u8], bytes: u64) {
    assert_eq!(stored.len() as u64, bytes);
    let is_right =
        |(at, &byte): (usize, &u8)| byte == ((at as u64).wrapping_mul(2_654_435_761) >> 13) as u8;
    let wrong = stored.iter().enumerate().position(|of| !is_right(of));
    assert_eq!(wrong, None, "of {bytes}");
}

#[test]
fn records_of_two_nodes_in_one_file_are_all_there() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = commit(&nodes, "");
    all_write_and_read(&nodes, &config, (2 * 150, BYTES), || ());
}

#[test]
fn records_of_three_nodes_in_one_file_are_all_there() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = commit(&nodes, "");
    all_write_and_read(&nodes, &config, (3 * 100, BYTES), || ());
}

/// More than the tiers of both nodes hold, in records of several blocks, while the processors are
/// busy: blocks leave memory in the middle.
#[test]
fn records_that_leave_memory_in_the_middle_are_all_there() {
    let Some(nodes) = Nodes::new(2) else { return };
    let busy = Busy::new(&nodes);
    let config = commit(&nodes, "");
    let text = fs::read_to_string(&config).unwrap().replace("32MiB", "8MiB");
    fs::write(&config, text).unwrap();
    all_write_and_read(&nodes, &config, (2 * 60, 700_001), || ());
    busy.end(&nodes);
}

/// However many records there are, the group is asked for the file alone.
#[test]
fn a_record_costs_no_message() {
    let Some(nodes) = Nodes::new(2) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = commit(&nodes, "");
    let run = |node: usize| {
        let script = format!(
            "exec 3<> small; echo {node} >&3; step begun-{node}; {}; step wrote-{node}",
            records("write", "file", (node, 2), 400, BYTES)
        );
        nodes[node].spawn_buffered(&config, &[], &script)
    };
    let runs = [0, 1].map(run);
    together(&nodes, "begun");
    (0..2).for_each(|node| nodes[node].at(&format!("wrote-{node}")));
    for node in nodes.iter() {
        let status = leases(node);
        let granted = &status["granted"];
        let all = ["read", "shared", "write", "direct"];
        let parts: u64 = all.iter().map(|level| granted[level].as_u64().unwrap()).sum();
        assert!(parts <= 4, "two files of two nodes: {status}");
        assert_eq!(granted["shared"].as_u64(), Some(0), "{status}");
    }
    (0..2).for_each(|node| nodes[node].past(&format!("wrote-{node}")));
    runs.into_iter().for_each(|run| drop(run.end().expect(0)));
}

/// One that was opened before sees what was synced after its own sync, and what rules say is shown.
#[test]
fn a_reader_sees_what_was_synced_after_a_sync_of_its_own() {
    let Some(nodes) = Nodes::new(2) else { return };
    if harness::python_with("os").is_none() {
        return;
    }
    let python = harness::python_with("os").unwrap();
    let config = commit(&nodes, "");
    let writer = "import os\n\
        def step(name):\n    import subprocess; open(os.environ['OUT']+'/at-'+name,'w').close()\n    \
        import time\n    \
        while not os.path.exists(os.environ['OUT']+'/past-'+name): time.sleep(0.01)\n";
    fs::write(
        nodes.out.join("writer.py"),
        format!(
            "{writer}fd = os.open('file', os.O_RDWR | os.O_CREAT)\n\
             os.pwrite(fd, b'a' * 20000, 0)\nos.fsync(fd)\nstep('first')\n\
             os.pwrite(fd, b'b' * 20000, 3)\nstep('second')\n\
             os.fsync(fd)\nstep('synced')\n\
             os.pwrite(fd, b'c' * 9000, 0)\nos.close(fd)\nstep('closed')\n"
        ),
    )
    .unwrap();
    fs::write(
        nodes.out.join("reader.py"),
        format!(
            "{writer}step('open')\nfd = os.open('file', os.O_RDONLY)\n\
             def seen(): return os.pread(fd, 30000, 0)\n\
             assert seen() == b'a' * 20000\nstep('read')\n\
             os.fsync(fd)\nmiddle = seen()\n\
             assert middle[:3] == b'aaa' and len(middle) in (20000, 20003), middle[:9]\n\
             step('looked')\nos.fsync(fd)\n\
             assert seen() == b'aaa' + b'b' * 20000, seen()[:9]\n\
             assert os.fstat(fd).st_size == 20003\nstep('again')\n\
             assert open('file','rb').read() == b'c' * 9000 + b'b' * 11003\nprint('ok')\n"
        ),
    )
    .unwrap();
    let start = |node: usize, name: &str| {
        let script = format!("{python} $OUT/{name}.py");
        nodes[node].spawn_buffered(&config, &[], &script)
    };
    let writes = start(0, "writer");
    let reads = start(1, "reader");
    let (one, other) = (&nodes[0], &nodes[1]);
    one.at("first");
    other.at("open");
    other.past("open");
    other.at("read");
    one.past("first");
    one.at("second");
    let shown = one.spawn(&[harness::FOREBAY, "explain", "file"]).end().expect(0).stdout;
    assert!(shown.contains("consistency commit"), "{shown}");
    other.past("read");
    other.at("looked");
    one.past("second");
    one.at("synced");
    other.past("looked");
    other.at("again");
    one.past("synced");
    one.at("closed");
    other.past("again");
    let ran = reads.end().expect(0);
    assert_eq!(ran.stdout, "ok\n", "{ran:?}");
    one.past("closed");
    writes.end().expect(0);
}

/// What was synced is there whatever happens to the manager, and what was not comes with the next
/// sync: programs go on, and so does the one that follows.
#[test]
fn a_manager_that_is_killed_loses_nothing_that_was_synced() {
    let Some(nodes) = Nodes::new(2) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = commit(&nodes, "");
    let run = |node: usize| {
        let words = |what: &str, file: &str, of| records(what, file, (of, 2), 200, BYTES);
        let script = format!(
            "$FOREBAY status > $OUT/manager-{node}; {} || exit 1; step synced-{node}; \
             for i in 1 2 3; do {} || exit 1; done; step wrote-{node}; \
             for i in 1 2 3; do {} || exit 1; done; {} || exit 1",
            words("write", "first", node),
            words("write", "file-$i", node),
            words("check", "file-$i", 1 - node),
            words("check", "first", 1 - node),
        );
        nodes[node].spawn_buffered(&config, &[], &script)
    };
    let runs = [0, 1].map(run);
    (0..2).for_each(|node| nodes[node].at(&format!("synced-{node}")));
    let status = fs::read_to_string(nodes.out.join("manager-0")).unwrap();
    let manager = Status::parse(status).manager;
    nodes[0].run(&format!("kill -9 {manager}")).expect(0);
    assert_records(&fs::read(nodes.store.join("first")).unwrap(), 200 * BYTES);
    (0..2).for_each(|node| nodes[node].past(&format!("synced-{node}")));
    together(&nodes, "wrote");
    for run in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout.matches("ok").count(), 8, "{ran:?}");
    }
    for name in ["first", "file-1", "file-2", "file-3"] {
        assert_records(&fs::read(nodes.store.join(name)).unwrap(), 200 * BYTES);
    }
}

/// A program that ends without a close, or is killed, has closed its files.
#[test]
fn what_a_killed_program_has_written_comes_to_the_store() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = commit(&nodes, "");
    let script = "(exec 3<> file; head -c 40000 /dev/zero | tr '\\0' x >&3; \
                  kill -9 $BASHPID); step killed";
    let run = nodes[0].spawn_buffered(&config, &[], script);
    nodes[0].at("killed");
    wait_for("what was written", LONG, || {
        (fs::read(nodes.store.join("file")).ok()? == vec![b'x'; 40_000]).then_some(())
    });
    nodes[0].past("killed");
    run.end().expect(0);
}

/// A page that a program was about to write over when it was killed is not what this node has had
/// of it before: another node has written it since.
#[test]
fn a_program_that_is_killed_in_a_write_leaves_what_others_have_written() {
    let Some(nodes) = Nodes::new(2) else { return };
    let Some(python) = harness::python_with("os") else { return };
    let config = commit(&nodes, "");
    let script = "import os, time\n\
        fd = os.open('file', os.O_RDWR | os.O_CREAT)\n\
        os.pwrite(fd, b'a' * 8192, 0)\n\
        open(os.environ['OUT'] + '/at-wrote', 'w').close()\n\
        while not os.path.exists(os.environ['OUT'] + '/past-wrote'): time.sleep(0.01)\n\
        assert os.pread(fd, 4, 0) == b'aaaa'\n\
        os.pwrite(fd, b'c' * 4096, 0)\n";
    fs::write(nodes.out.join("dies.py"), script).unwrap();
    let script = format!(
        "FOREBAY_CRASH=write.marked:2 {python} $OUT/dies.py; echo $? > $OUT/code; step died"
    );
    // Both are in the group from the beginning: where the home of a file moves, a node that is
    // alone with it may have to give it back, and has no copy then.
    let other = nodes[1].spawn_buffered(
        &config,
        &[],
        "echo text > own; step ready; head -c 8192 /dev/zero | tr '\\0' b | \
         dd of=file bs=8192 conv=notrunc,fsync iflag=fullblock status=none; step over",
    );
    nodes[1].at("ready");
    let run = nodes[0].spawn_buffered(&config, &[], &script);
    nodes[0].at("wrote");
    // What it has written is on the store then, and in its memory still.
    nodes[0].spawn(&[harness::FOREBAY, "flush", "file"]).end().expect(0);
    let wrote = |byte: u8| fs::read(nodes.store.join("file")).unwrap() == [byte; 8192];
    assert!(wrote(b'a'));
    nodes[1].past("ready");
    nodes[1].at("over");
    assert!(wrote(b'b'));
    nodes[0].past("wrote");
    nodes[0].at("died");
    assert_eq!(harness::sees(&nodes.out.join("code")), "137\n", "it was killed in its write");
    nodes[0].past("died");
    run.end().expect(0);
    nodes[1].past("over");
    other.end().expect(0);
    assert!(wrote(b'b'), "what it has had before came over that");
}
