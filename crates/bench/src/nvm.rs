//! Tables V and VI of the NVM paper (Liu et al., section IV.D) on emulated devices and an emulated
//! network: collective and independent I/O in random order, what the model expects of each after it
//! was calibrated as in the paper, and which one it chooses.
//!
//! A MB of the paper is 8 KiB here, and a second is 8.192 ms: devices and links keep their
//! bandwidths. Bytes are real: each aggregator copies what messages would bring, and all is written
//! to a file, which is compared with what it should hold.

pub(crate) mod adapter;
pub(crate) mod caches;
pub(crate) mod interfaces;
pub(crate) mod modes;
mod testbed;

use crate::measured::{Claim, Measured, Unit};
use crate::site::Site;
use crate::{Options, Scale};
use forebay_placement::collective::paper::{BUFFER_MB, DEVICES, LINK, TABLES, TOTAL_MB, Table};
use forebay_placement::collective::{Call, Correction, Device, Link, Mode, Network, decide, io_s};
use std::path::{Path, PathBuf};
use testbed::{Emulated, Layout, Testbed};

/// Bytes of a MB of the paper, a power of two.
const MB: f64 = 8192.0;
/// A second of the paper in seconds here: with it 1 MB/s is 1 MB/s.
const SECOND_S: f64 = MB / 1e6;
/// What one request of the paper has, in MB: as much as an aggregator collects.
const PIECE_MB: f64 = BUFFER_MB;
/// Within a node messages are copies.
const WITHIN: Link = Link { start_s: 1e-6, byte_s: 1.0 / 5e9 };
/// Of its pieces, those with which each rank calibrates a device, and the least of them.
const CALIBRATED: (usize, usize) = (8, 4);
/// How often that is done; the median counts.
const PROBES: usize = 3;
const ROUNDS: u32 = 3;
/// How far off the model may be.
const ERROR_MAX: f64 = 0.15;
/// How much faster the chosen mode is than collective I/O in random order on NVM.
const GAIN: f64 = 1.3;
/// How much longer a choice may take than the better mode.
const CHOICE: f64 = 1.05;

/// Runs all cells of both tables.
///
/// # Errors
/// What could not be made, or which bytes were wrong. The files are removed.
pub fn nvm_model(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let total_mb = options.scale.of(TOTAL_MB, TOTAL_MB / 8.0);
    let folder = options.folder.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
    let site = Site::below(&folder, 2 * bytes(total_mb))?;
    let is_small = options.scale == Scale::Small;
    let title = "Collective and independent I/O, Tables V and VI of the NVM paper";
    let mut measured = Measured::new("nvm-model", title, options.scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    measured.notes.push(format!(
        "a MB of the paper is {} KiB, and its seconds are {:.3} ms; {total_mb} MB of 16 ranks in \
         pieces of {PIECE_MB} MB, in random order; all data compared byte by byte",
        MB / 1024.0,
        SECOND_S * 1e3
    ));
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for table in &TABLES {
            for device in 0..DEVICES.len() {
                let cell = Cell { table, device, total_mb, path: &site.path("file") };
                say(&format!("round {round}: {}", cell.name()));
                cell.run(&mut measured)?;
            }
        }
    }
    measured.claims = claims();
    Ok(measured)
}

fn bytes(mb: f64) -> u64 {
    (mb * MB) as u64
}

fn work(table: &Table, device: usize) -> String {
    format!("Table {} {}", table.name, DEVICES[device].name)
}

fn error_of(mode: Mode) -> String {
    format!("{}: error of the model", mode.name())
}

const MODES: [Mode; 2] = [Mode::Collective, Mode::Independent];
const CHOSEN: &str = "chosen";
const BETTER: &str = "the better";

fn claims() -> Vec<Claim> {
    let mut claims = Vec::new();
    for table in &TABLES {
        for device in 0..DEVICES.len() {
            let work = work(table, device);
            for mode in MODES {
                let what = format!("{work}, {}", error_of(mode));
                let claim = Claim::at_most(&work, &error_of(mode), ERROR_MAX);
                claims.push(Claim { what, ..claim });
            }
            let what = format!("{work}, the choice");
            let both = ((&*work, CHOSEN), (&*work, BETTER));
            claims.push(Claim::ratio(&what, both.0, both.1, 1.0 / CHOICE));
        }
        let nvm = work(table, 2);
        let (collective, independent) = (table.collective[2], table.independent[2]);
        let what = format!("{nvm}, random access");
        let collective_name = Mode::Collective.name();
        claims.push(Claim {
            paper: Some(collective.measured_s / independent.measured_s),
            ..Claim::ratio(&what, (&nvm, CHOSEN), (&nvm, collective_name), GAIN)
        });
    }
    claims
}

