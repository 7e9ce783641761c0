//! What a worker's files must hold: a copy of each outside the managed directory, and what was being
//! done when the worker died; a copy of what each was when it was last safe, and all changes since, of
//! which a loss of memory may take any part. Plain files, so that they outlive every process that is killed.

use super::content::Source;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files of a worker that no other worker writes.
pub const OWN: u64 = 6;
/// The file of which each worker has every so-many-th piece: two programs write the same pages.
pub const COMMON: u64 = OWN;
/// All files of a worker.
pub const FILES: u64 = OWN + 1;
/// Workers among whom the common file is divided.
pub const SHARERS: u64 = 8;
/// Bytes of a piece of the common file: no divisor of a page.
pub const STRIPE: u64 = 3000;
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
    /// Zeros, and no other size.
    Punch {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Another file under this name, of this version from its beginning on.
    Replace {
        /// How many.
        bytes: u64,
        /// Which write it is.
        version: u64,
    },
}

impl Change {
    /// Behind the last byte that it is about.
    fn end(self) -> u64 {
        match self {
            Change::Write { offset, bytes, .. } | Change::Punch { offset, bytes } => offset + bytes,
            Change::Truncate { size } => size,
            Change::Replace { bytes, .. } => bytes,
            Change::Remove => 0,
        }
    }
}

