//! `forebay run --follow`: the orders in which a recorded run has read files, for its processes to
//! be read ahead of.

use crate::recorder::HEADER;
use forebay_pool::orders::{BLOCKS_MAX, Orders, hash};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Orders that a run is to follow.
pub struct Followed(OwnedFd);

impl Followed {
    /// Learns them from a recording, of blocks of so many bytes.
    ///
    /// # Errors
    /// The system's, with the file's name; the line that is none of a recording; more reads than
    /// can be followed.
    pub fn of(path: &Path, block_bytes: u64) -> Result<Followed, String> {
        let failed =
            |error: &dyn std::fmt::Display| format!("--follow: {}: {error}", path.display());
        let file = File::open(path).map_err(|error| failed(&error))?;
        let mut lists = learn(BufReader::new(file), block_bytes).map_err(|error| failed(&error))?;
        let memory = Orders::memory(&mut lists).map_err(|error| failed(&error))?;
        Ok(Followed(memory))
    }

    /// What the node manager is told of it, so that the processes of the run find it.
    pub fn number(&self) -> u32 {
        self.0.as_raw_fd() as u32 + 1
    }
}

/// The blocks of each file in the order in which each rank reads them first.
fn learn(recording: impl BufRead, block_bytes: u64) -> Result<Vec<(u64, Vec<u32>)>, String> {
    let mut lists: Vec<(u64, Vec<u32>)> = Vec::new();
    let mut known: HashMap<(String, String), (usize, HashSet<u32>)> = HashMap::new();
    let mut count = 0;
    for (number, line) in recording.lines().enumerate() {
        let number = number + 1;
        let line = line.map_err(|error| format!("line {number}: {error}"))?;
        if number == 1 {
            if line != HEADER {
                return Err(format!(
                    "is no recording; give a file that `forebay run --record` wrote, whose first line is {HEADER}"
                ));
            }
            continue;
        }
        let words: Vec<&str> = line.split(',').collect();
        let [rank, operation, path, offset, bytes, _] = words[..] else {
            return Err(format!(
                "line {number}: has {} fields and not six; record the run again",
                words.len()
            ));
        };
        if operation != "read" {
            continue;
        }
        let parse = |what: &str, word: &str| {
            word.parse::<u64>().map_err(|_| {
                format!("line {number}: {what} \"{word}\" is no number; record the run again")
            })
        };
        let (offset, bytes) = (parse("offset", offset)?, parse("bytes", bytes)?);
        let (list, blocks) = match known.entry((rank.to_owned(), path.to_owned())) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(new) => {
                lists.push((hash(path.as_bytes()), Vec::new()));
                new.insert((lists.len() - 1, HashSet::new()))
            }
        };
        let end = offset.checked_add(bytes).ok_or_else(|| {
            format!("line {number}: ends behind the largest file; record the run again")
        })?;
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
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
    }
    lists.retain(|(_, blocks)| !blocks.is_empty());
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(learn(&b"a,b\n"[..], 100).unwrap_err().contains("is no recording"));
        for (lines, wanted) in [
            ("0,read,/a,1\n", "line 2: has 4 fields"),
            ("0,open,/a,,,\n0,read,/a,x,1,0.1\n", "line 3: offset \"x\""),
            ("0,read,/a,1,-1,0.1\n", "bytes \"-1\""),
            ("0,read,/a,18446744073709551615,2,0.1\n", "behind the largest file"),
        ] {
            let error = learned(lines).unwrap_err();
            assert!(error.contains(wanted) && error.contains("record the run again"), "{error}");
        }
    }
}
