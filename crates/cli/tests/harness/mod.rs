//! A place where real programs run twice: plainly, and under `forebay run`.
//!
//! Every [`Site`] has its own runtime folder and tiers, so that tests run side by side, and looks
//! at its end that nothing of it is left.

#![allow(dead_code)] // Each test file uses its part.

pub mod forge;
mod memory;

pub use memory::Memory;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The command under test.
pub const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");
/// What no command of these tests may take.
pub const LIMIT: Duration = Duration::from_secs(400);
/// How long a test waits for what must happen.
pub const LONG: Duration = Duration::from_secs(60);
/// How long what a test made may take to be tidy after its last command.
const TIDY: Duration = Duration::from_secs(30);

/// Says that a test does not run, where the test harness cannot hide it.
pub fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// Whether `words` can be run and succeed.
pub fn works(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether a file of a runtime folder is what `forebay report` shows of the last run.
pub fn is_report(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "last-report.json")
}

/// A user who owns nothing.
pub const NOBODY: u32 = 65_534;

/// The beginning of a command that runs as another user.
pub const AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Whether all `programs` are installed; says so loudly if not.
pub fn have(programs: &[&str]) -> bool {
    let there = |program: &&&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    let missing: Vec<_> = programs.iter().filter(|program| !there(program)).collect();
    if !missing.is_empty() {
        skip(&format!("{missing:?} are not installed"));
    }
    missing.is_empty()
}

/// The Python that a variable names, if it has `modules`; says so loudly if it is not there.
pub fn python_at(variable: &str, modules: &str) -> Option<String> {
    let python = std::env::var(variable).ok();
    let found = python.filter(|python| works(&[python, "-c", &format!("import {modules}")]));
    if found.is_none() {
        skip(&format!("{variable} names no Python with {modules}"));
    }
    found
}

