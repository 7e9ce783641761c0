//! What the file tiers of an instance hold whose segment is gone, as after a reboot: found by their slot
//! tables, and brought to the store's files before the instance starts anew.

use crate::config::{Config, TierKind};
use crate::devices::faults::{self, Faults};
use crate::devices::undoable::Undoable;
use crate::instance::runtime::{Runtime, sync_folder_of};
use crate::journal::Journal;
use crate::journal::contents::{Change, Contents};
use crate::journal::file::data_from;
use crate::journal::record::FileIdentity;
use crate::journal::replay::{redo, write_bytes};
use crate::journal::superblock::{other_version, reason};
use crate::recovery::inspect::of_foreign;
use crate::recovery::removed::Keeper;
use crate::store::beneath::{
    Beneath, Known, SEARCH_MAX, Since, Stores, Walked, doubt, knows_births, sum_of_handle,
};
use forebay_device::Batch;
use forebay_pool::layout::PAGES_PER_BUCKET;
use forebay_pool::slot_head::{FORMAT, Foreign, HEAD_BYTES};
use forebay_pool::slot_record::{self, RECORD_BYTES, Unreadable};
use forebay_pool::sums::sum_of;
use forebay_pool::{PageSet, SlotHead, SlotRecord, clock, crash, private, undo};
use forebay_posix::store_file;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of a slot table that are read at a time.
const TABLE_PIECE: usize = 1 << 20;
/// Lost ranges that are named; the others are counted.
const NAMED_MAX: usize = 100;

/// Bytes of a file that a slot has and the store has not, and whose sums are right.
pub(crate) struct SlotPiece {
    /// When the slot's record was written.
    pub sequence: u64,
    pub file: FileIdentity,
    /// Where in the file they belong.
    pub offset: u64,
    /// How many; never behind the end that the file had.
    pub bytes: u64,
    source: Rc<File>,
    at: u64,
}

impl SlotPiece {
    /// The bytes.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes as usize];
        self.source.read_exact_at(&mut bytes, self.at)?;
        Ok(bytes)
    }
}

/// Bytes that are not to be had any more.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lost {
    /// The file, if it is one of the store.
    file: Option<FileIdentity>,
    /// Its path, or what of a tier is damaged.
    what: String,
    range: Option<Range<u64>>,
    why: String,
}

/// What is known of a file beside its bytes.
struct FileHint {
    path: PathBuf,
    store: usize,
    mtime_ns: u64,
    sequence: u64,
    /// See [`Known`].
    handle: u32,
}

impl FileHint {
    fn known(&self, key: FileIdentity) -> Known {
        let FileIdentity { device, inode, born_ns } = key;
        Known { device, inode, born_ns, handle: self.handle }
    }
}

/// What an instance's file tiers hold.
#[derive(Default)]
pub(crate) struct Survivors {
    /// By ascending sequence.
    pub pieces: Vec<SlotPiece>,
    files: HashMap<FileIdentity, FileHint>,
    lost: Vec<Lost>,
    /// What the journal has of some file was brought nowhere.
    needs_journal: bool,
}

/// What was brought to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Files that were written.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that have been removed since, and that no sync had acknowledged anything of: their bytes are dropped.
    pub removed: usize,
    /// Files that are not on their store any more, of which one had.
    pub kept: usize,
    /// Where what the tiers had of those is.
    pub kept_in: Vec<PathBuf>,
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
        }
    }
}

