//! One process of an action: how it is started, looked at, killed, and how its result gets its
//! name.

use super::leftover;
use crate::actions::table::{Entry, RunState};
use crate::actions::{Action, Event, MARK};
use crate::instance::launch;
use crate::instance::runtime::sync_folder_of;
use crate::node::Node;
use forebay_pool::clock::joined_ns;
use forebay_pool::layout::{FileFlags, FileRecord};
use forebay_pool::{crash, private};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The end of what a command says on its standard error that is told of a failure.
const TAIL_MAX: usize = 2 << 10;
/// Bytes of a decision.
const DECISION_MAX: u64 = 256;
/// The kernel takes a command's memory before that of programs.
const OOM_SCORE: &[u8] = b"500";

/// A result that has no name yet, and the name that it gets.
pub(super) type Temporary = (PathBuf, PathBuf);

/// When a file was last changed, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Whether the store has said so: a record of a direct file is behind what is written to it.
    is_stored: bool,
    /// None of one that the store does not find.
    said: Option<(u64, u64)>,
}

impl Version {
    /// That of the file now.
    pub fn of(record: &FileRecord, path: &Path) -> Version {
        Self::said_by(record, path, record.has(FileFlags::DIRECT))
    }

    /// Whether the file is as it was, by what has said how that was.
    pub fn is_still(&self, record: &FileRecord, path: &Path) -> bool {
        *self == Self::said_by(record, path, self.is_stored)
    }

    fn said_by(record: &FileRecord, path: &Path, is_stored: bool) -> Version {
        let said = if is_stored {
            let found = rustix::fs::stat(path).ok();
            found.map(|found| {
                (joined_ns(found.st_mtime, found.st_mtime_nsec as i64), found.st_size as u64)
            })
        } else {
            Some((record.mtime_ns.load(Ordering::Acquire), record.size.load(Ordering::Acquire)))
        };
        Version { is_stored, said }
    }
}

/// How a command has ended.
pub(super) struct Ended {
    /// Why it has failed, if so.
    pub failure: Option<String>,
    /// How it stands then.
    pub state: RunState,
}

/// A process that runs on a file.
pub(super) struct Child {
    pub id: u64,
    pub action: Action,
    pub event: Event,
    pub generation: u32,
    pub holds: bool,
    /// When the file's status was last changed as it was started.
    pub changed: super::StatusChange,
    /// What the file was when it was started.
    pub version: Version,
    process: std::process::Child,
    mark: String,
    said: Vec<u8>,
    result: Option<(File, Temporary)>,
    decision: PathBuf,
    until: Instant,
    /// Why it was killed.
    killed: Option<(String, bool)>,
}

/// Where the result of an action on a file lies until it has its name.
///
/// # Errors
/// That there is no such directory.
pub(super) fn temporary(
    node: &Node,
    action: &Action,
    event: &Event,
    id: u64,
) -> Result<Option<Temporary>, String> {
    let Some(path) = action.result(event) else { return Ok(None) };
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        return Err(format!("results: {}: no such directory; make it", folder.display()));
    }
    let name = format!(".forebay-{}-{id}.tmp", node.runtime.instance);
    Ok(Some((folder.join(name), path)))
}

impl Child {
    /// Starts the process of a run.
    ///
    /// # Errors
    /// Why it cannot be started, for people.
    pub fn start(
        node: &Node,
        run: &Entry,
        changed: super::StatusChange,
        action: Action,
        event: Event,
        temporary: Option<Temporary>,
    ) -> Result<Child, String> {
        let record = node.segment.file(event.file);
        let version = Version::of(record, &event.path);
        let mut command = command_of(node, &action, &event)?;
        let mark = leftover::mark(&node.runtime.instance, run.id);
        let decision = node.runtime.folder.join(format!("decision-{}", run.id));
        private::remove(&decision);
        private::create(&decision, OFlags::WRONLY)
            .map_err(|errno| format!("{}: {errno}", decision.display()))?;
        command.env(MARK, &mark).env("FOREBAY_DECISION", &decision);
        let result = match temporary {
            Some((path, name)) => {
                leftover::remove(&path);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let mode = Mode::from_raw_mode(0o644);
                let file = rustix::fs::open(&path, flags | OFlags::CLOEXEC, mode)
                    .map_err(|errno| format!("{}: {errno}", path.display()))?;
                let file = File::from(file);
                let out = file.try_clone().map_err(|error| error.to_string())?;
                command.stdout(out);
                Some((file, (path, name)))
            }
            None => {
                command.stdout(Stdio::null());
                None
            }
        };
        let started = command.spawn().map_err(|error| {
            result.iter().for_each(|(_, (path, _))| leftover::remove(path));
            private::remove(&decision);
            let program = command.get_program().to_string_lossy().into_owned();
            match error.kind() {
                std::io::ErrorKind::NotFound => format!("{program}: there is no such program"),
                _ => format!("{program}: {error}"),
            }
        })?;
        if let Some(stderr) = &started.stderr {
            let _ = rustix::io::ioctl_fionbio(stderr, true);
        }
        Ok(Child {
            id: run.id,
            until: Instant::now() + action.timeout(),
            action,
            event,
            generation: run.generation,
            holds: run.holds,
            changed,
            version,
            process: started,
            mark,
            said: Vec::new(),
            result,
            decision,
            killed: None,
        })
    }

