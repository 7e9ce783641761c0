//! A bar chart: a group of bars for each case, a bar for each system, which may be stacked from
//! parts, with a mark where the bar of a paper ends.

use crate::picture::{self, Anchor, Canvas, Color, Drawn, FAINT, GRID, INK, RED, Type, tick};
use std::path::Path;

const PLOT: i32 = 640;
const HEAD: i32 = 76;
const FOOT: i32 = 52;
const CASE_HEAD: i32 = 30;
const CASE_GAP: i32 = 14;
const ROW: i32 = 26;
const BAR: i32 = 18;
/// From one entry of the legend to the next.
const LEGEND_SLOT: i32 = 130;
/// Lines of the grid.
const LINES: f64 = 10.0;

/// What is drawn.
pub struct Chart<'a> {
    pub title: &'a str,
    /// What stands below the axis.
    pub unit: &'a str,
    /// The parts that stacked bars consist of; one without a name, or that is nowhere to be seen,
    /// has no entry in the legend.
    pub parts: &'a [(&'a str, Color)],
    /// Room for the names of the bars, and behind the longest bar.
    pub margins: (i32, i32),
    /// How the length of a bar is written.
    pub label: fn(f64) -> String,
    pub has_marks: bool,
    pub groups: Vec<Group>,
}

/// Bars with one heading.
pub struct Group {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// A bar; its parts stand one behind the other.
pub struct Bar {
    pub name: String,
    pub parts: Vec<f64>,
    /// Where the paper's bar ends.
    pub mark: Option<f64>,
}

impl Bar {
    fn length(&self) -> f64 {
        self.parts.iter().sum()
    }
}

impl Group {
    fn height(&self) -> i32 {
        CASE_HEAD + self.bars.len() as i32 * ROW + CASE_GAP
    }
}

/// Draws a chart into an SVG file.
///
/// # Errors
/// A message that names the file.
pub fn draw(file: &Path, chart: &Chart<'_>) -> Result<(), String> {
    let height = HEAD + chart.groups.iter().map(Group::height).sum::<i32>() + FOOT;
    let (left, right) = chart.margins;
    let bars = chart.groups.iter().flat_map(|group| &group.bars);
    let ends = bars.flat_map(|bar| [Some(bar.length()), bar.mark]).flatten();
    let longest = ends.fold(0.0, f64::max).max(1e-6);
    picture::save(file, (left + PLOT + right, height), |canvas| {
        Plot { canvas, chart, left, longest }.figure()
    })
}

struct Plot<'a, 'c> {
    canvas: &'a Canvas<'c>,
    chart: &'a Chart<'a>,
    left: i32,
    /// What the width of the plot stands for.
    longest: f64,
}

impl Plot<'_, '_> {
    fn figure(&self) -> Drawn {
        let chart = self.chart;
        self.canvas.text(chart.title, (24, 24), Type::head(19))?;
        self.legend()?;
        self.axis(HEAD + chart.groups.iter().map(Group::height).sum::<i32>())?;
        let mut top = HEAD;
        for group in &chart.groups {
            self.canvas.text(&group.name, (24, top + CASE_HEAD / 2), Type::head(16))?;
            for (row, bar) in group.bars.iter().enumerate() {
                self.bar(bar, top + CASE_HEAD + row as i32 * ROW + ROW / 2)?;
            }
            top += group.height();
        }
        Ok(())
    }

    fn legend(&self) -> Drawn {
        let mut left = self.left;
        let bars = || self.chart.groups.iter().flat_map(|group| &group.bars);
        for (part, (name, color)) in self.chart.parts.iter().enumerate() {
            let longest =
                bars().filter_map(|bar| bar.parts.get(part)).fold(0.0, |a, &b| f64::max(a, b));
            if name.is_empty() || self.x(longest) == self.left {
                continue;
            }
            self.canvas.rectangle((left, 48), (left + 14, 62), *color)?;
            self.canvas.text(name, (left + 20, 55), Type::left(15, INK))?;
            left += LEGEND_SLOT;
        }
        if self.chart.has_marks {
            self.canvas.rectangle((left, 46), (left + 3, 64), RED)?;
            self.canvas.text("end of the paper's bar", (left + 10, 55), Type::left(15, INK))?;
        }
        Ok(())
    }

    fn axis(&self, bottom: i32) -> Drawn {
        let step = tick(self.longest, LINES);
        for number in 0..=(self.longest / step) as u32 {
            let value = f64::from(number) * step;
            let x = self.x(value);
            self.canvas.line((x, HEAD), (x, bottom), GRID)?;
            let label = format!("{}", (value * 1e6).round() / 1e6);
            self.canvas.text(&label, (x, bottom + 12), Type::left(13, FAINT).at(Anchor::Center))?;
        }
        let middle = (self.left + PLOT / 2, bottom + 34);
        self.canvas.text(self.chart.unit, middle, Type::left(15, FAINT).at(Anchor::Center))
    }

    fn bar(&self, bar: &Bar, middle: i32) -> Drawn {
        let name = Type::left(15, INK).at(Anchor::Right);
        self.canvas.text(&bar.name, (self.left - 12, middle), name)?;
        let mut at = 0.0;
        for (part, (_, color)) in bar.parts.iter().zip(self.chart.parts) {
            let (from, to) = (self.x(at), self.x(at + part));
            at += part;
            if to > from {
                self.canvas.rectangle((from, middle - BAR / 2), (to, middle + BAR / 2), *color)?;
            }
        }
        if let Some(value) = bar.mark {
            let x = self.x(value);
            let (above, below) = (middle - ROW / 2 + 1, middle + ROW / 2 - 1);
            self.canvas.rectangle((x - 1, above), (x + 2, below), RED)?;
        }
        let right = self.x(at.max(bar.mark.unwrap_or(0.0))) + 8;
        self.canvas.text(&(self.chart.label)(at), (right, middle), Type::left(14, FAINT))
    }

    fn x(&self, value: f64) -> i32 {
        self.left + (value / self.longest * f64::from(PLOT)).round() as i32
    }
}
