//! Comparing files, after memory was lost, with what they were when they were last safe.

use super::intent::Intent;
use super::{COMMON, Change, Shadow};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Marks the bytes of `range` that are in `found` as in `now`, or zero, where `now` has grown over
/// `before`.
pub(super) fn explain(
    explained: &mut [bool],
    found: &[u8],
    now: &[u8],
    range: Range<usize>,
    before: usize,
) {
    for at in range.start..range.end.min(found.len()) {
        explained[at] |= found[at] == now[at] || found[at] == 0 && at >= before;
    }
}

impl Shadow {
    /// Compares `file`, after memory was lost, with what it was when it was last safe: each byte is
    /// that, or what a change put there since. Takes over what it holds. Returns the bytes
    /// compared, and what is wrong.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Change = Change::Write { offset: 1000, bytes: 5000, version: 1 };
    const AGAIN: Change = Change::Write { offset: 3000, bytes: 5000, version: 2 };

    /// A shadow after some changes, of which some are synced, and the bytes that its file 0 has
    /// then.
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
