//! What the command prints. One writer for each stream: an error is met once, is said, and is in
//! the exit status; none is a panic, as it is with the macros of the standard library, which these
//! replace in the whole crate. Errors of the system are said by
//! their names, without numbers.

use crate::text::without_numbers;
use forebay_node::log::{Level, escaped, printable};
use rustix::io::{Errno, FdFlags};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first error of the standard output. Nothing is written after it.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Which of the standard descriptors were closed when the process began.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Notes which standard descriptors are closed, before the standard library opens /dev/null in
/// their place: what is written there would count as written.
extern "C" fn note_closed() {
    for (fd, closed) in CLOSED.iter().enumerate() {
        // SAFETY: a call that fails for a number that is no descriptor.
        let flags = unsafe { libc::fcntl(fd as RawFd, libc::F_GETFD) };
        closed.store(flags == -1, Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

/// Lets programs that this one starts find closed what it was started without. Called first in
/// `main`.
pub fn pass_on_closed() {
    for (fd, closed) in CLOSED.iter().enumerate() {
        if closed.load(Ordering::Relaxed) {
            // SAFETY: the standard library has opened it, and never closes it.
            let replaced = unsafe { BorrowedFd::borrow_raw(fd as RawFd) };
            let _ = rustix::io::fcntl_setfd(replaced, FdFlags::CLOEXEC);
        }
    }
}

/// Text on standard output.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// A line on standard output.
macro_rules! println {
    () => { $crate::output::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// A line on standard error.
macro_rules! eprintln {
    () => { $crate::output::tell(format_args!("")) };
    ($($text:tt)*) => { $crate::output::tell(format_args!($($text)*)) };
}

/// Writes to the standard output. [`finish`] tells of an error.
pub fn write(text: fmt::Arguments<'_>) {
    print_by(|| {
        let text = text.to_string();
        io::stdout().write_all(printable(&without_numbers(&text)).as_bytes())
    });
}

/// Writes a document of JSON, and ends the line. Nothing of it is changed as that of other texts
/// is: only characters that control a terminal are written as escapes of JSON.
pub fn json(document: impl fmt::Display) {
    print_by(|| writeln!(io::stdout(), "{}", plain_json(&document.to_string())));
}

/// The same document without control characters, which can only stand in its strings; lines may
/// have been broken between values.
fn plain_json(document: &str) -> Cow<'_, str> {
    let is_meant = |one: char| one.is_control() && one != '\n';
    // All of them are below 0xa0.
    escaped(document, is_meant, |one, plain| plain.push_str(&format!("\\u{:04x}", u32::from(one))))
}

/// Lets `print` write to the standard output. [`finish`] tells of an error.
pub fn print_by(print: impl FnOnce() -> io::Result<()>) {
    if FAILED.get().is_none() {
        note(match CLOSED[1].load(Ordering::Relaxed) {
            true => Err(Errno::BADF.into()),
            false => print(),
        });
    }
}

/// Takes note of how writing to the standard output ended.
fn note(written: io::Result<()>) {
    if let Err(error) = written {
        let _ = FAILED.set(error);
    }
}

/// Writes a line to the standard error, in one piece; a node manager's with the time, as one that
/// is no warning. An error is not told: there is no other place.
pub fn tell(text: fmt::Arguments<'_>) {
    tell_as(Level::Info, text);
}

/// The same of a matter that is this serious.
pub fn tell_as(level: Level, text: fmt::Arguments<'_>) {
    let text = text.to_string();
    forebay_node::log::tell(level, format_args!("{}", without_numbers(&text)));
}

/// Whether people read it as it is printed.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes out what was printed so far.
pub fn flush() {
    note(io::stdout().flush());
}

/// Whether the standard output takes nothing any more.
pub fn has_failed() -> bool {
    FAILED.get().is_some()
}

/// Writes what is left, and says if anything could not be written. A reader that went away has seen
/// what it wanted; that is no error. Returns the command's status, given the one that it has
/// otherwise.
pub fn finish(code: ExitCode) -> ExitCode {
    note(io::stdout().flush());
    match FAILED.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            tell(format_args!("forebay: standard output: {error}"));
            ExitCode::from(crate::FAILED)
        }
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn documents_keep_their_strings() {
        let value = json!({ "path": "/a\n\t\u{1b}[m\u{7f}\u{85}\u{9b}2J (os error 2) \u{e4}\"" });
        for document in [value.to_string(), format!("{value:#}")] {
            let plain = plain_json(&document);
            assert!(!plain.contains(|one: char| one.is_control() && one != '\n'), "{plain:?}");
            assert_eq!(serde_json::from_str::<Value>(&plain).unwrap(), value);
        }
    }
}
