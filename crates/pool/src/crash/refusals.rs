//! Allocations that fail on purpose, see the module above.

use crate::environment::Variable;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::fs::{Mode, OFlags};
use rustix::io::IoSlice;
use std::sync::OnceLock;

/// Parts that are looked at.
const PARTS: usize = 12;

/// This process has looked, and nothing is to be refused.
static OFF: AtomicBool = AtomicBool::new(false);
/// Allocations by part, in this process.
static PASSED: [AtomicU64; PARTS] = [const { AtomicU64::new(0) }; PARTS];

struct Asked {
    text: Variable,
    log: Variable,
}

/// Whether it is the turn of this allocation of `name`.
pub(super) fn refused(name: &'static str) -> bool {
    if OFF.load(Ordering::Relaxed) {
        return false;
    }
    static ASKED: OnceLock<Asked> = OnceLock::new();
    let asked = ASKED.get_or_init(|| Asked {
        text: Variable::of(b"FOREBAY_REFUSE="),
        log: Variable::of(b"FOREBAY_REFUSE_LOG="),
    });
    let text = core::str::from_utf8(asked.text.bytes()).unwrap_or("");
    if text.is_empty() {
        OFF.store(true, Ordering::Relaxed);
        return false;
    }
    let is_refused = text.split(',').zip(&PASSED).any(|(part, passed)| {
        let Some((of, when)) = part.split_once(':') else { return false };
        if of != name {
            return false;
        }
        let pass = passed.fetch_add(1, Ordering::Relaxed) + 1;
        match when.strip_suffix("..") {
            Some(first) => first.parse().is_ok_and(|first: u64| pass >= first),
            None => when.parse() == Ok(pass),
        }
    });
    if is_refused {
        note(name, &asked.log);
    }
    is_refused
}

/// Adds a line to the log.
fn note(name: &str, log: &Variable) {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    if let Ok(log) =
        rustix::fs::openat(rustix::fs::CWD, log.c_str(), flags, Mode::RUSR | Mode::WUSR)
    {
        let line = [name.as_bytes(), b"\n"].map(IoSlice::new);
        let _ = rustix::io::writev(log, &line);
    }
}
