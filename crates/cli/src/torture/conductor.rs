//! What `forebay run` runs for a standing list: it prepares the files of one case after the other, starts the
//! programs that play its scripts, kills or holds them, and judges what they have left.

use super::counts::{Words, WordsFile};
use super::lists::{ListArguments, Scenario};
use super::model::{Course, Story, World};
use super::pairs::{Before, Case, Form, NAMES};
use super::place::{Place, kill};
use super::player::{Inherited, MARKS, Player, Signs};
use super::script::{Files, Script, Step, Told};
use super::worker::WorkerArguments;
use super::workload;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// How long a program is held while the other one is to do its steps: longer than every timer.
const HELD: Duration = Duration::from_millis(100);
/// No case may take longer; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take until a dead program's slot is reaped, and its last write counted.
const TAKEN_BACK: Duration = Duration::from_secs(10);
/// How a program ends that cannot take part, before it has begun.
const REFUSED: i32 = 126;
/// fsync while no node manager answers.
const ETIMEDOUT: i32 = libc::ETIMEDOUT;

/// What came of a list's cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases that were judged.
    pub cases: u64,
    /// Programs that were to die within their operation.
    pub kills: u64,
    /// Those that died in it.
    pub kills_hit: u64,
    /// Programs that died right behind their operation.
    pub kills_behind: u64,
    /// Programs that were to pause within their operation.
    pub pauses: u64,
    /// Those that did.
    pub pauses_hit: u64,
    /// Programs that waited behind their operation.
    pub pauses_behind: u64,
    /// Node managers that were killed.
    pub managers: u64,
    /// Those that had something to lose.
    pub managers_hit: u64,
    /// Cases in which an allocation or a transfer was to fail.
    pub faults: u64,
    /// Those in which one did.
    pub faults_hit: u64,
    /// Bytes of files that were judged.
    pub bytes: u64,
}

impl Words for Tally {
    const COUNT: usize = 12;

    fn words(&self) -> Vec<u64> {
        let Tally { cases, kills, kills_hit, kills_behind, pauses, .. } = *self;
        let Tally { pauses_hit, pauses_behind, managers, managers_hit, .. } = *self;
        let Tally { faults, faults_hit, bytes, .. } = *self;
        let kills = [cases, kills, kills_hit, kills_behind];
        let pauses = [pauses, pauses_hit, pauses_behind, managers, managers_hit];
        [&kills[..], &pauses, &[faults, faults_hit, bytes]].concat()
    }

    fn of(words: &[u64]) -> Tally {
        Tally {
            cases: words[0],
            kills: words[1],
            kills_hit: words[2],
            kills_behind: words[3],
            pauses: words[4],
            pauses_hit: words[5],
            pauses_behind: words[6],
            managers: words[7],
            managers_hit: words[8],
            faults: words[9],
            faults_hit: words[10],
            bytes: words[11],
        }
    }
}

/// Plays one program of a case.
pub fn play(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let explain = |error: io::Error| format!("a program of a case: {error}");
    let ListArguments { cases, stem, play, from, slots, .. } = &arguments.list;
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let (number, seed) = (cases[0], arguments.seed);
    let (is_nonvolatile, scripts) = match arguments.list.list {
        None | Some(Scenario::Pairs) => {
            let case = Case::new(number, seed);
            (case.is_nonvolatile, case.scripts())
        }
        Some(list) => {
            let case = workload::Case::new(list, number, seed);
            (case.is_nonvolatile, [workload::script(), Script::default()])
        }
    };
    let files = files(arguments, number, is_nonvolatile, stem);
    let looks = scripts[1] == Script::default();
    let inherited = from.map(|from| Inherited { from, slots: slots.clone() });
    let folder = arguments.folder();
    let player = |who| Player::new(files.clone(), &folder, who, looks);
    match play.as_deref() {
        Some("both") => std::thread::scope(|scope| {
            let second = scope.spawn(|| player(1).play(&scripts[1], None));
            let ready = Signs::of(&folder).ready();
            while !ready.exists() && !second.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let first = player(0).play(&scripts[0], None);
            first.and(second.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
        }),
        Some("second") => player(1).play(&scripts[1], inherited.as_ref()),
        _ => player(0).play(&scripts[0], inherited.as_ref()),
    }
    .map_err(explain)?;
    Ok(ExitCode::SUCCESS)
}

fn files(arguments: &WorkerArguments, case: u64, is_nonvolatile: bool, stem: &str) -> Files {
    let store = arguments.place.join("store");
    Files::new(&store, stem, arguments.seed, case, is_nonvolatile)
}

struct Conductor<'a> {
    arguments: &'a WorkerArguments,
    folder: PathBuf,
    place: Place,
    signs: Signs,
    tally: Tally,
    /// Points that were passed, for the report.
    reached: File,
}

