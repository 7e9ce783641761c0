//! Tables that all processes share are full: who finds no place there never sees other bytes than those who have one.

mod common;

use common::{LAZY, Site, skip};

#[test]
fn a_program_without_a_slot_does_not_start() {
    if !cfg!(debug_assertions) {
        return skip("timers are scaled in builds with debug assertions only");
    }
    let site = Site::new(&LAZY);
    if !site.compile("crowd.c", &[]) {
        return;
    }
    // What the file has is in RAM alone.
    let script = "echo old > file; sync file; echo new > file\n\
        FOREBAY_TIME_SCALE=50 $BIN/crowd cat file";
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    assert_eq!(ran.stdout, "new\n", "{ran:?}");
    let refused = "cannot start cat: all 1023 processes that can use this node's pool";
    assert!(ran.stderr.contains(refused) && ran.stderr.contains("EAGAIN"), "{ran:?}");
    // On a standard error that is buffered it would be written at the marker.
    let script = "FOREBAY_TIME_SCALE=50 $BIN/crowd cat file 2> log; wc -l < log; wc -c < log";
    let ran = site.end(site.buffered(&["bash", "-c", script])).expect(0);
    let [file, lines, bytes] = ran.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{ran:?}")
    };
    assert_eq!((file, lines), ("new", "2"), "{ran:?}");
    assert!(bytes.parse::<u64>().unwrap() < 100, "{ran:?}");
}

/// The first program of a run, too.
#[test]
fn a_run_whose_command_gets_no_slot_ends_with_126() {
    if !cfg!(debug_assertions) {
        return skip("refusals are only in builds with debug assertions");
    }
    let site = Site::new(&LAZY);
    let mut run = site.buffered(&["cat", "file"]);
    run.env("FOREBAY_REFUSE", "client:1..").env("FOREBAY_TIME_SCALE", "50");
    std::fs::write(site.store.join("file"), "old\n").unwrap();
    let ran = site.end(run);
    assert_eq!((ran.code, ran.stdout.as_str()), (126, ""), "{ran:?}");
    assert!(ran.stderr.contains("cannot start cat"), "{ran:?}");
}
