//! Scripts of the standing lists: what their programs do with a case's files, step by step, and
//! what the steps tell them.

use super::content::Source;
use std::path::{Path, PathBuf};

/// Descriptors that a program has at most.
pub const SLOTS: usize = 3;
/// Bytes that a step reads at most: more than any file has.
pub const READ_MAX: usize = 700_000;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// To read and write.
    Plain,
    /// With O_APPEND.
    Append,
    /// With O_TRUNC.
    Empty,
    /// With O_CREAT.
    Create,
}

/// One step of a script: a call, or two that belong together. Files have names of one letter,
/// descriptors numbers; what is written follows from `tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// open.
    Open { slot: usize, name: char, how: How },
    /// close.
    Close { slot: usize },
    /// pwrite.
    Write { slot: usize, at: u64, length: u64, tag: u64 },
    /// lseek, write.
    WriteHere { slot: usize, at: u64, length: u64, tag: u64 },
    /// write with O_APPEND.
    Append { slot: usize, length: u64, tag: u64 },
    /// pread of everything.
    Read { slot: usize },
    /// fstat.
    Size { slot: usize },
    /// ftruncate.
    Truncate { slot: usize, size: u64 },
    /// fallocate that punches a hole.
    Punch { slot: usize, at: u64, length: u64 },
    /// fallocate that makes the file so long.
    Allocate { slot: usize, size: u64 },
    /// mmap with MAP_SHARED, changed, msync, munmap.
    Map { slot: usize, at: u64, length: u64, tag: u64 },
    /// copy_file_range from the beginning of another file.
    Copy { from: usize, to: usize, at: u64, length: u64 },
    /// lseek, sendfile from the beginning of another file.
    Send { from: usize, to: usize, at: u64, length: u64 },
    /// rename.
    Rename { from: char, to: char },
    /// link.
    Link { from: char, to: char },
    /// unlink.
    Unlink { name: char },
    /// fsync.
    Sync { slot: usize },
    /// dup.
    Dup { slot: usize, to: usize },
    /// fork; the child does pwrite and ends.
    Fork { slot: usize, at: u64, length: u64, tag: u64 },
    /// exec of another image, which inherits all descriptors and goes on with the script.
    Exec,
}

impl Step {
    /// Whether it puts bytes into a file, one after the other, so that a kill may leave a part of
    /// them.
    pub fn writes(self) -> bool {
        use Step::{Append, Copy, Fork, Map, Send, Write, WriteHere};
        matches!(
            self,
            Write { .. }
                | WriteHere { .. }
                | Append { .. }
                | Map { .. }
                | Copy { .. }
                | Send { .. }
                | Fork { .. }
        )
    }

    /// Whether it can make a file shorter, or put a shorter one in its place.
    pub fn shortens(self) -> bool {
        use Step::{Open, Rename, Truncate};
        matches!(self, Truncate { .. } | Rename { .. } | Open { how: How::Empty, .. })
    }

    /// Whether it is completed by others if its program dies in it: at some time, but before any of
    /// them changes the file.
    pub fn is_completed_by_others(self) -> bool {
        use Step::{Allocate, Punch, Truncate};
        matches!(self, Truncate { .. } | Punch { .. } | Allocate { .. })
    }

    /// Whether nothing comes of it but what it tells.
    pub fn only_tells(self) -> bool {
        matches!(self, Step::Read { .. } | Step::Size { .. } | Step::Sync { .. } | Step::Exec)
    }

    /// Whether it changes no file, and no other program has to do anything for it.
    pub fn only_looks(self) -> bool {
        use Step::{Close, Dup, Exec, Link, Open, Read, Rename, Size, Unlink};
        match self {
            Open { how, .. } => how != How::Empty,
            Close { .. } | Dup { .. } | Exec | Read { .. } | Size { .. } => true,
            Link { .. } | Rename { .. } | Unlink { .. } => true,
            _ => false,
        }
    }
}

/// What a program does: first what is done before anything happens to it, then the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Before.
    pub setup: Vec<Step>,
    /// What the case is about.
    pub steps: Vec<Step>,
}

impl Script {
    /// All steps, in their order.
    pub fn all(&self) -> impl Iterator<Item = Step> {
        self.setup.iter().chain(&self.steps).copied()
    }

    /// For people: one line.
    pub fn text(&self) -> String {
        self.all().map(|step| format!("{step:?}")).collect::<Vec<_>>().join("; ")
    }
}

/// What a step has told its program.
#[derive(Clone, PartialEq, Eq)]
pub enum Told {
    /// It is done.
    Done,
    /// An errno.
    Failed(i32),
    /// A file's size.
    Size(u64),
    /// What was read.
    Bytes(Vec<u8>),
}

impl std::fmt::Debug for Told {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Told::Done => write!(to, "done"),
            Told::Failed(errno) => {
                write!(to, "failed: {}", std::io::Error::from_raw_os_error(*errno))
            }
            Told::Size(size) => write!(to, "size {size}"),
            Told::Bytes(bytes) => write!(to, "{} bytes", bytes.len()),
        }
    }
}

/// The files of a case, and what is written to them.
#[derive(Clone, Debug)]
pub struct Files {
    store: PathBuf,
    /// What their names begin with.
    stem: String,
    seed: u64,
    case: u64,
    /// Whether fsync waits for the journal alone.
    is_nonvolatile: bool,
}

impl Files {
    /// Those of case `case`; `stem` tells them from the files of others.
    pub fn new(store: &Path, stem: &str, seed: u64, case: u64, is_nonvolatile: bool) -> Files {
        Files { store: store.to_owned(), stem: stem.to_owned(), seed, case, is_nonvolatile }
    }

    /// Where a file is.
    pub fn path(&self, name: char) -> PathBuf {
        let digit = if self.is_nonvolatile { 0 } else { 1 };
        self.store.join(format!("{}-{name}-file-{digit}", self.stem))
    }

    /// Whether a sync brings them to the store.
    pub fn are_synced_to_store(&self) -> bool {
        !self.is_nonvolatile
    }

    /// What is written under a tag.
    pub fn bytes(&self, tag: u64, at: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        Source { seed: self.seed, file: self.case, version: tag }.fill(at, &mut bytes);
        // No byte that was written looks like a hole.
        bytes.iter_mut().for_each(|byte| *byte |= 1);
        bytes
    }
}
