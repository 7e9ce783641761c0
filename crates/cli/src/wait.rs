//! `forebay wait`: waits until files are on the store, without pushing them there.

use crate::drain::Progress;
use crate::elsewhere;
use crate::flush::{REVIVALS, report};
use crate::holders::Holders;
use crate::named::{Named, Pool};
use crate::text::bytes;
use crate::watch::Watch;
use clap::Args;
use forebay_pool::FileId;
use forebay_pool::layout::Trigger;
use forebay_pool::pending::Owed;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Files that cannot be written are given up on when nothing else has been left for so long.
const GIVE_UP: Duration = Duration::from_secs(3);

/// Options of `forebay wait`.
#[derive(Args)]
pub struct WaitArguments {
    /// Show how it comes along, and when all will be safe, however little time it takes
    #[arg(long)]
    progress: bool,
    /// Wait until the store was synced, too
    #[arg(long)]
    durable: bool,
    /// Files, and directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// `forebay wait`.
pub fn wait(arguments: &WaitArguments) -> Result<ExitCode, String> {
    let looked = arguments.paths.iter().map(|path| Named::of(path));
    let (named, missing): (Vec<_>, Vec<_>) = looked.partition(Result::is_ok);
    let named: Vec<Named> = named.into_iter().flatten().collect();
    let mut errors: Vec<String> = missing.into_iter().filter_map(Result::err).collect();
    let mut count = 0;
    let (pools, unreadable) = Pool::all(&named)?;
    errors.extend(unreadable);
    for pool in &pools {
        let files: Vec<FileId> = pool.ahead(&named).iter().map(|ahead| ahead.file).collect();
        count += files.len();
        await_files(pool, &files, arguments.progress, &mut errors);
    }
    errors.extend(elsewhere::unknown(&named, &pools)?);
    if arguments.durable {
        errors.extend(named.iter().filter_map(|named| named.sync_store().err()));
    }
    if errors.is_empty() {
        println!("safe: {}", describe(count));
    }
    Ok(report(&errors))
}

/// What was waited for.
fn describe(files: usize) -> String {
    match files {
        0 => "everything was on the store already".to_owned(),
        1 => "1 file was not yet on the store, now it is".to_owned(),
        _ => format!("{files} files were not yet on the store, now they are"),
    }
}

/// Waits until nothing is pending of what was of `files` at first, or what is cannot be written.
fn await_files(pool: &Pool, files: &[FileId], progress: bool, errors: &mut Vec<String>) {
    let mut owed: Vec<_> = files.iter().map(|&file| (file, pool.segment.owed(file))).collect();
    let sum = |owed: &[(FileId, Owed)]| -> u64 {
        owed.iter().map(|(_, owed)| owed.bytes(&pool.segment)).sum()
    };
    let (first, mut revived) = (sum(&owed), 0);
    if first > 0
        && pool.is_abandoned()
        && !pool.is_gone()
        && let Err(error) = revive(pool, &mut revived)
    {
        return errors.push(error);
    }
    let awaits_run = revived == 0 || pool.is_in_use();
    if first > 0 && awaits_run && pool.segment.header().flush_trigger() == Trigger::OnExit {
        eprintln!(
            "forebay: {} wait for the end of their run (trigger on-exit); `forebay flush` writes \
             them now",
            bytes(first)
        );
    }
    let mut progress = Progress::shown("waiting", progress);
    let mut holders = Holders::default();
    let mut watch = Watch::default();
    let mut stuck: Option<Instant> = None;
    let mut left = first;
    while left > 0 {
        progress.show(left, || {
            owed.iter().any(|&(file, _)| pool.segment.file(file).failing_errno().is_some())
        });
        holders.tell(|| forebay_node::holders::holders(&pool.segment));
        if pool.is_gone() {
            let files: Vec<FileId> = owed.iter().map(|&(file, _)| file).collect();
            errors.extend(pool.lost(&files));
            break;
        }
        if pool.is_abandoned() {
            // Not held: it drains when no run and no program uses the pool any more.
            if let Err(error) = revive(pool, &mut revived) {
                errors.push(error);
                break;
            }
        }
        if let Err(error) = watch.look(pool.manager()) {
            errors.push(error);
            break;
        }
        let files: Vec<FileId> = owed.iter().map(|&(file, _)| file).collect();
        let failing = pool.failing(&files);
        if failing.is_empty() || failing.len() < files.len() {
            stuck = None;
        } else if stuck.get_or_insert_with(Instant::now).elapsed() > GIVE_UP {
            errors.extend(failing);
            break;
        }
        std::thread::sleep(LOOK);
        owed.iter_mut().for_each(|(_, owed)| pool.segment.update_owed(owed));
        owed.retain(|(_, owed)| owed.bytes(&pool.segment) > 0);
        left = sum(&owed);
    }
    progress.end();
}

/// Starts another node manager for a pool whose own has died, if that has not been done too often.
fn revive(pool: &Pool, revived: &mut usize) -> Result<(), String> {
    *revived += 1;
    match *revived > REVIVALS {
        true => Err("node managers end again and again; see their log".to_owned()),
        false => pool.revive().map(drop),
    }
}
