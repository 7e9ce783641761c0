//! What a program of the torture does, and how often.

use forebay_placement::Random;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// pwrite anywhere.
    Write,
    /// pwrite at the end.
    Extend,
    /// A few bytes far behind the end: a hole before them.
    Sparse,
    /// pread.
    Read,
    /// fsync.
    Fsync,
    /// fdatasync.
    Fdatasync,
    /// fsync, and a look at the store past Forebay.
    Stored,
    /// ftruncate.
    Truncate,
    /// open with O_TRUNC while other descriptors are open.
    OpenEmpty,
    /// open with O_APPEND, write.
    OpenAppend,
    /// Two descriptors on the file: one writes, the other reads.
    Second,
    /// dup, lseek, and writes at the shared position.
    Dup,
    /// close of all descriptors.
    Close,
    /// stat, fstat, lseek to the end.
    Stat,
    /// rename and back.
    Rename,
    /// rename of another file over this one while it is open.
    Replace,
    /// link, write through it, remove one of the names.
    Link,
    /// unlink.
    Unlink,
    /// A file without a name: made, written, read, cut, synced.
    Orphan,
    /// mmap to read.
    MapRead,
    /// mmap with MAP_SHARED, changed.
    MapWrite,
    /// fallocate that punches a hole.
    Punch,
    /// fallocate that makes the file longer.
    Allocate,
    /// copy_file_range from another file.
    CopyRange,
    /// sendfile from another file.
    Send,
    /// Write to the file that all programs write.
    Common,
    /// Read of that.
    ReadCommon,
    /// Append to the log of all programs.
    Log,
    /// fdatasync of it.
    SyncLog,
    /// open, and compare all of the file.
    Verify,
    /// `forebay flush` of the file, and a look at the store past Forebay.
    Flush,
    /// Write of a whole block.
    Whole,
    /// fork; the child writes.
    Fork,
    /// Another program, which inherits the descriptor, writes at its position.
    Inherit,
    /// dup2 over another open descriptor, and a write through that.
    Over,
    /// A file with bytes far behind each other: made, read, removed.
    Far,
    /// The program executes itself again while a thread of it cuts the file.
    Exec,
}

use Operation::{
    Allocate, Close, Common, CopyRange, Dup, Exec, Extend, Far, Fdatasync, Flush, Fork, Fsync,
    Inherit, Link, Log, MapRead, MapWrite, OpenAppend, OpenEmpty, Orphan, Over, Punch, Read,
    ReadCommon, Rename, Replace, Second, Send, Sparse, Stat, Stored, SyncLog, Truncate, Unlink,
    Verify, Whole, Write,
};

/// All kinds, with their names, and how many of [`TOTAL`] operations they are.
pub const ALL: [(Operation, &str, u64); 37] = [
    (Write, "write", 200),
    (Extend, "write at the end", 60),
    (Sparse, "write behind a hole", 15),
    (Read, "read", 240),
    (Fsync, "fsync", 25),
    (Fdatasync, "fdatasync", 15),
    (Stored, "fsync, seen on the store", 10),
    (Truncate, "ftruncate", 30),
    (OpenEmpty, "open O_TRUNC", 8),
    (OpenAppend, "open O_APPEND, write", 25),
    (Second, "two descriptors", 40),
    (Dup, "dup, lseek, write", 25),
    (Close, "close", 40),
    (Stat, "stat, fstat, lseek", 60),
    (Rename, "rename and back", 12),
    (Replace, "rename over an open file", 15),
    (Link, "hard link", 12),
    (Unlink, "unlink", 8),
    (Orphan, "file without a name", 40),
    (MapRead, "mmap, read", 8),
    (MapWrite, "mmap MAP_SHARED, write", 6),
    (Punch, "punch a hole", 15),
    (Allocate, "fallocate", 8),
    (CopyRange, "copy_file_range", 10),
    (Send, "sendfile", 8),
    (Common, "write, two programs", 60),
    (ReadCommon, "read, two programs", 30),
    (Log, "append, all programs", 40),
    (SyncLog, "fdatasync of the log", 5),
    (Verify, "open, verify all", 12),
    (Flush, "forebay flush", 1),
    (Whole, "write of a whole block", 6),
    (Fork, "fork, write in the child", 4),
    (Inherit, "write by another program", 1),
    (Over, "dup2 over a descriptor, write", 6),
    (Far, "write far behind", 4),
    (Exec, "exec during a cut", 1),
];

/// Number of kinds.
pub const KINDS: usize = ALL.len();
/// Sum of their frequencies.
const TOTAL: u64 = {
    let (mut sum, mut at) = (0, 0);
    while at < KINDS {
        sum += ALL[at].2;
        at += 1;
    }
    sum
};

impl Operation {
    /// One at random.
    pub fn any(random: &mut Random) -> Operation {
        let mut left = random.below(TOTAL);
        let found = ALL.iter().find(|(_, _, often)| {
            let is_here = left < *often;
            left = left.saturating_sub(*often);
            is_here
        });
        found.map_or(Read, |(operation, ..)| *operation)
    }

    /// Which of [`ALL`] it is.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ALL[self.index()].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_happen_and_stand_in_their_place() {
        let mut random = Random::new(3);
        let mut counts = [0; KINDS];
        (0..100_000).for_each(|_| counts[Operation::any(&mut random).index()] += 1);
        for (index, (operation, name, often)) in ALL.iter().enumerate() {
            assert_eq!(operation.index(), index, "{name}");
            let expected = 100_000 * often / TOTAL;
            assert!((expected / 3..expected * 3).contains(&counts[index]), "{name}");
        }
    }
}
