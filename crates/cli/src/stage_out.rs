//! `forebay stage-out`: brings what is buffered of files to the store, and, if asked to, gives up
//! their room on the tiers.

use crate::drain::Progress;
use crate::elsewhere;
use crate::flush::{flush_pool, report};
use crate::named::{Named, Pool};
use crate::output;
use crate::stage_in::found::{Files, Found, Left};
use crate::text::{bytes, files};
use clap::Args;
use forebay_client::{Advice, OpenFlags, Session};
use forebay_node::log::shown;
use forebay_pool::layout::FileFlags;
use forebay_pool::pins::Pin;
use forebay_pool::{Entry, FileId, Identity};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Options of `forebay stage-out`.
#[derive(Args)]
pub struct StageOutArguments {
    /// Drop what the store has then from the tiers: room for other files
    #[arg(long)]
    drop: bool,
    /// Show how it comes along, however little time it takes
    #[arg(long)]
    progress: bool,
    /// Say at the end what was done as JSON: an object, see docs/staging.md
    #[arg(long)]
    json: bool,
    /// Files, and directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Options of `forebay drop`.
#[derive(Args)]
pub struct DropArguments {
    /// Say at the end what was done as JSON: an object, see docs/staging.md
    #[arg(long)]
    json: bool,
    /// Files, and directories with everything below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// `forebay drop`.
pub fn drop_clean(arguments: &DropArguments) -> Result<ExitCode, String> {
    let ended = drop_all(arguments);
    if let Err(error) = &ended
        && arguments.json
    {
        print_dropped(&Dropped::default(), 0, std::slice::from_ref(error));
    }
    ended
}

fn drop_all(arguments: &DropArguments) -> Result<ExitCode, String> {
    let (mut paths, mut named, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for path in &arguments.paths {
        match Named::of(path) {
            Ok(found) => {
                paths.push(path);
                named.push(found);
            }
            Err(error) => errors.push(error),
        }
    }
    let (pools, unreadable) = Pool::all(&named)?;
    errors.extend(unreadable);
    errors.extend(elsewhere::unknown(&named, &pools)?);
    // To drop the rest of such a file would have it flushed.
    let (mut ahead, mut stays) = (HashSet::new(), 0);
    for pool in &pools {
        for found in pool.ahead(&named) {
            ahead.insert(pool.segment.file(found.file).identity());
            stays += pending(pool, found.file);
        }
    }
    let mut dropped = Dropped::default();
    dropped.drop_found(&pools, &paths, &ahead, &mut errors);
    if arguments.json {
        print_dropped(&dropped, stays, &errors);
    } else if errors.is_empty() {
        println!("dropped {} ({}) from the tiers", files(dropped.files), bytes(dropped.bytes));
        if stays > 0 {
            println!(
                "{} stay with their files, as the store does not have them yet: `forebay stage-out --drop` brings \
                 them there first",
                bytes(stays)
            );
        }
    }
    Ok(report(&errors))
}

fn print_dropped(dropped: &Dropped, stays: u64, errors: &[String]) {
    let object = json!({
        "files": dropped.files, "bytes": dropped.bytes, "stays": stays, "errors": errors,
    });
    output::json(object);
}

/// `forebay stage-out`.
pub fn stage_out(arguments: &StageOutArguments) -> Result<ExitCode, String> {
    let ended = stage_all(arguments);
    if let Err(error) = &ended
        && arguments.json
    {
        print_json(&Came::default(), &Dropped::default(), std::slice::from_ref(error));
    }
    ended
}

fn stage_all(arguments: &StageOutArguments) -> Result<ExitCode, String> {
    let (mut paths, mut named, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for path in &arguments.paths {
        match Named::of(path) {
            Ok(found) => {
                paths.push(path);
                named.push(found);
            }
            Err(error) => errors.push(error),
        }
    }
    let (pools, unreadable) = Pool::all(&named)?;
    errors.extend(unreadable);
    let mut progress = Progress::shown("staging out", arguments.progress);
    let (mut came, mut dropped) = (Came::default(), Dropped::default());
    for pool in &pools {
        came.stage_out_of(pool, &named, &mut progress, &mut errors);
    }
    progress.end();
    errors.extend(elsewhere::unknown(&named, &pools)?);
    errors.extend(named.iter().filter_map(|named| named.sync_store().err()));
    if arguments.drop {
        dropped.drop_found(&pools, &paths, &HashSet::new(), &mut errors);
    }
    if arguments.json {
        print_json(&came, &dropped, &errors);
    } else if errors.is_empty() {
        print!("staged out {} ({})", files(came.files), bytes(came.bytes));
        match arguments.drop {
            true => {
                println!(
                    "; dropped {} ({}) from the tiers",
                    files(dropped.files),
                    bytes(dropped.bytes)
                );
            }
            false => println!(),
        }
    }
    Ok(report(&errors))
}

fn print_json(came: &Came, dropped: &Dropped, errors: &[String]) {
    let object = json!({
        "files": came.files,
        "bytes": came.bytes,
        "dropped": { "files": dropped.files, "bytes": dropped.bytes },
        "errors": errors,
    });
    output::json(object);
}

/// What to say of a path below which not all was seen; nothing if it was only removed meanwhile, or
/// is no file.
fn unseen(left: &Left) -> Option<String> {
    let is_there = |kind| !matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory);
    left.error
        .filter(|kind| is_there(*kind))
        .map(|_| format!("{}: {}", shown(&left.path), left.reason))
}

/// What has come to the store.
#[derive(Default)]
struct Came {
    files: usize,
    bytes: u64,
}

impl Came {
    /// Brings to the store what `named` means.
    fn stage_out_of(
        &mut self,
        pool: &Pool,
        named: &[Named],
        progress: &mut Progress,
        errors: &mut Vec<String>,
    ) {
        let ahead = pool.ahead(named);
        let before: Vec<u64> = ahead.iter().map(|ahead| pending(pool, ahead.file)).collect();
        let known = errors.len();
        flush_pool(pool, &ahead, progress, errors);
        let has_failed = errors.len() > known;
        for (found, before) in ahead.iter().zip(before) {
            // What a program has written since is no part of it, as long as nothing has failed.
            let is_left =
                has_failed && pool.segment.file(found.file).has(FileFlags::METADATA_DIRTY);
            let left = if is_left { pending(pool, found.file) } else { 0 };
            self.files += usize::from(!is_left);
            self.bytes += before.saturating_sub(left);
        }
    }
}

/// Bytes of a file that the store lacks.
fn pending(pool: &Pool, file: FileId) -> u64 {
    let size = pool.segment.file(file).size.load(Ordering::Acquire);
    let mut sum = 0;
    pool.segment.for_each_pending(file, 0, |range| {
        sum += range.end.min(size).saturating_sub(range.start);
        true
    });
    sum
}

/// The records of which the tiers have blocks that the store may have, too, by the files that they
/// are of: more than one if an inode has become another file's.
struct Records(HashMap<Identity, Vec<FileId>>);

impl Records {
    fn of(pool: &Pool) -> Records {
        let mut records: HashMap<_, Vec<_>> = HashMap::new();
        for found in pool.segment.found_files() {
            let record = pool.segment.file(found.file);
            if !record.has(FileFlags::SCRATCH) && resident(pool, found.file) > 0 {
                records.entry(record.identity()).or_default().push(found.file);
            }
        }
        Records(records)
    }

    /// Bytes that the tiers have of a file.
    fn resident(&self, pool: &Pool, identity: Identity) -> u64 {
        self.still(pool, identity).map(|file| resident(pool, file)).sum()
    }

    /// Whether a program has pinned something of a file.
    fn has_pins(&self, pool: &Pool, identity: Identity) -> bool {
        let segment = &pool.segment;
        let is_now = |pin: &Pin| {
            segment.header().has_file(pin.file)
                && segment.file(pin.file).generation.load(Ordering::Acquire) == pin.generation
        };
        let pins: Vec<_> = segment.pins().filter(is_now).map(|pin| pin.file).collect();
        self.still(pool, identity).any(|file| pins.contains(&file))
    }

    /// The records that are still of a file.
    fn still(&self, pool: &Pool, identity: Identity) -> impl Iterator<Item = FileId> {
        let records = self.0.get(&identity).into_iter().flatten().copied();
        records.filter(move |file| pool.segment.file(*file).identity() == identity)
    }
}

/// What has left the tiers.
#[derive(Default)]
struct Dropped {
    files: usize,
    bytes: u64,
}

impl Dropped {
    /// Drops what the stores have of the files that paths name, but for those of `kept`.
    fn drop_found(
        &mut self,
        pools: &[Pool],
        paths: &[&PathBuf],
        kept: &HashSet<Identity>,
        errors: &mut Vec<String>,
    ) {
        let records: Vec<_> = pools.iter().map(Records::of).collect();
        if records.iter().all(|records| records.0.is_empty()) {
            return;
        }
        let stores = pools.iter().flat_map(Pool::stores).map(Path::to_owned).collect();
        let mut all = Files::within(stores);
        paths.iter().for_each(|path| all.add(path));
        errors.extend(all.left.iter().filter_map(unseen));
        all.found.retain(|found| !kept.contains(&found.identity));
        for (pool, records) in pools.iter().zip(&records) {
            self.drop_of(pool, records, &all.found, errors);
        }
    }

    /// Drops the blocks of `found`, as far as the store has them. Which record is a file's is told
    /// by its identity: it may have been opened by another name.
    fn drop_of(
        &mut self,
        pool: &Pool,
        records: &Records,
        found: &[Found],
        errors: &mut Vec<String>,
    ) {
        let mut session = None;
        for Found { path, identity, .. } in found {
            let before = records.resident(pool, *identity);
            if before == 0 {
                continue;
            }
            if session.is_none() {
                match pool.join("stage-out --drop") {
                    Ok(joined) => session = Some(joined),
                    Err(error) => return errors.push(error),
                }
            }
            let Some(session) = &session else { return };
            match advise(session, path) {
                Ok(()) => {}
                // It was removed meanwhile: nothing of it is asked for.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => continue,
                Err(errno) => {
                    let (path, error) = (shown(path), std::io::Error::from(errno));
                    errors.push(format!("{path}: {error}: what the tiers have of it stays"));
                    continue;
                }
            }
            let left = records.resident(pool, *identity);
            if left > 0 && records.has_pins(pool, *identity) {
                errors.push(format!(
                    "{}: {} stay in the tiers: a program has pinned some of it (`forebay explain` \
                     shows what); end it, or have it unpin that first",
                    shown(path),
                    bytes(left)
                ));
            }
            self.files += usize::from(left < before);
            self.bytes += before.saturating_sub(left);
        }
    }
}

/// Says that a file is not needed on the tiers.
fn advise(session: &Session, path: &Path) -> Result<(), Errno> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let usual = OpenFlags::CLOEXEC | OpenFlags::NONBLOCK | OpenFlags::NOCTTY;
    let open = |access| session.open(CWD, &name, access | usual, Mode::empty());
    // Only a description is needed, whichever way the file may be opened.
    let fd = open(OpenFlags::RDONLY).or_else(|_| open(OpenFlags::WRONLY))?;
    if let Some(file) = session.file(fd) {
        file.advise(0, 0, Advice::DontNeed);
    }
    session.close(fd)
}

/// Bytes of the blocks that the tiers have of a file.
fn resident(pool: &Pool, file: FileId) -> u64 {
    let (segment, mut blocks) = (&pool.segment, 0u64);
    segment.for_each_entry(segment.file(file), 0, |_, place| {
        let entry = Entry::decode(place.load(Ordering::Acquire));
        blocks += u64::from(matches!(entry, Entry::Resident { .. }));
        true
    });
    let size = segment.file(file).size.load(Ordering::Acquire);
    (blocks * segment.bucket_bytes() as u64).min(size)
}
