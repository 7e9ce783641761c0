//! Figures 7 and 8 of the NVM paper: IOR's requests by POSIX calls and by MPI's individual I/O, on
//! devices of the node itself, and over a network of 1 Gbit/s.

use super::caches::{DEVICES, Device, run_on};
use crate::measured::{Claim, Measured, Unit};
use crate::paper::{self, Printed};
use crate::science::{Api, Mode, Science, Work};
use crate::site::Site;
use crate::{Options, Scale};
use forebay_placement::collective::paper::DEVICES as OVER_NETWORK;

const ROUNDS: u32 = 3;
const APIS: [(Api, &str); 2] = [(Api::Posix, "POSIX"), (Api::MpiIo, "MPI individual")];
/// Of a request over the paper's network and NFS.
const NETWORK_US: u32 = 200;

fn run(
    (name, title): (&'static str, &str),
    devices: &[Device],
    ranks: u32,
    printed: &[(usize, Printed)],
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Measured, String> {
    let scale = options.scale;
    let site = Site::new(options)?;
    let science = Science::compile(&site)?;
    let is_small = scale == Scale::Small;
    let mut measured = Measured::new(name, title, scale.of(ROUNDS, 1), is_small);
    measured.is_drawn = false;
    science.note(&mut measured);
    if !science.has_mpi() {
        return Ok(measured);
    }
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for device in devices {
            for (api, system) in APIS {
                say(&format!("round {round}: {}, {system}", device.name));
                let work = Work {
                    kernel: "ior",
                    api,
                    mode: Mode::Independent,
                    ranks,
                    steps: 1,
                    // Two segments of a block for each rank, a block of 256 MB being 4 MiB.
                    bytes: (u64::from(ranks) * 2 * scale.of(4, 1)) << 20,
                    compute_us: 0,
                };
                // Neither is buffered: it is the way to the device that is compared.
                let config = device.config("bypass", 0);
                let seen = run_on(options, &site, &science, &config, &work)?;
                let rate = work.bytes as f64 / seen.write_s;
                measured.add(device.name, system, Unit::Bandwidth(1), rate);
            }
        }
    }
    for (device, printed) in printed {
        let name = devices[*device].name;
        let rates = measured.median(name, APIS[0].1).zip(measured.median(name, APIS[1].1));
        let here = rates.map(|(posix, mpi)| 1.0 - mpi / posix);
        paper::note(&mut measured, printed, here);
        let claim = Claim::ratio(name, (name, APIS[1].1), (name, APIS[0].1), 0.9);
        measured.claims.push(Claim { paper: Some(1.0 - printed.value), ..claim });
    }
    Ok(measured)
}

const MORE: &str =
    "ranks of this machine share few processors, and MPI-IO's locks and copies count";
const LESS: &str = "MPI-IO makes the same requests";

/// Figure 7: on one node.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn fig7(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let printed = [
        (0, Printed::percent("7: HDD, by how much MPI is slower", 0.0, MORE, LESS)),
        (1, Printed::percent("7: SSD, by how much MPI is slower", 0.0, MORE, LESS)),
        (2, Printed::percent("7: NVM, by how much MPI is slower", 0.0487, MORE, LESS)),
    ];
    let name = ("nvm-fig7", "NVM, Figure 7: POSIX and MPI individual I/O on one node, IOR");
    run(name, &DEVICES, 4, &printed, options, say)
}

/// Figure 8: on four nodes, whose storage node is behind a network.
///
/// # Errors
/// What could not be made or run, or which bytes were wrong.
pub fn fig8(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let devices = OVER_NETWORK.map(|found| Device {
        name: found.name,
        bandwidth: (found.random * 1e6) as u64,
        latency_us: NETWORK_US,
    });
    let printed = [
        (0, Printed::percent("8: HDD, by how much MPI is slower", 0.0, MORE, LESS)),
        (1, Printed::percent("8: SSD, by how much MPI is slower", 0.0, MORE, LESS)),
        (2, Printed::percent("8: NVM, by how much MPI is slower", 0.0, MORE, LESS)),
    ];
    let name = ("nvm-fig8", "NVM, Figure 8: POSIX and MPI individual I/O over a network, IOR");
    let mut measured = run(name, &devices, 4, &printed, options, say)?;
    measured.notes.push(
        "The storage node is emulated with Table IV's random bandwidths, which are those of its \
         network for SSD and NVM, and 0.2 ms for a request; four ranks stand for the paper's 16."
            .to_owned(),
    );
    Ok(measured)
}
