//! Node managers of several nodes form a group, and notice what becomes of its members: see
//! docs/nodes.md.

use crate::harness::{self, LONG, NOBODY, Running, is_alive, wait_for};
use crate::namespaces::{Node, Nodes};
use crate::strict::strict;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a group may take to go on without a member that is gone: two nodes take longest, as
/// neither is a majority.
pub const WITHOUT: Duration = Duration::from_secs(45);
pub const LAZY: &str = "trigger = \"on-exit\"";
/// The same of nodes without leases, whose programs go on wherever their node is.
const WITHOUT_LEASES: &str = "trigger = \"on-exit\"\n[group]\nconsistency = \"open\"";

/// What a node's manager says of its group; null if there is no manager, or no group.
pub fn group(node: &Node) -> Value {
    let said = node.spawn(&[harness::FOREBAY, "status", "--json"]).end().expect(0).stdout;
    let pools: Value =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    pools[0]["group"].clone()
}

/// A view, as one of its members shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub number: u64,
    pub members: Vec<Member>,
}

/// A node in a view: since which one without a break, and in which life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: usize,
    pub since: u64,
    pub life: u64,
}

/// The view in which a node is, if it is in one.
pub fn view(group: &Value) -> Option<View> {
    if group["rank"] != "inside" {
        return None;
    }
    let member = |node: &Value| {
        let (number, seat) = (node["node"].as_u64()?, &node["seat"]);
        Some(Member {
            node: number as usize,
            since: seat["since"].as_u64()?,
            life: seat["life"].as_u64()?,
        })
    };
    let members = group["nodes"].as_array()?.iter().filter_map(member).collect();
    Some(View { number: group["view"]["number"].as_u64()?, members })
}

/// Whether a node holds all of these for living, itself included.
pub fn hears(group: &Value, members: &[usize]) -> bool {
    members.iter().all(|&member| {
        let is_own = group["node"] == member as u64;
        is_own || group["nodes"][member]["standing"] == "up"
    })
}

