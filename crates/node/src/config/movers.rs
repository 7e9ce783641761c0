//! Where the threads of a node manager run that move data, and how they yield to programs.

use super::reader::{self, Value};
use super::{Config, ConfigError, Errors, Result};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fmt::Write;

const KEYS: &[&str] = &["cores", "nice"];

/// The nicest that a mover may be: beside one busy thread it has a tenth of a core then, so that a
/// process which waits for a lock that it holds waits for some tens of milliseconds at most.
const NICE_MAX: i64 = 10;

/// The threads that flush, move blocks between tiers, and stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Movers {
    /// The cores on which they run, in ascending order; none: on all that the manager may use.
    pub cores: Vec<usize>,
    /// What is added to the nice value of those for which no process waits.
    pub nice: u8,
}

/// Reads a list such as `0-1,4`, in any order.
///
/// # Errors
/// What is wrong with it.
fn cores_of(text: &str) -> std::result::Result<Vec<usize>, String> {
    const WANTED: &str = "give numbers and ranges such as \"0-1,4\"";
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<usize>().unwrap_or(usize::MAX))
    };
    let mut cores = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Some(first), Some(last)) = (number(first.trim()), number(last.trim())) else {
            return Err(format!("\"{part}\" is no core; {WANTED}"));
        };
        if first > last {
            return Err(format!("the range \"{part}\" ends before it begins; {WANTED}"));
        }
        if last >= CpuSet::MAX_CPU {
            return Err(format!(
                "\"{part}\" is beyond the last core of any machine, {}",
                CpuSet::MAX_CPU - 1
            ));
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// A list as [`cores_of`] reads it.
fn list_of(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|before, next| before + 1 == *next);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

/// The cores on which the calling thread may run.
fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

impl Movers {
    /// Takes the calling thread to the cores. `is_nice`: no process waits for what it does.
    ///
    /// # Errors
    /// A message; it goes on where it was.
    pub(crate) fn enter(&self, is_nice: bool) -> std::result::Result<(), String> {
        if is_nice && self.nice > 0 {
            // On Linux this is the thread alone. More than 19 counts as that.
            rustix::process::getpriority_process(None)
                .and_then(|now| {
                    rustix::process::setpriority_process(None, now + i32::from(self.nice))
                })
                .map_err(|errno| format!("node.nice = {}: {errno}", self.nice))?;
        }
        if self.cores.is_empty() {
            return Ok(());
        }
        let mut set = CpuSet::new();
        self.cores.iter().for_each(|&core| set.set(core));
        rustix::thread::sched_setaffinity(None, &set).map_err(|errno| {
            format!(
                "node.cores = \"{}\": {errno}; the manager may use {}",
                list_of(&self.cores),
                list_of(&usable())
            )
        })
    }
}

impl Value<'_> {
    /// The table `[node]`.
    pub(super) fn movers(&self, errors: &Errors) -> reader::Result<Movers> {
        let section = self.table(KEYS, "a table: [node]")?;
        let cores = section.get("cores").map(|entry| {
            let text = entry.text()?;
            cores_of(text).map_err(|why| entry.error(why))
        });
        let nice = section.get("nice").map(|entry| {
            let number = entry.value.as_integer().and_then(|number| number.as_str().parse().ok());
            match number {
                Some(number @ 0..=NICE_MAX) => Ok(number as u8),
                _ => Err(entry.error(format_args!("give a number from 0 to {NICE_MAX}"))),
            }
        });
        Ok(Movers {
            cores: cores.map_or_else(Vec::new, |cores| errors.or(cores, Vec::new())),
            nice: nice.map_or(0, |nice| errors.or(nice, 0)),
        })
    }
}

impl Config {
    /// Whether the movers' cores are there, and may be used.
    pub(super) fn check_movers(&self, place: &str) -> Result<()> {
        let usable = usable();
        match self.movers.cores.iter().find(|core| !usable.contains(core)) {
            Some(core) => Err(ConfigError::new(
                place,
                format_args!(
                    "core {core} does not exist, or may not be used here; there are {}",
                    list_of(&usable)
                ),
            )),
            None => Ok(()),
        }
    }

    /// What is said of the movers, as part of the canonical text. It is no part of the instance's
    /// identity: another run may find other cores.
    pub(super) fn write_movers(&self, text: &mut String) {
        let Movers { cores, nice } = &self.movers;
        if self.movers == Movers::default() {
            return;
        }
        *text += "[node]\n";
        if !cores.is_empty() {
            let _ = writeln!(text, "cores = \"{}\"", list_of(cores));
        }
        if *nice > 0 {
            let _ = writeln!(text, "nice = {nice}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_written() {
        for (text, cores, again) in [
            ("0", &[0][..], "0"),
            ("4,0-1", &[0, 1, 4], "0-1,4"),
            (" 2 - 3 , 3,7", &[2, 3, 7], "2-3,7"),
            ("1023", &[1023], "1023"),
        ] {
            assert_eq!(cores_of(text).as_deref(), Ok(cores), "{text}");
            assert_eq!(list_of(cores), again);
            assert_eq!(cores_of(&list_of(cores)).as_deref(), Ok(cores));
        }
        for (text, why) in [
            ("", "is no core"),
            ("0,", "is no core"),
            ("-1", "is no core"),
            ("0-", "is no core"),
            ("a", "is no core"),
            ("1-2-3", "is no core"),
            ("+1", "is no core"),
            ("3-1", "ends before it begins"),
            ("0-1024", "beyond the last core"),
            ("99999999999999999999", "beyond the last core"),
        ] {
            let said = cores_of(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn a_thread_goes_to_its_cores_and_no_other_thread_does() {
        let before = usable();
        let last = *before.last().unwrap();
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let (movers, usual) = (Movers { cores: vec![last], nice: 3 }, nice());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                movers.enter(true).unwrap();
                assert_eq!(usable(), [last]);
                assert_eq!(nice(), (usual + 3).min(19));
            });
        });
        assert_eq!((usable(), nice()), (before.clone(), usual));
        let none = Movers { cores: vec![CpuSet::MAX_CPU - 1], nice: 0 };
        if !before.contains(&(CpuSet::MAX_CPU - 1)) {
            assert!(none.enter(true).unwrap_err().contains("node.cores"));
        }
        assert_eq!(usable(), before);
    }
}
