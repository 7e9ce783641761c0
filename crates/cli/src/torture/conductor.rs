//! What `forebay run` runs for a standing list: it prepares the files of one case after the other,
//! starts the programs that play its scripts, kills or holds them, and judges what they have left.

mod judge;
mod passes;
mod programs;
mod tally;

pub use tally::Tally;

use super::counts::WordsFile;
use super::model::{Course, Story, World};
use super::pairs::{Before, Case, Form, NAMES};
use super::place::Place;
use super::player::{Inherited, Player, Signs};
use super::scenario::{ListArguments, Scenario};
use super::script::{Files, Script, Step};
use super::worker::WorkerArguments;
use super::workload;
use passes::Pass;
use programs::Environment;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long a program is held while the other one is to do its steps: longer than every timer.
const HELD: Duration = Duration::from_millis(100);
/// How a program ends that cannot take part, before it has begun.
const REFUSED: i32 = 126;
/// fsync while no node manager answers.
const ETIMEDOUT: i32 = libc::ETIMEDOUT;

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
    let player = |program| Player::new(files.clone(), &folder, program, looks);
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
        for (program, status) in statuses.iter().enumerate() {
            let told = self.signs.all_told(program)?;
            let steps = scripts[program].all().count();
            let died = status.is_some_and(|status| status.signal().is_some());
            wrong = wrong.or(match status {
                None => Some(format!("program {} hangs", ["X", "Y"][program])),
                Some(status) => self.unexpected(case, &scripts, program, &told, *status),
            });
            if !died && told.len() < steps && status.is_some() {
                wrong = wrong.or(Some("a program has left steps out".into()));
            }
            courses[program] = Course { told, died, late: late[program] };
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
}

/// An error with what was done.
fn within(what: &str, error: io::Error) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
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
