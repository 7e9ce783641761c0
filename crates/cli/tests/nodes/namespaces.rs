//! Nodes as namespaces: each has a network, mounts with a /dev/shm of its own, processes and a host
//! name, and all have the same folders of the machine beside that.
//!
//! Links are pairs of virtual interfaces on a bridge, which lies in a namespace of the test's own:
//! no address or name is seen from outside, and none can collide. All of it lives as long as one
//! process of each namespace, which ends with the test, however that ends.

use crate::harness::{self, LONG, Ran, Running, Status, descendants, have, is_alive, is_report};
use crate::harness::{kill, wait_for, works};
use rustix::process::Signal;
use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// What nodes are made with.
const PROGRAMS: &[&str] = &["unshare", "nsenter", "mount", "hostname", "ip", "bash"];
/// Most nodes: the last byte of an address.
const NODES_MAX: usize = 200;
/// Where the bridge is, which all nodes reach.
pub const SWITCH: &str = "10.0.0.254";

/// The process that holds namespaces. They, and all processes in a PID namespace of them, end with
/// it; it ends with the test, which holds the other end of its input.
struct Holder {
    child: Child,
    /// The number of the process in the namespaces.
    inside: u32,
}

impl Holder {
    /// Starts `before` and then a shell that runs `script` and waits.
    fn start(before: &[&str], script: &str, words: &[&str]) -> Holder {
        let mut command = Command::new(before[0]);
        command
            .args(&before[1..])
            .args([
                "bash",
                "-c",
                &format!("set -e\n{script}\necho ready\nread -r _ || :"),
                "holder",
            ])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let with_test = || {
            // SAFETY: a system call. The input's end is what counts where the thread goes first.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(())
        };
        // SAFETY: only a system call between fork and exec.
        unsafe { command.pre_exec(with_test) };
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        if said != "ready\n" {
            let _ = child.kill();
            panic!("{before:?}: {said:?}, {:?}", child.wait_with_output());
        }
        let inside = *descendants(child.id()).last().unwrap();
        Holder { child, inside }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // With `unshare --kill-child` the process inside follows, and all that it is the first of.
        kill(self.inside, Signal::KILL);
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Some nodes, the network between them, and the folders that they share.
pub struct Nodes {
    nodes: Vec<Node>,
    switch: Holder,
    is_root: bool,
    root: TempDir,
    /// The backing directory, the same on all nodes.
    pub store: PathBuf,
    /// For what programs leave outside of it, the same on all nodes.
    pub out: PathBuf,
}

/// One of them. Its `Display` is its host name.
pub struct Node {
    number: usize,
    holder: Holder,
    is_root: bool,
    /// The folder of all nodes.
    root: PathBuf,
    serial: Cell<u32>,
}

impl std::ops::Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, number: usize) -> &Node {
        &self.nodes[number]
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{}", self.number)
    }
}

