//! The figure: a group of bars for each case, a bar for each strategy, stacked from write, read and
//! flush time, with a mark where the paper's bar ends.

use std::fmt;

use forebay_simulator::Outcome;
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, RGBColor, TextStyle, WHITE};

use super::scenario::{Measure, Scenario};

const LEFT: i32 = 250;
const RIGHT: i32 = 150;
const PLOT: i32 = 640;
const HEAD: i32 = 76;
const FOOT: i32 = 52;
const CASE_HEAD: i32 = 30;
const CASE_GAP: i32 = 14;
const ROW: i32 = 26;
const BAR: i32 = 18;
/// From one entry of the legend to the next.
const LEGEND_SLOT: i32 = 130;

const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(222, 222, 222);
/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const PARTS: &[(&str, Measure, RGBColor)] = &[
    ("open", Measure::Open, RGBColor(230, 159, 0)),
    ("write", Measure::Write, RGBColor(0, 114, 178)),
    ("read", Measure::Read, RGBColor(86, 180, 233)),
    ("flush", Measure::Flush, RGBColor(0, 158, 115)),
];
const PAPER: RGBColor = RGBColor(213, 94, 0);

type Failure = Box<dyn fmt::Display>;
type Drawn = Result<(), Failure>;

/// The figure as SVG.
pub(super) fn draw(scenario: &Scenario, outcomes: &[Vec<Outcome>]) -> Result<String, String> {
    let rows = scenario.strategies.len() as i32;
    let case_height = CASE_HEAD + rows * ROW + CASE_GAP;
    let height = HEAD + scenario.cases.len() as i32 * case_height + FOOT;
    let size = ((LEFT + PLOT + RIGHT) as u32, height as u32);
    let mut picture = String::new();
    {
        let svg = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        let totals = outcomes.iter().flatten().map(Outcome::total_s);
        let papers = { scenario.references.iter() }
            .flat_map(|reference| reference.seconds.iter().map(|(_, seconds)| *seconds));
        let longest = totals.chain(papers).fold(0.0, f64::max).max(1e-6);
        Canvas { svg, longest }
            .figure(scenario, outcomes, case_height)
            .map_err(|e| e.to_string())?;
    }
    Ok(picture)
}

struct Canvas<'a> {
    svg: DrawingArea<SVGBackend<'a>, Shift>,
    /// Seconds that the width of the plot stands for.
    longest: f64,
}

