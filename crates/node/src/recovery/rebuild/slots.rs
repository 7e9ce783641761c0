//! Reading what the slots of an instance without segment hold, by their tables.

use super::recovered::{FileHint, RecoveredData, SlotPiece};
use crate::config::{Config, TierKind};
use crate::instance::runtime::Runtime;
use crate::journal::file::data_from;
use crate::journal::record::FileIdentity;
use crate::journal::superblock::other_version;
use crate::recovery::inspect::of_foreign;
use forebay_pool::layout::PAGES_PER_BUCKET;
use forebay_pool::slot_head::{FORMAT, Foreign, HEAD_BYTES};
use forebay_pool::slot_record::{self, RECORD_BYTES, Unreadable};
use forebay_pool::{PageSet, SlotHead, SlotRecord, private};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes of a slot table that are read at a time.
const TABLE_PIECE: usize = 1 << 20;

/// Finds what the slots of an instance without segment hold. `is_checkpointed` says of a file and a
/// sequence whether the store durably has everything up to that.
///
/// # Errors
/// A message that names a file of a tier that cannot be opened.
pub(super) fn recovered_slots(
    config: &Config,
    runtime: &Runtime,
    is_checkpointed: &dyn Fn(FileIdentity, u64) -> bool,
) -> Result<RecoveredData, String> {
    let mut found = RecoveredData::default();
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
                found.lose_unknown(&slots, why);
            }
            continue;
        };
        check_headers((&slots, source.as_deref()), (&index, &table))?;
        let mut other = None;
        read_table(&table, |slot, record| match record {
            Err(Unreadable::Version(version)) => other = Some(version),
            Ok(record) if record.page_bytes == config.page_size => {
                records.push((slot, record, source.clone()));
            }
            // Void: it is of no file.
            Ok(record) if record.dirty == 0 => {}
            _ => {
                let why =
                    format!("the record of slot {slot} is damaged: what it held is not known");
                found.lose_unknown(&slots, why);
            }
        })
        .map_err(|error| format!("{}: {error}", index.display()))?;
        if let Some(version) = other {
            let why = other_version("slot records", version, slot_record::VERSION, "");
            return Err(format!("{}: {why}", index.display()));
        }
    }
    // Of several records of a block the latest says what is missing on the store.
    records.sort_unstable_by_key(|(_, record, _)| Reverse(record.sequence));
    let mut seen = HashSet::new();
    records.retain(|(_, record, _)| seen.insert((key_of(record), record.block)));
    records.retain(|(_, record, _)| {
        record.dirty & record.valid != 0 && !is_checkpointed(key_of(record), record.sequence)
    });
    for (slot, record, source) in &records {
        found.take(*slot, record, source.as_ref());
    }
    found.pieces.sort_by_key(|piece| piece.sequence);
    Ok(found)
}

/// Whether anything but its header was written to a file of slots.
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

/// Looks whether slots and their table are of a format that can be read, and of one pool. Those of
/// the version before have no headers, and a loss of power may have taken one.
fn check_headers(
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

impl RecoveredData {
    /// Takes the pages of a slot that the store lacks: those whose checksums are right, in runs.
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
            let right = read.and_then(|()| match record.page_agrees(number, &buffer) {
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
}
