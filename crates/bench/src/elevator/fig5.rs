//! Figure 5: what each part of Data Elevator gives, with VPIC-IO and Chombo-IO, a file each.
//!
//! A GB of the paper is a MiB here. Overlap is measured on burst buffers that are as fast as the
//! store, twice and four times as fast: a drain with both devices emulated beside one with only the
//! burst buffer emulated (r), and one with only the store (w). At best it takes max(r, w), so that
//! min(r, w) / (r + w) is saved of doing one after the other.

use super::{
    Bench, COMPARES, Devices, MOVERS, ONE_MACHINE, System, chombo, modelled, ratio, rounds, vpic,
};
use crate::measured::{Claim, Measured, Unit};
use crate::paper::{self, Printed};
use crate::science::{Mode, Work};
use crate::site::Site;
use crate::stage::When;
use crate::{Options, Scale};

const ROUNDS: u32 = 3;
/// Of what overlap can save, what it saves at least.
const OVERLAP: f64 = 0.9;
/// What staging adds to opening and closing a file, at most (Figure 5f).
const METADATA: f64 = 0.11;
/// Bursts buffers that are so many times as fast as the store.
const TIMES: [u64; 3] = [1, 2, 4];
const STAGED: System = System::Staged;

/// Runs the figure.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let scale = options.scale;
    let site = Site::new(options)?;
    let bench = Bench::new(options, &site)?;
    let title = "Data Elevator, Figure 5: VPIC-IO and Chombo-IO, a file each";
    let is_small = scale == Scale::Small;
    let mut measured = Measured::new("data-elevator-fig5", title, scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    bench.science.note(&mut measured);
    rounds(options, &mut measured, |measured, round| {
        say(&format!("round {round}: to the burst buffer (5a)"));
        modes(&bench, scale, measured)?;
        for times in TIMES {
            say(&format!("round {round}: overlap {times}:1 (5b)"));
            overlap(&bench, scale, times, measured)?;
        }
        say(&format!("round {round}: movers (5b, 5e)"));
        movers(&bench, scale, measured)?;
        say(&format!("round {round}: metadata (5f)"));
        metadata(&bench, scale, measured)?;
        for work in kernels(scale) {
            for system in System::ALL {
                say(&format!("round {round}: {}, {} (5g, 5h)", work.kernel, system.name()));
                one_file(&bench, scale, system, &work, measured)?;
            }
        }
        Ok(())
    })?;
    measured.claims = claims(bench.science.has_mpi());
    beside(&mut measured);
    modelled::fig5(&mut measured);
    measured.notes.push(COMPARES.to_owned());
    measured.notes.push(METADATA_NOTE.to_owned());
    Ok(measured)
}

const METADATA_NOTE: &str = "5f: as in the paper, metadata are the record of a file and its states: \
    what the calls that make and close a file take longer where it is staged, against making and \
    closing an HDF5 file on the same device. All that staging adds is its requests beside: the first \
    bytes of a page are read, written and summed, where the plain file's go to the page cache. One \
    rank.";

fn kernels(scale: Scale) -> [Work; 2] {
    let mib = |gb: u64| (gb << 20) / scale.of(1, 16);
    [vpic(2, 1, mib(64), 0), chombo(2, 1, mib(146), 0)]
}

fn of_ranks(ranks: u32) -> String {
    format!("5a: VPIC-IO to the burst buffer, {ranks} ranks")
}

/// 5a: collective and independent, with nothing moved.
fn modes(bench: &Bench<'_>, scale: Scale, measured: &mut Measured) -> Result<(), String> {
    if !bench.science.has_mpi() {
        return Ok(());
    }
    let devices = Devices::new(scale, 2);
    for ranks in [2, 4] {
        for mode in [Mode::Independent, Mode::Collective] {
            let [work, _] = kernels(scale);
            let work = Work { ranks, mode, ..work };
            let config = devices.config(System::Strategy, work.bytes);
            let seen = bench.run_together(&config, &[work], "bb")?;
            let rate = work.bytes as f64 / seen[0].write_s;
            measured.add(&of_ranks(ranks), mode.name(), Unit::Bandwidth(1), rate);
        }
    }
    Ok(())
}

const SAVED: &str = "saved";
const BOUND: &str = "could be saved";
const REQUESTS: &str = "requests";
const WHOLE: &str = "requests that are whole stripes, or the end";

fn of_times(times: u64, what: &str) -> String {
    format!("5b: drain of a staged file, burst buffer : store = {times}:1, {what}")
}

