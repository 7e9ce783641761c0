//! Files that a node has written and not flushed, and that others read from its memory meanwhile.
//! The store is one emulated device for all, and slow enough for that to pay.

use crate::harness::{self, LONG, Running, wait_for};
use crate::namespaces::{Node, Nodes};
use crate::remote::{Busy, all_at, await_group, go, on_all, sharing, with_ram};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// How many files the node has at this level, as its manager says.
fn held(node: &Node, level: &str) -> u64 {
    let text = node.spawn(&[harness::FOREBAY, "status", "--json"]).end().expect(0).stdout;
    let status: Value = serde_json::from_str(&text).unwrap();
    status[0]["group"]["leases"]["held"][level].as_u64().unwrap_or_else(|| panic!("{text}"))
}

/// Bytes of a file that the store has.
fn stored(nodes: &Nodes, name: &str) -> u64 {
    fs::metadata(nodes.store.join(name)).map_or(0, |file| file.len())
}

/// A script that writes so many bytes that no two places have alike to a file, and beside it to a
/// file that is not buffered.
fn write(name: &str, bytes: u64) -> String {
    format!("head -c {bytes} /dev/urandom | tee $OUT/{name} > {name}")
}

#[test]
fn what_another_node_has_not_flushed_is_read_from_its_memory() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = with_ram(&nodes, &sharing(&nodes, 2, ""), "64MiB");
    let bytes = 12 * MIB + 12_345;
    let runs = on_all(&nodes, 2, &config, |node| match node {
        0 => format!(
            "{}; step wrote; cmp big $OUT/big && stat -c %s big; step again; echo more >> big; \
             cksum < big",
            write("big", bytes)
        ),
        _ => "step wait; cmp big $OUT/big && stat -c %s big; tail -c 100 big | cmp - \
              <(tail -c 100 $OUT/big); step compared; step appended; cksum < big; \
              tail -n 1 big | tail -c 5"
            .to_owned(),
    });
    go(&nodes, 2, "begun");
    nodes[0].at("wrote");
    nodes[1].at("wait");
    nodes[1].past("wait");
    nodes[1].at("compared");
    // All of it was read, and nothing flushed.
    assert_eq!(stored(&nodes, "big"), 0);
    assert_eq!((held(&nodes[0], "lent"), held(&nodes[1], "borrowed")), (1, 1));
    nodes[0].past("wrote");
    nodes[0].at("again");
    nodes[0].past("again");
    nodes[0].at("read0");
    assert_eq!(held(&nodes[1], "borrowed"), 0);
    nodes[1].past("compared");
    nodes[1].at("appended");
    nodes[1].past("appended");
    nodes[1].at("read1");
    assert_eq!(stored(&nodes, "big"), 0);
    go(&nodes, 2, "read");
    let outs: Vec<String> = runs.into_iter().map(|run| run.end().expect(0).stdout).collect();
    let sum = nodes[0].run("cksum < big").expect(0).stdout;
    assert_eq!(outs, [format!("{bytes}\n{sum}"), format!("{bytes}\n{sum}more\n")]);
}

/// What needs the store's file, or does not come from the other node, has it flushed.
#[test]
fn who_needs_the_stores_file_waits_until_it_has_what_is_lent() {
    let python = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,prot=1); \
                  sys.stdout.buffer.write(m[:])";
    let ways = [
        ("mapped", format!("python3 -c \"{python}\" f | cmp - $OUT/f")),
        ("copied", "cp f copy && cmp copy $OUT/f".to_owned()),
        ("executed", "cmp f $OUT/f && chmod +x f && ./f".to_owned()),
        ("renamed", "mv f g && cmp g $OUT/f && mv g f".to_owned()),
        ("removed", "cmp f $OUT/f && rm f && ! stat f 2> /dev/null".to_owned()),
        ("written", "cmp f $OUT/f && echo end >> f && cmp f <(cat $OUT/f; echo end)".to_owned()),
        ("cut", "truncate -s 5000 f && cmp f <(head -c 5000 $OUT/f)".to_owned()),
    ];
    let Some(nodes) = Nodes::new(2) else { return };
    let config = with_ram(&nodes, &sharing(&nodes, 2, ""), "64MiB");
    let runs = on_all(&nodes, 2, &config, |node| match node {
        0 => {
            let body = "{ echo '#!/bin/sh'; echo exit 0; seq 200000; }";
            let each = ways.iter().map(|(way, _)| {
                format!("mkdir -p {way}; {body} | tee $OUT/f > {way}/f; step {way}")
            });
            each.collect::<Vec<_>>().join("\n")
        }
        _ => {
            let each = ways.iter().map(|(way, script)| {
                format!("step on-{way}; (cd {way}; {script}) || {{ echo {way}; exit 1; }}")
            });
            each.collect::<Vec<_>>().join("\n")
        }
    });
    go(&nodes, 2, "begun");
    for (way, _) in &ways {
        nodes[0].at(way);
        nodes[1].at(&format!("on-{way}"));
        nodes[1].past(&format!("on-{way}"));
        let next = ways.iter().skip_while(|(other, _)| other != way).nth(1);
        nodes[1].at(&next.map_or("read1".to_owned(), |(next, _)| format!("on-{next}")));
        nodes[0].past(way);
    }
    go(&nodes, 2, "read");
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, "");
    }
}

