//! Another user of the same machine, which tries to read, to change and to block what is not its
//! own: only as root can a torture become that user.

use super::counts::{Words, WordsFile};
use super::worker::WorkerArguments;
use forebay_placement::Random;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Gid, Pid, Signal, Uid};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The user id of `nobody`, everywhere.
const NOBODY: u32 = 65_534;

/// What it has tried, all of it in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Files and folders that it tried to open, to change or to remove.
    pub opens: u64,
    /// Files that it put where ours are to be.
    pub plants: u64,
    /// Locks that it held on what every user may open.
    pub locks: u64,
    /// Sockets that it tried to connect to.
    pub connections: u64,
    /// Processes into which it tried to look, and to signal.
    pub processes: u64,
}

impl Attempts {
    /// All of them.
    pub fn count(&self) -> u64 {
        self.words().iter().sum()
    }
}

impl Words for Attempts {
    const COUNT: usize = 5;

    fn words(&self) -> Vec<u64> {
        vec![self.opens, self.plants, self.locks, self.connections, self.processes]
    }

    fn of(words: &[u64]) -> Attempts {
        let [opens, plants, locks, connections, processes] = [0, 1, 2, 3, 4].map(|at| words[at]);
        Attempts { opens, plants, locks, connections, processes }
    }
}

/// Whether a torture can have one.
pub fn can_be() -> bool {
    rustix::process::geteuid().is_root()
}

struct OtherUser {
    place: PathBuf,
    random: Random,
    attempts: Attempts,
    file: WordsFile,
    breach: File,
}

/// Tries until it is killed, or the torture's time is over.
pub fn lurk(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let explain = |error: std::io::Error| format!("the other user: {error}");
    let place = arguments.place.clone();
    let file = WordsFile::open(&place.join("attempts")).map_err(explain)?;
    let attempts: Attempts = file.read().map_err(explain)?;
    let breach = File::options().append(true).create(true).open(place.join("breach"));
    let breach = breach.map_err(explain)?;
    become_nobody().map_err(|errno| explain(errno.into()))?;
    let random = Random::new(arguments.seed ^ attempts.count());
    let mut other_user = OtherUser { place, random, attempts, file, breach };
    let until = UNIX_EPOCH + Duration::from_secs(arguments.until);
    while SystemTime::now() < until && rustix::process::getppid() != Some(Pid::INIT) {
        for what in other_user.round() {
            other_user.breach.write_all(format!("{what}\n").as_bytes()).map_err(explain)?;
        }
        other_user.file.keep(&other_user.attempts).map_err(explain)?;
        let pause = Duration::from_millis(other_user.random.below(30));
        std::thread::sleep(pause);
    }
    Ok(ExitCode::SUCCESS)
}

fn become_nobody() -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    // This process has one thread.
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // Not before: it does not outlive a change of the user.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::umask(Mode::empty());
    Ok(())
}

impl OtherUser {
    /// Tries one thing; what it got that is not its own.
    fn round(&mut self) -> Vec<String> {
        match self.random.below(8) {
            0..3 => self.open_everything(),
            3 | 4 => self.plant(),
            5 => self.lock(),
            6 => self.connect(),
            _ => self.look_into_processes(),
        }
    }

    fn folders(&self) -> [PathBuf; 3] {
        ["/dev/shm".into(), self.place.join("nvme"), self.place.join("run")]
    }

