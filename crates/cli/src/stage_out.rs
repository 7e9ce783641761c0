//! `forebay stage-out`: brings what is buffered of files to the store, and, if asked to, gives up
//! their room on the tiers.

use crate::drain::Progress;
use crate::elsewhere;
use crate::flush::{flush_pool, report};
use crate::named::{Named, Pool};
use crate::text::{bytes, files};
use clap::Args;
use forebay_client::{Advice, OpenFlags, Session};
use forebay_node::log::shown;
use forebay_pool::layout::FileFlags;
use forebay_pool::{Entry, FileId, FoundFile};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use serde_json::json;
use std::collections::HashSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
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

/// `forebay stage-out`.
pub fn stage_out(arguments: &StageOutArguments) -> Result<ExitCode, String> {
    let looked = arguments.paths.iter().map(|path| Named::of(path));
    let (named, missing): (Vec<_>, Vec<_>) = looked.partition(Result::is_ok);
    let named: Vec<Named> = named.into_iter().flatten().collect();
    let mut errors: Vec<String> = missing.into_iter().filter_map(Result::err).collect();
    let (pools, unreadable) = Pool::all(&named)?;
    errors.extend(unreadable);
    let mut progress = Progress::shown("staging out", arguments.progress);
    let (mut count, mut sum, mut dropped) = (0, 0, Dropped::default());
    for pool in &pools {
        let ahead = pool.ahead(&named);
        count += ahead.len();
        sum += ahead.iter().map(|ahead| pool.segment.pending_bytes(ahead.file)).sum::<u64>();
        flush_pool(pool, &ahead, &mut progress, &mut errors);
    }
    progress.end();
    errors.extend(elsewhere::unknown(&named, &pools)?);
    errors.extend(named.iter().filter_map(|named| named.sync_store().err()));
    if arguments.drop {
        for pool in &pools {
            dropped.drop_of(pool, &named, &mut errors);
        }
    }
    if arguments.json {
        let object = json!({
            "files": count,
            "bytes": sum,
            "dropped": { "files": dropped.files, "bytes": dropped.bytes },
            "errors": errors,
        });
        println!("{object}");
    } else if errors.is_empty() {
        print!("staged out {} ({})", files(count), bytes(sum));
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

/// What has left the tiers.
#[derive(Default)]
struct Dropped {
    files: usize,
    bytes: u64,
}

impl Dropped {
    /// Drops the blocks of the files that `named` means, as far as the store has them.
    fn drop_of(&mut self, pool: &Pool, named: &[Named], errors: &mut Vec<String>) {
        let has_blocks = |found: &FoundFile| {
            !pool.segment.file(found.file).has(FileFlags::SCRATCH) && resident(pool, found.file) > 0
        };
        let found: Vec<_> = pool.meant(named).into_iter().filter(has_blocks).collect();
        if found.is_empty() {
            return;
        }
        let session = match pool.join("stage-out --drop") {
            Ok(session) => session,
            Err(error) => return errors.push(error),
        };
        let mut seen = HashSet::new();
        for FoundFile { file, .. } in found {
            let before = resident(pool, file);
            let path = pool.path(file);
            let identity = pool.segment.file(file).identity();
            if !seen.insert(identity) {
                continue;
            }
            if let Err(errno) = advise(&session, &path) {
                let error = std::io::Error::from(errno);
                errors.push(format!("{}: {error}: what the tiers have of it stays", shown(&path)));
                continue;
            }
            let left = match pool.segment.file(file).identity() == identity {
                true => resident(pool, file),
                false => 0,
            };
            self.files += usize::from(left < before);
            self.bytes += before.saturating_sub(left);
        }
    }
}

/// Says that a file is not needed on the tiers.
fn advise(session: &Session, path: &std::path::Path) -> Result<(), Errno> {
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
