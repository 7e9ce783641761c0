//! The same unmodified program on file systems that buffer: Forebay, iowarp-core, JuiceFS, tmpfs,
//! and the backing store through the page cache.

use crate::measured::{Claim, Measured};
use crate::micro::{FOREBAY, Forebay, PAGE_CACHE, PROGRAM, Size, TMPFS, take};
use crate::server;
use crate::site::{Site, failed};
use crate::systems::{Peer, iowarp, juicefs};
use crate::{Options, Scale};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
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
/// What could not be installed, made or run. The files are removed, mounts undone and processes
/// ended.
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
    let is_installed = is_there(&environment)?;
    let memory =
        Site::below(Path::new("/dev/shm"), size.pool_bytes() + ((4 * size.random_mib) << 20))?;
    let store = Site::below(&folder, (4 * size.random_mib) << 20)?;
    let program = memory.compile(PROGRAM.0, PROGRAM.1)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.scale.of(ROUNDS, 1);
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
        let mounted = match is_installed {
            true => (peer.mount)(&memory, &environment),
            false => Ok(None),
        };
        match mounted {
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
    let _manager = forebay.serve()?;
    let before = forebay.writes()?;
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for turn in 0..places.len() {
            let (system, folder) = &places[(turn + round as usize) % places.len()];
            say(&format!("round {round}: {system}"));
            let mut command = match *system {
                FOREBAY => forebay.run(Path::new("timeout")),
                _ => Command::new("timeout"),
            };
            command.args(["--kill-after=5", LIMIT_S]).arg(&program);
            let printed = server::run(command.args(size.arguments(folder)));
            take(&mut measured, system, &printed.map_err(|e| format!("{system}: {e}"))?)?;
        }
    }
    if forebay.writes()? < before + u64::from(round) * size.operations {
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

/// Whether there is an environment. What lies in it is run, and the usual directory is every
/// user's.
///
/// # Errors
/// That another user has made it, or can change it.
fn is_there(environment: &Path) -> Result<bool, String> {
    let found = match fs::symlink_metadata(environment) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(|error| failed(environment, &error))?,
    };
    let own = rustix::process::geteuid().as_raw();
    match found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0 {
        true => Ok(true),
        false => Err(format!(
            "{}: other users may have put programs there, none of which is run; remove it, or name another \
             directory with --dir",
            environment.display()
        )),
    }
}

/// A virtual environment with the packages of all peers.
fn install(environment: &Path, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(environment) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(environment, &error));
        }
        _ => {}
    }
    is_there(environment)?;
    let pip = environment.join("bin/pip");
    if !pip.is_file() {
        say(&format!("making {}", environment.display()));
        server::run(Command::new("python3").args(["-m", "venv"]).arg(environment))?;
    }
    let packages = PEERS.map(|peer| peer.package);
    say(&format!("installing {}", packages.join(" and ")));
    server::run(Command::new(pip).args(["install", "--quiet"]).args(packages)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn programs_that_another_user_may_have_put_there_are_not_run() {
        let root = std::env::temp_dir().join(format!("forebay-bench-peers-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&root).unwrap();
        let environment = root.join(ENVIRONMENT);
        assert_eq!(is_there(&environment), Ok(false));
        DirBuilder::new().mode(0o700).create(&environment).unwrap();
        assert_eq!(is_there(&environment), Ok(true));
        let link = root.join("link");
        symlink(&environment, &link).unwrap();
        assert!(is_there(&link).unwrap_err().contains("link: other users may"));
        fs::set_permissions(&environment, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = |error: String| error.contains(ENVIRONMENT) && error.contains("--dir");
        assert!(is_there(&environment).is_err_and(refused));
        assert!(install(&environment, &mut |_| ()).is_err_and(refused));
        assert!(!environment.join("bin").exists());
        fs::set_permissions(&environment, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(is_there(&environment), Ok(true));
        if rustix::process::geteuid().is_root() {
            chown(&environment, Some(65534), None).unwrap();
            assert!(is_there(&environment).is_err_and(refused));
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