/// The Python in which `.ci/run` has installed `modules`; says so loudly if it is not there.
pub fn python_with(modules: &str) -> Option<String> {
    let python = std::env::var("FOREBAY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = works(&[&python, "-c", &format!("import {modules}")]);
    if !there {
        skip(&format!("{python} has not all of {modules}; FOREBAY_TEST_PYTHON names one that has"));
    }
    there.then_some(python)
}

/// Calls `check` until it gives something.
pub fn wait_for<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(since.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How new small files are treated where a test does not say it: as the tests are told. Else half
/// of the tests of programs, which hold either way, have them written through; which half depends
/// on FOREBAY_TEST_TURN. All others buffer them.
fn small_files() -> String {
    if let Ok(told) = std::env::var("FOREBAY_SMALL_FILES") {
        return told;
    }
    let holds_either_way = matches!(env!("CARGO_CRATE_NAME"), "applications" | "posix");
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let turn = std::env::var("FOREBAY_TEST_TURN").ok().and_then(|turn| turn.parse().ok());
    let turn = test.bytes().fold(turn.unwrap_or(0), |sum, byte| sum + u64::from(byte));
    let how = if holds_either_way && turn % 2 == 1 { "write-through" } else { "buffer" };
    // Shown if the test fails.
    println!("FOREBAY_SMALL_FILES={how}");
    how.to_owned()
}

/// The hierarchy of a site.
#[derive(Clone, Copy)]
pub struct Setup {
    pub ram: &'static str,
    pub nvme: &'static str,
    pub nvme_emulate: Option<&'static str>,
    pub store_emulate: Option<&'static str>,
    pub flush: &'static str,
}

/// 64 MiB of RAM and an emulated NVMe of 256 MiB over a plain directory.
pub const USUAL: Setup = Setup {
    ram: "64MiB",
    nvme: "256MiB",
    nvme_emulate: Some("{ bandwidth = \"1034MB/s\", latency = \"20us\" }"),
    store_emulate: None,
    flush: "trigger = \"periodic\"\nperiod = \"1s\"",
};

/// The same over a store so slow that files are still ahead of it when they are read again.
pub const SLOW_STORE: Setup =
    Setup { store_emulate: Some("{ bandwidth = \"60MB/s\", latency = \"4ms\" }"), ..USUAL };

/// Tiers that a few megabytes fill.
pub const TINY: Setup = Setup { ram: "4MiB", nvme: "8MiB", nvme_emulate: None, ..USUAL };

/// Tiers that real programs overfill: their blocks move down and are flushed all the time.
pub const SMALL: Setup = Setup {
    ram: "6MiB",
    nvme: "12MiB",
    nvme_emulate: None,
    flush: "trigger = \"periodic\"\nperiod = \"200ms\"",
    ..USUAL
};

/// Small tiers from which everything is flushed as soon as may be.
pub const EAGER: Setup = Setup {
    ram: "16MiB",
    nvme: "64MiB",
    nvme_emulate: None,
    flush: "trigger = \"periodic\"\nperiod = \"20ms\"",
    ..USUAL
};

/// Nothing reaches the store before the run ends.
pub const LAZY: Setup = Setup { flush: "trigger = \"on-exit\"", ..USUAL };

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code, or 128 + the signal that ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

/// A command that runs; its output goes to files, so that nothing it leaves behind holds us up.
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    /// Starts a command whose output goes to files of `folder` with this number.
    pub fn start(
        mut command: Command,
        input: impl Into<Stdio>,
        folder: &Path,
        number: u32,
    ) -> Running {
        let out = folder.join(format!("stdout-{number}"));
        let err = folder.join(format!("stderr-{number}"));
        command
            .stdin(input)
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap());
        // A shell lets what it starts in the background ignore them, nohup the first; programs
        // inherit that.
        let as_usual = || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: no handler is installed.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe { command.pre_exec(as_usual) };
        Running { child: command.spawn().unwrap(), out, err }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap()).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap()).into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; one that does not come in time is a failure.
    pub fn end(mut self) -> Ran {
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if since.elapsed() > LIMIT => {
                    let family = descendants(self.pid());
                    family.iter().for_each(|&pid| kill(pid, Signal::KILL));
                    let _ = self.child.wait();
                    let said = (self.stdout(), self.stderr());
                    panic!("it hangs: {family:?}\nstdout: {}\nstderr: {}", said.0, said.1);
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ran { code, stdout: self.stdout(), stderr: self.stderr() }
    }
}

/// The process that has paused first, as a log of pauses says.
pub fn paused(log: &Path) -> Option<u32> {
    fs::read_to_string(log).ok()?.lines().next()?.rsplit(' ').next()?.parse().ok()
}

/// A process that a test started, or that what it started did.
pub fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie is dead.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat[stat.rfind(')').unwrap_or(0)..].starts_with(") Z"))
}

/// `pid` and all processes below it.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    found
}

/// One entry of a directory tree, as programs without Forebay see it.
#[derive(PartialEq, Eq)]
pub struct Item {
    mode: u32,
    content: Vec<u8>,
}

impl Item {
    pub fn bytes(&self) -> Vec<u8> {
        self.content.clone()
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = String::from_utf8_lossy(&self.content[..self.content.len().min(60)]);
        write!(f, "{:o} {} bytes {head:?}", self.mode, self.content.len())
    }
}

/// Everything below `folder`, by relative path.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, Item> {
    let mut items = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let content = if found.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if found.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                assert!(found.len() < 8 << 30, "{}: {} bytes", path.display(), found.len());
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(folder).unwrap().to_owned();
            items.insert(name, Item { mode: found.mode(), content });
        }
    }
    items
}

