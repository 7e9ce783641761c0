//! The timeline picture: what a program and its tiers did, and when, as an SVG file.
//!
//! A picture is a column of panels that share one time axis. A panel has a row for each activity,
//! and a row has a rectangle for each span of time in which that activity went on.

use crate::picture::{
    self, Anchor, BLUE, Canvas, Color, Drawn, FAINT, GREEN, GREY, GRID, INK, ORANGE, SKY, Type,
    tick,
};
use forebay_node::TRACE_HEADING;
use std::path::Path;

const WIDTH: i32 = 1000;
/// Room for the names of the rows.
const LEFT: i32 = 150;
/// Room for the totals of the rows.
const RIGHT: i32 = 170;
const HEAD: i32 = 72;
const FOOT: i32 = 48;
const PANEL_HEAD: i32 = 34;
const PANEL_GAP: i32 = 26;
const ROW: i32 = 26;
const BAR: i32 = 18;
/// From one entry of the legend to the next.
const LEGEND_SLOT: i32 = 160;
/// Room that a mark's words need.
const MARK_ROOM: i32 = 220;
/// Narrower bars could not be seen.
const BAR_WIDTH_MIN: i32 = 2;

/// Lines of the grid.
const LINES: f64 = 12.0;

/// What goes on in a span of time; decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The program computes.
    Compute,
    /// The program writes.
    Write,
    /// The program reads.
    Read,
    /// The node manager writes a tier's data to the backing store.
    Flush,
    /// The node manager moves a tier's data to the next tier.
    Demote,
}

impl Activity {
    const ALL: [Self; 5] = [Self::Compute, Self::Write, Self::Read, Self::Flush, Self::Demote];

    fn meaning(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Write => "program writes",
            Self::Read => "program reads",
            Self::Flush => "flush to the store",
            Self::Demote => "demote one tier down",
        }
    }

    fn color(self) -> Color {
        match self {
            Self::Compute => GREY,
            Self::Write => BLUE,
            Self::Read => SKY,
            Self::Flush => GREEN,
            Self::Demote => ORANGE,
        }
    }
}

/// A stretch of time in microseconds of CLOCK_REALTIME, and the bytes that moved in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub start_us: u64,
    /// When it was over.
    pub end_us: u64,
    /// What was moved.
    pub bytes: u64,
}

impl Span {
    /// Its length in microseconds.
    pub fn length_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us)
    }
}

/// All spans of one activity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name at the left.
    pub name: String,
    /// What went on.
    pub activity: Activity,
    /// When it went on, in any order.
    pub spans: Vec<Span>,
}

impl Row {
    /// What is written at the right: how much, and in how much time.
    fn total(&self) -> String {
        let bytes: u64 = self.spans.iter().map(|span| span.bytes).sum();
        let busy = merged(&self.spans, 0).iter().map(Span::length_us).sum::<u64>() as f64 / 1e6;
        match bytes {
            0 => format!("{busy:.2} s"),
            bytes => format!("{:.0} MiB in {busy:.2} s", bytes as f64 / f64::from(1 << 20)),
        }
    }
}

/// One run: its rows, and the moments worth a line across all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Panel {
    /// What was run.
    pub title: String,
    /// The time at the left edge, in microseconds of CLOCK_REALTIME.
    pub origin_us: u64,
    /// Its activities, from top to bottom.
    pub rows: Vec<Row>,
    /// Moments in microseconds of CLOCK_REALTIME, and what happened then.
    pub marks: Vec<(u64, String)>,
}

impl Panel {
    fn height(&self) -> i32 {
        PANEL_HEAD + self.rows.len() as i32 * ROW + PANEL_GAP
    }

    fn length_us(&self) -> u64 {
        let spans = self.rows.iter().flat_map(|row| &row.spans).map(|span| span.end_us);
        let marks = self.marks.iter().map(|(at, _)| *at);
        spans.chain(marks).max().unwrap_or(0).saturating_sub(self.origin_us)
    }
}

/// Reads the trace of a run, one movement a line after the header
/// `start_us,end_us,action,from,to,bytes`, into a row for each way between `tiers` (fastest first)
/// and the store.
pub fn movements(trace: &str, tiers: &[&str]) -> Result<Vec<Row>, String> {
    let mut lines = trace.lines().enumerate();
    if lines.next().map(|(_, line)| line.trim()) != Some(TRACE_HEADING) {
        return Err(format!("line 1: the trace must begin with {TRACE_HEADING}"));
    }
    let mut rows: Vec<(usize, usize, Row)> = Vec::new();
    let depth = |tier: &str| tiers.iter().position(|name| *name == tier).unwrap_or(tiers.len());
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let (activity, from, to, span) =
            movement(line).ok_or_else(|| format!("line {}: not a movement: {line}", number + 1))?;
        let name = format!("{from} → {to}");
        match rows.iter_mut().find(|(_, _, row)| row.name == name && row.activity == activity) {
            Some((_, _, row)) => row.spans.push(span),
            None => {
                let row = Row { name, activity, spans: vec![span] };
                rows.push((depth(from), depth(to), row));
            }
        }
    }
    rows.sort_by_key(|(from, to, _)| (*from, *to));
    Ok(rows.into_iter().map(|(_, _, row)| row).collect())
}

