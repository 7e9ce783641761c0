//! What a worker's files must hold: a copy of each outside the managed directory, and what was
//! being done when the worker died; a copy of what each was when it was last safe, and all changes
//! since, of which a loss of memory may take any part. Plain files, so that they outlive every
//! process that is killed.

mod intent;
mod survive;
mod verify;

pub use verify::difference;

use super::content::Source;
use std::fs::{File, OpenOptions};
use std::io;
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

    /// When a program was told last that everything of the file is safe, in nanoseconds since 1970;
    /// 0 if never.
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

    /// Reads what a file has at `offset` into all of `bytes`; behind the end of the common file are
    /// zeros.
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

    /// A sync has told a program that what `file` holds now is safe. Only then does no error of
    /// before reach another program: that everything is on the store tells none.
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
}
