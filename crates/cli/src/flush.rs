//! `forebay flush`: brings files to the store now.

use crate::drain::Progress;
use crate::elsewhere;
use crate::holders::Holders;
use crate::named::{Named, Pool};
use crate::text::{bytes, files};
use crate::watch::Watch;
use clap::Args;
use forebay_pool::{FileId, FoundFile, SyncState, futex};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Options of `forebay flush`.
#[derive(Args)]
pub struct FlushArguments {
    /// Show how it comes along, and when all will be safe, however little time it takes
    #[arg(long)]
    progress: bool,
    /// Files, and directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// How often another node manager is started for a pool whose own has died.
pub(crate) const REVIVALS: usize = 5;
/// Flushes `files` and waits, with as many node managers as it takes. Adds what went wrong to
/// `errors`.
pub(crate) fn flush_pool(
    pool: &Pool,
    files: &[FoundFile],
    progress: &mut Progress,
    errors: &mut Vec<String>,
) {
    // It stays as long as we hold it.
    let mut held = None;
    for _ in 0..=REVIVALS {
        if flush_while_served(pool, files, progress, errors) {
            return;
        }
        drop(held.take());
        match pool.revive() {
            Ok(connection) => held = Some(connection),
            Err(error) => return errors.push(error),
        }
    }
    errors.push(format!("{}: node managers end again and again", pool.place().display()));
}

/// Flushes `files` and waits as long as a node manager is there to do it; false if none is.
fn flush_while_served(
    pool: &Pool,
    files: &[FoundFile],
    progress: &mut Progress,
    errors: &mut Vec<String>,
) -> bool {
    let header = pool.segment.header();
    let noted = |file: FileId| pool.segment.file(file).errors();
    // All tickets first, so that the manager works on all files.
    let mut wanted: Vec<_> = files
        .iter()
        .map(|&ahead| {
            let before = noted(ahead.file);
            (ahead, before, pool.segment.request_sync(ahead.file, None, true))
        })
        .collect();
    let pending = |file: FileId| pool.segment.pending_bytes(file);
    let mut holders = Holders::default();
    let mut watch = Watch::default();
    let fails = |file: FileId| pool.segment.file(file).failing_errno().is_some();
    progress.show(files.iter().map(|ahead| pending(ahead.file)).sum(), || {
        files.iter().any(|ahead| fails(ahead.file))
    });
    while !wanted.is_empty() {
        let seen = header.work_done.load(Ordering::Acquire);
        wanted.retain(|&(found, before, ticket)| {
            let state = pool.segment.sync_state(found, ticket);
            if state == SyncState::Done && noted(found.file) != before {
                errors.push(pool.explain(found.file));
            }
            state == SyncState::Waiting
        });
        progress.show(wanted.iter().map(|(ahead, ..)| pending(ahead.file)).sum(), || {
            wanted.iter().any(|(ahead, ..)| fails(ahead.file))
        });
        holders.tell(|| forebay_node::holders::holders(&pool.segment));
        if !wanted.is_empty() {
            if pool.is_gone() {
                let files: Vec<_> = wanted.iter().map(|(ahead, ..)| ahead.file).collect();
                errors.extend(pool.lost(&files));
                return true;
            }
            if pool.is_abandoned() {
                return false;
            }
            if let Err(error) = watch.look(pool.manager()) {
                errors.push(error);
                return true;
            }
            futex::wait(&header.work_done, seen, 50);
        }
    }
    true
}

/// Prints errors; the status of a command that met them, or of one that met none.
pub(crate) fn report(errors: &[String]) -> ExitCode {
    errors.iter().for_each(|error| eprintln!("forebay: {error}"));
    ExitCode::from(u8::from(!errors.is_empty()))
}

/// `forebay flush`.
pub fn flush(arguments: &FlushArguments) -> Result<ExitCode, String> {
    let mut errors = Vec::new();
    let looked = arguments.paths.iter().map(|path| Named::of(path));
    let (named, missing): (Vec<_>, Vec<_>) = looked.partition(Result::is_ok);
    let named: Vec<Named> = named.into_iter().flatten().collect();
    errors.extend(missing.into_iter().filter_map(Result::err));
    let mut progress = Progress::shown("flushing", arguments.progress);
    let (mut count, mut sum) = (0, 0);
    let (pools, unreadable) = Pool::all(&named)?;
    errors.extend(unreadable);
    for pool in &pools {
        let files = pool.ahead(&named);
        count += files.len();
        sum += files.iter().map(|ahead| pool.segment.pending_bytes(ahead.file)).sum::<u64>();
        flush_pool(pool, &files, &mut progress, &mut errors);
    }
    progress.end();
    errors.extend(elsewhere::unknown(&named, &pools)?);
    errors.extend(named.iter().filter_map(|named| named.sync_store().err()));
    if errors.is_empty() {
        println!("flushed {} ({})", files(count), bytes(sum));
    }
    Ok(report(&errors))
}
