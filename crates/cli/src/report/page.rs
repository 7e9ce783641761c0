//! Reading the document of a report: numbers and texts by their keys, and how they are said.

use crate::text::bytes;
use serde_json::Value;

/// The number at `/a/b`; 0 if there is none.
pub fn number(document: &Value, at: &str) -> u64 {
    document.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}

/// The same with a fraction; `None` if there is none.
pub fn fraction(document: &Value, at: &str) -> Option<f64> {
    document.pointer(at).and_then(Value::as_f64)
}

/// The text at `/a/b`; empty if there is none.
pub fn words<'d>(document: &'d Value, at: &str) -> &'d str {
    document.pointer(at).and_then(Value::as_str).unwrap_or("")
}

/// The list at `/a/b`; empty if there is none.
pub fn list<'d>(document: &'d Value, at: &str) -> &'d [Value] {
    document.pointer(at).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A line of a report: what it is about, and what there is to say.
pub struct Line {
    /// What it is about.
    pub head: &'static str,
    /// What is said.
    pub said: String,
}

/// Seconds for people.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        0.0..100.0 => format!("{seconds:.1} s"),
        100.0..6000.0 => format!("{:.0} min {:02.0} s", (seconds / 60.0).floor(), seconds % 60.0),
        _ => format!("{:.0} h {:02.0} min", (seconds / 3600.0).floor(), seconds / 60.0 % 60.0),
    }
}

/// A share for people.
pub fn percent(share: f64) -> String {
    match share {
        0.0 | 1.0 => format!("{:.0} %", share * 100.0),
        _ => format!("{:.1} %", share * 100.0),
    }
}

/// The lines of the first part of a report, the same in each form.
pub fn lines(document: &Value) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |head, said: String| lines.push(Line { head, said });
    let number = |at: &str| number(document, at);
    let job = match document["job"].is_object() {
        true => {
            format!(", job {} of {}", words(document, "/job/id"), words(document, "/job/system"))
        }
        false => String::new(),
    };
    let took = |at: &str| seconds(fraction(document, at).unwrap_or(0.0));
    line("command", words(document, "/command").to_owned());
    line(
        "run",
        format!(
            "on {}{job}: {} to the command's end, status {}; {}",
            words(document, "/host"),
            took("/command_seconds"),
            number("/exit"),
            words(document, "/outcome/said"),
        ),
    );
    let calls = |count: u64, one: &str, several: &str| crate::text::counted(count, one, several);
    line(
        "written",
        format!(
            "{} in {}; {} were not yet on the store at the command's end",
            bytes(number("/bytes/written")),
            calls(number("/calls/writes"), "write", "writes"),
            bytes(number("/bytes/ahead_at_end")),
        ),
    );
    let share = match fraction(document, "/hits/read_share") {
        Some(share) => format!(
            "; {} were waited for at the store: at least {} of what was read came from the tiers",
            bytes(number("/bytes/from_store")),
            percent(share),
        ),
        None => String::new(),
    };
    line(
        "read",
        format!(
            "{} in {} through the tiers{share}",
            bytes(number("/bytes/read")),
            calls(number("/calls/reads"), "read", "reads")
        ),
    );
    let guessed = number("/hits/guessed");
    if guessed > 0 {
        line(
            "read ahead",
            format!(
                "{}, of which {} were read after that and {} were dropped unread",
                calls(guessed, "block", "blocks"),
                number("/hits/guess_hits"),
                number("/hits/guess_misses")
            ),
        );
    }
    if document["limits"].is_object() {
        line("unsafe", limits(document));
    }
    line("time hidden", hidden(document));
    if document["shared"] == true {
        line(
            "counted",
            "also what other runs under the same node manager did meanwhile".to_owned(),
        );
    }
    lines
}

/// What the run was allowed to have that the store lacks.
fn limits(document: &Value) -> String {
    let of = |at: &str| fraction(document, at);
    let most = of("/limits/max_unsafe").map(|limit| {
        let most = of("/limits/most_unsafe").unwrap_or(0.0);
        format!("up to {} seen, of {} that may be", bytes(most as u64), bytes(limit as u64))
    });
    let age = of("/limits/max_age_seconds").map(|age| format!("for {} at most", seconds(age)));
    most.into_iter().chain(age).collect::<Vec<_>>().join("; ")
}

fn hidden(document: &Value) -> String {
    let of = |at: &str| fraction(document, at).unwrap_or(0.0);
    let beside = seconds(of("/hidden/store_write_seconds"));
    let after = seconds(of("/drain_seconds"));
    match words(document, "/hidden/basis") {
        "measured" => {
            let ahead = of("/hidden/ahead_read_seconds");
            let read = match ahead > 0.0 {
                true => format!(", and {} of reading from it ahead of the command", seconds(ahead)),
                false => String::new(),
            };
            format!(
                "{beside} of writing to the store went on beside the command{read}; {after} of draining were \
                 left at its end"
            )
        }
        "estimated" => format!(
            "about {beside} of writing to the store went on beside the command, by the speed at which the \
             store was seen to take data (`--report` measures it); {after} of draining were left at its end"
        ),
        _ => format!("not known; {after} of draining were left at the command's end"),
    }
}
