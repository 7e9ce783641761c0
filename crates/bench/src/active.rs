//! Active buffering (Hermes, HPDC 2018, section 3.1.1): what each operation on a buffered file
//! costs the drain, and what it saves, on emulated tiers.

use crate::measured::{Measured, Unit};
use crate::runner::end_manager;
use crate::site::{self, Site};
use crate::{Options, server};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const ROUNDS: u32 = 3;

/// Bandwidth and latency.
const STORE: (&str, &str) = ("300MB/s", "2ms");
const BURST_BUFFER: (&str, &str) = ("1200MB/s", "20us");

/// Bytes of a record: who, when, four numbers.
const RECORD: usize = 48;

const PROGRAM: &str = "the program writes";
const DRAINED: &str = "start to drained";
const READY: &str = "start to result";
const CPU: &str = "CPU, beside a plain file";
const SIZE: &str = "result, of the original";
const NONE: &str = "no operation";

/// Each operation with its name in the tables, the keys of its rule, the same as options of the
/// command, and what its result's name ends with.
struct Case {
    name: &'static str,
    operation: &'static str,
    options: &'static [(&'static str, &'static str)],
    suffix: &'static str,
}

const CASES: [Case; 8] = [
    Case {
        name: "sort",
        operation: "sort",
        options: &[("record", "48"), ("key", "f64@16")],
        suffix: ".sorted",
    },
    Case { name: "compress zstd 3", operation: "compress", options: &[], suffix: ".zst" },
    Case {
        name: "compress lz4",
        operation: "compress",
        options: &[("codec", "lz4")],
        suffix: ".lz4",
    },
    Case { name: "dedup", operation: "dedup", options: &[], suffix: ".dedup" },
    Case {
        name: "filter a tenth",
        operation: "filter",
        options: &[("record", "48"), ("where", "f64@16 < 0.1")],
        suffix: ".filtered",
    },
    Case { name: "checksum sha256", operation: "checksum", options: &[], suffix: ".sha256" },
    Case {
        name: "checksum crc32c",
        operation: "checksum",
        options: &[("sum", "crc32c")],
        suffix: ".crc32c",
    },
    Case {
        name: "transpose",
        operation: "transpose",
        options: &[("fields", "8x6")],
        suffix: ".columns",
    },
];

/// Records as a simulation writes them: numbers with noise in their lower bits, and every fourth
/// MiB once more, as a grid that does not change is written at each step.
fn data(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let piece = (1 << 20) / RECORD * RECORD;
    let mut data = Vec::with_capacity(bytes + piece);
    while data.len() < bytes {
        if data.len() / piece % 4 == 3 {
            data.extend_from_within(..piece);
            continue;
        }
        for _ in 0..piece / RECORD {
            let number = (data.len() / RECORD) as u64;
            data.extend(number.to_le_bytes());
            data.extend((number / 1000).to_le_bytes());
            let uniform = (noise() >> 11) as f64 / (1_u64 << 53) as f64;
            data.extend(uniform.to_le_bytes());
            for _ in 0..3 {
                // 16 bits of noise in a number near 1.
                let near = f64::from_bits(1.0_f64.to_bits() | (noise() & 0xffff) << 36);
                data.extend(near.to_le_bytes());
            }
        }
    }
    data.truncate(bytes / RECORD * RECORD);
    data
}

struct Bench<'a> {
    options: &'a Options,
    site: &'a Site,
    source: &'a Path,
    bytes: u64,
}

/// What a run has shown.
struct Seen {
    program: f64,
    drained: f64,
    ready: Option<f64>,
    size: u64,
}