/// 5b for Forebay: both devices, and each alone.
fn overlap(
    bench: &Bench<'_>,
    scale: Scale,
    times: u64,
    measured: &mut Measured,
) -> Result<(), String> {
    // Twice as fast as elsewhere: long enough for many batches, and short enough to be repeated.
    let as_elsewhere = Devices::new(scale, times);
    let devices = Devices {
        store: 2 * as_elsewhere.store,
        burst_buffer: 2 * as_elsewhere.burst_buffer,
        ..as_elsewhere
    };
    let file = vpic(2, 1, scale.of(512, 64) << 20, 0);
    let both = bench.drain(&devices, &file)?;
    let r = bench.drain(&Devices { store: 0, ..devices }, &file)?.seconds;
    let w = bench.drain(&Devices { burst_buffer: 0, ..devices }, &file)?.seconds;
    let mut add = |what, unit, value| {
        measured.add(&of_times(times, what), STAGED.name(), unit, value);
    };
    add("both devices", Unit::Time, both.seconds);
    add("burst buffer alone (r)", Unit::Time, r);
    add("store alone (w)", Unit::Time, w);
    add(SAVED, Unit::Share, (r + w - both.seconds) / (r + w));
    add(BOUND, Unit::Share, r.min(w) / (r + w));
    add(REQUESTS, Unit::Count, both.requests);
    add(WHOLE, Unit::Count, both.whole);
    Ok(())
}

fn of_movers(kernel: &str, movers: usize) -> String {
    let name = if movers == 1 { "mover" } else { "movers" };
    format!("5b, 5e: moving {kernel}, {movers} {name}")
}

const STRATEGY: &str = System::Strategy.name();
const COMMAND: &str = System::Command.name();

/// 5b and 5e for Data Elevator's strategy: one mover reads and writes in turn.
fn movers(bench: &Bench<'_>, scale: Scale, measured: &mut Measured) -> Result<(), String> {
    let devices = Devices::new(scale, 2);
    for work in kernels(scale) {
        for count in [1, 2, MOVERS] {
            let ran =
                bench.run_moved(System::Strategy, &devices, &work, Some((When::Exit, count)))?;
            let of_count = of_movers(work.kernel, count);
            measured.add(&of_count, STRATEGY, Unit::Time, ran.moving_s());
        }
    }
    Ok(())
}

const METADATA_WORK: &str = "5f: an HDF5 file, created and closed";
const RECORDS_WORK: &str = "5f: the calls alone that make a file and close it";
const RECORDS_ADD: &str = "5f: what staging adds to these calls, as a share of the HDF5 file's";
const STAGING_ADDS: &str = "5f: all that staging adds, over the plain file on the burst buffer";

/// 5f: plainly on the burst buffer, staged there, and buffered in memory. Of one
/// rank, so that movers and the node manager have a processor.
fn metadata(bench: &Bench<'_>, scale: Scale, measured: &mut Measured) -> Result<(), String> {
    let files = scale.of(200, 40);
    let devices = Devices::new(scale, 2);
    let mut each = |kernel, (work, name): (&str, &str), system: System, target| {
        let config = devices.config(system, 64 << 20);
        let kernel = Work { kernel, ..vpic(1, files, 8, 0) };
        let seen = bench.run_together(&config, &[kernel], target)?;
        let each_s = seen[0].write_s / f64::from(files);
        measured.add(work, name, Unit::Time, each_s);
        Ok::<f64, String>(each_s)
    };
    let (staged, memory) = (STAGED.name(), System::Async.name());
    let plain_s = each("metadata", (METADATA_WORK, STRATEGY), System::Strategy, "bb")?;
    let staged_s = each("metadata", (METADATA_WORK, staged), STAGED, "pfs")?;
    each("metadata", (METADATA_WORK, memory), System::Async, "pfs")?;
    let plain_calls_s = each("records", (RECORDS_WORK, STRATEGY), System::Strategy, "bb")?;
    let staged_calls_s = each("records", (RECORDS_WORK, staged), STAGED, "pfs")?;
    measured.add(RECORDS_ADD, staged, Unit::Share, (staged_calls_s - plain_calls_s) / plain_s);
    measured.add(STAGING_ADDS, staged, Unit::Share, staged_s / plain_s - 1.0);
    Ok(())
}

fn moving(kernel: &str) -> String {
    format!("5g: moving {kernel} to the store")
}

fn movement(kernel: &str) -> String {
    format!("5h: {kernel}, data movement from end to end")
}

