//! The faults of docs/nodes.md, each a real one, where nodes share files by leases: what programs
//! read is what was written, or an error that names the file, and `forebay status` says why.

use crate::groups::{WITHOUT, agree, folders, group, has_link, hears, linked, view};
use crate::harness::{self, LONG, Running, Status, wait_for};
use crate::namespaces::Nodes;
use crate::strict::{assert_stored, seed, strict};
use rustix::process::Signal;
use std::fs;
use std::path::Path;

/// How many files a case has: each has some node for its home, which is not chosen here.
const FILES: usize = 8;

/// The words of a shell loop over the files of a case.
fn each(script: &str) -> String {
    let numbers: Vec<_> = (0..FILES).map(|number| number.to_string()).collect();
    format!("for i in {}; do {script}; done", numbers.join(" "))
}

/// Waits for a thing that a node's status says in words.
pub fn says(nodes: &Nodes, number: usize, wanted: &str) {
    let node = &nodes[number];
    wait_for(&format!("{node} to say {wanted:?}"), LONG, || {
        node.status().text.contains(wanted).then_some(())
    });
}

/// Random calls on all nodes until the test is past "end".
struct Mixture {
    runs: Vec<Running>,
    seed: u64,
}

impl Mixture {
    /// `None`, and loud, without a C compiler. All nodes have used the files when it is there.
    fn start(nodes: &Nodes, config: &str) -> Option<Mixture> {
        if !harness::compile_into(&nodes.out, "coherent.c", &[]) {
            return None;
        }
        let seed = seed();
        let run = |(number, node): (usize, &crate::namespaces::Node)| {
            let first = seed * 8000 + number as u64 * 1000;
            let script = format!(
                "n={first}; while [ ! -e $OUT/past-end ]; do \
                 $OUT/coherent $OUT/model $n 40 first second > $OUT/said-{node} || exit 1; \
                 n=$((n + 1)); : > $OUT/at-mixed-{node}; done"
            );
            node.spawn_buffered(config, &[], &script)
        };
        let runs = nodes.iter().enumerate().map(run).collect();
        nodes.iter().for_each(|node| node.at(&format!("mixed-{node}")));
        Some(Mixture { runs, seed })
    }

    /// Waits until each node has got further by itself.
    fn goes_on(&self, nodes: &Nodes) {
        for node in nodes.iter() {
            let mark = nodes.out.join(format!("at-mixed-{node}"));
            fs::remove_file(&mark).unwrap();
            node.at(&format!("mixed-{node}"));
        }
    }

    /// All calls were right, and what they wrote is on the store.
    fn end(self, nodes: &Nodes) {
        nodes[0].past("end");
        for run in self.runs {
            let ran = run.end();
            assert_eq!(ran.code, 0, "seed {}: {ran:?}", self.seed);
        }
        assert_stored(nodes, self.seed);
    }
}

/// A job that is killed on all its nodes at once, managers and all, has lost nothing while their
/// memory is there: the next job's nodes form their group anew, and each sees what all have
/// written.
#[test]
fn a_group_that_is_killed_as_a_whole_loses_nothing() {
    let Some(nodes) = Nodes::new(3) else { return };
    if !harness::compile_into(&nodes.out, "records.c", &[]) {
        return;
    }
    let config = strict(&nodes, 3);
    let records = |what: &str, rank: usize| {
        format!("$OUT/records {what} segmented shared {rank} 3 300 47008 || exit 1")
    };
    let writes = |node: usize| {
        let script = format!(
            "step begun-{node}; {}; seq {node} 50000 > own-{node}; step wrote-{node}; sleep 1000",
            records("write", node)
        );
        nodes[node].spawn_buffered(&config, &[], &script)
    };
    let runs: Vec<_> = (0..3).map(writes).collect();
    (0..3).for_each(|node| nodes[node].at(&format!("begun-{node}")));
    (0..3).for_each(|node| nodes[node].past(&format!("begun-{node}")));
    (0..3).for_each(|node| nodes[node].at(&format!("wrote-{node}")));
    nodes.iter().for_each(|node| node.kill_all());
    for run in runs {
        assert_eq!(run.end().code, 128 + 9);
    }
    let missing = (0..3).map(|node| nodes.store.join(format!("own-{node}")));
    let is_stored =
        |path: &std::path::PathBuf| fs::metadata(path).is_ok_and(|found| found.len() > 0);
    assert!(missing.into_iter().any(|path| !is_stored(&path)), "nothing was left to lose");

    let reads = |node: usize| {
        let own: String =
            (0..3).map(|of| format!("seq {of} 50000 | cmp - own-{of} || exit 1; ")).collect();
        let all: String = (0..3).map(|of| records("check", of) + "; ").collect();
        let script = format!("step again-{node}; {own}{all}echo all");
        nodes[node].spawn_buffered(&config, &[], &script)
    };
    let runs: Vec<_> = (0..3).map(reads).collect();
    (0..3).for_each(|node| nodes[node].at(&format!("again-{node}")));
    (0..3).for_each(|node| nodes[node].past(&format!("again-{node}")));
    for run in runs {
        let ran = run.end().expect(0);
        assert!(ran.stdout.contains("all"), "{ran:?}");
    }
}

