//! Runs a figure: every case on every system, several times, and looks at every byte.

use crate::figures::{Case, Figure};
use crate::hierarchy::Hierarchy;
use crate::machine::Machine;
use crate::measured::goes_on;
use crate::report::{Report, Row, Times};
use crate::site::{self, Site};
use crate::systems::System;
use crate::{Options, Scale};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const ROUNDS: u32 = 3;

/// Where the program writes plainly, for comparison.
const REFERENCE: &str = "reference";

pub fn run(
    figure: &'static Figure,
    options: &Options,
    site: &Site,
    say: &mut dyn FnMut(&str),
) -> Result<Report, String> {
    let machine = Machine::here();
    let cases = (figure.cases)(options.scale);
    let program = site.compile(figure.program.0, figure.program.1)?;
    let bench = Bench { figure, options, site, program: &program };
    bench.make_reference(&cases)?;

    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let mut rows: Vec<Row> = (0..cases.len())
        .flat_map(|case| {
            let is_run =
                move |system: &&&System| case == 0 || !figure.steady.contains(&system.name);
            let systems = figure.systems.iter().filter(is_run);
            systems.map(move |system| Row { case, system: system.name, runs: Vec::new() })
        })
        .collect();
    // Round by round, so that a busy moment of the machine does not meet one system only.
    let mut round = 0;
    let is_steady = |rows: &[Row]| rows.iter().all(Row::is_steady);
    while goes_on(options, round, rounds, || is_steady(&rows)) {
        round += 1;
        for row in &mut rows {
            let case = &cases[row.case];
            let system = figure.systems.iter().find(|system| system.name == row.system);
            let system = system.ok_or("a row without a system")?;
            say(&format!("round {round}: {}, {}", case.name, system.name));
            let times = bench.measure(case, system);
            row.runs.push(times.map_err(|e| format!("{}, {}: {e}", case.name, system.name))?);
        }
    }
    let cases = cases.iter().map(|case| case.name).collect();
    let is_small = options.scale == Scale::Small;
    Ok(Report { figure, cases, rows, is_small, machine })
}

struct Bench<'a> {
    figure: &'a Figure,
    options: &'a Options,
    site: &'a Site,
    program: &'a Path,
}

impl Bench<'_> {
    /// Runs the program without Forebay and without waiting for anything. Every case of a figure
    /// writes the same files.
    fn make_reference(&self, cases: &[Case]) -> Result<(), String> {
        let Some(case) = cases.first() else { return Ok(()) };
        let folder = self.site.path(REFERENCE);
        std::fs::create_dir(&folder).map_err(|e| site::failed(&folder, &e))?;
        let hasty = Case { last: 1, ..case.clone() };
        let output = Command::new(self.program).arg(&folder).args(hasty.arguments()).output();
        let output = output.map_err(|e| site::failed(self.program, &e))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        match (site::size(&folder)?, case.bytes()) {
            (found, wanted) if found != wanted => {
                Err(format!("the program alone wrote {found} bytes instead of {wanted}"))
            }
            _ => Ok(()),
        }
    }

    fn measure(&self, case: &Case, system: &System) -> Result<Times, String> {
        self.site.clear()?;
        let hierarchy = Hierarchy::new(case.bytes(), self.figure.paper_gib, self.options.scale);
        let scratch = self.figure.scratch;
        let config = self.site.configure(system.config, &hierarchy, scratch)?;
        // Scratch data stays where it is.
        let stage = system.stage.filter(|_| !scratch);

        let mut command = Command::new(&self.options.forebay);
        command.arg("run").arg("--config").arg(&config).arg("--");
        if let Some(when) = stage {
            command.arg(&self.options.forebay).args(["bench-worker", when.name()]);
            command.arg(self.site.path(system.target)).arg(self.site.path("pfs")).arg("--");
        }
        command.arg(self.program).arg(self.site.path(system.target)).args(case.arguments());
        let since = Instant::now();
        let output = command.output().map_err(|e| site::failed(&self.options.forebay, &e))?;
        let (took, end_us) = (since.elapsed().as_secs_f64(), now_us());
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("ended with {}\n{}", output.status, said.trim_end()));
        }
        self.end_manager(&config)?;
        let last = if stage.is_some() { "pfs" } else { system.target };
        site::compare(&self.site.path(REFERENCE), &self.site.path(last))?;
        let least = hierarchy.least_s(last);
        if took < least {
            return Err(format!(
                "took {took:.3} s, but the devices need {least:.3} s: not emulated"
            ));
        }
        let report = String::from_utf8_lossy(&output.stdout);
        let (write_us, read_us, done_us, staged_us) =
            reported(&report).ok_or_else(|| format!("not a kernel's report: {report:?}"))?;
        // Staging systems are not charged for `forebay run`, which only emulates their devices.
        let end_us = staged_us.unwrap_or(end_us);
        let flush_us = match system.flushes && !scratch {
            true => end_us.saturating_sub(done_us),
            false => 0,
        };
        let seconds = |us: u64| us as f64 / 1e6;
        Ok(Times { write: seconds(write_us), read: seconds(read_us), flush: seconds(flush_us) })
    }

    /// Waits for the node manager's end, so that the next run starts one of its own.
    fn end_manager(&self, config: &Path) -> Result<(), String> {
        end_manager(Command::new(&self.options.forebay).arg("stop").arg("--config").arg(config))
    }
}

/// Runs this `forebay stop`. A node manager that has ended by itself is no error.
///
/// # Errors
/// What the command said, or why it could not be run.
pub(crate) fn end_manager(stop: &mut Command) -> Result<(), String> {
    let ended = stop.stdin(Stdio::null()).output().map_err(|error| format!("stop: {error}"))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    match ended.status.success() || said.contains("no node manager serves") {
        true => Ok(()),
        false => Err(format!("`forebay stop` ended with {}: {}", ended.status, said.trim())),
    }
}

/// Reads a kernel's line, `WRITE_US,READ_US,END`, and the movers' below it: when they were done.
fn reported(report: &str) -> Option<(u64, u64, u64, Option<u64>)> {
    let mut lines = report.lines();
    let mut numbers = lines.next()?.split(',').map(|number| number.parse().ok());
    let (write, read, end) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let staged = match lines.next() {
        Some(line) => Some(line.parse().ok()?),
        None => None,
    };
    (numbers.next().is_none() && lines.next().is_none()).then_some((write, read, end, staged))
}

/// Microseconds of CLOCK_REALTIME, which programs report in, too.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_reports_three_numbers_and_movers_one() {
        assert_eq!(reported("12,0,345\n"), Some((12, 0, 345, None)));
        assert_eq!(reported("12,0,345\n678\n"), Some((12, 0, 345, Some(678))));
        for report in ["", "1,2", "1,2,3,4", "1,x,3", "1,2,3\n4,5,6", "1,2,3\n4\n5"] {
            assert_eq!(reported(report), None, "{report}");
        }
    }
}
