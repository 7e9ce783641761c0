//! Where processes crash: node managers and `programs/scripted.c`, started one by one and killed at
//! chosen steps.

use super::model::{Contents, FILES, Line, Model, Report};
use crate::harness::{LIMIT, Site, wait_for};
use forebay_node::Connection;
use forebay_pool::message::Message;
use rustix::process::Signal;
use std::cell::{Cell, RefCell};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where a process is to kill itself.
#[derive(Clone, Debug)]
pub struct Kill {
    /// `client` or `node`.
    pub role: &'static str,
    /// A pattern of names.
    pub point: String,
    pub number: u64,
}

impl Kill {
    /// At the `number`-th point of any name.
    pub fn at(role: &'static str, number: u64) -> Kill {
        Kill { role, point: "*".into(), number }
    }
}

/// What `scripted` did.
pub struct Ended {
    /// The operations that returned, in order.
    pub reports: Vec<Report>,
    /// What a process that outlived the other saw of the files.
    pub seen: Option<Contents>,
}

/// `scripted` as it runs.
pub struct Running {
    child: Child,
    output: ChildStdout,
    log: PathBuf,
    dumps: PathBuf,
    mark: PathBuf,
}

/// A site, the manager that serves it, and folders for one case after the other.
pub struct Harness {
    pub site: Site,
    library: PathBuf,
    manager: RefCell<Option<Child>>,
    serial: Cell<u32>,
    /// Environment of every process.
    pub settings: Vec<(&'static str, String)>,
}

impl Harness {
    /// `None`, and loud, where there is no compiler.
    pub fn new(setup: &crate::harness::Setup) -> Option<Harness> {
        let site = Site::new(setup);
        site.compile("scripted.c", &[]).then(|| {
            let folder = Path::new(crate::harness::FOREBAY).parent().unwrap();
            let library = folder.join("deps/libforebay_preload.so");
            assert!(library.is_file(), "{} is missing", library.display());
            let (manager, serial) = (RefCell::new(None), Cell::new(0));
            Harness { site, library, manager, serial, settings: Vec::new() }
        })
    }

    fn next(&self) -> u32 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// A file that is there once a process has killed itself, with the point's name.
    pub fn mark(&self) -> PathBuf {
        self.site.root().join(format!("mark-{}", self.next()))
    }

    fn arm(&self, command: &mut Command, kill: Option<&Kill>, mark: &Path) {
        if let Some(kill) = kill {
            command
                .env("FOREBAY_CRASH", format!("{}:{}", kill.point, kill.number))
                .env("FOREBAY_CRASH_IN", kill.role)
                .env("FOREBAY_CRASH_ONCE", mark);
        }
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
    }