    /// How it has ended, if it has; kills it if it takes too long, or says too much.
    pub fn look(&mut self) -> Option<Ended> {
        self.listen();
        let status = match self.process.try_wait() {
            Ok(status) => status,
            Err(error) => return Some(self.ended(Err(error.to_string()))),
        };
        if let Some(status) = status {
            // What it has left in its group does not go on.
            self.kill_group();
            self.listen();
            return Some(self.ended(Ok(status)));
        }
        let most = self.action.result_max();
        let length = self.result.as_ref().and_then(|(file, _)| file.metadata().ok());
        let why = if Instant::now() >= self.until {
            Some((format!("it was killed after {:?}", self.action.timeout()), true))
        } else if length.is_some_and(|length| length.len() > most) {
            Some((format!("its result is longer than {most} bytes (result_max)"), false))
        } else {
            None
        };
        let why = why?;
        self.killed = Some(why);
        self.stop();
        let status = self.process.wait().map_err(|error| error.to_string());
        Some(self.ended(status))
    }

    fn ended(&mut self, status: Result<ExitStatus, String>) -> Ended {
        let (failure, state) = match (self.killed.take(), status) {
            (Some((why, true)), _) => (Some(why), RunState::TimedOut),
            (Some((why, false)), _) => (Some(why), RunState::Failed),
            (None, Ok(status)) if status.success() => (None, RunState::Done),
            (None, Ok(status))
                if status.code().is_some() && status.code() == self.action.refusal() =>
            {
                let said = self.tail();
                self.clean_up();
                return Ended { failure: Some(said), state: RunState::Refused };
            }
            (None, Ok(status)) => {
                let why = match (status.code(), status.signal()) {
                    (Some(code), _) => format!("it exited with {code}"),
                    (_, Some(signal)) => format!("signal {signal} has ended it"),
                    _ => "it has ended".to_owned(),
                };
                (Some(why), RunState::Failed)
            }
            (None, Err(why)) => (Some(why), RunState::Failed),
        };
        let failure = failure.map(|why| match self.tail() {
            tail if tail.is_empty() => why,
            tail => format!("{why}; it said: {tail}"),
        });
        if failure.is_some() {
            self.clean_up();
        }
        Ended { failure, state }
    }

    /// Removes what it has left in files.
    fn clean_up(&mut self) {
        private::remove(&self.decision);
        if let Some((_, (path, _))) = self.result.take() {
            leftover::remove(&path);
        }
    }

    /// Kills it and all processes that it has started.
    pub fn kill(&mut self) {
        self.stop();
        let _ = self.process.wait();
        self.clean_up();
    }

    fn stop(&self) {
        self.kill_group();
        // Those that have left the group.
        leftover::kill(&self.mark);
    }

    fn kill_group(&self) {
        if let Some(group) = Pid::from_raw(self.process.id() as i32) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }

    /// Takes what it has said on its standard error, as far as that is there, and keeps the end.
    fn listen(&mut self) {
        let Some(stderr) = &mut self.process.stderr else { return };
        let mut part = [0u8; 4096];
        // What never stops must not keep us.
        for _ in 0..64 {
            match stderr.read(&mut part) {
                Ok(0) | Err(_) => break,
                Ok(got) => self.said.extend_from_slice(&part[..got]),
            }
            let surplus = self.said.len().saturating_sub(TAIL_MAX);
            self.said.drain(..surplus);
        }
    }

