//! Nodes as namespaces of this machine: each has a network, mounts with a /dev/shm of its own,
//! processes, and a host name. Links are pairs of virtual interfaces on a bridge in a network of
//! the benchmark's own, so that no address is seen from outside, and all of it ends with the
//! benchmark.

use crate::Options;
use crate::server::{Server, run};
use crate::site::{Site, failed};
use rustix::process::{getgid, getuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde_json::Value;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PROGRAM: (&str, &str) = ("on-node", include_str!("../../kernels/nodes.c"));
/// How long a group may take to be whole, or to notice a loss.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at a group, each of which starts a command.
const LOOK: Duration = Duration::from_millis(5);

/// Gives this process a network of its own, in which nodes can be made. It has to have one thread.
/// `is_user`: whether that takes a user namespace, in which it is root.
///
/// # Errors
/// What the kernel refuses.
pub fn enter(is_user: bool) -> Result<(), String> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let mut spaces = UnshareFlags::NEWNET;
    spaces.set(UnshareFlags::NEWUSER, is_user);
    // SAFETY: the table of descriptors stays shared.
    unsafe { unshare_unsafe(spaces) }.map_err(|e| format!("making a network: {e}"))?;
    if !is_user {
        return Ok(());
    }
    let (user, group) = (format!("0 {user} 1"), format!("0 {group} 1"));
    [("setgroups", "deny"), ("uid_map", &user), ("gid_map", &group)].iter().try_for_each(
        |(name, text)| {
            let path = Path::new("/proc/self").join(name);
            fs::write(&path, text).map_err(|e| failed(&path, &e))
        },
    )
}

/// The process that holds a node's namespaces: they, and all processes in them, end with its input,
/// and so with this process.
struct Holder {
    child: Child,
    /// The first process in the namespaces.
    inside: u32,
}

impl Holder {
    fn start(command: &mut Command) -> Result<Holder, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = Holder { child: child.map_err(|e| format!("a node: {e}"))?, inside: 0 };
        let mut said = String::new();
        if let Some(out) = holder.child.stdout.take() {
            BufReader::new(out).read_line(&mut said).map_err(|e| format!("a node: {e}"))?;
        }
        let id = holder.child.id();
        let path = PathBuf::from(format!("/proc/{id}/task/{id}/children"));
        let inside = fs::read_to_string(&path).map_err(|e| failed(&path, &e))?;
        match inside.trim().parse() {
            Ok(inside) if said == "ready\n" => holder.inside = inside,
            _ => return Err("a node's namespaces could not be made".to_owned()),
        }
        Ok(holder)
    }

    /// The number that this process knows a process of the node by.
    fn outside(&self, inside: u32) -> Option<u32> {
        let space = |id: u32| fs::read_link(format!("/proc/{id}/ns/pid")).ok();
        let own = space(self.inside)?;
        let is_it = |id: &u32| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let last = numbers.and_then(|numbers| numbers.split_whitespace().next_back());
            last == Some(&*inside.to_string()) && space(*id).as_ref() == Some(&own)
        };
        let all = fs::read_dir("/proc").ok()?;
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_it)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Some nodes, the network between them, and the folders that all of them have.
pub(super) struct Spaces {
    nodes: Vec<Holder>,
    /// Runs that keep node managers, which end with their nodes: dropped after those.
    runs: Vec<Server>,
    /// The network of this process, to which threads come back.
    own: File,
    folder: PathBuf,
    forebay: PathBuf,
    /// The program of [`Program`].
    program: PathBuf,
}

impl Spaces {
    /// So many nodes n0, n1, ..., with files in a new folder of the site. One set at a time.
    pub fn new(options: &Options, site: &Site, name: &str, count: usize) -> Result<Spaces, String> {
        let folder = site.folder(name)?;
        // As node managers call it.
        let folder = fs::canonicalize(&folder).map_err(|e| failed(&folder, &e))?;
        if folder.starts_with("/dev/shm") {
            return Err(
                "each node has a /dev/shm of its own: name another directory with --dir".to_owned()
            );
        }
        let program = site.path(PROGRAM.0);
        let program = if program.exists() { program } else { site.compile(PROGRAM.0, PROGRAM.1)? };
        let hosts: String = (0..count).map(|n| format!("{} n{n}\n", address(n))).collect();
        let file = folder.join("hosts");
        let text = format!("127.0.0.1 localhost\n{hosts}");
        fs::write(&file, text).map_err(|e| failed(&file, &e))?;
        let own = Path::new("/proc/thread-self/ns/net");
        let own = File::open(own).map_err(|e| failed(own, &e))?;
        shell(
            "ip link set lo up; ip link del sw 2> /dev/null; \
             ip link add sw type bridge && ip link set sw up",
        )?;
        let forebay = options.forebay.clone();
        let mut spaces =
            Spaces { nodes: Vec::new(), runs: Vec::new(), own, folder, forebay, program };
        for number in 0..count {
            spaces.add(number)?;
        }
        Ok(spaces)
    }