/// Waits until these nodes have one view, of them alone, and hear each other.
pub fn agree(nodes: &Nodes, members: &[usize], limit: Duration) -> View {
    let what = format!("a view of {members:?}");
    let mut seen = Vec::new();
    let since = Instant::now();
    loop {
        seen.clear();
        seen.extend(members.iter().map(|&member| group(&nodes[member])));
        let views: Vec<_> = seen.iter().map(view).collect();
        if let Some(Some(first)) = views.first()
            && views.iter().all(|view| view.as_ref() == Some(first))
            && first.members.iter().map(|member| member.node).eq(members.iter().copied())
            && seen.iter().all(|group| hears(group, members))
        {
            return first.clone();
        }
        assert!(since.elapsed() < limit, "waited {limit:?} in vain for {what}: {seen:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a node has a link to another one's life.
pub fn has_link(group: &Value, peer: Member) -> bool {
    let mut links = group["links"].as_array().into_iter().flatten();
    let is_it = |link: &Value| link["node"] == peer.node as u64 && link["life"] == peer.life;
    links.any(|link| is_it(link) && link["state"] == "up")
}

/// Waits until each member of a view has a link to each other one.
pub fn linked(nodes: &Nodes, view: &View) {
    wait_for("links between all members", LONG, || {
        let has_all = |member: &Member| {
            let seen = group(&nodes[member.node]);
            view.members.iter().all(|peer| peer.node == member.node || has_link(&seen, *peer))
        };
        view.members.iter().all(has_all).then_some(())
    });
}

/// Waits until a node has no link to another one.
pub fn unlinked(node: &Node, peer: Member) {
    wait_for("the loss of a link", LONG, || (!has_link(&group(node), peer)).then_some(()));
}

/// A run that writes a file of its node, and lasts until the test is [`past`] "end".
pub fn begin(nodes: &Nodes, number: usize, config: &str, options: &[&str]) -> Running {
    let script = format!("seq 100000 > of-n{number}; step end; cksum < of-n{number}");
    nodes[number].spawn_buffered(config, options, &script)
}

/// The runs end, and what they wrote is right.
pub fn end(nodes: &Nodes, runs: Vec<(usize, Running)>) {
    nodes[0].past("end");
    let wanted = nodes[0].run("seq 100000 | cksum").expect(0).stdout;
    for (number, run) in runs {
        let ran = run.end().expect(0);
        assert_eq!(ran.stdout, wanted, "{}", nodes[number]);
        let stored = nodes[number].run(&format!("cksum < of-n{number}")).expect(0);
        assert_eq!(stored.stdout, wanted, "{}", nodes[number]);
    }
}

/// The folders of groups in the store.
pub fn folders(nodes: &Nodes) -> Vec<PathBuf> {
    let entries = fs::read_dir(&nodes.store).unwrap().map(|entry| entry.unwrap().path());
    let is_group = |path: &PathBuf| path.to_string_lossy().contains("/.forebay-group-");
    entries.filter(is_group).collect()
}

/// Stops all processes of a node for three seconds, which the group tolerates: it holds a node for
/// dead that does not answer for five. False if it took longer, as this machine was busy.
pub fn stop_for_a_moment(node: &Node) -> bool {
    let since = Instant::now();
    node.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    node.signal(Signal::CONT);
    since.elapsed() < Duration::from_secs(4)
}

#[test]
fn a_group_goes_on_without_members_that_are_gone_and_takes_them_in_again() {
    let Some(nodes) = Nodes::new(4) else { return };
    let config = nodes.configure("open.toml", WITHOUT_LEASES, "");
    let hosts = ["--hosts", "n[0-3]"];
    let mut runs: Vec<_> = (0..4).map(|n| (n, begin(&nodes, n, &config, &hosts))).collect();
    let formed = agree(&nodes, &[0, 1, 2, 3], LONG);
    linked(&nodes, &formed);
    let shown = nodes[1].status().text;
    for wanted in
        ["  group    node 1 of 4 (n1), life 1: in view ", "  n3, life 1: up, member since "]
    {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }

    // One is stopped for a moment, then another is killed with all that runs there: when that one
    // is out, the first still has the seat that it had.
    let was_short = stop_for_a_moment(&nodes[3]);
    nodes[2].kill_all();
    unlinked(&nodes[0], formed.members[2]);
    let without = agree(&nodes, &[0, 1, 3], WITHOUT);
    if was_short {
        let members = formed.members.into_iter().filter(|member| member.node != 2).collect();
        let wanted = View { number: formed.number + 1, members };
        assert_eq!(without, wanted, "a node that was stopped was left out");
    } else {
        harness::skip("stopping a node for three seconds took too long on this machine");
    }
    assert_eq!(runs.remove(2).1.end().code, 128 + 9);

    // It comes back with another life, and brings what it had to the store.
    let again = begin(&nodes, 2, &config, &hosts);
    let whole = agree(&nodes, &[0, 1, 2, 3], LONG);
    assert!(whole.members.iter().all(|one| (one.life > 1) == (one.node == 2)), "{whole:?}");
    linked(&nodes, &whole);
    runs.push((2, again));

    // The link of one is cut: the others go on without it, it knows that it is out, and its
    // programs go on.
    nodes.set_link(1, false);
    unlinked(&nodes[0], whole.members[1]);
    unlinked(&nodes[1], whole.members[0]);
    agree(&nodes, &[0, 2, 3], WITHOUT);
    wait_for("n1 to see that it is left out", LONG, || {
        let seen = group(&nodes[1]);
        (seen["rank"] != "inside" && seen["state"] == "member").then_some(())
    });
    let (ran, status) = nodes[1].run_buffered(&config, "seq 1000 > cut; cksum < cut");
    assert_eq!(ran.expect(0).stdout, nodes[0].run("seq 1000 | cksum").stdout);
    status.assert_live();
    nodes.set_link(1, true);
    linked(&nodes, &agree(&nodes, &[0, 1, 2, 3], LONG));

    end(&nodes, runs);
    wait_for("the end of the group's folder", LONG, || folders(&nodes).is_empty().then_some(()));
}

#[test]
fn nodes_of_a_slurm_job_find_each_other_although_packets_are_lost() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("lazy.toml", LAZY, "");
    nodes.iter().for_each(|node| _ = node.lose(10));
    let start = |number: usize| {
        let words = [
            "env",
            "SLURM_JOB_ID=17",
            "SLURM_JOB_NODELIST=n[0-1]",
            &format!("SLURM_NODEID={number}"),
            &format!("SLURMD_NODENAME=n{number}"),
            harness::FOREBAY,
            "run",
            "--config",
            &config,
            "--",
            "bash",
            "-c",
            "echo text > of-$(hostname); : > $OUT/at-wrote-$(hostname); \
             while [ ! -e $OUT/past-end ]; do sleep 0.05; done",
        ];
        nodes[number].spawn(&words)
    };
    let (stays, dies) = (start(0), start(1));
    let formed = agree(&nodes, &[0, 1], LONG);
    let folder = folders(&nodes);
    assert_eq!(folder.len(), 1);
    nodes.iter().for_each(|node| node.at(&format!("wrote-{node}")));

    // Of two, neither is a majority: the one that is left waits before it goes on.
    nodes[1].kill_all();
    assert_eq!(dies.end().code, 128 + 9);
    let without = agree(&nodes, &[0], WITHOUT);
    assert!(without.number > formed.number);
    let left = group(&nodes[0])["nodes"][1]["standing"].clone();
    assert_eq!(left, "left out");
    nodes[0].past("end");
    stays.end().expect(0);
    nodes[1].spawn(&[harness::FOREBAY, "recover"]).end().expect(0);
    for node in nodes.iter() {
        assert_eq!(harness::sees(&nodes.store.join(format!("of-{node}"))), "text\n");
    }
}

/// Each finds that it is the last one, or that another one is. Inodes of removed files are used
/// again, by one node and by others.
#[test]
fn nothing_of_a_group_is_left_whose_nodes_end_at_once() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = strict(&nodes, 3);
    for round in 0..4 {
        let step = |node: &Node| format!("here{round}-{node}");
        let begin = |node: &Node| {
            let script = format!(
                "seq 1000 > of-{node}; step {}; cat of-n[0-2] | wc -l; \
                 while :; do echo text > m-{node}; mv m-{node} n-{node}; cat n-{node}; \
                 rm n-{node}; done > $OUT/moves-{node} 2>&1",
                step(node)
            );
            node.spawn_buffered(&config, &[], &script)
        };
        let runs: Vec<_> = nodes.iter().map(begin).collect();
        agree(&nodes, &[0, 1, 2], LONG);
        nodes.iter().for_each(|node| node.at(&step(node)));
        nodes.iter().for_each(|node| node.past(&step(node)));
        std::thread::sleep(Duration::from_millis(500));
        nodes.iter().for_each(|node| node.signal(Signal::TERM));
        for (node, run) in nodes.iter().zip(runs) {
            let ran = run.end().expect(128 + 15);
            let moves = fs::read_to_string(nodes.out.join(format!("moves-{node}"))).unwrap();
            let is_wrong = |line: &&str| *line != "text" && !line.contains("Terminated");
            assert_eq!(moves.lines().find(is_wrong), None, "round {round}, {node}");
            assert_eq!(ran.stdout, "3000\n", "round {round}, {node}: {ran:?}");
        }
        wait_for("the end of the managers", LONG, || {
            nodes.iter().all(|node| node.processes().is_empty()).then_some(())
        });
        assert_eq!(folders(&nodes), Vec::<PathBuf>::new(), "round {round}");
    }
}

/// A group as a service: from a place that is none of its hosts, on all of them.
#[test]
fn up_and_down_by_a_launcher_begin_and_end_a_group() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("lazy.toml", LAZY, "");
    let launcher = nodes.launcher();
    let launcher = launcher.to_str().unwrap();
    let command = |what: &str, hosts: &str| {
        let words = [harness::FOREBAY, what, "--config", &config, "--hosts", hosts];
        let words = [&words[..], &["--launcher", launcher]].concat();
        nodes[0].spawn_command(nodes.starter(nodes.root(), &words)).end()
    };
    let ran = command("up", "n[0-1]").expect(0);
    for (number, node) in nodes.iter().enumerate() {
        let wanted = format!("group: node {number} of 2 ({node}), life 1: in view ");
        let mut lines = ran.stdout.lines();
        let line = lines.find(|line| line.starts_with(&format!("{node}: node manager ")));
        assert!(line.is_some_and(|line| line.contains(&wanted)), "{ran:?}");
    }
    let formed = agree(&nodes, &[0, 1], LONG);
    linked(&nodes, &formed);
    // Runs need not name the group, and it stays when they have ended.
    nodes[0].run_buffered(&config, "seq 1000 > file").0.expect(0);
    let wanted = nodes[0].run("seq 1000 | cksum").expect(0).stdout;
    let (ran, status) = nodes[1].run_buffered(&config, "cksum < file");
    assert_eq!((ran.expect(0).stdout, agree(&nodes, &[0, 1], LONG)), (wanted, formed));
    status.assert_live();
    // A host that is not reached is named, and what the others do is done.
    let ran = command("down", "n[0-2]");
    assert!(ran.stderr.contains("this failed on n2: see above"), "{ran:?}");
    assert_eq!(ran.stdout.matches(": stopped 1 node manager\n").count(), 2, "{ran:?}");
    ran.expect(125);
    wait_for("the end of the group's folder", LONG, || folders(&nodes).is_empty().then_some(()));
}