/// Conducts the cases that it is given, and waits until it is told to end.
pub fn conduct(arguments: &WorkerArguments) -> Result<ExitCode, String> {
    let folder = arguments.folder();
    let explain = |error: io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder.join("seen")).map_err(explain)?;
    // Grandchildren of programs that die are to be waited for.
    rustix::process::set_child_subreaper(Some(Pid::INIT)).map_err(|errno| explain(errno.into()))?;
    let reached = File::options().append(true).create(true).open(folder.join("reached"));
    let mut conductor = Conductor {
        arguments,
        folder: folder.clone(),
        place: Place::found(&arguments.place).map_err(explain)?,
        signs: Signs::of(&folder),
        tally: Tally::default(),
        reached: reached.map_err(explain)?,
    };
    for &number in &arguments.list.cases {
        if arguments.is_over() {
            break;
        }
        let (text, played) = match arguments.list.list {
            None | Some(Scenario::Pairs) => {
                let case = Case::new(number, arguments.seed);
                (case.text(), conductor.case(&case))
            }
            Some(list) => {
                let case = workload::Case::new(list, number, arguments.seed);
                (case.text(), conductor.workload(&case))
            }
        };
        let loss = played.unwrap_or_else(|error| Some(format!("{text}: {error}")));
        let file = WordsFile::open(&folder.join("tally")).map_err(explain)?;
        file.keep(&conductor.tally).map_err(explain)?;
        if let Some(loss) = loss {
            fs::write(folder.join("loss"), loss).map_err(explain)?;
            break;
        }
    }
    fs::write(folder.join("done"), "").map_err(explain)?;
    while !arguments.is_over() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(ExitCode::SUCCESS)
}

/// A program of a case, with all that it has forked.
struct Program(Child);

