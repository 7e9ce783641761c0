//! `forebay top`: what `forebay status` shows, live.
//!
//! It reads the pools in shared memory and asks no node manager anything: one that hangs, or ends
//! meanwhile, is seen and does not hold it up.

mod look;
mod view;

use crate::output;
use clap::Args;
use forebay_node::log;
use forebay_pool::crash;
use look::Eyes;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, Clear, ClearType};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame, Terminal, TerminalOptions, Viewport};
use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use view::{FileOrder, ProcessOrder, View};

/// How long a signal or a change of the size may wait.
const NOTICE: Duration = Duration::from_millis(200);
/// The least and the most time between two looks.
const EVERY: std::ops::RangeInclusive<f64> = 0.1..=3600.0;
/// Columns of lines in a log: paths are cut to them.
const LOG_COLUMNS: usize = 200;

/// Options of `forebay top`.
#[derive(Args)]
pub struct TopArguments {
    /// Seconds between two looks
    #[arg(long, short = 'd', value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    /// Lines for a log in place of a screen, one block for each look; for all instances
    #[arg(long, short)]
    batch: bool,
    /// End after so many looks
    #[arg(long, short = 'n', value_name = "LOOKS", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// The same as --batch --count 1
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| EVERY.contains(seconds));
    let wanted = "give seconds, from 0.1 to 3600";
    seconds.map(Duration::from_secs_f64).ok_or_else(|| wanted.to_owned())
}

/// `forebay top`.
pub fn top(arguments: &TopArguments) -> Result<ExitCode, String> {
    let count = if arguments.once { Some(1) } else { arguments.count };
    if arguments.batch || arguments.once {
        return in_lines(arguments.every, count);
    }
    let is_dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
    if is_dumb || !output::is_terminal() || !io::stdin().is_terminal() {
        let what = if is_dumb { "a terminal without a cursor (TERM=dumb)" } else { "no terminal" };
        return Err(format!(
            "top: this is {what}; --batch writes lines for a log, --once one block"
        ));
    }
    let ending = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(&ending), signal as usize)
            .map_err(|error| format!("setting up signals: {error}"))?;
    }
    // A first look, so that an error is said on the terminal as it was.
    let mut eyes = Eyes::default();
    let pools = eyes.look()?;
    let failed = |error: io::Error| format!("top: the terminal: {error}");
    // A panic gives the terminal back before its message is shown.
    ratatui::try_init().map_err(failed)?;
    let view = View::new(arguments.every);
    let mut top = Top { eyes, pools, view, looks_left: count.map(|count| count - 1) };
    let result = top.run(&ending);
    let restored = ratatui::try_restore();
    result?;
    restored.map_err(failed)?;
    Ok(match ending.load(Ordering::Relaxed) {
        0 => ExitCode::SUCCESS,
        signal => crate::signals::ended_by(signal as i32),
    })
}

/// The time of day, in UTC as in logs.
fn time_of_day() -> String {
    log::time(SystemTime::now())
}

/// A block of lines for each look.
fn in_lines(every: Duration, count: Option<u32>) -> Result<ExitCode, String> {
    let mut eyes = Eyes::default();
    let view = View::new(every);
    let mut left = count;
    loop {
        let pools = eyes.look()?;
        for line in view::lines(&pools, &view, LOG_COLUMNS, None, &time_of_day()) {
            println!("{}", text_of(&line).trim_end());
        }
        println!();
        output::flush();
        left = left.map(|left| left - 1);
        // Its reader has gone.
        if left == Some(0) || output::has_failed() {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(every);
    }
}

fn text_of(line: &Line<'_>) -> String {
    line.spans.iter().map(|span| &*span.content).collect()
}

/// What a key asks for besides changing the view.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// To look at once.
    Look,
    Redraw,
    Suspend,
    End,
}

/// What a terminal has.
enum Comes {
    Nothing,
    /// A key, or another size.
    Event,
    /// It has gone.
    End,
}

/// Waits for what comes from the terminal. The library's own wait never ends once that has gone,
/// whatever its limit and whatever signals arrive.
fn comes(within: Duration) -> io::Result<Comes> {
    // What the library has read already is at no descriptor.
    for within in [Duration::ZERO, within] {
        if goes(within)? {
            return Ok(Comes::End);
        }
        if event::poll(Duration::ZERO)? {
            return Ok(Comes::Event);
        }
    }
    Ok(Comes::Nothing)
}

/// Ends as SIGHUP would have it. Nothing is dropped: the library's own would panic, as it can say
/// nowhere that it cannot restore anything.
fn end_with_terminal() -> ! {
    std::process::exit(128 + SIGHUP)
}

