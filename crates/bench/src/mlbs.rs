//! Out-of-core computing: the workflow of an adjoint simulation (MLBS, section V.B, Tables II and
//! III) and reverse time migration (V.D, Table IV), each with its records in files on the store, on
//! the burst buffer, with Data Elevator's strategy, and in a container of MLBS on Forebay's tiers.
//!
//! A GiB of the paper is half a MiB here, and a second is 2 ms; steps are a fifth. So a record of 4
//! GiB has 2 MiB, and devices a quarter of the speed that the paper's I/O times give. Memory and
//! burst buffer hold the share of the records that they hold in the paper. Of migration, the kernel
//! is measured first, and devices are as fast in proportion to it as in the paper.

use crate::measured::{Claim, Measured, Unit};
use crate::runner::end_manager;
use crate::site::{self, Site};
use crate::stage::When;
use crate::{Options, Scale, server};
use forebay_placement::outofcore::{BUSY_MAX, Beyond, Terms, blocking_s, io_s};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const KERNEL: &str = include_str!("../kernels/adjoint.cc");
const ROUNDS: u32 = 3;
const GIB: f64 = (1_u64 << 30) as f64;

/// Bytes a second of Lustre and the burst buffer: what Table II has of them, over four.
const STORE: f64 = 0.6 * GIB / 4.0;
const BURST_BUFFER: f64 = 1.77 * GIB / 4.0;
/// Of 128 GiB, 70 % are for records of 4 GiB.
const RAM_RECORDS: f64 = 0.7 * 128.0 / 4.0;
/// Of each phase of the paper.
const PAPER_STEPS: f64 = 3500.0;
/// Seconds of both phases.
const PAPER_KERNEL_S: f64 = 1800.0;
/// The share of the burst buffer beyond the records, so that it need not make room by flushing
/// them: what a tier keeps free by default (`high_watermark`), and a tenth.
const HEADROOM: f64 = 0.35;
/// Least that a RAM tier takes.
const RAM_MIN: f64 = 16.0 * 262_144.0;

/// Table II: the ratio, and seconds of I/O on Lustre, burst buffer, Data Elevator and MLBS.
const TABLE: [(u64, [f64; 4]); 10] = [
    (50, [864.8, 323.2, 335.9, 6.1]),
    (40, [1088.9, 390.6, 403.5, 7.4]),
    (30, [1483.3, 531.3, 542.9, 9.9]),
    (20, [2275.7, 815.0, 846.4, 15.0]),
    (15, [3041.5, 1082.2, 1115.5, 19.9]),
    (10, [4716.8, 1624.9, 1655.7, 189.1]),
    (5, [9488.8, 3143.3, 3223.3, 1242.2]),
    (3, [16066.4, 5235.6, 5293.4, 2999.4]),
    (2, [24185.8, 7894.1, 8083.3, 5307.4]),
    (1, [48910.0, 15491.2, 15803.1, 12077.5]),
];

/// Table IV: what the paper's grids are. I/O takes this share of the time on Lustre and on the
/// burst buffer; `ram` of the records have room in memory.
struct Migration {
    name: &'static str,
    edge: u64,
    store_share: f64,
    burst_buffer_share: f64,
    ram: f64,
    /// Speed-up by burst buffer, Data Elevator, MLBS.
    paper: [f64; 3],
}

/// Edges have the proportion of 0.5 GiB to 2.9 GiB.
const MIGRATIONS: [Migration; 2] = [
    Migration {
        name: "migration, small grid",
        edge: 64,
        store_share: 0.43,
        burst_buffer_share: 0.25,
        ram: 179.2 / 625.0,
        paper: [1.29, 1.06, 1.87],
    },
    Migration {
        name: "migration, large grid",
        edge: 115,
        store_share: 0.84,
        burst_buffer_share: 0.50,
        ram: 30.9 / 625.0,
        paper: [3.18, 2.71, 6.06],
    },
];
const MIGRATION_RATIO: u64 = 8;

/// What the workflow is run on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Store,
    BurstBuffer,
    DataElevator,
    Mlbs,
}

impl System {
    const ALL: [System; 4] =
        [System::Store, System::BurstBuffer, System::DataElevator, System::Mlbs];

    fn name(self) -> &'static str {
        match self {
            System::Store => "store",
            System::BurstBuffer => "burst buffer",
            System::DataElevator => crate::systems::data_elevator::SYSTEM.name,
            System::Mlbs => "MLBS on Forebay",
        }
    }
}