impl Program {
    fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn is_over(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Its status, once nothing of it is left; `None` if it hangs.
    fn end(mut self) -> io::Result<Option<ExitStatus>> {
        let since = Instant::now();
        while !self.is_over()? {
            if since.elapsed() > PATIENCE {
                self.kill();
                self.0.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let status = self.0.wait()?;
        self.kill();
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            while waitpgid(group, WaitOptions::empty()).is_ok() {}
        }
        Ok(Some(status))
    }
}

/// What is to happen to a program, through its environment.
type Environment = Vec<(&'static str, String)>;

/// A pass of a point: its name, and which pass of that name in its process.
type Pass = (String, u64);

impl Conductor<'_> {
    /// Plays a case and judges it; what is wrong.
    fn case(&mut self, case: &Case) -> io::Result<Option<String>> {
        let stem = format!("case-{}", case.number);
        let files = files(self.arguments, case.number, case.is_nonvolatile, &stem);
        let pass = self.pass_of(case)?;
        self.prepare(case.before, &case.world(&files), &files)?;
        let scripts = case.scripts();
        let (statuses, late) = if case.form.has_threads() {
            self.threads(case, pass.as_ref(), &scripts)?
        } else {
            self.programs(case, pass.as_ref(), &scripts)?
        };
        let mut courses = [Course::default(), Course::default()];
        let mut wrong = None;
        for (who, status) in statuses.iter().enumerate() {
            let told = self.signs.all_told(who)?;
            let steps = scripts[who].all().count();
            let died = status.is_some_and(|status| status.signal().is_some());
            wrong = wrong.or(match status {
                None => Some(format!("program {} hangs", ["X", "Y"][who])),
                Some(status) => self.unexpected(case, &scripts, who, &told, *status),
            });
            if !died && told.len() < steps && status.is_some() {
                wrong = wrong.or(Some("a program has left steps out".into()));
            }
            courses[who] = Course { told, died, late: late[who] };
        }
        self.count(case, pass.as_ref(), &scripts, &courses, &statuses)?;
        let story = Story {
            start: case.world(&files),
            files: &files,
            scripts: [&scripts[0], &scripts[1]],
            courses,
            in_order: case.form == Form::KillThen || pass.is_none(),
            excused: &[],
        };
        if wrong.is_none() {
            let judged = self.judge(&story, &files);
            wrong = judged.unwrap_or_else(|error| Some(format!("looking at its files: {error}")));
        }
        self.tally.cases += 1;
        Ok(wrong.map(|what| self.explain(case, pass.as_ref(), &story, &what)))
    }

    /// Plays the program of a case in which something fails, and judges it; what is wrong.
    fn workload(&mut self, case: &workload::Case) -> io::Result<Option<String>> {
        let stem = format!("case-{}", case.number);
        let files = files(self.arguments, case.number, case.is_nonvolatile, &stem);
        let start = case.world(&files);
        self.prepare(case.before, &start, &files)?;
        self.signs.clear();
        let log = match &case.fault {
            Some(_) => self.place.hits(),
            None => self.folder.join("refused"),
        };
        let _ = fs::remove_file(&log);
        let mut environment = Environment::new();
        if let Some(refuse) = &case.refuse {
            environment.push(("FOREBAY_REFUSE", refuse.clone()));
            environment.push(("FOREBAY_REFUSE_LOG", log.display().to_string()));
        }
        let ballast = self.place.store().join("ballast-file-1");
        if case.fault.is_some() {
            fs::write(&ballast, files.bytes(workload::BALLAST_TAG, 0, workload::BALLAST))?;
        }
        self.set_faults(case.fault.as_deref().unwrap_or_default())?;
        let program = self.start(case.number, &stem, "first", &environment)?;
        let status = program.end()?;
        self.set_faults("")?;
        let script = workload::script();
        let told = self.signs.all_told(0)?;
        let mut wrong = match status {
            None => Some("the program hangs".to_owned()),
            // Said, and before the new image has done anything.
            Some(status)
                if case.may_not_go_on()
                    && status.code() == Some(REFUSED)
                    && told.len().checked_sub(1).map(|last| script.steps[last])
                        == Some(Step::Exec) =>
            {
                None
            }
            Some(status) if !status.success() => Some(format!("the program ended with {status}")),
            Some(_) if told.len() < script.steps.len() => Some("steps were left out".to_owned()),
            Some(_) => None,
        };
        let has_hit = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
        self.tally.faults += 1;
        self.tally.faults_hit += u64::from(has_hit);
        let story = Story {
            start,
            files: &files,
            scripts: [&script, &Script::default()],
            courses: [Course { told, ..Course::default() }, Course::default()],
            in_order: true,
            excused: if has_hit { &case.excused } else { &[] },
        };
        if wrong.is_none() {
            let judged = self.judge(&story, &files);
            wrong = judged.unwrap_or_else(|error| Some(format!("looking at its files: {error}")));
        }
        if case.fault.is_some() {
            let is_right =
                fs::read(&ballast)? == files.bytes(workload::BALLAST_TAG, 0, workload::BALLAST);
            wrong = wrong.or_else(|| (!is_right).then(|| "the ballast is wrong".to_owned()));
            fs::remove_file(&ballast)?;
        }
        self.tally.cases += 1;
        let (list, seed) = (self.list().name(), self.arguments.seed);
        Ok(wrong.map(|what| {
            let told = script.all().zip(&story.courses[0].told);
            let told: Vec<_> = told.map(|(step, told)| format!("{step:?}: {told:?}")).collect();
            let again = format!("--scenario {list} --case {} --seed {seed}", case.number);
            let told = told.join("\n         ");
            format!("{what}\n      {}\n         {told}\n      again: {again}", case.text())
        }))
    }

    fn list(&self) -> Scenario {
        self.arguments.list.list.unwrap_or(Scenario::Pairs)
    }

    /// In one step: a manager reads it whenever it has changed.
    fn set_faults(&self, script: &str) -> io::Result<()> {
        if self.list() != Scenario::BackendCalls {
            return Ok(());
        }
        let fresh = self.folder.join("faults");
        fs::write(&fresh, script)?;
        fs::rename(fresh, self.place.faults())
    }

    /// Judges what is seen through Forebay, and again when all is synced, and keeps that to be compared with the
    /// store.
    fn judge(&mut self, story: &Story, files: &Files) -> io::Result<Option<String>> {
        let is_certain = story.courses.iter().all(|course| !course.died);
        let seen = observe(files)?;
        if let Some(what) = disagreement(&seen).filter(|_| is_certain) {
            return Ok(Some(what));
        }
        let seen = contents(seen);
        if let Some(what) = story.judge(&seen) {
            return Ok(Some(what));
        }
        let since = Instant::now();
        let synced = loop {
            for name in seen.keys() {
                match File::open(files.path(*name))?.sync_all() {
                    // What has failed before may be told once more.
                    Err(error)
                        if error.raw_os_error().is_some_and(|it| story.excused.contains(&it))
                            && since.elapsed() < TAKEN_BACK => {}
                    Err(error) if error.raw_os_error() != Some(ETIMEDOUT) => {
                        return Ok(Some(format!("fsync of file {name}: {error}")));
                    }
                    _ => {}
                }
            }
            let synced = observe(files)?;
            match disagreement(&synced) {
                None => break contents(synced),
                Some(what) if is_certain || since.elapsed() > TAKEN_BACK => {
                    return Ok(Some(format!("after fsync: {what}")));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if let Some(what) = story.judge(&synced) {
            return Ok(Some(format!("after fsync, though not before: {what}")));
        }
        if is_certain && seen != synced {
            return Ok(Some("what is read after fsync is not what was read before".into()));
        }
        for (name, bytes) in &synced {
            let path = files.path(*name);
            let kept = self.folder.join("seen").join(path.file_name().unwrap_or_default());
            fs::write(kept, bytes)?;
            self.tally.bytes += bytes.len() as u64;
        }
        Ok(None)
    }

    /// What is wrong with a program's end.
    fn unexpected(
        &self,
        case: &Case,
        scripts: &[Script; 2],
        who: usize,
        told: &[Told],
        status: ExitStatus,
    ) -> Option<String> {
        let program = ["X", "Y"][who];
        let is_to_die = case.form.kills() && (who == 0 || case.form.has_threads());
        let step = scripts[who].all().nth(told.len());
        let shortens = scripts.iter().flat_map(Script::all).any(Step::shortens);
        let maps = case.form.has_threads() || matches!(step, Some(Step::Map { .. }));
        match status.signal() {
            Some(libc::SIGKILL) if is_to_die => None,
            // Behind the end of what the other one has cut.
            Some(libc::SIGBUS) if shortens && maps => None,
            None if status.success() => None,
            _ => Some(format!("program {program} ended with {status}")),
        }
    }

    fn count(
        &mut self,
        case: &Case,
        pass: Option<&Pass>,
        scripts: &[Script; 2],
        courses: &[Course; 2],
        statuses: &[Option<ExitStatus>; 2],
    ) -> io::Result<()> {
        let was_killed = statuses[0].is_some_and(|status| status.signal() == Some(libc::SIGKILL));
        let was_within = courses[0].told.len() < scripts[0].all().count();
        let has_paused = fs::metadata(self.folder.join("paused")).is_ok_and(|log| log.len() > 0);
        let kind = match (case.form.kills(), pass) {
            (true, None) => {
                self.tally.kills_behind += u64::from(was_killed);
                return Ok(());
            }
            (false, None) => {
                self.tally.pauses_behind += 1;
                return Ok(());
            }
            (true, Some(_)) => {
                self.tally.kills += 1;
                let hit = was_killed && was_within;
                self.tally.kills_hit += u64::from(hit);
                hit.then_some("kill")
            }
            (false, Some(_)) => {
                self.tally.pauses += 1;
                self.tally.pauses_hit += u64::from(has_paused);
                has_paused.then_some("pause")
            }
        };
        match (kind, pass) {
            (Some(kind), Some((point, _))) => {
                self.reached.write_all(format!("{kind} {point}\n").as_bytes())
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, case: &Case, pass: Option<&Pass>, story: &Story, what: &str) -> String {
        let within = pass.map_or("behind X".into(), |(name, pass)| format!("{name}:{pass}"));
        let mut text = format!("{what}\n      {}", case.text());
        let early = if case.kills_manager { ", the node manager killed" } else { "" };
        text.push_str(&format!("\n      at {within}{early}, by worker {}", self.arguments.number));
        for (who, name) in ["X", "Y"].into_iter().enumerate() {
            let course = &story.courses[who];
            let died = if course.died { ", died" } else { "" };
            let script = story.scripts[who].text();
            text.push_str(&format!("\n      {name}: {script}\n         {:?}{died}", course.told));
        }
        let Case { number, .. } = case;
        let seed = self.arguments.seed;
        text.push_str(&format!("\n      again: --scenario pairs --case {number} --seed {seed}"));
        text
    }

    fn start(
        &self,
        case: u64,
        stem: &str,
        play: &str,
        environment: &Environment,
    ) -> io::Result<Program> {
        let WorkerArguments { place, number, seed, until, .. } = self.arguments;
        let child = Command::new(std::env::current_exe()?)
            .arg("torture-worker")
            .arg(format!("--place={}", place.display()))
            .arg(format!("--number={number}"))
            .arg(format!("--seed={seed}"))
            .arg(format!("--until={until}"))
            .arg(format!("--list={}", self.list().name()))
            .arg(format!("--cases={case}"))
            .arg(format!("--stem={stem}"))
            .arg(format!("--play={play}"))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .spawn()?;
        Ok(Program(child))
    }

    /// Environment of the first program, by which it dies or pauses at a pass of a point.
    fn environment(&self, case: &Case, pass: Option<&Pass>) -> io::Result<Environment> {
        self.signs.clear();
        let paused = self.folder.join("paused");
        let _ = fs::remove_file(&paused);
        if case.form != Form::KillThen || pass.is_none() {
            fs::write(self.signs.held(), "")?;
        }
        let Some((name, pass)) = pass else { return Ok(Vec::new()) };
        Ok(match case.form {
            Form::KillThen => vec![("FOREBAY_CRASH", format!("{name}:{pass}"))],
            _ => {
                let held = self.signs.held();
                let pause = format!("{name}:{pass}:while={}", held.display());
                let log = paused.display().to_string();
                vec![("FOREBAY_PAUSE", pause), ("FOREBAY_PAUSE_LOG", log)]
            }
        })
    }

    /// Waits until the first program pauses, waits behind its operation, or has ended.
    fn await_first(&self, first: &mut Program, steps: usize) -> io::Result<()> {
        let (since, paused) = (Instant::now(), self.folder.join("paused"));
        while !first.is_over()?
            && self.signs.count(0) < steps
            && !fs::metadata(&paused).is_ok_and(|log| log.len() > 0)
            && since.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn await_second(&self, steps: usize, second: &mut Program) -> io::Result<()> {
        let since = Instant::now();
        while since.elapsed() < HELD && self.signs.count(1) < steps && !second.is_over()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Both scripts by programs of their own.
    fn programs(
        &mut self,
        case: &Case,
        pass: Option<&Pass>,
        scripts: &[Script; 2],
    ) -> io::Result<([Option<ExitStatus>; 2], [usize; 2])> {
        let stem = format!("case-{}", case.number);
        let environment = self.environment(case, pass)?;
        let steps = scripts.each_ref().map(|script| script.all().count());
        let mut second = None;
        if case.is_early {
            let mut program = self.start(case.number, &stem, "second", &Vec::new())?;
            self.await_ready(&mut program)?;
            second = Some(program);
        }
        let mut first = Some(self.start(case.number, &stem, "first", &environment)?);
        let mut status = None;
        if let Some(first) = &mut first {
            self.await_first(first, steps[0])?;
        }
        if case.form == Form::KillThen
            && let Some(first) = first.take()
        {
            if pass.is_none() {
                first.kill();
            }
            status = first.end()?;
        }
        self.kill_manager(case);
        let late = self.go(scripts)?;
        let mut second = match second {
            Some(second) => second,
            None => self.start(case.number, &stem, "second", &Vec::new())?,
        };
        if let Some(first) = first {
            let since = Instant::now();
            self.await_second(steps[1], &mut second)?;
            if !case.form.kills() {
                std::thread::sleep(HELD.saturating_sub(since.elapsed()));
            } else {
                first.kill();
            }
            fs::remove_file(self.signs.held())?;
            status = first.end()?;
        }
        Ok(([status, second.end()?], late))
    }

    /// Lets the second program begin. Returns how many steps of their setups the programs have not done before.
    fn go(&self, scripts: &[Script; 2]) -> io::Result<[usize; 2]> {
        let late = |who: usize| scripts[who].setup.len().saturating_sub(self.signs.count(who));
        let late = [late(0), late(1)];
        fs::write(self.signs.go(), "")?;
        Ok(late)
    }

    /// Both scripts by threads of one program.
    fn threads(
        &mut self,
        case: &Case,
        pass: Option<&Pass>,
        scripts: &[Script; 2],
    ) -> io::Result<([Option<ExitStatus>; 2], [usize; 2])> {
        let environment = self.environment(case, pass)?;
        let steps = scripts.each_ref().map(|script| script.all().count());
        let stem = format!("case-{}", case.number);
        let mut both = self.start(case.number, &stem, "both", &environment)?;
        self.await_first(&mut both, steps[0])?;
        self.kill_manager(case);
        let late = self.go(scripts)?;
        let since = Instant::now();
        self.await_second(steps[1], &mut both)?;
        if case.form.kills() {
            both.kill();
        } else {
            std::thread::sleep(HELD.saturating_sub(since.elapsed()));
        }
        fs::remove_file(self.signs.held())?;
        let status = both.end()?;
        Ok(([status, status], late))
    }

    fn await_ready(&self, program: &mut Program) -> io::Result<()> {
        let since = Instant::now();
        while !self.signs.ready().exists() && !program.is_over()? && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn kill_manager(&mut self, case: &Case) {
        if !case.kills_manager {
            return;
        }
        if let Some(manager) = self.place.manager() {
            kill(manager.pid);
            self.tally.managers += 1;
            self.tally.managers_hit += u64::from(manager.dirty > 0);
        }
    }

    /// Makes what is there before.
    fn prepare(&self, before: Before, world: &World, files: &Files) -> io::Result<()> {
        let make = |name: char, bytes: &[u8]| {
            let path = files.path(name);
            if before == Before::Stored {
                return write_past(&path, bytes);
            }
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            match (before == Before::Synced).then(|| file.sync_all()) {
                Some(Err(error)) if error.raw_os_error() != Some(ETIMEDOUT) => Err(error),
                _ => Ok(()),
            }
        };
        let mut all = NAMES.into_iter().filter_map(|name| Some((name, world.file(name)?)));
        all.try_for_each(|(name, bytes)| make(name, bytes))
            .map_err(|error| within("making its files", error))
    }

    /// At which pass of which point a case interrupts the first operation; `None` for behind it.
    fn pass_of(&mut self, case: &Case) -> io::Result<Option<Pass>> {
        if case.place == 0 || !super::points::BUILT {
            return Ok(None);
        }
        let passes = self.passes(case)?;
        let count = passes.len() as u64;
        let start = (case.place - 1) * count / 3;
        let end = (case.place * count / 3).max(start + 1);
        let index = start + case.draw % (end - start);
        Ok(passes.get(index as usize).cloned())
    }

    /// The points that the first operation of a case passes, in their order: found out once for all cases like it.
    fn passes(&mut self, case: &Case) -> io::Result<Vec<Pass>> {
        let Case { first, before, is_nonvolatile, .. } = case;
        let name = format!("points-{first:?}-{before:?}-{is_nonvolatile}");
        let known = self.arguments.place.join(&name);
        if let Ok(text) = fs::read_to_string(&known) {
            return Ok(passed(&text));
        }
        let stem = format!("learn-{}", self.arguments.number);
        let files = files(self.arguments, case.number, *is_nonvolatile, &stem);
        self.prepare(*before, &case.world(&files), &files)?;
        self.signs.clear();
        let list = self.folder.join(&name);
        fs::write(&list, "")?;
        let environment = vec![("FOREBAY_CRASH_LIST", list.display().to_string())];
        let program = self.start(case.number, &stem, "first", &environment)?;
        let status = program.end()?;
        for name in NAMES {
            let _ = fs::remove_file(files.path(name));
        }
        if !status.is_some_and(|status| status.success()) {
            return Err(io::Error::other(format!("{first:?} alone ended with {status:?}")));
        }
        let text = fs::read_to_string(&list)?;
        fs::rename(list, known)?;
        Ok(passed(&text))
    }
}

/// An error with what was done.
fn within(what: &str, error: io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// The passes between the marks in a list of points.
fn passed(text: &str) -> Vec<Pass> {
    let (mut counts, mut passes, mut is_within) = (BTreeMap::new(), Vec::new(), false);
    for name in text.lines().filter_map(|line| line.strip_prefix("client ")) {
        match MARKS.iter().position(|mark| *mark == name) {
            Some(0) => is_within = true,
            // Counts begin anew with the image.
            Some(1) => counts.clear(),
            Some(_) => is_within = false,
            None => {
                let count = counts.entry(name).or_insert(0);
                *count += 1;
                if is_within {
                    passes.push((name.to_owned(), *count));
                }
            }
        }
    }
    passes
}

/// What there is of a case's files, as programs see it: what is read, and the size that stat says.
type Seen = BTreeMap<char, (Vec<u8>, u64)>;

fn observe(files: &Files) -> io::Result<Seen> {
    let mut seen = BTreeMap::new();
    for name in NAMES {
        match fs::read(files.path(name)) {
            Ok(bytes) => {
                let size = fs::metadata(files.path(name))?.len();
                seen.insert(name, (bytes, size));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(within(&format!("reading file {name}"), error)),
        }
    }
    Ok(seen)
}

/// A file of which less or more is read than stat says.
fn disagreement(seen: &Seen) -> Option<String> {
    let one = |(name, (bytes, size)): (&char, &(Vec<u8>, u64))| {
        let count = bytes.len();
        let what = || format!("file {name}: stat says {size} bytes, {count} are read");
        (*size != count as u64).then(what)
    };
    seen.iter().find_map(one)
}

fn contents(seen: Seen) -> BTreeMap<char, Vec<u8>> {
    seen.into_iter().map(|(name, (bytes, _))| (name, bytes)).collect()
}

/// Makes a file on the store, past Forebay.
fn write_past(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let done = rustix::io::write(&file, rest)?;
        rest = &rest[done..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_counted_from_the_beginning_of_an_image() {
        let text = "client a\nclient b\nclient -begin\nclient a\nnode a\nclient c\nclient -image\n\
                    client a\nclient -image\nclient b\nclient -end\nclient b\n";
        let wanted = [("a", 2), ("c", 1), ("a", 1), ("b", 1)];
        let passes = passed(text);
        assert!(passes.iter().map(|(name, pass)| (&name[..], *pass)).eq(wanted), "{passes:?}");
    }

    #[test]
    fn tallies_are_kept_word_by_word() {
        let words: Vec<u64> = (1..=Tally::COUNT as u64).collect();
        assert_eq!(Tally::of(&words).words(), words);
    }
}
