//! One run of the demo's program, and what was seen of it.

use super::Options;
use super::Workload;
use super::compare::{compare, draw, table};
use super::run::{Run, seconds};
use super::site::Site;
use super::site::failed;
use crate::fills::Fills;
use crate::timeline::{Activity, Span};
use forebay_node::Config;
use forebay_node::runtime::Runtime;
use forebay_node::status::Observer;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Between two looks at how full the tiers are.
const LOOK: Duration = Duration::from_millis(20);

/// The program in its place.
pub(super) struct Scene<'a> {
    pub(super) options: &'a Options,
    pub(super) site: &'a Site,
    pub(super) program: &'a Path,
}

impl Scene<'_> {
    /// Runs the program both ways and shows the result; says whether both left the same files.
    pub(super) fn play(&self) -> Result<bool, String> {
        println!("\n1  The program directly on the store\n");
        let direct = self.run("direct.toml", "pfs-direct", None)?;
        println!("\n2  The same program under `forebay run`\n");
        let trace = self.site.path("trace.csv");
        let buffered = self.run("buffered.toml", "pfs-forebay", Some(&trace))?;

        println!("\n3  Result\n");
        let times = table(&direct, &buffered);
        println!("{times}");
        let (sums, equal) = compare(self.site, &self.options.workload)?;
        println!("{sums}");

        let output = &self.options.output;
        let table = output.join("table.txt");
        fs::write(&table, format!("{times}\n{sums}")).map_err(|e| failed(&table, &e))?;
        let picture = output.join("timeline.svg");
        draw(&picture, &direct, &buffered, &trace)?;
        println!("   timeline  {}\n   table     {}", picture.display(), table.display());
        Ok(equal)
    }

    /// Runs the program under `forebay run` with this configuration.
    pub(super) fn run(
        &self,
        config: &str,
        files: &str,
        trace: Option<&Path>,
    ) -> Result<Run, String> {
        let Workload { steps, bytes, compute_ms } = self.options.workload;
        let forebay = &self.options.forebay;
        let unusable = |e: io::Error| format!("cannot run {}: {e}", forebay.display());

        let mut command = Command::new(forebay);
        command.arg("run").arg("--config").arg(self.site.path(config));
        if let Some(trace) = trace {
            command.arg("--trace").arg(trace);
        }
        command.arg("--").arg(self.program).arg(self.site.path(files));
        command.args([u64::from(steps), bytes, compute_ms].map(|n| n.to_string()));
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(unusable)?;
        let has_ended = AtomicBool::new(false);
        let (phases, status, end_us, levels) = thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut fills = Fills::default();
                if let Some(runtime) = self.runtime(config) {
                    watch(&runtime, &mut fills, &has_ended);
                }
                fills.pictures()
            });
            let phases = child.stdout.take().map_or(Ok(Vec::new()), |output| self.follow(output));
            let status = child.wait();
            let end_us = now_us();
            has_ended.store(true, Ordering::Relaxed);
            // Without it the picture is of the movements alone.
            (phases, status, end_us, looking.join().unwrap_or_default())
        });
        let status = status.map_err(unusable)?;
        if !status.success() {
            return Err(format!("`forebay run --config {config}` ended with {status}"));
        }
        Ok(Run { phases: phases?, end_us, levels })
    }

    /// Where a run with this configuration is.
    fn runtime(&self, config: &str) -> Option<Runtime> {
        let config = Config::load(&self.site.path(config), &[]).ok()?;
        Runtime::of(&config).ok()
    }

    /// Reads the program's report while it runs, and tells each step.
    pub(super) fn follow(&self, output: impl Read) -> Result<Vec<(Activity, Span)>, String> {
        let mut phases: Vec<(Activity, Span)> = Vec::new();
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|e| format!("cannot read the program's report: {e}"))?;
            let (activity, span) = phase(&line)
                .ok_or_else(|| format!("not a line of the program's report: {line}"))?;
            let computed = phases.last().map_or(0, |(_, before)| before.length_us());
            phases.push((activity, span));
            let mib = span.bytes >> 20;
            let done = phases.iter().filter(|(activity, _)| *activity == Activity::Write).count();
            match activity {
                Activity::Write => println!(
                    "   checkpoint {done} of {}: computed {}, wrote {mib} MiB in {}",
                    self.options.workload.steps,
                    seconds(computed),
                    seconds(span.length_us())
                ),
                Activity::Read => {
                    println!("   read back {mib} MiB in {}", seconds(span.length_us()));
                }
                _ => {}
            }
        }
        Ok(phases)
    }
}

/// Notes how full the tiers of a pool are, which comes and goes meanwhile.
fn watch(runtime: &Runtime, fills: &mut Fills, has_ended: &AtomicBool) {
    let mut observer = None;
    while !has_ended.load(Ordering::Relaxed) {
        if observer.is_none() {
            observer = Observer::of(&runtime.pool).ok().filter(Observer::is_served);
        }
        if let Some(observer) = &observer {
            fills.note(&observer.tiers());
        }
        thread::sleep(LOOK);
    }
}

/// Reads `phase,start_us,end_us,bytes`.
pub(super) fn phase(line: &str) -> Option<(Activity, Span)> {
    let fields: Vec<&str> = line.split(',').collect();
    let [name, start, end, bytes] = fields[..] else { return None };
    let activity = match name {
        "compute" => Activity::Compute,
        "write" => Activity::Write,
        "read" => Activity::Read,
        _ => return None,
    };
    let span = Span {
        start_us: start.parse().ok()?,
        end_us: end.parse().ok()?,
        bytes: bytes.parse().ok()?,
    };
    Some((activity, span))
}

pub(super) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_reports_phases() {
        let span = Span { start_us: 10, end_us: 15, bytes: 7 };
        assert_eq!(phase("write,10,15,7"), Some((Activity::Write, span)));
        for line in ["", "write,10,15", "sleep,10,15,7", "read,10,x,7", "read,1,2,3,4"] {
            assert_eq!(phase(line), None, "{line}");
        }
    }
}
