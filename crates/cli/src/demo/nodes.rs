//! `forebay demo --nodes N`: several nodes on one machine over one emulated store. They form a
//! group, one reads what another one has just written, and one dies.
//!
//! A node is a set of namespaces: a network with a link to the others, a /dev/shm of its own,
//! processes and a host name. All of it ends with the first process of each, which is a child of
//! this one.

use super::run::seconds;
use super::scene::now_us;
use super::site::{STORE, Site, failed};
use super::{Options, verdict};
use crate::timeline::{self, Activity, Panel, Row, Span};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What the file has that one node writes and another one reads.
const BYTES: u64 = 16 << 20;
/// How long the group may take to form, and to notice a death.
const PATIENCE: Duration = Duration::from_secs(20);
/// From one look at the group to the next.
const LOOK: Duration = Duration::from_millis(200);
/// What namespaces are made with, and the packages of it.
const PROGRAMS: [(&str, &str); 6] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("hostname", "hostname"),
    ("ip", "iproute2"),
    ("bash", "bash"),
];

/// Shows several nodes; succeeds only if what one node wrote was what the other one read, and what
/// the store has.
///
/// # Errors
/// A message: what is missing to make nodes here and how to get it, or what went wrong.
pub fn demo_nodes(options: &Options, count: usize) -> Result<ExitCode, String> {
    let output = &options.output;
    fs::create_dir_all(output).map_err(|e| failed(output, &e))?;
    let user = user_namespace()?;
    let site = Site::make()?;
    let played = Stage::build(options, &site, count, user).and_then(Stage::play);
    verdict(site, played)
}

/// Whether this user needs a user namespace to make networks and mounts.
///
/// # Errors
/// What is missing to make nodes here, and how to get it.
pub fn user_namespace() -> Result<bool, String> {
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    if let Some((program, package)) = PROGRAMS.iter().find(|(program, _)| !found(program)) {
        return Err(format!("nodes need the program `{program}`; install the package {package}"));
    }
    let works = |user: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(user).args(["-m", "-n", "-u", "-p", "--fork", "--mount-proc", "sh", "-c"]);
        command.arg("mount -t tmpfs tmpfs /dev/shm && ip link add sw type bridge");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    match (works(&[]), works(&["-U", "-r"])) {
        (true, _) => Ok(false),
        (false, true) => Ok(true),
        (false, false) => Err("this user may make neither networks nor mounts here; run it as \
             root, outside of a container, or allow user namespaces: as root, `sysctl -w \
             kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000` (on Ubuntu also \
             kernel.apparmor_restrict_unprivileged_userns=0)"
            .to_owned()),
    }
}

/// A shell that is told what to do; it ends with its input.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(command: &mut Command) -> Result<Shell, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| format!("cannot run {program}: {e}"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Shell { child, input, output: BufReader::new(output) })
            }
            _ => Err("a shell without input and output".to_owned()),
        }
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.input, "{line}").map_err(|e| format!("a node does not listen: {e}"))
    }

    /// What the command says; an error if it fails.
    fn ask(&mut self, command: &str) -> Result<String, String> {
        const MARK: &str = "forebay-demo-code ";
        self.tell(&format!("{{ {command}; }} < /dev/null; echo \"{MARK}$?\""))?;
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let got = self.output.read_line(&mut line);
            if got.map_err(|e| format!("`{command}`: {e}"))? == 0 {
                return Err(format!("`{command}`: the node has ended"));
            }
            match line.strip_prefix(MARK) {
                Some("0\n") => return Ok(said),
                Some(code) => return Err(format!("`{command}` ended with {}", code.trim_end())),
                None => said += &line,
            }
        }
    }

    /// The process in the namespaces.
    fn inside(&self) -> u32 {
        let mut pid = self.child.id();
        let child = |pid| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        while let Some(below) = child(pid).ok().and_then(|all| all.split(' ').next()?.parse().ok())
        {
            pid = below;
        }
        pid
    }

    /// Ends it, and all processes of its namespaces, at once.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends its input and waits until it has ended.
    fn end(self) -> Result<bool, String> {
        let Shell { mut child, input, output } = self;
        drop((input, output));
        child.wait().map(|status| status.success()).map_err(|e| e.to_string())
    }
}

/// The nodes in their place.
struct Stage<'a> {
    options: &'a Options,
    site: &'a Site,
    nodes: Vec<Shell>,
    /// Where their links meet. After the nodes, so that it ends last.
    switch: Shell,
    sum: String,
    began_us: u64,
}

/// What a node did, for the picture.
type Deeds = Vec<(Activity, Span)>;