/// What a node's status says is wrong with others.
fn notices(node: &Node) -> Vec<String> {
    let seen = group(node);
    let notices = seen["notices"].as_array().into_iter().flatten();
    notices.map(|said| said.as_str().unwrap().to_owned()).collect()
}

/// The later of two nodes with different words in their configurations is alone, both say why, and
/// what programs write is there.
#[test]
fn nodes_that_differ_name_each_other_and_the_later_one_runs_on_alone() {
    let Some(nodes) = Nodes::new(3) else { return };
    let configure = |name: &str, more: &str| {
        let config = nodes.configure(name, LAZY, "");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, format!("{text}[group]\nfolder = \"group\"\n{more}")).unwrap();
        config
    };
    let auto = configure("auto.toml", "");
    let list = "give all nodes of the group the same list of hosts";
    let cases = [
        (
            1,
            "n[0-1]",
            "consistency = \"strict\"",
            "consistency = \"strict\", this one \"auto\"",
            "consistency",
        ),
        (
            1,
            "n[0-1]",
            "consistency = \"open\"",
            "consistency = \"open\", this one \"auto\"",
            "consistency",
        ),
        (
            1,
            "n[0-1]",
            "[[rule]]\npath = \"a\"\nconsistency = \"commit\"\n",
            "other rules that set consistency than this one",
            "give all nodes of the group the same rules",
        ),
        (2, "n[0-2]", "", "a list of 3 hosts, this one a list of 2", list),
        (2, "n0,n9,n2", "", "a list of 3 hosts, this one a list of 2", list),
    ];
    for (other, hosts, more, theirs, remedy) in cases {
        let first = begin(&nodes, 0, &auto, &["--hosts", "n[0-1]"]);
        agree(&nodes, &[0], LONG);
        let config = configure("other.toml", more);
        let second = begin(&nodes, other, &config, &["--hosts", hosts]);
        let said = |node: &Node, parts: &[&str]| {
            wait_for(&format!("{parts:?} on {node}"), LONG, || {
                let found = notices(node);
                found.iter().any(|said| parts.iter().all(|part| said.contains(part))).then_some(())
            });
            let shown = node.status().text;
            assert!(shown.contains("    WRONG    host "), "{shown}");
        };
        said(&nodes[0], &[&format!("host n{other} has {theirs}"), remedy]);
        // One that may go on alone does so at once, and nothing of it is left behind.
        if !more.contains("strict") && !more.contains("open") {
            wait_for("that it is alone", LONG, || {
                (group(&nodes[other])["state"] == "failed").then_some(())
            });
            let shown = nodes[other].status().text;
            assert!(shown.contains("NONE, the node is alone: host n0 has "), "{shown}");
        } else {
            said(&nodes[other], &["host n0 has consistency = \"auto\"", remedy]);
        }
        if more.contains("strict") {
            // Its programs wait for a group that it does not get into until the other one ends.
            nodes[0].past("end");
            assert_eq!(first.end().code, 0);
            let ran = second.end().expect(0);
            assert!(ran.stderr.contains("group: host n0 has consistency"), "{ran:?}");
        } else {
            end(&nodes, vec![(0, first), (other, second)]);
        }
        fs::remove_file(nodes.out.join("past-end")).unwrap();
        for node in nodes.iter() {
            wait_for("the managers' end", LONG, || node.processes().is_empty().then_some(()));
        }
    }
    assert!(!nodes.root().join("group").exists());
}