impl Canvas<'_> {
    fn figure(&self, scenario: &Scenario, outcomes: &[Vec<Outcome>], case_height: i32) -> Drawn {
        self.svg.fill(&WHITE).map_err(failure)?;
        self.text(&scenario.title, (24, 24), HPos::Left, 19, INK, FontStyle::Bold)?;
        self.legend(scenario, outcomes)?;
        let bottom = HEAD + scenario.cases.len() as i32 * case_height;
        self.axis(bottom)?;
        for (case, outcomes) in outcomes.iter().enumerate() {
            let top = HEAD + case as i32 * case_height;
            let name = &scenario.cases[case].name;
            self.text(name, (24, top + CASE_HEAD / 2), HPos::Left, 16, INK, FontStyle::Bold)?;
            for (strategy, outcome) in outcomes.iter().enumerate() {
                let middle = top + CASE_HEAD + strategy as i32 * ROW + ROW / 2;
                self.bar(scenario, (case, strategy), outcome, middle)?;
            }
        }
        self.svg.present().map_err(failure)
    }

    fn legend(&self, scenario: &Scenario, outcomes: &[Vec<Outcome>]) -> Drawn {
        let mut left = LEFT;
        let is_seen = |measure: Measure| {
            let longest = outcomes.iter().flatten().map(|outcome| measure.of(outcome));
            self.x(longest.fold(0.0, f64::max)) > LEFT
        };
        for (name, _, color) in PARTS.iter().filter(|(_, measure, _)| is_seen(*measure)) {
            self.fill((left, 48), (left + 14, 62), *color)?;
            self.text(name, (left + 20, 55), HPos::Left, 15, INK, FontStyle::Normal)?;
            left += LEGEND_SLOT;
        }
        if !scenario.references.is_empty() {
            self.fill((left, 46), (left + 3, 64), PAPER)?;
            let meaning = "end of the paper's bar";
            self.text(meaning, (left + 10, 55), HPos::Left, 15, INK, FontStyle::Normal)?;
        }
        Ok(())
    }

    fn axis(&self, bottom: i32) -> Drawn {
        let step = tick(self.longest);
        for number in 0..=(self.longest / step) as u32 {
            let seconds = f64::from(number) * step;
            let x = self.x(seconds);
            let line = PathElement::new([(x, HEAD), (x, bottom)], GRID);
            self.svg.draw(&line).map_err(failure)?;
            let label = format!("{}", (seconds * 1e6).round() / 1e6);
            self.text(&label, (x, bottom + 12), HPos::Center, 13, FAINT, FontStyle::Normal)?;
        }
        let label = "seconds";
        self.text(label, (LEFT + PLOT / 2, bottom + 34), HPos::Center, 15, FAINT, FontStyle::Normal)
    }

    fn bar(
        &self,
        scenario: &Scenario,
        (case, strategy): (usize, usize),
        outcome: &Outcome,
        middle: i32,
    ) -> Drawn {
        let name = &scenario.strategies[strategy].name;
        self.text(name, (LEFT - 12, middle), HPos::Right, 15, INK, FontStyle::Normal)?;
        let mut at = 0.0;
        for &(_, measure, color) in PARTS {
            let (from, to) = (self.x(at), self.x(at + measure.of(outcome)));
            at += measure.of(outcome);
            if to > from {
                self.fill((from, middle - BAR / 2), (to, middle + BAR / 2), color)?;
            }
        }
        let paper = scenario.paper(case, strategy, Measure::Total);
        if let Some(seconds) = paper {
            let x = self.x(seconds);
            self.fill((x - 1, middle - ROW / 2 + 1), (x + 2, middle + ROW / 2 - 1), PAPER)?;
        }
        let right = self.x(at.max(paper.unwrap_or(0.0))) + 8;
        let label = format!("{at:.1}");
        self.text(&label, (right, middle), HPos::Left, 14, FAINT, FontStyle::Normal)
    }

    fn x(&self, seconds: f64) -> i32 {
        LEFT + (seconds / self.longest * f64::from(PLOT)).round() as i32
    }

    fn fill(&self, corner: (i32, i32), opposite: (i32, i32), color: RGBColor) -> Drawn {
        self.svg.draw(&Rectangle::new([corner, opposite], color.filled())).map_err(failure)
    }

    fn text(
        &self,
        text: &str,
        at: (i32, i32),
        anchor: HPos,
        size: i32,
        color: RGBColor,
        style: FontStyle,
    ) -> Drawn {
        let font = ("sans-serif", f64::from(size) * 1.24, style); // The backend divides by 1.24.
        let style = TextStyle::from(font).color(&color).pos(Pos::new(anchor, VPos::Center));
        self.svg.draw(&Text::new(text, at, style)).map_err(failure)
    }
}

fn failure(error: impl fmt::Display + 'static) -> Failure {
    Box::new(error)
}

/// The distance of the grid lines: 1, 2 or 5 times a power of ten, for at most ten of them.
fn tick(longest: f64) -> f64 {
    (-6..=12)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
        .find(|step| longest / step <= 10.0)
        .unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_round_and_few() {
        for (longest, step) in [(1.0, 0.1), (13.0, 2.0), (60.0, 10.0), (1500.0, 200.0)] {
            assert!((tick(longest) - step).abs() < 1e-9, "{longest}");
        }
    }
}
