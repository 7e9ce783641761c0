//! The lines of `forebay top`, for a screen of any size and for logs.

use super::look::{Pool, Process};
use crate::gauges::{self, LEGEND};
use crate::text::{bytes, counted, files};
use forebay_node::log::shown;
use forebay_node::outlook::HotFile;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use std::time::Duration;

/// By what processes are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessOrder {
    /// The fastest writer first.
    Writes,
    /// The fastest reader first.
    Reads,
    /// Who has read and written most.
    Total,
}

/// By what files are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOrder {
    /// The most used first.
    Accesses,
    /// Most bytes that are not yet on the store.
    Unsafe,
    /// The largest.
    Size,
}

/// What is shown, and how.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Order of processes.
    pub processes: ProcessOrder,
    /// Order of files.
    pub files: FileOrder,
    /// The number of the pool that is shown, of all modulo how many there are.
    pub pool: usize,
    /// Nothing is looked at anew.
    pub is_paused: bool,
    /// The keys are shown.
    pub has_help: bool,
    /// Between two looks.
    pub every: Duration,
}

impl View {
    /// As it begins.
    pub fn new(every: Duration) -> View {
        View {
            processes: ProcessOrder::Writes,
            files: FileOrder::Accesses,
            pool: 0,
            is_paused: false,
            has_help: false,
            every,
        }
    }
}

/// Keys, and what they do.
pub const KEYS: [(&str, &str); 12] = [
    ("q, Esc, Ctrl-C", "end"),
    ("w", "processes by bytes a second that they write"),
    ("r", "processes by bytes a second that they read"),
    ("t", "processes by all bytes since they began"),
    ("a", "files by accesses lately"),
    ("u", "files by bytes that are not yet on the store"),
    ("z", "files by size"),
    ("Tab", "the next instance, if there are several"),
    ("p, Space", "pause, and go on"),
    ("+, -", "look more seldom, or more often"),
    ("Ctrl-L, Ctrl-Z", "draw anew; suspend"),
    ("h, ?", "this help, and back"),
];

const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const UNSAFE: Style = Style::new().fg(Color::Yellow);
const SAFE: Style = Style::new().fg(Color::Green);

/// All lines for a screen of so many columns and rows; without rows: as many as there are. `time`
/// is the time of day.
pub fn lines(
    pools: &[Pool],
    view: &View,
    width: usize,
    rows: Option<usize>,
    time: &str,
) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let paused = if view.is_paused { ", paused" } else { "" };
    let keys = if rows.is_some() { "; h: keys, q: end" } else { "" };
    let every = gauges::time(view.every);
    let head = format!("forebay top {time}, every {every}{paused}{keys}");
    lines.push(Line::styled(cut(&head, width), BOLD));
    if view.has_help {
        let wide = KEYS.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
        let help = KEYS.map(|(key, what)| Line::raw(cut(&format!("{key:wide$}  {what}"), width)));
        lines.extend(help);
    } else if pools.is_empty() {
        lines.push(Line::raw(cut("no node manager runs, and none has left anything", width)));
    } else if rows.is_none() {
        for pool in pools {
            of_pool(&mut lines, pool, view, width, None);
        }
    } else {
        let chosen = view.pool % pools.len();
        if pools.len() > 1 {
            let more = format!("instance {} of {} (Tab: the next)", chosen + 1, pools.len());
            lines.push(Line::raw(cut(&more, width)));
        }
        of_pool(&mut lines, &pools[chosen], view, width, rows);
    }
    if let Some(rows) = rows {
        lines.truncate(rows);
    }
    lines
}