impl Nodes {
    /// `count` nodes n0, n1, ... with 10.0.0.1, 10.0.0.2, ...; `None`, and loud, where this process
    /// may make no namespaces.
    pub fn new(count: usize) -> Option<Nodes> {
        assert!(count <= NODES_MAX);
        if !have(PROGRAMS) {
            return None;
        }
        let mount = "mount -t tmpfs tmpfs /dev/shm && ip link add sw type bridge";
        let can = |user: &[&str]| {
            let spaces = ["-m", "-n", "-u", "-p", "--fork", "--mount-proc", "sh", "-c", mount];
            works(&[&["unshare"], user, &spaces[..]].concat())
        };
        let is_root = can(&[]);
        if !is_root && !can(&["-U", "-r"]) {
            harness::skip("neither root nor a user namespace may make networks and mounts here");
            return None;
        }
        let root = tempfile::Builder::new().prefix("fb-nodes-").tempdir().unwrap();
        let folder = root.path().canonicalize().unwrap();
        let folder = |name: &str| {
            let path = folder.join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (store, out) = (folder("store"), folder("out"));
        folder("node");
        let hosts: String = (0..count).map(|n| format!("{} n{n}\n", address(n))).collect();
        fs::write(root.path().join("hosts"), format!("127.0.0.1 localhost\n{hosts}")).unwrap();
        for number in 0..count {
            let node = folder(&format!("n{number}"));
            fs::create_dir(node.join("nvme")).unwrap();
            fs::create_dir(node.join("run")).unwrap();
            fs::set_permissions(node.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let user: &[&str] = if is_root { &[] } else { &["-U", "-r"] };
        let switch = format!(
            "ip link set lo up; ip link add sw type bridge; ip link set sw up; \
             ip addr add {SWITCH}/24 dev sw"
        );
        let switch = Holder::start(&[&["unshare"], user, &["-n", "-m"]].concat(), &switch, &[]);
        let mut nodes = Nodes { nodes: Vec::new(), switch, is_root, root, store, out };
        for number in 0..count {
            let node = nodes.start(number);
            nodes.nodes.push(node);
        }
        Some(nodes)
    }

    /// The namespaces of a node, and its link.
    fn start(&self, number: usize) -> Node {
        let root = self.root.path().canonicalize().unwrap();
        let script = "\
            mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm\n\
            mount --bind \"$1/n$2\" \"$1/node\"\n\
            mount --bind \"$1/hosts\" /etc/hosts\n\
            hostname \"n$2\"\n\
            ip link set lo up";
        let target = format!("--target={}", self.switch.inside);
        let spaces = ["unshare", "-m", "-n", "-u", "-p", "--fork", "--kill-child", "--mount-proc"];
        let user = ["nsenter", &target, "-U", "--preserve-credentials"];
        // In the user namespace of the switch, if there is one: it moves links to all nodes.
        let before = [if self.is_root { &[][..] } else { &user[..] }, &spaces[..]].concat();
        let words = [root.to_str().unwrap(), &number.to_string()];
        let holder = Holder::start(&before, script, &words);
        let node = Node { number, holder, is_root: self.is_root, root, serial: Cell::new(0) };
        let inside = node.holder.inside;
        self.on_switch(&format!(
            "ip link add to{number} type veth peer name eth0 netns {inside} && \
             ip link set to{number} master sw up"
        ));
        let address = address(number);
        node.run(&format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up")).expect(0);
        node
    }

    /// Runs a script where the bridge is.
    fn on_switch(&self, script: &str) {
        let mut command = enter(&self.switch, self.is_root, &["-m", "-n"]);
        let ran = command.args(["bash", "-c", script]).output().unwrap();
        assert!(ran.status.success(), "{script}: {ran:?}");
    }

    /// A command that starts others on the nodes, at [`SWITCH`]. `launcher` is a program that does
    /// what `ssh HOST COMMAND...` does.
    pub fn starter(&self, at: &Path, words: &[&str]) -> Command {
        let mut command = enter(&self.switch, self.is_root, &["-m", "-n"]);
        command.args(["env", "-C"]).arg(at).args(words);
        surround(&mut command, self.root());
        command
    }

    /// Writes what [`Nodes::starter`]'s commands start others by.
    pub fn launcher(&self) -> PathBuf {
        let inside = self.nodes.iter().map(|node| format!("[{node}]={} ", node.holder.inside));
        let script = format!(
            "#!/bin/bash\n\
             declare -A inside=({})\n\
             [ \"$1\" != -x ] || shift\n\
             host=$1; shift\n\
             exec nsenter --target=${{inside[$host]}} -m -n -u -p env -C \"$PWD\" bash -c \"$*\"\n",
            inside.collect::<String>()
        );
        let path = self.root().join("launcher");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Node> {
        self.nodes.iter()
    }

    /// The folder that all nodes have, and in it `node`, which each has of its own.
    pub fn root(&self) -> &Path {
        &self.nodes[0].root
    }

    /// Writes a configuration with a RAM tier of 32 MiB, and one in a folder of each node's own.
    /// `flush` is the section's content, `backing` more keys of the store.
    pub fn configure(&self, name: &str, flush: &str, backing: &str) -> String {
        let path = self.root().join(name);
        let text = format!(
            "[flush]\n{flush}\n[[backing]]\npath = \"store\"\n{backing}\n\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"32MiB\"\n\
             [[tier]]\nname = \"nvme\"\nkind = \"file\"\npath = \"node/nvme\"\ncapacity = \"32MiB\"\n"
        );
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Takes a node's link away, or gives it back.
    pub fn set_link(&self, number: usize, up: bool) {
        let way = if up { "up" } else { "down" };
        self.on_switch(&format!("ip link set to{number} {way}"));
    }

    /// What should not be there any more when all runs have ended.
    fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for node in &self.nodes {
            let processes = node.processes().into_iter().map(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                format!("process {pid}: {}", String::from_utf8_lossy(&line).replace('\0', " "))
            });
            left.extend(processes.map(|line| format!("{node}: {line}")));
            let own = self.root().join(format!("n{}", node.number));
            let files = |folder: PathBuf| {
                let entries = fs::read_dir(folder).into_iter().flatten().flatten();
                entries.map(|entry| entry.path()).collect::<Vec<_>>()
            };
            let mut runtime = files(own.join("run"));
            // A manager that has ended leaves its log.
            let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "log");
            runtime.retain(|path| !is_log(path) && !is_report(path));
            let paths = [files(node.shm()), files(own.join("nvme")), runtime].concat();
            left.extend(paths.iter().map(|path| format!("{node}: {}", path.display())));
        }
        left
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let logs = || self.nodes.iter().map(|node| format!("{node}: {}", node.log())).collect();
        harness::expect_tidy(|| self.leftovers(), logs);
    }
}

fn address(number: usize) -> String {
    format!("10.0.0.{}", number + 1)
}

/// A script of [`Node::spawn_buffered`], as it is given to a shell.
pub fn with_steps(script: &str) -> String {
    let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }\n";
    format!("{step}{script}")
}

/// The beginning of a command in these namespaces of a holder.
fn enter(holder: &Holder, is_root: bool, spaces: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", holder.inside));
    if !is_root {
        command.args(["-U", "--preserve-credentials"]);
    }
    command.args(spaces);
    command
}

/// Gives a command what programs of the nodes find in their environment.
fn surround(command: &mut Command, root: &Path) {
    command
        .env_remove("LD_PRELOAD")
        .env("LC_ALL", "C")
        .env("FOREBAY", harness::FOREBAY)
        .env("FOREBAY_RUNTIME_DIR", root.join("node/run"))
        .env("NVME", root.join("node/nvme"))
        .env("OUT", root.join("out"));
    // The nodes of a job that the tests themselves run in are none of theirs.
    for variable in [
        "SLURM_JOB_ID",
        "PBS_NODEFILE",
        "LSB_MCPU_HOSTS",
        "LSB_HOSTS",
        "PMI_SIZE",
        "OMPI_COMM_WORLD_SIZE",
    ] {
        command.env_remove(variable);
    }
}

impl Node {
    /// A command on this node, in folder `at`, that finds the command under test and the folders in
    /// its environment.
    pub fn command(&self, at: &Path, words: &[&str]) -> Command {
        let mut command = enter(&self.holder, self.is_root, &["-m", "-n", "-u", "-p"]);
        command
            // The mounts have a root of their own.
            .args(["env", "-C"])
            .arg(at)
            // `nsenter` stops with its child, which therefore is none of those that are signalled.
            .args(["bash", "-c", "\"$@\"; exit", "entrance"])
            .args(words);
        surround(&mut command, &self.root);
        command
    }

    /// Starts a command in the store's directory.
    pub fn spawn(&self, words: &[&str]) -> Running {
        self.spawn_command(self.command(&self.root.join("store"), words))
    }

    /// Starts one of [`Node::command`].
    pub fn spawn_command(&self, command: Command) -> Running {
        let number = self.serial.replace(self.serial.get() + 1);
        let folder = self.root.join(format!("n{}", self.number));
        Running::start(command, Stdio::null(), &folder, number)
    }

    /// Starts a shell script in the store's directory under `forebay run`. It may say `step NAME`
    /// to wait until the test has called [`Node::past`].
    pub fn spawn_buffered(&self, config: &str, options: &[&str], script: &str) -> Running {
        let script = with_steps(script);
        let run = [harness::FOREBAY, "run", "--config", config];
        self.spawn(&[&run[..], options, &["--", "bash", "-c", &script]].concat())
    }

    /// Runs a shell script in the store's directory, without Forebay.
    pub fn run(&self, script: &str) -> Ran {
        self.spawn(&["bash", "-c", script]).end()
    }

    /// The same under `forebay run`; gives the status as it was when the script had ended.
    pub fn run_buffered(&self, config: &str, script: &str) -> (Ran, Status) {
        let around = format!("{script}\ncode=$?; $FOREBAY status > $OUT/status-{self}; exit $code");
        let ran = self.spawn_buffered(config, &[], &around).end();
        let shown = self.root.join(format!("out/status-{self}"));
        let text = fs::read_to_string(&shown).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        (ran, Status::parse(text))
    }

    /// What `forebay status` says here.
    pub fn status(&self) -> Status {
        Status::parse(self.spawn(&[harness::FOREBAY, "status"]).end().expect(0).stdout)
    }

    /// Waits until a script of this test says `step NAME`.
    pub fn at(&self, step: &str) {
        let mark = self.root.join(format!("out/at-{step}"));
        wait_for(&format!("step {step} on {self}"), LONG, || mark.exists().then_some(()));
    }

    /// Lets it go on.
    pub fn past(&self, step: &str) {
        fs::write(self.root.join(format!("out/past-{step}")), "").unwrap();
    }

    /// All processes of the node but those that hold its namespaces, or wait in them for a command,
    /// by their numbers outside.
    pub fn processes(&self) -> Vec<u32> {
        let space = |pid| fs::metadata(format!("/proc/{pid}/ns/pid")).map(|found| found.ino()).ok();
        let own = space(self.holder.inside);
        let is_inside = |pid| own.is_some() && space(pid) == own;
        let parent = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat[stat.rfind(')')?..].split(' ').nth(2)?.parse::<u32>().ok()
        };
        let all = fs::read_dir("/proc").unwrap();
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|&pid| pid != self.holder.inside && is_inside(pid) && is_alive(pid))
            .filter(|&pid| parent(pid).is_some_and(is_inside))
            .collect()
    }