/// "its unflushed files are lost: others get EIO for them, and not older bytes", whichever node is
/// their home; what others wrote is untouched where the dead node was the home.
#[test]
fn what_a_dead_node_had_not_flushed_is_an_error_by_name_and_nothing_else() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    nodes[0].run(&each("echo old > lost-$i; echo old > kept-$i")).expect(0);
    let script = each("seq 1000 > kept-$i") + "; step kept";
    let keeps = nodes[0].spawn_buffered(&config, &[], &script);
    nodes[0].at("kept");
    let script = each("seq 2000 | dd of=lost-$i conv=notrunc status=none") + "; step wrote";
    let dies = nodes[1].spawn_buffered(&config, &[], &script);
    nodes[1].at("wrote");
    let read = each(
        "cat lost-$i > $OUT/got-$i 2> $OUT/error-$i && echo read lost-$i; \
         echo more >> lost-$i && echo wrote lost-$i; cksum < kept-$i",
    );
    let reads = nodes[2].spawn_buffered(&config, &[], &format!("step begun; {read}; step read"));
    nodes[2].at("begun");
    agree(&nodes, &[0, 1, 2], LONG);

    nodes[1].kill_all();
    assert_eq!(dies.end().code, 128 + 9);
    nodes[1].run("rm -rf /dev/shm/* $NVME/*").expect(0);
    agree(&nodes, &[0, 2], WITHOUT);
    nodes[2].past("begun");
    wait_for("the reads", LONG * 3, || nodes.out.join("at-read").exists().then_some(()));
    for number in 0..FILES {
        assert_eq!(harness::sees(&nodes.out.join(format!("got-{number}"))), "", "lost-{number}");
        let error = harness::sees(&nodes.out.join(format!("error-{number}")));
        let wanted = format!("lost-{number}: Input/output error");
        assert!(error.contains(&wanted), "lost-{number}: {error}");
        assert_eq!(harness::sees(&nodes.store.join(format!("lost-{number}"))), "old\n");
    }
    let lost: u64 =
        [0, 2].iter().map(|&n| group(&nodes[n])["leases"]["lost"].as_u64().unwrap()).sum();
    assert_eq!(lost, FILES as u64, "{}{}", nodes[0].status().text, nodes[2].status().text);
    assert_eq!(group(&nodes[0])["nodes"][1]["standing"], "left out");

    // It comes back without its memory: the files are as lost for itself.
    let script = each("cat lost-$i && echo read lost-$i") + "; step again";
    let again = nodes[1].spawn_buffered(&config, &[], &script);
    wait_for("its reads", LONG * 3, || nodes.out.join("at-again").exists().then_some(()));
    nodes[1].past("again");
    assert_eq!(again.end().stdout, "", "a file that was lost was read by its writer's next life");

    nodes[2].past("read");
    nodes[0].past("kept");
    let sum = nodes[0].run("seq 1000 | cksum").expect(0).stdout;
    assert_eq!(reads.end().stdout, sum.repeat(FILES));
    keeps.end().expect(0);
}

