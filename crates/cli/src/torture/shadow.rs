//! What a worker's files must hold: a copy of each outside the managed directory, and what was being
//! done when the worker died; a copy of what each was when it was last safe, and all changes since, of
//! which a loss of memory may take any part. Plain files, so that they outlive every process that is killed.

use super::content::Source;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::ops::Range;
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
    /// Of each file: the changes that were begun since it was safe.
    since: Vec<File>,
}

impl Shadow {
    /// Opens, or makes, the shadow of worker `worker` in `folder`; its files are in `store`.
    pub fn open(folder: &Path, store: &Path, seed: u64, worker: u64) -> io::Result<Shadow> {
        std::fs::create_dir_all(folder)?;
        let open = |name: String| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        let all = |name: &str| {
            (0..FILES).map(|file| open(format!("{name}-{file}"))).collect::<io::Result<_>>()
        };
        Ok(Shadow {
            intent: open("intent".into())?,
            shadows: all("shadow")?,
            since: all("since")?,
            folder: folder.to_owned(),
            store: store.to_owned(),
            seed,
            worker,
        })
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
        let intent = Intent { file, change, acknowledged: false };
        let since = &self.since[file as usize];
        since.write_all_at(&intent.encode(), since.metadata()?.len())?;
        self.note(Some(intent))
    }

    /// The change succeeded: from now on only the new is right.
    pub fn acknowledge(&self, file: u64, change: Change) -> io::Result<()> {
        let intent = Intent { file, change, acknowledged: true };
        self.note(Some(intent))?;
        self.apply(intent)?;
        if change == Change::Remove {
            // Names are not buffered.
            self.synced(file)?;
        }
        self.note(None)
    }

    /// What `file` holds now is safe, whatever happens to memory.
    pub fn synced(&self, file: u64) -> io::Result<()> {
        let fresh = self.folder.join("synced-new");
        std::fs::copy(self.folder.join(format!("shadow-{file}")), &fresh)?;
        // In this order: changes that the copy has already explain nothing that it does not.
        std::fs::rename(fresh, self.folder.join(format!("synced-{file}")))?;
        self.since[file as usize].set_len(0)
    }

    /// Compares `file`, after memory was lost, with what it was when it was last safe: each byte is that,
    /// or what a change put there since. Takes over what it holds. Returns the bytes compared, and what is
    /// wrong.
    pub fn survive(&self, file: u64) -> io::Result<(u64, Option<String>)> {
        let absent = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Ok(Vec::new()),
            _ => Err(error),
        };
        let (path, shadow) = (self.path(file), &self.shadows[file as usize]);
        let found = std::fs::read(&path).or_else(absent)?;
        let mut now = std::fs::read(self.folder.join(format!("synced-{file}"))).or_else(absent)?;
        let mut explained = vec![false; found.len()];
        let (mut least, mut most) = (now.len(), now.len());
        explain(&mut explained, &found, &now, 0..now.len(), now.len());
        let mut since = Vec::new();
        (&self.since[file as usize]).seek(io::SeekFrom::Start(0))?;
        (&self.since[file as usize]).read_to_end(&mut since)?;
        for Intent { change, .. } in since.as_chunks().0.iter().filter_map(Intent::decode) {
            let before = now.len();
            let range = match change {
                Change::Write { offset, bytes, version } => {
                    let (start, end) = (offset as usize, (offset + bytes) as usize);
                    now.resize(before.max(end), 0);
                    let written = self.bytes(file, version, offset, end - start);
                    now[start..end].copy_from_slice(&written);
                    start.min(before)..end
                }
                Change::Truncate { size } => {
                    now.resize(size as usize, 0);
                    before.min(now.len())..now.len()
                }
                Change::Remove => {
                    now.clear();
                    0..0
                }
            };
            explain(&mut explained, &found, &now, range, before);
            (least, most) = (least.min(now.len()), most.max(now.len()));
        }
        let (name, size) = (path.display(), found.len());
        if !(least..=most).contains(&size) {
            return Ok((0, Some(format!("{name}: {size} bytes instead of {least} to {most}"))));
        }
        if let Some(first) = explained.iter().position(|&explained| !explained) {
            let count = explained.iter().filter(|&&explained| !explained).count();
            let wrong = format!(
                "{name}: {count} of {size} bytes are none that were written since it was synced, the \
                 first at {first}"
            );
            return Ok((0, Some(wrong)));
        }
        shadow.set_len(0)?;
        shadow.write_all_at(&found, 0)?;
        self.synced(file)?;
        Ok((size as u64, None))
    }

    /// What was being done when memory was lost needs no settling any more.
    pub fn forget_intent(&self) -> io::Result<()> {
        self.note(None)
    }

    /// Settles what was begun and may or may not have happened, by looking at the file.
    ///
    /// Returns what is wrong with it, if anything.
    pub fn settle(&self) -> io::Result<Option<String>> {
        self.settle_names()?;
        let Some(intent) = self.noted()? else { return Ok(None) };
        if intent.acknowledged {
            self.apply(intent)?;
        } else if let Some(wrong) = self.adopt(intent)? {
            return Ok(Some(wrong));
        }
        self.note(None)?;
        Ok(None)
    }

    /// Ends renames that were interrupted.
    pub fn settle_names(&self) -> io::Result<()> {
        for file in 0..FILES {
            let (path, other) = (self.path(file), self.other_path(file));
            if other.exists() && !path.exists() {
                std::fs::rename(other, path)?;
            }
        }
        Ok(())
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
        let bytes = intent.map_or([0; INTENT_BYTES], Intent::encode);
        self.intent.write_all_at(&bytes, 0)
    }

    fn noted(&self) -> io::Result<Option<Intent>> {
        let mut bytes = [0; INTENT_BYTES];
        if self.intent.read_at(&mut bytes, 0)? < INTENT_BYTES {
            return Ok(None);
        }
        Ok(Intent::decode(&bytes))
    }
}

