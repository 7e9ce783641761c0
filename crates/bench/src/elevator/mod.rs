//! Data Elevator's figures (Dong et al., HiPC 2016) at this machine's scale: kernels that write
//! HDF5 files by MPI, on emulated devices, in the ways that the paper compares, and with Forebay's.
//! What one machine cannot have (servers of a burst buffer, targets of a store, thousands of
//! processes) is simulated (`modelled`), and marked as model.
//!
//! A GB of the paper is a MiB here, or a part of one.

pub(crate) mod fig5;
pub(crate) mod fig6;
pub(crate) mod fig7;
pub(crate) mod fig8;
mod modelled;
mod programs;

use crate::measured::Measured;
use crate::runner::end_manager;
use crate::science::{Api, Mode, Science, Seen, Work, set_environment};
use crate::server;
use crate::site::{self, Site};
use crate::stage::When;
use crate::{Options, Scale};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes a second of the store.
const STORE: u64 = 200_000_000;
/// What a request takes of either device, beside its bytes.
const REQUEST_US: u64 = 100;
/// Stripes of the store.
const STRIPE: u64 = 4 << 20;
/// Threads of a mover that overlaps reading and writing.
const MOVERS: usize = 4;
/// At small scale devices are so much faster.
const SMALL_SPEEDUP: u64 = 8;
/// How long a drain may take.
const DRAIN_MAX: Duration = Duration::from_secs(300);
/// Between two looks at what is drained.
const LOOK: Duration = Duration::from_millis(50);

/// The ways that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    /// Straight to the store.
    Direct,
    /// DataWarp's `stage_out` when the job has ended.
    Command,
    /// DataWarp's API, called after each file.
    Api,
    /// Data Elevator.
    Strategy,
    /// Forebay's mode of that name.
    Staged,
    /// Forebay as it is without a rule.
    Async,
}

impl System {
    const ALL: [System; 6] = [
        System::Direct,
        System::Command,
        System::Api,
        System::Strategy,
        System::Staged,
        System::Async,
    ];

    const fn name(self) -> &'static str {
        match self {
            System::Direct => "store (PFS)",
            System::Command => "DataWarp command",
            System::Api => "DataWarp API",
            System::Strategy => crate::systems::data_elevator::SYSTEM.name,
            System::Staged => "Forebay staged",
            System::Async => "Forebay async",
        }
    }

    /// When other movers than Forebay's copy files, and how many there are. DataWarp's read a piece
    /// and then write it.
    fn movers(self) -> Option<(When, usize)> {
        match self {
            System::Command => Some((When::Exit, 1)),
            System::Api => Some((When::Close, 1)),
            System::Strategy => Some((When::Close, MOVERS)),
            System::Direct | System::Staged | System::Async => None,
        }
    }

    fn target(self) -> &'static str {
        if self.movers().is_some() { "bb" } else { "pfs" }
    }
}

/// Emulated devices: bytes a second, 0 where one is not slowed down, and microseconds of a request.
#[derive(Clone, Copy, Debug)]
struct Devices {
    store: u64,
    burst_buffer: u64,
    store_us: u64,
    burst_buffer_us: u64,
}

impl Devices {
    /// A burst buffer that is so many times as fast as the store.
    fn new(scale: Scale, times: u64) -> Devices {
        let store = STORE * scale.of(1, SMALL_SPEEDUP);
        let (store_us, burst_buffer_us) = (REQUEST_US, REQUEST_US);
        Devices { store, burst_buffer: store * times, store_us, burst_buffer_us }
    }

    fn emulation(bandwidth: u64, latency_us: u64) -> String {
        match bandwidth {
            0 => String::new(),
            _ => format!("emulate = {{ bandwidth = {bandwidth}, latency = \"{latency_us}us\" }}\n"),
        }
    }