    /// Kills all processes of the node at one moment. What is in its /dev/shm stays.
    pub fn kill_all(&self) {
        let mut command = enter(&self.holder, self.is_root, &["-m", "-p"]);
        let ran = command.args(["bash", "-c", "kill -9 -1"]).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        wait_for("the end of killed processes", LONG, || self.processes().is_empty().then_some(()));
    }

    /// Sends all processes of the node a signal, STOP or CONT for instance.
    pub fn signal(&self, signal: Signal) {
        self.processes().into_iter().for_each(|pid| kill(pid, signal));
    }

    /// Has this share of the packets that come or go be lost, in percent, from now on.
    ///
    /// False, and loud, where that is not to be had.
    pub fn lose(&self, percent: u32) -> bool {
        if !have(&["nft"]) {
            return false;
        }
        let lost = match percent {
            100 => "drop".to_owned(),
            _ => format!("numgen random mod 100 < {percent} drop"),
        };
        let rule = |hook: &str, way: &str| {
            format!(
                "nft 'add chain inet loss {hook} {{ type filter hook {hook} priority 0; }}' && \
                 nft 'add rule inet loss {hook} {way} != lo {lost}'"
            )
        };
        let script = format!(
            "nft delete table inet loss 2> /dev/null; nft add table inet loss && {} && {}",
            rule("input", "iifname"),
            rule("output", "oifname")
        );
        let ran = self.run(&script);
        if ran.code != 0 {
            harness::skip(&format!("packets cannot be dropped here: {}", ran.stderr));
        }
        ran.code == 0
    }

