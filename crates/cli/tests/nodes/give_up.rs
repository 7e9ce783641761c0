//! `forebay give-up`: what a node that has gone wrote is an error by name until an operator gives
//! it up, and then it is the others'. One that lives, stopped, cut off or killed, never
//! writes over what they have written since, and keeps what it has.

use crate::groups::{WITHOUT, agree, group};
use crate::harness::{self, LONG, Ran, Running, Status, wait_for};
use crate::namespaces::Nodes;
use crate::strict::strict;
use rustix::process::Signal;
use std::fs;
use std::time::Duration;

/// From `give-up` on others wait so long for the files: twice T, and a look.
const GRANTED: Duration = Duration::from_secs(40);

/// A file of 8 MiB with one line again and again.
fn lines(text: &str) -> String {
    format!("yes {text} | head -c 8388608")
}

/// Nodes of which the second has written a file that is on no store.
fn written(nodes: &Nodes, after: &str) -> (String, Running, Running) {
    let members: Vec<usize> = (0..nodes.iter().count()).collect();
    let config = strict(nodes, members.len());
    nodes.iter().next().unwrap().run("echo old > file; echo old > small").expect(0);
    let script = format!(
        "exec 3> file; {} >&3; echo new | dd of=small conv=notrunc status=none; step wrote; {after}",
        lines("one")
    );
    let dirty = nodes[1].spawn_buffered(&config, &[], &script);
    nodes[1].at("wrote");
    let script = format!(
        "step begun; cat file > $OUT/got 2> $OUT/error; step refused; \
         n=0; while ! cat small > $OUT/small 2>> $OUT/errors; do n=$((n + 1)); [ $n -lt 90 ] || break; sleep 1; done; \
         exec 3> file; {} >&3; exec 3>&-; cat file | cksum > $OUT/sum; sync file; step other; \
         cat file | cksum; step last",
        lines("two")
    );
    let other = nodes[0].spawn_buffered(&config, &[], &script);
    nodes[0].at("begun");
    agree(nodes, &members, LONG);
    (config, dirty, other)
}

/// The other node is told that the file is lost, gives up its writer, and writes the file.
fn given_up(nodes: &Nodes) {
    let others: Vec<usize> = (0..nodes.iter().count()).filter(|node| *node != 1).collect();
    agree(nodes, &others, WITHOUT);
    nodes[0].past("begun");
    wait_for("the refusal", LONG * 3, || nodes.out.join("at-refused").exists().then_some(()));
    assert_eq!(harness::sees(&nodes.out.join("got")), "");
    let error = harness::sees(&nodes.out.join("error"));
    assert!(error.contains("file: Input/output error"), "{error}");
    // The home of the file says so, which may be any of them.
    let status: String = others.iter().map(|node| nodes[*node].status().text).collect();
    let file = nodes.store.join("file");
    let names = ["LOST     n1, life 1, has gone", &format!("{}, by n1", file.display())];
    assert!(names.iter().all(|text| status.contains(text)), "{status}");

    let refused = |node: &str, why: &str| {
        let ran = nodes[0].run(&format!("$FOREBAY give-up {node}"));
        assert!(ran.code != 0 && ran.stderr.contains(why), "{ran:?}");
    };
    refused("n0", "it is a member of the group");
    refused("elsewhere", "is none of the group's nodes: n0, n1");
    let ran = nodes[0].run("$FOREBAY give-up n1").expect(0);
    let says = ["n1 is given up, up to its life 1, by view", "20 s from now"];
    assert!(says.iter().all(|text| ran.stdout.contains(text)), "{ran:?}");
    // With two nodes the one that is left is the home of all.
    assert!(others.len() > 1 || ran.stdout.contains("/file\n"), "{ran:?}");
    nodes[0].past("refused");
    wait_for("the other's file", GRANTED * 2, || nodes.out.join("at-other").exists().then_some(()));
    // What was there before its writer began is what is left.
    assert_eq!(harness::sees(&nodes.out.join("small")), "old\n");
    assert_others(nodes);
}

/// The store has what the other node has written, and all of it.
fn assert_others(nodes: &Nodes) {
    let wanted = "two\n".repeat(8 << 18);
    assert!(
        fs::read_to_string(nodes.store.join("file")).unwrap() == wanted[..8 << 20],
        "not its bytes"
    );
    assert_eq!(fs::read_to_string(nodes.store.join("small")).unwrap(), "old\n");
}

/// The node that was given up says what it has, and why it does not flush it.
fn says_why(nodes: &Nodes) -> Status {
    wait_for("n1 to say that it was given up", LONG, || {
        let status = nodes[1].status();
        status.text.contains("GIVEN UP").then_some(status)
    })
}