/// A run of the workflow.
#[derive(Clone)]
struct Case {
    name: String,
    kernel: &'static str,
    edge: u64,
    /// Time steps of each phase.
    steps: u64,
    ratio: u64,
    passes: u64,
    /// Bytes a second.
    store: f64,
    burst_buffer: f64,
    /// Records that memory holds.
    ram_records: f64,
    /// Of migration, what the steps take in both phases for each record.
    kernel_s: Option<f64>,
}

impl Case {
    fn record_bytes(&self) -> f64 {
        (self.edge.pow(3) * 4) as f64
    }

    /// What the container reads ahead into: two records at least.
    fn window_bytes(&self) -> f64 {
        (0.45 * self.ram_records).max(2.0) * self.record_bytes()
    }

    /// The RAM tier: what is left of the memory for records.
    fn tier_bytes(&self) -> f64 {
        (self.ram_records * self.record_bytes() - self.window_bytes()).max(RAM_MIN)
    }

    /// The share of the records that need no burst buffer.
    fn resident(&self) -> f64 {
        let memory = self.window_bytes() + self.tier_bytes();
        (memory / (self.records() * self.record_bytes())).min(1.0)
    }

    fn records(&self) -> f64 {
        (self.steps / self.ratio) as f64
    }

    /// The configuration of a system, and the directory that the program gets.
    fn config(&self, system: System) -> (String, &'static str) {
        let emulated = |bytes_s: f64, latency: &str| {
            format!("emulate = {{ bandwidth = \"{bytes_s:.0}B/s\", latency = \"{latency}\" }}\n")
        };
        let (store, burst_buffer) =
            (emulated(self.store, "50us"), emulated(self.burst_buffer, "10us"));
        let pfs = |mode: &str| format!("[[backing]]\npath = \"pfs\"\nmode = \"{mode}\"\n{store}");
        let ram = |bytes: f64| {
            format!("[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = {bytes:.0}\n")
        };
        if system == System::Mlbs {
            let records = (self.records() + 2.0) * self.record_bytes();
            let capacity = records / (1.0 - HEADROOM) + RAM_MIN;
            let bb = format!(
                "[[tier]]\nname = \"bb\"\nkind = \"file\"\npath = \"bb\"\n\
                 capacity = {capacity:.0}\n{burst_buffer}"
            );
            let memory = ram(self.tier_bytes());
            let text = format!("[flush]\ntrigger = \"on-exit\"\n{}{memory}{bb}", pfs("buffered"));
            return (text, "pfs");
        }
        let bb = format!("[[backing]]\npath = \"bb\"\nmode = \"bypass\"\n{burst_buffer}");
        let target = if system == System::Store { "pfs" } else { "bb" };
        (pfs("bypass") + &bb + &ram(RAM_MIN), target)
    }
}

/// What the program says of a run, in seconds.
#[derive(Clone, Copy, Debug)]
struct Seen {
    write: f64,
    read: f64,
    kernel: f64,
    wall: f64,
    /// A write and a read that nothing has held up: the medians of both.
    calls: f64,
}

impl Seen {
    fn io(&self) -> f64 {
        self.write + self.read
    }

    /// Reads the line `WRITE_US,READ_US,END,KERNEL_US,WALL_US,CALLS_US`; behind it may be the
    /// movers' line.
    fn parse(printed: &str) -> Option<Seen> {
        let line = printed.lines().next()?;
        let numbers: Result<Vec<u64>, _> = line.split(',').map(str::parse).collect();
        let [write, read, _, kernel, wall, calls] = numbers.ok()?[..] else { return None };
        let [write, read, kernel, wall, calls] =
            [write, read, kernel, wall, calls].map(|us| us as f64 / 1e6);
        Some(Seen { write, read, kernel, wall, calls })
    }
}

struct Bench<'a> {
    options: &'a Options,
    site: &'a Site,
    program: &'a Path,
}

