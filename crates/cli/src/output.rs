//! What the command prints. One writer for each stream: an error is met once, is said, and is in the exit
//! status; none is a panic, as it is with the macros of the standard library, which these replace in the
//! whole crate.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

/// The first error of the standard output. Nothing is written after it.
static FAILED: OnceLock<io::Error> = OnceLock::new();

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
    if FAILED.get().is_none() {
        note(io::stdout().write_fmt(text));
    }
}

/// Takes note of how writing to the standard output ended.
pub fn note(written: io::Result<()>) {
    if let Err(error) = written {
        let _ = FAILED.set(error);
    }
}

/// Writes a line to the standard error, in one piece; a node manager's with the time. An error is not told:
/// there is no other place.
pub fn tell(text: fmt::Arguments<'_>) {
    forebay_node::log::tell(text);
}

/// Writes what is left, and says if anything could not be written. A reader that went away has seen what it
/// wanted; that is no error. Returns the command's status, given the one that it has otherwise.
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