/// The same of a node whose build has other messages.
#[test]
fn nodes_of_other_builds_name_each_other_and_the_later_one_runs_on_alone() {
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("lazy.toml", LAZY, "");
    let hosts = ["--hosts", "n[0-1]"];
    let first = begin(&nodes, 0, &config, &hosts);
    agree(&nodes, &[0], LONG);
    let faults = nodes.out.join("faults");
    fs::write(&faults, "group protocol 9.9\n").unwrap();
    let script = "seq 100000 > of-n1; step end; cksum < of-n1";
    let variable = format!("FOREBAY_FAULTS={}", faults.display());
    let run = ["env", &variable, harness::FOREBAY, "run", "--config", &config, "--hosts", "n[0-1]"];
    let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }";
    let script = format!("{step}; {script}");
    let second = nodes[1].spawn(&[&run[..], &["--", "bash", "-c", &script]].concat());
    wait_for("that it is alone", LONG, || (group(&nodes[1])["state"] == "failed").then_some(()));
    let shown = nodes[1].status().text;
    let remedy = "install the same build of Forebay on all nodes of the group";
    let parts = ["NONE, the node is alone: host n0 has Forebay ", "with protocol 9.9: ", remedy];
    assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
    wait_for("that the first one names it", LONG, || {
        let found = notices(&nodes[0]);
        let is_it = |said: &String| {
            said.starts_with("host n1 has Forebay ")
                && said.contains(" with protocol 9.9, this one Forebay ")
                && said.ends_with(remedy)
        };
        found.iter().any(is_it).then_some(())
    });
    let shown = nodes[0].status().text;
    assert!(shown.contains("    WRONG    host n1 has Forebay "), "{shown}");
    agree(&nodes, &[0], LONG);
    end(&nodes, vec![(0, first), (1, second)]);
}

