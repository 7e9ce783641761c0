//! The adapter for MPI-IO on emulated devices: a program whose ranks have pieces here and there
//! makes collective calls at its pointers, or individual ones, or collective ones of which the
//! adapter makes of each what its model finds faster.
//!
//! Files are staged on a tier with the device's bandwidth and latency, beside a RAM tier of 4 MiB,
//! so that calls reach the device. What is made alone is counted of the writes before reads, too.
//! Two things differ from the paper: ranks share a node, and messages are copies, so that
//! collective I/O loses less; and a device is emulated whose requests overlap.

use super::caches::{DEVICES, Device};
use crate::machine::Machine;
use crate::measured::{Claim, Measured, Unit};
use crate::paper::{self, Printed};
use crate::runner::end_manager;
use crate::science::set_environment;
use crate::site::{self, Site};
use crate::{Options, Scale, server};
use forebay_placement::collective::paper::TABLES;
use forebay_placement::collective::{self, Call, Link, Mode, Network};
use std::fs;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = include_str!("../../kernels/modes.c");
const ROUNDS: u32 = 3;
/// Compilers whose MPI-IO is ROMIO and says so, with their starters.
const TOOLCHAINS: [(&str, &str); 2] = [("mpicc.mpich", "mpiexec.mpich"), ("mpicc", "mpiexec")];
/// Bytes of a step of all ranks, and of their pieces.
const STEP: u64 = 4 << 20;
const PIECES: [(u64, &str); 2] = [(16 << 10, "16 KiB"), (256 << 10, "256 KiB")];
/// Segments of the file, which the kernel writes in turns.
const SEGMENTS: u64 = 8;
/// ROMIO's buffer of an aggregator.
const BUFFER: u64 = 16 << 20;
/// How much longer than the better mode it may take, and how much faster than collective I/O it is
/// at least on NVM.
const CHOICE: f64 = 1.05;
const GAIN: f64 = 1.3;

const COLLECTIVE: &str = "collective";
const INDIVIDUAL: &str = "individual";
const AUTO: &str = "Forebay auto";
const BETTER: &str = "the better";
const ALONE: &str = "calls made alone";

/// Runs it.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn nvm_adapter(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let scale = options.scale;
    let site = Site::new(options)?;
    let title = "Collective calls of MPI programs with the adapter, on emulated HDD, SSD and NVM";
    let is_small = scale == Scale::Small;
    let mut measured = Measured::new("nvm-adapter", title, scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    let Some(program) = Program::compile(&site) else {
        measured.notes.push(
            "NOT MEASURED: no MPI with ROMIO and a compiler was found (Debian: mpich)".to_owned(),
        );
        return Ok(measured);
    };
    let link = program.messages(options)?;
    let ranks = Machine::here().cores().clamp(2, 4).next_power_of_two() as u32;
    measured.notes.push(format!(
        "{ranks} ranks of one node, {} MiB in each call in pieces of random ranks; holes are \
         never read; messages take {:.1} us and {:.2} GB/s; all data compared byte by byte",
        STEP >> 20,
        link.start_s * 1e6,
        1e-9 / link.byte_s
    ));
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for device in &DEVICES {
            for (piece, name) in scale.of(&PIECES[..], &PIECES[1..]) {
                let cell = Cell {
                    program: &program,
                    device,
                    piece: *piece,
                    ranks,
                    // On a disk a step of individual calls waits up to half a second.
                    steps: scale.of(if device.latency_us > 1000 { 16 } else { 200 }, 16),
                    link,
                };
                for is_write in [true, false] {
                    let work = work(device, name, is_write);
                    say(&format!("round {round}: {work}"));
                    cell.run(options, &site, is_write, &work, &mut measured)?;
                }
            }
        }
    }
    claims(&mut measured, scale.of(&PIECES[..], &PIECES[1..]));
    Ok(measured)
}

fn work(device: &Device, piece: &str, is_write: bool) -> String {
    let way = if is_write { "write" } else { "read" };
    format!("{}, {way}, pieces of {piece}", device.name)
}

fn expected(mode: &str) -> String {
    format!("{mode}: model")
}

