//! What operations take that does not depend on the machine: system calls, of the program and of
//! the node manager, by strace; instructions of the program, by callgrind. Each is the difference
//! between two runs, one with more operations, divided by how many more.

use super::works::Work;
use super::{Bench, System};
use crate::measured::Unit;
use crate::micro::{FOREBAY, PAGE_CACHE};
use crate::server::{self, Server};
use crate::site;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Operations of the two runs.
const COUNTS: [u64; 2] = [64, 320];
/// The same where each starts a process.
const FEW: [u64; 2] = [4, 20];
const CALLS: &str = "system calls";
const MANAGER: &str = "system calls, node manager";
const INSTRUCTIONS: &str = "instructions";

/// The tools that are there.
pub(super) struct Tools {
    strace: bool,
    callgrind: bool,
}

impl Tools {
    /// Looks for them; what is not counted without them is said.
    pub fn find(notes: &mut Vec<String>) -> Tools {
        let works = |words: &[&str]| server::run(Command::new(words[0]).args(&words[1..])).is_ok();
        let strace = works(&["strace", "-c", "-U", "calls,name", "-o", "/dev/null", "true"]);
        let callgrind =
            works(&["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "true"]);
        if !strace {
            notes.push("NOT COUNTED: system calls: strace is not installed".to_owned());
        }
        if !callgrind {
            notes.push("NOT COUNTED: instructions: valgrind is not installed".to_owned());
        }
        Tools { strace, callgrind }
    }
}

/// System calls of a run, as far as they could be counted.
struct Counted {
    calls: Option<u64>,
    manager: Option<u64>,
}

impl Bench<'_> {
    /// Counts what a work takes, beside the plain directory.
    pub(super) fn count(
        &mut self,
        work: &Work,
        systems: &[System],
        tools: &Tools,
    ) -> Result<(), String> {
        // What a script takes is that of other programs.
        if work.script.is_some() {
            return Ok(());
        }
        for system in systems.iter().filter(|system| [PAGE_CACHE, FOREBAY].contains(&system.name)) {
            if tools.strace {
                let counts = if work.starts { FEW } else { COUNTS };
                let [few, many] = counts.map(|count| self.counted_calls(work, system, count));
                let (few, many) = (few?, many?);
                self.add_count(work, system, CALLS, counts, (few.calls, many.calls));
                self.add_count(work, system, MANAGER, counts, (few.manager, many.manager));
            }
            if tools.callgrind && !work.starts {
                let [few, many] = COUNTS.map(|count| self.fewest_instructions(work, system, count));
                self.add_count(work, system, INSTRUCTIONS, COUNTS, (few?, many?));
            }
        }
        Ok(())
    }

    fn add_count(
        &mut self,
        work: &Work,
        system: &System,
        what: &str,
        [few, many]: [u64; 2],
        counted: (Option<u64>, Option<u64>),
    ) {
        // Fewer for more operations: something else was counted, too.
        if let (Some(first), Some(second)) = counted
            && let Some(more) = second.checked_sub(first)
        {
            let each = more as f64 / (many - few) as f64;
            let name = format!("{} ({what})", work.name);
            self.measured.add(&name, system.name, Unit::Count, each);
        }
    }

    /// The system calls of a run of so many operations.
    fn counted_calls(&self, work: &Work, system: &System, count: u64) -> Result<Counted, String> {
        let out = self.scratch.join("calls");
        let words = ["strace", "-f", "-c", "-U", "calls,name", "-o"];
        let folders = self.prepare(work, system, count, "count")?;
        let watch = system.manager().map(|pid| self.watch_manager(pid, &words)).transpose()?;
        let mut wrapped = words.map(str::to_owned).to_vec();
        wrapped.push(out.display().to_string());
        server::run(&mut self.command(work, system, &folders, count, &wrapped))?;
        let manager = watch.map(|(watch, file)| {
            drop(watch);
            total(&file)
        });
        folders.remove()?;
        Ok(Counted { calls: total(&out), manager: manager.flatten() })
    }

    /// Lets strace count the node manager's calls, if it may, to a file that it writes at its end.
    fn watch_manager(&self, pid: u32, words: &[&str]) -> Result<(Server, PathBuf), String> {
        let [out, log] = ["manager", "strace.log"].map(|name| self.scratch.join(name));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&out).args(["-p", &pid.to_string()]);
        let mut watch = Server::start("strace", &mut command, &log)?;
        watch.wait(|| fs::read_to_string(&log).is_ok_and(|said| said.contains("attached")))?;
        Ok((watch, out))
    }

    /// The fewest instructions of some runs of so many operations: a thread that waits for another
    /// one spins for a while.
    fn fewest_instructions(
        &self,
        work: &Work,
        system: &System,
        count: u64,
    ) -> Result<Option<u64>, String> {
        let mut fewest = None;
        for _ in 0..self.measured.rounds {
            let counted = self.instructions(work, system, count)?;
            fewest = fewest.into_iter().chain(counted).min();
        }
        Ok(fewest)
    }

    /// The instructions of a run of so many operations, the program's own.
    fn instructions(
        &self,
        work: &Work,
        system: &System,
        count: u64,
    ) -> Result<Option<u64>, String> {
        let folders = self.prepare(work, system, count, "count")?;
        let log = self.scratch.join("callgrind");
        let words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];
        let mut wrapped = words.map(str::to_owned).to_vec();
        wrapped.push(format!("--log-file={}", log.display()));
        server::run(&mut self.command(work, system, &folders, count, &wrapped))?;
        folders.remove()?;
        let said = fs::read_to_string(&log).map_err(|e| site::failed(&log, &e))?;
        let number = said.lines().find_map(|line| line.split_once("Collected :"));
        Ok(number.and_then(|(_, number)| number.trim().parse().ok()))
    }
}

/// The number of calls in a file that strace has written; `None` without one.
fn total(file: &Path) -> Option<u64> {
    total_of(&fs::read_to_string(file).ok()?)
}

/// The same of the table in it.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_end().strip_suffix(" total"));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_total() {
        let text = "    calls syscall\n--------- ----------------\n        2 read\n       12 close\n\
            --------- ----------------\n       14 total\n";
        assert_eq!(total_of(text), Some(14));
        assert_eq!(total_of(""), None);
    }
}