#[test]
fn what_is_shown_of_nodes_that_do_not_come_and_that_have_ended() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = nodes.configure("lazy.toml", LAZY, "");
    let hosts = ["--hosts", "n[0-2],nx"];
    let stays = begin(&nodes, 0, &config, &hosts);
    let ends = nodes[1].spawn_buffered(&config, &hosts, "step one");
    agree(&nodes, &[0, 1], LONG);
    let wanted = "host nx of the list has no address here (";
    wait_for("the unknown name", LONG, || {
        notices(&nodes[0]).iter().any(|said| said.contains(wanted)).then_some(())
    });
    let shown = nodes[0].status().text;
    for wanted in [
        "n2: never heard: no run there has begun, or it sees another folder\n",
        "nx: never heard: no run there has begun, or it sees another folder\n",
        "    WRONG    host nx of the list has no address here (",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    nodes[1].past("one");
    ends.end().expect(0);
    wait_for("the end of a node", LONG, || {
        (group(&nodes[0])["nodes"][1]["standing"] == "left").then_some(())
    });
    let shown = nodes[0].status().text;
    assert!(shown.contains("n1, life 1: left: its manager has ended"), "{shown}");
    let wanted = nodes[0].run("seq 100000 | cksum").expect(0).stdout;
    nodes[0].past("end");
    let ran = stays.end().expect(0);
    assert_eq!(ran.stdout, wanted);
    let name = "forebay: group: host nx of the list has no address here (";
    assert_eq!(ran.stderr.matches(name).count(), 1, "{ran:?}");
}

