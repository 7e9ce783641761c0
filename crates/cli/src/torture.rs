//! `forebay torture`: workers that verify every byte, on small tiers over a store that fails, while
//! workers, node managers, and now and then everything, are killed.

mod content;
mod counts;
mod faults;
mod log;
mod place;
mod report;
mod shadow;
mod worker;

pub use worker::{WorkerArguments, work};

use clap::Args;
use content::Random;
use counts::{Counts, CountsFile};
use log::Past;
use place::{Place, kill};
use report::Report;
use shadow::{FILES, Shadow};
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Programs at a time.
const WORKERS: u64 = 3;
/// Workers end by themselves so long after the torture's time: if it was killed, nothing goes on.
const GRACE: Duration = Duration::from_secs(300);
/// No command may take longer than this; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// What a recovery says that found slots which somebody was writing when he died. What was acknowledged
/// is on the store all the same, and nothing else can be told from it.
const DAMAGED: &str = "data of an earlier run is lost";

/// Options of `forebay torture`.
#[derive(Args)]
pub struct TortureArguments {
    /// How long, in minutes
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    minutes: f64,
    /// Where to make a temporary directory for store, tiers and workers [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// A trouble to spare the workers, to find out what a loss comes from; can be given several times
    #[arg(long, value_name = "KIND")]
    without: Vec<Kind>,
    /// Repeats the choices of an earlier torture, though not its timing
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// What makes trouble.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Workers are killed
    Workers,
    /// Node managers are killed
    Managers,
    /// Everything is killed at once
    Everything,
    /// Everything is killed, and what is in memory is lost
    Memory,
    /// The store and a tier fail
    Faults,
}

/// `forebay torture`.
pub fn torture(arguments: &TortureArguments) -> Result<ExitCode, String> {
    if !(arguments.minutes > 0.0 && arguments.minutes < 1e6) {
        return Err("--minutes: a number above 0".into());
    }
    let time = Duration::from_secs_f64(arguments.minutes * 60.0);
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = arguments.seed.unwrap_or_else(|| by_clock().as_nanos() as u64 % 1_000_000_000);
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .map_err(|error| format!("setting up signals: {error}"))?;
    }
    let folder = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let place = Place::new(&folder)?;
    eprintln!("forebay: torture with seed {seed} in {}", place.root().display());
    let mut torture = Torture {
        random: Random::new(seed),
        runs: (0..WORKERS).map(|_| None).collect(),
        report: Report::default(),
        since: Instant::now(),
        until: by_clock().saturating_add(time).saturating_add(GRACE).as_secs(),
        place,
        seed,
        time,
        without: arguments.without.clone(),
        interrupted,
    };
    let result = torture.run();
    let killed = torture.place.kill_all(&mut torture.runs);
    torture.gather();
    let Torture { report, place, since, interrupted, .. } = torture;
    if let Err(message) = result.and(killed) {
        place.remove();
        return Err(message);
    }
    eprintln!();
    print!("{}", report.text(seed, since.elapsed()));
    if !report.losses.is_empty() {
        println!("  everything is left in {}", place.root().display());
        return Ok(ExitCode::FAILURE);
    }
    place.remove();
    // One that was cut short may not have come to look.
    if report.intercepted == 0 && !interrupted.load(Ordering::Acquire) {
        return Err("nothing was intercepted: the workers used the store directly".into());
    }
    Ok(ExitCode::SUCCESS)
}

struct Torture {
    place: Place,
    random: Random,
    /// `forebay run` of each worker.
    runs: Vec<Option<Child>>,
    report: Report,
    seed: u64,
    time: Duration,
    since: Instant,
    until: u64,
    without: Vec<Kind>,
    interrupted: Arc<AtomicBool>,
}

