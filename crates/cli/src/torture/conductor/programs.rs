//! The programs of a case: started, awaited at their signs, killed, ended.

use super::super::pairs::{Case, Form};
use super::super::place::kill;
use super::super::script::Script;
use super::super::worker::WorkerArguments;
use super::{Conductor, HELD, Pass};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpgid};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// No case may take longer; one that does hangs.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);

/// A program of a case, with all that it has forked.
pub(super) struct Program(Child);

impl Program {
    pub(super) fn kill(&self) {
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    pub(super) fn is_over(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Its status, once nothing of it is left; `None` if it hangs.
    pub(super) fn end(mut self) -> io::Result<Option<ExitStatus>> {
        let since = Instant::now();
        while !self.is_over()? {
            if since.elapsed() > WAIT_MAX {
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
pub(super) type Environment = Vec<(&'static str, String)>;

impl Conductor<'_> {
    pub(super) fn start(
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
    pub(super) fn environment(&self, case: &Case, pass: Option<&Pass>) -> io::Result<Environment> {
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
    pub(super) fn await_first(&self, first: &mut Program, steps: usize) -> io::Result<()> {
        let (since, paused) = (Instant::now(), self.folder.join("paused"));
        while !first.is_over()?
            && self.signs.count(0) < steps
            && !fs::metadata(&paused).is_ok_and(|log| log.len() > 0)
            && since.elapsed() < WAIT_MAX
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn await_second(&self, steps: usize, second: &mut Program) -> io::Result<()> {
        let since = Instant::now();
        while since.elapsed() < HELD && self.signs.count(1) < steps && !second.is_over()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Both scripts by programs of their own.
    pub(super) fn programs(
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

    /// Lets the second program begin. Returns how many steps of their setups the programs have not
    /// done before.
    pub(super) fn go(&self, scripts: &[Script; 2]) -> io::Result<[usize; 2]> {
        let late =
            |program: usize| scripts[program].setup.len().saturating_sub(self.signs.count(program));
        let late = [late(0), late(1)];
        fs::write(self.signs.go(), "")?;
        Ok(late)
    }

    /// Both scripts by threads of one program.
    pub(super) fn threads(
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

    pub(super) fn await_ready(&self, program: &mut Program) -> io::Result<()> {
        let since = Instant::now();
        while !self.signs.ready().exists() && !program.is_over()? && since.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn kill_manager(&mut self, case: &Case) {
        if !case.kills_manager {
            return;
        }
        if let Some(manager) = self.place.manager() {
            kill(manager.pid);
            self.tally.managers += 1;
            self.tally.managers_hit += u64::from(manager.dirty > 0);
        }
    }
}