/// Waits for a key, a signal, or the end of the terminal: whether it was that.
fn goes(within: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut ends = [PollFd::new(&stdin, PollFlags::IN)];
    let within = Timespec::try_from(within).unwrap_or_default();
    match rustix::event::poll(&mut ends, Some(&within)) {
        // A signal, of another size for one.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(ends[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

/// The terminal, as large as it was when it was looked at last. One whose size the library follows
/// is asked where its cursor is at each change, and one that does not answer would end `top`.
struct Screen {
    terminal: DefaultTerminal,
    size: (u16, u16),
}

impl Screen {
    fn new() -> io::Result<Screen> {
        let size = terminal::size()?;
        execute!(io::stdout(), Clear(ClearType::All))?;
        let viewport = Viewport::Fixed(Rect::new(0, 0, size.0, size.1));
        let backend = CrosstermBackend::new(io::stdout());
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })?;
        Ok(Screen { terminal, size })
    }

    fn draw(&mut self, top: &Top) -> io::Result<()> {
        if terminal::size()? != self.size {
            *self = Screen::new()?;
        }
        self.terminal.draw(|frame| top.draw(frame))?;
        Ok(())
    }
}

/// The live screen.
struct Top {
    eyes: Eyes,
    pools: Vec<look::Pool>,
    view: View,
    looks_left: Option<u32>,
}

impl Top {
    /// Until a key or a signal ends it, or there were looks enough.
    fn run(&mut self, ending: &AtomicUsize) -> Result<(), String> {
        let failed = |error: io::Error| {
            if goes(Duration::ZERO).is_ok_and(|gone| gone) {
                end_with_terminal();
            }
            format!("top: the terminal: {error}")
        };
        let mut screen = Screen::new().map_err(failed)?;
        let mut looked = Instant::now();
        loop {
            screen.draw(self).map_err(failed)?;
            assert!(!crash::planted("top-draw"), "planted");
            let due = looked + self.view.every;
            let mut looks_now = false;
            while !looks_now {
                if ending.load(Ordering::Relaxed) != 0 {
                    return Ok(());
                }
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() && !self.view.is_paused {
                    break;
                }
                let left = if self.view.is_paused { NOTICE } else { left.min(NOTICE) };
                match comes(left).map_err(failed)? {
                    Comes::Nothing => continue,
                    Comes::Event => {}
                    Comes::End => end_with_terminal(),
                }
                let asked = match event::read().map_err(failed)? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => self.take(key),
                    Event::Resize(..) => Asked::Redraw,
                    _ => continue,
                };
                match asked {
                    Asked::End => return Ok(()),
                    Asked::Suspend => {
                        // The shell draws no cursor of its own.
                        screen.terminal.show_cursor().map_err(failed)?;
                        ratatui::try_restore().map_err(failed)?;
                        let _ = signal_hook::low_level::raise(signal_hook::consts::SIGSTOP);
                        ratatui::try_init().map_err(failed)?;
                        screen = Screen::new().map_err(failed)?;
                    }
                    Asked::Redraw => screen = Screen::new().map_err(failed)?,
                    Asked::Look => looks_now = true,
                    Asked::Nothing => {}
                }
                screen.draw(self).map_err(failed)?;
            }
            if self.looks_left == Some(0) {
                return Ok(());
            }
            self.looks_left = self.looks_left.map(|left| left - 1);
            looked = Instant::now();
            self.pools = self.eyes.look()?;
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        render(&self.pools, &self.view, &time_of_day(), area, frame.buffer_mut());
    }

    /// What a key means.
    fn take(&mut self, key: KeyEvent) -> Asked {
        let view = &mut self.view;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Asked::End,
                KeyCode::Char('l') => Asked::Redraw,
                KeyCode::Char('z') => Asked::Suspend,
                _ => Asked::Nothing,
            };
        }
        let every =
            |seconds: f64| Duration::from_secs_f64(seconds.clamp(*EVERY.start(), *EVERY.end()));
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Asked::End,
            KeyCode::Char('w') => view.processes = ProcessOrder::Writes,
            KeyCode::Char('r') => view.processes = ProcessOrder::Reads,
            KeyCode::Char('t') => view.processes = ProcessOrder::Total,
            KeyCode::Char('a') => view.files = FileOrder::Accesses,
            KeyCode::Char('u') => view.files = FileOrder::Unsafe,
            KeyCode::Char('z') => view.files = FileOrder::Size,
            KeyCode::Char('h' | '?') => view.has_help = !view.has_help,
            KeyCode::Tab => view.pool = view.pool.wrapping_add(1),
            KeyCode::Char('+') => view.every = every(view.every.as_secs_f64() * 2.0),
            KeyCode::Char('-') => view.every = every(view.every.as_secs_f64() / 2.0),
            KeyCode::Char('p' | ' ') => {
                view.is_paused = !view.is_paused;
                return if view.is_paused { Asked::Nothing } else { Asked::Look };
            }
            _ => {}
        }
        Asked::Nothing
    }
}

/// Draws all of it.
fn render(pools: &[look::Pool], view: &View, time: &str, area: Rect, buffer: &mut Buffer) {
    let (width, rows) = (usize::from(area.width), usize::from(area.height));
    let lines = view::lines(pools, view, width, Some(rows), time);
    Paragraph::new(lines).render(area, buffer);
}

#[cfg(test)]
mod tests;