/// Finds what the slots of an instance without segment hold. `settled` says of a file and a sequence
/// whether the store durably has everything up to that.
///
/// # Errors
/// A message that names a file of a tier that cannot be opened.
pub(crate) fn surviving_slots(
    config: &Config,
    runtime: &Runtime,
    settled: &dyn Fn(FileIdentity, u64) -> bool,
) -> Result<Survivors, String> {
    let mut found = Survivors::default();
    let mut records = Vec::new();
    for tier in &config.tiers {
        let TierKind::File { path: folder } = &tier.kind else { continue };
        let slots = runtime.slots(folder, &tier.name);
        let index = runtime.index(folder, &tier.name);
        let source = open(&slots)?.map(Rc::new);
        let Some(table) = open(&index)? else {
            if source.is_some_and(|file| has_slots(&file)) {
                let why =
                    format!("{} is missing: what its slots held is not known", index.display());
                found.lost.push(Lost {
                    file: None,
                    what: slots.display().to_string(),
                    range: None,
                    why,
                });
            }
            continue;
        };
        check_heads((&slots, source.as_deref()), (&index, &table))?;
        let mut other = None;
        read_table(&table, |slot, record| match record {
            Err(Unreadable::Version(version)) => other = Some(version),
            Ok(record) if record.page_bytes == config.page_size => {
                records.push((slot, record, source.clone()));
            }
            // Void: it is of no file.
            Ok(record) if record.dirty == 0 => {}
            _ => found.lost.push(Lost {
                file: None,
                what: slots.display().to_string(),
                range: None,
                why: format!("the record of slot {slot} is damaged: what it held is not known"),
            }),
        })
        .map_err(|error| format!("{}: {error}", index.display()))?;
        if let Some(version) = other {
            let why = other_version("slot records", version, slot_record::VERSION, "");
            return Err(format!("{}: {why}", index.display()));
        }
    }
    // Of several records of a block the latest says what is missing on the store.
    records.sort_unstable_by_key(|(_, record, _)| std::cmp::Reverse(record.sequence));
    let mut seen = std::collections::HashSet::new();
    records.retain(|(_, record, _)| seen.insert((key_of(record), record.block)));
    records.retain(|(_, record, _)| {
        record.dirty & record.valid != 0 && !settled(key_of(record), record.sequence)
    });
    for (slot, record, source) in &records {
        found.take(*slot, record, source.as_ref());
    }
    found.pieces.sort_by_key(|piece| piece.sequence);
    Ok(found)
}

/// Whether anything but its head was written to a file of slots.
fn has_slots(file: &File) -> bool {
    let Ok(found) = file.metadata() else { return false };
    match SlotHead::find(file.as_fd()) {
        Ok(Some(_)) => {
            // In pages, as holes are told.
            let end = (found.len() - HEAD_BYTES as u64) & !4095;
            data_from(file, 0).is_ok_and(|data| data < end)
        }
        _ => found.blocks() > 0,
    }
}

/// Looks whether slots and their table are of a format that can be read, and of one pool. Those of the version before have
/// no heads, and a loss of power may have taken one.
fn check_heads(
    (slots, source): (&Path, Option<&File>),
    (index, table): (&Path, &File),
) -> Result<(), String> {
    let head_of = |path: &Path, file: &File| {
        let explain = |why: String| format!("{}: {why}", path.display());
        let head = SlotHead::find(file.as_fd()).map_err(|errno| explain(errno.to_string()))?;
        match head.filter(|head| head.format != FORMAT) {
            Some(other) => Err(explain(of_foreign(&Foreign::Format(other)))),
            None => Ok(head),
        }
    };
    let of_slots = source.map(|file| head_of(slots, file)).transpose()?.flatten();
    match (of_slots, head_of(index, table)?) {
        (Some(of_slots), Some(of_table)) if of_slots.pool != of_table.pool => Err(format!(
            "{} and {} are not of the same pool; nothing was changed: put back what belongs together, or move both away",
            slots.display(),
            index.display()
        )),
        _ => Ok(()),
    }
}

fn key_of(record: &SlotRecord) -> FileIdentity {
    FileIdentity { device: record.device, inode: record.inode, born_ns: record.born_ns }
}

fn open(path: &Path) -> Result<Option<File>, String> {
    match private::open(path, OFlags::RDONLY) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(wrong) if wrong.is_missing() => Ok(None),
        Err(wrong) => Err(format!("{}: {wrong}", path.display())),
    }
}