impl Intent {
    fn encode(self) -> [u8; INTENT_BYTES] {
        let Intent { file, change, acknowledged } = self;
        let (kind, a, b, c) = match change {
            Change::Write { offset, bytes, version } => (1, offset, bytes, version),
            Change::Truncate { size } => (2, size, 0, 0),
            Change::Remove => (3, 0, 0, 0),
        };
        let words = [kind | u64::from(acknowledged) << 8, file, a, b, c];
        let mut bytes = [0; INTENT_BYTES];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None`: nothing is noted there.
    fn decode(bytes: &[u8; INTENT_BYTES]) -> Option<Intent> {
        let word = |at: usize| {
            bytes[at * 8..at * 8 + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let change = match word(0) & 0xff {
            1 => Change::Write { offset: word(2), bytes: word(3), version: word(4) },
            2 => Change::Truncate { size: word(2) },
            3 => Change::Remove,
            _ => return None,
        };
        Some(Intent { file: word(1), change, acknowledged: word(0) >> 8 != 0 })
    }
}

/// Marks the bytes of `range` that are in `found` as in `now`, or zero, where `now` has grown over `before`.
fn explain(explained: &mut [bool], found: &[u8], now: &[u8], range: Range<usize>, before: usize) {
    for at in range.start..range.end.min(found.len()) {
        explained[at] |= found[at] == now[at] || found[at] == 0 && at >= before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Change = Change::Write { offset: 1000, bytes: 5000, version: 1 };
    const AGAIN: Change = Change::Write { offset: 3000, bytes: 5000, version: 2 };

    /// A shadow after some changes, of which some are synced, and the bytes that its file 0 has then.
    fn changed(changes: &[(Change, bool)]) -> (tempfile::TempDir, Shadow, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let shadow = Shadow::open(&folder.path().join("shadow"), folder.path(), 7, 3).unwrap();
        for &(change, synced) in changes {
            shadow.begin(0, change).unwrap();
            shadow.acknowledge(0, change).unwrap();
            if synced {
                shadow.synced(0).unwrap();
            }
        }
        let bytes = std::fs::read(folder.path().join("shadow/shadow-0")).unwrap();
        (folder, shadow, bytes)
    }

    fn survives(shadow: &Shadow, bytes: &[u8]) -> Result<u64, String> {
        std::fs::write(shadow.path(0), bytes).unwrap();
        match shadow.survive(0).unwrap() {
            (_, Some(wrong)) => Err(wrong),
            (bytes, None) => Ok(bytes),
        }
    }

    #[test]
    fn a_loss_of_memory_may_take_what_was_not_synced() {
        let before = changed(&[(WRITE, true)]).2;
        for from in [0, 3000, 4096, 5999] {
            let (_folder, shadow, after) = changed(&[(WRITE, true), (AGAIN, false)]);
            let mixed = [&before[..from], &after[from..]].concat();
            assert_eq!(survives(&shadow, &mixed), Ok(8000));
            // That is what it has to be from then on.
            assert_eq!(shadow.verify(0).unwrap(), (8000, None));
            assert_eq!(survives(&shadow, &after).is_ok(), mixed == after);
        }
        let (_folder, shadow, after) = changed(&[(WRITE, true), (AGAIN, false)]);
        let grown = [&after[..7000], &[0; 1000]].concat();
        assert_eq!(survives(&shadow, &grown), Ok(8000));
    }

    #[test]
    fn a_loss_of_memory_takes_nothing_that_was_synced() {
        let wrong = |changes: &[(Change, bool)], alter: &dyn Fn(&mut Vec<u8>)| {
            let (_folder, shadow, mut bytes) = changed(changes);
            alter(&mut bytes);
            survives(&shadow, &bytes).unwrap_err()
        };
        let both = [(WRITE, true), (AGAIN, true)];
        let old = changed(&both[..1]).2;
        assert!(wrong(&both, &|bytes| bytes.truncate(7999)).contains("7999 bytes instead of 8000"));
        assert!(wrong(&both, &|bytes| bytes.push(0)).contains("8001 bytes"));
        assert!(wrong(&both, &|bytes| bytes[2000] = !bytes[2000]).contains("first at 2000"));
        assert!(
            wrong(&both, &|bytes| bytes[..6000].copy_from_slice(&old)).contains("first at 3000")
        );
        let cut = [(WRITE, true), (Change::Truncate { size: 2000 }, true)];
        assert!(wrong(&cut, &|bytes| bytes.resize(6000, 0)).contains("instead of 2000 to 2000"));
        let gone = [(WRITE, true), (Change::Remove, false)];
        assert!(wrong(&gone, &|bytes| bytes.clone_from(&old)).contains("instead of 0 to 0"));
    }
}