/// The pool of the node that was given up is there, with all its bytes.
fn salvages(nodes: &Nodes) {
    nodes[1].run("mkdir $NVME/../saved; $FOREBAY salvage --to $NVME/../saved").expect(0);
    let ran = nodes[1].run("find $NVME/../saved -name file -exec cksum {} +; rm -r $NVME/../saved");
    let wanted = nodes[1].run(&format!("{} | cksum", lines("one"))).expect(0).stdout;
    let sum = wanted.split(' ').next().unwrap();
    assert!(ran.stdout.contains(sum), "{ran:?}, not {sum}");
}

/// The manager stays with what it cannot flush, as it does where a store takes nothing.
fn clean_up(nodes: &Nodes) {
    nodes[1].kill_all();
    nodes[1].run("rm -rf /dev/shm/* $NVME/* $FOREBAY_RUNTIME_DIR/*").expect(0);
}

fn ends(nodes: &Nodes, other: Running) {
    nodes[0].past("other");
    nodes[0].at("last");
    nodes[0].past("last");
    let ran = other.end().expect(0);
    let wanted = nodes[0].run(&format!("{} | cksum", lines("two"))).expect(0).stdout;
    assert_eq!(ran.stdout, wanted);
    assert_others(nodes);
}

/// What a run says at its end that could not flush its files.
fn kept(ran: Ran) {
    assert!(
        ran.stderr.contains("could not be drained; the data is kept")
            && ran.stderr.contains("given up"),
        "{ran:?}"
    );
}

#[test]
fn a_stopped_node_that_was_given_up_flushes_nothing_when_it_goes_on() {
    let Some(nodes) = Nodes::new(2) else { return };
    let script = "sync file; echo sync $?; exec 3>&-; step end";
    let (_, dirty, other) = written(&nodes, script);
    nodes[1].signal(Signal::STOP);
    given_up(&nodes);
    // Its program asks for a flush at once, and so does the end of the run.
    nodes[1].past("wrote");
    nodes[1].signal(Signal::CONT);
    nodes[1].at("end");
    let status = says_why(&nodes);
    assert!(status.text.contains("8.00 MiB"), "it says what it has: {}", status.text);
    assert_others(&nodes);
    assert_eq!(group(&nodes[1])["flushing"], "given up");
    nodes[1].past("end");
    let ran = dirty.end();
    assert!(ran.stdout.contains("sync 1"), "{ran:?}");
    kept(ran);
    assert_others(&nodes);
    // Nor does what comes later.
    let ran = nodes[1].run("$FOREBAY recover");
    assert!(ran.code != 0, "{ran:?}");
    assert_others(&nodes);
    salvages(&nodes);
    ends(&nodes, other);
    clean_up(&nodes);
}

#[test]
fn a_node_that_is_cut_off_and_given_up_flushes_nothing() {
    let Some(nodes) = Nodes::new(3) else { return };
    // With a third one it is certain which part of the group goes on.
    let config = strict(&nodes, 3);
    let third = nodes[2].spawn_buffered(&config, &[], "step third");
    let (_, dirty, other) = written(&nodes, "exec 3>&-; step end");
    nodes.set_link(1, false);
    given_up(&nodes);
    says_why(&nodes);
    nodes[1].past("wrote");
    nodes[1].at("end");
    nodes.set_link(1, true);
    nodes[1].past("end");
    kept(dirty.end());
    assert_others(&nodes);
    salvages(&nodes);
    nodes[2].past("third");
    third.end().expect(0);
    ends(&nodes, other);
    clean_up(&nodes);
}

#[test]
fn a_pool_that_was_given_up_is_not_flushed_by_the_next_manager() {
    let Some(nodes) = Nodes::new(2) else { return };
    let (config, dirty, other) = written(&nodes, "");
    nodes[1].kill_all();
    assert_eq!(dirty.end().code, 128 + 9);
    given_up(&nodes);
    // The next run finds the pool.
    let run = nodes[1].spawn_buffered(&config, &[], "cat file > $OUT/again; echo $?; step found");
    nodes[1].at("found");
    assert_others(&nodes);
    nodes[1].past("found");
    kept(run.end());
    assert_others(&nodes);
    // Nor one that is in no group.
    let ran = nodes[1].run("$FOREBAY recover");
    assert!(ran.code != 0, "{ran:?}");
    assert_others(&nodes);
    salvages(&nodes);
    ends(&nodes, other);
    clean_up(&nodes);
}