impl Torture {
    fn run(&mut self) -> Result<(), String> {
        while self.since.elapsed() < self.time && !self.is_over() {
            self.round()?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        !self.report.losses.is_empty() || self.interrupted.load(Ordering::Relaxed)
    }

    /// Some seconds of work and trouble, an end in peace or not, and a look at the store.
    fn round(&mut self) -> Result<(), String> {
        let _ = std::fs::remove_file(self.place.stop());
        let left = self.time.saturating_sub(self.since.elapsed()).as_millis() as u64;
        let length = (1_500 + self.random.below(6_000)).min(left.max(500));
        let end = Instant::now() + Duration::from_millis(length);
        while Instant::now() < end && !self.is_over() {
            self.start_workers()?;
            let pause = 50 + self.random.below(350);
            self.wait(pause);
            self.trouble()?;
            self.gather();
            self.report.progress(self.since.elapsed());
        }
        if self.is_over() {
            return Ok(());
        }
        match self.random.below(4) {
            0 if !self.without.contains(&Kind::Everything) => {
                self.place.kill_all(&mut self.runs)?;
                self.report.all_killed += 1;
                self.calm()?;
            }
            1 if !self.without.contains(&Kind::Memory) => {
                self.place.kill_all(&mut self.runs)?;
                self.place.lose_memory()?;
                self.report.memory_lost += 1;
                self.calm()?;
                self.recover(&[DAMAGED])?;
                self.gather();
                return self.survive();
            }
            _ => {
                self.calm()?;
                self.end_in_peace()?;
            }
        }
        if !self.place.pools().is_empty() {
            self.recover(&[])?;
        }
        self.gather();
        self.compare()
    }

    fn wait(&self, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end && !self.is_over() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts the workers that do not run.
    fn start_workers(&mut self) -> Result<(), String> {
        for worker in 0..WORKERS {
            let run = &mut self.runs[worker as usize];
            let ended = match run {
                None => true,
                Some(child) => match child.try_wait() {
                    Ok(Some(status)) => {
                        self.report.kept += u64::from(status.code() == Some(crate::FAILED.into()));
                        true
                    }
                    _ => false,
                },
            };
            // A worker whose `forebay run` was killed may still be there.
            if ended && self.place.worker(worker).is_none() && !self.lost(worker) {
                let run = self.place.start_worker(worker, self.seed, self.until)?;
                self.runs[worker as usize] = Some(run);
            }
        }
        Ok(())
    }

    fn lost(&self, worker: u64) -> bool {
        self.place.of_worker(worker).join("loss").exists()
    }

    /// Something goes wrong.
    fn trouble(&mut self) -> Result<(), String> {
        match self.random.below(10) {
            0 | 1 if !self.without.contains(&Kind::Workers) => {
                let worker = self.random.below(WORKERS);
                if let Some(pid) = self.place.worker(worker) {
                    // With its `forebay run`, now and then.
                    if self.random.one_in(4)
                        && let Some(run) = &mut self.runs[worker as usize]
                    {
                        let _ = run.kill();
                    }
                    kill(pid);
                    self.report.workers_killed += 1;
                }
            }
            2 | 3 if !self.without.contains(&Kind::Managers) => {
                if let Some((manager, _)) = self.place.manager() {
                    kill(manager);
                    self.report.managers_killed += 1;
                }
            }
            4 | 5 if !self.without.contains(&Kind::Faults) => {
                let script = faults::script(&mut self.random);
                self.report.scripts += 1;
                self.set_faults(&script)?;
            }
            6 | 7 => self.calm()?,
            _ => {}
        }
        Ok(())
    }

    fn set_faults(&self, script: &str) -> Result<(), String> {
        // In one step: a manager reads it whenever it has changed.
        let (fresh, path) = (self.place.root().join("faults-new"), self.place.faults());
        std::fs::write(&fresh, script)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// No more faults.
    fn calm(&self) -> Result<(), String> {
        self.set_faults("")
    }

    /// Lets all workers end and their files drain.
    fn end_in_peace(&mut self) -> Result<(), String> {
        std::fs::write(self.place.stop(), "")
            .map_err(|error| format!("{}: {error}", self.place.stop().display()))?;
        let since = Instant::now();
        for worker in 0..WORKERS as usize {
            let Some(mut child) = self.runs[worker].take() else { continue };
            let status = self.await_end(&mut child, since)?;
            self.report.kept += u64::from(status == Some(crate::FAILED.into()));
            if status.is_none() {
                self.report.losses.push(format!("the run of worker {worker} hangs"));
            }
        }
        Ok(())
    }

    /// The exit code of a command, -1 for a signal; `None` if it hangs.
    fn await_end(&self, child: &mut Child, since: Instant) -> Result<Option<i32>, String> {
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(Some(status.code().unwrap_or(-1))),
                Ok(None) if since.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(None);
                }
                Ok(None) if self.interrupted.load(Ordering::Relaxed) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(Some(0));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(format!("waiting for a command: {error}")),
            }
        }
    }