    fn tail(&self) -> String {
        String::from_utf8_lossy(&self.said).trim().to_owned()
    }

    /// Gives the result its name, once the store durably has it. Where it is, if there is any; one
    /// without a byte is none.
    ///
    /// # Errors
    /// Why that could not be.
    pub fn publish(&mut self) -> Result<Option<PathBuf>, String> {
        let Some((file, (temporary, path))) = self.result.take() else { return Ok(None) };
        let most = self.action.result_max();
        let publish = || -> std::io::Result<bool> {
            let length = file.metadata()?.len();
            if length == 0 {
                return Ok(false);
            }
            if length > most {
                let why = format!("it is longer than {most} bytes (result_max)");
                return Err(std::io::Error::other(why));
            }
            file.sync_all()?;
            crash::point("action.synced");
            std::fs::rename(&temporary, &path)?;
            sync_folder_of(&path);
            Ok(true)
        };
        match publish() {
            Ok(true) => Ok(Some(path)),
            Ok(false) => {
                leftover::remove(&temporary);
                Ok(None)
            }
            Err(error) => {
                leftover::remove(&temporary);
                private::remove(&self.decision);
                Err(format!("its result {}: {error}", path.display()))
            }
        }
    }

    /// What it has said of its file.
    ///
    /// # Errors
    /// That it cannot be read.
    pub fn decision(&self) -> Result<String, String> {
        let file = private::open(&self.decision, OFlags::RDONLY);
        let file = file.map_err(|wrong| wrong.to_string())?;
        let mut text = Vec::new();
        let read = File::from(file).take(DECISION_MAX).read_to_end(&mut text);
        private::remove(&self.decision);
        read.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn command_of(node: &Node, action: &Action, event: &Event) -> Result<Command, String> {
    let words = action.words(event);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::piped());
    if let Some(folder) = event.path.parent() {
        command.current_dir(folder);
    }
    // The service is this process.
    command.env_remove("NOTIFY_SOCKET");
    command.env("FOREBAY_FILE", &event.path).env("FOREBAY_NAME", action.name());
    match event.step {
        Some(step) => command.env("FOREBAY_STEP", step.to_string()),
        None => command.env_remove("FOREBAY_STEP"),
    };
    if action.joins_pool() {
        let library = launch::find_library()?;
        launch::join_pool(&mut command, (&library, &node.config.ways), &node.runtime, None);
    }
    let manager = rustix::process::getpid();
    // SAFETY: only system calls between fork and exec.
    unsafe { command.pre_exec(move || humble(manager)) };
    Ok(command)
}

/// In the child: a session and a group of its own, which die with the thread that started it, and
/// yield to everything else. What cannot be had of the latter is not missed.
fn humble(manager: Pid) -> std::io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before.
    if rustix::process::getppid() != Some(manager) {
        return Err(Errno::SRCH.into());
    }
    let _ = rustix::process::setpriority_process(None, 19);
    // SAFETY: plain system calls with the addresses of locals.
    unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter);
        const PROCESS: libc::c_int = 1;
        const IDLE_CLASS: libc::c_int = 3 << 13;
        libc::syscall(libc::SYS_ioprio_set, PROCESS, 0, IDLE_CLASS);
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(place) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        let _ = rustix::io::write(&place, OOM_SCORE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pool::FileId;
    use forebay_pool::layout::Geometry;
    use forebay_pool::segment::anonymous;

    #[test]
    fn of_a_direct_file_the_store_says_what_it_was() {
        let (segment, _memory) = anonymous(&Geometry::for_tiers(4096, &[64 << 18])).unwrap();
        let record = segment.file(FileId::from_raw(0));
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "all of it").unwrap();
        record.set(FileFlags::DIRECT);
        let version = Version::of(record, &path);
        // It is buffered again, by a record that has learnt its size.
        record.clear(FileFlags::DIRECT);
        record.size.store(9, Ordering::Release);
        assert!(version.is_still(record, &path));
        let buffered = Version::of(record, &path);
        std::fs::write(&path, "more than that").unwrap();
        assert!(!version.is_still(record, &path));
        assert!(buffered.is_still(record, &path));
        record.size.store(14, Ordering::Release);
        assert!(!buffered.is_still(record, &path));
    }
}
