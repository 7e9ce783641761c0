//! Figures 4 to 6 of the NVM paper: HACC-IO, MADbench2 and S3aSim with more and less memory before
//! HDD, SSD and NVM. What the paper does with the kernel's page cache the RAM tier does here.
//!
//! A GB of the paper is 32 MiB. Devices are emulated: a disk of 115 MB/s and 4 ms, an SSD of 480
//! MB/s and 50 us, and NVM of 4 GB/s and 1 us.

use crate::measured::{Measured, Unit};
use crate::paper::{self, Printed};
use crate::runner::end_manager;
use crate::science::{Api, Mode, Science, Seen, Work, set_environment};
use crate::site::{self, Site};
use crate::{Options, Scale, server};
use std::fs;
use std::path::Path;
use std::process::Command;

const ROUNDS: u32 = 3;
/// Bytes of a GB of the paper.
const GB: u64 = 32 << 20;
/// GB of memory.
const SIZES: [u64; 6] = [11, 9, 7, 5, 3, 1];

/// An emulated device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub name: &'static str,
    /// Bytes per second, and microseconds.
    pub bandwidth: u64,
    pub latency_us: u32,
}

pub(super) const DEVICES: [Device; 3] = [
    Device { name: "HDD", bandwidth: 115_000_000, latency_us: 4_000 },
    Device { name: "SSD", bandwidth: 480_000_000, latency_us: 50 },
    Device { name: "NVM", bandwidth: 4_000_000_000, latency_us: 1 },
];

impl Device {
    /// A directory on it, with this mode, and so much memory.
    pub fn config(&self, mode: &str, ram: u64) -> String {
        let Device { bandwidth, latency_us, .. } = self;
        format!(
            "[flush]\ntrigger = \"periodic\"\nperiod = \"10ms\"\n\
             [[backing]]\npath = \"pfs\"\nmode = \"{mode}\"\n\
             emulate = {{ bandwidth = {bandwidth}, latency = \"{latency_us}us\" }}\n\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = {}\n",
            ram.max(4 << 20)
        )
    }
}

/// Runs a kernel in the directory `pfs` of a site, emptied before.
pub(super) fn run_on(
    options: &Options,
    site: &Site,
    science: &Science,
    config: &str,
    work: &Work,
) -> Result<Seen, String> {
    site.clear()?;
    let file = site.path("forebay.toml");
    fs::write(&file, config).map_err(|e| site::failed(&file, &e))?;
    let mut command = Command::new(&options.forebay);
    command.arg("run").arg("--config").arg(&file).arg("--");
    set_environment(&mut command, work.ranks);
    command.args(science.words(work, &site.path("pfs")));
    let printed = server::run(&mut command);
    end_manager(Command::new(&options.forebay).arg("stop").arg("--config").arg(&file))?;
    let printed = printed.map_err(|e| format!("{}: {e}", work.kernel))?;
    let seen = Seen::parse(&printed);
    let (seen, _) = seen.ok_or_else(|| format!("not a kernel's line: {printed:?}"))?;
    check(science, work, &site.path("pfs"))?;
    Ok(seen)
}

fn check(science: &Science, work: &Work, folder: &Path) -> Result<(), String> {
    // S3aSim has written its results over the data base.
    match work.kernel {
        "s3asim" | "metadata" => Ok(()),
        _ => science.check(work, folder),
    }
}

/// A figure: its kernel, what counts of it, and the paper's numbers.
struct Figure {
    name: &'static str,
    title: &'static str,
    kernel: &'static str,
    /// GB that it moves.
    gb: u64,
    steps: u32,
    seconds: fn(&Seen) -> f64,
    printed: &'static [(usize, [u64; 2], Printed)],
}