/// The end of a manager is noticed by its link, long before a node would be left out, and its next
/// life has what the last one had.
#[test]
fn a_killed_manager_is_noticed_by_its_links_and_nothing_is_taken_over() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    let script = "$FOREBAY status > $OUT/manager; seq 30000 > file; step wrote; \
                  seq 40000 > file; cksum < file; step more";
    let run = nodes[0].spawn_buffered(&config, &[], script);
    nodes[0].at("wrote");
    let others: Vec<_> =
        [1, 2].map(|n| nodes[n].spawn_buffered(&config, &[], "step look; cksum < file")).into();
    let before = agree(&nodes, &[0, 1, 2], LONG);
    linked(&nodes, &before);
    let manager = Status::parse(harness::sees(&nodes.out.join("manager"))).manager;
    // It is seen before its next life has begun, or with that.
    nodes[0].run(&format!("kill -9 {manager}")).expect(0);
    for number in [1, 2] {
        wait_for("the loss of a link", LONG, || {
            (!has_link(&group(&nodes[number]), before.members[0])).then_some(())
        });
    }
    let after = agree(&nodes, &[0, 1, 2], LONG);
    assert!(after.members[0].life > before.members[0].life, "{after:?}");
    assert_eq!(after.members[1..], before.members[1..], "{after:?}");
    nodes[0].past("wrote");
    nodes[0].at("more");
    nodes[0].past("look");
    let sum = run.stdout();
    for other in others {
        assert_eq!(other.end().expect(0).stdout, sum);
    }
    nodes[0].past("more");
    run.end().expect(0);
}

/// A life that is killed before any view has it claims nothing for those before it: the next one
/// does, and what they wrote is not lost.
#[test]
fn what_a_node_wrote_outlives_a_life_that_was_in_no_view() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let run = nodes[0].spawn_buffered(&config, &[], &(each("seq 1000 > of-$i") + "; step wrote"));
    nodes[0].at("wrote");
    let script = format!("step begun; {}", each("cksum < of-$i"));
    let reads = nodes[1].spawn_buffered(&config, &[], &script);
    nodes[1].at("begun");
    agree(&nodes, &[0, 1], LONG);

    // While its link is down no view takes a new life in.
    nodes.set_link(0, false);
    let kill = || {
        let manager = nodes[0].status().manager;
        nodes[0].run(&format!("kill -9 {manager}")).expect(0);
    };
    kill();
    wait_for("a life that is in no view", LONG, || {
        let seen = group(&nodes[0]);
        (seen["state"] == "member" && seen["rank"] != "inside").then_some(())
    });
    kill();
    nodes.set_link(0, true);
    agree(&nodes, &[0, 1], LONG);
    nodes[1].past("begun");
    let sum = nodes[1].run("seq 1000 | cksum").expect(0).stdout;
    assert_eq!(reads.end().expect(0).stdout, sum.repeat(FILES));
    nodes[0].past("wrote");
    run.end().expect(0);
}

/// A node that is cut off is fenced, the others go on without it, and when it is back all calls
/// have had their bytes.
#[test]
fn random_calls_are_right_across_a_split_that_heals() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    let Some(mixture) = Mixture::start(&nodes, &config) else { return };
    agree(&nodes, &[0, 1, 2], LONG);
    nodes.set_link(2, false);
    let without = agree(&nodes, &[0, 1], WITHOUT);
    wait_for("n2 to see that it is left out", LONG, || {
        (group(&nodes[2])["rank"] != "inside").then_some(())
    });
    says(&nodes, 0, "LEFT OUT: does not answer");
    nodes.set_link(2, true);
    let whole = agree(&nodes, &[0, 1, 2], LONG);
    assert!(whole.number > without.number);
    mixture.goes_on(&nodes);
    mixture.end(&nodes);
}

