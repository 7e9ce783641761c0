//! Bringing what slots and journal have of each file to the store, in the order in which it was
//! written.

use super::locate::{Location, find_files, stores_of};
use super::recovered::{FileHint, Lost, RecoveredData, Step};
use crate::config::Config;
use crate::devices::faults::{self, Faults};
use crate::devices::open_store;
use crate::journal::contents::{Change, Contents};
use crate::journal::record::FileIdentity;
use crate::journal::replay::StoreWriter;
use crate::recovery::removed::Keeper;
use crate::store::beneath::{Since, sum_of_handle};
use forebay_device::StoreFile;
use forebay_pool::crash;
use forebay_posix::store_file;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What was brought to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Files that were written.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that have been removed since, and that no sync had acknowledged anything of: their
    /// bytes are dropped.
    pub removed: usize,
    /// Files that are not on their store any more, of which one had.
    pub kept: usize,
    /// Where what the tiers had of those is.
    pub kept_in: Vec<PathBuf>,
    /// The staged files that some process had open for writing.
    pub unfinished: Vec<PathBuf>,
}

impl Rebuilt {
    /// Both together.
    pub(crate) fn and(self, other: Rebuilt) -> Rebuilt {
        Rebuilt {
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
            removed: self.removed + other.removed,
            kept: self.kept + other.kept,
            kept_in: [self.kept_in, other.kept_in].concat(),
            unfinished: [self.unfinished, other.unfinished].concat(),
        }
    }
}

/// The stores of a configuration, as recovery writes to them.
pub(super) struct Writers {
    stores: Vec<StoreWriter>,
    /// Where what has no file any more is kept.
    copies: StoreWriter,
}

impl Writers {
    /// With the faults that a tester wants of stores.
    pub fn of(config: &Config, faults: Option<&Arc<Faults>>) -> Writers {
        let writer = |folder: PathBuf| {
            let store = open_store(folder);
            let batch = faults::around(store.batch(1), faults, faults::STORE);
            StoreWriter::new(store, batch)
        };
        let stores = config.backing.iter().map(|backing| writer(backing.path.clone()));
        Writers { stores: stores.collect(), copies: writer(PathBuf::new()) }
    }

    /// That of store `store`. Records name it: what is no store is taken for the last.
    fn store(&mut self, store: usize) -> &mut StoreWriter {
        let last = self.stores.len() - 1;
        &mut self.stores[store.min(last)]
    }
}

