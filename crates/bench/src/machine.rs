//! The machine that something was measured on.

use forebay_pool::clock;
use std::fmt;
use std::fs;
use std::thread;

/// What a reader has to know about it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
    /// Processes that ran or wanted to, in the minute before.
    load: String,
    /// In UTC.
    day: String,
}

impl Machine {
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
        let processor =
            model.map_or("unknown processor", |name| name.trim_start_matches([':', '\t', ' ']));
        Machine {
            processor: processor.to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            day: today(),
        }
    }

    /// Processors that this process may use.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Bytes that programs can still take.
    pub fn free_bytes() -> Option<u64> {
        let memory = fs::read_to_string("/proc/meminfo").ok()?;
        let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    }
}

fn today() -> String {
    let (year, month, day) = clock::date(clock::realtime_ns() / 1_000_000_000 / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, kernel, load, day } = self;
        write!(f, "{day}, {cores} cores of {processor}, Linux {kernel}, load {load} at the start")
    }
}