    /// The configuration of a system for files of so many bytes altogether.
    fn config(&self, system: System, bytes: u64) -> String {
        let store = |mode: &str| {
            let emulation = Self::emulation(self.store, self.store_us);
            format!(
                "[[backing]]\npath = \"pfs\"\nmode = \"{mode}\"\nstripe = {STRIPE}\n{emulation}"
            )
        };
        let of_burst_buffer = Self::emulation(self.burst_buffer, self.burst_buffer_us);
        let directory = format!("[[backing]]\npath = \"bb\"\nmode = \"bypass\"\n{of_burst_buffer}");
        // Twice, so that no room has to be made.
        let capacity = (2 * bytes).max(64 << 20);
        let tier = format!(
            "[[tier]]\nname = \"bb\"\nkind = \"file\"\npath = \"bb\"\ncapacity = {capacity}\n{of_burst_buffer}"
        );
        let ram =
            |bytes: u64| format!("[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = {bytes}\n");
        match system {
            System::Direct => store("bypass") + &ram(4 << 20),
            System::Command | System::Api | System::Strategy => {
                store("bypass") + &directory + &ram(4 << 20)
            }
            System::Staged => {
                let rule = "[[rule]]\npath = \"**\"\nmode = \"staged\"\ntier = \"bb\"\n";
                store("buffered") + &ram(16 << 20) + &tier + rule
            }
            // A quarter of all data has room in memory.
            System::Async => {
                let trigger = "[flush]\ntrigger = \"periodic\"\nperiod = \"10ms\"\n";
                trigger.to_owned() + &store("buffered") + &ram((bytes / 4).max(16 << 20)) + &tier
            }
        }
    }
}

/// What a run has shown.
#[derive(Clone, Copy, Debug)]
struct Ran {
    seen: Seen,
    /// Microseconds of CLOCK_REALTIME when the store had everything.
    safe_us: u64,
}

impl Ran {
    /// From the first step to when the store had everything.
    fn all_s(&self) -> f64 {
        seconds(self.safe_us.saturating_sub(self.seen.start_us))
    }

    /// The same without computing: the paper's end-to-end data movement time.
    fn movement_s(&self, work: &Work) -> f64 {
        self.all_s() - work.compute_s()
    }