/// First difference of two contents.
pub fn assert_same_bytes(name: &str, got: &[u8], wanted: &[u8]) {
    let at = got.iter().zip(wanted).position(|(a, b)| a != b);
    let wrong = got.iter().zip(wanted).filter(|(a, b)| a != b).count();
    assert!(
        at.is_none() && got.len() == wanted.len(),
        "{name}: {} bytes instead of {}; {wrong} differ, the first at {at:?}",
        got.len(),
        wanted.len(),
    );
}

/// The same for texts: shows the first lines that differ.
pub fn assert_same_lines(name: &str, got: &str, wanted: &str) {
    let (mut a, mut b) = (got.lines(), wanted.lines());
    for number in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (got, wanted) => assert_eq!(got, wanted, "{name}, line {number}"),
        }
    }
    assert_eq!(got.len(), wanted.len(), "{name}");
}

/// What `forebay status` says.
#[derive(Debug, Default, Clone)]
pub struct Status {
    pub text: String,
    pub manager: u32,
    counters: BTreeMap<String, u64>,
}

impl Status {
    /// What `forebay status` has printed.
    pub fn parse(text: String) -> Self {
        let mut status = Status::default();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["count", name, value, ..] => {
                    *status.counters.entry(name.to_owned()).or_default() +=
                        value.parse::<u64>().unwrap();
                }
                ["instance", _, "node", "manager", pid] => status.manager = pid.parse().unwrap(),
                _ => {}
            }
        }
        status.text = text;
        status
    }

    pub fn count(&self, name: &str) -> u64 {
        *self.counters.get(name).unwrap_or_else(|| panic!("no counter {name}: {}", self.text))
    }

    /// Interception was live: files were opened under management, and data went through Forebay.
    pub fn assert_live(&self) {
        let moved = ["writes", "reads", "write_around", "passthrough"].map(|name| self.count(name));
        assert!(self.count("opens") > 0, "no open was intercepted: {}", self.text);
        assert!(moved.iter().sum::<u64>() > 0, "no data was intercepted: {}", self.text);
    }
}

/// Temporary directories and a hierarchy of their own.
pub struct Site {
    root: TempDir,
    /// The directory that Forebay buffers.
    pub store: PathBuf,
    /// Another one like it, which Forebay does not manage.
    pub plain: PathBuf,
    /// For what programs leave outside.
    pub out: PathBuf,
    pub nvme: PathBuf,
    pub config: PathBuf,
    serial: std::cell::Cell<u32>,
    memory: Memory,
    shared: OnceCell<String>,
}

