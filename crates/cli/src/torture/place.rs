//! Where the torture takes place: a managed directory, tiers, and everything else that goes when it
//! ends.

use super::points;
use crate::task::task_flags;
use forebay_node::status::Observer;
use forebay_pool::liveness;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long processes are waited for of which it cannot be told whether they were started here.
const UNREADABLE: Duration = Duration::from_secs(2);

/// How large the tiers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiers {
    /// Small, so that everything moves and is evicted all the time.
    Busy,
    /// As small as can be, less than the programs' files: what is written waits for room, or goes
    /// around them.
    Full,
    /// Enough RAM for everything: programs keep some of it at hand.
    Wide,
}

fn config(tiers: Tiers) -> String {
    let (ram, nvme) = match tiers {
        Tiers::Busy => (8, 16),
        Tiers::Full => (4, 4),
        Tiers::Wide => (32, 32),
    };
    format!(
        "[flush]
trigger = \"periodic\"
period = \"100ms\"
[placement]
give_back = \"200ms\"
[[backing]]
path = \"store\"
small_files = \"buffer\"
[[tier]]
name = \"ram\"
kind = \"ram\"
capacity = \"{ram}MiB\"
[[tier]]
name = \"nvme\"
kind = \"file\"
path = \"nvme\"
capacity = \"{nvme}MiB\"
[[rule]]
name = \"journal\"
path = \"*-file-[024]\"
durability = \"nonvolatile\"
[[rule]]
name = \"staged\"
path = \"*-file-[13]\"
mode = \"staged\"
tier = \"nvme\"
"
    )
}

/// A node manager that serves.
#[derive(Clone, Copy, Debug)]
pub struct Manager {
    /// Its process.
    pub pid: u32,
    /// Bytes that are not yet on the store.
    pub dirty: u64,
    /// How often a write waited for room since its pool was made, or went around the tiers.
    pub crowded: u64,
}

/// The temporary directory of a torture.
pub struct Place {
    root: PathBuf,
    program: PathBuf,
    /// Whether node managers from now on look for faults to inject: then programs leave to them
    /// what they would write to the store themselves.
    pub injects: bool,
}

