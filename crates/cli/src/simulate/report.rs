//! The results as a table for people, and as JSON.

use std::fmt::Write as _;

use forebay_simulator::Outcome;

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
    let mut cases = Vec::new();
    for (index, case) in scenario.cases.iter().enumerate() {
        let mut strategies = Vec::new();
        for (number, strategy) in scenario.strategies.iter().enumerate() {
            let mut object = outcome(&outcomes[index][number]);
            object.insert(0, ("strategy", text(&strategy.name)));
            let paper: Vec<_> = { MEASURES.iter() }
                .filter_map(|&(name, measure)| {
                    Some((name, number_of(scenario.paper(index, number, measure)?)))
                })
                .collect();
            if !paper.is_empty() {
                object.push(("paper", object_of(&paper)));
            }
            strategies.push(object_of(&object));
        }
        cases.push(object_of(&[
            ("case", text(&case.name)),
            ("nodes", case.cluster.nodes.to_string()),
            ("ranks", case.cluster.ranks().to_string()),
            ("outcomes", list(&strategies)),
        ]));
    }
    let ratios = scenario.ratios.iter().map(|ratio| {
        object_of(&[
            ("case", text(&scenario.cases[ratio.case].name)),
            ("measure", text(ratio.measure.name())),
            ("of", text(&scenario.strategies[ratio.of].name)),
            ("over", text(&scenario.strategies[ratio.over].name)),
            ("simulated", number_of(ratio.simulated(outcomes))),
            ("paper", number_of(ratio.paper)),
        ])
    });
    let ratios: Vec<_> = ratios.collect();
    let all = object_of(&[
        ("title", text(&scenario.title)),
        ("seed", scenario.seed.to_string()),
        ("cases", list(&cases)),
        ("ratios", list(&ratios)),
    ]);
    all + "\n"
}

fn outcome(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let tiers = outcome.tiers.iter().map(|tier| {
        object_of(&[
            ("name", text(&tier.name)),
            ("capacity_bytes", tier.capacity.to_string()),
            ("peak_bytes", tier.peak.to_string()),
            ("written_bytes", tier.written.to_string()),
            ("read_bytes", tier.read.to_string()),
            ("demoted_bytes", tier.demoted.to_string()),
            ("promoted_bytes", tier.promoted.to_string()),
            ("evicted_bytes", tier.evicted.to_string()),
        ])
    });
    let tiers: Vec<_> = tiers.collect();
    let files: Vec<_> = outcome.lost_files.iter().map(u32::to_string).collect();
    vec![
        ("write_s", number_of(outcome.write_s)),
        ("read_s", number_of(outcome.read_s)),
        ("open_s", number_of(outcome.open_s)),
        ("flush_s", number_of(outcome.flush_s)),
        ("total_s", number_of(outcome.total_s())),
        ("ranks_end_s", number_of(outcome.ranks_end_s)),
        ("end_s", number_of(outcome.end_s)),
        ("written_bytes", outcome.written.to_string()),
        ("read_bytes", outcome.read.to_string()),
        ("direct_bytes", outcome.direct.to_string()),
        ("flushed_bytes", outcome.flushed.to_string()),
        ("safe_bytes", outcome.safe.to_string()),
        ("replaced_bytes", outcome.replaced.to_string()),
        ("kept_bytes", outcome.kept.to_string()),
        ("lost_bytes", outcome.lost.to_string()),
        ("lost_files", format!("[{}]", files.join(", "))),
        ("unreadable_bytes", outcome.unreadable.to_string()),
        ("store_busy_s", number_of(outcome.store_busy_s)),
        ("plans", outcome.plans.to_string()),
        ("plans_remembered", outcome.remembered.to_string()),
        ("moments", outcome.moments.to_string()),
        ("stalled", outcome.stalled.to_string()),
        ("tiers", list(&tiers)),
    ]
}

fn object_of(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> =
        fields.iter().map(|(key, value)| indented(&format!("\"{key}\": {value}"))).collect();
    format!("{{\n{}\n}}", fields.join(",\n"))
}

fn list(items: &[String]) -> String {
    if items.is_empty() {
        return "[]".to_owned();
    }
    let items: Vec<_> = items.iter().map(|item| indented(item)).collect();
    format!("[\n{}\n]", items.join(",\n"))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Six decimals: a microsecond. JSON has no infinities.
fn number_of(number: f64) -> String {
    if number.is_finite() { format!("{number:.6}") } else { "null".to_owned() }
}

/// A JSON string.
pub(crate) fn text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            c if u32::from(c) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