fn claims(measured: &mut Measured, pieces: &[(u64, &str)]) {
    for device in &DEVICES {
        for (_, piece) in pieces {
            for is_write in [true, false] {
                let work = work(device, piece, is_write);
                let both = ((&*work, AUTO), (&*work, BETTER));
                let what = format!("{work}: over the better mode");
                measured.claims.push(Claim::ratio(&what, both.0, both.1, 1.0 / CHOICE));
                if device.name == "NVM" {
                    let what = format!("{work}: over collective calls");
                    let table = &TABLES[0];
                    measured.claims.push(Claim {
                        paper: Some(
                            table.collective[2].measured_s / table.independent[2].measured_s,
                        ),
                        ..Claim::ratio(&what, (&work, AUTO), (&work, COLLECTIVE), GAIN)
                    });
                    let here = measured
                        .median(&work, AUTO)
                        .zip(measured.median(&work, &expected(COLLECTIVE)))
                        .zip(measured.median(&work, &expected(INDIVIDUAL)))
                        .zip(measured.median(&work, COLLECTIVE))
                        .map(|(((auto, one), other), own)| (auto / own, other / one));
                    if let Some((here, model)) = here {
                        measured.notes.push(format!(
                            "Beside the model: {work}: {here:.2}x collective calls here, {model:.2}x \
                             by the model without what it learned from calls"
                        ));
                    }
                }
            }
        }
    }
    let printed = Printed::percent(
        "V: NVM, by how much individual I/O is faster than collective",
        TABLES[0].collective[2].measured_s / TABLES[0].independent[2].measured_s - 1.0,
        "a call of each rank alone costs no wait for the others' messages, and these are copies \
         here that the same processors make",
        "ranks share a node here, and messages are copies, not a network",
    );
    let nvm = work(&DEVICES[2], pieces[pieces.len() - 1].1, true);
    let here = measured.median(&nvm, INDIVIDUAL).zip(measured.median(&nvm, COLLECTIVE));
    let here = here.map(|(own, collective)| own / collective - 1.0);
    paper::note(measured, &printed, here);
}

/// The kernel, with what starts its ranks.
struct Program {
    program: std::path::PathBuf,
    launcher: &'static str,
}

impl Program {
    fn compile(site: &Site) -> Option<Program> {
        TOOLCHAINS.iter().find_map(|&(compiler, launcher)| {
            let program = site.compile_mpi(compiler, "modes", SOURCE, &[]).ok()?;
            Some(Program { program, launcher })
        })
    }

    /// Messages within the node, as `forebay profile --mpi` measures them.
    fn messages(&self, options: &Options) -> Result<Link, String> {
        let mut command = Command::new(self.launcher);
        command.args(["-n", "2"]).arg(&options.forebay).args(["profile", "--mpi"]);
        set_environment(&mut command, 2);
        let said = server::run(&mut command)?;
        link_of(&said).ok_or_else(|| format!("`forebay profile --mpi` has said {said:?}"))
    }
}

/// The line `within = { latency = "NUMBERns", bandwidth = NUMBER }`.
fn link_of(said: &str) -> Option<Link> {
    let line = said.lines().find(|line| line.starts_with("within"))?;
    let number = |behind: &str| -> Option<f64> {
        let text = line.split_once(behind)?.1;
        text[..text.find(|c: char| !c.is_ascii_digit())?].parse().ok()
    };
    let (latency_ns, bandwidth) = (number("latency = \"")?, number("bandwidth = ")?);
    (bandwidth > 0.0).then(|| Link { start_s: latency_ns / 1e9, byte_s: 1.0 / bandwidth })
}

/// A device and a size of pieces.
struct Cell<'a> {
    program: &'a Program,
    device: &'a Device,
    piece: u64,
    ranks: u32,
    steps: u64,
    link: Link,
}