/// Calls `each` with the number and the record of every slot that was ever written.
fn read_table(
    table: &File,
    mut each: impl FnMut(u64, Result<SlotRecord, Unreadable>),
) -> std::io::Result<()> {
    let mut piece = vec![0; TABLE_PIECE];
    let mut slot = 0;
    loop {
        // What was never written is void, and may be longer than can be read in years.
        slot = slot.max(data_from(table, slot * RECORD_BYTES as u64)? / RECORD_BYTES as u64);
        if slot.checked_mul(RECORD_BYTES as u64).is_none_or(|at| at > i64::MAX as u64) {
            return Ok(());
        }
        let mut got = 0;
        while got < piece.len() {
            match table.read_at(&mut piece[got..], slot * RECORD_BYTES as u64 + got as u64)? {
                0 => break,
                count => got += count,
            }
        }
        for bytes in piece[..got].chunks(RECORD_BYTES) {
            match SlotRecord::decode(bytes) {
                _ if SlotHead::decode(bytes).is_some() => {}
                Ok(None) => {}
                Ok(Some(record)) => each(slot, Ok(record)),
                Err(damaged) => each(slot, Err(damaged)),
            }
            slot += 1;
        }
        if got < piece.len() {
            return Ok(());
        }
    }
}

impl Survivors {
    /// Takes the pages of a slot that the store lacks: those whose sums are right, in runs.
    fn take(&mut self, slot: u64, record: &SlotRecord, source: Option<&Rc<File>>) {
        let page = u64::from(record.page_bytes);
        let bucket = page * u64::from(PAGES_PER_BUCKET);
        let file = key_of(record);
        let path = PathBuf::from(OsStr::from_bytes(record.path()));
        let store = record.store as usize;
        let (mtime_ns, sequence, handle) = (record.mtime_ns, record.sequence, record.handle);
        let hint = FileHint { path, store, mtime_ns, sequence, handle };
        let known = self.files.entry(file).or_insert(hint);
        if known.handle == 0 {
            known.handle = record.handle;
        }
        if known.sequence < record.sequence {
            (known.mtime_ns, known.sequence) = (record.mtime_ns, record.sequence);
        }
        let name = known.path.display().to_string();
        let end = record.block.checked_add(1).and_then(|next| next.checked_mul(bucket));
        let (Some(end), Some(at_slot)) = (end, slot.checked_mul(bucket)) else { return };
        let start = end - bucket;
        let mut buffer = vec![0; page as usize];
        for number in PageSet(record.dirty & record.valid).pages() {
            let within = number as u64 * page;
            let range = start + within..(start + within + page).min(record.size);
            if range.is_empty() {
                continue;
            }
            let at = at_slot + within;
            let read = match source {
                Some(source) => {
                    source.read_exact_at(&mut buffer, at).map_err(|error| error.to_string())
                }
                None => Err("the tier's slots are missing".to_owned()),
            };
            let known = record.sums[number];
            let right = read.and_then(|()| match known == 0 || known == sum_of(&buffer) {
                true => Ok(()),
                false => Err("its checksum is wrong".to_owned()),
            });
            match (right, source) {
                (Ok(()), Some(source)) => self.add(SlotPiece {
                    sequence: record.sequence,
                    file,
                    offset: range.start,
                    bytes: range.end - range.start,
                    source: Rc::clone(source),
                    at,
                }),
                (Err(why), _) => self.lose(file, &name, range, why),
                (Ok(()), None) => {}
            }
        }
    }

    /// Adds a piece, to the one before it if it continues that.
    fn add(&mut self, piece: SlotPiece) {
        if let Some(last) = self.pieces.last_mut()
            && (last.file, last.sequence) == (piece.file, piece.sequence)
            && last.offset + last.bytes == piece.offset
            && last.at + last.bytes == piece.at
        {
            last.bytes += piece.bytes;
        } else {
            self.pieces.push(piece);
        }
    }

