//! The timeline picture: what a program and its tiers did, and when, as an SVG file.
//!
//! A picture is a column of panels that share one time axis. A panel has a row for each activity,
//! and a row has a rectangle for each span of time in which that activity went on. Other activities
//! may be drawn over it. Below the rows there may be levels: how full something was, and when.

use crate::picture::{
    self, Anchor, BLUE, Canvas, Color, Drawn, FAINT, GREEN, GREY, GRID, INK, LAVENDER, ORANGE,
    PEACH, PURPLE, RED, SKY, SLATE, STRAW, Type, YELLOW, tick,
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
/// The height of a row and of its bars, of a panel with few rows and of one with many.
const ROW: (i32, i32) = (26, 18);
const SMALL_ROW: (i32, i32) = (15, 11);
const FEW_ROWS: usize = 24;
/// The height of a level.
const LEVEL: i32 = 44;
/// The entries of the legend that have room beside each other, and the height of a line of them.
const LEGEND_ENTRIES: usize = 5;
const LEGEND_LINE: i32 = 20;
/// Characters of an entry of the legend, and of a row's name.
const ENTRY_LENGTH: usize = 20;
const NAME_LENGTH: usize = 19;
/// Characters of a heading.
const TITLE_LENGTH: usize = 76;
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
    /// The node manager brings data to a faster tier.
    Raise,
    /// The program waits for a sync.
    Sync,
    /// The program opens, closes or resizes files.
    Other,
    /// A phase that the program has marked: by its place among their names.
    Phase(usize),
}

/// Phases that have a colour of their own; those beyond share one.
pub const PHASES: usize = 5;

impl Activity {
    const ALL: [Self; 8] = [
        Self::Compute,
        Self::Write,
        Self::Read,
        Self::Sync,
        Self::Other,
        Self::Flush,
        Self::Demote,
        Self::Raise,
    ];

    fn meaning(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Write => "program writes",
            Self::Read => "program reads",
            Self::Flush => "flush to the store",
            Self::Demote => "demote one tier down",
            Self::Raise => "bring to a faster tier",
            Self::Sync => "program syncs",
            Self::Other => "open, close, resize",
            Self::Phase(_) => "other phases",
        }
    }

    fn color(self) -> Color {
        match self {
            Self::Compute => GREY,
            Self::Write => BLUE,
            Self::Read => SKY,
            Self::Flush => GREEN,
            Self::Demote => ORANGE,
            Self::Raise => YELLOW,
            Self::Sync => INK,
            Self::Other => FAINT,
            // No flush and no demotion is in a row of phases: what is alike there tells apart.
            Self::Phase(place) => {
                [RED, PURPLE, PEACH, LAVENDER, STRAW].get(place).copied().unwrap_or(GRID)
            }
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

/// Spans that are drawn over those of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What went on.
    pub activity: Activity,
    /// When it went on, in any order.
    pub spans: Vec<Span>,
    /// Only the lower half of the row is drawn over.
    pub is_low: bool,
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
    /// What is drawn over that, from the first to the last.
    pub over: Vec<Layer>,
    /// What is written at the right; `None` is how much, and in how much time.
    pub note: Option<String>,
}

impl Row {
    /// A row of one activity.
    pub fn new(name: impl Into<String>, activity: Activity, spans: Vec<Span>) -> Row {
        Row { name: name.into(), activity, spans, over: Vec::new(), note: None }
    }

    fn total(&self) -> String {
        if let Some(note) = &self.note {
            return note.clone();
        }
        let bytes: u64 = self.spans.iter().map(|span| span.bytes).sum();
        let busy = merged(&self.spans, 0).iter().map(Span::length_us).sum::<u64>() as f64 / 1e6;
        match bytes {
            0 => format!("{busy:.2} s"),
            bytes => format!("{:.0} MiB in {busy:.2} s", bytes as f64 / f64::from(1 << 20)),
        }
    }
}

/// How full something was in the course of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// Bytes that it can hold.
    pub capacity: u64,
    /// Moments in microseconds of CLOCK_REALTIME, in order, and the bytes from then on.
    pub points: Vec<(u64, u64)>,
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
    /// What is below the rows.
    pub levels: Vec<Level>,
}

