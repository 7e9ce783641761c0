//! The results as a table for people, and as JSON.

use std::fmt::Write as _;

use forebay_simulator::Outcome;
use serde_json::{Value, json};

use super::scenario::{MEASURES, Measure, Ratio, Scenario};

/// Room for the names of the strategies.
const NAME: usize = 26;
/// Room for a number of seconds, and a paper's number beside it.
const CELL: usize = 17;
const COLUMNS: &[(&str, Measure)] = &[
    ("open s", Measure::Open),
    ("write s", Measure::Write),
    ("read s", Measure::Read),
    ("flush s", Measure::Flush),
    ("total s", Measure::Total),
];

impl Measure {
    /// Seconds of an outcome.
    pub fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Open => outcome.open_s,
            Self::Write => outcome.write_s,
            Self::Read => outcome.read_s,
            Self::Io => outcome.io_s(),
            Self::Flush => outcome.flush_s,
            Self::Total => outcome.total_s(),
        }
    }

    pub fn name(self) -> &'static str {
        MEASURES.iter().find(|(_, measure)| *measure == self).map_or("", |(name, _)| name)
    }
}

impl Scenario {
    /// What a paper says of a case and strategy.
    pub fn paper(&self, case: usize, strategy: usize, measure: Measure) -> Option<f64> {
        let of = |r: &&super::scenario::Reference| r.case == case && r.strategy == strategy;
        let seconds = self.references.iter().find(of)?.seconds.iter();
        { seconds }.find(|(of, _)| *of == measure).map(|(_, seconds)| *seconds)
    }
}

impl Ratio {
    /// The ratio that was simulated.
    pub fn simulated(&self, outcomes: &[Vec<Outcome>]) -> f64 {
        let of = |strategy: usize| self.measure.of(&outcomes[self.case][strategy]);
        of(self.of) / of(self.over)
    }
}

/// The results for people.
pub(super) fn table(scenario: &Scenario, outcomes: &[Vec<Outcome>]) -> String {
    let mut text = format!("{}\n", scenario.title);
    if !scenario.references.is_empty() {
        text += "In brackets: what the paper says.\n";
    }
    // Columns in which nothing took time are left out.
    let takes_time =
        |measure: Measure| outcomes.iter().flatten().any(|outcome| measure.of(outcome) >= 0.05);
    let columns: Vec<_> =
        COLUMNS.iter().filter(|(_, measure)| takes_time(*measure)).copied().collect();
    for (index, case) in scenario.cases.iter().enumerate() {
        let _ = write!(text, "\n{:NAME$}", case.name);
        for (name, _) in &columns {
            let _ = write!(text, "{name:>CELL$}");
        }
        text += "  written to\n";
        for (number, strategy) in scenario.strategies.iter().enumerate() {
            let outcome = &outcomes[index][number];
            let _ = write!(text, "  {:width$}", strategy.name, width = NAME - 2);
            for &(_, measure) in &columns {
                let cell = match scenario.paper(index, number, measure) {
                    Some(paper) => format!("{:.1} ({paper:.0})", measure.of(outcome)),
                    None => format!("{:.1}", measure.of(outcome)),
                };
                let _ = write!(text, "{cell:>CELL$}");
            }
            let _ = writeln!(text, "  {}", shares(outcome));
            for line in remarks(outcome) {
                let _ = writeln!(text, "  {:width$}  {line}", "", width = NAME - 4);
            }
        }
    }
    if !scenario.ratios.is_empty() {
        let _ =
            writeln!(text, "\n{:66}{:>10}{:>10}", "how many times as long", "simulated", "paper");
    }
    for ratio in &scenario.ratios {
        let name = |strategy: usize| &scenario.strategies[strategy].name;
        let what = format!(
            "{}: {}, {} / {}",
            scenario.cases[ratio.case].name,
            ratio.measure.name(),
            name(ratio.of),
            name(ratio.over)
        );
        let _ = writeln!(text, "  {what:64}{:10.2}{:10.1}", ratio.simulated(outcomes), ratio.paper);
    }
    text
}

