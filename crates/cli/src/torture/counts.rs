//! What a program and its keeper have done, in files that outlive them.

use super::operations::KINDS;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Numbers of a worker, all its lives together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Operations so far; also the version of the next write.
    pub operations: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes read and compared.
    pub verified: u64,
    /// Bytes of files compared on the store, past Forebay.
    pub stored: u64,
    /// Calls that failed, each as an injected fault of a moment ago would have it.
    pub errors: u64,
    /// Operations by kind.
    pub kinds: [u64; KINDS],
}

/// What happened to the programs of a keeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Programs that were started.
    pub started: u64,
    /// Kills that were sent.
    pub kills_sent: u64,
    /// Programs that were at work and ended by them.
    pub kills_hit: u64,
    /// Programs that killed themselves at a point.
    pub points_hit: u64,
    /// Programs that were stopped and continued.
    pub frozen: u64,
}

/// Numbers in a file.
pub trait Words: Sized {
    /// How many.
    const COUNT: usize;
    /// All of them.
    fn words(&self) -> Vec<u64>;
    /// The other way round.
    fn of(words: &[u64]) -> Self;
}

impl Words for Counts {
    const COUNT: usize = 5 + KINDS;

    fn words(&self) -> Vec<u64> {
        let Counts { operations, written, verified, stored, errors, kinds } = self;
        [&[*operations, *written, *verified, *stored, *errors][..], kinds].concat()
    }

    fn of(words: &[u64]) -> Counts {
        let mut kinds = [0; KINDS];
        kinds.copy_from_slice(&words[5..]);
        let [operations, written, verified, stored, errors] = [0, 1, 2, 3, 4].map(|at| words[at]);
        Counts { operations, written, verified, stored, errors, kinds }
    }
}

impl Words for Fates {
    const COUNT: usize = 5;

    fn words(&self) -> Vec<u64> {
        vec![self.started, self.kills_sent, self.kills_hit, self.points_hit, self.frozen]
    }

    fn of(words: &[u64]) -> Fates {
        let [started, kills_sent, kills_hit, points_hit, frozen] =
            [0, 1, 2, 3, 4].map(|at| words[at]);
        Fates { started, kills_sent, kills_hit, points_hit, frozen }
    }
}

impl Default for Counts {
    fn default() -> Counts {
        Counts::of(&[0; Counts::COUNT])
    }
}

/// The sum of some numbers.
pub fn sum<W: Words>(all: impl Iterator<Item = W>) -> W {
    let mut sums = vec![0; W::COUNT];
    for one in all {
        sums.iter_mut().zip(one.words()).for_each(|(sum, word)| *sum += word);
    }
    W::of(&sums)
}

/// The file that holds them.
pub struct WordsFile(File);

impl WordsFile {
    /// Opens, or makes, such a file.
    pub fn open(path: &Path) -> io::Result<WordsFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map(WordsFile)
    }

    /// What was kept last.
    pub fn read<W: Words>(&self) -> io::Result<W> {
        let mut bytes = vec![0; 8 * W::COUNT];
        self.0.read_at(&mut bytes, 0)?;
        let words = bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word));
        Ok(W::of(&words.collect::<Vec<_>>()))
    }

    /// Keeps them.
    pub fn keep<W: Words>(&self, numbers: &W) -> io::Result<()> {
        let bytes: Vec<u8> = numbers.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.write_all_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outlive_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        let file = WordsFile::open(&path).unwrap();
        assert_eq!(file.read::<Counts>().unwrap(), Counts::default());
        let mut counts = Counts { operations: 7, errors: 3, ..Counts::default() };
        counts.kinds[KINDS - 1] = 9;
        file.keep(&counts).unwrap();
        let again: Counts = WordsFile::open(&path).unwrap().read().unwrap();
        assert_eq!(again, counts);
        assert_eq!(sum([again, counts].into_iter()).kinds[KINDS - 1], 18);
    }
}
