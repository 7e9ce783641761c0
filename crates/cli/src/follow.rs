//! `forebay run --follow`: the orders in which a recorded run has read files, for its processes to
//! be read ahead of.

use crate::recording::{Access, for_each_access, open};
use forebay_pool::orders::{BLOCKS_MAX, Orders, hash};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// Orders that a run is to follow.
pub struct Followed {
    path: PathBuf,
    memory: OwnedFd,
    is_empty: bool,
}

impl Followed {
    /// Learns them from a recording, of blocks of so many bytes.
    ///
    /// # Errors
    /// The system's, with the file's name; a file that is none of `--record`; the line that is none
    /// of a recording; more reads than can be followed.
    pub fn of(path: &Path, block_bytes: u64) -> Result<Followed, String> {
        let failed =
            |error: &dyn std::fmt::Display| format!("--follow: {}: {error}", path.display());
        let file = open(path).map_err(|error| failed(&error))?;
        let mut lists = learn(file, block_bytes).map_err(|error| failed(&error))?;
        let memory = Orders::memory(&mut lists).map_err(|error| failed(&error))?;
        Ok(Followed { path: path.to_owned(), memory, is_empty: lists.is_empty() })
    }

    /// What the node manager is told of it, so that the processes of the run find it.
    pub fn number(&self) -> u32 {
        self.memory.as_raw_fd() as u32 + 1
    }

    /// Why nothing will be followed, if that is known before the command begins: also where the
    /// instance does not read ahead.
    pub fn describe_nothing(&self, is_on: bool) -> Option<String> {
        let path = self.path.display();
        match (self.is_empty, is_on) {
            (true, _) => Some(format!(
                "--follow: {path}: has no reads, so nothing is followed; record a run that reads \
                 buffered files"
            )),
            (_, false) => Some(format!(
                "--follow: {path}: is not followed, as `prefetch = false` in [placement] switches \
                 reading ahead off; take that out"
            )),
            _ => None,
        }
    }

    /// What is to be said if no process has read a file of it.
    pub fn describe_unmet(&self) -> String {
        format!(
            "--follow: {}: nothing was read in its order: no file that it has was read from where it \
             begins there, without advice; record the run again if files or program have changed",
            self.path.display()
        )
    }
}

/// The blocks of each file in the order in which each rank reads them first.
fn learn(recording: impl BufRead, block_bytes: u64) -> Result<Vec<(u64, Vec<u32>)>, String> {
    let mut lists: Vec<(u64, Vec<u32>)> = Vec::new();
    let mut known: HashMap<(String, String), (usize, HashSet<u32>)> = HashMap::new();
    let mut count = 0;
    for_each_access(recording, |number, Access { rank, path, is_read, bytes }| {
        if !is_read {
            return Ok(());
        }
        let (list, blocks) = match known.entry((rank.to_owned(), path.to_owned())) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(new) => {
                lists.push((hash(path.as_bytes()), Vec::new()));
                new.insert((lists.len() - 1, HashSet::new()))
            }
        };
        for block in bytes.start / block_bytes..bytes.end.div_ceil(block_bytes) {
            // A file of which a block has a larger number is not followed so far.
            let Ok(block) = u32::try_from(block) else { break };
            if blocks.insert(block) {
                lists[*list].1.push(block);
                count += 1;
            }
            if count > BLOCKS_MAX {
                return Err(format!(
                    "line {number}: more than {BLOCKS_MAX} blocks are read; record a shorter run"
                ));
            }
        }
        Ok(())
    })?;
    lists.retain(|(_, blocks)| !blocks.is_empty());
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::HEADER;
    use crate::recording::LINE_MAX;
    use std::io::BufReader;

    fn learned(lines: &str) -> Result<Vec<(u64, Vec<u32>)>, String> {
        learn(format!("{HEADER}\n{lines}").as_bytes(), 100)
    }

    #[test]
    fn each_rank_of_each_file_has_its_order() {
        let lines = "0,begin,,,,5.0\n0,open,/a,,,\n0,read,/a,250,100,0.1\n1,read,/a,0,10,0.1\n\
            0,compute,,,,1.0\n0,read,/a,0,1,0.1\n0,read,/a,299,1,0.1\n0,read,/b,0,0,0.1\n\
            0,write,/a,900,100,0.1\n";
        let a = hash(b"/a");
        assert_eq!(learned(lines).unwrap(), [(a, vec![2, 3, 0]), (a, vec![0])]);
    }

    #[test]
    fn what_is_no_recording_is_named() {
        for text in [&b"a,b\n"[..], b"\xff\n", &[0; 2 * LINE_MAX]] {
            assert!(learn(text, 100).unwrap_err().starts_with("is no recording"));
        }
        // No more of a first line without an end is read than that takes.
        let endless = BufReader::new(std::io::repeat(0));
        assert!(learn(endless, 100).unwrap_err().starts_with("is no recording"));
        assert!(learn(&b""[..], 100).unwrap_err().starts_with("is empty"));
        assert_eq!(learned("").unwrap(), []);
        for (lines, wanted) in [
            ("0,read,/a,1\n", "line 2: has 4 fields"),
            ("0,open,/a,,,\n0,read,/a,x,1,0.1\n", "line 3: offset \"x\""),
            (&format!("0,read,/{},0,1,\n", "a".repeat(LINE_MAX)), "line 2: is longer"),
            ("0,read,/a,1,-1,0.1\n", "bytes \"-1\""),
            ("0,read,/a,18446744073709551615,2,0.1\n", "behind the largest file"),
        ] {
            let error = learned(lines).unwrap_err();
            assert!(error.contains(wanted) && error.contains("record the run again"), "{error}");
        }
    }
}
