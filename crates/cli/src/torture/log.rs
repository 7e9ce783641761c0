//! The file that all workers append to: each record whole, none lost.

use super::content::check_of;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How a record begins.
const MARK: [u8; 8] = *b"record: ";
/// Bytes of a record: no divisor of a page.
const BYTES: usize = 120;

/// Where the log is.
pub fn path(store: &Path) -> PathBuf {
    store.join("log")
}

/// Record `number` of a worker.
pub fn record(worker: u64, number: u64) -> [u8; BYTES] {
    let mut record = [b'.'; BYTES];
    record[..8].copy_from_slice(&MARK);
    record[8..16].copy_from_slice(&worker.to_le_bytes());
    record[16..24].copy_from_slice(&number.to_le_bytes());
    let check = check_of(&record[..BYTES - 8]);
    record[BYTES - 8..].copy_from_slice(&check.to_le_bytes());
    record
}

/// What a worker notes of a record that it has begun, once the append, and a sync behind it,
/// succeeded.
pub const APPENDED: u8 = 1;
/// See [`APPENDED`].
pub const SYNCED: u8 = 2;

/// What may have happened to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// What was appended is there.
    Whole,
    /// Memory was lost: what was synced is there.
    Lost,
}

/// Compares the log with the acknowledgements of each worker: a byte for each record that was
/// begun. Returns the bytes compared.
///
/// # Errors
/// What is wrong.
pub fn verify(store: &Path, workers: &[Vec<u8>], past: Past) -> Result<u64, String> {
    let path = path(store);
    let name = path.display();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    let mut found = vec![BTreeSet::new(); workers.len()];
    let (mut at, mut torn) = (0, 0);
    while at < bytes.len() {
        let whole = bytes.get(at..at + BYTES).filter(|part| part[..8] == MARK);
        let known = whole.and_then(|part| {
            let (worker, number) = (word_at(part, 8), word_at(part, 16));
            (part == &record(worker, number)[..]).then_some((worker as usize, number))
        });
        let Some((worker, number)) = known else {
            torn += 1;
            at += 1;
            continue;
        };
        let begun = workers.get(worker).map_or(0, |acks| acks.len() as u64);
        if number >= begun {
            return Err(format!("{name}: record {number} of worker {worker} was never written"));
        }
        if found[worker].last().is_some_and(|&last| last >= number) {
            return Err(format!(
                "{name}: record {number} of worker {worker} again, or late, at {at}"
            ));
        }
        found[worker].insert(number);
        at += BYTES;
    }
    for (worker, (acks, found)) in workers.iter().zip(&found).enumerate() {
        let there = |number: usize| found.contains(&(number as u64));
        let promised = match past {
            Past::Whole => acks.len(),
            Past::Lost => acks.iter().rposition(|&ack| ack == SYNCED).map_or(0, |last| last + 1),
        };
        if let Some(lost) = (0..promised).find(|&number| acks[number] != 0 && !there(number)) {
            return Err(format!("{name}: record {lost} of worker {worker} is lost"));
        }
    }
    // A worker that dies in the middle of an append may leave a part of a record.
    let begun: usize = workers.iter().map(Vec::len).sum();
    let whole: usize = found.iter().map(BTreeSet::len).sum();
    if past == Past::Whole && torn > (begun - whole) * BYTES {
        return Err(format!("{name}: {torn} bytes are of no record"));
    }
    Ok(bytes.len() as u64)
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_torn_and_repeated_records_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let check = |parts: &[&[u8]], acks: &[&[u8]]| {
            std::fs::write(path(folder.path()), parts.concat()).unwrap();
            let acks: Vec<_> = acks.iter().map(|acks| acks.to_vec()).collect();
            verify(folder.path(), &acks, Past::Whole)
        };
        let (a0, a1, b0) = (record(0, 0), record(0, 1), record(1, 0));
        assert_eq!(check(&[&a0, &b0, &a1], &[&[1, 1], &[1]]), Ok(3 * BYTES as u64));
        assert!(check(&[&a0, &b0], &[&[1, 0], &[1]]).is_ok());
        assert!(check(&[&a0, &a1[..50], &b0], &[&[1, 0], &[1]]).is_ok());
        assert!(check(&[&a0, &b0], &[&[1, 1], &[1]]).unwrap_err().contains("lost"));
        assert!(check(&[&a0, &a1[..50], &a1, &b0], &[&[1, 1], &[1]]).is_err());
        assert!(check(&[&a0, &a0, &b0], &[&[1], &[1]]).unwrap_err().contains("again"));
        assert!(check(&[&a0, &b0], &[&[1], &[]]).unwrap_err().contains("never"));
    }

    #[test]
    fn of_a_log_that_was_lost_what_was_synced_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let check = |parts: &[&[u8]], acks: &[u8]| {
            std::fs::write(path(folder.path()), parts.concat()).unwrap();
            verify(folder.path(), &[acks.to_vec()], Past::Lost)
        };
        let (a0, a1, a2, hole) = (record(0, 0), record(0, 1), record(0, 2), [0; 3 * BYTES]);
        assert!(check(&[&a0, &a1], &[APPENDED, SYNCED, APPENDED]).is_ok());
        assert!(check(&[&a0, &a1, &hole, &a2[..9]], &[APPENDED, SYNCED, APPENDED]).is_ok());
        assert!(check(&[&a1], &[0, SYNCED]).is_ok());
        assert!(check(&[&a1], &[APPENDED, SYNCED]).unwrap_err().contains("record 0"));
        assert!(
            check(&[&a0, &a2], &[APPENDED, SYNCED, APPENDED]).unwrap_err().contains("record 1")
        );
        assert!(check(&[], &[APPENDED]).is_ok());
    }
}