impl Site {
    pub fn new(setup: &Setup) -> Self {
        let root = tempfile::Builder::new().prefix("fb-").tempdir().unwrap();
        let folder = |name: &str| {
            let path = root.path().canonicalize().unwrap().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (store, plain, out) = (folder("store"), folder("plain"), folder("out"));
        let (nvme, run) = (folder("nvme"), folder("run"));
        fs::set_permissions(run, fs::Permissions::from_mode(0o700)).unwrap();
        let config = root.path().join("forebay.toml");
        let serial = std::cell::Cell::default();
        let memory = Memory::new();
        let shared = OnceCell::new();
        let site = Site { root, store, plain, out, nvme, config, serial, memory, shared };
        site.configure(setup);
        site
    }

    /// Writes the configuration file anew.
    pub fn configure(&self, setup: &Setup) {
        let emulate =
            |given: Option<&str>| given.map_or(String::new(), |e| format!("emulate = {e}\n"));
        let text = format!(
            "[flush]\n{}\n[[backing]]\npath = \"store\"\n{}\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"{}\"\n\
             [[tier]]\nname = \"nvme\"\nkind = \"file\"\npath = \"nvme\"\ncapacity = \"{}\"\n{}",
            setup.flush,
            emulate(setup.store_emulate),
            setup.ram,
            setup.nvme,
            emulate(setup.nvme_emulate),
        );
        fs::write(&self.config, text).unwrap();
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn runtime(&self) -> PathBuf {
        self.root().join("run")
    }

    /// A command in folder `at` that finds the site's programs and places in its environment.
    pub fn command(&self, at: &Path, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(at)
            .env_remove("LD_PRELOAD")
            .env("LC_ALL", "C")
            // How quick this machine's store is, is not what tests are about.
            .env("FOREBAY_SMALL_FILES", small_files())
            .env("FOREBAY", self.program())
            .env("FOREBAY_RUNTIME_DIR", self.runtime())
            .env("OUT", &self.out)
            .env("BIN", self.root())
            .env("SCRIPTS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs"));
        // The nodes of a job that the tests themselves run in are none of theirs.
        for variable in ["SLURM_JOB_ID", "PBS_NODEFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS"] {
            command.env_remove(variable);
        }
        self.memory.enter(&mut command);
        command
    }

    /// `forebay` with some words, as run in the buffered directory.
    pub fn forebay(&self, words: &[&str]) -> Command {
        let mut command = self.command(&self.store, self.program());
        command.args(words);
        command
    }

    /// The command under test, as this site's users run it.
    pub fn program(&self) -> &str {
        self.shared.get().map_or(FOREBAY, String::as_str)
    }

    /// Makes the site's folder and the command under test available to every user: the command as a
    /// copy, if it lies in a folder that others may not enter. False, and loud, if this process
    /// cannot become another user.
    pub fn share(&self) -> bool {
        if !rustix::process::geteuid().is_root() || !works(&[&AS_NOBODY[..], &["true"]].concat()) {
            skip("only root can be two users");
            return false;
        }
        fs::set_permissions(self.root(), fs::Permissions::from_mode(0o755)).unwrap();
        let runs = |program: &str| {
            // Not by AS_NOBODY, which keeps root's capabilities until the program has been found.
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null());
            as_user(&mut command, NOBODY);
            command.status().is_ok_and(|status| status.success())
        };
        if !runs(FOREBAY) {
            let folder = self.root().join("bin");
            fs::create_dir_all(&folder).unwrap();
            let built = Path::new(FOREBAY).parent().unwrap();
            for name in ["forebay", "libforebay_preload.so"] {
                let beside = built.join("deps").join(name);
                let from = if beside.is_file() { beside } else { built.join(name) };
                fs::copy(from, folder.join(name)).unwrap();
            }
            self.shared.set(folder.join("forebay").to_str().unwrap().to_owned()).unwrap();
        }
        let runs = runs(self.program());
        if !runs {
            skip(&format!("another user may not run {}", self.program()));
        }
        runs
    }

    /// `forebay run` of a command.
    pub fn buffered(&self, words: &[&str]) -> Command {
        let config = self.config.to_str().unwrap();
        self.forebay(&[&["run", "--config", config, "--"], words].concat())
    }

    pub fn start(&self, command: Command) -> Running {
        self.start_with(command, Stdio::null())
    }

    /// [`Site::start`] with something to read.
    pub fn start_with(&self, command: Command, input: impl Into<Stdio>) -> Running {
        let number = self.serial.replace(self.serial.get() + 1);
        Running::start(command, input, self.root(), number)
    }

    pub fn end(&self, command: Command) -> Ran {
        self.start(command).end()
    }

    /// Runs a shell script in the plain directory.
    pub fn run_plainly(&self, script: &str) -> Ran {
        let mut command = self.command(&self.plain, "bash");
        command.args(["-c", script]);
        self.end(command)
    }

    /// Runs a shell script in the buffered directory under `forebay run`, and gives the status
    /// as it was when the script had ended.
    pub fn run_buffered(&self, script: &str) -> (Ran, Status) {
        self.run_buffered_with(&[], script)
    }

