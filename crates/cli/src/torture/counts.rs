//! What a worker has done, in a file that outlives it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Numbers of a worker, all its lives together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes so far; also the version of the next write.
    pub operations: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes read and compared.
    pub verified: u64,
    /// Calls that failed as an injected fault would have it.
    pub errors: u64,
}

/// The file that holds them.
pub struct CountsFile(File);

impl CountsFile {
    /// Opens, or makes, the counts in a worker's folder.
    pub fn open(folder: &Path) -> io::Result<CountsFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(folder.join("counts")).map(CountsFile)
    }

    /// What was kept last.
    pub fn read(&self) -> io::Result<Counts> {
        let mut bytes = [0; 32];
        self.0.read_at(&mut bytes, 0)?;
        let word = |at: usize| {
            bytes[at * 8..at * 8 + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        Ok(Counts { operations: word(0), written: word(1), verified: word(2), errors: word(3) })
    }

    /// Keeps them.
    pub fn keep(&self, counts: &Counts) -> io::Result<()> {
        let words = [counts.operations, counts.written, counts.verified, counts.errors];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.write_all_at(&bytes, 0)
    }
}
