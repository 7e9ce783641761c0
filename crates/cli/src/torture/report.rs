//! What a torture has done and found.

use super::aims::{Aim, Aimed};
use super::counts::{Counts, Fates};
use super::goals::{Goals, Reached};
use super::lists::Listed;
use super::operations::ALL;
use super::other_user::Attempts;
use super::points::{BUILT, KNOWN, Seen};
use crate::text::bytes;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two lines of progress where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Kills: how many were sent, and how many of them hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// Signals that were sent.
    pub sent: u64,
    /// Those that found a process at work.
    pub hit: u64,
}

/// Sums of the whole torture.
#[derive(Default)]
pub struct Report {
    /// Of all workers.
    pub counts: Counts,
    /// Of all keepers.
    pub fates: Fates,
    /// Runs that were killed with keeper and program.
    pub runs: Kills,
    /// Node managers that were killed; hit are those that had something to lose.
    pub managers: Kills,
    /// Everything at once; hit are those with programs at work.
    pub all: Kills,
    /// How often memory was lost, too.
    pub memory_lost: u64,
    /// Processes that killed themselves at points.
    pub crashes: Seen,
    /// Threads that paused at points.
    pub pauses: Seen,
    /// Node managers that were stopped and continued by signals.
    pub managers_frozen: u64,
    /// `forebay stop` under load: all, and those that said that they could not.
    pub stops: (u64, u64),
    /// Other commands under load: all, and those that said that they could not.
    pub commands: BTreeMap<&'static str, (u64, u64)>,
    /// Node managers that were seen.
    pub starts: u64,
    /// Pools that `forebay recover` drained when everything had ended.
    pub recoveries: u64,
    /// Scripts of faults that were in force.
    pub scripts: u64,
    /// Faults that hit, by device, operation and kind.
    pub faults: BTreeMap<String, u64>,
    /// Runs that ended with data kept in the tiers, or could not start.
    pub kept: u64,
    /// What another user has tried.
    pub attempts: Attempts,
    /// Bytes compared on the store itself, without Forebay.
    pub compared: u64,
    /// How often all files were.
    pub comparisons: u64,
    /// Operations that were done since.
    pub uncompared: u64,
    /// Opens and writes that the managers counted.
    pub intercepted: u64,
    /// Rounds that were begun.
    pub rounds: u64,
    /// What came of the standing lists.
    pub lists: Vec<Listed>,
    /// What came of the list of points.
    pub aimed: Aimed,
    /// On full tiers: writes that waited for room or went around them, at most in one pool.
    pub crowded: Option<u64>,
    /// What was left out, and how to get it.
    pub left_out: Vec<String>,
    /// What was wrong, with what led to it.
    pub losses: Vec<String>,
    /// The list that is being played, and how far.
    pub playing: Option<String>,
    /// When progress was shown last.
    pub shown: Option<Instant>,
}

impl Report {
    /// What counts for the goals.
    pub fn reached(&self) -> Reached {
        Reached {
            kills: self.kills().hit,
            pauses: self.pauses.count(),
            operations: self.counts.operations,
        }
    }

    fn kills(&self) -> Kills {
        let Fates { kills_sent, kills_hit, points_hit, .. } = self.fates;
        let nodes = self.crashes.count().saturating_sub(points_hit);
        let themselves = points_hit + nodes;
        Kills {
            sent: kills_sent + self.runs.sent + self.managers.sent + self.all.sent + themselves,
            hit: kills_hit + self.runs.hit + self.managers.hit + self.all.hit + themselves,
        }
    }