    /// The same, with words more in the environment of the run and of a manager that it starts.
    pub fn run_buffered_with(&self, words: &[(&str, &str)], script: &str) -> (Ran, Status) {
        // Not the name of a program that a test compiles.
        let shown = self.root().join("status.txt");
        let _ = fs::remove_file(&shown);
        let around = "bash -c \"$1\"; code=$?; \"$FOREBAY\" status > \"$2\"; exit $code";
        let shell = ["bash", "-c", around, "bash", script, shown.to_str().unwrap()];
        let mut command = self.buffered(&shell);
        command.envs(words.iter().copied());
        let ran = self.end(command);
        let text = fs::read_to_string(&shown).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        (ran, Status::parse(text))
    }

    pub fn status(&self) -> Status {
        Status::parse(self.end(self.forebay(&["status"])).expect(0).stdout)
    }

    pub fn recover(&self) -> Ran {
        self.end(self.forebay(&["recover"]))
    }

    /// Runs a script plainly and under Forebay: exit status, output and all files must be the same,
    /// and Forebay must have been at work.
    pub fn same(&self, script: &str) -> Status {
        let wanted = self.run_plainly(script);
        let (got, status) = self.run_buffered(script);
        assert_eq!(got.code, wanted.code, "got {got:#?}\nwanted {wanted:#?}\n{}", status.text);
        assert_same_lines("stdout", &got.stdout, &wanted.stdout);
        assert_same_lines("stderr", &got.stderr, &wanted.stderr);
        self.assert_same_files();
        status.assert_live();
        status
    }

    pub fn assert_same_files(&self) {
        let (got, wanted) = (tree(&self.store), tree(&self.plain));
        assert_eq!(got.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        for ((name, got), wanted) in got.iter().zip(wanted.values()) {
            assert_same_bytes(&name.to_string_lossy(), &got.content, &wanted.content);
            assert_eq!(got.mode, wanted.mode, "{}", name.display());
        }
    }

    /// Modification time of a file in both directories, in nanoseconds.
    pub fn mtimes(&self, name: &str) -> (i128, i128) {
        let of = |folder: &Path| {
            let found = fs::symlink_metadata(folder.join(name)).unwrap();
            i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
        };
        (of(&self.store), of(&self.plain))
    }

    /// Compiles a program of `tests/programs` to `$BIN/NAME`. False, and loud, if that cannot be.
    pub fn compile(&self, source: &str, flags: &[&str]) -> bool {
        compile_into(self.root(), source, flags)
    }

    /// Processes of this site, known by their environment.
    pub fn processes(&self) -> Vec<u32> {
        processes_of(&self.runtime())
    }

    /// Kills every process of this site, until none is left.
    pub fn kill_all(&self) {
        wait_for("the end of killed processes", LIMIT, || {
            let found = self.processes();
            found.iter().for_each(|&pid| kill(pid, Signal::KILL));
            found.is_empty().then_some(())
        });
    }

    /// Where this process sees what its commands see as /dev/shm.
    pub fn shm(&self) -> PathBuf {
        self.memory.folder()
    }

    /// What a file of [`Site::shm`] is called by its commands.
    pub fn seen(&self, path: &Path) -> PathBuf {
        self.memory.seen(path)
    }

    /// Pools of this site, known by the store's path in their head.
    pub fn pools(&self) -> Vec<PathBuf> {
        let mark = self.store.to_str().unwrap().as_bytes();
        let all = fs::read_dir(self.shm()).unwrap();
        all.filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "pool"))
            .filter(|path| head(path).is_some_and(|head| contains(&head, mark)))
            .collect()
    }

    /// What should not be there any more.
    fn leftovers(&self) -> Vec<String> {
        let command = |pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("process {pid}: {}", String::from_utf8_lossy(&line).replace('\0', " "))
        };
        let mut left: Vec<_> = self.processes().into_iter().map(command).collect();
        let files = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let memory = match self.memory.is_own() {
            true => files(&self.shm()),
            false => self.pools(),
        };
        let mut runtime = files(&self.runtime());
        // A manager that has ended leaves its log, and a run what it did.
        runtime.retain(|path| !is_report(path) && path.extension().is_none_or(|end| end != "log"));
        let paths = [memory, files(&self.nvme), runtime].concat();
        left.extend(paths.iter().map(|path| path.display().to_string()));
        left
    }

    /// Removes what was kept of files that are nowhere on the store any more: those that a program
    /// has removed, and that the journal has data of because power was lost before it knew.
    pub fn drop_removed(&self) {
        let entries = fs::read_dir(&self.nvme).unwrap().map(|entry| entry.unwrap().path());
        let removed = entries.filter(|path| path.extension().is_some_and(|end| end == "removed"));
        removed.for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }

    /// The folders of instances.
    pub fn instances(&self) -> impl Iterator<Item = std::io::Result<fs::DirEntry>> + use<> {
        let entries = fs::read_dir(self.runtime()).unwrap();
        // Beside them lie the logs of those that have ended.
        entries.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()))
    }

    /// What the node managers said.
    pub fn log(&self) -> String {
        logs_of(&self.runtime())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        expect_tidy(
            || self.leftovers(),
            || {
                let log = self.log();
                let pools = self.pools();
                self.processes().into_iter().for_each(|pid| kill(pid, Signal::KILL));
                pools.into_iter().for_each(|pool| drop(fs::remove_file(pool)));
                format!("log: {log}")
            },
        );
    }
}