/// Replays to each file what slots and journal have of it, in the order in which it was written,
/// and makes it durable.
///
/// # Errors
/// A message that names the file of the store that cannot be written; to be tried again.
pub(super) fn replay(
    config: &Config,
    recovered: &mut RecoveredData,
    contents: &Contents,
    keeper: &mut Keeper,
    writers: &mut Writers,
) -> Result<Rebuilt, String> {
    let mut rebuilt = Rebuilt::default();
    let mut work: HashMap<FileIdentity, Vec<(u64, Step<'_>)>> = HashMap::new();
    for piece in recovered.pieces.drain(..) {
        work.entry(piece.file).or_default().push((piece.sequence, Step::Slot(piece)));
    }
    for (of_log, file) in &contents.files {
        let key = of_log.identity();
        let changes = file.changes.iter().map(|(sequence, change)| (*sequence, Step::Log(change)));
        work.entry(key).or_default().extend(changes);
        let path = PathBuf::from(OsStr::from_bytes(&file.path));
        let store = usize::from(of_log.store);
        let handle = sum_of_handle(of_log.handle_type, &of_log.handle);
        let hint = FileHint { path, store, mtime_ns: 0, sequence: 0, handle };
        let hint = recovered.files.entry(key).or_insert(hint);
        if handle != 0 {
            hint.handle = handle;
        }
        for (sequence, change) in &file.changes {
            if let Change::Data { mtime_ns, .. } = change
                && *sequence >= hint.sequence
            {
                (hint.mtime_ns, hint.sequence) = (*mtime_ns, *sequence);
            }
        }
    }
    recovered.files.retain(|key, _| work.contains_key(key));
    let found = find_files(config, &recovered.files)?;
    let stores = stores_of(config);
    for (key, mut steps) in work {
        steps.sort_by_key(|(sequence, _)| *sequence);
        let Some(hint) = recovered.files.remove(&key) else { continue };
        let hint = &hint;
        let path = match found.get(&key) {
            Some(Location::At(path)) => path,
            // As after a loss of power what was never synced is not missed.
            Some(Location::Removed)
                if !steps.iter().any(|(_, step)| matches!(step, Step::Log(_))) =>
            {
                rebuilt.removed += 1;
                continue;
            }
            Some(Location::Removed) => {
                rebuilt.kept += 1;
                match keep(config, keeper, hint, key, &steps, &mut writers.copies) {
                    Ok(failed) => {
                        for (range, why) in failed {
                            let what = hint.path.display().to_string();
                            recovered.lost.push(Lost { file: Some(key), what, range, why });
                        }
                    }
                    Err(why) => recovered.lose_all(key, hint, &steps, &why),
                }
                continue;
            }
            unknown => {
                let why = match unknown {
                    Some(Location::Refused(why)) => why,
                    _ => "this file is not there any more, or its store is not mounted",
                };
                recovered.lose_all(key, hint, &steps, why);
                continue;
            }
        };
        let name = path.display().to_string();
        let fail = |errno: Errno| {
            format!("{name}: {errno}; the tiers keep what it lacks: repair the store and try again")
        };
        let known = hint.known(key);
        let fd = stores.open(path, OFlags::WRONLY, &known, Since::Ever).map_err(fail)?;
        let (writer, file) = (writers.store(hint.store), store_file(&fd));
        for (_, step) in &steps {
            crash::point("rebuild.step");
            if let Some(why) = replay_step(writer, file, step).map_err(fail)? {
                let (what, range) = (name.clone(), step.range());
                recovered.lost.push(Lost { file: Some(key), what, range, why });
                continue;
            }
            rebuilt.bytes += step.range().map_or(0, |range| range.end - range.start);
        }
        if hint.mtime_ns != 0 {
            writer.set_modified(file, hint.mtime_ns);
        }
        crash::point("rebuild.written");
        writer.sync(file).map_err(fail)?;
        rebuilt.files += 1;
    }
    Ok(rebuilt)
}

/// Replays a step to a file. `Some`: it cannot be done, for this reason, nor another time.
///
/// # Errors
/// The store's.
fn replay_step(
    writer: &mut StoreWriter,
    file: StoreFile,
    step: &Step<'_>,
) -> Result<Option<String>, Errno> {
    let done = match step {
        Step::Log(change) => writer.redo(file, change),
        Step::Slot(piece) => match piece.read() {
            Ok(bytes) => writer.write(file, piece.offset, &bytes),
            Err(error) => return Ok(Some(error.to_string())),
        },
    };
    match done {
        Err(errno) if is_impossible(errno) => Ok(Some(errno.to_string())),
        other => other.map(|()| None),
    }
}

/// Ranges of a file that could not be brought anywhere, and why.
type Failed = Vec<(Option<Range<u64>>, String)>;

/// Keeps what there is of a file that is nowhere on its store. Returns what cannot be kept.
///
/// # Errors
/// Why nothing can be kept.
fn keep(
    config: &Config,
    keeper: &mut Keeper,
    hint: &FileHint,
    key: FileIdentity,
    steps: &[(u64, Step<'_>)],
    writer: &mut StoreWriter,
) -> Result<Failed, String> {
    let store = config.backing.get(hint.store).map_or(Path::new(""), |backing| &backing.path);
    let why = |what: &dyn std::fmt::Display| {
        format!("it is not on the store any more, and cannot be kept elsewhere: {what}")
    };
    let made = keeper.make(&hint.path, store, key.inode);
    let fd = made.map_err(|(path, error)| why(&format_args!("{}: {error}", path.display())))?;
    let file = store_file(&fd);
    let mut failed = Failed::new();
    for (_, step) in steps {
        crash::point("rebuild.keeping");
        let done = replay_step(writer, file, step).map_err(|errno| why(&errno))?;
        failed.extend(done.map(|why| (step.range(), why)));
    }
    if hint.mtime_ns != 0 {
        writer.set_modified(file, hint.mtime_ns);
    }
    Ok(failed)
}

/// Whether no store can do what a record says: it is longer than files can be.
fn is_impossible(errno: Errno) -> bool {
    matches!(errno, Errno::FBIG | Errno::INVAL | Errno::OVERFLOW)
}