impl Panel {
    /// All spans, and what went on then.
    fn spans(&self) -> impl Iterator<Item = (Activity, &Span)> {
        fn of(activity: Activity, spans: &[Span]) -> impl Iterator<Item = (Activity, &Span)> {
            spans.iter().map(move |span| (activity, span))
        }
        self.rows.iter().flat_map(move |row| {
            let over = row.over.iter().flat_map(move |layer| of(layer.activity, &layer.spans));
            of(row.activity, &row.spans).chain(over)
        })
    }

    fn height(&self) -> i32 {
        PANEL_HEAD + self.rows_height() + PANEL_GAP
    }

    /// The height of a row and of its bars.
    fn row(&self) -> (i32, i32) {
        if self.rows.len() <= FEW_ROWS { ROW } else { SMALL_ROW }
    }

    fn rows_height(&self) -> i32 {
        self.rows.len() as i32 * self.row().0 + self.levels.len() as i32 * LEVEL
    }

    fn length_us(&self) -> u64 {
        let spans = self.spans().map(|(_, span)| span.end_us);
        let marks = self.marks.iter().map(|(at, _)| *at);
        let points = self.levels.iter().flat_map(|level| &level.points).map(|(at, _)| *at);
        spans.chain(marks).chain(points).max().unwrap_or(0).saturating_sub(self.origin_us)
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
                rows.push((depth(from), depth(to), Row::new(name, activity, vec![span])));
            }
        }
    }
    rows.sort_by_key(|(from, to, _)| (*from, *to));
    Ok(rows.into_iter().map(|(_, _, row)| row).collect())
}

/// A line of a trace of movements: what it was, from where, to where, and when.
pub fn movement(line: &str) -> Option<(Activity, &str, &str, Span)> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    let [start, end, action, from, to, bytes] = fields[..] else { return None };
    let activity = match action {
        "flush" => Activity::Flush,
        "demote" | "place" => Activity::Demote,
        "stage" | "promote" => Activity::Raise,
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
    draw_phases(file, title, panels, &[])
}

/// The same with phases of these names.
pub fn draw_phases(
    file: &Path,
    title: &str,
    panels: &[Panel],
    phases: &[String],
) -> Result<(), String> {
    let length_us = panels.iter().map(Panel::length_us).max().unwrap_or(0).max(1);
    let legend = legend(panels, phases);
    let lines = legend.len().div_ceil(LEGEND_ENTRIES).max(1) as i32;
    let head = HEAD + (lines - 1) * LEGEND_LINE;
    let height = head + panels.iter().map(Panel::height).sum::<i32>() + FOOT;
    picture::save(file, (WIDTH, height), |canvas| {
        Timeline { canvas, length_us }.picture((title, &legend), head, panels)
    })
}

/// What the colours mean of which there is something to be seen.
fn legend(panels: &[Panel], phases: &[String]) -> Vec<(Activity, String)> {
    let is_seen = |wanted: &dyn Fn(Activity) -> bool| {
        panels.iter().flat_map(Panel::spans).any(|(activity, _)| wanted(activity))
    };
    let calls = Activity::ALL.into_iter().filter(|&wanted| is_seen(&|seen| seen == wanted));
    let calls = calls.map(|activity| (activity, activity.meaning().to_owned()));
    let named = phases.iter().take(PHASES).enumerate();
    let named = named.map(|(place, name)| (Activity::Phase(place), cut(name, ENTRY_LENGTH)));
    let named = named.filter(|(wanted, _)| is_seen(&|seen| seen == *wanted));
    let other = Activity::Phase(PHASES);
    let others = is_seen(&|seen| matches!(seen, Activity::Phase(PHASES..)));
    let others = others.then(|| (other, other.meaning().to_owned()));
    calls.chain(named).chain(others).collect()
}

