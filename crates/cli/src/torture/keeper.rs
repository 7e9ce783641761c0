//! What `forebay run` runs in a torture: it starts one program after the other, stops, kills and
//! buries them, and knows from their status which kill has hit.

use super::counts::{Fates, WordsFile};
use super::place::Place;
use super::worker::WorkerArguments;
use super::{aims, points};
use forebay_placement::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// Bytes of notes of what happened to programs, before they begin anew.
const LIVES_MAX: u64 = 64 << 10;

/// What is to happen to a program.
#[derive(Default)]
struct Fate {
    /// Kill it after so long.
    kill_after: Option<Duration>,
    /// Stop it after so long, for so long.
    freeze: Option<(Duration, Duration)>,
    /// It is to kill itself at a point, and to say there at which.
    mark: Option<PathBuf>,
    environment: Vec<(&'static str, String)>,
}

struct Keeper {
    arguments: WorkerArguments,
    random: Random,
    fates: Fates,
    file: WordsFile,
}

/// Keeps programs going until the torture ends.
pub fn keep(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let folder = arguments.folder();
    let explain = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(explain)?;
    std::fs::write(folder.join("keeper"), std::process::id().to_string()).map_err(explain)?;
    let file = WordsFile::open(&folder.join("fates")).map_err(explain)?;
    let fates: Fates = file.read().map_err(explain)?;
    let life = Random::new(arguments.number << 32 ^ fates.started).next_u64();
    let random = Random::new(arguments.seed ^ life);
    let mut keeper = Keeper { arguments: arguments.clone(), random, fates, file };
    while !arguments.is_over() {
        keeper.one().map_err(explain)??;
    }
    Ok(ExitCode::SUCCESS)
}

impl Keeper {
    fn may(&self, what: &str) -> bool {
        self.arguments.trouble.iter().any(|trouble| trouble == what)
    }

    /// One program, from start to end.
    fn one(&mut self) -> std::io::Result<Result<(), String>> {
        let fate = self.fate();
        self.fates.started += 1;
        self.file.keep(&self.fates)?;
        let WorkerArguments { place, number, seed, until, .. } = &self.arguments;
        let operations = if self.random.one_in(6) { 2000 } else { 20 + self.random.below(400) };
        let mut child = Command::new(std::env::current_exe()?)
            .arg("torture-worker")
            .arg(format!("--place={}", place.display()))
            .arg(format!("--number={number}"))
            .arg(format!("--seed={seed}"))
            .arg(format!("--until={until}"))
            .arg(format!("--operations={operations}"))
            .arg(format!("--life={}", self.fates.started))
            .arg(format!("--keeper={}", std::process::id()))
            .args(self.arguments.often.iter().map(|index| format!("--often={index}")))
            .envs(fate.environment.iter().map(|(name, value)| (name, value)))
            .spawn()?;
        let (status, is_sent) = self.attend(&mut child, &fate)?;
        self.note(child.id(), status, is_sent, &fate)?;
        let verdict = self.bury(status, is_sent, &fate);
        self.file.keep(&self.fates)?;
        Ok(verdict)
    }

    fn fate(&mut self) -> Fate {
        let mut fate = Fate::default();
        let folder = self.arguments.folder();
        let milliseconds = |number| Duration::from_millis(number);
        if let Some(aim) = self.arguments.aim.clone() {
            let place = Place::found(&self.arguments.place);
            if place.is_ok_and(|place| !place.aimed().exists()) {
                let mark = folder.join(format!("mark-{}", self.fates.started));
                let log = self.arguments.place.join("pauses");
                let number = self.fates.started;
                let (environment, kills) =
                    aims::of_program(&mut self.random, number, &aim, &log, &mark);
                fate.environment = environment;
                fate.mark = kills.then_some(mark);
            }
            return fate;
        }
        match self.random.below(8) {
            0..4 if self.may("kill") => {
                let most = [40, 150, 600][self.random.below(3) as usize];
                fate.kill_after = Some(milliseconds(5 + self.random.below(most)));
            }
            4..7 if self.may("point") => {
                let mark = folder.join(format!("mark-{}", self.fates.started));
                fate.environment = points::kill(&mut self.random, "client", 20_000, &mark);
                fate.mark = Some(mark);
            }
            _ => {}
        }
        if self.may("freeze") && self.random.one_in(6) {
            let most = if points::BUILT { 150 } else { 2000 };
            let long = milliseconds(20 + self.random.below(most));
            fate.freeze = Some((milliseconds(self.random.below(200)), long));
        }
        if self.may("pause") && self.random.one_in(2) {
            let log = self.arguments.place.join("pauses");
            let missed = self.arguments.place.join("missed");
            fate.environment.extend(points::pause(&mut self.random, "client", &log, &missed));
        }
        fate
    }

