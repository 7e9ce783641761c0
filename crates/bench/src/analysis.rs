//! Analyses in transit (Data Elevator, HiPC 2016, Figure 8): an index of particles above an energy
//! and a query by it, while the file is on the burst buffer, beside the same from the store
//! afterwards.
//!
//! Devices are emulated. The paper's own are a shared store and a burst buffer, whose speeds for
//! one reader it does not give; here the burst buffer reads four times as fast, at a hundredth of
//! the latency. So the ratios are of these devices, and the paper's stand beside them.

use crate::measured::{Claim, Measured, Unit};
use crate::runner::end_manager;
use crate::site::{self, Site};
use crate::{Options, server};
use std::fs;
use std::path::Path;
use std::process::Command;

const KERNEL: &str = include_str!("../kernels/particles.c");
const ROUNDS: u32 = 5;

/// Bandwidth and latency.
const STORE: (&str, &str) = ("300MB/s", "2ms");
const BURST_BUFFER: (&str, &str) = ("1200MB/s", "20us");

const IN_TRANSIT: &str = "in transit";
const AFTERWARDS: &str = "store, afterwards";
const INDEX: &str = "index";
const QUERY: &str = "query";
const READY: &str = "write to result";

/// The paper's Figure 8.
const PAPER: [(&str, f64); 2] = [(INDEX, 1.9), (QUERY, 6.6)];

/// Microseconds of index and query, as the program prints them.
fn parse(printed: &str) -> Result<(f64, f64), String> {
    let numbers: Vec<f64> =
        printed.trim().split(',').filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [index, query, found] if found > 0.0 => Ok((index / 1e6, query / 1e6)),
        _ => Err(format!("not a line of the program's: {printed:?}")),
    }
}

struct Bench<'a> {
    options: &'a Options,
    site: &'a Site,
    program: &'a Path,
    mib: u32,
}

impl Bench<'_> {
    fn config(&self, is_in_transit: bool) -> String {
        let emulate = |(bandwidth, latency): (&str, &str)| {
            format!("emulate = {{ bandwidth = \"{bandwidth}\", latency = \"{latency}\" }}\n")
        };
        let mode = if is_in_transit { "buffered" } else { "bypass" };
        let mut text = format!(
            "[[backing]]\npath = \"pfs\"\nmode = \"{mode}\"\nstripe = \"4MiB\"\n{}\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"16MiB\"\n",
            emulate(STORE)
        );
        if is_in_transit {
            text += &format!(
                "[[tier]]\nname = \"bb\"\nkind = \"file\"\npath = \"bb\"\ncapacity = \"{}MiB\"\n{}\
                 [[rule]]\npath = \"*\"\nmode = \"staged\"\ntier = \"bb\"\n\
                 [[analysis]]\nname = \"energy\"\nmatch = \"*.particles\"\ndrain = \"after\"\n\
                 command = ['{}', 'analyse', '{{file}}']\n",
                self.mib * 2,
                emulate(BURST_BUFFER),
                self.program.display()
            );
        }
        text
    }

    fn run(&self, is_in_transit: bool, way: &str) -> Result<String, String> {
        let config = self.site.path("forebay.toml");
        fs::write(&config, self.config(is_in_transit)).map_err(|e| site::failed(&config, &e))?;
        let file = self.site.path("pfs").join("1.particles");
        let forebay = &self.options.forebay;
        let mut command = Command::new(forebay);
        command.arg("run").arg("--config").arg(&config).arg("--").arg(self.program);
        command.arg(way).arg(&file);
        if way == "write" {
            command.arg(self.mib.to_string());
        }
        let printed = server::run(&mut command);
        end_manager(Command::new(forebay).arg("stop").arg("--config").arg(&config))?;
        printed
    }

    /// In transit: the result of the analysis, and the seconds from the start of the program to the
    /// result, the drain left out.
    fn in_transit(&self) -> Result<((f64, f64), f64), String> {
        self.site.clear()?;
        let result = self.site.path("pfs").join("1.particles.energy.out");
        let begun = std::time::SystemTime::now();
        self.run(true, "write")?;
        let made = fs::metadata(&result).and_then(|found| found.modified());
        let made = made.map_err(|e| site::failed(&result, &e))?;
        let ready = made.duration_since(begun).map_or(0.0, |took| took.as_secs_f64());
        let printed = fs::read_to_string(&result).map_err(|e| site::failed(&result, &e))?;
        Ok((parse(&printed)?, ready))
    }
}

/// Runs both, in turns.
///
/// # Errors
/// What could not be made or run.
pub fn analysis(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let program = site.compile("particles", KERNEL)?;
    let bench = Bench { options, site: &site, program: &program, mib: options.scale.of(256, 32) };
    let is_small = options.scale == crate::Scale::Small;
    let title = "Analyses in transit: index and query of particles";
    let rounds = options.scale.of(ROUNDS, 1);
    let mut measured = Measured::new("data-elevator-analysis", title, rounds, is_small);
    measured.is_drawn = false;
    measured.notes.push(NOTES.to_owned());
    measured.claims = PAPER
        .iter()
        .map(|&(work, paper)| {
            let claim = Claim::ratio(work, (work, AFTERWARDS), (work, IN_TRANSIT), paper);
            Claim { paper: Some(paper), ..claim }
        })
        .collect();
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        say(&format!("round {round}: in transit"));
        let ((index, query), ready) = bench.in_transit()?;
        measured.add(INDEX, IN_TRANSIT, Unit::Time, index);
        measured.add(QUERY, IN_TRANSIT, Unit::Time, query);
        measured.add(READY, IN_TRANSIT, Unit::Time, ready);
        // The file is on the store by now, and out of the page cache by `bypass`'s emulation.
        say(&format!("round {round}: from the store"));
        let (index, query) = parse(&bench.run(false, "analyse")?)?;
        measured.add(INDEX, AFTERWARDS, Unit::Time, index);
        measured.add(QUERY, AFTERWARDS, Unit::Time, query);
    }
    Ok(measured)
}

const NOTES: &str = "The store has 300 MB/s and 2 ms, the burst buffer 1200 MB/s and 20 us. The index \
    reads the whole file in pieces of 4 MiB, the query the sixteenth of it that the index names, in \
    pieces of 64 KiB, as one process. The paper has 1024 processes on Cori, on whose store and burst \
    buffer its ratios depend, as these do on the emulated ones.";
