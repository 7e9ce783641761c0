//! What nodes see of each other's files through the store that they share, each with a node manager
//! of its own: README.md, "Limitations".

use crate::harness::{self, LONG, sees, wait_for};
use crate::namespaces::Nodes;
use std::fs;

/// One set of nodes for all of it: a set takes a part of a second.
#[test]
fn what_was_drained_on_one_node_is_read_on_the_others() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("lazy.toml", "trigger = \"on-exit\"", "");
    let (writer, reader) = (&nodes[0], &nodes[1]);

    // Written, closed and drained there: read here, by the tiers of this node.
    let (ran, status) = writer.run_buffered(&config, "seq 300000 > numbers; cksum < numbers");
    let sum = ran.expect(0).stdout;
    status.assert_live();
    let (ran, status) = reader.run_buffered(&config, "cksum < numbers");
    assert_eq!(ran.expect(0).stdout, sum);
    status.assert_live();

    // A program here has read a file, whose blocks are in this node's RAM. Another node writes it
    // anew, shorter, longer, and of the same length: an open after the drain sees that.
    let script = "\
        old() { for i in 1 2 3; do cksum < numbers; done | uniq; }\n\
        old; step shorter; old; step longer; old; step same; old\n\
        $FOREBAY status > $OUT/status";
    let run = reader.spawn_buffered(&config, &[], script);
    let mut sums = vec![sum];
    let contents =
        [("shorter", "seq 1000"), ("longer", "seq 400000"), ("same", "seq 400000 | tr 1 2")];
    for (step, content) in contents {
        reader.at(step);
        let script = format!("{content} > numbers; cksum < numbers");
        let (ran, status) = writer.run_buffered(&config, &script);
        status.assert_live();
        sums.push(ran.expect(0).stdout);
        reader.past(step);
    }
    assert_eq!(run.end().expect(0).stdout, sums.concat());
    assert_eq!(sums.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    let status = harness::Status::parse(fs::read_to_string(nodes.out.join("status")).unwrap());
    status.assert_live();

    // What is buffered on one node the others do not see yet, and nothing else: no zeros, no part.
    let run = writer.spawn_buffered(&config, &[], "echo buffered > late; step late");
    writer.at("late");
    let seen = "[ ! -s late ] && echo \"nothing yet\"";
    assert_eq!(reader.run_buffered(&config, seen).0.expect(0).stdout, "nothing yet\n");
    writer.past("late");
    run.end().expect(0);
    assert_eq!(reader.run_buffered(&config, "cat late").0.expect(0).stdout, "buffered\n");
}

#[test]
fn a_node_whose_processes_are_all_killed_loses_nothing_that_was_acknowledged() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("lazy.toml", "trigger = \"on-exit\"", "");
    let (dies, lives) = (&nodes[0], &nodes[1]);
    let (ran, status) = dies.run_buffered(&config, "seq 100000 > drained; cksum < drained");
    let drained = ran.expect(0).stdout;
    status.assert_live();

    // One that was synced, and one that is in the tiers alone; both are many blocks.
    let script = "\
        seq 200000 > synced; sync synced; seq 300000 > written; cksum < synced; cksum < written\n\
        step written; sleep 1000";
    let run = dies.spawn_buffered(&config, &[], script);
    dies.at("written");
    let sums = run.stdout();
    assert_ne!(fs::metadata(nodes.store.join("written")).map_or(0, |found| found.len()), 1_988_895);
    dies.kill_all();
    assert_eq!(run.end().code, 128 + 9);

    // The other node goes on, and has what was drained, and what was synced.
    let script = "cksum < drained; cksum < synced; echo other > other";
    let ran = lives.run_buffered(&config, script).0.expect(0);
    let synced = sums.lines().next().unwrap();
    assert_eq!(ran.stdout, format!("{drained}{synced}\n"));

    // After a restart the node brings what was written there to the store.
    dies.spawn(&[harness::FOREBAY, "recover"]).end().expect(0);
    wait_for("an end of the manager", LONG, || dies.processes().is_empty().then_some(()));
    assert_eq!(
        lives.run_buffered(&config, "cksum < synced; cksum < written").0.expect(0).stdout,
        sums
    );
    assert_eq!(sees(&nodes.store.join("other")), "other\n");
    let (ran, status) = dies.run_buffered(&config, "cat other; cksum < written");
    assert_eq!(ran.expect(0).stdout.lines().next(), Some("other"));
    status.assert_live();
}