/// The lines of one pool; on a screen `lines` have at most so many `rows` then.
fn of_pool(
    lines: &mut Vec<Line<'static>>,
    pool: &Pool,
    view: &View,
    width: usize,
    rows: Option<usize>,
) {
    let (state, is_good) = &pool.state;
    let clients = counted(pool.processes.len(), "process", "processes");
    let style = if *is_good { Style::new() } else { BAD };
    // The state first: on a narrow screen the name of the instance says less.
    let head = format!("{}: {clients}, instance {}", shown(state), pool.instance);
    lines.push(Line::styled(cut(&head, width), style));
    for store in &pool.stores {
        lines
            .push(Line::raw(format!("store {}", cut_path(&shown(store), width.saturating_sub(6)))));
    }
    of_tiers(lines, pool, width);
    of_unsafe(lines, pool, width);
    for error in &pool.errors {
        lines.push(Line::styled(cut(&format!("ERROR {error}"), width), BAD));
    }
    // Below what is wrong, which a small screen has to show.
    for (number, used, limit) in &pool.capped {
        let line = format!("run {number}  {} unsafe, {} at most", bytes(*used), bytes(*limit));
        lines.push(Line::raw(cut(&line, width)));
    }
    let mut processes: Vec<&Process> = pool.processes.iter().collect();
    let key = |process: &Process| match view.processes {
        ProcessOrder::Writes => (process.writes, process.status.written),
        ProcessOrder::Reads => (process.reads, process.status.read),
        ProcessOrder::Total => (process.status.written.saturating_add(process.status.read), 0),
    };
    processes.sort_by_key(|process| (std::cmp::Reverse(key(process)), process.status.pid));
    let mut files: Vec<&HotFile> = pool.files.iter().collect();
    files.sort_by(|one, other| {
        let by = match view.files {
            FileOrder::Accesses => other.accesses.total_cmp(&one.accesses),
            FileOrder::Unsafe => other.dirty.cmp(&one.dirty),
            FileOrder::Size => other.size.cmp(&one.size),
        };
        by.then_with(|| one.path.cmp(&other.path))
    });
    // Two headings; the rest is for both, and what one does not need for the other.
    let (for_processes, for_files) = match rows {
        None => (processes.len(), files.len().min(FILES_IN_LOG)),
        Some(rows) => {
            let left = rows.saturating_sub(lines.len() + 2);
            let half = left - left / 2;
            let first = processes.len().min(half.max(left.saturating_sub(files.len())));
            (first, left - first)
        }
    };
    of_processes(lines, &processes, for_processes, view, width);
    of_files(lines, &files, for_files, view, width);
}

/// Files of each look in a log.
const FILES_IN_LOG: usize = 10;

/// The least and the most letters of a bar.
const BAR_MIN: usize = 4;
const BAR_MAX: usize = 40;
/// Columns of both rates.
const RATES: usize = 27;

fn of_tiers(lines: &mut Vec<Line<'static>>, pool: &Pool, width: usize) {
    let name = pool.tiers.iter().map(|tier| tier.name.len()).max().unwrap_or(0).clamp(5, 12);
    let wide = width >= 76;
    let amounts = if wide { format!("{:>11} {:>11} ", "of", "unsafe") } else { String::new() };
    // What the numbers leave; without room for a bar there is none.
    let numbers = name + "  [] 100 % ".len() - 1 + amounts.len() + RATES;
    let bar = match width.saturating_sub(numbers) {
        ..BAR_MIN => None,
        room => Some(room.min(BAR_MAX)),
    };
    let blank = bar.map_or(String::new(), |bar| " ".repeat(bar + 3));
    let head = format!("{:name$}{blank}  used {amounts}{:>13} {:>13}", "TIER", "in", "out");
    lines.push(Line::styled(pad(&head, width), HEAD));
    for (at, tier) in pool.tiers.iter().enumerate() {
        let flow = pool.rates.as_ref().and_then(|rates| rates.tiers.get(at));
        let (into, out) = flow.map_or(("?".into(), "?".into()), |flow| {
            (gauges::rate(flow.into), gauges::rate(flow.out))
        });
        let percent = gauges::percent(tier);
        let amounts = match wide {
            true => format!("{:>11} {:>11} ", bytes(tier.capacity), bytes(tier.dirty)),
            false => String::new(),
        };
        let numbers = format!(" {percent:>3} % {amounts}{into:>13} {out:>13}");
        let style = if tier.failed.is_some() { BAD } else { Style::new() };
        let mut spans = vec![Span::styled(format!("{:name$}", cut(&tier.name, name)), style)];
        if let Some(bar) = bar {
            let [dirty, used] = gauges::parts(tier, bar);
            spans.extend([
                Span::raw(" ["),
                Span::styled("#".repeat(dirty), UNSAFE),
                Span::styled("=".repeat(used - dirty), SAFE),
                Span::raw(".".repeat(bar - used) + "]"),
            ]);
        }
        let taken: usize = spans.iter().map(|span| span.content.chars().count()).sum();
        spans.push(Span::raw(cut(&numbers, width.saturating_sub(taken))));
        lines.push(Line::from(spans));
    }
    if let Some(rates) = &pool.rates {
        let gap = if wide { " ".repeat(24) } else { String::new() };
        let (into, out) = (gauges::rate(rates.store.into), gauges::rate(rates.store.out));
        let line = format!("{:name$}{blank}       {gap}{into:>13} {out:>13}", "store");
        lines.push(Line::raw(cut(&line, width)));
    }
}