impl<'a> Stage<'a> {
    fn build(
        options: &'a Options,
        site: &'a Site,
        count: usize,
        user: bool,
    ) -> Result<Self, String> {
        println!(
            "Forebay demo: {count} nodes on this machine over one emulated store of 23 MB/s;\n\
             each has RAM 64 MiB\n"
        );
        let began_us = now_us();
        for folder in ["store", "node"] {
            site.folder(folder)?;
        }
        site.write(
            "nodes.toml",
            &format!(
                "[flush]\ntrigger = \"on-exit\"\n[[backing]]\npath = \"store\"\n{}\n\
                 [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"64MiB\"\n\
                 [group]\nhosts = \"n[0-{}]\"\nfolder = \"group\"\n",
                STORE.replace("\"4160us\"", "\"4160us\", shared = \"device\""),
                count - 1
            ),
        )?;
        let hosts = (0..count).map(|n| format!("10.0.0.{} n{n}\n", n + 1)).collect::<String>();
        site.write("hosts", &format!("127.0.0.1 localhost\n{hosts}"))?;
        let sum = content(site)?;

        let mut command = Command::new("unshare");
        command.args(user.then_some("-U").into_iter().chain(user.then_some("-r")));
        let mut switch = Shell::start(command.args(["-n", "-m", "bash", "-s"]))?;
        switch.ask("ip link set lo up; ip link add sw type bridge && ip link set sw up")?;
        let mut stage = Stage { options, site, nodes: Vec::new(), switch, sum, began_us };
        for number in 0..count {
            stage.start(number, user)?;
        }
        Ok(stage)
    }

    /// Makes a node, and starts a shell on it under `forebay run`.
    fn start(&mut self, number: usize, user: bool) -> Result<(), String> {
        self.site.folder(&format!("n{number}"))?;
        self.site.folder(&format!("n{number}/run"))?;
        let script = "set -e\n\
             mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm\n\
             mount --bind \"n$1\" node\n\
             mount --bind hosts /etc/hosts\n\
             hostname \"n$1\"\n\
             ip link set lo up\n\
             echo ready\n\
             read -r _\n\
             ip addr add \"10.0.0.$(($1 + 1))/24\" dev eth0\n\
             ip link set eth0 up\n\
             \"$FOREBAY\" run --config nodes.toml --trace \"trace-$1.csv\" -- bash -s";
        let mut command = Command::new(if user { "nsenter" } else { "unshare" });
        if user {
            let target = format!("--target={}", self.switch.inside());
            command.args([&target, "-U", "--preserve-credentials", "unshare"]);
        }
        command
            .args(["-m", "-n", "-u", "-p", "--fork", "--kill-child", "--mount-proc"])
            .args(["bash", "-c", script, "node", &number.to_string()])
            .current_dir(self.site.path(""))
            .env("FOREBAY", &self.options.forebay)
            .env("FOREBAY_RUNTIME_DIR", self.site.path("node/run"));
        let mut shell = Shell::start(&mut command)?;
        let mut said = String::new();
        let _ = shell.output.read_line(&mut said);
        if said != "ready\n" {
            return Err(format!("node n{number} cannot be made; what it said stands above"));
        }
        self.switch.ask(&format!(
            "ip link add to{number} type veth peer name eth0 netns {} && \
             ip link set to{number} master sw up",
            shell.inside()
        ))?;
        shell.tell("go")?;
        shell.ask("cd store")?;
        self.nodes.push(shell);
        Ok(())
    }

    /// What the first node's manager says of its group.
    fn group(&mut self) -> Result<Value, String> {
        let said = self.nodes[0].ask("\"$FOREBAY\" status --json")?;
        let all: Value = serde_json::from_str(&said).map_err(|e| format!("status: {e}"))?;
        Ok(all[0]["group"].clone())
    }