    fn lose(&mut self, file: FileIdentity, what: &str, range: Range<u64>, why: String) {
        if let Some(last) = self.lost.last_mut()
            && last.file == Some(file)
            && last.why == why
            && let Some(lost) = &mut last.range
            && lost.end == range.start
        {
            lost.end = range.end;
        } else {
            let (file, what) = (Some(file), what.to_owned());
            self.lost.push(Lost { file, what, range: Some(range), why });
        }
    }

    /// Nothing of a file can be brought anywhere, for this reason.
    fn lose_all(
        &mut self,
        key: FileIdentity,
        hint: &FileHint,
        steps: &[(u64, Step<'_>)],
        why: &str,
    ) {
        let name = hint.path.display().to_string();
        for (_, step) in steps {
            self.needs_journal |= matches!(step, Step::Log(_));
            let Some(range) = range_of(step) else { continue };
            let (file, what, why) = (Some(key), name.clone(), why.to_owned());
            self.lost.push(Lost { file, what, range: Some(range), why });
        }
    }

    /// What is lost, for people.
    fn describe_lost(&self) -> String {
        let mut text = String::new();
        for lost in self.lost.iter().take(NAMED_MAX) {
            let _ = match &lost.range {
                Some(Range { start, end }) => {
                    write!(text, "\n  {}: bytes {start}..{end}: {}", lost.what, lost.why)
                }
                None => write!(text, "\n  {}: {}", lost.what, lost.why),
            };
        }
        if self.lost.len() > NAMED_MAX {
            let _ = write!(text, "\n  and {} more", self.lost.len() - NAMED_MAX);
        }
        text
    }
}

/// Brings what slots and journal of an instance hold to the store, and removes the tiers' files. To be called
/// by whoever holds the instance's lock and has found no segment. `None`: there was nothing.
///
/// # Errors
/// A message that names what is lost; the tiers' files are then kept under other names. Or one that
/// names the file of the store that cannot be written; then all stays as it is, to be tried again.
pub(crate) fn rebuild(
    config: &Config,
    runtime: &Runtime,
    faults: Option<&Arc<Faults>>,
) -> Result<Option<Rebuilt>, String> {
    if !runtime.has_slots(config) {
        return Ok(None);
    }
    let journal = Journal::of(config, runtime).map(|journal| journal.path);
    let contents = match &journal {
        Some(path) => Contents::read(path).map_err(|errno| unreadable(path, errno))?,
        None => Contents::default(),
    };
    let settled = |key: FileIdentity, sequence| {
        contents.checkpoint_of(key).is_some_and(|settled| sequence <= settled)
    };
    let mut survivors = surviving_slots(config, runtime, &settled)?;
    // A slot that was torn while it was overwritten: what a sync acknowledged of it is in the journal.
    survivors.lost.retain(|lost| match (lost.file, &lost.range) {
        (Some(file), Some(range)) => !contents.covers(file, range),
        _ => true,
    });
    if let (Some(path), Some(at)) = (&journal, contents.damaged) {
        let what = path.display().to_string();
        let why = format!("byte {at}: a record is damaged, of which file is not known");
        survivors.lost.push(Lost { file: None, what, range: None, why });
    }
    let store = faults::around(forebay_tiers::open_batch(1), faults, faults::STORE);
    crash::point("rebuild.read");
    let mut keeper = Keeper::of(config, runtime);
    let io = &mut Undoable::new(store);
    let mut rebuilt = bring_back(config, &mut survivors, &contents, &mut keeper, io)?;
    let kept = keeper.finish();
    rebuilt.kept_in.extend(kept.map_err(|(path, error)| format!("{}: {error}", path.display()))?);
    crash::point("rebuild.applied");
    // The journal goes last: it may be applied again without harm, slots without it may not.
    let forget_journal = || {
        if let Some(path) = &journal {
            private::remove(path);
            sync_folder_of(path);
        }
        runtime.forget_config(config);
    };
    if survivors.lost.is_empty() {
        for (slots, index) in runtime.slot_files(config) {
            // Emptied first: slots without a table would look like a loss.
            if let Ok(table) = private::open(&index, OFlags::WRONLY).map(File::from) {
                undo::resizing(table.as_fd(), 0);
                let _ = table.set_len(0);
            }
            crash::point("rebuild.emptied");
            private::remove(&slots);
            crash::point("rebuild.freed");
            private::remove(&index);
        }
        crash::point("rebuild.forgetting");
        forget_journal();
        crash::point("rebuild.forgotten");
        return Ok((rebuilt != Rebuilt::default()).then_some(rebuilt));
    }
    // What it has of a file that is lost is nowhere else.
    let is_source = contents.damaged.is_some() || survivors.needs_journal;
    let needed_journal = journal.clone().filter(|_| is_source);
    let slots = runtime.slot_files(config).into_iter().flat_map(|(slots, index)| [slots, index]);
    let kept = set_aside(slots.chain(needed_journal));
    crash::point("rebuild.aside");
    let kept = match kept {
        Ok(kept) => {
            forget_journal();
            format!("what the tiers held is kept in {}", kept.join(", "))
        }
        Err(why) => format!("what the tiers hold cannot be put aside, and stays: {why}"),
    };
    Err(format!(
        "data of an earlier run is lost:{}\n{} bytes of {} files were recovered; {kept}",
        survivors.describe_lost(),
        rebuilt.bytes,
        rebuilt.files,
    ))
}

fn unreadable(journal: &Path, errno: Errno) -> String {
    let name = journal.display();
    match errno {
        Errno::BADMSG => format!(
            "journal {name}: both copies of its superblock are damaged, so that it cannot be told what the \
             store has already; put the file right, or move it away: what the tiers hold is replayed then, and \
             older bytes may come over newer ones"
        ),
        _ => format!("journal {name}: {}", reason(journal, errno)),
    }
}

/// Renames files of tiers out of the way, those that are there. Returns their new names.
///
/// # Errors
/// A message that names the file that cannot be renamed; all have their old names then.
fn set_aside(paths: impl Iterator<Item = PathBuf>) -> Result<Vec<String>, String> {
    let mut moved: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in paths {
        match move_aside(&path) {
            Ok(free) => moved.push((path, free)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                for (path, free) in moved.iter().rev() {
                    let _ = rename_to_free(free, path);
                }
                return Err(format!("{}: {error}", path.display()));
            }
        }
    }
    // Before the journal goes: slots may not be there again without it.
    moved.iter().for_each(|(path, _)| sync_folder_of(path));
    Ok(moved.iter().map(|(_, free)| free.display().to_string()).collect())
}

/// Gives a file a name that is free, and replaces nothing: others may put links there, also to nowhere.
fn move_aside(path: &Path) -> std::io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lost");
    let mut free = PathBuf::from(&name);
    let mut number = 0;
    loop {
        match rename_to_free(path, &free) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other.map(|()| free),
        }
        number += 1;
        let mut next = name.clone();
        next.push(format!(".{number}"));
        free = PathBuf::from(next);
    }
}