impl Bench<'_> {
    fn config(&self, case: Option<&Case>) -> String {
        let emulate = |(bandwidth, latency): (&str, &str)| {
            format!("emulate = {{ bandwidth = \"{bandwidth}\", latency = \"{latency}\" }}\n")
        };
        let mut text = format!(
            "[[backing]]\npath = \"pfs\"\nstripe = \"4MiB\"\n{}\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"16MiB\"\n\
             [[tier]]\nname = \"bb\"\nkind = \"file\"\npath = \"bb\"\ncapacity = \"{}MiB\"\n{}\
             [[rule]]\npath = \"*\"\nmode = \"staged\"\ntier = \"bb\"\n",
            emulate(STORE),
            (self.bytes >> 20) * 3 + 64,
            emulate(BURST_BUFFER)
        );
        if let Some(case) = case {
            text += &format!(
                "[[active]]\nmatch = \"data\"\noperation = \"{}\"\npatience = \"0s\"\n",
                case.operation
            );
            for (key, value) in case.options {
                text += &format!("{key} = \"{value}\"\n");
            }
        }
        text
    }

    /// A program writes the file under Forebay; the run ends when all is on the store.
    fn run(&self, case: Option<&Case>) -> Result<Seen, String> {
        self.site.clear()?;
        let config = self.site.path("forebay.toml");
        fs::write(&config, self.config(case)).map_err(|e| site::failed(&config, &e))?;
        let file = self.site.path("pfs").join("data");
        let mark = self.site.path("written");
        let forebay = &self.options.forebay;
        let mut command = Command::new(forebay);
        command.arg("run").arg("--config").arg(&config).args(["--", "sh", "-c"]);
        command.arg("cat \"$1\" > \"$2\" && : > \"$3\"").arg("sh");
        command.arg(self.source).arg(&file).arg(&mark);
        let (began, begun) = (SystemTime::now(), Instant::now());
        let ran = server::run(&mut command);
        let drained = begun.elapsed();
        end_manager(Command::new(forebay).arg("stop").arg("--config").arg(&config))?;
        ran?;
        site::size(&self.site.path("pfs"))?;
        let since = |path: &Path| {
            let made = fs::metadata(path).and_then(|found| found.modified());
            let made = made.map_err(|e| site::failed(path, &e))?;
            Ok::<f64, String>(made.duration_since(began).map_or(0.0, |took| took.as_secs_f64()))
        };
        let found = fs::metadata(&file).map_err(|e| site::failed(&file, &e))?.len();
        if found != self.bytes {
            return Err(format!("{}: {found} bytes of {}", file.display(), self.bytes));
        }
        let result = case.map(|case| {
            let mut name = file.clone().into_os_string();
            name.push(case.suffix);
            std::path::PathBuf::from(name)
        });
        Ok(Seen {
            program: since(&mark)?,
            drained: drained.as_secs_f64(),
            ready: result.as_deref().map(since).transpose()?,
            size: match &result {
                Some(path) => fs::metadata(path).map_err(|e| site::failed(path, &e))?.len(),
                None => 0,
            },
        })
    }

    /// CPU seconds of the operation on a plain file that is in the page cache.
    fn cpu(&self, case: &Case) -> Result<f64, String> {
        let result = self.site.path("result");
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" > /dev/null && times", "sh"]).arg(&self.options.forebay);
        command.args(["active", "run", case.operation]);
        for (key, value) in case.options {
            command.arg(format!("--{key}={value}"));
        }
        command.arg("-o").arg(&result).arg(self.source);
        let printed = server::run(&mut command)?;
        cpu_of(&printed).ok_or_else(|| format!("not what times(1) prints: {printed:?}"))
    }
}

/// User and system time of the children, in the second line: `0m0.01s 0m0.02s`.
fn cpu_of(printed: &str) -> Option<f64> {
    let seconds = |text: &str| {
        let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    printed.lines().nth(1)?.split_whitespace().map(seconds).sum()
}

/// Runs all, in turns.
///
/// # Errors
/// What could not be made or run.
pub fn active(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let site = Site::new(options)?;
    let source = site.path("source");
    let data = data(options.scale.of(192 << 20, 12 << 20));
    let made = fs::File::create(&source).and_then(|mut file| file.write_all(&data));
    made.map_err(|e| site::failed(&source, &e))?;
    let bench = Bench { options, site: &site, source: &source, bytes: data.len() as u64 };
    drop(data);
    let is_small = options.scale == crate::Scale::Small;
    let rounds = options.scale.of(ROUNDS, 1);
    let title = "Active buffering: operations on a file while it drains";
    let mut measured = Measured::new("active", title, rounds, is_small);
    measured.is_drawn = false;
    measured.notes.push(NOTES.to_owned());
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for case in std::iter::once(None).chain(CASES.iter().map(Some)) {
            let name = case.map_or(NONE, |case| case.name);
            say(&format!("round {round}: {name}"));
            let seen = bench.run(case)?;
            measured.add(PROGRAM, name, Unit::Time, seen.program);
            measured.add(DRAINED, name, Unit::Time, seen.drained);
            if let (Some(case), Some(ready)) = (case, seen.ready) {
                measured.add(READY, name, Unit::Time, ready);
                measured.add(SIZE, name, Unit::Share, seen.size as f64 / bench.bytes as f64);
                measured.add(CPU, name, Unit::Time, bench.cpu(case)?);
            }
            // Writes of one run are not to be in the next.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(measured)
}

const NOTES: &str = "A file of records of 48 bytes, a quarter of it there twice, is written to a burst \
    buffer of 1200 MB/s and 20 us, and drained to a store of 300 MB/s and 2 ms, which is read back and \
    compared. The operation runs beside the drain, under SCHED_IDLE. \"Start to drained\" has the start \
    of the node manager in it, and the writing of the result, which goes to the store past the emulation.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed() {
        assert_eq!(cpu_of("0m0.000s 0m0.000s\n1m0.500s 0m0.250s\n"), Some(60.75));
        assert_eq!(cpu_of("0m0.000s"), None);
    }

    #[test]
    fn data_is_of_whole_records_and_a_quarter_is_there_twice() {
        let data = data(8 << 20);
        assert_eq!(data.len() % RECORD, 0);
        let piece = (1 << 20) / RECORD * RECORD;
        assert!(data[..piece] == data[3 * piece..4 * piece]);
        assert!(data[..piece] != data[piece..2 * piece]);
    }
}
