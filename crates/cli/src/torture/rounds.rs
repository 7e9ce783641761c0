//! The rounds of torture: what is begun, how long it goes on, how it ends.

use super::goals::Goals;
use super::place::Tiers;
use super::scenario::Scenario;
use super::{DAMAGED, Kind, Torture, WAIT_MAX};
use forebay_placement::Random;
use std::process::Child;
use std::time::{Duration, Instant};

impl Torture {
    /// The mixture on full tiers, as long as it is to take, or until a tenth of the goals is
    /// reached.
    pub(super) fn full_tiers(&mut self) -> Result<(), String> {
        self.place.configure(Tiers::Full)?;
        self.crowded = 0;
        let goals = if self.scenarios.contains(&Scenario::Mixture) {
            self.goals.tenth()
        } else {
            self.goals
        };
        self.mixture(goals)?;
        self.report.crowded = Some(self.crowded);
        if !self.has_lost() {
            self.place.configure(Tiers::Busy)?;
        }
        Ok(())
    }

    pub(super) fn mixture(&mut self, goals: Goals) -> Result<(), String> {
        self.mixed = Instant::now();
        let has_reached_all =
            |torture: &Torture| goals.are_given() && goals.are_met(&torture.report.reached());
        while self.mixed.elapsed() < self.time && !self.is_over() && !has_reached_all(self) {
            self.random = Random::new(self.seed ^ Random::new(self.report.rounds).next_u64());
            self.report.rounds += 1;
            self.round()?;
        }
        Ok(())
    }

    /// Some seconds of work and trouble, an end in peace or not, and a look at the store.
    pub(super) fn round(&mut self) -> Result<(), String> {
        self.place.injects = self.report.rounds % 2 == 1;
        self.begin_round()?;
        let left = self.time.saturating_sub(self.mixed.elapsed()).as_millis() as u64;
        let length = (1_500 + self.random.below(6_000)).min(left.max(500));
        let end = Instant::now() + Duration::from_millis(length);
        while Instant::now() < end && !self.is_over() && !self.has_reached_all() {
            self.start_other_user()?;
            self.start_workers()?;
            let pause = 20 + self.random.below(150);
            self.wait(pause);
            self.trouble()?;
            self.gather();
            self.report.progress(self.since.elapsed());
        }
        self.thaw(true);
        if self.has_lost() {
            return Ok(());
        }
        // A user who interrupts wants to know what was right until now.
        let choice = if self.is_interrupted() { 9 } else { self.random.below(5) };
        self.end_round(choice)
    }

    pub(super) fn begin_round(&self) -> Result<(), String> {
        let _ = std::fs::remove_file(self.place.stop());
        self.begin_logs()
    }

    /// Ends all in peace, or not, as `choice` says, and looks at the store.
    pub(super) fn end_round(&mut self, choice: u64) -> Result<(), String> {
        match choice {
            0 if self.may(Kind::Everything) => {
                self.kill_everything()?;
                self.calm()?;
            }
            1 if self.may(Kind::Memory) => {
                self.kill_everything()?;
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
        if !self.place.pools().is_empty() && !self.is_urgent() {
            self.recover(&[])?;
        }
        self.gather();
        self.gather_logs();
        self.compare()
    }

    pub(super) fn kill_everything(&mut self) -> Result<(), String> {
        let at_work = self
            .workers()
            .any(|worker| self.place.keeper(worker).is_some_and(|(_, program)| program.is_some()));
        self.report.all.sent += 1;
        self.report.all.hit += u64::from(at_work);
        self.place.kill_all(&mut self.runs)
    }

    pub(super) fn wait(&mut self, milliseconds: u64) {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end && !self.is_over() {
            self.thaw(false);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets all workers end and their files drain.
    pub(super) fn end_in_peace(&mut self) -> Result<(), String> {
        std::fs::write(self.place.stop(), "")
            .map_err(|error| format!("{}: {error}", self.place.stop().display()))?;
        let since = Instant::now();
        for worker in 0..self.runs.len() {
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
    pub(super) fn await_end(
        &mut self,
        child: &mut Child,
        since: Instant,
    ) -> Result<Option<i32>, String> {
        loop {
            self.thaw(false);
            match child.try_wait() {
                Ok(Some(status)) => return Ok(Some(status.code().unwrap_or(-1))),
                Ok(None) if since.elapsed() > WAIT_MAX => return Ok(None),
                Ok(None) if self.is_urgent() => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(Some(0));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(3)),
                Err(error) => return Err(format!("waiting for a command: {error}")),
            }
        }
    }
}