/// Ports that other programs have on one node, of a group that goes by them.
#[test]
fn a_node_whose_ports_are_in_use_takes_the_next_ones() {
    let Some(python) = harness::python_with("socket") else { return };
    let Some(nodes) = Nodes::new(2) else { return };
    let config = nodes.configure("lazy.toml", LAZY, "");
    let hosts = ["--hosts", "n[0-1]"];
    let port = |node: &Node| -> u16 {
        let seen = group(node);
        seen["address"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()
    };
    let first = begin(&nodes, 0, &config, &hosts);
    agree(&nodes, &[0], LONG);
    let at = port(&nodes[0]);
    let script = format!(
        "import os, socket, time\n\
         udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('', {at}))\n\
         tcp = socket.socket(); tcp.bind(('', {})); tcp.listen()\n\
         open(os.environ['OUT'] + '/at-bound', 'w')\n\
         while not os.path.exists(os.environ['OUT'] + '/past-end'): time.sleep(0.05)\n",
        at + 1
    );
    let foreign = nodes[1].spawn(&[&python, "-c", &script]);
    nodes[1].at("bound");
    let second = begin(&nodes, 1, &config, &hosts);
    linked(&nodes, &agree(&nodes, &[0, 1], LONG));
    assert_eq!(port(&nodes[1]), at + 2);
    end(&nodes, vec![(0, first), (1, second)]);
    foreign.end().expect(0);
}

#[test]
fn what_keeps_a_group_from_forming_is_said_and_the_job_runs_on() {
    let Some(nodes) = Nodes::new(3) else { return };
    let config = nodes.configure("group.toml", LAZY, "");
    let folder = nodes.root().join("group");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}[group]\nfolder = \"group\"\n")).unwrap();
    let none = |node: &Node, why: &[&str]| {
        let said = wait_for("a refusal", LONG, || {
            let seen = group(node);
            (seen["state"] == "failed").then(|| seen["error"].as_str().unwrap().to_owned())
        });
        assert!(why.iter().all(|part| said.contains(part)), "{node}: {said}");
        let shown = node.status().text;
        assert!(shown.contains(": NONE, the node is alone: "), "{shown}");
    };

    // A folder of another user's.
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        let run = begin(&nodes, 0, &config, &["--hosts", "n[0-2]"]);
        none(&nodes[0], &["group: belongs to user 65534"]);
        end(&nodes, vec![(0, run)]);
        fs::remove_file(nodes.out.join("past-end")).unwrap();
        wait_for("its manager's end", LONG, || nodes[0].processes().is_empty().then_some(()));
        fs::remove_dir(&folder).unwrap();
    }

    // Two lists, in which two hosts are the first: the later one is refused.
    let first = begin(&nodes, 0, &config, &["--hosts", "n[0-1]"]);
    agree(&nodes, &[0], LONG);
    let other = begin(&nodes, 1, &config, &["--hosts", "n[1-2]"]);
    none(&nodes[1], &["host n0 runs as node 0, which n1 is to be", "the same list of hosts"]);
    nodes[1].past("end");
    let ran = other.end().expect(0);
    assert_eq!(ran.stderr.matches("no group: ").count(), 1, "{ran:?}");
    first.end().expect(0);
    fs::remove_file(nodes.out.join("past-end")).unwrap();
    for node in nodes.iter() {
        wait_for("the managers' end", LONG, || node.processes().is_empty().then_some(()));
    }

    // Another secret, which one of two nodes finds in the folder's place: neither believes the
    // other, and both say why.
    let hosts = ["--hosts", "n[0-1]"];
    let right = begin(&nodes, 0, &config, &hosts);
    let alone = agree(&nodes, &[0], LONG);
    let secret = "head -c 32 /dev/urandom > $OUT/secret && chmod 600 $OUT/secret && \
         mount --bind $OUT/secret \"$1\"";
    let place = folder.join("secret");
    nodes[1].spawn(&["bash", "-c", secret, "bash", place.to_str().unwrap()]).end().expect(0);
    let wrong = begin(&nodes, 1, &config, &hosts);
    for node in [&nodes[0], &nodes[1]] {
        wait_for("packets that are refused", LONG, || {
            (group(node)["packets"]["group"].as_u64()? > 0).then_some(())
        });
        let shown = node.status().text;
        assert!(shown.contains(" of another group, or with another secret"), "{shown}");
    }
    assert_eq!(view(&group(&nodes[1])), None, "one without the secret was taken in");
    let seen = group(&nodes[0]);
    assert_eq!(view(&seen), Some(alone));
    let mut links = seen["links"].as_array().into_iter().flatten();
    assert!(links.all(|link| link["state"] != "up"), "{seen}");
    assert!(nodes[1].processes().iter().all(|&pid| is_alive(pid)));
    end(&nodes, vec![(0, right), (1, wrong)]);
}