fn run(figure: &Figure, options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let scale = options.scale;
    let site = Site::new(options)?;
    let science = Science::compile(&site)?;
    let is_small = scale == Scale::Small;
    let mut measured = Measured::new(figure.name, figure.title, scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    science.note(&mut measured);
    let gb = GB / scale.of(1, 8);
    let work = Work {
        kernel: figure.kernel,
        api: Api::MpiIo,
        mode: Mode::Independent,
        ranks: scale.of(4, 2),
        steps: figure.steps,
        bytes: figure.gb * gb,
        compute_us: 0,
    };
    let sizes: &[u64] = scale.of(&SIZES, &[11, 3, 1]);
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for device in &DEVICES {
            for size in sizes {
                say(&format!("round {round}: {}, {size} GB", device.name));
                let config = device.config("buffered", size * gb);
                let seen = run_on(options, &site, &science, &config, &work)?;
                let moved = (u64::from(work.steps) * work.bytes) as f64;
                let rate = moved / (figure.seconds)(&seen);
                measured.add(&of_size(*size), device.name, Unit::Bandwidth(1), rate);
            }
        }
    }
    for (device, [from, to], printed) in figure.printed {
        let name = DEVICES[*device].name;
        let change = measured
            .median(&of_size(*to), name)
            .zip(measured.median(&of_size(*from), name))
            .map(|(to, from)| to / from - 1.0);
        paper::note(&mut measured, printed, change);
    }
    measured.notes.push(
        "Rates as the program sees them; what is still in memory goes to the device afterwards."
            .to_owned(),
    );
    Ok(measured)
}

fn of_size(gb: u64) -> String {
    format!("{gb} GB of memory")
}

const SMALLER_FALL: &str =
    "a writer waits for room alone, and what fits is written at memory's speed";
const LARGER_FALL: &str =
    "more of the data is beyond memory here, and a writer waits for the device";

/// Figure 4: HACC-IO.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn fig4(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let figure = Figure {
        name: "nvm-fig4",
        title: "NVM, Figure 4: HACC-IO (2 GB) with less and less memory",
        kernel: "hacc",
        gb: 2,
        steps: 1,
        seconds: |seen| seen.write_s,
        printed: &FIG4,
    };
    run(&figure, options, say)
}

const FIG4: [(usize, [u64; 2], Printed); 3] = [
    (0, [11, 1], Printed::percent("4: HDD, from 11 GB to 1 GB", -0.927, SMALLER_FALL, LARGER_FALL)),
    (1, [11, 1], Printed::percent("4: SSD, from 11 GB to 1 GB", -0.848, SMALLER_FALL, LARGER_FALL)),
    (2, [11, 1], Printed::percent("4: NVM, from 11 GB to 1 GB", -0.115, SMALLER_FALL, LARGER_FALL)),
];

/// Figure 5: MADbench2, phase W.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn fig5(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let figure = Figure {
        name: "nvm-fig5",
        title: "NVM, Figure 5: phase W of MADbench2 (4 GB) with less and less memory",
        kernel: "madbench",
        gb: 4,
        steps: 1,
        seconds: |seen| (seen.write_s + seen.read_s) / 2.0,
        printed: &FIG5,
    };
    run(&figure, options, say)
}

const FIG5: [(usize, [u64; 2], Printed); 4] = [
    (0, [11, 3], Printed::percent("5: HDD, from 11 GB to 3 GB", 0.0, SMALLER_FALL, HOLDS)),
    (1, [11, 3], Printed::percent("5: SSD, from 11 GB to 3 GB", 0.0, SMALLER_FALL, HOLDS)),
    (2, [11, 3], Printed::percent("5: NVM, from 11 GB to 3 GB", 0.0, SMALLER_FALL, HOLDS)),
    (2, [3, 1], Printed::percent("5: NVM, from 3 GB to 1 GB", -0.4016, SMALLER_FALL, LARGER_FALL)),
];
const HOLDS: &str = "with 11 GB all of the 4 GB lie in memory here, where the paper's system does not \
    keep them";

/// Figure 6: S3aSim.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn fig6(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let figure = Figure {
        name: "nvm-fig6",
        title: "NVM, Figure 6: S3aSim (2 GB) with less and less memory",
        kernel: "s3asim",
        gb: 2,
        steps: 3,
        seconds: |seen| seen.read_s,
        printed: &FIG6,
    };
    run(&figure, options, say)
}

const FIG6: [(usize, [u64; 2], Printed); 1] = [(
    2,
    [3, 1],
    Printed::percent(
        "6: NVM, from 3 GB to 1 GB",
        -0.0591,
        "reads are brought up ahead",
        "with 3 GB the whole data base lies in memory here",
    ),
)];
