//! What is said of files that were saved: where their bytes came from, and their lines in the
//! manifest.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where bytes came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A tier had them.
    Tier,
    /// The store had them.
    Store,
    /// They could not be read, for this reason.
    Missing(String),
}

/// A file that was saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Where it was opened; may be empty.
    pub original: PathBuf,
    /// Its copy, relative to the target.
    pub copy: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its modification time, nanoseconds of CLOCK_REALTIME.
    pub mtime_ns: u64,
    /// Where its bytes came from, in order. What no range covers was never written.
    pub ranges: Vec<(Range<u64>, Source)>,
    /// It was written all the time: the copy's blocks may be from different moments.
    pub torn: bool,
}

impl Saved {
    /// Whether the copy is all that there is to the file.
    pub fn is_whole(&self) -> bool {
        !self.torn && !self.ranges.iter().any(|(_, source)| matches!(source, Source::Missing(_)))
    }

    /// Bytes from `source`'s kind.
    pub fn bytes(&self, kind: fn(&Source) -> bool) -> u64 {
        let of_kind = self.ranges.iter().filter(|(_, source)| kind(source));
        of_kind.map(|(range, _)| range.end - range.start).sum()
    }
}

/// Neighbours from the same source become one.
pub(super) fn joined(ranges: Vec<(Range<u64>, Source)>) -> Vec<(Range<u64>, Source)> {
    let mut joined: Vec<(Range<u64>, Source)> = Vec::new();
    for (range, source) in ranges {
        match joined.last_mut() {
            Some((last, kind)) if last.end == range.start && *kind == source => {
                last.end = range.end
            }
            _ => joined.push((range, source)),
        }
    }
    joined
}

/// A file's lines in the manifest: fields are parted by tabs.
pub(super) fn lines(saved: &Saved) -> Vec<String> {
    let state = match (saved.is_whole(), saved.torn) {
        (true, _) => "whole",
        (_, true) => "torn",
        _ => "incomplete",
    };
    let seconds = saved.mtime_ns as f64 / 1e9;
    let (copy, original) = (escaped(&saved.copy), escaped(&saved.original));
    let mut lines =
        vec![format!("file\t{copy}\t{}\t{seconds:.9}\t{state}\t{original}", saved.size)];
    lines.extend(saved.ranges.iter().map(|(range, source)| {
        let (kind, why) = match source {
            Source::Tier => ("tier", String::new()),
            Source::Store => ("store", String::new()),
            Source::Missing(why) => ("missing", format!("\t{why}")),
        };
        format!("{kind}\t{}\t{}{why}", range.start, range.end)
    }));
    lines
}

/// A path in one field.
pub(super) fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_keeps_its_fields_apart() {
        assert_eq!(escaped(Path::new("a\tb\nc\\")), "a\\tb\\nc\\\\");
    }
}