/// Where ranks wrote: the share of each tier, and of the store.
fn shares(outcome: &Outcome) -> String {
    if outcome.written == 0 {
        return "-".to_owned();
    }
    let percent = |bytes: u64| bytes as f64 / outcome.written as f64 * 100.0;
    let tiers = outcome.tiers.iter().map(|tier| (tier.name.as_str(), tier.written));
    let places = tiers.chain([("store", outcome.direct)]).filter(|(_, bytes)| *bytes > 0);
    let shares: Vec<_> =
        places.map(|(name, bytes)| format!("{name} {:.0} %", percent(bytes))).collect();
    shares.join(", ")
}

/// What went wrong.
fn remarks(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    if outcome.lost > 0 {
        let files = outcome.lost_files.len();
        lines.push(format!("lost: {} of {files} files", bytes(outcome.lost)));
    }
    if outcome.unreadable > 0 {
        lines.push(format!("reads that failed: {}", bytes(outcome.unreadable)));
    }
    if outcome.stalled {
        lines.push("stalled: what was left to move had no bandwidth".to_owned());
    }
    lines
}

fn bytes(bytes: u64) -> String {
    let (unit, scale) = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)]
        .into_iter()
        .find(|(_, scale)| bytes >= *scale)
        .unwrap_or(("B", 1));
    format!("{:.1} {unit}", bytes as f64 / scale as f64)
}

/// All numbers.
pub(super) fn json(scenario: &Scenario, outcomes: &[Vec<Outcome>]) -> String {
    let outcome_of = |index: usize, number: usize| {
        let mut object = outcome(&scenario.strategies[number].name, &outcomes[index][number]);
        for &(name, measure) in MEASURES {
            if let Some(seconds) = scenario.paper(index, number, measure) {
                object["paper"][name] = rounded(seconds);
            }
        }
        object
    };
    let cases = scenario.cases.iter().enumerate().map(|(index, case)| {
        let strategies = 0..scenario.strategies.len();
        json!({
            "case": case.name,
            "nodes": case.cluster.nodes,
            "ranks": case.cluster.ranks(),
            "outcomes": strategies.map(|number| outcome_of(index, number)).collect::<Vec<_>>(),
        })
    });
    let ratios = scenario.ratios.iter().map(|ratio| {
        json!({
            "case": scenario.cases[ratio.case].name,
            "measure": ratio.measure.name(),
            "of": scenario.strategies[ratio.of].name,
            "over": scenario.strategies[ratio.over].name,
            "simulated": rounded(ratio.simulated(outcomes)),
            "paper": rounded(ratio.paper),
        })
    });
    let all = json!({
        "title": scenario.title,
        "seed": scenario.seed,
        "cases": cases.collect::<Vec<_>>(),
        "ratios": ratios.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

fn outcome(strategy: &str, outcome: &Outcome) -> Value {
    let tiers = outcome.tiers.iter().map(|tier| {
        json!({
            "name": tier.name,
            "capacity_bytes": tier.capacity,
            "peak_bytes": tier.peak,
            "written_bytes": tier.written,
            "read_bytes": tier.read,
            "demoted_bytes": tier.demoted,
            "promoted_bytes": tier.promoted,
            "evicted_bytes": tier.evicted,
        })
    });
    json!({
        "strategy": strategy,
        "write_s": rounded(outcome.write_s),
        "read_s": rounded(outcome.read_s),
        "open_s": rounded(outcome.open_s),
        "flush_s": rounded(outcome.flush_s),
        "total_s": rounded(outcome.total_s()),
        "ranks_end_s": rounded(outcome.ranks_end_s),
        "end_s": rounded(outcome.end_s),
        "written_bytes": outcome.written,
        "read_bytes": outcome.read,
        "direct_bytes": outcome.direct,
        "flushed_bytes": outcome.flushed,
        "safe_bytes": outcome.safe,
        "replaced_bytes": outcome.replaced,
        "kept_bytes": outcome.kept,
        "lost_bytes": outcome.lost,
        "lost_files": outcome.lost_files,
        "unreadable_bytes": outcome.unreadable,
        "store_busy_s": rounded(outcome.store_busy_s),
        "plans": outcome.plans,
        "plans_remembered": outcome.remembered,
        "moments": outcome.moments,
        "stalled": outcome.stalled,
        "tiers": tiers.collect::<Vec<_>>(),
    })
}

/// Six decimals: a microsecond. JSON has no infinities: they are null.
fn rounded(number: f64) -> Value {
    json!((number * 1e6).round() / 1e6)
}