    /// Looks until the group is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<(), String> {
        let since = Instant::now();
        while !is_so(&self.group()?) {
            if since.elapsed() > PATIENCE {
                return Err(format!("waited {} s in vain for {what}", PATIENCE.as_secs()));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Shows the group's part of `forebay status` on the first node.
    fn show_group(&mut self) -> Result<(), String> {
        let said = self.nodes[0].ask("\"$FOREBAY\" status")?;
        let lines = said.lines().skip_while(|line| !line.trim_start().starts_with("group "));
        for line in lines.take_while(|line| !line.trim_start().starts_with("tier ")) {
            println!("   {line}");
        }
        Ok(())
    }

    fn play(mut self) -> Result<bool, String> {
        let last = self.nodes.len() - 1;
        let mut marks = Vec::new();
        let mut deeds: Vec<Deeds> = self.nodes.iter().map(|_| Vec::new()).collect();

        println!("1  The node managers form a group\n");
        self.until("a group of all nodes", |group| {
            let nodes = group["nodes"].as_array().map_or(&[][..], Vec::as_slice);
            nodes.len() == last + 1 && nodes.iter().all(|node| !node["seat"].is_null())
        })?;
        let formed_us = now_us();
        marks.push((formed_us, format!("a group of {}", last + 1)));
        println!("   after {}:\n", seconds(formed_us - self.began_us));
        self.show_group()?;

        println!("\n2  n0 writes {} MiB, n1 reads them\n", BYTES >> 20);
        let opened = self.timed(0, "echo > file")?.1;
        println!(
            "   n0 made the file in {}, as its first write asks the group",
            seconds(opened.length_us())
        );
        let span = self.timed(0, "dd if=../content of=file bs=1M conv=notrunc status=none")?.1;
        deeds[0].push((Activity::Write, span));
        let stored = fs::metadata(self.site.path("store/file")).map_or(0, |found| found.len());
        println!(
            "   n0 wrote in {}; on the store are {} MiB of it yet",
            seconds(span.length_us()),
            stored >> 20
        );
        let (said, span) = self.timed(1, "sha256sum < file")?;
        deeds[1].push((Activity::Read, span));
        let is_read = said.split(' ').next() == Some(&*self.sum);
        let verdict = if is_read { "the same bytes" } else { "FAILED: other bytes" };
        println!(
            "   n1 read in {}: {verdict}, SHA-256 {}...",
            seconds(span.length_us()),
            &self.sum[..16]
        );

        println!("\n3  n{last} is killed with all that is in its memory\n");
        self.nodes[last].kill();
        let killed_us = now_us();
        self.until("the others to notice", |group| group["nodes"][last]["standing"] != "up")?;
        let noticed_us = now_us();
        marks.push((
            noticed_us,
            format!("n{last} was killed {} before", seconds(noticed_us - killed_us)),
        ));
        println!("   n0 has noticed after {}:\n", seconds(noticed_us - killed_us));
        self.show_group()?;

        println!("\n4  The others drain and end\n");
        let Stage { options, site, mut nodes, switch, sum, began_us } = self;
        nodes.truncate(last);
        for (number, shell) in nodes.into_iter().enumerate() {
            if !shell.end()? {
                return Err(format!(
                    "`forebay run` on n{number} has failed; its words stand above"
                ));
            }
        }
        drop(switch);
        let is_stored = sum_of(site, "store/file")? == sum;
        let verdict = if is_stored { "all of the file" } else { "FAILED: other bytes" };
        println!("   the store has {verdict}");
        let picture = options.output.join("nodes.svg");
        let mut panels = Vec::new();
        for (number, deeds) in deeds.into_iter().enumerate() {
            panels.push(panel(site, number, began_us, deeds, marks.clone())?);
        }
        timeline::draw(&picture, "Several nodes over one store", &panels)?;
        println!("   timeline  {}", picture.display());
        Ok(is_read && is_stored)
    }

    /// Has a node do something with the file, and says when.
    fn timed(&mut self, number: usize, command: &str) -> Result<(String, Span), String> {
        let start_us = now_us();
        let said = self.nodes[number].ask(command)?;
        Ok((said, Span { start_us, end_us: now_us(), bytes: BYTES }))
    }
}

/// Writes what the file is to have; gives its checksum.
fn content(site: &Site) -> Result<String, String> {
    let path = site.path("content");
    let mut bytes = Vec::new();
    let random =
        File::open("/dev/urandom").and_then(|file| file.take(BYTES).read_to_end(&mut bytes));
    random.and_then(|_| fs::write(&path, bytes)).map_err(|e| failed(&path, &e))?;
    sum_of(site, "content")
}

fn sum_of(site: &Site, name: &str) -> Result<String, String> {
    let path = site.path(name);
    let bytes = fs::read(&path).map_err(|e| failed(&path, &e))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What a node did, and what its manager moved, if it has lived to tell.
fn panel(
    site: &Site,
    number: usize,
    origin_us: u64,
    deeds: Deeds,
    marks: Vec<(u64, String)>,
) -> Result<Panel, String> {
    let row = |(activity, span): (Activity, Span)| {
        let name = if activity == Activity::Write { "write" } else { "read" };
        Row::new(name, activity, vec![span])
    };
    let mut rows: Vec<_> = deeds.into_iter().map(row).collect();
    let trace = fs::read_to_string(site.path(&format!("trace-{number}.csv"))).unwrap_or_default();
    if !trace.is_empty() {
        // What a read brings into memory is in the row of the read.
        let lines = trace.lines().filter(|line| !line.contains(",stage,"));
        rows.extend(timeline::movements(&lines.collect::<Vec<_>>().join("\n"), &["ram"])?);
    }
    let marks = if number == 0 { marks } else { Vec::new() };
    Ok(Panel { title: format!("n{number}"), origin_us, rows, marks, levels: Vec::new() })
}