    fn runtime(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.site.runtime()).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_none())
    }

    fn log(&self) -> PathBuf {
        self.site.root().join("managers")
    }

    /// What the managers said.
    pub fn said(&self) -> String {
        let all = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = all.lines().collect();
        lines[lines.len().saturating_sub(6)..].join("\n")
    }

    /// Starts a manager; returns when it answers, or is dead. Returns whether it answers.
    pub fn start_manager(&self, kill: Option<&Kill>, mark: &Path) -> bool {
        assert!(self.manager.borrow().is_none());
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = self.site.forebay(&["node", "--config"]);
        command.arg(&self.site.config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.arm(&mut command, kill, mark);
        let mut child = command.spawn().unwrap();
        let since = Instant::now();
        loop {
            // Dead first: a dead one's socket may still be there.
            if child.try_wait().unwrap().is_some() {
                self.manager.replace(Some(child));
                return false;
            }
            if self.connect().is_some() {
                self.manager.replace(Some(child));
                return true;
            }
            assert!(since.elapsed() < LIMIT, "no manager answers: {}", self.said());
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn connect(&self) -> Option<Connection> {
        Connection::to(&self.runtime()?.join("socket")).ok()
    }

    /// Whether a manager runs.
    pub fn has_manager(&self) -> bool {
        let mut manager = self.manager.borrow_mut();
        manager.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// The end of the manager, if it has one now.
    pub fn reap_manager(&self) -> ExitStatus {
        let mut child = self.manager.borrow_mut().take().expect("there is a manager");
        let since = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if since.elapsed() > LIMIT {
                let _ = child.kill();
                panic!("the manager does not end: {}", self.said());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Kills the manager.
    pub fn kill_manager(&self) {
        if let Some(child) = self.manager.borrow_mut().as_mut() {
            let _ = child.kill();
        }
        if self.manager.borrow().is_some() {
            self.reap_manager();
        }
    }

    /// Tells the manager to drain and to end.
    pub fn end_manager(&self) {
        let pid = self.manager.borrow().as_ref().map(Child::id);
        if let Some(pid) = pid {
            crate::harness::kill(pid, Signal::TERM);
            let status = self.reap_manager();
            assert!(status.success(), "the manager ended with {status}: {}", self.said());
        }
    }

    /// Has the manager drain. False if it died meanwhile.
    pub fn drain(&self) -> bool {
        let Some(connection) = self.connect() else { return false };
        if connection.send(Message::Drain).is_err() {
            return false;
        }
        let since = Instant::now();
        loop {
            match connection.receive(Duration::from_millis(100)) {
                Ok(Some(Message::Drained { bytes: 0, .. })) => return true,
                Ok(Some(other)) => panic!("{other:?}: {}", self.said()),
                Ok(None) => assert!(since.elapsed() < LIMIT, "no end of draining: {}", self.said()),
                Err(_) => return false,
            }
        }
    }

    /// A folder for a case, with these files.
    pub fn folder(&self, contents: &Contents) -> PathBuf {
        let folder = self.site.store.join(format!("{}", self.next()));
        fs::create_dir(&folder).unwrap();
        for (name, bytes) in contents {
            fs::write(folder.join(format!("f{name}")), bytes).unwrap();
        }
        folder
    }

    /// Starts `scripted` with a script in `folder`.
    pub fn start(&self, folder: &Path, lines: &[Line], kill: Option<&Kill>) -> Running {
        let number = self.next();
        let path = |name: &str| self.site.out.join(format!("{name}-{number}"));
        let (script, log, dumps, mark) = (path("script"), path("log"), path("dumps"), path("mark"));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&script, text).unwrap();
        fs::create_dir(&dumps).unwrap();
        let runtime = self.runtime().expect("a manager was started");
        let instance = runtime.file_name().unwrap().to_str().unwrap().to_owned();
        let uid = rustix::process::getuid().as_raw();
        let program = self.site.root().join("scripted");
        let mut command = self.site.command(folder, program.to_str().unwrap());
        command
            .args([&script, &log, &dumps])
            .env("LD_PRELOAD", &self.library)
            .env("FOREBAY_POOL", format!("/dev/shm/forebay-{uid}-{instance}.pool"))
            .env("FOREBAY_SOCKET", runtime.join("socket"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        self.arm(&mut command, kill, &mark);
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take().unwrap();
        Running { child, output, log, dumps, mark }
    }

    /// What `folder` has for programs without Forebay.
    pub fn contents(&self, folder: &Path) -> Contents {
        read_all(folder)
    }
}

fn read_all(folder: &Path) -> Contents {
    let read = |name: u8| Some((name, fs::read(folder.join(format!("f{name}"))).ok()?));
    (0..FILES).filter_map(read).collect()
}

impl Running {
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until one of the processes has killed itself, or both have ended.
    pub fn wait_for_kill(&mut self) {
        wait_for("a kill", LIMIT, || (self.has_mark() || !self.is_running()).then_some(()));
    }

    /// Whether a process has said at which point it kills itself.
    fn has_mark(&self) -> bool {
        fs::metadata(&self.mark).is_ok_and(|mark| mark.len() > 0)
    }

    /// Kills both processes.
    pub fn kill(&mut self) {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(children).unwrap_or_default();
        let _ = self.child.kill();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            crate::harness::kill(pid, Signal::KILL);
        }
    }

    /// Waits for the end of both processes. Returns the point at which one killed itself, and what
    /// they did.
    pub fn end(mut self) -> (Option<String>, Ended) {
        let output: &OwnedFd = &self.output.into();
        let wait = |milliseconds: i64| {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let limit = Timespec {
                tv_sec: milliseconds / 1000,
                tv_nsec: (milliseconds % 1000 * 1_000_000) as _,
            };
            matches!(poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&limit)), Ok(1..))
        };
        if !wait(LIMIT.as_millis() as i64) {
            let _ = self.child.kill();
            panic!("it hangs; it had done: {}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        let status = self.child.wait().unwrap();
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let reports = text.lines().enumerate().map(|(number, line)| {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(words[0], number.to_string(), "{text}");
            let result = words[1].parse().unwrap();
            let (errno, hash) = (words[2].parse().unwrap(), u64::from_str_radix(words[3], 16));
            Report { result, errno, hash: hash.unwrap() }
        });
        let reports = reports.collect();
        // One killed by us in between has made the file and not said why.
        let mark = fs::read_to_string(&self.mark).ok();
        let killed = mark.is_some() || status.signal() == Some(9);
        assert!(killed || status.success(), "it ended with {status}: {text}");
        let has_dumps = fs::read_dir(&self.dumps).unwrap().next().is_some();
        let seen = has_dumps.then(|| read_all(&self.dumps));
        for file in [&self.log, &self.mark] {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir_all(&self.dumps);
        (mark, Ended { reports, seen })
    }
}

/// Compares the reports with the model, and brings the model to what was reported. Returns the
/// operation that was under way.
pub fn follow(
    model: &mut Model,
    lines: &[Line],
    reports: &[Report],
) -> Result<Option<super::model::Step>, String> {
    for (number, (line, got)) in lines.iter().zip(reports).enumerate() {
        let wanted = model.apply(line.step);
        if *got != wanted {
            return Err(format!("line {number} ({line}): {got:?} instead of {wanted:?}"));
        }
    }
    Ok(lines.get(reports.len()).map(|line| line.step))
}

impl Drop for Harness {
    fn drop(&mut self) {
        if let Some(child) = self.manager.borrow_mut().as_mut() {
            if std::thread::panicking() {
                let _ = child.kill();
            } else {
                crate::harness::kill(child.id(), Signal::TERM);
            }
            let _ = child.wait();
        }
        wait_for("the end of clients", LIMIT, || {
            let manager = self.manager.borrow().as_ref().map(Child::id);
            let left = self.site.processes();
            left.iter().all(|&pid| Some(pid) == manager).then_some(())
        });
    }
}