    fn add(&mut self, number: usize) -> Result<(), String> {
        let node = self.folder.join(format!("n{number}"));
        DirBuilder::new().mode(0o700).create(&node).map_err(|e| failed(&node, &e))?;
        let script = "set -e\n\
            mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm\n\
            mount --bind \"$1\" /etc/hosts\n\
            hostname \"n$2\"\n\
            ip link set lo up\n\
            echo ready\n\
            read -r _ || :";
        let mut command = Command::new("unshare");
        // Node managers of one PID namespace would see that they have one store.
        command.args(["-m", "-n", "-u", "-p", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", script, "node"]);
        command.arg(self.folder.join("hosts")).arg(number.to_string());
        let holder = Holder::start(&mut command)?;
        let (id, address) = (holder.inside, address(number));
        // Those of earlier nodes go a moment after these.
        shell(&format!(
            "ip link del to{number} 2> /dev/null; \
             ip link add to{number} type veth peer name eth0 netns {id} && \
             ip link set to{number} master sw up && \
             nsenter --target={id} -n ip addr add {address}/24 dev eth0 && \
             nsenter --target={id} -n ip link set eth0 up"
        ))?;
        self.nodes.push(holder);
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// A folder that all nodes have.
    pub fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).map_err(|e| failed(&folder, &e))?;
        Ok(folder)
    }

    /// Takes a node's link away.
    pub fn cut(&self, number: usize) -> Result<(), String> {
        shell(&format!("ip link set to{number} down"))
    }

    /// Does `body` in the network of a node, by this thread.
    pub fn within<T>(
        &self,
        number: usize,
        body: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let path = PathBuf::from(format!("/proc/{}/ns/net", self.nodes[number].inside));
        let there = File::open(&path).map_err(|e| failed(&path, &e))?;
        let enter = |file: &File| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|e| format!("{}: {e}", path.display()))
        };
        enter(&there)?;
        let done = body();
        enter(&self.own)?;
        done
    }

    /// A command on a node, in folder `at`, with the node's `side`: node managers of several sides
    /// do not meet.
    fn command(&self, number: usize, side: &Side, at: &Path) -> Result<Command, String> {
        let runtime = self.folder.join(format!("n{number}/{}", side.name));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&runtime);
        made.map_err(|e| failed(&runtime, &e))?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.nodes[number].inside));
        command.args(["-m", "-n", "-u", "-p", "env", "-C"]).arg(at);
        command.env("FOREBAY_RUNTIME_DIR", &runtime).env_remove("LD_PRELOAD").env("LC_ALL", "C");
        for variable in ["SLURM_JOB_ID", "PBS_NODEFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS"] {
            command.env_remove(variable);
        }
        Ok(command)
    }

    /// A store and how it is used. `backing` is more keys of the store; `group` those of a group of
    /// all nodes, where they form one.
    pub fn side(&self, name: &str, backing: &str, group: Option<&str>) -> Result<Side, String> {
        self.side_of(name, 64, backing, group)
    }

    /// The same with so many MiB of RAM on each node.
    pub fn side_of(
        &self,
        name: &str,
        ram_mib: u64,
        backing: &str,
        group: Option<&str>,
    ) -> Result<Side, String> {
        let store = self.folder(&format!("store-{name}"))?;
        let config = self.folder.join(format!("{name}.toml"));
        let last = self.count() - 1;
        let group = group.map(|keys| {
            format!("[group]\nhosts = \"n[0-{last}]\"\nconsistency = \"strict\"\n{keys}")
        });
        let text = format!(
            "[flush]\ntrigger = \"on-exit\"\n[placement]\nprefetch = false\n\
             [[backing]]\npath = \"store-{name}\"\n{backing}\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"{ram_mib}MiB\"\n{}",
            group.unwrap_or_default()
        );
        fs::write(&config, text).map_err(|e| failed(&config, &e))?;
        Ok(Side { name: name.to_owned(), config, store })
    }

    /// Starts a node manager that stays as long as the nodes, by a run that does nothing.
    pub fn keep(&mut self, number: usize, side: &Side) -> Result<(), String> {
        let mut command = self.command(number, side, &side.store)?;
        command.arg(&self.forebay).args(["run", "--config"]).arg(&side.config);
        command.args(["--", "sleep", "infinity"]);
        let log = self.folder.join(format!("n{number}/{}.log", side.name));
        let mut run = Server::start("a run", &mut command, &log)?;
        run.wait(|| self.status(number, side).is_ok_and(|status| status["manager"].is_u64()))?;
        self.runs.push(run);
        Ok(())
    }

    /// Starts one on each node, and waits until each holds all others for members.
    pub fn keep_group(&mut self, side: &Side) -> Result<(), String> {
        (0..self.count()).try_for_each(|node| self.keep(node, side))?;
        for node in 0..self.count() {
            self.await_status(node, side, "a whole group", |status| {
                let nodes = status["group"]["nodes"].as_array().map_or(&[][..], Vec::as_slice);
                let is_in = |node: &Value| node["standing"] == "up" && !node["seat"].is_null();
                nodes.len() == self.count() && nodes.iter().all(is_in)
            })?;
        }
        Ok(())
    }

    /// What `forebay status` says of the side's node manager on a node.
    pub fn status(&self, number: usize, side: &Side) -> Result<Value, String> {
        let mut command = self.command(number, side, &side.store)?;
        let said = run(command.arg(&self.forebay).args(["status", "--json"]))?;
        let status: Value = serde_json::from_str(&said).map_err(|e| format!("status: {e}"))?;
        // It shows the pools of the node's /dev/shm, those of other sides, too.
        let is_its = |one: &&Value| {
            let stores = one["stores"].as_array().map_or(&[][..], Vec::as_slice);
            stores.iter().any(|store| store.as_str().map(Path::new) == Some(&side.store))
        };
        let all = status.as_array().map_or(&[][..], Vec::as_slice);
        let its = all.iter().find(is_its).cloned();
        its.ok_or_else(|| format!("n{number} has no node manager of {}", side.name))
    }

    /// Waits until the status is as it should be.
    pub fn await_status(
        &self,
        number: usize,
        side: &Side,
        what: &str,
        mut is_so: impl FnMut(&Value) -> bool,
    ) -> Result<(), String> {
        let since = Instant::now();
        loop {
            let status = self.status(number, side)?;
            if is_so(&status) {
                return Ok(());
            }
            if since.elapsed() > LIMIT {
                return Err(format!("n{number} waits for {what} in vain: {}", status["group"]));
            }
            thread::sleep(LOOK);
        }
    }

    /// The process of a node manager, as this process knows it.
    pub fn manager(&self, number: usize, side: &Side) -> Result<u32, String> {
        let status = self.status(number, side)?;
        let id = status["manager"].as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.and_then(|id| self.nodes[number].outside(id));
        id.ok_or_else(|| format!("n{number} has no node manager"))
    }

    /// Starts the program, under Forebay or, without a side, directly in `at`.
    pub fn start(&self, number: usize, side: &Side, is_buffered: bool) -> Result<Program, String> {
        let mut command = self.command(number, side, &side.store)?;
        if is_buffered {
            command.arg(&self.forebay).args(["run", "--config"]).arg(&side.config).arg("--");
        }
        command.arg(&self.program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("a program on a node: {e}"))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a program without standard streams".to_owned());
        };
        Ok(Program { child, to: Some(to), from: BufReader::new(from) })
    }
}