/// A program that has it open on another node reads it to its end.
#[test]
fn a_file_that_is_removed_while_it_is_lent_is_read_to_its_end() {
    for way in ["rm f", "mv other f"] {
        let Some(nodes) = Nodes::new(2) else { return };
        let config = with_ram(&nodes, &sharing(&nodes, 2, ""), "64MiB");
        let runs = on_all(&nodes, 2, &config, |node| match node {
            0 => format!("echo > other; {}; step wrote; {way}", write("f", 8 * MIB)),
            _ => "step wait; exec 3< f; head -c 1000000 <&3 > $OUT/some; step some; \
                  cat <&3 > $OUT/rest"
                .to_owned(),
        });
        go(&nodes, 2, "begun");
        nodes[0].at("wrote");
        nodes[1].at("wait");
        nodes[1].past("wait");
        nodes[1].at("some");
        assert_eq!((held(&nodes[0], "lent"), stored(&nodes, "f")), (1, 0), "{way}");
        nodes[0].past("wrote");
        nodes[0].at("read0");
        wait_for("the flush", LONG, || (held(&nodes[0], "lent") == 0).then_some(()));
        nodes[1].past("some");
        nodes[1].at("read1");
        let mut got = fs::read(nodes.out.join("some")).unwrap();
        got.extend(fs::read(nodes.out.join("rest")).unwrap());
        assert!(got == fs::read(nodes.out.join("f")).unwrap(), "{way}: {} bytes", got.len());
        go(&nodes, 2, "read");
        runs.into_iter().for_each(|run| drop(run.end().expect(0)));
    }
}

/// Tiers that hold less than the file: blocks go to where they are slower, and those that have
/// borrowed it drop what they have.
#[test]
fn a_file_larger_than_memory_is_lent_from_all_tiers() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = with_ram(&nodes, &sharing(&nodes, 3, ""), "8MiB");
    let bytes = 24 * MIB + 4097;
    let runs = on_all(&nodes, 3, &config, |node| match node {
        0 => write("big", bytes),
        _ => "step wait; cmp big $OUT/big && cmp big $OUT/big && \
              for n in $(seq 40); do at=$((RANDOM * 700)); cmp <(tail -c +$at big | head -c 9000) \
              <(tail -c +$at $OUT/big | head -c 9000) || exit 1; done"
            .to_owned(),
    });
    go(&nodes, 3, "begun");
    nodes[0].at("read0");
    for node in [1, 2] {
        nodes[node].at("wait");
        nodes[node].past("wait");
    }
    all_at(&nodes, 3, "read");
    go(&nodes, 3, "read");
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, "");
    }
    assert!(fs::read(nodes.store.join("big")).unwrap() == fs::read(nodes.out.join("big")).unwrap());
}

/// The node that lends a file, or its manager, goes, in each way that it can go; what it has not
/// given is waited for, or an error: never old bytes.
#[test]
fn a_lender_that_goes_takes_along_what_it_has_not_given() {
    for way in ["killed", "stopped", "cut", "without a manager"] {
        let Some(nodes) = Nodes::new(2) else { return };
        let config = with_ram(&nodes, &sharing(&nodes, 2, ""), "64MiB");
        // As long as the new one: what is old shows.
        fs::write(nodes.store.join("big"), vec![7; 8 << 20]).unwrap();
        let script = "step wait; exec 3< big; head -c 1000000 <&3 > $OUT/some; step some; \
                      cat <&3 > $OUT/rest || echo failed";
        let mut runs = on_all(&nodes, 2, &config, |node| match node {
            0 => write("big", 8 * MIB),
            _ => script.to_owned(),
        });
        nodes[0].past("begun0");
        nodes[0].at("read0");
        nodes[1].past("begun1");
        nodes[1].at("wait");
        nodes[1].past("wait");
        nodes[1].at("some");
        assert_eq!((held(&nodes[0], "lent"), held(&nodes[1], "borrowed")), (1, 1), "{way}");
        let manager = nodes[0].status().manager;
        match way {
            "killed" => nodes[0].kill_all(),
            "stopped" => nodes[0].signal(Signal::STOP),
            "cut" => nodes.set_link(0, false),
            _ => drop(nodes[0].run(&format!("kill -9 {manager}")).expect(0)),
        }
        nodes[1].past("some");
        std::thread::sleep(Duration::from_secs(2));
        match way {
            "stopped" => nodes[0].signal(Signal::CONT),
            "cut" => nodes.set_link(0, true),
            "without a manager" => drop(nodes[0].run_buffered(&config, "true").0.expect(0)),
            _ => {}
        }
        nodes[1].at("read1");
        let all = fs::read(nodes.out.join("big")).unwrap();
        let mut got = fs::read(nodes.out.join("some")).unwrap();
        assert_eq!(got.len(), 1_000_000, "{way}");
        got.extend(fs::read(nodes.out.join("rest")).unwrap());
        assert!(all.starts_with(&got), "{way}: {} bytes", got.len());
        nodes[1].past("read1");
        let ran = runs.pop().unwrap().end().expect(0);
        let failed = if got.len() == all.len() { "" } else { "failed\n" };
        assert_eq!(ran.stdout, failed, "{way}: {ran:?}");
        assert_eq!(failed.is_empty(), way != "killed", "{way}: {} bytes", got.len());
        nodes[0].past("read0");
        let ran = runs.pop().unwrap().end();
        match way {
            "killed" => drop(nodes[0].spawn(&[harness::FOREBAY, "recover"]).end().expect(0)),
            _ => drop(ran.expect(0)),
        }
        assert!(fs::read(nodes.store.join("big")).unwrap() == all, "{way}");
    }
}

