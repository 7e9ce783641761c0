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
/// From one note below the axis to the next, and the most letters of a line.
const NOTE: i32 = 18;
const NOTE_LETTERS: usize = 130;
/// Bars of one part that differ by more than so many times stand on a logarithmic axis.
const DECADES: f64 = 100.0;

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
    /// What a mark stands for; empty where there are none.
    pub marks: &'a str,
    /// Below the axis: machine, rounds, what is fitted.
    pub notes: &'a [String],
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
    /// Where a paper's bar ends, or its parts do.
    pub marks: Vec<f64>,
    /// Least and most of what the bar's whole length is the median of.
    pub spread: Option<(f64, f64)>,
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
    let notes: Vec<String> = chart.notes.iter().flat_map(|note| lines(note)).collect();
    let height = HEAD
        + chart.groups.iter().map(Group::height).sum::<i32>()
        + FOOT
        + notes.len() as i32 * NOTE;
    let (left, right) = chart.margins;
    let axis = Axis::of(chart);
    picture::save(file, (left + PLOT + right, height), |canvas| {
        Plot { canvas, chart, left, axis, notes: &notes }.figure()
    })
}

/// A note in lines.
fn lines(note: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in note.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + word.len() >= NOTE_LETTERS) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            *line += if line.is_empty() { "" } else { " " };
            *line += word;
        }
    }
    lines
}

/// What the width of the plot stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Axis {
    /// From nothing to this.
    Linear(f64),
    /// From and to these powers of ten.
    Logarithmic(i32, i32),
}

impl Axis {
    fn of(chart: &Chart<'_>) -> Axis {
        let bars = || chart.groups.iter().flat_map(|group| &group.bars);
        let most = |bar: &Bar| bar.spread.map(|(_, most)| most);
        let ends = bars().flat_map(|bar| {
            let own = std::iter::once(bar.length()).chain(most(bar));
            own.chain(bar.marks.iter().copied())
        });
        let longest = ends.clone().fold(0.0, f64::max).max(1e-6);
        let shortest = ends.filter(|end| *end > 0.0).fold(longest, f64::min);
        let is_stacked = bars().any(|bar| bar.parts.len() > 1);
        if is_stacked || longest / shortest < DECADES {
            return Axis::Linear(longest);
        }
        // A bar has to have a length: the axis begins below the shortest.
        Axis::Logarithmic(shortest.log10().ceil() as i32 - 1, longest.log10().ceil() as i32)
    }

    /// Where a value lies, from 0 to 1.
    fn share(self, value: f64) -> f64 {
        match self {
            Axis::Linear(longest) => value / longest,
            Axis::Logarithmic(from, to) => {
                let from = f64::from(from);
                ((value.max(f64::MIN_POSITIVE).log10() - from) / (f64::from(to) - from))
                    .clamp(0.0, 1.0)
            }
        }
    }

    /// Values with a line of the grid.
    fn lines(self) -> Vec<f64> {
        match self {
            Axis::Linear(longest) => {
                let step = tick(longest, LINES);
                (0..=(longest / step) as u32).map(|number| f64::from(number) * step).collect()
            }
            Axis::Logarithmic(from, to) => (from..=to).map(|power| 10_f64.powi(power)).collect(),
        }
    }
}

struct Plot<'a, 'c> {
    canvas: &'a Canvas<'c>,
    chart: &'a Chart<'a>,
    left: i32,
    axis: Axis,
    notes: &'a [String],
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
        for (row, note) in self.notes.iter().enumerate() {
            let at = (24, top + FOOT + row as i32 * NOTE + NOTE / 2);
            self.canvas.text(note, at, Type::left(13, FAINT))?;
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
        if !self.chart.marks.is_empty() {
            self.canvas.rectangle((left, 46), (left + 3, 64), RED)?;
            self.canvas.text(self.chart.marks, (left + 10, 55), Type::left(15, INK))?;
        }
        Ok(())
    }

    fn axis(&self, bottom: i32) -> Drawn {
        for value in self.axis.lines() {
            let x = self.x(value);
            self.canvas.line((x, HEAD), (x, bottom), GRID)?;
            let label = format!("{}", (value * 1e6).round() / 1e6);
            self.canvas.text(&label, (x, bottom + 12), Type::left(13, FAINT).at(Anchor::Center))?;
        }
        let middle = (self.left + PLOT / 2, bottom + 34);
        let unit = match self.axis {
            Axis::Linear(_) => self.chart.unit.to_owned(),
            Axis::Logarithmic(..) => format!("{}, logarithmic", self.chart.unit),
        };
        self.canvas.text(&unit, middle, Type::left(15, FAINT).at(Anchor::Center))
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
        let most = bar.spread.map_or(at, |(_, most)| most);
        if let Some((least, most)) = bar.spread {
            let (from, to) = (self.x(least), self.x(most));
            self.canvas.line((from, middle), (to, middle), INK)?;
            for x in [from, to] {
                self.canvas.line((x, middle - 4), (x, middle + 4), INK)?;
            }
        }
        for &value in &bar.marks {
            let x = self.x(value);
            let (above, below) = (middle - ROW / 2 + 1, middle + ROW / 2 - 1);
            self.canvas.rectangle((x - 1, above), (x + 2, below), RED)?;
        }
        let right = self.x(bar.marks.iter().copied().fold(at.max(most), f64::max)) + 8;
        self.canvas.text(&(self.chart.label)(at), (right, middle), Type::left(14, FAINT))
    }

    fn x(&self, value: f64) -> i32 {
        self.left + (self.axis.share(value) * f64::from(PLOT)).round() as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lengths: &[f64]) -> Chart<'static> {
        let bar = |&length: &f64| Bar {
            name: String::new(),
            parts: vec![length],
            marks: Vec::new(),
            spread: None,
        };
        Chart {
            title: "",
            unit: "",
            parts: &[],
            margins: (0, 0),
            label: |length| length.to_string(),
            marks: "",
            notes: &[],
            groups: vec![Group { name: String::new(), bars: lengths.iter().map(bar).collect() }],
        }
    }

    #[test]
    fn values_that_span_decades_stand_on_a_logarithmic_axis() {
        assert_eq!(Axis::of(&chart(&[1.0, 20.0])), Axis::Linear(20.0));
        let axis = Axis::of(&chart(&[0.02, 0.0, 38.0]));
        assert_eq!(axis, Axis::Logarithmic(-2, 2));
        assert_eq!([0.01, 1.0, 100.0, 0.0].map(|value| axis.share(value)), [0.0, 0.5, 1.0, 0.0]);
        assert_eq!(axis.lines(), [0.01, 0.1, 1.0, 10.0, 100.0]);
        // Where the shortest is a power of ten itself, it still has a length.
        assert_eq!(Axis::of(&chart(&[1.0, 1000.0])), Axis::Logarithmic(-1, 3));
        let mut stacked = chart(&[1.0, 1000.0]);
        stacked.groups[0].bars[0].parts.push(1.0);
        assert_eq!(Axis::of(&stacked), Axis::Linear(1000.0));
    }

    #[test]
    fn notes_are_broken_between_words() {
        let note = "word ".repeat(60);
        let lines = lines(&note);
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= NOTE_LETTERS));
        assert_eq!(lines.join(" "), note.trim());
    }
}