/// The address of a node.
pub(super) fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number as u8 + 1)
}

fn shell(script: &str) -> Result<(), String> {
    run(Command::new("sh").args(["-c", script])).map(drop)
}

/// A store and how node managers use it.
pub(super) struct Side {
    name: String,
    config: PathBuf,
    store: PathBuf,
}

impl Side {
    /// Makes a file on the store, behind all node managers.
    pub fn make_file(&self, name: &str, bytes: usize) -> Result<(), String> {
        let path = self.store.join(name);
        fs::write(&path, vec![7; bytes]).map_err(|e| failed(&path, &e))
    }

    /// The same with so many of 4 KiB, numbered.
    pub fn make_files(&self, prefix: &str, count: usize) -> Result<(), String> {
        (0..count).try_for_each(|number| self.make_file(&format!("{prefix}{number}"), 4096))
    }
}

/// A program on a node, which does what it is told. It ends when dropped.
pub(super) struct Program {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Program {
    /// Gives it a command.
    pub fn tell(&mut self, command: &str) -> Result<(), String> {
        let to = self.to.as_mut().ok_or("a program that has ended")?;
        writeln!(to, "{command}").map_err(|e| format!("a program on a node: {e}"))
    }

    /// The nanoseconds that it answers with.
    pub fn hear(&mut self) -> Result<Vec<f64>, String> {
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|e| format!("a program on a node: {e}"))?;
        let numbers: Option<Vec<f64>> = line.split_whitespace().map(|n| n.parse().ok()).collect();
        match numbers {
            Some(numbers) if !numbers.is_empty() => Ok(numbers),
            _ => Err(format!("a program on a node has answered {line:?}")),
        }
    }

    /// Both.
    pub fn ask(&mut self, command: &str) -> Result<Vec<f64>, String> {
        self.tell(command)?;
        self.hear()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
