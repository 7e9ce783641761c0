//! Figure 8: an index of a step of VPIC, and the query "Ux > 0.97" by it, while the file lies in
//! the burst buffer and after it was staged out.
//!
//! One in eight chunks of 64 KiB has particles that are fast, 3 % of its own. The index is a bit
//! for each particle, beside the file; the query reads positions of chunks that have one, and
//! compares them with what was written.

use super::{Bench, Devices, System, ratio, rounds, vpic};
use crate::measured::{Claim, Measured, Unit};
use crate::paper::{self, Printed};
use crate::science::{Seen, Work};
use crate::site::{self, Site};
use crate::{Options, Scale};
use std::fmt::Write;
use std::fs;

const ROUNDS: u32 = 3;
const INDEX: &str = "build the index";
const QUERY: &str = "query Ux > 0.97";

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let scale = options.scale;
    let site = Site::new(options)?;
    let bench = Bench::new(options, &site)?;
    let title = "Data Elevator, Figure 8: in-transit analysis of a step of VPIC";
    let is_small = scale == Scale::Small;
    let mut measured = Measured::new("data-elevator-fig8", title, scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    bench.science.note(&mut measured);
    let write = vpic(2, 1, scale.of(88, 16) << 20, 0);
    // The burst buffer is four times as fast as the store; a request costs what it costs of disks
    // behind a network, and of an NVMe device.
    let devices = Devices { store_us: 2000, burst_buffer_us: 20, ..Devices::new(scale, 4) };
    rounds(options, &mut measured, |measured, round| {
        for system in [System::Direct, System::Strategy, System::Staged, System::Async] {
            say(&format!("round {round}: {}", system.name()));
            let [index, query] = analyse(&bench, system, &devices, &write)?;
            measured.add(INDEX, system.name(), Unit::Time, index.read_s);
            measured.add(QUERY, system.name(), Unit::Time, query.read_s);
        }
        Ok(())
    })?;
    for (work, printed) in [(INDEX, &PRINTED[0]), (QUERY, &PRINTED[1])] {
        let (direct, staged) = (System::Direct.name(), System::Staged.name());
        let claim = Claim::ratio(work, (work, direct), (work, staged), printed.value);
        measured.claims.push(Claim { paper: Some(printed.value), ..claim });
        let here = ratio(&measured, (work, direct), (work, staged));
        paper::note(&mut measured, printed, here);
    }
    Ok(measured)
}

/// Writes a step, and analyses it: in one run while it is staged, or after it came to where it is.
fn analyse(
    bench: &Bench<'_>,
    system: System,
    devices: &Devices,
    step: &Work,
) -> Result<[Seen; 2], String> {
    let index = Work { kernel: "index", ..*step };
    let query = Work { kernel: "query", ..*step };
    let mut text = devices.config(system, step.bytes);
    // A staged file waits for its analyses, as in the paper (state A): until both have ended.
    if system == System::Staged {
        let _ = write!(
            text,
            "[[analysis]]\nname = \"vpic\"\nmatch = \"*.h5\"\ndrain = \"after\"\n\
             command = ['/bin/sh', '-c', 'until [ -e \"$0\" ]; do sleep 0.02; done', '{}']\n",
            bench.done().display()
        );
    }
    let found = match system {
        System::Staged | System::Async => {
            bench.run_together(&text, &[*step, index, query], "pfs")?
        }
        _ => {
            let config = bench.configure(&text)?;
            let folder = bench.site.path(system.target());
            bench.run_plainly(step, &folder)?;
            bench.run_in(&config, &[index, query], system.target())?
        }
    };
    let left = fs::read_dir(bench.site.path("pfs"))
        .map_err(|e| site::failed(bench.site.path("pfs").as_path(), &e))?;
    if matches!(system, System::Staged | System::Async) && left.count() < 2 {
        return Err("the index did not come to the store".to_owned());
    }
    let last = found.len().checked_sub(2).and_then(|at| found[at..].try_into().ok());
    last.ok_or_else(|| "a kernel's line is missing".to_owned())
}

const PRINTED: [Printed; 2] = [
    Printed::times(
        "8: building the index in transit, over the store",
        1.9,
        "the burst buffer is four times as fast as the store here, and little is computed",
        "what is computed takes as long on both",
    ),
    Printed::times(
        "8: the query in transit, over the store",
        6.6,
        "a request waits 2 ms for the store here, and 20 us for the burst buffer; the paper does not say",
        "opening files and reading the index take as long on both, and the query shares two cores with all else",
    ),
];