/// Of two nodes that do not hear each other one goes on, and neither gets what the other has.
#[test]
fn of_a_split_in_two_halves_one_goes_on() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    nodes[0].run("echo old > of-n0; echo old > of-n1").expect(0);
    let run = |number: usize| {
        let other = 1 - number;
        let script = format!(
            "seq 3000 > of-n{number}; step wrote-{number}; \
             cat of-n{other} > $OUT/got-{number} 2> $OUT/error-{number}; step tried-{number}; \
             cksum < of-n{other}"
        );
        nodes[number].spawn_buffered(&config, &[], &script)
    };
    let runs = [run(0), run(1)];
    (0..2).for_each(|number| nodes[number].at(&format!("wrote-{number}")));
    let before = agree(&nodes, &[0, 1], LONG);
    nodes.set_link(1, false);
    let goes_on = wait_for("a view of one", WITHOUT + LONG, || {
        let views = [0, 1].map(|number| view(&group(&nodes[number])));
        let alone =
            |number: &usize| views[*number].as_ref().is_some_and(|view| view.members.len() == 1);
        (0..2).find(alone)
    });
    let out = 1 - goes_on;
    wait_for("the other one to be out", LONG, || {
        (group(&nodes[out])["rank"] != "inside").then_some(())
    });
    assert_eq!(view(&group(&nodes[goes_on])).unwrap().number, before.number + 1);
    // Both want what the other one has, and get it when the link is back, or an error till then.
    (0..2).for_each(|number| nodes[number].past(&format!("wrote-{number}")));
    nodes.set_link(1, true);
    agree(&nodes, &[0, 1], LONG);
    let text = nodes[0].run("seq 3000").expect(0).stdout;
    let sum = nodes[0].run("seq 3000 | cksum").expect(0).stdout;
    for number in 0..2 {
        let tried = format!("tried-{number}");
        wait_for(&tried, LONG * 3, || nodes.out.join(format!("at-{tried}")).exists().then_some(()));
        let got = harness::sees(&nodes.out.join(format!("got-{number}")));
        let error = harness::sees(&nodes.out.join(format!("error-{number}")));
        // `cksum` of coreutils 9.1 says nothing of reads that fail; `cat` does.
        let named = error.contains(&format!("of-n{}: ", 1 - number));
        assert!(got == text || (got.is_empty() && named), "{} bytes, {error}", got.len());
        nodes[number].past(&tried);
    }
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, sum);
    }
}

/// A network that loses a packet in ten, and a node that stops for three seconds, leave out none.
#[test]
fn random_calls_are_right_although_packets_are_lost() {
    let Some(nodes) = Nodes::new(3) else { return };
    if !nodes.iter().all(|node| node.lose(10)) {
        return;
    }
    let config = strict(&nodes, 3);
    let Some(mixture) = Mixture::start(&nodes, &config) else { return };
    let formed = agree(&nodes, &[0, 1, 2], LONG);
    let was_short = crate::groups::stop_for_a_moment(&nodes[1]);
    (0..3).for_each(|_| mixture.goes_on(&nodes));
    let after = agree(&nodes, &[0, 1, 2], LONG);
    if was_short {
        assert_eq!(after, formed, "a node was left out");
    } else {
        harness::skip("stopping a node for three seconds took too long on this machine");
    }
    nodes.iter().for_each(|node| _ = node.lose(0));
    mixture.end(&nodes);
}

/// A node that stops for longer is left out, drops its copies when it goes on, and keeps what it
/// alone was writing.
#[test]
fn a_node_that_was_stopped_for_long_finds_itself_left_out() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    let script =
        "seq 1000 > file; step wrote; seq 2000 > file; cksum < file; step anew; cksum < of-n2";
    let writes = nodes[0].spawn_buffered(&config, &[], script);
    nodes[0].at("wrote");
    let script =
        "seq 500 > of-n2; cksum < file > $OUT/first; step read; cksum < file; cksum < of-n2";
    let stops = nodes[2].spawn_buffered(&config, &[], script);
    nodes[2].at("read");
    let third = nodes[1].spawn_buffered(&config, &[], "step third");
    let formed = agree(&nodes, &[0, 1, 2], LONG);
    nodes[2].signal(Signal::STOP);
    let without = agree(&nodes, &[0, 1], WITHOUT);
    assert_eq!(without.number, formed.number + 1);
    // It had a copy: whose writer waits until that cannot be read any more, and gets its lease.
    nodes[0].past("wrote");
    nodes[0].at("anew");
    nodes[2].signal(Signal::CONT);
    let whole = agree(&nodes, &[0, 1, 2], LONG);
    assert!(whole.members[2].since > without.number, "{whole:?}");
    nodes[2].past("read");
    nodes[0].past("anew");
    nodes[1].past("third");
    let sums = |count: u32| nodes[0].run(&format!("seq {count} | cksum")).expect(0).stdout;
    assert_eq!(harness::sees(&nodes.out.join("first")), sums(1000));
    assert_eq!(stops.end().expect(0).stdout, sums(2000) + &sums(500));
    assert_eq!(writes.end().expect(0).stdout, sums(2000) + &sums(500));
    third.end().expect(0);
}