    /// One line, again and again in the same place of a terminal; elsewhere now and then.
    pub fn progress(&mut self, since: Duration) {
        let is_terminal = std::io::stderr().is_terminal();
        if !is_terminal && self.shown.is_some_and(|shown| shown.elapsed() < LINE_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let mut line = format!(
            "{:4} s, round {}: {} operations, {} kills, {} pauses, {} stops, {} verified, {} losses",
            since.as_secs(),
            self.rounds,
            self.counts.operations,
            self.kills().hit,
            self.pauses.count(),
            self.stops.0,
            bytes(self.counts.verified + self.counts.stored + self.compared),
            self.losses.len(),
        );
        if let Some(playing) = &self.playing {
            line = format!("{:4} s, {playing}, {} losses", since.as_secs(), self.losses.len());
        }
        match is_terminal {
            true => eprint!("\r{line} "),
            false => eprintln!("{line}"),
        }
        let _ = std::io::stderr().flush();
    }

    /// The whole report.
    pub fn text(&self, seed: u64, took: Duration, goals: &Goals) -> String {
        let mut text = format!("forebay torture, seed {seed}, {} s\n", took.as_secs());
        self.write(&mut text, took, goals).unwrap_or_default();
        text
    }

    fn write(&self, text: &mut String, took: Duration, goals: &Goals) -> std::fmt::Result {
        let Counts { operations, written, verified, stored, errors, kinds } = &self.counts;
        let rate = |count: u64| count as f64 / took.as_secs_f64().max(1e-3);
        writeln!(
            text,
            "  operations  {operations}, {:.0} a second, {} written, {errors} failed as a fault of a moment ago \
             would have it",
            rate(*operations),
            bytes(*written)
        )?;
        self.write_kills(text, rate)?;
        self.write_pauses(text, rate)?;
        let Fates { started, frozen, .. } = self.fates;
        writeln!(
            text,
            "  stopped     {frozen} programs and {} node managers by SIGSTOP, and continued",
            self.managers_frozen
        )?;
        writeln!(
            text,
            "  stops       {} under load, of which {} said that data is kept",
            self.stops.0, self.stops.1
        )?;
        writeln!(
            text,
            "  starts      {started} programs, {} node managers, {} recoveries",
            self.starts, self.recoveries
        )?;
        let commands = self.commands.iter();
        let commands: Vec<_> = commands
            .map(|(name, (all, failed))| format!("{all} {name} ({failed} refused)"))
            .collect();
        writeln!(text, "  commands    {}", or_none(commands.join(", ")))?;
        writeln!(
            text,
            "  faults      {} hits of {} scripts",
            self.faults.values().sum::<u64>(),
            self.scripts
        )?;
        for (what, count) in &self.faults {
            writeln!(text, "    {count:>9} {what}")?;
        }
        writeln!(
            text,
            "  users       {} attempts of another user: {:?}",
            self.attempts.count(),
            self.attempts
        )?;
        writeln!(text, "  covered     operations by kind")?;
        for ((_, name, _), count) in ALL.iter().zip(kinds) {
            writeln!(text, "    {count:>9} {name}")?;
        }
        writeln!(
            text,
            "  verified    {} by the programs, {} on the store by them, {} on the store in {} comparisons of all \
             files; {} operations since the last",
            bytes(*verified),
            bytes(*stored),
            bytes(self.compared),
            self.comparisons,
            self.uncompared
        )?;
        writeln!(
            text,
            "  kept        {} runs ended with data kept in the tiers, or could not begin",
            self.kept
        )?;
        for what in &self.left_out {
            writeln!(text, "  left out    {what}")?;
        }
        text.push_str(&goals.text(&self.reached()));
        if let Some(crowded) = self.crowded {
            writeln!(
                text,
                "  full-tiers  up to {crowded} writes in one pool waited for room or went around the tiers"
            )?;
        }
        let Aimed { played, missed } = &self.aimed;
        if *played > 0 {
            let (all, hit) = (Aim::count(), *played - missed.len() as u64);
            writeln!(
                text,
                "  points      {hit} of {played} cases came to their point; the list has {all}"
            )?;
            missed.iter().try_for_each(|what| writeln!(text, "    NOT REACHED: {what}"))?;
        }
        self.lists.iter().for_each(|listed| text.push_str(&listed.text()));
        let losses = match self.losses.len() {
            0 => "none".to_owned(),
            count => count.to_string(),
        };
        writeln!(text, "  losses      {losses}")?;
        self.losses.iter().try_for_each(|loss| writeln!(text, "    {loss}"))
    }

    fn write_kills(&self, text: &mut String, rate: impl Fn(u64) -> f64) -> std::fmt::Result {
        let (Kills { sent, hit }, fates) = (self.kills(), &self.fates);
        writeln!(text, "  kills       {hit} effective of {sent} sent, {:.1} a second", rate(hit))?;
        let nodes = self.crashes.count().saturating_sub(fates.points_hit);
        let kinds = [
            ("programs", fates.kills_hit, fates.kills_sent),
            ("programs, by themselves at a point", fates.points_hit, fates.points_hit),
            ("runs with their programs", self.runs.hit, self.runs.sent),
            ("node managers", self.managers.hit, self.managers.sent),
            ("node managers, by themselves at a point", nodes, nodes),
            ("everything", self.all.hit, self.all.sent),
        ];
        for (name, hit, sent) in kinds {
            writeln!(text, "    {hit:>9} of {sent} {name}")?;
        }
        writeln!(text, "              {} times memory was lost, too", self.memory_lost)?;
        if BUILT {
            writeln!(text, "              at points: {}", or_none(self.crashes.text()))?;
        }
        Ok(())
    }

    fn write_pauses(&self, text: &mut String, rate: impl Fn(u64) -> f64) -> std::fmt::Result {
        if !BUILT {
            return writeln!(
                text,
                "  pauses      left out, with all points: this build has no debug assertions; `cargo run -p \
                 forebay -- torture` has"
            );
        }
        let count = self.pauses.count();
        writeln!(
            text,
            "  pauses      {count} effective, {:.1} a second, at {} of {} points: {}",
            rate(count),
            self.pauses.points(),
            KNOWN.len(),
            or_none(self.pauses.text())
        )?;
        let missed = self.pauses.missed();
        if !missed.is_empty() && missed.len() < KNOWN.len() {
            writeln!(text, "              none at {}", missed.join(", "))?;
        }
        Ok(())
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}
