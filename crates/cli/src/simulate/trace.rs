//! A recorded trace of an application's I/O: one step of a rank a line.
//!
//! `rank,operation,file,offset,bytes,seconds`, with fields empty that the operation does not have:
//! `compute` has seconds; `open`, `create` (an open that cuts the file to nothing) and `close` have
//! a file; `write` and `read` have a file, an offset and bytes, and in a recording the seconds that
//! they took; `truncate` has a file and its new size as offset, and in a recording the seconds that
//! it took; `remove` has a file, which loses its last name; `barrier` has none. Each rank's lines
//! are in its own order. A recording's first line, `begin`, has the moment at which the run began,
//! in seconds since 1970.

use crate::recorder::HEADER;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use forebay_simulator::{Op, Range};

use forebay_node::config::reader::Result;

const OPERATIONS: &str = "compute, open, create, write, read, truncate, remove, close, barrier";
/// Offsets and sizes stay exact in the model's numbers.
const BYTES_MAX: u64 = 1 << 53;
const SECONDS_MAX: f64 = 1e6;
/// Threads of a recorded run.
const RANKS_MAX: u32 = 65_536;

/// The steps of all ranks, and what a recording says besides.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The steps of each rank.
    pub ranks: Vec<Vec<Op>>,
    /// The files' names, by their numbers.
    pub files: Vec<String>,
    /// Bytes and seconds of each write, and of each read.
    pub writes: Vec<(u64, f64)>,
    pub reads: Vec<(u64, f64)>,
    /// When the run began, in microseconds since 1970, and after which time its last rank ended.
    pub begin_us: u64,
    pub ends_s: f64,
}

/// Reads a trace of `ranks`, or of as many as it has.
pub(super) fn load(path: &Path, ranks: Option<u32>) -> Result<Recorded> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|e| format!("{name}: cannot be read: {e}; give an existing CSV file"))?;
    parse(&name, &text, ranks)
}

fn parse(name: &str, text: &str, ranks: Option<u32>) -> Result<Recorded> {
    let mut recorded = Recorded::default();
    let mut spent_s: Vec<f64> = Vec::new();
    let grow = |recorded: &mut Recorded, ranks: usize| {
        let ranks = ranks.max(recorded.ranks.len());
        recorded.ranks.resize_with(ranks, Vec::new);
        ranks
    };
    grow(&mut recorded, ranks.unwrap_or(0) as usize);
    let most = u64::from(ranks.unwrap_or(RANKS_MAX)) - 1;
    let mut files: HashMap<&str, u32> = HashMap::new();
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line.trim()) != Some(HEADER) {
        return Err(format!("{name}:1: the trace must begin with {HEADER}"));
    }
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let error = |key: &str, problem: String| format!("{name}:{}: {key}: {problem}", index + 1);
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[rank, operation, file, offset, bytes, seconds] = &fields[..] else {
            return Err(error("line", format!("has {} fields; give {HEADER}", fields.len())));
        };
        let number = |key: &str, value: &str, most: u64| {
            let number = value.parse::<u64>().ok().filter(|number| *number <= most);
            number.ok_or_else(|| {
                error(key, format!("\"{value}\" is no number; give one from 0 to {most}"))
            })
        };
        let rank = number("rank", rank, most)? as usize;
        let count = grow(&mut recorded, rank + 1);
        spent_s.resize(count, 0.0);
        let next = files.len() as u32;
        let names = &mut recorded.files;
        let mut file = || match file.is_empty() {
            true => Err(error("file", "missing; give a name".to_owned())),
            false => Ok(*files.entry(file).or_insert_with(|| {
                names.push(file.to_owned());
                next
            })),
        };
        let range = |file: u32| -> Result<Range> {
            let offset = number("offset", offset, BYTES_MAX)?;
            Ok(Range { file, offset, bytes: number("bytes", bytes, BYTES_MAX)? })
        };
        let time = || {
            let time = seconds.parse::<f64>().ok();
            time.filter(|time| (0.0..=SECONDS_MAX).contains(time)).ok_or_else(|| {
                error("seconds", format!("\"{seconds}\" is no time; give 0 to {SECONDS_MAX}"))
            })
        };
        // Of calls it is known only in a recording.
        let took = || if seconds.is_empty() { Ok(0.0) } else { time() };
        let op = match operation {
            "begin" => {
                let begin = seconds.parse::<f64>().ok().filter(|begin| begin.is_finite());
                let begin = begin.ok_or_else(|| {
                    error("seconds", format!("\"{seconds}\" is no time; give seconds since 1970"))
                })?;
                recorded.begin_us = (begin * 1e6) as u64;
                continue;
            }
            "compute" => {
                let time = time()?;
                spent_s[rank] += time;
                Op::Compute((time * 1e9) as u64)
            }
            "open" => Op::Open(file()?),
            "create" => Op::Create(file()?),
            "close" => Op::Close(file()?),
            "remove" => Op::Remove(file()?),
            "truncate" => {
                spent_s[rank] += took()?;
                Op::Truncate(file()?, number("offset", offset, BYTES_MAX)?)
            }
            "write" | "read" => {
                let (range, took) = (range(file()?)?, took()?);
                spent_s[rank] += took;
                match operation {
                    "write" => {
                        recorded.writes.push((range.bytes, took));
                        Op::Write(range)
                    }
                    _ => {
                        recorded.reads.push((range.bytes, took));
                        Op::Read(range)
                    }
                }
            }
            "barrier" => Op::Barrier,
            other => {
                let problem = format!("\"{other}\" is unknown; give one of {OPERATIONS}");
                return Err(error("operation", problem));
            }
        };
        recorded.ranks[rank].push(op);
    }
    recorded.ends_s = spent_s.into_iter().fold(0.0, f64::max);
    Ok(recorded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_to_their_ranks() {
        let text = format!(
            "{HEADER}\n0,open,a,,,\n1,compute,,,,0.5\n0,write,a,4096,100,\n\n1,barrier,,,,\n\
             1,read,b,0,7,\n0,close,a,,,\n0,truncate,a,9,,\n1,remove,a,,,\n"
        );
        let steps = parse("t", &text, Some(2)).unwrap().ranks;
        let write = Op::Write(Range { file: 0, offset: 4096, bytes: 100 });
        assert_eq!(steps[0], [Op::Open(0), write, Op::Close(0), Op::Truncate(0, 9)]);
        let read = Op::Read(Range { file: 1, offset: 0, bytes: 7 });
        assert_eq!(steps[1], [Op::Compute(500_000_000), Op::Barrier, read, Op::Remove(0)]);
    }

    #[test]
    fn errors_name_line_and_field() {
        for (line, expected) in [
            ("2,barrier,,,,", "t:2: rank: \"2\" is no number; give one from 0 to 1"),
            ("0,jump,,,,", "t:2: operation: \"jump\" is unknown"),
            ("0,write,,0,1,", "t:2: file: missing"),
            ("0,write,a,x,1,", "t:2: offset: \"x\" is no number"),
            ("0,read,a,0,,", "t:2: bytes: \"\" is no number"),
            ("0,compute,,,,-1", "t:2: seconds: \"-1\" is no time"),
            ("0,open,a", "t:2: line: has 3 fields"),
        ] {
            let error = parse("t", &format!("{HEADER}\n{line}\n"), Some(2)).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(
            parse("t", "rank\n", Some(2)).unwrap_err().starts_with("t:1: the trace must begin")
        );
    }
}
