//! The journal written, damaged and read again.

use super::super::contents::Contents;
use super::super::record::tests::{any, bytes_of, seeded};
use super::super::record::{Key, Record};
use super::super::scan::{READ_BYTES, examine};
use super::super::superblock::{MAKER_AT, reason};
use super::*;
use forebay_pool::mark::Mark;
use forebay_posix::Positional;
use forebay_tiers::{Fault, FaultScript, Faulty, Operation, Rule, When};

fn key(inode: u64) -> Key {
    Key { device: 1, inode, born_ns: 7, ..Key::default() }
}

fn data(inode: u64, sequence: u64, bytes: &[u8]) -> Record<'_> {
    let body = Body::Data { offset: sequence, size: 99, mtime_ns: 5, path: b"/a", bytes };
    Record { sequence, key: key(inode), body }
}

fn sequences(contents: &Contents, inode: u64) -> Vec<u64> {
    let file = contents.files.get(&key(inode));
    file.map_or(Vec::new(), |file| file.changes.iter().map(|&(sequence, _)| sequence).collect())
}

#[test]
fn what_is_checkpointed_gone_or_of_an_earlier_generation_is_not_applied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let io = &mut Positional::default();
    assert!(!Contents::read(&path).unwrap().found);
    let mut log = Log::open(&path, 1 << 20, 8, io).unwrap();
    for (inode, sequence) in [(1, 1), (2, 2), (1, 3), (3, 4)] {
        log.append(&data(inode, sequence, b"bytes"), io).unwrap();
    }
    log.append(&Record { sequence: 2, key: key(2), body: Body::Checkpoint }, io).unwrap();
    log.append(&data(2, 5, b"again"), io).unwrap();
    log.append(&Record { sequence: 6, key: key(3), body: Body::Gone }, io).unwrap();
    log.append(&Record { sequence: 7, key: key(1), body: Body::Truncate { size: 3 } }, io).unwrap();
    log.commit(true, io).unwrap();
    // Not committed: not there.
    log.append(&data(4, 8, b"late"), io).unwrap();
    let contents = Contents::read(&path).unwrap();
    assert_eq!(sequences(&contents, 1), [1, 3, 7]);
    assert_eq!(sequences(&contents, 2), [5]);
    assert_eq!(contents.files.len(), 2);
    assert_eq!(contents.files[&key(1)].path, b"/a");
    assert_eq!(contents.pending(), (2, 15));
    let found = examine(&path).unwrap();
    let counts = (found.copies, found.damaged_copies, found.records, found.last_sequence);
    assert_eq!(counts, (2, 0, 8, Some(7)));
    assert!(0 < found.used && found.used < log.used());
    assert_eq!(found.orphan, None);
    drop(log);

    // Carried on by another manager, whose records come where the uncommitted one was to come.
    let mut log = Log::open(&path, 1 << 20, 8, io).unwrap();
    log.append(&data(4, 9, b"next"), io).unwrap();
    log.commit(true, io).unwrap();
    assert_eq!(sequences(&Contents::read(&path).unwrap(), 4), [9]);
    log.restart(Some(9), &[], io).unwrap();
    assert_eq!(Contents::read(&path).unwrap().files.len(), 0);
    log.append(&data(4, 10, b"new generation"), io).unwrap();
    log.commit(true, io).unwrap();
    assert_eq!(sequences(&Contents::read(&path).unwrap(), 4), [10]);

    // A mark, as clients make it when no manager is there.
    let mark = Mark { device: 1, inode: 4, born_ns: 7, sequence: 10 };
    rustix::io::pwrite(&log.file, &mark.encode(), MARKS_AT + 3 * MARK_BYTES as u64).unwrap();
    assert_eq!(sequences(&Contents::read(&path).unwrap(), 4), [0; 0]);
}

#[test]
fn a_full_log_has_room_for_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let io = &mut Positional::default();
    let mut log = Log::open(&folder.path().join("j"), 256 << 10, 8, io).unwrap();
    let bytes = vec![1; 30_000];
    let taken = (0..100).take_while(|&n| log.append(&data(1, n, &bytes), io).is_ok()).count();
    assert!((4..9).contains(&taken), "{taken}");
    assert_eq!(log.append(&data(1, 0, &bytes), io), Err(LogError::Full));
    log.append(&Record { sequence: 9, key: key(1), body: Body::Checkpoint }, io).unwrap();
    assert!(log.is_worth_restart());
}

