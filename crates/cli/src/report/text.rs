//! A report as text of 80 columns.

use super::page::{lines, list, number, words};
use crate::text::{COLUMNS, bytes};
use serde_json::Value;

/// Columns of the heads.
const HEAD: usize = 12;
/// Parts of a tier's bar.
const BAR: u64 = 20;

/// The report.
pub fn of(document: &Value) -> String {
    let mut said = String::new();
    let mut add = |head: &str, text: &str| said.push_str(&wrapped(head, text));
    for line in lines(document) {
        add(line.head, &line.said);
    }
    for tier in list(document, "/tiers") {
        let (peak, capacity) = (number(tier, "/peak"), number(tier, "/capacity").max(1));
        let full = (peak.saturating_mul(BAR) / capacity).min(BAR) as usize;
        let bar = format!("[{}{}]", "#".repeat(full), ".".repeat(BAR as usize - full));
        let name = words(tier, "/name");
        add("tier", &format!("{name} {bar} up to {} of {} used", bytes(peak), bytes(capacity)));
    }
    for around in list(document, "/around") {
        add("directly", &format!("{}: {}", words(around, "/what"), words(around, "/why")));
    }
    for advice in list(document, "/advice") {
        add("change", words(advice, "/text"));
    }
    if list(document, "/advice").is_empty() {
        add("change", "nothing that the counters of this run show");
    }
    said
}

/// A head and a text behind it, broken between words.
fn wrapped(head: &str, text: &str) -> String {
    let mut said = format!("{head:HEAD$}");
    let mut column = HEAD.max(head.chars().count() + 1);
    let mut is_first = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !is_first && column + 1 + length > COLUMNS {
            said.push('\n');
            said.push_str(&" ".repeat(HEAD));
            column = HEAD;
        } else if !is_first {
            said.push(' ');
            column += 1;
        }
        said.push_str(word);
        column += length;
        is_first = false;
    }
    said.push('\n');
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_a_terminal_and_words_stay_whole() {
        let long = format!("{} {}", "word ".repeat(40), "x".repeat(90));
        let said = wrapped("head", &long);
        let whole = |line: &str| line.chars().count() <= COLUMNS || line.trim().len() == 90;
        assert!(said.lines().all(whole), "{said}");
        assert_eq!(said.split_whitespace().count(), 42);
        assert!(said.lines().skip(1).all(|line| line.starts_with(&" ".repeat(HEAD))));
    }
}
