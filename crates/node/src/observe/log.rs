//! What the node manager says: lines on standard error, which is its log, each with the time and a
//! level. Where the standard error is the journal of systemd, which notes the time itself, a line
//! has the prefix that the journal knows levels by.

use forebay_pool::clock;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A warning in the log. Unlike that of the standard library it does not panic where nothing can be
/// written: a full disk below the log is no reason to end.
macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::observe::log::tell($crate::observe::log::Level::Warning, format_args!($($text)*))
    };
}

/// The same for what endangers data, or keeps it from the store.
macro_rules! error {
    ($($text:tt)*) => {
        $crate::observe::log::tell($crate::observe::log::Level::Error, format_args!($($text)*))
    };
}

/// The same for what is as it should be.
macro_rules! info {
    ($($text:tt)*) => {
        $crate::observe::log::tell($crate::observe::log::Level::Info, format_args!($($text)*))
    };
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Data is in danger, or does not get to the store, or the manager cannot serve.
    Error,
    /// Something is not as it was meant to be.
    Warning,
    /// What is as it should be.
    Info,
}

impl Level {
    /// The name, of one width for all.
    fn name(self) -> &'static str {
        match self {
            Level::Error => "ERROR",
            Level::Warning => "WARN ",
            Level::Info => "INFO ",
        }
    }

    /// The number that syslog has for it.
    fn number(self) -> u8 {
        match self {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Info => 6,
        }
    }
}

/// Where the log of a node manager goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    File,
    Journal,
}

/// Set in a node manager; what other processes say is for people, and has neither time nor level.
static LOG: OnceLock<Form> = OnceLock::new();

/// From now on what this process says is a node manager's log.
pub fn begin() {
    let stream = std::env::var_os("JOURNAL_STREAM").unwrap_or_default();
    let is_journal =
        rustix::fs::fstat(io::stderr()).is_ok_and(|stat| names(&stream, stat.st_dev, stat.st_ino));
    let _ = LOG.set(if is_journal { Form::Journal } else { Form::File });
}

/// Whether JOURNAL_STREAM says that this file is the journal. It is inherited by processes whose
/// standard error goes elsewhere.
fn names(stream: &OsStr, device: u64, inode: u64) -> bool {
    stream.to_str() == Some(format!("{device}:{inode}").as_str())
}

/// Writes text to the standard error, in one piece. An error is not told: there is no other place.
pub fn tell(level: Level, text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let text = match LOG.get() {
        Some(form) => in_form(*form, level, &printable(&text)),
        None => format!("{}\n", printable(&text)),
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

/// A text that does nothing to a terminal but fill lines: other characters that are not seen, which
/// names of files may have, are written as escapes.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_meant = |one| is_unseen(one) && !['\n', '\t'].contains(&one);
    escaped(text, is_meant, |one, safe| safe.extend(one.escape_default()))
}

/// A path within a line: a name of several lines, too, is in one.
pub fn shown(path: &(impl AsRef<Path> + ?Sized)) -> String {
    let path = path.as_ref().to_string_lossy();
    escaped(&path, is_unseen, |one, safe| safe.extend(one.escape_default())).into_owned()
}

/// Whether a character controls a terminal, or how a line is laid out: other characters would be
/// read in another order, on another line or not at all. Joiners (U+200C and U+200D) are not among
/// them: words of some languages have them.
fn is_unseen(one: char) -> bool {
    let is_layout = matches!(one,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0001}'..='\u{e007f}');
    one.is_control() || is_layout
}

/// A text in which `escape` has written what is meant in another way.
pub fn escaped(
    text: &str,
    is_meant: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&is_meant) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for one in text.chars() {
        match is_meant(one) {
            true => escape(one, &mut safe),
            false => safe.push(one),
        }
    }
    Cow::Owned(safe)
}

/// A text as it stands in the file of a log: each line with time and level.
pub fn lines(level: Level, text: &str) -> String {
    in_form(Form::File, level, text)
}

fn in_form(form: Form, level: Level, text: &str) -> String {
    let before = match form {
        Form::File => format!("{} {} ", utc(SystemTime::now()), level.name()),
        Form::Journal => format!("<{}>", level.number()),
    };
    text.lines().map(|line| format!("{before}{line}\n")).collect()
}

/// A time as RFC 3339 has it, in UTC.
fn utc(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = clock::date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

/// The time of day of the same, in whole seconds.
pub fn time(at: SystemTime) -> String {
    utc(at)["2026-01-01T".len()..][.."00:00:00".len()].to_owned() + " UTC"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, wanted) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), wanted);
        }
    }

    #[test]
    fn names_cannot_move_the_cursor_or_begin_a_line() {
        let name = "/a/\u{1b}[2Jb\u{9b}3\r\nforebay: all is safe\tc";
        let safe = "/a/\\u{1b}[2Jb\\u{9b}3\\r";
        assert_eq!(printable(name), format!("{safe}\nforebay: all is safe\tc"));
        assert_eq!(shown(name), format!("{safe}\\nforebay: all is safe\\tc"));
        for usual in ["/usual/näme", "/\u{6a9}\u{62a}\u{627}\u{628}\u{200c}\u{647}\u{627}"] {
            assert!(matches!(printable(usual), Cow::Borrowed(same) if same == usual));
        }
    }

    #[test]
    fn names_cannot_hide_or_turn_around_what_they_say() {
        // It would be read as "report-exe.txt".
        let turned = "/a/report-\u{202e}txt.exe";
        assert_eq!(printable(turned), "/a/report-\\u{202e}txt.exe");
        assert_eq!(shown(turned), "/a/report-\\u{202e}txt.exe");
        let unseen = "\u{ad}\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{2066}\u{2069}\u{feff}\u{e0041}";
        let safe = shown(unseen);
        assert!(safe.is_ascii() && safe.matches("\\u{").count() == 12, "{safe}");
    }

    #[test]
    fn each_line_has_time_and_level() {
        let said = lines(Level::Error, "one\ntwo");
        let rests: Vec<_> =
            said.lines().map(|line| &line["2026-01-01T00:00:00.000Z".len()..]).collect();
        assert_eq!(rests, [" ERROR one", " ERROR two"]);
        assert!(said.ends_with('\n'));
    }

    #[test]
    fn the_journal_notes_the_time_itself_and_reads_the_level() {
        for (level, wanted) in [
            (Level::Error, "<3>one\n<3>two\n"),
            (Level::Warning, "<4>one\n<4>two\n"),
            (Level::Info, "<6>one\n<6>two\n"),
        ] {
            assert_eq!(in_form(Form::Journal, level, "one\ntwo"), wanted);
        }
    }

    #[test]
    fn only_the_file_that_is_named_is_the_journal() {
        assert!(names(OsStr::new("9:4711"), 9, 4711));
        for other in ["", "9:471", "9:4711 ", "94711", "4711:9"] {
            assert!(!names(OsStr::new(other), 9, 4711), "{other}");
        }
    }
}