/// What a name of a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The file itself.
    File,
    /// The file while it is renamed.
    Moved,
    /// A hard link to it.
    Link,
    /// What is to replace it.
    New,
    /// What is unlinked while it is open.
    Gone,
    /// What is copied to it.
    Source,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::File => "file",
            Role::Moved => "moved",
            Role::Link => "link",
            Role::New => "new",
            Role::Gone => "gone",
            Role::Source => "source",
        }
    }
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
        match file {
            COMMON => self.store.join("common"),
            _ => self.other_path(Role::File, file),
        }
    }

    /// Another name that has to do with a file.
    pub fn other_path(&self, role: Role, file: u64) -> PathBuf {
        self.store.join(format!("worker-{}-{}-{file}", self.worker, role.word()))
    }

    /// Whether an fsync of the file brings it to the store itself.
    pub fn is_synced_to_store(&self, file: u64) -> bool {
        file == COMMON || !file.is_multiple_of(2)
    }

    /// When a program was told last that everything of the file is safe, in nanoseconds since 1970; 0 if never.
    pub fn told_since(&self, file: u64) -> u64 {
        let found = std::fs::metadata(self.told(file));
        let time = found.and_then(|found| found.modified()).ok();
        time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |since| since.as_nanos() as u64)
    }

    fn told(&self, file: u64) -> PathBuf {
        self.folder.join(format!("told-{file}"))
    }

    /// Where a byte of the file is for all programs, and how many follow there.
    pub fn place_of(&self, file: u64, offset: u64) -> (u64, u64) {
        if file != COMMON {
            return (offset, u64::MAX - offset);
        }
        let (stripe, within) = (offset / STRIPE, offset % STRIPE);
        ((stripe * SHARERS + self.worker) * STRIPE + within, STRIPE - within)
    }

    /// Reads what a file has at `offset` into all of `bytes`; behind the end of the common file are zeros.
    ///
    /// # Errors
    /// Those of `read_at`, and if a file of the worker's own ends before.
    fn read_with(
        &self,
        file: u64,
        mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let (place, count) = self.place_of(file, offset + at as u64);
            let count = count.min((bytes.len() - at) as u64) as usize;
            match read_at(&mut bytes[at..at + count], place) {
                Ok(0) if file == COMMON => at += count,
                Ok(0) => {
                    let (path, end) = (self.path(file), offset + at as u64);
                    let what = format!("{}: nothing can be read at {end}", path.display());
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(read) => at += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// [`Shadow::read_with`] as programs read.
    fn read(&self, file: u64, found: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        bytes.fill(0);
        self.read_with(file, |bytes, at| found.read_at(bytes, at), bytes, offset)
    }

    /// The size that the file must have.
    pub fn size(&self, file: u64) -> io::Result<u64> {
        Ok(self.shadows[file as usize].metadata()?.len())
    }

    /// All that the file must hold.
    pub fn whole(&self, file: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.size(file)? as usize];
        self.shadows[file as usize].read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
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
        match change {
            // Names are not buffered.
            Change::Remove => self.told_synced(file)?,
            Change::Replace { bytes, version } => self.replaced(file, bytes, version)?,
            _ => {}
        }
        self.note(None)
    }

    /// The file that lies there now was empty when it was safe, and has been written since.
    fn replaced(&self, file: u64, bytes: u64, version: u64) -> io::Result<()> {
        let fresh = self.folder.join("synced-new");
        File::create(&fresh)?;
        // In this order: what is noted longer than needed explains more, not less.
        std::fs::rename(fresh, self.folder.join(format!("synced-{file}")))?;
        File::create(self.told(file))?;
        let change = Change::Write { offset: 0, bytes, version };
        let intent = Intent { file, change, acknowledged: false };
        let since = &self.since[file as usize];
        since.write_all_at(&intent.encode(), 0)?;
        since.set_len(INTENT_BYTES as u64)
    }

    /// A sync has told a program that what `file` holds now is safe. Only then does no error of before reach another
    /// program: that everything is on the store tells none.
    pub fn told_synced(&self, file: u64) -> io::Result<()> {
        self.synced(file)?;
        File::create(self.told(file)).map(drop)
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
        let mut found = match file {
            COMMON => Vec::new(),
            _ => std::fs::read(&path).or_else(absent)?,
        };
        let mut now = std::fs::read(self.folder.join(format!("synced-{file}"))).or_else(absent)?;
        let mut since = Vec::new();
        (&self.since[file as usize]).seek(io::SeekFrom::Start(0))?;
        (&self.since[file as usize]).read_to_end(&mut since)?;
        let since: Vec<_> = since.as_chunks().0.iter().filter_map(Intent::decode).collect();
        if file == COMMON {
            // Its size says nothing of one worker's part.
            let ends = since.iter().map(|intent| intent.change.end() as usize);
            found = vec![0; ends.fold(now.len(), usize::max)];
            if let Ok(opened) = File::open(&path) {
                self.read(file, &opened, &mut found, 0)?;
            }
            now.resize(found.len(), 0);
        }
        let mut explained = vec![false; found.len()];
        let (mut least, mut most) = (now.len(), now.len());
        explain(&mut explained, &found, &now, 0..now.len(), now.len());
        for &Intent { change, .. } in &since {
            let mut before = now.len();
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
                Change::Punch { offset, bytes } => {
                    // A cut before it that never happened may have made it shorter here.
                    let start = now.len().min(offset as usize);
                    let range = start..now.len().min((offset + bytes) as usize);
                    now[range.clone()].fill(0);
                    range
                }
                Change::Replace { bytes, version } => {
                    now = self.bytes(file, version, 0, bytes as usize);
                    (least, before) = (0, 0);
                    0..now.len()
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

    /// The cut, or the hole, that was begun last and may or may not have happened.
    pub fn unfinished_cut(&self) -> io::Result<Option<(u64, Change)>> {
        let found = self.noted()?.filter(|intent| !intent.acknowledged);
        let is_cut = |change| matches!(change, Change::Truncate { .. } | Change::Punch { .. });
        Ok(found.map(|intent| (intent.file, intent.change)).filter(|(_, change)| is_cut(*change)))
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

    /// Ends renames that were interrupted, and removes what has no name that stays.
    pub fn settle_names(&self) -> io::Result<()> {
        for file in 0..OWN {
            let path = self.path(file);
            for role in [Role::Moved, Role::Link] {
                let other = self.other_path(role, file);
                if other.exists() && !path.exists() {
                    std::fs::rename(&other, &path)?;
                }
            }
            for role in [Role::Link, Role::New, Role::Gone, Role::Source] {
                match std::fs::remove_file(self.other_path(role, file)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Compares `file` with what it must hold, as it lies on the store: past Forebay, also in a program
    /// that it watches.
    pub fn verify_stored(&self, file: u64) -> io::Result<(u64, Option<String>)> {
        use rustix::fs::{Mode, OFlags, open};
        let size = self.size(file)? as usize;
        let path = self.path(file);
        let wrong =
            |what: String| Ok((0, Some(format!("{}: on the store {what}", path.display()))));
        let opened = match open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(opened) => opened,
            Err(errno) if size > 0 => return wrong(format!("after it was synced: {errno}")),
            Err(_) => return Ok((0, None)),
        };
        let length = rustix::fs::fstat(&opened)?.st_size as usize;
        if file != COMMON && length != size {
            return wrong(format!("{length} bytes instead of {size} after it was synced"));
        }
        let (mut got, mut wanted) = (vec![0; size], vec![0; size]);
        self.shadows[file as usize].read_exact_at(&mut wanted, 0)?;
        let read_at =
            |bytes: &mut [u8], at: u64| rustix::io::pread(&opened, bytes, at).map_err(Into::into);
        self.read_with(file, read_at, &mut got, 0)?;
        match difference(&got, &wanted) {
            None => Ok((size as u64, None)),
            Some(what) => wrong(format!("after it was synced {what}")),
        }
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
        if file != COMMON && size != wanted {
            let wrong = format!("{}: {size} bytes instead of {wanted}", path.display());
            return Ok((0, Some(wrong)));
        }
        let (mut at, size) = (0, wanted);
        while at < size {
            let length = PIECE.min((size - at) as usize);
            match self.verify_range(file, &found, at, length) {
                Ok(None) => {}
                Ok(Some(wrong)) => return Ok((at, Some(wrong))),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok((at, Some(format!("{error}, and fstat said {size} bytes"))));
                }
                Err(error) => return Err(error),
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
        let mut got = vec![0; length];
        self.read(file, found, &mut got, offset)?;
        self.compare(file, &got, offset)
    }

    /// Compares bytes that were found at `offset` with what must be there; what is wrong, if anything.
    pub fn compare(&self, file: u64, got: &[u8], offset: u64) -> io::Result<Option<String>> {
        let mut wanted = vec![0; got.len()];
        self.shadows[file as usize].read_exact_at(&mut wanted, offset)?;
        let path = self.path(file);
        Ok(difference(got, &wanted)
            .map(|what| format!("{}: from {offset} on {what}", path.display())))
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
                let size = if file == COMMON { most } else { size };
                if size < old_size || size > most {
                    return wrong(format!("{size} bytes instead of {old_size} to {most}"));
                }
                let Some(found) = found else { return Ok(None) };
                let length = size.min(offset + bytes).saturating_sub(offset) as usize;
                let (mut got, mut old) = (vec![0; length], vec![0; length]);
                self.read(file, &found, &mut got, offset)?;
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
            Change::Punch { offset, bytes } => {
                if size != old_size {
                    return wrong(format!("{size} bytes instead of {old_size}"));
                }
                let Some(found) = found else { return Ok(None) };
                let length = size.min(offset + bytes).saturating_sub(offset) as usize;
                let (mut got, mut old) = (vec![0; length], vec![0; length]);
                self.read(file, &found, &mut got, offset)?;
                shadow.read_exact_at(&mut old, offset)?;
                if let Some(at) = (0..length).find(|&at| got[at] != old[at] && got[at] != 0) {
                    return wrong(format!("byte {} is neither old nor zero", offset + at as u64));
                }
                shadow.write_all_at(&got, offset)?;
            }
            Change::Replace { bytes, version } => {
                let mut got = vec![0; size as usize];
                if let Some(found) = found {
                    self.read(file, &found, &mut got, 0)?;
                }
                let mut old = vec![0; old_size as usize];
                shadow.read_exact_at(&mut old, 0)?;
                let new = self.bytes(file, version, 0, bytes as usize);
                if got == new {
                    self.apply(intent)?;
                    self.replaced(file, bytes, version)?;
                } else if let Some(what) = difference(&got, &old) {
                    return wrong(format!("{size} bytes, neither new nor old: {what}"));
                }
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
            Change::Punch { offset, bytes } => {
                let end = shadow.metadata()?.len().min(offset + bytes);
                shadow.write_all_at(&vec![0; end.saturating_sub(offset) as usize], offset)
            }
            Change::Replace { bytes, version } => {
                let bytes = self.bytes(intent.file, version, 0, bytes as usize);
                shadow.write_all_at(&bytes, 0)?;
                shadow.set_len(bytes.len() as u64)
            }
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
            Change::Punch { offset, bytes } => (4, offset, bytes, 0),
            Change::Replace { bytes, version } => (5, 0, bytes, version),
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
            4 => Change::Punch { offset: word(2), bytes: word(3) },
            5 => Change::Replace { bytes: word(3), version: word(4) },
            _ => return None,
        };
        Some(Intent { file: word(1), change, acknowledged: word(0) >> 8 != 0 })
    }
}

/// How bytes differ from what is wanted of the same length, if they do.
pub fn difference(got: &[u8], wanted: &[u8]) -> Option<String> {
    if got == wanted {
        return None;
    }
    let differs = || (0..wanted.len()).filter(|&i| got.get(i) != Some(&wanted[i]));
    let zeros = differs().filter(|&i| got.get(i) == Some(&0)).count();
    Some(format!(
        "{} of {} bytes are wrong, the first after {}; {zeros} are zero",
        differs().count(),
        wanted.len(),
        differs().next().unwrap_or(wanted.len()),
    ))
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
