//! The standing lists: numbered cases that are each short and follow from their number and the
//! seed, in batches under one node manager, which end in peace or not.

use super::aims::Aim;
use super::conductor::Tally;
use super::counts::{WordsFile, sum};
use super::pairs;
use super::points::Seen;
use super::scenario::Scenario;
use super::workload;
use super::{DAMAGED, Kind, Torture, explain};
use forebay_placement::Random;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Cases that one conductor plays in a batch: their files stay until its end.
const BATCH: usize = 24;
/// A batch without a finished case for so long hangs.
const WAIT_MAX: Duration = Duration::from_secs(300);

impl Scenario {
    /// Number of its cases; `None` if it is no list.
    pub fn cases(self) -> Option<u64> {
        match self {
            Scenario::Pairs => Some(pairs::CASES),
            Scenario::BackendCalls => Some(workload::BACKEND_CALLS),
            Scenario::Allocations => Some(workload::ALLOCATIONS),
            Scenario::Points => Some(Aim::count()),
            Scenario::FullTiers | Scenario::Mixture => None,
        }
    }
}

/// Every `of`-th case, from case `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    first: u64,
    of: u64,
}

impl FromStr for Slice {
    type Err = String;

    fn from_str(text: &str) -> Result<Slice, String> {
        let numbers = text.split_once('/').and_then(|(first, of)| {
            Some(Slice { first: first.parse().ok()?, of: of.parse().ok()? })
        });
        let slice = numbers.filter(|slice| (1..=slice.of).contains(&slice.first));
        slice.ok_or_else(|| "K/N with K from 1 to N".to_owned())
    }
}

impl Slice {
    /// The numbers of its cases, of so many.
    fn cases(self, count: u64) -> Vec<u64> {
        (self.first..=count).step_by(self.of as usize).collect()
    }
}

/// What came of a list.
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its cases, and how many of them were to be played.
    pub cases: (u64, u64),
    /// Sums.
    pub tally: Tally,
    /// By kills and pauses, the points at which they hit.
    pub reached: Seen,
}

impl Listed {
    /// For the report: some lines.
    pub fn text(&self) -> String {
        let Tally { cases, kills, kills_hit, kills_behind, pauses, pauses_hit, .. } = self.tally;
        let Tally { pauses_behind, managers, managers_hit, faults, faults_hit, bytes, .. } =
            self.tally;
        let ((all, asked), name) = (self.cases, &self.name);
        let mut text =
            format!("  {name:<11} {cases} of {asked} cases played; the list has {all}\n");
        let mut line = |is_meant: bool, count: u64, what: String| {
            if is_meant {
                text.push_str(&format!("    {count:>9} {what}\n"));
            }
        };
        let is_of_pairs = faults == 0;
        let within = "within an operation effective";
        let what = format!("of {kills} kills {within}, {kills_behind} behind one");
        line(is_of_pairs, kills_hit, what);
        let what = format!("of {pauses} pauses {within}, {pauses_behind} behind one");
        line(is_of_pairs, pauses_hit, what);
        let what = format!("of {managers} kills of node managers effective");
        line(is_of_pairs, managers_hit, what);
        let what =
            format!("of {faults} cases had their fault; there was none left to hit in others");
        line(!is_of_pairs, faults_hit, what);
        line(true, bytes, "bytes judged, by programs and on the store".to_owned());
        if is_of_pairs {
            text.push_str(&format!("              at points: {}\n", self.reached.text()));
        }
        text
    }
}

impl Torture {
    /// The numbers of the cases that are asked for, of so many.
    pub(super) fn cases(&self, count: u64) -> Vec<u64> {
        match self.case {
            Some(case) => vec![case],
            None => self.slice.cases(count),
        }
    }

    /// Plays a list, or the cases of it that are asked for.
    pub(super) fn list(&mut self, scenario: Scenario) -> Result<(), String> {
        let count = scenario.cases().unwrap_or_default();
        let cases = self.cases(count);
        self.report.lists.push(Listed {
            name: scenario.name(),
            cases: (count, cases.len() as u64),
            tally: Tally::default(),
            reached: Seen::default(),
        });
        // Faults are for all: a transfer of another case would take its place.
        let conductors = match scenario {
            Scenario::BackendCalls => 1,
            _ => self.runs.len(),
        };
        for (index, batch) in cases.chunks(BATCH * conductors).enumerate() {
            if self.is_over() {
                break;
            }
            self.random = Random::new(self.seed ^ Random::new(index as u64).next_u64());
            self.batch(scenario, batch, conductors)?;
        }
        self.report.playing = None;
        for worker in self.workers().filter(|_| !self.has_lost()) {
            let folder = self.place.of_worker(worker);
            if folder.exists() {
                fs::remove_dir_all(folder).map_err(explain)?;
            }
        }
        Ok(())
    }

    fn batch(
        &mut self,
        scenario: Scenario,
        cases: &[u64],
        conductors: usize,
    ) -> Result<(), String> {
        let _ = fs::remove_file(self.place.stop());
        self.place.injects = scenario == Scenario::BackendCalls;
        self.begin_logs()?;
        self.calm()?;
        self.start_other_user()?;
        for worker in self.workers() {
            let cases = cases.iter().skip(worker as usize).step_by(conductors);
            let cases: Vec<_> = cases.map(ToString::to_string).collect();
            let folder = self.place.of_worker(worker);
            if folder.exists() {
                fs::remove_dir_all(&folder).map_err(explain)?;
            }
            if cases.is_empty() || worker as usize >= conductors {
                continue;
            }
            let words = [
                format!("--seed={}", self.seed),
                format!("--until={}", self.until),
                format!("--list={}", scenario.name()),
                format!("--cases={}", cases.join(",")),
            ];
            let run = self.place.start_worker(worker, &words, &[])?;
            self.runs[worker as usize] = Some(run);
        }
        self.await_cases()?;
        self.end_batch()
    }