    fn open_everything(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in self.folders() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(_) => {
                    self.attempts.opens += 1;
                    continue;
                }
            };
            if folder.ends_with("run") {
                found.push(format!("another user can list {}", folder.display()));
            }
            for path in entries.flatten().map(|entry| entry.path()) {
                // A torture in /dev/shm has folders there that any user may list.
                let is_ours = fs::symlink_metadata(&path)
                    .is_ok_and(|found| found.uid() == 0 && !found.is_dir());
                if is_ours && is_buffer(&path) {
                    self.attempts.opens += 1;
                    found.extend(reach(&path));
                }
            }
        }
        found
    }

    /// Puts an empty file, open to all, where one of ours was and will be.
    fn plant(&mut self) -> Vec<String> {
        let names = fs::read_to_string(self.place.join("names")).unwrap_or_default();
        let names: Vec<_> = names.lines().map(PathBuf::from).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let path = &names[self.random.below(names.len() as u64) as usize];
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o666);
        let Ok(mut planted) = options.open(path) else { return Vec::new() };
        self.attempts.plants += 1;
        std::thread::sleep(Duration::from_millis(20 + self.random.below(100)));
        let mut bytes = Vec::new();
        let _ = (&mut planted).take(1 << 20).read_to_end(&mut bytes);
        let is_used = planted.metadata().is_ok_and(|now| now.len() > 0) || !bytes.is_empty();
        let same = |found: fs::Metadata| {
            planted
                .metadata()
                .is_ok_and(|ours| (ours.dev(), ours.ino()) == (found.dev(), found.ino()))
        };
        if fs::symlink_metadata(path).is_ok_and(same) {
            let _ = fs::remove_file(path);
        }
        is_used
            .then(|| format!("a file that another user planted as {} was used", path.display()))
            .into_iter()
            .collect()
    }

    /// Holds locks on everything that it may open, for a moment.
    fn lock(&mut self) -> Vec<String> {
        let store = self.place.join("store");
        let paths = [PathBuf::from("/"), store, self.place.join("nvme"), "/dev/shm".into()];
        let mut held = Vec::new();
        for path in paths {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let Ok(opened) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
            let flock = rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive);
            let record = rustix::fs::fcntl_lock(&opened, FlockOperation::NonBlockingLockShared);
            self.attempts.locks += u64::from(flock.is_ok()) + u64::from(record.is_ok());
            held.push(opened);
        }
        std::thread::sleep(Duration::from_millis(10 + self.random.below(100)));
        Vec::new()
    }

    fn connect(&mut self) -> Vec<String> {
        let mark = self.place.display().to_string();
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let mut paths: Vec<_> =
            sockets.lines().filter_map(|line| line.split(' ').next_back()).collect();
        paths.retain(|path| path.starts_with(&mark));
        paths.sort_unstable();
        paths.dedup();
        let mut found = Vec::new();
        for path in paths {
            self.attempts.connections += 1;
            let Ok(mut socket) = UnixStream::connect(path) else { continue };
            let _ = socket.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = socket.write_all(&[1; 64]);
            if matches!(socket.read(&mut [0; 64]), Ok(1..)) {
                found.push(format!("{path} has answered another user"));
            }
        }
        found
    }

    fn look_into_processes(&mut self) -> Vec<String> {
        let mark = self.place.display().to_string();
        let mut found = Vec::new();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        for entry in all {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let said = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_ours = entry.metadata().is_ok_and(|found| found.uid() == 0)
                && String::from_utf8_lossy(&said).contains(&mark);
            if !is_ours {
                continue;
            }
            self.attempts.processes += 1;
            let is_open = File::open(entry.path().join("mem")).is_ok()
                || File::open(entry.path().join("environ")).is_ok()
                || fs::read_dir(entry.path().join("fd")).is_ok();
            let is_signalled = Pid::from_raw(pid)
                .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
            if is_open || is_signalled {
                found.push(format!("another user gets into process {pid}"));
            }
        }
        found
    }
}

/// Whether a file of this name holds, or leads to, what is buffered.
fn is_buffer(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("forebay"))
}

/// The ways in which another user's file can be got at.
fn reach(path: &Path) -> Vec<String> {
    let open = |flags: OFlags| {
        rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).is_ok()
    };
    let gone = path.with_extension("stolen");
    let ways = [
        ("read", open(OFlags::RDONLY)),
        ("write", open(OFlags::WRONLY)),
        ("write", open(OFlags::RDWR)),
        ("rename", fs::rename(path, &gone).is_ok()),
        ("remove", fs::remove_file(path).is_ok()),
    ];
    let possible = ways.iter().filter(|(_, is_possible)| *is_possible);
    possible.map(|(way, _)| format!("another user can {way} {}", path.display())).collect()
}