/// Its first copy counts alone until the first commit, not longer.
#[test]
fn a_second_superblock_copy_that_could_not_be_written_is_written_with_the_first_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut log = Log::open(&path, 1 << 20, 8, &mut Positional::default()).unwrap();
    let script = FaultScript::new();
    let io = &mut Faulty::new(Positional::default(), script.clone());
    let fail = |writes: &[Fault]| {
        let rules = writes.iter().map(|&fault| Rule::new(Operation::Write, When::Next(1), fault));
        script.replace(rules.collect());
    };
    fail(&[Fault::Delay(std::time::Duration::ZERO), Fault::Fail(Errno::IO)]);
    log.restart(Some(9), &[], io).unwrap();
    assert!(log.copy_due && script.hits() == 2);
    log.append(&data(1, 10, b"bytes"), io).unwrap();
    log.commit(true, io).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (one, other) = bytes[..MARKS_AT as usize].split_at(COPY_BYTES as usize);
    assert_eq!(Superblock::decode(one).unwrap(), (log.superblock.clone(), VERSION));
    assert_eq!(Superblock::decode(other).unwrap(), (log.superblock, VERSION));
}

/// Whichever it is: a journal that is opened has two again, durably.
#[test]
fn a_corrupt_superblock_copy_is_made_again_when_the_journal_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let io = &mut Positional::default();
    let mut log = Log::open(&path, 1 << 20, 8, io).unwrap();
    log.append(&data(1, 1, b"bytes"), io).unwrap();
    log.commit(true, io).unwrap();
    let sound = std::fs::read(&path).unwrap();
    for at in [0, COPY_BYTES as usize] {
        let mut bytes = sound.clone();
        bytes[at + 30] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let script = FaultScript::new();
        let failing = Rule::new(Operation::Sync, When::Next(1), Fault::Fail(Errno::IO));
        script.add(failing);
        let opened = Log::open(&path, 1 << 20, 8, &mut Faulty::new(Positional::default(), script));
        assert_eq!(opened.err(), Some(Errno::IO));
        Log::open(&path, 1 << 20, 8, io).unwrap();
        assert!(std::fs::read(&path).unwrap() == sound);
    }
}

#[test]
fn a_journal_of_another_version_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let io = &mut Positional::default();
    drop(Log::open(&path, 1 << 20, 8, io).unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    // One corrupt byte is another thing.
    bytes[8] += 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(examine(&path).unwrap().damaged_copies, 1);
    assert!(Contents::read(&path).is_ok());
    let second = COPY_BYTES as usize;
    let mut later = bytes.clone();
    later[second + 8] += 1;
    // Its generation has begun, and one of the copies is still the earlier version's.
    bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in [&mut later, &mut bytes] {
        bytes[MAKER_AT..][..4].copy_from_slice(b"9.9\0");
        bytes[second + MAKER_AT..][..4].copy_from_slice(b"9.9\0");
        std::fs::write(&path, &*bytes).unwrap();
        let why = reason(&path, OTHER_VERSION);
        assert!(
            why.starts_with(&format!(
                "made by another version of Forebay: 9.9 (journal {}",
                VERSION + 1
            )),
            "{why}"
        );
        assert_eq!(examine(&path), Err(OTHER_VERSION));
        assert_eq!(Contents::read(&path), Err(OTHER_VERSION));
        assert_eq!(Log::open(&path, 1 << 20, 8, io).err(), Some(OTHER_VERSION));
        assert!(std::fs::read(&path).unwrap() == *bytes);
    }
}

/// What was durable and is corrupt is told from what was never durable.
#[test]
fn corruption_is_told_from_what_was_not_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let io = &mut Positional::default();
    let mut log = Log::open(&path, 64 << 20, 1, io).unwrap();
    let mut starts = Vec::new();
    // The last ones lie across what is read at a time.
    let large = vec![7; READ_BYTES / 2 - 300];
    for (sequence, durably) in [(1, true), (2, true), (3, false), (4, false)] {
        starts.push(log.superblock.start + log.used());
        let bytes = if sequence == 2 { &large[..] } else { b"some" };
        log.append(&data(sequence, sequence, bytes), io).unwrap();
        log.commit(durably, io).unwrap();
    }
    let sound = std::fs::read(&path).unwrap();
    for (record, damaged) in [(0, Some(starts[0])), (1, Some(starts[1])), (2, None), (3, None)] {
        let mut bytes = sound.clone();
        bytes[starts[record] as usize + 40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let contents = Contents::read(&path).unwrap();
        assert_eq!(contents.damaged, damaged, "{record}");
        assert_eq!(examine(&path).unwrap().is_damaged, damaged.is_some());
        let others = if damaged.is_some() { 3 } else { record };
        assert_eq!(contents.files.len(), others, "{record}");
    }
    let mut bytes = sound.clone();
    bytes[30] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(Contents::read(&path).unwrap().files.len(), 4);
    bytes[COPY_BYTES as usize + 30] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(Contents::read(&path), Err(Errno::BADMSG));
}