    /// Waits for the end of a program, and lets happen to it what is to happen. Whether it was sent
    /// a kill.
    fn attend(&mut self, child: &mut Child, fate: &Fate) -> std::io::Result<(ExitStatus, bool)> {
        let since = Instant::now();
        let (mut is_sent, mut freeze, mut thaw) = (false, fate.freeze, None);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status, is_sent));
            }
            let now = since.elapsed();
            if let Some((_, long)) = freeze.filter(|(after, _)| *after <= now) {
                signal(child, Signal::STOP);
                (freeze, thaw) = (None, Some(now + long));
                self.fates.frozen += 1;
            }
            // Some die while they are stopped.
            if fate.kill_after.is_some_and(|after| after <= now) && !is_sent {
                signal(child, Signal::KILL);
                is_sent = true;
                self.fates.kills_sent += 1;
                self.file.keep(&self.fates)?;
            }
            if thaw.is_some_and(|thaw| thaw <= now) {
                signal(child, Signal::CONT);
                thaw = None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Notes what happened to a program, for a reader who wants to understand a loss.
    fn note(
        &self,
        pid: u32,
        status: ExitStatus,
        is_sent: bool,
        fate: &Fate,
    ) -> std::io::Result<()> {
        let path = self.arguments.folder().join("lives");
        if std::fs::metadata(&path).is_ok_and(|found| found.len() > LIVES_MAX) {
            std::fs::rename(&path, path.with_extension("old"))?;
        }
        let mut options = std::fs::File::options();
        let mut lives = options.append(true).create(true).open(path)?;
        let point = fate.mark.as_ref().and_then(|mark| std::fs::read_to_string(mark).ok());
        let point = point.map(|point| format!(", killed itself at {point}")).unwrap_or_default();
        let sent = if is_sent { ", was sent a kill" } else { "" };
        let frozen = fate.freeze.map(|(_, long)| format!(", stopped for {long:?}"));
        let frozen = frozen.unwrap_or_default();
        let paused = fate.environment.iter().find(|(name, _)| *name == "FOREBAY_PAUSE");
        let paused = paused.map(|(_, what)| format!(", pauses {what}")).unwrap_or_default();
        writeln!(lives, "{pid}: {status}{point}{sent}{frozen}{paused}")
    }

    /// What a program's end says.
    fn bury(&mut self, status: ExitStatus, is_sent: bool, fate: &Fate) -> Result<(), String> {
        let number = self.arguments.number;
        let point = fate.mark.as_ref().and_then(|mark| {
            let point = std::fs::read_to_string(mark).ok()?;
            let _ = std::fs::remove_file(mark);
            Some(point)
        });
        if let Some(point) = point.filter(|point| !point.is_empty()) {
            self.fates.points_hit += 1;
            let crashes =
                std::fs::File::options().append(true).open(self.arguments.place.join("crashes"));
            if let Ok(mut crashes) = crashes {
                let _ = crashes.write_all(format!("client {point} 0\n").as_bytes());
            }
        } else if is_sent && status.signal() == Some(9) {
            self.fates.kills_hit += 1;
        }
        match (status.code(), status.signal()) {
            (Some(0), _) | (_, Some(9)) => Ok(()),
            _ => {
                let loss = self.arguments.folder().join("loss");
                let said = match std::fs::read_to_string(&loss) {
                    Ok(said) => said,
                    Err(_) => {
                        let said = format!("worker {number}: a program ended with {status}");
                        let _ = std::fs::write(&loss, &said);
                        said
                    }
                };
                Err(said)
            }
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    // Not yet waited for: no other process has the number.
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process(pid, signal);
    }
}