impl Bench<'_> {
    fn run(&self, case: &Case, system: System) -> Result<Seen, String> {
        let way = if system == System::Mlbs { "records" } else { "files" };
        self.run_as(way, case, system)
    }

    /// The same; `way` is the program's.
    fn run_as(&self, way: &str, case: &Case, system: System) -> Result<Seen, String> {
        self.site.clear()?;
        let (text, target) = case.config(system);
        let config = self.site.path("forebay.toml");
        fs::write(&config, text).map_err(|e| site::failed(&config, &e))?;
        let forebay = &self.options.forebay;
        let mut command = Command::new(forebay);
        command.arg("run").arg("--config").arg(&config).arg("--");
        if system == System::DataElevator {
            command.arg(forebay).args(["bench-worker", When::Close.name()]);
            command.args([self.site.path("bb"), self.site.path("pfs")]).arg("--");
        }
        command.arg(self.program).arg(way).arg(self.site.path(target)).arg(case.kernel);
        command.args([case.edge, case.steps, case.ratio, case.passes].map(|n| n.to_string()));
        if system == System::Mlbs {
            command.arg(format!("{:.0}", case.window_bytes()));
        }
        let printed = server::run(&mut command);
        end_manager(Command::new(forebay).arg("stop").arg("--config").arg(&config))?;
        let printed = printed.map_err(|e| format!("{}, {}: {e}", case.name, system.name()))?;
        Seen::parse(&printed).ok_or_else(|| format!("not a line of the program's: {printed:?}"))
    }
}

/// What the devices give a program that does nothing but I/O, and what a copy takes: seconds for
/// each byte (MLBS, section V.B: "a small IOR-like code").
struct Rates {
    /// Of a program that waits for each call.
    store: f64,
    burst_buffer: f64,
    data_elevator: f64,
    /// Of the burst buffer where two threads use it at a time, as movers and helpers do.
    layer: f64,
    copy: f64,
}

impl Rates {
    /// Each record is written and read. Of MLBS what a call takes where a record is computed on for
    /// longer than the burst buffer needs for it: nothing but copies.
    fn measure(bench: &Bench<'_>, case: &Case, pass_s: f64) -> Result<Rates, String> {
        let records = case.records().min(PROBE_RECORDS);
        let io = Case { kernel: "dense", steps: records as u64, ratio: 1, ..case.clone() };
        let alone = |way, system| {
            let seen = bench.run_as(way, &Case { passes: 0, ..io.clone() }, system)?;
            Ok::<_, String>(seen.io() / (2.0 * records * case.record_bytes()))
        };
        let passes = (2.0 * case.record_bytes() / case.burst_buffer / pass_s).ceil() as u64;
        let hidden = bench.run(&Case { passes, ..io.clone() }, System::Mlbs)?;
        Ok(Rates {
            store: alone("files", System::Store)?,
            burst_buffer: alone("files", System::BurstBuffer)?,
            data_elevator: alone("files", System::DataElevator)?,
            layer: alone("streams", System::BurstBuffer)?,
            copy: hidden.calls / (2.0 * case.record_bytes()),
        })
    }
}

/// Records of a run that measures a device.
const PROBE_RECORDS: f64 = 24.0;

/// Runs all rows of the three tables.
///
/// # Errors
/// What could not be made or run, or a record that was read otherwise than it was written.
pub fn mlbs(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let program = compile(&site, &options.forebay)?;
    let bench = Bench { options, site: &site, program: &program };
    let is_small = options.scale == Scale::Small;
    let title = "Out-of-core computing: adjoint simulation and migration";
    let mut measured = Measured::new("mlbs", title, options.scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    measured.notes.push(NOTES.to_owned());
    say("how long the kernels take");
    let pass_s = pass_s(&bench)?;
    let cases = cases(&bench, pass_s)?;
    measured.claims = cases.iter().flat_map(|(case, paper)| claims(case, paper)).collect();
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for (case, _) in &cases {
            say(&format!("round {round}: {}, speeds", case.name));
            let rates = Rates::measure(&bench, case, pass_s)?;
            let mut seen = Vec::new();
            for turn in 0..System::ALL.len() {
                let system = System::ALL[(turn + round as usize) % System::ALL.len()];
                say(&format!("round {round}: {}, {}", case.name, system.name()));
                seen.push((system, bench.run(case, system)?));
            }
            add(&mut measured, case, &rates, &seen)?;
        }
    }
    Ok(measured)
}

const NOTES: &str = "Records are 2 MiB, devices a quarter of the speed that Table II gives; \
    memory holds 22 of 3500 / ratio records as in the paper (70 % of 128 GiB). The burst buffer \
    holds all: with the 1 TiB that the paper names, its Table II cannot come out, as the rest \
    would have to pass through Lustre, which takes longer than the whole run. \
    Equation (3) with what memory keeps and what the kernel loses beside the movers.";