fn of_unsafe(lines: &mut Vec<Line<'static>>, pool: &Pool, width: usize) {
    if pool.dirty == 0 && pool.oldest.is_none() {
        return lines.push(Line::styled(cut("unsafe 0 B: all is on the store", width), SAFE));
    }
    let drain = if pool.state.1 { gauges::drain(&pool.drain) } else { String::new() };
    let most = pool.cap.map_or(String::new(), |cap| format!("; {} at most", bytes(cap)));
    let (left, ahead) = (bytes(pool.dirty), files(pool.ahead));
    let line = format!("unsafe {left} of {ahead}{drain}{most} ({LEGEND})");
    lines.push(Line::styled(cut(&line, width), UNSAFE));
    if let Some(oldest) = &pool.oldest {
        let when = gauges::outlook(&oldest.outlook);
        let line = format!("oldest {} ago, {when}: ", gauges::time(oldest.age));
        let left = width.saturating_sub(line.chars().count());
        let path = if left > 8 { cut_path(&shown(&oldest.path), left) } else { String::new() };
        lines.push(Line::raw(cut(&format!("{line}{path}"), width)));
    }
}

fn of_processes(
    lines: &mut Vec<Line<'static>>,
    processes: &[&Process],
    rows: usize,
    view: &View,
    width: usize,
) {
    let mark = |order| if view.processes == order { "*" } else { "" };
    let wide = width >= 76;
    let (writes, reads) = (mark(ProcessOrder::Writes), mark(ProcessOrder::Reads));
    let totals = match wide {
        true => format!(" {:>11} {:>11}", format!("written{}", mark(ProcessOrder::Total)), "read"),
        false => String::new(),
    };
    let head = format!(
        "{:>8} {:>13} {:>13}{totals} PROCESS",
        "PID",
        format!("writes{writes}"),
        format!("reads{reads}")
    );
    lines.push(Line::styled(pad(&head, width), HEAD));
    for process in processes.iter().take(rows) {
        let status = &process.status;
        let totals = match wide {
            true => format!(" {:>11} {:>11}", bytes(status.written), bytes(status.read)),
            false => String::new(),
        };
        let job = if status.job > 0 { format!(" (job {})", status.job) } else { String::new() };
        let line = format!(
            "{:>8} {:>13} {:>13}{totals} {}{job}",
            status.pid,
            gauges::rate(process.writes),
            gauges::rate(process.reads),
            shown(&status.name)
        );
        lines.push(Line::raw(cut(&line, width)));
    }
}

fn of_files(
    lines: &mut Vec<Line<'static>>,
    files: &[&HotFile],
    rows: usize,
    view: &View,
    width: usize,
) {
    let mark = |order| if view.files == order { "*" } else { "" };
    let head = format!(
        "{:>9} {:>11} {:>11} FILE",
        format!("accesses{}", mark(FileOrder::Accesses)),
        format!("unsafe{}", mark(FileOrder::Unsafe)),
        format!("size{}", mark(FileOrder::Size))
    );
    lines.push(Line::styled(pad(&head, width), HEAD));
    for file in files.iter().take(rows) {
        let numbers =
            format!("{:>9.1} {:>11} {:>11} ", file.accesses, bytes(file.dirty), bytes(file.size));
        let left = width.saturating_sub(numbers.chars().count());
        let line = Line::from(format!("{numbers}{}", cut_path(&shown(&file.path), left)));
        lines.push(if file.dirty > 0 { line.style(UNSAFE) } else { line });
    }
}

/// A text in so many columns at most; what is cut off ends in a mark.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_owned(),
        false if width < 2 => String::new(),
        false => text.chars().take(width - 1).chain(['~']).collect(),
    }
}

/// The same of a path, whose end says more than its beginning.
fn cut_path(path: &str, width: usize) -> String {
    let count = path.chars().count();
    match count <= width {
        true => path.to_owned(),
        false if width < 2 => String::new(),
        false => std::iter::once('~').chain(path.chars().skip(count - (width - 1))).collect(),
    }
}

/// A text in just so many columns.
fn pad(text: &str, width: usize) -> String {
    format!("{:width$}", cut(text, width))
}
