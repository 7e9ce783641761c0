//! What a worker has done last, in a ring of lines on file: what is printed when something is
//! wrong.

use super::operations::Operation;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Operations that are remembered.
const LINES: u64 = 4096;
/// Bytes of a line.
const BYTES: usize = 96;
/// Lines that are shown.
const SHOWN: usize = 40;

/// The ring of a worker.
pub struct History(File);

impl History {
    /// Opens, or makes, the history in a worker's folder.
    pub fn open(folder: &Path) -> io::Result<History> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(folder.join("history")).map(History)
    }

    /// Notes that an operation begins. `file` is `-` where it is about no single one.
    pub fn note(
        &self,
        number: u64,
        operation: Operation,
        file: &str,
        what: &str,
    ) -> io::Result<()> {
        let pid = std::process::id();
        let line = format!("{number:>9} {pid:>8} {file:>6} {}: {what}", operation.name());
        let mut bytes = [b' '; BYTES];
        let length = line.len().min(BYTES - 1);
        bytes[..length].copy_from_slice(&line.as_bytes()[..length]);
        bytes[BYTES - 1] = b'\n';
        self.0.write_all_at(&bytes, number % LINES * BYTES as u64)
    }

    /// The last operations on a file, oldest first; on all if it is `None`.
    pub fn last(&self, file: Option<&str>) -> Vec<String> {
        let mut bytes = vec![0; LINES as usize * BYTES];
        let length = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let of_line = |line: &str| {
            let mut words = line.split_whitespace();
            let number: u64 = words.next()?.parse().ok()?;
            let about = words.nth(1)?;
            (file.is_none_or(|file| file == about)).then(|| (number, line.trim_end().to_owned()))
        };
        let mut lines: Vec<_> = text.lines().filter_map(of_line).collect();
        lines.sort();
        let lines = lines.into_iter().map(|(_, line)| line);
        let mut lines: Vec<_> = lines.collect();
        lines.drain(..lines.len().saturating_sub(SHOWN));
        lines
    }
}

/// The worker and the file that a loss is about, if it names them: `worker-W-file-F`.
pub fn named(loss: &str) -> Option<(u64, Option<String>)> {
    let rest = loss.split_once("worker-").map(|(_, rest)| rest)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let worker = rest[..digits].parse().ok()?;
    let file = rest.split_once("-file-").map(|(_, rest)| rest);
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    Some((worker, file.map(digits).filter(|file| !file.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operations_on_a_file_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::open(folder.path()).unwrap();
        for number in 0..LINES + 10 {
            let file = (number % 3).to_string();
            history.note(number, Operation::Write, &file, &format!("{number} at 0")).unwrap();
        }
        let last = history.last(Some("1"));
        assert_eq!(last.len(), SHOWN);
        assert!(last[SHOWN - 1].ends_with("4105 at 0") || last[SHOWN - 1].ends_with("4104 at 0"));
        assert_eq!(history.last(None).len(), SHOWN);
        let loss = "on the store: /t/store/worker-3-file-5: 7 bytes instead of 8";
        assert_eq!(named(loss), Some((3, Some("5".into()))));
        assert_eq!(named("the run of worker 3 hangs"), None);
    }
}