/// Compiles the program with the container's headers and the library beside the command.
fn compile(site: &Site, forebay: &Path) -> Result<PathBuf, String> {
    let include = site.folder("include")?.join("forebay");
    fs::create_dir(&include).map_err(|e| site::failed(&include, &e))?;
    for (name, text) in HEADERS {
        let file = include.join(name);
        fs::write(&file, text).map_err(|e| site::failed(&file, &e))?;
    }
    let library = library(forebay)?;
    let folder = site.folder("lib")?;
    for name in ["libforebay.so", "libforebay.so.0"] {
        let link = folder.join(name);
        symlink(&library, &link).map_err(|e| site::failed(&link, &e))?;
    }
    let (include, library) = (site.path("include"), folder.display().to_string());
    let options = [
        "-DWITH_MLBS",
        &format!("-I{}", include.display()),
        &format!("-L{library}"),
        &format!("-Wl,-rpath,{library}"),
        "-lforebay",
    ];
    site.compile_cpp("adjoint", KERNEL, &options)
}

const HEADERS: [(&str, &str); 2] = [
    ("forebay.h", include_str!("../../../include/forebay/forebay.h")),
    ("mlbs.hpp", include_str!("../../../include/forebay/mlbs.hpp")),
];

/// The C library: where cargo leaves it beside the command, or where it is installed.
fn library(forebay: &Path) -> Result<PathBuf, String> {
    let folder = forebay.parent().unwrap_or(Path::new("."));
    let places = [
        folder.join("libforebay_capi.so"),
        folder.join("deps/libforebay_capi.so"),
        folder.join("../lib/libforebay.so.0"),
    ];
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.ok_or_else(|| {
        let places = places.map(|place| place.display().to_string()).join(", ");
        format!("the C library is in none of {places}; scripts/install builds and installs it")
    })
}

/// What the paper says of a case: speed-ups by burst buffer, Data Elevator and MLBS.
type Paper = [f64; 3];

fn simulation(scale: Scale, ratio: u64, passes: u64) -> Case {
    let (steps, edge) = scale.of((700, 80), (50, 40));
    Case {
        name: format!("ratio {ratio}"),
        kernel: "dense",
        edge,
        steps,
        ratio,
        passes,
        store: STORE,
        burst_buffer: BURST_BUFFER,
        ram_records: RAM_RECORDS * steps as f64 / PAPER_STEPS,
        kernel_s: None,
    }
}

/// Seconds that a pass of the dense kernel takes.
fn pass_s(bench: &Bench<'_>) -> Result<f64, String> {
    // With fewer steps than the ratio nothing is written, so there is no second phase.
    let simulation = simulation(bench.options.scale, 1000, PROBE_PASSES);
    let kernel_s = bench.run(&Case { steps: 100, ..simulation }, System::Store)?.kernel;
    Ok(kernel_s / (100 * PROBE_PASSES) as f64)
}

fn cases(bench: &Bench<'_>, pass_s: f64) -> Result<Vec<(Case, Paper)>, String> {
    let simulation = |ratio, passes| simulation(bench.options.scale, ratio, passes);
    // So many passes that a step takes what it took in the paper, scaled as bytes and speeds are.
    let paper_s = PAPER_KERNEL_S / (2.0 * PAPER_STEPS);
    let scaled = simulation(1, 1).record_bytes() / (4.0 * GIB) * 4.0;
    let passes = (paper_s * scaled / pass_s).round().max(1.0) as u64;
    let mut cases = Vec::new();
    for (ratio, io) in TABLE {
        let wall = io.map(|io| PAPER_KERNEL_S + io);
        cases.push((simulation(ratio, passes), [1, 2, 3].map(|system| wall[0] / wall[system])));
    }
    for migration in &MIGRATIONS {
        cases.push((migration.case(bench)?, migration.paper));
    }
    Ok(cases)
}

const PROBE_PASSES: u64 = 500;