/// Without the group's folder all are fenced: what a node writes alone goes on, nothing is made or
/// taken over, and all go on when it is back.
#[test]
fn without_the_folder_all_are_fenced_and_go_on_when_it_is_back() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let run = |number: usize| {
        let script = format!(
            "seq 1000 > of-n{number}; step wrote-{number}; seq 2000 >> of-n{number}; \
             cksum < of-n{number}; step more-{number}; cksum < of-n{}",
            1 - number
        );
        nodes[number].spawn_buffered(&config, &[], &script)
    };
    let runs = [run(0), run(1)];
    (0..2).for_each(|number| nodes[number].at(&format!("wrote-{number}")));
    let before = agree(&nodes, &[0, 1], LONG);
    let folder = folders(&nodes).remove(0);
    without_cards(&nodes, &folder, &[0, 1], || {
        for number in 0..2 {
            says(&nodes, number, "FENCED");
            nodes[number].past(&format!("wrote-{number}"));
            nodes[number].at(&format!("more-{number}"));
        }
        let view = |number: u64| folder.join(format!("view.{number}"));
        assert!(view(before.number).exists() && !view(before.number + 1).exists());
    });
    assert_eq!(agree(&nodes, &[0, 1], LONG), before);
    (0..2).for_each(|number| nodes[number].past(&format!("more-{number}")));
    let wanted = nodes[0].run("(seq 1000; seq 2000) | cksum").expect(0).stdout;
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, wanted.repeat(2));
    }
}

/// Where the newest view is lost, the number that was seen counts. Looks go upward, so it is missed
/// only when a member has gone and the folder is listed: the other one is fenced, says why, and
/// goes on with what it alone was writing.
#[test]
fn a_node_that_misses_the_newest_view_is_fenced_and_says_why() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let script = "seq 1000 > of-n0; step wrote-0; cat of-n1 | cksum; step read-0";
    let leaves = nodes[0].spawn_buffered(&config, &[], script);
    let script = "seq 1000 > mine; seq 1000 > of-n1; step wrote-1; cat of-n0 | cksum; step read-1; \
                  seq 2000 > mine; cksum < mine; step end";
    let stays = nodes[1].spawn_buffered(&config, &[], script);
    (0..2).for_each(|number| nodes[number].at(&format!("wrote-{number}")));
    let before = agree(&nodes, &[0, 1], LONG);
    let lost = format!("view.{}", before.number);
    fs::remove_file(folders(&nodes).remove(0).join(&lost)).unwrap();
    (0..2).for_each(|number| nodes[number].past(&format!("wrote-{number}")));
    (0..2).for_each(|number| nodes[number].at(&format!("read-{number}")));
    assert_eq!(agree(&nodes, &[0, 1], LONG), before);
    let sums = |count: u32| nodes[0].run(&format!("seq {count} | cksum")).expect(0).stdout;
    nodes[0].past("read-0");
    assert_eq!(leaves.end().expect(0).stdout, sums(1000));
    says(&nodes, 1, "FENCED");
    says(&nodes, 1, &format!("{lost}: was there, and the newest is number "));
    assert_eq!(group(&nodes[1])["view"]["number"], before.number);
    nodes[1].past("read-1");
    nodes[1].at("end");
    nodes[1].past("end");
    assert_eq!(stays.end().expect(0).stdout, sums(1000) + &sums(2000));
}

/// Does something while the cards of these nodes are not in their group's folder.
pub fn without_cards(nodes: &Nodes, folder: &Path, of: &[usize], during: impl FnOnce()) {
    let aside = nodes.out.join("aside");
    fs::create_dir(&aside).unwrap();
    let begins: Vec<_> = of.iter().map(|node| format!("member.{node}.")).collect();
    // One of them may just get its next name.
    wait_for("the cards", LONG, || {
        for entry in fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name();
            if begins.iter().any(|begin| name.to_string_lossy().starts_with(begin)) {
                let _ = fs::rename(folder.join(&name), aside.join(&name));
            }
        }
        (fs::read_dir(&aside).unwrap().count() == of.len()).then_some(())
    });
    during();
    for entry in fs::read_dir(&aside).unwrap() {
        let entry = entry.unwrap();
        fs::rename(entry.path(), folder.join(entry.file_name())).unwrap();
    }
}