impl Cell<'_> {
    /// The speeds are those that are emulated: `forebay profile` would find these.
    fn config(&self) -> String {
        let Device { bandwidth, latency_us, .. } = self.device;
        let Link { start_s, byte_s } = self.link;
        format!(
            "[mpi]\nwithin = {{ latency = \"{:.0}ns\", bandwidth = {:.0} }}\n\
             [[backing]]\npath = \"pfs\"\n\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"4MiB\"\n\
             [placement]\nprefetch = false\n\
             [[tier]]\nname = \"device\"\nkind = \"file\"\npath = \"nvme\"\ncapacity = \"{}MiB\"\n\
             seek = \"0us\"\nemulate = {{ bandwidth = {bandwidth}, latency = \"{latency_us}us\" }}\n\
             [[rule]]\npath = \"**\"\nmode = \"staged\"\ntier = \"device\"\n",
            start_s * 1e9,
            1.0 / byte_s,
            (4 * SEGMENTS * STEP) >> 20,
        )
    }

    fn run(
        &self,
        options: &Options,
        site: &Site,
        is_write: bool,
        work: &str,
        measured: &mut Measured,
    ) -> Result<(), String> {
        let moved = (self.steps * STEP) as f64;
        let mut better = 0f64;
        for (system, mode, adapter) in [
            (COLLECTIVE, "collective", "observe"),
            (INDIVIDUAL, "individual", "observe"),
            (AUTO, "collective", "auto"),
        ] {
            let (took_s, alone) = self.measure(options, site, mode, adapter, is_write)?;
            let rate = moved / took_s;
            measured.add(work, system, Unit::Bandwidth(1), rate);
            if adapter == "observe" {
                better = better.max(rate);
            } else {
                let passes = if is_write { 1 } else { 2 };
                let calls = passes * self.steps * u64::from(self.ranks);
                measured.add(work, ALONE, Unit::Share, alone as f64 / calls as f64);
            }
        }
        measured.add(work, BETTER, Unit::Bandwidth(1), better);
        let call = Call {
            ranks: self.ranks,
            nodes: 1,
            aggregators: 1,
            buffer: BUFFER,
            bytes: STEP,
            largest_domain: 0,
            piece: self.piece,
            is_contiguous: false,
        };
        let network = Network { between: Link::default(), within: self.link };
        let device = collective::Device {
            bandwidth: self.device.bandwidth as f64,
            seek_s: 0.0,
            latency_s: f64::from(self.device.latency_us) / 1e6,
        };
        let times = collective::times(&call, &network, &device).ok_or("a speed is not known")?;
        for (system, mode) in [(COLLECTIVE, Mode::Collective), (INDIVIDUAL, Mode::Independent)] {
            let rate = STEP as f64 / times.of(mode);
            measured.add(work, &expected(system), Unit::Bandwidth(1), rate);
        }
        Ok(())
    }

    /// Seconds of all steps, and calls that ranks made alone.
    fn measure(
        &self,
        options: &Options,
        site: &Site,
        mode: &str,
        adapter: &str,
        is_write: bool,
    ) -> Result<(f64, u64), String> {
        site.clear()?;
        let config = site.path("forebay.toml");
        fs::write(&config, self.config()).map_err(|e| site::failed(&config, &e))?;
        let file = site.path("pfs").join("pieces");
        // What is read is on the device first.
        let passes: &[&str] = if is_write { &["write"] } else { &["write", "read"] };
        let commands: Vec<String> =
            passes.iter().map(|what| self.words(mode, what, &file).join(" ")).collect();
        // The first process of the run holds the file, so that it stays on the device.
        let script = format!("exec 9>>\"$1\"; {} && \"$2\" status --json", commands.join(" && "));
        let mut command = Command::new(&options.forebay);
        command.arg("run").arg("--config").arg(&config).args(["--", "sh", "-c", &script, "sh"]);
        command.arg(&file).arg(&options.forebay);
        command.env("FOREBAY_MPIIO", adapter);
        set_environment(&mut command, self.ranks);
        let printed = server::run(&mut command);
        end_manager(Command::new(&options.forebay).arg("stop").arg("--config").arg(&config))?;
        let printed = printed?;
        let mut lines = printed.splitn(passes.len() + 1, '\n');
        let us = lines.nth(passes.len() - 1).and_then(|line| line.trim().parse::<u64>().ok());
        let us = us.filter(|us| *us > 0).ok_or_else(|| format!("no time in {printed:?}"))?;
        let status = lines.next().unwrap_or_default();
        let alone = counted(status, &site.path("pfs"), "mpi_independent");
        let alone = alone.ok_or_else(|| format!("no counts in {status:?}"))?;
        let words = self.words(mode, "check", &file);
        let mut check = Command::new(&words[0]);
        check.args(&words[1..]);
        set_environment(&mut check, self.ranks);
        server::run(&mut check)?;
        Ok((us as f64 / 1e6, alone))
    }

    fn words(&self, mode: &str, what: &str, file: &Path) -> Vec<String> {
        let Program { program, launcher } = self.program;
        let (program, file) = (program.display().to_string(), file.display().to_string());
        let numbers = [self.steps, STEP, self.piece].map(|number| number.to_string());
        let ranks = self.ranks.to_string();
        let words = [*launcher, "-n", &ranks, &program, mode, what, &file];
        words.iter().map(|word| (*word).to_owned()).chain(numbers).collect()
    }
}

/// A number of the node manager of this directory in what `forebay status --json` says.
fn counted(status: &str, directory: &Path, name: &str) -> Option<u64> {
    let status: serde_json::Value = serde_json::from_str(status).ok()?;
    let manager = status.as_array()?.iter().find(|manager| {
        let stores = manager["stores"].as_array();
        stores.is_some_and(|stores| stores.iter().any(|store| store.as_str() == directory.to_str()))
    });
    manager?["counters"][name].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_messages_is_read() {
        let said = "# Messages\n[mpi]\nwithin = { latency = \"2500ns\", bandwidth = 5000000000 }\n";
        let link = link_of(said).unwrap();
        assert_eq!((link.start_s, 1.0 / link.byte_s), (2.5e-6, 5e9));
        assert_eq!(link_of("[mpi]\n"), None);
    }

    #[test]
    fn the_counts_of_a_directory_are_found() {
        let status =
            r#"[{"stores":["/a"],"counters":{"n":1}},{"stores":["/b"],"counters":{"n":2}}]"#;
        assert_eq!(counted(status, Path::new("/b"), "n"), Some(2));
        assert_eq!(counted(status, Path::new("/c"), "n"), None);
    }

    #[test]
    fn ranks_have_as_many_pieces() {
        for (piece, _) in PIECES {
            assert!([2, 4].iter().all(|ranks| (STEP / piece).is_multiple_of(*ranks)));
        }
    }
}