/// A device of a table.
struct Cell<'a> {
    table: &'a Table,
    device: usize,
    total_mb: f64,
    path: &'a Path,
}

impl Cell<'_> {
    fn name(&self) -> String {
        work(self.table, self.device)
    }

    fn layout(&self) -> Layout {
        Layout {
            ranks: self.table.ranks(),
            nodes: self.table.nodes,
            aggregators: self.table.nodes,
            buffer: bytes(BUFFER_MB),
            piece: bytes(PIECE_MB),
            total: bytes(self.total_mb),
        }
    }

    fn testbed(&self) -> Result<Testbed, String> {
        let bandwidths = &DEVICES[self.device];
        let (sequential, random) = (bandwidths.sequential * 1e6, bandwidths.random * 1e6);
        let piece = bytes(PIECE_MB) as f64;
        let device = Emulated {
            bandwidth: sequential as u64,
            seek_ns: ((io_s(piece, random) - io_s(piece, sequential)) * 1e9) as u64,
        };
        let link = Link { start_s: LINK.start_s * SECOND_S, byte_s: LINK.byte_s * SECOND_S / MB };
        Testbed::new(self.layout(), device, link, self.path)
    }

    /// Measures both modes, beside what is expected after calibration.
    fn run(&self, measured: &mut Measured) -> Result<(), String> {
        let work = self.name();
        let of_total = bytes(self.total_mb) as f64;
        let (device, network) = self.calibrate()?;
        let layout = self.layout();
        let call = Call {
            ranks: layout.ranks,
            nodes: layout.nodes,
            aggregators: layout.aggregators,
            buffer: layout.buffer,
            bytes: layout.total,
            largest_domain: 0,
            piece: layout.piece,
            is_contiguous: false,
        };
        let found = decide(&call, &network, &device, &Correction::default(), None)
            .ok_or("the calibration found a device without speed")?;
        let mut took_s = [0.0; 2];
        for (mode, took_s) in MODES.into_iter().zip(&mut took_s) {
            let testbed = self.testbed()?;
            *took_s = match mode {
                Mode::Collective => testbed.collective()?,
                Mode::Independent => testbed.independent(usize::MAX)?,
            };
            testbed.verify()?;
            let rate = Unit::Bandwidth(1);
            measured.add(&work, mode.name(), rate, of_total / *took_s);
            let expected_s = found.times.of(mode);
            let expected = format!("{}: expected", mode.name());
            measured.add(&work, &expected, rate, of_total / expected_s);
            let error = (expected_s / *took_s - 1.0).abs();
            measured.add(&work, &error_of(mode), Unit::Share, error);
            let cells = match mode {
                Mode::Collective => &self.table.collective,
                Mode::Independent => &self.table.independent,
            };
            let paper = bytes(TOTAL_MB) as f64 / (cells[self.device].measured_s * SECOND_S);
            measured.add(&work, &format!("{}: the paper", mode.name()), rate, paper);
        }
        let chosen_s = took_s[usize::from(found.mode == Mode::Independent)];
        let better_s = took_s[0].min(took_s[1]);
        measured.add(&work, CHOSEN, Unit::Bandwidth(1), of_total / chosen_s);
        measured.add(&work, BETTER, Unit::Bandwidth(1), of_total / better_s);
        Ok(())
    }

    /// As section IV.C does: bandwidths by all ranks, in order and at random, and messages of many
    /// sizes with a regression.
    fn calibrate(&self) -> Result<(Device, Network), String> {
        let testbed = self.testbed()?;
        let count = (testbed.pieces() / CALIBRATED.0).max(CALIBRATED.1).min(testbed.pieces());
        let all = (count as u64 * u64::from(self.table.ranks()) * bytes(PIECE_MB)) as f64;
        let rate = |probe: &dyn Fn() -> Result<f64, String>| {
            let mut times = (0..PROBES).map(|_| probe()).collect::<Result<Vec<f64>, _>>()?;
            times.sort_by(f64::total_cmp);
            Ok::<f64, String>(all / times[PROBES / 2])
        };
        let sequential = rate(&|| testbed.in_order(count))?;
        let random = rate(&|| testbed.independent(count))?;
        let device = Device::measured(sequential, random, bytes(PIECE_MB) as f64, 0.0);
        let device = device.ok_or("the emulated device has no speed")?;
        let between = Link::fitted(&testbed.ping_pong()).ok_or("messages took no time")?;
        Ok((device, Network { between, within: WITHIN }))
    }
}
