//! What goes wrong while the programs work.

use super::place::{kill, send};
use super::{Kind, Torture, faults, hits, points};
use rustix::process::Signal;
use std::process::Child;
use std::time::{Duration, Instant};

impl Torture {
    /// Starts the workers that do not run.
    pub(super) fn start_workers(&mut self) -> Result<(), String> {
        for worker in self.workers() {
            let run = &mut self.runs[worker as usize];
            let ended = match run {
                None => true,
                Some(child) => match child.try_wait() {
                    Ok(Some(status)) => {
                        self.report.kept += u64::from(status.code() == Some(crate::FAILED.into()));
                        *run = None;
                        true
                    }
                    _ => false,
                },
            };
            // A keeper whose `forebay run` was killed may still be there.
            if ended && self.place.keeper(worker).is_none() && !self.lost(worker) {
                let environment = match self.of_aimed_managers() {
                    Some(environment) => environment,
                    None => self.of_managers(worker),
                };
                let mut words = self.words();
                if let Some(more) = self.words_of_aim(worker) {
                    words.retain(|word| !word.starts_with("--trouble="));
                    words.extend(more);
                }
                let run = self.place.start_worker(worker, &words, &environment)?;
                self.runs[worker as usize] = Some(run);
            }
        }
        Ok(())
    }

    fn lost(&self, worker: u64) -> bool {
        self.place.of_worker(worker).join("loss").exists()
    }

    /// What keepers are told.
    fn words(&self) -> Vec<String> {
        let kinds = [
            (Kind::Workers, "kill"),
            (Kind::Points, "point"),
            (Kind::Freezes, "freeze"),
            (Kind::Pauses, "pause"),
        ];
        let allowed = kinds.iter().filter(|(kind, _)| self.may(*kind));
        let allowed: Vec<_> = allowed.map(|(_, word)| *word).collect();
        vec![
            format!("--seed={}", self.seed),
            format!("--until={}", self.until),
            format!(
                "--trouble={}",
                if allowed.is_empty() { "none".into() } else { allowed.join(",") }
            ),
        ]
    }

    /// Environment of a run, for the node managers that it starts.
    fn of_managers(&mut self, worker: u64) -> Vec<(&'static str, String)> {
        let mut environment = Vec::new();
        if self.may(Kind::Pauses) && !self.random.one_in(3) {
            let log = self.place.root().join("pauses");
            let missed = self.place.missed();
            environment.extend(points::pause(&mut self.random, "node", &log, &missed));
        }
        if self.may(Kind::Points) && self.may(Kind::Managers) && !self.random.one_in(3) {
            let mark = self.marks().join(format!("{worker}-{}", self.random.below(1 << 40)));
            environment.extend(points::kill(&mut self.random, "node", 5_000, &mark));
        }
        environment
    }

    fn marks(&self) -> std::path::PathBuf {
        self.place.root().join("marks")
    }

    /// Makes the files to which others add.
    pub(super) fn begin_logs(&self) -> Result<(), String> {
        let explain = |error: std::io::Error| format!("{}: {error}", self.place.root().display());
        std::fs::create_dir_all(self.marks()).map_err(explain)?;
        for name in ["pauses", "crashes"] {
            let path = self.place.root().join(name);
            let mut options = std::fs::OpenOptions::new();
            options.append(true).create(true).open(path).map_err(explain)?;
        }
        Ok(())
    }

    /// Counts, once no program is left that would look for them, what managers have noted.
    pub(super) fn gather_logs(&mut self) {
        let marks = std::fs::read_dir(self.marks()).into_iter().flatten().flatten();
        for mark in marks.map(|entry| entry.path()) {
            let point = std::fs::read_to_string(&mark).unwrap_or_default();
            if !point.is_empty() {
                self.report.crashes.add("node", &point);
            }
            let _ = std::fs::remove_file(mark);
        }
        hits::gather(&self.place.hits(), &mut self.report.faults);
        // What the manager and the runs have to say must not fill the disk.
        for worker in self.workers() {
            let said = self.place.root().join(format!("run-{worker}"));
            if std::fs::metadata(&said).is_ok_and(|found| found.len() > 1 << 20) && !self.has_lost()
            {
                let _ = std::fs::remove_file(said);
            }
        }
        let attempts = super::WordsFile::open(&self.place.root().join("attempts"));
        if let Ok(attempts) = attempts.and_then(|file| file.read()) {
            self.report.attempts = attempts;
        }
    }

    /// Names the points at which no process has paused so far, for those that will.
    pub(super) fn name_missed(&mut self) {
        let missed = self.report.pauses.missed();
        if self.may(Kind::Pauses) && missed.len() != self.named {
            self.named = missed.len();
            let _ = std::fs::write(self.place.missed(), missed.join("\n"));
        }
    }

    /// Starts the process of another user, for the whole torture.
    pub(super) fn start_other_user(&mut self) -> Result<(), String> {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        if !self.may(Kind::Users) || self.other_user.as_mut().is_some_and(is_there) {
            return Ok(());
        }
        let mut words = self.words();
        words.insert(0, "torture-worker".into());
        words.extend([
            format!("--place={}", self.place.root().display()),
            "--number=99".into(),
            "--other-user".into(),
        ]);
        self.other_user = Some(self.place.start("other_user", &words, &[])?);
        Ok(())
    }

