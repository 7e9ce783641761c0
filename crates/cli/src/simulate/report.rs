//! The results as a table for people, and as JSON.

use std::fmt::Write as _;

use forebay_simulator::Outcome;
use serde_json::{Value, json};

use super::scenario::{Free, MEASURES, Measure, Number, Scenario};

/// Room for the names of the strategies.
const NAME: usize = 26;
/// Room for a number of seconds, and a paper's number beside it.
const CELL: usize = 17;
/// Room for what a number of the paper is of.
const TITLE: usize = 66;
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

impl Number<'_> {
    /// The number that was simulated.
    pub fn simulated(&self, outcomes: &[Vec<Outcome>]) -> f64 {
        let of = |strategy: usize| self.measure.of(&outcomes[self.case][strategy]);
        of(self.of) / self.over.map_or(1.0, of)
    }

    /// By how much of the paper's number the simulated one is off, in percent.
    pub fn error(&self, simulated: f64) -> f64 {
        (simulated / self.paper - 1.0) * 100.0
    }

    /// What it is a number of.
    pub fn title(&self, scenario: &Scenario) -> String {
        let name = |strategy: usize| &scenario.strategies[strategy].name;
        let (case, measure) = (&scenario.cases[self.case].name, self.measure.name());
        match self.over {
            Some(over) => format!("{case}: {measure}, {} / {}", name(self.of), name(over)),
            None => format!("{case}: {measure} s, {}", name(self.of)),
        }
    }
}

/// Each number of the paper, how far the simulated one is off, and what it needs.
fn numbers(scenario: &Scenario, outcomes: &[Vec<Outcome>]) -> String {
    let numbers = scenario.numbers();
    if numbers.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:TITLE$}{:>10}{:>8}{:>8}\n",
        "the paper's numbers", "simulated", "paper", "error"
    );
    for number in &numbers {
        let simulated = number.simulated(outcomes);
        let _ = writeln!(
            text,
            "  {:width$}{:>10}{:>8}{:>7.1}%  {}",
            number.title(scenario),
            short(simulated),
            short(number.paper),
            number.error(simulated),
            number.needs.map_or("determined".to_owned(), |needs| format!("needs {needs}")),
            width = TITLE - 2
        );
    }
    let is_fitted = |free: &&Free| free.is_fitted;
    for free in scenario.free.iter().filter(is_fitted) {
        let _ = writeln!(text, "\nFitted: {}: {}", free.name, free.why);
    }
    if !scenario.free.is_empty() {
        let _ = writeln!(text, "\n--sweep shows what other values give.");
    }
    text
}

/// One line for each number of the paper and each value of a free parameter.
pub(super) fn swept(
    scenario: &Scenario,
    free: &Free,
    tried: &[(String, bool, Vec<Vec<Outcome>>)],
) -> String {
    let fitted = if free.is_fitted { "fitted" } else { "not fitted" };
    let mut text = format!("\n{} ({fitted}): {}\n  {:TITLE$}", free.name, free.why, "");
    let _ = write!(text, "{:>8}", "paper");
    for (value, is_in_force, _) in tried {
        let mark = if *is_in_force { "*" } else { "" };
        let _ = write!(text, "{:>12}", format!("{mark}{value}"));
    }
    text.push('\n');
    for number in scenario.numbers() {
        let _ = write!(text, "  {:TITLE$}{:>8}", number.title(scenario), short(number.paper));
        for (_, _, outcomes) in tried {
            let _ = write!(text, "{:>12}", short(number.simulated(outcomes)));
        }
        text.push('\n');
    }
    text
}

/// Three digits or more.
fn short(number: f64) -> String {
    match number.abs() {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        _ => format!("{number:.2}"),
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
    text += &numbers(scenario, outcomes);
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
    let numbers = scenario.numbers();
    let numbers = numbers.iter().map(|number| {
        let simulated = number.simulated(outcomes);
        json!({
            "number": number.title(scenario),
            "simulated": rounded(simulated),
            "paper": rounded(number.paper),
            "error_percent": rounded(number.error(simulated)),
            "needs": number.needs,
        })
    });
    let free = scenario
        .free
        .iter()
        .map(|free| json!({ "parameter": free.name, "fitted": free.is_fitted, "why": free.why }));
    let all = json!({
        "title": scenario.title,
        "seed": scenario.seed,
        "cases": cases.collect::<Vec<_>>(),
        "numbers": numbers.collect::<Vec<_>>(),
        "free": free.collect::<Vec<_>>(),
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
