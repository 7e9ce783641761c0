//! What is read ahead of a program, over an emulated store: of each pattern the share of the reads
//! that wait, where the program takes nine tenths of what the store gives, and the time of a
//! program that does nothing but read, over what the store takes for the bytes; of reads at random
//! what was brought up in vain. Beside it the same without reading ahead.

use crate::measured::{Claim, Measured, Unit};
use crate::micro::{Backing, Forebay};
use crate::site::{self, Site};
use crate::{Options, Scale, server};
use std::fs::{self, File};
use std::path::Path;

const KERNEL: &str = include_str!("../kernels/prefetch.c");
const BLOCK: u64 = 256 << 10;
const ROUNDS: u32 = 3;
/// The emulated store.
const BANDWIDTH: u64 = 400_000_000;
const LATENCY_NS: u64 = 1_000_000;
/// What the program takes of that when it does not only read.
const SHARE: f64 = 0.9;
const PATTERNS: [&str; 4] = ["sequence", "backwards", "stride", "tile"];
const RANDOM: &str = "random";
const SYSTEMS: [(&str, bool); 2] = [(AHEAD, true), ("without", false)];
const AHEAD: &str = "reading ahead";

/// Runs every pattern with and without reading ahead.
///
/// # Errors
/// What could not be made or run. The files are removed.
pub fn prefetch(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Measured, String> {
    let blocks = options.scale.of(4000, 400);
    let memory = Site::below(Path::new("/dev/shm"), blocks * BLOCK)?;
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let store = Site::below(&folder, blocks * BLOCK)?;
    let program = memory.compile("prefetch", KERNEL)?;
    let rounds = options.rounds.unwrap_or(options.scale.of(ROUNDS, 1)).max(1);
    let title = "Reading ahead over an emulated store";
    let mut measured = Measured::new("prefetch", title, rounds, options.scale == Scale::Small);
    measured.is_drawn = false;
    measured.notes.push(format!(
        "store {} MB/s, {} ms; {blocks} reads of 256 KiB, the first quarter warms up; a read of \
         more than {} ms has waited",
        BANDWIDTH / 1_000_000,
        LATENCY_NS / 1_000_000,
        LATENCY_NS as f64 / 2e6
    ));
    for round in 1..=rounds {
        for turn in 0..SYSTEMS.len() {
            let (system, is_on) = SYSTEMS[(turn + round as usize) % SYSTEMS.len()];
            for pattern in PATTERNS.into_iter().chain([RANDOM]) {
                say(&format!("round {round} of {rounds}: {pattern}, {system}"));
                let name = format!("{pattern}-{round}-{is_on}");
                let run =
                    Run { options, memory: &memory, store: &store, program: &program, blocks };
                let read = |takes_ns: u64, what: &str| {
                    run.of(pattern, &format!("{name}-{what}"), is_on, takes_ns)
                };
                let each_ns = BLOCK as f64 * 1e9 / BANDWIDTH as f64;
                if pattern == RANDOM {
                    let seen = read(0, "fast")?;
                    measured.add(&in_vain(pattern), system, Unit::Share, seen.in_vain);
                    continue;
                }
                let seen = read((each_ns / SHARE) as u64, "paced")?;
                measured.add(&waited(pattern), system, Unit::Share, seen.waited);
                let seen = read(0, "fast")?;
                measured.add(&time(pattern), system, Unit::Count, seen.read_ns / each_ns);
            }
        }
    }
    let claims = PATTERNS.iter().flat_map(|pattern| {
        [Claim::at_most(&waited(pattern), AHEAD, 0.05), Claim::at_most(&time(pattern), AHEAD, 1.05)]
    });
    measured.claims = claims.chain([Claim::at_most(&in_vain(RANDOM), AHEAD, 0.05)]).collect();
    Ok(measured)
}

fn waited(pattern: &str) -> String {
    format!("{pattern}: reads that wait, at {SHARE} of the store's speed")
}

fn time(pattern: &str) -> String {
    format!("{pattern}: time over bytes / bandwidth, reading only")
}

fn in_vain(pattern: &str) -> String {
    format!("{pattern}: brought up in vain, of what is read")
}

struct Run<'a> {
    options: &'a Options,
    memory: &'a Site,
    store: &'a Site,
    program: &'a Path,
    blocks: u64,
}

/// What came of a run.
struct Seen {
    /// The share of the reads after the warm-up that waited.
    waited: f64,
    /// Nanoseconds for each of them.
    read_ns: f64,
    /// Blocks that were brought up and not read, by blocks that were read.
    in_vain: f64,
}

impl Run<'_> {
    /// Reads a file that no tier has, for each block of which the program takes so long.
    fn of(&self, pattern: &str, name: &str, is_on: bool, takes_ns: u64) -> Result<Seen, String> {
        let folder = self.store.folder(name)?;
        let path = folder.join("file");
        let file = File::create(&path).map_err(|e| site::failed(&path, &e))?;
        // The tile is the longest: 64 blocks for each 16 that are read.
        file.set_len((self.blocks + 16) * 4 * BLOCK).map_err(|e| site::failed(&path, &e))?;
        let lines = format!(
            "emulate = {{ bandwidth = \"{BANDWIDTH}B/s\", latency = \"{LATENCY_NS}ns\" }}\n"
        );
        let backing = Backing { path: &folder, lines: &lines };
        let policy = format!("[placement]\nprefetch = {is_on}\n[flush]\ntrigger = \"on-exit\"\n");
        let ram = self.blocks * BLOCK / 4;
        let config = format!("{name}.toml");
        let forebay =
            Forebay::with_policy(self.options, self.memory, &config, &backing, ram, &policy)?;
        let manager = forebay.serve()?;
        let mut command = forebay.run(self.program);
        command.arg(&path).arg(pattern).arg(self.blocks.to_string());
        command.arg(takes_ns.to_string()).arg((LATENCY_NS / 2).to_string());
        let said = server::run(&mut command)?;
        let (guessed, hits) = (forebay.count("guessed")?, forebay.count("guess_hits")?);
        drop(manager);
        fs::remove_dir_all(&folder).map_err(|e| site::failed(&folder, &e))?;
        let wrong = || format!("not a line of the program's: {said:?}");
        let numbers: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
        let [reads, waited, ns] = numbers.map_err(|_| wrong())?[..] else { return Err(wrong()) };
        let vain = guessed.saturating_sub(hits);
        Ok(Seen {
            waited: waited / reads,
            read_ns: ns / reads,
            in_vain: vain as f64 / self.blocks as f64,
        })
    }
}
