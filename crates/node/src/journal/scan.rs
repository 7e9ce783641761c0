//! Reading the log: its records in order, and those behind a gap.

use super::file::{data_from, read_full};
use super::record::{Position, Record};
use super::superblock::{Copies, Superblock};
use forebay_pool::private::{self, Wrong};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;

/// Bytes read at a time.
pub(super) const READ_BYTES: usize = 8 << 20;

/// Calls `each` for every record, with where the next begins and its position.
///
/// # Errors
/// The device's.
pub(super) fn scan(
    file: &OwnedFd,
    superblock: &Superblock,
    mut each: impl FnMut(Record<'_>, u64, Position),
) -> Result<(), Errno> {
    let (mut at, mut position) = (superblock.start, superblock.first());
    let mut window: Vec<u8> = Vec::new();
    loop {
        let room = (superblock.end - at).min(READ_BYTES as u64) as usize;
        window.resize(room, 0);
        let got = read_full(file, &mut window, at)?;
        let mut done = 0;
        while let Some((record, length, next)) = Record::decode(&window[done..got], position) {
            done += length;
            position = next;
            each(record, at + done as u64, position);
        }
        if done == 0 {
            return Ok(());
        }
        at += done as u64;
    }
}

/// Calls `each` for every record of this generation behind `from` that no record leads to, with
/// where it is and what was durable when it was made, until that says false.
///
/// # Errors
/// The device's.
pub(super) fn orphan_records(
    file: &OwnedFd,
    superblock: &Superblock,
    from: u64,
    mut each: impl FnMut(Record<'_>, u64, u64) -> bool,
) -> Result<(), Errno> {
    let mut window = vec![0; READ_BYTES];
    let mut start = from;
    while start < superblock.end {
        // A hole may be longer than can be read in years.
        start = start.max(data_from(file, start)? & !7);
        if start >= superblock.end {
            break;
        }
        let room = (superblock.end - start).min(READ_BYTES as u64) as usize;
        let got = read_full(file, &mut window[..room], start)?;
        let (mut at, half) = (0, READ_BYTES / 2);
        // One that is cut off at the end is looked at again, unless it is longer than half of all.
        while at < if got < READ_BYTES { got } else { half } {
            let from = &window[at..got];
            let link = from.get(12..16).and_then(|link| link.try_into().ok());
            let link = u32::from_le_bytes(link.unwrap_or([0; 4]));
            let position = Position { generation: superblock.generation, link, synced: 0 };
            match Record::decode(from, position) {
                // What was durable lay before it: else it is a copy from elsewhere.
                Some((record, length, next)) if next.synced <= start + at as u64 => {
                    if !each(record, start + at as u64, next.synced) {
                        return Ok(());
                    }
                    at += length;
                }
                _ => at += 8,
            }
        }
        if got < READ_BYTES {
            break;
        }
        start += at as u64;
    }
    Ok(())
}

/// A journal's file as it is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Examined {
    /// Copies of the superblock that can be read, and those that are there and cannot.
    pub copies: usize,
    pub damaged_copies: usize,
    /// Records of this generation, the bytes that they take, and those that there are.
    pub records: u64,
    pub used: u64,
    pub size: u64,
    /// Where the last record ends.
    pub end: u64,
    /// The highest of their numbers.
    pub last_sequence: Option<u64>,
    /// Where the first orphan record is.
    pub orphan: Option<u64>,
    /// What lies at `end` was durable once, and is no record any more.
    pub is_damaged: bool,
}

/// Looks at the journal at `path`.
///
/// # Errors
/// The device's; `NOENT` if there is none; [`super::superblock::OTHER_VERSION`].
pub(crate) fn examine(path: &Path) -> Result<Examined, Errno> {
    let file = private::open(path, OFlags::RDONLY).map_err(Wrong::errno)?;
    let copies = Copies::of(&file)?;
    let mut found =
        Examined { copies: copies.sound, damaged_copies: copies.damaged, ..Examined::default() };
    let Some(superblock) = copies.best else { return Ok(found) };
    (found.end, found.size) = (superblock.start, superblock.end - superblock.start);
    scan(&file, &superblock, |record, end, _| {
        found.records += 1;
        found.end = end;
        found.last_sequence = found.last_sequence.max(Some(record.sequence));
    })?;
    found.used = found.end - superblock.start;
    orphan_records(&file, &superblock, found.end, |_, at, synced| {
        found.orphan = found.orphan.or(Some(at));
        found.is_damaged = synced > found.end;
        !found.is_damaged
    })?;
    Ok(found)
}
