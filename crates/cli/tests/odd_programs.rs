//! Programs that do what few do: handlers that write, limits, closed descriptors, other roots.

mod common;

use common::{LAZY, SLOW_STORE, Setup, Site, TINY};

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

#[test]
fn glibcs_asynchronous_requests_are_buffered() {
    let site = Site::new(&LAZY);
    if site.compile("aio.c", &["-pthread", "-lrt"]) {
        let status = site.same("$BIN/aio file");
        assert!(status.count("writes") >= 66 && status.count("reads") >= 64, "{}", status.text);
        assert_eq!(status.count("passed"), 0, "{}", status.text);
    }
}

#[test]
fn buffers_that_are_invalid_in_part_are_used_up_to_there() {
    same(&LAZY, "limits.c", "buffers file");
    same(&TINY, "limits.c", "buffers file");
}

#[test]
fn lengths_and_counts_have_the_kernels_limits() {
    same(&LAZY, "limits.c", "lengths file");
}

#[test]
fn flags_of_preadv2_and_pwritev2_do_what_they_say() {
    same(&LAZY, "limits.c", "flags file");
}

#[test]
fn files_end_at_the_limits_of_program_and_store() {
    same(&LAZY, "limits.c", "sizes file");
}

#[test]
fn a_run_under_a_limit_on_file_sizes_drains() {
    let site = Site::new(&LAZY);
    let script = "ulimit -S -f 2000; $FOREBAY run --config $CONFIG -- sh -c \
        'head -c 2000000 /dev/zero > small; head -c 3000000 /dev/zero > large; echo $?' 2>&1; ls -s small large";
    let mut command = site.command(&site.store, "bash");
    command.args(["-c", script]).env("CONFIG", &site.config);
    let ran = site.end(command).expect(0);
    let mut plain = site.command(&site.plain, "bash");
    plain.args(["-c", &script.replace("$FOREBAY run --config $CONFIG --", "")]);
    assert_eq!(ran.stdout, site.end(plain).stdout);
}