impl Migration {
    /// Measures the kernel, and makes devices that are as fast beside it as in the paper.
    fn case(&self, bench: &Bench<'_>) -> Result<Case, String> {
        let records = bench.options.scale.of(90, 4);
        let mut case = Case {
            name: self.name.to_owned(),
            kernel: "wave",
            edge: self.edge,
            steps: MIGRATION_RATIO * records,
            ratio: MIGRATION_RATIO,
            passes: 1,
            store: STORE,
            burst_buffer: BURST_BUFFER,
            ram_records: self.ram * records as f64,
            kernel_s: None,
        };
        // With fewer steps than the ratio nothing is written, so there is no second phase.
        let probe = Case { steps: MIGRATION_RATIO * 6, ratio: 1000, ..case.clone() };
        let kernel_s = bench.run(&probe, System::Store)?.kernel / 3.0;
        // Of a record that is written and read, beside the steps of both phases.
        let speed = |share: f64| 2.0 * case.record_bytes() / (kernel_s * share / (1.0 - share));
        (case.store, case.burst_buffer) = (speed(self.store_share), speed(self.burst_buffer_share));
        case.kernel_s = Some(kernel_s);
        Ok(case)
    }
}

fn work(case: &Case, what: &str) -> String {
    format!("{}: {what}", case.name)
}

const IO: &str = "I/O";
const WALL: &str = "all";
const EXPECTED: &str = "expected speed-up";
const EXTENDED: &str = "expected, extended";
const ACTUAL: &str = "actual speed-up";
const OFF: &str = "off the expected";
const SHARE: &str = "share of I/O";

/// Adds what a round has shown of a case.
fn add(
    measured: &mut Measured,
    case: &Case,
    rates: &Rates,
    seen: &[(System, Seen)],
) -> Result<(), String> {
    let of = |system| {
        let found = seen.iter().find(|(of, _)| *of == system);
        found.map(|(_, seen)| *seen).ok_or_else(|| format!("{}: not run", case.name))
    };
    let (store, ours) = (of(System::Store)?, of(System::Mlbs)?);
    let bytes = 2.0 * case.records() * case.record_bytes();
    let through = |rate: f64| io_s(bytes, 1.0 / rate);
    for &(system, seen) in seen {
        let mut add =
            |what, unit, value| measured.add(&work(case, what), system.name(), unit, value);
        add(IO, Unit::Time, seen.io());
        add(WALL, Unit::Time, seen.wall);
        add(SHARE, Unit::Share, seen.io() / seen.wall);
        if system != System::Store {
            add(ACTUAL, Unit::Count, store.wall / seen.wall);
        }
    }
    let direct_s = through(rates.store);
    let staged =
        [(System::BurstBuffer, rates.burst_buffer), (System::DataElevator, rates.data_elevator)];
    for (system, rate) in staged {
        let time_s = blocking_s(store.kernel, through(rate));
        let expected = blocking_s(store.kernel, direct_s) / time_s;
        measured.add(&work(case, EXPECTED), system.name(), Unit::Count, expected);
    }
    let (io_s, copy_s) = (through(rates.layer), through(rates.copy));
    let terms = Terms { kernel_s: store.kernel, copy_s, io_s, direct_s };
    let beyond =
        Beyond { resident: case.resident(), kernel_loss: ours.kernel / store.kernel - 1.0 };
    let name = System::Mlbs.name();
    measured.add(&work(case, EXPECTED), name, Unit::Count, terms.speedup());
    let extended = terms.speedup_with(beyond);
    measured.add(&work(case, EXTENDED), name, Unit::Count, extended);
    let off = (store.wall / ours.wall / extended - 1.0).abs();
    measured.add(&work(case, OFF), name, Unit::Share, off);
    Ok(())
}

/// Better than both staging systems, as the model expects, and without a wait where it says so.
fn claims(case: &Case, paper: &Paper) -> Vec<Claim> {
    let ours = System::Mlbs.name();
    let wall = work(case, WALL);
    let faster = |system: System, wanted, paper: f64| {
        let claim = Claim::ratio(&wall, (&wall, system.name()), (&wall, ours), wanted);
        Claim { paper: Some(paper), ..claim }
    };
    let mut claims = vec![
        faster(System::Store, 1.0, paper[2]),
        faster(System::BurstBuffer, 1.0, paper[2] / paper[0]),
        faster(System::DataElevator, 1.0, paper[2] / paper[1]),
        Claim::at_most(&work(case, OFF), ours, 0.05),
    ];
    // Where the model says that it can be hidden.
    let io_s = 2.0 * case.record_bytes() / case.burst_buffer;
    if case.kernel_s.is_some_and(|kernel_s| io_s / kernel_s <= BUSY_MAX) {
        claims.push(Claim::at_most(&work(case, SHARE), ours, 0.02));
    }
    claims
}