    /// From the end of the program on.
    fn moving_s(&self) -> f64 {
        seconds(self.safe_us.saturating_sub(self.seen.end_us))
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// A drain that was seen from its first request to its last one.
#[derive(Clone, Copy, Debug)]
struct Drained {
    seconds: f64,
    requests: f64,
    whole: f64,
}

struct Bench<'a> {
    options: &'a Options,
    site: &'a Site,
    science: Science,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, site: &'a Site) -> Result<Bench<'a>, String> {
        Ok(Bench { options, site, science: Science::compile(site)? })
    }

    fn configure(&self, text: &str) -> Result<std::path::PathBuf, String> {
        self.site.clear()?;
        let config = self.site.path("forebay.toml");
        fs::write(&config, text).map_err(|e| site::failed(&config, &e))?;
        Ok(config)
    }

    /// `forebay run`, which notes what it moves.
    fn forebay_run(&self, config: &Path, ranks: u32) -> Command {
        let mut command = Command::new(&self.options.forebay);
        command.arg("run").arg("--config").arg(config);
        command.arg("--trace").arg(self.trace());
        // What was moved in an earlier run is not of this one.
        let _ = fs::remove_file(self.trace());
        set_environment(&mut command, ranks);
        command.arg("--");
        command
    }

    fn trace(&self) -> std::path::PathBuf {
        self.site.path("moves.csv")
    }

    fn stop(&self, config: &Path) -> Result<(), String> {
        end_manager(Command::new(&self.options.forebay).arg("stop").arg("--config").arg(config))
    }

    /// Runs a kernel on a system, and looks whether the store has its data.
    fn run(&self, system: System, devices: &Devices, work: &Work) -> Result<Ran, String> {
        self.run_moved(system, devices, work, system.movers())
    }

    fn run_moved(
        &self,
        system: System,
        devices: &Devices,
        work: &Work,
        movers: Option<(When, usize)>,
    ) -> Result<Ran, String> {
        let config = self.configure(&devices.config(system, u64::from(work.steps) * work.bytes))?;
        let mut command = self.forebay_run(&config, work.ranks);
        let target = self.site.path(system.target());
        if let Some((when, count)) = movers {
            command.arg(&self.options.forebay).args(["bench-worker", when.name()]);
            command.arg(&target).arg(self.site.path("pfs"));
            command.args(["--movers", &count.to_string(), "--piece", &STRIPE.to_string(), "--"]);
        }
        command.args(self.science.words(work, &target));
        let printed = server::run(&mut command);
        self.stop(&config)?;
        let name = || format!("{}, {}", work.kernel, system.name());
        let printed = printed.map_err(|e| format!("{}: {e}", name()))?;
        let (seen, moved_us) = Seen::parse(&printed)
            .ok_or_else(|| format!("{}: not a kernel's line: {printed:?}", name()))?;
        if matches!(work.kernel, "vpic" | "chombo" | "hacc" | "ior" | "madbench") {
            let checked = self.science.check(work, &self.site.path("pfs"));
            checked.map_err(|e| format!("{}: {e}", name()))?;
        }
        // Forebay's drain has ended when its last request had.
        let flushed_us = flushes(&self.trace())?.map_or(0, |(_, end_us)| end_us);
        let safe_us = moved_us.unwrap_or(flushed_us).max(seen.end_us);
        Ok(Ran { seen, safe_us })
    }

    /// Writes staged files, and takes the time of their drain while the program goes on.
    fn drain(&self, devices: &Devices, work: &Work) -> Result<Drained, String> {
        let bytes = u64::from(work.steps) * work.bytes;
        let config = self.configure(&devices.config(System::Staged, bytes))?;
        let out = self.site.path("kernel.out");
        let mut command = self.forebay_run(&config, work.ranks);
        let script = "out=$1; shift; \"$@\" >\"$out\" || exit 1; echo ready; read line; exit 0";
        command.args(["sh", "-c", script, "sh"]).arg(&out);
        command.args(self.science.words(work, &self.site.path("pfs")));
        let ran = server::run_from(&mut command, "ready", || self.await_drained());
        self.stop(&config)?;
        let ((requests, whole), _) = ran.map_err(|e| format!("{}, staged: {e}", work.kernel))?;
        self.science.check(work, &self.site.path("pfs"))?;
        let (start_us, end_us) = flushes(&self.trace())?.ok_or("nothing was drained")?;
        Ok(Drained { seconds: seconds(end_us - start_us), requests, whole })
    }

    /// Waits until all staged files are drained; returns how many requests that took, and how many
    /// of them were a stripe or the end of a file.
    fn await_drained(&self) -> Result<(f64, f64), String> {
        let since = Instant::now();
        while since.elapsed() < DRAIN_MAX {
            if let Some(status) = self.status()? {
                let stages = status["staged"].as_array().cloned().unwrap_or_default();
                if !stages.is_empty() && stages.iter().all(|of| of["stage"] == "F") {
                    let count = |name: &str| status["counters"][name].as_f64();
                    let counted = count("staged_requests").zip(count("staged_whole"));
                    return counted.ok_or_else(|| "status has no counters".to_owned());
                }
            }
            thread::sleep(LOOK);
        }
        Err(format!("not drained after {} s", DRAIN_MAX.as_secs()))
    }

    /// What `forebay status` says of this site's pool.
    fn status(&self) -> Result<Option<Value>, String> {
        let mut command = Command::new(&self.options.forebay);
        let said = server::run(command.args(["status", "--json"]))?;
        let pools: Value = serde_json::from_str(&said).map_err(|e| format!("status: {e}"))?;
        let own = self.site.path("pfs").display().to_string();
        let pools = pools.as_array().cloned().unwrap_or_default();
        Ok(pools.into_iter().find(|pool| pool["stores"].to_string().contains(&own)))
    }

    /// What is there as soon as kernels that ran together have ended.
    fn done(&self) -> std::path::PathBuf {
        self.site.path("done")
    }

    /// Runs several kernels in one `forebay run`; returns what each says.
    fn run_together(
        &self,
        config: &str,
        works: &[Work],
        target: &str,
    ) -> Result<Vec<Seen>, String> {
        let config = self.configure(config)?;
        self.run_in(&config, works, target)
    }

    /// The same on devices that hold something already.
    fn run_in(&self, config: &Path, works: &[Work], target: &str) -> Result<Vec<Seen>, String> {
        // That of a run before.
        let _ = fs::remove_file(self.done());
        let ranks = works.first().map_or(1, |work| work.ranks);
        let mut command = self.forebay_run(config, ranks);
        let script = script(&self.science, works, &self.site.path(target));
        command.args(["sh", "-c", &format!("trap ': >\"$0\"' EXIT\nset -e\n{script}")]);
        command.arg(self.done());
        let printed = server::run(&mut command);
        self.stop(config)?;
        let printed = printed?;
        let seen = printed.lines().map(|line| Seen::parse(line).map(|(seen, _)| seen));
        let seen: Option<Vec<Seen>> = seen.collect();
        let wrong = || format!("not the lines of {} kernels: {printed:?}", works.len());
        seen.filter(|seen| seen.len() == works.len()).ok_or_else(wrong)
    }

    /// Runs a kernel plainly.
    fn run_plainly(&self, work: &Work, folder: &Path) -> Result<Seen, String> {
        let words = self.science.words(work, folder);
        let mut command = Command::new(&words[0]);
        set_environment(&mut command, work.ranks);
        let printed = server::run(command.args(&words[1..]).stdin(Stdio::null()))?;
        let seen =
            Seen::parse(&printed).ok_or_else(|| format!("not a kernel's line: {printed:?}"))?;
        Ok(seen.0)
    }
}

/// A shell's commands for kernels, one after the other.
fn script(science: &Science, works: &[Work], folder: &Path) -> String {
    let quoted = |word: &OsString| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    let line = |work: &Work| {
        let words: Vec<String> = science.words(work, folder).iter().map(quoted).collect();
        words.join(" ")
    };
    works.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// When the first flush of a recording of moves began, and the last one ended.
fn flushes(trace: &Path) -> Result<Option<(u64, u64)>, String> {
    let text = match fs::read_to_string(trace) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|e| site::failed(trace, &e))?,
    };
    Ok(flushes_of(&text))
}