impl Place {
    /// Makes it below `folder`; if it `is_shared`, other users can come to the store's and the
    /// tier's folders, as in a cluster's scratch directory.
    ///
    /// # Errors
    /// A message that names what could not be made.
    pub fn new(folder: &Path, is_shared: bool) -> Result<Place, String> {
        let explain = |error: std::io::Error| format!("{}: {error}", folder.display());
        let folder = folder.canonicalize().map_err(explain)?;
        let root = folder.join(format!("forebay-torture-{}", std::process::id()));
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path).map_err(explain);
        make(&root)?;
        let place =
            Place { root, program: std::env::current_exe().map_err(explain)?, injects: false };
        for folder in [place.store(), place.tier(), place.runtime()] {
            make(&folder)?;
        }
        if is_shared {
            let folders = [(&place.root, 0o755), (&place.store(), 0o755), (&place.tier(), 0o1777)];
            for (folder, mode) in folders {
                fs::set_permissions(folder, fs::Permissions::from_mode(mode)).map_err(explain)?;
            }
        }
        place.configure(Tiers::Busy)?;
        Ok(place)
    }

    /// From the next node manager on the tiers are so large.
    ///
    /// # Errors
    /// A message that names the file that could not be written.
    pub fn configure(&self, tiers: Tiers) -> Result<(), String> {
        let path = self.config();
        fs::write(&path, config(tiers)).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// One that is there.
    ///
    /// # Errors
    /// If this program cannot be found.
    pub fn found(root: &Path) -> std::io::Result<Place> {
        Ok(Place { root: root.to_owned(), program: std::env::current_exe()?, injects: false })
    }

    /// The directory that holds everything else.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The managed directory.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The file tier's folder.
    pub fn tier(&self) -> PathBuf {
        self.root.join("nvme")
    }

    /// What a worker keeps.
    pub fn of_worker(&self, worker: u64) -> PathBuf {
        self.root.join(format!("worker-{worker}"))
    }

    /// The script of faults.
    pub fn faults(&self) -> PathBuf {
        self.root.join("faults")
    }

    /// Faults that have hit.
    pub fn hits(&self) -> PathBuf {
        self.root.join("hits")
    }

    /// Points at which no process has paused so far.
    pub fn missed(&self) -> PathBuf {
        self.root.join("missed")
    }

    /// Tells keepers that what their programs were to do at a point has happened.
    pub fn aimed(&self) -> PathBuf {
        self.root.join("aimed")
    }

    /// Tells workers to end as long as it is there.
    pub fn stop(&self) -> PathBuf {
        self.root.join("stop")
    }

    fn runtime(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("forebay.toml")
    }

    /// Starts `forebay` in a process group of its own; what it says goes to a file `name`.
    ///
    /// # Errors
    /// A message that names what went wrong.
    pub fn start(
        &self,
        name: &str,
        words: &[String],
        environment: &[(&'static str, String)],
    ) -> Result<Child, String> {
        let explain = |error: std::io::Error| format!("{name}: {error}");
        let options =
            |append| File::options().create(true).append(append).open(self.root.join(name));
        let said = options(true).map_err(explain)?;
        Command::new(&self.program)
            .args(words)
            .env("FOREBAY_RUNTIME_DIR", self.runtime())
            .envs(self.injects.then(|| ("FOREBAY_FAULTS", self.faults())))
            .env("FOREBAY_FAULTS_LOG", self.hits())
            .envs(points::BUILT.then(|| ("FOREBAY_TIME_SCALE", points::TIME_SCALE.to_string())))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .stdout(said.try_clone().map_err(explain)?)
            .stderr(said)
            .process_group(0)
            .spawn()
            .map_err(explain)
    }

    /// Starts `forebay run` of a worker.
    ///
    /// # Errors
    /// Those of [`Place::start`].
    pub fn start_worker(
        &self,
        worker: u64,
        words: &[String],
        environment: &[(&'static str, String)],
    ) -> Result<Child, String> {
        let text = |path: &Path| path.display().to_string();
        let mut all = vec![
            "run".to_owned(),
            "--config".to_owned(),
            text(&self.config()),
            "--".to_owned(),
            text(&self.program),
            "torture-worker".to_owned(),
            format!("--place={}", text(&self.root)),
            format!("--number={worker}"),
        ];
        all.extend_from_slice(words);
        self.start(&format!("run-{worker}"), &all, environment)
    }

    /// The pools of this place. Where another user has taken a pool's usual name, a number follows
    /// that.
    pub fn pools(&self) -> Vec<PathBuf> {
        let uid = rustix::process::getuid().as_raw();
        let is_ours =
            |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == uid);
        self.named_as_pools().into_iter().filter(is_ours).collect()
    }

    /// These, and what the other user has planted under such names.
    fn named_as_pools(&self) -> Vec<PathBuf> {
        let uid = rustix::process::getuid().as_raw();
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names.collect::<Vec<_>>()
        };
        // A manager that was killed while it ended has left its pool, but of its folder only the
        // log.
        let of_log =
            |name: &str| Some(name.strip_prefix("last-")?.strip_suffix(".log")?.to_owned());
        let instances =
            names(&self.runtime()).into_iter().map(|name| of_log(&name).unwrap_or(name));
        let stems: Vec<_> = instances.map(|name| format!("forebay-{uid}-{name}")).collect();
        let shm = Path::new("/dev/shm");
        names(shm)
            .into_iter()
            .filter(|name| name.ends_with(".pool"))
            .filter(|name| stems.iter().any(|stem| name.starts_with(stem)))
            .map(|name| shm.join(name))
            .collect()
    }

    /// What is in memory is gone, as after a reboot.
    ///
    /// # Errors
    /// A message that names what could not be removed.
    pub fn lose_memory(&self) -> Result<(), String> {
        self.keep_tier()?;
        self.pools().iter().try_for_each(|pool| remove(pool))
    }

    /// Keeps what the tier has, which a recovery removes, until the next loss: what is wrong
    /// afterwards is explained by it.
    fn keep_tier(&self) -> Result<(), String> {
        let kept = self.root().join("tier-before-recovery");
        let _ = fs::remove_dir_all(&kept);
        copy_all(&self.tier(), &kept).map_err(|error| format!("{}: {error}", kept.display()))
    }

    /// Removes what a recovery has kept because a part of it was damaged.
    ///
    /// # Errors
    /// A message that names what could not be removed.
    pub fn remove_lost(&self) -> Result<(), String> {
        let entries = fs::read_dir(self.tier()).into_iter().flatten().flatten();
        let mut kept = entries.map(|entry| entry.path());
        kept.try_for_each(|path| match path.to_string_lossy().contains(".lost") {
            true => remove(&path),
            false => Ok(()),
        })
    }

    /// Opens and writes that were intercepted since the pool was made, whether a node manager
    /// serves it or not.
    pub fn intercepted(&self) -> u64 {
        let observer = self.pools().first().and_then(|pool| Observer::of(pool).ok());
        let counters = observer.map(|observer| observer.counters()).unwrap_or_default();
        let wanted = counters.iter().filter(|count| ["opens", "writes"].contains(&count.name));
        wanted.map(|count| count.value).sum()
    }

    /// The node manager, if one serves.
    pub fn manager(&self) -> Option<Manager> {
        let observer = Observer::of(self.pools().first()?).ok()?;
        let counters = observer.counters();
        let sum = |wanted: [&str; 2]| {
            let counters = counters.iter().filter(|count| wanted.contains(&count.name));
            counters.map(|count| count.value).sum()
        };
        observer.is_served().then(|| Manager {
            pid: observer.manager(),
            dirty: observer.dirty(),
            crowded: sum(["backpressure", "write_around"]),
        })
    }

    /// The keeper of a worker, if it lives, and its program.
    pub fn keeper(&self, worker: u64) -> Option<(u32, Option<u32>)> {
        let folder = self.of_worker(worker);
        let pid = |name| fs::read_to_string(folder.join(name)).ok()?.parse().ok();
        let (keeper, program) = (pid("keeper")?, pid("pid"));
        let is_here = |pid: &u32| self.is_of_here(*pid);
        is_here(&keeper).then(|| (keeper, program.filter(is_here)))
    }

    fn is_of_here(&self, pid: u32) -> bool {
        let mark = format!("FOREBAY_RUNTIME_DIR={}\0", self.runtime().display());
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    }

    /// All processes that were started here, known by their environment.
    pub fn processes(&self) -> Vec<u32> {
        all_processes().filter(|&pid| self.is_of_here(pid)).collect()
    }

    /// Kills everything that was started here.
    ///
    /// # Errors
    /// If something does not die.
    pub fn kill_all(&self, children: &mut [Option<Child>]) -> Result<(), String> {
        let since = Instant::now();
        loop {
            let found = self.processes();
            found.iter().for_each(|&pid| kill(pid));
            for child in children.iter_mut().flatten() {
                let _ = child.try_wait();
            }
            if found.is_empty() && (unreadable() == 0 || since.elapsed() > UNREADABLE) {
                break;
            }
            if since.elapsed() > Duration::from_secs(60) {
                return Err(format!("processes {found:?} do not die"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for child in children {
            if let Some(mut child) = child.take() {
                let _ = child.wait();
            }
        }
        Ok(())
    }

    /// Removes everything: nothing runs here any more.
    pub fn remove(&self) {
        for path in self.named_as_pools() {
            // It may be a folder that was planted.
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Copies a folder with all that is in it.
fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_all(&entry.path(), &copy)?,
            false => fs::copy(entry.path(), copy).map(drop)?,
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), String> {
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Processes younger than this one whose environment cannot be read: they execute a program at this
/// moment, or end, though threads of theirs may still be within system calls.
fn unreadable() -> usize {
    /// The kernel's flag of its own threads.
    const KERNEL: u64 = 0x20_0000;
    let began = liveness::start_time(std::process::id());
    let is_unreadable = |pid: u32| {
        task_flags(pid).is_some_and(|flags| flags & KERNEL == 0)
            && liveness::start_time(pid).is_some_and(|start| Some(start) >= began)
            && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| text.is_empty())
    };
    all_processes().filter(|&pid| is_unreadable(pid)).count()
}

/// All processes of the machine that can be seen.
fn all_processes() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// Kills a process that was started here.
pub fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Sends a signal to a process that was started here. Whether it was alive until then.
pub fn send(pid: u32, signal: Signal) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // Not by its number: that may be another's by now.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_alive = matches!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)), Ok(0));
    is_alive && pidfd_send_signal(&process, signal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_memory_keeps_what_the_tier_had_then() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), false).unwrap();
        // What a program without Forebay has removed lies in a folder.
        let removed = place.tier().join("forebay-1.removed");
        fs::create_dir(&removed).unwrap();
        fs::write(removed.join("file"), "bytes").unwrap();
        fs::write(place.tier().join("journal"), "records").unwrap();
        place.lose_memory().unwrap();
        fs::remove_dir_all(&removed).unwrap();
        let kept = place.root().join("tier-before-recovery");
        assert_eq!(fs::read(kept.join("forebay-1.removed/file")).unwrap(), b"bytes");
        place.lose_memory().unwrap();
        assert!(kept.join("journal").exists() && !kept.join("forebay-1.removed").exists());
    }
}