/// What comes to the ports and is not of the group is dropped and counted; what was recorded and
/// is sent again changes nothing.
#[test]
fn strange_and_repeated_packets_are_counted_and_change_nothing() {
    let Some(nodes) = Nodes::new(3) else { return };
    let Some(python) = harness::python_with("socket") else { return };
    let config = strict(&nodes, 3);
    let Some(mixture) = Mixture::start(&nodes, &config) else { return };
    let formed = agree(&nodes, &[0, 1, 2], LONG);
    linked(&nodes, &formed);
    let target = group(&nodes[0])["nodes"][1]["address"].as_str().unwrap().to_owned();
    let script = nodes.out.join("packets.py");
    fs::write(&script, PACKETS).unwrap();
    let sent = nodes[0].run(&format!("{python} {} {target}", script.display()));
    let sent = sent.expect(0);
    wait_for("packets that are counted", LONG, || {
        let packets = &group(&nodes[1])["packets"];
        let count = |name: &str| packets[name].as_u64().unwrap() > 0;
        ["malformed", "version", "group", "sum"].into_iter().all(count).then_some(())
    });
    let shown = nodes[1].status().text;
    assert!(shown.contains("DROPPED  packets: "), "{shown}{sent:?}");
    mixture.goes_on(&nodes);
    assert_eq!(agree(&nodes, &[0, 1, 2], LONG), formed);
    linked(&nodes, &formed);
    mixture.end(&nodes);
}

/// Records what its host sends to the UDP port, sends it again as it was and changed, and rubbish
/// to both ports. The first argument is address:port.
const PACKETS: &str = r#"
import os, socket, struct, sys
host, port = sys.argv[1].rsplit(":", 1)
port = int(port)
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
tap.settimeout(60)
seen = []
while len(seen) < 6:
    packet = tap.recv(65536)
    if packet[0] >> 4 != 4 or packet[9] != 17:
        continue
    udp = packet[(packet[0] & 15) * 4:]
    if socket.inet_ntoa(packet[16:20]) == host and struct.unpack(">H", udp[2:4])[0] == port:
        seen.append(udp[8:])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def changed(packet, at):
    return packet[:at] + bytes([packet[at] ^ 0x55]) + packet[at + 1:]
for packet in seen:
    for _ in range(5):
        out.sendto(packet, (host, port))
    for at in (0, 10, len(packet) - 1):
        out.sendto(changed(packet, at), (host, port))
    out.sendto(packet[:7], (host, port))
    out.sendto(os.urandom(200), (host, port))
out.sendto(b"", (host, port))
for what in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(5000), b"\x16\x03\x01\x02\x00" + bytes(512)):
    link = socket.create_connection((host, port), 10)
    link.settimeout(30)
    try:
        link.sendall(what)
        while link.recv(4096):
            pass
    except OSError:
        pass
    link.close()
"#;

/// A node that sees another store is heard by none, and hears none; all go on.
#[test]
fn a_node_with_another_store_is_never_heard_and_goes_on() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    let other = nodes.out.join("other");
    fs::create_dir(&other).unwrap();
    let mount = format!("mount --bind {} {}", other.display(), nodes.store.display());
    nodes[2].run(&mount).expect(0);
    let script = |n: usize| format!("seq 1000 > file-{n}; cksum < file-{n}; step there-{n}");
    let runs: Vec<_> = (0..3).map(|n| nodes[n].spawn_buffered(&config, &[], &script(n))).collect();
    (0..3).for_each(|n| nodes[n].at(&format!("there-{n}")));
    agree(&nodes, &[0, 1], LONG);
    agree(&nodes, &[2], LONG);
    for number in 0..3 {
        let seen = group(&nodes[number]);
        let strangers = if number == 2 { &[0, 1][..] } else { &[2] };
        for &stranger in strangers {
            assert_eq!(seen["nodes"][stranger]["standing"], "never heard", "n{number}: {seen}");
        }
        nodes[number].past(&format!("there-{number}"));
    }
    let sum = nodes[0].run("seq 1000 | cksum").expect(0).stdout;
    for run in runs {
        assert_eq!(run.end().expect(0).stdout, sum);
    }
    assert!(other.join("file-2").exists() && nodes.store.join("file-0").exists());
}

