//! What a worker's files must hold: a copy of each outside the managed directory, and what was being
//! done when the worker died. Plain files, so that they outlive every process that is killed.

use super::content::Source;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files of a worker.
pub const FILES: u64 = 6;
/// Bytes that are compared at a time.
const PIECE: usize = 256 << 10;
/// Bytes of an intent on file.
const INTENT_BYTES: usize = 40;

/// What a worker does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes of this version at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Which write it is.
        version: u64,
    },
    /// Another size.
    Truncate {
        /// The new one.
        size: u64,
    },
    /// No file any more.
    Remove,
}

/// A change that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Intent {
    file: u64,
    change: Change,
    /// It succeeded; only the shadow may not have it yet.
    acknowledged: bool,
}

/// The shadow of one worker's files.
pub struct Shadow {
    folder: PathBuf,
    store: PathBuf,
    seed: u64,
    worker: u64,
    intent: File,
    shadows: Vec<File>,
}

impl Shadow {
    /// Opens, or makes, the shadow of worker `worker` in `folder`; its files are in `store`.
    pub fn open(folder: &Path, store: &Path, seed: u64, worker: u64) -> io::Result<Shadow> {
        std::fs::create_dir_all(folder)?;
        let open = |name: String| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        Ok(Shadow {
            intent: open("intent".into())?,
            shadows: (0..FILES)
                .map(|file| open(format!("shadow-{file}")))
                .collect::<Result<_, _>>()?,
            folder: folder.to_owned(),
            store: store.to_owned(),
            seed,
            worker,
        })
    }

    /// The folder of pid, counts and losses.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the program writes the file.
    pub fn path(&self, file: u64) -> PathBuf {
        self.store.join(format!("worker-{}-file-{file}", self.worker))
    }

    /// Where the file is while it has its other name.
    pub fn other_path(&self, file: u64) -> PathBuf {
        self.store.join(format!("worker-{}-moved-{file}", self.worker))
    }

    /// The size that the file must have.
    pub fn size(&self, file: u64) -> io::Result<u64> {
        Ok(self.shadows[file as usize].metadata()?.len())
    }

    /// The bytes that a write of this version puts at `offset`.
    pub fn bytes(&self, file: u64, version: u64, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        Source { seed: self.seed, file: self.worker << 8 | file, version }.fill(offset, &mut bytes);
        bytes
    }

    /// To be called before a change: from now on either is right.
    pub fn begin(&self, file: u64, change: Change) -> io::Result<()> {
        self.note(Some(Intent { file, change, acknowledged: false }))
    }

    /// The change succeeded: from now on only the new is right.
    pub fn acknowledge(&self, file: u64, change: Change) -> io::Result<()> {
        let intent = Intent { file, change, acknowledged: true };
        self.note(Some(intent))?;
        self.apply(intent)?;
        self.note(None)
    }

    /// Settles what was begun and may or may not have happened, by looking at the file.
    ///
    /// Returns what is wrong with it, if anything.
    pub fn settle(&self) -> io::Result<Option<String>> {
        for file in 0..FILES {
            // A rename that was interrupted.
            let (path, other) = (self.path(file), self.other_path(file));
            if other.exists() && !path.exists() {
                std::fs::rename(other, path)?;
            }
        }
        let Some(intent) = self.noted()? else { return Ok(None) };
        if intent.acknowledged {
            self.apply(intent)?;
        } else if let Some(wrong) = self.adopt(intent)? {
            return Ok(Some(wrong));
        }
        self.note(None)?;
        Ok(None)
    }

