//! What a journal has of each file that its store may lack: its records, less those that a
//! checkpoint covers.

use super::file::read_full;
use super::record::{Body, FileIdentity, Key, Record};
use super::scan::{orphan_records, scan};
use super::superblock::{Copies, Superblock};
use forebay_placement::staged::Stage;
use forebay_pool::mark::{MARK_BYTES, MARKS_AT, Mark};
use forebay_pool::private;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// One change of a file that a sync had acknowledged, or that has to come after such ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Data { offset: u64, size: u64, mtime_ns: u64, bytes: Vec<u8> },
    Truncate { size: u64 },
    Punch { start: u64, end: u64 },
}

/// What a journal says about one file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileLog {
    /// A hint.
    pub path: Vec<u8>,
    /// By ascending sequence, as appended; only what no checkpoint covers.
    pub changes: Vec<(u64, Change)>,
}

/// Where a staged file stood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Staged {
    sequence: u64,
    pub stage: Stage,
    /// A hint.
    pub path: Vec<u8>,
}

/// What is to be applied, as a journal says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Contents {
    /// There was a journal.
    pub found: bool,
    pub files: HashMap<Key, FileLog>,
    /// The staged files that were being written, or that the store has not as a whole.
    pub staged: HashMap<FileIdentity, Staged>,
    /// Up to which sequence the store has a file, as records and marks say.
    checkpoints: HashMap<FileIdentity, u64>,
    /// The same as the superblock says it: of files that had slots when the generation began, and
    /// of all others.
    live: HashMap<FileIdentity, Option<u64>>,
    checkpoint_lsn: Option<u64>,
    /// Where a record was durable and is none any more. Orphan records behind it count all the
    /// same.
    pub damaged: Option<u64>,
}

impl Contents {
    /// Reads the journal at `path`; there may be none.
    ///
    /// # Errors
    /// The device's; `BADMSG` if both copies of the superblock are damaged, so that no checkpoint
    /// is known; [`super::superblock::OTHER_VERSION`].
    pub fn read(path: &Path) -> Result<Contents, Errno> {
        let file = match private::open(path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(wrong) if wrong.is_missing() => return Ok(Contents::default()),
            Err(wrong) => return Err(wrong.errno()),
        };
        let mut contents = Contents { found: true, ..Contents::default() };
        let copies = Copies::of(&file)?;
        if copies.are_lost() {
            return Err(Errno::BADMSG);
        }
        // Without a superblock nothing was ever committed.
        let Some(superblock) = copies.best else { return Ok(contents) };
        contents.checkpoint_lsn = superblock.checkpoint_lsn;
        contents.live = superblock.live.iter().copied().collect();
        contents.read_marks(&file, &superblock)?;
        let mut end = superblock.start;
        scan(&file, &superblock, |record, at, _| {
            contents.take(record);
            end = at;
        })?;
        orphan_records(&file, &superblock, end, |_, _, synced| {
            contents.damaged = (synced > end).then_some(end);
            contents.damaged.is_none()
        })?;
        if contents.damaged.is_some() {
            orphan_records(&file, &superblock, end, |record, _, _| {
                contents.take(record);
                true
            })?;
        }
        let Contents { files, staged, checkpoints, .. } = &mut contents;
        // What was synced of a file that is being written makes it no whole one.
        staged.retain(|file, staged| {
            staged.stage == Stage::Writing
                || checkpoints.get(file).is_none_or(|upto| staged.sequence > *upto)
        });
        files.retain(|key, file| {
            let upto = checkpoints.get(&key.identity()).copied();
            file.changes.retain(|(sequence, _)| upto.is_none_or(|upto| *sequence > upto));
            !file.changes.is_empty()
        });
        Ok(contents)
    }

    fn read_marks(&mut self, file: &OwnedFd, superblock: &Superblock) -> Result<(), Errno> {
        // Whatever the superblock says, not more than there is.
        let end = superblock.start.min(rustix::fs::fstat(file)?.st_size as u64);
        let mut bytes = vec![0; end.saturating_sub(MARKS_AT) as usize];
        let got = read_full(file, &mut bytes, MARKS_AT)?;
        for bytes in bytes[..got].as_chunks::<MARK_BYTES>().0 {
            if let Some(mark) = Mark::decode(bytes) {
                let Mark { device, inode, born_ns, sequence } = mark;
                self.note_checkpoint(FileIdentity { device, inode, born_ns }, sequence);
            }
        }
        Ok(())
    }

    /// How many files have something to be applied, and how many bytes.
    pub fn pending(&self) -> (usize, u64) {
        let bytes = |change: &(u64, Change)| match &change.1 {
            Change::Data { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        let changes = self.files.values().flat_map(|file| &file.changes);
        (self.files.len(), changes.map(bytes).sum())
    }

    /// Whether it has all bytes of a range of a file.
    pub fn covers(&self, file: FileIdentity, range: &Range<u64>) -> bool {
        let has = |change: &(u64, Change)| match &change.1 {
            Change::Data { offset, bytes, .. } => {
                *offset <= range.start && range.end <= offset.saturating_add(bytes.len() as u64)
            }
            _ => false,
        };
        let files = self.files.iter().filter(|(key, _)| key.identity() == file);
        files.flat_map(|(_, file)| &file.changes).any(has)
    }

    /// Up to which sequence the store durably has everything of a file.
    pub fn checkpoint_of(&self, file: FileIdentity) -> Option<u64> {
        let at_start = self.live.get(&file).copied().unwrap_or(self.checkpoint_lsn);
        self.checkpoints.get(&file).copied().max(at_start)
    }

    fn note_checkpoint(&mut self, file: FileIdentity, sequence: u64) {
        let upto = self.checkpoints.entry(file).or_default();
        *upto = sequence.max(*upto);
    }

    fn take(&mut self, record: Record<'_>) {
        let Record { sequence, key, body } = record;
        let change = match body {
            Body::Data { offset, size, mtime_ns, path, bytes } => {
                let file = self.files.entry(key.clone()).or_default();
                if !path.is_empty() {
                    file.path = path.to_vec();
                }
                Change::Data { offset, size, mtime_ns, bytes: bytes.to_vec() }
            }
            Body::Truncate { size } => Change::Truncate { size },
            Body::Punch { start, end } => Change::Punch { start, end },
            end @ (Body::Gone | Body::Checkpoint) => {
                if end == Body::Gone {
                    self.staged.remove(&key.identity());
                }
                if let Some(file) = self.files.get_mut(&key) {
                    file.changes.retain(|&(of, _)| of > sequence);
                }
                self.note_checkpoint(key.identity(), sequence);
                return;
            }
            Body::Stage { stage, path } => {
                let staged = Staged { sequence, stage, path: path.to_vec() };
                self.staged.insert(key.identity(), staged);
                return;
            }
            Body::Stop => {
                self.files.clear();
                self.staged.clear();
                self.live.clear();
                self.checkpoint_lsn = self.checkpoint_lsn.max(Some(sequence));
                return;
            }
        };
        self.files.entry(key).or_default().changes.push((sequence, change));
    }
}