/// "Clocks of nodes need not agree": one that was started ten days before the other.
#[test]
fn nodes_whose_clocks_differ_share_files() {
    let ahead = ["unshare", "--time", "--boottime", "864000", "--monotonic", "864000", "--fork"];
    if !harness::works(&[&ahead[..], &["true"]].concat()) {
        harness::skip("no namespaces of clocks here");
        return;
    }
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let writes = nodes[0].spawn_buffered(&config, &[], "seq 1000 > file; step wrote; cksum < file");
    nodes[0].at("wrote");
    // What is asked for from outside cannot know a process by its start: its clock is another one.
    let script = "cksum < file; seq 2000 > file; $FOREBAY status > $OUT/status; : > $OUT/at-ahead; \
                  while [ ! -e $OUT/past-ahead ]; do sleep 0.05; done; cut -d. -f1 /proc/uptime";
    let run = [harness::FOREBAY, "run", "--config", &config, "--", "bash", "-c", script];
    let differs = nodes[1].spawn(&[&ahead[..], &run].concat());
    nodes[1].at("ahead");
    let shown = harness::sees(&nodes.out.join("status"));
    for wanted in ["n1), life 1: in view ", "n0, life 1: up, member since view "] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let seen = wait_for("a view of both", LONG, || {
        let seen = group(&nodes[0]);
        (view(&seen)?.members.len() == 2 && hears(&seen, &[0, 1])).then_some(seen)
    });
    nodes[0].past("wrote");
    let sums = |count: u32| nodes[0].run(&format!("seq {count} | cksum")).expect(0).stdout;
    assert_eq!(writes.end().expect(0).stdout, sums(2000));
    assert!(view(&seen).unwrap().members.iter().all(|member| member.life == 1), "{seen}");
    nodes[1].past("ahead");
    let ran = differs.end().expect(0);
    let uptime = ran.stdout.strip_prefix(&sums(1000)).unwrap_or_else(|| panic!("{ran:?}"));
    assert!(uptime.trim().parse::<u64>().unwrap() > 864_000, "{ran:?}");
}

/// A file that has the inode of one that was removed is none of the old one: neither its bytes nor
/// its leases count.
#[test]
fn a_file_with_the_inode_of_another_one_has_its_own_bytes() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = strict(&nodes, 2);
    let rounds = 20;
    // They go in turns. Each removes what the other has written, and writes a file of its own.
    let script = |mine: usize, other: usize| {
        format!(
            "turn() {{ until [ -e $OUT/turn-{mine}-$1 ]; do sleep 0.01; done; }}\n\
             for i in $(seq {rounds}); do turn $i\n\
             [ $i$(hostname) = 1n0 ] || cksum < of-{other} >> $OUT/sums\n\
             rm -f of-{other}; stat -c %i . > /dev/null\n\
             seq $((i * 10 + {mine})) > of-{mine}; stat -c %i of-{mine} >> $OUT/inodes\n\
             seq $((i * 10 + {mine})) | cksum >> $OUT/wanted\n\
             : > $OUT/turn-{other}-$((i + {mine})); done; step end-{mine}"
        )
    };
    fs::write(nodes.out.join("turn-0-1"), "").unwrap();
    let runs = [(0, 1), (1, 0)]
        .map(|(mine, other)| nodes[mine].spawn_buffered(&config, &[], &script(mine, other)));
    for number in 0..2 {
        let mark = nodes.out.join(format!("at-end-{number}"));
        wait_for("the turns", LONG * 2, || mark.exists().then_some(()));
    }
    for (number, run) in runs.into_iter().enumerate() {
        nodes[number].past(&format!("end-{number}"));
        run.end().expect(0);
    }
    let inodes = harness::sees(&nodes.out.join("inodes"));
    let distinct: std::collections::BTreeSet<_> = inodes.lines().collect();
    if distinct.len() == inodes.lines().count() {
        harness::skip("the store's file system gives no inode twice");
    }
    let wanted = harness::sees(&nodes.out.join("wanted"));
    let sums = harness::sees(&nodes.out.join("sums"));
    let wanted: Vec<_> = wanted.lines().collect();
    assert_eq!(sums.lines().collect::<Vec<_>>(), wanted[..wanted.len() - 1]);
}