fn movement(line: &str) -> Option<(Activity, &str, &str, Span)> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    let [start, end, action, from, to, bytes] = fields[..] else { return None };
    let activity = match action {
        "flush" => Activity::Flush,
        "demote" | "place" => Activity::Demote,
        _ => return None,
    };
    let span = Span {
        start_us: start.parse().ok()?,
        end_us: end.parse().ok()?,
        bytes: bytes.parse().ok()?,
    };
    Some((activity, from, to, span))
}

/// Draws the panels under each other into an SVG file.
pub fn draw(file: &Path, title: &str, panels: &[Panel]) -> Result<(), String> {
    let height = HEAD + panels.iter().map(Panel::height).sum::<i32>() + FOOT;
    let length_us = panels.iter().map(Panel::length_us).max().unwrap_or(0).max(1);
    picture::save(file, (WIDTH, height), |canvas| {
        Timeline { canvas, length_us }.picture(title, panels)
    })
}

/// The area to draw on, and the time that its width stands for.
struct Timeline<'a, 'c> {
    canvas: &'a Canvas<'c>,
    length_us: u64,
}

impl Timeline<'_, '_> {
    fn picture(&self, title: &str, panels: &[Panel]) -> Drawn {
        self.canvas.text(title, (LEFT, 24), Type::head(21))?;
        self.legend(panels)?;
        let mut top = HEAD;
        for panel in panels {
            self.panel(panel, top)?;
            top += panel.height();
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2;
        let label = Type::left(15, FAINT).at(Anchor::Center);
        self.canvas.text("seconds since the program started", (middle, top + 30), label)
    }

    fn legend(&self, panels: &[Panel]) -> Drawn {
        let shown = |activity: &Activity| {
            panels.iter().flat_map(|panel| &panel.rows).any(|row| row.activity == *activity)
        };
        let mut left = LEFT;
        for activity in Activity::ALL.into_iter().filter(shown) {
            self.canvas.rectangle((left, 44), (left + 14, 58), activity.color())?;
            self.canvas.text(activity.meaning(), (left + 20, 51), Type::left(15, INK))?;
            left += LEGEND_SLOT;
        }
        Ok(())
    }

    fn panel(&self, panel: &Panel, top: i32) -> Drawn {
        self.canvas.text(&panel.title, (LEFT, top + PANEL_HEAD / 2), Type::head(16))?;
        let rows_top = top + PANEL_HEAD;
        let bottom = rows_top + panel.rows.len() as i32 * ROW;
        self.grid(rows_top, bottom)?;
        for (i, row) in panel.rows.iter().enumerate() {
            self.row(row, panel.origin_us, rows_top + i as i32 * ROW)?;
        }
        for (at_us, meaning) in &panel.marks {
            let x = self.x(at_us.saturating_sub(panel.origin_us));
            self.canvas.line((x, rows_top - 8), (x, bottom), INK)?;
            // The words stand on the side of the line where there is room for them.
            let (anchor, x) =
                if x + MARK_ROOM > WIDTH { (Anchor::Right, x - 5) } else { (Anchor::Left, x + 5) };
            self.canvas.text(meaning, (x, rows_top - 7), Type::left(13, INK).at(anchor))?;
        }
        Ok(())
    }

    fn row(&self, row: &Row, origin_us: u64, top: i32) -> Drawn {
        let middle = top + ROW / 2;
        let name = Type::left(15, INK).at(Anchor::Right);
        self.canvas.text(&row.name, (LEFT - 12, middle), name)?;
        // Spans less than a pixel apart look like one: thousands of them would only bloat the file.
        let pixel_us = self.length_us / (WIDTH - LEFT - RIGHT) as u64;
        for span in merged(&row.spans, pixel_us) {
            let left = self.x(span.start_us.saturating_sub(origin_us));
            let right = self.x(span.end_us.saturating_sub(origin_us)).max(left + BAR_WIDTH_MIN);
            let (above, below) = (middle - BAR / 2, middle + BAR / 2);
            self.canvas.rectangle((left, above), (right, below), row.activity.color())?;
        }
        let right = WIDTH - RIGHT + 14;
        self.canvas.text(&row.total(), (right, middle), Type::left(14, FAINT))
    }

    /// The axis below a panel's rows, with a line for each round number of seconds.
    fn grid(&self, top: i32, bottom: i32) -> Drawn {
        let step_us = tick_us(self.length_us);
        for at_us in (0..=self.length_us).step_by(step_us as usize) {
            let x = self.x(at_us);
            self.canvas.line((x, top), (x, bottom), GRID)?;
            let label = format!("{}", at_us as f64 / 1e6);
            self.canvas.text(&label, (x, bottom + 9), Type::left(13, FAINT).at(Anchor::Center))?;
        }
        self.canvas.line((LEFT, bottom), (WIDTH - RIGHT, bottom), FAINT)
    }

    fn x(&self, time_us: u64) -> i32 {
        let width = (WIDTH - LEFT - RIGHT) as f64;
        LEFT + (time_us as f64 / self.length_us as f64 * width).round() as i32
    }
}

/// The spans in order of time, those at most `gap_us` apart made one.
fn merged(spans: &[Span], gap_us: u64) -> Vec<Span> {
    let mut sorted = spans.to_vec();
    sorted.sort_by_key(|span| span.start_us);
    let mut merged: Vec<Span> = Vec::new();
    for span in sorted {
        match merged.last_mut() {
            Some(last) if span.start_us <= last.end_us + gap_us => {
                last.end_us = last.end_us.max(span.end_us);
                last.bytes += span.bytes;
            }
            _ => merged.push(span),
        }
    }
    merged
}

/// The distance of the grid lines: at least 100 microseconds.
fn tick_us(length_us: u64) -> u64 {
    tick(length_us as f64, LINES).max(100.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [&str; 3] = ["ram", "nvme", "bb"];

    fn span(start_us: u64, end_us: u64, bytes: u64) -> Span {
        Span { start_us, end_us, bytes }
    }

    #[test]
    fn movements_become_rows_from_the_fastest_tier_down() {
        let trace = "start_us,end_us,action,from,to,bytes\n\
                     5,9,flush,nvme,store,4\n1,2,flush,ram,store,1\n\
                     1,3,demote,ram,nvme,2\n3,4,flush,ram,store,1\n";
        let rows = movements(trace, &TIERS).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["ram → nvme", "ram → store", "nvme → store"]);
        assert_eq!(rows[0].activity, Activity::Demote);
        assert_eq!(rows[1].spans, [span(1, 2, 1), span(3, 4, 1)]);
    }

    #[test]
    fn a_broken_trace_is_named_by_its_line() {
        let header = "start_us,end_us,action,from,to,bytes";
        assert_eq!(movements(header, &TIERS).unwrap(), []);
        assert!(movements("", &TIERS).unwrap_err().starts_with("line 1:"));
        for line in ["1,2,flush,ram,store", "1,2,evict,ram,store,3", "x,2,flush,ram,store,3"] {
            let error = movements(&format!("{header}\n\n{line}\n"), &TIERS).unwrap_err();
            assert_eq!(error, format!("line 3: not a movement: {line}"));
        }
    }

    #[test]
    fn near_spans_become_one() {
        let spans = [span(50, 60, 1), span(0, 10, 2), span(5, 8, 4), span(12, 20, 8)];
        assert_eq!(merged(&spans, 2), [span(0, 20, 14), span(50, 60, 1)]);
        assert_eq!(merged(&spans, 0), [span(0, 10, 6), span(12, 20, 8), span(50, 60, 1)]);
    }

    #[test]
    fn grid_lines_are_round_and_few() {
        assert_eq!(tick_us(1), 100);
        assert_eq!(tick_us(900_000), 100_000);
        assert_eq!(tick_us(13_000_000), 2_000_000);
        assert_eq!(tick_us(60_000_000), 5_000_000);
    }

    #[test]
    fn the_picture_shows_every_row() {
        let file = std::env::temp_dir().join(format!("timeline-{}.svg", std::process::id()));
        let row = |name: &str, activity, spans: &[Span]| Row {
            name: name.into(),
            activity,
            spans: spans.to_vec(),
        };
        let panel = Panel {
            title: "a < b & c".into(),
            origin_us: 1_000_000,
            rows: vec![
                row("compute", Activity::Compute, &[span(1_000_000, 1_500_000, 0)]),
                row("ram → store", Activity::Flush, &[span(1_500_000, 3_000_000, 1 << 20)]),
            ],
            marks: vec![(3_000_000, "all safe".into())],
        };
        draw(&file, "title", &[panel.clone(), Panel::default()]).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for text in ["title", "a &lt; b &amp; c", "ram → store", "1 MiB in 1.50 s", "all safe"] {
            assert!(svg.contains(text), "{text} is not in\n{svg}");
        }
        assert!(svg.contains("#009E73") && !svg.contains("#E69F00"), "only what was used");

        let error = draw(Path::new("/no/such/picture.svg"), "title", &[panel]).unwrap_err();
        assert!(error.starts_with("cannot draw /no/such/picture.svg: "), "{error}");
    }
}
