//! Programs that do what few do: handlers that write, limits, closed descriptors, other roots.

mod common;

use common::{LAZY, SLOW_STORE, Setup, Site, TINY, works};

fn seed() -> u32 {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        std::process::id() ^ std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()
    });
    eprintln!("FOREBAY_SEED={seed}");
    seed
}

/// Runs a part of a program of `programs` with and without Forebay.
fn same(setup: &Setup, source: &str, words: &str) {
    let site = Site::new(setup);
    if site.compile(source, &["-pthread", "-lrt"]) {
        let name = source.trim_end_matches(".c");
        site.same(&format!("$BIN/{name} {words}"));
    }
}

#[test]
fn handlers_write_to_what_they_interrupt() {
    let seed = seed();
    for setup in [&LAZY, &SLOW_STORE, &TINY] {
        same(setup, "signals.c", &format!("storm file {seed}"));
    }
}

#[test]
fn handlers_that_never_return_leave_nothing_locked() {
    same(&LAZY, "signals.c", &format!("jumps file {}", seed()));
}

#[test]
fn handlers_are_called_as_sigaction_promises() {
    same(&LAZY, "signals.c", "promises file");
}

#[test]
fn threads_are_cancelled_where_they_read_and_write() {
    same(&LAZY, "signals.c", "cancelled file");
}
