//! The same unmodified program on file systems that buffer: Forebay, iowarp-core, JuiceFS, tmpfs, and
//! the backing store through the page cache.

use crate::measured::{Claim, Measured};
use crate::micro::{FOREBAY, Forebay, PAGE_CACHE, PROGRAM, Size, TMPFS, take};
use crate::server;
use crate::site::Site;
use crate::systems::{Peer, iowarp, juicefs};
use crate::{Options, Scale};
use std::path::{Path, PathBuf};
use std::process::Command;

const PEERS: [&Peer; 2] = [&iowarp::PEER, &juicefs::PEER];
const ROUNDS: u32 = 3;
/// Where packages are installed, below the directory of the options.
const ENVIRONMENT: &str = "forebay-peers";
/// Seconds that the program may take: a mount whose server died would hold it for ever.
const LIMIT_S: &str = "300";
/// What is wanted, see docs/performance.md.
const WANTED: f64 = 20.0;
const COMPARED: [(&str, &str); 5] = [
    ("write 1 MiB, new blocks", "write-1m-new"),
    ("write 1 MiB, resident", "write-1m"),
    ("pwrite 4 KiB, random", "write-4k-random"),
    ("pread 4 KiB, random", "read-4k-random"),
    ("pwrite 4 KiB within 1 MiB", "write-4k-hot"),
];

/// Runs the program everywhere.
///
/// # Errors
/// What could not be installed, made or run. The files are removed, mounts undone and processes ended.
pub fn peers(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let size = Size {
        mib: options.scale.of(256, 8),
        random_mib: options.scale.of(256, 8),
        operations: options.scale.of(3000, 100),
        files: options.scale.of(300, 10),
    };
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let environment = folder.join(ENVIRONMENT);
    let environment = std::path::absolute(&environment).map_err(|e| format!("{e}"))?;
    if options.install {
        install(&environment, say)?;
    }
    let memory =
        Site::below(Path::new("/dev/shm"), size.pool_bytes() + ((4 * size.random_mib) << 20))?;
    let store = Site::below(&folder, (4 * size.random_mib) << 20)?;
    let program = memory.compile(PROGRAM.0, PROGRAM.1)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "The same unmodified program on file systems that buffer";
    let mut measured = Measured::new("peers", title, rounds, is_small);
    measured.is_drawn = false;

    let buffered = store.folder("buffered")?;
    let forebay = Forebay::new(options, &store, "forebay.toml", &buffered, size.pool_bytes())?;
    let mut places: Vec<(&str, PathBuf)> = vec![
        (FOREBAY, buffered),
        (TMPFS, memory.folder("plain")?),
        (PAGE_CACHE, store.folder("plain")?),
    ];
    measured.notes.push(format!(
        "Forebay: RAM tier of {} MiB, flushed on exit, over the directory that is measured as {PAGE_CACHE}",
        size.pool_bytes() >> 20
    ));
    let mut mounts = Vec::new();
    for peer in PEERS {
        say(&format!("mounting {}", peer.name));
        match (peer.mount)(&memory, &environment) {
            Ok(Some(mount)) => {
                places.push((peer.name, mount.folder.clone()));
                measured.notes.push(peer.configuration.to_owned());
                mounts.push(mount);
            }
            Ok(None) => measured.notes.push(format!(
                "NOT MEASURED: {}: {} is not installed in {}; --install does that",
                peer.name,
                peer.package,
                environment.display()
            )),
            // What cannot be mounted here must not hide the others.
            Err(why) => measured.notes.push(format!("NOT MEASURED: {}: {why}", peer.name)),
        }
    }
    let _manager = forebay.serve(&store)?;
    let before = forebay.writes()?;
    for round in 1..=rounds {
        for turn in 0..places.len() {
            let (system, folder) = &places[(turn + round as usize) % places.len()];
            say(&format!("round {round} of {rounds}: {system}"));
            let mut command = match *system {
                FOREBAY => forebay.run(Path::new("timeout")),
                _ => Command::new("timeout"),
            };
            command.args(["--kill-after=5", LIMIT_S]).arg(&program);
            let printed = server::run(command.args(size.arguments(folder)));
            take(&mut measured, system, &printed.map_err(|e| format!("{system}: {e}"))?)?;
        }
    }
    if forebay.writes()? < before + u64::from(rounds) * size.operations {
        return Err("the program's writes did not go through Forebay".into());
    }
    for (what, work) in COMPARED {
        for peer in PEERS {
            measured.claims.push(Claim::ratio(what, (work, FOREBAY), (work, peer.name), WANTED));
        }
        for (system, wanted) in [(TMPFS, 1.0), (PAGE_CACHE, 1.0)] {
            measured.claims.push(Claim::ratio(what, (work, FOREBAY), (work, system), wanted));
        }
    }
    Ok(measured)
}

/// A virtual environment with the packages of all peers.
fn install(environment: &Path, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let pip = environment.join("bin/pip");
    if !pip.is_file() {
        say(&format!("making {}", environment.display()));
        server::run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    }
    let packages = PEERS.map(|peer| peer.package);
    say(&format!("installing {}", packages.join(" and ")));
    server::run(Command::new(pip).args(["install", "--quiet"]).args(packages)).map(drop)
}
