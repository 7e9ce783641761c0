//! Where the torture takes place: a managed directory, tiers, and everything else that goes when it ends.

use forebay_node::status::Observer;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Small tiers, so that everything moves and is evicted all the time.
const CONFIG: &str = "[flush]
trigger = \"periodic\"
period = \"100ms\"
[[backing]]
path = \"store\"
[[tier]]
name = \"ram\"
kind = \"ram\"
capacity = \"8MiB\"
[[tier]]
name = \"nvme\"
kind = \"file\"
path = \"nvme\"
capacity = \"16MiB\"
[[rule]]
name = \"journal\"
path = \"*-file-[024]\"
durability = \"nonvolatile\"
";

/// The temporary directory of a torture.
pub struct Place {
    root: PathBuf,
    program: PathBuf,
}

impl Place {
    /// Makes it below `folder`.
    ///
    /// # Errors
    /// A message that names what could not be made.
    pub fn new(folder: &Path) -> Result<Place, String> {
        let explain = |error: std::io::Error| format!("{}: {error}", folder.display());
        let folder = folder.canonicalize().map_err(explain)?;
        let root = folder.join(format!("forebay-torture-{}", std::process::id()));
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path).map_err(explain);
        make(&root)?;
        let place = Place { root, program: std::env::current_exe().map_err(explain)? };
        for folder in [place.store(), place.root.join("nvme"), place.runtime()] {
            make(&folder)?;
        }
        fs::write(place.config(), CONFIG).map_err(explain)?;
        Ok(place)
    }

    /// The directory that holds everything else.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The managed directory.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// What a worker keeps.
    pub fn of_worker(&self, worker: u64) -> PathBuf {
        self.root.join(format!("worker-{worker}"))
    }

    /// The script of faults.
    pub fn faults(&self) -> PathBuf {
        self.root.join("faults")
    }

    /// Tells workers to end as long as it is there.
    pub fn stop(&self) -> PathBuf {
        self.root.join("stop")
    }

    fn runtime(&self) -> PathBuf {
        self.root.join("run")
    }

    fn config(&self) -> PathBuf {
        self.root.join("forebay.toml")
    }

    /// Starts `forebay` in a process group of its own; what it says goes to a file `name`.
    ///
    /// # Errors
    /// A message that names what went wrong.
    pub fn start(&self, name: &str, words: &[String]) -> Result<Child, String> {
        let explain = |error: std::io::Error| format!("{name}: {error}");
        let options =
            |append| File::options().create(true).append(append).open(self.root.join(name));
        let said = options(true).map_err(explain)?;
        Command::new(&self.program)
            .args(words)
            .env("FOREBAY_RUNTIME_DIR", self.runtime())
            .env("FOREBAY_FAULTS", self.faults())
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
    pub fn start_worker(&self, worker: u64, seed: u64, until: u64) -> Result<Child, String> {
        let text = |path: &Path| path.display().to_string();
        let words = [
            "run".to_owned(),
            "--config".to_owned(),
            text(&self.config()),
            "--".to_owned(),
            text(&self.program),
            "torture-worker".to_owned(),
            format!("--place={}", text(&self.root)),
            format!("--number={worker}"),
            format!("--seed={seed}"),
            format!("--until={until}"),
        ];
        self.start(&format!("run-{worker}"), &words)
    }

    /// The pools of this place.
    pub fn pools(&self) -> Vec<PathBuf> {
        let uid = rustix::process::getuid().as_raw();
        let entries = fs::read_dir(self.runtime()).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| PathBuf::from(format!("/dev/shm/forebay-{uid}-{name}.pool")))
            .filter(|pool| pool.exists())
            .collect()
    }

    /// What is in memory is gone, as after a reboot.
    ///
    /// # Errors
    /// A message that names what could not be removed.
    pub fn lose_memory(&self) -> Result<(), String> {
        self.pools().iter().try_for_each(|pool| remove(pool))
    }

    /// Removes what a recovery has set aside because a part of it was damaged.
    ///
    /// # Errors
    /// A message that names what could not be removed.
    pub fn remove_lost(&self) -> Result<(), String> {
        let entries = fs::read_dir(self.root.join("nvme")).into_iter().flatten().flatten();
        let mut aside = entries.map(|entry| entry.path());
        aside.try_for_each(|path| match path.to_string_lossy().contains(".lost") {
            true => remove(&path),
            false => Ok(()),
        })
    }

    /// The node manager, if one serves, and how much was intercepted since its pool was made: opens
    /// and writes.
    pub fn manager(&self) -> Option<(u32, u64)> {
        let observer = Observer::of(self.pools().first()?).ok()?;
        let counters = observer.counters();
        let wanted = ["opens", "writes"];
        let count = counters.iter().filter(|(name, _)| wanted.contains(name)).map(|(_, n)| n);
        observer.is_served().then(|| (observer.manager(), count.sum()))
    }

    /// The worker's process, if it lives.
    pub fn worker(&self, worker: u64) -> Option<u32> {
        let pid = fs::read_to_string(self.of_worker(worker).join("pid")).ok()?.parse().ok()?;
        self.processes().contains(&pid).then_some(pid)
    }

    /// All processes that were started here, known by their environment.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("FOREBAY_RUNTIME_DIR={}\0", self.runtime().display());
        let mark = mark.as_bytes();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|window| window == mark)
        })
        .collect()
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
            if found.is_empty() {
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
        for pool in self.pools() {
            let _ = fs::remove_file(pool);
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn remove(path: &Path) -> Result<(), String> {
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Kills a process that was started here.
pub fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