    /// Compares `file` with what it must hold; the bytes compared, and what is wrong.
    pub fn verify(&self, file: u64) -> io::Result<(u64, Option<String>)> {
        let wanted = self.size(file)?;
        let path = self.path(file);
        let found = match File::open(&path) {
            Ok(found) => found,
            // None and an empty one are taken for the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound && wanted == 0 => {
                return Ok((0, None));
            }
            Err(error) => return Ok((0, Some(format!("{}: {error}", path.display())))),
        };
        let size = found.metadata()?.len();
        if size != wanted {
            let wrong = format!("{}: {size} bytes instead of {wanted}", path.display());
            return Ok((0, Some(wrong)));
        }
        let mut at = 0;
        while at < size {
            let length = PIECE.min((size - at) as usize);
            if let Some(wrong) = self.verify_range(file, &found, at, length)? {
                return Ok((at, Some(wrong)));
            }
            at += length as u64;
        }
        Ok((size, None))
    }

    /// Compares a range of an open file with what it must hold; what is wrong, if anything.
    pub fn verify_range(
        &self,
        file: u64,
        found: &File,
        offset: u64,
        length: usize,
    ) -> io::Result<Option<String>> {
        let (mut got, mut wanted) = (vec![0; length], vec![0; length]);
        self.shadows[file as usize].read_exact_at(&mut wanted, offset)?;
        found.read_exact_at(&mut got, offset)?;
        let differs = (0..length).filter(|&i| got[i] != wanted[i]);
        Ok(differs.clone().next().map(|first| {
            let zeros = differs.clone().filter(|&i| got[i] == 0).count();
            format!(
                "{}: {} of {length} bytes from {offset} on are wrong, the first at {}; {zeros} are zero",
                self.path(file).display(),
                differs.count(),
                offset + first as u64,
            )
        }))
    }

    /// Takes over what the file holds, if that is explained by the change or its absence.
    fn adopt(&self, intent: Intent) -> io::Result<Option<String>> {
        let Intent { file, change, .. } = intent;
        let shadow = &self.shadows[file as usize];
        let old_size = self.size(file)?;
        let found = match File::open(self.path(file)) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let size = match &found {
            Some(found) => found.metadata()?.len(),
            None => 0,
        };
        let wrong = |what: String| {
            Ok(Some(format!("{}: {what} after {change:?}", self.path(file).display())))
        };
        match change {
            Change::Write { offset, bytes, version } => {
                let most = old_size.max(offset + bytes);
                if size < old_size || size > most {
                    return wrong(format!("{size} bytes instead of {old_size} to {most}"));
                }
                let Some(found) = found else { return Ok(None) };
                let length = size.min(offset + bytes).saturating_sub(offset) as usize;
                let (mut got, mut old) = (vec![0; length], vec![0; length]);
                found.read_exact_at(&mut got, offset)?;
                let known = old_size.saturating_sub(offset).min(length as u64) as usize;
                shadow.read_exact_at(&mut old[..known], offset)?;
                let new = self.bytes(file, version, offset, length);
                if let Some(at) = (0..length).find(|&at| got[at] != old[at] && got[at] != new[at]) {
                    return wrong(format!("byte {} is neither old nor new", offset + at as u64));
                }
                shadow.set_len(size)?;
                shadow.write_all_at(&got, offset)?;
            }
            Change::Truncate { size: new } => {
                if size != old_size && size != new {
                    return wrong(format!("{size} bytes instead of {old_size} or {new}"));
                }
                shadow.set_len(size)?;
            }
            Change::Remove => {
                if size != old_size && found.is_some() {
                    return wrong(format!("{size} bytes instead of {old_size} or none"));
                }
                shadow.set_len(size)?;
            }
        }
        Ok(None)
    }

    fn apply(&self, intent: Intent) -> io::Result<()> {
        let shadow = &self.shadows[intent.file as usize];
        match intent.change {
            Change::Write { offset, bytes, version } => shadow
                .write_all_at(&self.bytes(intent.file, version, offset, bytes as usize), offset),
            Change::Truncate { size } => shadow.set_len(size),
            Change::Remove => shadow.set_len(0),
        }
    }

    fn note(&self, intent: Option<Intent>) -> io::Result<()> {
        let mut words = [0u64; INTENT_BYTES / 8];
        if let Some(Intent { file, change, acknowledged }) = intent {
            let (kind, a, b, c) = match change {
                Change::Write { offset, bytes, version } => (1, offset, bytes, version),
                Change::Truncate { size } => (2, size, 0, 0),
                Change::Remove => (3, 0, 0, 0),
            };
            words = [kind | u64::from(acknowledged) << 8, file, a, b, c];
        }
        let mut bytes = [0; INTENT_BYTES];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.intent.write_all_at(&bytes, 0)
    }

    fn noted(&self) -> io::Result<Option<Intent>> {
        let mut bytes = [0; INTENT_BYTES];
        if self.intent.read_at(&mut bytes, 0)? < INTENT_BYTES {
            return Ok(None);
        }
        let word = |at: usize| {
            bytes[at * 8..at * 8 + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let change = match word(0) & 0xff {
            1 => Change::Write { offset: word(2), bytes: word(3), version: word(4) },
            2 => Change::Truncate { size: word(2) },
            3 => Change::Remove,
            _ => return Ok(None),
        };
        Ok(Some(Intent { file: word(1), change, acknowledged: word(0) >> 8 != 0 }))
    }
}