fn flushes_of(text: &str) -> Option<(u64, u64)> {
    let times = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let [start, end, "flush", _, "store", _] = fields[..] else { return None };
        Some((start.parse::<u64>().ok()?, end.parse::<u64>().ok()?))
    });
    times.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
}

/// VPIC-IO: 2 billion particles (the paper says million) of 8 variables of 4 bytes: 64 GB.
fn vpic(ranks: u32, steps: u32, bytes: u64, compute_us: u64) -> Work {
    let (api, mode) = (Api::Hdf5, Mode::Independent);
    Work { kernel: "vpic", api, mode, ranks, steps, bytes, compute_us }
}

fn chombo(ranks: u32, steps: u32, bytes: u64, compute_us: u64) -> Work {
    Work { kernel: "chombo", ..vpic(ranks, steps, bytes, compute_us) }
}

/// Runs what a figure measures in each round.
fn rounds(
    options: &Options,
    measured: &mut Measured,
    mut round: impl FnMut(&mut Measured, u32) -> Result<(), String>,
) -> Result<(), String> {
    let mut number = 0;
    while measured.next_round(options, &mut number) {
        round(measured, number)?;
    }
    Ok(())
}

/// The ratio of two medians, the first over the second.
fn ratio(measured: &Measured, of: (&str, &str), over: (&str, &str)) -> Option<f64> {
    Some(measured.median(of.0, of.1)? / measured.median(over.0, over.1)?)
}

const COMPARES: &str = "Forebay staged reads back and compares each stripe before it leaves the \
    tier, which no other system here does; the emulated store serves one direction at a time, so \
    that its drain takes twice the others' time on the store";
const ONE_MACHINE: &str = "one machine: the burst buffer is one emulated device, its servers' \
    processors and links are not emulated";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_to_the_store_are_found() {
        let text = "start_us,end_us,action,from,to,bytes\n5,9,flush,bb,store,4\n3,4,demote,ram,bb,4\n\
                    4,20,flush,bb,store,4\n";
        assert_eq!(flushes_of(text), Some((4, 20)));
        assert_eq!(flushes_of("start_us,end_us,action,from,to,bytes\n"), None);
    }

    #[test]
    fn every_system_has_a_configuration_and_a_place() {
        let devices = Devices::new(Scale::Usual, 2);
        for system in System::ALL {
            let text = devices.config(system, 1 << 30);
            assert!(text.contains("path = \"pfs\"") && text.contains("name = \"ram\""), "{text}");
            assert_eq!(system.target() == "bb", system.movers().is_some());
            assert_eq!(text.contains("staged"), system == System::Staged);
        }
        let unlimited = Devices { store: 0, burst_buffer: 0, ..devices };
        assert!(!unlimited.config(System::Direct, 1).contains("emulate"));
    }
}