/// Files that are written anew, again and again, while others read them: each read is one of a
/// version as a whole, and never an older one than was read before; of one that was replaced while
/// it was open, and never flushed, nothing is left. Beside busy loops, and while managers pause
/// between the steps.
#[test]
fn borrowers_never_see_what_a_writer_has_replaced() {
    for pause in ["", "lease.*:1/3:200", "remote.*:1/6:200"] {
        let Some(nodes) = Nodes::new(3) else { return };
        let config = with_ram(&nodes, &sharing(&nodes, 3, ""), "8MiB");
        let read = "for n in $(seq 30); do known=$(cat $OUT/version); \
                    exec 3< file; dd bs=700000 count=1 status=none <&3 > $OUT/got-$me || exit 1; \
                    [ $(stat -c %s $OUT/got-$me) = 700000 ] || { \
                    [ $(stat -L -c %h /dev/fd/3) = 0 ] && continue; echo cut; exit 1; }; \
                    seen=$(fold -w 700000 $OUT/got-$me | head -c 1); \
                    tr -d $seen < $OUT/got-$me | grep -q . && { echo mixed; exit 1; }; \
                    [ $seen -ge $known ] || { echo $seen after $known; exit 1; }; done";
        let write = "for n in $(seq 40); do v=$((n / 10 + 1)); \
                     head -c 700000 /dev/zero | tr '\\0' $v > new; mv new file; echo $v > \
                     $OUT/next; mv $OUT/next $OUT/version; cat file | cksum > /dev/null; done";
        // In place, and in one call: what is read is one version, or the next.
        let overwrite = "for v in 6 7 8 9; do head -c 700000 /dev/zero | tr '\\0' $v > \
                         $OUT/new; dd if=$OUT/new of=file bs=700000 conv=notrunc status=none; \
                         echo $v > $OUT/next; mv $OUT/next $OUT/version; sleep 0.3; done";
        fs::write(nodes.store.join("file"), vec![b'1'; 700_000]).unwrap();
        fs::write(nodes.out.join("version"), "1\n").unwrap();
        let busy = Busy::new(&nodes);
        let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }";
        let runs: Vec<Running> = (0..3)
            .map(|node| {
                let what =
                    if node == 0 { format!("{write}; {overwrite}") } else { read.to_owned() };
                let script = format!(
                    "{step}; me={node}; step begun{node}; ({what}); code=$?; step read{node}; \
                     exit $code"
                );
                let run = [harness::FOREBAY, "run", "--config", &config, "--"];
                let pause = format!("FOREBAY_PAUSE={pause}");
                let words =
                    [&["env", &pause, "FOREBAY_PAUSE_IN=node"], &run[..], &["bash", "-c", &script]];
                nodes[node].spawn(&words.concat())
            })
            .collect();
        all_at(&nodes, 3, "begun");
        await_group(&nodes, 3);
        go(&nodes, 3, "begun");
        all_at(&nodes, 3, "read");
        go(&nodes, 3, "read");
        let rans: Vec<_> = runs.into_iter().map(Running::end).collect();
        busy.end(&nodes);
        for (node, ran) in rans.into_iter().enumerate() {
            assert_eq!((ran.code, &ran.stdout[..]), (0, ""), "{pause}: node {node}: {ran:?}");
        }
        assert!(fs::read(nodes.store.join("file")).unwrap() == vec![b'9'; 700_000], "{pause}");
    }
}