    /// Where this process sees the node's /dev/shm.
    pub fn shm(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/dev/shm", self.holder.inside))
    }

    /// What its node managers said.
    pub fn log(&self) -> String {
        harness::logs_of(&self.root.join(format!("n{}/run", self.number)))
    }
}

/// Whether a node reaches another one: its port answers, by refusing, within a second.
fn reaches(from: &Node, to: &Node) -> bool {
    let script = format!(
        "timeout 1 bash -c ': > /dev/tcp/{to}/9' 2> $OUT/tried; grep -q refused $OUT/tried"
    );
    from.run(&script).code == 0
}

fn reaches_in_time(from: &Node, to: &Node) {
    wait_for(&format!("{to}, from {from}"), LONG, || reaches(from, to).then_some(()));
}

/// How many mounts of this process name a folder.
fn mounts_with(root: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.matches(root.to_str().unwrap()).count()
}

#[test]
fn nodes_have_what_nodes_have_and_leave_nothing() {
    let Some(nodes) = Nodes::new(3) else { return };
    let outside = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for node in nodes.iter() {
        let script = "hostname; echo own > /dev/shm/own; ls /dev/shm; cat $NVME/../mark; \
             ls /proc | grep -c '^[0-9]'";
        let mark = nodes.root().join(format!("{node}/mark"));
        fs::write(&mark, format!("{node}'s own\n")).unwrap();
        let ran = node.run(script).expect(0);
        let lines: Vec<_> = ran.stdout.lines().collect();
        assert_eq!(lines[..3], [&*node.to_string(), "own", &format!("{node}'s own")]);
        let processes: usize = lines[3].parse().unwrap();
        assert!(processes < 10, "{node} sees processes of others: {ran:?}");
        fs::remove_file(node.shm().join("own")).unwrap();
    }
    assert!(!Path::new("/dev/shm/own").exists());
    assert_eq!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), outside);
    assert_eq!(mounts_with(nodes.root()), 0, "mounts of a node are seen outside");

    // The network: names, a link that is cut, packets that are lost.
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        reaches_in_time(&nodes[from], &nodes[to]);
    }
    nodes.set_link(1, false);
    assert!(!reaches(&nodes[0], &nodes[1]) && !reaches(&nodes[1], &nodes[0]));
    assert!(reaches(&nodes[0], &nodes[2]));
    nodes.set_link(1, true);
    reaches_in_time(&nodes[0], &nodes[1]);
    if nodes[2].lose(100) {
        assert!(!reaches(&nodes[0], &nodes[2]) && !reaches(&nodes[2], &nodes[0]));
        nodes[2].lose(0);
        reaches_in_time(&nodes[0], &nodes[2]);
    }

    // Signals, and the end of all processes of one node.
    let mut here = nodes[0].spawn(&["sleep", "1000"]);
    let there = nodes[1].spawn(&["sleep", "1000"]);
    wait_for("the programs", LONG, || {
        (nodes[0].processes().len() == 1 && nodes[1].processes().len() == 1).then_some(())
    });
    let sleeper = nodes[0].processes()[0];
    let state = || fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
    nodes[0].signal(Signal::STOP);
    wait_for("the stop", LONG, || state().contains(") T ").then_some(()));
    nodes[0].signal(Signal::CONT);
    wait_for("the end of the stop", LONG, || state().contains(") S ").then_some(()));
    nodes[1].kill_all();
    assert_eq!(there.end().code, 128 + 9);
    assert!(here.is_running());

    let holders: Vec<u32> = nodes.iter().map(|node| node.holder.inside).collect();
    let root = nodes.root().to_owned();
    nodes[0].kill_all();
    here.end();
    drop(nodes);
    wait_for("the end of all", LONG, || {
        (!root.exists() && !holders.iter().any(|&pid| is_alive(pid))).then_some(())
    });
}

