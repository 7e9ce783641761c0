//! A file that has no name any more, or whose name is another's: it lives for processes that have
//! it open.

use super::hits::{self, Call};
use super::shadow::difference;
use forebay_placement::Random;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that such a file has at most.
const SIZE_MAX: usize = 400 << 10;

/// The file, and what it must hold.
pub struct Orphan {
    file: File,
    bytes: Vec<u8>,
    /// Of what happened since then it may tell, in nanoseconds since 1970.
    since: u64,
}

impl Orphan {
    /// A file that is open, what it holds, and when all of that was safe last.
    pub fn of(file: File, bytes: Vec<u8>, since: u64) -> Orphan {
        Orphan { file, bytes, since }
    }

    /// Makes one with this content, and removes its name before or after it is written.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn make(path: &Path, bytes: Vec<u8>) -> io::Result<Orphan> {
        let since = hits::now_ns();
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
        let half = bytes.len() / 2;
        file.write_all_at(&bytes[..half], 0)?;
        std::fs::remove_file(path)?;
        file.write_all_at(&bytes[half..], half as u64)?;
        Ok(Orphan { file, bytes, since })
    }

    /// Of what happened since then it may tell, in nanoseconds since 1970.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Does something to it; `None` once it is closed. With the kind of call that it was.
    pub fn step(self, random: &mut Random, content: Vec<u8>) -> (Call, io::Result<Option<Orphan>>) {
        let choice = random.below(8);
        let call = match choice {
            0..4 => Call::Plain,
            4 => Call::Checkpointing,
            _ => Call::Sync,
        };
        (call, self.do_one(choice, random, content))
    }

    fn do_one(
        mut self,
        choice: u64,
        random: &mut Random,
        content: Vec<u8>,
    ) -> io::Result<Option<Orphan>> {
        match choice {
            0..4 => {
                let most = SIZE_MAX.saturating_sub(content.len()).min(self.bytes.len() + 5000);
                let at = random.below(most as u64 + 1) as usize;
                self.file.write_all_at(&content, at as u64)?;
                self.bytes.resize(self.bytes.len().max(at + content.len()), 0);
                self.bytes[at..at + content.len()].copy_from_slice(&content);
            }
            4 => {
                let size = random.below(self.bytes.len() as u64 + 5000);
                self.file.set_len(size)?;
                self.bytes.resize(size as usize, 0);
            }
            5 | 6 => self.file.sync_all()?,
            _ => return Ok(None),
        }
        Ok(Some(self))
    }

    /// Compares it; the bytes compared, and what is wrong.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn verify(&self) -> io::Result<(u64, Option<String>)> {
        let size = self.file.metadata()?.len();
        if size != self.bytes.len() as u64 {
            return Ok((0, Some(format!("{size} bytes instead of {}", self.bytes.len()))));
        }
        let mut got = vec![0; self.bytes.len()];
        self.file.read_exact_at(&mut got, 0)?;
        Ok((size, difference(&got, &self.bytes)))
    }
}