    /// Drains whatever is left. It may fail with a message that says one of `excuses`.
    fn recover(&mut self, excuses: &[&str]) -> Result<(), String> {
        self.report.recoveries += 1;
        let before = std::fs::metadata(self.place.root().join("recover"));
        let before = before.map_or(0, |found| found.len() as usize);
        let mut child = self.place.start("recover", &["recover".to_owned()])?;
        match self.await_end(&mut child, Instant::now())? {
            Some(0) => {}
            Some(code) => {
                let said = std::fs::read_to_string(self.place.root().join("recover"));
                let said = said.unwrap_or_default();
                let now = said.get(before..).unwrap_or_default();
                if excuses.iter().any(|excuse| now.contains(excuse)) {
                    return self.place.remove_lost();
                }
                let last = said.lines().rev().take(5).collect::<Vec<_>>().join("; ");
                self.report.losses.push(format!("recover ended with {code}: {last}"));
            }
            None => self.report.losses.push("recover hangs".into()),
        }
        Ok(())
    }

    /// Compares the store, without Forebay, with what all workers have written.
    fn compare(&mut self) -> Result<(), String> {
        if self.is_over() {
            return Ok(());
        }
        let explain = |error: std::io::Error| format!("looking at the store: {error}");
        let store = self.place.store();
        let mut acks = Vec::new();
        for worker in 0..WORKERS {
            let folder = self.place.of_worker(worker);
            let shadow = Shadow::open(&folder, &store, self.seed, worker).map_err(explain)?;
            let mut found: Vec<String> = shadow.settle().map_err(explain)?.into_iter().collect();
            for file in 0..FILES {
                let (bytes, wrong) = shadow.verify(file).map_err(explain)?;
                self.report.compared += bytes;
                if wrong.is_none() {
                    // Nothing of it is in memory any more.
                    shadow.synced(file).map_err(explain)?;
                }
                found.extend(wrong);
            }
            self.report.losses.extend(found.iter().map(|what| format!("on the store: {what}")));
            acks.push(self.acks(worker));
        }
        self.compare_log(&acks, Past::Whole);
        Ok(())
    }

    /// What a worker knows of its records in the log.
    fn acks(&self, worker: u64) -> Vec<u8> {
        std::fs::read(self.place.of_worker(worker).join("acks")).unwrap_or_default()
    }

    fn compare_log(&mut self, acks: &[Vec<u8>], past: Past) {
        match log::verify(&self.place.store(), acks, past) {
            Ok(bytes) => self.report.compared += bytes,
            Err(wrong) => self.report.losses.push(format!("on the store: {wrong}")),
        }
    }

    /// Compares the store, after memory was lost, with what syncs have acknowledged. Workers go on with
    /// what is there, and with a new log.
    fn survive(&mut self) -> Result<(), String> {
        if self.is_over() {
            return Ok(());
        }
        let explain = |error: std::io::Error| format!("looking at the store: {error}");
        let store = self.place.store();
        for worker in 0..WORKERS {
            let folder = self.place.of_worker(worker);
            let shadow = Shadow::open(&folder, &store, self.seed, worker).map_err(explain)?;
            shadow.settle_names().map_err(explain)?;
            for file in 0..FILES {
                let (bytes, wrong) = shadow.survive(file).map_err(explain)?;
                self.report.compared += bytes;
                let found = wrong.map(|what| format!("after a loss of memory: {what}"));
                self.report.losses.extend(found);
            }
            shadow.forget_intent().map_err(explain)?;
        }
        let acks: Vec<_> = (0..WORKERS).map(|worker| self.acks(worker)).collect();
        self.compare_log(&acks, Past::Lost);
        if !self.is_over() {
            let kept = (0..WORKERS).map(|worker| self.place.of_worker(worker).join("acks"));
            for path in kept.chain([log::path(&store)]).filter(|path| path.exists()) {
                std::fs::remove_file(path).map_err(explain)?;
            }
        }
        Ok(())
    }

    /// Sums what the workers have counted, and takes over what they found wrong.
    fn gather(&mut self) {
        let mut sum = Counts::default();
        for worker in 0..WORKERS {
            let folder = self.place.of_worker(worker);
            let counts = CountsFile::open(&folder).and_then(|file| file.read());
            let counts = counts.unwrap_or_default();
            sum.operations += counts.operations;
            sum.written += counts.written;
            sum.verified += counts.verified;
            sum.errors += counts.errors;
            if let Ok(loss) = std::fs::read_to_string(folder.join("loss"))
                && !self.report.losses.contains(&loss)
            {
                self.report.losses.push(loss);
            }
        }
        self.report.counts = sum;
        if let Some((_, intercepted)) = self.place.manager() {
            self.report.intercepted = self.report.intercepted.max(intercepted);
        }
    }
}
