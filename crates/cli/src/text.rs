//! How what commands say is written: sizes, counts, and errors of the system, for people.

use rustix::termios::tcgetwinsize;
use std::borrow::Cow;
use std::fmt::Display;

/// Bytes for people.
pub fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// So many of something: the word for one of it, and the word for several.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str, several: &str) -> String {
    format!("{count} {}", if count == N::from(1) { one } else { several })
}

/// So many files.
pub fn files(count: usize) -> String {
    counted(count, "file", "files")
}

/// What every usual terminal shows in one line.
pub const COLUMNS: usize = 80;

/// A line of up to [`COLUMNS`], or of what a narrower terminal has, or several, broken behind
/// commas, semicolons and colons; those that follow are indented by so much. What has none of
/// these, as a path, is not broken.
pub fn fitted(line: &str, indent: usize) -> String {
    let size = tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    fitted_to(if size == 0 { COLUMNS } else { size.min(COLUMNS) }, line, indent)
}

fn fitted_to(columns: usize, line: &str, indent: usize) -> String {
    let ends_part = |&(at, _): &(usize, &str)| line[..at].ends_with([',', ';', ':']);
    let breaks = line.match_indices(' ').filter(ends_part).map(|(at, _)| at);
    let (mut fitted, mut start, mut last) = (String::new(), 0, None);
    let mut width = 0;
    for end in breaks.chain([line.len()]) {
        if width + line[start..end].chars().count() > columns
            && let Some(at) = last.take()
        {
            fitted.push_str(&line[start..at]);
            fitted.push('\n');
            fitted.push_str(&" ".repeat(indent));
            (start, width) = (at + 1, indent);
        }
        last = Some(end);
    }
    fitted.push_str(&line[start..]);
    fitted
}

/// A text without the numbers that the standard library puts behind the names of errors, as in "(os
/// error 2)".
pub fn without_numbers(text: &str) -> Cow<'_, str> {
    const MARK: &str = " (os error ";
    let Some(at) = text.find(MARK) else { return Cow::Borrowed(text) };
    let (mut kept, mut rest) = (String::from(&text[..at]), &text[at..]);
    loop {
        let behind = rest.strip_prefix(MARK).and_then(|rest| rest.split_once(')'));
        match behind.filter(|(number, _)| number.parse::<u32>().is_ok()) {
            Some((_, behind)) => rest = behind,
            None => {
                kept.push_str(MARK);
                rest = &rest[MARK.len()..];
            }
        }
        let next = rest.find(MARK).unwrap_or(rest.len());
        kept.push_str(&rest[..next]);
        rest = &rest[next..];
        if rest.is_empty() {
            return Cow::Owned(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_several() {
        assert_eq!(
            (files(0), files(1), files(2)),
            ("0 files".into(), "1 file".into(), "2 files".into())
        );
        assert_eq!(counted(1u64, "process uses", "processes use"), "1 process uses");
    }

    #[test]
    fn lines_are_broken_between_parts() {
        let part = "x".repeat(30);
        let whole = format!("{part}, {part}; {part}: {part}");
        let fitted = |line: &str, indent| fitted_to(COLUMNS, line, indent);
        assert_eq!(fitted(&whole, 4), format!("{part}, {part};\n    {part}: {part}"));
        let lines = format!("{part},\n    {part};\n    {part}:\n    {part}");
        assert_eq!(fitted_to(60, &whole, 4), lines);
        assert_eq!(fitted("short, line", 4), "short, line");
        let path = format!("/{}", "long ".repeat(40));
        assert_eq!(fitted(&path, 4), path);
        assert_eq!(fitted(&format!("a: {path}, b"), 4), format!("a:\n    {path},\n    b"));
    }

    #[test]
    fn errors_have_names_alone() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        let said = format!("a: {error}; b: {error}");
        let plain = "a: No such file or directory; b: No such file or directory";
        assert_eq!(without_numbers(&said), plain);
        for untouched in ["", "none", "a (os error x) b", "a (os error ", "a (os error 2"] {
            assert_eq!(without_numbers(untouched), untouched);
        }
    }
}