/// However the test ends, its nodes end with it.
#[test]
fn nodes_end_with_the_process_that_made_them() {
    const CHILD: &str = "FOREBAY_TEST_NODES_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let Some(nodes) = Nodes::new(1) else { return };
        let _sleeper = nodes[0].spawn(&["sleep", "1000"]);
        wait_for("the program", LONG, || (nodes[0].processes().len() == 1).then_some(()));
        let pids = [nodes[0].processes(), vec![nodes[0].holder.inside, nodes.switch.inside]];
        let line: Vec<_> = pids.concat().iter().map(u32::to_string).collect();
        fs::write(std::env::var_os(CHILD).unwrap(), line.join(" ") + "\n").unwrap();
        // Nothing of this is dropped.
        std::thread::sleep(Duration::from_secs(600));
    }
    if Nodes::new(1).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("pids");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "namespaces::nodes_end_with_the_process_that_made_them"])
        .env(CHILD, &told)
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pids = wait_for("the nodes of the other process", LONG, || {
        let line = fs::read_to_string(&told).ok()?;
        let line = line.strip_suffix('\n')?.to_owned();
        Some(line.split(' ').map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
    });
    assert!(pids.len() == 3 && pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of its nodes", LONG, || {
        (!pids.iter().any(|&pid| is_alive(pid))).then_some(())
    });
}
