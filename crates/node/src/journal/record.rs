//! Records of the journal, byte for byte.
//!
//! ```text
//!  0 magic        4 length, of all, a multiple of 8
//!  8 CRC-32C of what follows     12 link: the CRC of the record before
//! 16 kind  17 store  18 bytes of the handle  19 -  20 bytes of the path  22 -
//! 24 sequence    32 device    40 inode    48 birth time, nanoseconds
//! 56 offset, start of a punch, or code of a state    64 size, or end of a punch
//! 72 modification time
//! 80 bytes of data    84 type of the handle    88 generation    96 synced
//! 104 handle, path, data, zeros
//! ```
//!
//! `link` and the generation tie a record to its position: what an earlier append, or an earlier
//! generation of the log, has left behind the last record is none. `synced` tells a corrupt record
//! from one that was never finished: what lies before it in the file was durable when the record
//! was made.

use forebay_placement::staged::Stage;

const MAGIC: u32 = u32::from_le_bytes(*b"FBJR");
const FIXED: usize = 104;
/// Longer than any record: a block has 4 MiB at most.
const LENGTH_MAX: usize = 8 << 20;

/// The file that a record is of, as recovery finds it on its store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Key {
    /// Which store of the configuration; its device may have another number by then.
    pub store: u8,
    pub device: u64,
    pub inode: u64,
    /// Nanoseconds; 0 if the store does not know.
    pub born_ns: u64,
    /// The kernel's handle, which has the inode's generation; empty if it gives none.
    pub handle: Vec<u8>,
    pub handle_type: i32,
}

/// What tells a file from all others of its store, also after a reboot; what a checkpoint is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    /// Time of birth in nanoseconds; 0 if the store does not know.
    pub born_ns: u64,
}

impl Key {
    pub fn identity(&self) -> FileIdentity {
        let &Key { device, inode, born_ns, .. } = self;
        FileIdentity { device, inode, born_ns }
    }
}

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Body<'a> {
    /// Bytes that a sync acknowledged, the file's size and time then, and its path, a hint.
    Data { offset: u64, size: u64, mtime_ns: u64, path: &'a [u8], bytes: &'a [u8] },
    /// The size that a truncate sets.
    Truncate { size: u64 },
    /// The bytes that a punch makes zero.
    Punch { start: u64, end: u64 },
    /// The file lost its last name.
    Gone,
    /// The store has everything of the file up to this sequence, durably.
    Checkpoint,
    /// The manager ended with nothing left: a checkpoint of every file up to this sequence.
    Stop,
    /// Where a staged file stands, and its path, a hint. One whose store has all of it gets a
    /// checkpoint.
    Stage { stage: Stage, path: &'a [u8] },
}

/// A record of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record<'a> {
    pub sequence: u64,
    pub key: Key,
    pub body: Body<'a>,
}

/// A record's position in the log: which generation, and the CRC of the record before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub generation: u64,
    pub link: u32,
    /// Up to which byte of the file everything was durable then.
    pub synced: u64,
}

