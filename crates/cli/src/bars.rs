//! A bar chart: a group of bars for each case, a bar for each system, which may be stacked from
//! parts, with a mark where the bar of a paper ends.

use crate::picture::{
    self, Anchor, Canvas, Color, Drawn, FAINT, GRID, INK, RED, Type, Width, tick,
};
use std::path::Path;

/// How wide the plot is, and in a picture of one column.
const PLOT: i32 = 640;
const PLOT_NARROW: i32 = 280;
const HEAD: i32 = 76;
const FOOT: i32 = 52;
const CASE_HEAD: i32 = 30;
const CASE_GAP: i32 = 14;
const ROW: i32 = 26;
const BAR: i32 = 18;
/// An entry of the legend without its name, and a letter of that.
const LEGEND: i32 = 40;
const LETTER: i32 = 9;
/// From one line of the grid to the next, at least: so that the numbers below do not touch.
const LINE: i32 = 60;
/// From one note below the axis to the next, and a letter of them.
const NOTE: i32 = 18;
const NOTE_LETTER: i32 = 7;
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
    pub width: Width,
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
    let (left, right) = chart.margins;
    let plot = if chart.width == Width::Column { PLOT_NARROW } else { PLOT };
    let width = left + plot + right;
    let letters = ((width - 48) / NOTE_LETTER) as usize;
    let notes: Vec<String> = chart.notes.iter().flat_map(|note| lines(note, letters)).collect();
    let height = HEAD
        + chart.groups.iter().map(Group::height).sum::<i32>()
        + FOOT
        + notes.len() as i32 * NOTE;
    let axis = Axis::of(chart);
    picture::save_as(file, (width, height), chart.width, |canvas| {
        Plot { canvas, chart, left, plot, axis, notes: &notes }.figure()
    })
}

/// A note in lines of so many letters.
fn lines(note: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in note.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + word.len() >= letters) {
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

    /// Values with a line of the grid, of which so many have room.
    fn lines(self, most: f64) -> Vec<f64> {
        match self {
            Axis::Linear(longest) => {
                let step = tick(longest, most);
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
    /// Pixels of the plot.
    plot: i32,
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
            left += LEGEND + name.len() as i32 * LETTER;
        }
        if !self.chart.marks.is_empty() {
            self.canvas.rectangle((left, 46), (left + 3, 64), RED)?;
            self.canvas.text(self.chart.marks, (left + 10, 55), Type::left(15, INK))?;
        }
        Ok(())
    }

    fn axis(&self, bottom: i32) -> Drawn {
        for value in self.axis.lines(f64::from(self.plot / LINE)) {
            let x = self.x(value);
            self.canvas.line((x, HEAD), (x, bottom), GRID)?;
            let label = format!("{}", (value * 1e6).round() / 1e6);
            self.canvas.text(&label, (x, bottom + 12), Type::left(13, FAINT).at(Anchor::Center))?;
        }
        let middle = (self.left + self.plot / 2, bottom + 34);
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
        self.left + (self.axis.share(value) * f64::from(self.plot)).round() as i32
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
            width: Width::Screen,
        }
    }

    #[test]
    fn values_that_span_decades_stand_on_a_logarithmic_axis() {
        assert_eq!(Axis::of(&chart(&[1.0, 20.0])), Axis::Linear(20.0));
        let axis = Axis::of(&chart(&[0.02, 0.0, 38.0]));
        assert_eq!(axis, Axis::Logarithmic(-2, 2));
        assert_eq!([0.01, 1.0, 100.0, 0.0].map(|value| axis.share(value)), [0.0, 0.5, 1.0, 0.0]);
        assert_eq!(axis.lines(10.0), [0.01, 0.1, 1.0, 10.0, 100.0]);
        // Where the shortest is a power of ten itself, it still has a length.
        assert_eq!(Axis::of(&chart(&[1.0, 1000.0])), Axis::Logarithmic(-1, 3));
        let mut stacked = chart(&[1.0, 1000.0]);
        stacked.groups[0].bars[0].parts.push(1.0);
        assert_eq!(Axis::of(&stacked), Axis::Linear(1000.0));
    }

    /// What stands in a picture: where its line is, where it begins and ends, as wide as letters of
    /// a usual font are.
    fn texts(picture: &str) -> Vec<(i32, f64, f64)> {
        let mut texts = Vec::new();
        for element in picture.split("<text ").skip(1) {
            let value = |name: &str| {
                let (_, rest) = element.split_once(&format!("{name}=\"")).unwrap();
                rest.split('"').next().unwrap().to_owned()
            };
            let number = |name: &str| value(name).parse::<f64>().unwrap();
            let (_, text) = element.split_once('>').unwrap();
            let text = text.split('<').next().unwrap().trim().replace("&apos;", "'");
            let wide = text.chars().count() as f64 * number("font-size") * 0.55;
            let x = number("x");
            let (from, to) = match &*value("text-anchor") {
                "start" => (x, x + wide),
                "end" => (x - wide, x),
                _ => (x - wide / 2.0, x + wide / 2.0),
            };
            texts.push((number("y") as i32, from, to));
        }
        texts
    }

    #[test]
    fn texts_stay_inside_and_apart_in_each_width() {
        for width in [Width::Screen, Width::Column, Width::Page] {
            let mut drawn = chart(&[0.4, 39.0]);
            let notes = ["2026-01-01, 2 cores of a processor, Linux 6.1, load 0.1 at the start; medians of 5 \
                          rounds, least and most"
                .to_owned()];
            drawn.title = "Hermes, Figure 8: alternating compute and I/O";
            drawn.unit = "million operations per second";
            drawn.parts = &[("write", RED), ("flush", INK)];
            drawn.margins = (230, 100);
            drawn.marks = "by the paper's ratios";
            drawn.notes = &notes;
            drawn.width = width;
            drawn.groups[0].name = "data-intensive".to_owned();
            for bar in &mut drawn.groups[0].bars {
                bar.name = "Data Elevator's strategy".to_owned();
                bar.parts.push(0.5);
                bar.marks.push(20.0);
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            draw(file.path(), &drawn).unwrap();
            let picture = std::fs::read_to_string(file.path()).unwrap();
            let whole = if width == Width::Column { 610.0 } else { 970.0 };
            let texts = texts(&picture);
            // Title, legend, heading, bars with their lengths, axis with its unit, a note.
            assert!(texts.len() >= 14, "{picture}");
            for (at, one) in texts.iter().enumerate() {
                assert!(one.1 >= 0.0 && one.2 <= whole, "{width:?}: {one:?} in {picture}");
                for other in &texts[at + 1..] {
                    let is_apart =
                        one.0.abs_diff(other.0) > 8 || one.2 <= other.1 || other.2 <= one.1;
                    assert!(is_apart, "{width:?}: {one:?} and {other:?} in {picture}");
                }
            }
        }
    }

    #[test]
    fn notes_are_broken_between_words() {
        let note = "word ".repeat(60);
        let lines = lines(&note, 130);
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= 130));
        assert_eq!(lines.join(" "), note.trim());
    }
}
