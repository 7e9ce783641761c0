//! Fault scripts as text: one rule on each line, see docs/testing.md.

use crate::{Fault, Operation, Rule, When};
use rustix::io::Errno;
use std::path::PathBuf;
use std::time::Duration;

/// Errors that a script can name.
const ERRORS: [(&str, Errno); 11] = [
    ("EIO", Errno::IO),
    ("ENOSPC", Errno::NOSPC),
    ("EDQUOT", Errno::DQUOT),
    ("ESTALE", Errno::STALE),
    ("EROFS", Errno::ROFS),
    ("EACCES", Errno::ACCESS),
    ("ENODEV", Errno::NODEV),
    ("ENXIO", Errno::NXIO),
    ("EFBIG", Errno::FBIG),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("EREMOTEIO", Errno::REMOTEIO),
];

/// What is wrong with a script, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Counted from 1.
    pub line: usize,
    /// For people.
    pub what: String,
}

impl std::fmt::Display for ScriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// Reads a script: the name of a device and a rule for each line that is neither empty nor begins
/// with `#`. Which devices there are is for the caller to know.
///
/// # Errors
/// The first line that is not understood, and why.
pub fn parse_script(text: &str) -> Result<Vec<(usize, String, Rule)>, ScriptError> {
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let words: Vec<_> = line.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            continue;
        }
        let (device, rule) =
            parse_line(&words).map_err(|what| ScriptError { line: line_number, what })?;
        rules.push((line_number, device, rule));
    }
    Ok(rules)
}

fn parse_line(words: &[&str]) -> Result<(String, Rule), String> {
    let [device, operation, fault, rest @ ..] = words else {
        return Err("expected DEVICE OPERATION FAULT [WHEN]".into());
    };
    let operation = match *operation {
        "read" => Operation::Read,
        "write" => Operation::Write,
        "sync" => Operation::Sync,
        other => return Err(format!("unknown operation {other}; read, write or sync")),
    };
    let (fault, rest) = match (*fault, rest) {
        ("fail", [errno, rest @ ..]) => (Fault::Fail(errno_named(errno)?), rest),
        ("tear", [errno, rest @ ..]) => (Fault::Tear(errno_named(errno)?), rest),
        ("delay" | "hang", [time, rest @ ..]) => (Fault::Delay(time_of(time)?), rest),
        ("fail" | "tear", []) => return Err(format!("{fault} needs an error, as EIO")),
        ("delay" | "hang", []) => return Err(format!("{fault} needs a time, as 50ms or 2s")),
        ("short", rest) => (Fault::Short, rest),
        ("lose", rest) => (Fault::Lose, rest),
        (other, _) => {
            let known = "fail, tear, short, lose, delay or hang";
            return Err(format!("unknown fault {other}; {known}"));
        }
    };
    let number = |word: &str| match word.parse::<u64>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{word} is not a number above 0")),
    };
    let when = match rest {
        [] => When::Every(1),
        ["next", count] => When::Next(number(count)?),
        ["every", nth] => When::Every(number(nth)?),
        ["at", place] => When::At(number(place)?),
        ["from", first] => When::From(number(first)?),
        ["while", file] if file.starts_with('/') => When::Exists(PathBuf::from(file)),
        ["while", file] => return Err(format!("{file} is not an absolute path")),
        _ => {
            let text = rest.join(" ");
            return Err(format!(
                "unknown condition {text}; next N, every N, at N, from N or while /FILE"
            ));
        }
    };
    Ok(((*device).to_owned(), Rule::new(operation, when, fault)))
}

fn errno_named(name: &str) -> Result<Errno, String> {
    let found = ERRORS.iter().find(|(known, _)| *known == name).map(|(_, errno)| *errno);
    found.ok_or_else(|| {
        let known = ERRORS.map(|(name, _)| name).join(", ");
        format!("unknown error {name}; one of {known}")
    })
}

fn time_of(word: &str) -> Result<Duration, String> {
    let wrong = || format!("{word} is not a time, as 50ms or 2s");
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = word.split_at(digits);
    let number: u32 = number.parse().map_err(|_| wrong())?;
    match unit {
        "us" => Ok(Duration::from_micros(number.into())),
        "ms" => Ok(Duration::from_millis(number.into())),
        "s" => Ok(Duration::from_secs(number.into())),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        let text = "# faults\n\nstore write fail EIO next 3\nnvme read tear ESTALE every 5\n\
                    store write fail ENOSPC while /tmp/flag\n  store sync hang 2s\n\
                    store write short\nbb write delay 50ms\nstore sync lose at 4\nstore sync lose from 9\n";
        let rules = parse_script(text).unwrap();
        let places: Vec<_> = rules.iter().map(|(line, name, _)| (*line, &name[..])).collect();
        let wanted =
            [(3, "store"), (4, "nvme"), (5, "store"), (6, "store"), (7, "store"), (8, "bb")];
        assert_eq!(places[..6], wanted);
        assert_eq!(places.len(), 8);
        let texts: Vec<_> = rules.iter().map(|(.., rule)| format!("{rule:?}")).collect();
        for (text, part) in texts.iter().zip([
            "Next(3)",
            "Every(5)",
            "Exists(\"/tmp/flag\")",
            "Delay(2s)",
            "Short",
            "Delay(50ms)",
            "At(4)",
            "From(9)",
        ]) {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn errors_name_their_line() {
        for (line, word) in [
            ("store", "DEVICE"),
            ("store write", "DEVICE"),
            ("store append fail EIO", "append"),
            ("store write break", "break"),
            ("store write fail", "EIO"),
            ("store write fail EWHAT", "EWHAT"),
            ("store write delay", "50ms"),
            ("store write delay 5", "5 is not"),
            ("store write delay 99999999999s", "not a time"),
            ("store write fail EIO next", "next"),
            ("store write fail EIO next 0", "0 is not"),
            ("store write fail EIO next -1", "-1"),
            ("store write fail EIO at 0", "0 is not"),
            ("store write fail EIO from", "from"),
            ("store write fail EIO while flag", "absolute"),
            ("store write fail EIO next 3 every 4", "next 3 every 4"),
            ("store write short EIO", "EIO"),
        ] {
            let error = parse_script(&format!("store write short\n\n{line}\n")).unwrap_err();
            assert_eq!(error.line, 3, "{line}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
    }
}