/// A text that fits, of characters that a picture may have.
fn cut(text: &str, length: usize) -> String {
    let is_shown = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let safe = |c: char| if is_shown(c) { c } else { '\u{fffd}' };
    match text.chars().count() > length {
        true => text.chars().take(length - 1).map(safe).chain(['…']).collect(),
        false => text.chars().map(safe).collect(),
    }
}

/// The area to draw on, and the time that its width stands for.
struct Timeline<'a, 'c> {
    canvas: &'a Canvas<'c>,
    length_us: u64,
}

impl Timeline<'_, '_> {
    fn picture(
        &self,
        (title, legend): (&str, &[(Activity, String)]),
        head: i32,
        panels: &[Panel],
    ) -> Drawn {
        self.canvas.text(&cut(title, TITLE_LENGTH), (LEFT, 24), Type::head(21))?;
        self.legend(legend)?;
        let mut top = head;
        for panel in panels {
            self.panel(panel, top)?;
            top += panel.height();
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2;
        let label = Type::left(15, FAINT).at(Anchor::Center);
        self.canvas.text("seconds since the program started", (middle, top + 30), label)
    }

    fn legend(&self, legend: &[(Activity, String)]) -> Drawn {
        for (place, (activity, meaning)) in legend.iter().enumerate() {
            let left = LEFT + (place % LEGEND_ENTRIES) as i32 * LEGEND_SLOT;
            let top = 44 + (place / LEGEND_ENTRIES) as i32 * LEGEND_LINE;
            self.canvas.rectangle((left, top), (left + 14, top + 14), activity.color())?;
            self.canvas.text(meaning, (left + 20, top + 7), Type::left(15, INK))?;
        }
        Ok(())
    }

    fn panel(&self, panel: &Panel, top: i32) -> Drawn {
        let title = cut(&panel.title, TITLE_LENGTH);
        self.canvas.text(&title, (LEFT, top + PANEL_HEAD / 2), Type::head(16))?;
        let rows_top = top + PANEL_HEAD;
        let bottom = rows_top + panel.rows_height();
        self.grid(rows_top, bottom)?;
        let height = panel.row();
        let mut next = rows_top;
        for row in &panel.rows {
            self.row(row, panel.origin_us, next, height)?;
            next += height.0;
        }
        for level in &panel.levels {
            self.level(level, panel.origin_us, next)?;
            next += LEVEL;
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

    fn row(&self, row: &Row, origin_us: u64, top: i32, (height, bar): (i32, i32)) -> Drawn {
        let middle = top + height / 2;
        let (size, small) = if bar == ROW.1 { (15, 14) } else { (11, 11) };
        let name = Type::left(size, INK).at(Anchor::Right);
        self.canvas.text(&cut(&row.name, NAME_LENGTH), (LEFT - 12, middle), name)?;
        let (above, below) = (middle - bar / 2, middle + bar / 2);
        self.bars(&row.spans, origin_us, (above, below), row.activity)?;
        for layer in &row.over {
            let above = if layer.is_low { middle } else { above };
            self.bars(&layer.spans, origin_us, (above, below), layer.activity)?;
        }
        let right = WIDTH - RIGHT + 14;
        self.canvas.text(&row.total(), (right, middle), Type::left(small, FAINT))
    }

    fn bars(
        &self,
        spans: &[Span],
        origin_us: u64,
        (above, below): (i32, i32),
        activity: Activity,
    ) -> Drawn {
        // Spans less than a pixel apart look like one: thousands of them would only bloat the file.
        let pixel_us = self.length_us / (WIDTH - LEFT - RIGHT) as u64;
        for span in merged(spans, pixel_us) {
            let left = self.x(span.start_us.saturating_sub(origin_us));
            let right = self.x(span.end_us.saturating_sub(origin_us)).max(left + BAR_WIDTH_MIN);
            self.canvas.rectangle((left, above), (right, below), activity.color())?;
        }
        Ok(())
    }

    /// How full something was: a step for each pixel at which that changes.
    fn level(&self, level: &Level, origin_us: u64, top: i32) -> Drawn {
        let (above, below) = (top + 6, top + LEVEL - 4);
        let name = Type::left(15, INK).at(Anchor::Right);
        let middle = i32::midpoint(above, below);
        self.canvas.text(&cut(&level.name, NAME_LENGTH), (LEFT - 12, middle), name)?;
        let height = |bytes: u64| {
            let share = bytes as f64 / level.capacity.max(1) as f64;
            (share.min(1.0) * f64::from(below - above)).ceil() as i32
        };
        // Of what changes within a pixel, the highest.
        let mut heights = vec![0; (WIDTH - LEFT - RIGHT) as usize + 1];
        let ends = level.points.iter().skip(1).map(|(at, _)| *at);
        let last = level.points.last().map(|(at, _)| *at);
        for ((start_us, bytes), end_us) in level.points.iter().zip(ends.chain(last)) {
            let [from, to] = [*start_us, end_us]
                .map(|at| (self.x(at.saturating_sub(origin_us)) - LEFT) as usize);
            let columns = heights.get_mut(from..to.max(from + 1)).into_iter().flatten();
            columns.for_each(|column| *column = height(*bytes).max(*column));
        }
        let mut left = LEFT;
        for equal in heights.chunk_by(|one, other| one == other) {
            let right = left + equal.len() as i32;
            if equal[0] > 0 {
                self.canvas.rectangle((left, below - equal[0]), (right, below), SLATE)?;
            }
            left = right;
        }
        self.canvas.line((LEFT, above), (WIDTH - RIGHT, above), GRID)?;
        self.canvas.line((LEFT, below), (WIDTH - RIGHT, below), FAINT)?;
        let most = level.points.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let note = format!("up to {:.0} of {:.0} MiB", mib(most), mib(level.capacity));
        self.canvas.text(&note, (WIDTH - RIGHT + 14, middle), Type::left(14, FAINT))
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
pub fn merged(spans: &[Span], gap_us: u64) -> Vec<Span> {
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
    fn a_hundred_threads_and_any_names_fit() {
        let file = std::env::temp_dir().join(format!("threads-{}.svg", std::process::id()));
        let layer = |place: usize, at: u64| Layer {
            activity: Activity::Phase(place),
            spans: vec![span(at, at + 500, 0)],
            is_low: place % 2 == 1,
        };
        let row = |thread: u64| Row {
            over: (0..7).map(|place| layer(place, thread * 10 + place as u64 * 1000)).collect(),
            ..Row::new("a very long name of a thread", Activity::Compute, vec![span(0, 9000, 0)])
        };
        let panel = Panel {
            title: "\u{1}<&\u{ffff}".repeat(100),
            rows: (0..100).map(row).collect(),
            levels: vec![Level {
                name: "ram".into(),
                capacity: 8,
                points: vec![(0, 0), (10, 9), (10, 1), (4000, 8), (9000, 0)],
            }],
            ..Panel::default()
        };
        let names: Vec<_> = (0..7).map(|place| format!("phase {place}")).collect();
        draw_phases(&file, "title", &[panel], &names).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.matches("a very long name o…").count() == 100);
        assert!(
            svg.contains("phase 4") && !svg.contains("phase 5") && svg.contains("other phases")
        );
        assert!(!svg.contains('\u{1}') && !svg.contains('\u{ffff}') && svg.contains("&lt;&amp;"));
        let height: i32 =
            svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!((1500..2500).contains(&height), "{height}");
        assert!(svg.contains("up to 0 of 0 MiB") && svg.contains("#8C96AF"));
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
        let row = |name: &str, activity, spans: &[Span]| Row::new(name, activity, spans.to_vec());
        let panel = Panel {
            title: "a < b & c".into(),
            origin_us: 1_000_000,
            rows: vec![
                row("compute", Activity::Compute, &[span(1_000_000, 1_500_000, 0)]),
                row("ram → store", Activity::Flush, &[span(1_500_000, 3_000_000, 1 << 20)]),
            ],
            marks: vec![(3_000_000, "all safe".into())],
            levels: Vec::new(),
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