impl Record<'_> {
    /// Bytes that [`Record::encode`] adds.
    pub fn encoded_len(&self) -> usize {
        let (path, bytes) = match self.body {
            Body::Data { path, bytes, .. } => (path.len(), bytes.len()),
            Body::Stage { path, .. } => (path.len(), 0),
            _ => (0, 0),
        };
        (FIXED + self.key.handle.len() + path + bytes).next_multiple_of(8)
    }

    /// Appends the record to `out`. Returns the position of the next.
    pub fn encode(&self, position: Position, out: &mut Vec<u8>) -> Position {
        let start = out.len();
        let (kind, a, b, c, path, bytes): (u8, u64, u64, u64, &[u8], &[u8]) = match self.body {
            Body::Data { offset, size, mtime_ns, path, bytes } => {
                (1, offset, size, mtime_ns, path, bytes)
            }
            Body::Truncate { size } => (2, 0, size, 0, &[], &[]),
            Body::Punch { start, end } => (3, start, end, 0, &[], &[]),
            Body::Gone => (4, 0, 0, 0, &[], &[]),
            Body::Checkpoint => (5, 0, 0, 0, &[], &[]),
            Body::Stop => (6, 0, 0, 0, &[], &[]),
            Body::Stage { stage, path } => (7, stage as u64, 0, 0, path, &[]),
        };
        let length = self.encoded_len();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&position.link.to_le_bytes());
        out.extend_from_slice(&[kind, self.key.store, self.key.handle.len() as u8, 0]);
        out.extend_from_slice(&(path.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        let key = [self.sequence, self.key.device, self.key.inode, self.key.born_ns];
        for word in key.into_iter().chain([a, b, c]) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.key.handle_type.to_le_bytes());
        out.extend_from_slice(&position.generation.to_le_bytes());
        out.extend_from_slice(&position.synced.to_le_bytes());
        out.extend_from_slice(&self.key.handle);
        out.extend_from_slice(path);
        out.extend_from_slice(bytes);
        out.resize(start + length, 0);
        let crc = crc32c::crc32c(&out[start + 12..]);
        out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
        Position { link: crc, ..position }
    }

    /// The record at the beginning of `from`, its length, and the position of the next; `None` if
    /// there is none that belongs to `position`. Never panics, whatever the bytes.
    pub fn decode(from: &[u8], position: Position) -> Option<(Record<'_>, usize, Position)> {
        let word = |at: usize| Some(u32::from_le_bytes(from.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(from.get(at..at + 8)?.try_into().ok()?));
        let length = word(4)? as usize;
        // The sum comes last: it costs the length that bytes of a user may pretend.
        if word(0)? != MAGIC || word(12)? != position.link || long(88)? != position.generation {
            return None;
        }
        if !(FIXED..=LENGTH_MAX).contains(&length) || !length.is_multiple_of(8) {
            return None;
        }
        let all = from.get(..length)?;
        let crc = crc32c::crc32c(&all[12..]);
        if crc != word(8)? {
            return None;
        }
        let handle_len = usize::from(all[18]);
        let path_len = usize::from(u16::from_le_bytes([all[20], all[21]]));
        let bytes_len = word(80)? as usize;
        let handle = all.get(FIXED..FIXED + handle_len)?;
        let path = all.get(FIXED + handle_len..)?.get(..path_len)?;
        let bytes = all.get(FIXED + handle_len + path_len..)?.get(..bytes_len)?;
        let (a, b) = (long(56)?, long(64)?);
        let body = match all[16] {
            1 => Body::Data { offset: a, size: b, mtime_ns: long(72)?, path, bytes },
            2 => Body::Truncate { size: b },
            3 => Body::Punch { start: a, end: b },
            4 => Body::Gone,
            5 => Body::Checkpoint,
            6 => Body::Stop,
            7 => Body::Stage { stage: Stage::from_code(u8::try_from(a).ok()?)?, path },
            _ => return None,
        };
        let key = Key {
            store: all[17],
            device: long(32)?,
            inode: long(40)?,
            born_ns: long(48)?,
            handle: handle.to_vec(),
            handle_type: word(84)? as i32,
        };
        let next = Position { link: crc, synced: long(96)?, ..position };
        Some((Record { sequence: long(24)?, key, body }, length, next))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::beneath::HANDLE_MAX;
    use forebay_placement::Random;
    use std::time::{Duration, Instant};

    /// Numbers from a seed, which is printed.
    pub fn seeded() -> Random {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            now.as_nanos() as u64
        });
        eprintln!("FOREBAY_SEED={seed}");
        Random::new(seed)
    }

    /// Up to so many of them as bytes.
    pub fn bytes_of(random: &mut Random, most: u64) -> Vec<u8> {
        (0..random.below(most + 1)).map(|_| random.next_u64() as u8).collect()
    }

    pub fn any<'a>(random: &mut Random, path: &'a [u8], bytes: &'a [u8]) -> Record<'a> {
        let mut number = || random.next_u64();
        let body = match number() % 7 {
            0 => Body::Truncate { size: number() },
            1 => Body::Punch { start: number(), end: number() },
            2 => Body::Gone,
            3 => Body::Checkpoint,
            4 => Body::Stop,
            5 => Body::Stage {
                stage: Stage::ALL[(number() % Stage::ALL.len() as u64) as usize],
                path,
            },
            _ => Body::Data { offset: number(), size: number(), mtime_ns: number(), path, bytes },
        };
        let sequence = number();
        let key = Key {
            store: number() as u8,
            device: number(),
            inode: number(),
            born_ns: number(),
            handle_type: number() as i32,
            handle: bytes_of(random, HANDLE_MAX as u64),
        };
        Record { sequence, key, body }
    }

    #[test]
    fn records_are_read_back_and_nothing_else_is() {
        let mut random = seeded();
        let until = Instant::now() + Duration::from_millis(700);
        let mut rounds = 0;
        while Instant::now() < until || rounds < 50 {
            rounds += 1;
            let position = Position {
                generation: random.next_u64(),
                link: random.below(1 << 32) as u32,
                synced: random.next_u64(),
            };
            let (path, bytes) = (bytes_of(&mut random, 300), bytes_of(&mut random, 3000));
            let record = any(&mut random, &path, &bytes);
            let mut out = bytes_of(&mut random, 20);
            let before = out.len();
            let next = record.encode(position, &mut out);
            assert_eq!(out.len() - before, record.encoded_len());
            let decoded = Record::decode(&out[before..], position);
            assert_eq!(decoded, Some((record.clone(), out.len() - before, next)));
            let elsewhere = Position { link: position.link ^ 1, ..position };
            assert_eq!(Record::decode(&out[before..], elsewhere), None);
            let elsewhere = Position { generation: position.generation ^ 1, ..position };
            assert_eq!(Record::decode(&out[before..], elsewhere), None);
            let cut = before + random.below((out.len() - before) as u64) as usize;
            assert_eq!(Record::decode(&out[before..cut], position), None);
            let at = before + random.below((out.len() - before) as u64) as usize;
            out[at] ^= 1 << random.below(8);
            assert_eq!(Record::decode(&out[before..], position), None, "byte {}", at - before);
            // Lengths that lie, with a sum that is right.
            for at in [4, 18, 20, 21, 80, 81, 82] {
                out[before + at] = random.below(256) as u8;
            }
            let length = u32::from_le_bytes(out[before + 4..before + 8].try_into().unwrap());
            if let Some(all) = out[before..].get(..length as usize).filter(|all| all.len() > 12) {
                let crc = crc32c::crc32c(&all[12..]).to_le_bytes();
                out[before + 8..before + 12].copy_from_slice(&crc);
            }
            let _ = Record::decode(&out[before..], position);
            let _ = Record::decode(&bytes_of(&mut random, 400), position);
        }
    }
}
