//! Journals, slot tables and pools as a hostile writer makes them: every field at will, and all
//! checksums right. What lies where is said in `node/src/journal/superblock.rs` and `record.rs`.

use forebay_pool::checksum::checksum_of;
use std::fs;
use std::path::Path;

const HEAD_BYTES: usize = 64 << 10;
/// Bytes of a head before the live files.
const HEAD_FIXED: usize = 88;
const FIXED: usize = 104;

fn word(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(from[at..at + 8].try_into().unwrap())
}

fn half(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(from[at..at + 4].try_into().unwrap())
}

/// Which file a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
    pub born_ns: u64,
}

impl Identity {
    pub fn of(path: &Path) -> Identity {
        use rustix::fs::{AtFlags, CWD, StatxFlags};
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).unwrap();
        let born = found.stx_btime;
        Identity {
            device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born_ns: forebay_pool::clock::joined_ns(born.tv_sec, i64::from(born.tv_nsec)),
        }
    }
}

/// A record of the journal, whatever it says.
#[derive(Clone, Debug)]
pub struct Record {
    pub kind: u8,
    pub store: u8,
    pub sequence: u64,
    pub of: Identity,
    /// Offset or start, size or end, modification time.
    pub numbers: [u64; 3],
    pub handle_type: u32,
    pub handle: Vec<u8>,
    pub path: Vec<u8>,
    pub bytes: Vec<u8>,
    pub synced: u64,
    /// What it says of the length of its data, if that is not right.
    pub pretended: Option<u32>,
}

/// A journal's log: the records of its round.
#[derive(Clone)]
pub struct Log {
    file: Vec<u8>,
    start: usize,
    epoch: u64,
    pub records: Vec<Record>,
}

impl Log {
    pub fn read(path: &Path) -> Log {
        let file = fs::read(path).unwrap();
        let best = [0, HEAD_BYTES].into_iter().max_by_key(|&at| word(&file, at + 16)).unwrap();
        let (epoch, start) = (word(&file, best + 16), word(&file, best + 24) as usize);
        let mut log = Log { file, start, epoch, records: Vec::new() };
        let (mut at, mut link) = (start, epoch as u32);
        while let Some(all) = log.file.get(at..).filter(|all| all.len() > FIXED) {
            if &all[..4] != b"FBJR" || half(all, 12) != link || word(all, 88) != epoch {
                break;
            }
            let handle = FIXED..FIXED + usize::from(all[18]);
            let path = handle.end..handle.end + usize::from(u16::from_le_bytes([all[20], all[21]]));
            let bytes = path.end..path.end + half(all, 80) as usize;
            log.records.push(Record {
                kind: all[16],
                store: all[17],
                sequence: word(all, 24),
                of: Identity {
                    device: word(all, 32),
                    inode: word(all, 40),
                    born_ns: word(all, 48),
                },
                numbers: [word(all, 56), word(all, 64), word(all, 72)],
                handle_type: half(all, 84),
                handle: all[handle].to_vec(),
                path: all[path].to_vec(),
                bytes: all[bytes].to_vec(),
                synced: word(all, 96),
                pretended: None,
            });
            link = half(all, 8);
            at += half(all, 4) as usize;
        }
        log
    }

    /// Writes the journal anew: to the file that is there.
    pub fn write(&self, path: &Path) {
        let mut out = self.file[..self.start].to_vec();
        let mut link = self.epoch as u32;
        for record in &self.records {
            link = record.encode(link, self.epoch, &mut out);
        }
        // What was behind the records is of this round no more.
        out.resize(out.len().max(self.file.len()), 0);
        fs::write(path, out).unwrap();
    }
}

impl Record {
    fn encode(&self, link: u32, epoch: u64, out: &mut Vec<u8>) -> u32 {
        let begin = out.len();
        let sizes = self.handle.len() + self.path.len() + self.bytes.len();
        let length = (FIXED + sizes).next_multiple_of(8);
        out.extend_from_slice(b"FBJR");
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&link.to_le_bytes());
        out.extend_from_slice(&[self.kind, self.store, self.handle.len() as u8, 0]);
        out.extend_from_slice(&(self.path.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        let key = [self.sequence, self.of.device, self.of.inode, self.of.born_ns];
        for number in key.into_iter().chain(self.numbers) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let bytes = self.pretended.unwrap_or(self.bytes.len() as u32);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&self.handle_type.to_le_bytes());
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&self.synced.to_le_bytes());
        for part in [&self.handle, &self.path, &self.bytes] {
            out.extend_from_slice(part);
        }
        out.resize(begin + length, 0);
        let sum = checksum_of(&out[begin + 12..]);
        out[begin + 8..begin + 12].copy_from_slice(&sum.to_le_bytes());
        sum
    }
}

/// Sets a word of the head of the journal in `file`, both copies, and their checksums.
pub fn set_head(file: &mut [u8], number: usize, value: u64) {
    for at in [0, HEAD_BYTES] {
        let Some(head) = file.get_mut(at..at + HEAD_BYTES) else { continue };
        head[16 + number * 8..][..8].copy_from_slice(&value.to_le_bytes());
        let count = (word(head, 48) as usize).min((HEAD_BYTES - HEAD_FIXED) / 32);
        let sum = checksum_of(&head[16..HEAD_FIXED + count * 32]);
        head[12..16].copy_from_slice(&sum.to_le_bytes());
    }
}
