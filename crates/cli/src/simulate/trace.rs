//! A recorded trace of an application's I/O: one step of a rank a line.
//!
//! `rank,operation,file,offset,bytes,seconds`, with fields empty that the operation does not have:
//! `compute` has seconds; `open` and `close` have a file; `write` and `read` have a file, an offset
//! and bytes; `barrier` has none. Each rank's lines are in its own order.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use forebay_simulator::{Op, Range};

use forebay_node::config::reader::Result;

const HEADER: &str = "rank,operation,file,offset,bytes,seconds";
const OPERATIONS: &str = "compute, open, write, read, close, barrier";
/// Offsets and sizes stay exact in the model's numbers.
const BYTES_MAX: u64 = 1 << 53;
const SECONDS_MAX: f64 = 1e6;

/// The steps of each rank.
pub(super) fn load(path: &Path, ranks: u32) -> Result<Vec<Vec<Op>>> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|e| format!("{name}: cannot be read: {e}; give an existing CSV file"))?;
    parse(&name, &text, ranks)
}

fn parse(name: &str, text: &str, ranks: u32) -> Result<Vec<Vec<Op>>> {
    let mut steps = vec![Vec::new(); ranks as usize];
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
        let rank = number("rank", rank, u64::from(ranks) - 1)? as usize;
        let next = files.len() as u32;
        let mut file = || match file.is_empty() {
            true => Err(error("file", "missing; give a name".to_owned())),
            false => Ok(*files.entry(file).or_insert(next)),
        };
        let range = |file: u32| -> Result<Range> {
            let offset = number("offset", offset, BYTES_MAX)?;
            Ok(Range { file, offset, bytes: number("bytes", bytes, BYTES_MAX)? })
        };
        steps[rank].push(match operation {
            "compute" => {
                let time = seconds.parse::<f64>().ok();
                let time =
                    time.filter(|time| (0.0..=SECONDS_MAX).contains(time)).ok_or_else(|| {
                        error(
                            "seconds",
                            format!("\"{seconds}\" is no time; give 0 to {SECONDS_MAX}"),
                        )
                    })?;
                Op::Compute((time * 1e9) as u64)
            }
            "open" => Op::Open(file()?),
            "close" => Op::Close(file()?),
            "write" => Op::Write(range(file()?)?),
            "read" => Op::Read(range(file()?)?),
            "barrier" => Op::Barrier,
            other => {
                let problem = format!("\"{other}\" is unknown; give one of {OPERATIONS}");
                return Err(error("operation", problem));
            }
        });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_to_their_ranks() {
        let text = format!(
            "{HEADER}\n0,open,a,,,\n1,compute,,,,0.5\n0,write,a,4096,100,\n\n1,barrier,,,,\n\
             1,read,b,0,7,\n0,close,a,,,\n"
        );
        let steps = parse("t", &text, 2).unwrap();
        let write = Op::Write(Range { file: 0, offset: 4096, bytes: 100 });
        assert_eq!(steps[0], [Op::Open(0), write, Op::Close(0)]);
        let read = Op::Read(Range { file: 1, offset: 0, bytes: 7 });
        assert_eq!(steps[1], [Op::Compute(500_000_000), Op::Barrier, read]);
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
            let error = parse("t", &format!("{HEADER}\n{line}\n"), 2).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(parse("t", "rank\n", 2).unwrap_err().starts_with("t:1: the trace must begin"));
    }
}