/// The bytes of a file that is a journal itself, which this one has as data.
#[test]
fn a_journal_within_the_data_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let io = &mut Positional::default();
    let paths = ["other", "journal"].map(|name| folder.path().join(name));
    let [other, path] = &paths;
    let mut inner = Log::open(other, 1 << 20, 1, io).unwrap();
    for sequence in 1..9 {
        inner.append(&data(99, sequence, b"not ours"), io).unwrap();
        inner.commit(true, io).unwrap();
    }
    let copy = std::fs::read(other).unwrap().split_off(inner.superblock.start as usize);
    let mut log = Log::open(path, 1 << 20, 1, io).unwrap();
    let first = log.at;
    // So that it lies where records would.
    let body = Body::Data { offset: 0, size: 99, mtime_ns: 5, path: b"", bytes: &copy };
    log.append(&Record { sequence: 1, key: key(1), body }, io).unwrap();
    log.commit(true, io).unwrap();
    log.append(&data(2, 2, b"more"), io).unwrap();
    log.commit(true, io).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[first as usize + 40] ^= 1;
    // A copy of a record of this generation, nearer to the beginning than where it was.
    let position = Position { synced: u64::MAX / 2, link: 3, ..log.superblock.first() };
    let mut moved = Vec::new();
    data(98, 7, b"moved").encode(position, &mut moved);
    bytes.resize(bytes.len() + 8, 0);
    bytes.extend(moved);
    std::fs::write(path, &bytes).unwrap();
    let contents = Contents::read(path).unwrap();
    assert_eq!(contents.damaged, Some(first));
    assert_eq!(contents.files.keys().cloned().collect::<Vec<_>>(), [key(2)]);
}

/// Whatever happened to the file, a beginning of what was committed is read, or it is called
/// damaged; and nothing else is read.
#[test]
fn damage_never_makes_records() {
    let mut random = seeded();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let io = &mut Positional::default();
    for _ in 0..60 {
        let _ = std::fs::remove_file(&path);
        let mut log = Log::open(&path, 1 << 20, 1, io).unwrap();
        let mut written = Vec::new();
        for sequence in 0..random.below(20) {
            let bytes = bytes_of(&mut random, 5000);
            let record = data(sequence % 3, sequence + 1, &bytes);
            log.append(&record, io).unwrap();
            written.push(sequence + 1);
            if random.below(3) == 0 {
                log.commit(false, io).unwrap();
            }
        }
        log.commit(true, io).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let start = log.superblock.start as usize;
        for _ in 0..random.below(4) {
            match random.below(3) {
                0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                1 if !bytes.is_empty() => {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.below(256) as u8;
                }
                _ => {
                    let mut junk = bytes_of(&mut random, 500);
                    let inside = Record { sequence: 99, ..any(&mut random, b"/x", b"yy") };
                    let generation = log.superblock.generation - 1;
                    inside.encode(Position { generation, link: 0, synced: 0 }, &mut junk);
                    let at = (start + random.below(50_000) as usize).min(bytes.len());
                    let end = (at + junk.len()).min(bytes.len());
                    bytes.splice(at..end, junk);
                }
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut read: Vec<u64> = Vec::new();
        let contents = match Contents::read(&path) {
            Err(errno) => {
                assert!([Errno::BADMSG, OTHER_VERSION].contains(&errno), "{errno}");
                continue;
            }
            Ok(contents) => contents,
        };
        for file in contents.files.values() {
            read.extend(file.changes.iter().map(|&(sequence, _)| sequence));
        }
        read.sort_unstable();
        match contents.damaged {
            Some(_) => assert!(read.iter().all(|sequence| written.contains(sequence))),
            None => assert_eq!(read, written[..read.len()]),
        }
    }
}
