//! Reading what `forebay run --record` wrote.

use crate::recorder::HEADER;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

/// The longest line of a recording, in bytes: a path and six numbers.
pub const LINE_MAX: usize = 8 << 10;

/// A read or a write of a recording.
pub struct Access<'a> {
    /// Which thread of which process; its number, as a text.
    pub rank: &'a str,
    /// The file.
    pub path: &'a str,
    /// It is a read.
    pub is_read: bool,
    /// Which bytes.
    pub bytes: Range<u64>,
}

/// Opens a recording.
///
/// # Errors
/// The system's, or that it is no regular file; not its path.
pub fn open(path: &Path) -> Result<impl BufRead + use<>, String> {
    // To open a pipe would wait for its other end.
    let kind = std::fs::metadata(path).map_err(|error| error.to_string())?.file_type();
    if !kind.is_file() {
        let kind = if kind.is_dir() { "a directory" } else { "a device or a pipe" };
        let remedy = "give a file that `forebay run --record` wrote";
        return Err(format!("is {kind} and not a regular file; {remedy}"));
    }
    File::open(path).map(BufReader::new).map_err(|error| error.to_string())
}

/// The next line without its end; `None` behind the last one.
fn next_line(recording: &mut impl BufRead, number: usize) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    let read = recording.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line);
    read.map_err(
        |error| if number == 1 { error.to_string() } else { format!("line {number}: {error}") },
    )?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() > LINE_MAX {
        return Err(match number {
            1 => no_recording(),
            _ => format!("line {number}: is longer than {LINE_MAX} bytes; record the run again"),
        });
    }
    let end = line.strip_suffix(b"\n").unwrap_or(&line);
    let end = end.strip_suffix(b"\r").unwrap_or(end);
    match std::str::from_utf8(end) {
        Ok(line) => Ok(Some(line.to_owned())),
        Err(_) if number == 1 => Err(no_recording()),
        Err(_) => Err(format!("line {number}: is no text; record the run again")),
    }
}

/// What is said of a file with another first line.
fn no_recording() -> String {
    format!(
        "is no recording; give a file that `forebay run --record` wrote, whose first line is {HEADER}"
    )
}

/// Calls `act` with the number of its line and each read and write of a recording, in the order in
/// which they began.
///
/// # Errors
/// The line that is none of a recording, or what `act` says.
pub fn for_each_access(
    mut recording: impl BufRead,
    mut act: impl FnMut(usize, Access<'_>) -> Result<(), String>,
) -> Result<(), String> {
    match next_line(&mut recording, 1)? {
        Some(line) if line == HEADER => {}
        Some(_) => return Err(no_recording()),
        None => {
            return Err("is empty; give a file that `forebay run --record` wrote".to_owned());
        }
    }
    for number in 2.. {
        let Some(line) = next_line(&mut recording, number)? else { break };
        let words: Vec<&str> = line.split(',').collect();
        let [rank, operation, path, offset, bytes, _] = words[..] else {
            return Err(format!(
                "line {number}: has {} fields and not six; record the run again",
                words.len()
            ));
        };
        if operation != "read" && operation != "write" {
            continue;
        }
        let parse = |what: &str, word: &str| {
            word.parse::<u64>().map_err(|_| {
                format!("line {number}: {what} \"{word}\" is no number; record the run again")
            })
        };
        let (offset, bytes) = (parse("offset", offset)?, parse("bytes", bytes)?);
        let end = offset.checked_add(bytes).ok_or_else(|| {
            format!("line {number}: ends behind the largest file; record the run again")
        })?;
        act(number, Access { rank, path, is_read: operation == "read", bytes: offset..end })?;
    }
    Ok(())
}
