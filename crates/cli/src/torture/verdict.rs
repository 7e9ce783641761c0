//! Comparing what programs left with what they were told, between the rounds of torture.

use super::counts::{Counts, Fates, WordsFile, sum};
use super::history::History;
use super::log::Past;
use super::shadow::{FILES, Shadow};
use super::{LOG_MAX, Torture, explain};
use std::path::PathBuf;

impl Torture {
    /// Drains whatever is left. It may fail with a message that says one of `excuses`.
    pub(super) fn recover(&mut self, excuses: &[&str]) -> Result<(), String> {
        self.report.recoveries += 1;
        // What the user has elsewhere is none of ours.
        let config = self.place.config().display().to_string();
        let mut done = self.command("recover", &["recover", "--config", &config])?;
        if done.0 == Some(-1) && self.has_just_aimed() {
            done = self.command("recover", &["recover", "--config", &config])?;
        }
        match done {
            (Some(0) | None, _) => Ok(()),
            (_, said) if excuses.iter().any(|excuse| said.contains(excuse)) => {
                self.place.remove_lost()
            }
            (Some(code), said) => {
                let last = said.lines().rev().take(5).collect::<Vec<_>>().join("; ");
                self.report.losses.push(format!("recover ended with {code}: {last}"));
                Ok(())
            }
        }
    }

    pub(super) fn shadow(&self, worker: u64) -> Result<Shadow, String> {
        let folder = self.place.of_worker(worker);
        Shadow::open(&folder, &self.place.store(), self.seed, worker).map_err(explain)
    }

    /// Compares the store, without Forebay, with what all workers have written.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        if self.has_lost() || self.is_urgent() {
            return Ok(());
        }
        for worker in self.workers() {
            let shadow = self.shadow(worker)?;
            let mut found: Vec<String> = shadow.resolve().map_err(explain)?.into_iter().collect();
            for file in 0..FILES {
                let (bytes, wrong) = shadow.verify(file).map_err(explain)?;
                self.report.compared += bytes;
                if wrong.is_none() {
                    // Nothing of it is in memory any more.
                    shadow.synced(file).map_err(explain)?;
                }
                found.extend(wrong);
            }
            for what in found {
                self.lose(worker, format!("on the store: {what}"));
            }
        }
        self.compare_log(Past::Whole)?;
        self.report.comparisons += 1;
        self.compared_at = self.report.counts.operations;
        self.report.uncompared = 0;
        Ok(())
    }

    pub(super) fn compare_log(&mut self, past: Past) -> Result<(), String> {
        let acks = |worker| std::fs::read(self.place.of_worker(worker).join("acks"));
        let acks: Vec<_> = self.workers().map(|worker| acks(worker).unwrap_or_default()).collect();
        let store = self.place.store();
        match super::log::verify(&store, &acks, past) {
            Ok(bytes) => self.report.compared += bytes,
            Err(wrong) => self.report.losses.push(format!("on the store: {wrong}")),
        }
        let size = std::fs::metadata(super::log::path(&store)).map_or(0, |found| found.len());
        if !self.has_lost() && (past == Past::Lost || size > LOG_MAX) {
            let kept = self.workers().map(|worker| self.place.of_worker(worker).join("acks"));
            for path in kept.chain([super::log::path(&store)]).filter(|path| path.exists()) {
                std::fs::remove_file(path).map_err(explain)?;
            }
        }
        Ok(())
    }

    /// Compares the store, after memory was lost, with what syncs have acknowledged. Workers go on
    /// with what is there, and with a new log.
    pub(super) fn survive(&mut self) -> Result<(), String> {
        if self.has_lost() || self.is_urgent() {
            return Ok(());
        }
        self.gather_logs();
        for worker in self.workers() {
            let shadow = self.shadow(worker)?;
            shadow.resolve_names().map_err(explain)?;
            for file in 0..FILES {
                let (bytes, wrong) = shadow.survive(file).map_err(explain)?;
                self.report.compared += bytes;
                if let Some(what) = wrong {
                    self.lose(worker, format!("after a loss of memory: {what}"));
                }
            }
            shadow.forget_intent().map_err(explain)?;
        }
        self.compare_log(Past::Lost)
    }

    /// Something of a worker is wrong: it is told with what the worker did to the file.
    pub(super) fn lose(&mut self, worker: u64, what: String) {
        let file = super::history::named(&what).and_then(|(_, file)| file);
        let history = History::open(&self.place.of_worker(worker));
        let lines = history.map(|history| history.last(file.as_deref())).unwrap_or_default();
        let about = file.map_or("all files".to_owned(), |file| format!("file {file}"));
        let mut text =
            format!("{what}\n      the last of worker {worker} on {about} (number, process):");
        for line in lines {
            text.push_str(&format!("\n      {line}"));
        }
        let lives = std::fs::read_to_string(self.place.of_worker(worker).join("lives"));
        let lives = lives.unwrap_or_default();
        text.push_str("\n      its last processes:");
        for life in lives.lines().rev().take(6).collect::<Vec<_>>().into_iter().rev() {
            text.push_str(&format!("\n      {life}"));
        }
        self.report.losses.push(text);
    }

    /// Sums what all have counted, and takes over what they found wrong.
    pub(super) fn gather(&mut self) {
        let folders: Vec<_> = self.workers().map(|worker| self.place.of_worker(worker)).collect();
        let read = |path: PathBuf| WordsFile::open(&path);
        let counts =
            folders.iter().filter_map(|folder| read(folder.join("counts")).ok()?.read().ok());
        self.report.counts = sum::<Counts>(counts);
        let fates =
            folders.iter().filter_map(|folder| read(folder.join("fates")).ok()?.read().ok());
        self.report.fates = sum::<Fates>(fates);
        self.report.uncompared =
            self.report.counts.operations - self.compared_at.min(self.report.counts.operations);
        self.report.pauses.gather(&self.place.root().join("pauses"));
        self.name_missed();
        self.report.crashes.gather(&self.place.root().join("crashes"));
        if !self.has_lost() {
            let told: Vec<_> = self
                .workers()
                .filter_map(|worker| {
                    let loss = self.place.of_worker(worker).join("loss");
                    Some((worker, std::fs::read_to_string(loss).ok()?))
                })
                .collect();
            for (worker, loss) in told {
                self.lose(worker, loss);
            }
            self.gather_breaches();
        }
        self.notice_manager();
    }

    /// What another user got at is a loss.
    pub(super) fn gather_breaches(&mut self) {
        let breaches = std::fs::read_to_string(self.place.root().join("breach"));
        let breaches = breaches.unwrap_or_default();
        self.report.losses.extend(breaches.lines().take(5).map(str::to_owned));
    }

    pub(super) fn notice_manager(&mut self) {
        // A short torture may never come to look while a manager serves: they are killed all the
        // time.
        self.report.intercepted = self.report.intercepted.max(self.place.intercepted());
        if let Some(manager) = self.place.manager() {
            self.crowded = self.crowded.max(manager.crowded);
            if manager.pid != self.last_manager {
                self.last_manager = manager.pid;
                self.report.starts += 1;
            }
        }
        self.name_files();
    }
}
