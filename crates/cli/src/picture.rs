//! The canvas that all pictures of the command are drawn on: an SVG file, its colours, and the
//! distance of grid lines.

use clap::ValueEnum;
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, FontStyle, RGBColor, TextStyle, WHITE};
use std::path::Path;
use std::{fmt, fs};

pub const INK: Color = RGBColor(34, 34, 34);
pub const FAINT: Color = RGBColor(110, 110, 110);
pub const GRID: Color = RGBColor(222, 222, 222);
pub const GREY: Color = RGBColor(190, 190, 190);
// Colours that people with any colour vision can tell apart (Okabe and Ito).
pub const ORANGE: Color = RGBColor(230, 159, 0);
pub const BLUE: Color = RGBColor(0, 114, 178);
pub const SKY: Color = RGBColor(86, 180, 233);
pub const GREEN: Color = RGBColor(0, 158, 115);
pub const RED: Color = RGBColor(213, 94, 0);
pub const PURPLE: Color = RGBColor(204, 121, 167);
pub const YELLOW: Color = RGBColor(240, 228, 66);
/// For what is no activity.
pub const SLATE: Color = RGBColor(140, 150, 175);
// Much lighter than those: told apart by that.
pub const PEACH: Color = RGBColor(246, 197, 160);
pub const LAVENDER: Color = RGBColor(226, 205, 230);
pub const STRAW: Color = RGBColor(250, 243, 180);

pub type Color = RGBColor;
/// Pixels from the left and from the top.
pub type Point = (i32, i32);
pub type Failure = Box<dyn fmt::Display>;
pub type Drawn = Result<(), Failure>;

/// Where a text's point is; vertically that is always its middle.
#[derive(Clone, Copy)]
pub enum Anchor {
    Left,
    Center,
    Right,
}

/// How a text is set.
#[derive(Clone, Copy)]
pub struct Type {
    pub anchor: Anchor,
    pub size: i32,
    pub color: Color,
    pub is_bold: bool,
}

impl Type {
    /// Text that begins at its point.
    pub const fn left(size: i32, color: Color) -> Self {
        Self { anchor: Anchor::Left, size, color, is_bold: false }
    }

    /// A heading, which begins at its point.
    pub const fn head(size: i32) -> Self {
        Self { is_bold: true, ..Self::left(size, INK) }
    }

    /// The same with its point elsewhere.
    pub const fn at(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }
}

/// An area that is drawn on.
pub struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

impl Canvas<'_> {
    pub fn rectangle(&self, corner: Point, opposite: Point, color: Color) -> Drawn {
        self.0.draw(&Rectangle::new([corner, opposite], color.filled())).map_err(failure)
    }

    pub fn line(&self, from: Point, to: Point, color: Color) -> Drawn {
        self.0.draw(&PathElement::new([from, to], color)).map_err(failure)
    }

    pub fn text(&self, text: &str, at: Point, set: Type) -> Drawn {
        let weight = if set.is_bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = ("sans-serif", f64::from(set.size) * 1.24, weight); // The backend divides by 1.24.
        let anchor = match set.anchor {
            Anchor::Left => HPos::Left,
            Anchor::Center => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let style = TextStyle::from(font).color(&set.color).pos(Pos::new(anchor, VPos::Center));
        self.0.draw(&Text::new(text, at, style)).map_err(failure)
    }
}

fn failure(error: impl fmt::Display + 'static) -> Failure {
    Box::new(error)
}

/// How wide a picture is where it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Width {
    /// A pixel for a pixel
    #[default]
    Screen,
    /// A column of a page with two, 85 mm
    Column,
    /// Both of them, 178 mm
    Page,
}

impl Width {
    fn mm(self) -> Option<u32> {
        match self {
            Width::Screen => None,
            Width::Column => Some(85),
            Width::Page => Some(178),
        }
    }
}

/// Writes a picture of this size that `draw` draws.
///
/// # Errors
/// A message that names the file.
pub fn save(
    file: &Path,
    size: Point,
    draw: impl FnOnce(&Canvas<'_>) -> Drawn,
) -> Result<(), String> {
    save_as(file, size, Width::Screen, draw)
}

/// The same, to be shown in another width.
///
/// # Errors
/// A message that names the file.
pub fn save_as(
    file: &Path,
    size: Point,
    width: Width,
    draw: impl FnOnce(&Canvas<'_>) -> Drawn,
) -> Result<(), String> {
    let failed = |e: &dyn fmt::Display| format!("cannot draw {}: {e}", file.display());
    let mut picture = String::new();
    {
        let size = (size.0 as u32, size.1 as u32);
        let canvas = Canvas(SVGBackend::with_string(&mut picture, size).into_drawing_area());
        let drawn = canvas.0.fill(&WHITE).map_err(failure);
        let drawn = drawn.and_then(|()| draw(&canvas));
        drawn.and_then(|()| canvas.0.present().map_err(failure)).map_err(|e| failed(&e))?;
    }
    if let Some(mm) = width.mm() {
        picture = in_mm(&picture, size, mm);
    }
    fs::write(file, picture).map_err(|e| failed(&e))
}

/// A picture of so many pixels, so many millimetres wide.
fn in_mm(picture: &str, (width, height): Point, mm: u32) -> String {
    let pixels = format!("width=\"{width}\" height=\"{height}\"");
    let tall = f64::from(mm) * f64::from(height) / f64::from(width);
    picture.replacen(&pixels, &format!("width=\"{mm}mm\" height=\"{tall:.1}mm\""), 1)
}

/// The distance of the grid lines of an axis: 1, 2 or 5 times a power of ten, for at most `lines`
/// of them.
pub fn tick(longest: f64, lines: f64) -> f64 {
    (-6..=18)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
        .find(|step| longest / step <= lines)
        .unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_have_the_width_of_a_column() {
        let file = tempfile::NamedTempFile::new().unwrap();
        save_as(file.path(), (600, 300), Width::Column, |_| Ok(())).unwrap();
        let picture = fs::read_to_string(file.path()).unwrap();
        let head = picture.lines().next().unwrap();
        assert!(head.contains("width=\"85mm\" height=\"42.5mm\""), "{head}");
        assert!(head.contains("viewBox=\"0 0 600 300\""), "{head}");
    }

    #[test]
    fn grid_lines_are_round_and_few() {
        for (longest, step) in [(1.0, 0.1), (13.0, 2.0), (60.0, 10.0), (1500.0, 200.0)] {
            assert!((tick(longest, 10.0) - step).abs() < 1e-9, "{longest}");
        }
    }
}
