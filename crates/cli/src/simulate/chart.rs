//! The figure: a group of bars for each case, a bar for each strategy, stacked from open, write,
//! read and flush time, with a mark where the paper's bar ends.

use super::scenario::{Measure, Scenario};
use crate::bars::{self, Bar, Chart, Group};
use crate::picture::{BLUE, Color, GREEN, ORANGE, SKY, Width};
use forebay_simulator::Outcome;
use std::path::Path;

const PARTS: [(&str, Color); 4] =
    [("open", ORANGE), ("write", BLUE), ("read", SKY), ("flush", GREEN)];
const MEASURES: [Measure; 4] = [Measure::Open, Measure::Write, Measure::Read, Measure::Flush];

/// Draws the figure into an SVG file.
pub(super) fn draw(
    file: &Path,
    scenario: &Scenario,
    outcomes: &[Vec<Outcome>],
) -> Result<(), String> {
    let bar = |case: usize, strategy: usize, outcome: &Outcome| Bar {
        name: scenario.strategies[strategy].name.clone(),
        parts: MEASURES.iter().map(|measure| measure.of(outcome)).collect(),
        marks: scenario.paper(case, strategy, Measure::Total).into_iter().collect(),
        spread: None,
    };
    let group = |(case, outcomes): (usize, &Vec<Outcome>)| Group {
        name: scenario.cases[case].name.clone(),
        bars: outcomes.iter().enumerate().map(|(number, of)| bar(case, number, of)).collect(),
    };
    let fitted = scenario.free.iter().filter(|free| free.is_fitted);
    let fitted = fitted.map(|free| format!("Fitted: {}: {}", free.name, free.why));
    let simulated = "Simulated: no computer was measured.".to_owned();
    let notes: Vec<String> = std::iter::once(simulated).chain(fitted).collect();
    let chart = Chart {
        title: &scenario.title,
        unit: "seconds",
        parts: &PARTS,
        margins: (250, 150),
        label: |seconds| format!("{seconds:.1}"),
        marks: if scenario.references.is_empty() { "" } else { "end of the paper's bar" },
        notes: &notes,
        groups: outcomes.iter().enumerate().map(group).collect(),
        width: Width::Screen,
    };
    bars::draw(file, &chart)
}
