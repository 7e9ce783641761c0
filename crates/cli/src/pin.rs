//! `forebay pin`: keeps files in a tier as long as the command runs.

use crate::elsewhere;
use crate::named::{Named, Pool};
use crate::signals;
use crate::stage_in::found::{Files, Found, Left};
use crate::stage_in::orders::Staging;
use crate::text::{bytes, files};
use clap::Args;
use forebay_client::{OpenFlags, PinRefused, Session};
use forebay_node::log::shown;
use rustix::fs::{CWD, Mode};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Options of `forebay pin`.
#[derive(Args)]
pub struct PinArguments {
    /// Keep them in this tier, or in a faster one; without it in memory
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// Files, and directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// The handle of all pins: they end together, with the process.
const HANDLE: u32 = 1;

/// `forebay pin`: pins what can be, says so, and stays until a signal comes, or all node managers
/// have gone.
pub fn pin(arguments: &PinArguments) -> Result<ExitCode, String> {
    let (mut named, mut errors) = (Vec::new(), Vec::new());
    for path in &arguments.paths {
        errors.extend(Named::of(path).map(|found| named.push(found)).err());
    }
    let (pools, unreadable) = Pool::all(&named)?;
    errors.extend(unreadable);
    errors.extend(elsewhere::unknown(&named, &pools)?);
    signals::install()?;
    let stores = pools.iter().flat_map(Pool::stores).map(Path::to_owned).collect();
    let mut all = Files::within(stores);
    arguments.paths.iter().for_each(|path| all.add(path));
    errors.extend(all.left.iter().filter_map(unseen));
    let mut pinned = Pinned::default();
    for pool in &pools {
        pinned.pin_in(pool, arguments.tier.as_deref(), &all.found, &mut errors);
    }
    errors.extend(pinned.without_pool(&all.found, &pools));
    errors.iter().for_each(|error| eprintln!("forebay: {error}"));
    if pinned.sessions.is_empty() {
        return Ok(ExitCode::from(u8::from(!errors.is_empty() || pinned.files == 0)));
    }
    eprintln!(
        "forebay: pinned {} ({}); they are no more when this command ends (by Ctrl-C, or `kill {}`)",
        files(pinned.files),
        bytes(pinned.bytes),
        std::process::id()
    );
    while signals::early().is_none() {
        if pools.iter().all(|pool| pool.is_gone() || pool.is_abandoned()) {
            return Err("the node manager has ended, and the pins with it".to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // That is how it is meant to end.
    Ok(ExitCode::from(u8::from(!errors.is_empty())))
}

/// What to say of a path that is not pinned, as it could not be looked at.
fn unseen(left: &Left) -> Option<String> {
    left.error.map(|_| format!("{}: {}", shown(&left.path), left.reason))
}

/// What was pinned.
#[derive(Default)]
struct Pinned {
    files: usize,
    bytes: u64,
    /// They hold the pins.
    sessions: Vec<Session>,
}

impl Pinned {
    fn pin_in(
        &mut self,
        pool: &Pool,
        tier: Option<&str>,
        found: &[Found],
        errors: &mut Vec<String>,
    ) {
        let mine: Vec<_> = found.iter().filter(|found| pool.holds(&found.path)).collect();
        if mine.is_empty() {
            return;
        }
        let number = match Staging::tier_of(pool, tier) {
            Ok(tier) => tier.index() as u32,
            Err(error) => return errors.push(error),
        };
        let session = match pool.join("pin") {
            Ok(session) => session,
            Err(error) => return errors.push(error),
        };
        for found in mine {
            if signals::early().is_some() {
                break;
            }
            match pin_one(&session, &found.path, number) {
                Ok(()) => {
                    self.files += 1;
                    self.bytes += found.size;
                }
                Err(why) => errors.push(format!("{}: not pinned: {why}", shown(&found.path))),
            }
        }
        self.sessions.push(session);
    }

    /// Files that no pool buffers.
    fn without_pool(&self, found: &[Found], pools: &[Pool]) -> Vec<String> {
        let is_held = |found: &&Found| !pools.iter().any(|pool| pool.holds(&found.path));
        let say = |found: &Found| {
            format!("{}: not pinned: no node manager of yours buffers it", shown(&found.path))
        };
        found.iter().filter(is_held).map(say).collect()
    }
}

fn pin_one(session: &Session, path: &Path, tier: u32) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    let usual = OpenFlags::CLOEXEC | OpenFlags::NONBLOCK | OpenFlags::NOCTTY;
    let failed = |errno| std::io::Error::from(errno).to_string();
    let fd = session.open(CWD, &name, OpenFlags::RDONLY | usual, Mode::empty()).map_err(failed)?;
    let pinned = match session.file(fd) {
        Some(file) => file.pin(0, 0, tier, HANDLE).map_err(|why| explain(&why)),
        None => Err("it is used directly (`forebay explain` says why)".to_owned()),
    };
    let closed = session.close(fd).map_err(failed);
    pinned.and(closed)
}

/// Why a file is not pinned, and what to do.
fn explain(why: &PinRefused) -> String {
    let room = |what: &str, room: &forebay_client::Pinned| {
        format!(
            "{} are asked for, {} of {} are taken of {what}",
            bytes(room.asked),
            bytes(room.pinned),
            bytes(room.most)
        )
    };
    match why {
        PinRefused::NoTier => "the node manager has no such tier".to_owned(),
        PinRefused::Direct => {
            "it is used through the kernel, as programs have it mapped, or use it without Forebay"
                .to_owned()
        }
        PinRefused::JobLimit(of) | PinRefused::TierLimit(of) => format!(
            "{}; pin less, or raise placement.pin_limit or the tier's capacity",
            room("what may be pinned of the tier", of)
        ),
        PinRefused::Quota(of) | PinRefused::QuotaRoom(of) => {
            format!("{}; pin less, or raise the quota", room("the quota", of))
        }
        PinRefused::Unserved => {
            "the node manager is stopped or has died, and makes no room".to_owned()
        }
        PinRefused::Failed(errno) => std::io::Error::from(*errno).to_string(),
    }
}