    /// Until all cases are played, something is lost, or the user wants to end.
    fn await_cases(&mut self) -> Result<(), String> {
        let (mut changed, mut seen) = (Instant::now(), 0);
        loop {
            self.gather_losses();
            let tally = self.tally();
            self.report.playing = self.report.lists.last().map(|listed| {
                let played = listed.tally.cases + tally.cases;
                format!("{}: {played} of {} cases", listed.name, listed.cases.1)
            });
            self.report.progress(self.since.elapsed());
            if tally.cases != seen {
                (changed, seen) = (Instant::now(), tally.cases);
            }
            if changed.elapsed() > WAIT_MAX {
                self.report.losses.push("the cases of a list do not go on".into());
            }
            let mut is_done = true;
            for worker in self.workers() {
                let Some(run) = &mut self.runs[worker as usize] else { continue };
                let has_ended = !matches!(run.try_wait(), Ok(None));
                let has_played = self.place.of_worker(worker).join("done").exists();
                if has_ended && !has_played {
                    let what = format!("the run of worker {worker} has ended before its cases");
                    self.report.losses.push(what);
                }
                is_done &= has_ended || has_played;
            }
            if is_done || self.is_over() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn tally(&self) -> Tally {
        let tally = |worker| {
            let file = self.place.of_worker(worker).join("tally");
            if file.exists() { WordsFile::open(&file).ok()?.read().ok() } else { None }
        };
        sum::<Tally>(self.workers().filter_map(tally))
    }

    fn gather_losses(&mut self) {
        if self.has_lost() {
            return;
        }
        let loss = |worker| fs::read_to_string(self.place.of_worker(worker).join("loss")).ok();
        let losses: Vec<_> = self.workers().filter_map(loss).collect();
        self.report.losses.extend(losses);
        self.gather_breaches();
        self.notice_manager();
    }

    /// Ends a batch in peace, by killing everything, or by that and a loss of memory; and compares
    /// the store with what was seen of each case, all of which was synced.
    fn end_batch(&mut self) -> Result<(), String> {
        let choice = if self.is_interrupted() { 9 } else { self.random.below(4) };
        match choice {
            _ if self.has_lost() => return Ok(()),
            0 if self.may(Kind::Everything) => {
                self.kill_everything()?;
                self.recover(&[])?;
            }
            1 if self.may(Kind::Memory) => {
                self.kill_everything()?;
                self.place.lose_memory()?;
                self.report.memory_lost += 1;
                self.recover(&[DAMAGED])?;
            }
            _ => self.end_in_peace()?,
        }
        self.gather_losses();
        self.gather_logs();
        let tally = self.tally();
        let folders: Vec<_> = self.workers().map(|worker| self.place.of_worker(worker)).collect();
        if let Some(listed) = self.report.lists.last_mut() {
            listed.tally = sum([listed.tally, tally].into_iter());
            folders.iter().for_each(|folder| listed.reached.gather(&folder.join("reached")));
        }
        if self.has_lost() || self.is_urgent() {
            return Ok(());
        }
        self.compare_cases(&folders.iter().map(|folder| folder.join("seen")).collect::<Vec<_>>())
    }

    /// Compares the store with what was seen, and makes room for other cases.
    fn compare_cases(&mut self, seen: &[PathBuf]) -> Result<(), String> {
        let names = |folder: &Path| -> BTreeSet<OsString> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect()
        };
        let store = self.place.store();
        let mut others = names(&store);
        for folder in seen {
            for name in names(folder) {
                let wanted = fs::read(folder.join(&name)).map_err(explain)?;
                let path = store.join(&name);
                match fs::read(&path) {
                    Ok(found) if found == wanted => {}
                    Ok(found) => self.report.losses.push(format!(
                        "on the store, when all had ended: {}: {}",
                        path.display(),
                        difference(&found, &wanted)
                    )),
                    Err(error) => {
                        self.report.losses.push(format!("{}: {error}", path.display()));
                    }
                }
                self.report.compared += wanted.len() as u64;
                others.remove(&name);
            }
        }
        for name in &others {
            let what = "there is on the store what no program saw";
            self.report.losses.push(format!("{}: {what}", store.join(name).display()));
        }
        self.report.comparisons += 1;
        if !self.has_lost() {
            for name in names(&store) {
                fs::remove_file(store.join(name)).map_err(explain)?;
            }
        }
        Ok(())
    }
}

fn difference(found: &[u8], wanted: &[u8]) -> String {
    let first = found.iter().zip(wanted).position(|(one, other)| one != other);
    match first {
        Some(first) => {
            let count = found.iter().zip(wanted).filter(|(one, other)| one != other).count();
            format!("{count} of {} bytes are wrong, the first at {first}", wanted.len())
        }
        None => format!("{} bytes instead of {}", found.len(), wanted.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_list_together() {
        let mut all: Vec<_> = (1..=3)
            .flat_map(|first| format!("{first}/3").parse::<Slice>().unwrap().cases(10))
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=10));
        for wrong in ["0/3", "4/3", "1", "a/b", "1/0"] {
            assert!(wrong.parse::<Slice>().is_err(), "{wrong}");
        }
        let names = ["pairs", "backend-calls", "allocations", "points", "full-tiers", "mixture"];
        assert_eq!(crate::torture::scenario::ALL.map(Scenario::name), names);
    }
}
