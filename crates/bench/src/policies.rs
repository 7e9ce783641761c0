//! What the placement policies make a difference to, on emulated devices: one unmodified C program
//! that writes files in steps; an index which it reads again and again, six files that fit, and one
//! that is larger than the fast tiers; that reads a set beside a stream; and one large write.
//!
//! Nothing is flushed while a program runs, and it deletes its files at its end, so that the times
//! are those of the tiers.

use crate::measured::{Claim, Measured, Unit};
use crate::runner::end_manager;
use crate::site::{self, Site};
use crate::{Options, Scale};
use std::fs;
use std::path::Path;
use std::process::Command;

const KERNEL: &str = include_str!("../kernels/policies.c");
const ROUNDS: u32 = 5;

/// A policy as the lines of a configuration that name it.
const POLICIES: [(&str, &str); 4] = [
    (BANDWIDTH, "[placement]\npolicy = \"max-bandwidth\"\n"),
    (LOCALITY, "[placement]\npolicy = \"max-locality\"\n"),
    (HOT, "[placement]\npolicy = \"hot-data\"\n"),
    (
        "user-defined",
        "[placement]\npolicy = \"user-defined\"\n\
         [[rule]]\npath = \"huge\"\ntier = \"bb\"\n[[rule]]\npath = \"cold*\"\ntier = \"bb\"\n",
    ),
];
const BANDWIDTH: &str = "max-bandwidth";
const LOCALITY: &str = "max-locality";
const HOT: &str = "hot-data";
/// What the devices and the memory allow for the large write.
const BOUND: &str = "bound";

/// Bytes a second of the emulated devices, written and read.
const NVME: (u64, u64) = (1_034_000_000, 1_208_000_000);
const BURST_BUFFER: (u64, u64) = (345_000_000, 416_000_000);
const STORE: (u64, u64) = (23_000_000, 27_600_000);
/// At small scale runs do not wait for it.
const STORE_SMALL: (u64, u64) = (736_000_000, 883_200_000);

/// The works: the kernel's name of each, and what it is.
const WORKS: [(&str, &str); 5] = [
    ("data", "write, data-intensive"),
    ("compute", "write, compute-intensive"),
    ("mixed", "write files of all sizes"),
    ("hot", "read a hot set beside a stream"),
    ("large", "one large write"),
];

/// Runs every work under every policy, in alternating rounds.
///
/// # Errors
/// What could not be made or run. The files are removed.
pub fn policies(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let ram_mib = options.scale.of(64, 16);
    let site = Site::new(options)?;
    let program = site.compile("policies", KERNEL)?;
    let is_small = options.scale == Scale::Small;
    let rounds = options.scale.of(ROUNDS, 1);
    let title = "Placement policies on emulated devices";
    let mut measured = Measured::new("policies", title, rounds, is_small);
    measured.notes.push(format!(
        "RAM {ram_mib} MiB, NVMe {} MiB (writes {} MB/s), burst buffer {} MiB ({} MB/s), store {} MB/s; \
         trigger on-exit, the files are deleted at the end",
        2 * ram_mib,
        NVME.0 / 1_000_000,
        8 * ram_mib,
        BURST_BUFFER.0 / 1_000_000,
        options.scale.of(STORE, STORE_SMALL).0 / 1_000_000
    ));
    let mut round = 0;
    while measured.next_round(options, &mut round) {
        for turn in 0..POLICIES.len() {
            let (policy, lines) = POLICIES[(turn + round as usize) % POLICIES.len()];
            for (work, what) in WORKS {
                say(&format!("round {round}: {what}, {policy}"));
                let run = Run { options, site: &site, program: &program, ram_mib, work };
                let seen = run.run(lines).map_err(|e| format!("{what}, {policy}: {e}"))?;
                seen.add_to(&mut measured, policy, work, what, ram_mib);
            }
        }
    }
    let [data, compute, _, hot, large] = WORKS.map(|(_, what)| what);
    measured.claims = vec![
        Claim::ratio("data-intensive", (data, LOCALITY), (data, BANDWIDTH), 1.0),
        Claim::ratio("compute-intensive", (compute, BANDWIDTH), (compute, LOCALITY), 2.0),
        Claim::ratio("hot set", (hot, HOT), (hot, BANDWIDTH), 2.0),
        Claim::ratio("large write", (large, BANDWIDTH), (large, BOUND), 1.0 / 1.15),
    ];
    measured.claims[1].paper = Some(4.0);
    Ok(measured)
}

/// One run of the program.
struct Run<'a> {
    options: &'a Options,
    site: &'a Site,
    program: &'a Path,
    ram_mib: u64,
    work: &'a str,
}

/// What came of it.
struct Seen {
    /// Names, bytes and seconds that the program printed.
    printed: Vec<(String, u64, f64)>,
    /// Bytes in each tier when the program had ended.
    lies: Vec<(String, u64)>,
    /// Bytes that moved, by from and to.
    moved: Vec<(String, u64)>,
}

