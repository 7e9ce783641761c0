//! The figure: a group of bars for each case, a bar for each system, which may be stacked from parts.

use std::fmt;

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, RGBColor, TextStyle, WHITE};

const LEFT: i32 = 220;
const RIGHT: i32 = 100;
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
/// Colours that people with any colour vision can tell apart (Okabe and Ito), as the simulator's.
const COLORS: [RGBColor; 3] =
    [RGBColor(0, 114, 178), RGBColor(86, 180, 233), RGBColor(0, 158, 115)];

type Failure = Box<dyn fmt::Display>;
type Drawn = Result<(), Failure>;

/// Bars with one heading.
pub struct Group {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// A bar; its parts stand one behind the other.
pub struct Bar {
    pub name: String,
    pub parts: Vec<f64>,
}

impl Group {
    fn height(&self) -> i32 {
        CASE_HEAD + self.bars.len() as i32 * ROW + CASE_GAP
    }
}

/// The figure as SVG: `unit` is below the axis, `parts` names what stacked bars consist of.
pub fn draw(title: &str, unit: &str, parts: &[&str], groups: &[Group]) -> Result<String, String> {
    let height = HEAD + groups.iter().map(Group::height).sum::<i32>() + FOOT;
    let size = ((LEFT + PLOT + RIGHT) as u32, height as u32);
    let sums = groups.iter().flat_map(|group| &group.bars).map(|bar| bar.parts.iter().sum());
    let longest = sums.fold(0.0, f64::max).max(1e-6);
    let mut picture = String::new();
    {
        let svg = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        Canvas { svg, longest, unit }.figure(title, parts, groups).map_err(|e| e.to_string())?;
    }
    Ok(picture)
}

struct Canvas<'a> {
    svg: DrawingArea<SVGBackend<'a>, Shift>,
    /// What the width of the plot stands for.
    longest: f64,
    unit: &'a str,
}

impl Canvas<'_> {
    fn figure(&self, title: &str, parts: &[&str], groups: &[Group]) -> Drawn {
        self.svg.fill(&WHITE).map_err(failure)?;
        self.text(title, (24, 24), HPos::Left, 19, INK, FontStyle::Bold)?;
        for (part, (name, color)) in parts.iter().zip(COLORS).enumerate() {
            let left = LEFT + part as i32 * LEGEND_SLOT;
            self.fill((left, 48), (left + 14, 62), color)?;
            self.text(name, (left + 20, 55), HPos::Left, 15, INK, FontStyle::Normal)?;
        }
        self.axis(HEAD + groups.iter().map(Group::height).sum::<i32>())?;
        let mut top = HEAD;
        for group in groups {
            let place = (24, top + CASE_HEAD / 2);
            self.text(&group.name, place, HPos::Left, 16, INK, FontStyle::Bold)?;
            for (row, bar) in group.bars.iter().enumerate() {
                self.bar(bar, top + CASE_HEAD + row as i32 * ROW + ROW / 2)?;
            }
            top += group.height();
        }
        self.svg.present().map_err(failure)
    }

    fn axis(&self, bottom: i32) -> Drawn {
        let step = tick(self.longest);
        for number in 0..=(self.longest / step) as u32 {
            let value = f64::from(number) * step;
            let x = self.x(value);
            let line = PathElement::new([(x, HEAD), (x, bottom)], GRID);
            self.svg.draw(&line).map_err(failure)?;
            let label = format!("{}", (value * 1e6).round() / 1e6);
            self.text(&label, (x, bottom + 12), HPos::Center, 13, FAINT, FontStyle::Normal)?;
        }
        self.text(
            self.unit,
            (LEFT + PLOT / 2, bottom + 34),
            HPos::Center,
            15,
            FAINT,
            FontStyle::Normal,
        )
    }

    fn bar(&self, bar: &Bar, middle: i32) -> Drawn {
        self.text(&bar.name, (LEFT - 12, middle), HPos::Right, 15, INK, FontStyle::Normal)?;
        let mut at = 0.0;
        for (part, color) in bar.parts.iter().zip(COLORS) {
            let (from, to) = (self.x(at), self.x(at + part));
            at += part;
            if to > from {
                self.fill((from, middle - BAR / 2), (to, middle + BAR / 2), color)?;
            }
        }
        let label = if at < 0.1 { format!("{at:.4}") } else { format!("{at:.2}") };
        self.text(&label, (self.x(at) + 8, middle), HPos::Left, 14, FAINT, FontStyle::Normal)
    }

    fn x(&self, value: f64) -> i32 {
        LEFT + (value / self.longest * f64::from(PLOT)).round() as i32
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
