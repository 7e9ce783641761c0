//! `forebay top` on a terminal: what it shows, and in which state it leaves the terminal.

use crate::harness::{LAZY, LONG, Site, Steps, kill, wait_for};
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A terminal with a command in it.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
    before: Modes,
}

/// Flags of a terminal: those of input, output, control and the local ones.
type Modes = [u32; 4];

impl Terminal {
    fn start(mut command: Command, columns: u16, rows: u16) -> Terminal {
        let (mut ours, mut theirs) = (-1, -1);
        let size = size(columns, rows);
        // SAFETY: places for two descriptors, and a size that lives for the call.
        let made = unsafe {
            let (none, no_modes) = (std::ptr::null_mut(), std::ptr::null_mut());
            libc::openpty(&mut ours, &mut theirs, none, no_modes, &size)
        };
        assert_eq!(made, 0, "openpty");
        // SAFETY: they are new, and nothing else has them.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        // A command that has this end, too, keeps its own terminal.
        rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        let before = modes(&theirs);
        let child = command.spawn().unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (ours.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while Arc::strong_count(&to) > 1
                && let Ok(got @ 1..) = from.read(&mut buffer)
            {
                to.lock().unwrap().extend_from_slice(&buffer[..got]);
            }
        });
        Terminal { ours, theirs, child, written, before }
    }

    /// Closes the window, with what is next drawn in it.
    fn close(self) -> Child {
        self.child
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = size(columns, rows);
        // SAFETY: a size that lives for the call.
        let set = unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(set, 0, "TIOCSWINSZ");
        // It is not the controlling terminal of the command, which would get that by itself.
        kill(self.child.id(), Signal::WINCH);
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// What is on the screen: text at the places to which the cursor was moved.
    fn screen(&self) -> String {
        let written = self.written.lock().unwrap();
        let text = String::from_utf8_lossy(&written).into_owned();
        let mut rows = vec![vec![' '; 300]; 100];
        let (mut row, mut column, mut rest) = (0, 0, text.chars().peekable());
        while let Some(one) = rest.next() {
            match one {
                '\u{1b}' if rest.peek() == Some(&'[') => {
                    rest.next();
                    let mut code = String::new();
                    let end = loop {
                        match rest.next() {
                            Some(one) if one.is_ascii_alphabetic() => break one,
                            Some(one) => code.push(one),
                            None => break ' ',
                        }
                    };
                    let mut numbers = code.split(';').map(|n| n.parse().unwrap_or(1usize));
                    match end {
                        'H' => {
                            row = numbers.next().unwrap_or(1) - 1;
                            column = numbers.next().unwrap_or(1) - 1;
                        }
                        'J' => rows.iter_mut().for_each(|row| row.fill(' ')),
                        _ => {}
                    }
                }
                '\r' => column = 0,
                '\n' => row += 1,
                one if row < rows.len() && column < 300 => {
                    rows[row][column] = one;
                    column += 1;
                }
                _ => {}
            }
        }
        rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
    }

    fn shows(&self, wanted: &str) {
        let end = Instant::now() + LONG;
        while !self.screen().contains(wanted) {
            assert!(Instant::now() < end, "no {wanted:?} in\n{}", self.screen().trim_end());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end of the command: its status. The terminal is as it was.
    fn end(mut self) -> (Option<i32>, String) {
        let status = wait_for("the end of top", LONG, || self.child.try_wait().unwrap());
        assert_eq!(modes(&self.theirs), self.before, "modes of the terminal");
        (status.code(), self.is_as_usual())
    }

    /// Waits until the usual screen and the cursor are back: all that was written.
    fn is_as_usual(&self) -> String {
        wait_for("the usual screen", LONG, || {
            let text = String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned();
            let last = |code: &str| text.rfind(code).map_or(0, |at| at + 1);
            let is_back = last("\u{1b}[?1049l") > last("\u{1b}[?1049h");
            let is_cursor_back = last("\u{1b}[?25h") >= last("\u{1b}[?25l");
            (is_back && is_cursor_back).then_some(text)
        })
    }
}

fn size(columns: u16, rows: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

fn modes(terminal: &OwnedFd) -> Modes {
    // SAFETY: a structure of plain numbers that lives for the call.
    unsafe {
        let mut found: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut found), 0, "tcgetattr");
        [found.c_iflag, found.c_oflag, found.c_cflag, found.c_lflag]
    }
}

fn top(site: &Site) -> Command {
    let mut command = site.forebay(&["top", "--every", "0.2"]);
    command.env("TERM", "xterm");
    command
}

#[test]
fn top_lives_through_managers_that_hang_and_end_and_leaves_the_terminal_as_it_was() {
    let site = Site::new(&LAZY);
    let script = "head -c 3M /dev/zero > file; step 1";
    let steps = Steps::of(&site, script);
    steps.at("1");
    let mut terminal = Terminal::start(top(&site), 80, 24);
    terminal.shows("tier".to_uppercase().as_str());
    terminal.shows("unsafe 3.00 MiB of 1 file");
    terminal.shows("safe after the end of its run");
    terminal.press("u");
    terminal.shows("unsafe*");
    // What names no totals is narrow.
    let has_totals = |terminal: &Terminal| terminal.screen().contains("written");
    terminal.resize(40, 10);
    wait_for("a narrow screen", LONG, || (!has_totals(&terminal)).then_some(()));
    terminal.shows("unsafe 3.00 MiB");
    terminal.resize(200, 60);
    terminal.shows("written");
    terminal.shows(&format!("{}/file", site.store.display()));
    let manager = site.status().manager;
    kill(manager, Signal::STOP);
    terminal.shows("is stopped (SIGSTOP, or a debugger)");
    terminal.press("h");
    terminal.shows("files by size");
    terminal.press("h");
    kill(manager, Signal::CONT);
    terminal.shows(&format!("node manager {manager}: "));
    steps.past("1");
    steps.end().expect(0);
    terminal.shows("no node manager runs");
    terminal.press("q");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn signals_and_panics_give_the_terminal_back() {
    let site = Site::new(&LAZY);
    for (key, signal, code) in [
        ("\u{3}", None, 0),
        ("", Some(Signal::TERM), 143),
        ("", Some(Signal::HUP), 129),
        ("", Some(Signal::INT), 130),
    ] {
        let mut terminal = Terminal::start(top(&site), 80, 24);
        terminal.shows("no node manager runs");
        terminal.press(key);
        signal.into_iter().for_each(|signal| kill(terminal.child.id(), signal));
        assert_eq!(terminal.end().0, Some(code), "{signal:?}");
    }
    // It is suspended by itself, and goes on.
    let mut terminal = Terminal::start(top(&site), 80, 24);
    terminal.shows("no node manager runs");
    terminal.press("\u{1a}");
    wait_for("a stop", LONG, || is_stopped(terminal.child.id()).then_some(()));
    assert_eq!(modes(&terminal.theirs), terminal.before, "modes of the terminal");
    terminal.is_as_usual();
    kill(terminal.child.id(), Signal::CONT);
    terminal.press("h");
    terminal.shows("files by size");
    terminal.press("q");
    assert_eq!(terminal.end().0, Some(0));
    let mut command = top(&site);
    command.env("FOREBAY_PLANT", "top-draw");
    let (code, text) = Terminal::start(command, 80, 24).end();
    assert_eq!(code, Some(101), "{text}");
    let (_, behind) = text.rsplit_once("\u{1b}[?1049l").unwrap();
    assert!(text.contains("planted"), "{text}");
    assert!(!behind.contains("\u{1b}[?1049h"), "{text:?}");
}

/// Without a signal: it is not the controlling terminal.
#[test]
fn top_ends_with_its_terminal() {
    let site = Site::new(&LAZY);
    let terminal = Terminal::start(top(&site), 80, 24);
    terminal.shows("no node manager runs");
    let mut child = terminal.close();
    let status = wait_for("the end of top", LONG, || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(129), "{status}");
}

#[test]
fn top_writes_lines_for_logs() {
    let site = Site::new(&LAZY);
    let script = "head -c 3M /dev/zero > file; \
        $FOREBAY top --batch --every 0.1 --count 2 > $OUT/two; $FOREBAY top --once > $OUT/one; \
        $FOREBAY top --batch --every 0.1 | head -n 1 > $OUT/cut; $FOREBAY top < /dev/null; exit $?";
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(125);
    assert!(ran.stderr.contains("this is no terminal; --batch writes lines"), "{ran:?}");
    let said = |name: &str| std::fs::read_to_string(site.out.join(name)).unwrap();
    for (name, blocks) in [("one", 1), ("two", 2)] {
        let text = said(name);
        assert_eq!(text.matches("forebay top ").count(), blocks, "{text}");
        assert_eq!(text.matches("unsafe 3.00 MiB of 1 file").count(), blocks, "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("/file"), "{text}");
    }
    assert!(said("cut").starts_with("forebay top "));
    let mut command = top(&site);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(command, 80, 24);
    terminal.shows("a terminal without a cursor (TERM=dumb)");
    let status = wait_for("the end of top", LONG, || terminal.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(125));
    let ran = site.end(site.forebay(&["top", "--every", "0"])).expect(2);
    assert!(ran.stderr.contains("give seconds, from 0.1 to 3600"), "{ran:?}");
}
