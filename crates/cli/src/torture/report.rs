//! What a torture has done and found.

use super::counts::Counts;
use crate::drain::bytes;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Sums of the whole torture.
#[derive(Default)]
pub struct Report {
    /// Of all workers.
    pub counts: Counts,
    /// Workers that were killed.
    pub workers_killed: u64,
    /// Node managers that were killed.
    pub managers_killed: u64,
    /// How often everything was killed at once.
    pub all_killed: u64,
    /// How often memory was lost, too.
    pub memory_lost: u64,
    /// Pools that `forebay recover` drained.
    pub recoveries: u64,
    /// Scripts of faults that were in force.
    pub scripts: u64,
    /// Runs that ended with data kept in the tiers, while the store failed.
    pub kept: u64,
    /// Bytes compared on the store itself, without Forebay.
    pub compared: u64,
    /// Opens and writes that the manager counted.
    pub intercepted: u64,
    /// What was wrong.
    pub losses: Vec<String>,
}

impl Report {
    /// One line on a terminal, again and again in the same place.
    pub fn progress(&self, since: Duration) {
        if std::io::stderr().is_terminal() {
            eprint!(
                "\r{:4} s: {} operations, {} crashes, {} fault scripts, {} verified, {} losses ",
                since.as_secs(),
                self.counts.operations,
                self.crashes(),
                self.scripts,
                bytes(self.counts.verified + self.compared),
                self.losses.len(),
            );
            let _ = std::io::stderr().flush();
        }
    }

    fn crashes(&self) -> u64 {
        self.workers_killed + self.managers_killed + self.all_killed + self.memory_lost
    }

    /// The whole report.
    pub fn text(&self, seed: u64, took: Duration) -> String {
        let mut text = format!(
            "forebay torture, seed {seed}, {} s\n  operations  {}, {} written, {} failed as the faults \
             would have it\n  crashes     {}: {} workers, {} node managers, {} times everything, {} times with memory\n  \
             recoveries  {}\n  faults      {} scripts; {} runs ended with data kept in the tiers\n  \
             verified    {} by the workers, {} on the store itself\n  losses      {}\n",
            took.as_secs(),
            self.counts.operations,
            bytes(self.counts.written),
            self.counts.errors,
            self.crashes(),
            self.workers_killed,
            self.managers_killed,
            self.all_killed,
            self.memory_lost,
            self.recoveries,
            self.scripts,
            self.kept,
            bytes(self.counts.verified),
            bytes(self.compared),
            match self.losses.len() {
                0 => "none".to_owned(),
                count => count.to_string(),
            },
        );
        for loss in &self.losses {
            text.push_str(&format!("    {loss}\n"));
        }
        text
    }
}