fn rename_to_free(path: &Path, free: &Path) -> std::io::Result<()> {
    match rustix::fs::renameat_with(CWD, path, CWD, free, RenameFlags::NOREPLACE) {
        // This file system cannot do that.
        Err(Errno::INVAL) if std::fs::symlink_metadata(free).is_ok() => {
            Err(ErrorKind::AlreadyExists.into())
        }
        Err(Errno::INVAL) => std::fs::rename(path, free),
        other => Ok(other?),
    }
}

/// Something to be done to a file again.
enum Step<'a> {
    Slot(SlotPiece),
    Log(&'a Change),
}

/// Does to each file again what slots and journal have of it, in the order in which it was done, and
/// makes it durable.
fn bring_back(
    config: &Config,
    survivors: &mut Survivors,
    contents: &Contents,
    keeper: &mut Keeper,
    io: &mut dyn Batch,
) -> Result<Rebuilt, String> {
    let mut rebuilt = Rebuilt::default();
    let mut work: HashMap<FileIdentity, Vec<(u64, Step<'_>)>> = HashMap::new();
    for piece in survivors.pieces.drain(..) {
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
        let hint = survivors.files.entry(key).or_insert(hint);
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
    survivors.files.retain(|key, _| work.contains_key(key));
    let found = find_files(config, &survivors.files)?;
    let stores = stores_of(config);
    for (key, mut steps) in work {
        steps.sort_by_key(|(sequence, _)| *sequence);
        let Some(hint) = survivors.files.remove(&key) else { continue };
        let hint = &hint;
        let path = match found.get(&key) {
            Some(Place::At(path)) => path,
            // As after a loss of power what was never synced is not missed.
            Some(Place::Removed) if !steps.iter().any(|(_, step)| matches!(step, Step::Log(_))) => {
                rebuilt.removed += 1;
                continue;
            }
            Some(Place::Removed) => {
                rebuilt.kept += 1;
                match keep(config, keeper, hint, key, &steps, io) {
                    Ok(failed) => {
                        for (range, why) in failed {
                            let what = hint.path.display().to_string();
                            survivors.lost.push(Lost { file: Some(key), what, range, why });
                        }
                    }
                    Err(why) => survivors.lose_all(key, hint, &steps, &why),
                }
                continue;
            }
            unknown => {
                let why = match unknown {
                    Some(Place::Refused(why)) => why,
                    _ => "this file is not there any more, or its store is not mounted",
                };
                survivors.lose_all(key, hint, &steps, why);
                continue;
            }
        };
        let name = path.display().to_string();
        let fail = |errno: Errno| {
            format!("{name}: {errno}; the tiers keep what it lacks: mend the store and try again")
        };
        let known = hint.known(key);
        let fd = stores.open(path, OFlags::WRONLY, &known, Since::Ever).map_err(fail)?;
        for (_, step) in &steps {
            crash::point("rebuild.step");
            if let Some(why) = again(io, &fd, step).map_err(fail)? {
                let (what, range) = (name.clone(), range_of(step));
                survivors.lost.push(Lost { file: Some(key), what, range, why });
                continue;
            }
            rebuilt.bytes += range_of(step).map_or(0, |range| range.end - range.start);
        }
        if hint.mtime_ns != 0 {
            set_time(&fd, hint.mtime_ns);
        }
        crash::point("rebuild.written");
        io.sync(store_file(&fd)).map_err(fail)?;
        rebuilt.files += 1;
    }
    Ok(rebuilt)
}

/// Does a step to a file. `Some`: it cannot be done, for this reason, nor another time.
///
/// # Errors
/// The store's.
fn again(io: &mut dyn Batch, fd: &OwnedFd, step: &Step<'_>) -> Result<Option<String>, Errno> {
    let done = match step {
        Step::Log(change) => redo(io, fd, change),
        Step::Slot(piece) => match piece.read() {
            Ok(bytes) => write_bytes(io, fd, piece.offset, &bytes),
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
    io: &mut dyn Batch,
) -> Result<Failed, String> {
    let store = config.backing.get(hint.store).map_or(Path::new(""), |backing| &backing.path);
    let why = |what: &dyn std::fmt::Display| {
        format!("it is not on the store any more, and cannot be kept elsewhere: {what}")
    };
    let made = keeper.make(&hint.path, store, key.inode);
    let fd = made.map_err(|(path, error)| why(&format_args!("{}: {error}", path.display())))?;
    let mut failed = Failed::new();
    for (_, step) in steps {
        crash::point("rebuild.keeping");
        let done = again(io, &fd, step).map_err(|errno| why(&errno))?;
        failed.extend(done.map(|why| (range_of(step), why)));
    }
    if hint.mtime_ns != 0 {
        set_time(&fd, hint.mtime_ns);
    }
    Ok(failed)
}

/// Whether no store can do what a record says: it is longer than files can be.
fn is_impossible(errno: Errno) -> bool {
    matches!(errno, Errno::FBIG | Errno::INVAL | Errno::OVERFLOW)
}

/// The bytes that a step brings.
fn range_of(step: &Step<'_>) -> Option<Range<u64>> {
    match step {
        Step::Slot(piece) => Some(piece.offset..piece.offset + piece.bytes),
        Step::Log(Change::Data { offset, bytes, .. }) => {
            Some(*offset..offset.saturating_add(bytes.len() as u64))
        }
        Step::Log(_) => None,
    }
}

fn set_time(fd: &OwnedFd, mtime_ns: u64) {
    let (seconds, nanoseconds) = clock::parted_ns(mtime_ns);
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ },
    };
    // Only the owner of a file may set its times.
    let _ = rustix::fs::futimens(fd, &times);
}

/// Why nothing is written to what a record names.
const OUTSIDE: &str = "its record names a path outside of the managed directories";
/// See [`OUTSIDE`].
const UNBORN: &str = "its record does not say when the file was born, as it has to on this store";

/// Where a file is now.
enum Place {
    At(PathBuf),
    /// Nothing may be written there, for this reason.
    Refused(&'static str),
    /// Nowhere, on a store that is there: it has been removed.
    Removed,
}

/// Files that are not at their paths, by inode number: that of a removed one is soon another's.
type Missing = HashMap<u64, Vec<FileIdentity>>;

/// Finds files by their paths, and those that are not there by looking through the stores once.
fn find_files(
    config: &Config,
    files: &HashMap<FileIdentity, FileHint>,
) -> Result<HashMap<FileIdentity, Place>, String> {
    let stores = stores_of(config);
    let mut found = HashMap::new();
    for (store, backing) in config.backing.iter().enumerate() {
        let mut missing = Missing::new();
        for (&key, hint) in files.iter().filter(|(_, hint)| hint.store == store) {
            let seen = stores.seen(&hint.path);
            match seen.map(|seen| hint.known(key).is(&seen, Since::Ever)) {
                Ok(false) => missing.entry(key.inode).or_default().push(key),
                Err(errno) if is_elsewhere(errno) => {
                    missing.entry(key.inode).or_default().push(key);
                }
                // Whoever writes it meets the other errors again.
                _ => drop(found.insert(key, Place::At(hint.path.clone()))),
            }
        }
        if missing.is_empty() {
            continue;
        }
        let root = std::fs::metadata(&backing.path)
            .map_err(|error| format!("{}: {error}", backing.path.display()))?;
        let mut complete = search(&backing.path, files, &mut missing, &mut found);
        // It may have been moved to another of them that is on the same file system.
        let others = config.backing.iter().enumerate().filter(|(other, _)| *other != store);
        for (_, other) in others {
            let near = |found: std::fs::Metadata| found.dev() == root.dev();
            if !missing.is_empty() && std::fs::metadata(&other.path).is_ok_and(near) {
                complete &= search(&other.path, files, &mut missing, &mut found);
            }
        }
        let births = knows_births(&backing.path);
        for key in missing.into_values().flatten() {
            let path = files.get(&key).map(|hint| &hint.path);
            let leads_out = path.is_some_and(|path| {
                !path.as_os_str().is_empty() && stores.seen(path) == Err(Errno::XDEV)
            });
            if leads_out {
                found.insert(key, Place::Refused(OUTSIDE));
            } else if key.born_ns == 0 && births {
                found.insert(key, Place::Refused(UNBORN));
            } else if complete && key.device == root.dev() {
                found.insert(key, Place::Removed);
            }
        }
    }
    Ok(found)
}

/// Whether a file that cannot be looked at for this reason may lie at another path.
fn is_elsewhere(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::STALE
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::XDEV
            | Errno::INVAL
            | Errno::NAMETOOLONG
    )
}

/// Looks for files beneath `folder`, and takes those that it finds out of `missing`. Returns whether it has seen
/// everything there.
fn search(
    folder: &Path,
    files: &HashMap<FileIdentity, FileHint>,
    missing: &mut Missing,
    found: &mut HashMap<FileIdentity, Place>,
) -> bool {
    let Ok(beneath) = Beneath::of(folder) else { return false };
    let mut unknown = false;
    let walked = beneath.walk(SEARCH_MAX, &mut |entry| {
        let Some(keys) = missing.get_mut(&entry.inode) else { return false };
        let seen = match entry.seen() {
            Ok(seen) => seen,
            Err(errno) => {
                unknown |= errno != Errno::STALE && doubt(errno).is_some();
                return false;
            }
        };
        let is_it = |key: &FileIdentity| {
            files.get(key).is_some_and(|hint| hint.known(*key).is(&seen, Since::Ever))
        };
        for key in keys.extract_if(.., |key| is_it(key)) {
            found.insert(key, Place::At(entry.path.clone()));
        }
        if keys.is_empty() {
            missing.remove(&entry.inode);
        }
        missing.is_empty()
    });
    !unknown && walked == Walked::default()
}

fn stores_of(config: &Config) -> Stores {
    Stores::of(config.backing.iter().map(|backing| backing.path.as_path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_set_aside_all_or_none() {
        let folder = tempfile::tempdir().unwrap();
        // A name that has no room for more.
        let names = ["slots", "absent", "index", &"n".repeat(253)];
        let paths = names.map(|name| folder.path().join(name));
        let [slots, absent, index, unmovable] = &paths;
        for path in [slots, index, unmovable] {
            std::fs::write(path, "").unwrap();
        }
        let why = set_aside(paths.iter().cloned()).unwrap_err();
        assert!(why.starts_with(unmovable.to_str().unwrap()), "{why}");
        assert!([slots, index, unmovable].into_iter().all(|path| path.exists()));
        let kept = set_aside(paths[..3].iter().cloned()).unwrap();
        assert_eq!(kept, [slots, index].map(|path| format!("{}.lost", path.display())));
        assert!(!slots.exists() && !index.exists() && !absent.exists());
        std::fs::write(slots, "").unwrap();
        let kept = set_aside(paths[..1].iter().cloned()).unwrap();
        assert_eq!(kept, [format!("{}.lost.1", slots.display())]);
        // A link to nowhere is there all the same.
        std::fs::write(slots, "").unwrap();
        let planted = folder.path().join("slots.lost.2");
        std::os::unix::fs::symlink("/nowhere", &planted).unwrap();
        let kept = set_aside(paths[..1].iter().cloned()).unwrap();
        assert_eq!(kept, [format!("{}.lost.3", slots.display())]);
        assert!(planted.is_symlink());
    }

    #[test]
    fn a_removed_file_hides_none_that_has_its_inode_number_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("renamed");
        std::fs::write(&path, "").unwrap();
        let text = format!(
            "[[backing]]\npath = {:?}\n[[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"8MiB\"\n",
            folder.path()
        );
        let config = Config::parse(&text).unwrap();
        let stat = rustix::fs::stat(&path).unwrap();
        let born_ns = Known::seen(std::fs::File::open(&path).unwrap()).unwrap().born_ns;
        assert_ne!(born_ns, 0, "this file system does not know when files were born");
        let key = |born_ns| FileIdentity { device: stat.st_dev, inode: stat.st_ino, born_ns };
        let hint = || FileHint {
            path: folder.path().join("nowhere"),
            store: 0,
            mtime_ns: 0,
            sequence: 0,
            handle: 0,
        };
        let others = (1..9).map(|before| (key(born_ns - before), hint()));
        let files = others.chain([(key(born_ns), hint())]).collect();
        let found = find_files(&config, &files).unwrap();
        assert!(matches!(&found[&key(born_ns)], Place::At(at) if *at == path));
        assert!((1..9).all(|before| matches!(found[&key(born_ns - before)], Place::Removed)));
    }
}