    /// Tells the other user where our files are, so that it can make files of these names before
    /// us the next time.
    pub(super) fn name_files(&self) {
        if !self.may(Kind::Users) {
            return;
        }
        let path = self.place.root().join("names");
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let mut names = self.place.pools();
        let tier = std::fs::read_dir(self.place.tier()).into_iter().flatten().flatten();
        names.extend(tier.map(|entry| entry.path()));
        let fresh: Vec<_> = names
            .iter()
            .map(|name| name.display().to_string())
            .filter(|name| name.contains("forebay-") && known.lines().all(|line| line != name))
            .collect();
        // Names that are used once are not worth their place.
        if !fresh.is_empty() && known.len() < 64 << 10 {
            let _ = std::fs::write(path, format!("{known}{}\n", fresh.join("\n")));
        }
    }

    /// Something goes wrong.
    pub(super) fn trouble(&mut self) -> Result<(), String> {
        match self.random.below(24) {
            0 if self.may(Kind::Workers) => self.kill_run(),
            1..6 if self.may(Kind::Managers) => self.kill_manager(),
            6 | 7 if self.may(Kind::Freezes) => self.freeze_manager(),
            8..12 if self.place.injects && (self.may(Kind::Faults) || self.may(Kind::Tiers)) => {
                let (store, tiers) = (self.may(Kind::Faults), self.may(Kind::Tiers));
                let script = faults::script(&mut self.random, store, tiers);
                self.report.scripts += 1;
                self.set_faults(&script)?;
            }
            12..16 => self.calm()?,
            16 | 17 if self.may(Kind::Stops) => self.stop_managers()?,
            18 if self.may(Kind::Commands) => self.some_command()?,
            _ => {}
        }
        Ok(())
    }

    /// A run, its keeper and its program.
    fn kill_run(&mut self) {
        let worker = self.random.below(self.runs.len() as u64);
        let Some((keeper, program)) = self.place.keeper(worker) else { return };
        self.report.runs.sent += 1;
        // The run alone, now and then: the keeper goes on.
        let alone = self.random.one_in(4);
        if let Some(run) = &mut self.runs[worker as usize] {
            let _ = run.kill();
        }
        if alone {
            return;
        }
        let hit = program.is_some_and(|program| send(program, Signal::KILL));
        kill(keeper);
        self.report.runs.hit += u64::from(hit);
    }

    pub(super) fn kill_manager(&mut self) {
        let Some(manager) = self.place.manager() else { return };
        self.report.managers.sent += 1;
        let hit = send(manager.pid, Signal::KILL) && manager.dirty > 0;
        self.report.managers.hit += u64::from(hit);
    }

    pub(super) fn freeze_manager(&mut self) {
        let Some(manager) = self.place.manager() else { return };
        if self.frozen.is_none() {
            hits::note_stop(&self.place.hits());
        }
        if self.frozen.is_none() && send(manager.pid, Signal::STOP) {
            let most = if points::BUILT { 200 } else { 2_000 };
            let long = Duration::from_millis(20 + self.random.below(most));
            self.frozen = Some((manager.pid, Instant::now() + long));
            self.report.managers_frozen += 1;
        }
    }

    /// Continues a manager that is stopped, if it is time, or `now`.
    pub(super) fn thaw(&mut self, now: bool) {
        if let Some((pid, _)) = self.frozen.take_if(|(_, until)| now || Instant::now() >= *until) {
            // Until now, and for processes that have just been told.
            hits::note_stop(&self.place.hits());
            send(pid, Signal::CONT);
        }
    }

    pub(super) fn set_faults(&self, script: &str) -> Result<(), String> {
        // In one step: a manager reads it whenever it has changed.
        let (fresh, path) = (self.place.root().join("faults-new"), self.place.faults());
        std::fs::write(&fresh, script)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// No more faults.
    pub(super) fn calm(&self) -> Result<(), String> {
        self.set_faults("")
    }

    /// `forebay stop`, while programs go on; their runs start another manager.
    pub(super) fn stop_managers(&mut self) -> Result<(), String> {
        // A store that never works keeps a manager that is to stop.
        if !self.random.one_in(4) {
            self.calm()?;
        }
        // What the user has elsewhere is none of ours.
        let config = self.place.config().display().to_string();
        let (code, _) = self.command("stop-said", &["stop", "--config", &config])?;
        self.report.stops.0 += 1;
        self.report.stops.1 += u64::from(code != Some(0));
        Ok(())
    }

    fn some_command(&mut self) -> Result<(), String> {
        let store = self.place.store().display().to_string();
        let config = self.place.config().display().to_string();
        let all: [(&str, &[&str]); 5] = [
            ("flush", &["flush", &store]),
            ("recover", &["recover", "--config", &config]),
            ("status", &["status"]),
            ("fsck", &["fsck", "--config", &config]),
            ("wait", &["wait", &store]),
        ];
        let (name, words) = all[self.random.below(all.len() as u64) as usize];
        // Programs write all the time: that all is safe need not come to pass while they do.
        if name == "wait" {
            self.calm()?;
        }
        let (code, _) = self.command("command-said", words)?;
        let (count, refused) = self.report.commands.entry(name).or_default();
        *count += 1;
        *refused += u64::from(code != Some(0));
        Ok(())
    }
}