/// 5g and 5h.
fn one_file(
    bench: &Bench<'_>,
    scale: Scale,
    system: System,
    work: &Work,
    measured: &mut Measured,
) -> Result<(), String> {
    let ran = bench.run(system, &Devices::new(scale, 2), work)?;
    if system != System::Direct {
        measured.add(&moving(work.kernel), system.name(), Unit::Time, ran.moving_s());
    }
    measured.add(&movement(work.kernel), system.name(), Unit::Time, ran.movement_s(work));
    Ok(())
}

fn claims(has_mpi: bool) -> Vec<Claim> {
    let mut claims = Vec::new();
    for ranks in [2, 4] {
        if has_mpi {
            let work = of_ranks(ranks);
            let (independent, collective) = (Mode::Independent.name(), Mode::Collective.name());
            let both = ((&*work, independent), (&*work, collective));
            claims.push(Claim::ratio(&work, both.0, both.1, 1.0));
        }
    }
    for times in TIMES {
        let name = STAGED.name();
        let [saved, bound, whole, requests] =
            [SAVED, BOUND, WHOLE, REQUESTS].map(|what| of_times(times, what));
        claims.push(Claim::ratio(&saved, (&saved, name), (&bound, name), OVERLAP));
        claims.push(Claim::ratio(&whole, (&whole, name), (&requests, name), 1.0));
    }
    claims.push(Claim::at_most(RECORDS_ADD, STAGED.name(), METADATA));
    for (kernel, paper) in [("vpic", 1.0 / (1.0 - 0.22)), ("chombo", 1.0 / (1.0 - 0.48))] {
        let work = moving(kernel);
        let claim = Claim::ratio(&work, (&work, COMMAND), (&work, STRATEGY), 1.0);
        claims.push(Claim { paper: Some(paper), ..claim });
        let work = movement(kernel);
        let claim = Claim::ratio(&work, (&work, COMMAND), (&work, STRATEGY), 1.0);
        claims.push(Claim { paper: Some(1.0 / (1.0 - 0.14)), ..claim });
    }
    claims
}

const DEVICES_DECIDE: &str = "what can be hidden depends on the two devices alone: 33 % at 2:1";

/// The paper's numbers beside what was measured.
fn beside(measured: &mut Measured) {
    for (kernel, what, paper) in [
        (
            "vpic",
            "5b, measured: time that overlap saves of Data Elevator's strategy, VPIC-IO",
            0.46,
        ),
        ("chombo", "5b, measured: the same, Chombo-IO", 0.32),
    ] {
        let [many, one] = [MOVERS, 1].map(|count| of_movers(kernel, count));
        let saved = ratio(measured, (&many, STRATEGY), (&one, STRATEGY));
        let printed = Printed::percent(what, paper, DEVICES_DECIDE, DEVICES_DECIDE);
        paper::note(measured, &printed, saved.map(|left| 1.0 - left));
    }
    let longer = |kernel: &str| {
        let [many, one] = [MOVERS, 1].map(|count| of_movers(kernel, count));
        Some(ratio(measured, (&one, STRATEGY), (&many, STRATEGY))? - 1.0)
    };
    let both = longer("vpic").zip(longer("chombo")).map(|(a, b)| (a + b) / 2.0);
    let printed = Printed::percent(
        "5e, measured: longer with a quarter of the movers",
        0.26,
        "here that is one mover, which does not overlap either",
        "two devices are kept busy by few movers",
    );
    paper::note(measured, &printed, both);
    let added = measured.median(RECORDS_ADD, STAGED.name());
    let printed = Printed::percent(
        "5f, measured: metadata, as a share of opening and closing a file",
        METADATA,
        "the manager drains each of these files at once, on the processors that the program has",
        "a state is a byte in shared memory, not a record that one process writes to the burst \
         buffer; and the file's own header goes to the tier",
    );
    paper::note(measured, &printed, added);
    for (kernel, what, paper) in [
        ("vpic", "5g, measured: time saved over stage_out, VPIC-IO", 0.22),
        ("chombo", "5g, measured: the same, Chombo-IO", 0.48),
    ] {
        let work = moving(kernel);
        let saved = ratio(measured, (&work, STRATEGY), (&work, COMMAND)).map(|left| 1.0 - left);
        paper::note(measured, &Printed::percent(what, paper, ONE_MACHINE, ONE_MACHINE), saved);
    }
    for (kernel, what) in [
        ("vpic", "5h, measured: time saved over DataWarp, from end to end, VPIC-IO"),
        ("chombo", "5h, measured: the same, Chombo-IO"),
    ] {
        let work = movement(kernel);
        let saved = ratio(measured, (&work, STRATEGY), (&work, COMMAND)).map(|left| 1.0 - left);
        paper::note(measured, &Printed::percent(what, 0.14, ONE_MACHINE, ONE_MACHINE), saved);
    }
}