/// Waits until nothing is left of what a test made. What is left after that fails the test, with
/// what `clean_up` says; of a test that has failed already it is only shown.
pub fn expect_tidy(leftovers: impl Fn() -> Vec<String>, clean_up: impl FnOnce() -> String) {
    let since = Instant::now();
    let mut left = leftovers();
    while !left.is_empty() && !std::thread::panicking() && since.elapsed() < TIDY {
        std::thread::sleep(Duration::from_millis(20));
        left = leftovers();
    }
    if left.is_empty() {
        return;
    }
    let report = format!("left behind: {left:#?}\n{}", clean_up());
    match std::thread::panicking() {
        true => eprintln!("{report}"),
        false => panic!("{report}"),
    }
}

/// What the node managers of a runtime folder said, those that have ended, too.
pub fn logs_of(runtime: &Path) -> String {
    let entries = fs::read_dir(runtime).into_iter().flatten().flatten();
    let logs = entries.map(|entry| entry.path()).filter_map(|path| match path.is_dir() {
        true => Some(path.join("log")),
        false => Some(path).filter(|path| path.extension().is_some_and(|end| end == "log")),
    });
    logs.map(|log| fs::read_to_string(log).unwrap_or_default()).collect()
}

/// Lets a command of a site run as another user, which only root can.
pub fn as_user(command: &mut Command, user: u32) {
    let change = move || {
        // SAFETY: system calls.
        let good = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(user, user, user) == 0
                && libc::setresuid(user, user, user) == 0
        };
        if good { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: only system calls between fork and exec.
    unsafe { command.pre_exec(change) };
}

/// Runs a script with mounts of its own; `None` where that is not allowed.
pub fn with_mounts(site: &Site, script: &str) -> Option<Ran> {
    if !works(&["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]) {
        skip("a private mount is not allowed here");
        return None;
    }
    let mut command = site.command(&site.out, "unshare");
    command.args(["-m", "bash", "-c", script]);
    command.env("CONFIG", &site.config).env("STORE", &site.store);
    Some(site.end(command))
}

/// A shell script under `forebay run` that stops wherever it says `step NAME`, until the test has
/// looked.
pub struct Steps<'a> {
    site: &'a Site,
    pub running: Running,
}

impl<'a> Steps<'a> {
    pub fn of(site: &'a Site, script: &str) -> Steps<'a> {
        Steps::with(site, &[], script)
    }

    /// The same, with options of `forebay run`.
    pub fn with(site: &'a Site, options: &[&str], script: &str) -> Steps<'a> {
        Steps::start(site, Steps::command(site, options, script))
    }

    /// The command, for more to be put into its environment before [`Steps::start`].
    pub fn command(site: &Site, options: &[&str], script: &str) -> Command {
        let step = "step() { : > $OUT/at-$1; while [ ! -e $OUT/past-$1 ]; do sleep 0.01; done; }\n";
        let script = format!("{step}{script}");
        let run = ["run", "--config", site.config.to_str().unwrap()];
        let words = [&run[..], options, &["--", "bash", "-c", &script]].concat();
        site.forebay(&words)
    }

    pub fn start(site: &'a Site, command: Command) -> Steps<'a> {
        Steps { site, running: site.start(command) }
    }

    /// Waits until the script is at `step`.
    pub fn at(&self, step: &str) {
        let mark = self.site.out.join(format!("at-{step}"));
        wait_for(&format!("step {step}"), LONG, || mark.exists().then_some(()));
    }

    /// Lets the script go on.
    pub fn past(&self, step: &str) {
        fs::write(self.site.out.join(format!("past-{step}")), "").unwrap();
    }

    /// Has the script go from step `first` to step `second` without a node manager, which is
    /// killed, and on when another one serves the site.
    pub fn without_manager(&self, first: &str, second: &str) {
        self.at(first);
        let gone = self.site.status().manager;
        kill(gone, Signal::KILL);
        wait_for("its end", LONG, || (!is_alive(gone)).then_some(()));
        self.past(first);
        self.at(second);
        let is_another = || {
            let now = self.site.status().manager;
            (now != gone && is_alive(now)).then_some(())
        };
        wait_for("another node manager", LONG, is_another);
        self.past(second);
    }

    pub fn end(self) -> Ran {
        self.running.end().expect(0)
    }
}

pub fn sees(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}

/// Waits until a process without Forebay sees `wanted`.
pub fn becomes(path: &Path, wanted: &str) {
    wait_for(wanted, LONG, || (sees(path) == wanted).then_some(()));
}

/// Processes of the site with this runtime folder, known by their environment.
pub fn processes_of(runtime: &Path) -> Vec<u32> {
    let mark = format!("FOREBAY_RUNTIME_DIR={}\0", runtime.display());
    let all = fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| is_alive(pid) && contains(&environment(pid), mark.as_bytes()))
        .collect()
}

/// What a process was started with. In the middle of an exec a process shows none for a moment.
fn environment(pid: u32) -> Vec<u8> {
    for _ in 0..20 {
        let found = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        // A thread of the kernel has no program.
        if !found.is_empty() || fs::read_link(format!("/proc/{pid}/exe")).is_err() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Vec::new()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn head(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut head = Vec::new();
    File::open(path).ok()?.take(128 << 10).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Compiles a program of `tests/programs` into a folder, under its name without the ending. False,
/// and loud, where there is no compiler, or none that can do that.
pub fn compile_into(folder: &Path, source: &str, flags: &[&str]) -> bool {
    let compiler = if source.ends_with(".cc") { "c++" } else { "cc" };
    compile_by(compiler, folder, source, flags)
}

/// The same with a compiler of this name or path.
pub fn compile_by(compiler: &str, folder: &Path, source: &str, flags: &[&str]) -> bool {
    let (name, _) = source.rsplit_once('.').unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let made = Command::new(compiler)
        .args(["-O1", "-w", "-D_GNU_SOURCE", "-o"])
        .arg(folder.join(name))
        .arg(&file)
        .args(flags)
        .output();
    match made {
        Ok(made) if made.status.success() => true,
        Ok(made) if flags.contains(&"-static") => {
            skip(&format!("cannot link {source}: {}", String::from_utf8_lossy(&made.stderr)));
            false
        }
        Ok(made) => panic!("{source}: {}", String::from_utf8_lossy(&made.stderr)),
        Err(error) => {
            skip(&format!("{compiler}: {error}"));
            false
        }
    }
}