impl Run<'_> {
    fn config(&self, lines: &str) -> String {
        let ram = self.ram_mib;
        let emulated = |(write, read): (u64, u64), latency: &str| {
            format!(
                "emulate = {{ bandwidth = {{ read = \"{}MB/s\", write = \"{}MB/s\" }}, latency = \"{latency}\" }}\n",
                read as f64 / 1e6,
                write as f64 / 1e6
            )
        };
        let file = |name: &str, mib: u64, device: String| {
            format!(
                "[[tier]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{name}\"\ncapacity = \"{mib}MiB\"\n{device}"
            )
        };
        format!(
            "{lines}[flush]\ntrigger = \"on-exit\"\n[[backing]]\npath = \"pfs\"\n{}\
             [[tier]]\nname = \"ram\"\nkind = \"ram\"\ncapacity = \"{ram}MiB\"\n{}{}",
            emulated(self.options.scale.of(STORE, STORE_SMALL), "4ms"),
            file("nvme", 2 * ram, emulated(NVME, "20us")),
            file("bb", 8 * ram, emulated(BURST_BUFFER, "60us"))
        )
    }

    fn run(&self, lines: &str) -> Result<Seen, String> {
        self.site.clear()?;
        let config = self.site.path("forebay.toml");
        fs::write(&config, self.config(lines)).map_err(|e| site::failed(&config, &e))?;
        let (trace, status) = (self.site.path("trace.csv"), self.site.path("status.json"));
        let folder = self.site.path("pfs");
        // What is still on its way down is on its way to where it was placed; what was removed is
        // forgotten before the end of the run drains the rest.
        let script = "\"$0\" \"$1\" \"$2\" \"$3\" && sleep 1 && \"$4\" status --json > \"$5\" && rm \"$1\"/*";
        let mut command = Command::new(&self.options.forebay);
        command.arg("run").arg("--config").arg(&config).arg("--trace").arg(&trace);
        command.args(["--", "sh", "-c", script]).arg(self.program).arg(&folder).arg(self.work);
        command.arg(self.ram_mib.to_string()).arg(&self.options.forebay).arg(&status);
        let ran = command.output().map_err(|e| site::failed(&self.options.forebay, &e))?;
        let ended = end_manager(
            Command::new(&self.options.forebay).arg("stop").arg("--config").arg(&config),
        );
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr);
            return Err(format!("ended with {}\n{}", ran.status, said.trim_end()));
        }
        ended?;
        let read = |path: &Path| fs::read_to_string(path).map_err(|e| site::failed(path, &e));
        Ok(Seen {
            printed: printed(&String::from_utf8_lossy(&ran.stdout))?,
            lies: lies(&read(&status)?, &config)?,
            moved: moved(&read(&trace)?),
        })
    }
}

impl Seen {
    fn add_to(&self, measured: &mut Measured, policy: &str, work: &str, what: &str, ram_mib: u64) {
        let mut memcpy = None;
        for (name, bytes, seconds) in &self.printed {
            match name.as_str() {
                "memcpy" => memcpy = Some(*bytes as f64 / seconds),
                _ => measured.add(what, policy, Unit::Bandwidth(*bytes), 1.0 / seconds),
            }
            if let Some(memcpy) = memcpy
                && name == "write"
                && policy == BANDWIDTH
            {
                let below = bytes.saturating_sub(ram_mib << 20) as f64;
                let least = (*bytes as f64 / memcpy).max(below / (NVME.0 + BURST_BUFFER.0) as f64);
                measured.add(what, BOUND, Unit::Bandwidth(*bytes), 1.0 / least);
            }
        }
        for (tier, bytes) in &self.lies {
            measured.add(&format!("{work}: in {tier}"), policy, Unit::Memory, *bytes as f64);
        }
        for (way, bytes) in &self.moved {
            measured.add(&format!("{work}: {way}"), policy, Unit::Memory, *bytes as f64);
        }
    }
}

/// The lines that the program printed.
fn printed(said: &str) -> Result<Vec<(String, u64, f64)>, String> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (name, bytes, ns) = (words.next()?, words.next()?, words.next()?);
        Some((name.to_owned(), bytes.parse().ok()?, ns.parse::<f64>().ok()? / 1e9))
    };
    let lines: Option<Vec<_>> = said.lines().map(line).collect();
    lines
        .filter(|lines| !lines.is_empty())
        .ok_or_else(|| format!("not a kernel's report: {said:?}"))
}

/// Bytes in each tier, of the instance that serves this configuration's directory.
fn lies(status: &str, config: &Path) -> Result<Vec<(String, u64)>, String> {
    let wrong = || format!("not a status of {}: {status}", config.display());
    let all: serde_json::Value = serde_json::from_str(status).map_err(|_| wrong())?;
    let folder = config.parent().and_then(|folder| folder.canonicalize().ok()).ok_or_else(wrong)?;
    let folder = folder.to_string_lossy();
    let is_ours = |instance: &&serde_json::Value| instance["stores"].to_string().contains(&*folder);
    let found = all.as_array().ok_or_else(wrong)?.iter().find(is_ours).ok_or_else(wrong)?;
    let tier = |tier: &serde_json::Value| {
        Some((tier["name"].as_str()?.to_owned(), tier["used"].as_u64()?))
    };
    let tiers = found["tiers"].as_array().ok_or_else(wrong)?;
    tiers.iter().map(tier).collect::<Option<Vec<_>>>().ok_or_else(wrong)
}

/// Bytes of each way in a trace, in order of the ways' names.
fn moved(trace: &str) -> Vec<(String, u64)> {
    let mut ways = std::collections::BTreeMap::<String, u64>::new();
    for line in trace.lines().skip(1) {
        let words: Vec<_> = line.split(',').collect();
        let [_, _, what, from, to, bytes] = words[..] else { continue };
        *ways.entry(format!("{what} {from} to {to}")).or_default() += bytes.parse().unwrap_or(0);
    }
    ways.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_traces_are_read() {
        assert_eq!(printed("write 10 2000000000\n").unwrap(), [("write".to_owned(), 10, 2.0)]);
        assert!(printed("").is_err() && printed("write 10").is_err());
        let trace =
            "start_us,end_us,action,from,to,bytes\n1,2,demote,ram,bb,5\n2,3,demote,ram,bb,6\n";
        assert_eq!(moved(trace), [("demote ram to bb".to_owned(), 11)]);
    }
}
